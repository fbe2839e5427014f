"""Chunks → the blocks of a message, and the joined pieces that are journalled while it streams. No I/O."""

from collections.abc import Iterator
from typing import Final, Literal

import attrs
import orjson

from ..journal.events import Blocks, JsonObject
from .model import (
    Chunk,
    Finish,
    ModelError,
    TextDelta,
    ThinkingDelta,
    ToolCallChunk,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    UsageChunk,
)

#: Bytes of JSON that the text of one response may take: a line of the journal holds 16 MiB.
MAX_TEXT: Final = 15 << 20
#: Bytes that a character takes at most, where nobody can tell.
_WIDEST: Final = 6


@attrs.define
class _Block:
    kind: Literal["text", "thinking", "tool_call"]
    index: int = 0
    pieces: list[str] = attrs.Factory(list)
    signature: str | None = None
    call_id: str = ""
    name: str = ""
    closed: bool = False
    taken: int = 0

    def render(self) -> JsonObject | None:
        text = "".join(self.pieces)
        if self.kind == "tool_call":
            return {"kind": "tool_call", "call_id": self.call_id, "name": self.name, "arguments": text}
        if not text and self.signature is None:
            return None
        block: JsonObject = {"kind": self.kind, "text": text}
        if self.signature is not None:
            block["signature"] = self.signature
        return block


@attrs.frozen
class Piece:
    """Text that came since the last piece of the same block."""

    index: int
    kind: Literal["text", "thinking"]
    text: str


class Assembly:
    """A response as it grows. Raises ModelError where the chunks do not make sense together."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._texts: dict[tuple[str, int], _Block] = {}
        self._calls: dict[int, _Block] = {}
        self._size = 0
        self.usage: JsonObject | None = None
        self.stop_reason: str | None = None

    @property
    def started(self) -> bool:
        """Has anything come that a second attempt would repeat?"""
        return bool(self._blocks) or self.usage is not None or self.stop_reason is not None

    def feed(self, chunk: Chunk) -> None:
        if self.stop_reason is not None:
            raise ModelError("the response went on after its end", kind="provider_invalid_response")
        match chunk:
            case TextDelta(text, index):
                self._text("text", index, text)
            case ThinkingDelta(text, index, signature):
                block = self._text("thinking", index, text)
                block.signature = signature if signature is not None else block.signature
            case ToolCallStart(call_id, name, index):
                self._call(call_id, name, index)
            case ToolCallDelta(arguments, index):
                self._open_call(index).pieces.append(self._counted(arguments))
            case ToolCallEnd(index):
                self._open_call(index).closed = True
            case ToolCallChunk(call_id, name, arguments, index):
                call = self._call(call_id, name, index)
                call.pieces.append(self._counted(arguments))
                call.closed = True
            case UsageChunk():
                self.usage = {name: count for name, count in attrs.asdict(chunk).items() if count is not None}
            case Finish(stop_reason):
                self.stop_reason = stop_reason
                for call in self._calls.values():
                    call.closed = True
            case _:
                raise ModelError(f"{type(chunk).__name__} is no chunk of a response", kind="provider_invalid_response")

    @property
    def spoken(self) -> bool:
        """Is there any block?"""
        return bool(self._blocks)

    def complete(self, kind: Literal["text", "thinking"], text: str, index: int, signature: str | None) -> None:
        """The whole text of a block: it replaces the pieces that came, and what follows is another block's."""
        block = self._text(kind, index, "")
        shown = "".join(block.pieces[: block.taken])
        self._size -= sum(map(_weight, block.pieces))
        self._counted(text)
        # What has been taken stays taken, where it is a part of the whole.
        block.pieces = [shown, text[len(shown) :]] if text.startswith(shown) else [text]
        block.taken = 1
        block.signature = signature if signature is not None else block.signature
        del self._texts[kind, index]

    def pieces(self) -> list[Piece]:
        """The text that came since this was last asked, joined for each block, blocks in the order of their begin."""
        pieces = []
        for block in self._blocks:
            if block.kind != "tool_call" and (text := "".join(block.pieces[block.taken :])):
                pieces.append(Piece(block.index, block.kind, text))
                block.taken = len(block.pieces)
        return pieces

    def message(self, *, calls: bool) -> Blocks:
        """The blocks in the order in which they began. ``calls=False`` leaves the calls out, half-made ones always."""
        return list(self._rendered(calls))

    def _rendered(self, calls: bool) -> Iterator[JsonObject]:
        taken: set[str] = set()
        for block in self._blocks:
            if block.kind == "tool_call" and not (calls and block.closed):
                continue
            rendered = block.render()
            if rendered is None:
                continue
            if block.kind == "tool_call":
                rendered["call_id"] = _unique(block.call_id, taken)
            yield rendered

    def _text(self, kind: Literal["text", "thinking"], index: int, text: str) -> _Block:
        # Keyed by kind too: some providers count text and thinking apart.
        block = self._texts.get((kind, index))
        if block is None:
            block = self._texts[kind, index] = _Block(kind, index)
            self._blocks.append(block)
        if text:
            block.pieces.append(self._counted(text))
        return block

    def _call(self, call_id: str, name: str, index: int) -> _Block:
        previous = self._calls.get(index)
        if previous is not None and not previous.closed:
            raise ModelError("a call began before the one in its place had ended", kind="provider_invalid_response")
        block = self._calls[index] = _Block("tool_call", index, call_id=call_id, name=name)
        self._blocks.append(block)
        return block

    def _open_call(self, index: int) -> _Block:
        block = self._calls.get(index)
        if block is None or block.closed:
            raise ModelError("arguments came for a call that has not begun", kind="provider_invalid_response")
        return block

    def _counted(self, text: str) -> str:
        if not isinstance(text, str):
            raise ModelError(f"a chunk holds {type(text).__name__} for text", kind="provider_invalid_response")
        self._size += _weight(text)
        if self._size > MAX_TEXT:
            raise ModelError(f"the response is longer than {MAX_TEXT} bytes", kind="provider_invalid_response")
        return text


def _weight(text: str) -> int:
    """Bytes that the text takes in a line."""
    try:
        return len(orjson.dumps(text)) - 2
    except TypeError:  # half a character, which is replaced when it is written
        return _WIDEST * len(text)


def _unique(call_id: str, taken: set[str]) -> str:
    """Results are told apart by the call's id, so two calls of one message may not share one."""
    candidate, n = call_id or "call", 1
    while candidate in taken:
        n += 1
        candidate = f"{call_id or 'call'}-{n}"
    taken.add(candidate)
    return candidate
