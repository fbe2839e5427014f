"""A session goes on by a manager, as a program uses it: planned, resumed, read, stopped; failures, stops and disks."""

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest

import maka
from maka.journal.errors import JournalConflict, JournalLocked, JournalWriteError, SessionNotFound
from maka.journal.events import JsonObject
from maka.journal.files import RealFs
from maka.runtime.app import App
from maka.runtime.backends.loop import loop_backend
from maka.runtime.backends.scripted import Boundary, Never, Question, Tool, Turn
from maka.runtime.continuation.plan import Continuation
from maka.runtime.continuation.safety import workspace_identity
from maka.runtime.errors import (
    ContinuationParked,
    ContinuationRevalidationError,
    KernelClosed,
    RuntimeFailure,
    SessionArchived,
    SessionBusy,
    SettleRefused,
    TurnCancelled,
)
from maka.runtime.journals import FileJournals
from maka.runtime.kernel.parts import Activation
from maka.runtime.kernel.stream import TurnStream
from maka.runtime.scripted import Ask, Do, Fail, ScriptedModel, Wait
from maka.runtime.sessions import SessionManager
from maka.runtime.tools import ToolOutput
from support.continued import FAILS, Eyes, Order, Points, Stage, cutting, inspected, looping, numbered
from support.legal import assert_legal
from support.managed import app_of, files_of, go, playing, said, told, until

CLAIMED = ["continuation/claim", "run/created", "continuation/start"]


def texts(messages: Any, role: str = "user") -> list[str]:
    """The text blocks of that role, in order."""
    return [
        block["text"]
        for message in messages
        if message["role"] == role
        for block in message["content"]
        if block["kind"] == "text"
    ]


def asked(app: App) -> list[list[JsonObject]]:
    """The messages of each request of an app's model."""
    model: ScriptedModel = app.backends["loop"].model  # type: ignore[attr-defined]
    return [request.messages for request in model.requests]


def resumed(manager: SessionManager, continuation: Continuation) -> TurnStream:
    return manager.resume_safe_boundary_continuation(continuation)


# ---------------------------------------------------------------- plans


