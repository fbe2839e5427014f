"""Runs: what each one's header says and how it stands (docs/format.md, "Runs"). No I/O."""

from collections.abc import Container, Iterable
from typing import Any, Final

import attrs

from ..digests import digest_of
from ..events import Event, JsonObject
from .closed import Closed
from .problem import Handlers, Problem, Refusals, mapping, text_of

#: A reason's kind → the status of a settled run; every other kind is ``failed``.
STATUS: Final = {"completed": "completed", "max_tokens": "completed", "aborted": "cancelled"}
#: Statuses of settled runs that there is a reason to go on from.
RESUMED: Final = ("failed", "cancelled")
#: A reason's kind → the class of the failure, where the reason gives none; every other kind is its own class.
FAILURE_CLASS: Final = {"interrupted": "app_restarted", "step_limit": "tool_step_cap_reached"}


@attrs.define(slots=True)
class Run:
    """A run that is not settled.

    ``header`` is the run header of its turn/start or run/created; None where that was lost. ``created_seq``: its
    run/created. ``opened_seq``: the turn/start or continuation/start that opened it. ``claim_id``: the claim that
    started it. ``terminal_seq``, ``terminal_sum``, ``reason``: the turn/end that names it. ``composition``: the
    SHA-256 of its composition's JSON with sorted keys, ``composition_seq`` the event.
    """

    run_id: str
    turn_id: str
    seq: int
    header: JsonObject | None = None
    created_seq: int | None = None
    opened_seq: int | None = None
    claim_id: str | None = None
    terminal_seq: int | None = None
    terminal_sum: str | None = None
    reason: JsonObject | None = None
    composition: str | None = None
    composition_seq: int | None = None

    @property
    def invocation_id(self) -> str:
        return text_of(mapping(self.header).get("invocation_id")) or ""

    @property
    def root(self) -> JsonObject | None:
        """What it was started for, ``{"kind", …}``; None where its header was lost."""
        return mapping(mapping(self.header).get("root")) or None


@attrs.define(slots=True)
class Settled:
    """A run that is over, in the order of a row of ``Runs.closed``."""

    run_id: str
    turn_id: str
    invocation_id: str
    status: str
    failure_class: str | None
    seq: int
    opened_seq: int | None
    terminal_seq: int | None
    terminal_sum: str | None
    claim_id: str | None
    composition_seq: int | None
    root: JsonObject | None


@attrs.define(slots=True)
class Runs:
    """``live`` by run_id in the order in which they appeared: every run that is not over. ``closed``: the others.

    ``by_turn``: turn_id → ids of its live runs. ``lost``: events were lost, so a run that only its end names is
    believed. ``newest``: the run of this journal that was opened last. ``failed``: of those that are settled as failed
    or cancelled, with a terminal fact, the one that appeared last, and ``failed_seq`` where it did.
    """

    live: dict[str, Run] = attrs.field(factory=dict, metadata={"of": Run})
    closed: Closed = attrs.field(factory=Closed)
    by_turn: dict[str, list[str]] = attrs.field(factory=dict)
    lost: bool = False
    newest: str | None = None
    failed: str | None = None
    failed_seq: int = -1

    def unsettled(self) -> list[Run]:
        """Runs with a turn/end and without the run/settled that they need, in the order in which they appeared."""
        return [run for run in self.live.values() if run.terminal_seq is not None]

    def settled(self, run_id: str) -> Settled | None:
        """A run that is over."""
        row = self.closed.get(run_id)
        return None if row is None else Settled(*row)

    def own(self, run_id: str) -> Run | Settled | None:
        """A run that no parent wrote, over or not."""
        return self.live.get(run_id) or (self.settled(run_id) if self.closed.own(run_id) else None)

    def root(self, run_ids: Iterable[str]) -> JsonObject | None:
        """The root descriptor of a chain of runs, each of which inherits the first one's; None where all was lost."""
        runs = (self.live.get(run_id) or self.settled(run_id) for run_id in run_ids)
        return next((run.root for run in runs if run is not None and run.root is not None), None)

    def known(self, run_id: str) -> bool:
        """Is there a run of this id, in this journal or in what a fork has from its parents?"""
        return run_id in self.live or run_id in self.closed

    def find(self, run_id: str, turn_id: str, seq: int) -> Run:
        """The live run, entered now if it is not there."""
        run = self.live.get(run_id)
        if run is None:
            run = self.live[run_id] = Run(run_id, turn_id, seq)
            self.by_turn.setdefault(turn_id, []).append(run_id)
        return run

    def close(self, run: Run, status: str, failure_class: str | None) -> None:
        del self.live[run.run_id]
        of_turn = self.by_turn[run.turn_id]
        of_turn.remove(run.run_id)
        if not of_turn:
            del self.by_turn[run.turn_id]
        if status in RESUMED and run.terminal_seq is not None and run.seq > self.failed_seq:
            self.failed, self.failed_seq = run.run_id, run.seq
        self.closed.add(
            [
                run.run_id,
                run.turn_id,
                run.invocation_id,
                status,
                failure_class,
                run.seq,
                run.opened_seq,
                run.terminal_seq,
                run.terminal_sum,
                run.claim_id,
                run.composition_seq,
                run.root,
            ]
        )


