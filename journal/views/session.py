"""What is true of the session as a whole: header, patches merged, notes. No I/O."""

from typing import Any, Final

import attrs

from ..events import Event, JsonObject
from .problem import Handlers, Problem, mapping

#: The header's word for: every tool/call was durable before its body ran.
TOOL_BOUNDARY: Final = "t1_after_preflight_v1"

#: What can be set of a session → the JSON kind of its values.
SETTINGS: Final[dict[str, type]] = {
    "name": str,
    "labels": list,
    "flagged": bool,
    "archived": bool,
    "has_unread": bool,
    "cwd": str,
    "backend": str,
    "model": str,
    "permission_mode": str,
    "connection": str,
}


def setting(key: str, value: Any) -> Any:
    """``value`` if it is of the kind of its key in ``SETTINGS``; else what holds unset: None, no labels, or False."""
    kind = SETTINGS[key]
    if type(value) is kind:
        return value
    return None if kind is str else kind()


@attrs.define(slots=True)
class Session:
    """``header`` is line 0's data as written (or as a salvage rebuilt it); ``patch`` what session/updated laid over it.

    ``quarantine_seq`` is the newest note of that kind.
    """

    header: JsonObject | None = None
    patch: JsonObject = attrs.field(factory=dict)
    quarantine_seq: int | None = None
    quarantine_text: str | None = None

    def value(self, key: str) -> Any:
        """The newest value of a key: the last patch's, else the header's, else None."""
        return self.patch[key] if key in self.patch else mapping(self.header).get(key)

    def settings(self) -> JsonObject:
        """The newest value of every key of ``SETTINGS``, then of whatever else patches have set."""
        own = {key: value for key, value in self.patch.items() if key not in SETTINGS}
        return {**{key: setting(key, self.value(key)) for key in SETTINGS}, **own}

    @property
    def tool_boundary(self) -> bool:
        """Does a missing tool/call prove that the body never ran?"""
        return mapping(self.header).get("tool_boundary") == TOOL_BOUNDARY


def _header(session: Session, event: Event) -> Problem | None:
    session.header = event.data
    session.patch = {}
    session.quarantine_seq = session.quarantine_text = None
    return None


def _gap(session: Session, event: Event) -> Problem | None:
    header = event.data.get("header")
    if session.header is None and isinstance(header, dict):
        session.header = header
    return None


def _updated(session: Session, event: Event) -> Problem | None:
    session.patch.update(event.data["patch"])
    return None


def _note(session: Session, event: Event) -> Problem | None:
    if event.data["kind"] == "quarantine":
        text = event.data.get("text")
        session.quarantine_seq = event.seq
        session.quarantine_text = text if isinstance(text, str) else None
    return None


HANDLERS: Final[Handlers] = {
    "session/header": _header,
    "session/updated": _updated,
    "session/note": _note,
    "journal/gap": _gap,
}
