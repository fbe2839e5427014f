"""Payloads: from data, to data, and what is told of data that does not have the shape of the format."""

from typing import Any

import attrs
import pytest

from maka.journal.codec import check_shape, draft_of
from maka.journal.errors import InvalidEvent
from maka.journal.events import EVENT_TYPES, EndReason, Event, RunHeader, TurnEnd, Usage, UserMessage, json_kinds

SAMPLES: dict[type, Any] = {str: "x", int: 7, bool: True, dict: {"a": [1]}, list: [{"a": 1}]}
RUN = {
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
NESTED: dict[str, Any] = {
    "run": RUN,
    "target_run": RUN,
    "reason": {"kind": "completed"},
    "usage": {"input_tokens": 1, "output_tokens": 2},
    "missing": [[3, 4]],
}


def sample(cls: type, optional: bool) -> dict[str, Any]:
    data = {}
    for field in attrs.fields(cls):
        if field.default is attrs.NOTHING or optional:
            kind = next((kind for kind in json_kinds(field.type) if kind is not type(None)), str)
            data[field.name] = NESTED[field.name] if kind in (dict, list) and field.name in NESTED else SAMPLES[kind]
    return data


def event(type_: str, data: dict[str, Any]) -> Event:
    return Event(1, 2, type_, data, "0" * 32)


@pytest.mark.parametrize("optional", [False, True])
@pytest.mark.parametrize("type_", sorted(EVENT_TYPES))
def test_data_comes_back_from_its_payload(type_: str, optional: bool) -> None:
    row = EVENT_TYPES[type_]
    data = sample(row.cls, optional)
    payload = event(type_, data).payload
    assert type(payload) is row.cls
    draft = draft_of(payload)
    assert (draft.type, draft.data, draft.ignorable) == (type_, data, row.ignorable)
    assert list(draft.data) == [field.name for field in attrs.fields(row.cls) if field.name in data]


@pytest.mark.parametrize("reason", [EndReason(kind="completed"), {"kind": "completed"}])
def test_a_nested_object_may_be_given_as_json(reason: Any) -> None:
    draft = draft_of(TurnEnd(turn_id="t", run_id="r", reason=reason))
    assert draft.data == {"turn_id": "t", "run_id": "r", "reason": {"kind": "completed"}}


@pytest.mark.parametrize("content", ["text", ["text"], {"kind": "text"}, 7, None])
def test_a_value_of_another_kind_is_an_invalid_event_that_names_its_key(content: Any) -> None:
    message = UserMessage(turn_id="t", run_id="r", message_id="m", content=content, source={"kind": "user"})
    with pytest.raises(InvalidEvent, match="content") as raised:
        check_shape(draft_of(message))
    assert raised.value.type == "user/message"


def test_nested_classes_are_typed_and_nested_json_is_left_as_it_is() -> None:
    assert isinstance(event("turn/start", sample(EVENT_TYPES["turn/start"].cls, True)).payload.run, RunHeader)
    assert isinstance(event("turn/end", sample(EVENT_TYPES["turn/end"].cls, True)).payload.reason, EndReason)
    data = sample(EVENT_TYPES["assistant/message"].cls, True)
    payload = event("assistant/message", data).payload
    assert isinstance(payload.usage, Usage)
    assert payload.content is data["content"]


def test_keys_that_the_format_does_not_name_are_passed_over() -> None:
    data = {**sample(EVENT_TYPES["turn/end"].cls, True), "later": 1}
    data["reason"] = {"kind": "failed", "later": {"a": 1}}
    assert event("turn/end", data).payload.reason == EndReason(kind="failed")


def test_data_of_unknown_types_is_its_own_payload() -> None:
    data = {"anything": [None]}
    assert event("x-team/task", data).payload is data


@pytest.mark.parametrize("value", [[], [1], "text", 7, True, {"input_tokens": 1}, {}])
def test_a_nested_value_of_another_shape_is_told_with_the_type(value: Any) -> None:
    data = {**sample(EVENT_TYPES["assistant/message"].cls, False), "usage": value}
    with pytest.raises(InvalidEvent, match="assistant/message does not have the shape"):
        _ = event("assistant/message", data).payload


def test_null_stands_for_an_optional_value() -> None:
    data = {**sample(EVENT_TYPES["assistant/message"].cls, False), "usage": None}
    assert event("assistant/message", data).payload.usage is None
