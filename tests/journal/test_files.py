"""What a person is told where the file system refuses."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from maka.journal.errors import JournalError, JournalWriteError
from maka.journal.files import write_error
from maka.journal.lock import SessionLock
from maka.journal.reader import open_source

#: What comes of foreign things in a session's place, and of limits; not of the user's rights.
CODES = (errno.EMFILE, errno.ENFILE, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENOSPC, errno.EIO)


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
def test_a_failed_write_says_what_failed_and_what_to_do(code: int) -> None:
    said = str(write_error(OSError(code, os.strerror(code)), "/a/path", "open"))
    assert said.startswith(f"cannot open /a/path: {os.strerror(code)}; ")


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink("elsewhere", path)])
def test_what_is_no_file_in_the_place_of_the_lock_is_to_be_moved_and_stays(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    tmp_path.chmod(0o700)
    lock = tmp_path / "journal.lock"
    make(lock)
    with pytest.raises(JournalWriteError, match=r"; move (it|the directory|the link) .*, then try again"):
        SessionLock.acquire(tmp_path)
    assert os.path.lexists(lock)
    assert os.listdir(tmp_path) == ["journal.lock"]


def test_a_process_that_may_open_no_more_files_is_not_told_of_rights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(JournalError, match="let this process open more files") as caught:
        open_source(tmp_path / "journal.jsonl")
    assert "readable" not in str(caught.value)
