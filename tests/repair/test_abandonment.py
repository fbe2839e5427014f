"""A handoff that is given up: one batch, each event of which a writer takes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import maka
from maka.journal.codec import check_shape
from maka.journal.errors import InvalidEvent, JournalError
from maka.journal.events import Draft, Event
from maka.journal.state import State
from maka.repair.closers import abandonment, plan_closers
from support.folds import fold
from support.lineages import Story

FAILED = {"kind": "failed", "failure_class": "handoff_abandoned"}
ABORTED = {"kind": "aborted", "source": "stop_button"}
STOP = {"stop_id": "s", "turn_id": "t1", "source": "stop_button", "mode": "immediate"}
BATCH = ["continuation/claim", "run/created", "continuation/start", "turn/end", "run/settled"]


def paused(hops: int = 0) -> Story:
    story = Story().start().step().says().end_step()
    for hop in range(hops):
        source = story.ids["run_id"]
        story.pause().go_on(source, "handoff").step(hop + 2).says().end_step()
    return story.pause()


def taken(state: State, drafts: list[Draft], seq: int) -> State:
    """The state behind a batch, each event of which is checked as a writer checks it."""
    for number, draft in enumerate(drafts, seq):
        check_shape(draft)
        state.check(draft)
        state.apply(Event(number, state.last_ts, draft.type, draft.data, ""))
    return state


@pytest.mark.parametrize("reason", [FAILED, ABORTED, {**FAILED, "message": "the other host is gone"}])
@pytest.mark.parametrize("hops", [0, 1, 3])
def test_a_batch_that_a_writer_takes(hops: int, reason: dict[str, Any]) -> None:
    story = paused(hops)
    tip, successor = "r1" + "'" * hops, "r1" + "'" * (hops + 1)
    drafts = abandonment(story.state, f"h-{successor}", reason)
    assert [draft.type for draft in drafts] == BATCH
    claim, created, start, end, _ = (draft.data for draft in drafts)
    assert (claim["claim_id"], claim["source"]["run_id"]) == (f"c-{successor}", tip)
    assert claim["target_run"] == created["run"]
    assert created["run"]["invocation_id"] == f"i-{successor}"
    assert (created["run"]["max_steps"], created["run"]["root"]) == (9, {"kind": "user"})
    assert (start["start_kind"], start["run_id"]) == ("claim_repair", successor)
    assert end == {"turn_id": "t1", "run_id": successor, "reason": reason, "synthesized": True}
    state = taken(story.state, drafts, story.seq)
    assert state.problems == []
    assert plan_closers(state).drafts == []
    row = state.execution_rows()[0]
    assert (row["tip"], row["status"], row["pending_handoff"]) == (successor, reason["kind"], None)
    assert state.handoff_rows()[-1]["state"] == "abandoned"
    assert state.continuation_rows()[-1]["state"] == "settled"


def test_what_is_there_of_the_successor_is_used() -> None:
    for events in (0, 1, 2):
        story = paused()
        if events:
            claim = story.claim("r1", "handoff", replay_digest="1" * 64)
            if events == 2:
                story.add("run/created", {"run": claim["target_run"]})
            assert story.state.handoff_rows()[0]["state"] == "claimed"
        drafts = abandonment(story.state, "h-r1'", FAILED)
        assert [draft.type for draft in drafts] == BATCH[events:]
        start = next(draft.data for draft in drafts if draft.type == "continuation/start")
        assert (start["replay_digest"] == "1" * 64) == (events > 0)
        assert taken(story.state, drafts, story.seq).problems == []


def created_alone(hops: int = 0, **other: Any) -> tuple[Story, dict[str, Any]]:
    """The successor is created, and its claim was lost. ``other``: of the run's header."""
    claimed = paused(hops)
    header = {**claimed.claim(claimed.ids["run_id"], "handoff")["target_run"], **other}
    story = paused(hops)
    story.add("run/created", {"run": header})
    return story, header


@pytest.mark.parametrize("continuation", [True, False])
@pytest.mark.parametrize("hops", [0, 2])
def test_a_successor_whose_claim_was_lost_is_claimed_as_it_was_created(hops: int, continuation: bool) -> None:
    story, header = created_alone(hops)
    successor = header["run_id"]
    if not continuation:
        story = paused(hops)
        header = story.run(successor, "t1")
        story.add("run/created", {"run": header})
    assert not story.state.taken(story.state.continuations.pending()[0])
    drafts = abandonment(story.state, f"h-{successor}", ABORTED)
    assert [draft.type for draft in drafts] == [BATCH[0], *BATCH[2:]]
    assert drafts[0].data["target_run"] == header
    assert drafts[0].data["claimed_at"] == header["created_at"]
    state = taken(story.state, drafts, story.seq)
    assert (state.problems, state.lineage_fault(successor)) == ([], None)
    assert state.handoff_rows()[-1]["state"] == "abandoned"
    assert state.execution_rows()[0]["tip"] == successor


