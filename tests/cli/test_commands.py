"""Every command of `maka journal`: exit codes, documents, what it writes and what it does not."""

import fcntl
import json
import os
import pty
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from maka.journal.errors import SessionNotFound
from maka.journal.reader import open_source
from maka.journal.store import FileStore
from support.builder import Builder
from support.command import COMMAND, here

Run = Callable[..., Any]
Make = Callable[[], bytes]


def healthy() -> bytes:
    return bytes(Builder().tool_turn().raw())


def interrupted() -> bytes:
    return bytes(Builder().plain_turn().start().step().raw())


def lacks_only_its_lf() -> bytes:
    return bytes(Builder().plain_turn().raw()[:-1])


def torn() -> bytes:
    return bytes(Builder().plain_turn().raw() + b'{"seq":9,"ts":1,"type":"session/no')


def damaged() -> bytes:
    lines = Builder().plain_turn().plain_turn().lines
    return b"".join(line + b"\n" for line in (*lines[:4], lines[4][:50], *lines[5:]))


def salvaged(run: Run, path: Path) -> None:
    assert run("journal", "repair", path, "--salvage").code == 0


def unsupported() -> bytes:
    journal = Builder().plain_turn()
    journal.add("future/thing", {"a": 1})
    return bytes(journal.raw())


def newer() -> bytes:
    return bytes(Builder(format=2).raw())


def empty() -> bytes:
    return b""


def garbage() -> bytes:
    return os.urandom(4096).replace(b"\n", b"") + b"\n"


#: kind -> exit codes of inspect, verify, repair --dry-run, repair, show, tail
CODES: dict[str, tuple[Make, str, tuple[int, int, int, int, int, int]]] = {
    "healthy": (healthy, "healthy", (0, 0, 0, 0, 0, 0)),
    "interrupted": (interrupted, "interrupted", (1, 0, 1, 0, 0, 0)),
    "without its LF": (lacks_only_its_lf, "interrupted", (1, 1, 1, 0, 0, 0)),
    "torn": (torn, "torn", (1, 1, 1, 0, 0, 0)),
    "damaged": (damaged, "damaged", (4, 4, 4, 4, 0, 0)),
    "unsupported": (unsupported, "unsupported", (4, 4, 4, 4, 4, 4)),
    "newer": (newer, "unsupported", (4, 4, 4, 4, 4, 4)),
    "empty": (empty, "unreadable", (4, 4, 4, 4, 4, 4)),
    "garbage": (garbage, "unreadable", (4, 4, 4, 4, 4, 4)),
}

INSPECTED = {
    "session_id", "path", "format", "verdict", "events", "bytes", "head", "header", "settings", "writer", "findings",
    "turns", "runs", "executions", "continuations", "handoffs", "interactions", "queue", "plans", "usage", "pending",
    "next", "live",
}  # fmt: skip
REPAIRED = {"session_id", "path", "dry_run", "verdict_before", "verdict_after", "set_aside", "appended"}
VERIFIED = {"session_id", "path", "verdict", "events", "head", "unverified", "findings"}


@pytest.mark.parametrize("kind", CODES)
def test_exit_codes_and_documents(maka_: Run, tmp_path: Path, kind: str) -> None:
    make, verdict, (inspect, verify, dry, deed, show, tail) = CODES[kind]
    raw = make()
    path = Builder().write(tmp_path, raw)
    ran = maka_("journal", "inspect", path, "--json")
    assert (ran.code, ran.json["verdict"]) == (inspect, verdict)
    assert set(ran.json) == INSPECTED
    assert set(maka_("journal", "inspect", path, "--json", "--events").json) == {*INSPECTED, "event_list"}
    ran = maka_("journal", "verify", path, "--json")
    assert ran.code == verify
    assert set(ran.json) >= VERIFIED
    assert maka_("journal", "show", path).code == show
    assert maka_("journal", "show", path, "--json").code == show
    ran = maka_("journal", "tail", path)
    assert ran.code == tail
    assert ran.err.startswith(f"maka: {path}") if tail else ran.err == ""
    ran = maka_("journal", "repair", path, "--dry-run", "--json")
    assert (ran.code, ran.json["dry_run"], ran.json["verdict_before"]) == (dry, True, verdict)
    assert set(ran.json) == REPAIRED
    assert path.read_bytes() == raw
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["journal.jsonl"]
    ran = maka_("journal", "repair", path, "--json")
    assert (ran.code, ran.json["dry_run"]) == (deed, False)
    assert set(ran.json) == REPAIRED
    if deed == 4:
        assert path.read_bytes() == raw
        assert ran.json["appended"] == ran.json["set_aside"] == []
        assert ran.json["verdict_after"] == verdict
        assert ran.err.startswith(f"maka: {path}")
        assert ran.err.count("\n") == 1
    else:
        assert ran.json["verdict_after"] == "healthy"
        assert maka_("journal", "inspect", path).code == 0


