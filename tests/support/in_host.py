"""Lanes of a host in one process, over journals in memory, backends that play scripts, and a clock that nobody waits
for: what a rule is about, and nothing else.
"""

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, ParamSpec, Self
from unittest.mock import patch

from maka.journal.errors import JournalWriteError
from maka.journal.events import Draft, Event, JsonObject
from maka.runtime.backends.base import BackendRegistry
from maka.runtime.backends.scripted import Composition, Faults, Turn, scripted_backend
from maka.runtime.continuation.safety import SafetyObservation
from maka.runtime.host.admission import StopAsked
from maka.runtime.host.broadcast import Following
from maka.runtime.host.connection import Caller
from maka.runtime.host.host import Host
from maka.runtime.host.lane import Floor, Lane
from maka.runtime.host.messages import QueuedMessages
from maka.runtime.host.operations import OPERATIONS, QueueRetract, TurnMessageSubmit, TurnStart
from maka.runtime.host.protocol import HostError
from maka.runtime.host.subscription import UNTOLD, Subscription
from maka.runtime.interactions import JournalInteractions
from maka.runtime.journals import OpenSession
from maka.runtime.kernel.generations import Deadlines
from maka.runtime.kernel.kernel import RuntimeKernel
from maka.runtime.lifecycle import Lifecycle, LifecycleEvent

from .memory_journals import BEGAN, MemoryJournal, MemoryJournals, in_stretches
from .seeded_loop import run

P = ParamSpec("P")
DEADLINES = Deadlines(stop=2.0, dispose=2.0, after_step=5.0, exit=3.0, grace=0.1)
OVER = ("completed", "failed", "cancelled")
_SEEDS = 3


