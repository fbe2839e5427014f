"""A fork's parents: how far they are folded, what may not have changed in them since, and what reading them costs."""

import copy
import json
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from maka.journal import reader
from maka.journal.errors import InvalidEvent
from maka.journal.events import Draft, Event
from maka.journal.reader import read
from maka.journal.scan import Consumer
from maka.journal.store import FileStore
from maka.journal.writer import JournalWriter
from maka.repair.apply import repair
from support.builder import Builder
from support.drafts import header, whole_turn

#: The numbers of the user's message and the last event in a journal's first ``plain_turn``; the next one ends at 16.
MESSAGE, SETTLED = 2, 8


def parent(*texts: str) -> Builder:
    builder = Builder("parent")
    for text in texts or ("one", "two", "three"):
        builder.plain_turn(text)
    return builder


def fork_of(root: Path, raw: bytes, seq: int, name: str = "fork", session_id: str = "parent") -> Path:
    """A fork with a turn of its own, from the line of that number in ``raw``."""
    (line,) = [line for line in raw.splitlines() if line.startswith(b'{"seq":%d,' % seq)]
    child = Builder(name, parent={"session_id": session_id, "seq": seq, "sum": json.loads(line)["sum"]})
    child.turn, child.requested = 8, True
    return child.plain_turn(f"in {name}").write(root)


def heard(path: Path) -> tuple[list[str], list[str]]:
    """What a reader says of the fork, and what users said in the events that it folds, parents included."""
    said: list[str] = []

    def consume(event: Event) -> None:
        if event.type == "user/message":
            said.append(event.data["content"][0]["text"])

    def begin() -> Consumer:
        said.clear()
        return consume

    return [finding.code for finding in read(path, observe=begin).findings], said


def changed(line: bytes) -> bytes:
    return line.replace(b'"text":"one"', b'"text":"ONE"').replace(b'"run_id":"r2"', b'"run_id":"rX"')


def garbage(line: bytes) -> bytes:
    return b"\xff" + line[1:]


DAMAGE: dict[str, Callable[[list[bytes]], object]] = {
    "text that was changed": lambda lines: lines.__setitem__(MESSAGE, changed(lines[MESSAGE])),
    "the fork point changed, its sum as it was": lambda lines: lines.__setitem__(16, changed(lines[16])),
    "a line lost to garbage": lambda lines: lines.__setitem__(MESSAGE, garbage(lines[MESSAGE])),
    "the line before the fork point lost": lambda lines: lines.__setitem__(15, garbage(lines[15])),
    "a line that is gone": lambda lines: lines.pop(MESSAGE),
    "a header that was changed": lambda lines: lines.__setitem__(0, lines[0].replace(b"/tmp", b"/TMP")),
    "a lost header": lambda lines: lines.__setitem__(0, garbage(lines[0])),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_parent_that_changed_before_the_fork_point_is_not_folded(tmp_path: Path, what: str) -> None:
    old = parent()
    path = fork_of(tmp_path, old.raw(), 16)
    old.write(tmp_path)
    assert heard(path) == ([], ["one", "two", "in fork"])
    assert [row["turn"] for row in read(path).state.turn_rows()] == [1, 2, 9]
    lines = list(old.lines)
    DAMAGE[what](lines)
    place = old.write(tmp_path, b"".join(line + b"\n" for line in lines))
    assert heard(path) == (["parent_mismatch"], ["in fork"])
    assert [row["turn"] for row in read(path).state.turn_rows()] == [9]
    (finding,) = read(path).findings
    assert finding.severity == "warning"
    assert str(place) in finding.message
    assert "event 16 of parent" in finding.message
    (offset,) = [int(word) for word in finding.message.split() if word.isdigit()][1:]
    raw = place.read_bytes()
    assert offset == 0 or raw[offset - 1 : offset + 7] == b'\n{"seq":', "a line of the parent begins there"


def test_a_fork_of_a_parent_that_changed_is_not_created(tmp_path: Path) -> None:
    old = parent()
    lines = list(old.lines)
    point = {"session_id": "parent", "seq": 16, "sum": json.loads(lines[16])["sum"]}
    lines[MESSAGE] = changed(lines[MESSAGE])
    old.write(tmp_path, b"".join(line + b"\n" for line in lines))
    with pytest.raises(InvalidEvent, match="changed or lost"):
        FileStore(tmp_path).create(header("fork", parent=point))


@pytest.mark.parametrize("what", ["changed", "lost", "torn"])
def test_damage_behind_the_fork_point_is_the_parents_own(tmp_path: Path, what: str) -> None:
    old = parent()
    lines = list(old.lines)
    lines[17] = {"changed": lines[17].replace(b"t3", b"t9"), "lost": b"garbage", "torn": lines[17]}[what]
    raw = b"".join(line + b"\n" for line in lines)
    old.write(tmp_path, raw[:-20] if what == "torn" else raw)
    assert heard(fork_of(tmp_path, old.raw(), 16)) == ([], ["one", "two", "in fork"])


def test_garbage_that_took_nothing_away_changes_nothing(tmp_path: Path) -> None:
    old = parent()
    old.write(tmp_path, b"".join(line + b"\n" for line in [*old.lines[:5], b"garbage", *old.lines[5:]]))
    assert heard(fork_of(tmp_path, old.raw(), 16)) == ([], ["one", "two", "in fork"])


# ---------------------------------------------------------------- salvages


def salvaged(root: Path, old: Builder, *damage: str) -> bytes:
    """The parent's bytes after each damage was salvaged, and one more turn."""
    path = old.write(root)
    for what in damage:
        lines = path.read_bytes().removesuffix(b"\n").split(b"\n")
        DAMAGE[what](lines)
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        assert repair(path, salvage=True).verdict_after == "healthy"
    with JournalWriter.open(path) as writer:
        writer.append_batch(whole_turn(4, "four"))
    return path.read_bytes()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (["text that was changed"], ["ONE", "two", "three", "four", "in fork"]),
        (["a line lost to garbage"], None),
        (["a line that is gone"], None),
        (["a lost header"], ["one", "two", "three", "four", "in fork"]),
        (["the line before the fork point lost", "a line lost to garbage", "a lost header"], None),
    ],
)
def test_what_a_salvage_has_accepted_before_the_fork_point_is_no_change(
    tmp_path: Path, damage: list[str], said: list[str] | None
) -> None:
    raw = salvaged(tmp_path, parent(), *damage)
    head = json.loads(raw.splitlines()[-1])["seq"]
    path = fork_of(tmp_path, raw, head)
    assert heard(path) == ([], said or ["two", "three", "four", "in fork"])


