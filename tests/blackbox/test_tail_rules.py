"""The torn tail, word by word (docs/format.md, "Reading a file that is not whole")."""

from pathlib import Path

import pytest

from support.answers import codes, finding, inspect, messages, refused, repair, settled, shown, tree, verify
from support.builder import Builder, seal


def _cut(builder: Builder, keep: int) -> bytes:
    """All lines but the last whole, and ``keep`` bytes of the last (negative: from its end)."""
    return b"".join(line + b"\n" for line in builder.lines[:-1]) + builder.lines[-1][:keep]


def _delta(builder: Builder, text: str = "x") -> bytes:
    builder.delta(text)
    return builder.lines[-1]


@pytest.mark.parametrize("keep", [1, 7, 8, 20, 50, -43, -42, -30, -2, -1])
def test_a_cut_line_goes_aside_and_nothing_else(tmp_path: Path, keep: int) -> None:
    builder = Builder().tool_turn().start("again").step()
    whole = builder.raw()
    builder.says("never whole")
    raw = _cut(builder, keep)
    path = builder.write(tmp_path, raw)
    doc = inspect(path)
    assert doc["verdict"] == "torn"
    torn = finding(doc, "torn_tail")
    assert (torn["offset"], torn["length"]) == (len(whole), len(raw) - len(whole))
    assert verify(path)[0] == 1
    repaired = settled(path)
    assert repaired.after.startswith(whole)
    assert repaired.kept == len(whole)
    assert repaired.types == ["step/end", "turn/end"]
    assert [copy["offset"] for copy in repaired.doc["set_aside"]] == [len(whole)]


def test_only_the_lf_is_missing(tmp_path: Path) -> None:
    builder = Builder().plain_turn()
    path = builder.write(tmp_path, builder.raw()[:-1])
    doc = inspect(path)
    assert doc["verdict"] == "interrupted"
    torn = finding(doc, "torn_tail")
    assert (torn["length"], torn["offset"]) == (0, len(builder.raw()) - 1)
    assert verify(path)[0] == 1
    repaired = settled(path)
    assert repaired.after == builder.raw()
    assert repaired.doc["set_aside"] == []


def test_only_the_lf_is_missing_and_a_turn_is_open(tmp_path: Path) -> None:
    builder = Builder().start().step().says("", ["c"])
    builder.call("c")
    path = builder.write(tmp_path, builder.raw()[:-1])
    assert inspect(path)["verdict"] == "interrupted"
    repaired = settled(path)
    assert repaired.after.startswith(builder.raw())
    assert repaired.types == ["tool/result", "step/end", "turn/end"]


def test_a_header_alone_without_lf_is_kept(tmp_path: Path) -> None:
    builder = Builder()
    path = builder.write(tmp_path, builder.raw()[:-1])
    assert inspect(path)["verdict"] == "interrupted"
    assert settled(path).after == builder.raw()


def test_a_crlf_file_whose_last_line_lacks_its_lf(tmp_path: Path) -> None:
    builder = Builder().plain_turn()
    raw = builder.raw(b"\r\n")
    for ending in (raw[:-1], raw[:-2]):
        path = builder.write(tmp_path, ending)
        doc = inspect(path)
        assert doc["verdict"] == "interrupted", codes(doc)
        assert finding(doc, "torn_tail")["length"] == 0
        crlf = finding(doc, "crlf")
        assert crlf["severity"] == "notice"
        settled(path)


def test_a_whole_event_without_lf_that_does_not_chain_is_cut(tmp_path: Path) -> None:
    builder = Builder().plain_turn()
    stray, _ = seal("f" * 32, {"seq": builder.seq, "ts": 1, "type": "session/note", "data": {"kind": "x"}})
    path = builder.write(tmp_path, builder.raw() + stray)
    assert inspect(path)["verdict"] == "torn"
    assert settled(path).after == builder.raw()


