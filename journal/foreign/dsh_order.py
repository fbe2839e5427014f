"""Which writer of a DeepSeek Harness log a line is of, by its number: a log with two writers is two branches. No I/O.

Each writer numbers its events one after the other. Whoever appends with an old number has not seen what stands there
since: a branch, which leaves its parent behind the last turn that had ended before that number.
"""

from array import array
from bisect import bisect_left
from typing import Final

import attrs

from .records import MAIN, Place

#: Branches of one file; what is further out of order is read as if it were in order.
_BRANCHES: Final = 1_000
#: The newest lines of a writer that are known by their numbers, and writers that are asked.
_LINES: Final = 1 << 20
_WRITERS: Final = 64


@attrs.define(eq=False)
class Writer:
    """``start``: the number that it begins with. ``next``: the one that it goes on with. ``after``: the turn of
    ``parent`` that it goes on from. ``begun``: was its thread opened?
    """

    thread: str
    start: int = 0
    next: int = 0
    parent: "Writer | None" = None
    after: str | None = None
    begun: bool = False
    #: Turns that have ended, and the numbers of the events that say so.
    turns: list[str] = attrs.Factory(list)
    ends: list[int] = attrs.Factory(list)
    _seqs: "array[int]" = attrs.Factory(lambda: array("q"))
    _places: tuple["array[int]", "array[int]", "array[int]"] = attrs.Factory(
        lambda: (array("q"), array("q"), array("q"))
    )

    def ended(self, turn: str, seq: int) -> None:
        self.turns.append(turn)
        self.ends.append(seq)

    def stands(self, seq: int, place: Place) -> None:
        if len(self._seqs) >= 2 * _LINES:
            del self._seqs[:_LINES]
            for column in self._places:
                del column[:_LINES]
        self._seqs.append(seq)
        lines, offsets, lengths = self._places
        lines.append(place.line)
        offsets.append(place.offset)
        lengths.append(place.length)

    def find(self, seq: int) -> Place | None:
        """The line that begins with that number."""
        writer: Writer | None = self
        for _ in range(_WRITERS):
            if writer is None or seq >= writer.start:
                break
            writer = writer.parent
        if writer is None:
            return None
        at = bisect_left(writer._seqs, seq)
        if at == len(writer._seqs) or writer._seqs[at] != seq:
            return None
        return Place(*(column[at] for column in writer._places))


@attrs.define(eq=False)
class Order:
    """Told of every line's number, in the order of the file; ``now`` is the writer of the last one."""

    now: Writer = attrs.Factory(lambda: Writer(MAIN))
    _writers: list[Writer] = attrs.Factory(list)

    def __attrs_post_init__(self) -> None:
        self._writers.append(self.now)

    def resume(self, seq: int) -> bool:
        """Another writer goes on with that number."""
        for writer in reversed(self._writers[-_WRITERS:]):
            if writer.next == seq:
                self.now = writer
                return True
        return False

    def fork(self, seq: int) -> bool:
        """A branch begins with that number, unless there are too many."""
        if len(self._writers) > _BRANCHES:
            return False
        writer: Writer | None = self.now
        base, turn = self.now, None
        while writer is not None:
            if at := bisect_left(writer.ends, min(seq, base.start) if writer is not base else seq):
                base, turn = writer, writer.turns[at - 1]
                break
            base, writer = writer, writer.parent
        self.now = Writer(f"branch-{len(self._writers)}", seq, seq, base, turn)
        self._writers.append(self.now)
        return True

    def take(self, seq: int, count: int, place: Place) -> None:
        """The line stands: it has ``count`` numbers from ``seq`` on."""
        self.now.stands(seq, place)
        self.now.next = seq + count
