"""What a listing can say of a session without folding it: from its header and the end of its file. No I/O.

A row is ``{session_id, name, last_activity, turns, verdict, labels, flagged, archived, unsettled, active_plan,
pending_handoff, queued, admitted}``: see ``summary.listing``. What the bytes at hand cannot tell is None, and the
verdict is ``unchecked``.
"""

from collections.abc import Iterator
from typing import Final

from .codec import decode
from .events import Event, JsonObject
from .source import BOM
from .views.session import setting

#: So much of the end of a file is looked at.
TAIL: Final = 64 * 1024
#: So much of its beginning, for the header.
HEAD: Final = 4 * 1024
#: What of a session's settings a row shows.
_SET: Final = ("name", "labels", "flagged", "archived")


def row(session_id: str, verdict: str = "unchecked") -> JsonObject:
    """A row of which nothing is known but the directory's name."""
    return {
        "session_id": session_id,
        "name": None,
        "last_activity": None,
        "turns": None,
        "verdict": verdict,
        "labels": None,
        "flagged": None,
        "archived": None,
        "unsettled": None,
        "active_plan": None,
        "pending_handoff": None,
        "queued": None,
        "admitted": None,
    }


def from_ends(session_id: str, head: bytes, tail: bytes, whole: bool) -> JsonObject:
    """The row from a file's first and last bytes; ``whole``: ``tail`` is all of the file."""
    out = row(session_id)
    end = tail.rfind(b"\n") + 1
    start = 0 if whole else tail.find(b"\n") + 1
    last = next(_backwards(tail, b"\n", start, end), None)
    if last is not None:
        out["last_activity"] = last.ts
    if whole:
        out |= _begun(head)
    out |= _patched(tail, start, end)
    if tail.rfind(b'"type":"continuation/start","data":{', start, end) < 0:
        starts = _backwards(tail, b'"type":"turn/start","data":{', start, end)
        out["turns"] = next(
            (event.data["turn"] for event in starts if event.type == "turn/start"), 0 if whole else None
        )
    return out


def _begun(head: bytes) -> JsonObject:
    """What the header says of ``_SET``."""
    header = decode(head.split(b"\n", 1)[0].removeprefix(BOM).removesuffix(b"\r"))
    if header is None or header.type != "session/header":
        return {}
    return {key: setting(key, header.data.get(key)) for key in _SET}


def _patched(tail: bytes, start: int, end: int) -> JsonObject:
    """The newest of the values of ``_SET`` that patches in ``tail[start:end]`` hold."""
    found: JsonObject = {}
    for event in _backwards(tail, b'"type":"session/updated","data":{', start, end):
        if event.type == "session/updated":
            patch = event.data["patch"]
            found |= {key: setting(key, patch[key]) for key in _SET if key in patch and key not in found}
        if len(found) == len(_SET):
            break
    return found


def _backwards(tail: bytes, mark: bytes, start: int, end: int) -> Iterator[Event]:
    """The whole events in ``tail[start:end]`` whose lines hold ``mark``, the newest first."""
    while end > start and (at := tail.rfind(mark, start, end)) >= 0:
        first = max(tail.rfind(b"\n", start, at) + 1, start)
        stop = tail.find(b"\n", at, end)
        event = decode(tail[first:stop].removesuffix(b"\r")) if stop >= 0 else None
        if event is not None:
            yield event
        end = first
