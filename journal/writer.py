"""The one writer of a session: a fold that is never behind, and one write and one sync for all who append at once.

``append`` checks against the fold and enqueues, without any I/O unless far too much waits already; ``flush`` is the
barrier. What fails is rolled back to the last acknowledged event, and the handle lives on only where that is certain to
have worked.
"""

import errno
import os
import time
import warnings
import weakref
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from . import files, rollback
from .codec import ZERO, check_shape, draft_of, encode, serialize
from .commit import Batch, GroupCommit
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
from .scan import Mark, accept
from .state import State

Hook = Callable[[Draft], Any]
#: A draft, and its data as JSON.
Prepared = tuple[Draft, bytes]
#: Bytes that may wait for a flush; whoever appends more waits for the disk. Live text of a turn stays far below.
MOST_PENDING: Final = 8 << 20
_REFUSED: Final[dict[str, type[JournalError]]] = {"unsupported": JournalUnsupported, "damaged": JournalDamaged}


def wall_ms() -> int:
    """The wall clock in Unix milliseconds."""
    return time.time_ns() // 1_000_000


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
        #: Up to the newest acknowledged event; the length of the file; up to the newest enqueued event.
        self._durable, self._durable_seq, self._durable_sum = head.offset, head.seq, head.sum
        self._in_file = head.offset
        self._end, self._seq, self._sum = head.offset, head.seq, head.sum
        self._commit = GroupCommit(self)
        self._closed = False
        self._snapshot_seq: int | None = None
        self._dropped: weakref.finalize[Any, JournalWriter] | None = None

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
            return writer._watched()
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
        made = [name]
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
            made.append(path)
            files.sync_dir(path.parent)
            name.unlink()
            return writer._watched()
        except BaseException as error:
            if fd >= 0:
                os.close(fd)
                for link in made:
                    with suppress(OSError):
                        link.unlink()
            lock.release()
            if isinstance(error, OSError):
                raise files.write_error(error, path, "create") from None
            raise

    def _begin(self, first: Prepared, batch: list[Prepared]) -> None:
        """The first bytes of a file that nobody sees yet. Raises OSError."""
        header = first[0]
        if header.type != "session/header":
            raise InvalidEvent(f"a journal begins with session/header, not {header.type}", type=header.type, seq=0)
        parent = header.data.get("parent")
        if parent is not None:
            unknown: Any = []
            inherit(Event(0, 0, header.type, header.data, ZERO), self.path, self.state, None, unknown)
            if unknown:
                raise InvalidEvent(unknown[0].message, type=header.type, key="parent", seq=0)
            if self.state.turns.open:
                raise InvalidEvent(
                    f"session/header: event {parent['seq']} of {parent['session_id']} stands inside a turn; "
                    "fork from a turn's end",
                    type=header.type,
                    key="parent",
                    seq=0,
                )
            self._sum = parent["sum"]
        self._enqueue([first])
        if batch:
            self._enqueue(batch)
        filled, self._commit.open = self._commit.open, Batch()
        data = _bytes(filled.lines)
        if self._fs.write(self._fd, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._fs.sync(self._fd)
        self._in_file = self._end
        self.advance(filled)

    # ------------------------------------------------------------ what stands

    @property
    def head(self) -> Mark:
        """The newest acknowledged event: number, sum, and the offset behind it."""
        return Mark(self._durable, self._durable_seq, self._durable_sum)

    @property
    def durable_seq(self) -> int:
        """The number of the newest acknowledged event."""
        return self._durable_seq

    @property
    def next_seq(self) -> int:
        """The number that the next appended event gets."""
        return self._seq + 1

    def made_good(self, error: JournalError) -> None:
        """Whoever appended what ``error`` lost has appended it again: nobody else who lost something is told of it."""
        self._commit.made_good(error)

    @property
    def poisoned(self) -> bool:
        """Does every further call raise?"""
        return self._commit.dead is not None

    # ------------------------------------------------------------ append

    def append(self, event: Any, *, expected_seq: int | None = None) -> Event:
        """Check ``event`` (a Draft or an instance of a payload class) and enqueue it; it need not be on the disk yet.

        Its data belongs to the journal from now on. ``expected_seq`` is the number that the event must get.
        Raises InvalidEvent, JournalConflict (another number, or the file was changed by someone), JournalWriteError.
        """
        drafts = [self._prepared(event)]
        self._guard()
        with self._commit.mutex:
            self._expect(expected_seq)
            appended = self._enqueue(drafts)[0]
        self._bound()
        return appended

    def append_batch(self, events: Iterable[Any], *, expected_seq: int | None = None) -> list[Event]:
        """Like ``append`` for several events that stand or fall together, also in a crash (``more`` counts down)."""
        drafts = [self._prepared(event) for event in events]
        self._guard()
        with self._commit.mutex:
            self._expect(expected_seq)
            appended = self._enqueue(drafts)
        self._bound()
        return appended

    def append_durable(self, event: Any, *, expected_seq: int | None = None) -> Event:
        """``append`` and ``flush``."""
        appended = self.append(event, expected_seq=expected_seq)
        self.flush()
        return appended

    def _prepared(self, event: Any) -> Prepared:
        """What the one hook makes of ``event``, checked as far as that needs no fold."""
        wanted = draft(event)
        if self._hook is not None:
            wanted = draft(self._hook(wanted))
        prepared = serialize(wanted)
        check_shape(prepared[0])
        return prepared

    def _guard(self) -> None:
        """Raises what is to be told before anything else is done."""
        if not self.lock.held and not self._closed:
            # A forked child: the mutex may be held by a thread that does not exist here.
            raise JournalLocked(
                f"{self.path} is not open for writing in this process, which was forked or gave its lock up; "
                "open it here",
                path=self.path,
            )
        self._commit.check()

    def _expect(self, seq: int | None) -> None:
        if seq is not None and seq != self.next_seq:
            raise JournalConflict(
                f"the next event of {self.path} gets number {self.next_seq}, not {seq}; read what came in between",
                path=self.path,
                seq=self.next_seq,
            )

    def _enqueue(self, drafts: list[Prepared]) -> list[Event]:
        if self._commit.dead is not None or self._closed:
            raise self._commit.dead or self._shut()
        state, ts = self.state, self._clock()
        offset, seq, sum_ = self._end, self._seq, self._sum
        lines: list[bytes] = []
        events: list[Event] = []
        more = len(drafts)
        try:
            for draft, data in drafts:
                seq += 1
                more -= 1
                if seq:
                    state.check(draft)
                line, sum_ = encode(draft, seq, ts, sum_, more, data)
                event = Event(seq, ts, draft.type, draft.data, sum_, draft.ignorable, more, offset, len(line))
                state.apply(event)
                lines.append(line)
                events.append(event)
                offset += len(line) + 1
        except BaseException:
            if events and self._durable:
                self._fold_again()
            raise
        self._commit.add(lines, events)
        self._end, self._seq, self._sum = offset, seq, sum_
        return events

    def _bound(self) -> None:
        """Somebody who appends on and on and never flushes must not fill the memory."""
        if self._end - self._durable > MOST_PENDING:
            self.flush()

    def _fold_again(self) -> None:
        """The fold without the events of a batch that was refused half way."""
        state = self._refold(self._durable)
        for event in self._commit.enqueued():
            state.apply(event)
        self.state = state

    # ------------------------------------------------------------ flush

    def flush(self) -> None:
        """The barrier: when it returns, everything that was enqueued before is on the disk.

        Raises JournalWriteError or JournalConflict if any of it is not; it is then not in the journal at all.
        """
        self._guard()
        self._commit.flush()

    def aflush(self) -> Coroutine[Any, Any, None]:
        """``flush`` for asyncio: the loop goes on meanwhile. Cancelling the wait takes nothing back."""
        self._guard()
        return self._commit.aflush()

    def write_pending(self) -> None:
        """Write what is enqueued without syncing it, so that readers see live text; it is not acknowledged by this.

        What fails is told to those whose events were lost, at their next call.
        """
        if self.lock.held:
            self._commit.write_pending()

    # ------------------------------------------------------------ the file, for the group commit

    def store(self, batch: Batch, lines: list[bytes], sync: bool) -> tuple[JournalError | None, bool]:
        """Tail check, one write, one sync. Returns what went wrong, and whether the handle lives on."""
        doing = "look at"
        try:
            conflict = self._tail_check()
            if conflict is not None:
                return conflict, False
            doing = "write"
            if lines:
                self._write(_bytes(lines))
            doing = "sync"
            if sync:
                self._fs.sync(self._fd)
        except OSError as error:
            if doing != "sync" and rollback.cut(self._fd, self._durable, self._fs):
                return files.write_error(error, self.path, doing), True
            return self._lost(error, doing, batch), False
        return None, True

    def give_up(self, batch: Batch, error: BaseException) -> JournalError:
        """``store`` was interrupted, nobody knows where."""
        return self._lost(OSError(errno.EINTR, f"it was interrupted by {error.__class__.__name__}"), "write", batch)

    def advance(self, batch: Batch) -> None:
        """The batch is durable: it is the head now."""
        last = batch.events[-1]
        self._durable, self._durable_seq, self._durable_sum = last.offset + last.length + 1, last.seq, last.sum

    def retreat(self, alive: bool) -> bool:
        """Nothing beyond the head stands: go back to it, and fold again from the disk."""
        self._in_file = self._durable
        self._end, self._seq, self._sum = self._durable, self._durable_seq, self._durable_sum
        if alive:
            try:
                self.state = self._refold(self._durable)
            except (JournalError, OSError):
                return False
        return alive

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
            offset=self._durable,
            seq=self._durable_seq,
        )

    def _write(self, data: bytes) -> None:
        """One write of all of it. Raises OSError, also for a short one."""
        taken = self._fs.write(self._fd, data)
        if taken != len(data):
            # A short write does not say why; the next one does. All of it is rolled back in any case.
            self._fs.write(self._fd, data[taken:])
            raise OSError(errno.EIO, f"only {taken} of {len(data)} bytes were taken")
        self._in_file += taken

    def _lost(self, error: OSError, doing: str, batch: Batch) -> JournalWriteError:
        """Try once to cut what was not acknowledged; the handle is dead however that ends."""
        length = self._durable
        if not rollback.cut(self._fd, length, self._fs):
            rollback.remember(self._fd, self.path, length, _bytes(batch.lines))
        return files.write_error(error, self.path, doing, poisoned=True)

    # ------------------------------------------------------------ close

    def _watched(self) -> "JournalWriter":
        """One that is let go without being closed gives its lock up, or nobody here could open the session again."""
        self._dropped = weakref.finalize(self, _let_go, self._fd, self.lock, self.path)
        self._dropped.atexit = False
        return self

    def close(self) -> None:
        """Flush, write the snapshot, give the lock up. A second call does nothing; the file is closed in any case.

        Raises what ``flush`` raises, and what was lost and not yet told to the caller.
        """
        if self._closed:
            return
        self._closed = True
        if self._dropped is not None:
            self._dropped.detach()
        closed = self._shut()
        if not self.lock.held:
            self._commit.dead = closed
            os.close(self._fd)
            return
        try:
            if self._commit.finish(closed):
                self._snapshot()
        finally:
            with self._commit.mutex:
                self._commit.dead = self._commit.dead or closed
                os.close(self._fd)
            self.lock.release()
        if (error := self._commit.untold()) is not None:
            raise error

    def _shut(self) -> JournalError:
        return JournalError(f"{self.path} is closed; open the session again to write", path=self.path)

    def _snapshot(self) -> None:
        head = self.head
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


def _let_go(fd: int, lock: SessionLock, path: Path) -> None:
    warnings.warn(f"the journal {path} was let go without being closed; close it", ResourceWarning, stacklevel=2)
    os.close(fd)
    if lock.held:
        lock.release()


def fold(path: Path, length: int) -> State:
    """The fold of the first ``length`` bytes of a journal that a writer has open. Raises JournalError, OSError."""
    with open_source(path) as source:
        source.size = min(source.size, length)
        return read_source(source, path).state


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
        error: type[JournalError] = _REFUSED.get(verdict, JournalError)
        raise error(f"{path} is {verdict} and cannot be written to; `maka journal inspect {path}` says why", path=path)
    if found.tail is not None:
        raise JournalError(
            f"{path} ends in what a crash left, at byte {found.tail.offset}; run `maka journal repair {path}` first",
            path=path,
            offset=found.tail.offset,
        )
    # Blank and repeated lines may follow the last event; what is appended goes behind them.
    return reading.state, Mark(source.size, found.head.seq, found.head.sum), None


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
