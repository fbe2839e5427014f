"""Which lines stand as a writer left them: canonical envelope, number, sum. Here, or in a second process for big files.

A line's sum depends on its own bytes and on what the line before *says* its sum is, so a chain is proven without
knowing what the lines mean. Proving costs as much as parsing; a ``Prover`` does it in a process of its own, ahead of
the reader. That process runs this file alone, so nothing of the project may be imported here.
"""

import os
import re
import sys
from array import array
from binascii import hexlify
from collections.abc import Iterator
from hashlib import sha256
from typing import IO, Final

#: Bytes of ``,"sum":"<32 hex>"}``, the end of every line.
SUM_BYTES: Final = 42
MAX_LINE: Final = 16 * 1024 * 1024
MAX_DEPTH: Final = 200
#: So many bytes are read and proven at a time: few enough to stay in the processor's cache.
STRETCH: Final = 128 * 1024

PREFIX: Final = re.compile(
    rb'\{"seq":(0|[1-9][0-9]{0,18}),"ts":(0|-?[1-9][0-9]{0,18}),"type":"([^"\\\x00-\x1f]+)","data":(?=\{)'
)
_IGNORABLE: Final = b'},"ignorable":true'
#: Bytes behind the data of an ignorable line.
IGNORABLE_BYTES: Final = SUM_BYTES + len(_IGNORABLE) - 1
_BATCH: Final = re.compile(rb'\}(?:,"ignorable":true)?,"more":[1-9][0-9]{0,8}\Z')


def brackets(text: bytes) -> int:
    """How many ``{`` and ``[``. To leap from one to the next, as replace does, is faster than ``count``."""
    return 2 * len(text) - len(text.replace(b"{", b"")) - len(text.replace(b"[", b""))


class Proof:
    """What was proven of a stretch of lines, in columns: one entry for each line.

    ``lengths`` in bytes without LF; ``starts``: where in the line ``data`` begins; ``tails``: bytes behind ``data``, 0
    for a line that needs a closer look (of a batch, or with so many brackets that it may nest too deep); ``stamps``:
    ``ts``; ``kinds``: places in ``names``, the types as bytes, which grows from stretch to stretch. ``sums``: 32 hex
    for each line, one behind the other.
    """

    __slots__ = ("kinds", "lengths", "names", "stamps", "starts", "sums", "tails")

    def __init__(self, names: list[bytes]) -> None:
        self.names = names
        self.lengths, self.starts, self.tails = array("I"), array("I"), array("B")
        self.stamps, self.kinds = array("q"), array("I")
        self.sums = b""

    def __len__(self) -> int:
        return len(self.lengths)

    def write(self, new: list[bytes]) -> bytes:
        """As a frame. ``new``: the names that no frame before has carried."""
        names = b"\n".join(new)
        columns = (self.lengths, self.starts, self.tails, self.stamps, self.kinds)
        head = array("I", (len(self), len(names)))
        return b"".join((head.tobytes(), names, *(column.tobytes() for column in columns), self.sums))

    @classmethod
    def read(cls, frames: IO[bytes], names: list[bytes]) -> "Proof | None":
        """The next frame, or None where there is no whole one. New names go to ``names``."""
        head = frames.read(8)
        if len(head) < 8:
            return None
        count, text = array("I", head)
        proof = cls(names)
        columns = (proof.lengths, proof.starts, proof.tails, proof.stamps, proof.kinds)
        size = text + count * (sum(column.itemsize for column in columns) + 32)
        body = frames.read(size)
        if len(body) < size:
            return None
        if text:
            names.extend(body[:text].split(b"\n"))
        at = text
        for column in columns:
            column.frombytes(body[at : at + count * column.itemsize])
            at += count * column.itemsize
        proof.sums = body[at:]
        return proof


