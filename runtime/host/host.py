"""The life of a host: it takes the root, listens, recovers what is open, serves, and gives everything back in order."""

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal
from weakref import WeakValueDictionary

import attrs

from ...journal.backwards import events_between
from ...journal.errors import JournalError, SessionNotFound
from ...journal.events import Event, JsonObject
from ..errors import RuntimeFailure, describe
from ..ids import new_id
from ..journals import OpenSession
from ..kernel.generations import Deadlines
from ..lifecycle import LifecycleEvent, log
from ..sessions import SessionManager
from ..tasks import seen
from . import endpoint
from .broadcast import Following
from .endpoint import EndpointRefused
from .handlers import HANDLERS
from .lane import Floor, Lane
from .messages import QueuedMessages
from .operations import SubscriptionOpen
from .ownership import RootLock, RootLost
from .protocol import MAX_SUBSCRIPTIONS, HostError, State
from .recovering import Recovering
from .subscription import UNTOLD, Subscription
from .watchers import Watcher

if TYPE_CHECKING:
    from .connection import Caller, Connection
    from .server import Server

ShutdownMode = Literal["stop", "handoff"]

#: So many events, and bytes of them, that a client has missed are held for it at once.
_MISSED: Final = 500
_MISSED_BYTES: Final = 1024 * 1024
#: Seconds between two looks whether anybody uses the host, and whether it can be found.
_LOOK: Final = 1.0
#: What a client has to be told of although no event of the journal says so.
_TELLING: Final = frozenset({"session_degraded", "session_opened", "session_quarantined"})


@attrs.frozen(kw_only=True)
class HostDeadlines:
    """Seconds. ``recovery``: for one session; ``handoff``: for what runs to come to a step boundary; ``shutdown``: for
    everything that ends a host; ``goodbye``: for answers that are on their way. ``stall``: so many looks, a second
    apart, at a subscriber who takes nothing.
    """

    recovery: float = 30.0
    handoff: float = 60.0
    shutdown: float = 30.0
    goodbye: float = 2.0
    stall: int = 10


class ShutdownLate(RuntimeFailure):
    """The host did not end in its time: what still runs is cut off with the process, and recovered by the next one."""


