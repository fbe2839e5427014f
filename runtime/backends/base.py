"""The backend protocol: what the kernel asks of a backend, what it gives to one. No I/O."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Protocol, runtime_checkable

import attrs

from ...journal.events import Blocks, JsonObject
from ..composition import RunComposition
from ..conversation import Conversation
from ..session_events import InteractionKind, SessionEvent
from ..tools.base import Tool

#: ``redirect``: another message is to take the turn's place.
StopReason = Literal["user_stop", "redirect"]
StopMode = Literal["immediate", "after_step"]


@attrs.frozen
class SteeringLease:
    """A message for the running turn, taken from the queue. It is consumed once it was acknowledged."""

    lease_id: str
    message_id: str
    content: Blocks
    quotes: list[JsonObject] | None = None
    attachments: list[JsonObject] | None = None


class Interactions(Protocol):
    """How a run asks a person. What it asks is durable before anybody sees it."""

    async def ask(self, kind: InteractionKind, request: JsonObject) -> JsonObject:
        """Publishes the request and waits for its outcome, as ``interaction/resolved`` holds it: an answer of the
        kind, or ``{"kind": "closure", "reason"}``. The shapes: docs/embedding.md, "Questions and answers".

        Raises InteractionRefused where it cannot be asked (too many wait, no such kind, wrong shape, the run is over),
        and RuntimeInteractionInvariantError where nobody is there to answer.
        """
        ...


def _none() -> Sequence[SteeringLease]:
    return ()


def _ignore(lease_ids: Sequence[str]) -> None:
    pass


#: What a backend does behind a step boundary.
Boundary = Literal["continue", "pause"]


async def _goes_on(signal: asyncio.Event | None = None, remaining_steps: int | None = None) -> Boundary:
    return "continue"


def _always() -> bool:
    return True


async def _unrecorded(run_id: str, composition: RunComposition, /) -> None:
    pass


@attrs.frozen(kw_only=True)
class ContinuedFrom:
    """``source``: ``{run_id, invocation_id, turn_id, high_water}`` of the run that this one goes on from.

    ``sandbox_boundary_denied``: a person refused a sandbox boundary in what is continued; it is not to be asked again.
    ``composition``: what the source's agent was made of, where that is on record.
    """

    source: JsonObject
    sandbox_boundary_denied: bool = False
    composition: JsonObject | None = None


@attrs.frozen(kw_only=True)
class SendInput:
    """One run for a backend.

    ``text`` is the user's text, ``content`` the whole message as blocks; it stands in ``history`` already. Both are
    empty where ``continuation`` is given: the run goes on from what is in ``history``, with no new message.
    ``conversation`` is the fold of the session, this run's durable events included: read it, never change it.
    ``head_anchor`` is the data of the message that the turn began with, for a run that a turn was handed over to; None
    where a continuation opened that turn, which has no message.
    ``pull_steering`` takes the messages that wait for this turn; each is acknowledged once its own
    ``steering_message`` was taken (the backend was asked for a later event), or given back.
    ``handoff_boundary(signal, remaining_steps)`` is awaited between two steps, behind all that the last one said, by a
    backend whose runs can be handed over: it tells how many steps it would still make (None: without a limit), and
    waits while somebody asks for a handoff. At ``pause`` it ends ``send`` without another event; a ``complete`` is
    taken all the same, and then nothing is handed over. ``signal``, once set, lets it ``continue`` at once. Where the
    run is stopped while it stands there it is told ``pause`` too: the turn has ended, and ``send`` ends likewise.
    ``handoff_wanted()``: does somebody ask just now? One to which a boundary costs something may look there first.
    """

    session_id: str
    turn_id: str
    run_id: str
    invocation_id: str
    text: str
    content: Blocks
    conversation: Conversation
    interactions: Interactions
    max_steps: int | None = None
    continuation: ContinuedFrom | None = None
    head_anchor: JsonObject | None = None
    handoff_boundary: Callable[[asyncio.Event | None, int | None], Awaitable[Boundary]] = _goes_on
    handoff_wanted: Callable[[], bool] = _always
    pull_steering: Callable[[], Sequence[SteeringLease]] = _none
    ack_steering: Callable[[Sequence[str]], None] = _ignore
    nack_steering: Callable[[Sequence[str]], None] = _ignore

    @property
    def history(self) -> list[JsonObject]:
        """The messages for a provider as they stand now, this turn's included; legal at any time."""
        return self.conversation.messages(self.run_id)


