"""Items as the Responses interface takes them, against the rules R0 to R9. No I/O."""

from collections.abc import Collection, Iterator
from typing import Any, Final

from .rules import Violation, numbered, shown

#: Type of a call → the types of its output.
_OUTPUTS: Final = {
    "function_call": ("function_call_output",),
    "custom_tool_call": ("custom_tool_call_output",),
    "local_shell_call": ("local_shell_call_output", "function_call_output"),
    "shell_call": ("shell_call_output",),
    "apply_patch_call": ("apply_patch_call_output",),
    "computer_call": ("computer_call_output",),
}
#: Outputs that are a text, or parts of a message of the user.
_OF_TEXT: Final = ("function_call_output", "custom_tool_call_output")
_ANSWERS: Final = frozenset(output for outputs in _OUTPUTS.values() for output in outputs)
_PREFIX: Final = {
    "message": "msg_",
    "reasoning": "rs_",
    "function_call": "fc_",
    "custom_tool_call": "ctc_",
    "local_shell_call": "lsh_",
    "web_search_call": "ws_",
}
_TEXTS: Final = ("input_text", "output_text")
_INPUT: Final = ("input_text", "input_image", "input_file")
_PARTS: Final = {
    "user": _INPUT,
    "developer": _INPUT,
    "system": _INPUT,
    "assistant": ("output_text", "refusal"),
}
_SEARCHES: Final = ("search", "open_page", "find_in_page")
_ID_LENGTH: Final = 64


def openai_responses(
    items: object,
    *,
    store: bool = False,
    known: Collection[str] | None = None,
) -> list[Violation]:
    """What is wrong with a list of items, or with a request ``{"input", "store"?, "previous_response_id"?}``.

    Never raises. What items alone do not show is told by options: ``store`` (R5), whether the server keeps what it is
    sent; ``known`` (R2, R9), the ids and call ids of what it has of the previous response. Whether encrypted reasoning
    is of the account, provider and model that will read it (R5), and whether a message had reasoning before it that is
    not in the input (R4), no array shows.
    """
    whole = items if isinstance(items, dict) else {}
    given = whole.get("input") if isinstance(items, dict) else items
    if isinstance(given, str):
        return []
    if not isinstance(given, list):
        return [Violation("R0", "input", f"is a list of items, not {type(given).__name__}")]
    goes_on = whole.get("previous_response_id") is not None and known is None
    placed = list(numbered(given, "input"))
    return [
        *_shapes(given),
        *_pairs(placed, frozenset(known or ()), goes_on),
        *_ids(placed),
        *_reasoning(given, store or whole.get("store") is True),
        *_contents(placed),
        *_searches(placed),
        *_known(placed, frozenset(known or ())),
    ]


def _type(item: object) -> str:
    """A message may leave its type out."""
    if not isinstance(item, dict):
        return ""
    type_ = item.get("type", "message" if "role" in item else None)
    return type_ if isinstance(type_, str) else ""


def _shapes(given: list[Any]) -> Iterator[Violation]:
    for number, item in enumerate(given):
        where, type_ = f"input.{number}", _type(item)
        if not type_:
            yield Violation("R0", where, "is no object with a type or a role")
        elif type_ == "message" and not _is_one_of(item.get("role"), _PARTS):
            yield Violation("R0", where, f"is a message of the role {shown(item.get('role'))}")
        elif type_ == "message" and not isinstance(item.get("content"), str | list):
            yield Violation("R0", where, "is a message without content")
        elif type_ == "function_call" and not isinstance(item.get("arguments"), str):
            yield Violation("R0", where, "has arguments that are no text")
        elif type_ == "custom_tool_call" and not isinstance(item.get("input"), str):
            yield Violation("R0", where, "has an input that is no text")
        elif type_ in ("function_call", "custom_tool_call") and (
            not isinstance(item.get("name"), str) or not item["name"]
        ):
            yield Violation("R0", where, "is a call without a name")
        elif type_ in _ANSWERS:
            yield from _output(where, type_, item.get("output"))


def _output(where: str, type_: str, output: object) -> Iterator[Violation]:
    if type_ not in _OF_TEXT:
        if not isinstance(output, str | list | dict):
            yield Violation("R0", where, "is a result without output")
    elif isinstance(output, list):
        for place, part in enumerate(output):
            if not isinstance(part, dict) or not _is_one_of(part.get("type"), _INPUT):
                yield Violation("R0", f"{where}.output.{place}", "is no part of a type that outputs have")
    elif not isinstance(output, str):
        yield Violation("R0", where, "is a result whose output is neither text nor a list of parts")


def _is_one_of(value: object, of: Collection[str]) -> bool:
    return isinstance(value, str) and value in of


