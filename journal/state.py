"""The fold of a session: one ``State`` made of the views' states; ``apply`` for reading, ``check`` for writing. No I/O.

What no correct writer produces is stated once, in the ``RULES`` of the views: ``apply`` reports it as a finding,
``check`` refuses it. ``REFUSALS`` are stricter and only for writing. Both cost the same however long the session is.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import attrs

from .codec import check_shape
from .errors import InvalidEvent
from .events import EVENT_TYPES, Draft, Event, JsonObject, is_extension
from .findings import Finding, FindingList
from .views import (
    admissions,
    blobs,
    continuations,
    interactions,
    order,
    plans,
    queue,
    receipts,
    runs,
    session,
    turns,
    usage,
)
from .views.admissions import Admissions
from .views.blobs import Blobs
from .views.continuations import Continuations, Handoff
from .views.interactions import Interactions
from .views.plans import Plans
from .views.problem import Problem, mapping, sequence, text_of, whole
from .views.queue import Queue
from .views.receipts import Receipts
from .views.runs import Runs
from .views.session import Session
from .views.turn import Turns, key_of
from .views.usage import Usage

#: At most this many type names of extensions are kept.
_NAMES: Final = 20

#: What only ever stands between the opening of its turn and the end.
_OF_OPEN_TURN: Final = frozenset(
    {
        "user/message",
        "step/start",
        "step/end",
        "request/header",
        "assistant/message",
        "tool/call",
        "tool/result",
        "handoff/pause",
        "turn/end",
    }
)

#: The views in the order in which they see an event: attribute of ``State``, module.
_VIEWS: Final[tuple[tuple[str, Any], ...]] = (
    ("turns", turns),
    ("runs", runs),
    ("admissions", admissions),
    ("continuations", continuations),
    ("interactions", interactions),
    ("queue", queue),
    ("receipts", receipts),
    ("plans", plans),
    ("usage", usage),
    ("blobs", blobs),
    ("session", session),
)


#: For each type the views that hold a draft of it against themselves: attribute of ``State``, rule, refusal.
_CHECKS: Final[dict[str, tuple[tuple[str, Any, Any], ...]]] = {
    type_: tuple(
        (name, rule, refusal)
        for name, module in _VIEWS
        for rule, refusal in [(getattr(module, "RULES", {}).get(type_), getattr(module, "REFUSALS", {}).get(type_))]
        if rule is not None or refusal is not None
    )
    for type_ in EVENT_TYPES
}


@attrs.define(slots=True, eq=False)
class State:
    """Everything that the events so far amount to.

    ``problems``: relations that no correct writer produces. ``last_ts`` is the newest event's. ``skews`` counts the
    times at which the clock stepped back, ``skew_seq`` is the first. ``extensions``: how many events of extensions
    there are, by type, at most twenty types by name. ``unverified_seq``: the first line of this file that is not
    verified, or at which something was lost. ``lost_seq``: the newest number that is either.
    """

    session: Session = attrs.field(factory=Session)
    turns: Turns = attrs.field(factory=Turns)
    runs: Runs = attrs.field(factory=Runs)
    interactions: Interactions = attrs.field(factory=Interactions)
    queue: Queue = attrs.field(factory=Queue)
    admissions: Admissions = attrs.field(factory=Admissions)
    receipts: Receipts = attrs.field(factory=Receipts)
    continuations: Continuations = attrs.field(factory=Continuations)
    plans: Plans = attrs.field(factory=Plans)
    usage: Usage = attrs.field(factory=Usage)
    blobs: Blobs = attrs.field(factory=Blobs)
    problems: FindingList = attrs.field(factory=FindingList)
    last_ts: int = 0
    skews: int = 0
    skew_seq: int = -1
    extensions: dict[str, int] = attrs.field(factory=dict)
    unverified_seq: int | None = None
    lost_seq: int | None = None
    _handlers: dict[str, Callable[[Event], Problem | None]] = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        views = [(getattr(self, name), module.HANDLERS) for name, module in _VIEWS]
        self._handlers = {}
        for type_ in EVENT_TYPES:
            handlers = [partial(by_type[type_], view) for view, by_type in views if type_ in by_type]
            if type_ in _FIRST:
                handlers.insert(0, partial(_FIRST[type_], self))
            if type_ in _LAST:
                handlers.append(partial(_LAST[type_], self))
            if type_ in _INSTEAD:
                handlers = [partial(_INSTEAD[type_], self)]
            self._handlers[type_] = handlers[0] if len(handlers) == 1 else partial(_each, handlers)

    def apply(self, event: Event) -> None:
        """Fold one event. Never raises for an event that was read."""
        if event.ts < self.last_ts and event.seq:
            self._skew(event)
        self.last_ts = event.ts
        if not event.verified:
            self._lose_at(event.seq)
        handle = self._handlers.get(event.type)
        if handle is None:
            if is_extension(event.type):
                self._extension(event.type)
            return
        problem = handle(event)
        if problem is not None:
            self._report(event, problem)

    def live(self, seq: int, ts: int, data: JsonObject) -> None:
        """``apply`` of an ``assistant/delta`` that stands as it was written: nearly always more of the same message."""
        if ts >= self.last_ts and self.turns.more_live(data):
            self.last_ts = ts
        else:
            self.apply(Event(seq, ts, "assistant/delta", data, ""))

    def inherit(self, event: Event) -> None:
        """Fold an event of a fork's parent; what is wrong with it is the parent's to tell.

        The fork's own header, applied next, ends what is work (docs/format.md, "Forks").
        """
        problems, self.problems = self.problems, FindingList()
        self.apply(event)
        self.problems = problems
        self.skews, self.skew_seq = 0, -1
        self.unverified_seq = self.lost_seq = None
        self.extensions.clear()
        self.blobs.refs.clear()

    def check(self, draft: Draft) -> None:
        """Raises InvalidEvent for a draft that may not follow on what was folded. Changes nothing.

        The draft has the shape of its type. A repair's closers are not checked: they end what this would refuse.
        """
        type_, data = draft.type, draft.data
        if type_ in _OF_OPEN_TURN and data["turn_id"] not in self.turns.open:
            # What was lost excuses what is read, never what is written.
            where = order.homeless(self.turns, data["turn_id"])
            raise InvalidEvent(f"{type_} is out of order: {where} (turn_order)", type=type_)
        for name, rule, refusal in _CHECKS.get(type_, ()):
            view = getattr(self, name)
            if rule is not None and (problem := rule(view, data)) is not None:
                raise InvalidEvent(f"{type_} is out of order: {problem[1]} ({problem[0]})", type=type_)
            if refusal is not None and (sentence := refusal(view, data)) is not None:
                raise InvalidEvent(f"{type_} is refused: {sentence}", type=type_)
        across = _REFUSALS.get(type_)
        if across is not None and (sentence := across(self, data)) is not None:
            raise InvalidEvent(f"{type_} is refused: {sentence}", type=type_)

    def information(self) -> list[Finding]:
        """What a reader should know at the end: work that a runtime picks up, extensions, quarantine, the clock."""
        found = []
        if self.skews:
            what = f"the clock stepped back {self.skews} times; events are ordered by number, never by time"
            found.append(Finding("clock_skew", what, seq=self.skew_seq, count=self.skews))
        if self.extensions:
            total = sum(self.extensions.values())
            names = ", ".join(sorted(self.extensions))
            found.append(
                Finding("extension_events", f"{total} events of extensions ({names}) are kept and skipped", count=total)
            )
        if self.session.quarantine_seq is not None:
            text = self.session.quarantine_text
            what = "the session was quarantined" + (f": {text}" if text else "")
            found.append(Finding("quarantine", what, seq=self.session.quarantine_seq))
        if waiting := self.queue.waiting:
            first = next(iter(waiting.values()))
            found.append(
                Finding("queued_messages", f"{len(waiting)} accepted messages wait in the queue", seq=first.seq)
            )
        for admission in self.admissions.waiting():
            if self.turns.known(admission.turn_id):
                continue  # it has run, and its opening was lost
            what = f"turn {admission.turn_id} was admitted and has not been run"
            found.append(Finding("admitted_without_run", what, seq=admission.seq))
        for handoff in self.continuations.pending():
            turn = self.turns.open.get(handoff.data["turn_id"])
            if turn is None or turn.pause != handoff.handoff_id or turn.turn_id in self.turns.stops:
                continue
            if not self.taken(handoff):  # else it is told as stuck
                waits = f"turn {turn.turn_id} is paused and waits for run {handoff.data['successor_run_id']}"
                what = f"{waits} (handoff {handoff.handoff_id})"
                found.append(Finding("pending_handoff", what, seq=handoff.seq))
        if (plan := self.plans.running()) is not None:
            what = f"execution {plan.execution_id} of plan {plan.proposal_id} ({plan.title}) is active"
            found.append(Finding("active_plan", what, seq=plan.seq))
        return found

    # What a continuation goes by.

    def segments(self, run_id: str) -> list[JsonObject]:
        """The boundary segments of a run's lineage, oldest first, its own last. The run has a terminal fact."""
        run = self.runs.own(run_id)
        if run is None:
            raise ValueError(f"there is no run {run_id} in this journal")
        own = {
            "session_id": text_of(mapping(self.session.header).get("session_id")) or "",
            "invocation_id": run.invocation_id,
            "run_id": run_id,
            "turn_id": run.turn_id,
            "first_seq": run.seq if run.opened_seq is None else run.opened_seq,
            "last_seq": run.terminal_seq,
            "sum": run.terminal_sum,
        }
        return [*self.continuations.segments(self.continuations.by_target.get(run_id)), own]

    def startable(self, run_id: str, turn_id: str) -> bool:
        """Can a claim's run still start in this turn: is nothing known of it but that it was created for the turn?"""
        if run_id in self.runs.closed:
            return False
        run = self.runs.live.get(run_id)
        free = run is None or (run.opened_seq is run.terminal_seq is None and run.turn_id == turn_id)
        ids = {"run_id": run_id, "turn_id": turn_id}
        return free and admissions.judge_created(self.admissions, {"run": ids}) is None

    def taken(self, handoff: Handoff) -> bool:
        """Does something else hold what a pause has reserved? Then its successor neither goes on nor is given up.

        A run with exactly the ids of the pause, of which nothing is known but that it was created, is the successor.
        """
        pause, held = handoff.data, self.continuations
        claim_id, successor, turn_id = pause["claim_id"], pause["successor_run_id"], pause["turn_id"]
        if successor in self.admissions.by_run or not self.startable(successor, turn_id):
            return True
        if (claim := held.claims.get(claim_id)) is not None:
            fits = (claim.purpose, claim.target_run_id, claim.target_turn_id) == ("handoff", successor, turn_id)
            return not (fits and held.by_target.get(successor) == claim_id)
        paused, created = self.runs.settled(pause["run_id"]), self.runs.live.get(successor)
        if paused is None or successor in held.by_target or paused.terminal_sum in held.by_boundary:
            return True
        return created is not None and not _promised_run(created.header, pause, paused.terminal_sum)

    def lineage_fault(self, run_id: str) -> tuple[str, str] | None:
        """Why nothing goes on from a run, as far as its lineage is concerned: a stable code and a sentence.

        ``runtime_lineage_missing``, ``source_prefix_digest_mismatch``, ``runtime_lineage_claim_mismatch``,
        ``runtime_lineage_start_mismatch``, ``runtime_lineage_cycle``. It was found when the claims were folded.
        """
        return continuations.lineage_fault(self.continuations, self.runs, run_id)

    # The read models as ``inspect`` shows them; the shapes are those of the views' ``rows``.

    def turn_rows(self) -> list[JsonObject]:
        return turns.rows(self.turns)

    def turn_row(self, turn_id: str) -> JsonObject | None:
        """One turn of this journal, however many there are; None: there is no such turn."""
        return turns.row(self.turns, turn_id)

    def run_rows(self) -> list[JsonObject]:
        return runs.rows(self.runs, self.interactions.by_run)

    def run_row(self, run_id: str) -> JsonObject | None:
        """One run of this journal, with ``seq``, however many there are; None: there is no such run."""
        return runs.row(self.runs, run_id, self.interactions.by_run)

    def continuation_rows(self) -> list[JsonObject]:
        return continuations.rows(self.continuations, self.runs, self.turns)

    def handoff_rows(self) -> list[JsonObject]:
        return continuations.handoff_rows(self.continuations, self.turns)

    def interaction_rows(self) -> list[JsonObject]:
        return interactions.rows(self.interactions)

    def queue_rows(self) -> dict[str, list[JsonObject]]:
        return queue.rows(self.queue, self.turns.open)

    def plan_rows(self) -> list[JsonObject]:
        return plans.rows(self.plans)

    def usage_row(self) -> dict[str, int]:
        return usage.row(self.usage)

    def execution_rows(self) -> list[JsonObject]:
        return continuations.executions(self.runs, self.turns)

    def execution_row(self, turn_id: str) -> JsonObject | None:
        """Of any turn, handed over or not; None: there is no such turn."""
        return continuations.execution(self.runs, self.turns, turn_id)

    def _report(self, event: Event, problem: Problem) -> None:
        code, sentence = problem
        self.problems.append(
            Finding(code, f"{event.type} {event.seq}: {sentence}", event.seq, event.offset, event.length)
        )

    def _skew(self, event: Event) -> None:
        self.skews += 1
        if self.skew_seq < 0:
            self.skew_seq = event.seq

    def lose(self) -> None:
        """Events may have been lost here."""
        self.turns.lose()
        self.runs.lost = True

    def _lose_at(self, seq: int, newest: int | None = None) -> None:
        self.lose()
        if self.unverified_seq is None:
            self.unverified_seq = seq
        self.lost_seq = max(self.lost_seq or 0, seq if newest is None else newest)

    def _extension(self, type_: str) -> None:
        if type_ not in self.extensions and len(self.extensions) >= _NAMES:
            type_ = "others"
        self.extensions[type_] = self.extensions.get(type_, 0) + 1


