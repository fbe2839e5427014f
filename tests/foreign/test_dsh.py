"""What a log of DeepSeek Harness becomes."""

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maka.journal.foreign import dsh_order
from maka.journal.foreign.dsh import generation
from maka.journal.views.session import TOOL_BOUNDARY
from maka.repair.closers import plan_closers
from support.dsh_log import Log, text, thought, wants
from support.foreign import REAL, Folded, folded, real


def read(log: Log, name: str = "log.jsonl") -> Folded:
    return folded(log.lines, "dsh", name)


def notes(found: Folded, kind: str) -> list[str]:
    return [data["text"] for data in found.main.of("session/note") if data["kind"] == kind]


def kept(found: Folded) -> list[str]:
    return [data["type"] for data in found.main.of("x-foreign/line")]


def whole(version: int = 0) -> Log:
    """Two turns: a call that succeeded and one that failed; then a second prompt, and what a plugin put in."""
    log = Log(version)
    log.put("request/header", {"header": {"config": {"provider": "p", "model": "m"}}, "reason": "initial"})
    log.start()
    log.user("one")
    log.user("you are in /w", kind="plugin")
    counts = {"inputTokens": 10, "outputTokens": 5, "cacheReadTokens": 3, "reasoningTokens": 2}
    log.answer(thought("hm"), text("looking"), wants("c1"), wants("c2"), data={"usage": counts})
    log.call("c1")
    log.result("c1")
    log.call("c2")
    log.result("c2", "no such place", code="ENOENT")
    log.put("step/end", {"turn": 1, "step": 1})
    log.put("step/start", {"turn": 1, "step": 2})
    log.answer(text("there it is"))
    log.end()
    log.said("two", "done")
    return log


@pytest.mark.parametrize("version", range(5))
def test_turns_calls_and_results(version: int) -> None:
    found = read(whole(version))
    main = found.main
    assert found.codes() == []
    assert main.statuses() == ["completed", "completed"]
    assert main.texts() == ["one", "you are in /w", "looking", "there it is", "two", "done"]
    assert main.results() == ["ok", "error"]
    assert [data["arguments"] for data in main.of("assistant/message")[0]["content"][2:]] == ['{"at": 1}'] * 2
    assert main.of("assistant/message")[0]["content"][0] == {"kind": "thinking", "text": "hm"}
    assert main.of("assistant/message")[0]["usage"] == {
        "input_tokens": 10,
        "output_tokens": 5,
        "cache_read_tokens": 3,
        "reasoning_tokens": 2,
    }
    assert [data["source"] for data in main.of("user/message")] == [
        {"kind": "user"},
        {"kind": "user", "origin": "plugin"},
        {"kind": "user"},
    ]
    assert (main.header["cwd"], main.header["model"], main.header["tool_boundary"]) == ("/w", "m", TOOL_BOUNDARY)
    assert main.header["imported_from"]["session_id"] == "s1"
    assert main.of("request/header")[0]["header"] == {"provider": "p", "model": "m"}
    assert (main.times[0], main.times[-1]) == (1_000, 2_000 + len(whole().lines) - 1)


def test_a_call_that_was_dispatched_is_unknown_and_one_that_was_not_has_never_run() -> None:
    log = Log()
    log.start()
    log.user("go")
    log.answer(wants("c1"), wants("c2"))
    log.call("c1")
    found = read(log)
    assert found.codes() == ["not_started", "open_turn", "unknown_outcome"]
    closers = [draft.data for draft in plan_closers(found.main.state).drafts if draft.type == "tool/result"]
    assert {data["call_id"]: data["state"] for data in closers} == {"c1": "unknown", "c2": "not_started"}


@pytest.mark.parametrize(
    ("code", "state"),
    [
        ("TOOL_OUTCOME_UNKNOWN", "unknown"),
        ("TOOL_NOT_STARTED", "not_started"),
        ("ABORTED_BEFORE_DISPATCH", "not_started"),
        ("ABORTED", "cancelled"),
        ("ELSE", "error"),
    ],
)
@pytest.mark.parametrize("between", [False, True])
def test_an_error_says_what_became_of_a_call(code: str, state: str, between: bool) -> None:
    log = Log()
    log.start()
    log.user("go")
    log.answer(wants("c1"))
    log.call("c1")
    if between:
        log.put("approval/asked", {"id": "a", "toolName": "look"})
    log.result("c1", "why", code=code)
    log.end("aborted", reason={"kind": "user"})
    found = read(log)
    assert (found.codes(), found.main.results()) == ([], [state])
    assert len(found.main.of("tool/call")) == (between or state != "not_started")


