"""Folds what a builder made, by the project's own decoder and fold."""

from collections.abc import Iterable
from typing import Any

from maka.journal.codec import decode
from maka.journal.events import Event
from maka.journal.history import History
from maka.journal.state import State

from .builder import Builder


def events(builder: Builder, lost: Iterable[int] = ()) -> list[Event]:
    """The builder's events without the ``lost`` numbers; the one behind a loss is not verified."""
    out: list[Event] = []
    offset, gone = 0, set(lost)
    for line in builder.lines:
        event = decode(line, offset)
        assert event is not None, line
        offset += len(line) + 1
        if event.seq not in gone:
            event.verified = event.seq - 1 not in gone
            out.append(event)
    return out


def fold(builder: Builder, lost: Iterable[int] = ()) -> State:
    state = State()
    for event in events(builder, lost):
        state.apply(event)
    return state


def history(*builders: Builder) -> History:
    folded = History()
    for builder in builders:
        for event in events(builder):
            folded.apply(event)
    return folded


def problems(builder: Builder, lost: Iterable[int] = ()) -> list[tuple[str, int | None]]:
    """``(code, seq)`` of what the fold found."""
    return [(finding.code, finding.seq) for finding in fold(builder, lost).problems]


def text(message: dict[str, Any]) -> str:
    """All text of a message, results included."""
    out = []
    for block in message["content"]:
        out.append(block.get("text", ""))
        out += [inner.get("text", "") for inner in block.get("content", ()) if block["kind"] == "tool_result"]
    return " ".join(out)
