"""Bad lines, sums and numbers, word by word (docs/format.md, "A line"), and what a salvage makes of them."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from support.answers import (
    codes,
    finding,
    inspect,
    maka,
    messages,
    refused,
    repair,
    settled,
    shown,
    untouched,
    verify,
)
from support.builder import Builder, seal


def join(lines: list[bytes], eol: bytes = b"\n") -> bytes:
    return b"".join(line + eol for line in lines)


def offset_of(lines: list[bytes], number: int) -> int:
    return len(join(lines[:number]))


def turns(count: int) -> Builder:
    builder = Builder()
    for number in range(count):
        builder.plain_turn(f"question {number}")
    return builder


def said(path: Path) -> list[str]:
    return [word for role, word in shown(path) if role == "user" and word.startswith("question")]


# ---------------------------------------------------------------- tolerated


@pytest.mark.parametrize("eol", [b"\n", b"\r\n"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("blank", [b"", b"\n", b"\r\n", b"   \n"])
def test_bom_crlf_and_blank_lines_are_notices(tmp_path: Path, eol: bytes, bom: bytes, blank: bytes) -> None:
    builder = turns(3)
    lines = builder.lines
    raw = bom + join(lines[:7], eol) + blank + join(lines[7:], eol)
    path = builder.write(tmp_path, raw)
    doc = untouched(path)
    expected = {"bom": bool(bom), "crlf": b"\r\n" in (eol, blank), "blank_line": bool(blank)}
    assert sorted(set(codes(doc))) == sorted(code for code, there in expected.items() if there)
    assert len(doc["findings"]) == sum(expected.values()), "reported once, with a count"
    if eol == b"\r\n":
        assert finding(doc, "crlf")["count"] >= len(lines)
    assert said(path) == ["question 0", "question 1", "question 2"]
    assert doc["events"] == len(lines)


def test_a_bom_anywhere_else_is_damage(tmp_path: Path) -> None:
    builder = turns(2)
    lines = list(builder.lines)
    lines[3] = b"\xef\xbb\xbf" + lines[3]
    path = builder.write(tmp_path, join(lines))
    doc = refused(path, "damaged")
    damaged = finding(doc, "damaged_line")
    assert (damaged["offset"], damaged["length"]) == (offset_of(lines, 3), 3)
    assert "seq_gap" not in codes(doc)
    assert doc["events"] == len(lines)
    settled(path, "--salvage")


@pytest.mark.parametrize("place", [0, 1, 5, -1])
@pytest.mark.parametrize("times", [1, 3])
def test_a_repeated_line_is_noise(tmp_path: Path, place: int, times: int) -> None:
    builder = turns(2)
    place %= len(builder.lines)
    lines = [*builder.lines[: place + 1], *[builder.lines[place]] * times, *builder.lines[place + 1 :]]
    path = builder.write(tmp_path, join(lines))
    doc = untouched(path)
    assert codes(doc) == ["duplicate_line"] * times
    assert doc["events"] == len(builder.lines)
    assert said(path) == ["question 0", "question 1"]


def test_a_whole_block_written_twice_is_noise(tmp_path: Path) -> None:
    builder = turns(3)
    lines = [*builder.lines[:13], *builder.lines[5:13], *builder.lines[13:]]
    path = builder.write(tmp_path, join(lines))
    doc = untouched(path)
    assert set(codes(doc)) == {"duplicate_line"}
    assert said(path) == [f"question {i}" for i in range(3)]


@pytest.mark.parametrize(
    "text",
    ["a\u2028b", "\u2029", "\u0085", "x\x0by", "x\x0cy", "cr\rcr", "nul\0", "\x7f\x1b[31m", "😀", "\ufeff", "\ue000"],
)
def test_separators_inside_strings_are_content(tmp_path: Path, text: str) -> None:
    path = Builder().plain_turn("question " + text).write(tmp_path)
    untouched(path)
    assert said(path) == ["question " + text]


@pytest.mark.parametrize("step", [-1, -10_000_000, 10**12])
def test_a_clock_that_steps_is_a_notice_at_most(tmp_path: Path, step: int) -> None:
    builder = Builder().plain_turn()
    builder.ts += step
    builder.plain_turn()
    doc = untouched(builder.write(tmp_path))
    assert codes(doc) == (["clock_skew"] if step < -10 else [])


def test_a_negative_time(tmp_path: Path) -> None:
    builder = Builder()
    builder.ts = -5_000
    builder.start().step()
    path = builder.write(tmp_path)
    repaired = settled(path)
    assert json.loads(repaired.after.splitlines()[-1])["ts"] == json.loads(builder.lines[-1])["ts"]


@pytest.mark.parametrize("escape", [b"\\udcb2", b"\\ud800", b"\\ud83d x", b"\\udfff\\ud800"])
def test_lone_surrogates_are_read(tmp_path: Path, escape: bytes) -> None:
    builder = Builder().start("question PLACE").step()
    line = builder.lines[-3]
    prev = json.loads(builder.lines[-4])["sum"]
    body = line[:-42].replace(b"PLACE", escape)
    import hashlib

    sums = hashlib.sha256(prev.encode() + body).hexdigest()[:32]
    builder.lines[-3] = body + b',"sum":"%s"}' % sums.encode()
    again = Builder()
    again.lines, again.prev, again.seq, again.turn = builder.lines[:-2], sums, builder.seq - 2, 1
    again.ts = builder.ts
    again.step().says().end_step().end()
    path = again.write(tmp_path)
    doc = untouched(path)
    assert codes(doc) == ["lossy_text"]
    assert "�" in said(path)[0]
    for command in ("inspect", "show", "tail"):
        assert maka("journal", command, path).code == 0
    inspect(path, "--events")


def test_the_session_id_of_another_directory_is_a_notice(tmp_path: Path) -> None:
    builder = Builder("other").plain_turn()
    builder.session_id = "s1"
    path = builder.write(tmp_path)
    doc = untouched(path)
    assert codes(doc) == ["session_id_mismatch"]
    assert doc["session_id"] == "other"


# ---------------------------------------------------------------- lost and broken


@pytest.mark.parametrize("place", [1, 2, 5, 8, 14, 20])
def test_a_removed_line_is_a_gap(tmp_path: Path, place: int) -> None:
    builder = turns(3)
    lines = builder.lines[:place] + builder.lines[place + 1 :]
    path = builder.write(tmp_path, join(lines))
    doc = refused(path, "damaged")
    gap = finding(doc, "seq_gap")
    assert gap["offset"] == offset_of(lines, place)
    assert verify(path)[0] == 4
    assert verify(path)[1]["unverified"] == [place + 1]
    repaired = settled(path, "--salvage")
    assert repaired.data[0]["missing"] == [[place, place]]
    assert repaired.data[0]["unverified"] == [place + 1]
    assert repaired.data[0]["spans"] == []
    assert {"code": "seq_gap", "offset": gap["offset"]} in repaired.data[0]["accepted"]


@pytest.mark.parametrize("count", [2, 5, 9])
def test_several_removed_lines_are_one_gap(tmp_path: Path, count: int) -> None:
    builder = turns(4)
    lines = builder.lines[:6] + builder.lines[6 + count :]
    path = builder.write(tmp_path, join(lines))
    doc = refused(path, "damaged")
    assert codes(doc).count("seq_gap") == 1
    assert settled(path, "--salvage").data[0]["missing"] == [[6, 5 + count]]


@pytest.mark.parametrize("place", [1, 4, 9, 14, -2])
@pytest.mark.parametrize("keep", [1, 20, 60])
def test_half_a_line_in_the_middle(tmp_path: Path, place: int, keep: int) -> None:
    builder = turns(3)
    place %= len(builder.lines)
    lines = list(builder.lines)
    lines[place] = lines[place][:keep]
    path = builder.write(tmp_path, join(lines))
    doc = refused(path, "damaged")
    damaged = finding(doc, "damaged_line")
    assert (damaged["offset"], damaged["length"]) == (offset_of(lines, place), keep)
    assert "seq_gap" not in codes(doc), "after a damaged line the next is unverified and not reported again"
    assert doc["events"] == len(lines) - 1
    assert verify(path)[1]["unverified"] == [place + 1]
    repaired = settled(path, "--salvage")
    gap = repaired.data[0]
    assert gap["missing"] == [[place, place]]
    assert gap["unverified"] == [place + 1]
    assert [(span["offset"], span["length"]) for span in gap["spans"]] == [(offset_of(lines, place), keep)]
    copied = (path.parent / gap["spans"][0]["file"]).read_bytes()
    assert copied == lines[place]
    import hashlib

    assert gap["spans"][0]["sha256"] == hashlib.sha256(copied).hexdigest()
    again = inspect(path)
    assert codes(again) == ["accepted"] * len(gap["accepted"])
    assert {row["was"] for row in again["findings"]} == {row["code"] for row in gap["accepted"]}


def test_an_extra_bad_line_loses_nothing(tmp_path: Path) -> None:
    """If the next line's sum fits the line before the damage, no event is missing and the message says so."""
    builder = turns(2)
    lines = [*builder.lines[:5], b"not an event", *builder.lines[5:]]
    path = builder.write(tmp_path, join(lines))
    doc = refused(path, "damaged")
    assert codes(doc) == ["damaged_line"]
    assert "no event is missing" in doc["findings"][0]["message"]
    assert verify(path)[1]["unverified"] == []
    repaired = settled(path, "--salvage")
    assert (repaired.data[0]["missing"], repaired.data[0]["unverified"]) == ([], [])


