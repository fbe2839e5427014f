"""Whether a run can be continued: each reason why not, what a plan that continues holds, and that plans are pure."""

import hashlib
import json
import re
from collections.abc import Callable
from shlex import quote
from typing import Any, get_args

import attrs
import hypothesis.strategies as st
import orjson
import pytest
from hypothesis import example, given, settings

from maka.journal import summary
from maka.journal.codec import decode, encode
from maka.journal.errors import InvalidEvent
from maka.journal.events import Purpose
from maka.journal.shapes import MAX_ID
from maka.journal.state import State
from maka.journal.views.closed import Closed
from maka.repair.closers import abandonment, plan_closers
from maka.runtime.composition import SEMANTICS, hashed
from maka.runtime.continuation import drafts
from maka.runtime.continuation.codes import REASONS, REMARKS, STALE
from maka.runtime.continuation.lineage import candidate
from maka.runtime.continuation.plan import ContinuationPlan, Diagnostic, Facts, Prospect, at_once, plan, would_park
from maka.runtime.continuation.revalidation import revalidate
from maka.runtime.continuation.safety import Unobserved
from maka.runtime.conversation import Conversation
from maka.runtime.errors import ContinuationRevalidationError
from maka.runtime.handoff.pause import HandoffPause
from support.folds import events, fold, text
from support.lineages import COMPOSITION
from support.nonsense import Nonsense
from support.plans import SEEN, WORKSPACE, Session, ids, seen


def interrupted(**header: Any) -> Session:
    session = Session(**header)
    session.start("go on after the crash").end("interrupted")
    return session


def archived() -> Session:
    session = interrupted()
    session.add("session/updated", {"patch": {"archived": True}})
    return session


def called(state: str = "ok", recovery: str = "never") -> Session:
    """A run that was interrupted behind a call, whose result is ``state``."""
    session = Session()
    session.start("go").step().says("", ["c1"])
    session.tool("c1", state, recovery)
    session.end_step().end("interrupted")
    return session


def reasons(planned: ContinuationPlan) -> list[str]:
    assert (planned.disposition == "park") == bool(planned.rejection_reasons) == (planned.continuation is None)
    return list(planned.rejection_reasons)


def told(planned: ContinuationPlan) -> str:
    return "\n".join(map(str, planned.diagnostics))


# ---------------------------------------------------------------- each reason


def forked() -> ContinuationPlan:
    parent, session = interrupted(), Session()
    state, conversation = State(), Conversation()
    for event in parent.events:
        state.inherit(event)
        conversation.observe(event)
    for event in session.events:
        state.apply(event)
        conversation.observe(event)
    return plan(Facts("s1", state, conversation), source_run_id="r1", observation=SEEN, new_id=ids().__next__)


def header_lost() -> ContinuationPlan:
    session = interrupted()
    state, conversation = State(), Conversation()
    for event in events(session, lost=[1]):
        state.apply(event)
        conversation.observe(event)
    return plan(Facts("s1", state, conversation), source_run_id="r1", observation=SEEN, new_id=ids().__next__)


def paused() -> Session:
    session = Session()
    session.start("long").step().says("half").end_step()
    session.pause()
    return session


def faulty(**claimed: Any) -> Session:
    """A continuation whose claim lists a boundary that is not its source's."""
    session = interrupted()
    segment = {**session.state.segments("r1")[0]}
    if "sum" in claimed:
        listed = [{**segment, **claimed}]
    else:
        listed = [{**segment, **claimed}, segment]
    session.admit(session.claim("r1", segments=listed))
    session.end("failed")
    return session


def of_another_lineage() -> Session:
    session = interrupted()
    session.start("another").end("interrupted")
    both = session.state.segments("r1") + session.state.segments("r2")
    session.admit(session.claim("r2", segments=both))
    session.end("failed")
    return session


def created_otherwise() -> Session:
    session = interrupted()
    claim = session.claim("r1")
    session.admit(claim, run={**claim["target_run"], "model": "another"})
    session.end("failed")
    return session


def started_wrongly() -> Session:
    session = interrupted()
    session.admit(session.claim("r1"), replay_digest="1" * 64)
    session.end("failed")
    return session


def claimed(upto: str) -> Session:
    session = interrupted()
    session.resume(upto=upto)
    return session


def ended(settle: bool = True) -> Session:
    session = claimed("start")
    session.step().says("done").end_step().end("completed", settle)
    return session


def gone_on() -> Session:
    session = claimed("start")
    session.end("failed")
    return session


def beside_a_created_run() -> Session:
    session = interrupted()
    session.add("run/created", {"run": session.run("rx", "tx")})
    return session


def stepped() -> Session:
    session = claimed("start")
    session.step()
    return session


def waiting() -> Session:
    session = Session()
    session.start("may I?")
    asked = {"interaction_id": "i1", **session.ids, "kind": "permission", "request": {}}
    session.add("interaction/requested", asked)
    session.end("interrupted")
    return session


def never_began() -> Session:
    session = Session()
    session.add("run/created", {"run": session.run("r1", "t1")})
    return session


def unverified() -> ContinuationPlan:
    session = interrupted()
    session.start("again").end("interrupted")
    state, conversation = State(), Conversation()
    for event in events(session, lost=[2]):
        state.apply(event)
        conversation.observe(event)
    return plan(Facts("s1", state, conversation), source_run_id="r2", observation=SEEN, new_id=ids().__next__)


def lost_behind() -> ContinuationPlan:
    """Whatever stood there, it may have been a claim on the run."""
    session = interrupted()
    note = session.add("session/note", {"kind": "x"})
    session.add("session/note", {"kind": "y"})
    state, conversation = State(), Conversation()
    for event in events(session, lost=[note]):
        state.apply(event)
        conversation.observe(event)
    planned = plan(Facts("s1", state, conversation), source_run_id="r1", observation=SEEN, new_id=ids().__next__)
    assert "gone on from it" in told(planned)
    return planned


def unverified_end() -> ContinuationPlan:
    """Nothing but the run's own end is unproven: what stood before it is lost."""
    session = Session()
    session.start("go")
    note = session.add("session/note", {"kind": "x"})
    session.end("interrupted")
    state, conversation = State(), Conversation()
    for event in events(session, lost=[note]):
        state.apply(event)
        conversation.observe(event)
    run = state.runs.own("r1")
    assert run is not None
    assert state.unverified_seq == run.terminal_seq
    return plan(Facts("s1", state, conversation), source_run_id="r1", observation=SEEN, new_id=ids().__next__)


def unopened_user() -> Session:
    """A run without a message of a user; what a model said before it stands at the head."""
    session = Session()
    session.turn = 1
    run = session.run("r1", "t1")
    session.add("turn/start", {**session.ids, "invocation_id": "i-r1", "turn": 1, "run": run})
    session.step().says("", ["c1"])
    session.tool("c1")
    session.end_step().end("interrupted")
    return session


def without_anchor() -> Session:
    session = Session()
    session.turn = 1
    run = session.run("r1", "t1")
    session.add("turn/start", {**session.ids, "invocation_id": "i-r1", "turn": 1, "run": run})
    session.end("interrupted")
    return session


def asked_behind_its_end() -> Session:
    session = interrupted()
    session.user("out of order")
    return session


def open_turn() -> Session:
    session = Session()
    session.start("never ended")
    return session


