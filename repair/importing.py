"""Sessions of other tools become journals of a root: whole, closed by the same rules as a crash's, or not at all.

A file's sessions are written beside the root's, and moved in when they are complete; the session that the file is of
comes last, so that where it stands all stand. What is on record already is known by the file's SHA-256; a file that has
grown since becomes a fork of what it was, from the last turn that both have on record.
"""

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import cached_property
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, Final

import attrs
import orjson

from ..journal import blobs, files, images
from ..journal.backwards import events_between
from ..journal.codec import INT_MAX
from ..journal.errors import JournalConflict, JournalError
from ..journal.events import Draft, Event, JsonObject
from ..journal.findings import Verdict, verdict_of
from ..journal.foreign.conversion import Batch, Fork, ends_turn
from ..journal.foreign.findings import Report
from ..journal.foreign.reading import batches
from ..journal.foreign.records import MAIN
from ..journal.lock import SessionLock
from ..journal.reader import JOURNAL, MAX_FORKS, FileSource, first_event, open_source
from ..journal.scan import uncollected
from ..journal.shapes import SESSION_ID
from ..journal.source import Source
from ..journal.state import State
from ..journal.store import SESSIONS, FileStore
from ..journal.views.problem import mapping
from ..journal.writer import JournalWriter
from .closers import plan_closers

#: Where sessions lie until they are whole.
STAGING: Final = "importing"
#: Characters of a text from which on it lies in a blob, and so many of it are shown. Images always do.
_LONG: Final = 256 * 1024
_SHOWN: Final = 16 * 1024
#: Characters of all texts of an event that a line has room for.
_LINE: Final = 2 * 1024 * 1024
#: Of blocks what is long, where that is no ``text``.
_TEXTS: Final = {"tool_call": "arguments", "redacted_thinking": "data"}
_MEDIA: Final = ("image", "file")
#: Bytes in which an image that is a text would name itself.
_NAMED: Final = 1_000
_PIECE: Final = 1 << 20
#: So often a folder may vanish before it is locked.
_TRIES: Final = 20
#: Keys that name events by number: they differ where a journal was cut.
_NUMBERS: Final = frozenset({"call_seq", "kept_from"})
_NOT_IN_IDS: Final = re.compile(r"[^A-Za-z0-9._-]+")
_ID: Final = 100


@attrs.frozen(kw_only=True)
class Imported:
    """One session of a file. ``action``: ``created``, ``unchanged``, or ``grown``: a fork of ``of``, of what is new."""

    session_id: str
    thread: str
    kind: str
    action: str
    events: int = 0
    turns: int = 0
    of: str | None = None

    def to_json(self) -> JsonObject:
        out = attrs.asdict(self)
        if self.of is None:
            del out["of"]
        return out


@attrs.frozen(kw_only=True)
class ImportReport:
    """What became of a file; ``report`` is what was found in it, empty where it is on record as it is."""

    path: Path
    format: str
    sha256: str
    bytes: int
    sessions: list[Imported]
    report: Report

    @property
    def verdict(self) -> Verdict:
        return verdict_of(self.report.findings)

    def to_json(self) -> JsonObject:
        return {
            "path": str(self.path),
            "format": self.format,
            "sha256": self.sha256,
            "bytes": self.bytes,
            "verdict": self.verdict,
            "sessions": [each.to_json() for each in self.sessions],
            "findings": [finding.to_json() for finding in self.report.findings],
        }


def import_file(
    raw: FileSource,
    format: str,
    store: FileStore,
    *,
    dry_run: bool = False,
    original: bool = True,
    backend: str | None = None,
) -> ImportReport:
    """Makes journals of a file of a format that was detected.

    ``dry_run`` tells what would be made, and writes nothing. ``original`` keeps the file itself as a blob of its
    session. ``backend`` is to go on with the sessions; by itself the format's name stands there. Raises
    JournalWriteError, JournalConflict where the file changed meanwhile, JournalLocked where another import of it runs,
    and JournalError where it is packed and nothing is installed that unpacks it.
    """
    with uncollected():
        return _imported(raw, format, store, dry_run, original, backend)


