"""One attempt to stop a run, shared by all who ask: backend and interactions side by side, then the turn's end."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import attrs

from ...journal.errors import JournalError
from ...journal.state import State
from ..backends.base import StopMode, StopReason
from ..tasks import failure_of, seen
from .failures import combine
from .generations import Deadlines, Generation, Spawn
from .run import Run

#: The fold → ids of messages.
Retract = Callable[[State], list[str]]


@attrs.frozen
class StopRequest:
    """Who asked for a stop, as its turn/stop_requested keeps it. ``retract`` gives the messages that are taken back in
    the same batch, of those that wait by then. ``client`` is whoever asked through a host.
    """

    stop_id: str
    source: str
    mode: StopMode = "immediate"
    retract: Retract | None = None
    client: str | None = None


#: Ends a turn that was handed over, for who asked.
GiveUp = Callable[[StopRequest], Awaitable[None]]


class StopAttempt:
    """``future`` ends when the turn's end is durable, or could not be made so, and raises what failed.

    It may end while the backend's ``send`` goes on.
    """

    def __init__(
        self,
        run: Run,
        request: StopRequest,
        *,
        reason: StopReason,
        deadlines: Deadlines,
        spawn: Spawn,
        give_up: GiveUp | None,
    ) -> None:
        self.run = run
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.future.add_done_callback(seen)
        self._mode = request.mode
        self._reason = reason
        self._escalated = asyncio.Event()
        self._deadlines = deadlines
        self._spawn = spawn
        #: Ends a turn that was handed over before the stop came; None: the handoff stands, unless another stop comes.
        self.give_up = give_up
        #: Requests to stop that are not in the journal yet.
        self._unnoted = [request]
        self._beside: list[asyncio.Task[Any]] = []
        run.claim_terminal("stop", {"kind": "aborted", "source": request.source})

    def escalate(self, request: StopRequest) -> None:
        """What was to wait for the end of the step happens at once."""
        if self._mode == "after_step" and not self._escalated.is_set():
            self._unnoted.append(request)
            self._escalated.set()

    async def carry_out(self) -> BaseException | None:
        """What failed, as everybody is told; the turn has its end, if the journal took it."""
        run = self.run
        if run.claimant == "handoff":
            return await self._handed_over()
        try:
            await asyncio.shield(run.started)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            # It was claimed as stopped before it failed; where the journal took its begin, it takes its end.
            if not run.lost:
                with suppress(JournalError):
                    await run.end()
            return error
        failures: list[BaseException | None] = [self._note()]
        generation = run.generation
        assert generation is not None
        if self._mode == "after_step":
            failures.append(await self._after_step(generation))
        else:
            failures += await self._at_once(generation)
        try:
            # Closes the interactions too, where that was not tried yet.
            await run.end()
        except JournalError as error:
            failures.append(error)
        # Also for what nobody has waited for: a stop that was escalated, a send that went on too long.
        failures.append(await generation.given_up())
        failures += [failure for failure in run.failures if failure not in failures]
        failures += [failure_of(task) for task in await self._settled()]
        return combine(f"stopping run {run.identity.run_id} failed in several ways", failures)

    async def _handed_over(self) -> BaseException | None:
        """The run was sealed before the stop came: the turn is ended for the successor, which never runs."""
        run, request = self.run, self._unnoted[0]
        await run.entry.until(lambda: run.ended or run.exited)
        failures: list[BaseException | None] = [*run.failures]
        if self.give_up is not None and run.handing.pause is not None:
            try:
                await self.give_up(request)
            except JournalError as error:
                failures.append(error)
        return combine(f"stopping run {run.identity.run_id}, which was handed over, failed in several ways", failures)

    async def _settled(self) -> "list[asyncio.Task[Any]]":
        if self._beside:
            await asyncio.wait(self._beside)
        return self._beside

    def _note(self) -> BaseException | None:
        """What was asked goes to the journal, made durable beside the rest."""
        ledger = self.run.ledger
        assert ledger is not None
        assert self.run.session is not None
        if ledger.sealed or ledger.failure is not None:
            return None
        try:
            while self._unnoted:
                request = self._unnoted.pop(0)
                ledger.stop_requested(
                    request.stop_id,
                    request.source,
                    request.mode,
                    retract=None if request.retract is None else request.retract(self.run.session.journal.state),
                    client=request.client,
                )
        except JournalError as error:
            return error
        self._beside.append(self._spawn(ledger.barrier(), "stop requested"))
        return None

    async def _at_once(self, generation: Generation) -> list[BaseException | None]:
        """Backend and interactions side by side, the backend first."""
        run = self.run
        tasks: list[asyncio.Task[Any]] = []
        if not (run.sent and run.stream_ended):
            entered = asyncio.Event()
            tasks.append(self._spawn(generation.stop(self._reason, "immediate", entered), "stop backend"))
            await entered.wait()
        tasks.append(self._spawn(run.close_interactions(), "close interactions"))
        await asyncio.wait(tasks)
        return [failure_of(task) for task in tasks]

    async def _after_step(self, generation: Generation) -> BaseException | None:
        """Waits for the end of the step, a failure, an escalation or the deadline; the latter two stop at once.

        The interactions stay open meanwhile: the step may need an answer to come to its end.
        """
        run = self.run
        if run.sent and run.stream_ended:
            return None
        entered = asyncio.Event()
        stop = self._spawn(generation.stop(self._reason, "after_step", entered), "stop backend after step")
        # An escalation comes after it.
        await entered.wait()
        rest = self._spawn(self._at_rest(stop), "wait for the end of the step")
        escalated = self._spawn(self._escalated.wait(), "wait for an escalation")
        await asyncio.wait({rest, escalated}, timeout=self._deadlines.after_step, return_when=asyncio.FIRST_COMPLETED)
        escalated.cancel()
        if rest.done():
            return failure_of(rest)
        rest.cancel()
        failures: list[BaseException | None] = [self._note()]
        failures += await self._at_once(generation)
        # It was to return at the end of the step, which is not waited for any more.
        stop.cancel()
        return combine(f"stopping run {run.identity.run_id} at once failed in several ways", failures)

    async def _at_rest(self, stop: "asyncio.Task[None]") -> None:
        await asyncio.shield(stop)
        await self.run.entry.until(lambda: self.run.step_ended or self.run.stream_ended)
