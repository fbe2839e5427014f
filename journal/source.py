"""Bytes with random access, in pieces and in lines; nothing here knows what an event is. No I/O of its own."""

from collections.abc import Iterator
from typing import Final, Protocol

import attrs

from .proof import MAX_LINE, STRETCH, Prover

CHUNK: Final = STRETCH
BOM: Final = b"\xef\xbb\xbf"


class Source(Protocol):
    """Random access to the bytes that existed when it was opened."""

    @property
    def size(self) -> int: ...

    def read(self, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``offset``; fewer only at the end."""
        ...

    def prover(self, offset: int, number: int, written: bytes) -> Prover | None:
        """A second process that proves what follows on the line of that number and sum, where that pays."""
        ...


@attrs.frozen
class BytesSource:
    """A journal that is held in memory."""

    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    def read(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length]

    def prover(self, offset: int, number: int, written: bytes) -> Prover | None:
        return None


@attrs.frozen
class Part:
    """The first ``size`` bytes of another source."""

    source: Source
    size: int

    def read(self, offset: int, length: int) -> bytes:
        return self.source.read(offset, max(0, min(length, self.size - offset)))

    def prover(self, offset: int, number: int, written: bytes) -> Prover | None:
        return None


def pieces(source: Source, offset: int) -> Iterator[tuple[bytes, bytes | None, int]]:
    """Whole lines; then what follows the last LF with its length, or the length of a line too long to hold."""
    size = source.size
    carry = b""
    while offset < size:
        chunk = source.read(offset, min(max(CHUNK, len(carry)), size - offset))
        if not chunk:
            break
        offset += len(chunk)
        first = chunk.find(b"\n")
        if len(carry) + first > MAX_LINE + 4:
            yield b"", None, len(carry) + first
            chunk, carry = chunk[first + 1 :], b""
        last = chunk.rfind(b"\n") + 1
        if last:
            yield carry + chunk[:last], None, 0
            carry = chunk[last:]
        else:
            carry += chunk
        if len(carry) > MAX_LINE + 4:
            begin, end = offset - len(carry), find_lf(source, offset)
            if end < 0:
                yield b"", carry, size - begin
                return
            yield b"", None, end - begin
            offset, carry = end + 1, b""
    if carry:
        yield b"", carry, len(carry)


def find_lf(source: Source, offset: int) -> int:
    while chunk := source.read(offset, CHUNK):
        place = chunk.find(b"\n")
        if place >= 0:
            return offset + place
        offset += len(chunk)
    return -1


def line_at(source: Source, offset: int) -> bytes:
    """The line that begins at ``offset``, as ``decode`` takes it; empty where it is too long or there is none."""
    parts: list[bytes] = []
    held = 0
    while held <= MAX_LINE:
        chunk = source.read(offset + held, 8192 if not parts else CHUNK)
        place = chunk.find(b"\n")
        parts.append(chunk if place < 0 else chunk[:place])
        if place >= 0 or not chunk:
            return b"".join(parts).rstrip(b"\r")
        held += len(chunk)
    return b""


def lines(source: Source, offset: int) -> Iterator[tuple[int, bytes, bool]]:
    """Each line from ``offset`` on, as ``line_at`` gives it: where it begins, the line, whether an LF ends it."""
    while offset < source.size:
        end = find_lf(source, offset)
        line = line_at(source, offset)
        yield offset, line.removeprefix(BOM) if offset == 0 else line, end >= 0
        if end < 0:
            return
        offset = end + 1
