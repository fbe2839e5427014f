"""A foreign file folded: what an import of it would hold, thread by thread. Nothing is written."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import attrs

from ..events import Event, JsonObject
from ..history import History
from ..scan import uncollected
from ..source import Source
from ..state import State
from . import arrays, claude_code, codex, dsh, pi
from .conversion import Batch, Conversion
from .findings import Report
from .records import MAIN, Record

Reader = Callable[[Source, Report, str], Iterator[Record]]

#: By the format's name.
READERS: Final[dict[str, Reader]] = {
    **dict.fromkeys(arrays.FORMATS, arrays.read),
    "claude-code": claude_code.read,
    "codex": codex.read,
    "dsh": dsh.read,
    "pi": pi.read,
}


@attrs.define(eq=False)
class Thread:
    """A session as the import of a thread would make it. ``history`` only where it was asked for."""

    header: JsonObject
    state: State = attrs.Factory(State)
    history: History | None = None
    events: int = 0
    ts: int = 0

    def take(self, batch: Batch) -> None:
        self.ts = batch.ts
        for draft in batch.drafts:
            event = Event(self.events, batch.ts, draft.type, draft.data, "")
            self.state.apply(event)
            if self.history is not None:
                self.history.apply(event)
            self.events += 1


def batches(
    source: Source, format: str, report: Report, name: str, cuts: Mapping[str, int] | None = None
) -> Iterator[Batch]:
    """The events of every session that a file holds, in the order of the file. ``name``: the file's. ``cuts``: see
    Conversion.
    """
    conversion = Conversion(format, report, cuts)
    for record in READERS[format](source, report, name):
        yield from conversion.feed(record)
    yield from conversion.finish()


def fold(source: Source, format: str, name: str, *, histories: bool = False) -> tuple[Report, dict[str, Thread]]:
    """What is found, and the threads by name; ``""`` is the session itself."""
    report, threads = Report(), dict[str, Thread]()
    with uncollected():
        for batch in batches(source, format, report, name):
            thread = threads.get(batch.thread)
            if thread is None:
                history = History() if histories else None
                thread = threads[batch.thread] = Thread(batch.drafts[0].data, history=history)
            thread.take(batch)
    return report, threads


def events(source: Source, format: str, name: str) -> Iterator[Event]:
    """What an import would write of the session itself."""
    number = 0
    for batch in batches(source, format, Report(), name):
        for draft in batch.drafts if batch.thread == MAIN else ():
            yield Event(number, batch.ts, draft.type, draft.data, "", draft.ignorable)
            number += 1
