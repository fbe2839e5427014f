"""Writing a file: confined, whole, and provable afterwards."""

import asyncio
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from maka.runtime.tools import ToolContext, ToolFailed, ToolOutput
from maka.runtime.tools import write_file as module
from maka.runtime.tools.write_file import WriteFile


async def never(stream: Any) -> str:
    raise AssertionError


def context(cwd: Path, operation_id: str = "op") -> ToolContext:
    return ToolContext(operation_id, "c", "t", "r", cwd, never)


def write(cwd: Path, path: str, content: str = "new") -> ToolOutput:
    return asyncio.run(WriteFile().execute({"path": path, "content": content}, context(cwd)))


def reconcile(cwd: Path, path: str, content: str = "new", operation_id: str = "op") -> ToolOutput | None:
    arguments = {"path": path, "content": content}
    return asyncio.run(WriteFile().reconcile(arguments, operation_id, context=context(cwd, operation_id)))


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


@pytest.fixture
def interrupted(cwd: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in which the write of ``x`` over an old one was cut off just before it took effect."""
    (cwd / "x").write_text("old")

    def cut_off(*given: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", cut_off)
        patched.setattr(os, "unlink", cut_off)
        with pytest.raises(KeyboardInterrupt):
            module._write(context(cwd), "x", b"new")
    assert len(os.listdir(cwd)) == 2
    return cwd


def test_a_temporary_file_that_is_left_proves_that_nothing_was_written(interrupted: Path) -> None:
    proven = reconcile(interrupted, "x")
    assert proven is not None
    assert (proven.state, proven.error) == ("error", {"name": "ToolFailedError", "code": "WRITE_INTERRUPTED"})
    [left] = [name for name in os.listdir(interrupted) if name != "x"]
    assert left in proven.content[0]["text"]


def test_one_of_another_operation_or_place_proves_nothing(interrupted: Path) -> None:
    (interrupted / "sub").mkdir()
    assert reconcile(interrupted, "x", operation_id="another") is None
    assert reconcile(interrupted, "sub/x") is None


def test_the_file_itself_is_the_better_proof(interrupted: Path) -> None:
    (interrupted / "x").write_text("new")
    proven = reconcile(interrupted, "x")
    assert proven is not None
    assert proven.state == "ok"


def test_something_else_of_that_name_proves_nothing(interrupted: Path) -> None:
    [left] = [interrupted / name for name in os.listdir(interrupted) if name != "x"]
    left.rename(interrupted / "elsewhere")
    left.symlink_to("elsewhere")
    assert reconcile(interrupted, "x") is None


def test_an_operation_is_not_carried_out_over_what_it_left(interrupted: Path) -> None:
    with pytest.raises(ToolFailed):
        write(interrupted, "x")
    assert (interrupted / "x").read_text() == "old"
    assert reconcile(interrupted, "x") is not None


@pytest.mark.parametrize("operation_id", ["../../x", "o" * 500, "\ud800", ""])
def test_an_operation_may_be_called_anything(cwd: Path, operation_id: str) -> None:
    asyncio.run(WriteFile().execute({"path": "x", "content": "new"}, context(cwd, operation_id)))
    assert os.listdir(cwd) == ["x"]
    assert [entry.name for entry in cwd.parent.iterdir()] == ["work"]


def test_nothing_is_proven_while_a_thread_may_still_write(cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call was given up, and its thread goes on: what is there now is not what will be."""
    arrived, go_on, replace = threading.Event(), threading.Event(), os.replace

    def slow(*given: Any, **more: Any) -> None:
        arrived.set()
        assert go_on.wait(10)
        replace(*given, **more)

    async def main() -> None:
        given = context(cwd)
        arguments = {"path": "x", "content": "new"}
        writing = asyncio.ensure_future(WriteFile().execute(arguments, given))
        await asyncio.to_thread(arrived.wait, 10)
        given.cancelled.set()
        writing.cancel()
        await asyncio.wait({writing})
        assert writing.cancelled()
        assert len(os.listdir(cwd)) == 1
        assert await WriteFile().reconcile(arguments, "op", context=context(cwd)) is None
        go_on.set()

    monkeypatch.setattr(os, "replace", slow)
    try:
        asyncio.run(main())  # waits for the thread at its end
    finally:
        go_on.set()
    assert os.listdir(cwd) == ["x"]
    proven = reconcile(cwd, "x")
    assert proven is not None
    assert proven.state == "ok"


def test_a_call_that_was_given_up_before_its_thread_began_writes_nothing(cwd: Path) -> None:
    given = context(cwd)
    given.cancelled.set()
    with pytest.raises(ToolFailed):
        module._write(given, "x", b"new")
    assert os.listdir(cwd) == []
