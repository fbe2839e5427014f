"""Each rule of a provider's array is told where it is broken, and nothing is told of an array that is legal."""

import base64
import copy
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maka.journal import legality
from maka.journal.legality import RULES, Violation

Json = Any


def told(violations: list[Violation]) -> list[tuple[str, str]]:
    assert all(violation.rule in RULES and violation.message for violation in violations)
    return [(violation.rule, violation.where) for violation in violations]


def png(width: int = 2, height: int = 2) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height) + b"\x08\x02\0\0\0" + b"\0" * 16


def image(data: bytes, media_type: str = "image/png") -> Json:
    coded = base64.b64encode(data).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": coded}}


# ---------------------------------------------------------------- Anthropic


def user(*blocks: Json) -> Json:
    return {"role": "user", "content": list(blocks)}


def says(*blocks: Json) -> Json:
    return {"role": "assistant", "content": list(blocks)}


def text(said: str = "hi") -> Json:
    return {"type": "text", "text": said}


def use(named: Json = "a", **more: Json) -> Json:
    return {"type": "tool_use", "id": named, "name": "ls", "input": {}, **more}


def result(named: Json = "a", content: Json = "done", **more: Json) -> Json:
    return {"type": "tool_result", "tool_use_id": named, "content": content, **more}


THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}
REDACTED = {"type": "redacted_thinking", "data": "x"}
SEARCH = {"type": "server_tool_use", "id": "w", "name": "web_search", "input": {}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "w", "content": []}

TURN = [user(text()), says(text(), use("a"), use("b")), user(result("a"), result("b"), text("and"))]


