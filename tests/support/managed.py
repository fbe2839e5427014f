"""Session managers on real roots whose backends play scripts, and a look at what they left on disk."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from maka.journal.reader import JOURNAL
from maka.runtime.app import App
from maka.runtime.backends.scripted import Faults, ScriptedBackends, Turn, scripted_backend
from maka.runtime.kernel.stream import TurnStream
from maka.runtime.session_events import SessionEvent
from maka.runtime.sessions import SessionManager

from .chain import check

T = TypeVar("T")


def go(main: Coroutine[Any, Any, T]) -> T:
    """Runs a case to its end; no task may be left."""

    async def whole() -> T:
        result = await main
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"left behind: {left}"
        return result

    return asyncio.run(whole())


def app_of(script: ScriptedBackends, **values: Any) -> App:
    values = {"model": "scripted-1", "permission_mode": "bypass", **values}
    return App(backends={"scripted": script}, default_backend="scripted", **values)


def playing(*turns: Turn, steps: bool = True, faults: Faults | None = None) -> ScriptedBackends:
    return scripted_backend(turns, steps=steps, faults=faults)


@asynccontextmanager
async def managing(root: Path, script: ScriptedBackends | App, **options: Any) -> AsyncIterator[SessionManager]:
    app = script if isinstance(script, App) else app_of(script)
    async with SessionManager(root, app=app, **options) as manager:
        yield manager


async def told(stream: TurnStream) -> list[SessionEvent]:
    return [event async for event in stream]


async def until(stream: TurnStream, kind: str) -> SessionEvent:
    """The next event of that kind; those before it are passed over."""
    async for event in stream:
        if event.kind == kind:
            return event
    raise AssertionError(f"the turn ended without {kind}")


def said(events: Iterable[SessionEvent]) -> list[str]:
    """What the model said, piece by piece."""
    return [event.data["text"] for event in events if event.kind == "text_complete"]


def directory(root: Path, session_id: str) -> Path:
    return root / "sessions" / session_id


def events_of(root: Path, session_id: str, start: str = "0" * 32) -> list[dict[str, Any]]:
    """The events on disk, checked by the format alone."""
    return check((directory(root, session_id) / JOURNAL).read_bytes(), start)


def types_of(root: Path, session_id: str) -> list[str]:
    return [event["type"] for event in events_of(root, session_id)]


def data_of(root: Path, session_id: str, type_: str) -> list[dict[str, Any]]:
    return [event["data"] for event in events_of(root, session_id) if event["type"] == type_]


def files_of(root: Path) -> dict[str, bytes]:
    """Every file below ``root`` but those that may be made anew: snapshots and locks."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name not in ("snapshot.json", "journal.lock")
    }
