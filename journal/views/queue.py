"""Messages that were accepted and not taken yet. No I/O."""

from typing import Any, Final

import attrs

from ..events import Event, JsonObject
from .problem import Handlers, Problem, Problems, Rules, sequence, text_of


@attrs.define(slots=True)
class Queued:
    """An accepted message. ``data`` is the data of its message/accepted."""

    message_id: str
    seq: int
    data: JsonObject


@attrs.define(slots=True)
class Queue:
    """``waiting`` by message_id, in the order of acceptance: neither taken nor retracted."""

    waiting: dict[str, Queued] = attrs.field(factory=dict, metadata={"of": Queued})