@pytest.mark.parametrize(
    ("reason", "kind", "more"),
    [
        ({"kind": "completed"}, "completed", {}),
        ({"kind": "aborted", "reason": {"kind": "user"}}, "aborted", {"source": "user"}),
        (
            {"kind": "aborted", "reason": {"kind": "hook", "reason": "no"}},
            "aborted",
            {"source": "hook", "message": "no"},
        ),
        ({"kind": "blocked"}, "blocked", {}),
        (
            {"kind": "error", "error": {"code": "AUTH", "message": "401"}},
            "failed",
            {"failure_class": "AUTH", "message": "401"},
        ),
        ({"kind": "max-tokens"}, "max_tokens", {}),
        ({"kind": "interrupted"}, "interrupted", {}),
        ("completed", "completed", {}),
    ],
)
def test_how_a_turn_ended(reason: Any, kind: str, more: dict[str, Any]) -> None:
    log = Log()
    log.start()
    log.user("go")
    log.put("turn/end", {"turn": 1, "reason": reason})
    found = read(log)
    assert (found.main.of("turn/end")[0]["reason"], found.codes()) == ({"kind": kind, **more}, [])


def test_an_end_that_is_not_known_is_told() -> None:
    log = Log()
    log.start()
    log.user("go")
    log.end("evaporated")
    found = read(log)
    assert found.main.of("turn/end")[0]["reason"] == {"kind": "aborted", "message": "evaporated"}
    assert found.found("misfit") == [(6, None)]


def test_a_turn_that_a_crash_left_ends_where_the_next_one_begins() -> None:
    log = Log()
    for prompt in ("a", "b"):
        log.start()
        log.user(prompt)
        log.answer(wants("c1"))
    assert read(log).main.statuses()[0] == "interrupted"
    log = Log()
    log.start()
    log.user("a")
    log.answer(text("whole"))
    # Nothing was typed in the second one.
    log.start()
    log.answer(text("by itself"))
    assert read(log).main.statuses() == ["completed", "interrupted"]


# ---------------------------------------------------------------- pieces


def pieces(log: Log) -> None:
    log.chunk(type="block-start", index=0, blockType="reasoning")
    log.row("reasoning-chunks", ["I", " see"])
    log.chunk(type="block-start", index=1, blockType="text")
    log.row("text-chunks", ["Half", " of", " it"], index=1)
    log.chunk(type="block-end", index=0, block=thought("I see."))
    log.row("tool-call-chunks", ['{"a', '": '], index=2, id="c9", name="bash")
    log.chunk(type="usage", usage={"inputTokens": 7, "outputTokens": 3})


def test_what_was_being_said_is_an_interrupted_response() -> None:
    log = Log()
    log.start()
    log.user("go")
    pieces(log)
    found = read(log)
    [message] = found.main.of("assistant/message")
    assert message["content"] == [{"kind": "thinking", "text": "I see."}, {"kind": "text", "text": "Half of it"}]
    assert (message["interrupted"], message["usage"]) == (True, {"input_tokens": 7, "output_tokens": 3})
    assert notes(found, "unfinished_call") == ['bash({"a": ']
    assert found.codes() == ["open_turn"]
    # A row stands for as many events as it has pieces.
    assert log.seq == 3 + 2 + 2 + 3 + 1 + 2 + 1


def test_pieces_that_have_a_whole_message_are_that_message() -> None:
    log = Log()
    log.start()
    log.user("go")
    pieces(log)
    log.chunk(type="finish", reason={"kind": "max-tokens"})
    log.answer(thought("I see."), text("Half of it"))
    log.end("max-tokens")
    found = read(log)
    [message] = found.main.of("assistant/message")
    assert (message["stop_reason"], message["usage"]["input_tokens"]) == ("max-tokens", 7)
    assert "interrupted" not in message
    assert notes(found, "unfinished_call") == ['bash({"a": ']
    assert (notes(found, "attempt"), found.codes()) == ([], [])


