"""The tool protocol: what the loop needs to know of a tool, what it gives to one and what it gets back. No I/O."""

import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, Protocol, runtime_checkable

import attrs

from ...journal.events import Blocks, JsonObject, Recovery
from ..lingering import GoesOn
from ..session_events import InteractionKind

#: What a tool has to declare, now and when it was called, so that a call of it may be executed again.
AGAIN: Final[tuple[Recovery, ...]] = ("read_only", "idempotent")

OutputState = Literal["ok", "error", "unknown"]


#: Asks a person: the kind of what is asked and the request → its outcome (docs/format.md, "Values inside events").
Ask = Callable[[InteractionKind, JsonObject], Awaitable[JsonObject]]


async def ask_nobody(kind: InteractionKind, request: JsonObject) -> JsonObject:
    """Where no kernel runs the turn there is nobody to ask. Raises RuntimeInteractionInvariantError."""
    from ..errors import RuntimeInteractionInvariantError

    raise RuntimeInteractionInvariantError(
        f"a tool asked a {kind} in a turn that nobody can be asked in; run it by a kernel, or leave the tool out"
    )


def text_block(text: str) -> JsonObject:
    return {"kind": "text", "text": text}


@attrs.frozen
class ToolOutput:
    """What a call came to. ``state`` is ``unknown`` where the tool itself cannot tell whether its effect happened.

    ``error`` is ``{"name","code"}``, for a state other than ``ok``.
    """

    content: Blocks
    state: OutputState = "ok"
    error: JsonObject | None = None

    @classmethod
    def of(cls, text: str) -> "ToolOutput":
        return cls([text_block(text)])

    @property
    def is_error(self) -> bool:
        return self.state != "ok"


class ToolFailed(Exception):
    """Raised by a tool's body: the call failed and its outcome is known. ``code`` stands in the result's ``error``."""

    def __init__(self, message: str, *, code: str = "TOOL_FAILED") -> None:
        super().__init__(message)
        self.code = code


class LeftBehind(Exception):
    """Raised by a body that was cancelled: something of it, named in the message, could not be ended.

    ``goes_on`` tells whether it still goes on; without it that counts as not known, for as long as this process lives.
    """

    def __init__(self, message: str, *, goes_on: GoesOn | None = None) -> None:
        super().__init__(message)
        self.goes_on = goes_on


@attrs.frozen
class ToolContext:
    """What a body may know and use.

    ``operation_id`` names this dispatch for good; a tool may forward it as an idempotency key.
    ``cancelled`` is set before the body's task is cancelled, for bodies that work in threads.
    ``store`` keeps a stream's bytes, from its start, beside the journal and returns their name (``sha256:…``).
    ``ask`` publishes a question to a person and waits for its outcome, an answer or a closure.
    """

    operation_id: str
    call_id: str
    turn_id: str
    run_id: str
    cwd: Path
    store: Callable[[BinaryIO], Awaitable[str]]
    ask: Ask = ask_nobody
    cancelled: threading.Event = attrs.field(factory=threading.Event)


@runtime_checkable
class Tool(Protocol):
    """A tool. ``parameters`` is a JSON Schema; arguments are checked against it before ``execute`` is called.

    ``recovery`` says what may be done about a call whose outcome is unknown: ``read_only`` and ``idempotent`` ones may
    be called again, ``reconcile`` ones can look whether the effect is there, ``never`` leaves it to a person.
    ``parallel_safe`` ones of a step run at the same time. A tool may have a ``timeout`` in seconds, or None where the
    body keeps the time itself; without that attribute it is 120. A tool may offer ``leaves(arguments, cwd) -> bool``:
    whether a call reaches out of the working directory; nobody can know it of a tool without.
    """

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def parameters(self) -> JsonObject: ...
    @property
    def recovery(self) -> Recovery: ...
    @property
    def parallel_safe(self) -> bool: ...

    async def execute(self, arguments: dict[str, Any], context: ToolContext) -> ToolOutput: ...


@runtime_checkable
class Reconciler(Protocol):
    """A tool of recovery ``reconcile``. A method without ``context`` will do; where it has one it is given."""

    async def reconcile(
        self, arguments: dict[str, Any], operation_id: str, *, context: ToolContext
    ) -> ToolOutput | None:
        """Looks at the outside world and changes nothing: what the call came to, proven, or None if that is open.

        ``arguments`` are those of the call, checked against ``parameters``; ``operation_id`` is the one that its body
        was given. It may be asked again and again. Whatever it raises proves nothing.
        """
        ...
