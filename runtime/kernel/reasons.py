"""What a backend said or raised → how its turn ends; and whether what it yields can be taken at all. No I/O."""

from typing import Any, Final

from ...journal.events import JsonObject
from ..errors import SAID, describe
from ..ledger import refusal
from ..model import ModelError
from ..session_events import END_OF, KINDS, SessionEvent, missing_key

#: A response that the journal refuses is the provider's; any other event is the backend's.
_OF_RESPONSE: Final = frozenset(
    {"assistant_message", "text_delta", "thinking_delta", "text_complete", "thinking_complete", "token_usage"}
)


#: Characters of a word that somebody else chose.
_WORD: Final = 256


class Misbehaved(Exception):
    """The backend yielded what cannot be taken."""

    def __init__(self, failure_class: str, message: str) -> None:
        super().__init__(message)
        self.failure_class = failure_class


def missing() -> Misbehaved:
    """The stream ended and the backend had not said how the turn does."""
    text = "the backend's stream ended without `complete`, so nobody knows how the turn ended; mend the backend"
    return Misbehaved("missing_terminal_event", text)


def went_on(event: SessionEvent) -> Misbehaved:
    """The backend was told to pause, and goes on."""
    text = f"the backend was told to pause and yielded {event.kind} behind that; end `send` there, mend the backend"
    return Misbehaved("backend_error", text)


def refused(event: SessionEvent, error: Exception) -> Misbehaved:
    """An event that the ledger refused."""
    if event.kind in _OF_RESPONSE and refusal(event.kind, event.data) is None:
        return Misbehaved("provider_invalid_response", f"{event.kind} cannot be taken: {error}")
    return Misbehaved("backend_invalid_event", f"{event.kind} cannot be taken: {error}; mend the backend")


def check_event(event: Any, turn_id: str) -> None:
    """Raises Misbehaved for what is no session event of this turn."""
    if not isinstance(event, SessionEvent):
        problem = f"the backend yielded a {type(event).__name__}, which is no SessionEvent"
    elif event.kind not in KINDS:
        problem = f"the backend yielded an event of kind {event.kind!r}, which there is not"
    elif type(event.data) is not dict:
        problem = f"the data of a {event.kind} is a {type(event.data).__name__}"
    elif event.turn_id != turn_id:
        problem = f"the backend yielded a {event.kind} of turn {event.turn_id} in turn {turn_id}"
    elif (key := missing_key(event.kind, event.data)) is not None:
        problem = f"the backend yielded a {event.kind} without {key}"
    elif event.kind == "complete" and not _is_end(event.data["stop_reason"]):
        problem = f"the backend yielded a complete whose stop_reason is none of {', '.join(END_OF)}"
    else:
        return
    raise Misbehaved("backend_invalid_event", f"{problem}; mend the backend")


def _is_end(stop_reason: Any) -> bool:
    return isinstance(stop_reason, str) and stop_reason in END_OF


def said(stop_reason: str, error: JsonObject, abort_source: str) -> JsonObject:
    """How a turn ends by its ``complete``, and by the ``error`` or ``abort`` that came before."""
    kind = END_OF[stop_reason]
    if kind == "aborted":
        return {"kind": kind, "source": named(abort_source)}
    if kind != "failed":
        return {"kind": kind}
    failure_class = error.get("failure_class") or "backend_error"
    message = error.get("message") or f"the backend ended the turn with {stop_reason!r} and did not say why"
    return failed(failure_class, str(message))


def raised(error: BaseException) -> JsonObject:
    """How a turn ends whose backend's stream raised."""
    if isinstance(error, Misbehaved):
        return failed(error.failure_class, str(error))
    if isinstance(error, ModelError):
        return failed(error.kind, describe(error))
    return failed("backend_error", describe(error, typed=True))


def failed(failure_class: object, message: str) -> JsonObject:
    return {"kind": "failed", "failure_class": named(failure_class), "message": message[:SAID]}


def named(word: object) -> str:
    """A word that somebody else chose, as it may stand in the journal."""
    return str(word)[:_WORD]
