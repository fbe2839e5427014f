"""Errors that misbehave, hooks that raise, events that are huge: a session is never left jammed by them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import maka
from maka.journal.errors import JournalError
from maka.journal.events import Draft
from maka.runtime import App, Deadlines, SessionManager, loop_backend, scripted_backend
from maka.runtime.backends.base import SendInput
from maka.runtime.backends.scripted import Do
from maka.runtime.errors import RuntimeFailure, RuntimeOwnerCleanupError, describe
from maka.runtime.kernel.delivery import MOST, Delivery
from maka.runtime.kernel.failures import combine
from maka.runtime.lifecycle import Lifecycle
from maka.runtime.session_events import SessionEvent
from maka.runtime.tasks import foreign


class Speechless(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class Raising:
    """Its ``send`` says a word and raises; its ``stop`` and ``dispose`` may raise too."""

    def __init__(self, error: BaseException, *, also: bool = False) -> None:
        self._error = error
        self._also = also

    async def send(self, input: SendInput) -> AsyncIterator[SessionEvent]:
        yield SessionEvent("text_delta", "e", input.turn_id, 0, {"message_id": "m", "text": "so far"})
        if not self._also:
            raise self._error
        await asyncio.Event().wait()

    async def stop(self, reason: str, mode: str) -> None:
        if self._also:
            raise self._error

    async def dispose(self) -> None:
        if self._also:
            raise self._error


def app(*backends: Any) -> App:
    left = list(backends)
    calm = scripted_backend(["fine"])
    return App(backends={"b": lambda context: left.pop(0) if left else calm(context)}, default_backend="b")


async def reads(manager: SessionManager, session_id: str) -> list[str]:
    return [event.kind async for event in manager.send(session_id, "go")]


def statuses(root: Path, session_id: str) -> list[str]:
    return [turn["status"] for turn in maka.inspect(session_id, root=root).turns()]


def test_an_error_without_words_ends_its_turn_like_any_other(tmp_path: Path) -> None:
    async def main() -> None:
        async with SessionManager(tmp_path, app=app(Raising(Speechless()))) as manager:
            await manager.create(session_id="s")
            assert (await reads(manager, "s"))[-2:] == ["error", "complete"]
            await manager.kernel.invalidate_cached_backends()
            assert (await reads(manager, "s"))[-1] == "complete"

    asyncio.run(main())
    assert statuses(tmp_path, "s") == ["failed", "completed"]
    assert describe(Speechless()) == "Speechless, whose text cannot be shown"


def test_a_backend_that_is_given_up_without_words_is_told_of(tmp_path: Path) -> None:
    async def main() -> None:
        quick = Deadlines(stop=0.2, dispose=0.2, exit=0.2, grace=0.05)
        manager = SessionManager(tmp_path, app=app(Raising(Speechless(), also=True)), deadlines=quick)
        await manager.create(session_id="s")
        stream = manager.send("s", "go")
        await stream.started()
        with pytest.raises(Speechless):
            await manager.stop("s")
        assert "whose text cannot be shown" in str(manager.status("s").quarantined)
        with pytest.raises((RuntimeFailure, Speechless)):
            await manager.aclose()

    asyncio.run(main())
    assert statuses(tmp_path, "s") == ["aborted"]


def exits(*_: Any) -> Any:
    raise SystemExit(3)


async def exits_late(*_: Any) -> Any:
    raise SystemExit(3)


class Exiting:
    """A model that is no model, and ends the program."""

    provider = "exiting"

    def stream(self, request: object) -> Any:
        raise SystemExit(3)


@pytest.mark.parametrize(
    "backend",
    [
        lambda _: Raising(SystemExit(3)),
        scripted_backend([Do(exits)]),
        scripted_backend([Do(exits_late)]),
        scripted_backend(exits),
        loop_backend(lambda _: Exiting()),
    ],
)
def test_a_backend_that_ends_the_program_ends_its_turn(backend: Any, tmp_path: Path) -> None:
    async def main() -> None:
        exiting = App(backends={"b": backend, "calm": scripted_backend(["fine"])}, default_backend="b")
        async with SessionManager(tmp_path, app=exiting) as manager:
            await manager.create(session_id="s")
            await manager.create(session_id="calm", backend="calm")
            beside = manager.send("calm", "go")
            assert (await reads(manager, "s"))[-2:] == ["error", "complete"]
            assert [event.kind async for event in beside][-1] == "complete"

    asyncio.run(main())
    assert statuses(tmp_path, "s") == ["failed"]
    assert statuses(tmp_path, "calm") == ["completed"]


def test_a_backend_that_ends_the_program_while_it_is_built_stopped_or_disposed_fails(tmp_path: Path) -> None:
    async def main() -> None:
        app = App(
            backends={"b": lambda _: Raising(SystemExit(3), also=True), "unbuilt": exits, "late": exits_late},
            default_backend="b",
        )
        quick = Deadlines(stop=0.2, dispose=0.2, exit=0.2, grace=0.05)
        manager = SessionManager(tmp_path, app=app, deadlines=quick)
        for name in ("unbuilt", "late"):
            await manager.create(session_id=name, backend=name)
            with pytest.raises(RuntimeFailure, match=r"sys\.exit\(3\)"):
                await reads(manager, name)
        await manager.create(session_id="s")
        stream = manager.send("s", "go")
        await stream.started()
        with pytest.raises(RuntimeOwnerCleanupError, match=r"sys\.exit\(3\)"):
            await manager.stop("s")
        with pytest.raises(RuntimeOwnerCleanupError):
            await manager.aclose()

    asyncio.run(main())
    assert statuses(tmp_path, "s") == ["aborted"]


@pytest.mark.parametrize("type_", ["assistant/message", "turn/end", "run/settled", "turn/start"])
def test_a_hook_that_raises_jams_no_session(type_: str, tmp_path: Path) -> None:
    broken = True

    def hook(draft: Draft) -> Draft:
        if broken and draft.type == type_:
            raise ValueError("the redaction is broken")
        return draft

    async def main() -> None:
        nonlocal broken
        manager = SessionManager(
            tmp_path, app=App(backends={"b": scripted_backend(["hello"] * 3)}, default_backend="b"), on_append=hook
        )
        async with manager:
            await manager.create(session_id="s")
            with pytest.raises((JournalError, ValueError), match="redaction is broken"):
                await reads(manager, "s")
            broken = False
            assert (await reads(manager, "s"))[-1] == "complete"

    asyncio.run(main())
    assert statuses(tmp_path, "s")[-1] == "completed"
    assert maka.inspect("s", root=tmp_path).verdict == "healthy"


def test_what_nobody_reads_is_bounded_by_its_text() -> None:
    async def main() -> None:
        delivery = Delivery()
        for number in range(20):
            block = {"kind": "text", "text": "x" * (MOST // 4)}
            delivery.put(SessionEvent("tool_result", str(number), "t", 0, {"call_id": "c", "content": [block]}))
        delivery.put(SessionEvent("complete", "end", "t", 0, {"stop_reason": "end_turn"}))
        delivery.close()
        left = []
        while (event := await delivery.get()) is not None:
            left.append(event.id)
        assert left == ["17", "18", "19", "end"]
        assert delivery.dropped == 17

    asyncio.run(main())


@pytest.mark.parametrize("raised", [asyncio.CancelledError(), GeneratorExit()])
def test_a_listener_harms_nobody_whatever_it_raises(raised: BaseException) -> None:
    def listener(event: object) -> None:
        raise raised

    heard: list[str] = []
    lifecycle = Lifecycle()
    lifecycle.subscribe(listener)
    lifecycle.subscribe(lambda event: heard.append(event.kind))
    lifecycle.tell("session_opened", "s")
    assert heard == ["session_opened"]


@pytest.mark.parametrize(
    "make",
    [GeneratorExit, StopAsyncIteration, asyncio.CancelledError, lambda: BaseExceptionGroup("g", [KeyboardInterrupt()])],
)
def test_what_steers_a_task_is_told_as_a_failure(make: Callable[[], BaseException]) -> None:
    assert type(foreign(make())) is RuntimeFailure
    plain = ValueError("plain")
    assert foreign(plain) is plain


def test_a_group_of_what_is_no_exception_is_one_failure() -> None:
    group = BaseExceptionGroup("g", [KeyboardInterrupt()])
    assert combine("several", [group]) is group


class Lingering:
    """Its iterator fails, or just ends, and then never lets itself be closed."""

    def __init__(self, fails: bool) -> None:
        self._fails = fails

    def send(self, input: SendInput) -> AsyncIterator[SessionEvent]:
        fails = self._fails

        class Stream:
            def __aiter__(self) -> "Stream":
                return self

            async def __anext__(self) -> SessionEvent:
                if fails:
                    raise ValueError("it broke")
                raise StopAsyncIteration

            async def aclose(self) -> None:
                await asyncio.Event().wait()

        return Stream()

    async def stop(self, reason: str, mode: str) -> None: ...

    async def dispose(self) -> None: ...


@pytest.mark.parametrize(("fails", "failure_class"), [(True, "backend_error"), (False, "missing_terminal_event")])
def test_a_stream_that_cannot_be_closed_does_not_keep_its_turn_open(
    fails: bool, failure_class: str, tmp_path: Path
) -> None:
    async def main() -> None:
        quick = Deadlines(stop=0.1, dispose=0.1, exit=0.1, grace=0.02)
        manager = SessionManager(tmp_path, app=app(Lingering(fails)), deadlines=quick)
        await manager.create(session_id="s")
        stream = manager.send("s", "go")
        kinds = []
        async for event in stream:
            kinds.append(event.kind)
            if event.kind == "complete":
                break
        assert kinds[-2:] == ["error", "complete"]
        assert stream.reason is not None
        assert stream.reason["failure_class"] == failure_class
        await manager.aclose()

    asyncio.run(main())
    assert statuses(tmp_path, "s") == ["failed"]


@pytest.mark.parametrize(
    "event",
    [
        SessionEvent("error", "e", "t", 0, {"failure_class": "x" * (20 << 20), "message": "y" * (20 << 20)}),
        SessionEvent("abort", "e", "t", 0, {"source": "x" * (20 << 20)}),
        SessionEvent("token_usage", "e", "t", 0, {"input_tokens": 1 << 62, "output_tokens": 1 << 62}),
    ],
    ids=["error", "abort", "token_usage"],
)
def test_what_is_too_big_for_the_turns_end_degrades_no_session(event: SessionEvent, tmp_path: Path) -> None:
    class Big:
        async def send(self, input: SendInput) -> AsyncIterator[SessionEvent]:
            for _ in range(3):
                yield event
            how = {"abort": "user_stop", "error": "error"}.get(event.kind, "end_turn")
            yield SessionEvent("complete", "c", "t", 0, {"stop_reason": how})

        async def stop(self, reason: str, mode: str) -> None: ...

        async def dispose(self) -> None: ...

    async def main() -> None:
        async with SessionManager(tmp_path, app=app(Big())) as manager:
            await manager.create(session_id="s")
            told = [event.kind async for event in manager.send("s", "go", turn_id="t")]
            assert told[-1] == "complete"
            assert manager.status("s").degraded is None

    asyncio.run(main())
    assert maka.inspect("s", root=tmp_path).verdict == "healthy"


def test_a_stop_of_many_words_is_a_stop(tmp_path: Path) -> None:
    async def main() -> None:
        quick = Deadlines(stop=0.1, dispose=0.1, exit=0.1, grace=0.02)
        async with SessionManager(tmp_path, app=app(Raising(ValueError(), also=True)), deadlines=quick) as manager:
            await manager.create(session_id="s")
            stream = manager.send("s", "go")
            await stream.started()
            with pytest.raises(ValueError):
                await manager.stop("s", source="x" * (17 << 20))

    with pytest.raises(ValueError):
        asyncio.run(main())
    assert statuses(tmp_path, "s") == ["aborted"]


def test_a_close_that_is_cut_off_gives_the_locks_up_all_the_same(tmp_path: Path) -> None:
    """The loop ends while the manager waits for a backend that hangs."""
    held: list[SessionManager] = []

    class Deaf:
        async def send(self, input: SendInput) -> AsyncIterator[SessionEvent]:
            yield SessionEvent("text_delta", "e", input.turn_id, 0, {"message_id": "m", "text": "so far"})
            await asyncio.Event().wait()

        async def stop(self, reason: str, mode: str) -> None:
            await asyncio.Event().wait()

        async def dispose(self) -> None: ...

    async def main() -> None:
        manager = SessionManager(tmp_path, app=app(Deaf()))
        held.append(manager)
        await manager.create(session_id="s")
        await manager.send("s", "go").started()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(manager.aclose(), 0.1)

    asyncio.run(main())
    assert held, "who still holds the manager keeps nobody out"
    maka.open_session("s", root=tmp_path).close()
    assert maka.inspect("s", root=tmp_path).verdict == "healthy"


def test_a_run_that_ends_in_an_unforeseen_way_jams_no_session(tmp_path: Path) -> None:
    """An owner's release raises what no handler takes; the next turn opens the session again, which settles the run."""

    async def main() -> None:
        async with SessionManager(tmp_path, app=app()) as manager:
            await manager.create(session_id="s")
            bind = manager.kernel._parts.interaction_authority.bind_run  # type: ignore[union-attr]

            def bound(identity: Any) -> Any:
                owner = bind(identity)

                def release() -> None:
                    raise GeneratorExit

                owner.release = release  # type: ignore[method-assign]
                return owner

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(manager.kernel._parts.interaction_authority, "bind_run", bound)
                with pytest.raises(RuntimeFailure, match="GeneratorExit"):
                    await reads(manager, "s")
            assert "failed unforeseen" in str(manager.status("s").degraded)
            assert (await reads(manager, "s"))[-1] == "complete"

    asyncio.run(main())
    assert statuses(tmp_path, "s") == ["completed", "completed"]
    assert maka.inspect("s", root=tmp_path).verdict == "healthy"
