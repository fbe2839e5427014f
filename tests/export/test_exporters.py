"""What exporters make of neutral messages: legal for each provider whatever they hold, and nothing of it lost."""

import base64
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maka.journal import export, legality
from maka.journal.errors import JournalError
from maka.repair.session import survey
from support.builder import Builder
from support.folds import history
from support.nonsense import Nonsense

Json = Any
CORPUS = Path(__file__).parents[2] / "fixtures" / "corpus"


def legal(messages: Json, **options: Json) -> tuple[Json, Json, Json]:
    """All three forms, of which no validator says anything."""
    request = export.anthropic(messages, **options)
    chat, items = export.openai_chat(messages, **options), export.openai_responses(messages, **options)
    assert legality.anthropic(request) == []
    assert legality.openai_chat(chat, portable=True, reasoning="refused") == []
    assert legality.openai_responses(items) == []
    # What no server could be sent is not given either.
    for form in (request, chat, items):
        json.dumps(form, ensure_ascii=False, allow_nan=False).encode()
    return request["messages"], chat, items


def said(*texts: str) -> Json:
    return {"role": "user", "content": [{"kind": "text", "text": text} for text in texts]}


def block(text: str) -> Json:
    return {"kind": "text", "text": text}


def call(call_id: Json = "c", arguments: Json = "{}", name: Json = "ls") -> Json:
    return {"kind": "tool_call", "call_id": call_id, "name": name, "arguments": arguments}


def answer(*blocks: Json) -> Json:
    return {"role": "assistant", "content": list(blocks)}


def result(*content: Json, call_id: Json = "c", state: str = "ok") -> Json:
    return {
        "kind": "tool_result",
        "call_id": call_id,
        "content": list(content),
        "is_error": state != "ok",
        "state": state,
    }


def results(*blocks: Json) -> Json:
    return {"role": "tool", "content": list(blocks)}


def png(width: int = 2, height: int = 2) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height) + b"\x08\x02\0\0\0" + b"\0" * 16


def image(data: bytes, media_type: str = "image/png") -> Json:
    return {"kind": "image", "media_type": media_type, "data": base64.b64encode(data).decode()}


# ---------------------------------------------------------------- the forms


def test_a_turn_with_a_tool() -> None:
    messages, chat, items = legal(history(Builder().tool_turn()).messages())
    assert messages == [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "tool", "input": {}}]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "done"}]}],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "ok"}]},
        {"role": "user", "content": [{"type": "text", "text": "Continue."}]},
    ]
    function = {"name": "tool", "arguments": "{}"}
    assert chat == [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
        {"role": "assistant", "content": "ok"},
    ]
    assert items == [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "function_call", "call_id": "c1", **function},
        {"type": "function_call_output", "call_id": "c1", "output": "done"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ok"}]},
    ]


def test_tools_are_declared_by_their_names_where_they_were_called() -> None:
    assert "tools" not in export.anthropic([said("hi")])
    request = export.anthropic([said("hi"), answer(call(name="a.b"), call("d", name="a_b")), results(result())])
    assert request["tools"] == [{"name": "a_b", "input_schema": {"type": "object"}}]


def test_a_last_answer_can_be_left_last() -> None:
    messages = [said("hi"), answer(block("so  "))]
    left = export.anthropic(messages, closing=None)
    assert left["messages"][-1] == {"role": "assistant", "content": [{"type": "text", "text": "so"}]}
    assert legality.anthropic(left, prefill=True) == []
    assert export.anthropic(messages, closing="And?")["messages"][-1]["content"][0]["text"] == "And?"


def test_results_stand_before_what_was_said_meanwhile_and_after() -> None:
    batch = [call("toolu_1"), call("toolu_2")]
    late = [said("meanwhile"), results(result(block("1"), call_id="toolu_1"))]
    messages, chat, items = legal([said("x"), answer(*batch), *late, results(result(block("2"), call_id="toolu_2"))])
    [_, _, last] = messages
    assert [part.get("tool_use_id") or part["text"] for part in last["content"]] == ["toolu_1", "toolu_2", "meanwhile"]
    assert [message["role"] for message in chat] == ["user", "assistant", "tool", "tool", "user"]
    assert [item.get("output") for item in items] == [None, None, None, "1", "2", None]