def _imported(
    raw: FileSource, format: str, store: FileStore, dry_run: bool, original: bool, backend: str | None
) -> ImportReport:
    name, digest = raw.path.name, _digest(raw, raw.size)
    began = os.fstat(raw.fd).st_mtime_ns
    report = Report()
    given = batches(raw, format, report, name)
    first = next(given, None)
    imported_from = {} if first is None else mapping(first.drafts[0].data.get("imported_from"))
    base = _base(imported_from, format, raw)
    records = _Records(store, base, imported_from, format, digest, raw)
    main = records.newest(MAIN)
    if main is not None and main.sha256 == digest:
        return ImportReport(
            path=raw.path,
            format=format,
            sha256=digest,
            bytes=raw.size,
            sessions=[_unchanged(main, MAIN), *records.beside()],
            report=Report(),
        )
    shared: dict[str, _Shared] = {}
    if main is not None:
        shared = records.compared(batches(raw, format, Report(), name))
        cuts = {thread: found.cut for thread, found in shared.items() if found.cut is not None and not found.same}
        report = Report()
        given = batches(raw, format, report, name, cuts)
    elif first is not None:
        given = chain([first], given)
    if main is None and records.id_for(MAIN) != base:
        told = f"session {base} of the root came of another file, or of this one before it was rewritten"
        report.add("rewritten", told)
    with ExitStack() as stack:
        making = _Making(records, shared) if dry_run else stack.enter_context(_Staging(records, shared, backend))
        if not dry_run and records.newest(MAIN) != main:
            raise JournalConflict(f"{raw.path} was imported by somebody else meanwhile; import it again", path=raw.path)
        for batch in given:
            making.take(batch)
        now = os.fstat(raw.fd)
        if now.st_size < raw.size or (now.st_size == raw.size and now.st_mtime_ns != began):
            raise JournalConflict(
                f"{raw.path} was changed while it was read, and nothing of it was imported; import it again",
                path=raw.path,
            )
        sessions = making.finish(original)
    return ImportReport(path=raw.path, format=format, sha256=digest, bytes=raw.size, sessions=sessions, report=report)


def _digest(raw: Source, length: int) -> str:
    hashed, at = sha256(), 0
    while at < length and (piece := raw.read(at, min(_PIECE, length - at))):
        hashed.update(piece)
        at += len(piece)
    return hashed.hexdigest()


def _base(imported_from: JsonObject, format: str, source: Source) -> str:
    """The id of the session that the file is of: the tool's own where it can be one, else made of it, or of the file's
    first bytes.
    """
    said = imported_from.get("session_id")
    if isinstance(said, str) and SESSION_ID.fullmatch(said) and len(said) <= _ID and not said.startswith("."):
        return said
    told = said.encode("utf-8", "replace") if isinstance(said, str) else source.read(0, 4096).split(b"\n", 1)[0]
    return f"{format}-{sha256(told).hexdigest()[:16]}"


# ---------------------------------------------------------------- what is on record


@attrs.frozen
class _Record:
    """A session of the root that came of this thread. ``bytes`` of the file were there."""

    session_id: str
    sha256: str
    bytes: int
    kind: str
    thread: str = MAIN


@attrs.frozen
class _Point:
    """An event of a session of the root."""

    session_id: str
    seq: int
    sum: str


@attrs.define
class _Shared:
    """What a thread has in common with what is on record of it.

    ``points``: its ends of turns, by the number that they have in the thread. ``cut``: the last of them. ``same``: all
    of it is on record.
    """

    record: _Record
    points: dict[int, _Point] = attrs.Factory(dict)
    same: bool = True

    @property
    def cut(self) -> int | None:
        return max(self.points, default=None)


