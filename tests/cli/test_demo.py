"""`maka demo`: works, tells the truth, leaves nothing behind."""

import io
import os
import subprocess
from pathlib import Path

import pytest

from maka.cli import demo
from maka.cli.console import Console
from support.command import process


def running(folder: Path) -> list[str]:
    """Command lines of processes that were started from the folder."""
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return [row for row in listed.splitlines() if str(folder) in row]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "temporary"
    place.mkdir()
    return place


def test_it_shows_what_it_promises(folder: Path) -> None:
    ran = process("demo", env={"TMPDIR": str(folder)})
    assert (ran.code, ran.err) == (0, "")
    told = ran.out.split("$ maka journal ")
    assert [part.split(" demo")[0] for part in told[1:]] == ["inspect", "repair", "inspect", "show"]
    assert "unknown_outcome" in told[1]
    assert "interrupted → healthy" in told[2]
    assert "healthy  nothing to repair" in told[3]
    for part in told[1:4]:
        assert "→ `maka session settle demo --call call-1 --ok`" in part
        assert "→ `maka session settle demo --call call-1 --error 'it did not happen'`" in part
    assert "Do not retry blindly." in told[4]
    assert "`maka session resume demo --app MODULE:OBJECT`" in told[4]
    assert list(folder.iterdir()) == []
    assert running(folder) == []


def test_a_tool_that_never_runs_is_a_failure_and_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_PATIENCE", 0.0)
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    assert demo.play(Console(out, err, os.environ)) == 1
    err.seek(0)
    assert "the tool did not run in time" in err.read()
    assert list(folder.iterdir()) == []
    assert running(folder) == []
