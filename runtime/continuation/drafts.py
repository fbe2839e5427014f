"""The events of the protocol: a claim, its run, its start, and the end of one that nobody will finish. No I/O."""

from typing import Final

import attrs

from ...journal.events import Draft, JsonObject, RunHeader
from ...journal.state import State
from ...journal.views.continuations import Claim, ClaimState, claim_state
from ...journal.views.problem import text_of
from ...journal.views.runs import Run
from ...journal.views.turn import OpenTurn
from ..errors import SettleRefused
from .shapes import Continuation, Facts

#: What a successor has of its source's header beside the configuration.
_INHERITED: Final = ("parent_run_id", "resumed_from_run_id", "retried_from_run_id", "agent_id", "agent_name")
_UNKNOWN_START: Final = (
    "The run was started, and a crash came before anything of it was recorded: whether it reached the provider is not "
    "known, and it was not started again."
)
#: Why there is nothing to settle about a claim.
_UNSETTLED: Final[dict[ClaimState, str]] = {
    "reserved": "waits for its successor to start; resume that, or give the handoff up (`--handoff ID`)",
    "repair_required": "was cut off at a known place; repair the session instead (`maka journal repair` does)",
    "started_indeterminate": "has a run of which another claim is the owner; look with `maka journal inspect`",
    "settled": "has a run that is over: there is nothing to settle",
}


def protocol(continuation: Continuation, facts: Facts, *, now: int) -> list[Draft]:
    """Claim, run and start of what was planned, as far as they are not in the journal: a successor's claim, and its
    run, may be there from a resume that was cut off. Each has to be durable before the next is written.
    """
    held = facts.state.continuations.claims.get(continuation.claim_id)
    if held is None:
        fresh = claim(continuation, facts, claimed_at=now)
        return [fresh, created(fresh), start(fresh)]
    there = facts.state.runs.known(held.target_run_id)
    return [start(held)] if there else [created(held), start(held)]


def claim(continuation: Continuation, facts: Facts, *, claimed_at: int) -> Draft:
    """The continuation/claim that reserves the boundary for the run. ``claimed_at``: Unix milliseconds."""
    turns, handoff = facts.state.turns, continuation.purpose == "handoff"
    number = turns.open[continuation.turn_id].turn if handoff else turns.last + 1
    data: JsonObject = {"claim_id": continuation.claim_id, "purpose": continuation.purpose, "turn": number}
    if not handoff and (previous := _newest_turn(facts.state)) is not None:
        data["previous_root_turn_id"] = previous
    data |= {
        "boundary": continuation.boundary,
        "boundary_digest": continuation.boundary_digest,
        "replay_digest": continuation.replay_digest,
        "replay_through_seq": continuation.replay_through_seq,
        "source": continuation.source,
        "target_run": _target(continuation, facts, claimed_at),
        "claimed_at": claimed_at,
    }
    return Draft("continuation/claim", data)


def created(claim: Draft | Claim) -> Draft:
    """The run/created of the run that a claim has reserved."""
    return Draft("run/created", {"run": claim.data["target_run"]})


def start(claim: Draft | Claim) -> Draft:
    """The continuation/start of the run that a claim has reserved, by a runtime that calls the provider next."""
    data, run = claim.data, claim.data["target_run"]
    return Draft(
        "continuation/start",
        {
            "protocol": "continuation_start_v2",
            "start_kind": "runtime_admission",
            "purpose": data["purpose"],
            "claim_id": data["claim_id"],
            "run_id": run["run_id"],
            "turn_id": run["turn_id"],
            "boundary_digest": data["boundary_digest"],
            "replay_digest": data["replay_digest"],
            "source": data["source"],
        },
    )


def settle(state: State, claim_id: str) -> list[Draft]:
    """The end of a run that was started by a claim and of which nothing more is known: failed, never called again.

    What it asked a person and got no answer to is closed first. Raises SettleRefused.
    """
    found = next((each for each in _indeterminate(state) if each[1].claim_id == claim_id), None)
    if found is None:
        raise _refusal(state, claim_id)
    turn, run = found
    ids = {"turn_id": turn.turn_id, "run_id": run.run_id}
    reason = {"kind": "failed", "failure_class": "continuation_indeterminate", "message": _UNKNOWN_START}
    closure = {"kind": "closure", "reason": "host_restarted"}
    return [
        *(
            Draft("interaction/resolved", {"interaction_id": item.interaction_id, "outcome": dict(closure)})
            for run_id in turn.run_ids
            for item in state.interactions.of_run(run_id)
        ),
        Draft("turn/end", {**ids, "reason": reason, "synthesized": True}),
        Draft("run/settled", {"run_id": run.run_id}),
    ]


def unfinished(state: State) -> str | None:
    """The claim that has to be settled before a turn can begin: an open turn rests at its start."""
    return next((run.claim_id for _, run in _indeterminate(state)), None)


def _indeterminate(state: State) -> list[tuple[OpenTurn, Run]]:
    """Open turns that rest at a continuation/start, and the run that it started; not those that a repair would end."""
    return [
        (turn, run)
        for turn in state.turns.open.values()
        if turn.rest == "indeterminate"
        and state.turns.left_alone(turn)
        and (run := state.runs.live.get(turn.newest_run)) is not None
        and run.claim_id is not None
    ]


def _refusal(state: State, claim_id: str) -> SettleRefused:
    claim = state.continuations.claims.get(claim_id)
    if claim is not None:
        said = _UNSETTLED[claim_state(claim, state.runs, state.turns)]
        return SettleRefused(f"claim {claim_id} {said}", code="claim_not_indeterminate")
    there = ", ".join(str(run.claim_id) for _, run in _indeterminate(state))
    known = f"to be settled: {there}" if there else "no claim of this session is to be settled"
    return SettleRefused(f"there is no claim {claim_id}; {known}", code="claim_unknown")


def _newest_turn(state: State) -> str | None:
    run = None if state.runs.newest is None else state.runs.own(state.runs.newest)
    return None if run is None else run.turn_id


def _target(continuation: Continuation, facts: Facts, created_at: int) -> JsonObject:
    """The run header that is reserved; keys in the order of the format, none without a value."""
    values: JsonObject = {
        **{key: getattr(continuation, key) for key in ("run_id", "invocation_id", "turn_id", "root", "max_steps")},
        **continuation.configuration,
        "workspace_identity": continuation.safety.workspace_identity,
        "created_at": created_at,
        "continuation": {
            "claim_id": continuation.claim_id,
            "boundary_digest": continuation.boundary_digest,
            "source": continuation.source,
        },
    }
    if continuation.purpose == "resume":
        values["resumed_from_run_id"] = continuation.source["run_id"]
    else:
        header = facts.conversation.header_of(continuation.source["run_id"]) or {}
        values |= {key: text_of(header.get(key)) for key in _INHERITED}
    return {field.name: value for field in attrs.fields(RunHeader) if (value := values.get(field.name)) is not None}
