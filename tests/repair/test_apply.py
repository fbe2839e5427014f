"""The one writer of a repair: copies before it cuts, writes once, and after any fault the next one converges."""

import errno
import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from maka.journal import files
from maka.journal.errors import JournalConflict, JournalLocked, JournalWriteError, SessionNotFound
from maka.journal.lock import SessionLock
from maka.journal.reader import open_source
from maka.repair.apply import RealDisk, RepairReport, apply, prepare, repair
from support.builder import Builder
from support.chain import check

HALF = b'{"seq":99,"ts":1,"type":"session/note","data":{"kind":"'


def open_turn() -> Builder:
    builder = Builder().tool_turn().start().step().says("", ["a", "b"])
    builder.call("a")
    return builder


def torn(builder: Builder) -> bytes:
    return builder.raw() + HALF


def unended(builder: Builder) -> bytes:
    return builder.raw()[:-1]


def damaged(builder: Builder) -> bytes:
    lines = list(builder.lines)
    lines[3] = lines[3][:-60]
    return b"".join(line + b"\n" for line in lines) + HALF


SHAPES: dict[str, tuple[Callable[[Builder], bytes], bool]] = {
    "torn": (torn, False),
    "no LF": (unended, False),
    "damaged": (damaged, True),
}


def files_of(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()
    }


def place(root: Path, name: str, raw: bytes) -> Path:
    root = root / name
    root.mkdir()
    return open_turn().write(root, raw)


# ---------------------------------------------------------------- what it does


def test_a_torn_tail_is_copied_cut_and_the_turn_closed(tmp_path: Path) -> None:
    builder = open_turn()
    path = builder.write(tmp_path, torn(builder))
    report = repair(path)
    assert report.verdict_before == "torn"
    assert report.verdict_after == "healthy"
    raw = path.read_bytes()
    assert raw.startswith(builder.raw())
    events = check(raw)
    closers = events[len(builder.lines) :]
    assert [event["type"] for event in closers] == ["tool/result", "tool/result", "step/end", "turn/end"]
    assert [event.get("more") for event in closers] == [3, 2, 1, None]
    assert {event["ts"] for event in closers} == {builder.ts}
    name = f"damage/{len(builder.raw())}-{hashlib.sha256(HALF).hexdigest()[:16]}.bin"
    assert report.to_json()["set_aside"] == [{"offset": len(builder.raw()), "length": len(HALF), "file": name}]
    copy = path.parent / name
    assert copy.read_bytes() == HALF
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert stat.S_IMODE(copy.parent.stat().st_mode) == 0o700


def test_the_report_is_what_was_written(tmp_path: Path) -> None:
    path = open_turn().write(tmp_path)
    document = repair(path).to_json()
    assert list(document) == [
        "session_id",
        "path",
        "dry_run",
        "verdict_before",
        "verdict_after",
        "set_aside",
        "appended",
    ]
    assert document["session_id"] == "s1"
    assert document["path"] == str(path)
    written = check(path.read_bytes())[-len(document["appended"]) :]
    assert document["appended"] == [{key: event[key] for key in ("seq", "type", "data")} for event in written]


def test_a_missing_lf_is_written_first(tmp_path: Path) -> None:
    builder = open_turn()
    path = builder.write(tmp_path, unended(builder))
    report = repair(path)
    assert report.verdict_before == "interrupted"
    assert report.set_aside == ()
    assert path.read_bytes().startswith(builder.raw())
    check(path.read_bytes())


def test_a_missing_lf_alone_is_a_change(tmp_path: Path) -> None:
    builder = Builder().plain_turn()
    path = builder.write(tmp_path, unended(builder))
    report = repair(path, dry_run=True)
    assert report.changes
    assert report.appended == ()
    assert repair(path).changes
    assert path.read_bytes() == builder.raw()
    assert not repair(path).changes


@pytest.mark.parametrize("shape", SHAPES)
def test_a_second_repair_changes_nothing(tmp_path: Path, shape: str) -> None:
    make, salvage = SHAPES[shape]
    path = open_turn().write(tmp_path, make(open_turn()))
    assert repair(path, salvage=salvage).verdict_after == "healthy"
    after = files_of(path.parent)
    again = repair(path)
    assert again.verdict_before == "healthy"
    assert not again.changes
    assert again.to_json()["appended"] == again.to_json()["set_aside"] == []
    assert files_of(path.parent) == after


@pytest.mark.parametrize("shape", SHAPES)
def test_a_dry_run_says_the_same_and_creates_nothing(tmp_path: Path, shape: str) -> None:
    make, salvage = SHAPES[shape]
    raw = make(open_turn())
    path = open_turn().write(tmp_path, raw)
    plan = repair(path, dry_run=True, salvage=salvage)
    assert files_of(path.parent) == {"journal.jsonl": raw}
    assert sorted(os.listdir(path.parent)) == ["journal.jsonl"]
    done = repair(path, salvage=salvage)
    assert plan.to_json() == {**done.to_json(), "dry_run": True}
    assert plan.changes


