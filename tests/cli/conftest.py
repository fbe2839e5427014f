"""Runs the command as a process of its own, the way people and scripts do."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

COMMAND = [sys.executable, "-m", "maka.cli"]


class Ran:
    """What a command answered: exit code, standard output and error as text."""

    def __init__(self, done: "subprocess.CompletedProcess[bytes]") -> None:
        self.code = done.returncode
        self.out = done.stdout.decode()
        self.err = done.stderr.decode()

    @property
    def json(self) -> Any:
        """The only document on standard output."""
        return json.loads(self.out)


@pytest.fixture
def maka_(tmp_path: Path) -> Callable[..., Ran]:
    """Runs `maka` with the given words, from an empty folder; no run may print a traceback."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    def run(*words: object, env: dict[str, str] | None = None, **options: Any) -> Ran:
        environ = {**os.environ, "MAKA_HOME": str(tmp_path / "root"), **(env or {})}
        arguments = [*COMMAND, *map(str, words)]
        ran = Ran(
            subprocess.run(
                arguments, capture_output=True, check=False, cwd=elsewhere, env=environ, timeout=60, **options
            )
        )
        assert "a defect of this program" not in ran.err
        if "--debug" not in words:
            assert "Traceback" not in ran.out + ran.err
        return ran

    return run
