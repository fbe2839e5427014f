"""Real hosts of a root: of many who want one at once one comes, and who has the root keeps it until it is gone."""

import asyncio
import json
import os
import signal
import socket
import stat
import subprocess
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from maka.cli import hosting
from maka.runtime.host import HostStartFailed, HostUnreachable, connect, electing, endpoint, ensure_host, find_host
from maka.runtime.host.endpoint import Registration, read_registration
from maka.runtime.host.ownership import RootLock, owner
from support import command
from support.electors import APP
from support.hosts import PATIENCE, TESTS, HostProcess, Root, a_root, until_over
from support.nursery import Nursery

Test = Callable[[Root], Coroutine[None, None, None]]
Go = Callable[[Test], None]


@pytest.fixture
def cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A root that is not there yet. The host that it then has is ended with the test."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    root = tmp_path / "root"
    yield root
    end(root)


@pytest.fixture
def go(cold: Path) -> Go:
    def run(test: Test) -> None:
        with a_root(cold) as root:
            asyncio.run(test(root))

    return run


def end(root: Path) -> None:
    """Kills the host of a root that no test started itself, and waits until the root is free."""
    registration = read_registration(root)
    if registration is not None and (owner(root) or {}).get("pid") == registration.pid:
        os.kill(registration.pid, signal.SIGKILL)
        while owner(root) is not None:
            pass
    if root.exists():
        with RootLock.acquire(root) as lock:
            endpoint.clear(endpoint.prepare(lock, "0" * 32))


def test_twenty_programs_that_start_at_once_on_a_cold_root_have_one_host(cold: Path) -> None:
    with Nursery("support.electors") as nursery:
        lives = [nursery.life("support.electors:elect", str(cold)) for _ in range(20)]
        for life in lives:
            life.tell()
        told = [json.loads(life.line()) for life in lives]
        assert [life.end() for life in lives] == [0] * 20
    [(epoch, pid)] = {(each["epoch"], each["pid"]) for each in told}
    assert all(each["asked"] == {"epoch": epoch, "pid": pid} for each in told)
    lost = [code for each in told for code in each["lost"]]
    assert set(lost) <= {3}
    # Who lost said so, and who it was that won.
    log = (cold / "host.log").read_text()
    assert log.count("has a host already: process") == len(lost)
    assert log.count("is ready") == 1

    ran = command.process("host", "start", "--json", "--app", APP, "--root", cold)
    assert ran.code == 0, ran.err
    assert (ran.json["started"], ran.json["pid"], ran.json["host_epoch"]) == (False, pid, epoch)
    assert (owner(cold) or {})["pid"] == pid


def test_a_host_that_is_stopped_by_a_signal_is_not_displaced_and_goes_on(
    go: Go, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(root: Root) -> None:
        monkeypatch.setattr(electing, "_HANDSHAKE", 0.3)
        host = await root.start()
        pid, epoch = host.process.pid, host.epoch
        async with root.client() as client:
            begun = await client.start_turn("s1", "hold on", turn_id="t")
        async with connect(root.path, timeout=0.4, reconnect=False) as client:
            os.kill(pid, signal.SIGSTOP)
            with pytest.raises(HostUnreachable, match=rf"\(process {pid}\) has not answered for 0\.4 s; look at what"):
                await client.query_turn("s1", "t")
            with pytest.raises(HostUnreachable, match=rf"process {pid}"):
                async with connect(root.path, timeout=0.3):
                    pass
            assert await find_host(root.path) is None
            with pytest.raises(HostStartFailed, match=rf"\(process {pid}\) holds .* does not answer: "):
                await ensure_host(root.path, app=APP, timeout=0.5)
            monkeypatch.setattr(hosting, "ensure_host", partial(ensure_host, timeout=0.5))
            ran = await asyncio.to_thread(command.here, "host", "start", "--app", APP, "--root", root.path)
            assert (ran.code, ran.out) == (2, "")
            assert f"(process {pid}) holds {root.path / 'host.lock'} and does not answer" in ran.err
            # Nobody was started, and whoever is started by hand finds the root taken.
            assert not (root.path / "host.log").exists()
            other = HostProcess(root.path)
            assert await asyncio.to_thread(other.process.wait, PATIENCE) == 3
            assert f"has a host already: process {pid}" in other.said()
            registration = read_registration(root.path)
            assert registration is not None
            assert (registration.pid, registration.host_epoch) == (pid, epoch)

            os.kill(pid, signal.SIGCONT)
            async with root.client() as back:
                assert back.host_epoch == epoch
                assert (await back.query_turn("s1", "t"))["run_id"] == begun["turn"]["run_id"]
                stopped = await back.stop_turn("s1", "t", begun["turn"]["run_id"])
                assert stopped["status"] == "cancelled"
        assert host.stop() == 0

    go(test)


def test_a_host_that_is_killed_is_followed_by_one_that_goes_on_with_what_it_left(
    go: Go, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))

    async def test(root: Root) -> None:
        first = await root.start()
        async with root.client(reconnect=True) as client:
            await client.start_turn("s1", "hold on", turn_id="t")
            await client.submit_message(
                "s1", [{"kind": "text", "text": "quick"}], message_id="m", placement="next_turn"
            )
            left = client.host_epoch
            first.kill()
            found = await asyncio.gather(*(ensure_host(root.path, app=APP) for _ in range(5)))
            assert len({each.host_epoch for each in found}) == 1
            assert found[0].host_epoch != left
            # The client is there again, and is told what became of the turn and of what waited behind it.
            assert (await until_over(client, "s1", "t"))["failure_class"] == "app_restarted"
            assert client.host_epoch == found[0].host_epoch
        [admitted] = [each for each in root.admissions() if each["message_id"] == "m"]
        assert admitted["previous_root_turn_id"] == "t"

    go(test)


