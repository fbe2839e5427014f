"""The document of the configuration is true: its example is an app, its tables are the code's."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

import maka
from maka.runtime.app import App, find_app
from maka.runtime.permissions import MODES, stance
from support import documents
from support.command import process
from support.documents import CONFIGURATION

#: Where the code is, also where the package is installed.
CODE = Path(maka.__file__).parent


def test_attributes_are_those_of_an_app() -> None:
    rows = documents.table(CONFIGURATION, "attribute", "default", "what it is")
    described = {row[0].strip("`"): row[1].strip("`") for row in rows}
    assert described == {
        field.name: "required" if field.default is attrs.NOTHING else repr(field.default).replace("'", '"')
        for field in attrs.fields(App)
    }


def test_modes_do_what_the_table_says() -> None:
    rows = documents.table(CONFIGURATION, "mode", "a `read_only` tool", "any other tool", "a tool with `leaves`")
    assert [row[0].strip("`") for row in rows] == list(MODES)
    words = {"runs": "runs", "asks": "asks", "depends": "asks for the calls that leave"}
    reads: Any = SimpleNamespace(recovery="read_only")
    changes: Any = SimpleNamespace(recovery="never")
    for mode, *cells in ([row[0].strip("`"), *row[1:]] for row in rows):
        assert cells[:2] == [words[stance(mode, reads)], words[stance(mode, changes)]]
        for tool, without in ((reads, cells[0]), (changes, cells[1])):
            tells: Any = SimpleNamespace(recovery=tool.recovery, leaves=lambda arguments, cwd: False)
            assert words[stance(mode, tells)] == (without if cells[2] == "as it would without" else cells[2])


def test_the_configuration_names_the_example(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(documents.block(CONFIGURATION, "toml"))
    (tmp_path / "config.toml").chmod(0o600)
    tmp_path.chmod(0o700)
    found = find_app(None, tmp_path, {})
    assert found is not None
    assert found.name == "my_app:app"
    for row in documents.table(CONFIGURATION, "place", "example"):
        assert found.name in row[1]


def test_the_example_is_an_app(tmp_path: Path) -> None:
    section = next(part for part in documents.sections(CONFIGURATION) if part.title == "An app")
    (_, code), (_, program), (_, others) = section.python
    (tmp_path / "my_app.py").write_text(code)
    (tmp_path / "program.py").write_text(f"from my_app import app\n{program}\n{others}")
    maka_, *words = documents.block(CONFIGURATION, "sh").split()
    assert maka_ == "maka"
    ran = process(*words, "--json", cwd=tmp_path)
    assert (ran.code, ran.err) == (0, "")
    assert ran.json["default_backend"] == "scripted"
    assert [tool["name"] for tool in ran.json["tools"]] == ["command", "write_file"]
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env={**os.environ, "MAKA_HOME": str(tmp_path / "root")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    *_, complete, refusal = done.stdout.splitlines()
    assert complete.startswith("complete {'stop_reason': 'end_turn'")
    assert "is an object of type ScriptedModel, a model; wrap it: " in refusal
    assert (tmp_path / "note.txt").read_text() == "40 chairs\n"


def test_every_variable_that_the_code_reads_is_told() -> None:
    told = {row[0].strip("`") for row in documents.table(CONFIGURATION, "variable", "what it does")}
    read = {
        name
        for part in ("journal", "repair", "runtime", "cli")
        for path in (CODE / part).rglob("*.py")
        for name in re.findall(r'"((?:MAKA|OPENAI|XDG)_[A-Z_]+|NO_COLOR|TERM)"', path.read_text(encoding="utf-8"))
    }
    assert told == read


@pytest.mark.parametrize("name", ["MAKA_HOME", "MAKA_APP"])
def test_an_empty_variable_is_none(tmp_path: Path, name: str) -> None:
    ran = process("app", "show", env={"MAKA_APP": "", "MAKA_HOME": str(tmp_path), "HOME": str(tmp_path), name: ""})
    assert ran.code == 2
    assert "no app is named" in ran.err
    assert str(tmp_path) in ran.err
