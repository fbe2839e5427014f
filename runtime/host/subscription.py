"""What one subscriber has not been sent yet, and the frames that it becomes: numbered, contiguous, exact. No I/O.

Text is not copied: an entry names a stretch of a stream, so that a reader who lags costs others nothing, and what
came meanwhile goes out in fewer, longer frames.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Final

import attrs

from ...journal.events import Event, JsonObject
from .protocol import MAX_EVENT
from .texts import TextStream

#: Entries, and bytes of events and projections among them, that wait for a subscriber who does not read. Then it is cut
#: off.
MOST_ENTRIES: Final = 4096
MOST_BYTES: Final = 8 * 1024 * 1024
#: What a block of live text adds nothing to: it is told by deltas, or is nobody's business.
UNTOLD: Final = frozenset({"session/header", "assistant/delta", "request/header", "run/composition"})


@attrs.define
class _Text:
    stream: TextStream
    start: int
    end: int
    reset: bool = False
    complete: bool = False


@attrs.frozen
class _Told:
    """A frame but for its number."""

    body: JsonObject
    size: int = 0


def event_body(event: Event) -> JsonObject:
    """The frame of an event; a long one comes without its data."""
    said: JsonObject = {"seq": event.seq, "ts": event.ts, "type": event.type, "data": event.data}
    if event.length > MAX_EVENT:
        said |= {"data": None, "bytes": event.length}
    return {"type": "event", "event": said}


class Subscription:
    """``position``: events up to this number are in the snapshot that it began with. ``revision``: of the newest
    projection. ``failed``: why it was cut off.
    """

    def __init__(self, subscription_id: str, session_id: str, host_epoch: str) -> None:
        self.subscription_id = subscription_id
        self.session_id = session_id
        self.position = -1
        self.revision = 0
        self.failed: tuple[str, str] | None = None
        self._host_epoch = host_epoch
        self._sequence = 0
        self._entries: deque[_Text | _Told] = deque()
        self._bytes = 0
        self._news = asyncio.Event()
        #: Where the newest projection stands that nobody was sent yet, if it may be replaced.
        self._projection: _Told | None = None

    # ------------------------------------------------------------ what comes

    def text(self, stream: TextStream, start: int, end: int, *, reset: bool = False, complete: bool = False) -> None:
        last = self._entries[-1] if self._entries else None
        follows = isinstance(last, _Text) and last.stream is stream and last.end == start and not last.complete
        if follows and not reset:
            assert isinstance(last, _Text)
            last.end, last.complete = end, complete
        else:
            self._add(_Text(stream, start, end, reset, complete))
        self._news.set()

    def event(self, event: Event) -> None:
        body = event_body(event)
        self._add(_Told(body, 0 if body["event"]["data"] is None else event.length))

    def projection(self, snapshot: JsonObject, size: int) -> None:
        """The newest takes the place of one that waits at the end, if that was of the same standing of the same turn:
        how a turn came to stand is always told before the next one. ``size``: its bytes of JSON.
        """
        self.revision = snapshot["projection_revision"]
        told = _Told({"type": "projection", "snapshot": snapshot}, size)
        waits = self._projection
        if waits is not None and self._entries and self._entries[-1] is waits and _standing(waits) == _standing(told):
            self._entries.pop()
            self._bytes -= waits.size
        self._add(told)
        self._projection = told

    def cut(self, reason: str, message: str) -> None:
        """It ends behind what was sent; what waits is dropped."""
        if self.failed is None:
            self.failed = reason, message
            self._entries.clear()
            self._news.set()

    def finish(self, reason: str, message: str) -> None:
        """It ends behind what waits."""
        if self.failed is None:
            self._add(_Told({"type": "closed", "reason": reason, "message": message}))

    def _add(self, entry: _Text | _Told) -> None:
        if self.failed is not None:
            return
        self._entries.append(entry)
        if isinstance(entry, _Told):
            self._bytes += entry.size
        if len(self._entries) > MOST_ENTRIES or self._bytes > MOST_BYTES:
            self.cut("slow_consumer", "what waited for this subscription was more than a host keeps; open it again")
        self._news.set()

    # ------------------------------------------------------------ what goes

    async def ready(self) -> None:
        """Waits until there is a frame, or it was cut off."""
        while not self._entries and self.failed is None:
            self._news.clear()
            await self._news.wait()

    def take(self) -> JsonObject | None:
        """The next frame; None where nothing waits."""
        if self.failed is not None or not self._entries:
            return None
        entry = self._entries[0]
        if isinstance(entry, _Told):
            self._entries.popleft()
            self._bytes -= entry.size
            return self.number(entry.body)
        piece = entry.stream.piece(entry.start, entry.end)
        delta: JsonObject = {**entry.stream.identity(), "offset": entry.start, "text": piece}
        if entry.reset:
            delta["reset"] = True
        entry.reset = False
        entry.start += len(piece)
        if entry.start >= entry.end:
            if entry.complete:
                delta["complete"] = True
            self._entries.popleft()
        return self.number({"type": "delta", "delta": delta})

    def number(self, body: JsonObject) -> JsonObject:
        self._sequence += 1
        head: JsonObject = {"kind": "frame", "subscription_id": self.subscription_id, "host_epoch": self._host_epoch}
        return {**head, "sequence": self._sequence, **body}

    def told(self, event: Event) -> JsonObject:
        """The frame of an event that came before what waits."""
        return self.number(event_body(event))

    def unsent(self) -> None:
        """The newest frame was not sent, and its number is free."""
        self._sequence -= 1

    def closed(self) -> JsonObject:
        """The last frame of one that was cut off."""
        assert self.failed is not None
        reason, message = self.failed
        return self.number({"type": "closed", "reason": reason, "message": message})


def final_texts(event: Event) -> Iterator[tuple[str, int, str]]:
    """The text of each block of an assistant/message: its kind, its place, the text."""
    content = event.data.get("content")
    for index, block in enumerate(content if isinstance(content, list) else ()):
        if isinstance(block, dict) and block.get("kind") in ("text", "thinking") and isinstance(block.get("text"), str):
            yield block["kind"], index, block["text"]


def _standing(told: _Told) -> tuple[str, str] | None:
    root = told.body["snapshot"]["root_turn"]
    return None if root is None else (root["turn_id"], root["status"])
