"""The loop's backend run by the kernel: whole turns, and stops at every kind of moment."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from maka.runtime.backends.base import BackendRegistry
from maka.runtime.backends.loop import loop_backend
from maka.runtime.kernel.kernel import RuntimeKernel
from maka.runtime.loop import Options
from maka.runtime.scripted import Ask, Do, Say, ScriptedModel, Wait
from maka.runtime.tools import ToolOutput
from support.legal import assert_legal
from support.loops import FakeTool
from support.memory_journals import MemoryJournals, check_legal
from support.seeded_loop import run

SEEDS = range(12)


class World:
    """A kernel on sessions in memory, and one session that its loop backend runs the turns of."""

    def __init__(self, script: list[Any], tools: list[Any] | None = None) -> None:
        self.journals = MemoryJournals()
        self.journals.create("s", backend="loop", permission_mode="bypass")
        self.model = ScriptedModel(script)
        backends = BackendRegistry()
        backends.register("loop", loop_backend(self.model, tools or [], Options()))
        self.kernel = RuntimeKernel(journals=self.journals, backends=backends)

    async def turn(self, turn_id: str = "t") -> list[str]:
        return [event.kind async for event in self.kernel.start_turn("s", turn_id=turn_id, text="hello")]

    def stop(self, seconds: float = 0.0) -> None:
        asyncio.get_running_loop().call_later(seconds, self.kernel.stop_session, "s")

    def run(self, seed: int) -> list[str]:
        async def main() -> list[str]:
            kinds = await self.turn()
            await self.kernel.aclose()
            return kinds

        kinds = run(main(), seed)
        check_legal(self.journals.events("s"))
        return kinds

    def of(self, type_: str) -> list[dict[str, Any]]:
        return self.journals.of("s", type_)

    def types(self) -> list[str]:
        return [event.type for event in self.journals.events("s") if event.type != "assistant/delta"]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_whole_turn(seed: int) -> None:
    world = World([["let me", Ask("a"), Ask("a")], [Say("done", pieces=2, pause=0.1)]], [FakeTool("a")])
    kinds = world.run(seed)
    assert [kind for kind in kinds if kind.endswith("_delta")] == ["text_delta"] * 3
    assert kinds[-1] == "complete"
    assert world.of("turn/end")[0]["reason"] == {"kind": "completed"}
    assert [data["state"] for data in world.of("tool/result")] == ["ok", "ok"]
    assert world.types()[-3:] == ["step/end", "turn/end", "run/settled"]
    assert_legal(world.model.requests[1].messages)


def stubborn(stop: Callable[[], None]) -> Callable[[Any, Any], Any]:
    async def body(arguments: Any, context: Any) -> ToolOutput:
        stop()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            return ToolOutput.of("finished all the same")
        return ToolOutput.of("")

    return body


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_stopped_body_came_to_is_its_result(seed: int) -> None:
    world = World(
        [[Ask("a"), Ask("b")]], [FakeTool("a", stubborn(lambda: world.stop(0.0))), FakeTool("b", parallel_safe=False)]
    )
    kinds = world.run(seed)
    assert kinds[-2:] == ["abort", "complete"]
    states = {data["call_id"]: data["state"] for data in world.of("tool/result")}
    assert states == {"call-1": "ok", "call-2": "cancelled"}
    assert not world.of("tool/outcome")
    assert world.of("turn/end")[0]["reason"]["kind"] == "aborted"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_call_that_was_stopped_before_its_body_had_no_effect(seed: int) -> None:
    tool = FakeTool("a")
    world = World([[Ask("a")]], [tool])

    async def on_sync(journal: Any) -> None:
        if journal.events[-1].type == "tool/call":
            world.stop()
            await asyncio.sleep(0.1)

    world.journals.on_sync = on_sync
    world.run(seed)
    assert tool.entered == 0
    assert [data["state"] for data in world.of("tool/result")] == ["cancelled"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("after", [0.0, 0.001, 0.004])
def test_a_stop_at_any_moment_ends_the_turn_once(seed: int, after: float) -> None:
    script = [["text", Do(lambda request: world.stop(after)), Ask("a"), Ask("a")], ["more", Wait(1)]]
    world = World(script, [FakeTool("a")])
    kinds = world.run(seed)
    assert kinds.count("complete") == 1
    assert len(world.of("turn/end")) == len(world.of("run/settled")) == 1
    assert len(world.of("session/note")) == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_turns_follow_each_other_on_one_backend(seed: int) -> None:
    world = World([["one", Do(lambda request: world.stop()), Wait()], ["two"]])

    async def main() -> list[list[str]]:
        kinds = [await world.turn("t1"), await world.turn("t2")]
        await world.kernel.aclose()
        return kinds

    first, second = run(main(), seed)
    assert (first[-2:], second[-1]) == (["abort", "complete"], "complete")
    assert [data["reason"]["kind"] for data in world.of("turn/end")] == ["aborted", "completed"]
    assert [data["reason"] for data in world.of("request/header")] == ["initial", "resume"]
