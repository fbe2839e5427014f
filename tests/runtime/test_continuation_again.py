"""Recovery asked again, and what a process knows that lives on: a failed write, a stop, a body that stays."""

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import maka
from maka.journal.errors import InvalidEvent, JournalError
from maka.journal.events import Draft
from maka.runtime.app import App
from maka.runtime.backends.loop import loop_backend
from maka.runtime.backends.scripted import Emit, Never
from maka.runtime.errors import ContinuationRevalidationError
from maka.runtime.lifecycle import LifecycleEvent
from maka.runtime.recovery import recover
from maka.runtime.scripted import Ask, Fail, ScriptedModel
from maka.runtime.sessions import SessionManager
from maka.runtime.tools import LeftBehind, ToolContext, ToolOutput
from support.continued import Eyes, Order, Points, Stage, cutting, looping
from support.disks import FaultyDisk
from support.managed import app_of, go, playing, told


async def died_in_a_look(stage: Stage) -> Order:
    """Killed in the body of a call whose tool can look; the tool of the lives that follow."""
    async with stage.life(looping([Ask("order", {})], tools=[Order(stage.image, recovery="reconcile")])) as manager:
        await manager.create(session_id="s", cwd=stage.work)
        await told(manager.send("s", "Order chairs."))
    order = Order(recovery="reconcile")
    order.finds = ToolOutput.of("it was ordered")
    return order


