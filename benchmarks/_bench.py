"""What every benchmark does: runs that take turns, medians, ratios to a baseline of the same run, one table.

A script ends with ``run(__doc__, measure)``: ``measure`` gets Settings and gives a Report. Every script then takes
``--quick`` (tiny sizes: does it run?), ``--rounds N``, ``--directory DIR`` and ``--json`` (the rows for a program).
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

HEAD = ("what", "ours", "baseline", "ratio", "target", "reached")


@dataclass(frozen=True)
class Settings:
    """``place`` is an empty directory that is removed afterwards; ``quick``: sizes that say nothing about speed."""

    place: Path
    quick: bool = False
    rounds: int = 7

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full


@dataclass(frozen=True)
class Target:
    """What a figure has to be: between ``low`` and ``high``, either of which may be open."""

    low: float | None = None
    high: float | None = None
    unit: str = "×"

    def __str__(self) -> str:
        if self.low is not None and self.high is not None:
            return f"{self.low:g} … {self.high:g} {self.unit}"
        if self.low is not None:
            return f"≥ {self.low:g} {self.unit}"
        return "" if self.high is None else f"≤ {self.high:g} {self.unit}"

    def reached(self, figure: float) -> bool:
        return (self.low is None or figure >= self.low) and (self.high is None or figure <= self.high)


@dataclass(frozen=True)
class Row:
    """One line of the table. ``ratio`` is in the unit of the target; ``ours`` and ``baseline`` are for people."""

    what: str
    ours: str
    baseline: str
    ratio: float
    target: Target = field(default_factory=Target)

    def cells(self) -> tuple[str, ...]:
        judged = self.target != Target(unit=self.target.unit)
        reached = ("yes" if self.target.reached(self.ratio) else "NO") if judged else ""
        digits = 3 if 0 < self.ratio < 0.1 else 2
        ratio = f"{self.ratio:.{digits}f} {self.target.unit}"
        return self.what, self.ours, self.baseline, ratio, str(self.target), reached


@dataclass(frozen=True)
class Report:
    """``notes`` say what a reader of the figures has to know: what was measured on what, what is missing."""

    title: str
    rows: Sequence[Row]
    notes: Sequence[str] = ()


def timed(action: Callable[[], object]) -> float:
    """Seconds that `action` takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def interleaved(cases: Mapping[str, Callable[[], float]], rounds: int = 7) -> dict[str, list[float]]:
    """Each case measured `rounds` times, all of them in turn, after one round that does not count.

    A case measures itself and gives one figure, so that it may prepare outside of what it measures.
    """
    for case in cases.values():
        case()
    figures: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            figures[name].append(case())
    return figures


def ratio(figures: Mapping[str, Sequence[float]], case: str, baseline: str) -> float:
    """The median of the ratios of the rounds: what disturbs one round disturbs both of its figures."""
    return statistics.median(a / b for a, b in zip(figures[case], figures[baseline], strict=True))


def middle(figures: Mapping[str, Sequence[float]], case: str) -> float:
    return statistics.median(figures[case])


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print one table; the first column to the left, the others to the right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    print(f"\n{title}")
    for row in (head, *rows):
        first, *others = (
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  " + "  ".join((first, *others)))


def show(report: Report) -> None:
    """Print a report for people."""
    table(report.title, HEAD, [row.cells() for row in report.rows])
    for note in report.notes:
        print(f"  {note}")


def run(doc: str | None, measure: Callable[[Settings], Report]) -> None:
    """The whole of a script: read the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs, measures nothing")
    parser.add_argument("--rounds", type=int, help="how often each case is measured (default: 7, or 1 with --quick)")
    parser.add_argument("--directory", help="where files are written (default: the system's place for temporary ones)")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON document")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        report = measure(Settings(Path(name), options.quick, options.rounds or (1 if options.quick else 7)))
    if options.quick:
        # Figures of such sizes reach and miss targets by chance.
        rows = [replace(row, target=Target(unit=row.target.unit)) for row in report.rows]
        report = replace(report, rows=rows)
    if options.json:
        print(json.dumps(asdict(report)))
    else:
        show(report)


def read(document: str) -> Report:
    """What ``--json`` printed. Raises ValueError and TypeError where it is something else."""
    given = json.loads(document)
    rows = [Row(**{**row, "target": Target(**row["target"])}) for row in given["rows"]]
    return Report(given["title"], rows, given["notes"])
