"""A plan that is out of date: each code of what has changed, in their order, and nothing where nothing has."""

from collections.abc import Callable

import attrs
import pytest

from maka.journal.state import State
from maka.runtime.continuation import drafts
from maka.runtime.continuation.codes import STALE
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


def lost() -> Facts:
    session, state, conversation = interrupted(), State(), Conversation()
    for event in events(session, lost=[1]):
        state.apply(event)
        conversation.observe(event)
    return Facts("s1", state, conversation)


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


def updated(key: str) -> Facts:
    session = interrupted()
    session.add("session/updated", {"patch": {key: "another"}})
    return session.facts


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
    ("source_identity_changed", lambda: Session().facts),
    ("source_identity_changed", lost),
    ("source_terminal_changed", lambda: other_end("failed")),
    ("source_high_water_changed", lambda: other_end("interrupted", more=True)),
    ("source_configuration_changed", lambda: updated("model")),
    ("source_configuration_changed", lambda: updated("permission_mode")),
    ("source_configuration_changed", lambda: updated("connection")),
    ("source_configuration_changed", lambda: updated("cwd")),
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


@pytest.mark.parametrize(("code", "facts"), FACTS, ids=lambda each: str(each)[:40])
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
    session.add("session/updated", {"patch": {"model": "another"}})
    assert refused(continuation, session.facts).code == "source_configuration_changed"


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
    session.plain_turn()
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
    ):
        found.append(refused(planned, session.facts, mended).code)
    assert found == sorted(found, key=list(STALE).index)
    assert len(set(found)) == len(found) == 9


def test_every_code_has_its_case() -> None:
    """What becomes of a call that is executed again is found out behind the start, and is no matter of facts."""
    tested = {code for code, _ in FACTS} | {code for code, _ in SAFETY}
    assert tested | {"source_replay_changed", "dangling_tool_state"} == set(STALE)