def test_ids_that_come_again_are_told_apart_on_both_sides() -> None:
    turn = [said("a"), answer(call("terminal:0")), results(result(block("first"), call_id="terminal:0"))]
    again = [said("b"), answer(call("terminal:0")), results(result(block("second"), call_id="terminal:0"))]
    messages, chat, items = legal([*turn, *again])
    used = {part["id"]: part for message in messages for part in message["content"] if part["type"] == "tool_use"}
    answered = {
        part["tool_use_id"]: part["content"][0]["text"]
        for message in messages
        for part in message["content"]
        if part["type"] == "tool_result"
    }
    assert list(used) == list(answered) == ["terminal_0", "terminal_0_2"]
    assert list(answered.values()) == ["first", "second"]
    assert [message["tool_call_id"] for message in chat if message["role"] == "tool"] == list(used)
    assert [(i["call_id"], i["output"]) for i in items if "output" in i] == list(answered.items())
    grown = export.openai_responses([*turn, *again, *turn])
    assert grown[: len(items)] == items, "what was sent stays as it was"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["call_1|fc_1", "call_2|fc_2"], ["call_1", "call_2"]),
        (["call_a|undefined", "call_a|undefined"], ["call_a", "call_a_2"]),
        (["", "|", "é"], ["call", "call_2", "_"]),
        (["x" * 64, "x" * 65], ["x" * 64, "x" * 62 + "_2"]),
        (["a", "a_2", "a"], ["a", "a_2", "a_3"]),
    ],
)
def test_ids_are_kept_where_they_can_be(given: list[str], expected: list[str]) -> None:
    batch = [said("x"), answer(*map(call, given)), results(*(result(call_id=call_id) for call_id in given))]
    _, chat, items = legal(batch)
    assert [item["call_id"] for item in items if item["type"] == "function_call"] == expected
    assert all(len(made["id"]) <= 40 for made in chat[1]["tool_calls"])


@pytest.mark.parametrize(
    ("arguments", "parsed", "text"),
    [
        ('{"a": 1}', {"a": 1}, '{"a": 1}'),
        ("", {}, "{}"),
        ("{", {"_raw": "{"}, '{"_raw":"{"}'),
        ("[1]", {"_raw": "[1]"}, '{"_raw":"[1]"}'),
        ('{"a":NaN}', {"_raw": '{"a":NaN}'}, '{"_raw":"{\\"a\\":NaN}"}'),
        ('{"a":1e999}', {"_raw": '{"a":1e999}'}, '{"_raw":"{\\"a\\":1e999}"}'),
        ('{"a":"\\ud800"}', {"a": "\ufffd"}, '{"a":"\ufffd"}'),
        ('{"\\ud800":1}', {"\ufffd": 1}, '{"\ufffd":1}'),
        ({"a": 1}, {"a": 1}, '{"a": 1}'),
        (None, {}, "{}"),
    ],
)
def test_arguments_are_an_object_and_valid_json(arguments: Json, parsed: Json, text: str) -> None:
    messages, chat, items = legal([said("x"), answer(call(arguments=arguments)), results(result())])
    assert messages[1]["content"][0]["input"] == parsed
    assert chat[1]["tool_calls"][0]["function"]["arguments"] == text
    assert items[1]["arguments"] == text


@pytest.mark.parametrize("depth", [150, 5_000, 200_000])
def test_arguments_that_are_too_deep_stay_text(depth: int) -> None:
    deep = '{"a":' * depth + "1" + "}" * depth
    messages, _, _ = legal([said("x"), answer(call(arguments=deep)), results(result())])
    assert messages[1]["content"][0]["input"] == {"_raw": deep}


def test_texts_that_say_nothing_are_left_out() -> None:
    messages, _, _ = legal([said(" ", "hi", "\n"), answer(block(""), block("\n\n")), said("there"), answer(block("x"))])
    assert messages[0]["content"] == [{"type": "text", "text": "hi"}, {"type": "text", "text": "there"}]
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]


def test_calls_stand_last_and_are_answered_whatever_is_there() -> None:
    answered = answer(call("a"), block("behind"), call("b"))
    messages, chat, _ = legal([answered, results(result(block(""), call_id="b", state="error"))])
    assert [part["type"] for part in messages[1]["content"]] == ["text", "tool_use", "tool_use"]
    unknown, failed = messages[2]["content"]
    assert "outcome is unknown" in unknown["content"][0]["text"]
    assert (unknown["is_error"], failed["is_error"]) == (True, True)
    assert failed["content"][0]["text"] == "(the call ended as error, and nothing was said)"
    assert chat[2]["content"].startswith("[unknown] ")
    assert messages[0]["content"][0]["text"] == "[No message stands before this answer.]"


