"""A tool that writes a file, confined to its working directory."""

import asyncio
import contextlib
import os
import stat
import threading
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from ...journal.codec import encodable
from ...journal.events import JsonObject, Recovery
from .base import ToolContext, ToolFailed, ToolOutput, text_block

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

#: Operations that a thread of this process carries out now, perhaps one that nobody waits for any more.
_writing: Final[set[str]] = set()
_writing_lock: Final = threading.Lock()


class WriteFile:
    """Writes text to a file below the working directory, whole or not at all.

    A symbolic link is followed where it leads to a place inside the directory and refused where it leaves it. The path
    is then walked by descriptors that follow no link, so that a link put there meanwhile changes nothing.

    The text is first written to a temporary file beside it, which is named for the operation and then takes the file's
    place. Where a crash leaves the temporary file, that proves that it never did.
    """

    name: Final = "write_file"
    description: Final = "Write text to a file below the working directory; an existing file is replaced as a whole."
    recovery: Final[Recovery] = "reconcile"
    parallel_safe: Final = False
    timeout: Final = 120.0
    parameters: Final[JsonObject] = {
        "type": "object",
        "properties": {
            "path": {"type": "string", "minLength": 1, "description": "relative to the working directory"},
            "content": {"type": "string", "description": "the file's whole new text"},
        },
        "required": ["path", "content"],
        "additionalProperties": False,
    }

    async def execute(self, arguments: dict[str, Any], context: ToolContext) -> ToolOutput:
        """Raises ToolFailed where the path leaves the directory, is no regular file, or the system refuses."""
        path, data = arguments["path"], encodable(arguments["content"]).encode()
        await asyncio.to_thread(_write, context, path, data)
        return ToolOutput.of(f"wrote {len(data)} bytes to {path}")

    def leaves(self, arguments: dict[str, Any], cwd: Path) -> bool:
        """False for each path that ``execute`` follows; one that it refuses as outside, or cannot resolve, leaves."""
        try:
            _locate(cwd, arguments["path"])
        except ToolFailed:
            return True
        return False

    async def reconcile(
        self, arguments: dict[str, Any], operation_id: str, *, context: ToolContext
    ) -> ToolOutput | None:
        """Done, if the file holds exactly that text; not done, if the operation's temporary file is there. Anything
        else proves nothing: others may have written since.
        """
        path, data = arguments["path"], encodable(arguments["content"]).encode()
        return await asyncio.to_thread(_judge, context.cwd, path, data, operation_id)


@contextlib.contextmanager
def _carrying_out(operation_id: str, cancelled: threading.Event) -> Iterator[None]:
    """While this is open, nobody can prove anything of the operation; once it was cancelled it does not begin."""
    with _writing_lock:
        if cancelled.is_set():
            raise ToolFailed("the call was stopped before anything was written", code="WRITE_STOPPED")
        _writing.add(operation_id)
    try:
        yield
    finally:
        with _writing_lock:
            _writing.discard(operation_id)


def _judge(root: Path, path: str, data: bytes, operation_id: str) -> ToolOutput | None:
    with _writing_lock:
        if operation_id in _writing:
            return None
    if _digest(root, path) == sha256(data).digest():
        return ToolOutput.of(f"{path} holds exactly the {len(data)} bytes that were to be written")
    temporary = _temporary(operation_id)
    if not _is_left(root, path, temporary):
        return None
    text = (
        f"{path} was not written: the call was interrupted before that. What it had prepared is in {temporary} there."
    )
    return ToolOutput([text_block(text)], "error", {"name": "ToolFailedError", "code": "WRITE_INTERRUPTED"})


def _temporary(operation_id: str) -> str:
    """The name of the operation's temporary file; an operation_id may be any text."""
    return f".{sha256(encodable(operation_id).encode()).hexdigest()[:32]}.tmp"


def _is_left(root: Path, path: str, temporary: str) -> bool:
    """Does the temporary file lie where the file would be?"""
    try:
        parent = _open_parent(root, _locate(root, path), create=False)
        try:
            return stat.S_ISREG(os.stat(temporary, dir_fd=parent, follow_symlinks=False).st_mode)
        finally:
            os.close(parent)
    except (OSError, ToolFailed):
        return False


def _locate(root: Path, path: str) -> list[str]:
    """The components below ``root`` that ``path`` leads to, links resolved. Raises ToolFailed outside it."""
    if "\0" in path:
        raise ToolFailed("a path cannot hold a NUL byte", code="PATH_INVALID")
    base = os.path.realpath(root)
    try:
        found = os.path.realpath(os.path.join(base, path))
    except (OSError, ValueError) as error:
        raise ToolFailed(f"{path} cannot be resolved: {error}", code="PATH_INVALID") from None
    relative = os.path.relpath(found, base)
    parts = Path(relative).parts
    if not parts or parts[0] == os.pardir or os.path.isabs(relative):
        raise ToolFailed(f"{path} is not below the working directory; name a file inside it", code="PATH_OUTSIDE")
    return list(parts)


def _open_parent(root: Path, parts: list[str], *, create: bool) -> int:
    """A descriptor of the directory that holds the last component. The caller closes it."""
    here = os.open(os.path.realpath(root), _DIRECTORY)
    for part in parts[:-1]:
        try:
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=here)
                    os.fsync(here)
            inner = os.open(part, _DIRECTORY, dir_fd=here)
        finally:
            os.close(here)
        here = inner
    return here


def _write(context: ToolContext, path: str, data: bytes) -> None:
    parts = _locate(context.cwd, path)
    with _carrying_out(context.operation_id, context.cancelled):
        try:
            parent = _open_parent(context.cwd, parts, create=True)
        except OSError as error:
            raise ToolFailed(f"{path} cannot be written: {error.strerror}", code="WRITE_FAILED") from None
        try:
            _replace(parent, parts[-1], path, data, _temporary(context.operation_id))
        except OSError as error:
            raise ToolFailed(f"{path} cannot be written: {error.strerror}", code="WRITE_FAILED") from None
        finally:
            os.close(parent)


def _replace(parent: int, name: str, path: str, data: bytes, temporary: str) -> None:
    mode: int | None = None
    with contextlib.suppress(FileNotFoundError):
        existing = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if not stat.S_ISREG(existing.st_mode):
            raise ToolFailed(f"{path} is not a regular file and stays as it is", code="NOT_A_FILE")
        mode = stat.S_IMODE(existing.st_mode)
    # Never one that is there: of an operation that is carried out twice nothing could be proven.
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=parent)
    try:
        try:
            with open(fd, "wb", closefd=False) as file:
                file.write(data)
            if mode is not None:
                os.fchmod(fd, mode)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=parent)
        raise
    os.fsync(parent)


def _digest(root: Path, path: str) -> bytes | None:
    """The SHA-256 of the file, or None where there is no regular file to read."""
    try:
        parts = _locate(root, path)
        parent = _open_parent(root, parts, create=False)
        try:
            fd = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
        finally:
            os.close(parent)
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return None
            total = sha256()
            while piece := file.read(1 << 20):
                total.update(piece)
            return total.digest()
    except (OSError, ToolFailed):
        return None
