"""List a root of 10,000 sessions, against reading 10,000 headers and tails with bare `os.pread`.

The sessions have one turn and were closed cleanly, so each has a snapshot. The listing is measured with the snapshots
and without them: then it reads the headers and the last 64 KiB, as the baseline does.
"""

import os
from pathlib import Path

from _bench import Report, Row, Settings, Target, interleaved, middle, ratio, run, timed
from turns import bare_turn

from maka.journal.events import Draft
from maka.journal.listing import HEAD, TAIL
from maka.journal.reader import JOURNAL
from maka.journal.store import SESSIONS, FileStore


def fill(store: FileStore, sessions: int) -> int:
    """Make the sessions; returns the bytes of one."""
    size = 0
    for number in range(sessions):
        data = {"format": 1, "session_id": f"s{number:05}", "created_by": {"name": "bench", "version": "0"}, "cwd": "/"}
        data |= {"backend": "loop", "model": "m", "permission_mode": "ask", "name": f"What to do about {number}"}
        drafts = [draft for group in bare_turn(1) for draft in group]
        with store.create(Draft("session/header", data), drafts) as writer:
            size = writer.head.offset
    return size


def without_snapshots(root: Path, other: Path) -> FileStore:
    """A root with the same journals and nothing else."""
    for directory in (root / SESSIONS).iterdir():
        target = other / SESSIONS / directory.name
        target.mkdir(parents=True)
        os.link(directory / JOURNAL, target / JOURNAL)
    return FileStore(other)


def ends(root: Path) -> None:
    """The least that a listing has to read: each file's first 4 KiB and its last 64."""
    place = os.path.join(root, SESSIONS)
    for name in os.listdir(place):
        fd = os.open(f"{place}/{name}/{JOURNAL}", os.O_RDONLY)
        size = os.fstat(fd).st_size
        os.pread(fd, HEAD, 0)
        os.pread(fd, TAIL, max(0, size - TAIL))
        os.close(fd)


def measure(settings: Settings) -> Report:
    sessions = settings.size(10_000, 20)
    store = FileStore(settings.place / "root")
    size = fill(store, sessions)
    bare = without_snapshots(store.root, settings.place / "bare")
    assert [row["turns"] for row in store.list()] == [row["turns"] for row in bare.list()] == [1] * sessions
    figures = interleaved(
        {
            "ends": lambda: timed(lambda: ends(store.root)),
            "snapshots": lambda: timed(store.list),
            "none": lambda: timed(bare.list),
        },
        settings.rounds,
    )

    def per_session(case: str) -> str:
        return f"{1e6 * middle(figures, case) / sessions:.0f} µs each"

    rows = [
        Row(what, per_session(case), f"bare os.pread: {per_session('ends')}", ratio(figures, case, "ends"), target)
        for what, case, target in (
            (f"list {sessions:,} sessions, closed cleanly", "snapshots", Target(high=3)),
            (f"list {sessions:,} sessions without snapshots", "none", Target()),
        )
    ]
    return Report("Listing", rows, [f"Each journal has {size:,} bytes; all are in the page cache."])


if __name__ == "__main__":
    run(__doc__, measure)
