"""Operation → what the host does: arguments from the wire, the runtime's own calls, the answer as docs/protocol.md
says. Thin.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import orjson

from ...journal.backwards import events_before
from ...journal.errors import JournalConflict, SessionNotFound
from ...journal.events import JsonObject
from ..settings import absolute_directory
from . import operations as op
from . import projection
from .admission import StopAsked
from .lane import Lane
from .protocol import MAX_EVENT, MAX_FRAME, HostError
from .subscription import UNTOLD, event_body

if TYPE_CHECKING:
    from .connection import Caller
    from .host import Host

Handler = Callable[["Host", Any, "Caller"], Awaitable[JsonObject]]

#: What of a session is set when it is created.
_SETTINGS: Final = ("name", "cwd", "backend", "model", "permission_mode", "connection", "labels")
#: Rows of one page of a listing, events of one page of a history.
_MOST_ROWS: Final = 500
_MOST_EVENTS: Final = 500
#: Bytes of events in one page, and characters of one event in one piece: an answer has to fit into a frame.
_PAGE: Final = MAX_FRAME // 2
_PIECE: Final = 96 * 1024


async def _status(host: "Host", asked: op.HostStatus, caller: "Caller") -> JsonObject:
    return host.status()


async def _shutdown(host: "Host", asked: op.HostShutdown, caller: "Caller") -> JsonObject:
    host.shut_down(asked.mode, asked.timeout)
    return {"state": "draining"}


# ---------------------------------------------------------------- sessions


async def _create(host: "Host", asked: op.SessionCreate, caller: "Caller") -> JsonObject:
    settings = {key: getattr(asked, key) for key in _SETTINGS if getattr(asked, key) is not None}
    try:
        await host.manager.create(session_id=asked.session_id, **settings)
    except JournalConflict:
        there = await _first(host, asked.session_id)
        # What is not given is the app's; its working directory is wherever the host was started.
        wanted = {**host.manager.defaults, "cwd": there.get("cwd"), **settings}
        if "cwd" in settings:
            wanted["cwd"] = absolute_directory(settings["cwd"])
        if there != wanted:
            raise _taken(asked.session_id) from None
    return {"session_id": asked.session_id, "revision": 0}


async def _fork(host: "Host", asked: op.SessionFork, caller: "Caller") -> JsonObject:
    try:
        await host.manager.fork(
            asked.session_id, turn_id=asked.turn_id, new_session_id=asked.new_session_id, name=asked.name
        )
    except JournalConflict:
        if not await _is_fork(host, asked):
            raise _taken(asked.new_session_id) from None
    return {"session_id": asked.new_session_id, "revision": 0}


async def _is_fork(host: "Host", asked: op.SessionFork) -> bool:
    """Is the session that has the id the one that was asked for? Where no turn was named, a parent that has gone on
    since is the same request again.
    """
    there = await _first(host, asked.new_session_id)
    parent = there.get("parent")
    if not isinstance(parent, dict) or parent.get("session_id") != asked.session_id:
        return False
    if asked.name is not None and there.get("name") != asked.name:
        return False
    if asked.turn_id is None:
        return True
    before = [row for row in (await host.manager.read(asked.session_id)).turns() if row["first_seq"] <= parent["seq"]]
    return bool(before) and before[-1]["turn_id"] == asked.turn_id


async def _first(host: "Host", session_id: str) -> JsonObject:
    """The data of a session's header, as far as it is set."""
    header = (await host.manager.read(session_id)).header
    kept = {} if header is None else {key: getattr(header, key) for key in (*_SETTINGS, "parent")}
    return {key: value for key, value in kept.items() if value is not None}


async def _list(host: "Host", asked: op.SessionList, caller: "Caller") -> JsonObject:
    rows, following = await host.manager.page(after=asked.after, limit=min(asked.limit, _MOST_ROWS))
    page = _page(map(projection.listed, rows))
    return {"sessions": page, "next": following if len(page) == len(rows) else page[-1]["session_id"]}


def _page(rows: Iterable[JsonObject]) -> list[JsonObject]:
    """The first of the rows that fit into an answer: one in any case."""
    page: list[JsonObject] = []
    size = 0
    for row in rows:
        size += len(orjson.dumps(row))
        if size > _PAGE and page:
            break
        page.append(row)
    return page


async def _update(host: "Host", asked: op.SessionUpdate, caller: "Caller") -> JsonObject:
    return await _patched(host, asked.session_id, asked.patch, asked.request_id)


async def _archive(host: "Host", asked: op.SessionArchive, caller: "Caller") -> JsonObject:
    return await _patched(host, asked.session_id, {"archived": True}, asked.request_id)


async def _unarchive(host: "Host", asked: op.SessionUnarchive, caller: "Caller") -> JsonObject:
    return await _patched(host, asked.session_id, {"archived": False}, asked.request_id)