class Host:
    """One root, served until ``shut_down``. ``app`` as for a SessionManager; ``app_name``: what it was found by.

    ``idle``: seconds without a connection and without anything to do, after which it ends by itself. ``on_ready`` is
    called once it serves everybody.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        app: object,
        *,
        app_name: str | None = None,
        idle: float | None = None,
        on_ready: Callable[[], None] = lambda: None,
        deadlines: HostDeadlines | None = None,
        kernel_deadlines: Deadlines | None = None,
    ) -> None:
        self.host_epoch = new_id()
        self.root = endpoint.name_of(root)
        self.state: State = "starting"
        self._root = Path(os.path.realpath(root))
        self._app_name = app_name
        self._idle = idle
        self._on_ready = on_ready
        self._deadlines = deadlines or HostDeadlines()
        self._started = time.time_ns() // 1_000_000
        #: The same by a clock that nobody sets.
        self._begun = time.monotonic()
        self._tasks: set[asyncio.Task[Any]] = set()
        #: Those that anything goes on in, each kept by just that.
        self._lanes: WeakValueDictionary[str, Lane] = WeakValueDictionary()
        self._watchers: dict[str, Watcher] = {}
        self._messages = QueuedMessages(self._opened, new_id)
        self.manager = SessionManager(
            self._root, app=app, message_authority=self._messages, watch=self._observed, deadlines=kernel_deadlines
        )
        self.manager.subscribe(self._heard)
        self._floor = Floor(
            kernel=self.manager.kernel,
            between=self._between,
            messages=self._messages,
            host_epoch=self.host_epoch,
            new_id=new_id,
            spawn=self.spawn,
            draining=lambda: self.state == "draining",
        )
        self._recovering = Recovering(self.manager, self.lane, deadline=self._deadlines.recovery)
        self._server: Server | None = None
        self._looking: asyncio.Task[None] | None = None
        self._lost: RootLost | None = None
        #: What keeps clients from finding it, as it was last said.
        self._told: str | None = None
        self._end = asyncio.Event()
        self._mode: ShutdownMode = "stop"
        self._handoff_time = self._deadlines.handoff
        #: When somebody used it last, by the loop's clock.
        self._used = 0.0

    # ------------------------------------------------------------ its life

    async def serve(self, lock: RootLock | None = None) -> None:
        """Takes the root, unless that was done before, and serves it until ``shut_down``. Gives it back in any case.

        Raises HostRunning, EndpointRefused, JournalError; RootLost once it has ended for that; ShutdownLate where what
        ends it took too long: then something still runs, and the root is kept for as long as this process lives.
        """
        if lock is None:
            lock = await asyncio.to_thread(RootLock.acquire, self._root)
        try:
            await self._served(lock, endpoint.prepare(lock, self.host_epoch))
        except ShutdownLate:
            raise
        except BaseException:
            lock.release()
            raise
        lock.release()

    async def _served(self, lock: RootLock, path: Path) -> None:
        from .server import Server

        self._server = Server(self)
        try:
            await self._server.listen(str(path))
            self._become("recovering", lock, path)
            self._looking = self.spawn(self._look_on(lock, path), "maka-host-look")
            await self._recover()
            if not self._end.is_set():
                self._become("ready", lock, path)
                await self._until_the_end()
            self._become("draining", lock, path)
            await self._bounded(self._drain())
        except ShutdownLate:
            raise
        except BaseException:
            await self._let_go(lock, path)
            raise
        await self._let_go(lock, path)
        if self._lost is not None:
            raise self._lost

    def shut_down(self, mode: ShutdownMode = "stop", timeout: float | None = None) -> None:
        """Ends it: at once where it is still recovering."""
        if not self._end.is_set():
            self._mode = mode
            if timeout is not None:
                self._handoff_time = timeout
            self._end.set()

    async def _recover(self) -> None:
        recovering = asyncio.ensure_future(self._recovering.run())
        ended = asyncio.ensure_future(self._end.wait())
        try:
            await asyncio.wait({recovering, ended}, return_when=asyncio.FIRST_COMPLETED)
            if recovering.done():
                recovering.result()
        finally:
            for task in (recovering, ended):
                task.cancel()
            await asyncio.gather(recovering, ended, return_exceptions=True)

    async def _look_on(self, lock: RootLock, path: Path) -> None:
        """Where somebody took its socket or its registration away, clients would not find it; where it was the lock's
        file, there may be a second host.
        """
        while True:
            await asyncio.sleep(_LOOK)
            if not lock.stands():
                self._lost = RootLost(self._root)
                log.error("%s", self._lost)
                self.shut_down()
                return
            await self._be_found(path)

    async def _be_found(self, path: Path) -> None:
        """What keeps clients from it is said once, and tried again at the next look."""
        assert self._server is not None
        try:
            if not self._server.reachable:
                endpoint.renew(path)
                await self._server.listen(str(path))
                log.warning("the socket %s was taken away; the host listens there again", path)
            found = endpoint.read_registration(self._root)
            if found is None or (found.host_epoch, found.state) != (self.host_epoch, self.state):
                endpoint.write(self._root, self._registration(path))
        except (EndpointRefused, JournalError) as error:
            self._cannot_be_found(str(error))
        except OSError as error:
            self._cannot_be_found(
                f"cannot listen on {path}: {error.strerror or error}; move elsewhere what stands there"
            )
        else:
            self._told = None

    def _cannot_be_found(self, why: str) -> None:
        if why != self._told:
            self._told = why
            log.error("clients cannot find the host, which goes on and tries again: %s", why)

    async def _stop_looking(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _until_the_end(self) -> None:
        loop = asyncio.get_running_loop()
        self._used = loop.time()
        while not self._end.is_set():
            waiting = asyncio.ensure_future(self._end.wait())
            try:
                await asyncio.wait({waiting}, timeout=_LOOK if self._idle is None else min(self._idle, _LOOK))
            finally:
                waiting.cancel()
            if self._in_use():
                self._used = loop.time()
            elif self._idle is not None and loop.time() - self._used >= self._idle and not self._end.is_set():
                log.info("nobody has used the host for %g s; it ends", self._idle)
                self.shut_down()

    def _in_use(self) -> bool:
        assert self._server is not None
        busy = any(not lane.at_rest for lane in self._lanes.values())
        return bool(self._server.connections) or busy or self._recovering.busy

    async def _drain(self) -> None:
        assert self._server is not None
        await self._recovering.cancel()
        running = [lane for lane in self._lanes.values() if lane.root is not None]
        if self._mode == "handoff":
            await asyncio.gather(*(self._hand_over(lane) for lane in running))
        await asyncio.gather(*(lane.end_with_host() for lane in running))
        for lane in self._lanes.values():
            # Before the sessions are closed: who watches one keeps it open.
            lane.finish("host_draining", "the host ends; open it again from the next one")
        failure: BaseException | None = None
        try:
            await self.manager.aclose(source="host_shutdown")
        except Exception as error:
            # It is in the journals, as far as they take anything; whoever starts the next host is to know.
            failure = error
            log.error("the host ended, and not everything could be cleaned up: %s", describe(error, typed=True))
        await self._stop_looking()
        await self._server.close("host_draining", "the host has ended", self._deadlines.goodbye)
        if isinstance(failure, JournalError):
            raise failure

    async def _hand_over(self, lane: Lane) -> None:
        handing = asyncio.ensure_future(
            self.manager.hand_over(lane.session_id, timeout=self._handoff_time, host_epoch=self.host_epoch)
        )
        asking = asyncio.ensure_future(self._asking(lane.session_id))
        await asyncio.wait({handing, asking}, return_when=asyncio.FIRST_COMPLETED)
        # It comes to no step without an answer, and a host that ends takes none.
        handing.cancel()
        asking.cancel()
        why, _ = await asyncio.gather(handing, asking, return_exceptions=True)
        if isinstance(why, asyncio.CancelledError):
            why = RuntimeFailure("a person is asked something in it")
        if isinstance(why, Exception):
            log.warning("session %s is not handed over: %s", lane.session_id, describe(why))

    async def _asking(self, session_id: str) -> None:
        """Waits until a person is asked something in the session."""
        asked = asyncio.Event()

        def heard(event: LifecycleEvent) -> None:
            if event.kind == "interaction_requested" and event.session_id == session_id:
                asked.set()

        unsubscribe = self.manager.subscribe(heard)
        try:
            found = self.manager.kernel.opened(session_id)
            if found is None or not found.journal.state.interactions.pending:
                await asked.wait()
        finally:
            unsubscribe()

    async def _bounded(self, draining: Coroutine[Any, Any, None]) -> None:
        """Raises ShutdownLate."""
        task = asyncio.ensure_future(draining)
        more = self._handoff_time if self._mode == "handoff" else 0.0
        await asyncio.wait({task}, timeout=self._deadlines.shutdown + more)
        if not task.done():
            task.add_done_callback(seen)
            raise ShutdownLate(
                f"the host of {self._root} did not end within {self._deadlines.shutdown + more:g} s; what still runs "
                "is cut off, and the next host recovers it"
            )
        task.result()

    async def _let_go(self, lock: RootLock, path: Path) -> None:
        """In any case, and as far as it goes."""
        await self._stop_looking()
        if self._server is not None:
            await self._server.close("host_draining", "the host has ended", 0.0)
        if lock.stands():
            endpoint.clear(path)
            endpoint.remove(self._root, self.host_epoch)
        for watcher in list(self._watchers.values()):
            watcher.cancel()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=self._deadlines.goodbye)

    def _become(self, state: State, lock: RootLock, path: Path) -> None:
        before, self.state = self.state, state
        assert self._server is not None
        try:
            if lock.stands():
                endpoint.write(self._root, self._registration(path))
        except JournalError as error:
            # A host that cannot be found from the first is none.
            if before == "starting":
                raise
            self._cannot_be_found(str(error))
        self._server.tell_state(state)
        log.info("the host of %s is %s", self._root, state)
        if state == "ready":
            self._on_ready()

    def _registration(self, path: Path) -> endpoint.Registration:
        from ... import __version__

        return endpoint.Registration(
            host_epoch=self.host_epoch,
            endpoint=str(path),
            pid=os.getpid(),
            state=self.state,
            started_at=self._started,
            version=__version__,
            root=self.root,
            app=self._app_name,
        )

    # ------------------------------------------------------------ what its connections need

    async def call(self, operation: str, asked: Any, caller: "Caller") -> JsonObject:
        """See Services."""
        return await HANDLERS[operation](self, asked, caller)

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> "asyncio.Task[Any]":
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def left(self, connection: "Connection") -> None:
        self._used = asyncio.get_running_loop().time()
        for watcher in [each for each in self._watchers.values() if each.connection is connection]:
            watcher.cancel()

    def lane(self, session_id: str) -> Lane:
        """Raises SessionNotFound."""
        lane = self._lanes.get(session_id)
        if lane is None:
            path = self.manager.path(session_id)
            if not path.exists():
                raise SessionNotFound(
                    f"there is no session {session_id} in {self._root}; `maka session list` names those there are",
                    path=path,
                )
            lane = self._lanes[session_id] = Lane(session_id, self._floor)
        return lane

    def status(self) -> JsonObject:
        from ... import __version__

        assert self._server is not None
        roots = [(lane.session_id, lane.root) for lane in self._lanes.values()]
        return {
            "host_epoch": self.host_epoch,
            "state": self.state,
            "pid": os.getpid(),
            "version": __version__,
            "root": self.root,
            "app": self._app_name,
            "started_at": self._started,
            "uptime": int(time.monotonic() - self._begun),
            "connections": sum(not each.lost.is_set() for each in self._server.connections),
            "in_flight": sum(each.in_flight for each in self._server.connections),
            "active": [
                {
                    "session_id": session_id,
                    "turn_id": root.turn_id,
                    "run_id": root.run_id,
                    **self._waits(session_id, root.turn_id),
                }
                for session_id, root in roots
                if root is not None
            ],
            "sessions": self._recovering.report.to_json(),
        }

    def _waits(self, session_id: str, turn_id: str) -> JsonObject:
        opened = self.manager.kernel.opened(session_id)
        if opened is None:
            return {"waiting": False, "queued": 0}
        state = opened.journal.state
        waiting = any(asked.turn_id == turn_id for asked in state.interactions.pending.values())
        return {"waiting": waiting, "queued": len(state.queue.waiting)}

    async def delete(self, session_id: str) -> Path:
        """Raises what the manager's ``delete`` raises."""
        path = await self.lane(session_id).put_away(lambda: self.manager.delete(session_id))
        self._lanes.pop(session_id, None)
        return path

    async def durable(self, session_id: str, before: int | None) -> int | None:
        """Events below this number are on the disk, and below ``before``."""
        opened = self.manager.kernel.opened(session_id)
        if opened is None:
            return before
        end = opened.journal.durable_seq + 1
        return end if before is None else min(before, end)

    def _between(self, session_id: str, after: int, upto: int) -> Following:
        events = events_between(self.manager.path(session_id), after, upto, lambda type_: type_ not in UNTOLD)
        return lambda: asyncio.to_thread(_next_of, events)

    # ------------------------------------------------------------ subscriptions

    async def subscribe(self, asked: SubscriptionOpen, caller: "Caller") -> JsonObject:
        """``subscription.open``. Raises HostError, JournalError."""
        connection = caller.connection
        if sum(each.connection is connection for each in self._watchers.values()) >= MAX_SUBSCRIPTIONS:
            raise HostError(
                "too_many_subscriptions",
                f"a connection watches at most {MAX_SUBSCRIPTIONS} sessions; close one, or open another connection",
            )
        subscription = Subscription(new_id(), asked.session_id, self.host_epoch)
        lane = self.lane(asked.session_id)
        watcher = Watcher(subscription, lane, connection, self._deadlines.stall, self._forget)
        self._watchers[subscription.subscription_id] = watcher
        try:
            snapshot, missed, following = await lane.open(subscription, asked.since)
        except BaseException:
            self._forget(watcher)
            raise
        watcher.begin(missed, following, caller.answered)
        if connection.lost.is_set():
            watcher.cancel()
        return {
            "subscription_id": subscription.subscription_id,
            "host_epoch": self.host_epoch,
            "sequence": 1,
            "snapshot": snapshot,
        }

    def unsubscribe(self, subscription_id: str, connection: "Connection") -> None:
        watcher = self._watchers.get(subscription_id)
        if watcher is None or watcher.connection is not connection:
            raise HostError(
                "not_found", f"this connection has no subscription {subscription_id[:80]}; it may be closed"
            )
        watcher.cancel()

    def _forget(self, watcher: Watcher) -> None:
        self._watchers.pop(watcher.subscription.subscription_id, None)

    # ------------------------------------------------------------ what happens in sessions

    def _opened(self, session_id: str) -> OpenSession | None:
        return self.manager.kernel.opened(session_id)

    def _observed(self, session: OpenSession, event: Event) -> None:
        if (lane := self._lanes.get(session.session_id)) is not None:
            lane.observed(session, event)

    def _heard(self, event: LifecycleEvent) -> None:
        if event.kind in _TELLING and (lane := self._lanes.get(event.session_id)) is not None:
            lane.changed()


def _next_of(events: Iterator[Event]) -> list[Event]:
    taken: list[Event] = []
    size = 0
    for event in events:
        taken.append(event)
        size += event.length
        if len(taken) >= _MISSED or size >= _MISSED_BYTES:
            break
    return taken
