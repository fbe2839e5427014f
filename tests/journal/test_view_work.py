"""What waits for a runtime: the queue, admissions and interactions."""

from typing import Any

import orjson
import pytest

from maka.journal import summary
from maka.journal.events import Event
from maka.journal.state import State
from maka.journal.views import interactions
from support.builder import Builder
from support.folds import events, fold, problems

TEXT = [{"kind": "text", "text": "do it"}]


# ---------------------------------------------------------------- queue


def accept(builder: Builder, message_id: str, disposition: str = "followup", **more: Any) -> int:
    data = {"message_id": message_id, "placement": "next_turn", "disposition": disposition, **more}
    return builder.add("message/accepted", {**data, "content": TEXT, "digest": "0" * 64})


def queue(builder: Builder) -> tuple[list[str], list[str]]:
    rows = fold(builder).queue_rows()
    return [row["message_id"] for row in rows["steering"]], [row["message_id"] for row in rows["followup"]]


def test_a_row_tells_a_message() -> None:
    builder = Builder().start()
    seq = accept(builder, "s", "steering", turn_id="t1")
    assert fold(builder).queue_rows()["steering"] == [{"message_id": "s", "turn_id": "t1", "seq": seq}]


def test_steering_that_its_turn_did_not_take_becomes_the_first_followup() -> None:
    builder = Builder().start()
    accept(builder, "f")
    accept(builder, "s", "steering", turn_id="t1")
    assert queue(builder) == (["s"], ["f"])
    assert queue(builder.end()) == ([], ["s", "f"])


def test_messages_are_taken_and_retracted() -> None:
    builder = Builder().start()
    for message_id in "abcd":
        accept(builder, message_id)
    builder.user("a", "steering", "a")
    builder.add("message/retracted", {"retract_id": "r", "message_ids": ["b", 5, "unknown"]})
    stop = {"stop_id": "s", "turn_id": "t1", "source": "user", "mode": "immediate", "retract": ["c"]}
    builder.add("turn/stop_requested", stop)
    assert queue(builder) == ([], ["d"])
    builder.add("turn/admitted", admitted(message_id="d"))
    assert queue(builder) == ([], [])
    accept(builder, "a")
    assert queue(builder) == ([], [])


# ---------------------------------------------------------------- admissions


def admitted(kind: str = "root", **more: Any) -> dict[str, Any]:
    data = {"turn_id": "t1", "run_id": "r1", "message_id": "m", "previous_root_turn_id": None, **more}
    return {**data, "execution": {"kind": kind}, "input": {"content": TEXT}, "input_digest": "0" * 64}


def begin(builder: Builder, run_id: str = "r1", turn_id: str = "t1") -> Builder:
    builder.turn = 1
    start = {"turn_id": turn_id, "run_id": run_id, "invocation_id": "i", "turn": 1}
    builder.add("turn/start", {**start, "run": builder.run(run_id, turn_id)})
    return builder


def admission() -> Builder:
    builder = Builder()
    builder.add("turn/admitted", admitted())
    return builder


def test_an_admission_is_open_until_its_message_is_there() -> None:
    builder = admission()
    open_ = fold(builder).admissions.open["t1"]
    assert (open_.kind, open_.message_id, open_.started_seq) == ("root", "m", None)
    assert fold(builder).admissions.waiting() == [open_]
    begin(builder)
    assert fold(builder).admissions.open["t1"].started_seq == 2
    builder.user("do it", message_id="m")
    assert fold(builder).admissions.open == {}
    assert fold(builder).admissions.tip == "t1"
    assert problems(builder) == []


def test_the_newest_root_turn_is_whichever_was_admitted_started_or_claimed_last() -> None:
    builder = Builder()
    assert fold(builder).admissions.tip is None
    assert fold(builder.plain_turn()).admissions.tip == "t1"
    builder.add("turn/admitted", admitted(turn_id="a", run_id="ra"))
    builder.add("turn/admitted", admitted(turn_id="b", run_id="rb", message_id="n"))
    builder.add("turn/admitted", admitted("linked_child_initial", turn_id="c", run_id="rc"))
    assert fold(builder).admissions.tip == "b"
    for turn_id in "ac":
        start = {"turn_id": turn_id, "run_id": f"r{turn_id}", "invocation_id": "i", "turn": builder.turn + 1}
        builder.add("turn/start", {**start, "run": builder.run(f"r{turn_id}", turn_id)})
        assert fold(builder).admissions.tip == "b", "it was admitted before, or is a child's"
    claim(builder, "resumed", purpose="handoff")
    claim(builder, None)
    assert fold(builder).admissions.tip == "b"
    claim(builder, "resumed")
    state = fold(builder)
    assert state.admissions.tip == "resumed"
    state = State()
    for event in events(builder):
        state.inherit(event)
    state.apply(Event(0, 0, "session/header", {"parent": {}}, ""))
    assert state.admissions.tip is None


