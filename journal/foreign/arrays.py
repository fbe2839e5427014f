"""Arrays of messages as providers take them, read as sessions: paired by occurrence, so that an export puts them right.
No I/O of its own.

The order of an array is the order of what was said; what is out of order in it (results behind a text, a batch in two
messages, an id that is used again) is put where it belongs by whoever makes events of the records.
"""

from collections.abc import Iterator
from hashlib import sha256
from typing import Any, Final

import attrs

from .. import images
from ..events import Blocks, JsonObject
from ..shapes import MAX_ID
from ..source import Source
from .findings import Report
from .lines import parse
from .records import Begin, End, Kept, Note, Place, Prompt, Record, Response, Result, Said
from .values import compact, mapping, said, sequence, text

ANTHROPIC, CHAT, RESPONSES = "anthropic", "openai-chat", "openai-responses"
FORMATS: Final = (ANTHROPIC, CHAT, RESPONSES)
#: Bytes of an array that is read: it is held as a whole.
MOST: Final = 16 << 20
_ITEMS: Final = frozenset(
    {
        "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "reasoning",
        "local_shell_call", "local_shell_call_output", "web_search_call", "item_reference",
    }
)  # fmt: skip
_CALLS: Final = {"function_call": "arguments", "custom_tool_call": "input", "local_shell_call": "action"}
_OUTPUTS: Final = frozenset({"function_call_output", "custom_tool_call_output", "local_shell_call_output"})
_BLOCKS: Final = frozenset({"tool_use", "tool_result", "thinking", "redacted_thinking"})
_PARTS: Final = frozenset({"input_text", "output_text", "input_image", "input_file"})
_TEXTS: Final = frozenset({"text", "input_text", "output_text", "refusal", "summary_text", "reasoning_text"})
#: Where servers of chat completions put what a model thought.
_THOUGHTS: Final = ("reasoning_content", "reasoning")
#: Kinds of items that are told apart, and characters of a kind.
_TYPES: Final = 100
_TYPE: Final = 80
_INSTRUCTIONS: Final = frozenset({"system", "developer"})


def format_of(source: Source) -> str | None:
    """Which provider's array a file is, if it is one as a whole."""
    if source.size > MOST:
        return None
    found = _messages(parse(source.read(0, source.size)))
    if found is None:
        return None
    if any(str(item.get("type")) in _ITEMS or _has(item, _PARTS) for item in found):
        return RESPONSES
    if any(item.get("role") == "tool" or "tool_calls" in item for item in found):
        return CHAT
    if any(_has(item, _BLOCKS) for item in found):
        return ANTHROPIC
    return CHAT if found and all("role" in item and "content" in item for item in found) else None


def _messages(value: Any) -> list[JsonObject] | None:
    if isinstance(value, dict):
        value = value.get("messages", value.get("input"))
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        return None
    return value if any("role" in item or str(item.get("type")) in _ITEMS for item in value) else None


def _has(item: JsonObject, types: frozenset[str]) -> bool:
    content = sequence(item.get("content"))
    return any(isinstance(block, dict) and str(block.get("type")) in types for block in content)


def read(source: Source, report: Report, name: str) -> Iterator[Record]:
    """See ``records``. Places are of the whole array, and findings name the message by its number."""
    data = source.read(0, min(source.size, MOST))
    value = parse(data)
    messages = _messages(value) or []
    report.lines += len(messages)
    reading = _Reading(report, Place(1, 0, len(data)), messages, sha256(data).hexdigest())
    yield from reading.records({} if isinstance(value, list) else value)


@attrs.define(eq=False)
class _Answer:
    """What the assistant says in a row."""

    content: Blocks = attrs.Factory(list)
    calls: list[str] = attrs.Factory(list)


