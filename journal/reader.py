"""Opens files, and feeds scan and fold. Reading only: nothing here creates, locks or writes anything."""

import errno
import gc
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import attrs

from .codec import MAX_LINE, decode
from .errors import JournalError, SessionNotFound
from .events import Event, JsonObject
from .findings import Finding, FindingList
from .proof import Prover, can_prove_apart
from .scan import Consumer, Fold, ScanResult, scan, uncollected
from .shapes import SESSION_ID
from .source import BOM, Source
from .state import State

JOURNAL: Final = "journal.jsonl"
#: Forks of forks are followed at most this far (docs/format.md, "Forks").
MAX_FORKS: Final = 64
#: Events of a journal of more bytes are not kept in memory on the way: whoever asks for them reads again.
_KEPT: Final = 128 << 20
#: From so many events on the collector is spared what was kept.
_MANY: Final = 10_000
#: From so many bytes on a second process that proves them has begun before the reading would have ended.
_APART: Final = 32 << 20


@attrs.define(eq=False)
class FileSource:
    """The bytes that the file had when it was opened. Closes itself when it is let go."""

    path: Path
    fd: int
    size: int
    dev: int
    ino: int

    def read(self, offset: int, length: int) -> bytes:
        return os.pread(self.fd, max(0, min(length, self.size - offset)), offset)

    def prover(self, offset: int, number: int, written: bytes) -> Prover | None:
        if self.size - offset < _APART or not can_prove_apart():
            return None
        try:
            return Prover(self.fd, offset, self.size, number, written)
        except OSError:
            return None

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> "FileSource":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def open_source(path: str | os.PathLike[str]) -> FileSource:
    """Open a journal's file for reading. Raises SessionNotFound where there is none, JournalError where the system
    refuses (the message names operation and path), and for what is no regular file (a pipe would block for ever).
    """
    path = Path(path)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (FileNotFoundError, NotADirectoryError):
        raise _absent(path) from None
    except (OSError, ValueError) as error:
        raise JournalError(
            f"cannot open {path}: {_reason(error)}; {_remedy(error)} and look again", path=path
        ) from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise JournalError(
                f"{path} is not a regular file; name a journal file, a session directory or a session id", path=path
            )
    except BaseException:
        os.close(fd)
        raise
    return FileSource(path, fd, status.st_size, status.st_dev, status.st_ino)


def _absent(path: Path) -> SessionNotFound:
    # Where it would stand under a root, that root's listing helps.
    option = _option(path.parents[2]) if path.name == JOURNAL and path.parent.parent.name == "sessions" else ""
    return SessionNotFound(
        f"there is no journal at {path}; `maka journal list{option}` shows the sessions of a root", path=path
    )


def _option(root: str | os.PathLike[str]) -> str:
    from shlex import quote

    return f" --root {quote(os.fspath(root))}"


_REMEDIES: Final = {
    errno.EACCES: "make it readable for this user",
    errno.EPERM: "make it readable for this user",
    errno.EMFILE: "let this process open more files (`ulimit -n`)",
    errno.ENFILE: "close some of the files that the system has open",
    errno.ELOOP: "put the file itself in the place of its links",
    errno.EIO: "check the disk",
}


def _remedy(error: BaseException) -> str:
    return _REMEDIES.get(getattr(error, "errno", 0), "find out what stands there")


def _reason(error: BaseException) -> str:
    return (
        os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
    ) or error.__class__.__name__


def resolve(target: str | os.PathLike[str], root: str | os.PathLike[str] | None = None) -> Path:
    """TARGET → the journal's path: a path if it contains ``/`` or ends in ``.jsonl``; else a session id under the
    root; else a path. A session directory stands for the journal in it. Raises SessionNotFound.
    """
    text = os.fspath(target)
    if "\0" in text:
        raise SessionNotFound("a path or session id cannot contain a NUL character", path=text.replace("\0", "\\0"))
    if not (isinstance(target, Path) or "/" in text or text.endswith(".jsonl")):
        if SESSION_ID.fullmatch(text):
            from .store import default_root

            inside = Path(root if root is not None else default_root()) / "sessions" / text / JOURNAL
            if _stands(inside):
                return inside
        if not os.path.exists(text):
            from .store import default_root

            place = root if root is not None else default_root()
            raise SessionNotFound(
                f"there is no session {text[:200]!r} under {os.fspath(place)} and no such path; "
                f"see `maka journal list{_option(place)}`",
                path=text,
            )
    path = Path(text)
    try:
        if path.is_dir():
            path = path / JOURNAL
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise _absent(path) from None
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            raise SessionNotFound(f"there is no journal at {text[:200]}: {_reason(error)}", path=text) from None
        # Whoever opens it is told what the system refuses.
    return path


