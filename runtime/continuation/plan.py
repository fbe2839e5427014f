"""Facts of a session → whether a run of it can be continued, and the continuation, or why not. No I/O."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, get_args

import attrs

from ...journal.events import Draft, Purpose
from ...journal.state import State
from ...journal.views.continuations import Handoff
from ...journal.views.problem import mapping, text_of, whole
from ..checks import shortly
from ..handoff.abandonment import IDS_TAKEN, giving_up
from ..ids import check_id
from ..tools.base import AGAIN
from .case import Case, configuration_of, handoff_of, invocation_taken, run_taken, turn_taken
from .codes import remarked, said, shown
from .gates import nothing_handed_over, nothing_interrupted, obstacles, refusal, remarks, unlike, unreadable
from .lineage import candidate, claim_on, source_of
from .safety import SafetyObservation, Unobserved
from .shapes import NOTHING_KNOWN
from .shapes import Continuation as Continuation  # whoever plans finds the shapes beside the plan
from .shapes import ContinuationPlan as ContinuationPlan
from .shapes import Diagnostic as Diagnostic
from .shapes import Facts as Facts
from .shapes import Prospect as Prospect

PURPOSES: Final[tuple[Purpose, ...]] = get_args(Purpose)


def at_once(
    session_id: str,
    *,
    source_run_id: str | None,
    purpose: Purpose = "resume",
    turn_id: str | None = None,
    rerun: Sequence[str] = (),
    enabled: bool = True,
) -> ContinuationPlan | None:
    """The plan of an app that continues no runs, for which neither session nor workspace are looked at; None: it does.

    Raises InvalidEvent for a ``turn_id`` that no turn can have, and ValueError for a purpose that there is not, for a
    recovery in ``rerun`` whose calls are never run again, and for a handoff that is given a turn or a ``rerun``.
    """
    if purpose not in PURPOSES:
        raise ValueError(f"purpose must be {' or '.join(PURPOSES)}, not {shortly(purpose)}")
    if wrong := [name for name in rerun if name not in AGAIN]:
        raise ValueError(f"calls of recovery {wrong[0]!r} are never run again; only {' and '.join(AGAIN)} are")
    if turn_id is not None:
        check_id("turn_id", turn_id)
    if purpose == "handoff" and (turn_id is not None or rerun):
        given = "rerun" if turn_id is None else "turn_id"
        raise ValueError(f"a handoff takes no {given}: its successor finishes its turn, and leaves no call behind")
    if enabled or purpose != "resume":
        return None
    return _parked(
        session_id, source_run_id, [said("resume_feature_disabled", f"Session {session_id} is not continued")]
    )


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
    backends: Collection[str] | None = None,
    prospect: Prospect = NOTHING_KNOWN,
) -> ContinuationPlan:
    """Whether the run can be continued, and by what, or why not.

    ``source_run_id`` None: the latest interrupted run; for a handoff the one that waits for its successor. ``rerun``:
    recoveries, of ``read_only`` and ``idempotent``, whose unknown calls are executed again. ``new_id`` is asked for the
    invocation, the run, the turn (if ``turn_id`` is None) and the claim, in this order, and not for a plan that parks
    by what is checked before, nor for a handoff, which has its ids. ``backends`` are those that there are, and
    ``prospect`` what the run would be made of, as far as that is known. Raises what ``at_once`` raises.
    """
    run_id = source_run_id

    def parked(*found: Diagnostic, noted: Sequence[Diagnostic] = ()) -> ContinuationPlan:
        return _parked(facts.session_id, run_id, found, noted)

    refused = at_once(
        facts.session_id, source_run_id=run_id, purpose=purpose, turn_id=turn_id, rerun=rerun, enabled=enabled
    )
    if refused is not None:
        return refused
    if isinstance(observation, Unobserved):
        return parked(_unobserved(observation))
    if run_id is None:
        run_id = candidate(facts.state) if purpose == "resume" else _waiting(facts.state)
        if run_id is None:
            why = nothing_interrupted(facts.state) if purpose == "resume" else nothing_handed_over()
            return parked(said("resume_candidate_missing", why, purpose=purpose))
    source = source_of(facts.state, facts.conversation, run_id)
    if source is None:
        waiting = [each for each in facts.state.continuations.pending() if each.data["run_id"] == run_id]
        noted = [_waits(facts, each) for each in waiting]
        return parked(said("source_run_unreadable", unreadable(facts.state, run_id), purpose=purpose), noted=noted)
    handoff = handoff_of(facts.state, source)
    case = Case(facts, source, observation, purpose, turn_id, frozenset(rerun), handoff, backends, prospect)
    waits = [_waits(facts, handoff)] if purpose == "handoff" and handoff is not None else []
    if (alone := refusal(case)) is not None:
        return parked(alone, noted=waits)
    noted = [*remarks(case), *waits]
    if found := obstacles(case):
        return parked(*found, noted=noted)
    ids = _mint(case, new_id)
    if taken := [said("continuation_identity_reused", what, purpose=purpose) for what in _taken(case, ids)]:
        return parked(*taken, noted=noted)
    return ContinuationPlan(
        session_id=facts.session_id,
        source_run_id=run_id,
        disposition="continue",
        diagnostics=tuple(remarks(case)),
        continuation=_continuation(case, ids),
    )


def would_park(facts: Facts, draft: Draft, observation: SafetyObservation | Unobserved) -> list[Diagnostic]:
    """Why no successor could go on from a run that still runs, if ``draft``, its handoff/pause, were the next event of
    the journal and sealed it; empty: one could.
    """
    pause = draft.data
    if isinstance(observation, Unobserved):
        return [_unobserved(observation)]
    running = source_of(facts.state, facts.conversation, pause["run_id"])
    if running is None:
        return [said("source_run_unreadable", unreadable(facts.state, pause["run_id"]))]
    seq = facts.conversation.seq + 1
    source = attrs.evolve(running, status="handed_off", high_water=seq, over=True)
    # A workspace is saved behind the pause, and put back before a successor begins: there is nothing to compare yet.
    seen = attrs.evolve(observation, checkpoint=None)
    handoff = Handoff(pause["handoff_id"], seq, pause)
    case = Case(facts, source, seen, "handoff", None, frozenset(), handoff)
    if (alone := refusal(case)) is not None:
        return [alone]
    taken = [said("continuation_identity_reused", what) for what in _taken(case, _reserved(case, handoff))]
    return [*obstacles(case), *taken, *unlike(case)]


def _waits(facts: Facts, handoff: Handoff) -> Diagnostic:
    pause = handoff.data
    waits = f"Turn {shown(pause['turn_id'])} waits for run {shown(pause['successor_run_id'])}"
    if facts.state.taken(handoff):
        return remarked("handoff_pending", waits, f"{IDS_TAKEN}.")
    up = giving_up(facts.session_id, handoff.handoff_id)
    refused = f"Until that has gone on, or the handoff is given up ({up}), new messages are refused."
    return remarked("handoff_pending", waits, refused)


def _unobserved(why: Unobserved) -> Diagnostic:
    return said("safety_observation_unavailable", f"The workspace could not be observed: {why}")


def _waiting(state: State) -> str | None:
    """The run that was handed over and whose successor has not started, or of whose start nothing more is known."""
    run_ids: list[str] = [handoff.data["run_id"] for handoff in state.continuations.pending()]
    for turn in state.turns.open.values():
        claim = state.continuations.claims.get(state.continuations.by_target.get(turn.newest_run, ""))
        if claim is not None and claim.purpose == "handoff" and turn.rest == "indeterminate":
            run_ids += [run_id] if (run_id := text_of(mapping(claim.data["source"]).get("run_id"))) is not None else []
    return run_ids[-1] if run_ids else None


def _parked(
    session_id: str, run_id: str | None, found: Sequence[Diagnostic], noted: Sequence[Diagnostic] = ()
) -> ContinuationPlan:
    return ContinuationPlan(
        session_id=session_id,
        source_run_id=run_id,
        disposition="park",
        rejection_reasons=tuple(dict.fromkeys(each.code for each in found)),
        diagnostics=(*found, *noted),
    )


@attrs.frozen
class _Ids:
    invocation_id: str
    run_id: str
    turn_id: str
    claim_id: str


# ---------------------------------------------------------------- the continuation


def _mint(case: Case, new_id: Callable[[], str]) -> _Ids:
    if case.handoff is not None:
        return _reserved(case, case.handoff)
    invocation_id, run_id = new_id(), new_id()
    return _Ids(invocation_id, run_id, new_id() if case.turn_id is None else case.turn_id, new_id())


def _reserved(case: Case, handoff: Handoff) -> _Ids:
    pause = handoff.data
    return _Ids(pause["successor_invocation_id"], pause["successor_run_id"], case.source.turn_id, pause["claim_id"])


def _taken(case: Case, ids: _Ids) -> Iterator[str]:
    state = case.state
    if (admitted := state.admissions.open.get(ids.turn_id)) is not None and case.handoff is not None:
        yield f"Turn {shown(ids.turn_id)} was admitted with run {shown(admitted.run_id)}, and has no message yet"
    if claim_on(state, case.source) is not None:
        return  # the successor's own claim holds them
    if invocation_taken(case, ids.invocation_id):
        yield f"Invocation {shown(ids.invocation_id)} is there already"
    if run_taken(state, ids.run_id):
        yield f"Run {shown(ids.run_id)} is there already"
    if case.handoff is None and turn_taken(state, ids.turn_id):
        yield f"Turn {shown(ids.turn_id)} is there already"
    if ids.claim_id in state.continuations.claims or (
        case.handoff is None and ids.claim_id in state.continuations.reserved
    ):
        yield f"Claim {shown(ids.claim_id)} is there already"


def _continuation(case: Case, ids: _Ids) -> Continuation:
    source, state, conversation = case.source, case.state, case.facts.conversation
    replay, digest = case.replayed
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
        boundary={"segments": case.segments},
        boundary_digest=source.sum,
        replay=tuple(replay.messages),
        replay_digest=digest,
        replay_through_seq=replay.through_seq,
        safety=case.observation,
        configuration=conversation.configuration() if case.handoff is None else configuration_of(source.header),
        root=mapping(source.header.get("root")) or {"kind": "user"},
        max_steps=whole(steps),
        sandbox_boundary_denied=any(segment["run_id"] in state.interactions.denials for segment in case.segments),
        composition=conversation.composition_of(source.run_id),
        newest_run_id=state.runs.newest,
        rerun=tuple(again),
    )
