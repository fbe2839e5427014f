"""What stands in the way of a continuation, gate by gate, and what is only worth a remark. No I/O."""

from collections.abc import Callable, Iterator
from shlex import quote
from typing import Final

import attrs

from ...journal.events import Purpose
from ...journal.state import State
from ...journal.views.continuations import Claim, claim_state, execution
from ...journal.views.problem import mapping, sequence, text_of
from ...journal.views.turn import projected_state
from ..handoff.abandonment import IDS_TAKEN, giving_up
from ..tools.base import AGAIN
from .case import CONFIGURED, Case, configuration_of, turn_taken
from .codes import SHOWN, listed, remarked, said, shown
from .lineage import claim_on
from .safety import same_workspace
from .shapes import Diagnostic

#: What is so, and what to do about it where the code's own remedy is not the best.
_Finding = tuple[str] | tuple[str, str]
_Gates = tuple[tuple[str, Callable[[Case], Iterator[_Finding]]], ...]


def obstacles(case: Case) -> list[Diagnostic]:
    """All that stands in the way beside that, in the order of the checks."""
    return _through(_GATES, case, said)


def remarks(case: Case) -> list[Diagnostic]:
    """What has changed since the run, and keeps nothing from going on."""
    return _through(_REMARKS, case, remarked)


def unlike(case: Case) -> list[Diagnostic]:
    """What a successor is refused for when it is to be started, although it can be planned."""
    return _through(_UNLIKE, case, remarked)


def _through(gates: _Gates, case: Case, told: Callable[..., Diagnostic]) -> list[Diagnostic]:
    return [told(code, *found, purpose=case.purpose) for code, gate in gates for found in gate(case)]


# ---------------------------------------------------------------- what stands alone


def refusal(case: Case) -> Diagnostic | None:
    """The first of what a plan for this run names alone."""
    source, state = case.source, case.state
    run = f"Run {shown(source.run_id)}"
    if source.header.get("workspace_identity") is None:
        what = f"{run} does not say in which workspace it worked"
        return said("workspace_identity_missing", what, purpose=case.purpose)
    claim = claim_on(state, source)
    sealed = source.status == "handed_off"
    if case.purpose == "resume" and sealed:
        return _handed_over(case, claim)
    if case.purpose == "handoff" and not (
        sealed and (case.handoff is not None or (claim is not None and claim.start_seq is not None))
    ):
        return said("runtime_identity_mismatch", f"{run} waits for no successor")
    if (fault := state.lineage_fault(source.run_id)) is not None:
        code, sentence = fault
        return said(code, sentence[:1].upper() + sentence[1:], purpose=case.purpose)
    return None if claim is None else _claimed(case, claim)


def _handed_over(case: Case, claim: Claim | None) -> Diagnostic:
    what = f"Run {shown(case.source.run_id)} was handed over, and only its successor goes on from it"
    if case.handoff is not None:
        return said("runtime_identity_mismatch", what, _ways(case, case.handoff.handoff_id))
    if claim is None:
        return said("runtime_identity_mismatch", what)
    how, remedy = _newest(case, claim)
    return said("runtime_identity_mismatch", f"{what}: run {shown(claim.target_run_id)}{how}", remedy)


def _newest(case: Case, claim: Claim) -> tuple[str, str]:
    """How the turn that a claim's run was to go on with stands by now, and what to do."""
    successor = claim.target_run_id
    turn = execution(case.state.runs, case.state.turns, claim.target_turn_id)
    tip = str(turn["tip"]) if turn is not None and successor in turn["chain"] else successor
    how = "" if tip == successor else f"; the newest run of its turn is {shown(tip)}"
    if turn is not None and turn["status"] == "completed":
        return f"{how}; the turn has completed", "Send a new message."
    if turn is not None and turn["pending_handoff"] is not None:
        return how, _ways(case, turn["pending_handoff"])
    claim_id = case.state.continuations.by_target.get(tip)
    if claim_id is not None and turn is not None and turn["status"] == "indeterminate":
        return f"{how}, of which nothing is known behind its start", _settled(case, claim_id, tip)
    command = f"maka session resume {case.session} --run {quote(shown(tip))}"
    return how, f"Continue run {shown(tip)}: `{command}`; or send a new message."


def _settled(case: Case, claim_id: str, run_id: str) -> str:
    """What to do about a run that was started, and of which nothing more is known."""
    end = f"`maka session settle {case.session} --claim {quote(shown(claim_id))}`"
    return f"End it with {end}, then continue run {shown(run_id)}; or send a new message."


def _ways(case: Case, handoff_id: str) -> str:
    """What to do about a handoff that waits."""
    if case.state.taken(case.state.continuations.handoffs[handoff_id]):
        return f"{IDS_TAKEN}."
    up = giving_up(case.facts.session_id, handoff_id)
    return f"Resume the handoff: `maka session resume {case.session}`; or give it up: {up}."


