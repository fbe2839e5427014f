"""Values that a program gives, looked at where it gives them: attrs validators that say what is wanted. No I/O."""

from collections.abc import Callable
from typing import Any, Final

import attrs

#: Characters of a value in a sentence.
_SHOWN: Final = 80

Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]


def wanted(fits: Callable[[Any], bool], words: str) -> Validator:
    """Raises TypeError for a value that does not fit; the sentence names the class, the field and ``words``."""

    def check(instance: Any, field: "attrs.Attribute[Any]", value: Any) -> None:
        if not fits(value):
            raise TypeError(f"`{field.name}` of {type(instance).__name__} must be {words}, not {shortly(value)}")

    return check


def shortly(value: object) -> str:
    """A value in a sentence: itself if it is a simple one, else what it is."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    simple = value is None or isinstance(value, str | int | float)
    return repr(value)[:_SHOWN] if simple else f"an object of type {type(value).__name__}"


def a(kind: type, words: str) -> Validator:
    return wanted(lambda value: isinstance(value, kind), words)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_seconds(value: Any) -> bool:
    return _number(value) and value >= 0


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


seconds = wanted(is_seconds, "a number of seconds, 0 or more")
count = wanted(lambda value: _whole(value) and value >= 1, "a whole number, 1 or more")
size = wanted(lambda value: _whole(value) and value >= 0, "a whole number, 0 or more")
limit = wanted(lambda value: value is None or (_whole(value) and value >= 0), "a whole number, 0 or more, or None")
text_or_none = wanted(lambda value: value is None or isinstance(value, str), "a text or None")
