"""The corpus of journals: what is said of each, what a repair makes of it, and that all of it can be made again."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from maka.cli import documents
from maka.journal.findings import CODES, VERDICTS
from maka.repair import session
from support.chain import check

CORPUS = Path(__file__).parents[1] / "fixtures" / "corpus"
NAMES = sorted(path.name.removesuffix(".inspect.json") for path in CORPUS.glob("*.inspect.json"))
#: Repaired, these are whole by the plainest check there is: no damage stays in them, nothing is accepted.
WHOLE = {"healthy", "interrupted", "torn"}


def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_corpus", CORPUS.parent / "make_corpus.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MAKER = maker()
CASES = {case.name: case for case in MAKER.cases()}


def expected(name: str) -> dict[str, Any]:
    doc: dict[str, Any] = json.loads((CORPUS / f"{name}.inspect.json").read_text(encoding="utf-8"))
    return doc


def repaired(name: str) -> bytes | None:
    path = CORPUS / f"{name}.repaired.jsonl"
    return path.read_bytes() if path.exists() else None


def stored(under: Path) -> dict[str, bytes]:
    return {str(path.relative_to(under)): path.read_bytes() for path in under.rglob("*") if path.is_file()}


def test_the_journals_are_those_that_the_script_makes(tmp_path: Path) -> None:
    MAKER.write(tmp_path)
    others = {"README.md", ".gitattributes"}
    kept = {
        name: raw for name, raw in stored(CORPUS).items() if name not in others and not name.endswith(MAKER.EXPECTED)
    }
    assert stored(tmp_path) == kept
    assert list(CASES) == list(dict.fromkeys(CASES))
    assert sorted(CASES) == NAMES


def test_the_corpus_shows_every_verdict_and_every_code() -> None:
    docs = [expected(name) for name in NAMES]
    assert {doc["verdict"] for doc in docs} == set(VERDICTS)
    shown = {finding["code"] for doc in docs for finding in doc["findings"]}
    assert set(CODES) == shown


@pytest.mark.parametrize("name", NAMES)
def test_inspect_says_what_is_expected_and_repair_writes_it(name: str, tmp_path: Path) -> None:
    path = MAKER.copy(CASES[name], tmp_path)
    said, after = MAKER.expectation(CASES[name], path)
    assert said == expected(name)
    assert after == repaired(name)


@pytest.mark.parametrize("name", NAMES)
def test_inspect_changes_nothing_and_tells_what_a_repair_will_append(name: str, tmp_path: Path) -> None:
    path = MAKER.copy(CASES[name], tmp_path)
    before = stored(tmp_path)
    doc = documents.inspection(str(path), None, True).doc
    assert stored(tmp_path) == before
    after = repaired(name)
    if after is not None:
        appended = [json.loads(line) for line in after.splitlines()[-len(doc["pending"]) :] if doc["pending"]]
        assert [(e["seq"], e["type"], e["data"]) for e in appended] == [
            (e["seq"], e["type"], e["data"]) for e in doc["pending"]
        ]


@pytest.mark.parametrize("name", [name for name in NAMES if repaired(name) is not None])
def test_a_second_repair_changes_nothing(name: str, tmp_path: Path) -> None:
    path = MAKER.copy(CASES[name], tmp_path)
    after = repaired(name)
    assert after is not None
    path.write_bytes(after)
    assert documents.inspection(str(path), None, False).doc["verdict"] == "healthy"
    report = documents.repair(str(path), None, dry_run=False, salvage=True)
    assert report.code == 0
    assert report.doc["appended"] == report.doc["set_aside"] == []
    assert path.read_bytes() == after


@pytest.mark.parametrize("name", [name for name in NAMES if expected(name)["verdict"] == "damaged"])
def test_damage_is_left_alone_without_salvage(name: str, tmp_path: Path) -> None:
    path = MAKER.copy(CASES[name], tmp_path)
    before = path.read_bytes()
    refused = documents.repair(str(path), None, dry_run=False, salvage=False)
    assert refused.code == 4
    assert refused.refusal is not None
    assert "--salvage" in refused.refusal
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", NAMES)
def test_what_is_set_aside_is_what_stood_there(name: str, tmp_path: Path) -> None:
    path = MAKER.copy(CASES[name], tmp_path)
    before = path.read_bytes() if path.is_file() else b""
    MAKER.expectation(CASES[name], path)
    spans = expected(name)["repair"]["set_aside"]
    for span in spans:
        aside = (path.parent / span["file"]).read_bytes()
        assert aside == before[span["offset"] :][: span["length"]]
    assert len(list(path.parent.glob("damage/*"))) == len(spans)


@pytest.mark.parametrize(
    "name",
    [name for name in NAMES if expected(name)["verdict"] in WHOLE and repaired(name) is not None],
)
def test_a_repaired_journal_is_whole_by_the_plainest_check(name: str) -> None:
    after = repaired(name)
    assert after is not None
    assert [event["seq"] for event in check(after)] == list(range(after.count(b"\n")))


@pytest.mark.parametrize("name", [name for name in NAMES if expected(name)["verdict"] != "unreadable"])
def test_loading_gives_the_same_view_as_inspecting_the_repaired_file(name: str, tmp_path: Path) -> None:
    path = MAKER.copy(CASES[name], tmp_path)
    inspected = session.inspect(path)
    turns, messages = inspected.turns(), inspected.messages()
    loaded = session.load(path)
    assert loaded.turns() == turns
    assert loaded.messages() == messages
    assert loaded.repaired_on_disk == (expected(name)["verdict"] in WHOLE)