def test_an_attempt_that_was_made_again_is_for_people_only() -> None:
    log = Log()
    log.start()
    log.user("go")
    log.chunk(type="text-delta", index=0, text="first try")
    log.chunk(type="finish", reason={"kind": "error", "failure": {"code": "SERVER", "message": "500"}})
    log.put("llm/retry", {"retry": 1, "failure": {"code": "SERVER", "message": "500"}})
    log.put("llm/retry-started", {"retry": 1})
    log.chunk(type="text-delta", index=0, text="second")
    log.chunk(type="finish", reason={"kind": "stop"})
    log.answer(text("second"))
    log.end()
    found = read(log)
    assert found.main.texts() == ["go", "second"]
    assert notes(found, "attempt") == ["SERVER: 500", "first try"]
    assert notes(found, "llm/retry") == ["SERVER: 500"]
    assert found.main.of("assistant/message")[0]["stop_reason"] == "stop"


def test_an_attempt_of_a_later_format_is_for_people_and_its_tokens_are_told() -> None:
    log = Log(3)
    log.start()
    log.user("go")
    stream = [
        {"type": "chunk", "time": 1, "chunk": {"type": "text-delta", "index": 0, "text": "first try"}},
        {"type": "chunk", "time": 1, "chunk": {"type": "usage", "usage": {"inputTokens": 9, "outputTokens": 1}}},
    ]
    log.put("assistant/attempt", {"turn": 1, "step": 1, "stream": stream})
    log.answer(text("second"), data={"stream": [], "usage": {"inputTokens": 4, "outputTokens": 2}})
    log.end()
    found = read(log)
    assert found.main.texts() == ["go", "second"]
    assert notes(found, "attempt") == ["the attempt came to nothing; input_tokens: 9; output_tokens: 1", "first try"]
    assert found.main.of("assistant/message")[0]["usage"] == {"input_tokens": 4, "output_tokens": 2}
    assert found.main.of("assistant/message")[0]["stop_reason"] == ""


def test_an_attempt_without_another_one_is_what_was_said() -> None:
    log = Log(3)
    log.start()
    log.user("go")
    chunk = {"type": "text-delta", "index": 0, "text": "as far as it came"}
    log.put("assistant/attempt", {"turn": 1, "step": 1, "stream": [{"type": "chunk", "chunk": chunk}]})
    log.end("error", error={"code": "SERVER", "message": "500"})
    found = read(log)
    assert found.main.texts() == ["go", "as far as it came"]
    assert found.main.of("assistant/message")[0]["interrupted"] is True
    assert found.main.statuses() == ["failed"]


# ---------------------------------------------------------------- numbers


def test_a_writer_with_an_old_number_makes_a_branch() -> None:
    log = Log()
    log.said("a", "b")
    ended = log.seq
    log.said("c", "d")
    log.start(seq=ended + 1)
    log.user("after a change of model")
    log.answer(text("e"))
    log.end()
    found = read(log)
    assert found.found("seq_fork") == [(14, 9)]
    assert found.codes() == ["seq_fork"]
    assert found.main.texts() == ["a", "b", "c", "d"]
    branch = found.threads["branch-1"]
    assert branch.texts() == ["after a change of model", "e"]
    assert branch.statuses()[-1:] == ["completed"]
    # It goes on behind the turn that had ended by then.
    assert branch.fork.thread == ""
    assert found.main.drafts[branch.fork.seq].type == "run/settled"
    assert [data["turn"] for data in found.main.of("turn/start")] == [1, 2]
    assert branch.fork.seq < next(at for at, draft in enumerate(found.main.drafts) if draft.data.get("turn") == 2)


def test_a_writer_that_began_anew_shares_nothing() -> None:
    log = Log()
    log.said("a", "b")
    log.seq = 0
    log.said("c", "d")
    found = read(log)
    assert found.threads["branch-1"].fork is None
    assert found.threads["branch-1"].texts() == ["c", "d"]


def test_two_writers_in_turns_are_told_apart() -> None:
    log = Log()
    log.said("a", "b")
    common = log.seq
    log.said("first 1", "first 2")
    # The first one waits at that number, and the second one passes it.
    first = log.seq
    log.seq = common
    log.said("second 1", "second 2")
    log.said("second 3", "second 4")
    log.seq = first
    log.said("first 3", "first 4")
    found = read(log)
    assert found.main.texts() == ["a", "b", "first 1", "first 2", "first 3", "first 4"]
    assert found.threads["branch-1"].texts() == ["second 1", "second 2", "second 3", "second 4"]
    assert found.codes() == ["seq_fork"]