def test_a_legal_conversation_breaks_no_rule_of_anthropic() -> None:
    messages = [
        {"role": "user", "content": "hi"},
        says(THOUGHT, REDACTED, SEARCH, FOUND, text(), use("a"), use("b")),
        user(result("a", [text(), image(png())]), result("b", None), text("go on")),
        says(text()),
        user(image(png(8000, 1))),
    ]
    assert legality.anthropic(messages) == []
    assert legality.anthropic({"messages": messages, "tools": [{"name": "ls"}], "system": "be kind"}) == []
    assert legality.anthropic([]) == []


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (None, [("A0", "messages")]),
        ([*TURN, 7], [("A0", "messages.3")]),
        ([*TURN, {"role": "system", "content": "x"}], [("A0", "messages.3")]),
        ([{"role": "user", "content": {}}], [("A0", "messages.0")]),
        ([user(text(), 1, {"type": 2})], [("A0", "messages.0.content.1"), ("A0", "messages.0.content.2")]),
        ([user(use())], [("A0", "messages.0.content.0")]),
        ([user(text(), {"type": "image_url", "image_url": {}})], [("A0", "messages.0.content.1")]),
        ([*TURN[:2], user(result("a", 7), result("b", {}))], [("A0", f"messages.2.content.{n}") for n in (0, 1)]),
        ([*TURN[:2], user(result("a", [7, use()]), result("b"))], [("A0", "messages.2.content.0.content.0")]),
        ([*TURN[:2], user(result("a"))], [("A1", "messages.1.content.2")]),
        ([*TURN, says(use("c"))], [("A9", "messages.3"), ("A1", "messages.3.content.0")]),
        ([*TURN, says(text()), user(result("b"))], [("A2", "messages.4.content.0"), ("A4", "messages.4.content.0")]),
        ([user(result("a"))], [("A2", "messages.0.content.0")]),
        ([*TURN[:2], user(text(), result("a"), result("b"))], [("A3", f"messages.2.content.{n}") for n in (1, 2)]),
        (
            [*TURN, says(use("a")), user(result("a"))],
            [("A4", "messages.3.content.0"), ("A4", "messages.4.content.0")],
        ),
        ([*TURN[:2], user(result("a"), result("b"), result("b"))], [("A4", "messages.2.content.2")]),
        (
            [user(text()), says(use("call_1|fc_1")), user(result("call_1|fc_1"))],
            [("A5", "messages.1.content.0"), ("A5", "messages.2.content.0")],
        ),
        (
            [user(text()), says(use("x" * 65)), user(result("x" * 65))],
            [("A5", "messages.1.content.0"), ("A5", "messages.2.content.0")],
        ),
        ([user(text()), says(use(input="{}")), user(result())], [("A6", "messages.1.content.0")]),
        (
            [user(text()), says(use("a b", input=[])), user(result("a b"))],
            [("A6", "messages.1.content.0"), ("A5", "messages.1.content.0"), ("A5", "messages.2.content.0")],
        ),
        ([user(text()), says(text(" \n")), user(text(""))], [("A7", f"messages.{n}.content.0") for n in (1, 2)]),
        ([user(text()), says(text()), {"role": "user", "content": " "}], [("A7", "messages.2")]),
        ([user(text()), {"role": "assistant", "content": ""}, user(text())], [("A7", "messages.1")]),
        ([user()], [("A7", "messages.0")]),
        ([*TURN[:2], user(result("a", [], is_error=True), result("b"))], [("A7", "messages.2.content.0")]),
        ([*TURN[:2], user(result("a", [text("")]), result("b"))], [("A7", "messages.2.content.0.content.0")]),
        ({"messages": [user(text())], "system": [text("")]}, [("A7", "system.0")]),
        ([says(text()), user(text())], [("A8", "messages.0")]),
        ([user(text()), user(text())], [("A8", "messages.1")]),
        ([user(text()), says(text())], [("A9", "messages.1")]),
        ([user(text()), says(text(), THOUGHT), user(text())], [("A10", "messages.1.content.1")]),
        ([user(text()), says({**THOUGHT, "signature": ""}, text()), user(text())], [("A10", "messages.1.content.0")]),
        ([user(text()), says({**REDACTED, "data": None}, text()), user(text())], [("A10", "messages.1.content.0")]),
        ([user(text(), THOUGHT, text())], [("A10", "messages.0.content.1")]),
        ([user(text()), says(SEARCH, text()), user(text())], [("A11", "messages.1.content.0")]),
        (
            [user(text()), says(FOUND, text(), SEARCH), user(text())],
            [("A11", f"messages.1.content.{n}") for n in (0, 2)],
        ),
        ([user(image(b"<svg/>"))], [("A12", "messages.0.content.0")]),
        ([user(image(b""))], [("A12", "messages.0.content.0")]),
        ([user(image(png()[:20]))], [("A12", "messages.0.content.0")]),
        ([user(image(png(8001, 1)))], [("A12", "messages.0.content.0")]),
        ([user(image(png(), "image/jpeg"))], [("A12", "messages.0.content.0")]),
        ([user(image(png() + b"\0" * 4_000_000))], [("A12", "messages.0.content.0")]),
        ([user({"type": "image"})], [("A12", "messages.0.content.0")]),
        ([user({"type": "image", "source": {"type": "disk"}})], [("A12", "messages.0.content.0")]),
        ([*TURN[:2], user(result("a", [image(b"x")]), result("b"))], [("A12", "messages.2.content.0.content.0")]),
        ([user(*[image(png())] * 20, image(png(1, 2001)))], [("A12", "messages.0.content.20")]),
        ([user(text()), says(use(), text()), user(result())], [("A13", "messages.1.content.1")]),
        ({"messages": TURN}, [("A14", "messages.1.content.1")]),
    ],
)
def test_what_an_array_shows_that_breaks_a_rule_of_anthropic(messages: Json, expected: list[tuple[str, str]]) -> None:
    assert told(legality.anthropic(messages)) == expected


def test_a_batch_that_is_answered_late_and_in_two_messages() -> None:
    messages = [TURN[0], TURN[1], user(text("meanwhile"), result("a")), user(result("b"))]
    assert set(told(legality.anthropic(messages))) == {
        ("A8", "messages.3"),
        ("A1", "messages.1.content.2"),
        ("A3", "messages.2.content.1"),
        ("A2", "messages.3.content.0"),
        ("A3", "messages.3.content.0"),
    }


def test_what_only_options_show_of_anthropic() -> None:
    ends = [user(text()), says(text("so ")), user(text())]
    assert told(legality.anthropic(ends[:2], prefill=True)) == [("A9", "messages.1.content.0")]
    assert legality.anthropic([*ends, says(text("so"))], prefill=True) == []
    loop = [user(text()), says(THOUGHT, use("a")), user(result("a")), says(use("b")), user(result("b"))]
    assert legality.anthropic(loop) == []
    assert told(legality.anthropic(loop, thinking=True)) == [("A10", "messages.3.content.0".rpartition(".content")[0])]
    asked = {"messages": loop, "thinking": {"type": "enabled"}, "tools": [{}]}
    assert told(legality.anthropic(asked)) == [("A10", "messages.3")]
    kept = [user(text()), says(THOUGHT, text()), user(text())]
    assert legality.anthropic(kept, thinking=True, original=[THOUGHT, text()]) == []
    assert told(legality.anthropic(kept, original=[{**THOUGHT, "thinking": "h"}, text()])) == [("A10", "messages.1")]
    assert legality.anthropic([user(text()), says(text()), user(text())], original=[THOUGHT]) == []
    assert told(legality.anthropic(TURN, tools=False)) == [("A14", "messages.1.content.1")]
    assert legality.anthropic({"messages": TURN}, tools=True) == []


