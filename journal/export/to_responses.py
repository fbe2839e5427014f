"""Neutral messages → the input items of the Responses interface. No I/O."""

from collections.abc import Iterable
from typing import Any, Final

from ..events import JsonObject
from .arguments import Ids, as_json, fitting_name
from .dialogue import Answer, Part, Picture, ReadBlob, Text, dialogue
from .openai import images_of, result_text, url

_ID_LENGTH: Final = 64


def openai_responses(
    messages: Iterable[Any],
    *,
    read_blob: ReadBlob | None = None,
    whole: bool = False,
    keep_images: bool = False,
) -> list[JsonObject]:
    """Items ``message``, ``function_call`` and ``function_call_output``, without ids of their own and without
    reasoning, which is bound to whom it was given; legal by ``legality.openai_responses`` whatever the messages hold.

    ``read_blob``, ``whole`` and ``keep_images`` are those of ``dialogue``.
    """
    ids = Ids(_ID_LENGTH)
    out: list[JsonObject] = []
    for step in dialogue(messages, read_blob=read_blob, whole=whole, keep_images=keep_images):
        if isinstance(step, Answer):
            spoken = [{"type": "output_text", "text": part.text} for part in step.content if isinstance(part, Text)]
            if spoken:
                out.append({"type": "message", "role": "assistant", "content": spoken})
            given = [(ids.give(call.call_id), call) for call in step.calls]
            out += (
                {
                    "type": "function_call",
                    "call_id": named,
                    "name": fitting_name(call.name),
                    "arguments": as_json(call.arguments),
                }
                for named, call in given
            )
            out += (
                {"type": "function_call_output", "call_id": named, "output": result_text(call)} for named, call in given
            )
            if pictures := images_of(given):
                out.append(_user(pictures))
        else:
            out.append(_user(step.content))
    return out


def _user(parts: list[Part]) -> JsonObject:
    content = [
        {"type": "input_image", "image_url": url(part)}
        if isinstance(part, Picture)
        else {"type": "input_text", "text": part.text}
        for part in parts
    ]
    return {"type": "message", "role": "user", "content": content}
