"""A host that a test plays: the wire of a real one over a real socket, with answers that the test gives."""

import asyncio
import inspect
import os
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson

from maka.runtime.host import endpoint
from maka.runtime.host.endpoint import Registration
from maka.runtime.host.ownership import RootLock
from maka.runtime.host.protocol import HostError

Json = dict[str, Any]
#: An operation's input → its result. What it raises as HostError is the refusal. May be a coroutine.
Answer = Callable[[Json], Any]


class Peer:
    """One client, as the host sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.hello: Json = {}

    def send(self, frame: Json) -> None:
        self.writer.write(orjson.dumps(frame) + b"\n")

    async def receive(self) -> Json | None:
        try:
            line = await self.reader.readline()
        except (ConnectionError, ValueError):
            return None
        return orjson.loads(line) if line else None

    def cut(self) -> None:
        self.writer.transport.abort()


class FakeHost:
    """``answers``: operation → Answer. What is asked is kept in ``asked``; ``silent``: nothing is answered any more."""

    def __init__(self, root: str | os.PathLike[str], *, state: str = "ready", app: str | None = None) -> None:
        self.root = Path(root)
        self.state = state
        self.app = app
        self.epoch = uuid.uuid4().hex
        self.pid = os.getpid()
        self.silent = False
        self.in_flight = 64
        self.peers: list[Peer] = []
        self.asked: list[tuple[str, Json]] = []
        #: Subscription → the client that opened it, and the number of its last frame.
        self.watched: dict[str, tuple[Peer, int]] = {}
        self.snapshot: Json = {"projection_revision": 1, "position": 0, "root_turn": None}
        self.answers: dict[str, Answer] = {
            "host.status": lambda _: {"host_epoch": self.epoch, "state": self.state, "pid": self.pid},
            "host.shutdown": lambda _: {"state": "draining"},
        }
        self.refusal: Json | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._happened = asyncio.Event()

    async def __aenter__(self) -> "FakeHost":
        self.lock = RootLock.acquire(self.root)
        self.path = endpoint.prepare(self.lock, self.epoch)
        self._server = await asyncio.start_unix_server(self._connected, self.path, limit=1 << 20)
        endpoint.write(self.root, self.registration())
        return self

    def registration(self) -> Registration:
        return Registration(
            host_epoch=self.epoch,
            endpoint=str(self.path),
            pid=self.pid,
            state=self.state,
            started_at=1,
            version="0",
            root=endpoint.name_of(self.root),
            app=self.app,
        )

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """As a host that ends in order; a second call does nothing."""
        if self.lock.held:
            self._server.close()
            self.cut()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            endpoint.remove(self.root, self.epoch)
            endpoint.clear(self.path)
            self.lock.release()

    def cut(self) -> None:
        """Every connection is lost."""
        for peer in self.peers:
            peer.cut()
        self.peers = []

    def say(self, state: str) -> None:
        self.state = state
        self.tell({"kind": "state", "state": state})

    def tell(self, frame: Json) -> None:
        """A frame to every client."""
        for peer in self.peers:
            peer.send(frame)

    def push(self, subscription_id: str, type: str, **held: Any) -> None:
        """The next frame of a subscription."""
        peer, last = self.watched[subscription_id]
        self.watched[subscription_id] = (peer, last + 1)
        frame = {"kind": "frame", "subscription_id": subscription_id, "host_epoch": self.epoch, "sequence": last + 1}
        peer.send({**frame, "type": type, **held})

    def event(self, seq: int, data: Any = None) -> None:
        """An event of the journal, to all who watch."""
        for subscription_id in list(self.watched):
            self.push(subscription_id, "event", event={"seq": seq, "ts": 0, "type": "session/note", "data": data or {}})

    def of(self, operation: str) -> list[Json]:
        """The inputs with which it was asked."""
        return [input for name, input in self.asked if name == operation]

    async def until(self, holds: Callable[[], Any]) -> None:
        """Waits for something that clients bring about."""
        while not holds():
            self._happened.clear()
            await self._happened.wait()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        peer = Peer(reader, writer)
        try:
            await self._serve(peer)
        except asyncio.CancelledError:
            pass  # it is stopped, and the server's log is not to call that an error
        finally:
            self._tasks.discard(task)
            if peer in self.peers:
                self.peers.remove(peer)
            self.watched = {id: watch for id, watch in self.watched.items() if watch[0] is not peer}
            peer.cut()
            self._happened.set()

    async def _serve(self, peer: Peer) -> None:
        hello = await peer.receive()
        if hello is None:
            return
        peer.hello = hello
        if self.silent:
            await asyncio.Event().wait()
        wrong = hello.get("host_epoch") not in (None, self.epoch) or hello.get("root") not in (
            None,
            endpoint.name_of(self.root),
        )
        refusal = {"code": "wrong_host", "message": "another host"} if wrong else self.refusal
        if refusal is not None:
            peer.send({"kind": "refused", **refusal})
            await peer.writer.drain()
            return
        peer.send(
            {
                "kind": "welcome",
                "protocol": 1,
                "host_epoch": self.epoch,
                "connection_id": uuid.uuid4().hex,
                "state": self.state,
                "server": {"name": "maka", "version": "0"},
                "limits": {"frame": 786432, "in_flight": self.in_flight, "subscriptions": 16},
            }
        )
        self.peers.append(peer)
        self._happened.set()
        while (frame := await peer.receive()) is not None:
            assert frame["kind"] == "request", frame
            self.asked.append((frame["operation"], frame["input"]))
            self._happened.set()
            if not self.silent:
                task = asyncio.create_task(self._answer(peer, frame))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _answer(self, peer: Peer, frame: Json) -> None:
        operation = frame["operation"]
        try:
            if operation == "subscription.open" and operation not in self.answers:
                result: Any = self._open(peer)
            elif operation == "subscription.close":
                self.watched.pop(frame["input"]["subscription_id"], None)
                result = {}
            elif operation not in self.answers:
                raise HostError("unknown_operation", f"{operation} is not played")
            else:
                result = self.answers[operation](frame["input"])
                if inspect.isawaitable(result):
                    result = await result
        except HostError as error:
            said = {"code": error.code, "message": str(error), "retryable": False}
            peer.send({"kind": "response", "id": frame["id"], "ok": False, "error": said})
        else:
            peer.send({"kind": "response", "id": frame["id"], "ok": True, "result": result})
        self._happened.set()

    def _open(self, peer: Peer) -> Json:
        id = uuid.uuid4().hex
        self.watched[id] = (peer, 0)
        return {"subscription_id": id, "host_epoch": self.epoch, "sequence": 1, "snapshot": self.snapshot}


async def never(_: Json) -> None:
    """An answer that does not come."""
    await asyncio.Event().wait()


def play(scenario: Awaitable[None], seconds: float = 20) -> None:
    """Runs a test's coroutine; one that hangs fails. Nothing that it began may be left."""

    async def bounded() -> None:
        async with asyncio.timeout(seconds):
            await scenario
        await asyncio.sleep(0)
        left = [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("maka-client")]
        assert not left

    asyncio.run(bounded())