@pytest.mark.parametrize("nuls", [1, 400, 4096, 100_000])
def test_a_run_of_nuls_between_events(tmp_path: Path, nuls: int) -> None:
    builder = turns(2)
    lines = [*builder.lines[:9], b"\0" * nuls, *builder.lines[9:]]
    path = builder.write(tmp_path, join(lines))
    doc = refused(path, "damaged")
    assert finding(doc, "damaged_line")["length"] == nuls
    assert doc["events"] == len(builder.lines)
    settled(path, "--salvage")
    assert said(path) == ["question 0", "question 1"]


@pytest.mark.parametrize("stub", [1, 10, 40, 100])
@pytest.mark.parametrize("place", [3, 8, 15])
def test_a_stub_welded_to_a_whole_event(tmp_path: Path, stub: int, place: int) -> None:
    builder = turns(2)
    lines = list(builder.lines)
    piece = lines[place][:stub]
    lines[place] = piece + lines[place]
    path = builder.write(tmp_path, join(lines))
    doc = refused(path, "damaged")
    damaged = finding(doc, "damaged_line")
    assert (damaged["offset"], damaged["length"]) == (offset_of(lines, place), stub)
    assert doc["events"] == len(lines)
    assert [turn["status"] for turn in doc["turns"]] == ["completed", "completed"]
    repaired = settled(path, "--salvage")
    assert repaired.data[0]["missing"] == []
    assert len(repaired.doc["set_aside"]) == 1


