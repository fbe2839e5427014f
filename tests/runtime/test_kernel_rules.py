"""The kernel's rules, one test each: who is told what and when, what stands in the journal, who is given how long.

Time is virtual, and what is ready runs in several orders.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any

import attrs
import pytest

from maka.journal.errors import JournalWriteError
from maka.journal.events import Event, JsonObject
from maka.runtime.backends.base import Backend, BackendRegistry, SendInput
from maka.runtime.backends.scripted import (
    Do,
    Emit,
    Faults,
    Never,
    Part,
    Question,
    ScriptedBackend,
    Tool,
    Vanish,
    Wait,
    scripted_backend,
)
from maka.runtime.errors import (
    BackendTimeout,
    InteractionRefused,
    RuntimeInteractionFailStopError,
    RuntimeInteractionInvariantError,
    SessionQuarantined,
)
from maka.runtime.interactions import JournalInteractions
from maka.runtime.journals import OpenSession
from maka.runtime.kernel.authority import InteractionRequest, RunIdentity
from maka.runtime.kernel.generations import Deadlines
from maka.runtime.kernel.kernel import RuntimeKernel
from maka.runtime.kernel.stream import TurnStream
from maka.runtime.lifecycle import Lifecycle, LifecycleEvent
from maka.runtime.session_events import SessionEvent
from support.memory_journals import MemoryJournal, MemoryJournals, check_legal
from support.seeded_loop import run

SESSION = "s1"
Test = Callable[[], Coroutine[Any, Any, None]]


def drawn(test: Test) -> Callable[[int], None]:
    """Runs the case in several orders, to the end of everything that it has started."""

    @pytest.mark.parametrize("seed", range(3))
    def with_seed(seed: int) -> None:
        run(test(), seed)

    with_seed.__name__ = test.__name__
    return with_seed


class Bench:
    """A kernel on one session in memory. ``turns`` are played by the backends that ``built`` holds."""

    def __init__(
        self,
        *turns: list[Part],
        faults: Faults | list[Faults] | None = None,
        backend: Callable[[], Backend] | None = None,
        steps: bool = True,
        **more: Any,
    ) -> None:
        self.journals = MemoryJournals()
        self.journals.create(SESSION, backend="scripted")
        factory = scripted_backend(list(turns), faults=faults, steps=steps)
        self.built: list[ScriptedBackend] = factory.built
        backends = BackendRegistry()
        backends.register("scripted", factory if backend is None else lambda context: backend())
        lifecycle = Lifecycle()
        self.answers = JournalInteractions(self._opened, lifecycle=lifecycle)
        self.kernel = RuntimeKernel(
            **{
                "journals": self.journals,
                "backends": backends,
                "interaction_authority": self.answers,
                "lifecycle": lifecycle,
                **more,
            }
        )

    def start(self, turn_id: str = "t1") -> TurnStream:
        return self.kernel.start_turn(SESSION, turn_id=turn_id, text="go")

    async def sent(self, turn_id: str = "t1") -> TurnStream:
        """A turn whose backend has been entered and had a moment."""
        stream = self.start(turn_id)
        await stream.started()
        await asyncio.sleep(0.1)
        return stream

    def stop(self, **more: Any) -> "asyncio.Future[None]":
        return self.kernel.stop_session(SESSION, **more)

    def of(self, type_: str) -> list[JsonObject]:
        return self.journals.of(SESSION, type_)

    def types(self) -> list[str]:
        return [event.type for event in self.journals.events(SESSION)]

    def notes(self, kind: str) -> list[JsonObject]:
        return [data for data in self.of("session/note") if data["kind"] == kind]

    def ends(self) -> list[JsonObject]:
        return [data["reason"] for data in self.of("turn/end")]

    def _opened(self, session_id: str) -> OpenSession | None:
        return self.kernel.opened(session_id)

    async def over(self) -> None:
        await self.kernel.aclose()
        assert check_legal(self.journals.events(SESSION)) == "healthy"


def now() -> float:
    return asyncio.get_running_loop().time()


def later(seconds: float, action: Callable[[], Any]) -> None:
    asyncio.get_running_loop().call_later(seconds, action)


async def read(stream: TurnStream) -> list[SessionEvent]:
    return [event async for event in stream]


async def failure_of(awaited: Any) -> BaseException:
    failure = (await asyncio.gather(awaited, return_exceptions=True))[0]
    assert isinstance(failure, BaseException), "it was to fail"
    return failure


def unsynced(journal: MemoryJournal) -> list[Event]:
    return journal.events[journal.durable :]


# ---------------------------------------------------------------- starts


@drawn
async def test_turns_of_a_session_never_overlap() -> None:
    bench = Bench([Wait(1), "a"], [Wait(1), "b"])
    streams = [bench.start("t1"), bench.start("t2")]
    for events in await asyncio.gather(*map(read, streams)):
        assert [event.kind for event in events][-1] == "complete"
    assert [type for type in bench.types() if type.startswith("turn/")] == ["turn/start", "turn/end"] * 2
    assert [data["turn_id"] for data in bench.of("turn/start")] == [data["turn_id"] for data in bench.of("turn/end")]
    assert [row.sends for row in bench.built] == [2]
    await bench.over()


@drawn
async def test_a_start_that_waits_and_is_stopped_leaves_nothing() -> None:
    bench = Bench([Never()])
    await bench.sent("t1")
    waiting = bench.start("t2")
    following = asyncio.ensure_future(read(waiting))
    await asyncio.sleep(0.1)
    assert bench.kernel.status(SESSION).turns == ["t1", "t2"]
    stopped = bench.stop()
    # It takes effect before anybody waits for it.
    assert bench.kernel.status(SESSION).turns == ["t1"]
    assert bench.kernel.status(SESSION).stopping
    assert await following == []
    await stopped
    assert [data["turn_id"] for data in bench.of("turn/start")] == ["t1"]
    await bench.over()


@attrs.frozen
class Failing:
    """An authority that cannot bind."""

    failure: Exception

    def bind_run(self, identity: RunIdentity) -> Any:
        raise self.failure


@drawn
async def test_a_start_that_fails_behind_its_begin_has_an_end() -> None:
    failure = RuntimeError("nobody is bound")
    bench = Bench(["a"], interaction_authority=Failing(failure))
    assert await failure_of(read(bench.start())) is failure
    [reason] = bench.ends()
    assert (reason["kind"], reason["failure_class"]) == ("failed", "start_failed")
    assert bench.types()[-2:] == ["turn/end", "run/settled"]
    assert [row.sends for row in bench.built] == [0]
    await bench.over()


@drawn
async def test_a_start_that_fails_before_its_begin_leaves_nothing() -> None:
    failure = RuntimeError("nobody is bound")
    bench = Bench(["a"], message_authority=Failing(failure))
    assert await failure_of(read(bench.start())) is failure
    assert bench.types() == ["session/header"]
    await bench.over()


@drawn
async def test_a_backend_that_was_replaced_behind_its_reservation_is_not_sent_to() -> None:
    reserved, go_on = asyncio.Event(), asyncio.Event()

    async def activation(operation: Callable[[], Coroutine[Any, Any, None]]) -> None:
        await operation()
        reserved.set()
        await go_on.wait()

    bench = Bench(["a"], run_backend_activation=activation)
    reading = asyncio.ensure_future(read(bench.start()))
    await reserved.wait()
    await bench.kernel.invalidate_cached_backends()
    go_on.set()
    assert (await reading)[-1].data == {"stop_reason": "end_turn"}
    assert [(row.sends, row.disposals) for row in bench.built] == [(0, 1), (1, 0)]
    await bench.over()


# ---------------------------------------------------------------- durable first


class Yielding:
    """A backend that yields these events, and calls ``asked`` each time when it is asked for the next one."""

    def __init__(self, events: list[tuple[str, JsonObject]], asked: Callable[[str], None]) -> None:
        self._events = events
        self._asked = asked

    async def send(self, input: SendInput) -> AsyncIterator[SessionEvent]:
        for number, (kind, data) in enumerate(self._events):
            yield SessionEvent(kind, f"e{number}", input.turn_id, 0, data)
            self._asked(kind)

    async def stop(self, reason: str, mode: str) -> None:
        pass

    async def dispose(self) -> None:
        pass


async def _slow_sync(journal: MemoryJournal) -> None:
    await asyncio.sleep(1)


@drawn
async def test_a_backend_goes_on_when_what_it_acts_on_is_durable() -> None:
    wanted = {"step_start": "step/start", "tool_start": "tool/call", "tool_result": "tool/result"}
    checked: list[str] = []

    def asked(kind: str) -> None:
        if kind in wanted:
            assert wanted[kind] in bench.types(), f"{kind} is not durable and its backend goes on"
            checked.append(kind)

    call = {"call_id": "c1", "name": "x"}
    events: list[tuple[str, JsonObject]] = [
        ("step_start", {}),
        ("tool_start", call),
        ("tool_result", {**call, "state": "ok", "content": [{"kind": "text", "text": "done"}]}),
        ("step_end", {}),
        ("complete", {"stop_reason": "end_turn"}),
    ]
    bench = Bench(backend=lambda: Yielding(events, asked))
    bench.journals.on_sync = _slow_sync
    await read(bench.start())
    assert checked == ["step_start", "tool_start", "tool_result"]
    assert bench.ends() == [{"kind": "completed"}]
    await bench.over()


@drawn
async def test_a_consumer_is_told_what_is_durable() -> None:
    stands = {"step_start": "step/start", "tool_start": "tool/call", "tool_result": "tool/result"}
    stands |= {"text_complete": "assistant/message", "complete": "turn/end"}
    bench = Bench([Tool("x"), "b"])
    bench.journals.on_sync = _slow_sync
    told = []
    async for event in bench.start():
        if event.kind in stands:
            told.append(event.kind)
            assert stands[event.kind] in bench.types(), f"{event.kind} was told and is not durable"
    assert set(told) == set(stands)
    await bench.over()


@drawn
async def test_a_question_is_shown_when_it_is_durable() -> None:
    bench = Bench(["a", Question("Really?")])
    bench.journals.on_sync = _slow_sync
    async for event in bench.start():
        if event.kind == "question_request":
            interaction_id = event.data["interaction_id"]
            assert [data["interaction_id"] for data in bench.of("interaction/requested")] == [interaction_id]
            answer = {"kind": "question_answer", "answers": ["Yes"]}
            await bench.answers.answer(SESSION, interaction_id, answer)
    assert [row.outcomes for row in bench.built] == [[answer]]
    assert bench.ends() == [{"kind": "completed"}]
    await bench.over()


# ---------------------------------------------------------------- how a turn ends


@drawn
async def test_a_stop_behind_the_end_changes_nothing() -> None:
    stops: list[asyncio.Future[None]] = []

    async def on_sync(journal: MemoryJournal) -> None:
        if any(event.type == "turn/end" for event in unsynced(journal)):
            stops.append(bench.stop())
        await asyncio.sleep(0)

    bench = Bench(["a"])
    bench.journals.on_sync = on_sync
    stream = bench.start()
    assert (await read(stream))[-1].data == {"stop_reason": "end_turn"}
    await asyncio.gather(*stops)
    assert len(stops) == 1
    assert stream.reason == {"kind": "completed"}
    assert (bench.ends(), bench.notes("abort")) == ([{"kind": "completed"}], [])
    await bench.over()


@drawn
async def test_a_turn_that_completes_while_it_is_stopped_was_stopped() -> None:
    bench = Bench([Wait(1), "a"], faults=Faults(stop_delay=5, ignore_stop=True))
    stream = await bench.sent()
    await bench.stop(source="somebody")
    assert (await read(stream))[-1].data == {"stop_reason": "user_stop"}
    assert bench.ends() == [{"kind": "aborted", "source": "somebody"}]
    assert len(bench.notes("abort")) == 1
    await bench.over()


@drawn
async def test_a_stream_that_ends_without_a_word_has_failed() -> None:
    bench = Bench(["a", Vanish()])
    assert (await read(bench.start()))[-1].data == {"stop_reason": "error"}
    [reason] = bench.ends()
    assert (reason["kind"], reason["failure_class"]) == ("failed", "missing_terminal_event")
    assert bench.types()[-2:] == ["turn/end", "run/settled"]
    await bench.over()


@drawn
async def test_what_waits_for_an_answer_is_closed_in_the_batch_of_the_turns_end() -> None:
    bench = Bench(["a", Question("Really?")])
    stream = await bench.sent()
    await asyncio.sleep(1)
    [waiting] = await bench.answers.pending(SESSION)
    await bench.stop()
    events = bench.journals.events(SESSION)
    types = [event.type for event in events]
    closure, end = types.index("interaction/resolved"), types.index("turn/end")
    assert closure < end
    # Each of a batch says how many follow.
    assert [event.more for event in events[closure : end + 2]] == [*range(end + 1 - closure, -1, -1)]
    outcome = {"kind": "closure", "reason": "turn_stopped"}
    assert bench.of("interaction/resolved") == [{"interaction_id": waiting["interaction_id"], "outcome": outcome}]
    await read(stream)
    await bench.over()


@drawn
async def test_a_stop_closes_the_interactions_while_the_backend_still_stops() -> None:
    bench = Bench(["a", Question("Really?")], faults=Faults(stop_delay=5))
    await bench.sent()
    await asyncio.sleep(1)
    [waiting] = await bench.answers.pending(SESSION)
    stopped = bench.stop()
    await asyncio.sleep(1)
    answer = {"kind": "question_answer", "answers": ["Yes"]}
    with pytest.raises(InteractionRefused) as caught:
        await bench.answers.answer(SESSION, waiting["interaction_id"], answer)
    assert caught.value.code == "already_resolved"
    assert not stopped.done()
    await stopped
    await bench.over()


@drawn
async def test_what_a_backend_says_behind_the_end_is_dropped_and_is_no_failure() -> None:
    bench = Bench([Never()], faults=Faults(late=[Wait(1), "late"]), steps=False)
    failed: list[str] = []
    bench.kernel.subscribe(lambda event: failed.append(event.kind) if "failed" in event.kind else None)
    stream = await bench.sent()
    await bench.stop()
    await read(stream)
    assert bench.of("assistant/message") == []
    assert failed == []
    assert bench.types()[-3:] == ["turn/end", "session/note", "run/settled"]
    await bench.over()


@drawn
async def test_a_backend_begins_nothing_behind_the_end() -> None:
    entered: list[SendInput] = []
    bench = Bench([Never()], faults=Faults(late=[Wait(1), Tool("x"), Do(entered.append)]))
    stream = await bench.sent()
    await bench.stop()
    await read(stream)
    assert bench.of("tool/call") == []
    assert entered == []
    await bench.over()


# ---------------------------------------------------------------- stops


@drawn
async def test_stops_share_one_attempt_and_its_error() -> None:
    stop_error = RuntimeError("will not stop")
    bench = Bench([Never()], faults=Faults(stop_error=stop_error, stop_delay=1))
    await bench.sent()
    failures = [failure_of(bench.stop()) for _ in range(3)]
    assert [error is stop_error for error in await asyncio.gather(*failures)] == [True] * 3
    assert [row.stops for row in bench.built] == [[("user_stop", "immediate")]]
    assert len(bench.of("turn/stop_requested")) == 1
    await bench.over()


def test_a_stop_in_the_last_moment_before_the_send_keeps_it_from_being_entered() -> None:
    # Only on a loop that keeps the order of what is ready it is certain which moment that is.
    async def main() -> None:
        def heard(event: LifecycleEvent) -> None:
            if event.kind == "run_started":
                asyncio.get_running_loop().call_soon(bench.stop)

        bench = Bench([Never()], interaction_authority=None)
        bench.kernel.subscribe(heard)
        await read(bench.start())
        assert [row.sends for row in bench.built] == [0]
        assert [reason["kind"] for reason in bench.ends()] == ["aborted"]
        await bench.over()

    asyncio.run(main())


@drawn
async def test_one_who_gives_up_waiting_for_a_stop_takes_nothing_from_the_others() -> None:
    bench = Bench([Never()], faults=Faults(stop_delay=1))
    await bench.sent()
    hasty, patient = bench.stop(), bench.stop()
    hasty.cancel()
    await patient
    assert [reason["kind"] for reason in bench.ends()] == ["aborted"]
    await bench.over()


@drawn
async def test_a_stop_after_the_step_waits_for_its_end() -> None:
    bench = Bench(["a", Tool("x", seconds=2), "b"])
    stream = await bench.sent()
    later(1, lambda: stops.append(bench.stop(mode="after_step")))
    stops: list[asyncio.Future[None]] = []
    await read(stream)
    await stops[0]
    assert [data["state"] for data in bench.of("tool/result")] == ["ok"]
    assert [row.stops for row in bench.built] == [[("user_stop", "after_step")]]
    assert [reason["kind"] for reason in bench.ends()] == ["aborted"]
    assert len(bench.of("assistant/message")) == 1
    await bench.over()


@drawn
async def test_an_immediate_stop_makes_one_after_the_step_immediate() -> None:
    bench = Bench(["a", Tool("x", seconds=20), "b"])
    await bench.sent()
    await asyncio.sleep(1)
    first = bench.stop(mode="after_step")
    await asyncio.sleep(1)
    assert not first.done()
    await bench.stop(mode="immediate")
    await first
    assert now() == pytest.approx(2, abs=0.5)
    assert [row.stops for row in bench.built] == [[("user_stop", "after_step"), ("user_stop", "immediate")]]
    assert [data["mode"] for data in bench.of("turn/stop_requested")] == ["after_step", "immediate"]
    assert [data["state"] for data in bench.of("tool/result")] == ["unknown"]
    await bench.over()


@drawn
async def test_a_step_that_does_not_end_is_stopped_at_once_in_the_end() -> None:
    bench = Bench(["a", Tool("x", seconds=200), "b"], deadlines=Deadlines(after_step=5))
    await bench.sent()
    await bench.stop(mode="after_step")
    assert now() == pytest.approx(5, abs=0.5)
    assert [row.stops for row in bench.built] == [[("user_stop", "after_step"), ("user_stop", "immediate")]]
    assert [data["state"] for data in bench.of("tool/result")] == ["unknown"]
    await bench.over()


# ---------------------------------------------------------------- deadlines and quarantine


@drawn
async def test_a_stop_that_hangs_is_given_up_and_the_session_is_quarantined_until_the_run_exits() -> None:
    stubborn = Faults(stop_delay=1000, ignore_stop=True, ignore_dispose=True, ignore_close=True)
    bench = Bench([Wait(50)], ["b"], faults=[stubborn, Faults()], deadlines=Deadlines(stop=5))
    await bench.sent()
    assert isinstance(await failure_of(bench.stop()), BackendTimeout)
    assert now() == pytest.approx(5, abs=0.5)
    assert [reason["kind"] for reason in bench.ends()] == ["aborted"]
    assert bench.built[0].disposals == 1
    [note] = bench.notes("quarantine")
    assert note["turn_id"] == "t1"
    assert "did not return within 5 s" in note["text"]
    refused = await failure_of(read(bench.start("t2")))
    assert isinstance(refused, SessionQuarantined)
    assert str(refused) == bench.kernel.status(SESSION).quarantined
    await asyncio.sleep(60)
    assert (await read(bench.start("t3")))[-1].data == {"stop_reason": "end_turn"}
    assert len(bench.built) == 2
    await bench.over()


@drawn
async def test_a_disposal_that_hangs_quarantines_for_good() -> None:
    stop_error = RuntimeError("will not stop")
    faults = Faults(stop_error=stop_error, dispose_delay=1000)
    bench = Bench([Wait(50)], faults=faults, deadlines=Deadlines(dispose=5))
    await bench.sent()
    await failure_of(bench.stop())
    assert now() == pytest.approx(5, abs=0.5)
    await asyncio.sleep(60)
    refused = await failure_of(read(bench.start("t2")))
    assert isinstance(refused, SessionQuarantined)
    assert refused.permanent
    assert [row.disposals for row in bench.built] == [1]
    assert isinstance(await failure_of(bench.kernel.invalidate_cached_backends()), BackendTimeout)
    await failure_of(bench.kernel.aclose())
    assert check_legal(bench.journals.events(SESSION)) == "healthy"


@drawn
async def test_a_send_that_goes_on_behind_its_turn_is_given_up() -> None:
    bench = Bench([Emit("complete", {"stop_reason": "end_turn"}), Never()], ["b"], deadlines=Deadlines(exit=5))
    stream = bench.start()
    events = await read(stream)
    assert [event.data for event in events if event.kind == "complete"] == [{"stop_reason": "end_turn"}]
    assert now() == pytest.approx(5, abs=0.5)
    assert bench.built[0].disposals == 1
    assert (await read(bench.start("t2")))[-1].data == {"stop_reason": "end_turn"}
    assert len(bench.built) == 2
    await bench.over()


@attrs.frozen
class Hanging:
    """An authority whose owners never get closed."""

    session_id: str = ""
    turn_id: str = ""
    run_id: str = ""

    def bind_run(self, identity: RunIdentity) -> "Hanging":
        return Hanging(identity.session_id, identity.turn_id, identity.run_id)

    async def accept_user_question_request(self, request: InteractionRequest) -> None: ...
    async def accept_permission_request(self, request: InteractionRequest) -> None: ...
    async def accept_sandbox_boundary_request(self, request: InteractionRequest) -> None: ...

    async def close(self, reason: str) -> None:
        await asyncio.Event().wait()

    def release(self) -> None:
        pytest.fail("it was not closed")


@drawn
async def test_a_close_that_hangs_does_not_keep_the_turn_from_its_end() -> None:
    bench = Bench([Never()], interaction_authority=Hanging(), deadlines=Deadlines(stop=5))
    await bench.sent()
    failure = await failure_of(bench.stop())
    assert isinstance(failure, RuntimeInteractionFailStopError)
    assert isinstance(failure.authority_failure, TimeoutError)
    assert now() == pytest.approx(5, abs=0.5)
    assert [reason["kind"] for reason in bench.ends()] == ["aborted"]
    with contextlib.suppress(RuntimeInteractionFailStopError):  # told again where the run has not exited yet
        await bench.kernel.aclose()


# ---------------------------------------------------------------- a journal that fails


@drawn
async def test_a_journal_that_fails_stops_the_run_and_the_next_turn_opens_it_again() -> None:
    failure = JournalWriteError("no space")

    async def on_sync(journal: MemoryJournal) -> None:
        if any(event.type == "tool/call" for event in unsynced(journal)):
            raise failure

    entered: list[SendInput] = []
    bench = Bench(["a", Tool("x"), Do(entered.append)], ["c"])
    bench.journals.on_sync = on_sync
    assert await failure_of(read(bench.start())) is failure
    assert bench.kernel.status(SESSION).degraded == str(failure)
    assert "turn/end" not in bench.types()
    assert entered == []
    assert (await read(bench.start("t2")))[-1].data == {"stop_reason": "end_turn"}
    assert bench.kernel.status(SESSION).degraded is None
    first, second = bench.ends()
    assert (first["kind"], first["failure_class"]) == ("failed", "journal_write_failed")
    assert second == {"kind": "completed"}
    await bench.over()


@drawn
async def test_a_backend_is_asked_for_nothing_more_behind_a_barrier_that_failed() -> None:
    async def on_sync(journal: MemoryJournal) -> None:
        if any(event.type == "tool/call" for event in unsynced(journal)):
            raise JournalWriteError("no space")

    asked: list[str] = []
    call = {"call_id": "c1", "name": "x"}
    bench = Bench(backend=lambda: Yielding([("step_start", {}), ("tool_start", call), ("step_end", {})], asked.append))
    bench.journals.on_sync = on_sync
    assert isinstance(await failure_of(read(bench.start())), JournalWriteError)
    assert asked == ["step_start"]
    await bench.kernel.aclose()


# ---------------------------------------------------------------- consumers


@drawn
async def test_neither_backend_nor_journal_waits_for_who_reads() -> None:
    bench = Bench(["x"] * 1_500)
    stream = bench.start()
    await anext(stream)
    while not bench.ends():
        await asyncio.sleep(1)
    assert bench.ends() == [{"kind": "completed"}]
    rest = await read(stream)
    assert stream.dropped > 0
    assert rest[-1].data == {"stop_reason": "end_turn"}
    await bench.over()


def _given(backend: Backend) -> Backend:
    return backend


class Responding(ScriptedBackend):
    """A backend that shows questions by itself."""

    def __init__(self) -> None:
        self.responses: list[JsonObject] = []

    async def respond_to_user_question(self, response: JsonObject) -> None:
        self.responses.append(response)

    def send(self, input: SendInput) -> AsyncIterator[SessionEvent]:
        return Yielding([("text_delta", {"message_id": "m", "text": "a"})], lambda kind: None).send(input)

    async def stop(self, reason: str, mode: str) -> None:
        pass

    async def dispose(self) -> None:
        pass


@drawn
async def test_a_backends_own_responder_is_for_kernels_without_an_authority() -> None:
    for hosted in (True, False):
        backend = Responding()
        more: dict[str, Any] = {} if hosted else {"interaction_authority": None}
        bench = Bench(backend=partial(_given, backend), **more)
        await read(bench.start())
        response = {"request_id": "r1", "answers": ["Yes"]}
        if hosted:
            with pytest.raises(RuntimeInteractionInvariantError):
                await bench.kernel.respond_to_user_question(SESSION, response)
        else:
            await bench.kernel.respond_to_user_question(SESSION, response)
        assert backend.responses == ([] if hosted else [response])
        await bench.over()
