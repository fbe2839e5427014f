"""A host's server over real sockets with services that a test makes up, and a client that sends raw bytes."""

import asyncio
import contextlib
import json
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from maka.runtime.host.connection import Caller, Connection
from maka.runtime.host.protocol import State
from maka.runtime.host.server import Server
from maka.runtime.host.transport import FramedTransport

Handler = Callable[[Any, Caller], Awaitable[dict[str, Any]]]

ROOT = "/srv/maka"
EPOCH = "7c0e5f1b2a9d4e6f8091a2b3c4d5e6f7"


class FakeServices:
    """``handlers``: operation → what answers it. An operation that has none is answered with its input's class."""

    host_epoch = EPOCH
    root = ROOT

    def __init__(self, state: State = "ready", **handlers: Handler) -> None:
        self.state: State = state
        self.handlers = {name.replace("_", "."): handler for name, handler in handlers.items()}
        self.gone: list[Connection] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.ended: list[str] = []

    async def call(self, operation: str, input: Any, caller: Caller) -> dict[str, Any]:
        handler = self.handlers.get(operation)
        if handler is None:
            return {"took": type(input).__name__}
        result = await handler(input, caller)
        self.ended.append(operation)
        return result

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work, name=name)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def left(self, connection: Connection) -> None:
        self.gone.append(connection)


class Raw:
    """A client that knows bytes and lines only."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, *frames: dict[str, Any]) -> None:
        await self.write(b"".join(json.dumps(frame).encode() + b"\n" for frame in frames))

    async def write(self, data: bytes) -> None:
        """What cannot be written any more because the host has ended the connection is let go."""
        with contextlib.suppress(ConnectionError):
            self.writer.write(data)
            await self.writer.drain()

    async def receive(self) -> dict[str, Any]:
        line = await self.reader.readline()
        assert line.endswith(b"\n"), f"the connection ended with {line!r}"
        frame: dict[str, Any] = json.loads(line)
        return frame

    async def rest(self) -> list[dict[str, Any]]:
        """All frames up to the end of the connection."""
        lines = (await self.reader.read()).split(b"\n")
        self.writer.close()
        assert lines.pop() == b"", "the last line has no end"
        return [json.loads(line) for line in lines]

    async def hello(self, **more: Any) -> dict[str, Any]:
        await self.send(hello(**more))
        return await self.receive()

    async def ask(self, id: str, operation: str, **input: Any) -> None:
        await self.send(request(id, operation, **input))


class Wire:
    """A server that listens, and what it serves."""

    def __init__(self, services: FakeServices, server: Server, path: str) -> None:
        self.services = services
        self.server = server
        self.path = path

    async def connect(self) -> Raw:
        return Raw(*await asyncio.open_unix_connection(self.path, limit=4 * 2**20))

    async def welcomed(self) -> Raw:
        raw = await self.connect()
        assert (await raw.hello())["kind"] == "welcome"
        return raw


def hello(**more: Any) -> dict[str, Any]:
    client = {"id": "c", "surface": "test"}
    return {"kind": "hello", "protocol": {"min": 1, "max": 1}, "client": client, **more}


def request(id: str, operation: str, **input: Any) -> dict[str, Any]:
    return {"kind": "request", "id": id, "operation": operation, "input": input}


@contextlib.contextmanager
def socket_path() -> Any:
    """A path that is short enough for a socket, wherever temporary files of tests are."""
    directory = tempfile.mkdtemp(prefix="maka-")
    try:
        yield str(Path(directory) / "host.sock")
    finally:
        shutil.rmtree(directory)


@contextlib.asynccontextmanager
async def serving(services: FakeServices | None = None, **options: Any) -> AsyncIterator[Wire]:
    """A server, closed at the end; nothing of it may be left then."""
    services = services or FakeServices()
    before = asyncio.all_tasks()
    with socket_path() as path:
        server = Server(services, **options)
        await server.listen(path)
        wire = Wire(services, server, path)
        try:
            yield wire
        finally:
            for task in list(services.tasks):
                task.cancel()
            await asyncio.gather(*services.tasks, return_exceptions=True)
            await server.close("host_draining", "the test is over", 0.5)
            assert server.connections == frozenset()
    await asyncio.sleep(0)
    left = {task for task in asyncio.all_tasks() - before if task.get_name().startswith("maka-")}
    assert left == set()


async def pair() -> tuple[FramedTransport, socket.socket]:
    """A transport, and the other end as a bare socket that does not block."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    _, transport = await asyncio.get_running_loop().create_connection(FramedTransport, sock=ours)
    return transport, theirs
