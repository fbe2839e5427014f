"""Sessions that were cut off and go on, by managers on a real root: a copy of the root is what a kill leaves."""

import inspect
import json
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

from maka.journal.reader import JOURNAL
from maka.runtime.app import App
from maka.runtime.backends.loop import loop_backend
from maka.runtime.backends.scripted import ScriptedBackends, Turn, scripted_backend
from maka.runtime.continuation.plan import Continuation, ContinuationPlan
from maka.runtime.continuation.safety import SafetyObservation
from maka.runtime.scripted import Fail, ScriptedModel
from maka.runtime.sessions import SessionManager
from maka.runtime.tools import ToolContext, ToolOutput

from .builder import ZERO, seal
from .lineages import COMPOSITION
from .managed import app_of, files_of, managing, playing, told

#: A turn that fails when it was asked.
FAILS: Turn = [Fail(kind="provider_quota", message="there is no credit left")]


class Eyes:
    """An inspector. ``sees`` is what it gives, or raises, or a function that gives it."""

    def __init__(self, **values: Any) -> None:
        self.looks = 0
        self.sees: Any = SafetyObservation(
            **{
                "workspace_identity": "workspace-1",
                "background_operations_settled": True,
                "available_tool_names": ("order",),
                **values,
            }
        )

    async def inspect_continuation_safety(self, session_id: str) -> Any:
        self.looks += 1
        sees = self.sees() if callable(self.sees) else self.sees
        if inspect.isawaitable(sees):
            sees = await sees
        if isinstance(sees, Exception):
            raise sees
        return sees


class Points:
    """Awaited at each failpoint: ``reached`` are their names, ``acts`` what a test does there."""

    def __init__(self, **acts: Callable[[], Any]) -> None:
        self.reached: list[str] = []
        self.acts = acts

    async def __call__(self, point: str) -> None:
        self.reached.append(point)
        made = self.acts.get(point, lambda: None)()
        if inspect.isawaitable(made):
            await made


class Order:
    """A tool that orders: ``act`` is what its body does, and may give its output; ``ran`` the operations of its runs.

    ``finds`` is what its reconcile gives, or a function that gives it; ``looks`` the operations that it was asked of.
    """

    description = "Orders something."
    parallel_safe = False

    def __init__(self, act: Callable[[], Any] = lambda: None, name: str = "order", **values: Any) -> None:
        self.name = name
        self.recovery = values.get("recovery", "never")
        self.parameters: dict[str, Any] = {"type": "object"}
        self.act = act
        self.finds: Any = None
        self.ran: list[str] = []
        self.looks: list[str] = []

    async def execute(self, arguments: dict[str, Any], context: ToolContext) -> ToolOutput:
        self.ran.append(context.operation_id)
        made = self.act()
        if inspect.isawaitable(made):
            made = await made
        return made if isinstance(made, ToolOutput) else ToolOutput.of(f"ordered {len(self.ran)}")

    async def reconcile(self, arguments: dict[str, Any], operation_id: str) -> Any:
        self.looks.append(operation_id)
        made = self.finds() if callable(self.finds) else self.finds
        return await made if inspect.isawaitable(made) else made