#: Each reason with the plans that park for it and for nothing else.
CASES: dict[str, list[Callable[[], ContinuationPlan]]] = {
    "resume_feature_disabled": [lambda: interrupted().plan(enabled=False)],
    "safety_observation_unavailable": [lambda: interrupted().plan(observation=Unobserved("the disk is gone"))],
    "source_run_unreadable": [
        lambda: interrupted().plan("r9"),
        lambda: claimed("claim").plan("id-2"),
        forked,
        header_lost,
    ],
    "resume_candidate_missing": [
        lambda: Session().plan(),
        lambda: Session().plan(purpose="handoff"),
        lambda: interrupted().plan(purpose="handoff"),
        lambda: Session().plain_turn().plan(),
    ],
    "workspace_identity_missing": [lambda: interrupted(workspace_identity=None).plan()],
    "runtime_identity_mismatch": [
        lambda: paused().plan("r1"),
        lambda: paused().plan(),
        lambda: interrupted().plan("r1", purpose="handoff"),
    ],
    "runtime_lineage_missing": [lambda: faulty(run_id="r7").plan("r2")],
    "source_prefix_digest_mismatch": [lambda: faulty(sum="0" * 32).plan("r2")],
    "runtime_lineage_cycle": [lambda: faulty(last_seq=1).plan("r2")],
    "runtime_lineage_claim_mismatch": [lambda: of_another_lineage().plan("r3"), lambda: created_otherwise().plan("r2")],
    "runtime_lineage_start_mismatch": [lambda: started_wrongly().plan("r2")],
    "continuation_claim_repair_required": [
        lambda: claimed("claim").plan("r1"),
        lambda: claimed("created").plan("r1"),
        lambda: claimed("created").plan(),
        lambda: stepped().plan("r1"),
        lambda: stepped().plan(),
        lambda: ended(settle=False).plan("r1"),
        lambda: ended(settle=False).plan(),
    ],
    "continuation_started_indeterminate": [
        lambda: claimed("start").plan("r1"),
        lambda: claimed("start").plan(),
    ],
    "continuation_already_exists": [
        lambda: ended().plan("r1"),
        lambda: ended().plan(),
        lambda: gone_on().plan("r1"),
    ],
    "pending_permission": [lambda: waiting().plan()],
    "terminal_repair_failed": [lambda: open_turn().plan(), lambda: open_turn().plan("r1")],
    "source_prefix_unverified": [unverified, unverified_end, lost_behind],
    "dangling_tool_state": [lambda: called("unknown").plan()],
    "workspace_identity_mismatch": [
        lambda: interrupted().plan(observation=seen(workspace_identity="workspace-2")),
        lambda: interrupted().plan(observation=seen(workspace_identity=None)),
    ],
    "background_operation_pending": [lambda: interrupted().plan(observation=seen(background_operations_settled=False))],
    "checkpoint_restore_failed": [
        lambda: interrupted().plan(observation=seen(checkpoint={"ref": "k", "high_water": 3, "restored": False})),
        lambda: interrupted().plan(observation=seen(checkpoint={"ref": "k", "high_water": 2, "restored": True})),
        lambda: interrupted().plan(observation=seen(checkpoint={})),
    ],
    "tool_catalog_mismatch": [lambda: called().plan(observation=seen(available_tool_names=("other",)))],
    "continuation_identity_reused": [
        lambda: interrupted().plan(turn_id="t1"),
        lambda: interrupted().plan(new_id=iter(["i-r1", "r", "t", "c"]).__next__),
        lambda: gone_on().plan(new_id=iter(["i-r1", "r", "t", "c"]).__next__),
        lambda: beside_a_created_run().plan("r1", new_id=iter(["i-rx", "r", "t", "c"]).__next__),
        lambda: interrupted().plan(new_id=iter(["i", "r1", "t", "c"]).__next__),
        lambda: interrupted().plan(new_id=iter(["i", "r", "t1", "c"]).__next__),
    ],
    "provider_resume_head_unsupported": [lambda: unopened_user().plan()],
    "provider_resume_boundary_unsupported": [lambda: without_anchor().plan(), lambda: asked_behind_its_end().plan()],
    "session_archived": [lambda: archived().plan()],
    "backend_unknown": [lambda: interrupted().plan(backends=["another"])],
    "composition_changed": [
        lambda: paused().plan(purpose="handoff", prospect=Prospect({"base_system_prompt_hash": hashed("another")}))
    ],
    "composition_unavailable": [lambda: paused().plan(purpose="handoff", prospect=Prospect(handoff=False))],
}


@pytest.mark.parametrize(("code", "case"), [(code, case) for code, cases in CASES.items() for case in cases])
def test_it_parks_for_this_and_says_what_to_do(code: str, case: Callable[[], ContinuationPlan]) -> None:
    planned = case()
    assert reasons(planned) == [code]
    said = next(each for each in planned.diagnostics if each.code == code)
    assert re.fullmatch(r"[A-Z].*[.!]", said.message), said
    what, remedy = said.message.split(". ", 1)
    assert what, said
    assert remedy, said
    assert "delete" not in told(planned).lower()


def test_what_came_of_a_continued_run_is_named_where_it_can_be_continued() -> None:
    assert "`maka session resume s1 --run id-2`" in told(gone_on().plan("r1"))
    assert "has completed. Send a new message." in told(ended().plan("r1"))


def test_a_run_that_never_began_has_no_end_either() -> None:
    planned = never_began().plan("r1")
    assert reasons(planned) == [
        "runtime_ledger_empty",
        "terminal_repair_failed",
        "provider_resume_boundary_unsupported",
    ]
    assert "Run r1 was created and never began. Send a new message" in told(planned)


def test_every_reason_has_its_case() -> None:
    assert {*CASES, "runtime_ledger_empty"} == set(REASONS)


@pytest.mark.parametrize("table", [REASONS, STALE, REMARKS], ids=["reasons", "stale", "remarks"])
def test_each_code_says_what_it_means_and_what_to_do(table: dict[str, Any]) -> None:
    for code, row in table.items():
        assert re.fullmatch(r"[a-z_]+", code)
        assert row.meaning.endswith("."), code
        for purpose in get_args(Purpose):
            assert row.advice(purpose).endswith("."), code
            assert "delete" not in row.advice(purpose).lower(), code


#: What no turn waits for any more where it is said.
TAKEN = {
    "resume_feature_disabled",
    "resume_candidate_missing",
    "continuation_started_indeterminate",
    "continuation_already_exists",
    "source_completed",
    "composition_unavailable",
    "composition_changed",
}


@pytest.mark.parametrize("table", [REASONS, STALE, REMARKS], ids=["reasons", "stale", "remarks"])
def test_nobody_is_told_to_send_a_message_or_to_set_another_up_while_a_turn_waits(table: dict[str, Any]) -> None:
    for code in table.keys() - TAKEN:
        advice = table[code].advice("handoff")
        assert "end a new message" not in advice, code
        assert "set the session up" not in advice, code
        assert advice == table[code].remedy or table[code].handed == advice, code


def test_what_accumulates_comes_in_the_order_of_the_checks() -> None:
    session = Session()
    session.start("go").step().says("", ["c1"])
    session.tool("c1")
    session.end_step().step(2).says("", ["c2"])
    session.call("c2")
    session.add("interaction/requested", {"interaction_id": "i", **session.ids, "kind": "question", "request": {}})
    observed = seen(workspace_identity="x", background_operations_settled=False, checkpoint={}, available_tool_names=())
    planned = session.plan(observation=observed, turn_id="t1")
    wanted = ["pending_permission", "terminal_repair_failed", "dangling_tool_state", "workspace_identity_mismatch"]
    wanted += ["background_operation_pending", "checkpoint_restore_failed", "tool_catalog_mismatch"]
    assert reasons(planned) == [*wanted, "continuation_identity_reused"]
    assert [code for code in REASONS if code in planned.rejection_reasons] == list(planned.rejection_reasons)


