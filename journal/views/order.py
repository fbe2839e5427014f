"""What no correct writer produces inside a turn: each relation stated once, for reading and for writing. No I/O."""

from typing import Final

from ..events import JsonObject
from ..pairing import Call
from .problem import Problem, Rules, text_of
from .turn import OpenTurn, Turns, key_of


def _order(turn: OpenTurn, sentence: str) -> Problem | None:
    return None if turn.broken else ("turn_order", sentence)


def judge_home(turns: Turns, data: JsonObject) -> Problem | None:
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
        return judge_home(turns, data)
    if turn.step_open:
        return _order(turn, f"a user message stands inside step {turn.step} of turn {turn.turn_id}")
    if turn.step and data["source"].get("kind") == "user":
        return _order(turn, f"a user message that is no steering stands behind step {turn.step} of turn {turn.turn_id}")
    return _stranger(turn, data["run_id"])


def judge_step_start(turns: Turns, data: JsonObject) -> Problem | None:
    turn = turns.open.get(data["turn_id"])
    if turn is None:
        return judge_home(turns, data)
    if turn.step_open:
        return _order(turn, f"step {data['step']} of turn {turn.turn_id} begins while step {turn.step} is open")
    if data["step"] != turn.step + 1:
        return _order(turn, f"step {data['step']} of turn {turn.turn_id} begins, and {turn.step + 1} comes next")
    return _stranger(turn, data["run_id"])


def judge_in_step(turns: Turns, data: JsonObject) -> Problem | None:
    turn = turns.open.get(data["turn_id"])
    if turn is None:
        return judge_home(turns, data)
    if turn.step_open and turn.step == data["step"] and turn.step_run == data["run_id"]:
        return None
    return _order(
        turn, f"it names step {data['step']} of run {data['run_id']}, which is not open in turn {turn.turn_id}"
    )


def judge_result(turns: Turns, data: JsonObject) -> Problem | None:
    turn = turns.open.get(data["turn_id"])
    if turn is None:
        return judge_home(turns, data)
    operation = text_of(data.get("operation_id"))
    return judge_answer(turn, data, turn.pairing.find(data["call_id"], operation, data["step"]), operation)


def judge_answer(turn: OpenTurn, data: JsonObject, call: Call | None, operation: str | None) -> Problem | None:
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
        return judge_home(turns, data)
    if turn.step_open:
        return _order(turn, f"turn {turn.turn_id} ends while its step {turn.step} is open")
    return _stranger(turn, data["run_id"])


def judge_start(turns: Turns, data: JsonObject) -> Problem | None:
    run_id, turn_id = data["run_id"], data["turn_id"]
    turn = turns.open.get(turn_id)
    claimed = turns.claimed.get(run_id)
    if data["purpose"] == "handoff":
        if turn is None:
            return judge_home(turns, data)
        if turn.broken:
            return None
        if claimed is None or claimed[1:] != [turn_id, "handoff"] or turn.pause is None:
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
