"""What the entries of a pi session must hold to be read, by their type or by the role of their message. No I/O."""

from typing import Any, Final

from ..events import JsonObject
from .forms import (
    IF_TEXT,
    Form,
    if_there,
    is_content,
    is_counts,
    is_list,
    is_object,
    is_string,
    is_text,
    is_there,
    lacking,
)
from .values import mapping, sequence

_MESSAGE: Final[Form] = {"message": is_object, "message.content": is_content}
_FORMS: Final[dict[str, Form]] = {
    "compaction": {"summary": is_string},
    "branch_summary": {"summary": is_string},
    "custom_message": {"content": is_content},
    "message/user": _MESSAGE,
    "message/assistant": {
        **_MESSAGE,
        "message.stopReason": IF_TEXT,
        "message.errorMessage": IF_TEXT,
        "message.usage": if_there(is_counts(("input", "output", "cacheRead", "cacheWrite"))),
    },
    "message/toolResult": {**_MESSAGE, "message.isError": if_there(lambda value: isinstance(value, bool))},
    "message/custom": _MESSAGE,
    "message/hookMessage": _MESSAGE,
    "message/developer": _MESSAGE,
    "message/bashExecution": {"message.command": is_string, "message.output": is_string},
    "message/pythonExecution": {"message.code": is_string, "message.output": is_string},
    "message/fileMention": {"message.files": is_list},
}
#: Of the blocks of a response; all others are told as they stand.
_BLOCKS: Final[dict[str, Form]] = {
    "toolCall": {"name": is_text, "arguments": is_there},
    "thinking": {"thinking": is_string, "thinkingSignature": IF_TEXT},
    "redactedThinking": {"data": is_string},
}
_REDACTED: Final[Form] = {"thinkingSignature": is_text}


def amiss(value: JsonObject) -> str | None:
    """The path of a value that is not as an entry of this type has it. None: all that is read of it is there."""
    type_, role = value.get("type"), mapping(value.get("message")).get("role")
    name = f"message/{role}" if type_ == "message" else type_
    form = _FORMS.get(name) if isinstance(name, str) else None
    if form is None:
        return None
    if (path := lacking(value, form)) is not None or role != "assistant":
        return path
    return next(filter(None, map(_of_block, sequence(value["message"]["content"]))), None)


def _of_block(block: Any) -> str | None:
    kind = mapping(block).get("type")
    form = _BLOCKS.get(kind) if isinstance(kind, str) else None
    if kind == "thinking" and block.get("redacted") is True:
        form = _REDACTED
    path = None if form is None else lacking(block, form)
    return None if path is None else f"message.content.{path}"


__all__ = ["amiss"]
