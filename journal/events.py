"""The event types as one table: class, required keys and their JSON kinds, barrier. No I/O.

A payload class is the single statement of its type: the order of its fields is the order of the keys on disk, a field
without a default is a required key, and its annotation gives the JSON kinds that the key may have. ``EVENT_TYPES`` is
derived from the classes, so there is nothing to keep in step.

Nested values that later versions may extend (content blocks, requests, compositions) stay plain JSON.
"""

import functools
import itertools
import types
import typing
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, ClassVar, Final, Literal, TypeVar

import attrs

Json = Any
JsonObject = dict[str, Any]
Blocks = list[JsonObject]

Recovery = Literal["read_only", "idempotent", "reconcile", "never"]
ResultState = Literal["ok", "error", "cancelled", "unknown", "not_started"]
EndKind = Literal["completed", "max_tokens", "step_limit", "blocked", "aborted", "failed", "interrupted"]
Purpose = Literal["resume", "handoff"]

#: Types of extensions begin with this; they are kept and skipped by whoever does not know them.
EXTENSION_PREFIX: Final = "x-"


@functools.lru_cache(maxsize=256)
def structure_of(type_: str) -> Callable[[JsonObject], Any]:
    """What types the data of events of this type; cattrs is imported when the first is asked for."""
    from .typed import structure_of

    return structure_of(type_)


@attrs.define(slots=True, eq=False, repr=True)
class Event:
    """One line of a journal, as read.

    ``data`` is the JSON object exactly as it stands on disk; ``payload`` is the same typed, built when asked for.
    ``offset`` and ``length`` are bytes of the file, without the LF (and without a leading BOM or a CR before the LF).
    ``verified`` is False where the sum could not be proven (damage before it, or bytes that changed).
    """

    seq: int
    ts: int
    type: str
    data: JsonObject
    sum: str
    ignorable: bool = False
    more: int = 0
    offset: int = -1
    length: int = 0
    verified: bool = True

    @property
    def payload(self) -> Any:
        """The typed form, a new instance of the type's class; of an unknown type, ``data`` itself.

        Raises InvalidEvent if an optional or nested value does not have the shape of the format.
        """
        return structure_of(self.type)(self.data)

    def to_json(self) -> JsonObject:
        """The line as a dict, keys in the order of the format."""
        out: JsonObject = {"seq": self.seq, "ts": self.ts, "type": self.type, "data": self.data}
        if self.ignorable:
            out["ignorable"] = True
        if self.more:
            out["more"] = self.more
        out["sum"] = self.sum
        return out


@attrs.define(slots=True)
class Draft:
    """An event that is not yet in a journal: what ``append`` takes and what a repair plans."""

    type: str
    data: JsonObject
    ignorable: bool = False


P = TypeVar("P", bound=type)


@attrs.frozen
class EventType:
    """A row of the table. ``required`` and ``optional``: key → the Python types its JSON kinds are read as.

    ``values`` gives the values of the required keys (KeyError where one is missing), ``shapes`` are the lists of types
    that these may have.
    """

    name: str
    cls: type
    barrier: bool
    ignorable: bool
    required: Mapping[str, frozenset[type]]
    optional: Mapping[str, frozenset[type]]
    values: Callable[[JsonObject], tuple[Any, ...]]
    shapes: tuple[list[type], ...]

    def fits(self, data: JsonObject) -> bool:
        """Does ``data`` have the required keys with the right JSON kinds? (What makes a line valid at load.)"""
        try:
            return [*map(type, self.values(data))] in self.shapes
        except KeyError:
            return False


EVENT_TYPES: Final[dict[str, EventType]] = {}


def json_kinds(annotation: Any) -> frozenset[type]:
    """The Python types that an annotation's JSON values are read as; empty for anything at all."""
    origin = typing.get_origin(annotation)
    if annotation is Any:
        return frozenset()
    if origin is Literal:
        return frozenset(type(value) for value in typing.get_args(annotation))
    if origin is typing.Union or origin is types.UnionType:
        return frozenset().union(*(json_kinds(part) for part in typing.get_args(annotation)))
    if origin in (list, dict):
        return frozenset({origin})
    if attrs.has(annotation):
        return frozenset({dict})
    return frozenset({annotation})


