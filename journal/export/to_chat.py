"""Neutral messages → the messages of a chat completion. No I/O."""

from collections.abc import Iterable
from typing import Any, Final

from ..events import JsonObject
from .arguments import Ids, as_json, clean, fitting_name
from .dialogue import Answer, Call, Part, Picture, ReadBlob, Text, Thought, dialogue
from .openai import images_of, joined, result_text, url

_ID_LENGTH: Final = 40


def openai_chat(
    messages: Iterable[Any],
    *,
    read_blob: ReadBlob | None = None,
    whole: bool = False,
    keep_images: bool = False,
    reasoning: bool = False,
) -> list[JsonObject]:
    """``[{"role": "user"|"assistant"|"tool", "content", "tool_calls"?, "tool_call_id"?}]``; legal by
    ``legality.openai_chat`` whatever the neutral messages hold, ids unique in the whole list.

    ``reasoning``: thinking of messages with calls is sent as ``reasoning_content``, an empty one where none is on
    record; some models demand it and others refuse it. ``read_blob``, ``whole`` and ``keep_images`` are those of
    ``dialogue``.
    """
    ids = Ids(_ID_LENGTH)
    out: list[JsonObject] = []
    steps = dialogue(
        messages,
        read_blob=read_blob,
        whole=whole,
        keep_images=keep_images,
        thinking="text" if reasoning else "none",
    )
    for step in steps:
        if isinstance(step, Answer):
            given = [(ids.give(call.call_id), call) for call in step.calls]
            out.append(_assistant(step, given, reasoning))
            out += ({"role": "tool", "tool_call_id": named, "content": result_text(call)} for named, call in given)
            if pictures := images_of(given):
                out.append({"role": "user", "content": _content(pictures)})
        else:
            out.append({"role": "user", "content": _content(step.content)})
    return out


def _assistant(step: Answer, given: list[tuple[str, Call]], reasoning: bool) -> JsonObject:
    text = joined([part for part in step.content if isinstance(part, Text)])
    message: JsonObject = {"role": "assistant", "content": text or None}
    thoughts = [part.text for part in step.content if isinstance(part, Thought) and part.text.strip()]
    if given:
        if reasoning:
            message["reasoning_content"] = clean("\n\n".join(thoughts))
        message["tool_calls"] = [_call(*pair) for pair in given]
    return message


def _call(named: str, call: Call) -> JsonObject:
    function = {"name": fitting_name(call.name), "arguments": as_json(call.arguments)}
    return {"id": named, "type": "function", "function": function}


def _content(parts: list[Part]) -> str | list[JsonObject]:
    """One text, or parts where an image is among them: not every server takes parts."""
    if not any(isinstance(part, Picture) for part in parts):
        return joined(parts)
    return [
        {"type": "image_url", "image_url": {"url": url(part)}}
        if isinstance(part, Picture)
        else {"type": "text", "text": part.text}
        for part in parts
    ]