def test_a_branch_of_a_branch_goes_on_from_the_newest_turn_that_it_has_seen() -> None:
    log = Log()
    log.said("a", "b")
    common = log.seq
    log.said("c", "d")
    log.put("todo/write", {"todos": []})
    log.seq = common
    log.said("e", "f")
    after = log.seq
    log.said("g", "h")
    log.seq = after
    log.said("i", "j")
    log.seq = common - 1
    log.said("k", "l")
    found = read(log)
    forks = {name: thread.fork for name, thread in found.threads.items() if name}
    assert {name: fork.thread if fork else None for name, fork in forks.items()} == {
        "branch-1": "",
        "branch-2": "branch-1",
        "branch-3": None,
    }


def test_what_only_a_plugin_wrote_with_an_old_number_is_no_branch() -> None:
    log = Log()
    log.said("a", "b")
    log.put("x-plugin/late", {"n": 1}, seq=2)
    log.put("session/title", {"title": "late"})
    log.said("c", "d")
    found = read(log)
    assert [code for code in found.codes() if code == "seq_fork"] == ["seq_fork"]
    assert kept(found)[0] == "x-plugin/late"
    assert found.main.of("session/updated") == [{"patch": {"name": "late"}}]


def test_lines_that_stand_twice_count_once() -> None:
    log = Log()
    log.said("a", "b")
    log.lines += log.lines[-4:]
    log.said("c", "d")
    found = read(log)
    assert found.found("duplicate_line") == [(8, 4), (9, 5), (10, 6), (11, 7)]
    assert found.codes() == ["duplicate_line"] * 4
    assert found.main.texts() == ["a", "b", "c", "d"]


def test_numbers_that_are_missing_are_told() -> None:
    log = Log()
    log.said("a", "b")
    log.seq += 3
    log.said("c", "d")
    found = read(log)
    assert (found.found("seq_gap"), found.codes()) == ([(8, None)], ["seq_gap"])
    assert found.main.texts() == ["a", "b", "c", "d"]


def test_lines_without_numbers_are_told_once() -> None:
    log = Log()
    log.said("a", "b")
    for line in log.lines[1:]:
        del line["seq"]
    found = read(log)
    assert found.found("misfit") == [(2, None)]
    assert found.main.texts() == ["a", "b"]


def test_of_too_many_branches_the_rest_is_read_where_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dsh_order, "_BRANCHES", 3)
    log = Log()
    for number in range(10):
        log.seq = 0
        log.said(f"a{number}", "b")
    found = read(log)
    assert len(found.threads) == 4
    assert sum(thread.texts().count("b") for thread in found.threads.values()) == 10


def test_ranges_of_sources_are_as_good_as_numbers() -> None:
    log = Log()
    log.start()
    log.user("a")
    log.answer(text("b"), sourceEventSeqs=[[0, 2], 3])
    log.end()
    assert read(log).codes() == []


# ---------------------------------------------------------------- what is not known


def test_an_event_that_is_not_known_is_kept_and_told_once() -> None:
    log = Log()
    log.said("a", "b")
    log.put("x-plugin/submit", {"v": 1})
    log.put("x-plugin/submit", {"v": 2})
    log.put("y/may", {}, ignorable=True)
    log.said("c", "d")
    found = read(log)
    assert found.main.texts() == ["a", "b", "c", "d"]
    assert [data["value"] for data in found.main.of("x-foreign/line")] == log.lines[7:10]
    assert found.report.kept == {"x-plugin/submit": 2, "y/may": 1}
    assert [(finding.severity, "2 lines" in finding.message) for finding in found.report.findings] == [
        ("warning", True),
        ("info", False),
    ]


def test_what_no_conversation_has_is_kept_without_a_word() -> None:
    log = Log()
    log.put("sandbox/mode", {"mode": "read-only"})
    log.put("todo/write", {"todos": []})
    log.put("command/run", {"commandId": "1", "name": "goal", "args": " do it"})
    log.put("hook/result", {"point": "PreToolUse", "decision": "block", "stderrSummary": "not here"})
    log.put("hook/result", {"point": "PreToolUse", "decision": "allow"})
    found = read(log)
    assert kept(found) == ["sandbox/mode", "todo/write", "hook/result"]
    assert notes(found, "command/run") == ["/goal do it"]
    assert notes(found, "hook/result") == ["PreToolUse, block: not here"]
    assert found.codes() == []


def test_images_lie_elsewhere() -> None:
    log = Log()
    log.start()
    ref = {"attachmentId": "sha256:00", "mediaType": "image/png", "name": "red.png"}
    content = [text("this"), {"type": "image", "attachment": ref}]
    log.put("user/message", {"id": "m", "content": content, "source": {"kind": "user"}}, surfaceOp="append")
    found = read(log)
    assert found.main.texts() == ["this", "[image, not in the log: red.png, image/png, sha256:00]"]
    assert found.found("image_elsewhere") == [(4, None)]