def test_a_result_belongs_to_the_nearest_open_call_of_its_id() -> None:
    messages, _, _ = legal([said("x"), answer(call()), said("y"), answer(call()), results(result(block("found")))])
    [first, second] = [message["content"][0] for message in messages[2::2]]
    assert first["is_error"] is True
    assert second["content"] == [{"type": "text", "text": "found"}]


def test_answers_in_a_row_are_one_message() -> None:
    messages, chat, _ = legal([said("x"), answer(block("a")), answer(block("b"), call()), results(result())])
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert chat[1]["content"] == "a\n\nb"


@pytest.mark.parametrize("state", ["error", "cancelled", "unknown", "not_started"])
def test_what_did_not_come_to_its_end_is_a_failed_result(state: str) -> None:
    told = {**result(block("x"), state=state), "is_error": False}
    messages, chat, _ = legal([said("x"), answer(call()), results(told)])
    assert messages[2]["content"][0]["is_error"] is True
    assert chat[2]["content"] == f"[{state}] x"


def test_a_result_of_no_call_is_text() -> None:
    lost = result(block("what was found"), call_id="toolu_lost")
    for form in legal([results(lost), said("x"), answer(block("y"))]):
        shown = json.dumps(form)
        assert "what was found" in shown
        assert "toolu_lost" in shown
        assert "tool_result" not in shown


def test_a_second_result_of_a_call_is_text() -> None:
    messages, _, _ = legal([said("x"), answer(call()), results(result(block("one")), result(block("two")))])
    assert [part["type"] for part in messages[-1]["content"]] == ["tool_result", "text", "text"]


# ---------------------------------------------------------------- thinking


SIGNED = {"kind": "thinking", "text": "hm", "signature": "s"}


def test_thinking_is_left_out() -> None:
    for form in legal([said("x"), answer(SIGNED), answer(SIGNED, block("y"), call()), results(result())]):
        assert "hm" not in json.dumps(form)


@pytest.mark.parametrize(
    ("blocks", "kept"),
    [
        ([SIGNED, block("y"), call()], True),
        ([SIGNED, {"kind": "redacted_thinking", "data": "d"}, call()], True),
        ([SIGNED, {"kind": "thinking", "text": "unsigned"}, call()], False),
        ([{**SIGNED, "text": ""}, call()], False),
        ([{**SIGNED, "ref": "sha256:" + "0" * 64}, call()], False),
        ([call(), SIGNED], False),
        ([block("y"), SIGNED], False),
    ],
)
def test_signed_thinking_can_stay_as_it_was_or_not_at_all(blocks: Json, kept: bool) -> None:
    messages = [said("x"), answer(*blocks), results(result())]
    request = export.anthropic(messages, keep_thinking=True)
    assert legality.anthropic(request) == []
    types = [part["type"] for part in request["messages"][1]["content"] if "thinking" in part["type"]]
    assert types == ([piece["kind"] for piece in blocks if "thinking" in piece["kind"]] if kept else [])
    if kept:
        assert request["messages"][1]["content"][0] == {"type": "thinking", "thinking": "hm", "signature": "s"}


def test_reasoning_is_sent_with_calls_where_it_is_wanted() -> None:
    messages = [said("x"), answer(SIGNED, call()), results(result()), answer(SIGNED, block("y")), answer(SIGNED)]
    chat = export.openai_chat(messages, reasoning=True)
    assert legality.openai_chat(chat, reasoning="required") == []
    assert [message.get("reasoning_content") for message in chat] == [None, "hm", None, None]
    # Of another tool's calls there may be no thinking, and a model that demands it demands it of each message.
    chat = export.openai_chat([said("x"), answer(call()), results(result())], reasoning=True)
    assert legality.openai_chat(chat, reasoning="required") == []
    assert chat[1]["reasoning_content"] == ""


# ---------------------------------------------------------------- images, files, long texts


def texts(form: Json) -> list[str]:
    return [part["text"] for message in form for part in message["content"] if "text" in part]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (image(b"<svg xmlns='http://www.w3.org/2000/svg'/>"), "not png, jpeg, gif or webp"),
        (image(b""), "empty"),
        (image(png()[:18]), "cut off or broken"),
        (image(png(8001, 5)), "8001 × 5 pixels"),
        (image(png() + b"\0" * 4_000_000), "as base64"),
        ({"kind": "image", "media_type": "image/png", "data": "no!"}, "no base64"),
        ({"kind": "image", "media_type": "image/png", "ref": "sha256:" + "0" * 64}, "not at hand"),
        ({"kind": "image"}, "not at hand"),
    ],
)
def test_an_image_that_no_provider_takes_is_told(given: Json, why: str) -> None:
    [message], chat, items = legal([{"role": "user", "content": [given]}])
    [told] = texts([message])
    assert told.startswith("[image removed: ")
    assert why in told
    assert chat[0]["content"] == told
    assert texts(items) == [told]


