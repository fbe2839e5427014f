"""Bytes → events and findings; the only place that knows damage. No I/O: bytes come from a ``Source``.

One pass, in bounded memory. Nearly every line takes the short way: ``proof`` has shown that its envelope is canonical,
its number the expected one and its sum right, and ``_Pass.stretch`` parses its data. Whatever does not fit goes through
``_Pass.line``, which knows the rules of the format's section 7 and needs no proof. What may still turn out to belong to
a torn tail (an unfinished batch, a run of NULs followed by nothing but deltas) is held in a ``_Frame`` until it is
decided. Only where two writers forked the chain is a second pass made.
"""

import gc
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Final

import attrs
import orjson

from . import reports
from .branches import STRIDE, Places
from .codec import SUM, ZERO, Lossy, decode
from .events import EVENT_TYPES, Event, JsonObject, is_extension
from .findings import Finding, FindingList
from .proof import IGNORABLE_BYTES, MAX_LINE, PREFIX, SUM_BYTES, Chain, Proof, Prover
from .source import BOM, CHUNK, Source, line_at, pieces

_SEQ: Final = b'{"seq":'
#: A welded event is looked for at this many last places of ``{"seq":`` in a bad line.
_PLACES: Final = 8
#: So many events of what may still be undone are held; more of them are read again if they stand.
_HELD: Final = 4_096

Consumer = Callable[[Event], None]


@attrs.frozen
class Fold:
    """A consumer that takes plain ``assistant/delta`` lines, three of four in a journal, without an ``Event`` for each.

    ``live`` gets their ``seq``, ``ts`` and ``data``; ``event`` gets all others. ``kept``, if given, takes all events.
    """

    event: Consumer
    live: Callable[[int, int, JsonObject], None]
    kept: list[Event] | None = None


#: Types that need no second look where number and sum are as expected: by bytes, the name and how the keys are checked.
_PLAIN: Final = {
    name.encode(): (name, row.values, row.shapes)
    for name, row in EVENT_TYPES.items()
    if name not in ("session/header", "journal/gap")
}


@attrs.frozen
class Mark:
    """Behind a line: the next byte's offset, and that line's number and sum (as written)."""

    offset: int
    seq: int
    sum: str


@attrs.frozen
class Span:
    """Damaged bytes, or a line of a branch that did not stay; without the LF."""

    offset: int
    length: int


@attrs.frozen
class Tail:
    """``length`` bytes from ``offset`` to the end go aside. ``lf_missing``: the last kept line lacks its LF."""

    offset: int
    length: int
    lf_missing: bool


class Spans:
    """Spans in the order of the file, in little memory: a file may be nothing but damage."""

    def __init__(self) -> None:
        self._offsets = array("q")
        self._lengths = array("q")

    def append(self, span: Span) -> None:
        self._offsets.append(span.offset)
        self._lengths.append(span.length)

    def __len__(self) -> int:
        return len(self._offsets)

    def __iter__(self) -> Iterator[Span]:
        return map(Span, self._offsets, self._lengths)

    def without(self, offsets: Collection[int]) -> "Spans":
        """Those that do not begin at one of ``offsets``."""
        if not offsets:
            return self
        out = Spans()
        for span in self:
            if span.offset not in offsets:
                out.append(span)
        return out


@attrs.define
class ScanResult:
    """What a scan found. ``missing`` holds inclusive ranges of numbers, ``unverified`` the numbers of lines whose sum
    could not be proven. Spans and missing numbers that a ``journal/gap`` lists already are left out.
    """

    header: Event | None = None
    events: int = 0
    head: Mark | None = None
    next_seq: int = 0
    last_ts: int = 0
    findings: FindingList = attrs.Factory(FindingList)
    tail: Tail | None = None
    spans: Spans = attrs.Factory(Spans)
    missing: list[tuple[int, int]] = attrs.Factory(list)
    unverified: list[int] = attrs.Factory(list)
    accepted: set[tuple[str, int]] = attrs.Factory(set)


