"""Provider history: what a model is shown of a journal, and that it is legal whatever the journal holds."""

from typing import Any

import pytest

from maka.journal.history import History
from support.builder import Builder
from support.folds import events, history, text
from support.legal import assert_legal


def messages(*builders: Builder) -> list[dict[str, Any]]:
    out = history(*builders).messages()
    assert_legal(out)
    return out


def roles(*builders: Builder) -> str:
    return " ".join(message["role"][0] for message in messages(*builders))


def results(*builders: Builder) -> list[tuple[str, str, str]]:
    return [
        (block["call_id"], block["state"], block["content"][0]["text"] if block["content"] else "")
        for message in messages(*builders)
        if message["role"] == "tool"
        for block in message["content"]
    ]


def test_a_turn_with_a_tool() -> None:
    assert messages(Builder().tool_turn()) == [
        {"role": "user", "content": [{"kind": "text", "text": "hi"}]},
        {
            "role": "assistant",
            "content": [{"kind": "tool_call", "call_id": "c1", "name": "tool", "arguments": "{}"}],
        },
        {
            "role": "tool",
            "content": [
                {
                    "kind": "tool_result",
                    "call_id": "c1",
                    "content": [{"kind": "text", "text": "done"}],
                    "is_error": False,
                    "state": "ok",
                }
            ],
        },
        {"role": "assistant", "content": [{"kind": "text", "text": "ok"}]},
    ]


def test_results_stand_in_the_order_of_the_calls() -> None:
    builder = Builder().start().step().says("", list("abc"))
    for call in "cab":
        builder.call(call)
    for call in "bca":
        builder.result(call, f"of {call}")
    assert results(builder) == [("a", "ok", "of a"), ("b", "ok", "of b"), ("c", "ok", "of c")]


def test_unanswered_calls_are_answered_by_what_is_known() -> None:
    builder = Builder().start().step().says("", ["a", "b"])
    builder.call("a", recovery="idempotent")
    (_, unknown, told), (_, not_started, never) = results(builder)
    assert (unknown, not_started) == ("unknown", "not_started")
    assert "Do not retry blindly." in told
    assert "idempotent" in told
    assert "never ran" in never


def test_without_a_tool_boundary_every_unanswered_call_is_unknown() -> None:
    assert results(Builder(tool_boundary=None).start().step().says("", ["a"]))[0][1] == "unknown"


def test_an_older_turn_is_answered_where_it_stands() -> None:
    builder = Builder().start("one").step().says("", ["c"])
    builder.call("c")
    builder.plain_turn("two")
    assert roles(builder) == "u a t u a"
    builder.turn, builder.step_number = 1, 1
    builder.result("c", "came late", "unknown").end_step().end("interrupted")
    assert roles(builder) == "u a t u a"
    assert results(builder) == [("c", "unknown", "came late")]


def test_assistant_messages_in_a_row_are_joined() -> None:
    builder = Builder().start().step().says("one").end_step().step(2).says("two", ["c"])
    builder.call("c")
    builder.result("c").end_step().end()
    assert roles(builder) == "u a t"
    assert text(messages(builder)[1]).strip() == "one two"


def test_empty_messages_and_empty_texts_are_left_out() -> None:
    builder = Builder().start("").step().says("").end_step().end()
    assert messages(builder.plain_turn("next"))[0] == {"role": "user", "content": [{"kind": "text", "text": "next"}]}


def test_where_the_beginning_is_lost_the_user_says_so() -> None:
    builder = Builder().plain_turn()
    folded = History()
    for event in events(builder, [1, 2]):
        folded.apply(event)
    assert_legal(folded.messages())
    assert "lost" in text(folded.messages()[0])


def test_a_result_without_a_request_is_told_as_text() -> None:
    builder = Builder().start().step().says("hm").result("zzz", "from nowhere").end_step().end()
    assert roles(builder) == "u a u"
    assert "zzz" in text(messages(builder)[2])
    assert "from nowhere" in text(messages(builder)[2])


