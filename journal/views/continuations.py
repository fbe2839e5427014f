"""Claims on boundaries, handoffs, and the executions that they chain together. No I/O."""

from shlex import quote
from typing import Any, Final, Literal

import attrs

from ..events import PAUSE_PROTOCOL, Event, JsonObject
from ..shapes import OF_PAUSE, unfit_for_pause
from .problem import Handlers, Problem, Refusals, mapping, sequence, text_of
from .runs import Runs
from .turn import OpenTurn, Turns
from .turns import standing

ClaimState = Literal["reserved", "repair_required", "started_indeterminate", "settled"]
HandoffState = Literal["pending", "claimed", "continued", "abandoned"]
#: Why nothing goes on from a lineage: a stable code and a sentence. It is no finding.
Fault = tuple[str, str]

#: A claim's state → what it means, and what to do.
_ADVICE: Final[dict[ClaimState, str]] = {
    "reserved": "its run has not started; `maka session resume TARGET` starts it",
    "repair_required": "its run was cut off; `maka session resume TARGET` repairs the session and goes on from there",
    "started_indeterminate": "whether its run asked the model is not known; look at what it may have done, then end it "
    "with `maka session settle TARGET --claim {claim}`",
    "settled": "its run is over; nothing to do",
}
_VOID: Final = "its run has not started and never can, because its ids are missing or taken; nothing to do"


@attrs.define(slots=True)
class Claim:
    """A continuation/claim. ``start_seq`` and ``start_kind`` are those of its continuation/start.

    ``data`` is its data, in the fold without the boundary: of that ``segment`` is the last segment, and the ones before
    it are those of ``earlier``, the claim that has reserved its source's run. So a long lineage is held once.
    Where the claim was lost it is known by its start (``seq``), and ``data`` holds no more than that says.
    ``root_run_id`` is the first run of its lineage and ``depth`` how many claims lead from there to the target.
    ``fault``: code and sentence of why nothing goes on from its lineage.
    """

    claim_id: str
    seq: int
    data: JsonObject
    root_run_id: str
    depth: int
    segment: JsonObject = attrs.field(factory=dict)
    earlier: str | None = None
    fault: list[str] | None = None
    start_seq: int | None = None
    start_kind: str | None = None

    def blame(self, code: str, sentence: str) -> None:
        """What is found first stands."""
        if self.fault is None:
            self.fault = [code, sentence]

    @property
    def purpose(self) -> str:
        purpose: str = self.data["purpose"]
        return purpose

    @property
    def target(self) -> JsonObject:
        """The run header that the claim reserves."""
        target: JsonObject = self.data["target_run"]
        return target

    @property
    def target_run_id(self) -> str:
        return text_of(self.target.get("run_id")) or ""

    @property
    def target_turn_id(self) -> str:
        return text_of(self.target.get("turn_id")) or ""


@attrs.define(slots=True)
class Handoff:
    """A valid handoff/pause. ``data`` is its data; ``over``: its turn ended, or went on, without its successor.

    ``source`` is the paused run's header, as long as its successor, which has the same configuration, may come.
    """

    handoff_id: str
    seq: int
    data: JsonObject
    over: bool = False
    source: JsonObject = attrs.field(factory=dict)


