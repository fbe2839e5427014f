"""Sessions open for writing without files and threads: real events, real folds, and syncs that a test decides over."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from random import Random
from threading import current_thread
from typing import Any
from weakref import WeakKeyDictionary

import attrs

from maka.journal.codec import ZERO, check_shape, encode, serialize
from maka.journal.errors import (
    InvalidEvent,
    JournalError,
    JournalLocked,
    JournalWriteError,
    SessionNotFound,
)
from maka.journal.events import Draft, Event
from maka.journal.findings import Verdict
from maka.journal.history import History
from maka.journal.state import State
from maka.repair.closers import plan_closers
from maka.repair.plan import diagnose
from maka.runtime.conversation import Conversation
from maka.runtime.journals import OpenSession, Watch

from . import chain, drafts
from .legal import assert_legal

#: The time at which event 0 of every session was written, Unix milliseconds.
BEGAN = 1_790_000_000_000


@attrs.define(eq=False)
class _Batch:
    """What one sync settles. ``owners`` have appended to it; ``waiting`` wait for it."""

    events: list[Event] = attrs.field(factory=list)
    owners: set[object] = attrs.field(factory=set)
    waiting: list[asyncio.Future[None]] = attrs.field(factory=list)
    error: Exception | None = None


def in_stretches(events: Iterable[Event], most: int = 2) -> Callable[[], Coroutine[Any, Any, list[Event]]]:
    """Gives the next of the events each time, as what reads a file does, and none at the end."""
    left = list(events)

    async def following() -> list[Event]:
        await asyncio.sleep(0)
        taken, left[:] = left[:most], left[most:]
        return taken

    return following


class MemoryJournal:
    """One session open for writing. ``events`` are all of it, enqueued ones included; ``durable`` so many of them are.

    As with a file: a failed write loses everything that is not durable, each task that appended a part of it is told
    once, and the handle lives on; any other failure kills the handle.
    """

    def __init__(self, session_id: str, stored: list[Event], on_sync: "Callable[[MemoryJournal], Awaitable[None]]"):
        self.session_id = session_id
        self.events = list(stored)
        self.state = fold(stored)
        self.dead: Exception | None = None
        self.syncs = 0
        self._stored = stored
        self._on_sync = on_sync
        self._open = _Batch()
        self._flying: _Batch | None = None
        self._leader: asyncio.Task[None] | None = None
        self._owed: WeakKeyDictionary[object, Exception] = WeakKeyDictionary()

    @property
    def durable(self) -> int:
        return len(self._stored)

    @property
    def durable_seq(self) -> int:
        return len(self._stored) - 1

    @property
    def poisoned(self) -> bool:
        return self.dead is not None

    @property
    def next_seq(self) -> int:
        return len(self.events)

    def append(self, draft: Draft) -> Event:
        """Checked and enqueued. Raises InvalidEvent, and what the caller or the journal has lost before."""
        return self.append_batch([draft])[0]

    def append_batch(self, drafts: Sequence[Draft]) -> list[Event]:
        """All or none, also in a crash."""
        self._check()
        cleaned = [serialize(draft)[0] for draft in drafts]
        for draft in cleaned:
            check_shape(draft)
        events: list[Event] = []
        last = self.events[-1]
        try:
            for more, draft in zip(reversed(range(len(cleaned))), cleaned, strict=True):
                self.state.check(draft)
                last = _next(last, draft, more)
                events.append(last)
                self.state.apply(last)
        except InvalidEvent:
            self.state = fold(self.events)
            raise
        self.events += events
        self._open.events += events
        self._open.owners.add(_owner())
        return events

    def aflush(self) -> Coroutine[Any, Any, None]:
        """Asks ``on_sync``; then what was enqueued before that is durable. Cancelling the wait takes nothing back."""
        self._check()
        return self._flush()

    async def _flush(self) -> None:
        self._check()
        batch = self._open if self._open.events else self._flying
        if self._owed and (batch is None or _owner() not in batch.owners):
            # Someone flushes for another whose events were lost meanwhile.
            raise next(iter(self._owed.values()))
        if batch is None:
            return
        waiting = asyncio.get_running_loop().create_future()
        batch.waiting.append(waiting)
        if self._leader is None:
            self._leader = asyncio.create_task(self._lead(), name=f"sync of {self.session_id}")
        await waiting
        if batch.error is not None:
            self.untold()
            raise batch.error

    async def _lead(self) -> None:
        while self._open.waiting and self.dead is None:
            batch, self._open = self._open, _Batch()
            self._flying = batch
            self.syncs += 1
            try:
                await self._on_sync(self)
                if self.dead is not None:
                    raise self.dead
            except Exception as error:
                self._fail(error)
            else:
                self._flying = None
                self._stored += batch.events
                self._tell(batch)
        self._leader = None

    def _fail(self, error: Exception) -> None:
        lost = [batch for batch in (self._flying, self._open) if batch is not None]
        self._flying, self._open = None, _Batch()
        del self.events[self.durable :]
        self.state = fold(self.events)
        if not isinstance(error, JournalWriteError) or error.poisoned:
            self.dead = self.dead or error
        for batch in lost:
            for owner in batch.owners:
                self._owed[owner] = error
            batch.error = error
            self._tell(batch)

    def _tell(self, batch: _Batch) -> None:
        for waiting in batch.waiting:
            if not waiting.done():
                waiting.set_result(None)

    def made_good(self, error: JournalError) -> None:
        for owner in [owner for owner, owed in self._owed.items() if owed is error]:
            del self._owed[owner]

    def _check(self) -> None:
        if self.dead is not None:
            raise self.dead
        if (error := self.untold()) is not None:
            raise error

    def untold(self) -> Exception | None:
        """What the running task has lost and was not told of, once."""
        return self._owed.pop(_owner(), None)

    def kill(self, error: Exception) -> None:
        """From now on nothing becomes durable, and every call raises this."""
        self.dead = self.dead or error

    def left(self, chance: Random | None) -> list[Event]:
        """What is there after a crash: the durable events, and of the others as many whole batches as ``chance``
        says."""
        written = self.events[self.durable :]
        ends = [0, *(index + 1 for index, event in enumerate(written) if not event.more)]
        return [*self._stored, *written[: chance.choice(ends) if chance is not None else 0]]


def _owner() -> object:
    """Who appends or flushes: the running task, else the thread."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return current_thread() if task is None else task


