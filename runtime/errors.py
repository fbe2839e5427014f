"""What a program can meet at the runtime, one closed family. Every message says what happened and what to do."""

from typing import Final

#: Characters of a failure's text in the journal and in sentences: somebody else worded it.
SAID: Final = 2_000


def describe(error: BaseException, *, typed: bool = False) -> str:
    """The text of a failure, bounded. Whatever wrote it, this never raises.

    ``typed``: with its type before it, unless it is one of these, whose text is a sentence for a person.
    """
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:
        return f"{name}, whose text cannot be shown"
    named = typed and not isinstance(error, RuntimeFailure)
    return (f"{name}: {text}" if named and text else text or name)[:SAID]


class RuntimeFailure(Exception):
    """Base of the family. What a journal raises is a JournalError instead."""


class SessionBusy(RuntimeFailure):
    """Something is open or queued in the session, and what was asked needs it to be at rest."""

    code: Final = "session_busy"


class SessionArchived(RuntimeFailure):
    """The session is archived: it takes no turns until it is taken out again."""

    code: Final = "session_archived"


class SessionQuarantined(RuntimeFailure):
    """A backend of the session failed to stop. ``permanent``: for the life of this process."""

    def __init__(self, message: str, *, permanent: bool) -> None:
        super().__init__(message)
        self.permanent = permanent


class TurnCancelled(RuntimeFailure):
    """The turn was stopped before it began: nothing of it is in the journal."""


class ForkRefused(RuntimeFailure):
    """There is no closed turn to fork the session at."""


class ContinuationParked(RuntimeFailure):
    """What is to be resumed is no plan to continue. ``rejection_reasons`` are the plan's."""

    def __init__(self, message: str, *, rejection_reasons: tuple[str, ...]) -> None:
        super().__init__(message)
        self.rejection_reasons = rejection_reasons


class ContinuationRevalidationError(RuntimeFailure):
    """What a plan relied on has changed, and nothing was claimed, or the run that it started was ended before its
    backend was called. ``code`` says what: see docs/continuations.md, "When a plan is out of date".
    """

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class SettleRefused(RuntimeFailure):
    """There is nothing to settle by that name. ``code``: ``claim_unknown``, ``claim_not_indeterminate``,
    ``call_unknown``, ``call_ambiguous``, ``call_settled``, ``handoff_unknown``, ``handoff_not_pending``.
    """

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class HandoffRefused(RuntimeFailure):
    """A run that cannot be handed over, or a pause that none can have. ``code``: ``pause_invalid``, ``run_unknown``,
    ``handoff_pending`` (it is being handed over already), ``run_over``, ``composition_missing``, ``not_reached`` (the
    run came to no step boundary), ``would_park`` (no successor could go on from it).
    """

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class PlanRefused(RuntimeFailure):
    """A change of a plan that is not taken. ``code``: ``plan_unknown``, ``revision_conflict`` (another revision is the
    newest), ``plan_approved``, ``plan_active`` (a session has one execution at a time), ``plan_not_active``,
    ``request_conflict`` (the same request id with something else).
    """

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class CopyRefused(RuntimeFailure):
    """Turns that are not copied into another session; fork it instead. ``code``: ``turn_unknown``,
    ``branch_runtime_fact_rewrite_unsupported`` (a run of theirs has a claim, a start or a pause, whose ids cannot be
    rewritten), ``copy_not_offered``.
    """

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class BackendUnknown(RuntimeFailure):
    """A session names a backend that is not registered."""


class BackendTimeout(RuntimeFailure):
    """A backend did not stop, dispose or end in the time that it had."""


class KernelClosed(RuntimeFailure):
    """The kernel was closed and starts nothing any more."""


class InteractionRefused(RuntimeFailure):
    """A request or an answer that is not taken. ``code``: ``capacity_exceeded``, ``invalid_request``, ``run_closed``,
    ``not_found``, ``operation_conflict`` (kind or number of answers do not fit), ``already_resolved``.
    """

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class RuntimeInteractionInvariantError(RuntimeFailure):
    """The program used interactions in a way that cannot be right."""


class RuntimeInteractionFailStopError(RuntimeFailure):
    """The durable close of a run's interactions failed. ``authority_failure`` is the original error."""

    def __init__(self, message: str, authority_failure: BaseException) -> None:
        super().__init__(message)
        self.authority_failure = authority_failure
        self.__cause__ = authority_failure


class RuntimeOwnerCleanupError(RuntimeFailure):
    """Several things failed while a run was cleaned up. ``cause`` is an ExceptionGroup, each failure in it once."""

    def __init__(self, message: str, cause: BaseException) -> None:
        super().__init__(message)
        self.cause = cause
        self.__cause__ = cause


class AppError(RuntimeFailure):
    """The application that is to run could not be found or loaded, or is none."""
