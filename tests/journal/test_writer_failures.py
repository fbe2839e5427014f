"""What the writer does when the system fails it, or when someone else touches its file."""

import errno
import os
import resource
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maka.journal import rollback
from maka.journal.errors import InvalidEvent, JournalConflict, JournalError, JournalLocked, JournalWriteError
from maka.journal.reader import read
from maka.journal.writer import JournalWriter
from support import chain
from support.disks import FaultyDisk
from support.drafts import begin, end, header, note, step


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "s1").mkdir(mode=0o700)
    return tmp_path / "s1" / "journal.jsonl"


@pytest.fixture
def writer(path: Path, disk: FaultyDisk) -> Iterator[JournalWriter]:
    writer = JournalWriter.create(path, header(), begin(), fs=disk)
    disk.trace.clear()
    yield writer
    try:
        writer.close()
    except JournalError:
        pass
    rollback._beyond.clear()


# ---------------------------------------------------------------- a write that fails


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EACCES, errno.EFBIG])
def test_a_failed_write_is_rolled_back_and_the_handle_lives(
    writer: JournalWriter, path: Path, disk: FaultyDisk, code: int
) -> None:
    raw = path.read_bytes()
    disk.fail("write", code)
    writer.append_batch(step())
    with pytest.raises(JournalWriteError) as failed:
        writer.flush()
    assert (failed.value.errno, failed.value.path, failed.value.poisoned) == (code, str(path), False)
    assert str(path) in str(failed.value)
    assert disk.trace == ["stat", "write", "truncate", "sync"]
    assert path.read_bytes() == raw
    assert writer.next_seq == 3
    assert not writer.poisoned
    # The fold is what is on the disk: the step has not begun.
    with pytest.raises(InvalidEvent):
        writer.append(step()[-1])
    writer.append_batch([*step(), *end()])
    writer.flush()
    chain.check(path.read_bytes())
    assert read(path).scan.findings == []


@given(taken=st.integers(0, 400))
@settings(max_examples=30)
def test_a_short_write_leaves_nothing(tmp_path_factory: pytest.TempPathFactory, taken: int) -> None:
    path = tmp_path_factory.mktemp("s") / "journal.jsonl"
    disk = FaultyDisk()
    with JournalWriter.create(path, header(), fs=disk) as writer:
        raw = path.read_bytes()
        writer.append(note("x" * 400))
        disk.take(taken)
        with pytest.raises(JournalWriteError, match=f"only {taken} of"):
            writer.flush()
        assert path.read_bytes() == raw
        writer.append(note("after"))
    assert chain.check(path.read_bytes())[-1]["data"]["text"] == "after"


def test_a_short_write_names_the_cause_that_the_next_one_has(
    writer: JournalWriter, path: Path, disk: FaultyDisk
) -> None:
    raw = path.read_bytes()
    disk.take(7)
    real, calls = disk.write, []

    def write(fd: int, data: bytes) -> int:
        calls.append(len(data))
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data)

    disk.write = write
    writer.append(note())
    with pytest.raises(JournalWriteError, match="free some space") as failed:
        writer.flush()
    assert failed.value.errno == errno.ENOSPC
    assert path.read_bytes() == raw


