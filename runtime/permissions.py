"""Which calls of tools a person is asked about before they run: what each permission mode says. No I/O of its own."""

from pathlib import Path
from typing import Any, Final, Literal

from .tools.base import Tool

#: ``ask``: all but ``read_only`` tools ask. ``execute``: only what leaves the working directory asks. ``bypass``:
#: nothing asks. Any other word asks as ``ask`` does.
MODES: Final = ("ask", "execute", "bypass")

#: What a mode does with a tool's calls: they run, they ask, or it depends on the call's arguments.
Stance = Literal["runs", "asks", "depends"]

#: Characters shown of a mode or an error that somebody else worded.
_SHOWN: Final = 200


def stance(mode: str, tool: Tool) -> Stance:
    """What ``mode`` does with the calls of ``tool``. It depends where the tool can tell which of them leave."""
    if mode == "bypass":
        return "runs"
    if mode == "execute" and _leaves(tool) is not None:
        return "depends"
    return "runs" if tool.recovery == "read_only" else "asks"


def asks(mode: str, tool: Tool, arguments: dict[str, Any], cwd: Path) -> str | None:
    """None where this call runs without asking; else why it asks, in words for a person.

    A tool's own ``leaves(arguments, cwd)`` decides where ``stance`` depends on it: anything but False asks, and so does
    whatever it raises, because then nobody knows where the call reaches.
    """
    match stance(mode, tool):
        case "runs":
            return None
        case "depends":
            return _departure(tool, arguments, cwd)
    if mode == "ask":
        return "in the permission mode `ask` every tool asks that may change something"
    if mode == "execute":
        return "nobody can tell whether this tool stays in the working directory, and the permission mode is `execute`"
    known = ", ".join(f"`{name}`" for name in MODES)
    unknown = f"the permission mode {str(mode)[:_SHOWN]!r} is none of {known}" if mode else "no permission mode is set"
    return f"{unknown}, so every tool asks that may change something"


def _leaves(tool: Tool) -> Any:
    found = getattr(tool, "leaves", None)
    return found if callable(found) else None


def _departure(tool: Tool, arguments: dict[str, Any], cwd: Path) -> str | None:
    try:
        leaves = _leaves(tool)(arguments, cwd)
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__}: {error}"[:_SHOWN]
        return f"nobody can tell whether this call stays in the working directory {cwd} ({said})"
    return None if leaves is False else f"this call reaches out of the working directory {cwd}"
