"""The document on sessions of other tools is true: its symptoms show what they say, its examples run as they stand."""

import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from maka.cli import exits
from maka.journal import legality
from maka.journal.foreign import reading
from maka.journal.foreign.findings import CODES
from support import command, documents, foreign_symptoms
from support.command import here
from support.documents import FOREIGN
from support.foreign_lines import CLAUDE, claude
from support.foreign_symptoms import FILES, NAMES, UNREMARKED

EVERY: Final = {**FILES, **UNREMARKED}
TOOLS = {
    "claude-code": "Claude Code",
    "codex": "Codex",
    "dsh": "DeepSeek Harness",
    "pi": "pi",
}
COLUMNS = ("what you see", "why", "`inspect` shows", "type")
CHECKS: Final[dict[str, Callable[[Any], list[legality.Violation]]]] = {
    "anthropic": legality.anthropic,
    "openai-chat": legality.openai_chat,
    "openai-responses": legality.openai_responses,
}
#: A result stands behind what was said meanwhile, and an id is used twice.
ARRAY = [
    {"role": "user", "content": "list files"},
    *(
        message
        for output in ("one", "two")
        for message in (
            {
                "role": "assistant",
                "tool_calls": [{"id": "t:0", "type": "function", "function": {"name": "ls", "arguments": "{}"}}],
            },
            {"role": "user", "content": "and?"},
            {"role": "tool", "tool_call_id": "t:0", "content": output},
        )
    ),
]
#: Told of a directory, and of what was imported before: no single file shows them.
_OF_MORE = {"older_generation"}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MAKA_HOME", str(tmp_path / "root"))
    monkeypatch.delenv("MAKA_APP", raising=False)
    return tmp_path


def of_section(heading: str) -> str:
    return FOREIGN.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def symptoms(tool: str) -> list[list[str]]:
    return documents.table(of_section(f"By symptom: {TOOLS[tool]}"), *COLUMNS)


def saved(tool: str, data: bytes) -> Path:
    # A log of DeepSeek Harness is compressed where its name says so.
    packed = ".zstd" if data.startswith(b"\x28\xb5\x2f\xfd") else ""
    path = Path.cwd() / (NAMES[tool] + packed)
    path.write_bytes(data)
    return path


def test_there_is_a_runbook_for_each_tool() -> None:
    assert TOOLS.keys() | CHECKS.keys() == reading.READERS.keys()


@pytest.mark.parametrize("tool", TOOLS)
def test_each_symptom_shows_a_finding_that_the_tool_s_files_have(tool: str) -> None:
    shown = {code for row in symptoms(tool) for code in re.findall("`(.+?)`", row[2])}
    assert all(re.fullmatch(r"nothing|`\w+`", row[2]) for row in symptoms(tool))
    assert shown - _OF_MORE == {code for of, code in FILES if of == tool}


@pytest.mark.parametrize(("tool", "code"), FILES)
def test_inspect_shows_it(tool: str, code: str) -> None:
    path = saved(tool, FILES[tool, code])
    before = path.read_bytes()
    ran = here("journal", "inspect", path, "--json").checked()
    assert code in [finding["code"] for finding in ran.json["findings"]]
    assert ran.json["format"] == (tool if before else "empty")
    assert path.read_bytes() == before


@pytest.mark.parametrize(("tool", "what"), UNREMARKED)
def test_inspect_shows_nothing_where_nothing_is_wrong(tool: str, what: str) -> None:
    assert here("journal", "inspect", saved(tool, UNREMARKED[tool, what]), "--json").checked().json["findings"] == []


@pytest.mark.parametrize(("tool", "what"), EVERY)
def test_what_is_to_be_typed_helps(tool: str, what: str) -> None:
    """Whatever is wrong with it: its history is legal for every provider, and its session opens."""
    path = saved(tool, EVERY[tool, what])
    exported = {form: here("journal", "export", path, "--to", form).checked().json for form in CHECKS}
    assert {form: check(exported[form]) for form, check in CHECKS.items()} == {form: [] for form in CHECKS}
    [file] = here("journal", "import", path, "--json").checked().json["files"]
    assert bool(file["sessions"]) == bool(path.stat().st_size)
    for session in file["sessions"]:
        assert here("journal", "inspect", session["session_id"]).checked().code == exits.DONE
        assert here("journal", "verify", session["session_id"]).checked().code == exits.DONE
    for session in (each["session_id"] for each in file["sessions"] if each["kind"] == "main"):
        for form, check in CHECKS.items():
            assert check(here("journal", "export", session, "--to", form).checked().json) == []


def test_a_directory_s_older_generation_is_shown(place: Path) -> None:
    session = place / "s1"
    session.mkdir()
    log = foreign_symptoms.UNREMARKED["dsh", "an old format"]
    (session / "session.jsonl").write_bytes(log)
    (session / "session.v3.jsonl").write_bytes(log.replace(b'"version": 0', b'"version": 3'))
    doc = here("journal", "inspect", session, "--json").checked().json
    assert [finding["code"] for finding in doc["findings"]] == ["older_generation"]
    assert doc["path"].endswith("session.v3.jsonl")


def test_what_is_typed_is_one_of_the_commands_at_the_top() -> None:
    first = FOREIGN.split("\n## ")[0]
    known = {" ".join(each.split()[:3]) for each in re.findall(r"`(maka journal [^`]+)`", first)}
    for tool in TOOLS:
        for row in symptoms(tool):
            commands = re.findall(r"`(maka [^`]+)`", row[3])
            assert commands or row[3].startswith("nothing"), row
            assert {" ".join(each.split()[:3]) for each in commands} <= known


# ---------------------------------------------------------------- tables