@attrs.define(slots=True)
class Continuations:
    """``claims`` by id, oldest first, and by what they reserve: the boundary's digest, and the target's run_id.

    ``pausing``: turn_id → the handoff whose successor has not started. ``reserved``: claim_id → its handoff.
    """

    claims: dict[str, Claim] = attrs.field(factory=dict, metadata={"of": Claim})
    by_boundary: dict[str, str] = attrs.field(factory=dict)
    by_target: dict[str, str] = attrs.field(factory=dict)
    handoffs: dict[str, Handoff] = attrs.field(factory=dict, metadata={"of": Handoff})
    pausing: dict[str, str] = attrs.field(factory=dict)
    reserved: dict[str, str] = attrs.field(factory=dict)

    def enter(self, claim: Claim) -> None:
        """Hold what a claim reserves for it, as far as no other does."""
        self.claims[claim.claim_id] = claim
        self.by_boundary.setdefault(claim.data["boundary_digest"], claim.claim_id)
        self.by_target.setdefault(claim.target_run_id, claim.claim_id)

    def ancestry(self, run_id: str) -> tuple[str, int]:
        """The first run of a run's lineage, and how many claims lead from there to it."""
        claim_id = self.by_target.get(run_id)
        return (run_id, 0) if claim_id is None else (self.claims[claim_id].root_run_id, self.claims[claim_id].depth)

    def segments(self, claim_id: str | None) -> list[JsonObject]:
        """The boundary of a claim, oldest first, as it and the claims before it list their own segments."""
        out = []
        while claim_id is not None:
            claim = self.claims[claim_id]
            out.append(claim.segment)
            claim_id = claim.earlier
        out.reverse()
        return out

    def pending(self) -> list[Handoff]:
        """Handoffs whose successor has not started, oldest first."""
        return [self.handoffs[handoff_id] for handoff_id in self.pausing.values()]

    def decided(self, turn_id: str, run_id: Any) -> None:
        """The turn waits for its successor no more: this run has gone on with it, handed it over or ended it."""
        handoff_id = self.pausing.pop(turn_id, None)
        if handoff_id is not None:
            handoff = self.handoffs[handoff_id]
            handoff.source = {}
            if handoff.data["successor_run_id"] != run_id:
                handoff.over = True

    def promised(self, run_id: str) -> str | None:
        """The pending handoff that has this run for its successor."""
        found = (item.handoff_id for item in self.pending() if item.data["successor_run_id"] == run_id)
        return next(found, None)


def claim_state(claim: Claim, runs: Runs, turns: Turns) -> ClaimState:
    """How a claim stands, from its target's ledger: a run may be known by more than its start, which may be lost."""
    run_id = claim.target_run_id
    if run_id in runs.closed:
        return "settled"
    run, turn = runs.live.get(run_id), turns.by_run(run_id)
    if turn is not None and turn.newest_run != run_id:
        return "settled"  # another run carries its turn: what ended it was lost
    if turn is not None and run is not None and run.claim_id not in (None, claim.claim_id):
        return "settled"  # its run is another claim's
    if turn is not None:
        rests = turn.rest == "indeterminate" and turns.left_alone(turn)
        return "started_indeterminate" if rests else "repair_required"
    if run is not None and run.terminal_seq is not None:
        return "repair_required"
    if claim.purpose == "handoff" and claim.start_seq is None:
        return "reserved"
    return "repair_required" if is_awaited(claim, turns) else "settled"


def is_awaited(claim: Claim, turns: Turns) -> bool:
    """Is nothing known of the turn that a resume claim has reserved, and can it still come?"""
    entry = turns.claimed.get(claim.target_run_id)
    return claim.start_seq is None and entry is not None and entry[2] == "resume"


def handoff_state(handoff: Handoff, continuations: Continuations, turns: Turns) -> HandoffState:
    """How a handoff stands. Where its successor's start was lost, what is known of the successor tells."""
    claim, turn_id = continuations.claims.get(handoff.data["claim_id"]), handoff.data["turn_id"]
    if claim is not None and claim.start_seq is not None:
        return "abandoned" if claim.start_kind == "claim_repair" else "continued"
    if handoff.over:
        return "abandoned"
    turn = turns.open.get(turn_id)
    went_on = turn is not None and handoff.data["successor_run_id"] in turn.run_ids
    if went_on or continuations.pausing.get(turn_id) != handoff.handoff_id:
        return "continued"
    return "pending" if claim is None else "claimed"


# ---------------------------------------------------------------- what no correct writer produces, what is refused


