"""The blobs that events name, so that a reader can tell which of them are not there. No I/O."""

from typing import Any, Final

import attrs

from ..events import Event
from .problem import Handlers, Problem, mapping, sequence


@attrs.define(slots=True)
class Blobs:
    """``refs``: the name of each blob (``sha256:<64 hex>``) and the first event that names it."""

    refs: dict[str, int] = attrs.field(factory=dict)


def _take(blobs: Blobs, values: list[Any], seq: int) -> None:
    for value in values:
        if value.__class__ is dict and "ref" in value:
            ref = value["ref"]
            if ref.__class__ is str:
                blobs.refs.setdefault(ref, seq)


def _content(blobs: Blobs, event: Event) -> Problem | None:
    data = event.data
    _take(blobs, data["content"], event.seq)
    if "attachments" in data:
        _take(blobs, sequence(data["attachments"]), event.seq)
    return None


def _admitted(blobs: Blobs, event: Event) -> Problem | None:
    given = mapping(event.data["input"])
    _take(blobs, sequence(given.get("content")), event.seq)
    _take(blobs, sequence(given.get("attachments")), event.seq)
    return None


HANDLERS: Final[Handlers] = {
    "user/message": _content,
    "assistant/message": _content,
    "tool/result": _content,
    "tool/outcome": _content,
    "message/accepted": _content,
    "turn/admitted": _admitted,
}
