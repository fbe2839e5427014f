"""The documents are true: their tables are the code's, their examples run, their commands exist."""

import inspect
import re
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

import maka
from maka.cli import exits, exporting
from maka.journal import codec, events, findings, legality, reader, shapes
from support import documents
from support.command import here
from support.documents import (
    CLIENT,
    CONFIGURATION,
    CONTINUATIONS,
    EMBEDDING,
    EXPORT,
    FOREIGN,
    FORMAT,
    HANDOFFS,
    HOST,
    LIBRARY,
    MODELS,
    PROTOCOL,
    RUNBOOK,
)

DOCUMENTS = {
    "format.md": FORMAT,
    "runbook.md": RUNBOOK,
    "library.md": LIBRARY,
    "configuration.md": CONFIGURATION,
    "embedding.md": EMBEDDING,
    "models.md": MODELS,
    "continuations.md": CONTINUATIONS,
    "handoffs.md": HANDOFFS,
    "host.md": HOST,
    "client.md": CLIENT,
    "protocol.md": PROTOCOL,
    "export.md": EXPORT,
    "foreign.md": FOREIGN,
}
#: Those whose examples run one after the other, section by section.
WITH_EXAMPLES = ("library.md", "configuration.md", "embedding.md", "continuations.md", "handoffs.md", "export.md")

# ---------------------------------------------------------------- format.md: tables


def keys_of(cell: str) -> list[str]:
    (span,) = re.findall(r"`([^`]*)`", cell)
    return list(span.split(", "))


def fields_of(cls: type[Any]) -> list[str]:
    return [field.name + ("" if field.default is attrs.NOTHING else "?") for field in attrs.fields(cls)]


def test_every_event_type_is_in_the_format_with_its_keys_in_order() -> None:
    rows = documents.table(FORMAT, "type", "data", "marks", "records")
    described = {row[0].strip("`"): (keys_of(row[1]), row[2]) for row in rows}
    expected = {
        name: (fields_of(row.cls), "barrier" if row.barrier else "ignorable" if row.ignorable else "")
        for name, row in events.EVENT_TYPES.items()
    }
    assert described == expected
    assert list(described) == list(expected), "the document tells the types in another order"


def test_values_with_a_class_have_the_keys_of_the_class() -> None:
    described = {row[0]: keys_of(row[1]) for row in documents.table(FORMAT, "value", "keys")}
    assert described == {
        "run header": fields_of(events.RunHeader),
        "end reason": fields_of(events.EndReason),
        "usage": fields_of(events.Usage),
    }


def closed_sets(cls: type[Any], at: str) -> Iterator[tuple[str, list[str]]]:
    for field in attrs.fields(cls):
        annotation: Any = field.type
        if typing.get_origin(annotation) is typing.Literal:
            yield f"{at}.{field.name}", list(typing.get_args(annotation))
        elif isinstance(annotation, type) and attrs.has(annotation):
            yield from closed_sets(annotation, f"{at}.{field.name}")


def test_closed_sets_are_those_of_the_classes() -> None:
    described = {
        row[0].strip("`"): re.findall(r"`([^`]*)`", row[1]) for row in documents.table(FORMAT, "key", "values")
    }
    assert described == {
        key: values for row in events.EVENT_TYPES.values() for key, values in closed_sets(row.cls, row.name)
    }


def test_blocks_have_the_keys_that_append_asks_for() -> None:
    described = {
        row[0].strip("`"): [key for key in re.findall(r"`([^`]*)`", row[1])[0].split(", ") if not key.endswith("?")]
        for row in documents.table(FORMAT, "kind", "keys")
    }
    assert described == {kind: list(keys) for kind, keys in shapes.BLOCKS.items()}


def test_every_finding_has_its_severity() -> None:
    described = {row[0].strip("`"): row[1] for row in documents.table(FORMAT, "code", "severity", "means")}
    assert described == {code: row.severity for code, row in findings.CODES.items()}


def test_verdicts_come_in_order_and_exit_as_told() -> None:
    rows = documents.table(FORMAT, "verdict", "worst severity", "`inspect` exits with")
    assert [row[0].strip("`") for row in rows] == list(findings.VERDICTS)
    assert {row[0].strip("`"): int(row[2]) for row in rows} == exits.OF_VERDICT