@pytest.mark.parametrize("command", ["inspect", "verify", "repair", "show", "tail"])
def test_text_is_on_standard_output_too(maka_: Run, tmp_path: Path, command: str) -> None:
    path = Builder().tool_turn().write(tmp_path)
    ran = maka_("journal", command, path)
    assert (ran.code, ran.err) == (0, "")
    assert len(ran.out.splitlines()) >= 3


def test_damage_is_salvaged_and_then_verifies(maka_: Run, tmp_path: Path) -> None:
    path = Builder().write(tmp_path, damaged())
    ran = maka_("journal", "repair", path, "--salvage", "--dry-run", "--json")
    assert (ran.code, path.read_bytes()) == (1, damaged())
    salvaged(maka_, path)
    assert maka_("journal", "inspect", path).code == 0
    assert maka_("journal", "verify", path).code == 0
    assert [entry.name for entry in (path.parent / "damage").iterdir()] == [
        ran.json["set_aside"][0]["file"].removeprefix("damage/")
    ]


@pytest.mark.parametrize("flags", [[], ["--dry-run"], ["--salvage"]])
def test_a_held_lock_keeps_a_repair_out(maka_: Run, tmp_path: Path, flags: list[str]) -> None:
    path = Builder().write(tmp_path, interrupted())
    with (path.parent / "journal.lock").open("w") as lock:
        json.dump({"pid": 4711, "host": "here", "since": 1_790_000_000_000}, lock)
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        ran = maka_("journal", "repair", path, "--json", *flags)
        assert (ran.code, ran.json["appended"], ran.json["locked"]) == (3, [], True)
        assert ran.json["verdict_before"] == ran.json["verdict_after"] == "interrupted"
        assert "process 4711 since 20" in ran.err
        ran = maka_("journal", "repair", path, *flags)
        assert (ran.code, "nothing was done, a live writer has it locked" in ran.out) == (3, True)
        assert maka_("journal", "inspect", path).code == 1
        assert maka_("journal", "show", path).code == 0
    assert path.read_bytes() == interrupted()
    assert maka_("journal", "repair", path).code == 0


@pytest.mark.parametrize("target", ["file", "directory", "id", "id under another root"])
def test_what_a_target_may_be(maka_: Run, tmp_path: Path, target: str) -> None:
    root = tmp_path / ("other" if target.endswith("root") else "root")
    path = Builder("mine").plain_turn().write(root)
    targets: dict[str, list[object]] = {
        "file": [path],
        "directory": [path.parent],
        "id": ["mine"],
        "id under another root": ["mine", "--root", root],
    }
    words = targets[target]
    for command in ("inspect", "repair", "verify"):
        assert maka_("journal", command, *words, "--json").json["session_id"] == "mine"


def test_verify_with_a_head(maka_: Run, tmp_path: Path) -> None:
    journal = Builder().plain_turn()
    early = journal.prev
    path = journal.plain_turn().write(tmp_path)
    assert maka_("journal", "verify", path, "--head", early).code == 0
    assert maka_("journal", "verify", path, "--head", journal.prev).code == 0
    for other in ("f" * 32, "", "no sum"):
        ran = maka_("journal", "verify", path, "--head", other, "--json")
        assert (ran.code, ran.json["verdict"]) == (4, "healthy")
        assert ran.err.count("\n") == 1


def test_verify_with_a_head_behind_what_cannot_be_proven(maka_: Run, tmp_path: Path) -> None:
    path = Builder().write(tmp_path, damaged())
    salvaged(maka_, path)
    lines = path.read_bytes().splitlines()
    assert maka_("journal", "verify", path, "--head", lines[3][-34:-2].decode()).code == 0
    assert maka_("journal", "verify", path, "--head", lines[5][-34:-2].decode()).code == 4
    assert maka_("journal", "verify", path, "--head", lines[-1][-34:-2].decode()).code == 4


def test_tail_prints_the_newest(maka_: Run, tmp_path: Path) -> None:
    path = Builder().plain_turn().write(tmp_path)
    ran = maka_("journal", "tail", path, "-n", "2", "--json")
    assert [json.loads(line)["type"] for line in ran.out.splitlines()] == ["turn/end", "run/settled"]
    assert maka_("journal", "tail", path, "-n", "0").out == ""
    raw = path.read_bytes().splitlines()
    assert [json.loads(line) for line in ran.out.splitlines()] == [json.loads(line) for line in raw[-2:]]


def test_list_shows_every_session(maka_: Run, tmp_path: Path) -> None:
    root = tmp_path / "root"
    Builder("good").plain_turn().write(root)
    Builder("hurt").write(root, damaged())
    Builder("void").write(root, b"")
    (root / "sessions" / "no-session").mkdir()
    ran = maka_("journal", "list", "--json")
    assert ran.code == 0
    assert [row["session_id"] for row in ran.json["sessions"]] == ["good", "hurt", "void"]
    keys = {"session_id", "name", "last_activity", "turns", "verdict", "labels", "flagged", "archived", "unsettled"}
    keys |= {"active_plan", "pending_handoff", "queued", "admitted", "title"}
    assert all(set(row) == keys for row in ran.json["sessions"])
    text = maka_("journal", "list")
    assert [row.split()[0] for row in text.out.splitlines()] == ["session", "good", "hurt", "void"]


