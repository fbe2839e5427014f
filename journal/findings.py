"""What a reader may find: the table of codes, their severities and remedies, and the verdict. No I/O.

The table is the one of the format document, section 7.
"""

from array import array
from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal

import attrs

Severity = Literal["notice", "info", "warning", "repairable", "damage", "unsupported", "unreadable"]
Verdict = Literal["healthy", "interrupted", "torn", "damaged", "unsupported", "unreadable"]

VERDICTS: Final[tuple[Verdict, ...]] = ("healthy", "interrupted", "torn", "damaged", "unsupported", "unreadable")

#: At most this many findings of one code are listed; the last one listed then carries ``count``.
LISTED: Final = 1_000

_REPAIR = "run `maka journal repair` (with --dry-run first to see what it would write)"
_SALVAGE = (
    "run `maka journal repair --salvage` (with --dry-run first); it copies the damaged bytes aside and removes none"
)
_RUNTIME = "nothing to repair; a runtime that opens the session picks this up"
_HANDED_OVER = (
    "nothing to repair; `maka session resume TARGET` lets the successor finish the turn, and `maka session settle "
    "TARGET --handoff ID` gives the handoff up"
)
_CARRIED_OUT = (
    "nothing to repair; a program completes or cancels it (`manager.plans`); a recovery ends it as interrupted, unless "
    "a turn stands open or was handed over"
)
_NOTHING = "nothing to do"


@attrs.frozen
class Code:
    severity: Severity
    remedy: str


CODES: Final[dict[str, Code]] = {
    **dict.fromkeys(
        (
            "torn_tail",
            "open_turn",
            "open_step",
            "unknown_outcome",
            "not_started",
            "unsettled_run",
            "pending_interaction",
            "claim_repair_required",
            "admission_unfinished",
            "message_missing",
        ),
        Code("repairable", _REPAIR),
    ),
    "claim_indeterminate": Code(
        "warning",
        "look at what the run may have done, then end it with `maka session settle TARGET --claim ID`; "
        "the model is not asked again",
    ),
    "handoff_stuck": Code(
        "warning",
        "no repair decides this, and the turn cannot be ended; fork the session behind its last "
        "turn that ended (`manager.fork`), or begin another",
    ),
    "parent_missing": Code("warning", "put the parent session back beside this one; the fork stays readable by itself"),
    "parent_mismatch": Code(
        "warning", "restore the parent as it was at the fork point; the fork stays readable by itself"
    ),
    "blob_missing": Code("warning", "restore the file into blobs/ under the session; the event keeps what was shown"),
    **dict.fromkeys(("admitted_without_run", "queued_messages"), Code("info", _RUNTIME)),
    "active_plan": Code("info", _CARRIED_OUT),
    "pending_handoff": Code("info", _HANDED_OVER),
    "extension_events": Code("info", _NOTHING),
    "quarantine": Code("info", _NOTHING),
    **dict.fromkeys(
        (
            "damaged_line",
            "sum_mismatch",
            "seq_gap",
            "seq_conflict",
            "orphan_result",
            "duplicate_result",
            "turn_order",
            "handoff_invalid",
            "admission_mismatch",
            "missing_header",
        ),
        Code("damage", _SALVAGE),
    ),
    **dict.fromkeys(
        (
            "bom",
            "crlf",
            "blank_line",
            "duplicate_line",
            "lossy_text",
            "unanswered_call",
            "session_id_mismatch",
            "clock_skew",
            "accepted",
        ),
        Code("notice", _NOTHING),
    ),
    "unsupported_format": Code(
        "unsupported", "open it with the version of maka that wrote it, or a newer one; nothing is written until then"
    ),
    "unsupported_event": Code(
        "unsupported", "open it with the version of maka that wrote it, or a newer one; nothing is written until then"
    ),
    "empty": Code(
        "unreadable", "there is no event in this file; keep it, and look for a copy of the session elsewhere"
    ),
    "unreadable": Code(
        "unreadable", "make the path readable for this user, then look again; the bytes were not touched"
    ),
}

_VERDICT_OF: Final[dict[str, Verdict]] = {
    "repairable": "interrupted",
    "damage": "damaged",
    "unsupported": "unsupported",
    "unreadable": "unreadable",
}


@attrs.define
class Finding:
    """One thing that a reader noticed. ``offset`` and ``length`` are bytes of the file, ``seq`` is an event's number.

    ``severity`` comes from the table unless given (a damage that an admission later settles may be a notice).
    ``was`` is the old code of an ``accepted`` finding. ``count`` stands on the last listed one of a code when more were
    found.
    """

    code: str
    message: str
    seq: int | None = None
    offset: int | None = None
    length: int | None = None
    severity: Severity = attrs.field(default=attrs.Factory(lambda self: CODES[self.code].severity, takes_self=True))
    was: str | None = None
    count: int | None = None

    @property
    def remedy(self) -> str:
        return CODES[self.code].remedy

    def to_json(self) -> dict[str, Any]:
        """Shape: ``{code, severity, seq?, offset?, length?, was?, count?, message, remedy}``."""
        out: dict[str, Any] = {"code": self.code, "severity": self.severity}
        for key in ("seq", "offset", "length", "was", "count"):
            value = getattr(self, key)
            if value is not None:
                out[key] = value
        out["message"] = self.message
        out["remedy"] = self.remedy
        return out


def verdict_of(findings: Iterable[Finding]) -> Verdict:
    """The worst of what was found. A torn tail of length 0 lacks only its LF: repair appends, so `interrupted`."""
    worst = 0
    for finding in findings:
        verdict: Verdict = _VERDICT_OF.get(finding.severity, "healthy")
        if finding.code == "torn_tail" and finding.length:
            verdict = "torn"
        worst = max(worst, VERDICTS.index(verdict))
    return VERDICTS[worst]


class FindingList(list[Finding]):
    """A list that keeps at most ``LISTED`` findings of a code and counts the rest on the last one kept.

    ``unlisted`` are the code and offset of damage that is counted only: a salvage accepts all of it.
    """

    def __init__(self, findings: Iterable[Finding] = ()) -> None:
        super().__init__()
        self._seen: dict[str, int] = {}
        self._listed: dict[str, list[Finding]] = {}
        self._unlisted: dict[str, array[int]] = {}
        self.extend(findings)

    @property
    def unlisted(self) -> Iterator[tuple[str, int]]:
        return ((code, offset) for code, offsets in self._unlisted.items() for offset in offsets)

    @property
    def unlisted_codes(self) -> frozenset[str]:
        return frozenset(self._unlisted)

    def append(self, finding: Finding) -> None:
        code = finding.code
        # A finding's own count stands for those before it too.
        seen = self._seen[code] = max(self._seen.get(code, 0) + 1, finding.count or 0)
        listed = self._listed.setdefault(code, [])
        if len(listed) < LISTED:
            listed.append(finding)
            super().append(finding)
            return
        listed[-1].count = seen
        if finding.severity == "damage" and finding.offset is not None:
            self.add_unlisted(code, finding.offset)

    def add_unlisted(self, code: str, offset: int) -> None:
        """Damage at ``offset`` that a finding of the list counts."""
        self._unlisted.setdefault(code, array("q")).append(offset)

    def extend_unlisted(self, findings: "FindingList") -> None:
        """What another list, whose findings were appended here, counts only."""
        for code, offset in findings.unlisted:
            self.add_unlisted(code, offset)

    def extend(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            self.append(finding)
        if isinstance(findings, FindingList):
            self.extend_unlisted(findings)

    def clear(self) -> None:
        super().clear()
        self._seen.clear()
        self._listed.clear()
        self._unlisted.clear()
