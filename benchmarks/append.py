"""How fast events become durable, against what the same disk does without a journal.

`python benchmarks/append.py [--directory DIR] [--rounds N]` prints one table. Each figure is the median of ratios of
measurements made in turns; each event is a line of about 1 KB.
"""

import argparse
import asyncio
import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from _bench import interleaved, ratio, table

from maka.journal.events import Draft
from maka.journal.store import FileStore
from maka.journal.writer import JournalWriter

LINE = b"x" * 1023 + b"\n"
EVENT = Draft("session/note", {"kind": "bench", "text": "x" * 860})
SINGLE, ROUNDS_OF_64, EACH_OF_16 = 400, 40, 60


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


def sqlite(place: Path) -> Callable[[], float]:
    """64 rows for each commit, write-ahead log, synchronous=FULL."""
    connection = sqlite3.connect(place / "rows.db", isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE events (seq INTEGER PRIMARY KEY, data BLOB)")

    def work() -> None:
        for _ in range(ROUNDS_OF_64):
            connection.execute("BEGIN")
            for _ in range(64):
                connection.execute("INSERT INTO events (data) VALUES (?)", (LINE,))
            connection.execute("COMMIT")

    return lambda: rate(64 * ROUNDS_OF_64, work)


def one_by_one(writer: JournalWriter, count: int) -> Callable[[], None]:
    def work() -> None:
        for _ in range(count):
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", help="where to write (default: the system's place for temporary files)")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        place = Path(name)
        store = FileStore(place / "root")

        def grow(file: str) -> int:
            return os.open(place / file, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

        one, shared = store.create(header("one")), store.create(header("shared"))
        many = [store.create(header(f"many-{number}")) for number in range(16)]
        plain = bare(grow("plain"), SINGLE)
        files = [bare(grow(f"plain-{number}"), EACH_OF_16) for number in range(16)]
        threads = [one_by_one(shared, ROUNDS_OF_64)] * 64
        figures = interleaved(
            {
                "plain": lambda: rate(SINGLE, plain),
                "one": lambda: rate(SINGLE, one_by_one(one, SINGLE)),
                "sqlite": sqlite(place),
                "64 tasks": lambda: rate(64 * ROUNDS_OF_64, tasks([shared] * 64, ROUNDS_OF_64)),
                "64 threads": lambda: rate(64 * ROUNDS_OF_64, lambda: at_once(threads)),
                "16 files": lambda: rate(16 * EACH_OF_16, lambda: at_once(files)),
                "16 sessions": lambda: rate(16 * EACH_OF_16, tasks(many, EACH_OF_16)),
            },
            options.rounds,
        )
        for writer in (one, shared, *many):
            writer.close()
    rows = [
        (what, against, f"{ratio(figures, case, baseline):.2f} ×", aim)
        for what, case, against, baseline, aim in (
            ("one event for each sync", "one", "write + fdatasync on a growing file", "plain", "≥ 0.85 ×"),
            ("64 tasks append to one session", "64 tasks", "SQLite WAL FULL, 64 a commit", "sqlite", "≥ 1.00 ×"),
            (
                "64 threads append to one session",
                "64 threads",
                "SQLite WAL FULL, 64 a commit",
                "sqlite",
                "≥ 1.00 ×",
            ),
            ("16 sessions from asyncio", "16 sessions", "one thread for each file", "16 files", "≥ 0.50 ×"),
        )
    ]
    table("Durable append, events of 1 KB", ("what", "baseline", "found", "aim"), rows)


if __name__ == "__main__":
    main()