def judge_pause(
    continuations: Continuations, runs: Runs, turn: OpenTurn | None, waiting: bool, data: JsonObject
) -> str | None:
    """Why a handoff/pause seals nothing. ``turn``: the open turn it names; ``waiting``: its run waits for a client."""
    run_id = data["run_id"]
    if data["protocol"] != PAUSE_PROTOCOL:
        return f"its protocol is not {PAUSE_PROTOCOL}"
    if turn is None or run_id not in turn.run_ids:
        return f"run {run_id} is no run of an open turn {data['turn_id']}"
    if turn.newest_run != run_id or turn.pause is not None:
        return f"run {run_id} does not carry turn {turn.turn_id} any more"
    run = runs.own(run_id)
    if run is not None and run.terminal_seq is not None:
        return f"run {run_id} is over"
    if turn.step_open:
        return f"step {turn.step} of run {run_id} is open"
    if len(turn.calls) > turn.answered:
        return f"run {run_id} has calls without a result"
    if waiting:
        return f"run {run_id} waits for an interaction"
    remaining = data["remaining_steps"]
    if remaining is not None and remaining <= 0:
        return f"{remaining} steps remain"
    return _judge_ids(continuations, runs, turn, data, "" if run is None else run.invocation_id)


def _judge_ids(
    continuations: Continuations, runs: Runs, turn: OpenTurn, data: JsonObject, invocation_id: str
) -> str | None:
    """What is wrong with the ids that a pause names and reserves. ``invocation_id``: its run's, empty where unknown."""
    root, successor = data["root_run_id"], data["successor_run_id"]
    for key in OF_PAUSE:
        if (unfit := unfit_for_pause(data[key])) is not None:
            return f"its {key} {unfit}"
    if turn.opened and root not in turn.run_ids and not runs.known(root):
        return f"its root run {root} does not exist"
    if successor in turn.run_ids or runs.known(successor) or successor in continuations.by_target:
        return f"its successor {successor} exists already"
    for key in ("successor_run_id", "successor_invocation_id"):
        if data[key] == invocation_id:
            return f"its {key} {invocation_id} is the invocation of the run that it seals"
    if data["handoff_id"] in continuations.handoffs:
        return f"handoff {data['handoff_id']} exists already"
    if data["claim_id"] in continuations.claims or data["claim_id"] in continuations.reserved:
        return f"its claim {data['claim_id']} exists already"
    return None


def refuse_claim(continuations: Continuations, data: JsonObject) -> str | None:
    target, source = data["target_run"], data["source"]
    claim_id, run_id = data["claim_id"], target.get("run_id")
    if claim_id in continuations.claims:
        return f"claim {claim_id} exists already"
    holder = continuations.by_boundary.get(data["boundary_digest"])
    if holder is not None:
        return f"claim {holder} holds this boundary"
    holder = continuations.by_target.get(run_id) if isinstance(run_id, str) else None
    if holder is not None:
        return f"claim {holder} has reserved run {run_id}"
    handoff_id = continuations.pausing.get(target.get("turn_id", ""))
    if data["purpose"] == "handoff":
        handoff = continuations.handoffs.get(handoff_id or "")
        if handoff is None:
            return f"turn {target.get('turn_id')} waits for no handoff"
        wanted = {"claim_id": claim_id, "successor_run_id": run_id, "run_id": source.get("run_id")}
        wrong = [key for key, value in wanted.items() if handoff.data[key] != value]
        return f"handoff {handoff.handoff_id} reserved another {wrong[0]}" if wrong else None
    if claim_id in continuations.reserved:
        return f"claim {claim_id} is reserved for handoff {continuations.reserved[claim_id]}"
    return f"handoff {handoff_id} waits for its successor" if handoff_id is not None else None


