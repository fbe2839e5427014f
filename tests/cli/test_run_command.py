"""`maka run`: one message, its turn on the screen, its outcome as exit code, whatever becomes of the host meanwhile."""

import asyncio
import io
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import maka
from maka.cli import exits
from maka.cli.signals import SIGNALS
from maka.journal.reader import JOURNAL
from support import documents
from support.command import COMMAND, process
from support.documents import HOST
from support.foreign_lines import CLAUDE, claude
from support.spoken import Hosted, Terminal, shown, started

Run = Callable[..., Any]


def session_of(ran: Any) -> str:
    """The id of the session that it made, which it says first."""
    return str(ran.err.splitlines()[0].removeprefix("session "))


def test_a_message_gets_its_answer(maka_: Run, hosted: Hosted) -> None:
    ran = maka_("run", "Hello", "--name", "first")
    assert (ran.code, ran.out) == (0, "You said Hello.\n")
    session = maka.inspect(session_of(ran), root=hosted.root)
    assert session.settings()["name"] == "first"
    assert session.settings()["cwd"] == str(Path.cwd())
    again = maka_("run", "look", "--session", session_of(ran))
    assert again.code == 0
    rows = [row.strip() for row in again.out.splitlines() if row]
    assert len(rows) == 4
    assert any(row.startswith('→ look {"at": "the sky"}') for row in rows), rows
    assert {"It is blue.", "I have looked."} < set(rows)
    assert again.err == ""
    assert [turn["status"] for turn in maka.inspect(session_of(ran), root=hosted.root).turns()] == ["completed"] * 2


def test_as_json_it_is_one_document(maka_: Run, hosted: Hosted) -> None:
    ran = maka_("run", "Hello", "--json", "--model", "big", "--permission-mode", "execute", "--max-steps", "3")
    assert (ran.code, ran.err) == (0, "")
    assert set(ran.json) == {"session_id", "turn", "text"}
    assert ran.json["text"] == "You said Hello."
    assert ran.json["turn"]["reason"] == {"kind": "completed"}
    session = maka.inspect(ran.json["session_id"], root=hosted.root)
    assert (session.settings()["model"], session.settings()["permission_mode"]) == ("big", "execute")
    [turn] = session.turns()
    assert (turn["turn_id"], turn["run_ids"]) == (ran.json["turn"]["turn_id"], [ran.json["turn"]["run_id"]])


@pytest.mark.parametrize(("text", "code", "said"), [("fail", 1, "there is no credit left"), ("long", 5, "max_tokens")])
def test_how_the_turn_ended_is_told(maka_: Run, hosted: Hosted, text: str, code: int, said: str) -> None:
    ran = maka_("run", text)
    assert ran.code == code
    assert said in ran.err
    assert f"`maka run --session {session_of(ran)} TEXT`" in ran.err
    assert maka_("run", text, "--json").json["turn"]["status"] == {1: "failed", 5: "max_tokens"}[code]


@pytest.mark.parametrize("words", [(), ("-",)])
def test_standard_input_is_a_message(
    maka_: Run, hosted: Hosted, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("two\nlines"))
    assert maka_("run", *words).out == "You said two\nlines.\n"


def test_where_nobody_can_answer_it_is_said_how_to(maka_: Run, hosted: Hosted) -> None:
    with started("run", "may I") as running:
        assert running.stderr is not None
        session = running.stderr.readline().decode().split()[1]
        assert b"`rm`" in running.stderr.readline()
        assert f"`maka chat --session {session}`" in running.stderr.readline().decode()
        with Terminal("chat", "--session", session) as chat:
            chat.until(r"may `rm` run")
            chat.type("n\n")
            assert running.communicate()[0] == b"deny\n"
            assert running.returncode == 0
            chat.until("deny")
            chat.type("/quit\n")
            assert chat.end() == 0


def test_on_a_terminal_questions_are_answered_in_place(maka_: Run, hosted: Hosted) -> None:
    with Terminal("run", "ask") as running:
        running.until(r"Which colour\?")
        running.type("2\n")
        running.until(r"How many\?")
        running.type("a few\n")
        running.until(r"You want \['Blue', 'a few'\]\.")
        assert running.end() == 0


def test_where_its_terminal_has_no_more_to_say_it_is_said_how_to(maka_: Run, hosted: Hosted) -> None:
    with Terminal("run", "ask", "--root", hosted.root) as running:
        session = running.until(r"session (\w+)").split()[-1]
        running.until(r"How many\?|a number, or your own words")
        running.type("\x04")
        running.until(f"answer it with `maka chat --session {session} --root {hosted.root}`")
        running.type("\x03")
        running.until(f"go on with `maka run --session {session} --root {hosted.root} TEXT`")
        assert running.end() == 130


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_turn(maka_: Run, hosted: Hosted, number: int, code: int) -> None:
    with started("run", "for ever") as running:
        shown(running, "I wait. ")
        running.send_signal(number)
        _, err = running.communicate(timeout=20)
    assert running.returncode == code
    session = err.decode().split()[1]
    assert [turn["status"] for turn in maka.inspect(session, root=hosted.root).turns()] == ["aborted"]
    assert b"aborted" in err


