"""Events of every type in any order, with few ids and with values that may be anything: what no writer ever wrote."""

from typing import Any

from hypothesis import strategies as st

from maka.journal.events import EVENT_TYPES, Event

_IDS = st.sampled_from(["a", "A ", "b", "c", ""])
_SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-3, 9), st.sampled_from(["a", "text", "root", "user"]))
_ANY: st.SearchStrategy[Any] = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(_IDS, inner, max_size=2)),
    max_leaves=4,
)
_BLOCK = st.one_of(
    st.builds(lambda text: {"kind": "text", "text": text}, _IDS),
    st.builds(lambda call: {"kind": "tool_call", "call_id": call, "name": "t", "arguments": "{}"}, _IDS),
    st.builds(lambda call: {"kind": "tool_result", "call_id": call, "content": []}, _IDS),
    _ANY,
)
_RUN = st.fixed_dictionaries({}, optional={"run_id": _IDS, "turn_id": _IDS, "invocation_id": _IDS, "root": _ANY})
_KNOWN: dict[str, st.SearchStrategy[Any]] = {
    "content": st.lists(_BLOCK, max_size=4),
    "run": _RUN,
    "target_run": _RUN,
    "step": st.integers(0, 3),
    "turn": st.integers(0, 3),
    "call_seq": st.integers(0, 30),
    "replay_through_seq": st.integers(0, 30),
    "state": st.sampled_from(["ok", "error", "unknown", "not_started", "other"]),
    "purpose": st.sampled_from(["resume", "handoff", "other"]),
    "start_kind": st.sampled_from(["runtime_admission", "claim_repair", "other"]),
    "disposition": st.sampled_from(["steering", "followup"]),
    "reason": st.builds(lambda kind: {"kind": kind}, st.sampled_from(["completed", "interrupted", "aborted", 5])),
    "source": st.one_of(_IDS, st.builds(lambda kind: {"kind": kind, "run_id": kind}, _IDS)),
    "boundary": st.builds(lambda run: {"segments": [{"run_id": run}, 5]}, _IDS),
    "execution": st.builds(lambda kind: {"kind": kind}, st.sampled_from(["root", "linked_child_provider_retry", 1])),
    "input": st.builds(lambda blocks: {"content": blocks}, st.lists(_BLOCK, max_size=2)),
    "outcome": st.builds(lambda kind: {"kind": kind}, st.sampled_from(["closure", "question_answer", None])),
}
_OF_KIND: dict[type, st.SearchStrategy[Any]] = {
    str: _IDS,
    int: st.integers(-2, 9),
    bool: st.booleans(),
    dict: st.dictionaries(_IDS, _ANY, max_size=2),
    list: st.lists(_ANY, max_size=3),
    type(None): st.none(),
    float: st.just(0.5),
}


def _value(key: str, kinds: frozenset[type]) -> st.SearchStrategy[Any]:
    right = st.one_of(*(_OF_KIND[kind] for kind in sorted(kinds, key=str))) if kinds else _ANY
    known = _KNOWN.get(key)
    return right if known is None else known.filter(lambda value: not kinds or type(value) in kinds)


def _data(name: str) -> st.SearchStrategy[dict[str, Any]]:
    row = EVENT_TYPES[name]
    required = {key: _value(key, kinds) for key, kinds in row.required.items()}
    optional = {key: st.one_of(_ANY, _value(key, row.optional[key])) for key in row.optional}
    return st.fixed_dictionaries(required, optional=optional).filter(row.fits)


_TYPES = sorted(set(EVENT_TYPES) - {"session/header"})
#: The conversation comes more often than the rest.
_OFTEN = ["turn/start", "user/message", "step/start", "assistant/message", "tool/call", "tool/result", "step/end"]
_EVENT = st.sampled_from(_TYPES + _OFTEN * 3).flatmap(lambda name: st.tuples(st.just(name), _data(name)))


@st.composite
def any_events(draw: st.DrawFn, size: int = 25) -> list[Event]:
    """Events that a reader could hand out: each has the required keys of its type with the right kinds."""
    drawn: list[tuple[str, dict[str, Any]]] = draw(
        st.lists(st.one_of(_EVENT, st.just(("x-other/thing", {}))), max_size=size)
    )
    unverified = draw(st.sets(st.integers(1, size), max_size=2))
    header: dict[str, Any] = {"format": 1, "session_id": "s", "created_by": {}, "cwd": "", "backend": ""}
    header |= {"model": "", "permission_mode": ""}
    if draw(st.booleans()):
        header["tool_boundary"] = "t1_after_preflight_v1"
    out = [Event(0, 0, "session/header", header, "0" * 32)] if draw(st.booleans()) else []
    for seq, (name, data) in enumerate(drawn, 1):
        out.append(Event(seq, seq, name, data, f"{seq:032x}", offset=seq, verified=seq not in unverified))
    return out
