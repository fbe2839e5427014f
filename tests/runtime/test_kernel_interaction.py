"""Stop, cleanup and quarantine: what fails while a run is closed is told once, to everybody, as the same object.

Every case runs on an ordinary loop and in several orders of what is ready.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import attrs
import pytest

from maka.journal.errors import JournalWriteError
from maka.runtime.backends.base import BackendContext, BackendRegistry, SendInput, SteeringLease
from maka.runtime.errors import (
    RuntimeInteractionFailStopError,
    RuntimeInteractionInvariantError,
    RuntimeOwnerCleanupError,
    SessionQuarantined,
)
from maka.runtime.kernel.authority import InteractionRequest, RunIdentity
from maka.runtime.kernel.kernel import RuntimeKernel
from maka.runtime.kernel.stream import TurnStream
from maka.runtime.session_events import SessionEvent
from support.memory_journals import MemoryJournal, MemoryJournals, check_legal
from support.seeded_loop import run

SESSION = "session-interaction-cleanup"
Main = Callable[[], Coroutine[Any, Any, None]]


@pytest.fixture(params=[None, *range(12)], ids=lambda seed: "asyncio" if seed is None else f"seed {seed}")
def go(request: pytest.FixtureRequest) -> Callable[[Main], None]:
    """Runs a case to its end; no task and no failure that nobody looked at may be left."""

    def with_seed(main: Main) -> None:
        if request.param is None:
            asyncio.run(main())
        else:
            run(main(), request.param)

    return with_seed


class BlockingBackend:
    """Says one thing and waits. What of it fails, and what lets its ``send`` go on, is up to the case."""

    def __init__(
        self,
        *,
        deferred_stop: bool = False,
        stop_failure: Exception | None = None,
        dispose_failure: Exception | None = None,
        releases_on_stop: bool = True,
        releases_on_dispose: bool = True,
    ) -> None:
        self.stop_calls: list[tuple[str, str]] = []
        self.dispose_calls = 0
        self.send_calls = 0
        self.stop_started = asyncio.Event()
        self.stop_released = asyncio.Event()
        self.send_released = asyncio.Event()
        self._stop_failure = stop_failure
        self._dispose_failure = dispose_failure
        self._releases_on_stop = releases_on_stop
        self._releases_on_dispose = releases_on_dispose
        if not deferred_stop:
            self.stop_released.set()

    async def send(self, input: SendInput) -> AsyncIterator[SessionEvent]:
        self.send_calls += 1
        turn_id = input.turn_id
        said = {"message_id": f"{turn_id}-message", "text": "started"}
        yield SessionEvent("text_delta", f"{turn_id}-delta", turn_id, 1, said)
        await self.send_released.wait()
        yield SessionEvent("complete", f"{turn_id}-complete", turn_id, 2, {"stop_reason": "user_stop"})

    async def stop(self, reason: str, mode: str) -> None:
        self.stop_calls.append((reason, mode))
        self.stop_started.set()
        await self.stop_released.wait()
        if self._releases_on_stop:
            self.send_released.set()
        if self._stop_failure is not None:
            raise self._stop_failure

    async def dispose(self) -> None:
        self.dispose_calls += 1
        if self._releases_on_dispose:
            self.send_released.set()
        if self._dispose_failure is not None:
            raise self._dispose_failure


@attrs.define
class Owner:
    """A run's interactions, with a ``close`` and a ``release`` that the case gives."""

    session_id: str
    turn_id: str
    run_id: str
    on_close: Callable[[], Awaitable[None]]
    releases: list[str]

    async def accept_user_question_request(self, request: InteractionRequest) -> None:
        pass

    async def accept_permission_request(self, request: InteractionRequest) -> None:
        pass

    async def accept_sandbox_boundary_request(self, request: InteractionRequest) -> None:
        pass

    async def close(self, reason: str) -> None:
        await self.on_close()

    def release(self) -> None:
        self.releases.append(self.run_id)


@attrs.define
class Interactions:
    """An authority; ``on_bind`` is called while a run is being bound."""

    on_close: Callable[[], Awaitable[None]]
    on_bind: Callable[[], None] = lambda: None
    releases: list[str] = attrs.Factory(list)

    def bind_run(self, identity: RunIdentity) -> Owner:
        self.on_bind()
        return Owner(identity.session_id, identity.turn_id, identity.run_id, self.on_close, self.releases)


