"""200 sessions in one process, all of them streaming: how long after a backend's yield its consumer has the event,
with and without one session whose disk takes 300 ms for each sync; what a session costs in memory; and how many turns
the kernel runs when all sessions run one at once.

The turns of all sessions run throughout; windows with the slow disk and without take turns, and count what the other
sessions' backends yield meanwhile: text 20 times a second, which is told at once, and a tool call each second, which is
told when it is on the disk. The same backends that hand their events to their consumers by an `asyncio.Queue` show what
the loop and the machine cost alone.

Turns are those of `turns.py`. They are held against the plain loop, one session after the other.
"""

import asyncio
import gc
import itertools
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from _bench import Report, Row, Settings, Target, middle, ratio, run
from turns import ASKED, Nothing, script

from maka.journal import files
from maka.journal.events import Draft
from maka.journal.store import FileStore
from maka.runtime.backends.base import BackendContext, BackendRegistry, SendInput
from maka.runtime.backends.loop import loop_backend
from maka.runtime.conversation import Conversation
from maka.runtime.journals import FileJournals, OpenSession
from maka.runtime.kernel.kernel import RuntimeKernel
from maka.runtime.kernel.stream import TurnStream
from maka.runtime.loop import Loop
from maka.runtime.scripted import ScriptedModel
from maka.runtime.session_events import SessionEvent

#: Deltas a second of each session, and how many of them come for each call.
PACE = 20
BETWEEN = 20
#: What a sync of the slow session takes, in seconds.
SLOW = 0.3
#: Seconds before and after a window in which nothing counts.
SETTLING = 0.4


# ---------------------------------------------------------------- what streams


class Window:
    """What is counted: of events yielded while it is open how long they took, in seconds, by kind."""

    def __init__(self) -> None:
        self.open = False
        self.closing = asyncio.Event()
        self.delays: dict[str, list[float]] = {}

    def stamp(self) -> str:
        """Text that says when it was yielded; one that does not count is empty but for a blank."""
        return f"{time.perf_counter_ns() if self.open else ''} "

    def came(self, kind: str, stamps: str) -> None:
        now = time.perf_counter_ns()
        for stamp in stamps.split():
            self.delays.setdefault(kind, []).append((now - int(stamp)) / 1e9)

    async def count(self, seconds: float) -> dict[str, list[float]]:
        """The delays of what is yielded in so many seconds, a moment from now; some of both kinds."""
        gc.collect()
        await asyncio.sleep(SETTLING)
        self.delays = {}
        self.open = True
        await asyncio.sleep(seconds)
        while len(self.delays) < 2:
            await asyncio.sleep(SETTLING)
        self.open = False
        await asyncio.sleep(SETTLING)
        return self.delays


class Streaming:
    """A backend that says something at a steady pace until all are to end. No two of them speak at the same moment:
    this one does so as the ``place``-th of ``count``.
    """

    def __init__(self, window: Window, place: int, count: int, between: int) -> None:
        self._window, self._place, self._count, self._between = window, place, count, between
        self._numbers = itertools.count(1)

    async def send(self, input: SendInput) -> AsyncIterator[SessionEvent]:
        async for kind, data in self.says():
            yield SessionEvent(kind, f"{input.turn_id}:{next(self._numbers)}", input.turn_id, 0, data)

    async def says(self) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        window, loop = self._window, asyncio.get_running_loop()
        due = loop.time() + self._place / self._count / PACE
        for number in itertools.count(self._place):
            await asyncio.sleep(due - loop.time())
            due += 1 / PACE
            if window.closing.is_set():
                break
            if number % self._between == 0:
                call = f"{number}:{window.stamp()}"
                yield "tool_start", {"call_id": call, "name": "look", "recovery": "read_only"}
                found = [{"kind": "text", "text": "found"}]
                yield "tool_result", {"call_id": call, "state": "ok", "content": found}
            yield "text_delta", {"message_id": f"message {number // self._between}", "text": window.stamp()}
        yield "complete", {"stop_reason": "end_turn"}

    async def stop(self, reason: str, mode: str) -> None:
        self._window.closing.set()

    async def dispose(self) -> None:
        self._window.closing.set()


def heard(window: Window, event: SessionEvent) -> None:
    if event.kind == "text_delta":
        window.came("text", event.data["text"])
    elif event.kind == "tool_start":
        window.came("call", event.data["call_id"].partition(":")[2])


