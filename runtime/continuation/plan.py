"""Facts of a session → whether a run of it can be continued, and the continuation, or why not. No I/O."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from shlex import quote
from typing import Any, Final, Literal

import attrs
import orjson

from ...journal.events import JsonObject, Purpose
from ...journal.history import Replay
from ...journal.state import State
from ...journal.views.continuations import Claim, Handoff, claim_state
from ...journal.views.problem import mapping, sequence, text_of, whole
from ...journal.views.turn import projected_state
from ..conversation import Conversation
from .codes import REASONS, REMARKS
from .lineage import Lineage, Source, candidate, claim_on, source_of
from .safety import SafetyObservation, Unobserved

Disposition = Literal["continue", "park"]

#: What of the session's configuration a run keeps to itself, and is worth a word where it has changed.
CONFIGURED: Final = ("backend", "model", "connection", "permission_mode")
#: Recoveries of calls that may be executed again although their outcome is unknown.
RERUN: Final = ("read_only", "idempotent")
#: Characters of a value in a sentence.
_SHOWN: Final = 120


@attrs.frozen
class Facts:
    """A session as its journal tells it, nothing closed in memory: ``state`` is the fold, ``conversation`` the history,
    both of the same events. They are read and never changed.
    """

    session_id: str
    state: State
    conversation: Conversation


@attrs.frozen
class Diagnostic:
    """Something a person should know: what, where, what to do. ``code`` is a rejection reason, or what it is about."""

    code: str
    message: str

    def __str__(self) -> str:
        return self.message


@attrs.frozen(kw_only=True)
class Continuation:
    """A run that can be started: what it goes on from, and under which ids. Nothing is reserved by it.

    ``source``: ``{run_id, invocation_id, turn_id, high_water}``. ``boundary``: ``{"segments": [{session_id,
    invocation_id, run_id, turn_id, first_seq, last_seq, sum}]}``, oldest first. ``replay``: the messages that a model
    is given, with ``replay_digest`` the 64 hex of SHA-256 of their compact JSON with sorted keys; of the lineage
    nothing behind event ``replay_through_seq`` is in them. ``configuration``: the ``{backend, model, connection, cwd,
    permission_mode}`` that the run would have. ``sandbox_boundary_denied``: did a person refuse a sandbox boundary in
    a run of the boundary? ``composition``: the source's, or None. ``rerun``: the unknown calls that are executed again
    before the model is asked, by the number of their tool/call.
    """

    session_id: str
    purpose: Purpose
    invocation_id: str
    run_id: str
    turn_id: str
    claim_id: str
    source: JsonObject
    boundary: JsonObject
    boundary_digest: str
    replay: tuple[JsonObject, ...]
    replay_digest: str
    replay_through_seq: int
    safety: SafetyObservation
    configuration: JsonObject
    root: JsonObject
    max_steps: int | None
    sandbox_boundary_denied: bool
    composition: JsonObject | None
    rerun: tuple[int, ...] = ()

    def to_json(self) -> JsonObject:
        """Without the replay's messages, of which ``replay_messages`` is the number."""
        values = attrs.asdict(self, recurse=False)
        values["safety"] = self.safety.to_json()
        values["rerun"] = list(self.rerun)
        return {
            "replay_messages" if key == "replay" else key: len(value) if key == "replay" else value
            for key, value in values.items()
        }


