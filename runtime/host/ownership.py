"""Who owns a root: the kernel's lock on ``<root>/host.lock``, which dies with its holder. Nothing else decides."""

import os
import time
from pathlib import Path
from typing import Any, Final

from ...journal import files, lock
from ...journal.errors import JournalLocked
from ...journal.lock import SessionLock
from ..errors import RuntimeFailure

NAME: Final = "host.lock"


class HostRunning(RuntimeFailure):
    """Another host owns the root. ``pid`` and ``since`` (Unix milliseconds) are its own words; None if it said none."""

    def __init__(self, message: str, *, pid: int | None, since: int | None) -> None:
        super().__init__(message)
        self.pid = pid
        self.since = since


class RootLost(RuntimeFailure):
    """The lock file that a host holds is not the root's any more, so that another may own it: the host has to end."""

    def __init__(self, root: Path) -> None:
        super().__init__(
            f"{root / NAME} was removed or replaced while this host had it, so another host may have the root, and "
            "this one ends; leave that file alone, look with `maka host status`, and start a host again if none runs"
        )


class RootLock:
    """A held root; ``acquire`` makes one. ``root`` is its real path."""

    def __init__(self, root: Path, held: SessionLock) -> None:
        self.root = root
        self._held = held

    @classmethod
    def acquire(cls, root: str | os.PathLike[str]) -> "RootLock":
        """Take the root, or say at once who has it. A root that is not there is made, 0700.

        Raises HostRunning; JournalWriteError where the root cannot be made or locked, or others may write to it.
        """
        place = Path(os.path.realpath(root))
        try:
            files.make_dirs(place)
        except OSError as error:
            raise files.write_error(error, place, "create") from None
        try:
            return cls(place, SessionLock.acquire(place, NAME))
        except JournalLocked as refused:
            raise _running(place, refused.holder or {}) from None

    @property
    def held(self) -> bool:
        return self._held.held

    def stands(self) -> bool:
        """Is the lock file at its path still the one that is held? Otherwise another host can take the root."""
        fd = self._held.fd
        if fd is None:
            return False
        try:
            return os.path.samestat(os.fstat(fd), os.stat(self._held.path, follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True  # it cannot be looked at, which takes it from nobody

    def release(self) -> None:
        """Give the root up; a second call does nothing."""
        self._held.release()

    def __enter__(self) -> "RootLock":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def owner(root: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The process that owns the root, ``{pid, host, since}`` as far as it said so; None if there is none.

    Looks for an instant, and takes nothing from anybody.
    """
    if not lock.is_locked(root, NAME):
        return None
    return lock.holder(root, NAME) or {"pid": None, "host": None, "since": None}


def lives(pid: int) -> bool:
    """Does a process run on this machine, other than this one? One that has ended, and that nobody has waited for, does
    not.
    """
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return pid != os.getpid() and stat.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    except (OSError, IndexError):
        return pid != os.getpid()  # a system that tells it otherwise


def process(holder: dict[str, Any]) -> str:
    """The process that ``owner`` names, in a sentence."""
    return "a process" if holder.get("pid") is None else f"process {holder['pid']}"


def _running(root: Path, holder: dict[str, Any]) -> HostRunning:
    pid, since = holder.get("pid"), holder.get("since")
    return HostRunning(
        f"{root} has a host already: {process(holder)}{_when(since)}; "
        "look at it with `maka host status`, or end it with `maka host stop`",
        pid=pid,
        since=since,
    )


def _when(since: int | None) -> str:
    try:
        return "" if since is None else time.strftime(", since %Y-%m-%d %H:%M:%S", time.localtime(since / 1000))
    except (OverflowError, ValueError, OSError):
        return ""