def test_a_whole_event_without_lf_with_another_number_is_cut(tmp_path: Path) -> None:
    builder = Builder().plain_turn()
    event = {"seq": builder.seq + 3, "ts": 1, "type": "session/note", "data": {"kind": "x"}}
    stray, _ = seal(builder.prev, event)
    path = builder.write(tmp_path, builder.raw() + stray)
    assert inspect(path)["verdict"] == "torn"
    assert settled(path).after == builder.raw()


@pytest.mark.parametrize("junk", [b"\0\0\0\0", b"{", b'{"seq":', b"\xff\xfe", b"\r\r", b"\xe6\x97", b"x" * 100_000])
def test_junk_behind_a_whole_event_without_lf(tmp_path: Path, junk: bytes) -> None:
    """It counts as a line if it *begins* with a whole event that chains on: the rest is the tail."""
    builder = Builder().start().step()
    path = builder.write(tmp_path, builder.raw()[:-1] + junk)
    doc = inspect(path)
    assert doc["head"]["sum"] == builder.prev
    repaired = settled(path)
    assert repaired.after.startswith(builder.raw()[:-1])
    assert repaired.types == ["step/end", "turn/end"]


def test_a_cut_always_leaves_an_event(tmp_path: Path) -> None:
    builder = Builder()
    path = builder.write(tmp_path, builder.raw()[:-5])
    doc = refused(path, "unreadable")
    assert "empty" in codes(doc)
    assert doc["events"] == 0
    assert "empty" in codes(refused(path, "unreadable", "--salvage"))


@pytest.mark.parametrize("raw", [b"", b"\n", b"\n\n\n", b"\0" * 100, b"\0" * 100 + b"\n", b"\xef\xbb\xbf", b" \n"])
def test_no_event_at_all_is_empty(tmp_path: Path, raw: bytes) -> None:
    path = Builder().write(tmp_path, raw)
    doc = refused(path, "unreadable")
    assert "empty" in codes(doc)
    refused(path, "unreadable", "--salvage")
    assert messages(path, code=4) == []


# ---------------------------------------------------------------- batches


def _batch(count: int) -> tuple[Builder, int]:
    """A closed turn and a batch of ``count`` lines; the builder, and where the batch begins."""
    builder = Builder().plain_turn()
    begins = len(builder.raw())
    for left in range(count - 1, -1, -1):
        builder.add("session/note", {"kind": f"n{left}"}, more=left)
    return builder, begins


@pytest.mark.parametrize("whole", [1, 2, 3, 4])
@pytest.mark.parametrize("part", [0, 1, 60])
def test_an_unfinished_batch_is_the_tail(tmp_path: Path, whole: int, part: int) -> None:
    builder, begins = _batch(5)
    lines = builder.lines[-5:]
    raw = builder.raw()[:begins] + b"".join(line + b"\n" for line in lines[:whole]) + lines[whole][:part]
    path = builder.write(tmp_path, raw)
    doc = inspect(path)
    assert doc["verdict"] == "torn"
    torn = finding(doc, "torn_tail")
    assert (torn["offset"], torn["length"]) == (begins, len(raw) - begins)
    assert settled(path).after == raw[:begins]


def test_a_batch_whose_last_line_lacks_its_lf_is_whole(tmp_path: Path) -> None:
    builder, _ = _batch(4)
    path = builder.write(tmp_path, builder.raw()[:-1])
    assert inspect(path)["verdict"] == "interrupted"
    assert settled(path).after == builder.raw()


def test_a_batch_whose_middle_line_lacks_its_lf_is_the_tail(tmp_path: Path) -> None:
    builder, begins = _batch(4)
    raw = b"".join(line + b"\n" for line in builder.lines[:-1])[:-1]
    path = builder.write(tmp_path, raw)
    assert finding(inspect(path), "torn_tail")["offset"] == begins
    assert settled(path).after == raw[:begins]


def test_a_first_line_of_a_batch_without_lf_is_the_tail(tmp_path: Path) -> None:
    builder, begins = _batch(2)
    raw = builder.raw()[:begins] + builder.lines[-2]
    path = builder.write(tmp_path, raw)
    assert settled(path).after == raw[:begins]


