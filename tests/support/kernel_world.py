"""One simulated process with a kernel in it: sessions, clients that behave as they like, and what must hold of it all.

``simulate(seed)`` is a whole story: processes one after the other, of which all but the last may crash at any await.
"""

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from random import Random
from typing import Any, Final

import attrs

from maka.journal.errors import JournalError, JournalLocked, JournalWriteError
from maka.journal.events import Draft, Event, JsonObject, Purpose
from maka.runtime.backends.base import BackendContext, BackendRegistry
from maka.runtime.continuation.plan import Continuation, Facts, plan
from maka.runtime.continuation.safety import SafetyObservation, Unobserved
from maka.runtime.errors import (
    ContinuationRevalidationError,
    HandoffRefused,
    InteractionRefused,
    KernelClosed,
    RuntimeFailure,
    RuntimeInteractionFailStopError,
    RuntimeOwnerCleanupError,
    SessionArchived,
    SessionBusy,
    SessionQuarantined,
    SettleRefused,
    TurnCancelled,
)
from maka.runtime.handoff.abandonment import abandon
from maka.runtime.handoff.denials import has_explicit_sandbox_boundary_denial
from maka.runtime.handoff.pause import HandoffPause
from maka.runtime.handoff.request import HandoffRequest
from maka.runtime.interactions import JournalInteractions
from maka.runtime.journals import OpenSession
from maka.runtime.kernel.failures import leaves
from maka.runtime.kernel.generations import Deadlines
from maka.runtime.kernel.kernel import RuntimeKernel
from maka.runtime.kernel.stream import TurnStream
from maka.runtime.lifecycle import Lifecycle, LifecycleEvent
from maka.runtime.session_events import DELTAS, SessionEvent

from .chaos_authority import ChaosAuthority, ChaosMessages
from .chaos_backend import HAZARDS, PROBE, THEMES, ChaosBackend, ChaosError, Watch
from .drafts import rename
from .kernel_invariants import left_open, untrue, wrongs
from .memory_journals import BEGAN, MemoryJournal, MemoryJournals, fold
from .seeded_loop import Crashed, run
from .watched_loop import WatchedLoop

DEADLINES: Final = Deadlines(stop=2.0, dispose=2.0, after_step=5.0, exit=3.0, grace=0.1)
#: Seconds in which clients begin what they do, and after which whatever was drawn must be over.
BUSY: Final = 20.0
OVER: Final = 120.0
#: Said of a journal that was closed.
_CLOSED: Final = "is closed; open it again"
#: What may be told where nothing has gone wrong.
_CALM: Final = (
    TurnCancelled,
    KernelClosed,
    SessionBusy,
    InteractionRefused,
    ContinuationRevalidationError,
    HandoffRefused,
    SettleRefused,
)
#: Why a request for a handoff, or its commit, may be refused.
_REFUSED: Final = ("run_over", "handoff_pending", "not_reached", "composition_missing")
#: Whatever a backend calls is there.
_TOOLS: Final = ("drawn", "t")
#: What a turn begins with.
_OPENS: Final = ("turn/start", "continuation/start")


class Broken(AssertionError):
    """An invariant does not hold."""


@attrs.define(eq=False)
class _Client:
    """A turn as its client sees it."""

    session_id: str
    turn_id: str
    how: str
    run_id: str = attrs.Factory(lambda self: f"{self.turn_id}-run", takes_self=True)
    stream: TurnStream | None = None
    told: list[SessionEvent] = attrs.Factory(list)
    #: It has read to the end.
    read: bool = False
    #: It was cancelled while it read.
    cancelled: bool = False
    error: BaseException | None = None


