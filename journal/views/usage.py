"""Tokens: the sums of the five counts of every assistant message. No I/O."""

from typing import Final

import attrs

from ..events import Event
from .problem import Handlers, Problems

COUNTS: Final = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")


@attrs.define(slots=True)
class Usage:
    """Sums of a session's own messages (a fork's prefix does not count)."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
