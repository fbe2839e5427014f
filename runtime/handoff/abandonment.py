"""A handoff that nobody will finish: its turn is ended for the successor, which never runs. No I/O."""

from shlex import quote

from ...journal.errors import JournalError
from ...journal.events import Draft, JsonObject
from ...journal.state import State
from ...journal.views.continuations import Handoff, handoff_state
from ...repair.closers import abandonment
from ..errors import SAID, SessionBusy, SettleRefused

FAILURE_CLASS = "handoff_abandoned"
#: What there is to do about a handoff whose ids something else holds, as a sentence begins.
IDS_TAKEN = (
    "The ids that were reserved for that are taken: fork the session behind its last turn that ended (`manager.fork`), "
    "or begin another"
)


def giving_up(session_id: str, handoff_id: str) -> str:
    """The command that gives a handoff up, as a sentence has it."""
    return f"`maka session settle {quote(session_id)} --handoff {quote(handoff_id)}`"


def busy(session_id: str, handoff: Handoff) -> SessionBusy:
    """Of a session whose newest turn waits for its successor."""
    pause = handoff.data
    return SessionBusy(
        f"session {session_id} waits for run {pause['successor_run_id']}, to which turn {pause['turn_id']} was handed; "
        f"let that go on (`maka session resume {quote(session_id)}`), or give the handoff up "
        f"({giving_up(session_id, handoff.handoff_id)}); where neither can be, fork the session behind its last turn "
        "that ended (`manager.fork`), or begin another"
    )


def abandon(state: State, handoff_id: str, reason: str | None) -> list[Draft]:
    """The batch that gives the handoff up; ``reason`` is what the turn's end says. Raises SettleRefused."""
    handoff = state.continuations.handoffs.get(handoff_id)
    if handoff is None:
        there = ", ".join(each.handoff_id for each in state.continuations.pending())
        known = f"pending: {there}" if there else "no handoff of this session is pending"
        raise SettleRefused(f"there is no handoff {handoff_id}; {known}", code="handoff_unknown")
    ended: JsonObject = {"kind": "failed", "failure_class": FAILURE_CLASS}
    if reason is not None:
        ended["message"] = reason[:SAID]
    try:
        drafts = abandonment(state, handoff_id, ended)
    except JournalError as stuck:
        raise SettleRefused(str(stuck), code="handoff_not_pending") from None
    if not drafts:
        stands = handoff_state(handoff, state.continuations, state.turns)
        word = "was given up before" if stands == "abandoned" else "was taken over by its successor"
        what = f"handoff {handoff_id} {word}: there is nothing to give up"
        raise SettleRefused(what, code="handoff_not_pending")
    return drafts
