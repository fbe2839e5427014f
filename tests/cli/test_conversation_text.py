"""Conversations as people read them."""

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from maka.cli import conversation, text

CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e]")
SCALARS = st.none() | st.booleans() | st.integers() | st.text(st.characters(), max_size=8)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3), max_leaves=4)
BLOCK = st.dictionaries(
    st.sampled_from(["kind", "text", "call_id", "name", "arguments", "content", "state", "ref", "bytes", "media_type"]),
    JSON | st.sampled_from(["text", "thinking", "tool_call", "tool_result", "image"]),
)
ENTRY = st.dictionaries(
    st.sampled_from(["role", "seq", "turn_id", "mark", "content"]), JSON | st.lists(BLOCK | SCALARS, max_size=3)
)


@given(st.lists(ENTRY, max_size=5))
def test_any_entries_become_harmless_text(entries: list[dict[str, Any]]) -> None:
    for rows in (conversation.render({"entries": entries}, text.plain), conversation.messages(entries, text.plain)):
        assert not [row for row in rows if CONTROL.search(row)]


def entry(role: str, *content: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": role, "seq": 7, "turn_id": "t1", "content": list(content), **more}


def shown(*entries: dict[str, Any]) -> str:
    return "\n".join(conversation.render({"entries": list(entries)}, text.plain))


def said(words: str) -> dict[str, Any]:
    return {"kind": "text", "text": words}


def test_who_said_what_in_which_turn() -> None:
    rows = shown(
        entry("user", said("hello")), entry("assistant", said("hi")), entry("user", said("more"), turn_id="t2")
    )
    assert rows.count("── turn t1") == 1
    assert rows.count("── turn t2") == 1
    assert re.search(r"user +7\n  hello\n\nassistant +7\n  hi\n", rows)


def test_a_turn_says_its_number_and_how_it_ended_unless_it_went_well() -> None:
    turns = [
        {"turn_id": "t1", "turn": 1, "status": "interrupted"},
        {"turn_id": "t2", "turn": 2, "status": "completed"},
    ]
    entries = [entry("user", said("hello")), entry("user", said("more"), turn_id="t2")]
    rows = conversation.render({"entries": entries, "turns": turns}, text.plain)
    assert [row for row in rows if row.startswith("──")] == ["── turn 1  interrupted  t1", "── turn 2  t2"]


def test_a_call_is_shortened_and_its_outcome_named() -> None:
    call = {"kind": "tool_call", "call_id": "c1", "name": "send", "arguments": '{"a":"' + "x" * 500 + '"}'}
    result = {"kind": "tool_result", "call_id": "c1", "state": "unknown", "content": [said("nobody knows")]}
    rows = shown(entry("assistant", call), entry("tool", result))
    assert re.search(r'→ send \{"a":"x+…  c1', rows)
    assert max(map(len, rows.splitlines())) < 140
    assert "← unknown  c1\n    nobody knows" in rows


def test_a_long_result_is_cut_and_says_how_much_is_left() -> None:
    result = {"kind": "tool_result", "call_id": "c", "state": "ok", "content": [said("\n".join(map(str, range(100))))]}
    rows = shown(entry("tool", result))
    assert "… 89 more lines" in rows
    assert "\n    10\n" in rows
    assert "\n    11\n" not in rows


def test_what_a_model_does_not_see_is_marked() -> None:
    for mark, told in (
        ("hidden", "a model does not see this"),
        ("unanswered", "no result"),
        ("something new", "something new"),
    ):
        assert told in shown(entry("assistant", said("words"), mark=mark))


def test_where_the_whole_of_a_shortened_text_is() -> None:
    rows = shown(entry("user", {"kind": "text", "text": "begin", "ref": "sha256:ab", "bytes": 70000}))
    assert "begin" in rows
    assert "all 70000 bytes are in sha256:ab" in rows


def test_a_long_result_still_says_where_the_whole_is() -> None:
    block = {"kind": "text", "text": "row\n" * 100, "ref": "sha256:ab", "bytes": 70000}
    rows = shown(entry("tool", {"kind": "tool_result", "call_id": "c", "state": "ok", "content": [block]}))
    assert rows.endswith("… 89 more lines\n    [shortened; all 70000 bytes are in sha256:ab]")


def test_the_line_feed_that_ends_an_output_is_no_line() -> None:
    result = {"kind": "tool_result", "call_id": "c", "state": "ok", "content": [said("hi\n")]}
    assert shown(entry("tool", result)).endswith("← ok  c\n    hi")


def test_pictures_and_files_are_named() -> None:
    assert "[image image/png]" in shown(entry("user", {"kind": "image", "media_type": "image/png", "data": "x"}))
    assert shown(entry("assistant", {"kind": "thinking", "text": ""}, said("so"))).endswith("assistant  7\n  so")
    assert "[image image/png sha256:cd]" in shown(
        entry("user", {"kind": "image", "media_type": "image/png", "ref": "sha256:cd"})
    )