class Stage:
    """A ``root`` that lives on in copies, and a workspace ``work`` of the session `s`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.work = folder / "work"
        self.work.mkdir()
        self._copies = count(1)
        self._images: list[Path] = []

    @property
    def journal(self) -> Path:
        return self.root / "sessions" / "s" / JOURNAL

    @asynccontextmanager
    async def life(self, app: ScriptedBackends | App | None = None, **options: Any) -> AsyncIterator[SessionManager]:
        """A process. Where ``image`` was called in it, it was killed there."""
        self._images.clear()
        async with managing(self.root, playing() if app is None else app, **options) as manager:
            yield manager
        if self._images:
            self.root = self._images[-1]

    def image(self) -> None:
        """What is on disk now is what the next life finds."""
        self._images.append(self.root.with_name(f"root-{next(self._copies)}"))
        shutil.copytree(self.root, self._images[-1])

    def restore(self, older: bytes) -> None:
        """Somebody puts an older copy of the journal in its place."""
        self.journal.write_bytes(older)

    def events(self) -> list[dict[str, Any]]:
        """What stands in the journal, lines that somebody wrote over left out."""
        return [json.loads(line) for line in self.journal.read_bytes().splitlines() if not line.startswith(b"#")]

    def of(self, type_: str) -> list[dict[str, Any]]:
        return [event["data"] for event in self.events() if event["type"] == type_]

    def types(self) -> list[str]:
        return [event["type"] for event in self.events()]

    def rewrite(self, change: Callable[[list[dict[str, Any]]], None]) -> None:
        """Somebody edits the journal and numbers and seals it anew."""
        events = self.events()
        change(events)
        lines, prev = [], ZERO
        for number, event in enumerate(events):
            del event["sum"]
            line, prev = seal(prev, {**event, "seq": number})
            lines.append(line + b"\n")
        self.restore(b"".join(lines))

    def damage(self, *numbers: int) -> None:
        """Somebody writes over these lines."""
        lines = self.journal.read_bytes().splitlines(keepends=True)
        for number in numbers:
            lines[number] = b"#" * (len(lines[number]) - 1) + b"\n"
        self.restore(b"".join(lines))

    def hand_over(self) -> dict[str, Any]:
        """The newest run was paused when it was asked, and its turn waits for a successor; the pause."""
        pause: dict[str, Any] = {"protocol": "runtime_handoff_pause_v1", "handoff_id": "h", "host_epoch": "e"}

        def paused(events: list[dict[str, Any]]) -> None:
            place = max(number for number, event in enumerate(events) if event["type"] == "user/message")
            del events[place + 1 :]
            ids = {key: events[place]["data"][key] for key in ("run_id", "turn_id")}
            pause.update(ids, root_run_id=ids["run_id"], successor_run_id="r2", successor_invocation_id="i2")
            pause.update(claim_id="c2", remaining_steps=9)
            composition = {"run_id": ids["run_id"], "composition": COMPOSITION}
            for type_, data in (("run/composition", composition), ("handoff/pause", pause)):
                events.append({"seq": 0, "ts": events[place]["ts"], "type": type_, "data": data, "sum": ""})

        self.rewrite(paused)
        return pause

    async def cut(self, manager: SessionManager, text: str = "Order chairs.", **values: Any) -> str:
        """The session `s` with one turn, ``t1``, that the provider has failed; its run."""
        await manager.create(session_id="s", cwd=self.work, **values)
        return await self.failing(manager, text, turn_id="t1")

    async def failing(self, manager: SessionManager, text: str, **values: Any) -> str:
        stream = manager.send("s", text, **values)
        await told(stream)
        assert stream.reason is not None
        assert stream.reason["kind"] != "completed"
        return stream.run_id

    async def planned(self, manager: SessionManager, **asked: Any) -> ContinuationPlan:
        """A plan, which has changed no byte."""
        before = files_of(self.root)
        plan = await manager.plan_safe_boundary_continuation("s", **asked)
        assert files_of(self.root) == before
        return plan

    async def continuation(self, manager: SessionManager, **asked: Any) -> Continuation:
        plan = await self.planned(manager, **asked)
        assert plan.continuation is not None, plan
        return plan.continuation


def cutting(*turns: Turn) -> ScriptedBackends:
    """A backend whose first turn fails, and that then plays ``turns``."""
    return scripted_backend([FAILS, *turns], steps=True)


def looping(*script: Any, tools: Any = (), **values: Any) -> App:
    """An app with the loop over a model that plays ``script``; its model is ``app.backends["loop"].model``."""
    values = {"model": "scripted-1", "permission_mode": "bypass", **values}
    return App(backends={"loop": loop_backend(ScriptedModel(script))}, default_backend="loop", tools=tools, **values)


def inspected(script: ScriptedBackends, eyes: Eyes, **values: Any) -> App:
    return app_of(script, safety_inspector=eyes, **values)


def numbered(prefix: str = "id") -> Callable[[], str]:
    numbers: Iterator[int] = count(1)
    return lambda: f"{prefix}-{next(numbers)}"
