"""A host: ready beside many finished sessions and beside long ones, a turn asked for over its socket, text for many,
how late live text is, and what it keeps in memory for those that are connected and those that watch.

Hosts run in this process, over real sockets and files; a process of its own adds the time that Python takes to start.
"""

import asyncio
import gc
import socket
import statistics
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import orjson
from _bench import Report, Row, Settings, Target, interleaved, middle, ratio, run, timed
from list import ends, fill
from turns import bare_turn

from maka.journal.events import Draft
from maka.journal.store import FileStore
from maka.runtime import App
from maka.runtime.backends.base import SendInput, text_of
from maka.runtime.backends.scripted import Emit, Part, scripted_backend
from maka.runtime.host import Client, connect, endpoint
from maka.runtime.host.host import Host
from maka.runtime.scripted import Do, Say, Wait
from maka.runtime.sessions import SessionManager

#: When each piece of a paced text was given to the host; all have the same length.
given: list[float] = []
PIECE: Final = "0123456789abcdef"


def play(input: SendInput) -> list[Part]:
    """So many KiB, as fast as they go; or ``paced PIECES``: one every few milliseconds, with its time noted."""
    word, _, number = text_of(input.content).partition(" ")
    if word == "paced":
        delta = Emit("text_delta", {"message_id": f"{input.run_id}-1", "text": PIECE})
        parts: list[Part] = []
        for _ in range(int(number)):
            parts += [Wait(0.004), Do(lambda _: given.append(time.perf_counter())), delta]
        return parts
    kib = int(word or 1)
    return [Say(PIECE * 64 * kib, pieces=kib)]


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


# ---------------------------------------------------------------- how late live text is


Delays = tuple[float, float]


def late(root: Path, pieces: int, clients: int) -> Delays:
    """Seconds from a backend's piece of text to a client that has it: the median, and the 99th percentile."""

    async def main() -> list[float]:
        async with serving(root), connect(root) as client:
            session_id = await client.create_session()
            reading = [asyncio.ensure_future(times(root, session_id, pieces)) for _ in range(clients)]
            while (await client.status())["connections"] <= clients:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.05)
            await client.start_turn(session_id, f"paced {pieces}")
            return [delay for told in await asyncio.gather(*reading) for delay in delays(told)]

    given.clear()
    return _percentiles(asyncio.run(main()))


async def times(root: Path, session_id: str, pieces: int) -> list[float]:
    """When each piece was there."""
    told: list[float] = []
    async with connect(root) as client, await client.subscribe(session_id) as watch:
        async for frame in watch:
            if frame.delta is not None:
                told += [time.perf_counter()] * (len(frame.delta["text"]) // len(PIECE))
                if len(told) == pieces:
                    break
    return told


def late_in_process(root: Path, pieces: int) -> Delays:
    """The same for who iterates over the turn of a manager in the program itself."""

    async def main() -> list[float]:
        told: list[float] = []
        async with SessionManager(root, app=APP) as manager:
            session_id = await manager.create()
            async for event in manager.send(session_id, f"paced {pieces}"):
                if event.kind == "text_delta":
                    told.append(time.perf_counter())
        return delays(told)

    given.clear()
    return _percentiles(asyncio.run(main()))


def delays(told: list[float]) -> list[float]:
    return [there - gone for gone, there in zip(given, told, strict=True)]


def _percentiles(delays: list[float]) -> Delays:
    cuts = statistics.quantiles(delays, n=100)
    return cuts[49], cuts[98]


# ---------------------------------------------------------------- memory


def kept(root: Path, connections: int, watched: int) -> tuple[float, float, float]:
    """Bytes that a process keeps for a connection of a host, for a session that one of them watches, and for a
    connection to a server that does nothing; the other ends of the sockets are in the same process.
    """

    async def main() -> tuple[float, float, float]:
        async with serving(root), connect(root) as client:
            sessions = [await client.create_session() for _ in range(watched)]
            registration = endpoint.read_registration(root)
            assert registration is not None
            bare = await _bare(Path(registration.endpoint).with_name("bare"), connections)
            before = _held()
            raw = [await _greeted(registration.endpoint) for _ in range(connections)]
            idle = (_held() - before) / connections
            before = _held()
            for number, session_id in enumerate(sessions):
                asked = {"id": "o", "operation": "subscription.open", "input": {"session_id": session_id}}
                raw[number % connections].sendall(orjson.dumps({"kind": "request", **asked}) + b"\n")
                await _answered(raw[number % connections])
            watching = (_held() - before) / watched
            for each in raw:
                each.close()
            while (await client.status())["connections"] > 1:
                await asyncio.sleep(0.001)
            return idle, watching, bare

    tracemalloc.start()
    try:
        return asyncio.run(main())
    finally:
        tracemalloc.stop()


async def _greeted(path: str) -> socket.socket:
    raw = await _connected(path)
    who = {"id": "bench", "surface": "bench"}
    raw.sendall(orjson.dumps({"kind": "hello", "protocol": {"min": 1, "max": 1}, "client": who}) + b"\n")
    await _answered(raw)
    return raw


async def _connected(path: str) -> socket.socket:
    raw = socket.socket(socket.AF_UNIX)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, path)
    return raw


