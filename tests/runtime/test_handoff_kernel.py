"""The kernel's rules of handoffs, one test each: who may ask, when a run is held, what seals it, and what a stop makes
of that.

Time is virtual, and what is ready runs in several orders.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from maka.journal.errors import InvalidEvent, JournalWriteError
from maka.journal.events import JsonObject
from maka.runtime.app import App
from maka.runtime.backends.base import BackendContext, BackendRegistry, SendInput
from maka.runtime.continuation.plan import plan
from maka.runtime.continuation.safety import SafetyObservation
from maka.runtime.continuation.shapes import Continuation, Facts
from maka.runtime.errors import (
    ContinuationRevalidationError,
    ForkRefused,
    HandoffRefused,
    RuntimeInteractionFailStopError,
    SessionBusy,
    TurnCancelled,
)
from maka.runtime.handoff.pause import HandoffPause
from maka.runtime.handoff.request import HandoffRequest
from maka.runtime.interactions import JournalInteractions
from maka.runtime.journals import FileJournals, OpenSession
from maka.runtime.kernel.authority import InteractionRequest, RunIdentity
from maka.runtime.kernel.generations import Deadlines
from maka.runtime.kernel.kernel import RuntimeKernel
from maka.runtime.kernel.stream import TurnStream
from maka.runtime.lifecycle import Lifecycle, LifecycleEvent
from maka.runtime.session_events import SessionEvent
from maka.runtime.sessions import SessionManager
from support.composed import composed
from support.disks import FaultyDisk
from support.managed import data_of, directory, events_of, files_of, go, types_of
from support.memory_journals import MemoryJournal, MemoryJournals, check_legal
from support.seeded_loop import run

SESSION = "s1"
Test = Callable[[], Coroutine[Any, Any, None]]


def pause(number: int = 1, **ids: str) -> HandoffPause:
    given = {
        "handoff_id": f"h{number}",
        "host_epoch": "host",
        "root_run_id": "r1",
        "successor_run_id": f"s{number}",
        "successor_invocation_id": f"s{number}",
        "claim_id": f"c{number}",
    }
    return HandoffPause(**{**given, **ids})


def drawn(test: Test) -> Callable[[int], None]:
    """Runs the case in several orders, to the end of everything that it has started."""

    @pytest.mark.parametrize("seed", range(3))
    def with_seed(seed: int) -> None:
        run(test(), seed)

    with_seed.__name__ = test.__name__
    return with_seed


# ---------------------------------------------------------------- what is played


class Player:
    """A backend that plays one function for each run: an async generator of what it yields."""

    def __init__(self, context: BackendContext, plays: "list[Play]") -> None:
        self.context = context
        self.abort = asyncio.Event()
        self.inputs: list[SendInput] = []
        self.stops: list[str] = []
        self._plays = plays
        self._numbers = count()

    async def prepare_run_composition(self, run_id: str, turn_id: str) -> None:
        await self.context.record_run_composition(run_id, composed())

    def send(self, input: SendInput) -> AsyncIterator[SessionEvent]:
        self.inputs.append(input)
        self.abort.clear()
        return self._plays.pop(0)(self, input)

    def event(self, kind: str, **data: Any) -> SessionEvent:
        return SessionEvent(kind, f"e{next(self._numbers)}", self.inputs[-1].turn_id, 0, data)

    def complete(self) -> SessionEvent:
        return self.event("complete", stop_reason="user_stop" if self.abort.is_set() else "end_turn")

    async def prepared(self) -> None:
        await self.prepare_run_composition(self.inputs[-1].run_id, self.inputs[-1].turn_id)

    async def stop(self, reason: str, mode: str) -> None:
        self.stops.append(mode)
        self.abort.set()

    async def dispose(self) -> None:
        self.abort.set()


Play = Callable[[Player, SendInput], AsyncIterator[SessionEvent]]


async def stands(player: Player, input: SendInput) -> AsyncIterator[SessionEvent]:
    """Says something, and comes to a boundary a second later, with two steps to go."""
    await player.prepared()
    yield player.event("text_delta", message_id=f"m-{input.run_id}", text="some ")
    await asyncio.sleep(1)
    if await input.handoff_boundary(player.abort, 2) == "pause":
        return
    yield player.complete()


async def lingers(player: Player, input: SendInput) -> AsyncIterator[SessionEvent]:
    """Comes to a boundary, and takes its time to end behind the pause."""
    async for event in stands(player, input):
        yield event
    await asyncio.sleep(1)


async def completes(player: Player, input: SendInput) -> AsyncIterator[SessionEvent]:
    yield player.event("text_complete", message_id="n", text="done")
    yield player.complete()


async def waits(player: Player, input: SendInput) -> AsyncIterator[SessionEvent]:
    """Runs until it is stopped, and comes to no boundary."""
    await player.prepared()
    yield player.event("text_delta", message_id="m", text="some ")
    await player.abort.wait()
    yield player.complete()


# ---------------------------------------------------------------- the bench


class Bench:
    """A kernel on one session in memory, whose runs play ``plays``."""

    def __init__(self, *plays: Play, journals: MemoryJournals | None = None, **more: Any) -> None:
        self.journals = journals or MemoryJournals()
        if journals is None:
            self.journals.create(SESSION, backend="player")
        self.plays = list(plays)
        self.players: list[Player] = []
        self.said: list[LifecycleEvent] = []
        self.requests: list[HandoffRequest] = []
        backends = BackendRegistry()
        backends.register("player", self._built)
        lifecycle = Lifecycle()
        self.answers = JournalInteractions(self._opened, lifecycle=lifecycle)
        self.kernel = RuntimeKernel(
            **{
                "journals": self.journals,
                "backends": backends,
                "interaction_authority": self.answers,
                "lifecycle": lifecycle,
                "observe": self._observe,
                **more,
            }
        )
        self.kernel.subscribe(self.said.append)

    def _built(self, context: BackendContext) -> Player:
        self.players.append(Player(context, self.plays))
        return self.players[-1]

    async def _observe(self, session_id: str, state: object) -> SafetyObservation:
        return SafetyObservation(
            workspace_identity="w", background_operations_settled=True, available_tool_names=("tool",)
        )

    def _opened(self, session_id: str) -> OpenSession | None:
        return self.kernel.opened(session_id)

    @property
    def player(self) -> Player:
        return self.players[-1]

    # -------------------------------------------------------- acting

    def start(self, turn_id: str = "t1", run_id: str = "r1") -> TurnStream:
        return self.kernel.start_turn(SESSION, turn_id=turn_id, run_id=run_id, text="go")

    async def reading(self, stream: TurnStream | None = None) -> "asyncio.Task[list[SessionEvent]]":
        """The run has begun and had a moment, and somebody reads it."""
        stream = stream or self.start()
        task = asyncio.ensure_future(read(stream))
        await stream.started()
        await asyncio.sleep(0.1)
        return task

    def ask(self, handoff: HandoffPause | None = None, signal: asyncio.Event | None = None) -> HandoffRequest:
        request = self.kernel.request_run_handoff(SESSION, "r1", handoff or pause(), signal)
        assert request is not None
        self.requests.append(request)
        return request

    def stop(self, **more: Any) -> "asyncio.Future[None]":
        return self.kernel.stop_session(SESSION, **more)

    async def paused(self, **more: Any) -> "tuple[asyncio.Task[list[SessionEvent]], HandoffRequest]":
        """A run that was told to pause, and has not been sealed yet."""
        reading = await self.reading()
        request = self.ask(**more)
        assert await request.ready
        assert request.commit()
        return reading, request

    async def handed_over(self) -> HandoffRequest:
        """A turn that waits for its successor, and nothing runs."""
        reading, request = await self.paused()
        assert await request.sealed
        await reading
        return request

    async def continuation(self) -> Continuation:
        """Of the handoff that is pending."""
        async with self.kernel.session(SESSION) as session:
            conversation = await self.kernel.conversation(SESSION)
            planned = plan(
                Facts(SESSION, session.journal.state, conversation),
                source_run_id=None,
                purpose="handoff",
                observation=await self._observe(SESSION, None),
                new_id=lambda: pytest.fail("all ids are reserved"),
            )
            assert planned.continuation is not None, planned.to_json()
            return planned.continuation

    async def resumed(self) -> list[SessionEvent]:
        return await read(self.kernel.start_continuation(await self.continuation()))

    # -------------------------------------------------------- what is on the disk

    def of(self, type_: str) -> list[JsonObject]:
        return self.journals.of(SESSION, type_)

    def types(self, since: int = 0) -> list[str]:
        return [event.type for event in self.journals.events(SESSION)[since:]]

    def ends(self) -> list[tuple[str, str]]:
        """Run and kind of each end."""
        return [(data["run_id"], data["reason"]["kind"]) for data in self.of("turn/end")]

    def batches(self) -> list[list[str]]:
        """The types of the events that were written together."""
        found: list[list[str]] = [[]]
        for event in self.journals.events(SESSION):
            found[-1].append(event.type)
            if not event.more:
                found.append([])
        return found[:-1]

    async def over(self) -> None:
        await self.kernel.aclose()
        assert check_legal(self.journals.events(SESSION)) == "healthy"


async def read(stream: TurnStream) -> list[SessionEvent]:
    return [event async for event in stream]


def kinds(events: list[SessionEvent]) -> list[str]:
    return [event.kind for event in events]


async def failure_of(awaited: Any) -> BaseException:
    failure = (await asyncio.gather(awaited, return_exceptions=True))[0]
    assert isinstance(failure, BaseException), "it was to fail"
    return failure


def code_of(asking: Callable[[], Any]) -> str:
    with pytest.raises(HandoffRefused) as caught:
        asking()
    return caught.value.code


GIVEN_UP = [
    "turn/stop_requested",
    "continuation/claim",
    "run/created",
    "continuation/start",
    "turn/end",
    "run/settled",
]

# ---------------------------------------------------------------- who may ask


@drawn
async def test_nothing_is_asked_of_a_run_that_does_not_run_here() -> None:
    bench = Bench(waits, waits)
    assert bench.kernel.request_run_handoff(SESSION, "r1", pause()) is None
    reading = await bench.reading()
    queued = asyncio.ensure_future(read(bench.start("t2", "r2")))
    await asyncio.sleep(0.1)
    for session_id, run_id in ((SESSION, "r2"), (SESSION, "r3"), (SESSION, "t1"), ("s2", "r1")):
        assert bench.kernel.request_run_handoff(session_id, run_id, pause()) is None
    await bench.stop()
    await asyncio.gather(reading, queued)
    assert bench.kernel.request_run_handoff(SESSION, "r1", pause()) is None
    await bench.over()


@drawn
async def test_where_nothing_is_continued_nothing_is_handed_over() -> None:
    bench = Bench(stands, observe=None)
    reading = await bench.reading()
    assert bench.kernel.request_run_handoff(SESSION, "r1", pause()) is None
    assert kinds(await reading)[-1] == "complete"
    await bench.over()


@drawn
async def test_one_request_at_a_time() -> None:
    bench = Bench(stands)
    reading = await bench.reading()
    first = bench.ask()
    assert code_of(lambda: bench.ask(pause(2))) == "handoff_pending"
    first.cancel()
    second = bench.ask(pause(2))
    assert (await first.ready, await first.sealed) == (False, False)
    assert await second.ready
    assert code_of(lambda: bench.ask(pause(3))) == "handoff_pending"
    # The first changes nothing of the second.
    first.cancel()
    assert not first.commit()
    assert second.commit()
    assert await second.sealed
    await reading
    assert [data["handoff_id"] for data in bench.of("handoff/pause")] == ["h2"]
    await bench.over()


@drawn
async def test_a_run_that_is_stopped_is_not_asked() -> None:
    bench = Bench(waits)
    reading = await bench.reading()
    stopped = bench.stop()
    assert code_of(bench.ask) == "run_over"
    await stopped
    await reading
    await bench.over()


@drawn
async def test_a_run_that_has_said_its_end_is_not_asked() -> None:
    async def goes_on(player: Player, input: SendInput) -> AsyncIterator[SessionEvent]:
        yield player.complete()
        await asyncio.sleep(1)

    bench = Bench(goes_on)
    reading = await bench.reading()
    assert code_of(bench.ask) == "run_over"
    await reading
    await bench.over()


@drawn
async def test_the_root_is_the_run_that_opened_the_turn() -> None:
    bench = Bench(stands)
    reading = await bench.reading()
    assert code_of(lambda: bench.ask(pause(root_run_id="s1"))) == "pause_invalid"
    # A request that was refused is none.
    assert await bench.ask().ready
    await bench.stop()
    await reading
    await bench.over()


@pytest.mark.parametrize("key", ["handoff_id", "host_epoch", "successor_run_id", "successor_invocation_id", "claim_id"])
@pytest.mark.parametrize("value", ["", "x" * 257, "a\x00b", "a\x7fb", "a\nb", None, 5, "\ud800"])
def test_ids_that_can_be_none_are_refused(key: str, value: Any) -> None:
    with pytest.raises(HandoffRefused, match=key) as caught:
        pause(**{key: value})
    assert caught.value.code == "pause_invalid"


@drawn
async def test_ids_that_are_taken_are_found_before_the_pause_is_committed() -> None:
    for handoff in (pause(successor_run_id="r1"), pause(successor_invocation_id="i1")):
        bench = Bench(stands)
        stream = bench.kernel.start_turn(SESSION, turn_id="t1", run_id="r1", invocation_id="i1", text="go")
        reading = await bench.reading(stream)
        request = bench.ask(handoff)
        assert await request.ready
        assert code_of(request.preview) == "pause_invalid"
        assert code_of(request.commit) == "pause_invalid"
        request.cancel()
        assert kinds(await reading)[-1] == "complete"
        assert bench.ends() == [("r1", "completed")]
        await bench.over()


@drawn
async def test_with_a_signal_that_is_set_the_request_is_over_at_once() -> None:
    bench = Bench(stands)
    reading = await bench.reading()
    signal = asyncio.Event()
    signal.set()
    request = bench.ask(signal=signal)
    assert not request.commit()
    assert (await request.ready, await request.sealed) == (False, False)
    assert kinds(await reading)[-1] == "complete"
    await bench.over()


@drawn
async def test_a_signal_cancels_what_was_not_committed() -> None:
    for when in ("before the boundary", "at the boundary"):
        bench = Bench(stands)
        reading = await bench.reading()
        signal = asyncio.Event()
        request = bench.ask(signal=signal)
        if when == "at the boundary":
            assert await request.ready
        signal.set()
        assert await request.sealed is False
        assert await request.ready is (when == "at the boundary")
        assert not request.commit()
        assert kinds(await reading)[-1] == "complete"
        assert bench.ends() == [("r1", "completed")]
        await bench.over()


@drawn
async def test_behind_a_commit_neither_signal_nor_cancel_does_anything() -> None:
    bench = Bench(stands)
    signal = asyncio.Event()
    reading, request = await bench.paused(signal=signal)
    signal.set()
    request.cancel()
    request.cancel()
    assert await request.sealed
    request.cancel()
    assert await request.sealed
    assert "complete" not in kinds(await reading)
    await bench.over()


@drawn
async def test_a_request_may_be_cancelled_twice_and_another_made() -> None:
    bench = Bench(stands)
    reading = await bench.reading()
    request = bench.ask()
    request.cancel()
    request.cancel()
    assert await bench.ask().ready
    await bench.stop()
    await reading
    await bench.over()


@drawn
async def test_a_request_that_follows_at_a_boundary_waits_for_the_next_one() -> None:
    async def twice(player: Player, input: SendInput) -> AsyncIterator[SessionEvent]:
        await player.prepared()
        yield player.event("text_delta", message_id="m", text="a")
        for remaining in (3, 2):
            await asyncio.sleep(1)
            if await input.handoff_boundary(player.abort, remaining) == "pause":
                return
        yield player.complete()

    bench = Bench(twice)
    reading = await bench.reading()
    first = bench.ask()
    assert await first.ready
    first.cancel()
    second = bench.ask(pause(2))
    assert not second.commit()
    assert await second.ready
    assert second.preview().data["remaining_steps"] == 2
    assert second.commit()
    assert await second.sealed
    await reading
    await bench.over()


# ---------------------------------------------------------------- ready, preview, commit


@drawn
async def test_nothing_is_committed_before_the_run_stands_at_a_boundary_and_nothing_twice() -> None:
    bench = Bench(stands)
    reading = await bench.reading()
    request = bench.ask()
    assert not request.commit()
    assert code_of(request.preview) == "not_reached"
    assert await request.ready
    assert request.commit()
    assert not request.commit()
    assert await request.sealed
    assert not request.commit()
    assert code_of(request.preview) == "not_reached"
    await reading
    await bench.over()


@drawn
async def test_ready_is_false_where_the_run_ends_before_a_boundary() -> None:
    for ends in ("by itself", "by a stop"):
        bench = Bench(waits if ends == "by a stop" else completes)
        stream = bench.start()
        reading = asyncio.ensure_future(read(stream))
        while bench.kernel.running(SESSION) is None:
            await asyncio.sleep(0)
        request = bench.ask()
        await stream.started()
        if ends == "by a stop":
            stopped = bench.stop()
            # Whoever waits need not wait for the backend.
            assert request.ready.done()
            await stopped
        assert (await request.ready, await request.sealed) == (False, False)
        assert kinds(await reading)[-1] == "complete"
        await bench.over()


@drawn
async def test_a_stop_at_a_boundary_leaves_nothing_to_commit() -> None:
    bench = Bench(stands)
    reading = await bench.reading()
    request = bench.ask()
    assert await request.ready
    stopped = bench.stop()
    assert not request.commit()
    assert code_of(request.preview) == "not_reached"
    await stopped
    assert await request.sealed is False
    assert kinds(await reading)[-1] == "complete"
    assert bench.ends() == [("r1", "aborted")]
    await bench.over()


@drawn
async def test_what_a_preview_shows_is_what_seals_the_run() -> None:
    bench = Bench(stands)
    reading = await bench.reading()
    request = bench.ask()
    assert await request.ready
    # Whoever is told finds on the disk what it stands behind.
    assert bench.types()[-1] == "step/end"
    shown = request.preview()
    assert bench.of("handoff/pause") == []
    assert request.commit()
    assert await request.sealed
    assert bench.of("handoff/pause") == [shown.data]
    assert bench.batches()[-1] == ["handoff/pause"]
    await reading
    await bench.over()


# ---------------------------------------------------------------- boundaries


@drawn
async def test_a_number_of_steps_that_can_be_none_fails_the_run() -> None:
    for remaining in (0, -1, True, "2", 2.0, 2**63):

        async def claims(player: Player, input: SendInput, said: Any = remaining) -> AsyncIterator[SessionEvent]:
            await player.prepared()
            yield player.event("text_delta", message_id="m", text="a")
            await input.handoff_boundary(None, said)
            pytest.fail("it went on")

        bench = Bench(claims)
        assert kinds(await read(bench.start()))[-2:] == ["error", "complete"]
        [end] = bench.of("turn/end")
        assert (end["reason"]["kind"], end["reason"]["failure_class"]) == ("failed", "backend_error")
        assert f"{remaining!r} steps to go" in end["reason"]["message"]
        await bench.over()


@drawn
async def test_a_boundary_that_nobody_asked_for_ends_the_step_and_does_not_wait() -> None:
    async def passes(player: Player, input: SendInput) -> AsyncIterator[SessionEvent]:
        for text in ("a", "b"):
            yield player.event("text_delta", message_id=f"m{text}", text=text)
            before = now()
            assert await input.handoff_boundary(None, None) == "continue"
            assert now() == before
        yield player.complete()

    bench = Bench(passes)
    told = await read(bench.start())
    assert [kind for kind in kinds(told) if kind.startswith("step")] == ["step_start", "step_end"] * 2
    assert [type for type in bench.types() if type.startswith("step/")] == ["step/start", "step/end"] * 2
    assert [data["step"] for data in bench.of("step/end")] == [1, 2]
    await bench.over()


def now() -> float:
    return asyncio.get_running_loop().time()


Restless = Callable[[Player, SendInput], AsyncIterator[SessionEvent]]


async def in_a_step(player: Player, input: SendInput) -> AsyncIterator[SessionEvent]:
    yield player.event("step_start")


async def with_a_call(player: Player, input: SendInput) -> AsyncIterator[SessionEvent]:
    yield player.event("tool_start", call_id="c", name="tool", arguments="{}")


async def with_a_question(player: Player, input: SendInput) -> AsyncIterator[SessionEvent]:
    for event in NOTHING:
        yield event
    asking = asyncio.ensure_future(input.interactions.ask("question", {"questions": QUESTIONS}))
    asking.add_done_callback(lambda done: None if done.cancelled() else done.exception())
    await asyncio.sleep(1)


NOTHING: list[SessionEvent] = []
QUESTIONS = [{"id": "q", "question": "?", "options": [{"label": "Yes"}, {"label": "No"}]}]


async def with_a_message(player: Player, input: SendInput) -> AsyncIterator[SessionEvent]:
    for event in NOTHING:
        yield event
    assert input.pull_steering()


RESTLESS: list[Restless] = [in_a_step, with_a_call, with_a_question, with_a_message]


class Messages:
    """An authority with one message for each run."""

    def __init__(self) -> None:
        self.released = 0

    def bind_run(self, identity: RunIdentity) -> "Messages":
        self.session_id, self.turn_id, self.run_id = identity.session_id, identity.turn_id, identity.run_id
        return self

    def pull(self) -> Any:
        from maka.runtime.backends.base import SteeringLease

        return [SteeringLease("lease", "message", [{"kind": "text", "text": "rather this"}])]

    def ack(self, lease_ids: Any) -> None: ...
    def nack(self, lease_ids: Any) -> None: ...

    def release(self) -> None:
        self.released += 1


@pytest.mark.parametrize("restless", RESTLESS)
def test_a_run_is_not_held_while_something_of_it_is_open(restless: Restless) -> None:
    async def main() -> None:
        async def plays(player: Player, input: SendInput) -> AsyncIterator[SessionEvent]:
            await player.prepared()
            async for event in restless(player, input):
                yield event
            await asyncio.sleep(1)
            assert await input.handoff_boundary(player.abort, 2) == "continue"
            [request] = bench.requests
            assert not request.ready.done()
            yield player.complete()

        bench = Bench(plays, message_authority=Messages())
        reading = await bench.reading()
        request = bench.ask()
        assert kinds(await reading)[-1] == "complete"
        assert (await request.ready, await request.sealed) == (False, False)
        assert [kind for _, kind in bench.ends()] == ["completed"]
        await bench.over()

    for seed in range(3):
        run(main(), seed)


@pytest.mark.parametrize("restless", RESTLESS)
def test_a_run_that_pauses_while_something_of_it_is_open_has_failed(restless: Restless) -> None:
    async def main() -> None:
        async def plays(player: Player, input: SendInput) -> AsyncIterator[SessionEvent]:
            await player.prepared()
            await asyncio.sleep(1)
            assert await input.handoff_boundary(player.abort, 2) == "pause"
            async for event in restless(player, input):
                yield event

        bench = Bench(plays, message_authority=Messages())
        reading, request = await bench.paused()
        assert kinds(await reading)[-2:] == ["error", "complete"]
        assert await request.sealed is False
        [end] = bench.of("turn/end")
        assert (end["reason"]["kind"], end["reason"]["failure_class"]) == ("failed", "backend_error")
        assert "was told to pause" in end["reason"]["message"]
        assert bench.of("handoff/pause") == []
        await bench.over()

    for seed in range(3):
        run(main(), seed)


@drawn
async def test_messages_that_were_acknowledged_or_given_back_keep_no_run_from_resting() -> None:
    for way in ("ack", "nack"):

        async def steered(player: Player, input: SendInput, way: str = way) -> AsyncIterator[SessionEvent]:
            await player.prepared()
            [lease] = input.pull_steering()
            if way == "ack":
                yield player.event("steering_message", message_id=lease.message_id, content=lease.content)
                input.ack_steering([lease.lease_id])
            else:
                input.nack_steering([lease.lease_id])
            await asyncio.sleep(1)
            assert await input.handoff_boundary(player.abort, 2) == "pause"

        messages = Messages()
        bench = Bench(steered, message_authority=messages)
        reading, request = await bench.paused()
        assert await request.sealed
        await reading
        assert messages.released == 1
        assert len([data for data in bench.of("user/message") if data["message_id"] == "message"]) == (way == "ack")
        await bench.over()


@drawn
async def test_a_backends_signal_lets_it_go_on_and_the_request_waits_for_the_next_boundary() -> None:
    async def impatient(player: Player, input: SendInput) -> AsyncIterator[SessionEvent]:
        await player.prepared()
        await asyncio.sleep(1)
        signal = asyncio.Event()
        asyncio.get_running_loop().call_later(1, signal.set)
        assert await input.handoff_boundary(signal, 3) == "continue"
        assert await input.handoff_boundary(signal, 3) == "continue"
        yield player.event("text_delta", message_id="m", text="a")
        assert await input.handoff_boundary(None, None) == "pause"

    bench = Bench(impatient)
    reading = await bench.reading()
    request = bench.ask()
    assert await request.ready
    await asyncio.sleep(1.5)
    while not request.held:
        await asyncio.sleep(0)
    assert request.commit()
    assert await request.sealed
    assert [data["remaining_steps"] for data in bench.of("handoff/pause")] == [None]
    await reading
    await bench.over()


@drawn
async def test_behind_the_turns_end_a_boundary_writes_nothing_and_goes_on() -> None:
    passed: list[str] = []

    async def stubborn(player: Player, input: SendInput) -> AsyncIterator[SessionEvent]:
        await player.prepared()
        yield player.event("text_delta", message_id="m", text="a")
        await asyncio.sleep(5)
        passed.append(await input.handoff_boundary(None, 1))

    bench = Bench(stubborn, deadlines=Deadlines(exit=20))
    reading = await bench.reading()
    bench.ask()
    await bench.stop()
    before = len(bench.types())
    await reading
    assert passed == ["continue"]
    assert bench.types(before) == ["run/settled"]
    assert not [event.kind for event in bench.said if event.kind == "backend_failed" and event.data["defect"]]
    await bench.over()


# ---------------------------------------------------------------- behind "pause"


def behind(*events: tuple[str, JsonObject], error: Exception | None = None) -> Play:
    """Yields these behind the pause, and raises."""

    async def plays(player: Player, input: SendInput) -> AsyncIterator[SessionEvent]:
        await player.prepared()
        yield player.event("text_delta", message_id="m", text="some ")
        await asyncio.sleep(1)
        assert await input.handoff_boundary(player.abort, 2) == "pause"
        for kind, data in events:
            yield player.event(kind, **data)
        if error is not None:
            raise error

    return plays


@drawn
async def test_a_complete_behind_the_pause_counts() -> None:
    bench = Bench(behind(("complete", {"stop_reason": "end_turn"})))
    reading, request = await bench.paused()
    assert await request.sealed is False
    assert kinds(await reading)[-1] == "complete"
    assert bench.ends() == [("r1", "completed")]
    assert bench.of("handoff/pause") == []
    await bench.over()


@drawn
async def test_a_backend_that_goes_on_behind_the_pause_has_failed() -> None:
    said: list[tuple[str, JsonObject]] = [
        ("step_start", {}),
        ("text_complete", {"message_id": "n", "text": "more"}),
        ("tool_start", {"call_id": "c", "name": "tool", "arguments": "{}"}),
        ("token_usage", {"input_tokens": 1, "output_tokens": 2}),
    ]
    for event in said:
        bench = Bench(behind(event))
        reading, request = await bench.paused()
        assert kinds(await reading)[-2:] == ["error", "complete"]
        assert await request.sealed is False
        [end] = bench.of("turn/end")
        assert end["reason"]["failure_class"] == "backend_error"
        assert event[0] in end["reason"]["message"]
        # Nothing of that is taken.
        assert bench.types()[-3:] == ["step/end", "turn/end", "run/settled"]
        assert len(bench.of("step/start")) == 1
        await bench.over()


@drawn
async def test_a_backend_that_raises_behind_the_pause_has_failed() -> None:
    bench = Bench(behind(error=RuntimeError("broken")))
    reading, request = await bench.paused()
    assert await request.sealed is False
    assert kinds(await reading)[-2:] == ["error", "complete"]
    assert bench.ends() == [("r1", "failed")]
    await bench.over()


@drawn
async def test_a_stream_that_ends_at_a_boundary_without_a_pause_has_failed() -> None:
    async def vanishes(player: Player, input: SendInput) -> AsyncIterator[SessionEvent]:
        await player.prepared()
        yield player.event("text_delta", message_id="m", text="some ")
        await asyncio.sleep(1)
        assert await input.handoff_boundary(player.abort, 2) == "continue"

    bench = Bench(vanishes)
    reading = await bench.reading()
    request = bench.ask()
    assert await request.ready
    request.cancel()
    await reading
    assert await request.sealed is False
    assert [data["reason"]["failure_class"] for data in bench.of("turn/end")] == ["missing_terminal_event"]
    await bench.over()


# ---------------------------------------------------------------- what is told


@drawn
async def test_of_a_sealed_run_no_end_is_told() -> None:
    bench = Bench(stands)
    stream = bench.start()
    reading = await bench.reading(stream)
    request = bench.ask()
    assert await request.ready
    assert request.commit()
    told = kinds(await reading)
    assert not {"complete", "error", "abort"} & set(told)
    # What it did say is told whole.
    assert told[-2:] == ["text_complete", "step_end"]
    assert stream.reason is None
    assert bench.types()[-1] == "handoff/pause"
    [over] = [event for event in bench.said if event.kind in ("run_ended", "run_handed_off")]
    assert over.kind == "run_handed_off"
    assert over.data == {
        "turn_id": "t1",
        "run_id": "r1",
        "handoff_id": "h1",
        "successor_run_id": "s1",
        "error": None,
    }
    await bench.over()


@drawn
async def test_a_successor_finishes_the_turn_with_the_steps_that_were_left() -> None:
    bench = Bench(stands, completes)
    await bench.handed_over()
    told = await bench.resumed()
    assert kinds(told)[-1] == "complete"
    assert bench.player.inputs[-1].max_steps == 2
    assert bench.ends() == [("s1", "completed")]
    assert [data["step"] for data in bench.of("step/start")] == [1, 2]
    await bench.over()


@drawn
async def test_a_successor_may_be_handed_over_too_and_names_the_same_root() -> None:
    bench = Bench(stands, stands, completes)
    await bench.handed_over()
    reading = asyncio.ensure_future(bench.resumed())
    while bench.kernel.running(SESSION) != "s1":
        await asyncio.sleep(0.1)
    assert code_of(lambda: bench.kernel.request_run_handoff(SESSION, "s1", pause(2, root_run_id="s1"))) == (
        "pause_invalid"
    )
    request = bench.kernel.request_run_handoff(SESSION, "s1", pause(2))
    assert request is not None
    assert await request.ready
    assert request.commit()
    assert await request.sealed
    assert "complete" not in kinds(await reading)
    await bench.resumed()
    assert bench.ends() == [("s2", "completed")]
    await bench.over()


@drawn
async def test_one_of_several_who_resume_a_handoff_is_the_successor() -> None:
    bench = Bench(stands, completes)
    await bench.handed_over()
    continuation = await bench.continuation()
    resuming = [read(bench.kernel.start_continuation(continuation)) for _ in range(3)]
    first, *others = await asyncio.gather(*resuming, return_exceptions=True)
    outcomes = sorted(getattr(each, "code", "told") for each in (first, *others))
    assert outcomes == ["continuation_claim_conflict", "continuation_claim_conflict", "told"]
    assert bench.ends() == [("s1", "completed")]
    assert len(bench.of("continuation/claim")) == len(bench.of("continuation/start")) == 1
    await bench.over()


@drawn
async def test_a_successor_that_is_stopped_while_it_is_prepared_is_not_sent() -> None:
    async def never(run_id: str, turn_id: str) -> None:
        await asyncio.sleep(1000)

    bench = Bench(stands)
    await bench.handed_over()
    bench.player.prepare_run_composition = never  # type: ignore[method-assign]
    resuming = asyncio.ensure_future(bench.resumed())
    while bench.kernel.running(SESSION) != "s1":
        await asyncio.sleep(0.1)
    await asyncio.sleep(1)
    await bench.stop()
    assert kinds(await resuming)[-1] == "complete"
    assert [input.run_id for input in bench.player.inputs] == ["r1"]
    assert bench.ends() == [("s1", "aborted")]
    await bench.over()


# ---------------------------------------------------------------- cleanup


class Owner:
    """An authority whose owners fail to close as they are told, or take their time."""

    def __init__(self, error: Exception | None = None, seconds: float = 0) -> None:
        self.error, self.seconds, self.released = error, seconds, 0

    def bind_run(self, identity: RunIdentity) -> "Owner":
        self.session_id, self.turn_id, self.run_id = identity.session_id, identity.turn_id, identity.run_id
        return self

    async def accept_user_question_request(self, request: InteractionRequest) -> None: ...
    async def accept_permission_request(self, request: InteractionRequest) -> None: ...
    async def accept_sandbox_boundary_request(self, request: InteractionRequest) -> None: ...

    async def close(self, reason: str) -> None:
        await asyncio.sleep(self.seconds)
        if self.error is not None:
            raise self.error

    def release(self) -> None:
        self.released += 1


@drawn
async def test_what_fails_beside_the_seal_is_told_and_takes_nothing_of_it() -> None:
    failure = RuntimeError("cannot close")
    bench = Bench(stands, interaction_authority=Owner(failure))
    reading, request = await bench.paused()
    assert await request.sealed
    error = await failure_of(reading)
    assert isinstance(error, RuntimeInteractionFailStopError)
    assert error.authority_failure is failure
    [over] = [event for event in bench.said if event.kind == "run_handed_off"]
    assert over.data["error"] is error
    assert bench.types()[-1] == "handoff/pause"
    await bench.over()


class Closing:
    """A stream whose ``aclose`` does something of its own."""

    def __init__(self, stream: Any, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._stream, self._close = stream, close

    def __aiter__(self) -> "Closing":
        return self

    async def __anext__(self) -> SessionEvent:
        event: SessionEvent = await anext(self._stream)
        return event

    async def aclose(self) -> None:
        await self._close()


@drawn
async def test_a_stream_that_cannot_be_closed_was_sealed_before() -> None:
    async def close() -> None:
        raise RuntimeError("cannot close")

    bench = Bench(lambda player, sent: Closing(stands(player, sent), close))
    reading, request = await bench.paused()
    assert await request.sealed
    assert not {"complete", "error"} & set(kinds(await reading))
    assert [str(event.data["error"]) for event in bench.said if event.kind == "backend_failed"] == ["cannot close"]
    assert bench.types()[-1] == "handoff/pause"
    await bench.over()


@drawn
async def test_a_stream_that_hangs_where_it_is_closed_keeps_nobody_from_the_seal() -> None:
    async def close() -> None:
        await asyncio.sleep(1000)

    bench = Bench(lambda player, sent: Closing(stands(player, sent), close), deadlines=Deadlines(exit=5))
    reading, request = await bench.paused()
    assert await request.sealed
    assert now() == pytest.approx(1.1, abs=0.5)
    # A stop waits for the seal and not for the stream.
    await bench.stop()
    assert now() == pytest.approx(1.1, abs=0.5)
    assert bench.batches()[-1] == GIVEN_UP
    assert not reading.done()
    await asyncio.sleep(30)
    # The backend was given up, as one is that goes on behind the turn's end.
    assert "backend_failed" in [event.kind for event in bench.said]
    await asyncio.gather(bench.kernel.aclose(), reading, return_exceptions=True)
    assert check_legal(bench.journals.events(SESSION)) == "healthy"


# ---------------------------------------------------------------- stop and seal


def sealing(bench: Bench, act: Callable[[], Any], *, once: bool = True) -> list[Any]:
    """Has something done while the pause is on its way to the disk."""
    done: list[Any] = []

    async def on_sync(journal: MemoryJournal) -> None:
        if any(event.type == "handoff/pause" for event in journal.events[journal.durable :]) and not done:
            done.append(act())
            await asyncio.sleep(1)

    bench.journals.on_sync = on_sync
    return done


@drawn
async def test_a_stop_before_the_seal_wins() -> None:
    for mode in ("immediate", "after_step"):
        bench = Bench(behind())
        reading, request = await bench.paused()
        stopped = bench.stop(mode=mode)
        assert await request.sealed is False
        await stopped
        assert kinds(await reading)[-2:] == ["abort", "complete"]
        assert bench.ends() == [("r1", "aborted")]
        assert bench.of("handoff/pause") == []
        await bench.over()


@drawn
async def test_a_stop_before_the_commit_wins() -> None:
    for mode in ("immediate", "after_step"):
        bench = Bench(stands)
        reading = await bench.reading()
        request = bench.ask()
        await request.ready
        await bench.stop(mode=mode)
        assert await request.sealed is False
        assert kinds(await reading)[-1] == "complete"
        assert bench.ends() == [("r1", "aborted")]
        await bench.over()


@drawn
async def test_a_stop_while_the_pause_is_written_waits_for_it_and_gives_the_handoff_up() -> None:
    for mode in ("immediate", "after_step"):
        bench = Bench(stands)

        def stop(bench: Bench = bench, mode: str = mode) -> "asyncio.Future[None]":
            assert bench.kernel.running(SESSION) == "r1"
            return bench.stop(mode=mode, source="button", stop_id="stop")

        stops = sealing(bench, stop)
        reading, request = await bench.paused()
        assert await request.sealed
        assert not {"complete", "error", "abort"} & set(kinds(await reading))
        await stops[0]
        assert bench.batches()[-2:] == [["handoff/pause"], GIVEN_UP]
        assert bench.of("turn/stop_requested") == [
            {"stop_id": "stop", "turn_id": "t1", "source": "button", "mode": "immediate"}
        ]
        assert bench.of("turn/end")[0]["reason"] == {"kind": "aborted", "source": "button"}
        assert bench.ends() == [("s1", "aborted")]
        assert bench.player.stops == []
        await bench.over()


@drawn
async def test_stops_of_a_turn_that_is_being_sealed_share_one_attempt() -> None:
    bench = Bench(stands)
    stops = sealing(bench, lambda: [bench.stop(mode="after_step"), bench.stop(), bench.stop()])
    reading, _ = await bench.paused()
    await reading
    await asyncio.gather(*stops[0])
    await bench.stop()
    assert len(bench.of("turn/end")) == len(bench.of("turn/stop_requested")) == 1
    await bench.over()


@drawn
async def test_a_stop_behind_the_seal_that_meets_a_failed_cleanup_tells_it() -> None:
    failure = RuntimeError("cannot close")
    # The pause is written behind the failure, so that the stop comes behind both.
    bench = Bench(stands, interaction_authority=Owner(failure))
    stops = sealing(bench, bench.stop)
    reading, _ = await bench.paused()
    told = await failure_of(reading)
    assert await failure_of(stops[0]) is told
    assert bench.ends() == [("s1", "aborted")]
    await bench.over()


async def slowly(journal: MemoryJournal) -> None:
    await asyncio.sleep(1)


@drawn
async def test_a_stop_of_a_turn_that_waits_for_its_successor_ends_it_in_one_batch() -> None:
    bench = Bench(stands, completes)
    await bench.handed_over()
    bench.journals.on_sync = slowly
    stopped = bench.stop(source="button")
    again = bench.stop()
    await asyncio.sleep(0.5)
    # It is written, and not on the disk.
    third = bench.stop()
    for each in (third, again, stopped):
        await each
        assert bench.ends() == [("s1", "aborted")]
    await bench.stop()
    assert bench.batches()[-2:] == [["handoff/pause"], GIVEN_UP]
    # It takes a message again.
    assert kinds(await read(bench.start("t2", "r2")))[-1] == "complete"
    await bench.over()


@drawn
async def test_who_gives_up_waiting_for_such_a_stop_takes_nothing_of_it() -> None:
    bench = Bench(stands)
    await bench.handed_over()
    hasty, patient = bench.stop(), bench.stop()
    hasty.cancel()
    await patient
    assert bench.ends() == [("s1", "aborted")]
    await bench.over()


@drawn
async def test_a_stop_of_a_waiting_turn_tells_that_it_could_not_be_written() -> None:
    failure = JournalWriteError("no space")

    async def on_sync(journal: MemoryJournal) -> None:
        raise failure

    bench = Bench(stands)
    await bench.handed_over()
    bench.journals.on_sync = on_sync
    assert await failure_of(bench.stop()) is failure
    assert bench.ends() == []
    bench.journals.on_sync = MemoryJournals().on_sync
    # The handoff waits as before.
    assert (await bench.continuation()).run_id == "s1"
    await bench.stop()
    assert bench.ends() == [("s1", "aborted")]
    await bench.over()


@drawn
async def test_a_stop_is_carried_out_although_the_kernel_closes() -> None:
    for when in ("sealing", "pending"):
        bench = Bench(stands)
        stops = sealing(bench, bench.stop) if when == "sealing" else []
        if when == "sealing":
            reading, _ = await bench.paused()
            while not stops:
                await asyncio.sleep(0.01)
        else:
            await bench.handed_over()
            stops.append(bench.stop())
            reading = None
        await bench.kernel.aclose()
        await stops[0]
        if reading is not None:
            await reading
        assert bench.ends() == [("s1", "aborted")], when
        assert check_legal(bench.journals.events(SESSION)) == "healthy"


@drawn
async def test_a_run_that_is_stopped_while_its_step_is_made_durable_is_not_held() -> None:
    stops: list[asyncio.Future[None]] = []

    async def on_sync(journal: MemoryJournal) -> None:
        if any(event.type == "step/end" for event in journal.events[journal.durable :]) and not stops:
            stops.append(bench.stop())
            await asyncio.sleep(1)

    bench = Bench(stands)
    bench.journals.on_sync = on_sync
    reading = await bench.reading()
    request = bench.ask()
    assert (await request.ready, await request.sealed) == (False, False)
    await stops[0]
    assert kinds(await reading)[-1] == "complete"
    assert bench.ends() == [("r1", "aborted")]
    await bench.over()


@drawn
async def test_a_stop_in_the_last_moment_before_the_pause_is_written_wins() -> None:
    benches: list[Bench] = []
    for seconds in (0.0, 0.5):
        stops: list[asyncio.Future[None]] = []

        async def failpoint(point: str, stops: "list[asyncio.Future[None]]" = stops, seconds: float = seconds) -> None:
            if point == "before_handoff_pause":
                stops.append(benches[-1].stop())
                if seconds:
                    await asyncio.sleep(seconds)

        benches.append(bench := Bench(stands, failpoint=failpoint))
        reading, request = await bench.paused()
        assert await request.sealed is False
        await stops[0]
        assert kinds(await reading)[-1] == "complete"
        assert (bench.ends(), bench.of("handoff/pause")) == ([("r1", "aborted")], [])
        await bench.over()


@drawn
async def test_a_stop_in_the_first_moment_behind_the_seal_gives_the_handoff_up() -> None:
    stops: list[asyncio.Future[None]] = []

    async def failpoint(point: str) -> None:
        if point == "after_handoff_pause_committed":
            stops.append(bench.stop())
            # It does not wait for the run's cleanup.
            await stops[0]

    bench = Bench(stands, failpoint=failpoint)
    reading, request = await bench.paused()
    assert await request.sealed
    await reading
    assert bench.batches()[-2:] == [["handoff/pause"], GIVEN_UP]
    await bench.over()


# ---------------------------------------------------------------- closing, leaving, interrupting


@drawn
async def test_a_kernel_that_closes_leaves_a_pending_handoff_alone() -> None:
    bench = Bench(stands)
    await bench.handed_over()
    await bench.over()
    assert bench.types()[-1] == "handoff/pause"
    # Another process goes on from there.
    after = Bench(completes, journals=bench.journals)
    assert kinds(await after.resumed())[-1] == "complete"
    assert after.ends() == [("s1", "completed")]
    await after.over()


@drawn
async def test_a_kernel_that_closes_while_a_run_is_sealed_lets_it_be_sealed() -> None:
    bench = Bench(stands)
    closing = sealing(bench, lambda: asyncio.ensure_future(bench.kernel.aclose()))
    reading, request = await bench.paused()
    assert await request.sealed
    await reading
    await closing[0]
    assert bench.types()[-1] == "handoff/pause"
    assert bench.ends() == []
    await bench.over()


@drawn
async def test_a_kernel_that_closes_stops_a_run_that_was_told_to_pause() -> None:
    bench = Bench(lingers)
    reading, request = await bench.paused()
    await bench.kernel.aclose()
    assert await request.sealed is False
    assert kinds(await reading)[-1] == "complete"
    assert bench.ends() == [("r1", "aborted")]


@drawn
async def test_a_consumer_that_leaves_before_the_seal_stops_the_run() -> None:
    bench = Bench(lingers)
    stream = bench.start()
    await anext(stream)
    request = bench.ask()
    assert await request.ready
    assert request.commit()
    await stream.aclose()
    assert await request.sealed is False
    assert [data["reason"] for data in bench.of("turn/end")] == [{"kind": "aborted", "source": "abandoned"}]
    await bench.over()


def _leaves(stream: TurnStream) -> "asyncio.Task[None]":
    return asyncio.ensure_future(stream.aclose())


@drawn
async def test_a_consumer_that_leaves_behind_the_seal_changes_nothing() -> None:
    for when in ("sealing", "sealed"):
        bench = Bench(stands)
        stream = bench.start()
        leaving = sealing(bench, partial(_leaves, stream))
        await anext(stream)
        request = bench.ask()
        assert await request.ready
        if when == "sealed":
            leaving.append(None)
        assert request.commit()
        assert await request.sealed
        if leaving[0] is not None:
            await leaving[0]
        await stream.aclose()
        assert bench.types()[-1] == "handoff/pause"
        assert bench.of("turn/stop_requested") == []
        await bench.over()


@pytest.mark.parametrize("seed", range(8))
def test_when_all_tasks_are_cancelled_what_is_on_the_disk_is_what_was_said(seed: int) -> None:
    """As an interrupt does it, at any moment around the seal."""
    outcomes = {run(_interrupted(at), seed) for at in range(0, 120, 3)}
    assert outcomes == {True, False}


async def _interrupted(at: int) -> bool:
    """So many rounds behind the commit; was the run sealed?"""
    bench = Bench(stands)
    reading, request = await bench.paused()
    for _ in range(at):
        await asyncio.sleep(0)
    # On a disk a sync is waited for in a thread, which nobody cancels.
    others = {task for task in asyncio.all_tasks() if not task.get_name().startswith("sync")}
    tasks = others - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, reading, return_exceptions=True)
    assert bench.kernel.running(SESSION) is None
    await bench.kernel.aclose()
    sealed = await request.sealed
    assert len(bench.of("handoff/pause")) == sealed
    assert bench.ends() == ([] if sealed else [("r1", "aborted")])
    assert check_legal(bench.journals.events(SESSION)) == "healthy"
    return sealed


# ---------------------------------------------------------------- while it is pending


@drawn
async def test_while_a_handoff_is_pending_no_message_is_taken() -> None:
    bench = Bench(stands)
    await bench.handed_over()
    before = bench.types()
    busy = await failure_of(read(bench.start("t2", "r2")))
    assert isinstance(busy, SessionBusy)
    assert "s1" in str(busy)
    assert bench.types() == before
    await bench.over()


@drawn
async def test_a_message_that_waited_for_its_turn_is_not_taken_either() -> None:
    bench = Bench(stands, completes)
    reading, request = await bench.paused()
    waiting = asyncio.ensure_future(read(bench.start("t2", "r2")))
    assert await request.sealed
    assert isinstance(await failure_of(waiting), SessionBusy)
    await reading
    assert await bench.resumed()
    assert [data["turn_id"] for data in bench.of("turn/start")] == ["t1"]
    await bench.over()


@drawn
async def test_a_stop_takes_back_the_message_that_waits_for_its_turn_behind_a_seal() -> None:
    bench = Bench(stands)
    waiting = bench.start("t2", "r2")
    stops = sealing(bench, bench.stop)
    reading, _ = await bench.paused()
    starting = asyncio.ensure_future(waiting.started())
    await reading
    while not stops:
        await asyncio.sleep(0.01)
    failure = await failure_of(starting)
    assert isinstance(failure, TurnCancelled | SessionBusy)
    await stops[0]
    assert [data["turn_id"] for data in bench.of("turn/start")] == ["t1"]
    await bench.over()


# ---------------------------------------------------------------- compositions


def records(*compositions: Any, told: list[BaseException | None]) -> Play:
    """Records these one after the other, says what came of it, and waits."""

    async def plays(player: Player, input: SendInput) -> AsyncIterator[SessionEvent]:
        for composition in compositions:
            try:
                await player.context.record_run_composition(input.run_id, composition)
            except Exception as error:
                told.append(error)
            else:
                told.append(None)
        yield player.event("text_delta", message_id="m", text="a")
        await asyncio.sleep(1)
        if await input.handoff_boundary(player.abort, 2) == "pause":
            return
        yield player.complete()

    return plays


@drawn
async def test_what_a_run_is_made_of_is_recorded_once() -> None:
    told: list[BaseException | None] = []
    revised = composed(composer_revision="2")
    bench = Bench(records(composed(), composed(), revised, composed(), told=told))
    reading, request = await bench.paused()
    assert await request.sealed
    await reading
    assert [type(error) for error in told] == [type(None), type(None), InvalidEvent, type(None)]
    assert [data["composition"]["composer_revision"] for data in bench.of("run/composition")] == ["1"]
    await bench.over()


@drawn
async def test_what_is_no_composition_is_refused() -> None:
    told: list[BaseException | None] = []
    bench = Bench(records(None, composed().to_json(), told=told))
    await read(bench.start())
    assert [type(error) for error in told] == [TypeError, TypeError]
    assert bench.of("run/composition") == []
    await bench.over()


@drawn
async def test_nothing_is_recorded_of_a_run_that_does_not_run() -> None:
    bench = Bench(waits)
    reading = await bench.reading()
    record = bench.player.context.record_run_composition
    for run_id in ("r2", "t1", ""):
        with pytest.raises(InvalidEvent, match="does not run here"):
            await record(run_id, composed())
    await bench.stop()
    await reading
    with pytest.raises(InvalidEvent, match="does not run here"):
        await record("r1", composed())
    assert len(bench.of("run/composition")) == 1
    await bench.over()


@drawn
async def test_nothing_is_recorded_of_a_run_that_was_sealed() -> None:
    bench = Bench(stands)
    await bench.handed_over()
    with pytest.raises(InvalidEvent, match="does not run here"):
        await bench.player.context.record_run_composition("r1", composed())
    await bench.over()


@drawn
async def test_without_a_composition_nothing_is_handed_over() -> None:
    async def unprepared(player: Player, input: SendInput) -> AsyncIterator[SessionEvent]:
        yield player.event("text_delta", message_id="m", text="a")
        await asyncio.sleep(1)
        assert await input.handoff_boundary(player.abort, 2) == "continue"
        yield player.complete()

    bench = Bench(unprepared)
    reading = await bench.reading()
    request = bench.ask()
    assert await request.ready
    for asking in (request.preview, request.commit):
        with pytest.raises(HandoffRefused, match="durably committed Run Composition"):
            asking()
    request.cancel()
    assert kinds(await reading)[-1] == "complete"
    await bench.over()


@drawn
async def test_a_composition_that_is_not_on_the_disk_does_not_count() -> None:
    synced = asyncio.Event()

    async def on_sync(journal: MemoryJournal) -> None:
        if any(event.type == "run/composition" for event in journal.events[journal.durable :]):
            await synced.wait()

    recorded: list[asyncio.Task[None]] = []

    async def hasty(player: Player, input: SendInput) -> AsyncIterator[SessionEvent]:
        await asyncio.sleep(0.5)
        boundary = asyncio.ensure_future(input.handoff_boundary(player.abort, 2))
        await asyncio.sleep(0.5)
        bench.journals.on_sync = on_sync
        recorded.append(asyncio.ensure_future(player.prepared()))
        assert await boundary == "pause"
        for event in NOTHING:
            yield event

    bench = Bench(hasty)
    reading = await bench.reading()
    request = bench.ask()
    assert await request.ready
    while not recorded:
        await asyncio.sleep(0.1)
    await asyncio.sleep(0.1)
    with pytest.raises(HandoffRefused, match="durably committed Run Composition"):
        request.commit()
    synced.set()
    await recorded[0]
    assert request.commit()
    assert await request.sealed
    await reading
    await bench.over()


# ---------------------------------------------------------------- a pause that cannot be written


@drawn
async def test_a_pause_that_cannot_be_synced_is_told_and_no_other_end_is_invented() -> None:
    for poisoned in (False, True):
        failure = JournalWriteError("no space", poisoned=poisoned)

        async def on_sync(journal: MemoryJournal, failure: Exception = failure) -> None:
            if any(event.type == "handoff/pause" for event in journal.events[journal.durable :]):
                raise failure

        bench = Bench(stands, completes)
        bench.journals.on_sync = on_sync
        reading, request = await bench.paused()
        assert await failure_of(reading) is failure
        assert await failure_of(request.sealed) is failure
        assert (bench.of("handoff/pause"), bench.of("turn/end"), bench.of("run/settled")) == ([], [], [])
        assert bench.kernel.status(SESSION).degraded == str(failure)
        [over] = [event for event in bench.said if event.kind in ("run_ended", "run_handed_off")]
        assert (over.kind, over.data["error"]) == ("run_ended", failure)
        # The next turn opens the journal again, which ends what was cut off.
        assert kinds(await read(bench.start("t2", "r2")))[-1] == "complete"
        first, second = bench.of("turn/end")
        assert (first["run_id"], first["reason"]["failure_class"]) == ("r1", "journal_write_failed")
        assert second["reason"] == {"kind": "completed"}
        await bench.over()


@drawn
async def test_a_stop_that_waits_for_a_pause_that_cannot_be_written_is_told_so() -> None:
    failure = JournalWriteError("no space")
    stops: list[asyncio.Future[None]] = []

    async def on_sync(journal: MemoryJournal) -> None:
        if any(event.type == "handoff/pause" for event in journal.events[journal.durable :]):
            stops.append(bench.stop())
            await asyncio.sleep(1)
            raise failure

    bench = Bench(stands)
    bench.journals.on_sync = on_sync
    reading, request = await bench.paused()
    assert await failure_of(reading) is failure
    assert await failure_of(request.sealed) is failure
    assert await failure_of(stops[0]) is failure
    assert bench.of("turn/end") == []
    # Of what was lost the kernel tells once more where it closes.
    assert await failure_of(bench.kernel.aclose()) is failure


@drawn
async def test_a_journal_that_fails_before_the_seal_leaves_nothing_sealed() -> None:
    bench = Bench(behind(("step_start", {})))
    failure = JournalWriteError("no space")

    async def on_sync(journal: MemoryJournal) -> None:
        raise failure

    reading = await bench.reading()
    request = bench.ask()
    assert await request.ready
    bench.journals.on_sync = on_sync
    assert request.commit()
    assert await failure_of(reading) is failure
    assert await request.sealed is False
    assert bench.of("handoff/pause") == []
    assert bench.kernel.opened(SESSION) is None
    await bench.kernel.aclose()


# ---------------------------------------------------------------- on a disk


class Place:
    """A root with one session, and a manager whose runs play ``plays``."""

    def __init__(self, root: Path, *plays: Play) -> None:
        self.root = root
        self.plays = list(plays)
        self.players: list[Player] = []

    def built(self, context: BackendContext) -> Player:
        self.players.append(Player(context, self.plays))
        return self.players[-1]

    def manager(self) -> SessionManager:
        app = App(backends={"player": self.built}, default_backend="player", model="m", permission_mode="bypass")
        return SessionManager(self.root, app=app)

    async def paused(self, manager: SessionManager) -> "tuple[asyncio.Task[list[SessionEvent]], HandoffRequest]":
        """A run of a new session that stands at its boundary."""
        await manager.create(session_id=SESSION, cwd=self.root)
        stream = manager.kernel.start_turn(SESSION, turn_id="t1", run_id="r1", text="go")
        reading = asyncio.ensure_future(read(stream))
        await stream.started()
        request = manager.kernel.request_run_handoff(SESSION, "r1", pause())
        assert request is not None
        assert await request.ready
        return reading, request

    async def handed_over(self, manager: SessionManager) -> None:
        reading, request = await self.paused(manager)
        assert request.commit()
        assert await request.sealed
        await reading


async def soon(player: Player, input: SendInput) -> AsyncIterator[SessionEvent]:
    """Comes to a boundary at once where somebody waits for it."""
    await player.prepared()
    yield player.event("text_delta", message_id=f"m-{input.run_id}", text="some ")
    while await input.handoff_boundary(player.abort, 2) != "pause":
        if player.abort.is_set():
            yield player.complete()
            return
        await asyncio.sleep(0.005)


def test_a_session_with_a_pending_handoff_is_renamed_and_neither_put_away_nor_sent_to(tmp_path: Path) -> None:
    place = Place(tmp_path, soon)

    async def main() -> None:
        async with place.manager() as manager:
            await place.handed_over(manager)
            await manager.rename(SESSION, "renamed")
            await manager.set_labels(SESSION, ["a"])
            before = types_of(tmp_path, SESSION)
            with pytest.raises(SessionBusy, match="t1"):
                await manager.archive(SESSION)
            with pytest.raises(SessionBusy, match="s1"):
                await read(manager.send(SESSION, "more"))
            assert types_of(tmp_path, SESSION) == before

    go(main())


def test_a_fork_stands_before_a_turn_that_waits_for_its_successor(tmp_path: Path) -> None:
    place = Place(tmp_path, completes, soon)

    async def main() -> None:
        async with place.manager() as manager:
            await manager.create(session_id=SESSION, cwd=tmp_path)
            await read(manager.send(SESSION, "first", turn_id="t0"))
            at = events_of(tmp_path, SESSION)[-1]
            stream = manager.send(SESSION, "second", turn_id="t1")
            reading = asyncio.ensure_future(read(stream))
            await stream.started()
            await manager.hand_over(SESSION)
            await reading
            fork = await manager.fork(SESSION)
            header = json.loads((directory(tmp_path, fork) / "journal.jsonl").read_bytes().splitlines()[0])
            assert header["data"]["parent"] == {"session_id": SESSION, "seq": at["seq"], "sum": at["sum"]}
            with pytest.raises(ForkRefused, match="t1"):
                await manager.fork(SESSION, turn_id="t1")
            # What waits there waits on, and not in the fork.
            place.plays.append(completes)
            assert kinds(await read(manager.send(fork, "hello")))[-1] == "complete"
            execution = (await manager.read(SESSION)).execution("t1")
            assert execution is not None
            assert execution["pending_handoff"] is not None

    go(main())


def test_a_recovery_leaves_a_pending_handoff_alone_here_and_elsewhere(tmp_path: Path) -> None:
    place = Place(tmp_path, soon, completes)

    async def main() -> None:
        async with place.manager() as manager:
            await place.handed_over(manager)
            before = files_of(tmp_path)
            assert (await manager.recover(SESSION)).state == "unchanged"
        async with place.manager() as manager:
            assert (await manager.recover(SESSION)).state == "unchanged"
            assert [found.state for found in await manager.recover_interrupted_sessions()] == ["unchanged"]
            assert files_of(tmp_path) == before
            plan = await manager.plan_safe_boundary_continuation(SESSION, purpose="handoff")
            assert kinds(await read(manager.resume_safe_boundary_continuation(plan)))[-1] == "complete"

    go(main())


@pytest.mark.parametrize("lost", [True, False])
def test_of_a_pause_whose_sync_failed_what_is_read_again_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    """Either its bytes are cut off, or, where that fails too, the next process finds them."""
    disk = FaultyDisk()
    monkeypatch.setattr("maka.runtime.sessions.FileJournals", partial(FileJournals, fs=disk))
    place = Place(tmp_path, soon, completes, completes)

    async def fails() -> None:
        manager = place.manager()
        reading, request = await place.paused(manager)
        disk.fail("sync")
        if not lost:
            disk.fail("truncate", times=9)
        assert request.commit()
        error = await failure_of(reading)
        assert isinstance(error, JournalWriteError)
        assert await failure_of(request.sealed) is error
        await asyncio.gather(manager.aclose(), return_exceptions=True)

    async def goes_on() -> None:
        async with place.manager() as manager:
            if lost:
                await read(manager.send(SESSION, "more"))
                ends = data_of(tmp_path, SESSION, "turn/end")
                assert [data["reason"]["kind"] for data in ends] == ["interrupted", "completed"]
                assert "handoff/pause" not in types_of(tmp_path, SESSION)
                return
            with pytest.raises(SessionBusy):
                await read(manager.send(SESSION, "more"))
            plan = await manager.plan_safe_boundary_continuation(SESSION, purpose="handoff")
            assert kinds(await read(manager.resume_safe_boundary_continuation(plan)))[-1] == "complete"
            assert [data["run_id"] for data in data_of(tmp_path, SESSION, "turn/end")] == ["s1"]

    go(fails())
    disk.failures.clear()
    # Another process knows nothing of what this one has lost.
    monkeypatch.setattr("maka.journal.rollback._beyond", {})
    go(goes_on())


# ---------------------------------------------------------------- waiting for what may not come


@drawn
async def test_who_gives_up_waiting_takes_nothing_from_the_others() -> None:
    bench = Bench(stands)
    reading = await bench.reading()
    request = bench.ask()
    others = [asyncio.ensure_future(future_of(request)) for future_of in (_ready, _sealed)]
    for future in (request.ready, request.sealed):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(future, 0.01)
    assert await others[0] is True
    assert request.commit()
    assert (await others[1], await request.sealed) == (True, True)
    await reading
    await bench.over()


async def _ready(request: HandoffRequest) -> bool:
    return await request.ready


async def _sealed(request: HandoffRequest) -> bool:
    return await request.sealed


@drawn
async def test_a_backend_that_was_told_to_pause_and_does_not_end_is_given_up() -> None:
    async def ignores(player: Player, input: SendInput) -> AsyncIterator[SessionEvent]:
        async for event in stands(player, input):
            yield event
        await asyncio.sleep(100_000)

    bench = Bench(ignores, deadlines=Deadlines(exit=5, dispose=5))
    reading, request = await bench.paused()
    assert await asyncio.wait_for(request.sealed, 60) is False
    await asyncio.sleep(60)
    [end] = bench.of("turn/end")
    assert end["reason"]["failure_class"] == "backend_timeout"
    assert "after it was told to pause in turn t1" in end["reason"]["message"]
    assert bench.of("handoff/pause") == []
    assert "quarantined" in str(bench.kernel.status(SESSION).quarantined)
    reading.cancel()
    await asyncio.gather(reading, bench.kernel.aclose(), return_exceptions=True)


@drawn
async def test_who_waits_for_the_exit_of_a_run_waits_no_longer_than_that_has_time() -> None:
    async def never() -> None:
        await asyncio.sleep(100_000)

    bench = Bench(lambda player, given: Closing(stands(player, given), never), deadlines=Deadlines(exit=5, dispose=5))
    reading, request = await bench.paused()
    assert await request.sealed is True
    await asyncio.wait_for(bench.kernel.exited(SESSION, "r1"), 60)
    await bench.kernel.exited("another", "r1")
    reading.cancel()
    await asyncio.gather(reading, bench.kernel.aclose(), return_exceptions=True)


@drawn
async def test_a_stop_while_the_kernel_closes_gives_up_what_is_being_sealed() -> None:
    bench = Bench(lingers)
    reading, request = await bench.paused()

    async def closes() -> None:
        closing = asyncio.ensure_future(bench.kernel.aclose())
        await asyncio.sleep(0.1)
        await bench.stop(source="button")
        await closing

    ended = sealing(bench, lambda: asyncio.ensure_future(closes()))
    assert await request.sealed is True
    await ended[0]
    [end] = bench.of("turn/end")
    assert end["reason"] == {"kind": "aborted", "source": "button"}
    await reading


@drawn
async def test_whoever_subscribes_is_told_that_a_handoff_was_given_up() -> None:
    bench = Bench(stands)
    await bench.handed_over()
    await bench.stop()
    [told] = [event for event in bench.said if event.kind == "handoff_abandoned"]
    assert told.data == {"turn_id": "t1", "handoff_id": "h1"}
    await bench.over()


@drawn
async def test_a_reader_of_compositions_that_fails_keeps_the_boundary_from_being_claimed() -> None:
    async def broken(session: OpenSession, run_id: str) -> Any:
        raise OSError("the reader is gone")

    bench = Bench(stands, completes, read_composition=broken)
    await bench.handed_over()
    before = bench.types()
    failure = await failure_of(bench.resumed())
    assert isinstance(failure, ContinuationRevalidationError)
    assert (failure.code, bench.types()) == ("source_identity_changed", before)
    assert "the reader is gone" in str(failure)
    await bench.over()


@drawn
async def test_a_stop_of_a_turn_whose_successor_has_been_claimed_stops_that() -> None:
    stops: list[asyncio.Task[None]] = []

    async def claimed(point: str) -> None:
        if point == "after_continuation_claim_committed":
            stops.append(asyncio.ensure_future(bench.kernel.stop_handed_over(SESSION, "button", None)))
            await asyncio.sleep(0.1)

    bench = Bench(stands, waits, failpoint=claimed)
    await bench.handed_over()
    assert kinds(await read(bench.kernel.start_continuation(await bench.continuation())))[-2:] == ["abort", "complete"]
    await stops[0]
    assert bench.ends() == [("s1", "aborted")]
    assert len(bench.of("continuation/claim")) == 1
    assert len(bench.player.inputs) == 1
    await bench.over()


@drawn
async def test_behind_the_seal_a_stream_has_the_whole_time_of_an_exit() -> None:
    async def slowly(player: Player, input: SendInput) -> AsyncIterator[SessionEvent]:
        async for event in stands(player, input):
            yield event
        await asyncio.sleep(4)

    async def closes() -> None:
        await asyncio.sleep(4)

    bench = Bench(lambda player, given: Closing(slowly(player, given), closes), deadlines=Deadlines(exit=5))
    reading, request = await bench.paused()
    assert await request.sealed is True
    await reading
    assert [event.kind for event in bench.said if event.kind == "backend_failed"] == []
    await bench.over()
