"""What a server of chat completions is sent: legal whatever the history holds, and the text as it was said."""

import json
from pathlib import Path
from typing import Any

import pytest

import maka
from maka.runtime.model import ModelRequest
from maka.runtime.models.chat_request import chat_body, chat_messages, is_object
from support.builder import Builder
from support.folds import history
from support.nonsense import Nonsense

CORPUS = Path(__file__).parents[2] / "fixtures" / "corpus"


def text(said: str) -> dict[str, Any]:
    return {"kind": "text", "text": said}


def asked(call_id: str, name: str = "look", arguments: str = "{}") -> dict[str, Any]:
    return {"kind": "tool_call", "call_id": call_id, "name": name, "arguments": arguments}


def answered(call_id: str, *content: dict[str, Any], state: str = "ok") -> dict[str, Any]:
    return {
        "kind": "tool_result",
        "call_id": call_id,
        "content": list(content),
        "is_error": state != "ok",
        "state": state,
    }


def of(role: str, *content: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": list(content)}


def sent(*messages: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    return chat_messages(ModelRequest("m", list(messages), **more))


def assert_legal_chat(messages: list[dict[str, Any]]) -> None:
    """Each call answered exactly once, directly behind its message; no message without what it must have."""
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] == waiting.pop(0)
            assert isinstance(message["content"], str)
            assert message["content"]
            continue
        assert not waiting, "calls are not answered"
        assert message["content"] or message.get("tool_calls"), "an empty message"
        if message["role"] == "user" and isinstance(message["content"], list):
            assert all(part["type"] in ("text", "image_url") for part in message["content"])
        else:
            assert isinstance(message["content"], str) or message.get("tool_calls")
        for call in message.get("tool_calls", ()):
            assert message["role"] == "assistant"
            assert 0 < len(call["id"]) <= 40
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
            assert call["function"]["name"]
            waiting.append(call["id"])
        assert len(set(waiting)) == len(waiting), "two calls share an id"
    assert not waiting, "the last calls are not answered"


# ---------------------------------------------------------------- whatever the history holds


@pytest.mark.parametrize("wild", [0.0, 0.2])
def test_every_history_becomes_a_legal_chat(wild: float) -> None:
    told = 0
    for seed in range(150):
        messages = history(Nonsense(seed, 60, wild)).messages()
        chat = sent(*messages)
        assert_legal_chat(chat)
        told += sum(len(message.get("tool_calls", ())) for message in chat)
        json.dumps(chat)
    assert told > 100, "the histories hold no calls"


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.repaired.jsonl")), ids=lambda path: path.stem)
def test_every_repaired_journal_of_the_corpus_becomes_a_legal_chat(path: Path) -> None:
    assert_legal_chat(sent(*maka.inspect(path).messages()))


def test_the_end_of_a_turn_that_was_cut_off_is_told_as_a_failed_call() -> None:
    builder = Builder().start("pay").step().says("", ["c1"])
    builder.call("c1")
    *_, result = sent(*history(builder).messages())
    assert result["role"] == "tool"
    assert result["content"].startswith("[unknown] ")


# ---------------------------------------------------------------- messages


def test_a_conversation_with_calls() -> None:
    assert sent(
        of("user", text("look"), text("twice")),
        of(
            "assistant",
            {"kind": "thinking", "text": "hm"},
            text("I look."),
            asked("a"),
            asked("b", arguments='{"n":1}'),
        ),
        of("tool", answered("a", text("one"), text("two")), answered("b", text("no"), state="error")),
        of("assistant", text("done")),
        system="be brief",
    ) == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "look\n\ntwice"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}},
                {"id": "b", "type": "function", "function": {"name": "look", "arguments": '{"n":1}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "one\n\ntwo"},
        {"role": "tool", "tool_call_id": "b", "content": "[error] no"},
        {"role": "assistant", "content": "done"},
    ]


def test_a_call_without_words_has_no_content() -> None:
    calling, _ = sent(of("assistant", asked("a")), of("tool", answered("a", text("x"))))
    assert calling["content"] is None


def test_a_message_of_nothing_but_thinking_is_left_out() -> None:
    assert sent(of("assistant", {"kind": "thinking", "text": "hm", "signature": "s"})) == []


def test_a_result_without_content_says_so() -> None:
    assert sent(of("assistant", asked("a")), of("tool", answered("a")))[1]["content"] == "(no output)"


def test_an_image_is_shown_beside_text_in_its_order() -> None:
    image = {"kind": "image", "media_type": "image/png", "data": "AAAA"}
    (message,) = sent(of("user", text("what is this?"), image))
    assert message["content"] == [
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    ]


@pytest.mark.parametrize(
    "block",
    [
        {"kind": "image", "media_type": "image/png", "ref": "sha256:" + "0" * 64},
        {"kind": "file", "media_type": "application/pdf", "name": "plan.pdf", "data": "AAAA"},
    ],
)
def test_what_cannot_be_shown_is_named(block: dict[str, Any]) -> None:
    (message,) = sent(of("user", text("look"), block))
    assert block["media_type"] in message["content"]
    assert block.get("name", block.get("ref")) in message["content"]
    assert "AAAA" not in message["content"]


def test_an_image_of_a_tool_is_named_for_results_are_text() -> None:
    image = {"kind": "image", "media_type": "image/png", "data": "AAAA"}
    result = sent(of("assistant", asked("a")), of("tool", answered("a", text("here"), image)))[1]
    assert result["content"] == "here\n\n[image, image/png: the content is not shown]"


# ---------------------------------------------------------------- calls


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ('{"a": 1}', '{"a": 1}'),
        (' {"a":1.0}\n', ' {"a":1.0}\n'),
        ("", "{}"),
        (" \n", "{}"),
        ('{"a": ', '{"not_json": "{\\"a\\": "}'),
        ("[1]", '{"not_json": "[1]"}'),
        ("{" * 100_000, json.dumps({"not_json": "{" * 100_000})),
    ],
    ids=["object", "as it is", "nothing", "blank", "half", "list", "deep"],
)
def test_arguments_are_the_raw_text_of_an_object_or_stand_in_one(raw: str, expected: str) -> None:
    calling = sent(of("assistant", asked("a", arguments=raw)), of("tool", answered("a")))[0]
    assert calling["tool_calls"][0]["function"]["arguments"] == expected


