"""``diagnose`` and ``plan_repair``: what is found, and exactly what a repair would do about it. Pure.

A repair appends one atomic batch: the ``journal/gap`` of a salvage, then the closers. Everything in it is a function of
the bytes before it, so that planning again, in another process or another year, gives the same bytes.
"""

from collections.abc import Iterable
from typing import Final

import attrs

from ..journal.codec import encode
from ..journal.errors import InvalidEvent
from ..journal.events import Draft, Event, JsonObject
from ..journal.findings import Finding, FindingList, Verdict, verdict_of
from ..journal.scan import Consumer, Mark, ScanResult, accept, scan
from ..journal.source import BytesSource, Source
from ..journal.state import State
from ..journal.views.problem import mapping
from .closers import Closing, plan_closers
from .salvage import plan_salvage, rebuild_header
from .tail import SetAside, TailPlan, plan_tail

#: Event type → the key of its data that holds a run header.
_RUN_IN: Final = {"turn/start": "run", "run/created": "run", "continuation/claim": "target_run"}
_REFUSED: Final[dict[Verdict, str]] = {
    "damaged": "the journal is damaged, so nothing was written: {what}; run `maka journal repair --salvage`, "
    "which copies the damaged bytes aside and removes none",
    "unsupported": "the journal needs a newer maka, so nothing was written: {what}",
    "unreadable": "the journal cannot be repaired, so nothing was written: {what}; keep the file as it is",
}


@attrs.frozen
class Diagnosis:
    """What a journal holds and lacks. ``findings`` are in the order of the file, then those that closers settle."""

    source: Source
    name: str
    scan: ScanResult
    state: State
    closing: Closing
    findings: FindingList
    verdict: Verdict
    #: The events that stand, without the header, where the reader has kept them.
    events: list[Event] | None = None

    @property
    def session_id(self) -> str:
        """The header's, else what the place is called."""
        given = mapping(self.state.session.header).get("session_id")
        return given if isinstance(given, str) else self.name


def diagnose(source: Source | bytes, name: str | None = None) -> Diagnosis:
    """Scan and fold the bytes of one file. ``name``: what its directory (or the file) says the session is called.

    Never raises for what the bytes hold. The parent of a fork is the reader's concern: see ``judge``.
    """
    if isinstance(source, bytes):
        source = BytesSource(source)
    states: list[State] = []

    def begin() -> Consumer:
        states[:] = [State()]
        return states[0].apply

    result = scan(source, begin, name=name)
    return judge(source, result, states[0], name or "")


def judge(source: Source, result: ScanResult, state: State, name: str, further: Iterable[Finding] = ()) -> Diagnosis:
    """The diagnosis of what a reader has scanned and folded. ``further``: what only the reader knows of (parents)."""
    if result.head is not None and any(span.offset >= result.head.offset for span in result.spans):
        state.lose()  # behind the last event: nothing that follows would tell
    closing = plan_closers(state)
    findings = FindingList(result.findings)
    findings.extend(further)
    if result.head is not None:
        findings.extend(accept(state.problems, result.accepted))
        findings.extend(state.information())
        findings.extend(closing.findings)
    findings.sort(key=_place)
    return Diagnosis(source, name, result, state, closing, findings, verdict_of(findings))


def undamaged(source: Source, name: str, state: State, head: Mark) -> Diagnosis:
    """The diagnosis of a journal that is as a writer leaves it up to its end, without its history: only what closers
    settle. ``state`` is the fold up to ``head``, its newest event.
    """
    closing = plan_closers(state)
    findings = FindingList(closing.findings)
    result = ScanResult(head=head, next_seq=head.seq + 1, last_ts=state.last_ts)
    return Diagnosis(source, name, result, state, closing, findings, verdict_of(findings))


def _place(finding: Finding) -> tuple[bool, int]:
    """By offset where there is one, then by number."""
    if finding.offset is not None:
        return False, finding.offset
    return True, -1 if finding.seq is None else finding.seq


@attrs.frozen
class RepairPlan:
    """What a repair does, in this order: copy ``set_aside``, cut, and append ``batch`` in one write.

    ``cut`` is the length that the file is truncated to, None to leave it. ``batch`` begins with the LF that the last
    kept line lacks, if it does. ``refused`` is the sentence why nothing is done at all.
    """

    verdict_before: Verdict
    verdict_after: Verdict
    set_aside: tuple[SetAside, ...] = ()
    cut: int | None = None
    events: tuple[Event, ...] = ()
    batch: bytes = b""
    refused: str | None = None

    @property
    def empty(self) -> bool:
        return not (self.batch or self.set_aside or self.cut is not None)


def head_after(diagnosis: Diagnosis, plan: RepairPlan) -> Mark:
    """The newest event when the plan has been carried out, and where the file then ends."""
    head = diagnosis.scan.head
    assert head is not None, "a journal without an event is refused"
    size = (diagnosis.source.size if plan.cut is None else plan.cut) + len(plan.batch)
    last = plan.events[-1] if plan.events else head
    return Mark(size, last.seq, last.sum)


