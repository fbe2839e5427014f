"""The library's face: ``load`` repairs, ``inspect`` never writes, ``open_session`` gives the writer.

A ``Session`` is a view. Its events, head and findings are what is on disk; its turns, runs and messages show the
closers too, whether a repair has written them or would. The other read models are what is on disk for ``inspect``,
and for ``load`` what a repair makes of it.
"""

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from ..journal.errors import JournalDamaged, JournalError, JournalUnsupported, SessionNotFound
from ..journal.events import Draft, Event, JsonObject
from ..journal.findings import Finding, FindingList, Verdict, verdict_of
from ..journal.lock import SessionLock, holder, seems_locked
from ..journal.reader import JOURNAL, first_event, open_source, read, read_source, resolve
from ..journal.scan import Consumer, Mark, ScanResult, scan
from ..journal.source import BytesSource, Part
from ..journal.state import State
from ..journal.views.interactions import pending_row
from .apply import RepairReport, carry_out, examine, home_of, name_of, prepare, repair_locked, report
from .closers import plan_closers
from .plan import Diagnosis, appended_json, head_after, judge, pending_events, plan_repair, undamaged

if TYPE_CHECKING:
    from ..journal.events import SessionHeader
    from ..journal.history import History
    from ..journal.writer import JournalWriter

Target = str | os.PathLike[str]


@attrs.frozen
class _Facts:
    """The read models that tell what is on record, not how it ends; in the order of the document."""

    continuations: list[JsonObject]
    handoffs: list[JsonObject]
    interactions: list[JsonObject]
    queue: JsonObject
    plans: list[JsonObject]
    usage: JsonObject

    @classmethod
    def of(cls, state: State) -> "_Facts":
        return cls(
            state.continuation_rows(),
            state.handoff_rows(),
            state.interaction_rows(),
            state.queue_rows(),
            state.plan_rows(),
            state.usage_row(),
        )


@attrs.define(eq=False)
class _Cut:
    """Gives on what a fork's parents hold, and of the journal itself what stands up to an event.

    ``header``: the sum of the journal's own header, which stands behind its parents' events; None where it is lost.
    """

    give: Consumer
    through: int
    header: str | None
    found: bool = False

    def take(self, event: Event) -> None:
        if self.header is not None and event.sum == self.header:
            self.header = None
        if self.header is None:
            if event.seq > self.through:
                return
            self.found = self.found or event.seq == self.through
        self.give(event)


def facts_of(state: State) -> JsonObject:
    """Those read models as the document of ``inspect`` has them."""
    return attrs.asdict(_Facts.of(state), recurse=False)


