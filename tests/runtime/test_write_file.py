"""Writing a file: confined, whole, and provable afterwards."""

import asyncio
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from maka.runtime.tools import ToolContext, ToolFailed, ToolOutput
from maka.runtime.tools import write_file as module
from maka.runtime.tools.write_file import WriteFile


async def never(stream: Any) -> str:
    raise AssertionError


def context(cwd: Path) -> ToolContext:
    return ToolContext("op", "c", "t", "r", cwd, never)


def write(cwd: Path, path: str, content: str = "new") -> ToolOutput:
    return asyncio.run(WriteFile().execute({"path": path, "content": content}, context(cwd)))


def reconcile(cwd: Path, path: str, content: str = "new") -> ToolOutput | None:
    return asyncio.run(WriteFile().reconcile({"path": path, "content": content}, "op", context=context(cwd)))


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    place = tmp_path / "work"
    place.mkdir()
    return place


def test_makes_the_directories_it_needs(cwd: Path) -> None:
    assert write(cwd, "a/b/c.txt", "hällo\n").state == "ok"
    assert (cwd / "a/b/c.txt").read_bytes() == "hällo\n".encode()


def test_replaces_a_file_and_keeps_its_mode(cwd: Path) -> None:
    (cwd / "run.sh").write_text("old")
    (cwd / "run.sh").chmod(0o750)
    write(cwd, "run.sh")
    assert (cwd / "run.sh").read_text() == "new"
    assert stat.S_IMODE((cwd / "run.sh").stat().st_mode) == 0o750
    assert os.listdir(cwd) == ["run.sh"]


def outside(cwd: Path) -> str:
    (cwd / "link").symlink_to("..")
    return "link/x"


def dangling(cwd: Path) -> str:
    (cwd / "link").symlink_to(cwd.parent / "x")
    return "link"


@pytest.mark.parametrize(
    "place",
    [
        lambda cwd: "../x",
        lambda cwd: str(cwd.parent / "x"),
        lambda cwd: "a/../../x",
        lambda cwd: ".",
        outside,
        dangling,
    ],
)
def test_nothing_outside_is_touched(cwd: Path, place: Any) -> None:
    with pytest.raises(ToolFailed) as caught:
        write(cwd, place(cwd))
    assert caught.value.code == "PATH_OUTSIDE"
    assert [entry.name for entry in cwd.parent.iterdir()] == ["work"]


def test_a_link_that_stays_inside_is_followed(cwd: Path) -> None:
    (cwd / "real").mkdir()
    (cwd / "link").symlink_to("real")
    write(cwd, "link/x")
    assert (cwd / "real/x").read_text() == "new"


def test_a_link_put_there_between_look_and_write_is_not_followed(cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cwd / "sub").mkdir()
    located = module._locate

    def swap(root: Path, path: str) -> list[str]:
        parts = located(root, path)
        (cwd / "sub").rmdir()
        (cwd / "sub").symlink_to(cwd.parent)
        return parts

    monkeypatch.setattr(module, "_locate", swap)
    with pytest.raises(ToolFailed):
        write(cwd, "sub/x")
    assert [entry.name for entry in cwd.parent.iterdir()] == ["work"]


@pytest.mark.parametrize("path", ["file/x", "\0", "n" * 300, "\ud800"])
def test_paths_that_cannot_be(cwd: Path, path: str) -> None:
    (cwd / "file").write_text("")
    with pytest.raises(ToolFailed):
        write(cwd, path)


def test_what_is_no_file_stays(cwd: Path) -> None:
    (cwd / "dir").mkdir()
    os.mkfifo(cwd / "pipe")
    for path in ("dir", "pipe"):
        with pytest.raises(ToolFailed) as caught:
            write(cwd, path)
        assert caught.value.code == "NOT_A_FILE"
    assert sorted(os.listdir(cwd)) == ["dir", "pipe"]


def test_a_failed_write_leaves_the_old_file(cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cwd / "x").write_text("old")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ToolFailed, match="No space"):
        write(cwd, "x")
    assert (cwd / "x").read_text() == "old"
    assert os.listdir(cwd) == ["x"]


def test_reconcile_proves_by_content_alone(cwd: Path) -> None:
    assert reconcile(cwd, "x") is None
    write(cwd, "x")
    proven = reconcile(cwd, "x")
    assert proven is not None
    assert proven.state == "ok"
    (cwd / "x").write_text("newer")
    assert reconcile(cwd, "x") is None
    os.mkfifo(cwd / "pipe")
    for path in ("pipe", ".", "../x", "\0"):
        assert reconcile(cwd, path) is None
