"""Messages as Anthropic takes them, against the rules A0 to A14. No I/O."""

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, Final

import attrs

from .. import images
from .rules import Violation, numbered, shown

_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_THINKING: Final = ("thinking", "redacted_thinking")
#: Types of calls that the provider itself runs; their results end in ``_tool_result``.
_HOSTED: Final = ("server_tool_use", "mcp_tool_use")
_RESULT_OF_HOSTED: Final = "_tool_result"
_TYPES: Final = frozenset(
    {
        "text", "image", "document", "search_result", "container_upload", "compaction", "tool_reference", "tool_use",
        "tool_result", *_THINKING, *_HOSTED,
    }
)  # fmt: skip
#: Where an image's bytes may come from; those of the last two are not at hand.
_SOURCES: Final = ("base64", "url", "file")


@attrs.frozen
class _Message:
    where: str
    role: str
    content: Any
    #: The blocks that are objects, each with where it stands; a plain text is one of them.
    blocks: list[tuple[str, dict[str, Any]]]

    def of(self, *types: str) -> list[tuple[str, dict[str, Any]]]:
        return [(where, block) for where, block in self.blocks if block.get("type") in types]

    def ids(self) -> set[str]:
        return {block["id"] for _, block in self.of("tool_use") if isinstance(block.get("id"), str)}


_NOBODY: Final = _Message("", "", None, [])


def anthropic(
    request: object,
    *,
    tools: bool | None = None,
    thinking: bool | None = None,
    prefill: bool = False,
    original: object = None,
    limits: images.Limits = images.Limits(),  # noqa: B008 - frozen
) -> list[Violation]:
    """What is wrong with a request ``{"messages", "system"?, "tools"?, "thinking"?}`` or with its messages alone.

    Never raises, whatever it is given. What messages alone do not show is told by options: ``tools`` (A14) and
    ``thinking`` (A10), whether the request has them (None: as the request says, of messages alone not looked at);
    ``prefill`` (A9), whether the model goes on with a last assistant message; ``original`` (A10), the content of the
    latest assistant message as the model gave it; ``limits`` (A12), what the model takes.
    """
    whole = request if isinstance(request, dict) else {}
    given = whole.get("messages") if isinstance(request, dict) else request
    if not isinstance(given, list):
        return [Violation("A0", "messages", f"is a list of messages, not {type(given).__name__}")]
    if tools is None and isinstance(request, dict):
        tools = bool(whole.get("tools"))
    if thinking is None:
        said = whole.get("thinking")
        thinking = isinstance(said, dict) and said.get("type") in ("enabled", "adaptive")
    messages = [_message(f"messages.{number}", message) for number, message in enumerate(given)]
    return [
        *_system(whole.get("system")),
        *_shapes(given, messages),
        *_order(messages, prefill),
        *_pairs(messages),
        *_ids(messages),
        *_texts(messages),
        *_thinking(messages, thinking, original),
        *_hosted(messages),
        *_images(messages, limits),
        *_declared(messages, tools),
    ]


def _message(where: str, message: object) -> _Message:
    if not isinstance(message, dict):
        return _Message(where, "", None, [])
    role, content = message.get("role"), message.get("content")
    blocks = list(numbered(content, f"{where}.content")) if isinstance(content, list) else []
    if isinstance(content, str):
        blocks = [(where, {"type": "text", "text": content})]
    return _Message(where, role if isinstance(role, str) else "", content, blocks)


def _shapes(given: list[Any], messages: list[_Message]) -> Iterator[Violation]:
    for raw, message in zip(given, messages, strict=True):
        if not isinstance(raw, dict) or message.role not in ("user", "assistant"):
            yield Violation("A0", message.where, "is no object with the role user or assistant")
        elif not isinstance(message.content, str | list):
            yield Violation("A0", message.where, "has neither text nor a list of blocks as content")
        elif isinstance(message.content, list):
            yield from _blocks(message.content, message.where)
        if message.role != "assistant":
            for where, _ in message.of("tool_use", *_HOSTED):
                yield Violation("A0", where, "is a call outside of an assistant message")
        for where, block in message.of("tool_use"):
            if not isinstance(block.get("name"), str) or not block["name"]:
                yield Violation("A0", where, "is a call without a name")
        for where, block in message.of("tool_result"):
            content = block.get("content")
            if isinstance(content, list):
                yield from _blocks(content, where)
            elif content is not None and not isinstance(content, str):
                yield Violation("A0", where, "is a result whose content is neither text nor a list of blocks")


