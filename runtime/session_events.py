"""What a backend yields and a client is told: the kinds of session events as one table. No I/O."""

from typing import Any, Final, Literal

import attrs

from ..journal.events import JsonObject

#: What a person can be asked; the shapes of requests and outcomes: docs/format.md, "Values inside events".
InteractionKind = Literal["question", "permission", "sandbox_boundary"]


@attrs.frozen
class SessionEvent:
    """One thing that happened in a turn. ``ts`` is Unix milliseconds; ``KINDS`` says what ``data`` holds of each kind.

    Everything but the two deltas stands durably in the journal before a client is told.
    """

    kind: str
    id: str
    turn_id: str
    ts: int
    data: JsonObject


#: Kind → the keys that ``data`` must hold. A comment says what else counts in what a backend yields, each optional; any
#: other key is passed over. What a client is told of each kind: docs/embedding.md, "What a turn tells you".
KINDS: Final[dict[str, tuple[str, ...]]] = {
    "step_start": (),
    "request_header": ("reason", "header"),
    # ``index``, of the block in its message (0), and for thinking ``signature``.
    "text_delta": ("message_id", "text"),
    "thinking_delta": ("message_id", "text"),
    "text_complete": ("message_id", "text"),
    "thinking_complete": ("message_id", "text"),
    # A whole response at once, with the calls it asks for. Clients are told its parts. ``usage``, as token_usage.
    "assistant_message": ("message_id", "content", "stop_reason"),
    # ``cache_read_tokens``, ``cache_write_tokens``, ``reasoning_tokens``; ``message_id``: the counts of that message so
    # far. Without it they are those of one more response.
    "token_usage": ("input_tokens", "output_tokens"),
    # ``arguments``, the JSON text of an object (those that its message has, else ``{}``), ``recovery`` (``never``) and
    # ``operation_id`` (a new one).
    "tool_start": ("call_id", "name"),
    # ``operation_id``, where a call_id stands for several, and ``error``: a name and a code.
    "tool_result": ("call_id", "state", "content"),
    "step_end": (),
    # ``text``, for the note in the journal.
    "provider_retry": ("attempt", "delay", "failure_class"),
    # ``quotes``, ``attachments``.
    "steering_message": ("message_id", "content"),
    "question_request": ("interaction_id", "questions"),
    "permission_request": ("interaction_id", "call_id", "name", "arguments", "reason"),
    "sandbox_boundary_request": ("interaction_id", "expansion", "justification"),
    # ``request_id``.
    "plan_submitted": ("proposal_id", "revision", "title", "steps"),
    # What the end of the run says that it left behind. Nobody is told.
    "cleanup_failed": ("text",),
    # ``failure_class``, ``message``.
    "error": (),
    # ``source``, who stopped it.
    "abort": (),
    "complete": ("stop_reason",),
}

#: Behind these a backend may act on what it has said: they are durable before it is asked for the next event.
BARRIERS: Final = frozenset(
    {
        "step_start",
        "request_header",
        "tool_start",
        "tool_result",
        "provider_retry",
        "steering_message",
        "plan_submitted",
    }
)

#: Live text: a preview, told at once and never synced on its own account.
DELTAS: Final = frozenset({"text_delta", "thinking_delta"})

#: ``stop_reason`` of ``complete`` → the kind of the turn's end.
END_OF: Final = {
    "end_turn": "completed",
    "user_stop": "aborted",
    "step_limit": "step_limit",
    "max_tokens": "max_tokens",
    "error": "failed",
}

#: The other way round: how a turn's end is told to a client.
STOP_REASONS: Final = {kind: stop_reason for stop_reason, kind in END_OF.items()}


def missing_key(kind: str, data: dict[str, Any]) -> str | None:
    """The first key that an event of this kind lacks, if it does."""
    return next((key for key in KINDS[kind] if key not in data), None)