class Session:
    """A session as a view, from one reading of its journal. Nothing here writes.

    ``loaded``: every read model is to show the closers. ``not_repaired`` is the sentence why ``load`` has not written
    them, if it has not.
    """

    def __init__(
        self, path: Path, diagnosis: Diagnosis, *, loaded: bool = False, not_repaired: str | None = None
    ) -> None:
        self.path = path
        self.not_repaired = not_repaired
        #: The closers that a repair would append, with the numbers that they would get.
        self.pending: tuple[Event, ...] = pending_events(diagnosis)
        # A repair may write where the tail was; what stands before it never changes.
        tail = diagnosis.scan.tail
        self._source = diagnosis.source if tail is None else Part(diagnosis.source, tail.offset)
        self._scan = diagnosis.scan
        self._diagnosis = diagnosis
        self._state = diagnosis.state
        closers = self._closers()
        self._before = None if loaded or not closers else _Facts.of(self._state)
        self._asked = [pending_row(item) for item in self._state.interactions.pending.values()]
        for event in closers:
            self._state.apply(event)

    def _closers(self) -> tuple[Event, ...]:
        """What the view shows beyond what is on disk: where nothing may be written, no turn is shown as running too."""
        if self.pending or self._scan.head is None:
            return self.pending
        drafts, head = self._diagnosis.closing.drafts, self._scan.head
        return tuple(
            Event(head.seq + i, self._scan.last_ts, draft.type, draft.data, "") for i, draft in enumerate(drafts, 1)
        )

    # ------------------------------------------------------------ what is on disk

    @property
    def session_id(self) -> str:
        return self._diagnosis.session_id

    @property
    def header(self) -> "SessionHeader | None":
        """The header, typed; where line 0 was lost, the one that a salvage rebuilt, else None. Raises InvalidEvent."""
        data = self._state.session.header
        if data is None:
            return None
        from ..journal.codec import structure

        header: SessionHeader = structure("session/header", data)
        return header

    @cached_property
    def events(self) -> list[Event]:
        """Every event on disk that stands, without the header.

        ``load`` keeps those of a journal of ordinary size; else they are read on first access, and then held.
        """
        if self._diagnosis.events is not None:
            return self._diagnosis.events
        return [event for event in self._lines() if event.type != "session/header"]

    def _lines(self) -> list[Event]:
        events: list[Event] = []

        def begin() -> Consumer:
            events.clear()
            return events.append

        scan(self._source, begin)
        return events

    @property
    def head(self) -> Mark | None:
        """The newest event on disk: ``seq``, ``sum``, and the ``offset`` behind it."""
        return self._scan.head

    @property
    def findings(self) -> FindingList:
        return self._diagnosis.findings

    @property
    def verdict(self) -> Verdict:
        return self._diagnosis.verdict

    @property
    def repaired_on_disk(self) -> bool:
        """Is what the view shows what is on disk? False where closers exist in memory only, or damage is open."""
        return self.verdict == "healthy"

    def settings(self) -> JsonObject:
        """The newest ``{name, labels, flagged, archived, has_unread, cwd, backend, model, permission_mode,
        connection}``, and what else was set by patches: the header with every patch laid over it.
        """
        return self._state.session.settings()

    # ------------------------------------------------------------ read models, with the closers

    def turns(self) -> list[JsonObject]:
        """``[{turn_id, turn, status, reason, run_ids, first_seq, last_seq, steps, calls}]``; none is ``running``."""
        return self._state.turn_rows()

    def runs(self) -> list[JsonObject]:
        """``[{run_id, turn_id, invocation_id, status, failure_class?}]``."""
        return self._state.run_rows()

    def continuations(self) -> list[JsonObject]:
        """``[{claim_id, purpose, state, source, target, root_run_id, depth, advice}]``."""
        return self._facts.continuations

    def handoffs(self) -> list[JsonObject]:
        """``[{handoff_id, run_id, turn_id, successor_run_id, claim_id, remaining_steps, state}]``."""
        return self._facts.handoffs

    def executions(self) -> list[JsonObject]:
        """The turns that were handed over, or wait for that, each as ``{turn_id, root_run_id, root, chain, tip, status,
        pending_handoff}``: the runs that carried it one behind the other, what the first was started for, the last of
        them, and how the turn stands.
        """
        return self._state.execution_rows()

    def execution(self, turn_id: str) -> JsonObject | None:
        """The same row of any turn, handed over or not; None: there is no such turn."""
        return self._state.execution_row(turn_id)

    def interactions(self) -> list[JsonObject]:
        """``[{interaction_id, kind, status, outcome?}]``."""
        return self._facts.interactions

    def asked(self) -> list[JsonObject]:
        """The interactions that wait for an outcome on disk, oldest first: ``[{interaction_id, kind, status, turn_id,
        run_id, request, revision}]``. Without their writer none of them is answered any more.
        """
        return self._asked

    def queue(self) -> JsonObject:
        """``{steering: […], followup: […]}``."""
        return self._facts.queue

    def plans(self) -> list[JsonObject]:
        """``[{proposal_id, revision, title, status, execution, turn_id, steps}]``."""
        return self._facts.plans

    def usage(self) -> JsonObject:
        """The sums of the five token counts."""
        return self._facts.usage

    def unknown_calls(self) -> list[JsonObject]:
        """The calls of which nobody knows what came of them, oldest first: ``[{call_id, name, turn_id, run_id,
        call_seq, operation_id, recovery}]``; the last two are None where the dispatch was lost.
        """
        keys = ("call_id", "name", "turn_id", "run_id", "call_seq", "operation_id", "recovery")
        calls = sorted(self._state.turns.unknown.values(), key=lambda call: call.call_seq)
        return [{key: getattr(call, key) for key in keys} for call in calls]

    @property
    def newest_run(self) -> str | None:
        """The run of this journal that was opened last; None where none was."""
        return self._state.runs.newest

    @property
    def lost(self) -> bool:
        """Are lines of this journal lost, or not proven to be as they were written? Then none of its runs goes on."""
        return self._state.lost_seq is not None

    @cached_property
    def _facts(self) -> _Facts:
        return self._before or _Facts.of(self._state)

    def history(self, through: int | None = None) -> "History":
        """The conversation, folded from the journal again (a fork's parents first), with the closers.

        ``through``: as it stood after that event of this journal, without closers. Raises KeyError where there is no
        such event.
        """
        from ..journal.history import History

        histories: list[History] = []
        cuts: list[_Cut] = []
        header = first_event(self._source)

        def begin() -> Consumer:
            histories[:] = [History()]
            if through is None:
                return histories[0].apply
            cuts[:] = [_Cut(histories[0].apply, through, None if header is None else header.sum)]
            return cuts[0].take

        read_source(self._source, self.path, observe=begin)
        history = histories[0]
        if through is None:
            for event in self._closers():
                history.apply(event)
        elif not cuts[0].found:
            raise KeyError(through)
        return history

    def messages(self) -> list[JsonObject]:
        """The provider history: plain dicts ``{role, content}``, legal whatever the journal holds."""
        return self.history().messages()

    def to_json(self, events: bool = False) -> JsonObject:
        """The JSON of ``inspect``; ``events`` adds ``event_list``, every line that stands."""
        head, header = self.head, self._state.session.header
        out: JsonObject = {
            "session_id": self.session_id,
            "path": str(self.path),
            "format": None if header is None else header.get("format"),
            "verdict": self.verdict,
            "events": self._scan.events,
            "bytes": self._diagnosis.source.size,
            "head": None if head is None else {"seq": head.seq, "sum": head.sum},
            "header": header,
            "settings": self.settings(),
            "writer": writer_of(self.path),
            "findings": [finding.to_json() for finding in self.findings],
            "turns": self.turns(),
            "runs": self.runs(),
            "executions": self.executions(),
            **attrs.asdict(self._facts, recurse=False),
            "pending": appended_json(self.pending),
        }
        if events:
            out["event_list"] = [event.to_json() for event in self._lines()]
        return out


