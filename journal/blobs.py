"""Contents too big for a line: files named by the SHA-256 of what they hold, durable before an event names them."""

import os
import re
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Final

from . import files
from .errors import JournalError

BLOBS: Final = "blobs"
_REF: Final = re.compile(r"sha256:([0-9a-f]{64})")
_CHUNK: Final = 1024 * 1024


class BlobWriter:
    """A blob that comes in pieces. ``commit`` makes it durable and names it; leaving without it leaves nothing."""

    def __init__(self, session_dir: str | os.PathLike[str]) -> None:
        """Raises JournalWriteError where the blob cannot be begun."""
        self.size = 0
        self._digest = sha256()
        self._directory = Path(session_dir) / BLOBS
        self._name = files.temporary(self._directory / "blob")
        try:
            files.make_dir(self._directory)
            self._fd: int | None = files.create_private(self._name)
        except OSError as error:
            raise files.write_error(error, self._name, "write") from None

    def write(self, data: bytes) -> None:
        """Raises JournalWriteError."""
        assert self._fd is not None, "the blob is closed"
        try:
            files.write_all(self._fd, (data,))
        except OSError as error:
            raise files.write_error(error, self._name, "write") from None
        self._digest.update(data)
        self.size += len(data)

    def commit(self) -> str:
        """Sync, name, sync the directory; returns ``sha256:<64 hex>``. Raises JournalWriteError."""
        fd, self._fd = self._fd, None
        assert fd is not None, "the blob is closed"
        digest = self._digest.hexdigest()
        try:
            try:
                files.sync(fd)
            finally:
                os.close(fd)
            # Over one that is there: it may be a stranger's or a broken one, and this one is known to be whole.
            os.rename(self._name, self._directory / digest)
            files.sync_dir(self._directory)
        except OSError as error:
            self._name.unlink(missing_ok=True)
            raise files.write_error(error, self._directory / digest, "write") from None
        return f"sha256:{digest}"

    def abort(self) -> None:
        """Leave nothing behind; after ``commit`` it does nothing."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)
            self._name.unlink(missing_ok=True)

    def __enter__(self) -> "BlobWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()


def put(session_dir: str | os.PathLike[str], data: bytes) -> str:
    """Store ``data`` durably and return its name. Storing it again is harmless. Raises JournalWriteError."""
    digest = sha256(data).hexdigest()
    path = Path(session_dir) / BLOBS / digest
    try:
        if _holds(path, digest):
            files.sync_dir(path.parent)
            return f"sha256:{digest}"
        files.make_dir(path.parent)
        files.replace(path, (data,))
    except OSError as error:
        raise files.write_error(error, path, "write") from None
    return f"sha256:{digest}"


def put_file(session_dir: str | os.PathLike[str], file: BinaryIO) -> str:
    """Store the whole of an open file, in bounded memory, and return its name. Raises JournalWriteError, OSError."""
    file.seek(0)
    with BlobWriter(session_dir) as blob:
        while chunk := file.read(_CHUNK):
            blob.write(chunk)
        return blob.commit()


def get(session_dir: str | os.PathLike[str], ref: str) -> bytes:
    """The content named ``ref``. Raises JournalError where it is missing, unreadable or not what its name says."""
    path = locate(session_dir, ref)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise JournalError(
            f"cannot read {path}: {error.strerror}; restore the file from a copy of the session", path=path
        ) from None
    if sha256(data).hexdigest() != path.name:
        raise JournalError(
            f"{path} does not hold what its name says; restore the file from a copy of the session", path=path
        )
    return data


def locate(session_dir: str | os.PathLike[str], ref: str) -> Path:
    """Where ``ref`` is stored, whether or not it is there. Raises JournalError for what is no blob's name."""
    match = _REF.fullmatch(ref)
    if match is None:
        raise JournalError(
            f"{ref!r} is not a blob's name (sha256:<64 hex>); use the name that the event holds", path=session_dir
        )
    return Path(session_dir) / BLOBS / match[1]


def missing(session_dir: str | os.PathLike[str], refs: Iterable[str]) -> list[str]:
    """Those of ``refs`` that no file stands for, in their order and once each. Reads no contents."""
    out: dict[str, None] = {}
    for ref in refs:
        match = _REF.fullmatch(ref)
        if match is None or not os.path.isfile(os.path.join(session_dir, BLOBS, match[1])):
            out[ref] = None
    return list(out)


def _holds(path: Path, digest: str) -> bool:
    try:
        with open(path, "rb") as file:
            found = sha256()
            while chunk := file.read(_CHUNK):
                found.update(chunk)
    except FileNotFoundError:
        return False
    return found.hexdigest() == digest
