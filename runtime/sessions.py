"""Sessions for programs: create, send, stop, answer, fork, put away, recover. What an embedding program begins with."""

import asyncio
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import attrs

from ..journal.digests import digest_of
from ..journal.errors import InvalidEvent, JournalConflict, JournalError, JournalLocked
from ..journal.events import Blocks, Draft, Event, JsonObject, Purpose, Recovery
from ..journal.state import State
from ..journal.store import FileStore
from ..journal.summary import listing
from ..journal.views.session import TOOL_BOUNDARY
from ..journal.writer import Hook as AppendHook
from ..journal.writer import wall_ms
from ..repair.session import inspect, writer_of
from .app.definition import App, app_of
from .app.telling import Telling
from .backends.base import BackendRegistry, StopMode
from .continuation.drafts import settle
from .continuation.failpoints import Hook, nowhere
from .continuation.outcomes import outcome_of, stated
from .continuation.plan import at_once, plan
from .continuation.revalidation import still_unknown
from .continuation.safety import SafetyObservation, Unobserved, look, observe
from .continuation.shapes import Continuation, ContinuationPlan, Diagnostic, Facts
from .errors import (
    AppError,
    ContinuationParked,
    ForkRefused,
    KernelClosed,
    RuntimeFailure,
    SessionBusy,
    SettleRefused,
    describe,
)
from .forking import fork_point
from .handoff.abandonment import abandon, busy
from .handoff.asking import HandoffAsking
from .handoff.copying import refusal
from .handoff.denials import DenialLookup, has_explicit_sandbox_boundary_denial
from .handoff.sameness import CompositionReader, recorded_composition
from .ids import new_id
from .interactions import JournalInteractions
from .journals import ExclusiveJournals, FileJournals, OpenSession, Watch
from .kernel.authority import RuntimeMessageAuthority
from .kernel.delivery import SessionListener
from .kernel.generations import Deadlines
from .kernel.kernel import RuntimeKernel, SessionStatus
from .kernel.stream import TurnStream
from .lifecycle import Lifecycle, Listener
from .lingering import lingering
from .opening import facts_of
from .plans import SessionPlans, interrupted
from .recovery import Recovered, Tell, execution_of, handoff_in, reconcile_calls, recover, rerun_calls, waits_in
from .settings import absolute_directory, as_labels, check_patch, check_values
from .tasks import seen

if TYPE_CHECKING:
    from ..repair.session import Session

T = TypeVar("T")
# `list` is a method's name below, so the class cannot say it.
Rows = list[JsonObject]
Recoveries = list[Recovered]
Events = list[Event]
Diagnostics = list[Diagnostic]

#: Values of a session whose change needs another backend object.
_OF_BACKEND: Final = frozenset({"backend", "connection"})
#: What of a row says that there is something to do, or to tell, although the session is in order.
_DUE: Final = ("unsettled", "active_plan", "pending_handoff")


