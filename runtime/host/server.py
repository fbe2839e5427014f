"""Listens on the host's socket, and tells every connection what becomes of the host. Network."""

import asyncio
import os
import socket
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

from ..tasks import all_done
from .connection import Connection, Services
from .endpoint import not_private
from .protocol import State, encode
from .transport import CLOSING, FramedTransport

#: Connections at once.
MAX_CONNECTIONS: Final = 256

_FULL: Final = {
    "kind": "refused",
    "code": "too_many_requests",
    "message": f"the host has {MAX_CONNECTIONS} connections and takes no more; close one, then connect again",
}


class Server:
    def __init__(self, services: Services, *, most: int = MAX_CONNECTIONS) -> None:
        """``most``: connections at once; one more is refused."""
        self._services = services
        self._most = most
        self._listening: asyncio.Server | None = None
        self._accepts = False
        self._path: str | None = None
        self._inode: tuple[int, int] | None = None
        self._connections: set[Connection] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def connections(self) -> frozenset[Connection]:
        """Those that there are, also those that have not said hello yet."""
        return frozenset(self._connections)

    @property
    def in_flight(self) -> int:
        """Requests that are not answered yet, of all connections."""
        return sum(connection.in_flight for connection in self._connections)

    @property
    def reachable(self) -> bool:
        """Is what stands at the path still this server's socket, in a directory where clients trust it?"""
        try:
            if self._path is None or not_private(os.lstat(os.path.dirname(self._path))) is not None:
                return False
            return _inode(self._path) == self._inode
        except OSError:
            return False

    async def listen(self, path: str) -> None:
        """``path`` is in a directory that only its owner may enter. Raises OSError.

        Again where the socket before cannot be reached any more: connections that there are go on.
        """
        self.stop_accepting()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with suppress(OSError):  # not every system has it; there the directory guards until the next line but one
                os.fchmod(listener.fileno(), 0o600)
            listener.bind(path)
            os.chmod(path, 0o600)
            self._path, self._inode = path, _inode(path)
            # Nobody can connect before this.
            self._accepts = True
            self._listening = await asyncio.get_running_loop().create_unix_server(
                lambda: FramedTransport(self._accept), sock=listener, backlog=self._most
            )
        except BaseException:
            listener.close()
            self._unlink()
            raise

    def tell_state(self, state: State) -> None:
        for connection in self._connections:
            connection.say_state(state)

    def stop_accepting(self) -> None:
        """Who tries to connect from now on finds no socket. Connections that there are go on."""
        self._accepts = False
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        self._unlink()

    async def close(self, code: str, message: str, deadline: float) -> None:
        """Lets answers go out, says goodbye to all, and ends what there is of them after ``deadline`` seconds.

        Nothing of the server is left when this returns, however often it is cancelled meanwhile.
        """
        self.stop_accepting()
        last = min(CLOSING, deadline)
        closing = [
            self._spawn(connection.close(code, message, grace=deadline - last, seconds=last), "maka-host-close")
            for connection in self._connections
        ]
        cancelled = await all_done(closing) if closing else False
        while self._tasks:
            cancelled = await all_done(list(self._tasks)) or cancelled
        if cancelled:
            raise asyncio.CancelledError

    def _accept(self, transport: FramedTransport) -> None:
        if len(self._connections) >= self._most or not self._accepts:
            transport.put(encode(_FULL))
            self._spawn(transport.close(linger=True), "maka-host-refuse")
            return
        connection = Connection(transport, self._services)
        self._connections.add(connection)
        task = self._spawn(connection.run(), f"maka-host-connection-{connection.id}")
        task.add_done_callback(lambda _: self._connections.discard(connection))

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _unlink(self) -> None:
        path, self._path = self._path, None
        # The path may be another host's by now.
        with suppress(OSError):
            if path is not None and _inode(path) == self._inode:
                os.unlink(path)


def _inode(path: str) -> tuple[int, int]:
    found = os.stat(path, follow_symlinks=False)
    return found.st_dev, found.st_ino
