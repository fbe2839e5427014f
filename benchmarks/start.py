"""`maka journal inspect` of a small journal, whole process, against a typer app with one empty command."""

import os
import subprocess
import sys
from functools import partial

from _bench import Report, Row, Settings, Target, interleaved, middle, ratio, run, timed

from maka.journal.events import Draft, SessionHeader
from maka.journal.store import FileStore

EMPTY = """
import typer
app = typer.Typer()

@app.command()
def nothing() -> None:
    pass

app()
"""


def process(*arguments: str) -> None:
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True, env=environment)


def measure(settings: Settings) -> Report:
    empty, root = settings.place / "empty.py", settings.place / "root"
    empty.write_text(EMPTY)
    header = SessionHeader(
        format=1,
        session_id="small",
        created_by={"name": "maka", "version": "0"},
        cwd=str(settings.place),
        backend="none",
        model="none",
        permission_mode="ask",
    )
    FileStore(root).create(header, [Draft("session/note", {"kind": "hello"})]).close()
    commands = {
        "typer": [str(empty)],
        "version": ["-m", "maka.cli", "--version"],
        "inspect": ["-m", "maka.cli", "journal", "inspect", "small", "--root", str(root)],
    }
    figures = interleaved(
        {name: partial(timed, partial(process, *command)) for name, command in commands.items()},
        settings.size(3 * settings.rounds, settings.rounds),
    )
    rows = [
        Row(
            what,
            f"{1000 * middle(figures, case):.0f} ms",
            f"an empty typer app: {1000 * middle(figures, 'typer'):.0f} ms",
            ratio(figures, case, "typer"),
            target,
        )
        for what, case, target in (
            ("process: maka journal inspect", "inspect", Target(high=1.4)),
            ("process: maka --version", "version", Target()),
        )
    ]
    return Report("Process start", rows)


if __name__ == "__main__":
    run(__doc__, measure)
