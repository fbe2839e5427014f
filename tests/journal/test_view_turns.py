"""Turns, steps and calls: their rows, what belongs to what, and which order no correct writer produces."""

from collections.abc import Callable
from typing import Any

import pytest

from maka.journal.events import Event
from maka.journal.state import State
from support.builder import Builder
from support.folds import events, fold, history, problems, text


def calls(builder: Builder) -> list[tuple[str, str]]:
    return [(call["call_id"], call["state"]) for row in fold(builder).turn_rows() for call in row["calls"]]


def test_a_row_tells_a_turn() -> None:
    assert fold(Builder().tool_turn()).turn_rows() == [
        {
            "turn_id": "t1",
            "turn": 1,
            "status": "completed",
            "reason": {"kind": "completed"},
            "run_ids": ["r1"],
            "first_seq": 1,
            "last_seq": 12,
            "steps": 2,
            "calls": [{"call_id": "c1", "name": "tool", "state": "ok"}],
        }
    ]


def test_an_open_turn_has_the_status_that_a_repair_would_give_it() -> None:
    builder = Builder().start().step().says("", ["a", "b"])
    builder.call("a")
    row = fold(builder).turn_rows()[0]
    assert (row["status"], row["reason"]) == ("interrupted", {"kind": "interrupted"})
    assert calls(builder) == [("a", "unknown"), ("b", "not_started")]


def test_without_a_tool_boundary_nothing_proves_that_a_call_never_ran() -> None:
    assert calls(Builder(tool_boundary=None).start().step().says("", ["a"])) == [("a", "unknown")]


def test_a_stopped_open_turn_counts_as_aborted() -> None:
    builder = Builder().start().step()
    stop = {"stop_id": "s", "turn_id": "t1", "source": "stop_button", "mode": "immediate"}
    builder.add("turn/stop_requested", stop)
    row = fold(builder).turn_rows()[0]
    assert (row["status"], row["reason"]) == ("aborted", {"kind": "aborted", "source": "stop_button"})


def test_calls_stand_in_the_order_of_the_blocks() -> None:
    builder = Builder().start().step().says("", list("abc"))
    for call in "cab":
        builder.call(call)
    for call in "bca":
        builder.result(call)
    assert [call for call, _ in calls(builder.end_step().end())] == list("abc")


# ---------------------------------------------------------------- pairing


def test_a_reused_call_id_is_another_call() -> None:
    builder = Builder().start().step().says("", ["k"])
    builder.call("k")
    builder.result("k").end_step().step(2).says("", ["k"])
    assert calls(builder) == [("k", "ok"), ("k", "not_started")]
    assert problems(builder) == []


def test_two_calls_of_one_id_in_one_message_are_answered_in_turn() -> None:
    builder = Builder().start().step().says("", ["k", "k"])
    builder.add("tool/call", dispatch(builder, "k", "op-1"))
    builder.add("tool/call", dispatch(builder, "k", "op-2"))
    builder.result("k", state="error", operation_id="op-2").result("k", operation_id="op-1")
    assert calls(builder) == [("k", "ok"), ("k", "error")]


def dispatch(builder: Builder, call_id: str, operation_id: str) -> dict[str, Any]:
    data = {**builder.ids, "step": builder.step_number, "call_id": call_id, "operation_id": operation_id}
    return {**data, "name": "tool", "arguments_digest": "0" * 64, "recovery": "never"}


def test_a_result_without_operation_prefers_the_dispatched_call() -> None:
    builder = Builder().start().step().says("", ["k", "k"])
    builder.call("k")
    result = {**builder.ids, "step": 1, "call_id": "k", "state": "ok", "content": [], "is_error": False}
    builder.add("tool/result", result)
    assert calls(builder) == [("k", "ok"), ("k", "not_started")]


def answer(builder: Builder, call_id: str) -> int:
    """A result that names no operation."""
    content = [{"kind": "text", "text": "found it"}]
    result = {**builder.ids, "step": 1, "call_id": call_id, "state": "ok", "content": content, "is_error": False}
    return builder.add("tool/result", result)


