"""The provider history and the conversation, from journals of every kind."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.answers import maka, messages, settled, shown, texts, untouched
from support.builder import Builder


def outcome(builder: Builder, call_id: str, call_seq: int, text: str, state: str = "ok", turn: int = 1) -> None:
    data = {"turn_id": f"t{turn}", "run_id": f"r{turn}", "call_id": call_id, "call_seq": call_seq}
    data |= {"operation_id": f"op-{turn}-{call_id}", "state": state, "content": [{"kind": "text", "text": text}]}
    builder.add("tool/outcome", {**data, "is_error": state != "ok", "source": "reconciled"})


def unknown(builder: Builder, call_id: str, call_seq: int) -> None:
    data = {**builder.ids, "step": builder.step_number, "call_id": call_id, "state": "unknown", "is_error": True}
    data |= {"operation_id": f"op-{builder.turn}-{call_id}", "call_seq": call_seq, "synthesized": True}
    data["content"] = [{"kind": "text", "text": "it is not known"}]
    builder.add("tool/result", data)


def _crashed(turns_after: int = 0) -> tuple[Builder, int]:
    builder = Builder().start("go").step().says("", ["c"])
    seq = builder.call("c")
    unknown(builder, "c", seq)
    builder.end_step().end("interrupted")
    for number in range(turns_after):
        builder.plain_turn(f"later {number}")
    return builder, seq


def test_an_outcome_takes_the_place_of_its_unknown_result(tmp_path: Path) -> None:
    builder, seq = _crashed()
    outcome(builder, "c", seq, "it had worked")
    path = builder.write(tmp_path)
    doc = untouched(path)
    assert shown(path) == [("user", "go"), ("assistant", "c:call"), ("tool", "c:ok")]
    assert "it had worked" in texts(messages(path))
    assert "it is not known" not in texts(messages(path))
    assert doc["turns"][0]["calls"][0]["state"] == "unknown"


def test_an_outcome_after_a_later_request_is_told_as_text(tmp_path: Path) -> None:
    builder, seq = _crashed(turns_after=1)
    outcome(builder, "c", seq, "it had worked")
    builder.plain_turn("after that")
    path = builder.write(tmp_path)
    untouched(path)
    flow = shown(path)
    assert flow[:3] == [("user", "go"), ("assistant", "c:call"), ("tool", "c:unknown")]
    told = [number for number, (role, word) in enumerate(flow) if role == "user" and "it had worked" in word]
    assert told
    assert told[0] > flow.index(("user", "later 0"))
    assert told[0] <= flow.index(("user", "after that"))


def test_the_first_outcome_of_a_call_wins(tmp_path: Path) -> None:
    builder, seq = _crashed()
    outcome(builder, "c", seq, "first")
    outcome(builder, "c", seq, "second", "error")
    path = builder.write(tmp_path)
    untouched(path)
    assert shown(path)[-1] == ("tool", "c:ok")
    assert "second" not in texts(messages(path))


def test_an_outcome_within_the_turn_before_the_next_step(tmp_path: Path) -> None:
    builder = Builder().start("go").step().says("", ["c"])
    seq = builder.call("c")
    unknown(builder, "c", seq)
    builder.end_step()
    outcome(builder, "c", seq, "known now")
    builder.step(2).says("good").end_step().end()
    path = builder.write(tmp_path)
    untouched(path)
    assert ("tool", "c:ok") in shown(path)


def test_an_outcome_that_no_later_user_message_follows(tmp_path: Path) -> None:
    """There is nothing to tell it before yet: the history stays legal, and nothing is lost when one comes."""
    builder, seq = _crashed(turns_after=1)
    outcome(builder, "c", seq, "it had worked")
    path = builder.write(tmp_path)
    untouched(path)
    assert shown(path)[2] == ("tool", "c:unknown")


def test_results_are_in_block_order_whatever_order_they_came_in(tmp_path: Path) -> None:
    builder = Builder().start().step().says("", list("abcd"))
    for call in "dbca":
        builder.call(call)
    for call in "cadb":
        builder.result(call, f"of {call}")
    path = builder.end_step().end().write(tmp_path)
    untouched(path)
    tool = messages(path)[2]["content"]
    assert [(block["call_id"], block["content"][0]["text"]) for block in tool] == [(c, f"of {c}") for c in "abcd"]
    assert all(list(block) == ["kind", "call_id", "content", "is_error", "state"] for block in tool)


def test_assistant_messages_in_a_row_are_joined(tmp_path: Path) -> None:
    builder = Builder().start().step().says("one")
    builder.add(
        "assistant/message",
        {**builder.ids, "step": 1, "message_id": "x", "content": [{"kind": "text", "text": "two"}], "stop_reason": "e"},
    )
    builder.end_step().step(2).says("three").end_step().end()
    path = builder.write(tmp_path)
    untouched(path)
    assert [message["role"] for message in messages(path)] == ["user", "assistant"]
    assert [block["text"] for block in messages(path)[1]["content"]] == ["one", "two", "three"]


def test_empty_messages_are_left_out(tmp_path: Path) -> None:
    builder = Builder().start("hi").step().says("").end_step().end()
    builder.start("again").step().says("yes").end_step().end()
    path = builder.write(tmp_path)
    untouched(path)
    assert all(message["content"] for message in messages(path))


def test_a_header_alone_has_no_history(tmp_path: Path) -> None:
    assert messages(Builder().write(tmp_path)) == []


@pytest.mark.parametrize("kept", [3, 5, 7, 9])
def test_a_lost_beginning_is_told_by_user_text(tmp_path: Path, kept: int) -> None:
    builder = Builder().tool_turn()
    path = builder.write(tmp_path, b"".join(line + b"\n" for line in builder.lines[kept:]))
    found = messages(path)
    if found:
        assert found[0]["role"] == "user"
        assert {block["kind"] for block in found[0]["content"]} == {"text"}
    settled(path, "--salvage")


def test_notes_and_failures_are_never_shown_to_a_model(tmp_path: Path) -> None:
    builder = Builder().start("hi").step().says("ok").end_step()
    builder.add("session/note", {"kind": "abort", **builder.ids, "text": "a secret note"})
    reason = {"kind": "failed", "message": "a secret failure", "failure_class": "x"}
    builder.add("turn/end", {**builder.ids, "reason": reason})
    builder.add("run/settled", {"run_id": "r1", "cleanup": {"error": "a secret cleanup"}})
    path = builder.write(tmp_path)
    untouched(path)
    assert "secret" not in json.dumps(messages(path))
    assert "a secret note" in maka("journal", "show", path).out


def test_a_failed_turn_does_not_block_the_next(tmp_path: Path) -> None:
    builder = Builder().start("one").step().end_step()
    builder.add("turn/end", {**builder.ids, "reason": {"kind": "failed", "message": "m"}})
    builder.add("run/settled", {"run_id": "r1"})
    builder.plain_turn("two")
    path = builder.write(tmp_path)
    untouched(path)
    assert [word for _, word in shown(path)] == ["one", "two", "ok"]


def test_steering_stands_between_steps(tmp_path: Path) -> None:
    builder = Builder().start("go").step().says("", ["c"])
    builder.call("c")
    builder.result("c").end_step().user("not that way", "steering").step(2).says("fine").end_step().end()
    path = builder.write(tmp_path)
    untouched(path)
    assert [role for role, _ in shown(path)] == ["user", "assistant", "tool", "user", "assistant"]


@pytest.mark.parametrize("kind", ["user", "steering", "goal", "something new"])
def test_any_source_kind_is_kept(tmp_path: Path, kind: str) -> None:
    builder = Builder()
    builder.turn = 1
    run = builder.run("r1", "t1")
    builder.add("turn/start", {**builder.ids, "invocation_id": "i-r1", "turn": 1, "run": run}, more=1)
    builder.user("hello", kind).step().says().end_step().end()
    path = builder.write(tmp_path)
    untouched(path)
    assert shown(path)[0] == ("user", "hello")


def test_blocks_that_a_reader_does_not_know(tmp_path: Path) -> None:
    content: list[Any] = [
        {"kind": "text", "text": "known"},
        *({"kind": "future", "x": 1}, None, 7, "x", [], {}, {"kind": 3}, {"kind": "text"}, {"kind": "text", "text": 7}),
        {"kind": "tool_call"},
        {"kind": "tool_call", "call_id": 5, "name": None, "arguments": {}},
        {"kind": "tool_call", "call_id": "c", "name": None, "arguments": None},
        {"kind": "tool_result", "call_id": "c", "content": []},
    ]
    builder = Builder().start().step()
    message = {**builder.ids, "step": 1, "message_id": "a", "content": content, "stop_reason": "x"}
    builder.add("assistant/message", message)
    path = builder.write(tmp_path)
    settled(path)
    for command in ("inspect", "show", "tail"):
        assert maka("journal", command, path).code == 0


def test_a_result_of_a_call_that_was_never_asked_for_is_text(tmp_path: Path) -> None:
    builder = Builder().start("go").step().says("hm").result("ghost", "from nowhere").end_step().end()
    path = builder.write(tmp_path)
    found = messages(path)
    assert any("from nowhere" in text for text in texts(found))
    assert not any(block.get("kind") == "tool_result" for message in found for block in message["content"])


def test_a_second_result_does_not_replace_the_first(tmp_path: Path) -> None:
    builder = Builder().start("go").step().says("", ["c"])
    builder.call("c")
    path = builder.result("c", "first").result("c", "second").end_step().end().write(tmp_path)
    assert "first" in texts(messages(path))
    assert [word for role, word in shown(path) if role == "tool"] == ["c:ok"]


@pytest.mark.parametrize(
    "hostile", ["\x1b]0;owned\x07", "\x1b[2J\x1b[31m", "\x9b31m", "\u202eevil", "a\rb", "\x00", "\x7f"]
)
def test_nothing_hostile_reaches_a_terminal(tmp_path: Path, hostile: str) -> None:
    builder = Builder(name=hostile, labels=[hostile], model="m" + hostile, cwd="/tmp/" + hostile)
    builder.start("ask " + hostile).step().says("say " + hostile, ["c" + hostile])
    builder.call("c" + hostile, name="tool" + hostile)
    builder.result("c" + hostile, "result " + hostile)
    builder.add("session/note", {"kind": hostile, "text": hostile, "source": hostile})
    builder.add("x-" + "team/thing", {"x": hostile})
    request = {"interaction_id": "i" + hostile, **builder.ids, "kind": "question", "request": {"questions": []}}
    builder.add("interaction/requested", request)
    builder.add("turn/stop_requested", {"stop_id": "s", **builder.ids, "source": hostile, "mode": "immediate"})
    path = builder.write(tmp_path)
    answers = [maka("journal", command, path) for command in ("inspect", "show", "tail", "verify")]
    answers += [maka("journal", "inspect", path, "--events"), maka("journal", "list", "--root", tmp_path)]
    answers += [maka("journal", "repair", path, "--dry-run"), maka("journal", "repair", path)]
    for answer in answers:
        for character in answer.out + answer.err:
            assert character == "\n" or character.isprintable() or character == "\t", (repr(character), answer.out)
        assert "\u202e" not in answer.out


def test_what_a_person_reads_marks_what_the_history_hides(tmp_path: Path) -> None:
    builder = Builder().start("go").step().says("", ["c", "d"])
    builder.call("c")
    builder.result("c", "first").result("c", "second").end_step().end()
    path = builder.write(tmp_path)
    out = maka("journal", "show", path).out
    for words in ("go", "first", "second", "tool"):
        assert words in out
