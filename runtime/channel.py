"""A turn's steps as an asynchronous iterator: what they say waits here until it is asked for. No I/O.

Asking for the next event says that those given out before are durable where they have to be. So whoever waits in
``barrier`` waits until its events were given out and one more was asked for, and all who wait at the same time share a
sync.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from .session_events import DELTAS, SessionEvent
from .tasks import all_done

#: Seconds after which something is given out that nobody waits for.
PATIENCE: Final = 0.002


class Channel:
    """A ``Sink``, and the iterator that a backend's ``send`` returns. ``work(channel)`` runs from the first
    ``__anext__`` on; the iterator ends when it has ended, and raises what it raised.

    ``now`` gives Unix milliseconds.
    """

    def __init__(self, work: "Callable[[Channel], Awaitable[None]]", *, turn_id: str, now: Callable[[], int]) -> None:
        self._begin = work
        self._turn_id = turn_id
        self._now = now
        self._work: asyncio.Future[None] | None = None
        self._closed = False
        # Events are counted as they are emitted; the first of them stand durably, were given out, may be given out.
        self._emitted = self._released = self._given = self._acknowledged = 0
        self._events: deque[SessionEvent] = deque()
        self._changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    # ------------------------------------------------------------ for the steps

    def emit(self, kind: str, **data: Any) -> None:
        """One event of the turn. After ``aclose`` nobody hears it."""
        if self._closed:
            return
        self._emitted += 1
        self._events.append(SessionEvent(kind, f"{self._turn_id}:{self._emitted}", self._turn_id, self._now(), data))
        if kind in DELTAS:
            self._release()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PATIENCE, self._release)

    async def barrier(self) -> None:
        """Waits until everything emitted so far was taken, and is durable where it has to be (``BARRIERS``).

        From ``aclose`` on nobody takes anything: then it is cancelled.
        """
        if self._closed:
            raise asyncio.CancelledError
        if self._acknowledged < self._emitted:
            self._release()
            durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((self._emitted, durable))
            await durable

    def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._released = self._emitted
        self._changed.set()

    # ------------------------------------------------------------ for whoever iterates

    def __aiter__(self) -> "Channel":
        return self

    async def __anext__(self) -> SessionEvent:
        """The next event. Cancelling the wait loses none."""
        self._acknowledge()
        if self._closed:
            raise StopAsyncIteration
        if self._work is None:
            self._work = asyncio.ensure_future(self._begin(self))
            self._work.add_done_callback(lambda work: self._release())
        while self._given == self._released:
            if self._work.done():
                if self._given < self._emitted:
                    # It ended a moment ago; what it said last is still to be given out.
                    self._release()
                    break
                if not self._work.cancelled():
                    self._work.result()
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
            if self._closed:
                raise StopAsyncIteration
        self._given += 1
        return self._events.popleft()

    def ready(self) -> Sequence[SessionEvent]:
        """Further events that are there already; they count as given out with the last one."""
        events = [self._events.popleft() for _ in range(self._released - self._given)]
        self._given = self._released
        return events

    async def aclose(self) -> None:
        """Cancels the work and waits for its end, also where the wait is cancelled. Nothing is given out any more."""
        self._closed = True
        self._release()
        while self._waiting:
            self._waiting.popleft()[1].cancel()
        if self._work is not None:
            self._work.cancel()
            if await all_done([self._work]):
                raise asyncio.CancelledError

    def _acknowledge(self) -> None:
        self._acknowledged = self._given
        while self._waiting and self._waiting[0][0] <= self._acknowledged:
            durable = self._waiting.popleft()[1]
            if not durable.done():
                durable.set_result(None)
