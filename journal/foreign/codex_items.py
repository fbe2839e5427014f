"""What a line of a Codex rollout is, and what its items hold, as blocks of a journal. No I/O."""

import re
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any, Final

from .. import images
from ..events import Blocks, JsonObject
from ..shapes import MAX_ID
from .findings import Report
from .records import Place
from .values import compact, mapping, said, sequence, text

#: What a model is asked to run, and what came of it.
CALLS: Final = frozenset({"function_call", "custom_tool_call", "local_shell_call", "tool_search_call"})
OUTPUTS: Final = frozenset({"function_call_output", "custom_tool_call_output", "tool_search_output"})
#: Which of them belong together.
FAMILIES: Final = {
    "function_call": "function",
    "local_shell_call": "function",
    "function_call_output": "function",
    "custom_tool_call": "custom",
    "custom_tool_call_output": "custom",
    "tool_search_call": "search",
    "tool_search_output": "search",
}
#: What a provider runs itself.
HOSTED: Final = frozenset(
    {
        "web_search_call", "image_generation_call", "file_search_call", "code_interpreter_call", "computer_call",
        "mcp_call", "mcp_list_tools", "mcp_approval_request",
    }
)  # fmt: skip
#: Summaries that a provider made, and nobody else can read.
_SEALED: Final = ("compaction", "compaction_summary", "context_compaction")
#: Events that are named twice, by the name that counts.
_EVENTS: Final = {"turn_started": "task_started", "turn_complete": "task_complete"}
#: What items and events must have, and what in them is a text, if it is there.
_NEEDED: Final = {
    "function_call": ("name", "arguments"),
    "custom_tool_call": ("name", "input"),
    "local_shell_call": ("action",),
    "function_call_output": ("output",),
    "custom_tool_call_output": ("output",),
    "tool_search_output": ("tools",),
    "message": ("content",),
    "user_message": ("message",),
    "agent_message": ("message",),
    "agent_reasoning": ("text",),
    "agent_reasoning_raw_content": ("text",),
}
_TEXTS: Final = ("name", "namespace", "encrypted_content")
#: What the tool puts into a user's message by itself.
_WRAPPED: Final = re.compile(r"\s*<([A-Za-z][A-Za-z _]*)>.*</\1>\s*", re.DOTALL)
_WRAPPERS: Final = re.compile(
    r"\w*(context|instructions|notification|aborted|snapshot)|permissions instructions|collaboration_mode|model_switch"
    r"|personality_spec|skills?|user_shell_command|INSTRUCTIONS"
)
_AGENTS: Final = "# AGENTS.md instructions"
_ABORTED: Final = "<turn_aborted>"
_DATA: Final = re.compile(r"data:([^;,]*)(?:;[^;,]*)*;base64,", re.IGNORECASE)


def opened(value: JsonObject) -> tuple[str, JsonObject]:
    """The type of a line and what it holds. Lines without an envelope are items themselves; ``legacy_meta`` and
    ``state`` are the others of that generation. The empty type: it is none of these.
    """
    type_ = value.get("type")
    if isinstance(type_, str) and isinstance(value.get("payload"), dict):
        return type_, value["payload"]
    if "payload" in value:
        return "", value
    if isinstance(type_, str):
        return "response_item", value
    if "record_type" in value:
        return "state", value
    return ("legacy_meta" if {"id", "timestamp"} <= value.keys() else ""), value


def kind_of(payload: JsonObject) -> str:
    """The type of an item or of an event."""
    type_ = payload.get("type")
    return _EVENTS.get(type_, type_) if isinstance(type_, str) else ""


def role_of(payload: JsonObject) -> str:
    return payload["role"] if kind_of(payload) == "message" and isinstance(payload.get("role"), str) else ""


def user_item(payload: JsonObject) -> JsonObject | None:
    """What a person said, as newer builds have it: an item that is whole."""
    item = mapping(payload.get("item"))
    return item if kind_of(payload) == "item_completed" and item.get("type") == "UserMessage" else None


def unfit(payload: JsonObject) -> str | None:
    """Why not all of it can be read, if that is so."""
    kind = kind_of(payload)
    key = next((key for key in _NEEDED.get(kind, ()) if key not in payload), None)
    if key is not None:
        return f"a {kind} lacks its {key}"
    key = next((key for key in _TEXTS if not isinstance(payload.get(key), str | None)), None)
    return None if key is None else f"the {key} of a {kind} is no text"


def told(payload: JsonObject) -> str:
    """The texts of a message."""
    parts = payload.get("content")
    if isinstance(parts, str):
        return parts
    texts = (part.get("text") for part in sequence(parts) if isinstance(part, dict))
    return "\n".join(each for each in texts if isinstance(each, str))


def thoughts(payload: JsonObject) -> Iterator[tuple[str, str]]:
    """What reasoning holds, part by part: the event that tells of such a part, and its text."""
    for event, key in (("agent_reasoning", "summary"), ("agent_reasoning_raw_content", "content")):
        for part in sequence(payload.get(key)):
            yield event, _text_of(part)


def shows_image(payload: JsonObject) -> bool:
    return any(text(mapping(part).get("image_url")) for part in sequence(payload.get("content")))