def test_the_first_that_stands_alone_hides_the_others() -> None:
    session = interrupted(workspace_identity=None)
    nothing = Unobserved("gone")
    assert reasons(session.plan("r9", enabled=False, observation=nothing)) == ["resume_feature_disabled"]
    assert reasons(session.plan("r9", observation=nothing)) == ["safety_observation_unavailable"]
    assert reasons(session.plan("r9", purpose="handoff")) == ["source_run_unreadable"]
    assert reasons(session.plan("r1", purpose="handoff")) == ["workspace_identity_missing"]


def test_a_permission_that_another_turn_waited_for_is_no_matter() -> None:
    session = waiting()
    session.start("and another").end("interrupted")
    assert session.continuation("r2").source["run_id"] == "r2"
    assert reasons(session.plan("r1")) == ["pending_permission"]


def test_a_permission_that_an_earlier_run_of_the_lineage_waited_for_is() -> None:
    session = waiting()
    session.admit(session.claim("r1"))
    session.end("failed")
    assert reasons(session.plan("r2")) == ["pending_permission"]


NO_IDS: list[Any] = [7, b"t", "", "x" * (MAX_ID + 1), "t\ud800"]


@pytest.mark.parametrize("turn_id", NO_IDS, ids=lambda each: f"{each!r:.9}")
def test_an_id_that_no_turn_can_have_is_refused_at_once(turn_id: Any) -> None:
    asks: list[dict[str, Any]] = [{}, {"enabled": False}, {"purpose": "handoff"}, {"observation": Unobserved("gone")}]
    for asked in asks:
        with pytest.raises(InvalidEvent, match="turn_id ") as refused:
            interrupted().plan(turn_id=turn_id, **asked)
        assert refused.value.key == "turn_id"
    with pytest.raises(InvalidEvent):
        at_once("s1", source_run_id=None, turn_id=turn_id)


def test_the_longest_id_is_one() -> None:
    longest = "\u00e9" * MAX_ID
    session = interrupted()
    assert session.resume(turn_id=longest).turn_id == longest


def test_where_nothing_is_continued_neither_session_nor_workspace_is_looked_at() -> None:
    refused = at_once("s1", source_run_id="r1", enabled=False)
    assert refused == interrupted().plan("r1", enabled=False)
    assert at_once("s1", source_run_id="r1") is None
    assert at_once("s1", source_run_id="r1", purpose="handoff", enabled=False) is None
    with pytest.raises(ValueError, match="never run again"):
        at_once("s1", source_run_id="r1", rerun=("never",), enabled=False)


# ---------------------------------------------------------------- successors whose ids are not free


def claimed_anew() -> Session:
    """The claim of a successor that was created is lost."""
    whole, session = paused(), paused()
    session.add("run/created", {"run": whole.claim("r1", "handoff")["target_run"]})
    return session


def test_a_successor_that_was_not_created_as_it_was_claimed_parks_and_is_given_up() -> None:
    session = paused()
    continuation = session.continuation(purpose="handoff")
    session.claim("r1", "handoff", replay_digest=continuation.replay_digest)
    assert session.plan(purpose="handoff").disposition == "continue"
    session.add("run/created", {"run": session.run("r1'", "t1", model="another")})
    planned = session.plan(purpose="handoff")
    assert reasons(planned) == ["runtime_lineage_claim_mismatch"]
    assert "was not created as claim c-r1' reserved it" in told(planned)
    assert "maka session settle s1 --handoff" in told(planned)
    with pytest.raises(ContinuationRevalidationError, match="was not created as claim"):
        revalidate(continuation, session.facts, SEEN)
    for draft in abandonment(session.state, "h-r1'", {"kind": "failed"}):
        session.state.check(draft)
        session.add(draft.type, draft.data)
    assert session.state.handoff_rows()[0]["state"] == "abandoned"


def test_a_successor_without_its_claim_parks_and_is_given_up() -> None:
    planned = claimed_anew().plan(purpose="handoff")
    assert reasons(planned) == ["continuation_identity_reused"]
    assert "maka session settle s1 --handoff" in told(planned)
    assert "ids that were never used" not in told(planned)


def test_a_successor_whose_ids_are_taken_is_left_behind_in_a_fork() -> None:
    session = paused()
    session.add("run/created", {"run": session.run("r1'", "t1", invocation_id="another")})
    for planned in (session.plan(purpose="handoff"), session.plan("r1")):
        assert planned.disposition == "park"
        assert "fork the session" in told(planned)
        assert "settle" not in told(planned)


def test_a_sealed_run_whose_header_is_lost_parks_and_its_handoff_is_given_up() -> None:
    session = paused()
    state, conversation = State(), Conversation()
    for event in events(session, lost=[1]):
        state.apply(event)
        conversation.observe(event)
    facts = Facts("s1", state, conversation)
    planned = plan(facts, source_run_id=None, purpose="handoff", observation=SEEN, new_id=ids().__next__)
    assert reasons(planned) == ["source_run_unreadable"]
    assert "maka session settle s1 --handoff" in told(planned)


def test_a_claim_whose_turn_another_run_carries_names_that() -> None:
    session = interrupted()
    session.admit(session.claim("r1")).step().says().end_step()
    session.pause().go_on("r2", "handoff")
    pause = next(event.seq for event in session.events if event.type == "handoff/pause")
    state, conversation = State(), Conversation()
    for event in events(session, lost=[pause]):
        state.apply(event)
        conversation.observe(event)
    facts = Facts("s1", state, conversation)
    planned = plan(facts, source_run_id="r1", observation=SEEN, new_id=ids().__next__)
    assert reasons(planned) == ["continuation_already_exists"]
    assert "the newest run of its turn is r2'" in told(planned)
    assert "never began" not in told(planned)


# ---------------------------------------------------------------- which run is meant


def failed_then_plain() -> Session:
    session = interrupted()
    session.plain_turn()
    return session


def stopped() -> Session:
    session = Session()
    session.start("stop").end("aborted")
    return session


@pytest.mark.parametrize(
    ("story", "run_id"),
    [
        (Session, None),
        (interrupted, "r1"),
        (stopped, "r1"),
        (open_turn, "r1"),
        (paused, "r1"),
        (failed_then_plain, None),
        (lambda: claimed("claim"), "r1"),
        (lambda: claimed("created"), "r1"),
        (lambda: claimed("start"), "r1"),
        (stepped, "r1"),
        (lambda: ended(settle=False), "r1"),
        (ended, "r1"),
        (lambda: Session().plain_turn(), None),
    ],
)
def test_the_latest_run_that_was_interrupted(story: Callable[[], Session], run_id: str | None) -> None:
    assert candidate(story().state) == run_id


def test_a_run_that_has_completed_and_was_not_settled_is_not_interrupted() -> None:
    session = Session()
    session.start("hi").step().says().end_step().end("completed", settle=False)
    assert candidate(session.state) is None


def test_the_failed_continuation_is_meant_and_not_its_source() -> None:
    session = claimed("start")
    session.step().says("half").end_step().end("failed")
    assert candidate(session.state) == "id-2"
    assert [each["run_id"] for each in session.continuation().boundary["segments"]] == ["r1", "id-2"]


def test_a_session_that_has_gone_on_names_the_run_that_could_still_be_meant() -> None:
    planned = failed_then_plain().plan()
    assert reasons(planned) == ["resume_candidate_missing"]
    assert "r2, has completed; the last one before it that failed or was stopped is r1" in told(planned)


# ---------------------------------------------------------------- what a plan that continues holds


