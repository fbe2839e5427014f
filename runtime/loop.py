"""A turn of the loop: it drives the steps, and writes the turn's begin, its stops and its end."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import attrs

from ..journal.events import Blocks, JsonObject
from ..journal.writer import wall_ms
from .backends.base import StopMode
from .conversation import Conversation
from .dispatch import Authorize
from .ids import new_id
from .ledger import Ledger
from .model import ModelAdapter, ModelError
from .progress import beginning
from .record import Journal, Publish, SessionEvent
from .steps import Options, Steps, reason_of
from .tasks import all_done
from .tools.base import Tool, text_block


def _tell_nobody(event: SessionEvent) -> None:
    pass


def _kept(tools: Iterable[Tool]) -> tuple[Tool, ...]:
    return tuple(tools)


class Stop:
    """Asks a turn to stop; may be asked again, to escalate. Use it from the event loop's thread."""

    def __init__(self) -> None:
        self._asked: list[tuple[str, StopMode, str | None]] = []
        self._changed = asyncio.Event()

    def request(self, source: str = "user", *, mode: StopMode = "immediate", stop_id: str | None = None) -> None:
        """Returns at once; the turn ends as soon as it can. ``after_step`` lets the current step finish.

        A ``stop_id`` that was given before is the same request again: it counts only where it escalates.
        """
        if stop_id is not None and any(stop_id == known for _, _, known in self._asked):
            if mode == "after_step" or self.immediate:
                return
            stop_id = None
        self._asked.append((source, mode, stop_id))
        self._changed.set()

    @property
    def source(self) -> str | None:
        """Who asked first; None while nobody has."""
        return self._asked[0][0] if self._asked else None

    @property
    def immediate(self) -> bool:
        return any(mode == "immediate" for _, mode, _ in self._asked)


@attrs.frozen
class TurnOutcome:
    """How a turn ended. ``reason`` is what its ``turn/end`` holds."""

    turn_id: str
    run_id: str
    reason: JsonObject


@attrs.frozen(kw_only=True)
class Loop:
    """Runs turns of one session. It holds nothing between turns but what it was given.

    ``journal`` is the session open for writing; ``conversation`` the fold of everything in it so far, which the loop
    keeps up to date. ``session_dir`` takes the blobs. ``new_id``, ``now`` (Unix ms), ``sleep`` and ``chance`` (0…1)
    are replaced in tests.
    """

    journal: Journal
    conversation: Conversation
    model: ModelAdapter
    session_dir: Path
    tools: Iterable[Tool] = attrs.field(default=(), converter=_kept)
    options: Options = attrs.Factory(Options)
    authorize: Authorize | None = None
    publish: Publish = _tell_nobody
    new_id: Callable[[], str] = new_id
    now: Callable[[], int] = wall_ms
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    chance: Callable[[], float] = random.random

    async def run_turn(
        self,
        content: str | Blocks,
        *,
        stop: Stop | None = None,
        turn_id: str | None = None,
        run_id: str | None = None,
        invocation_id: str | None = None,
        message_id: str | None = None,
        max_steps: int | None = None,
    ) -> TurnOutcome:
        """One whole turn, from the user's message to a durable end.

        Raises InvalidEvent where the turn may not begin (one is open), JournalError where the journal failed: then the
        turn has no end until a repair, and the conversation is to be read again. Cancelling the task, however often,
        stops the turn, writes its end and raises CancelledError.
        Any other exception is a defect of an adapter or a hook: the turn ends failed and the exception is raised.
        """
        turn = _Turn(
            self,
            stop or Stop(),
            turn_id or self.new_id(),
            run_id or self.new_id(),
            self.options.max_steps if max_steps is None else max_steps,
        )
        blocks = [text_block(content)] if isinstance(content, str) else content
        return await turn.run(blocks, invocation_id or self.new_id(), message_id or self.new_id())


