"""Bytes → lines that hold JSON objects, with their places; whatever is none is a finding. No I/O of its own."""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import attrs
import orjson

from ..codec import MAX_DEPTH, depth
from ..proof import brackets
from ..source import BOM, Source, pieces
from .findings import Report
from .records import Place

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
#: A line is kept inside of an event, which nests a little deeper.
_DEEP: Final = MAX_DEPTH - 10
#: Bytes of a bad line that are shown.
_SHOWN: Final = 60


@attrs.frozen
class Line:
    """``value`` is what the line holds: an object."""

    place: Place
    value: dict[str, Any]


def objects(source: Source, report: Report) -> Iterator[Line]:
    """Every line that holds an object. The others are findings: ``bad_line``, or ``torn_tail`` for half a line at the
    end. Blank lines are nothing.
    """
    for place, data, ended in raw(source):
        report.lines += 1
        if data is None:
            report.add(
                "bad_line", f"the line has {place.length} bytes, more than is read of one", place.line, place.offset,
                place.length,
            )  # fmt: skip
            continue
        if not data.strip():
            continue
        value = parse(data)
        if isinstance(value, dict):
            yield Line(place, value)
        elif not ended and value is None:
            report.add(
                "torn_tail", "the file ends within a line: whoever wrote it was cut off", place.line, place.offset,
                place.length,
            )  # fmt: skip
        else:
            deep = value is None and brackets(data) > _DEEP
            said = f"nests deeper than {_DEEP} levels, or is no JSON" if deep else f"is no JSON object: {_begin(data)}"
            report.add("bad_line", f"the line {said}", place.line, place.offset, place.length)


def raw(source: Source) -> Iterator[tuple[Place, bytes | None, bool]]:
    """Each line with its place, and whether an LF ends it; None for one that is too long to be held."""
    number, offset = 0, 0
    for whole, rest, length in pieces(source, 0):
        if not whole:
            number += 1
            ended = rest is None
            place = Place(number, offset, length)
            data = rest if rest is not None and len(rest) == length else None
            yield place, None if data is None else _bare(data, offset), ended
            offset += length + 1
            continue
        for data in whole.split(b"\n")[:-1]:
            number += 1
            yield Place(number, offset, len(data)), _bare(data, offset), True
            offset += len(data) + 1


def at(source: Source, place: Place) -> dict[str, Any]:
    """The object of a line that was read before; empty where it is none any more."""
    value = parse(_bare(source.read(place.offset, place.length), place.offset))
    return value if isinstance(value, dict) else {}


def parse(data: bytes) -> Any:
    """The JSON value of a line, or None where it is none. Lone surrogates become U+FFFD; what nests deeper than a line
    of a journal may is no value.
    """
    try:
        value = orjson.loads(data)
    except ValueError:
        value = _lenient(data)
    if value is not None and brackets(data) > _DEEP and depth(value) > _DEEP:
        return None
    return value


def _lenient(data: bytes) -> Any:
    """What orjson refuses and other writers of JSON give: lone surrogates, NaN."""
    if b"\\u" not in data and b"NaN" not in data and b"Infinity" not in data:
        return None
    try:
        value = json.loads(data, parse_constant=lambda constant: None)
        return orjson.loads(_SURROGATE.sub("\ufffd", json.dumps(value, ensure_ascii=False)))
    except (ValueError, RecursionError):
        return None


def _bare(data: bytes, offset: int) -> bytes:
    return data.removeprefix(BOM) if offset == 0 else data


def _begin(data: bytes) -> str:
    text = data[:_SHOWN].decode("utf-8", "replace")
    return ascii(text) + ("…" if len(data) > _SHOWN else "")
