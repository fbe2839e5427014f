"""Is the agent that a turn was handed over to the same one? Its composition against its source's, as both are recorded.

The source's has to be on record before the boundary is claimed; the successor's is recorded by its backend behind the
start, and what differs then ends it before that backend is called.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from ...journal.errors import InvalidEvent, JournalError
from ...journal.events import JsonObject
from ..composition import RunComposition, drift
from ..continuation.shapes import Continuation
from ..errors import ContinuationRevalidationError, describe
from ..journals import OpenSession

#: The recorded composition of a run of the session; None where there is none.
CompositionReader = Callable[[OpenSession, str], Awaitable[JsonObject | None]]


async def recorded_composition(session: OpenSession, run_id: str) -> JsonObject | None:
    """A CompositionReader over the journal."""
    return None if session.conversation is None else session.conversation.composition_of(run_id)


async def source_of(continuation: Continuation, session: OpenSession, reader: CompositionReader) -> RunComposition:
    """What the source was made of. Raises ContinuationRevalidationError, JournalError."""
    run_id = continuation.source["run_id"]
    try:
        recorded = await reader(session, run_id)
    except JournalError:
        raise
    except Exception as error:
        raise ContinuationRevalidationError(
            f"the Run Composition of run {run_id} of session {continuation.session_id} could not be read "
            f"({describe(error, typed=True)}), so nothing was claimed; mend what reads it, and resume again",
            code="source_identity_changed",
        ) from error
    try:
        return RunComposition.from_json(recorded)
    except ValueError as error:
        why = "" if recorded is None else f" that can be read ({error})"
        raise ContinuationRevalidationError(
            f"run {run_id} of session {continuation.session_id} has no durable Run Composition{why}, so nobody can "
            "tell whether a successor is the same agent; nothing was claimed. Give the handoff up, and send a new "
            "message",
            code="source_identity_changed",
        ) from error


async def prepared(
    continuation: Continuation, source: RunComposition, backend: Any, session: OpenSession, reader: CompositionReader
) -> None:
    """Has the backend record what the successor is made of. Raises ContinuationRevalidationError where it does not, or
    where that is another agent, and JournalError.
    """
    run = f"run {continuation.run_id} of session {continuation.session_id}"
    prepare = getattr(backend, "prepare_run_composition", None)
    if prepare is None:
        raise _unavailable(f"the backend of {run} offers no composition preparation (`prepare_run_composition`)")
    try:
        await prepare(continuation.run_id, continuation.turn_id)
    except InvalidEvent as error:
        raise _unavailable(f"the composition preparation of {run} recorded what is refused ({error})") from error
    except JournalError:
        raise
    except Exception as error:
        raise _unavailable(f"the composition preparation of {run} failed ({describe(error, typed=True)})") from error
    recorded = await reader(session, continuation.run_id)
    if recorded is None:
        raise _unavailable(f"the backend of {run} was asked for a durably committed Run Composition and recorded none")
    try:
        now = RunComposition.from_json(recorded)
    except ValueError as error:
        raise _unavailable(f"the Run Composition of {run} cannot be read ({error})") from error
    if changed := drift(source, now):
        raise ContinuationRevalidationError(
            f"the Run Composition of {run} is not its source's, so it would be another agent: {', '.join(changed)} "
            "changed. Put that back and continue the run, or send a new message",
            code="composition_changed",
        )


def _unavailable(what: str) -> ContinuationRevalidationError:
    return ContinuationRevalidationError(
        f"{what}, so nobody can tell whether it is the same agent; mend the backend, then continue the run or send a "
        "new message",
        code="composition_unavailable",
    )
