"""Values of any JSON kind, taken as what is expected, or not at all. No I/O."""

from datetime import UTC, datetime
from typing import Any

import orjson

from ..codec import INT_MAX, INT_MIN
from ..events import Blocks, JsonObject

_FAR = 253402300799999  # the end of the year 9999


def text(value: Any) -> str | None:
    """A text that is not empty."""
    return value if isinstance(value, str) and value else None


def count(value: Any) -> int | None:
    """A whole number from 0 on."""
    return value if value.__class__ is int and 0 <= value <= INT_MAX else None


def mapping(value: Any) -> JsonObject:
    return value if isinstance(value, dict) else {}


def sequence(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def millis(value: Any) -> int | None:
    """A time as Unix ms: of an ISO text, or of a number of ms."""
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        try:
            return _sane(round(moment.timestamp() * 1000))
        except (OverflowError, ValueError):
            return None
    if value.__class__ in (int, float) and value == value:
        return _sane(int(value)) if abs(value) <= _FAR else None
    return None


def _sane(value: int) -> int | None:
    return value if 0 <= value <= _FAR else None


def said(value: str) -> Blocks:
    """A text as content."""
    return [{"kind": "text", "text": value}]


def compact(value: Any) -> str:
    """Any JSON value as text; a text stays what it is."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def storable(value: Any) -> Any:
    """Any JSON value as a journal can hold it: integers beyond 64 bits are floats, as the largest are when read."""
    try:
        orjson.dumps(value, option=orjson.OPT_STRICT_INTEGER)
    except TypeError:
        return _bounded(value)
    return value


def _bounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _bounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_bounded(inner) for inner in value]
    return float(value) if value.__class__ is int and not INT_MIN <= value <= INT_MAX else value


def usage(**counts: Any) -> JsonObject | None:
    """The five counts of the format, as far as they are counts; None where there is none."""
    out = {key: number for key, value in counts.items() if (number := count(value)) is not None}
    if not out:
        return None
    return {"input_tokens": out.pop("input_tokens", 0), "output_tokens": out.pop("output_tokens", 0), **out}
