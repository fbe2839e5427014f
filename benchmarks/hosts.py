"""A host: ready beside many finished sessions and beside long ones, a turn asked for over its socket, text for many.

Hosts run in this process, over real sockets and files; a process of its own adds the time that Python takes to start.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from _bench import Report, Row, Settings, Target, interleaved, middle, ratio, run, timed
from list import ends, fill
from turns import bare_turn

from maka.journal.events import Draft
from maka.journal.store import FileStore
from maka.runtime import App
from maka.runtime.backends.base import SendInput, text_of
from maka.runtime.backends.scripted import scripted_backend
from maka.runtime.host import Client, connect
from maka.runtime.host.host import Host
from maka.runtime.scripted import Say
from maka.runtime.sessions import SessionManager


def play(input: SendInput) -> list[Say]:
    """So many KiB, as fast as they go."""
    kib = int(text_of(input.content) or 1)
    return [Say("0123456789abcdef" * 64 * kib, pieces=kib)]


APP = App(backends={"loop": scripted_backend(play, steps=True)}, default_backend="loop", permission_mode="bypass")


@asynccontextmanager
async def serving(root: Path) -> AsyncIterator[Host]:
    """A host that is ready."""
    host = Host(root, APP)
    task = asyncio.ensure_future(host.serve())
    while host.state != "ready":
        assert not task.done(), task.result()
        await asyncio.sleep(0.0005)
    try:
        yield host
    finally:
        host.shut_down()
        await task


def until_ready(root: Path) -> float:
    """Seconds until a host of this root takes turns."""

    async def main() -> float:
        begin = time.perf_counter()
        async with serving(root):
            return time.perf_counter() - begin

    return asyncio.run(main())


def long_sessions(root: Path, sessions: int, turns: int) -> None:
    store = FileStore(root)
    for number in range(sessions):
        data = {"format": 1, "session_id": f"s{number}", "created_by": {"name": "bench", "version": "0"}, "cwd": "/"}
        data |= {"backend": "loop", "model": "m", "permission_mode": "ask"}
        with store.create(Draft("session/header", data)) as writer:
            for turn in range(1, turns + 1):
                for group in bare_turn(turn):
                    writer.append_batch(group)
            writer.flush()


# ---------------------------------------------------------------- turns


def by_socket(root: Path, turns: int) -> float:
    """Seconds for a turn that is asked for over the socket, until its begin is durable and answered."""

    async def main() -> float:
        async with serving(root), connect(root) as client:
            session_id = await client.create_session()
            return await each(turns, lambda: begun_and_over(client, session_id))

    return asyncio.run(main())


async def begun_and_over(client: Client, session_id: str) -> float:
    begin = time.perf_counter()
    turn = (await client.start_turn(session_id, "1"))["turn"]
    spent = time.perf_counter() - begin
    while (await client.query_turn(session_id, turn["turn_id"]))["status"] != "completed":
        await asyncio.sleep(0.001)
    return spent


def in_process(root: Path, turns: int) -> float:
    """Seconds for the same turn by a manager in the program itself, until its begin is durable."""

    async def main() -> float:
        async with SessionManager(root, app=APP) as manager:
            session_id = await manager.create()

            async def one() -> float:
                begin = time.perf_counter()
                stream = manager.send(session_id, "1")
                await stream.started()
                spent = time.perf_counter() - begin
                async for _ in stream:
                    pass
                return spent

            return await each(turns, one)

    return asyncio.run(main())


async def each(times: int, one: Callable[[], Awaitable[float]]) -> float:
    return sum([await one() for _ in range(times)]) / times


# ---------------------------------------------------------------- text


def streamed(root: Path, kib: int, clients: int) -> float:
    """Seconds until so many clients have all of a text; with none, until its turn is over."""

    async def main() -> float:
        async with serving(root), connect(root) as client:
            session_id = await client.create_session()
            reading = [asyncio.ensure_future(whole(root, session_id, kib)) for _ in range(clients)]
            while (await client.status())["connections"] <= clients:
                await asyncio.sleep(0.001)
            # Each is about to subscribe.
            await asyncio.sleep(0.05)
            begin = time.perf_counter()
            turn = (await client.start_turn(session_id, str(kib)))["turn"]
            await asyncio.gather(*reading)
            while not reading and (await client.query_turn(session_id, turn["turn_id"]))["status"] != "completed":
                await asyncio.sleep(0.001)
            return time.perf_counter() - begin

    return asyncio.run(main())


async def whole(root: Path, session_id: str, kib: int) -> None:
    async with connect(root) as client, await client.subscribe(session_id) as watch:
        size = 0
        async for frame in watch:
            if frame.delta is not None:
                assert frame.delta["offset"] == size
                size += len(frame.delta["text"])
                if frame.delta.get("complete"):
                    assert size == kib * 1024
                    return


def measure(settings: Settings) -> Report:
    sessions, turns = settings.size(10_000, 20), settings.size(30, 2)
    kib, crowd = settings.size(5_120, 64), settings.size(50, 3)
    many, few, long, other = (settings.place / name for name in ("many", "few", "long", "other"))
    fill(FileStore(many), sessions)
    long_sessions(few, 8, 4)
    long_sessions(long, 8, settings.size(4_000, 8))
    until_ready(many)
    figures = interleaved(
        {
            "ends": lambda: timed(lambda: ends(many)),
            "many": lambda: until_ready(many),
            "few": lambda: until_ready(few),
            "long": lambda: until_ready(long),
            "socket": lambda: by_socket(other / "socket", turns),
            "process": lambda: in_process(other / "process", turns),
            "one": lambda: streamed(other / "one", kib, 1),
            "crowd": lambda: streamed(other / "crowd", kib, crowd),
            "nobody": lambda: streamed(other / "nobody", kib, 0),
        },
        settings.rounds,
    )

    def ms(case: str) -> str:
        return f"{1e3 * middle(figures, case):.1f} ms"

    def row(what: str, case: str, words: str, base: str, target: Target | None = None) -> Row:
        return Row(what, ms(case), f"{words}: {ms(base)}", ratio(figures, case, base), target or Target())

    rows = [
        row(
            f"ready beside {sessions:,} finished sessions",
            "many",
            "bare os.pread of their ends",
            "ends",
            Target(high=3),
        ),
        row("ready beside 8 finished sessions of some 70,000 events", "long", "of some 70", "few", Target(high=1.5)),
        row("a turn asked for over the socket, until it has begun", "socket", "by a manager in the program", "process"),
        row(f"{kib / 1024:.0f} MiB of text to one client", "one", "to nobody", "nobody"),
        row(f"{kib / 1024:.0f} MiB of text to {crowd} clients", "crowd", "to nobody", "nobody"),
    ]
    return Report("Host", rows, ["Clients run in the same process and the same event loop as the host."])


if __name__ == "__main__":
    run(__doc__, measure)
