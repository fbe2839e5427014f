"""The places at which a test may hold or kill the protocol: behind its durable points, and in between. No I/O."""

from collections.abc import Awaitable, Callable
from typing import Literal

Failpoint = Literal[
    "before_continuation_claim",
    "after_continuation_claim_committed",
    "after_run_created",
    "after_continuation_start_committed",
    "after_rerun_executed",
    "after_rerun_outcome_committed",
    "before_backend_dispatch",
    "after_run_composition_committed",
    "before_handoff_pause",
    "after_handoff_pause_committed",
    "after_terminal_event_committed",
    "after_terminal_header_committed",
    "after_repair_committed",
    "after_reconcile_executed",
    "after_reconcile_outcome_committed",
]
#: Awaited at each of them.
Hook = Callable[[Failpoint], Awaitable[None]]


async def nowhere(point: Failpoint) -> None:
    """Holds nothing."""
