"""Group commit: many append, one writes and syncs for all of them, and everybody learns how it went. No I/O of its own.

Events gather in the open batch. Whoever wants them durable and finds nobody writing leads: takes the batch, stores it,
and lets the others go. What is enqueued meanwhile is the next batch. A batch that fails takes everything behind it
along, and its error is told to each thread or task that appended to it: where it waits, or else at its next call.
"""

import sys
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Lock, Thread, current_thread
from typing import TYPE_CHECKING, Final, Protocol

from .errors import JournalError
from .events import Event

if TYPE_CHECKING:
    import asyncio

#: Seconds after which live text that nobody flushes is written (not synced) so that readers see it.
PREVIEW: Final = 0.25


class Batch:
    """What one write and one sync settle, and who waits for it. ``written``: so many of its lines are in the file."""

    __slots__ = ("done", "error", "events", "gate", "lines", "owners", "queued", "requested", "waiting", "written")

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.events: list[Event] = []
        self.written = 0
        self.owners: set[object] = set()
        #: Threads wait here. It opens for one at a time: who passes finds the batch done, or leads it.
        self.gate: Lock | None = None
        self.queued = 0
        self.waiting: list[tuple[Mailbox, asyncio.Future[None]]] = []
        self.requested = False
        self.done = False
        self.error: JournalError | None = None


class Tape(Protocol):
    """What batches are stored on."""

    def store(self, batch: Batch, lines: list[bytes], sync: bool) -> tuple[JournalError | None, bool]:
        """Write ``lines``, the rest of the batch; sync if asked. Returns what failed, and whether the tape lives on."""
        ...

    def give_up(self, batch: Batch, error: BaseException) -> JournalError:
        """``store`` was interrupted: the tape is dead."""
        ...

    def advance(self, batch: Batch) -> None:
        """The batch is durable. Under the mutex."""
        ...

    def retreat(self, alive: bool) -> bool:
        """Nothing beyond the last durable batch stands. Returns whether the tape is still alive. Under the mutex."""
        ...