def _stands(path: Path) -> bool:
    """Is there something at ``path``, or something that the system does not let this user look at?"""
    try:
        os.stat(path)
    except OSError as error:
        return error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)
    return True


def session_name(path: Path) -> str | None:
    """The directory's name, where the file has the name that the format gives it."""
    return path.absolute().parent.name if path.name == JOURNAL else None


@attrs.define(eq=False)
class Reading:
    """A journal as it stands on disk: what the scan found and the folded state, a fork's parent folded first."""

    path: Path
    source: Source
    scan: ScanResult
    state: State
    #: What is to be said of what stands beside the file: a fork's parents, and blobs.
    findings: FindingList
    #: The events that stand, without the header, where they were to be kept and the journal is not too big for it.
    kept: list[Event] | None = None

    def events(self) -> list[Event]:
        """The events that stand, without the header; read again from the bytes of this reading, unless kept."""
        if self.kept is not None:
            return self.kept
        events: list[Event] = []

        def begin() -> Consumer:
            events.clear()
            return events.append

        scan(self.source, begin)
        return [event for event in events if event.type != "session/header"]


def read(path: str | os.PathLike[str], *, observe: Callable[[], Consumer] | None = None, keep: bool = False) -> Reading:
    """Read a journal to the size it has at open; if that changed meanwhile, look again (a few times).

    ``observe`` is called at the start of each pass and returns a further consumer of the events that stand; for a
    fork, of the parents' events up to the fork points first. ``keep``: the events are wanted too, and one pass is
    cheaper than two. Raises SessionNotFound, and JournalError where the file cannot be opened or read.
    """
    path = Path(path)
    for _ in range(3):
        source = open_source(path)
        try:
            reading = read_source(source, path, observe=observe, keep=keep)
        except OSError as error:
            raise JournalError(
                f"cannot read {path}: {_reason(error)}; the bytes were not touched", path=path
            ) from error
        try:
            status = os.stat(path)
        except OSError:
            break
        if (status.st_dev, status.st_ino, status.st_size) == (source.dev, source.ino, source.size):
            break
    return reading


def read_source(
    source: Source, path: Path, *, observe: Callable[[], Consumer] | None = None, keep: bool = False
) -> Reading:
    """Fold what a source holds. ``path`` tells where parents are looked for; the others are those of ``read``."""
    findings = FindingList()
    state = State()
    kept: list[Event] | None = [] if keep and source.size <= _KEPT else None
    header = first_event(source)
    is_fork = header is not None and isinstance(header.data.get("parent"), dict)

    def begin() -> Consumer | Fold:
        nonlocal state
        state = State()
        findings.clear()
        further = observe() if observe is not None else None
        if header is not None and is_fork:
            inherit(header, path, state, further, findings)
        if kept is not None:
            kept.clear()
        if further is None:
            return Fold(state.apply, state.live, kept)
        consume = _both(further, state.apply)
        return consume if kept is None else _both(kept.append, consume)

    with uncollected():
        result = scan(source, begin, name=session_name(path))
        if kept is not None:
            kept = [event for event in kept if event.type != "session/header"]
            if len(kept) > _MANY:
                _promote()
    findings.extend(_lost_blobs(path, state))
    return Reading(path, source, result, state, findings, kept)


def _lost_blobs(path: Path, state: State) -> Iterator[Finding]:
    refs = state.blobs.refs
    if refs:
        from . import blobs

        for ref in blobs.missing(path.parent, refs):
            what = f"event {refs[ref]} names the content {ref[:80]}, and no file under {blobs.BLOBS}/ holds it"
            yield Finding("blob_missing", what, seq=refs[ref])


def _promote() -> None:
    """Make what was kept old for the collector in one step; else it looks through all of it again and again."""
    if gc.get_freeze_count() == 0:
        gc.freeze()
        gc.unfreeze()


def _both(first: Consumer, second: Consumer) -> Consumer:
    def consume(event: Event) -> None:
        first(event)
        second(event)

    return consume


def first_event(source: Source) -> Event | None:
    """The header, if line 0 is one."""
    line = source.read(0, 1 << 16)
    if b"\n" not in line:
        line = source.read(0, MAX_LINE)
    line = line.split(b"\n", 1)[0]
    event = decode(line.removeprefix(BOM).rstrip(b"\r"), 0)
    return event if event is not None and event.type == "session/header" else None


