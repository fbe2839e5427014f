"""Has a person refused a run to leave its sandbox? Looked up before another goes on from it, not to ask again."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from ...journal.events import JsonObject
from ..errors import ContinuationRevalidationError
from ..journals import OpenSession

#: What identifies a run, of a segment of a boundary.
_IDENTITY: Final = ("session_id", "invocation_id", "run_id", "turn_id")
#: The session, and the identities of the runs of a boundary, oldest first: ``{session_id, invocation_id, run_id,
#: turn_id}`` each. Whatever it raises keeps the continuation from being claimed: not known is not the same as not
#: denied.
DenialLookup = Callable[[OpenSession, Sequence[JsonObject]], Awaitable[bool]]


def identities_of(boundary: JsonObject) -> list[JsonObject]:
    """Of the runs of a boundary, oldest first."""
    return [{key: segment[key] for key in _IDENTITY} for segment in boundary["segments"]]


async def has_explicit_sandbox_boundary_denial(session: OpenSession, identities: Sequence[JsonObject]) -> bool:
    """A DenialLookup over the journal. Only what a client has answered counts: what was closed because a turn ended was
    refused by nobody. Raises ContinuationRevalidationError (``sandbox_denial_unknown``) for an outcome that can be
    attributed to neither.
    """
    interactions = session.journal.state.interactions
    for identity in identities:
        for interaction_id in interactions.unclear.get(identity["run_id"], ()):
            raise ContinuationRevalidationError(
                f"whether somebody denied sandbox boundary {interaction_id} of run {identity['run_id']} of session "
                f"{session.session_id} cannot be told from its outcome; send a new message instead of going on from it",
                code="sandbox_denial_unknown",
            )
    return any(interactions.denials.get(identity["run_id"]) for identity in identities)