def refuse_start(continuations: Continuations, data: JsonObject) -> str | None:
    claim = continuations.claims.get(data["claim_id"])
    if claim is None:
        return f"there is no claim {data['claim_id']}"
    if claim.start_seq is not None:
        return f"claim {claim.claim_id} was started before"
    if claim.fault is not None and data["start_kind"] != "claim_repair":
        return f"nothing goes on by claim {claim.claim_id}: {claim.fault[1]} ({claim.fault[0]})"
    return _unlike(claim, data)


def _unlike(claim: Claim, data: JsonObject) -> str | None:
    """What of a start is not its claim's."""
    wanted = {"run_id": claim.target_run_id, "turn_id": claim.target_turn_id, "purpose": claim.purpose}
    wanted |= {key: claim.data[key] for key in ("boundary_digest", "replay_digest", "source")}
    wrong = [key for key, value in wanted.items() if data[key] != value]
    return f"{wrong[0]} is not what claim {claim.claim_id} reserved" if wrong else None


REFUSALS: Final[Refusals] = {"continuation/claim": refuse_claim, "continuation/start": refuse_start}


# ---------------------------------------------------------------- lineages that nothing goes on from


def judge_lineage(continuations: Continuations, runs: Runs, claim: Claim, segments: list[Any]) -> Fault | None:
    """What is wrong with the boundary that a claim lists, or with the lineage that it goes on from."""
    earlier = continuations.claims.get(claim.earlier or "")
    if earlier is not None and earlier.fault is not None:
        return earlier.fault[0], earlier.fault[1]
    who, target = f"claim {claim.claim_id}", claim.target_run_id
    listed = [_mark(mapping(segment)) for segment in segments]
    if len({target, *(run_id for run_id, *_ in listed)}) <= len(listed):
        return "runtime_lineage_cycle", f"{who} names a run twice among its boundary and its target {target}"
    if runs.known(target) and not _claimed_anew(runs, claim):
        return "runtime_lineage_cycle", f"{who} reserves run {target}, which was there before"
    source = text_of(claim.data["source"].get("run_id")) or ""
    if len(listed) == claim.depth:  # else the lineage need not be walked
        wanted = [_mark(segment) for segment in continuations.segments(claim.earlier)]
        if listed == [*wanted, (source, *(_terminal(runs, source) or ()))]:
            return None
    for run_id in [source, *(run_id for run_id, *_ in listed)]:
        if _terminal(runs, run_id) is None:
            return "runtime_lineage_missing", f"run {run_id} of {who} is not in this journal or has no terminal fact"
    for run_id, *mark in listed:
        if tuple(mark) != _terminal(runs, run_id):
            what = f"{who} names event {mark[0]} as the terminal fact of run {run_id}, and it is not"
            return "source_prefix_digest_mismatch", what
    return "runtime_lineage_claim_mismatch", f"the boundary of {who} is not the lineage of run {source}"


def _claimed_anew(runs: Runs, claim: Claim) -> bool:
    """Was a successor's claim lost, and made again for the run as it was created by it?"""
    run = runs.live.get(claim.target_run_id)
    unopened = run is not None and run.opened_seq is run.terminal_seq is None and run.header == claim.target
    return claim.purpose == "handoff" and unopened


def _mark(segment: JsonObject) -> tuple[Any, ...]:
    return text_of(segment.get("run_id")) or "", segment.get("last_seq"), segment.get("sum")


def _terminal(runs: Runs, run_id: str) -> tuple[int, str | None] | None:
    """Number and sum of the terminal fact of a run of this journal."""
    run = runs.own(run_id)
    return None if run is None or run.terminal_seq is None else (run.terminal_seq, run.terminal_sum)


def lineage_fault(continuations: Continuations, runs: Runs, run_id: str) -> Fault | None:
    """Why nothing goes on from a run, as far as its lineage is concerned."""
    claim_id = continuations.by_target.get(run_id)
    run = runs.own(run_id)
    if run is not None and run.claim_id is not None and run.claim_id != claim_id:
        what = f"run {run_id} was started by claim {run.claim_id}, which has not reserved it"
        return "runtime_lineage_claim_mismatch", what
    fault = None if claim_id is None else continuations.claims[claim_id].fault
    return None if fault is None else (fault[0], fault[1])


