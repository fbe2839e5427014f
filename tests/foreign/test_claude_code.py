"""Transcripts of Claude Code: what they hold, in which order, and what is wrong with them."""

import copy
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.foreign import REAL, Folded, folded, real

SVG = "PHN2ZyB4bWxucz0iaHR0cDovL3d3dy53My5vcmcvMjAwMC9zdmciLz4="
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"
_seconds = itertools.count()


def chained(type_: str, uuid: str, parent: str | None, **more: Any) -> dict[str, Any]:
    second = next(_seconds) % 60
    base = {
        "uuid": uuid,
        "parentUuid": parent,
        "isSidechain": False,
        "sessionId": "5e551044-0000-4000-8000-000000000001",
    }
    return {"type": type_, **base, "cwd": "/w", "timestamp": f"2026-02-01T10:00:{second:02}.000Z", **more}


def says(uuid: str, parent: str | None, content: Any, **more: Any) -> dict[str, Any]:
    return chained("user", uuid, parent, message={"role": "user", "content": content}, **more)


def answers(uuid: str, parent: str | None, response: str | None, *blocks: Any, **more: Any) -> dict[str, Any]:
    usage = more.pop("usage", {"input_tokens": 10, "output_tokens": 5})
    message = {"id": response, "role": "assistant", "model": more.pop("model", "m1"), "content": list(blocks)}
    return chained("assistant", uuid, parent, message={**message, "stop_reason": None, "usage": usage}, **more)


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def use(call_id: str, name: str = "Bash", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def result(uuid: str, parent: str | None, call_id: str, content: Any = "done", **more: Any) -> dict[str, Any]:
    return says(uuid, parent, [{"type": "tool_result", "tool_use_id": call_id, "content": content, **more}])


def read(*lines: Any, name: str = "file.jsonl") -> Folded:
    return folded(list(lines), "claude-code", name)


WHOLE = [
    says("u1", None, "list files"),
    answers("a1", "u1", "r1", {"type": "thinking", "thinking": "hm", "signature": "s"}),
    answers("a2", "a1", "r1", use("c1", command="ls")),
    result("t1", "a2", "c1", "a\nb"),
    answers("a3", "a2", "r1", use("c2", "Read", path="a"), usage={"input_tokens": 10, "output_tokens": 40}),
    {"type": "progress", "uuid": "p1", "parentUuid": "a3", "data": {"type": "hook"}},
    result("t2", "a3", "c2", [text("hello"), {"type": "image", "source": {"type": "base64", "media_type": "image/png",
           "data": PNG}}], is_error=True),
    answers("a4", "t2", "r2", text("two files")),
    says("u2", "a4", [text("thanks")]),
    answers("a5", "u2", "r3", text("welcome")),
]  # fmt: skip


def test_one_response_is_all_lines_of_its_id() -> None:
    main = read(*WHOLE).main
    assert [[block["kind"] for block in data["content"]] for data in main.of("assistant/message")] == [
        ["thinking", "tool_call", "tool_call"],
        ["text"],
        ["text"],
    ]
    assert main.statuses() == ["completed", "completed"]
    assert main.state.usage_row()["output_tokens"] == 50
    assert main.state.usage_row()["input_tokens"] == 30
    assert [data["state"] for data in main.of("tool/result")] == ["ok", "error"]
    assert main.of("tool/result")[1]["content"][1] == {"kind": "image", "media_type": "image/png", "data": PNG}
    assert main.of("request/header")[0]["header"] == {"provider": "anthropic", "model": "m1"}
    assert (main.header["cwd"], main.header["model"]) == ("/w", "m1")
    assert main.header["imported_from"]["session_id"] == "5e551044-0000-4000-8000-000000000001"


def test_lines_without_a_conversation_are_kept() -> None:
    folded = read(*WHOLE, {"type": "brand-new", "x": [1]}, {"type": "brand-new"}, {"n": 1})
    kept = folded.main.of("x-foreign/line")
    assert [data["type"] for data in kept] == ["progress", "brand-new", "brand-new", "untyped"]
    assert kept[1]["value"] == {"type": "brand-new", "x": [1]}
    assert folded.report.kept == {"progress": 1, "brand-new": 2, "untyped": 1}
    assert folded.codes() == ["unknown_lines", "unknown_lines"]


def test_the_file_name_is_the_session_where_it_is_an_id() -> None:
    name = "0a0a0a0a-0000-4000-8000-000000000009.jsonl"
    assert read(*WHOLE, name=name).main.header["imported_from"]["session_id"] == name.removesuffix(".jsonl")


def test_a_call_at_the_end_is_open() -> None:
    folded = read(*WHOLE[:4], answers("a9", "t1", "r1", use("c2")))
    assert folded.main.statuses() == ["interrupted"]
    assert "turn/end" not in folded.main.types()
    assert folded.codes() == ["open_turn", "unknown_outcome"]
    assert folded.main.results() == ["ok", "unknown"]


def test_a_result_that_comes_behind_the_next_response_belongs_to_its_call() -> None:
    folded = read(
        says("u1", None, "go"),
        answers("a1", "u1", "r1", use("c1"), use("c2")),
        result("t2", "a1", "c2", "second"),
        answers("a2", "t2", "r2", text("meanwhile")),
        result("t1", "a1", "c1", "first"),
        answers("a3", "t1", "r3", text("done")),
    )
    assert folded.main.results() == ["ok", "ok"]
    assert folded.codes() == []
    assert folded.main.of("tool/outcome") == []


def test_a_result_that_comes_behind_a_compaction_is_late_and_told_as_text() -> None:
    folded = read(
        says("u1", None, "start"),
        answers("a1", "u1", "r1", use("bg")),
        chained("system", "b", None, subtype="compact_boundary", compactMetadata={"trigger": "auto"}),
        says("s", "b", "what was done", isCompactSummary=True),
        result("t1", "s", "bg", "job done"),
        answers("a2", "t1", "r2", text("finished")),
        says("u2", "a2", "and now?"),
    )
    assert folded.found("late_result") == [(5, 2)]
    [outcome] = folded.main.of("tool/outcome")
    assert (outcome["source"], outcome["call_id"]) == ("late", "bg")
    assert "job done" in folded.main.texts()
    assert folded.main.texts()[0] == "what was done"
    assert folded.main.results() == []


def test_a_result_of_nobody_is_told_as_text() -> None:
    folded = read(
        says("u1", None, "go"), answers("a1", "u1", "r1", text("a")), result("t1", "a1", "lost", "42 files"),
        answers("a2", "t1", "r2", text("there are 42")),
    )  # fmt: skip
    assert folded.found("orphan_result") == [(3, None)]
    assert "42 files" in folded.main.texts()
    assert folded.main.results() == []
    assert folded.main.statuses() == ["completed"]


def test_a_prompt_that_another_one_replaced_is_a_branch() -> None:
    folded = read(
        *WHOLE[:8],
        says("w1", "a4", "first try"),
        answers("w2", "w1", "w", use("wc")),
        result("w3", "w2", "wc"),
        says("w4", "w3", "more of it"),
        says("u2", "a4", "second try"),
        answers("a6", "u2", "r6", text("better")),
    )
    assert folded.found("rewound") == [(9, 13)]
    assert folded.main.texts()[-2:] == ["second try", "better"]
    assert "first try" not in folded.main.texts()
    [branch] = [thread for name, thread in folded.threads.items() if name]
    assert branch.fork.thread == ""
    assert folded.main.drafts[branch.fork.seq].type == "run/settled"
    assert branch.texts() == ["first try", "more of it"]
    assert branch.of("turn/start")[0]["turn"] == folded.main.of("turn/start")[1]["turn"] == 2


def test_two_answers_to_one_prompt_are_both_kept() -> None:
    folded = read(
        says("u1", None, "q"), answers("a1", "u1", "r1", text("one")), answers("a2", "u1", "r2", text("two")),
        says("u2", "a2", "thanks"),
    )  # fmt: skip
    assert folded.main.texts() == ["q", "one", "two", "thanks"]
    assert folded.codes() == ["assistant_siblings", "open_turn"]


def test_parents_that_are_not_there_take_nothing_with_them() -> None:
    folded = read(
        says("u1", None, "one"), answers("a1", "u1", "r1", text("1")),
        says("u2", "ghost", "two"), answers("a2", "u2", "r2", text("2")),
        says("u3", "ghost", "three"), answers("a3", "u3", "r3", text("3")),
    )  # fmt: skip
    assert folded.main.texts() == ["one", "1", "two", "2", "three", "3"]
    assert folded.found("missing_parent") == [(3, None), (5, None)]
    assert len(folded.threads) == 1


def test_cycles_of_parents_end() -> None:
    folded = read(
        says("u1", "u1", "one"), says("u2", "u3", "two"), says("u3", "u2", "three"), answers("a", "u3", "r", text("x")),
        says("u4", "u5", "four"), says("u5", None, "five"),
    )  # fmt: skip
    assert folded.main.texts() == ["one", "two", "three", "x", "four", "five"]
    assert folded.found("parent_cycle") == [(1, None), (2, None)]


def test_a_line_that_stands_twice_counts_once() -> None:
    folded = read(*WHOLE, WHOLE[-1], WHOLE[0])
    assert folded.main.texts() == read(*WHOLE).main.texts()
    assert folded.main.state.usage_row() == read(*WHOLE).main.state.usage_row()
    assert folded.found("duplicate_line") == [(11, None), (12, None)]


def test_an_interruption_ends_its_turn() -> None:
    folded = read(
        says("u1", None, "go"),
        answers("a1", "u1", "r1", use("c1")),
        result("t1", "a1", "c1", "The user doesn't want to proceed", is_error=True),
        says("i1", "t1", [text("[Request interrupted by user for tool use]")]),
        says("u2", "i1", "other way"),
        answers("a2", "u2", "r2", text("ok")),
    )
    assert folded.main.statuses() == ["aborted", "completed"]
    assert folded.main.of("turn/end")[0]["reason"]["source"] == "user"
    assert [data["source"] for data in folded.main.of("user/message")] == [
        {"kind": "user"},
        {"kind": "steering", "origin": "interruption"},
        {"kind": "user"},
    ]


def test_an_error_of_the_provider_is_no_answer() -> None:
    bad = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": SVG}}
    folded = read(
        says("u1", None, [text("look"), bad]),
        answers("e1", "u1", "x", text("API Error: 400"), model="<synthetic>", isApiErrorMessage=True),
        says("u2", "e1", "again?"),
        answers("e2", "u2", "y", text("API Error: 400"), isApiErrorMessage=True),
    )
    assert folded.main.of("assistant/message") == []
    assert folded.main.statuses() == ["failed", "failed"]
    assert folded.main.of("turn/end")[0]["reason"] == {
        "kind": "failed",
        "failure_class": "api_error",
        "message": "API Error: 400",
    }
    assert [data["text"] for data in folded.main.of("session/note")] == ["API Error: 400"] * 2
    assert folded.codes() == ["image_unusable"]


def test_what_the_tool_puts_in_itself_begins_no_turn() -> None:
    folded = read(
        says("m1", None, "Caveat: The messages below were generated", isMeta=True),
        says("m2", "m1", "<command-name>/clear</command-name>"),
        says("u1", "m2", "hello"),
        answers("a1", "u1", "r1", text("hi")),
        says("m3", "a1", "<local-command-stdout>x</local-command-stdout>"),
        says("u2", "m3", "next"),
        answers("a2", "u2", "r2", text("yes")),
        says("m4", "a2", "<local-command-stdout>bye</local-command-stdout>"),
    )
    assert folded.main.statuses() == ["completed", "completed"]
    assert folded.main.texts() == [
        "Caveat: The messages below were generated",
        "<command-name>/clear</command-name>",
        "hello",
        "hi",
        "<local-command-stdout>x</local-command-stdout>",
        "next",
        "yes",
        "<local-command-stdout>bye</local-command-stdout>",
    ]


def test_a_subagent_within_the_file_is_a_thread_of_its_own() -> None:
    folded = read(
        says("u1", None, "go"),
        answers("a1", "u1", "r1", use("t0", "Task", prompt="other"), use("t1", "Task", prompt="look around")),
        says("s1", None, "look around", isSidechain=True),
        answers("s2", "s1", "sr", use("sc"), isSidechain=True),
        {**result("s3", "s2", "sc"), "isSidechain": True},
        answers("s4", "s3", "sr2", text("seen"), isSidechain=True),
        result("t", "a1", "t1", "seen"),
        answers("a2", "t", "r2", text("fine")),
    )
    [child] = [thread for name, thread in folded.threads.items() if name]
    assert child.header["child_of"]["call_id"] == "t1"
    assert child.header["child_of"]["turn_id"] == folded.main.of("turn/start")[0]["turn_id"]
    assert child.texts() == ["look around", "seen"]
    assert child.statuses() == ["completed"]
    assert folded.main.texts() == ["go", "fine"]


def test_a_file_of_a_subagent_is_that_ones_session() -> None:
    lines = [{**line, "isSidechain": True, "agentId": "ab12"} for line in WHOLE]
    folded = read(*lines, name="agent-ab12.jsonl")
    assert list(folded.threads) == [""]
    origin = folded.main.header["imported_from"]
    assert (origin["session_id"], origin["begun_by"]) == ("agent-ab12", WHOLE[0]["sessionId"])
    assert folded.main.header["child_of"] == {"session_id": WHOLE[0]["sessionId"], "run_id": "", "turn_id": ""}
    assert folded.main.of("turn/start")[0]["run"]["agent_id"] == "ab12"
    assert folded.main.texts() == read(*WHOLE).main.texts()
    assert "child_of" not in read(*WHOLE, name="agent-ab12.jsonl").main.header


def test_a_helpers_file_is_no_conversation() -> None:
    folded = read(*WHOLE, name="agent-acompact-1.jsonl")
    assert folded.codes() == ["no_conversation"]
    assert folded.main.history.messages() == []
    assert len(folded.main.of("x-foreign/line")) == len(WHOLE)


def test_a_file_without_messages_is_no_conversation() -> None:
    folded = read({"type": "summary", "summary": "of another session", "leafUuid": "x"}, {"type": "ai-title"})
    assert folded.codes() == ["no_conversation"]
    assert folded.report.kept == {"summary": 1, "ai-title": 1}


def test_what_was_typed_meanwhile_is_steering() -> None:
    queued = {"type": "queued_command", "prompt": "and faster"}
    folded = read(*WHOLE[:4], chained("attachment", "q", "t1", attachment=queued), *WHOLE[4:])
    assert {"kind": "steering"} in [data["source"] for data in folded.main.of("user/message")]
    assert "and faster" in folded.main.texts()
    assert folded.main.results() == ["ok", "error"]


def test_names_are_settings() -> None:
    folded = read(
        {"type": "summary", "summary": "somebody else", "leafUuid": "elsewhere"},
        *WHOLE,
        {"type": "summary", "summary": "first name", "leafUuid": "a5"},
        {"type": "custom-title", "customTitle": "my name"},
    )
    assert [data["patch"] for data in folded.main.of("session/updated")] == [
        {"name": "first name"},
        {"name": "my name"},
    ]


def test_a_compaction_between_turns_hides_what_was_before() -> None:
    folded = read(
        *WHOLE,
        chained("system", "b", None, subtype="compact_boundary", compactMetadata={"trigger": "manual"}),
        says("s", "b", "so far", isCompactSummary=True),
        says("u3", "s", "go on"),
        answers("a9", "u3", "r9", text("on")),
    )
    assert folded.main.texts() == ["so far", "go on", "on"]
    assert folded.main.statuses() == ["completed"] * 3


def test_an_answer_of_the_last_turn_ends_it_where_nothing_is_open() -> None:
    assert read(*WHOLE).codes() == []
    assert read(*WHOLE[:1]).codes() == ["open_turn"]


def test_a_result_may_stand_above_its_call() -> None:
    folded = read(
        says("u1", None, "go"),
        answers("a0", "u1", "r0", text("now")),
        result("t1", "a0", "c1", "early bird"),
        answers("a1", "a0", "r1", use("c1"), use("c2")),
        result("t2", "a1", "c2", "worm"),
        answers("a2", "t2", "r2", text("done")),
    )
    assert folded.codes() == []
    assert [(data["call_id"], data["content"][0]["text"]) for data in folded.main.of("tool/result")] == [
        ("c1", "early bird"),
        ("c2", "worm"),
    ]


def test_a_call_in_a_late_fragment_gets_its_result() -> None:
    folded = read(
        says("u1", None, "go"),
        answers("a1", "u1", "r1", use("c1")),
        result("t1", "a1", "c1", "one"),
        answers("a2", "t1", "r2", text("between")),
        answers("a3", "a1", "r1", use("c2")),
        result("t2", "a3", "c2", "two"),
        answers("a4", "t2", "r3", text("done")),
    )
    assert folded.codes() == []
    assert folded.main.results() == ["ok", "ok"]
    assert len(folded.main.of("assistant/message")) == 3


def test_what_a_gateway_writes_twice_counts_once() -> None:
    folded = read(
        says("u1", None, "go"),
        answers("a1", "u1", "x", text("same"), usage={"input_tokens": 3, "output_tokens": 1}),
        answers("a2", "a1", "x", text("same"), usage={"input_tokens": 3, "output_tokens": 9}),
        answers("a3", "a2", "x", use("c1", command="ls"), usage={"input_tokens": 3, "output_tokens": 4}),
        answers("a4", "a3", "x", text("same"), use("c1", command="ls"), text("more"), usage={}),
        result("t1", "a4", "c1"),
    )
    [message] = folded.main.of("assistant/message")
    assert [block["kind"] for block in message["content"]] == ["text", "tool_call", "text"]
    assert message["usage"] == {"input_tokens": 3, "output_tokens": 9}
    assert folded.found("duplicate_line") == [(3, None), (5, None)]


def test_an_id_that_all_responses_have_joins_none_across_prompts() -> None:
    folded = read(
        says("u1", None, "a"), answers("a1", "u1", "same", text("1")),
        says("u2", "a1", "b"), answers("a2", "u2", "same", text("2")),
    )  # fmt: skip
    assert folded.main.texts() == ["a", "1", "b", "2"]
    assert folded.main.state.usage_row()["output_tokens"] == 10


def test_lines_without_an_id_are_joined_by_the_request_or_not_at_all() -> None:
    folded = read(
        says("u1", None, "a"),
        answers("a1", "u1", None, text("1"), requestId="q1"),
        answers("a2", "a1", None, text("2"), requestId="q1"),
        answers("a3", "a2", None, text("3")),
        answers("a4", "a3", None, text("4")),
    )
    assert [len(data["content"]) for data in folded.main.of("assistant/message")] == [2, 1, 1]


def turns(thread: Any) -> list[list[str]]:
    """By turn: what stands on the user's side."""
    by_turn: dict[str, list[str]] = {data["turn_id"]: [] for data in thread.of("turn/start")}
    for data in thread.of("user/message"):
        by_turn[data["turn_id"]] += [block["text"] for block in data["content"]]
    return list(by_turn.values())


def test_what_stands_between_turns_belongs_to_the_next() -> None:
    over = chained("system", "o", "a1", subtype="stop_hook_summary")
    folded = read(
        says("u1", None, "hello"),
        answers("a1", "u1", "r1", text("hi")),
        over,
        says("m1", "o", "<command-name>/model</command-name>"),
        says("u2", "m1", "next"),
        answers("a2", "u2", "r2", text("yes")),
        says("m2", "a2", "<local-command-stdout>bye</local-command-stdout>"),
    )
    assert turns(folded.main) == [
        ["hello"],
        ["<command-name>/model</command-name>", "next", "<local-command-stdout>bye</local-command-stdout>"],
    ]
    assert folded.main.statuses() == ["completed", "completed"]
    origins = [data["source"].get("origin") for data in folded.main.of("user/message")]
    assert origins == [None, "command", None, "command"]


def test_a_command_that_the_model_answers_is_a_turn() -> None:
    folded = read(
        says("u1", None, "hello"),
        answers("a1", "u1", "r1", text("hi")),
        says("m1", "a1", "<command-message>review</command-message>"),
        says("m2", "m1", "Review the code.", isMeta=True),
        answers("a2", "m2", "r2", text("reviewed")),
        says("m3", "a2", "Stop hook feedback: more", isMeta=True),
        answers("a3", "m3", "r3", text("more")),
        says("w1", "a3", "withdrawn"),
        says("w2", "a3", "instead"),
    )
    assert turns(folded.main) == [
        ["hello"],
        ["<command-message>review</command-message>", "Review the code.", "Stop hook feedback: more"],
        ["instead"],
    ]
    assert folded.main.statuses() == ["completed", "completed", "interrupted"]
    [branch] = [thread for name, thread in folded.threads.items() if name]
    ended = [number for number, type_ in enumerate(folded.main.types()) if type_ == "run/settled"]
    assert branch.fork.seq == ended[1]


def test_lines_of_another_session_are_told_of() -> None:
    other = {"sessionId": "5e551044-0000-4000-8000-000000000002"}
    folded = read(*WHOLE[:8], {**WHOLE[8], **other}, {**WHOLE[9], **other})
    assert folded.main.texts() == read(*WHOLE).main.texts()
    assert folded.found("other_session") == [(9, None)]
    assert folded.codes() == ["other_session"]


@pytest.mark.parametrize(
    ("given", "lost"),
    [
        ({**answers("b1", "t1", "r9"), "message": ["said"]}, "said"),
        ({**answers("b1", "t1", "r1"), "message": {"id": "r1", "content": {"is": "said"}}}, "said"),
        ({**says("b1", "t1", ""), "message": {"role": "user", "text": "words"}}, "words"),
        (answers("b1", "t1", "r9", {"type": "thinking", "thought": "hm"}), "hm"),
        (answers("b1", "t1", "r9", {"type": "thinking", "thinking": "hm", "signature": ["s"]}), "signature"),
        (answers("b1", "t1", "r9", {"type": "redacted_thinking", "sealed": "xx"}), "xx"),
        (answers("b1", "t1", "r9", {"type": "tool_use", "id": "c9", "title": "Bash", "input": {}}), "title"),
        (answers("b1", "t1", "r1", {"type": "tool_use", "id": "c9", "name": "Bash", "arguments": {}}), "arguments"),
        (says("b1", "t1", [{"type": "tool_result", "tool_use_id": "c9", "output": "done"}]), "output"),
        ({**says("b1", "t1", ""), "isCompactSummary": True, "message": {"summary": "so far"}}, "so far"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_kept_and_told(given: Any, lost: str) -> None:
    folded = read(*WHOLE[:4], given)
    assert folded.found("misfit") == [(5, None)]
    [kept] = [data for data in folded.main.of("x-foreign/line") if data["line"] == 5]
    assert lost in json.dumps(kept["value"])
    assert "list files" in folded.main.texts()


def test_what_is_no_text_is_told_as_it_stands() -> None:
    folded = read(
        says("u1", None, [{"type": "text", "words": "odd"}]),
        answers("a1", "u1", "r1", use("c1"), use("c2")),
        result("t1", "a1", "c1", {"an": "object"}),
        result("t2", "a1", "c2", None),
        answers("e1", "t2", "x", {"type": "error", "is": "overloaded"}, isApiErrorMessage=True),
    )
    assert folded.main.texts() == ['{"type":"text","words":"odd"}']
    assert [data["content"] for data in folded.main.of("tool/result")] == [
        [{"kind": "text", "text": '{"an":"object"}'}],
        [],
    ]
    assert folded.main.of("session/note")[0]["text"] == '{"type":"error","is":"overloaded"}'


def test_a_compaction_without_a_summary_takes_nothing_away() -> None:
    folded = read(*WHOLE, says("s", None, [], isCompactSummary=True))
    assert folded.main.texts() == read(*WHOLE).main.texts()
    assert folded.report.kept == {"progress": 1, "user": 1}


def test_a_file_may_begin_with_an_answer() -> None:
    folded = read(
        answers("a1", "elsewhere", "r1", text("hi")),
        says("w1", "a1", "withdrawn"),
        says("w2", "a1", "instead"),
    )
    [branch] = [thread for name, thread in folded.threads.items() if name]
    assert folded.main.drafts[branch.fork.seq].type == "run/settled"
    assert folded.main.statuses() == ["completed", "interrupted"]


def test_calls_that_were_answered_are_not_the_end() -> None:
    lines = [says("u1", None, "go"), answers("a1", "u1", "r1", use("c1")), result("t1", "a1", "c1")]
    assert read(*lines).main.statuses() == ["interrupted"]
    assert read(*lines, chained("system", "o", "t1", subtype="turn_duration")).main.statuses() == ["completed"]


def test_what_the_tool_says_in_the_models_place_is_no_failure() -> None:
    folded = read(*WHOLE, answers("e", "a5", "x", text("No response requested."), model="<synthetic>"))
    assert folded.main.statuses() == ["completed", "completed"]
    assert [data["kind"] for data in folded.main.of("session/note")] == ["synthetic"]


def test_a_failed_turn_is_not_made_good_by_the_next_command() -> None:
    folded = read(
        says("u1", None, "go"),
        answers("e1", "u1", "x", text("API Error: 529"), isApiErrorMessage=True),
        says("m1", "e1", "Continue from where you left off.", isMeta=True),
        answers("a1", "m1", "r1", text("on it")),
    )
    assert folded.main.statuses() == ["failed", "completed"]
    assert read(*WHOLE, answers("e", "a5", "x", text("bad"), isApiErrorMessage=True)).main.statuses()[-1] == "failed"


def boundary(uuid: str, head: str, *uuids: str) -> dict[str, Any]:
    meta = {"preservedSegment": {"headUuid": head}, "preservedMessages": {"uuids": [head, *uuids]}}
    return chained("system", uuid, None, subtype="compact_boundary", logicalParentUuid="later", compactMetadata=meta)


def test_what_a_compaction_preserved_stays() -> None:
    folded = read(
        *WHOLE,
        boundary("b", "u2", "a5"),
        says("s", "b", "so far", isCompactSummary=True),
        {**WHOLE[-1], "parentUuid": "s"},
        says("u3", "a5", "go on"),
    )
    assert folded.main.texts() == ["so far", "thanks", "welcome", "go on"]
    assert folded.codes() == ["duplicate_line", "open_turn"]
    gone = read(*WHOLE, boundary("b", "never"), says("s", "b", "so far", isCompactSummary=True))
    assert gone.found("compaction_pointer") == [(len(WHOLE) + 1, None)]
    assert gone.main.texts() == ["so far"]


def test_a_compaction_within_what_was_withdrawn_is_withdrawn() -> None:
    folded = read(
        *WHOLE[:8],
        says("w1", "a4", "first try"),
        chained("system", "b", None, subtype="compact_boundary"),
        says("s", "b", "a summary", isCompactSummary=True),
        answers("w2", "s", "w", text("tried")),
        says("w3", "ghost", "lost"),
        says("u2", "a4", "second try"),
    )
    assert folded.main.texts()[-1] == "second try"
    assert not {"a summary", "tried", "lost"} & set(folded.main.texts())
    [branch] = [thread for name, thread in folded.threads.items() if name]
    assert branch.texts() == ["a summary", "tried", "lost"]


def test_a_prompt_that_was_replaced_twice_makes_two_branches_and_one_below_another() -> None:
    folded = read(
        says("u1", None, "a"), answers("a1", "u1", "r1", text("1")),
        says("v1", "a1", "b"), answers("b1", "v1", "r2", text("2")),
        says("w1", "b1", "c"), says("w2", "b1", "d"),
        says("v2", "a1", "e"), says("v3", "a1", "f"),
    )  # fmt: skip
    assert folded.main.texts() == ["a", "1", "f"]
    assert folded.found("rewound") == [(3, 7), (5, 6), (7, 8)]
    branches = {name: thread for name, thread in folded.threads.items() if name}
    assert [thread.texts() for thread in branches.values()] == [["b", "2", "d"], ["c"], ["e"]]
    first = next(iter(branches))
    assert [thread.fork.thread for thread in branches.values()] == ["", first, ""]


def test_what_the_first_lines_do_not_say_is_said_by_later_ones() -> None:
    folded = read({"type": "file-history-snapshot", "messageId": "u1"}, *WHOLE)
    assert folded.main.header["cwd"] == "/w"
    assert folded.main.header["imported_from"]["session_id"] == "5e551044-0000-4000-8000-000000000001"
    assert folded.main.times[0] > 0


def test_subagents_side_by_side_are_told_apart() -> None:
    def aside(line: dict[str, Any]) -> dict[str, Any]:
        return {**line, "isSidechain": True}

    folded = read(
        says("u1", None, "go"),
        answers("a1", "u1", "r1", use("t1", "Task", prompt="north"), use("t2", "Task", prompt="south")),
        aside(says("n1", None, "north")),
        aside(says("s1", None, "south")),
        aside(answers("n2", "n1", "rn", text("snow"))),
        aside(answers("s2", "s1", "rs", text("sun"))),
        aside(says("x1", "lost", "more")),
        result("o1", "a1", "t1", "snow"),
        result("o2", "a1", "t2", "sun"),
        aside(says("w1", None, "Warmup")),
        answers("a2", "o2", "r2", text("both")),
    )
    children = [thread for name, thread in folded.threads.items() if name]
    assert [child.texts() for child in children] == [["north", "snow"], ["south", "sun", "more"], ["Warmup"]]
    assert [child.header["child_of"].get("call_id") for child in children] == ["t1", "t2", None]
    assert folded.main.results() == ["ok", "ok"]


def test_subagents_with_ids_are_told_apart_by_them() -> None:
    mine = {"isSidechain": True, "agentId": "one"}
    other = {"isSidechain": True, "agentId": "two"}
    folded = read(
        {**says("n1", None, "north"), **mine},
        {**says("s1", None, "south"), **other},
        {**answers("n2", "s1", "rn", text("snow")), **mine},
    )
    assert folded.main.texts() == ["north", "snow"]
    assert folded.main.header["imported_from"]["session_id"] == "agent-one"
    assert folded.threads["agent:two"].texts() == ["south"]


def test_a_name_that_a_person_gave_stays() -> None:
    folded = read(
        *WHOLE,
        {"type": "ai-title", "aiTitle": "guessed"},
        {"type": "custom-title", "customTitle": "mine"},
        {"type": "ai-title", "aiTitle": "guessed again"},
    )
    assert [data["patch"]["name"] for data in folded.main.of("session/updated")] == ["guessed", "mine"]


def test_what_an_editor_puts_before_a_prompt_makes_it_none_of_the_tool() -> None:
    folded = read(
        says("u1", None, [text("<system-reminder>x</system-reminder>"), text("do it")]),
        says("u2", "u1", [text("<system-reminder>x</system-reminder>")]),
    )
    assert turns(folded.main) == [
        ["<system-reminder>x</system-reminder>", "do it", "<system-reminder>x</system-reminder>"]
    ]


def test_types_without_number_take_no_memory_without_bound() -> None:
    folded = read(*WHOLE, *({"type": f"{number}-{'x' * 500}"} for number in range(1_500)))
    assert len(folded.report.kept) <= 1_001
    assert sum(folded.report.kept.values()) == 1_501
    assert max(map(len, folded.report.kept)) <= 100
    assert len(folded.main.of("x-foreign/line")) == 1_501


def test_ids_of_any_kind_pair() -> None:
    long, none = "c" * 100_000, {"an": "id"}
    folded = read(
        says("u" * 9_000, None, "go"),
        answers("a1", "u" * 9_000, "r" * 9_000, use(long), use(none), use("")),  # type: ignore[arg-type]
        result("t1", "a1", ""),
        result("t2", "a1", none),  # type: ignore[arg-type]
        result("t3", "a1", long),
    )
    assert folded.main.results() == ["ok", "ok", "ok"]
    assert folded.codes() == ["open_turn"]


def test_a_call_that_is_asked_for_twice_gets_one_result_for_each() -> None:
    folded = read(
        says("u1", None, "go"), answers("a1", "u1", "r1", use("c1"), use("c1")), result("t1", "a1", "c1"),
        result("t2", "a1", "c1"), answers("a2", "t2", "r2", text("done")),
    )  # fmt: skip
    assert folded.main.results() == ["ok", "ok"]


def test_what_a_provider_ran_itself_is_told() -> None:
    search = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}
    folded = read(says("u1", None, "go"), answers("a1", "u1", "r1", search, found, text("done")))
    assert folded.codes() == ["hosted_tool", "hosted_tool"]
    assert folded.main.statuses() == ["completed"]


def test_images_that_are_not_in_the_file_are_named() -> None:
    there = {"type": "image", "source": {"type": "url", "url": "https://example.org/x.png"}}
    folded = read(says("u1", None, [text("look"), there]))
    assert folded.codes() == ["image_elsewhere", "open_turn"]
    assert folded.main.texts() == ["look", "[image: https://example.org/x.png]"]


POOL = [
    *WHOLE,
    says("w1", "a4", "first try"),
    answers("w2", "w1", "w", use("c1")),
    says("w3", "a4", "second try"),
    boundary("b", "u2", "a5"),
    says("s", "b", "so far", isCompactSummary=True),
    says("m1", "a5", "<command-name>/clear</command-name>"),
    says("m2", "m1", "Caveat", isMeta=True),
    says("i1", "t1", "[Request interrupted by user]"),
    answers("e1", "u1", "x", text("API Error"), model="<synthetic>", isApiErrorMessage=True),
    answers("a6", "a4", "r4", use("t0", "Task", prompt="south")),
    {**says("s1", None, "south"), "isSidechain": True},
    {**answers("s2", "s1", "rs", text("sun")), "isSidechain": True, "agentId": "g"},
    {**says("s3", "s1", "north"), "isSidechain": True},
    result("t9", "a6", "t0"),
    chained("system", "o", "a5", subtype="turn_duration"),
    {"type": "ai-title", "aiTitle": "x"},
    {"type": "summary", "summary": "x", "leafUuid": "a5"},
    chained("attachment", "q", "t1", attachment={"type": "queued_command", "prompt": "and"}),
]
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.just([]), st.just({}),
    st.just([None, 5, {"type": "text"}, {"type": "tool_use"}, {"type": "tool_result"}, {"type": "image"}]),
)  # fmt: skip


@st.composite
def spoiled(draw: st.DrawFn) -> bytes:
    lines = [copy.deepcopy(draw(st.sampled_from(POOL))) for _ in range(draw(st.integers(0, 20)))]
    ids = [*(line["uuid"] for line in lines if "uuid" in line), None, "ghost"]
    for line in lines:
        for key in draw(st.sampled_from([[], ["parentUuid"], ["uuid"], ["uuid", "parentUuid"]])):
            line[key] = draw(st.sampled_from(ids))
        places: list[Any] = [line, *(value for value in line.values() if isinstance(value, dict))]
        for block in line.get("message", {}).get("content", []) if isinstance(line.get("message"), dict) else []:
            places += [block] if isinstance(block, dict) else []
        if draw(st.booleans()):
            place = draw(st.sampled_from(places))
            if place:
                place[draw(st.sampled_from(sorted(place)))] = draw(VALUES)
    data = b"".join(json.dumps(line).encode() + draw(st.sampled_from([b"\n", b"\r\n", b"\n\n"])) for line in lines)
    cut = draw(st.integers(0, len(data)))
    junk: bytes = draw(st.sampled_from([b"", b"\xff\n", b"{\n", b"[" * 300 + b"\n"]))
    return data[:cut] + junk + data[cut:]


@settings(max_examples=200, deadline=None)
@given(spoiled())
def test_nothing_in_a_file_is_an_error(data: bytes) -> None:
    folded(data, "claude-code")


if REAL is not None:

    @pytest.mark.parametrize("path", real("claude-code"), ids=lambda path: path.name)
    def test_counts_of_real_files(path: Path) -> None:
        """Counted again in another way: what is not there twice, by ids."""
        lines = [json.loads(line) for line in path.read_bytes().splitlines() if line.strip()]
        calls, results, responses, prompts, output = set(), set(), set(), 0, dict[str, int]()
        for line in lines:
            content = line.get("message", {}).get("content")
            if line.get("type") == "user" and not {"isMeta", "isCompactSummary"} & line.keys():
                said = content if isinstance(content, str) else "".join(block.get("text", "") for block in content)
                prompts += said != "" and not said.startswith(("<command-", "<local-command-", "[Request interrupted"))
            if line.get("type") == "assistant" and line["message"].get("model") != "<synthetic>":
                responses.add(line["message"]["id"])
                output[line["message"]["id"]] = line["message"]["usage"]["output_tokens"]
            for block in content if isinstance(content, list) else []:
                if block.get("type") == "tool_use":
                    calls.add(block["id"])
                elif block.get("type") == "tool_result":
                    results.add(block["tool_use_id"])
        found = folded(path.read_bytes(), "claude-code", path.name)
        threads = found.threads.values()
        messages = [data for thread in threads for data in thread.of("assistant/message")]
        asked = {block["call_id"] for data in messages for block in data["content"] if block["kind"] == "tool_call"}
        told = {
            data["call_id"]
            for thread in threads
            for data in [*thread.of("tool/result"), *thread.of("tool/outcome")]
            if not data.get("synthesized")
        }
        assert (len(messages), asked) == (len(responses), calls)
        assert sum(data["usage"]["output_tokens"] for data in messages) == sum(output.values())
        origins = [data["source"] for thread in threads for data in thread.of("user/message")]
        assert origins.count({"kind": "user"}) == prompts
        assert told == results & calls
        assert len(found.found("orphan_result")) == len(results - calls)
