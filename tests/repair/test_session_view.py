"""``load`` repairs, ``inspect`` never writes, ``open_session`` gives the writer: what each shows, leaves and raises."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import maka
from maka.journal.lock import SessionLock
from maka.journal.store import FileStore
from maka.journal.writer import JournalWriter
from maka.repair.session import Session, survey
from support.builder import Builder
from support.chain import check
from support.legal import assert_legal
from support.realistic import realistic


def open_turn() -> Builder:
    return Builder().tool_turn().start("go on").step().delta("Hel").delta("lo")


def everything(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


# ---------------------------------------------------------------- inspect


def test_inspect_writes_nothing_and_shows_the_end_that_a_repair_would_write(tmp_path: Path) -> None:
    path = open_turn().write(tmp_path)
    before = everything(tmp_path)
    session = maka.inspect(path)
    assert session.verdict == "interrupted"
    assert not session.repaired_on_disk
    assert [(turn["turn_id"], turn["status"]) for turn in session.turns()] == [
        ("t1", "completed"),
        ("t2", "interrupted"),
    ]
    assert [(run["status"], run.get("failure_class")) for run in session.runs()] == [
        ("completed", None),
        ("failed", "app_restarted"),
    ]
    assert [event.type for event in session.pending] == ["assistant/message", "step/end", "turn/end"]
    assert session.messages()[-1] == {"role": "assistant", "content": [{"kind": "text", "text": "Hello"}]}
    assert everything(tmp_path) == before


def test_events_and_head_are_what_is_on_disk(tmp_path: Path) -> None:
    builder = open_turn()
    path = builder.write(tmp_path)
    session = maka.inspect(path)
    assert [event.seq for event in session.events] == list(range(1, builder.seq))
    assert session.head is not None
    assert (session.head.seq, session.head.sum) == (builder.seq - 1, builder.prev)
    assert isinstance(session.events[0].payload, maka.TurnStart)
    assert isinstance(session.header, maka.SessionHeader)
    assert session.header.session_id == "s1"


def test_the_pending_closers_are_those_of_the_repair(tmp_path: Path) -> None:
    path = open_turn().write(tmp_path)
    pending = maka.inspect(path).to_json()["pending"]
    maka.load(path)
    written = check(path.read_bytes())[-len(pending) :]
    assert pending == [{key: event[key] for key in ("seq", "type", "data")} for event in written]


KEYS = (
    "session_id path format verdict events bytes head header settings writer findings turns runs "
    "executions continuations handoffs interactions queue plans usage pending"
)


def test_the_document(tmp_path: Path) -> None:
    builder = realistic()
    path = builder.write(tmp_path)
    document = maka.inspect(path).to_json(events=True)
    assert list(document) == [*KEYS.split(), "event_list"]
    assert document["session_id"] == "s1"
    assert document["path"] == str(path)
    assert document["format"] == 1
    assert document["verdict"] == "healthy"
    assert document["events"] == len(builder.lines) == len(document["event_list"])
    assert document["bytes"] == len(builder.raw())
    assert document["head"] == {"seq": builder.seq - 1, "sum": builder.prev}
    assert document["writer"] is None
    assert document["pending"] == []
    assert [turn["status"] for turn in document["turns"]] == [
        "completed",
        "completed",
        "aborted",
        "interrupted",
        "completed",
        "completed",
        "completed",
    ]
    assert [claim["state"] for claim in document["continuations"]] == ["settled", "settled"]
    assert [handoff["state"] for handoff in document["handoffs"]] == ["continued"]
    assert set(document["queue"]) == {"steering", "followup"}
    assert document["event_list"][0]["type"] == "session/header"


def test_the_settings_are_the_newest_values(tmp_path: Path) -> None:
    builder = Builder(name="first", labels=["a"])
    builder.add("session/updated", {"patch": {"name": "second", "archived": True, "x-mine": [1]}})
    builder.add("session/updated", {"patch": {"permission_mode": "bypass", "archived": False, "labels": "no list"}})
    view = maka.inspect(builder.write(tmp_path))
    assert view.header is not None
    expected = {
        "name": "second",
        "labels": [],
        "flagged": False,
        "archived": False,
        "has_unread": False,
        "cwd": view.header.cwd,
        "backend": view.header.backend,
        "model": view.header.model,
        "permission_mode": "bypass",
        "connection": None,
        "x-mine": [1],
    }
    assert view.settings() == view.to_json()["settings"] == expected
    assert view.header.name == "first"


def test_a_session_is_found_by_its_id_its_folder_and_its_path(tmp_path: Path) -> None:
    path = open_turn().write(tmp_path)
    for session in (maka.inspect("s1", root=tmp_path), maka.inspect(path.parent), maka.inspect(str(path))):
        assert session.session_id == "s1"
    with pytest.raises(maka.SessionNotFound):
        maka.inspect("s2", root=tmp_path)


def test_the_writer_is_named_only_while_it_lives(tmp_path: Path) -> None:
    path = open_turn().write(tmp_path)
    with SessionLock.acquire(path.parent):
        writer = maka.inspect(path).to_json()["writer"]
        assert writer is not None
        assert writer["pid"] == os.getpid()
    (path.parent / "journal.lock").write_text('{"pid":1,"host":"h","since":1}')
    assert maka.inspect(path).to_json()["writer"] is None


@pytest.mark.parametrize("raw", [b"", b"\n", b"[]\n", os.urandom(300)])
def test_what_holds_no_event_is_an_error_and_for_a_survey_a_finding(tmp_path: Path, raw: bytes) -> None:
    path = Builder().write(tmp_path, raw)
    for look in (maka.inspect, maka.load):
        with pytest.raises(maka.JournalError):
            look(path)
    session = survey(path)
    assert session.verdict == "unreadable"
    assert session.turns() == []
    assert session.messages() == []
    assert session.to_json(events=True)["event_list"] == []
    assert path.read_bytes() == raw


def test_what_cannot_be_opened_is_a_finding_of_a_survey(tmp_path: Path) -> None:
    path = tmp_path / "pipe.jsonl"
    os.mkfifo(path)
    with pytest.raises(maka.JournalError):
        maka.inspect(path)
    document = survey(path).to_json()
    assert document["verdict"] == "unreadable"
    assert [finding["code"] for finding in document["findings"]] == ["unreadable"]
    assert str(path) in document["findings"][0]["message"]


def asked() -> Builder:
    builder = Builder().start().step().says("", ["q"])
    ask = {"interaction_id": "i", "turn_id": "t1", "run_id": "r1", "kind": "question", "request": {"questions": []}}
    builder.add("interaction/requested", ask)
    return builder


def test_inspect_shows_what_waits_and_load_how_it_ends(tmp_path: Path) -> None:
    path = asked().write(tmp_path)
    assert [item["status"] for item in maka.inspect(path).interactions()] == ["pending"]
    with SessionLock.acquire(path.parent):
        assert [item["status"] for item in maka.load(path).interactions()] == ["closed"]
    assert [item["status"] for item in maka.load(path).interactions()] == ["closed"]
    assert [item["status"] for item in maka.inspect(path).interactions()] == ["closed"]


# ---------------------------------------------------------------- load


def test_load_repairs_and_returns_what_is_on_disk(tmp_path: Path) -> None:
    path = open_turn().write(tmp_path)
    session = maka.load(path)
    assert session.repaired_on_disk
    assert session.verdict == "healthy"
    assert session.pending == ()
    assert session.not_repaired is None
    assert [event.type for event in session.events[-3:]] == ["assistant/message", "step/end", "turn/end"]
    after = path.read_bytes()
    check(after)
    assert maka.load(path).turns() == session.turns()
    assert path.read_bytes() == after


def test_load_shows_the_same_view_where_it_may_not_write(tmp_path: Path) -> None:
    path = open_turn().write(tmp_path)
    raw = path.read_bytes()
    with SessionLock.acquire(path.parent):
        beside = maka.load(path)
        assert path.read_bytes() == raw
    assert not beside.repaired_on_disk
    assert beside.not_repaired is not None
    assert "open for writing" in beside.not_repaired
    alone = maka.load(path)
    assert alone.repaired_on_disk
    for view in (Session.turns, Session.runs, Session.messages, Session.queue, Session.usage, Session.interactions):
        assert view(beside) == view(alone)


def test_load_on_a_place_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = open_turn().write(tmp_path)
    raw = path.read_bytes()

    def refuse(*_: Any) -> int:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("maka.journal.files.create_private", refuse)
    session = maka.load(path)
    assert not session.repaired_on_disk
    assert session.not_repaired is not None
    assert "Read-only" in session.not_repaired
    assert session.turns()[-1]["status"] == "interrupted"
    assert everything(path.parent) == {"journal.jsonl": raw}


def test_load_of_a_damaged_journal_writes_nothing(tmp_path: Path) -> None:
    builder = Builder().plain_turn().start().step()
    lines = list(builder.lines)
    lines[4] = b"not an event"
    raw = b"".join(line + b"\n" for line in lines)
    path = builder.write(tmp_path, raw)
    session = maka.load(path)
    assert session.verdict == "damaged"
    assert not session.repaired_on_disk
    assert session.turns()[-1]["status"] == "interrupted"
    assert session.not_repaired is not None
    assert "--salvage" in session.not_repaired
    assert everything(path.parent) == {"journal.jsonl": raw}
    assert_legal(session.messages())


def test_load_of_an_unsupported_journal_writes_nothing(tmp_path: Path) -> None:
    builder = Builder().start().step()
    builder.add("future/thing", {"a": 1})
    path = builder.write(tmp_path)
    session = maka.load(path)
    assert session.verdict == "unsupported"
    assert session.pending == ()
    assert session.turns()[-1]["status"] == "interrupted"
    assert session.events[-1].type == "future/thing"
    assert path.read_bytes() == builder.raw()


def test_what_is_left_alone_is_shown_as_what_it_is(tmp_path: Path) -> None:
    builder = realistic()
    at = next(i for i, line in enumerate(builder.lines) if b'"type":"handoff/pause"' in line)
    path = builder.write(tmp_path, b"".join(line + b"\n" for line in builder.lines[: at + 1]))
    session = maka.load(path)
    assert session.verdict == "healthy"
    assert session.turns()[-1]["status"] == "paused"
    assert session.handoffs()[-1]["state"] == "pending"


# ---------------------------------------------------------------- open_session


def test_open_session_repairs_and_appends(tmp_path: Path) -> None:
    path = open_turn().write(tmp_path, open_turn().raw() + b'{"seq":')
    with maka.open_session("s1", root=tmp_path) as journal:
        journal.append(maka.SessionNote(kind="abort", text="hello"))
        journal.flush()
        with pytest.raises(maka.JournalLocked):
            maka.open_session(path)
    events = check(path.read_bytes())
    assert [event["type"] for event in events[-3:]] == ["step/end", "turn/end", "session/note"]
    assert maka.inspect(path).verdict == "healthy"


def test_open_session_without_repair_puts_only_the_tail_in_order(tmp_path: Path) -> None:
    builder = open_turn()
    for raw in (builder.raw() + b'{"seq":', builder.raw()[:-1]):
        path = builder.write(tmp_path, raw)
        with maka.open_session(path, repair=False) as journal:
            assert path.read_bytes() == builder.raw()
            assert list(journal.state.turns.open) == ["t2"]
            assert journal.head.seq == builder.seq - 1


def test_open_session_passes_the_cause_on(tmp_path: Path) -> None:
    path = open_turn().write(tmp_path)
    with maka.open_session(path, cause="journal_write_failed"):
        pass
    turn = maka.inspect(path).turns()[-1]
    assert turn["reason"] == {"kind": "failed", "failure_class": "journal_write_failed"}
    assert turn["status"] == "failed"


@pytest.mark.parametrize("repair", [True, False])
def test_open_session_refuses_damage_and_names_the_command(tmp_path: Path, repair: bool) -> None:
    builder = open_turn()
    path = builder.write(tmp_path, builder.raw().replace(b'"hi"', b'"ho"'))
    raw = path.read_bytes()
    with pytest.raises(maka.JournalDamaged, match="maka journal repair --salvage"):
        maka.open_session(path, repair=repair)
    assert path.read_bytes() == raw
    SessionLock.acquire(path.parent).release()


def test_open_session_refuses_what_a_newer_version_wrote(tmp_path: Path) -> None:
    builder = Builder()
    builder.add("future/thing", {})
    with pytest.raises(maka.JournalUnsupported):
        maka.open_session(builder.write(tmp_path))


def test_a_salvaged_journal_opens_for_writing(tmp_path: Path) -> None:
    from maka.repair.apply import repair

    builder = open_turn()
    path = builder.write(tmp_path, builder.raw().replace(b'"hi"', b'"ho"'))
    repair(path, salvage=True)
    for _ in range(2):
        with maka.open_session(path) as journal:
            journal.append(maka.SessionNote(kind="abort"))
            journal.flush()
    assert maka.inspect(path).verdict == "healthy"


@pytest.mark.parametrize("opened", [maka.open_session, JournalWriter.open])
def test_trailing_lines_that_are_no_events_do_not_keep_a_session_from_opening(tmp_path: Path, opened: Any) -> None:
    builder = Builder().plain_turn()
    path = builder.write(tmp_path, builder.raw() + b"\n" + builder.lines[-1] + b"\n")
    with opened(path) as journal:
        journal.append(maka.SessionNote(kind="abort"))
        journal.flush()
    assert maka.inspect(path).verdict == "healthy"


def test_a_session_that_was_closed_cleanly_opens_without_reading_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Builder().tool_turn().write(tmp_path)
    maka.open_session(path).close()
    monkeypatch.setattr("maka.repair.session.repair_locked", None)
    for number in range(2):
        with maka.open_session(path) as journal:
            journal.append(maka.SessionNote(kind="abort", text=f"{number}"))
    check(path.read_bytes())
    assert maka.inspect(path).verdict == "healthy"


def test_a_session_that_was_closed_within_a_turn_is_repaired_all_the_same(tmp_path: Path) -> None:
    path = open_turn().write(tmp_path)
    maka.open_session(path, repair=False).close()
    with maka.open_session(path) as journal:
        assert not journal.state.turns.open
    assert maka.inspect(path).turns()[-1]["status"] == "interrupted"


@pytest.mark.parametrize(("repair", "verdict"), [(True, "healthy"), (False, "interrupted")])
def test_a_listing_tells_how_a_session_was_left(tmp_path: Path, repair: bool, verdict: str) -> None:
    path = open_turn().write(tmp_path)
    with maka.open_session(path, repair=repair) as journal:
        journal.append(maka.SessionNote(kind="abort"))
    assert [row["verdict"] for row in FileStore(tmp_path).list()] == [verdict]


# ---------------------------------------------------------------- forks


def test_a_fork_shows_its_parents_conversation(tmp_path: Path) -> None:
    parent = Builder("parent").plain_turn("from the parent")
    at = {"session_id": "parent", "seq": parent.seq - 1, "sum": parent.prev}
    parent.plain_turn("not in the fork")
    parent.write(tmp_path)
    fork = Builder("fork", parent=at)
    fork.turn = 1
    fork.start("from the fork").step()
    path = fork.write(tmp_path)
    session = maka.load(path)
    assert session.repaired_on_disk
    texts = [block["text"] for message in session.messages() for block in message["content"] if "text" in block]
    assert "from the parent" in texts
    assert "from the fork" in texts
    assert "not in the fork" not in texts
    assert [turn["status"] for turn in session.turns()][-1] == "interrupted"


def test_a_fork_without_its_parent_is_readable_by_itself(tmp_path: Path) -> None:
    fork = Builder("fork", parent={"session_id": "gone", "seq": 3, "sum": "0" * 32}).plain_turn("alone")
    session = maka.load(fork.write(tmp_path))
    assert session.verdict == "healthy"
    assert [finding.code for finding in session.findings] == ["parent_missing"]
    assert session.messages()[0]["content"] == [{"kind": "text", "text": "alone"}]


# ---------------------------------------------------------------- the package


def test_the_package_imports_nothing_until_it_is_asked() -> None:
    code = "import sys, maka; print(sorted(m for m in sys.modules if m.startswith(('maka.', 'attr', 'orjson'))))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_every_public_name_is_there() -> None:
    for name in maka.__all__:
        assert getattr(maka, name) is not None
    assert set(maka.__all__) <= set(dir(maka))
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        getattr(maka, "nothing_of_the_kind")  # noqa: B009


def test_a_view_taken_before_a_repair_keeps_to_what_it_saw(tmp_path: Path) -> None:
    path = open_turn().write(tmp_path, open_turn().raw() + b'{"seq":99,"ts":1,"type":"se')
    view, whole = maka.inspect(path), maka.inspect(path)
    seen, told = whole.events, whole.messages()
    maka.load(path)
    assert [event.sum for event in view.events] == [event.sum for event in seen]
    assert view.messages() == told
