"""What a repair appends, row by row of the rules: exact events, keys in order, and what is left alone."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

import maka
from maka.journal.codec import check_shape
from maka.journal.events import Draft
from maka.repair.apply import repair
from maka.repair.plan import diagnose, plan_repair
from support.builder import Builder

TEXT = [{"kind": "text", "text": "do it"}]


def closers(builder: Builder, cause: str | None = None) -> list[tuple[str, dict[str, Any]]]:
    """What is appended; each has the shape that append demands, and nothing is left to close behind them."""
    diagnosis = diagnose(builder.raw(), builder.session_id)
    plan = plan_repair(diagnosis, cause=cause)
    for event in plan.events:
        check_shape(Draft(event.type, event.data))
    after = diagnose(builder.raw() + plan.batch, builder.session_id)
    assert after.verdict == "healthy", [(finding.code, finding.message) for finding in after.findings]
    assert after.closing.drafts == []
    return [(event.type, event.data) for event in plan.events]


def types(builder: Builder) -> list[str]:
    return [type for type, _ in closers(builder)]


def codes(builder: Builder) -> list[str]:
    return [finding.code for finding in diagnose(builder.raw(), builder.session_id).findings]


def stop(builder: Builder, turn_id: str = "t1", **more: Any) -> Builder:
    builder.add(
        "turn/stop_requested", {"stop_id": "s", "turn_id": turn_id, "source": "user", "mode": "immediate", **more}
    )
    return builder


# ---------------------------------------------------------------- open turns


def test_a_turn_without_a_step_ends_interrupted_and_settles_itself() -> None:
    builder = Builder().plain_turn().start()
    assert closers(builder) == [
        ("turn/end", {"turn_id": "t2", "run_id": "r2", "reason": {"kind": "interrupted"}, "synthesized": True})
    ]
    assert codes(builder) == ["open_turn"]


def test_an_open_step_is_ended_before_the_turn() -> None:
    builder = Builder().start().step()
    assert closers(builder)[0] == ("step/end", {"turn_id": "t1", "run_id": "r1", "step": 1})
    assert types(builder) == ["step/end", "turn/end"]
    assert codes(builder) == ["open_turn", "open_step"]


def test_a_dispatched_call_is_unknown() -> None:
    builder = Builder().start().step().says("", ["c"])
    seq = builder.call("c", recovery="idempotent")
    (type, data), *rest = closers(builder)
    text = data["content"][0]["text"]
    assert type == "tool/result"
    assert list(data) == [
        "turn_id",
        "run_id",
        "step",
        "call_id",
        "operation_id",
        "state",
        "content",
        "is_error",
        "error",
        "call_seq",
        "synthesized",
    ]
    assert data["state"] == "unknown"
    assert data["is_error"] is True
    assert data["synthesized"] is True
    assert data["call_seq"] == seq
    assert data["operation_id"] == "op-1-c"
    assert data["error"] == {"name": "ToolOutcomeUnknownError", "code": "TOOL_OUTCOME_UNKNOWN"}
    assert len(data["content"]) == 1
    assert "Do not retry blindly." in text
    assert "idempotent" in text
    assert [type for type, _ in rest] == ["step/end", "turn/end"]
    assert "unknown_outcome" in codes(builder)


def test_a_requested_call_never_ran() -> None:
    builder = Builder().start().step().says("", ["c"])
    (_, data), *_ = closers(builder)
    assert list(data) == [
        "turn_id",
        "run_id",
        "step",
        "call_id",
        "state",
        "content",
        "is_error",
        "error",
        "synthesized",
    ]
    assert data["state"] == "not_started"
    assert data["error"] == {"name": "ToolNotStartedError", "code": "TOOL_NOT_STARTED"}
    assert "not_started" in codes(builder)


def test_without_the_boundary_nobody_knows_whether_a_requested_call_ran() -> None:
    builder = Builder(tool_boundary=None).start().step().says("", ["c"])
    (_, data), *_ = closers(builder)
    assert data["state"] == "unknown"
    assert data["error"] == {"name": "ToolOutcomeUnknownError", "code": "TOOL_OUTCOME_UNKNOWN"}
    assert "call_seq" not in data
    assert "unknown_outcome" in codes(builder)


def test_results_come_in_the_order_of_the_blocks_then_what_no_block_requested() -> None:
    builder = Builder().start().step().says("", list("abcd"))
    for call in "xbac":
        builder.call(call)
    builder.result("b")
    results = [data for type, data in closers(builder) if type == "tool/result"]
    assert [(data["call_id"], data["state"]) for data in results] == [
        ("a", "unknown"),
        ("c", "unknown"),
        ("d", "not_started"),
        ("x", "unknown"),
    ]


def test_a_call_keeps_its_own_step() -> None:
    builder = Builder().start().step().says("", ["k"])
    builder.call("k")
    builder.result("k").end_step().step(2).says("", ["k"])
    (_, data), *_ = closers(builder)
    assert (data["step"], data["state"]) == (2, "not_started")


def test_the_finding_counts_calls_by_tool() -> None:
    builder = Builder().start().step().says("", ["a", "b"])
    builder.call("a")
    message = next(f.message for f in diagnose(builder.raw()).findings if f.code == "open_turn")
    assert "2 calls" in message
    assert "tool 2" in message


def test_deltas_become_an_interrupted_message() -> None:
    builder = Builder().start().step()
    builder.delta("hm", "d", "thinking", 0).delta("Hel", "d", "text", 1).delta("lo", "d", "text", 1)
    (type, data), *rest = closers(builder)
    assert type == "assistant/message"
    assert data == {
        "turn_id": "t1",
        "run_id": "r1",
        "step": 1,
        "message_id": "d",
        "content": [{"kind": "thinking", "text": "hm"}, {"kind": "text", "text": "Hello"}],
        "stop_reason": "interrupted",
        "interrupted": True,
    }
    assert [type for type, _ in rest] == ["step/end", "turn/end"]


def test_a_message_on_disk_supersedes_its_deltas() -> None:
    builder = Builder().start().step().delta("o", "a1-1").says("ok")
    assert types(builder) == ["step/end", "turn/end"]


def test_a_pending_interaction_is_closed_after_results_and_before_the_step() -> None:
    builder = Builder().start().step().says("", ["q"])
    ask = {"interaction_id": "i", "turn_id": "t1", "run_id": "r1", "kind": "question", "request": {"questions": []}}
    builder.add("interaction/requested", ask)
    assert types(builder) == ["tool/result", "interaction/resolved", "step/end", "turn/end"]
    assert closers(builder)[1][1] == {
        "interaction_id": "i",
        "outcome": {"kind": "closure", "reason": "host_restarted"},
    }


def test_a_pending_interaction_of_no_open_turn_is_closed_last() -> None:
    builder = Builder().start().step().says().end_step()
    ask = {"interaction_id": "i", "turn_id": "t1", "run_id": "r1", "kind": "question", "request": {}}
    builder.add("interaction/requested", ask)
    builder.end(settle=False)
    assert types(builder) == ["run/settled", "interaction/resolved"]
    assert {"unsettled_run", "pending_interaction"} == set(codes(builder))


def test_a_stopped_turn_is_aborted_with_its_source_and_a_note() -> None:
    builder = stop(Builder().start().step(), run_id="r1")
    assert closers(builder)[1:] == [
        (
            "turn/end",
            {"turn_id": "t1", "run_id": "r1", "reason": {"kind": "aborted", "source": "user"}, "synthesized": True},
        ),
        ("session/note", {"kind": "abort", "run_id": "r1", "turn_id": "t1", "source": "user"}),
        ("run/settled", {"run_id": "r1"}),
    ]


def test_the_cause_of_the_runtime_fails_the_turn() -> None:
    builder = Builder().start().step()
    assert closers(builder, "journal_write_failed")[1:] == [
        (
            "turn/end",
            {
                "turn_id": "t1",
                "run_id": "r1",
                "reason": {"kind": "failed", "failure_class": "journal_write_failed"},
                "synthesized": True,
            },
        ),
        ("run/settled", {"run_id": "r1"}),
    ]


def test_an_ended_turn_lacks_only_its_settlement() -> None:
    builder = Builder().start().step().says().end_step().end(settle=False)
    assert closers(builder) == [("run/settled", {"run_id": "r1"})]
    assert codes(builder) == ["unsettled_run"]


def test_an_interrupted_turn_settles_itself() -> None:
    builder = Builder().start().end("interrupted")
    assert closers(builder) == []
    assert codes(builder) == []


def test_an_older_open_turn_is_closed_first_and_under_its_own_name() -> None:
    builder = Builder().start().step().says("", ["c"])
    builder.call("c")
    builder.start()
    assert [(type, data["turn_id"]) for type, data in closers(builder)] == [
        ("tool/result", "t1"),
        ("step/end", "t1"),
        ("turn/end", "t1"),
        ("turn/end", "t2"),
    ]


# ---------------------------------------------------------------- claims


def claimed(purpose: str = "resume") -> tuple[Builder, dict[str, Any]]:
    builder = Builder().start().end("interrupted")
    sum_, seq = builder.prev, builder.seq - 1
    source = {"run_id": "r1", "invocation_id": "i-r1", "turn_id": "t1", "high_water": seq}
    run = builder.run("rT", "tT", continuation={"claim_id": "cl", "boundary_digest": sum_, "source": source})
    segment = {"session_id": "s1", "invocation_id": "i-r1", "run_id": "r1", "turn_id": "t1"}
    claim = {
        "claim_id": "cl",
        "purpose": purpose,
        "turn": 2,
        "boundary": {"segments": [{**segment, "first_seq": 1, "last_seq": seq, "sum": sum_}]},
        "boundary_digest": sum_,
        "replay_digest": "0" * 64,
        "replay_through_seq": seq,
        "source": source,
        "target_run": run,
        "claimed_at": builder.ts,
    }
    builder.add("continuation/claim", claim)
    return builder, claim


def started(builder: Builder, claim: dict[str, Any], kind: str = "runtime_admission") -> Builder:
    run = claim["target_run"]
    builder.add("run/created", {"run": run})
    start = {"protocol": "continuation_start_v2", "start_kind": kind, "purpose": claim["purpose"]}
    start |= {"claim_id": claim["claim_id"], "run_id": run["run_id"], "turn_id": run["turn_id"]}
    builder.add(
        "continuation/start", {**start, **{k: claim[k] for k in ("boundary_digest", "replay_digest", "source")}}
    )
    return builder


ABANDONED = {"kind": "failed", "failure_class": "continuation_abandoned_before_provider_dispatch"}


def test_a_claim_without_run_is_materialized_and_failed() -> None:
    builder, claim = claimed()
    planned = closers(builder)
    assert [type for type, _ in planned] == ["run/created", "continuation/start", "turn/end", "run/settled"]
    assert planned[0][1] == {"run": claim["target_run"]}
    assert planned[1][1] == {
        "protocol": "continuation_start_v2",
        "start_kind": "claim_repair",
        "purpose": "resume",
        "claim_id": "cl",
        "run_id": "rT",
        "turn_id": "tT",
        "boundary_digest": claim["boundary_digest"],
        "replay_digest": claim["replay_digest"],
        "source": claim["source"],
    }
    assert planned[2][1] == {"turn_id": "tT", "run_id": "rT", "reason": ABANDONED, "synthesized": True}
    assert codes(builder) == ["claim_repair_required"]


@pytest.mark.parametrize("key", ["run_id", "turn_id"])
def test_a_claim_whose_target_lacks_an_id_is_left_as_it_is(key: str) -> None:
    _, claim = claimed()
    builder = Builder().start().end("interrupted")
    target = {name: value for name, value in claim["target_run"].items() if name != key}
    builder.add("continuation/claim", {**claim, "target_run": target})
    assert closers(builder) == []
    assert codes(builder) == []


def test_a_claim_with_its_run_created_lacks_the_rest() -> None:
    builder, claim = claimed()
    builder.add("run/created", {"run": claim["target_run"]})
    assert types(builder) == ["continuation/start", "turn/end", "run/settled"]


def test_a_started_claim_is_left_alone_with_a_warning() -> None:
    builder = started(*claimed())
    assert closers(builder) == []
    assert codes(builder) == ["claim_indeterminate"]


def test_a_composition_behind_the_start_changes_nothing() -> None:
    builder = started(*claimed())
    builder.add("run/composition", {"run_id": "rT", "composition": {"schema": 1}})
    assert closers(builder) == []


def test_a_started_claim_that_was_stopped_is_aborted() -> None:
    builder = stop(started(*claimed()), "tT", run_id="rT")
    assert types(builder) == ["turn/end", "session/note", "run/settled"]


def test_a_successor_that_was_started_and_stopped_is_aborted() -> None:
    builder = paused()
    sum_, seq = builder.prev, builder.seq - 1
    source = {"run_id": "r1", "invocation_id": "i-r1", "turn_id": "t1", "high_water": seq}
    claim: dict[str, Any] = {"claim_id": "cS", "purpose": "handoff", "turn": 1, "boundary": {"segments": []}}
    claim |= {"boundary_digest": sum_, "replay_digest": "0" * 64, "replay_through_seq": seq, "source": source}
    claim |= {"target_run": builder.run("rS", "t1"), "claimed_at": builder.ts}
    builder.add("continuation/claim", claim)
    assert types(builder) == []
    started(builder, claim)
    assert types(builder) == []
    assert [(type, data.get("run_id")) for type, data in closers(stop(builder))] == [
        ("turn/end", "rS"),
        ("session/note", "rS"),
        ("run/settled", "rS"),
    ]


def test_a_claimed_handoff_that_was_stopped_goes_on_from_its_claim() -> None:
    builder = paused()
    sum_, seq = builder.prev, builder.seq - 1
    source = {"run_id": "r1", "invocation_id": "i-r1", "turn_id": "t1", "high_water": seq}
    claim: dict[str, Any] = {"claim_id": "cS", "purpose": "handoff", "turn": 1, "boundary": {"segments": []}}
    claim |= {"boundary_digest": sum_, "replay_digest": "0" * 64, "replay_through_seq": seq, "source": source}
    claim |= {"target_run": builder.run("rS", "t1"), "claimed_at": builder.ts}
    builder.add("continuation/claim", claim)
    planned = closers(stop(builder))
    assert [type for type, _ in planned] == ["run/created", "continuation/start", "turn/end", "run/settled"]
    assert planned[0][1] == {"run": claim["target_run"]}


def test_a_started_claim_with_a_step_is_an_ordinary_interrupted_run() -> None:
    builder = started(*claimed())
    builder.add("step/start", {"turn_id": "tT", "run_id": "rT", "step": 1})
    assert types(builder) == ["step/end", "turn/end"]
    assert "claim_repair_required" in codes(builder)


def test_a_claim_whose_run_ended_is_settled() -> None:
    builder = started(*claimed())
    builder.add("turn/end", {"turn_id": "tT", "run_id": "rT", "reason": {"kind": "completed"}})
    assert closers(builder) == [("run/settled", {"run_id": "rT"})]
    assert set(codes(builder)) == {"claim_repair_required", "unsettled_run"}


def test_a_repair_that_lost_its_end_is_finished() -> None:
    builder = started(*claimed(), kind="claim_repair")
    assert closers(builder) == [
        ("turn/end", {"turn_id": "tT", "run_id": "rT", "reason": ABANDONED, "synthesized": True}),
        ("run/settled", {"run_id": "rT"}),
    ]


# ---------------------------------------------------------------- handoffs


def paused() -> Builder:
    builder = Builder().start()
    hash_ = "sha256:" + "0" * 64
    composition = {"schema": 1, "composer_id": "test", "composer_revision": "1", "source_revisions": []}
    names = ("base_system_prompt_hash", "tool_catalog_hash", "tool_availability_hash", "base_provider_options_hash")
    composition |= {**dict.fromkeys(names, hash_), "tool_names": [], "context_window": None}
    builder.add("run/composition", {"run_id": "r1", "composition": composition})
    builder.step().says().end_step()
    pause = {"protocol": "runtime_handoff_pause_v1", "handoff_id": "h", "host_epoch": "e", "run_id": "r1"}
    pause |= {"turn_id": "t1", "root_run_id": "r1", "successor_run_id": "rS", "successor_invocation_id": "iS"}
    builder.add("handoff/pause", {**pause, "claim_id": "cS", "remaining_steps": 2})
    return builder


def test_a_paused_turn_is_left_alone() -> None:
    builder = paused()
    assert closers(builder) == []
    assert codes(builder) == ["pending_handoff"]


def test_a_paused_turn_that_was_stopped_is_ended_by_its_successor() -> None:
    builder = paused()
    seq, sum_ = builder.seq - 1, builder.prev
    planned = closers(stop(builder))
    source = {"run_id": "r1", "invocation_id": "i-r1", "turn_id": "t1", "high_water": seq}
    assert [type for type, _ in planned] == [
        "continuation/claim",
        "run/created",
        "continuation/start",
        "turn/end",
        "run/settled",
    ]
    claim = planned[0][1]
    run = claim["target_run"]
    assert list(claim) == [
        "claim_id",
        "purpose",
        "turn",
        "boundary",
        "boundary_digest",
        "replay_digest",
        "replay_through_seq",
        "source",
        "target_run",
        "claimed_at",
    ]
    assert (claim["claim_id"], claim["purpose"], claim["turn"]) == ("cS", "handoff", 1)
    assert claim["boundary"]["segments"] == [
        {
            "session_id": "s1",
            "invocation_id": "i-r1",
            "run_id": "r1",
            "turn_id": "t1",
            "first_seq": 1,
            "last_seq": seq,
            "sum": sum_,
        }
    ]
    assert claim["boundary_digest"] == sum_
    assert claim["source"] == source
    assert claim["replay_digest"] == hashlib.sha256(b"[]").hexdigest()
    assert claim["claimed_at"] == builder.ts
    assert (run["run_id"], run["invocation_id"], run["turn_id"], run["max_steps"]) == ("rS", "iS", "t1", 2)
    assert planned[1][1] == {"run": run}
    assert planned[2][1]["start_kind"] == "claim_repair"
    assert planned[3][1] == {
        "turn_id": "t1",
        "run_id": "rS",
        "reason": {"kind": "aborted", "source": "user"},
        "synthesized": True,
    }


# ---------------------------------------------------------------- admissions


LINEAGE = {
    "linked_child_initial": {},
    "linked_child_resume": {"resumed_from_run_id": "rOld"},
    "linked_child_provider_retry": {"retried_from_run_id": "rOld"},
    "claimed_agent_graph_intent": {},
}


def admitted(kind: str = "root", *, message: bool = True, **more: Any) -> Builder:
    builder = Builder()
    data: dict[str, Any] = {"turn_id": "tA", "run_id": "rA", **({"message_id": "mA"} if message else {})}
    execution = {"kind": kind, **({"source_run_id": "rOld"} if LINEAGE.get(kind) else {})}
    data |= {"previous_root_turn_id": None, "execution": execution, "input": {"content": TEXT, "quotes": []}}
    builder.add("turn/admitted", {**data, "input_digest": "0" * 64, **more})
    return builder


def test_a_root_admission_waits_for_a_runtime() -> None:
    builder = admitted()
    assert closers(builder) == []
    assert codes(builder) == ["admitted_without_run"]


def test_a_root_admission_with_its_run_gets_its_message_back() -> None:
    builder = admitted()
    run = builder.run("rA", "tA")
    builder.add("run/created", {"run": run})
    assert closers(builder) == [
        ("turn/start", {"turn_id": "tA", "run_id": "rA", "invocation_id": "i-rA", "turn": 1, "run": run}),
        (
            "user/message",
            {
                "message_id": "mA",
                "turn_id": "tA",
                "run_id": "rA",
                "content": TEXT,
                "source": {"kind": "user"},
                "quotes": [],
            },
        ),
        ("turn/end", {"turn_id": "tA", "run_id": "rA", "reason": {"kind": "interrupted"}, "synthesized": True}),
    ]
    assert codes(builder) == ["admission_unfinished"]


def test_a_stopped_admission_never_runs() -> None:
    builder = stop(admitted(), "tA")
    planned = closers(builder)
    assert [type for type, _ in planned] == ["turn/start", "user/message", "turn/end", "run/settled"]
    assert planned[2][1]["reason"] == {"kind": "aborted", "source": "user"}


@pytest.mark.parametrize("kind", LINEAGE)
def test_a_child_admission_is_closed_with_the_run_it_would_have_had(kind: str) -> None:
    builder = admitted(kind, options={"max_steps": 3}, agent_id="ag", agent_name="Agent")
    at = builder.ts
    planned = closers(builder)
    message = [] if kind == "linked_child_provider_retry" else ["user/message"]
    assert [type for type, _ in planned] == ["turn/start", *message, "turn/end"]
    run = planned[0][1]["run"]
    expected = {
        "run_id": "rA",
        "invocation_id": "rA",
        "turn_id": "tA",
        "backend": "fake",
        "model": "fake-model",
        "cwd": "/tmp",
        "permission_mode": "ask",
        "created_at": at,
        "root": {"kind": "user"},
        "max_steps": 3,
        **LINEAGE[kind],
        "agent_id": "ag",
        "agent_name": "Agent",
    }
    assert run == expected
    assert list(run) == list(expected)


def test_a_started_admission_gets_its_message_if_no_step_has_begun() -> None:
    builder = admitted()
    run = builder.run("rA", "tA")
    builder.add("turn/start", {"turn_id": "tA", "run_id": "rA", "invocation_id": "i-rA", "turn": 1, "run": run})
    assert types(builder) == ["user/message", "turn/end"]
    assert "message_missing" in codes(builder)


def test_a_message_that_comes_too_late_is_a_notice() -> None:
    builder = admitted()
    run = builder.run("rA", "tA")
    builder.add("turn/start", {"turn_id": "tA", "run_id": "rA", "invocation_id": "i-rA", "turn": 1, "run": run})
    builder.add("step/start", {"turn_id": "tA", "run_id": "rA", "step": 1})
    assert types(builder) == ["step/end", "turn/end"]
    missing = next(f for f in diagnose(builder.raw()).findings if f.code == "message_missing")
    assert missing.severity == "notice"


def test_claims_come_before_admissions_and_turns_count_on() -> None:
    builder, _ = claimed()
    for name in "AB":
        data: dict[str, Any] = {"turn_id": f"t{name}", "run_id": f"r{name}", "message_id": f"m{name}"}
        data |= {"previous_root_turn_id": "t1", "execution": {"kind": "linked_child_initial"}}
        builder.add("turn/admitted", {**data, "input": {"content": TEXT}, "input_digest": "0" * 64})
    planned = closers(builder)
    child = ["turn/start", "user/message", "turn/end"]
    assert [type for type, _ in planned] == [
        "run/created",
        "continuation/start",
        "turn/end",
        "run/settled",
        *child,
        *child,
    ]
    assert [data["turn"] for type, data in planned if type == "turn/start"] == [3, 4]


@pytest.mark.parametrize("behind", [0, 1], ids=["the last line", "a line in the middle"])
def test_a_call_whose_dispatch_may_have_been_lost_is_unknown(tmp_path: Path, behind: int) -> None:
    journal = Builder().start().step().says("", ["a", "b"])
    at = journal.call("a")
    if behind:
        journal.call("b")
    lines = [line[:40] if n == at else line for n, line in enumerate(journal.lines)]
    path = journal.write(tmp_path, b"".join(line + b"\n" for line in lines))
    view = maka.inspect(path)
    assert [call["state"] for call in view.turns()[0]["calls"]] == ["unknown", "unknown"]
    repair(path, salvage=True)
    states = {e.data["call_id"]: e.data["state"] for e in maka.inspect(path).events if e.type == "tool/result"}
    assert states == {"a": "unknown", "b": "unknown"}
