"""The command, run from an empty folder and with a root of its own and no app."""

from collections.abc import Callable
from pathlib import Path

import pytest

from support import command


@pytest.fixture
def maka_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., command.Ran]:
    """Runs `maka` with the given words; fails for a traceback or an error that nobody foresaw."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("MAKA_HOME", str(tmp_path / "root"))
    monkeypatch.delenv("MAKA_APP", raising=False)
    return lambda *words: command.here(*words).checked()
