"""A host whose lock file is taken away ends by itself, and leaves to the next what is the next one's."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from maka.runtime.backends.scripted import Never, scripted_backend
from maka.runtime.host import connect
from maka.runtime.host.endpoint import read_registration
from maka.runtime.host.host import Host
from maka.runtime.host.ownership import RootLock, RootLost
from support.hosts import PATIENCE, Root, a_root, refused
from support.managed import app_of


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    with a_root(tmp_path / "root") as made:
        yield made


def begin(root: Root) -> "tuple[Host, asyncio.Future[None]]":
    host = Host(root.path, app_of(scripted_backend(lambda _: Never(), steps=True)))
    return host, asyncio.ensure_future(host.serve())


async def is_ready(host: Host, serving: "asyncio.Future[None]") -> None:
    async with asyncio.timeout(PATIENCE):
        while host.state != "ready":
            assert not serving.done(), serving.exception()
            await asyncio.sleep(0.01)


def test_the_lock_that_is_held_is_the_one_at_its_path(tmp_path: Path) -> None:
    with RootLock.acquire(tmp_path) as lock:
        assert lock.stands()
        (tmp_path / "host.lock").rename(tmp_path / "elsewhere")
        assert not lock.stands()
        (tmp_path / "host.lock").write_text("")
        assert not lock.stands()
        (tmp_path / "elsewhere").rename(tmp_path / "host.lock")
        assert lock.stands()
    assert not lock.stands()


def test_a_host_that_has_lost_its_root_ends(
    root: Root, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("maka.runtime.host.host._LOOK", 0.02)
    caplog.set_level(logging.ERROR, "maka")

    async def test() -> None:
        host, serving = begin(root)
        await is_ready(host, serving)
        async with connect(root.path, reconnect=False) as client:
            await client.start_turn("s1", "go", turn_id="t")
            (root.path / "host.lock").unlink()
            with pytest.raises(RootLost, match=r"host\.lock was removed or replaced .* `maka host status`"):
                await asyncio.wait_for(serving, PATIENCE)
        assert "host.lock was removed or replaced" in caplog.records[0].message
        # What ran has its end, as with any host that is stopped.
        assert [event.data["reason"]["source"] for event in root.of_type("turn/end")] == ["host_shutdown"]
        following, serving = begin(root)
        await is_ready(following, serving)
        following.shut_down()
        await serving

    asyncio.run(test())


def test_what_the_next_host_has_put_there_stays(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    # The first looks too late.
    monkeypatch.setattr("maka.runtime.host.host._LOOK", 600.0)

    async def test() -> None:
        first, serving_first = begin(root)
        await is_ready(first, serving_first)
        async with connect(root.path, reconnect=False) as client:
            await client.start_turn("s1", "go", turn_id="t")
            (root.path / "host.lock").unlink()
            second, serving_second = begin(root)
            await is_ready(second, serving_second)
            async with connect(root.path, reconnect=False) as other:
                assert other.host_epoch == second.host_epoch
                # Each journal has its own lock, and so one writer.
                assert await refused(other.start_turn("s1", "go", turn_id="u")) == "session_unavailable"
                first.shut_down()
                await serving_first
                found = read_registration(root.path)
                assert found is not None
                assert found.host_epoch == second.host_epoch
                assert Path(found.endpoint).is_socket()
                await other.start_turn("s1", "go", turn_id="u")
                second.shut_down()
                await serving_second
        turns: list[Any] = [event.data["turn_id"] for event in root.of_type("turn/end")]
        assert turns == ["t", "u"]

    asyncio.run(test())


def test_a_process_that_has_lost_its_root_ends_with_a_fault(root: Root) -> None:
    async def test() -> None:
        host = await root.start()
        (root.path / "host.lock").unlink()
        assert host.process.wait(PATIENCE) == 2
        assert "maka: " in host.said()
        assert "was removed or replaced" in host.said()
        assert "Traceback" not in host.said()

    asyncio.run(test())


def test_a_host_that_loses_its_root_while_it_recovers_ends(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked at from the first, not only once the host is ready."""
    monkeypatch.setattr("maka.runtime.host.host._LOOK", 0.02)

    async def test() -> None:
        host, serving = begin(root)

        async def hangs() -> None:
            (root.path / "host.lock").unlink()
            await asyncio.Event().wait()

        monkeypatch.setattr(host._recovering, "run", hangs)
        with pytest.raises(RootLost):
            await asyncio.wait_for(serving, PATIENCE)

    asyncio.run(test())