def test_a_dispatch_without_a_request_is_told_as_text() -> None:
    builder = Builder().start().step().says("hm")
    builder.call("c")
    assert "Do not retry blindly." in text(messages(builder)[2])
    builder.result("c", "it worked")
    assert "it worked" in text(messages(builder)[2])
    assert roles(builder) == "u a u"


def test_a_second_result_reaches_no_model() -> None:
    builder = Builder().start().step().says("", ["a"])
    builder.call("a")
    builder.result("a", "first").result("a", "second").end_step().end()
    assert results(builder) == [("a", "ok", "first")]
    assert "second" not in str(messages(builder))
    assert "duplicate result" in [entry.get("mark") for entry in history(builder).annotated()]


def test_calls_and_results_in_other_places_are_only_text() -> None:
    builder = Builder().start()
    block = {"kind": "tool_result", "call_id": "x", "content": [], "is_error": False, "state": "ok"}
    call = {"kind": "tool_call", "call_id": "x", "name": "n", "arguments": "{}"}
    content = [block, call, "loose", 5, None, {"no": "kind"}]
    builder.add(
        "user/message",
        {"message_id": "mm", **builder.ids, "content": content, "source": {"kind": "user"}},
    )
    builder.step()
    data = {**builder.ids, "step": 1, "message_id": "aa", "stop_reason": "end_turn"}
    builder.add("assistant/message", {**data, "content": [block, {**call, "call_id": 5}, {**call, "call_id": "y"}]})
    assert roles(builder) == "u u a t"
    assert results(builder)[0][0] == "y"


def test_quotes_and_attachments_are_shown_with_their_message() -> None:
    builder = Builder().start()
    data = {"message_id": "mm", **builder.ids, "content": [{"kind": "text", "text": "see"}], "source": {"kind": "user"}}
    data["quotes"] = [{"text": "first\nsecond"}]
    data["attachments"] = [{"name": "a.png", "media_type": "image/png", "ref": "sha256:" + "0" * 64, "bytes": 5}]
    builder.add("user/message", data)
    quote, said, image = messages(builder)[1]["content"]
    assert (quote["text"], said["text"]) == ("> first\n> second", "see")
    assert image == {"kind": "image", **data["attachments"][0]}


def test_live_text_without_its_message_stands_once_the_step_is_over() -> None:
    builder = Builder().start().step().delta("Hel").delta("lo")
    assert roles(builder) == "u"
    builder.end_step()
    assert text(messages(builder)[1]) == "Hello"


def test_thinking_is_passed_on_as_it_is() -> None:
    builder = Builder().start().step()
    thinking = {"kind": "thinking", "text": "hm", "signature": "s"}
    data = {**builder.ids, "step": 1, "message_id": "a", "content": [thinking], "stop_reason": "end_turn"}
    builder.add("assistant/message", data)
    assert messages(builder)[1]["content"] == [thinking]


def test_notes_reach_no_model() -> None:
    builder = Builder().plain_turn()
    builder.add("session/note", {"kind": "abort", "source": "stop_button", "text": "secret"})
    assert "secret" not in str(messages(builder))
    note = history(builder).annotated()[-1]
    assert (note["role"], note["content"][0]["text"]) == ("note", "abort: stop_button: secret")


# ---------------------------------------------------------------- outcomes


def unknown(builder: Builder) -> int:
    builder.start().step().says("", ["a"])
    seq = builder.call("a")
    builder.result("a", "nobody knows", "unknown").end_step()
    return seq


def outcome(builder: Builder, seq: int, said: str = "it worked", turn: int = 1) -> Builder:
    data = {"turn_id": f"t{turn}", "run_id": f"r{turn}", "call_id": "a", "call_seq": seq, "operation_id": "op-1-a"}
    told = {"state": "ok", "content": [{"kind": "text", "text": said}], "is_error": False, "source": "reconciled"}
    builder.add("tool/outcome", {**data, **told})
    return builder


