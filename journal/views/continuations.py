"""Claims on boundaries, handoffs, and the executions that they chain together. No I/O."""

from typing import Any, Final, Literal

import attrs

from ..events import Event, JsonObject
from .problem import Handlers, Problem, Problems, Rules, mapping, text_of

ClaimState = Literal["reserved", "repair_required", "started_indeterminate", "settled"]
HandoffState = Literal["pending", "claimed", "continued", "abandoned"]


@attrs.define(slots=True)
class Claim:
    """A continuation/claim. ``data`` is its data; ``start_seq`` and ``start_kind`` are those of its continuation/start.

    ``root_run_id`` is the first run of its lineage and ``depth`` how many claims lead from there to the target.
    """

    claim_id: str
    seq: int
    data: JsonObject
    root_run_id: str
    depth: int
    start_seq: int | None = None
    start_kind: str | None = None

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
    """A valid handoff/pause. ``data`` is its data; ``over``: its turn ended or its run went on without the successor."""

    handoff_id: str
    seq: int
    data: JsonObject
    over: bool = False


@attrs.define(slots=True)
class Continuations:
    """``claims`` by id, oldest first, and by what they reserve: the boundary's digest, and the target's run_id."""

    claims: dict[str, Claim] = attrs.field(factory=dict, metadata={"of": Claim})
    by_boundary: dict[str, str] = attrs.field(factory=dict)
    by_target: dict[str, str] = attrs.field(factory=dict)
    handoffs: dict[str, Handoff] = attrs.field(factory=dict, metadata={"of": Handoff})
