"""What a kernel was given: where its sessions, its backends, its ids and its time come from. No I/O."""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from ..backends.base import BackendRegistry
from ..continuation.failpoints import Hook
from ..continuation.safety import Observe
from ..handoff.denials import DenialLookup
from ..handoff.sameness import CompositionReader
from ..journals import Journals, OpenSession
from ..lifecycle import Lifecycle
from ..tasks import Tasks
from ..tools.base import Tool
from .authority import RuntimeInteractionAuthority, RuntimeMessageAuthority
from .generations import Deadlines
from .openings import Rerun

if TYPE_CHECKING:
    import asyncio

    from .run import Run

#: Wraps the reservation of a backend: ``await operation()`` inside whatever a host has to hold meanwhile.
Activation = Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]


#: Records what calls turned out to be whose outcome was unknown; how many.
Reconcile = Callable[[OpenSession], Awaitable[int]]


@attrs.frozen(kw_only=True)
class Parts:
    """See RuntimeKernel."""

    journals: Journals
    backends: BackendRegistry
    interaction_authority: RuntimeInteractionAuthority | None
    message_authority: RuntimeMessageAuthority | None
    activation: Activation
    lifecycle: Lifecycle
    new_id: Callable[[], str]
    now: Callable[[], int]
    deadlines: Deadlines
    tools: Sequence[Tool]
    live_text: bool
    observe: Observe | None
    reconcile: Reconcile
    rerun: Rerun
    has_denial: DenialLookup
    read_composition: CompositionReader
    failpoint: Hook
    tasks: Tasks = attrs.Factory(Tasks)

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> "asyncio.Task[Any]":
        return self.tasks.spawn(coroutine, name)

    def say(self, run: "Run", kind: str, **data: Any) -> None:
        """Tells those who subscribed what happened to a run."""
        identity = run.identity
        self.lifecycle.tell(kind, identity.session_id, turn_id=identity.turn_id, run_id=identity.run_id, **data)
