"""The kernel: starts turns, stops them, cleans up after them, and knows of every session what may happen next.

A start: claim → open the journal → reserve a backend → wait for the session's turn slot → fence → bind the messages →
begin (one durable batch) → bind the interactions → fence → send → the turn's end → exit → the run is settled.
"""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

import attrs

from ...journal.errors import InvalidEvent, JournalError
from ...journal.events import Blocks, Draft, Event, JsonObject
from ..backends.base import (
    BackendContext,
    BackendRegistry,
    SendInput,
    StopMode,
    StopReason,
    text_of,
)
from ..errors import (
    BackendTimeout,
    KernelClosed,
    RuntimeInteractionInvariantError,
    SessionArchived,
    SessionBusy,
    TurnCancelled,
)
from ..journals import Journals, OpenSession
from ..ledger import Ledger
from ..lifecycle import Lifecycle, Listener
from ..model import ModelError
from ..progress import beginning
from ..session_events import BARRIERS, END_OF, SessionEvent
from ..tools.base import text_block
from .asking import KIND_OF
from .authority import RunIdentity, RuntimeInteractionAuthority, RuntimeMessageAuthority
from .entry import Entry
from .failures import combine
from .generations import Deadlines, Generation
from .run import Run, seen
from .stops import StopAttempt
from .stream import TurnStream

#: Wraps the reservation of a backend: ``await operation()`` inside whatever a host has to hold meanwhile.
Activation = Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]

#: Seconds after which what a backend has said is made durable and told, if it says nothing more.
_TOLD: Final = 0.002
#: Characters of a failure's message in the journal.
_MESSAGE: Final = 2_000
#: A response that the journal refuses is the provider's; any other event is the backend's.
_OF_RESPONSE: Final = frozenset(
    {"assistant_message", "text_delta", "thinking_delta", "text_complete", "thinking_complete", "token_usage"}
)


class _Cancelled(Exception):
    """The start was cancelled before it began."""


class _Misbehaved(Exception):
    """The backend yielded what cannot be taken."""

    def __init__(self, failure_class: str, message: str) -> None:
        super().__init__(message)
        self.failure_class = failure_class


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


def _new_id() -> str:
    return uuid.uuid4().hex


def _now() -> int:
    return time.time_ns() // 1_000_000


async def _straight(operation: Callable[[], Awaitable[None]]) -> None:
    await operation()