@attrs.frozen(kw_only=True)
class ContinuationPlan:
    """``rejection_reasons``: stable codes, each once, in the order of the checks; empty for ``continue``.

    ``diagnostics`` are for people; there may be some for ``continue`` too (what has changed since the source ran).
    """

    session_id: str
    source_run_id: str | None
    disposition: Disposition
    rejection_reasons: tuple[str, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    continuation: Continuation | None = None

    def to_json(self) -> JsonObject:
        """``{session_id, source_run_id, disposition, rejection_reasons, diagnostics: [{code, message}],
        continuation: {…} | null}``.
        """
        return {
            "session_id": self.session_id,
            "source_run_id": self.source_run_id,
            "disposition": self.disposition,
            "rejection_reasons": list(self.rejection_reasons),
            "diagnostics": [{"code": each.code, "message": each.message} for each in self.diagnostics],
            "continuation": None if self.continuation is None else self.continuation.to_json(),
        }


def plan(
    facts: Facts,
    *,
    source_run_id: str | None,
    observation: SafetyObservation | Unobserved,
    new_id: Callable[[], str],
    purpose: Purpose = "resume",
    turn_id: str | None = None,
    rerun: Sequence[str] = (),
    enabled: bool = True,
) -> ContinuationPlan:
    """Whether the run can be continued, and by what, or why not.

    ``source_run_id`` None: the latest interrupted run. ``rerun``: recoveries, of ``read_only`` and ``idempotent``,
    whose unknown calls are executed again. ``new_id`` is asked for the invocation, the run, the turn (if ``turn_id``
    is None) and the claim, in this order, and not for a plan that parks by what is checked before. Raises ValueError
    for any other recovery.
    """
    if wrong := [name for name in rerun if name not in RERUN]:
        raise ValueError(f"calls of recovery {wrong[0]!r} are never run again; only {' and '.join(RERUN)} are")
    run_id = source_run_id

    def parked(*found: Diagnostic, remarks: Sequence[Diagnostic] = ()) -> ContinuationPlan:
        reasons = tuple(dict.fromkeys(each.code for each in found))
        return ContinuationPlan(
            session_id=facts.session_id,
            source_run_id=run_id,
            disposition="park",
            rejection_reasons=reasons,
            diagnostics=(*found, *remarks),
        )

    if not enabled and purpose == "resume":
        return parked(_said("resume_feature_disabled", f"Session {facts.session_id} is not continued"))
    if isinstance(observation, Unobserved):
        return parked(_said("safety_observation_unavailable", f"The workspace could not be observed: {observation}"))
    if run_id is None:
        run_id = candidate(facts.state)
        if run_id is None:
            return parked(_said("resume_candidate_missing", _nothing_interrupted(facts.state)))
    source = source_of(facts.state, facts.conversation, run_id)
    if source is None:
        return parked(_said("source_run_unreadable", _unreadable(facts.state, run_id)))
    case = _Case(facts, source, observation, purpose, turn_id, frozenset(rerun), handoff_of(facts.state, source))
    if (alone := _refusal(case)) is not None:
        return parked(alone)
    found = [_said(code, *each) for code, gate in _GATES for each in gate(case)]
    remarks = [_said(code, *each) for code, remark in _REMARKS for each in remark(case)]
    if found:
        return parked(*found, remarks=remarks)
    ids = _mint(case, new_id)
    if taken := [_said("continuation_identity_reused", what) for what in _taken(case, ids)]:
        return parked(*taken, remarks=remarks)
    return ContinuationPlan(
        session_id=facts.session_id,
        source_run_id=run_id,
        disposition="continue",
        diagnostics=tuple(remarks),
        continuation=_continuation(case, ids),
    )


def replay_of(conversation: Conversation, run_id: str) -> tuple[Replay, str]:
    """What the run's continuation is given, and its digest."""
    replay = conversation.replay(run_id)
    return replay, hashlib.sha256(orjson.dumps(replay.messages, option=orjson.OPT_SORT_KEYS)).hexdigest()


def handoff_of(state: State, source: Source) -> Handoff | None:
    """The handoff that seals the run, while its successor has not started."""
    handoff = state.continuations.handoffs.get(state.continuations.pausing.get(source.turn_id, ""))
    return handoff if handoff is not None and handoff.data["run_id"] == source.run_id else None


@attrs.frozen(slots=False)
class _Case:
    """What a plan decides on."""

    facts: Facts
    source: Source
    observation: SafetyObservation
    purpose: Purpose
    turn_id: str | None
    rerun: frozenset[str]
    handoff: Handoff | None

    @property
    def state(self) -> State:
        return self.facts.state

    @property
    def lineage(self) -> Lineage:
        return Lineage(self.state.continuations, self.source.run_id)

    @property
    def session(self) -> str:
        """The session as a command names it."""
        return quote(self.facts.session_id)

    @cached_property
    def replayed(self) -> tuple[Replay, str]:
        return replay_of(self.facts.conversation, self.source.run_id)

    @property
    def replay(self) -> Replay:
        return self.replayed[0]

    @cached_property
    def called(self) -> set[str]:
        """Names of the tools that the replayed messages call, and of those that are executed again."""
        blocks = [block for message in self.replay.messages for block in message["content"]]
        names = {str(block["name"]) for block in blocks if block["kind"] == "tool_call"}
        return names | {self.state.turns.unknown[key].name for key in self.unknown(again=True)}

    def unknown(self, *, again: bool) -> list[str]:
        """Keys of the lineage's unsettled unknown calls that are executed ``again``, or of the others."""
        return [
            key
            for key, call in self.state.turns.unknown.items()
            if call.run_id in self.lineage and (call.recovery in self.rerun) == again
        ]


@attrs.frozen
class _Ids:
    invocation_id: str
    run_id: str
    turn_id: str
    claim_id: str


#: What is so, and what to do about it where the code's own remedy is not the best.
_Finding = tuple[str] | tuple[str, str]


def _said(code: str, what: str, remedy: str | None = None) -> Diagnostic:
    return Diagnostic(code, f"{what}. {remedy or {**REASONS, **REMARKS}[code].remedy}")


def _shown(value: Any) -> str:
    """A value in a sentence: ids and names may be long, and are somebody else's."""
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _listed(values: Sequence[str]) -> str:
    return ", ".join(map(_shown, values[:10])) + (f" and {len(values) - 10} more" if len(values) > 10 else "")


# ---------------------------------------------------------------- what stands alone


def _nothing_interrupted(state: State) -> str:
    newest = state.runs.newest
    if newest is None:
        return "No run has begun in this session"
    failed = state.runs.failed
    older = "" if failed is None else f"; the last one before it that failed or was stopped is {_shown(failed)}"
    return f"The newest run, {_shown(newest)}, has completed{older}"


def _unreadable(state: State, run_id: str) -> str:
    name = _shown(run_id)
    if state.runs.own(run_id) is not None:
        return f"The header of run {name} is lost, and with it what the run was set up with"
    if state.runs.known(run_id):
        return f"Run {name} is of the session that this one was forked from"
    if run_id in state.continuations.by_target:
        return f"Run {name} is reserved by claim {_shown(state.continuations.by_target[run_id])} and was never created"
    return f"There is no run {name} in this session"


def _refusal(case: _Case) -> Diagnostic | None:
    """The first of what a plan names alone."""
    source, state = case.source, case.state
    run = f"Run {_shown(source.run_id)}"
    if source.header.get("workspace_identity") is None:
        return _said("workspace_identity_missing", f"{run} does not say in which workspace it worked")
    claim = claim_on(state, source)
    sealed = source.status == "handed_off"
    if case.purpose == "resume" and sealed:
        return _said("runtime_identity_mismatch", f"{run} was handed over, and only its successor goes on from it")
    if case.purpose == "handoff" and not (
        sealed and (case.handoff is not None or (claim is not None and claim.start_seq is not None))
    ):
        return _said("runtime_identity_mismatch", f"{run} waits for no successor")
    if (fault := state.lineage_fault(source.run_id)) is not None:
        code, sentence = fault
        return _said(code, sentence[:1].upper() + sentence[1:])
    return None if claim is None else _claimed(case, claim)


def _claimed(case: _Case, claim: Claim) -> Diagnostic | None:
    """How the claim that exists on the boundary stands in the way."""
    run, target = f"Run {_shown(case.source.run_id)}", _shown(claim.target_run_id)
    by = f"claim {_shown(claim.claim_id)}, whose run is {target}"
    stands = claim_state(claim, case.state.runs, case.state.turns)
    if stands == "reserved" and case.purpose == "handoff" and _own(case, claim):
        return None
    if stands == "started_indeterminate":
        return _said(
            "continuation_started_indeterminate",
            f"{run} was continued by {by}; it was started, and whether it reached the provider is not known",
            f"End it with `maka session settle {case.session} --claim {quote(_shown(claim.claim_id))}`, then continue "
            f"run {target}; or send a new message.",
        )
    if stands == "settled":
        return _said("continuation_already_exists", f"{run} has been continued already, by {by}")
    return _said("continuation_claim_repair_required", f"{run} was claimed by {by}, and that was cut off")


def _own(case: _Case, claim: Claim) -> bool:
    """Is it the claim of the successor that is planned for, and still good?"""
    assert case.handoff is not None, "a handoff without one is no handoff"
    replay, digest = case.replayed
    wanted = (case.handoff.data["claim_id"], case.handoff.data["successor_run_id"], digest, replay.through_seq)
    held = (claim.claim_id, claim.target_run_id, claim.data["replay_digest"], claim.data["replay_through_seq"])
    return wanted == held


# ---------------------------------------------------------------- what accumulates


def _waiting(case: _Case) -> Iterator[_Finding]:
    for item in case.state.interactions.pending.values():
        if item.run_id in case.lineage:
            yield (f"The {item.kind} {_shown(item.interaction_id)} of run {_shown(item.run_id)} waits for an answer",)


def _empty(case: _Case) -> Iterator[_Finding]:
    if not case.source.begun:
        yield (f"Run {_shown(case.source.run_id)} was created and never began",)


def _unended(case: _Case) -> Iterator[_Finding]:
    source, turns = case.source, case.state.turns
    if source.high_water is None:
        run = f"Run {_shown(source.run_id)} of turn {_shown(source.turn_id)} has no end on record"
        if source.over:
            yield run, "Its turn was ended by another run; continue that one, or send a new message."
        else:
            yield (run,)
    for turn in turns.open.values():
        if turn.turn_id == source.turn_id and (source.high_water is None or case.purpose == "handoff"):
            continue
        stands = f"Turn {_shown(turn.turn_id)} of the session stands open"
        if turn.rest == "indeterminate":
            yield f"{stands} behind the start of a continuation", "Send a new message, which settles it, or settle it."
        elif turn.rest == "paused":
            yield f"{stands} and waits for its successor", "Let that go on, or give the handoff up, before this."
        else:
            yield (stands,)
    for _, turn_id, purpose in turns.claimed.values():
        if purpose == "resume":
            yield (f"Turn {_shown(turn_id)} is claimed and has not started",)


def _unverified(case: _Case) -> Iterator[_Finding]:
    first, last = case.state.unverified_seq, case.source.high_water
    if first is not None and last is not None and first <= last:
        yield (f"From event {first} on it is not proven that nothing is changed or lost, and the run ends with {last}",)


def _dangling(case: _Case) -> Iterator[_Finding]:
    for key in case.unknown(again=False):
        call = case.state.turns.unknown[key]
        yield _unknown(case, call.name, call.call_id, call.run_id, call.operation_id, call.recovery)
    turn = case.state.turns.open.get(case.source.turn_id)
    if turn is not None:
        provable = case.state.turns.tool_boundary and not turn.broken
        for open_ in turn.unanswered():
            if projected_state(open_, provable) == "unknown" and open_.recovery not in case.rerun:
                yield _unknown(
                    case, open_.name, open_.call_id, open_.run_id, open_.operation_id, open_.recovery, answered=False
                )
    elif (row := case.state.turns.closed.get(case.source.turn_id)) is not None:
        for _, call_id, name, state, call_seq in row[8]:
            if state == "unknown" and call_seq is None:  # its turn ended without any result for it
                yield _unknown(case, name, call_id, case.source.run_id, None, None)


def _unknown(
    case: _Case,
    name: str,
    call_id: str,
    run_id: str,
    operation_id: str | None,
    recovery: str | None,
    *,
    answered: bool = True,
) -> _Finding:
    called = f"Tool {_shown(name)}, call {_shown(call_id)} of run {_shown(run_id)}"
    if operation_id is None:
        return (
            f"{called}: there is no record whether it ran",
            "No outcome can be recorded for it. Look whether its effect happened, and say so in a new message.",
        )
    what = f"{called} (operation {_shown(operation_id)}, recovery {recovery}) was begun, and has no saved result"
    repair = "" if answered else "repair the session, "
    state = f"{repair}look whether its effect happened, and state it: `maka session settle {case.session} --call "
    state += f"{quote(operation_id if len(operation_id) <= _SHOWN else _shown(call_id))} --ok`, or `--error TEXT`"
    state = state[:1].upper() + state[1:]
    if recovery in RERUN:
        return what, f"{state}; or have it run again: `--rerun {recovery}`."
    if recovery == "reconcile":
        return what, f"{state}; a recovery with the app that has the tool lets the tool look by itself."
    return what, f"{state}."


def _elsewhere(case: _Case) -> Iterator[_Finding]:
    was, now = case.source.header.get("workspace_identity"), case.observation.workspace_identity
    if now is None:
        where = case.observation.cwd or case.facts.conversation.cwd
        yield (f"There is no workspace at {_shown(where)}, and the run worked in {_shown(was)}",)
    elif was != now:
        yield (f"The run worked in workspace {_shown(was)}, and this is {_shown(now)}",)


def _background(case: _Case) -> Iterator[_Finding]:
    if not case.observation.background_operations_settled:
        yield ("Something that an earlier run began in the background has not ended",)


def _checkpoint(case: _Case) -> Iterator[_Finding]:
    saved = case.observation.checkpoint
    if saved is None:
        return
    name, behind, last = _shown(saved.get("ref")), saved.get("high_water"), case.source.high_water
    if saved.get("restored") is not True:
        yield (f"The workspace was not put back to checkpoint {name}",)
    elif behind is not None and last is not None and behind != last:
        yield (f"Checkpoint {name} was saved behind event {_shown(behind)}, and the run ends with event {last}",)


def _tools(case: _Case) -> Iterator[_Finding]:
    if gone := sorted(case.called - set(case.observation.available_tool_names)):
        yield (f"The history calls tools that are not there: {_listed(gone)}",)


def _given_turn(case: _Case) -> Iterator[_Finding]:
    if case.purpose == "resume" and case.turn_id is not None and turn_taken(case.state, case.turn_id):
        yield (f"Turn {_shown(case.turn_id)} is there already",)


def _head(case: _Case) -> Iterator[_Finding]:
    messages = case.replay.messages
    if messages and messages[0]["role"] != "user":
        yield (f"The replay of run {_shown(case.source.run_id)} begins with the {messages[0]['role']}",)


def _boundary(case: _Case) -> Iterator[_Finding]:
    replay = case.replay
    if replay.through_seq is None:
        yield (f"Run {_shown(case.source.run_id)} holds no user message and no result of a tool",)
    elif not replay.messages or replay.messages[-1]["role"] == "assistant":
        yield (f"The last message or result that run {_shown(case.source.run_id)} was given is empty",)


_GATES: Final[tuple[tuple[str, Callable[[_Case], Iterator[_Finding]]], ...]] = (
    ("pending_permission", _waiting),
    ("runtime_ledger_empty", _empty),
    ("terminal_repair_failed", _unended),
    ("source_prefix_unverified", _unverified),
    ("dangling_tool_state", _dangling),
    ("workspace_identity_mismatch", _elsewhere),
    ("background_operation_pending", _background),
    ("checkpoint_restore_failed", _checkpoint),
    ("tool_catalog_mismatch", _tools),
    ("continuation_identity_reused", _given_turn),
    ("provider_resume_head_unsupported", _head),
    ("provider_resume_boundary_unsupported", _boundary),
)


# ---------------------------------------------------------------- what is only remarked on


def _moved(case: _Case) -> Iterator[_Finding]:
    was = text_of(case.source.header.get("cwd"))
    now = case.observation.cwd or case.facts.conversation.cwd
    same = case.source.header.get("workspace_identity") == case.observation.workspace_identity
    if same and was and now and was != now:
        yield (f"The workspace was at {_shown(was)} and is at {_shown(now)}",)


def _configured(case: _Case) -> Iterator[_Finding]:
    """A successor keeps what its source had; what it would have now is compared when it is resumed."""
    if case.purpose == "resume":
        now = case.facts.conversation.configuration()
        for key in CONFIGURED:
            if (was := case.source.header.get(key)) != now.get(key):
                yield (f"The {key.replace('_', ' ')} was {_shown(was)} and is {_shown(now.get(key))}",)


def _missing(case: _Case) -> Iterator[_Finding]:
    composition = mapping(case.facts.conversation.composition_of(case.source.run_id))
    had = {name for name in sequence(composition.get("tool_names")) if isinstance(name, str)}
    if gone := sorted(had - set(case.observation.available_tool_names) - case.called):
        yield (f"The run had tools that are not there: {_listed(gone)}",)


def _left_out(case: _Case) -> Iterator[_Finding]:
    newest = case.state.runs.newest
    if newest is not None and not case.lineage.reaches(newest):
        yield (f"Run {_shown(newest)} came later, in a turn that is not part of what is continued",)


_REMARKS: Final[tuple[tuple[str, Callable[[_Case], Iterator[_Finding]]], ...]] = (
    ("workspace_location_changed", _moved),
    ("configuration_changed", _configured),
    ("tools_missing", _missing),
    ("later_turn_left_out", _left_out),
)


# ---------------------------------------------------------------- the continuation


def _mint(case: _Case, new_id: Callable[[], str]) -> _Ids:
    if case.handoff is not None:
        pause = case.handoff.data
        return _Ids(pause["successor_invocation_id"], pause["successor_run_id"], case.source.turn_id, pause["claim_id"])
    invocation_id, run_id = new_id(), new_id()
    return _Ids(invocation_id, run_id, new_id() if case.turn_id is None else case.turn_id, new_id())


def turn_taken(state: State, turn_id: str) -> bool:
    """Is a turn of this id there, admitted, or claimed?"""
    if turn_id in state.turns.open or turn_id in state.turns.closed or turn_id in state.admissions.ids:
        return True
    return any(entry[1] == turn_id for entry in state.turns.claimed.values())


def run_taken(state: State, run_id: str) -> bool:
    """Is a run of this id there, admitted, or claimed?"""
    return state.runs.known(run_id) or run_id in state.admissions.by_run or run_id in state.continuations.by_target


def _taken(case: _Case, ids: _Ids) -> Iterator[str]:
    state = case.state
    if claim_on(state, case.source) is not None:
        return  # the successor's own claim holds them
    if run_taken(state, ids.run_id):
        yield f"Run {_shown(ids.run_id)} is there already"
    if case.handoff is None and turn_taken(state, ids.turn_id):
        yield f"Turn {_shown(ids.turn_id)} is there already"
    if ids.claim_id in state.continuations.claims or (
        case.handoff is None and ids.claim_id in state.continuations.reserved
    ):
        yield f"Claim {_shown(ids.claim_id)} is there already"


def _continuation(case: _Case, ids: _Ids) -> Continuation:
    source, state, conversation = case.source, case.state, case.facts.conversation
    replay, digest = case.replayed
    segments = state.segments(source.run_id)
    assert source.sum is not None, "a run without an end was refused"
    assert replay.through_seq is not None, "a replay without an anchor was refused"
    again = sorted(state.turns.unknown[key].call_seq for key in case.unknown(again=True))
    steps = source.header.get("max_steps") if case.handoff is None else case.handoff.data["remaining_steps"]
    return Continuation(
        session_id=case.facts.session_id,
        purpose=case.purpose,
        invocation_id=ids.invocation_id,
        run_id=ids.run_id,
        turn_id=ids.turn_id,
        claim_id=ids.claim_id,
        source=source.to_json(),
        boundary={"segments": segments},
        boundary_digest=source.sum,
        replay=tuple(replay.messages),
        replay_digest=digest,
        replay_through_seq=replay.through_seq,
        safety=case.observation,
        configuration=conversation.configuration() if case.handoff is None else configuration_of(source.header),
        root=mapping(source.header.get("root")) or {"kind": "user"},
        max_steps=whole(steps),
        sandbox_boundary_denied=any(segment["run_id"] in state.interactions.denials for segment in segments),
        composition=conversation.composition_of(source.run_id),
        rerun=tuple(again),
    )


def configuration_of(header: JsonObject) -> JsonObject:
    """What a run was set up with: ``{backend, model, connection?, cwd, permission_mode}``."""
    values = {key: text_of(header.get(key)) for key in ("backend", "model", "connection", "cwd", "permission_mode")}
    return {key: value or "" for key, value in values.items() if value is not None or key != "connection"}