def test_a_plan_that_continues() -> None:
    session = Session(max_steps=7, root={"kind": "goal", "goal": "x"})
    session.start("go").end("interrupted")
    found = session.continuation()
    assert (found.invocation_id, found.run_id, found.turn_id, found.claim_id) == ("id-1", "id-2", "id-3", "id-4")
    assert found.source == {"run_id": "r1", "invocation_id": "i-r1", "turn_id": "t1", "high_water": 3}
    assert found.boundary == {"segments": session.state.segments("r1")}
    assert found.boundary_digest == session.events[-1].sum
    assert [(each["role"], text(each)) for each in found.replay] == [("user", "go")]
    assert found.replay_through_seq == 2
    assert (found.max_steps, found.root) == (7, {"kind": "goal", "goal": "x"})
    assert found.configuration == {
        "backend": "fake",
        "model": "fake-model",
        "cwd": "/tmp",
        "permission_mode": "ask",
    }
    assert (found.composition, found.sandbox_boundary_denied, found.rerun) == (None, False, ())
    assert found.newest_run_id == "r1"


def test_the_digest_is_that_of_compact_json_with_sorted_keys() -> None:
    found = called().continuation()
    compact = json.dumps(list(found.replay), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert found.replay_digest == hashlib.sha256(compact.encode()).hexdigest()


def test_plans_and_continuations_are_json() -> None:
    planned = called().plan()
    shown = json.loads(json.dumps(planned.to_json()))
    assert shown["disposition"] == "continue"
    assert shown["continuation"]["replay_messages"] == 3
    assert shown["continuation"]["safety"]["workspace_identity"] == WORKSPACE
    assert (
        json.loads(json.dumps(interrupted().plan("r9").to_json()))["diagnostics"][0]["code"] == "source_run_unreadable"
    )


def test_a_turn_id_of_the_callers_is_taken_and_none_is_minted_for_it() -> None:
    found = interrupted().continuation(turn_id="mine")
    assert (found.invocation_id, found.run_id, found.turn_id, found.claim_id) == ("id-1", "id-2", "mine", "id-3")


@pytest.mark.parametrize("turn_id", ["t1", "mine", "id-3", "stopped"])
def test_turns_that_are_claimed_admitted_or_to_be_stopped_are_taken(turn_id: str) -> None:
    session = claimed("claim") if turn_id == "id-3" else interrupted()
    if turn_id == "mine":
        admitted = {"turn_id": "mine", "run_id": "rm", "previous_root_turn_id": None, "execution": {"kind": "root"}}
        session.add("turn/admitted", {**admitted, "input": {"content": []}, "input_digest": "0" * 64})
    if turn_id == "stopped":
        stop = {"stop_id": "s", "turn_id": "stopped", "source": "user", "mode": "immediate"}
        session.add("turn/stop_requested", stop)
    session.start("another").end("interrupted")
    assert "continuation_identity_reused" in reasons(session.plan(turn_id=turn_id))


def test_nothing_is_minted_for_a_plan_that_parks() -> None:
    def never() -> str:
        raise AssertionError("an id was minted")

    for planned in (open_turn().plan(new_id=never), interrupted().plan(turn_id="t1", new_id=never)):
        assert planned.disposition == "park"


def test_the_composition_and_a_denial_go_with_it() -> None:
    session = Session()
    session.start("go")
    session.add("run/composition", {"run_id": "r1", "composition": {"tool_names": ["tool"], "schema": 1}})
    asked = {"interaction_id": "i1", **session.ids, "kind": "sandbox_boundary", "request": {}}
    session.add("interaction/requested", asked)
    outcome = {"kind": "sandbox_boundary_decision", "decision": "deny"}
    session.add("interaction/resolved", {"interaction_id": "i1", "outcome": outcome})
    session.end("interrupted")
    found = session.continuation()
    assert found.sandbox_boundary_denied
    assert found.composition == {"tool_names": ["tool"], "schema": 1}
    session.resume()
    session.end("failed")
    assert session.continuation().sandbox_boundary_denied  # it was denied in a run of the lineage


def test_a_plan_reserves_nothing() -> None:
    session = interrupted()
    before = len(session.events)
    assert session.continuation() == session.continuation()
    assert len(session.events) == before


# ---------------------------------------------------------------- calls whose outcome is unknown


@pytest.mark.parametrize(("recovery", "way"), [("read_only", True), ("idempotent", True), ("reconcile", False)])
def test_an_unknown_call_is_run_again_only_where_its_recovery_allows(recovery: str, way: bool) -> None:
    session = called("unknown", recovery)
    planned = session.plan()
    assert reasons(planned) == ["dangling_tool_state"]
    assert ("--rerun " + recovery in told(planned)) == way
    if way:
        found = session.continuation(rerun=(recovery,))
        assert [session.events[seq].type for seq in found.rerun] == ["tool/call"]
        other = {"read_only": "idempotent", "idempotent": "read_only"}[recovery]
        assert reasons(session.plan(rerun=(other,))) == ["dangling_tool_state"]


@pytest.mark.parametrize("recovery", ["never", "reconcile", "everything"])
def test_other_recoveries_may_not_be_named(recovery: str) -> None:
    with pytest.raises(ValueError, match="never run again"):
        interrupted().plan(rerun=(recovery,))


def test_a_call_that_is_run_again_needs_its_tool() -> None:
    session = called("unknown", "read_only")
    planned = session.plan(rerun=("read_only",), observation=seen(available_tool_names=()))
    assert reasons(planned) == ["tool_catalog_mismatch"]


@pytest.mark.parametrize("source", ["user", "reconciled", "late", "rerun"])
def test_an_outcome_settles_it(source: str) -> None:
    session = called("unknown")
    session.outcome(next(iter(session.unknown)), source)
    assert "outcome" in text(session.continuation().replay[-1])


def test_an_unknown_call_of_another_turn_is_no_matter() -> None:
    session = called("unknown")
    session.start("again").end("interrupted")
    assert session.continuation("r2").source["run_id"] == "r2"


def test_an_unknown_call_of_an_earlier_run_of_the_lineage_is() -> None:
    session = called("unknown", "idempotent")
    first = session.resume(rerun=("idempotent",))
    session.end("failed")
    assert reasons(session.plan()) == ["dangling_tool_state"]
    assert session.continuation(rerun=("idempotent",)).rerun == first.rerun


def test_an_unknown_call_in_a_turn_that_is_open_is_told_too() -> None:
    session = Session()
    session.start("go").step().says("", ["c1", "c2"])
    session.call("c1", recovery="read_only")
    planned = session.plan()
    assert reasons(planned) == ["terminal_repair_failed", "dangling_tool_state"]
    assert told(planned).count("call c") == 1  # c2 never ran
    assert reasons(session.plan(rerun=("read_only",))) == ["terminal_repair_failed"]


def test_a_call_that_its_turn_ended_without_is_unknown_and_cannot_be_settled() -> None:
    session = Session()
    session.start("go").step().says("", ["c1"])
    session.call("c1", recovery="read_only")
    session.end_step().end("interrupted")
    planned = session.plan(rerun=("read_only",))
    assert reasons(planned) == ["dangling_tool_state"]
    assert "say so in the next message" in told(planned)


# ---------------------------------------------------------------- what is only remarked on


def remarked(planned: ContinuationPlan) -> list[str]:
    assert planned.disposition == "continue", planned
    return [each.code for each in planned.diagnostics]


def test_a_workspace_that_was_moved_is_remarked_on() -> None:
    planned = interrupted().plan(observation=seen(cwd="/elsewhere"))
    assert remarked(planned) == ["workspace_location_changed"]
    assert "/tmp" in told(planned)
    assert "/elsewhere" in told(planned)


@pytest.mark.parametrize("key", ["model", "backend", "connection", "permission_mode"])
def test_what_is_set_differently_now_is_remarked_on(key: str) -> None:
    session = interrupted()
    session.add("session/updated", {"patch": {key: "another"}})
    planned = session.plan()
    assert remarked(planned) == ["configuration_changed"]
    assert "another" in told(planned)
    assert session.continuation().configuration[key] == "another"


def test_tools_that_the_run_had_and_did_not_call_are_remarked_on() -> None:
    session = Session()
    session.start("go")
    session.add("run/composition", {"run_id": "r1", "composition": {"tool_names": ["tool", "other", 3]}})
    session.end("interrupted")
    planned = session.plan()
    assert remarked(planned) == ["tools_missing"]
    assert "other" in told(planned)


def test_tools_that_the_runs_request_offered_are_remarked_on() -> None:
    session = Session()
    session.start("go").step()
    offered = {"provider": "p", "model": "m", "tools": [{"name": "tool"}, {"name": "other"}, {}, 3]}
    ids = {"turn_id": "t1", "run_id": "r1", "step": 1}
    session.add("request/header", {**ids, "reason": "initial", "header": offered})
    session.end("interrupted")
    planned = session.plan()
    assert remarked(planned) == ["tools_missing"]
    assert "other" in told(planned)


def test_a_run_that_has_completed_is_answered_anew_and_that_is_remarked_on() -> None:
    session = Session()
    session.start("go").step().says("done").end_step().end("completed")
    planned = session.plan("r1")
    assert (planned.disposition, remarked(planned)) == ("continue", ["source_completed"])
    assert "answered anew" in told(planned)


def test_a_claim_whose_run_can_never_begin_is_not_said_to_have_completed() -> None:
    session = interrupted()
    claim = drafts.claim(session.continuation("r1"), session.facts, claimed_at=session.ts)
    claim.data["target_run"]["turn_id"] = ""
    session.add(claim.type, claim.data)
    planned = session.plan("r1")
    assert reasons(planned) == ["continuation_already_exists"]
    assert f"{claim.data['claim_id']}, whose run never began and never can. Send a new message." in told(planned)


def test_a_start_tells_of_calls_that_may_have_run() -> None:
    assert "is not known. A call that was to be made again may have run, too." in told(claimed("start").plan("r1"))


def test_a_turn_that_came_later_is_remarked_on_and_not_replayed() -> None:
    session = failed_then_plain()
    planned = session.plan("r1")
    assert remarked(planned) == ["later_turn_left_out"]
    assert planned.continuation is not None
    assert [text(each) for each in planned.continuation.replay] == ["go on after the crash"]
    assert planned.continuation.newest_run_id == "r2"


#: What of an agent can drift → a value that it did not have.
DRIFTS: dict[str, Any] = {**dict.fromkeys(SEMANTICS, hashed("another")), "context_window": 8192}
SAME = {key: COMPOSITION[key] for key in SEMANTICS}


def recorded(composition: Any = COMPOSITION) -> Session:
    """An interrupted run that is known to be made of this."""
    session = Session()
    session.start("go")
    session.add("run/composition", {"run_id": "r1", "composition": composition})
    session.end("interrupted")
    return session


@pytest.mark.parametrize(("key", "name"), SEMANTICS.items())
def test_what_the_agent_is_made_of_now_is_remarked_on_where_it_is_something_else(key: str, name: str) -> None:
    for prospect in (Prospect({**SAME, key: DRIFTS[key]}), Prospect({key: DRIFTS[key]}, handoff=True)):
        planned = recorded().plan(prospect=prospect)
        assert remarked(planned) == ["composition_changed"]
        assert f"The agent is not that of run r1: not the same are its {name}. The new run has what" in told(planned)
        successor = paused().plan("r1", purpose="handoff", prospect=prospect)
        assert reasons(successor) == ["composition_changed"]
        assert f"another agent than that of run r1: not the same are its {name}. Use the app as" in told(successor)
        assert "give the handoff up (`maka session settle s1 --handoff 'h-r1'\"'\"''`) and go on" in told(successor)


def test_all_that_has_drifted_is_named_at_once() -> None:
    names = ", ".join(SEMANTICS.values())
    assert f"not the same are its {names}. " in told(recorded().plan(prospect=Prospect(DRIFTS)))
    assert f"not the same are its {names}. " in told(paused().plan(purpose="handoff", prospect=Prospect(DRIFTS)))


def test_what_is_the_same_and_what_makes_no_agent_is_not_remarked_on() -> None:
    prospect = Prospect({**SAME, "composer_id": "other", "anything": 1})
    assert remarked(recorded().plan(prospect=prospect)) == []
    assert remarked(paused().plan(purpose="handoff", prospect=prospect)) == []


def test_an_ordinary_run_needs_no_backend_that_hands_over() -> None:
    assert remarked(recorded().plan(prospect=Prospect(handoff=False))) == []


def test_another_agent_is_told_behind_what_else_is_in_a_successors_way() -> None:
    elsewhere = attrs.evolve(SEEN, workspace_identity="another")
    prospect = Prospect(DRIFTS, handoff=False)
    planned = paused().plan(purpose="handoff", observation=elsewhere, prospect=prospect)
    wanted = ["workspace_identity_mismatch", "composition_changed", "composition_unavailable"]
    assert reasons(planned) == wanted
    assert [each.code for each in planned.diagnostics] == [*wanted, "handoff_pending"]
    ordinary = recorded().plan(observation=elsewhere, prospect=prospect)
    assert reasons(ordinary) == ["workspace_identity_mismatch"]
    assert [each.code for each in ordinary.diagnostics] == ["workspace_identity_mismatch", "composition_changed"]


#: What a successor's turn ended with where its backend was never called.
NEVER_CALLED = (
    "composition_changed",
    "composition_unavailable",
    "handoff_abandoned",
    "continuation_abandoned_before_provider_dispatch",
    "workspace_identity_changed",
    "start_failed",
)


def failed_successor(failure_class: str, settle: bool = True, tools: tuple[str, ...] = ()) -> Session:
    """Its composition is another one than that of the run that it was to take over, which had ``tools``."""
    session = Session()
    session.start("long").step().says("half").end_step()
    offered = {"provider": "p", "model": "m", "tools": [{"name": name} for name in tools]}
    session.add("request/header", {**session.ids, "step": 1, "reason": "initial", "header": offered})
    session.pause()
    session.resume(purpose="handoff")
    session.add("run/composition", {"run_id": "r1'", "composition": {**COMPOSITION, "context_window": 4096}})
    session.add("turn/end", {**session.ids, "reason": {"kind": "failed", "failure_class": failure_class}})
    if settle:
        session.add("run/settled", {"run_id": "r1'"})
    return session


@pytest.mark.parametrize("settle", [False, True])
@pytest.mark.parametrize("failure_class", NEVER_CALLED)
def test_a_successor_that_was_never_called_is_no_agent_to_be_compared_with(failure_class: str, settle: bool) -> None:
    session = failed_successor(failure_class, settle, ("tool", "other"))
    assert remarked(session.plan("r1'", prospect=Prospect(SAME))) == ["tools_missing"]
    planned = session.plan("r1'", prospect=Prospect({"context_window": 4096}))
    assert remarked(planned) == ["composition_changed", "tools_missing"]
    assert "not that of run r1: not the same are its context window" in told(planned)
    assert "Run r1 had tools that are not there: other" in told(planned)


@pytest.mark.parametrize("failure_class", ["continuation_indeterminate", "provider_overloaded"])
def test_one_that_was_called_is(failure_class: str) -> None:
    session = failed_successor(failure_class, tools=("other",))
    planned = session.plan("r1'", prospect=Prospect(SAME))
    assert remarked(planned) == ["composition_changed"]
    assert "not that of run r1': not the same are its context window" in told(planned)


def test_of_several_that_were_never_called_the_run_behind_them_counts() -> None:
    session = failed_successor("composition_changed")
    found = session.resume("r1'")
    session.end("failed")
    session.resume(found.run_id)
    reason = {"kind": "failed", "failure_class": "workspace_identity_changed"}
    last = session.ids["run_id"]
    session.add("turn/end", {**session.ids, "reason": reason})
    assert remarked(session.plan(last, prospect=Prospect(DRIFTS))) == []  # of the one before nothing is on record
    other = failed_successor("composition_changed")
    other.resume("r1'")
    last = other.ids["run_id"]
    other.add("turn/end", {**other.ids, "reason": reason})
    assert "not that of run r1: " in told(other.plan(last, prospect=Prospect(DRIFTS)))


@pytest.mark.parametrize("composition", [{}, {"schema": 2}, {**COMPOSITION, "context_window": 0}])
def test_where_one_of_the_two_is_unknown_nothing_has_drifted(composition: Any) -> None:
    assert remarked(recorded(composition).plan(prospect=Prospect(DRIFTS))) == []
    assert remarked(interrupted().plan(prospect=Prospect(SAME))) == []
    assert remarked(recorded().plan(prospect=Prospect(handoff=True))) == []
    assert remarked(recorded().plan()) == []
    assert remarked(paused().plan(purpose="handoff", prospect=Prospect(handoff=True))) == []


def test_every_remark_has_its_test() -> None:
    assert set(REMARKS) == {
        "source_completed",
        "workspace_location_changed",
        "configuration_changed",
        "composition_changed",
        "composition_missing",
        "handoff_pending",
        "tools_missing",
        "later_turn_left_out",
    }


# ---------------------------------------------------------------- what else stands open in the session


def test_another_turn_that_stands_open_is_in_the_way() -> None:
    session = interrupted()
    session.start("and another")
    planned = session.plan("r1")
    assert reasons(planned) == ["terminal_repair_failed"]
    assert "Turn t2 of the session stands open" in told(planned)


def test_so_is_one_that_is_paused_or_rests_at_a_start_or_is_only_claimed() -> None:
    session = interrupted()
    session.start("long").step().says("half").end_step()
    session.pause()
    assert "waits for its successor" in told(session.plan("r1"))
    other = interrupted()
    other.start("another").end("interrupted")
    other.resume("r2", upto="claim")
    assert "is claimed and has not started" in told(other.plan("r1"))
    third = interrupted()
    third.start("another").end("interrupted")
    third.resume("r2")
    assert "settles it" in told(third.plan("r1"))
    stop = {"stop_id": "s", "turn_id": third.ids["turn_id"], "source": "user", "mode": "immediate"}
    third.add("turn/stop_requested", stop)
    assert "Repair the session first" in told(third.plan("r1"))  # which ends it
    for each in (session, other, third):
        assert reasons(each.plan("r1")) == ["terminal_repair_failed"]


def test_a_run_whose_turn_was_ended_by_its_successor_is_no_source() -> None:
    session = Session()
    session.start("go")
    session.add("run/created", {"run": session.run("r1b", "t1")})
    start = {"protocol": "continuation_start_v2", "start_kind": "runtime_admission", "purpose": "handoff"}
    start |= {"claim_id": "x", "run_id": "r1b", "turn_id": "t1", "boundary_digest": "", "replay_digest": "0" * 64}
    session.add("continuation/start", {**start, "source": {}})
    session.add("turn/end", {"turn_id": "t1", "run_id": "r1b", "reason": {"kind": "interrupted"}})
    planned = session.plan("r1")
    assert "terminal_repair_failed" in reasons(planned)
    assert "ended by another run" in told(planned)


def test_an_anchor_without_words_is_nothing_to_go_on_from() -> None:
    session = Session()
    session.plain_turn()
    session.start("").end("interrupted")
    assert reasons(session.plan()) == ["provider_resume_boundary_unsupported"]


# ---------------------------------------------------------------- handoffs


def test_a_successor_is_planned_with_the_ids_of_the_pause_and_the_sources_configuration() -> None:
    session = Session(connection="c", agent_id="a")
    session.start("long").step().says("half", ["c1"])
    session.tool("c1")
    session.end_step()
    session.pause()
    session.add("session/updated", {"patch": {"model": "another"}})

    def never() -> str:
        raise AssertionError("an id was minted")

    planned = session.plan("r1", purpose="handoff", new_id=never, enabled=False)
    found = planned.continuation
    assert found is not None, planned
    assert remarked(planned) == ["configuration_changed", "configuration_changed"]
    assert "The model was fake-model and is another. Change it back (`update`): a successor has what" in told(planned)
    assert "The connection was c and is null. Change it back" in told(planned)
    assert "`source_configuration_changed`" in told(planned)
    assert (found.invocation_id, found.run_id, found.turn_id, found.claim_id) == ("i-r1'", "r1'", "t1", "c-r1'")
    assert (found.max_steps, found.configuration["model"], found.configuration["connection"]) == (9, "fake-model", "c")
    claim = drafts.claim(found, session.facts, claimed_at=5)
    session.append(claim)
    assert claim.data["turn"] == 1
    assert "previous_root_turn_id" not in claim.data
    run = claim.data["target_run"]
    assert (run["agent_id"], run["max_steps"], run.get("resumed_from_run_id")) == ("a", 9, None)
    # The claim is its own: planned again it is as it was, until the successor has started.
    assert session.continuation("r1", purpose="handoff") == found
    session.append(drafts.created(claim))
    assert session.continuation("r1", purpose="handoff") == found
    assert reasons(session.plan("r1")) == ["runtime_identity_mismatch"]
    session.append(drafts.start(claim))
    started = session.plan("r1", purpose="handoff")
    assert reasons(started) == ["continuation_started_indeterminate"]
    assert "Run r1 was handed over to run r1'; it was started, and whether it reached" in told(started)
    assert "made again" not in told(started)
    assert not session.state.problems


def test_a_claim_of_another_replay_is_not_the_successors() -> None:
    session = paused()
    session.claim("r1", "handoff")
    planned = session.plan("r1", purpose="handoff")
    assert reasons(planned) == ["continuation_claim_repair_required"]
    assert "Run r1 was handed over to run r1', and that was cut off. " in told(planned)


def test_a_handoff_that_is_over_waits_for_nobody() -> None:
    session = paused()
    session.add("turn/end", {"turn_id": "t1", "run_id": "r1", "reason": {"kind": "interrupted"}})
    assert reasons(session.plan("r1", purpose="handoff")) == ["runtime_identity_mismatch"]


def test_a_pause_that_something_followed_seals_nothing_any_more() -> None:
    session = paused()
    session.user("out of order", "steering")
    assert reasons(session.plan("r1", purpose="handoff")) == ["runtime_identity_mismatch"]


def test_the_handoff_that_is_meant_is_the_one_that_waits() -> None:
    session = paused()
    found = session.continuation(purpose="handoff")
    assert (found.source["run_id"], found.run_id) == ("r1", "r1'")
    assert found == session.continuation("r1", purpose="handoff")
    session.resume(purpose="handoff")
    session.step().says("half").end_step()
    assert reasons(session.plan(purpose="handoff")) == ["resume_candidate_missing"]
    assert "No run of the session was handed over" in told(session.plan(purpose="handoff"))


def test_of_a_successor_of_which_nothing_is_known_behind_its_start_every_plan_names_what_ends_it() -> None:
    session = paused()
    successor = session.resume(purpose="handoff").run_id
    ends = f"`maka session settle s1 --claim {quote(session.state.continuations.by_target[successor])}`"
    for asked in ({}, {"purpose": "handoff"}, {"run_id": "r1"}, {"run_id": successor}):
        planned = session.plan(**asked)
        assert planned.disposition == "park"
        assert ends in told(planned), asked
    assert reasons(session.plan(purpose="handoff")) == ["continuation_started_indeterminate"]


def test_a_handoff_that_parks_says_that_its_turn_goes_on_waiting() -> None:
    session = paused()
    elsewhere = attrs.evolve(SEEN, workspace_identity="another")
    planned = session.plan("r1", purpose="handoff", observation=elsewhere)
    assert reasons(planned) == ["workspace_identity_mismatch"]
    assert [each.code for each in planned.diagnostics] == ["workspace_identity_mismatch", "handoff_pending"]
    assert "`maka session settle s1 --handoff 'h-r1'\"'\"''`" in told(planned)
    ordinary = session.plan("r1", observation=elsewhere)
    assert [each.code for each in ordinary.diagnostics] == ["runtime_identity_mismatch"]


def test_a_run_that_was_handed_over_without_a_composition_is_planned_and_that_is_remarked_on() -> None:
    session = paused()
    unread = Facts("s1", session.state, Conversation(each for each in session.events if each.type != "run/composition"))
    planned = plan(unread, source_run_id="r1", purpose="handoff", observation=SEEN, new_id=ids().__next__)
    assert remarked(planned) == ["composition_missing"]
    assert "`maka session settle s1 --handoff 'h-r1'\"'\"''`" in told(planned)
    assert "`source_identity_changed`" in told(planned)
    assert remarked(session.plan("r1", purpose="handoff")) == []


def test_a_resume_of_a_run_that_was_handed_over_says_what_to_do() -> None:
    session = paused()
    for planned in (session.plan("r1"), session.plan()):
        assert "Resume the handoff: `maka session resume s1`; or give it up: `maka session settle s1 " in told(planned)
    found = session.resume(purpose="handoff")
    session.step().says("half").end_step()
    said = told(session.plan("r1"))
    assert reasons(session.plan("r1")) == ["runtime_identity_mismatch"]
    assert "`maka session resume s1 --run 'r1'\"'\"''`" in said
    assert found.run_id == "r1'"
    other = interrupted()
    other.start("long").step().says("half").end_step()
    other.pause()
    assert "`maka session resume s1`; or give it up" in told(other.plan("r1"))


def test_of_a_run_that_was_handed_over_the_newest_successor_is_named_or_the_end_of_its_turn() -> None:
    session = paused()
    session.resume(purpose="handoff")
    session.pause(root_run_id="r1", successor_run_id="r3", successor_invocation_id="i-r3", claim_id="c-r3")
    said = told(session.plan("r1"))
    assert "only its successor goes on from it: run r1'. Resume the handoff: `maka session resume s1`; or give" in said
    session.resume(purpose="handoff")
    session.step().says("half").end_step()
    said = told(session.plan("r1"))
    assert "run r1'; the newest run of its turn is r3. Continue run r3: `maka session resume s1 --run r3`" in said
    session.add("turn/end", {**session.ids, "reason": {"kind": "failed"}})
    session.add("run/settled", {"run_id": "r3"})
    assert "`maka session resume s1 --run r3`; or send a new message" in told(session.plan("r1"))
    handed = session.plan("r1", purpose="handoff")
    assert reasons(handed) == ["continuation_already_exists"]
    assert "Run r1 was handed over to run r1'; the newest run of its turn is r3. Continue run r3" in told(handed)

    done = paused()
    done.resume(purpose="handoff")
    done.add("turn/end", {**done.ids, "reason": {"kind": "completed"}})
    assert "run r1'; the turn has completed. Send a new message." in told(done.plan("r1"))
    done.add("run/settled", {"run_id": "r1'"})
    assert "run r1'; the turn has completed. Send a new message." in told(done.plan("r1"))
    over = told(done.plan("r1", purpose="handoff"))
    assert over == "Run r1 was handed over to run r1'; the turn has completed. Send a new message."


@pytest.mark.parametrize("purpose", ["x", None, "", 7, ["resume"]])
def test_a_purpose_is_one_that_there_is(purpose: Any) -> None:
    for enabled in (False, True):
        with pytest.raises(ValueError, match="purpose must be resume or handoff, not "):
            interrupted().plan("r1", purpose=purpose, enabled=enabled)


@pytest.mark.parametrize("asked", [{"turn_id": "t1"}, {"rerun": ("read_only",)}])
def test_a_handoff_has_its_turn_and_leaves_no_call_to_be_made_again(asked: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"a handoff takes no {next(iter(asked))}: "):
        paused().plan("r1", purpose="handoff", **asked)
    assert paused().continuation("r1", purpose="handoff", rerun=()).turn_id == "t1"


# ---------------------------------------------------------------- before a run is handed over


def stands(session: Session, observation: Any = SEEN, run: Any = None, **pause: Any) -> list[Diagnostic]:
    """Why the run that is open could not be handed over, as ``would_park`` sees it; it changes nothing."""
    given = {"handoff_id": "h", "host_epoch": "e", "root_run_id": "r1", "successor_run_id": "s"}
    asked = HandoffPause(**{**given, "successor_invocation_id": "i-s", "claim_id": "c-s", **pause})
    draft = asked.draft(**(run or session.ids), remaining_steps=2)
    before = snapshot(session.facts)
    found = would_park(session.facts, draft, observation)
    assert snapshot(session.facts) == before
    return found


def stepping(**header: Any) -> Session:
    """A run that stands behind its first step."""
    session = Session(**header)
    session.start("long").step().says("half", ["c1"])
    session.add("run/composition", {"run_id": "r1", "composition": COMPOSITION})
    session.tool("c1")
    session.end_step()
    return session


def codes(found: list[Diagnostic]) -> list[str]:
    return [each.code for each in found]


def test_a_run_that_could_be_handed_over_would_not_park_and_is_planned_then() -> None:
    session = stepping()
    assert stands(session) == []
    session.pause()
    assert remarked(session.plan("r1", purpose="handoff")) == []
    fresh = Session()
    fresh.start("before the first step")
    fresh.add("run/composition", {"run_id": "r1", "composition": COMPOSITION})
    assert stands(fresh) == []


def test_a_successor_can_be_handed_over_too() -> None:
    session = paused()
    session.resume(purpose="handoff")
    session.add("run/composition", {"run_id": "r1'", "composition": COMPOSITION})
    assert stands(session) == []
    assert codes(stands(session, successor_invocation_id="i-r1")) == ["continuation_identity_reused"]


def unknown_call() -> Session:
    session = stepping()
    session.step(2).says("", ["c2"])
    session.tool("c2", "unknown")
    session.end_step()
    return session


def asking() -> Session:
    session = stepping()
    session.add("interaction/requested", {"interaction_id": "i", **session.ids, "kind": "question", "request": {}})
    return session


def set_up_otherwise() -> Session:
    session = stepping()
    session.add("session/updated", {"patch": {"model": "another"}})
    return session


def put_away() -> Session:
    session = stepping()
    session.add("session/updated", {"patch": {"archived": True}})
    return session


def uncomposed() -> Session:
    session = Session()
    session.start("go")
    return session


@pytest.mark.parametrize(
    ("code", "session", "observation"),
    [
        ("safety_observation_unavailable", stepping, Unobserved("the disk is gone")),
        ("workspace_identity_missing", lambda: stepping(workspace_identity=None), SEEN),
        ("pending_permission", asking, SEEN),
        ("dangling_tool_state", unknown_call, SEEN),
        ("workspace_identity_mismatch", stepping, seen(workspace_identity="workspace-2")),
        ("background_operation_pending", stepping, seen(background_operations_settled=False)),
        ("tool_catalog_mismatch", stepping, seen(available_tool_names=())),
        ("session_archived", put_away, SEEN),
        ("configuration_changed", set_up_otherwise, SEEN),
        ("composition_missing", uncomposed, SEEN),
    ],
)
def test_a_run_is_not_handed_over_to_a_successor_that_could_not_go_on(
    code: str, session: Callable[[], Session], observation: Any
) -> None:
    found = stands(session(), observation)
    assert codes(found) == [code]
    assert re.fullmatch(r"[A-Z].*[.]", found[0].message)


def test_a_checkpoint_is_no_matter_while_the_run_goes_on() -> None:
    assert stands(stepping(), seen(checkpoint={"ref": "k", "restored": False})) == []


def test_ids_that_are_taken_and_runs_that_are_not_there_are_told() -> None:
    session = stepping()
    for taken in ({"successor_run_id": "r1"}, {"successor_invocation_id": "i-r1"}):
        assert codes(stands(session, **taken)) == ["continuation_identity_reused"]
    assert codes(stands(session, run={"run_id": "r9", "turn_id": "t9"})) == ["source_run_unreadable"]


# ---------------------------------------------------------------- what holds for all


def test_a_chain_of_two_hundred_costs_no_more_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    session = interrupted()
    session.resume()
    read: list[str] = []
    get = Closed.get

    def counted(closed: Closed, key: str) -> list[Any] | None:
        read.append(key)
        return get(closed, key)

    monkeypatch.setattr(Closed, "get", counted)
    costs = {}
    for number in range(2, 201):
        session.end("failed")
        del read[:]
        found = session.continuation()
        costs[number] = len(read)
        assert len(found.boundary["segments"]) == number
        fresh = iter(f"{number}-{name}" for name in "irtc")
        session.resume(new_id=fresh.__next__)
    assert costs[200] == costs[2]
    assert not session.state.problems


class Workspaces(Nonsense):
    """Nonsense whose runs mostly say where they worked."""

    def run(self, run_id: str, turn_id: str, **more: Any) -> dict[str, Any]:
        return super().run(run_id, turn_id, **{"workspace_identity": self.any(WORKSPACE), **more})


def snapshot(facts: Facts) -> bytes:
    """All that the facts hold, as far as it can be seen."""
    said = [facts.conversation.messages(), facts.conversation.configuration()]
    return orjson.dumps([summary.to_json(facts.state), facts.state.turn_rows(), facts.state.run_rows(), said])


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 10**9), st.integers(1, 60), st.sampled_from([0.0, 0.0, 0.05, 0.3]))
@example(4217890, 27, 0.0)  # a turn that is handed over has an admission whose message never came
def test_a_plan_never_raises_and_is_a_function_of_the_facts(seed: int, length: int, wild: float) -> None:
    builder = Workspaces(seed, length, wild)
    state, conversation = State(), Conversation()
    for event in events(builder):
        state.apply(event)
        conversation.observe(event)
    facts = Facts("s1", state, conversation)
    before = snapshot(facts)
    for run_id in (None, "r0", "r1", "r2", "rS", "unheard of"):
        for asked in (
            {},
            {"purpose": "handoff", "prospect": Prospect(SAME)},
            {"rerun": ("read_only", "idempotent"), "turn_id": "t1"},
        ):
            given_ids: dict[str, Any] = {"observation": SEEN, **asked}
            planned = plan(facts, source_run_id=run_id, new_id=ids().__next__, **given_ids)
            assert planned == plan(facts, source_run_id=run_id, new_id=ids().__next__, **given_ids)
            reasons(planned)
            json.dumps(planned.to_json())
            assert set(planned.rejection_reasons) <= set(REASONS)
            if planned.continuation is not None:
                _goes_through(builder, facts, planned)
    assert snapshot(facts) == before


