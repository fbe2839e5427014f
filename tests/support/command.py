"""Runs the command: in this process, which is fast, or as one of its own, the way people and scripts do."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from maka.cli.app import run

COMMAND = [sys.executable, "-m", "maka.cli"]


@attrs.frozen
class Ran:
    """What a command answered: exit code, standard output and standard error."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The only document on standard output."""
        return json.loads(self.out)

    def checked(self) -> "Ran":
        """Itself, if it shows neither a traceback nor an error that nobody foresaw."""
        assert "a defect of this program" not in self.err, self.err
        assert "Traceback" not in self.out + self.err, self.err
        return self


def here(*words: object) -> Ran:
    """Run `maka` in this process."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = out, err
    try:
        code = run([str(word) for word in words])
    finally:
        sys.stdout, sys.stderr = before
    shown = []
    for stream in (out, err):
        stream.flush()
        stream.seek(0)
        shown.append(stream.buffer.read().decode())
    return Ran(code, *shown)


def process(*words: object, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Ran:
    """Run `maka` as a process of its own."""
    command = [*COMMAND, *map(str, words)]
    done = subprocess.run(
        command, capture_output=True, check=False, cwd=cwd, env={**os.environ, **(env or {})}, timeout=60
    )
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())