def plan_repair(
    diagnosis: Diagnosis, *, salvage: bool = False, cause: str | None = None, logical: bool = True
) -> RepairPlan:
    """``salvage`` accepts damage. ``cause`` is the failure class that open turns end with instead of ``interrupted``.

    Without ``logical`` only the bytes of the tail are put in order, and no event is appended.
    """
    verdict, result, source = diagnosis.verdict, diagnosis.scan, diagnosis.source
    head = result.head
    if head is None or verdict in ("unsupported", "unreadable") or (verdict == "damaged" and not salvage):
        return _refuse(diagnosis)
    tail = plan_tail(source, result.tail)
    copies = [tail.copy] if tail.copy is not None else []
    drafts: list[Draft] = []
    seq = head.seq + 1
    if verdict == "damaged":
        rebuilt = None
        if diagnosis.state.session.header is None:
            rebuilt = rebuild_header(diagnosis.name, _first_run(source))
        salvaged = plan_salvage(source, result, _damage(diagnosis.findings), rebuilt)
        copies += salvaged.copies
        drafts += salvaged.drafts
        seq = result.next_seq
    closing = diagnosis.closing if cause is None else plan_closers(diagnosis.state, cause=cause)
    if logical:
        drafts += closing.drafts
    try:
        events, batch = _encode(drafts, seq, result.last_ts, head.sum, _end(source, tail))
    except InvalidEvent as error:
        return RepairPlan(verdict, verdict, refused=f"nothing was written: {error}")
    return RepairPlan(
        verdict_before=verdict,
        verdict_after="healthy" if logical or not closing.drafts else "interrupted",
        set_aside=tuple(sorted(copies, key=lambda copy: copy.offset)),
        cut=tail.cut,
        events=events,
        batch=b"\n" + batch if tail.line_feed else batch,
    )


def pending_events(diagnosis: Diagnosis) -> tuple[Event, ...]:
    """The closers as the events that a repair would append: behind the gap, where only a salvage may append any.

    None where nothing may ever be written. Behind a gap their sums are not known yet and are empty.
    """
    result, head = diagnosis.scan, diagnosis.scan.head
    if head is None or diagnosis.verdict in ("unsupported", "unreadable"):
        return ()
    if diagnosis.verdict != "damaged":
        return plan_repair(diagnosis).events
    first = result.next_seq + 1
    return tuple(
        Event(first + i, result.last_ts, draft.type, draft.data, "") for i, draft in enumerate(diagnosis.closing.drafts)
    )


def _first_run(source: Source) -> JsonObject | None:
    """The first run header in the file; looked for only where line 0 was lost."""
    found: list[JsonObject] = []

    def begin() -> Consumer:
        found.clear()

        def look(event: Event) -> None:
            run = event.data.get(_RUN_IN.get(event.type, ""))
            if not found and isinstance(run, dict):
                found.append(run)

        return look

    scan(source, begin)
    return found[0] if found else None


def _refuse(diagnosis: Diagnosis) -> RepairPlan:
    severity = {"damaged": "damage"}.get(diagnosis.verdict, diagnosis.verdict)
    first = next((finding for finding in diagnosis.findings if finding.severity == severity), None)
    what = "no event was found" if first is None else f"{first.code}, {first.message}"
    sentence = _REFUSED[diagnosis.verdict].format(what=what)
    return RepairPlan(diagnosis.verdict, diagnosis.verdict, refused=sentence)


def _damage(findings: FindingList) -> list[tuple[str, int]]:
    return [
        (finding.code, finding.offset)
        for finding in findings
        if finding.severity == "damage" and finding.offset is not None
    ] + list(findings.unlisted)


def _end(source: Source, tail: TailPlan) -> int:
    return (source.size if tail.cut is None else tail.cut) + tail.line_feed


def _encode(drafts: list[Draft], seq: int, ts: int, prev: str, offset: int) -> tuple[tuple[Event, ...], bytes]:
    """The drafts as one atomic batch: ``more`` counts down to the last line, which has none."""
    events, lines = [], []
    for more, draft in zip(reversed(range(len(drafts))), drafts, strict=True):
        line, prev = encode(draft, seq, ts, prev, more)
        events.append(Event(seq, ts, draft.type, draft.data, prev, draft.ignorable, more, offset, len(line)))
        lines.append(line + b"\n")
        seq += 1
        offset += len(line) + 1
    return tuple(events), b"".join(lines)


def appended_json(events: Iterable[Event]) -> list[JsonObject]:
    """What a repair appends, as its JSON shows it: ``[{seq, type, data}]``."""
    return [{"seq": event.seq, "type": event.type, "data": event.data} for event in events]
