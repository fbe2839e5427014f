"""Lines of a DeepSeek Harness log that do not hold what they must: told, read as far as they go, and kept."""

import copy
import json
from typing import Any

import pytest

from maka.journal.foreign import dsh_stream
from support.dsh_log import Log, text, thought, wants
from support.foreign import Folded, folded

FAILURE = {"code": "SERVER", "message": "500"}


def log() -> Log:
    """A turn with a line of each kind that says something."""
    out = Log(3)
    out.start()
    out.user("the prompt")
    out.put("system/message", {"message": {"content": [text("the rules")]}}, surfaceOp="append")
    out.put("assistant/attempt", {"stream": [{"chunk": {"type": "text-delta", "index": 0, "text": "a first try"}}]})
    out.put("llm/retry", {"failure": dict(FAILURE)})
    out.answer(thought("a thought"), text("an answer"), wants("c1"))
    out.call("c1")
    out.put("tool/code-dispatch-start", {"subCallId": "s", "name": "inner", "arguments": {}})
    out.put("tool/code-dispatch", {"subCallId": "s", "name": "inner", "arguments": {}, "content": [text("inside")]})
    image = {"type": "image", "attachment": {"attachmentId": "sha256:0"}}
    out.result("c1", "a result", code="ENOENT")
    out.lines[-1]["data"]["message"]["content"][0]["content"].append(image)
    out.put("session/title", {"title": "a title"})
    out.row("text-chunks", ["half ", "an ", "answer"])
    out.chunk(type="text-delta", index=0, text=" more")
    out.chunk(type="tool-call-delta", index=1, id="c2", name="look", argumentsDelta='{"at"')
    out.chunk(type="block-end", index=0, block=text("half an answer, more"))
    out.chunk(type="usage", usage={"inputTokens": 3, "outputTokens": 1})
    out.chunk(type="finish", reason={"kind": "error", "failure": dict(FAILURE)})
    out.end()
    return out


def spoiled(type_: str, path: str, value: Any, kind: str | None = None) -> tuple[Log, int]:
    """The first line of this type (of pieces: of this kind) with one value that is another, or gone; and its number."""
    out = copy.deepcopy(log())
    for number, line in enumerate(out.lines, 1):
        if line["type"] != type_ or (kind is not None and line["data"].get("chunk", {}).get("type") != kind):
            continue
        inner: Any = line
        *way, last = [int(key) if key.isdigit() else key for key in path.split(".")]
        for key in way:
            inner = inner[key]
        if value is ...:
            del inner[last]
        else:
            inner[last] = value
        return out, number
    raise AssertionError(type_)


def kept(found: Folded) -> list[tuple[int, Any]]:
    return [(data["line"], data["value"]) for data in found.main.of("x-foreign/line") if data["type"] != "session"]


def test_nothing_is_told_of_lines_that_have_all() -> None:
    found = folded(log().lines, "dsh")
    assert (found.found("misfit"), kept(found)) == ([], [])


@pytest.mark.parametrize("value", [..., None, -7])
@pytest.mark.parametrize(
    ("type_", "path", "kind"),
    [
        ("user/message", "data", None),
        ("user/message", "data.content", None),
        ("user/message", "data.source", None),
        ("user/message", "data.source.kind", None),
        ("system/message", "data.message.content", None),
        ("assistant/message", "data.message", None),
        ("assistant/message", "data.message.content", None),
        ("assistant/message", "data.message.content.2.name", None),
        ("assistant/message", "data.message.content.2.arguments", None),
        ("assistant/attempt", "data.stream", None),
        ("assistant/attempt", "data.stream.0.chunk", None),
        ("assistant/attempt", "data.stream.0.chunk.type", None),
        ("assistant/attempt", "data.stream.0.chunk.text", None),
        ("llm/retry", "data.failure.message", None),
        ("tool/call", "data.name", None),
        ("tool/code-dispatch-start", "data.subCallId", None),
        ("tool/code-dispatch", "data.content", None),
        ("tool/result", "data.message.content", None),
        ("tool/result", "data.message.content.0", None),
        ("tool/result", "data.message.content.0.content", None),
        ("tool/result", "data.message.content.0.content.1.attachment.attachmentId", None),
        ("session/title", "data.title", None),
        ("text-chunks", "data.texts", None),
        ("text-chunks", "data.texts.1", None),
        ("text-chunks", "data.index", None),
        ("assistant/chunk", "data.chunk", None),
        ("assistant/chunk", "data.chunk.type", "text-delta"),
        ("assistant/chunk", "data.chunk.index", "text-delta"),
        ("assistant/chunk", "data.chunk.text", "text-delta"),
        ("assistant/chunk", "data.chunk.argumentsDelta", "tool-call-delta"),
        ("assistant/chunk", "data.chunk.block.type", "block-end"),
        ("assistant/chunk", "data.chunk.usage", "usage"),
        ("assistant/chunk", "data.chunk.reason", "finish"),
        ("assistant/chunk", "data.chunk.reason.kind", "finish"),
        ("assistant/chunk", "data.chunk.reason.failure.message", "finish"),
    ],
)
def test_a_value_that_must_be_there_is_missed(type_: str, path: str, kind: str | None, value: Any) -> None:
    if (path, value) in (
        ("data.message.content.2.arguments", -7),
        ("data.texts.1", ...),
        ("data.message.content.0", ...),
    ):
        value = None  # these would be as good as what stands there
    made, number = spoiled(type_, path, value, kind)
    found = folded(made.lines, "dsh")
    assert (number, None) in found.found("misfit")
    assert (number, made.lines[number - 1]) in kept(found)