# ---------------------------------------------------------------- chat completions


def call(named: Json = "a", arguments: Json = "{}", name: Json = "ls") -> Json:
    return {"id": named, "type": "function", "function": {"name": name, "arguments": arguments}}


def calls(*made: Json, **more: Json) -> Json:
    return {"role": "assistant", "content": None, "tool_calls": list(made), **more}


def tool(named: Json = "a", content: Json = "done") -> Json:
    return {"role": "tool", "tool_call_id": named, "content": content}


ASKED = {"role": "user", "content": "hi"}


def test_a_legal_conversation_breaks_no_rule_of_chat() -> None:
    messages = [
        {"role": "system", "content": "be kind"},
        ASKED,
        calls(call("a"), call("b")),
        tool("b"),
        tool("a", [{"type": "text", "text": "x"}]),
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]},
        calls(call("a")),
        tool("a"),
        {"role": "assistant", "content": "so"},
    ]
    assert legality.openai_chat(messages) == []
    assert legality.openai_chat({"messages": messages}) == []
    assert told(legality.openai_chat(messages, portable=True)) == [("O6", "messages.6.tool_calls.0")]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ("x", [("O0", "messages")]),
        ([None, {"role": "robot"}], [("O0", "messages.0"), ("O0", "messages.1")]),
        ([{"role": "user", "content": None}], [("O0", "messages.0")]),
        ([{"role": "user", "content": [1]}], [("O0", "messages.0.content.0")]),
        ([user(result())], [("O0", "messages.0.content.0")]),
        ([{"role": "user", "content": []}], [("O0", "messages.0")]),
        ([{"role": "user", "content": [{"type": "text", "text": None}]}], [("O0", "messages.0.content.0")]),
        ([{**ASKED, "tool_calls": [call()]}], [("O0", "messages.0")]),
        ([calls(call("a"), call("b")), tool("a")], [("O1", "messages.0")]),
        ([calls(call("a")), ASKED, tool("a")], [("O1", "messages.0"), ("O2", "messages.2")]),
        ([ASKED, tool("a")], [("O2", "messages.1")]),
        ([calls(call("a")), tool("a"), tool("a")], [("O2", "messages.2")]),
        ([calls(call("a")), tool("a"), tool("z")], [("O2", "messages.2")]),
        ([calls()], [("O3", "messages.0"), ("O3", "messages.0")]),
        ([calls(content="x")], [("O3", "messages.0")]),
        ([{"role": "assistant", "content": "", "tool_calls": None}], [("O3", "messages.0")]),
        ([calls(call("a", {})), tool("a")], [("O4", "messages.0.tool_calls.0")]),
        ([calls(call("a", "{")), tool("a")], [("O4", "messages.0.tool_calls.0")]),
        ([calls(call("a", '{"x":NaN}')), tool("a")], [("O4", "messages.0.tool_calls.0")]),
        ([calls(call("a" * 41)), tool("a" * 41)], [("O4", "messages.0.tool_calls.0")]),
        ([calls(call(name="a.b")), tool("a")], [("O4", "messages.0.tool_calls.0")]),
        ([calls({"id": "a", "type": "function"}), tool("a")], [("O4", "messages.0.tool_calls.0")]),
        ([calls(call()), tool("a", [{"type": "image_url"}])], [("O5", "messages.1.content.0")]),
        ([calls(call("a"), call("a")), tool("a")], [("O6", "messages.0.tool_calls.1")]),
    ],
)
def test_what_an_array_shows_that_breaks_a_rule_of_chat(messages: Json, expected: list[tuple[str, str]]) -> None:
    assert told(legality.openai_chat(messages)) == expected


