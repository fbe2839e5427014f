"""A host is found, or started: one, however many ask at once, and nobody is displaced."""

import asyncio
import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from maka.journal.errors import JournalWriteError
from maka.runtime.host import HostError, HostStartFailed, Registration, electing, endpoint, ensure_host, find_host
from maka.runtime.host.ownership import RootLock
from support.fake_host import FakeHost, play
from support.processes import TESTS

#: A candidate: takes the root or exits as a loser does, then is a host until it is told to end.
CANDIDATE = f"""
import sys; sys.path.insert(0, {str(TESTS)!r})
from maka.runtime.host.ownership import HostRunning, RootLock
try:
    RootLock.acquire(sys.argv[1]).release()
except HostRunning as error:
    print(f"maka: {{error}}", file=sys.stderr)
    sys.exit(3)
import asyncio, signal
from support.fake_host import FakeHost
async def main():
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    try:
        async with FakeHost(sys.argv[1], app=sys.argv[2] if len(sys.argv) > 2 else None):
            await ended.wait()
    except HostRunning:
        sys.exit(3)
asyncio.run(main())
"""

Elect = Callable[[str], None]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root that is not there yet."""
    return tmp_path / "root"


@pytest.fixture
def started(root: Path, monkeypatch: pytest.MonkeyPatch) -> "Iterator[list[subprocess.Popen[bytes]]]":
    """The candidates. They are ended with the test, those too that come late and would find no host any more."""
    processes: list[subprocess.Popen[bytes]] = []
    begin = subprocess.Popen

    def popen(words: list[str], **options: Any) -> "subprocess.Popen[bytes]":
        processes.append(begin(words, **options))
        return processes[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    yield processes
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()
    if processes:
        with RootLock.acquire(root) as lock:
            endpoint.clear(endpoint.prepare(lock, "0" * 32))


@pytest.fixture
def candidate(started: object, monkeypatch: pytest.MonkeyPatch) -> Elect:
    """What runs as a candidate from now on: Python code, which has the root as its first argument."""

    def set_to(code: str) -> None:
        def command(root: Path, app: str | None, idle: float | None) -> list[str]:
            return [sys.executable, "-c", code, str(root), *([] if app is None else [app])]

        monkeypatch.setattr(electing, "command", command)

    return set_to


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_candidate_s_command_is_the_one_of_the_command_line(tmp_path: Path) -> None:
    begins = [sys.executable, "-m", "maka.cli", "host", "start", "--foreground", "--root", str(tmp_path)]
    assert electing.command(tmp_path, None, None) == begins
    assert electing.command(tmp_path, "demo", 600) == [*begins, "--app", "demo", "--idle", "600"]


def test_where_there_is_none_none_is_found(root: Path) -> None:
    async def scenario() -> None:
        assert await find_host(root) is None
        async with FakeHost(root) as host:
            registration = host.registration()
            assert await find_host(root) == registration
            host.state = "recovering"
            assert await find_host(root) == attrs.evolve(registration, state="recovering")
        endpoint.write(root, registration)
        assert await find_host(root) is None

    play(scenario())


def test_a_host_that_hangs_is_not_found(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(electing, "_HANDSHAKE", 0.05)

    async def scenario() -> None:
        async with FakeHost(root) as host:
            host.silent = True
            assert await find_host(root) is None

    play(scenario())


def test_a_host_that_speaks_otherwise_is_told(root: Path) -> None:
    async def scenario() -> None:
        async with FakeHost(root) as host:
            host.refusal = {"code": "protocol_incompatible", "message": "speaks 3 to 4"}
            for ask in (find_host(root), ensure_host(root)):
                with pytest.raises(HostError, match="speaks 3 to 4"):
                    await ask

    play(scenario())


def test_a_host_that_runs_is_taken_and_nothing_is_started(root: Path, candidate: Elect) -> None:
    candidate("raise SystemExit('it was started')")

    async def scenario() -> None:
        async with FakeHost(root) as host:
            assert await ensure_host(root) == host.registration()
        assert not (root / "host.log").exists()

    play(scenario())


def test_a_host_is_started_detached_with_a_log_of_its_own(root: Path, candidate: Elect) -> None:
    candidate("print('it begins', flush=True)\n" + CANDIDATE)

    async def scenario() -> Registration:
        registration = await ensure_host(root, app="demo")
        assert await find_host(root) == registration
        return registration

    registration: list[Registration] = []

    async def keep() -> None:
        registration.append(await scenario())

    play(keep())
    [found] = registration
    assert (found.app, found.state) == ("demo", "ready")
    assert found.pid != os.getpid()
    assert os.getsid(found.pid) == found.pid, "the terminal's signals do not reach it"
    log = root / "host.log"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert log.read_text() == "it begins\n"
    assert running(found.pid), "it outlives the loop that it was started from"


def test_of_twenty_at_once_one_host_comes(root: Path, candidate: Elect) -> None:
    candidate(CANDIDATE)

    async def scenario() -> None:
        found = await asyncio.gather(*(ensure_host(root) for _ in range(20)))
        assert len({registration.host_epoch for registration in found}) == 1
        assert {registration.pid for registration in found} != {os.getpid()}

    play(scenario())


def test_of_many_at_once_one_starts_a_candidate(
    root: Path, candidate: Elect, started: "list[subprocess.Popen[bytes]]"
) -> None:
    candidate(CANDIDATE)

    async def scenario() -> None:
        found = await asyncio.gather(*(ensure_host(root) for _ in range(8)))
        assert len({registration.host_epoch for registration in found}) == 1
        assert [process.pid for process in started] == [found[0].pid]

    play(scenario())


def test_each_who_starts_a_candidate_that_fails_is_told(
    root: Path, candidate: Elect, started: "list[subprocess.Popen[bytes]]"
) -> None:
    candidate("raise SystemExit('maka: no app')")

    async def scenario() -> None:
        outcomes = await asyncio.gather(*(ensure_host(root) for _ in range(3)), return_exceptions=True)
        assert [str(each) for each in outcomes] == ["the host did not start (exit code 1): no app"] * 3
        assert all(isinstance(each, HostStartFailed) for each in outcomes)
        assert len(started) == 3

    play(scenario())


def test_losers_are_no_failure(
    root: Path,
    candidate: Elect,
    started: "list[subprocess.Popen[bytes]]",
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    candidate(CANDIDATE)
    # As on a system without such locks: each starts its own.
    monkeypatch.setattr("fcntl.flock", no_locks(fcntl.flock))

    async def scenario() -> None:
        found = await asyncio.gather(*(ensure_host(root) for _ in range(4)))
        assert len({registration.host_epoch for registration in found}) == 1
        assert len(started) == 4
        while sum(process.poll() is None for process in started) > 1:
            await asyncio.sleep(0.02)
        assert running(found[0].pid)

    play(scenario())


def no_locks(flock: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
    """``flock`` as it is where the log is; other files have locks."""

    def refuse(file: Any, operation: int) -> None:
        if getattr(file, "name", None) is not None:
            raise OSError(errno.ENOLCK, "no locks")
        flock(file, operation)

    return refuse


def test_a_root_that_somebody_owns_is_waited_for(root: Path, candidate: Elect) -> None:
    candidate("raise SystemExit('it was started')")

    async def scenario() -> None:
        lock = RootLock.acquire(root)
        electing_one = asyncio.ensure_future(ensure_host(root))
        await asyncio.sleep(0.15)
        assert not electing_one.done()
        # No step of the election falls between these two.
        lock.release()
        async with FakeHost(root) as host:
            assert (await electing_one).host_epoch == host.epoch
        assert not (root / "host.log").exists()

    play(scenario())


def test_an_owner_that_never_answers_is_named_at_the_deadline(root: Path, candidate: Elect) -> None:
    candidate("raise SystemExit('it was started')")

    async def scenario() -> None:
        said = rf"no host of {root} has answered for 0.2 s: the host of {root} \(process {os.getpid()}\) holds .*"
        with RootLock.acquire(root), pytest.raises(HostStartFailed, match=said):
            await ensure_host(root, timeout=0.2)
        assert not (root / "host.log").exists()

    play(scenario())


def test_a_candidate_that_does_not_take_the_root_is_named_at_the_deadline(
    root: Path, candidate: Elect, started: "list[subprocess.Popen[bytes]]"
) -> None:
    candidate("import time; time.sleep(600)")

    async def scenario() -> None:
        with pytest.raises(HostStartFailed) as failed:
            await ensure_host(root, timeout=0.3)
        [process] = started
        assert f"process {process.pid} was started, and has not taken {root / 'host.lock'}; read" in str(failed.value)

    play(scenario())


def test_a_host_that_leaves_is_waited_for_and_followed_by_a_new_one(root: Path, candidate: Elect) -> None:
    candidate(CANDIDATE)

    async def scenario() -> None:
        async with FakeHost(root, state="draining") as host:
            electing_one = asyncio.ensure_future(ensure_host(root))
            await host.until(lambda: host.peers)
            assert not electing_one.done()
        assert (await electing_one).host_epoch != host.epoch

    play(scenario())


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "import sys\nprint('one')\nprint('maka: no app is configured; set MAKA_APP', file=sys.stderr)\nsys.exit(2)",
            r"^the host did not start \(exit code 2\): no app is configured; set MAKA_APP$",
        ),
        ("raise SystemExit(1)", r"^the host did not start \(exit code 1\) and said nothing; read .*host\.log, then"),
        ("import os\nos.kill(os.getpid(), 9)", r"^the host did not start \(signal 9\) and said nothing"),
    ],
)
def test_a_candidate_that_fails_says_why(root: Path, candidate: Elect, code: str, said: str) -> None:
    candidate(code)
    root.mkdir(mode=0o700)
    (root / "host.log").write_text("maka: an old sentence\n")
    (root / "host.log").chmod(0o644)

    async def scenario() -> None:
        with pytest.raises(HostStartFailed, match=said):
            await ensure_host(root)
        assert (root / "host.log").read_text().startswith("maka: an old sentence\n")
        assert stat.S_IMODE((root / "host.log").stat().st_mode) == 0o600

    play(scenario())


def test_a_failure_is_none_while_another_is_becoming_the_host(root: Path, candidate: Elect) -> None:
    candidate(
        "import os, sys, time\nfrom maka.runtime.host.ownership import owner\n"
        "with open(sys.argv[1] + '/ran', 'w') as ran:\n    ran.write(str(os.getpid()))\n"
        "while owner(sys.argv[1]) is None:\n    time.sleep(0.01)\nsys.exit(2)"
    )

    async def scenario() -> None:
        electing_one = asyncio.ensure_future(ensure_host(root))
        while not (root / "ran").exists() or not (root / "ran").read_text():
            await asyncio.sleep(0.01)
        lock = RootLock.acquire(root)
        while running(int((root / "ran").read_text())):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert not electing_one.done()
        lock.release()
        async with FakeHost(root) as host:
            assert (await electing_one).host_epoch == host.epoch

    play(scenario())


@pytest.mark.parametrize("code", [0, 3])
def test_a_candidate_that_ends_without_a_failure_is_followed_by_the_next(
    root: Path, candidate: Elect, code: int
) -> None:
    candidate(
        f"import os, sys\nmarker = sys.argv[1] + '/marker'\n"
        f"if not os.path.exists(marker):\n    open(marker, 'w').close()\n    sys.exit({code})\n{CANDIDATE}"
    )

    async def scenario() -> None:
        assert (await ensure_host(root)).state == "ready"
        assert (root / "marker").exists()

    play(scenario())


def test_a_log_that_has_grown_long_is_kept_beside_a_new_one(
    root: Path, candidate: Elect, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        monkeypatch.setattr(electing, "_LONG", 10)
        root.mkdir(mode=0o700)
        (root / "host.log").write_text("eleven byte")
        candidate("import sys; print('maka: none', file=sys.stderr); sys.exit(2)")
        with pytest.raises(HostStartFailed):
            await ensure_host(root, timeout=10)
        assert (root / "host.log.1").read_text() == "eleven byte"
        assert (root / "host.log").read_text() == "maka: none\n"

    asyncio.run(main())


def test_a_log_that_cannot_be_written_is_told(root: Path, candidate: Elect) -> None:
    candidate("raise SystemExit('it was started')")
    (root / "host.log").mkdir(parents=True)

    async def scenario() -> None:
        with pytest.raises(JournalWriteError, match=r"cannot open .*host\.log: Is a directory; move"):
            await ensure_host(root)

    play(scenario())


def test_a_host_that_was_killed_is_followed_by_a_new_one(root: Path, candidate: Elect) -> None:
    candidate(CANDIDATE)

    async def scenario() -> None:
        first = await ensure_host(root)
        os.kill(first.pid, signal.SIGKILL)
        while running(first.pid):
            await asyncio.sleep(0.01)
        second = await ensure_host(root)
        assert second.host_epoch != first.host_epoch
        assert not Path(first.endpoint).exists()

    play(scenario())
