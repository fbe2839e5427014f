"""Import transcripts of other tools: 1,000 files at once, and one long one, against the slower of hashing and parsing
the same bytes. The memory of the long one is that of a process of its own.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path

import orjson
from _bench import Report, Row, Settings, Target, interleaved, middle, ratio, run, timed

IMPORT = (
    "import resource, sys; from maka.cli.app import main\n"
    "if __name__ == '__main__':\n"
    "    try:\n        main()\n"
    "    finally:\n"
    "        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
    "        print('peak', own, file=sys.stderr)\n"
)


def lines(session: int, turns: int) -> Iterator[bytes]:
    """A transcript in the manner of Claude Code: prompts, calls with results of a few KB, answers."""
    base = {"isSidechain": False, "sessionId": f"0a0a0a0a-0000-4000-8000-{session:012}", "cwd": "/w"}
    parent: str | None = None

    def line(type_: str, uuid: str, message: object) -> bytes:
        nonlocal parent
        value = {"type": type_, "uuid": uuid, "parentUuid": parent, "timestamp": "2026-02-01T10:00:00.000Z"}
        parent = uuid
        return json.dumps({**value, **base, "message": message}).encode() + b"\n"

    def answer(turn: int, response: int, block: object) -> bytes:
        usage = {"input_tokens": 10, "output_tokens": 5}
        message = {"id": f"r{turn}-{response}", "role": "assistant", "model": "m", "content": [block], "usage": usage}
        return line("assistant", f"a{turn}-{response}", message)

    for turn in range(turns):
        yield line("user", f"u{turn}", {"role": "user", "content": f"look at file {turn}"})
        for call in range(4):
            name = f"c{turn}-{call}"
            yield answer(turn, call, {"type": "tool_use", "id": name, "name": "Read", "input": {"path": f"f{call}"}})
            result = {"type": "tool_result", "tool_use_id": name, "content": "some text of a file. " * 100}
            yield line("user", f"t{turn}-{call}", {"role": "user", "content": [result]})
        yield answer(turn, 9, {"type": "text", "text": "it is there. " * 40})


def write(path: Path, session: int, turns: int) -> int:
    with path.open("wb") as file:
        return sum(map(file.write, lines(session, turns)))


def hashed(paths: list[Path]) -> None:
    for path in paths:
        sha256(path.read_bytes()).hexdigest()


def parsed(paths: list[Path]) -> None:
    for path in paths:
        with path.open("rb") as file:
            for line in file:
                orjson.loads(line)


def imported(place: Path, root: Path) -> int:
    """Into a new root; gives the peak of the process's memory in MiB."""
    shutil.rmtree(root, ignore_errors=True)
    script = root.with_suffix(".py")
    script.write_text(IMPORT)
    words = [sys.executable, str(script), "journal", "import", str(place), "--root", str(root)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return int(done.stderr.split()[-1]) // 1024


def measure(settings: Settings) -> Report:
    many = settings.place / "many"
    many.mkdir()
    count = settings.size(1_000, 20)
    size = sum(write(many / f"{number:04}.jsonl", number, 3) for number in range(count))
    long = settings.place / "long.jsonl"
    length = write(long, 1_000_000, settings.size(12_000, 50))
    rows = []
    peaks: list[int] = []
    for what, place, bytes_ in (
        (f"import {count:,} files of {size / count / 1024:.0f} KiB", many, size),
        (f"import one file of {length / 2**20:,.0f} MiB", long, length),
    ):
        paths = sorted(many.iterdir()) if place is many else [place]
        works = {
            "hash": partial(hashed, paths),
            "parse": partial(parsed, paths),
            "import": lambda place=place: peaks.append(imported(place, settings.place / "root")),
        }
        figures = interleaved({name: partial(timed, work) for name, work in works.items()}, min(settings.rounds, 3))
        slower = max(("hash", "parse"), key=lambda name: middle(figures, name))
        rate = bytes_ / 2**20
        rows.append(
            Row(
                what,
                f"{middle(figures, 'import'):.1f} s, {rate / middle(figures, 'import'):.0f} MiB/s",
                f"{slower} alone: {rate / middle(figures, slower):.0f} MiB/s",
                ratio(figures, "import", slower),
                Target(),
            )
        )
    note = f"The import of the long file took {max(peaks[-3:])} MiB of memory at most."
    return Report("Imports", rows, [note])


if __name__ == "__main__":
    run(__doc__, measure)
