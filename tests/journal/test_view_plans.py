"""Plans in the fold: rows, revisions, executions, what requests did, and what is refused."""

from typing import Any

import orjson
import pytest

from maka.journal import shapes, summary
from maka.journal.errors import InvalidEvent
from maka.journal.events import EVENT_TYPES, Draft
from maka.journal.state import State
from maka.journal.views.plans import Request, digest
from support.builder import Builder
from support.folds import events, fold, problems

STEP = {"id": "1", "title": "look", "description": "look twice"}


def propose(builder: Builder, proposal_id: str = "p", revision: int = 1, **more: Any) -> None:
    known = {"proposal_id": proposal_id, "revision": revision, "turn_id": "t", "title": f"v{revision}", "steps": [STEP]}
    builder.add("plan/proposed", {**known, **more})


def approve(builder: Builder, proposal_id: str = "p", revision: int = 1, execution_id: str = "e", **more: Any) -> None:
    builder.add(
        "plan/approved", {"proposal_id": proposal_id, "revision": revision, "execution_id": execution_id, **more}
    )


def finish(builder: Builder, status: str, execution_id: str = "e", **more: Any) -> None:
    builder.add("plan/execution", {"execution_id": execution_id, "status": status, **more})


def refused(builder: Builder, type_: str, data: dict[str, Any]) -> str | None:
    """Why such data may not follow; None where it may."""
    try:
        shapes.check(EVENT_TYPES[type_], data)
        fold(builder).check(Draft(type_, data))
    except InvalidEvent as error:
        return str(error)
    return None


# ---------------------------------------------------------------- rows


def test_a_row_tells_a_plan_and_how_its_execution_went() -> None:
    builder = Builder()
    propose(builder)
    propose(builder, revision=2)
    row = {"proposal_id": "p", "revision": 2, "title": "v2", "status": "proposed", "execution": None}
    row |= {"turn_id": "t", "steps": [STEP]}
    assert fold(builder).plan_rows() == [row]
    approve(builder, execution_id="old")
    assert fold(builder).plan_rows() == [row]
    approve(builder, revision=2)
    running = {**row, "status": "approved", "execution": {"execution_id": "e", "status": "active"}}
    assert fold(builder).plan_rows() == [running]
    finish(builder, "interrupted", reason="runtime_recovery")
    over = {"execution_id": "e", "status": "interrupted", "reason": "runtime_recovery"}
    assert fold(builder).plan_rows() == [{**running, "execution": over}]
    finish(builder, "completed")
    assert fold(builder).plan_rows() == [{**running, "execution": over}]
    assert fold(builder).plans.active is None


def test_a_newer_revision_stands_where_the_older_one_stood() -> None:
    builder = Builder()
    propose(builder)
    propose(builder, "q")
    propose(builder, revision=2, steps=[])
    assert [(row["proposal_id"], row["revision"], row["steps"]) for row in fold(builder).plan_rows()] == [
        ("p", 2, []),
        ("q", 1, [STEP]),
    ]


def test_what_was_approved_stays_beside_a_newer_revision() -> None:
    builder = Builder()
    propose(builder)
    approve(builder)
    propose(builder, revision=2)
    assert [(row["revision"], row["status"]) for row in fold(builder).plan_rows()] == [(1, "approved"), (2, "proposed")]
    finish(builder, "completed")
    approve(builder, revision=2, execution_id="f")
    assert [row["execution"]["status"] for row in fold(builder).plan_rows()] == ["completed", "active"]
    running = fold(builder).plans.running()
    assert running is not None
    assert (running.revision, running.execution_id) == (2, "f")


def test_nothing_nested_makes_the_fold_raise() -> None:
    builder = Builder()
    odd: list[Any] = [None, 5, {"id": []}, [[{}]], "x"]
    propose(builder, steps=odd, request_id={"no": "id"})
    propose(builder, "q", -3, steps=odd, request_id="r")
    approve(builder, "q", -3, request_id=7)
    finish(builder, "completed", reason=["why"])
    approve(builder, "gone", 1, "x", request_id="s")
    finish(builder, "cancelled", "gone")
    state = fold(builder)
    assert [row["steps"] for row in state.plan_rows()] == [odd, odd]
    assert state.plan_rows()[1]["execution"] == {"execution_id": "e", "status": "completed"}
    assert list(state.plans.requests) == ["r"]
    assert problems(builder) == []


# ---------------------------------------------------------------- what requests did


def test_requests_are_known_by_what_they_did() -> None:
    builder = Builder()
    propose(builder, request_id="one")
    propose(builder, revision=2, title="better", request_id="two")
    approve(builder, revision=2, request_id="three")
    assert fold(builder).plans.requests == {
        "one": Request(0, 1, "t", digest("v1", [STEP])),
        "two": Request(0, 2, "t", digest("better", [STEP])),
        "three": Request(0, 2, execution_id="e"),
    }


