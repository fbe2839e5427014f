"""The command, run from an empty folder and with a root of its own and no app."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support import command
from support.orders import Orders
from support.spoken import Hosted


@pytest.fixture
def maka_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., command.Ran]:
    """Runs `maka` with the given words; fails for a traceback or an error that nobody foresaw."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("MAKA_HOME", str(tmp_path / "root"))
    monkeypatch.delenv("MAKA_APP", raising=False)
    return lambda *words: command.here(*words).checked()


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Orders]:
    """The agent, importable as `agent` where the command runs; nothing of it stays imported."""
    monkeypatch.delenv("MAKA_APP", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "elsewhere").mkdir(exist_ok=True)
    yield Orders(tmp_path / "elsewhere", tmp_path / "root")
    sys.modules.pop("agent", None)


@pytest.fixture
def resume(maka_: Callable[..., command.Ran], orders: Orders) -> Callable[..., Any]:
    """`maka session resume s`, each time as a process of its own would: with the module as it then is."""

    def run(*words: object, target: object = "s") -> Any:
        sys.modules.pop("agent", None)
        return maka_("session", "resume", target, *words)

    return run


@pytest.fixture
def hosted(maka_: Callable[..., command.Ran], tmp_path: Path) -> Iterator[Hosted]:
    """A host of the root, in this process."""
    with Hosted(tmp_path / "root") as host:
        yield host
