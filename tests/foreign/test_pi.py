"""Sessions of pi, oh-my-pi and OpenClaw: what they hold, on which branch, and what is wrong with them."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.foreign import REAL, Folded, Thread, folded, real

SVG = "PHN2ZyB4bWxucz0iaHR0cDovL3d3dy53My5vcmcvMjAwMC9zdmciLz4="
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"
#: What stands in a response that says nothing else.
USAGE = {"input": 10, "output": 5, "cacheRead": 3, "cacheWrite": 2, "totalTokens": 20, "cost": {"total": 0.1}}


class Session:
    """Lines of a session, a second apart; an entry hangs at the one before unless ``parent`` names another."""

    def __init__(self, version: int | None = 3, **header: Any) -> None:
        self.version = version
        versioned = {} if version is None else {"version": version}
        self.lines: list[dict[str, Any]] = [
            {"type": "session", "id": "s-1", **versioned, "timestamp": self.time(0), "cwd": "/w", **header}
        ]
        self.newest: str | None = None

    @staticmethod
    def time(second: int) -> str:
        return f"2026-03-01T10:{second // 60:02}:{second % 60:02}.000Z"

    def add(self, type_: str, id: str | None = None, parent: Any = ..., **more: Any) -> str:
        own = id or f"e{len(self.lines) + 1}"
        line: dict[str, Any] = {"type": type_}
        if self.version is not None:
            line |= {"id": own, "parentId": self.newest if parent is ... else parent}
        self.lines.append({**line, "timestamp": self.time(len(self.lines)), **more})
        self.newest = own
        return own

    def message(self, role: str, *, id: str | None = None, parent: Any = ..., **message: Any) -> str:
        return self.add("message", id, parent, message={"role": role, **message})

    def user(self, content: Any, **more: Any) -> str:
        return self.message("user", content=content, **more)

    def answer(self, *blocks: Any, reason: str | None = None, **more: Any) -> str:
        content = [text(block) if isinstance(block, str) else block for block in blocks]
        asks = any(block["type"] == "toolCall" for block in content)
        message = {"provider": "acme", "model": "m1", "usage": USAGE, "stopReason": "toolUse" if asks else "stop"}
        if reason is not None:
            message["stopReason"] = reason
        return self.message("assistant", content=content, **{**message, **more})

    def result(self, call_id: Any, content: Any = "done", **more: Any) -> str:
        blocks = [text(content)] if isinstance(content, str) else content
        return self.message("toolResult", toolCallId=call_id, toolName="bash", content=blocks, **more)

    def folded(self) -> Folded:
        return folded(self.lines, "pi")


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def call(call_id: Any, name: str = "bash", **arguments: Any) -> dict[str, Any]:
    return {"type": "toolCall", "id": call_id, "name": name, "arguments": arguments}


def branches(found: Folded) -> list[Thread]:
    return [thread for name, thread in found.threads.items() if name]


def said(thread: Thread) -> list[str]:
    """All that a model is told on this branch, from its very beginning."""
    messages = thread.whole.messages()
    return [block["text"] for message in messages for block in message["content"] if block["kind"] == "text"]


def reasons(thread: Thread) -> list[str]:
    return [data["reason"]["kind"] for data in thread.of("turn/end")]


# ---------------------------------------------------------------- what a session holds


@pytest.mark.parametrize("version", [None, 2, 3])
def test_a_session(version: int | None) -> None:
    session = Session(version)
    session.user("list files")
    session.answer("Looking.", call("c1", command="ls"))
    session.result("c1", "a file")
    session.answer("One file.")
    found = session.folded()
    main = found.main
    assert found.codes() == []
    assert list(found.threads) == [""]
    assert main.texts() == ["list files", "Looking.", "One file."]
    assert (main.statuses(), main.results()) == (["completed"], ["ok"])
    assert {key: main.header[key] for key in ("cwd", "backend", "model")} == {
        "cwd": "/w",
        "backend": "pi",
        "model": "m1",
    }
    assert main.header["imported_from"]["session_id"] == "s-1"
    [asked] = [block for block in main.of("assistant/message")[0]["content"] if block["kind"] == "tool_call"]
    assert asked == {"kind": "tool_call", "call_id": "c1", "name": "bash", "arguments": '{"command":"ls"}'}
    assert main.of("request/header")[0]["header"] == {"provider": "acme", "model": "m1"}
    assert main.times[-1] - main.times[0] == 4_000


def test_usage_is_counted_once_and_by_its_kinds() -> None:
    session = Session()
    session.user("a")
    fork = session.answer(call("c1"))
    session.result("c1", parent=fork)
    session.answer("one way")
    session.result("c1", "otherwise", parent=fork)
    session.answer("another way")
    found = session.folded()
    counts = {"input_tokens": 10, "output_tokens": 5, "cache_read_tokens": 3, "cache_write_tokens": 2}
    assert [data["usage"] for data in found.main.of("assistant/message")] == [counts, counts]
    [branch] = branches(found)
    # What both share is counted where it is given first.
    assert [data.get("usage") for data in branch.of("assistant/message")] == [None, counts]


def test_blocks() -> None:
    session = Session()
    session.user([text("look"), {"type": "image", "data": PNG, "mimeType": "image/png"}])
    session.answer(
        {"type": "thinking", "thinking": "hm", "thinkingSignature": "sig"},
        {"type": "thinking", "thinking": "", "thinkingSignature": "secret", "redacted": True},
        {"type": "redactedThinking", "data": "other"},
        {"type": "thinking", "thinking": "unsigned"},
        {"type": "future", "x": 1},
    )
    found = session.folded()
    assert found.codes() == []
    assert found.main.of("user/message")[0]["content"][1] == {"kind": "image", "media_type": "image/png", "data": PNG}
    assert found.main.of("assistant/message")[0]["content"] == [
        {"kind": "thinking", "text": "hm", "signature": "sig"},
        {"kind": "redacted_thinking", "data": "secret"},
        {"kind": "redacted_thinking", "data": "other"},
        {"kind": "thinking", "text": "unsigned"},
        {"kind": "text", "text": '{"type":"future","x":1}'},
    ]


def test_images_that_are_elsewhere_or_of_no_use() -> None:
    session = Session()
    session.user([{"type": "image", "data": "blob:sha256:" + "0" * 64, "mimeType": "image/png"}])
    session.answer(call("c1"))
    session.result("c1", [{"type": "image", "data": SVG, "mimeType": "image/png"}, {"type": "image"}])
    found = session.folded()
    assert found.found("image_elsewhere") == [(2, None), (4, None)]
    assert found.found("image_unusable") == [(4, None)]
    assert found.main.texts()[0].startswith("[image: blob:sha256:000")
    assert found.main.of("tool/result")[0]["content"][0]["data"] == SVG


@pytest.mark.parametrize(
    ("message", "told", "origin"),
    [
        ({"role": "bashExecution", "command": "ls", "output": "a", "exitCode": 0}, ["$ ls", "a"], "bashExecution"),
        ({"role": "bashExecution", "command": "ls", "output": "", "exitCode": 2}, ["$ ls", "was 2"], "bashExecution"),
        ({"role": "pythonExecution", "code": "1+1", "output": "2", "cancelled": True}, [">>> 1+1", "cancelled"], None),
        ({"role": "custom", "customType": "skill", "content": "do so"}, ["do so"], "skill"),
        ({"role": "hookMessage", "content": [text("do so")]}, ["do so"], "hookMessage"),
        ({"role": "developer", "content": "obey"}, ["obey"], "developer"),
        ({"role": "fileMention", "files": [{"path": "a.py", "content": "x = 1"}]}, ["[a.py]", "x = 1"], "fileMention"),
    ],
)
def test_what_is_said_and_begins_no_turn(message: dict[str, Any], told: list[str], origin: str | None) -> None:
    session = Session()
    session.user("a")
    session.answer("b")
    session.add("message", message=message)
    session.user("c")
    found = session.folded()
    whole = "\n".join(found.main.texts())
    assert all(each in whole for each in told)
    assert found.main.statuses() == ["completed", "interrupted"]
    [_, aside, prompt] = found.main.of("user/message")
    # It belongs to the turn that comes.
    assert aside["turn_id"] == prompt["turn_id"] != found.main.of("user/message")[0]["turn_id"]
    assert origin is None or aside["source"]["origin"] == origin


def test_what_is_put_in_by_extensions_and_what_is_kept_from_the_model() -> None:
    session = Session()
    session.user("a")
    session.add("custom_message", customType="hint", content="a hint", display=False)
    session.message("bashExecution", command="secret", output="x", excludeFromContext=True)
    session.add("label", targetId="e2", label="here")
    session.add("custom", customType="state", data={"k": 1})
    session.answer("b")
    found = session.folded()
    assert found.main.texts() == ["a", "a hint", "b"]
    assert found.report.kept == {"session": 1, "message/bashExecution": 1, "label": 1, "custom": 1}
    kept = [data["value"] for data in found.main.of("x-foreign/line")]
    assert kept == [
        line
        for line in session.lines
        if "hint" not in str(line) and line.get("message", {}).get("role") not in ("user", "assistant")
    ]
    assert found.codes() == []


def test_names_and_models() -> None:
    session = Session(title="first")
    session.lines.insert(0, {"type": "title", "v": 1, "title": "newest", "pad": " " * 150})
    session.user("a")
    session.add("model_change", provider="acme", modelId="m2")
    session.add("model_change", model="acme/m3")
    session.add("model_change", model="acme/small", role="smol")
    session.add("session_info", name="a name")
    session.add("title_change", title="a title")
    session.add("thinking_level_change", thinkingLevel="high")
    found = session.folded()
    assert found.main.header["name"] == "newest"
    assert [data["patch"] for data in found.main.of("session/updated")] == [
        {"model": "m2"},
        {"model": "m3"},
        {"name": "a name"},
        {"name": "a title"},
    ]
    assert found.report.kept["model_change"] == 3
    assert found.codes() == ["open_turn"]


def test_unknown_lines_are_kept_and_counted_by_type() -> None:
    session = Session()
    session.user("a")
    session.add("future", x=1)
    session.message("oracle", content="?")
    session.add("future", x=2)
    session.answer("b")
    found = session.folded()
    assert found.found("unknown_lines") == [(3, None), (4, None)]
    assert [finding.message.split(" stand")[0] for finding in found.report.findings] == [
        "2 lines of type future",
        "1 lines of type message/oracle",
    ]
    assert found.main.of("x-foreign/line")[1]["value"] == session.lines[2]


def test_a_line_without_a_header() -> None:
    session = Session()
    session.user("a")
    session.answer("b")
    session.add("session", version=3, cwd="/elsewhere")
    found = folded(session.lines[1:], "pi")
    assert (found.found("bad_header"), found.main.texts()) == ([(1, None)], ["a", "b"])
    session.lines.append(session.lines[-1])
    found = session.folded()
    assert found.found("misfit") == [(4, None), (5, None)]
    assert found.main.header["cwd"] == "/w"


# ---------------------------------------------------------------- how turns end


@pytest.mark.parametrize(
    ("reason", "kind"),
    [("stop", "completed"), ("length", "max_tokens"), ("error", "failed"), ("aborted", "aborted")],
)
@pytest.mark.parametrize("more", [True, False])
def test_a_response_ends_its_turn(reason: str, kind: str, more: bool) -> None:
    session = Session()
    session.user("a")
    session.answer("b", reason=reason, errorMessage="why")
    if more:
        session.user("c")
        session.answer("d")
    found = session.folded()
    assert reasons(found.main)[0] == kind
    end = found.main.of("turn/end")[0]["reason"]
    assert end.get("message") == ("why" if kind in ("failed", "aborted") else None)
    assert found.codes() == []


@pytest.mark.parametrize("reason", ["toolUse", "deferred", None])
def test_other_reasons_are_no_evidence_of_an_end(reason: str | None) -> None:
    session = Session()
    session.user("a")
    session.message("assistant", content=[text("b")], stopReason=reason)
    found = session.folded()
    assert (reasons(found.main), found.codes()) == ([], ["open_turn"])


def test_a_call_that_is_asked_for_keeps_its_turn_open() -> None:
    session = Session()
    session.user("a")
    session.answer(call("c1"), reason="stop")
    found = session.folded()
    assert found.codes() == ["open_turn", "unknown_outcome"]


@pytest.mark.parametrize("reason", ["aborted", "error"])
def test_calls_of_a_response_that_was_cut_off_never_ran(reason: str) -> None:
    session = Session()
    session.user("edit")
    session.answer("Two.", call("c1"), call("c2"), reason=reason)
    session.user("again")
    found = session.folded()
    assert found.main.of("assistant/message")[0]["interrupted"] is True
    assert [data["state"] for data in found.main.of("tool/result")] == ["not_started", "not_started"]
    assert found.main.of("tool/call") == []
    assert found.codes() == ["open_turn"]


def test_a_call_of_such_a_response_that_has_a_result_did_run() -> None:
    session = Session()
    session.user("edit")
    session.answer(call("c1"), reason="aborted")
    session.result("c1", "ran")
    session.user("again")
    found = session.folded()
    assert found.main.results() == ["ok"]
    assert "orphan_result" not in found.codes()
    assert "interrupted" not in found.main.of("assistant/message")[0]


def test_a_failed_request_that_is_made_again_is_of_the_same_turn() -> None:
    session = Session()
    session.user("a")
    session.answer(reason="error", errorMessage="overloaded")
    session.add("compaction", summary="short", firstKeptEntryId="e2")
    session.answer("b")
    found = session.folded()
    assert reasons(found.main) == ["completed"]
    assert [(note["kind"], note["text"]) for note in found.main.of("session/note")] == [("api_error", "overloaded")]


def test_a_message_of_an_extension_that_is_answered_begins_a_turn() -> None:
    session = Session()
    session.user("a")
    session.answer("b")
    session.add("custom_message", customType="timer", content="it is time")
    session.answer("c")
    found = session.folded()
    assert (reasons(found.main), found.main.texts()) == (["completed", "completed"], ["a", "b", "it is time", "c"])


# ---------------------------------------------------------------- results


def test_results_are_paired_by_the_whole_id() -> None:
    session = Session()
    session.user("two")
    session.answer(call("call_a|undefined"), call("call_b|undefined"), call("call_a|fc_1"))
    session.result("call_b|undefined", "b")
    session.result("call_a|fc_1", "third", isError=True)
    session.result("call_a|undefined", "a")
    found = session.folded()
    told = {data["call_id"]: (data["content"][0]["text"], data["state"]) for data in found.main.of("tool/result")}
    assert told == {
        "call_a|undefined": ("a", "ok"),
        "call_b|undefined": ("b", "ok"),
        "call_a|fc_1": ("third", "error"),
    }
    assert found.codes() == ["open_turn"]


def test_a_result_behind_the_next_response_of_its_turn_belongs_before_that() -> None:
    session = Session()
    session.user("a")
    session.answer(call("c1"), call("c2"))
    session.result("c2")
    session.answer("went on")
    session.result("c1", "slow")
    session.answer("b")
    found = session.folded()
    assert (found.main.results(), found.codes()) == (["ok", "ok"], [])
    assert found.main.of("tool/result")[1]["content"][0]["text"] == "slow"
    types = found.main.types()
    assert len(found.main.of("tool/result")) == 2
    assert [i for i, each in enumerate(types) if each == "tool/result"][1] < types.index(
        "assistant/message", types.index("assistant/message") + 1
    )


def test_a_result_behind_a_prompt_is_late() -> None:
    session = Session()
    session.user("a")
    session.answer(call("c1"))
    session.user("never mind")
    session.result("c1", "slow")
    found = session.folded()
    assert found.found("late_result") == [(5, 3)]
    assert found.main.of("tool/outcome")[0]["content"][0]["text"] == "slow"


def test_ids_that_come_again_pair_with_the_newest_call() -> None:
    session = Session()
    for number in ("one", "two"):
        session.user(number)
        session.answer(call("call_0"))
        session.result("call_0", number)
        session.answer(call("call_0"))
        session.result("call_0", f"{number} again")
        session.answer("so")
    found = session.folded()
    told = [data["content"][0]["text"] for data in found.main.of("tool/result")]
    assert (told, found.codes()) == (["one", "one again", "two", "two again"], [])


def test_a_result_that_nobody_asked_for_behind_a_compaction() -> None:
    session = Session()
    session.user("old")
    kept = session.answer("old answer")
    session.add("compaction", summary="Old work.", firstKeptEntryId=kept)
    session.add("label", targetId=kept, label="x")
    session.result("call_X|fc_Y", "out")
    session.answer("Using it.")
    found = session.folded()
    assert found.codes() == ["orphan_result", "unrecorded_span"]
    assert found.found("unrecorded_span") == [(6, 4)]
    assert "in 2 s" in next(each.message for each in found.report.findings if each.code == "unrecorded_span")
    assert found.main.results() == []
    assert found.main.texts()[-2:] == ["out", "Using it."]


def test_a_result_that_nobody_asked_for_elsewhere() -> None:
    session = Session()
    session.user("a")
    session.result("c9", "out")
    session.answer("b")
    found = session.folded()
    assert found.codes() == ["orphan_result"]


# ---------------------------------------------------------------- compaction


def compacted(session: Session, **pointer: Any) -> Folded:
    session.user("one")
    session.answer("first")
    session.user("two")
    session.answer("second")
    session.add("compaction", summary="SUM", tokensBefore=9, **pointer)
    session.user("three")
    return session.folded()


@pytest.mark.parametrize(
    ("pointer", "kept"),
    [
        ({"firstKeptEntryId": "e4"}, ["SUM", "two", "second", "three"]),
        ({"firstKeptEntryId": "e5"}, ["SUM", "second", "three"]),
        ({"firstKeptEntryIndex": 3}, ["SUM", "two", "second", "three"]),
    ],
)
def test_a_compaction_keeps_from_its_pointer_on(pointer: dict[str, Any], kept: list[str]) -> None:
    found = compacted(Session(), **pointer)
    assert (found.main.texts(), found.codes()) == (kept, ["open_turn"])


@pytest.mark.parametrize("index", [3, 4])
def test_the_oldest_files_count_lines_their_header_included(index: int) -> None:
    found = compacted(Session(None, provider="acme", modelId="m0"), firstKeptEntryIndex=index)
    assert found.main.texts() == ["SUM", *["two", "second"][index - 3 :], "three"]
    assert (found.codes(), found.main.header["model"]) == (["open_turn"], "m0")


@pytest.mark.parametrize(
    "pointer",
    [
        {},
        {"firstKeptEntryId": "nowhere"},
        {"firstKeptEntryId": "e7"},
        {"firstKeptEntryIndex": 0},
        {"firstKeptEntryIndex": 551},
        {"firstKeptEntryIndex": True},
        {"firstKeptEntryId": 4},
    ],
)
def test_a_compaction_that_points_off_its_path_keeps_nothing(pointer: dict[str, Any]) -> None:
    found = compacted(Session(), **pointer)
    assert found.main.texts() == ["SUM", "three"]
    assert found.found("compaction_pointer") == [(6, None)]


def test_a_pointer_to_another_branch_keeps_nothing() -> None:
    session = Session()
    root = session.user("one")
    other = session.answer("left")
    session.answer("first", parent=root)
    session.add("compaction", summary="SUM", firstKeptEntryId=other)
    session.user("two")
    found = session.folded()
    assert found.found("compaction_pointer") == [(5, None)]
    assert found.main.texts() == ["SUM", "two"]


def test_a_pointer_to_what_is_no_message_keeps_from_the_next_one_on() -> None:
    session = Session()
    session.user("one")
    session.answer("first")
    session.add("model_change", id="here", modelId="m2")
    session.user("two")
    session.add("compaction", summary="SUM", firstKeptEntryId="here")
    session.answer("second")
    found = session.folded()
    assert (found.main.texts(), found.codes()) == (["SUM", "two", "second"], [])


def test_a_call_before_a_compaction_whose_result_stands_behind_it() -> None:
    session = Session()
    session.user("one", id="keep")
    session.answer(call("c1"))
    session.add("compaction", summary="SUM", firstKeptEntryId="keep")
    session.result("c1", "out")
    session.answer("so")
    found = session.folded()
    assert found.found("late_result") == [(5, 3)]
    assert "so" in found.main.texts()


def test_only_the_newest_compaction_counts_and_a_conversation_can_be_begun_anew() -> None:
    session = Session()
    session.user("one")
    session.answer("first")
    session.add("compaction", summary="A", firstKeptEntryId="e3")
    session.user("two")
    session.answer("second")
    session.add("compaction", summary="B", firstKeptEntryId="e5")
    session.user("three")
    assert session.folded().main.texts() == ["B", "two", "second", "three"]
    session.answer("third")
    session.add("reset_boundary")
    session.user("four")
    assert session.folded().main.texts()[1:] == ["four"]


# ---------------------------------------------------------------- branches


def test_a_branch_is_forked_behind_the_last_turn_that_it_shares() -> None:
    session = Session()
    session.user("one")
    shared = session.answer("first")
    session.user("withdrawn")
    session.answer("never")
    session.user("two", parent=shared)
    session.answer("second")
    found = session.folded()
    [branch] = branches(found)
    assert found.codes() == []
    assert found.main.texts() == ["one", "first", "two", "second"]
    assert branch.texts() == ["withdrawn", "never"]
    assert said(branch) == ["one", "first", "withdrawn", "never"]
    assert found.main.drafts[branch.fork.seq].type == "run/settled"
    assert branch.of("turn/start")[0]["turn"] == 2


def test_a_summary_of_the_branch_that_was_left() -> None:
    session = Session()
    root = session.user("one")
    shared = session.answer("first")
    session.user("withdrawn")
    session.add("branch_summary", parent=shared, fromId=root, summary="tried it")
    session.user("two")
    found = session.folded()
    assert found.main.texts()[2] == "[What happened on a branch that was left:]\ntried it"
    assert found.main.texts()[3] == "two"
    assert said(branches(found)[0]) == ["one", "first", "withdrawn"]


def test_a_branch_of_another_beginning() -> None:
    session = Session()
    session.user("one")
    session.answer("first")
    session.user("else", parent=None)
    session.answer("second")
    found = session.folded()
    [branch] = branches(found)
    assert (found.main.texts(), said(branch), branch.fork) == (["else", "second"], ["one", "first"], None)


def test_a_branch_that_leaves_in_the_middle_of_a_turn_gives_what_it_shares_again() -> None:
    session = Session()
    session.user("zero")
    session.answer("so")
    session.user("one")
    fork = session.answer("looking", call("c1"))
    session.result("c1", "a")
    session.answer("first")
    session.result("c1", "b", parent=fork)
    session.answer("second")
    session.user("two")
    found = session.folded()
    [branch] = branches(found)
    assert found.main.texts() == ["zero", "so", "one", "looking", "second", "two"]
    assert branch.texts() == ["one", "looking", "first"]
    assert said(branch) == ["zero", "so", "one", "looking", "first"]
    assert [data["turn"] for data in branch.of("turn/start")] == [2]
    assert [data["content"][0]["text"] for data in branch.of("tool/result")] == ["a"]
    assert found.codes() == ["open_turn"]


def test_a_failed_request_that_is_made_again_on_another_branch() -> None:
    session = Session()
    session.user("one")
    failed = session.answer("half", reason="error", errorMessage="x")
    session.user("two")
    session.answer("second")
    session.answer("made again", parent=failed)
    found = session.folded()
    [branch] = branches(found)
    assert said(found.main) == ["one", "half", "made again"]
    assert reasons(found.main) == ["completed"]
    assert said(branch) == ["one", "half", "two", "second"]
    assert reasons(branch) == ["failed", "completed"]


def test_what_stands_between_turns_is_shared_too() -> None:
    session = Session()
    session.user("one")
    session.answer("first")
    shared = session.add("compaction", summary="SUM", firstKeptEntryId="nowhere")
    session.user("withdrawn")
    session.user("two", parent=shared)
    found = session.folded()
    [branch] = branches(found)
    assert found.main.texts() == ["SUM", "two"]
    assert said(branch) == ["SUM", "withdrawn"]
    assert found.found("compaction_pointer") == [(4, None)]


def test_a_branch_before_a_compaction_knows_nothing_of_it() -> None:
    session = Session()
    session.user("one")
    before = session.answer("first")
    session.add("compaction", summary="SUM", firstKeptEntryId="nowhere")
    session.user("two")
    session.answer("second")
    session.user("withdrawn", parent=before)
    session.user("three", parent="e6")
    found = session.folded()
    [branch] = branches(found)
    assert (found.main.texts(), said(branch)) == (["SUM", "two", "second", "three"], ["one", "first", "withdrawn"])


def test_branches_of_branches() -> None:
    session = Session()
    session.user("one")
    first = session.answer("first")
    session.user("two")
    second = session.answer("second")
    session.user("three a")
    session.user("three b", parent=second)
    session.answer("third b")
    session.user("two else", parent=first)
    session.answer("the end")
    found = session.folded()
    assert sorted(map(said, branches(found))) == [
        ["one", "first", "two", "second", "three a"],
        ["one", "first", "two", "second", "three b", "third b"],
    ]
    assert found.main.texts() == ["one", "first", "two else", "the end"]
    assert [thread.of("turn/start")[-1]["turn"] for thread in branches(found)] == [3, 3]


def test_what_a_dying_process_appends_at_an_old_place_is_not_where_the_session_goes_on() -> None:
    session = Session()
    session.user("a")
    old = session.answer("b")
    session.user("c")
    session.answer("d")
    session.add("custom", parent=old, customType="session_exit", data={"kind": "signal", "reason": "SIGHUP"})
    found = session.folded()
    assert found.main.texts() == ["a", "b", "c", "d"]
    assert found.found("leaf_disputed") == [(6, 5)]
    # The other one is there too.
    [branch] = branches(found)
    assert said(branch) == ["a", "b"]
    assert branch.of("session/note") == [{"kind": "session_exit", "text": "signal, SIGHUP"}]


def test_what_is_appended_at_the_tail_is_no_dispute() -> None:
    session = Session()
    session.user("a")
    session.answer("b")
    session.add("custom", customType="session_exit", data={})
    session.add("label", targetId="e2", label="x")
    found = session.folded()
    assert (found.codes(), list(found.threads)) == ([], [""])
    assert len(found.main.of("x-foreign/line")) == 3


def test_a_branch_without_a_conversation_is_none() -> None:
    session = Session()
    session.user("a")
    old = session.answer("b")
    session.add("label", parent=old, targetId=old, label="x")
    session.add("custom_message", parent=old, content="hint")
    session.user("c", parent=old)
    found = session.folded()
    assert (list(found.threads), found.main.texts(), found.codes()) == ([""], ["a", "b", "c"], ["open_turn"])
    assert found.report.kept == {"session": 1, "label": 1, "custom_message": 1}


def test_an_entry_that_hangs_at_a_call_or_at_the_header() -> None:
    session = Session()
    session.user("a", parent="s-1")
    session.answer(call("c1"))
    session.result("c1", parent="c1")
    session.answer("b")
    found = session.folded()
    assert (found.codes(), found.main.results(), found.main.texts()) == ([], ["ok"], ["a", "b"])


def test_parents_that_are_not_there_or_run_in_a_circle() -> None:
    session = Session()
    session.user("a")
    session.answer("b", parent="gone")
    session.user("c", parent="e6")
    session.answer("d", parent="e7")
    session.add("custom", parent="e4", customType="x")
    session.user("e", parent="e6")
    session.user("f", parent=["odd"])
    session.user("g", id="self", parent="self")
    found = session.folded()
    assert found.main.texts() == ["a", "b", "c", "e", "f", "g"]
    assert said(branches(found)[0]) == ["a", "b", "c", "d"]
    assert found.found("missing_parent") == [(3, None), (5, None), (8, None)]
    assert found.found("parent_cycle") == [(4, None), (9, None)]


def test_a_line_that_stands_there_twice_counts_once() -> None:
    session = Session()
    session.user("a")
    session.answer("b")
    session.lines.insert(2, session.lines[1])
    found = session.folded()
    assert (found.found("duplicate_line"), found.main.texts()) == ([(3, 2)], ["a", "b"])


def test_another_entry_with_the_same_id_is_an_entry_of_its_own() -> None:
    session = Session()
    session.user("a", id="x")
    session.answer("b")
    session.user("c", id="x")
    session.answer("d")
    found = session.folded()
    assert (found.found("misfit"), found.main.texts()) == ([(4, 2)], ["a", "b", "c", "d"])
    assert found.main.statuses() == ["completed", "completed"]


def test_an_entry_that_does_not_say_what_it_hangs_at() -> None:
    session = Session()
    root = session.user("a")
    session.answer("b")
    session.user("left", parent=root)
    del session.lines[3]["parentId"]
    found = session.folded()
    assert (found.found("misfit"), found.main.texts()) == ([(4, None)], ["a", "b", "left"])
    # The oldest files never say it.
    session = Session(None)
    session.user("a")
    session.answer("b")
    assert session.folded().codes() == []


def test_so_many_branches_become_sessions_and_not_more() -> None:
    session = Session()
    root = session.user("a")
    for _ in range(1_010):
        session.answer("one of many", parent=root)
    found = session.folded()
    assert len(branches(found)) == 1_000
    assert found.codes() == ["misfit"]
    assert len(found.main.of("x-foreign/line")) == 1 + 9


def test_branches_that_share_very_much_do_not_give_all_of_it_again() -> None:
    session = Session()
    session.user("a" * 400_000)
    root = session.answer(call("c1"))
    for _ in range(9):
        session.result("c1", parent=root)
        session.answer("b")
    found = session.folded()
    assert len(branches(found)) == 8
    given = sum(branch.texts()[0].startswith("a") for branch in branches(found))
    assert 0 < given < 8
    assert len(found.found("misfit")) == 8 - given


# ---------------------------------------------------------------- which calls ran


def marked(session: Session, call_id: str, **more: Any) -> None:
    data = {"toolCallId": call_id, "toolName": "bash", "args": {"command": "ls"}}
    session.add("custom", customType="tool_execution_start", data=data, **more)


def test_a_marker_tells_which_calls_ran() -> None:
    session = Session()
    session.user("a")
    session.answer(call("c1"), call("c2"), call("c3"))
    marked(session, "c1")
    session.result("c1")
    marked(session, "c2")
    found = session.folded()
    assert "tool_boundary" in found.main.header
    assert [data["call_id"] for data in found.main.of("tool/call")] == ["c1", "c2"]
    assert found.found("unknown_outcome") == [(3, None)]
    assert found.found("not_started") == [(3, None)]


def test_without_markers_nobody_knows() -> None:
    session = Session()
    session.user("a")
    session.answer(call("c1"))
    found = session.folded()
    assert "tool_boundary" not in found.main.header
    assert found.codes() == ["open_turn", "unknown_outcome"]


def test_calls_from_before_the_markers_may_have_run() -> None:
    session = Session()
    session.user("a")
    session.answer(call("old"))
    session.user("b")
    session.answer(call("c1"), call("c2"))
    marked(session, "c1")
    session.user("c")
    found = session.folded()
    told = {data["call_id"]: data["state"] for data in found.main.of("tool/result")}
    assert told == {"old": "unknown", "c1": "unknown", "c2": "not_started"}


def test_a_marker_may_stand_before_the_message_that_asks() -> None:
    session = Session()
    session.user("a")
    marked(session, "c1")
    session.answer(call("c1"), call("c2"))
    session.user("b")
    found = session.folded()
    told = {data["call_id"]: data["state"] for data in found.main.of("tool/result")}
    assert told == {"c1": "unknown", "c2": "not_started"}


def test_a_marker_of_a_call_that_no_message_asks_for() -> None:
    session = Session()
    session.user("a")
    session.answer("b", reason="toolUse")
    marked(session, "lost")
    marked(session, "lost")
    found = session.folded()
    [entered] = found.main.of("tool/call")
    assert (entered["call_id"], entered["arguments"]) == ("lost", '{"command":"ls"}')


def test_a_response_that_was_cut_off_after_its_call_ran() -> None:
    session = Session()
    session.user("a")
    session.answer(call("c1"), reason="aborted")
    marked(session, "c1")
    session.user("b")
    found = session.folded()
    assert [data["state"] for data in found.main.of("tool/result")] == ["unknown"]


def test_a_call_that_ran_as_another_branch_tells_did_run() -> None:
    session = Session()
    session.user("a")
    fork = session.answer(call("c1"), call("c2"), call("c3"))
    marked(session, "c1")
    session.result("c1")
    session.result("c2", parent=fork)
    session.user("b")
    found = session.folded()
    told = {data["call_id"]: data["state"] for data in found.main.of("tool/result")}
    assert told == {"c1": "unknown", "c2": "ok", "c3": "not_started"}


def test_a_call_whose_result_is_on_another_branch_did_run() -> None:
    session = Session()
    session.user("a")
    fork = session.answer(call("c1"), call("c2"), reason="aborted")
    session.result("c1")
    session.user("b", parent=fork)
    found = session.folded()
    told = {data["call_id"]: data["state"] for data in found.main.of("tool/result")}
    assert told == {"c1": "unknown", "c2": "unknown"}


# ---------------------------------------------------------------- hostile files


def sample() -> list[dict[str, Any]]:
    """Something of everything."""
    session = Session()
    session.lines.insert(0, {"type": "title", "title": "t"})
    session.add("model_change", provider="acme", modelId="m1")
    session.user([text("one"), {"type": "image", "data": PNG, "mimeType": "image/png"}])
    fork = session.answer({"type": "thinking", "thinking": "hm", "thinkingSignature": "s"}, call("c1"), call("c2"))
    marked(session, "c1")
    session.result("c1")
    session.result("c2", isError=True)
    ended = session.answer("first")
    session.add("compaction", summary="SUM", firstKeptEntryId=fork)
    session.result("c9")
    session.answer("so", reason="error", errorMessage="e")
    session.message("bashExecution", command="ls", output="a", exitCode=1)
    session.user("two", parent=ended)
    session.add("branch_summary", fromId=fork, summary="left")
    session.answer(call("c1"), reason="aborted")
    session.result("c2", "other", parent=fork)
    session.answer("else")
    session.add("compaction", summary="S2", firstKeptEntryIndex=4)
    session.user("three")
    session.answer(call("c3"))
    session.add("custom", parent=ended, customType="session_exit", data={"kind": "signal"})
    return session.lines


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(),
        st.sampled_from(
            ["", "e4", "e5", "e12", "c1", "c2", "user", "assistant", "toolResult", "message", "compaction"]
        ),
        st.text(max_size=3),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=3), inner, max_size=2)),
    max_leaves=4,
)


@st.composite
def spoiled(draw: st.DrawFn) -> bytes:
    lines = copy.deepcopy(sample())
    for _ in range(draw(st.integers(1, 6))):
        index = draw(st.integers(0, len(lines) - 1))
        change = draw(st.sampled_from(["drop", "double", "swap", "value", "inside", "parent"]))
        if change == "drop" and len(lines) > 1:
            del lines[index]
        elif change == "double":
            lines.insert(draw(st.integers(0, len(lines))), copy.deepcopy(lines[index]))
        elif change == "swap":
            other = draw(st.integers(0, len(lines) - 1))
            lines[index], lines[other] = lines[other], lines[index]
        elif change == "parent":
            lines[index]["parentId"] = draw(st.sampled_from([None, *(f"e{n}" for n in range(2, 22))]))
        else:
            place: Any = lines[index]
            inner = [place["message"]] if isinstance(place.get("message"), dict) else []
            if inner and isinstance(inner[0].get("content"), list):
                inner += [block for block in inner[0]["content"] if isinstance(block, dict)]
            if change == "inside" and inner:
                place = draw(st.sampled_from(inner))
            if place:
                place[draw(st.sampled_from(sorted(place)))] = draw(VALUES)
    data = b"".join(json.dumps(line).encode() + draw(st.sampled_from([b"\n", b"\r\n", b"\n\n"])) for line in lines)
    cut = draw(st.integers(0, len(data)))
    junk: bytes = draw(st.sampled_from([b"", b"", b"\xff\n", b"{\n", b"[" * 300 + b"\n"]))
    return data[:cut] + junk + data[cut:]


@settings(max_examples=150, deadline=None)
@given(spoiled())
def test_nothing_in_a_file_is_an_error(data: bytes) -> None:
    folded(data, "pi")


def test_long_chains_and_long_ids() -> None:
    session = Session()
    session.user("a")
    long = "x" * 100_000
    session.answer(call(long), call(""), call(None), call(7))
    session.result(long)
    session.result("")
    session.result(None)
    session.result(7)
    session.answer("b", id=long)
    session.user("c")
    for _ in range(20_000):
        session.add("label")
    session.answer("d")
    found = session.folded()
    assert found.codes() == []
    assert found.main.results() == ["ok"] * 4
    assert max(len(data["message_id"]) for data in found.main.of("assistant/message")) < 100


if REAL is not None:

    @pytest.mark.parametrize("path", real("pi"), ids=lambda path: path.name)
    def test_counts_of_real_files(path: Path) -> None:
        """Counted again without a tree: all of the given files have one branch."""
        messages = []
        for line in path.read_bytes().splitlines():
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if value.get("type") == "message":
                messages.append(value["message"])
        roles = [message["role"] for message in messages]
        asked = [
            block["id"]
            for message in messages
            if message["role"] == "assistant"
            for block in message["content"]
            if block["type"] == "toolCall"
        ]
        results = [message["toolCallId"] for message in messages if message["role"] == "toolResult"]
        found = folded(path.read_bytes(), "pi", path.name)
        main = found.main
        prompts = [data for data in main.of("user/message") if "origin" not in data["source"]]
        assert list(found.threads) == [""]
        assert (len(prompts), len(main.of("assistant/message"))) == (roles.count("user"), roles.count("assistant"))
        calls = [
            block["call_id"]
            for data in main.of("assistant/message")
            for block in data["content"]
            if block["kind"] == "tool_call"
        ]
        assert calls == asked
        told = [data["call_id"] for data in main.of("tool/result") if data["state"] in ("ok", "error")]
        assert sorted(told + [data["call_id"] for data in main.of("tool/outcome")]) == sorted(set(results) & set(asked))
        assert len(found.found("orphan_result")) == len(set(results) - set(asked))
