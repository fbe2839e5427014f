"""Tokens: the sums of the five counts of every assistant message. No I/O."""

from typing import Final

import attrs

from ..events import Event
from .problem import Handlers, Problem

COUNTS: Final = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")


@attrs.define(slots=True)
class Usage:
    """Sums over a session's own messages (a fork's prefix does not count)."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0


def _header(usage: Usage, event: Event) -> Problem | None:
    for key in COUNTS:
        setattr(usage, key, 0)
    return None


def _message(usage: Usage, event: Event) -> Problem | None:
    used = event.data.get("usage")
    if used.__class__ is dict:
        for key in COUNTS:
            count = used.get(key)
            if count.__class__ is int:
                setattr(usage, key, getattr(usage, key) + count)
    return None


HANDLERS: Final[Handlers] = {"session/header": _header, "assistant/message": _message}


def row(usage: Usage) -> dict[str, int]:
    """The five sums."""
    return {key: getattr(usage, key) for key in COUNTS}
