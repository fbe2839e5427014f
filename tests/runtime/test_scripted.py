"""The scripted model, as people use it in tests of their own."""

import asyncio
from typing import Any

import pytest

from maka.runtime.model import (
    Finish,
    ModelAdapter,
    ModelError,
    ModelRequest,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    UsageChunk,
)
from maka.runtime.scripted import Ask, Do, End, Fail, Part, Say, ScriptedModel, Tokens, Wait

REQUEST = ModelRequest("m", [])


def answers(model: ScriptedModel, count: int = 1) -> list[list[Any]]:
    async def main() -> list[list[Any]]:
        return [[chunk async for chunk in model.stream(REQUEST)] for _ in range(count)]

    return asyncio.run(main())


def test_parts_become_chunks() -> None:
    seen: list[ModelRequest] = []

    async def act(request: ModelRequest) -> None:
        seen.append(request)

    parts: list[Part] = [Say("hm", thinking=True), Say("abc", pieces=2), Do(act), Ask("t", {"n": 1}), Tokens(3, 4)]
    model = ScriptedModel([parts])
    assert isinstance(model, ModelAdapter)
    [[*chunks]] = answers(model)
    assert chunks[:3] == [ThinkingDelta("hm", 0), TextDelta("ab", 1), TextDelta("c", 1)]
    assert chunks[3] == ToolCallStart("call-1", "t", 3)
    assert "".join(chunk.arguments for chunk in chunks if isinstance(chunk, ToolCallDelta)) == '{"n":1}'
    assert chunks[-3:] == [ToolCallEnd(3), UsageChunk(3, 4), Finish("tool_use")]
    assert seen == model.requests == [REQUEST]


def test_one_response_after_another() -> None:
    ended = [chunks[0].text for chunks in answers(ScriptedModel(["a", ("b",)]), 3)]
    assert ended == ["a", "b", "(the script is over)"]
    again = answers(ScriptedModel(["a", "b"], repeat=True), 3)
    assert [chunks[0].text for chunks in again] == ["a", "b", "a"]


def test_ends_and_failures() -> None:
    assert answers(ScriptedModel([["x", End("max_tokens"), "never"]]))[0][-1] == Finish("max_tokens")
    with pytest.raises(ModelError) as caught:
        answers(ScriptedModel([["x", Fail("provider_auth", retry_after=2.0)]]))
    assert (caught.value.kind, caught.value.retryable, caught.value.retry_after) == ("provider_auth", False, 2.0)


def test_waiting() -> None:
    async def main() -> None:
        until = asyncio.Event()
        stream = ScriptedModel([[Wait(0.0), "a", Wait(until=until), "b"], [Wait()]]).stream(REQUEST)
        assert await anext(stream) == TextDelta("a", 1)
        second = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.01)
        assert not second.done()
        until.set()
        assert await second == TextDelta("b", 3)

    asyncio.run(main())
