"""Neutral messages → a request of Anthropic's Messages. No I/O."""

from collections.abc import Iterable
from typing import Any, Final

from ..events import JsonObject
from .arguments import Ids, as_object, fitting_name
from .dialogue import Answer, Call, Part, Picture, ReadBlob, Result, Text, Thought, dialogue

_ID_LENGTH: Final = 64


def anthropic(
    messages: Iterable[Any],
    *,
    read_blob: ReadBlob | None = None,
    whole: bool = False,
    keep_images: bool = False,
    keep_thinking: bool = False,
    closing: str | None = "Continue.",
) -> JsonObject:
    """``{"messages": […]}``, with ``"tools"`` where calls are in them; legal by ``legality.anthropic`` whatever the
    neutral messages hold, as ``History.messages`` gives them or not.

    ``tools`` declares each name that was called and nothing of it, for gateways that demand it: put yours there.
    ``keep_thinking``: signed thinking stays, which only the model and provider that wrote it take; else none does.
    ``closing`` is said by the user where the assistant would be the last; None leaves the assistant's message there.
    ``read_blob``, ``whole`` and ``keep_images`` are those of ``dialogue``; an image that was kept may not be legal.
    """
    ids = Ids(_ID_LENGTH)
    names: dict[str, None] = {}
    out: list[JsonObject] = []
    steps = dialogue(
        messages,
        read_blob=read_blob,
        whole=whole,
        keep_images=keep_images,
        thinking="signed" if keep_thinking else "none",
    )
    for step in steps:
        if isinstance(step, Answer):
            given = [(ids.give(call.call_id), call) for call in step.calls]
            names.update((fitting_name(call.name), None) for call in step.calls)
            content = [*map(_spoken, step.content), *(_call(*pair) for pair in given)]
            out.append({"role": "assistant", "content": content})
            if given:
                out.append({"role": "user", "content": [_result(named, call.result) for named, call in given]})
        elif out and out[-1]["role"] == "user":
            out[-1]["content"] += map(_part, step.content)
        else:
            out.append({"role": "user", "content": [*map(_part, step.content)]})
    _end(out, closing)
    request: JsonObject = {"messages": out}
    if names:
        request["tools"] = [{"name": name, "input_schema": {"type": "object"}} for name in names]
    return request


def _end(out: list[JsonObject], closing: str | None) -> None:
    if out and out[-1]["role"] == "assistant":
        if closing is not None:
            out.append({"role": "user", "content": [{"type": "text", "text": closing}]})
        elif out[-1]["content"][-1]["type"] == "text":
            # A model that goes on with it takes no blanks at its end.
            out[-1]["content"][-1]["text"] = out[-1]["content"][-1]["text"].rstrip()


def _spoken(part: Text | Thought) -> JsonObject:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if part.data is not None:
        return {"type": "redacted_thinking", "data": part.data}
    return {"type": "thinking", "thinking": part.text, "signature": part.signature}


def _call(named: str, call: Call) -> JsonObject:
    return {"type": "tool_use", "id": named, "name": fitting_name(call.name), "input": as_object(call.arguments)}


def _result(named: str, result: Result) -> JsonObject:
    content = [*map(_part, result.content)]
    failed = {"is_error": True} if result.is_error else {}
    return {"type": "tool_result", "tool_use_id": named, "content": content, **failed}


def _part(part: Part) -> JsonObject:
    if isinstance(part, Picture):
        return {"type": "image", "source": {"type": "base64", "media_type": part.media_type, "data": part.data}}
    return {"type": "text", "text": part.text}