def test_an_image_has_the_type_of_its_bytes() -> None:
    gif = b"GIF89a\x02\0\x02\0" + b"\0" * 9
    jpeg = b"\xff\xd8\xff\xe0\0\x04ab\xff\xc0\0\x0b\x08\0\x02\0\x02\x01\x01\x11\0"
    webp = b"RIFF\x1a\0\0\0WEBPVP8L\x0d\0\0\0\x2f\x01\x40\0\0" + b"\0" * 8
    for data, media_type in ((gif, "image/gif"), (jpeg, "image/jpeg"), (webp, "image/webp")):
        [message], [chat], [item] = legal([{"role": "user", "content": [image(data)]}])
        coded = base64.b64encode(data).decode()
        assert message["content"][0]["source"] == {"type": "base64", "media_type": media_type, "data": coded}
        assert chat["content"][0]["image_url"]["url"] == f"data:{media_type};base64,{coded}"
        assert item["content"][0] == {"type": "input_image", "image_url": f"data:{media_type};base64,{coded}"}


def test_many_images_are_small_ones() -> None:
    messages, _, _ = legal([{"role": "user", "content": [image(png(2001, 1)), *[image(png())] * 20]}])
    assert "at most 2000 a side" in texts(messages)[0]
    messages, _, _ = legal([{"role": "user", "content": [image(png(2001, 1)), *[image(png())] * 19]}])
    assert texts(messages) == []


def test_images_that_no_provider_takes_can_be_kept() -> None:
    svg = image(b"<svg/>", "image/svg+xml")
    request = export.anthropic([{"role": "user", "content": [svg]}], keep_images=True)
    assert request["messages"][0]["content"][0]["source"]["media_type"] == "image/svg+xml"
    assert [violation.rule for violation in legality.anthropic(request)] == ["A12"]


def test_images_of_results_stand_behind_the_batch() -> None:
    batch = [answer(call("a"), call("b")), results(result(image(png()), call_id="a"), result(call_id="b"))]
    messages, chat, items = legal([said("x"), *batch, said("y")])
    assert messages[2]["content"][0]["content"][0]["type"] == "image"
    assert [message["role"] for message in chat] == ["user", "assistant", "tool", "tool", "user", "user"]
    assert chat[2]["content"] == "[images: in the message behind the results]"
    assert [part["type"] for part in chat[4]["content"]] == ["text", "image_url"]
    assert [part["type"] for part in items[-2]["content"]] == ["input_text", "input_image"]


def test_an_image_of_the_assistant_is_told() -> None:
    messages, _, _ = legal([said("x"), answer(image(png()))])
    assert messages[1]["content"][0]["text"].startswith("[image removed: it is the assistant's")


def test_files_and_unknown_blocks_are_told() -> None:
    file = {"kind": "file", "name": "a.pdf", "media_type": "application/pdf", "ref": "r", "bytes": 7}
    [message], _, _ = legal([{"role": "user", "content": [file, {"kind": "file"}, {"kind": "future"}, {"x": 1}]}])
    assert texts([message]) == [
        "[file: a.pdf, application/pdf, 7 bytes]",
        "[file: of unknown size]",
        "[future: the content is not shown]",
        "[something: the content is not shown]",
    ]


def test_long_texts_are_as_shown_or_whole() -> None:
    blobs = {"sha256:1": b"all of it", "sha256:2": png()}

    def read_blob(ref: str) -> bytes:
        if ref not in blobs:
            raise JournalError("not there")
        return blobs[ref]

    content = [
        {"kind": "text", "text": "all…", "ref": "sha256:1", "bytes": 9},
        {"kind": "text", "ref": "sha256:1", "bytes": 9},
        {"kind": "text", "text": "gone…", "ref": "sha256:3"},
        {"kind": "image", "media_type": "image/png", "ref": "sha256:2"},
    ]
    messages = [{"role": "user", "content": content}]
    [shown], _, _ = legal(messages, read_blob=read_blob)
    assert texts([shown]) == ["all…", "[text: 9 bytes that are kept apart]", "gone…"]
    assert shown["content"][-1]["type"] == "image"
    [whole], _, _ = legal(messages, read_blob=read_blob, whole=True)
    assert texts([whole]) == ["all of it", "all of it", "gone…"]


