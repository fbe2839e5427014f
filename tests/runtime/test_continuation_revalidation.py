"""A plan that is out of date: each code of what has changed, in their order, and nothing where nothing has."""

import re
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from maka.journal.state import State
from maka.runtime.continuation import drafts
from maka.runtime.continuation.codes import REASONS, STALE
from maka.runtime.continuation.plan import Continuation, Facts
from maka.runtime.continuation.revalidation import recheck_safety, revalidate
from maka.runtime.continuation.safety import SafetyObservation, Unobserved
from maka.runtime.conversation import Conversation
from maka.runtime.errors import ContinuationRevalidationError
from support.folds import events
from support.plans import SEEN, Session, seen

CHECKPOINT = {"ref": "k", "high_water": 3, "restored": True}


def interrupted() -> Session:
    session = Session()
    session.start("go").end("interrupted")
    return session


def refused(
    continuation: Continuation, facts: Facts, observation: SafetyObservation | Unobserved = SEEN
) -> ContinuationRevalidationError:
    before = facts.state.last_ts, len(facts.state.runs.live)
    with pytest.raises(ContinuationRevalidationError) as caught:
        revalidate(continuation, facts, observation)
    assert (facts.state.last_ts, len(facts.state.runs.live)) == before
    return caught.value


def other_end(kind: str, more: bool = False) -> Facts:
    """The same session, as if its source had ended in another way, or with another event."""
    session = Session()
    session.start("go")
    if more:
        session.add("session/note", {"kind": "x"})
    session.end(kind)
    return session.facts


def never_ended() -> Facts:
    session = Session()
    session.start("go")
    return session.facts


def claimed_by_another() -> Facts:
    session = interrupted()
    session.resume(new_id=iter("abcd").__next__)
    return session.facts


def of_the_same_claim_id() -> Facts:
    session = interrupted()
    session.start("another").end("interrupted")
    session.resume("r2", new_id=iter(["a", "b", "c", "id-4"]).__next__)
    return session.facts


def with_turn(turn_id: str) -> Facts:
    session = interrupted()
    run = session.run("rx", turn_id)
    start = {"turn_id": turn_id, "run_id": "rx", "invocation_id": "i", "turn": 2, "run": run}
    session.add("turn/start", start)
    session.add("turn/end", {"turn_id": turn_id, "run_id": "rx", "reason": {"kind": "completed"}})
    return session.facts


def with_run(run_id: str) -> Facts:
    session = interrupted()
    session.add("run/created", {"run": session.run(run_id, "tx")})
    return session.facts


def admitted(**ids: str) -> Facts:
    session = interrupted()
    data = {"turn_id": "tx", "run_id": "rx", **ids, "previous_root_turn_id": None, "execution": {"kind": "root"}}
    session.add("turn/admitted", {**data, "input": {"content": []}, "input_digest": "0" * 64})
    return session.facts


def open_turn() -> Facts:
    session = interrupted()
    session.start("another")
    return session.facts


def claimed_turn() -> Facts:
    session = interrupted()
    session.start("another").end("interrupted")
    session.resume("r2", upto="claim", new_id=iter("abcd").__next__)
    return session.facts


def resting_turn(stop: bool = False) -> Facts:
    """A message settles it, or a person; nobody else does."""
    session = interrupted()
    session.start("another").end("interrupted")
    session.resume("r2", new_id=iter("abcd").__next__)
    if stop:
        session.add("turn/stop_requested", {"stop_id": "s", "turn_id": "c", "source": "user", "mode": "immediate"})
    return session.facts


def updated(key: str, value: Any = "another") -> Facts:
    session = interrupted()
    session.add("session/updated", {"patch": {key: value}})
    return session.facts


def another_turn(kind: str) -> Facts:
    session = interrupted()
    session.start("another").end(kind)
    return session.facts


def without(session: Session, *lost: int) -> Facts:
    """What a salvage leaves of it where these lines are damaged."""
    state, conversation = State(), Conversation()
    for event in events(session, lost=lost):
        state.apply(event)
        conversation.observe(event)
    return Facts("s1", state, conversation)


