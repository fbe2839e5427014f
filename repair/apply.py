"""The only writer of a repair: plans again under the session's lock, copies aside, cuts, appends, syncs.

Each step leaves something that the next repair brings to the same bytes: copies have the name of their contents, a cut
leaves whole events, and what a crash leaves of the batch is a torn tail.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from ..journal import files, rollback, snapshot
from ..journal.errors import JournalConflict, JournalError, SessionNotFound
from ..journal.events import Event, JsonObject
from ..journal.findings import Verdict
from ..journal.lock import LOCK_NAME, SessionLock, is_locked, locked_error
from ..journal.reader import JOURNAL, open_source, read, session_name
from .plan import Diagnosis, RepairPlan, appended_json, head_after, judge, plan_repair
from .tail import DAMAGE, SetAside, measure

if TYPE_CHECKING:
    from ..journal.source import Source

_PIECE: Final = 1024 * 1024


class Disk(files.Fs, Protocol):
    """The file operations of a repair. All may raise OSError."""

    def create(self, path: Path) -> int: ...
    def rename(self, old: Path, new: Path) -> None: ...
    def make_dir(self, path: Path) -> None: ...
    def sync_dir(self, path: Path) -> None: ...


class RealDisk(files.RealFs):
    """The operating system's own."""

    def create(self, path: Path) -> int:
        return files.create_private(path)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def make_dir(self, path: Path) -> None:
        files.make_dirs(path)

    def sync_dir(self, path: Path) -> None:
        files.sync_dir(path)


REAL_DISK: Final[Disk] = RealDisk()


@attrs.frozen
class RepairReport:
    """What a repair did, or would do (``dry_run``). ``refused`` is the sentence why nothing was done."""

    session_id: str
    path: Path
    dry_run: bool
    verdict_before: Verdict
    verdict_after: Verdict
    set_aside: tuple[SetAside, ...]
    appended: tuple[Event, ...]
    refused: str | None = None

    @property
    def changes(self) -> bool:
        """Is there anything that was written, or would be? (Also where only a missing LF is.)"""
        return not self.refused and self.verdict_before != "healthy"

    def to_json(self) -> JsonObject:
        """Shape: ``{session_id, path, dry_run, verdict_before, verdict_after, set_aside:[{offset, length, file}],
        appended:[{seq, type, data}]}``.
        """
        return {
            "session_id": self.session_id,
            "path": str(self.path),
            "dry_run": self.dry_run,
            "verdict_before": self.verdict_before,
            "verdict_after": self.verdict_after,
            "set_aside": [copy.to_json() for copy in self.set_aside],
            "appended": appended_json(self.appended),
        }


def examine(path: Path, *, keep: bool = False) -> Diagnosis:
    """Read a journal and say what it holds and lacks. ``keep``: its events are wanted too.

    Raises SessionNotFound; JournalError where it cannot be read.
    """
    reading = read(path, keep=keep)
    diagnosis = judge(reading.source, reading.scan, reading.state, name_of(path), reading.findings)
    return attrs.evolve(diagnosis, events=reading.kept)


def prepare(
    path: Path, *, salvage: bool = False, cause: str | None = None, logical: bool = True, keep: bool = False
) -> tuple[Diagnosis, RepairPlan]:
    """Diagnose and plan. Raises SessionNotFound; JournalError where the journal cannot be read."""
    diagnosis = examine(path, keep=keep)
    try:
        return diagnosis, plan_repair(diagnosis, salvage=salvage, cause=cause, logical=logical)
    except OSError as error:
        reason = error.strerror or error
        raise JournalError(f"cannot read {path}: {reason}; the bytes were not touched", path=path) from None


def name_of(path: Path) -> str:
    """What the place says the session is called: the directory's name, else the file's."""
    return session_name(path) or path.stem


def repair(
    path: str | os.PathLike[str],
    *,
    dry_run: bool = False,
    salvage: bool = False,
    cause: str | None = None,
    disk: Disk = REAL_DISK,
) -> RepairReport:
    """Repair a journal under its lock, or tell with ``dry_run`` what that would do and write nothing, nowhere.

    Where there is nothing to do, or nothing may be done, nothing is touched and no lock is taken. ``salvage`` accepts
    damage; without it a damaged journal is not touched at all. ``cause`` is the failure class of turns that are closed
    (they are ``interrupted`` without one). What is refused for what the bytes hold is told in the report.

    Raises SessionNotFound; JournalLocked where a writer lives, also with ``dry_run``; JournalWriteError where the
    system refuses (the journal then is what it was, or what the next repair brings to the same bytes); JournalConflict
    where the file was replaced meanwhile; JournalError where it cannot be read.
    """
    path = Path(path)
    home = home_of(path)
    refuse_locked(home.parent)
    diagnosis, plan = prepare(path, salvage=salvage, cause=cause)
    if not plan.empty and not dry_run:
        with SessionLock.acquire(home.parent):
            diagnosis, plan = repair_locked(path, salvage=salvage, cause=cause, disk=disk)
    return report(path, diagnosis, plan, dry_run=dry_run)


def home_of(path: Path) -> Path:
    """The journal's own place, links followed: the lock and ``damage/`` stand beside it. Raises SessionNotFound."""
    open_source(path).close()
    return Path(os.path.realpath(path))


