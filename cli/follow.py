"""Following a journal that others write: which events are new since the last look. Reads, never writes, never waits.

A journal is only ever appended to, but a failed write is rolled back and a file may be restored from a copy. So a look
first makes sure that the last line it knows still stands where it stood. If not, it goes back to the last line whose
sum it still finds, and says so.
"""

import os
from array import array
from collections import deque
from contextlib import suppress
from pathlib import Path

import attrs

from ..journal.codec import SUM_BYTES
from ..journal.errors import SessionNotFound
from ..journal.events import Event
from ..journal.reader import open_source
from ..journal.scan import Consumer, Mark, ScanResult, scan
from ..journal.source import Source


@attrs.frozen
class Look:
    """What one look brought: events in order, and sentences about what happened to the file."""

    events: list[Event] = attrs.Factory(list)
    said: list[str] = attrs.Factory(list)


class Follower:
    """Remembers of each line that stands eight bytes of its sum, so that it can tell what two files have in common."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._sums = array("Q")
        self._mark: Mark | None = None
        self._stat: tuple[int, int, int, int] | None = None

    def start(self, count: int) -> tuple[list[Event], ScanResult]:
        """Read all of it; the newest `count` events. Raises SessionNotFound or OSError."""
        self._stat = _stat(self.path)
        newest: deque[Event] = deque(maxlen=count)
        result = self._scan(open_source(self.path), newest, None)
        return list(newest), result

    def look(self) -> Look:
        """What is new. Raises OSError for what cannot be read."""
        before, now = self._stat, _stat(self.path)
        if now == before:
            return Look()
        self._stat = now
        source = None
        if now is not None:
            with suppress(SessionNotFound):  # it went since
                source = open_source(self.path)
        if source is None or now is None:
            self._stat = None
            return Look(said=[f"{self.path} is gone; waiting for it to come back"])
        changed = self._changed(source, before, now)
        if changed is not None:
            return self._go_back(source, changed)
        events: list[Event] = []
        self._scan(source, events, self._mark)
        return Look(events)

    def _changed(self, source: Source, before: tuple[int, ...] | None, now: tuple[int, ...]) -> str | None:
        """What makes the remembered place worthless, if anything does."""
        if self._mark is None:
            return None
        if before is not None and before[:2] != now[:2]:
            return "was replaced"
        if source.size < self._mark.offset:
            return f"shrank to {source.size} bytes"
        end = source.read(max(0, self._mark.offset - SUM_BYTES - 2), SUM_BYTES + 2).rstrip(b"\r\n")
        if not end.endswith(b',"sum":"%b"}' % self._mark.sum.encode()):
            return f"changed before byte {self._mark.offset}"
        return None

    def _go_back(self, source: Source, changed: str) -> Look:
        known = set(self._sums)
        common: Event | None = None
        fresh: list[Event] = []
        events: list[Event] = []
        self._sums = array("Q")
        self._scan(source, events, None)
        for event in events:
            if _key(event) in known:
                common = event
                fresh.clear()
            else:
                fresh.append(event)
        where = (
            "no line of it was seen before: from its start" if common is None else f"going on after event {common.seq}"
        )
        return Look(fresh, [f"{self.path} {changed}; {where}"])

    def _scan(self, source: Source, into: "list[Event] | deque[Event]", after: Mark | None) -> ScanResult:
        kept = len(self._sums)

        def begin() -> Consumer:
            into.clear()
            del self._sums[kept:]

            def take(event: Event) -> None:
                self._sums.append(_key(event))
                into.append(event)

            return take

        # A last line that lacked its LF when it was read has it by now, if anything follows.
        if after is not None:
            seam = source.read(after.offset - 1, 2)
            if seam[:1] != b"\n" and seam[1:] == b"\n":
                after = attrs.evolve(after, offset=after.offset + 1)
        result = scan(source, begin, after=after)
        self._mark = result.head or after
        return result


def _key(event: Event) -> int:
    return int(event.sum[:16], 16)


def _stat(path: Path) -> tuple[int, int, int, int] | None:
    """None where there is nothing, or nothing that this user may look at: opening it tells which."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
