"""Claims and handoffs: how they stand, and which pauses seal nothing."""

from typing import Any

import pytest

from maka.journal.errors import InvalidEvent
from maka.journal.events import Draft
from support.builder import Builder, digest
from support.folds import fold, problems


def source(builder: Builder, seq: int, run_id: str = "r1", turn_id: str = "t1") -> dict[str, Any]:
    return {"run_id": run_id, "invocation_id": f"i-{run_id}", "turn_id": turn_id, "high_water": seq}


def claim_data(builder: Builder, purpose: str = "resume", **more: Any) -> dict[str, Any]:
    """A claim on run r1, whose terminal fact is the newest line."""
    seq, sum_ = builder.seq - 1, builder.prev
    turn_id, run_id, claim_id = ("tT", "rT", "cl") if purpose == "resume" else ("t1", "rS", "cS")
    data: dict[str, Any] = {"claim_id": claim_id, "purpose": purpose, "turn": 2 if purpose == "resume" else 1}
    segment = {"session_id": "s1", **source(builder, seq), "first_seq": 1, "last_seq": seq, "sum": sum_}
    data |= {"boundary": {"segments": [segment]}, "boundary_digest": sum_, "replay_digest": "0" * 64}
    data |= {"replay_through_seq": seq, "source": source(builder, seq), "target_run": builder.run(run_id, turn_id)}
    return {**data, "claimed_at": 1, **more}


def start_data(claim: dict[str, Any], kind: str = "runtime_admission") -> dict[str, Any]:
    target = claim["target_run"]
    data = {"protocol": "continuation_start_v2", "start_kind": kind, "purpose": claim["purpose"]}
    data |= {"claim_id": claim["claim_id"], "run_id": target["run_id"], "turn_id": target["turn_id"]}
    return {**data, **{key: claim[key] for key in ("boundary_digest", "replay_digest", "source")}}


def state_of(builder: Builder) -> str:
    return str(fold(builder).continuation_rows()[0]["state"])


def test_a_resume_claim_step_by_step() -> None:
    builder = Builder().start().end("interrupted")
    claim = claim_data(builder)
    builder.add("continuation/claim", claim)
    assert fold(builder).continuation_rows() == [
        {
            "claim_id": "cl",
            "purpose": "resume",
            "state": "repair_required",
            "source": {"run_id": "r1", "turn_id": "t1"},
            "target": {"run_id": "rT", "turn_id": "tT"},
            "root_run_id": "r1",
            "depth": 1,
            "advice": "its run was cut off; `maka session resume TARGET` repairs the session and goes on from there",
        }
    ]
    builder.add("run/created", {"run": claim["target_run"]})
    assert state_of(builder) == "repair_required"
    builder.add("continuation/start", start_data(claim))
    assert state_of(builder) == "started_indeterminate"
    assert fold(builder).turn_rows()[-1]["status"] == "indeterminate"
    builder.add("run/composition", {"run_id": "rT", "composition": {}})
    assert state_of(builder) == "started_indeterminate"
    ids = {"turn_id": "tT", "run_id": "rT"}
    builder.add("step/start", {**ids, "step": 1})
    assert state_of(builder) == "repair_required"
    builder.add("step/end", {**ids, "step": 1})
    builder.add("turn/end", {**ids, "reason": {"kind": "completed"}})
    assert state_of(builder) == "repair_required"
    builder.add("run/settled", {"run_id": "rT"})
    assert state_of(builder) == "settled"
    assert problems(builder) == []
    assert fold(builder).continuations.ancestry("rT") == ("r1", 1)


def test_an_interrupted_target_is_settled() -> None:
    builder = Builder().start().end("interrupted")
    claim = claim_data(builder)
    builder.add("continuation/claim", claim)
    builder.add("run/created", {"run": claim["target_run"]})
    builder.add("continuation/start", start_data(claim))
    builder.add("turn/end", {"turn_id": "tT", "run_id": "rT", "reason": {"kind": "interrupted"}})
    assert state_of(builder) == "settled"


# ---------------------------------------------------------------- refusals


