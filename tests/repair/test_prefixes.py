"""Whatever a crash or a disk leaves of a journal: a repair closes it, a second one changes nothing, the chain holds."""

import json
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from maka.journal.history import History
from maka.journal.scan import Consumer, scan
from maka.journal.source import BytesSource
from maka.repair.plan import Diagnosis, RepairPlan, diagnose, plan_repair
from support.builder import Builder
from support.chain import check
from support.legal import assert_legal
from support.realistic import realistic

REALISTIC = realistic()
RAW = REALISTIC.raw()
#: How many of the bytes the sweeps look at; ``MAKA_SWEEP=all`` takes every one.
STRIDE = 1 if os.environ.get("MAKA_SWEEP") == "all" else 97


def mend(raw: bytes, *, salvage: bool = False) -> tuple[Diagnosis, RepairPlan, bytes]:
    """The bytes after a repair, by the plan alone."""
    diagnosis = diagnose(raw, "s1")
    plan = plan_repair(diagnosis, salvage=salvage)
    kept = raw if plan.cut is None else raw[: plan.cut]
    return diagnosis, plan, kept + plan.batch


def messages(raw: bytes) -> list[dict[str, Any]]:
    """The provider history of what stands in the bytes, before any repair."""
    histories: list[History] = []

    def begin() -> Consumer:
        histories[:] = [History()]
        return histories[0].apply

    scan(BytesSource(raw), begin)
    return histories[0].messages()


def settles(raw: bytes, *, salvage: bool = False) -> bytes:
    """Repair, and hold everything that must be true of any repair. The bytes afterwards."""
    diagnosis, plan, after = mend(raw, salvage=salvage)
    assert plan.refused is None
    assert after.startswith(raw[: len(raw) if plan.cut is None else plan.cut])
    assert mend(raw, salvage=salvage)[2] == after, "the same bytes were planned in two ways"
    again, second, same = mend(after)
    listed = [(finding.code, finding.seq, finding.message) for finding in again.findings]
    assert again.verdict == "healthy", listed
    assert second.empty
    assert same == after
    assert_legal(messages(raw))
    assert_legal(messages(after))
    head = diagnosis.scan.head
    assert head is not None
    assert all(event.ts == diagnosis.scan.last_ts for event in plan.events)
    assert [event.more for event in plan.events] == list(reversed(range(len(plan.events))))
    return after


def test_the_realistic_journal_is_healthy() -> None:
    diagnosis = diagnose(RAW, "s1")
    assert [(f.code, f.message) for f in diagnosis.findings if f.severity not in ("info", "notice")] == []
    assert diagnosis.verdict == "healthy"
    assert plan_repair(diagnosis).empty


@pytest.mark.parametrize("lines", range(1, len(REALISTIC.lines) + 1))
def test_every_prefix_of_whole_lines(lines: int) -> None:
    raw = b"".join(line + b"\n" for line in REALISTIC.lines[:lines])
    after = settles(raw)
    events = check(after)
    assert len(events) >= lines - sum(1 for _ in range(1) if b'"more":' in REALISTIC.lines[lines - 1])
    ends = [event["data"]["turn_id"] for event in events if event["type"] == "turn/end"]
    assert len(ends) == len(set(ends)), "a turn has two ends"


@pytest.mark.parametrize("lines", range(1, len(REALISTIC.lines) + 1))
def test_every_prefix_without_its_last_lf(lines: int) -> None:
    raw = b"\n".join(REALISTIC.lines[:lines])
    whole = b"".join(line + b"\n" for line in REALISTIC.lines[:lines])
    if lines > 1 or b'"more"' not in REALISTIC.lines[lines - 1]:
        assert settles(raw) == settles(whole)


def test_every_byte_that_a_crash_may_stop_at() -> None:
    first = len(REALISTIC.lines[0]) + 1
    for length in range(first, len(RAW), STRIDE):
        check(settles(RAW[:length]))


def test_a_crash_inside_the_repair_is_a_torn_tail_and_nothing_else() -> None:
    builder = Builder().tool_turn().start().step().says("", ["a", "b"])
    builder.call("a")
    raw = builder.raw()
    after = settles(raw)
    for length in range(len(raw), len(after)):
        diagnosis, _, again = mend(after[:length])
        assert diagnosis.verdict in ("torn", "interrupted")
        assert again == after, f"cut at {length - len(raw)} bytes of the batch"


def test_a_crash_inside_a_salvage_converges_too() -> None:
    builder = Builder().tool_turn().start().step().says("", ["a"])
    lines = list(builder.lines)
    lines[4] = b"\0" * 30
    raw = b"".join(line + b"\n" for line in lines)
    after = settles(raw, salvage=True)
    for length in range(len(raw), len(after)):
        assert mend(after[:length], salvage=True)[2] == after


