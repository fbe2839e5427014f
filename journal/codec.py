"""Bytes ↔ event, and the sums that chain lines. No I/O.

A line is ``{"seq":…,"ts":…,"type":"…","data":{…}[,"ignorable":true][,"more":n],"sum":"<32 hex>"}`` and nothing else
(docs/format.md, "A line"). Decoding cuts the envelope by its fixed places and gives orjson only the object in the
middle, so that keys in another order, duplicate keys or blanks in the envelope are never accepted. Typing happens
elsewhere and later.
"""

import json
import math
import re
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final

import orjson

from . import shapes
from .errors import InvalidEvent
from .events import EVENT_TYPES, Draft, Event, is_extension, structure_of
from .proof import MAX_DEPTH as MAX_DEPTH
from .proof import MAX_LINE as MAX_LINE
from .proof import PREFIX, brackets
from .proof import SUM_BYTES as SUM_BYTES

ZERO: Final = "0" * 32
INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1

SUM: Final = re.compile(rb',"sum":"([0-9a-f]{32})"\}')
#: What stands behind ``data``.
_END: Final = re.compile(rb'\}(,"ignorable":true)?(?:,"more":([1-9][0-9]{0,8}))?,"sum":"([0-9a-f]{32})"\}\Z')
#: More than what stands behind ``data`` can be.
_END_BYTES: Final = 80
#: Nothing but what JSON has a kind for, as far as orjson can be told; the larger integers are left to ``clean``.
_STRICT: Final = (
    orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_SUBCLASS
    | orjson.OPT_STRICT_INTEGER
)
#: Values that nest nothing, and that orjson writes as they are or refuses.
_FLAT: Final = frozenset({str, int, bool, type(None)})
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
#: A type name as append takes it: ``family/name``.
_TYPE_NAME: Final = re.compile(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)+\Z")


def chain(prev: str, body: bytes) -> str:
    """The sum of a line: ``body`` is all of the line before its last 42 bytes, ``prev`` the sum of the line before."""
    hashed = sha256(prev.encode())
    hashed.update(body)
    return hashed.hexdigest()[:32]


class Lossy(dict[str, Any]):
    """The data of a line that carried text which is not Unicode; U+FFFD stands in its place."""


# ---------------------------------------------------------------- reading


def decode(line: bytes, offset: int = -1) -> Event | None:
    """The event of a line (without LF, CR and BOM), or None where it is not a valid one. The sum is not checked.

    Valid means (docs/format.md, "A line"): the canonical start and end, JSON that orjson reads, at most 200 deep, and
    the required keys of its type with the right JSON kinds. A header of another ``format`` and unknown types need no
    keys.
    """
    begins, ends = PREFIX.match(line), _END.search(line, max(0, len(line) - _END_BYTES))
    if begins is None or ends is None or len(line) > MAX_LINE:
        return None
    try:
        type_ = begins[3].decode()
    except UnicodeDecodeError:
        return None
    text = line[begins.end() : ends.start() + 1]
    try:
        data = orjson.loads(text)
    except ValueError:
        data = _lossy(text)
    if data is None or (len(text) > 2 * MAX_DEPTH and brackets(text) > MAX_DEPTH and depth(data) > MAX_DEPTH):
        return None
    seq, ts, more = int(begins[1]), int(begins[2]), int(ends[2] or 0)
    if seq > INT_MAX or not INT_MIN <= ts <= INT_MAX:
        return None
    row = EVENT_TYPES.get(type_)
    if row is not None and not row.fits(data) and not (type_ == "session/header" and _other_format(data)):
        return None
    return Event(seq, ts, type_, data, ends[3].decode(), ends[1] is not None, more, offset, len(line))


def _other_format(data: dict[str, Any]) -> bool:
    value = data.get("format")
    return type(value) is int and value != 1


def _lossy(text: bytes) -> Lossy | None:
    """What orjson refuses but ``json`` reads because of lone surrogates; they become U+FFFD. Anything else: None."""
    if rb"\ud" not in text and rb"\uD" not in text:
        return None
    try:
        value = json.loads(text, parse_constant=_refuse)
        return Lossy(orjson.loads(_SURROGATE.sub("\ufffd", json.dumps(value, ensure_ascii=False))))
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def depth(value: Any) -> int:
    """How deep lists and objects nest in ``value``; a flat object is 1. Not recursive."""
    deepest, level = 0, [value]
    while level:
        deepest += 1
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
    return deepest if isinstance(value, (dict, list)) else 0


# ---------------------------------------------------------------- writing


def encode(draft: Draft, seq: int, ts: int, prev: str, more: int = 0, data: bytes | None = None) -> tuple[bytes, str]:
    """The line (without LF) and its sum. ``data``: the draft's as JSON, from whoever has it already.

    Raises InvalidEvent where the line could not be read back as it is. The type's own rules are ``check_shape``'s; this
    holds what every line must hold.
    """
    if data is None:
        try:
            data = orjson.dumps(draft.data)
        except (TypeError, ValueError) as error:
            raise InvalidEvent(
                f"event {seq} ({draft.type}) holds a value that JSON cannot carry: {error}", type=draft.type, seq=seq
            ) from None
    body = b'{"seq":%d,"ts":%d,"type":%b,"data":%b%b%b' % (
        seq,
        ts,
        _quoted(draft.type),
        data,
        b',"ignorable":true' if draft.ignorable else b"",
        b',"more":%d' % more if more else b"",
    )
    if len(body) + SUM_BYTES > MAX_LINE:
        raise InvalidEvent(
            f"event {seq} ({draft.type}) is {len(body) + SUM_BYTES} bytes and a line holds at most {MAX_LINE}; "
            "store the content as a blob",
            type=draft.type,
            seq=seq,
        )
    if seq > INT_MAX:
        raise InvalidEvent(
            f"no number is left for another event ({draft.type}) behind {INT_MAX}; go on in a new session",
            type=draft.type,
            seq=seq,
        )
    sum_ = chain(prev, body)
    return body + b',"sum":"%b"}' % sum_.encode(), sum_


