"""What may be written: the short way by the serializer refuses and changes what the walk through the values does."""

import enum
import json
import uuid
from collections.abc import Callable
from datetime import date
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maka.journal.codec import ZERO, chain, check_shape, clean, decode, encode, serialize
from maka.journal.errors import InvalidEvent
from maka.journal.events import Draft
from maka.journal.shapes import MAX_ID


class Colour(enum.Enum):
    RED = "red"


class Name(str):
    pass


def nested(levels: int) -> Any:
    value: Any = "innermost"
    for _ in range(levels):
        value = [value]
    return value


#: What orjson by itself would take, or turn into something else, and JSON has no kind for.
STRANGE = [
    (1, 2),
    {1, 2},
    b"bytes",
    Colour.RED,
    Name("text"),
    uuid.UUID(int=1),
    date(2026, 1, 1),
    orjson.Fragment(b'1}\n{"seq":'),
    {1: "a key that is no text"},
    {Name("key"): 1},
    float("nan"),
    float("-inf"),
    2**63,
    -(2**63) - 1,
    nested(201),
]


@pytest.mark.parametrize("value", STRANGE, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize(
    "inside", [lambda v: {"a": v}, lambda v: {"a": "b", "c": [{"d": v}, "e"]}], ids=["top", "deep"]
)
def test_what_json_has_no_kind_for_is_refused_wherever_it_stands(value: Any, inside: Any) -> None:
    draft = Draft("x-test/values", inside(value))
    with pytest.raises(InvalidEvent) as plain:
        clean(draft)
    with pytest.raises(InvalidEvent) as told:
        serialize(draft)
    assert str(told.value) == str(plain.value)
    assert str(told.value.key).startswith("data.")


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), 2**53, 0.5, 1e300, -0.0, True, None, "", "null", [], {}])
def test_what_json_has_a_kind_for_is_taken_as_it_is(value: Any) -> None:
    for data in ({"a": value}, {"a": [{"b": value}]}):
        draft = Draft("x-test/values", data)
        wanted, text = serialize(draft)
        assert wanted is draft
        assert json.loads(text) == data


def test_two_hundred_levels_are_taken_and_one_more_is_not() -> None:
    draft = Draft("x-test/deep", {"a": nested(199)})
    assert decode(encode(draft, 1, 1, ZERO, data=serialize(draft)[1])[0]) is not None
    with pytest.raises(InvalidEvent, match="deeper than 200"):
        serialize(Draft("x-test/deep", {"a": nested(200)}))


def test_a_lone_surrogate_marks_its_block() -> None:
    wanted, text = serialize(Draft("x-test/text", {"content": [{"kind": "text", "text": "a\ud800b"}], "n": 2**62}))
    assert wanted.data == {"content": [{"kind": "text", "text": "a\ufffdb", "lossy": True}], "n": 2**62}
    assert json.loads(text) == wanted.data


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.floats()
    | st.text(st.characters(exclude_categories=()), max_size=8)
    | st.sampled_from([Colour.RED, Name("n"), (1,), (float("nan"),)]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)


def outcome(work: Callable[[], Draft]) -> tuple[str | None, Draft | None]:
    """The refusal, or what was given."""
    try:
        return None, work()
    except InvalidEvent as error:
        return str(error), None


@given(st.dictionaries(st.text(max_size=4), values, max_size=4))
def test_the_short_way_and_the_walk_agree(data: dict[str, Any]) -> None:
    draft = Draft("x-test/any", data)
    refused, expected = outcome(lambda: clean(draft))
    assert outcome(lambda: serialize(draft)[0]) == (refused, expected)
    if refused is not None:
        return
    wanted, text = serialize(draft)
    line, sum_ = encode(wanted, 3, 1_790_000_000_000, ZERO, data=text)
    assert (line, sum_) == encode(wanted, 3, 1_790_000_000_000, ZERO)
    assert sum_ == chain(ZERO, line[:-42])
    read = decode(line)
    assert read is not None
    assert (read.data, read.sum) == (wanted.data, sum_)


@pytest.mark.parametrize("data", [None, [1], "text", 5])
@pytest.mark.parametrize("type_", ["x-test/data", "session/note"])
def test_data_that_is_no_object_is_refused(type_: str, data: Any) -> None:
    with pytest.raises(InvalidEvent, match="not an object") as told:
        check_shape(Draft(type_, data))
    assert told.value.key == "data"


@pytest.mark.parametrize("type_", [None, 5, ["x-a/b"]])
def test_a_type_that_is_no_text_is_refused(type_: Any) -> None:
    with pytest.raises(InvalidEvent, match="is text"):
        check_shape(Draft(type_, {}))


def test_an_event_whose_number_no_reader_takes_is_refused() -> None:
    assert encode(Draft("x-a/b", {}), 2**63 - 1, 0, ZERO)
    with pytest.raises(InvalidEvent, match="no number is left"):
        encode(Draft("x-a/b", {}), 2**63, 0, ZERO)