@pytest.mark.parametrize("bit", [0x01, 0x20, 0x80])
def test_every_byte_that_a_disk_may_change(bit: int) -> None:
    for place in range(len(RAW) - 1, -1, -STRIDE):
        raw = bytearray(RAW)
        raw[place] ^= bit
        changed = bytes(raw)
        before = diagnose(changed, "s1")
        assert before.verdict in ("damaged", "unsupported", "torn"), f"byte {place} changed unseen"
        if before.verdict != "unsupported":
            settles(changed, salvage=True)


@pytest.mark.parametrize("lines", range(1, len(REALISTIC.lines)))
def test_every_line_that_may_be_lost(lines: int) -> None:
    kept = REALISTIC.lines[:lines] + REALISTIC.lines[lines + 1 :]
    raw = b"".join(line + b"\n" for line in kept)
    diagnosis = diagnose(raw, "s1")
    if lines < len(REALISTIC.lines) - 1:
        assert diagnosis.verdict == "damaged"
        settles(raw, salvage=True)
    else:
        settles(raw)


def test_much_damage_is_accepted_whole() -> None:
    builder = Builder()
    for n in range(3000):
        builder.add("x-noise/n", {"n": n})
    lines = [line.replace(b'"n":', b'"m":') if i % 2 else line for i, line in enumerate(builder.lines)]
    raw = b"".join(line + b"\n" for line in lines)
    diagnosis, plan, _ = mend(raw, salvage=True)
    assert len([f for f in diagnosis.findings if f.code == "sum_mismatch"]) == 1000
    assert len(plan.events[0].data["accepted"]) == 1500
    settles(raw, salvage=True)


def test_a_lost_header_is_rebuilt_from_the_first_run() -> None:
    builder = Builder().plain_turn().start().step().says("", ["c"])
    raw = b"".join(line + b"\n" for line in builder.lines[1:])
    diagnosis, plan, after = mend(raw, salvage=True)
    assert "missing_header" in [f.code for f in diagnosis.findings]
    gap = plan.events[0].data
    assert list(gap)[-1] == "header"
    header = gap["header"]
    assert list(header)[:3] == ["format", "session_id", "created_by"]
    assert header["format"] == 1
    assert header["session_id"] == "s1"
    assert header["created_by"]["name"] == "maka"
    assert {key: header[key] for key in ("cwd", "backend", "model", "permission_mode", "connection")} == {
        "cwd": "/tmp",
        "backend": "fake",
        "model": "fake-model",
        "permission_mode": "ask",
        "connection": "",
    }
    assert "tool_boundary" not in header
    assert plan.events[1].data["state"] == "unknown", "without the boundary nobody knows whether the call ran"
    settles(raw, salvage=True)
    assert diagnose(after, "s1").state.session.header == header


# ---------------------------------------------------------------- anything at all

IDS = st.sampled_from(["t1", "t2", "r1", "r2", "c1", "C1 ", "op"])
TURNS = st.sampled_from(["t1", "t2", "t3"])
RUNS = st.sampled_from(["r1", "r2", "r3"])
CALLS = st.sampled_from(["c1", "c2", " C1"])
SMALL = st.integers(0, 4)
ODD: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), SMALL, IDS, st.lists(SMALL, max_size=2), st.dictionaries(IDS, SMALL, max_size=2)
)
RUN = st.fixed_dictionaries(
    {},
    optional={
        "run_id": st.one_of(RUNS, ODD),
        "turn_id": st.one_of(TURNS, ODD),
        "invocation_id": ODD,
        "max_steps": ODD,
        "root": ODD,
        "created_at": SMALL,
        "continuation": ODD,
    },
)
TEXT = st.builds(lambda text: {"kind": "text", "text": text}, st.sampled_from(["", "a"]))
ASKS = st.builds(lambda call: {"kind": "tool_call", "call_id": call, "name": "tool", "arguments": "{}"}, CALLS)
CONTENT = st.lists(st.one_of(TEXT, ASKS, ODD), max_size=3)
REASON = st.builds(lambda kind: {"kind": kind}, st.sampled_from(["completed", "interrupted", "aborted", "failed", 7]))


