"""A host can be found for as long as it lives, whatever is taken away from under it."""

import asyncio
import logging
import shutil
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from maka.runtime.backends.scripted import scripted_backend
from maka.runtime.host import connect
from maka.runtime.host.endpoint import read_registration
from maka.runtime.host.host import Host
from support.managed import app_of


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maka.runtime.host.host._LOOK", 0.02)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    place = tmp_path / "root"
    place.mkdir(mode=0o700)
    return place


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def a_host(root: Path) -> AsyncIterator[Host]:
    """A host that listens, is ready, and ends in order."""
    host = Host(root, app_of(scripted_backend([])))
    serving = asyncio.ensure_future(host.serve())
    try:
        await until(lambda: serving.done() or host.state == "ready")
        yield host
    finally:
        host.shut_down()
        await serving


def endpoint_of(root: Path) -> Path:
    registered = read_registration(root)
    assert registered is not None
    return Path(registered.endpoint)


async def answers(root: Path) -> bool:
    async with connect(root, timeout=5.0, reconnect=False) as client:
        return bool((await client.status())["state"] == "ready")


def unlinked(path: Path) -> None:
    path.unlink()


def without_its_directory(path: Path) -> None:
    shutil.rmtree(path.parent)


def replaced(path: Path) -> None:
    path.unlink()
    path.write_text("another's")


@pytest.mark.parametrize("taken", [unlinked, without_its_directory, replaced])
def test_a_socket_that_is_taken_away_comes_again(root: Path, taken: Callable[[Path], None]) -> None:
    async def test() -> None:
        async with a_host(root), connect(root, reconnect=False) as before:
            path = endpoint_of(root)
            taken(path)
            await until(path.is_socket)
            assert endpoint_of(root) == path
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
            assert await answers(root)
            # Who is connected notices nothing.
            assert (await before.status())["connections"] >= 1
        assert not path.parent.exists()

    asyncio.run(test())


def test_a_socket_that_cannot_come_again_is_told_once_and_tried_again(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "maka")

    async def test() -> None:
        async with a_host(root), connect(root, reconnect=False) as before:
            path = endpoint_of(root)
            path.unlink()
            path.mkdir()
            await until(lambda: bool(caplog.records))
            await asyncio.sleep(0.1)
            [record] = caplog.records
            assert record.message.startswith("clients cannot find the host, which goes on and tries again: cannot ")
            assert str(path) in record.message
            assert (await before.status())["state"] == "ready"
            path.rmdir()
            await until(path.is_socket)
            assert await answers(root)

    asyncio.run(test())


def opened(directory: Path) -> Callable[[], None]:
    directory.chmod(0o755)
    return lambda: directory.chmod(0o700)


def linked(directory: Path) -> Callable[[], None]:
    moved = directory.rename(directory.with_name(directory.name + ".moved"))
    directory.symlink_to(moved)

    def back() -> None:
        directory.unlink()
        moved.rename(directory)

    return back


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (opened, "is open to others (mode 0755), so the host does not listen there; close it with `chmod 700 {}`"),
        (linked, "is a link, so the host does not listen there; move it elsewhere"),
    ],
)
def test_a_directory_that_clients_do_not_trust_is_told_once_until_it_is_mended(
    root: Path, caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], Callable[[], None]], said: str
) -> None:
    caplog.set_level(logging.ERROR, "maka")

    async def test() -> None:
        async with a_host(root), connect(root, reconnect=False) as before:
            directory = endpoint_of(root).parent
            back = spoil(directory)
            try:
                await until(lambda: bool(caplog.records))
                await asyncio.sleep(0.1)
                [record] = caplog.records
                assert record.message.endswith(f": {directory} {said.format(directory)}")
                assert (await before.status())["state"] == "ready"
            finally:
                back()
            await until((directory / endpoint_of(root).name).is_socket)
            assert await answers(root)

    asyncio.run(test())


def test_a_registration_that_cannot_be_written_is_told_once_and_tried_again(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "maka")
    place = root / "host.json"

    async def test() -> None:
        async with a_host(root), connect(root, reconnect=False) as before:
            place.unlink()
            place.mkdir()
            await until(lambda: bool(caplog.records))
            await asyncio.sleep(0.1)
            [record] = caplog.records
            assert f"cannot write {place}: Is a directory; move" in record.message
            assert (await before.status())["state"] == "ready"
            place.rmdir()
            await until(place.is_file)
            assert await answers(root)
            # The next time is another one.
            place.unlink()
            place.mkdir()
            await until(lambda: len(caplog.records) == 2)
        # It has ended in order nevertheless.
        assert place.is_dir()

    asyncio.run(test())
