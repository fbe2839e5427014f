"""Asks what runs to be handed over: waits for its boundary, looks whether a successor could go on, and commits."""

import asyncio
from collections.abc import Awaitable, Callable

import attrs

from ...journal.events import JsonObject
from ...journal.state import State
from ..continuation.plan import would_park
from ..continuation.safety import SafetyObservation, Unobserved
from ..continuation.shapes import Facts
from ..errors import HandoffRefused
from ..kernel.kernel import RuntimeKernel
from .pause import HandoffPause
from .request import HandoffRequest


@attrs.define
class HandoffAsking:
    """Over the sessions of a kernel. ``observe`` looks at a session's workspace and raises Unobserved."""

    _kernel: RuntimeKernel
    _observe: Callable[[str, State], Awaitable[SafetyObservation]]
    _new_id: Callable[[], str]
    #: Who asks, as a pause says where nobody else is named: the same from the first that is asked for.
    _epoch: str | None = attrs.field(default=None, init=False)

    async def hand_over(self, session_id: str, *, timeout: float | None, host_epoch: str | None) -> JsonObject:
        """See ``SessionManager.hand_over``."""
        waits: object = timeout
        if waits is not None and (isinstance(waits, bool) or not isinstance(waits, int | float) or not waits >= 0):
            raise TypeError(f"a timeout is a number of seconds, or None to wait as long as it takes, not {waits!r}")
        run_id, opened = self._kernel.running(session_id), self._kernel.opened(session_id)
        turn = None if run_id is None or opened is None else opened.journal.state.turns.by_run(run_id)
        if run_id is None or turn is None:
            raise HandoffRefused(
                f"nothing runs in session {session_id} here that could be handed over; call this while a turn does",
                code="run_unknown",
            )
        if self._epoch is None:
            self._epoch = self._new_id()
        handoff_id, successor, invocation, claim_id = (self._new_id() for _ in range(4))
        pause = HandoffPause(
            handoff_id=handoff_id,
            host_epoch=self._epoch if host_epoch is None else host_epoch,
            root_run_id=next(iter(turn.run_ids)),
            successor_run_id=successor,
            successor_invocation_id=invocation,
            claim_id=claim_id,
        )
        request = self._kernel.request_run_handoff(session_id, run_id, pause)
        if request is None:
            raise HandoffRefused(f"run {run_id} of session {session_id} is over", code="run_over")
        try:
            await asyncio.wait({request.ready}, timeout=timeout)
            if not request.ready.done():
                raise HandoffRefused(
                    f"run {run_id} of session {session_id} came to no step boundary within {timeout:g} s, and goes on; "
                    "try again with more time",
                    code="not_reached",
                )
            await self._commit(session_id, run_id, request)
            if not await request.sealed:
                raise _ended_otherwise(session_id, run_id)
            await self._kernel.exited(session_id, run_id)
        finally:
            request.cancel()
        return pause.draft(run_id=run_id, turn_id=turn.turn_id, remaining_steps=request.remaining_steps).data

    async def _commit(self, session_id: str, run_id: str, request: HandoffRequest) -> None:
        """Only where a successor could go on from there."""
        if not request.ready.result():
            raise _ended_otherwise(session_id, run_id)
        draft = request.preview()
        conversation, opened = await self._kernel.conversation(session_id), self._kernel.opened(session_id)
        if opened is None:
            raise _ended_otherwise(session_id, run_id)
        try:
            observation: SafetyObservation | Unobserved = await self._observe(session_id, opened.journal.state)
        except Unobserved as error:
            observation = error
        facts = Facts(session_id, opened.journal.state, conversation)
        if found := would_park(facts, draft, observation):
            said = " ".join(each.message for each in found)
            raise HandoffRefused(
                f"no successor could finish what run {run_id} of session {session_id} does, so it goes on: {said}",
                code="would_park",
            )
        if not request.commit():
            raise HandoffRefused(
                f"run {run_id} of session {session_id} did not wait where it could be handed over, and goes on or has "
                "ended; try again while it runs",
                code="not_reached",
            )


def _ended_otherwise(session_id: str, run_id: str) -> HandoffRefused:
    return HandoffRefused(
        f"run {run_id} of session {session_id} ended before it was handed over; nothing waits for a successor",
        code="run_over",
    )