def refused(builder: Builder, type: str, data: dict[str, Any]) -> str | None:
    try:
        fold(builder).check(Draft(type, data))
    except InvalidEvent as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, None),
        ({"turn": 3}, "number 3"),
        ({"boundary_digest": "f" * 32}, "terminal fact of run r1"),
        ({"source": {"run_id": "r9"}}, "r9 has no terminal fact"),
        ({"target_run": {"run_id": "r1", "turn_id": "tT"}}, "r1 exists"),
        ({"target_run": {"run_id": "rT", "turn_id": "t1"}}, "t1 exists"),
    ],
)
def test_a_claim_reserves_what_is_free(change: dict[str, Any], why: str | None) -> None:
    builder = Builder().start().end("interrupted")
    sentence = refused(builder, "continuation/claim", claim_data(builder, **change))
    assert sentence is None if why is None else why in str(sentence)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, "cl exists"),
        ({"claim_id": "c2"}, "holds this boundary"),
        ({"claim_id": "c2", "boundary_digest": "x"}, "rT"),
    ],
)
def test_one_claimant_wins(change: dict[str, Any], why: str) -> None:
    builder = Builder().start().end("interrupted")
    claim = claim_data(builder)
    builder.add("continuation/claim", claim)
    assert why in str(refused(builder, "continuation/claim", {**claim, **change}))


def test_a_start_is_what_its_claim_reserved() -> None:
    builder = Builder().start().end("interrupted")
    claim = claim_data(builder)
    assert "without a claim" in str(refused(builder, "continuation/start", start_data(claim)))
    builder.add("continuation/claim", claim)
    other = {**claim["target_run"], "model": "another"}
    assert "differs" in str(refused(builder, "run/created", {"run": other}))
    assert "not created" in str(refused(builder, "continuation/start", start_data(claim)))
    builder.add("run/created", {"run": claim["target_run"]})
    assert refused(builder, "continuation/start", start_data(claim)) is None
    wrong = {**start_data(claim), "replay_digest": "1" * 64}
    assert "replay_digest" in str(refused(builder, "continuation/start", wrong))
    builder.add("continuation/start", start_data(claim))
    assert refused(builder, "continuation/start", start_data(claim)) is not None


def test_a_claimed_turn_comes_before_a_new_one() -> None:
    builder = Builder().start().end("interrupted")
    builder.add("continuation/claim", claim_data(builder))
    run = builder.run("r2", "t2")
    data = {"turn_id": "t2", "run_id": "r2", "invocation_id": "i2", "turn": 2, "run": run}
    assert "claimed" in str(refused(builder, "turn/start", data))


# ---------------------------------------------------------------- handoffs


def composed(builder: Builder) -> Builder:
    builder.add("run/composition", {"run_id": "r1", "composition": {"schema": 1, "hash": digest("")}})
    return builder


def pause_data(**more: Any) -> dict[str, Any]:
    data = {"protocol": "runtime_handoff_pause_v1", "handoff_id": "h", "host_epoch": "e", "run_id": "r1"}
    data |= {"turn_id": "t1", "root_run_id": "r1", "successor_run_id": "rS", "successor_invocation_id": "iS"}
    return {**data, "claim_id": "cS", "remaining_steps": 2, **more}


def standing() -> Builder:
    return composed(Builder().start()).step().says().end_step()


def paused() -> Builder:
    builder = standing()
    builder.add("handoff/pause", pause_data())
    return builder


def handoff(builder: Builder) -> str:
    return str(fold(builder).handoff_rows()[0]["state"])


def test_a_handoff_step_by_step() -> None:
    builder = standing()
    assert refused(builder, "handoff/pause", pause_data()) is None
    builder.add("handoff/pause", pause_data())
    state = fold(builder)
    assert state.handoff_rows() == [
        {
            "handoff_id": "h",
            "run_id": "r1",
            "turn_id": "t1",
            "successor_run_id": "rS",
            "claim_id": "cS",
            "remaining_steps": 2,
            "state": "pending",
        }
    ]
    assert [row["status"] for row in state.run_rows()] == ["handed_off"]
    assert state.turn_rows()[0]["status"] == "paused"
    assert [finding.code for finding in state.information()] == ["pending_handoff"]
    assert state.execution_row("t1") == {
        "turn_id": "t1",
        "root_run_id": "r1",
        "chain": ["r1"],
        "tip": "r1",
        "pending_handoff": "h",
    }
    claim = claim_data(builder, "handoff")
    assert refused(builder, "continuation/claim", claim) is None
    assert "another" in str(refused(builder, "continuation/claim", {**claim, "claim_id": "c9"}))
    builder.add("continuation/claim", claim)
    assert (handoff(builder), state_of(builder)) == ("claimed", "reserved")
    builder.add("run/created", {"run": claim["target_run"]})
    builder.add("continuation/start", start_data(claim))
    assert (handoff(builder), state_of(builder)) == ("continued", "started_indeterminate")
    ids = {"turn_id": "t1", "run_id": "rS"}
    builder.add("step/start", {**ids, "step": 2})
    builder.add("step/end", {**ids, "step": 2})
    builder.add("turn/end", {**ids, "reason": {"kind": "completed"}})
    builder.add("run/settled", {"run_id": "rS"})
    state = fold(builder)
    assert problems(builder) == []
    assert [row["status"] for row in state.run_rows()] == ["handed_off", "completed"]
    assert state.turn_rows()[0]["run_ids"] == ["r1", "rS"]
    assert state.execution_row("t1") == {
        "turn_id": "t1",
        "root_run_id": "r1",
        "chain": ["r1", "rS"],
        "tip": "rS",
        "pending_handoff": None,
    }