def test_a_session_with_a_turn_takes_another_only_behind_it(maka_: Run, hosted: Hosted) -> None:
    with started("run", "for ever") as first:
        shown(first, "I wait. ")
        [row] = json.loads(maka_("session", "list", "--json").out)["sessions"]
        session = row["session_id"]
        assert len(row["running"]) == 1
        refused = maka_("run", "Hello", "--session", session)
        assert (refused.code, refused.out) == (2, "")
        assert "--queue" in refused.err
        with started("run", "Hello", "--session", session, "--queue") as second:
            assert second.stderr is not None
            assert b"waits" in second.stderr.readline()
            first.send_signal(signal.SIGINT)
            first.communicate(timeout=20)
            out, err = second.communicate(timeout=20)
    assert (out, second.returncode) == (b"You said Hello.\n", 0), err


def test_a_message_that_waits_is_taken_back_by_a_signal(maka_: Run, hosted: Hosted) -> None:
    with started("run", "for ever") as first:
        shown(first, "I wait. ")
        [session] = [row["session_id"] for row in maka_("session", "list", "--json").json["sessions"]]
        with started("run", "Hello", "--session", session, "--queue") as second:
            assert second.stderr is not None
            assert b"waits" in second.stderr.readline()
            second.send_signal(signal.SIGINT)
            assert second.communicate(timeout=20) == (b"", b"")
        assert second.returncode == 130
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=20)
    assert len(maka.inspect(session, root=hosted.root).turns()) == 1


def test_a_message_that_an_interrupt_takes_back_is_waited_for_no_more(maka_: Run, hosted: Hosted) -> None:
    with started("run", "for ever") as first:
        shown(first, "I wait. ")
        [session] = [row["session_id"] for row in maka_("session", "list", "--json").json["sessions"]]
        with started("run", "Hello", "--session", session, "--queue") as second:
            assert second.stderr is not None
            assert b"waits" in second.stderr.readline()

            async def interrupt() -> None:
                async with maka.connect(hosted.root) as client:
                    [active] = (await client.status())["active"]
                    taken = await client.interrupt_turn(session, active["turn_id"], active["run_id"])
                    assert len(taken["retracted"]) == 1

            asyncio.run(interrupt())
            second.communicate(timeout=20)
        assert second.returncode == 2
        first.communicate(timeout=20)


def test_a_host_that_is_ended_meanwhile_has_ended_the_turn(maka_: Run, hosted: Hosted) -> None:
    with started("run", "for ever") as running:
        shown(running, "I wait. ")
        hosted.end()
        _, err = running.communicate(timeout=20)
    assert running.returncode == 1
    assert b"by host_shutdown" in err


@pytest.mark.parametrize(
    "words",
    [("",), ("x", "--queue"), ("x", "--max-steps", "0"), ("x", "--session", "s", "--name", "m"),
     ("x", "--permission-mode", "all"), ("x", "--session", "s", "--queue", "--max-steps", "3"), ("x", "y")],
)  # fmt: skip
def test_wrong_words(maka_: Run, words: tuple[str, ...]) -> None:
    ran = maka_("run", *words)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.endswith("; see `maka run --help`\n")


def test_what_is_not_there(maka_: Run, tmp_path: Path) -> None:
    assert maka_("run", "x", "--no-start").err == (
        f"maka: no host runs for {tmp_path / 'root'}; start one with `maka host start`\n"
    )
    ran = maka_("run", "x")
    assert ran.code == 2
    assert "no app is named" in ran.err
    with Hosted(tmp_path / "root"):
        ran = maka_("run", "x", "--session", "nobody")
        assert (ran.code, ran.out) == (2, "")
        assert "nobody" in ran.err


