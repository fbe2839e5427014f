"""`maka journal tail --follow` beside a writer, as a process of its own."""

import json
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from support.builder import Builder
from support.command import COMMAND

PATIENCE = 30.0


class Follow:
    """A running `tail --follow --json`."""

    def __init__(self, path: Path) -> None:
        command = [*COMMAND, "journal", "tail", str(path), "--follow", "--json", "-n", "1"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)

    def event(self) -> dict[str, Any]:
        """The next event that it prints."""
        value: dict[str, Any] = json.loads(self._line(self.process.stdout))
        return value

    def said(self) -> str:
        """The next sentence on standard error."""
        return self._line(self.process.stderr).decode()

    def _line(self, stream: IO[bytes] | None) -> bytes:
        assert stream is not None
        line = b""
        while not line.endswith(b"\n"):
            assert select.select([stream], [], [], PATIENCE)[0], "nothing came"
            byte = stream.read(1)
            assert byte, "it ended"
            line += byte
        return line


@pytest.fixture
def journal() -> Builder:
    return Builder().plain_turn()


@pytest.fixture
def follow(journal: Builder, tmp_path: Path) -> Iterator[Follow]:
    running = Follow(journal.write(tmp_path))
    try:
        assert running.event()["type"] == "run/settled"
        yield running
    finally:
        running.process.kill()
        running.process.wait()
        for stream in (running.process.stdout, running.process.stderr):
            assert stream is not None
            stream.close()


def test_new_events_come_as_they_are_written(journal: Builder, follow: Follow, tmp_path: Path) -> None:
    for kind in ("one", "two"):
        journal.add("session/note", {"kind": kind})
        journal.write(tmp_path)
        assert follow.event()["data"] == {"kind": kind}


def test_a_file_that_shrinks_is_taken_up_where_it_still_fits(journal: Builder, follow: Follow, tmp_path: Path) -> None:
    journal.write(tmp_path, b"".join(line + b"\n" for line in journal.lines[:-1]))
    assert "going on after event 7" in follow.said()
    journal.write(tmp_path)
    assert follow.event()["type"] == "run/settled"


def test_an_interrupt_ends_it_quietly(follow: Follow) -> None:
    follow.process.send_signal(signal.SIGINT)
    out, err = follow.process.communicate(timeout=PATIENCE)
    assert (follow.process.returncode, out, err.strip()) == (130, b"", b"")


def test_it_ends_when_nobody_reads_any_more(journal: Builder, follow: Follow, tmp_path: Path) -> None:
    assert follow.process.stdout is not None
    follow.process.stdout.close()
    journal.add("session/note", {"kind": "hello"})
    journal.write(tmp_path)
    assert follow.process.wait(PATIENCE) == 0


def test_it_ends_when_nobody_reads_any_more_though_nothing_is_written(follow: Follow) -> None:
    assert follow.process.stdout is not None
    follow.process.stdout.close()
    assert follow.process.wait(PATIENCE) == 0
    assert follow.process.stderr is not None
    assert follow.process.stderr.read() == b""
