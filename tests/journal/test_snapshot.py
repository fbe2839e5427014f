import json
import os
import stat
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maka.journal import snapshot, summary
from maka.journal.errors import JournalDamaged
from maka.journal.events import Draft
from maka.journal.reader import open_source, read
from maka.journal.scan import Mark
from maka.journal.summary import to_json
from maka.journal.writer import JournalWriter
from support import chain
from support.builder import Builder
from support.drafts import begin, header, note, rename, step, whole_turn


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "s1").mkdir(mode=0o700)
    path = tmp_path / "s1" / "journal.jsonl"
    with JournalWriter.create(path, header(name="first"), whole_turn(1)) as writer:
        writer.append_batch([rename("second"), *begin(2)])
    return path


def resumed(path: Path) -> Any:
    with open_source(path) as source:
        return snapshot.resume(source, path)


def lines(path: Path) -> tuple[dict[str, Any], bytes]:
    first, second, rest = (path.parent / "snapshot.json").read_bytes().split(b"\n")
    assert rest == b""
    return orjson.loads(first), second


def test_a_closed_writer_leaves_a_snapshot_of_its_fold(path: Path) -> None:
    place = path.parent / "snapshot.json"
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    reading = read(path)
    assert reading.scan.head is not None
    first, second = lines(path)
    assert (first["size"], first["seq"], first["sum"]) == (
        reading.scan.head.offset,
        reading.scan.head.seq,
        reading.scan.head.sum,
    )
    assert first["row"] == {
        "session_id": "s1",
        "name": "second",
        "last_activity": reading.scan.last_ts,
        "turns": 2,
        "labels": [],
        "flagged": False,
        "archived": False,
        "unsettled": 0,
        "active_plan": False,
        "pending_handoff": False,
        "queued": 0,
        "admitted": False,
    }
    assert orjson.loads(second) == orjson.loads(orjson.dumps(to_json(reading.state)))
    state, head, seq = resumed(path)
    assert head == reading.scan.head
    assert seq == head.seq
    assert to_json(state) == to_json(reading.state)


