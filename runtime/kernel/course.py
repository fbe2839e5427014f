"""The course of a run: from its claim through its backend's stream to its exit. No I/O of its own.

claim → open the journal → reserve a backend → wait for the session's turn slot → fence → bind the messages → begin (one
durable batch) → bind the interactions → fence → send → the turn's end → exit → the run is settled.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from ...journal.errors import InvalidEvent, JournalError
from ...journal.events import JsonObject
from ..backends.base import SendInput, text_of
from ..errors import KernelClosed, RuntimeInteractionInvariantError, SessionArchived
from ..ledger import Ledger
from ..model import ModelError
from ..progress import beginning
from ..session_events import BARRIERS, END_OF, SessionEvent
from .asking import KIND_OF
from .authority import RunIdentity
from .backends import Backends, check
from .entries import Entries
from .failures import combine
from .generations import Generation
from .idle import Idle
from .parts import Parts
from .run import Cancelled, Run
from .tasks import failure_of

#: Seconds after which what a backend has said is made durable and told, if it says nothing more.
_TOLD: Final = 0.002
#: After so many events all others have their turn, a stop among them, although the backend never waits.
_AT_ONCE: Final = 32
#: Characters of a failure's message in the journal.
_MESSAGE: Final = 2_000
#: A response that the journal refuses is the provider's; any other event is the backend's.
_OF_RESPONSE: Final = frozenset(
    {"assistant_message", "text_delta", "thinking_delta", "text_complete", "thinking_complete", "token_usage"}
)
_MISSING: Final[JsonObject] = {
    "kind": "failed",
    "failure_class": "missing_terminal_event",
    "message": "the backend's stream ended without saying how the turn ended",
}


class _Misbehaved(Exception):
    """The backend yielded what cannot be taken."""

    def __init__(self, failure_class: str, message: str) -> None:
        super().__init__(message)
        self.failure_class = failure_class


class Course:
    def __init__(self, parts: Parts, entries: Entries, backends: Backends, idle: Idle) -> None:
        self._parts = parts
        self._entries = entries
        self._backends = backends
        self._idle = idle

    async def drive(self, run: Run) -> None:
        try:
            await self._prepare(run)
        except Cancelled:
            self._unbind(run)
            return
        except Exception as error:
            self._unbind(run)
            if not run.cancelled:
                leave(run)
                run.started.set_exception(error)
                run.exit(error)
            return
        try:
            await self._begin(run)
        except JournalError as error:
            self.degrade(run, error)
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
        """Up to the batch that begins the turn, which is handed to the writer. Raises Cancelled, and what fails."""
        entry = run.entry
        await entry.until(lambda: run.cancelled or entry.attempt is None)
        check(run)
        await self._entries.open_first(entry)
        while True:
            check(run)
            await self._parts.activation(lambda: self._backends.reserve(run))
            await entry.until(lambda: run.cancelled or entry.runs[0] is run)
            check(run)
            session = await self._entries.opened(entry)
            check(run)
            # The fence, and nothing waits from here on until the batch is handed over.
            if run.generation is entry.generation and run.generation is not None and run.generation.phase == "active":
                break
        if session.journal.state.session.value("archived"):
            raise SessionArchived(f"session {entry.session_id} is archived; take it out again before it gets a turn")
        identity = run.identity
        if self._parts.message_authority is not None:
            run.messages = self._parts.message_authority.bind_run(identity)
            _same(run.messages, identity)
        drafts = beginning(
            session.conversation,
            turn_id=identity.turn_id,
            run_id=identity.run_id,
            invocation_id=run.invocation_id,
            message_id=run.message_id,
            content=run.content,
            created_at=self._parts.now(),
            max_steps=run.max_steps,
            **run.message,
        )
        run.ledger = Ledger(
            session.journal,
            session.conversation.observe,
            run.publish,
            turn_id=identity.turn_id,
            run_id=identity.run_id,
            new_id=self._parts.new_id,
            now=self._parts.now,
        )
        run.session = session
        run.ledger.begin(drafts)
        run.generation.runs += 1
        run.begun = True

    async def _begin(self, run: Run) -> None:
        assert run.ledger is not None
        await run.ledger.barrier()
        self._parts.say(run, "run_started")
        if self._parts.interaction_authority is not None:
            # Bound to something else it is closed and released with the run, which has its time for that.
            run.owner = self._parts.interaction_authority.bind_run(run.identity)
            _same(run.owner, run.identity)

    async def _stream(self, run: Run) -> None:
        generation = run.generation
        if run.claimant is not None:
            return  # a stop came first: nothing is sent
        if generation is None or generation is not run.entry.generation or generation.phase != "active":
            run.claim_terminal("event", _failed("start_failed", RuntimeError("its backend was replaced meanwhile")))
            return
        run.sent = True
        run.pump = self._parts.spawn(self._pump(run, generation), f"stream of run {run.identity.run_id}")
        await asyncio.wait({run.pump})
        run.stream_ended = True
        run.entry.changed()
        error = failure_of(run.pump)
        if isinstance(error, JournalError) and not isinstance(error, InvalidEvent):
            self.journal_failed(run, error)
        elif error is not None and not run.lost:
            self._parts.say(run, "backend_failed", error=error)
            if isinstance(error, RuntimeInteractionInvariantError):
                run.failures.append(error)
        run.claim_terminal("event", _MISSING if error is None else _failed(_class_of(error), error))

    async def _pump(self, run: Run, generation: Generation) -> None:
        if run.claimant is not None:
            return  # a stop came in between: nothing is sent
        stream = generation.backend.send(self._input(run))
        ready = getattr(stream, "ready", None)
        try:
            taken = 0
            async for event in stream:
                events = [event] if ready is None else [event, *ready()]
                await self._take(run, events)
                taken += len(events)
                if taken >= _AT_ONCE:
                    taken = 0
                    await asyncio.sleep(0)
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()

    def _input(self, run: Run) -> SendInput:
        session, identity, messages = run.session, run.identity, run.messages
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
        if run.ledger is not None and run.ledger.untold:
            self._parts.spawn(self._told(run), "tell")

    async def _told(self, run: Run) -> None:
        assert run.ledger is not None
        try:
            await run.ledger.barrier()
        except JournalError as error:
            self.journal_failed(run, error)

    def journal_failed(self, run: Run, error: JournalError) -> None:
        """Nothing more is written, so nothing more may happen: the backend is stopped and its stream closed."""
        self.degrade(run, error)
        if run.lost:
            return
        run.lost = True
        run.failures.append(error)
        run.claim_terminal("event", _failed("journal_write_failed", error))
        run.watch_exit()
        if run.pump is not None and not run.pump.done():
            run.pump.cancel()
            self._parts.spawn(self._stop_unwritten(run), "stop after a failed write")

    def degrade(self, run: Run, error: JournalError) -> None:
        assert run.session is not None
        self._entries.degrade(run.entry, run.session, error)

    async def _stop_unwritten(self, run: Run) -> None:
        assert run.generation is not None
        try:
            await run.generation.stop("user_stop", "immediate", asyncio.Event())
        except Exception:
            await self._backends.settle(run)
        self._backends.retire(run.entry)

    async def _finish(self, run: Run) -> None:
        entry, ledger, generation = run.entry, run.ledger, run.generation
        assert ledger is not None
        assert generation is not None
        if run.claimant == "stop" and failure_of(run.started) is None:
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
                self.degrade(run, error)
                failures = combine("settling the run failed too", [failures, error])
        self._parts.say(run, "run_ended", reason=None if run.reason is None else run.reason["kind"], error=failures)
        generation.leave()
        leave(run)
        run.exit(failures)
        self._backends.retire(entry)
        self._idle.tidy()

    def cut_off(self, run: Run) -> None:
        """The kernel has closed, and the run is not over: those who wait for it must not wait for ever."""
        self._unbind(run)
        leave(run)
        error = KernelClosed(
            f"the kernel was closed before run {run.identity.run_id} of session {run.identity.session_id} was over; "
            "what is in the journal is safe, open the session again to see it"
        )
        if not run.started.done():
            run.started.set_exception(error)
        run.exit(error)

    def _unbind(self, run: Run) -> None:
        if run.messages is not None:
            try:
                run.messages.release()
            except Exception as error:
                run.failures.append(error)
            run.messages = None


def leave(run: Run) -> None:
    if run in run.entry.runs:
        run.entry.runs.remove(run)
    run.entry.changed()


def _same(owner: Any, identity: RunIdentity) -> None:
    bound = RunIdentity(owner.session_id, owner.turn_id, owner.run_id)
    if bound != identity:
        raise RuntimeInteractionInvariantError(
            f"an authority bound {bound} where {identity} was asked for; mend the authority"
        )


def _failed(failure_class: str, error: BaseException) -> JsonObject:
    text = str(error) if isinstance(error, _Misbehaved | ModelError) else f"{type(error).__name__}: {error}"
    return {"kind": "failed", "failure_class": failure_class, "message": text[:_MESSAGE]}


def _class_of(error: BaseException) -> str:
    if isinstance(error, _Misbehaved):
        return error.failure_class
    return error.kind if isinstance(error, ModelError) else "backend_error"
