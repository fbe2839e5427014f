"""What a consumer has not read yet, bounded: neither journal nor backend ever waits for who reads. No I/O."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

import attrs

from ..errors import RuntimeFailure
from ..session_events import DELTAS, SessionEvent

#: Is told each event when it happens. It must not raise.
SessionListener = Callable[[SessionEvent], None]

#: Events kept for a consumer that does not read.
LIMIT: Final = 1_024
#: Characters of live text kept in one piece, what comes is then put into the next; and characters kept in all.
MERGED: Final = 64 * 1024
MOST: Final = 4 * 1024 * 1024
#: What ends a turn is never dropped.
_KEPT: Final = frozenset({"complete", "error", "abort"})


@attrs.define
class _Waiting:
    """An event that waits; of a delta the pieces that came since."""

    event: SessionEvent
    more: list[str] = attrs.Factory(list)
    size: int = 0

    def whole(self) -> SessionEvent:
        if not self.more:
            return self.event
        data = {**self.event.data, "text": "".join([self.event.data["text"], *self.more])}
        return attrs.evolve(self.event, data=data)


class Delivery:
    """A queue with one reader. Neighbouring deltas of one text merge; when it is full deltas are dropped, oldest first,
    then other events; the turn's end stays. ``dropped`` counts. With a ``listener`` nothing waits: it is told at once.
    """

    def __init__(self, limit: int = LIMIT, *, listener: SessionListener | None = None) -> None:
        self._limit = limit
        self._listener = listener
        self._waiting: deque[_Waiting] = deque()
        self._size = 0
        self._reader: asyncio.Future[None] | None = None
        self._error: BaseException | None = None
        self._closed = False
        self.dropped = 0

    def put(self, event: SessionEvent) -> None:
        if self._closed:
            return
        if self._listener is not None:
            self._listener(event)
            return
        size = _size(event.data)
        while (len(self._waiting) >= self._limit or self._size + size > MOST) and self._drop():
            pass
        if not self._merged(event, size):
            self._waiting.append(_Waiting(event, size=size))
        self._size += size
        self._wake()

    def close(self, error: BaseException | None = None) -> None:
        """Nothing more comes. The reader gets what waits, then ``error`` once, then the end."""
        if not self._closed:
            self._closed, self._error = True, error
            self._wake()

    async def get(self) -> SessionEvent | None:
        """The next event; None at the end. Raises the error that it was closed with, once. Cancelling loses nothing."""
        while not self._waiting:
            if self._closed:
                if (error := self.take_error()) is not None:
                    raise error
                return None
            if self._reader is not None:
                raise RuntimeFailure(
                    "two wait for the next event of one turn at the same time; let one read, and share what it gets"
                )
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        waiting = self._waiting.popleft()
        self._size -= waiting.size
        return waiting.whole()

    def take_error(self) -> BaseException | None:
        """The error that nobody was told of yet; it is told by this."""
        error, self._error = self._error, None
        return error

    def _merged(self, event: SessionEvent, size: int) -> bool:
        if event.kind not in DELTAS or not self._waiting:
            return False
        last = self._waiting[-1]
        if (
            last.event.kind != event.kind
            or last.event.data["message_id"] != event.data["message_id"]
            or last.event.data.get("index") != event.data.get("index")
            or last.size >= MERGED
        ):
            return False
        last.more.append(event.data["text"])
        last.size += size
        return True

    def _drop(self) -> bool:
        """Makes room, if there is anything that may be dropped."""
        droppable = (
            next((i for i, waiting in enumerate(self._waiting) if waiting.event.kind in DELTAS), None),
            next((i for i, waiting in enumerate(self._waiting) if waiting.event.kind not in _KEPT), None),
        )
        index = next((i for i in droppable if i is not None), None)
        if index is None:
            return False
        self._size -= self._waiting[index].size
        del self._waiting[index]
        self.dropped += 1
        return True

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


def _size(value: object) -> int:
    """Characters that a value holds."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    return sum(map(_size, value)) if isinstance(value, list) else 0
