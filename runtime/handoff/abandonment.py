"""A handoff that nobody will finish: its turn is ended for the successor, which never runs. No I/O."""

from shlex import quote

from ...journal.events import Draft, JsonObject
from ...journal.state import State
from ...journal.views.continuations import Handoff, handoff_state
from ...repair.closers import abandonment
from ..errors import SAID, SessionBusy, SettleRefused

FAILURE_CLASS = "handoff_abandoned"


def giving_up(session_id: str, handoff_id: str) -> str:
    """The command that gives a handoff up, as a sentence has it."""
    return f"`maka session settle {quote(session_id)} --handoff {quote(handoff_id)}`"


def busy(session_id: str, handoff: Handoff) -> SessionBusy:
    """Of a session whose newest turn waits for its successor."""
    pause = handoff.data
    return SessionBusy(
        f"session {session_id} waits for run {pause['successor_run_id']}, to which turn {pause['turn_id']} was handed; "
        f"let that go on (`maka session resume {quote(session_id)}`), or give the handoff up "
        f"({giving_up(session_id, handoff.handoff_id)})"
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
    drafts = abandonment(state, handoff_id, ended)
    if not drafts:
        raise SettleRefused(f"handoff {handoff_id} {_why(state, handoff)}", code="handoff_not_pending")
    return drafts


def _why(state: State, handoff: Handoff) -> str:
    stands = handoff_state(handoff, state.continuations.claims)
    if stands in ("continued", "abandoned"):
        word = "was taken over by its successor" if stands == "continued" else "was given up before"
        return f"{word}: there is nothing to give up"
    return "cannot be given up, because the ids that it reserved are taken; look with `maka journal inspect`"
