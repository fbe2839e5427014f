"""Lines of a foreign file: what holds an object, where it stands, and what is wrong with the rest."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maka.journal import source as sources
from maka.journal.codec import check_shape, serialize
from maka.journal.events import Draft
from maka.journal.foreign.detect import detect
from maka.journal.foreign.findings import Report
from maka.journal.foreign.lines import Line, at, objects
from maka.journal.proof import MAX_LINE
from maka.journal.source import BytesSource


def read(data: bytes) -> tuple[list[Line], list[tuple[str, int | None, int | None, int | None]]]:
    report = Report()
    lines = list(objects(BytesSource(data), report))
    return lines, [(each.code, each.line, each.offset, each.length) for each in report.findings]  # type: ignore[attr-defined]


def values(data: bytes) -> list[dict[str, Any]]:
    return [line.value for line in read(data)[0]]


def test_places() -> None:
    data = b'{"a":1}\n\n{"b":2}\n  \n{"c":3}'
    lines, findings = read(data)
    assert [(line.place.line, line.place.offset, line.place.length) for line in lines] == [
        (1, 0, 7),
        (3, 9, 7),
        (5, 20, 7),
    ]
    assert [data[line.place.offset :][: line.place.length] for line in lines] == [b'{"a":1}', b'{"b":2}', b'{"c":3}']
    assert findings == []


def test_a_last_line_without_an_end_is_whole_if_it_is_an_object() -> None:
    assert values(b'{"a":1}\n{"b":2}') == [{"a": 1}, {"b": 2}]


@pytest.mark.parametrize("tail", [b'{"b":', b"{", b'{"b":"\xc3', b"\x00\x00"])
def test_half_a_line_at_the_end(tail: bytes) -> None:
    lines, findings = read(b'{"a":1}\n' + tail)
    assert ([line.value for line in lines], findings) == ([{"a": 1}], [("torn_tail", 2, 8, len(tail))])


@pytest.mark.parametrize("line", [b"nonsense", b'{"b":', b"[1]", b"3", b"null", b'"text"', b"\xff\xfe", b"{}{}"])
def test_a_bad_line_is_told_and_passed(line: bytes) -> None:
    lines, findings = read(b'{"a":1}\n' + line + b'\n{"c":3}\n')
    assert [each.value for each in lines] == [{"a": 1}, {"c": 3}]
    assert findings == [("bad_line", 2, 8, len(line))]


@pytest.mark.parametrize("last", [b"[1]", b"3"])
def test_a_last_line_that_is_whole_and_no_object_is_not_torn(last: bytes) -> None:
    assert read(last)[1] == [("bad_line", 1, 0, len(last))]


def test_every_line_counts_for_the_report() -> None:
    report = Report()
    list(objects(BytesSource(b'{"a":1}\nx\n\n{"b"'), report))
    assert report.lines == 4


def test_a_bom_and_carriage_returns() -> None:
    data = b'\xef\xbb\xbf{"a":1}\r\n\r\n{"b":2}\r\n'
    lines, findings = read(data)
    assert ([line.value for line in lines], findings) == ([{"a": 1}, {"b": 2}], [])
    assert [at(BytesSource(data), line.place) for line in lines] == [{"a": 1}, {"b": 2}]


def test_a_bom_anywhere_else_is_no_json() -> None:
    assert read(b'{"a":1}\n\xef\xbb\xbf{"b":2}\n')[1] == [("bad_line", 2, 8, 10)]


def test_a_line_is_read_again_at_its_place() -> None:
    source = BytesSource(b'{"a":1}\n{"b":"\xc3\xa9"}\n')
    _, second = objects(source, Report())
    assert at(source, second.place) == {"b": "é"}
    # The file is another one by now.
    assert at(BytesSource(b'{"a":1}\n[1,2]'), second.place) == {}


def test_lone_surrogates_are_replaced() -> None:
    data = b'{"a":"x\\ud800y","\\udc00":1,"pair":"\\ud83d\\ude00"}\n'
    assert values(data) == [{"a": "x\ufffdy", "\ufffd": 1, "pair": "\U0001f600"}]


def test_numbers_that_json_does_not_know() -> None:
    assert values(b'{"a":NaN,"b":[Infinity,-Infinity],"c":1}\n') == [{"a": None, "b": [None, None], "c": 1}]


def test_a_number_that_is_too_large_for_anything() -> None:
    lines, findings = read(b'{"a":1e999}\n{"b":' + b"9" * 10_000 + b"}\n")
    assert all(isinstance(line.value, dict) for line in lines)
    assert len(lines) + len(findings) == 2


@pytest.mark.parametrize("opens", [b"[", b'{"a":'])
def test_what_nests_too_deep_is_no_line(opens: bytes) -> None:
    closes = b"]" if opens == b"[" else b"}"
    for depth in (10_000, 300):
        line = b'{"x":' + opens * depth + b"1" + closes * depth + b"}"
        assert read(line + b"\n")[1] == [("bad_line", 1, 0, len(line))]


def test_the_deepest_line_fits_into_an_event() -> None:
    def nested(depth: int) -> bytes:
        return b'{"x":' + b"[" * depth + b"]" * depth + b"}\n"

    deepest = max(depth for depth in range(250) if values(nested(depth)))
    assert deepest > 150
    draft = Draft("x-foreign/line", {"value": values(nested(deepest))[0]}, True)
    check_shape(serialize(draft)[0])


def test_brackets_in_a_text_nest_nothing() -> None:
    assert len(values(b'{"x":"' + b"[" * 1_000 + b'"}\n')) == 1


def test_a_line_that_is_too_long_is_passed_with_what_stands_behind_it() -> None:
    long = b'{"x":"' + b"a" * (MAX_LINE + 10) + b'"}'
    lines, findings = read(b'{"a":1}\n' + long + b'\n{"b":2}\n')
    assert ([line.value for line in lines], findings) == ([{"a": 1}, {"b": 2}], [("bad_line", 2, 8, len(long))])
    assert [line.place.line for line in lines] == [1, 3]


def test_lines_across_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "CHUNK", 16)
    data = b"".join(json.dumps({"n": number, "pad": "x" * (number % 40)}).encode() + b"\n" for number in range(100))
    lines, findings = read(data)
    assert findings == []
    assert [line.value["n"] for line in lines] == list(range(100))
    assert [at(BytesSource(data), line.place) for line in lines] == [line.value for line in lines]


@given(st.binary(max_size=300))
def test_any_bytes_are_lines(data: bytes) -> None:
    lines, findings = read(data)
    assert len(lines) + len(findings) <= data.count(b"\n") + 1
    for line in lines:
        assert at(BytesSource(data), line.place) == line.value


def test_what_nests_too_deep_is_said_to() -> None:
    report = Report()
    deep = b'{"a":' + b"[" * 195 + b"]" * 195 + b"}"
    assert list(objects(BytesSource(deep + bytes([10])), report)) == []
    assert [finding.message for finding in report.findings] == ["the line nests deeper than 190 levels, or is no JSON"]


def test_a_file_is_known_by_a_first_line_of_many_megabytes() -> None:
    line = b'{"type":"user","sessionId":"s","parentUuid":null,"message":"' + b"x" * (12 << 20) + b'"}' + bytes([10])
    assert detect(BytesSource(line)) == "claude-code"
