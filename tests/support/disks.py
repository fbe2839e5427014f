"""File operations that fail when a test says so, and count what was done."""

import errno
import os
from collections.abc import Callable

from maka.journal import files


class FaultyDisk(files.RealFs):
    """Each of ``failures`` is asked with the operation's name before it is done; it may raise, or return how many
    bytes a write takes. ``trace`` lists what was done.
    """

    def __init__(self) -> None:
        self.failures: list[Callable[[str], int | None]] = []
        self.trace: list[str] = []
        self.write = self._write
        self.sync = self._sync
        self.truncate = self._truncate
        self.stat = self._stat

    def _ask(self, what: str) -> int | None:
        self.trace.append(what)
        for failure in self.failures:
            if (taken := failure(what)) is not None:
                return taken
        return None

    def _write(self, fd: int, data: bytes) -> int:
        taken = self._ask("write")
        return os.write(fd, data if taken is None else data[:taken])

    def _sync(self, fd: int) -> None:
        self._ask("sync")
        os.fsync(fd)

    def _truncate(self, fd: int, length: int) -> None:
        self._ask("truncate")
        os.ftruncate(fd, length)

    def _stat(self, path: str) -> os.stat_result:
        self._ask("stat")
        return os.stat(path)

    def fail(self, what: str, code: int = errno.EIO, times: int = 1) -> None:
        """The next ``times`` of that operation raise."""
        left = [times]

        def failure(operation: str) -> None:
            if operation == what and left[0]:
                left[0] -= 1
                raise OSError(code, os.strerror(code))

        self.failures.append(failure)

    def take(self, count: int) -> None:
        """The next write takes only so many bytes."""
        left = [1]

        def failure(operation: str) -> int | None:
            if operation == "write" and left[0]:
                left[0] -= 1
                return count
            return None

        self.failures.append(failure)
