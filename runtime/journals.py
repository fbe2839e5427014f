"""Sessions open for writing, as the kernel needs them: an asynchronous protocol over the journal, and its files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import attrs

from ..journal.events import Draft, Event
from ..journal.state import State
from .conversation import Conversation


class SessionJournal(Protocol):
    """A journal open for writing. ``state`` is its fold, enqueued events included: read it, never change it."""

    @property
    def state(self) -> State: ...
    @property
    def next_seq(self) -> int: ...
    def append(self, draft: Draft, /) -> Event: ...
    def append_batch(self, drafts: Sequence[Draft], /) -> list[Event]: ...
    async def aflush(self) -> None: ...


@attrs.define(eq=False)
class OpenSession:
    """One session open for writing in this process.

    Whoever appends lets ``conversation`` observe what it appended, right then: the fold is never behind.
    """

    session_id: str
    directory: Path
    journal: SessionJournal
    conversation: Conversation


class Journals(Protocol):
    """Where the kernel gets its sessions from."""

    async def open(self, session_id: str, *, cause: str | None = None) -> OpenSession:
        """Lock, repair, read. ``cause`` is the failure class of turns that the repair closes, if not a crash.

        Raises SessionNotFound, JournalLocked, JournalDamaged, JournalUnsupported, JournalError.
        """
        ...

    async def close(self, session: OpenSession) -> None:
        """Gives the lock up. Raises JournalError for what was lost."""
        ...