@typing.dataclass_transform(kw_only_default=True, field_specifiers=(attrs.field,))
def event(name: str, *, barrier: bool = False, ignorable: bool = False) -> Callable[[P], P]:
    """Make a payload class of ``cls`` and enter it into the table."""

    def register(cls: P) -> P:
        cls = attrs.define(cls, slots=True, kw_only=True)
        cls.TYPE = name  # type: ignore[attr-defined]
        required: dict[str, frozenset[type]] = {}
        optional: dict[str, frozenset[type]] = {}
        for field in attrs.fields(cls):
            (required if field.default is attrs.NOTHING else optional)[field.name] = json_kinds(field.type)
        # A single key is fetched twice: one value alone would not come as a tuple.
        keys = [*required, *required] if len(required) == 1 else [*required]
        shapes = tuple(list(kinds) for kinds in itertools.product(*(required[key] for key in keys)))
        values = itemgetter(*keys)
        EVENT_TYPES[name] = EventType(name, cls, barrier, ignorable, required, optional, values, shapes)
        return cls

    return register


# ---------------------------------------------------------------- shapes that stand inside several events


@attrs.define(kw_only=True)
class RunHeader:
    """A run, immutable from its creation (docs/format.md, "Values inside events"). ``created_at`` is Unix ms."""

    run_id: str
    invocation_id: str
    turn_id: str
    backend: str
    model: str
    connection: str | None = None
    cwd: str
    workspace_identity: Any = None
    permission_mode: str
    created_at: int
    root: JsonObject
    max_steps: int | None = None
    parent_run_id: str | None = None
    resumed_from_run_id: str | None = None
    retried_from_run_id: str | None = None
    agent_id: str | None = None
    agent_name: str | None = None
    continuation: JsonObject | None = None


@attrs.define(kw_only=True)
class EndReason:
    """Why a turn ended."""

    kind: EndKind
    source: str | None = None
    failure_class: str | None = None
    message: str | None = None


@attrs.define(kw_only=True)
class Usage:
    """Token counts of one model response."""

    input_tokens: int
    output_tokens: int
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None


# ---------------------------------------------------------------- session


@event("session/header", barrier=True)
class SessionHeader:
    """Line 0. ``parent`` is a fork point, ``child_of`` and ``imported_from`` are information."""

    TYPE: ClassVar[str]
    format: int
    session_id: str
    created_by: JsonObject
    cwd: str
    backend: str
    model: str
    permission_mode: str
    tool_boundary: str | None = None
    connection: str | None = None
    name: str | None = None
    labels: list[str] | None = None
    parent: JsonObject | None = None
    child_of: JsonObject | None = None
    imported_from: JsonObject | None = None


@event("session/updated", barrier=True)
class SessionUpdated:
    """``patch`` holds whole new values; unknown keys are kept."""

    TYPE: ClassVar[str]
    patch: JsonObject
    request_id: str | None = None


@event("session/note", barrier=True)
class SessionNote:
    """For people, never shown to a model. ``kind``: ``abort``, ``quarantine``, ``retry`` …"""

    TYPE: ClassVar[str]
    kind: str
    run_id: str | None = None
    turn_id: str | None = None
    source: str | None = None
    text: str | None = None


@event("context/compacted", ignorable=True)
class ContextCompacted:
    """From here on a model is given ``content``, a summary, in place of what stands before; what stands from event
    ``kept_from`` on is given behind it.
    """

    TYPE: ClassVar[str]
    content: Blocks
    kept_from: int | None = None


# ---------------------------------------------------------------- turns and steps


@event("turn/start")
class TurnStart:
    """Opens a turn and its first run. ``turn`` counts from 1 in a session."""

    TYPE: ClassVar[str]
    turn_id: str
    run_id: str
    invocation_id: str
    turn: int
    run: RunHeader