@pytest.mark.parametrize(
    ("path", "value"),
    [("surfaceOp", "insert"), ("surfaceOp", {"op": "remove"}), ("surfaceOp", 5), ("data.id", 9), ("data.source", "me")],
)
def test_a_value_that_need_not_be_there_must_be_of_its_kind(path: str, value: Any) -> None:
    made, number = spoiled("user/message", path, value)
    found = folded(made.lines, "dsh")
    assert found.found("misfit") == [(number, None)]
    assert kept(found) == [(number, made.lines[number - 1])]
    assert found.main.texts()[0] == "the prompt"


@pytest.mark.parametrize(
    ("kind", "path", "word"),
    [
        ("text-delta", "data.chunk.type", "text-de~ta"),
        ("block-end", "data.chunk.block.type", "hologram"),
        ("finish", "data.chunk.reason.kind", "bored"),
    ],
)
def test_a_word_that_is_not_known_of_a_piece(kind: str, path: str, word: str) -> None:
    made, number = spoiled("assistant/chunk", path, word, kind)
    found = folded(made.lines, "dsh")
    assert found.found("misfit") == [(number, None)]
    assert kept(found) == [(number, made.lines[number - 1])]


def test_many_lines_that_lack_the_same_are_told_once_and_kept_each() -> None:
    made = Log()
    made.start()
    for _ in range(5):
        made.chunk(type="?", index=0, text="x")
    found = folded(made.lines, "dsh")
    assert (found.found("misfit"), len(kept(found))) == ([(4, None)], 5)


@pytest.mark.parametrize("value", [{"words": "the prompt"}, 12, True])
def test_content_of_any_kind_is_told_as_it_stands(value: Any) -> None:
    made, _ = spoiled("user/message", "data.content", value)
    assert folded(made.lines, "dsh").main.texts()[0] == json.dumps(value).replace(" ", "").replace(
        "theprompt", "the prompt"
    )


def test_a_result_that_is_no_block_is_told_all_the_same() -> None:
    made, _ = spoiled("tool/result", "data.message.content", "just words")
    result = folded(made.lines, "dsh").main.of("tool/result")[0]
    assert (result["call_id"], result["content"]) == ("c1", [{"kind": "text", "text": "just words"}])


def test_of_two_blocks_in_a_result_the_other_one_is_kept() -> None:
    made, number = spoiled("session/title", "data.title", "a title")
    content = next(line for line in made.lines if line["type"] == "tool/result")["data"]["message"]["content"]
    content.append(copy.deepcopy(content[0]))
    found = folded(made.lines, "dsh")
    assert found.found("misfit") == [(number - 1, None)]
    assert [line for line, _ in kept(found)] == [number - 1]


@pytest.mark.parametrize("version", [0, 3])
def test_a_message_without_its_content_is_what_came_of_it(version: int) -> None:
    made = Log(version)
    made.start()
    made.user("go")
    pieces: list[dict[str, Any]] = [
        {"type": "text-delta", "index": 0, "text": "so far"},
        {"type": "finish", "reason": {"kind": "stop"}},
    ]
    if version == 0:
        for piece in pieces:
            made.chunk(**piece)
    given = {} if version == 0 else {"stream": [{"type": "chunk", "chunk": piece} for piece in pieces]}
    made.answer(data={"message": {"id": "m", "content": None}, **given})
    made.end()
    found = folded(made.lines, "dsh")
    assert found.main.texts() == ["go", "so far"]
    assert [data["stop_reason"] for data in found.main.of("assistant/message")] == ["stop"]
    assert found.codes() == ["misfit"]


def test_the_tokens_of_an_attempt_that_said_nothing_are_told() -> None:
    made = Log()
    made.start()
    made.user("go")
    made.chunk(type="usage", usage={"inputTokens": 9, "outputTokens": 0})
    made.end("error", error=dict(FAILURE))
    found = folded(made.lines, "dsh")
    assert [data["text"] for data in found.main.of("session/note")] == ["input_tokens: 9"]


def test_of_too_much_that_broke_off_the_end_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dsh_stream, "_MOST", 4)
    made = Log()
    made.start()
    made.user("go")
    made.row("text-chunks", ["abc", "def", "ghi"])
    found = folded(made.lines, "dsh")
    assert (found.main.texts(), found.found("misfit")) == (["go", "abcdef"], [(5, None)])


def test_an_end_that_is_not_known_is_kept() -> None:
    made = Log()
    made.said("a", "b")
    made.lines[-1]["data"]["reason"] = {"kind": "bored", "of": "this"}
    found = folded(made.lines, "dsh")
    assert kept(found) == [(len(made.lines), made.lines[-1])]


@pytest.mark.parametrize("lost", ["id", "createdAt"])
def test_a_header_that_lacks_something_is_kept(lost: str) -> None:
    made = Log()
    made.said("a", "b")
    del made.lines[0][lost]
    found = folded(made.lines, "dsh")
    assert found.found("misfit") == [(1, None)]
    assert [data["value"] for data in found.main.of("x-foreign/line")] == [made.lines[0]]
