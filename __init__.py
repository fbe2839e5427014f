"""maka: one append-only journal for each session of an agent, and a repair that knows what is not known.

The public face. Names are loaded on first use, so that ``import maka`` costs next to nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from maka.journal.errors import (
        InvalidEvent,
        JournalConflict,
        JournalDamaged,
        JournalError,
        JournalLocked,
        JournalUnsupported,
        JournalWriteError,
        SessionNotFound,
    )
    from maka.journal.events import (
        AssistantDelta,
        AssistantMessage,
        ContinuationClaim,
        ContinuationStart,
        Draft,
        EndReason,
        Event,
        HandoffPause,
        InteractionRequested,
        InteractionResolved,
        JournalGap,
        MessageAccepted,
        MessageRetracted,
        PlanApproved,
        PlanExecution,
        PlanProposed,
        RequestHeader,
        RunComposition,
        RunCreated,
        RunHeader,
        RunSettled,
        SessionHeader,
        SessionNote,
        SessionUpdated,
        StepEnd,
        StepStart,
        ToolCall,
        ToolOutcome,
        ToolResult,
        TurnAdmitted,
        TurnEnd,
        TurnStart,
        TurnStopRequested,
        Usage,
        UserMessage,
    )
    from maka.journal.findings import Finding
    from maka.repair.session import Session, inspect, load, open_session
    from maka.runtime.host.client import connect

__version__ = "0.1.0"

__all__ = [
    "AssistantDelta",
    "AssistantMessage",
    "ContinuationClaim",
    "ContinuationStart",
    "Draft",
    "EndReason",
    "Event",
    "Finding",
    "HandoffPause",
    "InteractionRequested",
    "InteractionResolved",
    "InvalidEvent",
    "JournalConflict",
    "JournalDamaged",
    "JournalError",
    "JournalGap",
    "JournalLocked",
    "JournalUnsupported",
    "JournalWriteError",
    "MessageAccepted",
    "MessageRetracted",
    "PlanApproved",
    "PlanExecution",
    "PlanProposed",
    "RequestHeader",
    "RunComposition",
    "RunCreated",
    "RunHeader",
    "RunSettled",
    "Session",
    "SessionHeader",
    "SessionNotFound",
    "SessionNote",
    "SessionUpdated",
    "StepEnd",
    "StepStart",
    "ToolCall",
    "ToolOutcome",
    "ToolResult",
    "TurnAdmitted",
    "TurnEnd",
    "TurnStart",
    "TurnStopRequested",
    "Usage",
    "UserMessage",
    "__version__",
    "connect",
    "inspect",
    "load",
    "open_session",
]

_HOMES = {
    **dict.fromkeys(("Session", "inspect", "load", "open_session"), "maka.repair.session"),
    **dict.fromkeys(
        (
            "InvalidEvent",
            "JournalConflict",
            "JournalDamaged",
            "JournalError",
            "JournalLocked",
            "JournalUnsupported",
            "JournalWriteError",
            "SessionNotFound",
        ),
        "maka.journal.errors",
    ),
    "Finding": "maka.journal.findings",
    "connect": "maka.runtime.host.client",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'maka' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_HOMES.get(name, "maka.journal.events")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
