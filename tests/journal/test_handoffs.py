"""Handoffs in a journal: turns of several runs, and the pauses that seal nothing, when read and when written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest

import maka
from maka.journal import summary
from maka.journal.codec import check_shape
from maka.journal.errors import InvalidEvent
from maka.journal.events import Draft, Event
from maka.journal.state import State
from maka.journal.store import FileStore
from maka.repair.closers import plan_closers
from support.builder import Builder
from support.folds import events, fold, problems
from support.lineages import COMPOSITION, Story

GOAL = {"kind": "goal", "goal_id": "goal-1"}


class Errand(Story):
    """Runs that were started for a goal."""

    def run(self, run_id: str, turn_id: str, **more: Any) -> dict[str, Any]:
        return super().run(run_id, turn_id, **{"root": GOAL, **more})


def standing(story: Story | None = None) -> Story:
    """A turn that stands between two steps, its run composed."""
    story = (story or Story()).start().step().says().end_step()
    story.add("run/composition", {"run_id": story.ids["run_id"], "composition": COMPOSITION})
    return story


def pause_data(story: Story, **more: Any) -> dict[str, Any]:
    data = {"protocol": "runtime_handoff_pause_v1", "handoff_id": "h", "host_epoch": "e", **story.ids}
    data |= {"root_run_id": f"r{story.turn}", "successor_run_id": "rS", "successor_invocation_id": "iS"}
    return {**data, "claim_id": "cS", "remaining_steps": 2, **more}


def handed(story: Story | None = None, hops: int = 1, steps: int | None = 9) -> Story:
    """The turn is carried by the last of its runs, which has made a step."""
    story = (story or Story()).start().step().says().end_step()
    for hop in range(hops):
        source = story.ids["run_id"]
        story.pause(remaining_steps=None if steps is None else steps - hop).go_on(source, "handoff")
        story.step(hop + 2).says().end_step()
    return story


def packed(state: State) -> State:
    return summary.from_json(orjson.loads(orjson.dumps(summary.to_json(state))))


def refused(state: State, type_: str, data: dict[str, Any]) -> str | None:
    """Why a writer may not append this."""
    draft = Draft(type_, data)
    try:
        check_shape(draft)
        state.check(draft)
    except InvalidEvent as error:
        return str(error)
    return None


# ---------------------------------------------------------------- three in a row

TURN = {"turn_id": "t1", "root_run_id": "r1", "root": GOAL}


def test_a_turn_that_was_handed_over_three_times() -> None:
    story = handed(Errand(), 3, 3)
    chain = ["r1", "r1'", "r1''", "r1'''"]
    row = {**TURN, "chain": chain, "tip": "r1'''", "status": "interrupted", "pending_handoff": None}
    assert story.state.execution_rows() == [row]
    story.end()
    row["status"] = "completed"
    assert story.state.problems == []
    assert plan_closers(story.state).drafts == []
    for state in (story.state, packed(story.state)):
        assert state.execution_rows() == [row]
        assert state.execution_row("t1") == row
        assert [segment["run_id"] for segment in state.segments("r1'''")] == chain
        claims = state.continuation_rows()
        assert [(claim["depth"], claim["root_run_id"], claim["state"]) for claim in claims] == [
            (1, "r1", "settled"),
            (2, "r1", "settled"),
            (3, "r1", "settled"),
        ]
        handoffs = state.handoff_rows()
        assert [(each["remaining_steps"], each["state"]) for each in handoffs] == [
            (3, "continued"),
            (2, "continued"),
            (1, "continued"),
        ]
        assert [run["status"] for run in state.run_rows()] == [*["handed_off"] * 3, "completed"]
        assert state.lineage_fault("r1'''") is None


def test_a_writer_would_have_taken_each_of_its_events() -> None:
    """The story is legal: nothing in it is refused, behind what stood before it."""
    state = State()
    for event in handed(Errand(), 3).end().events:
        if event.type != "session/header":
            assert refused(state, event.type, event.data) is None, event
        state.apply(event)


@pytest.mark.parametrize("hops", [0, 1, 2])
def test_it_waits_for_the_next(hops: int) -> None:
    story = handed(Errand(), hops).pause()
    tip = "r1" + "'" * hops
    for state in (story.state, packed(story.state)):
        row = state.execution_rows()[0]
        assert (row["tip"], row["root_run_id"], row["root"]) == (tip, "r1", GOAL)
        assert (row["status"], row["pending_handoff"]) == ("paused", f"h-{tip}'")
        assert len(row["chain"]) == hops + 1
    story.claim(tip, "handoff")
    assert story.state.execution_rows()[0]["pending_handoff"] == f"h-{tip}'"


def test_each_event_folds_as_through_a_snapshot() -> None:
    story = handed(Errand(), 3).end()
    state = State()
    for event in story.events:
        state = packed(state)
        state.apply(event)
    assert summary.to_json(state) == summary.to_json(story.state)


def test_turns_stand_in_their_order_and_others_are_none() -> None:
    story = handed()
    story.end()
    story.plain_turn()
    handed(story, 2)
    rows = story.state.execution_rows()
    assert [(row["turn_id"], row["status"]) for row in rows] == [("t1", "completed"), ("t3", "interrupted")]
    assert story.state.execution_row("t2") == {
        "turn_id": "t2",
        "root_run_id": "r2",
        "root": {"kind": "user"},
        "chain": ["r2"],
        "tip": "r2",
        "status": "completed",
        "pending_handoff": None,
    }
    assert story.state.execution_row("t4") is None


def test_a_turn_that_continues_another_has_its_own_root() -> None:
    story = Errand().start().step().says().end_step().end("interrupted")
    story.go_on("r1").step().says().end_step()
    story.pause().go_on("r2", "handoff").end()
    row = story.state.execution_rows()[0]
    assert (row["root_run_id"], row["chain"], row["root"]) == ("r2", ["r2", "r2'"], GOAL)
    assert [segment["run_id"] for segment in story.state.segments("r2'")] == ["r1", "r2", "r2'"]


def test_a_root_that_was_lost_is_what_its_successors_inherited() -> None:
    story = handed(Errand(), 1).end()
    start = next(event.seq for event in story.events if event.type == "turn/start")
    row = fold(story, [start]).execution_row("t1") or {}
    assert (row["chain"], row["root"]) == (["r1", "r1'"], GOAL)
    alone = Errand().start().end()
    assert (fold(alone, [1]).execution_row("t1") or {})["root"] is None


def test_a_fork_shows_what_its_parent_handed_over() -> None:
    parent = handed(Errand()).end()
    state = State()
    for event in parent.events:
        state.inherit(event)
    point = {"session_id": "s1", "seq": parent.seq - 1, "sum": parent.prev}
    child = Builder("s2", parent=point)
    child.turn = 1
    for event in events(child.plain_turn()):
        state.apply(event)
    row = {**TURN, "chain": ["r1", "r1'"], "tip": "r1'", "status": "completed", "pending_handoff": None}
    assert state.execution_rows() == [row]
    assert packed(state).execution_rows() == [row]


def test_a_view_tells_executions_as_a_repair_would_leave_them(tmp_path: Path) -> None:
    story = handed(Errand()).pause()
    story.add("turn/stop_requested", {"stop_id": "s", "turn_id": "t1", "source": "user", "mode": "immediate"})
    path = story.write(tmp_path)
    view = maka.inspect(path)
    row = {**TURN, "chain": ["r1", "r1'", "r1''"], "tip": "r1''", "status": "aborted", "pending_handoff": None}
    assert view.executions() == view.to_json()["executions"] == [row]
    assert view.execution("t1") == row
    assert view.execution("t2") is None
    assert maka.load(path).executions() == [row]


def test_a_list_tells_what_waits(tmp_path: Path) -> None:
    def told() -> tuple[Any, Any]:
        (row,) = FileStore(tmp_path).list()
        return row["active_plan"], row["pending_handoff"]

    story = Story()
    story.add("plan/proposed", {"proposal_id": "p", "revision": 1, "turn_id": "t0", "title": "x", "steps": []})
    story.add("plan/approved", {"proposal_id": "p", "revision": 1, "execution_id": "e"})
    path = handed(story).pause().write(tmp_path)
    assert told() == (None, None), "the ends of a file cannot tell"
    maka.open_session(path).close()
    assert told() == (True, True)
    with maka.open_session(path) as journal:
        journal.append(Draft("plan/execution", {"execution_id": "e", "status": "completed"}))
    assert told() == (False, True)
    with maka.open_session(path) as journal:
        stop = {"stop_id": "s", "turn_id": "t1", "source": "user", "mode": "immediate"}
        journal.append(Draft("turn/stop_requested", stop))
    maka.open_session(path).close()
    assert told() == (False, False)


# ---------------------------------------------------------------- what seals nothing


@attrs.frozen
class Forged:
    """A pause that no correct writer produces: how the story goes up to it, and what of it is unlike a valid one."""

    why: str
    before: Callable[[], Story] = standing
    change: dict[str, Any] = attrs.field(factory=dict)
    #: How the turn ends by a repair; None: it had ended before.
    ends: str | None = "interrupted"


def then(act: Callable[[Story], Any], story: Callable[[], Story] = standing) -> Callable[[], Story]:
    def before() -> Story:
        told = story()
        act(told)
        return told

    return before


def ask(story: Story) -> None:
    request = {"interaction_id": "i", **story.ids, "kind": "question", "request": {}}
    story.add("interaction/requested", request)


def admit(story: Story) -> None:
    admitted = {"turn_id": "tA", "run_id": "rA", "previous_root_turn_id": None, "execution": {"kind": "root"}}
    story.add("turn/admitted", {**admitted, "input": {"content": []}, "input_digest": "0" * 64})


def claimed_in_vain() -> Story:
    """A claim whose run can never come: its turn was there before."""
    story = Story().start().end("interrupted")
    story.claim("r1", target_run=story.run("rT", "t1"))
    story.turn = 1
    return standing(story)


def another_turn() -> Story:
    return standing(Story().plain_turn())


def handed_twice() -> Story:
    story = handed(hops=2)
    story.add("run/composition", {"run_id": "r1''", "composition": COMPOSITION})
    return story


def sealed_and_said(story: Story) -> None:
    story.add("handoff/pause", pause_data(story, handoff_id="h0", claim_id="c0", successor_run_id="r0"))
    story.user("late", "steering")


LONG = "x" * 257
GIVEN = ("handoff_id", "host_epoch", "claim_id", "successor_run_id", "successor_invocation_id")

FORGED: dict[str, Forged] = {
    "another protocol": Forged("protocol", change={"protocol": "runtime_handoff_pause_v2"}),
    "a turn that is not there": Forged("t9", change={"turn_id": "t9"}),
    "a turn that is over": Forged("after the end of its turn t1", then(lambda story: story.end()), ends=None),
    "a run of no turn": Forged("r9", change={"run_id": "r9"}),
    "a run of another turn": Forged("r1 is no run", another_turn, {"run_id": "r1"}),
    "a run that is not the newest": Forged("does not carry", handed_twice, {"run_id": "r1'"}),
    "a run that was sealed": Forged("does not carry", lambda: standing().pause(), ends="paused"),
    "a run that was sealed before something was said": Forged("is over", then(sealed_and_said)),
    "an open step": Forged("step 2", then(lambda story: story.step(2))),
    "a call without a result": Forged(
        "without a result", then(lambda story: (story.step(2).says("", ["x"]), story.end_step()))
    ),
    "a dispatched call without a result": Forged(
        "without a result", then(lambda story: (story.step(2).says("", ["x"]), story.call("x"), story.end_step()))
    ),
    "a pending interaction": Forged("waits", then(ask)),
    "a root that is not there": Forged("r9", change={"root_run_id": "r9"}),
    "no steps": Forged("remaining_steps must be positive", change={"remaining_steps": 0}),
    "less than no steps": Forged("remaining_steps must be positive", change={"remaining_steps": -1}),
    "itself for a successor": Forged("r1 exists", change={"successor_run_id": "r1"}),
    "its invocation for a successor": Forged("i-r1", change={"successor_run_id": "i-r1"}),
    "its own invocation": Forged("i-r1", change={"successor_invocation_id": "i-r1"}),
    "its root for a successor": Forged("r1 exists", handed_twice, {"successor_run_id": "r1"}),
    "a circle": Forged("r1' exists", handed_twice, {"successor_run_id": "r1'"}),
    "a run of another turn for a successor": Forged("r1 exists", another_turn, {"successor_run_id": "r1"}),
    "a created run for a successor": Forged(
        "rS exists", then(lambda story: story.add("run/created", {"run": story.run("rS", "t1")}))
    ),
    "a claimed run for a successor": Forged("rT exists", claimed_in_vain, {"successor_run_id": "rT"}),
    "an admitted run for a successor": Forged("rA was admitted", then(admit), {"successor_run_id": "rA"}),
    "a handoff that is there": Forged("h-r1' exists", handed_twice, {"handoff_id": "h-r1'"}),
    "a claim that is there": Forged("c-r1' exists", handed_twice, {"claim_id": "c-r1'"}),
    **{
        f"{what} {key}": Forged(key, change={key: value})
        for what, value in (("no", ""), ("a long", LONG), ("an unprintable", "a\x1fb"), ("a deleted", "a\x7fb"))
        for key in GIVEN
    },
}


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_pause_is_not_written(case: str) -> None:
    forged = FORGED[case]
    story = forged.before()
    data = pause_data(story, **forged.change)
    kept = summary.to_json(story.state)
    assert forged.why in (refused(story.state, "handoff/pause", data) or "")
    assert summary.to_json(story.state) == kept


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_pause_seals_nothing_and_a_repair_ends_the_turn(case: str) -> None:
    forged = FORGED[case]
    story = forged.before()
    found = problems(story)
    before = story.state.turn_rows(), story.state.run_rows(), story.state.execution_rows(), story.state.handoff_rows()
    seq = story.add("handoff/pause", pause_data(story, **forged.change))
    for state in (story.state, packed(story.state)):
        assert [(one.code, one.seq) for one in state.problems] == [*found, ("handoff_invalid", seq)]
        assert (state.turn_rows(), state.run_rows(), state.execution_rows(), state.handoff_rows()) == before
        closing = plan_closers(state)
        ended = [draft.data["turn_id"] for draft in closing.drafts if draft.type == "turn/end"]
        assert ended == ([story.ids["turn_id"]] if forged.ends == "interrupted" else [])
        for number, draft in enumerate(closing.drafts, seq + 1):
            state.apply(Event(number, 0, draft.type, draft.data, ""))
        assert len(state.problems) == len(found) + 1, "the repair writes nothing that is forged"
        turn = state.turn_rows()[-1]
        assert turn["status"] == (forged.ends or "completed")
        assert plan_closers(state).drafts == []


@pytest.mark.parametrize("remaining", [None, 1, 2**53])
def test_a_valid_pause_is_written_and_seals(remaining: int | None) -> None:
    story = standing()
    data = pause_data(story, remaining_steps=remaining)
    assert refused(story.state, "handoff/pause", data) is None
    story.add("handoff/pause", data)
    assert story.state.problems == []
    assert story.state.turn_rows()[-1]["status"] == "paused"


@pytest.mark.parametrize("key", GIVEN)
@pytest.mark.parametrize("value", ["x", "x" * 256, "ä b\x80"])
def test_what_a_pause_gives_has_up_to_256_characters(key: str, value: str) -> None:
    story = standing()
    data = pause_data(story, **{key: value})
    assert refused(story.state, "handoff/pause", data) is None
    story.add("handoff/pause", data)
    assert story.state.problems == []


def test_what_a_pause_names_of_others_is_as_they_made_it() -> None:
    """Its run, and its turn, have ids that nobody gives a pause."""
    run_id, turn_id = "r" * 300, "t\n"
    story = Story()
    ids = {"turn_id": turn_id, "run_id": run_id}
    story.add("turn/start", {**ids, "invocation_id": "i", "turn": 1, "run": story.run(run_id, turn_id)})
    story.add("run/composition", {"run_id": run_id, "composition": COMPOSITION})
    data = pause_data(standing(Story())) | ids | {"root_run_id": run_id}
    assert refused(story.state, "handoff/pause", data) is None
    story.add("handoff/pause", data)
    assert story.state.problems == []


@pytest.mark.parametrize("starts", [True, False])
def test_what_a_successor_is_made_from_is_held_as_long_as_one_may_come(starts: bool) -> None:
    story = standing().pause()
    [handoff] = story.state.continuations.pending()
    assert handoff.source["run_id"] == "r1"
    claim = story.claim("r1", "handoff")
    claimed = packed(story.state).continuations.handoffs[handoff.handoff_id]
    assert claimed.source == handoff.source != {}, "it can be given up still"
    if starts:
        story.admit(claim)
    else:
        story.end()
    assert story.state.continuations.pending() == []
    assert handoff.source == {}


def test_a_pause_before_the_first_step_is_valid() -> None:
    story = Story().start()
    story.add("run/composition", {"run_id": "r1", "composition": COMPOSITION})
    assert refused(story.state, "handoff/pause", pause_data(story)) is None


def test_a_successor_is_paused_before_its_first_step() -> None:
    story = standing().pause().go_on("r1", "handoff").pause()
    assert story.state.problems == []
    assert story.state.turns.open["t1"].rest == "paused"
    assert story.state.execution_rows()[0]["pending_handoff"] == "h-r1''"


# ---------------------------------------------------------------- what only a writer is held to


def test_a_writer_names_the_run_that_opened_the_turn() -> None:
    story = handed()
    story.add("run/composition", {"run_id": "r1'", "composition": COMPOSITION})
    data = pause_data(story, root_run_id="r1'")
    assert "run r1 opened turn t1" in (refused(story.state, "handoff/pause", data) or "")
    assert refused(story.state, "handoff/pause", {**data, "root_run_id": "r1"}) is None
    story.add("handoff/pause", data)
    assert story.state.problems == [], "reading takes any run that there is"
    assert story.state.turn_rows()[-1]["status"] == "paused"


def test_a_turn_whose_beginning_was_lost_has_any_root() -> None:
    story = handed()
    story.add("run/composition", {"run_id": "r1'", "composition": COMPOSITION})
    lost = [event.seq for event in story.events if event.seq and event.seq < story.first["r1'"] - 2]
    state = fold(story, lost)
    assert not state.turns.open["t1"].opened
    for root in ("r1", "r1'", "r9"):
        assert refused(state, "handoff/pause", pause_data(story, root_run_id=root)) is None


def test_a_writer_pauses_no_run_without_a_composition() -> None:
    story = Story().start().step().says().end_step()
    assert "composition" in (refused(story.state, "handoff/pause", pause_data(story)) or "")
    story.add("handoff/pause", pause_data(story))
    assert story.state.problems == []


def test_what_a_pause_has_reserved_is_taken_by_nothing_else() -> None:
    story = standing().pause()
    run = story.run("r1'", "t1")
    assert "r1' is the successor" in (refused(story.state, "run/created", {"run": run}) or "")
    admitted: dict[str, Any] = {"turn_id": "t2", "run_id": "r1'", "previous_root_turn_id": None}
    admitted |= {"execution": {"kind": "root"}}
    admitted |= {"input": {"content": []}, "input_digest": "0" * 64}
    assert "r1' is the successor" in (refused(story.state, "turn/admitted", admitted) or "")
    assert refused(story.state, "turn/admitted", {**admitted, "run_id": "r2"}) is None


def test_a_run_that_is_sealed_asks_nothing() -> None:
    request: dict[str, Any] = {"interaction_id": "i", "turn_id": "t1", "run_id": "r1", "kind": "question"}
    request |= {"request": {"questions": []}}
    story = standing()
    assert refused(story.state, "interaction/requested", request) is None
    story.pause()
    assert "does not carry" in (refused(story.state, "interaction/requested", request) or "")
    story.go_on("r1", "handoff")
    assert "does not carry" in (refused(story.state, "interaction/requested", request) or "")
    assert refused(story.state, "interaction/requested", {**request, "run_id": "r1'"}) is None


# ---------------------------------------------------------------- starts


def test_a_turn_is_taken_over_by_a_claim_for_it_alone() -> None:
    """A claim that reserved the run for another purpose, or for another turn, takes over nothing."""
    for purpose, turn_id in (("resume", "t1"), ("handoff", "t9")):
        story = standing().pause()
        claim = story.claim("r1", "handoff")
        state = fold_without_claim(story)
        reserved = {**claim, "purpose": purpose, "target_run": {**claim["target_run"], "turn_id": turn_id}}
        state.apply(Event(story.seq - 1, 0, "continuation/claim", reserved, ""))
        state.apply(Event(story.seq, 0, "run/created", {"run": reserved["target_run"]}, ""))
        start = {"protocol": "continuation_start_v2", "start_kind": "runtime_admission", "purpose": "handoff"}
        start |= {key: claim[key] for key in ("claim_id", "boundary_digest", "replay_digest", "source")}
        state.apply(Event(story.seq + 1, 0, "continuation/start", {**start, **story.ids}, ""))
        assert [finding.code for finding in state.problems] == ["turn_order"], (purpose, turn_id)


def fold_without_claim(story: Story) -> State:
    state = State()
    for event in story.events[:-1]:
        state.apply(event)
    return state


def test_a_handoff_that_another_run_went_on_from_is_over() -> None:
    story = standing().pause()
    story.admit(story.claim("r1", "handoff", claim_id="another"))
    assert story.state.handoff_rows()[0]["state"] == "abandoned"
    assert story.state.execution_rows()[0]["pending_handoff"] is None


def lost(story: Story, *types: str) -> State:
    """The fold without the newest event of each of these types."""
    return fold(story, [max(event.seq for event in story.events if event.type == type_) for type_ in types])


def states(state: State) -> list[str]:
    return [row["state"] for row in state.handoff_rows()]


@pytest.mark.parametrize("claim", [(), ("continuation/claim",)])
def test_a_successor_whose_start_was_lost_has_gone_on_by_what_it_did(claim: tuple[str, ...]) -> None:
    gone = ("continuation/start", *claim)
    story = standing().pause().go_on("r1", "handoff")
    assert states(lost(story, *gone)) == ["pending" if claim else "claimed"]
    story.step(2)
    assert states(lost(story, *gone)) == ["continued"], "it has a step"
    assert states(lost(standing().pause().go_on("r1", "handoff").end("failed"), *gone)) == ["continued"], (
        "it has an end"
    )
    story.says().end_step().pause()
    state = lost(story, *gone)
    assert states(state) == ["continued", "pending"], "it has handed over"
    assert state.continuations.handoffs["h-r1'"].source == {}
    story.end("failed")
    assert states(lost(story, *gone)) == ["continued", "abandoned"], "its turn was ended by another"


def test_a_successor_that_another_went_on_from_has_gone_on() -> None:
    """Of the first successor nothing but its claim is left, and of its own handoff nothing but what came of it."""
    story = standing().pause().go_on("r1", "handoff").pause().go_on("r1'", "handoff")
    starts = [event.seq for event in story.events if event.type == "continuation/start"]
    pauses = [event.seq for event in story.events if event.type == "handoff/pause"]
    assert states(fold(story, [starts[0], pauses[1]])) == ["continued"]


def test_who_gave_a_handoff_up_did_so_also_where_its_start_was_lost() -> None:
    story = standing().pause()
    claim = story.claim("r1", "handoff")
    story.admit(claim, "claim_repair")
    end = {**story.ids, "reason": {"kind": "failed", "failure_class": "handoff_abandoned"}, "synthesized": True}
    story.add("turn/end", end)
    assert states(story.state) == states(lost(story, "continuation/start")) == ["abandoned"]


def test_a_claim_whose_turn_another_run_carries_is_not_to_be_settled() -> None:
    """The pause that ended its run was lost."""
    story = standing().pause().go_on("r1", "handoff").step(2).says().end_step().pause().go_on("r1'", "handoff")
    told = [row["state"] for row in lost(story, "handoff/pause").continuation_rows()]
    assert told == ["settled", "started_indeterminate"]


def test_a_claim_whose_run_another_claim_started_is_not_to_be_settled() -> None:
    story = Story().start().end("interrupted")
    claim = story.claim("r1")
    story.admit(claim, claim_id="another")
    assert [(row["claim_id"], row["state"]) for row in story.state.continuation_rows()] == [
        ("c-r2", "settled"),
        ("another", "started_indeterminate"),
    ]


def test_a_lineage_at_fault_is_given_up_and_not_gone_on_from() -> None:
    story = Story().start().end("interrupted")
    story.admit(story.claim("r1", boundary={"segments": []})).step().says().end_step()
    story.pause()
    segments = story.state.segments("r2")
    claim = story.claim("r2", "handoff", segments=segments)
    at = len(story.events) - 1
    state = State()
    for event in story.events[:at]:
        state.apply(event)
    assert refused(state, "continuation/claim", claim) is None
    story.add("run/created", {"run": claim["target_run"]})
    start = {"protocol": "continuation_start_v2", "start_kind": "runtime_admission", "purpose": "handoff", **story.ids}
    start |= {key: claim[key] for key in ("claim_id", "boundary_digest", "replay_digest", "source")}
    assert "nothing goes on" in (refused(story.state, "continuation/start", start) or "")
    assert refused(story.state, "continuation/start", {**start, "start_kind": "claim_repair"}) is None


# ---------------------------------------------------------------- what was lost


@pytest.mark.parametrize("what", ["turn/start", "step/start", "step/end", "user/message", "assistant/message"])
def test_a_pause_behind_a_loss_can_still_be_given_up(what: str) -> None:
    story = standing().pause()
    lost = [event.seq for event in story.events if event.type == what]
    state = fold(story, lost)
    assert [finding.code for finding in state.problems] == []
    turn = state.turns.open["t1"]
    if what == "step/end":
        assert turn.rest is None, "the step may have gone on"
        assert [draft.type for draft in plan_closers(state).drafts] == ["step/end", "turn/end"]
        return
    assert turn.rest == "paused"
    assert [row["status"] for row in state.run_rows()] == ["handed_off"]
    stop = {"stop_id": "s", "turn_id": "t1", "source": "user", "mode": "immediate"}
    state.apply(Event(story.seq, 0, "turn/stop_requested", stop, ""))
    drafts = plan_closers(state).drafts
    assert [draft.type for draft in drafts][-2:] == ["turn/end", "run/settled"]
    for number, draft in enumerate(drafts, story.seq + 1):
        check_shape(draft)
        state.check(draft)
        state.apply(Event(number, 0, draft.type, draft.data, ""))
    assert state.turn_rows()[-1]["status"] == "aborted"


# ---------------------------------------------------------------- run/composition

OTHER = {**COMPOSITION, "composer_revision": "another"}


def composed(run_id: str = "r1", composition: Any = COMPOSITION) -> dict[str, Any]:
    return {"run_id": run_id, "composition": composition}


def test_a_composition_stands_once_for_each_run() -> None:
    story = standing()
    assert "already" in (refused(story.state, "run/composition", composed()) or "")
    reordered = dict(reversed(COMPOSITION.items()))
    assert "already" in (refused(story.state, "run/composition", composed(composition=reordered)) or "")
    assert "another composition" in (refused(story.state, "run/composition", composed(composition=OTHER)) or "")


@pytest.mark.parametrize("where", ["created", "opened", "in a step", "between steps", "while asking"])
def test_a_composition_may_stand_anywhere(where: str) -> None:
    story = Story()
    if where == "created":
        story.add("run/created", {"run": story.run("r1", "t1")})
    else:
        story.start()
    if where in ("in a step", "between steps"):
        story.step()
    if where == "between steps":
        story.end_step()
    if where == "while asking":
        ask(story)
    assert refused(story.state, "run/composition", composed()) is None
    story.add("run/composition", composed())
    assert story.state.problems == []


@pytest.mark.parametrize("purpose", ["resume", "handoff"])
def test_a_composition_behind_a_start_leaves_it_the_last_event(purpose: str) -> None:
    story = standing()
    if purpose == "handoff":
        story.pause().go_on("r1", purpose)
    else:
        story.end("interrupted").go_on("r1", purpose)
    ids = dict(story.ids)
    assert refused(story.state, "run/composition", composed(ids["run_id"])) is None
    story.add("run/composition", composed(ids["run_id"]))
    assert story.state.turns.open[ids["turn_id"]].rest == "indeterminate"
    assert story.state.continuation_rows()[-1]["state"] == "started_indeterminate"


@pytest.mark.parametrize("over", ["ended", "settled", "interrupted", "sealed"])
def test_a_run_that_is_over_is_composed_no_more(over: str) -> None:
    story = Story().start()
    if over == "sealed":
        story.add("handoff/pause", pause_data(story))
    else:
        story.end("interrupted" if over == "interrupted" else "completed", settle=over == "settled")
    assert "not over" in (refused(story.state, "run/composition", composed()) or "")
    story.add("run/composition", composed())
    assert story.state.problems == [], "where it is read it is no fault"
    assert "not over" in (refused(story.state, "run/composition", composed("r9")) or "")
