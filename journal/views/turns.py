"""Turns, their steps and calls, and the order that the format demands inside a turn. No I/O."""

from sys import intern
from typing import Any, Final, Literal

import attrs
import orjson

from ..events import Event, JsonObject
from ..pairing import Call, Pairing
from .closed import Closed
from .problem import Handlers, Problem, Rules, text_of, whole
from .session import TOOL_BOUNDARY

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
        """Does it rest where only a continuation goes on: sealed by a pause, or at a start that nothing followed?"""
        if self.pause is not None:
            return "paused"
        return "indeterminate" if self.last_seq == self.start_seq and self.start_kind == "runtime_admission" else None

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
    claims without a start. ``unknown`` and ``outcomes`` (``[state, source]``) by ``<call_seq>@<turn_id>``.
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
        self.unknown.clear()
        self.closed.seal()

    def add(self, turn: OpenTurn) -> None:
        self.open[turn.turn_id] = turn
        if not turn.broken:
            self._sound[turn.turn_id] = turn
        for run_id in turn.run_ids:
            self._by_run[run_id] = turn
        self.last = max(self.last, turn.turn)
        self.loose = self.lost = False

    def add_run(self, turn: OpenTurn, run_id: str) -> None:
        turn.run_ids[run_id] = None
        self._by_run[run_id] = turn

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
        turn = OpenTurn(turn_id, self.last + 1, seq, seq, {run_id: None}, opened=False, broken=True)
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


# ---------------------------------------------------------------- what no correct writer produces


def _order(turn: OpenTurn, sentence: str) -> Problem | None:
    return None if turn.broken else ("turn_order", sentence)


def _homeless(turns: Turns, data: JsonObject) -> Problem | None:
    """What is wrong with an event whose turn is not open."""
    turn_id = data["turn_id"]
    excused = turns.lost and not turns.closed.own(turn_id)
    return None if excused else ("turn_order", homeless(turns, turn_id))


def homeless(turns: Turns, turn_id: str) -> str:
    """Why a turn is not open."""
    if turns.closed.own(turn_id):
        return f"it stands after the end of its turn {turn_id}"
    return f"its turn {turn_id} was never opened"


def _stranger(turn: OpenTurn, run_id: str) -> Problem | None:
    """What is wrong with a ledger event of this run."""
    if turn.pause is not None:
        return _order(turn, f"turn {turn.turn_id} is sealed by a handoff, and only its successor goes on")
    if turn.newest_run != run_id:
        return _order(turn, f"run {run_id} is not the run that carries turn {turn.turn_id}, which is {turn.newest_run}")
    return None


def judge_turn_start(turns: Turns, data: JsonObject) -> Problem | None:
    turn_id, number = data["turn_id"], data["turn"]
    if turn_id in turns.open or turns.closed.own(turn_id):
        return "turn_order", f"turn {turn_id} was opened before"
    if turns.loose:
        return None
    if number != turns.last + 1:
        return "turn_order", f"turn {turn_id} has the number {number}, and {turns.last + 1} comes next"
    return None


def judge_user_message(turns: Turns, data: JsonObject) -> Problem | None:
    turn = turns.open.get(data["turn_id"])
    if turn is None:
        return _homeless(turns, data)
    if turn.step_open:
        return _order(turn, f"a user message stands inside step {turn.step} of turn {turn.turn_id}")
    if turn.step and data["source"].get("kind") == "user":
        return _order(turn, f"a user message that is no steering stands behind step {turn.step} of turn {turn.turn_id}")
    return _stranger(turn, data["run_id"])


def judge_step_start(turns: Turns, data: JsonObject) -> Problem | None:
    turn = turns.open.get(data["turn_id"])
    if turn is None:
        return _homeless(turns, data)
    if turn.step_open:
        return _order(turn, f"step {data['step']} of turn {turn.turn_id} begins while step {turn.step} is open")
    if data["step"] != turn.step + 1:
        return _order(turn, f"step {data['step']} of turn {turn.turn_id} begins, and {turn.step + 1} comes next")
    return _stranger(turn, data["run_id"])


def judge_in_step(turns: Turns, data: JsonObject) -> Problem | None:
    turn = turns.open.get(data["turn_id"])
    if turn is None:
        return _homeless(turns, data)
    if turn.step_open and turn.step == data["step"] and turn.step_run == data["run_id"]:
        return None
    return _order(
        turn, f"it names step {data['step']} of run {data['run_id']}, which is not open in turn {turn.turn_id}"
    )


