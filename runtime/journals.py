"""Sessions open for writing, as the kernel needs them: an asynchronous protocol over the journal, and its files."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

import attrs

from ..journal import files
from ..journal.errors import JournalError
from ..journal.events import Draft, Event
from ..journal.state import State
from ..journal.store import FileStore
from ..journal.writer import Hook, JournalWriter, wall_ms
from ..repair.session import open_session
from .conversation import Conversation
from .opening import conversation_of

T = TypeVar("T")


class SessionJournal(Protocol):
    """A journal open for writing. ``state`` is its fold, enqueued events included: read it, never change it."""

    @property
    def state(self) -> State: ...
    @property
    def next_seq(self) -> int: ...
    @property
    def durable_seq(self) -> int: ...
    @property
    def poisoned(self) -> bool: ...
    def append(self, draft: Draft, /) -> Event: ...
    def append_batch(self, drafts: Sequence[Draft], /) -> list[Event]: ...
    async def aflush(self) -> None: ...
    def made_good(self, error: JournalError, /) -> None: ...


@attrs.define(eq=False)
class OpenSession:
    """One session open for writing in this process.

    ``conversation`` is None until a turn needs it: it takes the whole history. Whoever appends calls ``observe`` with
    what it appended, right then, so that the conversation is never behind. ``watch`` is told then, too.
    """

    session_id: str
    directory: Path
    journal: SessionJournal
    conversation: Conversation | None = None
    #: Calls of unknown outcome whose tools were asked since it was opened, by the number of their tool/call.
    asked: set[int] = attrs.field(factory=set)
    watch: "Watch | None" = None
    #: What was appended while the conversation was read; None while nobody reads it.
    _missed: list[Event] | None = attrs.field(default=None, init=False)

    def observe(self, event: Event) -> None:
        if self.conversation is not None:
            self.conversation.observe(event)
        elif self._missed is not None:
            self._missed.append(event)
        if self.watch is not None:
            self.watch(self, event)

    def reading(self) -> None:
        """From now on what is appended may be missed by who reads."""
        self._missed = []

    def read(self, conversation: Conversation) -> None:
        """It was read; it has what was appended before, and some of what was meanwhile."""
        for event in self._missed or ():
            if event.seq > conversation.seq:
                conversation.observe(event)
        self.conversation, self._missed = conversation, None


#: Is told each event that is appended to a session, before it is on the disk. It must not raise.
Watch = Callable[[OpenSession, Event], None]


class Journals(Protocol):
    """Where the kernel gets its sessions from."""

    async def open(self, session_id: str, *, cause: str | None = None) -> OpenSession:
        """Lock, repair, read. ``cause`` is the failure class of turns that the repair closes, if not a crash.

        Raises SessionNotFound, JournalLocked, JournalDamaged, JournalUnsupported, JournalError.
        """
        ...

    async def conversation(self, session: OpenSession) -> Conversation:
        """What an open session held so far, as far as it is on the disk. Raises JournalError."""
        ...

    async def close(self, session: OpenSession) -> None:
        """Gives the lock up. Raises JournalError for what was lost."""
        ...


class FileJournals:
    """The sessions of a root directory. Implements Journals; the disk is waited for in threads.

    What was begun is finished although its caller was cancelled: a session that nobody waits for any more is closed.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        clock: Callable[[], int] = wall_ms,
        on_append: Hook | None = None,
        fs: files.Fs = files.REAL,
        places: Mapping[str, Path] | None = None,
        watch: Watch | None = None,
    ) -> None:
        """``clock``, ``on_append`` and ``fs`` are handed to every writer (see JournalWriter.open), ``places`` to the
        store, ``watch`` to every session that is opened.
        """
        #: The same root for whoever creates and lists.
        self.store = FileStore(root, clock=clock, on_append=on_append, places=places)
        self._clock = clock
        self._hook = on_append
        self._fs = fs
        self._watch = watch

    async def open(self, session_id: str, *, cause: str | None = None) -> OpenSession:
        """See Journals."""
        opening = _in_thread(lambda: self._open(session_id, cause))
        try:
            return await _to_the_end(opening)
        except asyncio.CancelledError:
            if not opening.cancelled() and opening.exception() is None:
                with suppress(JournalError):
                    await _to_the_end(_in_thread(lambda: _close(opening.result())))
            raise

    async def conversation(self, session: OpenSession) -> Conversation:
        """See Journals."""
        return await _to_the_end(_in_thread(lambda: conversation_of(self.store.path(session.session_id))))

    async def close(self, session: OpenSession) -> None:
        """See Journals. A second call does nothing."""
        await _to_the_end(_in_thread(lambda: _close(session)))

    def _open(self, session_id: str, cause: str | None) -> OpenSession:
        writer = open_session(
            self.store.path(session_id), cause=cause, clock=self._clock, on_append=self._hook, fs=self._fs
        )
        return OpenSession(session_id, writer.session_dir, writer, watch=self._watch)


class ExclusiveJournals:
    """The sessions of a root, none of which is opened while other work here holds its lock. Implements Journals."""

    def __init__(self, journals: FileJournals) -> None:
        self._journals = journals
        self._working: dict[str, asyncio.Future[Any]] = {}

    async def open(self, session_id: str, *, cause: str | None = None) -> OpenSession:
        await self._free(session_id)
        return await self._journals.open(session_id, cause=cause)

    async def conversation(self, session: OpenSession) -> Conversation:
        return await self._journals.conversation(session)

    async def close(self, session: OpenSession) -> None:
        await self._journals.close(session)

    async def alone(self, session_id: str, work: Callable[[], T]) -> T:
        """What ``work`` gives, in a thread. It is done to its end although the caller is cancelled."""
        await self._free(session_id)
        working = self._working[session_id] = asyncio.get_running_loop().run_in_executor(None, work)
        working.add_done_callback(lambda done: self._forget(session_id, done))
        return await asyncio.shield(working)

    async def done(self) -> None:
        """Waits for all work that holds a lock here: then this process has none any more."""
        if working := [each for each in self._working.values() if not each.done()]:
            await asyncio.wait(working)

    async def _free(self, session_id: str) -> None:
        while (working := self._working.get(session_id)) is not None and not working.done():
            await asyncio.wait({working})

    def _forget(self, session_id: str, done: "asyncio.Future[Any]") -> None:
        if self._working.get(session_id) is done:
            del self._working[session_id]


def _close(session: OpenSession) -> None:
    """Close, and raise what that lost: those who appended are not asked any more. A dead handle has said it before."""
    writer = session.journal
    assert isinstance(writer, JournalWriter), "it was opened here"
    lost: JournalError | None = None
    if not writer.poisoned:
        try:
            writer.flush()
        except JournalError as error:
            lost = error
    try:
        writer.close()
    finally:
        if lost is not None:
            raise lost


def _in_thread(work: Callable[[], T]) -> "asyncio.Future[T]":
    """Not a task: a loop that shuts down cancels those, and the thread would go on unseen."""
    return asyncio.get_running_loop().run_in_executor(None, work)


async def _to_the_end(work: "asyncio.Future[T]") -> T:
    """The result of ``work``, which no cancellation ends; a caller that was cancelled is so when it is done."""
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not work.cancelled():
            work.exception()
        raise cancelled
    return work.result()
