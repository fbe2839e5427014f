"""Where a fork begins: the point in its parent, and the values of the session there. No I/O."""

from collections.abc import Iterable
from typing import Final

from ..journal.events import Event, JsonObject
from .errors import ForkRefused

#: What a fork takes over of its parent's newest values.
_INHERITED: Final = ("cwd", "backend", "model", "permission_mode", "connection", "labels")
_OPENS: Final = frozenset({"turn/start", "continuation/start"})


def fork_point(
    session_id: str, events: Iterable[Event], *, turn_id: str | None, before: int | None
) -> tuple[JsonObject, JsonObject]:
    """The number and sum of the point, and the newest values of the session there: the end of ``turn_id``, else the
    newest point with no turn open. It stands before event number ``before``.

    ``events`` are the session's own, from its header on. Raises ForkRefused.
    """
    values: JsonObject = {}
    opened: set[str] = set()
    found: tuple[JsonObject, JsonObject] | None = None
    ended = False
    for event in events:
        if event.seq == before:
            break
        data = event.data
        if event.type == "session/header":
            values = {key: data[key] for key in _INHERITED if key in data}
        elif event.type == "session/updated":
            values |= {key: data["patch"][key] for key in _INHERITED if key in data["patch"]}
        elif event.type in _OPENS:
            opened.add(data["turn_id"])
        elif event.type == "turn/end":
            opened.discard(data["turn_id"])
            ended = True
            if data["turn_id"] == turn_id and not opened:
                return {"seq": event.seq, "sum": event.sum}, values
        if ended and not opened:
            found = {"seq": event.seq, "sum": event.sum}, dict(values)
    if turn_id is not None:
        raise ForkRefused(
            f"session {session_id} has no closed turn {turn_id} of its own; "
            "name one that has ended, or none for the newest"
        )
    if found is None:
        raise ForkRefused(f"session {session_id} has no closed turn of its own to fork it at; let one end first")
    return found
