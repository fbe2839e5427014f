"""Load a session and walk its typed events, against `orjson.loads` of its lines into dicts that are kept.

Usage: python benchmarks/load.py [EVENTS]
"""

import gc
import sys
import tempfile
from pathlib import Path

import orjson
from _bench import interleaved, ratio, table, timed
from _journal import make

import maka


def main(events: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = make(Path(folder) / "journal.jsonl", events=events)
        baseline = "orjson.loads of each line, kept, collector off"
        cases = {
            baseline: lambda: keep(made.path),
            "maka.load, then each event's payload": lambda: walk(made.path),
        }
        aims = {"maka.load, then each event's payload": "≤ 2.40 ×"}
        figures = interleaved({name: lambda run=run: timed(run) for name, run in cases.items()}, 9)
        rows = [
            (name, f"{min(figures[name]):.2f} s", f"{ratio(figures, name, baseline):.2f} ×", aims.get(name, ""))
            for name in cases
        ]
        table(f"Load and walk\n{made}", ("", "best", "to the baseline", "aim"), rows)


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


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