@event("user/message")
class UserMessage:
    """What the user said; ``source.kind`` is ``user``, ``steering`` or another, which is kept."""

    TYPE: ClassVar[str]
    message_id: str
    turn_id: str
    run_id: str
    content: Blocks
    source: JsonObject
    quotes: list[JsonObject] | None = None
    attachments: list[JsonObject] | None = None


@event("step/start")
class StepStart:
    """Opens a step; ``step`` counts from 1 in a turn, across its runs."""

    TYPE: ClassVar[str]
    turn_id: str
    run_id: str
    step: int


@event("step/end")
class StepEnd:
    """Closes a step; refused while a call of it has no result."""

    TYPE: ClassVar[str]
    turn_id: str
    run_id: str
    step: int


@event("request/header")
class RequestHeader:
    """A full snapshot of what the provider is asked with: ``{provider, model, system?, tools?, params?}``."""

    TYPE: ClassVar[str]
    turn_id: str
    run_id: str
    step: int
    reason: Literal["initial", "resume", "change"]
    header: JsonObject


@event("assistant/delta", ignorable=True)
class AssistantDelta:
    """A piece of live text; a preview until the message that it adds up to is durable."""

    TYPE: ClassVar[str]
    run_id: str
    step: int
    message_id: str
    index: int
    kind: Literal["text", "thinking"]
    text: str


@event("assistant/message")
class AssistantMessage:
    """What the model said in a step. Its ``tool_call`` blocks are requests, not dispatches."""

    TYPE: ClassVar[str]
    turn_id: str
    run_id: str
    step: int
    message_id: str
    content: Blocks
    stop_reason: str
    usage: Usage | None = None
    interrupted: bool | None = None


@event("tool/call")
class ToolCall:
    """A dispatch: every check has passed, the body runs next. It means that the side effect may have happened."""

    TYPE: ClassVar[str]
    turn_id: str
    run_id: str
    step: int
    call_id: str
    operation_id: str
    name: str
    arguments: str | None = None
    arguments_digest: str
    recovery: Recovery


@event("tool/result")
class ToolResult:
    """The outcome of a call, journalled as tools finish; projections sort results into the order of the calls."""

    TYPE: ClassVar[str]
    turn_id: str
    run_id: str
    step: int
    call_id: str
    operation_id: str | None = None
    state: ResultState
    content: Blocks
    is_error: bool
    error: JsonObject | None = None
    call_seq: int | None = None
    synthesized: bool | None = None


@event("tool/outcome", barrier=True)
class ToolOutcome:
    """What an ``unknown`` call turned out to be; the first for a ``call_seq`` wins."""

    TYPE: ClassVar[str]
    turn_id: str
    run_id: str
    call_id: str
    call_seq: int
    operation_id: str
    state: Literal["ok", "error"]
    content: Blocks
    is_error: bool
    source: Literal["reconciled", "late", "rerun", "user"]


@event("turn/stop_requested", barrier=True)
class TurnStopRequested:
    """Somebody asked the turn to stop; a later one may escalate to ``immediate``."""

    TYPE: ClassVar[str]
    stop_id: str
    turn_id: str
    run_id: str | None = None
    source: str
    mode: Literal["immediate", "after_step"]
    retract: list[str] | None = None
    client: Any = None


@event("turn/end")
class TurnEnd:
    """The terminal fact, exactly one for each turn; ``run_id`` is the run that ended it."""

    TYPE: ClassVar[str]
    turn_id: str
    run_id: str
    reason: EndReason
    synthesized: bool | None = None


# ---------------------------------------------------------------- runs, continuations, handoffs


@event("run/created", barrier=True)
class RunCreated:
    """A run that ``turn/start`` does not open."""

    TYPE: ClassVar[str]
    run: RunHeader


@event("run/composition", barrier=True)
class RunComposition:
    """What the run's agent is made of; once for each run."""

    TYPE: ClassVar[str]
    run_id: str
    composition: JsonObject


@event("run/settled")
class RunSettled:
    """Cleanup was tried, after the run's terminal fact."""

    TYPE: ClassVar[str]
    run_id: str
    cleanup: JsonObject | None = None


