"""What a dead host left open, taken up before the next one is ready: each session by itself, within a deadline.

Repair, the tools that can tell what became of their calls, a handoff's successor, an interrupted plan, admitted turns,
the queue: in this order. What is in order by its snapshot is not opened.
"""

import asyncio
import itertools
from collections.abc import Callable
from typing import Final

import attrs

from ...journal.errors import JournalError, JournalLocked, JournalWriteError
from ...journal.events import JsonObject
from ..errors import RuntimeFailure, describe
from ..lifecycle import log
from ..recovery import Recovered
from ..sessions import SessionManager
from .lane import Lane

#: Sessions that are taken up side by side.
_AT_ONCE: Final = 8
#: So many that failed are listed.
_LISTED: Final = 100
#: Seconds until one whose journal could not be written is tried again, and again.
_AGAIN: Final = (0.1, 0.5, 2.0, 5.0)
#: What of a row says that there is something to do, although the journal is in order. None: it cannot tell.
_DUE: Final = ("unsettled", "active_plan", "pending_handoff", "queued", "admitted")


@attrs.define
class Report:
    """``recovered``: sessions that were looked at. ``failed``: session id → why it cannot be used, or not yet."""

    recovered: int = 0
    failed: dict[str, str] = attrs.Factory(dict)

    def to_json(self) -> JsonObject:
        """``{recovered, failed: [{session_id, message}], failed_count}``; of many that failed the first are listed."""
        rows = [{"session_id": session_id, "message": message} for session_id, message in self.failed.items()]
        return {"recovered": self.recovered, "failed": rows[:_LISTED], "failed_count": len(rows)}


def is_due(row: JsonObject) -> bool:
    """Does a row of a listing say that the session has to be looked at?"""
    return row["verdict"] != "healthy" or any(row[key] is None or bool(row[key]) for key in _DUE)


#: What may be over by itself: then it is tried again.
_FOR_A_WHILE: Final = (JournalWriteError, JournalLocked)


class Recovering:
    """``deadline``: seconds for one session; then it is reported, and goes on by itself."""

    def __init__(self, manager: SessionManager, lane: Callable[[str], Lane], *, deadline: float) -> None:
        self._manager = manager
        self._lane = lane
        self._deadline = deadline
        self.report = Report()
        self._late: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Raises JournalError where the root cannot be listed; nothing for a session."""
        due = [row["session_id"] for row in await self._manager.list() if is_due(row)]
        free = asyncio.Semaphore(_AT_ONCE)
        await asyncio.gather(*(self._within(session_id, free) for session_id in due))

    @property
    def busy(self) -> bool:
        """Is something still taken up?"""
        return bool(self._late)

    async def cancel(self) -> None:
        """Gives up what is late."""
        for task in self._late:
            task.cancel()
        await asyncio.gather(*self._late, return_exceptions=True)

    async def _within(self, session_id: str, free: asyncio.Semaphore) -> None:
        async with free:
            task = asyncio.ensure_future(self._one(session_id))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
            await asyncio.wait({task}, timeout=self._deadline)
            if not task.done():
                self.report.failed[session_id] = (
                    f"session {session_id} is still being recovered after {self._deadline:g} s; it can be used when "
                    "that is done"
                )
                log.error(self.report.failed[session_id])

    async def _one(self, session_id: str) -> None:
        self.report.recovered += 1
        if isinstance(await self._taken_up(session_id), _FOR_A_WHILE):
            again = asyncio.ensure_future(self._again(session_id))
            self._late.add(again)
            again.add_done_callback(self._late.discard)

    async def _again(self, session_id: str) -> None:
        """A disk that was full, or failed, may be in order by now; who had it open may have closed it."""
        for seconds in itertools.chain(_AGAIN, itertools.repeat(_AGAIN[-1])):
            await asyncio.sleep(seconds)
            if not isinstance(await self._taken_up(session_id, opened=True), _FOR_A_WHILE):
                return

    async def _taken_up(self, session_id: str, *, opened: bool = False) -> BaseException | None:
        """Why it could not be. ``opened``: somebody may have looked into it here since, and have it open."""
        error: BaseException | None
        try:
            if opened:
                await self._lane(session_id).close_open()
            found = await self._manager.recover(session_id)
            error = found.error
            if found.state == "open" and not self._manager.status(session_id).open:
                error = JournalLocked(
                    f"session {session_id} is open for writing in another process; it is taken up once that has closed "
                    "it",
                    path=self._manager.path(session_id),
                )
            if found.state not in ("failed", "open"):
                await self._go_on(found)
        except (JournalError, RuntimeFailure) as failure:
            error = failure
        except Exception as failure:
            log.exception("session %s could not be taken up", session_id)
            error = failure
        if error is None:
            self.report.failed.pop(session_id, None)
        else:
            self._failed(session_id, error)
        return error

    async def _go_on(self, found: Recovered) -> None:
        lane = self._lane(found.session_id)
        if found.pending_handoff is not None:
            await self._hand_on(found.session_id, lane)
        elif found.waits:
            await lane.next()

    async def _hand_on(self, session_id: str, lane: Lane) -> None:
        """The successor of a run that was handed over finishes its turn; where it cannot the handoff stays pending."""
        plan = await self._manager.plan_safe_boundary_continuation(session_id, purpose="handoff")
        if plan.continuation is None:
            why = " ".join(each.message for each in plan.diagnostics) or ", ".join(plan.rejection_reasons)
            log.warning("session %s waits for the successor of a run: %s", session_id, why)
            return
        await lane.resume(plan.continuation)

    def _failed(self, session_id: str, error: BaseException) -> None:
        self.report.failed[session_id] = describe(error)
        log.error("session %s cannot be used: %s", session_id, describe(error))
