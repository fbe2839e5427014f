"""Payload classes ↔ JSON objects, by cattrs. Imported only when something is typed: most commands never are. No I/O."""

from typing import Any

import attrs
import cattrs
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from .errors import InvalidEvent
from .events import EVENT_TYPES, Draft, EndReason, RunHeader, Usage

_converter = cattrs.Converter(detailed_validation=False, prefer_attrib_converters=True)
# JSON values are taken as they are: load has checked the kinds of what is required, and nested JSON stays JSON.
_converter.register_structure_hook_func(
    lambda cls: not attrs.has(cls) and not _holds_attrs(cls), lambda value, _: value
)


def _holds_attrs(cls: Any) -> bool:
    return any(attrs.has(part) for part in getattr(cls, "__args__", ()))


def _optional(part: type) -> Any:
    structure = _converter.get_structure_hook(part)
    return lambda value, _: None if value is None else structure(value, part)


for _cls in (RunHeader, EndReason, Usage, *(row.cls for row in EVENT_TYPES.values())):
    _converter.register_structure_hook(
        _cls, make_dict_structure_fn(_cls, _converter, _cattrs_detailed_validation=False)
    )
    _converter.register_unstructure_hook(
        _cls,
        make_dict_unstructure_fn(
            _cls,
            _converter,
            **{field.name: override(omit_if_default=field.default is None) for field in attrs.fields(_cls)},  # type: ignore[arg-type]
        ),
    )
    _converter.register_structure_hook_func(lambda cls, part=_cls: cls == (part | None), _optional(_cls))

_hooks = {name: (_converter.get_structure_hook(row.cls), row.cls) for name, row in EVENT_TYPES.items()}


def structure(type_: str, data: dict[str, Any]) -> Any:
    hook = _hooks.get(type_)
    if hook is None:
        return data
    try:
        return hook[0](data, hook[1])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidEvent(f"a {type_} does not have the shape of the format: {error!r}", type=type_) from None


def unstructure(payload: Any) -> Draft:
    cls = payload.__class__
    row = EVENT_TYPES[cls.TYPE]
    return Draft(row.name, _converter.unstructure(payload), row.ignorable)
