"""The events that a continuation writes, and those that end one of which nothing more is known."""

from typing import Any

import attrs
import pytest

from maka.journal.codec import check_shape
from maka.journal.events import RunHeader
from maka.journal.state import State
from maka.repair.closers import plan_closers
from maka.runtime.continuation import drafts
from maka.runtime.errors import SettleRefused
from support.folds import events
from support.plans import WORKSPACE, Session


def interrupted(**header: Any) -> Session:
    session = Session(**header)
    session.plain_turn()
    session.start("go").end("interrupted")
    return session


def started() -> Session:
    session = interrupted()
    session.resume()
    return session


def test_a_claim_holds_what_the_plan_says() -> None:
    session = interrupted(max_steps=5)
    planned = session.continuation()
    claim = drafts.claim(planned, session.facts, claimed_at=7)
    assert list(claim.data) == [
        "claim_id",
        "purpose",
        "turn",
        "previous_root_turn_id",
        "boundary",
        "boundary_digest",
        "replay_digest",
        "replay_through_seq",
        "source",
        "target_run",
        "claimed_at",
    ]
    assert (claim.data["turn"], claim.data["previous_root_turn_id"]) == (3, "t2")
    assert (claim.data["boundary"], claim.data["source"]) == (planned.boundary, planned.source)
    assert claim.data["claimed_at"] == 7
    check_shape(claim)


def test_the_run_is_what_an_ordinary_run_of_the_session_would_be() -> None:
    session = interrupted(max_steps=5, root={"kind": "goal"})
    session.add("session/updated", {"patch": {"connection": "c", "model": "another"}})
    planned = session.continuation()
    run = drafts.claim(planned, session.facts, claimed_at=7).data["target_run"]
    ordinary = session.conversation.run_header(
        run_id=planned.run_id,
        invocation_id=planned.invocation_id,
        turn_id=planned.turn_id,
        created_at=7,
        root={"kind": "goal"},
        max_steps=5,
        workspace_identity=WORKSPACE,  # type: ignore[arg-type]
    )
    boundary = {"claim_id": planned.claim_id, "boundary_digest": planned.boundary_digest, "source": planned.source}
    assert run == {**ordinary, "resumed_from_run_id": "r2", "continuation": boundary}
    order = [field.name for field in attrs.fields(RunHeader)]
    assert list(run) == sorted(run, key=order.index)


def test_run_and_start_follow_from_the_claim_as_written_and_as_folded() -> None:
    session = interrupted()
    claim = drafts.claim(session.continuation(), session.facts, claimed_at=7)
    session.append(claim)
    folded = session.state.continuations.claims["id-4"]
    assert drafts.created(claim) == drafts.created(folded)
    assert drafts.start(claim) == drafts.start(folded)
    assert drafts.start(claim).data["start_kind"] == "runtime_admission"
    session.append(drafts.created(claim), drafts.start(claim))
    assert not session.state.problems
    assert session.state.turns.open["id-3"].turn == 3


# ---------------------------------------------------------------- settling


def test_what_rests_at_its_start_is_settled_as_failed() -> None:
    session = started()
    assert drafts.unfinished(session.state) == "id-4"
    assert not plan_closers(session.state).drafts
    end, settled = drafts.settle(session.state, "id-4")
    assert (end.type, end.data["turn_id"], end.data["run_id"]) == ("turn/end", "id-3", "id-2")
    reason = end.data["reason"]
    assert (reason["kind"], reason["failure_class"]) == ("failed", "continuation_indeterminate")
    assert "not known" in reason["message"]
    assert (settled.type, settled.data) == ("run/settled", {"run_id": "id-2"})
    session.append(end, settled)
    assert not session.state.problems
    assert drafts.unfinished(session.state) is None
    assert not plan_closers(session.state).drafts
    assert session.continuation().source["run_id"] == "id-2"


def test_what_it_asked_a_person_is_closed_first() -> None:
    session = started()
    session.add("interaction/requested", {"interaction_id": "i", **session.ids, "kind": "question", "request": {}})
    planned = drafts.settle(session.state, "id-4")
    assert [draft.type for draft in planned] == ["interaction/resolved", "turn/end", "run/settled"]
    session.append(*planned)
    assert not session.state.interactions.pending


def test_one_that_was_asked_to_stop_is_left_to_a_repair() -> None:
    session = started()
    stop = {"stop_id": "s", "turn_id": session.ids["turn_id"], "source": "user", "mode": "immediate"}
    session.add("turn/stop_requested", stop)
    assert drafts.unfinished(session.state) is None
    with pytest.raises(SettleRefused, match="maka journal repair") as refused:
        drafts.settle(session.state, "id-4")
    assert refused.value.code == "claim_not_indeterminate"
    assert [draft.type for draft in plan_closers(session.state).drafts] == ["turn/end", "session/note", "run/settled"]


def test_a_start_whose_claim_was_lost_is_settled_too() -> None:
    """A repair leaves such a turn alone, so that nothing else could end it."""
    session, state = started(), State()
    claim_seq = next(event.seq for event in session.events if event.type == "continuation/claim")
    for event in events(session, lost=[claim_seq]):
        state.apply(event)
    assert drafts.unfinished(state) == "id-4"
    end, _settled = drafts.settle(state, "id-4")
    state.check(end)


def test_what_was_asked_to_stop_is_left_to_a_repair() -> None:
    session = started()
    stop = {"stop_id": "s", "turn_id": "id-3", "source": "user", "mode": "immediate"}
    session.add("turn/stop_requested", stop)
    assert drafts.unfinished(session.state) is None
    assert next(draft.type for draft in plan_closers(session.state).drafts) == "turn/end"


@pytest.mark.parametrize(
    ("upto", "said"),
    [("claim", "maka journal repair"), ("created", "maka journal repair"), ("ended", "nothing to settle")],
)
def test_a_claim_that_is_not_indeterminate(upto: str, said: str) -> None:
    session = interrupted()
    session.resume(upto="start" if upto == "ended" else upto)
    if upto == "ended":
        session.end("failed")
    assert drafts.unfinished(session.state) is None
    with pytest.raises(SettleRefused, match=said) as caught:
        drafts.settle(session.state, "id-4")
    assert caught.value.code == "claim_not_indeterminate"


def test_a_claim_that_has_a_step_is_a_repairs() -> None:
    session = started()
    session.step()
    with pytest.raises(SettleRefused, match="repair the session") as caught:
        drafts.settle(session.state, "id-4")
    assert caught.value.code == "claim_not_indeterminate"


@pytest.mark.parametrize(
    ("story", "said"), [(interrupted, "no claim of this session"), (started, "to be settled: id-4")]
)
def test_a_claim_that_nobody_made(story: Any, said: str) -> None:
    with pytest.raises(SettleRefused, match=said) as caught:
        drafts.settle(story().state, "who")
    assert caught.value.code == "claim_unknown"


def test_a_handoffs_claim_waits_for_its_successor() -> None:
    session = Session()
    session.start("long").step().says("half").end_step()
    session.pause()
    claim = drafts.claim(session.continuation("r1", purpose="handoff"), session.facts, claimed_at=1)
    session.append(claim)
    with pytest.raises(SettleRefused, match="waits for its successor"):
        drafts.settle(session.state, claim.data["claim_id"])