@attrs.frozen(kw_only=True)
class BackendContext:
    """What a factory may know: the session, its directory (for blobs), and the kernel's clock and ids.

    ``settings`` are the session's newest values (``backend, model, connection?, cwd, permission_mode, …``), ``tools``
    those of the app. ``new_id`` gives fresh ids, ``now`` Unix milliseconds.

    ``record_run_composition(run_id, composition)`` makes it durable what a run of this backend is made of, once for
    each run: the same again does nothing. Without it a run cannot be handed over. Raises InvalidEvent for another one,
    or where no such run is open here, and JournalError.
    """

    session_id: str
    session_dir: Path
    settings: JsonObject
    new_id: Callable[[], str]
    now: Callable[[], int]
    tools: Sequence[Tool] = ()
    record_run_composition: Callable[[str, RunComposition], Awaitable[None]] = _unrecorded


@runtime_checkable
class Backend(Protocol):
    """What runs turns of one session, one after the other.

    One that yields ``question_request``, ``permission_request`` or ``sandbox_boundary_request``, instead of asking with
    ``input.interactions``, offers ``respond_to_user_question``, ``respond_to_permission`` or
    ``respond_to_sandbox_boundary``: awaited with ``{"interaction_id", "outcome"}`` when the outcome is durable.

    One whose runs can be handed over offers ``async prepare_run_composition(run_id, turn_id)``, which records the run's
    composition (``BackendContext.record_run_composition``). It does so by itself before its first request to a
    provider; before a run that a turn was handed over to it is asked to, and that run is not sent to it unless the
    composition says that it is the same agent.
    """

    def send(self, input: SendInput, /) -> AsyncIterator[SessionEvent]:
        """The run's events. Nothing happens before the first ``__anext__``. Exactly one ``complete``, last.

        Asking for the next event says that the ones before are durable where ``BARRIERS`` demands it. The iterator
        may offer ``ready()``: further events that are there already; they share a sync. It may be closed at any time
        (``aclose``); then no provider and no tool is entered any more.
        """
        ...

    async def stop(self, reason: StopReason, mode: StopMode, /) -> None:
        """Makes the running ``send`` end: at once, or when its step is done. Nothing running: nothing happens.

        It may be called again to escalate from ``after_step`` to ``immediate``.
        """
        ...

    async def dispose(self) -> None:
        """Gives everything up, a running ``send`` too. Called at most once; the backend is not used afterwards."""
        ...


BackendFactory = Callable[[BackendContext], Backend | Awaitable[Backend]]


class BackendRegistry:
    """Backends by the name that a session's header gives."""

    def __init__(self) -> None:
        self._factories: dict[str, BackendFactory] = {}

    def register(self, name: str, factory: BackendFactory) -> None:
        """A later one of the same name takes the earlier one's place, for backends built from then on."""
        self._factories[name] = factory

    def factory(self, name: str) -> BackendFactory:
        """Raises BackendUnknown, which names those that there are."""
        try:
            return self._factories[name]
        except KeyError:
            from ..errors import BackendUnknown

            known = ", ".join(sorted(self._factories)) or "none"
            raise BackendUnknown(
                f"no backend {name!r} is registered (there are: {known}); register it, or name another for the session"
            ) from None

    def names(self) -> list[str]:
        return sorted(self._factories)


_METHODS: Final = ("send", "stop", "dispose")


def unsuited(made: Any) -> str | None:
    """What is wrong with an object that is to be a backend, as far as a look at it tells."""
    name = made.__name__ if isinstance(made, type) else type(made).__name__
    if isinstance(made, type):
        return f"the class {name} and no object of it"
    if lacks := [method for method in _METHODS if not callable(getattr(made, method, None))]:
        return f"a {name} without {', '.join(f'{method}()' for method in lacks)}"
    send = inspect.unwrap(made.send)
    if inspect.iscoroutinefunction(send) or inspect.isgeneratorfunction(send):
        return f"a {name} whose send() is no async generator: an `async def` that yields"
    for method in ("stop", "dispose"):
        function = inspect.unwrap(getattr(made, method))
        if inspect.isroutine(function) and not inspect.iscoroutinefunction(function):
            return f"a {name} whose {method}() is no `async def`"
    return None


def text_of(content: Blocks) -> str:
    """The text of a message, its text blocks joined."""
    return "\n".join(str(block["text"]) for block in content if block.get("kind") == "text" and "text" in block)


__all__ = [
    "Backend",
    "BackendContext",
    "BackendFactory",
    "BackendRegistry",
    "Boundary",
    "ContinuedFrom",
    "InteractionKind",
    "Interactions",
    "SendInput",
    "SteeringLease",
    "StopMode",
    "StopReason",
    "text_of",
    "unsuited",
]