def test_prompts_that_no_turn_took_are_told() -> None:
    def waits(id: str, words: str) -> dict[str, Any]:
        return {"id": id, "role": "user", "content": [text(words)], "source": {"kind": "user"}}

    log = Log()
    log.put(
        "agent/inbox/spliced",
        {"target": "next-turn", "start": 0, "inserted": [waits("u1", "sent"), waits("u2", "lost"), waits("u3", "no")]},
    )
    log.put("agent/inbox/spliced", {"target": "next-turn", "start": 2, "removedCount": 1, "outcome": "canceled"})
    log.put("agent/inbox/spliced", {"target": "next-turn", "start": 0, "removedCount": 1, "inserted": []})
    log.start()
    log.user("sent", id="u1")
    log.answer(text("ok"))
    log.end()
    assert notes(read(log), "unsent") == ["lost"]


def test_a_turn_without_a_message_is_told() -> None:
    log = Log()
    log.put("turn/start", {"turn": 1})
    log.put("turn/end", {"turn": 1, "reason": {"kind": "blocked"}})
    log.put("turn/start", {"turn": 2})
    log.put("turn/end", {"turn": 2, "reason": {"kind": "completed"}})
    found = read(log)
    assert notes(found, "turn/end") == ["A turn without a message: blocked."]
    assert found.main.of("turn/start") == []


# ---------------------------------------------------------------- compactions


def replaced(log: Log, words: str, start: int, end: int, **more: Any) -> int:
    op = {"op": "replace"} | ({"start": start, "end": end} if log.version < 3 else {"startSeq": start, "endSeq": end})
    return log.user(words, kind="plugin", surfaceOp=op, **more)


def long(version: int = 0) -> tuple[Log, dict[str, int]]:
    log = Log(version)
    at = {}
    log.start()
    at["first"] = log.user("one")
    at["asks"] = log.answer(text("two"), wants("c1"))
    log.call("c1")
    at["result"] = log.result("c1", "three")
    log.put("step/end", {"turn": 1, "step": 1})
    log.put("step/start", {"turn": 1, "step": 2})
    at["says"] = log.answer(text("four"))
    log.end()
    return log, at


@pytest.mark.parametrize("version", [0, 3])
@pytest.mark.parametrize("number", [1, 3, 4])
def test_a_compaction_keeps_what_stands_behind_its_span(version: int, number: int) -> None:
    log, at = long(version)
    log.start()
    replaced(log, "so far", at["first"], [*at.values()][number - 1])
    log.user("go on")
    log.answer(text("on"))
    log.end()
    found = read(log)
    behind = {1: ["two", "four"], 3: ["four"], 4: []}[number]
    assert found.main.texts() == ["so far", *behind, "go on", "on"]
    assert len(found.main.results()) == (number == 1)
    assert found.codes() == []
    assert len(found.main.of("user/message")) == 2


def test_a_result_that_is_kept_is_kept_with_its_call() -> None:
    log, at = long()
    replaced(log, "so far", at["first"], at["asks"])
    found = read(log)
    assert found.main.texts() == ["so far", "two", "four"]
    assert found.main.results() == ["ok"]


def test_a_second_compaction_takes_the_first_with_it() -> None:
    log, at = long()
    summary = replaced(log, "so far", at["first"], at["result"])
    log.said("five", "six")
    replaced(log, "all", summary, at["says"])
    log.said("seven", "eight")
    found = read(log)
    assert found.main.texts() == ["all", "five", "six", "seven", "eight"]
    assert len(found.main.of("context/compacted")) == 2


def test_what_stands_before_the_span_is_put_before_the_summary() -> None:
    log = Log(3)
    log.start()
    log.put("system/message", {"message": {"id": "sys", "role": "system", "content": [text("be brief")]}})
    one = log.user("one")
    two = log.answer(text("two"))
    log.end()
    replaced(log, "so far", one, two)
    log.said("three", "four")
    found = read(log)
    # That message itself has no place in the surface of this log, and is one of it all the same.
    assert found.main.texts() == ["be brief", "so far", "three", "four"]


