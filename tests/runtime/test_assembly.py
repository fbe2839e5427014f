"""Chunks become blocks."""

from contextlib import suppress
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maka.journal.codec import encodable
from maka.runtime.assembly import MAX_TEXT, Assembly
from maka.runtime.model import (
    Finish,
    ModelError,
    TextDelta,
    ThinkingDelta,
    ToolCallChunk,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    UsageChunk,
)


def fed(*chunks: Any) -> Assembly:
    assembly = Assembly()
    for chunk in chunks:
        assembly.feed(chunk)
    return assembly


def test_blocks_stand_in_the_order_of_their_begin() -> None:
    assembly = fed(
        ThinkingDelta("a", 0),
        TextDelta("x", 1),
        ToolCallStart("c", "t", 2),
        ThinkingDelta("b", 0, signature="s"),
        ToolCallDelta('{"n"', 2),
        ToolCallDelta(":1}", 2),
        ToolCallEnd(2),
        TextDelta("y", 1),
        UsageChunk(1, 2, cache_read_tokens=3),
        Finish("tool_use"),
    )
    assert assembly.message(calls=True) == [
        {"kind": "thinking", "text": "ab", "signature": "s"},
        {"kind": "text", "text": "xy"},
        {"kind": "tool_call", "call_id": "c", "name": "t", "arguments": '{"n":1}'},
    ]
    assert assembly.usage == {"input_tokens": 1, "output_tokens": 2, "cache_read_tokens": 3}


def test_half_made_calls_and_empty_texts_are_left_out() -> None:
    assembly = fed(TextDelta("", 0), ToolCallStart("c", "t", 1), ToolCallDelta("{", 1))
    assert assembly.message(calls=True) == []
    assert assembly.started


def test_the_end_closes_a_call_that_was_not_closed() -> None:
    assembly = fed(ToolCallStart("c", "t"), ToolCallDelta("{}"), Finish("tool_use"))
    assert assembly.message(calls=True)[0]["arguments"] == "{}"
    assert assembly.message(calls=False) == []


def test_calls_of_an_adapter_that_does_not_count() -> None:
    assembly = fed(
        ToolCallChunk("a", "t", "1"), ToolCallChunk("b", "t", "2"), ToolCallStart("c", "t"), ToolCallDelta("3")
    )
    assembly.feed(Finish("tool_use"))
    assert [block["arguments"] for block in assembly.message(calls=True)] == ["1", "2", "3"]


@pytest.mark.parametrize(
    "chunks",
    [
        [Finish("end_turn"), TextDelta("x")],
        [ToolCallDelta("x")],
        [ToolCallStart("a", "t"), ToolCallStart("b", "t")],
        [ToolCallStart("a", "t"), ToolCallEnd(), ToolCallEnd()],
        [TextDelta("x" * (MAX_TEXT // 2)), TextDelta("x" * (MAX_TEXT // 2 + 1), 1)],
        [TextDelta(7)],  # type: ignore[arg-type]
        ["text"],
    ],
)
def test_what_makes_no_sense_is_the_providers_failure(chunks: list[Any]) -> None:
    with pytest.raises(ModelError) as caught:
        fed(*chunks)
    assert caught.value.kind == "provider_invalid_response"


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.text(max_size=4), st.booleans())))
def test_pieces_add_up_to_the_text(chunks: list[tuple[int, bool, str, bool]]) -> None:
    assembly = Assembly()
    sums: dict[tuple[str, int], str] = {}
    for index, thinking, text, take in chunks:
        assembly.feed(ThinkingDelta(text, index) if thinking else TextDelta(text, index))
        for piece in assembly.pieces() if take else ():
            sums[piece.kind, piece.index] = sums.get((piece.kind, piece.index), "") + piece.text
    for piece in assembly.pieces():
        sums[piece.kind, piece.index] = sums.get((piece.kind, piece.index), "") + piece.text
    whole = [(block["kind"], block["text"]) for block in assembly.message(calls=True)]
    assert sorted(whole) == sorted((kind, text) for (kind, _), text in sums.items())
    assert assembly.pieces() == []


def test_a_whole_text_replaces_its_pieces_and_what_follows_is_another_block() -> None:
    response = Assembly()
    for chunk in (TextDelta("a"), ThinkingDelta("h"), TextDelta("b")):
        response.feed(chunk)
    assert [piece.text for piece in response.pieces()] == ["ab", "h"]
    response.complete("text", "abc", 0, None)
    response.complete("thinking", "other", 0, "sig")
    # The preview goes on where it can; what was shown otherwise is not shown again.
    assert [piece.text for piece in response.pieces()] == ["c"]
    response.feed(TextDelta("next"))
    assert response.message(calls=True) == [
        {"kind": "text", "text": "abc"},
        {"kind": "thinking", "text": "other", "signature": "sig"},
        {"kind": "text", "text": "next"},
    ]
    response.complete("text", "", 0, None)
    assert len(response.message(calls=True)) == 2


@pytest.mark.parametrize("text", ["x", "é", "\x01", "\ud800", "\N{GRINNING FACE}"])
def test_a_response_of_whatever_text_fits_into_a_line(text: str) -> None:
    response = Assembly()
    with suppress(ModelError):
        for _ in range(17):
            response.feed(TextDelta(text * (1 << 20)))
    content = response.message(calls=False)
    assert len(orjson.dumps([{**block, "text": encodable(block["text"])} for block in content])) < 16 << 20


def test_a_whole_text_counts_once() -> None:
    response = Assembly()
    response.feed(TextDelta("x" * (MAX_TEXT - 1)))
    response.complete("text", "x" * (MAX_TEXT - 1), 0, None)
    with pytest.raises(ModelError):
        response.complete("text", "xx", 0, None)