def inherit(header: Event, path: Path, state: State, further: Consumer | None, findings: FindingList) -> None:
    """Fold a fork's parents, oldest first, each up to its fork point (docs/format.md, "Forks").

    A parent is folded only if all is there that the fork began with: the fork point with its sum, and before it
    nothing that was changed or lost since.
    """
    take = state.inherit if further is None else _both(state.inherit, further)
    with ExitStack() as opened:
        chain: list[tuple[FileSource, _Prefix]] = []
        child, here = header, path
        while isinstance(parent := child.data.get("parent"), dict):
            session_id, seq, sum_ = parent.get("session_id"), parent.get("seq"), parent.get("sum")
            place = here.absolute().parent.parent / str(session_id) / JOURNAL
            if not isinstance(session_id, str) or SESSION_ID.fullmatch(session_id) is None or type(seq) is not int:
                what = "names no session and event that could be its parent"
                findings.append(_parent("parent_mismatch", what, header))
                break
            if len(chain) == MAX_FORKS:
                what = f"has more than {MAX_FORKS} parents; the older ones are not read"
                findings.append(_parent("parent_missing", what, header))
                break
            try:
                source = opened.enter_context(open_source(place))
                prefix = _look(source, seq)
            except (JournalError, OSError):
                what = f"was forked from the session {session_id}, which cannot be read at {place}"
                findings.append(_parent("parent_missing", what, header))
                break
            if prefix.point is None or prefix.point.sum != sum_:
                what = f"was forked from event {seq} of {session_id}, which is not there with the same sum"
                findings.append(_parent("parent_mismatch", what, header))
                break
            if (doubtful := prefix.doubtful()) is not None:
                what = (
                    f"was forked from event {seq} of {session_id}, of which bytes were changed or lost since, at or "
                    f"before offset {doubtful} of {place}"
                )
                findings.append(_parent("parent_mismatch", what, header))
                break
            chain.append((source, prefix))
            if prefix.header is None:
                break  # a salvage has rebuilt it, and of what parent it named nothing is known
            child, here = prefix.header, place
        for source, prefix in reversed(chain):
            try:
                _feed(source, prefix, take)
            except OSError:
                what = f"has a parent at {source.path} that can no longer be read"
                findings.append(_parent("parent_missing", what, header))


def _parent(code: str, what: str, header: Event) -> Finding:
    return Finding(
        code, f"this session {what}; the fork stays readable by itself", seq=header.seq, offset=header.offset
    )


@attrs.define(eq=False)
class _Prefix:
    """What a parent holds up to the fork point ``seq``, found in the last of so many ``passes``.

    ``doubted``: of each unverified line before its number, the first number of those that are missing directly before
    it (its own: none are) and its offset. ``accepted`` and ``missing`` are what salvages before the fork point list.
    """

    seq: int
    passes: int
    header: Event | None = None
    point: Event | None = None
    doubted: dict[int, tuple[int, int]] = attrs.field(factory=dict)
    accepted: set[int] = attrs.field(factory=set)
    missing: set[tuple[int, int]] = attrs.field(factory=set)
    _next: int = 0

    def take(self, event: Event) -> None:
        number = event.seq
        if number > self.seq:
            return
        if not event.verified:
            self.doubted[number] = (self._next, event.offset)
        self._next = number + 1
        if number == self.seq:
            self.point = event
        if event.type == "session/header" and number == 0:
            self.header = event
        elif event.type == "journal/gap":
            self._gap(number, event.data)

    def _gap(self, number: int, data: JsonObject) -> None:
        """Its lists may be anything but lists of the right things; none accepts itself."""
        self.accepted.update(n for n in data["unverified"] if n.__class__ is int and n < number)
        self.missing.update((pair[0], pair[1]) for pair in data["missing"] if _is_range(pair))

    def doubtful(self) -> int | None:
        """The offset of the first line that shows that something was changed or lost since the fork; None: nothing."""
        for number, (first, offset) in self.doubted.items():
            if number not in self.accepted or (first != number and (first, number - 1) not in self.missing):
                return offset
        return None


def _is_range(pair: object) -> bool:
    return isinstance(pair, list) and [*map(type, pair)] == [int, int]


def _look(source: Source, seq: int) -> _Prefix:
    """Read all of a parent: which branch of it stands shows only at its end."""
    prefix = _Prefix(seq, 0)

    def begin() -> Consumer:
        nonlocal prefix
        prefix = _Prefix(seq, prefix.passes + 1)
        return prefix.take

    scan(source, begin)
    return prefix


class _Reached(Exception):
    """The fork point was fed, and nothing behind it is wanted."""


def _feed(source: Source, prefix: _Prefix, take: Consumer) -> None:
    """Give on each event up to the fork point as it is read, in the pass that ``_look`` found to be the last."""
    left = prefix.passes

    def consume(event: Event) -> None:
        take(event)
        if event.seq == prefix.seq:
            raise _Reached

    def begin() -> Consumer:
        nonlocal left
        left -= 1
        return _pass_over if left else consume

    with suppress(_Reached):
        scan(source, begin)


def _pass_over(event: Event) -> None:
    """An event of a pass in which it is not known yet what stands."""
