"""`maka journal inspect` of a small journal, whole process, against a typer app with one empty command."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from _bench import interleaved, ratio, table, timed

from maka.journal.events import Draft, SessionHeader
from maka.journal.store import FileStore

ROUNDS = 25
EMPTY = """
import typer
app = typer.Typer()

@app.command()
def nothing() -> None:
    pass

app()
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder) / "empty.py"
        empty.write_text(EMPTY)
        root = Path(folder) / "root"
        root.mkdir(mode=0o700)
        header = SessionHeader(
            format=1,
            session_id="small",
            created_by={"name": "maka", "version": "0"},
            cwd=folder,
            backend="none",
            model="none",
            permission_mode="ask",
        )
        FileStore(root).create(header, [Draft("session/note", {"kind": "hello"})]).close()
        cases = {
            "typer app with one empty command": [sys.executable, str(empty)],
            "maka --version": [sys.executable, "-m", "maka.cli", "--version"],
            "maka journal inspect": [
                sys.executable,
                "-m",
                "maka.cli",
                "journal",
                "inspect",
                "small",
                "--root",
                str(root),
            ],
        }
        baseline = next(iter(cases))
        figures = interleaved(
            {name: lambda command=command: timed(lambda: run(command)) for name, command in cases.items()}, ROUNDS
        )
        rows = [
            (
                name,
                f"{min(figures[name]) * 1000:.0f} ms",
                f"{ratio(figures, name, baseline):.2f} ×",
                "≤ 1.40 ×" if "inspect" in name else "",
            )
            for name in cases
        ]
        table("Process start", ("whole process", "best", "to the baseline", "aim"), rows)


def run(command: list[str]) -> None:
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""})


if __name__ == "__main__":
    main()