def test_the_first_request_with_an_id_stands() -> None:
    builder = Builder()
    propose(builder, request_id="one")
    propose(builder, "q", request_id="one")
    approve(builder, request_id="one")
    assert fold(builder).plans.requests == {"one": Request(0, 1, "t", digest("v1", [STEP]))}


def test_the_digest_is_that_of_the_text() -> None:
    turned = dict(reversed(STEP.items()))
    assert digest("a", [STEP]) == digest("a", [turned])
    assert len({digest("a", [STEP]), digest("b", [STEP]), digest("a", []), digest("a", [STEP, STEP])}) == 4


def test_a_snapshot_holds_all_of_it() -> None:
    builder = Builder()
    propose(builder, request_id="one")
    approve(builder, request_id="two")
    finish(builder, "cancelled", reason="no time")
    in_pieces = State()
    for event in events(builder):
        in_pieces = summary.from_json(orjson.loads(orjson.dumps(summary.to_json(in_pieces))))
        in_pieces.apply(event)
    whole = fold(builder)
    assert in_pieces.plans == whole.plans
    assert in_pieces.plan_rows() == whole.plan_rows()
    assert list(whole.plans.requests) == ["one", "two"]


def test_a_fork_takes_nothing_of_it_over() -> None:
    builder = Builder()
    propose(builder, request_id="one")
    approve(builder, request_id="two")
    builder.plain_turn()
    state = State()
    for event in events(builder):
        state.inherit(event)
    fork = Builder("s2", parent={"session_id": "s1", "seq": builder.seq - 1, "sum": builder.prev})
    for event in events(fork):
        state.apply(event)
    assert state.plans == State().plans
    assert state.plan_rows() == []


# ---------------------------------------------------------------- what is refused


def proposal(**more: Any) -> dict[str, Any]:
    return {"proposal_id": "p", "revision": 2, "turn_id": "t", "title": "x", "steps": [], **more}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (proposal(revision=1), "has revision 1 already"),
        (proposal(request_id="one"), "request one was made before"),
        (proposal(revision=0), "revision must be positive"),
        (proposal(revision=-1), "revision must be positive"),
        (proposal(steps=[{"id": "1", "title": "x"}]), "steps is no list of steps"),
        (proposal(steps=[{**STEP, "description": 5}]), "steps is no list of steps"),
        (proposal(steps=["look"]), "steps is no list of steps"),
    ],
)
def test_a_proposal_is_refused(data: dict[str, Any], why: str) -> None:
    builder = Builder()
    propose(builder, request_id="one")
    assert refused(builder, "plan/proposed", proposal(steps=[STEP, {**STEP, "more": 1}], request_id="two")) is None
    assert why in str(refused(builder, "plan/proposed", data))


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"request_id": "one"}, "request one was made before"),
        ({"revision": 0}, "revision must be positive"),
        ({"revision": 2}, "not its newest"),
        ({"proposal_id": "q"}, "not its newest"),
        ({"proposal_id": "over"}, "approved before"),
        ({"execution_id": "done"}, "exists already"),
    ],
)
def test_an_approval_is_refused(more: dict[str, Any], why: str) -> None:
    builder = Builder()
    propose(builder, "over")
    approve(builder, "over", execution_id="done")
    finish(builder, "completed", "done")
    propose(builder, request_id="one")
    data = {"proposal_id": "p", "revision": 1, "execution_id": "e"}
    assert refused(builder, "plan/approved", {**data, "request_id": "two"}) is None
    assert why in str(refused(builder, "plan/approved", {**data, **more}))


def test_an_execution_ends_once() -> None:
    builder = Builder()
    propose(builder)
    over = {"execution_id": "e", "status": "completed"}
    assert "not active" in str(refused(builder, "plan/execution", over))
    approve(builder)
    assert refused(builder, "plan/execution", over) is None
    assert "not one of" in str(refused(builder, "plan/execution", {**over, "status": "active"}))
    finish(builder, "cancelled")
    assert "not active" in str(refused(builder, "plan/execution", over))


def test_a_later_approval_ends_an_execution_whose_end_was_lost() -> None:
    builder = Builder()
    propose(builder)
    approve(builder)
    finish(builder, "completed")
    propose(builder, "q")
    approve(builder, "q", execution_id="f")
    state = fold(builder, lost=[3])
    told = [row["execution"] for row in state.plan_rows()]
    assert told == [
        {"execution_id": "e", "status": "interrupted", "reason": "end_not_on_record"},
        {"execution_id": "f", "status": "active"},
    ]
    running = state.plans.running()
    assert running is not None
    assert running.execution_id == "f"
