"""All benchmarks, or those that are named, each in a process of its own, and one table of what they found.

    python benchmarks/run.py [--quick] [--rounds N] [--directory DIR] [NAME...]

Exit code 1 where a script failed; a target that is missed is told in the table and is no failure.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from _bench import Report, read, show

HERE = Path(__file__).parent
#: In the order of the table.
NAMES = (
    "append",
    "turns",
    "sessions",
    "continuations",
    "handoffs",
    "hosts",
    "imports",
    "fold",
    "load",
    "memory",
    "open",
    "list",
    "start",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that all of them run, measures nothing")
    parser.add_argument("--rounds", type=int, help="how often each case is measured")
    parser.add_argument("--directory", help="where files are written")
    options = parser.parse_args()
    for name in options.names:
        if name not in NAMES:
            parser.error(f"no benchmark is called {name!r}; there are {', '.join(NAMES)}")
    arguments = ["--quick"] * options.quick
    arguments += [f"--rounds={options.rounds}"] if options.rounds else []
    arguments += [f"--directory={options.directory}"] if options.directory else []
    load, processors = os.getloadavg()[0], os.cpu_count() or 1
    reports: list[Report] = []
    failed: list[str] = []
    for name in options.names or NAMES:
        print(f"measuring: {name}", file=sys.stderr)
        if (report := measured(name, arguments)) is None:
            failed.append(name)
        else:
            reports.append(report)
    rows = [row for report in reports for row in report.rows]
    notes = [f"{report.title}: {note}" for report in reports for note in report.notes]
    if load > processors / 2:
        notes.append(
            f"The machine was busy before this began (load {load:.1f} on {processors} processors), which falls on "
            "what waits for the disk or uses a second process most of all: run it again alone."
        )
    show(Report("Ratios to a baseline of the same run, medians of measurements that take turns", rows, notes))
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def measured(name: str, arguments: list[str]) -> Report | None:
    """What the script of that name found; None where it failed, which it has then told."""
    command = [sys.executable, str(HERE / f"{name}.py"), "--json", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return read(done.stdout) if done.returncode == 0 else None


if __name__ == "__main__":
    sys.exit(main())