def outcome(reason: JsonObject) -> tuple[str, str | None]:
    """A settled run's status and failure class."""
    kind = text_of(reason.get("kind")) or "failed"
    status = STATUS.get(kind, "failed")
    if status != "failed":
        return status, None
    return status, text_of(reason.get("failure_class")) or FAILURE_CLASS.get(kind, kind)


def composition_digest(composition: JsonObject) -> str:
    """The SHA-256 of a composition: equal for equal ones, in whatever order their keys stand."""
    return digest_of(composition)


# ---------------------------------------------------------------- what may not be written


def refuse_created(runs: Runs, data: JsonObject) -> str | None:
    run_id = data["run"]["run_id"]
    return f"run {run_id} exists already" if runs.known(run_id) else None


def refuse_turn_start(runs: Runs, data: JsonObject) -> str | None:
    run_id, header = data["run_id"], data["run"]
    if header.get("run_id") != run_id or header.get("turn_id") != data["turn_id"]:
        return f"the run header is not that of run {run_id} in turn {data['turn_id']}"
    run = runs.live.get(run_id)
    if run is None:
        return f"run {run_id} exists already" if run_id in runs.closed else None
    if run.opened_seq is not None:
        return f"run {run_id} was opened before"
    return None if run.header == header else f"the run header differs from the one that run {run_id} was created with"


def refuse_composition(runs: Runs, data: JsonObject) -> str | None:
    run = runs.live.get(data["run_id"])
    if run is None or run.terminal_seq is not None:
        return f"there is no run {data['run_id']} that is not over"
    if run.composition is None:
        return None
    same = run.composition == composition_digest(data["composition"])
    return f"run {run.run_id} has " + ("this composition already" if same else "another composition")


def refuse_settled(runs: Runs, data: JsonObject) -> str | None:
    run = runs.live.get(data["run_id"])
    if run is None:
        known = data["run_id"] in runs.closed
        return f"run {data['run_id']} " + ("is settled already" if known else "does not exist")
    return None if run.terminal_seq is not None else f"run {run.run_id} has no turn/end yet"


def refuse_start(runs: Runs, data: JsonObject) -> str | None:
    run = runs.live.get(data["run_id"])
    if run is None:
        return f"run {data['run_id']} was not created"
    return None if run.opened_seq is None else f"run {run.run_id} was opened before"


REFUSALS: Final[Refusals] = {
    "turn/start": refuse_turn_start,
    "run/created": refuse_created,
    "run/composition": refuse_composition,
    "run/settled": refuse_settled,
    "continuation/start": refuse_start,
}


# ---------------------------------------------------------------- the fold


def _header(runs: Runs, event: Event) -> Problem | None:
    for run in list(runs.live.values()):
        runs.close(run, *outcome(run.reason or {"kind": "interrupted"}))
    runs.closed.seal()
    runs.newest, runs.failed, runs.failed_seq = None, None, -1
    return None


def _turn_start(runs: Runs, event: Event) -> Problem | None:
    data = event.data
    _open(runs, data["run_id"], data["turn_id"], event.seq, data["run"], None)
    return None


def _created(runs: Runs, event: Event) -> Problem | None:
    header = event.data["run"]
    run_id = text_of(header.get("run_id"))
    if run_id is not None and run_id not in runs.live and not runs.closed.own(run_id):
        run = runs.find(run_id, text_of(header.get("turn_id")) or "", event.seq)
        run.header, run.created_seq = header, event.seq
    return None


def _start(runs: Runs, event: Event) -> Problem | None:
    data = event.data
    _open(runs, data["run_id"], data["turn_id"], event.seq, None, data["claim_id"])
    return None