@pytest.mark.parametrize("spelling", [" C1", "c1 ", "C1"])
def test_another_spelling_of_a_unique_id_is_the_same_call(spelling: str) -> None:
    builder = Builder().start().step().says("", ["c1"])
    builder.add("tool/call", dispatch(builder, "c1", "op-x"))
    result = {**builder.ids, "step": 1, "call_id": spelling, "state": "ok", "content": [], "is_error": False}
    builder.add("tool/result", result)
    assert (calls(builder), problems(builder)) == ([("c1", "ok")], [])


@pytest.mark.parametrize("answered", [0, 1, 2])
@pytest.mark.parametrize("ids", [["c1", "C1"], ["c1", "c1"], ["C1 ", "c1"]])
def test_another_spelling_of_an_id_that_is_not_unique_belongs_to_nothing(ids: list[str], answered: int) -> None:
    builder = Builder().start().step().says("", ids)
    for call_id in ids[:answered]:
        answer(builder, call_id)
    seq = answer(builder, " C1 ")
    assert problems(builder) == [("orphan_result", seq)]
    said = [text(message) for message in history(builder).messages() if message["role"] == "user"]
    assert "found it" in said[-1]


@pytest.mark.parametrize("ids", [["c1", "C1"], ["c1", "c1"]])
def test_one_result_too_many_is_a_duplicate_if_its_id_is_spelled_as_a_call_of_the_turn(ids: list[str]) -> None:
    builder = Builder().start().step().says("", ids)
    for call_id in ids:
        answer(builder, call_id)
    assert problems(builder) == []
    for call_id in ids:
        seq = answer(builder, call_id)
        assert problems(builder)[-1] == ("duplicate_result", seq)


def test_another_spelling_with_another_operation_does_not_answer_a_dispatched_call() -> None:
    builder = Builder().start().step().says("", ["c1"])
    builder.call("c1")
    builder.result(" C1", operation_id="op-of-somebody-else")
    assert problems(builder) == [("orphan_result", builder.seq - 1)]


def test_a_result_of_another_operation_does_not_answer_a_dispatched_call() -> None:
    builder = Builder().start().step().says("", ["a"])
    builder.call("a")
    builder.result("a", operation_id="op-of-somebody-else")
    assert problems(builder) == [("orphan_result", builder.seq - 1)]
    assert calls(builder) == [("a", "unknown")]


def test_orphans_and_duplicates_are_told_apart() -> None:
    builder = Builder().start().step().says("", ["a"])
    builder.call("a")
    builder.result("a").result("a").result("zzz").end_step().end()
    assert problems(builder) == [("duplicate_result", 8), ("orphan_result", 9)]


def test_an_outcome_stands_beside_the_unknown_result() -> None:
    builder = Builder().start().step().says("", ["a"])
    seq = builder.call("a")
    builder.result("a", state="unknown").end_step().end("interrupted")
    outcome(builder, seq)
    row = fold(builder).turn_rows()[0]["calls"][0]
    assert row == {"call_id": "a", "name": "tool", "state": "unknown", "outcome": "ok", "outcome_source": "reconciled"}
    assert problems(builder) == []
    assert fold(builder).turns.unknown == {}


def outcome(builder: Builder, call_seq: int, call_id: str = "a") -> int:
    data = {**builder.ids, "call_id": call_id, "call_seq": call_seq, "operation_id": f"op-{builder.turn}-{call_id}"}
    told = {
        "state": "ok",
        "content": [{"kind": "text", "text": "it worked"}],
        "is_error": False,
        "source": "reconciled",
    }
    return builder.add("tool/outcome", {**data, **told})


def test_an_outcome_of_a_known_call_is_an_orphan() -> None:
    builder = Builder().start().step().says("", ["a"])
    seq = builder.call("a")
    builder.result("a")
    assert problems(builder) == []
    assert ("orphan_result", outcome(builder, seq)) in problems(builder)


def test_a_second_outcome_is_tolerated_and_the_first_wins() -> None:
    builder = Builder().start().step().says("", ["a"])
    seq = builder.call("a")
    builder.result("a", state="unknown")
    outcome(builder, seq)
    outcome(builder, seq)
    assert problems(builder) == []


