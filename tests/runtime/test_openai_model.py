"""The adapter against a server on this machine, alone and under whole turns of the loop."""

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import maka
from maka.journal.store import FileStore
from maka.runtime.app import App
from maka.runtime.conversation import Conversation
from maka.runtime.loop import Loop, Options, Stop, TurnOutcome
from maka.runtime.model import Chunk, Finish, ModelAdapter, ModelError, ModelRequest, TextDelta
from maka.runtime.models import chat_errors
from maka.runtime.models.openai import OpenAIModel
from maka.runtime.sessions import SessionManager
from maka.runtime.tools import ToolOutput
from support import documents
from support.chat_server import DONE, ChatServer, Cut, Raw, Status, Wait, asks, chat_server, delta, says
from support.documents import MODELS
from support.legal import assert_legal
from support.loops import FakeTool, header

KEY = "sk-this-is-secret"
REQUEST = ModelRequest("m", [{"role": "user", "content": [{"kind": "text", "text": "hi"}]}])


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def against(*script: list[Any], use: Callable[[ChatServer, OpenAIModel], Awaitable[Any]], **settings: Any) -> Any:
    """Runs ``use`` with a server that plays the script, and an adapter for it; no task may be left.

    Generators that the client has not read to their end are closed in the next turns of the event loop.
    """

    async def run() -> Any:
        async with chat_server(*script) as server:
            async with OpenAIModel(server.url, KEY, **settings) as model:
                result = await use(server, model)
        for _ in range(100):
            await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return result

    return asyncio.run(run())


async def collect(server: ChatServer, model: OpenAIModel) -> list[Chunk]:
    return [chunk async for chunk in model.stream(REQUEST)]


def failure(*script: list[Any], **settings: Any) -> tuple[ModelError, list[Chunk]]:
    """How one request failed, and what had come by then."""
    came: list[Chunk] = []

    async def use(server: ChatServer, model: OpenAIModel) -> ModelError:
        async def keep() -> None:
            async for chunk in model.stream(REQUEST):
                came.append(chunk)

        with pytest.raises(ModelError) as failed:
            await keep()
        assert len(server.requests) == len(script)
        return failed.value

    error = against(*script, use=use, **settings)
    assert KEY not in str(error)
    assert error.__cause__ is None
    return error, came


# ---------------------------------------------------------------- one request


def test_a_response_is_streamed() -> None:
    async def use(server: ChatServer, model: OpenAIModel) -> list[str]:
        assert isinstance(model, ModelAdapter)
        seen = []
        async for chunk in model.stream(REQUEST):
            if isinstance(chunk, TextDelta):
                seen.append(chunk.text)
                waiting.set()
        assert server.headers[0]["authorization"] == f"Bearer {KEY}"
        return seen

    waiting = asyncio.Event()
    # The second piece is sent when the first has arrived: nothing is held back until the end.
    script = [delta(content="one"), Wait(until=waiting), delta(content="two"), delta("stop"), DONE]
    assert against(script, use=use) == ["one", "two"]