def test_a_dry_run_works_on_a_read_only_place(tmp_path: Path) -> None:
    path = open_turn().write(tmp_path)
    path.chmod(0o400)
    path.parent.chmod(0o500)
    try:
        assert repair(path, dry_run=True).changes
    finally:
        path.parent.chmod(0o700)


def test_damage_without_salvage_is_not_touched_at_all(tmp_path: Path) -> None:
    builder = open_turn()
    raw = damaged(builder)
    path = builder.write(tmp_path, raw)
    report = repair(path)
    assert report.refused is not None
    assert "--salvage" in report.refused
    assert report.verdict_before == report.verdict_after == "damaged"
    document = report.to_json()
    assert document["set_aside"] == document["appended"] == []
    assert files_of(path.parent) == {"journal.jsonl": raw}


def test_a_healthy_journal_is_not_touched_at_all(tmp_path: Path) -> None:
    builder = Builder().tool_turn()
    path = builder.write(tmp_path)
    report = repair(path)
    assert not report.changes
    assert report.verdict_before == report.verdict_after == "healthy"
    assert files_of(path.parent) == {"journal.jsonl": builder.raw()}


def test_bytes_behind_a_whole_event_without_lf_are_set_aside(tmp_path: Path) -> None:
    builder = open_turn()
    path = builder.write(tmp_path, builder.raw()[:-1] + b"garbage")
    report = repair(path)
    assert report.verdict_before == "torn"
    assert [(path.parent / copy.file).read_bytes() for copy in report.set_aside] == [b"garbage"]
    assert path.read_bytes().startswith(builder.raw())
    check(path.read_bytes())


def test_a_salvage_copies_spans_and_rewrites_nothing(tmp_path: Path) -> None:
    builder = open_turn()
    raw = damaged(builder)
    path = builder.write(tmp_path, raw)
    report = repair(path, salvage=True)
    after = path.read_bytes()
    assert after.startswith(raw[: -len(HALF)])
    gap = report.appended[0]
    assert gap.type == "journal/gap"
    assert list(gap.data) == ["spans", "missing", "unverified", "accepted"]
    span = gap.data["spans"][0]
    start = sum(len(line) + 1 for line in builder.lines[:3])
    assert (span["offset"], span["length"]) == (start, len(builder.lines[3]) - 60)
    bad = raw[start : start + span["length"]]
    assert span["sha256"] == hashlib.sha256(bad).hexdigest()
    assert (path.parent / span["file"]).read_bytes() == bad
    assert {"code": "damaged_line", "offset": start} in gap.data["accepted"]
    assert [copy.length for copy in report.set_aside] == [len(bad), len(HALF)]
    assert repair(path).verdict_before == "healthy"


@pytest.mark.parametrize("raw", [b"", b"\n", b"\xff" * 1000, b"[]\n", b'{"type":"user"}\n' * 5])
def test_what_holds_no_event_is_refused(tmp_path: Path, raw: bytes) -> None:
    path = Builder().write(tmp_path, raw)
    for salvage in (False, True):
        report = repair(path, salvage=salvage)
        assert report.refused is not None
        assert report.verdict_after == "unreadable"
    assert path.read_bytes() == raw


def test_what_a_newer_version_wrote_is_refused(tmp_path: Path) -> None:
    builder = Builder().start()
    builder.add("future/thing", {})
    path = builder.write(tmp_path)
    report = repair(path, salvage=True)
    assert report.verdict_before == "unsupported"
    assert report.refused is not None
    assert path.read_bytes() == builder.raw()


def test_a_missing_journal_is_not_found(tmp_path: Path) -> None:
    for dry_run in (True, False):
        with pytest.raises(SessionNotFound):
            repair(tmp_path / "journal.jsonl", dry_run=dry_run)
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- the lock


def test_a_live_writer_is_left_alone(tmp_path: Path) -> None:
    path = open_turn().write(tmp_path)
    raw = path.read_bytes()
    with SessionLock.acquire(path.parent):
        for dry_run in (True, False):
            with pytest.raises(JournalLocked):
                repair(path, dry_run=dry_run)
    assert path.read_bytes() == raw
    assert repair(path).verdict_after == "healthy"


def test_a_writer_that_does_not_say_who_it_is_gets_no_name(tmp_path: Path) -> None:
    path = open_turn().write(tmp_path)
    with SessionLock.acquire(path.parent):
        (path.parent / "journal.lock").write_bytes(b'{"pid":null}')
        with pytest.raises(JournalLocked, match="open for writing by another writer; "):
            repair(path)