class SessionManager:
    """The sessions below one root, run with one app. Use it from one event loop, with ``async with``.

    ``root``: where they are, else as ``journal.store.default_root`` says. ``app``: an App, an object with what one has,
    or a function or class without arguments that gives one. ``permission_timeout``: seconds after which a
    permission that nobody answers is closed. ``on_append`` sees every event before it is written. ``clock`` (Unix ms),
    ``new_id`` and ``deadlines`` are the kernel's. ``places`` are journals that lie elsewhere, by session id, ``watch``
    is told each event when it is appended, and ``continuation_failpoint`` is for tests (see
    ``continuation.failpoints``). The last two look up what a continuation inherits of the run that it goes on from; by
    themselves in the journal. Raises AppError for what is no app, SessionNotFound for what is no root.

    Whatever starts or changes something raises KernelClosed once the manager was closed, and RuntimeFailure outside of
    its event loop, which is the first that it was used in. ``list``, ``read`` and ``status`` go on.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        app: object,
        message_authority: RuntimeMessageAuthority | None = None,
        permission_timeout: float | None = None,
        deadlines: Deadlines | None = None,
        on_append: AppendHook | None = None,
        clock: Callable[[], int] = wall_ms,
        new_id: Callable[[], str] = new_id,
        keep_open: int = 32,
        continuation_failpoint: Hook = nowhere,
        places: Mapping[str, Path] | None = None,
        watch: Watch | None = None,
        has_explicit_sandbox_boundary_denial: DenialLookup = has_explicit_sandbox_boundary_denial,
        read_composition: CompositionReader = recorded_composition,
    ) -> None:
        self._app = app = _taken(app)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        #: Stops of sessions that are not open here.
        self._stopping: set[asyncio.Future[None]] = set()
        self._new_id = new_id
        self._clock = clock
        files = FileJournals(root, clock=clock, on_append=on_append, places=places, watch=watch)
        self._store: FileStore = files.store
        self._journals = ExclusiveJournals(files)
        registry = BackendRegistry()
        for name, factory in app.backends.items():
            registry.register(name, factory)
        self._registry = registry
        self._lifecycle = Lifecycle()
        self._interactions = JournalInteractions(
            self._opened, lifecycle=self._lifecycle, permission_timeout=permission_timeout
        )
        self.kernel = RuntimeKernel(
            journals=self._journals,
            backends=registry,
            interaction_authority=self._interactions,
            message_authority=message_authority,
            lifecycle=self._lifecycle,
            new_id=new_id,
            now=clock,
            deadlines=deadlines,
            tools=app.tools,
            keep_open=keep_open,
            observe=self._observe,
            reconcile=self._reconcile,
            rerun=self._rerun,
            has_explicit_sandbox_boundary_denial=has_explicit_sandbox_boundary_denial,
            read_composition=read_composition,
            failpoint=continuation_failpoint,
        )
        #: Proposals, their approval, and what becomes of their execution.
        self.plans = SessionPlans(append=self._append, read=self.read, new_id=new_id)
        self._failpoint = continuation_failpoint
        self._asking = HandoffAsking(self.kernel, self._observe, new_id)

    async def __aenter__(self) -> "SessionManager":
        self._ready()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    async def aclose(self, *, source: str = "shutdown") -> None:
        """Stops what runs and closes everything. Raises what failed."""
        self._closed = True
        if self._stopping:
            await asyncio.wait(set(self._stopping))
        try:
            await self.kernel.aclose(source=source)
        finally:
            await self._journals.done()

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Structured lifecycle events of all sessions (see ``lifecycle``); returns what ends the subscription."""
        return self.kernel.subscribe(listener)

    # ------------------------------------------------------------ what there is

    async def create(
        self,
        *,
        session_id: str | None = None,
        name: str | None = None,
        cwd: str | os.PathLike[str] | None = None,
        backend: str | None = None,
        model: str | None = None,
        permission_mode: str | None = None,
        connection: str | None = None,
        labels: Iterable[str] | None = None,
    ) -> str:
        """A new session, durable when this returns its id. What is not given is the app's; ``cwd`` the process's.

        Raises BackendUnknown, JournalConflict where the id is taken, InvalidEvent (for a ``cwd`` that is no directory
        too), JournalWriteError.
        """
        self._ready()
        session_id = session_id or self._new_id()
        header = self._header(
            session_id,
            {
                "name": name,
                "cwd": absolute_directory("." if cwd is None else cwd),
                "backend": backend or self._app.default_backend,
                "model": self._app.model if model is None else model,
                "permission_mode": permission_mode or self._app.permission_mode,
                "connection": connection,
                "labels": None if labels is None else as_labels(labels),
            },
        )
        check_values(header)
        self._registry.factory(header["backend"])
        await _in_thread(lambda: self._write_new(header))
        return session_id

    async def list(self) -> Rows:
        """``[{session_id, name, last_activity, turns, verdict, labels, flagged, archived, unsettled, active_plan,
        pending_handoff, running, waiting}]``.

        ``running`` are the ids of turns that wait or run in this process, ``waiting`` of those that wait for a person
        there. What a look at a snapshot or at the end of a
        file cannot tell is None, and a ``verdict`` is ``unchecked``: ``read`` tells. Damaged sessions are listed too.
        Raises JournalError where the root cannot be read.
        """
        return [self._shown(row) for row in await _in_thread(self._store.list)]

    async def page(self, *, after: str | None = None, limit: int) -> tuple[Rows, str | None]:
        """Up to ``limit`` rows of ``list`` by id, behind the session ``after``; and the id to ask for more with.

        Raises JournalError where the root cannot be read.
        """
        return await _in_thread(lambda: self._page(after, limit))

    def _page(self, after: str | None, limit: int) -> tuple[Rows, str | None]:
        ids = self._store.ids()
        start = 0 if after is None else bisect_right(ids, after)
        rows = [row for session_id in ids[start : start + limit] if (row := self._store.row(session_id)) is not None]
        return [self._shown(row) for row in rows], ids[start + limit - 1] if start + limit < len(ids) else None

    def path(self, session_id: str) -> Path:
        """Where its journal is, or would be. Raises SessionNotFound for what is no session id."""
        return self._store.path(session_id)

    def _shown(self, row: JsonObject) -> JsonObject:
        opened = self.kernel.opened(row["session_id"])
        asked = () if opened is None else opened.journal.state.interactions.pending.values()
        waiting = list(dict.fromkeys(each.turn_id for each in asked))
        return {**self._known(row), "running": self.status(row["session_id"]).turns, "waiting": waiting}

    def _known(self, row: JsonObject) -> JsonObject:
        """The row, with what a session that is open here tells where its files do not."""
        opened = self.kernel.opened(row["session_id"])
        if opened is None or None not in row.values():
            return row
        told = listing(opened.journal.state)
        return {key: told.get(key) if value is None else value for key, value in row.items()}

    async def read(self, session_id: str) -> "Session":
        """The session as a view, as it stands on disk; it may run meanwhile. See ``maka.inspect``.

        Raises SessionNotFound, JournalError.
        """
        return await _in_thread(lambda: inspect(self._store.path(session_id)))

    def status(self, session_id: str) -> SessionStatus:
        """What this process knows of it beyond the journal: turns here, quarantine, a failed journal."""
        return self.kernel.status(session_id)

    # ------------------------------------------------------------ turns

    def send(
        self,
        session_id: str,
        content: str | Blocks,
        *,
        turn_id: str | None = None,
        message_id: str | None = None,
        max_steps: int | None = None,
        quotes: Rows | None = None,
        attachments: Rows | None = None,
        root: JsonObject | None = None,
    ) -> TurnStream:
        """A new turn with this message; its events, to be iterated. It waits for turns that were sent before it.

        ``root``: what the turn is for, where no person asked for it: ``{"kind": "goal", …}``, as its runs keep it.

        The session is opened, and repaired if a crash left something open. See TurnStream for what iterating raises.
        Raises InvalidEvent at once for what is neither a text nor a list of content blocks, and for an id that can be
        none.
        """
        self._here()
        message: object = content
        if not isinstance(message, str | list):
            raise InvalidEvent(
                f"a message must be a text or a list of content blocks, not {type(message).__name__}",
                type="user/message",
                key="content",
            )
        return self.kernel.start_turn(
            session_id,
            text=content if isinstance(content, str) else None,
            content=None if isinstance(content, str) else content,
            turn_id=turn_id,
            message_id=message_id,
            max_steps=max_steps,
            quotes=quotes,
            attachments=attachments,
            root=root,
        )

    def stop(
        self, session_id: str, *, source: str = "user", mode: StopMode = "immediate", stop_id: str | None = None
    ) -> "asyncio.Future[None]":
        """Stops what runs or waits in the session: at once, or ``after_step``. See ``RuntimeKernel.stop_session``.

        A turn that waits for its successor is ended too, also in a session that is not open here: it is opened for
        that, unless another process has it.
        """
        self._here()
        stopping = self.kernel.stop_session(session_id, source=source, mode=mode, stop_id=stop_id)
        if self._closed or self.kernel.status(session_id).open:
            return stopping
        stopping.add_done_callback(seen)
        giving_up = asyncio.ensure_future(self._stop_handed_over(session_id, source, stop_id))
        giving_up.add_done_callback(seen)
        self._stopping.add(giving_up)
        giving_up.add_done_callback(self._stopping.discard)
        # For one who waits, or does not: cancelling it cancels nothing.
        own = asyncio.shield(giving_up)
        own.add_done_callback(seen)
        return own

    async def _stop_handed_over(self, session_id: str, source: str, stop_id: str | None) -> None:
        """Of a session that is not open here: a turn of it that waits for its successor is ended, and nothing else is
        done. Where nobody can tell that there is one nothing is.
        """
        try:
            waits = await _in_thread(lambda: self._waits(session_id))
        except JournalError:
            return
        if not waits:
            return
        opened = self.kernel.status(session_id).open
        try:
            await self.kernel.stop_handed_over(session_id, source, stop_id)
        except JournalLocked:
            return  # it is another process's
        if not opened:
            with suppress(SessionBusy):
                await self.kernel.release(session_id)

    def _waits(self, session_id: str) -> bool:
        """Does a turn wait for its successor? Raises JournalError."""
        row = self._store.row(session_id)
        if row is None or row["pending_handoff"] is not None:
            return row is not None and bool(row["pending_handoff"])
        return any(row["state"] in ("pending", "claimed") for row in inspect(self._store.path(session_id)).handoffs())

    async def answer(self, session_id: str, interaction_id: str, answer: JsonObject) -> JsonObject:
        """Answers a question, a permission or a sandbox boundary; durable when this returns.

        See ``JournalInteractions.answer`` for the shapes. The first durable outcome wins: the same again is fine, also
        after a restart, another raises InteractionRefused (``already_resolved``).
        """
        self._ready()
        async with self.kernel.session(session_id):
            return await self._interactions.answer(session_id, interaction_id, answer)

    async def interaction(self, session_id: str, interaction_id: str) -> JsonObject:
        """How one stands. Raises InteractionRefused (``not_found``)."""
        self._ready()
        async with self.kernel.session(session_id):
            return await self._interactions.query(session_id, interaction_id)

    async def pending(self, session_id: str) -> Rows:
        """The interactions that wait for an answer, oldest first, with their requests.

        The session is opened here for that, so it raises JournalLocked where another process has it: there
        ``(await read(session_id)).interactions()`` lists them, and only that process can take answers.
        """
        self._ready()
        async with self.kernel.session(session_id):
            return await self._interactions.pending(session_id)

    # ------------------------------------------------------------ about a session

    async def update(self, session_id: str, patch: JsonObject, *, request_id: str | None = None) -> int:
        """Sets whole new values, durably: of ``name, labels, flagged, archived, has_unread, cwd, backend, model,
        permission_mode, connection``, and of keys of the program's own, which begin with ``x-``.

        Returns the number of the event. Another ``backend`` or ``connection`` is used from the next turn on. The same
        again under one ``request_id`` changes nothing a second time. Raises InvalidEvent, BackendUnknown, JournalError
        (JournalConflict for another change under that id).
        """
        self._ready()
        check_patch(patch)
        if "cwd" in patch:
            patch = {**patch, "cwd": absolute_directory(patch["cwd"])}
        if "backend" in patch:
            self._registry.factory(patch["backend"])
        data: JsonObject = {"patch": patch}
        if request_id is not None:
            data["request_id"] = request_id

        made: list[int] = []

        def updated(session: OpenSession) -> Sequence[Draft]:
            if request_id is not None and (known := session.journal.state.receipts.get("update", request_id)):
                if known.digest != digest_of(patch):
                    raise JournalConflict(
                        f"request {request_id} has changed something else in session {session_id} before; ask for this "
                        "under an id of its own",
                        path=self._store.path(session_id),
                        seq=known.seq,
                    )
                made.append(known.seq)
                return []
            if patch.get("archived"):
                self._check_idle(session)
            return [Draft("session/updated", data)]

        events = await self.kernel.append(session_id, updated)
        if _OF_BACKEND & patch.keys():
            await self.kernel.invalidate_cached_backends(session_id)
        return events[-1].seq if events else made[-1]

    async def rename(self, session_id: str, name: str) -> int:
        return await self.update(session_id, {"name": name})

    async def set_labels(self, session_id: str, labels: Iterable[str]) -> int:
        return await self.update(session_id, {"labels": as_labels(labels)})

    async def flag(self, session_id: str, flagged: bool = True) -> int:
        return await self.update(session_id, {"flagged": flagged})

    async def archive(self, session_id: str) -> int:
        """Puts it away: it takes no turns. Raises SessionBusy while something is open or queued in it."""
        return await self.update(session_id, {"archived": True})

    async def unarchive(self, session_id: str) -> int:
        return await self.update(session_id, {"archived": False})

    async def fork(
        self,
        session_id: str,
        *,
        turn_id: str | None = None,
        new_session_id: str | None = None,
        name: str | None = None,
    ) -> str:
        """A session that begins where ``turn_id`` ended in this one, else at its newest point with no turn open.

        Nothing is copied: the fork refers to the point by number and sum, and its history begins with what was said up
        to there. Returns its id. Raises ForkRefused, SessionNotFound, JournalConflict where the id is taken.
        """
        self._ready()
        opened, before = self.kernel.opened(session_id), None
        if opened is not None:
            # A fork may only refer to what is on the disk for good.
            before = opened.journal.next_seq
            await opened.journal.aflush()
        point, values = await _in_thread(
            lambda: fork_point(session_id, self._store.read(session_id), turn_id=turn_id, before=before)
        )
        new_id = new_session_id or self._new_id()
        header = self._header(new_id, {**values, "name": name, "parent": {"session_id": session_id, **point}})
        try:
            await _in_thread(lambda: self._write_new(header))
        except InvalidEvent as error:
            if error.key != "parent":
                raise
            raise ForkRefused(
                f"session {session_id} cannot be forked there, because what came before is damaged; fork it at an "
                f"earlier turn, or look at it with `maka journal inspect {session_id}`"
            ) from error
        return new_id

    async def release(self, session_id: str) -> None:
        """Closes it here, so that another process can open it. Raises SessionBusy while it is in use, JournalError."""
        self._ready()
        await self.kernel.release(session_id)

    @property
    def defaults(self) -> JsonObject:
        """What a session is created with where nothing is said of it, as its header holds it."""
        app = self._app
        return {"backend": app.default_backend, "model": app.model, "permission_mode": app.permission_mode}

    def trashed(self, session_id: str) -> Path | None:
        """Where the newest session of that id is that was moved to the trash."""
        return self._store.trashed(session_id)

    async def delete(self, session_id: str) -> Path:
        """Moves it to the root's ``trash/``; returns where it is now. Nothing is removed.

        Raises SessionBusy, SessionNotFound, JournalLocked, and JournalConflict while a fork refers to it.
        """
        self._ready()
        await self.kernel.release(session_id)
        return await self._journals.alone(session_id, lambda: self._store.delete(session_id))

    # ------------------------------------------------------------ recovery

    async def recover(self, session_id: str) -> Recovered:
        """Closes what a crash left open in it, then asks tools that can tell what became of their calls; a plan that
        nothing carries out any more is interrupted. Does nothing to one that is in order, or that somebody has open.

        What failed is in the result and not raised, so that one bad session keeps no other from being opened.
        """
        self._ready()
        if self.kernel.status(session_id).open:
            return await self._recovered_here(session_id)
        found = await self._journals.alone(session_id, lambda: recover(self._store, session_id, clock=self._clock))
        if found.state == "repaired":
            self._lifecycle.tell("session_recovered", session_id, appended=found.appended)
            await self._failpoint("after_repair_committed")
        return await self._reconciled(found) if found.unsettled else found

    async def _recovered_here(self, session_id: str) -> Recovered:
        """One that this process has open. Where its journal has failed it is opened again, which repairs it; how many
        events that took is not counted. Tools are asked again.
        """
        status = self.kernel.status(session_id)
        if status.turns or status.stopping:
            return Recovered(session_id, "open")
        try:
            async with self.kernel.session(session_id) as session:
                session.asked.clear()
                unknown = session.journal.state.turns.unknown.values()
                unsettled = sum(call.recovery == "reconcile" for call in unknown)
                events = await self.kernel.append(session_id, self._interrupted)
                pending, waits = handoff_in(session.journal.state), waits_in(session.journal.state)
        except JournalError as error:
            return Recovered(session_id, "failed", error=error)
        found = Recovered(
            session_id,
            "repaired" if events or status.degraded is not None else "unchanged",
            appended=len(events),
            unsettled=unsettled,
            interrupted=execution_of(events),
            pending_handoff=pending,
            waits=waits,
        )
        return await self._reconciled(found, release=False) if unsettled else found

    def _interrupted(self, session: OpenSession) -> Sequence[Draft]:
        """The end of a plan's execution that nothing carries out, here or in the journal."""
        busy = self.kernel.status(session.session_id).turns
        return [] if busy else interrupted(session.journal.state)

    async def _reconciled(self, found: Recovered, *, release: bool = True) -> Recovered:
        try:
            reconciled = await self.kernel.reconcile(found.session_id)
            if release and not self.kernel.status(found.session_id).turns:
                await self.kernel.release(found.session_id)
        except SessionBusy:
            pass  # somebody has begun to use it
        except JournalError as error:
            return attrs.evolve(found, state="failed", error=error)
        except Exception as error:
            what = f"the tools of session {found.session_id} could not be asked ({describe(error, typed=True)})"
            return attrs.evolve(found, state="failed", error=JournalError(f"{what}; mend the app"))
        return attrs.evolve(found, reconciled=reconciled, unsettled=found.unsettled - reconciled)

    async def recover_interrupted_sessions(self) -> Recoveries:
        """``recover`` for every session of the root, one after the other.

        One whose snapshot fits and says that it is in order, that no tool has to be asked, no plan is carried out and
        no turn waits for its successor, is not opened.
        """
        self._ready()
        rows = await _in_thread(self._store.list)
        return [
            Recovered(row["session_id"], "unchanged")
            if row["verdict"] == "healthy" and not any(row[key] for key in _DUE)
            else await self.recover(row["session_id"])
            for row in rows
        ]

    # ------------------------------------------------------------ continuations

    async def plan_safe_boundary_continuation(
        self,
        session_id: str,
        *,
        source_run_id: str | None = None,
        purpose: Purpose = "resume",
        turn_id: str | None = None,
        rerun: Iterable[Recovery] = (),
        repaired: bool = False,
    ) -> ContinuationPlan:
        """Whether a run can be continued, and the continuation, or why not. Reads, writes nothing, reserves nothing;
        only a session whose journal has failed in this process is opened again for it, which repairs it.

        ``source_run_id``: by itself the latest interrupted run. ``rerun``: recoveries (``read_only``, ``idempotent``)
        whose calls of unknown outcome are executed again. ``repaired``: plan as if a repair had closed what a crash
        left open. Raises SessionBusy while a run of the session runs here, SessionNotFound, JournalError
        (JournalDamaged where a salvage is due), InvalidEvent for a ``turn_id`` that can be none.
        """
        self._ready()
        again = (rerun,) if isinstance(rerun, str) else tuple(rerun)
        self._refuse_live(session_id)
        off = at_once(
            session_id,
            source_run_id=source_run_id,
            purpose=purpose,
            turn_id=turn_id,
            rerun=again,
            enabled=self._app.safe_boundary_resume_enabled,
        )
        if off is not None:
            return off
        facts, notes = await self._facts(session_id, repaired)
        try:
            observation: SafetyObservation | Unobserved = await self._observe(session_id, facts.state)
        except Unobserved as error:
            observation = error
        await self._settled(session_id, facts)
        self._refuse_live(session_id)
        planned = plan(
            facts,
            source_run_id=source_run_id,
            purpose=purpose,
            turn_id=turn_id,
            rerun=again,
            observation=observation,
            enabled=self._app.safe_boundary_resume_enabled,
            backends=self._app.backends,
            new_id=self._new_id,
            prospect=self._told(facts.state).prospect(),
        )
        return attrs.evolve(planned, diagnostics=(*planned.diagnostics, *notes))

    def resume_safe_boundary_continuation(
        self, planned: ContinuationPlan | Continuation, *, listener: SessionListener | None = None
    ) -> TurnStream:
        """The run that a plan found can be started; its events, to be iterated. No message is sent again.

        Everything that the plan relied on is checked again, and the boundary is claimed, once for good. Raises
        ContinuationParked at once for a plan that parks; iterating raises ContinuationRevalidationError where something
        has changed since, and what TurnStream says. ``listener``: see ``RuntimeKernel.start_turn``.
        """
        self._here()
        given: object = planned
        if not isinstance(given, ContinuationPlan | Continuation):
            raise TypeError(f"what is resumed is a plan, or its continuation, and not a {type(given).__name__}")
        continuation = given.continuation if isinstance(given, ContinuationPlan) else given
        if continuation is None:
            assert isinstance(given, ContinuationPlan)
            raise ContinuationParked(
                f"the plan for session {given.session_id} does not continue "
                f"({', '.join(given.rejection_reasons)}); its diagnostics say what to do, then plan again",
                rejection_reasons=given.rejection_reasons,
            )
        if continuation.purpose == "resume" and not self._app.safe_boundary_resume_enabled:
            raise ContinuationParked(
                f"this app continues no runs, so nothing of session {continuation.session_id} was claimed; set "
                "safe_boundary_resume_enabled",
                rejection_reasons=("resume_feature_disabled",),
            )
        return self.kernel.start_continuation(continuation, listener=listener)

    async def settle_indeterminate_continuation(self, session_id: str, claim_id: str) -> "Events":
        """Ends a continuation that a crash left behind its start, where nobody knows whether the provider was called:
        its turn has failed. The provider is never called for it. Returns what was appended, durably.

        Raises SettleRefused, SessionBusy while something runs in the session here, JournalError.
        """
        self._ready()

        def settled(session: OpenSession) -> Sequence[Draft]:
            self.kernel.refuse_busy(session_id)
            return settle(session.journal.state, claim_id)

        return await self.kernel.append(session_id, settled)

    # ------------------------------------------------------------ handoffs

    async def hand_over(
        self, session_id: str, *, timeout: float | None = None, host_epoch: str | None = None
    ) -> JsonObject:
        """Pauses what runs in the session at its next step boundary, for a successor to finish the turn: here or in
        another process, by a plan of purpose ``handoff``. Durable when this returns the data of the handoff/pause.

        The run's stream ends then without ``complete``. ``timeout``: seconds to wait for the boundary. ``host_epoch``:
        who asks, by itself this manager. Raises HandoffRefused: ``run_unknown``, ``run_over``, ``handoff_pending``,
        ``not_reached``, ``composition_missing``, ``would_park``; then the run goes on. And JournalError.
        """
        self._ready()
        return await self._asking.hand_over(session_id, timeout=timeout, host_epoch=host_epoch)

    async def abandon_handoff(self, session_id: str, handoff_id: str, reason: str | None = None) -> "Events":
        """Gives up a handoff whose successor has not started: its turn has failed, and new messages are taken again.

        ``reason`` is said in the turn's end. Returns what was appended, durably. Raises SettleRefused, SessionBusy
        while something runs in the session here, JournalError.
        """
        self._ready()
        said: object = reason
        if said is not None and not isinstance(said, str):
            raise TypeError(f"the reason for giving a handoff up is a text, not {type(said).__name__}")

        def abandoned(session: OpenSession) -> Sequence[Draft]:
            self.kernel.refuse_busy(session_id)
            return abandon(session.journal.state, handoff_id, reason)

        events = await self.kernel.append(session_id, abandoned)
        turn_id = next(event.data["turn_id"] for event in events if event.type == "turn/end")
        self._lifecycle.tell("handoff_abandoned", session_id, turn_id=turn_id, handoff_id=handoff_id)
        return events

    async def copy_turns(self, session_id: str, turn_ids: Iterable[str]) -> str:
        """Copies turns into a new session under new ids. No version does so yet: fork the session, which keeps them.

        Raises CopyRefused before there is a new session: for turns with a claim, a start or a pause, whose ids cannot
        be rewritten (``branch_runtime_fact_rewrite_unsupported``), for others too (``copy_not_offered``).
        """
        self._ready()
        given: object = turn_ids
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise TypeError(f"turn_ids must be several ids, as in a list, not {type(given).__name__}")
        turns, opened = tuple(turn_ids), self.kernel.opened(session_id)
        if opened is not None:
            raise refusal(opened.journal.state, turns)
        path = self._store.path(session_id)
        facts = await _in_thread(lambda: facts_of(path, repaired=True))
        raise refusal(facts.state, turns)

    async def settle_call(self, session_id: str, call_id: str, *, ok: bool, text: str | None = None) -> "Events":
        """States what a call of unknown outcome came to, by a person's word; ``call_id`` may be its operation_id too.

        The first outcome stands: the same again is fine and appends nothing. Returns what was appended, durably. Raises
        SettleRefused, JournalError.
        """
        self._ready()
        word = "ok" if ok else "error"

        def settled(session: OpenSession) -> Sequence[Draft]:
            state = session.journal.state
            try:
                return [stated(state, call_id, ok=ok, text=text)]
            except SettleRefused as refused:
                if refused.code == "call_settled" and outcome_of(state, call_id) == (word, "user"):
                    return []
                raise

        return await self.kernel.append(session_id, settled)

    async def _settled(self, session_id: str, facts: Facts) -> None:
        """What the facts of an open session tell is on the disk: behind this, and as long as nobody waits."""
        opened = self.kernel.opened(session_id)
        while opened is not None and opened.journal.state is facts.state:
            seq = opened.journal.next_seq
            await opened.journal.aflush()
            if opened.journal.next_seq == seq:
                return

    def _refuse_live(self, session_id: str) -> None:
        live = self.kernel.running(session_id)
        if live is not None:
            raise SessionBusy(f"run {live} of session {session_id} runs in this process; stop it or wait for its end")

    async def _facts(self, session_id: str, repaired: bool) -> tuple[Facts, Diagnostics]:
        """The facts, and what a person should know of them beside the plan."""
        status = self.kernel.status(session_id)
        if status.open or status.degraded is not None:
            conversation = await self.kernel.conversation(session_id)
            opened = self.kernel.opened(session_id)
            if opened is not None and opened.conversation is conversation:
                return Facts(session_id, opened.journal.state, conversation), []
        path = self._store.path(session_id)
        facts = await _in_thread(lambda: facts_of(path, repaired=repaired))
        held = await _in_thread(lambda: writer_of(path))
        if held is None:
            return attrs.evolve(facts, session_id=session_id), []
        who = f"process {held['pid']}" if held.get("pid") else "another process"
        text = f"{who} has session {session_id} open; nothing of it can be continued before that has ended"
        return attrs.evolve(facts, session_id=session_id), [Diagnostic("session_locked", text)]

    async def _observe(self, session_id: str, state: State) -> SafetyObservation:
        """What the app's inspector sees, or this process by itself. Raises Unobserved."""
        if self._app.safety_inspector is not None:
            return await observe(self._app.safety_inspector, session_id)
        told = self._told(state)
        settled = not any(state.runs.known(run_id) for run_id in lingering())
        return await look(str(told.settings.get("cwd", "")), told.tool_names, settled=settled)

    def _told(self, state: State) -> Telling:
        """What the factory of the session's backend tells."""
        return Telling(self._app, state.session.settings())

    async def _reconcile(self, session: OpenSession) -> int:
        return await reconcile_calls(
            session,
            self._told(session.journal.state).tools,
            lambda: self._store.read(session.session_id),
            failpoint=self._failpoint,
        )

    async def _rerun(self, session: OpenSession, continuation: Continuation, tell: Tell) -> None:
        told = self._told(session.journal.state)
        unknown = await rerun_calls(
            session,
            told.tools,
            lambda: self._store.read(session.session_id),
            call_seqs=continuation.rerun,
            authorize=told.authorize,
            tell=tell,
            failpoint=self._failpoint,
        )
        if unknown:
            raise still_unknown(continuation, unknown)

    # ------------------------------------------------------------ within

    def _ready(self) -> None:
        self._here()
        if self._closed:
            raise KernelClosed("this manager was closed; make a new one to go on")

    def _here(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeFailure(
                "a manager is used within an event loop, and none runs here; call this from a coroutine, such as one "
                "that `asyncio.run` runs"
            ) from None
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise RuntimeFailure(
                "this manager belongs to the event loop that it was first used in, which is another one; make a "
                "manager for each loop, in it"
            )

    async def _append(self, session_id: str, decide: Callable[[OpenSession], Sequence[Draft]]) -> "Events":
        self._ready()
        return await self.kernel.append(session_id, decide)

    def _opened(self, session_id: str) -> OpenSession | None:
        return self.kernel.opened(session_id)

    def _header(self, session_id: str, values: JsonObject) -> JsonObject:
        """``session/header``, keys in the order of the format."""
        from .. import __version__

        order = (
            "cwd", "backend", "model", "permission_mode", "tool_boundary", "connection", "name", "labels", "parent",
        )  # fmt: skip
        known = {**values, "tool_boundary": TOOL_BOUNDARY}
        return {
            "format": 1,
            "session_id": session_id,
            "created_by": {"name": "maka", "version": __version__},
            **{key: known[key] for key in order if known.get(key) is not None},
        }

    def _write_new(self, header: JsonObject) -> None:
        try:
            self._store.create(Draft("session/header", header)).close()
        except JournalLocked:
            path = self._store.path(header["session_id"])
            if not path.exists():
                raise
            raise JournalConflict(
                f"there is already a journal at {path}; choose another session id", path=path
            ) from None

    def _check_idle(self, session: OpenSession) -> None:
        session_id, state = session.session_id, session.journal.state
        self.kernel.refuse_busy(session_id)
        for handoff in state.continuations.pending():
            raise busy(session_id, handoff)
        waits = [
            *(f"turn {turn_id}" for turn_id in state.turns.open),
            *(f"the queued message {message_id}" for message_id in state.queue.waiting),
            *(f"the admitted turn {admission.turn_id}" for admission in state.admissions.waiting()),
        ]
        if waits:
            raise SessionBusy(f"session {session_id} is busy with {', '.join(waits[:3])}; let it end, or take it back")


def _taken(app: object) -> App:
    """Raises AppError for what is no app, and what a function that is to give one raises."""
    if isinstance(app, str):
        raise AppError(
            f"{app[:200]!r} is the name of an app and no app; `load_app` of `maka.runtime` loads it by that name"
        )
    try:
        return app_of(app)
    except AppError as error:
        raise AppError(f"this is no app for a manager: {error}") from error


async def _in_thread(work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work)
