"""Questions to a person, on the journal: durable before they are shown, and the first durable outcome wins for good.

What is known of an interaction is what the fold of its session says. Only who waits for an outcome in this process,
and which outcomes are on their way to the disk, is kept here. A task of its own appends an event and makes it durable,
which it does to the end although whoever wanted it was cancelled.
"""

import asyncio
from collections.abc import Callable, Coroutine
from hashlib import sha256
from typing import Any, Final

import orjson

from ..journal.errors import InvalidEvent, JournalConflict, JournalLocked, JournalWriteError
from ..journal.events import Draft, Event, JsonObject
from ..journal.views.interactions import MAX_PENDING, Interaction, pending_row, row
from .checks import is_seconds, shortly
from .errors import InteractionRefused, RuntimeInteractionInvariantError
from .interaction_shapes import is_same, misfit, outcome_of, requested, wrong_kind
from .journals import OpenSession
from .kernel.authority import ClosureReason, InteractionRequest, RunIdentity
from .lifecycle import Lifecycle, log
from .tasks import seen

Settle = Callable[[JsonObject], None]
#: Of a session, and of a run or an interaction in it.
Key = tuple[str, str]

#: After these it is certain that nothing was written. After a write that was rolled back it is certain too.
_CERTAIN: Final = (InvalidEvent, JournalConflict, JournalLocked, InteractionRefused)