# ---------------------------------------------------------------- the fold, where several views are needed


def _promised_run(header: JsonObject | None, pause: JsonObject, boundary_digest: str | None) -> bool:
    """Is this the header of the successor that a pause has reserved, and one that can be claimed?"""
    if header is None or header.get("invocation_id") != pause["successor_invocation_id"]:
        return False
    said, wanted = header.get("continuation"), {"claim_id": pause["claim_id"], "boundary_digest": boundary_digest}
    if said is not None and {key: mapping(said).get(key) for key in wanted} != wanted:
        return False
    try:
        check_shape(Draft("run/created", {"run": header}))
    except InvalidEvent:
        return False
    return True


def _each(handlers: Sequence[Callable[[Event], Problem | None]], event: Event) -> Problem | None:
    """An event is told of once, however many relations it breaks."""
    found: Problem | None = None
    for handle in handlers:
        problem = handle(event)
        if problem is not None and found is None:
            found = problem
    return found


def _header(state: State, event: Event) -> Problem | None:
    """Line 0. What was folded before it is the prefix of a fork. In any other place it is no header."""
    if event.seq and state.session.header is not None:
        return "turn_order", "a second header stands in the journal"
    for name, module in _VIEWS:
        handle = module.HANDLERS.get("session/header")
        if handle is not None:
            handle(getattr(state, name), event)
    return None


