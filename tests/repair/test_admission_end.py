"""An admitted turn that never began is ended in one batch, each event of which a writer takes."""

from typing import Any

import pytest

from maka.journal.codec import check_shape
from maka.journal.events import Draft, Event
from maka.journal.state import State
from maka.repair.closers import admission_end, plan_closers
from support.builder import Builder
from support.folds import fold

TEXT = [{"kind": "text", "text": "do it"}]
ABORTED = {"kind": "aborted", "source": "stop_button"}
FAILED = {"kind": "failed", "failure_class": "start_failed", "message": "no backend"}
STOP = Draft("turn/stop_requested", {"stop_id": "s", "turn_id": "tA", "source": "stop_button", "mode": "immediate"})
BATCH = ["turn/start", "user/message", "turn/end", "run/settled"]


def admitted(kind: str = "root", **more: Any) -> Builder:
    builder = Builder().plain_turn()
    data = {"turn_id": "tA", "run_id": "rA", "message_id": "mA", "previous_root_turn_id": "t1", **more}
    data |= {"execution": {"kind": kind}, "input": {"content": TEXT}, "input_digest": "0" * 64}
    builder.add("turn/admitted", data)
    return builder


def taken(state: State, drafts: list[Draft], seq: int) -> State:
    """The state behind a batch, each event of which is checked as a writer checks it."""
    for number, draft in enumerate(drafts, seq):
        check_shape(draft)
        state.check(draft)
        state.apply(Event(number, state.last_ts, draft.type, draft.data, ""))
    return state


@pytest.mark.parametrize("reason", [ABORTED, FAILED])
def test_a_batch_that_a_writer_takes_behind_the_stop(reason: dict[str, Any]) -> None:
    builder = admitted(options={"max_steps": 3})
    state = fold(builder)
    drafts = admission_end(state, "tA", reason)
    assert [draft.type for draft in drafts] == BATCH
    start, message, end, settled = (draft.data for draft in drafts)
    assert (start["turn"], start["run"]["max_steps"], start["run"]["created_at"]) == (2, 3, builder.ts)
    assert (message["message_id"], message["content"], message["source"]) == ("mA", TEXT, {"kind": "user"})
    assert end == {"turn_id": "tA", "run_id": "rA", "reason": reason, "synthesized": True}
    assert settled == {"run_id": "rA"}
    state = taken(state, [STOP, *drafts], builder.seq)
    assert state.problems == []
    assert plan_closers(state).drafts == []
    assert plan_closers(state).findings == []
    row = state.turn_row("tA")
    assert row is not None
    assert (row["status"], row["reason"]) == (reason["kind"], reason)
    assert admission_end(state, "tA", reason) == []


def test_a_run_that_was_created_for_it_is_used() -> None:
    builder = admitted()
    run = builder.run("rA", "tA", root={"kind": "goal"})
    builder.add("run/created", {"run": run})
    state = fold(builder)
    drafts = admission_end(state, "tA", ABORTED)
    assert drafts[0].data["run"] == run
    assert plan_closers(taken(state, drafts, builder.seq)).drafts == []


def test_a_child_that_has_no_message_of_its_own_gets_none() -> None:
    state = fold(builder := admitted("linked_child_provider_retry"))
    drafts = admission_end(state, "tA", ABORTED)
    assert [draft.type for draft in drafts] == ["turn/start", "turn/end", "run/settled"]
    assert plan_closers(taken(state, drafts, builder.seq)).drafts == []


def test_nothing_is_ended_that_does_not_wait() -> None:
    builder = admitted()
    assert admission_end(fold(builder), "t1", ABORTED) == []
    assert admission_end(fold(builder), "nobody", ABORTED) == []
    start = {"turn_id": "tA", "run_id": "rA", "invocation_id": "i", "turn": 2}
    builder.add("turn/start", {**start, "run": builder.run("rA", "tA")})
    assert admission_end(fold(builder), "tA", ABORTED) == []
    builder.add("step/start", {"turn_id": "tA", "run_id": "rA", "step": 1})
    lost = fold(builder, lost=[builder.seq - 2])
    assert lost.admissions.open != {}
    assert admission_end(lost, "tA", ABORTED) == [], "it has begun, and its opening was lost"