@pytest.mark.parametrize("place", ["in", "behind"])
def test_a_bad_line_in_an_unfinished_batch_cuts_nothing(tmp_path: Path, place: str) -> None:
    builder, begins = _batch(4)
    lines = builder.lines[-4:]
    middle = [lines[0], b"rubbish", lines[1]] if place == "in" else [lines[0], lines[1], b"rubbish"]
    raw = builder.raw()[:begins] + b"".join(line + b"\n" for line in middle)
    path = builder.write(tmp_path, raw)
    doc = refused(path, "damaged")
    assert finding(doc, "damaged_line")["offset"] == raw.index(b"rubbish")
    assert finding(doc, "damaged_line")["length"] == len(b"rubbish")
    repaired = settled(path, "--salvage")
    assert repaired.after.startswith(raw)


@pytest.mark.parametrize("place", ["in", "behind"])
def test_a_bad_line_with_a_nul_in_an_unfinished_batch_is_cut_with_it(tmp_path: Path, place: str) -> None:
    builder, begins = _batch(4)
    lines = builder.lines[-4:]
    nul = b"\0" * 40
    middle = [lines[0], nul, lines[1]] if place == "in" else [lines[0], lines[1], nul]
    raw = builder.raw()[:begins] + b"".join(line + b"\n" for line in middle)
    path = builder.write(tmp_path, raw)
    assert inspect(path)["verdict"] == "torn"
    assert settled(path).after == raw[:begins]


def test_a_broken_batch_before_the_last_line_is_turn_order(tmp_path: Path) -> None:
    builder = Builder().plain_turn()
    builder.add("session/note", {"kind": "a"}, more=2)
    first = builder.seq - 1
    builder.add("session/note", {"kind": "b"})
    builder.plain_turn()
    path = builder.write(tmp_path)
    doc = refused(path, "damaged")
    assert codes(doc) == ["turn_order"]
    assert doc["findings"][0]["seq"] == first
    settled(path, "--salvage")


def test_a_repair_cut_anywhere_converges_to_the_same_bytes(tmp_path: Path) -> None:
    builder = Builder().start().step().says("", ["a", "b", "c"])
    builder.call("a")
    whole = settled(builder.write(tmp_path / "whole")).after
    begin = len(builder.raw())
    for number, at in enumerate(range(begin, len(whole), 61)):
        path = builder.write(tmp_path / str(number), whole[:at])
        settled_ = repair(path, code=0)
        assert settled_["verdict_after"] == "healthy"
        assert path.read_bytes() == whole, at


# ---------------------------------------------------------------- unsynced pages


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("welded", [b"", b'{"seq":9', b"half a line"])
def test_nuls_followed_by_deltas_only_are_the_tail(tmp_path: Path, count: int, welded: bytes) -> None:
    builder = Builder().start().step()
    begins = len(builder.raw())
    builder.delta("lost")  # what the NULs stand for
    lost = builder.lines.pop()
    deltas = [_delta(builder) for _ in range(count)]
    del builder.lines[-count:]
    raw = builder.raw() + welded + b"\0" * len(lost) + b"\n" + b"".join(line + b"\n" for line in deltas)
    path = builder.write(tmp_path, raw)
    doc = inspect(path)
    assert doc["verdict"] == "torn", codes(doc)
    torn = finding(doc, "torn_tail")
    assert (torn["offset"], torn["length"]) == (begins, len(raw) - begins)
    repaired = settled(path)
    assert repaired.types == ["step/end", "turn/end"]


def test_nuls_followed_by_another_event_are_damage(tmp_path: Path) -> None:
    builder = Builder().start().step()
    builder.delta("lost")
    builder.lines[-1] = b"\0" * 200
    builder.delta("x").says("whole")
    path = builder.write(tmp_path)
    doc = refused(path, "damaged")
    damaged = finding(doc, "damaged_line")
    assert damaged["length"] == 200
    repaired = settled(path, "--salvage")
    assert ("assistant", "whole") in shown(path)
    assert repaired.types[0] == "journal/gap"