#: Each code with facts that a plan for ``interrupted()`` does not fit any more.
FACTS: list[tuple[str, Callable[[], Facts]]] = [
    ("continuation_claim_conflict", claimed_by_another),
    ("continuation_claim_conflict", of_the_same_claim_id),
    ("target_run_conflict", lambda: with_run("id-2")),
    ("target_run_conflict", lambda: with_turn("id-3")),
    ("target_run_conflict", lambda: admitted(turn_id="id-3")),
    ("target_run_conflict", lambda: admitted(run_id="id-2")),
    ("target_run_conflict", open_turn),
    ("target_run_conflict", claimed_turn),
    ("target_run_conflict", resting_turn),
    ("target_run_conflict", lambda: resting_turn(stop=True)),
    ("source_identity_changed", lambda: Session().facts),
    ("source_identity_changed", lambda: without(interrupted(), 1)),
    ("source_terminal_changed", lambda: other_end("failed")),
    ("source_high_water_changed", lambda: other_end("interrupted", more=True)),
    ("source_configuration_changed", lambda: updated("model")),
    ("source_configuration_changed", lambda: updated("permission_mode")),
    ("source_configuration_changed", lambda: updated("connection")),
    ("source_configuration_changed", lambda: updated("cwd")),
    ("session_advanced", lambda: another_turn("completed")),
    ("session_advanced", lambda: another_turn("interrupted")),
]
SAFETY: list[tuple[str, SafetyObservation | Unobserved]] = [
    ("workspace_identity_changed", seen(workspace_identity="another")),
    ("workspace_identity_changed", seen(workspace_identity=None)),
    ("background_operation_started", seen(background_operations_settled=False)),
    ("tool_catalog_changed", seen(available_tool_names=())),
    ("tool_catalog_changed", seen(available_tool_names=("another", "tool"))),
    ("workspace_checkpoint_changed", seen(checkpoint=CHECKPOINT)),
    ("safety_observation_unavailable", Unobserved("the disk is gone")),
]


@pytest.mark.parametrize(("code", "facts"), FACTS)
def test_facts_that_a_plan_does_not_fit(code: str, facts: Callable[[], Facts]) -> None:
    error = refused(interrupted().continuation(), facts())
    assert error.code == code
    assert str(error).startswith("the plan to continue run r1 of session s1 does not hold any more: ")
    assert str(error).endswith(STALE[code].remedy)


@pytest.mark.parametrize(("code", "observation"), SAFETY, ids=lambda each: str(each)[:40])
def test_a_workspace_that_a_plan_does_not_fit(code: str, observation: SafetyObservation | Unobserved) -> None:
    session = interrupted()
    continuation = session.continuation()
    assert refused(continuation, session.facts, observation).code == code
    with pytest.raises(ContinuationRevalidationError) as caught:
        recheck_safety(continuation, observation)
    assert caught.value.code == code


def test_an_outcome_that_came_in_between_changes_the_replay() -> None:
    session = Session()
    session.start("go").step().says("", ["c1"])
    seq = session.tool("c1", "unknown", "read_only")
    session.end_step().end("interrupted")
    continuation = session.continuation(rerun=("read_only",))
    revalidate(continuation, session.facts, SEEN)
    session.outcome(seq)
    assert refused(continuation, session.facts).code == "source_replay_changed"


def test_another_place_of_the_replays_end_changes_it_too() -> None:
    session = interrupted()
    continuation = attrs.evolve(session.continuation(), replay_through_seq=1)
    assert refused(continuation, session.facts).code == "source_replay_changed"


@pytest.mark.parametrize("key", ["invocation_id", "turn_id"])
def test_a_source_of_other_ids(key: str) -> None:
    session = interrupted()
    planned = session.continuation()
    continuation = attrs.evolve(planned, source={**planned.source, key: "another"})
    assert refused(continuation, session.facts).code == "source_identity_changed"


def test_a_source_without_its_end() -> None:
    """The turn that it stands open in is a conflict of its own, but for a successor in the same turn."""
    session = Session()
    session.start("long").step().says("half").end_step()
    session.pause()
    continuation = session.continuation("r1", purpose="handoff")
    revalidate(continuation, session.facts, SEEN)
    assert refused(continuation, never_ended()).code == "source_terminal_changed"