@pytest.mark.parametrize("places", [[4], [4, 5], [2, 9], [3, 4, 5, 6]])
def test_events_welded_without_lf(tmp_path: Path, places: list[int]) -> None:
    """Nothing is left between them: a damaged line of length 0 at the seam, and no span."""
    builder = turns(2)
    raw = b""
    seams = []
    for number, line in enumerate(builder.lines):
        raw += line
        if number in places:
            seams.append(len(raw))
        else:
            raw += b"\n"
    path = builder.write(tmp_path, raw)
    doc = refused(path, "damaged")
    found = [f for f in doc["findings"] if f["code"] == "damaged_line"]
    assert all(f["length"] == 0 for f in found)
    assert found[0]["offset"] == seams[0]
    assert doc["events"] == len(builder.lines)
    repaired = settled(path, "--salvage")
    assert (repaired.data[0]["spans"], repaired.data[0]["missing"]) == ([], [])
    assert repaired.doc["set_aside"] == []


@pytest.mark.parametrize("junk", [b"junk", b"\0\0", b"\xff", b'{"seq":', b' {"a":1}'])
def test_junk_behind_a_whole_event(tmp_path: Path, junk: bytes) -> None:
    builder = turns(2)
    lines = list(builder.lines)
    lines[6] = lines[6] + junk
    path = builder.write(tmp_path, join(lines))
    doc = refused(path, "damaged")
    damaged = finding(doc, "damaged_line")
    assert damaged["offset"] == offset_of(builder.lines, 6) + len(builder.lines[6])
    assert damaged["length"] == len(junk)
    assert doc["events"] == len(lines)
    settled(path, "--salvage")