def test_a_message_in_the_middle_is_shown_beside_what_it_replaces() -> None:
    log, at = long()
    log.start()
    replaced(log, "instead", at["says"], at["says"])
    found = read(log)
    assert found.main.texts() == ["one", "two", "four", "instead"]
    assert found.codes() == ["misfit", "open_turn"]
    log, _ = long()
    log.start()
    replaced(log, "of nothing", 77, 78)
    assert read(log).main.texts() == ["one", "two", "four", "of nothing"]


def test_a_result_that_was_pruned_stands_once() -> None:
    log, at = long()
    log.put("compaction/prune", {"shadowedSeqs": [at["result"]]})
    pruned = log.result("c1", "[cut]", surfaceOp={"op": "replace", "start": at["result"], "end": at["result"]})
    # Its place is that of the first.
    replaced(log, "so far", at["first"], pruned)
    found = read(log)
    assert found.main.texts() == ["so far", "four"]
    assert len(found.main.of("tool/result")) == 1
    assert (kept(found), found.codes()) == (["compaction/prune", "tool/result"], [])


def test_a_system_message_that_is_renewed_is_no_compaction() -> None:
    log = Log(4)
    log.start()
    first = log.put("system/message", {"message": {"id": "s", "content": [text("old")]}}, surfaceOp="append")
    log.user("one")
    log.answer(text("two"))
    log.end()
    log.start()
    op = {"op": "replace", "startSeq": first, "endSeq": first}
    log.put("system/message", {"message": {"id": "s", "content": [text("new")]}}, surfaceOp=op)
    log.user("three")
    log.end()
    found = read(log)
    assert found.main.texts() == ["old", "one", "two", "new", "three"]
    assert found.main.of("context/compacted") == []
    assert found.codes() == []


def test_ids_that_stand_twice_name_the_message_that_is_meant() -> None:
    log = Log()
    log.start()
    first = log.user("one", id="{{id}}")
    second = log.answer(text("two"), id="{{id}}")
    log.end()
    log.start()
    log.user("three", id="{{id}}")
    log.answer(text("four"), id="{{id}}")
    log.end()
    replaced(log, "so far", first, second)
    found = read(log)
    assert found.main.texts() == ["so far", "three", "four"]
    ids = [data["message_id"] for data in [*found.main.of("user/message"), *found.main.of("assistant/message")]]
    assert len(set(ids)) == 4


# ---------------------------------------------------------------- calls out of the ordinary


@pytest.mark.parametrize("word", ["code", "ptc"])
def test_what_a_program_called_is_for_people(word: str) -> None:
    log = Log()
    log.start()
    log.user("go")
    log.answer(wants("c1", "run_code"))
    log.call("c1", "run_code")
    for number in (1, 2):
        sub = {"rootCallId": "c1", "parentCallId": "c1", "subCallId": f"c1:code:{number}"}
        log.put(f"tool/{word}-dispatch-start", {**sub, "name": "bash", "arguments": {"n": number}})
        if number == 1:
            done = {"name": "bash", "arguments": {"n": 1}, "isError": False, "content": [text("fine")]}
            log.put(f"tool/{word}-dispatch", {**sub, **done})
    found = read(log)
    assert notes(found, "inner_call") == ['bash({"n":1}): ok\nfine', 'bash({"n":2}): nobody knows what came of it']
    assert found.codes() == ["open_turn", "unknown_outcome"]
    assert len(found.main.of("tool/call")) == 1


def test_a_call_whose_message_was_lost_is_one_all_the_same() -> None:
    log = Log()
    log.start()
    log.user("go")
    log.answer(wants("c1"))
    log.call("c1")
    del log.lines[4]
    found = read(log)
    assert found.codes() == ["misfit", "open_turn", "seq_gap", "unknown_outcome"]
    assert found.main.of("assistant/message")[0]["content"][0]["call_id"] == "c1"


def test_ids_are_paired_by_occurrence() -> None:
    log = Log()
    for words in ("first", "second"):
        log.start()
        log.user("go")
        log.answer(wants("terminal:0"))
        log.call("terminal:0")
        log.result("terminal:0", words)
        log.end()
    found = read(log)
    assert [data["content"][0]["text"] for data in found.main.of("tool/result")] == ["first", "second"]
    assert found.codes() == []


def test_long_ids_are_cut_on_both_sides() -> None:
    log = Log()
    log.start()
    log.user("go", id="m" * 100_000)
    log.answer(wants("c" * 100_000), id="a" * 100_000)
    log.call("c" * 100_000)
    log.result("c" * 100_000)
    log.end()
    found = read(log)
    assert (found.main.results(), found.codes()) == (["ok"], [])