def test_every_finding_has_its_severity_and_what_to_do() -> None:
    rows = documents.table(FOREIGN, "code", "severity", "means", "what to do")
    assert [(row[0].strip("`"), row[1]) for row in rows] == [(code, row.severity) for code, row in CODES.items()]
    assert all(row[2] and row[3] for row in rows)


def test_the_options_are_the_command_s() -> None:
    told = [re.findall("`(--[a-z-]+)", row[0])[0] for row in documents.table(FOREIGN, "option of `import`", "does")]
    helped = here("journal", "import", "--help").out
    assert set(told) == set(re.findall(r"^  (--[a-z-]+)", helped, re.MULTILINE)) - {"--help"}


def test_the_exit_codes_are_the_command_s() -> None:
    rows = documents.table(FOREIGN, "exit code of `import`", "means")
    assert [int(row[0]) for row in rows] == [
        exits.DONE,
        exits.USAGE,
        exits.LOCKED,
        exits.REFUSED,
        exits.INTERRUPTED,
    ]
    path = saved("claude-code", FILES["claude-code", "bad_line"])
    assert here("journal", "inspect", path).code == exits.REFUSED
    assert here("journal", "import", path).code == exits.DONE
    assert here("journal", "import", "nowhere.jsonl").code == exits.USAGE
    Path("other.jsonl").write_text("nothing\n")
    assert here("journal", "import", "other.jsonl").code == exits.REFUSED
    assert here("journal", "repair", path).code == exits.REFUSED


def test_nobody_is_told_to_throw_anything_away() -> None:
    assert not re.findall(r"\b(?:rm|unlink|delete|remove|erase|truncate|discard)\w*\b", FOREIGN.lower())


# ---------------------------------------------------------------- examples


def console() -> list[tuple[str, str]]:
    """Commands with what the document shows of their output."""
    out = []
    for block in re.findall(r"^```console\n(.*?)^```$", FOREIGN, re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, shown = part.partition("\n")
            out.append((line, shown))
    return out


def like(shown: str) -> str:
    """As a pattern: a line with an ellipsis stands for any lines."""
    return "".join("(?:.*\n)*" if line == "…\n" else re.escape(line) for line in shown.splitlines(keepends=True))


def test_the_commands_print_what_is_shown() -> None:
    Path("session.jsonl").write_bytes(claude())
    Path("messages.json").write_text(json.dumps(ARRAY))
    shown = console()
    assert len(shown) >= 4
    for line, output in shown:
        program, *words = shlex.split(line)
        ran = here(*words).checked()
        assert (program, ran.code, ran.err) == ("maka", exits.DONE, "")
        if "messages.json" in words:
            assert legality.openai_chat(ARRAY) != []
            assert legality.openai_responses(ran.json) == []
            assert [item["output"] for item in ran.json if "output" in item] == ["one", "two"]
        elif "--json" in words:
            assert ran.json == json.loads(documents.block(FOREIGN, "json"))
            assert ran.out.count("\n") == 1
        else:
            assert re.fullmatch(like(output), ran.out), ran.out


def test_what_came_of_each_session_is_one_of_what_is_told(place: Path) -> None:
    rows = dict(documents.table(FOREIGN, "key", "holds"))
    branching = FILES["claude-code", "rewound"]
    path = saved("claude-code", branching)
    docs = [here("journal", "import", path, "--json").checked().json]
    docs += [here("journal", "import", path, "--json").checked().json]
    path.write_bytes(branching + foreign_symptoms.Transcript().answered("a9", "r9", parent="u3").bytes())
    docs += [here("journal", "import", path, "--json").checked().json]
    sessions = [session for doc in docs for file in doc["files"] for session in file["sessions"]]
    for key in ("kind", "action"):
        assert {session[key] for session in sessions} <= set(re.findall(r"`(\w+)`", rows[f"`{key}`"])) - {"of"}
    assert {session["action"] for session in sessions} == {"created", "unchanged", "grown"}
    assert all(re.fullmatch(rf"{CLAUDE}(\.[0-9a-f]{{8}})?(-[0-9a-f]{{8}})?", each["session_id"]) for each in sessions)
    header = here("journal", "inspect", CLAUDE, "--json").json["header"]
    named = FOREIGN.split("stands in its header as `imported_from`:")[1].split(".")[0]
    assert set(header["imported_from"]) | {"thread"} == set(re.findall(r"`(\w+)`", named))


def test_a_session_goes_on_with_an_app_of_one_s_own(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app, going_on = re.findall(r"^```python\n(.*?)^```$", of_section("Going on"), re.MULTILINE | re.DOTALL)
    Path("session.jsonl").write_bytes(claude())
    here("journal", "import", "session.jsonl").checked()
    namespace: dict[str, Any] = {"__name__": "__example__"}
    exec(compile(app + going_on, "foreign.md", "exec"), namespace)  # noqa: S102
    assert "complete {'stop_reason': 'end_turn'}" in capsys.readouterr().out
    doc = here("journal", "inspect", CLAUDE, "--json").json
    assert (doc["settings"]["backend"], doc["settings"]["cwd"]) == ("loop", str(place))
    assert [turn["status"] for turn in doc["turns"]] == ["completed", "interrupted", "completed"]
    # The other way: an app that has a backend of the format's name, and a command.
    (place / "my_app.py").write_text(app)
    monkeypatch.setattr(sys, "path", [str(place), *sys.path])
    again = place / "again"
    here("journal", "import", "session.jsonl", "--root", again).checked()
    try:
        ran = command.process("run", "--session", CLAUDE, "--app", "my_app:app", "--root", again, "Go on.", cwd=place)
    finally:
        command.process("host", "stop", "--root", again)
    assert (ran.code, "Here is more." in ran.out) == (exits.DONE, True), ran.err
