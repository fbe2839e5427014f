"""The command as a whole: usage, versions, help, completion, what goes to which stream."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import maka
from support.builder import Builder
from support.command import COMMAND, here, process

Run = Callable[..., Any]


def test_the_version() -> None:
    ran = process("--version")
    assert (ran.code, ran.out, ran.err) == (0, f"maka {maka.__version__}\n", "")


def test_the_console_script_is_the_same(tmp_path: Path) -> None:
    script = shutil.which("maka", path=str(Path(sys.executable).parent))
    assert script is not None
    done = subprocess.run([script, "--version"], capture_output=True, check=True, text=True, cwd=tmp_path)
    assert done.stdout == f"maka {maka.__version__}\n"


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["jornal"], "No such command"),
        (["journal", "inspekt"], "No such command"),
        (["journal", "inspect"], "Missing argument"),
        (["journal", "inspect", "a", "b"], "unexpected extra argument"),
        (["journal", "inspect", "a", "--jsn"], "No such option"),
        (["journal", "verify", "a", "--head"], "requires an argument"),
        (["journal", "tail", "a", "-n", "many"], "--lines"),
        (["journal", "tail", "a", "-n", "-1"], "--lines"),
        (["journal", "list", "a"], "unexpected extra argument"),
        (["--nonsense"], "No such option"),
    ],
)
def test_wrong_usage_is_one_sentence(maka_: Run, words: list[str], names: str) -> None:
    ran = maka_(*words)
    assert (ran.code, ran.out) == (2, "")
    assert names in ran.err
    assert ran.err.count("\n") == 1
    assert "--help" in ran.err


@pytest.mark.parametrize("words", [[], ["journal"], ["app"]])
def test_without_a_command_it_says_what_there_is(maka_: Run, words: list[str]) -> None:
    ran = maka_(*words)
    assert (ran.code, ran.out) == (2, "")
    assert "Commands:" in ran.err


@pytest.mark.parametrize("command", ["inspect", "repair", "verify", "list", "tail", "show"])
def test_help_names_flags_and_exit_codes(maka_: Run, command: str) -> None:
    ran = maka_("journal", command, "--help")
    assert (ran.code, ran.err) == (0, "")
    assert "--json" in ran.out
    assert "--root" in ran.out
    assert command == "list" or "Exit code" in ran.out


@pytest.mark.parametrize("command", ["inspect", "repair", "verify", "tail", "show"])
@pytest.mark.parametrize("target", ["no-such-session", "./nowhere", "nowhere.jsonl", "", "..", "a/../../b", "x" * 5000])
def test_a_session_that_is_not_there(maka_: Run, command: str, target: str) -> None:
    ran = maka_("journal", command, target, "--json")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("maka: ")
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("group", [(), ("journal",), ("session",), ("host",), ("app",)])
def test_what_a_command_does_is_told_as_a_whole_sentence(maka_: Run, group: tuple[str, ...]) -> None:
    commands = maka_(*group, "--help").out.partition("\nCommands:\n")[2]
    assert commands.strip()
    assert "..." not in commands


def test_a_place_that_is_not_there_is_named(tmp_path: Path) -> None:
    words = [*COMMAND, "run", "Hello", "--app", "x:y"]
    gone = "import os, sys; os.mkdir('x'); os.chdir('x'); os.rmdir('../x'); os.execv(sys.argv[1], sys.argv[1:])"
    ran = subprocess.run(
        [sys.executable, "-c", gone, *words], capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60
    )
    assert ran.returncode == 2
    assert ran.stderr.startswith("maka: the directory that this command runs in is not there any more; go to another")
    env = {**os.environ, "MAKA_HOME": "/proc/none"}
    ran = subprocess.run(words, capture_output=True, text=True, check=False, env=env, timeout=60)
    assert ran.returncode == 2
    assert ran.stderr.startswith("maka: cannot open /proc/none/")
    assert ran.stderr.endswith("; look whether the directory above it is there, or name another place\n")


def test_debug_shows_more_wherever_it_stands() -> None:
    for words in (["--debug", "journal", "inspect", "no"], ["journal", "inspect", "no", "--debug"]):
        ran = here(*words)
        assert ran.code == 2
        assert "Traceback" in ran.err
        assert ran.err.splitlines()[-1].startswith("maka: ")


def test_a_target_behind_two_dashes_is_a_target(maka_: Run) -> None:
    ran = maka_("journal", "inspect", "--", "--debug")
    assert ran.code == 2
    assert "'--debug'" in ran.err


def test_shell_completion_is_offered() -> None:
    ran = process(env={"_MAKA_COMPLETE": "complete_bash", "COMP_WORDS": "maka journal in", "COMP_CWORD": "2"})
    assert ran.out.split() == ["inspect"]


def test_session_ids_are_completed(tmp_path: Path) -> None:
    for name in ("alpha", "alps", "beta"):
        Builder(name).write(tmp_path / "root")
    words = {"_MAKA_COMPLETE": "complete_bash", "COMP_WORDS": "maka journal inspect al", "COMP_CWORD": "3"}
    ran = process(env={**words, "MAKA_HOME": str(tmp_path / "root")})
    assert ran.out.split() == ["alpha", "alps"]


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    journal = Builder()
    for i in range(3000):
        journal.add("x-test/noise", {"i": i})
    path = journal.write(tmp_path)
    for flags in (["inspect", "--events"], ["tail", "-n", "3000"], ["inspect", "--events", "--json"], ["show"]):
        command = [*COMMAND, "journal", flags[0], str(path), *flags[1:]]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        said = child.stderr.read()
        assert (child.wait(), said) == (0, b"")
        child.stderr.close()


def test_an_output_that_takes_nothing_is_said(tmp_path: Path) -> None:
    path = Builder().plain_turn().write(tmp_path)
    with path.open("rb") as unwritable:
        command = [*COMMAND, "journal", "inspect", str(path), "--json"]
        done = subprocess.run(command, stdout=unwritable, stderr=subprocess.PIPE, check=False, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("maka: ")
    assert "standard output" in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_output_that_is_closed_changes_nothing_else(tmp_path: Path) -> None:
    path = Builder().start().step().write(tmp_path)
    command = f"exec {sys.executable} -m maka.cli journal inspect {path} >&-"
    done = subprocess.run(["/bin/sh", "-c", command], stderr=subprocess.PIPE, check=False, text=True)
    assert (done.returncode, done.stderr) == (1, "")