def put_in(payload: JsonObject) -> bool:
    """Has the tool put this into the user's mouth?"""
    spoken = told(payload)
    if spoken.lstrip().startswith(_AGENTS):
        return True
    found = _WRAPPED.fullmatch(spoken)
    return found is not None and _WRAPPERS.fullmatch(found[1]) is not None


def tells_of_abort(payload: JsonObject) -> bool:
    return told(payload).lstrip().startswith(_ABORTED)


def call_id_of(payload: JsonObject) -> str:
    given = payload.get("call_id")
    if given is None or given == "":
        given = payload.get("id")
    return short(given if isinstance(given, str) else compact(given))


def short(value: str) -> str:
    return value if len(value) <= MAX_ID else f"{value[:64]}…{key_of(value):016x}"


def replacement(payload: JsonObject, words: Sequence[str]) -> str:
    """What a model is given in place of what was compacted: the list that the line has, or where it has none what a
    person said, ``words``, and the summary. Empty where it cannot be read.
    """
    summary, history = text(payload.get("message")), payload.get("replacement_history")
    if summary is None and (is_sealed(payload) or not history):
        return ""
    if isinstance(history, list):
        items = [mapping(each) for each in history]
        spoken = [
            f"{role_of(each)}: {told(each)}"
            for each in items
            if role_of(each) in ("user", "assistant") and told(each) and not put_in(each)
        ]
    else:
        spoken = [f"user: {each}" for each in words]
    if summary is not None and not any(summary in each for each in spoken):
        spoken.append(summary)
    return "\n\n".join(spoken)


def is_sealed(payload: JsonObject) -> bool:
    """Does a compaction have a summary that only its provider can read?"""
    history = sequence(payload.get("replacement_history"))
    return text(payload.get("message")) is None and any(kind_of(mapping(each)) in _SEALED for each in history)


def message_id(value: Any) -> str | None:
    """An id that a journal can have."""
    return value if isinstance(value, str) and 0 < len(value) <= MAX_ID else None


def key_of(value: str) -> int:
    """Of a long file's many ids only so much is kept."""
    return int.from_bytes(sha256(value.encode("utf-8", "replace")).digest()[:8], "big")


def call(payload: JsonObject) -> JsonObject:
    """A call as a block. What a tool of free input was given is its ``arguments`` as it stands."""
    kind = kind_of(payload)
    given = payload.get({"custom_tool_call": "input", "local_shell_call": "action"}.get(kind, "arguments"))
    name = {"local_shell_call": "local_shell", "tool_search_call": "tool_search"}.get(kind)
    block: JsonObject = {
        "kind": "tool_call",
        "call_id": call_id_of(payload),
        "name": name or text(payload.get("name")) or "unknown",
        "arguments": "{}" if given is None else compact(given),
    }
    if (namespace := text(payload.get("namespace"))) is not None:
        block["namespace"] = namespace
    return block


def thinking(payload: JsonObject) -> Blocks:
    """Reasoning as text, its summary before what was thought itself. What is sealed stays sealed."""
    block: JsonObject = {"kind": "thinking", "text": "\n\n".join(thought for _, thought in thoughts(payload))}
    if (sealed := text(payload.get("encrypted_content"))) is not None:
        block["encrypted_content"] = sealed
    return [block]


def _text_of(part: Any) -> str:
    spoken = mapping(part).get("text")
    return spoken if isinstance(spoken, str) else compact(part)


class Content:
    """Contents as blocks; what is wrong with an image is a finding at the place of its line."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def of(self, given: Any, place: Place) -> Blocks:
        """A text, a part, or a list of parts, as blocks."""
        if isinstance(given, list):
            return [block for part in given for block in self._part(part, place)]
        return self._part(given, place) if given is not None else []

    def _part(self, part: Any, place: Place) -> Blocks:
        if not isinstance(part, dict):
            return said(compact(part))
        kind = kind_of(part)
        if kind in ("input_image", "image", "local_image") or ("image_url" in part and not part.get("text")):
            return self.image(part.get("image_url", part.get("path")), place)
        if isinstance(part.get("text"), str):
            return said(part["text"])
        if kind == "refusal" and isinstance(part.get("refusal"), str):
            return said(part["refusal"])
        if kind == "" and isinstance(part.get("content"), str):
            return said(part["content"])
        return said(compact(part))

    def image(self, url: Any, place: Place) -> Blocks:
        """An image by its URL, which holds its bytes or tells where they are."""
        url = mapping(url).get("url", url)
        found = _DATA.match(url) if isinstance(url, str) else None
        if not isinstance(url, str) or found is None:
            self._tell("image_elsewhere", "the bytes of an image are not in this file", place)
            where = url if isinstance(url, str) and url else "its bytes are not here"
            return said(f"[image: {where}]")
        data = url[found.end() :]
        if (why := images.unusable(data)) is not None:
            self._tell("image_unusable", f"an image that no provider takes: {why}", place)
        return [{"kind": "image", "media_type": found[1] or "application/octet-stream", "data": data}]

    def _tell(self, code: str, message: str, place: Place) -> None:
        self._report.add(code, message, place.line, place.offset, place.length)