class _Records:
    def __init__(
        self, store: FileStore, base: str, imported_from: JsonObject, format: str, digest: str, raw: FileSource
    ) -> None:
        self.store = store
        self.digest = digest
        self.raw = raw
        self._base = base
        self._format = format
        self.foreign_id = imported_from.get("session_id")

    def id_of(self, thread: str) -> str:
        """The id of a thread's session, as long as nothing else has it."""
        return self._base if thread == MAIN else f"{self._base}.{sha256(thread.encode()).hexdigest()[:8]}"

    def id_for(self, thread: str) -> str:
        """An id for a new session of a thread."""
        session_id = self.id_of(thread)
        if thread != MAIN and self.main != self._base:
            # Its parent is another than that of a session which may be there.
            return f"{session_id}-{self.digest[:8]}"
        taken = os.path.lexists(self.store.directory(session_id))
        if not taken or (thread != MAIN and self._left(session_id)):
            return session_id
        return f"{session_id}-{self.digest[:8]}"

    @cached_property
    def main(self) -> str:
        """The id of the session that the file is of, as it is made now."""
        return self.id_for(MAIN)

    def _left(self, session_id: str) -> bool:
        """Is it of this very file, as of an import that did not come to its end?"""
        record = self._record(session_id)
        return record is not None and record.sha256 == self.digest

    def newest(self, thread: str) -> _Record | None:
        """What was imported of the thread last, when the file was shorter, or is as it is."""
        session_id = self.id_of(thread)
        place = self.store.root / SESSIONS
        names = [session_id, f"{session_id}-{self.digest[:8]}"]
        with suppress(OSError):
            pattern = re.compile(re.escape(session_id) + r"-[0-9a-f]{8}\Z")
            names += [] if not os.path.isdir(place / session_id) else filter(pattern.match, os.listdir(place))
        found = [record for name in dict.fromkeys(names) if (record := self._record(name)) is not None]
        for record in sorted(found, key=lambda record: -record.bytes):
            if record.sha256 == self.digest:
                return record
            if record.bytes < self.raw.size and _digest(self.raw, record.bytes) == record.sha256:
                return record
            if record.bytes > self.raw.size and self._begins(record):
                return attrs.evolve(record, sha256=self.digest)
        return None

    def _begins(self, record: _Record) -> bool:
        """Is the file what one that was imported was before it grew? Its own copy tells."""
        place = blobs.locate(self.store.directory(record.session_id), f"sha256:{record.sha256}")
        try:
            with open_source(place) as longer:
                return _digest(longer, self.raw.size) == self.digest
        except JournalError:
            return False

    def _record(self, session_id: str) -> _Record | None:
        try:
            with open_source(self.store.path(session_id)) as source:
                header = first_event(source)
        except JournalError:
            return None
        origin = {} if header is None else mapping(header.data.get("imported_from"))
        size, digest = origin.get("bytes"), origin.get("sha256")
        mine = (origin.get("format"), origin.get("session_id")) == (self._format, self.foreign_id)
        if not mine or size.__class__ is not int or not isinstance(digest, str):
            return None
        assert header is not None
        thread = origin.get("thread")
        named = thread if isinstance(thread, str) else MAIN
        kind = "subagent" if named != MAIN and "child_of" in header.data else _known(named)
        return _Record(session_id, digest, size, kind, named)

    def beside(self) -> Iterator[Imported]:
        """The branches and subagents that came of this very file, beside the session itself."""
        pattern = re.compile(re.escape(self._base) + r"\.[0-9a-f]{8}(-[0-9a-f]{8})?\Z")
        for name in sorted(filter(pattern.match, os.listdir(self.store.root / SESSIONS))):
            record = self._record(name)
            if record is not None and record.sha256 == self.digest and record.thread != MAIN:
                yield _unchanged(record, record.thread)

    def compared(self, given: Iterator[Batch]) -> dict[str, _Shared]:
        """What the threads have in common with what is on record of them; those of which nothing is are left out."""
        comparisons: dict[str, _Comparison | None] = {}
        for batch in given:
            if batch.thread not in comparisons:
                record = self.newest(batch.thread)
                comparisons[batch.thread] = None if record is None else _Comparison(self.store, record)
            if (comparison := comparisons[batch.thread]) is not None:
                for draft in batch.drafts:
                    comparison.take(draft)
        return {thread: each.shared for thread, each in comparisons.items() if each is not None}


