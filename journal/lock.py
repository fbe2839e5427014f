"""The lock of a directory: an exclusive kernel lock that dies with its holder. No pid and no file's existence decides.

A session's is ``journal.lock``, which alone gives the right to write there; whoever keeps another directory to itself
names a file of its own.

The lock file's text says who holds it, for messages only. The file is never unlinked: whoever waits for it and whoever
holds it must mean the same inode.
"""

import errno
import os
import stat
import time
import weakref
from pathlib import Path
from typing import Any, Final

import orjson

from . import files, rollback
from .errors import JournalConflict, JournalLocked, JournalWriteError, SessionNotFound

LOCK_NAME: Final = "journal.lock"
_HINT_BYTES: Final = 4096
_HINT: Final = {"pid": int, "host": str, "since": int}
#: Another process that only looks whether the lock is held holds it shared for an instant; then it is asked for again.
_TRIES: Final = 50
_PAUSE: Final = 0.002


class SessionLock:
    """A held lock; ``acquire`` makes one. ``held`` turns False by ``release`` and in a forked child."""

    __slots__ = ("__weakref__", "fd", "path")

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.fd: int | None = fd
        _held.add(self)

    @classmethod
    def acquire(cls, directory: str | os.PathLike[str], name: str = LOCK_NAME) -> "SessionLock":
        """Take the lock of a directory, or say at once who has it. ``name`` is that of the lock file; by itself the
        directory is a session's.

        Raises SessionNotFound where there is no such directory; JournalLocked where a live process holds it, also this
        one; JournalWriteError where the lock file cannot be opened, where others may write to the directory (or to the
        root of a session's), and on a file system that cannot lock; JournalConflict where the lock file is replaced all
        the time.
        """
        directory = Path(directory)
        path = directory / name
        session = name == LOCK_NAME
        try:
            if not directory.is_dir():
                what = "session directory" if session else "directory"
                raise SessionNotFound(f"there is no {what} {directory}; look at the path", path=directory)
            files.refuse_shared(_guarded(directory) if session else [directory])
            for _ in range(_TRIES):
                fd = _open(path)
                try:
                    _lock(fd, path)
                    if _same(fd, path):
                        _prove(path)
                        if session:
                            rollback.settle(directory)
                        _announce(fd)
                        return cls(path, fd)
                except BaseException:
                    os.close(fd)
                    raise
                os.close(fd)
        except OSError as error:
            raise files.write_error(error, path, "lock") from None
        raise JournalConflict(
            f"{path} was replaced {_TRIES} times while it was being locked; find out what replaces it", path=path
        )

    @property
    def held(self) -> bool:
        return self.fd is not None

    def release(self) -> None:
        """Give the lock up; a second call does nothing. The file stays, without its text."""
        fd, self.fd = self.fd, None
        _held.discard(self)
        if fd is not None:
            try:
                os.ftruncate(fd, 0)
            except OSError:
                pass  # the text is for messages only
            os.close(fd)

    def _forget(self) -> None:
        """In a forked child: close without unlocking, which would unlock the parent too."""
        fd, self.fd = self.fd, None
        if fd is not None:
            os.close(fd)

    def __enter__(self) -> "SessionLock":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


_held: "weakref.WeakSet[SessionLock]" = weakref.WeakSet()


def _forget_all() -> None:
    for lock in list(_held):
        lock._forget()
    _held.clear()


os.register_at_fork(after_in_child=_forget_all)


def holder(directory: str | os.PathLike[str], name: str = LOCK_NAME) -> dict[str, Any] | None:
    """The lock file's text, ``{pid, host, since}`` (Unix milliseconds), or None. A hint, never a proof.

    What is missing in it, or is of another kind, is None.
    """
    try:
        fd = os.open(Path(directory) / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        value = orjson.loads(os.read(fd, _HINT_BYTES))
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)
    if not isinstance(value, dict):
        return None
    return {key: value[key] if type(value.get(key)) is kind else None for key, kind in _HINT.items()}