# ---------------------------------------------------------------- headers and copies


@pytest.mark.parametrize(
    ("version", "header", "mark"),
    [
        (0, {"seedLength": 6}, {}),
        (2, {"isSeeded": True}, {}),
        (3, {"isSeeded": True}, {"inherited": True}),
    ],
)
def test_what_was_copied_from_another_session_costs_nothing_here(version: int, header: Any, mark: Any) -> None:
    log = Log(version, {"parentSession": "s0", "origin": "subagent", "delegationDepth": 1, **header})
    counts = {"usage": {"inputTokens": 10, "outputTokens": 5}}
    for number in (1, 2):
        log.start()
        log.user(f"prompt {number}")
        log.answer(text(f"answer {number}"), data=counts)
        log.end()
        if number == 1:
            assert log.seq == 6
            log.put("session/end-seed", mark)
    found = read(log)
    assert found.main.texts() == ["prompt 1", "answer 1", "prompt 2", "answer 2"]
    assert ["usage" in data for data in found.main.of("assistant/message")] == [False, True]
    assert notes(found, "inherited") == ["What stands before was copied from session s0; its tokens are counted there."]
    assert kept(found)[0] == "session"
    assert found.codes() == []


@pytest.mark.parametrize("origin", [None, "subagent"])
def test_a_file_names_the_session_that_it_comes_from(origin: str | None) -> None:
    log = Log(header={"parentSession": "s0", **({} if origin is None else {"origin": origin})})
    log.said("a", "b")
    header = read(log).main.header
    assert header["imported_from"]["begun_by"] == "s0"
    assert header.get("child_of", {}).get("session_id") == (None if origin is None else "s0")


def test_a_file_without_a_header_is_read() -> None:
    log = Log()
    log.said("a", "b")
    found = folded(log.lines[1:], "dsh")
    assert found.found("bad_header") == [(1, None)]
    assert found.main.texts() == ["a", "b"]


def test_a_header_that_does_not_say_its_format_and_a_second_one_are_told() -> None:
    log = Log()
    del log.lines[0]["version"]
    log.said("a", "b")
    log.lines.append(log.lines[0])
    log.said("c", "d")
    found = read(log)
    assert (found.found("bad_header"), found.found("misfit")) == ([(1, None)], [(8, None)])
    assert found.main.texts() == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("name", "version", "codes"),
    [
        ("session.jsonl", 0, []),
        ("session.v3.jsonl", 3, []),
        ("session.v3.jsonl", 2, ["misfit"]),
        ("session.jsonl", 3, ["misfit"]),
        ("mine.jsonl", 3, []),
        ("mine.jsonl", 9, ["misfit"]),
    ],
)
def test_a_name_and_a_format_that_do_not_fit_are_told(name: str, version: int, codes: list[str]) -> None:
    log = Log(version)
    log.said("a", "b")
    assert read(log, name).codes() == codes


def test_of_a_directory_the_highest_generation_counts_once(tmp_path: Path) -> None:
    for name in ("session.jsonl", "session.v3.jsonl", "session.v10.jsonl.zstd", "session.v11.jsonl.tmp", "a.jsonl"):
        (tmp_path / name).touch()
    (tmp_path / "session.v12.jsonl").mkdir()
    path, older = generation(tmp_path)
    assert path == tmp_path / "session.v10.jsonl.zstd"
    assert [each.name for each in older] == ["session.v3.jsonl", "session.jsonl"]
    (tmp_path / "session.v10.jsonl").touch()
    os.utime(tmp_path / "session.v10.jsonl", (1, 1))
    assert generation(tmp_path)[0] == path
    os.utime(tmp_path / "session.v10.jsonl.zstd", (0, 0))
    assert generation(tmp_path)[0] == tmp_path / "session.v10.jsonl"
    assert generation(tmp_path / "a.jsonl") == (None, [])
    assert generation(tmp_path / "session.v12.jsonl") == (None, [])


# ---------------------------------------------------------------- anything