def test_exit_codes_are_those_of_the_command() -> None:
    described = [int(row[0]) for row in documents.table(FORMAT, "exit code", "means")]
    assert described == [
        exits.DONE,
        exits.PENDING,
        exits.USAGE,
        exits.LOCKED,
        exits.REFUSED,
        exits.INTERRUPTED,
    ]


def test_limits_are_the_code_s() -> None:
    described = [int(row[1]) for row in documents.table(FORMAT, "what", "limit")]
    assert described == [
        codec.MAX_LINE,
        codec.MAX_DEPTH,
        codec.INT_MIN,
        codec.INT_MAX,
        findings.LISTED,
        reader.MAX_FORKS,
        shapes.MAX_ID,
    ]
    assert f"`{shapes.SESSION_ID.pattern}`" in FORMAT
    assert str(codec.SUM_BYTES) + " bytes" in FORMAT


@pytest.mark.parametrize("text", DOCUMENTS.values(), ids=DOCUMENTS)
def test_links_inside_a_document_lead_somewhere(text: str) -> None:
    anchors = {
        re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([^)]*)\)", text)) <= anchors
    for name in re.findall(r"\]\(([\w./-]+)(?:#[^)]*)?\)", text):
        assert (documents.DOCS / name).exists(), name


#: Where the code and its tests cite a section of a document.
CITED = re.compile(r'docs/(\w+\.md), "([^"]+)"')
SOURCES = sorted(
    path
    for part in ("journal", "repair", "runtime", "cli", "tests")
    for path in (documents.DOCS.parent / part).rglob("*.py")
)


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_sections_that_the_code_cites_are_there(name: str) -> None:
    headings = set(re.findall(r"^#+ (?:\d+\. )?(.*)$", DOCUMENTS[name], re.MULTILINE))
    for path in SOURCES:
        # A citation may go over a line's end.
        words = re.sub(r"\s+(?:#:? )?", " ", path.read_text(encoding="utf-8"))
        assert {heading for cited, heading in CITED.findall(words) if cited == name} <= headings, path


def test_the_code_cites_sections_by_their_headings() -> None:
    sign = "\N{SECTION SIGN}"
    assert not [path for path in SOURCES if sign in path.read_text(encoding="utf-8")]
    assert any(CITED.search(path.read_text(encoding="utf-8")) for path in SOURCES)


# ---------------------------------------------------------------- format.md: examples


@pytest.fixture
def example(tmp_path: Path) -> Path:
    path = tmp_path / "example.jsonl"
    path.write_text(documents.block(FORMAT, "jsonl"), encoding="utf-8", newline="")
    return path


def test_the_worked_example_is_a_healthy_journal(example: Path) -> None:
    view = maka.inspect(example)
    assert view.verdict == "healthy"
    assert not view.findings
    assert view.head is not None
    assert FORMAT.count(view.head.sum) == 3, "the head's sum is named where it is explained"


def test_the_python_checker_accepts_the_example_and_names_the_changed_line(example: Path) -> None:
    check = documents.python_checker()
    raw = example.read_bytes()
    assert [event["seq"] for event in check(raw)] == list(range(raw.count(b"\n")))
    with pytest.raises(ValueError, match="line 5"):
        check(raw.replace(b"Hello", b"Hallo"))
    with pytest.raises(ValueError, match="line 3"):
        check(b"".join(line for i, line in enumerate(raw.splitlines(keepends=True)) if i != 3))
    with pytest.raises(ValueError, match="no LF"):
        check(raw[:-1])


def test_the_shell_checker_agrees(example: Path) -> None:
    script = example.with_name("check.sh")
    script.write_text(documents.portable_shell(documents.block(FORMAT, "sh")))

    def run(path: Path) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(["sh", str(script), str(path)], capture_output=True, text=True, check=False)

    whole = run(example)
    assert whole.returncode == 0, whole.stderr
    head = maka.inspect(example).head
    assert head is not None
    assert head.sum in whole.stdout
    changed = example.with_name("changed.jsonl")
    changed.write_bytes(example.read_bytes().replace(b"Hello", b"Hallo"))
    refused = run(changed)
    assert refused.returncode == 1
    assert "line 5" in refused.stderr


# ---------------------------------------------------------------- runbook.md


def test_the_runbook_has_an_entry_for_every_code() -> None:
    rows = documents.table(RUNBOOK, "code", "what it tells you", "what to do")
    assert [row[0].strip("`") for row in rows] == list(findings.CODES)