def test_a_kill_between_the_repair_and_the_look_leaves_the_look_to_the_next_recovery(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        order = await died_in_a_look(stage)
        points = Points(after_repair_committed=stage.image)
        async with stage.life(looping(tools=[order]), continuation_failpoint=points) as manager:
            await manager.recover_interrupted_sessions()
        assert "tool/outcome" not in stage.types()
        order.looks.clear()
        async with stage.life(looping(tools=[order])) as manager:
            [found] = await manager.recover_interrupted_sessions()
            assert (found.state, found.reconciled, found.unsettled) == ("unchanged", 1, 0)
            assert len(order.looks) == 1
            assert (await stage.planned(manager)).disposition == "continue"
            again = await manager.recover_interrupted_sessions()
            assert [each.state for each in again] == ["unchanged"]
            assert len(order.looks) == 1

    go(main())


def test_a_repair_by_somebody_else_leaves_the_look_to_the_recovery_too(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        order = await died_in_a_look(stage)
        maka.load(stage.journal)
        async with stage.life(looping(tools=[order])) as manager:
            [row] = await manager.list()
            assert (row["verdict"], row["unsettled"]) in (("healthy", 1), ("unchecked", None))
            [found] = await manager.recover_interrupted_sessions()
            assert found.reconciled == 1
        async with stage.life() as manager:
            [row] = await manager.list()
            assert (row["verdict"], row["unsettled"]) == ("healthy", 0)

    go(main())


def test_tools_are_asked_again_in_the_process_in_which_a_stop_cut_the_call_off(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)

        async def hang() -> None:
            await asyncio.Event().wait()

        order = Order(hang, recovery="reconcile")
        model = looping([Ask("order", {})], "Fine.", "So.", tools=[order])
        async with stage.life(model) as manager:
            await manager.create(session_id="s", cwd=stage.work)
            async for event in manager.send("s", "Order chairs."):
                if event.kind == "tool_start":
                    await manager.stop("s")
            found = await manager.recover("s")
            assert (found.state, found.unsettled, found.reconciled) == ("unchanged", 1, 0)
            order.finds = ToolOutput.of("it was ordered")
            found = await manager.recover("s")
            assert (found.state, found.unsettled, found.reconciled) == ("unchanged", 0, 1)
            assert (await stage.planned(manager)).disposition == "continue"
            assert len(order.looks) == 2

    go(main())


def test_a_message_lets_the_tool_look_at_what_the_turn_before_left(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)

        async def hang() -> None:
            await asyncio.Event().wait()

        order = Order(hang, recovery="reconcile")
        order.finds = ToolOutput.of("it was ordered")
        model = looping("Hello.", [Ask("order", {})], "Fine.", tools=[order])
        async with stage.life(model) as manager:
            await manager.create(session_id="s", cwd=stage.work)
            await told(manager.send("s", "Hello."))
            async for event in manager.send("s", "Order chairs."):
                if event.kind == "tool_start":
                    await manager.stop("s")
            assert order.looks == []
            await told(manager.send("s", "And?"))
            assert len(order.looks) == 1
            types = stage.types()
            assert types.index("tool/outcome") < len(types) - 1 - types[::-1].index("turn/start")

    go(main())


def test_a_session_whose_journal_failed_is_recovered_and_planned_in_its_own_process(tmp_path: Path) -> None:
    async def main() -> None:
        for ask in ("recover", "plan"):
            folder = tmp_path / ask
            folder.mkdir()
            stage = Stage(folder)
            async with stage.life(cutting("Fine.")) as manager:
                await manager.create(session_id="s", cwd=stage.work)
                disk = FaultyDisk()
                manager._journals._journals._fs = disk

                def began(event: LifecycleEvent, disk: FaultyDisk = disk) -> None:
                    if event.kind == "run_started":
                        disk.fail("write")

                manager.subscribe(began)
                with suppress(JournalError):
                    await told(manager.send("s", "Order chairs."))
                assert manager.status("s").degraded is not None
                if ask == "recover":
                    assert (await manager.recover("s")).state == "repaired"
                    assert manager.status("s").degraded is None
                plan = await manager.plan_safe_boundary_continuation("s")
                assert (plan.disposition, plan.rejection_reasons) == ("continue", ())
                [reason] = [end["reason"] for end in stage.of("turn/end")]
                assert reason == {"kind": "failed", "failure_class": "journal_write_failed"}

    go(main())


def test_a_body_that_goes_on_is_background_work_until_it_has_ended(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        async with stage.life(
            looping([Ask("order", {})], tools=[Order(stage.image, recovery="idempotent")])
        ) as manager:
            await manager.create(session_id="s", cwd=stage.work)
            await told(manager.send("s", "Order chairs."))
        leave = asyncio.Event()

        class Stays(Order):
            timeout = 0.05

            async def execute(self, arguments: dict[str, Any], context: ToolContext) -> ToolOutput:
                self.ran.append(context.operation_id)
                while not leave.is_set():
                    with suppress(asyncio.CancelledError):
                        await leave.wait()
                return ToolOutput.of("done")

        order = Stays(recovery="idempotent")
        async with stage.life(looping("Done.", tools=[order])) as manager:
            await manager.recover("s")
            plan = await manager.plan_safe_boundary_continuation("s", rerun=["idempotent"])
            with pytest.raises(ContinuationRevalidationError) as refused:
                await told(manager.resume_safe_boundary_continuation(plan))
            assert refused.value.code == "dangling_tool_state"
            plan = await manager.plan_safe_boundary_continuation("s", rerun=["idempotent"])
            assert plan.rejection_reasons == ("background_operation_pending",)
            leave.set()
            await asyncio.sleep(0.01)
            plan = await manager.plan_safe_boundary_continuation("s", rerun=["idempotent"])
            assert plan.disposition == "continue"
            await told(manager.resume_safe_boundary_continuation(plan))
            assert len(order.ran) == 2

    go(main())


def test_an_app_that_raises_keeps_no_other_session_from_being_recovered(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        await died_in_a_look(stage)

        class Broken:
            def __call__(self, context: object) -> object:
                raise AssertionError("nothing runs")

            @property
            def tools(self) -> object:
                raise ValueError("no tools today")

        app = App(backends={"loop": Broken(), "scripted": cutting()}, default_backend="scripted")
        async with stage.life(app) as manager:
            await manager.create(session_id="z", cwd=stage.work)
            found = {each.session_id: each for each in await manager.recover_interrupted_sessions()}
            assert found["s"].state == "failed"
            assert "no tools today" in str(found["s"].error)
            assert found["z"].state in ("unchanged", "open")

    go(main())


@pytest.mark.parametrize("turn_id", ["", "a\ud800", "x" * 5000, 7])
def test_what_can_be_no_id_is_refused_at_the_door(tmp_path: Path, turn_id: Any) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        async with stage.life(cutting("Fine.")) as manager:
            await stage.cut(manager)
            before = stage.journal.read_bytes()
            with pytest.raises(InvalidEvent, match="turn"):
                manager.send("s", "Hello.", turn_id=turn_id)
            with pytest.raises(InvalidEvent, match="turn"):
                await manager.plan_safe_boundary_continuation("s", turn_id=turn_id)
            assert stage.journal.read_bytes() == before

    go(main())


def test_a_message_that_is_refused_settles_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        points = Points(after_continuation_start_committed=stage.image)
        async with stage.life(cutting("Fine."), continuation_failpoint=points) as manager:
            await stage.cut(manager)
            await told(manager.resume_safe_boundary_continuation(await manager.plan_safe_boundary_continuation("s")))
        [first] = stage.of("turn/start")
        async with stage.life(cutting("So.")) as manager:
            before = stage.types()
            with pytest.raises(InvalidEvent, match="opened before"):
                await told(manager.send("s", "Hello.", turn_id=first["turn_id"]))
            session = manager.kernel.opened("s")
            assert session is not None
            await session.journal.aflush()
            assert stage.types() == before
            await told(manager.send("s", "Hello."))
            assert stage.types()[len(before) : len(before) + 4] == [
                "turn/end",
                "run/settled",
                "turn/start",
                "user/message",
            ]

    go(main())


def test_the_workspace_is_looked_at_again_behind_what_is_run_again(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        async with stage.life(
            looping([Ask("order", {})], tools=[Order(stage.image, recovery="idempotent")])
        ) as manager:
            await manager.create(session_id="s", cwd=stage.work)
            await told(manager.send("s", "Order chairs."))
        model = ScriptedModel(["never"])
        order = Order(lambda: stage.work.rename(stage.folder / "away"), recovery="idempotent")
        app = App(backends={"loop": loop_backend(model, [order])}, default_backend="loop", permission_mode="bypass")
        async with stage.life(app) as manager:
            await manager.recover("s")
            plan = await manager.plan_safe_boundary_continuation("s", rerun=["idempotent"])
            with pytest.raises(ContinuationRevalidationError) as refused:
                await told(manager.resume_safe_boundary_continuation(plan))
            assert refused.value.code == "workspace_identity_changed"
            assert len(order.ran) == 1
            assert model.requests == []

    go(main())


def test_a_plan_is_made_of_what_is_on_the_disk(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        eyes = Eyes()
        app = app_of(cutting("Fine."), safety_inspector=eyes)
        async with stage.life(app) as manager:
            await stage.cut(manager)
            session = manager.kernel.opened("s")
            assert session is not None
            sees = eyes.sees

            def seen() -> Any:
                # Somebody appends while the inspector looks, and does not wait for the disk.
                note = Draft("session/note", {"kind": "x", "text": "y"})
                session.observe(session.journal.append(note))
                return sees

            eyes.sees = seen
            before = len(stage.types())
            await manager.plan_safe_boundary_continuation("s")
            assert len(stage.types()) == before + 1

    go(main())


def test_what_a_person_refused_is_not_asked_again(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        expansion = {"expansion": {"write": "/etc"}, "justification": "needed"}

        class Wants(Order):
            async def execute(self, arguments: dict[str, Any], context: ToolContext) -> ToolOutput:
                outcome = await context.ask("sandbox_boundary", expansion)
                self.ran.append(outcome["decision"])
                return ToolOutput.of(outcome["decision"])

        order = Wants()
        app = looping([Ask("order", {})], [Fail("gone")], [Ask("order", {})], "Done.", tools=[order])
        async with stage.life(app) as manager:
            await manager.create(session_id="s", cwd=stage.work)
            async for event in manager.send("s", "Write it."):
                if event.kind == "sandbox_boundary_request":
                    answer = {"kind": "sandbox_boundary_decision", "decision": "deny"}
                    await manager.answer("s", event.data["interaction_id"], answer)
            plan = await manager.plan_safe_boundary_continuation("s")
            assert plan.continuation is not None
            assert plan.continuation.sandbox_boundary_denied
            kinds = [event.kind async for event in manager.resume_safe_boundary_continuation(plan)]
            assert "sandbox_boundary_request" not in kinds
            assert order.ran == ["deny", "deny"]
            assert len(stage.of("interaction/requested")) == 1

    go(main())


def test_behind_aclose_nothing_of_the_manager_holds_a_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []

    def slowly(*given: Any, **more: Any) -> Any:
        time.sleep(0.2)
        done.append(recover(*given, **more))
        return done[0]

    monkeypatch.setattr("maka.runtime.sessions.recover", slowly)

    async def main() -> None:
        stage = Stage(tmp_path)
        async with stage.life(looping([Ask("order", {})], tools=[Order(stage.image)])) as manager:
            await manager.create(session_id="s", cwd=stage.work)
            await told(manager.send("s", "Order chairs."))
        manager = SessionManager(stage.root, app=app_of(playing()))
        recovering = asyncio.ensure_future(manager.recover("s"))
        await asyncio.sleep(0)
        recovering.cancel()
        await manager.aclose()
        assert [found.state for found in done] == ["repaired"]
        with maka.open_session(stage.journal):
            pass

    go(main())


def test_each_call_is_looked_at_once_however_many_turns_follow(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)

        async def hang() -> None:
            await asyncio.Event().wait()

        order = Order(hang, recovery="reconcile")
        async with stage.life(looping(*[[Ask("order", {})]] * 4, tools=[order])) as manager:
            await manager.create(session_id="s", cwd=stage.work)
            looks = []
            for _ in range(4):
                async for event in manager.send("s", "Order chairs."):
                    if event.kind == "tool_start":
                        await manager.stop("s")
                looks.append(len(order.looks))
            assert looks == [0, 1, 2, 3]
            assert (await manager.recover("s")).unsettled == 4
            assert len(order.looks) == 7

    go(main())


def test_what_a_backend_of_ones_own_has_left_behind_is_background_work(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        turn: Any = [Emit("cleanup_failed", {"text": "process 7 lives on"}), Fail(kind="provider_quota", message="no")]
        async with stage.life(playing(turn, "Fine.")) as manager:
            await manager.create(session_id="s", cwd=stage.work)
            await told(manager.send("s", "Order chairs."))
            plan = await manager.plan_safe_boundary_continuation("s")
            assert plan.rejection_reasons == ("background_operation_pending",)
        async with stage.life(playing("Fine.")) as manager:
            plan = await manager.plan_safe_boundary_continuation("s")
            assert plan.rejection_reasons == ("background_operation_pending",), "it is the same process"

    go(main())


def test_what_says_whether_it_goes_on_is_background_work_until_it_does_not(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        lives = [True]

        async def watched() -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise LeftBehind("a watcher of files", goes_on=lambda: lives[0]) from None

        async with stage.life(looping([Ask("order", {})], "Fine.", tools=[Order(watched)])) as manager:
            await manager.create(session_id="s", cwd=stage.work)
            async for event in manager.send("s", "Order chairs."):
                if event.kind == "tool_start":
                    await manager.stop("s")
            await manager.settle_call("s", stage.of("tool/call")[0]["call_id"], ok=True)
            plan = await manager.plan_safe_boundary_continuation("s")
            assert plan.rejection_reasons == ("background_operation_pending",)
            lives[0] = False
            assert (await manager.plan_safe_boundary_continuation("s")).disposition == "continue"

    go(main())


@pytest.mark.parametrize("message_id", ["", "a\ud800", "x" * 5000])
def test_a_message_that_its_backend_gives_no_id_has_one_all_the_same(tmp_path: Path, message_id: str) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        turn: Any = [Emit("text_delta", {"message_id": message_id, "text": "an answer"})]
        async with stage.life(playing(turn)) as manager:
            await manager.create(session_id="s", cwd=stage.work)
            stream = manager.send("s", "Hello.")
            await told(stream)
            assert stream.reason == {"kind": "completed"}
        [message] = stage.of("assistant/message")
        assert message["content"] == [{"kind": "text", "text": "an answer"}]

    go(main())


def test_a_stop_whose_id_can_be_none_is_refused_before_it_stops_anything(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        async with stage.life(playing([Never()])) as manager:
            await manager.create(session_id="s", cwd=stage.work)
            async with manager.send("s", "Hello.") as stream:
                await stream.started()
                for stop_id in ("", "a\ud800", "x" * 5000):
                    with pytest.raises(InvalidEvent, match="stop_id"):
                        manager.stop("s", stop_id=stop_id)
                assert manager.status("s").turns == [stream.turn_id]
                await manager.stop("s", stop_id="mine")
        [stop] = stage.of("turn/stop_requested")
        assert stop["stop_id"] == "mine"

    go(main())


def test_a_run_that_was_recorded_without_a_generation_is_in_the_same_workspace(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        async with stage.life(cutting("Fine.")) as manager:
            await stage.cut(manager)
        stage.rewrite(without_generation)
        async with stage.life(playing("Fine.")) as manager:
            plan = await manager.plan_safe_boundary_continuation("s")
            assert (plan.disposition, plan.diagnostics) == ("continue", ())
            stream = manager.resume_safe_boundary_continuation(plan)
            await told(stream)
            assert stream.reason == {"kind": "completed"}

    go(main())


def without_generation(events: list[Any]) -> None:
    for event in events:
        if event["type"] == "turn/start":
            event["data"]["run"]["workspace_identity"].pop("generation", None)