class World:
    """``number`` tells the processes of one story apart. ``main`` is its life."""

    def __init__(self, random: Random, number: int, journals: MemoryJournals, sessions: list[str]) -> None:
        some = random.sample(HAZARDS, random.choice([0, 0, 1, 2, 3, 5, 9, len(HAZARDS)]))
        self.watch = Watch(random, frozenset(some) | random.choice([*THEMES, frozenset()]))
        self.journals = journals
        self.sessions = sessions
        self._random = random
        self._number = number
        self._ids = 0
        self._acting: tuple[str, ...] = ()
        self._clients: list[_Client] = []
        self._backends: list[ChaosBackend | WatchedLoop] = []
        self._real_loop = random.random() < 0.25
        #: Set when a run begins in the session.
        self._begins: dict[str, asyncio.Event] = {}
        #: Session and request of each handoff that was asked for.
        self._requests: list[tuple[str, HandoffRequest]] = []
        #: A stop in flight: session → what its attempt ended with, once it has.
        self._attempts: dict[str, asyncio.Future[BaseException | None]] = {}
        self._opened: set[str] = set()
        #: Sends that went on when the kernel closed the journal: their runs cannot be settled.
        self._unsettled: set[tuple[str, str]] = set()
        #: Sessions that were quarantined while they were open.
        self._quarantined: set[str] = set()
        #: When the newest attempt began.
        self._attempted: dict[str, float] = {}
        self._real: JournalInteractions | None = None
        self._hostile: ChaosAuthority | None = None
        self._messages: ChaosMessages | None = None
        journals.on_sync = self._sync
        journals.on_open = self._open

    def _new_id(self) -> str:
        self._ids += 1
        return f"p{self._number}-{self._ids}"

    # ------------------------------------------------------------ what the kernel is given

    async def _sync(self, journal: MemoryJournal) -> None:
        random = self._random
        await asyncio.sleep(random.choice([0, 0, 0.001, 0.01, 0.3]) * random.random())
        sealing = any(event.type == "handoff/pause" for event in journal.events[journal.durable :])
        if sealing and not self.watch.dead and random.random() < 0.2:
            self._stop(journal.session_id)
        if self.watch.may("sync fails", 0.3 if sealing else 0.04):
            self.watch.journal_failed.add(journal.session_id)
            raise JournalWriteError("the disk is drawn to fail", errno=5, poisoned=random.random() < 0.5)

    async def _open(self, session_id: str) -> None:
        await asyncio.sleep(self._random.choice([0, 0, 0.05, 0.5]) * self._random.random())
        if self.watch.may("open fails", 0.2):
            self.watch.journal_failed.add(session_id)
            raise JournalError("the journal is drawn not to open")

    async def _activation(self, operation: Callable[[], Awaitable[None]]) -> None:
        if self.watch.may("activation fails", 0.1):
            raise ChaosError("activation")
        await operation()
        await asyncio.sleep(self._random.choice([0, 0, 0.5]) * self._random.random())
        if self.watch.may("activation fails", 0.1):
            raise ChaosError("activation, late")

    async def _build(self, context: BackendContext) -> ChaosBackend | WatchedLoop:
        if self.watch.may("build is slow", 0.5):
            await asyncio.sleep(self._random.uniform(0, 2))
        if self.watch.may("build fails", 0.3):
            raise ChaosError("build")
        made = WatchedLoop(self.watch, context) if self._real_loop else None
        backend = made or ChaosBackend(self.watch, context)
        self._backends.append(backend)
        return backend

    def _opened_here(self, session_id: str) -> OpenSession | None:
        return self.kernel.opened(session_id)

    def _heard(self, event: LifecycleEvent) -> None:
        session_id, watch = event.session_id, self.watch
        if event.kind == "stop_requested":
            watch.stopping.add(event.data["run_id"])
            if session_id in self._attempts:
                watch.wrong(f"two attempts to stop {session_id} at once")
            self._attempted[session_id] = asyncio.get_running_loop().time()
            self._attempts[session_id] = asyncio.get_running_loop().create_future()
        elif event.kind == "stop_settled":
            error = event.data["error"]
            self._attempts.pop(session_id).set_result(error)
            self._stopped(session_id, event.data["turn_id"], event.data["run_id"], error)
        elif event.kind == "session_quarantined":
            if self.kernel.opened(session_id) is not None:
                self._quarantined.add(session_id)
        elif event.kind == "run_started":
            if session_id in self._begins:
                self._begins[session_id].set()
        elif event.kind == "session_opened":
            self._opened.add(session_id)
        elif event.kind == "session_closed" and watch.closing:
            self._unsettled |= {send for send in watch.sending if send[0] == session_id}
        elif event.kind == "session_degraded" and session_id not in watch.journal_failed and not watch.closing:
            watch.wrong(
                f"the journal of {session_id} counts as failed ({event.data['error']!r}), and nothing had failed"
            )

    def _stopped(self, session_id: str, turn_id: str, run_id: str, error: BaseException | None) -> None:
        durable = self.journals.events(session_id)
        begun = any(event.type in _OPENS and event.data["turn_id"] == turn_id for event in durable)
        ended = any(event.type == "turn/end" and event.data["turn_id"] == turn_id for event in durable)
        # A kernel that closes leaves to others what was handed over.
        ended = ended or (self.watch.closing and _sealed(durable, run_id))
        failed = session_id in self.watch.journal_failed
        if begun and not ended and not failed:
            self.watch.wrong(f"the stop of {run_id} is over ({error!r}) and its turn has no end")
        for backend in self._backends:
            if backend.session_id == session_id and backend.stop_failed and backend.disposals != 1:
                self.watch.wrong(f"a backend of {session_id} failed to stop and was disposed {backend.disposals} times")
            told = [] if error is None else list(leaves(error))
            for at, failure in backend.raised if backend.session_id == session_id else ():
                if at > self._attempted[session_id] and failure not in told:
                    self.watch.wrong(f"a stop of {session_id} did not tell that {failure} had failed: {error!r}")

    # ------------------------------------------------------------ a life

    async def main(self) -> None:
        random, loop = self._random, asyncio.get_running_loop()
        registry = BackendRegistry()
        registry.register("fake", self._build)
        lifecycle = Lifecycle()
        lifecycle.subscribe(self._heard)
        authority: Any = None
        which = random.choice(["none", "hostile", "hostile", "real", "real"])
        if which == "hostile":
            authority = self._hostile = ChaosAuthority(self.watch)
        elif which == "real":
            authority = self._real = JournalInteractions(
                self._opened_here,
                lifecycle=lifecycle,
                permission_timeout=random.choice([None, 1.0]),
            )
        if random.random() < 0.5:
            self._messages = ChaosMessages(self.watch)
        self.kernel = RuntimeKernel(
            journals=self.journals,
            backends=registry,
            interaction_authority=authority,
            message_authority=self._messages,
            run_backend_activation=self._activation,
            lifecycle=lifecycle,
            new_id=self._new_id,
            now=lambda: BEGAN + int(loop.time() * 1000),
            deadlines=DEADLINES,
            keep_open=random.choice([0, 1, 32]),
            observe=self._observe,
            has_explicit_sandbox_boundary_denial=self._has_denial,
        )
        actions = self._actions()
        self._acting = tuple(name for name, _ in actions)
        acting = [loop.create_task(action, name=name) for name, action in actions]
        if random.random() < 0.4:
            await asyncio.sleep(random.uniform(0, BUSY))
        else:
            await asyncio.wait(acting, timeout=random.uniform(BUSY, 2 * BUSY))
            await self._calm_down()
        await self._close()
        _, waiting = await asyncio.wait(acting, timeout=OVER)
        for task in sorted(waiting, key=hash):
            self.watch.wrong(f"{task.get_name()} waits for ever, although the kernel was closed")
            task.cancel()
        await asyncio.wait(acting)
        for task in acting:
            if task.cancelled():
                if task not in waiting:
                    self.watch.wrong(f"{task.get_name()} was cancelled, and nobody had cancelled it")
            elif (error := task.exception()) is not None:
                self.watch.wrong(f"{task.get_name()} failed: {_traced(error)}")
        # Some take their time to end, whoever cancels them.
        await asyncio.sleep(5.0)
        await self._look_at_clients()
        self._look_at_owners()
        self._look_at_requests()
        self._look_at_journals()

    async def _calm_down(self) -> None:
        """Everything is stopped and nothing new goes wrong: every session takes a turn again, or says why not."""
        self.watch.quiet = True
        await self._within("stopping every session", asyncio.wait([self._stop(name) for name in self.sessions]))
        await asyncio.sleep(2 * DEADLINES.exit + DEADLINES.dispose)
        for session_id in self.sessions:
            await self._within(f"a turn in {session_id} when all is calm", self._probe(session_id))

    async def _probe(self, session_id: str) -> None:
        watch = self.watch
        await self._try("abandon", self._abandon(session_id))
        client = _Client(session_id, f"{session_id}-probe-{self._number}", "probe")
        await self._run_client(client, text=PROBE)
        runs_on = any(session == session_id for session, _ in watch.sending)
        error = client.error
        if error is None:
            ended = [event.data["stop_reason"] for event in client.told if event.kind == "complete"]
            if ended != ["end_turn"]:
                watch.wrong(f"a calm turn in {session_id} ended {ended}, {client.told}")
        elif isinstance(error, SessionQuarantined):
            if not (session_id in watch.undisposed if error.permanent else runs_on):
                watch.wrong(f"{session_id} is quarantined for nothing: {error}")
        elif isinstance(error, SessionArchived):
            if not self._archived(session_id):
                watch.wrong(f"{session_id} counts as archived: {error}")
        elif not (isinstance(error, JournalError) and runs_on and session_id in watch.journal_failed):
            watch.wrong(f"a calm turn in {session_id} failed: {_traced(error)}")

    async def _close(self) -> None:
        watch = self.watch
        watch.closing = True
        await self._within("closing the kernel", self._close_kernel())
        await asyncio.sleep(0.001)
        # What is named is the kernel's, and clients are. Python 3.13 calls those without a name of a factory's "None".
        names = sorted(task.get_name() for task in asyncio.all_tasks())
        left = [name for name in names if not name.startswith(("Task-", "None", *self._acting))]
        if left and not watch.happened["deaf"]:
            watch.wrong(f"the kernel was closed and left behind {left}")
        for session_id in self.sessions:
            if self.journals.is_open(session_id):
                watch.wrong(f"the kernel was closed and {session_id} is open")
        try:
            await self.kernel.start_turn(self.sessions[0], text="too late").__anext__()
            watch.wrong("a closed kernel starts turns")
        except KernelClosed:
            pass

    async def _close_kernel(self) -> None:
        await self._try("close", self.kernel.aclose())

    async def _within(self, what: str, work: Awaitable[Any]) -> None:
        task = asyncio.ensure_future(work)
        done, _ = await asyncio.wait({task}, timeout=OVER)
        if not done:
            self.watch.wrong(f"{what} takes for ever")
            task.cancel()
            await asyncio.wait({task})
        else:
            task.result()

    # ------------------------------------------------------------ what clients do

    def _actions(self) -> list[tuple[str, Coroutine[Any, Any, None]]]:
        random = self._random
        made: list[tuple[str, Coroutine[Any, Any, None]]] = []
        for session_id in self.sessions:
            for turn in range(random.randint(1, 5)):
                how = random.choice(_WAYS)
                client = _Client(session_id, f"{session_id}-t{turn}-p{self._number}", how)
                made.append((f"client {client.turn_id} ({how})", self._later(partial(self._run_client, client))))
        for _ in range(random.randint(0, 6)):
            made.append(("stopper", self._later(self._stopper)))
        for _ in range(random.randint(0, 4)):
            what = random.choice([self._invalidate, self._append, self._release, self._status, self._abandon])
            made.append((what.__name__, self._later(partial(what, random.choice(self.sessions)))))
        for _ in range(random.choice([0, 1, 2, 4])):
            made.append(("hand over", self._later(partial(self._hand_over, random.choice(self.sessions)))))
        if self._real is not None:
            made += [("answer", self._answer()) for _ in range(2)]
        return made

    async def _later(self, action: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(self._random.choice([0.0, 0.0, self._random.uniform(0, BUSY)]))
        await action()

    async def _run_client(self, client: _Client, *, text: str = "go") -> None:
        self._clients.append(client)
        try:
            await _CLIENTS[client.how](self, client, text)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            client.error = error
            self._judge(error, f"client {client.turn_id} ({client.how})")

    async def _read(self, client: _Client, limit: int | None = None, slow: float = 0.0) -> None:
        assert client.stream is not None
        while limit is None or len(client.told) < limit:
            try:
                event = await client.stream.__anext__()
            except StopAsyncIteration:
                client.read = True
                return
            client.told.append(event)
            if event.kind not in DELTAS:
                untold = untrue(event, self.journals.events(client.session_id))
                if untold is not None:
                    self.watch.wrong(untold)
                if self._real is not None and event.kind in ("question_request", "permission_request"):
                    asked = self.journals.of(client.session_id, "interaction/requested")
                    if event.data["interaction_id"] not in [data["interaction_id"] for data in asked]:
                        self.watch.wrong(f"{event.kind} of {client.turn_id} was shown and is not durable")
            if slow:
                await asyncio.sleep(self._random.uniform(0, slow))

    async def _observe(self, session_id: str, state: object) -> SafetyObservation:
        await asyncio.sleep(self._random.choice([0, 0, 0.5]) * self._random.random())
        if self.watch.may("the inspector fails", 0.2):
            raise Unobserved("the inspector is drawn to fail")
        settled = not self.watch.may("something goes on in the background", 0.2)
        return SafetyObservation(
            workspace_identity="workspace", background_operations_settled=settled, available_tool_names=_TOOLS
        )

    async def _going_on(self, client: _Client, text: str) -> None:
        """The run that was interrupted last is continued, if one can be."""
        continuation = await self._continuation(client)
        if continuation is not None:
            client.stream = self.kernel.start_continuation(continuation)
            await self._read(client)

    async def _going_on_twice(self, client: _Client, text: str) -> None:
        """Likewise, and somebody else has the same plan."""
        continuation = await self._continuation(client)
        if continuation is None:
            return
        client.stream = self.kernel.start_continuation(continuation)
        other = attrs.evolve(continuation, run_id=self._new_id(), turn_id=self._new_id(), claim_id=self._new_id())
        stream = self.kernel.start_continuation(other)
        second = asyncio.ensure_future(self._second(stream))
        try:
            await self._read(client)
        finally:
            await asyncio.wait({second})

    async def _second(self, stream: TurnStream) -> None:
        try:
            async for _ in stream:
                pass
        except Exception as error:
            self._judge(error, "a second continuation")

    async def _finishing(self, client: _Client, text: str) -> None:
        """The turn that was handed over last is finished, once one was."""
        for _ in range(12):
            await asyncio.sleep(self._random.uniform(0, 2))
            continuation = await self._continuation(client, "handoff")
            if continuation is not None:
                break
        else:
            return
        client.turn_id, client.run_id = continuation.turn_id, continuation.run_id
        self.watch.successors.add(continuation.run_id)
        client.stream = self.kernel.start_continuation(continuation)
        await self._read(client, limit=self._random.choice([None, None, 3]))
        if self._random.random() < 0.3:
            await client.stream.aclose()

    async def _has_denial(self, session: OpenSession, identities: Sequence[JsonObject]) -> bool:
        if self.watch.may("lookup fails", 0.3):
            raise ChaosError("lookup")
        return await has_explicit_sandbox_boundary_denial(session, identities)

    async def _continuation(self, client: _Client, purpose: Purpose = "resume") -> Continuation | None:
        async with self.kernel.session(client.session_id):
            conversation = await self.kernel.conversation(client.session_id)
            opened = self.kernel.opened(client.session_id)
            if opened is None:
                return None
            await opened.journal.aflush()
            ids = iter([f"{client.turn_id}-invocation", f"{client.turn_id}-run", f"{client.turn_id}-claim"])
            try:
                observation: SafetyObservation | Unobserved = await self._observe(client.session_id, {})
            except Unobserved as error:
                observation = error
            return plan(
                Facts(client.session_id, opened.journal.state, conversation),
                source_run_id=None,
                purpose=purpose,
                observation=observation,
                new_id=ids.__next__,
                turn_id=client.turn_id if purpose == "resume" else None,
            ).continuation

    def _begin(self, client: _Client, text: str) -> TurnStream:
        client.stream = self.kernel.start_turn(
            client.session_id, text=text, turn_id=client.turn_id, run_id=f"{client.turn_id}-run"
        )
        return client.stream

    async def _whole(self, client: _Client, text: str) -> None:
        self._begin(client, text)
        await self._read(client)

    async def _slowly(self, client: _Client, text: str) -> None:
        self._begin(client, text)
        await self._read(client, slow=1.0)

    async def _partly(self, client: _Client, text: str) -> None:
        self._begin(client, text)
        await self._read(client, limit=self._random.randint(1, 6))

    async def _leaving(self, client: _Client, text: str) -> None:
        async with self._begin(client, text):
            await self._read(client, limit=self._random.randint(0, 8))

    async def _closing(self, client: _Client, text: str) -> None:
        stream = self._begin(client, text)
        await self._read(client, limit=self._random.randint(1, 8))
        await stream.aclose()
        await stream.aclose()

    async def _cancelled(self, client: _Client, text: str) -> None:
        self._begin(client, text)
        reading = asyncio.ensure_future(self._read(client))
        await asyncio.wait({reading}, timeout=self._random.uniform(0, 3))
        client.cancelled = not reading.done()
        reading.cancel()
        await asyncio.wait({reading})
        if not reading.cancelled():
            reading.result()
        if self._random.random() < 0.5:
            assert client.stream is not None
            await client.stream.aclose()
        elif self._random.random() < 0.5:
            await self._read(client)

    async def _only_started(self, client: _Client, text: str) -> None:
        await self._begin(client, text).started()

    async def _at_once(self, client: _Client, text: str) -> None:
        """Begun, and closed when it has hardly begun."""
        stream = self._begin(client, text)
        starting = asyncio.ensure_future(stream.started())
        await asyncio.wait({starting}, timeout=self._random.choice([0, 0.001, 0.1]) * self._random.random())
        try:
            await stream.aclose()
        finally:
            await asyncio.wait({starting}, timeout=OVER)
            if starting.cancel():
                self.watch.wrong(f"{client.turn_id} is closed and was never told whether it has started")
            else:
                starting.exception()

    async def _never(self, client: _Client, text: str) -> None:
        await self._begin(client, text).aclose()

    async def _stopper(self) -> None:
        random, session_id = self._random, self._random.choice(self.sessions)
        for _ in range(random.choice([1, 1, 2, 3])):
            future = self._stop(session_id, random.choice(["immediate", "immediate", "after_step"]))
            if random.random() < 0.2:
                future.cancel()
            elif random.random() < 0.5:
                await asyncio.wait({future})
            else:
                await asyncio.sleep(random.choice([0, 0.1, 2]) * random.random())

    def _stop(self, session_id: str, mode: Any = "immediate") -> "asyncio.Future[None]":
        opened = self.kernel.opened(session_id)
        idle = opened is not None and self.kernel.running(session_id) is None
        pending = opened.journal.state.continuations.pending() if opened is not None and idle else []
        future = self.kernel.stop_session(session_id, source="tester", mode=mode)
        attempt = self._attempts.get(session_id)

        def ended(future: "asyncio.Future[None]") -> None:
            if future.cancelled():
                return
            error = future.exception()
            if error is not None:
                self._judge(error, f"a stop of {session_id}")
            ended = [data["turn_id"] for data in self.journals.of(session_id, "turn/end")]
            for handoff in pending if error is None else ():
                if handoff.data["turn_id"] not in ended:
                    self.watch.wrong(f"a stop of {session_id} is over and {handoff.handoff_id} waits on")
            told = "nothing yet" if attempt is None or not attempt.done() else attempt.result()
            if isinstance(told, asyncio.CancelledError) and isinstance(error, KernelClosed):
                return  # the kernel closed over it, and says so to all who wait
            if attempt is not None and told is not error:
                self.watch.wrong(f"a stop of {session_id} ended with {error!r}, its attempt with {told!r}")

        future.add_done_callback(ended)
        return future

    async def _hand_over(self, session_id: str) -> None:
        """Asks whatever runs, a few times, and then commits, cancels, signals or forgets."""
        for _ in range(self._random.randint(1, 5)):
            if self.watch.closing:
                return
            if self.kernel.running(session_id) is None:
                begins = self._begins.setdefault(session_id, asyncio.Event())
                begins.clear()
                waiting = asyncio.ensure_future(begins.wait())
                await asyncio.wait({waiting}, timeout=BUSY)
                waiting.cancel()
            await asyncio.sleep(self._random.choice([0, 0, 0.1, 1]) * self._random.random())
            await self._try("hand over", self._ask_for_handoff(session_id))

    async def _ask_for_handoff(self, session_id: str) -> None:
        random, kernel = self._random, self.kernel
        run_id, opened = kernel.running(session_id), kernel.opened(session_id)
        turn = None if run_id is None or opened is None else opened.journal.state.turns.by_run(run_id)
        if run_id is None or turn is None or self.watch.quiet:
            return
        handoff = HandoffPause(
            handoff_id=self._new_id(),
            host_epoch="drawn",
            root_run_id=next(iter(turn.run_ids)),
            successor_run_id=f"{self._new_id()}-next",
            successor_invocation_id=self._new_id(),
            claim_id=self._new_id(),
        )
        signal = random.choice([None, asyncio.Event()])
        try:
            request = kernel.request_run_handoff(session_id, run_id, handoff, signal)
            if request is None:
                return
            self._requests.append((session_id, request))
            request.sealed.add_done_callback(lambda sealed: self._concluded(session_id, handoff, sealed))
            await self._handle(request, signal)
        except HandoffRefused as refused:
            if refused.code not in _REFUSED:
                self.watch.wrong(f"a handoff of {session_id} was refused as {refused.code}: {refused}")
            raise

    async def _handle(self, request: HandoffRequest, signal: asyncio.Event | None) -> None:
        random = self._random
        timeout = random.choice([None, None, None, random.uniform(0, 10)])
        await asyncio.wait({request.ready}, timeout=timeout)
        if signal is not None and random.random() < 0.2:
            signal.set()
        if random.random() < 0.2:
            request.cancel()
        await asyncio.sleep(random.choice([0, 0, 0.001, 0.1, 3]) * random.random())
        before = request.held
        try:
            if request.held:
                request.preview()
            if random.random() < 0.9 and request.commit():
                self.watch.happened["committed"] += 1
                if not before:
                    self.watch.wrong(
                        f"handoff {request.pause.handoff_id} was committed, and nothing stood at a boundary"
                    )
        finally:
            if random.random() < 0.9:
                request.cancel()
        if random.random() < 0.5:
            await asyncio.wait({request.sealed})

    def _concluded(self, session_id: str, handoff: HandoffPause, sealed: "asyncio.Future[bool]") -> None:
        """Is what is said of the seal what is on the disk?"""
        error = sealed.exception()
        durable = handoff.handoff_id in [data["handoff_id"] for data in self.journals.of(session_id, "handoff/pause")]
        if error is not None:
            self._judge(error, f"handoff {handoff.handoff_id}")
        if error is None and sealed.result() is not durable:
            self.watch.wrong(f"handoff {handoff.handoff_id} is said to be sealed: {sealed.result()}, and is: {durable}")
        if durable:
            self.watch.happened["sealed"] += 1

    async def _abandon(self, session_id: str) -> None:
        """Gives up what waits for its successor, if something does."""

        def abandoned(session: OpenSession) -> Sequence[Draft]:
            self.kernel.refuse_busy(session_id)
            pending = session.journal.state.continuations.pending()
            return abandon(session.journal.state, pending[0].handoff_id, "drawn") if pending else []

        await self._try("abandon", self.kernel.append(session_id, abandoned))

    async def _invalidate(self, session_id: str) -> None:
        await self._try("invalidate", self.kernel.invalidate_cached_backends())

    async def _append(self, session_id: str) -> None:
        patch: JsonObject = {"name": self._new_id()}
        drafts = [rename(patch["name"])]
        if self.watch.may("archive", 0.5):
            drafts.append(Draft("session/updated", {"patch": {"archived": True}}))
        await self._try("append", self.kernel.append(session_id, lambda session: drafts))

    async def _release(self, session_id: str) -> None:
        await self._try("release", self.kernel.release(session_id))

    async def _status(self, session_id: str) -> None:
        status = self.kernel.status(session_id)
        if len(set(status.turns)) != len(status.turns):
            self.watch.wrong(f"{session_id} has a turn twice: {status}")
        await self._try("session", self._hold(session_id))

    async def _hold(self, session_id: str) -> None:
        async with self.kernel.session(session_id) as session:
            await asyncio.sleep(self._random.uniform(0, 1))
            expected = self.watch.closing or session_id in self.watch.journal_failed
            if self.kernel.opened(session_id) is not session and not expected:
                self.watch.wrong(f"{session_id} was closed while it was held")

    async def _answer(self) -> None:
        """Answers whatever waits, now and then."""
        assert self._real is not None
        for _ in range(12):
            await asyncio.sleep(self._random.uniform(0, 3))
            session_id = self._random.choice(self.sessions)
            if self.kernel.opened(session_id) is None:
                continue
            await self._try("answer", self._answer_one(session_id))

    async def _answer_one(self, session_id: str) -> None:
        # A write that fails in here concerns the session, and the kernel has to know.
        async with self.kernel.session(session_id):
            await self._answer_any(session_id)

    async def _answer_any(self, session_id: str) -> None:
        assert self._real is not None
        waiting = await self._real.pending(session_id)
        if waiting:
            item = self._random.choice(waiting)
            answer: JsonObject = {"kind": "question_answer", "answers": ["yes"]}
            if item["kind"] == "permission":
                answer = {"kind": "permission_answer", "decision": self._random.choice(["allow", "deny"])}
            won = await self._real.answer(session_id, item["interaction_id"], answer)
            if won["outcome"] not in [data["outcome"] for data in self.journals.of(session_id, "interaction/resolved")]:
                self.watch.wrong(f"an answer to {item['interaction_id']} was taken and is not durable")

    async def _try(self, what: str, work: Awaitable[Any]) -> None:
        try:
            await work
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._judge(error, what)

    def _judge(self, error: BaseException, who: str) -> None:
        """Is it something that may be told in this process?"""
        watch = self.watch
        if isinstance(error, RuntimeOwnerCleanupError):
            group = error.cause
            inner = list(group.exceptions) if isinstance(group, BaseExceptionGroup) else []
            if len(inner) < 2 or len({id(one) for one in inner}) != len(inner) or inner != list(leaves(error)):
                watch.wrong(f"{who} was told a group that is none: {_traced(error)}")
        for leaf in leaves(error):
            known = isinstance(leaf, RuntimeFailure | JournalError | ChaosError)
            stray = isinstance(leaf, JournalLocked) or (_CLOSED in str(leaf) and not watch.closing)
            if not known or stray:
                watch.wrong(f"{who} was told {_traced(leaf)}")
            if not watch.happened and not isinstance(leaf, _CALM):
                alone = self._hostile is None and self._real is None and "nobody is there" in str(leaf)
                archived = isinstance(leaf, SessionArchived) and any(map(self._archived, self.sessions))
                closed = watch.closing and _CLOSED in str(leaf)
                if not alone and not archived and not closed:
                    watch.wrong(f"nothing has gone wrong, and {who} was told {_traced(leaf)}")

    def _archived(self, session_id: str) -> bool:
        return any(data["patch"].get("archived") for data in self.journals.of(session_id, "session/updated"))

    # ------------------------------------------------------------ what must hold when it is over

    async def _look_at_clients(self) -> None:
        for client in self._clients:
            stream = client.stream
            if stream is None or client.how == "never":
                continue
            starting = asyncio.ensure_future(stream.started())
            await asyncio.wait({starting}, timeout=1.0)
            if not starting.done():
                self.watch.wrong(f"{client.turn_id} ({client.how}) was never told whether it has started")
                starting.cancel()
                await asyncio.wait({starting})
                continue
            error = starting.exception()
            durable = self.journals.events(client.session_id)
            events = [event for event in durable if _of(event.data, client.turn_id)]
            if client.how != "finishing" and isinstance(error, TurnCancelled) and events:
                self.watch.wrong(f"{client.turn_id} was cancelled before it began and left {events}")
            if isinstance(error, TurnCancelled) and client.error not in (None, error):
                self.watch.wrong(f"{client.turn_id} was cancelled before it began and told {client.error!r}")
            if error is None and not events:
                self.watch.wrong(f"{client.turn_id} has started and left nothing")
            # A successor that was stopped before it began may have its end all the same: its handoff was given up.
            self._look_at_told(client, [] if isinstance(error, TurnCancelled) else durable)

    def _look_at_told(self, client: _Client, durable: list[Event]) -> None:
        told = [] if client.error is None else list(leaves(client.error))
        told += [one.authority_failure for one in told if isinstance(one, RuntimeInteractionFailStopError)]
        cut_off = any(isinstance(one, KernelClosed) for one in told)
        for failure in self.watch.failures.get(client.run_id, ()):
            if client.how in ("whole", "slowly") and failure not in told and not cut_off:
                self.watch.wrong(
                    f"{client.turn_id} ({client.how}) was not told of {failure!r}, but of {client.error!r}"
                )
        kinds = [event.kind for event in client.told]
        ended = any(event.type == "turn/end" and event.data["run_id"] == client.run_id for event in durable)
        ended = ended and client.session_id not in self.watch.journal_failed
        if _sealed(durable, client.run_id) and (said := {"complete", "error", "abort"} & set(kinds)):
            self.watch.wrong(f"{client.run_id} was handed over and told {said}")
        if kinds.count("complete") > 1 or "complete" in kinds[:-1]:
            self.watch.wrong(f"{client.turn_id} was told of its end at {kinds}")
        if client.read and not client.error and ended and kinds.count("complete") != 1:
            self.watch.wrong(f"{client.turn_id} ({client.how}) was read to its end and told {kinds}")

    def _look_at_owners(self) -> None:
        for owner in [] if self._hostile is None else self._hostile.owners:
            if owner.closes != 1:
                self.watch.wrong(f"the interactions of {owner.turn_id} were closed {owner.closes} times")
            if owner.closed and owner.releases != 1 and owner.session_id not in self.watch.journal_failed:
                self.watch.wrong(f"the interactions of {owner.turn_id} were closed and not released")
        for messages in [] if self._messages is None else self._messages.owners:
            sending = (messages.session_id, messages.run_id) in self._unsettled
            if messages.releases != 1 and not sending:
                self.watch.wrong(f"the messages of {messages.turn_id} were released {messages.releases} times")

    def _look_at_requests(self) -> None:
        for session_id, request in self._requests:
            if not (request.ready.done() and request.sealed.done()):
                self.watch.wrong(f"handoff {request.pause.handoff_id} of {session_id} was never concluded")

    def _look_at_journals(self) -> None:
        for session_id in self.sessions:
            events = self.journals.events(session_id)
            if session_id in self.watch.journal_failed or session_id not in self._opened:
                continue
            kinds = [data["kind"] for data in self.journals.of(session_id, "session/note")]
            if session_id in self._quarantined and "quarantine" not in kinds:
                self.watch.wrong(f"{session_id} was quarantined, and its journal does not say so")
            runs_on = {run_id for session, run_id in self._unsettled if session == session_id}
            for what in left_open(events):
                if not (what.startswith("run/settled") and any(repr(run_id) in what for run_id in runs_on)):
                    self.watch.wrong(f"{session_id} was left in order and a repair would add {what}")


_CLIENTS: Final[dict[str, Callable[[World, _Client, str], Awaitable[None]]]] = {
    "whole": World._whole,
    "probe": World._whole,
    "slowly": World._slowly,
    "partly": World._partly,
    "leaving": World._leaving,
    "closing": World._closing,
    "cancelled": World._cancelled,
    "only started": World._only_started,
    "at once": World._at_once,
    "never": World._never,
    "going on": World._going_on,
    "going on twice": World._going_on_twice,
    "finishing": World._finishing,
}
_WAYS: Final = [*3 * ["whole"], *(way for way in _CLIENTS if way != "probe"), *3 * ["going on"], *2 * ["finishing"]]


def _of(data: JsonObject, turn_id: str) -> bool:
    return turn_id == data.get("turn_id") or data.get("run_id") == f"{turn_id}-run"


def _sealed(durable: Iterable[Event], run_id: str) -> bool:
    return any(event.type == "handoff/pause" and event.data["run_id"] == run_id for event in durable)


def _traced(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)).rstrip()