def _gap(state: State, event: Event) -> Problem | None:
    missing, unverified = event.data["missing"], event.data["unverified"]
    if missing or unverified:
        told = [number for ends in missing for number in sequence(ends)] + unverified
        numbers = [number for number in told if whole(number) is not None and number < event.seq]
        state._lose_at(event.seq, max(numbers, default=event.seq))
    state.lose()
    return None


def _ending(state: State, event: Event) -> Problem | None:
    turn = state.turns.open.get(event.data["turn_id"])
    if turn is not None:
        if turn.pause is not None and event.data.get("synthesized") is True:
            state.continuations.handoffs[turn.pause].over = True  # a repair gave it up, by a start that was lost
        for call in turn.unanswered():
            what = f'the call {call.call_id} of tool "{call.name}" has no result, and its turn {turn.turn_id} has ended'
            seq = call.call_seq if call.call_seq is not None else call.message_seq
            state.problems.append(Finding("unanswered_call", what, seq=seq))
    return None


def _pause(state: State, event: Event) -> Problem | None:
    """A forged one is as if it were not there."""
    data = event.data
    turn = state.turns.open.get(data["turn_id"])
    sentence = _judge_pause(state, data)
    if sentence is not None:
        excused = turn.broken if turn is not None else state.turns.lost
        return None if excused else ("handoff_invalid", sentence)
    run = state.runs.live.get(data["run_id"])
    for view, module in ((state.turns, turns), (state.runs, runs), (state.continuations, continuations)):
        module.HANDLERS["handoff/pause"](view, event)
    if run is not None and run.header is not None:
        state.continuations.handoffs[data["handoff_id"]].source = run.header
    return None


