"""A client's side of one connection: handshake, requests in flight, frames to those who watch. Network."""

import asyncio
import itertools
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import attrs

from ...journal.events import JsonObject
from ..errors import RuntimeFailure
from ..tasks import Tasks, all_done, seen
from . import endpoint, ownership, protocol
from .endpoint import Registration
from .protocol import FrameError, HostError, NotJson
from .transport import ConnectionLost, FramedTransport, dial
from .watching import Subscription

#: Seconds between two attempts to reach a host: the first pause, and the longest. Each is shortened by chance.
_FIRST, _LONGEST = 0.02, 0.5
#: Answered by a host beyond the requests that it has in flight.
_STATUS: Final = "host.status"
_ENDED: Final = "the connection to the host has ended; subscribe again"


class HostUnreachable(RuntimeFailure):
    """No host runs for the root, or the one that has it does not answer."""


class RequestInterrupted(HostUnreachable):
    """The connection was lost before a request was answered: it may have been done. The same ids ask for it again."""


class LinkLost(RuntimeFailure):
    """The connection ended under a request. ``sent``: the host may have taken it."""

    def __init__(self, *, sent: bool) -> None:
        super().__init__("the connection to the host was lost")
        self.sent = sent


@attrs.frozen(kw_only=True)
class Caller:
    """Who connects, and how. ``patience``: seconds in which a host that is alive shows it. ``told`` is called whenever
    a connection's state changes, and at its end.
    """

    root: Path
    hello: JsonObject
    patience: float
    told: Callable[[], None]


@attrs.frozen
class _Asked:
    answer: "asyncio.Future[Any]"
    #: Makes of a result what is handed on, as soon as it is there: before the next frame is looked at.
    taken: Callable[[JsonObject], Any] | None
    counted: bool


def pauses() -> Iterator[float]:
    """How long to wait before each next attempt."""
    longest = _FIRST
    while True:
        yield longest * random.uniform(0.5, 1)
        longest = min(2 * longest, _LONGEST)


def silence(root: str | os.PathLike[str], pid: int | None, seconds: float) -> HostUnreachable:
    return HostUnreachable(
        f"the host of {root} ({ownership.process({'pid': pid})}) has not answered for {round(seconds, 1):g} s; "
        "look at what holds that process, then ask again"
    )


async def reach(caller: Caller, seconds: float) -> "Link | None":
    """A connection to the host that is registered; None where nobody listens there, or it is not that host any more.

    Raises HostUnreachable where somebody takes the connection and says nothing, HostError where the host refuses it.
    """
    registered = endpoint.read_registration(caller.root)
    if registered is None or not endpoint.is_private(registered.endpoint, caller.root):
        return None
    wire: FramedTransport | None = None
    link: Link | None = None
    try:
        async with asyncio.timeout(seconds):
            wire = await dial(registered.endpoint)
            await wire.send(_hello(caller, registered))
            welcome = await wire.receive()
            if welcome is not None and _is_welcome(welcome):
                link = Link(caller, registered, wire, welcome)
    except TimeoutError:
        raise silence(caller.root, registered.pid, seconds) from None
    except (OSError, ConnectionLost, FrameError, KeyError, TypeError):
        return None
    finally:
        if link is None and wire is not None:
            wire.abort()
    return link


def _hello(caller: Caller, registered: Registration) -> JsonObject:
    return {
        "kind": "hello",
        "protocol": {"min": protocol.OLDEST, "max": protocol.NEWEST},
        "client": caller.hello,
        "root": endpoint.name_of(caller.root),
        "host_epoch": registered.host_epoch,
    }


def _is_welcome(frame: JsonObject) -> bool:
    """Raises HostError for a refusal that another attempt would meet too."""
    code = frame.get("code")
    if frame["kind"] == "refused" and isinstance(code, str) and code != "wrong_host":
        raise HostError(code, str(frame.get("message")))
    return bool(frame["kind"] == "welcome")


