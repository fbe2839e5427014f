"""What the scan says of whole, cut, changed and mixed-up files: docs/format.md, "Reading a file that is not whole"."""

import hashlib
import json
import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from maka.journal.events import Event
from maka.journal.findings import Finding, verdict_of
from maka.journal.scan import Mark, ScanResult, Span, Tail, accept, scan
from maka.journal.source import BytesSource
from support.builder import Builder, seal

NUL = b"\0"


def run(raw: bytes, name: str | None = None) -> tuple[ScanResult, list[Event]]:
    events: list[Event] = []

    def begin() -> Callable[[Event], None]:
        events.clear()
        return events.append

    return scan(BytesSource(raw), begin, name=name), events


def lines(*parts: bytes) -> bytes:
    return b"".join(part + b"\n" for part in parts)


def codes(result: ScanResult) -> list[str]:
    return [finding.code for finding in result.findings]


def only(result: ScanResult) -> Finding:
    (finding,) = result.findings
    return finding


@pytest.fixture
def three() -> Builder:
    return Builder().plain_turn().tool_turn().plain_turn()


def test_a_healthy_journal_gives_its_events_and_no_findings(three: Builder) -> None:
    result, events = run(three.raw(), "s1")
    assert not result.findings
    assert [event.seq for event in events] == list(range(len(three.lines)))
    assert all(event.verified for event in events)
    assert result.events == len(three.lines) == result.next_seq
    assert result.head == Mark(len(three.raw()), len(three.lines) - 1, three.prev)
    assert result.header is not None
    assert result.header.data["session_id"] == "s1"
    offset = 0
    for event, line in zip(events, three.lines, strict=True):
        assert three.raw()[event.offset : event.offset + event.length] == line
        assert event.offset == offset
        offset += len(line) + 1


# ---------------------------------------------------------------- tails


def test_a_whole_last_event_without_its_lf_is_kept(three: Builder) -> None:
    raw = three.raw()[:-1]
    result, events = run(raw)
    assert len(events) == len(three.lines)
    assert result.tail == Tail(len(raw), 0, True)
    assert (only(result).code, only(result).length) == ("torn_tail", 0)
    assert verdict_of(result.findings) == "interrupted"


def test_bytes_behind_a_whole_last_event_are_the_tail(three: Builder) -> None:
    raw = three.raw()[:-1] + b"XX"
    result, events = run(raw)
    assert len(events) == len(three.lines)
    assert result.tail == Tail(len(raw) - 2, 2, True)


def test_an_unfinished_batch_is_the_tail_from_its_first_line() -> None:
    journal = Builder().plain_turn()
    whole = len(journal.raw())
    journal.start()
    raw = lines(*journal.lines[:-1])
    result, events = run(raw)
    assert result.tail == Tail(whole, len(raw) - whole, False)
    assert len(events) == len(journal.lines) - 2
    assert verdict_of(result.findings) == "torn"


def test_damage_in_an_unfinished_batch_keeps_the_batch() -> None:
    journal = Builder().plain_turn().start()
    raw = lines(*journal.lines[:-1]) + b"no event\n"
    result, events = run(raw)
    assert result.tail is None
    assert codes(result) == ["damaged_line"]
    assert len(events) == len(journal.lines) - 1


def test_nuls_in_an_unfinished_batch_belong_to_the_tail() -> None:
    journal = Builder().plain_turn()
    whole = len(journal.raw())
    journal.start()
    raw = lines(*journal.lines[:-1]) + NUL * 40 + b"\n"
    result, _ = run(raw)
    assert result.tail == Tail(whole, len(raw) - whole, False)
    assert not result.spans


@pytest.mark.parametrize("welded", [b"", b'{"seq":9,"ts":1'])
def test_nuls_that_only_deltas_follow_are_the_tail(welded: bytes) -> None:
    journal = Builder().start().step()
    whole = len(journal.raw())
    journal.delta("a").delta("b")
    raw = lines(*journal.lines[:-2], welded + NUL * 99, *journal.lines[-2:])
    result, events = run(raw)
    assert result.tail == Tail(whole, len(raw) - whole, False)
    assert len(events) == len(journal.lines) - 2
    assert codes(result) == ["torn_tail"]


