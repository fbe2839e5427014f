"""Turns that were promised to a client before they began, and the chain that they form. No I/O."""

from typing import Final

import attrs

from ..events import Event, JsonObject
from .problem import Handlers, Problem, Refusals, Rules, mapping, text_of

#: The one kind whose turn has no user message of its own: it sends again what its source run was told.
WITHOUT_MESSAGE: Final = "linked_child_provider_retry"


@attrs.define(slots=True)
class Admission:
    """An admission that is not complete: its turn has not started, or lacks the admission's message.

    ``seq`` and ``ts`` are those of its turn/admitted, ``data`` is its data. ``run``: the header of its run/created, if
    that came. ``started_seq``: its turn/start. ``stepped``: a step of the turn has begun; ``ended``: it has ended.
    ``stop``: the source of a turn/stop_requested for it.
    """

    turn_id: str
    run_id: str
    seq: int
    ts: int
    data: JsonObject
    run: JsonObject | None = None
    started_seq: int | None = None
    stepped: bool = False
    ended: bool = False
    stop: str | None = None

    @property
    def kind(self) -> str:
        """``root``, one of the linked child kinds, or whatever a later version wrote."""
        return text_of(mapping(self.data["execution"]).get("kind")) or "root"

    @property
    def message_id(self) -> str | None:
        return text_of(self.data.get("message_id"))


@attrs.define(slots=True)
class Admissions:
    """``open`` by turn_id, oldest first. ``tip`` is the newest root turn of this journal, from when it was admitted,
    started or claimed, whichever was first. ``ids``: every admitted turn.

    ``by_run``: run_id → turn_id of those that are open.
    """

    open: dict[str, Admission] = attrs.field(factory=dict, metadata={"of": Admission})
    tip: str | None = None
    ids: dict[str, None] = attrs.field(factory=dict)
    by_run: dict[str, str] = attrs.field(factory=dict)

    def waiting(self) -> list[Admission]:
        """Root admissions that a runtime takes up: no run, no start, no stop."""
        return [
            admission
            for admission in self.open.values()
            if admission.kind == "root"
            and admission.run is None
            and admission.started_seq is None
            and admission.stop is None
        ]


def _mismatch(admissions: Admissions, turn_id: object, run_id: object) -> Problem | None:
    """Does this pair of turn and run contradict an admission?"""
    admission = admissions.open.get(turn_id) if isinstance(turn_id, str) else None
    if admission is not None and admission.run_id != run_id:
        return "admission_mismatch", f"turn {turn_id} was admitted with run {admission.run_id}, not with {run_id}"
    other = admissions.by_run.get(run_id) if isinstance(run_id, str) else None
    if other is not None and other != turn_id:
        return "admission_mismatch", f"run {run_id} was admitted for turn {other}, not for {turn_id}"
    return None


def judge_turn_start(admissions: Admissions, data: JsonObject) -> Problem | None:
    return _mismatch(admissions, data["turn_id"], data["run_id"]) if admissions.open else None


def judge_created(admissions: Admissions, data: JsonObject) -> Problem | None:
    run = data["run"]
    return _mismatch(admissions, run.get("turn_id"), run.get("run_id")) if admissions.open else None


def judge_message(admissions: Admissions, data: JsonObject) -> Problem | None:
    """The first message of an admitted turn is the admission's."""
    admission = admissions.open.get(data["turn_id"]) if admissions.open else None
    if admission is None or admission.started_seq is None or data["source"].get("kind") == "steering":
        return None
    message_id, given = admission.message_id, mapping(admission.data["input"])
    if message_id is not None and message_id != data["message_id"]:
        return (
            "admission_mismatch",
            f"turn {admission.turn_id} was admitted with message {message_id}, not with {data['message_id']}",
        )
    if isinstance(given.get("content"), list) and given["content"] != data["content"]:
        return (
            "admission_mismatch",
            f"message {data['message_id']} is not what turn {admission.turn_id} was admitted with",
        )
    return None


