"""Messages as chat completions take them, against the rules O0 to O7. No I/O."""

import json
import re
from collections.abc import Iterator
from typing import Any, Final, Literal

from .rules import Violation, numbered, shown

_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ID_LENGTH: Final = 40
_PARTS: Final = ("text", "image_url", "input_audio", "file", "refusal")
_ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")


def openai_chat(
    messages: object,
    *,
    portable: bool = False,
    reasoning: Literal["required", "refused"] | None = None,
) -> list[Violation]:
    """What is wrong with a list of messages, or with a request ``{"messages"}``. Never raises.

    What an array alone does not show is told by options: ``portable`` (O6), whether other providers are to take it, for
    whom ids are unique in the whole array; ``reasoning`` (O7), whether the model demands ``reasoning_content`` of
    messages with calls, or refuses it anywhere.
    """
    given = messages.get("messages") if isinstance(messages, dict) else messages
    if not isinstance(given, list):
        return [Violation("O0", "messages", f"is a list of messages, not {type(given).__name__}")]
    return [
        *_shapes(given),
        *_pairs(given),
        *_calls(given),
        *_ids(given, portable),
        *_results(given),
        *(() if reasoning is None else _reasoning(given, reasoning)),
    ]


def _shapes(given: list[Any]) -> Iterator[Violation]:
    for number, message in enumerate(given):
        where = f"messages.{number}"
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            yield Violation("O0", where, "is no object with a role of chat completions")
            continue
        content = message.get("content")
        if isinstance(content, list):
            yield from _parts(content, where)
        elif not isinstance(content, str) and (content is not None or message["role"] != "assistant"):
            yield Violation("O0", where, "has neither text nor parts as content")
        if message["role"] == "assistant":
            yield from _says_something(where, message)
        elif message.get("tool_calls"):
            yield Violation("O0", where, "has calls and is not the assistant's")


def _parts(content: list[Any], where: str) -> Iterator[Violation]:
    if not content:
        yield Violation("O0", where, "has an empty list of parts as content")
    for place, part in enumerate(content):
        type_ = part.get("type") if isinstance(part, dict) else None
        if type_ not in _PARTS:
            yield Violation("O0", f"{where}.content.{place}", "is no part of a type of chat completions")
        elif type_ == "text" and not isinstance(part.get("text"), str):
            yield Violation("O0", f"{where}.content.{place}", "is a text that holds none")


def _says_something(where: str, message: dict[str, Any]) -> Iterator[Violation]:
    if "tool_calls" in message and not message["tool_calls"] and message["tool_calls"] is not None:
        yield Violation("O3", where, "has an empty list of calls")
    elif message.get("tool_calls") is not None and not isinstance(message["tool_calls"], list):
        yield Violation("O3", where, "has calls that are no list")
    if not message.get("content") and not any(message.get(key) for key in ("tool_calls", "function_call", "refusal")):
        yield Violation("O3", where, "says nothing and calls nothing")


def _called(message: object, where: str) -> list[tuple[str, dict[str, Any]]]:
    if not isinstance(message, dict) or message.get("role") != "assistant":
        return []
    calls = message.get("tool_calls")
    return list(numbered(calls, f"{where}.tool_calls")) if isinstance(calls, list) else []


def _pairs(given: list[Any]) -> Iterator[Violation]:
    """The batch that is open: where it was called, and by id whether it has its answer."""
    opened, batch = "", dict[str, bool]()
    for number, message in enumerate(given):
        where = f"messages.{number}"
        if isinstance(message, dict) and message.get("role") == "tool":
            named = message.get("tool_call_id")
            if not isinstance(named, str) or named not in batch:
                yield Violation("O2", where, f"answers {shown(named)}, which the batch before it does not call")
            elif batch[named]:
                yield Violation("O2", where, f"is a second answer to {shown(named)}")
            else:
                batch[named] = True
            continue
        yield from _unanswered(opened, batch)
        opened = where
        calls = _called(message, where)
        batch = {call["id"]: False for _, call in calls if isinstance(call.get("id"), str)}
    yield from _unanswered(opened, batch)


def _unanswered(where: str, batch: dict[str, bool]) -> Iterator[Violation]:
    for named, answered in batch.items():
        if not answered:
            yield Violation("O1", where, f"calls {shown(named)}, and no result stands directly behind it")


def _calls(given: list[Any]) -> Iterator[Violation]:
    for number, message in enumerate(given):
        if isinstance(message, dict) and isinstance(message.get("tool_calls"), list):
            for place, call in enumerate(message["tool_calls"]):
                where = f"messages.{number}.tool_calls.{place}"
                yield from _call(where, call) if isinstance(call, dict) else [Violation("O4", where, "is no object")]


def _call(where: str, call: dict[str, Any]) -> Iterator[Violation]:
    named = call.get("id")
    if not isinstance(named, str) or not 0 < len(named) <= _ID_LENGTH:
        yield Violation("O4", where, f"has the id {shown(named)}, which is not 1 to {_ID_LENGTH} characters")
    if call.get("type") == "custom":
        return
    function = call.get("function")
    if call.get("type") != "function" or not isinstance(function, dict):
        yield Violation("O4", where, "is no call of a function")
        return
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        yield Violation("O4", where, f"has the name {shown(name)}, which is not 1 to 64 of a-z, A-Z, 0-9, _, -")
    if not isinstance(function.get("arguments"), str):
        yield Violation("O4", where, "has arguments that are no text")
    elif not _is_json(function["arguments"]):
        yield Violation("O4", where, "has arguments that are no valid JSON")


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _ids(given: list[Any], portable: bool) -> Iterator[Violation]:
    seen: set[str] = set()
    for number, message in enumerate(given):
        if not portable:
            seen = set()
        for where, call in _called(message, f"messages.{number}"):
            named = call.get("id")
            if isinstance(named, str):
                if named in seen:
                    yield Violation("O6", where, f"has the id {shown(named)}, which another call has")
                seen.add(named)


def _results(given: list[Any]) -> Iterator[Violation]:
    for number, message in enumerate(given):
        if isinstance(message, dict) and message.get("role") == "tool" and isinstance(message.get("content"), list):
            for where, part in numbered(message["content"], f"messages.{number}.content"):
                if part.get("type") != "text":
                    yield Violation("O5", where, f"is {shown(part.get('type'))} in a tool message, which holds text")


def _reasoning(given: list[Any], rule: str) -> Iterator[Violation]:
    for number, message in enumerate(given):
        if isinstance(message, dict) and message.get("role") == "assistant":
            has = isinstance(message.get("reasoning_content"), str)
            if rule == "refused" and "reasoning_content" in message:
                yield Violation("O7", f"messages.{number}", "sends reasoning back to a model that refuses it")
            elif rule == "required" and message.get("tool_calls") and not has:
                yield Violation("O7", f"messages.{number}", "calls tools, and its reasoning is not sent back")
