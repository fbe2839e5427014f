"""A model that plays a script: for tests of whatever stands on the loop, and for demonstrations without a provider."""

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import attrs

from .checks import shortly
from .model import (
    Chunk,
    Finish,
    ModelError,
    ModelRequest,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    UsageChunk,
)


@attrs.frozen
class Say:
    """Text, or with ``thinking`` reasoning, in ``pieces`` deltas, ``pause`` seconds before each."""

    text: str
    thinking: bool = False
    pieces: int = 1
    pause: float = 0.0

    @property
    def deltas(self) -> list[str]:
        size = -(-len(self.text) // max(self.pieces, 1)) or 1
        return [self.text[start : start + size] for start in range(0, len(self.text), size)]


@attrs.frozen
class Ask:
    """A tool call. ``arguments`` is an object, or the raw text of a model that got it wrong."""

    name: str
    arguments: dict[str, Any] | str = attrs.Factory(dict)
    call_id: str | None = None


@attrs.frozen
class Wait:
    """Waits ``seconds``, or for ``until`` to be set; for ever where both are None."""

    seconds: float | None = None
    until: asyncio.Event | None = None

    async def over(self) -> None:
        if self.seconds is not None:
            await asyncio.sleep(self.seconds)
        else:
            await (self.until or asyncio.Event()).wait()


@attrs.frozen
class Fail:
    """The provider fails here."""

    kind: str = "provider_error"
    retryable: bool = False
    retry_after: float | None = None
    message: str = "the script says so"


@attrs.frozen
class Tokens:
    """Says what the response has used."""

    input: int = 0
    output: int = 0


@attrs.frozen
class End:
    """Ends the response with a reason of its own, ``max_tokens`` for one."""

    reason: str


@attrs.frozen
class Do:
    """Runs ``action(request)`` at this point, and waits for it if it is awaitable. A backend gives its SendInput."""

    action: Callable[[Any], Any]


#: What a response is made of.
Part = Say | Ask | Wait | Fail | Tokens | End | Do | str
Response = list[Part] | tuple[Part, ...] | Part


class ScriptedModel:
    """Answers one request after another with the responses of ``script``; a text stands for ``Say``, and for a script
    of one response. Raises TypeError for what is no response.

    ``requests`` are those it got. Asked beyond the script's end it says ``(the script is over)``. With ``repeat`` the
    script starts again.
    """

    def __init__(self, script: Iterable[Response], *, provider: str = "scripted", repeat: bool = False) -> None:
        self._script = [_parts(response) for response in ([script] if isinstance(script, str) else script)]
        self._repeat = repeat
        self._calls = 0
        self.provider = provider
        self.requests: list[ModelRequest] = []

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        turn = len(self.requests)
        self.requests.append(request)
        if self._repeat and self._script:
            turn %= len(self._script)
        parts: list[Part] = self._script[turn] if turn < len(self._script) else ["(the script is over)"]
        asked = False
        for index, part in enumerate(parts):
            match part:
                case str() | Say():
                    async for chunk in _say(Say(part) if isinstance(part, str) else part, index):
                        yield chunk
                case Ask():
                    asked = True
                    for chunk in self._ask(part, index):
                        yield chunk
                case Wait():
                    await part.over()
                case Fail():
                    raise ModelError(
                        part.message, kind=part.kind, retryable=part.retryable, retry_after=part.retry_after
                    )
                case Tokens(read, written):
                    yield UsageChunk(read, written)
                case End(reason):
                    yield Finish(reason)
                    return
                case Do(action):
                    result = action(request)
                    if inspect.isawaitable(result):
                        await result
        yield Finish("tool_use" if asked else "end_turn")

    def _ask(self, part: Ask, index: int) -> Iterable[Chunk]:
        self._calls += 1
        raw = part.arguments if isinstance(part.arguments, str) else json.dumps(part.arguments, separators=(",", ":"))
        middle = len(raw) // 2
        return (
            ToolCallStart(part.call_id or f"call-{self._calls}", part.name, index),
            ToolCallDelta(raw[:middle], index),
            ToolCallDelta(raw[middle:], index),
            ToolCallEnd(index),
        )


def _parts(response: Any) -> list[Part]:
    parts: list[Any] = list(response) if isinstance(response, list | tuple) else [response]
    for part in parts:
        if not isinstance(part, Part):
            raise TypeError(f"a script holds {shortly(part)}, which is no part; the parts are in maka.runtime.scripted")
    return parts


async def _say(part: Say, index: int) -> AsyncIterator[Chunk]:
    for piece in part.deltas:
        if part.pause:
            await asyncio.sleep(part.pause)
        yield ThinkingDelta(piece, index) if part.thinking else TextDelta(piece, index)
