"""Messages that were accepted and not taken yet. No I/O."""

from collections.abc import Container
from typing import Any, Final

import attrs

from ..events import Event, JsonObject
from .problem import Handlers, Problem, Refusals, sequence, text_of


@attrs.define(slots=True)
class Queued:
    """An accepted message. ``data`` is the data of its message/accepted."""

    message_id: str
    seq: int
    data: JsonObject


@attrs.define(slots=True)
class Queue:
    """``waiting`` by message_id, in the order of acceptance: neither taken nor retracted.

    ``ids``: every message so far → what became of it last: accepted, retracted, admitted or said. ``revision``: the
    number of the newest event that changed what waits.
    """

    waiting: dict[str, Queued] = attrs.field(factory=dict, metadata={"of": Queued})
    ids: dict[str, str] = attrs.field(factory=dict)
    revision: int = 0

    def steering(self, open_turns: Container[str]) -> list[Queued]:
        """What waits for the next step of a turn that is open, oldest first."""
        return [item for item in self.waiting.values() if _steers(item, open_turns)]

    def followups(self, open_turns: Container[str]) -> list[Queued]:
        """What becomes the next turns: steering that its turn did not take first, then in the order of acceptance."""
        rest = [item for item in self.waiting.values() if not _steers(item, open_turns)]
        return sorted(rest, key=lambda item: item.data["disposition"] != "steering")


def _steers(item: Queued, open_turns: Container[str]) -> bool:
    return item.data["disposition"] == "steering" and text_of(item.data.get("turn_id")) in open_turns


def refuse_accepted(queue: Queue, data: JsonObject) -> str | None:
    message_id = data["message_id"]
    return f"message {message_id} is in the journal already" if message_id in queue.ids else None


def refuse_admitted(queue: Queue, data: JsonObject) -> str | None:
    fate = queue.ids.get(text_of(data.get("message_id")) or "", "accepted")
    return None if fate == "accepted" else f"message {data['message_id']} was {fate} before"


def refuse_said(queue: Queue, data: JsonObject) -> str | None:
    fate = queue.ids.get(data["message_id"], "accepted")
    return None if fate in ("accepted", "admitted") else f"message {data['message_id']} was {fate} before"


REFUSALS: Final[Refusals] = {
    "message/accepted": refuse_accepted,
    "turn/admitted": refuse_admitted,
    "user/message": refuse_said,
}


def _header(queue: Queue, event: Event) -> Problem | None:
    queue.waiting.clear()
    queue.ids.clear()
    queue.revision = 0
    return None


def _accepted(queue: Queue, event: Event) -> Problem | None:
    message_id = event.data["message_id"]
    if message_id not in queue.ids:
        queue.ids[message_id] = "accepted"
        queue.waiting[message_id] = Queued(message_id, event.seq, event.data)
        queue.revision = event.seq
    return None


def _said(queue: Queue, event: Event) -> Problem | None:
    message_id = event.data["message_id"]
    queue.ids[message_id] = "said"
    if queue.waiting and queue.waiting.pop(message_id, None) is not None:
        queue.revision = event.seq
    return None


def _admitted(queue: Queue, event: Event) -> Problem | None:
    message_id = text_of(event.data.get("message_id"))
    if message_id is not None:
        queue.ids[message_id] = "admitted"
        if queue.waiting.pop(message_id, None) is not None:
            queue.revision = event.seq
    return None


def _retracted(queue: Queue, event: Event) -> Problem | None:
    for message_id in sequence(event.data.get("message_ids" if event.type == "message/retracted" else "retract")):
        if message_id.__class__ is str and queue.waiting.pop(message_id, None) is not None:
            queue.ids[message_id] = "retracted"
            queue.revision = event.seq
    return None


HANDLERS: Final[Handlers] = {
    "session/header": _header,
    "message/accepted": _accepted,
    "user/message": _said,
    "turn/admitted": _admitted,
    "message/retracted": _retracted,
    "turn/stop_requested": _retracted,
}


def rows(queue: Queue, open_turns: Container[str]) -> dict[str, list[dict[str, Any]]]:
    """``{steering: [{message_id, turn_id?, seq}], followup: […]}``."""
    return {
        "steering": [_row(item) for item in queue.steering(open_turns)],
        "followup": [_row(item) for item in queue.followups(open_turns)],
    }


def _row(item: Queued) -> dict[str, Any]:
    turn_id = text_of(item.data.get("turn_id"))
    return {"message_id": item.message_id, **({} if turn_id is None else {"turn_id": turn_id}), "seq": item.seq}
