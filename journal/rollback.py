"""Bytes that a failed write or sync left behind: cut back at once, or else at this process's next open.

After a failed sync nobody can tell what is on the disk. Only the process that saw it fail knows where its acknowledged
bytes end; it remembers that here, and whoever takes the session's lock next cuts what lies beyond.
"""

import os
from pathlib import Path

from . import files

#: Device and inode of a file → its path, the length that was acknowledged, and the bytes written beyond it.
_beyond: dict[tuple[int, int], tuple[Path, int, bytes]] = {}


def cut(fd: int, length: int, fs: files.Fs) -> bool:
    """Truncate to ``length`` and sync. False where the system refuses either."""
    try:
        fs.truncate(fd, length)
        fs.sync(fd)
    except OSError:
        return False
    return True


def remember(fd: int, path: Path, length: int, lost: bytes) -> None:
    """``lost`` was written to ``path`` beyond ``length``, was never acknowledged, and may still be there in part."""
    _beyond[_inode(fd)] = (path.absolute(), length, lost)


def settle(directory: Path) -> None:
    """Cut what is remembered of files in ``directory``. Only under its lock. Raises OSError; it is then remembered on.

    Bytes that another process has meanwhile built upon, or put there, are left alone.
    """
    for key, (path, length, lost) in list(_beyond.items()):
        if path.parent == directory.absolute():
            try:
                fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError:
                fd = -1
            try:
                if fd >= 0 and _inode(fd) == key:
                    beyond = os.pread(fd, len(lost) + 1, length)
                    if beyond and lost.startswith(beyond):
                        os.ftruncate(fd, length)
                    files.sync(fd)
            finally:
                if fd >= 0:
                    os.close(fd)
            del _beyond[key]


def _inode(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino
