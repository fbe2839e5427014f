"""What runs a turn: the protocol, the registry, the loop over a model as a backend, and a scripted one for tests."""
