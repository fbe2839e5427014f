"""Reading a journal needs nothing but the format document: the writer's chain holds for code that knows no other."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import maka
from maka.journal.events import Draft
from maka.journal.store import FileStore
from support import chain, documents
from support.builder import Builder


def drafts(builder: Builder) -> list[Draft]:
    events = [json.loads(line) for line in builder.lines]
    return [Draft(event["type"], event["data"], event.get("ignorable", False)) for event in events]


@pytest.fixture
def written(tmp_path: Path) -> bytes:
    """A journal by the project's own writer: single events, batches, text of all kinds, a repair's closers."""
    root = tmp_path / "root"
    root.mkdir(mode=0o700)
    header, *events = drafts(Builder().plain_turn('grüß dich \u2028 \x7f 𝄞 \\ "').tool_turn())
    store = FileStore(root)
    with store.create(header) as writer:
        for event in events:
            writer.append(event)
        writer.flush()
        _, *more = drafts(Builder().plain_turn().tool_turn().start().step().says("", ["c9"]))
        writer.append_batch([Draft("session/note", {"kind": "one"}), Draft("session/note", {"kind": "two"})])
        for event in more[-5:]:
            writer.append(event)
        writer.flush()
    path = store.path("s1")
    assert maka.load(path).repaired_on_disk
    return path.read_bytes()


def test_the_writer_s_chain_holds_for_whoever_knows_the_format_alone(written: bytes) -> None:
    events = chain.check(written)
    assert [event["type"] for event in events[-4:]] == ["assistant/message", "tool/result", "step/end", "turn/end"]
    assert any("more" in event for event in events)
    assert documents.python_checker()(written) == events


def test_every_changed_byte_is_noticed(written: bytes) -> None:
    for at in range(0, len(written), 37):
        changed = bytearray(written)
        changed[at] ^= 1
        with pytest.raises((AssertionError, ValueError)):
            chain.check(bytes(changed))
        with pytest.raises(ValueError):
            documents.python_checker()(bytes(changed))


def test_every_missing_line_is_noticed(written: bytes) -> None:
    lines = written.splitlines(keepends=True)
    for gone in range(len(lines) - 1):
        with pytest.raises(AssertionError):
            chain.check(b"".join(lines[:gone] + lines[gone + 1 :]))


def test_the_check_is_twenty_lines_that_import_nothing_of_the_project(written: bytes, tmp_path: Path) -> None:
    for source in (Path(chain.__file__).read_text(encoding="utf-8"), documents.block(documents.FORMAT, "python")):
        tree = ast.parse(source)
        names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert names <= {"hashlib", "json", "sys", "typing"}
        assert len([line for line in source.splitlines() if line.strip()]) <= 20
    # As a person would run it: a program of its own, without the package's place on the path.
    (tmp_path / "check.py").write_text(documents.block(documents.FORMAT, "python"), encoding="utf-8")
    (tmp_path / "journal.jsonl").write_bytes(written)
    asked = subprocess.run(
        [sys.executable, "-I", "-S", "check.py", "journal.jsonl"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.split()[0] == str(written.count(b"\n"))
