"""Events near the end of a journal, found from there: a page of history costs what lies behind it, and no fold.

Reading only. What is no event is passed over, and so is what a branch left that did not stay: numbers fall strictly on
the way back, and one that is not the next below is believed where its line follows on the one before it. The newest
line is believed as it is.
"""

import os
import re
from array import array
from collections.abc import Callable, Iterator
from itertools import chain as chained
from itertools import pairwise
from typing import Final

from .codec import MAX_LINE, chain, decode
from .errors import JournalError
from .events import Event
from .proof import PREFIX, SUM_BYTES
from .reader import FileSource, open_source
from .source import BOM

Target = str | os.PathLike[str]
#: Bytes that are read at once.
_PIECE: Final = 256 * 1024
#: A longer line is no event, and is not held: the longest there is, with BOM and CR.
_LONGEST: Final = MAX_LINE + 4
_SUM: Final = b',"sum":"'
#: Offset of an event's first byte, its line without LF, and the start of that: number and type.
_Line = tuple[int, bytes, re.Match[bytes]]


def events_before(
    path: Target, before: int | None, limit: int, wanted: Callable[[str], bool], *, most_bytes: int
) -> tuple[list[Event], int | None]:
    """The newest events below number ``before`` (None: of all), oldest first, and the ``before`` of the older page.

    Those whose type is ``wanted``: up to ``limit``, and as many as their lines have at most ``most_bytes`` together;
    one in any case. The older page is None where nothing wanted is older. The file may grow meanwhile. Raises
    SessionNotFound, and JournalError where it cannot be read; never for what it holds.
    """
    found: list[Event] = []
    size = 0
    with open_source(path) as source:
        for offset, line, begins in _standing(source):
            if (before is not None and int(begins[1]) >= before) or not wanted(_type(begins)):
                continue
            if found and (len(found) >= limit or size + len(line) > most_bytes):
                return found[::-1], found[-1].seq
            event = decode(line, offset)
            if event is not None:
                found.append(event)
                size += len(line)
    return found[::-1], None


def events_between(path: Target, after: int, upto: int, wanted: Callable[[str], bool]) -> Iterator[Event]:
    """The events of ``wanted`` types above number ``after`` up to ``upto``, oldest first; one at a time is in memory.

    Raises as ``events_before`` does, when the first is asked for.
    """
    places = array("q")
    with open_source(path) as source:
        for offset, line, begins in _standing(source):
            seq = int(begins[1])
            if seq <= after:
                break
            if seq <= upto and wanted(_type(begins)):
                places.extend((offset, len(line)))
        for index in range(len(places) - 2, -1, -2):
            event = decode(_read(source, places[index], places[index + 1]), places[index])
            if event is not None:
                yield event


def _type(begins: re.Match[bytes]) -> str:
    return begins[3].decode(errors="replace")


def _standing(source: FileSource) -> Iterator[_Line]:
    """The lines that begin as an event and stand, the newest first."""
    above: int | None = None
    nothing: tuple[int, bytes | None] = (0, None)
    for (offset, raw), (_, older) in pairwise(chained(_lines(source), [nothing])):
        assert raw is not None, "only what is before the first line is nothing"
        line = raw.removesuffix(b"\r")
        if not offset and line.startswith(BOM):
            offset, line = len(BOM), line.removeprefix(BOM)
        begins = _begins(line)
        if begins is None:
            continue
        seq = int(begins[1])
        if above is None or seq + 1 == above or (seq < above and _follows(line, older)):
            above = seq
            yield offset, line, begins


def _begins(line: bytes) -> re.Match[bytes] | None:
    """How a line begins that also ends as an event does."""
    return PREFIX.match(line) if line[-SUM_BYTES:].startswith(_SUM) and line.endswith(b'"}') else None


def _follows(line: bytes, older: bytes | None) -> bool:
    """Does a line follow on the one before it, as far as that can say so?"""
    older = (older or b"").removesuffix(b"\r").removeprefix(BOM)
    return _begins(older) is None or chain(_sum(older), line[:-SUM_BYTES]) == _sum(line)


def _sum(line: bytes) -> str:
    """The sum that a line ends with, whatever stands there."""
    return line[-SUM_BYTES + len(_SUM) : -2].decode("latin-1")


def _lines(source: FileSource) -> Iterator[tuple[int, bytes]]:
    """The LF-ended lines, without LF, the newest first, with their offsets; those that are too long are empty."""
    at = source.size
    # Of the line whose end has been found: its pieces, the newest first, and how many bytes they have.
    pieces: list[bytes] = []
    held, ended = 0, False

    def whole(head: bytes) -> bytes:
        return b"".join([head, *reversed(pieces)]) if held + len(head) <= _LONGEST else b""

    while at:
        start = max(0, at - _PIECE)
        piece = _read(source, start, at - start)
        if len(piece) < at - start:  # it was cut back meanwhile
            pieces, held, ended = [], 0, False
        stop = len(piece)
        while (cut := piece.rfind(b"\n", 0, stop)) >= 0:
            if ended:
                yield start + cut + 1, whole(piece[cut + 1 : stop])
            pieces, held, ended = [], 0, True
            stop = cut
        if ended:
            held += stop
            pieces = [] if held > _LONGEST else [*pieces, piece[:stop]]
        at = start
    if ended:
        yield 0, whole(b"")


def _read(source: FileSource, offset: int, length: int) -> bytes:
    try:
        return source.read(offset, length)
    except OSError as error:
        raise JournalError(
            f"cannot read {source.path}: {error.strerror}; the bytes were not touched", path=source.path
        ) from None