def test_the_latest_run_that_was_interrupted_is_planned(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        async with stage.life(cutting("Fine.", FAILS, [Never()], FAILS, "Done.")) as manager:
            first = await stage.cut(manager)
            assert (await stage.planned(manager)).source_run_id == first
            await told(manager.send("s", "How are you?"))
            plan = await stage.planned(manager)
            assert (plan.rejection_reasons, plan.source_run_id) == (("resume_candidate_missing",), None)
            assert (await stage.planned(manager, source_run_id=first)).disposition == "continue"
            third = await stage.failing(manager, "And now?")
            assert (await stage.planned(manager)).source_run_id == third
            async with manager.send("s", "Wait.") as stream:
                await stream.started()
            fourth = stream.run_id
            assert (await stage.planned(manager)).source_run_id == fourth
            stream = resumed(manager, await stage.continuation(manager))
            await told(stream)
            assert (await stage.planned(manager)).source_run_id == stream.run_id
            await told(resumed(manager, await stage.continuation(manager)))
            plan = await stage.planned(manager)
            assert (plan.rejection_reasons, plan.source_run_id) == (("continuation_already_exists",), stream.run_id)

    go(main())


def test_ids_are_minted_in_order_and_a_callers_turn_is_taken(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        async with stage.life(cutting("Done."), new_id=numbered()) as manager:
            await stage.cut(manager)
            first, second = await stage.continuation(manager), await stage.continuation(manager, turn_id="mine")
            start = int(first.invocation_id.removeprefix("id-"))
            assert [first.run_id, first.turn_id, first.claim_id] == [f"id-{start + n}" for n in (1, 2, 3)]
            assert [second.invocation_id, second.run_id, second.turn_id, second.claim_id] == [
                f"id-{start + 4}",
                f"id-{start + 5}",
                "mine",
                f"id-{start + 6}",
            ]
            stream = resumed(manager, second)
            await told(stream)
            assert (stream.turn_id, stream.run_id) == ("mine", second.run_id)
        assert stage.of("turn/end")[-1]["turn_id"] == "mine"

    go(main())


def test_a_plan_is_of_a_session_that_is_there_and_says_who_has_it_open(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        async with stage.life(cutting()) as manager:
            await stage.cut(manager)
            with pytest.raises(SessionNotFound):
                await manager.plan_safe_boundary_continuation("nothing")
            with pytest.raises(ValueError, match="never"):
                await manager.plan_safe_boundary_continuation("s", rerun=["never"])
            async with SessionManager(stage.root, app=app_of(cutting())) as other:
                plan = await stage.planned(other)
                assert plan.disposition == "continue"
                assert [each.code for each in plan.diagnostics] == ["session_locked"]
                with pytest.raises(JournalLocked):
                    await told(resumed(other, plan.continuation))  # type: ignore[arg-type]
        assert stage.types()[-1] == "run/settled"

    go(main())


def test_what_has_changed_and_is_no_reason_is_remarked_on(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        link = stage.folder / "link"
        link.symlink_to(stage.work)
        async with stage.life(cutting("Fine.", "Done.")) as manager:
            first = await stage.cut(manager)
            await told(manager.send("s", "How are you?"))
            await manager.update("s", {"model": "scripted-2", "cwd": str(link)})
            plan = await stage.planned(manager, source_run_id=first)
            remarks = {each.code: each.message for each in plan.diagnostics}
            assert list(remarks) == ["workspace_location_changed", "configuration_changed", "later_turn_left_out"]
            assert str(stage.work) in remarks["workspace_location_changed"]
            assert str(link) in remarks["workspace_location_changed"]
            assert "scripted-2" in remarks["configuration_changed"]
            await told(manager.resume_safe_boundary_continuation(plan))
        target = stage.of("run/created")[-1]["run"]
        assert (target["model"], target["cwd"]) == ("scripted-2", str(link))

    go(main())


# ---------------------------------------------------------------- going on


def test_a_run_goes_on_with_what_was_replayed_and_no_new_message(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        script = cutting(["It is done.", Tool("look", {}, "40 chairs"), "Yes."])
        async with stage.life(script) as manager:
            source = await stage.cut(manager)
            continuation = await stage.continuation(manager)
            stream = resumed(manager, continuation)
            events = await told(stream)
            kinds = [event.kind for event in events]
            assert "user_message" not in kinds
            assert "steering_message" not in kinds
            assert [kinds[0], kinds[-1]] == ["step_start", "complete"]
            assert kinds.count("complete") == 1
            assert said(events) == ["It is done.", "Yes."]
            assert {event.turn_id for event in events} == {continuation.turn_id}
            assert stream.reason == {"kind": "completed"}
            [_, given] = script.built[0].inputs
            assert (given.text, given.content, given.run_id) == ("", [], continuation.run_id)
            assert given.invocation_id == continuation.invocation_id
            came = given.continuation
            assert came is not None
            assert (came.source, came.sandbox_boundary_denied, came.composition) == (
                continuation.source,
                False,
                None,
            )
            assert came.source["run_id"] == source
        types = stage.types()
        place = types.index("continuation/claim")
        assert types[place : place + 3] == CLAIMED
        assert types[-2:] == ["turn/end", "run/settled"]
        assert types.count("user/message") == 1
        assert texts(maka.inspect("s", root=stage.root).messages()) == ["Order chairs."]

    go(main())


def test_the_history_of_the_backend_is_the_plans_replay(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        histories: list[Any] = []
        look = Do(lambda given: histories.append(given.history))
        turns: list[Turn] = ["Hello!", [Tool("look", {}, "40 chairs"), "I shall or", Fail()], [look, "Done."]]
        async with stage.life(playing(*turns)) as manager:
            await manager.create(session_id="s", cwd=stage.work)
            await told(manager.send("s", "Hi."))
            await stage.failing(manager, "Order chairs.")
            continuation = await stage.continuation(manager)
            await told(resumed(manager, continuation))
        assert histories == [list(continuation.replay)]
        assert_legal(histories[0])
        assert texts(histories[0]) == ["Hi.", "Order chairs."]
        assert "I shall or" not in texts(histories[0], "assistant")
        assert histories[0][-1]["role"] == "tool"
        shown = maka.inspect("s", root=stage.root).messages()
        assert "I shall or" not in texts(shown, "assistant")
        assert_legal(shown)

    go(main())


def test_a_denial_and_a_composition_go_with_it(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        script = playing([Boundary({"network": True}), Fail()], "Done.")
        async with stage.life(script) as manager:
            await manager.create(session_id="s", cwd=stage.work)
            stream = manager.send("s", "Order chairs.")
            asked = await until(stream, "sandbox_boundary_request")
            answer = {"kind": "sandbox_boundary_decision", "decision": "deny"}
            await manager.answer("s", asked.data["interaction_id"], answer)
            await told(stream)
        composition = {"schema": 1, "composer_id": "c", "tool_names": ["look"]}

        def composed(events: list[dict[str, Any]]) -> None:
            data = {"run_id": stream.run_id, "composition": composition}
            place = next(number for number, event in enumerate(events) if event["type"] == "user/message")
            events.insert(
                place + 1, {"seq": 0, "ts": events[0]["ts"], "type": "run/composition", "data": data, "sum": ""}
            )

        stage.rewrite(composed)
        script = playing("Done.")
        async with stage.life(script) as manager:
            plan = await stage.planned(manager)
            assert [each.code for each in plan.diagnostics] == ["tools_missing"]
            await told(manager.resume_safe_boundary_continuation(plan))
            given = script.built[0].inputs[0].continuation
            assert given is not None
            assert (given.sandbox_boundary_denied, given.composition) == (True, composition)

    go(main())


def test_a_turn_that_stands_between_is_not_replayed_and_is_in_the_history_behind_it(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        histories: list[Any] = []
        look = Do(lambda given: histories.append(texts(given.history)))
        async with stage.life(cutting("Blue.", [look, "Done."], [look, "Chairs, and the sky."])) as manager:
            first = await stage.cut(manager)
            await told(manager.send("s", "What colour is the sky?"))
            continuation = await stage.continuation(manager, source_run_id=first)
            assert texts(continuation.replay) == ["Order chairs."]
            await told(resumed(manager, continuation))
            await told(manager.send("s", "What did I ask?"))
        assert histories == [["Order chairs."], ["Order chairs.", "What colour is the sky?", "What did I ask?"]]

    go(main())


def test_five_lives_of_one_run_that_are_killed_one_after_the_other(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        order = Order()
        apps, runs = [], []

        def killed(*parts: Any) -> Any:
            app = looping([*parts], ["I go on", Do(lambda _: stage.image())], tools=[order])
            apps.append(app)
            return app

        async with stage.life(killed(Ask("order", {"n": 0}))) as manager:
            await manager.create(session_id="s", cwd=stage.work)
            stream = manager.send("s", "Order chairs.")
            await told(stream)
            runs.append(stream.run_id)
        for number in range(1, 6):
            async with stage.life(killed(Ask("order", {"n": number}))) as manager:
                assert (await manager.recover("s")).state == "repaired"
                assert (await manager.recover("s")).state == "unchanged"
                continuation = await stage.continuation(manager)
                assert continuation.source["run_id"] == runs[-1]
                assert [segment["run_id"] for segment in continuation.boundary["segments"]] == runs
                stream = resumed(manager, continuation)
                await told(stream)
                runs.append(stream.run_id)
        assert len(order.ran) == len(set(order.ran)) == 6
        for number, app in enumerate(apps[1:], 1):
            messages = asked(app)[0]
            assert_legal(messages)
            assert texts(messages) == ["Order chairs."]
            assert sum(message["role"] == "tool" for message in messages) == number
            assert "I go on" not in texts(messages, "assistant")
        rows = maka.inspect("s", root=stage.root).continuations()
        assert [row["depth"] for row in rows] == [1, 2, 3, 4, 5]
        assert {row["root_run_id"] for row in rows} == {runs[0]}
        assert [row["previous_root_turn_id"] for row in stage.of("continuation/claim")] == [
            turn["turn_id"] for turn in maka.inspect("s", root=stage.root).turns()[:-1]
        ]

    go(main())


def test_the_limit_of_steps_goes_with_it(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        script = cutting("Done.")
        async with stage.life(script) as manager:
            await manager.create(session_id="s", cwd=stage.work)
            await told(manager.send("s", "Order chairs.", max_steps=7))
            await told(resumed(manager, await stage.continuation(manager)))
            assert [given.max_steps for given in script.built[0].inputs] == [7, 7]
        assert stage.of("run/created")[-1]["run"]["max_steps"] == 7

    go(main())


# ---------------------------------------------------------------- the workspace


def test_every_live_run_says_in_which_workspace_it_works(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        async with stage.life(cutting(FAILS, "Done.")) as manager:
            await stage.cut(manager)
            await stage.failing(manager, "Again.")
            await told(resumed(manager, await stage.continuation(manager)))
        found = stage.work.stat()
        here = workspace_identity(str(stage.work))
        assert here is not None
        assert {key: here[key] for key in ("realpath", "device", "inode")} == {
            "realpath": str(stage.work.resolve()),
            "device": found.st_dev,
            "inode": found.st_ino,
        }
        headers = [data["run"] for data in (*stage.of("turn/start"), *stage.of("run/created"))]
        assert [header["workspace_identity"] for header in headers] == [here] * 3

    go(main())


def test_an_inspector_that_fails_keeps_no_message_from_running(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        stage, eyes = Stage(tmp_path), Eyes()
        eyes.sees = OSError("the mount is gone")
        async with stage.life(inspected(playing("Hello."), eyes)) as manager:
            await manager.create(session_id="s", cwd=stage.work)
            assert said(await told(manager.send("s", "Hi."))) == ["Hello."]
        [start] = stage.of("turn/start")
        assert "workspace_identity" not in start["run"]
        assert "the mount is gone" in caplog.text

    go(main())


# ---------------------------------------------------------------- stops


#: Where a run stands before its backend is called.
BEFORE = (
    "after_continuation_claim_committed",
    "after_run_created",
    "after_continuation_start_committed",
    "before_backend_dispatch",
)


@pytest.mark.parametrize("point", BEFORE)
def test_a_stop_before_the_backend_is_called_keeps_it_from_being_called(tmp_path: Path, point: str) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        script = cutting("never", "Fine.")
        points = Points()
        async with stage.life(script, continuation_failpoint=points) as manager:
            await stage.cut(manager)
            stops: list[asyncio.Future[None]] = []
            points.acts[point] = lambda: stops.append(manager.stop("s"))
            stream = resumed(manager, await stage.continuation(manager))
            assert [event.kind for event in await told(stream)] == ["abort", "complete"]
            await stops[0]
            assert stream.reason == {"kind": "aborted", "source": "user"}
            assert script.built[0].sends == 1
            assert said(await told(manager.send("s", "Never mind."))) == ["never"]
        rows = maka.inspect("s", root=stage.root).runs()
        assert [row["status"] for row in rows] == ["failed", "cancelled", "completed"]
        assert stage.types().count("turn/end") == 3
        assert stage.of("turn/end")[1]["reason"] == {"kind": "aborted", "source": "user"}

    go(main())


def test_a_stop_before_the_claim_leaves_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        points = Points()
        async with stage.life(cutting("Done."), continuation_failpoint=points) as manager:
            await stage.cut(manager)
            before = files_of(stage.root)
            points.acts["before_continuation_claim"] = lambda: manager.stop("s")
            continuation = await stage.continuation(manager)
            stream = resumed(manager, continuation)
            assert await told(stream) == []
            with pytest.raises(TurnCancelled):
                await stream.started()
            assert files_of(stage.root) == before
            points.acts.clear()
            assert said(await told(resumed(manager, continuation))) == ["Done."]

    go(main())


def test_a_stop_cuts_off_the_second_look(tmp_path: Path) -> None:
    async def main() -> None:
        stage, eyes = Stage(tmp_path), Eyes()
        looking = asyncio.Event()
        points = Points()

        def hang() -> Any:
            looking.set()
            return asyncio.Event().wait()

        script = cutting("never")
        async with stage.life(inspected(script, eyes), continuation_failpoint=points) as manager:
            await stage.cut(manager)
            continuation = await stage.continuation(manager)
            points.acts["after_continuation_start_committed"] = lambda: setattr(eyes, "sees", hang)
            reading = asyncio.ensure_future(told(resumed(manager, continuation)))
            await looking.wait()
            await manager.stop("s")
            await reading
            assert script.built[0].sends == 1
        assert [data["reason"]["kind"] for data in stage.of("turn/end")] == ["failed", "aborted"]

    go(main())


def test_a_stop_in_the_middle_of_it_ends_it_and_it_goes_on_again(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        async with stage.life(cutting(["So", Never()], "Done.")) as manager:
            await stage.cut(manager)
            async with resumed(manager, await stage.continuation(manager)) as stream:
                await until(stream, "text_delta")
                await manager.stop("s", source="me")
            assert stream.reason == {"kind": "aborted", "source": "me"}
            again = await stage.continuation(manager)
            assert again.source["run_id"] == stream.run_id
            assert texts(again.replay) == ["Order chairs."]
            assert said(await told(resumed(manager, again))) == ["Done."]

    go(main())


@pytest.mark.parametrize("point", BEFORE)
def test_a_consumer_that_goes_away_stops_it(tmp_path: Path, point: str) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        script, points = cutting("never"), Points()
        reached, released = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            reached.set()
            await released.wait()

        points.acts[point] = hold
        async with stage.life(script, continuation_failpoint=points) as manager:
            await stage.cut(manager)
            stream = resumed(manager, await stage.continuation(manager))
            starting = asyncio.ensure_future(stream.started())
            await reached.wait()
            closing = asyncio.ensure_future(stream.aclose())
            await asyncio.sleep(0)
            released.set()
            await closing
            with suppress(TurnCancelled):
                await starting
            assert script.built[0].sends == 1
        assert stage.of("turn/end")[-1]["reason"] == {"kind": "aborted", "source": "abandoned"}
        assert stage.types().count("turn/end") == stage.types().count("run/settled") == 2

    go(main())


@pytest.mark.parametrize("point", BEFORE)
def test_a_manager_that_closes_ends_it(tmp_path: Path, point: str) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        script, points = cutting("never"), Points()
        reached, released = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            reached.set()
            await released.wait()

        points.acts[point] = hold
        async with stage.life(script, continuation_failpoint=points) as manager:
            await stage.cut(manager)
            reading = asyncio.ensure_future(told(resumed(manager, await stage.continuation(manager))))
            await reached.wait()
            closing = asyncio.ensure_future(manager.aclose())
            await asyncio.sleep(0)
            released.set()
            await closing
            assert [event.kind for event in await reading] == ["abort", "complete"]
            assert script.built[0].sends == 1
            with pytest.raises(KernelClosed):
                await manager.plan_safe_boundary_continuation("s")
        assert stage.of("turn/end")[-1]["reason"] == {"kind": "aborted", "source": "shutdown"}

    go(main())


def test_the_permission_to_call_a_backend_is_given_once(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        again: list[BaseException | None] = []

        async def twice() -> None:
            run = manager.kernel._entries.get("s").current
            assert run is not None
            assert run.generation is not None
            try:
                await manager.kernel._course._pump(run, run.generation)
            except BaseException as error:
                again.append(error)

        script = cutting(["So", Do(lambda _: twice()), "done."])
        async with stage.life(script) as manager:
            await stage.cut(manager)
            assert said(await told(resumed(manager, await stage.continuation(manager)))) == ["So", "done."]
            assert script.built[0].sends == 2
        [error] = again
        assert isinstance(error, RuntimeFailure)

    go(main())


def activate(manager: SessionManager, activation: Activation) -> None:
    """As a host does that makes a kernel of its own."""
    course = manager.kernel._course
    course._parts = attrs.evolve(course._parts, activation=activation)


def test_a_host_that_leaves_the_second_look_out_calls_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        held: list[int] = []

        async def forgets(operation: Callable[[], Awaitable[None]]) -> None:
            held.append(1)
            if len(held) != 3:
                await operation()

        script = cutting("never")
        async with stage.life(script) as manager:
            activate(manager, forgets)
            await stage.cut(manager)
            stream = resumed(manager, await stage.continuation(manager))
            with pytest.raises(RuntimeFailure, match="did not await"):
                await told(stream)
            assert script.built[0].sends == 1
            assert stream.reason is not None
            assert stream.reason["failure_class"] == "start_failed"

    go(main())


def test_the_second_look_is_inside_of_what_a_host_holds(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        trace: list[str] = []

        async def held(operation: Callable[[], Awaitable[None]]) -> None:
            trace.append("held")
            await operation()
            trace.append("let go")

        eyes = Eyes()
        sees = eyes.sees
        eyes.sees = lambda: (trace.append("look"), sees)[1]  # type: ignore[func-returns-value]
        script = cutting([Do(lambda _: trace.append("backend")), "Done."])
        async with stage.life(inspected(script, eyes)) as manager:
            activate(manager, held)
            await stage.cut(manager)
            continuation = await stage.continuation(manager)
            trace.clear()
            await told(resumed(manager, continuation))
        assert trace == ["held", "let go", "look", "held", "look", "let go", "backend"]

    go(main())


@pytest.mark.parametrize("point", BEFORE)
def test_an_interrupt_leaves_what_a_recovery_closes(tmp_path: Path, point: str) -> None:
    stage = Stage(tmp_path)
    script, points = cutting("never"), Points()

    async def main() -> None:
        reached = asyncio.Event()

        async def hold() -> None:
            reached.set()
            await asyncio.Event().wait()

        points.acts[point] = hold
        async with stage.life(script, continuation_failpoint=points) as manager:
            await stage.cut(manager)
            reading = asyncio.ensure_future(told(resumed(manager, await stage.continuation(manager))))
            await reached.wait()
            for task in asyncio.all_tasks():
                task.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    with pytest.raises((asyncio.CancelledError, KernelClosed)):
        asyncio.run(main())
    assert script.built[0].sends == 1

    async def later() -> None:
        async with stage.life() as manager:
            recovered = await manager.recover("s")
            assert recovered.error is None
            claim = stage.of("continuation/claim")[-1]
            [end] = [data for data in stage.of("turn/end") if data["run_id"] == claim["target_run"]["run_id"]]
            # Behind the start the process knew that it had called nobody, and said so.
            assert end["reason"]["kind"] == ("aborted" if point in BEFORE[2:] else "failed")
            assert maka.inspect("s", root=stage.root).verdict == "healthy"
            assert (await stage.planned(manager)).source_run_id == end["run_id"]

    go(later())


# ---------------------------------------------------------------- who comes second


def test_of_two_that_go_on_from_one_point_the_second_is_told_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        release = asyncio.Event()
        async with stage.life(cutting(["So", Wait(until=release), "done."])) as manager:
            await stage.cut(manager)
            one, two = await stage.continuation(manager), await stage.continuation(manager)
            async with resumed(manager, one) as stream:
                await until(stream, "text_delta")
                for again in (one, two):
                    with pytest.raises(ContinuationRevalidationError) as refused:
                        await told(resumed(manager, again))
                    assert refused.value.code == "continuation_claim_conflict"
                    assert one.run_id in str(refused.value)
                assert manager.status("s").turns == [one.turn_id]
                release.set()
                assert said(await told(stream)) == ["So", "done."]
        assert stage.types().count("continuation/claim") == 1

    go(main())


def test_of_several_that_begin_at_the_same_time_the_first_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        script = cutting("Done.", "Twice.")
        async with stage.life(script) as manager:
            await stage.cut(manager)
            plans = [await stage.continuation(manager) for _ in range(4)]
            outcomes = await asyncio.gather(*(told(resumed(manager, one)) for one in plans), return_exceptions=True)
            assert isinstance(outcomes[0], list)
            assert said(outcomes[0]) == ["Done."]
            for outcome in outcomes[1:]:
                assert isinstance(outcome, ContinuationRevalidationError)
                assert outcome.code == "continuation_claim_conflict"
                assert plans[0].run_id in str(outcome)
            assert script.built[0].sends == 2
        assert stage.types().count("continuation/claim") == 1

    go(main())


@pytest.mark.parametrize("given", [None, 7, "plan"])
def test_what_is_no_plan_is_not_resumed(tmp_path: Path, given: Any) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        async with stage.life() as manager:
            with pytest.raises(TypeError, match="what is resumed is a plan"):
                manager.resume_safe_boundary_continuation(given)

    go(main())


def test_a_message_behind_a_continuation_waits_for_it_and_one_before_it_makes_its_plan_stale(tmp_path: Path) -> None:
    async def main() -> None:
        for first in ("continuation", "message"):
            folder = tmp_path / first
            folder.mkdir()
            stage = Stage(folder)
            async with stage.life(cutting("One.", "Two.")) as manager:
                await stage.cut(manager)
                streams = [resumed(manager, await stage.continuation(manager)), manager.send("s", "Never mind.")]
                if first == "message":
                    streams.reverse()
                one, two = await asyncio.gather(*map(told, streams), return_exceptions=True)
                assert isinstance(one, list)
                assert said(one) == ["One."]
                if first == "message":
                    assert isinstance(two, ContinuationRevalidationError)
                    assert two.code == "session_advanced"
                else:
                    assert isinstance(two, list)
                    assert said(two) == ["Two."]
            ends = [type_ for type_ in stage.types() if type_ in ("turn/start", "continuation/start", "turn/end")]
            assert ends[1::2] == ["turn/end"] * (2 if first == "message" else 3)

    go(main())


def test_while_a_run_runs_here_nothing_of_it_is_planned(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        async with stage.life(cutting([Never()])) as manager:
            first = await stage.cut(manager)
            async with manager.send("s", "Wait.") as stream:
                await stream.started()
                for run_id in (None, stream.run_id, first):
                    with pytest.raises(SessionBusy, match=stream.run_id):
                        await manager.plan_safe_boundary_continuation("s", source_run_id=run_id)
                for work in (
                    manager.settle_indeterminate_continuation("s", "nothing"),
                    manager.archive("s"),
                ):
                    with pytest.raises(SessionBusy):
                        await work

    go(main())


def test_a_handoff_that_waits_keeps_messages_and_continuations_out(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        async with stage.life(cutting("So.")) as manager:
            await stage.cut(manager)
            continuation = await stage.continuation(manager)
            await told(manager.send("s", "A long task."))
        pause = stage.hand_over()
        async with stage.life() as manager:
            before = files_of(stage.root)
            with pytest.raises(SessionBusy, match=pause["successor_run_id"]):
                await told(manager.send("s", "Never mind."))
            with pytest.raises(ContinuationRevalidationError) as refused:
                await told(resumed(manager, continuation))
            assert refused.value.code == "target_run_conflict"
            assert files_of(stage.root) == before

    go(main())


def test_an_archived_session_is_not_gone_on_with(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        async with stage.life(cutting("Done.")) as manager:
            await stage.cut(manager)
            continuation = await stage.continuation(manager)
            await manager.archive("s")
            before = files_of(stage.root)
            with pytest.raises(SessionArchived):
                await told(resumed(manager, continuation))
            assert files_of(stage.root) == before
            await manager.unarchive("s")
            assert said(await told(resumed(manager, continuation))) == ["Done."]

    go(main())


def test_an_app_that_continues_nothing_takes_no_continuation_either(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        async with stage.life(cutting()) as manager:
            await stage.cut(manager)
            plan = await stage.planned(manager)
        async with stage.life(app_of(cutting(), safe_boundary_resume_enabled=False)) as manager:
            before = files_of(stage.root)
            for given in (plan, plan.continuation):
                with pytest.raises(ContinuationParked) as refused:
                    manager.resume_safe_boundary_continuation(given)  # type: ignore[arg-type]
                assert refused.value.rejection_reasons == ("resume_feature_disabled",)
            assert files_of(stage.root) == before

    go(main())


# ---------------------------------------------------------------- a disk that fails


class Failing(RealFs):
    """``how`` fails the write or the sync that concerns the bytes ``wanted``, once."""

    def __init__(self, wanted: bytes, how: str) -> None:
        self._wanted: bytes | None = wanted
        self._how = how
        self._armed = False
        self.write: Callable[[int, bytes], int] = self._write
        self.sync: Callable[[int], None] = self._sync

    def _write(self, fd: int, data: bytes) -> int:
        if self._wanted is not None and self._wanted in data:
            self._wanted = None
            if self._how == "write":
                raise OSError(errno.ENOSPC, "no space left")
            self._armed = True
        return RealFs().write(fd, data)

    def _sync(self, fd: int) -> None:
        if self._armed:
            self._armed = False
            raise OSError(errno.EIO, "input/output error")
        RealFs().sync(fd)


@asynccontextmanager
async def failing_disk(
    stage: Stage, wanted: bytes, how: str, script: Any, points: Points | None = None
) -> AsyncIterator[SessionManager]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("maka.runtime.sessions.FileJournals", partial(FileJournals, fs=Failing(wanted, how)))
        async with stage.life(script, continuation_failpoint=points or Points()) as manager:
            yield manager


#: Event whose write fails → what of the protocol is on disk then, and what the next open of the session adds to it.
BROKEN: dict[str, tuple[list[str], list[str]]] = {
    "continuation/claim": ([], []),
    "run/created": (CLAIMED[:1], ["run/created", "continuation/start", "turn/end", "run/settled"]),
    "continuation/start": (CLAIMED[:2], ["continuation/start", "turn/end", "run/settled"]),
}


@pytest.mark.parametrize("how", ["write", "sync"])
@pytest.mark.parametrize("type_", list(BROKEN))
def test_a_write_that_fails_before_the_backend_is_called_keeps_it_from_being_called(
    tmp_path: Path, type_: str, how: str
) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        left, closed = BROKEN[type_]
        script = cutting("Done.", "Fine.")
        wanted = f'"type":"{type_}"'.encode()
        async with failing_disk(stage, wanted, how, script) as manager:
            await stage.cut(manager)
            before = stage.types()
            continuation = await stage.continuation(manager)
            stream = resumed(manager, continuation)
            with pytest.raises(JournalWriteError):
                await told(stream)
            assert stream.reason is None
            assert script.built[0].sends == 1
            assert stage.types() == before + left
            assert manager.status("s").turns == []
            if left:
                # What it is opened for next closes what was cut off.
                await manager.rename("s", "Chairs")
                assert stage.types() == [*before, *left, *closed, "session/updated"]
                end = stage.of("turn/end")[-1]
                assert (end["run_id"], end["reason"]["kind"]) == (continuation.run_id, "failed")
                plan = await stage.planned(manager)
                assert plan.source_run_id == continuation.run_id
            else:
                plan = await stage.planned(manager)
                assert plan.source_run_id == continuation.source["run_id"]
            assert said(await told(manager.resume_safe_boundary_continuation(plan))) == ["Done."]
            assert script.built[-1].sends >= 1

    go(main())


@pytest.mark.parametrize("how", ["write", "sync"])
def test_a_stop_of_a_run_whose_write_fails_ends_and_tells_it(tmp_path: Path, how: str) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        script, points = cutting("never"), Points()
        stops: list[asyncio.Future[None]] = []
        async with failing_disk(stage, b'"type":"run/created"', how, script, points) as manager:
            await stage.cut(manager)
            points.acts["after_continuation_claim_committed"] = lambda: stops.append(manager.stop("s"))
            stream = resumed(manager, await stage.continuation(manager))
            with pytest.raises(JournalWriteError):
                await told(stream)
            with suppress(JournalWriteError):
                await stops[0]
            assert script.built[0].sends == 1
            assert said(await told(manager.send("s", "Go on."))) == ["never"]
        assert [data["reason"]["kind"] for data in stage.of("turn/end")] == ["failed", "failed", "completed"]

    go(main())


@pytest.mark.parametrize("how", ["write", "sync"])
def test_an_end_that_cannot_be_written_is_told_and_written_by_the_next_open(tmp_path: Path, how: str) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        script = cutting("Done.", "Fine.")
        async with failing_disk(stage, b'"reason":{"kind":"completed"}', how, script) as manager:
            await stage.cut(manager)
            continuation = await stage.continuation(manager)
            stream = resumed(manager, continuation)
            with pytest.raises(JournalWriteError):
                await told(stream)
            assert stream.reason is None
            assert said(await told(manager.send("s", "Go on."))) == ["Fine."]
        ends = {data["run_id"]: data["reason"] for data in stage.of("turn/end")}
        assert ends[continuation.run_id]["failure_class"] == "journal_write_failed"
        assert stage.types().count("turn/end") == 3
        assert maka.inspect("s", root=stage.root).verdict == "healthy"

    go(main())


def test_each_of_the_three_is_durable_before_the_next_is_written(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        trace: list[str] = []

        class Tracing(RealFs):
            def __init__(self) -> None:
                self.write: Callable[[int, bytes], int] = self._write
                self.sync: Callable[[int], None] = self._sync

            def _write(self, fd: int, data: bytes) -> int:
                trace.extend(name for name in CLAIMED if f'"type":"{name}"'.encode() in data)
                return RealFs().write(fd, data)

            def _sync(self, fd: int) -> None:
                RealFs().sync(fd)
                trace.append("sync")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("maka.runtime.sessions.FileJournals", partial(FileJournals, fs=Tracing()))
            script = cutting([Do(lambda _: trace.append("backend")), "Done."])
            async with stage.life(script) as manager:
                await stage.cut(manager)
                continuation = await stage.continuation(manager)
                trace.clear()
                await told(resumed(manager, continuation))
        place = trace.index(CLAIMED[0])
        assert trace[place : place + 7] == [CLAIMED[0], "sync", CLAIMED[1], "sync", CLAIMED[2], "sync", "backend"]

    go(main())


# ---------------------------------------------------------------- the ways out


async def started(stage: Stage) -> Continuation:
    """A continuation that was killed behind its start."""
    points = Points(after_continuation_start_committed=stage.image)
    async with stage.life(cutting("Done."), continuation_failpoint=points) as manager:
        await stage.cut(manager)
        continuation = await stage.continuation(manager)
        await told(resumed(manager, continuation))
    return continuation


def test_a_start_of_which_nothing_is_known_is_settled_and_what_it_started_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        continuation = await started(stage)
        script = playing("Done.")
        async with stage.life(script) as manager:
            assert (await manager.recover("s")).state == "unchanged"
            appended = await manager.settle_indeterminate_continuation("s", continuation.claim_id)
            assert [event.type for event in appended] == ["turn/end", "run/settled"] == stage.types()[-2:]
            assert appended[0].data["reason"]["failure_class"] == "continuation_indeterminate"
            assert script.built == []
            with pytest.raises(SettleRefused) as refused:
                await manager.settle_indeterminate_continuation("s", continuation.claim_id)
            assert refused.value.code == "claim_not_indeterminate"
            again = await stage.continuation(manager)
            assert again.source["run_id"] == continuation.run_id
            assert said(await told(resumed(manager, again))) == ["Done."]
            assert texts(script.built[0].inputs[0].history) == ["Order chairs."]

    go(main())


def test_a_new_message_settles_it_first(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        continuation = await started(stage)
        before = stage.types()
        script = playing("Fine.")
        async with stage.life(script) as manager:
            assert said(await told(manager.send("s", "Never mind."))) == ["Fine."]
            assert texts(script.built[0].inputs[0].history) == ["Order chairs.", "Never mind."]
        assert stage.types()[len(before) : len(before) + 4] == ["turn/end", "run/settled", "turn/start", "user/message"]
        end = stage.of("turn/end")[1]
        assert (end["run_id"], end["reason"]["failure_class"]) == (continuation.run_id, "continuation_indeterminate")
        assert [data["turn"] for data in stage.of("turn/start")] == [1, 3]

    go(main())


def test_what_cannot_be_settled_is_refused_and_says_why(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        async with stage.life(cutting("Done.")) as manager:
            await stage.cut(manager)
            continuation = await stage.continuation(manager)
            await told(resumed(manager, continuation))
            before = files_of(stage.root)
            for claim_id, code in (("nothing", "claim_unknown"), (continuation.claim_id, "claim_not_indeterminate")):
                with pytest.raises(SettleRefused, match=claim_id) as refused:
                    await manager.settle_indeterminate_continuation("s", claim_id)
                assert refused.value.code == code
            with pytest.raises(SettleRefused, match="c1") as refused:
                await manager.settle_call("s", "c1", ok=True)
            assert refused.value.code == "call_unknown"
            assert files_of(stage.root) == before

    go(main())


async def unknown(stage: Stage, recovery: str, *calls: str) -> tuple[str, list[str]]:
    """Killed in the bodies of these calls: the run, and the operations."""
    order = Order(stage.image, recovery=recovery)
    order.parallel_safe = True
    calling = [Ask("order", {"n": number}, call_id=call_id) for number, call_id in enumerate(calls)]
    async with stage.life(looping(calling, "Done.", tools=[order])) as manager:
        with suppress(JournalConflict):
            await manager.create(session_id="s", cwd=stage.work)
        stream = manager.send("s", "Order chairs.")
        await told(stream)
    return stream.run_id, order.ran


def test_a_name_of_two_calls_is_refused_and_their_operations_are_taken(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        _, [first] = await unknown(stage, "never", "c1")
        run_id, [second] = await unknown(stage, "never", "c1")
        app = looping("Done.", "So.", tools=[Order()])
        async with stage.life(app) as manager:
            await manager.recover("s")
            with pytest.raises(SettleRefused, match=f"{first}.*{second}") as refused:
                await manager.settle_call("s", "c1", ok=True)
            assert refused.value.code == "call_ambiguous"
            assert (await stage.planned(manager)).rejection_reasons == ("dangling_tool_state",)
            [event] = await manager.settle_call("s", second, ok=True, text="They are here.")
            assert (event.type, event.data["operation_id"]) == ("tool/outcome", second)
            await manager.settle_call("s", "c1", ok=False, text="Nobody knows of them.")
            continuation = await stage.continuation(manager)
            assert continuation.source["run_id"] == run_id
            await told(resumed(manager, continuation))
            await told(manager.send("s", "And?"))
            first_request, second_request = asked(app)
        results = [message["content"][0] for message in first_request if message["role"] == "tool"]
        # The other call is of a turn that is not gone on with: its outcome is told in the next turn.
        assert (results[1]["content"][0]["text"], results[1]["is_error"]) == ("They are here.", False)
        assert texts(second_request)[-2:] == ["Nobody knows of them.", "And?"]
        assert [data["source"] for data in stage.of("tool/outcome")] == ["user", "user"]

    go(main())


def test_a_recovery_asks_the_tools_and_each_outcome_is_durable_by_itself(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        _, operations = await unknown(stage, "reconcile", "c1", "c2", "c3")
        order = Order(recovery="reconcile")
        seen: list[int] = []

        def finds() -> Any:
            seen.append(stage.types().count("tool/outcome"))
            return None if len(seen) == 2 else ToolOutput.of(f"order {len(seen)}")

        order.finds = finds
        async with stage.life(looping("Done.", tools=[order])) as manager:
            recovered = await manager.recover("s")
            assert (recovered.state, recovered.reconciled, recovered.unsettled) == ("repaired", 2, 1)
            assert seen == [0, 1, 1]
            assert order.looks == operations
            assert order.ran == []
            plan = await stage.planned(manager)
            assert plan.rejection_reasons == ("dangling_tool_state",)
            assert "c2" in str(plan.diagnostics[0])
            await manager.settle_call("s", "c2", ok=True)
            assert (await stage.planned(manager)).disposition == "continue"
        assert [data["source"] for data in stage.of("tool/outcome")] == ["reconciled", "reconciled", "user"]

    go(main())


def test_a_message_waits_for_what_the_tools_find_out(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        await unknown(stage, "reconcile", "c1")
        order = Order(recovery="reconcile")
        order.finds = ToolOutput.of("the order is there")
        app = looping("Fine.", tools=[order])
        async with stage.life(app) as manager:
            await told(manager.send("s", "And?"))
            [request] = asked(app)
            [message] = [message for message in request if message["role"] == "tool"]
            assert message["content"][0]["content"][0]["text"] == "the order is there"
        types = stage.types()
        assert types.index("tool/outcome") < types.index("turn/start", types.index("turn/end"))

    go(main())


@pytest.mark.parametrize("recovery", ["read_only", "idempotent"])
def test_a_call_is_run_again_behind_the_start_and_before_the_backend(tmp_path: Path, recovery: str) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        run_id, [operation] = await unknown(stage, recovery, "c1")
        trace: list[str] = []
        order = Order(lambda: trace.append(f"body, {stage.types()[-1]}"), recovery=recovery)
        points = Points(
            before_backend_dispatch=lambda: trace.append(f"dispatch, {stage.types()[-1]}"),
            after_rerun_executed=lambda: trace.append(f"executed, {stage.types()[-1]}"),
            after_rerun_outcome_committed=lambda: trace.append(f"recorded, {stage.types()[-1]}"),
        )
        app = looping([Do(lambda _: trace.append("model")), "Done."], tools=[order])
        async with stage.life(app, continuation_failpoint=points) as manager:
            await manager.recover("s")
            assert (await stage.planned(manager)).rejection_reasons == ("dangling_tool_state",)
            continuation = await stage.continuation(manager, rerun=[recovery])
            assert len(continuation.rerun) == 1
            assert order.ran == []
            heard = [event async for event in resumed(manager, continuation)]
            kinds = [event.kind for event in heard]
            assert kinds[:2] == ["tool_start", "tool_result"]
            about = {"call_id": "c1", "operation_id": operation}
            assert heard[0].data == {**about, "name": "order", "recovery": recovery}
            assert heard[1].data["content"][0]["text"] == "ordered 1"
            assert {key: heard[1].data[key] for key in about} == about
            [request] = asked(app)
        assert order.ran == [operation]
        assert trace == [
            "body, continuation/start",
            "executed, continuation/start",
            "recorded, tool/outcome",
            "dispatch, tool/outcome",
            "model",
        ]
        [outcome] = stage.of("tool/outcome")
        assert (outcome["source"], outcome["run_id"], outcome["operation_id"]) == ("rerun", run_id, operation)
        assert_legal(request)
        [message] = [message for message in request if message["role"] == "tool"]
        assert [block["content"][0]["text"] for block in message["content"]] == ["ordered 1"]

    go(main())


def test_what_authorize_denies_is_not_run_again(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        await unknown(stage, "idempotent", "c1")
        order = Order(recovery="idempotent")
        seen: list[tuple[str, str, dict[str, Any]]] = []

        async def authorize(call: Any, tool: Any, arguments: dict[str, Any]) -> str:
            seen.append((call.call_id, tool.name, arguments))
            return "not here"

        model = ScriptedModel(["never"])
        app = App(
            backends={"loop": loop_backend(model, [order], authorize=authorize)},
            default_backend="loop",
            permission_mode="bypass",
        )
        async with stage.life(app) as manager:
            await manager.recover("s")
            stream = resumed(manager, await stage.continuation(manager, rerun=["idempotent"]))
            with pytest.raises(ContinuationRevalidationError) as refused:
                await told(stream)
            assert refused.value.code == "dangling_tool_state"
            assert (order.ran, model.requests) == ([], [])
            assert [each[:2] for each in seen] == [("c1", "order")]

    go(main())


def test_the_same_statement_again_is_fine_and_another_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        _, [operation] = await unknown(stage, "never", "c1")
        async with stage.life() as manager:
            await manager.recover("s")
            [event] = await manager.settle_call("s", "c1", ok=True, text="it is there")
            before = stage.journal.read_bytes()
            assert await manager.settle_call("s", operation, ok=True) == []
            assert await manager.settle_call("s", str(event.data["call_seq"]), ok=True) == []
            with pytest.raises(
                SettleRefused, match=r"the call c1 has its outcome already, ok \(stated by a person\)"
            ) as no:
                await manager.settle_call("s", "c1", ok=False)
            assert no.value.code == "call_settled"
            assert stage.journal.read_bytes() == before

    go(main())


def test_nothing_is_run_again_where_the_workspace_has_changed(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        await unknown(stage, "idempotent", "c1")
        order = Order(recovery="idempotent")
        points = Points(after_continuation_start_committed=lambda: stage.work.rename(stage.folder / "away"))
        async with stage.life(looping("never", tools=[order]), continuation_failpoint=points) as manager:
            await manager.recover("s")
            continuation = await stage.continuation(manager, rerun=["idempotent"])
            with pytest.raises(ContinuationRevalidationError) as refused:
                await told(resumed(manager, continuation))
            assert refused.value.code == "workspace_identity_changed"
            assert order.ran == []

    go(main())


def test_a_stop_ends_a_call_that_is_run_again(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        await unknown(stage, "idempotent", "c1")
        running = asyncio.Event()

        async def hang() -> None:
            running.set()
            await asyncio.Event().wait()

        app = looping("never", tools=[Order(hang, recovery="idempotent")])
        async with stage.life(app) as manager:
            await manager.recover("s")
            stream = resumed(manager, await stage.continuation(manager, rerun=["idempotent"]))
            reading = asyncio.ensure_future(told(stream))
            await running.wait()
            await manager.stop("s")
            await reading
            assert stream.reason == {"kind": "aborted", "source": "user"}
            assert asked(app) == []
            assert (await stage.planned(manager)).rejection_reasons == ("dangling_tool_state",)
        assert "tool/outcome" not in stage.types()

    go(main())


def test_an_interaction_of_a_continuation_is_answered_as_of_any_run(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        async with stage.life(cutting([Question("Shall I?"), "So be it."])) as manager:
            await stage.cut(manager)
            stream = resumed(manager, await stage.continuation(manager))
            asked = await until(stream, "question_request")
            answer = {"kind": "question_answer", "answers": ["Yes"]}
            await manager.answer("s", asked.data["interaction_id"], answer)
            assert said(await told(stream))[-1] == "So be it."

    go(main())
