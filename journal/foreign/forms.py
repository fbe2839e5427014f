"""What a line must hold to be read as what it says it is, as tables of checks by path. No I/O."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from .values import count, mapping, text

Check = Callable[[Any], bool]
#: By the path of a value, its keys with points between them.
Form = Mapping[str, Check]


def lacking(value: Any, form: Form) -> str | None:
    """The first path at which a value is not what it must be."""
    for path, is_right in form.items():
        inner = value
        for key in path.split("."):
            inner = mapping(inner).get(key)
        if not is_right(inner):
            return path
    return None


def is_text(value: Any) -> bool:
    return text(value) is not None


def is_string(value: Any) -> bool:
    return isinstance(value, str)


def is_there(value: Any) -> bool:
    return value is not None


def is_content(value: Any) -> bool:
    """A text, or blocks."""
    return isinstance(value, str | list)


def is_list(value: Any) -> bool:
    return isinstance(value, list)


def is_object(value: Any) -> bool:
    return isinstance(value, dict)


def if_there(check: Check) -> Check:
    """The value may be missing."""
    return lambda value: value is None or check(value)


def is_counts(keys: tuple[str, ...]) -> Check:
    """An object in which each of these is a count, or missing."""
    return lambda value: isinstance(value, dict) and all(count(value.get(key, 0)) is not None for key in keys)


#: Of what a header says.
IF_TEXT: Final = if_there(is_string)

__all__ = [
    "IF_TEXT", "Check", "Form", "if_there", "is_content", "is_counts", "is_list", "is_object", "is_string", "is_text",
    "is_there", "lacking",
]  # fmt: skip