def claim(builder: Builder, turn_id: str | None, purpose: str = "resume") -> int:
    data: dict[str, Any] = {"claim_id": f"c{builder.seq}", "purpose": purpose, "turn": 9, "boundary": {"segments": []}}
    data |= {"boundary_digest": "b" * 32, "replay_digest": "0" * 64, "replay_through_seq": 1, "claimed_at": 1}
    data["source"] = {"run_id": "r1", "invocation_id": "i-r1", "turn_id": "t1", "high_water": 1}
    data["target_run"] = builder.run(f"run of {turn_id}", turn_id or "")
    return builder.add("continuation/claim", data)


def test_a_retry_by_the_provider_needs_no_message() -> None:
    builder = Builder()
    builder.add("turn/admitted", admitted("linked_child_provider_retry"))
    assert fold(begin(builder)).admissions.open == {}


@pytest.mark.parametrize(
    "contradict",
    [
        lambda b: begin(b, run_id="other"),
        lambda b: begin(b, turn_id="other"),
        lambda b: b.add("run/created", {"run": b.run("other", "t1")}),
        lambda b: begin(b).user("do it", message_id="other"),
        lambda b: begin(b).user("something else", message_id="m"),
    ],
)
def test_what_contradicts_an_admission(contradict: Any) -> None:
    builder = admission()
    contradict(builder)
    assert [code for code, _ in problems(builder)] == ["admission_mismatch"]


def test_steering_does_not_contradict_an_admission() -> None:
    assert problems(begin(admission()).user("do it", message_id="m").user("faster", "steering")) == []


# ---------------------------------------------------------------- interactions


def test_interactions_are_told_in_the_order_in_which_they_were_requested() -> None:
    builder = Builder().start()
    for number in (1, 2, 3):
        ask = {"interaction_id": f"i{number}", "turn_id": "t1", "run_id": "r1", "kind": "question", "request": {}}
        builder.add("interaction/requested", ask)
    closure, answer = {"kind": "closure", "reason": "timed_out"}, {"kind": "question_answer", "answers": [None]}
    builder.add("interaction/resolved", {"interaction_id": "i2", "outcome": closure})
    builder.add("interaction/resolved", {"interaction_id": "i1", "outcome": answer})
    builder.add("interaction/resolved", {"interaction_id": "i1", "outcome": closure})
    assert fold(builder).interaction_rows() == [
        {"interaction_id": "i1", "kind": "question", "status": "answered", "outcome": answer},
        {"interaction_id": "i2", "kind": "question", "status": "closed", "outcome": closure},
        {"interaction_id": "i3", "kind": "question", "status": "pending"},
    ]


def test_an_explicit_denial_is_remembered() -> None:
    builder = Builder().start()
    for number, outcome in enumerate(("deny", "allow", "deny")):
        kind = "sandbox_boundary" if number < 2 else "permission"
        ask = {"interaction_id": f"i{number}", "turn_id": "t1", "run_id": "r1", "kind": kind, "request": {}}
        builder.add("interaction/requested", ask)
        told = "sandbox_boundary_decision" if number < 2 else "permission_answer"
        decision = {"kind": told, "decision": outcome}
        builder.add("interaction/resolved", {"interaction_id": f"i{number}", "outcome": decision})
    assert fold(builder).interactions.denials == {"r1": ["i0"]}


def asked(builder: Builder, kind: str, outcome: dict[str, Any]) -> None:
    """An interaction of the current run, and its outcome."""
    interaction_id = f"i{builder.seq}"
    request = {"interaction_id": interaction_id, **builder.ids, "kind": kind, "request": {}}
    builder.add("interaction/requested", request)
    builder.add("interaction/resolved", {"interaction_id": interaction_id, "outcome": outcome})


DECISION = "sandbox_boundary_decision"

ATTRIBUTED: list[dict[str, Any]] = [
    {"kind": DECISION, "decision": "allow"},
    *(
        {"kind": "closure", "reason": reason}
        for reason in ("turn_stopped", "turn_terminal", "timed_out", "host_restarted")
    ),
]
UNCLEAR: list[dict[str, Any]] = [
    {"kind": "closure"},
    {"kind": "closure", "reason": "client_denied"},
    {"kind": "closure", "reason": ["turn_stopped"]},
    {"kind": "closure", "decision": "deny"},
    {"kind": DECISION},
    {"kind": DECISION, "decision": "maybe"},
    {"kind": DECISION, "decision": True},
    {"kind": DECISION, "reason": "turn_stopped"},
    {"kind": "permission_answer", "decision": "deny"},
    {"kind": "question_answer", "answers": []},
    {"kind": "of a later version", "decision": "deny"},
    {},
]


@pytest.mark.parametrize("outcome", ATTRIBUTED)
def test_an_outcome_of_a_client_or_a_cleanup_is_clear(outcome: dict[str, Any]) -> None:
    builder = Builder().start()
    asked(builder, "sandbox_boundary", outcome)
    state = fold(builder).interactions
    assert (state.denials, state.unclear) == ({}, {})


