"""Documents → text: complete, aligned, and harmless whatever a journal holds."""

import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from maka.cli import render, text

ANSI = re.compile("\x1b\\[[0-9;]*m")
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e]")

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
#: Keys that the documents have, with anything at all behind them.
KEYS = st.sampled_from(
    re.findall(
        r"\w+",
        """
        session_id path verdict events bytes head header writer findings turns runs continuations handoffs
        interactions queue plans usage pending event_list dry_run verdict_before verdict_after set_aside appended
        unverified sessions data type seq ts offset length file code severity message remedy count was calls run_ids
        reason kind name state content text source target execution outcome steering followup created_by parent since
        """,
    )
)
ROW = st.dictionaries(KEYS, JSON, max_size=8)
DOC = st.dictionaries(KEYS, JSON | st.lists(ROW, max_size=3) | ROW, max_size=14)


@pytest.mark.parametrize("renderer", [render.inspection, render.repair, render.verification, render.listing])
@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(doc=DOC)
def test_any_document_becomes_harmless_text(renderer: Any, doc: dict[str, Any]) -> None:
    assert not [row for row in renderer(doc, text.plain) if CONTROL.search(row)]
    assert [ANSI.sub("", row) for row in renderer(doc, text.paint)] == renderer(doc, text.plain)


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(doc=ROW)
def test_any_event_becomes_one_harmless_line(doc: dict[str, Any]) -> None:
    assert not CONTROL.search(render.event(doc, text.plain))


FINDING = {
    "code": "open_turn",
    "severity": "repairable",
    "seq": 4,
    "offset": 1234,
    "message": "turn t1 has no turn/end",
    "remedy": "run `maka journal repair`",
}
INSPECTION: dict[str, Any] = {
    "session_id": "s1",
    "path": "somewhere/journal.jsonl",
    "format": 1,
    "verdict": "interrupted",
    "events": 12,
    "bytes": 4300,
    "head": {"seq": 11, "sum": "ab" * 16},
    "header": {
        "model": "m",
        "backend": "b",
        "permission_mode": "ask",
        "cwd": "/tmp",
        "created_by": {"name": "maka", "version": "1"},
    },
    "writer": {"pid": 7, "host": "here", "since": 1_790_000_000_000},
    "findings": [FINDING, {**FINDING, "code": "open_step", "message": "step 1 has no step/end"}],
    "turns": [
        {
            "turn_id": "t1",
            "turn": 1,
            "status": "interrupted",
            "reason": {"kind": "interrupted"},
            "run_ids": ["r1"],
            "first_seq": 1,
            "last_seq": 11,
            "steps": 2,
            "calls": [
                {"call_id": "a", "name": "read", "state": "ok"},
                {"call_id": "b", "name": "read", "state": "ok"},
                {"call_id": "c", "name": "send", "state": "unknown"},
            ],
        }
    ],
    "runs": [
        {"run_id": "r1", "turn_id": "t1", "invocation_id": "i1", "status": "failed", "failure_class": "app_restarted"}
    ],
    "continuations": [],
    "handoffs": [],
    "interactions": [{"interaction_id": "q1", "kind": "question", "status": "pending"}],
    "queue": {"steering": [], "followup": [{"message_id": "m9", "seq": 8}]},
    "plans": [],
    "usage": {"input_tokens": 1234567, "output_tokens": 5},
    "pending": [
        {"seq": 12, "type": "turn/end", "data": {"turn_id": "t1", "run_id": "r1", "reason": {"kind": "interrupted"}}}
    ],
}


def shown(doc: dict[str, Any]) -> str:
    return "\n".join(render.inspection(doc, text.plain))


@pytest.mark.parametrize(
    "fact",
    [
        "interrupted  a writer stopped in the middle",
        "12 events, 4.2 KiB, head 11 " + "ab" * 16,
        "pid 7 on here, since 2026-09-21 14:13:20Z",
        "turn t1 has no turn/end",
        "→ open_turn, open_step: run `maka journal repair`",
        "read ×2, send: unknown",
        "app_restarted",
        "q1",
        "m9",
        "1,234,567",
        "12  turn/end  turn t1  run r1  reason interrupted",
    ],
)
def test_an_inspection_shows(fact: str) -> None:
    assert fact in shown(INSPECTION)


def test_what_is_empty_is_not_shown() -> None:
    quiet = {**INSPECTION, "findings": [], "interactions": [], "pending": [], "queue": {"steering": [], "followup": []}}
    for title in ("findings", "interactions", "queue", "a repair would append", "continuations", "plans"):
        assert f"\n{title}\n" not in shown(quiet)


def test_events_are_shown_where_they_are_in_the_document() -> None:
    event = {"seq": 3, "ts": 1_790_000_000_000, "type": "session/note", "data": {"kind": "abort", "text": "enough"}}
    assert "session/note" not in shown(INSPECTION)
    assert re.search(
        r"3  2026-09-21 14:13:20Z  session/note +kind abort  enough", shown({**INSPECTION, "event_list": [event]})
    )


def test_a_finding_that_stands_for_many_says_how_many() -> None:
    assert "5,000 in all" in shown({**INSPECTION, "findings": [{**FINDING, "count": 5000}]})


REPAIR: dict[str, Any] = {
    "session_id": "s1",
    "path": "somewhere/journal.jsonl",
    "dry_run": True,
    "verdict_before": "torn",
    "verdict_after": "healthy",
    "set_aside": [{"offset": 5000, "length": 12, "file": "damage/5000-abc.bin"}],
    "appended": [{"seq": 9, "type": "step/end", "data": {"turn_id": "t1", "run_id": "r1", "step": 1}}],
}


def test_a_dry_run_says_what_would_be_done_and_that_it_was_not() -> None:
    rows = "\n".join(render.repair(REPAIR, text.plain))
    for fact in (
        "torn → healthy once done",
        "would set aside",
        "offset 5,000",
        "12 B",
        "would append",
        "9  step/end",
        "nothing was written",
    ):
        assert fact in rows


def test_a_repair_says_what_was_done() -> None:
    rows = "\n".join(render.repair({**REPAIR, "dry_run": False}, text.plain))
    assert "would" not in rows
    assert "nothing was written" not in rows
    assert "torn → healthy" in rows


def test_a_repair_of_what_is_whole_says_so() -> None:
    whole = {**REPAIR, "verdict_before": "healthy", "set_aside": [], "appended": []}
    assert "healthy: nothing to do" in "\n".join(render.repair(whole, text.plain))


def test_a_listing_has_a_line_for_each_session() -> None:
    sessions = [
        {"session_id": "a", "name": "first", "last_activity": 1_790_000_000_000, "turns": 3, "verdict": "healthy"},
        {"session_id": "b", "name": None, "last_activity": None, "turns": None, "verdict": "unchecked"},
    ]
    assert render.listing({"sessions": sessions}, text.plain) == [
        "session  verdict    turns  last activity         name",
        "a        healthy        3  2026-09-21 14:13:20Z  first",
        "b        unchecked      -  -",
    ]


def test_a_verification_names_the_lines_that_nothing_proves() -> None:
    doc = {**INSPECTION, "unverified": list(range(30))}
    rows = "\n".join(render.verification(doc, text.plain))
    assert "30 lines that no sum proves" in rows
    assert "and 10 more" in rows
