"""A request of the loop → the body of a chat completion. No I/O."""

import json
import re
from collections.abc import Iterator
from typing import Final

from ...journal.events import JsonObject
from ..model import ModelRequest

#: What a provider takes as the name of a function, and how long the id of a call may be.
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9_-]")
_ID_LENGTH: Final = 40


def chat_body(request: ModelRequest) -> JsonObject:
    """The JSON body. ``params`` stand in it as they are, but for what says who is asked, and what, and that it streams.

    Raises ValueError where a tool message does not answer the calls before it, all of them and in their order.
    """
    body = {
        **request.params,
        "model": request.model,
        "messages": chat_messages(request),
        "stream": True,
    }
    if request.tools:
        body["tools"] = [{"type": "function", "function": _function(tool)} for tool in request.tools]
    return body


def chat_messages(request: ModelRequest) -> list[JsonObject]:
    """The conversation as a provider takes it: system first, each call answered once, directly behind its message."""
    names = {tool["name"] for tool in request.tools}
    out: list[JsonObject] = [{"role": "system", "content": request.system}] if request.system else []
    waiting: list[str] = []
    for number, message in enumerate(request.messages):
        role, content = message["role"], message["content"]
        if role == "user":
            out.append({"role": "user", "content": _user(content)})
        elif role == "assistant":
            calls = [block for block in content if block["kind"] == "tool_call"]
            waiting = _ids(number, calls)
            out += _assistant(content, [_call(*pair, names) for pair in zip(waiting, calls, strict=True)])
        else:
            out += [_result(*pair) for pair in zip(waiting, content, strict=True)]
    return out


# ---------------------------------------------------------------- messages


def _user(content: list[JsonObject]) -> str | list[JsonObject]:
    """One text, or parts where an image is among them: not every server takes parts."""
    if not any(map(_is_shown_image, content)):
        return _texts(content)
    return [_image(block) if _is_shown_image(block) else {"type": "text", "text": _said(block)} for block in content]


def _assistant(content: list[JsonObject], calls: list[JsonObject]) -> Iterator[JsonObject]:
    """Nothing at all where there was only thinking, which is not sent back."""
    text = _texts([block for block in content if block["kind"] not in ("thinking", "tool_call")])
    if calls:
        yield {"role": "assistant", "content": text or None, "tool_calls": calls}
    elif text:
        yield {"role": "assistant", "content": text}


def _call(call_id: str, block: JsonObject, names: set[str]) -> JsonObject:
    name = block["name"]
    # A model that asked for something with an impossible name has been told so; its name may not spoil each request.
    if name not in names and not _NAME.fullmatch(name):
        name = _NO_NAME.sub("_", name)[:64] or "_"
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": _arguments(block["arguments"])},
    }


def _arguments(raw: str) -> str:
    """The raw text, if it is an object. Else the text inside of one: some servers refuse what they cannot parse."""
    if is_object(raw):
        return raw
    return json.dumps({"not_json": raw}, ensure_ascii=False) if raw.strip() else "{}"


def is_object(text: str) -> bool:
    """Is this a whole JSON object?"""
    if not text.lstrip().startswith("{"):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _result(call_id: str, block: JsonObject) -> JsonObject:
    """A chat knows no failed results, so the text says it."""
    text = _texts(block["content"])
    if block["is_error"]:
        text = f"[{block['state']}] {text}"
    return {"role": "tool", "tool_call_id": call_id, "content": text or "(no output)"}


def _ids(number: int, calls: list[JsonObject]) -> list[str]:
    """The ids of a message's calls, with one of ours in place of one that another call has, or that is too long."""
    ids: list[str] = []
    for place, block in enumerate(calls):
        call_id = block["call_id"]
        if not 0 < len(call_id) <= _ID_LENGTH:
            call_id = f"call_{number}_{place}"
        while call_id in ids:
            call_id = f"call_{number}_{place}_{len(call_id)}"
        ids.append(call_id)
    return ids


# ---------------------------------------------------------------- blocks


def _texts(content: list[JsonObject]) -> str:
    return "\n\n".join(map(_said, content))


def _said(block: JsonObject) -> str:
    """The text of a block; a sentence that names it where it is no text."""
    text = block.get("text")
    if isinstance(text, str):
        return text
    named = [str(block[key]) for key in ("name", "media_type", "ref") if block.get(key)]
    return f"[{', '.join([block['kind'], *named])}: the content is not shown]"


def _is_shown_image(block: JsonObject) -> bool:
    return block["kind"] == "image" and isinstance(block.get("data"), str) and isinstance(block.get("media_type"), str)


def _image(block: JsonObject) -> JsonObject:
    return {"type": "image_url", "image_url": {"url": f"data:{block['media_type']};base64,{block['data']}"}}


def _function(tool: JsonObject) -> JsonObject:
    return {key: tool[key] for key in ("name", "description", "parameters") if key in tool}