def _goes_through(builder: Workspaces, facts: Facts, planned: ContinuationPlan) -> None:
    """What a plan that continues writes is legal, and nothing that a reader would complain of."""
    found = planned.continuation
    assert found is not None
    revalidate(found, facts, SEEN)
    state, known = fold(builder), len(facts.state.problems)
    claim = drafts.claim(found, facts, claimed_at=1)
    todo = [claim, drafts.created(claim), drafts.start(claim)]
    todo = todo[found.claim_id in state.continuations.claims :]
    seq, ts, prev = builder.seq, state.last_ts, builder.prev
    for draft in todo:
        state.check(draft)
        line, prev = encode(draft, seq, ts, prev)
        event = decode(line)
        assert event is not None
        state.apply(event)
        seq += 1
    assert len(state.problems) == known
    assert drafts.unfinished(state) == found.claim_id


def play(draw: Any, session: Session) -> None:
    """What a run does, and how it ends."""
    turn = session.state.turns.open[session.ids["turn_id"]]
    for step in range(turn.step + 1, turn.step + 1 + draw(st.integers(0, 2))):
        calls = [f"c{step}-{index}" for index in range(draw(st.integers(0, 2)))]
        session.step(step).says(draw(st.sampled_from(["", "words"])), calls)
        for call in calls:
            state, recovery = draw(st.sampled_from(["ok", "error", "unknown"])), draw(st.sampled_from(RECOVERIES))
            seq = session.tool(call, state, recovery)
            if state == "unknown" and draw(st.booleans()):
                session.outcome(seq)
        session.end_step()
    session.end(draw(st.sampled_from(["completed", "interrupted", "failed", "aborted"])), draw(st.booleans()))