async def _yields(_: object) -> None:
    await asyncio.sleep(0)


class MemoryJournals:
    """Implements Journals.

    ``on_sync(journal)`` is awaited in each sync: it may take time, call whatever it likes, and raise what the sync
    ends with. ``on_open(session_id)`` likewise before a session is opened. Both may be set at any time.
    """

    def __init__(self, directory: Path = Path("/nonexistent")) -> None:
        self.on_sync: Callable[[MemoryJournal], Awaitable[None]] = _yields
        self.on_open: Callable[[str], Awaitable[None]] = _yields
        #: Is told what is appended to sessions that are opened from now on.
        self.watch: Watch | None = None
        self._directory = directory
        self._stored: dict[str, list[Event]] = {}
        #: None while it is being opened.
        self._held: dict[str, MemoryJournal | None] = {}
        self._dead: Exception | None = None

    def create(self, session_id: str, **header: Any) -> None:
        """A session with nothing but its header."""
        assert session_id not in self._stored
        draft = drafts.header(session_id, **header)
        check_shape(draft)
        self._stored[session_id] = [_next(None, draft, 0)]

    async def open(self, session_id: str, *, cause: str | None = None) -> OpenSession:
        """Raises SessionNotFound, JournalLocked while it is open, and what ``on_open`` raises."""
        if self._dead is not None:
            raise self._dead
        if session_id not in self._stored:
            raise SessionNotFound(f"there is no session {session_id!r}; create it first")
        if session_id in self._held:
            raise JournalLocked(f"session {session_id!r} is open for writing; close it there first")
        self._held[session_id] = None
        try:
            await self.on_open(session_id)
            if self._dead is not None:
                raise self._dead
        except BaseException:
            del self._held[session_id]
            raise
        stored = self._stored[session_id]
        closers = plan_closers(fold(stored), cause=cause).drafts
        for more, draft in zip(reversed(range(len(closers))), closers, strict=True):
            stored.append(_next(stored[-1], draft, more))
        journal = self._held[session_id] = MemoryJournal(session_id, stored, self._sync)
        return OpenSession(session_id, self._directory / session_id, journal, watch=self.watch)

    async def conversation(self, session: OpenSession) -> Conversation:
        """What is durable by now, after a moment in which more may be appended."""
        stored = list(self._stored[session.session_id])
        await asyncio.sleep(0)
        return Conversation(stored)

    async def close(self, session: OpenSession) -> None:
        """Flushes. Raises JournalError for what was lost and not told; the session is closed in any case."""
        journal = self._held[session.session_id]
        assert journal is not None
        assert journal is session.journal, "it was closed before"
        try:
            if journal.dead is None:
                await journal.aflush()
            elif (error := journal.untold()) is not None:
                raise error
        finally:
            journal.kill(JournalError(f"session {session.session_id!r} is closed; open it again"))
            del self._held[session.session_id]

    async def _sync(self, journal: MemoryJournal) -> None:
        await self.on_sync(journal)

    # ------------------------------------------------------------ for the test

    def is_open(self, session_id: str) -> bool:
        return session_id in self._held

    def events(self, session_id: str) -> list[Event]:
        """The durable events."""
        return list(self._stored[session_id])

    def of(self, session_id: str, type_: str) -> list[dict[str, Any]]:
        """The data of the durable events of one type."""
        return [event.data for event in self._stored[session_id] if event.type == type_]

    def crash(self, chance: Random | None = None) -> "MemoryJournals":
        """The process dies: no handle of this does anything any more. Returns what the next process finds.

        That is what is durable, and with ``chance`` also some of what was only written: whole batches, oldest first.
        """
        after = MemoryJournals(self._directory)
        self._dead = JournalError("the process has crashed; use what crash() returned")
        for session_id, stored in self._stored.items():
            held = self._held.get(session_id)
            after._stored[session_id] = list(stored) if held is None else held.left(chance)
            if held is not None:
                held.kill(self._dead)
        return after


