"""Who answers a run's questions and who hands it messages: the two authorities that a kernel can be given. No I/O."""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import attrs

from ...journal.events import JsonObject
from ..backends.base import InteractionKind, SteeringLease

ClosureReason = Literal["turn_stopped", "turn_terminal", "timed_out", "host_restarted"]


@attrs.frozen
class RunIdentity:
    session_id: str
    turn_id: str
    run_id: str


@attrs.frozen
class InteractionRequest:
    """``request`` has the shape of its kind (docs/format.md, "Values inside events").

    ``settle(outcome)`` is called once, when it is durable.
    """

    interaction_id: str
    kind: InteractionKind
    request: JsonObject
    settle: Callable[[JsonObject], None]


class InteractionOwner(Protocol):
    """The interactions of one run. It carries the identity that it was bound for."""

    @property
    def session_id(self) -> str: ...
    @property
    def turn_id(self) -> str: ...
    @property
    def run_id(self) -> str: ...

    async def accept_user_question_request(self, request: InteractionRequest, /) -> None:
        """When this returns the request is durably pending. Raises InteractionRefused, JournalError."""
        ...

    async def accept_permission_request(self, request: InteractionRequest, /) -> None:
        """As ``accept_user_question_request``."""
        ...

    async def accept_sandbox_boundary_request(self, request: InteractionRequest, /) -> None:
        """As ``accept_user_question_request``."""
        ...

    async def close(self, reason: ClosureReason, /) -> None:
        """No request and no answer is taken from now on; answers in flight are durable, or are not, when this returns.

        Called once. What still waits gets its closure in the batch that ends the turn. What this raises means that
        nobody knows what was answered.
        """
        ...

    def release(self) -> None:
        """The closures are durable: whoever waits here is told. Not called if ``close`` or the turn's end failed."""
        ...


class RuntimeInteractionAuthority(Protocol):
    """Answers for the interactions of every run. ``JournalInteractions`` is the one over the journal."""

    def bind_run(self, identity: RunIdentity, /) -> InteractionOwner:
        """Called when the run's begin is durable, before its backend is. Does not wait."""
        ...


class MessageOwner(Protocol):
    """The messages for one running turn."""

    @property
    def session_id(self) -> str: ...
    @property
    def turn_id(self) -> str: ...
    @property
    def run_id(self) -> str: ...

    def pull(self) -> Sequence[SteeringLease]: ...
    def ack(self, lease_ids: Sequence[str], /) -> None: ...
    def nack(self, lease_ids: Sequence[str], /) -> None: ...
    def release(self) -> None: ...


class RuntimeMessageAuthority(Protocol):
    """Has the messages that wait for running turns."""

    def bind_run(self, identity: RunIdentity, /) -> MessageOwner: ...
