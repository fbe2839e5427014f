"""Claims and handoffs: how they stand, and which pauses seal nothing."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from maka.journal import summary
from maka.journal.errors import InvalidEvent
from maka.journal.events import Draft
from maka.journal.state import State
from support.builder import Builder, digest
from support.folds import events, fold, problems
from support.lineages import Story


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
    return {**data, "claimed_at": builder.ts, **more}


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
        "root": {"kind": "user"},
        "chain": ["r1"],
        "tip": "r1",
        "status": "paused",
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
        "root": {"kind": "user"},
        "chain": ["r1", "rS"],
        "tip": "rS",
        "status": "completed",
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


# ---------------------------------------------------------------- lineages


def chain(depth: int) -> Story:
    """A run that a crash cut off, and continuations of it that were cut off in their turn."""
    story = Story().start().end("interrupted")
    for number in range(1, depth):
        story.go_on(f"r{number}").end("interrupted")
    return story


def test_segments_are_those_of_the_lineage_and_the_runs_own() -> None:
    story = chain(3)
    terminals = [event for event in story.events if event.type == "turn/end"]
    assert story.state.segments("r3") == [
        {
            "session_id": "s1",
            "invocation_id": f"i-r{number}",
            "run_id": f"r{number}",
            "turn_id": f"t{number}",
            "first_seq": story.first[f"r{number}"],
            "last_seq": terminal.seq,
            "sum": terminal.sum,
        }
        for number, terminal in enumerate(terminals, 1)
    ]
    assert story.state.segments("r2") == story.state.segments("r3")[:2]
    assert story.events[-4].data["boundary"]["segments"] == story.state.segments("r2")
    assert story.state.lineage_fault("r3") is None
    assert refused(story, "continuation/claim", chain(4).events[-4].data) is None
    assert story.state.problems == []


def test_a_long_lineage_is_held_once() -> None:
    sizes = [len(orjson.dumps(summary.to_json(chain(depth).state))) for depth in (10, 20, 40)]
    assert sizes[2] - sizes[1] < 2.2 * (sizes[1] - sizes[0])


def test_a_handed_off_run_has_its_segment_too() -> None:
    story = chain(2)
    story.start().step().says().end_step()
    story.pause().go_on("r3", "handoff").end()
    assert [segment["run_id"] for segment in story.state.segments("r3'")] == ["r3", "r3'"]
    assert [segment["turn_id"] for segment in story.state.segments("r3'")] == ["t3", "t3"]
    row = story.state.continuation_rows()[-1]
    assert (row["root_run_id"], row["depth"], row["advice"]) == ("r3", 1, "its run is over; nothing to do")


Change = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]

BOUNDARIES: dict[str, tuple[str, Change]] = {
    "another run's": ("runtime_lineage_missing", lambda own: [own[0], {**own[1], "run_id": "rX"}]),
    "another number": ("source_prefix_digest_mismatch", lambda own: [own[0], {**own[1], "last_seq": 1}]),
    "another sum": ("source_prefix_digest_mismatch", lambda own: [{**own[0], "sum": "f" * 32}, own[1]]),
    "no sum": ("source_prefix_digest_mismatch", lambda own: [own[0], {**own[1], "sum": None}]),
    "too few": ("runtime_lineage_claim_mismatch", lambda own: own[1:]),
    "another order": ("runtime_lineage_claim_mismatch", lambda own: own[::-1]),
    "a run twice": ("runtime_lineage_cycle", lambda own: [*own, own[0]]),
    "the target": ("runtime_lineage_cycle", lambda own: [{**own[0], "run_id": "r3"}, own[1]]),
}


@pytest.mark.parametrize("what", BOUNDARIES)
def test_nothing_goes_on_from_a_boundary_that_is_not_the_lineage(what: str) -> None:
    code, change = BOUNDARIES[what]
    story = chain(2)
    own = story.state.segments("r2")
    story.admit(story.claim("r2", boundary={"segments": change(own)})).end("interrupted")
    assert (story.state.lineage_fault("r3") or ("",))[0] == code
    assert story.state.lineage_fault("r2") is None
    assert story.state.problems == [], "it is no damage"
    story.go_on("r3").end("interrupted")
    assert story.state.lineage_fault("r4") == story.state.lineage_fault("r3")
    kept = summary.from_json(orjson.loads(orjson.dumps(summary.to_json(story.state))))
    assert kept.lineage_fault("r4") == story.state.lineage_fault("r4")
    assert kept.segments("r4") == story.state.segments("r4")


def test_nothing_goes_on_from_a_source_that_is_not_there() -> None:
    story = chain(1)
    story.start()
    live = story.claim("r2", segments=[{**story.state.segments("r1")[0], "run_id": "r2"}])
    assert (story.state.lineage_fault(live["target_run"]["run_id"]) or ("",))[0] == "runtime_lineage_missing"


def test_nothing_goes_on_from_a_target_that_was_there_before() -> None:
    story = chain(1)
    story.plain_turn()
    run = story.run("r2", "t2")
    story.claim("r1", target_run=run)
    assert (story.state.lineage_fault("r2") or ("",))[0] == "runtime_lineage_cycle"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"turn_id": "t9"}, "runtime_lineage_start_mismatch"),
        ({"boundary_digest": "f" * 32}, "runtime_lineage_start_mismatch"),
        ({"replay_digest": "1" * 64}, "runtime_lineage_start_mismatch"),
        ({"source": {"run_id": "r1"}}, "runtime_lineage_start_mismatch"),
        ({"purpose": "handoff"}, "runtime_lineage_start_mismatch"),
        ({"run": {"run_id": "r2", "turn_id": "t2"}}, "runtime_lineage_claim_mismatch"),
        ({"claim_id": "another"}, "runtime_lineage_claim_mismatch"),
    ],
)
def test_nothing_goes_on_from_a_run_that_is_not_as_claimed(change: dict[str, Any], code: str) -> None:
    story = chain(1)
    story.admit(story.claim("r1"), **change)
    fault = story.state.lineage_fault("r2")
    assert fault is not None
    assert (fault[0], "r2" in fault[1]) == (code, True)
    assert story.state.lineage_fault("r1") is None


def test_each_state_has_its_advice() -> None:
    story = chain(1)
    claim = story.claim("r1", claim_id="it's; a claim")
    assert "`maka session resume TARGET`" in story.state.continuation_rows()[0]["advice"]
    story.admit(claim)
    assert """settle TARGET --claim 'it'"'"'s; a claim'`""" in story.state.continuation_rows()[0]["advice"]
    story.end()
    assert "nothing to do" in story.state.continuation_rows()[0]["advice"]
    story.start().step().says().end_step()
    story.pause().claim("r3", "handoff")
    assert "has not started" in story.state.continuation_rows()[1]["advice"]


def test_the_depth_of_a_lineage() -> None:
    rows = chain(4).state.continuation_rows()
    assert [(row["root_run_id"], row["depth"]) for row in rows] == [("r1", 1), ("r1", 2), ("r1", 3)]


# ---------------------------------------------------------------- what is lost


def resumed(upto: str = "") -> tuple[Builder, dict[str, Any]]:
    """A claim whose run goes on up to an event of this type; its events by type, and the claim's data."""
    builder = Builder().start().end("interrupted")
    claim = claim_data(builder)
    ids = {"turn_id": "tT", "run_id": "rT"}
    for type_, data in (
        ("continuation/claim", claim),
        ("run/created", {"run": claim["target_run"]}),
        ("continuation/start", start_data(claim)),
        ("step/start", {**ids, "step": 1}),
        ("step/end", {**ids, "step": 1}),
        ("turn/end", {**ids, "reason": {"kind": "completed"}}),
        ("run/settled", {"run_id": "rT"}),
    ):
        builder.add(type_, data)
        if type_ == upto:
            break
    return builder, claim


def seq_of(builder: Builder, type_: str) -> int:
    return [event.seq for event in events(builder) if event.type == type_][-1]


def next_turn(state: State) -> dict[str, Any]:
    builder = Builder()
    run = builder.run("rN", "tN")
    return {"turn_id": "tN", "run_id": "rN", "invocation_id": "iN", "turn": state.turns.last + 1, "run": run}


@pytest.mark.parametrize(
    ("upto", "stands"),
    [("step/start", "repair_required"), ("turn/end", "repair_required"), ("run/settled", "settled")],
)
def test_a_run_whose_start_was_lost_is_known_by_what_followed(upto: str, stands: str) -> None:
    builder, _ = resumed(upto)
    state = fold(builder, lost=[seq_of(builder, "continuation/start")])
    assert state.continuation_rows()[0]["state"] == stands
    assert state.turn_rows()[-1]["turn"] == 2
    if upto != "step/start":
        state.check(Draft("turn/start", next_turn(state)))


def test_a_run_that_is_settled_had_a_turn() -> None:
    builder, _ = resumed()
    lost = range(seq_of(builder, "run/created"), seq_of(builder, "run/settled"))
    state = fold(builder, lost=lost)
    assert state.turn_rows()[-1]["turn_id"] == "tT"
    assert state.continuation_rows()[0]["state"] == "repair_required"
    assert state.turn_rows()[-1]["status"] == "interrupted"


def test_a_claim_that_was_lost_holds_its_boundary_by_its_start() -> None:
    builder, claim = resumed()
    state = fold(builder, lost=[seq_of(builder, "continuation/claim")])
    kept = summary.from_json(orjson.loads(orjson.dumps(summary.to_json(state))))
    for read in (state, kept):
        row = read.continuation_rows()[0]
        assert (row["claim_id"], row["state"], row["source"]["run_id"]) == ("cl", "settled", "r1")
        assert read.continuations.ancestry("rT") == ("r1", 1)
        assert (read.lineage_fault("rT") or ("",))[0] == "runtime_lineage_claim_mismatch"
        again = {
            **claim,
            "claim_id": "c2",
            "turn": 3,
            "target_run": builder.run("rU", "tU", created_at=claim["claimed_at"]),
        }
        with pytest.raises(InvalidEvent, match="claim cl holds this boundary"):
            read.check(Draft("continuation/claim", again))
        read.check(Draft("turn/start", next_turn(read)))


def test_a_handoff_goes_on_by_its_start_where_its_claim_was_lost() -> None:
    story = chain(1)
    story.start().step().says().end_step()
    story.pause().go_on("r2", "handoff")
    state = fold(story, lost=[seq_of(story, "continuation/claim")])
    assert state.handoff_rows()[0]["state"] == "continued"
    assert state.continuations.pending() == []


TAKEN: dict[str, Callable[[Builder, dict[str, Any]], Any]] = {
    "no run": lambda b, claim: claim["target_run"].pop("run_id"),
    "no turn": lambda b, claim: claim["target_run"].pop("turn_id"),
    "an empty turn": lambda b, claim: claim["target_run"].update(turn_id=""),
    "a turn that is no text": lambda b, claim: claim["target_run"].update(turn_id=["t"]),
    "a turn that is there": lambda b, claim: claim["target_run"].update(turn_id="t1"),
    "a run that is there": lambda b, claim: claim["target_run"].update(run_id="r1"),
    "a turn that was admitted": lambda b, claim: admit(b, "tT", "rA"),
    "a run that was admitted": lambda b, claim: admit(b, "tA", "rT"),
}


def admit(builder: Builder, turn_id: str, run_id: str) -> None:
    admitted = {"turn_id": turn_id, "run_id": run_id, "previous_root_turn_id": None, "execution": {"kind": "root"}}
    builder.add("turn/admitted", {**admitted, "input": {"content": []}, "input_digest": "0" * 64})


@pytest.mark.parametrize("what", TAKEN)
@pytest.mark.parametrize("later", [False, True])
def test_a_claim_that_can_never_start_keeps_nobody_waiting(what: str, later: bool) -> None:
    builder = Builder().start().end("interrupted")
    claim = claim_data(builder)
    if later:
        builder.add("continuation/claim", claim)
        assert "claimed" in str(refused(builder, "turn/start", next_turn(fold(builder))))
        if "admitted" not in what:
            return
    TAKEN[what](builder, claim)
    if not later:
        builder.add("continuation/claim", claim)
    assert refused(builder, "turn/start", next_turn(fold(builder))) is None
    row = fold(builder).continuation_rows()[0]
    assert (row["state"], "never can" in row["advice"]) == ("settled", what != "a run that is there")


def test_a_run_that_was_created_for_another_turn_keeps_no_claim_waiting() -> None:
    builder = Builder().start().end("interrupted")
    claim = claim_data(builder)
    builder.add("continuation/claim", claim)
    builder.add("run/created", {"run": {**claim["target_run"], "turn_id": "tX"}})
    assert refused(builder, "turn/start", next_turn(fold(builder))) is None


def test_a_claim_under_the_id_of_another_keeps_nobody_waiting() -> None:
    builder, claim = resumed()
    builder.add("continuation/claim", {**claim, "target_run": builder.run("rU", "tU"), "turn": 3})
    assert refused(builder, "turn/start", next_turn(fold(builder))) is None


def test_a_stop_behind_the_start_is_for_a_repair() -> None:
    builder, _ = resumed("continuation/start")
    stop = {"stop_id": "s", "turn_id": "tT", "source": "user", "mode": "immediate"}
    builder.add("turn/stop_requested", stop)
    row = fold(builder).continuation_rows()[0]
    assert (row["state"], "repairs the session" in row["advice"]) == ("repair_required", True)
    assert fold(builder).turn_rows()[-1]["status"] == "aborted"


def test_a_turn_with_calls_whose_results_were_lost_rests_nowhere() -> None:
    story = chain(1)
    story.start().step().says("", ["c"])
    story.tool("c")
    story.end_step().pause().go_on("r2", "handoff")
    assert story.state.turns.open["t2"].rest == "indeterminate"
    state = fold(story, lost=[seq_of(story, "tool/result")])
    assert state.turns.open["t2"].rest is None


@pytest.mark.parametrize("before", ["opened", "over"])
def test_a_turn_rests_at_no_start_of_a_run_that_was_there(before: str) -> None:
    builder = Builder().start()
    if before == "over":
        builder.end()
    start = {**start_data(claim_data(builder)), "run_id": "r1", "turn_id": "t1" if before == "opened" else "tX"}
    builder.add("continuation/start", start)
    assert [turn.rest for turn in fold(builder).turns.open.values()] == [None]


# ---------------------------------------------------------------- claims that are not written

UNFIT: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
    "no segments": ("not the lineage", lambda claim: claim["boundary"].update(segments=[])),
    "a segment too many": ("not the lineage", lambda claim: claim["boundary"]["segments"].insert(0, {})),
    "another end": ("not the lineage", lambda claim: claim["boundary"]["segments"][0].update(last_seq=1)),
    "another beginning": ("not the lineage", lambda claim: claim["boundary"]["segments"][0].update(first_seq=0)),
    "the source's turn": ("another turn_id", lambda claim: claim["source"].update(turn_id="tX")),
    "the source's invocation": ("another invocation_id", lambda claim: claim["source"].update(invocation_id="iX")),
    "the target's claim": (
        "another claim_id",
        lambda claim: claim["target_run"].update(
            continuation={key: claim[key] for key in ("boundary_digest", "source")} | {"claim_id": "cX"}
        ),
    ),
    "the target's source": (
        "another source",
        lambda claim: claim["target_run"].update(
            continuation={key: claim[key] for key in ("boundary_digest", "claim_id")} | {"source": {}}
        ),
    ),
    "a replay beyond the source": ("replays up to event 9", lambda claim: claim.update(replay_through_seq=9)),
    "another time": ("claimed at 5", lambda claim: claim.update(claimed_at=5)),
}


@pytest.mark.parametrize("what", UNFIT)
def test_a_claim_that_nothing_could_go_on_from_is_not_written(what: str) -> None:
    why, change = UNFIT[what]
    builder = Builder().start().end("interrupted")
    claim = claim_data(builder)
    own = {key: claim[key] for key in ("claim_id", "boundary_digest", "source")}
    claim["target_run"]["continuation"] = own
    assert refused(builder, "continuation/claim", claim) is None
    claim["source"] = dict(claim["source"])
    change(claim)
    assert why in str(refused(builder, "continuation/claim", claim))


def test_nothing_is_claimed_on_a_lineage_that_is_at_fault() -> None:
    story = chain(2)
    story.admit(story.claim("r2", boundary={"segments": []})).end("interrupted")
    segments = story.state.segments("r3")
    claim = story.claim("r3", segments=segments)
    state = fold_upto(story, story.seq - 1)
    with pytest.raises(InvalidEvent, match="nothing goes on from run r3"):
        state.check(Draft("continuation/claim", claim))


def fold_upto(builder: Builder, seq: int) -> State:
    state = State()
    for event in events(builder):
        if event.seq < seq:
            state.apply(event)
    return state


def test_a_claim_waits_for_the_one_before_it() -> None:
    story = chain(1)
    story.start().end("failed")
    story.claim("r1")
    second = story.claim("r2", turn=3)
    state = fold_upto(story, story.seq - 1)
    with pytest.raises(InvalidEvent, match="turn t3 is claimed and has not started"):
        state.check(Draft("continuation/claim", second))
    admitted = {"turn_id": "t3", "run_id": "rA", "previous_root_turn_id": None, "execution": {"kind": "root"}}
    with pytest.raises(InvalidEvent, match="turn t3 is claimed"):
        state.check(Draft("turn/admitted", {**admitted, "input": {}, "input_digest": "0" * 64}))


# ---------------------------------------------------------------- what is not verified


def test_the_first_line_that_is_not_verified() -> None:
    builder = Builder().plain_turn().plain_turn()
    assert fold(builder).unverified_seq is None
    state = fold(builder, lost=[9, 4])
    assert (state.unverified_seq, state.lost_seq) == (5, 10)
    kept = summary.from_json(orjson.loads(orjson.dumps(summary.to_json(state))))
    assert (kept.unverified_seq, kept.lost_seq) == (5, 10)


@pytest.mark.parametrize(
    ("missing", "unverified", "newest"),
    [
        ([], [], None),
        ([[5, 6]], [], 6),
        ([], [4], 4),
        ([[2, 3], [5, 6]], [4], 6),
        ([["x"], 1, [2**60]], [], 9),
    ],
)
def test_a_gap_says_that_something_was_lost(missing: list[Any], unverified: list[int], newest: int | None) -> None:
    builder = Builder().plain_turn()
    gap = {"spans": [{"offset": 1, "length": 2}], "missing": missing, "unverified": unverified, "accepted": []}
    seq = builder.add("journal/gap", gap)
    builder.plain_turn()
    state = fold(builder)
    assert (state.unverified_seq, state.lost_seq) == ((None, None) if newest is None else (seq, newest))


def test_what_a_parent_lost_is_the_parents() -> None:
    parent = Builder().plain_turn()
    child = Builder("s2", parent={"session_id": "s1", "seq": parent.seq - 1, "sum": parent.prev}).plain_turn()
    state = State()
    for event in events(parent, lost=[2]):
        state.inherit(event)
    for event in events(child):
        state.apply(event)
    assert state.unverified_seq is None
