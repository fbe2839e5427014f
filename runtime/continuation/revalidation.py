"""A plan against the facts as they are now: still the same, or the code of what has changed. No I/O."""

from collections.abc import Iterator, Sequence

from ...journal.events import Purpose
from ...journal.views.turn import Unknown
from ..errors import ContinuationRevalidationError
from .case import CONFIGURED, Case, handoff_of, invocation_taken, run_taken, turn_taken
from .codes import STALE, listed, said, shown
from .gates import obstacles, refusal
from .lineage import Source, source_of
from .safety import SafetyObservation, Unobserved, same_workspace
from .shapes import Continuation, Diagnostic, Facts


def revalidate(continuation: Continuation, facts: Facts, observation: SafetyObservation | Unobserved) -> None:
    """Raises ContinuationRevalidationError for the first thing that a plan relied on and that is not so any more.

    ``code`` is of ``STALE``, or for what none of these covers the reason that a new plan would park for.
    """
    _raise_first(continuation, _changes(continuation, facts, observation))


def recheck_safety(continuation: Continuation, observation: SafetyObservation | Unobserved) -> None:
    """Raises ContinuationRevalidationError where the workspace is not as it was when the plan was made."""
    _raise_first(continuation, _safety_changes(continuation, observation))


def still_unknown(continuation: Continuation, calls: Sequence[Unknown]) -> ContinuationRevalidationError:
    """Calls were executed again and nobody knows what came of them even so: nothing goes on over them."""
    names = listed([f"{call.name} ({call.call_id})" for call in calls])
    code = "dangling_tool_state"
    return ContinuationRevalidationError(
        f"run {continuation.run_id} of session {continuation.session_id} was to execute calls again, and of these the "
        f"outcome is unknown: {names}. {STALE[code].remedy}",
        code=code,
    )


def _raise_first(continuation: Continuation, changes: Iterator[Diagnostic]) -> None:
    for change in changes:
        where = f"the plan to continue run {continuation.source['run_id']} of session {continuation.session_id}"
        raise ContinuationRevalidationError(
            f"{where} does not hold any more: {change.message[:1].lower()}{change.message[1:]}", code=change.code
        )


def _stale(code: str, what: str, purpose: Purpose = "resume") -> Diagnostic:
    return Diagnostic(code, f"{what}. {STALE[code].advice(purpose)}")


def _changes(
    continuation: Continuation, facts: Facts, observation: SafetyObservation | Unobserved
) -> Iterator[Diagnostic]:
    yield from _conflicts(continuation, facts)
    run_id = continuation.source["run_id"]
    source = source_of(facts.state, facts.conversation, run_id)
    if source is None:
        yield _stale("source_identity_changed", f"there is no run {run_id} in the journal")
        return
    case = _case(continuation, facts, source)
    yield from _source_changes(continuation, case)
    yield from _configuration_changes(continuation, facts)
    yield from _safety_changes(continuation, observation)
    yield from _reasons(continuation, case)
    if (newest := facts.state.runs.newest) != continuation.newest_run_id:
        was = continuation.newest_run_id
        yield _stale("session_advanced", f"the newest run of the session was {was} and is {newest}")


def _case(continuation: Continuation, facts: Facts, source: Source) -> Case:
    """What a new plan for the run would decide on. Before it does, the workspace is found to be the planned one."""
    again = [call for call in facts.state.turns.unknown.values() if call.call_seq in continuation.rerun]
    return Case(
        facts,
        source,
        continuation.safety,
        continuation.purpose,
        continuation.turn_id,
        frozenset(call.recovery for call in again if call.recovery is not None),
        handoff_of(facts.state, source),
    )


def _reasons(continuation: Continuation, case: Case) -> Iterator[Diagnostic]:
    """All that a new plan would park for."""
    if (alone := refusal(case)) is not None:
        yield alone
        return
    yield from obstacles(case)
    invocation_id = continuation.invocation_id
    if continuation.claim_id not in case.state.continuations.claims and invocation_taken(case, invocation_id):
        yield said("continuation_identity_reused", f"Invocation {invocation_id} is there already")


