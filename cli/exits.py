"""Exit codes, as tables. No I/O."""

from typing import Final

from ..journal.events import EndKind
from ..journal.findings import Verdict

DONE: Final = 0
PENDING: Final = 1
USAGE: Final = 2
LOCKED: Final = 3
REFUSED: Final = 4
LIMITED: Final = 5
INTERRUPTED: Final = 130
TERMINATED: Final = 143

#: `inspect` and `verify`: what is wrong with the bytes as they stand.
OF_VERDICT: Final[dict[Verdict, int]] = {
    "healthy": DONE,
    "interrupted": PENDING,
    "torn": PENDING,
    "damaged": REFUSED,
    "unsupported": REFUSED,
    "unreadable": REFUSED,
}

#: `show` and `tail` print whatever can be read; these verdicts mean that not everything could be.
OF_READING: Final[dict[Verdict, int]] = {
    **dict.fromkeys(OF_VERDICT, DONE),
    "unsupported": REFUSED,
    "unreadable": REFUSED,
}

#: `session resume`: what the plan says.
OF_PLAN: Final = {"continue": DONE, "park": PENDING}

#: `session resume`: how the turn ended that it began.
OF_TURN: Final[dict[EndKind, int]] = {
    "completed": DONE,
    "max_tokens": LIMITED,
    "step_limit": LIMITED,
    "blocked": PENDING,
    "aborted": PENDING,
    "failed": PENDING,
    "interrupted": PENDING,
}
