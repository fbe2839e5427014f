"""What a model was saying when it was cut off, out of the pieces that DeepSeek Harness logs as they come. No I/O."""

from io import StringIO
from typing import Final

import attrs

from ..events import Blocks, JsonObject
from .records import Place
from .values import count, mapping, sequence, text

#: Rows that hold the pieces of one block; the key of the pieces.
ROWS: Final = {"text-chunks": "texts", "reasoning-chunks": "texts", "tool-call-chunks": "args"}
KINDS: Final = {
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
#: Characters that are held of one response, and blocks; lines that are not looked at before they are needed, and bytes.
_MOST: Final = 8 << 20
_BLOCKS: Final = 10_000
_WAITING: Final = 1_000
_WAITING_BYTES: Final = 1 << 20


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

    Most lines of a log are pieces, and hardly ever is one of them needed: they are put together when they are asked
    for.
    """

    place: Place | None = None
    time: int | None = None
    usage: JsonObject | None = None
    finish: str | None = None
    failure: str | None = None
    #: Does a note have the usage already?
    told: bool = False
    #: Was there more than is held?
    cut: bool = False
    _blocks: dict[int, _Block] = attrs.Factory(dict)
    _held: int = 0
    _waiting: list[tuple[str, JsonObject]] = attrs.Factory(list)
    _bytes: int = 0

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
            self.finish, failure = text(reason.get("kind")) or "stop", failure_of(reason.get("failure"))
            if failure is not None or self.finish in ("error", "aborted"):
                self.failure = failure or self.finish
        elif isinstance(kind, str):
            self.row(kind, chunk)

    def row(self, kind: str, data: JsonObject) -> None:
        self._waiting.append((kind, data))
        if len(self._waiting) >= _WAITING or self._bytes >= _WAITING_BYTES:
            self._put_together()

    def stands(self, place: Place, time: int | None) -> None:
        """A line of it stands there."""
        self.place, self.time = self.place or place, time
        self._bytes += place.length

    def _put_together(self) -> None:
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        for kind, data in waiting:
            if kind == "block-end":
                whole = mapping(data.get("block"))
                block = self._block(data, whole.get("type"))
                if block is not None:
                    self._held -= block.words.tell()
                    block.words = StringIO()
                    self._add(block, whole, ("arguments" if block.kind == "tool_call" else "text",))
            elif (block := self._block(data, kind)) is not None:
                self._add(block, data, (ROWS[kind],) if kind in ROWS else ("text", "argumentsDelta"))

    def _block(self, chunk: JsonObject, kind: object) -> _Block | None:
        index = count(chunk.get("index"))
        if index is None or not isinstance(kind, str) or kind not in KINDS:
            return None
        block = self._blocks.get(index)
        if block is None and len(self._blocks) >= _BLOCKS:
            self.cut = True
            return None
        if block is None or block.kind != KINDS[kind]:
            block = self._blocks[index] = _Block(KINDS[kind])
        return block

    def _add(self, block: _Block, data: JsonObject, keys: tuple[str, ...]) -> None:
        block.call_id = text(data.get("id")) or block.call_id
        block.name = text(data.get("name")) or block.name
        for key in keys:
            value = data.get(key)
            for piece in value if isinstance(value, list) else (value,):
                if not isinstance(piece, str):
                    continue
                if self._held >= _MOST:
                    self.cut = True
                    return
                block.words.write(piece)
                self._held += len(piece)

    def said(self) -> Blocks:
        """Texts and thoughts so far, those without a word left out."""
        self._put_together()
        said = [
            {"kind": block.kind, "text": block.words.getvalue()}
            for _, block in sorted(self._blocks.items())
            if block.kind != "tool_call"
        ]
        return [block for block in said if block["text"].strip()]

    def calls(self) -> list[tuple[str, str]]:
        """Calls so far: their ids, and what was there of them, as text."""
        self._put_together()
        return [
            (block.call_id, f"{block.name}({block.words.getvalue()}")
            for _, block in sorted(self._blocks.items())
            if block.kind == "tool_call"
        ]


def failure_of(value: object) -> str | None:
    """The provider's word for what went wrong."""
    failure = mapping(value)
    parts = [part for key in ("code", "message") if (part := text(failure.get(key))) is not None]
    return ": ".join(parts) or None