def nothing_handed_over() -> str:
    """Why a session has no handoff to be resumed."""
    return "No run of the session was handed over and waits for its successor"


def nothing_interrupted(state: State) -> str:
    """Why a session has no run to be resumed."""
    newest = state.runs.newest
    if newest is None:
        return "No run has begun in this session"
    failed = state.runs.failed
    older = "" if failed is None else f"; the last one before it that failed or was stopped is {shown(failed)}"
    return f"The newest run, {shown(newest)}, has completed{older}"


def unreadable(state: State, run_id: str) -> str:
    """Why a run cannot be a source."""
    name = shown(run_id)
    if state.runs.own(run_id) is not None:
        return f"The header of run {name} is lost, and with it what the run was set up with"
    if state.runs.known(run_id):
        return f"Run {name} is of the session that this one was forked from"
    if run_id in state.continuations.by_target:
        return f"Run {name} is reserved by claim {shown(state.continuations.by_target[run_id])} and was never created"
    return f"There is no run {name} in this session"


@attrs.frozen
class _Words:
    """Of a claim on a run: by whom, and what became of the run by it."""

    by: str
    claimed: str
    continued: str
    already: str
    again: str


_CLAIMED: Final[dict[Purpose, _Words]] = {
    "resume": _Words(
        by="claim {claim}, whose run is {run}",
        claimed="was claimed by",
        continued="was continued by",
        already="has been continued already, by",
        again=". A call that was to be made again may have run, too",
    ),
    "handoff": _Words(
        by="run {run}",
        claimed="was handed over to",
        continued="was handed over to",
        already="was handed over to",
        again="",
    ),
}


def _claimed(case: Case, claim: Claim) -> Diagnostic | None:
    """How the claim that exists on the boundary stands in the way."""
    run, target = f"Run {shown(case.source.run_id)}", shown(claim.target_run_id)
    words = _CLAIMED[case.purpose]
    by = words.by.format(claim=shown(claim.claim_id), run=target)
    stands = claim_state(claim, case.state.runs, case.state.turns)
    if stands == "reserved" and case.purpose == "handoff" and _own(case, claim):
        if claim.fault is None:
            return None
        code, sentence = claim.fault
        return said(code, sentence[:1].upper() + sentence[1:], purpose=case.purpose)
    if stands == "started_indeterminate":
        return said(
            "continuation_started_indeterminate",
            f"{run} {words.continued} {by}; it was started, and whether it reached the provider is not known"
            f"{words.again}",
            _settled(case, claim.claim_id, claim.target_run_id),
        )
    if stands == "settled":
        after = case.state.runs.settled(claim.target_run_id)
        if after is None and not case.state.runs.known(claim.target_run_id):
            what = f"{run} was claimed by claim {shown(claim.claim_id)}, whose run never began and never can"
            return said("continuation_already_exists", what, "Send a new message.")
        what = f"{run} {words.already} {by}"
        if case.purpose == "handoff" or after is None:
            how, remedy = _newest(case, claim)
            return said("continuation_already_exists", f"{what}{how}", remedy)
        if after.status == "completed":
            return said("continuation_already_exists", f"{what}, and that has completed", "Send a new message.")
        command = f"maka session resume {case.session} --run {quote(target)}"
        return said("continuation_already_exists", what, f"Continue that run: `{command}`; or send a new message.")
    return said("continuation_claim_repair_required", f"{run} {words.claimed} {by}, and that was cut off")


def _own(case: Case, claim: Claim) -> bool:
    """Is it the claim of the successor that is planned for, and still good?"""
    assert case.handoff is not None, "a handoff without one is no handoff"
    replay, digest = case.replayed
    wanted = (case.handoff.data["claim_id"], case.handoff.data["successor_run_id"], digest, replay.through_seq)
    data = claim.data
    held = (claim.claim_id, claim.target_run_id, data.get("replay_digest"), data.get("replay_through_seq"))
    return wanted == held


# ---------------------------------------------------------------- what accumulates


def _waiting(case: Case) -> Iterator[_Finding]:
    for item in case.state.interactions.pending.values():
        if item.run_id in case.lineage:
            yield (f"The {item.kind} {shown(item.interaction_id)} of run {shown(item.run_id)} waits for an answer",)


def _empty(case: Case) -> Iterator[_Finding]:
    if not case.source.begun:
        yield (f"Run {shown(case.source.run_id)} was created and never began",)