# ---------------------------------------------------------------- what lies about


def gone() -> int:
    """The id of a process that there is no more."""
    with subprocess.Popen(["true"]) as process:
        process.wait()
    return process.pid


def registration(root: Path, place: str, **other: Any) -> Registration:
    values: dict[str, Any] = {"host_epoch": "e" * 32, "pid": gone(), "state": "ready", "started_at": 1, "version": "0"}
    return Registration(**{**values, "endpoint": place, "root": endpoint.name_of(root), **other})


@pytest.mark.parametrize("what", ["file", "socket", "foreign process", "foreign host", "garbage"])
def test_what_a_dead_host_left_keeps_nobody_from_the_root(go: Go, what: str) -> None:
    async def test(root: Root) -> None:
        with RootLock.acquire(root.path) as lock:
            place = str(endpoint.prepare(lock, "e" * 32))
        others: list[asyncio.Server] = []
        match what:
            case "file":
                endpoint.write(root.path, registration(root.path, place))
            case "socket":
                listener = socket.socket(socket.AF_UNIX)
                listener.bind(place)
                listener.close()
                endpoint.write(root.path, registration(root.path, place))
            case "foreign process":
                # The number of a dead host's process is somebody else's by now: this one's.
                endpoint.write(root.path, registration(root.path, place, pid=os.getpid()))
            case "foreign host":
                # The file leads to a program that is no host of this root.
                async def speaks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                    await reader.readline()
                    writer.write(b'{"kind":"refused","code":"wrong_host","message":"another"}\n')
                    writer.close()

                others.append(await asyncio.start_unix_server(speaks, place))
                endpoint.write(root.path, registration(root.path, place))
            case "garbage":
                (root.path / "host.json").write_bytes(b'{"pid": ')
        assert await find_host(root.path) is None
        with pytest.raises(HostUnreachable):
            async with connect(root.path, timeout=0.3):
                pass
        for server in others:
            server.close()
        host = await root.start()
        found = await find_host(root.path)
        assert found is not None
        assert (found.host_epoch, found.pid) == (host.epoch, host.process.pid)
        async with root.client() as client:
            assert (await client.status())["pid"] == host.process.pid
        # Nothing of the dead one is left beside the socket of the one that lives.
        assert os.listdir(Path(found.endpoint).parent) == [Path(found.endpoint).name]
        assert host.stop() == 0
        assert not Path(found.endpoint).parent.exists()
        assert read_registration(root.path) is None

    go(test)


# ---------------------------------------------------------------- places


def private(path: str) -> bool:
    place, folder = os.lstat(path), os.lstat(Path(path).parent)
    return stat.S_IMODE(place.st_mode) == 0o600 and stat.S_IMODE(folder.st_mode) == 0o700 and len(path) < 100


@pytest.mark.parametrize("what", ["absent", "a file", "not writable", "relative", "too long"])
def test_where_the_directory_for_sockets_is_of_no_use_another_is(
    go: Go, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    place = tmp_path / ("r" * 90 if what == "too long" else "r")
    if what == "a file":
        place.touch()
    elif what != "absent":
        place.mkdir(mode=0o500 if what == "not writable" else 0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "r" if what == "relative" else str(place))

    async def test(root: Root) -> None:
        host = await root.start()
        # Clients go by the file, wherever their own sockets would be.
        monkeypatch.delenv("XDG_RUNTIME_DIR")
        found = await find_host(root.path)
        assert found is not None
        assert private(found.endpoint)
        if what != "not writable":  # whom no mode keeps out may have it there
            assert not found.endpoint.startswith(str(place))
        async with root.client() as client:
            assert (await client.status())["host_epoch"] == found.host_epoch
        assert host.stop() == 0

    go(test)


def test_a_root_with_a_very_long_path_has_a_host(cold: Path) -> None:
    deep = cold.joinpath(*("d" * 200 for _ in range(9)), "root")
    deep.parent.mkdir(parents=True)

    async def test() -> None:
        with a_root(deep) as root:
            host = await root.start()
            found = await find_host(deep)
            assert found is not None
            assert private(found.endpoint)
            assert found.root == str(deep)
            # By whatever way one comes to it.
            cold.with_name("near").symlink_to(deep)
            async with connect(cold.with_name("near")) as client:
                assert (await client.status())["pid"] == host.process.pid
            assert host.stop() == 0

    asyncio.run(test())


def test_where_no_socket_can_be_it_is_said_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / ("t" * 90)
    place.mkdir()
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(place))
    host = HostProcess(tmp_path / "root")
    assert host.process.wait(PATIENCE) == 2
    assert host.said().endswith(
        f"\nmaka: no socket can be made below {place}: a path of it must be shorter than 100 bytes; "
        "set TMPDIR to a shorter path, then start the host again\n"
    )
    assert owner(tmp_path / "root") is None
    assert read_registration(tmp_path / "root") is None