@pytest.mark.parametrize("piece", [17, 64, 100])
def test_two_interleaved_events(tmp_path: Path, piece: int) -> None:
    builder = turns(3)
    lines = list(builder.lines)
    one, two = lines[8] + b"\n", lines[9] + b"\n"
    woven = b"".join(one[i : i + piece] + two[i : i + piece] for i in range(0, max(len(one), len(two)), piece))
    raw = join(lines[:8]) + woven + join(lines[10:])
    path = builder.write(tmp_path, raw)
    doc = inspect(path)
    assert doc["verdict"] == "damaged"
    assert doc["head"]["sum"] == builder.prev
    settled(path, "--salvage")
    assert said(path)[0] == "question 0"
    assert said(path)[-1] == "question 2"


# ---------------------------------------------------------------- sums


@pytest.mark.parametrize("place", [0, 1, 5, 9, -1])
def test_one_changed_byte_gives_one_finding(tmp_path: Path, place: int) -> None:
    builder = turns(2)
    place %= len(builder.lines)
    lines = list(builder.lines)
    at = lines[place].index(b'"ts":') + 8
    lines[place] = lines[place][:at] + bytes([lines[place][at] ^ 1]) + lines[place][at + 1 :]
    path = builder.write(tmp_path, join(lines))
    doc = refused(path, "damaged")
    assert [code for code in codes(doc) if code != "clock_skew"] == ["sum_mismatch"]
    assert finding(doc, "sum_mismatch")["offset"] == offset_of(lines, place)
    assert doc["events"] == len(lines)
    assert verify(path)[1]["unverified"] == [place]
    repaired = settled(path, "--salvage")
    assert repaired.data[0]["unverified"] == [place]
    assert said(path) == ["question 0", "question 1"]


@pytest.mark.parametrize("place", [2, 7, -1])
def test_a_changed_sum_gives_one_finding(tmp_path: Path, place: int) -> None:
    builder = turns(2)
    place %= len(builder.lines)
    lines = list(builder.lines)
    digit = lines[place][-10:-9]
    lines[place] = lines[place][:-10] + (b"0" if digit != b"0" else b"1") + lines[place][-9:]
    path = builder.write(tmp_path, join(lines))
    doc = refused(path, "damaged")
    assert codes(doc) == ["sum_mismatch"]
    settled(path, "--salvage")


@pytest.mark.parametrize("number", ["0", "3", "7", "1000", "99999999999"])
@pytest.mark.parametrize("place", [3, 7, -1])
def test_a_changed_number_is_not_believed(tmp_path: Path, place: int, number: str) -> None:
    builder = turns(2)
    place %= len(builder.lines)
    lines = list(builder.lines)
    lines[place] = lines[place].replace(b'{"seq":%d,' % place, b'{"seq":%s,' % number.encode(), 1)
    if lines == builder.lines:
        return
    path = builder.write(tmp_path, join(lines))
    doc = inspect(path, "--events")
    assert doc["verdict"] == "damaged"
    last = place == len(lines) - 1
    if not last:
        assert codes(doc) == ["sum_mismatch"], "the next line carries the expected number + 1"
        assert [event["seq"] for event in doc["event_list"]] == list(range(len(lines)))
        assert doc["head"] == {"seq": len(lines) - 1, "sum": builder.prev}
    settled(path, "--salvage")


def test_tampered_content_is_shown_and_not_believed(tmp_path: Path) -> None:
    builder = turns(2)
    lines = [line.replace(b"question 0", b"question X") for line in builder.lines]
    path = builder.write(tmp_path, join(lines))
    doc = inspect(path)
    assert codes(doc) == ["sum_mismatch"]
    assert said(path) == ["question X", "question 1"]


# ---------------------------------------------------------------- two writers


def _branches(common: int = 1) -> tuple[Builder, list[bytes], list[bytes], list[bytes]]:
    """Lines in common, then those of two writers that both went on from there."""
    builder = turns(common)
    shared = list(builder.lines)
    state = (builder.prev, builder.seq, builder.ts, builder.turn)
    builder.plain_turn("question from A")
    one = builder.lines[len(shared) :]
    builder.prev, builder.seq, builder.ts, builder.turn = state
    builder.ts += 1
    builder.lines = list(shared)
    builder.plain_turn("question from B").plain_turn("question B again")
    return builder, shared, one, builder.lines[len(shared) :]