def _unended(case: Case) -> Iterator[_Finding]:
    source, turns = case.source, case.state.turns
    if source.high_water is None:
        run = f"Run {shown(source.run_id)} of turn {shown(source.turn_id)} has no end on record"
        claim = case.state.continuations.claims.get(case.state.continuations.by_target.get(source.run_id, ""))
        if claim is not None and claim_state(claim, case.state.runs, turns) == "started_indeterminate":
            yield run, _settled(case, claim.claim_id, source.run_id)
        elif source.over:
            yield run, "Its turn was ended by another run; continue that one, or send a new message."
        else:
            yield (run,)
    for turn in turns.open.values():
        if turn.turn_id == source.turn_id and (source.high_water is None or case.purpose == "handoff"):
            continue
        stands = f"Turn {shown(turn.turn_id)} of the session stands open"
        rest = turn.rest if turns.left_alone(turn) else None
        if rest == "indeterminate":
            settling = "Settle it; a message settles it too, where no turn waits for its successor."
            yield f"{stands} behind the start of a continuation", settling
        elif rest == "paused":
            yield f"{stands} and waits for its successor", _ways(case, turn.pause or "")
        else:
            yield (stands,)
    for _, turn_id, purpose in turns.claimed.values():
        if purpose == "resume":
            yield (f"Turn {shown(turn_id)} is claimed and has not started",)


def _unverified(case: Case) -> Iterator[_Finding]:
    first, newest, end = case.state.unverified_seq, case.state.lost_seq, case.source.high_water
    if first is not None and end is not None and first <= end:
        yield (f"From event {first} on it is not proven that nothing is changed or lost, and the run ends with {end}",)
    elif newest is not None and end is not None and newest > end:
        lost = f"Events were lost, or are not proven, up to event {newest}, and run {shown(case.source.run_id)} ends"
        yield (f"{lost} with {end}: somebody may have gone on from it there",)


def _dangling(case: Case) -> Iterator[_Finding]:
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
    case: Case,
    name: str,
    call_id: str,
    run_id: str,
    operation_id: str | None,
    recovery: str | None,
    *,
    answered: bool = True,
) -> _Finding:
    called = f"Tool {shown(name)}, call {shown(call_id)} of run {shown(run_id)}"
    if operation_id is None:
        return (
            f"{called}: there is no record whether it ran",
            "No outcome can be recorded for it. Look whether its effect happened, and say so in the next message.",
        )
    what = f"{called} (operation {shown(operation_id)}, recovery {recovery}) was begun, and has no saved result"
    repair = "" if answered else "repair the session, "
    state = f"{repair}look whether its effect happened, and state it: `maka session settle {case.session} --call "
    state += f"{quote(operation_id if len(operation_id) <= SHOWN else shown(call_id))} --ok`, or `--error TEXT`"
    state = state[:1].upper() + state[1:]
    if recovery in AGAIN:
        return what, f"{state}; or have it run again: `--rerun {recovery}`."
    if recovery == "reconcile":
        look = (
            "Recover the session with the app that has the tool (`maka session resume` does): the tool looks by itself"
        )
        return what, f"{look}. Where that does not help, {state[:1].lower()}{state[1:]}."
    return what, f"{state}."


def _elsewhere(case: Case) -> Iterator[_Finding]:
    was, now = case.source.header.get("workspace_identity"), case.observation.workspace_identity
    if now is None:
        where = case.observation.cwd or case.facts.conversation.cwd
        yield (f"There is no workspace at {shown(where)}, and the run worked in {shown(was)}",)
    elif not same_workspace(was, now):
        yield (f"The run worked in workspace {shown(was)}, and this is {shown(now)}",)


def _background(case: Case) -> Iterator[_Finding]:
    if not case.observation.background_operations_settled:
        yield ("Something that an earlier run began in the background has not ended",)


def _checkpoint(case: Case) -> Iterator[_Finding]:
    saved = case.observation.checkpoint
    if saved is None:
        return
    name, behind, last = shown(saved.get("ref")), saved.get("high_water"), case.source.high_water
    if saved.get("restored") is not True:
        yield (f"The workspace was not put back to checkpoint {name}",)
    elif behind is not None and last is not None and behind != last:
        yield (f"Checkpoint {name} was saved behind event {shown(behind)}, and the run ends with event {last}",)


def _tools(case: Case) -> Iterator[_Finding]:
    if gone := sorted(case.called - set(case.observation.available_tool_names)):
        yield (f"The history calls tools that are not there: {listed(gone)}",)


def _given_turn(case: Case) -> Iterator[_Finding]:
    if case.purpose == "resume" and case.turn_id is not None and turn_taken(case.state, case.turn_id):
        yield (f"Turn {shown(case.turn_id)} is there already",)


def _head(case: Case) -> Iterator[_Finding]:
    messages = case.replay.messages
    if messages and messages[0]["role"] != "user":
        yield (f"The replay of run {shown(case.source.run_id)} begins with the {messages[0]['role']}",)