def test_it_is_claimed_anew_also_where_the_header_of_its_source_was_lost() -> None:
    story, header = created_alone()
    state = fold(story, [1])
    drafts = abandonment(state, "h-r1'", FAILED)
    assert drafts[0].data["source"]["invocation_id"] != header["continuation"]["source"]["invocation_id"]
    assert taken(state, drafts, story.seq).execution_rows()[0]["status"] == "failed"


def test_a_claim_is_made_anew_for_its_own_run_alone() -> None:
    story, _ = created_alone()
    [claim, *_] = abandonment(story.state, "h-r1'", FAILED)
    story.state.check(claim)
    other = {**claim.data["target_run"], "model": "another"}
    with pytest.raises(InvalidEvent, match="run r1' exists already"):
        story.state.check(Draft(claim.type, {**claim.data, "target_run": other}))
    forged = {**claim.data["target_run"]["continuation"], "claim_id": "another"}
    story, other = created_alone(continuation=forged)
    with pytest.raises(InvalidEvent, match="names another claim_id"):
        story.state.check(Draft(claim.type, {**claim.data, "target_run": other}))


def test_it_is_the_batch_of_a_repair_behind_a_stop() -> None:
    for claimed in (False, True):
        story = paused()
        if claimed:
            story.claim("r1", "handoff")
        story.add("turn/stop_requested", STOP)
        assert abandonment(story.state, "h-r1'", ABORTED) == plan_closers(story.state).drafts


def test_a_question_of_its_run_is_closed_first() -> None:
    """No writer lets a sealed run ask; where it stands in a journal all the same, it keeps no turn open."""
    story = paused()
    request = {"interaction_id": "i", "turn_id": "t1", "run_id": "r1", "kind": "question", "request": {}}
    story.add("interaction/requested", request)
    drafts = abandonment(story.state, "h-r1'", FAILED)
    assert [draft.type for draft in drafts] == ["interaction/resolved", *BATCH]
    assert drafts[0].data["outcome"] == {"kind": "closure", "reason": "host_restarted"}
    assert taken(story.state, drafts, story.seq).interactions.pending == {}


@pytest.mark.parametrize("claimed", [False, True])
def test_a_stop_and_its_batch_are_appended_as_one(tmp_path: Path, claimed: bool) -> None:
    story = paused()
    if claimed:
        story.claim("r1", "handoff")
    path = story.write(tmp_path)
    with maka.open_session(path, repair=False) as journal:
        drafts = [Draft("turn/stop_requested", STOP), *abandonment(journal.state, "h-r1'", ABORTED)]
        journal.append_batch(drafts)
        journal.flush()
    view = maka.inspect(path)
    assert (view.verdict, view.pending) == ("healthy", ())
    assert view.executions()[0]["status"] == "aborted"
    assert [row["state"] for row in view.handoffs()] == ["abandoned"]
    assert [row["status"] for row in view.runs()] == ["handed_off", "cancelled"]
    last = view.events[-len(drafts) :]
    assert [event.type for event in last] == ["turn/stop_requested", *(BATCH[1:] if claimed else BATCH)]
    assert [event.more for event in last] == [*reversed(range(1, len(drafts))), 0]


def test_the_next_turn_begins_behind_it(tmp_path: Path) -> None:
    story = paused()
    path = story.write(tmp_path)
    with maka.open_session(path) as journal:
        run = story.run("r2", "t2")
        begin = Draft("turn/start", {"turn_id": "t2", "run_id": "r2", "invocation_id": "i-r2", "turn": 2, "run": run})
        with pytest.raises(InvalidEvent, match="t1 is open"):
            journal.append(begin)
        journal.append_batch(abandonment(journal.state, "h-r1'", FAILED))
        journal.append(begin)
    assert [turn["status"] for turn in maka.inspect(path).turns()] == ["failed", "interrupted"]


# ---------------------------------------------------------------- what is not given up


def test_what_waits_no_more_is_not_given_up() -> None:
    story = paused()
    assert abandonment(story.state, "another", FAILED) == []
    drafts = abandonment(story.state, "h-r1'", FAILED)
    taken(story.state, drafts, story.seq)
    assert abandonment(story.state, "h-r1'", FAILED) == [], "it was given up before"
    story = paused()
    story.go_on("r1", "handoff")
    assert abandonment(story.state, "h-r1'", FAILED) == [], "its successor has started"
    story = paused().end("failed")
    assert abandonment(story.state, "h-r1'", FAILED) == [], "its turn has ended"
    story = paused(1)
    assert abandonment(story.state, "h-r1'", FAILED) == [], "another one of the turn waits"


def created_otherwise(story: Story) -> None:
    story.add("run/created", {"run": {**story.run("r1'", "t1"), "invocation_id": "another"}})


def created_for_another_turn(story: Story) -> None:
    story.add("run/created", {"run": story.run("r1'", "tX")})


def created_by_another_claim(story: Story) -> None:
    said = {"claim_id": "another", "boundary_digest": story.events[-1].sum, "source": {}}
    story.add("run/created", {"run": story.run("r1'", "t1", continuation=said)})