def test_calls_that_an_ended_turn_leaves_unanswered_are_noticed() -> None:
    builder = Builder().start().step().says("", ["a", "b"])
    seq = builder.call("b")
    builder.end_step().end()
    found = fold(builder).problems
    assert [(finding.code, finding.severity, finding.seq) for finding in found] == [
        ("unanswered_call", "notice", seq - 1),
        ("unanswered_call", "notice", seq),
    ]
    assert calls(builder) == [("a", "not_started"), ("b", "unknown")]


# ---------------------------------------------------------------- order


def open_step(builder: Builder) -> Builder:
    return builder.start().step()


ENDED: dict[str, Callable[[Builder], Any]] = {
    "user/message": lambda b: b.user("late"),
    "step/start": lambda b: b.step(2),
    "step/end": lambda b: b.end_step(),
    "assistant/message": lambda b: b.says("late"),
    "tool/call": lambda b: b.call("late"),
    "tool/result": lambda b: b.result("late"),
    "turn/end": lambda b: b.end(settle=False),
    "turn/start": lambda b: again(b, 1, "t1"),
}


@pytest.mark.parametrize("type", ENDED)
def test_nothing_of_a_turn_follows_its_end(type: str) -> None:
    builder = Builder().plain_turn()
    before = builder.seq
    ENDED[type](builder)
    assert problems(builder)[0] == ("turn_order", before)
    assert len(fold(builder).turn_rows()) == 1


UNOPENED = {key: do for key, do in ENDED.items() if key != "turn/start"}


@pytest.mark.parametrize("type", UNOPENED)
def test_events_of_a_turn_that_was_never_opened(type: str) -> None:
    builder = Builder()
    builder.turn, builder.step_number = 7, 1
    UNOPENED[type](builder)
    assert problems(builder)[0] == ("turn_order", 1)
    assert fold(builder).turn_rows() == []


WRONG: dict[str, Callable[[Builder], Any]] = {
    "a step inside a step": lambda b: open_step(b).step(2),
    "a step that skips a number": lambda b: open_step(b).end_step().step(3),
    "a step that repeats a number": lambda b: b.start().step().end_step().add("step/start", {**b.ids, "step": 1}),
    "the first step is not 1": lambda b: b.start().step(2),
    "a user message inside a step": lambda b: open_step(b).user("no", "steering"),
    "a second prompt behind a step": lambda b: open_step(b).end_step().user("no"),
    "a message outside its step": lambda b: open_step(b).end_step().says("late"),
    "a call outside its step": lambda b: open_step(b).end_step().call("c"),
    "an end inside a step": lambda b: open_step(b).end(settle=False),
    "a step that ends twice": lambda b: open_step(b).end_step().end_step(),
    "a turn number twice": lambda b: again(b.plain_turn(), 1),
    "a turn number left out": lambda b: again(b.plain_turn(), 3),
    "a second header": lambda b: b.add("session/header", {**header(), "session_id": "other"}),
    "a run that nobody claimed": lambda b: start_without_claim(b.plain_turn()),
}


def again(builder: Builder, number: int, turn_id: str = "tX") -> None:
    run = builder.run("rX", turn_id)
    data = {"turn_id": turn_id, "run_id": "rX", "invocation_id": "iX", "turn": number, "run": run}
    builder.add("turn/start", data)


def header() -> dict[str, Any]:
    names = dict.fromkeys(("cwd", "backend", "model", "permission_mode"), "x")
    return {"format": 1, "session_id": "s", "created_by": {}, **names}


def start_without_claim(builder: Builder) -> None:
    data = {"protocol": "continuation_start_v2", "start_kind": "runtime_admission", "purpose": "resume"}
    data |= {"claim_id": "none", "run_id": "rX", "turn_id": "tX", "boundary_digest": "0", "replay_digest": "0"}
    builder.add("continuation/start", {**data, "source": {}})


@pytest.mark.parametrize("case", WRONG)
def test_order_that_no_correct_writer_produces(case: str) -> None:
    builder = Builder()
    WRONG[case](builder)
    found = fold(builder).problems
    assert [(finding.code, finding.seq) for finding in found] == [("turn_order", builder.seq - 1)]
    assert found[0].offset == sum(len(line) + 1 for line in builder.lines[:-1])
    assert found[0].length == len(builder.lines[-1])


