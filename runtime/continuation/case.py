"""One run that is to be continued, and all that a plan holds it against. No I/O."""

import hashlib
from collections.abc import Collection
from functools import cached_property
from shlex import quote
from typing import Final

import attrs
import orjson

from ...journal.events import JsonObject, Purpose
from ...journal.history import Replay
from ...journal.state import State
from ...journal.views.continuations import Handoff
from ...journal.views.problem import text_of
from ...journal.views.runs import Run, outcome
from ..composition import SEMANTICS, RunComposition
from ..handoff.abandonment import giving_up
from .codes import STALE
from .lineage import Lineage, Source
from .safety import SafetyObservation
from .shapes import NOTHING_KNOWN, Facts, Prospect

#: What of the session's configuration a run keeps to itself, and is worth a word where it has changed.
CONFIGURED: Final = ("backend", "model", "connection", "permission_mode")
#: Failure classes of runs whose backend was never called.
UNCALLED: Final = frozenset(
    {*STALE, "continuation_abandoned_before_provider_dispatch", "handoff_abandoned", "start_failed"}
)


@attrs.frozen(slots=False)
class Case:
    """What a plan decides on."""

    facts: Facts
    source: Source
    observation: SafetyObservation
    purpose: Purpose
    turn_id: str | None
    rerun: frozenset[str]
    handoff: Handoff | None
    #: The backends that there are; None: nobody knows yet what is to run it.
    backends: Collection[str] | None = None
    #: What its continuation would be made of now.
    prospect: Prospect = NOTHING_KNOWN

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
    def segments(self) -> list[JsonObject]:
        """The boundary, oldest first, the source's own last. The source has a terminal fact."""
        return self.state.segments(self.source.run_id)

    @cached_property
    def replayed(self) -> tuple[Replay, str]:
        """What the run's continuation is given, and its digest."""
        replay = self.facts.conversation.replay(self.source.run_id)
        return replay, hashlib.sha256(orjson.dumps(replay.messages, option=orjson.OPT_SORT_KEYS)).hexdigest()

    @cached_property
    def worked(self) -> str:
        """The run whose agent is gone on from: the source, or where its backend was never called the one behind it."""
        run_id, claims = self.source.run_id, self.state.continuations.claims
        claim = claims.get(self.state.continuations.by_target.get(run_id, ""))
        while claim is not None and _failure_class(self.state, run_id) in UNCALLED:
            run_id = text_of(claim.segment.get("run_id")) or run_id
            claim = claims.get(claim.earlier or "")
        return run_id

    @cached_property
    def recorded(self) -> RunComposition | None:
        """What that run was made of; None where none is on record, or none that can be read."""
        try:
            return RunComposition.from_json(self.facts.conversation.composition_of(self.worked))
        except ValueError:
            return None

    @property
    def drifted(self) -> list[str]:
        """What is known to be otherwise by now, as a person calls it."""
        was, now = self.recorded, self.prospect.known
        if was is None:
            return []
        return [name for key, name in SEMANTICS.items() if key in now and getattr(was, key) != now[key]]

    @property
    def giving_up(self) -> str:
        """The command that gives up the handoff, which is there."""
        assert self.handoff is not None, "a handoff without one is no handoff"
        return giving_up(self.facts.session_id, self.handoff.handoff_id)

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


def handoff_of(state: State, source: Source) -> Handoff | None:
    """The handoff that seals the run, while its successor has not started."""
    turn = state.turns.open.get(source.turn_id)
    handoff_id = state.continuations.pausing.get(source.turn_id)
    if turn is None or handoff_id is None or turn.pause != handoff_id:
        return None
    handoff = state.continuations.handoffs[handoff_id]
    return handoff if handoff.data["run_id"] == source.run_id else None


def _failure_class(state: State, run_id: str) -> str | None:
    run = state.runs.own(run_id)
    if isinstance(run, Run):
        return None if run.reason is None else outcome(run.reason)[1]
    return None if run is None else run.failure_class


def configuration_of(header: JsonObject) -> JsonObject:
    """What a run was set up with: ``{backend, model, connection?, cwd, permission_mode}``."""
    values = {key: text_of(header.get(key)) for key in ("backend", "model", "connection", "cwd", "permission_mode")}
    return {key: value or "" for key, value in values.items() if value is not None or key != "connection"}


def turn_taken(state: State, turn_id: str) -> bool:
    """Is a turn of this id there, admitted, claimed, or asked to stop?"""
    turns = state.turns
    if any(turn_id in known for known in (turns.open, turns.closed, turns.stops, state.admissions.ids)):
        return True
    return any(entry[1] == turn_id for entry in turns.claimed.values())


def run_taken(state: State, run_id: str) -> bool:
    """Is a run of this id there, admitted, or claimed?"""
    return state.runs.known(run_id) or run_id in state.admissions.by_run or run_id in state.continuations.by_target


def invocation_taken(case: Case, invocation_id: str) -> bool:
    """Is an invocation of this id there, in the lineage or of a run that is not over?"""
    lineage = (segment["invocation_id"] for segment in case.segments)
    return invocation_id in lineage or any(run.invocation_id == invocation_id for run in case.state.runs.live.values())