def scan(
    source: Source, begin: Callable[[], Consumer | Fold], *, name: str | None = None, after: Mark | None = None
) -> ScanResult:
    """Read the source from its start (or behind ``after``) to its end. Never raises for what it holds.

    ``begin`` is called at the start of each pass and returns the consumer of the events that stand, in order.
    ``name`` is the directory's name, to be compared with the header's session id.
    """
    excluded: frozenset[int] = frozenset()
    with uncollected():
        while True:
            try:
                return _Pass(source, begin(), excluded, name, after).run()
            except _Forked as fork:
                excluded |= fork.losers


@contextmanager
def uncollected() -> Iterator[None]:
    """The collector rests: what is read holds no cycles, and to look for them again and again costs a good part."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def accept(findings: Iterable[Finding], accepted: set[tuple[str, int]]) -> FindingList:
    """Damage that a ``journal/gap`` lists becomes the notice ``accepted``, with its old code in ``was``."""
    out = FindingList()
    counted = findings.unlisted_codes if isinstance(findings, FindingList) else frozenset()
    for finding in findings:
        if finding.severity == "damage":
            # A count takes in what is not listed, and some of that may be accepted and some not: it is counted again.
            count = None if finding.code in counted else finding.count
            if (finding.code, finding.offset) in accepted:
                finding = attrs.evolve(finding, code="accepted", severity="notice", was=finding.code, count=count)
            else:
                finding = attrs.evolve(finding, count=count)
        out.append(finding)
    if isinstance(findings, FindingList):
        for code, offset in findings.unlisted:
            if (code, offset) not in accepted:
                out.append(Finding(code, "one more of this kind, behind the first that are described", offset=offset))
    return out


class _Forked(Exception):
    """Two branches chain on from one line; ``losers`` are the offsets of the lines that do not stay."""

    def __init__(self, losers: frozenset[int]) -> None:
        self.losers = losers


class _Frame:
    """What lines have left behind that may still be undone: events not yet given on, findings, spans and the place
    to return to.
    """

    def __init__(self, outer: "_Pass | _Frame", source: Source, offset: int) -> None:
        self.outer = outer
        self.source = source
        self.offset = offset
        self.events: list[Event] = []
        #: Of events beyond the first ones: offset, length, number, verified. They are read again when they stand.
        self.others = array("q")
        self.findings = FindingList()
        self.spans = Spans()
        self.missing: list[tuple[int, int]] = []
        self.unverified: list[int] = []

    def commit(self) -> None:
        outer = self.outer
        for event in self.events:
            outer.keep(event)
        for at in range(0, len(self.others), 4):
            offset, length, number, verified = self.others[at : at + 4]
            again = decode(self.source.read(offset, length), offset)
            if again is not None:
                again.seq, again.verified = number, bool(verified)
                outer.keep(again)
        for finding in self.findings:
            outer.report(finding)
        outer.more_damage(self.findings)
        for span in self.spans:
            outer.span(span)
        outer.lost(self.missing)
        outer.doubt(self.unverified)

    def keep(self, event: Event) -> None:
        if len(self.events) < _HELD:
            self.events.append(event)
        else:
            self.others.extend((event.offset, event.length, event.seq, event.verified))

    def report(self, finding: Finding) -> None:
        self.findings.append(finding)

    def more_damage(self, findings: FindingList) -> None:
        self.findings.extend_unlisted(findings)

    def span(self, span: Span) -> None:
        self.spans.append(span)

    def lost(self, missing: list[tuple[int, int]]) -> None:
        self.missing.extend(missing)

    def doubt(self, unverified: list[int]) -> None:
        self.unverified.extend(unverified)


@attrs.frozen
class _Chain:
    """Where the chain stands: what a cut goes back to."""

    expected: int
    written: bytes
    computed: bytes | None
    after_damage: bool
    last_ts: int
    end: int
    top: int
    bad_at_end: int


class _Pass:
    def __init__(
        self, source: Source, consumer: Consumer | Fold, excluded: frozenset[int], name: str | None, after: Mark | None
    ) -> None:
        self.source = source
        self.emit = consumer.event if isinstance(consumer, Fold) else consumer
        self.live = consumer.live if isinstance(consumer, Fold) else None
        self.kept = consumer.kept if isinstance(consumer, Fold) else None
        self.excluded = excluded
        self.name = name
        self.result = ScanResult()
        self.start = after.offset if after else 0
        self.expected = after.seq + 1 if after else 0
        #: The sum that the previous standing line ends with, and what it should have ended with where that differs.
        self.written = (after.sum if after else ZERO).encode()
        self.computed: bytes | None = None
        #: A bad line stands directly before, so the next sum cannot be proven (unless it fits the line before that).
        self.after_damage = False
        self.last_ts = 0
        #: Behind the last standing line, and the largest number under which any line stands.
        self.end = self.start
        self.top = self.expected - 1
        #: Bad lines without any event since the last standing line, and the finding of the last of them.
        self.bad_at_end = 0
        self.bad_finding: Finding | None = None
        #: Innermost last: an unfinished batch, a run of NULs that only deltas have followed.
        self.batch: _Frame | None = None
        self.batch_more = 0
        self.batch_damaged = False
        self.batch_plain_damage = False
        self.batch_chain: _Chain | None = None
        self.batch_first: Event | None = None
        self.nuls: _Frame | None = None
        self.nuls_deltas = 0
        self.nuls_chain: _Chain | None = None
        self.nuls_lf_missing = False
        self.bom = False
        self.crlf: list[int] = []
        self.crlf_count = 0
        self.blank: list[int] = []
        self.blank_count = 0
        self.places = Places(source, self.start)
        self.gap_spans: set[int] = set()
        self.gap_missing: set[int] = set()

    # ------------------------------------------------------------ the frame that is open now

    def frame(self) -> "_Pass | _Frame":
        return self.nuls or self.batch or self

    def keep(self, event: Event) -> None:
        result = self.result
        result.events += 1
        if event.seq == 0 and event.type == "session/header" and result.header is None:
            result.header = event
        elif event.type == "journal/gap":
            self.gap(event)
        if self.kept is not None:
            self.kept.append(event)
        self.emit(event)

    def report(self, finding: Finding) -> None:
        self.result.findings.append(finding)

    def more_damage(self, findings: FindingList) -> None:
        self.result.findings.extend_unlisted(findings)

    def span(self, span: Span) -> None:
        self.result.spans.append(span)

    def lost(self, missing: list[tuple[int, int]]) -> None:
        self.result.missing.extend(missing)

    def doubt(self, unverified: list[int]) -> None:
        self.result.unverified.extend(unverified)

    def gap(self, event: Event) -> None:
        """Remember what a salvage has accepted. Its lists may be anything but lists of the right things."""
        data = event.data
        for item in data["accepted"]:
            if isinstance(item, dict) and isinstance(item.get("code"), str) and isinstance(item.get("offset"), int):
                self.result.accepted.add((item["code"], item["offset"]))
        self.gap_spans.update(
            s["offset"] for s in data["spans"] if isinstance(s, dict) and isinstance(s.get("offset"), int)
        )
        self.gap_missing.update(m[0] for m in data["missing"] if isinstance(m, list) and m and isinstance(m[0], int))

    def chain(self) -> _Chain:
        return _Chain(
            self.expected,
            self.written,
            self.computed,
            self.after_damage,
            self.last_ts,
            self.end,
            self.top,
            self.bad_at_end,
        )

    def restore(self, chain: _Chain) -> None:
        self.expected, self.written, self.computed, self.after_damage = attrs.astuple(chain)[:4]
        self.last_ts, self.end, self.top, self.bad_at_end = attrs.astuple(chain)[4:]

    # ------------------------------------------------------------ the pass

    def run(self) -> ScanResult:
        at = self.start
        trailing: tuple[int, bytes, int] | None = None
        alone = False
        incoming = pieces(self.source, at)
        while (piece := next(incoming, None)) is not None:
            text, held, length = piece
            at = self.read(text, at)
            if held is not None:
                trailing = (at, held, length)
            elif length:
                self.oversized(at, length)
                at += length + 1
            elif not alone and self.calm():
                alone = True
                prover = self.source.prover(at, self.expected - 1, self.written)
                if prover is not None:
                    at = self.follow(prover, at)
                    incoming = pieces(self.source, at)
        return self.finish(trailing)

    def read(self, text: bytes, at: int) -> int:
        """Whole lines, each with its LF, that stand at ``at``. Says where they end."""
        lines = text.split(b"\n")
        lines.pop()
        done = begin = 0
        while done < len(lines):
            if self.calm():
                proof = Chain(self.expected - 1, self.written).prove(lines, done)
                begin, _ = self.stretch(text, begin, proof, at)
                done += len(proof)
            if done < len(lines):
                line = lines[done]
                self.line(line, at + begin, decode(line, at + begin))
                begin += len(line) + 1
                done += 1
        return at + begin

    def follow(self, prover: Prover, at: int) -> int:
        """Read what a second process has proven, as long as that is what is expected here. Says where it ends."""
        try:
            for proof in prover:
                length = sum(proof.lengths) + len(proof)
                end, holds = self.stretch(self.source.read(at, length), 0, proof, at)
                at += end
                if not holds:
                    break
        finally:
            prover.close()
        return at

    def stretch(self, text: bytes, begin: int, proof: Proof, base: int) -> tuple[int, bool]:
        """Proven lines, from ``text[begin:]`` on, where ``text`` stands at ``base``: the short way of each.

        Says where in ``text`` they end, and whether the proof still holds for what follows: a line that had to be
        taken the long way may have been given another number.
        """
        emit, live, kept, loads, stride = self.emit, self.live, self.kept, orjson.loads, STRIDE - 1
        table = [_PLAIN.get(name) for name in proof.names]
        sums, place = proof.sums.decode(), 0
        number = first = self.expected
        calm, ts = self.calm(), 0  # the short way has passed the events from ``first`` to before ``number``
        for length, start, tail, stamp, kind in zip(
            proof.lengths, proof.starts, proof.tails, proof.stamps, proof.kinds, strict=True
        ):
            at, end = base + begin, begin + length
            plain = table[kind]
            if calm and tail and plain is not None:
                type_, values, shapes = plain
                try:
                    data = loads(text[begin + start : end - tail])
                    fits = [*map(type, values(data))] in shapes
                except (ValueError, KeyError):
                    fits = False
                if fits:
                    if not number & stride:
                        self.places.numbers.append(number)
                        self.places.offsets.append(at)
                    ts = stamp
                    taken = live is not None and type_ == "assistant/delta"
                    if live is not None and taken:
                        live(number, ts, data)
                    if kept is not None or not taken:
                        sum_ = sums[place : place + 32]
                        event = Event(number, ts, type_, data, sum_, tail == IGNORABLE_BYTES, 0, at, length)
                        if kept is not None:
                            kept.append(event)
                        if not taken:
                            emit(event)
                    begin = end + 1
                    place += 32
                    number += 1
                    continue
            self.catch_up(number - first, ts, base + begin, proof.sums[place - 32 : place])
            line = text[begin:end]
            self.line(line, at, decode(line, at))
            begin = end + 1
            place += 32
            number = first = number + 1
            calm = self.calm() and self.expected == number and self.written == proof.sums[place - 32 : place]
        self.catch_up(number - first, ts, base + begin, proof.sums[place - 32 : place])
        return begin, self.expected == number and self.written == proof.sums[place - 32 : place]

    def calm(self) -> bool:
        """May the next line take the short way: can nothing that stands still be undone, and is nothing left out?"""
        return (
            not self.excluded
            and self.batch is None
            and self.nuls is None
            and not self.after_damage
            and self.expected > 0
        )

    def catch_up(self, events: int, ts: int, end: int, written: bytes) -> None:
        """What the short way has passed: so many events, and of the last of them its ``ts``, sum and where it ends."""
        if events:
            self.result.events += events
            self.expected += events
            self.written = written
            self.computed = None
            self.last_ts = ts
            self.end = end

    # ------------------------------------------------------------ one line, the long way

    def line(self, raw: bytes, offset: int, event: Event | None) -> None:
        """A line that ended with LF and did not take the short way."""
        line = raw
        if offset == 0 and line.startswith(BOM):
            self.bom, line = True, line[3:]
        if line.endswith(b"\r"):
            line = line.rstrip(b"\r")
            self.crlf_count += 1
            self.crlf = self.crlf or [offset]
        at = offset + (3 if self.bom and offset == 0 else 0)
        if not line.strip(b" \t\r"):
            self.blank_count += 1
            self.blank = self.blank or [offset]
            return
        if event is None or line is not raw:
            event = decode(line, at)
        if offset in self.excluded:
            self.loser(line, at, event)
        elif event is None or self.alien(event, line):
            self.bad(line, at)
        else:
            self.valid(event, line, offset + len(raw) + 1)

    def alien(self, event: Event, line: bytes) -> bool:
        """A header of another format without the keys of this one is a header only if its sum fits."""
        return (
            event.type == "session/header"
            and not EVENT_TYPES["session/header"].fits(event.data)
            and not (event.seq == 0 and self.fits(event, line))
        )

    def digest(self, event: Event, line: bytes, prev: bytes) -> bytes:
        if event.seq == 0 and event.type == "session/header" and self.expected == 0:
            parent = event.data.get("parent")
            forked_at = parent.get("sum") if isinstance(parent, dict) else None
            prev = (forked_at if isinstance(forked_at, str) else ZERO).encode("utf-8", "replace")
        return sha256(prev + line[:-SUM_BYTES]).hexdigest()[:32].encode()

    def fits(self, event: Event, line: bytes) -> bool:
        """Does the line's sum chain on from the line before, as that was written or as it should have been?"""
        sum_ = event.sum.encode()
        return self.digest(event, line, self.written) == sum_ or (
            self.computed is not None and self.digest(event, line, self.computed) == sum_
        )

    def valid(self, event: Event, line: bytes, end: int, *, reported: bool = False) -> None:
        """A line that decodes. ``reported``: it was found inside a bad line, which is reported already."""
        fits = self.fits(event, line)
        number, expected = event.seq, self.expected
        doubted = False
        if number < expected and self.seen_before(event, line):
            return
        self.settle(event)
        if not (fits and number == expected):
            if number != expected and fits and event.type == "journal/gap" and number > expected:
                self.skipped(min(number, expected + self.bad_at_end) - 1)
            elif number > expected:
                doubted, number = self.ahead(event, end, fits, reported)
            else:
                doubted = True
                if not self.after_damage and not reported:
                    self.frame().report(reports.mismatch(event, expected))
                number = expected
        elif self.after_damage and self.bad_finding is not None and self.bad_at_end:
            self.bad_finding.message += "; the next line's sum fits the line before it, so no event is missing"
        if number == 0 or (expected == 0 and self.result.header is None and self.result.events == 0):
            doubted = self.first(event, line, number, fits) or doubted
        if doubted:
            event.verified = False
        if number != event.seq:
            event.seq = number
        self.stand(event, line, end, fits)

    def ahead(self, event: Event, end: int, fits: bool, reported: bool) -> tuple[bool, int]:
        """A number above the expected one: lines are missing, or the number itself is what changed.

        The next line, at ``end``, tells.
        """
        number, expected = event.seq, self.expected
        following = decode(line_at(self.source, end)) if not fits else None
        if self.after_damage and self.expected:
            natural = expected + self.bad_at_end
            if not fits and number != natural and following is not None and following.seq != number + 1:
                number = natural if following.seq == natural + 1 else number
            self.skipped(number - 1)
            return True, number
        headless = expected == 0 and self.result.events == 0
        if (following is not None and following.seq == expected + 1) or (headless and event.type == "session/header"):
            if not reported:
                self.frame().report(reports.mismatch(event, expected))
            return True, expected
        if headless:
            return True, number  # ``first`` reports it
        if not reported:
            self.frame().report(reports.gap(event, expected))
        self.skipped(number - 1)
        return True, number

    def skipped(self, last: int) -> None:
        """No line stands under the numbers from the expected one to ``last``."""
        if last >= self.expected:
            self.frame().lost([(self.expected, last)])
            if self.bad_finding is not None and self.bad_at_end:
                self.bad_finding.message += f"; {reports.missing(self.expected, last)}"

    def first(self, event: Event, line: bytes, number: int, fits: bool) -> bool:
        """The first standing line of the file. Says whether it is in doubt."""
        if event.type == "session/header" and number == 0:
            if fits and event.data.get("format") != 1:
                self.frame().report(reports.unsupported_format(event))
            return not fits
        event.seq = number
        self.frame().report(reports.missing_header(event))
        if number > 1:
            self.frame().report(reports.gap(event, 1))
        if number:
            self.frame().lost([(0, number - 1)])
        return True

    def stand(self, event: Event, line: bytes, end: int, fits: bool) -> None:
        """The line stands under ``event.seq``."""
        frame = self.frame()
        type_ = event.type
        if type_ not in EVENT_TYPES and not event.ignorable and not is_extension(type_):
            if fits:
                frame.report(reports.unsupported_event(event))
            elif self.after_damage:
                frame.report(reports.mismatch(event, event.seq))
        if event.data.__class__ is Lossy:
            frame.report(reports.lossy(event))
        if not event.verified:
            frame.doubt([event.seq])
        self.places.numbers.append(event.seq)
        self.places.offsets.append(event.offset)
        sum_ = event.sum.encode()
        should = self.digest(event, line, self.written)
        self.computed = should if not fits and not self.after_damage and should != sum_ else None
        self.top = max(self.top, event.seq)
        self.expected = event.seq + 1
        self.written = sum_
        self.after_damage = False
        self.bad_at_end, self.bad_finding = 0, None
        self.last_ts = event.ts
        self.end = end
        frame.keep(event)
        if self.batch is not None and self.batch_more == 0:
            self.batch_commit()

    # ------------------------------------------------------------ numbers that were there before

    def seen_before(self, event: Event, line: bytes) -> bool:
        """A number below the expected one. True where the line is settled: a duplicate, or (raising) another branch."""
        earlier = self.places.find(event.seq, event.offset, self.excluded)
        if earlier is None:
            return False
        if earlier == line:
            self.frame().report(reports.duplicate(event))
            return True
        before = self.places.find(event.seq - 1, event.offset, self.excluded)
        if before is not None and self.digest(event, line, before[-34:-2]) == event.sum.encode():
            losers = self.places.losers(event.seq - 1)
            if losers - self.excluded:
                raise _Forked(losers)
        return False

    def loser(self, line: bytes, offset: int, event: Event | None) -> None:
        number = event.seq if event is not None else None
        self.frame().report(reports.conflict(number, offset, len(line)))
        self.frame().span(Span(offset, len(line)))
        if number is not None:
            self.top = max(self.top, number)

    # ------------------------------------------------------------ bad lines

    def bad(self, line: bytes, offset: int) -> None:
        """An LF-ended line that is no valid event: whole events at its start and one at its end are still found."""
        taken, seam = self.leading(line, offset)
        rest = line[taken:]
        place, event = self.trailing_event(rest, offset + taken)
        self.damage(offset, taken, place, b"\0" in rest[:place], reports.looks(rest[:place]), seam)
        if event is not None:
            self.valid(event, rest[place:], offset + len(line) + 1, reported=True)

    def leading(self, line: bytes, offset: int) -> tuple[int, int]:
        """Let the whole events at the start of a bad line stand: how many bytes they take, and the first of them."""
        taken = seam = 0
        while (found := self.whole(line, taken, offset + taken)) is not None:
            event, whole = found
            taken += len(whole)
            self.valid(event, whole, offset + taken, reported=True)
            seam = seam or taken
        return taken, seam

    def whole(self, text: bytes, start: int, offset: int) -> tuple[Event, bytes] | None:
        """The event that begins at ``text[start]``, and its line: up to the first end of a sum that fits."""
        if PREFIX.match(text, start) is None:
            return None
        states = [sha256(self.written)] + ([sha256(self.computed)] if self.computed is not None else [])
        view, at = memoryview(text), start
        for tries, match in enumerate(SUM.finditer(text, start)):
            for state in states:
                state.update(view[at : match.start()])
            at = match.start()
            wanted = match[1].decode()
            fits = any(state.hexdigest()[:32] == wanted for state in states)
            if fits or (self.expected == 0 and tries < _PLACES):  # a fork's header chains on its parent's sum
                line = text[start : match.end()]
                event = decode(line, offset)
                if event is not None and event.seq == self.expected and self.fits(event, line):
                    return event, line
        return None

    def trailing_event(self, rest: bytes, offset: int) -> tuple[int, Event | None]:
        """Where in ``rest`` an event begins that reaches to its end and counts; else its length and None."""
        places: list[int] = []
        place = len(rest)
        while len(places) < _PLACES and (place := rest.rfind(_SEQ, 0, place + len(_SEQ) - 1 if places else place)) >= 0:
            places.append(place)
        for place in reversed(places):
            event = decode(rest[place:], offset + place)
            if event is not None and (event.seq == self.expected or self.fits(event, rest[place:])):
                return place, event
        return len(rest), None

    def oversized(self, offset: int, length: int) -> None:
        """A line of more than 16 MiB: looked at in pieces, never held whole."""
        if offset in self.excluded:  # pragma: no cover - a line that long is never a valid one
            return
        head = self.source.read(offset, MAX_LINE)
        if offset == 0 and head.startswith(BOM):
            self.bom, head, offset, length = True, head[3:], 3, length - 3
        taken, seam = self.leading(head, offset)
        start = max(offset + taken, offset + length - MAX_LINE)
        rest = self.source.read(start, offset + length - start).rstrip(b"\r")
        place, event = self.trailing_event(rest, start)
        span = start + place - (offset + taken)
        nul = any(
            b"\0" in self.source.read(at, min(CHUNK, offset + length - at))
            for at in range(offset + taken, start + place, CHUNK)
        )
        self.damage(offset, taken, span, nul, reports.oversized(length), seam)
        if event is not None:
            self.valid(event, rest[place:], offset + length + 1, reported=True)

    def damage(self, offset: int, taken: int, span: int, nul: bool, what: str, seam: int) -> None:
        """Report the bad bytes of a line that begins at ``offset``: ``span`` of them behind the ``taken`` good ones.

        Where there are none, two events are welded ``seam`` bytes into the line.
        """
        at = offset + (taken if span else seam)
        if self.nuls is not None:
            self.nuls_commit()
        if self.batch is not None:
            self.batch_damaged = True
            self.batch_plain_damage |= not nul
        if nul:
            self.nuls_chain = self.chain()
            self.nuls = _Frame(self.batch or self, self.source, at)
            self.nuls_deltas = 0
            self.nuls_lf_missing = taken > 0
        finding = reports.damaged(at, span, what)
        self.frame().report(finding)
        if span:
            self.frame().span(Span(at, span))
            self.after_damage = True
            self.bad_finding = finding
            if not taken:
                self.bad_at_end += 1

    # ------------------------------------------------------------ what may belong to a torn tail

    def settle(self, event: Event) -> None:
        """A valid line decides what was open before it, and may open a batch."""
        self.batch_step(event)
        if self.nuls is not None and event.type != "assistant/delta":
            self.nuls_commit()
        elif self.nuls is not None:
            self.nuls_deltas += 1

    def batch_step(self, event: Event) -> None:
        """Follow the lines of atomic batches: they are held until the last of them."""
        if self.batch is not None:
            follows = event.more == self.batch_more - 1 or (self.batch_damaged and event.more < self.batch_more)
            if follows:
                self.batch_more = event.more
                return
            first = self.batch_first
            if self.nuls is not None:
                self.nuls_commit()
            if first is not None and not self.batch_damaged and event.type != "journal/gap":
                self.batch.report(reports.unfinished_batch(first))
            self.batch_commit()
        if event.more:
            if self.nuls is not None:
                self.nuls_commit()
            self.batch_chain = self.chain()
            self.batch = _Frame(self, self.source, event.offset)
            self.batch_more = event.more
            self.batch_damaged = self.batch_plain_damage = False
            self.batch_first = event

    def batch_commit(self) -> None:
        if self.nuls is not None:
            self.nuls_commit()
        batch, self.batch = self.batch, None
        if batch is not None:
            batch.commit()

    def nuls_commit(self) -> None:
        nuls, self.nuls = self.nuls, None
        if nuls is not None:
            nuls.commit()

    # ------------------------------------------------------------ the end

    def finish(self, trailing: tuple[int, bytes, int] | None) -> ScanResult:
        result, size = self.result, self.source.size
        lf_missing = False
        cut = size
        if trailing is not None:
            offset, text, length = trailing
            cut, lf_missing = self.unended(offset, text, length)
        if self.nuls is not None and self.nuls_deltas and self.nuls_chain is not None:
            cut, lf_missing = self.nuls.offset, self.nuls_lf_missing
            self.nuls = None
            self.restore(self.nuls_chain)
        elif self.nuls is not None:
            self.nuls_commit()
        if self.batch is not None and not self.batch_plain_damage and self.batch_chain is not None:
            cut, lf_missing = self.batch.offset, False
            self.batch = None
            self.restore(self.batch_chain)
        elif self.batch is not None:
            self.batch_commit()
        if result.events == 0:
            self.report(reports.empty(size))
            self.notices()
            return result
        if cut < size or lf_missing:
            result.tail = Tail(cut, size - cut, lf_missing)
            self.report(reports.torn(cut, size - cut))
        if self.bad_at_end:
            self.lost([(self.expected, self.expected + self.bad_at_end - 1)])
        result.next_seq = max(self.top, self.expected - 1 + self.bad_at_end) + 1
        result.head = Mark(self.end, self.expected - 1, self.written.decode())
        result.last_ts = self.last_ts
        result.spans = result.spans.without(self.gap_spans)
        result.missing = [pair for pair in result.missing if pair[0] not in self.gap_missing]
        self.notices()
        return result

    def unended(self, offset: int, text: bytes, length: int) -> tuple[int, bool]:
        """What follows the last LF: where the tail begins, and whether a kept line lacks its LF."""
        begin = offset
        if offset == 0 and text.startswith(BOM):
            self.bom, text, begin = True, text[3:], 3
        found = self.whole(text[: MAX_LINE + 4], 0, begin) if not self.after_damage else None
        if found is None or found[0].more or (self.batch is not None and self.batch_more != 1):
            return offset, False
        event, line = found
        taken = len(line)
        if self.nuls is not None and event.type != "assistant/delta":
            self.nuls_commit()
        self.valid(event, line, begin + taken)
        if not text[taken:].strip(b"\r") and begin + taken + len(text[taken:]) == self.source.size:
            return self.source.size, True
        return begin + taken, True

    def notices(self) -> None:
        header = self.result.header
        if self.bom:
            self.report(reports.bom())
        if self.crlf:
            self.report(reports.crlf(self.crlf[0], self.crlf_count))
        if self.blank:
            self.report(reports.blank(self.blank[0], self.blank_count))
        if header is not None and self.name is not None and header.data.get("session_id") != self.name:
            self.report(reports.other_session(header, self.name))
        self.result.findings = accept(self.result.findings, self.result.accepted)
