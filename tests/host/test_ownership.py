"""A root has one owner at a time, and it is the kernel that says who."""

import os
import stat
from pathlib import Path

import pytest

from maka.journal.errors import JournalWriteError
from maka.runtime.host import HostRunning, ownership
from maka.runtime.host.ownership import RootLock
from support.processes import Child

HOLD = """
from maka.runtime.host.ownership import RootLock
lock = RootLock.acquire(sys.argv[1])
print("held", flush=True)
sys.stdin.readline()
lock.release()
print("released", flush=True)
sys.stdin.readline()
"""


def test_a_root_that_is_not_there_is_made_private(tmp_path: Path) -> None:
    root = tmp_path / "above" / "root"
    with RootLock.acquire(root) as lock:
        assert lock.root == root.resolve()
        assert stat.S_IMODE(root.stat().st_mode) == 0o700
        assert stat.S_IMODE((root / "host.lock").stat().st_mode) == 0o600


def test_a_second_host_is_told_who_has_the_root(tmp_path: Path) -> None:
    with Child(HOLD, tmp_path) as child:
        assert child.line() == "held"
        with pytest.raises(HostRunning) as refused:
            RootLock.acquire(tmp_path)
        assert refused.value.pid == child.process.pid
        assert refused.value.since is not None
        said = str(refused.value)
        assert f"{tmp_path} has a host already: process {child.process.pid}, since 20" in said
        assert said.endswith("look at it with `maka host status`, or end it with `maka host stop`")
        child.tell()
        assert child.line() == "released"
        RootLock.acquire(tmp_path).release()


def test_the_owner_is_seen_and_not_displaced(tmp_path: Path) -> None:
    assert ownership.owner(tmp_path) is None
    assert ownership.owner(tmp_path / "nowhere") is None
    with RootLock.acquire(tmp_path) as lock:
        for _ in range(3):
            owner = ownership.owner(tmp_path)
            assert owner is not None
            assert owner["pid"] == os.getpid()
        with pytest.raises(HostRunning):
            RootLock.acquire(tmp_path)
    lock.release()
    assert ownership.owner(tmp_path) is None


def test_an_owner_that_said_nothing_is_one(tmp_path: Path) -> None:
    with RootLock.acquire(tmp_path):
        (tmp_path / "host.lock").write_text("")
        assert ownership.owner(tmp_path) == {"pid": None, "host": None, "since": None}
        with pytest.raises(HostRunning, match="has a host already: a process; look") as refused:
            RootLock.acquire(tmp_path)
        assert refused.value.pid is None


def test_a_host_that_is_killed_leaves_the_root_free(tmp_path: Path) -> None:
    with Child(HOLD, tmp_path) as child:
        assert child.line() == "held"
        child.kill()
        assert ownership.owner(tmp_path) is None
        RootLock.acquire(tmp_path).release()


def test_one_root_has_one_lock_whatever_it_is_called(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "root")
    with RootLock.acquire(tmp_path / "link") as lock:
        assert lock.root == (tmp_path / "root").resolve()
    with RootLock.acquire(tmp_path / "root"):
        with pytest.raises(HostRunning):
            RootLock.acquire(tmp_path / "link")


def test_a_root_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(JournalWriteError, match="may be written to by others"):
        RootLock.acquire(tmp_path)


def test_a_root_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalWriteError, match="cannot create"):
        RootLock.acquire(tmp_path / "file" / "root")
