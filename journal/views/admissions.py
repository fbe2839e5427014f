"""Turns that were promised to a client before they began, and the chain that they form. No I/O."""

from typing import Any, Final

import attrs

from ..events import Event, JsonObject
from .problem import Handlers, Problem, Problems, Rules, mapping, text_of


@attrs.define(slots=True)
class Admission:
    """An admission that is not complete: its turn has not started, or lacks the admission's message.

    ``seq`` and ``ts`` are those of its turn/admitted, ``data`` is its data. ``run``: the header of its run/created, if
    that came. ``started_seq``: its turn/start. ``stepped``: a step of the turn has begun; ``ended``: it has ended.
    ``stop``: the source of a turn/stop_requested for it.
    """

    turn_id: str
    run_id: str
    seq: int
    ts: int
    data: JsonObject
    run: JsonObject | None = None
    started_seq: int | None = None
    stepped: bool = False
    ended: bool = False
    stop: str | None = None

    @property
    def kind(self) -> str:
        """``root``, one of the linked child kinds, or whatever a later version wrote."""
        return text_of(mapping(self.data["execution"]).get("kind")) or "root"

    @property
    def message_id(self) -> str | None:
        return text_of(self.data.get("message_id"))


@attrs.define(slots=True)
class Admissions:
    """``open`` by turn_id, oldest first. ``tip`` is the newest admitted root turn."""

    open: dict[str, Admission] = attrs.field(factory=dict, metadata={"of": Admission})
    tip: str | None = None
