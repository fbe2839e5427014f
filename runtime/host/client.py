"""A program's connection to the host of a root, kept up over losses and restarts."""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from ...journal.events import JsonObject
from ...journal.store import default_root
from ..ids import new_id
from ..tasks import all_done
from . import absence, ownership
from .calls import Calls
from .following import follow
from .link import Caller, HostUnreachable, Link, LinkLost, RequestInterrupted, pauses, reach
from .protocol import HostError, State
from .watching import Frame, Subscription

T = TypeVar("T")
#: Refusals that pass by themselves: a host is coming, or going and perhaps coming back.
_PASSING: Final = frozenset({"host_not_ready", "host_draining"})
#: Seconds that a host has for its handshake even where time is short: it is not to be blamed for what went before.
_FAIR: Final = 1.0
#: Seconds after which a connection counts as one that was kept.
_STEADY: Final = 1.0


def connect(
    root: str | os.PathLike[str] | None = None,
    *,
    surface: str = "library",
    client_id: str | None = None,
    wait_ready: bool = True,
    timeout: float = 10.0,
    reconnect: bool = True,
) -> "Client":
    """A client of the host of ``root``, to be used as ``async with connect(…) as client``.

    ``surface`` says what kind of program it is. Entering waits until the host is ready, unless ``wait_ready`` is False.
    ``timeout``: seconds in which a host that is alive shows it, and in which one that went away may come back, if
    ``reconnect``. Entering raises HostUnreachable where no host runs, and HostError where it refuses the connection.
    """
    return Client(
        root, surface=surface, client_id=client_id, wait_ready=wait_ready, timeout=timeout, reconnect=reconnect
    )