def _pairs(placed: list[tuple[str, dict[str, Any]]], known: frozenset[str], goes_on: bool) -> Iterator[Violation]:
    #: By call id: where it is called, the type, and whether it has its output.
    calls: dict[str, tuple[str, str]] = {}
    answered: set[str] = set()
    all_called = {item["call_id"] for _, item in placed if _type(item) in _OUTPUTS and _named(item)}
    for where, item in placed:
        type_ = _type(item)
        if type_ not in _OUTPUTS and type_ not in _ANSWERS:
            continue
        named = item.get("call_id")
        if not isinstance(named, str) or not 0 < len(named) <= _ID_LENGTH:
            yield Violation("R1", where, f"has the call_id {shown(named)}, which is not 1 to {_ID_LENGTH} characters")
        elif type_ in _OUTPUTS:
            if named in calls:
                yield Violation("R1", where, f"is a second call of the call_id {shown(named)}")
            else:
                calls[named] = where, type_
        elif named in answered:
            yield Violation("R1", where, f"is a second output of the call_id {shown(named)}")
        elif named in calls:
            answered.add(named)
            if type_ not in _OUTPUTS[calls[named][1]]:
                yield Violation("R1", where, f"is {type_}, and {shown(named)} is {calls[named][1]}")
        elif named in all_called:
            yield Violation("R1", where, f"is the output of {shown(named)}, which is called only behind it")
        elif named not in known and not goes_on:
            yield Violation("R2", where, f"is the output of {shown(named)}, which nothing calls")
    for named, (where, _) in calls.items():
        if named not in answered:
            yield Violation("R1", where, f"calls {shown(named)}, of which no output stands behind it")


def _named(item: dict[str, Any]) -> bool:
    return isinstance(item.get("call_id"), str)


def _ids(placed: list[tuple[str, dict[str, Any]]]) -> Iterator[Violation]:
    seen: set[str] = set()
    for where, item in placed:
        named, prefix = item.get("id"), _PREFIX.get(_type(item), "")
        if named is None:
            continue
        if not isinstance(named, str) or not named.startswith(prefix) or not named:
            yield Violation("R3", where, f"has the id {shown(named)}, which does not begin with {prefix!r}")
            continue
        if named in seen:
            yield Violation("R3", where, f"has the id {shown(named)}, which another item has")
        if named == item.get("call_id"):
            yield Violation("R3", where, f"has {shown(named)} as its id and as its call_id")
        seen.add(named)


def _reasoning(given: list[Any], store: bool) -> Iterator[Violation]:
    for number, item in enumerate(given):
        if _type(item) != "reasoning":
            continue
        where = f"input.{number}"
        if not _is_made(given[number + 1] if number + 1 < len(given) else None):
            yield Violation("R4", where, "is reasoning, and what came of it does not stand directly behind it")
        sealed = item.get("encrypted_content")
        if not store and (not isinstance(sealed, str) or not sealed):
            yield Violation("R5", where, "is reasoning without its encrypted content, and nothing is stored")
        if item.get("content"):
            yield Violation("R6", where, "is reasoning with content")
        if not isinstance(item.get("summary"), list):
            yield Violation("R6", where, "is reasoning without a list of summaries")


def _is_made(item: object) -> bool:
    """Is it something that a model gives out?"""
    type_ = _type(item)
    if type_ == "message" and isinstance(item, dict):
        return item.get("role") == "assistant"
    return type_ in ("reasoning", "mcp_approval_request") or type_.endswith("_call")


def _contents(placed: list[tuple[str, dict[str, Any]]]) -> Iterator[Violation]:
    for where, item in placed:
        role, content = item.get("role"), item.get("content")
        if _type(item) == "message" and isinstance(role, str) and role in _PARTS and isinstance(content, list):
            for place, part in enumerate(content):
                type_ = part.get("type") if isinstance(part, dict) else None
                if not _is_one_of(type_, _PARTS[role]):
                    yield Violation("R7", f"{where}.content.{place}", f"is {shown(type_)} in a message of the {role}")
                elif _is_one_of(type_, _TEXTS) and not isinstance(part.get("text"), str):
                    yield Violation("R7", f"{where}.content.{place}", "is a text that holds none")


def _searches(placed: list[tuple[str, dict[str, Any]]]) -> Iterator[Violation]:
    for where, item in placed:
        if _type(item) == "web_search_call":
            action = item.get("action")
            type_ = action.get("type") if isinstance(action, dict) else None
            if not _is_one_of(type_, _SEARCHES):
                yield Violation("R8", where, f"is a web search whose action is {shown(type_)}")


def _known(placed: list[tuple[str, dict[str, Any]]], known: frozenset[str]) -> Iterator[Violation]:
    for where, item in placed:
        if _is_one_of(item.get("id"), known) or (_type(item) in _OUTPUTS and _is_one_of(item.get("call_id"), known)):
            yield Violation("R9", where, "is sent again, and the server has it of the previous response")
