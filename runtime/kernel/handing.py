"""How a run is handed over: asked, held at a step boundary, sealed where its stream ends. No I/O of its own.

The pause is written when the backend's stream has ended behind ``pause``, in one go with the look whether a stop came
first: a stop that was seen before wins, a later one waits for the seal and gives the handoff up.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ...journal.errors import InvalidEvent
from ...journal.events import Draft, JsonObject
from ...journal.views.runs import composition_digest
from ..backends.base import Boundary, SteeringLease
from ..composition import RunComposition
from ..continuation.failpoints import Hook
from ..errors import HandoffRefused
from ..handoff.pause import HandoffPause
from ..handoff.request import HandoffRequest
from .reasons import Misbehaved

if TYPE_CHECKING:
    from .run import Run

#: More steps than a number of the journal can count.
_MANY: Final = 2**63


class Handing:
    """Of one run. ``request``: the newest. ``paused``: the backend was told to pause, for that request.

    ``composed``: the run's composition is durable. ``pause``: the data of the handoff/pause, once that is durable.
    ``tried``: it was handed to the writer, or that was tried.
    """

    def __init__(self, run: "Run") -> None:
        self.request: HandoffRequest | None = None
        self.paused = False
        self.composed = self.tried = False
        self.pause: JsonObject | None = None
        self._run = run
        self._taken: set[str] = set()

    # ------------------------------------------------------------ who asks

    def ask(self, pause: HandoffPause, signal: asyncio.Event | None) -> HandoffRequest:
        """Raises HandoffRefused."""
        run, run_id = self._run, self._run.identity.run_id
        if run.claimant is not None or run.session is None:
            raise HandoffRefused(f"run {run_id} is over, or about to be, and is not handed over", code="run_over")
        if self.request is not None and not self.request.over:
            raise HandoffRefused(
                f"run {run_id} is being handed over already, as handoff {self.request.pause.handoff_id}; cancel that, "
                "or wait for it",
                code="handoff_pending",
            )
        if getattr(run.generation and run.generation.backend, "prepare_run_composition", None) is None:
            raise HandoffRefused(
                f"the backend of run {run_id} offers no composition preparation, so nobody could tell whether a "
                "successor is the same agent; use one that does (`loop_backend(…, handoff=True)`)",
                code="composition_missing",
            )
        turn = run.session.journal.state.turns.open.get(run.identity.turn_id)
        root = run_id if turn is None else next(iter(turn.run_ids))
        if pause.root_run_id != root:
            text = f"turn {run.identity.turn_id} was opened by run {root}, and not by {pause.root_run_id}; name that"
            raise HandoffRefused(text, code="pause_invalid")
        request = self.request = HandoffRequest(pause, self.sealing, run.entry.changed)
        if signal is not None and signal.is_set():
            request.cancel()
        elif signal is not None:
            waiting = run.spawn(_cancelled_by(request, signal), f"signal of handoff {pause.handoff_id}")
            request.when_over(waiting.cancel)
        return request

    def sealing(self, request: HandoffRequest) -> Draft:
        """The pause as it would be written now. Raises HandoffRefused."""
        run, run_id = self._run, self._run.identity.run_id
        if not request.held or run.claimant is not None or run.session is None:
            raise HandoffRefused(f"run {run_id} does not stand at a step boundary; await `ready`", code="not_reached")
        if not self.composed:
            raise HandoffRefused(
                f"run {run_id} has no durably committed Run Composition, so nobody could tell whether a successor is "
                "the same agent; use a backend that records one before its first request",
                code="composition_missing",
            )
        draft = self._draft(request)
        try:
            run.session.journal.state.check(draft)
        except InvalidEvent as error:
            raise HandoffRefused(f"run {run_id} cannot be sealed: {error}", code="pause_invalid") from error
        return draft

    def _draft(self, request: HandoffRequest) -> Draft:
        identity = self._run.identity
        return request.pause.draft(
            run_id=identity.run_id, turn_id=identity.turn_id, remaining_steps=request.remaining_steps
        )

    # ------------------------------------------------------------ the backend

    def wanted(self) -> bool:
        """Does somebody wait for the backend to come to a boundary?"""
        return self.request is not None and not self.request.over

    async def boundary(self, signal: asyncio.Event | None = None, remaining_steps: int | None = None) -> Boundary:
        """See ``SendInput.handoff_boundary``."""
        run, ledger = self._run, self._run.ledger
        assert ledger is not None
        if remaining_steps is not None and (remaining_steps.__class__ is not int or not 0 < remaining_steps < _MANY):
            text = (
                f"the backend has {remaining_steps!r} steps to go at a step boundary; tell a positive number, or None"
            )
            raise Misbehaved("backend_error", text)
        at_rest = ledger.rest()
        request = self.request
        if request is None or not at_rest or not self._holds(request, signal):
            return "continue"
        # Whoever is told that it stands here finds on the disk what it stands behind.
        await ledger.barrier()
        if self._holds(request, signal):
            request.hold(remaining_steps)
            try:
                await self._decided(request, signal)
            finally:
                request.held = request.committed
            self.paused = request.committed and run.claimant is None
            if self.paused:
                # It has the time of an exit to end in, and nothing more to do.
                run.watch_exit()
        # Where it was stopped where it stood it makes no step more, although its backend was not told of that yet.
        return "pause" if self.paused or run.claimant is not None else "continue"

    def _holds(self, request: HandoffRequest, signal: asyncio.Event | None) -> bool:
        """Can a backend that is between two steps be held there for the request?"""
        run = self._run
        goes_on = request.over or _is_set(signal) or run.claimant is not None
        return not (goes_on or self._taken or run.asking.waits)

    async def _decided(self, request: HandoffRequest, signal: asyncio.Event | None) -> None:
        run = self._run
        until = run.entry.until(lambda: request.committed or request.over)
        if signal is None:
            await until
            return
        waiting = [asyncio.ensure_future(until), asyncio.ensure_future(signal.wait())]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()

    def steering(self, pull: Any, ack: Any, nack: Any) -> dict[str, Any]:
        """What the input holds of a message authority. What was taken and not given back keeps the run from resting."""

        def pulled() -> Sequence[SteeringLease]:
            leases = pull()
            self._taken.update(lease.lease_id for lease in leases)
            return leases  # type: ignore[no-any-return]

        def given(to: Any, lease_ids: Sequence[str]) -> None:
            to(lease_ids)
            self._taken.difference_update(lease_ids)

        return {
            "pull_steering": pulled,
            "ack_steering": lambda lease_ids: given(ack, lease_ids),
            "nack_steering": lambda lease_ids: given(nack, lease_ids),
        }

    # ------------------------------------------------------------ the seal

    def concluded(self) -> bool:
        """The stream has ended: is it known how the run does? Where a pause is due it is handed to the writer, at once
        behind the look whether anything else came first.

        Raises Misbehaved where the backend is not at rest, JournalError where the pause cannot be written: then nobody
        writes another end either.
        """
        run, request = self._run, self.request
        if run.claimant is not None:
            return True
        if not self.paused or request is None:
            return False
        assert run.ledger is not None
        draft = self._draft(request)
        # Nothing is asked of a person any more: nobody here would go on with the answer.
        run.asking.close()
        self.tried = True
        try:
            if self._taken:
                raise InvalidEvent("a steering message was taken and not acknowledged", type=draft.type)
            if run.asking.waits:
                raise InvalidEvent("a person was asked and has not answered", type=draft.type)
            run.ledger.seal(draft)
        except InvalidEvent as error:
            self.tried = False
            text = f"the backend was told to pause and does not stand at a step boundary: {error}; mend the backend"
            raise Misbehaved("backend_error", text) from error
        run.claim_terminal("handoff", None)
        return True

    def claimed(self) -> None:
        """It is decided how the run ends: it is held no more, and not handed over, unless that is being written."""
        if self.request is not None and not self.tried:
            self.request.finish(False)
        elif self.request is not None:
            self.request.let_go()

    def sealed(self) -> None:
        """The pause is durable."""
        assert self.request is not None
        self.pause = self._draft(self.request).data
        self.request.finish(True)

    def over(self, error: BaseException | None) -> None:
        """The run has exited."""
        if self.request is not None:
            self.request.finish(error if self.tried and error is not None else False)

    # ------------------------------------------------------------ what the run is made of

    async def record(self, composition: object, reached: Hook) -> None:
        """See ``BackendContext.record_run_composition``."""
        run, run_id = self._run, self._run.identity.run_id
        if not isinstance(composition, RunComposition):
            raise TypeError(f"what a run is made of is a RunComposition, and not a {type(composition).__name__}")
        assert run.session is not None
        assert run.ledger is not None
        data, known = composition.to_json(), run.session.journal.state.runs.live.get(run_id)
        if known is None or known.composition != composition_digest(data):
            run.ledger.note(Draft("run/composition", {"run_id": run_id, "composition": data}))
        await run.ledger.barrier()
        if not self.composed:
            self.composed = True
            await reached("after_run_composition_committed")


def _is_set(signal: asyncio.Event | None) -> bool:
    return signal is not None and signal.is_set()


async def _cancelled_by(request: HandoffRequest, signal: asyncio.Event) -> None:
    await signal.wait()
    request.cancel()


__all__ = ["Handing"]