async def _answered(raw: socket.socket) -> None:
    await asyncio.get_running_loop().sock_recv(raw, 1 << 16)


async def _bare(path: Path, connections: int) -> float:
    server = await asyncio.get_running_loop().create_unix_server(asyncio.Protocol, path)
    async with server:
        before = _held()
        raw = [await _connected(str(path)) for _ in range(connections)]
        await asyncio.sleep(0.05)
        held = (_held() - before) / connections
        for each in raw:
            each.close()
        await asyncio.sleep(0.05)
    path.unlink()
    return held


def _held() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def measure(settings: Settings) -> Report:
    sessions, turns = settings.size(10_000, 20), settings.size(30, 2)
    kib, crowd, pieces = settings.size(5_120, 64), settings.size(50, 3), settings.size(300, 20)
    middles: dict[str, list[float]] = {"late one": [], "late crowd": [], "late process": []}
    memory: dict[str, list[float]] = {"connection": [], "watched": [], "bare": []}
    many, few, long, other = (settings.place / name for name in ("many", "few", "long", "other"))
    fill(FileStore(many), sessions)
    long_sessions(few, 8, 4)
    long_sessions(long, 8, settings.size(4_000, 8))
    until_ready(many)

    def tail(case: str, delays: Delays) -> float:
        middles[case].append(delays[0])
        return delays[1]

    def keeps() -> float:
        for case, held in zip(memory, kept(other / "kept", settings.size(200, 4), settings.size(40, 2)), strict=True):
            memory[case].append(held)
        return 0.0

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
            "late one": lambda: tail("late one", late(other / "late one", pieces, 1)),
            "late crowd": lambda: tail("late crowd", late(other / "late crowd", pieces, crowd)),
            "late process": lambda: tail("late process", late_in_process(other / "late process", pieces)),
            "kept": keeps,
        },
        settings.rounds,
    )

    def ms(case: str) -> str:
        return f"{1e3 * middle(figures, case):.1f} ms"

    def row(what: str, case: str, words: str, base: str, target: Target | None = None) -> Row:
        return Row(what, ms(case), f"{words}: {ms(base)}", ratio(figures, case, base), target or Target())

    def late_row(what: str, case: str, words: str, base: str) -> Row:
        ours, theirs = (f"{ms(each)} (p50 {1e3 * middle(middles, each):.1f})" for each in (case, base))
        return Row(what, ours, f"{words}: {theirs}", ratio(figures, case, base))

    def memory_row(what: str, case: str, words: str, base: str) -> Row:
        ours, theirs = (f"{middle(memory, each) / 1e3:.1f} KB" for each in (case, base))
        return Row(what, ours, f"{words}: {theirs}", ratio(memory, case, base))

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
        late_row("p99 of live text to one client", "late one", "by a manager in the program", "late process"),
        late_row(f"p99 of live text to {crowd} clients", "late crowd", "to one", "late one"),
        memory_row("memory of a connection that is idle", "connection", "a connection to asyncio alone", "bare"),
        memory_row("memory of a session that is watched", "watched", "a connection that is idle", "connection"),
    ]
    return Report("Host", rows, ["Clients run in the same process and the same event loop as the host."])


if __name__ == "__main__":
    run(__doc__, measure)
