"""What a run begins with: a person's message, or the continuation of an earlier run. No I/O of its own."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from ...journal.errors import JournalError
from ...journal.events import Blocks, Draft, JsonObject
from ..backends.base import Backend, ContinuedFrom, text_of
from ..composition import RunComposition
from ..continuation import drafts
from ..continuation.failpoints import Failpoint, Hook
from ..continuation.revalidation import recheck_safety, revalidate
from ..continuation.safety import Observe, SafetyObservation, Unobserved
from ..continuation.shapes import Continuation, Facts
from ..conversation import Conversation
from ..errors import ContinuationRevalidationError, RuntimeFailure, describe
from ..handoff.denials import DenialLookup, identities_of
from ..handoff.sameness import CompositionReader, prepared, source_of
from ..journals import OpenSession
from ..ledger import Ledger
from ..lifecycle import log
from ..progress import beginning
from ..recovery import Tell
from .authority import RunIdentity

#: Executes again the calls that a continuation is to rerun, makes their outcomes durable, and tells of them.
Rerun = Callable[[OpenSession, Continuation, Tell], Awaitable[None]]
#: Awaits an operation inside of what a host has to hold meanwhile.
Within = Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]
#: Behind which place of the protocol an event leads.
_BEHIND: Final[dict[str, Failpoint]] = {
    "continuation/claim": "after_continuation_claim_committed",
    "run/created": "after_run_created",
    "continuation/start": "after_continuation_start_committed",
}


class Opening(Protocol):
    """Called in this order. Until ``first`` was handed to the writer a start can be cancelled and leaves nothing."""

    @property
    def boundary_digest(self) -> str | None:
        """The boundary that the run goes on from, which only one run may; None: from none."""
        ...

    @property
    def max_steps(self) -> int | None: ...

    async def look(self, session: OpenSession) -> None:
        """Looks at what is outside the journal. May be called again."""
        ...

    def first(self, session: OpenSession, conversation: Conversation, now: int) -> list[Draft]:
        """The first batch. Waits for nothing, so that what it checks still holds when it is appended. Raises
        InvalidEvent, ContinuationRevalidationError.
        """
        ...

    async def follow(self, ledger: Ledger) -> None:
        """Behind the first batch, once that is durable: up to where the turn stands open. Raises JournalError."""
        ...

    async def ready(self, session: OpenSession, ledger: Ledger, backend: Backend, within: Within) -> None:
        """The turn stands open: what comes before the backend is called. Cancelled by a stop. Raises what fails."""
        ...

    async def reached(self, point: Failpoint) -> None: ...

    def given(self) -> dict[str, Any]:
        """What the backend's input holds of it."""
        ...


class FromMessage:
    """A turn that begins with a person's message. Implements Opening."""

    boundary_digest = None

    def __init__(
        self,
        identity: RunIdentity,
        *,
        invocation_id: str,
        message_id: str,
        content: Blocks,
        max_steps: int | None,
        quotes: list[JsonObject] | None,
        attachments: list[JsonObject] | None,
        root: JsonObject | None,
        observe: Observe | None,
    ) -> None:
        self.max_steps = max_steps
        self._root = root
        self._identity = identity
        self._invocation_id = invocation_id
        self._message_id = message_id
        self._content = content
        self._quotes = quotes
        self._attachments = attachments
        self._observe = observe
        self._workspace: Any = None

    async def look(self, session: OpenSession) -> None:
        """A workspace that cannot be observed keeps no turn from running; it only cannot be continued."""
        if self._observe is None:
            return
        try:
            observation = await self._observe(session.session_id, session.journal.state)
        except Unobserved as error:
            log.warning(
                "the workspace of session %s could not be observed (%s); if run %s is interrupted it cannot be "
                "continued, only followed by a new message",
                session.session_id,
                error,
                self._identity.run_id,
            )
        else:
            self._workspace = observation.workspace_identity

    def first(self, session: OpenSession, conversation: Conversation, now: int) -> list[Draft]:
        return beginning(
            conversation,
            turn=session.journal.state.turns.last + 1,
            turn_id=self._identity.turn_id,
            run_id=self._identity.run_id,
            invocation_id=self._invocation_id,
            message_id=self._message_id,
            content=self._content,
            created_at=now,
            max_steps=self.max_steps,
            root=self._root,
            workspace_identity=self._workspace,
            quotes=self._quotes,
            attachments=self._attachments,
        )

    async def follow(self, ledger: Ledger) -> None:
        pass

    async def ready(self, session: OpenSession, ledger: Ledger, backend: Backend, within: Within) -> None:
        pass

    async def reached(self, point: Failpoint) -> None:
        pass

    def given(self) -> dict[str, Any]:
        return {"text": text_of(self._content), "content": self._content}


