"""Plans of a session: proposed, approved, executed one at a time; the same request again is answered the same.

Decisions are pure: the fold and what is asked for → what to append, and the plan as it stands then. ``SessionPlans``
makes them durable.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import attrs

from ..journal.codec import encodable
from ..journal.errors import InvalidEvent
from ..journal.events import Draft, Event, JsonObject
from ..journal.shapes import STEP
from ..journal.state import State
from ..journal.views.plans import Plan, Plans, digest, row
from ..journal.views.problem import mapping
from .checks import shortly
from .errors import PlanRefused
from .ids import unsuitable
from .journals import OpenSession

if TYPE_CHECKING:
    from ..repair.session import Session

# `list` is a method's name below, so the class cannot say it.
Rows = list[JsonObject]
#: What a person or a program makes of an execution; a recovery makes it ``interrupted``.
Finish = Literal["completed", "cancelled"]

#: Why a recovery ends an execution.
RECOVERY: Final = "runtime_recovery"


@attrs.frozen
class Decision:
    """``drafts``: what is to be appended, nothing where it was done before. ``row``: the plan as it stands then."""

    drafts: list[Draft]
    row: JsonObject


# ---------------------------------------------------------------- decisions


def propose(
    state: State,
    *,
    title: str,
    steps: Rows,
    proposal_id: str | None = None,
    turn_id: str | None = None,
    request_id: str | None = None,
    new_id: Callable[[], str],
) -> Decision:
    """A new proposal, or the next revision of a known one. Raises PlanRefused (``plan_unknown``,
    ``request_conflict``).
    """
    plans = state.plans
    if request_id is not None and request_id in plans.requests:
        return _proposed(plans, request_id, Plan(proposal_id or "", 1, title, 0, turn_id or "", steps))
    if proposal_id is None:
        proposal_id, revision = new_id(), 1
    else:
        revision = max(_newest(state, proposal_id).revision, 0) + 1
    plan = Plan(proposal_id, revision, title, 0, new_id() if turn_id is None else turn_id, steps)
    data: JsonObject = {key: getattr(plan, key) for key in ("proposal_id", "revision", "turn_id", "title", "steps")}
    return Decision([Draft("plan/proposed", _asked_by(request_id, data))], row(plan))


def _proposed(plans: Plans, request_id: str, asked: Plan) -> Decision:
    """The answer to a request to propose that was made before; of ``asked`` an id that is empty was not given."""
    request = plans.requests[request_id]
    stands = plans.plans[request.place]
    if (
        request.execution_id is not None
        or asked.proposal_id != ("" if request.revision == 1 else stands.proposal_id)
        or asked.turn_id not in ("", request.turn_id)
        or digest(asked.title, asked.steps) != request.digest
    ):
        raise _conflict(request_id)
    if stands.revision == request.revision:
        return Decision([], row(stands))
    # A newer revision has taken its place; it was never approved.
    was = Plan(stands.proposal_id, request.revision, asked.title, 0, request.turn_id, asked.steps)
    return Decision([], row(was))


def approve(
    state: State,
    proposal_id: str,
    *,
    expected_revision: int,
    execution_id: str | None = None,
    request_id: str | None = None,
    new_id: Callable[[], str],
) -> Decision:
    """The newest revision of a proposal is to be executed. Raises PlanRefused (``plan_unknown``,
    ``revision_conflict``, ``plan_approved``, ``plan_active``, ``request_conflict``).
    """
    plans = state.plans
    if request_id is not None and (request := plans.requests.get(request_id)) is not None:
        approved = plans.plans[request.place]
        if request.execution_id is None or not _is(approved, proposal_id, expected_revision, execution_id):
            raise _conflict(request_id)
        return Decision([], row(approved))
    if execution_id is not None and (place := plans.executions.get(execution_id)) is not None:
        approved = plans.plans[place]
        if not _is(approved, proposal_id, expected_revision, execution_id):
            raise PlanRefused(
                f"execution {execution_id} is that of revision {approved.revision} of plan {approved.proposal_id}; "
                "approve under another id, or under none",
                code="request_conflict",
            )
        return Decision([], row(approved))
    newest = _newest(state, proposal_id)
    if newest.revision != expected_revision:
        raise PlanRefused(
            f"plan {proposal_id} is at revision {newest.revision}, and revision {expected_revision} was to be "
            "approved; read the newest, then approve that",
            code="revision_conflict",
        )
    if newest.execution_id is not None:
        raise PlanRefused(
            f"revision {newest.revision} of plan {proposal_id} was approved before, as execution "
            f"{newest.execution_id}; propose it again to execute it again",
            code="plan_approved",
        )
    if (running := plans.running()) is not None:
        raise PlanRefused(
            f"execution {running.execution_id} of plan {running.proposal_id} is active, and a session has one at a "
            "time; complete or cancel it first",
            code="plan_active",
        )
    execution_id = new_id() if execution_id is None else execution_id
    data: JsonObject = {"proposal_id": proposal_id, "revision": newest.revision, "execution_id": execution_id}
    approved = attrs.evolve(newest, execution_id=execution_id, execution="active")
    return Decision([Draft("plan/approved", _asked_by(request_id, data))], row(approved))


def finish(state: State, status: Finish, *, execution_id: str | None = None, reason: str | None = None) -> Decision:
    """The execution is over; by itself the active one, else the one approved last. Raises PlanRefused
    (``plan_unknown``, ``plan_not_active``).
    """
    plan = _executed(state, execution_id)
    if plan.execution == status:
        return Decision([], row(plan))
    if plan.execution != "active":
        raise PlanRefused(
            f"execution {plan.execution_id} of plan {plan.proposal_id} is {plan.execution}, and only one that is "
            f"active can be {status}; approve a plan to begin one",
            code="plan_not_active",
        )
    return Decision(_ended(plan, status, reason), row(attrs.evolve(plan, execution=status, reason=reason or None)))


def interrupted(state: State) -> list[Draft]:
    """What a recovery appends about plans: the active execution has nobody who carries it out any more.

    Nothing where no execution is active, or where something of the session may still go on: an open turn, such as one
    that waits for the successor of a paused run, or a claim whose turn has not begun. Ask only where nothing runs in
    the session, and behind its repair.
    """
    plan = state.plans.running()
    if plan is None or state.turns.open or state.turns.awaited() is not None:
        return []
    return _ended(plan, "interrupted", RECOVERY)


def _ended(plan: Plan, status: str, reason: str | None) -> list[Draft]:
    data: JsonObject = {"execution_id": plan.execution_id, "status": status}
    return [Draft("plan/execution", data if reason is None else {**data, "reason": reason})]


def _asked_by(request_id: str | None, data: JsonObject) -> JsonObject:
    return data if request_id is None else {**data, "request_id": request_id}


def _is(plan: Plan, proposal_id: str, revision: int, execution_id: str | None) -> bool:
    given = (proposal_id, revision, plan.execution_id if execution_id is None else execution_id)
    return (plan.proposal_id, plan.revision, plan.execution_id) == given


def _newest(state: State, proposal_id: str) -> Plan:
    place = state.plans.newest.get(proposal_id)
    if place is None:
        raise PlanRefused(
            f"{_where(state)} has no plan {proposal_id}; look at those that there are, or propose one under no id",
            code="plan_unknown",
        )
    return state.plans.plans[place]


def _executed(state: State, execution_id: str | None) -> Plan:
    plans = state.plans
    if execution_id is None:
        if (running := plans.running()) is not None:
            return running
        place = next(reversed(plans.executions.values()), None)
        if place is None:
            raise PlanRefused(f"{_where(state)} executes no plan; approve one to begin", code="plan_not_active")
        return plans.plans[place]
    place = plans.executions.get(execution_id)
    if place is None:
        raise PlanRefused(
            f"{_where(state)} has no execution {execution_id}; look at its plans for those that there are",
            code="plan_unknown",
        )
    return plans.plans[place]


def _where(state: State) -> str:
    return f"session {mapping(state.session.header).get('session_id')}"


def _conflict(request_id: str) -> PlanRefused:
    return PlanRefused(
        f"request {request_id} was made before and asked for something else; ask for this under an id of its own",
        code="request_conflict",
    )


# ---------------------------------------------------------------- the face


class Append(Protocol):
    """Runs ``decide`` on the session open for writing, and appends what it gives, durably, with nothing in between."""

    async def __call__(
        self, session_id: str, decide: Callable[[OpenSession], Sequence[Draft]], /
    ) -> Sequence[Event]: ...


class Read(Protocol):
    """A session as it stands on disk. Opens nothing for writing."""

    async def __call__(self, session_id: str, /) -> "Session": ...


class SessionPlans:
    """The plans of any session: a manager's ``plans``.

    A row is ``{proposal_id, revision, title, status, execution: {execution_id, status, reason?} | None, turn_id,
    steps: [{id, title, description}]}``, ``status`` being ``proposed`` or ``approved``, and an execution's ``active``,
    ``completed``, ``cancelled`` or ``interrupted``. What is returned is durable. A ``request_id`` makes a command the
    caller's own: with the same content it is answered the same at any time, also after a restart, and changes nothing a
    second time; with another it is refused. Whatever changes something raises InvalidEvent for values that cannot be
    right, PlanRefused, and JournalError; JournalLocked where another process has the session open.
    """

    def __init__(self, *, append: Append, read: Read, new_id: Callable[[], str]) -> None:
        self._append = append
        self._read = read
        self._new_id = new_id

    async def list(self, session_id: str) -> Rows:
        """The plans as they stand on disk, in the order in which they were proposed; of a proposal that is not approved
        the newest revision. Anybody may have the session open. Raises SessionNotFound, JournalError.
        """
        return (await self._read(session_id)).plans()

    async def propose(
        self,
        session_id: str,
        *,
        title: str,
        steps: Sequence[Mapping[str, str]],
        proposal_id: str | None = None,
        turn_id: str | None = None,
        request_id: str | None = None,
    ) -> JsonObject:
        """A new plan, at revision 1; with the ``proposal_id`` of one that there is, its next revision, which takes the
        place of the one before unless that was approved. Returns its row.

        ``steps``: ``{id, title, description}`` each, texts, no id twice. ``turn_id``: the turn that it came of, by
        itself a fresh id. PlanRefused has the codes ``plan_unknown`` and ``request_conflict``.
        """
        type_ = "plan/proposed"
        _check_ids(type_, proposal_id=proposal_id, turn_id=turn_id, request_id=request_id)
        said, listed = _text(type_, "title", title), _steps(steps)
        return await self._decided(
            session_id,
            lambda state: propose(
                state,
                title=said,
                steps=listed,
                proposal_id=proposal_id,
                turn_id=turn_id,
                request_id=request_id,
                new_id=self._new_id,
            ),
        )

    async def approve(
        self,
        session_id: str,
        proposal_id: str,
        *,
        expected_revision: int,
        execution_id: str | None = None,
        request_id: str | None = None,
    ) -> JsonObject:
        """Begins the execution of a plan that was read at ``expected_revision``, which has to be its newest. Returns
        its row; a session has one active execution at a time.

        An ``execution_id`` of the caller's does what a ``request_id`` does. PlanRefused has the codes ``plan_unknown``,
        ``revision_conflict``, ``plan_approved``, ``plan_active`` and ``request_conflict``.
        """
        type_ = "plan/approved"
        _check_ids(type_, execution_id=execution_id, request_id=request_id)
        _check_id(type_, "proposal_id", proposal_id)
        revision: object = expected_revision
        if not isinstance(revision, int) or isinstance(revision, bool) or revision < 1:
            raise _invalid(type_, "expected_revision", f"must be a whole number, 1 or more, not {shortly(revision)}")
        return await self._decided(
            session_id,
            lambda state: approve(
                state,
                proposal_id,
                expected_revision=expected_revision,
                execution_id=execution_id,
                request_id=request_id,
                new_id=self._new_id,
            ),
        )

    async def complete(
        self, session_id: str, *, execution_id: str | None = None, reason: str | None = None
    ) -> JsonObject:
        """The active execution has done what was planned. Returns its plan's row.

        ``execution_id``: which one it has to be; by itself the active one, else the one that was approved last. Where
        that is completed already nothing is changed, and the first ``reason`` stands. PlanRefused has the codes
        ``plan_unknown`` and ``plan_not_active``.
        """
        return await self._finished(session_id, "completed", execution_id, reason)

    async def cancel(
        self, session_id: str, *, execution_id: str | None = None, reason: str | None = None
    ) -> JsonObject:
        """The active execution is given up. As ``complete``."""
        return await self._finished(session_id, "cancelled", execution_id, reason)

    async def _finished(
        self, session_id: str, status: Finish, execution_id: str | None, reason: str | None
    ) -> JsonObject:
        type_ = "plan/execution"
        _check_ids(type_, execution_id=execution_id)
        why = None if reason is None else _text(type_, "reason", reason)
        return await self._decided(
            session_id, lambda state: finish(state, status, execution_id=execution_id, reason=why)
        )

    async def _decided(self, session_id: str, decide: Callable[[State], Decision]) -> JsonObject:
        made: list[tuple[OpenSession, Decision]] = []

        def drafts(session: OpenSession) -> Sequence[Draft]:
            made.append((session, decide(session.journal.state)))
            return made[-1][1].drafts

        appended = await self._append(session_id, drafts)
        session, decision = made[-1]
        if not appended:
            # Whoever did it before may still be waiting for the disk.
            await session.journal.aflush()
        # What the fold holds is the session's own.
        return deepcopy(decision.row)


# ---------------------------------------------------------------- what is given


def _check_ids(type_: str, **ids: object) -> None:
    for key, value in ids.items():
        if value is not None:
            _check_id(type_, key, value)


def _check_id(type_: str, key: str, value: object) -> None:
    if (wrong := unsuitable(value)) is not None:
        raise _invalid(type_, key, wrong)


def _text(type_: str, key: str, value: object) -> str:
    """The text as the journal will hold it."""
    if not isinstance(value, str):
        raise _invalid(type_, key, f"must be a text, not {shortly(value)}")
    return encodable(value)


def _steps(steps: object) -> Rows:
    """A copy of the steps, as the journal will hold them."""
    type_ = "plan/proposed"
    if not isinstance(steps, Sequence) or isinstance(steps, str | bytes):
        raise _invalid(type_, "steps", f"must be a list of steps, not {shortly(steps)}")
    out: Rows = []
    seen: set[Any] = set()
    for at, step in enumerate(steps):
        here = f"steps[{at}]"
        if not isinstance(step, Mapping) or set(step) != set(STEP):
            raise _invalid(type_, here, f"must be a step with {', '.join(STEP)} and nothing else")
        out.append({key: _text(type_, f"{here}.{key}", step[key]) for key in STEP})
        _check_id(type_, f"{here}.id", step["id"])
        if step["id"] in seen:
            raise _invalid(type_, f"{here}.id", f"is {step['id']!r}, as that of an earlier step; give each its own")
        seen.add(step["id"])
    return out


def _invalid(type_: str, key: str, what: str) -> InvalidEvent:
    return InvalidEvent(f"{type_}: {key} {what}", type=type_, key=key)
