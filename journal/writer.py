"""The one writer of a session: one write for a batch, one sync for all who wait, and a fold that is never behind.

``append`` checks against the fold and enqueues, without any I/O; ``flush`` is the barrier. Whoever comes first writes
and syncs for all (group commit). What fails is rolled back, and everyone whose events were lost gets the same error.
"""

import errno
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Condition, Lock, Thread, current_thread
from typing import TYPE_CHECKING, Any, Final

import attrs

from . import files, rollback
from .codec import ZERO, check_shape, clean, draft_of, encode
from .errors import (
    InvalidEvent,
    JournalConflict,
    JournalDamaged,
    JournalError,
    JournalLocked,
    JournalUnsupported,
    JournalWriteError,
)
from .events import EVENT_TYPES, Draft, Event
from .findings import Verdict, verdict_of
from .lock import SessionLock
from .reader import JOURNAL, inherit, open_source, read_source
from .scan import Mark, Source, accept
from .state import State

if TYPE_CHECKING:
    import asyncio

Hook = Callable[[Draft], Any]
#: Seconds after which live text that nobody flushes is written (not synced) so that readers see it.
PREVIEW: Final = 0.25
_REFUSED: Final[dict[str, type[JournalError]]] = {"unsupported": JournalUnsupported, "damaged": JournalDamaged}


def wall_ms() -> int:
    """The wall clock in Unix milliseconds."""
    return time.time_ns() // 1_000_000


@attrs.frozen
class Limited:
    """The first ``size`` bytes of a source."""

    source: Source
    size: int

    def read(self, offset: int, length: int) -> bytes:
        return self.source.read(offset, max(0, min(length, self.size - offset)))


class _Batch:
    """What one write and one sync settle, and who waits for it. ``written``: so many of its lines are in the file."""

    __slots__ = ("done", "error", "events", "lines", "owners", "ready", "requested", "waiting", "written")

    def __init__(self, mutex: Lock) -> None:
        self.ready = Condition(mutex)
        self.lines: list[bytes] = []
        self.events: list[Event] = []
        self.owners: set[object] = set()
        self.waiting: list[tuple[_Mailbox, asyncio.Future[None]]] = []
        self.written = 0
        self.requested = False
        self.done = False
        self.error: JournalError | None = None


