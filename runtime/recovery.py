"""What a crash left open in one session is closed, if anything is: per session, idempotent, never in another's way."""

from collections.abc import Callable
from typing import Literal

import attrs

from ..journal.errors import JournalError, JournalLocked
from ..journal.store import FileStore
from ..journal.writer import wall_ms
from ..repair import session


@attrs.frozen
class Recovered:
    """``state``: ``unchanged`` (not a byte of the journal was written), ``repaired`` (``appended`` events), ``open``
    (somebody has it open for writing, who repairs it when that is due), or ``failed``, with the ``error``.

    ``unsettled`` calls have an unknown outcome that their tools may be able to find out.
    """

    session_id: str
    state: Literal["unchanged", "repaired", "open", "failed"]
    appended: int = 0
    unsettled: int = 0
    error: JournalError | None = None


def recover(store: FileStore, session_id: str, *, clock: Callable[[], int] = wall_ms) -> Recovered:
    """Repairs the session if that is due. Blocks, and raises nothing."""
    try:
        report, state = session.recover(store.path(session_id), clock=clock)
    except JournalLocked:
        return Recovered(session_id, "open")
    except JournalError as error:
        return Recovered(session_id, "failed", error=error)
    unsettled = sum(call.recovery == "reconcile" for call in state.turns.unknown.values())
    if report is None:
        return Recovered(session_id, "unchanged", unsettled=unsettled)
    return Recovered(session_id, "repaired", appended=len(report.appended), unsettled=unsettled)