def test_two_writers_the_branch_of_the_last_line_stays(tmp_path: Path) -> None:
    builder, shared, one, two = _branches()
    lines = [*shared, *one, *two]
    path = builder.write(tmp_path, join(lines))
    doc = refused(path, "damaged")
    assert codes(doc) == ["seq_conflict"] * len(one)
    assert [f["offset"] for f in doc["findings"]] == [offset_of(lines, len(shared) + i) for i in range(len(one))]
    assert said(path) == ["question 0", "question from B", "question B again"]
    repaired = settled(path, "--salvage")
    assert [span["offset"] for span in repaired.data[0]["spans"]] == [f["offset"] for f in doc["findings"]]
    assert repaired.after.startswith(join(lines)), "the others stay in the file"
    assert len(repaired.doc["set_aside"]) == len(one)


def test_two_writers_interleaved(tmp_path: Path) -> None:
    builder, shared, one, two = _branches(2)
    woven = [line for pair in zip(one, two, strict=False) for line in pair] + two[len(one) :]
    path = builder.write(tmp_path, join([*shared, *woven]))
    doc = inspect(path)
    assert set(codes(doc)) == {"seq_conflict"}
    assert doc["head"]["sum"] == builder.prev
    assert said(path) == ["question 0", "question 1", "question from B", "question B again"]
    settled(path, "--salvage")


def test_an_old_copy_glued_behind_is_no_conflict(tmp_path: Path) -> None:
    """The same bytes again are duplicates, even all of them."""
    builder = turns(2)
    path = builder.write(tmp_path, builder.raw() * 2)
    doc = untouched(path)
    assert set(codes(doc)) == {"duplicate_line"}
    assert doc["events"] == len(builder.lines)


@pytest.mark.parametrize("behind", [6, 9, 12, 17])
def test_a_changed_copy_of_a_line_takes_nothing_with_it(tmp_path: Path, behind: int) -> None:
    """Its own sum fits nothing: the lines that do fit stand, all of them, and none of them is doubted."""
    builder = turns(2)
    copy = builder.lines[5].replace(b'"ts":17', b'"ts":18')
    lines = [*builder.lines[:behind], copy, *builder.lines[behind:]]
    path = builder.write(tmp_path, join(lines))
    doc = inspect(path, "--events")
    assert doc["verdict"] == "damaged"
    assert {f["offset"] for f in doc["findings"]} == {offset_of(lines, behind)}
    believed = [event["sum"] for event in doc["event_list"]]
    assert believed[: len(builder.lines)] == [json.loads(line)["sum"] for line in builder.lines]
    assert not set(verify(path)[1]["unverified"]) & set(range(len(builder.lines)))
    settled(path, "--salvage")


# ---------------------------------------------------------------- header


@pytest.mark.parametrize("drop", [1, 2, 3, 6])
def test_a_lost_header_is_rebuilt_into_the_gap(tmp_path: Path, drop: int) -> None:
    builder = Builder().tool_turn().plain_turn()
    path = builder.write(tmp_path, join(builder.lines[drop:]))
    doc = refused(path, "damaged")
    assert "missing_header" in codes(doc)
    assert doc["header"] is None
    assert doc["session_id"] == "s1"
    repaired = settled(path, "--salvage")
    header = repaired.data[0]["header"]
    wanted = {"format": 1, "session_id": "s1", "cwd": "/tmp", "backend": "fake", "model": "fake-model"}
    assert {key: header[key] for key in wanted} == wanted
    assert header["permission_mode"] == "ask"
    assert header["connection"] == ""
    assert set(header["created_by"]) == {"name", "version"}
    assert "tool_boundary" not in header
    again = inspect(path)
    assert again["header"] == header
    assert again["session_id"] == "s1"


def test_a_lost_header_and_no_run_gives_empty_strings(tmp_path: Path) -> None:
    builder = Builder()
    builder.add("session/note", {"kind": "x"})
    path = builder.write(tmp_path, join(builder.lines[1:]))
    repaired = settled(path, "--salvage")
    header = repaired.data[0]["header"]
    assert [header[key] for key in ("cwd", "backend", "model", "permission_mode", "connection")] == [""] * 5


def test_a_lost_header_of_a_loose_file_takes_its_name(tmp_path: Path) -> None:
    builder = Builder().plain_turn()
    path = tmp_path / "copied.jsonl"
    path.write_bytes(join(builder.lines[1:]))
    tmp_path.chmod(0o700)
    done = repair(path, "--salvage")
    assert done["appended"][0]["data"]["header"]["session_id"] == "copied"


