"""Folded state → the events that close what a dead writer left open, and the findings that say so. No I/O.

Nothing is claimed that is not known: a call that was dispatched has an unknown outcome, one that was only requested
never ran, and neither is ever run again from here.
"""

from collections import Counter
from hashlib import sha256
from typing import Any, Final

import attrs

from ..journal.errors import JournalError
from ..journal.events import Draft, JsonObject, RunHeader, json_kinds
from ..journal.findings import Finding
from ..journal.pairing import Call
from ..journal.state import State
from ..journal.views.admissions import WITHOUT_MESSAGE, Admission
from ..journal.views.continuations import Claim, is_awaited
from ..journal.views.interactions import Interaction
from ..journal.views.problem import mapping, sequence, text_of
from ..journal.views.turn import OpenTurn, Stop, projected_state
from ..journal.wording import NOT_STARTED_ERROR, UNKNOWN_ERROR, not_started, unknown_outcome

_CLOSURE: Final = {"kind": "closure", "reason": "host_restarted"}
#: What a claim's target fails with where its continuation was given up before the provider was called.
_ABANDONED: Final = {"resume": "continuation_abandoned_before_provider_dispatch", "handoff": "handoff_abandoned"}
#: What it fails with where nobody knows whether the provider was called.
_INDETERMINATE: Final = "continuation_indeterminate"
#: Execution kind → the key of the run header that names the run it came from.
_LINEAGE: Final = {
    "linked_child_resume": "resumed_from_run_id",
    "linked_child_provider_retry": "retried_from_run_id",
}
#: The digest of no message.
_NOTHING_REPLAYED: Final = sha256(b"[]").hexdigest()


@attrs.frozen
class Closing:
    """What a repair appends (behind a salvage's gap), in order, and the findings that it settles."""

    drafts: list[Draft]
    findings: list[Finding]


def abandonment(state: State, handoff_id: str, reason: JsonObject) -> list[Draft]:
    """The batch that gives a pending handoff up: its successor is claimed and created, as far as it was not, started by
    the repair, and ends the turn with ``reason``, a turn/end's.

    Empty where there is no such handoff, and where it waits no more. Raises JournalError where something else holds
    the ids that it has reserved: only its successor may end the turn, and there can be none.
    """
    handoff = state.continuations.handoffs.get(handoff_id)
    turn = None if handoff is None else state.turns.open.get(handoff.data["turn_id"])
    if handoff is None or turn is None or turn.pause != handoff_id:
        return []
    planner = _Planner(state, None, state.turns.last)
    claim = planner.handoff_claim(turn)
    if claim is None:
        what = f"handoff {handoff_id} cannot be given up, because the ids that it reserved are taken"
        raise JournalError(
            f"{what}; fork the session behind its last turn that ended (`manager.fork`), or begin another",
            seq=handoff.seq,
        )
    planner.close_interactions(turn)
    planner.give_up(claim, reason)
    return planner.drafts


def admission_end(state: State, turn_id: str, reason: JsonObject) -> list[Draft]:
    """The batch that ends a turn that was admitted and has not been started: it is started by the repair, has the
    admission's message, and ends with ``reason``, a turn/end's, and settled; the provider is not called.

    Empty where no such turn waits. No other turn is open.
    """
    admission = state.admissions.open.get(turn_id)
    if admission is None or admission.started_seq is not None or state.turns.known(turn_id):
        return []
    planner = _Planner(state, None, state.turns.last)
    planner.end_admission(admission, reason)
    return planner.drafts


def plan_closers(state: State, *, cause: str | None = None) -> Closing:
    """Claims, admissions, open turns, runs to be settled, interactions: in this order, oldest first within each.

    ``cause`` is the failure class that open turns end with (``failed``) in place of ``interrupted``.
    """
    return _Planner(state, cause, state.turns.last).plan()


