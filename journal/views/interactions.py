"""Questions, permissions and sandbox boundaries that runs wait for. No I/O."""

from typing import Any, Final

import attrs

from ..events import Event, JsonObject
from .closed import Closed
from .problem import Handlers, Problem, Rules, text_of

#: At most this many wait at once in a session.
MAX_PENDING: Final = 16


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
    """``pending`` by id, oldest first; ``done``: rows ``[interaction_id, seq, kind, status, outcome]``."""

    pending: dict[str, Interaction] = attrs.field(factory=dict, metadata={"of": Interaction})
    done: Closed = attrs.field(factory=Closed)

    def of_run(self, run_id: str) -> list[Interaction]:
        """Those that wait for an outcome in this run, oldest first."""
        return [item for item in self.pending.values() if item.run_id == run_id]
