"""The host's socket, and what all its connections are told."""

import asyncio
import os
import stat
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from maka.runtime.host.server import Server
from support.wire import FakeServices, hello, serving, socket_path

Json = dict[str, Any]


def go(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 20))


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o777])
def test_the_socket_is_its_owner_s_from_the_moment_it_exists(mask: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    chmod = os.chmod

    def looking(path: str, mode: int) -> None:
        seen.append(stat.S_IMODE(os.stat(path).st_mode))
        chmod(path, mode)

    async def main() -> None:
        with socket_path() as path:
            monkeypatch.setattr(os, "chmod", looking)
            server = Server(FakeServices())
            before = os.umask(mask)
            try:
                await server.listen(path)
            finally:
                os.umask(before)
            found = os.stat(path)
            assert stat.S_ISSOCK(found.st_mode)
            assert stat.S_IMODE(found.st_mode) == 0o600
            assert seen[0] & 0o077 == 0
            await server.close("host_draining", "m", 0.1)
            assert not os.path.exists(path)

    go(main())


def test_where_something_stands_already_nothing_is_listened_on_and_it_stays() -> None:
    async def main() -> None:
        with socket_path() as path:
            Path(path).write_text("mine")
            with pytest.raises(OSError):
                await Server(FakeServices()).listen(path)
            assert Path(path).read_text() == "mine"

    go(main())


def test_a_socket_that_is_another_s_by_now_stays() -> None:
    async def main() -> None:
        async with serving() as wire:
            os.rename(wire.path, wire.path + ".old")
            Path(wire.path).write_text("another's")
            wire.server.stop_accepting()
            assert Path(wire.path).read_text() == "another's"

    go(main())


def test_all_who_were_welcomed_are_told_the_state() -> None:
    async def main() -> None:
        async with serving(FakeServices("recovering")) as wire:
            raws = [await wire.welcomed() for _ in range(3)]
            silent = await wire.connect()
            await raws[0].ask("1", "host.status")
            await raws[0].receive()
            wire.services.state = "ready"
            wire.server.tell_state("ready")
            for raw in raws:
                assert await raw.receive() == {"kind": "state", "state": "ready"}
            # It is told by its welcome, and nothing before.
            await silent.send(hello())
            assert (await silent.receive())["state"] == "ready"

    go(main())


def test_one_connection_too_many_is_refused_and_the_others_go_on() -> None:
    async def main() -> None:
        async with serving(most=2) as wire:
            first, second = await wire.welcomed(), await wire.welcomed()
            third = await wire.connect()
            [frame] = await third.rest()
            assert (frame["kind"], frame["code"]) == ("refused", "too_many_requests")
            assert len(wire.server.connections) == 2
            second.writer.close()
            while len(wire.server.connections) == 2:
                await asyncio.sleep(0)
            await wire.welcomed()
            await first.ask("1", "host.status")
            assert (await first.receive())["ok"]

    go(main())


def test_nobody_new_is_accepted_and_those_that_are_there_go_on() -> None:
    async def main() -> None:
        async with serving() as wire:
            raw = await wire.welcomed()
            wire.server.stop_accepting()
            with pytest.raises(OSError):
                await wire.connect()
            await raw.ask("1", "host.status")
            assert (await raw.receive())["ok"]

    go(main())


def test_answers_go_out_before_the_goodbye_and_nothing_new_is_taken() -> None:
    async def main() -> None:
        entered, let_go = asyncio.Event(), asyncio.Event()

        async def slow(input: Any, caller: Any) -> Json:
            entered.set()
            await let_go.wait()
            return {"done": True}

        async with serving(FakeServices(turn_query=slow)) as wire:
            raw, silent = await wire.welcomed(), await wire.connect()
            await raw.ask("1", "turn.query", session_id="s", turn_id="t")
            await entered.wait()
            closing = asyncio.ensure_future(wire.server.close("host_draining", "the host ends", 5))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert len(wire.services.gone) == 1
            await raw.ask("2", "session.list")
            frame = await raw.receive()
            assert (frame["id"], frame["error"]["code"]) == ("2", "host_draining")
            let_go.set()
            answer, last = await raw.rest()
            assert answer["result"] == {"done": True}
            assert last == {"kind": "goodbye", "code": "host_draining", "message": "the host ends"}
            assert [frame["kind"] for frame in await silent.rest()] == ["goodbye"]
            await closing
            assert wire.server.connections == frozenset()

    go(main())


def test_closing_has_an_end_whatever_runs_and_whoever_takes_nothing() -> None:
    async def main() -> None:
        async def never(input: Any, caller: Any) -> Json:
            await asyncio.Event().wait()
            return {}

        async def big(input: Any, caller: Any) -> Json:
            return {"pad": "x" * 500_000}

        async with serving(FakeServices(turn_query=never, session_list=big)) as wire:
            busy, stuck = await wire.welcomed(), await wire.welcomed()
            await busy.ask("1", "turn.query", session_id="s", turn_id="t")
            for n in range(9):
                await stuck.ask(str(n), "session.list")
            closing = asyncio.ensure_future(wire.server.close("host_draining", "m", 0.1))
            assert [frame["kind"] for frame in await busy.rest()] == ["goodbye"]
            # Who is cancelled while it waits leaves nothing behind either.
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            assert wire.server.connections == frozenset()

    go(main())
