"""One run from its claim to its exit: what is known of it, and how its turn is ended exactly once."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal

from ...journal.errors import InvalidEvent, JournalError
from ...journal.events import Draft, JsonObject
from ..errors import BackendTimeout, RuntimeInteractionFailStopError, describe
from ..journals import OpenSession
from ..ledger import Ledger
from ..session_events import SessionEvent
from ..tasks import all_done, seen
from .asking import RunInteractions
from .authority import ClosureReason, InteractionOwner, MessageOwner, RunIdentity
from .delivery import Delivery, SessionListener
from .entry import Entry
from .generations import Deadlines, Generation, Spawn
from .handing import Handing
from .openings import Opening, unopened
from .reasons import failed

Claimant = Literal["event", "stop", "handoff"]
Responder = Callable[[JsonObject], Awaitable[Any]]
#: So often the turn's end is written where all tasks of the loop are cancelled, that one among them.
_TRIES: Final = 2


class Cancelled(Exception):
    """The start was cancelled before it began."""


class Run:
    """A start, and what becomes of it.

    ``begun``: its first batch was handed to the writer; before that it can be cancelled and leaves nothing.
    ``started``: its begin succeeded (or failed, then it holds that error). ``sent``: the backend was entered.
    ``claimant`` and ``reason``: who decided how the turn ends, and how; a run that is handed over has no reason.
    ``ended``: the turn's end was tried, or the pause in its place.
    """

    def __init__(
        self,
        entry: Entry,
        identity: RunIdentity,
        *,
        invocation_id: str,
        opening: Opening,
        listener: SessionListener | None,
        new_id: Callable[[], str],
        deadlines: Deadlines,
        spawn: Spawn,
        overdue: "Callable[[Run], None]",
        degrade: "Callable[[Run, JournalError], None]",
    ) -> None:
        loop = asyncio.get_running_loop()
        self.entry = entry
        self.identity = identity
        self.invocation_id = invocation_id
        self.opening = opening
        self.delivery = Delivery(listener=listener)
        self.generation: Generation | None = None
        self.ledger: Ledger | None = None
        #: The journal that it was begun in.
        self.session: OpenSession | None = None
        self.owner: InteractionOwner | None = None
        self.messages: MessageOwner | None = None
        self.asking = RunInteractions(self, new_id)
        self.handing = Handing(self)
        self.begun = False
        #: The begin of it is durable, and was made so by this process: its backend may be called, once.
        self.permitted = False
        self.cancelled = False
        self.sent = False
        self.step_ended = False
        self.stream_ended = False
        self.exited = False
        #: Its journal failed, or its begin was refused: nothing more of it is written.
        self.lost = False
        #: The backend said how it ends; what it yielded behind that was dropped, and that was said.
        self.completed = self.dropped = False
        #: ``run/settled`` was handed to the writer.
        self.settled = False
        #: What was said is being made durable and told, or will soon be.
        self.telling = False
        self._tell_handle: asyncio.TimerHandle | None = None
        self._responses: set[asyncio.Task[None]] = set()
        self.claimant: Claimant | None = None
        self.reason: JsonObject | None = None
        #: What the backend said of its end before it ended.
        self.reported_error: JsonObject = {}
        self.abort_source = "backend"
        self.failures: list[BaseException] = []
        #: Why its backend was not called. The turn's end says it, and it is no failure of the cleanup.
        self.refusal: BaseException | None = None
        self.started: asyncio.Future[None] = loop.create_future()
        self.started.add_done_callback(seen)
        self.pump: asyncio.Task[None] | None = None
        self._deadlines = deadlines
        self.spawn = spawn
        self._overdue = overdue
        self._degrade = degrade
        self._watch: asyncio.TimerHandle | None = None
        self._held: list[SessionEvent] = []
        self._closing: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None

    @property
    def opened(self) -> bool:
        """Its turn stands open in the journal, on the disk or on the way there, and can be ended by this run."""
        turn = None if self.session is None else self.session.journal.state.turns.open.get(self.identity.turn_id)
        return turn is not None and self.identity.run_id in turn.run_ids

    # ------------------------------------------------------------ the terminal fact

    def claim_terminal(self, claimant: Claimant, reason: JsonObject | None) -> bool:
        """The first claim decides how the turn ends."""
        if self.claimant is not None:
            return False
        self.claimant, self.reason = claimant, reason
        self.handing.claimed()
        return True

    async def close_interactions(self) -> None:
        """No request and no answer is taken any more. Raises RuntimeInteractionFailStopError; the same each time."""
        if self._closing is None:
            self._closing = self.spawn(self._close_interactions(), "close interactions")
        closing = self._closing
        await asyncio.wait({closing})
        if closing.cancelled():
            raise self._uncertain(RuntimeError("it was interrupted"))
        closing.result()

    async def _close_interactions(self) -> None:
        self.asking.close()
        if self.owner is None:
            return
        close = self.spawn(_closed(self.owner, self.closure), "interaction owner close")
        try:
            await asyncio.wait({close}, timeout=self._deadlines.stop)
        except asyncio.CancelledError:
            close.cancel()
            raise
        failure: BaseException | None
        if not close.done():
            close.cancel()
            failure = TimeoutError(f"close() did not return within {self._deadlines.stop:g} s")
        elif close.cancelled():
            failure = RuntimeError("close() cancelled itself")
        else:
            failure = close.exception()
        if failure is not None:
            raise self._uncertain(failure)

    def _uncertain(self, failure: BaseException) -> RuntimeInteractionFailStopError:
        return RuntimeInteractionFailStopError(
            f"what was answered in run {self.identity.run_id} of session {self.identity.session_id} is not "
            f"certain, because its interactions could not be closed ({failure}); look at them before it goes on",
            failure,
        )

    @property
    def closure(self) -> ClosureReason:
        return "turn_stopped" if self.claimant == "stop" else "turn_terminal"

    async def end(self) -> None:
        """Writes the turn's end and makes it durable, or the pause that was written in its place, once, for whoever
        asks. Raises JournalError.

        How the turn ends was claimed before. The interactions are closed first; where that fails the end is written
        all the same.
        """
        for _ in range(_TRIES):
            if self._ending is None or self._ending.cancelled():
                self._ending = self.spawn(self._end(), "end turn")
            ending = self._ending
            await asyncio.wait({ending})
            if not ending.cancelled():
                break
        ending.result()

    async def has_started(self) -> None:
        """Waits until its begin is durable and it is bound. Raises what failed."""
        await asyncio.shield(self.started)

    def watch_exit(self) -> None:
        """From now on ``send`` has its time to end in, whatever it had before."""
        if self._watch is not None:
            self._watch.cancel()
        if not self.exited:
            self._watch = asyncio.get_running_loop().call_later(self._deadlines.exit, self._overdue, self)

    def publish(self, event: SessionEvent) -> None:
        """What is told before the backend was entered waits: the consumer may have to be told of a failure instead."""
        if self.sent:
            self.delivery.put(event)
        else:
            self._held.append(event)

    def entered(self) -> None:
        """The backend is entered now: the consumer is told what waited for that."""
        held, self._held = self._held, []
        for event in held:
            self.delivery.put(event)

    def exit(self, error: BaseException | None) -> None:
        """It is over; the consumer is told."""
        self.exited = True
        if error is None:
            self.entered()
        for handle in (self._watch, self._tell_handle):
            if handle is not None:
                handle.cancel()
        self.handing.over(error)
        self.delivery.close(error)

    def tell_at(self, handle: asyncio.TimerHandle) -> None:
        self.telling, self._tell_handle = True, handle

    def respond(self, responder: Responder, response: JsonObject) -> None:
        """Hands an outcome to the backend's responder."""
        task = self.spawn(self._respond(responder, response), "respond")
        self._responses.add(task)
        task.add_done_callback(self._responses.discard)

    async def _respond(self, responder: Responder, response: JsonObject) -> None:
        try:
            await responder(response)
        except Exception as error:
            self.failures.append(error)

    async def responded(self) -> None:
        """Waits for the responders, which have the time that a stop has."""
        if self._responses:
            _, late = await asyncio.wait(set(self._responses), timeout=self._deadlines.stop)
            for task in late:
                task.cancel()
                self.failures.append(
                    BackendTimeout(
                        f"a responder of the backend of session {self.identity.session_id} did not return within "
                        f"{self._deadlines.stop:g} s; mend the backend"
                    )
                )

    async def _end(self) -> None:
        try:
            await self.close_interactions()
            closed = True
        except RuntimeInteractionFailStopError as error:
            self.failures.append(error)
            closed = False
        try:
            await self._write_end()
        except JournalError as error:
            self.failures.append(error)
            self.lost = True
            self._degrade(self, error)
            # Whoever waits for an outcome must not wait for ever: there will be none.
            self.asking.abandon(error)
            if self.claimant == "stop" and self.pump is not None:
                self.pump.cancel()
            raise
        finally:
            self.watch_exit()
            self.entry.changed()
        if closed and self.owner is not None:
            try:
                self.owner.release()
            except Exception as error:
                self.failures.append(error)
        self.asking.settle(self.closure)

    async def _write_end(self) -> None:
        if self.entry.degraded is not None:
            raise self.entry.degraded
        session, ledger = self.session, self.ledger
        assert session is not None
        assert ledger is not None
        if self.claimant == "handoff":
            await ledger.barrier()
            self.handing.sealed()
            return
        assert self.reason is not None
        if not self.opened and not ledger.sealed:
            raise unopened(self.identity.session_id, self.identity.run_id)
        outcome = {"kind": "closure", "reason": self.closure}
        closures = [
            Draft("interaction/resolved", {"interaction_id": waiting.interaction_id, "outcome": outcome})
            for waiting in session.journal.state.interactions.of_run(self.identity.run_id)
        ]
        # A tool's result that could not be written may be written yet.
        await all_done(ledger.second_try)
        if not ledger.sealed:
            try:
                ledger.end(self.reason, before=closures)
            except InvalidEvent as error:
                # A response that cannot be recorded is no whole one.
                text = f"the response cannot be recorded: {describe(error)}"
                self.reason = failed("provider_invalid_response", text)
                ledger.end(self.reason, before=closures)
        await ledger.barrier()

    @property
    def ended(self) -> bool:
        return self._ending is not None and self._ending.done()


async def _closed(owner: InteractionOwner, reason: ClosureReason) -> None:
    await owner.close(reason)