def test_an_outcome_takes_the_place_of_the_unknown_result() -> None:
    builder = Builder()
    seq = unknown(builder)
    outcome(outcome(builder.end("interrupted"), seq), seq, "a second one")
    assert results(builder.plain_turn("next")) == [("a", "ok", "it worked")]


def test_an_outcome_after_a_later_request_is_told_before_the_next_user_message() -> None:
    builder = Builder()
    seq = unknown(builder)
    builder.step(2).says("I do not know").end_step().end()
    outcome(builder, seq)
    assert results(builder) == [("a", "unknown", "nobody knows")]
    assert roles(builder) == "u a t a"
    builder.plain_turn("next")
    assert roles(builder) == "u a t a u u a"
    told, said = messages(builder)[4:6]
    assert "it worked" in text(told)
    assert text(said) == "next"


# ---------------------------------------------------------------- continuations, admissions, forks


def continued(through: int | None = None) -> tuple[Builder, int]:
    """A turn with a tool and a last word, cut short; claimed up to the result, started, and going on."""
    builder = Builder().start("go").step().says("", ["c"])
    builder.call("c")
    anchor = builder.seq
    builder.result("c").end_step().step(2).says("half a thought").end_step().end("interrupted")
    terminal, total = builder.seq - 1, builder.prev
    ids = {"run_id": "r1", "invocation_id": "i-r1", "turn_id": "t1"}
    source = {**ids, "high_water": terminal}
    segment = {"session_id": "s1", **ids, "first_seq": 1, "last_seq": terminal, "sum": total}
    run = builder.run("rT", "tT")
    claim = {"claim_id": "cl", "purpose": "resume", "turn": 2, "boundary": {"segments": [segment]}}
    claim |= {"boundary_digest": total, "replay_digest": "0" * 64, "source": source, "target_run": run}
    replay = anchor if through is None else through
    builder.add("continuation/claim", {**claim, "replay_through_seq": replay, "claimed_at": builder.ts})
    builder.add("run/created", {"run": run})
    start = {"protocol": "continuation_start_v2", "start_kind": "runtime_admission", "purpose": "resume"}
    start |= {"claim_id": "cl", "run_id": "rT", "turn_id": "tT", "boundary_digest": total, "replay_digest": "0" * 64}
    builder.add("continuation/start", {**start, "source": source})
    return builder, anchor


def going_on(builder: Builder) -> Builder:
    ids = {"turn_id": "tT", "run_id": "rT", "step": 1}
    builder.add("step/start", ids)
    said = {"message_id": "aT", "content": [{"kind": "text", "text": "whole"}], "stop_reason": "end_turn"}
    builder.add("assistant/message", {**ids, **said})
    builder.add("step/end", ids)
    return builder


def test_a_claim_hides_what_its_source_holds_behind_the_replay() -> None:
    builder, _ = continued()
    assert roles(builder) == "u a t"
    assert roles(going_on(builder)) == "u a t a"
    assert "half a thought" not in str(messages(builder))
    hidden = [entry for entry in history(builder).annotated() if entry.get("mark") == "hidden"]
    assert [text(entry) for entry in hidden] == ["half a thought"]


def test_a_segment_without_anchor_adds_nothing() -> None:
    builder, _ = continued(through=0)
    assert messages(builder) == []
    assert roles(going_on(builder)) == "u a"


def test_an_admission_stands_in_for_its_message() -> None:
    builder = Builder()
    given = {"content": [{"kind": "text", "text": "do it"}]}
    admitted = {"turn_id": "t1", "run_id": "r1", "message_id": "m", "previous_root_turn_id": None}
    builder.add("turn/admitted", {**admitted, "execution": {"kind": "root"}, "input": given, "input_digest": "0" * 64})
    assert messages(builder) == []
    builder.turn = 1
    start = {**builder.ids, "invocation_id": "i", "turn": 1, "run": builder.run("r1", "t1")}
    builder.add("turn/start", start)
    builder.step().says().end_step().end()
    assert roles(builder) == "u a"
    assert text(messages(builder)[0]) == "do it"


