"""What the kernel holds of one session: its journal, its backend, its runs in order, a stop in flight. No I/O."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...journal.errors import JournalError
from ..errors import SessionQuarantined, describe
from ..journals import OpenSession
from .generations import Generation

if TYPE_CHECKING:
    from .run import Run
    from .stops import StopAttempt


class Entry:
    """One session. ``runs`` are those that were started and have not exited, in the order of their starts: the first
    has the session's turn slot. ``degraded`` is the failure of its journal, until that was opened again.
    """

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.open: OpenSession | None = None
        self.opening: asyncio.Task[OpenSession] | None = None
        self.reading: asyncio.Task[None] | None = None
        self.reconciling: asyncio.Task[int] | None = None
        self.closing: asyncio.Task[None] | None = None
        self.degraded: JournalError | None = None
        self.generation: Generation | None = None
        self.building: asyncio.Task[Generation] | None = None
        #: How often its backend was to be replaced.
        self.invalidations = 0
        self.runs: list[Run] = []
        self.attempt: StopAttempt | None = None
        #: Others than runs that use the journal just now.
        self.users = 0
        self._waiting: set[asyncio.Future[None]] = set()

    def changed(self) -> None:
        """Lets everybody who waits look again."""
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def until(self, true: Callable[[], bool]) -> None:
        while not true():
            future = asyncio.get_running_loop().create_future()
            self._waiting.add(future)
            try:
                await future
            finally:
                self._waiting.discard(future)

    def is_unused(self) -> bool:
        return not self.runs and not self.users

    @property
    def current(self) -> "Run | None":
        """The run that has begun and has not exited; there is at most one."""
        return self.runs[0] if self.runs and self.runs[0].begun else None

    @property
    def idle(self) -> bool:
        used = (self.attempt, self.opening, self.building)
        return not self.runs and not self.users and all(one is None for one in used)

    @property
    def forgettable(self) -> bool:
        """Does it hold nothing that the next one to ask would miss?"""
        held = (self.open, self.closing, self.generation, self.degraded)
        return self.idle and all(one is None for one in held)

    def quarantine(self) -> SessionQuarantined | None:
        """Why no backend may be used in this session now, if so."""
        generation = self.generation
        if generation is None:
            return None
        if generation.phase == "failed" and generation.disposal_failure is not None:
            return SessionQuarantined(
                f"session {self.session_id} is permanently quarantined: a backend could not be disposed "
                f"({describe(generation.disposal_failure)}); "
                "what is in the journal is safe, start a new process to go on",
                permanent=True,
            )
        if generation.failure is not None and generation.runs:
            return SessionQuarantined(
                f"session {self.session_id} is quarantined: its backend failed to stop "
                f"({describe(generation.failure)}) and its "
                "run has not ended; try again when it has",
                permanent=False,
            )
        return None
