"""Turns, their steps and calls, and the order that the format demands inside a turn. No I/O."""

from typing import Any, Final

import attrs

from ..events import Event, JsonObject
from .closed import Closed
from .problem import Handlers, Problem, Problems, Rules, mapping, sequence, text_of


@attrs.define(slots=True, eq=False)
class Call:
    """A call of an open turn.

    ``index`` counts the turn's calls in the order in which they appeared: the blocks of its messages, and where they
    stand those that no block requested. Requested: ``message_seq`` is the assistant message's seq. Dispatched:
    ``call_seq`` is the seq of its tool/call, and ``operation_id`` and ``recovery`` are its. Answered: ``state`` is the
    result's.
    """

    index: int
    call_id: str
    name: str
    step: int
    run_id: str
    message_seq: int | None = None
    call_seq: int | None = None
    operation_id: str | None = None
    recovery: str | None = None
    state: str | None = None

    @property
    def dispatched(self) -> bool:
        return self.call_seq is not None


@attrs.define(slots=True)
class Delta:
    """Live text whose assistant/message has not come. ``pieces``: ``[index, kind, text]`` in the order of the journal."""

    message_id: str
    run_id: str
    step: int
    seq: int
    pieces: list[list[Any]] = attrs.field(factory=list)

    def blocks(self) -> list[JsonObject]:
        """The durable text and thinking as content blocks, by ``index`` and, within one, by kind as it first came."""
        joined: dict[tuple[int, str], list[str]] = {}
        for index, kind, text in self.pieces:
            joined.setdefault((index, kind), []).append(text)
        ordered = sorted(joined, key=lambda key: key[0])
        return [{"kind": kind, "text": "".join(joined[index, kind])} for index, kind in ordered]


@attrs.define(slots=True)
class Stop:
    """A turn/stop_requested. ``mode``: immediate or after_step."""

    seq: int
    stop_id: str
    source: str
    mode: str
    run_id: str | None = None


@attrs.define(slots=True)
class OpenTurn:
    """A turn without turn/end.

    ``run_ids`` are its runs, oldest first; ``stepped`` those in which a step has begun. ``step`` is the number of the
    newest step (0: none yet), ``step_run`` its run, ``step_open`` whether it lacks its step/end. ``first_seq`` and
    ``last_seq`` are its first and its newest ledger event (a turn/stop_requested is none), ``last_type`` that event's
    type and ``last_run`` its run. ``start_seq`` is the newest continuation/start, and ``pause`` the id of the valid
    handoff/pause that seals the newest run, as long as nothing of the turn follows it.
    ``broken``: events were lost around it, so its order is not judged. ``opened`` is False where its opening was lost.
    """

    turn_id: str
    turn: int
    first_seq: int
    last_seq: int
    last_type: str
    last_run: str
    run_ids: list[str]
    opened: bool = True
    broken: bool = False
    step: int = 0
    step_run: str = ""
    step_open: bool = False
    step_seq: int = -1
    start_seq: int = -1
    start_kind: str | None = None
    pause: str | None = None
    stepped: list[str] = attrs.field(factory=list)
    messages: int = 0
    calls: list[Call] = attrs.field(factory=list, metadata={"of": Call})
    call_count: int = 0
    deltas: dict[str, Delta] = attrs.field(factory=dict, metadata={"of": Delta})

    @property
    def newest_run(self) -> str:
        return self.run_ids[-1]

    def unanswered(self) -> list[Call]:
        """Calls without a result, in the order in which a repair answers them: blocks first, then the others."""
        open_ = [call for call in self.calls if call.state is None]
        open_.sort(key=lambda call: (call.message_seq is None, call.index))
        return open_


@attrs.define(slots=True)
class Turns:
    """``open`` by turn_id, oldest first. ``stops`` by turn_id, also of turns that have not been opened yet.

    ``last`` is the largest turn number so far (also a claimed one).
    """

    open: dict[str, OpenTurn] = attrs.field(factory=dict, metadata={"of": OpenTurn})
    stops: dict[str, list[Stop]] = attrs.field(factory=dict, metadata={"of": Stop, "in": "list"})
    closed: Closed = attrs.field(factory=Closed)
    last: int = 0
