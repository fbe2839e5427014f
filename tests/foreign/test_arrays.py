"""Arrays of messages: told apart, paired by occurrence, and put in order by an export."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maka.journal import export, legality
from maka.journal.foreign.detect import detect
from maka.journal.source import BytesSource
from support.foreign import Folded, folded

CHAT = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "a"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "t:0", "type": "function", "function": {"name": "term", "arguments": '{"c":"ls"}'}}],
    },
    {"role": "tool", "tool_call_id": "t:0", "content": "1"},
    {"role": "assistant", "content": "ok"},
    {"role": "user", "content": [{"type": "text", "text": "b"}]},
    {
        "role": "assistant",
        "tool_calls": [{"id": "t:0", "type": "function", "function": {"name": "term", "arguments": '{"c":"pwd"}'}}],
    },
    {"role": "tool", "tool_call_id": "t:0", "content": "/w"},
]
ANTHROPIC = {
    "messages": [
        {"role": "user", "content": "x"},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": f"c{n}", "name": "Bash", "input": {"n": n}} for n in (1, 2)],
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "meanwhile"},
                {"type": "tool_result", "tool_use_id": "c1", "content": "1"},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c2", "content": "2", "is_error": True}]},
        {"role": "assistant", "content": [{"type": "text", "text": "done"}]},
    ]
}
RESPONSES = [
    {"role": "user", "content": [{"type": "input_text", "text": "q"}]},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "e"},
    {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
    {"type": "function_call", "call_id": "b", "name": "f", "arguments": "no json"},
    {"type": "function_call_output", "call_id": "b", "output": "B"},
    {"type": "function_call_output", "call_id": "a", "output": "A"},
    {"type": "web_search_call", "action": {"type": "other"}},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "both"}]},
]


def format_of(value: Any) -> str | None:
    return detect(BytesSource(json.dumps(value, indent=1).encode()))


def read(value: Any) -> Folded:
    data = json.dumps(value).encode()
    format = detect(BytesSource(data))
    assert format is not None
    return folded(data, format)


@pytest.mark.parametrize(
    ("value", "format"),
    [
        (CHAT, "openai-chat"),
        ({"model": "m", "messages": CHAT}, "openai-chat"),
        (ANTHROPIC, "anthropic"),
        (RESPONSES, "openai-responses"),
        ({"input": RESPONSES}, "openai-responses"),
        (CHAT[1:2], "openai-chat"),
        ([], None),
        ([1, 2], None),
        ({"messages": 5}, None),
        ({"a": CHAT}, None),
        ([{"a": 1}], None),
    ],
)
def test_arrays_are_told_apart(value: Any, format: str | None) -> None:
    assert format_of(value) == format


def test_an_id_that_is_used_again_belongs_to_the_nearest_call() -> None:
    main = read(CHAT).main
    assert main.results() == ["ok", "ok"]
    assert main.texts() == ["a", "ok", "b"]
    assert main.statuses() == ["completed", "interrupted"]
    assert [data["text"] for data in main.of("session/note")] == ["be brief"]
    items = export.openai_responses(main.history.messages())
    assert legality.openai_responses(items) == []
    calls = [item["call_id"] for item in items if item["type"] == "function_call"]
    assert len(set(calls)) == 2
    assert [item["output"] for item in items if item["type"] == "function_call_output"] == ["1", "/w"]


def test_a_batch_that_is_split_and_late_is_put_in_order() -> None:
    given = ANTHROPIC["messages"]
    assert legality.anthropic(given) != []
    main = read(ANTHROPIC).main
    messages = export.anthropic(main.history.messages())["messages"]
    assert legality.anthropic(messages) == []
    assert [block.get("tool_use_id") or block["text"] for block in messages[2]["content"]] == ["c1", "c2", "meanwhile"]
    assert main.results() == ["ok", "error"]
    assert main.statuses() == ["completed"]


def test_items_in_a_row_are_one_answer() -> None:
    found = read(RESPONSES)
    assert [[block["kind"] for block in data["content"]] for data in found.main.of("assistant/message")] == [
        ["thinking", "tool_call", "tool_call"],
        ["text"],
    ]
    assert found.main.of("assistant/message")[0]["content"][0] == {"kind": "thinking", "text": "hm", "encrypted": "e"}
    assert found.codes() == ["hosted_tool"]
    assert [(data["call_id"], data["content"][0]["text"]) for data in found.main.of("tool/result")] == [
        ("b", "B"),
        ("a", "A"),
    ]
    assert len(found.main.of("x-foreign/line")) == 1


def test_a_call_without_an_output_before_the_next_prompt_is_unknown() -> None:
    found = read([*CHAT[:3], {"role": "user", "content": "still there?"}])
    assert found.main.results() == ["unknown"]
    assert found.main.texts() == ["a", "still there?"]
    assert "unknown_outcome" in found.codes()


def test_a_call_of_the_oldest_kind_has_its_result_by_its_name() -> None:
    asks = {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}}
    gives = {"role": "function", "name": "look", "content": "seen"}
    found = read([{"role": "user", "content": "go"}, asks, gives, {"role": "assistant", "content": "done"}])
    assert (found.codes(), found.main.results(), found.main.texts()) == ([], ["ok"], ["go", "done"])


def test_what_stands_beside_the_content_of_an_answer_is_read() -> None:
    call = {"id": "c", "type": "custom", "custom": {"name": "look", "input": "up"}}
    found = read(
        [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "reasoning_content": "why", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "seen"},
            {"role": "assistant", "content": None, "refusal": "no"},
        ]
    )
    first, last = found.main.of("assistant/message")
    asked = {"kind": "tool_call", "call_id": "c", "name": "look", "arguments": "up"}
    assert first["content"] == [{"kind": "thinking", "text": "why"}, asked]
    assert last["content"] == [{"kind": "text", "text": "no"}]
    assert found.codes() == []


def test_what_cannot_be_read_of_an_array_is_told_and_kept() -> None:
    odd = {"role": "oracle", "content": "?"}
    ran = {"type": "mcp_call", "id": "x", "output": "out"}
    nameless = {"role": "assistant", "tool_calls": [{"id": "c"}]}
    given = {"system": "be kind", "messages": [{"role": "user", "content": 7}, odd, ran, nameless]}
    found = read(given)
    assert found.main.texts() == ["7"]
    assert [(finding.code, finding.message[:9]) for finding in found.report.findings][:3] == [
        ("unknown_lines", "message 1"),
        ("hosted_tool", "message 2"),
        ("misfit", "message 3"),
    ]
    assert [data["value"] for data in found.main.of("x-foreign/line")] == [{"system": "be kind"}, odd, ran]


def test_a_tool_that_the_provider_ran_is_told_of() -> None:
    block = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    found = read(
        [{"role": "user", "content": "go"}, {"role": "assistant", "content": [block]}, ANTHROPIC["messages"][0]]
    )
    assert found.codes().count("hosted_tool") == 1


def test_a_result_of_nobody_is_told_as_text() -> None:
    found = read([{"role": "tool", "tool_call_id": "lost", "content": "42"}, *CHAT])
    assert "42" in found.main.texts()
    assert "orphan_result" in found.codes()


def test_images_are_looked_at() -> None:
    data = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}}
    found = read([{"role": "user", "content": [data, {"type": "image_url", "image_url": {"url": "https://x/y.png"}}]}])
    assert found.codes() == ["image_elsewhere", "image_unusable", "open_turn"]
    assert found.main.of("user/message")[0]["content"][0] == {
        "kind": "image",
        "media_type": "image/png",
        "data": "aGVsbG8=",
    }


VALUES = st.one_of(
    st.none(), st.integers(), st.text(max_size=4), st.just([]), st.just({}), st.just([None, {"type": 5}])
)


@st.composite
def spoiled(draw: st.DrawFn) -> list[Any]:
    items = json.loads(json.dumps([*CHAT, *ANTHROPIC["messages"], *RESPONSES]))
    chosen = draw(st.lists(st.sampled_from(items), min_size=1, max_size=8))
    for item in chosen:
        if draw(st.booleans()):
            item[draw(st.sampled_from(sorted(item)))] = draw(VALUES)
    return chosen


@settings(max_examples=150, deadline=None)
@given(spoiled())
def test_nothing_in_an_array_is_an_error(items: list[Any]) -> None:
    data = json.dumps(items).encode()
    for format in ("anthropic", "openai-chat", "openai-responses"):
        folded(data, format)