class JournalInteractions:
    """Implements RuntimeInteractionAuthority, and takes the answers of any client.

    ``session`` gives a session that this process has open for writing, or None. ``permission_timeout``: seconds after
    which a permission that nobody answers is closed; questions and boundaries wait for ever.
    """

    def __init__(
        self,
        session: Callable[[str], OpenSession | None],
        *,
        lifecycle: Lifecycle,
        permission_timeout: float | None = None,
    ) -> None:
        if permission_timeout is not None and not is_seconds(permission_timeout):
            raise TypeError(
                f"permission_timeout must be a number of seconds, or None, not {shortly(permission_timeout)}"
            )
        self.permission_timeout = permission_timeout
        self._session = session
        self._lifecycle = lifecycle
        self._owners: dict[Key, RunOwner] = {}
        #: Outcomes on their way to the disk.
        self._flights: dict[Key, asyncio.Task[JsonObject | None]] = {}

    def bind_run(self, identity: RunIdentity) -> "RunOwner":
        """See RuntimeInteractionAuthority. Raises RuntimeInteractionInvariantError for a run that is bound already, and
        where its session is not open.
        """
        key = identity.session_id, identity.run_id
        if key in self._owners:
            raise RuntimeInteractionInvariantError(
                f"run {identity.run_id} of session {identity.session_id} has an interaction owner already; "
                "bind each run once"
            )
        session = self._session(identity.session_id)
        if session is None:
            raise RuntimeInteractionInvariantError(
                f"run {identity.run_id} is bound and its session {identity.session_id} is not open; open it first"
            )
        # Those of a journal that failed, whose end could not be written, are not released.
        self._owners = {
            held: owner
            for held, owner in self._owners.items()
            if held[0] != identity.session_id or owner.lives_in(session)
        }
        owner = self._owners[key] = RunOwner(self, identity, session)
        return owner

    async def answer(self, session_id: str, interaction_id: str, answer: JsonObject) -> JsonObject:
        """Answer an interaction: ``{"kind": "question_answer", "answers": [text | None, …]}``, or ``{"kind":
        "permission_answer" | "sandbox_boundary_decision", "decision": "allow" | "deny"}``.

        When this returns the answer is durable and the run has it. Returns ``{interaction_id, kind, status: "answered",
        outcome, revision}``; the same again for the same answer, at any time. Raises InteractionRefused
        (``invalid_request``, ``not_found``, ``operation_conflict``, ``already_resolved``) and JournalError, after which
        the interaction is as it was. Who is cancelled does not know; asking again tells.
        """
        outcome = outcome_of(answer)
        while True:
            flight = self._flights.get((session_id, interaction_id))
            if flight is not None:
                # It decides, if it gets to the disk.
                await asyncio.wait({flight})
                continue
            item = self._opened(session_id).journal.state.interactions.pending.get(interaction_id)
            if item is None:
                found = await self.query(session_id, interaction_id)
                if found["status"] == "pending":
                    continue  # its outcome did not get to the disk
                _judge(found, outcome)
                return found
            if (problem := misfit(item.kind, item.request, outcome)) is not None:
                raise _conflict(f"interaction {interaction_id} does not take this answer: {problem}")
            owner = self._owners.get((session_id, item.run_id))
            if owner is not None and owner.closed:
                raise _resolved(f"interaction {interaction_id} is being closed with its run")
            won = await asyncio.shield(self.resolve(session_id, item, outcome, owner))
            if won is not None:
                return won

    async def query(self, session_id: str, interaction_id: str) -> JsonObject:
        """The durable state of one: ``journal.views.interactions.row`` says of what shape.

        Raises InteractionRefused (``not_found``), and JournalError where what the fold says could not be made durable.
        """
        session = self._opened(session_id)
        found = row(session.journal.state.interactions, interaction_id)
        if found is None:
            raise InteractionRefused(
                f"session {session_id} has no interaction {interaction_id}; look at those that wait in it",
                code="not_found",
            )
        # What was appended last may not be on the disk yet, and might never be.
        await session.journal.aflush()
        return found

    async def pending(self, session_id: str) -> list[JsonObject]:
        """Those that wait durably for an answer, oldest first; rows as ``query`` gives them. Raises what it raises."""
        session = self._opened(session_id)
        found = [pending_row(item) for item in session.journal.state.interactions.pending.values()]
        await session.journal.aflush()
        return found

    # ------------------------------------------------------------ for the owners

    def is_open(self, session: OpenSession) -> bool:
        """Is it still this one that stands for the session?"""
        return self._session(session.session_id) is session

    def _opened(self, session_id: str) -> OpenSession:
        session = self._session(session_id)
        if session is None:
            raise InteractionRefused(
                f"session {session_id} is not open in this process; open it, then try again", code="not_found"
            )
        return session

    def in_flight(self, session_id: str, interaction_id: str) -> bool:
        return (session_id, interaction_id) in self._flights

    def resolve(
        self, session_id: str, item: Interaction, outcome: JsonObject, owner: "RunOwner | None"
    ) -> "asyncio.Task[JsonObject | None]":
        """A task that makes this the outcome, unless another one was first (then it gives None).

        From now on nobody else may try before it has ended.
        """
        task = _start(self._resolve(session_id, item, outcome, owner))
        self._flights[session_id, item.interaction_id] = task
        if owner is not None:
            owner.carry(task)
        return task

    async def _resolve(
        self, session_id: str, item: Interaction, outcome: JsonObject, owner: "RunOwner | None"
    ) -> JsonObject | None:
        interaction_id = item.interaction_id
        try:
            session = self._opened(session_id)
            if interaction_id not in session.journal.state.interactions.pending:
                return None
            _append(session, "interaction/resolved", {"interaction_id": interaction_id, "outcome": outcome})
            won = row(session.journal.state.interactions, interaction_id)
            assert won is not None, "it was appended just now"
            await session.journal.aflush()
        except BaseException as error:
            if owner is not None:
                owner.doubt(error)
            raise
        else:
            if owner is not None:
                owner.settle(interaction_id, won["outcome"])
            self.tell_resolved(session_id, item.run_id, interaction_id, item.kind, won["status"])
            return won
        finally:
            del self._flights[session_id, interaction_id]
            if owner is not None:
                owner.watch(interaction_id)

    def tell_requested(self, owner: "RunOwner", interaction_id: str, kind: str) -> None:
        self._lifecycle.tell(
            "interaction_requested",
            owner.session_id,
            turn_id=owner.turn_id,
            run_id=owner.run_id,
            interaction_id=interaction_id,
            interaction_kind=kind,
            status="pending",
        )

    def tell_resolved(self, session_id: str, run_id: str, interaction_id: str, kind: str, status: str) -> None:
        self._lifecycle.tell(
            "interaction_resolved",
            session_id,
            run_id=run_id,
            interaction_id=interaction_id,
            interaction_kind=kind,
            status=status,
        )

    def drop(self, owner: "RunOwner") -> None:
        del self._owners[owner.session_id, owner.run_id]