def seems_locked(session_dir: str | os.PathLike[str]) -> bool:
    """Does it look as if a writer held the session? For messages only: nothing is locked to find out.

    Linux lists the locks that this process may know of; elsewhere a holder that is alive on this machine is believed.
    """
    try:
        inode = os.stat(Path(session_dir) / LOCK_NAME).st_ino
        with open("/proc/locks", encoding="ascii", errors="replace") as locks:
            held = [line.split() for line in locks]
        return any(words[1:2] == ["FLOCK"] and words[-3].endswith(f":{inode}") for words in held if len(words) >= 8)
    except FileNotFoundError as error:
        hint = holder(session_dir) if error.filename == "/proc/locks" else None
        return hint is not None and hint.get("host") == os.uname().nodename and _alive(hint.get("pid"))
    except OSError:
        return False


def _alive(pid: Any) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, TypeError, OverflowError):
        return False
    return True


def is_locked(directory: str | os.PathLike[str], name: str = LOCK_NAME) -> bool:
    """Does a live process hold the lock? Creates nothing, works on a read-only place; where it cannot look: False."""
    try:
        fd = os.open(Path(directory) / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return not _shared(fd)
    except OSError:
        return False
    finally:
        os.close(fd)


def _guarded(directory: Path) -> list[Path]:
    """The directories that must be private: the session's, and those of the root that it stands in."""
    sessions = directory.parent
    return [directory, sessions, sessions.parent] if sessions.name == "sessions" else [directory]


def _open(path: Path) -> int:
    try:
        fd = files.create_private(path)
    except FileExistsError:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a plain file; move it elsewhere, then try again")
    return fd


def _lock(fd: int, path: Path) -> None:
    for _ in range(_TRIES):
        if _exclusive(fd, path):
            return
        if not _shared(fd):
            raise locked_error(path)
        _unlock(fd)
        time.sleep(_PAUSE)
    raise locked_error(path)


def _exclusive(fd: int, path: Path) -> bool:
    from filelock import lock_descriptor

    try:
        return lock_descriptor(fd, blocking=False)
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL):
            raise _cannot_lock(path, error.strerror) from None
        raise


def _shared(fd: int) -> bool:
    """Take the lock shared: refused by a writer, and by nobody who only looks."""
    import fcntl

    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unlock(fd: int) -> None:
    from filelock import unlock_descriptor

    unlock_descriptor(fd)


def _prove(path: Path) -> None:
    """A second descriptor must be refused: some file systems say yes to every lock."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if _exclusive(fd, path):
            raise _cannot_lock(path, "it grants one lock twice")
    finally:
        os.close(fd)


def _same(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _announce(fd: int) -> None:
    """Who holds the lock. What fails here costs a better message and nothing else."""
    text = orjson.dumps({"pid": os.getpid(), "host": os.uname().nodename, "since": time.time_ns() // 1_000_000})
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, text, 0)
    except OSError:
        pass


def _cannot_lock(path: Path, why: str | None) -> JournalWriteError:
    return JournalWriteError(
        f"the file system of {path} cannot lock ({why}), so two writers could not be kept apart; "
        "put the sessions on a local disk",
        errno=errno.ENOLCK,
        path=path,
    )


def locked_error(path: Path) -> JournalLocked:
    """The refusal where a live writer has the lock file ``path``; says who it seems to be, and since when."""
    hint = holder(path.parent, path.name)
    pid, since = (hint or {}).get("pid"), (hint or {}).get("since")
    who = f"process {pid}" if type(pid) is int else "another writer"
    if type(pid) is int and pid == os.getpid():
        who = f"this process ({pid})"
    when = f" since {_clock(since)}" if type(since) is int else ""
    return JournalLocked(
        f"{path.parent} is open for writing by {who}{when}; close it there, or wait until it ends",
        holder=hint,
        path=path,
    )


def _clock(since: int) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since / 1000))
    except (OverflowError, ValueError, OSError):
        return "an unknown time"
