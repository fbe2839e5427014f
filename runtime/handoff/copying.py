"""Why turns are not copied into another session. No I/O.

Claims and pauses name runs, numbers and sums of this journal: with other ids they would say what never was.
"""

from collections.abc import Iterable

from ...journal.state import State
from ...journal.views.runs import Settled
from ..errors import CopyRefused


def refusal(state: State, turn_ids: Iterable[str]) -> CopyRefused:
    """Why these turns cannot be copied; there is always a reason."""
    chains: list[str] = []
    for turn_id in turn_ids:
        execution = state.execution_row(turn_id)
        if execution is None:
            return CopyRefused(
                f"this session has no turn {turn_id}; `maka journal inspect` lists its turns", code="turn_unknown"
            )
        chains += execution["chain"]
    bound = next((run_id for run_id in chains if _bound(state, run_id)), None)
    if bound is not None:
        return CopyRefused(
            f"run {bound} was handed over or continues another run, and its ids cannot be rewritten for a copy; "
            "fork the session instead behind a turn that has ended, which keeps them",
            code="branch_runtime_fact_rewrite_unsupported",
        )
    return CopyRefused(
        "turns are not copied from one session into another; fork the session instead behind a turn that has ended, "
        "which keeps them as they are",
        code="copy_not_offered",
    )


def _bound(state: State, run_id: str) -> bool:
    """Was the run claimed, started by a claim, or paused?"""
    run = state.runs.live.get(run_id) or state.runs.settled(run_id)
    claimed = run_id in state.continuations.by_target or (run is not None and run.claim_id is not None)
    return claimed or (isinstance(run, Settled) and run.status == "handed_off")
