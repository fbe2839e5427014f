import hashlib
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maka.journal import blobs, files
from maka.journal.blobs import BlobWriter, get, locate, missing, put
from maka.journal.errors import JournalError, JournalWriteError


def name_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def test_a_blob_is_named_by_what_it_holds_and_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        ref = put(tmp_path, b"some bytes")
    finally:
        os.umask(before)
    assert ref == name_of(b"some bytes")
    path = tmp_path / "blobs" / ref.removeprefix("sha256:")
    assert path == locate(tmp_path, ref)
    assert path.read_bytes() == b"some bytes" == get(tmp_path, ref)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [entry.name for entry in path.parent.iterdir()] == [path.name], "no temporary is left"


@given(st.lists(st.binary(max_size=64), max_size=8))
def test_pieces_give_the_same_as_the_whole(tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]) -> None:
    place = tmp_path_factory.mktemp("s")
    whole = b"".join(pieces)
    with BlobWriter(place) as blob:
        for piece in pieces:
            blob.write(piece)
        assert blob.size == len(whole)
        ref = blob.commit()
    assert ref == name_of(whole) == put(place, whole)
    assert get(place, ref) == whole
    assert len(list((place / "blobs").iterdir())) == 1


def test_leaving_without_commit_leaves_nothing(tmp_path: Path) -> None:
    with BlobWriter(tmp_path) as blob:
        blob.write(b"half")
    assert list((tmp_path / "blobs").iterdir()) == []


def test_a_file_is_stored_from_its_start(tmp_path: Path) -> None:
    data = os.urandom(3 * 1024 * 1024 + 7)
    (tmp_path / "big").write_bytes(data)
    with open(tmp_path / "big", "rb") as file:
        file.seek(100)
        assert blobs.put_file(tmp_path, file) == name_of(data)
    assert get(tmp_path, name_of(data)) == data


def test_storing_again_is_harmless_and_mends_a_broken_one(tmp_path: Path) -> None:
    ref = put(tmp_path, b"x" * 1000)
    inode = locate(tmp_path, ref).stat().st_ino
    assert put(tmp_path, b"x" * 1000) == ref
    assert locate(tmp_path, ref).stat().st_ino == inode
    locate(tmp_path, ref).write_bytes(b"x" * 999 + b"y")
    with pytest.raises(JournalError, match="does not hold what its name says"):
        get(tmp_path, ref)
    put(tmp_path, b"x" * 1000)
    assert get(tmp_path, ref) == b"x" * 1000


def test_missing_names_what_no_file_stands_for(tmp_path: Path) -> None:
    here, gone = put(tmp_path, b"a"), name_of(b"b")
    assert missing(tmp_path, [gone, here, gone, "sha256:../../etc/passwd", "x"]) == [
        gone,
        "sha256:../../etc/passwd",
        "x",
    ]
    with pytest.raises(JournalError, match="restore"):
        get(tmp_path, gone)


@pytest.mark.parametrize(
    "ref", ["", "sha256:", "sha256:" + "A" * 64, "sha256:../x", name_of(b"") + "\n", "md5:" + "0" * 64]
)
def test_what_is_no_blobs_name_never_becomes_a_path(tmp_path: Path, ref: str) -> None:
    with pytest.raises(JournalError, match="not a blob's name"):
        locate(tmp_path, ref)
    with pytest.raises(JournalError, match="not a blob's name"):
        get(tmp_path, ref)


def test_a_blob_needs_its_session(tmp_path: Path) -> None:
    with pytest.raises(JournalWriteError):
        put(tmp_path / "none", b"x")
    with pytest.raises(JournalWriteError):
        BlobWriter(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_it_is_synced_before_it_has_its_name_and_its_directory_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    real_rename, real_dir, real_sync = os.rename, files.sync_dir, files.sync

    def rename(old: Path, new: Path) -> None:
        steps.append("rename")
        real_rename(old, new)

    def sync_dir(path: Path) -> None:
        steps.append(f"dir {path.name}")
        real_dir(path)

    def sync(fd: int) -> None:
        steps.append("sync")
        real_sync(fd)

    monkeypatch.setattr(os, "rename", rename)
    monkeypatch.setattr(files, "sync_dir", sync_dir)
    monkeypatch.setattr(files, "sync", sync)
    put(tmp_path, b"1")
    assert steps == [f"dir {tmp_path.name}", "sync", "rename", "dir blobs"]
    steps.clear()
    with BlobWriter(tmp_path) as blob:
        blob.write(b"2")
        blob.commit()
    assert steps == ["sync", "rename", "dir blobs"]


@pytest.mark.parametrize("where", ["sync", "rename"])
def test_what_fails_leaves_no_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    put(tmp_path, b"first")
    monkeypatch.setattr(*(files, "sync", fail) if where == "sync" else (os, "rename", fail))
    with pytest.raises(JournalWriteError) as failed:
        put(tmp_path, b"second")
    assert failed.value.errno == 28
    with BlobWriter(tmp_path) as blob:
        blob.write(b"third")
        with pytest.raises(JournalWriteError):
            blob.commit()
    assert len(list((tmp_path / "blobs").iterdir())) == 1