class RuntimeKernel:
    """Runs turns of any number of sessions, each on a backend of its own. Use it from one event loop.

    ``journals`` gives the sessions, ``backends`` what runs them. ``interaction_authority`` answers questions,
    ``message_authority`` hands out messages for running turns. ``run_backend_activation`` wraps the reservation of a
    backend. ``new_id``, ``now`` (Unix ms) and ``deadlines`` are replaced in tests. At most ``keep_open`` sessions
    stay open with nothing running.
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
        new_id: Callable[[], str] = _new_id,
        now: Callable[[], int] = _now,
        deadlines: Deadlines | None = None,
        keep_open: int = 32,
    ) -> None:
        self._journals = journals
        self._backends = backends
        self._interaction_authority = interaction_authority
        self._message_authority = message_authority
        self._activation = run_backend_activation
        self._new_id = new_id
        self._now = now
        self._deadlines = deadlines or Deadlines()
        self._keep_open = keep_open
        self._entries: dict[str, Entry] = {}
        self._generations = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        self.lifecycle = lifecycle or Lifecycle()

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
    ) -> TurnStream:
        """A turn that begins with the first event that is asked for. See TurnStream for what it raises.

        Turns of one session run one after the other, in the order in which they were begun.
        """
        identity = RunIdentity(session_id, turn_id or self._new_id(), run_id or self._new_id())
        run = Run(
            self._entries.get(session_id) or Entry(session_id),
            identity,
            invocation_id=invocation_id or self._new_id(),
            message_id=message_id or self._new_id(),
            content=content if content is not None else [text_block(text or "")],
            message={"quotes": quotes, "attachments": attachments},
            max_steps=max_steps,
            deadlines=self._deadlines,
            spawn=self._spawn,
            overdue=self._overdue,
        )
        run.asking.new_id = self._new_id
        return TurnStream(run, self._claim, self._abandon)

    def stop_session(
        self,
        session_id: str,
        *,
        source: str = "user",
        mode: StopMode = "immediate",
        reason: StopReason = "user_stop",
        stop_id: str | None = None,
    ) -> "asyncio.Future[None]":
        """Stops what runs in the session and cancels what has not begun. Takes effect at once; the future ends when the
        turn's end is durable, and raises what failed, to everybody who asked the same error.

        ``immediate`` while ``after_step`` is in flight escalates it.
        """
        entry = self._entries.get(session_id)
        if entry is None:
            return self._done(None)
        for run in [run for run in entry.runs if not run.begun]:
            self._cancel(run)
        attempt = entry.attempt
        if attempt is not None:
            if mode == "immediate":
                attempt.escalate(source, stop_id or self._new_id())
            return _joined(attempt.future)
        if entry.current is None:
            generation = entry.generation
            return self._done(None if generation is None else generation.failure)
        return _joined(self._attempt(entry.current, source, mode, reason, stop_id).future)

    async def respond_to_user_question(self, session_id: str, response: JsonObject) -> None:
        """Hands a response to the session's backend as it is, for backends that show questions by themselves.

        Raises RuntimeInteractionInvariantError where an authority answers for this kernel, or the backend has no
        ``respond_to_user_question``.
        """
        if self._interaction_authority is not None:
            raise RuntimeInteractionInvariantError(
                "this kernel has an interaction authority: answer through it, so that the answer is durable first"
            )
        entry = self._entries.get(session_id)
        backend = None if entry is None or entry.generation is None else entry.generation.backend
        respond = getattr(backend, "respond_to_user_question", None)
        if respond is None:
            raise RuntimeInteractionInvariantError(
                f"session {session_id} has no backend that takes answers; give the kernel an interaction authority"
            )
        await respond(response)

    # ------------------------------------------------------------ sessions

    async def session(self, session_id: str) -> OpenSession:
        """The session open for writing and in order; it is opened, or opened again, where that is needed.

        Append to it without waiting in between, and use ``append`` to make things durable. Raises what opening it
        raises, and its journal's failure as long as a run of it has not ended.
        """
        self._refuse_closed()
        return await self._opened(self._entry(session_id))

    @asynccontextmanager
    async def using(self, session_id: str) -> AsyncIterator[OpenSession]:
        """``session``, which is not closed inside of ``async with``, idle or not."""
        self._refuse_closed()
        entry = self._entry(session_id)
        entry.users += 1
        try:
            yield await self._opened(entry)
        finally:
            entry.users -= 1
            entry.changed()
            self._tidy()

    def opened(self, session_id: str) -> OpenSession | None:
        """The session if it is open here and its journal has not failed."""
        entry = self._entries.get(session_id)
        return None if entry is None or entry.degraded is not None else entry.open

    async def append(
        self, session_id: str, drafts: Sequence[Draft], *, check: Callable[[OpenSession], None] | None = None
    ) -> list[Event]:
        """Appends events that concern the session as a whole, durably, as one batch.

        ``check`` is called with nothing in between and may refuse. Raises what ``session`` raises, JournalError,
        InvalidEvent.
        """
        async with self.using(session_id) as session:
            if check is not None:
                check(session)
            events = session.journal.append_batch(drafts)
            for event in events:
                session.conversation.observe(event)
            try:
                await session.journal.aflush()
            except JournalError as error:
                self._degrade(self._entry(session_id), error)
                raise
            return events

    def status(self, session_id: str) -> SessionStatus:
        entry = self._entries.get(session_id)
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

    def refuse_busy(self, session_id: str) -> None:
        """Raises SessionBusy while a turn of the session waits, runs or is stopped here."""
        entry = self._entries.get(session_id)
        if entry is not None and (entry.runs or entry.attempt is not None):
            turns = ", ".join(run.identity.turn_id for run in entry.runs)
            raise SessionBusy(f"session {session_id} is busy with turn {turns}; stop it or wait for its end")

    async def release(self, session_id: str) -> None:
        """Closes the session here, so that another process can open it. Raises SessionBusy, JournalError."""
        self.refuse_busy(session_id)
        entry = self._entries.get(session_id)
        if entry is not None:
            await self._close_entry(entry)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Tells ``listener`` what happens, structured; returns what ends that. See ``lifecycle``."""
        return self.lifecycle.subscribe(listener)

    async def invalidate_cached_backends(self, session_id: str | None = None) -> None:
        """Disposes backends that run nothing, and has the others replaced when they are done; of one session, or all.

        Raises what disposals failed with, earlier ones too.
        """
        idle = []
        entries = [entry for entry in self._entries.values() if session_id in (None, entry.session_id)]
        for entry in entries:
            generation = entry.generation
            if generation is not None and generation.phase in ("active", "stopping"):
                generation.stale = True
                if not generation.runs:
                    idle.append(self._dispose(entry, generation))
        await asyncio.gather(*idle)
        failure = combine(
            "several backends could not be disposed",
            [entry.generation.disposal_failure for entry in entries if entry.generation is not None],
        )
        if failure is not None:
            raise failure

    async def aclose(self, *, source: str = "shutdown") -> None:
        """Stops every turn, disposes every backend, closes every journal. Raises what failed; a second call nothing.

        A backend that hangs is given its deadlines, then left.
        """
        if self._closed:
            return
        self._closed = True
        stops = [self.stop_session(session_id, source=source) for session_id in list(self._entries)]
        failures = [failure for failure in await asyncio.gather(*stops, return_exceptions=True) if failure is not None]
        exits = [self._spawn(entry.until(entry.has_no_runs), "exit") for entry in self._entries.values()]
        if exits:
            await asyncio.wait(exits, timeout=self._deadlines.exit + self._deadlines.dispose)
        try:
            await self.invalidate_cached_backends()
        except BaseException as error:
            failures.append(error)
        for entry in list(self._entries.values()):
            try:
                await self._close_journal(entry)
            except JournalError as error:
                failures.append(error)
        self._entries.clear()
        left = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=self._deadlines.grace)
        failure = combine("closing the kernel failed in several ways", failures)
        if failure is not None:
            raise failure

    async def __aenter__(self) -> "RuntimeKernel":
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    # ------------------------------------------------------------ a start

    def _claim(self, run: Run) -> None:
        if self._closed:
            run.exit(self._is_closed())
            run.started.set_exception(self._is_closed())
            return
        run.entry = self._entry(run.identity.session_id)
        run.entry.runs.append(run)
        self._spawn(self._drive(run), f"run {run.identity.run_id}")

    def _cancel(self, run: Run) -> None:
        """Of a run that has not begun: it ends without an error and leaves nothing."""
        run.cancelled = True
        self._leave(run)
        run.started.set_exception(
            TurnCancelled(
                f"turn {run.identity.turn_id} of session {run.identity.session_id} was stopped before it began; "
                "nothing of it was written, start it again if it is still wanted"
            )
        )
        run.exit(None)

    async def _drive(self, run: Run) -> None:
        try:
            await self._prepare(run)
        except _Cancelled:
            self._unbind(run)
            return
        except BaseException as error:
            self._unbind(run)
            if not run.cancelled:
                self._leave(run)
                run.started.set_exception(error)
                run.exit(error)
            if isinstance(error, asyncio.CancelledError):
                raise
            return
        try:
            await self._begin(run)
        except JournalError as error:
            self._degrade(run.entry, error)
            run.failures.append(error)
            run.lost = True
            run.started.set_exception(error)
        except Exception as error:
            run.failures.append(error)
            run.claim_terminal("event", _failed("start_failed", error))
            run.started.set_exception(error)
        else:
            run.started.set_result(None)
            await self._stream(run)
        await self._finish(run)

    async def _prepare(self, run: Run) -> None:
        """Up to the batch that begins the turn, which is handed to the writer. Raises _Cancelled, and what fails."""
        entry = run.entry
        await entry.until(lambda: run.cancelled or entry.attempt is None)
        _check(run)
        await self._open_first(entry)
        while True:
            _check(run)
            await self._activation(lambda: self._reserve(run))
            await entry.until(lambda: run.cancelled or entry.runs[0] is run)
            _check(run)
            session = await self._opened(entry)
            _check(run)
            # The fence, and nothing waits from here on until the batch is handed over.
            if run.generation is entry.generation and run.generation is not None and run.generation.phase == "active":
                break
        if session.journal.state.session.value("archived"):
            raise SessionArchived(f"session {entry.session_id} is archived; take it out again before it gets a turn")
        identity = run.identity
        if self._message_authority is not None:
            run.messages = self._message_authority.bind_run(identity)
            _same(run.messages, identity)
        drafts = beginning(
            session.conversation,
            turn_id=identity.turn_id,
            run_id=identity.run_id,
            invocation_id=run.invocation_id,
            message_id=run.message_id,
            content=run.content,
            created_at=self._now(),
            max_steps=run.max_steps,
            **run.message,
        )
        run.ledger = Ledger(
            session.journal,
            session.conversation.observe,
            run.publish,
            turn_id=identity.turn_id,
            run_id=identity.run_id,
            new_id=self._new_id,
            now=self._now,
        )
        run.ledger.begin(drafts)
        run.generation.runs += 1
        run.begun = True

    async def _reserve(self, run: Run) -> None:
        """Gives the run the session's backend, which is built if there is none."""
        entry = run.entry
        while True:
            _check(run)
            if (refusal := entry.quarantine()) is not None:
                raise refusal
            generation = entry.generation
            if generation is None:
                if entry.building is None:
                    entry.building = self._spawn(self._build(entry), "build backend")
                run.generation = await asyncio.shield(entry.building)
            elif generation.phase == "active" and not (generation.stale and not generation.runs):
                run.generation = generation
                return
            else:
                await entry.until(partial(_moved, run, generation))

    async def _build(self, entry: Entry) -> Generation:
        try:
            session = entry.open
            assert session is not None
            view = session.journal.state.session
            settings = {**(view.header or {}), **view.patch}
            name = str(settings.get("backend", ""))
            context = BackendContext(
                session_id=entry.session_id,
                session_dir=session.directory,
                settings=settings,
                new_id=self._new_id,
                now=self._now,
            )
            backend = self._backends.factory(name)(context)
            if isinstance(backend, Awaitable):
                backend = await backend
            self._generations += 1
            entry.generation = Generation(self._generations, backend, self._deadlines, self._spawn)
            self.lifecycle.tell("backend_built", entry.session_id, backend=name, generation=self._generations)
            return entry.generation
        finally:
            entry.building = None
            entry.changed()

    async def _begin(self, run: Run) -> None:
        assert run.ledger is not None
        await run.ledger.barrier()
        self._say(run, "run_started")
        if self._interaction_authority is not None:
            owner = self._interaction_authority.bind_run(run.identity)
            try:
                _same(owner, run.identity)
            except RuntimeInteractionInvariantError:
                await owner.close("turn_terminal")
                owner.release()
                raise
            run.owner = owner

    # ------------------------------------------------------------ the stream

    async def _stream(self, run: Run) -> None:
        generation = run.generation
        if run.claimant is not None:
            return  # a stop came first: nothing is sent
        if generation is None or generation is not run.entry.generation or generation.phase != "active":
            run.claim_terminal("event", _failed("start_failed", RuntimeError("its backend was replaced meanwhile")))
            return
        run.sent = True
        run.pump = self._spawn(self._pump(run, generation), f"stream of run {run.identity.run_id}")
        await asyncio.wait({run.pump})
        run.stream_ended = True
        run.entry.changed()
        error = _failure(run.pump)
        if isinstance(error, JournalError) and not isinstance(error, InvalidEvent):
            self._journal_failed(run, error)
        elif error is not None and not run.lost:
            self._say(run, "backend_failed", error=error)
            if isinstance(error, RuntimeInteractionInvariantError):
                run.failures.append(error)
        run.claim_terminal("event", _MISSING if error is None else _failed(_class_of(error), error))

    async def _pump(self, run: Run, generation: Generation) -> None:
        stream = generation.backend.send(self._input(run))
        ready = getattr(stream, "ready", None)
        try:
            async for event in stream:
                await self._take(run, [event] if ready is None else [event, *ready()])
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()

    def _input(self, run: Run) -> SendInput:
        session, identity, messages = run.entry.open, run.identity, run.messages
        assert session is not None
        steering: dict[str, Any] = {}
        if messages is not None:
            steering = {
                "pull_steering": messages.pull,
                "ack_steering": messages.ack,
                "nack_steering": messages.nack,
            }
        return SendInput(
            session_id=identity.session_id,
            turn_id=identity.turn_id,
            run_id=identity.run_id,
            invocation_id=run.invocation_id,
            text=text_of(run.content),
            content=run.content,
            conversation=session.conversation,
            interactions=run.asking,
            max_steps=run.max_steps,
            **steering,
        )

    async def _take(self, run: Run, events: Sequence[SessionEvent]) -> None:
        """Journals what the backend said; where it may act on that, makes it durable first."""
        ledger = run.ledger
        assert ledger is not None
        barrier = False
        for event in events:
            kind = getattr(event, "kind", None)
            if kind == "complete":
                self._completed(run, event)
            elif kind == "error":
                run.reported_error = event.data
            elif kind == "abort":
                run.abort_source = str(event.data.get("source", "backend"))
            elif kind in KIND_OF:
                await run.asking.yielded(event)
            else:
                self._journal(run, ledger, event)
                barrier = barrier or kind in BARRIERS
        if barrier:
            await ledger.barrier()
        elif ledger.untold and run.telling is None:
            run.telling = asyncio.get_running_loop().call_later(_TOLD, self._tell, run)
        if run.claimant == "event":
            await run.end()

    def _journal(self, run: Run, ledger: Ledger, event: SessionEvent) -> None:
        if not isinstance(event, SessionEvent):
            raise _Misbehaved("backend_invalid_event", f"the backend yielded a {type(event).__name__}")
        try:
            ledger.take(event)
        except InvalidEvent as error:
            kind = "provider_invalid_response" if event.kind in _OF_RESPONSE else "backend_invalid_event"
            raise _Misbehaved(kind, f"{event.kind} cannot be taken: {error}") from error
        if event.kind in ("step_start", "step_end"):
            run.step_ended = event.kind == "step_end"
            run.entry.changed()

    def _completed(self, run: Run, event: SessionEvent) -> None:
        stop_reason = event.data.get("stop_reason")
        kind = END_OF.get(stop_reason) if isinstance(stop_reason, str) else None
        reason: JsonObject
        if kind == "aborted":
            reason = {"kind": kind, "source": run.abort_source}
        elif kind is None or kind == "failed":
            said = run.reported_error
            failure_class = said.get("failure_class") or (stop_reason if kind is None else None)
            reason = {
                "kind": "failed",
                "failure_class": str(failure_class or "backend_error"),
                "message": str(said.get("message", ""))[:_MESSAGE],
            }
        else:
            reason = {"kind": kind}
        run.claim_terminal("event", reason)

    def _tell(self, run: Run) -> None:
        run.telling = None
        self._spawn(self._told(run), "tell")

    async def _told(self, run: Run) -> None:
        assert run.ledger is not None
        try:
            await run.ledger.barrier()
        except JournalError as error:
            self._journal_failed(run, error)

    def _journal_failed(self, run: Run, error: JournalError) -> None:
        """Nothing more is written, so nothing more may happen: the backend is stopped and its stream closed."""
        self._degrade(run.entry, error)
        if run.lost:
            return
        run.lost = True
        run.failures.append(error)
        run.claim_terminal("event", _failed("journal_write_failed", error))
        run.watch_exit()
        if run.pump is not None and not run.pump.done():
            run.pump.cancel()
            self._spawn(self._stop_unwritten(run), "stop after a failed write")

    async def _stop_unwritten(self, run: Run) -> None:
        assert run.generation is not None
        try:
            await run.generation.stop("user_stop", "immediate", asyncio.Event())
        except Exception:
            await self._settle_backend(run)

    # ------------------------------------------------------------ the end of a run

    async def _finish(self, run: Run) -> None:
        entry, ledger, generation = run.entry, run.ledger, run.generation
        assert ledger is not None
        assert generation is not None
        if run.claimant == "stop" and _failure(run.started) is None:
            await entry.until(lambda: run.ended or entry.attempt is None or entry.attempt.run is not run)
        try:
            await run.end()
        except JournalError:
            pass  # it is among the run's failures
        self._unbind(run)
        failures = combine(f"cleaning up run {run.identity.run_id} failed in several ways", run.failures)
        if not run.lost:
            ledger.progress.cleanup += [f"{type(failure).__name__}: {failure}" for failure in run.failures]
            try:
                ledger.settle()
                await ledger.barrier()
            except JournalError as error:
                self._degrade(entry, error)
                failures = combine("settling the run failed too", [failures, error])
        self._say(run, "run_ended", reason=None if run.reason is None else run.reason["kind"], error=failures)
        generation.leave()
        self._leave(run)
        run.exit(failures)
        self._retire(entry)
        self._tidy()

    def _unbind(self, run: Run) -> None:
        if run.messages is not None:
            try:
                run.messages.release()
            except Exception as error:
                run.failures.append(error)
            run.messages = None

    def _leave(self, run: Run) -> None:
        if run in run.entry.runs:
            run.entry.runs.remove(run)
        run.entry.changed()

    def _retire(self, entry: Entry) -> None:
        """A backend that is not used any more makes room for the next."""
        generation = entry.generation
        if generation is None or generation.runs:
            return
        if generation.phase == "terminated":
            entry.generation = None
        elif generation.stale and generation.phase == "active":
            self._spawn(self._dispose(entry, generation), "replace backend")
        entry.changed()

    async def _dispose(self, entry: Entry, generation: Generation) -> None:
        await generation.dispose()
        error = generation.disposal_failure
        self.lifecycle.tell("backend_disposed", entry.session_id, generation=generation.number, error=error)
        if error is not None:
            await self._quarantine(entry, None)
        self._retire(entry)

    def _overdue(self, run: Run) -> None:
        self._spawn(self._give_up(run), "give up a backend")

    async def _give_up(self, run: Run) -> None:
        """The turn has ended and ``send`` has not."""
        if run.exited or run.generation is None:
            return
        await run.generation.fail(
            BackendTimeout(
                f"send() went on for {self._deadlines.exit:g} s after the end of turn {run.identity.turn_id}; "
                "its backend is given up, mend it or give it more time"
            )
        )
        await self._settle_backend(run)

    async def _settle_backend(self, run: Run) -> None:
        """After a backend was given up: is the session quarantined?"""
        entry, generation = run.entry, run.generation
        assert generation is not None
        self.lifecycle.tell("backend_failed", entry.session_id, generation=generation.number, error=generation.failure)
        if generation.disposal_failure is None and not run.exited:
            gone = self._spawn(entry.until(lambda: run.exited), "grace")
            await asyncio.wait({gone}, timeout=self._deadlines.grace)
            gone.cancel()
        if not generation.runs:
            self._retire(entry)
        if entry.quarantine() is not None and entry.generation is generation:
            await self._quarantine(entry, run)
        entry.changed()

    async def _quarantine(self, entry: Entry, run: Run | None) -> None:
        """Leaves word in the journal: after a restart people should know that something was left running."""
        refusal = entry.quarantine()
        if refusal is None:
            return
        self.lifecycle.tell("session_quarantined", entry.session_id, permanent=refusal.permanent, error=refusal)
        session = self.opened(entry.session_id)
        if session is None:
            return
        note: JsonObject = {"kind": "quarantine"}
        if run is not None:
            note |= {"run_id": run.identity.run_id, "turn_id": run.identity.turn_id}
        note["text"] = str(refusal)[:_MESSAGE]
        try:
            session.conversation.observe(session.journal.append(Draft("session/note", note)))
            await session.journal.aflush()
        except JournalError as error:
            self._degrade(entry, error)

    # ------------------------------------------------------------ stops

    def _attempt(self, run: Run, source: str, mode: StopMode, reason: StopReason, stop_id: str | None) -> StopAttempt:
        attempt = run.entry.attempt = StopAttempt(
            run,
            source=source,
            mode=mode,
            reason=reason,
            stop_id=stop_id or self._new_id(),
            new_id=self._new_id,
            deadlines=self._deadlines,
            spawn=self._spawn,
        )
        self._say(run, "stop_requested", source=source, mode=mode)
        run.entry.changed()
        self._spawn(self._carry_out(attempt), f"stop run {run.identity.run_id}")
        return attempt

    async def _carry_out(self, attempt: StopAttempt) -> None:
        run = attempt.run
        failure: BaseException | None
        try:
            failure = await attempt.carry_out()
            if run.generation is not None and run.generation.failure is not None:
                await self._settle_backend(run)
        except BaseException as error:
            failure = error
        run.entry.attempt = None
        run.entry.changed()
        self._say(run, "stop_settled", error=failure)
        if failure is None:
            attempt.future.set_result(None)
        elif isinstance(failure, asyncio.CancelledError):
            attempt.future.cancel()
        else:
            attempt.future.set_exception(failure)
        self._tidy()

    async def _abandon(self, run: Run) -> None:
        """The consumer goes away."""
        entry = run.entry
        if not run.begun:
            if not run.exited:
                self._cancel(run)
            return
        if not run.exited and run.claimant != "event":
            attempt = entry.attempt
            if attempt is None and run.claimant is None:
                attempt = self._attempt(run, "abandoned", "immediate", "user_stop", None)
            if attempt is not None and attempt.run is run:
                await _joined(attempt.future)
        await entry.until(lambda: run.exited or entry.quarantine() is not None)
        if run.exited and (error := run.delivery.take_error()) is not None:
            raise error

    # ------------------------------------------------------------ journals

    def _entry(self, session_id: str) -> Entry:
        self._refuse_closed()
        entry = self._entries.get(session_id)
        if entry is None:
            entry = self._entries[session_id] = Entry(session_id)
        return entry

    async def _open_first(self, entry: Entry) -> None:
        if entry.open is None:
            await self._opened(entry)

    async def _opened(self, entry: Entry) -> OpenSession:
        if entry.opening is None:
            if entry.open is not None and entry.degraded is None:
                return entry.open
            if entry.degraded is not None and entry.current is not None:
                raise entry.degraded
            entry.opening = self._spawn(self._open(entry), f"open session {entry.session_id}")
        return await asyncio.shield(entry.opening)

    async def _open(self, entry: Entry) -> OpenSession:
        try:
            cause = None
            if entry.open is not None:
                # Its journal failed: what it had open is closed, and what was cut off gets its end.
                cause = "journal_write_failed"
                try:
                    await self._close_journal(entry)
                except JournalError:
                    pass  # it is what made it fail
            entry.open = await self._journals.open(entry.session_id, cause=cause)
            entry.degraded = None
            self.lifecycle.tell("session_opened", entry.session_id)
            return entry.open
        finally:
            entry.opening = None
            entry.changed()

    async def _close_journal(self, entry: Entry) -> None:
        session, entry.open = entry.open, None
        if session is not None:
            await self._journals.close(session)
            self.lifecycle.tell("session_closed", entry.session_id)

    def _degrade(self, entry: Entry, error: JournalError) -> None:
        if entry.degraded is None:
            entry.degraded = error
            self.lifecycle.tell("session_degraded", entry.session_id, error=error)
            entry.changed()

    def _tidy(self) -> None:
        """Closes sessions that nothing runs in, the longest idle first, beyond those that may stay open."""
        idle = [entry for entry in self._entries.values() if entry.idle and entry.opening is None]
        for entry in idle[: max(0, len(idle) - self._keep_open)]:
            if entry.quarantine() is None:
                self._spawn(self._close_entry(entry), f"close session {entry.session_id}")

    async def _close_entry(self, entry: Entry) -> None:
        entry.users += 1
        try:
            if entry.generation is not None:
                await self._dispose(entry, entry.generation)
            if not entry.runs and entry.opening is None:
                await self._close_journal(entry)
        finally:
            entry.users -= 1
            if entry.idle and entry.generation is None and entry.open is None:
                self._entries.pop(entry.session_id, None)
            entry.changed()

    # ------------------------------------------------------------ small things

    def _refuse_closed(self) -> None:
        if self._closed:
            raise self._is_closed()

    def _is_closed(self) -> KernelClosed:
        return KernelClosed("this kernel was closed; make a new one to go on")

    def _say(self, run: Run, kind: str, **data: Any) -> None:
        identity = run.identity
        self.lifecycle.tell(kind, identity.session_id, turn_id=identity.turn_id, run_id=identity.run_id, **data)

    def _done(self, failure: BaseException | None) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if failure is None:
            future.set_result(None)
        else:
            future.set_exception(failure)
            future.exception()
        return future

    def _spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> "asyncio.Task[Any]":
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        seen(task)


