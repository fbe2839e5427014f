"""Plans by a program: proposed, approved, completed, cancelled; said again; refused; what a recovery makes of them."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import maka
from maka.journal.errors import InvalidEvent, JournalLocked, JournalWriteError, SessionNotFound
from maka.journal.events import Draft, Event
from maka.journal.state import State
from maka.runtime.backends.scripted import Emit, Faults, Never
from maka.runtime.errors import KernelClosed, PlanRefused
from maka.runtime.journals import OpenSession
from maka.runtime.plans import SessionPlans, interrupted
from maka.runtime.sessions import SessionManager
from support.builder import Builder, digest
from support.folds import fold
from support.managed import data_of, files_of, go, managing, playing, told, types_of, until

STEP = {"id": "1", "title": "look", "description": "look twice"}
OTHER = {"id": "2", "title": "leap", "description": ""}

Case = Callable[[SessionPlans], Coroutine[Any, Any, None]]


def plans_of(manager: SessionManager, *ids: str) -> SessionPlans:
    """``ids``: those that are fresh, in their order."""
    fresh = iter(ids)
    return SessionPlans(append=manager.kernel.append, read=manager.read, new_id=lambda: next(fresh))


def playing_out(root: Path, *cases: Case, ids: Sequence[str] = ()) -> None:
    """The cases one after the other on session ``s``, each in a manager of its own: a restart lies between them."""

    async def main() -> None:
        left = list(ids) or [f"id-{number}" for number in range(20)]
        for number, case in enumerate(cases):
            async with managing(root, playing()) as manager:
                if not number:
                    await manager.create(session_id="s")
                fresh = SessionPlans(append=manager.kernel.append, read=manager.read, new_id=lambda: left.pop(0))
                await case(fresh)

    go(main())


@contextmanager
def refused(code: str, match: str) -> Iterator[None]:
    with pytest.raises(PlanRefused, match=match) as info:
        yield
    assert info.value.code == code


# ---------------------------------------------------------------- what becomes of a plan


def test_a_plan_is_proposed_approved_and_completed(tmp_path: Path) -> None:
    async def case(plans: SessionPlans) -> None:
        row = {"proposal_id": "P", "revision": 1, "title": "work", "status": "proposed", "execution": None}
        row |= {"turn_id": "T", "steps": [STEP, OTHER]}
        assert await plans.propose("s", title="work", steps=(STEP, OTHER)) == row
        assert await plans.list("s") == [row]
        row |= {"status": "approved", "execution": {"execution_id": "E", "status": "active"}}
        assert await plans.approve("s", "P", expected_revision=1) == row
        assert await plans.list("s") == [row]
        row |= {"execution": {"execution_id": "E", "status": "completed", "reason": "all done"}}
        assert await plans.complete("s", reason="all done") == row
        assert await plans.list("s") == [row]

    playing_out(tmp_path, case, ids=("P", "T", "E"))
    assert types_of(tmp_path, "s")[1:] == ["plan/proposed", "plan/approved", "plan/execution"]
    assert data_of(tmp_path, "s", "plan/proposed") == [
        {"proposal_id": "P", "revision": 1, "turn_id": "T", "title": "work", "steps": [STEP, OTHER]}
    ]
    assert data_of(tmp_path, "s", "plan/approved") == [{"proposal_id": "P", "revision": 1, "execution_id": "E"}]
    assert data_of(tmp_path, "s", "plan/execution") == [
        {"execution_id": "E", "status": "completed", "reason": "all done"}
    ]
    assert maka.inspect(tmp_path / "sessions" / "s").to_json()["plans"][0]["steps"] == [STEP, OTHER]


def test_a_revision_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    async def case(plans: SessionPlans) -> None:
        first = await plans.propose("s", title="work", steps=[STEP], turn_id="here")
        second = await plans.propose("s", title="better", steps=[OTHER], proposal_id=first["proposal_id"])
        assert (first["revision"], second["revision"], first["turn_id"]) == (1, 2, "here")
        assert second["proposal_id"] == first["proposal_id"]
        assert await plans.list("s") == [second]
        with refused("revision_conflict", "at revision 2"):
            await plans.approve("s", first["proposal_id"], expected_revision=1)
        with refused("revision_conflict", "at revision 2"):
            await plans.approve("s", first["proposal_id"], expected_revision=3)
        await plans.approve("s", first["proposal_id"], expected_revision=2)

    playing_out(tmp_path, case)


def test_what_was_approved_is_proposed_again_to_be_executed_again(tmp_path: Path) -> None:
    async def case(plans: SessionPlans) -> None:
        plan = (await plans.propose("s", title="work", steps=[]))["proposal_id"]
        await plans.approve("s", plan, expected_revision=1)
        with refused("plan_approved", "was approved before"):
            await plans.approve("s", plan, expected_revision=1)
        again = await plans.propose("s", title="work", steps=[], proposal_id=plan)
        assert again["revision"] == 2
        with refused("plan_active", "one at a time"):
            await plans.approve("s", plan, expected_revision=2)
        await plans.cancel("s")
        assert (await plans.approve("s", plan, expected_revision=2))["execution"]["status"] == "active"
        assert [(row["revision"], row["execution"]["status"]) for row in await plans.list("s")] == [
            (1, "cancelled"),
            (2, "active"),
        ]

    playing_out(tmp_path, case)


def test_what_there_is_not(tmp_path: Path) -> None:
    async def case(plans: SessionPlans) -> None:
        with refused("plan_not_active", "session s executes no plan"):
            await plans.complete("s")
        with refused("plan_unknown", "session s has no plan nowhere"):
            await plans.propose("s", title="work", steps=[], proposal_id="nowhere")
        with refused("plan_unknown", "session s has no plan nowhere"):
            await plans.approve("s", "nowhere", expected_revision=1)
        with refused("plan_unknown", "session s has no execution nowhere"):
            await plans.cancel("s", execution_id="nowhere")
        with pytest.raises(SessionNotFound):
            await plans.list("other")
        with pytest.raises(SessionNotFound):
            await plans.propose("other", title="work", steps=[])

    playing_out(tmp_path, case)
    assert types_of(tmp_path, "s") == ["session/header"]


def test_what_is_returned_is_the_callers_own(tmp_path: Path) -> None:
    async def case(plans: SessionPlans) -> None:
        given = dict(STEP)
        row = await plans.propose("s", title="work", steps=[given], request_id="r")
        row["steps"][0]["title"] = given["title"] = "spoilt"
        again = await plans.propose("s", title="work", steps=[STEP], request_id="r")
        assert again["steps"] == [STEP]
        again["steps"].clear()
        assert (await plans.approve("s", row["proposal_id"], expected_revision=1))["steps"] == [STEP]

    playing_out(tmp_path, case)


# ---------------------------------------------------------------- said again


def test_a_request_that_is_made_again_is_answered_the_same_after_a_restart_too(tmp_path: Path) -> None:
    answers: list[list[dict[str, Any]]] = []

    async def case(plans: SessionPlans) -> None:
        for _ in range(2):
            proposed = await plans.propose("s", title="grüße \ud800", steps=[STEP], request_id="one")
            revised = await plans.propose(
                "s", title="v2", steps=[STEP], proposal_id=proposed["proposal_id"], turn_id="t", request_id="two"
            )
            approved = await plans.approve("s", revised["proposal_id"], expected_revision=2, request_id="three")
            answers.append([proposed, approved])

    playing_out(tmp_path, case, case)
    assert len(answers) == 4
    first = answers[0]
    assert all(answer == first for answer in answers)
    assert (first[0]["revision"], first[0]["status"], first[0]["title"]) == (1, "proposed", "grüße \ufffd")
    assert (first[1]["revision"], first[1]["execution"]["status"]) == (2, "active")
    assert types_of(tmp_path, "s")[1:] == ["plan/proposed", "plan/proposed", "plan/approved"]


def test_a_request_is_answered_with_how_its_plan_stands(tmp_path: Path) -> None:
    async def case(plans: SessionPlans) -> None:
        plan = (await plans.propose("s", title="work", steps=[], request_id="one"))["proposal_id"]
        await plans.approve("s", plan, expected_revision=1, request_id="two")
        await plans.propose("s", title="v2", steps=[], proposal_id=plan)
        over = await plans.cancel("s")
        assert await plans.propose("s", title="work", steps=[], request_id="one") == over
        assert await plans.approve("s", plan, expected_revision=1, request_id="two") == over

    playing_out(tmp_path, case)


def test_a_request_that_asks_for_something_else_is_refused(tmp_path: Path) -> None:
    async def first(plans: SessionPlans) -> None:
        await plans.propose("s", title="work", steps=[STEP], turn_id="t", request_id="new")
        await plans.propose("s", title="v2", steps=[STEP], proposal_id="P", turn_id="t", request_id="next")
        await plans.propose("s", title="other", steps=[], turn_id="t", request_id="other")
        await plans.approve("s", "P", expected_revision=2, execution_id="E", request_id="go")

    async def again(plans: SessionPlans) -> None:
        new: dict[str, Any] = {"title": "work", "steps": [STEP], "request_id": "new"}
        following: dict[str, Any] = {"title": "v2", "steps": [STEP], "proposal_id": "P", "request_id": "next"}
        assert (await plans.propose("s", **new, turn_id="t"))["revision"] == 1
        assert (await plans.propose("s", **following))["revision"] == 2
        changes: list[tuple[dict[str, Any], dict[str, Any]]] = [
            (new, {"title": "Work"}),
            (new, {"steps": []}),
            (new, {"steps": [{**STEP, "title": "see"}]}),
            (new, {"turn_id": "u"}),
            (new, {"proposal_id": "P"}),
            (new, {"request_id": "go"}),
            (following, {"proposal_id": None}),
            (following, {"proposal_id": "Q"}),
        ]
        for given, change in changes:
            with refused("request_conflict", "asked for something else"):
                await plans.propose("s", **{**given, **change})
        approval: dict[str, Any] = {"expected_revision": 2, "execution_id": "E", "request_id": "go"}
        row = await plans.approve("s", "P", **approval)
        assert row == await plans.approve("s", "P", **{**approval, "execution_id": None})
        for change in ({"expected_revision": 1}, {"execution_id": "F"}, {"request_id": "new"}):
            with refused("request_conflict", "asked for something else"):
                await plans.approve("s", "P", **{**approval, **change})
        with refused("request_conflict", "asked for something else"):
            await plans.approve("s", "Q", **approval)

    playing_out(tmp_path, first, again, ids=("P", "Q"))
    assert len(types_of(tmp_path, "s")) == 5


def test_an_execution_is_the_callers_request_by_its_id(tmp_path: Path) -> None:
    async def case(plans: SessionPlans) -> None:
        plan = (await plans.propose("s", title="work", steps=[]))["proposal_id"]
        row = await plans.approve("s", plan, expected_revision=1, execution_id="E")
        assert row["execution"]["execution_id"] == "E"
        assert await plans.approve("s", plan, expected_revision=1, execution_id="E") == row
        await plans.propose("s", title="v2", steps=[], proposal_id=plan)
        assert await plans.approve("s", plan, expected_revision=1, execution_id="E") == row
        with refused("request_conflict", f"execution E is that of revision 1 of plan {plan}"):
            await plans.approve("s", plan, expected_revision=2, execution_id="E")

    playing_out(tmp_path, case)
    assert len(data_of(tmp_path, "s", "plan/approved")) == 1


@pytest.mark.parametrize(("done", "other"), [("complete", "cancel"), ("cancel", "complete")])
def test_an_execution_ends_once(done: str, other: str, tmp_path: Path) -> None:
    async def case(plans: SessionPlans) -> None:
        plan = (await plans.propose("s", title="work", steps=[]))["proposal_id"]
        await plans.approve("s", plan, expected_revision=1, execution_id="E")
        row = await getattr(plans, done)("s", execution_id="E", reason="first")
        assert row == await getattr(plans, done)("s")
        assert row == await getattr(plans, done)("s", execution_id="E", reason="second")
        for given in ({}, {"execution_id": "E"}):
            with refused("plan_not_active", f"execution E of plan {plan} is {row['execution']['status']}"):
                await getattr(plans, other)("s", **given)
        await plans.propose("s", title="v2", steps=[], proposal_id=plan)
        await plans.approve("s", plan, expected_revision=2, execution_id="F")
        assert row == await getattr(plans, done)("s", execution_id="E")
        assert (await getattr(plans, other)("s"))["execution"]["execution_id"] == "F"

    playing_out(tmp_path, case)
    assert [data["execution_id"] for data in data_of(tmp_path, "s", "plan/execution")] == ["E", "F"]


def test_one_request_by_many_at_once_is_one_plan(tmp_path: Path) -> None:
    async def case(plans: SessionPlans) -> None:
        def asked() -> Coroutine[Any, Any, dict[str, Any]]:
            return plans.propose("s", title="work", steps=[STEP], request_id="r")

        rows = await asyncio.gather(*(asked() for _ in range(8)))
        assert all(row == rows[0] for row in rows)
        plan = rows[0]["proposal_id"]
        approved = await asyncio.gather(
            *(plans.approve("s", plan, expected_revision=1) for _ in range(4)), return_exceptions=True
        )
        assert sorted(getattr(one, "code", "") for one in approved) == ["", *["plan_approved"] * 3]

    playing_out(tmp_path, case)
    assert types_of(tmp_path, "s")[1:] == ["plan/proposed", "plan/approved"]


def test_what_was_done_before_is_told_once_it_is_on_the_disk() -> None:
    """Another caller did it just now, and its event does not get there."""
    builder = Builder()
    proposed = {"proposal_id": "p", "revision": 1, "turn_id": "t", "title": "work", "steps": []}
    builder.add("plan/proposed", {**proposed, "request_id": "r"})
    tried: list[str] = []

    async def lost() -> None:
        raise JournalWriteError("no space left", path=None)

    async def append(session_id: str, decide: Callable[[Any], Sequence[Draft]], /) -> list[Event]:
        tried.append(session_id)
        assert decide(SimpleNamespace(journal=SimpleNamespace(state=fold(builder), aflush=lost))) == []
        return []

    async def read(session_id: str, /) -> Any:
        raise AssertionError("nobody reads")

    plans = SessionPlans(append=append, read=read, new_id=lambda: "new")
    with pytest.raises(JournalWriteError):
        go(plans.propose("s1", title="work", steps=[], request_id="r"))
    assert tried == ["s1"]


# ---------------------------------------------------------------- values that cannot be right


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"title": 5}, "title"),
        ({"title": None}, "title"),
        ({"steps": "look"}, "steps"),
        ({"steps": None}, "steps"),
        ({"steps": {"id": "1"}}, "steps"),
        ({"steps": [STEP, "look"]}, "steps[1]"),
        ({"steps": [{"id": "1", "title": "x"}]}, "steps[0]"),
        ({"steps": [{**STEP, "more": "x"}]}, "steps[0]"),
        ({"steps": [{**STEP, "description": None}]}, "steps[0].description"),
        ({"steps": [{**STEP, "id": ""}]}, "steps[0].id"),
        ({"steps": [{**STEP, "id": "\ud800"}]}, "steps[0].id"),
        ({"steps": [STEP, OTHER, STEP]}, "steps[2].id"),
        ({"proposal_id": 5}, "proposal_id"),
        ({"proposal_id": ""}, "proposal_id"),
        ({"turn_id": ""}, "turn_id"),
        ({"request_id": "x" * 5_000}, "request_id"),
    ],
)
def test_what_can_be_no_proposal_says_where(change: dict[str, Any], key: str, tmp_path: Path) -> None:
    async def case(plans: SessionPlans) -> None:
        given: dict[str, Any] = {"title": "work", "steps": [STEP], **change}
        with pytest.raises(InvalidEvent) as info:
            await plans.propose("s", **given)
        assert (info.value.type, info.value.key) == ("plan/proposed", key)
        assert str(info.value).startswith(f"plan/proposed: {key} ")

    playing_out(tmp_path, case)
    assert types_of(tmp_path, "s") == ["session/header"]


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"proposal_id": None}, "proposal_id"),
        ({"expected_revision": 0}, "expected_revision"),
        ({"expected_revision": True}, "expected_revision"),
        ({"expected_revision": "1"}, "expected_revision"),
        ({"execution_id": ""}, "execution_id"),
        ({"request_id": 7}, "request_id"),
    ],
)
def test_what_can_be_no_approval_says_where(change: dict[str, Any], key: str, tmp_path: Path) -> None:
    async def case(plans: SessionPlans) -> None:
        row = await plans.propose("s", title="work", steps=[])
        given: dict[str, Any] = {"proposal_id": row["proposal_id"], "expected_revision": 1, **change}
        with pytest.raises(InvalidEvent) as info:
            await plans.approve("s", **given)
        assert (info.value.type, info.value.key) == ("plan/approved", key)

    playing_out(tmp_path, case)
    assert data_of(tmp_path, "s", "plan/approved") == []


@pytest.mark.parametrize("given", [{"reason": 5}, {"execution_id": ""}])
@pytest.mark.parametrize("do", ["complete", "cancel"])
def test_what_can_be_no_end_says_where(do: str, given: dict[str, Any], tmp_path: Path) -> None:
    async def case(plans: SessionPlans) -> None:
        row = await plans.propose("s", title="work", steps=[])
        await plans.approve("s", row["proposal_id"], expected_revision=1)
        with pytest.raises(InvalidEvent) as info:
            await getattr(plans, do)("s", **given)
        assert (info.value.type, info.value.key) == ("plan/execution", *given)

    playing_out(tmp_path, case)


# ---------------------------------------------------------------- beside others


def test_plans_are_listed_whoever_has_the_session_open(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing()) as one, managing(tmp_path, playing()) as other:
            await one.create(session_id="s")
            row = await plans_of(one, "P", "T").propose("s", title="work", steps=[])
            before = files_of(tmp_path)
            assert await plans_of(other).list("s") == [row]
            assert other.kernel.opened("s") is None
            with pytest.raises(JournalLocked):
                await plans_of(other).approve("s", "P", expected_revision=1)
            assert files_of(tmp_path) == before

    go(main())


def test_a_listing_opens_nothing(tmp_path: Path) -> None:
    async def case(plans: SessionPlans) -> None:
        await plans.propose("s", title="work", steps=[])

    playing_out(tmp_path, case)

    async def main() -> None:
        async with managing(tmp_path, playing()) as manager:
            assert len(await plans_of(manager).list("s")) == 1
            assert not manager.status("s").open

    go(main())


def submitted(revision: int, **more: Any) -> Emit:
    return Emit("plan_submitted", {"proposal_id": "P", "revision": revision, "title": "mine", "steps": [STEP], **more})


def test_a_backend_proposes_in_its_turn(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing(["a", submitted(1, request_id="r")])) as manager:
            await manager.create(session_id="s")
            events = await told(manager.send("s", "plan it", turn_id="turn"))
            [event] = [event for event in events if event.kind == "plan_submitted"]
            assert (event.data["proposal_id"], event.data["revision"]) == ("P", 1)
            plans = plans_of(manager, "E")
            [row] = await plans.list("s")
            assert (row["turn_id"], row["steps"], row["status"]) == ("turn", [STEP], "proposed")
            assert await plans.propose("s", title="mine", steps=[STEP], request_id="r") == row
            approved = await plans.approve("s", "P", expected_revision=1)
            assert approved["execution"] == {"execution_id": "E", "status": "active"}

    go(main())


@pytest.mark.parametrize(
    "stale",
    [
        submitted(1),
        submitted(2),
        submitted(0),
        submitted(3, steps=[{"id": "1"}]),
        submitted(3, steps=["look"]),
        submitted(3, request_id="taken"),
        submitted(3, request_id=5),
    ],
)
def test_what_a_backend_proposes_is_held_to_the_rules(stale: Emit, tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing(["a", submitted(1)], ["b", stale])) as manager:
            await manager.create(session_id="s")
            await told(manager.send("s", "plan it"))
            plans = plans_of(manager, "T")
            row = await plans.propose("s", title="better", steps=[], proposal_id="P", request_id="taken")
            assert row["revision"] == 2
            await told(manager.send("s", "plan it again"))
            assert await plans.list("s") == [row]

    go(main())
    ends = [data["reason"] for data in data_of(tmp_path, "s", "turn/end")]
    assert [(reason["kind"], reason.get("failure_class")) for reason in ends] == [
        ("completed", None),
        ("failed", "backend_invalid_event"),
    ]


def test_the_end_of_a_turn_says_nothing_about_plans(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing(["a"], [Emit("nonsense")])) as manager:
            await manager.create(session_id="s")
            plans = plans_of(manager, "P", "T", "E")
            await plans.propose("s", title="work", steps=[])
            row = await plans.approve("s", "P", expected_revision=1)
            await told(manager.send("s", "go"))
            await told(manager.send("s", "fail"))
            assert await plans.list("s") == [row]

    go(main())
    assert [data["reason"]["kind"] for data in data_of(tmp_path, "s", "turn/end")] == ["completed", "failed"]
    assert data_of(tmp_path, "s", "plan/execution") == []


# ---------------------------------------------------------------- what a recovery makes of them


def executing() -> Builder:
    builder = Builder()
    proposed = {"proposal_id": "p", "revision": 1, "turn_id": "t", "title": "work", "steps": [STEP]}
    builder.add("plan/proposed", proposed)
    builder.add("plan/approved", {"proposal_id": "p", "revision": 1, "execution_id": "e"})
    return builder


def paused() -> Builder:
    builder = executing().start()
    hash_ = "sha256:" + digest("")
    keys = ("base_system_prompt_hash", "tool_catalog_hash", "tool_availability_hash", "base_provider_options_hash")
    composition = {"schema": 1, "composer_id": "test", "composer_revision": "1", "source_revisions": []}
    composition |= {**dict.fromkeys(keys, hash_), "tool_names": [], "context_window": None}
    builder.add("run/composition", {"run_id": "r1", "composition": composition})
    builder.step().says("half").end_step()
    pause = {"protocol": "runtime_handoff_pause_v1", "handoff_id": "h", "host_epoch": "e", **builder.ids}
    pause |= {"root_run_id": "r1", "successor_run_id": "r9", "successor_invocation_id": "i9", "claim_id": "c9"}
    builder.add("handoff/pause", {**pause, "remaining_steps": 2})
    return builder


def claimed(builder: Builder) -> Builder:
    """A claim to go on from the newest run, whose own run has not been started."""
    builder.end("interrupted")
    seq, sum_ = builder.seq - 1, builder.prev
    ids = {**builder.ids, "invocation_id": f"i-{builder.ids['run_id']}"}
    source = {**ids, "high_water": seq}
    segment = {"session_id": builder.session_id, **ids, "first_seq": 3, "last_seq": seq, "sum": sum_}
    target = builder.run("r7", "t7", continuation={"claim_id": "c7", "boundary_digest": sum_, "source": source})
    claim = {"claim_id": "c7", "purpose": "resume", "turn": builder.turn + 1, "boundary": {"segments": [segment]}}
    claim |= {"boundary_digest": sum_, "replay_digest": "0" * 64, "replay_through_seq": seq, "source": source}
    builder.add("continuation/claim", {**claim, "target_run": target, "claimed_at": builder.ts})
    return builder


INTERRUPTED = [Draft("plan/execution", {"execution_id": "e", "status": "interrupted", "reason": "runtime_recovery"})]


@pytest.mark.parametrize(
    "builder",
    [
        executing(),
        executing().plain_turn(),
        executing().start().end("interrupted"),
        executing().start().end(settle=False),
    ],
    ids=["no turn", "a turn that is over", "a turn that was cut off", "a run that is not settled"],
)
def test_an_execution_that_nobody_carries_out_is_interrupted(builder: Builder) -> None:
    state = fold(builder)
    drafts = interrupted(state)
    assert drafts == INTERRUPTED
    state.check(drafts[0])
    builder.add(drafts[0].type, drafts[0].data)
    assert interrupted(fold(builder)) == []
    assert fold(builder).plan_rows()[0]["execution"] == {**drafts[0].data}


@pytest.mark.parametrize(
    "builder",
    [executing().start(), executing().start().step(), paused(), claimed(executing().start())],
    ids=["an open turn", "an open step", "a pending handoff", "a claim"],
)
def test_an_execution_that_may_go_on_is_left_alone(builder: Builder) -> None:
    assert fold(builder).plans.running() is not None
    assert interrupted(fold(builder)) == []


def test_where_nothing_is_executed_nothing_is_interrupted() -> None:
    assert interrupted(State()) == []
    builder = executing()
    builder.add("plan/execution", {"execution_id": "e", "status": "completed"})
    assert interrupted(fold(builder)) == []
    builder = Builder()
    proposed = {"proposal_id": "p", "revision": 1, "turn_id": "t", "title": "work", "steps": []}
    builder.add("plan/proposed", proposed)
    assert interrupted(fold(builder)) == []


def test_an_execution_that_was_interrupted_is_over(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing()) as manager:
            await manager.create(session_id="s")
            plans = plans_of(manager, "P", "T", "E", "U", "F")
            await plans.propose("s", title="work", steps=[])
            await plans.approve("s", "P", expected_revision=1)
            await manager.kernel.append("s", lambda session: interrupted(session.journal.state))
            with refused("plan_not_active", "is interrupted, and only one that is active can be completed"):
                await plans.complete("s")
            await plans.propose("s", title="work", steps=[], proposal_id="P")
            assert (await plans.approve("s", "P", expected_revision=2))["execution"]["status"] == "active"

    go(main())


def test_a_recovery_interrupts_what_a_process_left_behind(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing(["a"])) as manager:
            await manager.create(session_id="s")
            await manager.create(session_id="other")
            await told(manager.send("s", "go"))
            row = await manager.plans.propose("s", title="work", steps=[STEP])
            row = await manager.plans.approve("s", row["proposal_id"], expected_revision=1)
        async with managing(tmp_path, playing()) as manager:
            await manager.recover_interrupted_sessions()
            row["execution"] |= {"status": "interrupted", "reason": "runtime_recovery"}
            assert await manager.plans.list("s") == [row]
            before = files_of(tmp_path)
            await manager.recover_interrupted_sessions()
            assert files_of(tmp_path) == before
        with pytest.raises(KernelClosed):
            await manager.plans.propose("s", title="late", steps=[])

    go(main())
    assert len(data_of(tmp_path, "s", "plan/execution")) == 1


def test_a_recovery_leaves_to_a_turn_that_is_about_to_begin_what_it_may_carry_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of such a turn nothing is in the journal yet."""

    async def main() -> None:
        async with managing(tmp_path, playing(["a"], ["b"], faults=Faults(build_delay=0.05))) as manager:
            await manager.create(session_id="s")
            row = await manager.plans.propose("s", title="work", steps=[STEP])
            row = await manager.plans.approve("s", row["proposal_id"], expected_revision=1)
            append, asked, sent = manager.kernel.append, asyncio.Event(), asyncio.Event()

            async def later(session_id: str, decide: Callable[[OpenSession], Sequence[Draft]]) -> list[Event]:
                asked.set()
                await sent.wait()
                return await append(session_id, decide)

            monkeypatch.setattr(manager.kernel, "append", later)
            recovering = asyncio.ensure_future(manager.recover("s"))
            await asked.wait()
            reading = asyncio.ensure_future(told(manager.send("s", "go")))
            while not manager.status("s").turns:
                await asyncio.sleep(0)
            sent.set()
            assert (await recovering).interrupted is None
            assert not data_of(tmp_path, "s", "turn/start")
            await reading
            assert await manager.plans.list("s") == [row]

    go(main())


def test_a_recovery_interrupts_what_nobody_carries_out_here(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing(["a", Never()])) as manager:
            await manager.create(session_id="s")
            row = await manager.plans.propose("s", title="work", steps=[STEP])
            row = await manager.plans.approve("s", row["proposal_id"], expected_revision=1)
            stream = manager.send("s", "go")
            await until(stream, "text_delta")
            await manager.recover("s")
            assert await manager.plans.list("s") == [row]
            await manager.stop("s")
            await told(stream)
            assert await manager.plans.list("s") == [row]
            assert manager.status("s").open
            await manager.recover("s")
            assert (await manager.plans.list("s"))[0]["execution"]["status"] == "interrupted"

    go(main())