@event("continuation/claim", barrier=True)
class ContinuationClaim:
    """Reserves a boundary for one target run. ``claimed_at`` is Unix milliseconds."""

    TYPE: ClassVar[str]
    claim_id: str
    purpose: Purpose
    turn: int
    previous_root_turn_id: str | None = None
    boundary: JsonObject
    boundary_digest: str
    replay_digest: str
    replay_through_seq: int
    source: JsonObject
    target_run: RunHeader
    claimed_at: int


@event("continuation/start", barrier=True)
class ContinuationStart:
    """The first event of a claimed run's ledger."""

    TYPE: ClassVar[str]
    protocol: str
    start_kind: Literal["runtime_admission", "claim_repair"]
    purpose: Purpose
    claim_id: str
    run_id: str
    turn_id: str
    boundary_digest: str
    replay_digest: str
    source: JsonObject


PAUSE_PROTOCOL: Final = "runtime_handoff_pause_v1"


@event("handoff/pause", barrier=True)
class HandoffPause:
    """Seals a run at a step boundary and leaves its turn open for the successor."""

    TYPE: ClassVar[str]
    protocol: str
    handoff_id: str
    host_epoch: str
    run_id: str
    turn_id: str
    root_run_id: str
    successor_run_id: str
    successor_invocation_id: str
    claim_id: str
    remaining_steps: int | None


# ---------------------------------------------------------------- admissions, messages, interactions, plans


@event("turn/admitted", barrier=True)
class TurnAdmitted:
    """A turn that was promised to a client before it began."""

    TYPE: ClassVar[str]
    turn_id: str
    run_id: str
    message_id: str | None = None
    previous_root_turn_id: str | None
    execution: JsonObject
    input: JsonObject
    input_digest: str
    options: JsonObject | None = None
    agent_id: str | None = None
    agent_name: str | None = None
    client: str | None = None


@event("message/accepted", barrier=True)
class MessageAccepted:
    """A message that a queue took; it is *taken* when a ``user/message`` or ``turn/admitted`` has its id."""

    TYPE: ClassVar[str]
    message_id: str
    placement: Literal["current_turn", "next_turn"]
    disposition: Literal["steering", "followup"]
    turn_id: str | None = None
    content: Blocks
    quotes: list[JsonObject] | None = None
    attachments: list[JsonObject] | None = None
    digest: str
    client: Any = None


@event("message/retracted", barrier=True)
class MessageRetracted:
    """Messages taken out of the queue; also when the list is empty."""

    TYPE: ClassVar[str]
    retract_id: str
    message_ids: list[str]


@event("interaction/requested", barrier=True)
class InteractionRequested:
    """A question, a permission or a sandbox boundary that a run waits for."""

    TYPE: ClassVar[str]
    interaction_id: str
    turn_id: str
    run_id: str
    kind: Literal["question", "permission", "sandbox_boundary"]
    request: JsonObject


@event("interaction/resolved", barrier=True)
class InteractionResolved:
    """Its outcome; the first one wins for good."""

    TYPE: ClassVar[str]
    interaction_id: str
    outcome: JsonObject


@event("plan/proposed", barrier=True)
class PlanProposed:
    TYPE: ClassVar[str]
    proposal_id: str
    revision: int
    turn_id: str
    title: str
    steps: list[JsonObject]
    request_id: str | None = None


@event("plan/approved", barrier=True)
class PlanApproved:
    """Makes the execution ``active``; one active for a session."""

    TYPE: ClassVar[str]
    proposal_id: str
    revision: int
    execution_id: str
    request_id: str | None = None


@event("plan/execution", barrier=True)
class PlanExecution:
    TYPE: ClassVar[str]
    execution_id: str
    status: Literal["completed", "cancelled", "interrupted"]
    reason: str | None = None


# ---------------------------------------------------------------- journal


@event("journal/gap", barrier=True)
class JournalGap:
    """Written by a salvage at the end of the file: which damage was accepted, and where its bytes were copied."""

    TYPE: ClassVar[str]
    spans: list[JsonObject]
    missing: list[list[int]]
    unverified: list[int]
    accepted: list[JsonObject]
    header: JsonObject | None = None


def is_extension(type: str) -> bool:
    return type.startswith(EXTENSION_PREFIX)
