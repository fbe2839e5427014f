"""Rollouts of Codex: two records of one fact, turns that are aborted, withdrawn or resumed, usage that is a total."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maka.journal import export
from support.foreign import REAL, Folded, folded, real

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"
URL = f"data:image/png;base64,{PNG}"
ID = "0195aaaa-0000-7000-8000-000000000001"


def line(type_: str, payload: Any, second: int | None = None) -> dict[str, Any]:
    at = {} if second is None else {"timestamp": f"2026-02-01T10:00:{second:02}.000Z"}
    return {**at, "type": type_, "payload": payload}


def meta(second: int = 0, **more: Any) -> dict[str, Any]:
    return line("session_meta", {"id": ID, "cwd": "/w", "model_provider": "openai", **more}, second)


def event(kind: str, second: int = 1, **more: Any) -> dict[str, Any]:
    return line("event_msg", {"type": kind, **more}, second)


def item(kind: str, second: int = 1, **more: Any) -> dict[str, Any]:
    return line("response_item", {"type": kind, **more}, second)


def user(text: str, *parts: Any) -> dict[str, Any]:
    return item("message", role="user", content=[{"type": "input_text", "text": text}, *parts])


def says(text: str, second: int = 1, **more: Any) -> list[Any]:
    return [user(text), event("user_message", second, message=text, **more)]


def answers(text: str) -> list[Any]:
    content = [{"type": "output_text", "text": text}]
    return [event("agent_message", message=text), item("message", role="assistant", content=content)]


def thinks(text: str, **more: Any) -> list[Any]:
    summary = [{"type": "summary_text", "text": text}]
    return [event("agent_reasoning", text=text), item("reasoning", summary=summary, content=None, **more)]


def call(call_id: str, name: str = "shell", arguments: Any = '{"cmd":"ls"}', **more: Any) -> dict[str, Any]:
    return item("function_call", call_id=call_id, name=name, arguments=arguments, **more)


def output(call_id: str, given: Any = "done") -> dict[str, Any]:
    return item("function_call_output", call_id=call_id, output=given)


def tokens(total_in: int, total_out: int, last_in: int = 0, last_out: int = 0) -> dict[str, Any]:
    total = {"input_tokens": total_in, "output_tokens": total_out, "cached_input_tokens": total_in // 2}
    last = {"input_tokens": last_in, "output_tokens": last_out, "cached_input_tokens": last_in // 2}
    return event("token_count", info={"total_token_usage": total, "last_token_usage": last})


def context(model: str = "m1", **more: Any) -> dict[str, Any]:
    return line("turn_context", {"model": model, "cwd": "/w", **more}, 1)


def started(turn_id: str) -> dict[str, Any]:
    return event("task_started", turn_id=turn_id)


def complete(turn_id: str, second: int = 1, **more: Any) -> dict[str, Any]:
    return event("task_complete", second, turn_id=turn_id, **more)


def read(*lines: Any, name: str = "file.jsonl") -> Folded:
    return folded(list(lines), "codex", name)


WHOLE = [
    meta(),
    item("message", role="developer", content=[{"type": "input_text", "text": "rules"}]),
    user("<environment_context>\n  <cwd>/w</cwd>\n</environment_context>"),
    started("t1"),
    *says("run tests"),
    context(),
    event("token_count", info=None, rate_limits={}),
    *thinks("first look", encrypted_content="sealed"),
    *answers("I look."),
    call("c1"),
    call("c2", "read", "no json", namespace="files"),
    tokens(100, 10, 100, 10),
    output("c1"),
    output("c2", [{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": URL}]),
    context(),
    tokens(100, 10, 100, 10),
    *answers("Green."),
    tokens(250, 15, 150, 5),
    complete("t1", 9),
    started("t2"),
    *says("thanks"),
    *answers("Welcome."),
    complete("t2"),
]  # fmt: skip


def said(found: Folded) -> list[str]:
    return [block["text"] for data in found.main.of("user/message") for block in data["content"]]


def kinds(found: Folded, thread: str = "") -> list[list[str]]:
    return [[block["kind"] for block in data["content"]] for data in found.threads[thread].of("assistant/message")]


def usages(found: Folded) -> list[Any]:
    messages = [data for thread in found.threads.values() for data in thread.of("assistant/message")]
    counts = [data.get("usage") for data in messages]
    return [each and (each["input_tokens"], each["output_tokens"]) for each in counts]


# ---------------------------------------------------------------- what is there


def test_a_fact_that_is_told_twice_is_there_once() -> None:
    found = read(*WHOLE)
    assert said(found) == ["run tests", "thanks"]
    assert kinds(found) == [["thinking", "text", "tool_call", "tool_call"], ["text"], ["text"]]
    assert found.main.statuses() == ["completed", "completed"]
    assert found.main.results() == ["ok", "ok"]
    assert found.codes() == []
    header = found.main.header
    assert (header["cwd"], header["model"], header["imported_from"]["session_id"]) == ("/w", "m1", ID)


def test_every_line_that_is_no_part_of_it_is_kept() -> None:
    found = read(*WHOLE)
    lines = {data["line"] for data in found.main.of("x-foreign/line")}
    assert len(lines) == sum(found.report.kept.values())
    assert {1, 2, 3, 4} < lines
    assert found.report.kept["event_msg/agent_message"] == 3


def test_arguments_are_what_the_model_produced() -> None:
    found = read(
        meta(), *says("go"), call("c1", arguments="no json"), call("c2", arguments={"a": 1}), call("c3", arguments=None)
    )
    (message,) = found.main.of("assistant/message")
    assert [block["arguments"] for block in message["content"]] == ["no json", '{"a":1}', "{}"]


def test_each_kind_of_call_has_its_output() -> None:
    tools = [{"type": "function", "name": "x"}]
    found = read(
        meta(), *says("go"),
        item("custom_tool_call", call_id="c1", name="apply_patch", input="*** Begin Patch"),
        item("local_shell_call", call_id="c2", action={"type": "exec", "command": ["ls"]}),
        item("tool_search_call", call_id="c3", arguments={"query": "x"}),
        item("custom_tool_call_output", call_id="c1", output=[{"type": "input_text", "text": "patched"}]),
        output("c2", {"type": "input_text", "text": "a.txt"}),
        item("tool_search_output", call_id="c3", tools=tools),
    )  # fmt: skip
    (message,) = found.main.of("assistant/message")
    assert [(block["name"], block["arguments"]) for block in message["content"]] == [
        ("apply_patch", "*** Begin Patch"),
        ("local_shell", '{"type":"exec","command":["ls"]}'),
        ("tool_search", '{"query":"x"}'),
    ]
    results = [data["content"][0]["text"] for data in found.main.of("tool/result")]
    assert results == ["patched", "a.txt", json.dumps(tools, separators=(",", ":"))]


def test_an_image_in_an_output_is_one() -> None:
    _, second = read(*WHOLE).main.of("tool/result")
    assert [block["kind"] for block in second["content"]] == ["text", "image"]
    assert second["content"][1] == {"kind": "image", "media_type": "image/png", "data": PNG}


def test_reasoning_is_text_and_what_is_sealed_has_a_key_of_its_own() -> None:
    found = read(
        meta(), *says("go"), *thinks("short", encrypted_content="sealed"),
        item("reasoning", summary=[], content=[{"type": "reasoning_text", "text": "long"}], encrypted_content=None),
        item("reasoning", summary=[{"type": "summary_text", "text": "in short"}], content=[{"text": "at length"}]),
    )  # fmt: skip
    (message,) = found.main.of("assistant/message")
    assert message["content"] == [
        {"kind": "thinking", "text": "short", "encrypted_content": "sealed"},
        {"kind": "thinking", "text": "long"},
        {"kind": "thinking", "text": "in short\n\nat length"},
    ]
    history = found.main.history.messages()
    sent = [
        export.anthropic(history, keep_thinking=True),
        export.openai_chat(history),
        export.openai_responses(history),
    ]
    assert "sealed" not in json.dumps(sent)


def test_what_a_provider_runs_itself_is_told_and_no_call() -> None:
    found = read(meta(), *says("search"), item("web_search_call", action={"type": "other"}), *answers("found"))
    assert kinds(found) == [["text"]]
    assert found.found("hosted_tool") == [(4, None)]
    (note,) = found.main.of("session/note")
    assert (note["kind"], note["text"]) == ("hosted_tool", 'web_search_call: {"type":"other"}')


def test_unknown_lines_are_kept_and_counted() -> None:
    found = read(meta(), *says("go"), item("dream"), item("dream"), event("blink"), line("moon", {}, 1))
    told = [each.message for each in found.report.findings if each.code == "unknown_lines"]
    assert [each.split(":")[0] for each in told] == [
        "2 lines of type response_item/dream",
        "1 line of type event_msg/blink",
        "1 line of type moon",
    ]


def test_names_models_and_folders_change() -> None:
    found = read(
        meta(), *says("go"), context("m1"), *answers("a"), event("thread_name_updated", thread_name="A name"),
        context("m2", cwd="/v"), *answers("b"),
    )  # fmt: skip
    assert [data["patch"] for data in found.main.of("session/updated")] == [{"name": "A name"}, {"cwd": "/v"}]
    assert [data["header"]["model"] for data in found.main.of("request/header")] == ["m1", "m2"]


# ---------------------------------------------------------------- generations


def test_lines_without_an_envelope() -> None:
    header: dict[str, Any] = {"id": ID, "timestamp": "2025-06-01T10:00:00.000Z", "instructions": None, "git": {}}
    bare = [
        each["payload"]
        for each in (user("<user_instructions>\nx\n</user_instructions>"), user("go"), *answers("a")[1:], call("c1"))
    ]
    found = read(header, {"record_type": "state"}, *bare, {"record_type": "state"}, output("c1")["payload"])
    assert said(found) == ["go"]
    assert kinds(found) == [["text", "tool_call"]]
    assert (found.main.results(), found.main.header["imported_from"]["session_id"]) == (["ok"], ID)
    assert found.main.times[-1] == 1748772000000
    assert found.codes() == ["open_turn"]


def test_without_events_items_tell_what_was_said() -> None:
    found = read(
        meta(), user("# AGENTS.md instructions for /w\n\n<INSTRUCTIONS>\nx\n</INSTRUCTIONS>"),
        user("<environment_context></environment_context>"), user("go"), item("message", role="assistant", content="a"),
        user("<b>bold</b>"), item("message", role="assistant", content="b"),
    )  # fmt: skip
    assert said(found) == ["go", "<b>bold</b>"]
    assert found.main.statuses() == ["completed", "completed"]


def test_an_event_makes_items_what_they_are() -> None:
    """What was taken for a prompt before the first event was none."""
    found = read(meta(), user("something of an editor"), *says("go"), *answers("a"))
    assert said(found) == ["go"]


def test_without_items_events_tell_what_was_answered() -> None:
    found = read(
        meta(), event("user_message", message="go"), event("agent_reasoning", text="hm"),
        event("agent_message", message="done"),
    )  # fmt: skip
    assert kinds(found) == [["thinking", "text"]]
    assert found.main.statuses() == ["completed"]


def test_an_event_without_its_item_tells_what_was_said() -> None:
    alone, thought = event("agent_message", message="only shown"), event("agent_reasoning", text="seen")
    found = read(
        meta(), *says("one"), *answers("a"), *says("two"), thought, alone, context(), *answers("b"),
        *says("three"), *reversed(answers("c")), *thinks("hm"),
    )  # fmt: skip
    assert found.main.texts() == ["one", "a", "two", "only shown", "b", "three", "c"]
    assert kinds(found) == [["text"], ["thinking", "text"], ["text"], ["text", "thinking"]]


def test_an_event_and_its_item_may_differ() -> None:
    shown, held = answers("blanked in the item")
    held["payload"]["content"][0]["text"] = "blanked"
    found = read(meta(), *says("one"), shown, held)
    assert found.main.texts() == ["one", "blanked"]


def test_a_turn_of_which_no_event_tells_what_was_said() -> None:
    found = read(
        meta(), started("t1"), *says("one"), *answers("a"), complete("t1"),
        started("t2"), user("<environment_context>x</environment_context>"), user("two"), *answers("b"), complete("t2"),
    )  # fmt: skip
    assert found.main.texts() == ["one", "a", "two", "b"]
    assert found.main.statuses() == ["completed", "completed"]


def test_a_message_that_two_events_tell_of_is_one() -> None:
    def whole(text: str) -> dict[str, Any]:
        return event("item_completed", item={"type": "UserMessage", "content": [{"type": "text", "text": text}]})

    found = read(
        meta(), started("t1"), whole("one"), *says("one"), *answers("a"), complete("t1"),
        started("t2"), *says("two"), whole("two"), *answers("b"), complete("t2"),
        started("t3"), user("three"), whole("three"), *answers("c"), complete("t3"),
    )  # fmt: skip
    assert said(found) == ["one", "two", "three"]
    assert found.main.statuses() == ["completed"] * 3


# ---------------------------------------------------------------- turns


def test_what_comes_behind_an_abort_belongs_to_the_aborted_turn() -> None:
    found = read(
        meta(), started("t1"), *says("run tests"), call("c1"), event("turn_aborted", reason="interrupted"),
        *thinks("late"), output("c1", "aborted by user after 1.0s"), user("<turn_aborted>\nx\n</turn_aborted>"),
    )  # fmt: skip
    assert found.main.statuses() == ["aborted"]
    assert found.main.results() == ["ok"]
    assert found.codes() == []
    (end,) = found.main.of("turn/end")
    assert end["reason"] == {"kind": "aborted", "source": "user", "message": "interrupted"}


@pytest.mark.parametrize("start", [[], [started("t2")]], ids=["old", "new"])
def test_an_abort_holds_up_to_the_next_turn(start: list[Any]) -> None:
    found = read(
        meta(), *start, *says("one"), *answers("a"), event("turn_aborted", reason="interrupted"), call("c1"),
        output("c1"), *start, *says("two"), *answers("b"),
    )  # fmt: skip
    assert found.main.statuses()[0] == "aborted"
    assert len(found.main.of("turn/start")) == 2
    assert found.main.results() == ["ok"]


def test_a_dangling_call_of_a_session_that_was_resumed() -> None:
    found = read(
        meta(), started("t1"), *says("one"), *answers("a"), call("c1"), tokens(5, 5),
        item("message", role="developer", content=[{"type": "input_text", "text": "rules"}]),
        user("something of an editor"), started("t2"), *says("two"), *answers("b"), complete("t2"),
    )  # fmt: skip
    assert said(found) == ["one", "two"]
    assert found.main.statuses() == ["interrupted", "completed"]
    assert found.found("unknown_outcome") == [(7, None)]


def test_a_turn_without_an_end_stays_open_where_others_have_one() -> None:
    assert read(*WHOLE[:-1]).found("open_turn") == [(26, None)]
    assert read(meta(), *says("go"), *answers("a")).codes() == []
    assert read(meta(), *says("go"), *answers("a"), call("c1"), output("c1")).codes() == ["open_turn"]


def test_a_message_amid_a_turn_steers_it() -> None:
    found = read(
        meta(), started("t1"), *says("go"), call("c1"), output("c1"), *says("faster"), *answers("a"), complete("t1")
    )
    assert len(found.main.of("turn/start")) == 1
    assert [data["source"]["kind"] for data in found.main.of("user/message")] == ["user", "steering"]


def test_a_message_may_stand_before_its_turn_is_said_to_have_begun() -> None:
    found = read(
        meta(), *says("one"), started("t1"), *answers("a"), complete("t1"), *says("two"), started("t2"), *answers("b")
    )
    assert found.main.statuses()[0] == "completed"
    assert len(found.main.of("turn/start")) == 2


def test_a_turn_fails_of_an_error_that_nothing_follows() -> None:
    error = event("error", message="limit", codex_error_info="usage_limit_exceeded")
    found = read(
        meta(),
        started("t1"),
        *says("one"),
        error,
        complete("t1"),
        started("t2"),
        *says("two"),
        error,
        *answers("b"),
        complete("t2"),
    )
    assert found.main.statuses() == ["failed", "completed"]
    assert found.main.of("turn/end")[0]["reason"]["message"] == "limit"
    aside = event("error", message="no", codex_error_info="thread_rollback_failed")
    assert read(meta(), started("t1"), *says("one"), *answers("a"), aside, complete("t1")).main.statuses() == [
        "completed"
    ]


def test_calls_of_two_kinds_may_have_the_same_id() -> None:
    patch = item("custom_tool_call", call_id="c1", name="apply_patch", input="p")
    patched = item("custom_tool_call_output", call_id="c1", output="patched")
    for outputs in ([output("c1"), patched], [patched, output("c1")]):
        found = read(meta(), *says("go"), call("c1"), patch, *outputs, *answers("a"))
        asked = {
            block["call_id"]: block["name"]
            for block in found.main.of("assistant/message")[0]["content"]
            if block["kind"] == "tool_call"
        }
        told = {asked[data["call_id"]]: data["content"][0]["text"] for data in found.main.of("tool/result")}
        assert told == {"shell": "done", "apply_patch": "patched"}
        assert found.codes() == []
    # Programs that stand between change the kind of one of the two.
    assert read(meta(), *says("go"), patch, output("c1"), *answers("a")).codes() == []


def test_results_behind_the_next_response_are_given_before_it() -> None:
    found = read(
        meta(), *says("go"), call("c1"), call("c2"), output("c1"), *answers("b"), output("c2", "late"), *answers("c")
    )
    types = [type_ for type_ in found.main.types() if type_ in ("assistant/message", "tool/result")]
    assert types == ["assistant/message", "tool/result", "tool/result", "assistant/message", "assistant/message"]
    assert found.main.results() == ["ok", "ok"]
    assert found.codes() == []


def test_results_behind_the_next_prompt_stay_there() -> None:
    found = read(meta(), *says("go"), call("c1"), *says("next"), output("c1"), *answers("b"))
    assert found.found("late_result") == [(7, 4)]


# ---------------------------------------------------------------- usage


def test_usage_is_counted_once() -> None:
    found = read(*WHOLE)
    assert usages(found) == [(100, 10), (150, 5), None]
    assert found.main.state.usage_row()["cache_read_tokens"] == 125


def test_a_total_that_starts_above_zero() -> None:
    found = read(
        meta(forked_from_id="x"),
        *says("go"),
        *answers("a"),
        tokens(1000, 100, 30, 3),
        context(),
        *answers("b"),
        tokens(1040, 104, 40, 4),
    )
    assert usages(found) == [(30, 3), (40, 4)]


def test_a_total_that_starts_again() -> None:
    found = read(
        meta(), *says("go"), *answers("a"), tokens(50, 5, 50, 5), context(), *answers("b"), tokens(20, 2, 20, 2)
    )
    assert usages(found) == [(50, 5), (20, 2)]


def test_counts_stand_before_a_response_or_behind_its_results() -> None:
    before = [tokens(10, 1, 10, 1), call("c1"), output("c1"), context(), tokens(30, 3, 20, 2), *answers("b")]
    behind = [call("c1"), output("c1"), tokens(10, 1, 10, 1), *answers("b"), tokens(30, 3, 20, 2)]
    for lines in (before, behind):
        assert usages(read(meta(), *says("go"), *lines)) == [(10, 1), (20, 2)]


def test_what_is_counted_behind_the_last_response_is_told() -> None:
    found = read(meta(), *says("go"), *answers("a"), context(), tokens(10, 1, 10, 1))
    assert [data["kind"] for data in found.main.of("session/note")] == ["usage"]


# ---------------------------------------------------------------- other sessions' lines


SPAWNED = {"subagent": {"thread_spawn": {"parent_thread_id": "p", "spawn_call_id": "c0", "agent_nickname": "Ada"}}}


def at(second: int, *lines: Any) -> list[Any]:
    """All of them written in the same moment."""
    return [{**each, "timestamp": f"2026-02-01T10:00:{second:02}.000Z"} for each in lines]


def test_what_was_copied_from_a_parent_is_a_thread_of_its_own() -> None:
    other = line("session_meta", {"id": "p", "cwd": "/p"}, 1)
    copied = [other, *says("parent's"), *answers("hm"), call("c0", "spawn_agent"), tokens(100, 10, 100, 10)]
    own = at(21, event("user_message", message="child's"), event("agent_message", message="a"), tokens(130, 12, 30, 2))
    found = read(meta(10, source=SPAWNED), *copied, *own)
    assert found.main.header["imported_from"]["session_id"] == ID
    assert found.main.header["cwd"] == "/w"
    assert said(found) == ["child's"]
    assert found.main.texts() == ["child's", "a"]
    assert found.main.statuses() == ["completed"]
    assert found.main.state.usage_row()["input_tokens"] == 30
    assert found.found("copied_lines") == [(2, None)]
    assert found.codes() == ["copied_lines"]
    assert found.main.header["child_of"] == {"session_id": "p", "run_id": "", "turn_id": "", "call_id": "c0"}
    assert found.main.header["imported_from"]["begun_by"] == "p"
    assert found.main.of("turn/start")[0]["run"]["agent_name"] == "Ada"
    thread = found.threads["copied"]
    assert thread.header["name"] == "what p had said before"
    assert thread.header["imported_from"] == {"format": "codex", "session_id": "p", "sha256": "", "begun_by": "p"}
    assert thread.texts() == ["parent's", "hm"]
    assert thread.state.usage_row()["input_tokens"] == 0
    assert thread.statuses() == ["interrupted"]


def test_a_copy_that_was_written_anew() -> None:
    other = line("session_meta", {"id": "p"})
    talk = [started("t0"), *says("parent's"), *answers("hm"), tokens(100, 10, 100, 10)]
    mine = [started("t1"), *says("mine"), *answers("a"), tokens(130, 12, 30, 2), complete("t1")]
    forked = read(meta(10, forked_from_id="p"), *at(10, other, *talk, complete("t0")), *at(40, *mine))
    assert (said(forked), forked.main.statuses()) == (["mine"], ["completed"])
    assert "child_of" not in forked.main.header
    assert forked.main.header["imported_from"]["begun_by"] == "p"
    assert forked.threads["copied"].texts() == ["parent's", "hm"]
    # A subagent's own prompt is written in the same moment as the copy.
    spawned = read(
        meta(10, source=SPAWNED), *at(10, other, *talk, call("c0", "spawn_agent"), *mine[:3]), *at(20, *mine[3:])
    )
    assert (said(spawned), spawned.main.statuses()) == (["mine"], ["completed"])
    assert spawned.threads["copied"].texts() == ["parent's", "hm"]
    assert [each.state.usage_row()["input_tokens"] for each in (forked.main, spawned.main)] == [30, 30]


def test_old_times_alone_are_no_copy() -> None:
    found = read(meta(10), *says("one"), *answers("a"), meta(12), *says("two", 13), *answers("b"))
    assert (list(found.threads), said(found)) == ([""], ["one", "two"])


def test_a_subagent_of_which_nothing_was_copied_names_who_started_it() -> None:
    found = read(meta(parent_thread_id="p"), *says("mine"), *answers("a"))
    assert list(found.threads) == [""]
    assert found.main.header["child_of"] == {"session_id": "p", "run_id": "", "turn_id": ""}
    odd = read(meta(parent_thread_id="../p"), *says("mine"), *answers("a"))
    assert "child_of" not in odd.main.header
    assert odd.main.header["imported_from"]["begun_by"] == "../p"
    alone = read(meta(), *says("mine"), *answers("a")).main.header
    assert {"child_of", "begun_by"} & {*alone, *alone["imported_from"]} == set()


def test_lines_of_another_session_are_told_of() -> None:
    other = line("session_meta", {"id": "q", "cwd": "/q"}, 12)
    found = read(meta(10), *says("one", 11), *answers("a"), meta(11), other, other, *says("two", 13), *answers("b"))
    assert said(found) == ["one", "two"]
    assert found.found("other_session") == [(7, None)]


def test_a_rollback_takes_nothing_from_what_was_copied() -> None:
    back = event("thread_rolled_back", 24, num_turns=5)
    own = at(21, *says("mine"), *answers("a"))
    found = read(meta(10, source=SPAWNED), *says("parent's"), *answers("hm"), *own, back, *at(25, *says("again")))
    assert said(found) == ["again"]
    assert found.threads["copied"].texts() == ["parent's", "hm"]
    assert found.threads[f"rolled-back:{2 + 4 + 4}"].texts() == ["mine", "a"]


def test_a_compaction_is_what_the_model_is_given_in_place_of_what_was() -> None:
    history = [user("<environment_context>x</environment_context>"), user("old words"), *answers("old answer")[1:]]
    history.append(item("message", role="developer", content=[{"type": "input_text", "text": "rules"}]))
    given = [each["payload"] for each in history]
    packed = line("compacted", {"message": "We did much.", "replacement_history": given}, 1)
    found = read(meta(), *says("one"), *answers("a"), packed, event("context_compacted"), *says("two"), *answers("b"))
    assert found.main.texts() == ["user: old words\n\nassistant: old answer\n\nWe did much.", "two", "b"]
    assert [data["value"] for data in found.main.of("x-foreign/line") if data["type"] == "compacted"] == [packed]
    assert said(found) == ["one", "two"]
    told = [*given, user("Go on from this: We did much.")["payload"]]
    packed = line("compacted", {"message": "We did much.", "replacement_history": told}, 1)
    found = read(meta(), *says("one"), *answers("a"), packed)
    assert found.main.texts() == ["user: old words\n\nassistant: old answer\n\nuser: Go on from this: We did much."]


def test_a_compaction_without_a_list_keeps_what_a_person_said() -> None:
    packed = line("compacted", {"message": "We did much."}, 1)
    found = read(
        meta(), *says("gone"), *answers("x"), event("thread_rolled_back", num_turns=1),
        started("t1"), *says("one"), call("c1"), output("c1"), *says("faster"), *answers("a"), complete("t1"), packed,
        *says("two"), *answers("b"),
    )  # fmt: skip
    assert found.main.texts() == ["user: one\n\nuser: faster\n\nWe did much.", "two", "b"]
    many = [each for number in range(40) for each in says(f"{number} " + "x" * 4_000)]
    (text, *_) = read(meta(), *many, packed).main.texts()
    assert "user: 39 " in text
    assert "user: 1 " not in text


def test_a_compaction_that_cannot_be_read_takes_nothing_away() -> None:
    sealed = line("compacted", {"message": "", "replacement_history": [{"type": "compaction"}]}, 1)
    found = read(meta(), *says("one"), *answers("a"), sealed, *says("two"), *answers("b"))
    assert found.main.texts() == ["one", "a", "two", "b"]
    assert found.found("sealed_summary") == [(6, None)]
    found = read(meta(), *says("one"), *answers("a"), line("compacted", {"message": ""}, 1))
    assert (found.main.of("context/compacted"), found.report.kept["compacted"]) == ([], 1)


def test_turns_that_were_rolled_back_are_a_branch() -> None:
    rolled = event("thread_rolled_back", num_turns=1)
    found = read(
        meta(), *says("one"), *answers("a"), *says("two"), *answers("b"), rolled, *says("three"), *answers("c")
    )
    assert said(found) == ["one", "three"]
    assert found.found("rewound") == [(10, None)]
    (name,) = set(found.threads) - {""}
    branch = found.threads[name]
    assert [data["content"][0]["text"] for data in branch.of("user/message")] == ["two"]
    assert branch.fork is not None
    assert branch.fork.thread == ""
    assert found.main.drafts[branch.fork.seq].type == "run/settled"
    assert found.main.statuses() == ["completed", "completed"]


def test_rollbacks_of_rollbacks() -> None:
    def rolled(turns: int) -> dict[str, Any]:
        return event("thread_rolled_back", num_turns=turns)

    turns = {name: [*says(name), *answers(name)] for name in "abcdef"}
    found = read(
        meta(),
        *turns["a"],
        *turns["b"],
        *turns["c"],
        rolled(1),
        *turns["d"],
        rolled(2),
        *turns["e"],
        rolled(9),
        *turns["f"],
    )
    words = {
        name: [data["content"][0]["text"] for data in thread.of("user/message")]
        for name, thread in found.threads.items()
    }
    assert sorted(words.values()) == [["a", "e"], ["b", "d"], ["c"], ["f"]]
    of = {words[name][0]: name for name in words}
    assert found.threads[of["c"]].fork.thread == of["b"]
    assert found.threads[of["b"]].fork.thread == of["a"]
    assert found.threads[of["a"]].fork is None
    assert words[""] == ["f"]


# ---------------------------------------------------------------- images, headers


def test_images_of_a_prompt() -> None:
    found = read(meta(), *says("here", images=[URL]), *answers("a"))
    assert [block["kind"] for block in found.main.of("user/message")[0]["content"]] == ["text", "image"]
    found = read(meta(), *says("here", images=["data:image/png;base64,PHN2Zz4="]), *answers("a"))
    assert found.found("image_unusable") == [(3, None)]
    local = event("user_message", message="here", local_images=["/tmp/a.png"])
    found = read(meta(), local, *answers("a"))
    assert said(found) == ["here", "[image: /tmp/a.png]"]
    assert found.found("image_elsewhere") == [(2, None)]
    shown = user("here", {"type": "input_image", "image_url": URL})
    for lines in ((shown, local), (local, shown)):
        found = read(meta(), *lines, *answers("a"))
        assert [block["kind"] for block in found.main.of("user/message")[0]["content"]] == ["text", "image"]


def test_a_file_that_does_not_say_what_it_is() -> None:
    found = folded(
        b'{"torn\n' + b"".join(json.dumps(each).encode() + b"\n" for each in WHOLE[3:]),
        "codex",
        f"rollout-2026-02-01T10-00-00-{ID}.jsonl",
    )
    assert {"bad_line", "bad_header"} <= set(found.codes())
    assert found.main.header["imported_from"]["session_id"] == ID
    assert said(found) == ["run tests", "thanks"]


def test_a_file_of_nothing() -> None:
    assert folded(b"", "codex").threads == {}


@pytest.mark.parametrize(
    ("given", "lost"),
    [
        (item("function_call", call_id="c1", name="shell", args="{}"), "args"),
        (item("function_call", call_id="c1", arguments="{}", title="shell"), "title"),
        (item("function_call", call_id="c1", name={"is": "shell"}, arguments="{}"), "is"),
        (item("custom_tool_call", call_id="c1", name="apply_patch", given="p"), "given"),
        (item("local_shell_call", call_id="c1", act={"command": ["ls"]}), "command"),
        (item("message", role="assistant", text="said"), "said"),
        (item("reasoning", summary=[], encrypted_content=["sealed"]), "sealed"),
        (item("function_call_output", call_id="c0", result="done"), "result"),
        (event("user_message", text="words"), "words"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_kept_and_told(given: Any, lost: str) -> None:
    found = read(meta(), *says("go"), call("c0"), given, *answers("a"))
    assert found.found("misfit") == [(5, None)]
    (kept,) = [data for data in found.main.of("x-foreign/line") if data["line"] == 5]
    assert lost in json.dumps(kept["value"])


def test_what_the_tool_says_in_a_persons_place_begins_no_turn() -> None:
    put = line("event_msg", {"type": "user_message", "message": "<x>rules</x>", "kind": "user_instructions"}, 1)
    plain = line("event_msg", {"type": "user_message", "message": "go", "kind": "plain"}, 1)
    found = read(meta(), put, user("go"), plain, *answers("a"))
    assert said(found) == ["go"]
    assert found.report.kept["event_msg/user_message"] == 1


# ---------------------------------------------------------------- anything

ALL = [
    *WHOLE,
    event("turn_aborted", turn_id="t1", reason="interrupted"),
    event("thread_rolled_back", num_turns=1),
    event("error", message="limit"),
    event("item_completed", item={"type": "UserMessage", "content": [{"type": "text", "text": "x"}]}),
    line("compacted", {"message": "sum", "replacement_history": [user("x")["payload"]]}, 1),
    item("web_search_call", action={"type": "other"}),
    item("custom_tool_call", call_id="c3", name="apply_patch", input="x"),
    item("custom_tool_call_output", call_id="c3", output="x"),
    item("tool_search_call", call_id="c4", arguments={}),
    item("tool_search_output", call_id="c4", tools=[]),
    item("agent_message", author="a", content=[{"type": "input_text", "text": "x"}]),
    {"id": ID, "timestamp": "2025-06-01T10:00:00.000Z", "instructions": None},
    {"record_type": "state"},
    call("c5")["payload"],
    output("c5")["payload"],
    meta(30),
]  # fmt: skip
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.just([]), st.just({}),
    st.just([None, 5, {"type": "input_image"}, {"image_url": {}}, {"text": 1}]), st.just("x" * 5000),
)  # fmt: skip


@st.composite
def spoiled(draw: st.DrawFn) -> bytes:
    lines = [copy.deepcopy(draw(st.sampled_from(ALL))) for _ in range(draw(st.integers(0, 16)))]
    if draw(st.booleans()):
        lines = [copy.deepcopy(WHOLE[0]), *lines]
    for each in lines:
        places = [each, *(value for value in each.values() if isinstance(value, dict) and value)]
        if draw(st.integers(0, 3)) == 0:
            place = draw(st.sampled_from(places))
            place[draw(st.sampled_from(sorted(place)))] = draw(VALUES)
    data = b"".join(json.dumps(each).encode() + draw(st.sampled_from([b"\n", b"\r\n", b"\n\n"])) for each in lines)
    cut = draw(st.integers(0, len(data)))
    junk: bytes = draw(st.sampled_from([b"", b"\xff\n", b"{\n", b"[" * 300 + b"\n"]))
    return data[:cut] + junk + data[cut:]


@settings(max_examples=200, deadline=None)
@given(spoiled())
def test_nothing_in_a_file_is_an_error(data: bytes) -> None:
    folded(data, "codex")


if REAL is not None:

    @pytest.mark.parametrize("path", real("codex"), ids=lambda path: path.name)
    def test_counts_of_real_files(path: Path) -> None:
        """Counted again in another way: line by line, knowing nothing of turns."""
        payloads = [(each["type"], each["payload"]) for each in map(json.loads, path.read_bytes().splitlines())]
        prompts = sum(
            kind == "event_msg"
            and (given["type"] == "user_message" or given.get("item", {}).get("type") == "UserMessage")
            for kind, given in payloads
        )
        items = [given for kind, given in payloads if kind == "response_item"]
        tools = ("function_call", "custom_tool_call", "local_shell_call", "tool_search_call")
        calls = [given["call_id"] for given in items if given["type"] in tools]
        outputs = [given["call_id"] for given in items if given["type"].endswith("_output")]
        texts = sum(given.get("role") == "assistant" for given in items)
        totals = [
            given["info"]["total_token_usage"]["input_tokens"]
            for _, given in payloads
            if given.get("type") == "token_count" and given["info"]
        ]
        found = folded(path.read_bytes(), "codex", path.name)
        main = found.main

        def of(type_: str) -> list[dict[str, Any]]:
            return [data for thread in found.threads.values() for data in thread.of(type_)]

        blocks = [block for data in of("assistant/message") for block in data["content"]]
        asked = [block["call_id"] for block in blocks if block["kind"] == "tool_call"]
        told = [data["call_id"] for data in of("tool/result") if not data.get("synthesized")]
        spoken = [data for data in of("user/message") if "origin" not in data["source"]]
        assert sorted(asked) == sorted(calls)
        assert len(told) + len(found.found("orphan_result")) == len(outputs)
        assert len(spoken) == prompts
        if texts:
            assert len(of("assistant/message")) >= texts
        used = main.state.usage_row()["input_tokens"]
        assert used <= max(totals, default=0)
        if totals and path.name.startswith(("v0.40", "v0.89", "v0.104-mcp", "v0.104-pending")):
            assert used == max(totals)