def _boundary(case: Case) -> Iterator[_Finding]:
    replay = case.replay
    if replay.through_seq is None:
        yield (f"Run {shown(case.source.run_id)} holds no user message and no result of a tool",)
    elif case.source.high_water is not None and replay.through_seq > case.source.high_water:
        yield (f"Run {shown(case.source.run_id)} has a message or a result behind its end, event {replay.through_seq}",)
    elif not replay.messages or replay.messages[-1]["role"] == "assistant":
        yield (f"The last message or result that run {shown(case.source.run_id)} was given is empty",)


def _archived(case: Case) -> Iterator[_Finding]:
    if case.state.session.value("archived") is True:
        yield (f"Session {shown(case.facts.session_id)} is archived",)


def _unbacked(case: Case) -> Iterator[_Finding]:
    name = case.facts.conversation.configuration()["backend"]
    if case.backends is not None and name not in case.backends:
        yield (f"The app has no backend {shown(name)}, but {listed(sorted(case.backends))}",)


def _another(case: Case) -> Iterator[_Finding]:
    if case.handoff is not None and case.drifted:
        what = f"The app would make another agent than that of run {shown(case.worked)}: not the same are its "
        yield f"{what}{listed(case.drifted)}", _as_it_was(case)


def _no_successor(case: Case) -> Iterator[_Finding]:
    if case.handoff is not None and case.prospect.handoff is False:
        name = shown(case.facts.conversation.configuration()["backend"])
        what = f"Backend {name} of the app does not record what its runs are made of, so none takes over run "
        yield f"{what}{shown(case.source.run_id)}", _as_it_was(case)


def _as_it_was(case: Case) -> str:
    up = f"give the handoff up ({case.giving_up}) and go on from the run that comes of that"
    return f"Use the app as it was, or {up}."


_GATES: Final[_Gates] = (
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
    ("session_archived", _archived),
    ("backend_unknown", _unbacked),
    ("composition_changed", _another),
    ("composition_unavailable", _no_successor),
)


# ---------------------------------------------------------------- what is only remarked on


def _moved(case: Case) -> Iterator[_Finding]:
    was = text_of(case.source.header.get("cwd"))
    now = case.observation.cwd or case.facts.conversation.cwd
    same = same_workspace(case.source.header.get("workspace_identity"), case.observation.workspace_identity)
    if same and was and now and was != now:
        yield (f"The workspace was at {shown(was)} and is at {shown(now)}",)


def _configured(case: Case) -> Iterator[_Finding]:
    then, now = configuration_of(case.source.header), case.facts.conversation.configuration()
    for key in CONFIGURED:
        if (was := then.get(key)) == now.get(key):
            continue
        yield (f"The {key.replace('_', ' ')} was {shown(was)} and is {shown(now.get(key))}",)


def _composed(case: Case) -> Iterator[_Finding]:
    if case.purpose == "resume" and case.drifted:
        yield (f"The agent is not that of run {shown(case.worked)}: not the same are its {listed(case.drifted)}",)


def _uncomposed(case: Case) -> Iterator[_Finding]:
    if case.handoff is not None and case.recorded is None:
        what = f"Run {shown(case.source.run_id)} was handed over without a composition on record that can be read"
        refused = "Its successor will be refused (`source_identity_changed`)"
        yield what, f"{refused}: give the handoff up: {case.giving_up}."


def _missing(case: Case) -> Iterator[_Finding]:
    conversation, run_id = case.facts.conversation, case.worked
    composition = mapping(conversation.composition_of(run_id))
    had = {name for name in sequence(composition.get("tool_names")) if isinstance(name, str)}
    had.update(conversation.offered(run_id))
    if gone := sorted(had - set(case.observation.available_tool_names) - case.called):
        yield (f"Run {shown(run_id)} had tools that are not there: {listed(gone)}",)


def _left_out(case: Case) -> Iterator[_Finding]:
    newest = case.state.runs.newest
    if newest is not None and not case.lineage.reaches(newest):
        yield (f"Run {shown(newest)} came later, in a turn that is not part of what is continued",)


def _completed(case: Case) -> Iterator[_Finding]:
    if case.source.status == "completed":
        yield (f"Run {shown(case.source.run_id)} has completed, and is answered anew",)


_REMARKS: Final[_Gates] = (
    ("source_completed", _completed),
    ("workspace_location_changed", _moved),
    ("configuration_changed", _configured),
    ("composition_changed", _composed),
    ("composition_missing", _uncomposed),
    ("tools_missing", _missing),
    ("later_turn_left_out", _left_out),
)
_UNLIKE: Final[_Gates] = (
    ("configuration_changed", _configured),
    ("composition_missing", _uncomposed),
)