def test_list_of_an_empty_root(maka_: Run, tmp_path: Path) -> None:
    ran = maka_("journal", "list", "--json")
    assert (ran.code, ran.json, ran.err) == (0, {"sessions": []}, "")
    ran = maka_("journal", "list", "--root", tmp_path / "nowhere")
    assert (ran.code, ran.out) == (0, "")
    place = tmp_path / "nowhere"
    sentence = f"there is no session under {place}"
    assert ran.err == f"{sentence}: that directory is not there; look at --root and $MAKA_HOME\n"
    place.mkdir()
    assert maka_("journal", "list", "--root", place).err == f"{sentence}\n"
    ran = maka_("journal", "list", "--root", "")
    assert (ran.code, "the root is an empty text" in ran.err) == (2, True)


def test_a_session_that_is_not_there_is_looked_for_under_its_root(maka_: Run, tmp_path: Path) -> None:
    place = tmp_path / "my root"
    said = f"there is no session 'nobody' under {place} and no such path; see `maka journal list --root '{place}'`"
    assert maka_("journal", "inspect", "nobody", "--root", place).err == f"maka: {said}\n"
    path = place / "sessions" / "nobody" / "journal.jsonl"
    said = f"there is no journal at {path}; `maka journal list --root '{place}'` shows the sessions of a root"
    for ask in (lambda: FileStore(place).open("nobody"), lambda: open_source(path)):
        with pytest.raises(SessionNotFound) as caught:
            ask()
        assert str(caught.value) == said


def test_show_gives_the_history_of_a_model(maka_: Run, tmp_path: Path) -> None:
    path = Builder().tool_turn().write(tmp_path)
    ran = maka_("journal", "show", path, "--json")
    assert set(ran.json) == {"messages"}
    assert [message["role"] for message in ran.json["messages"]] == ["user", "assistant", "tool", "assistant"]


def test_reading_works_where_nothing_may_be_written(maka_: Run, tmp_path: Path) -> None:
    path = Builder().write(tmp_path, interrupted())
    places = [path.parent, path]
    for place, mode in zip(places, (0o500, 0o400), strict=True):
        place.chmod(mode)
    try:
        assert maka_("journal", "inspect", path).code == 1
        assert maka_("journal", "repair", path, "--dry-run").code == 1
        assert maka_("journal", "show", path).code == 0
        assert sorted(entry.name for entry in path.parent.iterdir()) == ["journal.jsonl"]
    finally:
        path.parent.chmod(0o700)


def test_what_is_no_file_is_refused(maka_: Run, tmp_path: Path) -> None:
    directory = tmp_path / "root" / "sessions" / "s1"
    (directory / "journal.jsonl").mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe.jsonl")
    for target in (directory / "journal.jsonl", tmp_path / "pipe.jsonl", "/dev/null"):
        for command in ("inspect", "verify", "repair", "show", "tail"):
            ran = maka_("journal", command, target, "--json")
            assert ran.code in (2, 4)
            assert "delete" not in ran.err


def test_escape_sequences_of_a_journal_never_reach_the_terminal(maka_: Run, tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\r"
    journal = Builder("s1", model=evil, name=evil)
    journal.start(evil).step().says(evil, [evil], arguments=evil)
    journal.call(evil, arguments=evil, name=evil)
    journal.add("x-evil/" + "type", {"text": evil, "kind": evil})
    path = journal.write(tmp_path / "root")
    for words in (
        ["inspect", "s1", "--events"],
        ["tail", "s1"],
        ["show", "s1"],
        ["repair", "s1"],
        ["list"],
        ["verify", path],
    ):
        ran = maka_("journal", *words)
        assert not {"\x1b", "\x07", "\x9b", "\u202e", "\r"} & set(ran.out + ran.err), words


def test_colours_are_for_terminals_that_want_them(tmp_path: Path) -> None:
    path = Builder().write(tmp_path, interrupted())
    coloured = on_a_terminal(["journal", "inspect", str(path)], {})
    assert b"\x1b[33m" in coloured
    assert b"\x1b" not in on_a_terminal(["journal", "inspect", str(path)], {"NO_COLOR": "1"})


def on_a_terminal(words: list[str], env: dict[str, str]) -> bytes:
    """What a command writes to a terminal."""
    parent, child = pty.openpty()
    environ = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "TERM")}
    environ |= {"TERM": "xterm", **env}
    with os.fdopen(parent, "rb", buffering=0) as screen:
        process = subprocess.Popen([*COMMAND, *words], stdout=child, stderr=child, stdin=child, env=environ)
        os.close(child)
        seen = b""
        try:
            while chunk := screen.read(4096):
                seen += chunk
        except OSError:
            pass  # how a terminal ends on Linux
        process.wait()
    return seen


def test_a_root_that_is_no_directory_cannot_be_listed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    refused = here("journal", "list", "--root", str(tmp_path / "file"))
    assert refused.code == 2
    assert str(tmp_path / "file") in refused.err
    assert here("journal", "list", "--root", str(tmp_path / "not-yet")).code == 0
