"""The fold of turns, their steps and calls, and what is shown of them. No I/O."""

from sys import intern
from typing import Any, Final

import orjson

from ..events import Event, JsonObject
from ..pairing import Call
from .order import RULES as RULES  # state asks each view for its rules
from .order import (
    judge_answer,
    judge_home,
    judge_in_step,
    judge_outcome,
    judge_start,
    judge_step_start,
    judge_turn_end,
    judge_turn_start,
    judge_user_message,
)
from .problem import Handlers, Problem, text_of, whole
from .session import TOOL_BOUNDARY
from .turn import Delta, OpenTurn, Stop, Turns, Unknown, key_of


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
        problem = judge_home(turns, data)
        turn = turns.believe(data, event.seq)
        if turn is not None:
            turn.last_seq = event.seq
        return problem
    call = turn.pairing.find(data["call_id"], operation, data["step"])
    problem = judge_answer(turn, data, call, operation)
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
        turns.outcomes[key] = [data["state"], data["source"], data["call_id"], data["operation_id"]]
    return problem


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
    if run_id is not None:
        turns.claim(run_id, data["turn"], data["target_run"].get("turn_id"), data["purpose"])
    return None


def _settled(turns: Turns, event: Event) -> Problem | None:
    """A claimed run that is settled had a turn, and all of that was lost."""
    run_id = event.data["run_id"]
    claimed = turns.claimed.get(run_id)
    if claimed is not None and claimed[2] == "resume":
        turns.believe({"turn_id": claimed[1], "run_id": run_id}, event.seq)
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
    "run/settled": _settled,
    "continuation/start": _start,
    "handoff/pause": _pause,
}


# ---------------------------------------------------------------- what is shown


def rows(turns: Turns) -> list[JsonObject]:
    """``[{turn_id, turn, status, reason, run_ids, first_seq, last_seq, steps, calls: [{call_id, name, state}]}]``.

    A turn without end has the status that a repair would give it, or ``paused``, or ``indeterminate``.
    """
    out = [_row(turns, row) for row in turns.closed.since()]
    out += [_open_row(turns, turn) for turn in turns.open.values()]
    out.sort(key=lambda row: row["first_seq"])
    return [_row(turns, row) for row in turns.closed.inherited()] + out


def row(turns: Turns, turn_id: str) -> JsonObject | None:
    """The row of one turn of this journal; None: there is no such turn, or only a parent has it."""
    turn = turns.open.get(turn_id)
    if turn is not None:
        return _open_row(turns, turn)
    over = turns.closed.get(turn_id) if turns.closed.own(turn_id) else None
    return None if over is None else _row(turns, over)


def _open_row(turns: Turns, turn: OpenTurn) -> JsonObject:
    status, reason = standing(turns, turn)
    calls = orjson.loads(turn.call_rows(turns.tool_boundary))
    head = [turn.turn_id, turn.turn, status, reason, turn.run_ids, turn.first_seq, turn.last_seq, turn.steps]
    return _row(turns, [*head, calls])


def standing(turns: Turns, turn: OpenTurn) -> tuple[str, JsonObject | None]:
    """Status of an open turn, and the reason that a repair would end it with; None where that leaves it open."""
    if turns.left_alone(turn):
        return str(turn.rest), None
    stops = turns.stops.get(turn.turn_id)
    kind = "aborted" if stops else "interrupted"
    return kind, {"kind": kind, "source": stops[-1].source} if stops else {"kind": kind}


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
        call["outcome"], call["outcome_source"] = outcome[:2]
    return call