def test_the_lock_is_given_back(tmp_path: Path) -> None:
    path = open_turn().write(tmp_path)
    repair(path)
    SessionLock.acquire(path.parent).release()


def test_a_lock_beside_a_link_to_the_journal_means_nothing(tmp_path: Path) -> None:
    path = open_turn().write(tmp_path)
    link = tmp_path / "link.jsonl"
    link.symlink_to(path)
    with SessionLock.acquire(path.parent):
        with pytest.raises(JournalLocked):
            repair(link)
    repair(link)
    assert not (tmp_path / "journal.lock").exists()
    check(path.read_bytes())


# ---------------------------------------------------------------- faults


class Killed(BaseException):
    """The process is gone: nothing behind this point happens."""


class Faulty(RealDisk):
    """Fails at operation number ``at`` (from 1), after ``bytes_taken`` of it if it is a write."""

    def __init__(self, at: int, error: BaseException, bytes_taken: int = 0) -> None:
        self.at, self.error, self.bytes_taken = at, error, bytes_taken
        self.count = 0
        self.log: list[str] = []

    def _step(self, name: str) -> None:
        self.count += 1
        self.log.append(name)
        if self.count == self.at:
            raise self.error

    def write(self, fd: int, data: Any) -> int:
        if self.count + 1 == self.at and self.bytes_taken:
            os.write(fd, bytes(data)[: self.bytes_taken])
        self._step("write")
        return os.write(fd, data)

    def truncate(self, fd: int, length: int) -> None:
        self._step("truncate")
        os.ftruncate(fd, length)

    def sync(self, fd: int) -> None:
        self._step("sync")

    def create(self, path: Path) -> int:
        self._step("create")
        return super().create(path)

    def rename(self, old: Path, new: Path) -> None:
        self._step("rename")
        super().rename(old, new)

    def make_dir(self, path: Path) -> None:
        self._step("make_dir")
        super().make_dir(path)

    def sync_dir(self, path: Path) -> None:
        self._step("sync_dir")


def reference(tmp_path: Path, shape: str) -> tuple[dict[str, bytes], RepairReport, int]:
    """What an undisturbed repair leaves, and how many operations it takes."""
    make, salvage = SHAPES[shape]
    path = place(tmp_path, "reference", make(open_turn()))
    disk = Faulty(0, Killed())
    report = repair(path, salvage=salvage, disk=disk)
    return _kept(path), report, disk.count


def _kept(path: Path) -> dict[str, bytes]:
    """The journal, and the copies of the bytes that it had (what a crash left of a batch is copied too)."""
    held = files_of(path.parent)
    return {name: raw for name, raw in held.items() if name == "journal.jsonl" or name.startswith("damage/")}


@pytest.mark.parametrize("taken", [0, 1, 17, 200])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_crash_at_any_operation_converges(tmp_path: Path, shape: str, taken: int) -> None:
    make, salvage = SHAPES[shape]
    wanted, _, operations = reference(tmp_path, shape)
    assert operations > 2
    for at in range(1, operations + 1):
        path = place(tmp_path, f"crash-{at}", make(open_turn()))
        with pytest.raises(Killed):
            repair(path, salvage=salvage, disk=Faulty(at, Killed(), taken))
        report = repair(path, salvage=salvage)
        assert report.refused is None
        assert report.verdict_after == "healthy"
        kept = _kept(path)
        assert kept["journal.jsonl"] == wanted["journal.jsonl"], f"operation {at}"
        assert wanted.items() <= {name: raw for name, raw in kept.items() if not name.endswith(".tmp")}.items()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EACCES])
@pytest.mark.parametrize("shape", SHAPES)
def test_an_error_at_any_operation_is_told_and_converges(tmp_path: Path, shape: str, code: int) -> None:
    make, salvage = SHAPES[shape]
    wanted, _, operations = reference(tmp_path, shape)
    for at in range(1, operations + 1):
        raw = make(open_turn())
        path = place(tmp_path, f"error-{at}", raw)
        with pytest.raises(JournalWriteError) as failure:
            repair(path, salvage=salvage, disk=Faulty(at, OSError(code, os.strerror(code)), 33))
        assert failure.value.errno == code
        assert str(path.parent) in str(failure.value)
        left = path.read_bytes()
        assert raw.startswith(left), f"operation {at} left a batch behind"
        assert list(path.parent.rglob("*.tmp")) == []
        assert repair(path, salvage=salvage).verdict_after == "healthy"
        assert _kept(path)["journal.jsonl"] == wanted["journal.jsonl"]
        assert wanted.items() <= _kept(path).items()


def test_a_short_write_is_rolled_back(tmp_path: Path) -> None:
    class Short(RealDisk):
        def write(self, fd: int, data: bytes) -> int:
            return os.write(fd, data[:40])

    builder = open_turn()
    path = builder.write(tmp_path)
    with pytest.raises(JournalWriteError):
        repair(path, disk=Short())
    assert path.read_bytes() == builder.raw()


