"""What the events of a DeepSeek Harness log must hold to be read, and the pieces of a response in them. No I/O."""

from typing import Any, Final

from ..events import JsonObject
from .dsh_stream import KINDS, ROWS
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
from .values import count, mapping, sequence

_COUNTS: Final = is_counts(("inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens", "reasoningTokens"))
HEADER: Final[Form] = {"id": is_text, "cwd": IF_TEXT, "createdAt": is_there, "parentSession": IF_TEXT}
_MESSAGE: Final[Form] = {"content": is_content, "id": IF_TEXT, "source": if_there(is_object)}
_OF_SOMEBODY: Final[Form] = {**_MESSAGE, "source.kind": is_text}
_MESSAGES: Final = {"user/message": _OF_SOMEBODY, "system/message": _MESSAGE, "steering/message": _MESSAGE}
_SURFACE: Final = frozenset({"assistant/message", "tool/result", *_MESSAGES})
_FAILED: Final[Form] = {"failure.code": IF_TEXT, "failure.message": is_text}
_IMAGE: Final[Form] = {
    "attachment.attachmentId": is_text,
    "attachment.mediaType": IF_TEXT,
    "attachment.name": IF_TEXT,
}
_CALL: Final[Form] = {"id": is_string, "name": is_text, "arguments": is_there}
_BEGAN: Final[Form] = {"subCallId": is_text, "name": is_text, "arguments": is_there}
_CAME: Final[Form] = {"name": is_text, "arguments": is_there, "content": is_content}
#: Of blocks that are not simply told as what they are.
_BLOCKS: Final = {"tool-call": _CALL, "image": _IMAGE}
_FORMS: Final[dict[str, Form]] = {
    "assistant/message": {
        "message.content": is_content,
        "message.id": IF_TEXT,
        "message.source": if_there(is_object),
        "usage": if_there(_COUNTS),
        "stream": if_there(is_list),
    },
    "assistant/attempt": {"stream": is_list},
    "assistant/chunk": {"chunk": is_object},
    "tool/call": {"callId": is_string, "name": is_text, "arguments": is_there},
    "tool/result": {"message.content": is_list, "message.id": IF_TEXT, "error": if_there(is_object)},
    "tool/code-dispatch": _CAME,
    "tool/ptc-dispatch": _CAME,
    "tool/code-dispatch-start": _BEGAN,
    "tool/ptc-dispatch-start": _BEGAN,
    "session/title": {"title": is_text},
    "llm/retry": _FAILED,
}
_RESULT: Final[Form] = {"content": is_content, "toolCallId": is_string}
_WORDS: Final[Form] = {"index": is_there, "text": is_string}
#: Of the pieces of a response; what else a piece may be says nothing that the others do not.
_PIECES: Final[dict[str, Form]] = {
    "text-delta": _WORDS,
    "reasoning-delta": _WORDS,
    "tool-call-delta": {"index": is_there, "argumentsDelta": is_string, "id": IF_TEXT, "name": IF_TEXT},
    "block-start": {},
    "block-end": {"index": is_there, "block.type": is_text},
    "usage": {"usage": _COUNTS},
    "finish": {"reason.kind": is_text},
}
_REASONS: Final = frozenset({"stop", "tool-calls", "max-tokens", "aborted", "error"})


def amiss(type_: str, value: JsonObject) -> str | None:
    """What of an event is not as one of its type has it: the path of a value, or ``pieces``. None: all that is read of
    it is there.
    """
    data = value.get("data")
    if not isinstance(data, dict):
        return "data"
    if type_ == "assistant/chunk" and _is_plain(data.get("chunk")):
        return None
    if type_ in _SURFACE and not _is_operation(value.get("surfaceOp", "append")):
        return "surfaceOp"
    if type_ in _MESSAGES:
        message = mapping(data.get("message")) or data
        return _within("data", lacking(message, _MESSAGES[type_]) or _of_blocks(message))
    if type_ in ROWS:
        return _within("data", _of_row(type_, data))
    if (path := lacking(data, _FORMS.get(type_, {}))) is not None:
        return _within("data", path)
    if type_ == "assistant/chunk":
        return _within("data.chunk", _of_piece(data["chunk"]))
    if type_ == "tool/result":
        return _within("data.message.content", _of_result(data["message"]["content"]))
    if type_ == "assistant/message":
        return _within("data.message", _of_blocks(data["message"]))
    if type_ == "assistant/attempt":
        return _within("data.stream", next(filter(None, map(_of_item, data["stream"])), None))
    return None


def _within(where: str, path: str | None) -> str | None:
    return None if path is None else f"{where}.{path}"


def _is_plain(chunk: Any) -> bool:
    """Is it a piece as most lines of a log are one? They are many, and what they hold is looked at at once."""
    if not isinstance(chunk, dict):
        return False
    index = chunk.get("index")
    words = isinstance(chunk.get("text"), str) and chunk.get("type") in ("text-delta", "reasoning-delta")
    return words and index.__class__ is int and index >= 0


def _is_operation(value: Any) -> bool:
    return value == "append" or mapping(value).get("op") in ("append", "replace")


def _of_blocks(message: JsonObject) -> str | None:
    for block in map(mapping, sequence(message.get("content"))):
        kind = block.get("type")
        form = _BLOCKS.get(kind) if isinstance(kind, str) else None
        if form is not None and (path := lacking(block, form)) is not None:
            return f"content.{path}"
    return None


def _of_result(content: list[Any]) -> str | None:
    """There is one block, which is the result."""
    return "tool-result" if len(content) != 1 else lacking(content[0], _RESULT) or _of_blocks(content[0])


def _of_row(type_: str, data: JsonObject) -> str | None:
    pieces = ROWS[type_]
    given = data.get(pieces)
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        return pieces
    return None if count(data.get("index")) is not None else "index"


def _of_piece(chunk: JsonObject) -> str | None:
    kind = chunk.get("type")
    form = _PIECES.get(kind) if isinstance(kind, str) else None
    if form is None:
        return "type"
    if (path := lacking(chunk, form)) is not None:
        return path
    if "index" in form and count(chunk["index"]) is None:
        return "index"
    if kind == "block-end":
        return None if chunk["block"]["type"] in KINDS else "block.type"
    if kind == "finish":
        return _of_reason(chunk["reason"])
    return None


def _of_reason(reason: JsonObject) -> str | None:
    if reason["kind"] not in _REASONS:
        return "reason.kind"
    return _within("reason", lacking(reason, _FAILED)) if "failure" in reason else None


def _of_item(item: Any) -> str | None:
    type_ = mapping(item).get("type")
    if isinstance(type_, str) and type_ in ROWS:
        return _of_row(type_, mapping(item["data"]) if is_object(item.get("data")) else item)
    return _of_piece(mapping(mapping(item).get("chunk")) or mapping(item))


__all__ = ["HEADER", "amiss"]