class _Comparison:
    """A thread held against the events of the session that it once became, a fork's parents included."""

    def __init__(self, store: FileStore, record: _Record) -> None:
        self.shared = _Shared(record)
        self._events = _logical(store, record.session_id)
        self._seq = 0

    def take(self, draft: Draft) -> None:
        seq, self._seq = self._seq, self._seq + 1
        if seq and self.shared.same:
            self._compare(seq, draft)
        kept = draft.data.get("kept_from") if draft.type == "context/compacted" else None
        if kept is not None and not self.shared.same:
            # What a compaction keeps has to stand in the journal of the compaction.
            self.shared.points = {at: point for at, point in self.shared.points.items() if at < kept}

    def _compare(self, seq: int, draft: Draft) -> None:
        point, event = next(self._events, (None, None))
        if event is None or point is None or event.type != draft.type or _bare(event.data) != _bare(draft.data):
            self.shared.same = False
        elif ends_turn(draft):
            self.shared.points[seq] = point


def _logical(store: FileStore, session_id: str) -> Iterator[tuple[_Point, Event]]:
    """The events of a session without its header, behind those that it had before it grew: its parents' of the same
    thread.
    """
    chain: list[tuple[str, int | None]] = []
    at, upto, thread = session_id, None, None
    while len(chain) < MAX_FORKS:
        try:
            with open_source(store.path(at)) as source:
                header = first_event(source)
        except JournalError:
            break
        data = {} if header is None else header.data
        found = mapping(data.get("imported_from")).get("thread", MAIN)
        if thread not in (None, found):
            break
        chain.append((at, upto))
        parent = mapping(data.get("parent"))
        if not isinstance(parent.get("session_id"), str):
            break
        at, upto, thread = parent["session_id"], parent.get("seq"), found
    for name, last in reversed(chain):
        for event in events_between(store.path(name), 0, INT_MAX if last is None else last, lambda _: True):
            yield _Point(name, event.seq, event.sum), event


def _bare(data: JsonObject) -> JsonObject:
    """What a draft says, without the numbers of other events and what was put elsewhere when it was written."""
    out = {key: value for key, value in data.items() if key not in _NUMBERS}
    if "line" in out:
        out.pop("value", None)
    if isinstance(content := out.get("content"), list):
        out["content"] = [_said(block) for block in content]
    return out


def _said(block: Any) -> Any:
    """What is the same of a block wherever its content lies."""
    if not isinstance(block, dict):
        return block
    if block.get("kind") in _MEDIA:
        return block["kind"]
    key = _TEXTS.get(str(block.get("kind")), "text")
    text = block.get(key)
    kept = {name: value for name, value in block.items() if name not in ("ref", "bytes")}
    return {**kept, key: text[:_SHOWN]} if isinstance(text, str) else kept


# ---------------------------------------------------------------- making


@attrs.define(eq=False)
class _Session:
    session_id: str
    kind: str
    action: str
    of: str | None
    events: int = 0
    turns: int = 0
    ts: int = 0