def test_a_file_that_changed_since_it_was_read_is_not_written(tmp_path: Path) -> None:
    builder = open_turn()
    path = builder.write(tmp_path)
    diagnosis, plan = prepare(path)
    path.write_bytes(builder.raw() + b"\n")
    with pytest.raises(JournalConflict):
        apply(plan, diagnosis.source, path)
    assert path.read_bytes() == builder.raw() + b"\n"


def test_a_file_that_was_replaced_since_it_was_read_is_not_written(tmp_path: Path) -> None:
    class Replaced(RealDisk):
        def stat(self, path: str) -> os.stat_result:
            return os.stat(os.path.dirname(path))

    path = open_turn().write(tmp_path)
    with pytest.raises(JournalConflict):
        repair(path, disk=Replaced())
    assert path.read_bytes() == open_turn().raw()


def test_a_copy_that_is_there_is_not_written_again(tmp_path: Path) -> None:
    builder = open_turn()
    path = builder.write(tmp_path, torn(builder))
    name = repair(path, dry_run=True).set_aside[0].file
    (path.parent / "damage").mkdir(mode=0o700)
    copy = path.parent / name
    copy.write_bytes(HALF)
    inode = copy.stat().st_ino
    repair(path)
    assert copy.stat().st_ino == inode


@pytest.mark.parametrize("there", [b"something else", HALF[:-1] + b"!"])
def test_a_copy_that_is_something_else_is_never_overwritten(tmp_path: Path, there: bytes) -> None:
    builder = open_turn()
    raw = torn(builder)
    path = builder.write(tmp_path, raw)
    name = repair(path, dry_run=True).set_aside[0].file
    (path.parent / "damage").mkdir(mode=0o700)
    (path.parent / name).write_bytes(there)
    with pytest.raises(JournalWriteError, match="something else"):
        repair(path)
    assert path.read_bytes() == raw
    assert (path.parent / name).read_bytes() == there


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_file_under_the_name_of_a_copy_stays_and_is_an_error_of_writing(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    path = place(tmp_path, "one", torn(open_turn()))
    before = path.read_bytes()
    target = path.parent / repair(path, dry_run=True).set_aside[0].file
    target.parent.mkdir()
    make(target)
    with pytest.raises(JournalWriteError, match="it holds something else; move it elsewhere"):
        repair(path)
    assert path.read_bytes() == before
    assert not target.is_file()
    assert target.exists()


def test_what_a_dead_repair_left_is_swept_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = open_turn()
    lines = [line[:-60] if i in (3, 5, 7) else line for i, line in enumerate(builder.lines)]
    path = builder.write(tmp_path, b"".join(line + b"\n" for line in lines))
    left = path.parent / "damage" / ".0-0.bin.0123456789abcdef.tmp"
    left.parent.mkdir(0o700)
    left.touch()
    looks: list[Path] = []
    swept = files.sweep

    def sweep(directory: Path) -> None:
        looks.append(directory)
        swept(directory)

    monkeypatch.setattr(files, "sweep", sweep)
    assert len(repair(path, salvage=True).set_aside) == 3
    assert looks == [left.parent], "a look for each copy takes the square of their number"
    assert not left.exists()


def test_damage_is_not_written_through_a_link(tmp_path: Path) -> None:
    builder = open_turn()
    path = builder.write(tmp_path, torn(builder))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (path.parent / "damage").symlink_to(elsewhere)
    with pytest.raises(JournalWriteError, match="link"):
        repair(path)
    assert list(elsewhere.iterdir()) == []
    assert path.read_bytes() == torn(builder)


def test_a_directory_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    path = open_turn().write(tmp_path)
    path.parent.chmod(0o777)
    with pytest.raises(JournalWriteError, match="0777"):
        repair(path)
    assert path.read_bytes() == open_turn().raw()


def test_nothing_of_the_plan_depends_on_where_the_journal_stands(tmp_path: Path) -> None:
    one = place(tmp_path, "one", torn(open_turn()))
    two = place(tmp_path, "two", torn(open_turn()))
    repair(one)
    repair(two)
    assert one.read_bytes() == two.read_bytes()
    with open_source(one) as source:
        assert source.size == len(two.read_bytes())


def test_a_salvage_behind_the_last_number_there_is_refuses_and_writes_nothing(tmp_path: Path) -> None:
    builder = Builder().start()
    builder.add("x-a/b", {}, seq=2**63 - 1)
    path = builder.write(tmp_path)
    report = repair(path, salvage=True)
    assert report.refused is not None
    assert "no number is left" in report.refused
    assert (report.verdict_after, report.appended) == ("damaged", ())
    assert files_of(path.parent) == {"journal.jsonl": builder.raw()}