async def _patched(host: "Host", session_id: str, patch: JsonObject, request_id: str) -> JsonObject:
    return {"revision": await host.manager.update(session_id, patch, request_id=request_id)}


async def _delete(host: "Host", asked: op.SessionDelete, caller: "Caller") -> JsonObject:
    try:
        return {"path": str(await host.delete(asked.session_id))}
    except SessionNotFound:
        there = host.manager.trashed(asked.session_id)
        if there is None:
            raise
        return {"path": str(there)}


async def _release(host: "Host", asked: op.SessionRelease, caller: "Caller") -> JsonObject:
    if host.lane(asked.session_id).watched:
        raise HostError(
            "session_busy", f"session {asked.session_id} is watched by a client of the host; close it there first"
        )
    await host.manager.release(asked.session_id)
    return {"released": True}


async def _history(host: "Host", asked: op.SessionHistory, caller: "Caller") -> JsonObject:
    path, limit = host.manager.path(asked.session_id), min(asked.limit, _MOST_EVENTS)
    before = await host.durable(asked.session_id, asked.before)
    events, following = await asyncio.to_thread(
        lambda: events_before(path, before, limit, lambda type_: type_ not in UNTOLD, most_bytes=_PAGE)
    )
    return {"events": [event_body(event)["event"] for event in events], "next": following}


async def _event(host: "Host", asked: op.SessionEvent, caller: "Caller") -> JsonObject:
    path = host.manager.path(asked.session_id)
    before = await host.durable(asked.session_id, asked.seq + 1)
    events, _ = await asyncio.to_thread(lambda: events_before(path, before, 1, lambda _: True, most_bytes=MAX_EVENT))
    if not events or events[0].seq != asked.seq:
        raise HostError("not_found", f"session {asked.session_id} has no event {asked.seq}; its history tells which")
    text = orjson.dumps(events[0].data).decode()
    return {"text": text[asked.offset : asked.offset + _PIECE], "offset": asked.offset, "total": len(text)}


# ---------------------------------------------------------------- turns


async def _start(host: "Host", asked: op.TurnStart, caller: "Caller") -> JsonObject:
    return await host.lane(asked.session_id).start(asked, caller.surface)


async def _query(host: "Host", asked: op.TurnQuery, caller: "Caller") -> JsonObject:
    return await host.lane(asked.session_id).turn(asked.turn_id)


async def _stop(host: "Host", asked: op.TurnStop, caller: "Caller") -> JsonObject:
    request = StopAsked(asked.stop_id, "user", asked.mode, asked.retract, caller.surface)
    stopped = await host.lane(asked.session_id).stop(asked.turn_id, asked.run_id, request)
    turn: JsonObject = stopped["turn"]
    return turn


async def _interrupt(host: "Host", asked: op.TurnInterrupt, caller: "Caller") -> JsonObject:
    request = StopAsked(asked.interrupt_id, "user", "immediate", True, caller.surface)
    return await host.lane(asked.session_id).stop(asked.turn_id, asked.run_id, request)


async def _submit(host: "Host", asked: op.TurnMessageSubmit, caller: "Caller") -> JsonObject:
    return await host.lane(asked.session_id).submit(asked, caller.surface)


async def _retract(host: "Host", asked: op.QueueRetract, caller: "Caller") -> JsonObject:
    return await host.lane(asked.session_id).retract(asked)


async def _interaction(host: "Host", asked: op.InteractionQuery, caller: "Caller") -> JsonObject:
    return _asked(asked.session_id, await host.manager.interaction(asked.session_id, asked.interaction_id))


async def _answer(host: "Host", asked: op.InteractionAnswer, caller: "Caller") -> JsonObject:
    answered = await host.manager.answer(asked.session_id, asked.interaction_id, asked.answer)
    return _asked(asked.session_id, answered)


def _asked(session_id: str, row: JsonObject) -> JsonObject:
    """What is too long for a frame is left out: the journal has it."""
    return projection.asked(session_id, row, most=_PAGE)


async def _resume_query(host: "Host", asked: op.TurnResumeQuery, caller: "Caller") -> JsonObject:
    plan = await host.manager.plan_safe_boundary_continuation(
        asked.session_id,
        source_run_id=asked.source_run_id,
        rerun=_kinds(asked.rerun),
    )
    told: JsonObject = {
        "disposition": plan.disposition,
        "rejection_reasons": list(plan.rejection_reasons),
        "diagnostics": [{"code": each.code, "text": each.message} for each in plan.diagnostics],
    }
    if plan.continuation is not None:
        source = plan.continuation.source
        told |= {"source_run_id": source["run_id"], "source_turn_id": source["turn_id"]}
        told["high_water"] = source["high_water"]
    return told


async def _resume_start(host: "Host", asked: op.TurnResumeStart, caller: "Caller") -> JsonObject:
    return await resumed(host, host.lane(asked.session_id), asked)