class FromBoundary:
    """A run that goes on from the boundary of an earlier one, with no new message. Implements Opening.

    Claim, run and start are durable one after the other, each before the next is written: a crash in between leaves a
    prefix that a repair closes, and of a start that is on disk nobody knows whether the provider was called. A
    successor whose claim or run is there already, from a resume that was cut off, begins with what is missing.
    """

    def __init__(
        self,
        continuation: Continuation,
        *,
        observe: Observe,
        rerun: Rerun,
        has_denial: DenialLookup,
        read_composition: CompositionReader,
        failpoint: Hook,
    ) -> None:
        self.boundary_digest = continuation.boundary_digest
        self.max_steps = continuation.max_steps
        self._continuation = continuation
        self._observe = observe
        self._rerun = rerun
        self._has_denial = has_denial
        self._read_composition = read_composition
        self._failpoint = failpoint
        self._observation: SafetyObservation | Unobserved | None = None
        self._denied = False
        #: What the source is made of, for a successor.
        self._source: RunComposition | None = None
        self._head_anchor: JsonObject | None = None
        #: Claim, run, start, as far as they are not there.
        self._drafts: list[Draft] = []

    async def look(self, session: OpenSession) -> None:
        self._observation = await self._observed(session)
        self._denied = await self._look_for_denials(session)
        if self._handoff:
            self._source = await source_of(self._continuation, session, self._read_composition)
        await self._failpoint("before_continuation_claim")

    def first(self, session: OpenSession, conversation: Conversation, now: int) -> list[Draft]:
        assert self._observation is not None
        facts = Facts(session.session_id, session.journal.state, conversation)
        revalidate(self._continuation, facts, self._observation)
        if self._handoff:
            self._head_anchor = conversation.head_anchor(self._continuation.turn_id)
        self._drafts = drafts.protocol(self._continuation, facts, now=now)
        return self._drafts[:1]

    async def follow(self, ledger: Ledger) -> None:
        for place, draft in enumerate(self._drafts):
            if place:
                ledger.begin([draft])
                await ledger.barrier()
            await self._failpoint(_BEHIND[draft.type])

    async def ready(self, session: OpenSession, ledger: Ledger, backend: Backend, within: Within) -> None:
        await self._look_again(session, within)
        if self._continuation.rerun:

            async def tell(kind: str, /, **data: Any) -> None:
                ledger.tell(kind, **data)
                await ledger.barrier()

            await self._rerun(session, self._continuation, tell)
            # They may have taken their time, and have effects.
            await self._look_again(session, within)
        if self._source is not None:
            await prepared(self._continuation, self._source, backend, session, self._read_composition)
        await self._failpoint("before_backend_dispatch")

    async def _look_again(self, session: OpenSession, within: Within) -> None:
        """Raises ContinuationRevalidationError, and RuntimeFailure where nobody looked."""
        looked = False

        async def again() -> None:
            nonlocal looked
            recheck_safety(self._continuation, await self._observed(session))
            looked = True

        await within(again)
        if not looked:
            raise RuntimeFailure(
                f"the activation of session {session.session_id} did not await its operation, so nobody looked at the "
                "workspace; mend what wraps it"
            )

    async def reached(self, point: Failpoint) -> None:
        await self._failpoint(point)

    def given(self) -> dict[str, Any]:
        continuation = self._continuation
        continued = ContinuedFrom(
            source=continuation.source,
            sandbox_boundary_denied=self._denied,
            composition=continuation.composition,
        )
        return {"text": "", "content": [], "continuation": continued, "head_anchor": self._head_anchor}

    @property
    def _handoff(self) -> bool:
        return self._continuation.purpose == "handoff"

    async def _look_for_denials(self, session: OpenSession) -> bool:
        """Raises ContinuationRevalidationError: where nobody can tell, nothing is claimed."""
        try:
            return await self._has_denial(session, identities_of(self._continuation.boundary))
        except (ContinuationRevalidationError, JournalError):
            raise
        except Exception as error:
            raise ContinuationRevalidationError(
                f"whether a person has denied run {self._continuation.source['run_id']} of session "
                f"{session.session_id} a sandbox boundary could not be looked up ({describe(error, typed=True)}), so "
                "nothing was claimed; mend what looks it up, and resume again",
                code="sandbox_denial_unknown",
            ) from error

    async def _observed(self, session: OpenSession) -> SafetyObservation | Unobserved:
        try:
            return await self._observe(session.session_id, session.journal.state)
        except Unobserved as error:
            return error


def conflict(session_id: str, run_id: str) -> ContinuationRevalidationError:
    """The run of this process that goes on from the same boundary."""
    return ContinuationRevalidationError(
        f"run {run_id} of session {session_id} goes on from the same point already. Wait for its end, and plan again "
        "if there is more to do",
        code="continuation_claim_conflict",
    )


def unopened(session_id: str, run_id: str) -> JournalError:
    """A run that is claimed and was cut off before its turn stood open: a repair ends it."""
    return JournalError(
        f"run {run_id} of session {session_id} was cut off before its backend was called; it is closed when the "
        "session is opened again, plan again to go on"
    )