def repair(session: Session) -> None:
    for draft in plan_closers(session.state).drafts:
        session.add(draft.type, draft.data)
    claim_id = drafts.unfinished(session.state)
    if claim_id is not None:
        session.append(*drafts.settle(session.state, claim_id))


RECOVERIES = ["read_only", "idempotent", "reconcile", "never"]


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_whatever_a_session_went_through_what_is_planned_can_be_done(data: st.DataObject) -> None:
    draw, session, fresh = data.draw, Session(), ids()
    for _ in range(draw(st.integers(1, 8))):
        run_id = draw(st.sampled_from([None, *session.first]))
        rerun = draw(st.sampled_from([(), ("read_only", "idempotent")]))
        planned = session.plan(run_id, rerun=rerun, new_id=fresh.__next__)
        if planned.continuation is None or draw(st.booleans()):
            repair(session)
            session.start(f"turn {session.seq}")
            play(draw, session)
            continue
        revalidate(planned.continuation, session.facts, SEEN)
        upto = draw(st.sampled_from(["claim", "created", "start", "start", "start"]))
        found = session.resume(run_id, upto, rerun=rerun, new_id=fresh.__next__)
        assert reasons(session.plan(planned.source_run_id))[0].startswith("continuation_")
        if upto == "start" and draw(st.booleans()):
            assert orjson.dumps(session.history.messages(found.run_id)) == orjson.dumps(list(found.replay))
            play(draw, session)
        else:
            repair(session)
            assert reasons(session.plan(planned.source_run_id)) == ["continuation_already_exists"]
            after = session.continuation(found.run_id, rerun=RECOVERIES[:2], new_id=fresh.__next__)
            assert after.boundary["segments"][:-1] == found.boundary["segments"]
            assert after.replay == found.replay
    assert not session.state.problems