@pytest.mark.parametrize("outcome", UNCLEAR)
def test_any_other_outcome_of_a_sandbox_boundary_is_unclear(outcome: dict[str, Any]) -> None:
    builder = Builder().start()
    asked(builder, "sandbox_boundary", outcome)
    state = fold(builder).interactions
    assert (state.denials, state.unclear) == ({}, {"r1": ["i3"]})


@pytest.mark.parametrize("kind", ["question", "permission"])
@pytest.mark.parametrize("outcome", [*UNCLEAR, {"kind": DECISION, "decision": "deny"}])
def test_nothing_but_a_sandbox_boundary_is_denied_or_unclear(kind: str, outcome: dict[str, Any]) -> None:
    builder = Builder().start()
    asked(builder, kind, outcome)
    state = fold(builder).interactions
    assert (state.denials, state.unclear) == ({}, {})


def test_the_first_outcome_stands() -> None:
    builder = Builder().start()
    asked(builder, "sandbox_boundary", {"kind": DECISION, "decision": "allow"})
    for outcome in UNCLEAR:
        builder.add("interaction/resolved", {"interaction_id": "i3", "outcome": outcome})
    state = fold(builder).interactions
    assert (state.denials, state.unclear) == ({}, {})


def test_what_was_denied_or_is_unclear_outlives_snapshots_and_forks() -> None:
    parent = Builder().start()
    asked(parent, "sandbox_boundary", {"kind": DECISION, "decision": "deny"})
    asked(parent, "sandbox_boundary", {"kind": "closure"})
    parent.end().start()
    asked(parent, "sandbox_boundary", {"kind": DECISION})
    asked(parent, "sandbox_boundary", {})
    parent.end()
    state = State()
    for event in events(parent):
        state = summary.from_json(orjson.loads(orjson.dumps(summary.to_json(state))))
        state.inherit(event)
    child = Builder("s2", parent={"session_id": "s1", "seq": parent.seq - 1, "sum": parent.prev})
    for event in events(child):
        state.apply(event)
    assert state.interactions.denials == {"r1": ["i3"]}
    assert state.interactions.unclear == {"r1": ["i5"], "r2": ["i11", "i13"]}
    assert state.interactions.pending == {}


def test_usage_sums_what_is_a_number() -> None:
    builder = Builder().start().step()
    for usage in ({"input_tokens": 3, "output_tokens": 1}, {"input_tokens": True, "output_tokens": "5"}, None, 7):
        data: dict[str, Any] = {
            **builder.ids,
            "step": 1,
            "message_id": f"a{builder.seq}",
            "content": [],
            "stop_reason": "x",
        }
        builder.add("assistant/message", {**data, "usage": usage})
    sums = fold(builder).usage_row()
    assert (sums["input_tokens"], sums["output_tokens"], sums["reasoning_tokens"]) == (3, 1, 0)


def test_an_interaction_is_found_by_its_id_before_and_after_its_outcome() -> None:
    builder = Builder().start()
    ask = {"turn_id": "t1", "run_id": "r1", "kind": "question", "request": {"questions": []}}
    for number in (1, 2, 3):
        builder.add("interaction/requested", {"interaction_id": f"i{number}", **ask})
    answer = {"kind": "question_answer", "answers": []}
    builder.add("interaction/resolved", {"interaction_id": "i2", "outcome": answer})
    builder.add("interaction/resolved", {"interaction_id": "i3", "outcome": {"kind": "closure", "reason": "timed_out"}})
    state = fold(builder).interactions
    assert interactions.row(state, "i1") == {"interaction_id": "i1", "status": "pending", "revision": 3, **ask}
    assert interactions.row(state, "i2") == {
        "interaction_id": "i2",
        "kind": "question",
        "status": "answered",
        "turn_id": "t1",
        "run_id": "r1",
        "outcome": answer,
        "revision": 6,
    }
    closed = interactions.row(state, "i3")
    assert closed is not None
    assert (closed["status"], closed["revision"]) == ("closed", 7)
    assert (closed["turn_id"], closed["run_id"]) == ("t1", "r1")
    assert interactions.row(state, "i4") is None


def test_a_forks_parents_interactions_are_not_the_forks() -> None:
    builder = Builder().start()
    ask = {"turn_id": "t1", "run_id": "r1", "kind": "question", "request": {}}
    builder.add("interaction/requested", {"interaction_id": "i1", **ask})
    builder.add("interaction/resolved", {"interaction_id": "i1", "outcome": {"kind": "closure", "reason": "timed_out"}})
    state = fold(builder).interactions
    assert interactions.row(state, "i1") is not None
    interactions.HANDLERS["session/header"](state, Event(0, 0, "session/header", {}, ""))
    assert interactions.row(state, "i1") is None
