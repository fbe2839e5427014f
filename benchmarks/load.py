"""Load a session of 100,000 events and walk them, typed, against `orjson.loads` of its lines into kept dicts."""

import gc
from functools import partial
from pathlib import Path

import orjson
from _bench import Report, Row, Settings, Target, interleaved, middle, ratio, run, timed
from _journal import make

import maka


def keep(path: Path) -> None:
    loads = orjson.loads
    gc.disable()
    try:
        with path.open("rb", buffering=1 << 20) as file:
            kept = [loads(line) for line in file]
        del kept
    finally:
        gc.enable()


def walk(path: Path) -> None:
    for event in maka.load(path).events:
        _ = event.payload


def measure(settings: Settings) -> Report:
    made = make(settings.place / "journal.jsonl", events=settings.size(100_000, 500))
    works = {"keep": keep, "walk": walk}
    figures = interleaved(
        {name: partial(timed, partial(work, made.path)) for name, work in works.items()}, settings.rounds
    )
    row = Row(
        f"load {made.lines:,} events and walk them, typed",
        f"{middle(figures, 'walk'):.2f} s",
        f"orjson.loads, kept, collector off: {middle(figures, 'keep'):.2f} s",
        ratio(figures, "walk", "keep"),
        Target(high=2.4),
    )
    return Report("Load and walk", [row], [f"{made}."])


if __name__ == "__main__":
    run(__doc__, measure)