class _Making:
    """Counts what an import would make."""

    def __init__(self, records: _Records, shared: dict[str, _Shared]) -> None:
        self._records = records
        self._shared = shared
        self._sessions: dict[str, _Session] = {}
        #: By thread and number: where a turn has ended in what is made.
        self._ends: dict[tuple[str, int], str] = {}
        #: By thread, where nothing is written: what its closers are found by.
        self._states: dict[str, State] = {}

    def take(self, batch: Batch) -> None:
        on_record = self._shared.get(batch.thread)
        if on_record is not None and on_record.same:
            return
        session = self._sessions.get(batch.thread)
        if session is None:
            fork = None if batch.fork is None else self._point(batch.fork)
            grown = on_record is not None
            session = _Session(
                self._records.id_for(batch.thread),
                "branch" if batch.fork is not None and not batch.fork.before else _kind(batch),
                "grown" if grown else "created",
                on_record.record.session_id if on_record is not None else None,
            )
            self._sessions[batch.thread] = session
            self._open(batch, session, fork)
            session.events = 1
            return
        session.ts = batch.ts
        session.turns += sum(draft.type == "turn/start" for draft in batch.drafts)
        self._append(batch, session)
        session.events += len(batch.drafts)

    def finish(self, original: bool) -> list[Imported]:
        for thread, state in self._states.items():
            self._sessions[thread].events += len(plan_closers(state).drafts)
        made = [
            Imported(
                session_id=session.session_id,
                thread=thread,
                kind=session.kind,
                action=session.action,
                events=session.events,
                turns=session.turns,
                of=session.of,
            )
            for thread, session in self._sessions.items()
        ]
        held = [_unchanged(shared.record, thread) for thread, shared in self._shared.items() if shared.same]
        return [*made, *held]

    def _point(self, fork: Fork) -> _Point | None:
        shared = self._shared.get(fork.thread)
        if fork.before or (shared is not None and shared.same):
            return None if shared is None else shared.points.get(fork.seq)
        session = self._sessions.get(fork.thread)
        sum_ = self._ends.get((fork.thread, fork.seq))
        return None if session is None or sum_ is None else _Point(session.session_id, fork.seq, sum_)

    def _open(self, batch: Batch, session: _Session, fork: _Point | None) -> None:
        """Begins a session; here nothing is written."""
        state = self._states[batch.thread] = State()
        state.apply(Event(0, batch.ts, batch.drafts[0].type, batch.drafts[0].data, ""))

    def _append(self, batch: Batch, session: _Session) -> None:
        for number, draft in enumerate(batch.drafts, session.events):
            self._states[batch.thread].apply(Event(number, batch.ts, draft.type, draft.data, "", draft.ignorable))
            if ends_turn(draft):
                self._ends[batch.thread, number] = ""


class _Late(files.RealFs):
    """Nobody is told of a session before it is whole: it is synced once, then."""

    def sync(self, fd: int) -> None:
        pass