def test_what_only_options_show_of_chat() -> None:
    silent = [ASKED, calls(call()), tool()]
    thoughtful = [ASKED, calls(call(), reasoning_content="hm"), tool()]
    assert legality.openai_chat(thoughtful) == legality.openai_chat(silent) == []
    assert told(legality.openai_chat(silent, reasoning="required")) == [("O7", "messages.1")]
    assert told(legality.openai_chat(thoughtful, reasoning="refused")) == [("O7", "messages.1")]
    assert legality.openai_chat(thoughtful, reasoning="required") == legality.openai_chat(silent, reasoning="refused")


# ---------------------------------------------------------------- Responses


def item(type_: str, **more: Json) -> Json:
    return {"type": type_, **more}


def function(named: Json = "a", **more: Json) -> Json:
    return item("function_call", call_id=named, name="ls", arguments="{}", **more)


def output(named: Json = "a", **more: Json) -> Json:
    return item("function_call_output", call_id=named, output="done", **more)


def message(role: str, type_: str) -> Json:
    return {"type": "message", "role": role, "content": [{"type": type_, "text": "x"}]}


REASONING = item("reasoning", summary=[], encrypted_content="x")


def test_a_legal_conversation_breaks_no_rule_of_responses() -> None:
    items = [
        {"role": "user", "content": "hi"},
        REASONING,
        REASONING,
        function("a", id="fc_1"),
        item("custom_tool_call", call_id="b", name="sh", input="ls"),
        item("local_shell_call", call_id="c", action={}),
        output("c"),
        item("custom_tool_call_output", call_id="b", output=""),
        output("a", id="x"),
        item("web_search_call", id="ws_1", action={"type": "open_page"}),
        message("developer", "input_text"),
        message("assistant", "refusal"),
    ]
    assert legality.openai_responses(items) == []
    assert legality.openai_responses({"input": items}) == []
    assert legality.openai_responses({"input": "hi"}) == []


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ({}, [("R0", "input")]),
        ([1, {}, {"role": "robot", "content": "x"}], [("R0", f"input.{n}") for n in (0, 1, 2)]),
        ([{"role": "user"}], [("R0", "input.0")]),
        ([item("function_call", call_id="a", name="ls", arguments={}), output()], [("R0", "input.0")]),
        ([item("function_call", call_id="a", arguments="{}"), output()], [("R0", "input.0")]),
        ([function(), item("function_call_output", call_id="a")], [("R0", "input.1")]),
        ([function(), {**output(), "output": {"output": "x"}}], [("R0", "input.1")]),
        ([function(), {**output(), "output": [{"type": "text"}]}], [("R0", "input.1.output.0")]),
        ([{**function(), "name": 7}, output()], [("R0", "input.0")]),
        (
            [
                item("custom_tool_call", call_id="a", name="sh", input={}),
                item("custom_tool_call_output", call_id="a", output=""),
            ],
            [("R0", "input.0")],
        ),
        ([function()], [("R1", "input.0")]),
        ([function(), output(), output()], [("R1", "input.2")]),
        ([function(), output(), function(), output()], [("R1", "input.2"), ("R1", "input.3")]),
        ([function(), item("custom_tool_call_output", call_id="a", output="x")], [("R1", "input.1")]),
        ([output(), function()], [("R1", "input.0"), ("R1", "input.1")]),
        ([function(None)], [("R1", "input.0")]),
        ([function("x" * 65), output("x" * 65)], [("R1", "input.0"), ("R1", "input.1")]),
        ([output()], [("R2", "input.0")]),
        ([function(id="call_1"), output()], [("R3", "input.0")]),
        ([function("fc_1", id="fc_1"), output("fc_1")], [("R3", "input.0")]),
        ([{**message("user", "input_text"), "id": "msg_1"}] * 2, [("R3", "input.1")]),
        ([REASONING], [("R4", "input.0")]),
        ([REASONING, message("user", "input_text")], [("R4", "input.0")]),
        ([function(), REASONING, output()], [("R4", "input.1")]),
        ([item("reasoning", summary=[]), message("assistant", "output_text")], [("R5", "input.0")]),
        ([{**REASONING, "content": [{}]}, message("assistant", "output_text")], [("R6", "input.0")]),
        ([item("reasoning", encrypted_content="x"), message("assistant", "output_text")], [("R6", "input.0")]),
        ([{"role": "user", "content": [{"type": "input_text"}]}], [("R7", "input.0.content.0")]),
        ([message("assistant", "input_text")], [("R7", "input.0.content.0")]),
        ([message("user", "output_text")], [("R7", "input.0.content.0")]),
        ([item("web_search_call", action={"type": "other"})], [("R8", "input.0")]),
    ],
)
def test_what_a_list_shows_that_breaks_a_rule_of_responses(items: Json, expected: list[tuple[str, str]]) -> None:
    assert told(legality.openai_responses(items)) == expected