def test_a_whole_event_before_such_nuls_is_kept() -> None:
    journal = Builder().start().step()
    end = len(journal.raw()) - 1
    journal.delta("a")
    raw = lines(*journal.lines[:-2], journal.lines[-2] + NUL * 9, journal.lines[-1])
    result, events = run(raw)
    assert result.tail == Tail(end, len(raw) - end, True)
    assert len(events) == len(journal.lines) - 1


def test_nuls_that_other_events_follow_are_damage() -> None:
    journal = Builder().start().step().delta("a").says()
    raw = lines(*journal.lines[:-2], NUL * 400, *journal.lines[-2:])
    result, events = run(raw)
    assert result.tail is None
    assert only(result).code == "damaged_line"
    assert list(result.spans) == [Span(only(result).offset or 0, 400)]
    assert len(events) == len(journal.lines)


def test_nuls_at_the_end_with_an_lf_are_damage_and_without_are_a_tail(three: Builder) -> None:
    assert codes(run(three.raw() + NUL * 9 + b"\n")[0]) == ["damaged_line"]
    assert codes(run(three.raw() + NUL * 9)[0]) == ["torn_tail"]


@pytest.mark.parametrize("raw", [b"", b"\n", b"\r\n\n", b"\xff" * 99, b"junk\n" * 5, Builder().lines[0][:70]])
def test_a_file_without_an_event_is_empty(raw: bytes) -> None:
    result, events = run(raw)
    assert "empty" in codes(result)
    assert result.tail is None
    assert not events
    assert verdict_of(result.findings) == "unreadable"


def test_a_cut_never_takes_the_only_event() -> None:
    line, _ = seal("0" * 32, {"seq": 0, "ts": 1, "type": "x-a/b", "data": {}, "more": 1})
    assert codes(run(line + b"\n")[0]) == ["empty"]


# ---------------------------------------------------------------- damage