def test_without_tool_boundary_a_call_that_was_only_requested_is_unknown(tmp_path: Path) -> None:
    builder = Builder().start().step().says("", ["c"])
    path = builder.write(tmp_path, join(builder.lines[1:]))
    repaired = settled(path, "--salvage")
    results = [data for kind, data in zip(repaired.types, repaired.data, strict=True) if kind == "tool/result"]
    assert [data["state"] for data in results] == ["unknown"]


def test_a_damaged_header_line(tmp_path: Path) -> None:
    builder = Builder().plain_turn()
    lines = list(builder.lines)
    lines[0] = lines[0][:50]
    path = builder.write(tmp_path, join(lines))
    doc = refused(path, "damaged")
    assert {"missing_header", "damaged_line"} <= set(codes(doc))
    settled(path, "--salvage")


# ---------------------------------------------------------------- shape


BAD_SHAPES: dict[str, Any] = {
    "no type": {"seq": 9, "ts": 1, "data": {}},
    "data is a list": {"seq": 9, "ts": 1, "type": "session/note", "data": []},
    "required key missing": {"seq": 9, "ts": 1, "type": "session/note", "data": {}},
    "required key of another kind": {"seq": 9, "ts": 1, "type": "session/note", "data": {"kind": 7}},
    "keys in another order": {"ts": 1, "seq": 9, "type": "session/note", "data": {"kind": "x"}},
    "number is text": {"seq": "9", "ts": 1, "type": "session/note", "data": {"kind": "x"}},
    "number is a float": {"seq": 9.0, "ts": 1, "type": "session/note", "data": {"kind": "x"}},
    "negative number": {"seq": -9, "ts": 1, "type": "session/note", "data": {"kind": "x"}},
    "ignorable is false": {"seq": 9, "ts": 1, "type": "x-a/b", "data": {}, "ignorable": False},
    "more is zero": {"seq": 9, "ts": 1, "type": "x-a/b", "data": {}, "more": 0},
    "more is text": {"seq": 9, "ts": 1, "type": "x-a/b", "data": {}, "more": "1"},
    "type without family": {"seq": 9, "ts": 1, "type": "note", "data": {}},
}


@pytest.mark.parametrize("name", BAD_SHAPES)
def test_a_wrong_shape_is_a_damaged_line(tmp_path: Path, name: str) -> None:
    builder = turns(1)
    event = BAD_SHAPES[name]
    event = {
        key: builder.seq if key == "seq" and value == 9 and type(value) is int else value
        for key, value in event.items()
    }
    line, prev = seal(builder.prev, event)
    builder.lines.append(line)
    builder.prev, builder.seq = prev, builder.seq + 1
    builder.plain_turn("question 1")
    path = builder.write(tmp_path)
    doc = inspect(path)
    if name == "type without family":
        assert doc["verdict"] in ("damaged", "unsupported")
        return
    assert doc["verdict"] == "damaged", name
    assert "damaged_line" in codes(doc)
    assert said(path) == ["question 0", "question 1"]
    settled(path, "--salvage")


@pytest.mark.parametrize("depth", [150, 199, 200, 201, 500, 3000, 100_000])
def test_depth(tmp_path: Path, depth: int) -> None:
    builder = turns(1)
    body = b'{"seq":%d,"ts":1,"type":"x-a/b","data":{"x":' % builder.seq + b"[" * depth + b"]" * depth + b"}"
    import hashlib

    total = hashlib.sha256(builder.prev.encode() + body).hexdigest()[:32].encode()
    builder.lines.append(body + b',"sum":"' + total + b'"}')
    path = builder.write(tmp_path)
    doc = inspect(path, "--events")
    for command in ("inspect", "show", "tail", "verify"):
        maka("journal", command, path)
    if depth < 199:
        assert doc["verdict"] == "healthy"
    if depth > 1024:
        assert doc["verdict"] == "damaged"
    if doc["verdict"] == "damaged":
        settled(path, "--salvage")
    else:
        untouched(path)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 30, "9" * 5000, "-0", "1.5e300"])
