"""What everybody who watches a session is told: live text at once, events and projections once they are durable.

One for a session at a time; the numbers of its projections go on over all of them. No I/O of its own.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from itertools import islice
from typing import Any, Final

import orjson

from ...journal.codec import encodable
from ...journal.errors import JournalError
from ...journal.events import Event, JsonObject
from ..journals import OpenSession
from ..session_events import DELTAS, SessionEvent
from .subscription import UNTOLD, Subscription, final_texts
from .texts import Key, TextStream

Spawn = Callable[[Coroutine[Any, Any, Any], str], "asyncio.Task[Any]"]
#: Gives, each time, the next of some events, oldest first, and none at the end. Raises JournalError.
Following = Callable[[], Awaitable[list[Event]]]
#: What is to be told of a session's file: behind the first number, up to the second.
Between = Callable[[int, int], Following]

#: Seconds in which others may sync what is to be told, before it is synced for that alone.
_GATHER: Final = 0.003
#: Streams that a snapshot lists: it has to fit into a frame.
_MOST_STREAMS: Final = 32


class Broadcast:
    """``opened`` gives the session as it is open now, ``content`` its snapshot but for its numbers and streams;
    ``between`` reads events that were written when nobody watched; ``number`` gives each projection its own, the next.
    """

    def __init__(
        self,
        *,
        opened: Callable[[], OpenSession | None],
        content: Callable[[OpenSession], JsonObject],
        between: Between,
        number: Callable[[], int],
        spawn: Spawn,
    ) -> None:
        self._opened = opened
        self._content = content
        self._between = between
        self._number = number
        self._spawn = spawn
        self._subscriptions: list[Subscription] = []
        self._streams: dict[Key, TextStream] = {}
        self._revision = 0
        self._newest: JsonObject | None = None
        self._session: OpenSession | None = None
        #: Events that are not told yet, and the number of the newest that was.
        self._pending: deque[Event] = deque()
        self._told = -1
        #: Its journal was opened again since something was told: what came in between is read from the file.
        self._reopened = False
        #: Runs that are over, and may have left text that no message holds.
        self._over: set[str] = set()
        self._dirty = False
        self._publishing: asyncio.Task[None] | None = None

    @property
    def watched(self) -> bool:
        return bool(self._subscriptions)

    # ------------------------------------------------------------ who watches

    def attach(self, subscription: Subscription, session: OpenSession) -> JsonObject:
        """The snapshot that it begins with; everything behind it comes as frames. Flush before anybody is shown it."""
        self._take_up(session)
        subscription.position = session.journal.next_seq - 1
        if not self._subscriptions:
            self._told = subscription.position
        snapshot = self._numbered(self._content(session), subscription.position)
        subscription.revision = self._revision
        for stream in self._streams.values():
            subscription.text(stream, 0, stream.length)
        self._subscriptions.append(subscription)
        return snapshot

    def detach(self, subscription: Subscription) -> None:
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)

    def finish(self, reason: str, message: str) -> None:
        """All subscriptions end behind what waits for them."""
        for subscription in self._subscriptions:
            subscription.finish(reason, message)
        self._subscriptions.clear()

    # ------------------------------------------------------------ what happens

    def heard(self, run_id: str, event: SessionEvent) -> None:
        """What a turn tells: of that only the live text counts, all else is told as the journal has it."""
        if event.kind not in DELTAS:
            return
        data, kind = event.data, "text" if event.kind == "text_delta" else "thinking"
        key: Key = (kind, data["message_id"], data.get("index") or 0)  # type: ignore[assignment]
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = TextStream(key, event.turn_id, run_id)
        start = stream.length
        stream.append(encodable(data["text"]))
        for subscription in self._subscriptions:
            subscription.text(stream, start, stream.length)

    def observed(self, session: OpenSession, event: Event) -> None:
        """An event was appended; it may not be on the disk yet, and what was appended before it may be lost."""
        self._take_up(session)
        if not self._subscriptions:
            if event.type == "assistant/message":
                for key in [key for key in self._streams if key[1] == event.data["message_id"]]:
                    del self._streams[key]
            return
        while self._pending and self._pending[-1].seq >= event.seq:
            self._pending.pop()
        if event.type not in UNTOLD:
            self._pending.append(event)
            self.changed()

    def changed(self) -> None:
        """Something is to be told, perhaps."""
        self._dirty = bool(self._subscriptions)
        if self._dirty and self._publishing is None:
            self._publishing = self._spawn(self._publish(), "publish")

    async def settled(self) -> None:
        """Waits until what has happened so far was told, or cannot be."""
        self.changed()
        while self._publishing is not None:
            await asyncio.wait({self._publishing})

    def over(self, run_id: str) -> None:
        """A run is over: text of it that no message holds is void, once all that it wrote is told."""
        self._over.add(run_id)
        if self._subscriptions:
            self.changed()
        else:
            self._void()

    # ------------------------------------------------------------ telling

    async def _publish(self) -> None:
        try:
            while self._dirty:
                self._dirty = False
                await self._publish_once()
        finally:
            self._publishing = None

    async def _publish_once(self) -> None:
        session = self._opened()
        if session is None:
            return  # what it held is told when it is opened again
        self._take_up(session)
        upto = session.journal.next_seq - 1
        content = self._content(session)
        if session.journal.durable_seq < upto and not await self._durable(session, upto):
            return
        if self._session is not session:
            self._dirty = True
            return
        events = []
        while self._pending and self._pending[0].seq <= upto:
            events.append(self._pending.popleft())
        if self._reopened:
            # What a repair wrote was seen by nobody.
            self._reopened = False
            following = self._between(self._told, upto)
            try:
                while events := await following():
                    self._tell_all(events, events[-1].seq)
            except JournalError as error:
                # Nobody is left with a gap that they do not know of.
                self.finish("session_unavailable", f"what was written meanwhile cannot be read: {error}")
                return
        self._tell_all(events, upto)
        if not self._pending:
            self._void()
        snapshot = self._numbered(content, upto)
        # Who came later may have been shown the same already, or more.
        behind = [each for each in self._subscriptions if each.revision < self._revision and each.position <= upto]
        if behind:
            size = len(orjson.dumps(snapshot))
            for subscription in behind:
                subscription.projection(snapshot, size)

    async def _durable(self, session: OpenSession, upto: int) -> bool:
        await asyncio.sleep(_GATHER)
        if session.journal.durable_seq < upto:
            try:
                await session.journal.aflush()
            except JournalError:
                return False  # whoever appended it is told
        return session.journal.durable_seq >= upto

    def _take_up(self, session: OpenSession) -> None:
        """What another opening of its journal appended is not lost, and what is lost is not told."""
        if self._session is not session:
            self._reopened = bool(self._subscriptions)
            self._session = session
            self._pending.clear()

    def _numbered(self, content: JsonObject, position: int) -> JsonObject:
        """A projection has a number of its own: the same content has the same."""
        if content != self._newest:
            self._revision = self._number()
            self._newest = content
        shown = islice(self._streams.values(), _MOST_STREAMS)
        streams = [{**stream.identity(), "length": stream.length} for stream in shown]
        return {"projection_revision": self._revision, "position": position, **content, "streams": streams}

    def _tell_all(self, events: list[Event], upto: int) -> None:
        self._told = max(self._told, upto)
        for event in events:
            self._tell(event)

    def _tell(self, event: Event) -> None:
        if event.type == "assistant/message":
            self._complete(event)
        for subscription in self._subscriptions:
            if subscription.position < event.seq:
                subscription.event(event)

    def _void(self) -> None:
        for key in [key for key, stream in self._streams.items() if stream.run_id in self._over]:
            stream = self._streams.pop(key)
            self._whole(TextStream(key, stream.turn_id, stream.run_id), None)
        self._over.clear()

    def _complete(self, event: Event) -> None:
        """Live text gets what is missing of it, or is replaced, and is complete."""
        message_id, run_id, turn_id = (event.data.get(key) for key in ("message_id", "run_id", "turn_id"))
        assert isinstance(message_id, str)
        assert isinstance(run_id, str)
        assert isinstance(turn_id, str)
        streamed = [key for key in self._streams if key[1] == message_id]
        for kind, place, text in final_texts(event):
            key = next((key for key in streamed if key[0] == kind), None)
            if key is None:
                self._whole(TextStream((kind, message_id, place), turn_id, run_id, text), event)  # type: ignore[arg-type]
                continue
            streamed.remove(key)
            stream = self._streams.pop(key)
            shown = stream.text
            if text.startswith(shown):
                stream.append(text[len(shown) :])
                for subscription in self._subscriptions:
                    subscription.text(stream, len(shown), stream.length, complete=True)
            else:
                self._whole(TextStream(key, turn_id, run_id, text), None)
        for key in streamed:
            stream = self._streams.pop(key)
            self._whole(TextStream(key, stream.turn_id, stream.run_id), None)

    def _whole(self, stream: TextStream, event: Event | None) -> None:
        """``event``: of a text that nobody was shown a part of; who has it in its snapshot is not told."""
        for subscription in self._subscriptions:
            if event is None or subscription.position < event.seq:
                subscription.text(stream, 0, stream.length, reset=event is None, complete=True)
