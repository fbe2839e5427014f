"""Whoever needs a host waits for one in one time, and is told what stands in the way of it."""

import asyncio
from asyncio.subprocess import PIPE
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from maka.cli import exits, hosting, reaching
from maka.cli.console import Console
from maka.cli.reaching import Hosts, with_host
from maka.runtime.host import Client, HostStartFailed, HostUnreachable, connect
from support.command import COMMAND
from support.fake_host import FakeHost, play

Run = Callable[..., Any]
ACTIVE = [{"session_id": "s", "turn_id": "t", "run_id": "r"}, {"session_id": "o", "turn_id": "u", "run_id": "q"}]
WAITS = "is ending (draining) and waits for the end of turn t of session s and 1 more"


@pytest.fixture
def short(maka_: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A root, and a second for its host to be there."""
    monkeypatch.setattr(hosting, "START", 1.0)
    monkeypatch.setenv("MAKA_APP", "support.spoken:made")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))


async def never(client: Client) -> None:
    raise AssertionError("no host is ready")


def ends(host: FakeHost) -> None:
    host.state = "draining"
    host.answers["host.status"] = lambda _: {
        "host_epoch": host.epoch, "state": "draining", "pid": host.pid, "active": ACTIVE,
    }  # fmt: skip


@pytest.mark.usefixtures("short")
def test_a_host_is_found_started_and_ready_in_one_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        for state, silent, raised in (("ready", True, HostStartFailed), ("recovering", False, HostUnreachable)):
            async with FakeHost(tmp_path / "root", state=state) as host:
                host.silent = silent
                with pytest.raises(raised):
                    await with_host(Hosts(None, None, Console(None, None, {}), True), never)

    play(scenario(), 9)


@pytest.mark.usefixtures("short")
def test_one_that_ends_is_told_and_what_it_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaching, "connect", lambda root, surface, timeout: connect(root, surface=surface, timeout=0.2))

    async def scenario() -> None:
        async with FakeHost(tmp_path / "root") as host:
            ends(host)
            said: list[str] = []
            with pytest.raises(HostStartFailed, match=r"and has not ended for 1 s; wait for its end") as refused:
                await hosting.started(None, None, None, said.append)
            assert WAITS in str(refused.value)
            assert f"(process {host.pid})" in str(refused.value)
            [told] = said
            assert told.endswith(f"{WAITS}; the next one is started then")
            with pytest.raises(HostUnreachable, match="1 more; try again once it has ended"):
                await with_host(Hosts(None, None, Console(None, None, {}), False), never)

    play(scenario(), 20)


@pytest.mark.usefixtures("short")
def test_a_run_waits_for_it_and_starts_its_own(maka_: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path / "root") as host:
            ends(host)
            run = await asyncio.create_subprocess_exec(*COMMAND, "run", "Hello", stdout=PIPE, stderr=PIPE)
            assert run.stderr is not None
            assert WAITS in (await run.stderr.readline()).decode()
            await host.stop()
            out, err = await run.communicate()
            assert (run.returncode, out) == (exits.DONE, b"You said Hello.\n"), err

    try:
        play(scenario(), 40)
    finally:
        assert maka_("host", "stop").code == exits.DONE
