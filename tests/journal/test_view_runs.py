"""How a run stands (docs/format.md, "Runs")."""

from typing import Any

import pytest

from maka.journal.events import Event
from maka.journal.state import State
from support.builder import Builder
from support.folds import events, fold
from support.lineages import Story


def rows(builder: Builder) -> list[tuple[str, str, str | None]]:
    return [(row["run_id"], row["status"], row.get("failure_class")) for row in fold(builder).run_rows()]


def test_created_running_waiting() -> None:
    builder = Builder()
    builder.add("run/created", {"run": builder.run("r1", "t1")})
    assert rows(builder) == [("r1", "created", None)]
    builder.start().step()
    assert rows(builder) == [("r1", "running", None)]
    ask = {"interaction_id": "i", "turn_id": "t1", "run_id": "r1", "kind": "question", "request": {}}
    builder.add("interaction/requested", ask)
    assert rows(builder) == [("r1", "waiting_for_user", None)]
    builder.add("interaction/resolved", {"interaction_id": "i", "outcome": {"kind": "closure"}})
    assert rows(builder) == [("r1", "running", None)]


@pytest.mark.parametrize(
    ("kind", "status", "failure"),
    [
        ("completed", "completed", None),
        ("max_tokens", "completed", None),
        ("aborted", "cancelled", None),
        ("failed", "failed", "failed"),
        ("blocked", "failed", "blocked"),
        ("step_limit", "failed", "tool_step_cap_reached"),
        ("a later version's", "failed", "a later version's"),
    ],
)
def test_a_run_is_over_once_it_is_settled(kind: str, status: str, failure: str | None) -> None:
    builder = Builder().start().end(kind, settle=False)
    assert rows(builder) == [("r1", "running", None)]
    assert [run.run_id for run in fold(builder).runs.unsettled()] == ["r1"]
    builder.add("run/settled", {"run_id": "r1"})
    assert rows(builder) == [("r1", status, failure)]
    assert fold(builder).runs.unsettled() == []


def test_an_interrupted_run_settles_itself() -> None:
    assert rows(Builder().start().end("interrupted")) == [("r1", "failed", "app_restarted")]


def test_the_reason_may_name_its_class() -> None:
    builder = Builder().start()
    reason: dict[str, Any] = {"kind": "failed", "failure_class": "provider_auth"}
    builder.add("turn/end", {**builder.ids, "reason": reason})
    builder.add("run/settled", {"run_id": "r1"})
    assert rows(builder) == [("r1", "failed", "provider_auth")]


def test_settled_before_its_end_is_not_settled() -> None:
    builder = Builder().start()
    builder.add("run/settled", {"run_id": "r1"})
    assert rows(builder.end(settle=False)) == [("r1", "running", None)]


def test_what_a_settled_run_leaves() -> None:
    builder = Builder().plain_turn()
    run = fold(builder).runs.settled("r1")
    assert run is not None
    assert (run.turn_id, run.invocation_id, run.opened_seq, run.terminal_seq) == ("t1", "i-r1", 1, builder.seq - 2)
    assert run.terminal_sum == builder.lines[-2][-34:-2].decode()
    assert fold(builder).runs.settled("r2") is None


def test_rows_stand_in_the_order_in_which_runs_appeared() -> None:
    builder = Builder().start().end(settle=False)
    builder.plain_turn()
    assert [run for run, _, _ in rows(builder)] == ["r1", "r2"]
    builder.add("run/settled", {"run_id": "r1"})
    assert [run for run, _, _ in rows(builder)] == ["r1", "r2"]


def test_a_run_whose_opening_was_lost_is_believed_at_its_end() -> None:
    builder = Builder().plain_turn()
    assert [(row["run_id"], row["status"]) for row in fold(builder, [1]).run_rows()] == [("r1", "completed")]


# ---------------------------------------------------------------- which came last


def test_the_run_that_was_opened_last() -> None:
    builder = Builder()
    assert fold(builder).runs.newest is None
    builder.plain_turn()
    builder.add("run/created", {"run": builder.run("rX", "tX")})
    assert fold(builder).runs.newest == "r1"
    story = Story().start().end("interrupted").go_on("r1")
    assert story.state.runs.newest == "r2"


def test_the_failed_run_that_came_last() -> None:
    builder = Builder().start().end("aborted").start().end("failed", settle=False).plain_turn()
    assert fold(builder).runs.failed == "r1"
    builder.add("run/settled", {"run_id": "r2"})
    assert fold(builder).runs.failed == "r2"
    builder.start().end("max_tokens")
    assert fold(builder).runs.failed == "r2"
    builder.start().end("interrupted")
    assert fold(builder).runs.failed == "r5"
    assert fold(builder).runs.own("r5") is not None


def test_the_one_that_is_settled_last_is_not_the_one_that_came_last() -> None:
    builder = Builder().start().end("failed", settle=False).start().end("failed")
    builder.add("run/settled", {"run_id": "r1"})
    assert fold(builder).runs.failed == "r2"


def test_a_parents_runs_are_no_candidates() -> None:
    parent = Builder().start().end("failed")
    parent.start()
    child = Builder("s2", parent={"session_id": "s1", "seq": parent.seq - 1, "sum": parent.prev})
    state = State()
    for event in events(parent):
        state.inherit(event)
    for event in events(child):
        state.apply(event)
    assert (state.runs.newest, state.runs.failed, state.runs.own("r1")) == (None, None, None)
    assert state.runs.known("r1")


def test_one_run_is_told_as_among_all_and_with_a_number() -> None:
    builder = Builder().plain_turn().start()
    created = builder.add("run/created", {"run": builder.run("later", "t9")})
    ask = {"interaction_id": "i", "turn_id": "t2", "run_id": "r2", "kind": "question", "request": {}}
    builder.add("interaction/requested", ask)
    state = fold(builder)
    ended = next(event.seq for event in events(builder) if event.type == "turn/end")
    opened = next(event.seq for event in reversed(events(builder)) if event.type == "turn/start")
    rows = state.run_rows()
    assert [row["status"] for row in rows] == ["completed", "waiting_for_user", "created"]
    assert [state.run_row(row["run_id"]) for row in rows] == [
        {**row, "seq": seq} for row, seq in zip(rows, [ended, opened, created], strict=True)
    ]
    assert state.run_row("r9") is None
    builder.add("interaction/resolved", {"interaction_id": "i", "outcome": {"kind": "closure", "reason": "timed_out"}})
    failed = builder.add("turn/end", {**builder.ids, "reason": {"kind": "step_limit"}})
    builder.add("run/settled", {"run_id": "r2"})
    row = fold(builder).run_row("r2")
    assert row is not None
    assert (row["status"], row["failure_class"], row["seq"]) == ("failed", "tool_step_cap_reached", failed)
    state.inherit(Event(0, 0, "session/header", {"parent": {}}, ""))
    assert state.run_row("r1") is None
