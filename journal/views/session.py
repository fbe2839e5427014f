"""What is true of the session as a whole: header, patches merged, notes, last activity. No I/O."""

from typing import Any, Final

import attrs

from ..events import Event, JsonObject
from .problem import Handlers, Problems, mapping


@attrs.define(slots=True)
class Session:
    """``header`` is line 0's data as written (or as a salvage rebuilt it); ``patch`` what session/updated laid over it.

    ``quarantine_seq`` is the newest note of that kind. ``inherited`` is the seq up to which a parent was folded.
    """

    header: JsonObject | None = None
    patch: JsonObject = attrs.field(factory=dict)
    quarantine_seq: int | None = None
    quarantine_text: str | None = None

    def value(self, key: str) -> Any:
        """The newest value of a key: the last patch's, else the header's, else None."""
        return self.patch[key] if key in self.patch else mapping(self.header).get(key)

    @property
    def tool_boundary(self) -> bool:
        """Does a missing tool/call prove that the body never ran?"""
        return mapping(self.header).get("tool_boundary") == "t1_after_preflight_v1"