def test_the_runbook_has_a_way_from_every_verdict_and_exit_code() -> None:
    verdicts = documents.table(RUNBOOK, "verdict", "what it tells you", "next command")
    assert [row[0].strip("`") for row in verdicts] == list(findings.VERDICTS)
    codes = documents.table(RUNBOOK, "exit code", "go to")
    assert [int(row[0]) for row in codes] == [
        exits.DONE,
        exits.PENDING,
        exits.USAGE,
        exits.LOCKED,
        exits.REFUSED,
        exits.INTERRUPTED,
    ]


def test_the_runbook_never_tells_anyone_to_throw_anything_away() -> None:
    assert not re.findall(r"\b(?:rm|unlink|delete|remove|erase|truncate|discard)\w*\b", RUNBOOK.lower())


def test_the_runbook_names_each_class_of_error() -> None:
    family = {name for name in maka.__all__ if name.startswith("Journal") and name != "JournalGap"}
    family |= {"SessionNotFound", "InvalidEvent"}
    assert {name for name in family if f"`{name}`" not in RUNBOOK} == set()


def commands(text: str) -> set[str]:
    inline = re.findall(r"`(maka [^`]*)`", text)
    fenced = re.findall(r"^(maka .*?)(?:\s+#.*)?$", text, re.MULTILINE)
    return {*inline, *fenced}


@pytest.mark.parametrize("command", sorted(set().union(*map(commands, DOCUMENTS.values()))))
def test_commands_that_documents_name_exist(command: str) -> None:
    words = [word for word in command.split() if not word.isupper()]
    path = [word for word in words[1:3] if re.fullmatch("[a-z]+", word)]
    helped = subprocess.run(
        [sys.executable, "-m", "maka.cli", *path, "--help"], capture_output=True, text=True, check=False
    )
    assert helped.returncode == 0, helped.stderr
    for option in (word for word in words if word.startswith("--")):
        assert option.partition("=")[0] in helped.stdout, option


# ---------------------------------------------------------------- export.md


def test_the_forms_and_options_of_an_export_are_the_command_s() -> None:
    assert [row[0].strip("`") for row in documents.table(EXPORT, "form", "prints")] == list(exporting.FORMS)
    options = {row[0].split("`")[1].split()[0] for row in documents.table(EXPORT, "option", "of", "does")}
    assert options == {"--through", "--json", *(name for names in exporting.FORMS.values() for name in names)}


def test_the_rules_of_arrays_are_the_validators() -> None:
    rows = documents.table(EXPORT, "rule", "says", "option")
    assert {row[0]: row[1] for row in rows} == legality.RULES
    for validate in (legality.anthropic, legality.openai_chat, legality.openai_responses):
        rules = validate(None)[0].rule[0]
        taken = list(inspect.signature(validate).parameters)[1:]
        assert {name for row in rows if row[0][0] == rules for name in re.findall("`(.+?)`", row[2])} == set(taken)


# ---------------------------------------------------------------- examples


@pytest.mark.parametrize(
    ("name", "section"),
    [
        pytest.param(name, section, id=section.title)
        for name in WITH_EXAMPLES
        for section in documents.sections(DOCUMENTS[name])
    ],
)
def test_the_examples_of_a_section_run_one_after_the_other(
    name: str, section: documents.Section, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAKA_HOME", str(tmp_path / "root"))
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__example__"}
    for line, code in section.python:
        # The document is ours; padding makes a failure name the line of the document.
        exec(compile("\n" * line + code, str(documents.DOCS / name), "exec"), namespace)  # noqa: S102


def test_the_library_s_document_has_examples() -> None:
    assert sum(len(section.python) for section in documents.sections(LIBRARY)) >= 6


def test_the_runbook_s_way_out_of_an_indeterminate_start_leads_out(tmp_path: Path) -> None:
    path = tmp_path / "s1" / "journal.jsonl"
    path.parent.mkdir(mode=0o700)
    path.write_bytes((documents.DOCS.parent / "fixtures" / "corpus" / "claim-indeterminate.jsonl").read_bytes())
    assert "claim_indeterminate" in [finding.code for finding in maka.load(path).findings]
    [claim] = maka.inspect(path).continuations()
    assert here("session", "settle", path, "--claim", claim["claim_id"]).code == exits.DONE
    ended = maka.load(path)
    assert ended.verdict == "healthy"
    assert [turn["status"] for turn in ended.turns()] == ["interrupted", "failed"]
    assert not ended.findings
