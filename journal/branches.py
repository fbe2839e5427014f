"""Where lines of earlier numbers stand, and which branch goes on where two writers forked the chain. No I/O."""

from array import array
from bisect import bisect_right
from collections.abc import Collection
from hashlib import sha256
from typing import Final

from .codec import decode
from .proof import PREFIX, SUM_BYTES
from .source import Source, lines

#: One entry of the index stands for about this many lines.
STRIDE: Final = 64
#: Of so many versions of one number it is asked which one a line hangs on.
_VERSIONS: Final = 64
#: So many stretches of lines are kept that were looked up last.
_KEPT: Final = 4


class Places:
    """An index of standing lines: their numbers, ascending, and offsets; every so many of them, and every odd one."""

    def __init__(self, source: Source, start: int) -> None:
        self.numbers = array("q")
        self.offsets = array("q")
        self._source = source
        self._start = start
        self._stretches: dict[int, dict[int, int]] = {}
        #: Of the stretch behind the last entry: the entry, its lines so far, and where to go on.
        self._last: tuple[int, dict[int, int], int] = (-2, {}, 0)

    def find(self, number: int, before: int, excluded: Collection[int]) -> bytes | None:
        """The line before the offset ``before`` that stands under ``number``; those at ``excluded`` offsets do not."""
        if number < 0:
            return None
        place = bisect_right(self.numbers, number) - 1
        offset = self._stretch(place, before, excluded).get(number)
        if offset is None or offset >= before:
            return None
        return next(line for _, line, _ in lines(self._source, offset))

    def _stretch(self, place: int, before: int, excluded: Collection[int]) -> dict[int, int]:
        """Where the lines stand from an entry of the index to the next one, by number; the first of a number counts.

        Behind the last entry, as far as ``before``: what is looked at there is never looked at again.
        """
        if place + 1 < len(self.offsets):
            stretch = self._stretches.get(place)
            if stretch is None:
                stretch = {}
                self._look(place, stretch, self._begin(place), self.offsets[place + 1], excluded)
                if len(self._stretches) >= _KEPT:
                    self._stretches.pop(next(iter(self._stretches)))
                self._stretches[place] = stretch
            return stretch
        known, stretch, offset = self._last
        if known != place:
            stretch, offset = {}, self._begin(place)
        offset = self._look(place, stretch, offset, before, excluded)
        self._last = (place, stretch, offset)
        return stretch

    def _begin(self, place: int) -> int:
        return self.offsets[place] if place >= 0 else self._start

    def _look(self, place: int, stretch: dict[int, int], offset: int, stop: int, excluded: Collection[int]) -> int:
        """Enter the lines of a part of the file; says where it ends."""
        least = self.numbers[place] if place >= 0 else 0
        for at, line, _ in lines(self._source, offset):
            if at >= stop:
                return at
            match = PREFIX.match(line)
            if match is not None and at not in excluded:
                # The index knows under which number its own line stands; the others are believed.
                number = least if not stretch and place >= 0 else int(match[1])
                if least <= number < least + STRIDE or place < 0:
                    stretch.setdefault(number, at)
        return self._source.size

    def losers(self, fork: int) -> frozenset[int]:
        """The lines behind event ``fork`` that are not in the branch of the last valid line: their offsets.

        Each valid line hangs on a line numbered one less whose sum it fits, else on the line before it in the file.
        """
        place = max(bisect_right(self.numbers, fork) - 1, 0)
        first = self.offsets[place] if len(self.offsets) else self._start
        nodes: list[tuple[int, int]] = []  # offset, parent
        by_number: dict[int, list[tuple[int, bytes]]] = {}
        seen: dict[bytes, int] = {}
        copies: list[tuple[int, int]] = []  # offset, the node it repeats
        behind = -1
        for offset, line, ended in lines(self._source, first):
            event = decode(line)
            if event is None or not ended:
                continue
            key = sha256(line).digest()
            if key in seen:
                copies.append((offset, seen[key]))
                continue
            node = seen[key] = len(nodes)
            sum_ = event.sum.encode()
            parent, fits = node - 1, False
            for candidate, before in by_number.get(event.seq - 1, ())[:_VERSIONS]:
                if sha256(before + line[:-SUM_BYTES]).hexdigest()[:32] == event.sum:
                    parent, fits = candidate, True
                    break
            # One that chains on is asked before one that does not: a changed copy has the sum of its original.
            by_number.setdefault(event.seq, []).insert(0 if fits else node, (node, sum_))
            if event.seq == fork and behind < 0:
                behind = node
            nodes.append((offset, parent))
        kept: set[int] = set()
        node = len(nodes) - 1
        while node >= 0 and node not in kept:
            kept.add(node)
            node = nodes[node][1]
        lost = {node for node in range(behind + 1, len(nodes)) if node not in kept}
        return frozenset([nodes[node][0] for node in lost] + [at for at, node in copies if node in lost])
