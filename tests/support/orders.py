"""An agent that orders chairs, as a module that tests write, and lives of it that end with SIGKILL.

Environment variables say where it waits, to be killed there (`HOLD`: a name that it prints), what its tool declares
(`RECOVERY`), how the turn that goes on ends (`END`), and what its inspector sees (`FLIP`: another workspace each time).
`PACE` are seconds that an order takes, for a handoff that is asked for meanwhile.
Its requests stand in `requests.jsonl` beside it, each as the list of messages; its orders in `orders.txt`.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from .processes import Child

MODULE = '''\
"""An agent that orders chairs."""

import asyncio
import itertools
import json
import os
from pathlib import Path

from maka.runtime import App, Command, Options, SafetyObservation, ToolOutput, loop_backend, scripted_backend
from maka.runtime.backends.scripted import Boundary, Question
from maka.runtime.model import Finish, ModelError, TextDelta, ToolCallChunk

HERE = Path(__file__).parent
looks = itertools.count()


async def hold(point):
    if os.environ.get("HOLD") == point:
        print(point, flush=True)
        await asyncio.Event().wait()


class Model:
    """Orders where the user spoke last, else says that it is done."""

    provider = "scripted"

    async def stream(self, request):
        with open(HERE / "requests.jsonl", "a") as log:
            log.write(json.dumps(request.messages) + "\\n")
        print("the model was asked")
        yield TextDelta("I see to it. ")
        await hold("text")
        end = os.environ.get("END", "end_turn")
        if end == "fail":
            raise ModelError("there is no credit left", kind="provider_quota")
        if request.messages[-1]["role"] == "user" and end == "end_turn":
            yield ToolCallChunk("c1", "order", json.dumps({"what": "40 chairs"}), 1)
            yield Finish("tool_use")
        else:
            yield TextDelta("It is done.\\x1b[2J")
            yield Finish(end)


class Order:
    name = "order"
    description = "Orders something."
    parameters = {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]}
    parallel_safe = False
    recovery = os.environ.get("RECOVERY", "never")

    async def execute(self, arguments, context):
        with open(HERE / "orders.txt", "a") as orders:
            orders.write(arguments["what"] + "\\n")
        await hold("tool")
        await asyncio.sleep(float(os.environ.get("PACE", "0")))
        return ToolOutput.of("ordered " + arguments["what"])

    async def reconcile(self, arguments, operation_id):
        return ToolOutput.of("the order is there")


class Inspector:
    async def inspect_continuation_safety(self, session_id):
        return SafetyObservation(
            workspace_identity=next(looks) if os.environ.get("FLIP") else 0,
            background_operations_settled=True,
            available_tool_names=("order",),
        )


backends = {"loop": loop_backend(Model())}
app = App(backends=backends, default_backend="loop", model="m", tools=[Order()], permission_mode="bypass")
inspected = App(backends=backends, default_backend="loop", tools=[Order()], safety_inspector=Inspector())
toolless = App(backends=backends, default_backend="loop", model="m")


def handing(system="You order.", **more):
    made = loop_backend(Model(), options=Options(system=system, max_steps=9), handoff=True)
    values = {"tools": [Order()], "model": "m", "permission_mode": "bypass", **more}
    return App(backends={"loop": made}, default_backend="loop", **values)


handed = handing(safe_boundary_resume_enabled=False)
changed = handing("You order nothing.")
unarmed = handing(tools=())
armed = handing(tools=[Order(), Command()])
# Nobody can tell what its runs are made of before one is built.
hidden = App(
    backends={"loop": lambda context: changed.backends["loop"](context)}, default_backend="loop", tools=[Order()],
)
broken = 5


class Boom:
    def __init__(self, context):
        raise ValueError("no key")


exploding = App(backends={"loop": Boom}, default_backend="loop")
other = App(backends={"other": Boom}, default_backend="other")


def playing(part):
    return App(backends={"loop": scripted_backend([[part]])}, default_backend="loop")


questioning = playing(Question("Which colour?", lambda outcome: ["Red."]))
leaving = playing(Boundary({"network": True}, then=lambda outcome: ["Gone."]))
'''

_LIFE = """
import asyncio
import os
sys.path.insert(0, sys.argv[1])
import agent
from maka.runtime import SessionManager

async def hold(point):
    await agent.hold(point)

async def main():
    app = getattr(agent, sys.argv[4])
    async with SessionManager(sys.argv[2], app=app, continuation_failpoint=hold) as manager:
        if sys.argv[3]:
            await manager.create(session_id="s", cwd=sys.argv[1], permission_mode=sys.argv[3])
            stream = manager.send("s", "Please order 40 chairs.")
        else:
            await manager.recover("s")
            purpose = "handoff" if sys.argv[4] == "handed" else "resume"
            plan = await manager.plan_safe_boundary_continuation("s", purpose=purpose)
            stream = manager.resume_safe_boundary_continuation(plan)
        asked = None
        async for event in stream:
            if event.kind == "tool_start" and asked is None and "PACE" in os.environ:
                asked = asyncio.ensure_future(manager.hand_over("s"))
        if asked is not None:
            await asked
            await hold("handed over")

asyncio.run(main())
"""


class Orders:
    """The agent in its folder, with a root for its session `s`."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder, self.root = folder, root
        (folder / "agent.py").write_text(MODULE)

    @property
    def session(self) -> Path:
        return self.root / "sessions" / "s"

    @property
    def journal(self) -> Path:
        return self.session / "journal.jsonl"

    def life(self, hold: str, *, mode: str = "bypass", goes_on: bool = False, app: str = "app", **env: str) -> Child:
        """A process that has come to the point ``hold``; it creates the session, or goes on with it."""
        with pytest.MonkeyPatch.context() as patch:
            for key, value in {"HOLD": hold, **env}.items():
                patch.setenv(key, value)
            child = Child(_LIFE, self.folder, self.root, "" if goes_on else mode, app)
            for line in iter(child.line, hold):
                assert line, "it ended before it came to that point"
        return child

    def kill_at(self, hold: str, **options: Any) -> None:
        with self.life(hold, **options):
            pass

    def hand_over(self) -> dict[str, Any]:
        """A process that begins the turn is killed once that was handed over, behind its first step; the pause."""
        self.kill_at("handed over", app="handed", PACE="0.2")
        [pause] = [event["data"] for event in map(json.loads, self.journal.read_text().splitlines())
                   if event["type"] == "handoff/pause"]  # fmt: skip
        return dict(pause)

    def requests(self) -> list[list[dict[str, Any]]]:
        path = self.folder / "requests.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def orders(self) -> list[str]:
        path = self.folder / "orders.txt"
        return path.read_text().splitlines() if path.exists() else []

    def types(self) -> list[str]:
        return [json.loads(line)["type"] for line in self.journal.read_text().splitlines()]

    def data(self, type_: str, key: str) -> list[Any]:
        """One value of each event of that type."""
        events = map(json.loads, self.journal.read_text().splitlines())
        return [event["data"][key] for event in events if event["type"] == type_]

    def look(self) -> dict[str, tuple[int, ...]]:
        """Everything below the root, as the system describes it."""
        places = [self.root, *self.root.rglob("*")]
        return {str(place): self._described(place) for place in places}

    @staticmethod
    def _described(place: Path) -> tuple[int, ...]:
        found = os.stat(place)
        return found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns
