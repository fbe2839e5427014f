"""What holds of every history that a kernel has written, whatever its backends did. Shares nothing with it."""

from collections import Counter
from collections.abc import Sequence

from maka.journal.events import Event, JsonObject
from maka.repair.closers import plan_closers
from maka.runtime.session_events import STOP_REASONS, SessionEvent

from .memory_journals import check_legal, fold

#: They are about a run or a turn, and may stand behind its end.
_ANYWHERE = ("session/", "message/", "interaction/", "plan/", "run/", "tool/outcome", "turn/stop_requested")
#: What may name a run that was sealed.
_ABOUT_SEALED = ("session/note", "turn/stop_requested")


def wrongs(events: Sequence[Event]) -> list[str]:
    """What is wrong with the history of a session at any moment, cut off or not."""
    try:
        check_legal(events)
    except AssertionError as error:
        return [f"the history is not legal: {error}"]
    found: list[str] = []
    ended: dict[str, JsonObject] = {}
    of_run: dict[str, str] = {}
    noted: Counter[str] = Counter()
    asked: dict[str, str] = {}
    sealed: set[str] = set()
    given_up: set[str] = set()
    facts: Counter[str] = Counter()
    settled: Counter[str] = Counter()
    for event in events:
        data: JsonObject = event.data
        turn: str = data.get("turn_id") or of_run.get(data.get("run_id", ""), "")
        where = f"{event.type} at {event.seq}"
        if event.type in ("turn/start", "continuation/start"):
            of_run[data["run_id"]] = data["turn_id"]
        if data.get("run_id") in sealed and event.type not in _ABOUT_SEALED:
            found.append(f"{where} stands behind the pause of its run {data['run_id']}")
        if event.type == "handoff/pause":
            sealed.add(data["run_id"])
        if event.type in ("turn/end", "handoff/pause"):
            facts[data["run_id"]] += 1
        if event.type == "continuation/start" and (data["purpose"], data["start_kind"]) == ("handoff", "claim_repair"):
            given_up.add(data["turn_id"])
        if event.type == "turn/end":
            ended[turn] = data["reason"]
            found += [f"{where} stands before the outcome of {name}" for name, of in asked.items() if of == turn]
        elif turn in ended and not event.type.startswith(_ANYWHERE):
            found.append(f"{where} stands behind the end of its turn {turn}")
        if event.type == "session/note" and data["kind"] == "abort":
            noted[turn] += 1
        if event.type == "interaction/requested":
            asked[data["interaction_id"]] = turn
            if turn in ended:
                found.append(f"{where} is asked behind the end of its turn {turn}")
        if event.type == "interaction/resolved" and asked.pop(data["interaction_id"], None) is None:
            found.append(f"{where} resolves what does not wait")
        if event.type == "run/settled":
            settled[data["run_id"]] += 1
            if turn not in ended:
                found.append(f"{where} stands before the end of its turn {turn}")
    for turn, reason in ended.items():
        wanted = 1 if reason["kind"] == "aborted" and turn not in given_up else 0
        if noted[turn] != wanted:
            found.append(f"turn {turn} ended {reason['kind']} and has {noted[turn]} notes of an abort")
    found += [f"run {run} has {times} terminal facts" for run, times in facts.items() if times > 1]
    found += [f"run {run} is settled {times} times" for run, times in settled.items() if times > 1]
    return found


def left_open(events: Sequence[Event]) -> list[str]:
    """What a repair would add."""
    return [f"{draft.type} {draft.data}" for draft in plan_closers(fold(events)).drafts]


def untrue(told: SessionEvent, events: Sequence[Event]) -> str | None:
    """What a client was told and the durable history does not hold."""
    type_, wanted = _STANDS_FOR.get(told.kind, (None, ()))
    if type_ is None:
        return None
    for event in events:
        if event.type != type_ or event.data.get("turn_id", told.turn_id) != told.turn_id:
            continue
        if told.kind in ("complete", "abort", "error"):
            kind = event.data["reason"]["kind"]
            if told.kind != "complete" or STOP_REASONS.get(kind) == told.data["stop_reason"]:
                return None
        elif told.kind == "text_complete":
            blocks = [block.get("text") for block in event.data["content"]]
            if event.data["message_id"] == told.data["message_id"] and told.data["text"] in blocks:
                return None
        elif all(event.data[key] == told.data[key] for key in wanted):
            return None
    return f"{told.kind} {told.data} of {told.turn_id} was told and is not durable"


_STANDS_FOR = {
    "step_start": ("step/start", ("step",)),
    "step_end": ("step/end", ("step",)),
    "tool_start": ("tool/call", ("call_id", "operation_id")),
    "tool_result": ("tool/result", ("call_id", "state")),
    "text_complete": ("assistant/message", ()),
    "steering_message": ("user/message", ("message_id",)),
    "plan_submitted": ("plan/proposed", ("proposal_id",)),
    "abort": ("turn/end", ()),
    "error": ("turn/end", ()),
    "complete": ("turn/end", ()),
}
