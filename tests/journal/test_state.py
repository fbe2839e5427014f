"""The fold as a whole: it takes anything, refuses what it would report, and tells what there is to know."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maka.journal import summary
from maka.journal.errors import InvalidEvent
from maka.journal.events import Draft, Event
from maka.journal.history import History
from maka.journal.state import State
from support.builder import Builder
from support.chaos import any_events
from support.folds import events, fold, problems
from support.legal import assert_legal
from support.realistic import realistic


def shown(state: State) -> bytes:
    rows = [state.turn_rows(), state.run_rows(), state.continuation_rows(), state.handoff_rows()]
    rows += [state.interaction_rows(), [state.queue_rows()], state.plan_rows(), [state.usage_row()]]
    told = [finding.to_json() for finding in [*state.problems, *state.information()]]
    return orjson.dumps([rows, told])


@settings(max_examples=300, deadline=None)
@given(any_events(), st.integers(0, 25))
def test_anything_folds_and_history_is_legal(drawn: list[Event], cut: int) -> None:
    state, history, pieces = State(), History(), State()
    for at, event in enumerate(drawn):
        state.apply(event)
        history.apply(event)
        if at == cut:
            pieces = summary.from_json(orjson.loads(orjson.dumps(summary.to_json(pieces))))
            assert_legal(history.messages())
        pieces.apply(event)
    assert_legal(history.messages())
    orjson.dumps(history.annotated())
    for run_id in [*state.runs.live, *(row[0] for row in state.runs.closed)]:
        assert_legal(history.messages(run_id))
        orjson.dumps([history.replay(run_id).messages, state.segments(run_id), state.lineage_fault(run_id)])
    assert shown(pieces) == shown(state)
    assert orjson.dumps(summary.to_json(pieces)) == orjson.dumps(summary.to_json(state))
    seqs = [finding.seq for finding in state.problems if finding.code != "unanswered_call"]
    assert len(seqs) == len(set(seqs)), "an event is told of twice"


@settings(max_examples=100, deadline=None)
@given(any_events(), any_events())
def test_anything_may_be_a_forks_parent(parent: list[Event], child: list[Event]) -> None:
    state, history = State(), History()
    for event in parent:
        state.inherit(event)
        history.apply(event)
    header = {"format": 1, "session_id": "c", "created_by": {}, "parent": {}}
    for event in [Event(0, 0, "session/header", header, "0" * 32), *child]:
        state.apply(event)
        history.apply(event)
    assert_legal(history.messages())
    shown(state)


@settings(max_examples=100, deadline=None)
@given(any_events(), any_events(size=3))
def test_what_may_be_written_is_never_found_wrong(before: list[Event], after: list[Event]) -> None:
    from maka.journal.codec import check_shape

    state = State()
    for event in before:
        state.apply(event)
    for event in after:
        draft = Draft(event.type, event.data)
        packed = orjson.dumps(summary.to_json(state))
        try:
            check_shape(draft)
            state.check(draft)
        except InvalidEvent:
            assert orjson.dumps(summary.to_json(state)) == packed, "a check changed the state"
            continue
        found = len(state.problems)
        state.apply(Event(100, 100, event.type, event.data, "0" * 32))
        assert len(state.problems) == found


def test_a_correct_writer_passes_every_check() -> None:
    state, again = State(), set()
    for event in events(realistic()):
        # The builder names operations for their calls, and a reused call_id is another operation.
        if event.data.get("operation_id") not in again or event.type != "tool/call":
            state.check(Draft(event.type, event.data, event.ignorable))
        again.add(event.data.get("operation_id"))
        state.apply(event)
    assert list(state.problems) == []


# ---------------------------------------------------------------- what is refused


def refused(builder: Builder, type: str, data: dict[str, Any]) -> str | None:
    try:
        fold(builder).check(Draft(type, data))
    except InvalidEvent as error:
        return f"{error.type}: {error}"
    return None


def turn(builder: Builder, number: int, run_id: str = "rX", turn_id: str = "tX") -> dict[str, Any]:
    run = builder.run(run_id, turn_id)
    return {"turn_id": turn_id, "run_id": run_id, "invocation_id": "iX", "turn": number, "run": run}


def test_turns_do_not_overlap() -> None:
    assert refused(Builder().plain_turn(), "turn/start", turn(Builder(), 2)) is None
    assert "open" in str(refused(Builder().start(), "turn/start", turn(Builder(), 2)))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (turn(Builder(), 1), "number 1"),
        (turn(Builder(), 3), "number 3"),
        (turn(Builder(), 2, turn_id="t1"), "opened before"),
        (turn(Builder(), 2, run_id="r1"), "r1 exists"),
        ({**turn(Builder(), 2), "run_id": "rY"}, "header"),
    ],
)
def test_a_turn_is_new(data: dict[str, Any], why: str) -> None:
    assert why in str(refused(Builder().plain_turn(), "turn/start", data))


def said(builder: Builder, message_id: str, kind: str = "steering") -> dict[str, Any]:
    return {"message_id": message_id, **builder.ids, "content": [], "source": {"kind": kind}}


def test_a_message_is_said_once() -> None:
    builder = Builder().start().user("x", message_id="m")
    assert "said before" in str(refused(builder, "user/message", said(builder, "m")))
    assert refused(builder, "user/message", said(builder, "n")) is None


def test_only_steering_follows_a_step() -> None:
    builder = Builder().start().step().end_step()
    assert refused(builder, "user/message", said(builder, "n")) is None
    assert "steering" in str(refused(builder, "user/message", said(builder, "n", "goal")))


def in_step(**more: Any) -> dict[str, Any]:
    return {"turn_id": "t1", "run_id": "r1", "step": 1, **more}


def message(message_id: str) -> dict[str, Any]:
    return in_step(message_id=message_id, content=[], stop_reason="end_turn")


def call(operation_id: str) -> dict[str, Any]:
    known = {"arguments_digest": "0" * 64, "recovery": "never"}
    return in_step(call_id="x", operation_id=operation_id, name="tool", **known)


def busy() -> Builder:
    builder = Builder().start().step().says("", ["a", "b"])
    builder.call("a")
    return builder


def test_ids_inside_a_turn_are_used_once() -> None:
    assert "is in the journal" in str(refused(busy(), "assistant/message", message("a1-1")))
    assert refused(busy(), "assistant/message", message("new")) is None
    assert "dispatched before" in str(refused(busy(), "tool/call", call("op-1-a")))
    assert refused(busy(), "tool/call", call("op-new")) is None


def test_a_step_ends_when_its_calls_have_results() -> None:
    assert "has no result" in str(refused(busy(), "step/end", in_step()))
    assert refused(busy().result("a").result("b"), "step/end", in_step()) is None


def end(kind: str = "completed") -> dict[str, Any]:
    return {"turn_id": "t1", "run_id": "r1", "reason": {"kind": kind}}


def test_a_turn_ends_once_and_with_nothing_open() -> None:
    builder = Builder().start().step().end_step()
    assert refused(builder, "turn/end", end()) is None
    assert "is open" in str(refused(busy(), "turn/end", end()))
    builder.add("interaction/requested", interaction("q"))
    assert "has no outcome" in str(refused(builder, "turn/end", end()))
    assert "after the end" in str(refused(Builder().plain_turn(), "turn/end", end()))


def interaction(interaction_id: str) -> dict[str, Any]:
    return {"interaction_id": interaction_id, "turn_id": "t1", "run_id": "r1", "kind": "question", "request": {}}


def test_at_most_sixteen_interactions_wait() -> None:
    builder = Builder().start()
    for number in range(16):
        assert refused(builder, "interaction/requested", interaction(f"i{number}")) is None
        builder.add("interaction/requested", interaction(f"i{number}"))
    assert "16" in str(refused(builder, "interaction/requested", interaction("i16")))


def test_the_first_outcome_of_an_interaction_wins() -> None:
    builder = Builder().start()
    outcome = {"interaction_id": "i", "outcome": {"kind": "closure", "reason": "x"}}
    assert "never requested" in str(refused(builder, "interaction/resolved", outcome))
    builder.add("interaction/requested", interaction("i"))
    assert refused(builder, "interaction/resolved", outcome) is None
    builder.add("interaction/resolved", outcome)
    assert "already" in str(refused(builder, "interaction/resolved", outcome))
    assert "before" in str(refused(builder, "interaction/requested", interaction("i")))


def test_the_first_outcome_of_a_call_wins() -> None:
    builder = Builder().start().step().says("", ["a"])
    seq = builder.call("a")
    outcome = {"turn_id": "t1", "run_id": "r1", "call_id": "a", "call_seq": seq, "operation_id": "op-1-a"}
    outcome |= {"state": "ok", "content": [], "is_error": False, "source": "user"}
    assert "not unknown" in str(refused(builder, "tool/outcome", outcome))
    builder.result("a", state="unknown")
    assert refused(builder, "tool/outcome", outcome) is None
    builder.add("tool/outcome", outcome)
    assert "already" in str(refused(builder, "tool/outcome", outcome))


def composition(**more: Any) -> dict[str, Any]:
    return {"run_id": "r1", "composition": {"schema": 1, "tool_names": [], **more}}


def test_a_run_has_one_composition() -> None:
    builder = Builder().start()
    assert refused(builder, "run/composition", composition()) is None
    builder.add("run/composition", composition())
    assert "already" in str(refused(builder, "run/composition", composition()))
    assert "another" in str(refused(builder, "run/composition", composition(context_window=1)))


def test_a_run_is_settled_once_after_its_end() -> None:
    assert "no turn/end" in str(refused(Builder().start(), "run/settled", {"run_id": "r1"}))
    assert refused(Builder().start().end(settle=False), "run/settled", {"run_id": "r1"}) is None
    assert "already" in str(refused(Builder().plain_turn(), "run/settled", {"run_id": "r1"}))
    assert "not exist" in str(refused(Builder(), "run/settled", {"run_id": "r1"}))


def test_one_plan_is_executed_at_a_time() -> None:
    builder = Builder()
    for number in (1, 2):
        plan = {"proposal_id": f"p{number}", "revision": 1, "turn_id": "t", "title": "x", "steps": []}
        builder.add("plan/proposed", plan)
    builder.add("plan/approved", {"proposal_id": "p1", "revision": 1, "execution_id": "e1"})
    second = {"proposal_id": "p2", "revision": 1, "execution_id": "e2"}
    assert "active" in str(refused(builder, "plan/approved", second))
    builder.add("plan/execution", {"execution_id": "e1", "status": "completed"})
    assert refused(builder, "plan/approved", second) is None
    assert "not active" in str(refused(builder, "plan/execution", {"execution_id": "e1", "status": "cancelled"}))
    assert "newest" in str(refused(builder, "plan/approved", {**second, "revision": 2}))


def test_a_stop_names_a_turn_that_can_be_stopped() -> None:
    stop = {"stop_id": "s", "turn_id": "t1", "source": "user", "mode": "immediate"}
    assert refused(Builder().start(), "turn/stop_requested", stop) is None
    assert "not open" in str(refused(Builder().plain_turn(), "turn/stop_requested", stop))
    builder = Builder().start()
    builder.add("turn/stop_requested", stop)
    assert "before" in str(refused(builder, "turn/stop_requested", stop))


def test_a_journal_has_one_header() -> None:
    assert refused(Builder(), "session/header", {"format": 1}) is not None


# ---------------------------------------------------------------- what there is to know


def note(builder: Builder, kind: str, text: str = "dispose failed") -> None:
    builder.add("session/note", {"kind": kind, "text": text})


def planned(builder: Builder) -> None:
    plan = {"proposal_id": "p", "revision": 1, "turn_id": "t", "title": "x", "steps": []}
    builder.add("plan/proposed", plan)
    builder.add("plan/approved", {"proposal_id": "p", "revision": 1, "execution_id": "e"})


def accepted(message_id: str) -> dict[str, Any]:
    known = {"placement": "next_turn", "disposition": "followup", "content": [], "digest": "0" * 64}
    return {"message_id": message_id, **known}


def admitted() -> dict[str, Any]:
    known = {"previous_root_turn_id": None, "execution": {"kind": "root"}, "input_digest": "0" * 64}
    return {"turn_id": "tA", "run_id": "rA", **known, "input": {"content": []}}


KNOW: dict[str, Callable[[Builder], Any]] = {
    "quarantine": lambda b: note(b, "quarantine"),
    "extension_events": lambda b: b.add("x-team/task", {}),
    "clock_skew": lambda b: b.add("session/note", {"kind": "x"}, ts=5),
    "active_plan": planned,
    "queued_messages": lambda b: b.add("message/accepted", accepted("q")),
    "admitted_without_run": lambda b: b.add("turn/admitted", admitted()),
}


@pytest.mark.parametrize("code", KNOW)
def test_what_a_reader_should_know(code: str) -> None:
    builder = Builder()
    assert fold(builder).information() == []
    KNOW[code](builder)
    found = fold(builder).information()
    assert [finding.code for finding in found] == [code]
    assert found[0].severity in ("info", "notice")


def test_extensions_are_counted_and_few_are_named() -> None:
    builder = Builder()
    for number in range(60):
        builder.add(f"x-team/{number:02}", {})
    (found,) = fold(builder).information()
    assert found.count == 60
    assert "x-team/00" in found.message
    assert "x-team/59" not in found.message


# ---------------------------------------------------------------- forks


def forked() -> tuple[Builder, Builder]:
    parent = Builder().plain_turn()
    parent.add("message/accepted", accepted("q"))
    planned(parent)
    parent.add("turn/admitted", admitted())
    parent.start().step()
    child = Builder("s2", parent={"session_id": "s1", "seq": parent.seq - 1, "sum": parent.prev})
    return parent, child


def fold_fork(parent: Builder, child: Builder) -> State:
    state = State()
    for event in events(parent):
        state.inherit(event)
    for event in events(child):
        state.apply(event)
    return state


def test_a_fork_takes_over_turns_and_nothing_that_is_work() -> None:
    parent, child = forked()
    state = fold_fork(parent, child)
    assert [row["turn_id"] for row in state.turn_rows()] == ["t1", "t2"]
    assert (state.turns.open, state.information(), list(state.problems)) == ({}, [], [])
    assert [row["status"] for row in state.run_rows()] == ["completed", "failed"]
    assert state.session.value("session_id") == "s2"


def test_a_forks_turns_go_on_from_the_parents() -> None:
    parent, child = forked()
    child.turn = 2
    child.plain_turn().plain_turn()
    state = fold_fork(parent, child)
    assert [row["turn"] for row in state.turn_rows()] == [1, 2, 3, 4]
    assert list(state.problems) == []
    with pytest.raises(InvalidEvent, match="forked from"):
        state.check(Draft("turn/start", turn(child, 5, turn_id="t1")))


def test_a_fork_without_its_parent_is_judged_by_itself() -> None:
    _, child = forked()
    child.turn = 7
    assert problems(child.plain_turn().plain_turn()) == []