async def resumed(host: "Host", lane: Lane, asked: op.TurnResumeStart) -> JsonObject:
    """``turn.resume.start``: the same turn again is answered as it stands. Raises HostError, JournalError."""
    async with host.manager.kernel.session(asked.session_id) as session:
        state = session.journal.state
        receipt, known = state.receipts.get("turn", asked.turn_id), state.turns.known(asked.turn_id)
        claim = None if receipt is None else state.continuations.claims.get(receipt.data.get("claim_id", ""))
    if receipt is not None or known:
        source = None if claim is None else (claim.data["source"].get("run_id"), claim.data["source"].get("high_water"))
        if receipt is None or source != (asked.source_run_id, asked.high_water):
            raise HostError(
                "operation_conflict", f"turn {asked.turn_id} stands for something else already; resume as another"
            )
        return {"turn": await lane.turn(asked.turn_id), "revision": receipt.seq}
    plan = await host.manager.plan_safe_boundary_continuation(
        asked.session_id,
        source_run_id=asked.source_run_id,
        turn_id=asked.turn_id,
        rerun=_kinds(asked.rerun),
    )
    if plan.continuation is None:
        why = " ".join(each.message for each in plan.diagnostics)
        raise HostError("continuation_parked", f"{', '.join(plan.rejection_reasons)}: {why}")
    if plan.continuation.source["high_water"] != asked.high_water:
        raise HostError(
            "operation_conflict", f"run {asked.source_run_id} has gone on since it was looked at; query it again"
        )
    return await lane.resume(plan.continuation)


def _kinds(rerun: list[str] | None) -> Any:
    from ..tools.base import AGAIN

    if unknown := [kind for kind in rerun or () if kind not in AGAIN]:
        raise HostError("invalid_request", f"`rerun` holds {' or '.join(AGAIN)}, not {unknown[0][:80]!r}")
    return tuple(rerun or ())


# ---------------------------------------------------------------- plans


async def _plans(host: "Host", asked: op.PlanQuery, caller: "Caller") -> JsonObject:
    rows = await host.manager.plans.list(asked.session_id)
    page = _page(projection.planned(row, most=_PAGE) for row in rows[asked.offset :])
    end = asked.offset + len(page)
    return {"plans": page, "next": end if end < len(rows) else None}


async def _propose(host: "Host", asked: op.PlanPropose, caller: "Caller") -> JsonObject:
    row = await host.manager.plans.propose(
        asked.session_id,
        title=asked.title,
        steps=asked.steps,
        proposal_id=asked.proposal_id,
        turn_id=asked.turn_id,
        request_id=asked.request_id,
    )
    return _plan(row)


async def _approve(host: "Host", asked: op.PlanApprove, caller: "Caller") -> JsonObject:
    row = await host.manager.plans.approve(
        asked.session_id,
        asked.proposal_id,
        expected_revision=asked.expected_revision,
        execution_id=asked.execution_id,
        request_id=asked.request_id,
    )
    return _plan(row)


async def _cancel(host: "Host", asked: op.PlanCancel, caller: "Caller") -> JsonObject:
    plans = host.manager.plans
    return _plan(await plans.cancel(asked.session_id, execution_id=asked.execution_id, reason=asked.reason))


async def _complete(host: "Host", asked: op.PlanComplete, caller: "Caller") -> JsonObject:
    plans = host.manager.plans
    return _plan(await plans.complete(asked.session_id, execution_id=asked.execution_id, reason=asked.reason))


def _plan(row: JsonObject) -> JsonObject:
    return {"plan": projection.planned(row, most=_PAGE)}


def _taken(session_id: str) -> HostError:
    return HostError(
        "operation_conflict", f"there is another session {session_id} already; ask for one under an id of its own"
    )


async def _open(host: "Host", asked: op.SubscriptionOpen, caller: "Caller") -> JsonObject:
    return await host.subscribe(asked, caller)


async def _close(host: "Host", asked: op.SubscriptionClose, caller: "Caller") -> JsonObject:
    host.unsubscribe(asked.subscription_id, caller.connection)
    return {}


HANDLERS: Final[dict[str, Handler]] = {
    "host.status": _status,
    "host.shutdown": _shutdown,
    "session.create": _create,
    "session.list": _list,
    "session.update": _update,
    "session.archive": _archive,
    "session.unarchive": _unarchive,
    "session.fork": _fork,
    "session.delete": _delete,
    "session.release": _release,
    "session.history": _history,
    "session.event": _event,
    "turn.start": _start,
    "turn.query": _query,
    "turn.stop": _stop,
    "turn.message.submit": _submit,
    "turn.interrupt": _interrupt,
    "queue.retract": _retract,
    "interaction.query": _interaction,
    "interaction.answer": _answer,
    "subscription.open": _open,
    "subscription.close": _close,
    "turn.resume.query": _resume_query,
    "turn.resume.start": _resume_start,
    "plan.query": _plans,
    "plan.propose": _propose,
    "plan.approve": _approve,
    "plan.cancel": _cancel,
    "plan.complete": _complete,
}
