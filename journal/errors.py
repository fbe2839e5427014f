"""The errors a person or a program can meet, one closed family. May not import anything of the project.

Every message is one sentence that says what happened, where (path, and offset or seq where there is one) and what to
do. None ever advises to delete anything.
"""

from os import PathLike


class JournalError(Exception):
    """Base of the family. ``path``, ``offset`` (bytes) and ``seq`` are None where they mean nothing."""

    def __init__(
        self,
        message: str,
        *,
        path: str | PathLike[str] | None = None,
        offset: int | None = None,
        seq: int | None = None,
    ) -> None:
        super().__init__(message)
        self.path = None if path is None else str(path)
        self.offset = offset
        self.seq = seq


class SessionNotFound(JournalError):
    """No journal stands at the given path or under the given id."""


class JournalLocked(JournalError):
    """Another process holds the session's writer lock. ``holder`` is the lock file's text, a hint only."""

    def __init__(
        self, message: str, *, holder: dict[str, object] | None = None, path: str | PathLike[str] | None = None
    ) -> None:
        super().__init__(message, path=path)
        self.holder = holder


class JournalConflict(JournalError):
    """The file is not as this writer left it (replaced, shortened, grown, unlinked), or ``expected_seq`` differs."""


class JournalWriteError(JournalError):
    """A write or a sync failed. ``errno`` is the system's number. ``poisoned`` tells whether the handle is dead."""

    def __init__(
        self,
        message: str,
        *,
        errno: int | None = None,
        poisoned: bool = False,
        path: str | PathLike[str] | None = None,
        offset: int | None = None,
    ) -> None:
        super().__init__(message, path=path, offset=offset)
        self.errno = errno
        self.poisoned = poisoned


class JournalDamaged(JournalError):
    """The journal has damage that only ``maka journal repair --salvage`` settles."""


class JournalUnsupported(JournalError):
    """The journal was written by a newer format, or holds a required event type that this version does not know."""


class InvalidEvent(JournalError):
    """An event that may not be appended: wrong shape, unencodable value, out of order. ``key`` names the place."""

    def __init__(self, message: str, *, type: str, key: str | None = None, seq: int | None = None) -> None:
        super().__init__(message, seq=seq)
        self.type = type
        self.key = key
