"""A program is interrupted: by signals, by a tool that raises it, by a loop that cancels all tasks at any moment."""

import asyncio
import contextlib
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import maka
from maka.repair.plan import diagnose
from maka.runtime.backends.base import BackendRegistry
from maka.runtime.backends.loop import loop_backend
from maka.runtime.backends.scripted import Never, scripted_backend
from maka.runtime.kernel.kernel import RuntimeKernel
from maka.runtime.scripted import Ask, Say, ScriptedModel
from maka.runtime.tools import ToolOutput
from support.loops import FakeTool
from support.memory_journals import MemoryJournals, check_legal
from support.processes import Child
from support.seeded_loop import run

PROGRAM = """
import asyncio, sys, time
from maka.runtime import App, Ask, ScriptedModel, SessionManager, loop_backend
from maka.runtime.tools import ToolOutput

class Held:
    name, description, parameters = "held", "", {"type": "object"}
    recovery, parallel_safe = "never", False

    async def execute(self, arguments, context):
        print("in the tool", flush=True)
        if sys.argv[2] == "raises":
            raise KeyboardInterrupt
        if sys.argv[2] == "blocks":
            time.sleep(60)
        if sys.argv[2] == "clings":
            try:
                await asyncio.sleep(60)
            finally:
                print("cancelled", flush=True)
                await asyncio.sleep(60)
        return ToolOutput.of("done")

model = ScriptedModel([[Ask("held")], "ok"])
app = App(backends={"loop": loop_backend(model)}, default_backend="loop", tools=[Held()], permission_mode="bypass")

async def main():
    manager = SessionManager(sys.argv[1], app=app)
    try:
        await manager.create(session_id="s")
        async for event in manager.send("s", "go"):
            pass
    finally:
        if sys.argv[3] == "closes":
            await manager.aclose()

asyncio.run(main())
"""


def held(child: Child) -> None:
    assert child.line() == "in the tool"


def interrupted(child: Child) -> None:
    child.process.send_signal(signal.SIGINT)


@pytest.mark.timeout(40)
@pytest.mark.parametrize(
    ("how", "closes"),
    [("blocks", "closes"), ("blocks", "leaves"), ("raises", "closes"), ("raises", "leaves"), ("clings", "closes")],
)
def test_a_program_that_is_interrupted_ends_soon_and_its_turn_has_its_end(
    tmp_path: Path, how: str, closes: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with Child(PROGRAM, tmp_path, how, closes) as child:
        held(child)
        if how == "blocks":
            # The first cancels the program's main task, which cannot happen while the loop is held.
            interrupted(child)
            for _ in range(3):
                time.sleep(0.2)
                interrupted(child)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    # On a busy machine two signals may have come as one; then another is the second.
                    child.process.wait(timeout=5)
                    break
        if how == "clings":
            interrupted(child)
            assert child.line() == "cancelled"
            # By then the loop waits for the tool: what it is interrupted in is nothing of the kernel.
            time.sleep(0.2)
            interrupted(child)
        child.process.wait(timeout=10)
        assert child.process.returncode == -signal.SIGINT
    assert "Task exception was never retrieved" not in capfd.readouterr().err
    view = maka.inspect("s", root=tmp_path)
    assert diagnose((tmp_path / "sessions" / "s" / "journal.jsonl").read_bytes(), "s").verdict == "healthy"
    assert view.turns()[0]["reason"] == {"kind": "aborted", "source": "shutdown"}
    assert [call["state"] for call in view.turns()[0]["calls"]] == ["unknown"]
    assert view.runs()[0]["status"] == "cancelled"
    assert not [event for event in view.events if event.type == "session/note" and event.data["kind"] == "quarantine"]


class Torn:
    """A kernel on a session in memory; ``at`` callbacks after the start every task of the loop is cancelled."""

    def __init__(self, backend: Any) -> None:
        self.journals = MemoryJournals()
        self.journals.create("s", permission_mode="bypass")
        registry = BackendRegistry()
        registry.register("fake", backend)
        self.kernel = RuntimeKernel(journals=self.journals, backends=registry)

    async def consume(self, *, closes: bool) -> None:
        try:
            async for event in self.kernel.start_turn("s", text="go", turn_id="t"):
                if event.kind == "tool_start" and closes:
                    await self.kernel.stop_session("s")
        finally:
            if closes:
                await self.kernel.aclose()

    async def main(self, at: int, *, closes: bool) -> float:
        consumer = asyncio.ensure_future(self.consume(closes=closes))
        for _ in range(at):
            await asyncio.sleep(0)
        # On a disk a sync is waited for in a thread, which nobody cancels.
        others = {task for task in asyncio.all_tasks() if not task.get_name().startswith("sync")}
        tasks = others - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        began = asyncio.get_running_loop().time()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert consumer.done()
        return asyncio.get_running_loop().time() - began


async def slow(arguments: Any, context: Any) -> ToolOutput:
    await asyncio.sleep(30)
    return ToolOutput.of("")


def looped() -> Any:
    return loop_backend(ScriptedModel([["let me", Ask("a"), Ask("a")], [Say("done", pieces=2)]]), [FakeTool("a", slow)])


@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize("backend", [looped, lambda: scripted_backend([["so", Never()]])])
@pytest.mark.parametrize("seed", range(12))
def test_whenever_all_tasks_are_cancelled_a_turn_that_began_has_its_end(seed: int, backend: Any, closes: bool) -> None:
    for at in range(0, 240, 5):
        torn = Torn(backend())
        seconds = run(torn.main(at + seed % 5, closes=closes), seed)
        assert seconds < 2
        events = torn.journals.events("s")
        begun = [event for event in events if event.type == "turn/start"]
        for ends in ("turn/end", "run/settled"):
            assert len([event for event in events if event.type == ends]) == len(begun)
        if begun:
            assert check_legal(events) == "healthy"
            assert torn.journals.of("s", "turn/end")[0]["reason"]["kind"] in ("aborted", "completed")
