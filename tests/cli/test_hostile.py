"""Nothing that can be done to a file makes a command fail otherwise than with a verdict."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.builder import Builder
from support.command import here
from support.lineages import Story

COMMANDS = (
    ["inspect", "--events"],
    ["inspect", "--events", "--json"],
    ["verify"],
    ["verify", "--head", "0" * 32],
    ["tail", "-n", "1000"],
    ["show"],
    ["show", "--json"],
    ["repair", "--dry-run"],
    ["repair", "--dry-run", "--salvage", "--json"],
)
CODES = {0, 1, 4}


def realistic() -> bytes:
    journal = Builder().plain_turn("héllo\u2028 wörld").tool_turn()
    journal.start().step().delta("thinking about it", kind="thinking").delta("Hel").says("", ["a", "b"])
    journal.call("a")
    journal.add(
        "interaction/requested",
        {"interaction_id": "q", "turn_id": "t3", "run_id": "r3", "kind": "question", "request": {}},
    )
    journal.add(
        "message/accepted",
        {"message_id": "m", "placement": "next_turn", "disposition": "followup", "content": [], "digest": ""},
    )
    journal.add("plan/proposed", {"proposal_id": "p", "revision": 1, "turn_id": "t3", "title": "t", "steps": []})
    return bytes(journal.raw())


def handed_over() -> bytes:
    """A turn that was handed over twice, the second time for nobody, while a plan is carried out."""
    journal = Story()
    journal.add("plan/proposed", {"proposal_id": "p", "revision": 1, "turn_id": "t1", "title": "t", "steps": [
        {"id": "1", "title": "chairs", "description": ""}]})  # fmt: skip
    journal.add("plan/approved", {"proposal_id": "p", "revision": 1, "execution_id": "e"})
    journal.plain_turn().start("héllo").step().says("", ["a"])
    journal.tool("a")
    journal.end_step().pause().go_on("r2", "handoff").step(2).says("", ["b"])
    journal.tool("b")
    journal.end_step().pause()
    return bytes(journal.raw())


REALISTIC = realistic()
HANDED_OVER = handed_over()


def check(path: Path, raw: bytes) -> None:
    """Every command copes with these bytes, and none of those that only look changes them."""
    path.write_bytes(raw)
    for command, *flags in COMMANDS:
        ran = here("journal", command, path, *flags).checked()
        where = (command, flags, raw[:200], ran.err)
        assert ran.code in CODES, where
        assert "\x1b" not in ran.out + ran.err, where
        if "--json" in flags:
            json.loads(ran.out)
    assert path.read_bytes() == raw


def deep(levels: int) -> bytes:
    return b'{"seq":0,"ts":0,"type":"session/header","data":' + b"[" * levels + b"]" * levels + b"}\n"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\n",
        b"\n" * 1000,
        b"\0",
        b"\0" * 70_000,
        b"\xff" * 1000,
        b"\xef\xbb\xbf",
        b"\xef\xbb\xbf" + REALISTIC,
        REALISTIC.replace(b"\n", b"\r\n"),
        REALISTIC.replace(b"\n", b"\r"),
        REALISTIC.replace(b"\n", b"\n\n"),
        REALISTIC[:-1],
        REALISTIC[:-30],
        REALISTIC * 2,
        REALISTIC[100:],
        REALISTIC + b"\0" * 512,
        REALISTIC + b"\0" * 512 + b"\n" + REALISTIC.splitlines(keepends=True)[-1],
        b"[]\n",
        b"null\n",
        b"42\n",
        b'{"seq":0}\n',
        b"{" * 5000 + b"\n",
        deep(3000),
        b'{"type":"user","message":{}}\n' * 5,
        b'{"seq":99999999999999999999,"ts":1,"type":"x","data":{},"sum":"' + b"0" * 32 + b'"}\n',
        b"x" * (17 << 20) + b"\n" + REALISTIC,
    ],
    ids=lambda raw: f"{len(raw)}-{raw[:8]!r}",
)
def test_a_corpus_of_hostile_files(tmp_path: Path, raw: bytes) -> None:
    check(tmp_path / "journal.jsonl", raw)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(whole=st.sampled_from([REALISTIC, HANDED_OVER]), data=st.data(), byte=st.integers(0, 255))
def test_a_cut_and_a_changed_byte(tmp_path: Path, whole: bytes, data: st.DataObject, byte: int) -> None:
    raw = bytearray(whole)
    raw[data.draw(st.integers(0, len(raw) - 1))] = byte
    check(tmp_path / "journal.jsonl", bytes(raw[: data.draw(st.integers(0, len(raw))) or None]))


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["kind", "text", "id", "run_id"]), inner)
    ),
    max_leaves=5,
)
#: Events of several journals.
LINES = [[json.loads(line) for line in raw.splitlines()[1:]] for raw in (REALISTIC, HANDED_OVER)]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.sampled_from(LINES),
    changes=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 20), ANYTHING), min_size=1, max_size=6),
    more=st.dictionaries(
        st.sampled_from(["error", "usage", "reason", "call_seq", "operation_id", "quotes", "cleanup"]), ANYTHING
    ),
)
def test_well_chained_events_with_anything_inside(
    tmp_path: Path, lines: list[dict[str, Any]], changes: list[tuple[int, int, Any]], more: dict[str, Any]
) -> None:
    events = [(line["type"], dict(line["data"])) for line in lines]
    for number, key, value in changes:
        data = events[number % len(events)][1]
        data[list(data)[key % len(data)]] = value
        data.update({key: value for key, value in more.items() if key not in data})
    journal = Builder()
    for type_, data in events:
        journal.add(type_, data)
    check(tmp_path / "journal.jsonl", bytes(journal.raw()))
