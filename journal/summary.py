"""The folded state as JSON for the snapshot, and what a listing shows of it. No I/O.

An object of the state is the list of its fields in the order of its class; a field's ``metadata`` names the class of
what it holds. Whoever keeps such JSON guards it with a digest: only the kinds of its values are checked here.
"""

from functools import cache
from typing import Any, Final

import attrs

from .events import JsonObject, json_kinds
from .findings import Finding, FindingList
from .pairing import Pairing
from .state import State
from .views.closed import Closed

#: Of the shape below. A summary of another version is not read.
VERSION: Final = 7
#: Characters of labels that a row holds: it is read as a whole for every session of a listing.
_LABELS: Final = 4096


@cache
def _fields(cls: type) -> "tuple[attrs.Attribute[Any], ...]":
    return tuple(field for field in attrs.fields(cls) if not field.name.startswith("_"))


def to_json(state: State) -> JsonObject:
    """Everything that ``apply`` and ``check`` go by: ``{"v", "state"}``, ready for orjson."""
    return {"v": VERSION, "state": _pack(state)}


def from_json(value: Any) -> State:
    """The state that ``to_json`` was given. Raises ValueError where ``value`` is no such summary."""
    if not isinstance(value, dict) or value.get("v") != VERSION:
        raise ValueError("a summary of another version")
    try:
        state: State = _unpack(State, value["state"])
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise ValueError(f"not a summary: {error!r}") from None
    state.turns.reindex()
    return state


def listing(state: State) -> JsonObject:
    """``{session_id, name, last_activity, turns, labels, flagged, archived, unsettled, active_plan, pending_handoff,
    queued, admitted}``.

    ``last_activity`` is in Unix milliseconds, ``labels`` None where there are too many of them for a row, ``unsettled``
    the number of calls of unknown outcome whose tools may find it out. ``active_plan``: an execution of a plan is
    active; ``pending_handoff``: a turn waits for the successor of a run. ``queued``: how many messages wait in the
    queue; ``admitted``: an admitted root turn waits to be run.
    """
    settings = state.session.settings()
    labels = [label for label in settings["labels"] if isinstance(label, str)]
    return {
        "session_id": (state.session.header or {}).get("session_id"),
        "name": settings["name"],
        "last_activity": state.last_ts,
        "turns": state.turns.last,
        "labels": labels if sum(len(label) + 3 for label in labels) <= _LABELS else None,
        "flagged": settings["flagged"],
        "archived": settings["archived"],
        "unsettled": sum(call.recovery == "reconcile" for call in state.turns.unknown.values()),
        "active_plan": state.plans.running() is not None,
        "pending_handoff": any(turn.pause is not None for turn in state.turns.open.values()),
        "queued": len(state.queue.waiting),
        "admitted": any(not state.turns.known(admission.turn_id) for admission in state.admissions.waiting()),
    }


def _pack(item: Any) -> list[Any]:
    out = []
    for field in _fields(item.__class__):
        value = getattr(item, field.name)
        if "of" in field.metadata:
            value = _each(value, field.metadata.get("in"), _pack)
        elif value.__class__ in _WRITE:
            value = _WRITE[value.__class__](value)
        elif attrs.has(value.__class__):
            value = _pack(value)
        out.append(value)
    return out


def _each(values: Any, inner: Any, change: Any) -> Any:
    """Change every item of a list, of an object, or of the lists in an object."""
    if isinstance(values, list):
        return [change(value) for value in values]
    if inner is list:
        return {key: [change(part) for part in value] for key, value in values.items()}
    return {key: change(value) for key, value in values.items()}


def _unpack(cls: type, values: Any) -> Any:
    fields = _fields(cls)
    if not isinstance(values, list) or len(values) != len(fields):
        raise ValueError(f"a {cls.__name__} has {len(fields)} fields")
    given = {}
    for field, value in zip(fields, values, strict=True):
        given[field.name] = _value(field, value)
    return cls(**given)


def _value(field: "attrs.Attribute[Any]", value: Any) -> Any:
    part, kind = field.metadata.get("of"), field.type
    if part is not None:
        kinds = json_kinds(kind)
        if type(value) not in kinds:
            raise ValueError(f"{field.name} is a {type(value).__name__}")
        return _each(value, field.metadata.get("in"), lambda item: _unpack(part, item))
    if kind in _READ:
        return _READ[kind](value)
    if isinstance(kind, type) and attrs.has(kind):
        return _unpack(kind, value)
    kinds = json_kinds(kind)
    if kinds and type(value) not in kinds:
        raise ValueError(f"{field.name} is a {type(value).__name__}")
    return value


def _write_findings(findings: FindingList) -> list[Any]:
    listed = [
        [finding.code, finding.message, finding.seq, finding.offset, finding.length, finding.count]
        for finding in findings
    ]
    return [listed, list(findings.unlisted)]


def _read_findings(value: Any) -> FindingList:
    listed, unlisted = value
    findings = FindingList(
        Finding(code, message, seq, offset, length, count=count) for code, message, seq, offset, length, count in listed
    )
    for code, offset in unlisted:
        findings.add_unlisted(code, offset)
    return findings


_WRITE: Final[dict[type, Any]] = {
    Closed: Closed.to_json,
    FindingList: _write_findings,
    Pairing: lambda pairing: [list(pairing.operations), pairing.known, list(pairing.shared)],
    bytearray: lambda text: text.decode(),
}
_READ: Final[dict[Any, Any]] = {
    Closed: Closed.from_json,
    FindingList: _read_findings,
    Pairing: lambda value: Pairing.of_names(*value),
    bytearray: lambda text: bytearray(text.encode()),
}