def test_a_real_limit_on_file_size_is_rolled_back(tmp_path: Path) -> None:
    """The system takes what fits and refuses the rest: half an event must not stay."""
    path = tmp_path / "journal.jsonl"
    with JournalWriter.create(path, header()) as writer:
        writer.append_durable(note("fits"))
        raw = path.read_bytes()
        before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(raw) + 100, before[1]))
        try:
            writer.append(note("x" * 1000))
            with pytest.raises(JournalWriteError, match="limit on file size") as failed:
                writer.flush()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)
        assert failed.value.errno == errno.EFBIG
        assert path.read_bytes() == raw
        writer.append_durable(note("there is room again"))
    assert len(chain.check(path.read_bytes())) == 3


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path | None]:
    """A file system of 64 KiB, where this user may mount one."""
    place = tmp_path / "small"
    place.mkdir()
    options = ["-t", "tmpfs", "-o", "size=64k,mode=0700", "none", str(place)]
    try:
        mounted = subprocess.run(["mount", *options], capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    yield place if mounted else None
    if mounted:
        subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_loses_nothing_and_is_survived(small: Path | None) -> None:
    if small is None:
        return  # the limit on file size above stands for it
    path = small / "journal.jsonl"
    with JournalWriter.create(path, header()) as writer:
        acknowledged: list[str] = []

        def fill() -> None:
            for _ in range(100):
                acknowledged.append(writer.append_durable(note("x" * 3000)).sum)

        with pytest.raises(JournalWriteError) as failed:
            fill()
        assert failed.value.errno == errno.ENOSPC
        assert [event["sum"] for event in chain.check(path.read_bytes())][1:] == acknowledged
        assert len(acknowledged) > 10
        with pytest.raises(JournalWriteError):
            writer.append_durable(note("x" * 3000))
        (small / "ballast").touch()
        writer.append_durable(note("small enough"))
    assert chain.check(path.read_bytes())[-1]["data"]["text"] == "small enough"


def test_previews_that_were_written_go_with_what_fails(writer: JournalWriter, path: Path, disk: FaultyDisk) -> None:
    raw = path.read_bytes()
    writer.append(note("preview"))
    writer.write_pending()
    assert path.read_bytes() != raw
    writer.append(note("rest"))
    disk.fail("write", errno.ENOSPC)
    with pytest.raises(JournalWriteError):
        writer.flush()
    assert path.read_bytes() == raw
    writer.append_durable(note("after"))
    assert [event["data"].get("text") for event in chain.check(path.read_bytes())][-1] == "after"


def test_a_failed_preview_is_told_at_the_next_call(writer: JournalWriter, path: Path, disk: FaultyDisk) -> None:
    raw = path.read_bytes()
    writer.append(note("preview"))
    disk.fail("write", errno.ENOSPC)
    writer.write_pending()
    assert path.read_bytes() == raw
    with pytest.raises(JournalWriteError):
        writer.append(note("it must not be written as if the first were there"))
    writer.append_durable(note("told"))
    assert chain.check(path.read_bytes())[-1]["data"]["text"] == "told"


# ---------------------------------------------------------------- a sync that fails, a rollback that fails


def test_a_failed_sync_poisons_the_handle(writer: JournalWriter, path: Path, disk: FaultyDisk) -> None:
    raw = path.read_bytes()
    disk.fail("sync")
    writer.append(note())
    with pytest.raises(JournalWriteError) as failed:
        writer.flush()
    assert failed.value.poisoned
    assert failed.value.errno == errno.EIO
    assert disk.trace == ["stat", "write", "sync", "truncate", "sync"]
    assert path.read_bytes() == raw
    for call in (writer.flush, lambda: writer.append(note()), lambda: writer.append_batch([note()])):
        with pytest.raises(JournalWriteError) as again:
            call()
        assert again.value is failed.value
    assert writer.poisoned
    writer.write_pending()
    assert path.read_bytes() == raw
    writer.close()
    with JournalWriter.open(path) as fresh:
        fresh.append_durable(note("fresh"))
    chain.check(path.read_bytes())


@pytest.mark.parametrize("what", ["truncate", "sync"])
def test_a_failed_rollback_poisons_and_the_next_open_cuts(
    writer: JournalWriter, path: Path, disk: FaultyDisk, what: str
) -> None:
    raw = path.read_bytes()
    writer.append(note("never acknowledged"))
    disk.take(50)
    disk.fail(what, times=9)
    if what == "sync":
        disk.fail("truncate", times=1)
    with pytest.raises(JournalWriteError) as failed:
        writer.flush()
    assert failed.value.poisoned
    assert disk.trace[2:].count("truncate") == 2 or what == "sync"
    writer.close()
    if what == "truncate":
        assert path.read_bytes() != raw, "the bytes could not be cut"
    with JournalWriter.open(path) as fresh:
        assert path.read_bytes() == raw
        assert fresh.next_seq == 3
        fresh.append_durable(note("after"))
    assert chain.check(path.read_bytes())[-1]["data"]["text"] == "after"


def test_what_a_failed_sync_left_is_cut_by_the_next_open(writer: JournalWriter, path: Path, disk: FaultyDisk) -> None:
    raw = path.read_bytes()
    writer.append(note("whole, but never acknowledged"))
    disk.fail("sync", times=9)
    disk.fail("truncate", times=9)
    with pytest.raises(JournalWriteError):
        writer.flush()
    writer.close()
    assert len(chain.check(path.read_bytes())) == 4
    JournalWriter.open(path).close()
    assert path.read_bytes() == raw
    assert not rollback._beyond


def test_what_another_process_built_upon_it_is_not_cut(writer: JournalWriter, path: Path, disk: FaultyDisk) -> None:
    """Between the failure here and the next open here, someone else read the event and went on from it."""
    writer.append(note("never acknowledged here"))
    disk.fail("sync", times=9)
    disk.fail("truncate", times=9)
    with pytest.raises(JournalWriteError):
        writer.flush()
    remembered = dict(rollback._beyond)
    rollback._beyond.clear()
    writer.close()
    with JournalWriter.open(path) as other:
        other.append_durable(note("acknowledged by another"))
    raw = path.read_bytes()
    rollback._beyond.update(remembered)
    JournalWriter.open(path).close()
    assert path.read_bytes() == raw
    assert not rollback._beyond


def test_a_file_that_took_the_others_place_is_not_cut(writer: JournalWriter, path: Path, disk: FaultyDisk) -> None:
    writer.append(note())
    disk.fail("sync", times=9)
    disk.fail("truncate", times=9)
    with pytest.raises(JournalWriteError):
        writer.flush()
    writer.close()
    raw = path.read_bytes()
    path.rename(path.with_name("old"))
    path.write_bytes(raw)
    JournalWriter.open(path).close()
    assert path.read_bytes() == raw


def test_a_fold_that_cannot_be_rebuilt_poisons(path: Path, disk: FaultyDisk) -> None:
    def refold(length: int) -> object:
        raise OSError(errno.EIO, "no")

    writer = JournalWriter.create(path, header(), fs=disk, refold=refold)  # type: ignore[arg-type]
    writer.append(note())
    disk.fail("write")
    with pytest.raises(JournalWriteError) as failed:
        writer.flush()
    assert writer.poisoned
    with pytest.raises(JournalWriteError) as again:
        writer.append(note())
    assert again.value is failed.value
    writer.close()


def test_an_interrupt_inside_the_write_poisons(writer: JournalWriter, path: Path, disk: FaultyDisk) -> None:
    raw = path.read_bytes()

    def interrupt(what: str) -> None:
        if what == "sync":
            disk.failures.clear()
            raise KeyboardInterrupt

    writer.append(note())
    disk.failures.append(interrupt)
    with pytest.raises(KeyboardInterrupt):
        writer.flush()
    assert writer.poisoned
    assert path.read_bytes() == raw


# ---------------------------------------------------------------- who is told


def test_a_look_that_fails_writes_nothing_and_the_handle_lives(
    writer: JournalWriter, path: Path, disk: FaultyDisk
) -> None:
    raw = path.read_bytes()
    writer.append(note())
    disk.fail("stat", errno.EACCES)
    with pytest.raises(JournalWriteError, match="cannot look at"):
        writer.flush()
    assert "write" not in disk.trace
    assert path.read_bytes() == raw
    writer.append_durable(note())


def test_close_tells_what_was_lost(path: Path, disk: FaultyDisk) -> None:
    writer = JournalWriter.create(path, header(), fs=disk)
    writer.append(note())
    disk.fail("write", errno.ENOSPC)
    with pytest.raises(JournalWriteError):
        writer.close()
    assert not writer.lock.held
    assert len(chain.check(path.read_bytes())) == 1


# ---------------------------------------------------------------- a file that others touch


def refused(writer: JournalWriter, word: str) -> JournalConflict:
    writer.append(note("must not be written"))
    with pytest.raises(JournalConflict, match=word) as conflict:
        writer.flush()
    with pytest.raises(JournalConflict) as again:
        writer.append(note())
    assert again.value is conflict.value
    assert conflict.value.path == str(writer.path)
    assert "delete" not in str(conflict.value)
    return conflict.value


def test_an_unlinked_file_is_not_written_to(writer: JournalWriter, path: Path) -> None:
    path.unlink()
    refused(writer, "no longer there")
    assert not path.exists()


def test_a_replaced_file_is_not_written_to(writer: JournalWriter, path: Path) -> None:
    raw = path.read_bytes()
    path.rename(path.with_name("mine"))
    path.write_bytes(raw)
    refused(writer, "replaced")
    assert path.read_bytes() == raw
    assert path.with_name("mine").read_bytes() == raw


def test_a_moved_directory_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir(mode=0o700)
    with JournalWriter.create(tmp_path / "s" / "journal.jsonl", header()) as writer:
        (tmp_path / "s").rename(tmp_path / "t")
        raw = (tmp_path / "t" / "journal.jsonl").read_bytes()
        error = refused(writer, "no longer there")
        assert error.seq == 0
    assert (tmp_path / "t" / "journal.jsonl").read_bytes() == raw


@pytest.mark.parametrize("change", [-1, -100, 1, 100])
def test_a_file_of_another_length_is_not_written_to(writer: JournalWriter, path: Path, change: int) -> None:
    if change < 0:
        os.truncate(path, path.stat().st_size + change)
    else:
        with open(path, "ab") as file:
            file.write(b"x" * change)
    raw = path.read_bytes()
    refused(writer, "bytes where this writer left")
    assert path.read_bytes() == raw


def test_a_further_link_is_no_conflict(writer: JournalWriter, path: Path) -> None:
    os.link(path, path.with_name("backup"))
    writer.append_durable(note())
    assert path.with_name("backup").read_bytes() == path.read_bytes()


def test_a_forked_child_cannot_write(writer: JournalWriter, path: Path) -> None:
    raw = path.read_bytes()
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        said = []
        for call in (lambda: writer.append(note()), writer.flush, lambda: writer.append_batch([note()])):
            try:
                call()
                said.append("wrote")
            except JournalLocked:
                said.append("refused")
        writer.write_pending()
        writer.close()
        os.write(told, " ".join(said).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(ready, 100) == b"refused refused refused"
    assert path.read_bytes() == raw
    writer.append_durable(note("the parent goes on"))
    os.close(ready)
    os.close(told)


def test_a_fork_while_the_mutex_is_held_does_not_hang(writer: JournalWriter) -> None:
    with writer._commit.mutex:
        child = os.fork()
        if child == 0:
            try:
                writer.append(note())
            except JournalLocked:
                writer.close()
                os._exit(7)
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7


def test_a_file_that_lost_its_last_name_is_written_no_more(
    path: Path, disk: FaultyDisk, writer: JournalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems still give the inode of an unlinked file under its old name."""
    before = path.read_bytes()
    found = list(os.stat(path))
    found[stat.ST_NLINK] = 0
    monkeypatch.setattr(disk, "stat", lambda _: os.stat_result(found))
    writer.append(note("too late"))
    with pytest.raises(JournalConflict, match="unlinked"):
        writer.flush()
    assert path.read_bytes() == before