def _conflicts(continuation: Continuation, facts: Facts) -> Iterator[Diagnostic]:
    state, run_id = facts.state, continuation.run_id
    claims = state.continuations.claims
    holder = state.continuations.by_boundary.get(continuation.boundary_digest)
    same = claims.get(continuation.claim_id)
    if holder is not None and holder != continuation.claim_id:
        yield _stale("continuation_claim_conflict", f"claim {holder} has claimed it")
    if same is not None and not _reserved(continuation, facts):
        yield _stale("continuation_claim_conflict", f"claim {continuation.claim_id} is in the journal already")
    if continuation.purpose == "resume" and continuation.claim_id in state.continuations.reserved:
        yield _stale("continuation_claim_conflict", f"claim {continuation.claim_id} is reserved for a handoff")
    if same is None and run_taken(state, run_id):
        yield _stale("target_run_conflict", f"run {run_id} is in the journal already")
    if continuation.purpose == "handoff":
        return
    if turn_taken(state, continuation.turn_id):
        yield _stale("target_run_conflict", f"turn {continuation.turn_id} is in the journal already")
    for turn_id in state.turns.open:
        yield _stale("target_run_conflict", f"turn {turn_id} of the session stands open")
    for _, turn_id, purpose in state.turns.claimed.values():
        if purpose == "resume":
            yield _stale("target_run_conflict", f"turn {turn_id} is claimed and has not started")


def _reserved(continuation: Continuation, facts: Facts) -> bool:
    """Does the claim on disk hold the boundary for this very successor, which has not started?"""
    claim = facts.state.continuations.claims[continuation.claim_id]
    wanted = ("handoff", continuation.run_id, continuation.boundary_digest, None)
    held = (claim.purpose, claim.target_run_id, claim.data["boundary_digest"], claim.start_seq)
    return continuation.purpose == "handoff" and wanted == held


def _source_changes(continuation: Continuation, case: Case) -> Iterator[Diagnostic]:
    source, planned = case.source, continuation.source
    for key in ("invocation_id", "turn_id"):
        if getattr(source, key) != planned[key]:
            yield _stale("source_identity_changed", f"its {key} was {planned[key]} and is {getattr(source, key)}")
    yield from _end_changes(continuation, source)
    replay, digest = case.replayed
    if (digest, replay.through_seq) != (continuation.replay_digest, continuation.replay_through_seq):
        yield _stale("source_replay_changed", "what would be replayed is not what was planned")


def _end_changes(continuation: Continuation, source: Source) -> Iterator[Diagnostic]:
    planned = continuation.source["high_water"]
    if source.high_water is None:
        yield _stale("source_terminal_changed", f"it ended with event {planned}, and has no end now")
    elif source.high_water != planned:
        yield _stale("source_high_water_changed", f"it ended with event {planned}, and now with {source.high_water}")
    elif source.sum != continuation.boundary_digest:
        yield _stale("source_terminal_changed", f"event {planned}, its end, is another one than it was")


def _configuration_changes(continuation: Continuation, facts: Facts) -> Iterator[Diagnostic]:
    """Where a successor runs is its source's; that the place is still the same one is the workspace's identity."""
    then, now = continuation.configuration, facts.conversation.configuration()
    keys = CONFIGURED if continuation.purpose == "handoff" else (*CONFIGURED, "cwd")
    if changed := [key for key in keys if then.get(key) != now.get(key)]:
        what = "; ".join(f"{key} was {shown(then.get(key))} and is {shown(now.get(key))}" for key in changed)
        yield _stale("source_configuration_changed", what, continuation.purpose)


def _safety_changes(continuation: Continuation, observation: SafetyObservation | Unobserved) -> Iterator[Diagnostic]:
    if isinstance(observation, Unobserved):
        yield _stale("safety_observation_unavailable", f"the workspace could not be observed: {observation}")
        return
    planned = continuation.safety
    if not same_workspace(planned.workspace_identity, observation.workspace_identity):
        yield _stale("workspace_identity_changed", "the workspace is another one", continuation.purpose)
    if not observation.background_operations_settled:
        yield _stale("background_operation_started", "something that an earlier run began goes on in the background")
    was, now = set(planned.available_tool_names), set(observation.available_tool_names)
    if was != now:
        yield _stale("tool_catalog_changed", _difference(was, now))
    if observation.checkpoint != planned.checkpoint:
        yield _stale("workspace_checkpoint_changed", "the workspace's checkpoint is another one, or was not restored")


def _difference(was: set[str], now: set[str]) -> str:
    parts = [("gone", sorted(was - now)), ("new", sorted(now - was))]
    return "; ".join(f"tools that are {word}: {listed(names)}" for word, names in parts if names)