def test_strange_numbers(tmp_path: Path, number: str) -> None:
    builder = turns(1)
    body = b'{"seq":%d,"ts":1,"type":"x-a/b","data":{"x":%s}' % (builder.seq, number.encode())
    import hashlib

    total = hashlib.sha256(builder.prev.encode() + body).hexdigest()[:32].encode()
    builder.lines.append(body + b',"sum":"' + total + b'"}')
    builder.seq, builder.prev = builder.seq + 1, total.decode()
    builder.start("question 1").step()
    path = builder.write(tmp_path)
    doc = inspect(path, "--events")
    assert doc["verdict"] in ("interrupted", "damaged")
    maka("journal", "tail", path, "--json")
    settled(path, *(["--salvage"] if doc["verdict"] == "damaged" else []))


def test_duplicate_keys_do_not_move_an_event(tmp_path: Path) -> None:
    builder = turns(1)
    body = b'{"seq":%d,"ts":1,"type":"x-a/b","data":{},"seq":99' % builder.seq
    import hashlib

    total = hashlib.sha256(builder.prev.encode() + body).hexdigest()[:32].encode()
    builder.lines.append(body + b',"sum":"' + total + b'"}')
    builder.seq, builder.prev = builder.seq + 1, total.decode()
    builder.plain_turn("question 1")
    path = builder.write(tmp_path)
    doc = inspect(path, "--events")
    assert 99 not in [event["seq"] for event in doc["event_list"]]
    assert said(path) == ["question 0", "question 1"]


# ---------------------------------------------------------------- big


def test_a_line_of_64_mib_is_damage_and_the_rest_is_read(tmp_path: Path) -> None:
    builder = turns(1)
    builder.add("x-a/b", {"x": "y" * (64 << 20)})
    builder.plain_turn("question 1")
    path = builder.write(tmp_path)
    doc = inspect(path)
    assert doc["verdict"] == "damaged"
    assert finding(doc, "damaged_line")["length"] > 64 << 20
    done = repair(path, "--salvage")
    assert len(done["set_aside"]) == 1
    assert inspect(path)["verdict"] == "healthy"
    assert said(path) == ["question 0", "question 1"]


@pytest.mark.parametrize("over", [False, True])
def test_a_line_of_16_mib_is_the_limit(tmp_path: Path, over: bool) -> None:
    builder = turns(1)
    builder.add("x-a/b", {"x": ""})
    empty = len(builder.lines.pop())
    builder = turns(1)
    builder.add("x-a/b", {"x": "y" * ((16 << 20) - empty - 1 + 2 * over)})
    builder.plain_turn("question 1")
    path = builder.write(tmp_path)
    assert inspect(path)["verdict"] == ("damaged" if over else "healthy")


def test_findings_of_one_code_are_listed_a_thousand_times(tmp_path: Path) -> None:
    builder = turns(1)
    path = builder.write(tmp_path, join([*builder.lines, *[b"bad"] * 1_010]))
    doc = inspect(path)
    found = [f for f in doc["findings"] if f["code"] == "damaged_line"]
    assert len(found) <= 1_001
    assert 1_010 in [f.get("count") for f in found]
    repaired = settled(path, "--salvage")
    assert len(repaired.data[0]["accepted"]) == 1_010
    assert len(repaired.data[0]["spans"]) == 1_010


# ---------------------------------------------------------------- salvage again


def test_a_second_salvage_after_new_damage(tmp_path: Path) -> None:
    builder = turns(2)
    lines = list(builder.lines)
    lines[3] = b"first damage"
    path = builder.write(tmp_path, join(lines))
    first = settled(path, "--salvage")
    with path.open("ab") as file:
        file.write(b"second damage\n")
    doc = refused(path, "damaged")
    assert sorted(codes(doc)) == ["accepted", "damaged_line"]
    second = settled(path, "--salvage")
    assert [span["length"] for span in second.data[0]["spans"]] == [len(b"second damage")]
    assert len(second.data[0]["accepted"]) == 1
    assert second.data[0]["missing"] == [[first.doc["appended"][-1]["seq"] + 1] * 2]
    assert set(codes(inspect(path))) == {"accepted"}
    assert len(list((path.parent / "damage").iterdir())) == 2


def test_salvage_of_a_healthy_journal_is_a_plain_repair(tmp_path: Path) -> None:
    path = turns(1).write(tmp_path)
    raw = path.read_bytes()
    assert repair(path, "--salvage")["appended"] == []
    assert path.read_bytes() == raw
    builder = Builder("s2").start().step()
    path = builder.write(tmp_path)
    assert settled(path, "--salvage").types == ["step/end", "turn/end"]