def in_process(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """The test on several loops, each of which draws the order of what is ready anew. Their clocks are virtual."""

    @functools.wraps(test)
    def whole(*arguments: P.args, **more: P.kwargs) -> None:
        for seed in range(_SEEDS):
            run(test(*arguments, **more), seed)

    return whole


class Disk:
    """Where memory journals are synced. ``open`` is cleared to hold what is synced; ``failing``: so many syncs fail."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.failing = 0
        self.poisoned = False
        self.asked = 0

    async def sync(self, journal: MemoryJournal) -> None:
        self.asked += 1
        await asyncio.sleep(0)
        await self.open.wait()
        if self.failing:
            self.failing -= 1
            raise JournalWriteError("the disk fails", errno=5, poisoned=self.poisoned)


class InHost:
    """A host without sockets whose session ``s1`` plays ``turns``, or what ``play`` makes of the text of a turn.

    Leaving it ends it as a host is ended; nothing of it is left then.
    """

    def __init__(
        self,
        *turns: Turn,
        play: Callable[[Any], Turn] | None = None,
        journals: MemoryJournals | None = None,
        faults: Faults | Sequence[Faults] | None = None,
        composition: Composition | None = None,
        keep_open: int = 32,
    ) -> None:
        self.disk = Disk()
        self.journals = journals or MemoryJournals()
        if journals is None:
            self.journals.create("s1")
        self.journals.on_sync = self.disk.sync
        self.backends = scripted_backend(play or turns, steps=True, faults=faults, composition=composition)
        self.draining = False
        self.told: list[LifecycleEvent] = []
        self._ids = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        registry = BackendRegistry()
        registry.register("fake", self.backends)
        lifecycle = Lifecycle()
        self.messages = QueuedMessages(self._opened, self._new_id)
        self.interactions = JournalInteractions(self._opened, lifecycle=lifecycle)
        loop = asyncio.get_running_loop()
        self.journals.watch = self._observed
        self.kernel = RuntimeKernel(
            journals=self.journals,
            backends=registry,
            interaction_authority=self.interactions,
            message_authority=self.messages,
            lifecycle=lifecycle,
            new_id=self._new_id,
            now=lambda: BEGAN + int(loop.time() * 1000),
            deadlines=DEADLINES,
            keep_open=keep_open,
            observe=self._observe,
        )
        self.kernel.subscribe(self._heard)
        floor = Floor(
            kernel=self.kernel,
            messages=self.messages,
            between=self._between,
            host_epoch="epoch",
            new_id=self._new_id,
            spawn=self.spawn,
            draining=lambda: self.draining,
        )
        self.lane = Lane("s1", floor)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.disk.open.set()
        if exception[0] is None:
            await self.end()

    async def end(self) -> None:
        self.draining = True
        await self.lane.end_with_host()
        try:
            await self.kernel.aclose(source="host_shutdown")
        except Exception:
            pass  # what is broken on purpose is looked at by the test
        self.lane.finish("host_draining", "over")
        while self._tasks:
            _, late = await asyncio.wait(set(self._tasks), timeout=60.0)
            assert not late, late

    # ------------------------------------------------------------ what a host gives its lanes

    def _new_id(self) -> str:
        self._ids += 1
        return f"id{self._ids}"

    def _opened(self, session_id: str) -> OpenSession | None:
        return self.kernel.opened(session_id)

    def _observed(self, session: OpenSession, event: Event) -> None:
        self.lane.observed(session, event)

    def _heard(self, event: LifecycleEvent) -> None:
        self.told.append(event)
        if event.kind in ("session_degraded", "session_opened", "session_quarantined"):
            self.lane.changed()

    async def _observe(self, *_: object) -> SafetyObservation:
        return SafetyObservation(
            workspace_identity="workspace-1", background_operations_settled=True, available_tool_names=()
        )

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> "asyncio.Task[Any]":
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _between(self, session_id: str, after: int, upto: int) -> Following:
        events = self.journals.events(session_id)
        return in_stretches(event for event in events if after < event.seq <= upto and event.type not in UNTOLD)

    # ------------------------------------------------------------ what clients ask

    async def start(self, turn_id: str, text: Any = "go", **more: Any) -> JsonObject:
        return await self.lane.start(TurnStart(session_id="s1", turn_id=turn_id, content=text, **more))

    async def submit(self, message_id: str, text: Any = "more", **more: Any) -> JsonObject:
        """For the next turn, unless a ``placement`` says otherwise."""
        more = {"placement": "next_turn", **more}
        asked = TurnMessageSubmit(session_id="s1", message_id=message_id, content=text, **more)
        return await self.lane.submit(asked, "tests")

    async def steer(self, message_id: str, text: str = "more") -> JsonObject:
        return await self.submit(message_id, text, placement="current_turn")

    async def retract(self, retract_id: str, message_ids: list[str] | None = None) -> JsonObject:
        return await self.lane.retract(QueueRetract(session_id="s1", retract_id=retract_id, message_ids=message_ids))

    async def stop(
        self, stop_id: str = "x", turn_id: str | None = None, run_id: str | None = None, **more: Any
    ) -> JsonObject:
        """By itself what runs. ``more``: ``mode``, ``retract``."""
        if turn_id is None or run_id is None:
            turn = await self.turn(turn_id or self.root_id)
            turn_id, run_id = turn["turn_id"], run_id or turn["run_id"]
        assert turn_id is not None
        assert run_id is not None
        return await self.lane.stop(turn_id, run_id, StopAsked(stop_id, "user", **more))

    async def turn(self, turn_id: str) -> JsonObject:
        return await self.lane.turn(turn_id)

    async def status(self, turn_id: str) -> str:
        status: str = (await self.turn(turn_id))["status"]
        return status

    async def watch(self, since: int | None = None) -> "Watch":
        watch = Watch(self)
        watch.snapshot, missed, following = await self.lane.open(watch.subscription, since)
        while missed:
            assert following is not None
            watch.missed += missed
            missed = await following()
        watch.take_up(watch.snapshot)
        return watch

    async def append(self, *drafts: Draft) -> None:
        await self.kernel.append("s1", lambda _: drafts)

    # ------------------------------------------------------------ what a test looks at

    @property
    def root_id(self) -> str:
        assert self.lane.root is not None
        return self.lane.root.turn_id

    @property
    def waiting(self) -> list[str]:
        """Messages that wait, as the open session has it."""
        opened = self.kernel.opened("s1")
        assert opened is not None
        return [item.message_id for item in opened.journal.state.queue.followups(opened.journal.state.turns.open)]

    @property
    def sent(self) -> list[str]:
        """What backends were sent, by turn."""
        return [given.turn_id for backend in self.backends.built for given in backend.inputs]

    def events(self) -> list[Event]:
        """What is durable."""
        return self.journals.events("s1")

    def of(self, type_: str) -> list[JsonObject]:
        return self.journals.of("s1", type_)

    def types(self) -> list[str]:
        return [event.type for event in self.events()]

    def batch(self, type_: str) -> list[str]:
        """The types of the batch that the only event of this type stands in."""
        events = self.events()
        [place] = [number for number, event in enumerate(events) if event.type == type_]
        begin = place
        while begin and events[begin - 1].more:
            begin -= 1
        return [event.type for event in events[begin : begin + events[begin].more + 1]]


class Watch:
    """A subscription that is read when a test says so, and held to its numbers and offsets."""

    _number = 0

    def __init__(self, host: InHost) -> None:
        Watch._number += 1
        self.host = host
        self.subscription = Subscription(f"w{Watch._number}", "s1", "epoch")
        self.snapshot: JsonObject = {}
        self.missed: list[Event] = []
        self.frames: list[JsonObject] = []
        self.texts: dict[tuple[str, str, int], str] = {}
        self.complete: set[tuple[str, str, int]] = set()
        self.lengths: dict[tuple[str, str, int], int] = {}

    def take_up(self, snapshot: JsonObject) -> None:
        self.lengths = {_key(stream): stream["length"] for stream in snapshot["streams"]}

    def read(self) -> list[JsonObject]:
        """All frames that wait."""
        frames = []
        while (frame := self.subscription.take()) is not None:
            self.frames.append(frame)
            frames.append(frame)
            assert frame["sequence"] == len(self.frames)
            if frame["type"] == "delta":
                self._take(frame["delta"])
        return frames

    def _take(self, delta: JsonObject) -> None:
        key = _key(delta)
        if delta.get("reset"):
            self.texts[key] = ""
        have = self.texts.get(key, "")
        assert len(have) == delta["offset"]
        self.texts[key] = have + delta["text"]
        if delta.get("complete"):
            self.complete.add(key)

    def snapshots(self) -> list[JsonObject]:
        """Those of the projections that were read."""
        return [frame["snapshot"] for frame in self.frames if frame["type"] == "projection"]

    def told(self) -> list[str]:
        """The types of the events that were read."""
        return [frame["event"]["type"] for frame in self.frames if frame["type"] == "event"]

    def roots(self) -> list[tuple[str, str]]:
        """How root turns stood, in the order in which that was told."""
        return [
            (root["turn_id"], root["status"]) for each in self.snapshots() if (root := each["root_turn"]) is not None
        ]


def _key(stream: JsonObject) -> tuple[str, str, int]:
    return stream["kind"], stream["message_id"], stream["index"]


async def passed(seconds: float = 0.3) -> None:
    """Lets happen what happens within that time, on a clock that nobody waits for."""
    await asyncio.sleep(seconds)


async def refused(call: Awaitable[Any]) -> str:
    """The code that something is refused with."""
    try:
        result = await call
    except HostError as error:
        return error.code
    raise AssertionError(f"it was not refused: {result}")


def updated(**patch: Any) -> Draft:
    return Draft("session/updated", {"patch": patch})


# ---------------------------------------------------------------- a whole host, without sockets


class Silent:
    """A server that nobody connects to. ``states``: what it was told of its host."""

    def __init__(self, *_: object, **__: object) -> None:
        self.connections: set[Any] = set()
        self.reachable = True
        self.states: list[str] = []
        self.changed = asyncio.Event()

    async def listen(self, path: object) -> None:
        pass

    def tell_state(self, state: str) -> None:
        self.states.append(state)
        self.changed.set()

    def stop_accepting(self) -> None:
        pass

    async def close(self, code: str, message: str, seconds: float) -> None:
        pass


class Life:
    """A host from its start to its end, asked without a wire."""

    def __init__(self, host: Host, server: Silent) -> None:
        self.host = host
        self.server = server
        self.connection: Any = Nobody()
        self.serving = asyncio.ensure_future(host.serve())

    @property
    def states(self) -> list[str]:
        return self.server.states

    async def is_ready(self) -> None:
        while "ready" not in self.states:
            self.server.changed.clear()
            changed = asyncio.ensure_future(self.server.changed.wait())
            await asyncio.wait({changed, self.serving}, return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
            if self.serving.done():
                self.serving.result()
                raise AssertionError("it has ended and was never ready")

    async def ask(self, operation: str, **asked: Any) -> JsonObject:
        """The answer of an operation. Raises what that raises."""
        caller = Caller(self.connection, "tests", "tests", asyncio.Event())
        return await self.host.call(operation, OPERATIONS[operation].input(**asked), caller)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Waits until something holds of what is on the disk."""
        async with asyncio.timeout(20):
            while not holds():
                await asyncio.sleep(0.01)

    async def end(self, mode: Literal["stop", "handoff"] = "stop", timeout: float | None = None) -> None:
        """Raises what the host ends with."""
        self.host.shut_down(mode, timeout)
        await self.serving


class Nobody:
    """A connection that nothing is read from."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()
        self.in_flight = 0
        self.frames: list[JsonObject] = []
        self.progress = 0
        self.has_room = True

    async def send(self, frame: JsonObject) -> None:
        self.frames.append(frame)

    def put(self, frame: JsonObject) -> None:
        self.frames.append(frame)


@asynccontextmanager
async def a_host(root: Path, app: object, *, ready: bool = True, **options: Any) -> AsyncIterator[Life]:
    """A host that is ``ready``, and is stopped in the end where it has not been before."""
    silent = Silent()
    with patch("maka.runtime.host.server.Server", lambda *_, **__: silent):
        life = Life(Host(root, app, **options), silent)
        try:
            if ready:
                await life.is_ready()
            yield life
        finally:
            if not life.serving.done():
                life.host.shut_down("stop")
            await asyncio.gather(life.serving, return_exceptions=True)
