"""The disposable snapshot beside a journal: what a listing shows, and the folded state, keyed by size and head.

Two lines of JSON. The first is small and read alone by a listing; it holds the SHA-256 of the second, so that a torn
or changed one is not taken. Whatever does not fit is ignored, and rebuilt when a writer closes.
"""

import os
import stat
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import attrs
import orjson

from . import files
from .codec import MAX_LINE, decode
from .errors import JournalError
from .events import Event, JsonObject
from .findings import VERDICTS, Verdict
from .scan import Consumer, Mark, scan
from .source import Source
from .state import State

SNAPSHOT: Final = "snapshot.json"
VERSION: Final = 2
#: Bytes of the first line at most, and of the whole file: both come from outside.
_FIRST: Final = 64 * 1024
_MOST: Final = 512 * 1024 * 1024
_BACK: Final = 64 * 1024


@attrs.frozen
class Summary:
    """The first line. ``size`` is the journal's when it was written; ``row`` is the listing's without the verdict."""

    size: int
    seq: int
    sum: str
    verdict: Verdict | None
    row: JsonObject
    digest: str


def write(session_dir: str | os.PathLike[str], state: State, head: Mark, verdict: Verdict | None = None) -> None:
    """Write the snapshot of a journal that ends at ``head`` and folds to ``state``. Raises OSError.

    It is renamed into place but not synced: what a power loss makes of it is found out by its digest. A fold that JSON
    of 64 bits cannot carry (tokens that add up to more) gets none.
    """
    from .summary import listing, to_json

    try:
        folded = orjson.dumps(to_json(state))
    except TypeError:
        return
    first = {
        "version": VERSION,
        "size": head.offset,
        "seq": head.seq,
        "sum": head.sum,
        "verdict": verdict,
        "row": listing(state),
        "digest": sha256(folded).hexdigest(),
    }
    files.replace(Path(session_dir) / SNAPSHOT, (orjson.dumps(first), b"\n", folded, b"\n"), durable=False)


def peek(path: str) -> Summary | None:
    """The first line of the snapshot at ``path``, or None where there is none that this version takes."""
    try:
        fd = _open(path)
    except OSError:
        return None
    try:
        return _first(os.read(fd, 1024), fd)
    except OSError:
        return None
    finally:
        os.close(fd)


def resume(source: Source, path: Path) -> tuple[State, Mark, int] | None:
    """The fold of a journal from its snapshot: state, head, and the event up to which the snapshot stands.

    None where no snapshot fits, or where anything behind it is not as a writer leaves it: read everything then.
    ``source`` is the journal at ``path``.
    """
    try:
        fd = _open(os.path.join(path.parent, SNAPSHOT))
    except OSError:
        return None
    with open(fd, "rb") as file:
        found = _first(file.readline(_FIRST), None)
        if found is None or not _stands(source, found):
            return None
        folded = file.read(_MOST).rstrip(b"\n")
    if sha256(folded).hexdigest() != found.digest:
        return None
    try:
        from .summary import from_json

        state = from_json(orjson.loads(folded))
    except Exception:  # it may hold anything at all, and it is only a cache
        return None
    return _forward(source, state, Mark(found.size, found.seq, found.sum))


def _open(path: str) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST:
        os.close(fd)
        raise OSError("not a snapshot")
    return fd


def _first(data: bytes, fd: int | None) -> Summary | None:
    """The first line out of the beginning of the file, of which ``fd`` gives more."""
    if fd is not None and b"\n" not in data:
        data += os.read(fd, _FIRST)
    line, lf, _ = data.partition(b"\n")
    try:
        doc: Any = orjson.loads(line)
    except ValueError:
        return None
    if not lf or not isinstance(doc, dict) or doc.get("version") != VERSION:
        return None
    verdict = doc.get("verdict")
    fields = (doc.get("size"), doc.get("seq"), doc.get("sum"), doc.get("row"), doc.get("digest"))
    if tuple(map(type, fields)) != (int, int, str, dict, str) or not (verdict is None or verdict in VERDICTS):
        return None
    return Summary(fields[0], fields[1], fields[2], verdict, fields[3], fields[4])  # type: ignore[arg-type]


def _stands(source: Source, found: Summary) -> bool:
    """Does the line that ends at the snapshot's offset have its number and sum?"""
    if not 0 < found.size <= source.size:
        return False
    event = last_event(source, found.size)
    return event is not None and event.seq == found.seq and event.sum == found.sum


def last_event(source: Source, end: int) -> Event | None:
    """The event of the line whose LF is the byte before ``end``, if it is one. Its sum is not checked."""
    reach = _BACK
    while True:
        start = max(0, end - reach)
        data = source.read(start, end - start)
        if not data.endswith(b"\n"):
            return None
        at = data.rfind(b"\n", 0, -1)
        if at >= 0 or start == 0:
            return decode(data[at + 1 : -1], start + at + 1)
        if reach > MAX_LINE:
            return None
        reach *= 16


def _forward(source: Source, state: State, mark: Mark) -> tuple[State, Mark, int] | None:
    """Fold what follows ``mark``, if it is as a writer leaves it."""
    if source.size == mark.offset:
        return state, mark, mark.seq
    before = len(state.problems)

    def begin() -> Consumer:
        return state.apply

    try:
        result = scan(source, begin, after=mark)
    except (JournalError, OSError):
        return None
    bad = any(finding.severity in ("damage", "unsupported", "unreadable", "repairable") for finding in result.findings)
    bad = bad or any(finding.severity == "damage" for finding in state.problems[before:])
    if bad or result.tail is not None or result.head is None:
        return None
    return state, result.head, mark.seq