@attrs.define
class Messages:
    """An authority without messages, whose owners fail to be released."""

    release_failure: Exception

    def bind_run(self, identity: RunIdentity) -> "MessageOwner":
        return MessageOwner(identity.session_id, identity.turn_id, identity.run_id, self.release_failure)


@attrs.define
class MessageOwner:
    session_id: str
    turn_id: str
    run_id: str
    release_failure: Exception

    def pull(self) -> Sequence[SteeringLease]:
        return ()

    def ack(self, lease_ids: Sequence[str]) -> None:
        pass

    def nack(self, lease_ids: Sequence[str]) -> None:
        pass

    def release(self) -> None:
        raise self.release_failure


class Fixture:
    """A kernel on sessions in memory, whose backends ``build`` makes; ``built`` are those that it has made."""

    def __init__(self, build: Callable[[int], BlockingBackend] = lambda number: BlockingBackend(), **more: Any) -> None:
        self.journals = MemoryJournals()
        self.journals.create(SESSION)
        self.built: list[BlockingBackend] = []
        self._build = build
        self._ids = 0
        backends = BackendRegistry()
        backends.register("fake", self._factory)
        self.kernel = RuntimeKernel(
            journals=self.journals, backends=backends, new_id=self._new_id, now=lambda: self._ids, **more
        )

    @property
    def backend(self) -> BlockingBackend:
        return self.built[0]

    def start(self, turn_id: str, text: str = "start") -> TurnStream:
        return self.kernel.start_turn(SESSION, turn_id=turn_id, text=text)

    def stop(self, **more: Any) -> "asyncio.Future[None]":
        return self.kernel.stop_session(SESSION, source="stop_button", **more)

    def aborted(self, turn_id: str) -> int:
        """How many ends of the turn say that it was aborted."""
        ends = [data for data in self.journals.of(SESSION, "turn/end") if data["turn_id"] == turn_id]
        return sum(data["reason"]["kind"] == "aborted" for data in ends)

    def abort_notes(self) -> int:
        return sum(data["kind"] == "abort" for data in self.journals.of(SESSION, "session/note"))

    async def over(self) -> None:
        """Nothing goes on, and the journal is as it may be."""
        for backend in self.built:
            backend.send_released.set()
        with suppress(Exception):
            await self.kernel.aclose()
        assert check_legal(self.journals.events(SESSION)) == "healthy"

    def _factory(self, context: BackendContext) -> BlockingBackend:
        self.built.append(self._build(len(self.built)))
        return self.built[-1]

    def _new_id(self) -> str:
        self._ids += 1
        return f"id-{self._ids}"


class ClosingFixture(Fixture):
    """One backend, and an interaction authority whose ``close`` fails unless told otherwise."""

    def __init__(
        self,
        backend: BlockingBackend | None = None,
        *,
        close_succeeds: bool = False,
        deferred_close: bool = False,
        release_failure: Exception | None = None,
    ) -> None:
        self.close_failure = RuntimeError("durable close rejected")
        self.close_started = asyncio.Event()
        self.close_released = asyncio.Event()
        self._close_succeeds = close_succeeds
        if not deferred_close:
            self.close_released.set()
        self.authority = Interactions(self._close)
        only = backend or BlockingBackend()
        super().__init__(
            lambda number: only,
            interaction_authority=self.authority,
            message_authority=None if release_failure is None else Messages(release_failure),
        )

    async def _close(self) -> None:
        self.close_started.set()
        await self.close_released.wait()
        if not self._close_succeeds:
            raise self.close_failure

    async def over(self) -> None:
        await super().over()
        if not self._close_succeeds:
            assert self.authority.releases == [], "a run whose durable close failed was released"


async def rejection_of(awaited: Awaitable[Any]) -> BaseException:
    try:
        await awaited
    except Exception as error:
        return error
    pytest.fail("it was to fail")


def contains(failure: BaseException | None, expected: BaseException) -> bool:
    """Is it that very object, or does it hold it?"""
    if failure is expected:
        return True
    if isinstance(failure, RuntimeOwnerCleanupError) and contains(failure.cause, expected):
        return True
    if isinstance(failure, RuntimeInteractionFailStopError) and contains(failure.authority_failure, expected):
        return True
    return isinstance(failure, BaseExceptionGroup) and any(contains(inner, expected) for inner in failure.exceptions)


