"""What a continuation is planned from, what a plan says, and what can be started by it. No I/O."""

from typing import Final, Literal

import attrs

from ...journal.events import JsonObject, Purpose
from ...journal.state import State
from ..conversation import Conversation
from .safety import SafetyObservation

Disposition = Literal["continue", "park"]


@attrs.frozen
class Facts:
    """A session as its journal tells it, nothing closed in memory: ``state`` is the fold, ``conversation`` the history,
    both of the same events. They are read and never changed.
    """

    session_id: str
    state: State
    conversation: Conversation


@attrs.frozen
class Prospect:
    """What a run of the session would be made of now, as far as that can be told before there is a backend.

    ``known``: of a composition, values by keys of ``SEMANTICS``; what is not in it nobody knows yet. ``handoff``: can
    its runs be handed over? None: that is not told.
    """

    known: JsonObject = attrs.Factory(dict)
    handoff: bool | None = None


NOTHING_KNOWN: Final = Prospect()


@attrs.frozen
class Diagnostic:
    """Something a person should know: what, where, what to do. ``code`` is a rejection reason, or what it is about."""

    code: str
    message: str

    def __str__(self) -> str:
        return self.message


@attrs.frozen(kw_only=True)
class Continuation:
    """A run that can be started: what it goes on from, and under which ids. Nothing is reserved by it.

    ``source``: ``{run_id, invocation_id, turn_id, high_water}``. ``boundary``: ``{"segments": [{session_id,
    invocation_id, run_id, turn_id, first_seq, last_seq, sum}]}``, oldest first. ``replay``: the messages that a model
    is given, with ``replay_digest`` the 64 hex of SHA-256 of their compact JSON with sorted keys; of the lineage
    nothing behind event ``replay_through_seq`` is in them. ``configuration``: the ``{backend, model, connection, cwd,
    permission_mode}`` that the run would have. ``sandbox_boundary_denied``: did a person refuse a sandbox boundary in
    a run of the boundary? ``composition``: the source's, or None. ``rerun``: the unknown calls that are executed again
    before the model is asked, by the number of their tool/call. ``newest_run_id``: the session's run that was opened
    last when this was planned.
    """

    session_id: str
    purpose: Purpose
    invocation_id: str
    run_id: str
    turn_id: str
    claim_id: str
    source: JsonObject
    boundary: JsonObject
    boundary_digest: str
    replay: tuple[JsonObject, ...]
    replay_digest: str
    replay_through_seq: int
    safety: SafetyObservation
    configuration: JsonObject
    root: JsonObject
    max_steps: int | None
    sandbox_boundary_denied: bool
    composition: JsonObject | None
    newest_run_id: str | None
    rerun: tuple[int, ...] = ()

    def to_json(self) -> JsonObject:
        """Without the replay's messages, of which ``replay_messages`` is the number."""
        values = attrs.asdict(self, recurse=False)
        values["safety"] = self.safety.to_json()
        values["rerun"] = list(self.rerun)
        return {
            "replay_messages" if key == "replay" else key: len(value) if key == "replay" else value
            for key, value in values.items()
        }


@attrs.frozen(kw_only=True)
class ContinuationPlan:
    """``rejection_reasons``: stable codes, each once, in the order of the checks; empty for ``continue``.

    ``diagnostics`` are for people; there may be some for ``continue`` too (what has changed since the source ran).
    """

    session_id: str
    source_run_id: str | None
    disposition: Disposition
    rejection_reasons: tuple[str, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    continuation: Continuation | None = None

    def to_json(self) -> JsonObject:
        """``{session_id, source_run_id, disposition, rejection_reasons, diagnostics: [{code, message}],
        continuation: {…} | null}``.
        """
        return {
            "session_id": self.session_id,
            "source_run_id": self.source_run_id,
            "disposition": self.disposition,
            "rejection_reasons": list(self.rejection_reasons),
            "diagnostics": [{"code": each.code, "message": each.message} for each in self.diagnostics],
            "continuation": None if self.continuation is None else self.continuation.to_json(),
        }