class Chain:
    """Proves line after line. ``number`` and ``written`` (32 hex) are those of the line before the next one."""

    def __init__(self, number: int, written: bytes) -> None:
        self.number, self.written = number, written
        self.names: list[bytes] = []
        self._kinds: dict[bytes, int] = {}

    def prove(self, lines: list[bytes], start: int = 0) -> Proof:
        """The lines from ``lines[start]`` on, up to the first that is not proven.

        Proven: its envelope is canonical at both ends, its number is the next one, and its sum fits. ``data`` has not
        been looked at.
        """
        proof, sums = Proof(self.names), []
        starts, tails = proof.starts.append, proof.tails.append
        stamps, kinds, known = proof.stamps.append, proof.kinds.append, self._kinds
        envelope, hashed, number, written = PREFIX.match, sha256, self.number, self.written
        # Not islice: it would count its way to ``start``, again after each of a million lines that are none.
        for line in map(lines.__getitem__, range(start, len(lines))) if start else lines:
            body = line[:-SUM_BYTES]
            sum_ = hexlify(hashed(written + body).digest()[:16])
            begins = envelope(body)
            if begins is None or not line.endswith(b',"sum":"' + sum_ + b'"}') or len(line) > MAX_LINE:
                break
            seq, ts, type_ = begins.groups()
            if int(seq) != number + 1 or len(ts) > 18:
                break
            if len(body) > 2 * MAX_DEPTH and brackets(body) > MAX_DEPTH + 1:
                tail = 0
            elif body.endswith(b"}"):
                tail = SUM_BYTES
            elif body.endswith(_IGNORABLE):
                tail = IGNORABLE_BYTES
            elif _BATCH.search(body, len(body) - 40):
                tail = 0
            else:
                break
            kind = known.get(type_)
            if kind is None:
                kind = known[type_] = len(self.names)
                self.names.append(type_)
            starts(begins.end())
            tails(tail)
            stamps(int(ts))
            kinds(kind)
            sums.append(sum_)
            number, written = number + 1, sum_
        self.number, self.written = number, written
        proof.lengths.extend(map(len, lines[start : start + len(sums)]))
        proof.sums = b"".join(sums)
        return proof


class Prover:
    """A second process that proves the lines behind a place of a file, in order, until one is not proven.

    ``fd`` is open for reading; ``number`` and ``written`` are of the line that ends before ``offset``. Raises OSError
    where no process can be started.
    """

    def __init__(self, fd: int, offset: int, size: int, number: int, written: bytes) -> None:
        frames, theirs = os.pipe()
        try:
            self._pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", __file__, str(offset), str(size), str(number), written.decode()],
                os.environ,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, fd, 0),
                    (os.POSIX_SPAWN_DUP2, theirs, 1),
                    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                ],
            )
        except BaseException:
            os.close(frames)
            raise
        finally:
            os.close(theirs)
        self._frames = os.fdopen(frames, "rb", buffering=1 << 16)

    def __iter__(self) -> Iterator[Proof]:
        names: list[bytes] = []
        while (proof := Proof.read(self._frames, names)) is not None:
            yield proof

    def close(self) -> None:
        """End the process where it has not ended by itself: it finds that nobody reads any more."""
        self._frames.close()
        try:
            os.waitpid(self._pid, 0)
        except ChildProcessError:
            pass  # this process was told to let its children go


def can_prove_apart() -> bool:
    """Is there an interpreter to run this file with, and a second processor to run it on?"""
    return bool(sys.executable) and not hasattr(sys, "frozen") and (os.cpu_count() or 1) > 1


def _main(offset: int, size: int, number: int, written: bytes) -> None:
    """The second process: the file on standard input, frames on standard output."""
    chain, carry, told = Chain(number, written), b"", 0
    while offset < size:
        chunk = os.pread(0, min(max(STRETCH, len(carry)), size - offset), offset)
        offset += len(chunk)
        lines = (carry + chunk).split(b"\n")
        carry = lines.pop()
        proof = chain.prove(lines)
        if proof:
            frame = proof.write(chain.names[told:])
            told = len(chain.names)
            while frame:
                frame = frame[os.write(1, frame) :]
        if not chunk or len(proof) < len(lines) or len(carry) > MAX_LINE:
            return


if __name__ == "__main__":
    try:
        _main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4].encode())
    except (BrokenPipeError, KeyboardInterrupt):
        sys.exit(1)
