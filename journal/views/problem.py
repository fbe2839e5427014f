"""What a view says about an event that breaks a relation, and small readers for values that may be anything. No I/O."""

from collections.abc import Callable
from typing import Any

from ..events import Event

#: A finding's code and its sentence.
Problem = tuple[str, str]
#: Event type → fold of one event into the view's state; gives what is wrong with it. Never raises for an event that
#: was read: required keys have their JSON kind, everything else may be anything.
Handlers = dict[str, Callable[[Any, Event], Problem | None]]
#: Event type → what is wrong with such data after this state, or None.
Rules = dict[str, Callable[[Any, Any], Problem | None]]
#: Event type → why such data may not be written after this state, or None.
Refusals = dict[str, Callable[[Any, Any], str | None]]


def text_of(value: Any) -> str | None:
    """``value`` if it is text that is not empty, else None."""
    return value if value.__class__ is str and value else None


def whole(value: Any) -> int | None:
    """``value`` if it is an integer (booleans are none), else None."""
    return value if value.__class__ is int else None


def mapping(value: Any) -> dict[str, Any]:
    """``value`` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def sequence(value: Any) -> list[Any]:
    """``value`` if it is a list, else an empty one."""
    return value if isinstance(value, list) else []
