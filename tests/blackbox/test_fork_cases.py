"""Forks by reference (docs/format.md, "Forks"): what is taken over, what is not, and parents in every state."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from support.answers import codes, finding, inspect, maka, messages, refused, settled, shown, untouched, verify
from support.builder import Builder


def parent(turns: int = 2) -> Builder:
    builder = Builder("parent")
    for number in range(turns):
        builder.plain_turn(f"question {number}")
    return builder


def fork(of: Builder, seq: int | None = None, name: str = "fork", **header: Any) -> Builder:
    seq = of.seq - 1 if seq is None else seq
    sum_ = json.loads(of.lines[seq])["sum"]
    child = Builder(name, parent={"session_id": of.session_id, "seq": seq, "sum": sum_}, **header)
    child.turn = of.turn
    child.requested = True
    return child


def questions(path: Path) -> list[str]:
    return [word for role, word in shown(path) if role == "user"]


def test_a_fork_takes_over_the_conversation(tmp_path: Path) -> None:
    old = parent()
    old.write(tmp_path)
    new = fork(old).plain_turn("in the fork")
    path = new.write(tmp_path)
    doc = untouched(path)
    assert codes(doc) == []
    assert questions(path) == ["question 0", "question 1", "in the fork"]
    assert [turn["turn"] for turn in doc["turns"]] == [1, 2, 3]
    assert doc["head"] == {"seq": new.seq - 1, "sum": new.prev}
    assert doc["events"] == len(new.lines)


def test_a_fork_at_an_earlier_turn(tmp_path: Path) -> None:
    old = parent(3)
    old.write(tmp_path)
    end = next(i for i, line in enumerate(old.lines) if b'"turn/end"' in line)
    new = fork(old, end)
    new.turn = 1
    new.plain_turn("another second")
    path = new.write(tmp_path)
    doc = untouched(path)
    assert codes(doc) == []
    assert questions(path) == ["question 0", "another second"]
    assert [run["run_id"] for run in doc["runs"]][-1] == "r2"


def test_an_open_turn_of_a_fork_is_closed_as_any_other(tmp_path: Path) -> None:
    old = parent()
    before = old.write(tmp_path).read_bytes()
    new = fork(old).start("in the fork").step().says("", ["c"])
    new.call("c")
    path = new.write(tmp_path)
    repaired = settled(path)
    assert repaired.types == ["tool/result", "step/end", "turn/end"]
    assert (tmp_path / "sessions/parent/journal.jsonl").read_bytes() == before
    assert sorted(os.listdir(tmp_path / "sessions/parent")) == ["journal.jsonl"]


def _working(old: Builder) -> None:
    """Everything that is work: a queue, an admission, a plan, an interaction, a claim, an open turn."""
    steps = [{"id": "1", "title": "one", "description": "first"}]
    plan = {"proposal_id": "p", "revision": 1, "turn_id": "t1", "title": "plan"}
    old.add("plan/proposed", {**plan, "steps": steps})
    old.add("plan/approved", {"proposal_id": "p", "revision": 1, "execution_id": "e"})
    queued = {"message_id": "q", "placement": "next_turn", "disposition": "followup", "content": [], "digest": "0" * 64}
    old.add("message/accepted", queued)
    admitted: dict[str, Any] = {"turn_id": "tA", "run_id": "rA", "message_id": "mA", "previous_root_turn_id": None}
    admitted |= {"execution": {"kind": "linked_child_initial"}, "input": {"content": []}, "input_digest": "0" * 64}
    old.add("turn/admitted", admitted)
    old.add("session/note", {"kind": "quarantine"})
    old.add("x-team/thing", {})
    target = old.run("rT", "tT")
    source = {"run_id": "r1", "invocation_id": "i-r1", "turn_id": "t1", "high_water": 6}
    claim = {"claim_id": "cl", "purpose": "resume", "turn": 9, "boundary": {"segments": []}, "source": source}
    claim |= {"boundary_digest": "0" * 32, "replay_digest": "0" * 64, "replay_through_seq": 999}
    old.add("continuation/claim", {**claim, "target_run": target, "claimed_at": 1})
    ids = {"turn_id": "t1", "run_id": "r1"}
    old.add("interaction/requested", {"interaction_id": "i", **ids, "kind": "question", "request": {}})


def test_nothing_that_is_work_is_live_in_a_fork(tmp_path: Path) -> None:
    old = parent(1)
    _working(old)
    old.start("open").step().says("", ["c"])
    old.call("c")
    path = old.write(tmp_path)
    assert inspect(path)["verdict"] == "interrupted"
    new = fork(old)
    path = new.write(tmp_path)
    doc = untouched(path)
    assert codes(doc) == []
    assert doc["queue"] == {"steering": [], "followup": []}
    assert [doc[key] for key in ("continuations", "handoffs", "interactions")] == [[], [], []]
    assert [plan for plan in doc["plans"] if (plan["execution"] or {}).get("status") == "active"] == []
    assert {run["status"] for run in doc["runs"]} <= {"completed", "failed"}


def test_usage_counts_own_events_only(tmp_path: Path) -> None:
    def spend(builder: Builder, tokens: int) -> None:
        builder.start().step()
        message = {**builder.ids, "step": 1, "message_id": f"u{builder.turn}", "content": [], "stop_reason": "x"}
        builder.add("assistant/message", {**message, "usage": {"input_tokens": tokens, "output_tokens": 1}})
        builder.end_step().end()

    old = Builder("parent")
    spend(old, 1000)
    old.write(tmp_path)
    new = fork(old)
    spend(new, 7)
    assert untouched(new.write(tmp_path))["usage"]["input_tokens"] == 7


@pytest.mark.parametrize("state", ["gone", "empty", "garbage", "a pipe", "a folder", "unreadable name", "cut before"])
def test_a_parent_that_cannot_be_read_is_a_warning(tmp_path: Path, state: str) -> None:
    old = parent()
    place = old.write(tmp_path)
    new = fork(old).plain_turn("in the fork")
    path = new.write(tmp_path)
    match state:
        case "gone":
            place.unlink()
        case "empty":
            place.write_bytes(b"")
        case "garbage":
            place.write_bytes(os.urandom(1000))
        case "a pipe":
            place.unlink()
            os.mkfifo(place)
        case "a folder":
            place.unlink()
            place.mkdir()
        case "unreadable name":
            place.unlink()
            place.symlink_to(place.name)
        case _:
            place.write_bytes(b"".join(line + b"\n" for line in old.lines[:3]))
    doc = untouched(path)
    assert len(doc["findings"]) == 1
    assert doc["findings"][0]["code"] in ("parent_missing", "parent_mismatch")
    assert doc["findings"][0]["severity"] == "warning"
    assert questions(path) == ["in the fork"]
    assert verify(path)[0] == 0
    assert [turn["turn"] for turn in doc["turns"]] == [3]


@pytest.mark.parametrize("state", ["another sum", "no such event", "rewritten"])
def test_a_parent_that_is_another_is_a_warning(tmp_path: Path, state: str) -> None:
    old = parent()
    old.write(tmp_path)
    given = {"session_id": "parent", "seq": old.seq - 1, "sum": old.prev}
    if state == "another sum":
        given["sum"] = "f" * 32
    elif state == "no such event":
        given["seq"] = 10_000
    else:
        changed = parent()
        changed.plain_turn("x")
        rewritten = Builder("parent", cwd="/elsewhere")
        for number in range(2):
            rewritten.plain_turn(f"question {number}")
        rewritten.write(tmp_path)
    new = Builder("fork", parent=given)
    new.turn = 2
    new.plain_turn("in the fork")
    path = new.write(tmp_path)
    doc = untouched(path)
    assert codes(doc) == ["parent_mismatch"]
    assert questions(path) == ["in the fork"]


@pytest.mark.parametrize("damage", ["behind the fork point", "torn behind", "before the fork point"])
def test_a_damaged_parent(tmp_path: Path, damage: str) -> None:
    old = parent(3)
    place = old.write(tmp_path)
    point = next(i for i, line in enumerate(old.lines) if b'"run/settled","data":{"run_id":"r2"' in line)
    new = fork(old, point)
    new.turn = 2
    new.plain_turn("in the fork")
    path = new.write(tmp_path)
    lines = list(old.lines)
    if damage == "behind the fork point":
        lines[point + 3] = b"bad"
        place.write_bytes(b"".join(line + b"\n" for line in lines))
    elif damage == "torn behind":
        place.write_bytes(b"".join(line + b"\n" for line in lines)[:-30])
    else:
        lines[4] = b"bad"
        place.write_bytes(b"".join(line + b"\n" for line in lines))
    doc = untouched(path)
    assert [f for f in doc["findings"] if f["severity"] != "warning"] == [], "the parent's damage is the parent's"
    assert "in the fork" in questions(path)
    if damage != "before the fork point":
        assert codes(doc) == []
        assert questions(path) == ["question 0", "question 1", "in the fork"]


@pytest.mark.parametrize("depth", [2, 63, 64, 65, 80])
def test_forks_of_forks(tmp_path: Path, depth: int) -> None:
    """Parents are folded at most 64 deep."""
    builder = Builder("g0").plain_turn("generation 0")
    builder.write(tmp_path)
    for generation in range(1, depth + 1):
        builder = fork(builder, name=f"g{generation}").plain_turn(f"generation {generation}")
        path = builder.write(tmp_path)
    doc = untouched(path)
    said = questions(path)
    if depth <= 64:
        assert codes(doc) == []
        assert said == [f"generation {i}" for i in range(depth + 1)]
    else:
        assert codes(doc) == ["parent_missing"]
        assert said[-1] == f"generation {depth}"
        assert len(said) <= 65


@pytest.mark.parametrize("session_id", ["../parent", "parent/../parent", "/etc", "", ".", "..", "a" * 129, "x\0y", "é"])
def test_a_parents_id_never_leaves_the_root(tmp_path: Path, session_id: str) -> None:
    old = parent()
    old.write(tmp_path)
    outside = Builder("parent").plain_turn("secret")
    (tmp_path / "parent").mkdir()
    (tmp_path / "parent/journal.jsonl").write_bytes(outside.raw())
    given = {"session_id": session_id, "seq": outside.seq - 1, "sum": outside.prev}
    new = Builder("fork", parent=given).plain_turn("in the fork")
    path = new.write(tmp_path)
    doc = untouched(path)
    assert [f["severity"] for f in doc["findings"]] == ["warning"]
    assert questions(path) == ["in the fork"]


def test_a_session_that_is_its_own_ancestor(tmp_path: Path) -> None:
    one = parent()
    two = fork(one, name="two").plain_turn("two")
    two.write(tmp_path)
    loop = Builder("parent", parent={"session_id": "two", "seq": two.seq - 1, "sum": two.prev}).plain_turn("loop")
    path = loop.write(tmp_path)
    doc = inspect(path)
    assert doc["verdict"] == "healthy"
    assert messages(path)
    itself = Builder("self", parent={"session_id": "self", "seq": 0, "sum": "0" * 32}).plain_turn("me")
    path = itself.write(tmp_path)
    assert codes(untouched(path)) == ["parent_mismatch"]


@pytest.mark.parametrize("value", [None, 7, "parent", [], {}, {"session_id": "parent"}, {"session_id": 1, "seq": "x"}])
def test_a_parent_that_names_nothing(tmp_path: Path, value: Any) -> None:
    from support.builder import ZERO, seal

    builder = Builder("fork").plain_turn("in the fork")
    header = json.loads(builder.lines[0])
    header.pop("sum")
    header["data"]["parent"] = value
    prev = ZERO
    lines = []
    for number, line in enumerate(builder.lines):
        event = header if number == 0 else {k: v for k, v in json.loads(line).items() if k != "sum"}
        sealed, prev = seal(prev, event)
        lines.append(sealed)
    builder.lines = lines
    path = builder.write(tmp_path)
    assert inspect(path)["verdict"] in ("healthy", "damaged")
    assert messages(path)


def test_a_fork_chains_on_its_parents_sum(tmp_path: Path) -> None:
    old = parent()
    old.write(tmp_path)
    new = fork(old).plain_turn()
    raw = new.raw().replace(b'"seq":%d,"sum"' % (old.seq - 1), b'"seq":%d,"sum"' % (old.seq - 2), 1)
    doc = refused(new.write(tmp_path, raw), "damaged")
    assert finding(doc, "sum_mismatch")["seq"] == 0


def test_a_call_of_the_parent_is_answered_in_the_history_of_the_fork(tmp_path: Path) -> None:
    old = Builder("parent").start("ask").step().says("", ["c"])
    old.call("c")
    old.write(tmp_path)
    new = fork(old).plain_turn("in the fork")
    path = new.write(tmp_path)
    untouched(path)
    assert shown(path)[:3] == [("user", "ask"), ("assistant", "c:call"), ("tool", "c:unknown")]


def test_a_fork_in_every_command(tmp_path: Path) -> None:
    old = parent()
    old.write(tmp_path)
    path = fork(old).plain_turn("in the fork").write(tmp_path)
    for command in ("inspect", "show", "tail", "verify"):
        assert maka("journal", command, path).code == 0
    listed = maka("journal", "list", "--json", "--root", tmp_path).json["sessions"]
    assert [row["session_id"] for row in sorted(listed, key=lambda row: row["session_id"])] == ["fork", "parent"]
    assert verify(path, "--head", old.prev)[0] == 4, "the parent's line is no line of the fork"
