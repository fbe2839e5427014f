"""Which run is continued, how it ended, and which runs it goes back to. No I/O."""

import attrs

from ...journal.events import JsonObject
from ...journal.state import State
from ...journal.views.continuations import Claim, Continuations
from ...journal.views.problem import mapping, text_of
from ...journal.views.runs import Run, Settled, outcome
from ..conversation import Conversation


@attrs.frozen(kw_only=True)
class Source:
    """A run of this journal. ``status``: completed, failed, cancelled, handed_off; None: it has no terminal fact yet.

    ``high_water`` and ``sum`` are its terminal fact's, None where it has none. ``over``: none can come any more.
    ``begun``: its ledger is not empty.
    """

    run_id: str
    invocation_id: str
    turn_id: str
    status: str | None
    high_water: int | None
    sum: str | None
    over: bool
    begun: bool
    header: JsonObject

    def to_json(self) -> JsonObject:
        """``{run_id, invocation_id, turn_id, high_water}``, as claims and starts name it."""
        return {key: getattr(self, key) for key in ("run_id", "invocation_id", "turn_id", "high_water")}


def source_of(state: State, conversation: Conversation, run_id: str) -> Source | None:
    """The run; None where this journal has none of that id (a fork has none of its parent), or has lost its header."""
    run, header = state.runs.own(run_id), conversation.header_of(run_id)
    if run is None or header is None:
        return None
    return Source(
        run_id=run_id,
        invocation_id=run.invocation_id,
        turn_id=run.turn_id,
        status=_status(run),
        high_water=run.terminal_seq,
        sum=run.terminal_sum,
        over=isinstance(run, Settled),
        begun=run.opened_seq is not None or run.terminal_seq is not None,
        header=header,
    )


def _status(run: Run | Settled) -> str | None:
    if isinstance(run, Settled):
        return run.status
    return None if run.reason is None else outcome(run.reason)[0]


def candidate(state: State) -> str | None:
    """The run that is meant by resuming a session: the one that was interrupted last.

    None: nothing was, or the session has gone on without it.
    """
    runs = state.runs
    newest = None if runs.newest is None else runs.own(runs.newest)
    if newest is None:
        return None
    if isinstance(newest, Run) and (claim := state.continuations.claims.get(newest.claim_id or "")) is not None:
        return text_of(mapping(claim.data["source"]).get("run_id")) or newest.run_id
    if _status(newest) != "completed":
        return newest.run_id
    failed = runs.failed
    return failed if failed is not None and Lineage(state.continuations, failed).reaches(newest.run_id) else None


@attrs.frozen
class Lineage:
    """The runs that a run goes back to, itself among them. To ask costs the same however many there are."""

    continuations: Continuations
    run_id: str

    def __contains__(self, run_id: str) -> bool:
        """A boundary is claimed once, so the runs of one root are a chain, and the place in it tells."""
        return self.reaches(run_id) and self._place(run_id) <= self._place(self.run_id)

    def reaches(self, run_id: str) -> bool:
        """Is that run of the same root, before this one or behind it?"""
        return self.continuations.ancestry(run_id)[0] == self.continuations.ancestry(self.run_id)[0]

    def _place(self, run_id: str) -> int:
        return self.continuations.ancestry(run_id)[1]


def claim_on(state: State, source: Source) -> Claim | None:
    """The claim that exists on exactly the source's boundary."""
    claim_id = None if source.sum is None else state.continuations.by_boundary.get(source.sum)
    return None if claim_id is None else state.continuations.claims[claim_id]
