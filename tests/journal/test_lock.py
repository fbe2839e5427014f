import errno
import json
import os
import re
import socket
import stat
import time
from pathlib import Path

import filelock
import pytest

from maka.journal import lock as lock_module
from maka.journal.errors import JournalConflict, JournalLocked, JournalWriteError, SessionNotFound
from maka.journal.lock import SessionLock, holder, is_locked, seems_locked
from support.processes import Child

HOLD = """
from maka.journal.lock import SessionLock
lock = SessionLock.acquire(sys.argv[1])
print("held", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def session(tmp_path: Path) -> Path:
    path = tmp_path / "sessions" / "s1"
    path.mkdir(parents=True, mode=0o700)
    for directory in (tmp_path, path.parent, path):
        directory.chmod(0o700)
    return path


def test_the_lock_file_is_private_and_says_who_holds_it(session: Path) -> None:
    before = os.umask(0o777)
    try:
        lock = SessionLock.acquire(session)
    finally:
        os.umask(before)
    path = session / "journal.lock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = json.loads(path.read_bytes())
    assert text["pid"] == os.getpid()
    assert text["host"] == socket.gethostname() or text["host"] == os.uname().nodename
    assert text == holder(session)
    assert lock.held
    lock.release()
    assert not lock.held


def test_the_lock_file_is_never_unlinked_and_its_text_goes_with_the_lock(session: Path) -> None:
    lock = SessionLock.acquire(session)
    inode = (session / "journal.lock").stat().st_ino
    lock.release()
    lock.release()
    assert (session / "journal.lock").stat().st_ino == inode
    assert holder(session) is None
    with SessionLock.acquire(session):
        assert (session / "journal.lock").stat().st_ino == inode


def test_a_second_open_in_one_process_is_refused(session: Path) -> None:
    with SessionLock.acquire(session):
        with pytest.raises(JournalLocked, match="this process") as refused:
            SessionLock.acquire(session)
        assert refused.value.holder is not None
        assert refused.value.holder["pid"] == os.getpid()
        assert is_locked(session)
    assert not is_locked(session)
    SessionLock.acquire(session).release()


def test_a_second_process_is_refused_at_once_with_the_holder_and_since_when(session: Path) -> None:
    with Child(HOLD, session) as child:
        assert child.line() == "held"
        assert is_locked(session)
        with pytest.raises(JournalLocked) as refused:
            SessionLock.acquire(session)
        assert f"process {child.process.pid}" in str(refused.value)
        assert re.search(r"since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d", str(refused.value))
        assert str(session) in str(refused.value)


def test_a_killed_holder_frees_the_lock(session: Path) -> None:
    with Child(HOLD, session) as child:
        assert child.line() == "held"
        child.kill()
        assert holder(session) is not None, "the text of the dead holder is still there"
        assert not is_locked(session)
        SessionLock.acquire(session).release()


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"pid":1}', b"\xff", b'{"pid":"x","since":1e300}', b"0" * 10_000])
def test_the_text_of_the_lock_file_means_nothing(session: Path, text: bytes) -> None:
    (session / "journal.lock").write_bytes(text)
    assert not is_locked(session)
    with SessionLock.acquire(session):
        assert holder(session) is not None


def test_a_live_pid_in_the_text_means_nothing(session: Path) -> None:
    stale = {"pid": os.getppid(), "host": os.uname().nodename, "since": 1}
    (session / "journal.lock").write_text(json.dumps(stale))
    assert not is_locked(session)
    SessionLock.acquire(session).release()


@pytest.mark.parametrize("text", [b"", b"[]", b'{"pid":"x","since":"y"}', b'{"pid":7,"since":1e300}', b'{"pid":7}'])
def test_a_holder_with_a_strange_text_is_refused_all_the_same(session: Path, text: bytes) -> None:
    with SessionLock.acquire(session):
        (session / "journal.lock").write_bytes(text)
        with pytest.raises(JournalLocked):
            SessionLock.acquire(session)


def test_looking_creates_nothing(session: Path) -> None:
    assert not is_locked(session)
    assert holder(session) is None
    assert list(session.iterdir()) == []


def test_looking_does_not_take_the_lock_away(session: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever only looks holds the lock shared for an instant; an opener must not take that for a writer."""
    import fcntl

    SessionLock.acquire(session).release()
    with open(session / "journal.lock", "rb") as looker:
        fcntl.flock(looker, fcntl.LOCK_SH | fcntl.LOCK_NB)
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            fcntl.flock(looker, fcntl.LOCK_UN)

        monkeypatch.setattr(time, "sleep", pause)
        SessionLock.acquire(session).release()
    assert len(pauses) == 1


def test_a_forked_child_gives_the_lock_up_and_the_parent_keeps_it(session: Path) -> None:
    lock = SessionLock.acquire(session)
    done, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(told, b"held" if lock.held else b"free")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(done, 10) == b"free"
    os.close(done)
    os.close(told)
    assert lock.held
    assert is_locked(session)
    lock.release()


