"""Settings and options for all tests."""

import signal

import pytest
from hypothesis import settings

# Where the tests run in the background of a shell interrupts are ignored, and what the tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says more about the machine's disk than about the code.
settings.register_profile("maka", deadline=None)
settings.load_profile("maka")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("simulation")
    group.addoption("--simulation-seed", type=int, default=0, help="the first seed of the kernel's simulation")
    group.addoption("--simulation-runs", type=int, default=None, help="how many; 1 if a seed is given, else 300")


@pytest.fixture
def simulation_seeds(request: pytest.FixtureRequest) -> range:
    """The seeds that were asked for."""
    first: int = request.config.getoption("--simulation-seed")
    runs: int | None = request.config.getoption("--simulation-runs")
    if runs is None:
        runs = 1 if first else 300
    return range(first, first + runs)