async def read(stream: TurnStream, window: Window) -> None:
    async for event in stream:
        heard(window, event)


async def read_nothing(stream: TurnStream) -> None:
    async for _ in stream:
        pass


async def pass_on(backend: Streaming, window: Window) -> None:
    """What a kernel that does nothing would do."""
    queue: asyncio.Queue[SessionEvent] = asyncio.Queue()

    async def hand_over() -> None:
        async for kind, data in backend.says():
            queue.put_nowait(SessionEvent(kind, "", "", 0, data))

    handing = asyncio.ensure_future(hand_over())
    while (event := await queue.get()).kind != "complete":
        heard(window, event)
    await handing


# ---------------------------------------------------------------- where it is kept


class SlowDisk(files.RealFs):
    """Syncs that take ``seconds`` more."""

    seconds = 0.0

    def __init__(self) -> None:
        self.sync = self._sync

    def _sync(self, fd: int) -> None:
        time.sleep(self.seconds)
        files.sync(fd)


class Disks:
    """The sessions of a root, one of them on a disk of its own."""

    def __init__(self, root: Path, slow: str, disk: files.Fs) -> None:
        self._slow = slow
        self._own = FileJournals(root, fs=disk)
        self._others = FileJournals(root)

    def _of(self, session_id: str) -> FileJournals:
        return self._own if session_id == self._slow else self._others

    async def open(self, session_id: str, *, cause: str | None = None) -> OpenSession:
        return await self._of(session_id).open(session_id, cause=cause)

    async def conversation(self, session: OpenSession) -> Conversation:
        return await self._of(session.session_id).conversation(session)

    async def close(self, session: OpenSession) -> None:
        await self._of(session.session_id).close(session)


def made(root: Path, backend: str, count: int) -> list[str]:
    """New sessions, and their ids."""
    store = FileStore(root)
    names = [f"{backend}-{number}" for number in range(count)]
    for name in names:
        data = {"format": 1, "session_id": name, "created_by": {"name": "bench", "version": "0"}, "cwd": "/"}
        data |= {"backend": backend, "model": "m", "permission_mode": "bypass"}
        store.create(Draft("session/header", {**data, "tool_boundary": "t1_after_preflight_v1"})).close()
    return names


# ---------------------------------------------------------------- delays


def tail(delays: Sequence[float], part: float) -> float:
    ordered = sorted(delays)
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)]


def told(delays: Sequence[Sequence[float]]) -> str:
    """For people: medians over the windows, in milliseconds."""
    parts = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    figures = (f"{name} {statistics.median(tail(d, part) for d in delays) * 1e3:.2f}" for name, part in parts.items())
    return ", ".join(figures) + " ms"


