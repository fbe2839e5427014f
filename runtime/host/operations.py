"""Every operation of a host: what goes in, who may ask when, and what it does to the root. No I/O.

``docs/protocol.md`` says what comes out. A command is idempotent by the caller's id in it: the same again is answered
the same, at any time and through any connection; another content under that id is ``operation_conflict``.
"""

from typing import Any, Final, Literal

import attrs

from ...journal.events import JsonObject

Content = str | list[JsonObject]
#: Of an id that a client makes up here, where elsewhere it may name what a program has made: it has to be short.
MADE_UP: Final = "made_up"
#: ``query``: changes nothing. ``command``: changes something, and is refused while the host drains. ``control``: of the
#: connection or of what runs; it is taken while the host drains.
Mode = Literal["query", "command", "control"]


@attrs.frozen(kw_only=True)
class HostStatus:
    pass


@attrs.frozen(kw_only=True)
class HostShutdown:
    #: ``handoff``: what runs is paused at its next step boundary, for the next host to finish.
    mode: Literal["stop", "handoff"] = "stop"
    #: Seconds for runs to come to a boundary.
    timeout: float | None = None


@attrs.frozen(kw_only=True)
class SessionCreate:
    session_id: str
    name: str | None = None
    cwd: str | None = None
    backend: str | None = None
    model: str | None = None
    permission_mode: str | None = None
    connection: str | None = None
    labels: list[str] | None = None


@attrs.frozen(kw_only=True)
class SessionList:
    #: The last id of the page before.
    after: str | None = None
    limit: int = 200


@attrs.frozen(kw_only=True)
class SessionUpdate:
    session_id: str
    request_id: str
    patch: JsonObject


@attrs.frozen(kw_only=True)
class SessionArchive:
    session_id: str
    request_id: str


@attrs.frozen(kw_only=True)
class SessionUnarchive:
    session_id: str
    request_id: str


@attrs.frozen(kw_only=True)
class SessionFork:
    session_id: str
    new_session_id: str
    turn_id: str | None = None
    name: str | None = None


@attrs.frozen(kw_only=True)
class SessionDelete:
    session_id: str


@attrs.frozen(kw_only=True)
class SessionRelease:
    """The host closes the session, if nothing needs it, so that another process can open it for writing."""

    session_id: str


@attrs.frozen(kw_only=True)
class SessionHistory:
    session_id: str
    #: Events below this number; by itself the newest.
    before: int | None = None
    limit: int = 50


@attrs.frozen(kw_only=True)
class SessionEvent:
    """One event's data as JSON text, a piece at a time."""

    session_id: str
    seq: int
    offset: int = 0


@attrs.frozen(kw_only=True)
class TurnStart:
    session_id: str
    turn_id: str = attrs.field(metadata={MADE_UP: True})
    content: Content
    message_id: str | None = None
    quotes: list[JsonObject] | None = None
    attachments: list[JsonObject] | None = None
    max_steps: int | None = None


@attrs.frozen(kw_only=True)
class TurnQuery:
    session_id: str
    turn_id: str


@attrs.frozen(kw_only=True)
class TurnStop:
    session_id: str
    turn_id: str
    run_id: str
    stop_id: str
    mode: Literal["immediate", "after_step"] = "immediate"
    retract: bool = False


@attrs.frozen(kw_only=True)
class TurnMessageSubmit:
    session_id: str
    message_id: str
    content: Content
    placement: Literal["current_turn", "next_turn"] = "current_turn"
    quotes: list[JsonObject] | None = None
    attachments: list[JsonObject] | None = None


@attrs.frozen(kw_only=True)
class TurnInterrupt:
    session_id: str
    turn_id: str
    run_id: str
    interrupt_id: str


@attrs.frozen(kw_only=True)
class QueueRetract:
    session_id: str
    retract_id: str
    #: By themselves all that wait.
    message_ids: list[str] | None = None


@attrs.frozen(kw_only=True)
class InteractionQuery:
    session_id: str
    interaction_id: str


@attrs.frozen(kw_only=True)
class InteractionAnswer:
    session_id: str
    interaction_id: str
    answer: JsonObject


@attrs.frozen(kw_only=True)
class SubscriptionOpen:
    session_id: str
    #: The number of the newest event that the client has: what came since is sent first.
    since: int | None = None


@attrs.frozen(kw_only=True)
class SubscriptionClose:
    subscription_id: str


@attrs.frozen(kw_only=True)
class TurnResumeQuery:
    session_id: str
    source_run_id: str | None = None
    rerun: list[str] | None = None


@attrs.frozen(kw_only=True)
class TurnResumeStart:
    session_id: str
    turn_id: str = attrs.field(metadata={MADE_UP: True})
    source_run_id: str
    #: As the query told it.
    high_water: int
    rerun: list[str] | None = None


@attrs.frozen(kw_only=True)
class PlanQuery:
    session_id: str
    #: So many plans the pages before have told.
    offset: int = 0


@attrs.frozen(kw_only=True)
class PlanPropose:
    session_id: str
    request_id: str
    title: str
    steps: list[JsonObject]
    proposal_id: str | None = None
    turn_id: str | None = None


@attrs.frozen(kw_only=True)
class PlanApprove:
    session_id: str
    request_id: str
    proposal_id: str
    expected_revision: int
    execution_id: str | None = None


@attrs.frozen(kw_only=True)
class PlanCancel:
    session_id: str
    execution_id: str
    reason: str | None = None


@attrs.frozen(kw_only=True)
class PlanComplete:
    session_id: str
    execution_id: str
    reason: str | None = None


@attrs.frozen
class Operation:
    """``always``: taken as soon as the host listens, before it is ready."""

    input: type[Any]
    mode: Mode
    always: bool = False


OPERATIONS: Final[dict[str, Operation]] = {
    "host.status": Operation(HostStatus, "query", always=True),
    "host.shutdown": Operation(HostShutdown, "control", always=True),
    "session.create": Operation(SessionCreate, "command"),
    "session.list": Operation(SessionList, "query"),
    "session.update": Operation(SessionUpdate, "command"),
    "session.archive": Operation(SessionArchive, "command"),
    "session.unarchive": Operation(SessionUnarchive, "command"),
    "session.fork": Operation(SessionFork, "command"),
    "session.delete": Operation(SessionDelete, "command"),
    "session.release": Operation(SessionRelease, "control"),
    "session.history": Operation(SessionHistory, "query"),
    "session.event": Operation(SessionEvent, "query"),
    "turn.start": Operation(TurnStart, "command"),
    "turn.query": Operation(TurnQuery, "query"),
    "turn.stop": Operation(TurnStop, "control"),
    "turn.message.submit": Operation(TurnMessageSubmit, "command"),
    "turn.interrupt": Operation(TurnInterrupt, "control"),
    "queue.retract": Operation(QueueRetract, "command"),
    "interaction.query": Operation(InteractionQuery, "query"),
    "interaction.answer": Operation(InteractionAnswer, "command"),
    "subscription.open": Operation(SubscriptionOpen, "control"),
    "subscription.close": Operation(SubscriptionClose, "control"),
    "turn.resume.query": Operation(TurnResumeQuery, "query"),
    "turn.resume.start": Operation(TurnResumeStart, "command"),
    "plan.query": Operation(PlanQuery, "query"),
    "plan.propose": Operation(PlanPropose, "command"),
    "plan.approve": Operation(PlanApprove, "command"),
    "plan.cancel": Operation(PlanCancel, "command"),
    "plan.complete": Operation(PlanComplete, "command"),
}
