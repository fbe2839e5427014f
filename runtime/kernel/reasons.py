"""What a backend said or raised → how its turn ends; and whether what it yields can be taken at all. No I/O."""

from typing import Any, Final

from ...journal.events import JsonObject
from ..errors import SAID, describe
from ..model import ModelError
from ..session_events import END_OF, KINDS, SessionEvent, missing_key

MISSING: Final[JsonObject] = {
    "kind": "failed",
    "failure_class": "missing_terminal_event",
    "message": "the backend's stream ended without `complete`, so nobody knows how the turn ended; mend the backend",
}
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


def refused(kind: str, error: Exception) -> Misbehaved:
    """An event that the ledger refused."""
    failure_class = "provider_invalid_response" if kind in _OF_RESPONSE else "backend_invalid_event"
    return Misbehaved(failure_class, f"{kind} cannot be taken: {error}")


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
        raise refused(event.kind, ValueError(f"it lacks {key}"))
    else:
        return
    raise Misbehaved("backend_invalid_event", f"{problem}; mend the backend")


def said(stop_reason: Any, error: JsonObject, abort_source: str) -> JsonObject:
    """How a turn ends by its ``complete``, and by the ``error`` or ``abort`` that came before."""
    kind = END_OF.get(stop_reason) if isinstance(stop_reason, str) else None
    if kind == "aborted":
        return {"kind": kind, "source": named(abort_source)}
    if kind is not None and kind != "failed":
        return {"kind": kind}
    failure_class = error.get("failure_class") or ("backend_error" if kind == "failed" else stop_reason)
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