def _open(runs: Runs, run_id: str, turn_id: str, seq: int, header: JsonObject | None, claim_id: str | None) -> None:
    if runs.closed.own(run_id):
        return
    run = runs.find(run_id, turn_id, seq)
    if run.opened_seq is None:
        run.opened_seq, run.claim_id = seq, claim_id
        runs.newest = run_id
        if run.header is None:
            run.header = header


def _composition(runs: Runs, event: Event) -> Problem | None:
    run = runs.live.get(event.data["run_id"])
    if run is not None and run.composition is None:
        run.composition, run.composition_seq = composition_digest(event.data["composition"]), event.seq
    return None


def _pause(runs: Runs, event: Event) -> Problem | None:
    """The caller has found it valid: only what was lost explains that nothing is known of the run."""
    run_id, turn_id = event.data["run_id"], event.data["turn_id"]
    run = runs.find(run_id, turn_id, event.seq)
    run.terminal_seq, run.terminal_sum = event.seq, event.sum
    runs.close(run, "handed_off", None)
    return None


def _turn_end(runs: Runs, event: Event) -> Problem | None:
    """Runs of the turn that never got a terminal fact of their own are over with it."""
    data = event.data
    run_id, turn_id, reason = data["run_id"], data["turn_id"], data["reason"]
    run = runs.live.get(run_id)
    if run is None and runs.lost and not runs.closed.own(run_id):
        run = runs.find(run_id, turn_id, event.seq)
    for other in list(runs.by_turn.get(turn_id, ())):
        if other != run_id and runs.live[other].opened_seq is not None and runs.live[other].terminal_seq is None:
            runs.close(runs.live[other], *outcome(reason))
    if run is not None and run.terminal_seq is None:
        run.terminal_seq, run.terminal_sum, run.reason = event.seq, event.sum, reason
        if reason.get("kind") == "interrupted":
            runs.close(run, *outcome(reason))
    return None


def _settled(runs: Runs, event: Event) -> Problem | None:
    run = runs.live.get(event.data["run_id"])
    if run is not None and run.reason is not None:
        runs.close(run, *outcome(run.reason))
    return None


HANDLERS: Final[Handlers] = {
    "session/header": _header,
    "turn/start": _turn_start,
    "run/created": _created,
    "run/composition": _composition,
    "continuation/start": _start,
    "handoff/pause": _pause,
    "turn/end": _turn_end,
    "run/settled": _settled,
}


# ---------------------------------------------------------------- what is shown


def status(run: Run, waiting: bool) -> str:
    """How a live run stands. ``waiting``: it has a pending interaction."""
    if run.opened_seq is None:
        return "created"
    return "waiting_for_user" if waiting and run.terminal_seq is None else "running"


def rows(runs: Runs, waiting: Container[str]) -> list[JsonObject]:
    """``[{run_id, turn_id, invocation_id, status, failure_class?}]``. ``waiting``: runs with a pending interaction."""
    own = [(row[5], _row(*row[:5])) for row in runs.closed.since()]
    for run in runs.live.values():
        shown = status(run, run.run_id in waiting)
        own.append((run.seq, _row(run.run_id, run.turn_id, run.invocation_id, shown, None)))
    own.sort(key=lambda pair: pair[0])
    return [_row(*row[:5]) for row in runs.closed.inherited()] + [row for _, row in own]


def row(runs: Runs, run_id: str, waiting: Container[str]) -> JsonObject | None:
    """One run of this journal, over or not: the row of ``rows`` with ``seq``, the number of its newest event of these:
    its terminal fact, its opening, the one that it appeared with. None: there is no such run.
    """
    run = runs.own(run_id)
    if run is None:
        return None
    if isinstance(run, Settled):
        shown = _row(run.run_id, run.turn_id, run.invocation_id, run.status, run.failure_class)
    else:
        shown = _row(run.run_id, run.turn_id, run.invocation_id, status(run, run_id in waiting), None)
    known = (run.terminal_seq, run.opened_seq, run.seq)
    return {**shown, "seq": next(seq for seq in known if seq is not None)}


def _row(run_id: str, turn_id: str, invocation_id: str, status: str, failure_class: str | None) -> dict[str, Any]:
    row = {"run_id": run_id, "turn_id": turn_id, "invocation_id": invocation_id, "status": status}
    return row if failure_class is None else {**row, "failure_class": failure_class}
