"""The folded state as JSON: it goes on as if it had never been written."""

from typing import Any

import orjson
import pytest

from maka.journal import summary
from maka.journal.state import State
from support.builder import Builder
from support.folds import events, fold
from support.realistic import realistic


def packed(state: State) -> bytes:
    return orjson.dumps(summary.to_json(state))


def unpacked(data: bytes) -> State:
    return summary.from_json(orjson.loads(data))


def test_folding_in_pieces_equals_folding_in_one_pass() -> None:
    builder = realistic()
    in_pieces = State()
    for event in events(builder):
        in_pieces = unpacked(packed(in_pieces))
        in_pieces.apply(event)
    whole = fold(builder)
    assert packed(in_pieces) == packed(whole)
    assert in_pieces.turn_rows() == whole.turn_rows()
    assert in_pieces.run_rows() == whole.run_rows()
    assert [f.to_json() for f in in_pieces.problems] == [f.to_json() for f in whole.problems]


def test_calls_that_wait_are_still_found() -> None:
    builder = Builder().start().step().says("", ["a", "b"])
    builder.call("b")
    state = unpacked(packed(fold(builder)))
    builder.result("b").result("a", state="cancelled").result("b")
    for event in events(builder)[-3:]:
        state.apply(event)
    assert [(call["call_id"], call["state"]) for call in state.turn_rows()[0]["calls"]] == [
        ("a", "cancelled"),
        ("b", "ok"),
    ]
    assert [finding.code for finding in state.problems] == ["duplicate_result"]


def test_what_a_result_may_name_is_kept() -> None:
    builder = Builder().start().step().says("", ["c1", "C1", "d"]).result("c1").result("C1").result("d")
    state = unpacked(packed(fold(builder)))
    assert packed(state) == packed(fold(builder))
    builder.result("C1").result(" c1").result(" D")
    for event in events(builder)[-3:]:
        state.apply(event)
    assert [finding.code for finding in state.problems] == ["duplicate_result", "orphan_result", "duplicate_result"]


def test_findings_are_counted_on() -> None:
    builder = Builder().start().step()
    for _ in range(1_200):
        builder.result("nobody")
    state = unpacked(packed(fold(builder)))
    state.apply(events(builder)[-1])
    assert len(state.problems) == 1_000
    assert state.problems[-1].count == 1_201


def test_a_listing_tells_a_session() -> None:
    builder = Builder(name="before").plain_turn().plain_turn()
    builder.add("session/updated", {"patch": {"name": "after"}})
    assert summary.listing(fold(builder)) == {
        "session_id": "s1",
        "name": "after",
        "last_activity": builder.ts,
        "turns": 2,
        "labels": [],
        "flagged": False,
        "archived": False,
        "unsettled": 0,
        "active_plan": False,
        "pending_handoff": False,
        "queued": 0,
        "admitted": False,
    }


@pytest.mark.parametrize(
    "broken",
    [
        None,
        [],
        {},
        {"v": 0, "state": []},
        {"v": summary.VERSION},
        {"v": summary.VERSION, "state": None},
        {"v": summary.VERSION, "state": [1]},
        {"v": summary.VERSION, "state": [None] * 30},
    ],
)
def test_what_is_no_summary_is_refused(broken: Any) -> None:
    with pytest.raises(ValueError, match="summary"):
        summary.from_json(broken)


def test_every_field_is_of_its_kind() -> None:
    whole = summary.to_json(fold(realistic()))
    for i in range(len(whole["state"])):
        changed = orjson.loads(orjson.dumps(whole))
        changed["state"][i] = 1.5
        with pytest.raises(ValueError, match="summary"):
            summary.from_json(changed)


def test_a_listing_tells_what_waits_to_be_run() -> None:
    builder = Builder()
    for message_id in "ab":
        data = {"message_id": message_id, "placement": "next_turn", "disposition": "followup", "content": []}
        builder.add("message/accepted", {**data, "digest": "0" * 64})
    admitted: dict[str, object] = {"turn_id": "t1", "run_id": "r1", "message_id": "a", "previous_root_turn_id": None}
    admitted |= {"execution": {"kind": "root"}, "input": {"content": []}, "input_digest": ""}
    builder.add("turn/admitted", admitted)
    row = summary.listing(fold(builder))
    assert (row["queued"], row["admitted"]) == (1, True)
    row = summary.listing(fold(builder.start()))
    assert (row["queued"], row["admitted"]) == (1, False)
    row = summary.listing(fold(builder, lost=[builder.seq - 2]))
    assert (row["queued"], row["admitted"]) == (1, False), "it has run, and its opening was lost"
