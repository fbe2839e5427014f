"""Open a session of 100,000 events for writing, as a clean close left it, against the first open, which folds all.

Both open through the store and through `maka.open_session`, which also sees whether anything is to be repaired, and
close again without a word. The first open finds no snapshot; the second finds the one that the first has left.
"""

from functools import partial

from _bench import Report, Row, Settings, Target, interleaved, middle, ratio, run, timed
from _journal import make

import maka
from maka.journal.snapshot import SNAPSHOT
from maka.journal.store import FileStore


def measure(settings: Settings) -> Report:
    store = FileStore(settings.place / "root")
    path = store.path("bench")
    path.parent.mkdir(parents=True, mode=0o700)
    made = make(path, events=settings.size(100_000, 500))
    ways = {"FileStore.open": partial(store.open, "bench"), "maka.open_session": partial(maka.open_session, path)}

    def first(way: str) -> float:
        (path.parent / SNAPSHOT).unlink(missing_ok=True)
        return opened(way)

    def opened(way: str) -> float:
        writers = []
        seconds = timed(lambda: writers.append(ways[way]()))
        for writer in writers:
            writer.close()
        return seconds

    cases = {}
    for way in ways:
        cases[f"{way}, first"] = partial(first, way)
        cases[f"{way}, again"] = partial(opened, way)
    figures = interleaved(cases, settings.rounds)
    rows = [
        Row(
            f"open for writing: {way}",
            f"{1000 * middle(figures, f'{way}, again'):.1f} ms",
            f"the first open: {1000 * middle(figures, f'{way}, first'):.0f} ms",
            ratio(figures, f"{way}, again", f"{way}, first"),
            Target(high=0.05),
        )
        for way in ways
    ]
    size = (path.parent / SNAPSHOT).stat().st_size
    return Report("Open for writing, closed cleanly", rows, [f"{made}.", f"The snapshot has {size:,} bytes."])


if __name__ == "__main__":
    run(__doc__, measure)
