"""What the loop must know of a session before its next turn: a small fold over the session's events. No I/O."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from ..journal.events import Event, JsonObject
from ..journal.views.problem import mapping, sequence, text_of

if TYPE_CHECKING:
    from ..journal.history import Replay


class Messages(Protocol):
    """The provider history: a fold that gives legal messages at any time."""

    def apply(self, event: Event, /) -> Any: ...
    def messages(self, run_id: str | None = None, /) -> list[JsonObject]: ...
    def replay(self, run_id: str, /) -> "Replay": ...


#: What of a session's header, and of its updates, a run's header takes over.
_OF_RUN = ("backend", "model", "connection", "cwd", "permission_mode")


class Conversation:
    """``seq`` is the newest event's number; ``requested``: was a model ever asked in the session?"""

    def __init__(self, events: Iterable[Event] = (), *, history: Messages | None = None) -> None:
        if history is None:
            from ..journal.history import History

            history = History()
        self._history = history
        self._session: dict[str, Any] = {}
        # JSON text by run_id: a long session has many, and hardly any is ever asked for.
        self._headers: dict[str, bytes] = {}
        self._compositions: dict[str, bytes] = {}
        #: Each composition once, however many runs have it.
        self._made: dict[bytes, bytes] = {}
        #: Of open turns.
        self._anchors: dict[str, bytes] = {}
        self._offered: dict[str, tuple[str, ...]] = {}
        self._catalogs: dict[tuple[str, ...], tuple[str, ...]] = {}
        self.seq = -1
        self.requested = False
        for event in events:
            self.observe(event)

    def observe(self, event: Event) -> None:
        """Take over one more event of the session, the header included."""
        self.seq = event.seq
        handler = _HANDLERS.get(event.type)
        if handler is not None:
            handler(self, event.data)
        self._history.apply(event)

    def messages(self, run_id: str | None = None) -> list[JsonObject]:
        """The provider history; ``run_id``: what the model of this run is given, if a claim has reserved the run."""
        return self._history.messages(run_id)

    def replay(self, run_id: str) -> "Replay":
        """What a model would be given to go on from this run. Changes nothing."""
        return self._history.replay(run_id)

    def header_of(self, run_id: str) -> JsonObject | None:
        """A run's header, from its turn/start, its run/created, or else the claim that has reserved it."""
        return _read(self._headers.get(run_id))

    def composition_of(self, run_id: str) -> JsonObject | None:
        """A run's composition; None where none is on record."""
        return _read(self._compositions.get(run_id))

    def head_anchor(self, turn_id: str) -> JsonObject | None:
        """The data of the user/message that an open turn began with, steering aside; None where there is none, or the
        turn is over.
        """
        return _read(self._anchors.get(turn_id))

    def configuration(self) -> JsonObject:
        """The newest ``{backend, model, connection?, cwd, permission_mode}``; empty texts where there is none."""
        values = {key: self._session.get(key) for key in _OF_RUN}
        return {key: value or "" for key, value in values.items() if value is not None or key != "connection"}

    @property
    def cwd(self) -> str:
        return str(self._session.get("cwd", ""))

    @property
    def model(self) -> str:
        return str(self._session.get("model", ""))

    @property
    def permission_mode(self) -> str:
        """The session's newest; empty where it has none."""
        return str(self._session.get("permission_mode", ""))

    def run_header(
        self,
        *,
        run_id: str,
        invocation_id: str,
        turn_id: str,
        created_at: int,
        root: JsonObject,
        max_steps: int | None = None,
        workspace_identity: JsonObject | None = None,
    ) -> JsonObject:
        """A run's header (docs/format.md, "Values inside events") from the session's, keys in the same order."""
        values = {
            "run_id": run_id,
            "invocation_id": invocation_id,
            "turn_id": turn_id,
            **{key: self._session.get(key) for key in ("backend", "model", "connection", "cwd")},
            "workspace_identity": workspace_identity,
            "permission_mode": self._session.get("permission_mode"),
            "created_at": created_at,
            "root": root,
            "max_steps": max_steps,
        }
        for key in ("backend", "model", "cwd", "permission_mode"):
            values[key] = values[key] or ""
        return {key: value for key, value in values.items() if value is not None}

    def offered(self, run_id: str) -> tuple[str, ...]:
        """The tools that the run's newest request offered its model."""
        return self._offered.get(run_id, ())

    def _header(self, data: JsonObject) -> None:
        # A fork's own stands behind its parents' events: whatever they asked a model, the fork has not yet.
        self.requested = False
        self._anchors.clear()
        self._merge(data)

    def _updated(self, data: JsonObject) -> None:
        patch = data.get("patch")
        if isinstance(patch, dict):
            self._merge(patch)

    def _merge(self, values: JsonObject) -> None:
        self._session.update({key: values[key] for key in _OF_RUN if isinstance(values.get(key), str)})

    def _opened(self, data: JsonObject) -> None:
        self._run(data.get("run"))

    def _created(self, data: JsonObject) -> None:
        self._run(data.get("run"))

    def _claimed(self, data: JsonObject) -> None:
        self._run(data.get("target_run"), reserved=True)

    def _run(self, header: Any, *, reserved: bool = False) -> None:
        run_id = text_of(header.get("run_id")) if isinstance(header, dict) else None
        if run_id is not None and not (reserved and run_id in self._headers):
            self._headers[run_id] = _text(header)

    def _composed(self, data: JsonObject) -> None:
        if data["run_id"] not in self._compositions:
            text = _text(data["composition"])
            self._compositions[data["run_id"]] = self._made.setdefault(text, text)

    def _said(self, data: JsonObject) -> None:
        if mapping(data.get("source")).get("kind") != "steering":
            self._anchors.setdefault(data["turn_id"], _text(data))

    def _ended(self, data: JsonObject) -> None:
        self._anchors.pop(data["turn_id"], None)

    def _requested(self, data: JsonObject) -> None:
        self.requested = True
        tools = mapping(data.get("header")).get("tools")
        names = tuple(name for tool in sequence(tools) if (name := text_of(mapping(tool).get("name"))) is not None)
        # Nearly all runs of a session have the same.
        self._offered[data.get("run_id", "")] = self._catalogs.setdefault(names, names)


def _text(value: JsonObject) -> bytes:
    # What orjson gives holds on to its buffer, which has room for a multiple.
    return bytes(memoryview(orjson.dumps(value)))


def _read(text: bytes | None) -> JsonObject | None:
    if text is None:
        return None
    value: JsonObject = orjson.loads(text)
    return value


_HANDLERS: dict[str, Callable[[Conversation, JsonObject], None]] = {
    "session/header": Conversation._header,
    "session/updated": Conversation._updated,
    "turn/start": Conversation._opened,
    "run/created": Conversation._created,
    "run/composition": Conversation._composed,
    "continuation/claim": Conversation._claimed,
    "request/header": Conversation._requested,
    "user/message": Conversation._said,
    "turn/end": Conversation._ended,
}