def created_from_elsewhere(story: Story) -> None:
    said = {"claim_id": "c-r1'", "boundary_digest": "f" * 32, "source": {}}
    story.add("run/created", {"run": story.run("r1'", "t1", continuation=said)})


def created_as_no_run_can_be(story: Story) -> None:
    story.add("run/created", {"run": {**story.run("r1'", "t1"), "backend": 7}})


def claimed_for_another(story: Story) -> None:
    story.claim("r1", "handoff", target_run=story.run("rX", "t1"))


def claimed_to_resume(story: Story) -> None:
    claim = story.claim("r1", "handoff", claim_id="another")
    story.add("continuation/claim", {**claim, "claim_id": "c-r1'", "purpose": "resume"})


def claimed_to_resume_it(story: Story) -> None:
    claim = story.claim("r1", "handoff", claim_id="another", target_run=story.run("rX", "tX"))
    target = story.run("r1'", "t1")
    story.add("continuation/claim", {**claim, "claim_id": "c-r1'", "purpose": "resume", "target_run": target})


def claimed_for_another_turn(story: Story) -> None:
    story.claim("r1", "handoff", target_run=story.run("r1'", "tX"))


def boundary_held(story: Story) -> None:
    story.claim("r1", "handoff", claim_id="another", target_run=story.run("rX", "t1"))


def successor_held(story: Story) -> None:
    story.claim("r1", "handoff", claim_id="another", boundary_digest="f" * 32)


def admitted(story: Story) -> None:
    given = {"turn_id": "tA", "run_id": "r1'", "previous_root_turn_id": None, "execution": {"kind": "root"}}
    story.add("turn/admitted", {**given, "input": {"content": []}, "input_digest": "0" * 64})


def claimed_and_admitted(story: Story) -> None:
    story.claim("r1", "handoff")
    admitted(story)


def claimed_and_over(story: Story) -> None:
    story.claim("r1", "handoff")
    story.add("turn/start", {"turn_id": "tX", "run_id": "r1'", "invocation_id": "i", "turn": 2, "run": {}})
    story.add("turn/end", {"turn_id": "tX", "run_id": "r1'", "reason": {"kind": "interrupted"}})


@pytest.mark.parametrize(
    "take",
    [
        created_otherwise,
        created_for_another_turn,
        created_by_another_claim,
        created_from_elsewhere,
        created_as_no_run_can_be,
        claimed_for_another,
        claimed_to_resume,
        claimed_to_resume_it,
        claimed_for_another_turn,
        boundary_held,
        successor_held,
        admitted,
        claimed_and_admitted,
        claimed_and_over,
    ],
)
def test_ids_that_something_else_holds_are_not_used(take: Callable[[Story], None]) -> None:
    story = paused()
    take(story)
    assert story.state.turns.open["t1"].rest == "paused"
    before = len(story.state.turn_rows())
    with pytest.raises(JournalError, match=r"h-r1' cannot be given up.*fork the session"):
        abandonment(story.state, "h-r1'", FAILED)
    assert len(story.state.turn_rows()) == before
    told = [finding.message for finding in plan_closers(story.state).findings if finding.code == "handoff_stuck"]
    what = "turn t1 waits for run r1' (handoff h-r1'), which can neither go on nor be given up"
    assert told == [f"{what}, because the ids that were reserved are taken"]
    assert "pending_handoff" not in [finding.code for finding in story.state.information()]
    story.add("turn/stop_requested", STOP)
    closing = plan_closers(story.state)
    assert "r1'" not in [draft.data.get("run_id") for draft in closing.drafts[-2:]]
    assert "handoff_stuck" in [finding.code for finding in closing.findings]


# ---------------------------------------------------------------- what of the source was lost


def test_a_successor_has_what_is_left_of_the_configuration() -> None:
    """Where the paused run's header was lost the session's stands in; what none can have is left out."""
    story = paused()
    state = fold(story, [1])
    drafts = abandonment(state, "h-r1'", FAILED)
    run = drafts[0].data["target_run"]
    assert (run["backend"], run["model"], run["cwd"], run["permission_mode"]) == ("fake", "fake-model", "/tmp", "ask")
    assert run["root"] == {"kind": "user"}
    assert taken(state, drafts, story.seq).execution_rows()[0]["status"] == "failed"


def test_what_no_header_can_hold_is_not_written() -> None:
    class Odd(Story):
        def run(self, run_id: str, turn_id: str, **more: Any) -> dict[str, Any]:
            odd = {"backend": 7, "root": [], "connection": {}, "agent_id": None, "parent_run_id": "rP"}
            return super().run(run_id, turn_id, **{**odd, **more})

    story = Odd().start().step().says().end_step().pause()
    drafts = abandonment(story.state, "h-r1'", FAILED)
    run = drafts[0].data["target_run"]
    assert (run["backend"], run["root"], run["parent_run_id"]) == ("fake", {"kind": "user"}, "rP")
    assert "connection" not in run
    assert "agent_id" not in run
    taken(story.state, drafts, story.seq)
