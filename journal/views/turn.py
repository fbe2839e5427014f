"""A turn while it is open, and all turns: the state that the other modules fold into and read. No I/O."""

from typing import Any, Literal

import attrs
import orjson

from ..events import JsonObject
from ..pairing import Call, Pairing
from .closed import Closed
from .problem import text_of

Rest = Literal["paused", "indeterminate"]


@attrs.define(slots=True)
class Delta:
    """Live text whose assistant/message has not come. ``pieces``: the deltas' data, oldest first."""

    message_id: str
    run_id: str
    step: int
    seq: int
    pieces: list[JsonObject] = attrs.field(factory=list)

    def blocks(self) -> list[JsonObject]:
        """The durable text and thinking as content blocks, by ``index`` and, within one, by kind as it first came."""
        joined: dict[tuple[int, str], list[str]] = {}
        for piece in self.pieces:
            joined.setdefault((piece["index"], piece["kind"]), []).append(piece["text"])
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
class Unknown:
    """A result of state ``unknown`` that no tool/outcome has settled."""

    turn_id: str
    run_id: str
    call_id: str
    name: str
    call_seq: int
    operation_id: str | None
    recovery: str | None


@attrs.define(slots=True)
class OpenTurn:
    """A turn without turn/end.

    ``run_ids`` are its runs, oldest first; ``stepped`` those in which a step has begun. ``step`` is the number of the
    newest step (0: none yet), ``step_run`` its run, ``step_open`` whether it lacks its step/end, ``step_seq`` its
    step/start. ``first_seq`` and ``last_seq`` are its first and newest ledger event, live text aside.
    ``start_seq`` and ``start_kind`` are those of its newest continuation/start; ``pause`` is the id of the valid
    handoff/pause that seals the newest run, until a ledger event of the turn follows.
    ``broken``: events were lost around it, so its order is not judged, and what is not on record may have been.
    ``opened`` is False where its opening was lost.
    ``calls``: those without a result, and ``answered`` others that have one; ``done`` is JSON text of the rest.
    """

    turn_id: str
    turn: int
    first_seq: int
    last_seq: int
    run_ids: dict[str, None]
    opened: bool = True
    broken: bool = False
    step: int = 0
    step_run: str = ""
    step_open: bool = False
    step_seq: int = -1
    start_seq: int = -1
    start_kind: str | None = None
    pause: str | None = None
    stepped: dict[str, None] = attrs.field(factory=dict)
    steps: int = 0
    calls: list[Call] = attrs.field(factory=list, metadata={"of": Call})
    call_count: int = 0
    answered: int = 0
    done: bytearray = attrs.field(factory=bytearray)
    deltas: dict[str, Delta] = attrs.field(factory=dict, metadata={"of": Delta})
    message_ids: dict[str, None] = attrs.field(factory=dict)
    pairing: Pairing = attrs.field(factory=Pairing, eq=False, repr=False)

    @property
    def newest_run(self) -> str:
        return next(reversed(self.run_ids))

    @property
    def rest(self) -> Rest | None:
        """Does it rest where only a continuation goes on: sealed by a pause, or at a start that nothing followed?

        With calls that lack a result it does not: results before the start were lost, and are closed first.
        """
        if self.pause is not None:
            return "paused"
        started = self.last_seq == self.start_seq and self.start_kind == "runtime_admission"
        return "indeterminate" if started and len(self.calls) == self.answered else None

    def unanswered(self) -> list[Call]:
        """Calls without a result, in the order in which a repair answers them: blocks first, then the others."""
        open_ = [call for call in self.calls if call.state is None]
        open_.sort(key=lambda call: (call.message_seq is None, call.index))
        return open_

    def flush(self) -> None:
        """Answered calls go to ``done``, once they are so many that this costs no more than answering them did."""
        if self.answered and 2 * self.answered >= len(self.calls):
            rows = [_call_row(call) for call in self.calls if call.state is not None]
            self.done += orjson.dumps(rows)[1:-1]
            self.done += b","
            self.calls = [call for call in self.calls if call.state is None]
            self.answered = 0

    def call_rows(self, tool_boundary: bool) -> bytes:
        """All calls as JSON text: a list of ``[index, call_id, name, state, call_seq of an unknown one]``."""
        open_ = []
        provable = tool_boundary and not self.broken
        for call in self.calls:
            row = _call_row(call)
            if call.state is None:
                row[3:] = projected_state(call, provable), None
            open_.append(row)
        return b"[" + (bytes(self.done) + orjson.dumps(open_)[1:-1]).removesuffix(b",") + b"]"


