"""Lines from standard input while other things go on: whoever waits for one holds nobody up."""

import asyncio
import os
from collections import deque
from contextlib import suppress
from typing import Any, Final

from .console import is_terminal

#: Typed to leave.
QUIT: Final = "/quit"
_PIECE: Final = 64 * 1024


class Typed:
    """Reads in its event loop, as ``async with Typed(sys.stdin) as typed``. One task takes lines."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._fd: int | None = None
        self._lines: deque[str] = deque()
        self._rest = b""
        self._ended = stream is None
        self._came = asyncio.Event()

    @property
    def terminal(self) -> bool:
        """Does a person type there?"""
        return is_terminal(self._stream)

    @property
    def over(self) -> bool:
        """Will no line come any more?"""
        return self._ended and not self._lines

    @property
    def quits(self) -> bool:
        """Is what comes next the end, or ``/quit``?"""
        return self.over or (bool(self._lines) and self._lines[0].strip() == QUIT)

    def taken(self) -> list[str]:
        """The lines before one that quits, which nobody is given any more."""
        lines: list[str] = []
        while self._lines and not self.quits:
            lines.append(self._lines.popleft())
        return lines

    async def ready(self) -> None:
        """Returns once there is a line, or none comes any more."""
        while not self._lines and not self._ended:
            self._came.clear()
            await self._came.wait()

    async def until_quit(self) -> None:
        """Returns once ``/quit`` was typed, or no line comes any more."""
        while not self._ended and all(line.strip() != QUIT for line in self._lines):
            self._came.clear()
            await self._came.wait()

    async def line(self) -> str | None:
        """The next line, without its end; None behind the last."""
        await self.ready()
        return self._lines.popleft() if self._lines else None

    async def __aenter__(self) -> "Typed":
        if self._ended:
            return self
        try:
            self._fd = self._stream.fileno()
            asyncio.get_running_loop().add_reader(self._fd, self._readable)
        except (OSError, ValueError, AttributeError):
            # A file, which never keeps anybody waiting, or none at all.
            self._fd = None
            self._take(_encoded(self._stream.read()))
            self._take(b"")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._fd is not None:
            asyncio.get_running_loop().remove_reader(self._fd)

    def _readable(self) -> None:
        assert self._fd is not None
        raw = b""
        # A terminal that is gone has ended.
        with suppress(OSError):
            raw = os.read(self._fd, _PIECE)
        self._take(raw)
        if self._ended:
            asyncio.get_running_loop().remove_reader(self._fd)
            self._fd = None

    def _take(self, raw: bytes) -> None:
        *whole, self._rest = (self._rest + raw).split(b"\n")
        self._ended = not raw
        if self._ended and self._rest:
            whole.append(self._rest)
        self._lines += [line.decode(errors="replace").removesuffix("\r") for line in whole]
        self._came.set()


def _encoded(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode(errors="replace")
