"""Sessions that nothing runs in: some stay open, the longest idle are closed. No I/O of its own."""

from contextlib import suppress

from ...journal.errors import JournalError
from .backends import Backends
from .entries import Entries
from .entry import Entry
from .parts import Parts


class Idle:
    """At most ``most`` sessions stay open with nothing running."""

    def __init__(self, parts: Parts, entries: Entries, backends: Backends, most: int) -> None:
        self._parts = parts
        self._entries = entries
        self._backends = backends
        self._most = most

    def tidy(self, used: Entry | None = None) -> None:
        """Closes sessions that nothing runs in, the longest idle first, beyond those that may stay open.

        ``used`` was used until now. Of one that could not even be opened nothing is kept.
        """
        if used is not None:
            self._entries.used(used)
        idle = [entry for entry in self._entries if entry.idle]
        for entry in [entry for entry in idle if entry.forgettable]:
            self._entries.forget(entry)
        held = [entry for entry in idle if not entry.forgettable]
        for entry in held[: max(0, len(held) - self._most)]:
            if entry.quarantine() is None:
                self._parts.spawn(self._tidied(entry), f"close session {entry.session_id}")

    async def _tidied(self, entry: Entry) -> None:
        with suppress(JournalError):  # those who subscribed were told
            await self.close(entry)

    async def close(self, entry: Entry) -> None:
        """Closes a session, unless something uses it, now or by the time its backend is disposed."""
        if entry.idle and entry.generation is not None:
            await self._backends.dispose(entry, entry.generation)
        if entry.idle:
            await self._entries.close_journal(entry)
        if entry.forgettable:
            self._entries.forget(entry)
