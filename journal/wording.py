"""What a model and a person are told in place of what a tool would have said. No I/O."""

#: What a tool declared about running it twice → what that means for whoever thinks about it.
_RECOVERY = {
    "read_only": "it declares itself read_only, so running it again changes nothing",
    "idempotent": "it declares itself idempotent, so running it again with the same arguments has the same effect",
    "reconcile": "it declares that its outcome can be looked up (reconcile)",
    "never": "it declares that it must never be retried automatically (never)",
}


def unknown_outcome(recovery: str | None) -> str:
    """The text of a call that was recorded and then interrupted; ``recovery`` is what its tool declared."""
    declared = _RECOVERY.get(recovery or "", f"it declares {recovery}" if recovery else "it declares nothing")
    return (
        "This tool call was recorded and then interrupted: no result was saved, and its outcome is unknown. It may have "
        "taken effect in whole, in part, or not at all. Do not retry blindly. Retry only if the tool is read-only or "
        "idempotent; otherwise check the outside state, or ask the user, first. "
        f"About retries of this tool: {declared}."
    )


def not_started() -> str:
    """The text of a call that was requested and never dispatched."""
    return "This tool call was never started: the run was interrupted before it. It may be called again if still needed."
