"""The course of a run: from its claim through its backend's stream to its exit. No I/O of its own.

claim → open the journal → reserve a backend → wait for the session's turn slot → fence → bind the messages → begin (one
durable batch) → bind the interactions → fence → send → the turn's end → exit → the run is settled.
"""

import asyncio
from collections.abc import AsyncIterable, Coroutine, Sequence
from typing import Any, Final

from ...journal.errors import InvalidEvent, JournalError
from ...journal.events import Draft
from ..backends.base import SendInput
from ..continuation.drafts import settle, unfinished
from ..errors import (
    ContinuationRevalidationError,
    InteractionRefused,
    KernelClosed,
    RuntimeFailure,
    RuntimeInteractionInvariantError,
    SessionArchived,
    describe,
)
from ..handoff.abandonment import busy
from ..journals import OpenSession
from ..ledger import Ledger
from ..lifecycle import log
from ..lingering import has_left
from ..lingering import leave as leave_behind
from ..model import ModelError
from ..session_events import BARRIERS, SessionEvent
from ..tasks import exits_contained, failure_of, foreign, seen
from .asking import KIND_OF
from .authority import RunIdentity
from .backends import Backends, check
from .entries import Entries
from .failures import combine
from .generations import Generation
from .idle import Idle
from .openings import conflict, unopened
from .parts import Parts
from .reasons import Misbehaved, check_event, failed, missing, raised, refused, said, went_on
from .run import Cancelled, Run

#: Seconds after which what a backend has said is made durable and told, if it says nothing more.
_TOLD: Final = 0.002
#: After so many events all others have their turn, a stop among them, although the backend never waits.
_AT_ONCE: Final = 32
#: Behind these a backend goes on to do something. They are not taken any more once the turn has its end.
_BEGINNINGS: Final = BARRIERS - {"tool_result"}
#: Is the backend between two steps behind this?
_STEP: Final = {"step_start": False, "steering_message": False, "step_end": True}
#: What a backend may yield that was told to pause: how the run ends instead, and what it leaves behind.
_BEHIND_A_PAUSE: Final = frozenset({"complete", "error", "abort", "cleanup_failed"})
#: What still counts behind the turn's end.
_HEARD_LATE: Final = frozenset({"tool_result", "cleanup_failed"})
#: Ends at which a call may well have no result.
_CUT_SHORT: Final = frozenset({"user_stop", "error"})


class _Over(Exception):
    """The turn has its end: the backend is asked for nothing more."""