def judge_result(turns: Turns, data: JsonObject) -> Problem | None:
    turn = turns.open.get(data["turn_id"])
    if turn is None:
        return _homeless(turns, data)
    operation = text_of(data.get("operation_id"))
    return _judge_answer(turn, data, turn.pairing.find(data["call_id"], operation, data["step"]), operation)


def _judge_answer(turn: OpenTurn, data: JsonObject, call: Call | None, operation: str | None) -> Problem | None:
    call_id = data["call_id"]
    if call is None:
        if turn.broken:
            return None
        code = turn.pairing.misfit(call_id, operation)
        what = "was never requested" if code == "orphan_result" else "has a result already"
        return code, f"a result names the call {call_id} in turn {turn.turn_id}, which {what}"
    if call.step != data["step"]:
        return _order(turn, f"the result of call {call_id} names step {data['step']}, and the call is of {call.step}")
    return None


def judge_outcome(turns: Turns, data: JsonObject) -> Problem | None:
    key = key_of(data["call_seq"], data["turn_id"])
    if key in turns.unknown or key in turns.outcomes:
        return None
    turn = turns.open.get(data["turn_id"])
    if turns.lost or (turn is not None and turn.broken):
        return None
    return (
        "orphan_result",
        f"an outcome names the call {data['call_id']} ({data['call_seq']}), whose result is not unknown",
    )


def judge_turn_end(turns: Turns, data: JsonObject) -> Problem | None:
    turn = turns.open.get(data["turn_id"])
    if turn is None:
        return _homeless(turns, data)
    if turn.step_open:
        return _order(turn, f"turn {turn.turn_id} ends while its step {turn.step} is open")
    return _stranger(turn, data["run_id"])


def judge_start(turns: Turns, data: JsonObject) -> Problem | None:
    run_id, turn_id = data["run_id"], data["turn_id"]
    turn = turns.open.get(turn_id)
    claimed = turns.claimed.get(run_id)
    if data["purpose"] == "handoff":
        if turn is None:
            return _homeless(turns, data)
        if turn.broken:
            return None
        if claimed is None or turn.pause is None:
            return _order(turn, f"run {run_id} takes over turn {turn_id}, which was not handed to it")
        return None
    if turn is not None or turns.closed.own(turn_id):
        return "turn_order", f"turn {turn_id} was opened before"
    if claimed is None and not turns.lost:
        return "turn_order", f"run {run_id} starts without a claim"
    if claimed is not None and claimed[1] != turn_id:
        return "turn_order", f"run {run_id} was claimed for turn {claimed[1]} and starts turn {turn_id}"
    return None


#: Each relation is stated once: reading reports what these give, writing refuses it.
RULES: Final[Rules] = {
    "turn/start": judge_turn_start,
    "user/message": judge_user_message,
    "step/start": judge_step_start,
    "step/end": judge_in_step,
    "request/header": judge_in_step,
    "assistant/message": judge_in_step,
    "tool/call": judge_in_step,
    "tool/result": judge_result,
    "tool/outcome": judge_outcome,
    "turn/end": judge_turn_end,
    "continuation/start": judge_start,
}


# ---------------------------------------------------------------- the fold


def _turn_start(turns: Turns, event: Event) -> Problem | None:
    data = event.data
    problem = judge_turn_start(turns, data)
    turn_id = data["turn_id"]
    if turn_id not in turns.open and not turns.closed.own(turn_id):
        turns.add(OpenTurn(turn_id, data["turn"], event.seq, event.seq, {data["run_id"]: None}))
    return problem


def _user_message(turns: Turns, event: Event) -> Problem | None:
    data = event.data
    problem = judge_user_message(turns, data)
    turn = turns.believe(data, event.seq)
    if turn is not None:
        turn.last_seq = event.seq
        turn.pause = None
    return problem


def _step_start(turns: Turns, event: Event) -> Problem | None:
    data = event.data
    problem = judge_step_start(turns, data)
    turn = turns.believe(data, event.seq)
    if turn is not None:
        run_id = data["run_id"]
        turn.last_seq = turn.step_seq = event.seq
        turn.pause = None
        turn.step = data["step"]
        turn.steps += 1
        turn.step_open = True
        turns.forget_deltas(turn)
        if turn.step_run != run_id:
            turn.step_run = run_id
            turn.stepped[run_id] = None
    return problem


def _step_end(turns: Turns, event: Event) -> Problem | None:
    data = event.data
    problem = judge_in_step(turns, data)
    turn = turns.believe(data, event.seq)
    if turn is not None:
        turn.last_seq = event.seq
        turn.pause = None
        turn.step_open = False
        if data["step"] > turn.step:
            turn.step = data["step"]
        turns.forget_deltas(turn)
        turn.flush()
    return problem


