"""Sends one subscription's frames over its connection, and cuts it off where nobody takes them."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ...journal.errors import JournalError
from ...journal.events import Event, JsonObject
from ..lifecycle import log
from ..tasks import seen
from .broadcast import Following
from .lane import Lane
from .protocol import FrameError
from .subscription import Subscription

if TYPE_CHECKING:
    from .connection import Connection

#: Seconds between two looks at whether anything was taken.
_LOOK: Final = 1.0


class Watcher:
    """``stall``: so many looks in which the other side takes nothing end the subscription, and nothing else."""

    def __init__(
        self,
        subscription: Subscription,
        lane: Lane,
        connection: "Connection",
        stall: int,
        forget: "Callable[[Watcher], None]",
    ) -> None:
        self.subscription = subscription
        self.connection = connection
        self._lane = lane
        self._stall = stall
        self._forget = forget
        self._sending: asyncio.Task[None] | None = None
        self._over = False

    def begin(self, missed: list[Event], following: Following | None, answered: asyncio.Event) -> None:
        """``missed``, and those behind them that ``following`` gives, came before its snapshot, and are sent first.
        Nothing is sent before ``answered``.
        """
        sending = self._send(missed, following, answered)
        self._sending = asyncio.get_running_loop().create_task(sending, name="send a subscription")
        self._sending.add_done_callback(seen)

    def cancel(self) -> None:
        """Ends it without a word."""
        if not self._over:
            self._over = True
            self._lane.close(self.subscription)
            self._forget(self)
            if self._sending is not None:
                self._sending.cancel()

    async def _send(self, missed: list[Event], following: Following | None, answered: asyncio.Event) -> None:
        session_id = self.subscription.session_id
        try:
            await answered.wait()
            while missed:
                for event in missed:
                    if not await self._sent(self.subscription.told(event)):
                        return
                missed = [] if following is None else await following()
            following = None
            while True:
                await self.subscription.ready()
                frame = self.subscription.take()
                if frame is None and self.subscription.failed is None:
                    continue
                if frame is None or not await self._sent(frame):
                    return
                if frame["type"] == "closed":
                    return
        except FrameError as error:
            log.error("session %s cannot be watched: %s", session_id, error)
            self.subscription.unsent()
            said = f"what there is to show of session {session_id} fits into no frame; read its history instead"
            self.subscription.cut("session_unavailable", said)
        except JournalError as error:
            said = f"what came since in session {session_id} cannot be read: {error}"
            self.subscription.cut("session_unavailable", said)
        finally:
            if self.subscription.failed is not None and not self.connection.lost.is_set():
                self.connection.put(self.subscription.closed())
            self.cancel()

    async def _sent(self, frame: JsonObject) -> bool:
        """Is it on its way? False: it was cut off meanwhile, and the frame was not sent."""
        if self.connection.has_room:
            await self.connection.send(frame)
            # Whoever else has something to do comes first.
            await asyncio.sleep(0)
            return True
        sending = asyncio.ensure_future(self.connection.send(frame))
        sending.add_done_callback(seen)
        progress, looks = self.connection.progress, 0
        try:
            while not sending.done():
                await asyncio.wait({sending}, timeout=_LOOK)
                if self.connection.progress != progress:
                    progress, looks = self.connection.progress, 0
                elif not sending.done():
                    looks += 1
                if looks >= self._stall:
                    self.subscription.cut(
                        "slow_consumer", "what this subscription is sent was not taken for too long; open it again"
                    )
                if self.subscription.failed is not None and not sending.done():
                    sending.cancel()
                    await asyncio.wait({sending})
                    if sending.cancelled():
                        self.subscription.unsent()
                        return False
            sending.result()
            return True
        except asyncio.CancelledError:
            sending.cancel()
            raise
