"""Settings for all tests."""

from hypothesis import settings

# How long an example takes says more about the machine's disk than about the code.
settings.register_profile("maka", deadline=None)
settings.load_profile("maka")
