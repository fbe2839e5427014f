"""Payload classes ↔ JSON objects. Imported only when something is typed: most commands never are. No I/O.

Reading is by plain functions that call a class with the object's values: load has checked the kinds of what is
required, and nested values stay the JSON that they are, except for the few that have a class of their own. Writing is
by cattrs.
"""

import typing
from collections.abc import Callable
from typing import Any

import attrs
import cattrs
from cattrs.gen import make_dict_unstructure_fn, override

from .errors import InvalidEvent
from .events import EVENT_TYPES, Draft, EndReason, RunHeader, Usage

Structure = Callable[[dict[str, Any]], Any]

_converter = cattrs.Converter(detailed_validation=False)


def _nested(annotation: Any) -> type | None:
    """The payload class that an annotation names, alone or beside None."""
    parts = (annotation, *typing.get_args(annotation))
    return next((part for part in parts if isinstance(part, type) and attrs.has(part)), None)


def _structure_of(cls: type) -> Structure:
    fields = {field.name for field in attrs.fields(cls)}
    parts = [(field.name, _nested(field.type)) for field in attrs.fields(cls)]
    inner = tuple((name, _structure_of(part)) for name, part in parts if part is not None)

    def structure(data: dict[str, Any]) -> Any:
        try:
            payload = cls(**data)
        except TypeError:  # keys that this version does not know, or some that it needs are missing
            payload = cls(**{key: value for key, value in data.items() if key in fields})
        for name, structure_part in inner:
            value = getattr(payload, name)
            if value is not None:
                setattr(payload, name, structure_part(value))
        return payload

    return structure


def _unstructure_of(cls: type) -> Callable[[Any], Any]:
    omit: dict[str, Any] = {field.name: override(omit_if_default=field.default is None) for field in attrs.fields(cls)}
    whole: Callable[[Any], Any] = make_dict_unstructure_fn(cls, _converter, **omit)
    # Where a class is nested people also give its JSON, or something that is neither: what it is worth is told later.
    return lambda value: whole(value) if isinstance(value, cls) else value


for _cls in (RunHeader, EndReason, Usage, *(row.cls for row in EVENT_TYPES.values())):
    _converter.register_unstructure_hook(_cls, _unstructure_of(_cls))


_ORDER = {name: tuple(attrs.fields_dict(row.cls)) for name, row in EVENT_TYPES.items()}


def structure_of(type_: str) -> Structure:
    """The function that types the data of events of this type; of an unknown type it gives the data itself.

    What it gives raises InvalidEvent where an optional or nested value does not have the shape of the format.
    """
    row = EVENT_TYPES.get(type_)
    if row is None:
        return lambda data: data
    structure = _structure_of(row.cls)

    def checked(data: dict[str, Any]) -> Any:
        try:
            return structure(data)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidEvent(f"a {type_} does not have the shape of the format: {error!r}", type=type_) from None

    return checked


def unstructure(payload: Any) -> Draft:
    """The draft of a payload: its keys in the order of its fields, optional ones that are None left out.

    A value of a kind that its field has not stays as it is: whoever appends the draft is told its key.
    """
    row = EVENT_TYPES[payload.TYPE]
    try:
        data = _converter.unstructure(payload)
    except (AttributeError, TypeError, ValueError):
        data = {name: getattr(payload, name) for name in _ORDER[row.name] if getattr(payload, name) is not None}
    ordered = {name: data[name] for name in _ORDER[row.name] if name in data}
    return Draft(row.name, ordered, row.ignorable)
