"""How fast events become durable, against what the same disk does without a journal. Each event is about 1 KB.

The baselines write the same bytes to files that grow as the journal's do. Those with 64 appenders have as many on both
sides: each hands over one event and waits until it is durable before it hands over the next. On the side of SQLite one
thread inserts what they hand over, always 64 rows for each commit.
"""

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from _bench import Report, Row, Settings, Target, interleaved, middle, ratio, run

from maka.journal.codec import ZERO, encode
from maka.journal.events import Draft
from maka.journal.store import FileStore
from maka.journal.writer import JournalWriter

EVENT = Draft("session/note", {"kind": "bench", "text": "x" * 890})
LINE = encode(EVENT, 1_000, 1_790_000_000_000, ZERO)[0] + b"\n"


def header(session_id: str) -> Draft:
    data = {"format": 1, "session_id": session_id, "created_by": {"name": "bench", "version": "0"}, "cwd": "/"}
    return Draft("session/header", data | {"backend": "none", "model": "none", "permission_mode": "ask"})


def rate(count: int, work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return count / (time.perf_counter() - start)


def at_once(works: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def bare(fd: int, count: int) -> Callable[[], None]:
    """A file that grows by a write and a sync for each line."""
    sync = getattr(os, "fdatasync", os.fsync)

    def work() -> None:
        for _ in range(count):
            os.write(fd, LINE)
            sync(fd)

    return work


def rows_of_64(file: Path) -> Callable[[], None]:
    """One commit of 64 rows; SQLite with a write-ahead log and synchronous=FULL. From one thread at a time."""
    connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE events (seq INTEGER PRIMARY KEY, data BLOB)")

    def commit() -> None:
        connection.execute("BEGIN")
        for _ in range(64):
            connection.execute("INSERT INTO events (data) VALUES (?)", (LINE,))
        connection.execute("COMMIT")

    return commit


def from_one(commit: Callable[[], None], commits: int) -> Callable[[], None]:
    def work() -> None:
        for _ in range(commits):
            commit()

    return work


def from_threads(commit: Callable[[], None], commits: int) -> Callable[[], None]:
    """64 threads that hand a row each to one that commits."""
    handed: SimpleQueue[threading.Lock] = SimpleQueue()

    def appender() -> None:
        durable = threading.Lock()
        durable.acquire()
        for _ in range(commits):
            handed.put(durable)
            durable.acquire()

    def committer() -> None:
        for _ in range(commits):
            waiting = [handed.get() for _ in range(64)]
            commit()
            for durable in waiting:
                durable.release()

    return partial(at_once, [committer, *[appender] * 64])


def from_tasks(commit: Callable[[], None], commits: int) -> Callable[[], None]:
    """64 tasks that hand over a row each; a thread commits while the loop goes on."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        waiting: list[asyncio.Future[None]] = []

        async def appender() -> None:
            for _ in range(commits):
                durable = loop.create_future()
                waiting.append(durable)
                if len(waiting) == 64:
                    batch = waiting.copy()
                    waiting.clear()
                    await loop.run_in_executor(thread, commit)
                    for future in batch:
                        future.set_result(None)
                await durable

        with ThreadPoolExecutor(1) as thread:
            await asyncio.gather(*(appender() for _ in range(64)))

    return lambda: asyncio.run(main())


def one_by_one(writer: JournalWriter, count: int) -> Callable[[], None]:
    def work() -> None:
        for _ in range(count):
            writer.append(EVENT)
            writer.flush()

    return work


def many_by_one(writer: JournalWriter, syncs: int) -> Callable[[], None]:
    def work() -> None:
        for _ in range(syncs):
            for _ in range(64):
                writer.append(EVENT)
            writer.flush()

    return work


async def durable(writer: JournalWriter, count: int) -> None:
    for _ in range(count):
        writer.append(EVENT)
        await writer.aflush()


def tasks(writers: list[JournalWriter], count: int) -> Callable[[], None]:
    async def main() -> None:
        await asyncio.gather(*(durable(writer, count) for writer in writers))

    return lambda: asyncio.run(main())


def measure(settings: Settings) -> Report:
    single, of_64, of_16 = (settings.size(full, 2) for full in (400, 40, 60))
    store = FileStore(settings.place / "root")
    one, shared = store.create(header("one")), store.create(header("shared"))
    many = [store.create(header(f"many-{number}")) for number in range(16)]

    def grow(file: str) -> int:
        return os.open(settings.place / file, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

    files = [bare(grow(f"plain-{number}"), of_16) for number in range(16)]
    cases: dict[str, tuple[int, Callable[[], object]]] = {
        "plain": (single, bare(grow("plain"), single)),
        "one": (single, one_by_one(one, single)),
        "rows": (64 * of_64, from_one(rows_of_64(settings.place / "one.db"), of_64)),
        "rows of threads": (64 * of_64, from_threads(rows_of_64(settings.place / "threads.db"), of_64)),
        "rows of tasks": (64 * of_64, from_tasks(rows_of_64(settings.place / "tasks.db"), of_64)),
        "one of 64": (64 * of_64, many_by_one(shared, of_64)),
        "threads": (64 * of_64, partial(at_once, [one_by_one(shared, of_64)] * 64)),
        "tasks": (64 * of_64, tasks([shared] * 64, of_64)),
        "files": (16 * of_16, partial(at_once, files)),
        "sessions": (16 * of_16, tasks(many, of_16)),
    }
    figures = interleaved({name: partial(rate, *case) for name, case in cases.items()}, settings.rounds)
    for writer in (one, shared, *many):
        writer.close()

    def speed(case: str) -> str:
        return f"{middle(figures, case):,.0f}/s"

    rows = [
        Row(what, speed(case), f"{against}: {speed(baseline)}", ratio(figures, case, baseline), Target(low=low))
        for what, case, against, baseline, low in (
            ("one event for each sync", "one", "write + fdatasync", "plain", 0.85),
            ("64 events for each sync", "one of 64", "SQLite, 64 a commit", "rows", 1.0),
            ("64 threads append to one session", "threads", "SQLite, 64 threads, 64 a commit", "rows of threads", 1.0),
            ("64 tasks append to one session", "tasks", "SQLite, 64 tasks, 64 a commit", "rows of tasks", 1.0),
            ("16 sessions from asyncio", "sessions", "one thread for each file", "files", 0.5),
        )
    ]
    alone = " and ".join(f"{ratio(figures, case, 'rows'):.2f} × for 64 {case}" for case in ("threads", "tasks"))
    notes = [
        f"Each event is a line of {len(LINE):,} bytes; each figure waits for its sync. SQLite: WAL, synchronous=FULL.",
        f"Against SQLite that one thread fills, with nobody to wait for it: {alone}.",
    ]
    return Report("Durable append", rows, notes)


if __name__ == "__main__":
    run(__doc__, measure)