def test_more_that_is_lost_beside_what_a_salvage_has_accepted_is_a_change(tmp_path: Path) -> None:
    raw = salvaged(tmp_path, parent(), "a line lost to garbage")
    path = fork_of(tmp_path, raw, json.loads(raw.splitlines()[-1])["seq"])
    lines = raw.removesuffix(b"\n").split(b"\n")
    lines[MESSAGE - 1] = b"garbage too"
    (tmp_path / "sessions" / "parent" / "journal.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    assert heard(path) == (["parent_mismatch"], ["in fork"])


def test_what_was_accepted_behind_the_fork_point_changed_since_the_fork(tmp_path: Path) -> None:
    old = parent()
    path = fork_of(tmp_path, old.raw(), 16)
    salvaged(tmp_path, old, "text that was changed")
    assert heard(path) == (["parent_mismatch"], ["in fork"])


def test_a_gap_does_not_accept_itself(tmp_path: Path) -> None:
    old = parent("one")
    old.add("journal/gap", {"spans": [], "missing": [], "unverified": [], "accepted": []})
    path = fork_of(tmp_path, old.raw(), old.seq - 1)
    old.write(tmp_path, old.raw().replace(b'"unverified":[]', b'"unverified":[%d]' % (old.seq - 1)))
    assert heard(path) == (["parent_mismatch"], ["in fork"])


@pytest.mark.parametrize(
    "lists", [{"unverified": ["2", None, [2], True, 2.0]}, {"missing": [None, [1], "ab", [[], {}]]}]
)
def test_a_gap_may_list_anything(tmp_path: Path, lists: dict[str, Any]) -> None:
    old = parent("one")
    old.add("journal/gap", {"spans": [], "missing": [], "unverified": [], "accepted": [], **lists})
    lines = list(old.lines)
    path = fork_of(tmp_path, old.raw(), old.seq - 1)
    old.write(tmp_path)
    assert heard(path) == ([], ["one", "in fork"])
    lines[MESSAGE] = changed(lines[MESSAGE])
    old.write(tmp_path, b"".join(line + b"\n" for line in lines))
    assert heard(path) == (["parent_mismatch"], ["in fork"])


# ---------------------------------------------------------------- where a fork point may stand


def test_a_fork_point_may_stand_inside_a_batch(tmp_path: Path) -> None:
    old = Builder("parent").start("one").step().says().end_step()
    end = old.add("turn/end", {**old.ids, "reason": {"kind": "completed"}}, more=1)
    old.add("run/settled", {"run_id": "r1"})
    old.plain_turn("two").write(tmp_path)
    path = fork_of(tmp_path, old.raw(), end)
    assert heard(path) == ([], ["one", "in fork"])
    assert [row["status"] for row in read(path).state.run_rows()] == ["completed", "completed"]


@pytest.mark.parametrize("seq", [True, 16.0, "16", None, -1])
def test_a_number_that_is_none_names_no_event(tmp_path: Path, seq: Any) -> None:
    old = parent()
    old.write(tmp_path)
    sum_ = json.loads(old.lines[1 if seq is True else 16])["sum"]
    child = Builder("fork", parent={"session_id": "parent", "seq": seq, "sum": sum_}).plain_turn("in fork")
    assert heard(child.write(tmp_path)) == (["parent_mismatch"], ["in fork"])


def test_only_line_0_of_a_parent_names_a_parent(tmp_path: Path) -> None:
    old = parent("one")
    second = Builder("parent", parent={"session_id": "nobody", "seq": 1, "sum": "0" * 32})
    old.add("session/header", json.loads(second.lines[0])["data"])
    old.write(tmp_path)
    assert heard(fork_of(tmp_path, old.raw(), old.seq - 1)) == ([], ["one", "in fork"])


def test_a_fork_of_a_fork_keeps_what_is_sound(tmp_path: Path) -> None:
    old = parent()
    place = old.write(tmp_path)
    middle = fork_of(tmp_path, old.raw(), SETTLED, "middle").read_bytes()
    path = fork_of(tmp_path, middle, SETTLED, "last", "middle")
    assert heard(path) == ([], ["one", "in middle", "in last"])
    lines = list(old.lines)
    lines[MESSAGE] = changed(lines[MESSAGE])
    place.write_bytes(b"".join(line + b"\n" for line in lines))
    assert heard(path) == (["parent_mismatch"], ["in middle", "in last"])


@pytest.mark.parametrize("at_end", [True, False])
def test_of_a_parent_that_two_wrote_the_branch_that_stands_is_folded(tmp_path: Path, at_end: bool) -> None:
    old = parent("one")
    lost, kept = copy.deepcopy(old).plain_turn("lost"), copy.deepcopy(old).plain_turn("kept")
    later = kept.seq - 1
    kept.plain_turn("later")
    old.lines = [*lost.lines, *kept.lines[len(old.lines) :]]
    old.write(tmp_path)
    path = fork_of(tmp_path, kept.raw(), kept.seq - 1 if at_end else later)
    assert heard(path) == ([], ["one", "kept", *(["later"] if at_end else []), "in fork"])
    path = fork_of(tmp_path, lost.raw(), lost.seq - 1, "other")
    assert heard(path) == (["parent_mismatch"], ["in other"])


# ---------------------------------------------------------------- what it costs


def test_a_parents_events_are_given_on_one_by_one(tmp_path: Path) -> None:
    old = Builder("parent").start("one").step()
    for number in range(5_000):
        old.delta(str(number))
    old.says().end_step().end().write(tmp_path)
    path = fork_of(tmp_path, old.raw(), old.seq - 1)
    alive: weakref.WeakSet[Event] = weakref.WeakSet()
    most = count = 0

    def consume(event: Event) -> None:
        nonlocal most, count
        alive.add(event)
        most, count = max(most, len(alive)), count + 1

    read(path, observe=lambda: consume)
    assert count > 5_000
    assert most < 50


def test_of_a_long_parent_nothing_behind_the_fork_point_is_read_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = parent("one")
    for _ in range(40):
        old.add("session/note", {"kind": "test", "text": "x" * 100_000})
    size = old.write(tmp_path).stat().st_size
    path = fork_of(tmp_path, old.raw(), SETTLED)
    taken: list[int] = []

    class Counting(reader.FileSource):
        def read(self, offset: int, length: int) -> bytes:
            data = super().read(offset, length)
            taken.append(len(data))
            return data

    monkeypatch.setattr(reader, "FileSource", Counting)
    descriptors = len(os.listdir("/dev/fd"))
    assert heard(path) == ([], ["one", "in fork"])
    assert size < sum(taken) < 1.2 * size
    assert len(os.listdir("/dev/fd")) == descriptors


def test_a_fork_stays_the_same_while_its_parent_goes_on(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    with store.create(header("parent"), whole_turn(1, "one")) as writer:
        point = {"session_id": "parent", "seq": writer.head.seq, "sum": writer.head.sum}
        with store.create(header("fork", parent=point), whole_turn(2, "in fork")):
            writer.append_batch(whole_turn(2, "two"))
            writer.append(Draft("session/note", {"kind": "test"}))
            writer.flush()
            assert heard(store.path("fork")) == ([], ["one", "in fork"])
