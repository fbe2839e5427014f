"""A client's subscription: frames in their order, checked, waiting in bounds until they are asked for. No I/O."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal

import attrs
import orjson

from ...journal.events import JsonObject
from ..errors import RuntimeFailure

#: Frames, and bytes of them, that wait for a reader before the subscription is given up for its slowness.
MAX_FRAMES: Final = 1024
MAX_BYTES: Final = 8 * 1024 * 1024

Type = Literal["opened", "projection", "delta", "event"]


class SubscriptionClosed(RuntimeFailure):
    """A subscription has ended, and not by its client. ``reason`` is one of the host's (``session_removed``,
    ``host_draining``, ``session_unavailable``, ``slow_consumer``) or the client's own: ``connection_closed``,
    ``sequence_gap``, and ``slow_consumer`` for a reader that was too slow here. Subscribe again for a fresh snapshot.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@attrs.frozen
class Frame:
    """What a subscription tells; of the last three what its type names is there. docs/protocol.md has their keys.

    ``opened`` comes from ``follow`` alone, with the snapshot of a subscription that was opened, and number 0.
    """

    sequence: int
    type: Type
    snapshot: JsonObject | None = None
    delta: JsonObject | None = None
    event: JsonObject | None = None


class Subscription:
    """An iterator over the frames of one session. It ends after ``close``; else it raises SubscriptionClosed.

    What came before the end is given first. One task reads.
    """

    def __init__(self, session_id: str, opened: JsonObject, leave: Callable[[], Awaitable[None]]) -> None:
        """``opened`` is the answer of the host; ``leave`` tells it that nobody reads any more."""
        self.session_id = session_id
        self.subscription_id: str = opened["subscription_id"]
        self.host_epoch: str = opened["host_epoch"]
        self.snapshot: JsonObject = opened["snapshot"]
        self._next: int = opened["sequence"]
        self._leave = leave
        self._waiting: deque[tuple[Frame, int]] = deque()
        self._bytes = 0
        self._end: SubscriptionClosed | None = None
        self._closed = False
        self._arrived = asyncio.Event()

    def take(self, frame: JsonObject) -> bool:
        """A frame of the connection. False: it was the last, and the host is to be told unless it said so itself."""
        if frame["host_epoch"] != self.host_epoch or frame["sequence"] != self._next:
            self.end(
                "sequence_gap",
                f"frame {frame['sequence']} of session {self.session_id} came where {self._next} was due; "
                "subscribe again for what was missed",
            )
            return False
        self._next += 1
        if frame["type"] == "closed":
            self.end(frame["reason"], frame["message"])
            return False
        size = len(orjson.dumps(frame))
        if len(self._waiting) >= MAX_FRAMES or (self._waiting and self._bytes + size > MAX_BYTES):
            self.end(
                "slow_consumer",
                f"the frames of session {self.session_id} were not read fast enough in this process; subscribe again",
            )
            return False
        self._waiting.append((_frame(frame), size))
        self._bytes += size
        self._arrived.set()
        return True

    def end(self, reason: str, message: str) -> None:
        """There will be no more. Called once."""
        self._end = SubscriptionClosed(reason, message)
        self._arrived.set()

    async def close(self) -> None:
        """Ends the iteration, and the subscription at the host. Raises nothing; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._waiting.clear()
        self._arrived.set()
        if self._end is None:
            await self._leave()

    def __aiter__(self) -> "Subscription":
        return self

    async def __anext__(self) -> Frame:
        while not self._waiting:
            if self._closed:
                raise StopAsyncIteration
            if self._end is not None:
                raise SubscriptionClosed(self._end.reason, str(self._end))
            self._arrived.clear()
            await self._arrived.wait()
        frame, size = self._waiting.popleft()
        self._bytes -= size
        return frame

    async def __aenter__(self) -> "Subscription":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _frame(frame: JsonObject) -> Frame:
    held: dict[str, Any] = {key: frame.get(key) for key in ("snapshot", "delta", "event")}
    return Frame(frame["sequence"], frame["type"], **held)
