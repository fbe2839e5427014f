"""Sessions whose runs say in which workspace they worked, and plans to continue them."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import attrs

from maka.journal.events import EVENT_TYPES, Draft
from maka.journal.shapes import check
from maka.runtime.continuation import drafts
from maka.runtime.continuation.plan import Continuation, ContinuationPlan, Facts, plan
from maka.runtime.continuation.safety import SafetyObservation
from maka.runtime.conversation import Conversation

from .lineages import Story

WORKSPACE = "workspace-1"
SEEN = SafetyObservation(
    workspace_identity=WORKSPACE, background_operations_settled=True, available_tool_names=("tool",), cwd="/tmp"
)


def seen(**other: Any) -> SafetyObservation:
    return attrs.evolve(SEEN, **other)


def ids(first: int = 1) -> Iterator[str]:
    return (f"id-{number}" for number in count(first))


class Session(Story):
    """A story with the facts that a plan reads. ``header``: what the headers of runs hold beside the usual."""

    def __init__(self, **header: Any) -> None:
        self.conversation = Conversation()
        self.header = {"workspace_identity": WORKSPACE, **header}
        #: The ids of the turn that was resumed last.
        self.named: dict[int, dict[str, Any]] = {}
        super().__init__()

    def run(self, run_id: str, turn_id: str, **more: Any) -> dict[str, Any]:
        header = super().run(run_id, turn_id, **{**self.header, **more})
        return {key: value for key, value in header.items() if value is not None}

    def add(self, type_: str, data: dict[str, Any], **more: Any) -> int:
        seq = super().add(type_, data, **more)
        self.conversation.observe(self.events[-1])
        return seq

    @property
    def facts(self) -> Facts:
        return Facts(self.session_id, self.state, self.conversation)

    def plan(self, run_id: str | None = None, **asked: Any) -> ContinuationPlan:
        asked = {"observation": SEEN, "new_id": ids(4 * len(self.state.continuations.claims) + 1).__next__, **asked}
        return plan(self.facts, source_run_id=run_id, **asked)

    def continuation(self, run_id: str | None = None, **asked: Any) -> Continuation:
        planned = self.plan(run_id, **asked)
        assert planned.continuation is not None, planned
        return planned.continuation

    def append(self, *given: Draft) -> None:
        """As a writer does: what is not legal is refused."""
        for draft in given:
            check(EVENT_TYPES[draft.type], draft.data)
            self.state.check(draft)
            self.add(draft.type, draft.data)

    def resume(self, run_id: str | None = None, upto: str = "start", **asked: Any) -> Continuation:
        """Plans, claims, creates and starts, ``upto`` one of these; the rest of the story is that run's."""
        continuation = self.continuation(run_id, **asked)
        claim = drafts.claim(continuation, self.facts, claimed_at=self.ts)
        steps = {"claim": claim, "created": drafts.created(claim), "start": drafts.start(claim)}
        for name, draft in steps.items():
            self.append(draft)
            if name == upto:
                break
        self.turn, self.marks = claim.data["turn"], ""
        self.named = {self.turn: {"turn_id": continuation.turn_id, "run_id": continuation.run_id}}
        return continuation

    @property
    def ids(self) -> dict[str, Any]:
        return self.named.get(self.turn) or super().ids
