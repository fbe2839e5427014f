"""What a model was saying when it was cut off, out of the pieces that DeepSeek Harness logs as they come. No I/O."""

from io import StringIO
from typing import Final

import attrs

from ..events import Blocks, JsonObject
from .records import Place
from .values import count, mapping, sequence, text

#: Rows that hold the pieces of one block; the key of the pieces.
ROWS: Final = {"text-chunks": "texts", "reasoning-chunks": "texts", "tool-call-chunks": "args"}
_KINDS: Final = {
    "text": "text",
    "text-delta": "text",
    "text-chunks": "text",
    "reasoning": "thinking",
    "reasoning-delta": "thinking",
    "reasoning-chunks": "thinking",
    "tool-call": "tool_call",
    "tool-call-delta": "tool_call",
    "tool-call-chunks": "tool_call",
}
#: Characters that are held of one response, and blocks.
_MOST: Final = 8 << 20
_BLOCKS: Final = 10_000


@attrs.define(eq=False)
class _Block:
    kind: str
    #: A list of its many pieces would be many times their size.
    words: StringIO = attrs.Factory(StringIO)
    call_id: str = ""
    name: str = ""


@attrs.define(eq=False)
class Stream:
    """The pieces of one attempt; ``place`` is that of the first. ``finish``: the word for how it ended, if it did;
    ``failure``: why it failed.
    """

    place: Place | None = None
    time: int | None = None
    usage: JsonObject | None = None
    finish: str | None = None
    failure: str | None = None
    blocks: dict[int, _Block] = attrs.Factory(dict)
    held: int = 0

    def attempt(self, items: object) -> None:
        """The pieces as a later format has them, all in one list."""
        for item in map(mapping, sequence(items)):
            type_ = text(item.get("type"))
            if type_ is not None and type_ in ROWS:
                self.row(type_, mapping(item.get("data")) or item)
            else:
                self.chunk(mapping(item.get("chunk")) or item)

    def chunk(self, chunk: JsonObject) -> None:
        kind = chunk.get("type")
        if kind == "usage":
            self.usage = mapping(chunk.get("usage"))
        elif kind == "finish":
            reason = mapping(chunk.get("reason"))
            self.finish = text(reason.get("kind")) or "stop"
            if self.finish in ("error", "aborted"):
                self.failure = failure_of(reason.get("failure")) or self.finish
        elif kind == "block-end":
            whole = mapping(chunk.get("block"))
            block = self._block(chunk, whole.get("type"))
            if block is not None:
                self.held -= block.words.tell()
                block.words = StringIO()
                self._add(block, whole.get("arguments" if block.kind == "tool_call" else "text"))
                self._name(block, whole)
        elif isinstance(kind, str) and kind in _KINDS:
            block = self._block(chunk, kind)
            if block is not None:
                self._add(block, chunk.get("argumentsDelta" if block.kind == "tool_call" else "text"))
                self._name(block, chunk)

    def row(self, type_: str, data: JsonObject) -> None:
        block = self._block(data, type_)
        if block is not None:
            self._name(block, data)
            for piece in sequence(data.get(ROWS[type_])):
                self._add(block, piece)

    def _block(self, chunk: JsonObject, kind: object) -> _Block | None:
        index = count(chunk.get("index"))
        if index is None or not isinstance(kind, str) or kind not in _KINDS:
            return None
        block = self.blocks.get(index)
        if block is None and len(self.blocks) >= _BLOCKS:
            return None
        if block is None or block.kind != _KINDS[kind]:
            block = self.blocks[index] = _Block(_KINDS[kind])
        return block

    def _add(self, block: _Block, piece: object) -> None:
        if isinstance(piece, str) and self.held < _MOST:
            block.words.write(piece)
            self.held += len(piece)

    def _name(self, block: _Block, said: JsonObject) -> None:
        block.call_id = text(said.get("id")) or block.call_id
        block.name = text(said.get("name")) or block.name

    def said(self) -> Blocks:
        """Texts and thoughts so far, those without a word left out."""
        said = [
            {"kind": block.kind, "text": block.words.getvalue()}
            for _, block in sorted(self.blocks.items())
            if block.kind != "tool_call"
        ]
        return [block for block in said if block["text"].strip()]

    def calls(self) -> list[tuple[str, str]]:
        """Calls so far: their ids, and what was there of them, as text."""
        return [
            (block.call_id, f"{block.name}({block.words.getvalue()}")
            for _, block in sorted(self.blocks.items())
            if block.kind == "tool_call"
        ]


def failure_of(value: object) -> str | None:
    """The provider's word for what went wrong."""
    failure = mapping(value)
    parts = [part for key in ("code", "message") if (part := text(failure.get(key))) is not None]
    return ": ".join(parts) or None
