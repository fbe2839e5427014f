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
        interactions queue plans usage pending event_list
        settings labels flagged archived has_unread locked dry_run verdict_before verdict_after set_aside appended
        unverified sessions next why command outcome_source
        data type seq ts offset length file code severity message remedy count was calls run_ids
        handoff_id successor_run_id remaining_steps executions turn_id root root_run_id chain tip status pending_handoff
        proposal_id revision title steps active_plan
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
        "interrupted  a writer stopped in the middle; a repair only appends",
        "12 events, 4.2 KiB, head 11 " + "ab" * 16,
        "pid 7 on here, since 2026-09-21 14:13:20Z",
        "turn t1 has no turn/end",
        "→ open_turn, open_step: run `maka journal repair somewhere/journal.jsonl`",
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


CLAIM = {
    "claim_id": "cl",
    "purpose": "resume",
    "state": "started_indeterminate",
    "source": {"run_id": "r2", "turn_id": "t2"},
    "target": {"run_id": "r3", "turn_id": "t3"},
    "root_run_id": "r1",
    "depth": 2,
    "advice": "look, then end it with `maka session settle TARGET --claim cl`",
}


def test_a_claim_is_shown_with_its_lineage_and_what_to_do() -> None:
    step = {"why": "claim cl: look", "command": "maka session settle s --claim cl"}
    told = shown({**INSPECTION, "continuations": [CLAIM], "next": [step, {**step, "command": "another"}]})
    assert re.search(r"cl +resume +started_indeterminate +r2 +r3 +r1 +2\n", told)
    assert told.endswith("\nnext\n  claim cl: look\n    → `maka session settle s --claim cl`\n    → `another`")


HANDOFF = {
    "handoff_id": "h1", "run_id": "r1", "turn_id": "t1", "successor_run_id": "r2", "claim_id": "c2",
    "remaining_steps": 5, "state": "pending",
}  # fmt: skip
EXECUTION: dict[str, Any] = {
    "turn_id": "t1", "root_run_id": "r1", "root": {"kind": "goal", "goal_id": "g"}, "chain": ["r1", "r2", "r3"],
    "tip": "r3", "status": "paused", "pending_handoff": "h2",
}  # fmt: skip


def rows_of(doc: dict[str, Any], title: str) -> list[str]:
    """The rows of a section, its head among them, with one blank between cells."""
    rows = [" ".join(row.split()) for row in shown(doc).splitlines()]
    section = rows[rows.index(title) + 1 :]
    return section[: section.index("")] if "" in section else section


def test_a_handoff_is_shown_with_what_to_do() -> None:
    states = ("pending", "claimed", "continued", "abandoned")
    handoffs = [{**HANDOFF, "state": state} for state in states]
    handoffs.append({**HANDOFF, "remaining_steps": None, "state": "later"})
    assert rows_of({**INSPECTION, "handoffs": handoffs}, "handoffs") == [
        "handoff state run successor steps left what to do",
        "h1 pending r1 r2 5 resume it, or settle it",
        "h1 claimed r1 r2 5 resume it, or settle it",
        "h1 continued r1 r2 5 nothing more; see its successor",
        "h1 abandoned r1 r2 5 nothing more; it was given up",
        "h1 later r1 r2 any -",
    ]


def test_a_turn_of_several_runs_is_shown_with_its_chain() -> None:
    long = {**EXECUTION, "root": None, "chain": [f"r{i}" for i in range(1, 41)], "pending_handoff": None}
    doc = {**INSPECTION, "executions": [EXECUTION, long, {"chain": 5}]}
    assert rows_of(doc, "turns that were handed over") == [
        "turn began as runs newest run status waits for handoff",
        "t1 goal r1 → r2 → r3 r3 paused h2",
        "t1 - r1 → … 36 more … → r38 → r39 → r40 r3 paused -",
        "None - - None None -",
    ]