def test_opening_with_it_reads_its_line_and_what_follows(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("maka.journal.writer.read_source", None)
        JournalWriter.open(path).close()
    saved = (path.parent / "snapshot.json").read_bytes()
    with JournalWriter.open(path) as writer:
        writer.append_durable(note("behind the snapshot"))
        (path.parent / "snapshot.json").rename(path.parent / "old")
    (path.parent / "old").rename(path.parent / "snapshot.json")
    assert (path.parent / "snapshot.json").read_bytes() == saved
    whole = read(path)
    monkeypatch.setattr("maka.journal.writer.read_source", None)
    with JournalWriter.open(path) as writer:
        assert to_json(writer.state) == to_json(whole.state)
        assert writer.head == whole.scan.head
        writer.append_durable(note("goes on"))
    assert (path.parent / "snapshot.json").read_bytes() != saved
    chain.check(path.read_bytes())


def test_the_verdict_is_asked_when_the_writer_closes(path: Path) -> None:
    assert lines(path)[0]["verdict"] is None
    with JournalWriter.open(path, verdict=lambda state: "interrupted") as writer:
        writer.append(note())
    assert lines(path)[0]["verdict"] == "interrupted"


def test_nothing_new_writes_no_snapshot(path: Path) -> None:
    before = (path.parent / "snapshot.json").stat().st_ino
    JournalWriter.open(path).close()
    assert (path.parent / "snapshot.json").stat().st_ino == before


def test_without_it_nothing_is_lost(path: Path) -> None:
    state = resumed(path)[0]
    (path.parent / "snapshot.json").unlink()
    assert resumed(path) is None
    with JournalWriter.open(path) as writer:
        assert to_json(writer.state) == to_json(state)
    assert (path.parent / "snapshot.json").exists()


def test_a_snapshot_that_cannot_be_written_is_no_failure(path: Path) -> None:
    (path.parent / "snapshot.json").unlink()
    (path.parent / "snapshot.json").mkdir()
    with JournalWriter.open(path) as writer:
        writer.append(note())
    assert not [entry for entry in path.parent.iterdir() if entry.name.endswith(".tmp")]


def test_other_files_of_a_folder_get_none(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    JournalWriter.create(tmp_path / "other.jsonl", header()).close()
    assert not (tmp_path / "snapshot.json").exists()


def rewrite(path: Path, change: Any) -> None:
    """The snapshot with a changed first line, whose digest fits."""
    first, second = lines(path)
    first, second = change(first, second)
    if isinstance(first, dict) and first.get("digest") == lines(path)[0]["digest"]:
        first["digest"] = sha256(second).hexdigest()
    (path.parent / "snapshot.json").write_bytes(json.dumps(first).encode() + b"\n" + second + b"\n")


@pytest.mark.parametrize(
    "change",
    [
        lambda first, second: (first | {"version": 99}, second),
        lambda first, second: (first | {"version": 0}, second),
        lambda first, second: (first | {"sum": "0" * 32}, second),
        lambda first, second: (first | {"seq": first["seq"] - 1}, second),
        lambda first, second: (first | {"size": first["size"] - 1}, second),
        lambda first, second: (first | {"size": first["size"] + 1}, second),
        lambda first, second: (first | {"size": -1}, second),
        lambda first, second: (first | {"size": 10**18}, second),
        lambda first, second: (first | {"size": "x"}, second),
        lambda first, second: (first | {"verdict": "splendid"}, second),
        lambda first, second: (first | {"verdict": []}, second),
        lambda first, second: (first | {"row": []}, second),
        lambda first, second: (first | {"digest": "0" * 64}, second),
        lambda first, second: ([first], second),
        lambda first, second: (first, b""),
        lambda first, second: (first, b"[]"),
        lambda first, second: (first, b"{}"),
        lambda first, second: (first, b'{"v":%d,"state":[1,2,3]}' % summary.VERSION),
        lambda first, second: (first, b'{"v":%d,"state":' % summary.VERSION + b"[" * 900 + b"]" * 900 + b"}"),
        lambda first, second: (first, second.replace(b'"v":%d' % summary.VERSION, b'"v":99', 1)),
        lambda first, second: (first, second[:-10]),
    ],
)
def test_what_does_not_fit_is_ignored(path: Path, change: Any) -> None:
    raw, state = path.read_bytes(), to_json(resumed(path)[0])
    rewrite(path, change)
    assert resumed(path) is None
    with JournalWriter.open(path) as writer:
        assert to_json(writer.state) == state
    assert path.read_bytes() == raw


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_torn_changed_or_foreign_bytes_are_never_an_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    place = tmp_path_factory.mktemp("s")
    path = place / "journal.jsonl"
    JournalWriter.create(path, header(), whole_turn()).close()
    good = (place / "snapshot.json").read_bytes()
    state = to_json(resumed(path)[0])
    kind = data.draw(st.sampled_from(["cut", "flip", "foreign"]))
    if kind == "cut":
        bad = good[: data.draw(st.integers(0, len(good) - 2))]
    elif kind == "flip":
        at = data.draw(st.integers(0, len(good) - 1))
        bad = good[:at] + bytes([good[at] ^ data.draw(st.integers(1, 255))]) + good[at + 1 :]
    else:
        bad = data.draw(st.binary(max_size=300))
    (place / "snapshot.json").write_bytes(bad)
    found = resumed(path)
    assert found is None or to_json(found[0]) == state
    snapshot.peek(str(place / "snapshot.json"))
    JournalWriter.open(path).close()


@pytest.mark.parametrize("kind", ["fifo", "directory", "symlink"])
def test_what_is_no_file_is_ignored(path: Path, kind: str) -> None:
    place = path.parent / "snapshot.json"
    place.rename(path.parent / "elsewhere")
    match kind:
        case "fifo":
            os.mkfifo(place)
        case "directory":
            place.mkdir()
        case "symlink":
            place.symlink_to(path.parent / "elsewhere")
    assert resumed(path) is None
    assert snapshot.peek(str(place)) is None
    JournalWriter.open(path).close()


@pytest.mark.parametrize(
    "rest",
    [
        b"garbage\n",
        b'{"seq":',
        b"\n",
        b"\0\0\0\0",
        b'{"seq":99,"ts":1,"type":"x-a/b","data":{},"sum":"%s"}\n' % (b"0" * 32),
    ],
)
def test_behind_it_everything_must_be_as_a_writer_leaves_it(path: Path, rest: bytes) -> None:
    with open(path, "ab") as file:
        file.write(rest)
    assert resumed(path) is None


def test_a_relation_that_breaks_behind_it_is_found(path: Path) -> None:
    _, head, _ = resumed(path)
    builder = Builder()
    builder.seq, builder.prev, builder.lines = head.seq + 1, head.sum, []
    builder.add("step/end", {"turn_id": "t1", "run_id": "r1", "step": 7})
    with open(path, "ab") as file:
        file.write(builder.raw())
    assert resumed(path) is None
    with pytest.raises(JournalDamaged):
        JournalWriter.open(path)


def test_a_shorter_or_replaced_journal_is_noticed(path: Path) -> None:
    raw = path.read_bytes()
    for data in (raw[:-1], raw[: raw.rindex(b"\n", 0, -1) + 1], Builder().plain_turn().raw(), b""):
        path.write_bytes(data)
        assert resumed(path) is None


def test_a_long_last_line_is_found(path: Path) -> None:
    with JournalWriter.open(path) as writer:
        writer.append(note("x" * 3_000_000))
    with open_source(path) as source:
        found = snapshot.resume(source, path)
        assert found is not None
        assert snapshot.last_event(source, source.size - 1) is None
        assert snapshot.last_event(source, 0) is None
    assert isinstance(found[1], Mark)


def test_a_forks_snapshot_holds_what_its_parent_gave(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    for name in ("sessions", "sessions/s1", "sessions/f1"):
        (tmp_path / name).mkdir(mode=0o700)
    parent, fork = (tmp_path / "sessions" / name / "journal.jsonl" for name in ("s1", "f1"))
    with JournalWriter.create(parent, header(), whole_turn(1)) as writer:
        point = {"session_id": "s1", "seq": writer.head.seq, "sum": writer.head.sum}
    JournalWriter.create(fork, header("f1", parent=point), whole_turn(2)).close()
    assert to_json(resumed(fork)[0]) == to_json(read(fork).state)


def test_token_counts_that_add_up_to_more_than_json_carries_leave_no_snapshot_and_no_error(path: Path) -> None:
    place = path.parent / "snapshot.json"
    before = place.read_bytes()
    usage = {"input_tokens": 2**63 - 1, "output_tokens": 1}
    with JournalWriter.open(path) as writer:
        for number in range(3):
            ask, said = step(2, number + 1)[:1], dict(step(2, number + 1)[-2].data)
            writer.append_batch([*ask, Draft("assistant/message", said | {"usage": usage}), step(2, number + 1)[-1]])
    assert place.read_bytes() == before
    assert read(path).state.usage_row()["input_tokens"] == 3 * (2**63 - 1)
    with JournalWriter.open(path) as writer:
        assert writer.next_seq == read(path).scan.events