def refuse_locked(directory: Path) -> None:
    """Raises JournalLocked where a live writer holds the session. Creates nothing."""
    if is_locked(directory):
        raise locked_error(directory / LOCK_NAME)


def repair_locked(
    path: Path, *, salvage: bool = False, cause: str | None = None, logical: bool = True, disk: Disk = REAL_DISK
) -> tuple[Diagnosis, RepairPlan]:
    """Diagnose, plan and apply; the caller holds the lock. Without ``logical`` only the tail is put in order.

    The diagnosis is of what was found; its state has then taken in what was appended.
    """
    diagnosis, plan = prepare(path, salvage=salvage, cause=cause, logical=logical)
    carry_out(plan, diagnosis, path, disk)
    return diagnosis, plan


def carry_out(plan: RepairPlan, diagnosis: Diagnosis, path: Path, disk: Disk = REAL_DISK) -> None:
    """Apply a plan that may be empty; the caller holds the lock. The state takes in what is appended."""
    if plan.empty:
        return
    home = Path(os.path.realpath(path))
    apply(plan, diagnosis.source, home, disk)
    for event in plan.events:
        diagnosis.state.apply(event)
    if home.name == JOURNAL:
        with suppress(OSError):
            snapshot.write(home.parent, diagnosis.state, head_after(diagnosis, plan), plan.verdict_after)


def report(path: Path, diagnosis: Diagnosis, plan: RepairPlan, *, dry_run: bool = False) -> RepairReport:
    return RepairReport(
        session_id=diagnosis.session_id,
        path=path,
        dry_run=dry_run,
        verdict_before=plan.verdict_before,
        verdict_after=plan.verdict_after,
        set_aside=plan.set_aside,
        appended=plan.events,
        refused=plan.refused,
    )


def apply(plan: RepairPlan, source: "Source", path: Path, disk: Disk = REAL_DISK) -> None:
    """Do what the plan says to the file that ``source`` was read from.

    Raises JournalConflict, with nothing written, where the path no longer holds those bytes; JournalWriteError.
    """
    doing = "open"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            doing = "sync"
            # What was read may be in memory only; what is appended must not outlive it.
            disk.sync(fd)
            _same_bytes(fd, source, path, disk)
            for copy in plan.set_aside:
                put_aside(copy, source, path.parent, disk)
            if plan.set_aside:
                doing = "sweep beside"
                files.sweep(path.parent / DAMAGE)
            length = source.size
            if plan.cut is not None:
                doing, length = "cut", plan.cut
                disk.truncate(fd, length)
                disk.sync(fd)
            if plan.batch:
                doing = "append to"
                _append(fd, plan.batch, length, path, disk)
        finally:
            os.close(fd)
    except OSError as error:
        raise files.write_error(error, path, doing) from None


def _same_bytes(fd: int, source: "Source", path: Path, disk: Disk) -> None:
    mine, found = os.fstat(fd), disk.stat(str(path))
    if not os.path.samestat(mine, found) or mine.st_size != source.size:
        raise JournalConflict(
            f"{path} changed while it was being repaired, so nothing was written; find out what writes there without "
            "the session's lock, then repair again",
            path=path,
        )


def _append(fd: int, batch: bytes, length: int, path: Path, disk: Disk) -> None:
    """The whole batch in one write, or none of it."""
    try:
        written = disk.write(fd, batch)
        if written != len(batch):
            raise OSError(errno.ENOSPC, f"only {written} of {len(batch)} bytes were taken")
        disk.sync(fd)
    except OSError:
        # Also after a failed sync: what of the batch is on the disk is then not known, so none of it may be trusted.
        if not rollback.cut(fd, length, disk):
            rollback.remember(fd, path, length, batch)
        raise


def put_aside(copy: SetAside, source: "Source", directory: Path, disk: Disk) -> None:
    """Copy a span to ``damage/``; a copy that is there is not written again. Raises JournalWriteError."""
    target = directory / copy.file
    try:
        disk.make_dir(target.parent)
        if _is_there(copy, target):
            return
        temporary = files.temporary(target)
        fd = disk.create(temporary)
        try:
            try:
                for piece in _pieces(source, copy):
                    view = memoryview(piece)
                    while view:
                        view = view[disk.write(fd, bytes(view)) :]
                disk.sync(fd)
            finally:
                os.close(fd)
            disk.rename(temporary, target)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        disk.sync_dir(target.parent)
    except OSError as error:
        raise files.write_error(error, target, "copy bytes of the journal to") from None


def _pieces(source: "Source", copy: SetAside) -> Iterator[bytes]:
    at, end = copy.offset, copy.offset + copy.length
    while at < end and (piece := source.read(at, min(_PIECE, end - at))):
        yield piece
        at += len(piece)


def _is_there(copy: SetAside, target: Path) -> bool:
    """Is the copy there already? What stands under its name and is something else stays, and is an error."""
    if target.parent.is_symlink():
        raise OSError(errno.EEXIST, f"{target.parent} is a link; put a directory in its place")
    try:
        with open_source(target) as there:
            if there.size == copy.length and measure(there, 0, there.size).sha256 == copy.sha256:
                return True
    except SessionNotFound:
        return False
    except JournalError as error:
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from None
    raise OSError(errno.EEXIST, "it holds something else; move it elsewhere, then repair again")