def test_after_a_salvage_the_chain_goes_on(tmp_path: Path) -> None:
    import maka as library

    builder = turns(2)
    lines = builder.lines[:5] + builder.lines[6:]
    path = builder.write(tmp_path, join(lines))
    settled(path, "--salvage")
    with library.open_session(path) as journal:
        from maka.journal.events import Draft

        journal.append(Draft("session/note", {"kind": "after"}))
        journal.flush()
    assert untouched(path)["verdict"] == "healthy"
    code, doc = verify(path)
    assert code == 0
    assert verify(path, "--head", doc["head"]["sum"])[0] == 4, "an unverified line stands before it"


# ---------------------------------------------------------------- unsupported


def _unsupported(kind: str) -> Builder:
    if kind == "format":
        return Builder(format=2).plain_turn()
    builder = turns(1)
    builder.add("future/thing", {"a": 1})
    return builder.plain_turn()


@pytest.mark.parametrize("kind", ["format", "event"])
def test_unsupported_is_read_and_never_written(tmp_path: Path, kind: str) -> None:
    builder = _unsupported(kind)
    path = builder.write(tmp_path, builder.raw() + b'{"seq":')
    doc = refused(path, "unsupported")
    assert f"unsupported_{kind}" in codes(doc)
    refused(path, "unsupported", "--salvage")
    listed = inspect(path, "--events")["event_list"]
    assert [event["seq"] for event in listed] == list(range(len(builder.lines)))
    assert maka("journal", "tail", path, "--json").code == 4
    assert maka("journal", "show", path).code == 4
    assert verify(path)[0] == 4
    assert maka("journal", "repair", path, "--dry-run").code == 4


@pytest.mark.parametrize("kind", ["format", "event"])
def test_unsupported_only_if_its_sum_fits(tmp_path: Path, kind: str) -> None:
    builder = _unsupported(kind)
    needle, other = (b'"format":2', b'"format":3') if kind == "format" else (b'{"a":1}', b'{"a":2}')
    path = builder.write(tmp_path, builder.raw().replace(needle, other, 1))
    doc = inspect(path)
    assert doc["verdict"] == "damaged", codes(doc)
    assert "sum_mismatch" in codes(doc)


def test_ignorable_and_extension_events_are_kept_and_skipped(tmp_path: Path) -> None:
    builder = turns(1)
    builder.add("future/hint", {"a": 1}, ignorable=True)
    builder.add("x-team/task", {"a": 1})
    builder.add("x-team/other", {"deep": [None, {"x": True}]}, ignorable=True)
    builder.plain_turn()
    doc = untouched(builder.write(tmp_path))
    assert codes(doc) == ["extension_events"]
    assert finding(doc, "extension_events")["severity"] == "info"


# ---------------------------------------------------------------- anything


@pytest.mark.parametrize("seed", range(12))
def test_noise_is_never_an_event(tmp_path: Path, seed: int) -> None:
    import random

    random_ = random.Random(seed)
    raw = random_.randbytes(random_.choice([1, 100, 4096, 70_000]))
    path = Builder().write(tmp_path, raw)
    refused(path, "unreadable")
    for command in ("inspect", "show", "tail", "verify"):
        assert maka("journal", command, path).code == 4
    assert path.read_bytes() == raw


def test_a_missing_file_is_no_session(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for target in (tmp_path / "folder", tmp_path / "none.jsonl", tmp_path / "nowhere/x", "no-such-session"):
        for command in ("inspect", "repair", "verify", "tail", "show"):
            answer = maka("journal", command, target, "--root", tmp_path)
            assert (answer.code, answer.out) == (2, ""), (command, answer.out)
            assert answer.err.count("\n") == 1
    assert os.listdir(tmp_path / "folder") == []


def test_other_sessions_are_untouched(tmp_path: Path) -> None:
    broken = Builder("broken").plain_turn()
    broken.lines[2] = b"x"
    path = broken.write(tmp_path)
    other = Builder("other").start().step().write(tmp_path)
    raw = other.read_bytes()
    settled(path, "--salvage")
    assert other.read_bytes() == raw
    assert sorted(p.name for p in other.parent.iterdir()) == ["journal.jsonl"]
    assert messages(other)
