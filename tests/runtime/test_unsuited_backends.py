"""What builds a backend fails, or gives what is none; a backend has a defect: who is told, and what is in the log."""

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from maka.runtime.backends.base import BackendRegistry, unsuited
from maka.runtime.errors import RuntimeFailure
from maka.runtime.kernel.kernel import RuntimeKernel
from maka.runtime.lifecycle import LifecycleEvent
from maka.runtime.model import ModelError
from maka.runtime.session_events import SessionEvent
from support.memory_journals import MemoryJournals
from support.seeded_loop import run


class Good:
    def __init__(self, context: Any = None) -> None:
        pass

    async def send(self, input: Any) -> AsyncIterator[SessionEvent]:
        yield SessionEvent("complete", "1", input.turn_id, 1, {"stop_reason": "end_turn"})

    async def stop(self, reason: str, mode: str) -> None:
        pass

    async def dispose(self) -> None:
        pass


class SendsNothing(Good):
    async def send(self, input: Any) -> Any:  # type: ignore[override]
        return "hi"


class SendsAtOnce(Good):
    def send(self, input: Any) -> Any:
        yield "hi"


class SendsText(Good):
    def send(self, input: Any) -> Any:
        return "hi"


class StopsAtOnce(Good):
    def stop(self, reason: str, mode: str) -> Any:
        pass


class DisposesAtOnce(Good):
    def dispose(self) -> Any:
        pass


class WithoutSend:
    stop, dispose = Good.stop, Good.dispose


class WithoutContext(Good):
    def __init__(self) -> None:
        pass


class Wrapped(Good):
    @functools.wraps(Good.stop)
    def stop(self, *more: Any) -> Any:  # type: ignore[override]
        return Good.stop(self, *more)


class Raises(Good):
    async def send(self, input: Any) -> AsyncIterator[SessionEvent]:
        yield SessionEvent("text_delta", "1", input.turn_id, 1, {"message_id": "m", "text": "hi"})
        raise KeyError("boom")


class Unreachable(Good):
    async def send(self, input: Any) -> AsyncIterator[SessionEvent]:
        yield SessionEvent("text_delta", "1", input.turn_id, 1, {"message_id": "m", "text": "hi"})
        raise ModelError("come back later", kind="provider_rate_limit")


def fails(context: Any) -> Any:
    raise ValueError("no config")


async def awaited(context: Any) -> Any:
    return None


class Bench:
    def __init__(self, factory: Any) -> None:
        self.journals = MemoryJournals()
        self.journals.create("s", backend="mine")
        registry = BackendRegistry()
        registry.register("mine", factory)
        self.kernel = RuntimeKernel(journals=self.journals, backends=registry)
        self.heard: list[LifecycleEvent] = []
        self.kernel.subscribe(self.heard.append)

    async def turn(self) -> None:
        try:
            async for _ in self.kernel.start_turn("s", text="go"):
                pass
        finally:
            await self.kernel.aclose()

    @property
    def failures(self) -> list[BaseException]:
        return [event.data["error"] for event in self.heard if event.kind == "backend_failed"]


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (lambda context: None, "gave a NoneType without send(), stop(), dispose(); mend it"),
        (awaited, "gave a NoneType without send(), stop(), dispose(); mend it"),
        (lambda context: WithoutSend(), "gave a WithoutSend without send(); mend it"),
        (lambda context: Good, "gave the class Good and no object of it; mend it"),
        (SendsNothing, "a SendsNothing whose send() is no async generator: an `async def` that yields; mend it"),
        (SendsAtOnce, "a SendsAtOnce whose send() is no async generator: an `async def` that yields; mend it"),
        (StopsAtOnce, "a StopsAtOnce whose stop() is no `async def`; mend it"),
        (DisposesAtOnce, "a DisposesAtOnce whose dispose() is no `async def`; mend it"),
        (fails, "could not be built (ValueError: no config); mend what builds it"),
    ],
)
def test_what_is_no_backend_is_refused_in_a_sentence_when_it_is_built(factory: Callable[..., Any], words: str) -> None:
    bench = Bench(factory)
    with pytest.raises(RuntimeFailure) as refused:
        run(bench.turn(), 0)
    assert str(refused.value).endswith(words)
    assert "backend 'mine' of session s" in str(refused.value)
    assert bench.failures == [refused.value]
    assert isinstance(refused.value.__cause__, ValueError) == (factory is fails)
    assert [event.type for event in bench.journals.events("s")] == ["session/header"]


def test_a_constructor_without_a_context_is_named_and_its_error_kept(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RuntimeFailure, match=r"backend 'mine'.*TypeError") as refused:
        run(Bench(WithoutContext).turn(), 0)
    assert isinstance(refused.value.__cause__, TypeError)
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.exc_info is not None
    assert record.exc_info[1] is refused.value


@pytest.mark.parametrize("backend", [Good(), Wrapped()])
def test_what_may_be_a_backend_is_taken(backend: Any) -> None:
    assert unsuited(backend) is None


def test_a_send_that_gives_no_iterator_fails_the_turn() -> None:
    bench = Bench(SendsText)
    run(bench.turn(), 0)
    [end] = bench.journals.of("s", "turn/end")
    assert end["reason"]["message"] == (
        "send() of backend 'mine' of session s gave a str and no asynchronous iterator; make it an async generator"
    )


def test_a_defect_of_a_backend_is_logged_with_its_type_and_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(Raises)
    run(bench.turn(), 0)
    [error] = bench.failures
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "error=KeyError: 'boom'" in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[1] is error


def test_a_provider_that_fails_is_no_defect_and_has_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    run(Bench(Unreachable).turn(), 0)
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "error=come back later" in record.getMessage()
    assert not record.exc_info


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"mode": "later"}, "a stop is 'immediate' or 'after_step', not 'later'"),
        ({"mode": None}, "a stop is 'immediate' or 'after_step', not None"),
        ({"mode": 5}, "a stop is 'immediate' or 'after_step', not 5"),
        ({"reason": "why"}, "a stop is 'user_stop' or 'redirect', not 'why'"),
    ],
)
def test_how_to_stop_is_looked_at_even_where_nothing_runs(more: dict[str, Any], words: str) -> None:
    bench = Bench(Good)

    async def main() -> None:
        for session_id in ("s", "nope"):
            with pytest.raises(ValueError, match="a stop is") as refused:
                bench.kernel.stop_session(session_id, **more)
            assert str(refused.value) == words
            await bench.kernel.stop_session(session_id)
        await bench.turn()

    asyncio.run(main())
