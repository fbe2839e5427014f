"""How a run asks a person: durable through its interaction owner first, shown after, settled by the durable outcome."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ...journal.events import JsonObject
from ..backends.base import InteractionKind
from ..errors import InteractionRefused, RuntimeInteractionInvariantError
from ..session_events import SessionEvent
from ..tasks import seen
from .authority import ClosureReason, InteractionRequest

if TYPE_CHECKING:
    from .run import Run

_ACCEPT: Final[dict[InteractionKind, str]] = {
    "question": "accept_user_question_request",
    "permission": "accept_permission_request",
    "sandbox_boundary": "accept_sandbox_boundary_request",
}
#: The session event that shows a request, and what of a backend takes the outcome of one that it yielded itself.
_SHOWN: Final[dict[InteractionKind, str]] = {
    "question": "question_request",
    "permission": "permission_request",
    "sandbox_boundary": "sandbox_boundary_request",
}
KIND_OF: Final[dict[str, InteractionKind]] = {shown: kind for kind, shown in _SHOWN.items()}
_RESPONDER: Final[dict[InteractionKind, str]] = {
    "question": "respond_to_user_question",
    "permission": "respond_to_permission",
    "sandbox_boundary": "respond_to_sandbox_boundary",
}


class RunInteractions:
    """The requests of one run. What a backend is given to ask with."""

    def __init__(self, run: "Run", new_id: Callable[[], str]) -> None:
        self._run = run
        self._new_id = new_id
        self._closed = False
        self._waiting: dict[str, Callable[[JsonObject], None]] = {}
        self._asked: set[asyncio.Future[JsonObject]] = set()

    async def ask(self, kind: InteractionKind, request: JsonObject) -> JsonObject:
        """See ``backends.base.Interactions``."""
        outcome: asyncio.Future[JsonObject] = asyncio.get_running_loop().create_future()

        def settle(value: JsonObject) -> None:
            if not outcome.done():
                outcome.set_result(value)

        self._asked.add(outcome)
        try:
            await self._open(self._new_id(), kind, request, settle)
            return await outcome
        finally:
            self._asked.discard(outcome)

    async def yielded(self, event: SessionEvent) -> None:
        """A request that the backend yielded: shown once it is durable, answered through the backend's responder."""
        kind = KIND_OF[event.kind]
        generation = self._run.generation
        assert generation is not None
        name = _RESPONDER[kind]
        respond = getattr(generation.backend, name, None)
        if respond is None:
            raise RuntimeInteractionInvariantError(
                f"the backend yielded a {event.kind} and offers no {name}(); use input.interactions.ask, or offer it"
            )
        request = {key: value for key, value in event.data.items() if key != "interaction_id"}
        interaction_id = event.data["interaction_id"]

        def settle(outcome: JsonObject) -> None:
            self._run.respond(respond, {"interaction_id": interaction_id, "outcome": outcome})

        await self._open(interaction_id, kind, request, settle)

    async def _open(
        self, interaction_id: str, kind: InteractionKind, request: JsonObject, settle: Callable[[JsonObject], None]
    ) -> None:
        run = self._run
        if kind not in KIND_OF.values():
            raise InteractionRefused(
                f"a person cannot be asked a {kind!r}; ask one of {', '.join(KIND_OF.values())}", code="invalid_request"
            )
        if self._closed:
            raise InteractionRefused(
                f"run {run.identity.run_id} is over and asks nothing any more; end it", code="run_closed"
            )
        if run.owner is None:
            raise RuntimeInteractionInvariantError(
                "nobody is there to answer: this kernel has no interaction authority; give it one"
            )

        def settled(outcome: JsonObject) -> None:
            if self._waiting.pop(interaction_id, None) is not None:
                settle(outcome)

        # Before it is accepted: somebody may answer as soon as it is durable.
        self._waiting[interaction_id] = settled
        try:
            accept: Any = getattr(run.owner, _ACCEPT[kind])
            await accept(InteractionRequest(interaction_id, kind, request, settled))
            assert run.ledger is not None
            # What came before it is told before it.
            await run.ledger.barrier()
        except BaseException:
            self._waiting.pop(interaction_id, None)
            raise
        if not run.ledger.sealed:
            run.ledger.tell_now(_SHOWN[kind], **{**request, "interaction_id": interaction_id})

    @property
    def waits(self) -> bool:
        """Is something asked, or on its way there, and not answered?"""
        return bool(self._waiting)

    def close(self) -> None:
        """Nothing is asked any more."""
        self._closed = True

    def abandon(self, error: BaseException) -> None:
        """There will be no durable outcome: whoever waits for one is told why."""
        self._waiting.clear()
        for outcome in self._asked:
            if not outcome.done():
                outcome.set_exception(error)
                # Whoever waits for it may be cancelled in the same moment.
                seen(outcome)

    def settle(self, reason: ClosureReason) -> None:
        """The closures are durable; whoever waits still, goes on with them."""
        for settled in list(self._waiting.values()):
            settled({"kind": "closure", "reason": reason})
