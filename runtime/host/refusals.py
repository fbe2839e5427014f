"""What an operation raises → the code and the sentence that its client is told. No I/O but the log."""

from collections.abc import Callable
from typing import Any, Final

from ...journal import errors as journal
from .. import errors as runtime
from ..errors import describe
from ..lifecycle import log
from .protocol import CODES, HostError

_OF_INTERACTION: Final = {"capacity_exceeded": "session_busy", "run_closed": "already_resolved"}


def _of_interaction(error: Any) -> str:
    code: str = error.code
    return _OF_INTERACTION.get(code, code)


def _of_plan(error: Any) -> str:
    return "not_found" if error.code == "plan_unknown" else "operation_conflict"


#: The first that an error is decides: subclasses stand before what they are made of.
REFUSALS: Final[tuple[tuple[type[BaseException], str | Callable[[Any], str]], ...]] = (
    (HostError, lambda error: error.code),
    (journal.SessionNotFound, "not_found"),
    (journal.InvalidEvent, "invalid_request"),
    (journal.JournalConflict, "operation_conflict"),
    (journal.JournalError, "session_unavailable"),
    (runtime.SessionQuarantined, "session_unavailable"),
    (runtime.BackendTimeout, "session_unavailable"),
    (runtime.SessionBusy, "session_busy"),
    (runtime.SessionArchived, "session_archived"),
    (runtime.BackendUnknown, "invalid_request"),
    (runtime.InteractionRefused, _of_interaction),
    (runtime.PlanRefused, _of_plan),
    (runtime.ForkRefused, "operation_conflict"),
    (runtime.TurnCancelled, "operation_conflict"),
    (runtime.ContinuationParked, "continuation_parked"),
    (runtime.ContinuationRevalidationError, "operation_conflict"),
    (runtime.KernelClosed, "host_draining"),
)


#: What a sentence calls something in Python → over the protocol.
_NAMES: Final = {
    "`SessionManager.interaction`": "`interaction.query`",
    "; `unarchive` it first": "; take it back first, with `session.unarchive` or `maka session archive ID --undo`",
}


def _over_the_wire(sentence: str) -> str:
    for name, other in _NAMES.items():
        sentence = sentence.replace(name, other)
    return sentence


def refusal(operation: str, error: BaseException) -> tuple[str, str]:
    """Code and sentence. What nobody foresaw goes to the log with its traceback, and the client is told only that."""
    for kind, code in REFUSALS:
        if isinstance(error, kind):
            told = code if isinstance(code, str) else code(error)
            if told in CODES:
                return told, _over_the_wire(describe(error))
    log.error("operation %s failed: %s", operation, describe(error, typed=True), exc_info=error)
    return "internal_failure", f"something in the host failed at {operation}; its log says what, host.log in the root"