@pytest.mark.parametrize(
    ("type_", "key", "data"),
    [
        ("tool/call", "call_id", {"call_id": "", "operation_id": "o", "name": "n", "recovery": "never"}),
        ("tool/call", "operation_id", {"call_id": "c", "operation_id": "", "name": "n", "recovery": "never"}),
        ("tool/call", "turn_id", {"call_id": "c", "operation_id": "o", "name": "n", "recovery": "never"}),
    ],
)
def test_an_id_that_its_closers_could_not_repeat_is_refused(type_: str, key: str, data: dict[str, Any]) -> None:
    whole = {"turn_id": "t", "run_id": "r", "step": 1, **data, "arguments_digest": "0" * 64}
    check_shape(Draft(type_, {**whole, key: "x" * MAX_ID}))
    with pytest.raises(InvalidEvent, match="an id has at most 4096") as told:
        check_shape(Draft(type_, {**whole, key: "x" * (MAX_ID + 1)}))
    assert told.value.key == key


RUN: dict[str, Any] = {
    "run_id": "r",
    "invocation_id": "i",
    "turn_id": "t",
    "backend": "b",
    "model": "m",
    "cwd": "/",
    "permission_mode": "ask",
    "created_at": 1,
    "root": {"kind": "user"},
}
MESSAGE: dict[str, Any] = {"message_id": "m", "turn_id": "t", "run_id": "r", "content": []}
CLAIM: dict[str, Any] = {
    "claim_id": "c",
    "purpose": "resume",
    "turn": 1,
    "boundary": {},
    "boundary_digest": "0" * 32,
    "replay_digest": "0" * 64,
    "replay_through_seq": 1,
    "source": {},
    "target_run": RUN,
    "claimed_at": 1,
}
CALL: dict[str, Any] = {
    "turn_id": "t",
    "run_id": "r",
    "step": 1,
    "call_id": "c",
    "operation_id": "o",
    "name": "n",
    "arguments_digest": "0" * 64,
    "recovery": "never",
}
OWN_IDS: list[tuple[str, dict[str, Any], list[str]]] = [
    (
        "turn/start",
        {"turn_id": "t", "run_id": "r", "invocation_id": "i", "turn": 1, "run": RUN},
        ["turn_id", "run_id", "invocation_id", "run.run_id", "run.turn_id", "run.invocation_id"],
    ),
    ("run/created", {"run": RUN}, ["run.run_id", "run.turn_id", "run.invocation_id"]),
    ("continuation/claim", CLAIM, ["claim_id", "target_run.run_id", "target_run.turn_id", "target_run.invocation_id"]),
    ("user/message", {**MESSAGE, "source": {"kind": "user"}}, ["message_id"]),
    ("assistant/message", {**MESSAGE, "step": 1, "stop_reason": "end_turn"}, ["message_id"]),
    ("tool/call", CALL, ["operation_id"]),
    ("turn/stop_requested", {"stop_id": "s", "turn_id": "t", "source": "u", "mode": "immediate"}, ["stop_id"]),
    ("message/retracted", {"retract_id": "x", "message_ids": []}, ["retract_id"]),
    ("plan/approved", {"proposal_id": "p", "revision": 1, "execution_id": "e"}, ["execution_id"]),
]


@pytest.mark.parametrize(("given", "why"), [("", "is empty"), ("a\ud800", "a lone surrogate")])
@pytest.mark.parametrize(("type_", "data", "key"), [(t, data, key) for t, data, keys in OWN_IDS for key in keys])
def test_an_event_brings_no_id_that_is_none(type_: str, data: dict[str, Any], key: str, given: str, why: str) -> None:
    check_shape(serialize(Draft(type_, data))[0])
    header, _, name = key.rpartition(".")
    bad = {**data, header: {**data[header], name: given}} if header else {**data, name: given}
    with pytest.raises(InvalidEvent, match=why) as told:
        check_shape(serialize(Draft(type_, bad))[0])
    assert told.value.key == key


def test_ids_that_others_give_are_taken_as_they_are() -> None:
    """A provider's call ids may be empty, or lose half a character."""
    block = {"kind": "tool_call", "call_id": "c\ud800", "name": "n", "arguments": "{}"}
    said = {**MESSAGE, "step": 1, "stop_reason": "tool_use", "content": [block]}
    assert serialize(Draft("assistant/message", said))[0].data["content"][0]["call_id"] == "c\ufffd"
    check_shape(Draft("tool/call", {**CALL, "call_id": ""}))


def test_the_id_of_a_call_that_a_message_asks_for_is_bounded_too() -> None:
    block = {"kind": "tool_call", "call_id": "x" * (MAX_ID + 1), "name": "n", "arguments": "{}"}
    said = {"turn_id": "t", "run_id": "r", "step": 1, "message_id": "m", "content": [block], "stop_reason": "tool_use"}
    with pytest.raises(InvalidEvent, match="an id has at most 4096"):
        check_shape(Draft("assistant/message", said))


ADMITTED: dict[str, Any] = {
    "turn_id": "t",
    "run_id": "r",
    "invocation_id": "i",
    "execution": {"kind": "root"},
    "input": {},
    "input_digest": "0" * 64,
    "previous_root_turn_id": None,
}


@pytest.mark.parametrize("block", [{"x": 1}, {"kind": "text", "text": 5}, {"kind": "image"}])
def test_what_is_admitted_can_be_written_as_a_message(block: dict[str, Any]) -> None:
    good = {"kind": "text", "text": "a"}
    check_shape(Draft("turn/admitted", {**ADMITTED, "input": {"content": [good]}}))
    with pytest.raises(InvalidEvent) as told:
        check_shape(Draft("turn/admitted", {**ADMITTED, "input": {"content": [good, block]}}))
    assert (told.value.key or "").startswith("input.content[1]")
