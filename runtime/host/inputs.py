"""JSON → the inputs of operations: closed, and nothing is made to fit. No I/O.

A number is no text, a text no number, True no 1; a key that an operation does not have is refused. cattrs is imported
on first use.
"""

import functools
import types
import typing
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, Final

import attrs

from ...journal.codec import INT_MAX, encodable
from ...journal.events import JsonObject
from ...journal.shapes import MAX_ID, SESSION_ID
from ..ids import unsuitable
from .operations import MADE_UP, OPERATIONS
from .protocol import HostError

#: Key → the least and the most that it may be.
NUMBERS: Final[dict[str, tuple[int, int]]] = {
    "limit": (1, 1_000),
    "before": (0, INT_MAX),
    "seq": (0, INT_MAX),
    "offset": (0, INT_MAX),
    "since": (0, INT_MAX),
    "high_water": (0, INT_MAX),
    "expected_revision": (1, INT_MAX),
    "max_steps": (1, INT_MAX),
    "timeout": (0, 86_400),
}
_SESSIONS: Final = frozenset({"session_id", "new_session_id", "after"})
#: Ids that clients make up for what a session keeps and shows: so many characters, that all of it fits into a frame.
_MADE_UP: Final = frozenset({"message_id", "message_ids", "stop_id", "interrupt_id", "retract_id", "request_id"})
SHORT: Final = 256
#: Characters of a value in a sentence.
_SHOWN: Final = 80


@attrs.frozen
class _Kind:
    """One kind of values: what it is called, and which values are of it."""

    words: str
    fits: Callable[[Any], bool]


class _Wrong(ValueError):
    """A value of none of the kinds that its key takes."""


def structure(operation: str, value: JsonObject) -> Any:
    """The input of an operation, typed. Raises HostError ``unknown_operation``, or ``invalid_request`` with a sentence
    that names the key.
    """
    row = OPERATIONS.get(operation)
    if row is None:
        near = get_close_matches(operation, OPERATIONS, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(OPERATIONS)}"
        raise HostError("unknown_operation", f"there is no operation {_shown(operation)}; {hint}")
    from cattrs.errors import ForbiddenExtraKeysError

    try:
        return _reader(operation)(value, row.input)
    except _Wrong as wrong:
        problem = f"{operation}: {wrong}; correct that, then send it again"
    except ForbiddenExtraKeysError as error:
        keys = ", ".join(attrs.fields_dict(row.input)) or "none"
        problem = f"{operation} has no key {_shown(min(error.extra_fields))}; leave it out (its keys: {keys})"
    except KeyError as error:
        problem = f"{operation} lacks its key {error.args[0]}; give it, then send it again"
    raise HostError("invalid_request", problem)


def words_of(field: "attrs.Attribute[Any]") -> str:
    """What a key of an input takes."""
    return " or ".join(kind.words for kind in _of(field))


@functools.cache
def _reader(operation: str) -> Callable[[JsonObject, Any], Any]:
    import cattrs
    from cattrs.gen import make_dict_structure_fn, override

    cls = OPERATIONS[operation].input
    hooks: dict[str, Any] = {field.name: override(struct_hook=_hook(field)) for field in attrs.fields(cls)}
    return make_dict_structure_fn(
        cls,
        cattrs.Converter(detailed_validation=False),
        _cattrs_forbid_extra_keys=True,
        _cattrs_detailed_validation=False,
        **hooks,
    )


def _hook(field: "attrs.Attribute[Any]") -> Callable[[Any, Any], Any]:
    kinds, words = _of(field), words_of(field)

    def read(value: Any, _: Any) -> Any:
        if not any(kind.fits(value) for kind in kinds):
            raise _Wrong(f"{field.name} must be {words}, not {_shown(value)}")
        return value

    return read


def _of(field: "attrs.Attribute[Any]") -> list[_Kind]:
    return [_SHORT] if field.metadata.get(MADE_UP) else _kinds(field.name, field.type)


def _kinds(name: str, annotation: Any) -> list[_Kind]:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return [kind for part in arguments for kind in _kinds(name, part)]
    if origin is typing.Literal:
        return [_Kind(" or ".join(arguments), lambda value: isinstance(value, str) and value in arguments)]
    if origin is list:
        [inner] = _kinds(name, arguments[0])
        words = f"a list, each {inner.words}"
        return [_Kind(words, lambda value: isinstance(value, list) and all(map(inner.fits, value)))]
    return [_text(name) if annotation is str else _number(name, annotation) if name in NUMBERS else _PLAIN[annotation]]


def _text(name: str) -> _Kind:
    if name in _SESSIONS:
        words = "a session id (letters, digits, '.', '_', '-', the first of them a letter or a digit; at most 128)"
        return _Kind(words, lambda value: isinstance(value, str) and SESSION_ID.fullmatch(value) is not None)
    if name in _MADE_UP:
        return _SHORT
    if name.endswith(("_id", "_ids")):
        return _Kind(f"an id (a text of 1 to {MAX_ID} characters)", lambda value: unsuitable(value) is None)
    return _Kind("a text", lambda value: isinstance(value, str) and encodable(value) == value)


def _number(name: str, annotation: Any) -> _Kind:
    if annotation is types.NoneType:
        return _PLAIN[annotation]
    least, most = NUMBERS[name]
    kinds, words = ((int, float), "a number") if annotation is float else ((int,), "a whole number")
    return _Kind(
        f"{words} from {least} to {most}",
        lambda value: isinstance(value, kinds) and not isinstance(value, bool) and least <= value <= most,
    )


_SHORT: Final = _Kind(
    f"an id (a text of 1 to {SHORT} characters)", lambda value: unsuitable(value) is None and len(value) <= SHORT
)
_PLAIN: Final[dict[Any, _Kind]] = {
    bool: _Kind("true or false", lambda value: isinstance(value, bool)),
    types.NoneType: _Kind("null", lambda value: value is None),
    JsonObject: _Kind("an object", lambda value: isinstance(value, dict)),
}


def _shown(value: Any) -> str:
    """A value in a sentence: itself if it is a simple one, else what it is."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "such a list"
    import json

    return json.dumps(value, ensure_ascii=False)[:_SHOWN].encode(errors="replace").decode()
