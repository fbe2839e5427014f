"""Exceptions → exit code and one sentence. Imported only when something failed.

For a session that is locked it is looked up whether the root's host has it, because then there is a way.
"""

import errno
import os
import traceback
from typing import Final

import attrs

from ..journal import errors
from ..runtime.errors import ContinuationParked, ContinuationRevalidationError, RuntimeFailure
from . import exits, owner
from .naming import Unclear

#: The first class that fits decides.
_CODES: Final[tuple[tuple[type[Exception], int], ...]] = (
    (errors.JournalLocked, exits.LOCKED),
    (errors.SessionNotFound, exits.USAGE),
    (errors.JournalWriteError, exits.USAGE),
    (errors.JournalConflict, exits.USAGE),
    (errors.InvalidEvent, exits.USAGE),
    (errors.JournalError, exits.REFUSED),
    (ContinuationParked, exits.PENDING),
    (ContinuationRevalidationError, exits.PENDING),
    (RuntimeFailure, exits.USAGE),
    (Unclear, exits.USAGE),
    (OSError, exits.USAGE),
)

_ADVICE: Final = {
    errno.EACCES: "give this user the right to it, or run as its owner",
    errno.EPERM: "give this user the right to it, or run as its owner",
    errno.EROFS: "the place is read-only; work on a copy elsewhere",
    errno.ENOSPC: "free some space, then try again",
    errno.EDQUOT: "free some space, then try again",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.EIO: "look at the disk",
    errno.EMFILE: "let this process open more files (`ulimit -n`)",
    errno.ENFILE: "close some of the files that the system has open",
}


@attrs.frozen
class Failure:
    code: int
    sentence: str | None


def failure_of(error: Exception) -> Failure:
    """What to tell a person about `error`, and the exit code."""
    # The parser's exceptions live in different packages in different versions of it; this method is what they share.
    format_message = getattr(error, "format_message", None)
    if callable(format_message):
        return Failure(getattr(error, "exit_code", exits.USAGE), _usage(str(format_message()), error))
    if type(error).__name__ == "Abort":
        return Failure(exits.INTERRUPTED, None)
    for cls, code in _CODES:
        if isinstance(error, cls):
            return Failure(code, _sentence(error))
    if isinstance(error, MemoryError):
        return Failure(exits.USAGE, "there is not enough memory for this; let this process have more (`ulimit -v`)")
    return Failure(exits.USAGE, _unforeseen(error))


def _sentence(error: Exception) -> str:
    if isinstance(error, errors.JournalLocked):
        return owner.locked(error)
    return _system(error) if isinstance(error, OSError) else str(error)


def _usage(message: str, error: Exception) -> str:
    path = getattr(getattr(error, "ctx", None), "command_path", "maka")
    return f"{' '.join(message.split()).rstrip('.')}; see `{path} --help`"


def _system(error: OSError) -> str:
    if isinstance(error, FileNotFoundError) and error.filename is None and not _here():
        return "the directory that this command runs in is not there any more; go to another with `cd`, then try again"
    where = f" {str(error.filename)[:200]}" if error.filename is not None else ""
    advice = _ADVICE.get(error.errno or 0, "look at that place's permissions and free space")
    reason = error.strerror or str(error) or type(error).__name__
    return f"{reason}:{where or ' the system refused an operation'}; {advice}"


def _here() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _unforeseen(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else ""
    what = f"{type(error).__name__}: {error}".rstrip(": ")
    return f"a defect of this program ({what}{where}); run it again with --debug and report what it prints"
