"""Rules of handoffs that no story breaks by itself: what comes in the moment in which nobody looks."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest

from maka.journal.events import JsonObject
from maka.runtime.backends.base import BackendContext, BackendRegistry, SendInput, SteeringLease
from maka.runtime.composition import RunComposition
from maka.runtime.continuation.safety import SafetyObservation
from maka.runtime.errors import InteractionRefused
from maka.runtime.handoff.pause import HandoffPause
from maka.runtime.handoff.request import HandoffRequest
from maka.runtime.interactions import JournalInteractions
from maka.runtime.journals import OpenSession
from maka.runtime.kernel.authority import RunIdentity
from maka.runtime.kernel.kernel import RuntimeKernel
from maka.runtime.lifecycle import Lifecycle
from maka.runtime.session_events import SessionEvent
from support.memory_journals import MemoryJournals, check_legal
from support.seeded_loop import run

SESSION = "s1"
HASH = "sha256:" + "0" * 64
MADE = RunComposition(
    composer_id="test.rules",
    composer_revision="1",
    base_system_prompt_hash=HASH,
    tool_catalog_hash=HASH,
    tool_availability_hash=HASH,
    base_provider_options_hash=HASH,
)
PAUSE = HandoffPause(
    handoff_id="h",
    host_epoch="host",
    root_run_id="r1",
    successor_run_id="s",
    successor_invocation_id="s",
    claim_id="c",
)
QUESTIONS = [{"id": "q", "question": "?", "options": [{"label": "Yes"}, {"label": "No"}]}]
Play = Callable[[SendInput], AsyncIterator[SessionEvent]]


def event(input: SendInput, kind: str, **data: Any) -> SessionEvent:
    return SessionEvent(kind, f"e-{kind}", input.turn_id, 0, data)


def complete(input: SendInput) -> SessionEvent:
    return event(input, "complete", stop_reason="end_turn")


class Bench:
    """A kernel whose one run, of a session in memory, records what it is made of and plays ``play``."""

    def __init__(self, play: Play, **more: Any) -> None:
        self.journals = MemoryJournals()
        self.journals.create(SESSION, backend="player")
        self.play = play
        backends = BackendRegistry()
        backends.register("player", self._built)
        self.kernel = RuntimeKernel(
            journals=self.journals,
            backends=backends,
            interaction_authority=JournalInteractions(self._opened, lifecycle=Lifecycle()),
            observe=self._observe,
            **more,
        )

    def _built(self, context: BackendContext) -> "Bench":
        self.context = context
        return self

    def _opened(self, session_id: str) -> OpenSession | None:
        return self.kernel.opened(session_id)

    async def _observe(self, session_id: str, state: object) -> SafetyObservation:
        return SafetyObservation(
            workspace_identity="w", background_operations_settled=True, available_tool_names=("tool",)
        )

    async def prepare_run_composition(self, run_id: str, turn_id: str) -> None:
        await self.context.record_run_composition(run_id, MADE)

    async def send(self, input: SendInput) -> AsyncIterator[SessionEvent]:
        await self.prepare_run_composition(input.run_id, input.turn_id)
        async for said in self.play(input):
            yield said

    async def stop(self, reason: str, mode: str) -> None: ...

    async def dispose(self) -> None: ...

    async def asked(self) -> "tuple[asyncio.Task[list[SessionEvent]], HandoffRequest]":
        """The run has begun, somebody reads it, and it was asked."""
        stream = self.kernel.start_turn(SESSION, turn_id="t1", run_id="r1", text="go")

        async def read() -> list[SessionEvent]:
            return [told async for told in stream]

        reading = asyncio.ensure_future(read())
        await stream.started()
        request = self.kernel.request_run_handoff(SESSION, "r1", PAUSE)
        assert request is not None
        return reading, request

    def of(self, type_: str) -> list[JsonObject]:
        return self.journals.of(SESSION, type_)


def in_several_orders(case: Callable[[], Awaitable[None]]) -> Callable[[int], None]:
    @pytest.mark.parametrize("seed", range(3))
    def with_seed(seed: int) -> None:
        run(case(), seed)

    with_seed.__name__ = case.__name__
    return with_seed


@in_several_orders
async def test_a_backend_whose_signal_is_set_stands_nowhere() -> None:
    async def in_a_hurry(input: SendInput) -> AsyncIterator[SessionEvent]:
        await asyncio.sleep(1)
        signal = asyncio.Event()
        signal.set()
        assert await input.handoff_boundary(signal, 3) == "continue"
        yield complete(input)

    bench = Bench(in_a_hurry)
    reading, request = await bench.asked()
    await reading
    assert (await request.ready, await request.sealed) == (False, False)
    await bench.kernel.aclose()


@in_several_orders
async def test_nothing_is_committed_between_two_boundaries() -> None:
    async def impatient(input: SendInput) -> AsyncIterator[SessionEvent]:
        await asyncio.sleep(1)
        signal = asyncio.Event()
        asyncio.get_running_loop().call_later(1, signal.set)
        assert await input.handoff_boundary(signal, 3) == "continue"
        await asyncio.sleep(1)
        assert await input.handoff_boundary(None, 2) == "pause"
        return
        yield

    bench = Bench(impatient)
    reading, request = await bench.asked()
    assert await request.ready
    await asyncio.sleep(1.5)
    assert request.commit() is False
    await asyncio.sleep(1)
    assert request.commit() is True
    await reading
    assert await request.sealed
    assert [data["remaining_steps"] for data in bench.of("handoff/pause")] == [2]
    await bench.kernel.aclose()


class Clumsy:
    """A message authority that hands out nothing and cannot be released."""

    def bind_run(self, identity: RunIdentity) -> "Clumsy":
        self.session_id, self.turn_id, self.run_id = identity.session_id, identity.turn_id, identity.run_id
        return self

    def pull(self) -> Sequence[SteeringLease]:
        return ()

    def ack(self, lease_ids: Sequence[str]) -> None: ...
    def nack(self, lease_ids: Sequence[str]) -> None: ...

    def release(self) -> None:
        raise RuntimeError("cannot be released")


@in_several_orders
async def test_a_pause_that_was_refused_is_no_pause_that_failed() -> None:
    """Although something else of the run has failed."""

    async def in_a_step(input: SendInput) -> AsyncIterator[SessionEvent]:
        await asyncio.sleep(1)
        assert await input.handoff_boundary(None, 2) == "pause"
        yield event(input, "step_start")

    bench = Bench(in_a_step, message_authority=Clumsy())
    reading, request = await bench.asked()
    assert await request.ready
    assert request.commit()
    with pytest.raises(RuntimeError, match="cannot be released"):
        await reading
    assert await request.sealed is False
    assert [data["reason"]["kind"] for data in bench.of("turn/end")] == ["failed"]
    await bench.kernel.aclose()


@in_several_orders
async def test_a_question_that_comes_as_the_pause_is_written_is_refused() -> None:
    refused: list[str] = []

    async def curious(input: SendInput) -> AsyncIterator[SessionEvent]:
        async def asks() -> None:
            opened = bench.kernel.opened(SESSION)
            assert opened is not None
            while "t1" not in opened.journal.state.continuations.pausing:
                await asyncio.sleep(0)
            try:
                await input.interactions.ask("question", {"questions": QUESTIONS})
            except InteractionRefused as error:
                refused.append(error.code)

        await asyncio.sleep(1)
        assert await input.handoff_boundary(None, 2) == "pause"
        bench.asking = asyncio.ensure_future(asks())
        return
        yield

    bench = Curious(curious)
    reading, request = await bench.asked()
    assert await request.ready
    assert request.commit()
    await reading
    await bench.asking
    assert refused == ["run_closed"]
    assert bench.of("interaction/requested") == []
    await bench.kernel.aclose()
    assert check_legal(bench.journals.events(SESSION)) == "healthy"


class Curious(Bench):
    asking: "asyncio.Future[None]"
