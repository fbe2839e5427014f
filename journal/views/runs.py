"""Runs: what each one's header says and how it stands (format §5). No I/O."""

from typing import Any, Final

import attrs

from ..events import Event, JsonObject
from .closed import Closed
from .problem import Handlers, Problem, Problems, Rules, mapping, text_of


@attrs.define(slots=True)
class Run:
    """A run that is not settled.

    ``header`` is the run header of turn/start or run/created (of a claim's target: the claim's once it started);
    None where its opening was lost. ``created_seq``: its run/created. ``opened_seq``: the turn/start or
    continuation/start that opened it. ``terminal_seq``, ``terminal_sum``, ``reason``: the turn/end that names it.
    ``pause_seq``: its handoff/pause. ``composition`` is the SHA-256 of its composition's JSON with sorted keys.
    """

    run_id: str
    turn_id: str
    header: JsonObject | None = None
    created_seq: int | None = None
    opened_seq: int | None = None
    claim_id: str | None = None
    terminal_seq: int | None = None
    terminal_sum: str | None = None
    reason: JsonObject | None = None
    pause_seq: int | None = None
    composition: str | None = None
    composition_seq: int | None = None
    denied: bool = False

    @property
    def terminal(self) -> bool:
        """Does it have its terminal fact: a turn/end or a handoff/pause?"""
        return self.terminal_seq is not None or self.pause_seq is not None


@attrs.define(slots=True)
class Runs:
    """``live`` by run_id in the order in which they appeared: every run that is not settled. ``closed``: the others."""

    live: dict[str, Run] = attrs.field(factory=dict, metadata={"of": Run})
    closed: Closed = attrs.field(factory=Closed)

    def unsettled(self) -> list[Run]:
        """Runs with a turn/end and without the run/settled that they need, oldest first."""
        return [run for run in self.live.values() if run.terminal_seq is not None]