def test_a_plan_is_shown_with_its_steps() -> None:
    plan = {"proposal_id": "p1", "revision": 2, "title": "the hall", "status": "approved"}
    plan |= {"execution": {"execution_id": "e", "status": "active"}, "steps": [{"title": "chairs"}, {"title": "doors"}]}
    many = {**plan, "proposal_id": "p2", "status": "proposed", "execution": None, "steps": [{"title": "x"}] * 25}
    rows = rows_of({**INSPECTION, "plans": [plan, many]}, "plans")
    assert rows[:4] == [
        "proposal revision status execution title", "p1 2 approved active the hall", "1. chairs", "2. doors",
    ]  # fmt: skip
    assert rows[4:6] == ["p2 2 proposed - the hall", "1. x"]
    assert rows[-2:] == ["20. x", "… and 5 more"]


def test_ids_of_any_length_and_kind_are_harmless() -> None:
    hostile = "\x1b[2J\u202e" + "z" * 5000
    handoff = {**HANDOFF, "handoff_id": hostile, "run_id": hostile, "successor_run_id": hostile}
    execution = {**EXECUTION, "turn_id": hostile, "root": {"kind": hostile}, "chain": [hostile] * 9}
    plan = {"proposal_id": hostile, "title": hostile, "steps": [{"title": hostile}]}
    told = shown({**INSPECTION, "handoffs": [handoff], "executions": [execution], "plans": [plan]})
    assert not [row for row in told.splitlines() if CONTROL.search(row) or len(row) > 400]


def test_an_outcome_that_became_known_is_told_with_its_source() -> None:
    call = {"call_id": "c1", "name": "order", "state": "unknown"}
    turn = {"turn": 1, "calls": [call, {**call, "outcome": "ok", "outcome_source": "user"}]}
    told = shown({**INSPECTION, "turns": [turn]})
    assert "order: unknown, order: unknown → ok (stated by a person)" in told
    for source, said in (("reconciled", "found out by the tool"), ("rerun", "called again"), ("late", "came late")):
        turn["calls"] = [{**call, "outcome": "error", "outcome_source": source}]
        assert f"order: unknown → error ({said})" in shown({**INSPECTION, "turns": [turn]})


def test_events_are_shown_where_they_are_in_the_document() -> None:
    event = {"seq": 3, "ts": 1_790_000_000_000, "type": "session/note", "data": {"kind": "abort", "text": "enough"}}
    assert "session/note" not in shown(INSPECTION)
    assert re.search(
        r"3  2026-09-21 14:13:20Z  session/note +kind abort  enough", shown({**INSPECTION, "event_list": [event]})
    )


def test_without_a_writer_nothing_speaks_of_one() -> None:
    assert "interrupted  a writer stopped in the middle" in shown({**INSPECTION, "writer": None})


def test_a_writer_that_left_no_name_has_none() -> None:
    unnamed = {"pid": None, "host": None, "since": None}
    assert "writer      somebody who left no name (a hint)" in shown({**INSPECTION, "writer": unnamed})


def test_only_the_remedy_that_helps_now_is_shown() -> None:
    damage = {**FINDING, "code": "seq_gap", "severity": "damage", "remedy": "run `maka journal repair --salvage`"}
    warning = {**FINDING, "code": "blob_missing", "severity": "warning", "remedy": "restore the file"}
    empty = {**FINDING, "code": "empty", "severity": "unreadable", "remedy": "look for a copy"}
    arrows = [row for row in shown({**INSPECTION, "findings": [FINDING, damage, warning]}).splitlines() if "→" in row]
    assert arrows == [
        "  → seq_gap: run `maka journal repair somewhere/journal.jsonl --salvage`",
        "  → blob_missing: restore the file",
    ]
    assert "`maka journal repair" not in shown({**INSPECTION, "findings": [FINDING, damage, empty]})


def test_a_command_can_be_pasted_whatever_the_path_holds() -> None:
    assert "run `maka journal repair 'a b/journal.jsonl'`" in shown({**INSPECTION, "path": "a b/journal.jsonl"})


def test_many_findings_of_one_code_are_counted() -> None:
    many = [{**FINDING, "code": "duplicate_line", "message": f"event {i} stands twice"} for i in range(50)]
    rows = shown({**INSPECTION, "findings": [*many, FINDING]})
    assert rows.count("stands twice") == 10
    assert "… and 40 more of duplicate_line; --json lists them" in rows
    assert "turn t1 has no turn/end" in rows


