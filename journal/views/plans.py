"""Plans that were proposed, approved and executed. No I/O."""

from typing import Any, Final

import attrs

from ..events import Event, JsonObject
from .problem import Handlers, Problem, Problems, Rules


@attrs.define(slots=True)
class Plan:
    """A proposal in its newest revision. ``execution_id`` and ``execution`` (active, completed, …) once approved."""

    proposal_id: str
    revision: int
    title: str
    seq: int
    execution_id: str | None = None
    execution: str | None = None


@attrs.define(slots=True)
class Plans:
    """``plans`` in the order in which they were proposed; ``active``: the execution that runs, one for a session."""

    plans: list[Plan] = attrs.field(factory=list, metadata={"of": Plan})
    active: str | None = None