def _enter(turns: Turns, event: Event) -> OpenTurn | None:
    """The turn of an event that belongs into a step; where the step/start was lost, the step is open from here."""
    data = event.data
    turn = turns.believe(data, event.seq)
    if turn is not None:
        turn.last_seq = event.seq
        turn.pause = None
        if turn.broken and not turn.step_open:
            turn.step_open, turn.step_seq, turn.step_run = True, event.seq, data["run_id"]
            turn.step = max(turn.step, data["step"])
            turn.steps += 1
            turn.stepped[turn.step_run] = None
    return turn


def _request_header(turns: Turns, event: Event) -> Problem | None:
    problem = judge_in_step(turns, event.data)
    _enter(turns, event)
    return problem


def _delta(turns: Turns, event: Event) -> Problem | None:
    data = event.data
    if turns.more_live(data):
        return None
    message_id = data["message_id"]
    turn = turns._by_run.get(data["run_id"])
    if turn is not None and turn.step_open and message_id not in turn.message_ids:
        delta = turn.deltas.get(message_id)
        if delta is None:
            delta = turn.deltas[message_id] = Delta(message_id, data["run_id"], turn.step, event.seq)
        delta.pieces.append(data)
        turns._live_id, turns._live = message_id, delta.pieces
    return None


def _assistant_message(turns: Turns, event: Event) -> Problem | None:
    data = event.data
    problem = judge_in_step(turns, data)
    turn = _enter(turns, event)
    if turn is not None:
        message_id = data["message_id"]
        turn.message_ids[message_id] = None
        if turn.deltas:
            turn.deltas.pop(message_id, None)
            turns._live_id = None
        for call_id, name in requests(data["content"]):
            call = Call(turn.call_count, call_id, name, data["step"], data["run_id"], event.seq)
            turn.call_count += 1
            turn.calls.append(call)
            turn.pairing.request(call)
    return problem


def requests(content: list[Any]) -> list[tuple[str, str]]:
    """The calls that an assistant message asks for: call_id and name, in block order."""
    return [
        (block["call_id"], text_of(block.get("name")) or "")
        for block in content
        if block.__class__ is dict and block.get("kind") == "tool_call" and block.get("call_id").__class__ is str
    ]


def _tool_call(turns: Turns, event: Event) -> Problem | None:
    data = event.data
    problem = judge_in_step(turns, data)
    turn = _enter(turns, event)
    if turn is not None:
        call_id = data["call_id"]
        call = turn.pairing.requested_for(call_id, data["step"])
        requested = call is not None
        if call is None:
            call = Call(turn.call_count, call_id, data["name"], data["step"], data["run_id"])
            turn.call_count += 1
            turn.calls.append(call)
        call.call_seq, call.operation_id, call.recovery = event.seq, data["operation_id"], intern(data["recovery"])
        turn.pairing.dispatch(call, requested)
    return problem


def _tool_result(turns: Turns, event: Event) -> Problem | None:
    data = event.data
    operation = text_of(data.get("operation_id"))
    turn = turns.open.get(data["turn_id"])
    if turn is None:
        problem = _homeless(turns, data)
        turn = turns.believe(data, event.seq)
        if turn is not None:
            turn.last_seq = event.seq
        return problem
    call = turn.pairing.find(data["call_id"], operation, data["step"])
    problem = _judge_answer(turn, data, call, operation)
    turn.last_seq = event.seq
    turn.pause = None
    if call is not None:
        state = intern(data["state"])
        turn.pairing.answer(call, state)
        turn.answered += 1
        if state == "unknown":
            if call.call_seq is None:
                call.call_seq = whole(data.get("call_seq")) or event.seq
            turns.unknown[key_of(call.call_seq, turn.turn_id)] = Unknown(
                turn.turn_id, call.run_id, call.call_id, call.name, call.call_seq, call.operation_id, call.recovery
            )
        if not turn.step_open:
            turn.flush()
    return problem


def _tool_outcome(turns: Turns, event: Event) -> Problem | None:
    data = event.data
    problem = judge_outcome(turns, data)
    key = key_of(data["call_seq"], data["turn_id"])
    if turns.unknown.pop(key, None) is not None:
        turns.outcomes[key] = [data["state"], data["source"]]
    return problem


def key_of(call_seq: int, turn_id: str) -> str:
    return f"{call_seq}@{turn_id}"


def _stop_requested(turns: Turns, event: Event) -> Problem | None:
    data = event.data
    turn_id = data["turn_id"]
    if turn_id in turns.open or not turns.closed.own(turn_id):
        stop = Stop(event.seq, data["stop_id"], data["source"], data["mode"], text_of(data.get("run_id")))
        turns.stops.setdefault(turn_id, []).append(stop)
    return None


