"""Streams of servers that keep to the protocol, and of those that do not quite."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maka.runtime.assembly import Assembly
from maka.runtime.model import Chunk, Finish, ModelError, TextDelta, ThinkingDelta, UsageChunk
from maka.runtime.models.chat_stream import ChatStream, joined
from support.chat_server import call, delta, usage

TOOLS = ("look", "look_twice", "write")


def chunks(*events: Any) -> list[Chunk]:
    ids = itertools.count(1)
    stream = ChatStream(TOOLS, lambda: f"new{next(ids)}")
    out = [chunk for event in events for chunk in stream.feed(event)]
    assert stream.finished
    return [*out, *stream.end()]


def message(*events: Any) -> Assembly:
    """What the loop makes of it, whose rules for the order of chunks hold too."""
    assembly = Assembly()
    for chunk in chunks(*events):
        assembly.feed(chunk)
    return assembly


def calls(*pieces: Any) -> list[tuple[str, str, str]]:
    """The calls that come of these pieces, each in an event of its own; a list is one event."""
    events = [delta(tool_calls=piece if isinstance(piece, list) else [piece]) for piece in pieces]
    blocks = message(*events, delta("tool_calls")).message(calls=True)
    return [(block["call_id"], block["name"], block["arguments"]) for block in blocks]


# ---------------------------------------------------------------- text, reasoning, counts, the end


def test_text_and_reasoning() -> None:
    assert chunks(
        delta(role="assistant", content=""),
        delta(reasoning_content="hm"),
        delta(reasoning="so", content=None),
        delta(reasoning="twice", reasoning_content="twice"),
        delta(content="Hello"),
        delta(refusal="No."),
        delta("stop"),
    ) == [
        ThinkingDelta("hm"),
        ThinkingDelta("so"),
        ThinkingDelta("twice"),
        TextDelta("Hello"),
        TextDelta("No."),
        Finish("end_turn"),
    ]


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ("stop", "end_turn"),
        ("tool_calls", "tool_use"),
        ("function_call", "tool_use"),
        ("length", "max_tokens"),
        ("content_filter", "content_filter"),
        ("eos", "eos"),
    ],
)
def test_reasons_to_stop(given_: str, expected: str) -> None:
    assert chunks(delta(given_)) == [Finish(expected)]


def test_a_message_with_calls_that_just_stops_wants_its_tools() -> None:
    assert chunks(delta(tool_calls=[call(0, "a", "look", "{}")]), delta("stop"))[-1] == Finish("tool_use")


def test_counts_may_come_in_any_event_and_behind_the_end() -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 3}, "completion_tokens_details": {"reasoning_tokens": 2}}
    out = chunks({**delta(content="x"), "usage": {"prompt_tokens": 9}}, delta("stop"), usage(9, 4, **details))
    assert [chunk for chunk in out if isinstance(chunk, UsageChunk)] == [
        UsageChunk(9, 0),
        UsageChunk(9, 4, cache_read_tokens=3, reasoning_tokens=2),
    ]
    assert isinstance(out[-1], Finish)


def test_counts_that_are_none_are_left_out() -> None:
    nonsense: list[Any] = [None, 3, {}, {"prompt_tokens": "9"}, {"prompt_tokens": -1, "completion_tokens": True}]
    assert chunks(*({"usage": counts} for counts in nonsense), delta("stop")) == [Finish("end_turn")]
    assert chunks({"usage": {"prompt_tokens": 9, "prompt_cache_hit_tokens": 8}}, delta("stop"))[0] == UsageChunk(
        9, 0, cache_read_tokens=8
    )


def test_of_several_answers_the_first_counts() -> None:
    other = {"choices": [{"index": 1, "delta": {"content": "no"}, "finish_reason": "length"}]}
    assert chunks(delta(content="yes"), other, delta("stop")) == [TextDelta("yes"), Finish("end_turn")]


def test_events_without_anything_are_passed_over() -> None:
    assert chunks({}, {"choices": None}, {"choices": [{"delta": None}]}, delta("stop")) == [Finish("end_turn")]


@pytest.mark.parametrize(
    "event",
    [
        None,
        [],
        3,
        {"choices": 3},
        {"choices": [None]},
        {"choices": [{"delta": "x"}]},
        delta(content=3),
        delta(tool_calls={}),
        delta(tool_calls=[3]),
        delta(tool_calls=[{"function": "x"}]),
        delta(tool_calls=[{"function": {"arguments": 3}}]),
        {"choices": [{"finish_reason": 3}]},
    ],
    ids=repr,
)
def test_what_is_no_chunk_is_an_invalid_response(event: Any) -> None:
    with pytest.raises(ModelError) as failed:
        chunks(event)
    assert (failed.value.kind, failed.value.retryable) == ("provider_invalid_response", False)


def test_an_answer_that_ends_in_an_error_is_one() -> None:
    with pytest.raises(ModelError, match="full up") as failed:
        chunks({"choices": [{"finish_reason": "error", "error": {"code": 429, "message": "full up"}}]})
    assert failed.value.kind == "provider_rate_limit"


# ---------------------------------------------------------------- calls


def test_parallel_calls_whose_arguments_come_in_turns() -> None:
    assert calls(
        [call(0, "a", "look", ""), call(1, "b", "write", "")],
        call(1, arguments='{"n"'),
        call(0, arguments="{"),
        [call(0, arguments="}"), call(1, arguments=":1}")],
    ) == [("a", "look", "{}"), ("b", "write", '{"n":1}')]


def test_text_then_calls_stand_in_that_order() -> None:
    events = delta(content="I look."), delta(tool_calls=[call(0, "a", "look", "{}")]), delta("tool_calls")
    assert [block["kind"] for block in message(*events).message(calls=True)] == ["text", "tool_call"]


def test_a_call_without_arguments() -> None:
    assert calls(call(0, "a", "look")) == [("a", "look", "")]


def test_an_id_that_comes_late_or_never() -> None:
    assert calls(call(0, None, "look", '{"n"'), call(0, arguments=":"), call(0, "a", arguments="1}")) == [
        ("a", "look", '{"n":1}')
    ]
    assert calls(call(0, None, "look", "{}"), call(1, "", "write", "{}")) == [
        ("new1", "look", "{}"),
        ("new2", "write", "{}"),
    ]


@pytest.mark.parametrize(
    "names",
    [["lo", "ok"], ["look", "look"], ["look", "", "look"], ["l", "lo", "look"], ["look", None]],
    ids=repr,
)
def test_a_name_that_comes_in_parts_or_again(names: list[str | None]) -> None:
    first, *rest = [call(0, "a" if at == 0 else None, name) for at, name in enumerate(names)]
    assert calls(first, *rest, call(0, arguments="{}")) == [("a", "look", "{}")]


def test_a_name_again_with_every_piece_is_the_same_call() -> None:
    assert calls(
        call(0, "a", "look", ""), call(0, "a", "look", '{"n":'), call(0, "a", "look", "1}"), call(0, "a", "look", "\n")
    ) == [("a", "look", '{"n":1}\n')]
    assert calls(call(0, None, "look", '{"n":'), call(0, None, "look", "1}")) == [("new1", "look", '{"n":1}')]


def test_a_name_that_goes_on_to_be_another_tool_s() -> None:
    assert joined("look", "_twice", TOOLS) == "look_twice"
    assert joined("look", "look_twice", TOOLS) == "look_twice"
    assert joined("ha", "ha", ["haha"]) == "haha"
    assert joined("look", "look", TOOLS) == "look"


def test_ids_that_change_with_every_piece_are_one_call_s() -> None:
    assert calls(call(0, "a", "look", ""), call(0, "b", arguments='{"n":'), call(0, "c", arguments="1}")) == [
        ("a", "look", '{"n":1}')
    ]


@pytest.mark.parametrize("index", [0, None])
def test_calls_that_share_an_index_or_have_none(index: int | None) -> None:
    expected = [("a", "look", '{"n":1}'), ("b", "look", '{"n":2}')]
    assert calls(call(index, "a", "look", '{"n":1}'), call(index, "b", "look", '{"n":2}')) == expected
    assert calls([call(index, "a", "look", '{"n":1}'), call(index, "b", "look", '{"n":2}')]) == expected
    in_parts = [
        call(index, "a", "look", '{"n"'),
        call(index, arguments=":1}"),
        call(index, "b", "look", ""),
        call(index, arguments='{"n":2}'),
    ]
    assert calls(*in_parts) == expected


@pytest.mark.parametrize("index", [0, None])
def test_calls_that_share_an_index_and_have_no_id(index: int | None) -> None:
    assert calls(call(index, "", "look", '{"n":1}'), call(index, "", "look", '{"n":2}')) == [
        ("new1", "look", '{"n":1}'),
        ("new2", "look", '{"n":2}'),
    ]
    assert calls(
        call(index, "", "look", ""),
        call(index, arguments="{}"),
        call(index, "", "write", ""),
        call(index, arguments="{}"),
    ) == [("new1", "look", "{}"), ("new2", "write", "{}")]


def test_pieces_without_an_index_go_where_their_id_says() -> None:
    assert calls(
        [call(None, "a", "look", "{"), call(None, "b", "write", "{")],
        call(None, "a", arguments="}"),
        call(None, "b", arguments="}"),
    ) == [("a", "look", "{}"), ("b", "write", "{}")]


def test_an_index_that_begins_anywhere() -> None:
    assert calls(call(7, "a", "look", "{}"), call(9, "b", "write", "{}")) == [("a", "look", "{}"), ("b", "write", "{}")]


def test_arguments_that_are_an_object_already() -> None:
    piece = {"index": 0, "id": "a", "function": {"name": "look", "arguments": {"n": "ä"}}}
    assert calls(piece) == [("a", "look", '{"n": "ä"}')]


def test_a_piece_of_nothing_is_no_call() -> None:
    assert calls(call(0, "a")) == []


def test_the_older_form_of_a_call() -> None:
    events = [delta(function_call={"name": "look", "arguments": "{"}), delta(function_call={"arguments": "}"})]
    (block,) = message(*events, delta("function_call")).message(calls=True)
    assert (block["name"], block["arguments"]) == ("look", "{}")


@given(
    st.lists(st.tuples(st.sampled_from(TOOLS), st.dictionaries(st.text(max_size=3), st.integers())), max_size=4),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_however_calls_are_cut_and_mixed_they_come_out_whole(
    wanted: list[tuple[str, dict[str, int]]], random: Any, repeat: bool
) -> None:
    queues = []
    for index, (name, arguments) in enumerate(wanted):
        raw = json.dumps(arguments)
        cuts = sorted(random.randrange(len(raw) + 1) for _ in range(random.randrange(4)))
        pieces = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
        queues.append([call(index, f"id{index}", name, pieces[0])])
        queues[-1] += [
            call(index, f"id{index}" if repeat else None, name if repeat else None, piece) for piece in pieces[1:]
        ]
    mixed = []
    while any(queues):
        mixed.append(random.choice([queue for queue in queues if queue]).pop(0))
    expected = [(f"id{index}", name, json.dumps(arguments)) for index, (name, arguments) in enumerate(wanted)]
    assert sorted(calls(*mixed)) == expected
