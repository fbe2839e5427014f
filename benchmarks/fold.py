"""Fold and verify a journal (what `inspect` does) against `orjson.loads` of its lines, nothing kept.

Usage: python benchmarks/fold.py [MEGABYTES]
"""

import sys
import tempfile
from pathlib import Path

import orjson
from _bench import interleaved, ratio, table, timed
from _journal import make

import maka
from maka.journal.reader import open_source
from maka.journal.scan import scan


def main(megabytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = make(Path(folder) / "journal.jsonl", size=megabytes * 1_000_000)
        baseline = "orjson.loads of each line"
        cases = {
            baseline: lambda: parse(made.path),
            "maka.inspect": lambda: maka.inspect(made.path),
            "verify alone (nothing folded)": lambda: verify(made.path),
        }
        aims = {"maka.inspect": "≤ 2.20 ×"}
        figures = interleaved({name: lambda run=run: timed(run) for name, run in cases.items()}, 7)
        rows = [
            (name, f"{min(figures[name]):.2f} s", f"{ratio(figures, name, baseline):.2f} ×", aims.get(name, ""))
            for name in cases
        ]
        table(f"Fold and verify\n{made}", ("", "best", "to the baseline", "aim"), rows)


def parse(path: Path) -> None:
    loads = orjson.loads
    with path.open("rb", buffering=1 << 20) as file:
        for line in file:
            loads(line)


def verify(path: Path) -> None:
    with open_source(path) as source:
        scan(source, lambda: lambda event: None)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