class Course:
    def __init__(self, parts: Parts, entries: Entries, backends: Backends, idle: Idle) -> None:
        self._parts = parts
        self._entries = entries
        self._backends = backends
        self._idle = idle

    async def drive(self, run: Run) -> None:
        try:
            await self._drive(run)
        except asyncio.CancelledError:
            # Where the kernel closes it cuts the run off.
            if not self._parts.tasks.over:
                await self._interrupted(run)
            raise
        except (KeyboardInterrupt, SystemExit) as error:
            self._cut(run, error)
            raise
        except BaseException as error:
            log.exception("run %s of session %s failed unforeseen", run.identity.run_id, run.identity.session_id)
            if run.session is not None:
                # What it left open is closed when the session is opened again, before its next turn.
                text = (
                    f"run {run.identity.run_id} failed unforeseen ({describe(error, typed=True)}); send again to go on"
                )
                self.degrade(run, JournalError(text))
            self._cut(run, error)
            raise

    async def _drive(self, run: Run) -> None:
        try:
            await self._prepare(run)
        except Cancelled:
            self._unbind(run)
            if run.failures:
                self._parts.say(run, "run_ended", reason=None, error=run.failures[0])
            return
        except Exception as error:
            self._unbind(run)
            if not run.cancelled:
                failure = combine("the start failed in several ways", [error, *run.failures])
                assert failure is not None
                leave(run)
                run.started.set_exception(failure)
                run.exit(failure)
                self._idle.tidy()
            return
        try:
            await self._begin(run)
        except JournalError as error:
            self.degrade(run, error)
            run.failures.append(error)
            run.lost = True
            run.started.set_exception(error)
        except BaseException as error:
            if _is_own(error):
                raise
            run.failures.append(error)
            if not run.opened:
                self.degrade(run, unopened(run.identity.session_id, run.identity.run_id))
                run.lost = True
            run.claim_terminal("event", failed("start_failed", describe(error, typed=True)))
            run.started.set_exception(foreign(error))
        else:
            run.started.set_result(None)
            await self._stream(run)
        await self._finish(run)

    async def _interrupted(self, run: Run) -> None:
        """Somebody cancelled all tasks of the loop, as ``asyncio.run`` does for an interrupt: the turn gets its end."""
        try:
            if run.begun and not run.exited:
                run.claim_terminal("event", {"kind": "aborted", "source": "shutdown"})
                if run.pump is not None:
                    # Once: a second time would cut off what still comes to its end.
                    if not run.pump.cancelling():
                        run.pump.cancel()
                    await asyncio.wait({run.pump}, timeout=self._parts.deadlines.exit)
                run.stream_ended = True
                run.entry.changed()
                if not run.started.done():
                    run.started.set_exception(self._closed_over(run))
                await self._finish(run)
        finally:
            if not run.exited:
                self.cut_off(run)

    async def _prepare(self, run: Run) -> None:
        """Up to the batch that begins the turn, which is handed to the writer. Raises Cancelled, and what fails."""
        entry = run.entry
        check(run)
        _refuse_second(run)
        await entry.until(lambda: run.cancelled or entry.attempt is None)
        check(run)
        await self._entries.open_first(entry)
        while True:
            check(run)
            await self._parts.activation(lambda: self._backends.reserve(run))
            if run.generation is None:
                raise RuntimeFailure(
                    f"the activation of session {entry.session_id} did not await its operation; mend what wraps it"
                )
            await entry.until(lambda: run.cancelled or entry.runs[0] is run)
            check(run)
            session = await self._entries.opened(entry)
            if run.opening.boundary_digest is None:
                # What is known by now is what a plan has gone by.
                await self._entries.reconciled(entry, session)
            conversation = await self._entries.conversation(entry, session)
            await run.opening.look(session)
            check(run)
            # The fence, and nothing waits from here on until the batch is handed over.
            held = self._entries.usable(entry.session_id) is session
            if held and run.generation is entry.generation and run.generation.usable:
                break
        if session.journal.state.session.value("archived"):
            raise SessionArchived(f"session {entry.session_id} is archived and takes no turns; `unarchive` it first")
        identity = run.identity
        if self._parts.message_authority is not None:
            run.messages = self._parts.message_authority.bind_run(identity)
            _same(run.messages, identity)
            check(run)
        drafts = run.opening.first(session, conversation, self._parts.now())
        if run.opening.boundary_digest is None:
            drafts = [*_settle_first(session), *drafts]
        open_turn = session.journal.state.turns.open.get(identity.turn_id)
        run.ledger = Ledger(
            session.journal,
            session.observe,
            run.publish,
            turn_id=identity.turn_id,
            run_id=identity.run_id,
            new_id=self._parts.new_id,
            now=self._parts.now,
            live_text=self._parts.live_text,
            # A successor's steps go on where its turn stands.
            step=0 if open_turn is None else open_turn.step,
        )
        run.session = session
        # From here on a stop waits for the start: it comes too late to cancel it.
        run.begun = True
        run.generation.runs += 1
        try:
            run.ledger.begin(drafts)
        except BaseException:
            run.begun = False
            run.lost = True
            run.generation.leave()
            raise

    async def _begin(self, run: Run) -> None:
        assert run.ledger is not None
        await run.ledger.barrier()
        await run.opening.follow(run.ledger)
        run.permitted = True
        self._parts.say(run, "run_started")
        if self._parts.interaction_authority is not None:
            # Bound to something else it is closed and released with the run, which has its time for that.
            run.owner = self._parts.interaction_authority.bind_run(run.identity)
            _same(run.owner, run.identity)

    async def _stream(self, run: Run) -> None:
        generation = run.generation
        assert generation is not None
        error: BaseException | None = None
        if run.claimant is None and run.opening.boundary_digest is not None:
            await self._ready(run)
        # A stop may have come first: then nothing is sent.
        if run.claimant is None:
            if generation is not run.entry.generation or generation.phase != "active":
                text = "the backend was given up between the start and the send; send the message again"
                run.claim_terminal("event", failed("start_failed", text))
            else:
                run.sent = True
                run.pump = self._parts.spawn(self._pump(run, generation), f"stream of run {run.identity.run_id}")
                # An interrupt may be the last that happens here: then nobody looks at what it raised.
                run.pump.add_done_callback(seen)
                await asyncio.wait({run.pump})
                error = failure_of(run.pump)
        run.stream_ended = True
        run.entry.changed()
        if isinstance(error, JournalError) and not isinstance(error, InvalidEvent):
            self.journal_failed(run, error)
        elif error is not None and not run.lost:
            defect = not isinstance(error, Misbehaved | ModelError | RuntimeFailure)
            self._parts.say(run, "backend_failed", error=error, defect=defect)
            if isinstance(error, RuntimeInteractionInvariantError):
                run.failures.append(error)
        if error is not None:
            run.claim_terminal("event", raised(error))

    async def _ready(self, run: Run) -> None:
        """What comes between the start and the backend. A stop cuts it off."""
        assert run.session is not None
        assert run.ledger is not None
        generation = run.generation
        assert generation is not None
        preparing = self._parts.spawn(
            run.opening.ready(run.session, run.ledger, generation.backend, self._parts.activation),
            f"prepare run {run.identity.run_id}",
        )
        preparing.add_done_callback(seen)
        stopped = self._parts.spawn(run.entry.until(lambda: run.claimant is not None), "wait for a stop")
        await asyncio.wait({preparing, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not preparing.done():
            preparing.cancel()
            await asyncio.wait({preparing})
        error = failure_of(preparing)
        if error is None or run.claimant is not None:
            return
        if isinstance(error, JournalError) and not isinstance(error, InvalidEvent):
            self.journal_failed(run, error)
            return
        run.refusal = foreign(error)
        code = error.code if isinstance(error, ContinuationRevalidationError) else "start_failed"
        run.claim_terminal("event", failed(code, describe(error, typed=code == "start_failed")))

    async def _pump(self, run: Run, generation: Generation) -> None:
        with exits_contained("the backend"):
            await self._pumped(run, generation)

    async def _pumped(self, run: Run, generation: Generation) -> None:
        if run.claimant is not None:
            run.sent = False  # a stop came in between
            return
        permitted, run.permitted = run.permitted, False
        if not permitted:
            raise RuntimeFailure(
                f"run {run.identity.run_id} has no permission to call its backend, which is given once"
            )
        run.entered()
        stream: object = generation.backend.send(self._input(run))
        if not isinstance(stream, AsyncIterable):
            if isinstance(stream, Coroutine):
                stream.close()
            text = f"send() of {generation.name} gave a {type(stream).__name__} and no asynchronous iterator"
            raise Misbehaved("backend_error", f"{text}; make it an async generator")
        try:
            await self._read(run, stream)
            if run.handing.paused:
                await self._parts.failpoint("before_handoff_pause")
            if not run.handing.concluded():
                raise missing()
            if run.handing.tried:
                # Before the iterator is closed: that may take its time, or hang.
                await run.end()
        except _Over:
            pass
        except Exception as error:
            if not isinstance(error, JournalError) or isinstance(error, InvalidEvent):
                # Before the iterator is closed: that may take its time, or hang.
                await self._broke(run, error)
            raise
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()

    async def _broke(self, run: Run, error: Exception) -> None:
        """The stream gives nothing more, and the turn has no other end."""
        run.claim_terminal("event", raised(error))
        run.step_ended = True
        run.entry.changed()
        if run.claimant == "event":
            await run.end()

    async def _read(self, run: Run, stream: AsyncIterable[SessionEvent]) -> None:
        ready = getattr(stream, "ready", None)
        taken = 0
        async for event in stream:
            events = [event] if ready is None else [event, *ready()]
            await self._take(run, events)
            taken += len(events)
            if taken >= _AT_ONCE:
                taken = 0
                await asyncio.sleep(0)

    def _input(self, run: Run) -> SendInput:
        session, identity, messages = run.session, run.identity, run.messages
        assert session is not None
        assert session.conversation is not None
        steering: dict[str, Any] = {}
        if messages is not None:
            steering = run.handing.steering(messages.pull, messages.ack, messages.nack)
        return SendInput(
            session_id=identity.session_id,
            turn_id=identity.turn_id,
            run_id=identity.run_id,
            invocation_id=run.invocation_id,
            conversation=session.conversation,
            interactions=run.asking,
            max_steps=run.opening.max_steps,
            handoff_boundary=run.handing.boundary,
            handoff_wanted=run.handing.wanted,
            **run.opening.given(),
            **steering,
        )

    async def _take(self, run: Run, events: Sequence[SessionEvent]) -> None:
        """Journals what the backend said; where it may act on that, makes it durable first. Raises _Over."""
        ledger = run.ledger
        assert ledger is not None
        barrier = False
        for place, event in enumerate(events):
            check_event(event, run.identity.turn_id)
            if run.completed:
                self._behind(run, [event])
            if ledger.sealed and event.kind in _BEGINNINGS:
                raise _Over
            if run.handing.paused and event.kind not in _BEHIND_A_PAUSE:
                raise went_on(event)
            await self._event(run, ledger, event)
            barrier = barrier or event.kind in BARRIERS
            if event.kind == "complete":
                self._behind(run, events[place + 1 :])
                break
        if barrier:
            await ledger.barrier()
        elif ledger.untold and not run.telling:
            run.tell_at(asyncio.get_running_loop().call_later(_TOLD, self._tell, run))
        if run.claimant == "event":
            await run.end()

    async def _event(self, run: Run, ledger: Ledger, event: SessionEvent) -> None:
        match event.kind:
            case "complete":
                self._completed(run, ledger, event)
                run.claim_terminal("event", said(event.data["stop_reason"], run.reported_error, run.abort_source))
            case "error":
                run.reported_error = event.data
            case "abort":
                run.abort_source = str(event.data.get("source", "backend"))
            case kind if kind in KIND_OF:
                if run.claimant is None:
                    await self._ask(run, event)
            case kind:
                try:
                    ledger.take(event)
                except InvalidEvent as error:
                    raise refused(event, error) from error
                if kind in _STEP:
                    run.step_ended = _STEP[kind]
                    run.entry.changed()

    def _completed(self, run: Run, ledger: Ledger, event: SessionEvent) -> None:
        run.completed = True
        running = [call for call in ledger.progress.calls if call.operation_id is not None and not call.answered]
        if running and run.claimant is None and event.data["stop_reason"] not in _CUT_SHORT:
            log.warning(
                "the backend of session %s said complete in run %s while a call of %s had no result; what became of it "
                "counts as unknown",
                run.identity.session_id,
                run.identity.run_id,
                running[0].name,
            )

    def _behind(self, run: Run, events: Sequence[Any]) -> None:
        """Says once that something came behind the run's ``complete``, which nobody hears."""
        kinds = [event.kind if isinstance(event, SessionEvent) else type(event).__name__ for event in events]
        if (lost := [kind for kind in kinds if kind not in _HEARD_LATE]) and not run.dropped:
            run.dropped = True
            log.warning(
                "the backend of session %s yielded %s behind the complete of run %s; nothing of that is taken",
                run.identity.session_id,
                lost[0],
                run.identity.run_id,
            )

    async def _ask(self, run: Run, event: SessionEvent) -> None:
        try:
            await run.asking.yielded(event)
        except InteractionRefused as error:
            if error.code != "run_closed":
                raise Misbehaved("interaction_refused", str(error)) from error

    def _tell(self, run: Run) -> None:
        self._parts.spawn(self._told(run), "tell")

    async def _told(self, run: Run) -> None:
        assert run.ledger is not None
        try:
            if run.ledger.untold:
                await run.ledger.barrier()
        except JournalError as error:
            self.journal_failed(run, error)
        finally:
            run.telling = False

    def journal_failed(self, run: Run, error: JournalError) -> None:
        """Nothing more is written, so nothing more may happen: the backend is stopped and its stream closed."""
        self.degrade(run, error)
        if run.lost:
            return
        run.lost = True
        run.failures.append(error)
        run.claim_terminal("event", failed("journal_write_failed", str(error)))
        run.watch_exit()
        if run.pump is not None and not run.pump.done():
            run.pump.cancel()
            if run.claimant == "event":
                # Else a stop has told its backend, or will.
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
            if run.claimant == "handoff":
                await self._parts.failpoint("after_handoff_pause_committed")
            else:
                await run.opening.reached("after_terminal_event_committed")
        except JournalError:
            pass  # it is among the run's failures
        await run.responded()
        self._unbind(run)
        failures = combine(
            f"cleaning up run {run.identity.run_id} failed in several ways", [run.refusal, *run.failures]
        )
        if ledger.progress.cleanup and not has_left(run.identity.run_id):
            # A backend of somebody's own has said so, and nobody can tell how long that goes on.
            leave_behind(run.identity.run_id)
        if not run.lost and run.claimant != "handoff":
            ledger.progress.cleanup += [describe(failure, typed=True) for failure in run.failures]
            try:
                if not run.settled:
                    ledger.settle()
                    run.settled = True
                await ledger.barrier()
                await run.opening.reached("after_terminal_header_committed")
            except JournalError as error:
                self.degrade(run, error)
                failures = combine("settling the run failed too", [failures, error])
        self._said_over(run, failures)
        generation.leave()
        leave(run)
        run.exit(failures)
        self._backends.retire(entry)
        self._idle.tidy(entry)

    def _said_over(self, run: Run, failures: BaseException | None) -> None:
        pause = run.handing.pause
        if pause is None:
            reason = None if run.reason is None else run.reason["kind"]
            self._parts.say(run, "run_ended", reason=reason, error=failures)
        else:
            ids = {key: pause[key] for key in ("handoff_id", "successor_run_id")}
            self._parts.say(run, "run_handed_off", **ids, error=failures)

    def cut_off(self, run: Run) -> None:
        """The kernel has closed, and the run is not over: those who wait for it must not wait for ever."""
        self._cut(run, self._closed_over(run))

    def _closed_over(self, run: Run) -> KernelClosed:
        return KernelClosed(
            f"the kernel was closed before run {run.identity.run_id} of session {run.identity.session_id} was "
            "over; what is in the journal is safe, open the session again to see it"
        )

    def _cut(self, run: Run, error: BaseException) -> None:
        self._unbind(run)
        if run in run.entry.runs and run.begun and run.generation is not None:
            run.generation.leave()
        leave(run)
        if not run.started.done():
            run.started.set_exception(foreign(error))
            # At once: the loop may end before it calls back.
            seen(run.started)
        run.exit(foreign(error))

    def _unbind(self, run: Run) -> None:
        if run.messages is not None:
            try:
                run.messages.release()
            except Exception as error:
                run.failures.append(error)
            run.messages = None


def _refuse_second(run: Run) -> None:
    """One boundary has one continuation: who comes second is told at once, and not when the first has ended."""
    digest = run.opening.boundary_digest
    if digest is None:
        return
    for earlier in run.entry.runs[: run.entry.runs.index(run)]:
        if earlier.opening.boundary_digest == digest and not earlier.exited:
            raise conflict(run.identity.session_id, earlier.identity.run_id)


def _settle_first(session: OpenSession) -> list[Draft]:
    """A turn that rests where a crash left it has its end before a message begins the next one. Raises SessionBusy.

    What a continuation rests at is given up; a handoff is not, for its successor may come yet.
    """
    state = session.journal.state
    for handoff in state.continuations.pending():
        raise busy(session.session_id, handoff)
    claim_id = unfinished(state)
    return [] if claim_id is None else settle(state, claim_id)


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


def _is_own(error: BaseException) -> bool:
    """Is this task cancelled, or did what it called raise that by itself?"""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
