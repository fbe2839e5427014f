"""What calls have left behind in this process because it could not be ended, by run, for all who run sessions here."""

from collections.abc import Callable
from typing import Final

#: Does it go on still?
GoesOn = Callable[[], bool]

_LEFT: Final[dict[str, list[GoesOn]]] = {}


def leave(run_id: str, goes_on: GoesOn | None = None) -> None:
    """A call of the run has left something behind. Without ``goes_on`` nobody can tell when that has ended."""
    _LEFT.setdefault(run_id, []).append(goes_on or _nobody_knows)


def has_left(run_id: str) -> bool:
    """Has a call of the run left something, whether or not that has ended?"""
    return run_id in _LEFT


def lingering() -> list[str]:
    """The runs of which something goes on."""
    for run_id, left in _LEFT.items():
        _LEFT[run_id] = [goes_on for goes_on in left if goes_on()]
    return [run_id for run_id, left in _LEFT.items() if left]


def _nobody_knows() -> bool:
    return True