def leaves(failure: BaseException) -> Iterator[BaseException]:
    """What was wrong in the first place, each as often as it is held."""
    if isinstance(failure, BaseExceptionGroup):
        for inner in failure.exceptions:
            yield from leaves(inner)
    elif isinstance(failure, RuntimeOwnerCleanupError):
        yield from leaves(failure.cause)
    elif isinstance(failure, RuntimeInteractionFailStopError):
        yield from leaves(failure.authority_failure)
    else:
        yield failure


async def drain(stream: TurnStream) -> None:
    async for _ in stream:
        pass


async def first_kind(stream: TurnStream) -> str:
    return (await anext(stream)).kind


async def until(true: Callable[[], bool]) -> None:
    for _ in range(5_000):
        if true():
            return
        await asyncio.sleep(0)
    pytest.fail("the condition was not met")


async def closed(stream: TurnStream) -> None:
    """The consumer goes; what it is told is of no interest here."""
    with suppress(Exception):
        await stream.aclose()


@contextmanager
def quarantined(sentence: str, *, permanent: bool) -> Iterator[None]:
    with pytest.raises(SessionQuarantined, match=sentence) as caught:
        yield
    assert caught.value.permanent is permanent


def test_a_begin_that_fails_settles_a_stop_beside_it(go: Callable[[Main], None]) -> None:
    async def main() -> None:
        failure = JournalWriteError("the begin was rejected after the reservation")
        stopped: list[asyncio.Future[BaseException]] = []
        fixture = Fixture()

        async def on_sync(journal: MemoryJournal) -> None:
            if any(event.type == "turn/start" for event in journal.events[journal.durable :]):
                stopped.append(asyncio.ensure_future(rejection_of(fixture.stop())))
                raise failure

        fixture.journals.on_sync = on_sync
        stream = fixture.start("turn-begin-failure")
        start = asyncio.ensure_future(rejection_of(anext(stream)))
        await until(lambda: bool(stopped))
        assert contains(await asyncio.wait_for(stopped[0], 1), failure)
        assert fixture.backend.send_calls == 0
        assert contains(await asyncio.wait_for(start, 1), failure)
        await closed(stream)
        assert len(stopped) == 1
        assert fixture.backend.send_calls == 0
        assert [event.type for event in fixture.journals.events(SESSION)] == ["session/header"]
        await fixture.over()

    go(main)


def test_a_stop_while_the_owner_is_bound_waits_for_the_close_and_tells_its_failure_once(
    go: Callable[[Main], None],
) -> None:
    async def main() -> None:
        failure = RuntimeError("bind-race close rejected")
        close_started, close_released = asyncio.Event(), asyncio.Event()
        stopped: list[asyncio.Future[BaseException]] = []
        closes = 0

        async def close() -> None:
            nonlocal closes
            closes += 1
            close_started.set()
            await close_released.wait()
            raise failure

        def bind() -> None:
            stopped.append(asyncio.ensure_future(rejection_of(fixture.stop())))

        authority = Interactions(close, bind)
        fixture = Fixture(interaction_authority=authority)
        stream = fixture.start("turn-bind-race")
        first = asyncio.ensure_future(rejection_of(anext(stream)))
        await until(lambda: bool(stopped))
        await close_started.wait()
        close_released.set()
        told = await stopped[0]
        assert contains(told, failure)
        assert list(leaves(told)) == [failure]
        assert closes == 1
        assert len(fixture.backend.stop_calls) == 1
        assert fixture.backend.send_calls == 0
        await first
        await closed(stream)
        assert closes == 1
        assert authority.releases == []
        assert fixture.aborted("turn-bind-race") == 1
        await fixture.over()

    go(main)


def test_the_question_responder_of_backends_is_closed_where_an_authority_answers(go: Callable[[Main], None]) -> None:
    async def main() -> None:
        fixture = ClosingFixture(close_succeeds=True)
        with pytest.raises(RuntimeInteractionInvariantError):
            await fixture.kernel.respond_to_user_question(
                SESSION, {"request_id": "hosted-question", "answers": ["Yes"]}
            )
        await fixture.over()

    go(main)