def test_a_successors_own_claim_is_no_conflict_until_it_has_started() -> None:
    session = Session()
    session.start("long").step().says("half").end_step()
    session.pause()
    continuation = session.continuation("r1", purpose="handoff")
    claim = drafts.claim(continuation, session.facts, claimed_at=1)
    for draft in (claim, drafts.created(claim)):
        session.append(draft)
        revalidate(continuation, session.facts, SEEN)
    session.append(drafts.start(claim))
    assert refused(continuation, session.facts).code == "continuation_claim_conflict"


def test_a_successor_keeps_its_sources_configuration_and_another_one_now_is_a_change() -> None:
    session = Session()
    session.start("long").step().says("half").end_step()
    session.pause()
    continuation = session.continuation("r1", purpose="handoff")
    session.add("session/updated", {"patch": {"cwd": "/elsewhere"}})
    revalidate(continuation, session.facts, SEEN)
    session.add("session/updated", {"patch": {"model": "another", "permission_mode": "bypass"}})
    error = refused(continuation, session.facts)
    assert error.code == "source_configuration_changed"
    assert "model was fake-model and is another; permission_mode was ask and is bypass. Change them back" in str(error)
    assert str(error).endswith("or give the handoff up: planning again gives the same.")


def test_all_that_is_set_up_otherwise_is_named_at_once() -> None:
    session = interrupted()
    continuation = session.continuation()
    session.add("session/updated", {"patch": {"model": "another", "connection": "c", "cwd": "/elsewhere"}})
    said = str(refused(continuation, session.facts))
    assert "model was fake-model and is another; connection was null and is c; cwd was /tmp and is /elsewhere. " in said


def test_a_claim_that_is_reserved_for_a_handoff() -> None:
    session = interrupted()
    planned = session.continuation()
    session.start("long").step().says("half").end_step()
    session.pause()
    continuation = attrs.evolve(planned, claim_id="c-r2'")
    assert refused(continuation, session.facts).code == "continuation_claim_conflict"


def test_nothing_has_changed() -> None:
    session = interrupted()
    continuation = session.continuation()
    session.add("session/updated", {"patch": {"name": "renamed"}})
    revalidate(continuation, session.facts, seen(cwd="/elsewhere"))
    recheck_safety(continuation, SEEN)


def test_the_first_that_fits_is_told() -> None:
    """All of it is wrong at once; once one thing is mended the next in the table is told."""
    session = interrupted()
    planned = session.continuation()
    session.start("open")
    session.add("session/updated", {"patch": {"model": "another"}})
    moved = attrs.evolve(planned, source={**planned.source, "turn_id": "x", "high_water": 9}, replay_digest="")
    later = attrs.evolve(moved, source={**planned.source, "high_water": 9})
    other = attrs.evolve(moved, source=planned.source)
    session.add("session/updated", {"patch": {"archived": True}})
    wrong = seen(workspace_identity="x", background_operations_settled=False, available_tool_names=())
    found = [refused(moved, session.facts, wrong).code]
    session.end("interrupted")
    found += [refused(each, session.facts, wrong).code for each in (moved, later, other, planned)]
    session.add("session/updated", {"patch": {"model": "fake-model"}})
    for mended in (
        wrong,
        seen(background_operations_settled=False, available_tool_names=(), checkpoint=CHECKPOINT),
        seen(available_tool_names=(), checkpoint=CHECKPOINT),
        seen(checkpoint=CHECKPOINT),
        SEEN,
    ):
        found.append(refused(planned, session.facts, mended).code)
    session.add("session/updated", {"patch": {"archived": False}})
    found.append(refused(planned, session.facts).code)
    assert found.pop(-2) == "session_archived"
    assert found == sorted(found, key=list(STALE).index)
    assert len(set(found)) == len(found) == 10


# ---------------------------------------------------------------- what a new plan would park for