def resident() -> int | None:
    """Bytes of memory that this process holds, where the system tells."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return None
    import resource

    return pages * resource.getpagesize()


Delays = dict[str, list[dict[str, list[float]]]]


async def streamed(root: Path, count: int, between: int, seconds: float, rounds: int) -> tuple[Delays, float | None]:
    """The delays of each window, by case; and the bytes that a session took."""
    names = made(root, "streaming", count)
    window, disk = Window(), SlowDisk()
    places = {name: place for place, name in enumerate(names)}
    slow = names[0]

    def build(context: BackendContext) -> Streaming:
        # The one on the slow disk waits for it all the time.
        place = places[context.session_id]
        return Streaming(window, place, count, 1 if context.session_id == slow else between)

    backends = BackendRegistry()
    backends.register("streaming", build)
    delays: Delays = {"with": [], "without": [], "bare": []}
    gc.collect()
    before = resident()
    async with RuntimeKernel(journals=Disks(root, slow, disk), backends=backends, keep_open=count) as kernel:
        streams = [kernel.start_turn(name, text=ASKED) for name in names]
        reading = [asyncio.ensure_future(read_nothing(streams[0]))]
        reading += [asyncio.ensure_future(read(stream, window)) for stream in streams[1:]]
        await asyncio.gather(*(stream.started() for stream in streams))
        await window.count(seconds)
        gc.collect()
        after = resident()
        for _ in range(rounds):
            for case, delay in (("without", 0.0), ("with", SLOW)):
                disk.seconds = delay
                delays[case].append(await window.count(seconds))
        disk.seconds = 0.0
        window.closing.set()
        await asyncio.gather(*reading)
    window.closing.clear()
    alone = [Streaming(window, place, count, between) for place in range(1, count)]
    passing = [asyncio.ensure_future(pass_on(backend, window)) for backend in alone]
    for _ in range(rounds):
        delays["bare"].append(await window.count(seconds))
    window.closing.set()
    await asyncio.gather(*passing)
    return delays, None if before is None or after is None else (after - before) / count


# ---------------------------------------------------------------- turns


async def turned(root: Path, count: int, rounds: int) -> dict[str, list[float]]:
    """Turns a second: of a kernel with all sessions at once, and of loops one after the other."""
    store, tools = FileStore(root), [Nothing()]
    names = made(root, "loop", count)
    models = {name: ScriptedModel(script(), repeat=True) for name in (*names, *made(root, "plain", count))}
    backends = BackendRegistry()
    backends.register("loop", lambda context: loop_backend(models[context.session_id], tools)(context))
    async with AsyncExitStack() as stack:
        kernel = RuntimeKernel(journals=FileJournals(root), backends=backends, keep_open=count)
        await stack.enter_async_context(kernel)
        loops = []
        for name in [name for name in models if name not in names]:
            writer = stack.enter_context(store.open(name))
            talk, place = Conversation(store.read(name)), writer.session_dir
            loops.append(Loop(journal=writer, conversation=talk, model=models[name], session_dir=place, tools=tools))

        async def one(name: str) -> None:
            stream = kernel.start_turn(name, text=ASKED)
            await read_nothing(stream)
            assert stream.reason == {"kind": "completed"}

        async def together() -> None:
            await asyncio.gather(*(one(name) for name in names))

        async def in_turn() -> None:
            for loop in loops:
                outcome = await loop.run_turn(ASKED)
                assert outcome.reason == {"kind": "completed"}

        async def rate(case: Callable[[], Awaitable[None]]) -> float:
            start = time.perf_counter()
            await case()
            taken = time.perf_counter() - start
            for model in models.values():
                # It keeps what it was asked, and each request holds the history.
                model.requests.clear()
            return count / taken

        figures: dict[str, list[float]] = {"kernel": [], "plain": []}
        for number in range(rounds + 1):
            for case, turns in (("kernel", together), ("plain", in_turn)):
                figure = await rate(turns)
                if number:
                    figures[case].append(figure)
    return figures


# ---------------------------------------------------------------- the table


def measure(settings: Settings) -> Report:
    count, between = settings.size(200, 4), settings.size(BETWEEN, 2)
    seconds = 0.3 if settings.quick else 3.0
    place = settings.place
    delays, memory = asyncio.run(streamed(place / "streaming", count, between, seconds, settings.rounds))
    figures = asyncio.run(turned(place / "turns", count, settings.rounds))
    rows = []
    for kind, what in (("text", "live text"), ("call", "a call, on the disk")):
        found = {case: [window[kind] for window in windows] for case, windows in delays.items()}
        tails = {case: [tail(window, 0.99) for window in windows] for case, windows in found.items()}
        shown = {case: told(windows) for case, windows in found.items()}
        many = f"{count} sessions: p99 of {what}"
        rows.append(
            Row(
                f"{many}, one sync takes {SLOW * 1e3:.0f} ms",
                shown["with"],
                f"without: {shown['without']}",
                ratio(tails, "with", "without"),
                Target(high=2),
            )
        )
        if kind == "text":
            against = f"an asyncio.Queue: {shown['bare']}"
            rows.append(Row(many, shown["without"], against, ratio(tails, "without", "bare")))
    if memory is not None:
        kilobytes = memory / 1e3
        what = f"{count} sessions: memory of one that streams"
        rows.append(Row(what, f"{kilobytes:.0f} KB", "none open", kilobytes, Target(unit="KB more")))
    rows.append(
        Row(
            f"{count} sessions: turns of the loop at once, by the kernel",
            f"{middle(figures, 'kernel'):,.1f}/s",
            f"the plain loop, one after the other: {middle(figures, 'plain'):,.1f}/s",
            ratio(figures, "kernel", "plain"),
        )
    )
    counted = statistics.median(sum(map(len, window.values())) for window in delays["with"])
    note = (
        "Delays are from a backend's yield to its consumer, of all sessions but the one whose sync is slow; "
        f"a window of {seconds:g} s counts about {counted:,.0f}."
    )
    return Report("Many sessions", rows, [note])


if __name__ == "__main__":
    run(__doc__, measure)