class Client(Calls):
    """``connect`` makes one. It belongs to one event loop; any number of its tasks may use it at once."""

    def __init__(
        self,
        root: str | os.PathLike[str] | None,
        *,
        surface: str,
        client_id: str | None,
        wait_ready: bool,
        timeout: float,
        reconnect: bool,
    ) -> None:
        from ... import __version__

        self.root = default_root() if root is None else Path(root)
        self.reconnects = reconnect
        self._timeout = timeout
        self._wait_ready = wait_ready
        who = {"id": client_id or new_id(), "surface": surface, "version": __version__}
        self._caller = Caller(root=self.root, hello=who, patience=timeout, told=self._tell)
        self._link: Link | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._gone: asyncio.Future[None] | None = None
        #: Why there will be no connection any more.
        self._failure: HostUnreachable | HostError | None = None
        self._changed = asyncio.Event()

    async def __aenter__(self) -> "Client":
        until = asyncio.get_running_loop().time() + self._timeout
        self._link = await self._dial(until, first=True)
        self._gone = asyncio.get_running_loop().create_future()
        self._keeper = asyncio.get_running_loop().create_task(self._keep(self._link), name="maka-client")
        if self._wait_ready:
            try:
                await self._ready(until)
            except BaseException:
                await self.aclose()
                raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def host_epoch(self) -> str:
        """Of the host that is connected, or was last."""
        return self._last().host_epoch

    @property
    def state(self) -> State | Literal["disconnected"]:
        """The host's, as it last told it."""
        link = self._last()
        return "disconnected" if link.lost.is_set() else link.state

    @property
    def closed(self) -> "Awaitable[None]":
        """Done once the connection is gone for good: closed here, or lost and not back in time."""
        self._last()
        assert self._gone is not None
        return asyncio.shield(self._gone)

    async def aclose(self) -> None:
        """Ends the connection, and the subscriptions on it. What it asked for goes on at the host. Raises nothing."""
        if self._keeper is not None:
            self._failure = self._failure or HostUnreachable("this client was closed; connect again")
            self._keeper.cancel()
            if await all_done([self._keeper]):
                raise asyncio.CancelledError

    async def request(self, operation: str, input: JsonObject, *, once: bool = False) -> Any:
        """The result of an operation, by its name and input, as docs/protocol.md has them.

        It is sent again over a lost connection and a restart of the host, which is safe by the ids in it, unless
        ``once``. Raises HostError for the host's refusal, HostUnreachable, RequestInterrupted.
        """
        return await self._asked(operation, lambda link: link.request(operation, input), once=once)

    async def subscribe(self, session_id: str, since: int | None = None) -> Subscription:
        """Watches a session. ``since``: the number of the newest event that is known here; what came behind it is told.

        Raises as ``request``. The subscription lives as long as this connection: ``follow`` goes on over the next.
        """
        return await self._asked("subscription.open", lambda link: link.subscribe(session_id, since))

    def follow(self, session_id: str, since: int | None = None) -> AsyncGenerator[Frame, None]:
        """The frames of a session, over lost connections and restarts: no durable event is missed or told twice.

        Whenever it is opened again a frame ``opened`` comes first, with the snapshot; deltas of before are void then.
        Raises SubscriptionClosed for a session that is removed or unavailable, and what ``subscribe`` raises.
        """
        return follow(self, session_id, since)

    async def ended(self, host_epoch: str) -> None:
        """Returns once this client is not connected to that host any more, or after the timeout."""
        until = asyncio.get_running_loop().time() + self._timeout
        while self.state != "disconnected" and self.host_epoch == host_epoch and await self._change(until):
            pass

    # ------------------------------------------------------------ requests

    async def _asked(self, operation: str, ask: Callable[[Link], Awaitable[T]], *, once: bool = False) -> T:
        until: float | None = None
        sent = False
        waits = pauses()
        loop = asyncio.get_running_loop()
        while True:
            try:
                link = await self._linked(until)
            except (HostUnreachable, HostError) as error:
                if sent:
                    raise _interrupted(operation) from error
                raise
            refused: Exception
            try:
                return await ask(link)
            except LinkLost as lost:
                sent = sent or lost.sent
                refused = _interrupted(operation) if sent else _lost(self.root)
            except HostError as error:
                if error.code not in _PASSING:
                    raise
                refused = error
            if not self.reconnects or (once and (sent or isinstance(refused, HostError))):
                raise refused
            until = until or loop.time() + self._timeout
            if isinstance(refused, HostError):
                await self._passed(link, refused.code, until)
            if loop.time() >= until:
                raise refused
            await asyncio.sleep(next(waits))

    async def _passed(self, link: Link, code: str, until: float) -> None:
        """Waits until what was refused may be taken."""
        while not link.lost.is_set() and not (code == "host_not_ready" and link.state == "ready"):
            if not await self._change(until):
                return

    async def _linked(self, until: float | None) -> Link:
        """A connection that is up, as soon as there is one."""
        until = until or asyncio.get_running_loop().time() + self._timeout
        while True:
            if self._failure is not None:
                raise _again(self._failure)
            link = self._last()
            if not link.lost.is_set():
                return link
            if not await self._change(until):
                raise _lost(self.root)

    async def _ready(self, until: float) -> None:
        while (link := await self._linked(until)).state != "ready":
            if (link.state == "draining" and not self.reconnects) or not await self._change(until):
                raise HostUnreachable(
                    f"the host of {self.root} ({ownership.process({'pid': link.registered.pid})}) is {link.state}; "
                    "try again in a while"
                )

    # ------------------------------------------------------------ the connection

    async def _keep(self, link: Link) -> None:
        """One connection after the other, until there is none any more."""
        loop = asyncio.get_running_loop()
        waits = pauses()
        try:
            while True:
                begun = loop.time()
                await link.lost.wait()
                await link.aclose()
                if not self.reconnects:
                    raise _lost(self.root)
                # A host that drops every connection at once is not to be asked as fast as it can.
                if loop.time() - begun > _STEADY:
                    waits = pauses()
                await asyncio.sleep(next(waits))
                link = self._link = await self._dial(loop.time() + self._timeout, first=False)
                self._tell()
        except (HostUnreachable, HostError) as error:
            self._failure = self._failure or error
        finally:
            try:
                await link.aclose()
            finally:
                assert self._gone is not None
                self._gone.set_result(None)
                self._tell()

    async def _dial(self, until: float, *, first: bool) -> Link:
        """``first``: where nobody owns the root there is no host to wait for."""
        loop = asyncio.get_running_loop()
        for pause in pauses():
            link = await reach(self._caller, max(until - loop.time(), min(self._timeout, _FAIR)))
            if link is not None:
                return link
            owner = ownership.owner(self.root)
            if owner is None and first:
                raise HostUnreachable(absence.look(self.root).message)
            if loop.time() + pause >= until:
                break
            await asyncio.sleep(pause)
        if owner is None:
            raise _lost(self.root)
        raise HostUnreachable(absence.look(self.root).message)

    def _last(self) -> Link:
        if self._link is None:
            raise HostUnreachable("this client is not connected; use it as `async with connect(…) as client`")
        return self._link

    def _tell(self) -> None:
        """Wakes all who wait for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _change(self, until: float) -> bool:
        """Waits for the next one; False once it is too late."""
        try:
            async with asyncio.timeout_at(until):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True


def _again(failure: HostUnreachable | HostError) -> HostUnreachable | HostError:
    if isinstance(failure, HostError):
        return HostError(failure.code, str(failure))
    return HostUnreachable(str(failure))


def _lost(root: Path) -> HostUnreachable:
    return HostUnreachable(
        f"the connection to the host of {root} was lost; look with `maka host status`, then connect again"
    )


def _interrupted(operation: str) -> RequestInterrupted:
    return RequestInterrupted(
        f"the connection was lost before {operation} was answered, so it may have been done; "
        "connect again and ask again with the same ids"
    )