def test_the_request_asks_for_a_stream_and_its_counts() -> None:
    async def use(server: ChatServer, model: OpenAIModel) -> Any:
        await collect(server, model)
        return server.requests

    assert against(says("hello"), use=use) == [
        {
            "model": "m",
            "messages": [{"role": "user", "content": "hi"}],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]


def test_nothing_is_sent_before_the_first_chunk_is_asked_for() -> None:
    async def use(server: ChatServer, model: OpenAIModel) -> Any:
        model.stream(REQUEST)
        await asyncio.sleep(0.01)
        return server.requests

    assert against(use=use) == []


def test_a_server_that_knows_no_counts_is_asked_without_and_never_again_with() -> None:
    async def use(server: ChatServer, model: OpenAIModel) -> list[bool]:
        for _ in range(2):
            assert (await collect(server, model))[-1] == Finish("end_turn")
        return ["stream_options" in request for request in server.requests]

    refusal = Status(400, {"error": {"message": "stream_options: extra fields not permitted"}})
    assert against([refusal], says("one"), says("two"), use=use) == [True, False, False]


def test_any_other_refusal_is_asked_once() -> None:
    error, _ = failure([Status(400, {"error": {"message": "no such model"}})])
    assert (error.kind, error.retryable) == ("provider_invalid_request", False)


def test_connections_are_used_again() -> None:
    async def use(server: ChatServer, model: OpenAIModel) -> int:
        for _ in range(3):
            await collect(server, model)
        return server.connections

    # Without the last event: some versions of the client drop a connection whose response goes on behind it.
    assert against(*[[FIRST, delta("stop")]] * 3, use=use) == 1


# ---------------------------------------------------------------- failures


@pytest.mark.parametrize(
    ("status", "kind", "retryable", "wait"),
    [
        (Status(401, {"error": {"message": f"Incorrect API key provided: {KEY}"}}), "provider_auth", False, None),
        (Status(429, {"error": {"message": "slow"}}, {"retry-after": "7"}), "provider_rate_limit", True, 7.0),
        (Status(429, {"error": {"code": "insufficient_quota"}}), "provider_rate_limit", False, None),
        (Status(400, {"error": {"code": "context_length_exceeded"}}), "context_overflow", False, None),
        (Status(404, "<h1>not here</h1>"), "provider_invalid_request", False, None),
        (Status(500, "oops"), "provider_server", True, None),
        (Status(503, {"error": "busy"}), "provider_overloaded", True, None),
        (Status(200, "<h1>Welcome</h1>"), "provider_invalid_response", False, None),
    ],
    ids=lambda value: str(value.code) if isinstance(value, Status) else "",
)
def test_statuses(status: Status, kind: str, retryable: bool, wait: float | None) -> None:
    error, came = failure([status])
    assert (error.kind, error.retryable, error.retry_after) == (kind, retryable, wait)
    assert not came


FIRST = delta(content="Hel")


@pytest.mark.parametrize(
    ("parts", "kind", "retryable"),
    [
        ([Cut()], "provider_network", True),
        ([Raw(b": hello\n\n"), Cut()], "provider_network", True),
        ([FIRST, Raw(b'data: {"cho'), Cut()], "provider_network", True),
        ([FIRST], "provider_network", True),
        ([FIRST, DONE], "provider_network", True),
        ([FIRST, Wait()], "provider_network", True),
        ([Wait()], "provider_network", True),
        ([FIRST, {"error": {"message": f"boom {KEY}", "code": 500}}], "provider_server", True),
        ([{"error": {"type": "invalid_request_error"}}], "provider_invalid_request", False),
        ([FIRST, Raw(b'data: {"choices": [\n\n')], "provider_invalid_response", False),
        ([FIRST, Raw(b"data: \xff\xfe\n\n")], "provider_invalid_response", False),
        ([FIRST, Raw(b"data: " + b"[" * 200_000 + b"\n\n")], "provider_invalid_response", False),
        ([FIRST, {"choices": "none"}], "provider_invalid_response", False),
    ],
    ids="cut-at-once cut-before cut-in-line ended done-only idle hang error error-first json bytes deep shape".split(),
)
def test_streams_that_fail(parts: list[Any], kind: str, retryable: bool) -> None:
    error, came = failure(parts, idle_timeout=0.1)
    assert (error.kind, error.retryable) == (kind, retryable)
    assert came == ([TextDelta("Hel")] if parts[0] is FIRST else [])


def test_a_stream_that_is_slow_but_not_silent_is_waited_for() -> None:
    parts = [part for n in range(8) for part in (Wait(0.05), delta(content=str(n)))]
    chunks = against([*parts, delta("stop")], use=collect, idle_timeout=0.3)
    assert [chunk.text for chunk in chunks[:-1]] == list("01234567")


def test_what_goes_wrong_behind_the_end_of_the_message_does_not_spoil_it() -> None:
    assert against([FIRST, delta("stop"), Cut()], use=collect) == [TextDelta("Hel"), Finish("end_turn")]


def test_nobody_listens() -> None:
    async def run() -> ModelError:
        listening = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        listening.close()
        await listening.wait_closed()
        async with OpenAIModel(f"http://user:hidden@127.0.0.1:{port}/v1") as model:
            with pytest.raises(ModelError) as failed:
                await anext(model.stream(REQUEST))
        return failed.value

    error = asyncio.run(run())
    assert (error.kind, error.retryable) == ("provider_network", True)
    assert "127.0.0.1" in str(error)
    assert "hidden" not in str(error)


def test_parameters_that_are_no_json_are_a_wrong_request() -> None:
    async def use(server: ChatServer, model: OpenAIModel) -> list[str]:
        kinds = []
        for params in ({"x": {1, 2}}, {"x": "\ud800"}):
            with pytest.raises(ModelError) as failed:
                await anext(model.stream(ModelRequest("m", [], params=params)))
            kinds.append(failed.value.kind)
        assert not server.requests
        return kinds

    assert against(use=use) == ["provider_invalid_request"] * 2


# ---------------------------------------------------------------- its end


def test_cancelling_closes_the_response_at_once() -> None:
    async def use(server: ChatServer, model: OpenAIModel) -> None:
        reading = asyncio.ensure_future(collect(server, model))
        while not server.waits:
            await asyncio.sleep(0)
        assert not server.gone.is_set()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await asyncio.wait_for(server.gone.wait(), 5)

    against([FIRST, Wait()], use=use)
    against([Wait()], use=use)


def test_closing_the_iteration_closes_the_response() -> None:
    async def use(server: ChatServer, model: OpenAIModel) -> None:
        stream = model.stream(REQUEST)
        assert await anext(stream) == TextDelta("Hel")
        await stream.aclose()  # type: ignore[attr-defined]
        await asyncio.wait_for(server.gone.wait(), 5)

    against([FIRST, Wait()], use=use)


def test_a_closed_adapter_and_one_of_another_loop_say_so() -> None:
    model = OpenAIModel("http://127.0.0.1:9/v1")

    async def use() -> None:
        with pytest.raises(ModelError):
            await anext(model.stream(REQUEST))

    asyncio.run(use())
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(use())

    async def close() -> None:
        other = OpenAIModel("http://127.0.0.1:9/v1")
        await other.aclose()
        await other.aclose()
        with pytest.raises(RuntimeError, match="closed"):
            await anext(other.stream(REQUEST))

    asyncio.run(close())


# ---------------------------------------------------------------- how it is set up


def test_a_key_is_needed_for_the_provider_s_own_address_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="set OPENAI_API_KEY or pass api_key") as failed:
        OpenAIModel()
    assert failed.value.kind == "provider_auth"
    OpenAIModel("http://localhost:8000/v1")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    OpenAIModel()


