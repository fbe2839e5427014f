"""One JSON value a line over a stream, bounded both ways: who is too fast is made to wait, and nobody else is. Network.

The host and its clients use the same class. Nothing is read from the socket while ``QUEUE_FRAMES`` or ``QUEUE_BYTES``
wait to be received, and nobody can send while as many wait to be taken by the other side.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from ...journal.events import JsonObject
from ..errors import RuntimeFailure
from .protocol import MAX_FRAME, QUEUE_BYTES, QUEUE_FRAMES, FrameError, decode, encode

#: Seconds in which a connection that is closed may still write what waits.
CLOSING: Final = 1.0
#: Bytes that are read from the socket at once.
_PIECE: Final = 64 * 1024
_LF: Final = b"\n"


class ConnectionLost(RuntimeFailure):
    """The other side of a connection is gone, or this side has closed it."""


async def dial(path: str) -> "FramedTransport":
    """A connection to the Unix socket at ``path``. Raises OSError."""
    _, transport = await asyncio.get_running_loop().create_unix_connection(FramedTransport, path)
    return transport


class FramedTransport(asyncio.BufferedProtocol):
    """Given to a loop as the protocol of one connection; see ``dial``. One task receives, any number send."""

    def __init__(self, made: "Callable[[FramedTransport], None] | None" = None) -> None:
        """``made`` is called with it as soon as it is connected."""
        self._made = made
        self._wire: asyncio.Transport | None = None
        #: Set once the connection is gone.
        self.lost = asyncio.Event()
        # What came in: whole lines, then what is not cut into lines yet, searched for an LF up to a place.
        self._piece = memoryview(bytearray(_PIECE))
        self._lines: deque[bytes] = deque()
        self._held = 0
        self._rest = bytearray()
        self._searched = 0
        self._fault: FrameError | None = None
        #: The other side says no more.
        self._ended = False
        #: This side listens no more.
        self._deaf = False
        self._arrived = asyncio.Event()
        # What goes out: lines that wait for the socket, and senders that wait for a place among them.
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._written = 0
        self._senders: deque[tuple[bytes, asyncio.Future[None] | None]] = deque()
        self._closing = False
        self._blocked = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    # ------------------------------------------------------------ receiving

    async def receive(self) -> JsonObject | None:
        """The next frame. None: the other side has ended, or the connection is over. What came before is given first.

        Raises FrameError for a line that is no frame, is too long, or has no end; from then on for every call.
        """
        while not self._lines:
            if self._fault is not None:
                raise self._fault
            if self._ended or self._deaf:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        line = self._lines.popleft()
        self._held -= len(line)
        self._cut()
        try:
            return decode(line)
        except FrameError as error:
            self._lines.clear()
            self._held = 0
            self._fail(error)
            raise

    def get_buffer(self, sizehint: int) -> memoryview:
        # A rest without an LF never grows beyond what a frame may have, and all that waits never beyond its bound.
        # There is room whenever the socket is read.
        return self._piece[: min(_PIECE, MAX_FRAME - len(self._rest), QUEUE_BYTES - self._held - len(self._rest))]

    def buffer_updated(self, nbytes: int) -> None:
        if not self._deaf:
            self._rest += self._piece[:nbytes]
            self._cut()

    def eof_received(self) -> bool:
        self._ended = True
        self._cut()
        return True  # what waits to be sent is still sent

    def _cut(self) -> None:
        """Cuts the rest into lines as far as there is room for them; what then stays is part of a line, or waits."""
        if self._fault is None:
            while len(self._lines) < QUEUE_FRAMES and (end := self._rest.find(_LF, self._searched) + 1):
                self._lines.append(bytes(self._rest[:end]))
                self._held += end
                del self._rest[:end]
                self._searched = 0
            if len(self._lines) < QUEUE_FRAMES:
                self._searched = len(self._rest)
                if len(self._rest) >= MAX_FRAME:
                    self._fail(FrameError("frame_too_large", f"a line has more than the {MAX_FRAME} bytes of a frame"))
                elif self._ended and self._rest:
                    self._fail(FrameError("bad_frame", "the last line has no end: every frame is ended by LF"))
        self._arrived.set()
        self._regulate()

    def _fail(self, fault: FrameError) -> None:
        """Nothing behind it is looked at any more."""
        self._fault = fault
        self._rest.clear()
        self._searched = 0
        self._regulate()

    def _regulate(self) -> None:
        """Reads from the socket while there is room."""
        if self._wire is None or self._ended:
            return
        full = len(self._lines) >= QUEUE_FRAMES or self._held + len(self._rest) >= QUEUE_BYTES
        if full or self._fault is not None:
            self._wire.pause_reading()
        else:
            self._wire.resume_reading()

    # ------------------------------------------------------------ sending

    async def send(self, frame: JsonObject) -> None:
        """Returns once the frame has its place among those that wait. Frames go out in the order of the calls. What is
        cancelled was not sent; a cancellation that comes once the frame has its place is too late.

        Raises FrameError for what is no frame, and ConnectionLost.
        """
        line = encode(frame)
        if self._closing or self.lost.is_set():
            raise _gone()
        if not self._senders and self._has_room(len(line)):
            self._enter(line)
            self._pump()
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (line, place)
        self._senders.append(entry)
        try:
            await place
        except asyncio.CancelledError:
            if entry in self._senders:
                self._senders.remove(entry)
                self._pump()
                raise
            # It has its place, and whoever is told that it was not sent would send it again.
            if place.cancelled() or place.exception() is not None:
                raise

    def put(self, line: bytes) -> None:
        """Sends a line without waiting for room, behind all that was sent before. Nothing happens once it is lost."""
        if self._closing or self.lost.is_set():
            return
        if self._senders:
            self._senders.append((line, None))
        else:
            self._enter(line)
            self._pump()

    @property
    def has_room(self) -> bool:
        """Would any frame have its place at once? Then ``send`` does not wait."""
        return not self._senders and self._has_room(MAX_FRAME)

    @property
    def waiting(self) -> int:
        """Bytes that the other side has not taken yet."""
        return self._queued + self._unsent() + sum(len(line) for line, _ in self._senders)

    @property
    def progress(self) -> int:
        """Bytes that the other side has taken. Who watches for a stall compares two looks."""
        return self._written - self._unsent()

    async def blocked(self) -> None:
        """Returns as soon as the other side does not take what is there."""
        await self._blocked.wait()

    @property
    def is_blocked(self) -> bool:
        return self._blocked.is_set()

    async def drained(self) -> None:
        """Returns once nothing waits any more. Raises ConnectionLost."""
        await self._idle.wait()
        if self.lost.is_set():
            raise _gone()

    def pause_writing(self) -> None:
        self._blocked.set()

    def resume_writing(self) -> None:
        self._blocked.clear()
        self._pump()

    def _unsent(self) -> int:
        return 0 if self._wire is None else self._wire.get_write_buffer_size()

    def _has_room(self, size: int) -> bool:
        inside = self._unsent()
        frames = len(self._queue) + bool(inside)
        return frames < QUEUE_FRAMES and self._queued + inside + size <= QUEUE_BYTES

    def _enter(self, line: bytes) -> None:
        self._queue.append(line)
        self._queued += len(line)
        self._idle.clear()

    def _pump(self) -> None:
        """Hands lines to the socket, one at a time, and lets senders in where there is room."""
        wire = self._wire
        if wire is None:
            return
        while True:
            while self._senders and (self._senders[0][1] is None or self._has_room(len(self._senders[0][0]))):
                line, place = self._senders.popleft()
                if place is None or not place.done():
                    self._enter(line)
                if place is not None and not place.done():
                    place.set_result(None)
            if not self._queue or self._blocked.is_set() or wire.is_closing():
                break
            line = self._queue.popleft()
            self._queued -= len(line)
            self._written += len(line)
            wire.write(line)
        if not self._queue and not self._senders and not self._blocked.is_set():
            self._idle.set()

    # ------------------------------------------------------------ the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = cast(asyncio.Transport, transport)
        # The loop's own buffer holds the rest of one line at most: what waits is counted here.
        self._wire.set_write_buffer_limits(high=0)
        if self._made is not None:
            self._made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._ended:
            # Part of a line that is left is nobody's fault.
            self._ended = True
            self._rest.clear()
        self.lost.set()
        self._arrived.set()
        self._idle.set()
        senders, self._senders = self._senders, deque()
        for _, place in senders:
            if place is not None and not place.done():
                place.set_exception(_gone())

    def abort(self) -> None:
        """Ends it at once; what waits is not written."""
        self._closing = True
        self._listen_no_more()
        if self._wire is not None:
            self._wire.abort()

    async def close(self, seconds: float = CLOSING, *, linger: bool = False) -> None:
        """Writes what waits, for so long, and ends the connection. Nothing can be sent or received from then on.

        ``linger``: waits for the other side's end too, so that one that still writes can read what was sent last.
        """
        self._closing = True
        self._listen_no_more()
        if self._wire is None:
            return
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
                if linger and not self._wire.is_closing():
                    self._wire.write_eof()
                    await self._other_end()
        except TimeoutError:
            pass
        finally:
            self._wire.abort()
        await self.lost.wait()

    async def _other_end(self) -> None:
        while not self._ended:
            self._arrived.clear()
            await self._arrived.wait()

    def _listen_no_more(self) -> None:
        """What still comes in is thrown away as it comes."""
        self._deaf = True
        self._lines.clear()
        self._held = 0
        self._rest.clear()
        self._searched = 0
        self._fault = None
        self._regulate()
        self._arrived.set()


def _gone() -> ConnectionLost:
    return ConnectionLost("the connection is closed; connect again")