def test_nuls_as_the_last_line_are_damage(tmp_path: Path) -> None:
    """The span is followed by at least one line: alone at the end it is a bad line with its LF."""
    builder = Builder().plain_turn()
    raw = builder.raw() + b"\0" * 400 + b"\n"
    path = builder.write(tmp_path, raw)
    doc = refused(path, "damaged")
    damaged = finding(doc, "damaged_line")
    assert (damaged["offset"], damaged["length"]) == (len(builder.raw()), 400)


def test_nuls_without_lf_are_the_tail(tmp_path: Path) -> None:
    builder = Builder().plain_turn()
    path = builder.write(tmp_path, builder.raw() + b"\0" * 4096)
    assert inspect(path)["verdict"] == "torn"
    assert settled(path).after == builder.raw()


def test_nuls_welded_to_a_delta_and_deltas_behind(tmp_path: Path) -> None:
    builder = Builder().start().step()
    begins = len(builder.raw())
    builder.delta("lost")
    builder.lines[-1] = b"\0" * 300 + builder.lines[-1]
    builder.delta("more").delta("and more")
    path = builder.write(tmp_path)
    doc = inspect(path)
    assert doc["verdict"] in ("torn", "damaged")
    if doc["verdict"] == "torn":
        assert finding(doc, "torn_tail")["offset"] == begins
        settled(path)
    else:
        settled(path, "--salvage")


def test_rubbish_then_deltas_is_damage(tmp_path: Path) -> None:
    builder = Builder().start().step()
    builder.delta("lost")
    builder.lines[-1] = b"no nul in here"
    builder.delta("more")
    path = builder.write(tmp_path)
    refused(path, "damaged")
    settled(path, "--salvage")


# ---------------------------------------------------------------- bad lines at the end


@pytest.mark.parametrize("bad", [b"rubbish", b"[]", b"null", b"42", b'{"seq":0}', b'"', b"{}", b"\xff", b"\0"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_bad_last_line_with_its_lf_is_damage(tmp_path: Path, bad: bytes, count: int) -> None:
    builder = Builder().start().step()
    raw = builder.raw() + (bad + b"\n") * count
    path = builder.write(tmp_path, raw)
    doc = refused(path, "damaged")
    assert codes(doc).count("damaged_line") == count
    repaired = settled(path, "--salvage")
    assert repaired.types == ["journal/gap", "step/end", "turn/end"]
    # Damaged lines at the end must have had numbers: one more than the last by counting lines.
    assert repaired.doc["appended"][0]["seq"] == builder.seq + count
    assert repaired.data[0]["missing"] == [[builder.seq, builder.seq + count - 1]]
    assert [span["length"] for span in repaired.data[0]["spans"]] == [len(bad)] * count


def test_torn_and_damaged_does_nothing_without_salvage(tmp_path: Path) -> None:
    builder = Builder().plain_turn().plain_turn()
    lines = list(builder.lines)
    lines[4] = lines[4][:30]
    raw = b"".join(line + b"\n" for line in lines) + b'{"seq":17,"ts":'
    path = builder.write(tmp_path, raw)
    doc = refused(path, "damaged")
    assert {"torn_tail", "damaged_line"} <= set(codes(doc))
    assert not (path.parent / "damage").exists()
    repaired = settled(path, "--salvage")
    assert repaired.kept == len(raw) - 15
    assert len(repaired.doc["set_aside"]) == 2
    assert sorted(tree(path.parent / "damage")) == sorted(
        copy["file"].removeprefix("damage/") for copy in repaired.doc["set_aside"]
    )


def test_blank_lines_at_the_end_are_noise(tmp_path: Path) -> None:
    builder = Builder().plain_turn()
    path = builder.write(tmp_path, builder.raw() + b"\n\r\n  \n")
    doc = inspect(path)
    assert "blank_line" in codes(doc)
    assert doc["verdict"] == "healthy"