class Link:
    def __init__(self, caller: Caller, registered: Registration, wire: FramedTransport, welcome: JsonObject) -> None:
        self.registered = registered
        self.host_epoch: str = welcome["host_epoch"]
        self.state: protocol.State = welcome["state"]
        self.lost = asyncio.Event()
        self._caller = caller
        self._wire = wire
        self._ids = map(str, itertools.count(1))
        self._slots = asyncio.Semaphore(min(protocol.MAX_IN_FLIGHT, welcome["limits"]["in_flight"]))
        self._asked: dict[str, _Asked] = {}
        self._watches: dict[str, Subscription] = {}
        #: Frames of the host so far: each shows that it is alive.
        self._heard = 0
        self._probe: asyncio.Task[Any] | None = None
        #: Why requests that are open at the end would meet the same again.
        self._refusal: HostError | None = None
        self._tasks = Tasks()
        self._reader = self._tasks.spawn(self._read(), "maka-client-read")

    # ------------------------------------------------------------ asking

    async def request(self, operation: str, input: JsonObject, taken: Callable[[JsonObject], Any] | None = None) -> Any:
        """The host's answer, however long it takes, as long as the host is alive.

        Raises HostError for its refusal, LinkLost, and HostUnreachable once it has shown no life in the time of the
        caller's patience.
        """
        asking = self._tasks.spawn(self._ask(operation, input, taken), "maka-client-ask")
        asking.add_done_callback(seen)
        patience = self._caller.patience / 2
        try:
            while True:
                heard = self._heard
                if (await asyncio.wait({asking}, timeout=patience))[0]:
                    return asking.result()
                if self._heard == heard and not await self._is_alive(heard, patience) and not asking.done():
                    raise silence(self._caller.root, self.registered.pid, self._caller.patience)
        finally:
            asking.cancel()

    async def subscribe(self, session_id: str, since: int | None) -> Subscription:
        """Raises as ``request``."""
        opened: list[Subscription] = []
        wanted = True

        def taken(result: JsonObject) -> Subscription:
            watch = Subscription(session_id, result, lambda: self._leave(result["subscription_id"]))
            self._watches[watch.subscription_id] = watch
            if wanted:
                opened.append(watch)
            else:
                self._forget(watch)
            return watch

        input = {"session_id": session_id} if since is None else {"session_id": session_id, "since": since}
        try:
            watch: Subscription = await self.request("subscription.open", input, taken)
        except BaseException:
            wanted = False
            for watch in opened:
                self._forget(watch)
            raise
        return watch

    async def aclose(self) -> None:
        """Ends the connection; nothing of it is left when this returns. Raises nothing but a cancellation."""
        closing = self._tasks.spawn(self._wire.close(linger=True), "maka-client-close")
        cancelled = await all_done([closing])
        cancelled = await all_done([self._reader]) or cancelled
        await self._tasks.cancel(1.0)
        if cancelled:
            raise asyncio.CancelledError

    async def _ask(self, operation: str, input: JsonObject, taken: Callable[[JsonObject], Any] | None) -> Any:
        counted = operation != _STATUS
        if counted:
            await self._slots.acquire()
        id = next(self._ids)
        asked = _Asked(asyncio.get_running_loop().create_future(), taken, counted)
        asked.answer.add_done_callback(seen)
        self._asked[id] = asked
        try:
            if self.lost.is_set():
                raise ConnectionLost
            await self._wire.send({"kind": "request", "id": id, "operation": operation, "input": input})
        except BaseException as error:
            self._settle(id)
            if isinstance(error, ConnectionLost):
                raise LinkLost(sent=False) from None
            if isinstance(error, FrameError) and error.code == "bad_frame":
                raise NotJson(f"{operation} cannot be sent: its input holds what no JSON can ({error})") from None
            if isinstance(error, FrameError):
                raise HostError(error.code, f"{operation} cannot be sent: {error}") from None
            raise
        return await asked.answer

    def _settle(self, id: str) -> _Asked | None:
        """A request that is given up stays in flight until the host has answered it: so does the host count."""
        asked = self._asked.pop(id, None)
        if asked is not None and asked.counted:
            self._slots.release()
        return asked

    async def _is_alive(self, heard: int, seconds: float) -> bool:
        if self._probe is None or self._probe.done():
            self._probe = self._tasks.spawn(self._ask(_STATUS, {}, None), "maka-client-probe")
            self._probe.add_done_callback(seen)
        return bool((await asyncio.wait({self._probe}, timeout=seconds))[0]) or self._heard != heard

    def _forget(self, watch: Subscription) -> None:
        self._tasks.spawn(watch.close(), "maka-client-forget")

    async def _leave(self, subscription_id: str) -> None:
        self._watches.pop(subscription_id, None)
        if not self.lost.is_set():
            try:
                await self.request("subscription.close", {"subscription_id": subscription_id})
            except RuntimeFailure:
                pass  # it ends with the connection

    # ------------------------------------------------------------ listening

    async def _read(self) -> None:
        try:
            while (frame := await self._wire.receive()) is not None:
                self._heard += 1
                self._take(frame)
        except FrameError as error:
            self._refusal = HostError(error.code, f"the host has sent what is no frame: {error}; report it")
        except (KeyError, TypeError, ValueError) as error:
            self._refusal = HostError("bad_frame", f"the host has sent a frame that is not whole: {error!r}; report it")
        finally:
            self._end()

    def _take(self, frame: JsonObject) -> None:
        # What is not known here is a newer host's.
        match frame["kind"]:
            case "response":
                self._take_response(frame)
            case "frame":
                watch = self._watches.get(frame["subscription_id"])
                if watch is not None and not watch.take(frame):
                    del self._watches[watch.subscription_id]
                    if frame["type"] != "closed":
                        self._tasks.spawn(self._leave(watch.subscription_id), "maka-client-leave")
            case "state":
                self.state = frame["state"]
                self._caller.told()
            case "goodbye":
                if not protocol.CODES.get(frame["code"], True):
                    self._refusal = HostError(frame["code"], frame["message"])

    def _take_response(self, frame: JsonObject) -> None:
        asked = self._settle(frame["id"])
        if asked is None:
            return
        if frame["ok"] is True:
            result = asked.taken(frame["result"]) if asked.taken is not None else frame["result"]
            if not asked.answer.done():
                asked.answer.set_result(result)
        elif not asked.answer.done():
            asked.answer.set_exception(HostError(frame["error"]["code"], frame["error"]["message"]))

    def _end(self) -> None:
        self.lost.set()
        for id in list(self._asked):
            asked = self._settle(id)
            if asked is not None and not asked.answer.done():
                asked.answer.set_exception(self._refusal or LinkLost(sent=True))
        for watch in self._watches.values():
            watch.end("connection_closed", _ENDED)
        self._watches.clear()
        self._caller.told()