def test_a_fork_begins_with_its_parents_conversation() -> None:
    parent = Builder().plain_turn("in the parent")
    child = Builder("s2", parent={"session_id": "s1", "seq": parent.seq - 1, "sum": parent.prev})
    child.plain_turn("in the fork")
    assert roles(parent, child) == "u a u a"
    assert [text(message) for message in messages(parent, child)][::2] == ["in the parent", "in the fork"]


# ---------------------------------------------------------------- at any time


def test_messages_may_be_asked_for_at_any_time() -> None:
    builder, _ = continued()
    going_on(builder).plain_turn("on")
    asked, once = History(), History()
    for event in events(builder):
        asked.apply(event)
        assert_legal(asked.messages())
        once.apply(event)
    assert asked.messages() == once.messages()


def test_the_list_is_the_callers() -> None:
    folded = history(Builder().plain_turn())
    folded.messages().clear()
    assert len(folded.messages()) == 2


def test_a_gap_counts_in_words() -> None:
    builder = Builder().plain_turn()
    spans: list[Any] = [{"offset": 1, "length": 7}]
    builder.add("journal/gap", {"spans": spans, "missing": [[5, 5]], "unverified": [], "accepted": []})
    assert text(history(builder).annotated()[-1]) == "1 damaged stretch (7 bytes), 1 event missing"


@pytest.mark.parametrize("gap", [[], [[5, 6]], [[5]], ["x"], [[6, 5]]])
def test_gaps_are_shown_to_people(gap: list[Any]) -> None:
    builder = Builder().plain_turn()
    spans: list[Any] = [{"offset": 1, "length": 7}, 5]
    builder.add("journal/gap", {"spans": spans, "missing": gap, "unverified": [], "accepted": []})
    entry = history(builder).annotated()[-1]
    assert entry["role"] == "gap"
    assert "7 bytes" in text(entry)


def test_a_block_that_holds_anything_is_told_as_text() -> None:
    builder = Builder().start()
    blocks: list[Any] = [
        {"kind": "text", "text": {"a": 1}},
        {"kind": "thinking", "text": 5},
        {"kind": "text", "ref": 5},
    ]
    said = {"message_id": "m", **builder.ids, "content": [*blocks, {"kind": "text", "ref": "sha256:x"}]}
    builder.add("user/message", {**said, "source": {"kind": "user"}})
    builder.step()
    calls = [
        {"kind": "tool_call", "call_id": "a", "name": 5, "arguments": {"x": 1}},
        {"kind": "tool_call", "call_id": "b"},
    ]
    message = {**builder.ids, "step": 1, "message_id": "a", "content": [{"kind": "text", "text": None}, *calls]}
    builder.add("assistant/message", {**message, "stop_reason": "tool_use"})
    user, assistant, _ = [
        message for message in messages(builder) if message["content"] != [{"kind": "text", "text": "hi"}]
    ]
    assert user["content"] == [
        {"kind": "text", "text": '{"a":1}'},
        {"kind": "text", "text": "5"},
        {"kind": "text", "ref": "sha256:x"},
    ]
    assert assistant["content"] == [
        {"kind": "tool_call", "call_id": "a", "name": "", "arguments": '{"x":1}'},
        {"kind": "tool_call", "call_id": "b", "name": "", "arguments": "{}"},
    ]


def test_a_turn_has_its_place_where_it_was_opened() -> None:
    builder = Builder()
    for number in (1, 2):
        builder.turn = number
        run = builder.run(f"r{number}", f"t{number}")
        builder.add("turn/start", {**builder.ids, "invocation_id": "i", "turn": number, "run": run})
    builder.user("second")
    builder.turn = 1
    builder.user("first")
    assert [text(message) for message in messages(builder)] == ["first", "second"]
