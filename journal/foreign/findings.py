"""What a reader of another tool's file may find: codes, severities, remedies. No I/O."""

from typing import Any, Final

import attrs

from ..findings import Code, Finding, FindingList

_IMPORT: Final = (
    "run `maka journal import FILE`; the journal that it makes has an end for it, and the file stays as it is"
)
_KEPT: Final = "nothing to do; an import keeps the line as it stands"
_TOLD: Final = "nothing to do; an import keeps it, and what is sent to a provider has it as text"
_LOOK: Final = "look at the place; what can be read before and behind it is imported"
_NOTHING: Final = "nothing to do"

#: A foreign file is never repaired: what a dead writer left open is closed in the journal that an import makes.
CODES: Final[dict[str, Code]] = {
    **dict.fromkeys(("open_turn", "unknown_outcome", "not_started"), Code("repairable", _IMPORT)),
    "torn_tail": Code(
        "repairable", "run `maka journal import FILE`; the half line at the end is kept with the original"
    ),
    "bad_line": Code("damage", _LOOK),
    "bad_header": Code("damage", _LOOK),
    "bad_frame": Code("damage", _LOOK),
    "seq_gap": Code("damage", _LOOK),
    "seq_fork": Code("warning", "an import makes a session of its own of the later branch"),
    "leaf_disputed": Code(
        "warning", "an import takes the branch that holds the conversation, and makes a fork of the other"
    ),
    "copied_lines": Code("info", "nothing to do; an import makes a session of its own of them"),
    "other_session": Code("info", "nothing to do; the lines are read in the order of the file"),
    "rewound": Code("info", "an import makes a fork of what was withdrawn"),
    "assistant_siblings": Code("warning", "nothing to do; both answers are kept in the order of the file"),
    "missing_parent": Code("warning", "nothing to do; the lines are read in the order of the file"),
    "parent_cycle": Code("warning", "nothing to do; the lines are read in the order of the file"),
    "duplicate_line": Code("info", "nothing to do; the first of them counts"),
    "late_result": Code("warning", _TOLD),
    "orphan_result": Code("warning", _TOLD),
    "duplicate_result": Code("warning", "nothing to do; the first one counts"),
    "misfit": Code("warning", _KEPT),
    "image_unusable": Code("warning", "an export puts a text in its place, unless --keep-images is given"),
    "image_elsewhere": Code("info", "the bytes of the image are not in this file"),
    "compaction_pointer": Code("warning", "nothing is kept from before the compaction"),
    "sealed_summary": Code("warning", "nothing to do; what stood before the compaction is sent whole"),
    "unrecorded_span": Code("warning", "something happened there that the tool did not record"),
    "hosted_tool": Code("info", "an export leaves it out: only its provider can run it"),
    "older_generation": Code("info", "nothing to do; it is the original that a migration left"),
    "rewritten": Code("warning", "nothing to do; what was imported before stays beside it"),
    "unknown_lines": Code("info", _KEPT),
    "no_conversation": Code("info", "it is a helper's own file; import the session that it belongs to"),
    "empty_file": Code("info", "nothing to import; it may just be being created"),
}


@attrs.define
class ForeignFinding(Finding):
    """A finding at ``line`` (from 1) of a foreign file; ``related`` is the line that it has to do with."""

    severity: Any = attrs.field(default=attrs.Factory(lambda self: CODES[self.code].severity, takes_self=True))
    line: int | None = None
    related: int | None = None

    @property
    def remedy(self) -> str:
        return CODES[self.code].remedy

    def to_json(self) -> dict[str, Any]:
        """As a journal's findings, with ``line`` and ``related`` where they are known."""
        out = super().to_json()
        where = {key: value for key in ("line", "related") if (value := getattr(self, key)) is not None}
        return {"code": out.pop("code"), "severity": out.pop("severity"), **where, **out}


class Report:
    """What one reading found: ``findings``, and how many ``lines`` of each kind there were."""

    def __init__(self) -> None:
        self.findings = FindingList()
        self.lines = 0
        #: Lines that stand for nothing in a conversation, by the tool's own word for them.
        self.kept: dict[str, int] = {}

    def add(
        self,
        code: str,
        message: str,
        line: int | None = None,
        offset: int | None = None,
        length: int | None = None,
        *,
        related: int | None = None,
    ) -> None:
        self.findings.append(ForeignFinding(code, message, offset=offset, length=length, line=line, related=related))