@attrs.define
class _Planner:
    state: State
    cause: str | None
    #: The newest turn's number, with the turns that the drafts so far open.
    number: int
    drafts: list[Draft] = attrs.field(factory=list)
    findings: list[Finding] = attrs.field(factory=list)
    #: Turns and runs that the drafts so far have ended or settled, and interactions that they have closed.
    ended: set[str] = attrs.field(factory=set)
    settled: set[str] = attrs.field(factory=set)
    resolved: set[str] = attrs.field(factory=set)
    #: Runs that go on: their interactions stay pending.
    live: set[str] = attrs.field(factory=set)
    #: Runs that the drafts end, those of open turns from the beginning.
    ending: set[str] = attrs.field(factory=set)

    def plan(self) -> Closing:
        state = self.state
        self.ending = {turn.newest_run for turn in state.turns.open.values() if not state.turns.left_alone(turn)}
        for claim in state.continuations.claims.values():
            self.claim(claim)
        for admission in state.admissions.open.values():
            self.admission(admission)
        for open_turn in state.turns.open.values():
            if open_turn.turn_id not in self.ended:
                self.turn(open_turn)
        for run in state.runs.unsettled():
            self.found(
                "unsettled_run",
                f"run {run.run_id} of turn {run.turn_id} has ended, and its cleanup is not on record",
                run.terminal_seq,
            )
            if run.run_id not in self.settled:
                self.settle(run.run_id)
        for interaction in state.interactions.pending.values():
            if interaction.interaction_id not in self.resolved and interaction.run_id not in self.live:
                self.close_interaction(interaction)
        return Closing(self.drafts, self.findings)

    # ------------------------------------------------------------ claims

    def claim(self, claim: Claim) -> None:
        run_id, turn_id = claim.target_run_id, claim.target_turn_id
        if self.state.continuations.by_target.get(run_id) != claim.claim_id or run_id in self.state.runs.closed:
            return  # an older claim has reserved this run, or it is over
        run = self.state.runs.live.get(run_id)
        turn = self.state.turns.open.get(turn_id)
        if run is not None and run.terminal_seq is not None:
            self.claim_found(claim, f"its run {run_id} has ended and was not settled")
            self.settle(run_id)
        elif turn is not None and turn.newest_run == run_id:
            if turn.rest == "indeterminate":
                if self.stop_of(turn_id) is None:
                    self.found(
                        "claim_indeterminate",
                        f"run {run_id} of turn {turn_id} was started by claim {claim.claim_id}, and whether it reached "
                        "the provider is not known",
                        claim.start_seq,
                    )
            elif run_id in turn.stepped:
                self.claim_found(claim, f"its run {run_id} was interrupted in step {turn.step}")
            elif claim.start_kind == "claim_repair":
                self.claim_found(claim, f"the end of its run {run_id} is missing")
                self.end(turn_id, run_id, self.outcome_of(claim))
        elif claim.purpose == "resume" and turn_id not in self.ended and is_awaited(claim, self.state.turns):
            self.claim_found(claim, "its run was never started")
            self.abandon(claim, self.outcome_of(claim))

    def claim_found(self, claim: Claim, what: str) -> None:
        self.found(
            "claim_repair_required",
            f"claim {claim.claim_id} ({claim.purpose}) is not finished: {what}",
            claim.seq,
        )

    def abandon(self, claim: Claim, reason: JsonObject) -> None:
        """The claim's target as claimed, started by the repair and ended at once; the provider is not called."""
        data, run_id = claim.data, claim.target_run_id
        self.number = max(self.number, data["turn"])
        run = self.state.runs.live.get(run_id)
        if run is None or run.created_seq is None:
            self.draft("run/created", run=claim.target)
        self.draft(
            "continuation/start",
            protocol="continuation_start_v2",
            start_kind="claim_repair",
            purpose=claim.purpose,
            claim_id=claim.claim_id,
            run_id=run_id,
            turn_id=claim.target_turn_id,
            boundary_digest=data["boundary_digest"],
            replay_digest=data["replay_digest"],
            source=data["source"],
        )
        self.end(claim.target_turn_id, run_id, reason)

    def outcome_of(self, claim: Claim) -> JsonObject:
        """What the turn of a claim's target ends with, of which the provider was never asked."""
        if (stop := self.stop_of(claim.target_turn_id)) is not None:
            return _aborted(stop.source)
        failure_class = _ABANDONED[claim.purpose]
        if claim.purpose == "resume" and claim.start_seq is None and (self.state.lost_seq or 0) > claim.seq:
            failure_class = _INDETERMINATE  # its start may be what was lost
        return {"kind": "failed", "failure_class": failure_class}

    # ------------------------------------------------------------ admissions

    def admission(self, admission: Admission) -> None:
        if admission.started_seq is not None:
            self.missing_message(admission)
            return
        if admission.stop is None and admission.run is None and admission.kind == "root":
            return
        if self.state.turns.known(admission.turn_id) or admission.turn_id in self.ended:
            return  # it has run, and its opening was lost; or a claim has the same turn
        state = "stopped before it started" if admission.stop else "never started"
        self.found(
            "admission_unfinished",
            f"turn {admission.turn_id} was admitted ({admission.kind}) and {state}",
            admission.seq,
        )
        self.end_admission(admission, {"kind": "interrupted"} if admission.stop is None else _aborted(admission.stop))

    def end_admission(self, admission: Admission, reason: JsonObject) -> None:
        """The admitted turn as it would have begun, ended at once."""
        self.number += 1
        run = admission.run or self.run_header(admission)
        self.draft(
            "turn/start",
            turn_id=admission.turn_id,
            run_id=admission.run_id,
            invocation_id=text_of(run.get("invocation_id")) or admission.run_id,
            turn=self.number,
            run=run,
        )
        if admission.kind != WITHOUT_MESSAGE:
            self.message(admission)
        self.end(admission.turn_id, admission.run_id, reason)

    def missing_message(self, admission: Admission) -> None:
        if admission.message_id is None:
            return
        turn = self.state.turns.open.get(admission.turn_id)
        late = (
            admission.stepped
            or turn is None
            or turn.turn_id in self.ended
            or turn.rest is not None
            or turn.first_seq != admission.started_seq
        )
        self.found(
            "message_missing",
            f"turn {admission.turn_id} started without the message {admission.message_id} that it was admitted with"
            + ("; the conversation shows the admission's input in its place" if late else ""),
            admission.started_seq,
            severity="notice" if late else None,
        )
        if not late:
            self.message(admission)

    def message(self, admission: Admission) -> None:
        """The admission's own message; where it has no id there is none to write: none is invented."""
        if admission.message_id is None:
            return
        given = mapping(admission.data["input"])
        self.draft(
            "user/message",
            message_id=admission.message_id,
            turn_id=admission.turn_id,
            run_id=admission.run_id,
            content=sequence(given.get("content")),
            source={"kind": "user"},
            **{key: given[key] for key in ("quotes", "attachments") if isinstance(given.get(key), list)},
        )

    def run_header(self, admission: Admission) -> JsonObject:
        """The run that the admission would have had, from the session's header; keys in the order of the format."""
        header = mapping(self.state.session.header)
        execution = mapping(admission.data["execution"])
        run: JsonObject = {
            "run_id": admission.run_id,
            "invocation_id": admission.run_id,
            "turn_id": admission.turn_id,
            "backend": text_of(header.get("backend")) or "",
            "model": text_of(header.get("model")) or "",
        }
        if connection := text_of(header.get("connection")):
            run["connection"] = connection
        run["cwd"] = text_of(header.get("cwd")) or ""
        run["permission_mode"] = text_of(header.get("permission_mode")) or ""
        run["created_at"] = admission.ts
        run["root"] = {"kind": "user"}
        max_steps = mapping(admission.data.get("options")).get("max_steps")
        if max_steps.__class__ is int:
            run["max_steps"] = max_steps
        lineage, source = _LINEAGE.get(admission.kind), text_of(execution.get("source_run_id"))
        if lineage and source:
            run[lineage] = source
        for key in ("agent_id", "agent_name"):
            if value := text_of(admission.data.get(key)):
                run[key] = value
        return run

    # ------------------------------------------------------------ open turns

    def turn(self, turn: OpenTurn) -> None:
        stop = self.stop_of(turn.turn_id)
        abandoned = self.handoff_claim(turn) if turn.rest == "paused" else None
        if turn.rest == "paused" and abandoned is None:
            handoff = self.state.continuations.handoffs[turn.pause or ""]
            self.found(
                "handoff_stuck",
                f"turn {turn.turn_id} waits for run {handoff.data['successor_run_id']} (handoff {turn.pause}), which "
                "can neither go on nor be given up, because the ids that were reserved are taken",
                handoff.seq,
            )
        if self.left_alone(turn) or (turn.rest == "paused" and abandoned is None):
            self.live.update(turn.run_ids)
            return
        unanswered = turn.unanswered()
        self.found("open_turn", _describe(turn, unanswered), turn.first_seq)
        self.messages_of_deltas(turn)
        for call in unanswered:
            self.result(turn, call)
        self.close_interactions(turn)
        if turn.step_open:
            self.found(
                "open_step",
                f"step {turn.step} of turn {turn.turn} ({turn.turn_id}) has no step/end",
                turn.step_seq,
            )
            self.draft("step/end", turn_id=turn.turn_id, run_id=turn.step_run, step=turn.step)
        if abandoned is not None:
            self.give_up(abandoned, self.outcome_of(abandoned))
        elif self.cause is not None:
            self.end(turn.turn_id, turn.newest_run, {"kind": "failed", "failure_class": self.cause})
        elif stop is None:
            self.end(turn.turn_id, turn.newest_run, {"kind": "interrupted"})
        else:
            self.end(turn.turn_id, turn.newest_run, _aborted(stop.source), note=stop.source)

    def left_alone(self, turn: OpenTurn) -> bool:
        """Of a turn that rests at a start somebody has to be able to settle it: its run is not over, nor ended here."""
        if turn.rest == "indeterminate":
            run = self.state.runs.live.get(turn.newest_run)
            if run is None or run.claim_id is None or run.terminal_seq is not None or run.run_id in self.ending:
                return False
        return self.state.turns.left_alone(turn)

    def give_up(self, claim: Claim, reason: JsonObject) -> None:
        """The claim of a handoff, unless it is on disk, and the end of the turn by its target."""
        if claim.claim_id not in self.state.continuations.claims:
            self.draft("continuation/claim", **claim.data)
        self.abandon(claim, reason)

    def handoff_claim(self, turn: OpenTurn) -> Claim | None:
        """The claim by which a paused turn's successor goes on: the one on disk, else one with the pause's ids.

        None where the ids that the pause reserved are held by something else. A run that was created as the pause says
        is the successor, whose claim was lost: it is claimed as it is. Nothing is replayed to a successor that
        is started by the repair, and nothing of what the paused run holds is hidden for its sake.
        """
        state, continuations = self.state, self.state.continuations
        handoff = continuations.handoffs[turn.pause or ""]
        pause = handoff.data
        claim = continuations.claims.get(pause["claim_id"])
        if state.taken(handoff):
            return None
        if claim is not None:
            return claim
        paused = state.runs.settled(pause["run_id"])
        assert paused is not None, "a run that was handed over is over"
        created = state.runs.live.get(pause["successor_run_id"])
        segments = state.segments(paused.run_id)
        source = {key: segments[-1][key] for key in ("run_id", "invocation_id", "turn_id")}
        source["high_water"] = handoff.seq
        boundary = {"claim_id": pause["claim_id"], "boundary_digest": paused.terminal_sum, "source": source}
        target = self.successor(pause, handoff.source, boundary) if created is None else mapping(created.header)
        data: JsonObject = {
            "claim_id": pause["claim_id"],
            "purpose": "handoff",
            "turn": turn.turn,
            "boundary": {"segments": segments},
            "boundary_digest": paused.terminal_sum,
            "replay_digest": _NOTHING_REPLAYED,
            "replay_through_seq": handoff.seq,
            "source": source,
            "target_run": target,
            "claimed_at": target["created_at"],
        }
        return Claim(pause["claim_id"], handoff.seq, data, paused.run_id, 1)

    def successor(self, pause: JsonObject, source: JsonObject, boundary: JsonObject) -> JsonObject:
        """The run header of a paused run's successor: the source's configuration, the pause's ids.

        Where the source's header was lost, or holds what none can have, it is the session's.
        """
        session = mapping(self.state.session.header)
        own = {
            "run_id": pause["successor_run_id"],
            "invocation_id": pause["successor_invocation_id"],
            "turn_id": pause["turn_id"],
            "created_at": self.state.last_ts,
            "max_steps": pause["remaining_steps"],
            "continuation": boundary,
        }
        run: JsonObject = {}
        for field in attrs.fields(RunHeader):
            value = own.get(field.name, source.get(field.name))
            kinds = json_kinds(field.type)
            if kinds and type(value) not in kinds:
                value = None
            if value is None and field.default is attrs.NOTHING:
                value = {"kind": "user"} if field.name == "root" else text_of(session.get(field.name)) or ""
            if value is not None:
                run[field.name] = value
        return run

    def messages_of_deltas(self, turn: OpenTurn) -> None:
        for delta in turn.deltas.values():
            content = [block for block in delta.blocks() if block["text"]]
            if content and turn.step_open and delta.step == turn.step:
                self.draft(
                    "assistant/message",
                    turn_id=turn.turn_id,
                    run_id=delta.run_id,
                    step=delta.step,
                    message_id=delta.message_id,
                    content=content,
                    stop_reason="interrupted",
                    interrupted=True,
                )

    def result(self, turn: OpenTurn, call: Call) -> None:
        state = projected_state(call, self.state.session.tool_boundary and not turn.broken)
        known = state == "not_started"
        where = f"call {call.call_id} of {call.name} in step {call.step} of turn {turn.turn} ({turn.turn_id})"
        if known:
            self.found("not_started", f"{where} was requested and never started", call.message_seq)
        else:
            done = "dispatched" if call.dispatched else "requested, with no record whether it ran,"
            self.found(
                "unknown_outcome",
                f"{where} was {done} and has no result: its outcome is unknown",
                call.call_seq if call.dispatched else call.message_seq,
            )
        data: JsonObject = {"turn_id": turn.turn_id, "run_id": call.run_id, "step": call.step, "call_id": call.call_id}
        if call.operation_id is not None:
            data["operation_id"] = call.operation_id
        data["state"] = state
        text = not_started() if known else unknown_outcome(call.recovery)
        data["content"] = [{"kind": "text", "text": text}]
        data["is_error"] = True
        data["error"] = dict(NOT_STARTED_ERROR if known else UNKNOWN_ERROR)
        if call.call_seq is not None:
            data["call_seq"] = call.call_seq
        data["synthesized"] = True
        self.drafts.append(Draft("tool/result", data))

    # ------------------------------------------------------------ the pieces

    def found(self, code: str, message: str, seq: int | None, severity: Any = None) -> None:
        self.findings.append(Finding(code, message, seq, **({"severity": severity} if severity else {})))

    def draft(self, type: str, **data: Any) -> None:
        self.drafts.append(Draft(type, data))

    def stop_of(self, turn_id: str) -> Stop | None:
        """The newest request to stop the turn: the one that was in force."""
        stops = self.state.turns.stops.get(turn_id)
        return stops[-1] if stops else None

    def end(self, turn_id: str, run_id: str, reason: JsonObject, note: str | None = None) -> None:
        """``turn/end``, a note of who aborted it if ``note`` says, ``run/settled`` unless the reason settles itself."""
        self.draft("turn/end", turn_id=turn_id, run_id=run_id, reason=reason, synthesized=True)
        self.ended.add(turn_id)
        self.ending.add(run_id)
        if note is not None:
            self.draft("session/note", kind="abort", run_id=run_id, turn_id=turn_id, source=note)
        if reason["kind"] != "interrupted":
            self.settle(run_id)

    def settle(self, run_id: str) -> None:
        self.draft("run/settled", run_id=run_id)
        self.settled.add(run_id)

    def close_interactions(self, turn: OpenTurn) -> None:
        for run_id in turn.run_ids:
            for interaction in self.state.interactions.of_run(run_id):
                self.close_interaction(interaction)

    def close_interaction(self, interaction: Interaction) -> None:
        self.found(
            "pending_interaction",
            f"{interaction.kind} {interaction.interaction_id} of run {interaction.run_id} waits for an answer, "
            "and its run is over",
            interaction.seq,
        )
        self.draft("interaction/resolved", interaction_id=interaction.interaction_id, outcome=dict(_CLOSURE))
        self.resolved.add(interaction.interaction_id)


def _aborted(source: str) -> JsonObject:
    return {"kind": "aborted", "source": source}


def _describe(turn: OpenTurn, unanswered: list[Call]) -> str:
    what = f"turn {turn.turn} ({turn.turn_id}) has no end"
    if not unanswered:
        return what
    count = "1 call has" if len(unanswered) == 1 else f"{len(unanswered)} calls have"
    tools = Counter(call.name for call in unanswered)
    return f"{what}, and {count} no result: " + ", ".join(f"{name} {n}" for name, n in tools.items())
