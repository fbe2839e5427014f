"""Fold and verify a journal of 200 MB (what `inspect` does) against `orjson.loads` of its lines, nothing kept."""

from functools import partial
from pathlib import Path

import orjson
from _bench import Report, Row, Settings, Target, interleaved, middle, ratio, run, timed
from _journal import make

import maka
from maka.journal.reader import open_source
from maka.journal.scan import scan


def parse(path: Path) -> None:
    loads = orjson.loads
    with path.open("rb", buffering=1 << 20) as file:
        for line in file:
            loads(line)


def verify(path: Path) -> None:
    with open_source(path) as source:
        scan(source, lambda: lambda event: None)


def measure(settings: Settings) -> Report:
    made = make(settings.place / "journal.jsonl", size=settings.size(200_000_000, 500_000))
    works = {"parse": parse, "inspect": maka.inspect, "verify": verify}
    figures = interleaved(
        {name: partial(timed, partial(work, made.path)) for name, work in works.items()}, settings.rounds
    )
    rows = [
        Row(
            what,
            f"{middle(figures, case):.2f} s",
            f"orjson.loads of each line: {middle(figures, 'parse'):.2f} s",
            ratio(figures, case, "parse"),
            target,
        )
        for what, case, target in (
            (f"fold and verify {made.bytes / 1e6:.0f} MB (inspect)", "inspect", Target(high=2.2)),
            ("verify alone, nothing folded", "verify", Target()),
        )
    ]
    return Report("Fold and verify", rows, [f"{made}."])


if __name__ == "__main__":
    run(__doc__, measure)
