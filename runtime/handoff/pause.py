"""Whom a run is handed over to: the ids that its pause reserves, and the event that seals the run. No I/O."""

from typing import Final

import attrs

from ...journal.events import Draft, JsonObject
from ..errors import HandoffRefused
from ..ids import unsuitable

PROTOCOL: Final = "runtime_handoff_pause_v1"
#: Characters of an id of a pause.
_ID: Final = 256


@attrs.frozen(kw_only=True)
class HandoffPause:
    """The handoff that is asked for. Every id is a text of 1 to 256 characters, none of them a control character.

    ``host_epoch`` says who asks, as it likes. ``root_run_id``: the run that opened the turn. The successor will be run
    ``successor_run_id`` of invocation ``successor_invocation_id``, by claim ``claim_id``. Raises HandoffRefused
    (``pause_invalid``).
    """

    handoff_id: str
    host_epoch: str
    root_run_id: str
    successor_run_id: str
    successor_invocation_id: str
    claim_id: str

    def __attrs_post_init__(self) -> None:
        for key, value in attrs.asdict(self).items():
            if (fault := _fault(value)) is not None:
                raise HandoffRefused(f"the {key} of a handoff {fault}; give it another", code="pause_invalid")

    def draft(self, *, run_id: str, turn_id: str, remaining_steps: int | None) -> Draft:
        """The handoff/pause that seals the run; ``remaining_steps`` are those that its successor may still make."""
        data: JsonObject = {
            "protocol": PROTOCOL,
            "handoff_id": self.handoff_id,
            "host_epoch": self.host_epoch,
            "run_id": run_id,
            "turn_id": turn_id,
            "root_run_id": self.root_run_id,
            "successor_run_id": self.successor_run_id,
            "successor_invocation_id": self.successor_invocation_id,
            "claim_id": self.claim_id,
            "remaining_steps": remaining_steps,
        }
        return Draft("handoff/pause", data)


def _fault(value: object) -> str | None:
    if not isinstance(value, str):
        return f"must be a text, not a {type(value).__name__}"
    if not 0 < len(value) <= _ID:
        return f"must have 1 to {_ID} characters, not {len(value)}"
    if any(ord(one) < 0x20 or ord(one) == 0x7F for one in value):
        return "holds a control character"
    return None if unsuitable(value) is None else f"can be no id ({unsuitable(value)})"
