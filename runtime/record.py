"""A turn's way into the journal: append, make durable, only then tell. No I/O of its own."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from ..journal.errors import InvalidEvent, JournalError, JournalWriteError
from ..journal.events import Draft, Event, JsonObject
from ..journal.state import State
from .errors import describe
from .session_events import SessionEvent
from .tasks import seen


class Journal(Protocol):
    """What a turn needs of a session that is open for writing. ``state`` is the fold of all that was appended."""

    @property
    def state(self) -> State: ...
    def append(self, draft: Draft, /) -> Event: ...
    def append_batch(self, drafts: Sequence[Draft], /) -> list[Event]: ...
    async def aflush(self) -> None: ...
    def made_good(self, error: JournalError, /) -> None: ...


Publish = Callable[[SessionEvent], None]


class Recorder:
    """Appends a turn's events, and publishes what follows from them once they are durable.

    After a failure nothing is appended any more: everything raises that same error.
    """

    def __init__(
        self,
        journal: Journal,
        observe: Callable[[Event], None],
        publish: Publish,
        turn_id: str,
        now: Callable[[], int],
    ) -> None:
        self._journal = journal
        self._observe = observe
        self._publish = publish
        self._turn_id = turn_id
        self._now = now
        self._appended = 0
        # Of what was appended: up to where something waits for a sync, and up to where everything is durable.
        self._due = 0
        self._synced = 0
        self._events = 0
        self._unsynced: list[Draft] = []
        self._untold: list[tuple[int, SessionEvent]] = []
        self._again: tuple[JournalError, asyncio.Future[None]] | None = None
        self._in_doubt = False
        self.failure: JournalError | None = None

    def add(self, type_: str, data: JsonObject, *, ignorable: bool = False) -> Event:
        """Append one event. Raises InvalidEvent, and the journal's failure if there was one."""
        self._refuse_after_failure()
        draft = Draft(type_, data, ignorable)
        with self._failing():
            event = self._journal.append(draft)
        self._note(draft, event)
        return event

    def add_batch(self, drafts: Sequence[Draft]) -> list[Event]:
        """Append all of them as one atomic batch, or none."""
        self._refuse_after_failure()
        with self._failing():
            events = self._journal.append_batch(drafts)
        for draft, event in zip(drafts, events, strict=True):
            self._note(draft, event)
        return events

    def tell(self, kind: str, **data: Any) -> None:
        """Publish behind the next barrier."""
        self._untold.append((self._appended, self._event(kind, data)))

    def tell_now(self, kind: str, **data: Any) -> None:
        """Publish at once: for previews, which nothing durable stands for yet."""
        self._publish(self._event(kind, data))

    async def barrier(self) -> None:
        """Everything appended so far is durable, and told. Raises JournalError; then nothing more may happen.

        A failed write is tried once more where it carries a tool's result: the tool ran and will not run again.
        """
        self._refuse_after_failure()
        upto, unsynced = self._appended, list(self._unsynced)
        try:
            await self._journal.aflush()
        except asyncio.CancelledError:
            self._in_doubt = True
            raise
        except JournalError as error:
            # Whoever waited for the same batch gets the same error, and waits for the same second try.
            if self._again is None or self._again[0] is not error:
                # At once: what runs beside this appends nothing meanwhile.
                self.failure = error
                self._again = error, asyncio.ensure_future(self._write_again(error, upto, unsynced))
                # Whoever waits for it may be cancelled; what it fails with stands in ``failure``.
                self._again[1].add_done_callback(seen)
            await asyncio.shield(self._again[1])
        self._synced = max(self._synced, upto)
        # Another barrier may have been here meanwhile and taken a part off the front.
        self._unsynced = self._unsynced[len(self._unsynced) - (self._appended - upto) :]
        while self._untold and self._untold[0][0] <= upto:
            self._publish(self._untold.pop(0)[1])

    @property
    def untold(self) -> bool:
        """Does something wait for the next barrier: an event to be synced (previews aside), a client to be told?"""
        return bool(self._untold) or self._due > self._synced

    @property
    def second_try(self) -> "list[asyncio.Future[None]]":
        """The newest second try, if there was one; it goes on although whoever wanted it was cancelled."""
        return [self._again[1]] if self._again is not None else []

    async def _write_again(self, error: JournalError, upto: int, unsynced: list[Draft]) -> None:
        if (
            not isinstance(error, JournalWriteError)
            or error.poisoned
            # Whoever waited for an earlier one was cancelled: a part of this may stand durably already.
            or self._in_doubt
            # What was appended behind this batch may be lost or not: then nobody can say what to write.
            or self._appended != upto
            or not any(draft.type == "tool/result" for draft in unsynced)
        ):
            raise error
        try:
            self._journal.append_batch(unsynced)
            await self._journal.aflush()
        except JournalError:
            raise error from None
        # Another task appended a part of it, and may never come back to be told.
        self._journal.made_good(error)
        self.failure = None

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except InvalidEvent:
            raise
        except JournalError as error:
            self.failure = error
            raise
        except Exception as error:
            # A hook of the program's own that sees each event: what it kept from being written nobody knows.
            self.failure = JournalError(f"an event could not be written: {describe(error, typed=True)}; mend the hook")
            raise self.failure from error

    def _refuse_after_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _note(self, draft: Draft, event: Event) -> None:
        self._appended += 1
        if not draft.ignorable:
            self._due = self._appended
        self._unsynced.append(draft)
        self._observe(event)

    def _event(self, kind: str, data: JsonObject) -> SessionEvent:
        self._events += 1
        return SessionEvent(kind, f"{self._turn_id}:{self._events}", self._turn_id, self._now(), data)


__all__ = ["Journal", "Publish", "Recorder", "SessionEvent"]
