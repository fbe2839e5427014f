"""What a listing can say of a session without folding it: from its header and the end of its file. No I/O.

A row is ``{session_id, name, last_activity, turns, verdict}``, ``last_activity`` in Unix milliseconds. What the
bytes at hand cannot tell is None, and the verdict is ``unchecked``.
"""

from typing import Any, Final

from .codec import decode
from .events import Event, JsonObject
from .source import BOM

#: So much of the end of a file is looked at.
TAIL: Final = 64 * 1024
#: So much of its beginning, for the header.
HEAD: Final = 4 * 1024


def row(session_id: str, verdict: str = "unchecked") -> JsonObject:
    """A row of which nothing is known but the directory's name."""
    return {"session_id": session_id, "name": None, "last_activity": None, "turns": None, "verdict": verdict}


def from_ends(session_id: str, head: bytes, tail: bytes, whole: bool) -> JsonObject:
    """The row from a file's first and last bytes; ``whole``: ``tail`` is all of the file."""
    out = row(session_id)
    end = tail.rfind(b"\n") + 1
    start = 0 if whole else tail.find(b"\n") + 1
    last = _newest(tail, b"\n", start, end)
    if last is not None:
        out["last_activity"] = last.ts
    renamed = _newest(tail, b'"type":"session/updated","data":{', start, end, _name)
    if renamed is not None:
        out["name"] = _name(renamed)
    elif whole:
        header = decode(head.split(b"\n", 1)[0].removeprefix(BOM).removesuffix(b"\r"))
        name = header.data.get("name") if header is not None and header.type == "session/header" else None
        out["name"] = name if isinstance(name, str) else None
    opened = _newest(tail, b'"type":"turn/start","data":{', start, end, _turn)
    resumed = tail.rfind(b'"type":"continuation/start","data":{', start, end) >= 0
    if opened is not None and not resumed:
        out["turns"] = _turn(opened)
    elif whole and not resumed:
        out["turns"] = 0
    return out


def _name(event: Event) -> Any:
    name = event.data["patch"].get("name") if event.type == "session/updated" else None
    return name if isinstance(name, str) else None


def _turn(event: Event) -> Any:
    return event.data["turn"] if event.type == "turn/start" else None


def _newest(tail: bytes, mark: bytes, start: int, end: int, wanted: Any = None) -> Event | None:
    """The last whole event in ``tail[start:end]`` whose line holds ``mark`` and of which ``wanted`` gives a value."""
    while end > start:
        at = tail.rfind(mark, start, end)
        if at < 0:
            return None
        first = max(tail.rfind(b"\n", start, at) + 1, start)
        stop = tail.find(b"\n", at, end)
        event = decode(tail[first:stop].removesuffix(b"\r")) if stop >= 0 else None
        if event is not None and (wanted is None or wanted(event) is not None):
            return event
        end = first
    return None
