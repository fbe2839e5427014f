"""`maka host`: who runs is said, whoever hangs is named and left alone; what others have open is reached through it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import maka
from maka.runtime.host.endpoint import read_registration
from support.command import COMMAND
from support.hosts import HostProcess
from support.spoken import Hosted

Run = Callable[..., Any]
TESTS = Path(__file__).parents[1]


@contextmanager
def hosting(root: Path) -> Iterator[HostProcess]:
    """A host that is a process of its own, ready."""
    host = HostProcess(root, app="support.spoken:made")
    try:
        while (told := read_registration(root)) is None or (told.pid, told.state) != (host.process.pid, "ready"):
            assert host.process.poll() is None, host.said()
            time.sleep(0.01)
        yield host
    finally:
        host.process.send_signal(signal.SIGCONT)
        host.kill()


def test_one_that_runs_says_who_it_is(maka_: Run, tmp_path: Path) -> None:
    root = tmp_path / "root"
    ran = maka_("host", "status")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"maka: no host runs for {root}; start one with `maka host start`\n"
    assert maka_("host", "status", "--json").json == {"root": str(root), "state": "none", "pid": None}
    with Hosted(root):
        ran = maka_("host", "status")
        assert (ran.code, ran.err) == (0, "")
        assert f"root                {root}".split() == ran.out.splitlines()[0].split()
        assert "spoken:app" in ran.out
        status = maka_("host", "status", "--json").json
        assert (status["state"], status["pid"], status["active"]) == ("ready", os.getpid(), [])
        ran = maka_("host", "start")
        assert (ran.code, ran.err) == (0, "")
        assert ran.out.startswith("the host runs already\n")
        doc = maka_("host", "start", "--json").json
        assert (doc["started"], doc["pid"], doc["root"]) == (False, os.getpid(), str(root))
        ran = maka_("host", "start", "--app", "another:app")
        assert ran.code == 0
        assert "has the app spoken:app, not another:app" in ran.err


def test_it_is_asked_to_end_and_waited_for(maka_: Run, tmp_path: Path) -> None:
    with hosting(tmp_path / "root") as host:
        ran = maka_("host", "stop")
        assert (ran.code, ran.out, ran.err) == (0, f"the host (process {host.process.pid}) has ended\n", "")
        assert host.process.wait(10) == 0
    ran = maka_("host", "stop")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == f"maka: no host runs for {tmp_path / 'root'}, so there is none to end\n"
    doc = maka_("host", "stop", "--json").json
    assert doc == {"root": str(tmp_path / "root"), "state": "none", "pid": None, "stopped": False}


def test_one_that_hangs_is_named_and_never_killed(maka_: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from maka.cli import hosting as work

    monkeypatch.setattr(work, "_PATIENCE", 0.3)
    with hosting(tmp_path / "root") as host:
        host.process.send_signal(signal.SIGSTOP)
        for command in ("status", "stop"):
            ran = maka_("host", command)
            assert (ran.code, ran.out) == (1, "")
            assert f"process {host.process.pid}" in ran.err
            assert "does not answer" in ran.err
            doc = maka_("host", command, "--json").json
            assert (doc["state"], doc["pid"]) == ("silent", host.process.pid)
        host.process.send_signal(signal.SIGCONT)
        assert maka_("host", "stop").code == 0


def test_with_handoff_what_runs_is_handed_over_where_it_can_be(maka_: Run, tmp_path: Path) -> None:
    with hosting(tmp_path / "root") as host:
        doc = maka_("host", "stop", "--handoff", "--timeout", "20", "--json").json
        assert (doc["stopped"], doc["pid"]) == (True, host.process.pid)


def test_it_is_not_started_without_an_app(maka_: Run) -> None:
    for words in ((), ("--foreground",)):
        ran = maka_("host", "start", *words)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith("maka: no app is named")
    ran = maka_("host", "start", "--app", "nonsense:app")
    assert ran.code == 2
    assert "nonsense" in ran.err


def test_in_the_foreground_it_is_this_process(tmp_path: Path) -> None:
    root = tmp_path / "root"
    env = {**os.environ, "PYTHONPATH": str(TESTS)}
    words = [*COMMAND, "host", "start", "--foreground", "--app", "support.spoken:made", "--root", str(root)]
    with Hosted(root):
        ran = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=60)
        assert ran.returncode == 3
        assert f"process {os.getpid()}" in ran.stderr
    with subprocess.Popen(words, env=env, stderr=subprocess.PIPE, text=True) as host:
        assert host.stderr is not None
        while "is ready" not in (line := host.stderr.readline()):
            assert line
        registered = read_registration(root)
        assert registered is not None
        assert registered.pid == host.pid
        host.send_signal(signal.SIGTERM)
        host.communicate(timeout=30)
    assert host.returncode == 0


def test_in_the_foreground_it_prints_its_document_once_it_is_ready(tmp_path: Path) -> None:
    root = tmp_path / "root"
    env = {**os.environ, "PYTHONPATH": str(TESTS)}
    words = ["host", "start", "--foreground", "--json", "--app", "support.spoken:made", "--root", str(root)]
    with subprocess.Popen([*COMMAND, *words], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as host:
        assert host.stdout is not None
        doc = json.loads(host.stdout.readline())
        registered = read_registration(root)
        assert registered is not None
        assert (doc["pid"], doc["state"], doc["host_epoch"]) == (host.pid, "ready", registered.host_epoch)
        assert (doc["started"], doc["app"], doc["endpoint"]) == (True, "support.spoken:made", registered.endpoint)
        host.send_signal(signal.SIGTERM)
        out, _ = host.communicate(timeout=30)
    assert (host.returncode, out) == (0, b"")


def test_of_an_app_that_cannot_be_loaded_the_log_tells_where(maka_: Run, tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "broken.py").write_text("def made():\n    raise ValueError('boom')\napp = made()\n")
    for flag in ((), ("--debug",)):
        ran = subprocess.run(
            [*COMMAND, *flag, "host", "start", "--app", "broken:app"], capture_output=True, text=True, check=False
        )
        assert ran.returncode == 2
        assert ran.stderr.splitlines()[-1].startswith("maka: the host did not start (exit code 2): broken:app")
        assert ("line 2, in made" in ran.stderr) == bool(flag)
        assert "electing.py" not in ran.stderr
    assert "line 2, in made" in (tmp_path / "root" / "host.log").read_text()


def test_one_that_nobody_uses_ends(tmp_path: Path) -> None:
    words = [*COMMAND, "host", "start", "--foreground", "--app", "support.spoken:made", "--idle", "0.1"]
    env = {**os.environ, "PYTHONPATH": str(TESTS), "MAKA_HOME": str(tmp_path / "root")}
    assert subprocess.run(words, env=env, capture_output=True, check=False, timeout=60).returncode == 0


@pytest.mark.parametrize(
    "words", [("start", "--idle", "soon"), ("start", "--idle", "0"), ("stop", "--timeout", "-1"), ("stop", "x")]
)
def test_wrong_words(maka_: Run, words: tuple[str, ...]) -> None:
    ran = maka_("host", *words)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.endswith(f"; see `maka host {words[0]} --help`\n")


# ---------------------------------------------------------------- sessions that it has open


@pytest.fixture
def opened(maka_: Run, hosted: Hosted) -> str:
    """A session that the host has open, whose newest turn has failed."""
    session_id = str(maka_("run", "fail", "--json").json["session_id"])
    with pytest.raises(maka.JournalLocked):
        maka.open_session(session_id, root=hosted.root)
    return session_id


def watched(root: Path, session_id: str) -> "subprocess.Popen[bytes]":
    """A client that has the host keep the session."""
    program = (
        "import asyncio, sys\nfrom maka import connect\n"
        "async def main():\n"
        "    async with connect(sys.argv[1]) as client:\n"
        "        async with await client.subscribe(sys.argv[2]):\n"
        "            print('there', flush=True)\n"
        "            await asyncio.to_thread(sys.stdin.read)\n"
        "asyncio.run(main())"
    )
    words = [sys.executable, "-c", program, str(root), session_id]
    client = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert client.stdout is not None
    assert client.stdout.readline() == b"there\n"
    return client


def test_who_cannot_write_is_told_the_way_through_the_host(maka_: Run, hosted: Hosted, opened: str) -> None:
    with watched(hosted.root, opened):
        ran = maka_("journal", "repair", opened)
        assert ran.code == 3
        for word in (f"process {os.getpid()}", f"`maka run --session {opened} TEXT`", "`maka host stop`"):
            assert word in ran.err
        assert maka_("session", "settle", opened, "--claim", "none").code == 3


def test_what_runs_there_is_named_and_stays(maka_: Run, hosted: Hosted) -> None:
    running = subprocess.Popen([*COMMAND, "run", "for ever"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert running.stdout is not None
        assert running.stdout.read(7) == b"I wait."
        [row] = maka_("session", "list", "--json").json["sessions"]
        session_id = row["session_id"]
        runs = f"maka: turn 1 of session {session_id} runs in the host of {hosted.root} (process {os.getpid()})"
        ways = f"`maka chat --session {session_id}`, or end the host with `maka host stop`, which stops that turn too"
        for code, words in {
            2: (("session", "resume"), ("session", "resume", "--plan")),
            3: (("journal", "repair"), ("session", "settle", "--claim", "none")),
        }.items():
            for noun, verb, *rest in words:
                ran = maka_(noun, verb, session_id, *rest)
                assert ran.code == code
                [said] = ran.err.splitlines()
                assert said.startswith(runs)
                assert ways in said
        elsewhere = hosted.root / "sessions" / session_id
        assert "in this process" not in ran.err
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MAKA_HOME", str(hosted.root / "other"))
            assert f"`maka host stop --root {hosted.root}`" in maka_("journal", "repair", elsewhere).err
        assert maka_("session", "list", "--json").json["sessions"][0]["running"] == row["running"]
    finally:
        running.terminate()
        running.communicate()


def test_a_session_that_nobody_needs_is_let_go_for_a_repair(maka_: Run, hosted: Hosted, opened: str) -> None:
    ran = maka_("journal", "repair", opened)
    assert (ran.code, ran.err) == (0, "")
    assert maka_("run", "Hello", "--session", opened).code == 0
    ran = maka_("session", "settle", opened, "--claim", "none")
    assert ran.code == 2
    assert "open in the host" not in ran.err


def test_a_run_goes_on_in_the_host_that_has_it(maka_: Run, hosted: Hosted, opened: str) -> None:
    plan = maka_("session", "resume", opened, "--plan", "--json")
    assert (plan.code, plan.json["disposition"]) == (0, "continue")
    before = maka.inspect(opened, root=hosted.root).turns()
    ran = maka_("session", "resume", opened)
    assert f"(process {os.getpid()}) has the session open" in ran.err
    assert ran.code in (0, 1)
    after = maka.inspect(opened, root=hosted.root).turns()
    assert len(after) == len(before) + 1
    assert f"turn {after[-1]['turn_id']} " in ran.out


# ---------------------------------------------------------------- started for those who need one


def test_what_a_killed_host_left_open_is_taken_up_by_the_next(maka_: Run, tmp_path: Path) -> None:
    root = tmp_path / "root"
    with hosting(root) as host:
        running = subprocess.Popen([*COMMAND, "run", "for ever", "--json", "--no-start"], stdout=subprocess.PIPE)
        while not (active := maka_("host", "status", "--json").json["active"]):
            time.sleep(0.01)
        # One that has not begun would be run by the next host.
        while not maka.inspect(active[0]["session_id"], root=root).turns():
            time.sleep(0.01)
        host.kill()
        with hosting(root):
            out, _ = running.communicate(timeout=30)
    assert running.returncode == 1
    doc = json.loads(out)
    assert (doc["turn"]["turn_id"], doc["turn"]["status"]) == (active[0]["turn_id"], "interrupted")