def _blocks(content: list[Any], where: str) -> Iterator[Violation]:
    for number, block in enumerate(content):
        type_ = block.get("type") if isinstance(block, dict) else None
        if not isinstance(type_, str):
            yield Violation("A0", f"{where}.content.{number}", "is no object with a type")
        elif type_ not in _TYPES and not type_.endswith(_RESULT_OF_HOSTED):
            yield Violation("A0", f"{where}.content.{number}", f"is a block of the type {shown(type_)}")


def _order(messages: list[_Message], prefill: bool) -> Iterator[Violation]:
    if not messages:
        return
    if messages[0].role == "assistant":
        yield Violation("A8", messages[0].where, "begins the conversation and is the assistant's")
    for before, message in pairwise(messages):
        if before.role == message.role:
            yield Violation("A8", message.where, f"is of the same role as the message before it: {shown(message.role)}")
    last = messages[-1]
    if last.role == "assistant":
        if not prefill:
            yield Violation("A9", last.where, "is the last message and the assistant's")
        elif last.blocks and _blank_end(last.blocks[-1][1].get("text")):
            yield Violation("A9", last.blocks[-1][0], "is a prefill that ends in blanks")


def _blank_end(text: object) -> bool:
    return isinstance(text, str) and text != text.rstrip()


def _pairs(messages: list[_Message]) -> Iterator[Violation]:
    batch: set[str] = set()
    for number, message in enumerate(messages):
        before = messages[number - 1] if number else _NOBODY
        after = messages[number + 1] if number + 1 < len(messages) else _NOBODY
        if message.role == "assistant":
            batch = message.ids()
            yield from _answered(message, after)
            yield from _calls_last(message)
        asked = before.ids() if before.role == "assistant" and message.role == "user" else set()
        other = False
        for where, block in message.blocks:
            if block.get("type") != "tool_result":
                other = True
                continue
            named = block.get("tool_use_id")
            if not isinstance(named, str) or named not in asked:
                yield Violation("A2", where, f"answers {shown(named)}, which is no call of the message before")
                if isinstance(named, str) and named in batch and message.role == "user":
                    yield Violation("A3", where, "is a result of a batch that is answered in more than one message")
            if other:
                yield Violation("A3", where, "is a result behind another block of its message")


def _answered(message: _Message, after: _Message) -> Iterator[Violation]:
    results = after.of("tool_result") if after.role == "user" else []
    answered = {block.get("tool_use_id") for _, block in results if isinstance(block.get("tool_use_id"), str)}
    for where, block in message.of("tool_use"):
        named = block.get("id")
        if not isinstance(named, str) or named not in answered:
            yield Violation("A1", where, f"calls {shown(named)}, which the next message does not answer")


def _calls_last(message: _Message) -> Iterator[Violation]:
    called = False
    for where, block in message.blocks:
        if block.get("type") == "tool_use":
            called = True
        elif called and block.get("type") == "text":
            yield Violation("A13", where, "is text behind a call")


def _ids(messages: list[_Message]) -> Iterator[Violation]:
    called: set[str] = set()
    answered: set[str] = set()
    for message in messages:
        for where, block in message.of("tool_use", *_HOSTED, "tool_result"):
            result = block["type"] == "tool_result"
            named = block.get("tool_use_id" if result else "id")
            if not result and not isinstance(block.get("input"), dict):
                yield Violation("A6", where, "has an input that is no object")
            if not isinstance(named, str) or not _ID.fullmatch(named):
                yield Violation("A5", where, f"has the id {shown(named)}, which is not 1 to 64 of a-z, A-Z, 0-9, _, -")
                continue
            seen = answered if result else called
            if named in seen:
                yield Violation("A4", where, f"is a second {'result' if result else 'call'} of the id {shown(named)}")
            seen.add(named)


def _system(system: object) -> Iterator[Violation]:
    if isinstance(system, list):
        for where, block in numbered(system, "system"):
            if block.get("type") == "text" and _blank(block.get("text")):
                yield Violation("A7", where, "is an empty text")


def _texts(messages: list[_Message]) -> Iterator[Violation]:
    for message in messages:
        if message.content in ("", []):
            yield Violation("A7", message.where, "has no content")
            continue
        for where, block in message.of("text"):
            if _blank(block.get("text")):
                yield Violation("A7", where, "is a text that is empty or only blanks")
        for where, block in message.of("tool_result"):
            content = block.get("content")
            if isinstance(content, list):
                for inner, part in numbered(content, f"{where}.content"):
                    if part.get("type") == "text" and _blank(part.get("text")):
                        yield Violation("A7", inner, "is a text that is empty or only blanks")
            elif isinstance(content, str) and content and not content.strip():
                yield Violation("A7", where, "is a result of blanks only")
            if block.get("is_error") is True and content in (None, "", []):
                yield Violation("A7", where, "is a failed result that says nothing")


