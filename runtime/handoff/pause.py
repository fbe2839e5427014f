"""Whom a run is handed over to: the ids that its pause reserves, and the event that seals the run. No I/O."""

import attrs

from ...journal.events import PAUSE_PROTOCOL, Draft, JsonObject
from ...journal.shapes import OF_PAUSE, unfit_for_pause
from ..errors import HandoffRefused
from ..ids import unsuitable


@attrs.frozen(kw_only=True)
class HandoffPause:
    """The handoff that is asked for. Each of its texts has 1 to 256 characters, none of them a control character.

    ``host_epoch`` says who asks, as it likes. ``root_run_id``: the run that opened the turn, which may have any id. The
    successor will be run ``successor_run_id`` of invocation ``successor_invocation_id``, by claim ``claim_id``. Raises
    HandoffRefused (``pause_invalid``).
    """

    handoff_id: str
    host_epoch: str
    root_run_id: str
    successor_run_id: str
    successor_invocation_id: str
    claim_id: str

    def __attrs_post_init__(self) -> None:
        for key, value in attrs.asdict(self).items():
            if (fault := _fault(key, value)) is not None:
                raise HandoffRefused(f"the {key} of a handoff {fault}; give it another", code="pause_invalid")

    def draft(self, *, run_id: str, turn_id: str, remaining_steps: int | None) -> Draft:
        """The handoff/pause that seals the run; ``remaining_steps`` are those that its successor may still make."""
        data: JsonObject = {
            "protocol": PAUSE_PROTOCOL,
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


def _fault(key: str, value: object) -> str | None:
    if not isinstance(value, str):
        return f"must be a text, not a {type(value).__name__}"
    if key in OF_PAUSE and (unfit := unfit_for_pause(value)) is not None:
        return unfit
    return None if (wrong := unsuitable(value)) is None else f"can be no id ({wrong})"