class JournalWriter:
    """A session open for writing, from any thread and from asyncio. Make one with ``open`` or ``create``.

    After a failed write the handle lives: the file and the fold stand where the last acknowledged event left them.
    After a failed sync, a failed rollback or a conflict it is dead, and every call raises the same error.
    """

    def __init__(
        self,
        path: Path,
        fd: int,
        lock: SessionLock,
        state: State,
        head: Mark,
        *,
        clock: Callable[[], int] = wall_ms,
        on_append: Hook | None = None,
        fs: files.Fs = files.REAL,
        refold: Callable[[int], State] | None = None,
        verdict: Callable[[State], Verdict] | None = None,
    ) -> None:
        self.path = path
        self.session_dir = path.parent
        self.lock = lock
        #: The fold, enqueued events included. Read it, never change it.
        self.state = state
        self._fd = fd
        self._clock = clock
        self._hook = on_append
        self._fs = fs
        self._refold = refold or (lambda length: fold(path, length))
        self._verdict = verdict
        found = os.fstat(fd)
        self._inode = (found.st_dev, found.st_ino)
        self._name = str(path)
        self._mutex = Lock()
        #: The newest acknowledged event. Behind it: how much is in the file, and how much is enqueued.
        self._acknowledged = head
        self._in_file = head.offset
        self._enqueued = head
        self._open = _Batch(self._mutex)
        self._flying: _Batch | None = None
        self._busy = False
        self._dead: JournalError | None = None
        self._closed = False
        self._owed: weakref.WeakKeyDictionary[object, JournalError] = weakref.WeakKeyDictionary()
        self._committer: Thread | None = None
        self._requests: SimpleQueue[_Batch | float | None] = SimpleQueue()
        self._preview_due = False
        self._snapshot_seq: int | None = None

    # ------------------------------------------------------------ opening

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        lock: SessionLock | None = None,
        state: State | None = None,
        head: Mark | None = None,
        clock: Callable[[], int] = wall_ms,
        on_append: Hook | None = None,
        fs: files.Fs = files.REAL,
        refold: Callable[[int], State] | None = None,
        verdict: Callable[[State], Verdict] | None = None,
    ) -> "JournalWriter":
        """Open an existing journal. Repairs nothing.

        ``lock``: one that the caller holds; the writer releases it at ``close``, or here
        where opening fails. ``state`` and ``head``: the fold of the whole file under that lock, where the caller has
        it. ``on_append(draft)`` returns the draft (or payload) to be written in its place. ``refold(length)`` folds
        the first bytes of the file. ``verdict(state)`` is asked at ``close`` for the listing.

        Raises SessionNotFound, JournalLocked, JournalDamaged, JournalUnsupported, JournalWriteError (not writable),
        and JournalError for a torn tail and for what cannot be read.
        """
        path = Path(path)
        with open_source(path):
            pass
        lock = lock or SessionLock.acquire(path.parent)
        fd = -1
        try:
            for directory in (path.parent, path.parent / "blobs", path.parent / "damage"):
                files.sweep(directory)
            fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
            fs.sync(fd)
            saved = None
            if state is None or head is None:
                state, head, saved = _folded(path)
            size = os.fstat(fd).st_size
            if size != head.offset:
                raise JournalConflict(
                    f"{path} has {size} bytes and its last event ends at {head.offset}; read it again, then open it",
                    path=path,
                    offset=head.offset,
                    seq=head.seq,
                )
            writer = cls(
                path, fd, lock, state, head, clock=clock, on_append=on_append, fs=fs, refold=refold, verdict=verdict
            )
            writer._snapshot_seq = saved
            return writer
        except BaseException as error:
            if fd >= 0:
                os.close(fd)
            lock.release()
            if isinstance(error, OSError):
                raise files.write_error(error, path, "open") from None
            raise

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        header: Any,
        batch: Iterable[Any] = (),
        *,
        lock: SessionLock | None = None,
        clock: Callable[[], int] = wall_ms,
        on_append: Hook | None = None,
        fs: files.Fs = files.REAL,
        refold: Callable[[int], State] | None = None,
        verdict: Callable[[State], Verdict] | None = None,
    ) -> "JournalWriter":
        """Create a journal with its header and a first batch, all or nothing, durable when this returns.

        The directory exists. Raises JournalConflict where there is a journal, InvalidEvent, JournalLocked,
        JournalWriteError.
        """
        path = Path(path)
        lock = lock or SessionLock.acquire(path.parent)
        name = files.temporary(path)
        fd = -1
        try:
            files.sweep(path.parent)
            if os.path.lexists(path):
                raise _exists(path)
            fd = files.create_private(name, os.O_APPEND)
            writer = cls(
                path, fd, lock, State(), Mark(0, -1, ZERO),
                clock=clock, on_append=on_append, fs=fs, refold=refold, verdict=verdict,
            )  # fmt: skip
            writer._begin(writer._prepared(header), [writer._prepared(event) for event in batch])
            try:
                os.link(name, path)
            except FileExistsError:
                raise _exists(path) from None
            files.sync_dir(path.parent)
            name.unlink()
            return writer
        except BaseException as error:
            if fd >= 0:
                os.close(fd)
                name.unlink(missing_ok=True)
            lock.release()
            if isinstance(error, OSError):
                raise files.write_error(error, path, "create") from None
            raise

    def _begin(self, header: Draft, batch: list[Draft]) -> None:
        """The first bytes of a file that nobody sees yet. Raises OSError."""
        if header.type != "session/header":
            raise InvalidEvent(f"a journal begins with session/header, not {header.type}", type=header.type, seq=0)
        parent = header.data.get("parent")
        if parent is not None:
            unknown: Any = []
            inherit(Event(0, 0, header.type, header.data, ZERO), self.path, self.state, None, unknown)
            if unknown:
                raise InvalidEvent(unknown[0].message, type=header.type, key="parent", seq=0)
            self._enqueued = Mark(0, -1, parent["sum"])
        self._enqueue([header])
        if batch:
            self._enqueue(batch)
        data = _bytes(self._open.lines)
        if self._fs.write(self._fd, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._fs.sync(self._fd)
        self._in_file = self._enqueued.offset
        self._acknowledged = self._enqueued
        self._open = _Batch(self._mutex)

    # ------------------------------------------------------------ what stands

    @property
    def head(self) -> Mark:
        """The newest acknowledged event: number, sum, and the offset behind it."""
        return self._acknowledged

    @property
    def next_seq(self) -> int:
        """The number that the next appended event gets."""
        return self._enqueued.seq + 1

    @property
    def poisoned(self) -> bool:
        """Does every further call raise?"""
        return self._dead is not None

    # ------------------------------------------------------------ append

    def append(self, event: Any, *, expected_seq: int | None = None) -> Event:
        """Check ``event`` (a Draft or an instance of a payload class) and enqueue it; nothing is on the disk yet.

        Its data belongs to the journal from now on. ``expected_seq`` is the number that the event must get.
        Raises InvalidEvent, JournalConflict (another number, or the file was changed by someone), JournalWriteError.
        """
        drafts = [self._prepared(event)]
        with self._writable():
            self._expect(expected_seq)
            return self._enqueue(drafts)[0]

    def append_batch(self, events: Iterable[Any], *, expected_seq: int | None = None) -> list[Event]:
        """Like ``append`` for several events that stand or fall together, also in a crash (``more`` counts down)."""
        drafts = [self._prepared(event) for event in events]
        with self._writable():
            self._expect(expected_seq)
            return self._enqueue(drafts)

    def append_durable(self, event: Any, *, expected_seq: int | None = None) -> Event:
        """``append`` and ``flush``."""
        appended = self.append(event, expected_seq=expected_seq)
        self.flush()
        return appended

    def _prepared(self, event: Any) -> Draft:
        wanted = draft(event)
        if self._hook is not None:
            wanted = draft(self._hook(wanted))
        wanted = clean(wanted)
        check_shape(wanted)
        return wanted

    def _writable(self) -> Lock:
        """The mutex, for a call that may still be made. Raises what is to be told."""
        if not self.lock.held and not self._closed:
            raise JournalLocked(
                f"{self.path} is not open for writing in this process, which was forked or gave its lock up; "
                "open it here",
                path=self.path,
            )
        if self._dead is not None:
            raise self._dead
        if self._owed and (error := self._owed.pop(_owner(), None)) is not None:
            raise error
        return self._mutex

    def _expect(self, seq: int | None) -> None:
        if seq is not None and seq != self.next_seq:
            raise JournalConflict(
                f"the next event of {self.path} gets number {self.next_seq}, not {seq}; read what came in between",
                path=self.path,
                seq=self.next_seq,
            )

    def _enqueue(self, drafts: list[Draft]) -> list[Event]:
        if self._dead is not None:
            raise self._dead
        state, ts = self.state, self._clock()
        at = self._enqueued
        offset, seq, sum_ = at.offset, at.seq, at.sum
        lines: list[bytes] = []
        events: list[Event] = []
        more = len(drafts)
        try:
            for draft in drafts:
                seq += 1
                more -= 1
                state.check(draft)
                line, sum_ = encode(draft, seq, ts, sum_, more)
                event = Event(seq, ts, draft.type, draft.data, sum_, draft.ignorable, more, offset, len(line))
                state.apply(event)
                lines.append(line)
                events.append(event)
                offset += len(line) + 1
        except BaseException:
            if events:
                self._fold_again()
            raise
        batch = self._open
        batch.lines += lines
        batch.events += events
        batch.owners.add(_owner())
        self._enqueued = Mark(offset, seq, sum_)
        if self._committer is not None and not self._preview_due:
            self._preview_due = True
            self._requests.put(PREVIEW)
        return events

    def _fold_again(self) -> None:
        """The fold without the events of a batch that was refused half way."""
        state = self._refold(self._acknowledged.offset)
        for batch in (self._flying, self._open):
            for event in batch.events if batch is not None else ():
                state.apply(event)
        self.state = state

    # ------------------------------------------------------------ flush

    def flush(self) -> None:
        """The barrier: when it returns, everything that was enqueued before is on the disk.

        Raises JournalWriteError or JournalConflict if any of it is not; it is then not in the journal at all.
        """
        if (batch := self._newest()) is not None:
            self._settle(batch)
            self._tell(batch)

    async def aflush(self) -> None:
        """``flush`` for asyncio: the loop goes on meanwhile. Cancelling the wait takes nothing back."""
        import asyncio

        batch = self._newest()
        if batch is None:
            return
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        with self._mutex:
            if not batch.done:
                batch.waiting.append((_mailbox(loop), future))
                if not batch.requested:
                    batch.requested = True
                    self._request(batch)
        if not batch.done:
            await future
        self._tell(batch)

    def write_pending(self) -> None:
        """Write what is enqueued without syncing it, so that readers see live text; it is not acknowledged by this.

        What fails is told to those whose events were lost, at their next call.
        """
        with self._mutex:
            batch = self._open
            if self._busy or self._dead is not None or not self.lock.held or batch.written == len(batch.lines):
                return
            self._busy = True
            lines, batch.written = batch.lines[batch.written :], len(batch.lines)
        self._store(batch, lines, sync=False)

    def _newest(self) -> _Batch | None:
        """The batch that holds the newest enqueued event, unless that is acknowledged. Raises what is to be told."""
        with self._writable():
            if self._dead is not None:
                raise self._dead
            batch = self._open if self._open.events else self._flying
            if self._owed and (batch is None or _owner() not in batch.owners):
                # Someone flushes for another whose events were lost meanwhile.
                raise next(iter(self._owed.values()))
            return batch

    def _settle(self, batch: _Batch) -> None:
        """Wait until ``batch`` is done, or write and sync it for all who wait."""
        with self._mutex:
            while not batch.done and self._busy:
                try:
                    batch.ready.wait()
                except BaseException:
                    self._open.ready.notify()
                    raise
            if batch.done:
                return
            self._busy = True
            self._flying, self._open = batch, _Batch(self._mutex)
        self._store(batch, batch.lines[batch.written :], sync=True)

    def _tell(self, batch: _Batch) -> None:
        if batch.error is not None:
            self._owed.pop(_owner(), None)
            raise batch.error

    def _store(self, batch: _Batch, lines: list[bytes], *, sync: bool) -> None:
        """The I/O of one batch, by the one thread that set ``_busy``; then everybody learns how it went."""
        failure: JournalError | None = None
        alive = True
        try:
            failure, alive = self._put(batch, lines, sync)
        except BaseException:
            failure, alive = self._lost(OSError(errno.EINTR, "the write was interrupted"), "write", batch), False
            raise
        finally:
            with self._mutex:
                self._busy = False
                if failure is not None:
                    self._failed(failure, alive)
                elif sync:
                    last = batch.events[-1]
                    self._acknowledged = Mark(last.offset + last.length + 1, last.seq, last.sum)
                    self._flying = None
                    _finish(batch, None)
                self._open.ready.notify()

    def _put(self, batch: _Batch, lines: list[bytes], sync: bool) -> tuple[JournalError | None, bool]:
        """Tail check, one write, one sync. Returns what went wrong, and whether the handle lives on."""
        doing = "look at"
        try:
            conflict = self._tail_check()
            if conflict is not None:
                return conflict, False
            doing = "write"
            if lines:
                self._write(_bytes(lines))
        except OSError as error:
            if rollback.cut(self._fd, self._acknowledged.offset, self._fs):
                return files.write_error(error, self.path, doing), True
            return self._lost(error, doing, batch), False
        if sync:
            try:
                self._fs.sync(self._fd)
            except OSError as error:
                return self._lost(error, "sync", batch), False
        return None, True

    def _tail_check(self) -> JournalConflict | None:
        """Is the file at the path the one that is open, and as long as this writer left it? Raises OSError."""
        try:
            found = self._fs.stat(self._name)
        except (FileNotFoundError, NotADirectoryError):
            return self._conflict("is no longer there")
        if (found.st_dev, found.st_ino) != self._inode:
            return self._conflict("was replaced by another file")
        if found.st_nlink == 0:
            return self._conflict("was unlinked")
        if found.st_size != self._in_file:
            return self._conflict(f"has {found.st_size} bytes where this writer left {self._in_file}")
        return None

    def _conflict(self, what: str) -> JournalConflict:
        return JournalConflict(
            f"{self.path} {what} while it was open for writing, so nothing more is written; "
            "find out what changed it, then open the session again",
            path=self.path,
            offset=self._acknowledged.offset,
            seq=self._acknowledged.seq,
        )

    def _write(self, data: bytes) -> None:
        """One write of all of it. Raises OSError, also for a short one."""
        taken = self._fs.write(self._fd, data)
        if taken != len(data):
            # A short write does not say why; the next one does. All of it is rolled back in any case.
            self._fs.write(self._fd, data[taken:])
            raise OSError(errno.EIO, f"only {taken} of {len(data)} bytes were taken")
        self._in_file += taken

    def _lost(self, error: OSError, doing: str, batch: _Batch) -> JournalWriteError:
        """Try once to cut what was not acknowledged; the handle is dead however that ends."""
        length = self._acknowledged.offset
        if not rollback.cut(self._fd, length, self._fs):
            rollback.remember(self._fd, self.path, length, _bytes(batch.lines))
        return files.write_error(error, self.path, doing, poisoned=True)

    def _failed(self, error: JournalError, alive: bool) -> None:
        """Nothing beyond the acknowledged event stands: tell everyone, and fold again from the disk."""
        lost = [batch for batch in (self._flying, self._open) if batch is not None]
        self._flying, self._open = None, _Batch(self._mutex)
        self._in_file = self._acknowledged.offset
        self._enqueued = self._acknowledged
        if alive:
            try:
                self.state = self._refold(self._acknowledged.offset)
            except (JournalError, OSError):
                alive = False
        if not alive:
            self._dead = error
        for batch in lost:
            for owner in batch.owners:
                self._owed[owner] = error
            _finish(batch, error)

    # ------------------------------------------------------------ the thread that commits for asyncio

    def _request(self, batch: _Batch) -> None:
        if self._committer is None:
            self._committer = Thread(target=self._commit_for_loops, name=f"commit {self.session_dir.name}", daemon=True)
            self._committer.start()
        self._requests.put(batch)

    def _commit_for_loops(self) -> None:
        preview: float | None = None
        while True:
            try:
                request = self._requests.get(timeout=None if preview is None else max(0.0, preview - time.monotonic()))
            except Empty:
                preview, self._preview_due = None, False
                self.write_pending()
                continue
            if request is None:
                return
            if isinstance(request, float):
                preview = time.monotonic() + request
            else:
                self._settle(request)

    # ------------------------------------------------------------ close

    def close(self) -> None:
        """Flush, write the snapshot, give the lock up. A second call does nothing; the file is closed in any case.

        Raises what ``flush`` raises, and what was lost and not yet told to the caller.
        """
        if self._closed:
            return
        self._closed = True
        if not self.lock.held:
            # A forked child: the mutex may be held by a thread that does not exist here.
            self._dead = self._shut()
            os.close(self._fd)
            return
        with self._mutex:
            batch = self._open if self._open.events else self._flying
        try:
            if batch is not None and self._dead is None:
                self._settle(batch)
            if self._committer is not None:
                self._requests.put(None)
                self._committer.join()
            if self._dead is None:
                self._snapshot()
        finally:
            with self._mutex:
                self._dead = self._dead or self._shut()
                os.close(self._fd)
            self.lock.release()
        if (error := self._owed.pop(_owner(), None) or (batch and batch.error)) is not None:
            raise error

    def _shut(self) -> JournalError:
        return JournalError(f"{self.path} is closed; open the session again to write", path=self.path)

    def _snapshot(self) -> None:
        head = self._acknowledged
        if self.path.name == JOURNAL and head.seq != self._snapshot_seq:
            from . import snapshot

            with suppress(OSError):
                snapshot.write(self.session_dir, self.state, head, self._verdict and self._verdict(self.state))

    def __enter__(self) -> "JournalWriter":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            self.close()
        except JournalError:
            if error is None:
                raise


def fold(path: Path, length: int) -> State:
    """The fold of the first ``length`` bytes of a journal that a writer has open. Raises JournalError, OSError."""
    with open_source(path) as source:
        return read_source(Limited(source, length), path).state


def _folded(path: Path) -> tuple[State, Mark, int | None]:
    """State and head of a journal that may be appended to, and the event up to which a snapshot stands."""
    from . import snapshot

    with open_source(path) as source:
        resumed = snapshot.resume(source, path)
        if resumed is not None:
            return resumed
        reading = read_source(source, path)
    found = reading.scan
    verdict = verdict_of(accept([*found.findings, *reading.state.problems], found.accepted))
    if verdict in ("unsupported", "damaged", "unreadable") or found.head is None:
        error = _REFUSED.get(verdict, JournalError)
        raise error(f"{path} is {verdict} and cannot be written to; `maka journal inspect {path}` says why", path=path)
    if found.tail is not None:
        raise JournalError(
            f"{path} ends in what a crash left, at byte {found.tail.offset}; run `maka journal repair {path}` first",
            path=path,
            offset=found.tail.offset,
        )
    return reading.state, found.head, None


def _exists(path: Path) -> JournalConflict:
    return JournalConflict(f"there is already a journal at {path}; open it, or choose another session id", path=path)


def _bytes(lines: list[bytes]) -> bytes:
    return b"\n".join(lines) + b"\n"


def draft(event: Any) -> Draft:
    """A Draft from a Draft or an instance of a payload class. Raises InvalidEvent for anything else."""
    if event.__class__ is Draft:
        return event
    if getattr(event.__class__, "TYPE", None) not in EVENT_TYPES:
        kind = event.__class__.__name__
        raise InvalidEvent(f"a {kind} is no event: append a Draft or an instance of a payload class", type=kind)
    return draft_of(event)


def _owner() -> object:
    """Who appends or flushes: the running asyncio task, else the thread."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and asyncio._get_running_loop() is not None:
        task: object = asyncio.current_task()
        if task is not None:
            return task
    return current_thread()


class _Mailbox:
    """What a loop is told by other threads: handed over many at a time, for all writers of the loop."""

    def __init__(self, loop: "asyncio.AbstractEventLoop") -> None:
        self._loop = weakref.ref(loop)
        self._items: SimpleQueue[asyncio.Future[None]] = SimpleQueue()
        self._due = False

    def post(self, future: "asyncio.Future[None]") -> None:
        self._items.put(future)
        if not self._due:
            self._due = True
            loop = self._loop()
            if loop is not None:
                with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                    loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._due = False
        while not self._items.empty():
            future = self._items.get()
            if not future.done():
                future.set_result(None)


_mailboxes: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Mailbox]" = weakref.WeakKeyDictionary()


def _mailbox(loop: "asyncio.AbstractEventLoop") -> _Mailbox:
    box = _mailboxes.get(loop)
    if box is None:
        box = _mailboxes[loop] = _Mailbox(loop)
    return box


def _finish(batch: _Batch, error: JournalError | None) -> None:
    batch.error = error
    batch.done = True
    batch.ready.notify_all()
    for mailbox, future in batch.waiting:
        mailbox.post(future)