# ---------------------------------------------------------------- the fold


def _header(continuations: Continuations, event: Event) -> Problem | None:
    for index in (
        continuations.claims,
        continuations.by_boundary,
        continuations.by_target,
        continuations.handoffs,
        continuations.pausing,
        continuations.reserved,
    ):
        index.clear()
    return None


def _claim(continuations: Continuations, event: Event) -> Problem | None:
    if event.data["claim_id"] not in continuations.claims:
        continuations.enter(claim_of(continuations, event.data, event.seq))
    return None


def claim_of(continuations: Continuations, data: JsonObject, seq: int) -> Claim:
    """A claim as it is folded: without the boundary, whose last segment it keeps."""
    source = text_of(data["source"].get("run_id")) or ""
    root, depth = continuations.ancestry(source)
    segments = sequence(mapping(data.get("boundary")).get("segments"))
    return Claim(
        data["claim_id"],
        seq,
        {key: value for key, value in data.items() if key != "boundary"},
        root,
        depth + 1,
        mapping(segments[-1]) if segments else {},
        continuations.by_target.get(source),
    )


def _of_start(continuations: Continuations, event: Event) -> Claim:
    """The claim of a start, where the claim itself was lost: it holds its boundary all the same."""
    data = event.data
    given = {key: data[key] for key in ("claim_id", "purpose", "boundary_digest", "replay_digest", "source")}
    given["target_run"] = {key: data[key] for key in ("run_id", "turn_id")}
    claim = claim_of(continuations, given, event.seq)
    claim.blame(
        "runtime_lineage_claim_mismatch",
        f"run {data['run_id']} was started by claim {claim.claim_id}, which is not on record",
    )
    return claim


def _created(continuations: Continuations, event: Event) -> Problem | None:
    run = event.data["run"]
    claim_id = continuations.by_target.get(text_of(run.get("run_id")) or "")
    if claim_id is not None and continuations.claims[claim_id].target != run:
        what = f"run {run.get('run_id')} was not created as claim {claim_id} reserved it"
        continuations.claims[claim_id].blame("runtime_lineage_claim_mismatch", what)
    return None


def _start(continuations: Continuations, event: Event) -> Problem | None:
    data = event.data
    claim = continuations.claims.get(data["claim_id"])
    if claim is None:
        claim = _of_start(continuations, event)
        continuations.enter(claim)
    if claim.start_seq is None and claim.target_run_id == data["run_id"]:
        claim.start_seq, claim.start_kind = event.seq, data["start_kind"]
        if (unlike := _unlike(claim, data)) is not None:
            claim.blame("runtime_lineage_start_mismatch", f"run {claim.target_run_id} was started, and {unlike}")
        # By a claim that no pause has reserved the source tells: perhaps the successor, whose start was lost.
        reserved = claim.claim_id in continuations.reserved
        continuations.decided(data["turn_id"], data["run_id"] if reserved else claim.data["source"].get("run_id"))
    return None


def _pause(continuations: Continuations, event: Event) -> Problem | None:
    """The caller has found it valid."""
    data = event.data
    handoff_id = data["handoff_id"]
    continuations.decided(data["turn_id"], data["run_id"])
    continuations.handoffs[handoff_id] = Handoff(handoff_id, event.seq, data)
    continuations.pausing[data["turn_id"]] = handoff_id
    continuations.reserved[data["claim_id"]] = handoff_id
    return None


def _turn_end(continuations: Continuations, event: Event) -> Problem | None:
    continuations.decided(event.data["turn_id"], event.data["run_id"])
    return None


HANDLERS: Final[Handlers] = {
    "session/header": _header,
    "run/created": _created,
    "continuation/claim": _claim,
    "continuation/start": _start,
    "handoff/pause": _pause,
    "turn/end": _turn_end,
}


