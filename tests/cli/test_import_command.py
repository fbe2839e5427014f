"""`maka journal import`, and the other commands on session files of other tools, which none of them ever writes."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import maka
from maka.journal import legality
from support.command import Ran
from support.foreign_lines import CLAUDE, claude
from support.foreign_symptoms import answers, asks, rollout

Run = Callable[..., Ran]
CORPUS = Path(__file__).parents[2] / "fixtures" / "corpus"


@pytest.fixture
def transcript(tmp_path: Path) -> Path:
    path = tmp_path / "theirs" / "projects" / f"{CLAUDE}.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(claude())
    return path


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_a_session_of_another_tool_is_inspected(maka_: Run, transcript: Path) -> None:
    before = tree(transcript.parent)
    ran = maka_("journal", "inspect", transcript, "--json")
    doc = ran.json
    assert (ran.code, doc["verdict"], doc["format"], doc["session_id"]) == (1, "interrupted", "claude-code", CLAUDE)
    assert [turn["status"] for turn in doc["turns"]] == ["completed", "interrupted"]
    assert [call["state"] for turn in doc["turns"] for call in turn["calls"]] == ["ok", "unknown"]
    assert {finding["code"] for finding in doc["findings"]} == {"unknown_outcome", "open_turn"}
    assert all(finding["line"] and finding["remedy"] for finding in doc["findings"])
    assert doc["usage"]["output_tokens"] == 15
    assert doc["events"] == len(claude().splitlines())
    keys = set(maka_("journal", "inspect", CORPUS / "three-turns.jsonl", "--json").json)
    assert keys <= set(doc)
    text = maka_("journal", "inspect", transcript).out
    assert "written by" not in text
    assert "claude-code" in text
    assert f"maka journal import {transcript}" in text
    assert (
        maka_("journal", "inspect", transcript, "--json", "--events").json["event_list"][0]["type"] == "session/header"
    )
    assert tree(transcript.parent) == before


def test_it_is_shown_and_exported_as_it_is(maka_: Run, transcript: Path) -> None:
    assert "list files" in maka_("journal", "show", transcript).out
    exported = maka_("journal", "export", transcript, "--to", "anthropic")
    assert legality.anthropic(exported.json) == []
    assert maka_("journal", "show", transcript, "--json").json["messages"][0]["role"] == "user"
    assert "list files" in maka_("journal", "export", transcript, "--to", "markdown").out
    assert maka_("journal", "export", transcript, "--to", "anthropic", "--through", "3").code == 2


@pytest.mark.parametrize("options", [[], ["--dry-run"], ["--salvage"], ["--salvage", "--dry-run"]])
def test_no_repair_writes_it(maka_: Run, transcript: Path, options: list[str]) -> None:
    before = tree(transcript.parent)
    ran = maka_("journal", "repair", transcript, *options)
    assert ran.code == 4
    assert (ran.out, ran.err.count("\n")) == ("", 1)
    assert f"`maka journal import {transcript}`" in ran.err
    doc = maka_("journal", "repair", transcript, *options, "--json").json
    assert (doc["session_id"], doc["format"], doc["verdict_before"]) == (CLAUDE, "claude-code", "interrupted")
    assert (doc["appended"], doc["set_aside"]) == ([], [])
    assert tree(transcript.parent) == before


def test_an_empty_one_is_not_to_be_imported_instead(maka_: Run, tmp_path: Path) -> None:
    path = tmp_path / "rollout-1.jsonl"
    path.touch()
    ran = maka_("journal", "repair", path)
    assert (ran.code, "holds nothing to import" in ran.err, "maka journal import" in ran.err) == (4, True, False)


def test_no_tail_of_it_is_followed(maka_: Run, transcript: Path) -> None:
    ran = maka_("journal", "tail", transcript)
    assert (ran.code, ran.out, ran.err.count("\n")) == (4, "", 1)
    assert "is a session file of Claude Code" in ran.err
    assert f"`maka journal import {transcript}`" in ran.err


def test_a_program_is_told_that_it_is_no_journal(transcript: Path, tmp_path: Path) -> None:
    for read in (maka.load, maka.inspect, maka.open_session):
        with pytest.raises(maka.JournalError, match=r"is a session file of Claude Code.*`maka journal import .*`"):
            read(transcript)
    array = tmp_path / "array.json"
    array.write_text('[{"role":"user","content":"hello"}]')
    with pytest.raises(maka.JournalError, match=r"is an array of messages .*`maka journal import .*`"):
        maka.load(array)
    array.write_text("no session of anybody")
    with pytest.raises(maka.JournalError, match="holds no event"):
        maka.load(array)


def test_what_is_said_of_it_is_said_of_lines_and_of_an_import(maka_: Run, transcript: Path) -> None:
    text = maka_("journal", "inspect", transcript).out
    assert re.search(r"^holds +6 lines, ", text, re.MULTILINE)
    assert "repair" not in text.replace("repairable", "")
    assert "FILE" not in text
    assert f"run `maka journal import {transcript}`; " in text
    assert "an import would close it with\n" in text
    assert "as events" in text
    journal = maka_("journal", "inspect", CORPUS / "three-turns.jsonl").out
    assert re.search(r"^holds +[0-9,]+ events, ", journal, re.MULTILINE)


def test_a_directory_of_them_is_to_be_imported(maka_: Run, transcript: Path, tmp_path: Path) -> None:
    place = transcript.parent.parent
    for words in (["inspect"], ["show"], ["tail"], ["repair"], ["verify"], ["export", "--to", "anthropic"]):
        ran = maka_("journal", words[0], place, *words[1:])
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), words
        assert f"`maka journal import {place}`" in ran.err
        assert f"`maka journal inspect {transcript}`" in ran.err
    (tmp_path / "nothing").mkdir()
    assert "there is no journal at" in maka_("journal", "inspect", tmp_path / "nothing").err


def test_a_session_of_the_root_counts_before_a_directory_of_its_name(
    maka_: Run, transcript: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maka_("journal", "import", transcript)
    monkeypatch.chdir(transcript.parent)
    place = transcript.parent / CLAUDE
    place.mkdir()
    (place / "session.jsonl").write_bytes(b'{"type":"session","version":0,"id":"other","createdAt":1,"cwd":"/w"}\n')
    assert maka_("journal", "inspect", CLAUDE, "--json").json["verdict"] == "healthy"
    assert maka_("journal", "inspect", f"{CLAUDE}/", "--json").json["session_id"] == "other"


@pytest.mark.parametrize(("given", "says"), [([], ""), (["other.jsonl"], "1 files are no sessions")])
def test_a_directory_without_any_is_said(maka_: Run, tmp_path: Path, given: list[str], says: str) -> None:
    place = tmp_path / "place"
    place.mkdir()
    for name in given:
        (place / name).write_text('{"some": "thing"}\n')
    ran = maka_("journal", "import", place)
    assert ran.code == 0
    assert ran.err == f"no session file of a tool that is known here is in {place}\n"
    ran = maka_("journal", "import", place, "--json")
    assert (ran.code, ran.err, ran.json["files"], len(ran.json["skipped"])) == (0, "", [], len(given))


def test_a_session_is_imported_and_goes_on_like_any_other(maka_: Run, transcript: Path, tmp_path: Path) -> None:
    ran = maka_("journal", "import", transcript)
    assert (ran.code, ran.err) == (0, "")
    assert CLAUDE in ran.out
    assert maka_("journal", "inspect", CLAUDE).code == 0
    assert maka_("journal", "verify", CLAUDE).code == 0
    [row] = maka_("journal", "list", "--json").json["sessions"]
    assert (row["session_id"], row["turns"], row["verdict"]) == (CLAUDE, 2, "healthy")
    assert "unchanged" in maka_("journal", "import", transcript).out
    exported = maka_("journal", "export", CLAUDE, "--to", "openai-chat").json
    assert legality.openai_chat(exported) == []
    assert exported == maka_("journal", "export", transcript, "--to", "openai-chat").json


def test_a_backend_is_named_for_going_on(maka_: Run, transcript: Path) -> None:
    maka_("journal", "import", transcript, "--backend", "mine")
    doc = maka_("journal", "inspect", CLAUDE, "--json").json
    assert (doc["header"]["backend"], doc["settings"]["backend"]) == ("mine", "mine")
    assert doc["header"]["imported_from"]["format"] == "claude-code"
    # Going on under another name is no other session.
    again = maka_("journal", "import", transcript)
    assert ("unchanged" in again.out, again.err) == (True, "")
    assert maka_("journal", "import", transcript, "--backend", "mine").err == ""
    other = maka_("journal", "import", transcript, "--backend", "theirs", "--json")
    assert (other.code, other.json["sessions"]["unchanged"]) == (0, 1)
    assert "--backend changes nothing there" in other.err
    assert f"`maka run --session {CLAUDE} --backend theirs TEXT`" in other.err
    assert maka_("journal", "inspect", CLAUDE, "--json").json["settings"]["backend"] == "mine"


@pytest.mark.parametrize(
    ("content", "form"),
    [
        (claude(), "anthropic"),
        (rollout(asks("hello"), answers("hi")), "openai-responses"),
        (b'{"messages":[{"role":"user","content":"hello"}]}', "openai-chat"),
    ],
)
def test_it_is_exported_to_whom_its_tool_asks(maka_: Run, tmp_path: Path, content: bytes, form: str) -> None:
    path = tmp_path / "some.jsonl"
    path.write_bytes(content)
    *_, export = maka_("journal", "inspect", path, "--json").json["next"]
    assert export["command"] == f"maka journal export {path} --to {form}"


def test_a_journal_is_what_can_be_verified(maka_: Run, transcript: Path) -> None:
    ran = maka_("journal", "verify", transcript)
    assert ran.code == 2
    assert "maka journal inspect" in ran.err


def test_a_dry_run_writes_nothing(maka_: Run, transcript: Path, tmp_path: Path) -> None:
    assert f"  would be created {CLAUDE}  main: 2 turns" in maka_("journal", "import", transcript, "--dry-run").out
    doc = maka_("journal", "import", transcript, "--dry-run", "--json").json
    assert doc["dry_run"] is True
    assert doc["sessions"] == {"created": 1, "grown": 0, "unchanged": 0}
    assert not (tmp_path / "root").exists()
    made = maka_("journal", "import", transcript, "--json").json
    assert made["files"][0]["sessions"] == doc["files"][0]["sessions"], "the events that close it are counted too"


def test_a_directory_is_searched(maka_: Run, transcript: Path, tmp_path: Path) -> None:
    place = transcript.parent
    (place / "notes.txt").write_text("no session")
    (place / "other.jsonl").write_text('{"some": "thing"}\n')
    (place / "rollout-empty.jsonl").touch()
    (place / "again").mkdir()
    (place / "again" / f"{CLAUDE[:-1]}0.jsonl").write_bytes(claude())
    os.symlink(transcript, place / "link.jsonl")
    os.symlink(place, place / "loop")
    ran = maka_("journal", "import", place, "--json", "--no-original")
    doc = ran.json
    assert ran.code == 0
    assert doc["sessions"] == {"created": 2, "grown": 0, "unchanged": 0}
    assert doc["skipped"] == [str(place / "other.jsonl")]
    assert sorted(file["format"] for file in doc["files"]) == ["claude-code", "claude-code", "empty"]
    assert not list((tmp_path / "root").rglob("blobs"))


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"\x00\x01\x02 binary", 4),
        (b"hello\n", 4),
        (b'{"a": 1}\n', 4),
        (b"[" * 100_000 + b"\n", 4),
        (b'{"type":"session","version":0,"id":"../../x","createdAt":1}\n', 0),
    ],
)
def test_what_is_no_session_is_said_in_a_sentence(maka_: Run, tmp_path: Path, content: bytes, code: int) -> None:
    path = tmp_path / "some.jsonl"
    path.write_bytes(content)
    before = {*os.listdir(tmp_path)}
    ran = maka_("journal", "import", path)
    assert ran.code == code
    assert (len(ran.err.splitlines()) == 1) == bool(code)
    assert {*os.listdir(tmp_path)} - before <= {"root"}


@pytest.mark.parametrize("words", [["nowhere.jsonl"], ["--root"], []])
def test_a_file_that_is_not_there(maka_: Run, words: list[str]) -> None:
    assert maka_("journal", "import", *words).code == 2


def test_an_empty_file_is_nothing_to_repair(maka_: Run, tmp_path: Path) -> None:
    path = tmp_path / "rollout-1.jsonl"
    path.touch()
    doc = maka_("journal", "import", path, "--json").json
    assert doc["files"] == [{"path": str(path), "format": "empty", "bytes": 0, "sessions": []}]
    ran = maka_("journal", "inspect", path, "--events")
    assert ran.code == 0
    assert "maybe being created" in ran.out
    # Of a journal it is another matter.
    assert maka_("journal", "inspect", path.rename(tmp_path / "journal.jsonl")).code == 4


def test_one_bad_file_keeps_no_other_from_being_imported(maka_: Run, transcript: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(b"nothing\n")
    ran = maka_("journal", "import", bad, transcript, "--json")
    assert ran.code == 4
    assert ran.json["sessions"]["created"] == 1
    assert [failure["path"] for failure in ran.json["failed"]] == [str(bad)]


def rows(doc: Any) -> list[Any]:
    return [session for file in doc["files"] for session in file["sessions"]]


def test_a_file_that_has_grown_adds_what_is_new(maka_: Run, transcript: Path) -> None:
    maka_("journal", "import", transcript)
    transcript.write_bytes(claude(further=True))
    [session] = rows(maka_("journal", "import", transcript, "--json").json)
    assert (session["action"], session["of"]) == ("grown", CLAUDE)
    shown = maka_("journal", "show", session["session_id"]).out
    assert "list files" in shown
    assert "the last answer" in shown


def test_many_files_are_imported_at_once(maka_: Run, tmp_path: Path) -> None:
    """Also where several are of one session: none is lost, and none is there twice."""
    place = tmp_path / "many"
    for number in range(20):
        folder = place / str(number)
        folder.mkdir(parents=True)
        session_id = f"0a0a0a0a-0000-4000-8000-{number // 4:012}"
        (folder / f"{session_id}.jsonl").write_bytes(claude(further=number % 2 == 1))
    (place / "bad.jsonl").write_bytes(b"nothing" + bytes([10]))
    doc = maka_("journal", "import", place, "--json").json
    assert [file["path"] for file in doc["files"]] == sorted(file["path"] for file in doc["files"])
    assert (len(doc["files"]), doc["failed"], len(doc["skipped"])) == (20, [], 1)
    assert doc["sessions"]["created"] >= 5
    listed = maka_("journal", "list", "--json").json["sessions"]
    assert len(listed) == doc["sessions"]["created"] + doc["sessions"]["grown"]
    assert {row["verdict"] for row in listed} == {"healthy"}
    assert list((tmp_path / "root" / "importing").iterdir()) == []
    again = maka_("journal", "import", place, "--json").json
    assert again["sessions"]["created"] == 0
    assert len(maka_("journal", "list", "--json").json["sessions"]) == len(listed) + again["sessions"]["grown"]
