"""Sessions of an agent that run, are stopped and go on: what an embedding program uses of the runtime, by name.

``SessionManager`` is where to begin. Names are loaded on first use, so that ``import maka.runtime`` costs next to
nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .app import App, load_app
    from .backends.base import (
        Backend,
        BackendContext,
        BackendFactory,
        BackendRegistry,
        ContinuedFrom,
        Interactions,
        SendInput,
        SteeringLease,
    )
    from .backends.loop import LoopBackend, loop_backend
    from .backends.scripted import Faults, ScriptedBackend, scripted_backend
    from .composition import RunComposition
    from .continuation.plan import Continuation, ContinuationPlan, Diagnostic
    from .continuation.safety import SafetyInspector, SafetyObservation
    from .errors import (
        AppError,
        BackendTimeout,
        BackendUnknown,
        ContinuationParked,
        ContinuationRevalidationError,
        CopyRefused,
        ForkRefused,
        HandoffRefused,
        InteractionRefused,
        KernelClosed,
        PlanRefused,
        RuntimeFailure,
        RuntimeInteractionFailStopError,
        RuntimeInteractionInvariantError,
        RuntimeOwnerCleanupError,
        SessionArchived,
        SessionBusy,
        SessionQuarantined,
        SettleRefused,
        TurnCancelled,
    )
    from .handoff.pause import HandoffPause
    from .handoff.request import HandoffRequest
    from .interactions import JournalInteractions
    from .journals import FileJournals
    from .kernel.authority import RuntimeInteractionAuthority, RuntimeMessageAuthority
    from .kernel.generations import Deadlines
    from .kernel.kernel import RuntimeKernel, SessionStatus
    from .kernel.stream import TurnStream
    from .lifecycle import LifecycleEvent
    from .model import ModelAdapter, ModelError
    from .recovery import Recovered
    from .retry import RetryPolicy
    from .scripted import Ask, Do, End, Fail, Say, ScriptedModel, Tokens, Wait
    from .session_events import SessionEvent
    from .sessions import SessionManager
    from .steps import Options
    from .tools.ask_user import AskUser
    from .tools.base import Tool, ToolContext, ToolFailed, ToolOutput
    from .tools.command import Command
    from .tools.write_file import WriteFile

#: Module → what of it is public here.
_PUBLIC = {
    "app": ("App", "load_app"),
    "backends.base": (
        "Backend",
        "BackendContext",
        "BackendFactory",
        "BackendRegistry",
        "ContinuedFrom",
        "Interactions",
        "SendInput",
        "SteeringLease",
    ),
    "backends.loop": ("LoopBackend", "loop_backend"),
    "backends.scripted": ("Faults", "ScriptedBackend", "scripted_backend"),
    "composition": ("RunComposition",),
    "continuation.plan": ("Continuation", "ContinuationPlan", "Diagnostic"),
    "continuation.safety": ("SafetyInspector", "SafetyObservation"),
    "errors": (
        "AppError",
        "BackendTimeout",
        "BackendUnknown",
        "ContinuationParked",
        "ContinuationRevalidationError",
        "CopyRefused",
        "ForkRefused",
        "HandoffRefused",
        "InteractionRefused",
        "KernelClosed",
        "PlanRefused",
        "RuntimeFailure",
        "RuntimeInteractionFailStopError",
        "RuntimeInteractionInvariantError",
        "RuntimeOwnerCleanupError",
        "SessionArchived",
        "SessionBusy",
        "SessionQuarantined",
        "SettleRefused",
        "TurnCancelled",
    ),
    "handoff.pause": ("HandoffPause",),
    "handoff.request": ("HandoffRequest",),
    "interactions": ("JournalInteractions",),
    "journals": ("FileJournals",),
    "kernel.authority": ("RuntimeInteractionAuthority", "RuntimeMessageAuthority"),
    "kernel.generations": ("Deadlines",),
    "kernel.kernel": ("RuntimeKernel", "SessionStatus"),
    "kernel.stream": ("TurnStream",),
    "lifecycle": ("LifecycleEvent",),
    "model": ("ModelAdapter", "ModelError"),
    "recovery": ("Recovered",),
    "retry": ("RetryPolicy",),
    "scripted": ("Ask", "Do", "End", "Fail", "Say", "ScriptedModel", "Tokens", "Wait"),
    "session_events": ("SessionEvent",),
    "sessions": ("SessionManager",),
    "steps": ("Options",),
    "tools.ask_user": ("AskUser",),
    "tools.base": ("Tool", "ToolContext", "ToolFailed", "ToolOutput"),
    "tools.command": ("Command",),
    "tools.write_file": ("WriteFile",),
}
_HOMES = {name: home for home, names in _PUBLIC.items() for name in names}

__all__ = [
    "App",
    "AppError",
    "Ask",
    "AskUser",
    "Backend",
    "BackendContext",
    "BackendFactory",
    "BackendRegistry",
    "BackendTimeout",
    "BackendUnknown",
    "Command",
    "Continuation",
    "ContinuationParked",
    "ContinuationPlan",
    "ContinuationRevalidationError",
    "ContinuedFrom",
    "CopyRefused",
    "Deadlines",
    "Diagnostic",
    "Do",
    "End",
    "Fail",
    "Faults",
    "FileJournals",
    "ForkRefused",
    "HandoffPause",
    "HandoffRefused",
    "HandoffRequest",
    "InteractionRefused",
    "Interactions",
    "JournalInteractions",
    "KernelClosed",
    "LifecycleEvent",
    "LoopBackend",
    "ModelAdapter",
    "ModelError",
    "Options",
    "PlanRefused",
    "Recovered",
    "RetryPolicy",
    "RunComposition",
    "RuntimeFailure",
    "RuntimeInteractionAuthority",
    "RuntimeInteractionFailStopError",
    "RuntimeInteractionInvariantError",
    "RuntimeKernel",
    "RuntimeMessageAuthority",
    "RuntimeOwnerCleanupError",
    "SafetyInspector",
    "SafetyObservation",
    "Say",
    "ScriptedBackend",
    "ScriptedModel",
    "SendInput",
    "SessionArchived",
    "SessionBusy",
    "SessionEvent",
    "SessionManager",
    "SessionQuarantined",
    "SessionStatus",
    "SettleRefused",
    "SteeringLease",
    "Tokens",
    "Tool",
    "ToolContext",
    "ToolFailed",
    "ToolOutput",
    "TurnCancelled",
    "TurnStream",
    "Wait",
    "WriteFile",
    "load_app",
    "loop_backend",
    "scripted_backend",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'maka.runtime' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