class GroupCommit:
    """The batches of one tape. ``mutex`` guards them; ``dead`` is what every call raises from now on."""

    def __init__(self, tape: Tape, name: str) -> None:
        self.mutex = Lock()
        self.open = Batch()
        self.flying: Batch | None = None
        self.dead: JournalError | None = None
        self._tape = tape
        self._name = name
        self._busy = False
        self._previous: Lock | None = None
        #: Who lost events and was not told yet. None as long as nothing was ever lost: it is asked at every call.
        self._owed: weakref.WeakKeyDictionary[object, JournalError] | None = None
        self._thread: Thread | None = None
        self._requests: SimpleQueue[Batch | float | None] = SimpleQueue()
        self._preview_due = False

    def check(self) -> None:
        """Raises what is to be told to the caller before it does anything else."""
        if self.dead is not None:
            raise self.dead
        if self._owed is not None and (error := self.untold()) is not None:
            raise error

    def add(self, lines: list[bytes], events: list[Event]) -> None:
        """Enqueue lines that stand or fall together. Under the mutex."""
        batch = self.open
        batch.lines += lines
        batch.events += events
        batch.owners.add(_owner())
        if self._thread is not None and not self._preview_due:
            self._preview_due = True
            self._requests.put(PREVIEW)

    def enqueued(self) -> list[Event]:
        """The events that are not durable yet, oldest first. Under the mutex."""
        return [*(self.flying.events if self.flying is not None else ()), *self.open.events]

    # ------------------------------------------------------------ waiting

    def flush(self) -> None:
        """Wait until what was enqueued is durable, or make it so. Raises what failed."""
        self.check()
        with self.mutex:
            batch = self._newest()
            if batch is None:
                return
            leads = self._queue(batch)
        self._settle(batch, leads)
        if batch.error is not None:
            self.untold()
            raise batch.error

    async def aflush(self) -> None:
        """``flush`` for asyncio; a thread does the waiting."""
        import asyncio

        self.check()
        loop = asyncio.get_running_loop()
        with self.mutex:
            batch = self._newest()
            if batch is None:
                return
            future = loop.create_future()
            batch.waiting.append((_mailbox(loop), future))
            if not batch.requested:
                batch.requested = True
                self._request(batch)
        await future
        if batch.error is not None:
            self.untold()
            raise batch.error

    def write_pending(self) -> None:
        """Write what is enqueued without syncing it. What fails is told to those whose events were lost."""
        with self.mutex:
            batch = self.open
            if self._busy or self.dead is not None or batch.written == len(batch.lines):
                return
            self._busy = True
            lines, batch.written = batch.lines[batch.written :], len(batch.lines)
        self._store(batch, lines, sync=False)

    def finish(self) -> None:
        """Settle what is enqueued and end the thread. Raises nothing of the batch: see ``untold``."""
        with self.mutex:
            batch = None if self.dead is not None else self.open if self.open.events else self.flying
            leads = batch is not None and self._queue(batch)
        if batch is not None:
            self._settle(batch, leads)
        if self._thread is not None:
            self._requests.put(None)
            self._thread.join()

    def untold(self) -> JournalError | None:
        """What the caller lost and was not told of, once."""
        return None if self._owed is None else self._owed.pop(_owner(), None)

    def _newest(self) -> Batch | None:
        """The batch that holds the newest enqueued event, unless that is durable. Under the mutex."""
        if self.dead is not None:
            raise self.dead
        batch = self.open if self.open.events else self.flying
        if self._owed and (batch is None or _owner() not in batch.owners):
            # Someone flushes for another whose events were lost meanwhile.
            raise next(iter(self._owed.values()))
        return batch

    # ------------------------------------------------------------ leading

    def _queue(self, batch: Batch) -> bool:
        """True where the caller is to lead ``batch``, else it has a place at the gate. Under the mutex."""
        if not self._busy:
            self._take(batch)
            return True
        if batch.gate is None:
            batch.gate = Lock()
            batch.gate.acquire()
        batch.queued += 1
        return False

    def _take(self, batch: Batch) -> None:
        self._busy = True
        self.flying, self.open = batch, Batch()

    def _settle(self, batch: Batch, leads: bool) -> None:
        """Wait until ``batch`` is done, or store it for all who wait.

        One thread passes the gate at a time and opens it for the next, so nobody wakes only to fight for a lock.
        """
        if not leads:
            gate = batch.gate
            assert gate is not None
            try:
                gate.acquire()
            except BaseException:
                self._leave(batch)
                raise
            if batch.done:
                gate.release()
                return
            if self._previous is not None:
                # Those whom the batch before let go append next: let them pass first, and come along.
                with self._previous:
                    pass
            with self.mutex:
                self._take(batch)
        self._store(batch, batch.lines[batch.written :], sync=True)

    def _leave(self, batch: Batch) -> None:
        """A waiter was interrupted. If the lead was kept for it alone, nobody leads."""
        with self.mutex:
            batch.queued -= 1
            if batch is self.open and self.flying is None and not batch.queued:
                batch.gate, self._busy = None, False

    def _store(self, batch: Batch, lines: list[bytes], *, sync: bool) -> None:
        """By the one thread that is ``_busy``: store, then tell everybody and hand the lead on."""
        interrupt: BaseException | None = None
        try:
            failure, alive = self._tape.store(batch, lines, sync)
        except BaseException as error:
            interrupt = error
            failure, alive = self._tape.give_up(batch, error), False
        with self.mutex:
            if failure is not None:
                self._fail(failure, alive)
            elif sync:
                self._tape.advance(batch)
                self.flying = None
                _finish(batch)
            self._previous = batch.gate
            if self.open.gate is None:
                self._busy = False
            else:
                self.open.gate.release()
        if interrupt is not None:
            raise interrupt

    def _fail(self, error: JournalError, alive: bool) -> None:
        lost = [batch for batch in (self.flying, self.open) if batch is not None]
        self.flying, self.open = None, Batch()
        if not self._tape.retreat(alive):
            self.dead = error
        if self._owed is None:
            self._owed = weakref.WeakKeyDictionary()
        for batch in lost:
            for owner in batch.owners:
                self._owed[owner] = error
            # The error's traceback leads to the batch, and must not keep those alive who are gone.
            batch.owners.clear()
            batch.error = error
            _finish(batch)

    # ------------------------------------------------------------ the thread that waits for event loops

    def _request(self, batch: Batch) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._serve, name=f"commit {self._name}", daemon=True)
            self._thread.start()
        self._requests.put(batch)

    def _serve(self) -> None:
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
                continue
            with self.mutex:
                if request.done:
                    continue
                leads = self._queue(request)
            self._settle(request, leads)


def _finish(batch: Batch) -> None:
    batch.done = True
    if batch.gate is not None:
        batch.gate.release()
    for mailbox, future in batch.waiting:
        mailbox.post(future)


def _owner() -> object:
    """Who appends or flushes: the running asyncio task, else the thread."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and asyncio._get_running_loop() is not None:
        task: object = asyncio.current_task()
        if task is not None:
            return task
    return current_thread()


class Mailbox:
    """What other threads have to tell a loop: handed over many at a time, for all tapes that the loop waits for."""

    def __init__(self, loop: "asyncio.AbstractEventLoop") -> None:
        # Weak: the loop is the key under which the mailbox is kept.
        self._loop: Callable[[], asyncio.AbstractEventLoop | None] = weakref.ref(loop)
        self._items: SimpleQueue[asyncio.Future[None]] = SimpleQueue()
        self._due = False

    def post(self, future: "asyncio.Future[None]") -> None:
        self._items.put(future)
        if not self._due:
            self._due = True
            loop = self._loop()
            if loop is not None:
                with suppress(RuntimeError):  # it is closed: nobody waits any more
                    loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._due = False
        while not self._items.empty():
            future = self._items.get()
            if not future.done():
                future.set_result(None)


_mailboxes: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Mailbox]" = weakref.WeakKeyDictionary()


def _mailbox(loop: "asyncio.AbstractEventLoop") -> Mailbox:
    box = _mailboxes.get(loop)
    if box is None:
        box = _mailboxes[loop] = Mailbox(loop)
    return box
