"""Inputs of operations are closed, and nothing is made to fit."""

import re
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maka.journal.events import JsonObject
from maka.runtime.host import inputs
from maka.runtime.host.inputs import structure
from maka.runtime.host.operations import OPERATIONS, HostShutdown, SessionList, TurnStart
from maka.runtime.host.protocol import HostError

#: Kind → a value of it.
SAMPLES: dict[Any, Any] = {
    str: "x1",
    int: 7,
    float: 1.5,
    bool: True,
    JsonObject: {"k": 1},
    list[str]: ["x1"],
    list[JsonObject]: [{"k": 1}],
}


def sample(field: "attrs.Attribute[Any]") -> Any:
    kind = parts(field.type)[0]
    return get_args(kind)[-1] if get_origin(kind) is Literal else SAMPLES[kind]


def parts(annotation: Any) -> tuple[Any, ...]:
    """The kinds that an annotation allows."""
    return get_args(annotation) if get_origin(annotation) in (UnionType, Union) else (annotation,)


def whole(operation: str) -> dict[str, Any]:
    return {field.name: sample(field) for field in attrs.fields(OPERATIONS[operation].input)}


def refused(operation: str, value: dict[str, Any], code: str = "invalid_request") -> str:
    with pytest.raises(HostError) as caught:
        structure(operation, value)
    assert caught.value.code == code
    return str(caught.value)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_operation_takes_its_keys_and_no_others(operation: str) -> None:
    given = whole(operation)
    cls = OPERATIONS[operation].input
    assert structure(operation, given) == cls(**given)
    must = {field.name: given[field.name] for field in attrs.fields(cls) if field.default is attrs.NOTHING}
    assert structure(operation, must) == cls(**must)
    assert re.fullmatch(rf'{re.escape(operation)} has no key "extra"; .*', refused(operation, {**given, "extra": None}))
    for key in must:
        short = {name: value for name, value in given.items() if name != key}
        assert re.fullmatch(rf"{re.escape(operation)} lacks its key {key}; .*", refused(operation, short))


#: Values that are of one kind alone.
KINDS: dict[str, Any] = {
    "a text": "1",
    "a whole number": 1,
    "a number": 1.5,
    "true or false": True,
    "null": None,
    "an object": {"k": 1},
    "a list of texts": ["1"],
    "a list of objects": [{"k": 1}],
    "a list of numbers": [1],
}
TAKEN: dict[Any, set[str]] = {
    str: {"a text"},
    int: {"a whole number"},
    float: {"a whole number", "a number"},
    bool: {"true or false"},
    type(None): {"null"},
    JsonObject: {"an object"},
    list[str]: {"a list of texts"},
    list[JsonObject]: {"a list of objects"},
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_key_takes_a_value_of_another_kind(operation: str) -> None:
    given = whole(operation)
    for field in attrs.fields(OPERATIONS[operation].input):
        closed = get_origin(field.type) is Literal
        takes = set() if closed else set().union(*(TAKEN[part] for part in parts(field.type)))
        for kind, value in KINDS.items():
            if kind in takes:
                structure(operation, {**given, field.name: value})
            else:
                assert f": {field.name} must be " in refused(operation, {**given, field.name: value})


#: What clients make up, and a session keeps and shows.
MADE_UP = ("message_id", "stop_id", "interrupt_id", "retract_id", "request_id")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_ids_can_be_ids_and_numbers_have_bounds(operation: str) -> None:
    given = whole(operation)
    for field in attrs.fields(OPERATIONS[operation].input):
        wrong: list[Any] = []
        if field.name in inputs.NUMBERS:
            least, most = inputs.NUMBERS[field.name]
            wrong = [least - 1, most + 1, float("nan"), float("inf")]
            structure(operation, {**given, field.name: least})
            structure(operation, {**given, field.name: most})
        elif field.name in ("session_id", "new_session_id", "after"):
            wrong = ["", "../x", "a/b", "a\n", ".a", "é", "a" * 129]
            structure(operation, {**given, field.name: "a" * 128})
        elif field.name.endswith("_id"):
            new = field.name == "turn_id" and operation in ("turn.start", "turn.resume.start")
            most = inputs.SHORT if new or field.name in MADE_UP else 4096
            wrong = ["", "x" * (most + 1), "\ud800"]
            structure(operation, {**given, field.name: "x" * most})
        elif str in parts(field.type):
            wrong = ["\udfff"]
        elif list[str] in parts(field.type):
            wrong = [["a", "\ud800"], ["a", None]]
        for value in wrong:
            assert f": {field.name} must be " in refused(operation, {**given, field.name: value})


def test_every_number_has_its_bounds() -> None:
    numbers = {
        field.name
        for row in OPERATIONS.values()
        for field in attrs.fields(row.input)
        if {int, float} & set(parts(field.type))
    }
    assert numbers == inputs.NUMBERS.keys()


def test_closed_sets_are_closed() -> None:
    assert structure("host.shutdown", {"mode": "handoff"}) == HostShutdown(mode="handoff")
    assert refused("host.shutdown", {"mode": "now"}) == (
        'host.shutdown: mode must be stop or handoff, not "now"; correct that, then send it again'
    )
    assert "mode" in refused("host.shutdown", {"mode": ["stop"]})


def test_values_come_as_they_were_sent() -> None:
    given: dict[str, Any] = {
        "session_id": "s",
        "turn_id": "t",
        "content": [{"kind": "text", "text": "a\u2028b"}],
        "max_steps": 3,
    }
    assert structure("turn.start", given) == TurnStart(**given)
    assert structure("session.list", {}) == SessionList()


def test_an_operation_that_there_is_not_is_told_with_one_that_there_is() -> None:
    told = refused("turn.strat", {}, "unknown_operation")
    assert told == 'there is no operation "turn.strat"; did you mean turn.start?'
    told = refused("zzz\ud800", {}, "unknown_operation")
    assert all(name in told for name in OPERATIONS)
    told.encode()


def test_sentences_are_short_whatever_was_sent() -> None:
    told = refused("turn.query", {"session_id": "s", "turn_id": ["x" * 10_000]})
    assert len(told) < 200
    told = refused("turn.query", {"session_id": "é" * 10_000 + "\ud800", "turn_id": "t"})
    assert len(told) < 400
    told.encode()
    assert len(refused("turn.query", {"x" * 10_000: 1, "session_id": "s", "turn_id": "t"})) < 400


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150)
@given(st.sampled_from([*OPERATIONS]), st.data())
def test_any_json_is_taken_or_refused_in_one_sentence(operation: str, data: st.DataObject) -> None:
    names = [*attrs.fields_dict(OPERATIONS[operation].input), "other"]
    value = data.draw(st.dictionaries(st.sampled_from(names), JSON, max_size=6))
    problem, taken = None, None
    try:
        taken = structure(operation, value)
    except HostError as error:
        problem = error
    if problem is None:
        assert all(getattr(taken, key) == given or given != given for key, given in value.items())
    else:
        assert problem.code == "invalid_request"
        assert "\n" not in str(problem)