def data(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(fields)


IN_TURN = {"turn_id": TURNS, "run_id": RUNS}
IN_STEP = {**IN_TURN, "step": SMALL}
DIGEST = st.just("0" * 64)
SOURCE = st.one_of(ODD.filter(lambda v: isinstance(v, dict)), data(run_id=RUNS, turn_id=TURNS, high_water=SMALL))
PURPOSE = st.sampled_from(["resume", "handoff"])
EVENTS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "turn/start": data(**IN_TURN, invocation_id=IDS, turn=SMALL, run=RUN),
    "user/message": data(message_id=IDS, **IN_TURN, content=CONTENT, source=st.just({"kind": "user"})),
    "step/start": data(**IN_STEP),
    "assistant/delta": data(
        run_id=RUNS, step=SMALL, message_id=IDS, index=SMALL, kind=st.sampled_from(["text", "thinking"]), text=IDS
    ),
    "assistant/message": data(**IN_STEP, message_id=IDS, content=CONTENT, stop_reason=IDS),
    "tool/call": data(
        **IN_STEP, call_id=CALLS, operation_id=IDS, name=IDS, arguments_digest=DIGEST, recovery=st.just("never")
    ),
    "tool/result": data(
        **IN_STEP,
        call_id=CALLS,
        operation_id=ODD,
        state=st.sampled_from(["ok", "unknown"]),
        content=CONTENT,
        is_error=st.booleans(),
    ),
    "tool/outcome": data(
        **IN_TURN,
        call_id=CALLS,
        call_seq=SMALL,
        operation_id=IDS,
        state=st.just("ok"),
        content=CONTENT,
        is_error=st.booleans(),
        source=st.just("user"),
    ),
    "step/end": data(**IN_STEP),
    "turn/stop_requested": data(stop_id=IDS, turn_id=TURNS, source=IDS, mode=st.just("immediate")),
    "turn/end": data(**IN_TURN, reason=REASON),
    "run/created": data(run=RUN),
    "run/settled": data(run_id=RUNS),
    "continuation/claim": data(
        claim_id=IDS,
        purpose=PURPOSE,
        turn=SMALL,
        boundary=data(segments=st.one_of(ODD, st.lists(SOURCE, max_size=2))),
        boundary_digest=IDS,
        replay_digest=DIGEST,
        replay_through_seq=SMALL,
        source=SOURCE,
        target_run=RUN,
        claimed_at=SMALL,
    ),
    "continuation/start": data(
        protocol=st.just("continuation_start_v2"),
        start_kind=st.sampled_from(["runtime_admission", "claim_repair"]),
        purpose=PURPOSE,
        claim_id=IDS,
        **IN_TURN,
        boundary_digest=IDS,
        replay_digest=DIGEST,
        source=SOURCE,
    ),
    "handoff/pause": data(
        protocol=st.just("runtime_handoff_pause_v1"),
        handoff_id=IDS,
        host_epoch=IDS,
        **IN_TURN,
        root_run_id=RUNS,
        successor_run_id=RUNS,
        successor_invocation_id=IDS,
        claim_id=IDS,
        remaining_steps=st.one_of(st.none(), SMALL),
    ),
    "turn/admitted": data(
        **IN_TURN,
        message_id=ODD,
        previous_root_turn_id=st.none(),
        execution=data(kind=st.one_of(ODD, st.sampled_from(["root", "linked_child_resume"])), source_run_id=ODD),
        input=data(content=st.one_of(CONTENT, ODD), quotes=ODD),
        input_digest=DIGEST,
        options=ODD,
    ),
    "interaction/requested": data(interaction_id=IDS, **IN_TURN, kind=st.just("question"), request=data(questions=ODD)),
    "interaction/resolved": data(interaction_id=IDS, outcome=data(kind=IDS)),
}
SEQUENCES = st.lists(
    st.sampled_from(sorted(EVENTS)).flatmap(lambda name: st.tuples(st.just(name), EVENTS[name])), max_size=25
)
MANY = 5000 if os.environ.get("MAKA_SWEEP") == "all" else 150


@settings(max_examples=MANY, deadline=None, suppress_health_check=list(HealthCheck))
@given(SEQUENCES, st.booleans())
def test_any_events_in_any_order_are_closed(events: list[tuple[str, dict[str, Any]]], boundary: bool) -> None:
    builder = Builder(tool_boundary="t1_after_preflight_v1" if boundary else None)
    for name, payload in events:
        builder.add(name, payload)
    settles(builder.raw(), salvage=True)


LINES = [json.loads(line) for line in REALISTIC.lines[1:]]
CHANGES = st.lists(
    st.tuples(st.sampled_from(["drop", "double", "swap", "cut"]), st.integers(0, 10_000), st.integers(0, 10_000)),
    max_size=5,
)


@settings(max_examples=MANY, deadline=None, suppress_health_check=list(HealthCheck))
@given(CHANGES)
def test_true_events_dropped_doubled_moved_and_cut(changes: list[tuple[str, int, int]]) -> None:
    events = list(LINES)
    for what, one, two in changes:
        if not events:
            break
        at, other = one % len(events), two % len(events)
        if what == "drop":
            del events[at]
        elif what == "double":
            events.insert(other, events[at])
        elif what == "swap":
            events[at], events[other] = events[other], events[at]
        else:
            del events[max(at, len(events) // 2) :]
    builder = Builder()
    for event in events:
        builder.add(event["type"], event["data"], ignorable=event.get("ignorable", False))
    settles(builder.raw(), salvage=True)