def _blank(text: object) -> bool:
    return not isinstance(text, str) or not text.strip()


def _thinking(messages: list[_Message], on: bool, original: object) -> Iterator[Violation]:
    for message in messages:
        if message.role != "assistant":
            for where, _ in message.of(*_THINKING):
                yield Violation("A10", where, "is thinking outside of an assistant message")
            continue
        for where, block in message.of("thinking"):
            if not isinstance(block.get("thinking"), str) or not _said(block.get("signature")):
                yield Violation("A10", where, "is thinking without its text or its signature")
        for where, block in message.of("redacted_thinking"):
            if not _said(block.get("data")):
                yield Violation("A10", where, "is redacted thinking without its data")
        if message.blocks and message.blocks[-1][1].get("type") in _THINKING:
            yield Violation("A10", message.blocks[-1][0], "is thinking at the end of a message")
    latest = next((message for message in reversed(messages) if message.role == "assistant"), None)
    if isinstance(original, list) and latest is not None:
        was = [_thought(block) for block in original if isinstance(block, dict) and block.get("type") in _THINKING]
        now = [_thought(block) for _, block in latest.of(*_THINKING)]
        if now and now != was:
            yield Violation("A10", latest.where, "has thinking that is not as the model gave it")
    for message in _tool_loop(messages) if on else ():
        if message.of("tool_use") and message.blocks[0][1].get("type") not in _THINKING:
            yield Violation("A10", message.where, "goes on with tools, and does not begin with its thinking")


def _thought(block: dict[str, Any]) -> list[object]:
    return [value for key in ("type", "thinking", "signature", "data") if isinstance(value := block.get(key), str)]


def _said(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _tool_loop(messages: list[_Message]) -> Iterable[_Message]:
    """The assistant's messages since somebody last said something, where the conversation stands at results."""
    if messages and messages[-1].role == "user" and messages[-1].of("tool_result"):
        for message in reversed(messages):
            if message.role == "user" and not message.of("tool_result"):
                return
            if message.role == "assistant":
                yield message


def _hosted(messages: list[_Message]) -> Iterator[Violation]:
    for message in messages:
        waiting: dict[str, str] = {}
        for where, block in message.blocks:
            type_ = block.get("type")
            if type_ in _HOSTED and isinstance(block.get("id"), str):
                waiting[block["id"]] = where
            elif isinstance(type_, str) and type_.endswith(_RESULT_OF_HOSTED):
                named = block.get("tool_use_id")
                if not isinstance(named, str) or waiting.pop(named, None) is None:
                    yield Violation("A11", where, f"is a result of {shown(named)}, which does not stand before it")
        for named, where in waiting.items():
            yield Violation("A11", where, f"calls {shown(named)}, of which no result stands in this message")


def _images(messages: list[_Message], limits: images.Limits) -> Iterator[Violation]:
    found = [image for message in messages for image in _images_of(message.blocks)]
    many = len(found) > images.MANY
    for where, block in found:
        source = block.get("source")
        if not isinstance(source, dict) or source.get("type") not in _SOURCES:
            yield Violation("A12", where, "is an image without a source of a known type")
        elif source.get("type") == "base64" and (why := _unusable(source, limits, many)) is not None:
            yield Violation("A12", where, why)


def _images_of(blocks: Iterable[tuple[str, dict[str, Any]]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for where, block in blocks:
        if block.get("type") == "image":
            yield where, block
        elif block.get("type") == "tool_result" and isinstance(block.get("content"), list):
            for inner, part in numbered(block["content"], f"{where}.content"):
                if part.get("type") == "image":
                    yield inner, part


def _unusable(source: dict[str, Any], limits: images.Limits, many: bool) -> str | None:
    text = source.get("data")
    data = images.decoded(text) if isinstance(text, str) else None
    if data is None or not isinstance(text, str):
        return "is an image whose data is no base64"
    image = images.look(data)
    if isinstance(image, str):
        return f"is no image: {image}"
    if image.media_type != source.get("media_type"):
        return f"is {image.media_type} and says that it is {shown(source.get('media_type'))}"
    why = images.too_big(image, len(text), limits, many=many)
    return None if why is None else f"is an image that is too big: {why}"


def _declared(messages: list[_Message], tools: bool | None) -> Iterator[Violation]:
    if tools is False:
        for message in messages:
            for where, _ in message.of("tool_use", "tool_result"):
                yield Violation("A14", where, "is of a tool, and the request declares no tools")
                return
