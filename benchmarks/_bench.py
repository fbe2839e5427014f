"""What every benchmark does: runs that take turns, medians, ratios to a baseline of the same run, one table."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence


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