def salvaged() -> tuple[Continuation, Facts]:
    """A line of the run is gone that no model was told of."""
    session = Session()
    session.start("go").step()
    header = session.seq - 1
    assert session.events[header].type == "request/header"
    session.says("half").end_step().end("interrupted")
    return session.continuation(), without(session, header)


def salvaged_behind() -> tuple[Continuation, Facts]:
    """What is gone may have been a claim."""
    session = interrupted()
    note = session.add("session/note", {"kind": "x"})
    session.add("session/note", {"kind": "y"})
    return session.continuation(), without(session, note)


def unanswered() -> tuple[Continuation, Facts]:
    """The answer to a permission is gone."""
    session = Session()
    session.start("may I?")
    session.add("interaction/requested", {"interaction_id": "i1", **session.ids, "kind": "permission", "request": {}})
    outcome = {"kind": "permission_decision", "decision": "allow"}
    answer = session.add("interaction/resolved", {"interaction_id": "i1", "outcome": outcome})
    session.end("interrupted")
    return session.continuation(), without(session, answer)


def of_a_lost_claim() -> tuple[Continuation, Facts]:
    """What the run is given would be the same if it went back to none."""
    session = interrupted()
    claim = session.seq
    session.resume()
    session.step().says("", ["c1"])
    session.tool("c1")
    session.end_step().end("failed")
    return session.continuation(), without(session, claim)


def handed_over() -> Session:
    session = Session()
    session.start("long").step().says("half").end_step()
    session.pause()
    return session


def given_up() -> tuple[Continuation, Facts]:
    session = handed_over()
    continuation = session.continuation("r1", purpose="handoff")
    session.add("turn/end", {"turn_id": "t1", "run_id": "r1", "reason": {"kind": "interrupted"}})
    return continuation, session.facts


def beside_an_open_turn() -> tuple[Continuation, Facts]:
    session = handed_over()
    continuation = session.continuation("r1", purpose="handoff")
    session.start("another")
    return continuation, session.facts


def put_away() -> tuple[Continuation, Facts]:
    return interrupted().continuation(), updated("archived", True)


def of_an_invocation_that_is_there() -> tuple[Continuation, Facts]:
    session = interrupted()
    continuation = session.continuation()
    session.add("run/created", {"run": session.run("rx", "tx", invocation_id=continuation.invocation_id)})
    return continuation, session.facts


@pytest.mark.parametrize(
    ("code", "case"),
    [
        ("runtime_identity_mismatch", given_up),
        ("runtime_lineage_claim_mismatch", of_a_lost_claim),
        ("pending_permission", unanswered),
        ("terminal_repair_failed", beside_an_open_turn),
        ("source_prefix_unverified", salvaged),
        ("source_prefix_unverified", salvaged_behind),
        ("continuation_identity_reused", of_an_invocation_that_is_there),
        ("session_archived", put_away),
    ],
)
def test_whatever_a_new_plan_would_park_for_makes_the_old_one_stale(
    code: str, case: Callable[[], tuple[Continuation, Facts]]
) -> None:
    assert code in REASONS
    assert code not in STALE
    error = refused(*case())
    assert error.code == code
    assert re.fullmatch(
        r"the plan to continue run \S+ of session s1 does not hold any more: [a-z].*\. .*\.", str(error)
    )


def test_a_call_of_the_same_recovery_that_was_not_planned_for_is_not_run_again() -> None:
    session = Session()
    session.start("go").step().says("", ["c1"])
    session.tool("c1", "unknown", "read_only")
    session.end_step().end("interrupted")
    planned = session.continuation(rerun=("read_only",))
    revalidate(planned, session.facts, SEEN)
    assert refused(attrs.evolve(planned, rerun=()), session.facts).code == "dangling_tool_state"


def test_every_code_has_its_case() -> None:
    """What becomes of a call that is executed again is found out behind the start, and is no matter of facts; so are
    denials and compositions, which are looked up (test_handoff.py).
    """
    tested = {code for code, _ in FACTS} | {code for code, _ in SAFETY}
    looked_up = {"sandbox_denial_unknown", "composition_unavailable", "composition_changed"}
    assert tested | looked_up | {"source_replay_changed", "dangling_tool_state"} == set(STALE)
