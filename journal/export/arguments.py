"""Arguments of calls, names and ids as providers take them, whatever a model or another program wrote. No I/O."""

import json
import math
import re
from typing import Any, Final

from ..events import JsonObject

#: Arguments that nest deeper are kept as the text that they are.
_DEPTH: Final = 100
_NAME_LENGTH: Final = 64
_UNFIT: Final = re.compile(r"[^a-zA-Z0-9_-]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def clean(text: str) -> str:
    """The text without halves of characters, which no provider takes."""
    if _SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def as_object(arguments: str) -> JsonObject:
    """The object that the arguments are; ``{"_raw": arguments}`` where they are none."""
    if not arguments.strip():
        return {}
    try:
        value = _cleaned(json.loads(arguments, parse_constant=_refuse), _DEPTH)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"_raw": clean(arguments)}


def as_json(arguments: str) -> str:
    """The arguments as they are, if they are a JSON object; else the text of one that holds them."""
    value = as_object(arguments)
    as_given = arguments.strip() and "_raw" not in value and "\\ud" not in arguments.lower()
    return clean(arguments) if as_given else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _cleaned(value: Any, depth: int) -> Any:
    """The value with whole characters only. Raises ValueError for what is too deep, or a number of no end."""
    if depth == 0:
        raise ValueError("too deep")
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number that JSON has not")
    if isinstance(value, list):
        return [_cleaned(inner, depth - 1) for inner in value]
    if isinstance(value, dict):
        return {clean(key): _cleaned(inner, depth - 1) for key, inner in value.items()}
    return value


def fitting_name(name: str) -> str:
    """The name of a tool in the characters that providers take."""
    return _UNFIT.sub("_", name)[:_NAME_LENGTH] or "_"


class Ids:
    """Gives each call an id of its own, of at most ``length`` characters.

    One that is unique and fits stays, of ``call_1|fc_1`` the part before the bar. What a call gets depends on the calls
    before it alone: a conversation that has grown keeps the ids that it was sent with.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}

    def give(self, call_id: str) -> str:
        base = _UNFIT.sub("_", call_id.partition("|")[0])[: self._length] or "call"
        given, number = base, self._next.get(base, 2)
        while given in self._taken:
            end = f"_{number}"
            given, number = base[: self._length - len(end)] + end, number + 1
        self._next[base] = number
        self._taken.add(given)
        return given
