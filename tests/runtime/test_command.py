"""Running a command, and ending everything that came of it."""

import asyncio
import errno
import io
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from maka.runtime.tools import LeftBehind, ToolContext, ToolOutput
from maka.runtime.tools import command as module
from maka.runtime.tools.command import Command


def context(cwd: Path, stored: list[bytes] | None = None) -> ToolContext:
    async def store(stream: Any) -> str:
        assert stored is not None
        stored.append(stream.read())
        return "sha256:" + "0" * 64

    return ToolContext("op", "c", "t", "r", cwd, store)


def run(cwd: Path, command: str, stored: list[bytes] | None = None, **arguments: Any) -> ToolOutput:
    return asyncio.run(Command(grace=0.1).execute({"command": command, **arguments}, context(cwd, stored)))


def texts(output: ToolOutput) -> str:
    return "\n".join(block["text"] for block in output.content)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return not Path("/proc").is_dir() or Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def pids(cwd: Path) -> list[int]:
    return [int(file.read_text()) for file in cwd.glob("*.pid")]


def test_output_and_errors_in_their_order(tmp_path: Path) -> None:
    output = run(tmp_path, "pwd; echo two >&2; echo three")
    assert output.state == "ok"
    assert texts(output) == f"{os.path.realpath(tmp_path)}\ntwo\nthree\n"


@pytest.mark.parametrize(
    ("command", "words"),
    [("exit 3", "exit status 3"), ("kill -9 $$", "ended by signal 9"), ("no-such-command", "exit status 127")],
)
def test_failures(tmp_path: Path, command: str, words: str) -> None:
    output = run(tmp_path, command)
    assert (output.state, output.error) == ("error", {"name": "CommandFailedError", "code": "COMMAND_FAILED"})
    assert words in texts(output)


def test_a_place_or_shell_that_is_not_there(tmp_path: Path) -> None:
    assert run(tmp_path / "gone", "true").state == "error"
    broken = asyncio.run(Command(shell=("/no/shell",)).execute({"command": "x"}, context(tmp_path)))
    assert broken.state == "error"
    assert "/no/shell: No such file" in texts(broken)


def test_it_has_no_input_and_no_stray_descriptors(tmp_path: Path) -> None:
    assert texts(run(tmp_path, "cat; echo $(ls /dev/fd | wc -l)")).strip() in ("4", "5")


def test_its_time(tmp_path: Path) -> None:
    output = run(
        tmp_path, "echo begun; echo $$ >a.pid; trap '' TERM; while :; do sleep 0.05; done", timeout_seconds=0.3
    )
    assert (output.state, output.error) == ("unknown", {"name": "ToolTimeoutError", "code": "TOOL_TIMED_OUT"})
    assert texts(output).startswith("begun\n")
    assert "0.3 s" in texts(output)
    assert [alive(pid) for pid in pids(tmp_path)] == [False]


def test_what_it_leaves_in_the_background_ends_with_it(tmp_path: Path) -> None:
    output = run(tmp_path, "sleep 60 & echo $! >a.pid; echo started")
    assert output.state == "ok"
    assert "were ended: 1" in texts(output)
    assert [alive(pid) for pid in pids(tmp_path)] == [False]


LEAVERS = (
    # A session of its own; a double fork with its parent gone; an environment without any trace; one that ignores TERM.
    "setsid sh -c 'echo $$ >a.pid; exec sleep 60' & "
    "(setsid sh -c 'echo $$ >b.pid; exec sleep 60' >/dev/null 2>&1 &) ; "
    "env -i setsid sh -c 'echo $$ >c.pid; trap \"\" TERM HUP; sleep 60; sleep 60' & "
    "while [ $(ls *.pid 2>/dev/null | wc -l) -lt 3 ]; do sleep 0.01; done; "
)


if sys.platform == "linux":  # Elsewhere nobody hands orphans to a process of ours.

    @pytest.mark.parametrize("end", ["exit 0", "sleep 60"])
    def test_those_that_left_its_session_end_too(tmp_path: Path, end: str) -> None:
        output = run(tmp_path, LEAVERS + end, timeout_seconds=1.0)
        assert output.state == ("ok" if end == "exit 0" else "unknown")
        assert len(pids(tmp_path)) == 3
        assert not any(alive(pid) for pid in pids(tmp_path))


def test_cancelling_ends_it(tmp_path: Path) -> None:
    async def main() -> None:
        task = asyncio.ensure_future(
            Command(grace=0.1).execute({"command": "echo $$ >a.pid; sleep 60 & wait"}, context(tmp_path))
        )
        while not pids_written(tmp_path):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert [alive(pid) for pid in pids(tmp_path)] == [False]