def _judge_pause(state: State, data: JsonObject) -> str | None:
    waiting = data["run_id"] in state.interactions.by_run
    turn = state.turns.open.get(data["turn_id"])
    if data["successor_run_id"] in state.admissions.by_run:
        return f"its successor {data['successor_run_id']} was admitted for a turn of its own"
    return continuations.judge_pause(state.continuations, state.runs, turn, waiting, data)


def _claim(state: State, event: Event) -> Problem | None:
    claim = state.continuations.claims[event.data["claim_id"]]
    if claim.seq == event.seq:
        segments = sequence(event.data["boundary"].get("segments"))
        fault = continuations.judge_lineage(state.continuations, state.runs, claim, segments)
        if fault is not None:
            claim.blame(*fault)
    _void_claim(state, text_of(event.data["target_run"].get("run_id")) or "")
    return None


def _started(state: State, event: Event) -> Problem | None:
    """A turn rests at a start only where that can be settled: its run was not opened or over before."""
    turn, run = state.turns.open.get(event.data["turn_id"]), state.runs.live.get(event.data["run_id"])
    settles = run is not None and run.claim_id is not None and run.terminal_seq is None
    if turn is not None and turn.start_seq == event.seq and not settles:
        turn.start_kind = None
    return None


def _ended(state: State, event: Event) -> Problem | None:
    """A run that has ended keeps nobody waiting, whichever turn it ended."""
    run_id = event.data["run_id"]
    _void_claim(state, run_id)
    if (turn := state.turns.by_run(run_id)) is not None:
        turn.start_kind = None
    return None


