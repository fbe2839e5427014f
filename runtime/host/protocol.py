"""The frames between a host and its clients, their limits and codes: what docs/protocol.md says, as tables. No I/O.

A frame is one JSON object on one line of UTF-8, ended by LF.
"""

from typing import Any, Final, Literal

import orjson

from ...journal.events import JsonObject
from ..errors import RuntimeFailure

#: Versions of the protocol that this program speaks. The handshake picks the newest that both sides do.
OLDEST: Final = 1
NEWEST: Final = 1

#: Bytes of a frame, its LF included.
MAX_FRAME: Final = 768 * 1024
#: Frames and bytes that wait in one direction of a connection before the other side is made to wait.
QUEUE_FRAMES: Final = 64
QUEUE_BYTES: Final = 2 * 1024 * 1024
#: Seconds for the hello of a connection.
HANDSHAKE: Final = 5.0
#: Requests of one connection that are not answered yet; ``host.status`` is answered beyond that.
MAX_IN_FLIGHT: Final = 64
#: Sessions that one connection watches.
MAX_SUBSCRIPTIONS: Final = 16
#: Bytes of UTF-8 in the text of a delta.
MAX_TEXT: Final = 64 * 1024
#: Bytes of one event's JSON in a frame; a longer one comes without its data, and ``session.event`` reads it in pieces.
MAX_EVENT: Final = 256 * 1024
#: Messages that wait in one session, and bytes of JSON that one of them, and all of them, may have.
MAX_QUEUED: Final = 64
MAX_CONTENT: Final = 256 * 1024
MAX_QUEUED_BYTES: Final = 384 * 1024

State = Literal["starting", "recovering", "ready", "draining"]

#: Error code → may the same request succeed later, as it is?
CODES: Final[dict[str, bool]] = {
    "host_not_ready": True,
    "host_draining": True,
    "too_many_requests": True,
    "not_found": False,
    "session_busy": True,
    "session_archived": False,
    "session_unavailable": True,
    "operation_conflict": False,
    "already_resolved": False,
    "invalid_request": False,
    "unknown_operation": False,
    "queue_full": True,
    "too_many_subscriptions": False,
    "continuation_parked": False,
    "internal_failure": False,
    # Of a handshake, or of a connection that is given up.
    "protocol_incompatible": False,
    "wrong_host": False,
    "bad_frame": False,
    "frame_too_large": False,
    "handshake_timeout": True,
    "slow_client": True,
}

#: Why a subscription ends before its client ends it.
CLOSED: Final = frozenset({"slow_consumer", "session_removed", "host_draining", "session_unavailable"})


class HostError(RuntimeFailure):
    """What a host refuses, as a client is told it. ``code`` is one of ``CODES``; the text says what to do."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class NotJson(HostError, TypeError):
    """What a program asks for holds a value that no JSON can; it has gone to no host. ``code`` is ``bad_frame``."""

    def __init__(self, message: str) -> None:
        super().__init__("bad_frame", message)


class FrameError(RuntimeFailure):
    """Bytes that are no frame. ``code`` is ``bad_frame`` or ``frame_too_large``."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def encode(frame: JsonObject) -> bytes:
    """A frame's line. Raises FrameError for one that is too large, or holds what no JSON can."""
    try:
        line = orjson.dumps(frame, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError as error:
        raise FrameError("bad_frame", str(error)) from None
    if len(line) > MAX_FRAME:
        raise FrameError("frame_too_large", f"a frame has at most {MAX_FRAME} bytes, and this one has {len(line)}")
    return line


def decode(line: bytes) -> JsonObject:
    """The frame of a line, with or without its LF. Raises FrameError."""
    try:
        frame: Any = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise FrameError("bad_frame", f"a line is no JSON: {error}") from None
    if not isinstance(frame, dict) or not isinstance(frame.get("kind"), str):
        raise FrameError("bad_frame", "a line is no frame: a frame is a JSON object with a text as its `kind`")
    return frame
