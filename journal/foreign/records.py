"""What every reader gives: a session's facts as neutral records, in the order of its file. No I/O.

A record belongs to a ``thread``: the session itself is ``""``; what was withdrawn by a rewind, another branch, a
subagent's run have threads of their own, each opened by a ``Begin``. Contents are blocks of the journal's format.
"""

from collections.abc import Mapping
from typing import Literal

import attrs

from ..events import Blocks, EndKind, JsonObject, ResultState

MAIN = ""


@attrs.frozen
class Place:
    """Where a record stands: its line (from 1), and the bytes of that line."""

    line: int
    offset: int
    length: int


@attrs.frozen(kw_only=True)
class Record:
    """``time``: Unix ms; None where the line has none: then that of the record before it counts."""

    place: Place
    time: int | None = None
    thread: str = MAIN


@attrs.frozen(kw_only=True)
class Begin(Record):
    """Opens a thread; the first of its records.

    ``session_id``: the tool's own id of it. A ``branch`` goes on from the end of turn ``after`` of thread ``parent``
    (None: from its very beginning). A ``subagent`` was started in ``parent``, by call ``call_id`` where that is known.
    ``begun_by``: the tool's own id of the session of another file that this one was forked from, or as a ``subagent``
    started by.
    ``dispatches``: does the format record that a tool's body was entered? Then a call without such a record never ran.
    """

    kind: Literal["main", "branch", "subagent"] = "main"
    session_id: str | None = None
    parent: str | None = None
    after: str | None = None
    call_id: str | None = None
    begun_by: str | None = None
    cwd: str | None = None
    model: str | None = None
    provider: str | None = None
    name: str | None = None
    agent_id: str | None = None
    agent_name: str | None = None
    dispatches: bool = False


@attrs.frozen(kw_only=True)
class Prompt(Record):
    """Begins a turn. ``turn`` names it, unique in the file. ``source`` is the kind of the message's source: ``user``,
    or whoever else put it there.
    """

    turn: str
    content: Blocks
    message_id: str | None = None
    source: str = "user"


@attrs.frozen(kw_only=True)
class Said(Record):
    """A message that did not begin the turn: steering, context that the tool put in, a summary of a branch."""

    content: Blocks
    message_id: str | None = None
    source: str = "steering"


@attrs.frozen(kw_only=True)
class Response(Record):
    """One whole response of a model, its calls included, however many lines it has. ``usage``: the five counts of the
    format. ``interrupted``: it was cut off; its calls never ran. ``turn`` names the turn that it begins where none is.
    """

    content: Blocks
    turn: str | None = None
    message_id: str | None = None
    stop_reason: str = ""
    usage: JsonObject | None = None
    model: str | None = None
    provider: str | None = None
    interrupted: bool = False
    #: By id: calls that stand on lines of their own.
    places: Mapping[str, Place] = attrs.Factory(dict)


@attrs.frozen(kw_only=True)
class Dispatch(Record):
    """The body of a tool was entered. ``name`` and ``arguments`` where no message asked for the call."""

    call_id: str
    name: str = ""
    arguments: str | None = None


@attrs.frozen(kw_only=True)
class Result(Record):
    """What came of a call. A tool that does not tell failures apart gives ``ok``."""

    call_id: str
    content: Blocks
    state: ResultState = "ok"
    name: str = ""


@attrs.frozen(kw_only=True)
class End(Record):
    """Evidence that the turn has ended. Nothing comes of it where none is open."""

    kind: EndKind
    source: str | None = None
    failure_class: str | None = None
    message: str | None = None


@attrs.frozen(kw_only=True)
class Compaction(Record):
    """From here on a model is given ``summary`` in place of what stands before, except for what stands from the message
    ``kept_from`` on.
    """

    summary: Blocks
    kept_from: str | None = None


@attrs.frozen(kw_only=True)
class Setting(Record):
    """The session has a new ``name`` or ``model``, as in ``session/updated``."""

    patch: JsonObject


@attrs.frozen(kw_only=True)
class Note(Record):
    """For people, never for a model: an error of the provider, a hook's word, a fact without a place of its own."""

    kind: str
    text: str


@attrs.frozen(kw_only=True)
class Kept(Record):
    """A line that stands for nothing above, as it is. ``type`` is the tool's own word for it."""

    type: str
    value: object