def _created(state: State, event: Event) -> Problem | None:
    _void_claim(state, text_of(event.data["run"].get("run_id")) or "")
    return None


def _admitted(state: State, event: Event) -> Problem | None:
    for run_id in (event.data["run_id"], *state.turns.claimed_for(event.data["turn_id"])):
        _void_claim(state, run_id)
    return None


def _void_claim(state: State, run_id: str) -> None:
    """A claim whose ids are missing or taken, or whose own id is another claim's, keeps nobody waiting."""
    claimed = state.turns.claimed.get(run_id)
    held = run_id in state.continuations.by_target
    if claimed is not None and not (held and _startable(state, run_id, claimed[1])):
        state.turns.void(run_id)


def _startable(state: State, run_id: str, turn_id: Any) -> bool:
    """Is nothing but the claim, and the run that was created for it, known of the two?"""
    return text_of(turn_id) is not None and not state.turns.known(turn_id) and state.startable(run_id, turn_id)


#: Runs before the views' handlers; behind them; in their place.
_FIRST: Final[dict[str, Callable[[State, Event], Problem | None]]] = {"turn/end": _ending, "journal/gap": _gap}
_LAST: Final[dict[str, Callable[[State, Event], Problem | None]]] = {
    "continuation/claim": _claim,
    "continuation/start": _started,
    "turn/end": _ended,
    "run/created": _created,
    "turn/admitted": _admitted,
}
_INSTEAD: Final[dict[str, Callable[[State, Event], Problem | None]]] = {
    "session/header": _header,
    "handoff/pause": _pause,
}


# ---------------------------------------------------------------- what is refused, where several views are needed


def _refuse_header(state: State, data: JsonObject) -> str | None:
    return None if state.session.header is None else "the journal has its header"


def _refuse_turn_start(state: State, data: JsonObject) -> str | None:
    turn_id, run_id = data["turn_id"], data["run_id"]
    if state.turns.open:
        return f"turn {next(iter(state.turns.open))} is open"
    if turn_id in state.turns.closed:
        return f"turn {turn_id} exists in the session that this one was forked from"
    if data["turn"] <= state.turns.last:
        return f"turn {state.turns.last} exists already"
    if run_id in state.continuations.by_target:
        return f"run {run_id} is reserved by claim {state.continuations.by_target[run_id]}"
    return _claimed_before(state)


def _claimed_before(state: State) -> str | None:
    awaited = state.turns.awaited()
    return None if awaited is None else f"turn {awaited} is claimed and has not started; repair the session first"


def _refuse_user_message(state: State, data: JsonObject) -> str | None:
    turn = state.turns.open[data["turn_id"]]
    if turn.step and data["source"].get("kind") != "steering":
        return f"only steering follows a step of turn {turn.turn_id}"
    if state.queue.ids.get(data["message_id"]) == "admitted":
        admission = state.admissions.open.get(turn.turn_id)
        if admission is None or admission.message_id != data["message_id"]:
            return f"message {data['message_id']} was admitted for another turn"
    return None


