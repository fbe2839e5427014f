"""The kernel: many sessions, each with its turns, its backend and its journal. Starts turns, and stops them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final, get_args

import attrs

from ...journal.errors import InvalidEvent, JournalConflict, JournalError, JournalWriteError
from ...journal.events import Blocks, Draft, Event, JsonObject
from ...journal.writer import wall_ms
from ...repair.closers import abandonment
from ..backends.base import BackendRegistry, StopMode, StopReason
from ..continuation.failpoints import Hook, nowhere
from ..continuation.safety import Observe
from ..continuation.shapes import Continuation
from ..conversation import Conversation
from ..errors import KernelClosed, RuntimeFailure, RuntimeInteractionInvariantError, SessionBusy, TurnCancelled
from ..handoff.denials import DenialLookup, has_explicit_sandbox_boundary_denial
from ..handoff.pause import HandoffPause
from ..handoff.request import HandoffRequest
from ..handoff.sameness import CompositionReader, recorded_composition
from ..ids import check_id, new_id
from ..journals import Journals, OpenSession
from ..lifecycle import Lifecycle, Listener
from ..recovery import Tell
from ..tasks import seen
from ..tools.base import Tool, text_block
from .authority import RunIdentity, RuntimeInteractionAuthority, RuntimeMessageAuthority
from .backends import Backends
from .course import Course, leave
from .delivery import SessionListener
from .entries import Entries
from .entry import Entry
from .failures import combine
from .generations import Deadlines
from .idle import Idle
from .openings import FromBoundary, FromMessage, Opening, Rerun
from .parts import Activation, Parts, Reconcile
from .reasons import named
from .run import Run
from .stops import Retract, StopAttempt, StopRequest
from .stream import TurnStream

#: Seconds for runs to end in where all tasks of the loop are cancelled.
_AT_ONCE: Final = 1.0


@attrs.frozen
class SessionStatus:
    """What this process knows of a session that the journal does not tell: is it ``open`` for writing here; ``turns``
    waiting or running here, oldest first; ``quarantined`` and ``degraded`` as sentences, or None.
    """

    session_id: str
    open: bool
    turns: list[str]
    stopping: bool
    quarantined: str | None
    degraded: str | None


async def no_reconcilers(session: OpenSession) -> int:
    """No tool can tell what became of a call."""
    return 0


async def no_rerun(session: OpenSession, continuation: Continuation, tell: Tell) -> None:
    """Raises RuntimeFailure: there is no tool to execute a call with."""
    raise RuntimeFailure("this kernel has no tools to execute calls again with; give it `rerun`")


async def _straight(operation: Callable[[], Awaitable[None]]) -> None:
    await operation()


class RuntimeKernel:
    """Runs turns of any number of sessions, each on a backend of its own. Use it from one event loop.

    ``journals`` gives the sessions, ``backends`` what runs them, ``tools`` what a backend is offered for its model.
    ``interaction_authority`` answers questions, ``message_authority`` hands out messages for running turns.
    ``run_backend_activation`` wraps the reservation of a backend. ``new_id``, ``now`` (Unix ms) and ``deadlines`` are
    replaced in tests. Without ``live_text`` nothing is journalled of a text while it streams. At most ``keep_open``
    sessions stay open with nothing running.

    ``observe`` looks at a session's workspace; what it sees goes into the header of each run, and without it nothing is
    continued. ``reconcile`` finds out about calls whose outcome is unknown before a turn, ``rerun`` executes such calls
    again where a continuation says so. ``has_explicit_sandbox_boundary_denial`` and ``read_composition`` look up what a
    continuation inherits of its source; by themselves in the journal. ``failpoint`` is awaited at the places of
    ``continuation.failpoints``.
    """

    def __init__(
        self,
        *,
        journals: Journals,
        backends: BackendRegistry,
        interaction_authority: RuntimeInteractionAuthority | None = None,
        message_authority: RuntimeMessageAuthority | None = None,
        run_backend_activation: Activation = _straight,
        lifecycle: Lifecycle | None = None,
        new_id: Callable[[], str] = new_id,
        now: Callable[[], int] = wall_ms,
        deadlines: Deadlines | None = None,
        tools: Sequence[Tool] = (),
        live_text: bool = True,
        keep_open: int = 32,
        observe: Observe | None = None,
        reconcile: Reconcile = no_reconcilers,
        rerun: Rerun = no_rerun,
        has_explicit_sandbox_boundary_denial: DenialLookup = has_explicit_sandbox_boundary_denial,
        read_composition: CompositionReader = recorded_composition,
        failpoint: Hook = nowhere,
    ) -> None:
        self.lifecycle = lifecycle or Lifecycle()
        self._parts = Parts(
            journals=journals,
            backends=backends,
            interaction_authority=interaction_authority,
            message_authority=message_authority,
            activation=run_backend_activation,
            lifecycle=self.lifecycle,
            new_id=new_id,
            now=now,
            deadlines=deadlines or Deadlines(),
            tools=tools,
            live_text=live_text,
            observe=observe,
            reconcile=reconcile,
            rerun=rerun,
            has_denial=has_explicit_sandbox_boundary_denial,
            read_composition=read_composition,
            failpoint=failpoint,
        )
        self._entries = Entries(self._parts)
        self._backends = Backends(self._parts, self._entries)
        self._idle = Idle(self._parts, self._entries, self._backends, keep_open)
        self._course = Course(self._parts, self._entries, self._backends, self._idle)
        self._closing: asyncio.Task[None] | None = None
        #: Stops of turns that wait for their successor, in flight, by session.
        self._giving_up: dict[str, asyncio.Task[None]] = {}

    # ------------------------------------------------------------ turns

    def start_turn(
        self,
        session_id: str,
        *,
        text: str | None = None,
        content: Blocks | None = None,
        turn_id: str | None = None,
        run_id: str | None = None,
        invocation_id: str | None = None,
        message_id: str | None = None,
        max_steps: int | None = None,
        quotes: list[JsonObject] | None = None,
        attachments: list[JsonObject] | None = None,
        root: JsonObject | None = None,
        listener: SessionListener | None = None,
    ) -> TurnStream:
        """A turn that begins with the first event that is asked for. See TurnStream for what it raises. Raises
        InvalidEvent at once for an id that can be none.

        ``root`` says what the turn is for, as its run's header keeps it: ``{"kind": "user"}`` by itself, or another
        kind with what the program adds; whoever finishes the turn has the same. ``listener`` is called with each event
        when it happens, however many there are; whoever iterates is then given none, and waits for the end.

        Turns of one session run one after the other, in the order in which they were begun.
        """
        for name, given in (
            ("turn_id", turn_id),
            ("run_id", run_id),
            ("invocation_id", invocation_id),
            ("message_id", message_id),
        ):
            if given is not None:
                check_id(name, given)
        identity = RunIdentity(session_id, turn_id or self._parts.new_id(), run_id or self._parts.new_id())
        invocation_id = invocation_id or self._parts.new_id()
        opening = FromMessage(
            identity,
            invocation_id=invocation_id,
            message_id=message_id or self._parts.new_id(),
            content=content if content is not None else [text_block(text or "")],
            max_steps=max_steps,
            quotes=quotes,
            attachments=attachments,
            root=_root(root),
            observe=self._parts.observe,
        )
        return self._stream(identity, invocation_id, opening, listener)

    def start_continuation(self, continuation: Continuation, *, listener: SessionListener | None = None) -> TurnStream:
        """The run that a plan has found can be started, with the first event that is asked for.

        All that the plan relied on is checked again; iterating raises ContinuationRevalidationError where it does not
        hold any more, or another run goes on from the same boundary. See TurnStream for what else it raises, and
        ``start_turn`` for ``listener``.
        """
        if self._parts.observe is None:
            raise RuntimeFailure("this kernel observes no workspace, so it continues no run; give it `observe`")
        identity = RunIdentity(continuation.session_id, continuation.turn_id, continuation.run_id)
        opening = FromBoundary(
            continuation,
            observe=self._parts.observe,
            rerun=self._parts.rerun,
            has_denial=self._parts.has_denial,
            read_composition=self._parts.read_composition,
            failpoint=self._parts.failpoint,
        )
        return self._stream(identity, continuation.invocation_id, opening, listener)

    def _stream(
        self, identity: RunIdentity, invocation_id: str, opening: Opening, listener: SessionListener | None
    ) -> TurnStream:
        run = Run(
            self._entries.find(identity.session_id) or Entry(identity.session_id),
            identity,
            invocation_id=invocation_id,
            opening=opening,
            listener=listener,
            new_id=self._parts.new_id,
            deadlines=self._parts.deadlines,
            spawn=self._parts.spawn,
            overdue=self._backends.overdue,
            degrade=self._course.degrade,
        )
        return TurnStream(run, self._claim, self._abandon)

    def request_run_handoff(
        self, session_id: str, run_id: str, pause: HandoffPause, signal: asyncio.Event | None = None
    ) -> HandoffRequest | None:
        """Asks a run to pause at its next step boundary, for a successor to finish its turn; None where that run does
        not run here, or nothing is continued here (without ``observe``). ``signal``, once set, cancels the request.

        Raises HandoffRefused: ``run_over``, ``handoff_pending``, ``pause_invalid``.
        """
        entry = self._entries.find(session_id)
        run = None if entry is None else entry.current
        if run is None or run.identity.run_id != run_id or self._parts.observe is None:
            return None
        return run.handing.ask(pause, signal)

    def stop_session(
        self,
        session_id: str,
        *,
        source: str = "user",
        mode: StopMode = "immediate",
        reason: StopReason = "user_stop",
        stop_id: str | None = None,
        retract: Retract | None = None,
        client: str | None = None,
        handed_over: bool = True,
    ) -> "asyncio.Future[None]":
        """Stops what runs in the session and cancels what has not begun. Takes effect at once; the future ends when the
        turn's end is durable, and raises what failed, to everybody who asked the same error.

        A turn that was handed over and waits for its successor, in a session that is open here, is ended too: the
        successor will never run. Without ``handed_over`` it is left to wait.

        ``retract`` gives the messages that are taken back in the same batch, of those that wait by then. ``client``:
        who asked, for the journal. Neither counts for who joins a stop that is in flight.

        ``immediate`` while ``after_step`` is in flight escalates it. Where nothing runs here (the session is idle, runs
        in another process, or is not there) nothing happens, and the future is done. Raises ValueError for a ``mode``
        or a ``reason`` that there is not, TypeError for a ``source``, ``stop_id`` or ``client`` that is no text,
        InvalidEvent for a ``stop_id`` that can be none.
        """
        for given, known in ((mode, get_args(StopMode)), (reason, get_args(StopReason))):
            if given not in known:
                raise ValueError(f"a stop is {' or '.join(map(repr, known))}, not {given!r}")
        into_journal: tuple[object, ...] = (source, stop_id or "", client or "")
        if not all(isinstance(text, str) for text in into_journal):
            raise TypeError("source, stop_id and client of a stop must be texts: they go into the journal")
        if stop_id is not None:
            check_id("stop_id", stop_id)
        request = StopRequest(stop_id or self._parts.new_id(), named(source), mode, retract, client)
        return self._stop(session_id, request, reason, handed_over=handed_over)

    def _stop(
        self, session_id: str, request: StopRequest, reason: StopReason = "user_stop", *, handed_over: bool = True
    ) -> "asyncio.Future[None]":
        """``handed_over``: a turn that waits for its successor is ended too."""
        entry = self._entries.find(session_id)
        if entry is None:
            return self._done(None)
        for run in [run for run in entry.runs if not run.begun]:
            self._cancel(run)
        attempt = entry.attempt
        if attempt is not None:
            if handed_over and attempt.give_up is None:
                # A closing kernel leaves alone what was handed over; who stops the turn does not.
                attempt.give_up = lambda _: self._give_up(session_id, request)
            if request.mode == "immediate":
                attempt.escalate(request)
            return _joined(attempt.future)
        if entry.current is not None:
            attempt = self._attempt(entry.current, request, reason, handed_over=handed_over)
            return _joined(attempt.future)
        session = self._entries.usable(session_id)
        giving_up = self._giving_up.get(session_id)
        if giving_up is not None:
            return _joined(giving_up)
        if handed_over and session is not None and session.journal.state.continuations.pausing:
            giving_up = self._parts.spawn(self._give_up(session_id, request), "give a handoff up")
            giving_up.add_done_callback(seen)
            self._giving_up[session_id] = giving_up
            giving_up.add_done_callback(lambda _: self._giving_up.pop(session_id))
            return _joined(giving_up)
        generation = entry.generation
        return self._done(None if generation is None else generation.failure)

    async def respond_to_user_question(self, session_id: str, response: JsonObject) -> None:
        """Hands a response to the session's backend as it is, for backends that show questions by themselves.

        Raises RuntimeInteractionInvariantError where an authority answers for this kernel, or the backend has no
        ``respond_to_user_question``.
        """
        if self._parts.interaction_authority is not None:
            raise RuntimeInteractionInvariantError(
                "this kernel has an interaction authority: answer through it, so that the answer is durable first"
            )
        entry = self._entries.find(session_id)
        backend = None if entry is None or entry.generation is None else entry.generation.backend
        respond = getattr(backend, "respond_to_user_question", None)
        if respond is None:
            raise RuntimeInteractionInvariantError(
                f"session {session_id} has no backend that takes answers; give the kernel an interaction authority"
            )
        await respond(response)

    # ------------------------------------------------------------ sessions

    @asynccontextmanager
    async def session(self, session_id: str) -> AsyncIterator[OpenSession]:
        """The session open for writing and in order; it is opened, or opened again, where that is needed. It is not
        closed before the end of ``async with``, idle or not.

        Append to it without waiting in between, and use ``append`` to make things durable. Raises what opening it
        raises, and its journal's failure as long as a run of it has not ended. A failed write inside of it stops what
        runs in the session: the journal is not to be trusted until it was opened again.
        """
        self._refuse_closed()
        async with self._held(session_id) as session:
            self._refuse_closed()
            yield session

    @asynccontextmanager
    async def _held(self, session_id: str) -> AsyncIterator[OpenSession]:
        """``session``, also while the kernel closes."""
        entry = self._entries.get(session_id)
        entry.users += 1
        try:
            session = await self._entries.opened(entry)
            try:
                yield session
            except (JournalWriteError, JournalConflict) as error:
                if isinstance(error, JournalWriteError) or session.journal.poisoned:
                    self._journal_failed(entry, session, error)
                raise
        finally:
            entry.users -= 1
            entry.changed()
            self._idle.tidy(entry)

    def opened(self, session_id: str) -> OpenSession | None:
        """The session if it is open here and its journal has not failed."""
        return self._entries.usable(session_id)

    async def reconcile(self, session_id: str) -> int:
        """Finds out about calls whose outcome is unknown, about each once for each time that the session is opened.

        Returns how many outcomes were recorded. Raises what ``session`` raises, JournalError.
        """
        async with self.session(session_id) as session:
            return await self._entries.reconciled(self._entries.get(session_id), session)

    async def conversation(self, session_id: str) -> Conversation:
        """What was said in a session; it is opened as by ``session``. Raises what that raises, JournalError."""
        async with self.session(session_id) as session:
            return await self._entries.conversation(self._entries.get(session_id), session)

    async def append(self, session_id: str, decide: Callable[[OpenSession], Sequence[Draft]]) -> list[Event]:
        """Appends events that concern the session as a whole, durably, as one batch.

        ``decide`` gives them, or none, with nothing between that and the append, and may raise. What was begun is
        finished although the caller is cancelled. Raises what ``session`` raises, JournalError, InvalidEvent.
        """
        appending = self._parts.spawn(self._append(session_id, decide), f"append to session {session_id}")
        appending.add_done_callback(seen)
        return await asyncio.shield(appending)

    async def _append(self, session_id: str, decide: Callable[[OpenSession], Sequence[Draft]]) -> list[Event]:
        async with self.session(session_id) as session:
            return await _appended(session, decide(session))

    def status(self, session_id: str) -> SessionStatus:
        entry = self._entries.find(session_id)
        if entry is None:
            return SessionStatus(session_id, False, [], stopping=False, quarantined=None, degraded=None)
        refusal = entry.quarantine()
        return SessionStatus(
            session_id,
            entry.open is not None or entry.opening is not None,
            [run.identity.turn_id for run in entry.runs],
            stopping=entry.attempt is not None,
            quarantined=None if refusal is None else str(refusal),
            degraded=None if entry.degraded is None else str(entry.degraded),
        )

    def running(self, session_id: str) -> str | None:
        """The run that has begun in the session here and has not ended."""
        entry = self._entries.find(session_id)
        return None if entry is None or entry.current is None else entry.current.identity.run_id

    async def exited(self, session_id: str, run_id: str) -> None:
        """Waits until the run is over here, cleaned up and told, or has had the time that it has for that; a run that
        is not here is over.
        """
        entry, deadlines = self._entries.find(session_id), self._parts.deadlines
        if entry is None:
            return
        over = self._parts.spawn(
            entry.until(lambda: all(run.identity.run_id != run_id for run in entry.runs)), f"exit of run {run_id}"
        )
        try:
            await asyncio.wait({over}, timeout=deadlines.exit + deadlines.dispose + deadlines.grace)
        finally:
            over.cancel()

    async def stop_handed_over(self, session_id: str, source: str, stop_id: str | None) -> None:
        """Ends a turn that waits for its successor, and nothing else; the session is opened for that. Raises what
        ``session`` raises, JournalError.
        """
        await self._give_up(session_id, StopRequest(stop_id or self._parts.new_id(), named(source)))

    def refuse_busy(self, session_id: str) -> None:
        """Raises SessionBusy while a turn of the session waits, runs or is stopped here."""
        entry = self._entries.find(session_id)
        if entry is not None and (entry.runs or entry.attempt is not None):
            turns = ", ".join(run.identity.turn_id for run in entry.runs)
            doing = f"busy with turn {turns}; stop it or wait for its end" if turns else "being stopped; wait for that"
            raise SessionBusy(f"session {session_id} is {doing}")

    async def release(self, session_id: str) -> None:
        """Closes the session here, so that another process can open it. Raises SessionBusy, JournalError."""
        self.refuse_busy(session_id)
        entry = self._entries.find(session_id)
        if entry is not None:
            if entry.idle:
                await self._idle.close(entry)
            if entry.open is not None or not entry.idle:
                raise SessionBusy(f"session {session_id} is in use in this process; try again when it is not")

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Tells ``listener`` what happens, structured; returns what ends that. See ``lifecycle``."""
        return self.lifecycle.subscribe(listener)

    async def invalidate_cached_backends(self, session_id: str | None = None) -> None:
        """Disposes backends that run nothing, and has the others replaced when they are done; of one session, or all.

        Raises what disposals failed with, earlier ones too.
        """
        idle = []
        entries = [entry for entry in self._entries if session_id in (None, entry.session_id)]
        for entry in entries:
            # One that is being built was asked for before this.
            entry.invalidations += 1
            generation = entry.generation
            if generation is not None and generation.phase in ("active", "stopping"):
                generation.stale = True
                if not generation.runs:
                    idle.append(self._backends.dispose(entry, generation))
        await asyncio.gather(*idle)
        failure = combine(
            "several backends could not be disposed",
            [entry.generation.disposal_failure for entry in entries if entry.generation is not None],
        )
        if failure is not None:
            raise failure

    async def aclose(self, *, source: str = "shutdown") -> None:
        """Stops every turn, disposes every backend, closes every journal. Raises what failed, to all who call it.

        A backend that hangs is given its deadlines, then left. Not from inside of ``async with kernel.session(…)``.
        """
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._closed(source), name="close the kernel")
            self._closing.add_done_callback(seen)
        await asyncio.shield(self._closing)

    async def _closed(self, source: str) -> None:
        try:
            await self._close(source)
        except asyncio.CancelledError:
            # Somebody cancelled all tasks of the loop: the runs end by themselves, and the locks are given up.
            exits = [self._parts.spawn(entry.until(entry.is_unused), "exit") for entry in self._entries]
            if exits:
                await asyncio.wait(exits, timeout=_AT_ONCE)
            for entry in self._entries:
                with suppress(JournalError):
                    await self._entries.close_journal(entry)
            raise

    async def _close(self, source: str) -> None:
        # What was handed over is another process's to finish.
        stops = [
            self._stop(entry.session_id, StopRequest(self._parts.new_id(), named(source)), handed_over=False)
            for entry in self._entries
        ]
        failures = [failure for failure in await asyncio.gather(*stops, return_exceptions=True) if failure is not None]
        exits = [self._parts.spawn(entry.until(entry.is_unused), "exit") for entry in self._entries]
        if exits:
            await asyncio.wait(exits, timeout=self._parts.deadlines.exit + self._parts.deadlines.dispose)
        try:
            await self.invalidate_cached_backends()
        except Exception as error:
            failures.append(error)
        for entry in self._entries:
            if entry.generation is not None:
                # One that is being given up just now.
                await entry.generation.disposed()
            if entry.opening is not None:
                await asyncio.wait({entry.opening})
            try:
                await self._entries.close_journal(entry)
            except JournalError as error:
                failures.append(error)
        await self._parts.tasks.cancel(self._parts.deadlines.grace)
        for entry in self._entries:
            for run in list(entry.runs):
                self._course.cut_off(run)
            if entry.attempt is not None and not entry.attempt.future.done():
                entry.attempt.future.set_exception(self._is_closed())
            self._entries.forget(entry)
        failure = combine("closing the kernel failed in several ways", failures)
        if failure is not None:
            raise failure

    async def __aenter__(self) -> "RuntimeKernel":
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    # ------------------------------------------------------------ a start

    def _claim(self, run: Run) -> None:
        if self._closing is not None:
            run.exit(self._is_closed())
            run.started.set_exception(self._is_closed())
            return
        run.entry = self._entries.get(run.identity.session_id)
        run.entry.runs.append(run)
        driving = self._parts.spawn(self._course.drive(run), f"run {run.identity.run_id}")
        # One that is cancelled before it has begun does nothing of it.
        driving.add_done_callback(lambda _: None if run.exited else self._course.cut_off(run))

    def _cancel(self, run: Run) -> None:
        """Of a run that has not begun: it ends without an error and leaves nothing."""
        run.cancelled = True
        leave(run)
        run.started.set_exception(
            TurnCancelled(
                f"turn {run.identity.turn_id} of session {run.identity.session_id} was stopped before it began; "
                "nothing of it was written, start it again if it is still wanted"
            )
        )
        run.exit(None)

    # ------------------------------------------------------------ stops

    def _attempt(
        self, run: Run, request: StopRequest, reason: StopReason = "user_stop", *, handed_over: bool = True
    ) -> StopAttempt:
        session_id = run.identity.session_id
        attempt = run.entry.attempt = StopAttempt(
            run,
            request,
            reason=reason,
            deadlines=self._parts.deadlines,
            spawn=self._parts.spawn,
            give_up=partial(self._give_up, session_id) if handed_over else None,
        )
        self._parts.say(run, "stop_requested", source=request.source, mode=request.mode)
        run.entry.changed()
        carrying = self._parts.spawn(self._carry_out(attempt), f"stop run {run.identity.run_id}")
        # One that is cancelled before it has begun does nothing of it.
        carrying.add_done_callback(lambda _: self._settle(attempt, asyncio.CancelledError()))
        return attempt

    async def _give_up(self, session_id: str, request: StopRequest) -> None:
        """Ends a turn that waits for its successor, as stopped. Raises JournalError."""
        async with self._held(session_id) as session:
            state = session.journal.state
            handoff = next(iter(state.continuations.pending()), None)
            if handoff is None:
                return
            if self.running(session_id) == handoff.data["successor_run_id"]:
                # It has been claimed and not started yet: from here on it is a run like any other.
                await self._stop(session_id, attrs.evolve(request, mode="immediate"))
                return
            turn_id = handoff.data["turn_id"]
            said: JsonObject = {"stop_id": request.stop_id, "turn_id": turn_id, "source": request.source}
            said["mode"] = "immediate"
            if request.retract is not None:
                said["retract"] = request.retract(state)
            if request.client is not None:
                said["client"] = request.client
            reason = {"kind": "aborted", "source": request.source}
            drafts = abandonment(state, handoff.handoff_id, reason)
            if drafts:
                await _appended(session, [Draft("turn/stop_requested", said), *drafts])
                self.lifecycle.tell("handoff_abandoned", session_id, turn_id=turn_id, handoff_id=handoff.handoff_id)

    async def _carry_out(self, attempt: StopAttempt) -> None:
        run = attempt.run
        failure: BaseException | None
        try:
            failure = await attempt.carry_out()
            if run.generation is not None and run.generation.failure is not None:
                await self._backends.settle(run)
        except BaseException as error:
            failure = error
        self._settle(attempt, failure)

    def _settle(self, attempt: StopAttempt, failure: BaseException | None) -> None:
        if attempt.future.done():
            return
        run = attempt.run
        run.entry.attempt = None
        run.entry.changed()
        self._backends.retire(run.entry)
        self._parts.say(run, "stop_settled", error=failure)
        if failure is None:
            attempt.future.set_result(None)
        elif isinstance(failure, asyncio.CancelledError):
            # A closing kernel waits no longer; those who asked were not cancelled.
            attempt.future.set_exception(self._is_closed())
        else:
            attempt.future.set_exception(failure)
        self._idle.tidy()

    def _abandon(self, run: Run) -> "asyncio.Task[None]":
        """The consumer goes away. The task is the consumer's: a kernel that closes does not cancel it."""
        abandoning = asyncio.get_running_loop().create_task(
            self._abandoned(run), name=f"abandon run {run.identity.run_id}"
        )
        abandoning.add_done_callback(seen)
        return abandoning

    async def _abandoned(self, run: Run) -> None:
        entry = run.entry
        if not run.begun:
            if not run.exited:
                self._cancel(run)
            return
        if not run.exited and run.claimant != "event":
            attempt = entry.attempt
            if attempt is None and run.claimant is None:
                attempt = self._attempt(run, StopRequest(self._parts.new_id(), "abandoned"))
            if attempt is not None and attempt.run is run:
                await _joined(attempt.future)
        await entry.until(lambda: run.exited or entry.quarantine() is not None)
        if run.exited and (error := run.delivery.take_error()) is not None:
            raise error

    # ------------------------------------------------------------ small things

    def _journal_failed(self, entry: Entry, session: OpenSession, error: JournalError) -> None:
        self._entries.degrade(entry, session, error)
        if entry.current is not None and entry.current.session is session:
            self._course.journal_failed(entry.current, error)

    def _refuse_closed(self) -> None:
        if self._closing is not None:
            raise self._is_closed()

    def _is_closed(self) -> KernelClosed:
        return KernelClosed("the manager of these sessions was closed; make a new one to go on")

    def _done(self, failure: BaseException | None) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if failure is None:
            future.set_result(None)
        else:
            future.set_exception(failure)
            future.exception()
        return future


def _root(root: object) -> JsonObject | None:
    """Raises InvalidEvent for what no run can be for."""
    if root is None or (isinstance(root, dict) and isinstance(root.get("kind"), str) and root["kind"]):
        return root
    raise InvalidEvent("root must be an object with a text as its `kind`", type="turn/start", key="run.root")


async def _appended(session: OpenSession, drafts: Sequence[Draft]) -> list[Event]:
    """As one batch, durable when this returns. Raises JournalError, InvalidEvent."""
    events = session.journal.append_batch(drafts) if drafts else []
    for event in events:
        session.observe(event)
    # Also where there was nothing left to do: what that was decided on may still be on its way to the disk.
    await session.journal.aflush()
    return events


def _joined(future: "asyncio.Future[None]") -> "asyncio.Future[None]":
    """For one who waits, or does not: cancelling it cancels nothing of the others."""
    own = asyncio.shield(future)
    own.add_done_callback(seen)
    return own