def everything() -> list[dict[str, Any]]:
    """A line of each kind."""
    log, at = long()
    log.start()
    pieces(log)
    log.chunk(type="finish", reason={"kind": "error", "failure": {"code": "A", "message": "b"}})
    replaced(log, "so far", at["first"], at["result"])
    log.answer(thought("x"), text("y"), wants("c5"), data={"usage": {"inputTokens": 1}, "stream": [{"chunk": {}}]})
    log.call("c5")
    log.put("approval/asked", {"id": "a", "toolName": "look"})
    log.put("tool/code-dispatch-start", {"subCallId": "c5:1", "name": "b", "arguments": {}})
    log.put("tool/code-dispatch", {"subCallId": "c5:1", "name": "b", "arguments": {}, "content": [text("q")]})
    log.result("c5", code="ABORTED")
    log.put("assistant/attempt", {"stream": [{"chunk": {"type": "text-delta", "index": 0, "text": "z"}}]})
    log.put("agent/inbox/spliced", {"target": "next-step", "start": 0, "inserted": [{"id": "i", "content": []}]})
    log.put("session/title", {"title": "t"})
    log.put("request/header", {"header": {"config": {"model": "n"}}})
    log.put("system/message", {"message": {"content": "s"}}, surfaceOp="append")
    log.put("x/unknown", {})
    log.end("aborted", reason={"kind": "user"})
    return log.lines


LINES = everything()
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 40), st.integers(), st.floats(), st.text(max_size=8), st.just([]),
    st.just({}), st.just([None, 5, {"type": "text"}, {"type": "tool-call"}, {"type": "image"}, {"kind": "x"}]),
)  # fmt: skip


def objects(value: Any) -> list[dict[str, Any]]:
    """Every object in a value."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [*([value] if isinstance(value, dict) else []), *(found for each in inner for found in objects(each))]


@st.composite
def spoiled(draw: st.DrawFn) -> bytes:
    lines = copy.deepcopy(LINES)
    for _ in range(draw(st.integers(0, 8))):
        at = draw(st.integers(0, len(lines) - 1))
        match draw(st.integers(0, 3)):
            case 0 if len(lines) > 1:
                del lines[at]
            case 1:
                lines.insert(draw(st.integers(0, len(lines))), copy.deepcopy(lines[at]))
            case 2:
                lines.insert(draw(st.integers(0, len(lines) - 1)), lines.pop(at))
            case _:
                place = draw(st.sampled_from(objects(lines[at])))
                if place:
                    place[draw(st.sampled_from(sorted(place)))] = draw(VALUES)
    data = b"".join(json.dumps(line).encode() + draw(st.sampled_from([b"\n", b"\r\n"])) for line in lines)
    cut = draw(st.integers(0, len(data)))
    junk: bytes = draw(st.sampled_from([b"", b"", b"\xff\n", b"{\n", b"[" * 300 + b"\n"]))
    return data[:cut] + junk + (data[cut:] if draw(st.booleans()) else b"")


@settings(max_examples=200, deadline=None)
@given(spoiled())
def test_nothing_in_a_file_is_an_error(data: bytes) -> None:
    folded(data, "dsh")


if REAL is not None:

    @pytest.mark.parametrize("path", real("dsh"), ids=lambda path: path.name)
    def test_counts_of_real_files(path: Path) -> None:
        """Counted again in another way: what the log itself calls whole messages."""
        data = path.read_bytes()
        found = folded(data, "dsh", path.name)
        if path.suffix == ".zstd":
            from maka.journal.foreign.zstd import opened
            from maka.journal.source import BytesSource

            with opened(BytesSource(data)) as unpacked:
                data = unpacked.read(0, unpacked.size)
        lines = [json.loads(line) for line in data.splitlines()]
        added = [line for line in lines if line.get("surfaceOp") == "append"]
        counts = {type_: [line["data"] for line in added if line["type"] == type_] for type_ in {*map(kind_of, added)}}
        answers = counts.get("assistant/message", [])
        asked = [each["id"] for data in answers for each in data["message"]["content"] if each["type"] == "tool-call"]
        main = found.main
        messages = [data for data in main.of("assistant/message") if not data.get("interrupted")]
        blocks = [block for data in messages for block in data["content"] if block["kind"] == "tool_call"]
        assert len(main.of("user/message")) == len(counts.get("user/message", []))
        assert len(messages) == len(answers)
        assert [block["call_id"] for block in blocks] == asked
        assert len(main.of("tool/result")) == len(counts.get("tool/result", []))
        assert len(main.of("turn/end")) == sum(line["type"] == "turn/end" for line in lines)
        assert sum(data["usage"]["input_tokens"] for data in messages if "usage" in data) == sum(
            data["usage"]["inputTokens"] for data in answers if "usage" in data
        )

    def kind_of(line: dict[str, Any]) -> str:
        return str(line["type"])
