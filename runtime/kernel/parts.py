"""What a kernel was given: where its sessions, its backends, its ids and its time come from. No I/O."""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from ..backends.base import BackendRegistry
from ..journals import Journals
from ..lifecycle import Lifecycle
from ..tasks import Tasks
from ..tools.base import Tool
from .authority import RuntimeInteractionAuthority, RuntimeMessageAuthority
from .generations import Deadlines

if TYPE_CHECKING:
    import asyncio

    from .run import Run

#: Wraps the reservation of a backend: ``await operation()`` inside whatever a host has to hold meanwhile.
Activation = Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]


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
    tasks: Tasks = attrs.Factory(Tasks)

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> "asyncio.Task[Any]":
        return self.tasks.spawn(coroutine, name)

    def say(self, run: "Run", kind: str, **data: Any) -> None:
        """Tells those who subscribed what happened to a run."""
        identity = run.identity
        self.lifecycle.tell(kind, identity.session_id, turn_id=identity.turn_id, run_id=identity.run_id, **data)
