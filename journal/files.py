"""What every module that writes needs of the file system: one replaceable object, private modes, durable directories.

Everything here works on paths and descriptors and knows nothing of journals.
"""

import errno
import os
import re
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Protocol

from .errors import JournalWriteError

FILE_MODE: Final = 0o600
DIR_MODE: Final = 0o700
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_TEMPORARY: Final = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")

_HINTS: Final[dict[int, str]] = {
    errno.ENOSPC: "free some space, then try again",
    errno.EDQUOT: "free some of this user's quota, then try again",
    errno.EFBIG: "raise the limit on file size, then try again",
    errno.EROFS: "make the place writable, or only read there",
    errno.EIO: "check the disk; what was acknowledged before stays readable",
    errno.EMFILE: "let this process open more files (`ulimit -n`), then try again",
    errno.ENFILE: "the system has too many files open; close some, then try again",
    errno.ENOTDIR: "move what stands there elsewhere, then try again",
    errno.ENOENT: "look whether the directory above it is there, or name another place",
    errno.EISDIR: "move the directory that stands there elsewhere, then try again",
    errno.ELOOP: "move the link that stands there elsewhere, then try again",
}


class Fs(Protocol):
    """The file operations of the writing modules. All may raise OSError; offsets and lengths are bytes."""

    def write(self, fd: int, data: bytes) -> int:
        """One write at the end of the file; returns how many bytes were taken."""
        ...

    def sync(self, fd: int) -> None:
        """What was written to ``fd``, and the file's length, are on the disk when this returns."""
        ...

    def truncate(self, fd: int, length: int) -> None: ...

    def stat(self, path: str) -> os.stat_result: ...


def _full_sync() -> Callable[[int], None]:
    """macOS: only F_FULLFSYNC empties the drive's own cache; file systems without it get the plain one."""
    import fcntl

    command = getattr(fcntl, "F_FULLFSYNC", None)
    if command is None:
        return getattr(os, "fdatasync", os.fsync)

    def full(fd: int) -> None:
        try:
            fcntl.fcntl(fd, command)
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                raise
            os.fsync(fd)

    return full


sync: Final = _full_sync()


class RealFs:
    """The operating system's own."""

    write: Callable[[int, bytes], int] = staticmethod(os.write)
    sync: Callable[[int], None] = staticmethod(sync)
    truncate: Callable[[int, int], None] = staticmethod(os.ftruncate)
    stat: Callable[[str], os.stat_result] = staticmethod(os.stat)


REAL: Final[Fs] = RealFs()


def sync_dir(path: str | os.PathLike[str]) -> None:
    """The directory's entries are on the disk when this returns. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_dir(path: Path) -> None:
    """Make ``path`` unless it is there: 0700 whatever the umask, its entry durable. Raises OSError."""
    try:
        os.mkdir(path, DIR_MODE)
    except FileExistsError:
        return
    if stat.S_IMODE(os.stat(path).st_mode) != DIR_MODE:
        os.chmod(path, DIR_MODE)
    sync_dir(path.parent)


def make_dirs(path: Path) -> None:
    """``make_dir`` for ``path`` and for what is missing above it. Raises OSError."""
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        make_dir(directory)


def create_private(path: str | os.PathLike[str], flags: int = 0) -> int:
    """A descriptor of a new file, 0600 whatever the umask. ``flags`` come on top. Raises OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW | flags, FILE_MODE)
    if stat.S_IMODE(os.fstat(fd).st_mode) != FILE_MODE:
        os.fchmod(fd, FILE_MODE)
    return fd


def temporary(path: Path) -> Path:
    """A name beside ``path`` that nobody uses: ``.<name>.<hex>.tmp``."""
    return path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")


def sweep(directory: Path) -> None:
    """Unlink the temporaries that a dead writer left in ``directory``. Only under its lock. Raises OSError."""
    if directory.is_dir():
        for name in os.listdir(directory):
            if _TEMPORARY.fullmatch(name):
                (directory / name).unlink(missing_ok=True)


def write_all(fd: int, chunks: Iterable[bytes]) -> None:
    """Write everything, however often the system takes only a part. For files that nobody sees yet. Raises OSError."""
    for chunk in chunks:
        view = memoryview(chunk)
        while view:
            view = view[os.write(fd, view) :]


def replace(path: Path, chunks: Iterable[bytes], *, durable: bool = True) -> None:
    """Put a whole file in place by a rename. ``durable``: it and its name are on the disk when this returns.

    Raises OSError, and then leaves no temporary.
    """
    name = temporary(path)
    fd = create_private(name)
    try:
        try:
            write_all(fd, chunks)
            if durable:
                sync(fd)
        finally:
            os.close(fd)
        os.rename(name, path)
    except BaseException:
        name.unlink(missing_ok=True)
        raise
    if durable:
        sync_dir(path.parent)


def refuse_shared(directories: Iterable[Path]) -> None:
    """Raises JournalWriteError for a directory that others than its owner may write to."""
    for directory in directories:
        mode = stat.S_IMODE(os.stat(directory).st_mode)
        if mode & _OTHERS_WRITE:
            raise JournalWriteError(
                f"{directory} may be written to by others (mode {mode:04o}), so nothing is written there; "
                f"take that right away with `chmod go-w {directory}`",
                errno=errno.EACCES,
                path=directory,
            )


def write_error(
    error: OSError, path: str | os.PathLike[str], doing: str, *, poisoned: bool = False
) -> JournalWriteError:
    """The family's error for a failed ``doing`` ("write", …) on ``path``: the system's words, and what to do."""
    code = error.errno
    hint = _HINTS.get(code or 0) or (_owner_hint(path) if code in (errno.EACCES, errno.EPERM) else "")
    if poisoned:
        hint = "close the session and open it again; it then starts from what was acknowledged" + (
            f"; {hint}" if hint else ""
        )
    said = error.strerror or str(error)
    return JournalWriteError(
        f"cannot {doing} {os.fspath(path)}: {said}" + (f"; {hint}" if hint else ""),
        errno=code,
        poisoned=poisoned,
        path=path,
    )


def _owner_hint(path: str | os.PathLike[str]) -> str:
    """Who owns the nearest thing that exists, and who asks: most refusals come from another user's files."""
    place = Path(path)
    for candidate in (place, *place.parents):
        try:
            found = os.stat(candidate)
        except OSError:
            continue
        mode = stat.S_IMODE(found.st_mode)
        return (
            f"{candidate} belongs to uid {found.st_uid} (mode {mode:04o}) and this process is uid {os.geteuid()}; "
            "give it the right to write there"
        )
    return "give this user the right to write there"
