"""The fold costs the same for each event, whatever a journal holds. Executed lines are counted, and not seconds."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from maka.journal.events import Event
from maka.journal.history import History
from maka.journal.state import State
from maka.repair.closers import plan_closers
from support.builder import Builder
from support.folds import events

_FEW, _MANY = 40, 160


def many_calls(builder: Builder, count: int) -> None:
    builder.start().step().says("", [f"c{i}" for i in range(count)])


def results_of_another_step(builder: Builder, count: int) -> None:
    builder.start().step().says("", ["same"] * count).step(2)
    for i in range(count):
        builder.result("same", operation_id=f"o{i}")


def results_behind_their_step(builder: Builder, count: int) -> None:
    many_calls(builder, count)
    builder.end_step()
    for i in range(count):
        builder.result(f"c{i}")


def steps_behind_open_calls(builder: Builder, count: int) -> None:
    many_calls(builder, count)
    builder.end_step()
    for i in range(count):
        builder.step(i + 2).end_step()


def open_turns_before_doubted_lines(builder: Builder, count: int) -> None:
    for _ in range(count):
        builder.start()
    for _ in range(count):
        builder.add("session/note", {"kind": "doubted"})


def interactions_of_many_turns(builder: Builder, count: int) -> None:
    for i in range(count):
        builder.start()
        asked = {"interaction_id": f"i{i}", **builder.ids, "kind": "question", "request": {}}
        builder.add("interaction/requested", asked)


def pauses_beside_interactions(builder: Builder, count: int) -> None:
    interactions_of_many_turns(builder, count)
    for i in range(count):
        pause = {"protocol": "runtime_handoff_pause_v1", "handoff_id": f"h{i}", "host_epoch": "e", **builder.ids}
        pause |= {"root_run_id": builder.ids["run_id"], "successor_run_id": f"s{i}", "successor_invocation_id": "n"}
        builder.add("handoff/pause", {**pause, "claim_id": f"c{i}", "remaining_steps": None})


def claims_on_a_long_turn(builder: Builder, count: int) -> None:
    builder.start()
    for i in range(count):
        builder.user(f"more {i}", "steering")
    builder.end()
    source = {**builder.ids, "invocation_id": "i", "high_water": 1}
    for i in range(count):
        claim = {"claim_id": f"c{i}", "purpose": "resume", "turn": 2, "boundary": {"segments": []}}
        claim |= {"boundary_digest": f"b{i}", "replay_digest": "d", "replay_through_seq": 2, "source": source}
        builder.add("continuation/claim", {**claim, "target_run": builder.run(f"x{i}", f"y{i}"), "claimed_at": 1})


def outcomes_that_are_told(builder: Builder, count: int) -> None:
    many_calls(builder, count)
    seqs = [builder.call(f"c{i}") for i in range(count)]
    for i in range(count):
        builder.result(f"c{i}", state="unknown")
    builder.end_step().step(2)
    for i, seq in enumerate(seqs):
        outcome = {**builder.ids, "call_id": f"c{i}", "call_seq": seq, "operation_id": f"op-1-c{i}", "state": "ok"}
        builder.add("tool/outcome", {**outcome, "content": [], "is_error": False, "source": "user"})


def continuations_of_continuations(builder: Builder, count: int) -> None:
    """Boundaries list one segment: the lists of whole lineages grow by themselves."""
    builder.start()
    builder.end("interrupted")
    for i in range(count):
        ids = {**builder.ids, "invocation_id": "i"}
        segment = {**ids, "session_id": "s1", "first_seq": 1, "last_seq": builder.seq - 1, "sum": builder.prev}
        source = {**ids, "high_water": builder.seq - 1}
        claim = {"claim_id": f"c{i}", "purpose": "resume", "turn": i + 2, "boundary": {"segments": [segment]}}
        claim |= {"boundary_digest": builder.prev, "replay_digest": "d", "replay_through_seq": 2, "source": source}
        builder.turn += 1
        run = builder.run(builder.ids["run_id"], builder.ids["turn_id"])
        builder.add("continuation/claim", {**claim, "target_run": run, "claimed_at": 1})
        builder.add("run/created", {"run": run})
        start = {"protocol": "continuation_start_v2", "start_kind": "runtime_admission", "purpose": "resume"}
        start |= {**builder.ids, "claim_id": f"c{i}"} | {
            key: claim[key] for key in ("boundary_digest", "replay_digest", "source")
        }
        builder.add("continuation/start", start)
        builder.step().says("lost").end_step().end("interrupted")


def fold(found: list[Event]) -> None:
    state = State()
    for event in found:
        state.apply(event)
    plan_closers(state)


def tell(found: list[Event]) -> None:
    history = History()
    for event in found:
        history.apply(event)
    history.messages()


def lines(make: Callable[[Builder, int], None], use: Callable[[list[Event]], None], count: int) -> int:
    """How many lines of Python run while ``use`` has the journal of that size."""
    builder = Builder()
    make(builder, count)
    found = events(builder)
    for event in found:
        event.verified = event.data.get("kind") != "doubted"
    ran = 0

    def trace(frame: FrameType, what: str, value: Any) -> Any:
        nonlocal ran
        ran += what == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        use(found)
    finally:
        sys.settrace(before)
    return ran


@pytest.mark.parametrize("use", [fold, tell])
@pytest.mark.parametrize(
    "make",
    [
        results_of_another_step,
        results_behind_their_step,
        steps_behind_open_calls,
        open_turns_before_doubted_lines,
        interactions_of_many_turns,
        pauses_beside_interactions,
        claims_on_a_long_turn,
        outcomes_that_are_told,
        continuations_of_continuations,
    ],
)
def test_four_times_the_events_are_four_times_the_work(
    make: Callable[[Builder, int], None], use: Callable[[list[Event]], None]
) -> None:
    assert lines(make, use, _MANY) < 5 * lines(make, use, _FEW)
