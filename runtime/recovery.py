"""What a crash left open in one session is closed, if anything is: per session, idempotent, never in another's way.

First the repair, which asks nobody and runs nothing; then tools find out what became of calls of unknown outcome.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import attrs

from ..journal.errors import InvalidEvent, JournalError, JournalLocked
from ..journal.events import Draft, Event
from ..journal.state import State
from ..journal.store import FileStore
from ..journal.views.turn import Unknown
from ..journal.writer import wall_ms
from ..repair import session
from .continuation.failpoints import Hook, nowhere
from .continuation.outcomes import Dispatched, dispatches, reconciled, run_again, stays_unknown, unsettled
from .dispatch import Authorize
from .errors import describe
from .journals import OpenSession
from .outputs import store_in
from .plans import interrupted
from .tools.base import Tool
from .tools.running import offers_look


class Tell(Protocol):
    """Tells whoever reads a turn what happens in it: a session event's kind and data."""

    async def __call__(self, kind: str, /, **data: Any) -> None: ...


async def tell_nobody(kind: str, /, **data: Any) -> None:
    """Nobody reads it."""


#: Reads a session's own events, oldest first. Blocks.
Events = Callable[[], Iterable[Event]]


@attrs.frozen
class Recovered:
    """``state``: ``unchanged`` (nothing was left open), ``repaired`` (``appended`` events), ``open`` (somebody has it
    open for writing, who repairs it when that is due), or ``failed``, with the ``error``.

    ``interrupted``: the execution of a plan that was active, and that nothing carries out any more. It is among
    ``appended``. ``pending_handoff``: the handoff that a turn of it waits for. ``waits``: an admitted turn, or a
    message, waits to be run.

    ``reconciled``: of how many calls it was found out what came of them, which is one event for each; where it is 0,
    not a byte of an ``unchanged`` journal was written. ``unsettled``: of how many their tools may
    still be able to tell.
    """

    session_id: str
    state: Literal["unchanged", "repaired", "open", "failed"]
    appended: int = 0
    unsettled: int = 0
    error: JournalError | None = None
    reconciled: int = 0
    interrupted: str | None = None
    pending_handoff: str | None = None
    waits: bool = False


def recover(store: FileStore, session_id: str, *, clock: Callable[[], int] = wall_ms) -> Recovered:
    """Repairs the session if that is due, then interrupts a plan that nothing carries out. Blocks; raises nothing."""
    try:
        report, events, state = session.recover(store.path(session_id), then=interrupted, clock=clock)
    except JournalLocked:
        return Recovered(session_id, "open")
    except JournalError as error:
        return Recovered(session_id, "failed", error=error)
    unsettled = sum(call.recovery == "reconcile" for call in state.turns.unknown.values())
    appended = len(events) + (0 if report is None else len(report.appended))
    return Recovered(
        session_id,
        "repaired" if appended or report is not None else "unchanged",
        appended=appended,
        unsettled=unsettled,
        interrupted=execution_of(events),
        pending_handoff=handoff_in(state),
        waits=waits_in(state),
    )


def waits_in(state: State) -> bool:
    """Does an admitted turn, or a message, wait to be run?"""
    return bool(state.queue.waiting or state.admissions.waiting())


def handoff_in(state: State) -> str | None:
    """The handoff that a turn of the session waits for."""
    return next((handoff.handoff_id for handoff in state.continuations.pending()), None)


def execution_of(events: Sequence[Event]) -> str | None:
    """The execution that these events end."""
    return next((event.data["execution_id"] for event in events if event.type == "plan/execution"), None)


async def reconcile_calls(
    opened: OpenSession, tools: Iterable[Tool], events: Events, *, failpoint: Hook = nowhere
) -> int:
    """Asks the tools of a session what became of its unknown calls that may be reconciled; of how many it is known now.

    Oldest first, each call once for each time that the session is opened, and each outcome is durable before the next
    call is looked at. No turn may run meanwhile. ``events``
    gives the session's own, oldest first, and is called in a thread, where there is somebody to ask. Raises
    JournalError.
    """
    by_name = {tool.name: tool for tool in tools}
    due = [
        call
        for call in unsettled(opened.journal.state)
        if call.recovery == "reconcile"
        and call.operation_id is not None
        and call.call_seq not in opened.asked
        and offers_look(by_name.get(call.name))
    ]
    opened.asked.update(call.call_seq for call in due)
    known = 0
    for call, dispatched in await _dispatched(due, events):
        draft = await reconciled(
            call,
            by_name[call.name],
            dispatched.arguments,
            cwd=Path(dispatched.cwd or "."),
            store=store_in(opened.directory),
        )
        await failpoint("after_reconcile_executed")
        if draft is not None and await _recorded(opened, call, draft):
            await failpoint("after_reconcile_outcome_committed")
            known += 1
    return known


async def rerun_calls(
    opened: OpenSession,
    tools: Iterable[Tool],
    events: Events,
    *,
    call_seqs: Collection[int],
    authorize: Authorize | None = None,
    tell: Tell = tell_nobody,
    failpoint: Hook = nowhere,
) -> list[Unknown]:
    """Executes unknown calls again, by the numbers of their tool/call; those that are unknown even then.

    ``tell`` is told of each as a turn tells of its calls, once what came of it is durable. ``authorize`` may deny one.
    The rest is as with ``reconcile_calls``, and like there what is over is durable if this is cancelled.
    """
    by_name = {tool.name: tool for tool in tools}
    wanted = [call for call in unsettled(opened.journal.state) if call.call_seq in call_seqs]
    unknown = {call.call_seq: call for call in wanted}
    for call, dispatched in await _dispatched([call for call in wanted if call.name in by_name], events):
        draft = await run_again(
            call,
            by_name[call.name],
            dispatched.arguments,
            cwd=Path(dispatched.cwd or "."),
            store=store_in(opened.directory),
            authorize=authorize,
        )
        await failpoint("after_rerun_executed")
        if draft is not None and await _recorded(opened, call, draft):
            await failpoint("after_rerun_outcome_committed")
            del unknown[call.call_seq]
            # Both at once: nobody is told of a call that a stop cuts off, for it is as unknown as it was.
            about = {"call_id": call.call_id, "operation_id": call.operation_id}
            await tell("tool_start", **about, name=call.name, recovery=call.recovery)
            await tell("tool_result", **about, **{key: draft.data[key] for key in ("state", "content", "is_error")})
    return list(unknown.values())


async def _dispatched(calls: list[Unknown], events: Events) -> list[tuple[Unknown, Dispatched]]:
    """Each call with what it was dispatched with, where that is on record."""
    if not calls:
        return []
    found = await asyncio.to_thread(lambda: dispatches(events(), calls))
    for call in calls:
        if call.call_seq not in found:
            stays_unknown(call, "what it was called with is not on record, or was changed since")
    return [(call, found[call.call_seq]) for call in calls if call.call_seq in found]


async def _recorded(opened: OpenSession, call: Unknown, draft: Draft) -> bool:
    """Makes an outcome durable; False where it is not taken."""
    try:
        opened.observe(opened.journal.append(draft))
    except InvalidEvent:
        # Somebody stated it meanwhile, or a hook of the program's own made something else of it.
        stays_unknown(call, "its outcome was not taken by the journal")
        return False
    except JournalError:
        raise
    except Exception as error:
        said = describe(error, typed=True)
        raise JournalError(f"an outcome could not be written: {said}; mend the hook that sees each event") from error
    await opened.journal.aflush()
    return True