def _check(run: Run) -> None:
    if run.cancelled:
        raise _Cancelled


def _moved(run: Run, generation: Generation) -> bool:
    """Is it worth looking again at a generation that could not be used?"""
    entry = run.entry
    usable = generation.phase == "active" and not generation.stale
    return run.cancelled or entry.generation is not generation or usable or entry.quarantine() is not None


def _same(owner: Any, identity: RunIdentity) -> None:
    bound = RunIdentity(owner.session_id, owner.turn_id, owner.run_id)
    if bound != identity:
        raise RuntimeInteractionInvariantError(
            f"an authority bound {bound} where {identity} was asked for; mend the authority"
        )


def _failed(failure_class: str, error: BaseException) -> JsonObject:
    text = str(error) if isinstance(error, _Misbehaved | ModelError) else f"{type(error).__name__}: {error}"
    return {"kind": "failed", "failure_class": failure_class, "message": text[:_MESSAGE]}


_MISSING: Final[JsonObject] = {
    "kind": "failed",
    "failure_class": "missing_terminal_event",
    "message": "the backend's stream ended without saying how the turn ended",
}


def _class_of(error: BaseException) -> str:
    if isinstance(error, _Misbehaved):
        return error.failure_class
    return error.kind if isinstance(error, ModelError) else "backend_error"


def _failure(future: "asyncio.Future[Any]") -> BaseException | None:
    if not future.done():
        return None
    return asyncio.CancelledError() if future.cancelled() else future.exception()


def _joined(future: "asyncio.Future[None]") -> "asyncio.Future[None]":
    """For one who waits, or does not: cancelling it cancels nothing of the others."""
    own = asyncio.shield(future)
    own.add_done_callback(seen)
    return own
