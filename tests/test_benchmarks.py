"""The benchmarks run, all of them, and each puts its rows into the one table. What they measure is no test."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.repository

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
#: Beginnings of rows that have to be there, whatever the sizes and whatever baselines are installed.
ROWS = (
    "one event for each sync",
    "64 events for each sync",
    "64 threads append to one session",
    "64 tasks append to one session",
    "16 sessions from asyncio",
    "a turn's events and barriers, 2 turns",
    "a turn's events and barriers, 20 turns",
    "a turn's events and barriers: rate at 20",
    "a turn's events and barriers: bytes a turn at 20",
    "the loop, 2 turns",
    "the loop, 20 turns",
    "the loop: rate at 20",
    "the loop: bytes a turn at 20",
    "4 sessions: p99 of live text, one sync takes 300 ms",
    "4 sessions: p99 of live text  ",
    "4 sessions: p99 of a call, on the disk, one sync takes 300 ms",
    "4 sessions: turns of the loop at once",
    "what a plan checks, 4 continuations deep",
    "a whole plan, 4 continuations deep",
    "a plan, for each of 11 replayed messages",
    "a plan over 11 messages",
    "bytes of the journal for continuation 4",
    "bytes of the snapshot for continuation 4",
    "hand over, by the kernel, 40 events before it",
    "hand over, with its plan, 40 events before it",
    "plan a successor, 40 events before it",
    "resume, up to the backend, 40 events before it",
    "hand over, by the kernel, over 11 replayed messages",
    "hand over, with its plan, over 11 replayed messages",
    "plan a successor, over 11 replayed messages",
    "resume, up to the backend, over 11 replayed messages",
    "hand over, by the kernel, 4 handoffs before it in its turn",
    "hand over, with its plan, 4 handoffs before it in its turn",
    "plan a successor, 4 handoffs before it in its turn",
    "resume, up to the backend, 4 handoffs before it in its turn",
    "ready beside 20 finished sessions",
    "ready beside 8 finished sessions of some 70,000 events",
    "a turn asked for over the socket, until it has begun",
    "0 MiB of text to one client",
    "0 MiB of text to 3 clients",
    "p99 of live text to one client",
    "p99 of live text to 3 clients",
    "memory of a connection that is idle",
    "memory of a session that is watched",
    "fold and verify",
    "load",
    "memory to inspect",
    "open for writing: FileStore.open",
    "open for writing: maka.open_session",
    "list 20 sessions, closed cleanly",
    "list 20 sessions without snapshots",
    "process: maka journal inspect",
)


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(BENCHMARKS / "run.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.timeout(300)
def test_every_row_of_the_table_is_there() -> None:
    done = run("--quick")
    assert done.returncode == 0, done.stderr
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert lines[2].split() == ["what", "ours", "baseline", "ratio", "target", "reached"]
    missing = [row for row in ROWS if not any(line.startswith(row) for line in lines)]
    assert not missing, done.stdout


def test_every_script_is_run_and_every_run_has_a_script() -> None:
    scripts = {path.stem for path in BENCHMARKS.glob("[!_]*.py")} - {"run"}
    told = run("--help").stdout
    assert all(f" {name}" in told for name in scripts)
    assert run("nonsense").returncode == 2


def test_a_target_is_judged_where_figures_mean_something() -> None:
    program = (
        "from _bench import *\n"
        "targets = Target(low=2), Target(high=2), Target(1, 2)\n"
        "rows = [Row('', '', '', ratio, target) for target in targets for ratio in (0.5, 2, 3)]\n"
        "show(Report('', rows))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=BENCHMARKS, capture_output=True, text=True, check=True, timeout=60
    )
    judged = [line.split()[-1] for line in done.stdout.splitlines()[3:]]
    assert judged == ["NO", "yes", "yes", "yes", "yes", "NO", "NO", "yes", "NO"]


def test_a_script_that_fails_is_told(tmp_path: Path) -> None:
    done = run("--quick", "--directory", str(tmp_path / "not there"), "list")
    assert done.returncode == 1
    assert "failed: list" in done.stderr
