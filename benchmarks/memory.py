"""The memory that it takes to inspect a journal of 1 GB: the peak of a whole process with those that it starts, less
the peak of one that only imports the same.

Where a process that was started is concerned the system counts what it shared with its parent before it began, so the
figure is rather too high.
"""

import subprocess
import sys
from functools import partial
from pathlib import Path

from _bench import Report, Row, Settings, Target, interleaved, middle, run
from _journal import make

IMPORT = "import sys, maka.repair.session, maka.journal.proof\n"
INSPECT = "assert maka.repair.session.inspect(sys.argv[1]).verdict == 'healthy'\n"
#: The peak of this process, in KiB, and of its children. Linux counts into ru_maxrss what the process was before exec.
PEAK = """
import resource
kib = 1024 if sys.platform == "darwin" else 1
own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // kib
if sys.platform == "linux":
    own = int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0])
print(own + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // kib)
"""


def peak(program: str, path: Path) -> float:
    """In MB."""
    command = [sys.executable, "-c", program, str(path)]
    return int(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout) * 1024 / 1e6


def measure(settings: Settings) -> Report:
    made = make(settings.place / "journal.jsonl", size=settings.size(1_000_000_000, 500_000))
    figures = interleaved(
        {
            "imports": partial(peak, IMPORT + PEAK, made.path),
            "inspect": partial(peak, IMPORT + INSPECT + PEAK, made.path),
        },
        min(settings.rounds, 5),
    )
    row = Row(
        f"memory to inspect {made.bytes / 1e6:,.0f} MB",
        f"{middle(figures, 'inspect'):.0f} MB",
        f"the same imports alone: {middle(figures, 'imports'):.0f} MB",
        middle(figures, "inspect") - middle(figures, "imports"),
        Target(high=64, unit="MB more"),
    )
    return Report("Memory", [row], [f"{made}."])


if __name__ == "__main__":
    run(__doc__, measure)