def test_deep_nesting_is_no_object() -> None:
    assert not is_object('{"a":' * 100_000)


def test_ids_that_are_too_long_or_doubled_get_others_on_both_sides() -> None:
    ids = ["x" * 41, "", "b", "b", "call_0_3"]
    calling, *results = sent(of("assistant", *map(asked, ids)), of("tool", *map(answered, ids)))
    wired = [call["id"] for call in calling["tool_calls"]]
    assert [result["tool_call_id"] for result in results] == wired
    assert len(set(wired)) == 5
    assert all(0 < len(call_id) <= 40 for call_id in wired)
    assert wired[2] == "b"


def test_a_name_that_no_function_can_have_is_changed_unless_a_tool_has_it() -> None:
    history = of("assistant", asked("a", "rm -rf"), asked("b", ""), asked("c", "fs.read"))
    results = of("tool", answered("a"), answered("b"), answered("c"))
    calling, *_ = sent(history, results, tools=[{"name": "fs.read", "description": "", "parameters": {}}])
    assert [call["function"]["name"] for call in calling["tool_calls"]] == ["rm_-rf", "_", "fs.read"]


def test_results_that_do_not_answer_the_calls_are_a_defect() -> None:
    with pytest.raises(ValueError, match="argument"):
        sent(of("assistant", asked("a"), asked("b")), of("tool", answered("a")))


# ---------------------------------------------------------------- the body


def test_the_body_has_the_parameters_and_the_tools() -> None:
    tool = {"name": "look", "description": "looks", "parameters": {"type": "object"}}
    params = {"temperature": 0.5, "top_k": 3, "stream": False, "model": "another"}
    assert chat_body(ModelRequest("m", [of("user", text("hi"))], None, [tool], params)) == {
        "temperature": 0.5,
        "top_k": 3,
        "model": "m",
        "stream": True,
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": tool}],
    }


def test_without_tools_there_is_no_list_of_them() -> None:
    assert "tools" not in chat_body(ModelRequest("m", []))
