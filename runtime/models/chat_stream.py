"""The chunks of a streamed chat completion → chunks of the loop, for servers that take the protocol lightly. No I/O."""

import json
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

import attrs

from ...journal.events import JsonObject
from ..model import (
    Chunk,
    Finish,
    ModelError,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    UsageChunk,
)
from .chat_errors import error_in_stream
from .chat_request import is_object

#: A provider's reason to stop → the loop's. Others go through as they are.
_REASONS: Final = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "length": "max_tokens",
    "content_filter": "content_filter",
}
#: Where visible text and reasoning stand in a delta; of several that say the same the first counts.
_TEXT: Final = ("content", "refusal")
_THINKING: Final = ("reasoning_content", "reasoning")


@attrs.define
class _Call:
    """A call as it grows. It has begun when the loop has been told of it."""

    index: int
    call_id: str = ""
    name: str = ""
    begun: bool = False
    arguments: list[str] = attrs.Factory(list)

    @property
    def empty(self) -> bool:
        return not (self.name or self.arguments)

    @property
    def whole(self) -> bool:
        return bool(self.arguments) and self.arguments[-1].endswith("}") and is_object("".join(self.arguments))


class ChatStream:
    """Feed each chunk as it comes, then take ``end()``. Raises ModelError for what is no chunk of a chat completion.

    ``tools`` are the names that a call may have; ``new_id`` gives one to a call that came without.
    """

    def __init__(self, tools: Collection[str], new_id: Callable[[], str]) -> None:
        self._tools = tools
        self._new_id = new_id
        self._calls: list[_Call] = []
        self._at: dict[int, _Call] = {}
        self._reason: str | None = None

    @property
    def finished(self) -> bool:
        """Has the provider said why the message ends? Only token counts may follow."""
        return self._reason is not None

    def feed(self, data: object) -> Iterator[Chunk]:
        chunk = _object(data, "a chunk")
        for choice in map(_choice, _list(chunk.get("choices"), "choices")):
            # Where somebody asked for several answers, the first is the answer.
            if not choice.get("index"):
                yield from self._delta(_object(choice.get("delta") or {}, "delta"))
                self._reason = _text(choice, "finish_reason") or self._reason
                if self._reason == "error":
                    raise error_in_stream(choice.get("error"))
        if (usage := _usage(chunk.get("usage"))) is not None:
            yield usage

    def end(self) -> Iterator[Chunk]:
        """Closes the calls and the message."""
        calls = [call for call in self._calls if not call.empty]
        for call in calls:
            if not call.begun:
                call.call_id = call.call_id or self._new_id()
                yield from _begin(call)
            yield ToolCallEnd(call.index)
        reason = _REASONS.get(self._reason or "", self._reason or "")
        yield Finish("tool_use" if reason == "end_turn" and calls else reason)

    # ------------------------------------------------------------ pieces

    def _delta(self, delta: JsonObject) -> Iterator[Chunk]:
        if thinking := _first(delta, _THINKING):
            yield ThinkingDelta(thinking)
        if text := _first(delta, _TEXT):
            yield TextDelta(text)
        pieces = _list(delta.get("tool_calls"), "tool_calls")
        if not pieces and isinstance(delta.get("function_call"), dict):
            pieces = [{"index": 0, "function": delta["function_call"]}]
        for piece in pieces:
            yield from self._piece(_object(piece, "a tool call"))

    def _piece(self, piece: JsonObject) -> Iterator[Chunk]:
        function = _object(piece.get("function") or {}, "function")
        call_id, name, arguments = _text(piece, "id"), _text(function, "name"), _arguments(function)
        index = piece.get("index")
        call = self._place(index if isinstance(index, int) else None, call_id, name, arguments)
        call.call_id = call.call_id or call_id
        if not call.begun:
            call.name = joined(call.name, name, self._tools)
        if not arguments:
            return
        call.arguments.append(arguments)
        if call.begun:
            yield ToolCallDelta(arguments, call.index)
        else:
            yield from self._begin_up_to(call)

    def _begin_up_to(self, call: _Call) -> Iterator[Chunk]:
        """Begins the calls in their order, as far as what they begin with is known."""
        for earlier in self._calls[: call.index + 1]:
            if not (earlier.call_id and earlier.name):
                return
            if not earlier.begun:
                yield from _begin(earlier)

    def _place(self, index: int | None, call_id: str, name: str, arguments: str) -> _Call:
        """The call that a piece belongs to, a new one where it can belong to none that there is."""
        if index is not None:
            call = self._at.get(index)
        else:
            named = (call for call in self._calls if call_id and call.call_id == call_id)
            call = next(named, self._calls[-1] if self._calls else None)
        if call is None or _is_another(call, call_id, name, arguments):
            call = _Call(len(self._calls))
            self._calls.append(call)
        if index is not None:
            self._at[index] = call
        return call


def _begin(call: _Call) -> Iterator[Chunk]:
    """A call begins when its arguments do: until then more of its name may come."""
    call.begun = True
    yield ToolCallStart(call.call_id, call.name, call.index)
    for arguments in call.arguments:
        yield ToolCallDelta(arguments, call.index)


def _is_another(call: _Call, call_id: str, name: str, arguments: str) -> bool:
    """Is this piece, which stands in the place of ``call``, the begin of another one?

    Some servers give every call the same index; others give a new id, or the name again, with every piece.
    """
    if not name or call_id == call.call_id != "":
        return False
    if call_id and call.call_id:
        return True
    return call.whole and (name != call.name or bool(arguments.strip()))


def joined(name: str, piece: str, tools: Collection[str]) -> str:
    """A name and what came after it: the name again, the name so far, or its next part."""
    both = name + piece
    if piece.startswith(name) and (piece in tools or not any(tool.startswith(both) for tool in tools)):
        return piece
    return both


# ---------------------------------------------------------------- usage


def _usage(usage: object) -> UsageChunk | None:
    if not isinstance(usage, dict):
        return None
    read, written = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    if read is None and written is None:
        return None
    cached = _count(usage.get("prompt_tokens_details"), "cached_tokens")
    return UsageChunk(
        read or 0,
        written or 0,
        cache_read_tokens=_count(usage, "prompt_cache_hit_tokens") if cached is None else cached,
        reasoning_tokens=_count(usage.get("completion_tokens_details"), "reasoning_tokens"),
    )


def _count(counts: object, key: str) -> int | None:
    value = counts.get(key) if isinstance(counts, dict) else None
    return value if type(value) is int and 0 <= value < 1 << 63 else None


# ---------------------------------------------------------------- what a server may have sent


def _invalid(what: str, value: object) -> ModelError:
    return ModelError(
        f"the server sent {what} of the wrong kind ({type(value).__name__}); is it one for chat completions?",
        kind="provider_invalid_response",
    )


def _object(value: object, what: str) -> JsonObject:
    if not isinstance(value, dict):
        raise _invalid(what, value)
    return value


def _list(value: object, what: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise _invalid(what, value)
    return value


def _choice(value: object) -> JsonObject:
    return _object(value, "a choice")


def _text(holder: JsonObject, key: str) -> str:
    """Text, or nothing where there is none."""
    value = holder.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _invalid(key, value)
    return value


def _arguments(function: JsonObject) -> str:
    """The raw text; of a server that sends the object itself, its text."""
    value = function.get("arguments")
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else _text(function, "arguments")


def _first(delta: JsonObject, keys: tuple[str, ...]) -> str:
    return next((text for key in keys if (text := _text(delta, key))), "")