# ---------------------------------------------------------------- what is shown


def rows(continuations: Continuations, runs: Runs, turns: Turns) -> list[JsonObject]:
    """``[{claim_id, purpose, state, source: {run_id, turn_id}, target: {run_id, turn_id}, root_run_id, depth,
    advice}]``, oldest first.

    ``root_run_id`` is the first run of the lineage, ``depth`` how many claims lead from it to the target; ``advice``
    says what the state means and what to do.
    """
    out = []
    for claim in continuations.claims.values():
        state = claim_state(claim, runs, turns)
        row = {
            "claim_id": claim.claim_id,
            "purpose": claim.purpose,
            "state": state,
            "source": {key: mapping(claim.data["source"]).get(key) for key in ("run_id", "turn_id")},
            "target": {"run_id": claim.target_run_id, "turn_id": claim.target_turn_id},
            "root_run_id": claim.root_run_id,
            "depth": claim.depth,
            "advice": _advice(claim, state, runs),
        }
        out.append(row)
    return out


def _advice(claim: Claim, state: ClaimState, runs: Runs) -> str:
    void = state == "settled" and claim.start_seq is None and claim.target_run_id not in runs.closed
    return _VOID if void else _ADVICE[state].format(claim=quote(claim.claim_id))


def handoff_rows(continuations: Continuations, turns: Turns) -> list[JsonObject]:
    """``[{handoff_id, run_id, turn_id, successor_run_id, claim_id, remaining_steps, state}]``, oldest first."""
    keys = ("handoff_id", "run_id", "turn_id", "successor_run_id", "claim_id", "remaining_steps")
    return [
        {**{key: handoff.data[key] for key in keys}, "state": handoff_state(handoff, continuations, turns)}
        for handoff in continuations.handoffs.values()
    ]


def executions(runs: Runs, turns: Turns) -> list[JsonObject]:
    """The logical executions of the turns that were handed over, or wait for that, in the order of the turns' rows."""
    done = [_closed(runs, row) for row in turns.closed.inherited() if len(row[4]) > 1]
    own = [(row[5], _closed(runs, row)) for row in turns.closed.since() if len(row[4]) > 1]
    for turn in turns.open.values():
        if turn.pause is not None or len(turn.run_ids) > 1:
            own.append((turn.first_seq, _open(runs, turns, turn)))
    own.sort(key=lambda pair: pair[0])
    return [*done, *(row for _, row in own)]


def execution(runs: Runs, turns: Turns, turn_id: str) -> JsonObject | None:
    """The logical execution of a turn, ``{turn_id, root_run_id, root, chain, tip, status, pending_handoff}``; None:
    there is no such turn.

    ``chain`` are its runs, oldest first, of which ``root_run_id`` is the first and ``tip`` the last; ``root`` is what
    the first was started for, None where that was lost; ``status`` is the turn's, as its row says;
    ``pending_handoff`` the id of the handoff whose successor has not started.
    """
    turn = turns.open.get(turn_id)
    if turn is not None:
        return _open(runs, turns, turn)
    row = turns.closed.get(turn_id)
    return None if row is None else _closed(runs, row)


def _open(runs: Runs, turns: Turns, turn: OpenTurn) -> JsonObject:
    return _execution(runs, turn.turn_id, list(turn.run_ids), standing(turns, turn)[0], turn.pause)


def _closed(runs: Runs, row: list[Any]) -> JsonObject:
    """``row``: of ``Turns.closed``."""
    return _execution(runs, row[0], row[4], row[2], None)


def _execution(runs: Runs, turn_id: str, chain: list[str], status: str, pending: str | None) -> JsonObject:
    return {
        "turn_id": turn_id,
        "root_run_id": chain[0],
        "root": runs.root(chain),
        "chain": chain,
        "tip": chain[-1],
        "status": status,
        "pending_handoff": pending,
    }
