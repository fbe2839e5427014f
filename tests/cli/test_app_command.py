"""`maka app show`: what it tells, what it does not swallow, and one sentence for what is wrong."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.apps import WHOLE
from support.command import process

Run = Callable[..., Any]

SHOWN = {
    "app", "named_by", "backends", "handoff", "default_backend", "model", "permission_mode", "safety_inspector",
    "tools",
}  # fmt: skip


@pytest.fixture
def show(maka_: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Run]:
    """`maka app show` in a directory that holds the module `fake`; nothing of it stays imported."""
    monkeypatch.delenv("MAKA_APP", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "elsewhere" / "fake.py").write_text(WHOLE)
    yield lambda *words: maka_("app", "show", *words)
    sys.modules.pop("fake", None)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir(mode=0o700)
    path = root / "config.toml"
    path.write_text('[maka]\napp = "fake:app"\n')
    path.chmod(0o600)
    return path


def test_the_document(show: Run) -> None:
    ran = show("--app", "fake:app", "--json")
    assert (ran.code, ran.err) == (0, "")
    assert set(ran.json) == SHOWN
    assert ran.json == {
        "app": "fake:app",
        "named_by": "--app",
        "backends": ["main", "other"],
        "handoff": {"main": None, "other": None},
        "default_backend": "main",
        "model": "some-model",
        "permission_mode": "ask",
        "safety_inspector": False,
        "tools": [
            {
                "name": "command",
                "recovery": "never",
                "parallel_safe": False,
                "permissions": {"ask": "asks", "execute": "asks", "bypass": "runs"},
            },
            {
                "name": "write_file",
                "recovery": "reconcile",
                "parallel_safe": False,
                "permissions": {"ask": "asks", "execute": "depends", "bypass": "runs"},
            },
        ],
    }


def test_the_text(show: Run) -> None:
    ran = show("--app", "fake:app")
    assert (ran.code, ran.err) == (0, "")
    rows = {words[0]: words[1:] for row in ran.out.splitlines() if (words := row.split())}
    assert rows["app"] == ["fake:app"]
    assert rows["named"] == ["by", "--app"]
    assert rows["backends"] == ["main", "(default),", "other"]
    assert rows["model"] == ["some-model"]
    assert rows["command"] == ["never", "-", "asks", "asks", "runs"]
    assert rows["write_file"] == ["reconcile", "-", "asks", "asks", "if", "it", "leaves", "runs"]


def test_which_backends_can_hand_over_as_far_as_they_tell(show: Run, tmp_path: Path) -> None:
    more = (
        "from maka.runtime import ScriptedModel, loop_backend\n"
        "def loop(handoff):\n    return loop_backend(ScriptedModel([]), handoff=handoff)\n"
        'app = App(backends={"a": loop(True), "b": loop(False), "c": build}, default_backend="a")\n'
    )
    (tmp_path / "elsewhere" / "fake.py").write_text(WHOLE + more)
    assert show("--app", "fake:app", "--json").json["handoff"] == {"a": True, "b": False, "c": None}
    ran = show("--app", "fake:app")
    assert " ".join(ran.out.split("can hand over")[1].splitlines()[0].split()) == "a, c does not tell"


def test_who_named_it(show: Run, config: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert show("--json").json["named_by"] == str(config)
    monkeypatch.setenv("MAKA_APP", "fake:make")
    assert show("--json").json["named_by"] == "MAKA_APP"
    assert show("--json", "--app", "fake:app").json["named_by"] == "--app"
    monkeypatch.setenv("MAKA_APP", "")
    assert "no app is named" in show("--json", "--root", tmp_path / "other").err
    assert show("--json", "--root", config.parent).code == 0


def test_an_app_without_tools(show: Run, tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "fake.py").write_text(WHOLE.replace("[Command(), WriteFile()]", "()"))
    ran = show("--app", "fake:app")
    assert ran.code == 0
    assert ran.out.endswith("it has no tools\n")
    assert show("--app", "fake:app", "--json").json["tools"] == []


def test_what_the_module_prints_is_no_part_of_the_answer(show: Run, tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "fake.py").write_text(f"print('hello')\n{WHOLE}")
    ran = show("--app", "fake:app", "--json")
    assert (ran.code, ran.json["app"], ran.err) == (0, "fake:app", "hello\n")


def test_names_of_an_app_cannot_reach_the_terminal(show: Run, tmp_path: Path) -> None:
    text = WHOLE.replace('"other": build', '"\\x1b[2Jother\\u202e": build').replace('"some-model"', '"\\x1b[31m\\nm"')
    (tmp_path / "elsewhere" / "fake.py").write_text(text)
    ran = show("--app", "fake:app")
    assert ran.code == 0
    assert not {"\x1b", "\u202e"} & set(ran.out)
    assert "\\x1b[2Jother" in ran.out
    assert show("--app", "fake:app", "--json").json["backends"][1] == "\x1b[2Jother\u202e"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[maka]\napp = "fake', "line 2"),
        ("[maka]\napp = 5\n", "line 2"),
        ("maka = 5\n", "line 1"),
        ('[maka]\napp = "fake"\n', "is not `module:object`"),
        ('[maka]\napp = "fake:nothing"\n', "it has `App`"),
        ('[maka]\napp = "nowhere:app"\n', "cannot be found"),
        ('[maka]\napp = "\\u001b[2J:app"\n', "is not `module:object`"),
        ('[maka]\napp = "os:system"\n', "it takes arguments"),
        ('[maka]\napp = "os:getcwd"\n', "lacks `backends`"),
        ('[maka]\napp = "builtins:dict"\n', "lacks `backends`"),
        ('[maka]\napp = "json.is:nothing"\n', "cannot be found"),
        ("[maka]\n", "no app is named"),
        ("\0" * 1000, "line 1"),
        ("[" * 60_000, "is not valid TOML"),
        ("x" * 100_000, "longer than"),
    ],
)
def test_hostile_configurations_get_one_sentence(show: Run, config: Path, text: str, says: str) -> None:
    config.write_text(text)
    for flags in ([], ["--json"]):
        ran = show(*flags)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith("maka: ")
        assert ran.err.count("\n") == 1
        assert "\x1b" not in ran.err
        assert says in ran.err
        assert str(config) in ran.err


def test_a_configuration_that_others_may_change_runs_nothing(show: Run, config: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "fake.py").write_text("open('it-ran', 'w')")
    config.chmod(0o666)
    ran = show()
    assert (ran.code, ran.out) == (2, "")
    assert f"chmod go-w {config}" in ran.err
    assert not (tmp_path / "elsewhere" / "it-ran").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("raise ValueError('broken')", "fake.py:1"),
        ("import sys\nsys.exit(0)", "SystemExit"),
        ("1 +", "SyntaxError"),
        ("app = 5", "5 lacks `backends`, `default_backend`"),
    ],
)
def test_a_module_that_fails_is_one_sentence_and_debug_shows_the_rest(
    show: Run, tmp_path: Path, text: str, says: str
) -> None:
    (tmp_path / "elsewhere" / "fake.py").write_text(text)
    ran = show("--app", "fake:app")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    assert says in ran.err
    told = process("app", "show", "--app", "fake:app", "--debug", cwd=tmp_path / "elsewhere")
    assert told.code == 2
    assert "Traceback" in told.err
    assert told.err.splitlines()[-1] == ran.err.rstrip("\n")


@pytest.mark.parametrize("words", [["extra"], ["--app"], ["--jsn"]])
def test_wrong_usage(show: Run, words: list[str]) -> None:
    ran = show(*words)
    assert (ran.code, ran.out) == (2, "")
    assert "--help" in ran.err


def test_help_and_completion(show: Run) -> None:
    ran = show("--help")
    assert ran.code == 0
    for word in ("--app", "--root", "--json", "MAKA_APP", "Exit code"):
        assert word in ran.out
    for words, position, expected in (("maka a", "1", ["app"]), ("maka app s", "2", ["show"])):
        ran = process(env={"_MAKA_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": position})
        assert ran.out.split() == expected


def test_other_commands_load_nothing_of_it(tmp_path: Path) -> None:
    program = (
        "import json, sys\nfrom maka.cli.app import run\n"
        "assert run(['journal', 'list', '--json']) == 0\n"
        "print(json.dumps([name for name in sys.modules if name.startswith('maka.runtime') or name == 'tomllib']))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert json.loads(ran.stdout.splitlines()[-1]) == []