def _refuse_delta(state: State, data: JsonObject) -> str | None:
    turn = state.turns.by_run(data["run_id"])
    return None if turn is not None and turn.step_open else f"no step of run {data['run_id']} is open"


def _refuse_message(state: State, data: JsonObject) -> str | None:
    known = data["message_id"] in state.turns.open[data["turn_id"]].message_ids
    return f"message {data['message_id']} is in the journal already" if known else None


def _refuse_call(state: State, data: JsonObject) -> str | None:
    known = data["operation_id"] in state.turns.open[data["turn_id"]].pairing.operations
    return f"operation {data['operation_id']} was dispatched before" if known else None


def _refuse_outcome(state: State, data: JsonObject) -> str | None:
    key = key_of(data["call_seq"], data["turn_id"])
    if key in state.turns.outcomes:
        return f"call {data['call_seq']} has its outcome already"
    return None if key in state.turns.unknown else f"the result of call {data['call_seq']} is not unknown"


def _refuse_step_end(state: State, data: JsonObject) -> str | None:
    turn = state.turns.open[data["turn_id"]]
    return _without_result([call for call in turn.unanswered() if call.step == data["step"]])


def _without_result(calls: list[Any]) -> str | None:
    return f"call {calls[0].call_id} has no result" if calls else None


def _refuse_turn_end(state: State, data: JsonObject) -> str | None:
    turn = state.turns.open[data["turn_id"]]
    waiting = next((item for item in state.interactions.pending.values() if item.run_id in turn.run_ids), None)
    if waiting is not None:
        return f"interaction {waiting.interaction_id} has no outcome"
    return _without_result(turn.unanswered())


def _refuse_stop(state: State, data: JsonObject) -> str | None:
    turn_id = data["turn_id"]
    if any(stop.stop_id == data["stop_id"] for stop in state.turns.stops.get(turn_id, ())):
        return f"stop {data['stop_id']} was requested before"
    if turn_id in state.turns.open or turn_id in state.admissions.open:
        return None
    claimed = any(entry[1] == turn_id for entry in state.turns.claimed.values())
    return None if claimed else f"turn {turn_id} is not open"


def _refuse_admitted(state: State, data: JsonObject) -> str | None:
    turn_id, run_id = data["turn_id"], data["run_id"]
    if turn_id in state.turns.open or turn_id in state.turns.closed:
        return f"turn {turn_id} exists already"
    if turn_id == state.turns.awaited():
        return f"turn {turn_id} is claimed"
    if state.runs.known(run_id) or run_id in state.continuations.by_target:
        return f"run {run_id} exists already"
    return _promised(state, run_id)


def _promised(state: State, run_id: str) -> str | None:
    handoff_id = state.continuations.promised(run_id)
    return None if handoff_id is None else f"run {run_id} is the successor that handoff {handoff_id} waits for"


def _refuse_created(state: State, data: JsonObject) -> str | None:
    run = data["run"]
    claim_id = state.continuations.by_target.get(run["run_id"])
    if claim_id is None:
        return _promised(state, run["run_id"])
    if state.continuations.claims[claim_id].target != run:
        return f"the run header differs from the one that claim {claim_id} reserved"
    return None


def _refuse_interaction(state: State, data: JsonObject) -> str | None:
    turn, run_id = state.turns.open.get(data["turn_id"]), data["run_id"]
    if turn is None or run_id not in turn.run_ids:
        return f"run {run_id} is no run of an open turn"
    carries = turn.newest_run == run_id and turn.pause is None
    return None if carries else f"run {run_id} does not carry turn {turn.turn_id} any more"


def _refuse_claim(state: State, data: JsonObject) -> str | None:
    target = data["target_run"]
    turn_id, run_id = target["turn_id"], target["run_id"]
    created = _created_as(state, data)
    if (state.runs.known(run_id) and not created) or run_id in state.admissions.by_run:
        return f"run {run_id} exists already"
    if data["purpose"] == "handoff":
        turn = state.turns.open.get(turn_id)
        if turn is None or turn.turn != data["turn"]:
            return f"turn {turn_id} is not open as number {data['turn']}"
    elif state.turns.open:
        return f"turn {next(iter(state.turns.open))} is open"
    elif turn_id in state.turns.closed or turn_id in state.admissions.open:
        return f"turn {turn_id} exists already"
    elif data["turn"] != state.turns.last + 1:
        return f"turn {turn_id} has the number {data['turn']}, and {state.turns.last + 1} comes next"
    elif (sentence := _claimed_before(state)) is not None:
        return sentence
    return _refuse_boundary(state, data)


