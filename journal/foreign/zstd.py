"""A compressed file of DeepSeek Harness: independent zstd frames in a row, unpacked one by one into a temporary file.

A frame is walked over by its own lengths before it is unpacked. So a last frame that was cut off, which is how a crash
looks, is told from one that is there and broken; what stands behind a broken frame is found again by the next magic.
"""

import io
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import IO, Any, Final

import attrs

from ..errors import JournalError
from ..proof import Prover
from ..source import Source
from .detect import ZSTD

_PIECE: Final = 1 << 20
#: What a frame may unpack to: so much in any case, and so many times its own length; and all of them together.
_ALWAYS: Final = 64 << 20
_TIMES: Final = 1_000
_ALL_ALWAYS: Final = 2 << 30
_ALL_TIMES: Final = 200
_CHECKSUM: Final = 4
#: Of the head of a frame at most so many bytes are lengths: descriptor, window, dictionary, content.
_HEAD: Final = 14
_RLE, _RESERVED = 1, 3
#: Frames without content: the first of their 16 magics, and the bits that differ.
_SKIPPED: Final = 0x184D2A50
_ANY: Final = 0xF


@attrs.frozen
class Flaw:
    """What is wrong with a frame, as a finding of the compressed file: its code, sentence, offset and length there."""

    code: str
    message: str
    offset: int
    length: int


class Unpacked:
    """The bytes that a compressed file stands for, as a Source; ``flaws`` is what of it cannot be read."""

    def __init__(self, file: IO[bytes], size: int, flaws: list[Flaw]) -> None:
        self._file = file
        self.size = size
        self.flaws = flaws

    def read(self, offset: int, length: int) -> bytes:
        return os.pread(self._file.fileno(), max(0, min(length, self.size - offset)), offset)

    def prover(self, offset: int, number: int, written: bytes) -> Prover | None:
        return None

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "Unpacked":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def opened(source: Source) -> Unpacked:
    """What the frames of a compressed file hold. Raises JournalError where nothing that unpacks is installed, and where
    the system has no room for it.
    """
    path = getattr(source, "path", None)
    try:
        open_, broken = _library()
    except ImportError:
        raise JournalError(
            f"{path or 'the file'} is compressed with zstd, and nothing that unpacks it is installed; run "
            "`pip install zstandard`, then try again",
            path=path,
        ) from None
    # It is closed by whoever closes what is returned, or with the last reference to that.
    file = tempfile.TemporaryFile(prefix="maka-")  # noqa: SIM115
    try:
        unpacking = _Unpacking(source, open_, broken, file)
        unpacking.run()
        file.flush()
    except OSError as error:
        file.close()
        raise JournalError(
            f"{path or 'the file'} cannot be unpacked into {tempfile.gettempdir()}: {error.strerror}; make room there, "
            "or name another folder by TMPDIR",
            path=path,
        ) from error
    except BaseException:
        file.close()
        raise
    return Unpacked(file, unpacking.size, unpacking.flaws)


def _library() -> tuple[Callable[[Any], Any], tuple[type[Exception], ...]]:
    """What makes a file that unpacks of one that is packed, and what that raises for bytes that are broken."""
    try:
        from compression import zstd  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        import zstandard

        return zstandard.ZstdDecompressor().stream_reader, (zstandard.ZstdError,)
    return zstd.ZstdFile, (zstd.ZstdError, EOFError)