def test_what_only_options_show_of_responses() -> None:
    stored = [item("reasoning", summary=[]), message("assistant", "output_text")]
    assert legality.openai_responses(stored, store=True) == []
    assert legality.openai_responses({"input": stored, "store": True}) == []
    assert legality.openai_responses({"input": [output()], "previous_response_id": "resp_1"}) == []
    assert legality.openai_responses([output()], known={"a"}) == []
    assert told(legality.openai_responses([function("a", id="fc_1"), output()], known={"fc_1"})) == [("R9", "input.0")]


# ---------------------------------------------------------------- anything


VALIDATORS: list[Callable[[Json], list[Violation]]] = [
    legality.anthropic,
    legality.openai_chat,
    legality.openai_responses,
]
WORDS = st.sampled_from(
    "role content type id user assistant tool text thinking tool_use tool_result tool_use_id input call_id name output "
    "tool_calls function arguments image source base64 data media_type messages reasoning message function_call action "
    "function_call_output web_search_call tool_call_id signature server_tool_use summary is_error a".split()
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=6),
    max_leaves=40,
)


@pytest.mark.parametrize("validate", VALIDATORS)
@given(value=st.lists(ANYTHING, max_size=5) | ANYTHING)
def test_nothing_makes_a_validator_raise(validate: Callable[[Json], list[Violation]], value: Json) -> None:
    told(validate(value))


def parts_of(value: Json, at: tuple[Json, ...] = ()) -> Iterator[tuple[Json, ...]]:
    """Where anything stands in a value, as keys and numbers."""
    yield at
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from parts_of(value[key], (*at, key))


def with_other(value: Json, at: tuple[Json, ...], other: Json) -> Json:
    if not at:
        return other
    out = copy.copy(value)
    out[at[0]] = with_other(value[at[0]], at[1:], other)
    return out


OTHERS: list[Json] = [
    None, True, -1, 2**70, 1.5, float("nan"), "", " ", "tool_use", "\ud800", b"x", [], [None], [[]], {}, {"type": []},
    {"role": {}}, {1: 2}, (), {"x"}, object(),
]  # fmt: skip
LEGAL: list[tuple[Callable[[Json], list[Violation]], Json]] = [
    (
        legality.anthropic,
        {
            "messages": [
                user(text(), image(png())),
                says(THOUGHT, REDACTED, SEARCH, FOUND, text(), use("a"), use("b")),
                user(result("a", [text(), image(png())]), result("b", "no", is_error=True), text()),
            ],
            "tools": [{}],
            "system": [text()],
            "thinking": {"type": "enabled"},
        },
    ),
    (
        legality.openai_chat,
        {
            "messages": [
                ASKED,
                calls(call(), reasoning_content="hm"),
                tool("a", [text()]),
                {"role": "user", "content": [text()]},
            ]
        },
    ),
    (
        legality.openai_responses,
        {
            "input": [
                message("user", "input_text"),
                REASONING,
                function(id="fc_1"),
                output(),
                item("custom_tool_call", call_id="b", name="sh", input=""),
                item("custom_tool_call_output", call_id="b", output=[{"type": "input_text"}]),
                item("web_search_call", action={"type": "search"}),
            ],
            "store": False,
            "previous_response_id": None,
        },
    ),
]


@pytest.mark.parametrize(("validate", "array"), LEGAL)
def test_no_wrong_kind_in_any_place_makes_a_validator_raise(
    validate: Callable[[Json], list[Violation]], array: Json
) -> None:
    assert validate(array) == []
    [where] = array.keys() & {"messages", "input"}
    for at in parts_of(array):
        for other in OTHERS:
            told(validate(with_other(array, at, other)))
    # What holds a message or an item, or says what it is, is looked at everywhere.
    for at in parts_of(array[where]):
        if len(at) == 1 or at[-1:] in (("type",), ("role",)):
            assert validate({**array, where: with_other(array[where], at, {})}), at


def test_depth_makes_no_validator_raise() -> None:
    deep: Json = []
    for _ in range(100_000):
        deep = [deep]
    for validate in VALIDATORS:
        assert validate([{"role": "user", "content": deep}, {"type": deep, "role": deep}])