def _turn_end(turns: Turns, event: Event) -> Problem | None:
    data = event.data
    problem = judge_turn_end(turns, data)
    turn = turns.believe(data, event.seq)
    if turn is not None:
        turns._close(turn, event.seq, data["reason"], orjson.dumps(data["reason"]))
    return problem


def _claim(turns: Turns, event: Event) -> Problem | None:
    data = event.data
    run_id = text_of(data["target_run"].get("run_id"))
    if run_id is not None and run_id not in turns.claimed:
        turns.claimed[run_id] = [data["turn"], data["target_run"].get("turn_id"), data["purpose"]]
    return None


def _start(turns: Turns, event: Event) -> Problem | None:
    data = event.data
    problem = judge_start(turns, data)
    run_id, turn_id, seq = data["run_id"], data["turn_id"], event.seq
    claimed = turns.claimed.pop(run_id, None)
    turn = turns.open.get(turn_id)
    if turn is None and data["purpose"] != "handoff" and not turns.closed.own(turn_id):
        number = claimed[0] if claimed is not None else turns.last + 1
        turn = OpenTurn(turn_id, number, seq, seq, {run_id: None})
        turns.add(turn)
    elif turn is None:
        turn = turns.believe(data, seq)
    elif run_id not in turn.run_ids:
        turns.add_run(turn, run_id)
    if turn is not None:
        turn.last_seq = turn.start_seq = seq
        turn.start_kind = data["start_kind"]
        turn.pause = None
    return problem


def _pause(turns: Turns, event: Event) -> Problem | None:
    """The caller has found it valid."""
    turn = turns.open[event.data["turn_id"]]
    turn.last_seq = event.seq
    turn.pause = event.data["handoff_id"]
    return None


def _header(turns: Turns, event: Event) -> Problem | None:
    turns.fork()
    turns.loose = isinstance(event.data.get("parent"), dict)
    turns.lost = False
    turns.tool_boundary = event.data.get("tool_boundary") == TOOL_BOUNDARY
    return None


HANDLERS: Final[Handlers] = {
    "session/header": _header,
    "turn/start": _turn_start,
    "user/message": _user_message,
    "step/start": _step_start,
    "request/header": _request_header,
    "assistant/delta": _delta,
    "assistant/message": _assistant_message,
    "tool/call": _tool_call,
    "tool/result": _tool_result,
    "tool/outcome": _tool_outcome,
    "turn/stop_requested": _stop_requested,
    "step/end": _step_end,
    "turn/end": _turn_end,
    "continuation/claim": _claim,
    "continuation/start": _start,
    "handoff/pause": _pause,
}


# ---------------------------------------------------------------- what is shown


def rows(turns: Turns) -> list[JsonObject]:
    """``[{turn_id, turn, status, reason, run_ids, first_seq, last_seq, steps, calls: [{call_id, name, state}]}]``.

    A turn without end has the status that a repair would give it, or ``paused``, or ``indeterminate``.
    """
    out = [_row(turns, row) for row in turns.closed.since()]
    for turn in turns.open.values():
        reason: JsonObject | None = None
        if turns.left_alone(turn):
            status = str(turn.rest)
        else:
            stops = turns.stops.get(turn.turn_id)
            reason = {"kind": "aborted", "source": stops[-1].source} if stops else {"kind": "interrupted"}
            status = reason["kind"]
        calls = orjson.loads(turn.call_rows(turns.tool_boundary))
        head = [turn.turn_id, turn.turn, status, reason, turn.run_ids, turn.first_seq, turn.last_seq, turn.steps]
        out.append(_row(turns, [*head, calls]))
    out.sort(key=lambda row: row["first_seq"])
    return [_row(turns, row) for row in turns.closed.inherited()] + out


def _row(turns: Turns, row: list[Any]) -> JsonObject:
    turn_id, turn, status, reason, run_ids, first_seq, last_seq, steps, calls = row
    return {
        "turn_id": turn_id,
        "turn": turn,
        "status": status,
        "reason": reason,
        "run_ids": list(run_ids),
        "first_seq": first_seq,
        "last_seq": last_seq,
        "steps": steps,
        "calls": [_call(turns, turn_id, *call[1:]) for call in sorted(calls, key=lambda call: call[0])],
    }


def _call(turns: Turns, turn_id: str, call_id: str, name: str, state: str, call_seq: int | None) -> JsonObject:
    call = {"call_id": call_id, "name": name, "state": state}
    outcome = None if call_seq is None else turns.outcomes.get(key_of(call_seq, turn_id))
    if outcome is not None:
        call["outcome"] = outcome[0]
    return call