def test_an_abandoned_handoff() -> None:
    builder = paused()
    claim = claim_data(builder, "handoff")
    builder.add("continuation/claim", claim)
    builder.add("run/created", {"run": claim["target_run"]})
    builder.add("continuation/start", start_data(claim, "claim_repair"))
    reason = {"kind": "failed", "failure_class": "handoff_abandoned"}
    builder.add("turn/end", {"turn_id": "t1", "run_id": "rS", "reason": reason})
    builder.add("run/settled", {"run_id": "rS"})
    assert (handoff(builder), state_of(builder), problems(builder)) == ("abandoned", "settled", [])


FORGED: dict[str, Any] = {
    "an open step": lambda b: b.step(2),
    "a call without result": lambda b: b.step(2).says("", ["x"]).end_step(),
    "a pending interaction": lambda b: b.add(
        "interaction/requested",
        {"interaction_id": "i", "turn_id": "t1", "run_id": "r1", "kind": "question", "request": {}},
    ),
    "another pause": lambda b: b.add(
        "handoff/pause", pause_data(handoff_id="h0", claim_id="c0", successor_run_id="r0")
    ),
    "a turn that is over": lambda b: b.end(),
    "its successor exists": lambda b: b.add("run/created", {"run": b.run("rS", "t1")}),
}


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_pause_seals_nothing(case: str) -> None:
    builder = standing()
    FORGED[case](builder)
    assert refused(builder, "handoff/pause", pause_data()) is not None
    before = fold(builder).turn_rows()
    seq = builder.add("handoff/pause", pause_data())
    assert problems(builder)[-1] == ("handoff_invalid", seq)
    assert fold(builder).turn_rows() == before


@pytest.mark.parametrize(
    "change",
    [
        {"run_id": "r9"},
        {"turn_id": "t9"},
        {"successor_run_id": "r1"},
        {"root_run_id": "r9"},
        {"remaining_steps": 0},
    ],
)
def test_a_pause_that_names_what_is_not_there(change: dict[str, Any]) -> None:
    builder = standing()
    seq = builder.add("handoff/pause", pause_data(**change))
    assert problems(builder) == [("handoff_invalid", seq)]


def test_only_a_composed_run_is_paused_by_a_writer() -> None:
    builder = Builder().start().step().says().end_step()
    assert "composition" in str(refused(builder, "handoff/pause", pause_data()))
    builder.add("handoff/pause", pause_data())
    assert problems(builder) == []


@pytest.mark.parametrize(
    "go_on",
    [lambda b: b.step(2), lambda b: b.user("x", "steering"), lambda b: b.end(settle=False)],
)
def test_nothing_of_a_sealed_run_follows(go_on: Any) -> None:
    builder = paused()
    seq = builder.seq
    go_on(builder)
    assert problems(builder) == [("turn_order", seq)]
    assert fold(builder).turn_rows()[0]["status"] != "paused"


def test_a_stop_ends_the_rest() -> None:
    builder = paused()
    stop = {"stop_id": "s", "turn_id": "t1", "source": "user", "mode": "immediate"}
    builder.add("turn/stop_requested", stop)
    state = fold(builder)
    assert not state.turns.left_alone(state.turns.open["t1"])
    assert state.turn_rows()[0]["status"] == "aborted"
    assert state.information() == []