def closes_older(builder: Builder) -> None:
    builder.start().step().says("", ["c"])
    seq = builder.call("c")
    builder.plain_turn("next")
    builder.turn, builder.step_number = 1, 1
    builder.result("c", state="unknown").end_step().end("interrupted")
    assert seq


def anywhere(builder: Builder) -> None:
    builder.plain_turn()
    stop = {"stop_id": "s", "turn_id": "t1", "source": "user", "mode": "immediate"}
    builder.add("turn/stop_requested", stop)
    builder.add("run/settled", {"run_id": "r1"})
    builder.add("session/note", {"kind": "x"})
    builder.add("message/retracted", {"retract_id": "x", "message_ids": []})


def late_result(builder: Builder) -> None:
    """As a repair answers it: with the call's own step."""
    builder.start().step().says("", ["c"]).end_step().step(2)
    builder.step_number = 1
    builder.result("c", state="not_started")


RIGHT: dict[str, Callable[[Builder], Any]] = {
    "steering between steps": lambda b: open_step(b).end_step().user("by the way", "steering").step(2),
    "steering before the first step": lambda b: b.start().user("by the way", "steering").step(),
    "several messages in a step": lambda b: open_step(b).says("one").says("two"),
    "a call that no block requested": lambda b: (open_step(b).call("c"), b.result("c"), b.end_step()),
    "an older turn is closed after a later one began": closes_older,
    "things that may stand anywhere": anywhere,
    "a result while a later step is open": late_result,
}


@pytest.mark.parametrize("case", RIGHT)
def test_order_that_is_in_order(case: str) -> None:
    builder = Builder()
    RIGHT[case](builder)
    assert problems(builder) == []


# ---------------------------------------------------------------- loss


@pytest.mark.parametrize("lost", range(1, 21))
def test_one_lost_event_breaks_no_relation(lost: int) -> None:
    builder = Builder().tool_turn().plain_turn().tool_turn()
    found = [code for code, _ in problems(builder, [lost]) if code != "unanswered_call"]
    assert found == []
    assert len(fold(builder, [lost]).turn_rows()) == 3


def test_two_turns_beyond_a_loss_are_judged_again() -> None:
    builder = Builder().plain_turn().plain_turn().plain_turn()
    seq = builder.seq
    builder.says("late")
    assert problems(builder, [3]) == [("turn_order", seq)]


def test_live_text_is_kept_until_its_message_comes() -> None:
    builder = Builder().start().step().delta("Hel", "m").delta("lo", "m").delta("hm", "m", "thinking", 1)
    delta = fold(builder).turns.open["t1"].deltas["m"]
    assert delta.blocks() == [{"kind": "text", "text": "Hello"}, {"kind": "thinking", "text": "hm"}]
    builder.add(
        "assistant/message",
        {**builder.ids, "step": 1, "message_id": "m", "content": [], "stop_reason": "end_turn"},
    )
    assert fold(builder.delta("late", "m")).turns.open["t1"].deltas == {}


def test_a_long_turn_keeps_only_what_is_open() -> None:
    builder = Builder().start()
    for number in range(1, 40):
        builder.step(number).says("", ["a"])
        builder.call("a")
        builder.result("a").end_step()
    turn = fold(builder).turns.open["t1"]
    assert turn.calls == []
    assert len(fold(builder).turn_rows()[0]["calls"]) == 39


def test_one_turn_is_told_as_among_all() -> None:
    builder = Builder().plain_turn().tool_turn("c").start().step().says("", ["d"])
    builder.call("d")
    state = fold(builder)
    rows = state.turn_rows()
    assert [row["status"] for row in rows] == ["completed", "completed", "interrupted"]
    assert [state.turn_row(row["turn_id"]) for row in rows] == rows
    assert state.turn_row("t9") is None


def test_a_turn_of_a_forks_parent_is_none_of_the_forks() -> None:
    state = State()
    for event in events(Builder().plain_turn()):
        state.inherit(event)
    state.apply(Event(0, 0, "session/header", {"parent": {}}, ""))
    assert [row["turn_id"] for row in state.turn_rows()] == ["t1"]
    assert state.turn_row("t1") is None
