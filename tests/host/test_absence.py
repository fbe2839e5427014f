"""Where no host answers it is said why, where, and what to do."""

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from maka.runtime.host import absence, endpoint, find_host
from maka.runtime.host.absence import look
from maka.runtime.host.ownership import RootLock, lives
from support.fake_host import FakeHost, play
from support.processes import Child


def test_where_nobody_has_the_root_it_is_said_how_one_is_started(tmp_path: Path) -> None:
    found = look(tmp_path / "root")
    assert (found.state, found.pid) == ("none", None)
    assert found.message == f"no host runs for {tmp_path / 'root'}; start one with `maka host start`"


def test_one_that_does_not_serve_yet_is_named_with_the_way_to_end_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path) as host:
            left = host.registration()
        for registration in (None, attrs.evolve(left, pid=1)):
            if registration is not None:
                # A dead host's.
                endpoint.write(tmp_path, registration)
            with RootLock.acquire(tmp_path):
                found = look(tmp_path)
            assert (found.state, found.pid) == ("silent", os.getpid())
            assert f"(process {os.getpid()}) holds {tmp_path / 'host.lock'} and does not serve yet" in found.message
            assert f"read {tmp_path / 'host.log'}" in found.message
            assert f"`kill {os.getpid()}`" in found.message

    play(scenario())


def test_one_that_said_nothing_of_itself_is_not_named(tmp_path: Path) -> None:
    with RootLock.acquire(tmp_path):
        (tmp_path / "host.lock").write_text("")
        found = look(tmp_path)
    assert (found.state, found.pid) == ("silent", None)
    assert "kill" not in found.message


def open_to_others(host: FakeHost) -> str:
    host.path.parent.chmod(0o755)
    return rf"{host.path.parent} is open to others \(mode 0755\), .*close it with `chmod 700 {host.path.parent}`, then"


def a_link(host: FakeHost) -> str:
    elsewhere = host.path.parent.with_name(host.path.parent.name + ".moved")
    host.path.parent.rename(elsewhere)
    host.path.parent.symlink_to(elsewhere)
    return f"{host.path.parent} is a link, .*move {host.path.parent} away"


def gone(host: FakeHost) -> str:
    host.path.unlink()
    return f"its socket {host.path} is gone; .*try again"


def a_directory(host: FakeHost) -> str:
    (host.root / "host.json").unlink()
    (host.root / "host.json").mkdir()
    return rf"{host.root}/host\.json is no plain file; move it elsewhere"


def writable(host: FakeHost) -> str:
    (host.root / "host.json").chmod(0o620)
    return rf"{host.root}/host\.json may be written to by others, .*`chmod 600 {host.root}/host\.json`"


def nothing(host: FakeHost) -> str:
    host.silent = True
    return "does not answer: it may hang"


@pytest.mark.parametrize("wrong", [open_to_others, a_link, gone, a_directory, writable, nothing])
def test_what_is_in_the_way_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: Callable[[FakeHost], str]
) -> None:
    monkeypatch.setattr("maka.runtime.host.electing._HANDSHAKE", 0.05)

    async def scenario() -> None:
        async with FakeHost(tmp_path) as host:
            said = wrong(host)
            assert await find_host(tmp_path) is None
            found = look(tmp_path)
            if host.path.parent.is_symlink():
                moved = host.path.parent.resolve()
                host.path.parent.unlink()
                moved.rename(host.path.parent)
        assert (found.state, found.pid) == ("silent", os.getpid())
        with pytest.raises(AssertionError, match=said):
            raise AssertionError(found.message)

    play(scenario())
    if (tmp_path / "host.json").is_dir():
        (tmp_path / "host.json").rmdir()


def denying(monkeypatch: pytest.MonkeyPatch, *denied: Path) -> None:
    access = os.access
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) not in denied and access(path, mode))


@pytest.mark.parametrize("which", ["registration", "socket"])
@pytest.mark.parametrize("own", [True, False])
def test_what_may_not_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str, own: bool) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path) as host:
            path = host.path if which == "socket" else tmp_path / "host.json"
            with monkeypatch.context() as patch:
                denying(patch, path)
                if not own:
                    patch.setattr("os.geteuid", lambda: 12345)
                found = look(tmp_path)
        assert found.state == "silent"
        if own:
            assert f"permission denied for {path}, which is this user's own; open it with `chmod" in found.message
        else:
            assert f"{path} belongs to another user (uid {os.getuid()}); ask that user" in found.message

    play(scenario())


@pytest.mark.parametrize("listed", [True, False])
def test_a_lock_of_another_user_is_no_root_without_a_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: bool
) -> None:
    lock = tmp_path / "host.lock"
    lock.write_text("")
    denying(monkeypatch, lock)
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    inode = lock.stat().st_ino
    lines = f"1: POSIX  ADVISORY  WRITE 7 fd:00:{inode} 0 EOF\n2: FLOCK  ADVISORY  WRITE 4711 fd:00:{inode} 0 EOF\n"
    locks = "" if not listed else lines
    monkeypatch.setattr(absence, "open", lambda *_, **__: io.StringIO(locks), raising=False)
    found = look(tmp_path)
    assert (found.state, found.pid) == ("hidden", 4711 if listed else None)
    begins = f"{tmp_path} has a host, process 4711," if listed else f"cannot see whether a host runs for {tmp_path}: "
    assert found.message.startswith(begins)
    assert f"{lock} belongs to another user (uid {os.getuid()})" in found.message


def test_a_root_that_may_not_be_looked_into_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = os.stat

    def refusing(path: Any, **more: Any) -> os.stat_result:
        if Path(path).name == "host.lock":
            raise PermissionError(13, "Permission denied")
        return stat(path, **more)

    monkeypatch.setattr("os.stat", refusing)
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    found = look(tmp_path)
    assert found.state == "hidden"
    assert found.message.startswith(f"cannot look for a host in {tmp_path}: {tmp_path} belongs to another user")


def test_a_process_that_has_ended_does_not_live() -> None:
    assert not lives(os.getpid())
    with Child("print('there', flush=True)\nsys.stdin.readline()", Path("/tmp")) as child:
        assert child.line() == "there"
        assert lives(child.process.pid)
        os.kill(child.process.pid, 9)
        # Nobody has waited for it.
        os.waitid(os.P_PID, child.process.pid, os.WEXITED | os.WNOWAIT)
        assert not lives(child.process.pid)
        child.process.wait()
        assert not lives(child.process.pid)