RULES: Final[Rules] = {
    "turn/start": judge_turn_start,
    "run/created": judge_created,
    "user/message": judge_message,
}


def refuse_admitted(admissions: Admissions, data: JsonObject) -> str | None:
    turn_id, run_id = data["turn_id"], data["run_id"]
    if turn_id in admissions.ids:
        return f"turn {turn_id} was admitted before"
    return f"run {run_id} was admitted before" if run_id in admissions.by_run else None


REFUSALS: Final[Refusals] = {"turn/admitted": refuse_admitted}


def _header(admissions: Admissions, event: Event) -> Problem | None:
    admissions.open.clear()
    admissions.ids.clear()
    admissions.by_run.clear()
    admissions.tip = None
    return None


def _admitted(admissions: Admissions, event: Event) -> Problem | None:
    data = event.data
    turn_id, run_id = data["turn_id"], data["run_id"]
    if turn_id not in admissions.ids and run_id not in admissions.by_run:
        admission = Admission(turn_id, run_id, event.seq, event.ts, data)
        admissions.open[turn_id] = admission
        admissions.ids[turn_id] = None
        admissions.by_run[run_id] = turn_id
        if admission.kind == "root":
            admissions.tip = turn_id
    return None


def _created(admissions: Admissions, event: Event) -> Problem | None:
    if not admissions.open:
        return None
    problem = judge_created(admissions, event.data)
    run = event.data["run"]
    turn_id = admissions.by_run.get(run["run_id"]) if run.get("run_id").__class__ is str else None
    if turn_id is not None and problem is None and admissions.open[turn_id].run is None:
        admissions.open[turn_id].run = run
    return problem


def _turn_start(admissions: Admissions, event: Event) -> Problem | None:
    data = event.data
    if data["turn_id"] not in admissions.ids:
        admissions.tip = data["turn_id"]
    if not admissions.open:
        return None
    problem = judge_turn_start(admissions, data)
    admission = admissions.open.get(data["turn_id"])
    if admission is not None and admission.started_seq is None:
        admission.started_seq = event.seq
        if admission.kind == WITHOUT_MESSAGE:
            _forget(admissions, admission)
    return problem


def _claim(admissions: Admissions, event: Event) -> Problem | None:
    """A resume is the admission of its turn."""
    turn_id = text_of(event.data["target_run"].get("turn_id"))
    if event.data["purpose"] == "resume" and turn_id is not None and turn_id not in admissions.ids:
        admissions.tip = turn_id
    return None


def _message(admissions: Admissions, event: Event) -> Problem | None:
    if not admissions.open:
        return None
    problem = judge_message(admissions, event.data)
    admission = admissions.open.get(event.data["turn_id"])
    if admission is not None and admission.started_seq is not None and event.data["source"].get("kind") != "steering":
        _forget(admissions, admission)
    return problem


def _step_start(admissions: Admissions, event: Event) -> Problem | None:
    if admissions.open:
        admission = admissions.open.get(event.data["turn_id"])
        if admission is not None and admission.started_seq is not None:
            admission.stepped = True
    return None


def _stop(admissions: Admissions, event: Event) -> Problem | None:
    admission = admissions.open.get(event.data["turn_id"])
    if admission is not None:
        admission.stop = event.data["source"]
    return None


def _turn_end(admissions: Admissions, event: Event) -> Problem | None:
    if admissions.open:
        admission = admissions.open.get(event.data["turn_id"])
        if admission is not None and admission.started_seq is not None:
            admission.ended = True
            if admission.message_id is None:
                _forget(admissions, admission)
    return None


def _forget(admissions: Admissions, admission: Admission) -> None:
    del admissions.open[admission.turn_id]
    del admissions.by_run[admission.run_id]


HANDLERS: Final[Handlers] = {
    "session/header": _header,
    "turn/admitted": _admitted,
    "run/created": _created,
    "turn/start": _turn_start,
    "continuation/claim": _claim,
    "user/message": _message,
    "step/start": _step_start,
    "turn/stop_requested": _stop,
    "turn/end": _turn_end,
}