# ---------------------------------------------------------------- anything


@given(st.integers(0, 2**32), st.integers(1, 80), st.sampled_from([0.0, 0.3]))
def test_whatever_a_journal_holds_is_legal(seed: int, events: int, wild: float) -> None:
    folded = history(Nonsense(seed, events, wild))
    legal(folded.messages())
    "".join(export.markdown(folded.annotated(), "x"))


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.jsonl")), ids=lambda path: path.stem)
def test_each_journal_of_the_corpus_is_legal(path: Path) -> None:
    session = survey(path)
    legal(session.messages())
    "".join(export.markdown(session.history().annotated(), "x"))


@pytest.mark.parametrize(
    "path", [path for path in sorted(CORPUS.rglob("*.jsonl")) if path.is_file()], ids=lambda path: path.stem
)
def test_each_journal_of_the_corpus_is_legal_as_it_stood_after_each_event(path: Path) -> None:
    """Also between a call and its result, in the middle of a batch, at the header."""
    session = survey(path)
    for event in session.events:
        messages = session.history(event.seq).messages()
        legal(messages)
        kept = export.anthropic(messages, keep_thinking=True)
        assert legality.anthropic(kept) == []
        assert legality.openai_chat(export.openai_chat(messages, reasoning=True), reasoning="required") == []
        made = [part["call_id"] for message in messages for part in message["content"] if part["kind"] == "tool_call"]
        used = [part for message in kept["messages"] for part in message["content"] if part["type"] == "tool_use"]
        assert len(used) == len(made)


VALUES = st.none() | st.integers() | st.floats() | st.text(max_size=4) | st.text("\ud800\ud83d\ude00\0 {", max_size=4)
IDS = st.sampled_from(["a", "a|b", "a|c", "A a", "", "x" * 50, "x" * 70]) | VALUES
KINDS = st.sampled_from("text thinking redacted_thinking tool_call tool_result image file future".split())
PARTS = {
    "text": VALUES | st.sampled_from([" ", "said"]),
    "call_id": IDS,
    "name": VALUES | st.just("ls"),
    "arguments": VALUES | st.sampled_from(["{}", '{"a":[1]}', "[", '{"a":"\\ud800"}']),
    "state": VALUES | st.sampled_from(["ok", "error", "unknown"]),
    "is_error": st.booleans() | VALUES,
    "signature": VALUES | st.just("s"),
    "data": VALUES | st.just(image(png())["data"]),
    "media_type": VALUES,
    "ref": VALUES,
    "bytes": VALUES,
}
INNER = VALUES | st.fixed_dictionaries({"kind": KINDS | VALUES}, optional=PARTS)
BLOCK = st.fixed_dictionaries({"kind": KINDS}, optional={**PARTS, "content": st.lists(INNER, max_size=3) | VALUES})
ROLES = st.sampled_from(["user", "assistant", "assistant", "tool"])
MESSAGE = st.fixed_dictionaries({"role": ROLES, "content": st.lists(BLOCK, min_size=1, max_size=4)})
HOSTILE = st.fixed_dictionaries({"role": ROLES | VALUES, "content": st.lists(INNER, max_size=3) | VALUES}) | VALUES
MESSAGES = st.lists(MESSAGE | MESSAGE | HOSTILE, max_size=8)


@given(MESSAGES)
def test_whatever_messages_hold_is_legal(messages: Json) -> None:
    legal(messages)
    kept = export.anthropic(messages, keep_thinking=True, closing=None)
    assert legality.anthropic(kept, prefill=True) == []
    assert legality.openai_chat(export.openai_chat(messages, reasoning=True)) == []
    entries = [message for message in messages if isinstance(message, dict)]
    "".join(export.markdown(entries, "x")).encode()


EXPORTERS: list[Callable[[Json], Json]] = [export.anthropic, export.openai_chat, export.openai_responses]


@pytest.mark.parametrize("make", EXPORTERS)
def test_nothing_is_changed_of_what_is_given(make: Callable[[Json], Json]) -> None:
    messages = [said(" ", "x"), answer(SIGNED, call("a|b")), results(result(image(b"x"), call_id="a|b")), said("y")]
    before = json.dumps(messages)
    assert make(messages) == make(messages)
    assert json.dumps(messages) == before