@pytest.mark.parametrize("at", range(1, 30))
def test_half_a_line_loses_that_event_alone(three: Builder, at: int) -> None:
    kept = list(three.lines)
    kept[at] = kept[at][: len(kept[at]) // 2]
    result, events = run(lines(*kept))
    assert "damaged_line" in codes(result)
    assert [event.seq for event in events] == [n for n in range(30) if n != at]
    assert result.missing == [(at, at)]
    if at < 29:
        assert result.unverified == [at + 1]
        assert f"event {at} is missing" in result.findings[0].message
    assert result.next_seq == 30


def test_an_inserted_bad_line_loses_nothing_and_says_so(three: Builder) -> None:
    result, events = run(lines(*three.lines[:6], b"note to self", *three.lines[6:]))
    assert len(events) == 30
    assert not result.missing
    assert not result.unverified
    assert "no event is missing" in only(result).message


def test_two_welded_events_are_both_found_with_nothing_to_set_aside(three: Builder) -> None:
    seam = len(lines(*three.lines[:6])) + len(three.lines[6])
    result, events = run(lines(*three.lines[:6], three.lines[6] + three.lines[7], *three.lines[8:]))
    assert len(events) == 30
    assert (only(result).code, only(result).offset, only(result).length) == ("damaged_line", seam, 0)
    assert not result.spans
    assert not result.unverified


def test_bytes_between_welded_events_are_the_span(three: Builder) -> None:
    result, events = run(lines(*three.lines[:6], three.lines[6] + b"junk" + three.lines[7], *three.lines[8:]))
    assert len(events) == 30
    assert [span.length for span in result.spans] == [4]


def test_a_stub_before_a_whole_event_is_the_span(three: Builder) -> None:
    result, events = run(lines(*three.lines[:6], b'{"seq":6,"ts":17,"type":"st' + three.lines[6], *three.lines[7:]))
    assert len(events) == 30
    assert [span.length for span in result.spans] == [27]


def test_damaged_lines_at_the_end_are_counted_into_the_next_number(three: Builder) -> None:
    result, _ = run(three.raw() + b"x\ny\n")
    assert result.next_seq == 32
    assert result.missing == [(30, 31)]


def test_removed_lines_are_a_gap(three: Builder) -> None:
    result, _ = run(lines(*three.lines[:4], *three.lines[6:]))
    finding = only(result)
    assert (finding.code, finding.seq) == ("seq_gap", 6)
    assert finding.offset == len(lines(*three.lines[:4]))
    assert result.missing == [(4, 5)]
    assert result.unverified == [6]


@pytest.mark.parametrize("number", [b"2", b"9", b"999"])
def test_a_changed_number_is_not_believed(three: Builder, number: bytes) -> None:
    changed = three.lines[6].replace(b'{"seq":6', b'{"seq":' + number)
    result, events = run(lines(*three.lines[:6], changed, *three.lines[7:]))
    assert only(result).code == "sum_mismatch"
    assert [event.seq for event in events] == list(range(30))
    assert not result.missing
    assert result.unverified == [6]


def test_a_changed_number_is_not_believed_where_lines_end_with_cr_lf(three: Builder) -> None:
    changed = [line.replace(b'{"seq":6', b'{"seq":60') for line in three.lines[:7]] + three.lines[7:]
    result, events = run(b"".join(line + b"\r\n" for line in changed))
    assert codes(result) == ["sum_mismatch", "crlf"]
    assert [event.seq for event in events] == list(range(30))


@pytest.mark.parametrize("where", ["data", "sum"])
def test_one_changed_byte_gives_one_finding(three: Builder, where: str) -> None:
    line = three.lines[6]
    digit = b"1" if line[-10:-9] == b"0" else b"0"
    changed = line.replace(b'"t1"', b'"t7"') if where == "data" else line[:-10] + digit + line[-9:]
    result, events = run(lines(*three.lines[:6], changed, *three.lines[7:]))
    assert only(result).code == "sum_mismatch"
    assert not events[6].verified
    assert len(events) == 30


def test_a_lost_header_is_found(three: Builder) -> None:
    result, events = run(lines(*three.lines[1:]))
    assert only(result).code == "missing_header"
    assert (result.header, len(events)) == (None, 29)
    assert result.missing == [(0, 0)]
    assert set(codes(run(lines(b"junk", *three.lines[1:]))[0])) == {"damaged_line", "missing_header"}


def test_a_line_beyond_the_limit_is_never_decoded_and_the_rest_is_read(three: Builder) -> None:
    wide = b'{"seq":6,"ts":1,"type":"x-a/b","data":{"a":"' + b"a" * (17 << 20) + b'"}}'
    result, events = run(lines(*three.lines[:6], wide, *three.lines[6:]))
    assert only(result).code == "damaged_line"
    assert list(result.spans) == [Span(len(lines(*three.lines[:6])), len(wide))]
    assert len(events) == 30


def test_deep_data_is_damage_and_no_recursion_error() -> None:
    journal = Builder()
    for depth in (199, 200, 201, 900, 5000):
        data = b'{"a":' * depth + b"1" + b"}" * depth
        body = b'{"seq":%d,"ts":1,"type":"x-a/b","data":%b' % (journal.seq, data)
        total = hashlib.sha256(journal.prev.encode() + body).hexdigest()[:32]
        result, events = run(lines(*journal.lines, body + b',"sum":"%b"}' % total.encode()))
        assert (len(events) == 2) == (depth <= 200), depth
        assert codes(result) == ([] if depth <= 200 else ["damaged_line"])


# ---------------------------------------------------------------- two writers


def forked() -> tuple[Builder, Builder, int]:
    left, right = Builder().plain_turn("a"), Builder().plain_turn("a")
    common = len(left.lines)
    left.plain_turn("left")
    right.plain_turn("right").plain_turn("more")
    return left, right, common


@pytest.mark.parametrize("interleaved", [False, True])
def test_of_two_branches_the_one_with_the_last_line_stays(interleaved: bool) -> None:
    left, right, common = forked()
    ours, theirs = right.lines[common:], left.lines[common:]
    mixed = theirs + ours
    if interleaved:
        mixed = [line for pair in zip(theirs, ours, strict=False) for line in pair] + ours[len(theirs) :]
    result, events = run(lines(*left.lines[:common], *mixed))
    assert [event.sum for event in events] == [line[-34:-2].decode() for line in right.lines]
    lost = [line for line in theirs if line not in ours]
    conflicts = [finding for finding in result.findings if finding.code == "seq_conflict"]
    assert [finding.length for finding in conflicts] == [len(line) for line in lost]
    assert [span.length for span in result.spans] == [len(line) for line in lost]
    assert verdict_of(result.findings) == "damaged"


def test_a_changed_copy_beside_its_original_is_the_one_that_goes(three: Builder) -> None:
    changed = three.lines[6].replace(b'"t1"', b'"t7"')
    result, events = run(lines(*three.lines[:6], changed, *three.lines[6:]))
    assert only(result).code == "seq_conflict"
    assert all(event.verified for event in events)
    assert len(events) == 30


def test_a_copied_line_is_noise_wherever_it_stands(three: Builder) -> None:
    for at in range(1, 30):
        result, events = run(lines(*three.lines, three.lines[at]))
        assert codes(result) == ["duplicate_line"]
        assert len(events) == 30
    assert set(codes(run(three.raw() * 2)[0])) == {"duplicate_line"}


# ---------------------------------------------------------------- what is tolerated


def test_crlf_and_bom_are_reported_once_and_not_tampering(three: Builder) -> None:
    result, events = run(b"\xef\xbb\xbf" + three.raw(b"\r\n"))
    assert {finding.code: finding.count for finding in result.findings} == {"bom": None, "crlf": 30}
    assert all(event.verified for event in events)
    assert events[0].offset == 3
    assert verdict_of(result.findings) == "healthy"


def test_blank_lines_are_passed_over(three: Builder) -> None:
    result, events = run(lines(*three.lines[:3], b"", b"  ", *three.lines[3:]))
    assert codes(result) == ["blank_line"]
    assert len(events) == 30


def test_lone_surrogates_are_read_as_replacement_characters() -> None:
    journal = Builder().start()
    body = json.dumps({"seq": 3, "ts": 1, "type": "x-a/b", "data": {"a": "x\udcb2"}}, separators=(",", ":"))[
        :-1
    ].encode()
    total = hashlib.sha256(journal.prev.encode() + body).hexdigest()[:32]
    result, events = run(lines(*journal.lines, body + b',"sum":"%b"}' % total.encode()))
    assert codes(result) == ["lossy_text"]
    assert events[-1].data == {"a": "x\ufffd"}


def test_separators_inside_strings_are_content() -> None:
    text = "a\u2028b\u2029c\u0085d\x0be\rf"
    result, events = run(Builder().plain_turn(text).raw())
    assert not result.findings
    assert events[2].data["content"][0]["text"] == text


def test_another_directory_than_the_header_says_is_a_notice(three: Builder) -> None:
    assert codes(run(three.raw(), "other")[0]) == ["session_id_mismatch"]


# ---------------------------------------------------------------- what a later version wrote


def test_a_newer_format_is_unsupported_only_if_its_sum_fits() -> None:
    journal = Builder(format=2)
    assert codes(run(journal.raw())[0]) == ["unsupported_format"]
    alien, _ = seal("0" * 32, {"seq": 0, "ts": 1, "type": "session/header", "data": {"format": 7, "alien": True}})
    assert codes(run(alien + b"\n")[0]) == ["unsupported_format"]
    changed = Builder().plain_turn()
    raw = lines(changed.lines[0].replace(b'"format":1', b'"format":2'), *changed.lines[1:])
    assert codes(run(raw)[0]) == ["sum_mismatch"]


def test_unknown_types_are_kept_and_only_required_ones_are_unsupported() -> None:
    journal = Builder()
    journal.add("future/optional", {}, ignorable=True)
    journal.add("x-team/task", {"a": 1})
    assert not run(journal.raw())[0].findings
    journal.add("future/required", {})
    result, events = run(journal.raw())
    assert codes(result) == ["unsupported_event"]
    assert len(events) == 4
    raw = lines(*journal.lines[:3], journal.lines[3].replace(b"required", b"requirEd"))
    assert codes(run(raw)[0]) == ["sum_mismatch"]


def test_a_batch_that_is_not_finished_is_out_of_order() -> None:
    journal = Builder()
    journal.add("x-a/b", {}, more=2)
    journal.add("x-a/b", {}, more=1)
    journal.plain_turn()
    result, events = run(journal.raw())
    assert codes(result) == ["turn_order"]
    assert result.findings[0].seq == 1
    assert len(events) == len(journal.lines)


# ---------------------------------------------------------------- salvage


def test_what_a_gap_accepts_is_a_notice_and_other_damage_is_not(three: Builder) -> None:
    raw = lines(*three.lines[:6], b"junk", *three.lines[6:])
    finding = only(run(raw)[0])
    gap = {"spans": [{"offset": finding.offset, "length": 4, "sha256": "0" * 64, "file": "x"}], "missing": []}
    three.add("journal/gap", {**gap, "unverified": [], "accepted": [{"code": finding.code, "offset": finding.offset}]})
    after = raw + three.lines[-1] + b"\n"
    result, _ = run(after)
    assert [(f.code, f.was, f.severity) for f in result.findings] == [("accepted", "damaged_line", "notice")]
    assert not result.spans
    assert verdict_of(result.findings) == "healthy"
    assert verdict_of(run(after + b"new junk\n")[0].findings) == "damaged"


@pytest.mark.parametrize("value", [[1], ["x"], [{}], [{"code": 1, "offset": "a"}], [[["a"]]]])
def test_a_gap_may_hold_anything(value: list[object]) -> None:
    journal = Builder()
    journal.add("journal/gap", {"spans": value, "missing": value, "unverified": value, "accepted": value})
    assert not run(journal.raw())[0].findings


def test_accept_leaves_other_places_alone() -> None:
    finding = Finding("damaged_line", "x", offset=7)
    assert accept([finding], {("damaged_line", 8), ("seq_gap", 7)}) == [finding]


# ---------------------------------------------------------------- much of it


def test_a_long_batch_is_read_again_where_it_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Builder()
    for more in range(49, -1, -1):
        journal.add("x-a/b", {"n": more}, more=more)
    want = [event.to_json() for event in run(journal.raw())[1]]
    assert len(want) == 51
    monkeypatch.setattr("maka.journal.scan._HELD", 3)
    result, events = run(journal.raw())
    assert not result.findings
    assert [event.to_json() for event in events] == want
    cut, events = run(journal.raw()[:-1500])
    assert len(events) == 1
    assert cut.tail is not None


@pytest.mark.parametrize(
    "grow",
    [
        pytest.param(lambda n: lines(*long(2).lines[:2], b"".join(long(n).lines[2:])), id="welded"),
        pytest.param(lambda n: lines(*long(n).lines, *long(n).lines), id="all twice"),
        pytest.param(lambda n: lines(*long(200).lines, *long(200).lines[3:200:40] * n), id="a few, many times"),
        pytest.param(lambda n: lines(*long(4).lines, *(b"x" for _ in range(n)), b"y"), id="bad lines"),
    ],
)
def test_the_work_grows_with_the_file_and_no_faster(grow: Callable[[int], bytes]) -> None:
    assert executed(grow(400)) < 2.6 * executed(grow(200))


def long(count: int) -> Builder:
    journal = Builder()
    for n in range(count):
        journal.add("x-a/b", {"n": n})
    return journal


def executed(raw: bytes) -> int:
    """How many lines of code run while a file is scanned: no time, so no chance."""
    source, count = BytesSource(raw), 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        scan(source, lambda: lambda event: None)
    finally:
        sys.settrace(None)
    return count


# ---------------------------------------------------------------- every byte


def realistic() -> Builder:
    journal = (
        Builder().plain_turn("grüße 日本").tool_turn().start().step().delta("Hel").delta("lo").says("", ["a", "b"])
    )
    journal.call("b")
    return journal.result("b")


def test_cut_at_every_length() -> None:
    journal = realistic()
    raw = journal.raw()
    ends: list[int] = []  # behind each line that may be the last: it does not leave a batch unfinished
    offset = 0
    for line in journal.lines:
        offset += len(line) + 1
        ends.append(offset if b',"more":' not in line[-60:] else -1)
    for size in range(len(raw)):
        result, events = run(raw[:size])
        # What must stand: whole lines (the last may lack its LF) that end their batch.
        stand = max((n + 1 for n, end in enumerate(ends) if 0 < end <= size + 1), default=0)
        assert len(events) == stand, size
        if not stand:
            assert codes(result) == ["empty"]
        elif size == ends[stand - 1]:
            assert not result.findings
        else:
            keep = min(ends[stand - 1], size)
            assert result.tail is not None
            lf = size == ends[stand - 1] - 1
            assert (result.tail.offset, result.tail.length, result.tail.lf_missing) == (keep, size - keep, lf), size
            assert codes(result) == ["torn_tail"]


@pytest.mark.parametrize("flip", [0x01, 0x20, 0x80, 0xFF])
def test_flip_of_every_byte_is_found_and_costs_one_event_at_most(flip: int) -> None:
    journal = realistic()
    raw = journal.raw()
    want = [line[-34:-2].decode() for line in journal.lines]
    places = range(len(raw)) if flip == 0x01 else random.Random(flip).sample(range(len(raw)), 600)
    for place in places:
        changed = bytearray(raw)
        changed[place] ^= flip
        result, events = run(bytes(changed))
        assert verdict_of(result.findings) in ("damaged", "torn"), (place, codes(result))
        got = [event.sum for event in events]
        lost = [sum_ for sum_ in want if sum_ not in got]
        # A changed LF may cost the line behind it where the welded one no longer reaches to the end.
        assert len(lost) <= 2 if raw[place : place + 1] == b"\n" else len(lost) <= 1, (place, codes(result))
        assert len(result.findings) <= 2, (place, codes(result))


def test_two_flips_never_raise_and_are_always_found() -> None:
    journal = realistic()
    raw = journal.raw()
    rng = random.Random(7)
    for _ in range(3000):
        changed = bytearray(raw)
        for _ in range(rng.randint(2, 6)):
            changed[rng.randrange(len(raw))] ^= rng.randint(1, 255)
        if bytes(changed) != raw:
            result, _ = run(bytes(changed))
            assert verdict_of(result.findings) != "healthy"


def test_scanning_goes_on_behind_a_mark(three: Builder) -> None:
    at = 12
    mark = Mark(len(lines(*three.lines[:at])), at - 1, three.lines[at - 1][-34:-2].decode())
    events: list[Event] = []
    result = scan(BytesSource(three.raw()), lambda: events.append, after=mark)
    assert not result.findings
    assert [event.seq for event in events] == list(range(at, 30))


def test_chunks_may_end_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = realistic().raw()
    want = [event.to_json() for event in run(raw)[1]]
    for size in (1, 7, 64, 301):
        monkeypatch.setattr("maka.journal.source.CHUNK", size)
        assert [event.to_json() for event in run(raw)[1]] == want