@lru_cache(maxsize=256)
def _quoted(type_: str) -> bytes:
    return orjson.dumps(type_)


def serialize(draft: Draft) -> tuple[Draft, bytes]:
    """The draft as ``clean`` gives it, and its data as JSON. Raises what ``clean`` raises."""
    try:
        data = orjson.dumps(draft.data, option=_STRICT)
        if _is_plain(draft.data, 1):
            return draft, data
    except TypeError:
        pass
    draft = clean(draft)
    return draft, orjson.dumps(draft.data)


def _is_plain(data: Any, level: int) -> bool:
    """Is it certain that ``clean`` refuses and changes nothing? orjson took it, and takes more kinds than JSON has."""
    items = data.values() if data.__class__ is dict else data
    if _FLAT.issuperset(map(type, items)):
        return True
    for item in items:
        kind = item.__class__
        if kind is dict or kind is list:
            if level == MAX_DEPTH or not _is_plain(item, level + 1):
                return False
        elif kind is float:
            if not math.isfinite(item):
                return False
        elif kind not in _FLAT:
            return False
    return True


def encodable(text: str) -> str:
    """``text`` as a line can carry it: U+FFFD for each lone surrogate."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def clean(draft: Draft) -> Draft:
    """The draft as it may be written: lone surrogates become U+FFFD (their block gets ``"lossy":true``).

    Raises InvalidEvent, naming the key, for NaN and infinities, integers beyond 64 bits, keys that are not text,
    values that JSON has no kind for, nesting deeper than 200, and a new id that would become another one. Returns
    ``draft`` itself where nothing changes.
    """
    lossy: list[bool] = []
    data = _clean(draft.data, draft.type, "data", 1, lossy)
    if not lossy:
        return draft
    for (key, given), (_, kept) in zip(
        shapes.minted(draft.type, draft.data), shapes.minted(draft.type, data), strict=True
    ):
        if given != kept:
            what = "holds a lone surrogate, which no line can carry; give another id"
            raise InvalidEvent(f"{draft.type}: {key} {what}", type=draft.type, key=key)
    return Draft(draft.type, data, draft.ignorable)


def _clean(value: Any, type_: str, key: str, level: int, lossy: list[bool]) -> Any:
    kind = value.__class__
    if kind is str:
        if value.isascii():
            return value
        try:
            value.encode()
        except UnicodeEncodeError:
            lossy.append(True)
            return encodable(value)
        return value
    if kind is bool or value is None:
        return value
    if kind is int:
        if INT_MIN <= value <= INT_MAX:
            return value
        raise InvalidEvent(f"{type_}: {key} is an integer beyond 64 bits", type=type_, key=key)
    if kind is float:
        if math.isfinite(value):
            return value
        raise InvalidEvent(f"{type_}: {key} is {value}, and JSON has no such number", type=type_, key=key)
    if level > MAX_DEPTH:
        raise InvalidEvent(f"{type_}: {key} nests deeper than {MAX_DEPTH}", type=type_, key=key)
    if kind is dict or kind is list:
        before = len(lossy)
        if kind is list:
            out: Any = [_clean(item, type_, f"{key}[{i}]", level + 1, lossy) for i, item in enumerate(value)]
        else:
            out = {}
            for name, item in value.items():
                if name.__class__ is not str:
                    raise InvalidEvent(f"{type_}: {key} has a key that is not text: {name!r}", type=type_, key=key)
                out[_clean(name, type_, key, level, lossy)] = _clean(item, type_, f"{key}.{name}", level + 1, lossy)
            if len(lossy) > before and isinstance(out.get("kind"), str):
                out["lossy"] = True
        return out if len(lossy) > before else value
    raise InvalidEvent(f"{type_}: {key} is a {kind.__name__}, which JSON has no kind for", type=type_, key=key)


def check_shape(draft: Draft) -> None:
    """The type's own rules at append: required and optional keys with their JSON kinds, closed values, extra care.

    Raises InvalidEvent, naming the key. Keys that the format does not name are kept.
    """
    if not isinstance(draft.type, str):
        raise InvalidEvent(f"an event's type is text, not {draft.type!r}", type=str(draft.type))
    if draft.data.__class__ is not dict:
        kind = draft.data.__class__.__name__
        raise InvalidEvent(f"{draft.type}: data is a {kind}, not an object", type=draft.type, key="data")
    row = EVENT_TYPES.get(draft.type)
    if row is None:
        if _TYPE_NAME.match(draft.type) is None or not (is_extension(draft.type) or draft.ignorable):
            raise InvalidEvent(
                f"{draft.type!r} is not an event type of this version; types of extensions are named x-family/name",
                type=draft.type,
            )
        return
    if draft.ignorable and not row.ignorable:
        raise InvalidEvent(
            f"{draft.type} may not be ignorable: every reader needs it", type=draft.type, key="ignorable"
        )
    shapes.check(row, draft.data)


# ---------------------------------------------------------------- typing


def structure(type_: str, data: dict[str, Any]) -> Any:
    """The payload class's instance for ``data``; of an unknown type, ``data`` itself. Raises InvalidEvent."""
    return structure_of(type_)(data)


def draft_of(payload: Any) -> Draft:
    """A draft from an instance of a payload class. Optional keys that are None are left out."""
    from .typed import unstructure

    return unstructure(payload)