def writer_of(path: Path) -> JsonObject | None:
    """Who has the session open for writing, as its lock file says; a hint, for which no lock is touched."""
    directory = Path(os.path.realpath(path)).parent
    return holder(directory) if seems_locked(directory) else None


# ---------------------------------------------------------------- the ways in


def survey(target: Target, root: Target | None = None) -> Session:
    """``inspect`` for whoever shows findings: what cannot be read is one of them, and not an error.

    Raises SessionNotFound.
    """
    try:
        path = resolve(target, root)
        return Session(path, examine(path))
    except SessionNotFound:
        raise
    except JournalError as error:
        path = Path(error.path or target)
        found = ScanResult(findings=FindingList([Finding("unreadable", str(error))]))
        return Session(path, judge(BytesSource(b""), found, State(), name_of(path)))


def inspect(target: Target, root: Target | None = None) -> Session:
    """A session as it stands on disk, with the closers in memory. Never writes, takes no lock.

    ``target``: a path, a session directory, or a session's id under ``root``. Raises SessionNotFound, and JournalError
    where the journal cannot be read or holds no event; never for damage.
    """
    return _readable(survey(target, root))


def fold(path: Path, *, observe: Callable[[], Consumer], repaired: bool = False) -> tuple[str, State]:
    """The session's id and its fold as the crash left it, ``repaired`` with the closers; nothing is written.

    ``observe`` is called for each pass over the file, and gives what every event is handed to, in the order in which
    they were folded. Raises SessionNotFound, and what ``open_session`` raises for what cannot be read, or not repaired.
    """
    consumers: list[Consumer] = []

    def begin() -> Consumer:
        consumers[:] = [observe()]
        return consumers[0]

    reading = read(path, observe=begin)
    diagnosis = judge(reading.source, reading.scan, reading.state, name_of(path), reading.findings)
    plan = plan_repair(diagnosis)
    if plan.refused is not None:
        raise _refusal(path, diagnosis, plan.refused)
    for event in plan.events if repaired else ():
        reading.state.apply(event)
        consumers[0](event)
    return diagnosis.session_id, reading.state


def load(target: Target, root: Target | None = None) -> Session:
    """A session as it is on disk after its repair.

    Where a live writer holds it, or the place cannot be written to, the same view has the closers in memory only, and
    ``repaired_on_disk`` says so; so it does on a damaged or unsupported journal, where nothing is written. Raises
    SessionNotFound, and JournalError where the journal cannot be read or holds no event.
    """
    path = resolve(target, root)
    home = home_of(path)
    diagnosis, plan = prepare(path, keep=True)
    if plan.empty:
        return _readable(Session(path, diagnosis, loaded=True, not_repaired=plan.refused))
    try:
        with SessionLock.acquire(home.parent):
            repair_locked(path)
    except JournalError as error:
        return Session(path, diagnosis, loaded=True, not_repaired=str(error))
    return Session(path, examine(path, keep=True), loaded=True)


