"""What is said in place of something that is not there: all that the journal itself ever tells a model. No I/O."""

from typing import Final

#: ``error`` of a result that stands for an outcome which nobody knows, and for a call that never ran.
UNKNOWN_ERROR: Final = {"name": "ToolOutcomeUnknownError", "code": "TOOL_OUTCOME_UNKNOWN"}
NOT_STARTED_ERROR: Final = {"name": "ToolNotStartedError", "code": "TOOL_NOT_STARTED"}

#: What a tool's declared recovery means for whoever thinks of calling it again.
_RECOVERY: Final = {
    "read_only": "The tool declares itself read_only: calling it again changes nothing.",
    "idempotent": "The tool declares itself idempotent: a second call with the same arguments adds nothing.",
    "reconcile": "The tool declares reconcile: the outside state tells what came of the call.",
    "never": "The tool declares never: it must not be called again before its outcome is known.",
}


def unknown_outcome(recovery: str | None) -> str:
    """The result of a call that was dispatched and has none. ``recovery``: the word that its tool declared."""
    declared = _RECOVERY.get(recovery or "") or (f"The tool declares {recovery}." if recovery else "")
    text = (
        "This call was recorded and then interrupted. No result was saved, so its outcome is unknown: the side effect "
        "may have happened. Retry it only if it is read-only or idempotent; otherwise check the outside state or ask "
        "the user first. Do not retry blindly."
    )
    return f"{text} {declared}".rstrip()


def not_started() -> str:
    """The result of a call that was requested and never dispatched."""
    return (
        "This call was interrupted before it began: the tool never ran. It may be called again if it is still needed."
    )


def outcome_told(name: str, call_id: str, state: str) -> str:
    """Said before an outcome that came after a model had read that it is unknown."""
    what = "succeeded" if state == "ok" else "failed"
    return f"The call {call_id} of tool {name}, whose outcome was unknown, has meanwhile turned out: it {what}."


def result_without_request(name: str, call_id: str, state: str) -> str:
    """Said before the result of a call that no message asked for."""
    tool = f" of tool {name}" if name else ""
    return f"The journal holds a result ({state}) of the call {call_id}{tool}, which no message requested:"


def beginning_lost() -> str:
    """Stands in place of the first user message where that one is lost."""
    return "The beginning of this conversation is lost."