# ---------------------------------------------------------------- a story


def simulate(seed: int) -> dict[str, list[Event]]:
    """The sessions' events at the end. Raises Broken, which tells what did not hold."""
    random = Random(seed)
    journals = MemoryJournals()
    sessions = [f"s{number}" for number in range(1, random.randint(1, 3) + 1)]
    for session_id in sessions:
        journals.create(session_id)
    for number in range(random.choice([1, 1, 2, 3])):
        world = World(random, number, journals, sessions)
        crash_after = random.choice([None, random.randint(1, 200), random.randint(1, 2_000)])
        journals = _live(world, seed + number, crash_after)
        _look(world.watch.wrongs)
        for session_id in sessions:
            _look([f"{session_id}: {wrong}" for wrong in wrongs(journals.events(session_id))])
    run(_recover(journals, sessions), seed)
    return {session_id: journals.events(session_id) for session_id in sessions}


def _live(world: World, seed: int, crash_after: int | None) -> MemoryJournals:
    left = world.journals

    def crash() -> None:
        nonlocal left
        world.watch.dead = True
        left = world.journals.crash(world.watch.random)

    try:
        run(world.main(), seed, crash_after=crash_after, on_crash=crash)
    except Crashed:
        pass
    except AssertionError as error:
        raise Broken("\n".join([*world.watch.wrongs, f"{type(error).__name__}: {error}"])) from error
    finally:
        world.watch.dead = True
    return left


async def _recover(journals: MemoryJournals, sessions: list[str]) -> None:
    """The next process opens everything; the one after that has nothing to do."""
    for session_id in sessions:
        await journals.close(await journals.open(session_id))
        once = journals.events(session_id)
        found = wrongs(once) + left_open(once)
        resting = [turn_id for turn_id, turn in fold(once).turns.open.items() if turn.rest is not None]
        # A successor opens no turn.
        opens = [event for event in once if event.type in _OPENS and event.data.get("purpose") != "handoff"]
        started = [event.data["turn_id"] for event in opens]
        ended = [event.data["turn_id"] for event in once if event.type == "turn/end"]
        if sorted(started) != sorted(ended + resting):
            found.append(f"turns {sorted(started)} have begun, {sorted(ended)} have ended")
        await journals.close(await journals.open(session_id))
        if len(journals.events(session_id)) != len(once):
            found.append("a second repair has written something")
        _look([f"{session_id}, repaired: {wrong}" for wrong in found])


def _look(found: list[str]) -> None:
    if found:
        raise Broken("\n".join(found))
