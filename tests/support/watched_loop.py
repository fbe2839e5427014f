"""The real loop as a backend of a simulated process, over a drawn model and a drawn tool, looked at from outside."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from maka.journal.events import JsonObject, Recovery
from maka.runtime.backends.base import BackendContext, SendInput, StopMode, StopReason
from maka.runtime.backends.loop import LoopBackend
from maka.runtime.model import Chunk, ModelRequest
from maka.runtime.retry import RetryPolicy
from maka.runtime.scripted import Ask, Fail, Part, Say, ScriptedModel, Wait
from maka.runtime.session_events import SessionEvent
from maka.runtime.steps import Options
from maka.runtime.tools import ToolContext, ToolFailed, ToolOutput

from .chaos_backend import ChaosError, Watch


class WatchedLoop:
    """Implements Backend. It is never to fail by itself: neither to stop nor to be disposed."""

    stop_failed = False

    def __init__(self, watch: Watch, context: BackendContext) -> None:
        self.session_id = context.session_id
        self.disposals = 0
        self.raised: list[tuple[float, ChaosError]] = []
        self._watch = watch
        self._loop = LoopBackend(
            _DrawnModel(watch),
            [_DrawnTool(watch)],
            Options(retry=RetryPolicy()),
            context,
            chance=watch.random.random,
            handoff=True,
        )

    async def prepare_run_composition(self, run_id: str, turn_id: str) -> None:
        assert self._loop.prepare_run_composition is not None
        await self._loop.prepare_run_composition(run_id, turn_id)
        self._watch.prepared.add(run_id)

    def send(self, input: SendInput) -> "_Watched":
        return _Watched(self, self._watch, input, self._loop.send(input))

    async def stop(self, reason: StopReason, mode: StopMode) -> None:
        if self.disposals:
            self._watch.wrong(f"stop of {self.session_id} was called after dispose")
        await self._loop.stop(reason, mode)

    async def dispose(self) -> None:
        self.disposals += 1
        if self.disposals > 1:
            self._watch.wrong(f"a backend of {self.session_id} was disposed twice")
        await self._loop.dispose()


class _Watched:
    """A stream of the loop: entered with the first event that is asked for, left at its end."""

    def __init__(self, backend: WatchedLoop, watch: Watch, input: SendInput, stream: Any) -> None:
        self._backend = backend
        self._watch = watch
        self._input = input
        self._stream = stream
        self._inside = False
        self.ready = stream.ready

    def __aiter__(self) -> "_Watched":
        return self

    async def __anext__(self) -> SessionEvent:
        if not self._inside:
            self._watch.enter(self._backend.session_id, self._input, not self._backend.disposals)
            self._inside = True
        event: SessionEvent = await self._stream.__anext__()
        return event

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            if self._inside:
                self._inside = False
                self._watch.leave(self._backend.session_id, self._input.run_id)


class _DrawnModel:
    """Implements ModelAdapter: each response is drawn when it is asked for."""

    provider = "drawn"

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        return ScriptedModel([self._response(request)]).stream(request)

    def _response(self, request: ModelRequest) -> list[Part]:
        random = self._watch.random
        if self._watch.quiet:
            return ["all is calm"]
        parts: list[Part] = [Say("some words", pieces=3, pause=random.choice([0.0, 0.2]))]
        if random.random() < 0.5:
            ids = [f"call-{random.random()}" for _ in range(random.randint(1, 3))]
            parts += [Ask("drawn", {"seconds": random.choice([0, 0.1, 3])}, call_id) for call_id in ids]
        if random.random() < 0.1:
            parts.append(Wait(random.uniform(0, 20)))
        if self._watch.may("raises", 0.3):
            parts.insert(random.randint(0, 1), Fail(retryable=random.random() < 0.5))
        return parts


class _DrawnTool:
    """Implements Tool: takes its time, fails, takes its time when it is cancelled."""

    name = "drawn"
    description = "Does what is drawn."
    parameters: ClassVar[JsonObject] = {"type": "object", "properties": {"seconds": {"type": "number"}}}
    recovery: Recovery = "never"
    parallel_safe = True
    timeout = 2.0

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    async def execute(self, arguments: dict[str, Any], context: ToolContext) -> ToolOutput:
        try:
            await asyncio.sleep(arguments.get("seconds", 0))
        except asyncio.CancelledError:
            if self._watch.may("late events", 0.5):
                await asyncio.sleep(0.3)
                return ToolOutput.of("done, late")
            raise
        if self._watch.random.random() < 0.2:
            raise ToolFailed("drawn")
        return ToolOutput.of("done")
