"""One session in a host: its root turn, its queue, and everybody who watches. One root turn at a time.

What is decided is decided on the fold at the moment of its append (``admission``); what is remembered here beside the
journal is only which turn this process runs, and a crash may forget it.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs

from ...journal.errors import JournalError
from ...journal.events import Draft, Event, JsonObject
from ...journal.state import State
from ...journal.views.problem import sequence
from ...repair.closers import admission_end, plan_closers
from ..backends.base import StopMode
from ..continuation.shapes import Continuation
from ..errors import KernelClosed, TurnCancelled, describe
from ..journals import OpenSession
from ..kernel.kernel import RuntimeKernel
from ..kernel.stream import TurnStream
from ..lifecycle import log
from ..session_events import SessionEvent
from ..tasks import seen
from . import admission, projection
from .admission import Decision, Live, RootTurn, StopAsked
from .broadcast import Broadcast, Following
from .messages import QueuedMessages
from .operations import QueueRetract, TurnMessageSubmit, TurnStart
from .protocol import HostError
from .subscription import Subscription

#: Who stops what runs where a host ends.
HOST_SHUTDOWN: Final = "host_shutdown"
#: Seconds until what could not be admitted, because its journal could not be written, is tried again.
_AGAIN: Final = 5.0


@attrs.frozen(kw_only=True)
class Floor:
    """What all sessions of a host share. ``draining``: does it take nothing new any more? ``between``: see
    Broadcast, with the id of a session before it.
    """

    kernel: RuntimeKernel
    messages: QueuedMessages
    between: Callable[[str, int, int], Following]
    host_epoch: str
    new_id: Callable[[], str]
    spawn: Callable[[Coroutine[Any, Any, Any], str], "asyncio.Task[Any]"]
    draining: Callable[[], bool]
    #: The number of each session's newest projection: it outlives the session's lane.
    revisions: Counter[str] = attrs.Factory(Counter)


class Root:
    """The root turn that runs. ``begun``: its run stands open, or never will (``failure`` says why). ``over``: its run
    is settled, and everybody was told. ``heard``: who is told what it says, until then.
    """

    def __init__(self, turn_id: str, run_id: str, heard: Callable[[str, SessionEvent], None]) -> None:
        loop = asyncio.get_running_loop()
        self.turn_id = turn_id
        self.run_id = run_id
        self.stream: TurnStream | None = None
        self.stop: StopAsked | None = None
        self.failure: BaseException | None = None
        self._heard: Callable[[str, SessionEvent], None] | None = heard
        self.begun: asyncio.Future[None] = loop.create_future()
        self.over: asyncio.Future[None] = loop.create_future()

    def said(self, event: SessionEvent) -> None:
        if self._heard is not None:
            self._heard(self.run_id, event)

    def let_go(self) -> None:
        """A backend that keeps what it was sent keeps nothing of its session with it."""
        self._heard = None
        for future in (self.begun, self.over):
            if not future.done():
                future.set_result(None)


class Lane:
    """A session has one while anybody holds it: who asks something of it, who watches, its root turn, and what waits to
    be tried again. Nothing is in it that the next one would miss.
    """

    def __init__(self, session_id: str, floor: Floor) -> None:
        self.session_id = session_id
        self.root: Root | None = None
        self._floor = floor
        self._kernel = floor.kernel
        #: Commands that what comes next has to wait for.
        self._holding = 0
        self._again: asyncio.TimerHandle | None = None
        self._broadcast = Broadcast(
            opened=lambda: self._kernel.opened(session_id),
            content=self._content,
            between=partial(floor.between, session_id),
            number=self._number,
            spawn=floor.spawn,
        )
        #: Keeps the session open while somebody watches it.
        self._watching: asyncio.Task[None] | None = None

    # ------------------------------------------------------------ turns

    async def start(self, asked: TurnStart, client: str | None = None) -> JsonObject:
        """See docs/protocol.md, ``turn.start``."""

        def decide(state: State) -> Decision:
            return admission.start(state, self._live(), asked, self._floor.new_id, client=client)

        try:
            decision, revision = await self._decided(decide)
        except HostError:
            if not await self._ended():
                # What is in the way may wait here for nobody.
                self.advance()
                raise
            decision, revision = await self._decided(decide)
        await self._begun(asked.turn_id)
        return {
            "turn": await self.turn(asked.turn_id),
            "revision": decision.receipt.seq if decision.receipt else revision,
        }

    async def submit(self, asked: TurnMessageSubmit, client: str | None) -> JsonObject:
        """See docs/protocol.md, ``turn.message.submit``."""

        def decide(state: State) -> Decision:
            return admission.submit(state, self._live(), asked, self._floor.new_id, client=client)

        decision, revision = await self._decided(decide)
        if (turn_id := decision.reply.get("turn_id")) is not None and decision.reply["disposition"] == "turn_started":
            await self._begun(turn_id)
        self.advance()
        return {**decision.reply, "revision": decision.receipt.seq if decision.receipt else revision}

    async def retract(self, asked: QueueRetract) -> JsonObject:
        def decide(state: State) -> Decision:
            return admission.retract(state, asked, self._floor.messages.leased(self.session_id))

        decision, revision = await self._decided(decide)
        return {**decision.reply, "revision": decision.receipt.seq if decision.receipt else revision}

    async def turn(self, turn_id: str) -> JsonObject:
        """How a turn stands, durably. Raises HostError (``not_found``), JournalError."""
        async with self._kernel.session(self.session_id) as session:
            running = None if self.root is None else self.root.turn_id
            found = projection.turn(session.journal.state, self.session_id, turn_id, running=running)
            if found is None:
                raise projection.no_turn(self.session_id, turn_id)
            if session.journal.durable_seq < session.journal.next_seq - 1:
                await session.journal.aflush()
            return found

    async def stop(self, turn_id: str, run_id: str, request: StopAsked) -> JsonObject:
        """Stops the turn, and waits for its end: ``{turn, retracted, revision}``.

        Raises HostError (``not_found``, ``operation_conflict`` where another run has the turn), JournalError.
        """
        found = await self.turn(turn_id)
        known = await self._stop_known(turn_id, request)
        self._holding += 1
        try:
            # A stop ends a turn that was handed over by its successor: that it was asked of another run is no matter.
            if found["run_id"] != run_id and not known:
                raise HostError(
                    "operation_conflict",
                    f"turn {turn_id} of session {self.session_id} has run {found['run_id']}, not {run_id}; stop that",
                )
            await self._stopped(found, request)
            return await self._stop_answer(turn_id, request)
        finally:
            self._holding -= 1
            self.advance()

    async def _stop_known(self, turn_id: str, request: StopAsked) -> bool:
        """Was this asked for before? Raises HostError where something else was, under the same id."""
        async with self._kernel.session(self.session_id) as session:
            return admission.stop_known(session.journal.state, turn_id, request)

    async def _stopped(self, found: JsonObject, request: StopAsked) -> None:
        turn_id, root = found["turn_id"], self.root
        if root is not None and root.turn_id == turn_id:
            if root.stop is not None and root.stop.stop_id == request.stop_id and root.stop != request:
                raise admission.conflict(f"stop {request.stop_id}")
            root.stop = root.stop or request
            with suppress(Exception):
                # What failed in a backend is told by its quarantine; the turn has its end all the same.
                await asyncio.shield(self._stop_kernel(request))
            await self._exited(root)
        elif found["status"] == "paused":
            await asyncio.shield(self._stop_kernel(request))
        elif found["status"] == "indeterminate":
            await self._append(lambda state: [_stop_draft(state, turn_id, request)])
            await self._append(lambda state: plan_closers(state).drafts)
        elif found["status"] in ("admitted", "created"):
            await self._append(lambda state: self._aborted(state, turn_id, request))
        if request.retract:
            # Where another stop was first, or the turn was faster, there is no event of this one yet.
            await self._take_back(request.stop_id)
        await self._broadcast.settled()

    async def _ended(self) -> bool:
        """Had the root turn its end, and its run none yet? Whoever has seen that end may ask for the next turn: what is
        left of the run has been waited for.
        """
        root, found = self.root, self._kernel.opened(self.session_id)
        if root is None or found is None or not found.journal.state.turns.closed.own(root.turn_id):
            return False
        await self._exited(root)
        return True

    async def _exited(self, root: Root) -> None:
        """Waits until it is over, or has had the time that a backend has that does not end."""
        await self._kernel.exited(self.session_id, root.run_id)
        if root.turn_id not in self._kernel.status(self.session_id).turns:
            await asyncio.shield(root.over)

    def _stop_kernel(self, request: StopAsked) -> "asyncio.Future[None]":
        return self._kernel.stop_session(
            self.session_id,
            source=request.source,
            mode=request.mode,
            stop_id=request.stop_id,
            retract=partial(self._waiting, request.mode) if request.retract else None,
            client=request.client,
        )

    def _waiting(self, mode: StopMode, state: State) -> list[str]:
        """The messages that a stop takes back: of those that the run has taken already none, unless it ends at once."""
        leased = () if mode == "immediate" else self._floor.messages.leased(self.session_id)
        return [message_id for message_id in state.queue.waiting if message_id not in leased]

    async def _take_back(self, stop_id: str) -> None:
        def drafts(state: State) -> list[Draft]:
            if state.receipts.get("stop", stop_id) or state.receipts.get("retract", stop_id):
                return []
            return [admission.taken_back(stop_id, self._waiting("after_step", state))]

        await self._append(drafts)

    async def _stop_answer(self, turn_id: str, request: StopAsked) -> JsonObject:
        """A stop that joined another one has no event of its own."""
        async with self._kernel.session(self.session_id) as session:
            receipts = session.journal.state.receipts
            stopped, taken = receipts.get("stop", request.stop_id), receipts.get("retract", request.stop_id)
        turn = await self.turn(turn_id)
        if turn["status"] not in projection.AT_REST:
            raise HostError(
                "session_unavailable",
                self._kernel.status(self.session_id).quarantined
                or f"turn {turn_id} of session {self.session_id} was stopped, and its end could not be written; stop "
                "it again",
            )
        retracted = [
            *(sequence(stopped.data.get("retract")) if stopped else ()),
            *(sequence(taken.data.get("message_ids")) if taken else ()),
        ]
        revision = stopped.seq if stopped else taken.seq if taken else turn["revision"]
        return {"turn": turn, "retracted": retracted, "revision": revision}

    def _aborted(self, state: State, turn_id: str, request: StopAsked) -> list[Draft]:
        """The end of an admitted turn that never began."""
        drafts = admission_end(state, turn_id, {"kind": "aborted", "source": request.source})
        return [_stop_draft(state, turn_id, request), *drafts] if drafts else []

    async def end_with_host(self) -> None:
        """The host ends: what runs is stopped, what has not begun is left to the next one."""
        root = self.root
        if root is not None:
            with suppress(Exception):
                # What failed is told by those whose it is; the turn has its end, or the next host gives it one.
                await asyncio.shield(
                    self._kernel.stop_session(self.session_id, source=HOST_SHUTDOWN, handed_over=False)
                )
            await self._exited(root)

    # ------------------------------------------------------------ continuations

    async def resume(self, continuation: Continuation) -> JsonObject:
        """Goes on from a boundary: ``{turn, revision}`` once the run has begun. Raises what kept it from beginning."""
        await self._ended()
        live = self._live()
        if live.turn_id is not None or live.refusal is not None:
            raise live.refusal or HostError(
                "session_busy", f"session {self.session_id} runs turn {live.turn_id}; wait for its end, or stop it"
            )
        root = self._take(continuation.turn_id, continuation.run_id)
        self._drive(
            root,
            lambda: self._kernel.start_continuation(continuation, listener=root.said),
        )
        await asyncio.shield(root.begun)
        if root.failure is not None:
            raise root.failure
        turn = await self.turn(continuation.turn_id)
        async with self._kernel.session(self.session_id) as session:
            receipt = session.journal.state.receipts.get("turn", continuation.turn_id)
        return {"turn": turn, "revision": receipt.seq if receipt else turn["revision"]}

    # ------------------------------------------------------------ what comes next

    async def close_open(self) -> None:
        """Closes what a dead host left open in it, where that could not be done before. Raises JournalError."""
        await self._append(lambda state: [] if self.root is not None else plan_closers(state).drafts)

    def advance(self) -> None:
        """Begins what waits, if the session is at rest."""
        found = self._kernel.opened(self.session_id)
        rests = found is not None and not _waits(found.journal.state)
        if self._again is not None:
            return  # what could not be done a moment ago cannot be done at once
        if self.root is None and not rests and not self._holding and not self._floor.draining():
            self._floor.spawn(self.next(), f"next turn of session {self.session_id}").add_done_callback(seen)

    async def next(self) -> None:
        """As ``advance``, and waits until that has begun."""
        if self.root is not None or self._holding or self._floor.draining():
            return
        found = self._kernel.opened(self.session_id)
        if found is not None and not _waits(found.journal.state):
            return

        def decide(state: State) -> Decision:
            return Decision() if self._holding else admission.successor(state, self._live(), self._floor.new_id)

        try:
            decision, _ = await self._decided(decide)
        except KernelClosed:
            return
        except JournalError as error:
            log.error("session %s cannot go on with what waits in it: %s", self.session_id, describe(error))
            self._try_again()
            return
        if decision.turn is not None:
            await self._begun(decision.turn.turn_id)

    def _try_again(self) -> None:
        if self._again is None and not self._floor.draining():
            self._again = asyncio.get_running_loop().call_later(_AGAIN, self._tried)

    def _tried(self) -> None:
        self._again = None
        self.advance()

    # ------------------------------------------------------------ the root turn

    async def _decided(self, decide: Callable[[State], Decision]) -> tuple[Decision, int]:
        """What was decided, durably, and the number of the newest event that it made. Its turn runs from here on.

        What was begun is finished although the caller is cancelled.
        """
        carrying = self._floor.spawn(self._carried_out(decide), f"command in session {self.session_id}")
        carrying.add_done_callback(seen)
        return await asyncio.shield(carrying)

    async def _carried_out(self, decide: Callable[[State], Decision]) -> tuple[Decision, int]:
        made: list[tuple[Decision, Root | None]] = []

        def drafts(session: OpenSession) -> Sequence[Draft]:
            decision = decide(session.journal.state)
            turn = decision.turn
            # Taken with the decision: whoever decides next sees it.
            made.append((decision, None if turn is None else self._take(turn.turn_id, turn.run_id)))
            return decision.drafts

        try:
            events = await self._kernel.append(self.session_id, drafts)
        except BaseException as error:
            if made and (root := made[-1][1]) is not None:
                self._give_back(root, error)
            raise
        decision, root = made[-1]
        if root is not None and decision.turn is not None:
            self._run(root, decision.turn)
        return decision, events[-1].seq if events else -1

    def _take(self, turn_id: str, run_id: str) -> Root:
        assert self.root is None
        root = self.root = Root(turn_id, run_id, self._broadcast.heard)
        return root

    def _give_back(self, root: Root, error: BaseException) -> None:
        root.failure = error
        self._let_go(root)

    def _let_go(self, root: Root) -> None:
        root.let_go()
        if self.root is root:
            self.root = None

    def _run(self, root: Root, turn: RootTurn) -> None:
        message = turn.input
        self._drive(
            root,
            lambda: self._kernel.start_turn(
                self.session_id,
                content=sequence(message.get("content")),
                turn_id=turn.turn_id,
                run_id=turn.run_id,
                message_id=turn.message_id,
                max_steps=turn.max_steps,
                quotes=message.get("quotes"),
                attachments=message.get("attachments"),
                listener=root.said,
            ),
        )

    def _drive(self, root: Root, begin: Callable[[], TurnStream]) -> None:
        self._floor.spawn(self._driven(root, begin), f"root turn {root.turn_id}").add_done_callback(seen)

    async def _driven(self, root: Root, begin: Callable[[], TurnStream]) -> None:
        try:
            await self._to_the_end(root, begin)
            self._broadcast.over(root.run_id)
            if self._broadcast.watched:
                # How the turn ended is told before what comes next has begun; where its journal failed it is opened
                # again for that, which gives the turn its end.
                with suppress(JournalError, KernelClosed, HostError):
                    await self.turn(root.turn_id)
                await self._broadcast.settled()
        finally:
            self._let_go(root)
        # What nobody runs any more may rest in doubt.
        self._broadcast.changed()
        self.advance()

    async def _to_the_end(self, root: Root, begin: Callable[[], TurnStream]) -> None:
        try:
            if root.stop is None and not self._floor.draining():
                root.stream = begin()
                await root.stream.started()
                root.begun.set_result(None)
                async for _ in root.stream:
                    pass  # its listener has it all
                return
        except (TurnCancelled, KernelClosed) as error:
            root.failure = error
        except Exception as error:
            root.failure = error
            log.error("turn %s of session %s: %s", root.turn_id, self.session_id, describe(error, typed=True))
        if not root.begun.done():
            await self._never_began(root)

    async def _never_began(self, root: Root) -> None:
        """An admission that nobody runs is ended; one that a drain has cut off is the next host's."""
        if self._floor.draining() and root.stop is None:
            return
        said = {} if root.failure is None else {"message": describe(root.failure, typed=True)}
        reason: JsonObject = {"kind": "failed", "failure_class": "start_failed", **said}

        def drafts(state: State) -> list[Draft]:
            if root.stop is not None:
                return self._aborted(state, root.turn_id, root.stop)
            return admission_end(state, root.turn_id, reason)

        try:
            await self._append(drafts)
        except (JournalError, KernelClosed) as error:
            log.error("turn %s of session %s has no end: %s", root.turn_id, self.session_id, describe(error))
            self._try_again()

    async def _begun(self, turn_id: str) -> None:
        root = self.root
        if root is not None and root.turn_id == turn_id:
            await asyncio.shield(root.begun)

    def _live(self) -> Live:
        root, status = self.root, self._kernel.status(self.session_id)
        refusal = None
        if self._floor.draining():
            refusal = HostError("host_draining", "this host ends; ask the next one")
        elif status.quarantined is not None:
            refusal = HostError("session_unavailable", status.quarantined)
        elif root is None and status.turns:
            refusal = HostError("session_busy", f"session {self.session_id} is busy with turn {status.turns[0]}")
        if root is None:
            return Live(refusal=refusal)
        return Live(turn_id=root.turn_id, stopping=root.stop is not None, refusal=refusal)

    async def _append(self, decide: Callable[[State], Sequence[Draft]]) -> list[Event]:
        return await self._kernel.append(self.session_id, lambda session: decide(session.journal.state))

    # ------------------------------------------------------------ those who watch

    async def open(
        self, subscription: Subscription, since: int | None
    ) -> tuple[JsonObject, list[Event], Following | None]:
        """The snapshot, durable, and the events behind ``since`` that it holds: the first of them, and what gives those
        that follow. Raises HostError, JournalError.
        """
        async with self._kernel.session(self.session_id) as session:
            position = session.journal.next_seq - 1
            if since is not None and since > position:
                raise HostError(
                    "operation_conflict",
                    f"session {self.session_id} has {position} for its newest event, and {since} was named; it is "
                    "another journal, or what you have of it was lost: open it without `since`",
                )
            snapshot = self._broadcast.attach(subscription, session)
            self._keep_open()
            try:
                await session.journal.aflush()
                following = None if since is None else self._floor.between(self.session_id, since, position)
                missed = [] if following is None else await following()
            except BaseException:
                self.close(subscription)
                raise
            return snapshot, missed, following

    def close(self, subscription: Subscription) -> None:
        self._broadcast.detach(subscription)
        if not self._broadcast.watched and self._watching is not None:
            self._watching.cancel()
            self._watching = None

    def finish(self, reason: str, message: str) -> None:
        """Nobody watches it any more."""
        self._broadcast.finish(reason, message)
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None

    async def put_away(self, move: Callable[[], Coroutine[Any, Any, Path]]) -> Path:
        """The session is moved, and those who watch are told; where that cannot be they go on. Where it is now.

        Raises HostError (``session_busy``), and what ``move`` raises.
        """
        await self._ended()
        if self.root is not None:
            raise HostError(
                "session_busy", f"session {self.session_id} runs turn {self.root.turn_id}; stop it, or wait for its end"
            )
        await self._broadcast.settled()
        watching, self._watching = self._watching, None
        if watching is not None:
            # Who watches keeps it open.
            watching.cancel()
            await asyncio.wait({watching})
        try:
            path = await move()
        except BaseException:
            if self._broadcast.watched:
                self._keep_open()
            raise
        self.finish("session_removed", f"session {self.session_id} was moved to the trash")
        return path

    @property
    def at_rest(self) -> bool:
        """Does nothing run here, nor is to be tried again?"""
        return self.root is None and self._again is None

    @property
    def watched(self) -> bool:
        return self._broadcast.watched

    def observed(self, session: OpenSession, event: Event) -> None:
        self._broadcast.observed(session, event)

    def changed(self) -> None:
        self._broadcast.changed()

    def _keep_open(self) -> None:
        if self._watching is None:
            self._watching = self._floor.spawn(self._watch(), f"watch session {self.session_id}")

    async def _watch(self) -> None:
        with suppress(JournalError, KernelClosed):
            async with self._kernel.session(self.session_id):
                await asyncio.get_running_loop().create_future()

    def _number(self) -> int:
        self._floor.revisions[self.session_id] += 1
        return self._floor.revisions[self.session_id]

    def _content(self, session: OpenSession) -> JsonObject:
        return projection.snapshot(
            session.journal.state,
            self.session_id,
            running=None if self.root is None else self.root.turn_id,
            unavailable=self._kernel.status(self.session_id).degraded,
        )


def _stop_draft(state: State, turn_id: str, request: StopAsked) -> Draft:
    data: JsonObject = {"stop_id": request.stop_id, "turn_id": turn_id, "source": request.source, "mode": request.mode}
    if request.retract:
        data["retract"] = list(state.queue.waiting)
    if request.client is not None:
        data["client"] = request.client
    return Draft("turn/stop_requested", data)


def _waits(state: State) -> bool:
    return bool(state.queue.waiting or state.admissions.waiting())