def test_a_stop_enters_the_backend_before_the_close_settles_and_tells_both_failures(go: Callable[[Main], None]) -> None:
    async def main() -> None:
        stop_failure = RuntimeError("backend stop rejected")
        fixture = ClosingFixture(BlockingBackend(stop_failure=stop_failure), deferred_close=True)
        stream = fixture.start("turn-explicit-stop")
        assert await first_kind(stream) == "text_delta"
        stopped = fixture.stop()
        await fixture.close_started.wait()
        assert len(fixture.backend.stop_calls) == 1
        assert not stopped.done()
        fixture.close_released.set()
        failure = await rejection_of(stopped)
        assert isinstance(failure, RuntimeOwnerCleanupError)
        assert contains(failure, fixture.close_failure)
        assert contains(failure, stop_failure)
        assert len(list(leaves(failure))) == 2
        await closed(stream)
        await fixture.over()

    go(main)


def test_a_consumer_that_goes_enters_the_backend_before_the_close_settles(go: Callable[[Main], None]) -> None:
    async def main() -> None:
        fixture = ClosingFixture(deferred_close=True)
        stream = fixture.start("turn-abandoned")
        assert await first_kind(stream) == "text_delta"
        abandoned = asyncio.ensure_future(rejection_of(stream.aclose()))
        await fixture.close_started.wait()
        assert len(fixture.backend.stop_calls) == 1
        fixture.close_released.set()
        failure = await abandoned
        assert isinstance(failure, RuntimeInteractionFailStopError)
        assert failure.authority_failure is fixture.close_failure
        await fixture.over()

    go(main)


def test_several_cleanup_failures_become_one(go: Callable[[Main], None]) -> None:
    async def main() -> None:
        release_failure = RuntimeError("message owner release rejected")
        fixture = ClosingFixture(release_failure=release_failure)
        stream = fixture.start("turn-multiple-owner-failures")
        draining = asyncio.ensure_future(rejection_of(drain(stream)))
        await until(lambda: bool(fixture.built) and fixture.backend.send_calls == 1)
        fixture.backend.send_released.set()
        failure = await draining
        assert isinstance(failure, RuntimeOwnerCleanupError)
        assert contains(failure, fixture.close_failure)
        assert contains(failure, release_failure)
        assert len(list(leaves(failure))) == 2
        await fixture.over()

    go(main)


def test_a_stop_and_a_consumer_that_goes_share_one_attempt(go: Callable[[Main], None]) -> None:
    async def main() -> None:
        stop_failure = RuntimeError("shared backend stop rejected")
        backend = BlockingBackend(deferred_stop=True, stop_failure=stop_failure)
        fixture = ClosingFixture(backend, close_succeeds=True)
        stream = fixture.start("turn-concurrent-stop")
        assert await first_kind(stream) == "text_delta"
        stopped = fixture.stop(mode="after_step")
        await backend.stop_started.wait()
        abandoned = asyncio.ensure_future(rejection_of(stream.aclose()))
        for _ in range(20):
            await asyncio.sleep(0)
        assert backend.stop_calls == [("user_stop", "after_step")]
        backend.stop_released.set()
        explicit, cleanup = await asyncio.gather(rejection_of(stopped), abandoned)
        assert explicit is stop_failure
        assert cleanup is stop_failure
        assert len(backend.stop_calls) == 1
        await fixture.over()

    go(main)


def test_a_stop_that_fails_disposes_the_backend_whose_send_is_blocked(go: Callable[[Main], None]) -> None:
    async def main() -> None:
        stop_failure = RuntimeError("stop rejected without releasing send")
        backend = BlockingBackend(stop_failure=stop_failure, releases_on_stop=False, releases_on_dispose=False)
        fixture = ClosingFixture(backend, close_succeeds=True)
        stream = fixture.start("turn-blocked-send")
        assert await first_kind(stream) == "text_delta"
        assert contains(await rejection_of(fixture.stop()), stop_failure)
        assert backend.dispose_calls == 1
        assert contains(await rejection_of(fixture.stop()), stop_failure)
        assert len(backend.stop_calls) == 1
        assert fixture.aborted("turn-blocked-send") == 1
        assert fixture.abort_notes() == 1
        blocked = fixture.start("turn-before-runner-settled", "must not send")
        with quarantined("is quarantined", permanent=False):
            await anext(blocked)
        assert backend.send_calls == 1
        backend.send_released.set()
        await drain(stream)
        assert (fixture.aborted("turn-blocked-send"), fixture.abort_notes()) == (1, 1)
        assert (len(backend.stop_calls), backend.dispose_calls) == (1, 1)
        await fixture.over()

    go(main)