def _readable(session: Session) -> Session:
    if session.verdict == "unreadable":
        finding = next(finding for finding in session.findings if finding.severity == "unreadable")
        told = _of_another_tool(session.path) or f"{session.path}: {finding.message}; {finding.remedy}"
        raise JournalError(told, path=session.path)
    return session


def open_session(
    target: Target,
    root: Target | None = None,
    *,
    repair: bool = True,
    cause: str | None = None,
    **options: Any,
) -> "JournalWriter":
    """Open a session for writing: lock, repair, and give the writer, which is a context manager and holds the lock.

    Where a snapshot fits and what follows it is as a writer leaves it, only that is read and checked.
    ``repair=False`` puts only the bytes of a torn tail in order; planning a continuation reads the facts as the crash
    left them. ``cause`` is the failure class of turns that the repair closes. ``options`` are the writer's
    (``on_append``, ``clock``). Raises SessionNotFound, JournalLocked, JournalDamaged, JournalUnsupported,
    JournalWriteError, and JournalError where the journal cannot be read.
    """
    return _open(target, root, repair, cause, options)[0]


def recover(
    target: Target,
    root: Target | None = None,
    *,
    then: Callable[[State], Sequence[Draft]] = lambda state: (),
    **options: Any,
) -> tuple[RepairReport | None, list[Event], State]:
    """``open_session`` and close again: what the repair did, or None where there was nothing to do; what was appended
    behind it, durably and as one batch, because ``then`` of the repaired fold gave it; and the fold in the end.

    Where both are nothing no byte of the journal was written. The history before a snapshot that fits is not read.
    Raises what ``open_session`` raises, and JournalWriteError.
    """
    writer, done = _open(target, root, True, None, options)
    with writer:
        drafts = then(writer.state)
        events = writer.append_batch(drafts) if drafts else []
        writer.flush()
    return (done if done is not None and done.changes else None), events, writer.state


def _open(
    target: Target, root: Target | None, logical: bool, cause: str | None, options: dict[str, Any]
) -> "tuple[JournalWriter, RepairReport | None]":
    from ..journal.writer import JournalWriter

    path = resolve(target, root)
    home = home_of(path)
    lock = SessionLock.acquire(home.parent)
    try:
        found = _resumed(path, home, cause, logical) or _repaired(path, cause, logical)
        state, head, done = found
    except BaseException:
        lock.release()
        raise
    writer = JournalWriter.open(home, lock=lock, state=state, head=head, **{"verdict": _verdict, **options})
    return writer, done


#: The fold and the head of a journal that was put in order, and what that did, if anything was looked for.
_InOrder = tuple[State, Mark, RepairReport | None]


def _resumed(path: Path, home: Path, cause: str | None, logical: bool) -> _InOrder | None:
    """A journal with a fitting snapshot, behind which all is as a writer leaves it: nothing before is read. None where
    there is none. The caller holds the lock.
    """
    if home.name != JOURNAL:
        return None
    from ..journal import snapshot

    try:
        with open_source(home) as source:
            resumed = snapshot.resume(source, home)
            if resumed is None:
                return None
            state, head, _ = resumed
            diagnosis = undamaged(source, name_of(path), state, head)
            if not logical or not diagnosis.closing.drafts:
                return state, head, None
            plan = plan_repair(diagnosis, cause=cause)
            if plan.refused is not None:
                return None
            carry_out(plan, diagnosis, path)
            return state, head_after(diagnosis, plan), report(path, diagnosis, plan)
    except OSError:
        return None


def _repaired(path: Path, cause: str | None, logical: bool) -> _InOrder:
    """A journal that is read as a whole. The caller holds the lock."""
    diagnosis, plan = repair_locked(path, cause=cause, logical=logical)
    if plan.refused is not None:
        raise _refusal(path, diagnosis, plan.refused)
    return diagnosis.state, head_after(diagnosis, plan), report(path, diagnosis, plan)


def _refusal(path: Path, diagnosis: Diagnosis, why: str) -> JournalError:
    kind = {"damaged": JournalDamaged, "unsupported": JournalUnsupported}.get(diagnosis.verdict, JournalError)
    told = _of_another_tool(path) if diagnosis.verdict == "unreadable" else None
    return kind(told or f"{path}: {why}", path=path)


def _of_another_tool(path: Path) -> str | None:
    """Of what cannot be read as a journal: the sentence, if it is a session file of another tool."""
    from .foreign import no_journal

    return no_journal(path)


def _verdict(state: State) -> Verdict:
    """Of a journal that a writer has had: it appends nothing that reading would call damage."""
    return verdict_of(plan_closers(state).findings)