class _Staging(_Making):
    """Writes the sessions, and moves them into the root. A context: leaving it early leaves nothing in the root."""

    def __init__(self, records: _Records, shared: dict[str, _Shared], backend: str | None) -> None:
        super().__init__(records, shared)
        self._backend = backend
        self._root = records.store.root
        self._place = self._root / STAGING / f"{records.id_of(MAIN)}-{records.digest[:8]}"
        self._writers: dict[str, JournalWriter] = {}
        self._lock: SessionLock | None = None

    def __enter__(self) -> "_Staging":
        try:
            files.refuse_shared(each for each in (self._root, self._place.parent, self._place) if each.exists())
            self._lock = self._locked()
            # What an import that was cut off has left: nobody has been told of it.
            self._clear()
        except OSError as error:
            raise files.write_error(error, self._place, "write to") from None
        return self

    def _locked(self) -> SessionLock:
        """Raises JournalLocked where another one imports this very file, OSError."""
        tries = 0
        while True:
            files.make_dirs(self._place.parent)
            with suppress(FileExistsError):
                self._place.mkdir(mode=files.DIR_MODE)
            try:
                return SessionLock.acquire(self._place)
            except JournalError:
                tries += 1
                # One that has just ended has taken its folder away.
                if self._place.exists() or tries == _TRIES:
                    raise

    def _clear(self) -> None:
        for left in self._place.iterdir():
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left)
            elif left.is_symlink():
                left.unlink()

    def __exit__(self, *_: object) -> None:
        for writer in self._writers.values():
            with suppress(JournalError):
                writer.close()
        assert self._lock is not None
        with suppress(OSError):
            self._clear()
            # Under the lock: whoever waits for it finds that the file is another by then.
            shutil.rmtree(self._place)
        self._lock.release()

    def _open(self, batch: Batch, session: _Session, fork: _Point | None) -> None:
        header = dict(batch.drafts[0].data)
        header["session_id"] = session.session_id
        header["backend"] = self._backend or header["backend"]
        origin = {**header["imported_from"], "sha256": self._records.digest, "bytes": self._records.raw.size}
        if batch.thread != MAIN:
            # They are found again by the session that the file is of.
            origin |= {"session_id": self._records.foreign_id, "thread": batch.thread}
        header["imported_from"] = origin
        if "child_of" in header and batch.child_of is not None:
            header["child_of"] = {**header["child_of"], "session_id": self._session_of(batch.child_of)}
        if fork is not None:
            header["parent"] = attrs.asdict(fork)
            self._within_reach(fork.session_id)
        session.ts = batch.ts
        place = self._place / session.session_id
        try:
            place.mkdir(mode=0o700)
        except OSError as error:
            raise files.write_error(error, place, "create") from None
        self._writers[batch.thread] = JournalWriter.create(
            place / JOURNAL,
            Draft("session/header", header),
            clock=lambda: session.ts,
            fs=_Late(),
            verdict=lambda _: "healthy",
        )

    def _session_of(self, thread: str) -> str:
        session, shared = self._sessions.get(thread), self._shared.get(thread)
        if session is not None:
            return session.session_id
        return self._records.id_of(thread) if shared is None else shared.record.session_id

    def _within_reach(self, session_id: str) -> None:
        """A fork is read with its parents, which lie beside it."""
        for thread, session in self._sessions.items():
            if session.session_id == session_id:
                self._writers[thread].flush()
                return
        at: Any = session_id
        while isinstance(at, str) and not os.path.lexists(self._place / at):
            (self._place / at).symlink_to(os.path.abspath(self._records.store.directory(at)))
            with open_source(self._records.store.path(at)) as source:
                header = first_event(source)
            at = mapping((header.data if header is not None else {}).get("parent")).get("session_id")

    def _append(self, batch: Batch, session: _Session) -> None:
        writer = self._writers[batch.thread]
        events = writer.append_batch([self._stored(draft, session) for draft in batch.drafts])
        for event in events:
            if ends_turn(event):
                self._ends[batch.thread, event.seq] = event.sum

    def _stored(self, draft: Draft, session: _Session) -> Draft:
        """What is too big for a line lies in blobs."""
        data = draft.data
        if draft.type == "x-foreign/line":
            whole = orjson.dumps(data["value"])
            if len(whole) <= _LONG:
                return draft
            ref = blobs.put(self._place / session.session_id, whole)
            return Draft(draft.type, {**data, "value": None, "ref": ref, "bytes": len(whole)}, True)
        content = data.get("content")
        if not isinstance(content, list) or not content:
            return draft
        # Many texts that a line has room for are together more than it has.
        most = _LONG if sum(map(_weight, content)) <= _LINE else _SHOWN
        if not any(_is_big(block, most) for block in content):
            return draft
        place = self._place / session.session_id
        blocks = [_elsewhere(block, place) if _is_big(block, most) else block for block in content]
        return Draft(draft.type, {**data, "content": blocks}, draft.ignorable)

    def finish(self, original: bool) -> list[Imported]:
        for thread, session in self._sessions.items():
            writer = self._writers[thread]
            if closers := plan_closers(writer.state).drafts:
                writer.append_batch(closers)
            writer.flush()
            session.events = writer.next_seq
            writer.close()
            self._sync(writer.path)
        if MAIN in self._sessions and original:
            place = self._place / self._sessions[MAIN].session_id
            with blobs.BlobWriter(place) as blob:
                at = 0
                while at < self._records.raw.size and (piece := self._records.raw.read(at, _PIECE)):
                    blob.write(piece)
                    at += len(piece)
                if blob.commit() != f"sha256:{self._records.digest}":
                    raise JournalConflict(
                        f"{self._records.raw.path} was changed while it was read, and nothing of it was imported; "
                        "import it again",
                        path=self._records.raw.path,
                    )
        for thread in sorted(self._sessions, key=lambda thread: thread == MAIN):
            self._move_in(thread, self._sessions[thread].session_id)
        return super().finish(original)

    def _sync(self, path: Path) -> None:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                files.sync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise files.write_error(error, path, "sync") from None

    def _move_in(self, thread: str, session_id: str) -> None:
        target = self._records.store.directory(session_id)
        try:
            files.make_dirs(target.parent)
            if thread != MAIN and os.path.lexists(target):
                self._kept(target)
                return
            os.rename(self._place / session_id, target)
            files.sync_dir(target.parent)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                raise JournalConflict(
                    f"{target} was made by somebody else meanwhile, so nothing of {self._records.raw.path} was put "
                    "there; import it again",
                    path=target,
                ) from None
            raise files.write_error(error, target, "move a session to") from None

    def _kept(self, target: Path) -> None:
        """What an import that was cut off has left is whole, and may have been gone on with. Raises JournalConflict
        where it is something else.
        """
        try:
            with open_source(self._place / target.name / JOURNAL) as mine, open_source(target / JOURNAL) as there:
                same = mine.size <= there.size and _digest(there, mine.size) == _digest(mine, mine.size)
        except JournalError:
            same = False
        if not same:
            raise JournalConflict(
                f"{target} stands where a part of {self._records.raw.path} belongs, and is something else, so nothing "
                "was imported; move it elsewhere, then import again",
                path=target,
            )


