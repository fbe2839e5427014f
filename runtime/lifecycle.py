"""One place to see what the runtime does: structured events for programs, the same as log lines for people. No I/O.

Neither holds any content of a conversation; an error's text is logged at ERROR only.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

import attrs

from .errors import describe

log = logging.getLogger("maka.runtime")

#: Kind → the level of its log line.
KINDS: Final = {
    "session_opened": logging.DEBUG,
    "session_closed": logging.DEBUG,
    "session_degraded": logging.ERROR,
    "session_quarantined": logging.ERROR,
    "session_recovered": logging.INFO,
    "calls_reconciled": logging.INFO,
    "backend_built": logging.INFO,
    "backend_disposed": logging.INFO,
    "backend_failed": logging.ERROR,
    "run_started": logging.INFO,
    "run_ended": logging.INFO,
    "run_handed_off": logging.INFO,
    "handoff_abandoned": logging.INFO,
    "stop_requested": logging.INFO,
    "stop_settled": logging.INFO,
    "interaction_requested": logging.INFO,
    "interaction_resolved": logging.INFO,
}


@attrs.frozen
class LifecycleEvent:
    """``kind`` is one of ``KINDS``. ``data`` holds ids, names and reasons, never content; where something can have
    failed it has the key ``error`` too, an exception or None.
    """

    kind: str
    session_id: str
    data: dict[str, Any]


Listener = Callable[[LifecycleEvent], None]


class Lifecycle:
    """Tells every listener, in order, at once. What a listener raises is logged and harms nobody."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        #: Those whose failure was logged with its traceback; the next one gets a line.
        self._failed: list[Listener] = []

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Returns what ends the subscription."""
        self._listeners.append(listener)

        def unsubscribe() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)
            if listener in self._failed and listener not in self._listeners:
                self._failed.remove(listener)

        return unsubscribe

    def tell(self, kind: str, session_id: str, *, defect: bool = False, **data: Any) -> None:
        """``defect``: the error is one of somebody's code, who needs its type and its traceback in the log."""
        level = KINDS[kind]
        if log.isEnabledFor(level):
            said = " ".join(
                f"{key}={describe(value, typed=defect) if isinstance(value, BaseException) else value}"
                for key, value in data.items()
                if key != "error" or level >= logging.ERROR
            )
            log.log(level, "%s session=%s %s", kind, session_id, said, exc_info=data.get("error") if defect else None)
        event = LifecycleEvent(kind, session_id, data)
        for listener in list(self._listeners):
            try:
                listener(event)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as failure:
                self._listener_failed(listener, kind, failure)

    def _listener_failed(self, listener: Listener, kind: str, failure: BaseException) -> None:
        if listener in self._failed:
            log.error("a lifecycle listener failed on %s: %s", kind, describe(failure, typed=True))
        else:
            self._failed.append(listener)
            log.exception("a lifecycle listener failed on %s; of its next failures there is a line each", kind)