def test_a_living_forked_child_does_not_keep_the_lock(session: Path) -> None:
    lock = SessionLock.acquire(session)
    wait, go = os.pipe()
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go)
        os.write(told, b"x")
        os.read(wait, 1)
        os._exit(0)
    os.close(wait)
    os.read(ready, 1)
    lock.release()
    try:
        assert not is_locked(session)
        SessionLock.acquire(session).release()
    finally:
        os.close(go)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(told)


def test_the_path_must_still_be_the_locked_inode(session: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock file is replaced between open and lock, once: the new one is locked instead."""
    SessionLock.acquire(session).release()
    swapped: list[int] = []
    real = lock_module._lock

    def swap(fd: int, path: Path) -> None:
        if not swapped:
            swapped.append(os.stat(path).st_ino)
            (session / "other").touch(mode=0o600)
            os.rename(session / "other", path)
        real(fd, path)

    monkeypatch.setattr(lock_module, "_lock", swap)
    with SessionLock.acquire(session) as lock:
        assert lock.fd is not None
        assert os.fstat(lock.fd).st_ino == (session / "journal.lock").stat().st_ino != swapped[0]


def test_a_lock_file_that_is_always_replaced_is_refused(session: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_module, "_same", lambda fd, path: False)
    with pytest.raises(JournalConflict, match="replaced"):
        SessionLock.acquire(session)


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks_is_refused(session: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(fd: int, **_: object) -> bool:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(filelock, "lock_descriptor", refuse)
    with pytest.raises(JournalWriteError, match="cannot lock") as refused:
        SessionLock.acquire(session)
    assert refused.value.path == str(session / "journal.lock")


def test_a_lock_that_is_granted_twice_is_refused(session: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filelock, "lock_descriptor", lambda fd, **_: True)
    with pytest.raises(JournalWriteError, match=r"cannot lock.*grants one lock twice"):
        SessionLock.acquire(session)


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777, 0o1777])
def test_a_place_that_others_may_write_to_is_refused(session: Path, which: int, mode: int) -> None:
    place = [session, session.parent, session.parent.parent][which]
    place.chmod(mode)
    with pytest.raises(JournalWriteError) as refused:
        SessionLock.acquire(session)
    assert str(place) in str(refused.value)
    assert f"{mode:04o}" in str(refused.value)
    assert "chmod go-w" in str(refused.value)
    assert not (session / "journal.lock").exists()
    place.chmod(0o755)
    SessionLock.acquire(session).release()


def test_a_missing_directory_is_no_session(tmp_path: Path) -> None:
    with pytest.raises(SessionNotFound, match="no session directory"):
        SessionLock.acquire(tmp_path / "nothing")


@pytest.mark.parametrize("kind", ["symlink", "fifo", "directory"])
def test_what_is_no_plain_lock_file_is_refused(session: Path, kind: str) -> None:
    path = session / "journal.lock"
    if kind == "symlink":
        path.symlink_to(session / "elsewhere")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(JournalWriteError, match=re.escape(str(path))):
        SessionLock.acquire(session)
    assert not (session / "elsewhere").exists()
    assert not is_locked(session)
    assert holder(session) is None


def test_nothing_leaks_when_it_is_refused(session: Path) -> None:
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    with SessionLock.acquire(session):
        for _ in range(5):
            with pytest.raises(JournalLocked):
                SessionLock.acquire(session)
    after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert after == before


def test_looking_for_a_holder_locks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a lock was touched")

    with SessionLock.acquire(tmp_path):
        monkeypatch.setattr("fcntl.flock", refuse)
        assert seems_locked(tmp_path)
        monkeypatch.undo()
    (tmp_path / "journal.lock").write_text(json.dumps({"pid": os.getpid(), "host": os.uname().nodename}))
    assert not seems_locked(tmp_path)
    assert not seems_locked(tmp_path / "nowhere")


def test_a_lock_of_another_name_is_a_lock_of_its_own(session: Path) -> None:
    root = session.parent.parent
    with SessionLock.acquire(root, "host.lock") as lock:
        assert lock.path == root / "host.lock"
        assert is_locked(root, "host.lock")
        assert not is_locked(root)
        held = holder(root, "host.lock")
        assert held is not None
        assert held["pid"] == os.getpid()
        with pytest.raises(JournalLocked) as refused:
            SessionLock.acquire(root, "host.lock")
        assert refused.value.holder == held
        assert refused.value.path == str(root / "host.lock")
        SessionLock.acquire(session).release()
    assert not is_locked(root, "host.lock")
    assert holder(root, "host.lock") is None


def test_a_lock_of_another_name_needs_its_own_directory_to_be_private_and_no_other(session: Path) -> None:
    session.parent.chmod(0o770)
    SessionLock.acquire(session, "host.lock").release()
    session.chmod(0o770)
    with pytest.raises(JournalWriteError, match="chmod go-w"):
        SessionLock.acquire(session, "host.lock")
    with pytest.raises(SessionNotFound, match="there is no directory"):
        SessionLock.acquire(session / "nothing", "host.lock")


def test_only_the_lock_of_a_session_settles_what_a_failed_write_left_there(
    session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled: list[Path] = []
    monkeypatch.setattr("maka.journal.rollback.settle", settled.append)
    SessionLock.acquire(session, "host.lock").release()
    assert settled == []
    SessionLock.acquire(session).release()
    assert settled == [session]