class _Turn:
    def __init__(self, loop: Loop, stop: Stop, turn_id: str, run_id: str, max_steps: int | None) -> None:
        self._loop = loop
        self._stop = stop
        self._noted = 0
        self._cancelled = False
        self._max_steps = max_steps
        self._turn_id = turn_id
        self._run_id = run_id
        self._ledger = Ledger(
            loop.journal,
            loop.conversation.observe,
            loop.publish,
            turn_id=turn_id,
            run_id=run_id,
            new_id=loop.new_id,
            now=loop.now,
            live_text=loop.options.live_text,
            live_seconds=loop.options.live_seconds,
        )

    async def run(self, content: Blocks, invocation_id: str, message_id: str) -> TurnOutcome:
        """The turn in a task of its own, so that no cancellation of whoever waits keeps its end from being written."""
        turn = asyncio.ensure_future(self._whole(content, invocation_id, message_id))
        cancelled: asyncio.CancelledError | None = None
        while not turn.done():
            try:
                await asyncio.wait({turn})
            except asyncio.CancelledError as error:
                cancelled = cancelled or error
                self._stop_for_cancellation()
        if cancelled is not None and turn.exception() is None:
            raise cancelled
        return turn.result()

    async def _whole(self, content: Blocks, invocation_id: str, message_id: str) -> TurnOutcome:
        self._begin(content, invocation_id, message_id)
        steps = asyncio.ensure_future(self._steps().run())
        stopper = asyncio.ensure_future(self._until_stopped())
        try:
            await asyncio.wait({steps, stopper}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            # An event loop that is being closed cancels every task, this one too.
            self._stop_for_cancellation()
        stopped = not steps.done()
        stopper.cancel()
        ending_beside = [steps, stopper]
        if stopped:
            steps.cancel()
            if self._ledger.failure is None:
                # What was asked becomes durable while bodies still come to their end.
                ending_beside.append(asyncio.ensure_future(self._make_stops_durable()))
        await all_done(ending_beside)
        await all_done(self._ledger.second_try)
        if self._ledger.failure is not None:
            raise self._ledger.failure
        end = asyncio.ensure_future(self._end(reason_of(steps, stopped=stopped, source=self._stop.source)))
        await all_done([end])
        outcome = end.result()
        defect = None if steps.cancelled() else steps.exception()
        if defect is not None and not isinstance(defect, ModelError):
            raise defect
        return outcome

    def _stop_for_cancellation(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._stop.request("cancelled")

    def _begin(self, content: Blocks, invocation_id: str, message_id: str) -> None:
        drafts = beginning(
            self._loop.conversation,
            turn=self._loop.journal.state.turns.last + 1,
            turn_id=self._turn_id,
            run_id=self._run_id,
            invocation_id=invocation_id,
            message_id=message_id,
            content=content,
            created_at=self._loop.now(),
            max_steps=self._max_steps,
        )
        self._ledger.begin(drafts)

    def _steps(self) -> Steps:
        loop = self._loop
        return Steps(
            sink=self._ledger,
            model=loop.model,
            tools={tool.name: tool for tool in loop.tools},
            options=loop.options,
            conversation=loop.conversation,
            session_dir=loop.session_dir,
            turn_id=self._turn_id,
            run_id=self._run_id,
            max_steps=self._max_steps,
            stopped=lambda: self._stop.source is not None,
            new_id=loop.new_id,
            sleep=loop.sleep,
            chance=loop.chance,
            authorize=loop.authorize,
        )

    async def _end(self, reason: JsonObject) -> TurnOutcome:
        """The turn's end and its run's, durable, then told."""
        self._note_stops()
        self._ledger.end(reason, settle=True)
        await self._ledger.barrier()
        return TurnOutcome(self._turn_id, self._run_id, reason)

    async def _until_stopped(self) -> None:
        """Makes each request to stop durable as it comes; done when one is immediate."""
        while not self._stop.immediate:
            await self._stop._changed.wait()
            self._stop._changed.clear()
            if not self._stop.immediate:
                # Beside the step that goes on; what the barrier cannot do fails the step's next one too.
                await self._make_stops_durable()

    async def _make_stops_durable(self) -> None:
        self._note_stops()
        await self._ledger.barrier()

    def _note_stops(self) -> None:
        for source, mode, stop_id in self._stop._asked[self._noted :]:
            self._noted += 1
            self._ledger.stop_requested(stop_id or self._loop.new_id(), source, mode)


__all__ = ["Loop", "Options", "Stop", "TurnOutcome"]
