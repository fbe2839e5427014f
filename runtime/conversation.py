"""What the loop must know of a session before its next turn: a small fold over the session's events. No I/O."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from ..journal.events import Event, JsonObject


class Messages(Protocol):
    """The provider history: a fold that gives legal messages at any time."""

    def apply(self, event: Event, /) -> Any: ...
    def messages(self) -> list[JsonObject]: ...


#: What of a session's header, and of its updates, a run's header takes over.
_OF_RUN = ("backend", "model", "connection", "cwd", "permission_mode")


class Conversation:
    """``seq`` is the newest event's number, ``turns`` the largest turn number so far; ``requested``: was a model ever
    asked in the session?
    """

    def __init__(self, events: Iterable[Event] = (), *, history: Messages | None = None) -> None:
        if history is None:
            from ..journal.history import History

            history = History()
        self._history = history
        self._session: dict[str, Any] = {}
        self.seq = -1
        self.turns = 0
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

    def messages(self) -> list[JsonObject]:
        return self._history.messages()

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

    def _header(self, data: JsonObject) -> None:
        # A fork's own stands behind its parents' events: whatever they asked a model, the fork has not yet.
        self.requested = False
        self._merge(data)

    def _updated(self, data: JsonObject) -> None:
        patch = data.get("patch")
        if isinstance(patch, dict):
            self._merge(patch)

    def _merge(self, values: JsonObject) -> None:
        self._session.update({key: values[key] for key in _OF_RUN if isinstance(values.get(key), str)})

    def _turn(self, data: JsonObject) -> None:
        turn = data.get("turn")
        if isinstance(turn, int):
            self.turns = max(self.turns, turn)

    def _requested(self, data: JsonObject) -> None:
        self.requested = True


_HANDLERS: dict[str, Callable[[Conversation, JsonObject], None]] = {
    "session/header": Conversation._header,
    "session/updated": Conversation._updated,
    "turn/start": Conversation._turn,
    "continuation/claim": Conversation._turn,
    "request/header": Conversation._requested,
}