def test_a_host_is_started_for_it(tmp_path: Path, maka_: Run) -> None:
    tests = Path(__file__).parents[1]
    env = {"PYTHONPATH": str(tests), "MAKA_APP": "support.spoken:made"}
    try:
        ran = process("run", "Hello", env=env).checked()
        assert (ran.code, ran.out) == (0, "You said Hello.\n"), ran.err
        status = maka_("host", "status", "--json").json
        assert status["app"] == "support.spoken:made"
        assert process("host", "start", env=env).out.startswith("the host runs already\n")
    finally:
        assert maka_("host", "stop").code == 0
    assert maka_("host", "status").code == 1


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("words", ["run Hello", "chat"])
def test_what_is_closed_is_neither_read_nor_written(maka_: Run, hosted: Hosted, words: str, closed: str) -> None:
    shell = f'"$@" {words} {closed}'
    ran = subprocess.run(
        ["sh", "-c", shell, "-", *COMMAND], input=b"", capture_output=True, timeout=60, check=False
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert b"defect" not in ran.stderr
    assert [row["turns"] for row in maka_("session", "list", "--json").json["sessions"]] == [int("run" in words)]


def test_without_standard_input_there_is_nothing_to_say(maka_: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    ran = maka_("run", "-")
    assert ran.code == 2
    assert "nothing is said" in ran.err


def test_a_session_is_named_as_other_commands_name_it(maka_: Run, hosted: Hosted, tmp_path: Path) -> None:
    session = maka_("run", "Hello", "--json").json["session_id"]
    path = hosted.root / "sessions" / session
    assert maka_("run", "Again", "--session", path).out == "You said Again.\n"
    assert maka_("run", "Again", "--session", path / JOURNAL).code == 0
    ran = maka_("run", "x", "--session", path, "--root", tmp_path / "other")
    assert ran.code == 2
    assert ran.err == f"maka: {path} lies below another root; name that with `--root {hosted.root}`\n"
    alone = shutil.copy(path / JOURNAL, tmp_path / "alone.jsonl")
    ran = maka_("run", "x", "--session", alone)
    assert ran.code == 2
    assert f"`maka session resume {alone}`" in ran.err
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("command", [("run", "x"), ("chat",)])
def test_one_that_is_not_there_or_is_put_away_is_told_with_the_command_that_helps(
    maka_: Run, hosted: Hosted, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\n"))
    ran = maka_(*command, "--session", "nobody")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (
        f"maka: there is no session nobody under {hosted.root}; `maka session list` shows those there are\n"
    )
    session = maka_("run", "Hello", "--json").json["session_id"]
    maka_("session", "archive", session)
    ran = maka_(*command, "--session", session)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"maka: session {session} is put away and takes no messages; ")
    assert f"`maka session archive {session} --undo`" in ran.err


def test_a_new_session_has_the_backend_that_is_named(maka_: Run, hosted: Hosted) -> None:
    session = maka_("run", "Hello", "--backend", "s", "--json").json["session_id"]
    assert maka.inspect(session, root=hosted.root).settings()["backend"] == "s"
    ran = maka_("run", "Hello", "--backend", "other")
    assert (ran.code, ran.out) == (2, "")
    assert "no backend 'other' is registered (there are: s)" in ran.err
    assert "--name is of a new session" in maka_("run", "x", "--session", session, "--name", "s").err


def test_a_session_of_another_tool_goes_on_by_the_backend_that_is_named(
    maka_: Run, hosted: Hosted, tmp_path: Path
) -> None:
    path = tmp_path / f"{CLAUDE}.jsonl"
    path.write_bytes(claude())
    maka_("journal", "import", path).checked()
    lacks = maka_("run", "Hello", "--session", CLAUDE)
    assert (lacks.code, lacks.out) == (1, "")
    assert "no backend 'claude-code' is registered (there are: s)" in lacks.err
    assert f"`maka run --session {CLAUDE} --backend NAME TEXT`" in lacks.err
    other = maka_("run", "Hello", "--session", CLAUDE, "--backend", "other")
    assert (other.code, other.out) == (2, "")
    assert "no backend 'other' is registered" in other.err
    named = ("--backend", "s", "--model", "big", "--permission-mode", "bypass")
    ran = maka_("run", "Hello", "--session", CLAUDE, *named)
    assert (ran.code, ran.out) == (0, "You said Hello.\n"), ran.err
    settings = maka.inspect(CLAUDE, root=hosted.root).settings()
    assert (settings["backend"], settings["model"], settings["permission_mode"]) == ("s", "big", "bypass")
    # For good.
    assert maka_("run", "again", "--session", CLAUDE).out == "You said again.\n"
    assert maka_("run", "x", "--session", CLAUDE, "--permission-mode", "no").code == 2


def test_that_the_host_has_another_app_is_said(maka_: Run, hosted: Hosted) -> None:
    ran = maka_("run", "Hello", "--app", "mine:app")
    assert (ran.code, ran.out) == (0, "You said Hello.\n")
    assert ran.err.splitlines()[0].startswith("the host that runs has the app spoken:app, not mine:app, and ")
    assert "`maka host stop`" in ran.err
    assert "spoken" not in maka_("run", "Hello", "--app", "spoken:app").err


@pytest.mark.parametrize("command", [("run",), ("chat",), ("host", "start"), ("host", "stop"), ("session", "archive")])
def test_help_tells_options_and_exit_codes(maka_: Run, command: tuple[str, ...]) -> None:
    ran = maka_(*command, "--help")
    assert (ran.code, ran.err) == (0, "")
    for word in ("--root", "Exit code: 0 "):
        assert word in ran.out


def test_the_document_has_the_exit_codes() -> None:
    told = [row[0] for row in documents.table(HOST, "exit code", "the turn")]
    assert told == ["0", "1", "2", "5", "130, 143"]
    assert {str(code) for code in exits.OF_TURN.values()} <= set(told)
    assert ", ".join(map(str, SIGNALS.values())) == told[-1]