class _Reading:
    def __init__(self, report: Report, place: Place, messages: list[JsonObject], digest: str) -> None:
        self._report = report
        self._base: dict[str, Any] = {"place": place}
        self._messages = messages
        self._digest = digest
        self._open: list[str] = []
        self._turns = 0
        self._answered = False

    def records(self, request: JsonObject) -> Iterator[Record]:
        """``request``: the whole object that the array is part of, if it is."""
        yield Begin(**self._base, session_id=f"array-{self._digest[:16]}")
        rest = {key: value for key, value in request.items() if value is not self._messages}
        if rest:
            yield self._kept("request", rest)
        for number, item in enumerate(self._messages):
            yield from self._item(number, item)
        if self._answered and not self._open:
            yield End(**self._base, kind="completed")

    def _item(self, number: int, item: JsonObject) -> Iterator[Record]:
        type_, role = str(item.get("type")), item.get("role")
        if type_ in _CALLS or type_ == "reasoning" or role == "assistant":
            yield from self._assistant(number, item)
        elif type_ in _OUTPUTS:
            yield self._result(number, item.get("call_id"), item.get("output"))
        elif role in ("tool", "function"):
            yield self._result(number, item.get("tool_call_id", item.get("name")), item.get("content"))
        elif role == "user":
            yield from self._user(number, item)
        elif isinstance(role, str) and role in _INSTRUCTIONS:
            yield Note(**self._base, kind=role, text=_plain(self._content(item.get("content"), number)))
        else:
            name = type_ if isinstance(item.get("type"), str) else f"message/{compact(role)}"
            if type_.endswith("_call"):
                self._find("hosted_tool", number, f"is of a tool that the provider ran ({_short(type_)})")
            else:
                self._find("unknown_lines", number, f"is of a kind that is not known ({_short(name)}); it is kept")
            yield self._kept(name, item)

    def _kept(self, name: str, value: JsonObject) -> Kept:
        kept, name = self._report.kept, _short(name)
        if name not in kept and len(kept) >= _TYPES:
            name = "…"
        kept[name] = kept.get(name, 0) + 1
        return Kept(**self._base, type=name, value=value)

    def _find(self, code: str, number: int, what: str) -> None:
        self._report.add(code, f"message {number} {what}")

    # ------------------------------------------------------------ the user's side

    def _user(self, number: int, item: JsonObject) -> Iterator[Record]:
        blocks = [{"type": "text", "text": given} if isinstance(given, str) else given for given in _parts(item)]
        results = [block for block in blocks if isinstance(block, dict) and block.get("type") == "tool_result"]
        for block in results:
            state: Any = "error" if block.get("is_error") is True else "ok"
            yield self._result(number, block.get("tool_use_id"), block.get("content"), state)
        content = self._content([block for block in blocks if block not in results], number)
        if not content:
            return
        # With results of a batch, or amid them, it is no message of its own.
        if results or (self._open and self._result_follows(number)):
            yield Said(**self._base, content=content)
        else:
            self._turns += 1
            self._open.clear()
            self._answered = False
            yield Prompt(**self._base, turn=f"message-{number}", content=content)

    def _result_follows(self, number: int) -> bool:
        """Is one of the open calls answered before the assistant says anything more?"""
        for item in self._messages[number + 1 :]:
            if item.get("role") == "assistant" or str(item.get("type")) in _CALLS:
                return False
            named = [item.get("tool_call_id"), item.get("call_id")]
            named += [mapping(block).get("tool_use_id") for block in sequence(item.get("content"))]
            if any(isinstance(each, str) and each in self._open for each in named):
                return True
        return False

    def _result(self, number: int, call_id: Any, output: Any, state: Any = "ok") -> Result:
        named, self._answered = _id(call_id), False
        if named in self._open:
            self._open.remove(named)
        return Result(**self._base, call_id=named, content=self._content(output, number), state=state)

    # ------------------------------------------------------------ the assistant's

    def _assistant(self, number: int, item: JsonObject) -> Iterator[Record]:
        """Items in a row are one answer: it is given with the last of them."""
        if number and _is_said(self._messages[number - 1]) and self._are_items(number):
            return
        answer = _Answer()
        at = number
        while at < len(self._messages) and _is_said(self._messages[at]) and (at == number or self._are_items(at)):
            self._add(answer, at, self._messages[at])
            at += 1
        self._open += answer.calls
        self._answered = True
        yield Response(**self._base, content=answer.content)

    def _are_items(self, number: int) -> bool:
        """Does the item belong to the one before? Messages of other arrays are answers by themselves."""
        pair = self._messages[number - 1 : number + 1]
        return any(str(item.get("type")) in _CALLS or item.get("type") == "reasoning" for item in pair)

    def _add(self, answer: _Answer, at: int, item: JsonObject) -> None:
        type_ = str(item.get("type"))
        if type_ == "reasoning":
            parts = [*_listed(item.get("summary")), *_listed(item.get("content"))]
            told = _plain(self._content(parts, at))
            kept = {"encrypted": item["encrypted_content"]} if text(item.get("encrypted_content")) else {}
            answer.content.append({"kind": "thinking", "text": told, **kept})
            return
        if type_ in _CALLS:
            self._call(answer, item.get("call_id"), item.get("name", type_), item.get(_CALLS[type_], "{}"))
            return
        thought = next(filter(None, (text(item.get(key)) for key in _THOUGHTS)), None)
        if thought is not None:
            answer.content.append({"kind": "thinking", "text": thought})
        for block in _parts(item):
            if isinstance(block, str):
                answer.content += said(block)
            elif isinstance(block, dict) and block.get("type") == "tool_use":
                self._call(answer, block.get("id"), block.get("name"), block.get("input", {}))
            else:
                answer.content += self._block(block, at)
        if (refused := text(item.get("refusal"))) is not None:
            answer.content += said(refused)
        for call in map(mapping, _listed(item.get("tool_calls"))):
            function = mapping(call.get("function")) or mapping(call.get("custom"))
            arguments = function.get("arguments", function.get("input"))
            if text(function.get("name")) is None or arguments is None:
                self._find("misfit", at, "has a call without its name or its arguments")
            self._call(answer, call.get("id"), function.get("name"), "{}" if arguments is None else arguments)
        if (old := mapping(item.get("function_call"))) and text(old.get("name")) is not None:
            # Before calls had ids, a result was given by the name of its function.
            self._call(answer, old["name"], old["name"], old.get("arguments", "{}"))

    def _call(self, answer: _Answer, call_id: Any, name: Any, arguments: Any) -> None:
        named = _id(call_id)
        block = {
            "kind": "tool_call",
            "call_id": named,
            "name": text(name) or "unknown",
            "arguments": compact(arguments),
        }
        answer.content.append(block)
        answer.calls.append(named)

    # ------------------------------------------------------------ content

    def _content(self, given: Any, number: int) -> Blocks:
        if isinstance(given, str):
            return said(given) if given else []
        return [each for block in _listed(given) for each in self._block(block, number)]

    def _block(self, block: Any, number: int) -> Blocks:
        if not isinstance(block, dict):
            return said(compact(block))
        type_ = str(block.get("type"))
        if type_ in _TEXTS:
            told = block.get("text", block.get("refusal"))
            return said(compact(told)) if told else []
        if type_ == "thinking":
            signed = {"signature": block["signature"]} if text(block.get("signature")) else {}
            return [{"kind": "thinking", "text": compact(block.get("thinking", "")), **signed}]
        if type_ == "redacted_thinking":
            return [{"kind": "redacted_thinking", "data": compact(block.get("data", ""))}]
        if type_ in ("image", "image_url", "input_image"):
            return self._image(block, number)
        if type_ == "server_tool_use":
            self._find("hosted_tool", number, "has a call of a tool that the provider ran")
        return said(compact(block))

    def _image(self, block: JsonObject, number: int) -> Blocks:
        origin = mapping(block.get("source"))
        url = block.get("image_url")
        url = url if isinstance(url, str) else mapping(url).get("url")
        media_type, data = text(origin.get("media_type")), text(origin.get("data"))
        if isinstance(url, str) and url.startswith("data:") and "," in url:
            head, _, data = url.partition(",")
            media_type = head.removeprefix("data:").partition(";")[0]
        if not data:
            self._find("image_elsewhere", number, "has an image that is not in this file")
            return said(f"[image: {text(url) or text(origin.get('url')) or 'its bytes are not here'}]")
        if (why := images.unusable(data)) is not None:
            self._find("image_unusable", number, f"has an image that no provider takes: {why}")
        return [{"kind": "image", "media_type": media_type or "application/octet-stream", "data": data}]


def _is_said(item: JsonObject) -> bool:
    return item.get("role") == "assistant" or str(item.get("type")) in _CALLS or item.get("type") == "reasoning"


def _parts(item: JsonObject) -> list[Any]:
    content = item.get("content")
    return [] if content == "" else _listed(content)


def _listed(value: Any) -> list[Any]:
    """What is no list is the one thing in it."""
    return value if isinstance(value, list) else [] if value is None else [value]


def _short(name: str) -> str:
    return name[:_TYPE]


def _plain(content: Blocks) -> str:
    return "\n".join(block["text"] for block in content if block["kind"] == "text")


def _id(value: Any) -> str:
    given = value if isinstance(value, str) else compact(value)
    return (
        given if len(given) <= MAX_ID else f"{given[:64]}…{sha256(given.encode('utf-8', 'replace')).hexdigest()[:16]}"
    )