def fold(events: Iterable[Event]) -> State:
    state = State()
    for event in events:
        state.apply(event)
    return state


def _next(last: Event | None, draft: Draft, more: int) -> Event:
    """The event that ``draft`` becomes behind ``last``."""
    seq, sum_, offset = (0, ZERO, 0) if last is None else (last.seq + 1, last.sum, last.offset + last.length + 1)
    line, sum_ = encode(draft, seq, BEGAN + seq, sum_, more)
    return Event(seq, BEGAN + seq, draft.type, draft.data, sum_, draft.ignorable, more, offset, len(line))


def raw(events: Iterable[Event]) -> bytes:
    """The file that these events are."""
    lines, sum_ = [], ZERO
    for event in events:
        draft = Draft(event.type, event.data, event.ignorable)
        line, sum_ = encode(draft, event.seq, event.ts, sum_, event.more)
        lines.append(line + b"\n")
    return b"".join(lines)


def check_legal(events: Sequence[Event]) -> Verdict:
    """Asserts what holds of every history, whenever it was cut off; returns ``healthy`` or ``interrupted``.

    The chain is whole and nobody has changed an event's data since; the fold finds nothing that no correct writer
    produces; each turn ends at most once and each call has at most one result; the provider history is legal after
    every event.
    """
    written = raw(events)
    assert [event["sum"] for event in chain.check(written)] == [event.sum for event in events]
    found = diagnose(written)
    told = [f"{finding.code}: {finding.message}" for finding in found.findings]
    assert found.verdict in ("healthy", "interrupted"), told
    assert not [line for line in told if line.startswith(("unanswered_call", "blob_missing"))], told
    ends = [event.data["turn_id"] for event in events if event.type == "turn/end"]
    assert len(ends) == len(set(ends)), f"a turn has ended twice: {ends}"
    history = History()
    for event in events:
        history.apply(event)
        assert_legal(history.messages())
    return found.verdict