def test_a_generation_that_was_stopped_after_a_reservation_is_not_sent_to(go: Callable[[Main], None]) -> None:
    async def main() -> None:
        second_reserved, release_second = asyncio.Event(), asyncio.Event()
        reservations = 0

        async def activation(operation: Callable[[], Awaitable[None]]) -> None:
            nonlocal reservations
            await operation()
            reservations += 1
            if reservations == 2:
                second_reserved.set()
                await release_second.wait()

        backend = BlockingBackend(
            stop_failure=RuntimeError("reserved generation stop failed"),
            releases_on_stop=False,
            releases_on_dispose=False,
        )
        fixture = Fixture(lambda number: backend, run_backend_activation=activation)
        first = fixture.start("turn-reservation-1", "first")
        assert await first_kind(first) == "text_delta"
        second = fixture.start("turn-reservation-2", "second")
        second_event = asyncio.ensure_future(anext(second, None))
        await second_reserved.wait()
        with pytest.raises(RuntimeError, match="reserved generation stop failed"):
            await fixture.stop()
        assert backend.dispose_calls == 1
        assert backend.send_calls == 1
        release_second.set()
        assert await second_event is None
        assert backend.send_calls == 1
        backend.send_released.set()
        with suppress(Exception):
            await drain(first)
        assert [data["turn_id"] for data in fixture.journals.of(SESSION, "turn/start")] == ["turn-reservation-1"]
        await fixture.over()

    go(main)


def test_the_next_generation_knows_nothing_of_a_stop_that_failed(go: Callable[[Main], None]) -> None:
    async def main() -> None:
        def build(number: int) -> BlockingBackend:
            if number:
                return BlockingBackend()
            return BlockingBackend(stop_failure=RuntimeError("first generation stop failed"), releases_on_stop=False)

        fixture = Fixture(build)
        first = fixture.start("turn-generation-1", "first")
        assert await first_kind(first) == "text_delta"
        with pytest.raises(RuntimeError, match="first generation stop failed"):
            await fixture.stop(mode="after_step")
        await drain(first)
        assert fixture.built[0].dispose_calls == 1
        assert fixture.built[0].stop_calls == [("user_stop", "after_step")]
        assert fixture.aborted("turn-generation-1") == 1
        assert fixture.abort_notes() == 1

        second = fixture.start("turn-generation-2", "second")
        assert await first_kind(second) == "text_delta"
        await fixture.stop(mode="immediate")
        await closed(second)
        assert len(fixture.built) == 2
        assert fixture.built[1].stop_calls[0] == ("user_stop", "immediate")
        assert not any(mode == "after_step" for _, mode in fixture.built[1].stop_calls)
        assert fixture.aborted("turn-generation-2") == 1
        assert fixture.built[0].dispose_calls == 1
        await fixture.over()

    go(main)


def test_a_disposal_that_fails_quarantines_the_session_for_good(go: Callable[[Main], None]) -> None:
    async def main() -> None:
        stop_failure = RuntimeError("backend stop failed")
        dispose_failure = RuntimeError("backend disposal failed")
        fixture = Fixture(
            lambda number: BlockingBackend(
                stop_failure=stop_failure,
                dispose_failure=dispose_failure,
                releases_on_stop=False,
                releases_on_dispose=False,
            )
        )
        first = fixture.start("turn-quarantine-1", "first")
        assert await first_kind(first) == "text_delta"
        stopped = await rejection_of(fixture.stop())
        assert contains(stopped, stop_failure)
        assert contains(stopped, dispose_failure)
        assert await rejection_of(fixture.kernel.invalidate_cached_backends()) is dispose_failure
        assert fixture.backend.dispose_calls == 1
        fixture.backend.send_released.set()
        await drain(first)
        assert fixture.backend.dispose_calls == 1
        for turn_id in ("turn-quarantine-2", "turn-quarantine-3"):
            blocked = fixture.start(turn_id, "must not build")
            with quarantined("permanently quarantined", permanent=True):
                await anext(blocked)
        assert len(fixture.built) == 1
        assert fixture.backend.dispose_calls == 1
        assert (fixture.aborted("turn-quarantine-1"), fixture.abort_notes()) == (1, 1)
        await fixture.over()

    go(main)