def _created_as(state: State, data: JsonObject) -> bool:
    """Is the run of a handoff's claim there, as the claim has it, and nothing more known of it? So the claim of a
    successor that was created is made anew where it was lost.
    """
    target = data["target_run"]
    run = state.runs.live.get(target["run_id"])
    same = run is not None and run.header == target and data["purpose"] == "handoff"
    return same and state.startable(target["run_id"], target["turn_id"])


def _refuse_boundary(state: State, data: JsonObject) -> str | None:
    """The boundary is the source's terminal fact, by number and sum, behind the whole lineage."""
    source = data["source"]
    run_id = text_of(source.get("run_id")) or ""
    run = state.runs.own(run_id)
    if run is None or run.terminal_seq is None:
        return f"its source {run_id} has no terminal fact in this journal"
    if (source.get("high_water"), data["boundary_digest"]) != (run.terminal_seq, run.terminal_sum):
        return f"its boundary is not the terminal fact of run {run_id}, event {run.terminal_seq}"
    # A handoff can be given up whatever its lineage is; that nothing goes on from it, its start is held to.
    if data["purpose"] == "resume" and (fault := state.lineage_fault(run_id)) is not None:
        return f"nothing goes on from run {run_id}: {fault[1]} ({fault[0]})"
    lineage = state.segments(run_id)
    if wrong := [key for key in ("run_id", "invocation_id", "turn_id") if source.get(key) != lineage[-1][key]]:
        return f"its source names another {wrong[0]} than run {run_id} has"
    listed = [mapping(segment) for segment in sequence(data["boundary"].get("segments"))]
    if len(listed) != len(lineage) or any(
        given.get(key) != value
        for given, segment in zip(listed, lineage, strict=True)
        for key, value in segment.items()
    ):
        return f"the segments of its boundary are not the lineage of run {run_id}"
    if not 0 <= data["replay_through_seq"] <= run.terminal_seq:
        return f"it replays up to event {data['replay_through_seq']}, and run {run_id} ends with {run.terminal_seq}"
    return _refuse_target(data, created=_created_as(state, data))


def _refuse_target(data: JsonObject, *, created: bool) -> str | None:
    """What the run that is reserved says of its claim."""
    target = data["target_run"]
    if target["created_at"] != data["claimed_at"]:
        return f"run {target['run_id']} is created at {target['created_at']}, and claimed at {data['claimed_at']}"
    continuation = target.get("continuation")
    if continuation is None:
        return None
    # What a run that is there says of its source may be more than is left of that.
    said = ("claim_id", "boundary_digest") if created else ("claim_id", "boundary_digest", "source")
    wrong = [key for key in said if continuation.get(key) != data[key]]
    return f"run {target['run_id']} names another {wrong[0]} than claim {data['claim_id']} does" if wrong else None


def _refuse_pause(state: State, data: JsonObject) -> str | None:
    sentence = _judge_pause(state, data)
    if sentence is not None:
        return sentence
    run, turn = state.runs.live.get(data["run_id"]), state.turns.open[data["turn_id"]]
    root = next(iter(turn.run_ids))
    if turn.opened and data["root_run_id"] != root:
        return f"its root run is {data['root_run_id']}, and run {root} opened turn {turn.turn_id}"
    composed = run is not None and run.composition is not None
    return None if composed else f"run {data['run_id']} has no durable composition"


_REFUSALS: Final[dict[str, Callable[[State, JsonObject], str | None]]] = {
    "session/header": _refuse_header,
    "turn/start": _refuse_turn_start,
    "user/message": _refuse_user_message,
    "assistant/delta": _refuse_delta,
    "assistant/message": _refuse_message,
    "tool/call": _refuse_call,
    "tool/outcome": _refuse_outcome,
    "step/end": _refuse_step_end,
    "turn/end": _refuse_turn_end,
    "turn/stop_requested": _refuse_stop,
    "turn/admitted": _refuse_admitted,
    "run/created": _refuse_created,
    "interaction/requested": _refuse_interaction,
    "continuation/claim": _refuse_claim,
    "handoff/pause": _refuse_pause,
}
