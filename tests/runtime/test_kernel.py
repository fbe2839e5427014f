"""The kernel at its rims: closing and releasing sessions, what is left of a hanging backend, races that the simulation
found. Time is virtual, and what is ready runs in several orders.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from maka.journal.errors import JournalWriteError
from maka.journal.events import Draft, JsonObject
from maka.repair.plan import diagnose
from maka.runtime.backends.base import BackendContext, BackendRegistry, SendInput
from maka.runtime.errors import (
    BackendTimeout,
    KernelClosed,
    RuntimeInteractionFailStopError,
    RuntimeInteractionInvariantError,
    SessionArchived,
    SessionBusy,
    TurnCancelled,
)
from maka.runtime.kernel.authority import ClosureReason, InteractionRequest, RunIdentity
from maka.runtime.kernel.generations import Deadlines
from maka.runtime.kernel.kernel import RuntimeKernel
from maka.runtime.kernel.stream import TurnStream
from maka.runtime.lifecycle import LifecycleEvent
from maka.runtime.model import ModelError
from maka.runtime.session_events import SessionEvent
from support.drafts import rename
from support.memory_journals import MemoryJournal, MemoryJournals, check_legal, raw
from support.seeded_loop import run

SEEDS = range(12)
#: What a backend does with one turn: yields events, or waits.
Play = Callable[["FakeBackend", SendInput], AsyncIterator[SessionEvent]]
#: What its stop does, by mode, before ``send`` may end.
OnStop = Callable[[str], Awaitable[None]]


async def at_once(mode: str) -> None:
    pass


async def never(mode: str) -> None:
    await asyncio.Event().wait()


async def never_after_a_step(mode: str) -> None:
    if mode == "after_step":
        await asyncio.Event().wait()


def told(input: SendInput, kind: str, **data: Any) -> SessionEvent:
    return SessionEvent(kind, f"{input.turn_id}-{kind}", input.turn_id, 1, data)


async def says(backend: "FakeBackend", input: SendInput) -> AsyncIterator[SessionEvent]:
    yield told(input, "text_complete", message_id=f"{input.turn_id}-m", text="hello")
    yield told(input, "complete", stop_reason="end_turn")


async def blocks(backend: "FakeBackend", input: SendInput) -> AsyncIterator[SessionEvent]:
    """Until it is stopped or disposed."""
    yield told(input, "text_delta", message_id="m", text="hello")
    await backend.released.wait()
    yield told(input, "complete", stop_reason="user_stop")


async def hangs(backend: "FakeBackend", input: SendInput) -> AsyncIterator[SessionEvent]:
    yield told(input, "text_delta", message_id="m", text="hello")
    await asyncio.Event().wait()


class FakeBackend:
    """``log`` tells in order what was done with it."""

    def __init__(self, play: Play, on_stop: OnStop) -> None:
        self.log: list[str] = []
        self.released = asyncio.Event()
        self._play = play
        self._on_stop = on_stop

    async def send(self, input: SendInput) -> AsyncIterator[SessionEvent]:
        self.log.append(f"send {input.turn_id}")
        self.released.clear()
        async for event in self._play(self, input):
            yield event

    async def stop(self, reason: str, mode: str) -> None:
        self.log.append(f"stop {mode}")
        await self._on_stop(mode)
        self.released.set()

    async def dispose(self) -> None:
        self.log.append("dispose")
        self.released.set()


class Bench:
    """A kernel on sessions in memory; ``play`` is what its backends do."""

    def __init__(self, play: Play = says, on_stop: OnStop = at_once, *, sessions: int = 1, **more: Any) -> None:
        self.journals = MemoryJournals()
        for number in range(1, sessions + 1):
            self.journals.create(f"s{number}")
        self.built: list[FakeBackend] = []
        self.heard: list[LifecycleEvent] = []
        self._made = partial(FakeBackend, play, on_stop)
        registry = BackendRegistry()
        registry.register("fake", self._build)
        self.kernel = RuntimeKernel(journals=self.journals, backends=registry, **more)
        self.kernel.subscribe(self.heard.append)

    def _build(self, context: BackendContext) -> FakeBackend:
        self.built.append(self._made())
        return self.built[-1]

    async def turn(self, session_id: str = "s1", turn_id: str = "t1") -> list[str]:
        """A whole turn; the kinds that it told."""
        return [event.kind async for event in self.kernel.start_turn(session_id, text="go", turn_id=turn_id)]

    def of(self, type_: str, session_id: str = "s1") -> list[JsonObject]:
        return self.journals.of(session_id, type_)

    def reasons(self, session_id: str = "s1") -> list[JsonObject]:
        return [data["reason"] for data in self.of("turn/end", session_id)]

    def kinds_heard(self) -> list[str]:
        return [event.kind for event in self.heard]


# ---------------------------------------------------------------- sessions open and closed


@pytest.mark.parametrize("seed", SEEDS)
def test_idle_sessions_beyond_the_limit_are_closed_the_longest_idle_first(seed: int) -> None:
    bench = Bench(sessions=3, keep_open=2)

    async def main() -> None:
        for session_id in ("s1", "s2", "s3"):
            assert "complete" in await bench.turn(session_id)
        await asyncio.sleep(1)
        assert [bench.journals.is_open(name) for name in ("s1", "s2", "s3")] == [False, True, True]
        assert bench.built[0].log == ["send t1", "dispose"]
        assert "complete" in await bench.turn("s1", "t2")
        await bench.kernel.aclose()

    run(main(), seed)
    assert len(bench.built) == 4


@pytest.mark.parametrize("seed", range(60))
def test_a_session_that_is_being_closed_is_opened_after_that(seed: int) -> None:
    bench = Bench(keep_open=0)

    async def slow(journal: MemoryJournal) -> None:
        await asyncio.sleep(0.01)

    bench.journals.on_sync = slow

    async def main() -> None:
        for number in range(5):
            assert "complete" in await bench.turn(turn_id=f"t{number}")
        await bench.kernel.aclose()

    run(main(), seed)
    assert check_legal(bench.journals.events("s1")) == "healthy"


@pytest.mark.parametrize("seed", range(60))
def test_an_idle_session_is_not_taken_from_a_turn_that_begins(seed: int) -> None:
    bench = Bench(keep_open=0)

    async def main() -> None:
        turns = [bench.turn(turn_id=f"t{number}") for number in range(4)]
        assert all("complete" in kinds for kinds in await asyncio.gather(*turns))
        await bench.kernel.aclose()

    run(main(), seed)
    assert bench.reasons() == [{"kind": "completed"}] * 4


@pytest.mark.parametrize("seed", SEEDS)
def test_release_lets_another_open_the_session_and_refuses_what_is_in_use(seed: int) -> None:
    bench = Bench(blocks)

    async def main() -> None:
        stream = bench.kernel.start_turn("s1", text="go")
        await anext(stream)
        with pytest.raises(SessionBusy, match="stop it or wait"):
            await bench.kernel.release("s1")
        await stream.aclose()
        async with bench.kernel.session("s1") as session:
            with pytest.raises(SessionBusy, match="in use"):
                await bench.kernel.release("s1")
            assert bench.kernel.opened("s1") is session
        await bench.kernel.release("s1")
        await bench.journals.close(await bench.journals.open("s1"))
        await bench.kernel.release("s1")
        await bench.kernel.aclose()

    run(main(), seed)


@pytest.mark.parametrize("seed", range(60))
def test_two_who_release_a_session_do_not_lose_the_one_that_is_opened_behind_them(seed: int) -> None:
    bench = Bench()

    async def main() -> None:
        await bench.turn()
        releases = [asyncio.ensure_future(bench.kernel.release("s1")) for _ in range(2)]
        while bench.journals.is_open("s1"):
            await asyncio.sleep(0)
        assert "complete" in await bench.turn(turn_id="t2")
        await asyncio.gather(*releases, return_exceptions=True)
        assert bench.kernel.status("s1").open
        await bench.kernel.aclose()
        assert not bench.journals.is_open("s1")

    run(main(), seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_archived_session_gets_no_turn_until_it_is_taken_out(seed: int) -> None:
    bench = Bench()

    async def archive(value: bool) -> None:
        await bench.kernel.append("s1", lambda session: [Draft("session/updated", {"patch": {"archived": value}})])

    async def main() -> None:
        await archive(True)
        with pytest.raises(SessionArchived, match="`unarchive` it"):
            await bench.turn()
        await archive(False)
        assert "complete" in await bench.turn(turn_id="t2")
        await bench.kernel.aclose()

    run(main(), seed)
    assert [data["turn_id"] for data in bench.of("turn/start")] == ["t2"]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_journal_that_failed_is_known_as_failed_after_the_session_was_closed(seed: int) -> None:
    bench = Bench(keep_open=0)
    fails = True

    async def on_sync(journal: MemoryJournal) -> None:
        if fails and any(event.type == "turn/end" for event in journal.events[journal.durable :]):
            raise JournalWriteError("no space")

    bench.journals.on_sync = on_sync

    async def main() -> None:
        nonlocal fails
        with pytest.raises(JournalWriteError, match="no space"):
            await bench.turn()
        fails = False
        await asyncio.sleep(1)
        assert not bench.journals.is_open("s1")
        assert bench.kernel.status("s1").degraded == "no space"
        assert bench.kinds_heard().count("session_degraded") == 1
        await bench.turn(turn_id="t2")
        assert bench.kernel.status("s1").degraded is None
        await bench.kernel.aclose()

    run(main(), seed)
    assert [reason.get("failure_class") for reason in bench.reasons()] == ["journal_write_failed", None]


# ---------------------------------------------------------------- the end of the kernel


@pytest.mark.parametrize("seed", SEEDS)
def test_a_kernel_closes_although_a_backend_hangs_and_tells_who_waits(seed: int) -> None:
    bench = Bench(hangs, never, deadlines=Deadlines(stop=1, dispose=1, exit=1))

    async def main() -> None:
        reading = asyncio.ensure_future(bench.turn())
        await asyncio.sleep(0.5)
        with pytest.raises(BackendTimeout, match=r"stop\(\) did not return within 1 s"):
            await bench.kernel.aclose()
        assert asyncio.get_running_loop().time() < 10
        with pytest.raises(KernelClosed, match="before run"):
            await reading
        assert not bench.journals.is_open("s1")
        with pytest.raises(KernelClosed, match="make a new one"):
            await bench.turn()

    run(main(), seed)
    assert [reason["kind"] for reason in bench.reasons()] == ["aborted"]
    assert bench.built[0].log == ["send t1", "stop immediate", "dispose"]
    (found,) = [
        finding for finding in diagnose(raw(bench.journals.events("s1"))).findings if finding.code == "quarantine"
    ]
    assert "failed to stop" in found.message


@pytest.mark.parametrize("seed", range(80))
def test_a_consumer_that_goes_while_the_kernel_closes_is_not_cancelled(seed: int) -> None:
    bench = Bench(says)

    async def go(stream: TurnStream) -> None:
        async for event in stream:
            if event.kind == "complete":
                break
        for _ in range(seed % 20):
            await asyncio.sleep(0)
        await stream.aclose()

    async def main() -> None:
        going = asyncio.ensure_future(go(bench.kernel.start_turn("s1", text="go")))
        while not bench.reasons():
            await asyncio.sleep(0)
        await bench.kernel.aclose()
        await going

    run(main(), seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_closing_kernel_waits_for_who_holds_a_session(seed: int) -> None:
    bench = Bench()

    async def hold() -> None:
        async with bench.kernel.session("s1") as session:
            await asyncio.sleep(0.5)
            session.journal.append(rename("held"))
            await session.journal.aflush()

    async def main() -> None:
        holding = asyncio.ensure_future(hold())
        await asyncio.sleep(0.1)
        await bench.kernel.aclose()
        await holding

    run(main(), seed)
    assert bench.of("session/updated") == [{"patch": {"name": "held"}}]


@pytest.mark.parametrize("seed", range(40))
def test_a_stream_that_is_closed_before_it_began_leaves_nobody_waiting(seed: int) -> None:
    bench = Bench()

    async def main() -> None:
        stream = bench.kernel.start_turn("s1", text="go")
        starting = asyncio.ensure_future(stream.started())
        await stream.aclose()
        with pytest.raises(TurnCancelled):
            await starting
        assert [event async for event in stream] == []
        await bench.kernel.aclose()

    run(main(), seed)
    assert bench.of("turn/start") == []


# ---------------------------------------------------------------- how a turn may end


@pytest.mark.parametrize(
    ("error", "failure_class"),
    [
        (RuntimeError("a defect"), "backend_error"),
        (ModelError("slow down", kind="provider_rate_limit"), "provider_rate_limit"),
        (asyncio.CancelledError(), "backend_error"),
    ],
)
def test_what_send_raises_ends_the_turn(error: BaseException, failure_class: str) -> None:
    async def fails(backend: FakeBackend, input: SendInput) -> AsyncIterator[SessionEvent]:
        yield told(input, "tool_start", call_id="c", name="t")
        raise error

    bench = Bench(fails)

    async def main() -> None:
        assert (await bench.turn())[-2:] == ["error", "complete"]
        await bench.kernel.aclose()

    run(main(), 0)
    (reason,) = bench.reasons()
    assert (reason["kind"], reason["failure_class"]) == ("failed", failure_class)
    assert [data["state"] for data in bench.of("tool/result")] == ["unknown"]
    assert len(bench.of("run/settled")) == 1


@pytest.mark.parametrize(
    ("kind", "data", "failure_class"),
    [
        ("text_delta", {"message_id": "m"}, "backend_invalid_event"),
        ("text_delta", {"message_id": "m", "text": 5}, "backend_invalid_event"),
        ("text_complete", {"message_id": 7, "text": "x"}, "backend_invalid_event"),
        ("complete", {"stop_reason": "done"}, "backend_invalid_event"),
        ("complete", {"stop_reason": ["end_turn"]}, "backend_invalid_event"),
        ("assistant_message", {"message_id": "m", "content": [5], "stop_reason": "x"}, "provider_invalid_response"),
        ("tool_result", {"call_id": "c", "state": "ok", "content": []}, "backend_invalid_event"),
        ("anything", {}, "backend_invalid_event"),
    ],
)
def test_what_cannot_be_taken_ends_the_turn(kind: str, data: JsonObject, failure_class: str) -> None:
    async def misbehaves(backend: FakeBackend, input: SendInput) -> AsyncIterator[SessionEvent]:
        yield told(input, kind, **data)
        yield told(input, "text_complete", message_id="m", text="never taken")

    bench = Bench(misbehaves)

    async def main() -> None:
        assert (await bench.turn())[-1] == "complete"
        await bench.kernel.aclose()

    run(main(), 0)
    [reason] = bench.reasons()
    assert reason["failure_class"] == failure_class
    assert reason["message"].endswith("; mend the backend") == (failure_class == "backend_invalid_event")
    assert bench.of("assistant/message") == []


def test_a_complete_that_says_something_else_is_told_what_it_may_say() -> None:
    async def misbehaves(backend: FakeBackend, input: SendInput) -> AsyncIterator[SessionEvent]:
        yield told(input, "complete", stop_reason="done")

    bench = Bench(misbehaves)

    async def main() -> None:
        await bench.turn()
        await bench.kernel.aclose()

    run(main(), 0)
    assert bench.reasons()[0]["message"] == (
        "the backend yielded a complete whose stop_reason is none of end_turn, user_stop, step_limit, max_tokens, "
        "error; mend the backend"
    )


def test_a_stream_without_complete_is_told_as_a_failure_of_the_backend(caplog: pytest.LogCaptureFixture) -> None:
    async def vanishes(backend: FakeBackend, input: SendInput) -> AsyncIterator[SessionEvent]:
        yield told(input, "text_complete", message_id="m", text="hi")

    bench = Bench(vanishes)

    async def main() -> None:
        await bench.turn()
        await bench.kernel.aclose()

    run(main(), 0)
    assert bench.reasons()[0]["failure_class"] == "missing_terminal_event"
    [failed] = [event for event in bench.heard if event.kind == "backend_failed"]
    assert "without `complete`" in str(failed.data["error"])
    assert [record.levelname for record in caplog.records if "without `complete`" in record.getMessage()] == ["ERROR"]


@pytest.mark.parametrize(
    ("play", "words"),
    [
        (("complete", "text_complete"), ["yielded text_complete behind the complete"]),
        (("complete", "complete", "text_complete"), ["yielded complete behind the complete"]),
        (("tool_start", "complete"), ["said complete", "while a call of t had no result"]),
        (("tool_start", "complete", "tool_result"), ["said complete"]),
        (("tool_start", "tool_result", "complete"), []),
    ],
)
def test_what_a_backend_leaves_open_or_says_too_late_is_logged_once(
    play: tuple[str, ...], words: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    data: dict[str, Any] = {
        "text_complete": {"message_id": "m", "text": "secret"},
        "complete": {"stop_reason": "end_turn"},
        "tool_start": {"call_id": "c", "name": "t"},
        "tool_result": {"call_id": "c", "state": "ok", "content": []},
    }

    async def plays(backend: FakeBackend, input: SendInput) -> AsyncIterator[SessionEvent]:
        for kind in play:
            yield told(input, kind, **data[kind])

    bench = Bench(plays)

    async def main() -> None:
        await bench.turn()
        await bench.kernel.aclose()

    run(main(), 0)
    assert bench.reasons() == [{"kind": "completed"}]
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == min(len(words), 1)
    assert all(word in warnings[0] and "secret" not in warnings[0] for word in words)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_tool_that_ends_after_its_turn_has_a_late_outcome(seed: int) -> None:
    async def late(backend: FakeBackend, input: SendInput) -> AsyncIterator[SessionEvent]:
        yield told(input, "tool_start", call_id="c", name="t")
        await backend.released.wait()
        await asyncio.sleep(1)
        yield told(input, "tool_result", call_id="c", state="ok", content=[{"kind": "text", "text": "done"}])
        yield told(input, "text_complete", message_id="m", text="never told")
        yield told(input, "complete", stop_reason="user_stop")

    bench = Bench(late)

    async def main() -> None:
        reading = asyncio.ensure_future(bench.turn())
        await asyncio.sleep(0.5)
        await bench.kernel.stop_session("s1")
        await asyncio.sleep(2)
        assert (await reading)[-2:] == ["abort", "complete"]
        await bench.kernel.aclose()

    run(main(), seed)
    types = [event.type for event in bench.journals.events("s1")]
    assert types[-5:] == ["step/end", "turn/end", "session/note", "tool/outcome", "run/settled"]
    assert [(data["state"], data["source"]) for data in bench.of("tool/outcome")] == [("ok", "late")]
    assert [data["state"] for data in bench.of("tool/result")] == ["unknown"]
    assert check_legal(bench.journals.events("s1")) == "healthy"


# ---------------------------------------------------------------- stops


@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_sent_after_a_stop(seed: int) -> None:
    bench = Bench(blocks)

    async def main() -> None:
        stream = bench.kernel.start_turn("s1", text="go", turn_id="t1")
        await stream.started()
        await bench.kernel.stop_session("s1")
        await bench.kernel.aclose()

    run(main(), seed)
    log = bench.built[0].log
    assert "send t1" not in log[log.index("stop immediate") :]
    assert [reason["kind"] for reason in bench.reasons()] == ["aborted"]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_backend_that_still_stops_is_not_sent_the_next_turn(seed: int) -> None:
    async def lingers(mode: str) -> None:
        backend = bench.built[-1]
        backend.released.set()
        await asyncio.sleep(1)
        backend.log.append("stopped")

    async def steps(backend: FakeBackend, input: SendInput) -> AsyncIterator[SessionEvent]:
        yield told(input, "step_start")
        if input.turn_id == "t1":
            await asyncio.sleep(0.5)
        yield told(input, "step_end")
        if input.turn_id == "t1":
            await backend.released.wait()
        yield told(input, "complete", stop_reason="end_turn")

    async def fails_once(journal: MemoryJournal) -> None:
        if journal.events[-1].type == "step/end" and "stop immediate" not in bench.built[0].log:
            raise JournalWriteError("no space")

    bench = Bench(steps, lingers)
    bench.journals.on_sync = fails_once

    async def main() -> None:
        first = asyncio.gather(bench.turn(), return_exceptions=True)
        await asyncio.sleep(0.2)
        assert (await bench.turn(turn_id="t2"))[-1] == "complete"
        (failure,) = await first
        assert isinstance(failure, JournalWriteError)
        await bench.kernel.aclose()

    run(main(), seed)
    assert bench.built[0].log == ["send t1", "stop immediate", "stopped", "send t2", "dispose"]


@pytest.mark.parametrize("seed", range(60))
def test_a_stop_that_failed_is_not_called_again_to_escalate(seed: int) -> None:
    failure = RuntimeError("no stop")

    async def fails(mode: str) -> None:
        if mode == "after_step":
            await asyncio.sleep(1)
            raise failure

    bench = Bench(blocks, fails)

    async def main() -> None:
        reading = asyncio.ensure_future(bench.turn())
        await asyncio.sleep(0.5)
        first = bench.kernel.stop_session("s1", mode="after_step")
        await asyncio.sleep(1)
        second = bench.kernel.stop_session("s1")
        outcomes = await asyncio.gather(first, second, return_exceptions=True)
        assert outcomes[0] is failure
        assert outcomes[1] is failure
        await reading
        await bench.kernel.aclose()

    run(main(), seed)
    stops = [entry for entry in bench.built[0].log if entry.startswith("stop")]
    # It had failed, or it was escalated before.
    assert stops in (["stop after_step"], ["stop after_step", "stop immediate"])
    assert bench.built[0].log.count("dispose") == 1
    assert bench.built[0].log[-1] == "dispose"


@pytest.mark.parametrize("seed", SEEDS)
def test_an_escalation_enters_the_backend_after_what_it_escalates(seed: int) -> None:
    bench = Bench(blocks, never_after_a_step)

    async def main() -> None:
        reading = asyncio.ensure_future(bench.turn())
        await asyncio.sleep(0.5)
        stops = [bench.kernel.stop_session("s1", mode="after_step"), bench.kernel.stop_session("s1")]
        await asyncio.gather(*stops)
        await reading
        await bench.kernel.aclose()

    run(main(), seed)
    assert bench.built[0].log == ["send t1", "stop after_step", "stop immediate", "dispose"]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stop_at_the_end_of_a_step_that_only_lasts_too_long_gives_no_backend_up(seed: int) -> None:
    bench = Bench(blocks, never_after_a_step, deadlines=Deadlines(after_step=2))

    async def main() -> None:
        reading = asyncio.ensure_future(bench.turn())
        await asyncio.sleep(0.5)
        await bench.kernel.stop_session("s1", mode="after_step")
        await reading
        assert bench.built[0].log == ["send t1", "stop after_step", "stop immediate"]
        await bench.kernel.aclose()

    run(main(), seed)
    assert [data["mode"] for data in bench.of("turn/stop_requested")] == ["after_step"]


class Owner:
    """Implements InteractionOwner; ``close`` is what a test says."""

    def __init__(self, identity: RunIdentity, close: Callable[[], Awaitable[None]]) -> None:
        self.session_id = identity.session_id
        self.turn_id = identity.turn_id
        self.run_id = identity.run_id
        self.done: list[str] = []
        self._close = close

    async def accept_user_question_request(self, request: InteractionRequest) -> None:
        self.done.append("accept")

    accept_permission_request = accept_user_question_request
    accept_sandbox_boundary_request = accept_user_question_request

    async def close(self, reason: ClosureReason) -> None:
        self.done.append("close")
        await self._close()

    def release(self) -> None:
        self.done.append("release")


class Authority:
    """Binds whatever ``bind`` makes of the identity."""

    def __init__(self, bind: Callable[[RunIdentity], Owner]) -> None:
        self._bind = bind

    def bind_run(self, identity: RunIdentity) -> Owner:
        return self._bind(identity)


async def nothing() -> None:
    pass


@pytest.mark.parametrize("seed", range(40))
def test_a_stop_of_a_start_that_fails_ends_with_the_turns_end(seed: int) -> None:
    failure = RuntimeError("cannot bind")
    stops: list[asyncio.Future[None]] = []

    def bind(identity: RunIdentity) -> Owner:
        stops.append(bench.kernel.stop_session("s1"))
        raise failure

    bench = Bench(interaction_authority=Authority(bind))

    async def main() -> None:
        reading = asyncio.gather(bench.turn(), return_exceptions=True)
        while not stops:
            await asyncio.sleep(0.01)
        with pytest.raises(RuntimeError, match="cannot bind"):
            await stops[0]
        assert [reason["kind"] for reason in bench.reasons()] == ["aborted"]
        (error,) = await reading
        assert error is failure
        await bench.kernel.aclose()

    run(main(), seed)
    assert not [entry for entry in bench.built[0].log if entry.startswith("send")]
    assert check_legal(bench.journals.events("s1")) == "healthy"


@pytest.mark.parametrize("seed", SEEDS)
def test_an_owner_of_another_run_is_closed_in_the_time_that_it_has(seed: int) -> None:
    owners: list[Owner] = []

    def bind(identity: RunIdentity) -> Owner:
        other = RunIdentity(identity.session_id, identity.turn_id, "another run")
        owners.append(Owner(other, asyncio.Event().wait if hangs_too else nothing))  # type: ignore[arg-type]
        return owners[-1]

    async def main() -> None:
        with pytest.raises(expected):
            await bench.turn()
        assert asyncio.get_running_loop().time() < 3
        await bench.kernel.aclose()

    for hangs_too, done in ((False, ["close", "release"]), (True, ["close"])):
        expected: type[BaseException] = Exception if hangs_too else RuntimeInteractionInvariantError
        bench = Bench(interaction_authority=Authority(bind), deadlines=Deadlines(stop=1))
        run(main(), seed)
        assert owners[-1].done == done
        assert [reason["failure_class"] for reason in bench.reasons()] == ["start_failed"]


@pytest.mark.parametrize("seed", SEEDS)
def test_who_waits_for_an_answer_waits_no_more_when_the_end_cannot_be_written(seed: int) -> None:
    async def asks(backend: FakeBackend, input: SendInput) -> AsyncIterator[SessionEvent]:
        yield told(input, "step_start")
        await input.interactions.ask("question", {"questions": []})

    bench = Bench(asks, interaction_authority=Authority(lambda identity: Owner(identity, nothing)))

    async def on_sync(journal: MemoryJournal) -> None:
        if any(event.type == "turn/end" for event in journal.events[journal.durable :]):
            raise JournalWriteError("no space")

    async def main() -> None:
        reading = asyncio.gather(bench.turn(), return_exceptions=True)
        await asyncio.sleep(0.5)
        bench.journals.on_sync = on_sync
        with pytest.raises(JournalWriteError):
            await bench.kernel.stop_session("s1")
        (error,) = await reading
        assert isinstance(error, JournalWriteError)
        assert asyncio.get_running_loop().time() < 1
        assert bench.built[0].log == ["send t1", "stop immediate"]
        await bench.kernel.aclose()

    run(main(), seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_failing_close_is_told_and_the_next_turn_goes_on(seed: int) -> None:
    async def fails() -> None:
        raise OSError("nobody knows")

    bench = Bench(interaction_authority=Authority(lambda identity: Owner(identity, fails)))

    async def main() -> None:
        for turn_id in ("t1", "t2"):
            with pytest.raises(RuntimeInteractionFailStopError, match="nobody knows"):
                await bench.turn(turn_id=turn_id)
        await bench.kernel.aclose()

    run(main(), seed)
    assert bench.reasons() == [{"kind": "completed"}] * 2
    assert all("nobody knows" in data["cleanup"]["error"] for data in bench.of("run/settled"))
