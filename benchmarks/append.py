"""How fast events become durable, against what the same disk does without a journal. Each event is about 1 KB."""

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from _bench import Report, Row, Settings, Target, interleaved, middle, ratio, run

from maka.journal.events import Draft
from maka.journal.store import FileStore
from maka.journal.writer import JournalWriter

LINE = b"x" * 1023 + b"\n"
EVENT = Draft("session/note", {"kind": "bench", "text": "x" * 860})


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


def rows_of_64(place: Path, commits: int) -> Callable[[], None]:
    """SQLite with a write-ahead log and synchronous=FULL, 64 rows for each commit."""
    connection = sqlite3.connect(place / "rows.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE events (seq INTEGER PRIMARY KEY, data BLOB)")

    def work() -> None:
        for _ in range(commits):
            connection.execute("BEGIN")
            for _ in range(64):
                connection.execute("INSERT INTO events (data) VALUES (?)", (LINE,))
            connection.execute("COMMIT")

    return work


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
        "sqlite": (64 * of_64, rows_of_64(settings.place, of_64)),
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
            ("64 events for each sync", "one of 64", "SQLite WAL FULL, 64 a commit", "sqlite", 1.0),
            ("64 threads append to one session", "threads", "SQLite WAL FULL, 64 a commit", "sqlite", 1.0),
            ("64 tasks append to one session", "tasks", "SQLite WAL FULL, 64 a commit", "sqlite", 1.0),
            ("16 sessions from asyncio", "sessions", "one thread for each file", "files", 0.5),
        )
    ]
    return Report("Durable append", rows, ["Each event is a line of about 1 KB; each figure waits for its sync."])


if __name__ == "__main__":
    run(__doc__, measure)
