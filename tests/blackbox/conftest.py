"""What all black-box tests share."""

import os

import pytest

# Failed assertions of the shared checks say what they compared.
pytest.register_assert_rewrite("support.answers", "support.legal")


@pytest.fixture(autouse=True)
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests look at bytes, and make thousands of repairs: whether a disk has them is tested elsewhere."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda descriptor: None)
