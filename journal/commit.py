"""Group commit: many append, one writes and syncs for all of them, and everybody learns how it went. No I/O of its own.

Events gather in the open batch. Whoever wants them durable and finds nobody writing leads: takes the batch, stores it,
and lets the others go. What is enqueued meanwhile is the next batch. A batch that fails takes everything behind it
along, and its error is told to each thread or task that appended to it: where it waits, or else at its next call.
"""

import sys
import weakref
from threading import Lock, current_thread
from typing import TYPE_CHECKING, Any, Final, Protocol

from . import committers
from .errors import JournalError
from .events import Event

if TYPE_CHECKING:
    import asyncio

#: Seconds after which live text from an event loop that nobody flushes is written (not synced) for readers to see.
PREVIEW: Final = 0.25


class Batch:
    """What one write and one sync settle, and who waits for it. ``written``: so many of its lines are in the file."""

    __slots__ = ("done", "error", "events", "gate", "lines", "owners", "queued", "waiting", "written")

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.events: list[Event] = []
        self.written = 0
        self.owners: set[object] = set()
        #: Threads wait here. It opens for one at a time: who passes finds the batch done, or leads it.
        self.gate: Lock | None = None
        self.queued = 0
        #: Tasks wait here; one of the threads for loops leads in their place.
        self.waiting: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
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

    def __init__(self, tape: Tape) -> None:
        self.mutex = Lock()
        self.open = Batch()
        self.flying: Batch | None = None
        self.dead: JournalError | None = None
        self._tape = tape
        self._busy = False
        #: Nobody writes, and the lead is kept for whoever passes the gate of the open batch.
        self._kept = False
        self._previous: Lock | None = None
        #: Who lost events and was not told yet. None as long as nothing was ever lost: it is asked at every call.
        self._owed: weakref.WeakKeyDictionary[object, JournalError] | None = None
        self._committers: committers.Committers | None = None
        #: The loop that writes live text soon.
        self._previews: asyncio.AbstractEventLoop | None = None

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
        loop = _running_loop()
        batch.owners.add(_owner(loop))
        if loop is not None and self._previews is not loop:
            self._previews = loop
            loop.call_later(PREVIEW, self._preview)

    def enqueued(self) -> list[Event]:
        """The events that are not durable yet, oldest first. Under the mutex."""
        return [*(self.flying.events if self.flying is not None else ()), *self.open.events]

    # ------------------------------------------------------------ waiting

    def flush(self) -> None:
        """Wait until what was enqueued is durable, or make it so. Raises what failed."""
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
            batch.waiting.setdefault(loop, []).append(future)
            free, self._busy = not self._busy, True
        if free:
            self._later(self._lead)
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

    def finish(self, closed: JournalError) -> bool:
        """Settle what is enqueued, when nobody enqueues any more; from then on every call raises ``closed``.

        False where the tape died before. Raises nothing of the batches: see ``untold``.
        """
        with self.mutex:
            batch = None if self.dead is not None else self.open if self.open.events else self.flying
            leads = batch is not None and self._queue(batch)
        if batch is not None:
            self._settle(batch, leads)
        with self.mutex:
            alive, self.dead = self.dead is None, self.dead or closed
        if self._committers is not None:
            self._committers.leave()
        return alive

    def untold(self) -> JournalError | None:
        """What the caller lost and was not told of, once."""
        return None if self._owed is None else self._owed.pop(_owner(_running_loop()), None)

    def made_good(self, error: JournalError) -> None:
        """What ``error`` told of was written again: it is told to nobody any more."""
        with self.mutex:
            for owner in [owner for owner, owed in (self._owed or {}).items() if owed is error]:
                del self._owed[owner]  # type: ignore[union-attr]

    def _newest(self) -> Batch | None:
        """The batch that holds the newest enqueued event, unless that is durable. Under the mutex."""
        if self.dead is not None:
            raise self.dead
        batch = self.open if self.open.events else self.flying
        if self._owed and (batch is None or _owner(_running_loop()) not in batch.owners):
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
                self._kept = False
                self._take(batch)
        self._store(batch, batch.lines[batch.written :], sync=True)

    def _leave(self, batch: Batch) -> None:
        """A waiter was interrupted. If the lead was kept for it alone, nobody leads."""
        with self.mutex:
            batch.queued -= 1
            nobody = batch is self.open and self._kept and not batch.queued
            if nobody:
                batch.gate, self._kept, self._busy = None, False, bool(batch.waiting)
        if nobody and batch.waiting:
            self._later(self._lead)

    def _store(self, batch: Batch, lines: list[bytes], *, sync: bool) -> None:
        """By the one thread that is ``_busy``: store, then tell everybody and hand the lead on."""
        interrupt: BaseException | None = None
        try:
            failure, alive = self._tape.store(batch, lines, sync)
        except BaseException as error:
            interrupt = error
            failure, alive = self._tape.give_up(batch, error), False
        told: list[Batch] = []
        with self.mutex:
            if failure is not None:
                told = self._fail(failure, alive)
            elif sync:
                self._tape.advance(batch)
                batch.done, self.flying, told = True, None, [batch]
            if told:
                self._previous = batch.gate
            gate = self.open.gate if self.open.queued else None
            self._kept, waiting = gate is not None, bool(self.open.waiting)
            self._busy = self._kept or waiting
        # Without the mutex: those who wake want it.
        for done in told:
            if done.gate is not None:
                done.gate.release()
            for loop, futures in done.waiting.items():
                committers.mailbox(loop).post(futures)
        if gate is not None:
            gate.release()
        elif waiting:
            self._later(self._lead)
        if interrupt is not None:
            raise interrupt

    def _fail(self, error: JournalError, alive: bool) -> list[Batch]:
        """What is lost, and is to be told so."""
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
            batch.error, batch.done = error, True
        return lost

    # ------------------------------------------------------------ event loops

    def _lead(self) -> None:
        """In one of the threads for loops, which the lead was kept for: with all who came until now."""
        with self.mutex:
            batch = self.open
            self._take(batch)
        self._store(batch, batch.lines[batch.written :], sync=True)

    def _later(self, work: committers.Work) -> None:
        with self.mutex:
            if self._committers is None:
                self._committers = committers.shared
                self._committers.enter()
        self._committers.run(work)

    def _preview(self) -> None:
        """In the loop."""
        self._previews = None
        if self.dead is None and self.open.written < len(self.open.lines):
            self._later(self.write_pending)


def _running_loop() -> "asyncio.AbstractEventLoop | None":
    asyncio: Any = sys.modules.get("asyncio")
    return None if asyncio is None else asyncio._get_running_loop()


def _owner(loop: "asyncio.AbstractEventLoop | None") -> object:
    """Who appends or flushes: the running task of ``loop``, else the thread."""
    task: object = None if loop is None else sys.modules["asyncio"].current_task(loop)
    return current_thread() if task is None else task
