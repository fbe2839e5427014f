"""The host's side of one connection: the handshake, the requests in flight, and all that is sent to that client.

An operation that was taken runs to its end, whatever becomes of the connection that asked for it.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, Protocol

import attrs

from ... import __version__
from ...journal.codec import encodable
from ...journal.events import JsonObject
from ..errors import describe
from ..ids import new_id, unsuitable
from ..lifecycle import log
from . import handshake
from .inputs import structure
from .operations import OPERATIONS
from .protocol import (
    CODES,
    HANDSHAKE,
    MAX_FRAME,
    MAX_IN_FLIGHT,
    MAX_SUBSCRIPTIONS,
    FrameError,
    HostError,
    State,
    encode,
)
from .refusals import refusal
from .transport import CLOSING, ConnectionLost, FramedTransport

#: A client that takes nothing in so many looks, these seconds apart, is given up. Looks are counted, not time: a host
#: that had no time itself blames nobody.
LOOKS: Final = 30
LOOK: Final = 1.0

_REQUEST: Final = {"kind", "id", "operation", "input"}
#: Answered although as many requests as a connection may have are in flight.
_BEYOND: Final = "host.status"


@attrs.frozen
class Caller:
    """Who asks. ``answered`` is set once the answer has its place among what is sent, or never will have one: what an
    operation sends by itself, as a subscription does, comes behind that.
    """

    connection: "Connection"
    client_id: str
    surface: str
    answered: asyncio.Event


class Services(Protocol):
    """What the host gives its connections."""

    host_epoch: str
    root: str

    @property
    def state(self) -> State: ...

    async def call(self, operation: str, input: Any, caller: Caller) -> JsonObject:
        """The result of an operation. What it raises is told by ``refusals``."""

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        """A task that the host waits for before it ends."""

    def left(self, connection: "Connection") -> None:
        """Its client is gone, and its subscriptions end. Called once for each connection that was welcomed."""


class Connection:
    def __init__(
        self,
        transport: FramedTransport,
        services: Services,
        *,
        handshake: float = HANDSHAKE,
        looks: int = LOOKS,
        look: float = LOOK,
    ) -> None:
        self.id = new_id()
        #: ``{id, surface, version?}``, once the client has said so.
        self.client: JsonObject = {}
        #: Set once the client is gone or is being left: nothing is sent any more but answers that it waits for.
        self.lost = asyncio.Event()
        self._transport = transport
        self._services = services
        self._handshake = handshake
        self._looks = looks
        self._look = look
        self._welcomed = False
        self._in_flight: set[str] = set()
        self._quiet = asyncio.Event()
        self._quiet.set()

    @property
    def in_flight(self) -> int:
        """Requests that are not answered yet."""
        return len(self._in_flight)

    @property
    def progress(self) -> int:
        """Bytes that the client has taken. Who watches for a stall compares two looks."""
        return self._transport.progress

    @property
    def has_room(self) -> bool:
        """Is there a place for any frame? Then ``send`` does not wait."""
        return self._transport.has_room

    async def run(self) -> None:
        """Serves the client until one side ends the connection. Raises nothing but a cancellation."""
        watching = asyncio.get_running_loop().create_task(self._watch(), name=f"maka-host-watch-{self.id}")
        try:
            if await self._greet():
                await self._serve()
            self._leave()
            await self._answered()
            await self._transport.close()
        except (FrameError, HostError) as error:
            await self.close(error.code, str(error))
        except ConnectionLost:
            pass
        except Exception as error:
            log.error("a connection failed: %s", describe(error, typed=True), exc_info=error)
        finally:
            self._leave()
            watching.cancel()
            self._transport.abort()
            await asyncio.gather(watching, return_exceptions=True)

    async def send(self, frame: JsonObject) -> None:
        """Waits for room among what waits to be taken. Raises ConnectionLost, and FrameError for what is no frame."""
        if self.lost.is_set():
            raise ConnectionLost("the client is gone")
        await self._transport.send(frame)

    def put(self, frame: JsonObject) -> None:
        """Sends a frame behind all others without waiting for room. Raises FrameError for what is no frame."""
        self._transport.put(encode(frame))

    def say_state(self, state: State) -> None:
        if self._welcomed:
            self.put({"kind": "state", "state": state})

    async def close(self, code: str, message: str, *, grace: float = 0.0, seconds: float = CLOSING) -> None:
        """Ends the connection, with a goodbye as its last frame. ``grace``: seconds for answers to go out before;
        ``seconds``: those in which the client may take what waits.
        """
        self._leave()
        if grace:
            try:
                async with asyncio.timeout(grace):
                    await self._answered()
            except TimeoutError:
                pass
        self.put({"kind": "goodbye", "code": code, "message": message})
        await self._transport.close(seconds, linger=True)

    # ------------------------------------------------------------ the handshake

    async def _greet(self) -> bool:
        try:
            async with asyncio.timeout(self._handshake):
                hello = await self._transport.receive()
        except TimeoutError:
            said = f"no hello came within {self._handshake:g} s; connect again, and send it first"
            raise HostError("handshake_timeout", said) from None
        if hello is None:
            return False
        try:
            accepted = handshake.look(hello, host_epoch=self._services.host_epoch, root=self._services.root)
        except handshake.Refused as refused:
            frame = {"kind": "refused", "code": refused.code, "message": str(refused)}
            self.put(frame if refused.range is None else {**frame, "protocol": refused.range})
            await self._transport.close(linger=True)
            return False
        self.client = accepted.client
        self._welcomed = True
        self.put(
            {
                "kind": "welcome",
                "protocol": accepted.protocol,
                "host_epoch": self._services.host_epoch,
                "connection_id": self.id,
                "state": self._services.state,
                "server": {"name": "maka", "version": __version__},
                "limits": {"frame": MAX_FRAME, "in_flight": MAX_IN_FLIGHT, "subscriptions": MAX_SUBSCRIPTIONS},
            }
        )
        return True

    # ------------------------------------------------------------ requests

    async def _serve(self) -> None:
        while (frame := await self._transport.receive()) is not None:
            id, operation, given = self._request(frame)
            try:
                self._admit(operation)
                input = structure(operation, given)
            except HostError as error:
                await self._transport.send(_error(id, error.code, str(error)))
                continue
            self._in_flight.add(id)
            self._quiet.clear()
            self._services.spawn(self._answer(id, operation, input), f"maka-host-{operation}")

    def _request(self, frame: JsonObject) -> tuple[str, str, JsonObject]:
        """Raises FrameError for what is no request that can be answered."""
        if frame["kind"] != "request":
            raise FrameError("bad_frame", f"a client sends requests, and no {frame['kind'][:80]}")
        handshake.check_keys("a request", frame, _REQUEST, frozenset())
        id, operation, given = frame["id"], frame["operation"], frame["input"]
        if (wrong := unsuitable(id)) is not None:
            raise FrameError("bad_frame", f"`id` of a request {wrong}")
        if not isinstance(operation, str) or not isinstance(given, dict):
            raise FrameError("bad_frame", "`operation` of a request is a text, and its `input` an object")
        if id in self._in_flight:
            raise FrameError("bad_frame", f"request {id[:80]} is not answered yet, and another came under its id")
        return id, operation, given

    def _admit(self, operation: str) -> None:
        """Raises HostError for what is not taken now."""
        if self.lost.is_set():
            raise HostError("host_draining", "the host is closing this connection; connect again, and send it there")
        if len(self._in_flight) >= MAX_IN_FLIGHT + (operation == _BEYOND):
            raise HostError(
                "too_many_requests",
                f"{len(self._in_flight)} requests of this connection are not answered yet; send it again after one is",
            )
        row, state = OPERATIONS.get(operation), self._services.state
        if row is None or row.always:
            return
        if state in ("starting", "recovering"):
            raise HostError("host_not_ready", f"the host is {state}; send it again once its state is ready")
        if state == "draining" and row.mode == "command":
            raise HostError("host_draining", "the host is ending and takes no commands; send it to the next one")

    async def _answer(self, id: str, operation: str, input: Any) -> None:
        caller = Caller(self, self.client["id"], self.client["surface"], asyncio.Event())
        try:
            frame = await self._outcome(id, operation, input, caller)
            try:
                await self._transport.send(frame)
            except FrameError as error:
                await self._transport.send(_error(id, *refusal(operation, error)))
        except ConnectionLost:
            pass  # what was done is in the journal: who asks again is told the same
        finally:
            caller.answered.set()
            self._in_flight.discard(id)
            if not self._in_flight:
                self._quiet.set()

    async def _outcome(self, id: str, operation: str, input: Any, caller: Caller) -> JsonObject:
        try:
            result = await self._services.call(operation, input, caller)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                said = f"the host ended before {operation} did; send it to the next one"
                self.put(_error(id, "host_draining", said))
                raise
            # It was not this task that was cancelled, but something that the operation waited for.
            return _error(id, *refusal(operation, error))
        except Exception as error:
            return _error(id, *refusal(operation, error))
        return {"kind": "response", "id": id, "ok": True, "result": result}

    # ------------------------------------------------------------ the end

    async def _answered(self) -> None:
        """Returns once every request has its answer among what is sent, or the connection is gone."""
        waits = [asyncio.ensure_future(event.wait()) for event in (self._transport.lost, self._quiet)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    def _leave(self) -> None:
        if self.lost.is_set():
            return
        self.lost.set()
        if self._welcomed:
            self._services.left(self)

    async def _watch(self) -> None:
        """Gives the client up once it has taken nothing for too long."""
        wire = self._transport
        while True:
            await wire.blocked()
            taken = wire.progress
            for _ in range(self._looks):
                await asyncio.sleep(self._look)
                if wire.progress != taken or not wire.is_blocked:
                    break
            else:
                break
        log.warning("client %s is given up: it takes nothing, and %d bytes wait for it", self.client, wire.waiting)
        said = "the client has taken nothing for too long; connect again, and read faster"
        await self.close("slow_client", said, seconds=self._look)


def _error(id: str, code: str, message: str) -> JsonObject:
    error = {"code": code, "message": encodable(message), "retryable": CODES[code]}
    return {"kind": "response", "id": id, "ok": False, "error": error}
