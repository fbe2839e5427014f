"""The host of a root for a command that outlives it: reached, missed once it is gone, and followed by the next one."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import attrs

from ..runtime.app import find_app
from ..runtime.errors import RuntimeFailure
from ..runtime.host import HostUnreachable, connect
from ..runtime.host.endpoint import Registration, read_registration
from ..runtime.host.ownership import owner
from . import hosting
from .console import Console
from .documents import place_of_config

if TYPE_CHECKING:
    from ..runtime.host import Client

T = TypeVar("T")

#: Seconds without clients and turns after which a host ends that was started for one.
IDLE: Final = 600.0
#: Seconds in which a host that is alive shows it, and in which the next one may come.
PATIENCE: Final = 10.0
#: How often a host is started again before whoever lost it is told so.
_STARTS: Final = 3
#: Seconds between two looks at what nobody tells: whether a root has been given back, whether it has a host again.
_PAUSE: Final = 0.05


@attrs.define
class Hosts:
    """The hosts of a root, one after the other. ``app`` as ``--app`` names it; ``start``: one may be started."""

    root: str | None
    app: str | None
    console: Console
    start: bool
    #: The host that was reached last.
    last: Registration | None = None

    @property
    def place(self) -> Path:
        return hosting.place(self.root)

    @property
    def who(self) -> str:
        """The host that was reached last, for a sentence."""
        return "the host" if self.last is None else f"the host (process {self.last.pid})"

    @asynccontextmanager
    async def reached(self, seconds: float = hosting.START) -> "AsyncIterator[Client]":
        """A client of the host, which is started where none runs, if that may be.

        Raises HostUnreachable, and as ``hosting.ready``.
        """
        if self.start:
            await self.started(seconds)
        async with connect(self.place, surface="cli", timeout=PATIENCE) as client:
            first, self.last = self.last is None, read_registration(self.place) or self.last
            if first and self.app is not None:
                self._warn((await client.status()).get("app"), self.app)
            yield client

    async def started(self, seconds: float = hosting.START) -> None:
        """There is a host that is ready. Raises as ``hosting.ready``."""
        await hosting.ready(self.root, self._app(), IDLE, lambda said: self.console.say(said, "dim"), seconds)

    async def gone(self, client: "Client") -> bool:
        """Returns once that client's host has gone. Was it in order?"""
        epoch, pid = client.host_epoch, None if self.last is None else self.last.pid
        while client.host_epoch == epoch:
            if client.state != "disconnected":
                await client.ended(epoch)
            # Whoever dies gives the root back a moment later; and a connection alone may come again.
            elif (held := owner(self.place)) is not None and held["pid"] in (pid, None):
                await asyncio.sleep(_PAUSE)
            else:
                break
        # A host that has ended in order takes its registration away.
        registered = read_registration(self.place)
        return registered is None or registered.host_epoch != epoch

    async def another(self) -> None:
        """Returns once the root has a host again."""
        while owner(self.place) is None or read_registration(self.place) in (None, self.last):
            await asyncio.sleep(_PAUSE)

    async def missed(self, client: "Client") -> None:
        """Says it whenever the host is gone, and starts the next one where it was killed."""
        for _ in range(_STARTS):
            ended = await self.gone(client)
            if client.state == "disconnected":
                await self._followed(ended)
            try:
                await client.status()
            except RuntimeFailure:
                return
            self.last = read_registration(self.place) or self.last

    async def _followed(self, ended: bool) -> None:
        what = f"{self.who} has ended" if ended else f"{self.who} is gone"
        if ended or not self.start:
            self.console.say(f"{what}; the next one is waited for, for {PATIENCE:g} s", "yellow")
            return
        self.console.say(f"{what}; the next one is started", "yellow")
        try:
            await self.started()
        except RuntimeFailure as error:
            self.console.say(f"{error}; another is waited for, for {PATIENCE:g} s", "yellow")

    def _app(self) -> str | None:
        """What the next one runs where nobody names anything: what the last one ran."""
        if self.last is None or find_app(self.app, place_of_config(self.root), os.environ) is not None:
            return self.app
        return self.last.app

    def _warn(self, runs: str | None, app: str) -> None:
        if runs not in (None, app):
            way = "end that host with `maka host stop` first, where it is to be another"
            said = f"the host that runs has the app {runs}, not {app}, and this goes on with {runs}; {way}"
            self.console.say(said, "yellow")


async def with_host(hosts: Hosts, work: "Callable[[Client], Awaitable[T]]") -> T:
    """What ``work`` gives over the host of the root.

    ``work`` begins again where its host has died and nobody has started another; so it asks by ids of its own.
    """
    clock = asyncio.get_running_loop().time
    until = clock() + hosting.START
    met = False
    for left in reversed(range(_STARTS)):
        try:
            async with hosts.reached(max(until - clock(), 1.0)) as client:
                met = True
                missing = asyncio.get_running_loop().create_task(hosts.missed(client))
                try:
                    return await work(client)
                finally:
                    missing.cancel()
                    await asyncio.gather(missing, return_exceptions=True)
        except HostUnreachable as error:
            # Somebody wanted one to end that has ended in order.
            if not hosts.start or not left or (met and read_registration(hosts.place) is None):
                if not met and (why := await hosting.ending(hosts.place)) is not None:
                    raise HostUnreachable(f"{why}; try again once it has ended") from error
                raise
        if met:
            until = clock() + hosting.START
    raise AssertionError("the last loss is raised")
