"""What a tool gave back → what the journal's line holds: long texts whole in a blob, a part of them in the line."""

import asyncio
import io
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import BinaryIO

from ..journal.codec import encodable
from ..journal.errors import JournalError
from ..journal.events import Blocks, JsonObject

Store = Callable[[BinaryIO], Awaitable[str]]


def store_in(session_dir: Path) -> Store:
    """Stores streams, from their start, as blobs of a session. What it returns raises JournalWriteError, OSError."""
    from ..journal.blobs import put_file

    async def store(stream: BinaryIO) -> str:
        return await asyncio.to_thread(put_file, session_dir, stream)

    return store


async def shorten(content: Blocks, limit: int, store: Store) -> Blocks:
    """``content`` with texts of more than ``limit`` bytes replaced by their beginning and end, the whole in a blob.

    Where the whole cannot be stored the part stands alone and says so: the outcome is worth more than the text.
    """
    return [await _shorten(block, limit, store) for block in content]


def cut(content: Blocks, limit: int, why: str) -> Blocks:
    """The same without a blob, with the reason."""
    return [_cut(block, shown, why) if (shown := _part(block, limit)) is not None else block for block in content]


async def _shorten(block: JsonObject, limit: int, store: Store) -> JsonObject:
    shown = _part(block, limit)
    if shown is None:
        return block
    data = encodable(block["text"]).encode()
    try:
        return {**_marked(block), "text": shown, "ref": await store(io.BytesIO(data)), "bytes": len(data)}
    except (OSError, JournalError) as error:
        return _cut(block, shown, str(error))


def _cut(block: JsonObject, shown: str, why: str) -> JsonObject:
    return {**_marked(block), "text": f"{shown}\n[the whole text could not be stored: {why}]"}


def _part(block: JsonObject, limit: int) -> str | None:
    """The beginning and the end of a block's text, or None where the line can hold the block as it is."""
    text = block.get("text")
    if not isinstance(text, str) or len(text) * 4 <= limit or "ref" in block:
        return None
    data = encodable(text).encode()
    if len(data) <= limit:
        return None
    half = limit // 2
    head, tail = data[:half].decode("utf-8", "ignore"), data[-half:].decode("utf-8", "ignore")
    return f"{head}\n[… {len(data) - 2 * half} bytes left out …]\n{tail}"


def _marked(block: JsonObject) -> JsonObject:
    """As the journal marks a block whose text is not Unicode; of the part that is shown it could not tell."""
    return block if encodable(block["text"]) == block["text"] else {**block, "lossy": True}