def _unchanged(record: _Record, thread: str) -> Imported:
    return Imported(session_id=record.session_id, thread=thread, kind=record.kind, action="unchanged")


def _kind(batch: Batch) -> str:
    return "subagent" if batch.child_of is not None else _known(batch.thread)


def _known(thread: str) -> str:
    return "main" if thread == MAIN else "branch"


def _weight(block: Any) -> int:
    text = block.get(_TEXTS.get(str(block.get("kind")), "text")) if isinstance(block, dict) else None
    return len(text) if isinstance(text, str) else 0


def _is_big(block: Any, most: int) -> bool:
    if isinstance(block, dict) and block.get("kind") in _MEDIA:
        return isinstance(block.get("data"), str)
    return _weight(block) > most


def _elsewhere(block: JsonObject, place: Path) -> JsonObject:
    """A block whose content lies in a blob. An image has the type that its bytes have; what is no base64 is text."""
    if block["kind"] in _MEDIA:
        raw = images.decoded(block["data"])
        data = block["data"].encode("utf-8", "replace") if raw is None else raw
        kept = {key: value for key, value in block.items() if key != "data"}
        media_type = _type_of(data) or block.get("media_type")
        return {**kept, "media_type": media_type, "ref": blobs.put(place, data), "bytes": len(data)}
    key = _TEXTS.get(block["kind"], "text")
    whole = block[key].encode("utf-8", "replace")
    return {**block, key: block[key][:_SHOWN], "ref": blobs.put(place, whole), "bytes": len(whole)}


def _type_of(data: bytes) -> str | None:
    found = images.look(data)
    if isinstance(found, images.Image):
        return found.media_type
    return "image/svg+xml" if b"<svg" in data[:_NAMED] else None
