"""What of a tail is set aside, where the file is cut, and whether the last kept line lacks its LF. No I/O of its own.

Bytes that a repair removes or accepts are first copied whole, each run of them to one file whose name says where they
stood and what they are, so that copying twice is the same as copying once.
"""

from hashlib import sha256
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from ..journal.scan import Tail
    from ..journal.source import Source

DAMAGE: Final = "damage"
_PIECE: Final = 1024 * 1024


@attrs.frozen
class SetAside:
    """Bytes ``[offset, offset + length)`` of the journal and the SHA-256 (64 hex) of them."""

    offset: int
    length: int
    sha256: str

    @property
    def file(self) -> str:
        """The copy's name, relative to the session's directory."""
        return f"{DAMAGE}/{self.offset}-{self.sha256[:16]}.bin"

    def to_json(self) -> dict[str, object]:
        """Shape: ``{offset, length, file}``."""
        return {"offset": self.offset, "length": self.length, "file": self.file}


@attrs.frozen
class TailPlan:
    """``cut``: the length that the file is cut to, None to leave it. ``line_feed``: the missing LF is written first."""

    cut: int | None = None
    copy: SetAside | None = None
    line_feed: bool = False


def plan_tail(source: "Source", tail: "Tail | None") -> TailPlan:
    """A tail of length 0 cuts nothing: its last line is whole and lacks only its LF."""
    if tail is None:
        return TailPlan()
    if not tail.length:
        return TailPlan(line_feed=tail.lf_missing)
    return TailPlan(tail.offset, measure(source, tail.offset, tail.length), tail.lf_missing)


def measure(source: "Source", offset: int, length: int) -> SetAside:
    """The digest of a span, read in pieces: a span may be bigger than memory."""
    digest, at, end = sha256(), offset, offset + length
    while at < end and (piece := source.read(at, min(_PIECE, end - at))):
        digest.update(piece)
        at += len(piece)
    return SetAside(offset, length, digest.hexdigest())
