"""What a consumer of a turn holds: its events to read, and a way to stop it. No I/O."""

import asyncio
from collections.abc import Callable
from types import TracebackType

from ...journal.events import JsonObject
from ..lifecycle import log
from ..session_events import SessionEvent
from .run import Run


class TurnStream:
    """A turn's events, for one reader; the turn begins when the first is asked for, or with ``async with``.

    A reader that stops reading loses events, not the turn: the journal has it all. Leaving ``async with``, or
    ``aclose``, stops a turn that has not ended.

    Iterating raises what kept the turn from beginning (a JournalError, SessionQuarantined, BackendUnknown …), and after
    ``complete`` what failed while it was cleaned up. A start that was stopped before it began just ends.
    """

    def __init__(self, run: Run, start: Callable[[Run], None], close: Callable[[Run], "asyncio.Task[None]"]) -> None:
        self._run = run
        self._start = start
        self._close = close
        self._begun = False
        self._closing: asyncio.Task[None] | None = None

    @property
    def session_id(self) -> str:
        return self._run.identity.session_id

    @property
    def turn_id(self) -> str:
        return self._run.identity.turn_id

    @property
    def run_id(self) -> str:
        return self._run.identity.run_id

    @property
    def dropped(self) -> int:
        """So many events were dropped because nobody read."""
        return self._run.delivery.dropped

    @property
    def reason(self) -> JsonObject | None:
        """How the turn ended, as its ``turn/end`` says; None while it has none on disk, also if it was handed over."""
        return self._run.reason if self._run.ended and not self._run.lost else None

    @property
    def pause(self) -> JsonObject | None:
        """The data of the handoff/pause that has sealed the run, once it is on disk: a successor finishes the turn."""
        return self._run.handing.pause if self._run.ended and not self._run.lost else None

    def __aiter__(self) -> "TurnStream":
        return self

    async def __anext__(self) -> SessionEvent:
        self._begin()
        event = await self._run.delivery.get()
        if event is None:
            raise StopAsyncIteration
        return event

    async def started(self) -> None:
        """Waits until the turn's begin is durable. Raises what kept it from beginning; a cancelled start too.

        Begins the turn if nobody has.
        """
        self._begin()
        await self._run.has_started()

    async def aclose(self) -> None:
        """Stops the turn if it has not ended, and waits for it. Raises what failed; joins a stop that is in flight.

        Everybody who closes it meanwhile is told the same; a call after that does nothing.
        """
        self._begun = True
        if self._closing is None:
            self._closing = self._close(self._run)
        if not self._closing.done():
            await asyncio.shield(self._closing)

    async def __aenter__(self) -> "TurnStream":
        self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if not self._begun:
            log.warning(
                "a turn of session=%s was never begun: nobody iterated what `send` gave, or used `async with`",
                self.session_id,
            )

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._start(self._run)
