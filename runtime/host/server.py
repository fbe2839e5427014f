"""Listens for clients, and tells all of them what becomes of the host. Every connection is by itself."""

import asyncio
import os
from pathlib import Path
from typing import Final

from .connection import Connection, Services
from .protocol import State, encode
from .transport import FramedTransport

#: Connections at once; who comes beyond is told so, and let go.
MOST: Final = 256
_FULL: Final = encode(
    {
        "kind": "refused",
        "code": "too_many_requests",
        "message": f"{MOST} clients are connected already; try again later",
    }
)


class Server:
    """``connections``: those that are open, welcomed or not yet."""

    def __init__(self, services: Services, *, looks: int | None = None) -> None:
        self.connections: set[Connection] = set()
        self._services = services
        self._options = {} if looks is None else {"looks": looks}
        self._server: asyncio.AbstractServer | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def listen(self, path: str | os.PathLike[str]) -> None:
        """Listens on a Unix socket at ``path``, 0600, in a directory that only this user can enter. Raises OSError."""
        loop = asyncio.get_running_loop()
        before = os.umask(0o177)
        try:
            self._server = await loop.create_unix_server(lambda: FramedTransport(self._made), path=Path(path))
        finally:
            os.umask(before)

    def tell_state(self, state: State) -> None:
        for connection in self.connections:
            connection.say_state(state)

    def stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()

    async def close(self, code: str, message: str, seconds: float) -> None:
        """No more connections; those that are open get their answers, a goodbye and so many seconds for both."""
        self.stop_accepting()
        closing = [each.close(code, message, grace=seconds, seconds=seconds) for each in list(self.connections)]
        await asyncio.gather(*closing, return_exceptions=True)
        for task in list(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _made(self, transport: FramedTransport) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(transport), name="maka-host-connection")
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, transport: FramedTransport) -> None:
        if len(self.connections) >= MOST:
            transport.put(_FULL)
            await transport.close(linger=True)
            return
        connection = Connection(transport, self._services, **self._options)
        self.connections.add(connection)
        try:
            await connection.run()
        finally:
            self.connections.discard(connection)