def _call_row(call: Call) -> list[Any]:
    return [call.index, call.call_id, call.name, call.state, call.call_seq if call.state == "unknown" else None]


def projected_state(call: Call, provable: bool) -> str:
    """What a call without result is shown as: it may have happened, or it is proven that it did not.

    ``provable``: its dispatch would be on record, by the header's word and because no event was lost since.
    """
    return "unknown" if call.dispatched or not provable else "not_started"


@attrs.define(slots=True)
class Turns:
    """``open`` by turn_id, oldest first. ``stops`` by turn_id, also of turns that have not been opened yet.

    ``last`` is the largest turn number so far. ``loose``: the next number is not judged (events were lost, or this is
    the first turn of a fork). ``lost``: events were lost since a turn was last opened, so a turn without opening is
    believed; what stands before a header has lost one. ``claimed``: run_id → ``[turn number, turn_id, purpose]`` of
    claims of which no run is known yet; the purpose is ``void`` where none can come any more. ``unknown`` and
    ``outcomes`` (``[state, source, call_id, operation_id]``) by ``<call_seq>@<turn_id>``.
    ``closed``: rows ``[turn_id, turn, kind, reason, run_ids, first_seq, last_seq, steps, calls]``.
    """

    open: dict[str, OpenTurn] = attrs.field(factory=dict, metadata={"of": OpenTurn})
    stops: dict[str, list[Stop]] = attrs.field(factory=dict, metadata={"of": Stop, "in": list})
    closed: Closed = attrs.field(factory=Closed)
    last: int = 0
    loose: bool = True
    lost: bool = True
    tool_boundary: bool = False
    claimed: dict[str, list[Any]] = attrs.field(factory=dict)
    unknown: dict[str, Unknown] = attrs.field(factory=dict, metadata={"of": Unknown})
    outcomes: dict[str, list[str]] = attrs.field(factory=dict)
    _by_run: dict[str, OpenTurn] = attrs.field(factory=dict, eq=False, repr=False)
    _claimed_for: dict[str, list[str]] = attrs.field(factory=dict, eq=False, repr=False)
    # The open turns that are not broken: each is broken once, however much is lost.
    _sound: dict[str, OpenTurn] = attrs.field(factory=dict, eq=False, repr=False)
    # The message whose live text came last, and its pieces: most lines of a journal are live text.
    _live_id: str | None = attrs.field(default=None, init=False, eq=False, repr=False)
    _live: list[JsonObject] = attrs.field(factory=list, init=False, eq=False, repr=False)

    def more_live(self, data: JsonObject) -> bool:
        """Take a delta of the message that the last one was of. False: it is of another, and has not been taken."""
        if data["message_id"] == self._live_id:
            self._live.append(data)
            return True
        return False

    def by_run(self, run_id: str) -> OpenTurn | None:
        """The open turn that a run belongs to."""
        return self._by_run.get(run_id)

    def known(self, turn_id: str) -> bool:
        """Is there such a turn in this journal, open or over (also where its opening was lost)?"""
        return turn_id in self.open or self.closed.own(turn_id)

    def left_alone(self, turn: OpenTurn) -> bool:
        """Does a repair leave it open?"""
        return turn.rest is not None and turn.turn_id not in self.stops

    def lose(self) -> None:
        """Events were lost here: what their loss may explain is no fault of a writer."""
        self.loose = self.lost = True
        for turn in self._sound.values():
            turn.broken = True
        self._sound.clear()

    def fork(self) -> None:
        """What was folded so far is the prefix of a fork: its turns are over."""
        for turn in list(self.open.values()):
            self._close(turn, turn.last_seq, {"kind": "interrupted"}, b'{"kind":"interrupted"}')
        self.stops.clear()
        self.claimed.clear()
        self._claimed_for.clear()
        self.unknown.clear()
        self.closed.seal()

    def add(self, turn: OpenTurn) -> None:
        self.open[turn.turn_id] = turn
        if not turn.broken:
            self._sound[turn.turn_id] = turn
        for run_id in turn.run_ids:
            self._by_run[run_id] = turn
            self.claimed.pop(run_id, None)
        for run_id in self.claimed_for(turn.turn_id):
            self.void(run_id)
        self._claimed_for.pop(turn.turn_id, None)
        self.last = max(self.last, turn.turn)
        self.loose = self.lost = False

    def add_run(self, turn: OpenTurn, run_id: str) -> None:
        turn.run_ids[run_id] = None
        self._by_run[run_id] = turn
        self.claimed.pop(run_id, None)

    def awaited(self) -> str | None:
        """The turn that a claim has reserved and that comes next: nothing of it is known yet."""
        return next((entry[1] for entry in self.claimed.values() if entry[2] == "resume"), None)

    def claim(self, run_id: str, turn: int, turn_id: Any, purpose: str) -> None:
        """A claim has reserved the run, for this turn."""
        if run_id not in self.claimed:
            self.claimed[run_id] = [turn, turn_id, purpose]
            self._index_claim(run_id)

    def claimed_for(self, turn_id: str) -> list[str]:
        """The runs that claims have reserved for a turn that is not known yet."""
        return [run_id for run_id in self._claimed_for.get(turn_id, ()) if run_id in self.claimed]

    def void(self, run_id: str) -> None:
        """The turn that a claim has reserved for this run cannot come any more. A handoff's turn is there already."""
        if self.claimed[run_id][2] == "resume":
            self.claimed[run_id][2] = "void"

    def believe(self, data: JsonObject, seq: int) -> OpenTurn | None:
        """The open turn of an event, opened now if its opening may have been lost."""
        turn_id, run_id = data["turn_id"], data["run_id"]
        turn = self.open.get(turn_id)
        if turn is not None:
            if turn.broken and run_id not in turn.run_ids:
                self.add_run(turn, run_id)
            return turn
        if not self.lost or self.closed.own(turn_id):
            return None
        claimed = self.claimed.get(run_id)
        number = claimed[0] if claimed is not None and claimed[1] == turn_id else self.last + 1
        turn = OpenTurn(turn_id, number, seq, seq, {run_id: None}, opened=False, broken=True)
        self.add(turn)
        self.loose = self.lost = True
        return turn

    def forget_deltas(self, turn: OpenTurn) -> None:
        """Live text without a message ends with its step."""
        if turn.deltas:
            turn.deltas.clear()
            self._live_id = None

    def _close(self, turn: OpenTurn, seq: int, reason: JsonObject, text: bytes) -> None:
        kind = text_of(reason.get("kind")) or "failed"
        head = [turn.turn_id, turn.turn, kind]
        tail = [list(turn.run_ids), turn.first_seq, seq, turn.steps]
        row = b"%b,%b,%b,%b]" % (
            orjson.dumps(head)[:-1],
            text,
            orjson.dumps(tail)[1:-1],
            turn.call_rows(self.tool_boundary),
        )
        self.closed.add_text(turn.turn_id, row)
        self.forget_deltas(turn)
        del self.open[turn.turn_id]
        self._sound.pop(turn.turn_id, None)
        self.stops.pop(turn.turn_id, None)
        for run_id in turn.run_ids:
            self._by_run.pop(run_id, None)

    def reindex(self) -> None:
        """Build again what a snapshot does not hold."""
        for turn in self.open.values():
            if not turn.broken:
                self._sound[turn.turn_id] = turn
            for run_id in turn.run_ids:
                self._by_run[run_id] = turn
            turn.pairing.rebuild(turn.calls)
        for run_id in self.claimed:
            self._index_claim(run_id)

    def _index_claim(self, run_id: str) -> None:
        _, turn_id, purpose = self.claimed[run_id]
        if purpose == "resume" and text_of(turn_id) is not None:
            self._claimed_for.setdefault(turn_id, []).append(run_id)


def key_of(call_seq: int, turn_id: str) -> str:
    return f"{call_seq}@{turn_id}"
