"""Questions, permissions and sandbox boundaries that runs wait for. No I/O."""

from typing import Any, Final, Literal

import attrs

from ..events import Event, JsonObject
from .closed import Closed
from .problem import Handlers, Problem, Refusals

#: At most this many wait at once in a session.
MAX_PENDING: Final = 16
#: Why an interaction is closed without an answer.
CLOSURES: Final = frozenset({"turn_stopped", "turn_terminal", "timed_out", "host_restarted"})


@attrs.define(slots=True)
class Interaction:
    """One that waits for its outcome. ``kind``: question, permission or sandbox_boundary."""

    interaction_id: str
    seq: int
    turn_id: str
    run_id: str
    kind: str
    request: JsonObject


@attrs.define(slots=True)
class Interactions:
    """``pending`` by id, oldest first; ``by_run``: run_id → their ids.

    ``done``: rows ``[interaction_id, seq, kind, status, outcome, resolved_seq, turn_id, run_id]``. ``denials``: run_id
    → ids of the sandbox boundaries that a client denied it, and ``unclear`` of those whose outcome is neither a
    client's decision nor a known cleanup, so that nobody can say whether it was denied; a fork takes both over.
    """

    pending: dict[str, Interaction] = attrs.field(factory=dict, metadata={"of": Interaction})
    by_run: dict[str, dict[str, None]] = attrs.field(factory=dict)
    done: Closed = attrs.field(factory=Closed)
    denials: dict[str, list[str]] = attrs.field(factory=dict)
    unclear: dict[str, list[str]] = attrs.field(factory=dict)

    def of_run(self, run_id: str) -> list[Interaction]:
        """Those that wait for an outcome in this run, oldest first."""
        return [self.pending[interaction_id] for interaction_id in self.by_run.get(run_id, ())]


def refuse_requested(interactions: Interactions, data: JsonObject) -> str | None:
    interaction_id = data["interaction_id"]
    if interaction_id in interactions.pending or interaction_id in interactions.done:
        return f"interaction {interaction_id} was requested before"
    if len(interactions.pending) >= MAX_PENDING:
        return f"{MAX_PENDING} interactions wait already; answer one first"
    return None


def refuse_resolved(interactions: Interactions, data: JsonObject) -> str | None:
    interaction_id = data["interaction_id"]
    if interaction_id in interactions.pending:
        return None
    known = interaction_id in interactions.done
    return f"interaction {interaction_id} " + ("has its outcome already" if known else "was never requested")


REFUSALS: Final[Refusals] = {"interaction/requested": refuse_requested, "interaction/resolved": refuse_resolved}


def _header(interactions: Interactions, event: Event) -> Problem | None:
    interactions.pending.clear()
    interactions.by_run.clear()
    interactions.done.seal()
    return None


def _requested(interactions: Interactions, event: Event) -> Problem | None:
    data = event.data
    interaction_id = data["interaction_id"]
    if interaction_id not in interactions.pending and not interactions.done.own(interaction_id):
        interactions.pending[interaction_id] = Interaction(
            interaction_id, event.seq, data["turn_id"], data["run_id"], data["kind"], data["request"]
        )
        interactions.by_run.setdefault(data["run_id"], {})[interaction_id] = None
    return None


def _resolved(interactions: Interactions, event: Event) -> Problem | None:
    item = interactions.pending.pop(event.data["interaction_id"], None)
    if item is not None:
        of_run = interactions.by_run[item.run_id]
        del of_run[item.interaction_id]
        if not of_run:
            del interactions.by_run[item.run_id]
        outcome = event.data["outcome"]
        status = "closed" if outcome.get("kind") == "closure" else "answered"
        interactions.done.add(
            [item.interaction_id, item.seq, item.kind, status, outcome, event.seq, item.turn_id, item.run_id]
        )
        if item.kind == "sandbox_boundary" and (said := _boundary(outcome)) != "passed":
            index = interactions.denials if said == "denied" else interactions.unclear
            index.setdefault(item.run_id, []).append(item.interaction_id)
    return None


def _boundary(outcome: JsonObject) -> Literal["denied", "passed", "unclear"]:
    """What came of a sandbox boundary: a cleanup passes it, for nobody has refused anything."""
    match outcome.get("kind"), outcome.get("decision"), outcome.get("reason"):
        case "sandbox_boundary_decision", "deny", _:
            return "denied"
        case "sandbox_boundary_decision", "allow", _:
            return "passed"
        case "closure", _, str(reason) if reason in CLOSURES:
            return "passed"
    return "unclear"


HANDLERS: Final[Handlers] = {
    "session/header": _header,
    "interaction/requested": _requested,
    "interaction/resolved": _resolved,
}


def row(interactions: Interactions, interaction_id: str) -> dict[str, Any] | None:
    """One of the session's own, waiting or not, whatever the number of those that are over; None: there is none.

    ``{interaction_id, kind, status, turn_id, run_id, request, revision}`` while it is ``pending``; then, ``answered``
    or ``closed``, with its ``outcome`` in place of the request. ``revision`` is the number of the event that brought it
    there.
    """
    item = interactions.pending.get(interaction_id)
    if item is not None:
        return pending_row(item)
    if not interactions.done.own(interaction_id):
        return None
    found = interactions.done.get(interaction_id)
    assert found is not None, "it is one of the session's own"
    _, _, kind, status, outcome, seq, turn_id, run_id = found
    told = {"interaction_id": interaction_id, "kind": kind, "status": status, "turn_id": turn_id, "run_id": run_id}
    return {**told, "outcome": outcome, "revision": seq}


def pending_row(item: Interaction) -> dict[str, Any]:
    """See ``row``."""
    return {
        "interaction_id": item.interaction_id,
        "kind": item.kind,
        "status": "pending",
        "turn_id": item.turn_id,
        "run_id": item.run_id,
        "request": item.request,
        "revision": item.seq,
    }


def rows(interactions: Interactions) -> list[dict[str, Any]]:
    """``[{interaction_id, kind, status, outcome?}]`` in the order in which they were requested."""
    done = [
        (seq, {"interaction_id": interaction_id, "kind": kind, "status": status, "outcome": outcome})
        for interaction_id, seq, kind, status, outcome, *_ in interactions.done.since()
    ]
    waiting = [
        (item.seq, {"interaction_id": item.interaction_id, "kind": item.kind, "status": "pending"})
        for item in interactions.pending.values()
    ]
    return [row for _, row in sorted(done + waiting, key=lambda pair: pair[0])]
