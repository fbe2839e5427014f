"""What append checks of an event's own shape, beyond what makes a line readable. No I/O.

Load asks little (a journal of a later version must open); append asks everything, so that what was written can be read.
"""

import re
import typing
from collections.abc import Iterator
from functools import cache
from typing import Any, Final, Literal

import attrs

from .errors import InvalidEvent
from .events import EVENT_TYPES, PAUSE_PROTOCOL, EventType, json_kinds

SESSION_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
BLOCKS: Final[dict[str, tuple[str, ...]]] = {
    "text": ("text",),
    "thinking": ("text",),
    "tool_call": ("call_id", "name", "arguments"),
    "image": ("media_type",),
    "file": ("media_type",),
}
#: What a step of a plan has, each a text.
STEP: Final = ("id", "title", "description")
#: Characters of an id. What closes a call, a turn or a run repeats its ids, and has to fit into a line too.
MAX_ID: Final = 4_096
#: Characters of an id that a pause gives.
MAX_PAUSE_ID: Final = 256
#: What a pause gives, by key: the others that it names are others'.
OF_PAUSE: Final = ("handoff_id", "host_epoch", "claim_id", "successor_run_id", "successor_invocation_id")
_OF_RUN: Final = ("run_id", "invocation_id", "turn_id")
#: The ids that an event brings into a session: its own, and those of a run header in it (key of the header, key).
_MINTED: Final[dict[str, tuple[tuple[str | None, str], ...]]] = {
    "turn/start": (*((None, key) for key in _OF_RUN), *(("run", key) for key in _OF_RUN)),
    "user/message": ((None, "message_id"),),
    "assistant/message": ((None, "message_id"),),
    "tool/call": ((None, "operation_id"),),
    "turn/stop_requested": ((None, "stop_id"),),
    "run/created": tuple(("run", key) for key in _OF_RUN),
    "continuation/claim": ((None, "claim_id"), *(("target_run", key) for key in _OF_RUN)),
    "handoff/pause": tuple(
        (None, key) for key in ("handoff_id", "claim_id", "successor_run_id", "successor_invocation_id")
    ),
    "turn/admitted": tuple((None, key) for key in ("turn_id", "run_id", "message_id")),
    "message/accepted": ((None, "message_id"),),
    "message/retracted": ((None, "retract_id"),),
    "interaction/requested": ((None, "interaction_id"),),
    "plan/proposed": ((None, "proposal_id"),),
    "plan/approved": ((None, "execution_id"),),
}
_BLOB: Final = re.compile(r"sha256:[0-9a-f]{64}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


def _bad(type_: str, key: str, what: str) -> InvalidEvent:
    return InvalidEvent(f"{type_}: {key} {what}", type=type_, key=key)


@attrs.frozen
class _Field:
    """A key: its JSON kinds, closed values, and the class of an object that stands there."""

    kinds: frozenset[type]
    is_id: bool
    values: tuple[Any, ...] | None
    nested: type | None


@cache
def _fields(cls: type) -> tuple[dict[str, _Field], tuple[str, ...]]:
    """The fields by name, and the names of those that are required."""
    out = {}
    for field in attrs.fields(cls):
        annotation: Any = field.type
        parts = [annotation, *typing.get_args(annotation)]
        nested = next((part for part in parts if isinstance(part, type) and attrs.has(part)), None)
        values = typing.get_args(annotation) if typing.get_origin(annotation) is Literal else None
        out[field.name] = _Field(json_kinds(annotation), field.name.endswith("_id"), values, nested)
    return out, tuple(field.name for field in attrs.fields(cls) if field.default is attrs.NOTHING)


def check(row: EventType, data: dict[str, Any]) -> None:
    """Raises InvalidEvent for the first key that the format does not allow."""
    _check_fields(row.name, row.cls, data, "")
    for key, value in minted(row.name, data):
        if value == "":
            raise _bad(row.name, key, "is empty; give it an id of its own")
    for key, rule in _RULES.get(row.name, ()):
        if (problem := rule(data)) is not None:
            raise _bad(row.name, key, problem)
    if "content" in row.required:
        check_blocks(row.name, data["content"], "content")
    if row.name == "turn/admitted" and isinstance(data["input"].get("content"), list):
        # It becomes the turn's message, which could not be written otherwise.
        check_blocks(row.name, data["input"]["content"], "input.content")


def minted(type_: str, data: Any) -> Iterator[tuple[str, Any]]:
    """The ids that such an event brings into a session, by key, as far as it has them. ``data`` may be anything."""
    for header, key in _MINTED.get(type_, ()):
        holder = data.get(header) if header is not None and isinstance(data, dict) else data
        if isinstance(holder, dict) and key in holder:
            yield (key if header is None else f"{header}.{key}"), holder[key]


def unfit_for_pause(value: str) -> str | None:
    """Why a pause cannot give this."""
    if not 0 < len(value) <= MAX_PAUSE_ID:
        return f"has {len(value)} characters, and may have 1 to {MAX_PAUSE_ID}"
    return "holds a control character" if any(one < " " or one == "\x7f" for one in value) else None


def _check_fields(type_: str, cls: type, data: dict[str, Any], at: str) -> None:
    fields, required = _fields(cls)
    for name in required:
        if name not in data:
            raise _bad(type_, at + name, "is missing")
    for name, value in data.items():
        field = fields.get(name)
        if field is None:
            continue  # of a later version, or an application's own
        if field.kinds and value.__class__ not in field.kinds:
            raise _bad(type_, at + name, f"is of the wrong kind ({type(value).__name__})")
        if field.is_id and value.__class__ is str and len(value) > MAX_ID:
            raise _bad(type_, at + name, f"has {len(value)} characters, and an id has at most {MAX_ID}")
        if field.values is not None and value not in field.values:
            raise _bad(type_, at + name, f"is {value!r}, not one of {', '.join(map(str, field.values))}")
        if field.nested is not None and value is not None:
            _check_fields(type_, field.nested, value, f"{at}{name}.")


def check_blocks(type_: str, blocks: list[Any], at: str) -> None:
    for i, block in enumerate(blocks):
        here = f"{at}[{i}]"
        if not isinstance(block, dict) or not isinstance(block.get("kind"), str):
            raise _bad(type_, here, "is not a content block")
        for key in BLOCKS.get(block["kind"], ()):
            if not isinstance(block.get(key), str):
                raise _bad(type_, f"{here}.{key}", "is missing or not text")
            if key == "call_id" and len(block[key]) > MAX_ID:
                raise _bad(type_, f"{here}.{key}", f"has {len(block[key])} characters, and an id has at most {MAX_ID}")
        if "ref" in block and (not isinstance(block["ref"], str) or _BLOB.fullmatch(block["ref"]) is None):
            raise _bad(type_, f"{here}.ref", "is not a blob's name (sha256:<64 hex>)")


def _digest(key: str) -> Any:
    return key, lambda data: None if _DIGEST.fullmatch(data[key]) else "is not 64 hex digits of SHA-256"


def _kind(key: str) -> Any:
    return f"{key}.kind", lambda data: None if isinstance(data[key].get("kind"), str) else "is missing or not text"


def _positive(key: str) -> Any:
    return key, lambda data: None if data[key] is None or data[key] > 0 else "must be positive"


def _steps(data: dict[str, Any]) -> str | None:
    fits = all(isinstance(step, dict) and all(isinstance(step.get(key), str) for key in STEP) for step in data["steps"])
    return None if fits else f"is no list of steps, each with the texts {', '.join(STEP)}"


def _protocol(value: str) -> Any:
    return "protocol", lambda data: None if data["protocol"] == value else f"is not {value}"


_RULES: Final[dict[str, tuple[Any, ...]]] = {
    "session/header": (
        ("format", lambda data: None if data["format"] == 1 else "is not 1"),
        ("session_id", lambda data: None if SESSION_ID.fullmatch(data["session_id"]) else "is not a session id"),
    ),
    "turn/start": (_positive("turn"),),
    "step/start": (_positive("step"),),
    "step/end": (_positive("step"),),
    "user/message": (_kind("source"),),
    "tool/call": (_digest("arguments_digest"),),
    "turn/admitted": (_digest("input_digest"), _kind("execution")),
    "message/accepted": (_digest("digest"),),
    "interaction/resolved": (_kind("outcome"),),
    "continuation/claim": (_positive("turn"), _digest("replay_digest")),
    "continuation/start": (_protocol("continuation_start_v2"),),
    "handoff/pause": (_protocol(PAUSE_PROTOCOL), _positive("remaining_steps")),
    "plan/proposed": (_positive("revision"), ("steps", _steps)),
    "plan/approved": (_positive("revision"),),
}

assert set(_RULES) | set(_MINTED) <= set(EVENT_TYPES)
