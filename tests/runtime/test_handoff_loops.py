"""Turns of the loop, and of scripted backends, that are handed over by a manager and finished by another one."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from maka.runtime.app import App
from maka.runtime.backends.loop import loop_backend
from maka.runtime.backends.scripted import ScriptedBackends, Tool, scripted_backend
from maka.runtime.composition import RunComposition
from maka.runtime.dispatch import ToolLimits
from maka.runtime.errors import ContinuationRevalidationError, HandoffRefused
from maka.runtime.loop import Options
from maka.runtime.scripted import Ask, Do, ScriptedModel
from maka.runtime.sessions import SessionManager
from support.legal import assert_legal
from support.lineages import COMPOSITION
from support.loops import FakeTool
from support.managed import data_of, go, managing, said, told, types_of

SYSTEM = Options(system="You keep notes.", max_steps=5)


class Turn:
    """A loop over a model that plays ``script``, and its app."""

    def __init__(self, script: list[Any], options: Options = SYSTEM, **settings: Any) -> None:
        self.model = ScriptedModel(script)
        self.tool = FakeTool("a")
        settings = {"handoff": True, **settings}
        self.app = App(
            backends={"loop": loop_backend(self.model, options=options, **settings)},
            default_backend="loop",
            model="m",
            tools=[self.tool],
            permission_mode="bypass",
        )


def held(asked: asyncio.Event, goes: asyncio.Event) -> Do:
    """The model says that it was asked, and waits."""

    async def hold(request: Any) -> None:
        asked.set()
        await goes.wait()

    return Do(hold)


async def begun(manager: SessionManager, work: Path) -> Any:
    await manager.create(session_id="s", cwd=work)
    stream = manager.send("s", "Order chairs.", turn_id="t")
    return asyncio.ensure_future(told(stream))


async def handed_over(root: Path, work: Path, options: Options = SYSTEM, **settings: Any) -> list[Any]:
    """Hands the turn over while its model is in the second step, and closes; what the client was told."""
    asked, goes = asyncio.Event(), asyncio.Event()
    turn = Turn([["One.", Ask("a")], ["Two.", held(asked, goes), Ask("a")], ["never"]], options, **settings)
    async with managing(root, turn.app) as manager:
        reading = await begun(manager, work)
        await asked.wait()
        handing = asyncio.ensure_future(manager.hand_over("s", timeout=30))
        await asyncio.sleep(0)
        goes.set()
        pause = await handing
        assert pause["remaining_steps"] == (None if options.max_steps is None else options.max_steps - 2)
        events: list[Any] = await reading
    assert len(turn.model.requests) == 2
    assert turn.tool.entered == 2
    return events


async def finished(root: Path, turn: Turn) -> list[Any]:
    """The plan and the resume of another process."""
    async with managing(root, turn.app) as manager:
        plan = await manager.plan_safe_boundary_continuation("s", purpose="handoff")
        assert (plan.disposition, plan.diagnostics) == ("continue", ())
        return await told(manager.resume_safe_boundary_continuation(plan))


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


# ---------------------------------------------------------------- the loop


def test_a_turn_is_handed_over_behind_a_step_and_finished_by_another_loop(tmp_path: Path, work: Path) -> None:
    async def main() -> None:
        first = await handed_over(tmp_path, work)
        assert said(first) == ["One.", "Two."]
        assert [event.kind for event in first if event.kind in ("complete", "error")] == []
        assert first[-1].kind == "step_end"
        turn = Turn([["Three.", Ask("a")], ["Done."]])
        second = await finished(tmp_path, turn)
        assert said(second) == ["Three.", "Done."]
        assert (second[-1].kind, second[-1].data) == ("complete", {"stop_reason": "end_turn"})
        [request, _] = turn.model.requests
        assert_legal(request.messages)
        assert [message["role"] for message in request.messages] == ["user", *["assistant", "tool"] * 2]
        assert turn.tool.entered == 1

    go(main())
    assert [step["step"] for step in data_of(tmp_path, "s", "step/start")] == [1, 2, 3, 4]
    recorded = data_of(tmp_path, "s", "run/composition")
    assert len({each["run_id"] for each in recorded}) == len(recorded) == 2
    first, second = (RunComposition.from_json(each["composition"]) for each in recorded)
    assert first == second
    [end] = data_of(tmp_path, "s", "turn/end")
    assert (end["turn_id"], end["run_id"], end["reason"]) == ("t", recorded[1]["run_id"], {"kind": "completed"})
    types = types_of(tmp_path, "s")
    assert types[types.index("handoff/pause") - 1] == "step/end"


def test_the_steps_that_are_left_are_all_that_the_successor_makes(tmp_path: Path, work: Path) -> None:
    options = Options(system="You keep notes.", max_steps=3)

    async def main() -> None:
        await handed_over(tmp_path, work, options)
        turn = Turn([["Three.", Ask("a")], ["never"]], options)
        assert (await finished(tmp_path, turn))[-1].data == {"stop_reason": "step_limit"}
        assert len(turn.model.requests) == 1

    go(main())


@pytest.mark.parametrize(
    ("now", "settings", "code", "words"),
    [
        (Options(system="You keep none.", max_steps=5), {}, "composition_changed", "prompt"),
        (Options(system="You keep notes.", params={"top_p": 1}), {}, "composition_changed", "provider options"),
        (SYSTEM, {"tools": [FakeTool("a"), FakeTool("b")]}, "composition_changed", "tool catalog, tool availability"),
        (SYSTEM, {"handoff": False}, "composition_unavailable", "Backend loop of the app does not record"),
    ],
)
def test_another_agent_uses_no_handoff_up(
    tmp_path: Path, work: Path, now: Options, settings: Any, code: str, words: str
) -> None:
    async def main() -> None:
        await handed_over(tmp_path, work)
        before = types_of(tmp_path, "s")
        turn = Turn([["never"]], now, **settings)
        async with managing(tmp_path, turn.app) as manager:
            plan = await manager.plan_safe_boundary_continuation("s", purpose="handoff")
            assert plan.rejection_reasons == (code,)
            assert words in str(plan.diagnostics[0])
            assert [each.code for each in plan.diagnostics] == [code, "handoff_pending"]
        assert (turn.model.requests, types_of(tmp_path, "s")) == ([], before)
        assert said(await finished(tmp_path, Turn([["Done."]]))) == ["Done."]

    go(main())


def test_what_only_a_model_tells_is_found_out_behind_the_start(tmp_path: Path, work: Path) -> None:
    async def main() -> None:
        await handed_over(tmp_path, work)
        model, tool = ScriptedModel([["never"]], provider="another"), FakeTool("a")
        backends = {"loop": loop_backend(lambda context: model, options=SYSTEM, handoff=True)}
        app = App(backends=backends, default_backend="loop", model="m", tools=[tool], permission_mode="bypass")
        async with managing(tmp_path, app) as manager:
            plan = await manager.plan_safe_boundary_continuation("s", purpose="handoff")
            assert (plan.disposition, plan.diagnostics) == ("continue", ())
            with pytest.raises(ContinuationRevalidationError, match="provider options changed") as raised:
                await told(manager.resume_safe_boundary_continuation(plan))
            assert raised.value.code == "composition_changed"
        assert model.requests == []

    go(main())
    assert [end["reason"]["kind"] for end in data_of(tmp_path, "s", "turn/end")] == ["failed"]


def test_what_says_how_long_somebody_tries_and_shows_makes_no_other_agent(tmp_path: Path, work: Path) -> None:
    async def main() -> None:
        await handed_over(tmp_path, work)
        turn = Turn([["Done."]], Options(system="You keep notes.", max_steps=9, limits=ToolLimits(shown=100)))
        assert said(await finished(tmp_path, turn)) == ["Done."]

    go(main())


def test_a_session_that_was_set_up_otherwise_meanwhile_is_told_in_the_plan_and_refused(
    tmp_path: Path, work: Path
) -> None:
    async def main() -> None:
        await handed_over(tmp_path, work)
        turn = Turn([["Done."]])
        async with managing(tmp_path, turn.app) as manager:
            await manager.update("s", {"model": "another"})
            plan = await manager.plan_safe_boundary_continuation("s", purpose="handoff")
            assert [each.code for each in plan.diagnostics] == ["configuration_changed"]
            with pytest.raises(ContinuationRevalidationError) as raised:
                await told(manager.resume_safe_boundary_continuation(plan))
            assert raised.value.code == "source_configuration_changed"
            await manager.update("s", {"model": "m"})
        assert said(await finished(tmp_path, turn)) == ["Done."]

    go(main())


def test_a_run_that_completes_while_it_is_asked_is_not_handed_over(tmp_path: Path, work: Path) -> None:
    async def main() -> None:
        asked, goes = asyncio.Event(), asyncio.Event()
        turn = Turn([[held(asked, goes), "Done."]])
        async with managing(tmp_path, turn.app) as manager:
            reading = await begun(manager, work)
            await asked.wait()
            handing = asyncio.ensure_future(manager.hand_over("s", timeout=30))
            await asyncio.sleep(0)
            goes.set()
            with pytest.raises(HandoffRefused) as raised:
                await handing
            assert raised.value.code == "run_over"
            assert (await reading)[-1].data == {"stop_reason": "end_turn"}

    go(main())


def test_a_loop_without_handoff_comes_to_no_boundary_and_goes_on(tmp_path: Path, work: Path) -> None:
    async def main() -> None:
        asked, goes = asyncio.Event(), asyncio.Event()
        turn = Turn([[Ask("a")], [held(asked, goes), "Done."]], handoff=False)
        async with managing(tmp_path, turn.app) as manager:
            reading = await begun(manager, work)
            await asked.wait()
            with pytest.raises(HandoffRefused) as raised:
                await manager.hand_over("s", timeout=0.05)
            assert raised.value.code == "composition_missing"
            goes.set()
            assert (await reading)[-1].data == {"stop_reason": "end_turn"}

    go(main())
    assert "run/composition" not in types_of(tmp_path, "s")


def test_a_successor_can_be_handed_over_too(tmp_path: Path, work: Path) -> None:
    async def main() -> None:
        await handed_over(tmp_path, work)
        asked, goes = asyncio.Event(), asyncio.Event()
        second = Turn([["Three.", held(asked, goes), Ask("a")], ["never"]])
        async with managing(tmp_path, second.app) as manager:
            plan = await manager.plan_safe_boundary_continuation("s", purpose="handoff")
            reading = asyncio.ensure_future(told(manager.resume_safe_boundary_continuation(plan)))
            await asked.wait()
            handing = asyncio.ensure_future(manager.hand_over("s", timeout=30))
            await asyncio.sleep(0)
            goes.set()
            assert (await handing)["remaining_steps"] == 2
            assert said(await reading) == ["Three."]
            parked = await manager.plan_safe_boundary_continuation("s")
            assert parked.rejection_reasons == ("runtime_identity_mismatch",)
            assert "`maka session resume s`; or give it up: `maka session settle s --handoff " in str(
                parked.diagnostics[0]
            )
        third = Turn([["Done."]])
        assert said(await finished(tmp_path, third)) == ["Done."]
        assert [message["role"] for message in third.model.requests[0].messages] == [
            "user",
            *["assistant", "tool"] * 3,
        ]

    go(main())
    assert len(data_of(tmp_path, "s", "run/composition")) == 3
    assert [step["step"] for step in data_of(tmp_path, "s", "step/start")] == [1, 2, 3, 4]


# ---------------------------------------------------------------- scripted backends


def scripted(*turns: Any, composition: Any = COMPOSITION, **settings: Any) -> ScriptedBackends:
    return scripted_backend(turns, composition=RunComposition.from_json(composition), **settings)


@pytest.mark.parametrize("steps", [False, True])
def test_a_scripted_turn_is_handed_over_too(tmp_path: Path, work: Path, steps: bool) -> None:
    async def main() -> None:
        asked, goes = asyncio.Event(), asyncio.Event()
        script = scripted(["One.", Tool("t"), held(asked, goes), "never"], steps=steps)
        async with managing(tmp_path, script) as manager:
            reading = await begun(manager, work)
            await asked.wait()
            handing = asyncio.ensure_future(manager.hand_over("s", timeout=30))
            await asyncio.sleep(0)
            goes.set()
            pause = await handing
            assert said(await reading) == ["One."]
            assert pause["remaining_steps"] is None
            assert script.built[0].boundaries == [None, None]
        after = scripted(["Two."], ["Three."], steps=steps)
        async with managing(tmp_path, after) as manager:
            plan = await manager.plan_safe_boundary_continuation("s", purpose="handoff")
            assert plan.rejection_reasons == ("tool_catalog_mismatch",)
        after = scripted([Tool("t"), "Two."], steps=steps)
        async with managing(tmp_path, after) as manager:
            plan = await manager.plan_safe_boundary_continuation("s", purpose="handoff")
            events = await told(manager.resume_safe_boundary_continuation(plan))
            assert said(events) == ["Two."]
            assert after.built[0].prepared == [pause["successor_run_id"]] * 2

    go(main())
    assert len(data_of(tmp_path, "s", "run/composition")) == 2
    assert [step["step"] for step in data_of(tmp_path, "s", "step/start")] == [1, 2, 3]