@attrs.define(eq=False)
class _Unpacking:
    source: Source
    open: Callable[[Any], Any]
    broken: tuple[type[Exception], ...]
    file: IO[bytes]
    size: int = 0
    flaws: list[Flaw] = attrs.Factory(list)
    #: Hostile bytes would have the same stretch walked over again and again: so often a magic may prove to be none, and
    #: so many blocks are walked over.
    tries: int = 100
    blocks: int = attrs.field(default=attrs.Factory(lambda self: 1_000_000 + self.source.size, takes_self=True))

    def run(self) -> None:
        at = 0
        while at < self.source.size:
            end = self._end(at)
            if end is not None and self._take(at, end):
                at = end
                continue
            # Its lengths may be what is broken: frames that are whole are looked for within it too.
            behind = self._next(at + 1)
            if behind is None and end is None and _begins(self.source, at):
                self._keep_lines(at)
                self._flaw("torn_tail", "is not there to its end: whoever wrote it was cut off", at, self.source.size)
                return
            until = min(each for each in (end, behind, self.source.size) if each is not None)
            self._flaw(
                "bad_frame",
                "cannot be unpacked: its bytes or its checksum are wrong, or it holds far too much",
                at,
                until,
            )
            at = until

    def _flaw(self, code: str, what: str, at: int, end: int) -> None:
        self.flaws.append(Flaw(code, f"the compressed frame at byte {at} {what}", at, end - at))

    def _take(self, at: int, end: int) -> bool:
        """Appends what a whole frame holds, all of it or nothing."""
        began = self.size
        for piece in self._pieces(at, end):
            if piece is None:
                self._cut(began)
                return False
            self._put(piece)
        return True

    def _put(self, piece: bytes) -> None:
        self.file.write(piece)
        self.size += len(piece)

    def _cut(self, size: int) -> None:
        self.size = size
        self.file.seek(size)
        self.file.truncate()

    def _keep_lines(self, at: int) -> None:
        """Of a frame that is cut off, the lines that are whole."""
        kept = self.size
        for piece in self._pieces(at, self.source.size):
            if piece is None:
                break
            if (last := piece.rfind(b"\n")) >= 0:
                kept = self.size + last + 1
            self._put(piece)
        self._cut(kept)

    def _pieces(self, at: int, end: int) -> Iterator[bytes | None]:
        """What the bytes of a frame unpack to; None behind the last of it where it is broken."""
        left = max(_ALWAYS, _TIMES * (end - at))
        left = min(left, max(_ALL_ALWAYS, _ALL_TIMES * self.source.size) - self.size)
        try:
            with self.open(_Span(self.source, at, end)) as unpacked:
                while left > 0 and (piece := unpacked.read(_PIECE)):
                    left -= len(piece)
                    yield piece
        except self.broken:
            left = 0
        if left <= 0:
            yield None

    def _next(self, at: int) -> int | None:
        """Where the next frame begins that is whole and unpacks; a magic alone may be anything."""
        while self.tries > 0 and (found := _find(self.source, ZSTD, at)) is not None:
            end = self._end(found)
            if end is not None and all(piece is not None for piece in self._pieces(found, end)):
                return found
            self.tries -= 1
            at = found + 1
        return None

    def _end(self, at: int) -> int | None:
        """Where the frame ends that begins here; None where it is none, or not there to its end."""
        head = self.source.read(at, len(ZSTD) + _HEAD)
        magic, head = head[: len(ZSTD)], head[len(ZSTD) :]
        if _is_skipped(magic):
            end = at + 8 + int.from_bytes(head[:4], "little")
            return end if len(head) >= 4 and end <= self.source.size else None
        if magic != ZSTD or not head:
            return None
        descriptor = head[0]
        single = descriptor >> 5 & 1
        at += len(ZSTD) + 1 + (1 - single) + (0, 1, 2, 4)[descriptor & 3] + (single, 2, 4, 8)[descriptor >> 6]
        while self.blocks > 0:
            self.blocks -= 1
            block = self.source.read(at, 3)
            number = int.from_bytes(block, "little")
            kind, length, last = number >> 1 & 3, number >> 3, number & 1
            # Nobody writes an empty block but as the last.
            if len(block) < 3 or kind == _RESERVED or not (length or last):
                return None
            at += 3 + (1 if kind == _RLE else length)
            if last:
                at += _CHECKSUM * (descriptor >> 2 & 1)
                return at if at <= self.source.size else None
        return None


class _Span(io.RawIOBase):
    """Bytes of a source as a file."""

    def __init__(self, source: Source, at: int, end: int) -> None:
        self._source, self._at, self._end = source, at, end

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._source.read(self._at, min(len(buffer), self._end - self._at))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _begins(source: Source, at: int) -> bool:
    """Does a frame begin here, as far as the bytes go?"""
    head = source.read(at, len(ZSTD))
    return ZSTD.startswith(head) or _is_skipped(head)


def _is_skipped(magic: bytes) -> bool:
    return len(magic) == len(ZSTD) and int.from_bytes(magic, "little") & ~_ANY == _SKIPPED


def _find(source: Source, what: bytes, at: int) -> int | None:
    while True:
        data = source.read(at, _PIECE)
        if (found := data.find(what)) >= 0:
            return at + found
        if len(data) < len(what):
            return None
        at += len(data) - len(what) + 1


def is_packed(source: Source) -> bool:
    return source.read(0, len(ZSTD)) == ZSTD


__all__ = ["Flaw", "Unpacked", "is_packed", "opened"]
