"""Why a session does not go on, and why a plan that was kept does not, as whoever uses a manager meets it: real files.

Each case comes to its refusal the way a user would, and says with which codes exactly, in words that name the run or
the call. No refusal changes a byte of the journal.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from maka.journal.events import Draft
from maka.repair.apply import repair
from maka.repair.session import open_session
from maka.runtime.app import App
from maka.runtime.backends.loop import loop_backend
from maka.runtime.backends.scripted import Question, Tool
from maka.runtime.continuation import safety
from maka.runtime.continuation.codes import REASONS, STALE
from maka.runtime.continuation.plan import Continuation, ContinuationPlan
from maka.runtime.errors import ContinuationParked, ContinuationRevalidationError
from maka.runtime.scripted import Ask, Do, Fail, ScriptedModel
from maka.runtime.sessions import SessionManager
from maka.runtime.tools import LeftBehind, ToolOutput
from support.continued import FAILS, Eyes, Order, Points, Stage, cutting, inspected, looping, numbered
from support.managed import app_of, files_of, go, playing, told, until

# ---------------------------------------------------------------- a plan parks


@attrs.frozen
class Parked:
    """A plan, and what its words must name beside that."""

    plan: ContinuationPlan
    named: tuple[str, ...] = ()


_Parking = Callable[[Stage], Awaitable[Parked]]
PARKS: list[tuple[tuple[str, ...], _Parking]] = []


def parks(*codes: str) -> Callable[[_Parking], _Parking]:
    def noted(case: _Parking) -> _Parking:
        PARKS.append((codes, case))
        return case

    return noted


def named(given: Any) -> str:
    """A case by its name, and the first of its codes."""
    if isinstance(given, str):
        return given
    return str(given[0] if isinstance(given, tuple) else given.__name__)


@pytest.mark.parametrize(("codes", "case"), PARKS, ids=named)
def test_it_parks_and_says_what_to_do(codes: tuple[str, ...], case: _Parking, tmp_path: Path) -> None:
    async def main() -> None:
        parked = await case(Stage(tmp_path))
        plan = parked.plan
        assert (plan.disposition, plan.rejection_reasons, plan.continuation) == ("park", codes, None)
        for code in codes:
            words = [each.message for each in plan.diagnostics if each.code == code]
            assert words, f"nothing is said of {code}"
            assert all(said.endswith(".") and ". " in said for said in words), "what is so, and what to do"
        everything = "\n".join(map(str, plan.diagnostics))
        for name in parked.named:
            assert name in everything
        assert str(tmp_path / "root") not in everything
        with pytest.raises(ContinuationParked) as refused:
            async with SessionManager(tmp_path / "other", app=app_of(playing())) as manager:
                manager.resume_safe_boundary_continuation(plan)
        assert refused.value.rejection_reasons == codes

    go(main())


@parks("resume_feature_disabled")
async def the_app_continues_nothing(stage: Stage) -> Parked:
    async with stage.life(app_of(cutting(), safe_boundary_resume_enabled=False)) as manager:
        await stage.cut(manager)
        return Parked(await stage.planned(manager), ("s", "safe_boundary_resume_enabled"))


@parks("safety_observation_unavailable")
async def the_inspector_raises(stage: Stage) -> Parked:
    eyes = Eyes()
    async with stage.life(inspected(cutting(), eyes)) as manager:
        await stage.cut(manager)
        eyes.sees = OSError("the mount is gone")
        return Parked(await stage.planned(manager), ("the mount is gone",))


@parks("safety_observation_unavailable")
async def the_inspector_sees_nonsense(stage: Stage) -> Parked:
    eyes = Eyes()
    async with stage.life(inspected(cutting(), eyes)) as manager:
        await stage.cut(manager)
        eyes.sees = {"workspace_identity": "workspace-1", "available_tool_names": []}
        return Parked(await stage.planned(manager), ("background_operations_settled",))


@parks("safety_observation_unavailable")
async def the_inspector_hangs(stage: Stage) -> Parked:
    eyes = Eyes()
    async with stage.life(inspected(cutting(), eyes)) as manager:
        await stage.cut(manager)
        eyes.sees = asyncio.Event().wait
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(safety, "SECONDS", 0.05)
            return Parked(await stage.planned(manager), ("0.05 s",))


@parks("safety_observation_unavailable")
async def the_inspector_gives_what_no_journal_keeps(stage: Stage) -> Parked:
    """A workspace that is not observed keeps no turn from running."""
    eyes = Eyes()
    async with stage.life(inspected(cutting("Fine."), eyes)) as manager:
        run_id = await stage.cut(manager)
        eyes.sees = attrs.evolve(eyes.sees, workspace_identity=stage.work)
        assert (await told(manager.send("s", "How are you?")))[-1].kind == "complete"
        return Parked(await stage.planned(manager, source_run_id=run_id), ("workspace_identity", "Path"))


@parks("safety_observation_unavailable")
async def the_inspector_cancels_itself(stage: Stage) -> Parked:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    eyes = Eyes()
    async with stage.life(inspected(cutting(), eyes)) as manager:
        await stage.cut(manager)
        eyes.sees = cancelled
        return Parked(await stage.planned(manager), ("cancelled",))


@parks("source_run_unreadable")
async def there_is_no_such_run(stage: Stage) -> Parked:
    async with stage.life(cutting()) as manager:
        await stage.cut(manager)
        return Parked(await stage.planned(manager, source_run_id="nothing"), ("nothing",))


@parks("source_run_unreadable")
async def the_run_is_of_the_session_that_was_forked(stage: Stage) -> Parked:
    async with stage.life(cutting()) as manager:
        run_id = await stage.cut(manager)
        await manager.fork("s", new_session_id="fork")
        before = files_of(stage.root)
        plan = await manager.plan_safe_boundary_continuation("fork", source_run_id=run_id)
        assert files_of(stage.root) == before
        return Parked(plan, (run_id, "forked"))


@parks("source_run_unreadable")
async def the_run_was_only_reserved(stage: Stage) -> Parked:
    target = await killed_at("after_continuation_claim_committed", stage)
    async with stage.life() as manager:
        return Parked(await stage.planned(manager, source_run_id=target), (target, "reserved"))


@parks("resume_candidate_missing")
async def nothing_was_begun(stage: Stage) -> Parked:
    async with stage.life() as manager:
        await manager.create(session_id="s", cwd=stage.work)
        return Parked(await stage.planned(manager))


@parks("resume_candidate_missing")
async def the_session_has_gone_on(stage: Stage) -> Parked:
    async with stage.life(cutting("Fine.")) as manager:
        cut = await stage.cut(manager)
        stream = manager.send("s", "Never mind.")
        await told(stream)
        return Parked(await stage.planned(manager), (cut, stream.run_id, "--run"))


@parks("workspace_identity_missing")
async def the_workspace_was_not_seen_when_it_began(stage: Stage) -> Parked:
    eyes = Eyes()
    seen, eyes.sees = eyes.sees, OSError("the mount is gone")
    async with stage.life(inspected(cutting(), eyes)) as manager:
        run_id = await stage.cut(manager)
        eyes.sees = seen
        return Parked(await stage.planned(manager), (run_id,))


@parks("runtime_identity_mismatch")
async def the_run_waits_for_no_successor(stage: Stage) -> Parked:
    async with stage.life(cutting()) as manager:
        run_id = await stage.cut(manager)
        return Parked(await stage.planned(manager, source_run_id=run_id, purpose="handoff"), (run_id,))


@parks("runtime_identity_mismatch")
async def the_run_was_handed_over(stage: Stage) -> Parked:
    async with stage.life(cutting()) as manager:
        run_id = await stage.cut(manager)
    stage.hand_over()
    async with stage.life() as manager:
        assert (await stage.planned(manager)).rejection_reasons == ("runtime_identity_mismatch",)
        return Parked(await stage.planned(manager, source_run_id=run_id), (run_id,))


# ---- a lineage that somebody has touched


async def gone_on(stage: Stage) -> tuple[str, str]:
    """A run that failed, and its continuation, which has failed too."""
    async with stage.life(cutting(FAILS)) as manager:
        source = await stage.cut(manager)
        stream = manager.resume_safe_boundary_continuation(await stage.continuation(manager))
        await told(stream)
    return source, stream.run_id


@parks("runtime_lineage_missing")
async def a_run_of_the_lineage_is_not_there(stage: Stage) -> Parked:
    _, target = await gone_on(stage)

    def other(events: list[dict[str, Any]]) -> None:
        [claim] = [event["data"] for event in events if event["type"] == "continuation/claim"]
        claim["boundary"]["segments"][0]["run_id"] = "another"

    stage.rewrite(other)
    async with stage.life() as manager:
        return Parked(await stage.planned(manager, source_run_id=target), ("another",))


@parks("source_prefix_digest_mismatch")
async def what_was_continued_has_other_words_now(stage: Stage) -> Parked:
    source, target = await gone_on(stage)

    def other(events: list[dict[str, Any]]) -> None:
        message = next(event["data"] for event in events if event["type"] == "user/message")
        message["content"] = [{"kind": "text", "text": "Order tables."}]

    stage.rewrite(other)
    async with stage.life() as manager:
        return Parked(await stage.planned(manager, source_run_id=target), (source,))


@parks("runtime_lineage_claim_mismatch")
async def the_run_was_not_created_as_it_was_claimed(stage: Stage) -> Parked:
    _, target = await gone_on(stage)

    def other(events: list[dict[str, Any]]) -> None:
        [created] = [event["data"] for event in events if event["type"] == "run/created"]
        created["run"]["model"] = "another"

    stage.rewrite(other)
    async with stage.life() as manager:
        return Parked(await stage.planned(manager, source_run_id=target), (target,))


@parks("runtime_lineage_start_mismatch")
async def the_run_was_not_started_as_it_was_claimed(stage: Stage) -> Parked:
    _, target = await gone_on(stage)

    def other(events: list[dict[str, Any]]) -> None:
        [start] = [event["data"] for event in events if event["type"] == "continuation/start"]
        start["replay_digest"] = "1" * 64

    stage.rewrite(other)
    async with stage.life() as manager:
        return Parked(await stage.planned(manager, source_run_id=target), (target,))


@parks("runtime_lineage_cycle")
async def the_lineage_comes_back_to_itself(stage: Stage) -> Parked:
    _, target = await gone_on(stage)

    def other(events: list[dict[str, Any]]) -> None:
        [claim] = [event["data"] for event in events if event["type"] == "continuation/claim"]
        claim["boundary"]["segments"].insert(0, {**claim["boundary"]["segments"][0], "run_id": target})

    stage.rewrite(other)
    async with stage.life() as manager:
        return Parked(await stage.planned(manager, source_run_id=target), (target,))


@parks("continuation_already_exists")
async def the_claim_on_it_was_lost_and_its_start_was_not(stage: Stage) -> Parked:
    source, target = await gone_on(stage)
    stage.damage(stage.types().index("continuation/claim"))
    repair(stage.journal, salvage=True)
    async with stage.life() as manager:
        return Parked(await stage.planned(manager, source_run_id=source), (source, target))


@parks("source_prefix_unverified")
async def the_claim_on_it_was_lost_and_its_start_too(stage: Stage) -> Parked:
    source, _ = await gone_on(stage)
    stage.damage(*(place for place, type_ in enumerate(stage.types()) if type_.startswith("continuation/")))
    repair(stage.journal, salvage=True)
    async with stage.life() as manager:
        return Parked(await stage.planned(manager, source_run_id=source), (source, "gone on from it"))


# ---- the claim that is there already


async def killed_at(point: str, stage: Stage, *turns: Any) -> str:
    """Killed while the run of `t1` was continued, at a failpoint; the run that was to go on."""
    points = Points(**{point: stage.image})
    async with stage.life(cutting(*turns), continuation_failpoint=points) as manager:
        await stage.cut(manager)
        stream = manager.resume_safe_boundary_continuation(await stage.continuation(manager))
        await told(stream)
    return stream.run_id


async def replanned(stage: Stage, target: str) -> Parked:
    [claim] = stage.of("continuation/claim")
    source = claim["source"]["run_id"]
    async with stage.life(cutting()) as manager:
        latest = await stage.planned(manager)
        named = await stage.planned(manager, source_run_id=source)
        assert (latest.rejection_reasons, latest.source_run_id) == (named.rejection_reasons, source)
        return Parked(named, (source, target, claim["claim_id"]))


@parks("continuation_claim_repair_required")
async def it_was_claimed(stage: Stage) -> Parked:
    return await replanned(stage, await killed_at("after_continuation_claim_committed", stage))


@parks("continuation_claim_repair_required")
async def the_claimed_run_was_created(stage: Stage) -> Parked:
    return await replanned(stage, await killed_at("after_run_created", stage))


@parks("continuation_claim_repair_required")
async def the_claimed_run_is_over_and_not_settled(stage: Stage) -> Parked:
    return await replanned(stage, await killed_at("after_terminal_event_committed", stage))


@parks("continuation_claim_repair_required")
async def the_claimed_run_was_in_the_middle_of_a_step(stage: Stage) -> Parked:
    return await replanned(
        stage, await killed_at("nowhere", stage, ["So.", Tool("order"), Do(lambda _: stage.image())])
    )


@parks("continuation_started_indeterminate")
async def the_claimed_run_was_started(stage: Stage) -> Parked:
    return await replanned(stage, await killed_at("after_continuation_start_committed", stage))


@parks("continuation_started_indeterminate")
async def the_backend_was_about_to_be_called(stage: Stage) -> Parked:
    return await replanned(stage, await killed_at("before_backend_dispatch", stage))


@parks("continuation_already_exists")
async def it_was_continued(stage: Stage) -> Parked:
    target = await killed_at("after_terminal_header_committed", stage)
    [claim] = stage.of("continuation/claim")
    source = claim["source"]["run_id"]
    async with stage.life() as manager:
        return Parked(await stage.planned(manager, source_run_id=source), (source, target))


@parks("continuation_already_exists")
async def what_had_claimed_it_was_repaired(stage: Stage) -> Parked:
    target = await killed_at("after_run_created", stage)
    [claim] = stage.of("continuation/claim")
    async with stage.life() as manager:
        assert (await manager.recover("s")).state == "repaired"
        return Parked(await stage.planned(manager, source_run_id=claim["source"]["run_id"]), (target,))


# ---- what accumulates


@parks("pending_permission", "terminal_repair_failed")
async def it_died_while_it_asked(stage: Stage) -> Parked:
    async with stage.life(playing([Question("Shall I?")])) as manager:
        await manager.create(session_id="s", cwd=stage.work)
        async with manager.send("s", "Order chairs.") as stream:
            await until(stream, "question_request")
            stage.image()
    [asked] = stage.of("interaction/requested")
    async with stage.life() as manager:
        return Parked(await stage.planned(manager), (asked["interaction_id"], stream.run_id))


@parks("pending_permission")
async def what_it_asked_was_never_closed(stage: Stage) -> Parked:
    async with stage.life(playing([Question("Shall I?")])) as manager:
        await manager.create(session_id="s", cwd=stage.work)
        async with manager.send("s", "Order chairs.") as stream:
            await until(stream, "question_request")
    stage.rewrite(lambda events: events.remove(*[e for e in events if e["type"] == "interaction/resolved"]))
    [asked] = stage.of("interaction/requested")
    async with stage.life() as manager:
        return Parked(await stage.planned(manager), (asked["interaction_id"], stream.run_id))


@parks("runtime_ledger_empty", "terminal_repair_failed", "provider_resume_boundary_unsupported")
async def the_run_never_began(stage: Stage) -> Parked:
    async with stage.life(cutting()) as manager:
        await stage.cut(manager)
    [start] = stage.of("turn/start")
    run = {**start["run"], "run_id": "made", "turn_id": "t2", "invocation_id": "i2"}
    write(stage, Draft("run/created", {"run": run}))
    async with stage.life() as manager:
        return Parked(await stage.planned(manager, source_run_id="made"), ("made",))


def write(stage: Stage, *drafts: Draft) -> None:
    """Another program writes, and dies."""
    writer = open_session(stage.journal)
    writer.append_batch(drafts)
    writer.flush()
    writer.close()


@parks("terminal_repair_failed")
async def it_died_while_the_model_spoke(stage: Stage) -> Parked:
    async with stage.life(playing(["Let me", Do(lambda _: stage.image())])) as manager:
        await manager.create(session_id="s", cwd=stage.work)
        stream = manager.send("s", "Order chairs.")
        await told(stream)
    async with stage.life() as manager:
        plan = await stage.planned(manager)
        assert (await stage.planned(manager, repaired=True)).disposition == "continue"
        return Parked(plan, (stream.run_id, "maka journal repair"))


@parks("source_prefix_unverified")
async def a_line_before_its_end_was_lost_and_salvaged(stage: Stage) -> Parked:
    async with stage.life(cutting("Fine.", FAILS)) as manager:
        await stage.cut(manager)
        await told(manager.send("s", "And?"))
        await stage.failing(manager, "And now?")
    stage.damage(next(n for n, type_ in enumerate(stage.types()) if type_ == "assistant/message"))
    repair(stage.journal, salvage=True)
    async with stage.life() as manager:
        return Parked(await stage.planned(manager), (str(stage.events()[-1]["seq"] - 2), "maka journal inspect"))


@parks("source_prefix_unverified", "provider_resume_head_unsupported")
async def the_users_words_were_lost(stage: Stage) -> Parked:
    app = looping([Ask("order")], [Fail()], tools=[Order()])
    async with stage.life(app) as manager:
        await manager.create(session_id="s", cwd=stage.work)
        run_id = await stage.failing(manager, "Order chairs.")
    stage.damage(2)
    repair(stage.journal, salvage=True)
    async with stage.life(app) as manager:
        return Parked(await stage.planned(manager), (run_id,))


async def died_in_a_tool(stage: Stage, recovery: str = "never") -> tuple[str, str]:
    """Killed in the body of `order`: the run, and the operation."""
    order = Order(stage.image, recovery=recovery)
    async with stage.life(looping([Ask("order", call_id="c1")], "Done.", tools=[order])) as manager:
        await manager.create(session_id="s", cwd=stage.work)
        stream = manager.send("s", "Order chairs.")
        await told(stream)
    return stream.run_id, order.ran[0]


@parks("terminal_repair_failed", "dangling_tool_state")
async def it_died_in_a_tool(stage: Stage) -> Parked:
    run_id, operation = await died_in_a_tool(stage)
    async with stage.life(looping(tools=[Order()])) as manager:
        return Parked(await stage.planned(manager), (run_id, operation, "order", "c1", "maka session settle s --call"))


@parks("dangling_tool_state")
async def it_died_in_a_tool_and_was_repaired(stage: Stage) -> Parked:
    run_id, operation = await died_in_a_tool(stage, "idempotent")
    async with stage.life(looping(tools=[Order(recovery="idempotent")])) as manager:
        await manager.recover("s")
        assert (await stage.planned(manager, rerun=["idempotent"])).disposition == "continue"
        plan = await stage.planned(manager, rerun=["read_only"])
        return Parked(plan, (run_id, operation, "c1", "--rerun idempotent"))


@parks("dangling_tool_state")
async def a_tool_was_cut_off_by_a_stop(stage: Stage) -> Parked:
    order = Order(asyncio.Event().wait)
    async with stage.life(looping([Ask("order")], tools=[order])) as manager:
        await manager.create(session_id="s", cwd=stage.work)
        async with manager.send("s", "Order chairs.") as stream:
            await until(stream, "tool_start")
            while not order.ran:
                await asyncio.sleep(0)
            await manager.stop("s")
        return Parked(await stage.planned(manager), (stream.run_id, order.ran[0]))


@parks("workspace_identity_mismatch")
async def the_workspace_was_replaced(stage: Stage) -> Parked:
    async with stage.life(cutting()) as manager:
        await stage.cut(manager)
        stage.work.rename(stage.folder / "away")
        stage.work.mkdir()
        return Parked(await stage.planned(manager), (str(stage.work),))


@parks("workspace_identity_mismatch")
async def the_workspace_is_gone(stage: Stage) -> Parked:
    async with stage.life(cutting()) as manager:
        await stage.cut(manager)
        stage.work.rmdir()
        return Parked(await stage.planned(manager), (str(stage.work),))


@parks("background_operation_pending")
async def a_tool_has_left_something_behind(stage: Stage) -> Parked:
    async def leaves() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise LeftBehind("a watcher of files") from None

    order = Order(leaves, recovery="idempotent")
    async with stage.life(looping([Ask("order")], tools=[order])) as manager:
        await manager.create(session_id="s", cwd=stage.work)
        async with manager.send("s", "Watch.") as stream:
            await until(stream, "tool_start")
            while not order.ran:
                await asyncio.sleep(0)
            await manager.stop("s")
        return Parked(await stage.planned(manager, rerun=["idempotent"]))


@parks("checkpoint_restore_failed")
async def the_checkpoint_was_not_restored(stage: Stage) -> Parked:
    eyes = Eyes()
    async with stage.life(inspected(cutting(), eyes)) as manager:
        await stage.cut(manager)
        eyes.sees = attrs.evolve(eyes.sees, checkpoint={"ref": "snap-7", "restored": False})
        return Parked(await stage.planned(manager), ("snap-7",))


@parks("checkpoint_restore_failed")
async def the_checkpoint_is_of_an_earlier_moment(stage: Stage) -> Parked:
    eyes = Eyes()
    async with stage.life(inspected(cutting(), eyes)) as manager:
        await stage.cut(manager)
        eyes.sees = attrs.evolve(eyes.sees, checkpoint={"ref": "snap-7", "high_water": 2, "restored": True})
        return Parked(await stage.planned(manager), ("snap-7", "2"))


@parks("tool_catalog_mismatch")
async def the_tool_that_it_called_was_taken_out_of_the_app(stage: Stage) -> Parked:
    async with stage.life(looping([Ask("order")], [Fail()], tools=[Order()])) as manager:
        await manager.create(session_id="s", cwd=stage.work)
        await stage.failing(manager, "Order chairs.")
    async with stage.life(looping(tools=[Order(name="other")])) as manager:
        return Parked(await stage.planned(manager), ("order",))


@parks("tool_catalog_mismatch")
async def the_tool_that_is_to_run_again_was_taken_out_of_the_app(stage: Stage) -> Parked:
    await died_in_a_tool(stage, "read_only")
    async with stage.life(looping()) as manager:
        await manager.recover("s")
        return Parked(await stage.planned(manager, rerun=["read_only"]), ("order",))


@parks("continuation_identity_reused")
async def the_turn_is_there_already(stage: Stage) -> Parked:
    async with stage.life(cutting()) as manager:
        await stage.cut(manager)
        return Parked(await stage.planned(manager, turn_id="t1"), ("t1",))


@parks("continuation_identity_reused")
async def the_ids_were_given_before(stage: Stage) -> Parked:
    async with stage.life(cutting(), new_id=numbered()) as manager:
        run_id = await stage.cut(manager)
    ids = iter(["invocation", run_id, "turn", "claim"])
    async with stage.life(cutting(), new_id=ids.__next__) as manager:
        return Parked(await stage.planned(manager), (run_id,))


@parks("session_archived")
async def it_was_put_away(stage: Stage) -> Parked:
    async with stage.life(cutting()) as manager:
        await stage.cut(manager)
        await manager.archive("s")
        return Parked(await stage.planned(manager), ("Session s", "unarchive"))


@parks("backend_unknown")
async def the_app_has_another_backend(stage: Stage) -> Parked:
    async with stage.life(cutting()) as manager:
        await stage.cut(manager)
    async with stage.life(App(backends={"other": cutting()}, default_backend="other")) as manager:
        return Parked(await stage.planned(manager), ("scripted", "other"))


@parks("composition_changed")
async def the_app_makes_another_agent(stage: Stage) -> Parked:
    async with stage.life(cutting()) as manager:
        run_id = await stage.cut(manager)
    stage.hand_over()
    another = loop_backend(lambda context: ScriptedModel([]), handoff=True)
    async with stage.life(App(backends={"scripted": another}, default_backend="scripted")) as manager:
        parked = await stage.planned(manager, purpose="handoff")
        return Parked(parked, (run_id, "prompt", "tool catalog", "tool availability", "settle s --handoff h"))


@parks("composition_unavailable")
async def the_backend_takes_no_run_over(stage: Stage) -> Parked:
    async with stage.life(cutting()) as manager:
        run_id = await stage.cut(manager)
    stage.hand_over()
    async with stage.life() as manager:
        parked = await stage.planned(manager, purpose="handoff")
        return Parked(parked, ("Backend scripted", run_id, "settle s --handoff h"))


@parks("provider_resume_boundary_unsupported")
async def nothing_was_asked(stage: Stage) -> Parked:
    async with stage.life(cutting()) as manager:
        run_id = await stage.cut(manager, "")
        return Parked(await stage.planned(manager), (run_id,))


@parks("workspace_identity_mismatch", "background_operation_pending", "checkpoint_restore_failed",
       "tool_catalog_mismatch", "continuation_identity_reused")  # fmt: skip
async def everything_is_wrong_at_once(stage: Stage) -> Parked:
    eyes = Eyes()
    app = looping([Ask("order")], [Fail()], tools=[Order()], safety_inspector=eyes)
    async with stage.life(app) as manager:
        await manager.create(session_id="s", cwd=stage.work)
        await stage.failing(manager, "Order chairs.", turn_id="t1")
        eyes.sees = {
            "workspace_identity": "workspace-2",
            "background_operations_settled": False,
            "available_tool_names": [],
            "checkpoint": {"ref": "snap-7"},
        }
        return Parked(await stage.planned(manager, turn_id="t1"), ("order", "workspace-1", "workspace-2", "t1"))


# ---------------------------------------------------------------- a plan was kept, and something has changed


@attrs.frozen
class Kept:
    """A plan that was kept, the manager that is to resume it, and what the refusal must name beside the run.

    ``goes_on``: a message is taken afterwards.
    """

    manager: SessionManager
    continuation: Continuation
    named: tuple[str, ...] = ()
    goes_on: bool = True


_Changing = Callable[[Stage], AsyncIterator[Kept]]
STALES: list[tuple[str, _Changing]] = []


def stale(code: str) -> Callable[[_Changing], _Changing]:
    def noted(case: _Changing) -> _Changing:
        STALES.append((code, case))
        return case

    return noted


@pytest.mark.parametrize(("code", "case"), STALES, ids=named)
def test_a_plan_that_does_not_hold_any_more_is_refused(code: str, case: _Changing, tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        async with asynccontextmanager(case)(stage) as kept:
            before = files_of(stage.root)
            sends = count_sends(kept.manager)
            stream = kept.manager.resume_safe_boundary_continuation(kept.continuation)
            with pytest.raises(ContinuationRevalidationError) as refused:
                await told(stream)
            assert refused.value.code == code
            said = str(refused.value)
            for name in ("s", kept.continuation.source["run_id"], *kept.named):
                assert name in said
            assert said.endswith(".")
            assert ". " in said, "what is so, and what to do"
            assert stream.reason is None
            assert count_sends(kept.manager) == sends
            assert files_of(stage.root) == before
            if kept.goes_on:
                assert (await told(kept.manager.send("s", "Never mind.")))[-1].kind == "complete"

    go(main())


def count_sends(manager: SessionManager) -> int:
    factory = next(iter(manager._app.backends.values()))
    model = getattr(factory, "model", None)
    return len(model.requests) if model is not None else sum(made.sends for made in factory.built)  # type: ignore[attr-defined]


@stale("continuation_claim_conflict")
async def it_was_continued_meanwhile(stage: Stage) -> AsyncIterator[Kept]:
    async with stage.life(cutting("Done.")) as manager:
        await stage.cut(manager)
        continuation, other = await stage.continuation(manager), await stage.continuation(manager)
        await told(manager.resume_safe_boundary_continuation(other))
        yield Kept(manager, continuation, (other.claim_id,))


@stale("continuation_claim_conflict")
async def the_same_plan_was_used_before(stage: Stage) -> AsyncIterator[Kept]:
    async with stage.life(cutting("Done.")) as manager:
        await stage.cut(manager)
        continuation = await stage.continuation(manager)
        await told(manager.resume_safe_boundary_continuation(continuation))
        yield Kept(manager, continuation, (continuation.claim_id,))


@stale("target_run_conflict")
async def a_message_took_its_turn(stage: Stage) -> AsyncIterator[Kept]:
    async with stage.life(cutting("Done.")) as manager:
        await stage.cut(manager)
        continuation = await stage.continuation(manager, turn_id="t2")
        await told(manager.send("s", "Never mind.", turn_id="t2"))
        yield Kept(manager, continuation, ("t2",))


@stale("target_run_conflict")
async def another_run_of_the_session_is_handed_over(stage: Stage) -> AsyncIterator[Kept]:
    async with stage.life(cutting("So.")) as manager:
        await stage.cut(manager)
        continuation = await stage.continuation(manager)
        await told(manager.send("s", "A long task.", turn_id="t2"))
    stage.hand_over()
    async with stage.life() as manager:
        yield Kept(manager, continuation, ("t2",), goes_on=False)


async def restored(stage: Stage, older: Callable[[list[dict[str, Any]]], None]) -> Continuation:
    """A plan, behind which an older copy of the journal was put in the place of the one that it was made from."""
    async with stage.life(cutting()) as manager:
        await stage.cut(manager)
        continuation = await stage.continuation(manager)
    stage.rewrite(older)
    async with stage.life() as manager:
        await manager.recover("s")
    return continuation


@stale("target_run_conflict")
async def another_run_was_continued_and_rests_at_its_start(stage: Stage) -> AsyncIterator[Kept]:
    points = Points(after_continuation_start_committed=stage.image)
    async with stage.life(cutting(FAILS), continuation_failpoint=points) as manager:
        first = await stage.cut(manager)
        second = await stage.failing(manager, "And tables.")
        continuation = await stage.continuation(manager, source_run_id=first)
        stream = manager.resume_safe_boundary_continuation(await stage.continuation(manager, source_run_id=second))
        await told(stream)
    async with stage.life(playing("So.")) as manager:
        yield Kept(manager, continuation, (stream.turn_id,))


@stale("source_identity_changed")
async def the_journal_is_that_of_before_the_run(stage: Stage) -> AsyncIterator[Kept]:
    def older(events: list[dict[str, Any]]) -> None:
        del events[1:]

    continuation = await restored(stage, older)
    async with stage.life() as manager:
        yield Kept(manager, continuation)


@stale("source_high_water_changed")
async def the_journal_is_that_of_the_middle_of_the_run(stage: Stage) -> AsyncIterator[Kept]:
    def older(events: list[dict[str, Any]]) -> None:
        del events[next(n for n, event in enumerate(events) if event["type"] == "user/message") + 1 :]

    async with stage.life(playing(["Let me see.", Fail()])) as manager:
        await stage.cut(manager)
        continuation = await stage.continuation(manager)
    stage.rewrite(older)
    async with stage.life() as manager:
        await manager.recover("s")
        yield Kept(manager, continuation)


@stale("source_terminal_changed")
async def the_journal_is_that_of_just_before_the_end_of_the_run(stage: Stage) -> AsyncIterator[Kept]:
    def older(events: list[dict[str, Any]]) -> None:
        del events[next(n for n, event in enumerate(events) if event["type"] == "turn/end") :]

    continuation = await restored(stage, older)
    async with stage.life() as manager:
        yield Kept(manager, continuation)


@stale("source_replay_changed")
async def a_person_has_said_what_came_of_a_call(stage: Stage) -> AsyncIterator[Kept]:
    _, operation = await died_in_a_tool(stage, "read_only")
    async with stage.life(looping(tools=[Order(recovery="read_only")])) as manager:
        await manager.recover("s")
        continuation = await stage.continuation(manager, rerun=["read_only"])
        await manager.settle_call("s", operation, ok=True, text="They are here.")
        yield Kept(manager, continuation)


@stale("source_configuration_changed")
async def the_model_is_another_one(stage: Stage) -> AsyncIterator[Kept]:
    async with stage.life(cutting("Done.")) as manager:
        await stage.cut(manager)
        continuation = await stage.continuation(manager)
        await manager.update("s", {"model": "scripted-2"})
        yield Kept(manager, continuation, ("model", "scripted-1", "scripted-2"))


@stale("source_configuration_changed")
async def the_permission_mode_is_another_one(stage: Stage) -> AsyncIterator[Kept]:
    async with stage.life(cutting("Done.")) as manager:
        await stage.cut(manager)
        continuation = await stage.continuation(manager)
        await manager.update("s", {"permission_mode": "ask"})
        yield Kept(manager, continuation, ("permission_mode", "bypass", "ask"))


@stale("source_configuration_changed")
async def the_session_works_elsewhere(stage: Stage) -> AsyncIterator[Kept]:
    link = stage.folder / "link"
    link.symlink_to(stage.work)
    async with stage.life(cutting("Done.")) as manager:
        await stage.cut(manager)
        continuation = await stage.continuation(manager)
        await manager.update("s", {"cwd": str(link)})
        yield Kept(manager, continuation, ("cwd", str(link)))


@stale("workspace_identity_changed")
async def the_workspace_was_moved(stage: Stage) -> AsyncIterator[Kept]:
    async with stage.life(cutting("Done.")) as manager:
        await stage.cut(manager)
        continuation = await stage.continuation(manager)
        os.rename(stage.work, stage.folder / "away")
        yield Kept(manager, continuation)


@stale("background_operation_started")
async def something_goes_on_in_the_background(stage: Stage) -> AsyncIterator[Kept]:
    eyes = Eyes()
    async with stage.life(inspected(cutting("Done."), eyes)) as manager:
        await stage.cut(manager)
        continuation = await stage.continuation(manager)
        eyes.sees = attrs.evolve(eyes.sees, background_operations_settled=False)
        yield Kept(manager, continuation)


@stale("tool_catalog_changed")
async def the_app_has_other_tools(stage: Stage) -> AsyncIterator[Kept]:
    def app(*names: str, script: Any = ()) -> App:
        return looping(*script, tools=[Order(name=name) for name in names])

    async with stage.life(app("order", "cancel", script=[[Fail()]])) as manager:
        await stage.cut(manager)
        continuation = await stage.continuation(manager)
    async with stage.life(app("order", "look")) as manager:
        yield Kept(manager, continuation, ("cancel", "look"))


@stale("workspace_checkpoint_changed")
async def the_checkpoint_is_another_one(stage: Stage) -> AsyncIterator[Kept]:
    eyes = Eyes(checkpoint={"ref": "snap-7", "restored": True})
    async with stage.life(inspected(cutting("Done."), eyes)) as manager:
        await stage.cut(manager)
        continuation = await stage.continuation(manager)
        eyes.sees = attrs.evolve(eyes.sees, checkpoint={"ref": "snap-8", "restored": True})
        yield Kept(manager, continuation)


@stale("safety_observation_unavailable")
async def the_inspector_raises_meanwhile(stage: Stage) -> AsyncIterator[Kept]:
    eyes = Eyes()
    async with stage.life(inspected(cutting("Done."), eyes)) as manager:
        await stage.cut(manager)
        continuation = await stage.continuation(manager)
        eyes.sees = OSError("the mount is gone")
        yield Kept(manager, continuation, ("the mount is gone",))


@stale("session_advanced")
async def the_session_has_gone_on_meanwhile(stage: Stage) -> AsyncIterator[Kept]:
    async with stage.life(cutting("Fine.", "Done.")) as manager:
        await stage.cut(manager)
        continuation = await stage.continuation(manager)
        stream = manager.send("s", "How are you?")
        await told(stream)
        yield Kept(manager, continuation, (stream.run_id,))


@stale("source_prefix_unverified")
async def a_line_before_the_runs_end_was_lost(stage: Stage) -> AsyncIterator[Kept]:
    """No model was told of it, so the replay is what it was."""
    app = looping([Ask("order")], [Fail("provider_quota")], tools=[Order()])
    async with stage.life(app) as manager:
        await manager.create(session_id="s", cwd=stage.work)
        await stage.failing(manager, "Order chairs.")
        continuation = await stage.continuation(manager)
    stage.damage(stage.types().index("request/header"))
    repair(stage.journal, salvage=True)
    async with stage.life(looping("Fine.", tools=[Order()])) as manager:
        assert (await stage.planned(manager)).rejection_reasons == ("source_prefix_unverified",)
        yield Kept(manager, continuation)


# ---------------------------------------------------------------- something has changed behind the claim


LATES: list[tuple[str, _Changing]] = []


def late(code: str) -> Callable[[_Changing], _Changing]:
    def noted(case: _Changing) -> _Changing:
        LATES.append((code, case))
        return case

    return noted


@pytest.mark.parametrize(("code", "case"), LATES, ids=named)
def test_what_changes_behind_the_claim_ends_the_run(code: str, case: _Changing, tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        async with asynccontextmanager(case)(stage) as kept:
            before, sends = stage.types(), count_sends(kept.manager)
            stream = kept.manager.resume_safe_boundary_continuation(kept.continuation)
            with pytest.raises(ContinuationRevalidationError) as refused:
                await told(stream)
            assert refused.value.code == code
            for name in ("s", *kept.named):
                assert name in str(refused.value)
            assert count_sends(kept.manager) == sends
            assert stage.types()[len(before) :] == [
                "continuation/claim",
                "run/created",
                "continuation/start",
                "turn/end",
                "run/settled",
            ]
            end = stage.of("turn/end")[-1]
            assert (end["run_id"], end["turn_id"]) == (stream.run_id, stream.turn_id)
            assert (end["reason"]["kind"], end["reason"]["failure_class"]) == ("failed", code)
            assert stream.reason == end["reason"]
            assert stage.of("run/settled")[-1] == {"run_id": stream.run_id}
            with pytest.raises(ContinuationRevalidationError) as refused:
                await told(kept.manager.resume_safe_boundary_continuation(kept.continuation))
            assert refused.value.code == "continuation_claim_conflict"
            assert (await told(kept.manager.send("s", "Never mind.")))[-1].kind == "complete"

    go(main())


async def changed_behind_the_start(stage: Stage, change: Callable[[Eyes], None], **values: Any) -> AsyncIterator[Kept]:
    eyes = Eyes(**values)
    points = Points(after_continuation_start_committed=lambda: change(eyes))
    async with stage.life(inspected(cutting("Fine."), eyes), continuation_failpoint=points) as manager:
        await stage.cut(manager)
        continuation = await stage.continuation(manager)
        yield Kept(manager, continuation, (continuation.source["run_id"],))


@late("workspace_identity_changed")
def it_is_another_workspace_by_now(stage: Stage) -> AsyncIterator[Kept]:
    def change(eyes: Eyes) -> None:
        eyes.sees = attrs.evolve(eyes.sees, workspace_identity="workspace-2")

    return changed_behind_the_start(stage, change)


@late("background_operation_started")
def something_goes_on_by_now(stage: Stage) -> AsyncIterator[Kept]:
    def change(eyes: Eyes) -> None:
        eyes.sees = attrs.evolve(eyes.sees, background_operations_settled=False)

    return changed_behind_the_start(stage, change)


@late("tool_catalog_changed")
def the_tools_are_others_by_now(stage: Stage) -> AsyncIterator[Kept]:
    def change(eyes: Eyes) -> None:
        eyes.sees = attrs.evolve(eyes.sees, available_tool_names=("other",))

    return changed_behind_the_start(stage, change)


@late("workspace_checkpoint_changed")
def the_checkpoint_is_another_one_by_now(stage: Stage) -> AsyncIterator[Kept]:
    def change(eyes: Eyes) -> None:
        eyes.sees = attrs.evolve(eyes.sees, checkpoint={"ref": "snap-7", "restored": False})

    return changed_behind_the_start(stage, change, checkpoint={"ref": "snap-7", "restored": True})


@late("safety_observation_unavailable")
def the_inspector_raises_by_now(stage: Stage) -> AsyncIterator[Kept]:
    def change(eyes: Eyes) -> None:
        eyes.sees = OSError("the mount is gone")

    return changed_behind_the_start(stage, change)


@late("dangling_tool_state")
async def a_call_that_was_run_again_is_unknown_even_so(stage: Stage) -> AsyncIterator[Kept]:
    _, operation = await died_in_a_tool(stage, "idempotent")
    order = Order(lambda: ToolOutput([], "unknown"), recovery="idempotent")
    async with stage.life(looping(tools=[order])) as manager:
        await manager.recover("s")
        continuation = await stage.continuation(manager, rerun=["idempotent"])
        yield Kept(manager, continuation, ("order", "c1"))
        assert order.ran == [operation]


# ---------------------------------------------------------------- all of them


def test_every_code_has_its_case() -> None:
    assert {code for codes, _ in PARKS for code in codes} == set(REASONS)
    stale = {code for code, _ in STALES} | {code for code, _ in LATES}
    # What keeps a turn from being handed over has its cases in test_handoff.py.
    handed = {"sandbox_denial_unknown", "composition_unavailable", "composition_changed"}
    assert stale | handed == {*STALE, "source_prefix_unverified"}


def test_what_changes_nothing_for_the_run_makes_no_plan_stale(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        async with stage.life(cutting("Done.")) as manager:
            await stage.cut(manager)
            continuation = await stage.continuation(manager)
            await manager.rename("s", "Chairs")
            await manager.set_labels("s", ["urgent"])
            stream = manager.resume_safe_boundary_continuation(continuation)
            assert (await told(stream))[-1].kind == "complete"
            assert stream.reason == {"kind": "completed"}

    go(main())