def test_columns_without_a_value_are_left_out() -> None:
    assert re.search(r"severity +code +seq +offset +what", shown(INSPECTION))
    assert re.search(
        r"severity +code +what", shown({**INSPECTION, "findings": [{**FINDING, "seq": None, "offset": None}]})
    )


def test_drawn_ids_are_short_where_they_are_not_looked_up() -> None:
    drawn = "7c1c3521f79e46628b8d658a2fcbc083"
    event = {"seq": 3, "type": "step/end", "data": {"turn_id": drawn, "run_id": "r1"}}
    assert render.summary(event) == "turn 7c1c3521…  run r1"
    assert text.shorten_ids("turn 1 (7c1c3521-f79e-4662-8b8d-658a2fcbc083)") == "turn 1 (7c1c3521…)"
    assert text.shorten_ids("sha256:" + "a" * 64) == "sha256:" + "a" * 64


def test_a_count_is_not_said_twice() -> None:
    crlf = {**FINDING, "message": "27 lines end with CR LF", "count": 27}
    assert "in all" not in shown({**INSPECTION, "findings": [crlf]})


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


def test_a_repair_of_what_is_locked_says_so() -> None:
    held = {**REPAIR, "verdict_before": "healthy", "set_aside": [], "appended": [], "locked": True}
    rows = "\n".join(render.repair(held, text.plain))
    assert "healthy: nothing was done, a live writer has it locked" in rows
    assert "nothing to do" not in rows


def test_a_repair_that_only_ends_the_last_line_says_so() -> None:
    bare = {**REPAIR, "verdict_before": "interrupted", "set_aside": [], "appended": []}
    assert "the last line would get the LF that it lacked" in "\n".join(render.repair(bare, text.plain))
    assert "the last line got the LF" in "\n".join(render.repair({**bare, "dry_run": False}, text.plain))


def test_what_a_gap_lists_is_counted_in_words() -> None:
    gap = {"data": {"spans": [1], "missing": [[1, 2], [5, 5]], "unverified": [], "accepted": [1]}}
    assert render.summary(gap) == "1 damaged span  2 missing ranges  1 accepted finding"


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


def test_a_listing_shows_marks_where_there_are_any() -> None:
    row = {"session_id": "a", "name": "n", "last_activity": None, "turns": 1, "verdict": "healthy"}
    sessions = [{**row, "archived": True, "flagged": True}, {**row, "archived": None, "flagged": False}]
    assert render.listing({"sessions": sessions}, text.plain) == [
        "session  verdict  turns  last activity  marked             name",
        "a        healthy      1  -              archived, flagged  n",
        "a        healthy      1  -                                 n",
    ]


def test_a_listing_shows_work_that_waits() -> None:
    row = {"session_id": "a", "name": "n", "last_activity": None, "turns": 1, "verdict": "healthy"}
    waits = {**row, "flagged": True, "pending_handoff": True, "active_plan": True}
    assert render.listing({"sessions": [waits, {**row, "pending_handoff": None}]}, text.plain)[1:] == [
        "a        healthy      1  -              flagged, pending handoff, active plan  n",
        "a        healthy      1  -                                                     n",
    ]


def test_an_inspection_shows_the_newest_settings() -> None:
    now = {"name": "new", "labels": ["x", "y"], "flagged": True, "has_unread": True, "model": "small", "backend": "b"}
    rows = [" ".join(row.split()) for row in shown({**INSPECTION, "settings": now}).splitlines()]
    for row in ("name new", "labels x, y", "marked flagged, unread", "model small (b), permission -"):
        assert row in rows
    bare = [row.split()[:1] for row in shown(INSPECTION).splitlines()]
    assert not [word for word in (["name"], ["labels"], ["marked"]) if word in bare]


def test_a_verification_names_the_lines_that_nothing_proves() -> None:
    doc = {**INSPECTION, "unverified": list(range(30))}
    rows = "\n".join(render.verification(doc, text.plain))
    assert "30 lines that no sum proves" in rows
    assert "and 10 more" in rows
