"""The sessions of a kernel: opened when they are needed, opened again after their journal failed. No I/O of its own."""

import asyncio
from collections.abc import Iterator

from ...journal.errors import JournalError
from ..conversation import Conversation
from ..journals import OpenSession
from .entry import Entry
from .parts import Parts


class Entries:
    """Entries by session id."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._entries: dict[str, Entry] = {}

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))

    def find(self, session_id: str) -> Entry | None:
        return self._entries.get(session_id)

    def get(self, session_id: str) -> Entry:
        """The entry of a session; a new one if there is none."""
        entry = self._entries.get(session_id)
        if entry is None:
            entry = self._entries[session_id] = Entry(session_id)
        return entry

    def used(self, entry: Entry) -> None:
        """It is the one that was used last."""
        if self._entries.pop(entry.session_id, None) is not None:
            self._entries[entry.session_id] = entry

    def forget(self, entry: Entry) -> None:
        if self._entries.get(entry.session_id) is entry:
            del self._entries[entry.session_id]

    def usable(self, session_id: str) -> OpenSession | None:
        """The session if it is open here and its journal has not failed."""
        entry = self._entries.get(session_id)
        return None if entry is None or entry.degraded is not None else entry.open

    async def open_first(self, entry: Entry) -> None:
        if entry.open is None:
            await self.opened(entry)

    async def opened(self, entry: Entry) -> OpenSession:
        if entry.opening is None:
            if entry.open is not None and entry.degraded is None:
                return entry.open
            if entry.degraded is not None and entry.current is not None:
                raise entry.degraded
            entry.opening = self._parts.spawn(self._open(entry), f"open session {entry.session_id}")
        return await asyncio.shield(entry.opening)

    async def conversation(self, entry: Entry, session: OpenSession) -> Conversation:
        """What was said in the session, read when the first turn needs it."""
        while session.conversation is None:
            if entry.reading is None:
                entry.reading = self._parts.spawn(self._read(entry, session), f"read session {entry.session_id}")
            await asyncio.shield(entry.reading)
        return session.conversation

    async def reconciled(self, entry: Entry, session: OpenSession) -> int:
        """Finds out about calls of unknown outcome, about each once for each time that a session is opened."""
        if entry.reconciling is None:
            if not session.journal.state.turns.unknown:
                return 0
            name = f"reconcile session {entry.session_id}"
            entry.reconciling = self._parts.spawn(self._reconcile(entry, session), name)
        return await asyncio.shield(entry.reconciling)

    async def _reconcile(self, entry: Entry, session: OpenSession) -> int:
        try:
            count = await self._parts.reconcile(session)
            if count:
                self._parts.lifecycle.tell("calls_reconciled", entry.session_id, count=count)
            return count
        finally:
            entry.reconciling = None

    async def _read(self, entry: Entry, session: OpenSession) -> None:
        try:
            session.reading()
            # What is not on the disk yet would be missed.
            await session.journal.aflush()
            session.read(await self._parts.journals.conversation(session))
        finally:
            entry.reading = None

    async def _open(self, entry: Entry) -> OpenSession:
        try:
            try:
                # What is being closed has to be; and what failed is given up before it is opened again.
                await self.close_journal(entry)
            except JournalError:
                pass  # it is told to whoever closes it, or is what made it fail
            # What was cut off by a failure gets its end.
            cause = None if entry.degraded is None else "journal_write_failed"
            entry.open = await self._parts.journals.open(entry.session_id, cause=cause)
            entry.degraded = None
            self._parts.lifecycle.tell("session_opened", entry.session_id)
            return entry.open
        finally:
            entry.opening = None
            entry.changed()

    async def close_journal(self, entry: Entry) -> None:
        """Raises JournalError for what was lost. Joins one that is under way."""
        if entry.closing is None:
            session, entry.open = entry.open, None
            if session is None:
                return
            entry.closing = self._parts.spawn(self._close(entry, session), f"close session {entry.session_id}")
        await asyncio.shield(entry.closing)

    async def _close(self, entry: Entry, session: OpenSession) -> None:
        try:
            await self._parts.journals.close(session)
            self._parts.lifecycle.tell("session_closed", entry.session_id)
        except JournalError as error:
            if entry.degraded is None:
                self._parts.lifecycle.tell("session_degraded", entry.session_id, error=error)
            raise
        finally:
            entry.closing = None
            entry.changed()

    def degrade(self, entry: Entry, session: OpenSession, error: JournalError) -> None:
        """Of a session that was opened again meanwhile it says nothing."""
        if entry.degraded is None and entry.open is session:
            entry.degraded = error
            self._parts.lifecycle.tell("session_degraded", entry.session_id, error=error)
            entry.changed()