class RunOwner:
    """Implements InteractionOwner: who waits in one run, and until when."""

    def __init__(self, authority: JournalInteractions, identity: RunIdentity, session: OpenSession) -> None:
        self.session_id = identity.session_id
        self.turn_id = identity.turn_id
        self.run_id = identity.run_id
        self._authority = authority
        #: A run lives in the journal that it was begun in; where that failed and was opened again, the run is over.
        self._session = session
        self._reason: ClosureReason | None = None
        #: Digests of what was asked; kinds of what waits, and who waits for it.
        self._asked: dict[str, bytes] = {}
        self._kinds: dict[str, str] = {}
        self._waiting: dict[str, list[Settle]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._doubt: BaseException | None = None

    @property
    def closed(self) -> bool:
        return self._reason is not None

    def lives_in(self, session: OpenSession) -> bool:
        return self._session is session

    async def accept_user_question_request(self, request: InteractionRequest) -> None:
        """See InteractionOwner. The same request again waits for the same outcome, without a second event.

        InteractionRefused has the codes ``invalid_request``, ``capacity_exceeded`` (so many wait in the session),
        ``operation_conflict`` (the id stands for something else) and ``run_closed``.
        """
        await self._accept("question", request)

    async def accept_permission_request(self, request: InteractionRequest) -> None:
        """As ``accept_user_question_request``."""
        await self._accept("permission", request)

    async def accept_sandbox_boundary_request(self, request: InteractionRequest) -> None:
        """As ``accept_user_question_request``."""
        await self._accept("sandbox_boundary", request)

    async def close(self, reason: ClosureReason) -> None:
        """See InteractionOwner. Raises the error of an answer of which nobody knows whether it is on the disk."""
        self._reason = self._reason or reason
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._doubt is not None:
            raise self._doubt

    def release(self) -> None:
        """See InteractionOwner. Raises RuntimeInteractionInvariantError before ``close``."""
        if self._reason is None:
            raise RuntimeInteractionInvariantError(
                f"the interactions of run {self.run_id} were released and not closed; close them first"
            )
        self._authority.drop(self)
        for interaction_id, kind in list(self._kinds.items()):
            self.settle(interaction_id, {"kind": "closure", "reason": self._reason})
            self._authority.tell_resolved(self.session_id, self.run_id, interaction_id, kind, "closed")

    # ------------------------------------------------------------ asking

    async def _accept(self, kind: str, request: InteractionRequest) -> None:
        if request.kind != kind:
            raise RuntimeInteractionInvariantError(
                f"interaction {request.interaction_id} is a {request.kind} and was handed over as a {kind}; "
                f"use the method for its kind"
            )
        self._refuse_when_closed()
        data = requested(request.interaction_id, self.turn_id, self.run_id, kind, request.request)
        task = _start(self._request(data, request.settle))
        self.carry(task)
        await asyncio.shield(task)

    async def _request(self, data: JsonObject, settle: Settle) -> None:
        interaction_id, kind = data["interaction_id"], data["kind"]
        digest = sha256(orjson.dumps(data, option=orjson.OPT_SORT_KEYS)).digest()
        while True:
            self._refuse_when_closed()
            known = self._session.journal.state.interactions
            again = interaction_id in known.pending or interaction_id in known.done
            if again and self._asked.get(interaction_id) != digest:
                raise _conflict(f"interaction {interaction_id} stands for something else already; ask under a new id")
            if not again or interaction_id in known.pending:
                break
            # It has its outcome, or one on its way to the disk: whoever asks once more is told that one.
            found = await self._authority.query(self.session_id, interaction_id)
            if found["status"] != "pending":
                settle(found["outcome"])
                return
        if not again:
            if len(known.pending) >= MAX_PENDING:
                raise InteractionRefused(
                    f"{MAX_PENDING} interactions of session {self.session_id} wait for an answer already; "
                    "answer one of them, then ask again",
                    code="capacity_exceeded",
                )
            _append(self._session, "interaction/requested", data)
            self._asked[interaction_id] = digest
            self._kinds[interaction_id] = kind
        # Before it is durable: an outcome that gets to the disk with it must find who waits.
        waiting = self._waiting.setdefault(interaction_id, [])
        if settle not in waiting:
            waiting.append(settle)
        try:
            await self._session.journal.aflush()
        except BaseException:
            self._forget(interaction_id, settle)
            raise
        if not again:
            self._authority.tell_requested(self, interaction_id, kind)
        self.watch(interaction_id)

    def _refuse_when_closed(self) -> None:
        if self.closed or not self._authority.is_open(self._session):
            raise InteractionRefused(
                f"run {self.run_id} is over and takes no requests any more; ask in a new turn", code="run_closed"
            )

    # ------------------------------------------------------------ waiting

    def carry(self, task: "asyncio.Task[Any]") -> None:
        """``close`` waits for this one too."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def settle(self, interaction_id: str, outcome: JsonObject) -> None:
        """The outcome is durable: whoever waits is told, once."""
        timer = self._timers.pop(interaction_id, None)
        if timer is not None:
            timer.cancel()
        self._kinds.pop(interaction_id, None)
        for settle in self._waiting.pop(interaction_id, ()):
            settle(outcome)

    def doubt(self, error: BaseException) -> None:
        """An outcome did not get to the disk, or perhaps it did."""
        rolled_back = isinstance(error, JournalWriteError) and not error.poisoned
        if self._doubt is None and not rolled_back and not isinstance(error, _CERTAIN):
            self._doubt = error

    def watch(self, interaction_id: str) -> None:
        """A permission that waits has a timer, unless it has one."""
        seconds = self._authority.permission_timeout
        waits = not self.closed and self._kinds.get(interaction_id) == "permission"
        if waits and seconds is not None and interaction_id not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[interaction_id] = loop.call_later(seconds, self._expire, interaction_id)

    def _expire(self, interaction_id: str) -> None:
        self._timers.pop(interaction_id, None)
        item = self._session.journal.state.interactions.pending.get(interaction_id)
        if item is None or self._authority.in_flight(self.session_id, interaction_id):
            return
        closure = {"kind": "closure", "reason": "timed_out"}
        self._authority.resolve(self.session_id, item, closure, self).add_done_callback(self._expired)

    def _expired(self, task: "asyncio.Task[Any]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error(
                "a permission of session=%s run=%s could not be timed out: %s", self.session_id, self.run_id, error
            )

    def _forget(self, interaction_id: str, settle: Settle) -> None:
        """The request is not in the journal, or nobody knows: who asked is told so by the error."""
        waiting = self._waiting.get(interaction_id, [])
        if settle in waiting:
            waiting.remove(settle)
        if not waiting:
            self.settle(interaction_id, {})


def _judge(found: JsonObject, outcome: JsonObject) -> None:
    """Raises InteractionRefused unless the answer is what an interaction that is over has as its outcome."""
    if (problem := wrong_kind(found["kind"], outcome)) is not None:
        raise _conflict(f"interaction {found['interaction_id']} does not take this answer: {problem}")
    if not is_same(outcome, found["outcome"]):
        raise _resolved(f"interaction {found['interaction_id']} {_stands(found['outcome'])}")


def _stands(outcome: JsonObject) -> str:
    """Which outcome it was that came first. What a person wrote is left out."""
    if outcome.get("kind") == "closure":
        return f"was closed ({outcome.get('reason')})"
    decision = outcome.get("decision")
    return f"was given another answer{'' if decision is None else f' ({decision})'}"


def _append(session: OpenSession, type_: str, data: JsonObject) -> Event:
    """Raises what the journal's ``append`` raises."""
    event = session.journal.append(Draft(type_, data))
    session.observe(event)
    return event


def _start(work: "Coroutine[Any, Any, Any]") -> "asyncio.Task[Any]":
    task = asyncio.get_running_loop().create_task(work)
    # Whoever wanted it may have been cancelled; it was told to the owner, where it matters.
    task.add_done_callback(seen)
    return task


def _conflict(what: str) -> InteractionRefused:
    return InteractionRefused(what, code="operation_conflict")


def _resolved(what: str) -> InteractionRefused:
    return InteractionRefused(
        f"{what}; the first outcome stands, and `SessionManager.interaction` shows it", code="already_resolved"
    )