def test_the_environment_says_where_and_with_which_key(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> dict[str, str]:
        async with chat_server(says("hello")) as server:
            monkeypatch.setenv("OPENAI_BASE_URL", server.url)
            monkeypatch.setenv("OPENAI_API_KEY", "from-the-environment")
            async with OpenAIModel() as model:
                await collect(server, model)
            return server.headers[0]

    assert asyncio.run(run())["authorization"] == "Bearer from-the-environment"


@pytest.mark.parametrize("key", ["sk-one sk-two", "sk-\ntwo", "sk-…"])
def test_a_key_that_is_none_is_refused_and_not_quoted(key: str) -> None:
    with pytest.raises(ModelError, match="look at OPENAI_API_KEY") as failed:
        OpenAIModel("http://localhost/v1", key)
    assert failed.value.kind == "provider_auth"
    assert "sk-" not in str(failed.value)


def test_white_space_around_a_key_is_no_part_of_it() -> None:
    async def run() -> str:
        async with chat_server(says("hello")) as server, OpenAIModel(server.url, f" {KEY}\n") as model:
            await collect(server, model)
        return server.headers[0]["authorization"]

    assert asyncio.run(run()) == f"Bearer {KEY}"


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host/v1", "http://", "http://host:port/v1"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(ModelError, match="OPENAI_BASE_URL") as failed:
        OpenAIModel(url)
    assert failed.value.kind == "provider_invalid_request"


def test_without_the_package_one_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(ModelError, match=re.escape("maka-runtime[openai]")) as failed:
        OpenAIModel("http://localhost/v1")
    assert failed.value.kind == "provider_unavailable"


def test_the_module_is_imported_without_the_package() -> None:
    code = "import maka.runtime.models.openai, sys; sys.exit('openai' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---------------------------------------------------------------- whole turns


class Turn:
    """One turn of a session on disk: how it ended, what the journal holds, what the server was asked."""

    def __init__(self, directory: Path, *script: list[Any], tools: Any = (), stop: Stop | None = None) -> None:
        self.store = FileStore(directory / "root")
        self.slept: list[float] = []
        self.kinds: list[str] = []
        self.outcome: TurnOutcome = against(*script, use=lambda server, model: self._run(server, model, tools, stop))
        self.view = maka.inspect(self.store.path("s1"))
        assert self.view.verdict == "healthy"
        assert_legal(self.view.messages())

    async def _run(self, server: ChatServer, model: OpenAIModel, tools: Any, stop: Stop | None) -> TurnOutcome:
        self.server = server
        with self.store.create(header()) as journal:
            loop = Loop(
                journal=journal,
                conversation=Conversation(self.store.read("s1")),
                model=model,
                session_dir=journal.session_dir,
                tools=tools,
                options=Options(live_text=False),
                publish=self._told,
                sleep=self._sleep,
            )
            return await loop.run_turn("go", stop=stop)

    def _told(self, event: Any) -> None:
        self.kinds.append(event.kind)

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def of(self, type_: str) -> list[Any]:
        return [event.data for event in self.view.events if event.type == type_]


def test_a_turn_with_two_calls_at_once(tmp_path: Path) -> None:
    tools = [FakeTool(name, lambda arguments, context: ToolOutput.of(str(arguments["n"] * 2))) for name in ("a", "b")]
    turn = Turn(tmp_path, asks(("c1", "a", '{"n":1}'), ("c2", "b", '{"n":2}')), says("two and four"), tools=tools)
    assert turn.outcome.reason == {"kind": "completed"}
    assert [tool.entered for tool in tools] == [1, 1]
    first, second = turn.server.requests
    assert [tool["function"]["name"] for tool in first["tools"]] == ["a", "b"]
    user, assistant, *results = second["messages"]
    assert user == {"role": "user", "content": "go"}
    assert [call["function"]["arguments"] for call in assistant["tool_calls"]] == ['{"n":1}', '{"n":2}']
    assert [(result["tool_call_id"], result["content"]) for result in results] == [("c1", "2"), ("c2", "4")]
    messages = turn.of("assistant/message")
    assert [message["stop_reason"] for message in messages] == ["tool_use", "end_turn"]
    assert messages[0]["usage"] == {"input_tokens": 7, "output_tokens": 5}
    assert turn.of("request/header")[0]["header"]["provider"] == "openai"


def test_a_call_with_half_its_arguments_is_answered_and_sent_again(tmp_path: Path) -> None:
    turn = Turn(tmp_path, asks(("c1", "a", '{"n":')), says("sorry"), tools=[FakeTool("a")])
    assert turn.outcome.reason == {"kind": "completed"}
    assert turn.of("assistant/message")[0]["content"][0]["arguments"] == '{"n":'
    _, assistant, result = turn.server.requests[1]["messages"]
    assert assistant["tool_calls"][0]["function"]["arguments"] == '{"not_json": "{\\"n\\":"}'
    assert result["content"].startswith("[error] ")


def test_a_rate_limit_is_waited_for(tmp_path: Path) -> None:
    limit = Status(429, {"error": {"message": "slow down"}}, {"retry-after": "7"})
    turn = Turn(tmp_path, [limit], says("hello"))
    assert turn.outcome.reason == {"kind": "completed"}
    assert turn.slept == [pytest.approx(7.0)]
    (note,) = turn.of("session/note")
    assert note["kind"] == "retry"
    assert "provider_rate_limit" in note["text"]
    assert "provider_retry" in turn.kinds


def test_a_server_that_fails_once(tmp_path: Path) -> None:
    turn = Turn(tmp_path, [Status(500, "oops")], [Cut()], says("hello"))
    assert turn.outcome.reason == {"kind": "completed"}
    assert len(turn.of("session/note")) == len(turn.slept) == 2


def test_a_stream_cut_after_its_beginning_fails_the_turn_and_keeps_what_came(tmp_path: Path) -> None:
    turn = Turn(tmp_path, [delta(content="Hel"), delta(content="lo"), Raw(b'data: {"cho'), Cut()])
    assert turn.outcome.reason["kind"] == "failed"
    assert turn.outcome.reason["failure_class"] == "provider_network"
    (message,) = turn.of("assistant/message")
    assert message["interrupted"] is True
    assert message["content"] == [{"kind": "text", "text": "Hello"}]
    assert not turn.slept


@pytest.mark.parametrize(
    ("status", "failure_class"),
    [
        (Status(401, {"error": {"message": f"bad key {KEY}"}}), "provider_auth"),
        (Status(400, {"error": {"code": "context_length_exceeded"}}), "context_overflow"),
    ],
)
def test_failures_that_another_try_would_not_mend(tmp_path: Path, status: Status, failure_class: str) -> None:
    turn = Turn(tmp_path, [status])
    assert turn.outcome.reason["failure_class"] == failure_class
    assert not turn.slept
    assert KEY not in turn.store.path("s1").read_text()


def test_stopping_a_turn_ends_its_request(tmp_path: Path) -> None:
    stop = Stop()
    turn = Turn(tmp_path, [FIRST, Wait(begun=stop.request)], stop=stop)
    assert turn.outcome.reason == {"kind": "aborted", "source": "user"}
    assert turn.server.gone.is_set()


# ---------------------------------------------------------------- the document


@contextmanager
def server_in_a_thread(*script: list[Any]) -> Iterator[ChatServer]:
    ready: list[tuple[ChatServer, asyncio.AbstractEventLoop, asyncio.Event]] = []
    begun = threading.Event()

    async def run() -> None:
        async with chat_server(*script) as server:
            end = asyncio.Event()
            ready.append((server, asyncio.get_running_loop(), end))
            begun.set()
            await end.wait()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    assert begun.wait(10)
    server, loop, end = ready[0]
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()


#: With a manager, in a module, and the loop by itself.
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", MODELS, re.MULTILINE | re.DOTALL)


@contextmanager
def example(number: int, *script: list[Any], root: Path) -> Iterator[tuple[dict[str, Any], ChatServer]]:
    """What an example of the document has made; it runs in ``root`` with a server that plays the script."""
    namespace: dict[str, Any] = {"__name__": "__example__"}
    with pytest.MonkeyPatch.context() as patched, server_in_a_thread(*script) as server:
        patched.chdir(root)
        for name, value in (("MAKA_HOME", "root"), ("OPENAI_BASE_URL", server.url), ("OPENAI_API_KEY", KEY)):
            patched.setenv(name, value)
        exec(compile(EXAMPLES[number], "models.md", "exec"), namespace)  # noqa: S102
        yield namespace, server


@pytest.mark.parametrize("number", [0, 2], ids=["manager", "loop"])
def test_the_document_s_examples_run(tmp_path: Path, number: int) -> None:
    script = asks(("c1", "write_file", '{"path":"note.txt","content":"40 chairs"}')), says("Done.")
    with example(number, *script, root=tmp_path) as (_, server):
        assert len(server.requests) == 2
    assert (tmp_path / "note.txt").read_text() == "40 chairs"
    assert server.requests[0]["temperature"] == 0


def test_the_document_s_app_of_a_module_shares_one_adapter_that_the_program_closes(tmp_path: Path) -> None:
    async def use(app: App, model: Callable[[], OpenAIModel]) -> list[str]:
        async with SessionManager(tmp_path / "root", app=app) as manager:
            told = [event for _ in range(2) async for event in manager.send(await manager.create(), "hi")]
        await model().aclose()
        return [event.data["text"] for event in told if event.kind == "text_complete"]

    assert len(EXAMPLES) == 3
    with example(1, says("One."), says("Two."), root=tmp_path) as (made, server):
        assert made["model"].cache_info().currsize == 0, "importing it needs no key"
        assert asyncio.run(use(made["app"], made["model"])) == ["One.", "Two."]
        assert made["model"].cache_info().currsize == 1
        assert len(server.requests) == 2


def test_the_document_tells_every_kind_of_failure() -> None:
    rows = documents.table(MODELS, "what happens", "failure class", "tried again")
    kinds = [value for value in vars(chat_errors).values() if isinstance(value, chat_errors._Kind)]
    known = {(kind.kind, kind.retryable) for kind in kinds} | {("provider_network", True)}
    assert {(row[1].strip("`"), row[2] == "yes") for row in rows} == known