def pids_written(cwd: Path) -> bool:
    return any(file.read_text().strip() for file in cwd.glob("*.pid"))


def test_the_end_of_this_process_ends_it(tmp_path: Path) -> None:
    import subprocess

    code = (
        "import asyncio, pathlib\n"
        "from maka.runtime.tools.command import Command\n"
        "from maka.runtime.tools import ToolContext\n"
        "async def store(s): return ''\n"
        "c = ToolContext('o', 'c', 't', 'r', pathlib.Path('.'), store)\n"
        "asyncio.run(Command(grace=0.1).execute({'command': 'echo $$ >a.pid; sleep 60'}, c))\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
    deadline = time.monotonic() + 40
    while not pids_written(tmp_path):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    child.kill()
    child.wait()
    [pid] = pids(tmp_path)
    while alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_command_that_kills_its_supervisor(tmp_path: Path) -> None:
    output = run(tmp_path, "echo $$ >a.pid; kill -9 $PPID; sleep 60")
    assert (output.state, output.error and output.error["code"]) == ("unknown", "TOOL_OUTCOME_UNKNOWN")
    assert "may live on" in texts(output)
    [pid] = pids(tmp_path)
    deadline = time.monotonic() + 20
    while alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_long_output_is_stored_whole_and_shown_in_part(tmp_path: Path) -> None:
    stored: list[bytes] = []
    output = run(tmp_path, "seq 1 400000", stored)
    [block] = output.content
    whole = b"".join(b"%d\n" % n for n in range(1, 400_001))
    assert stored == [whole]
    assert block["bytes"] == len(whole)
    assert block["ref"].startswith("sha256:")
    assert block["text"].startswith("1\n2\n")
    assert block["text"].endswith("400000\n")
    assert len(block["text"]) < 30_000


def test_output_that_is_no_text(tmp_path: Path) -> None:
    assert run(tmp_path, r"printf 'a\377b'").content == [{"kind": "text", "text": "a\ufffdb", "lossy": True}]
    assert run(tmp_path, r"printf 'a\357\277\275b'").content == [{"kind": "text", "text": "a\ufffdb"}]


def descriptors() -> list[str]:
    return os.listdir("/dev/fd")


@pytest.mark.parametrize("command", ["echo \0", "echo \ud800"])
def test_a_command_line_that_no_program_can_be_given(tmp_path: Path, command: str) -> None:
    run(tmp_path, "true")
    before = len(descriptors())
    output = run(tmp_path, command)
    assert (output.state, output.error and output.error["code"]) == ("error", "COMMAND_FAILED")
    assert "cannot be started" in texts(output)
    assert len(descriptors()) == before


def test_cancelling_at_the_instant_of_its_start_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess

    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def cancel_after(*args: Any, **kwargs: Any) -> Any:
        started.append(popen(*args, **kwargs))
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", cancel_after)
    with pytest.raises(asyncio.CancelledError):
        run(tmp_path, "sleep 60")
    assert started[0].returncode == 0


def test_a_command_that_stops_its_supervisor_has_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SPARE", 0.1)
    monkeypatch.setattr(module, "KILL_SECONDS", 0.1)
    output = run(tmp_path, "echo $$ >a.pid; kill -STOP $PPID; sleep 60", timeout_seconds=0.3)
    assert output.state == "unknown"
    assert "may live on" in texts(output)
    [pid] = pids(tmp_path)
    deadline = time.monotonic() + 20
    while alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_cancelling_where_something_may_live_on_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SPARE", 0.1)
    monkeypatch.setattr(module, "KILL_SECONDS", 0.1)

    async def main() -> None:
        command = {"command": "kill -STOP $PPID; echo $$ >a.pid; sleep 60"}
        task = asyncio.ensure_future(Command(grace=0.1).execute(command, context(tmp_path)))
        while not pids_written(tmp_path):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(LeftBehind, match="may live on"):
            await task

    asyncio.run(main())


def test_output_that_cannot_be_kept_does_not_stop_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "SpooledTemporaryFile", lambda max_size: Full())
    output = run(tmp_path, "seq 1 50000; touch done")
    assert output.state == "ok"
    assert "could be kept: No space left" in texts(output)
    assert (tmp_path / "done").exists()


def test_commands_side_by_side_do_not_end_each_other(tmp_path: Path) -> None:
    async def main() -> tuple[ToolOutput, ToolOutput]:
        tool = Command(grace=0.1)
        return await asyncio.gather(
            tool.execute({"command": "setsid sleep 60 & exit 0"}, context(tmp_path)),
            tool.execute({"command": "setsid sh -c 'sleep 0.4; echo whole'"}, context(tmp_path)),
        )

    _, other = asyncio.run(main())
    assert texts(other) == "whole\n"
