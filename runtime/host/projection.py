"""A session as its clients see it: the fold, and what this process knows beside it → the snapshot. No I/O."""

from collections.abc import Sequence
from typing import Any, Final

import orjson

from ...journal.events import JsonObject
from ...journal.state import State
from ...journal.views.interactions import pending_row
from ...journal.views.problem import mapping
from ...journal.views.queue import Queued
from .protocol import HostError

#: Settings of a session that a snapshot shows.
_SHOWN: Final = ("name", "labels", "flagged", "archived", "has_unread", "cwd", "backend", "model", "permission_mode")
#: Bytes of JSON of one request, of one setting, or of why a turn ended, that a snapshot shows whole.
_MOST: Final = 16 * 1024
#: Bytes of JSON of all requests that it shows: with a full queue it still has to fit into a frame.
_MOST_ASKED: Final = 128 * 1024
#: Settings that a row of a listing shows.
_LISTED: Final = ("name", "labels")
#: The status of a root turn → that of its session, where it is another.
_SESSION: Final = {"admitted": "running", "created": "running"}
#: Statuses of a turn that is over.
AT_REST: Final = frozenset({"completed", "failed", "cancelled"})


def snapshot(state: State, session_id: str, *, running: str | None, unavailable: str | None) -> JsonObject:
    """What a snapshot holds but for its two numbers and its streams. ``running``: the turn that this process runs;
    ``unavailable``: why its journal cannot be used now.
    """
    root = None if state.admissions.tip is None else turn(state, session_id, state.admissions.tip, running=running)
    settings = state.session.settings()
    status = "idle" if root is None or root["status"] in AT_REST else _SESSION.get(root["status"], root["status"])
    session: JsonObject = {
        "session_id": session_id,
        "status": status if unavailable is None else "unavailable",
        "last_activity": state.last_ts,
        **{key: _bounded(settings.get(key)) for key in _SHOWN},
    }
    if unavailable is not None:
        session["message"] = unavailable
    open_turns = {*state.turns.open, *(() if running is None else (running,))}
    return {
        "session": session,
        "root_turn": root,
        "queue": {
            "revision": state.queue.revision,
            "steering": _entries(state.queue.steering(open_turns)),
            "followup": _entries(state.queue.followups(open_turns)),
        },
        "interactions": {"pending": _pending(state, session_id)},
    }


def turn(state: State, session_id: str, turn_id: str, *, running: str | None) -> JsonObject | None:
    """``{session_id, turn_id, run_id, status, revision, reason?, failure_class?, message?}``; None: there is no such
    turn. ``run_id`` is that of its newest run, ``revision`` the number of the event that has made it stand so: it was
    admitted, its run was opened, has ended, or was handed over.
    ``running``: the turn that this process runs, of which nothing is in doubt.
    """
    admission = state.admissions.open.get(turn_id)
    if admission is not None and admission.started_seq is None and not state.turns.known(turn_id):
        status = "admitted" if admission.run is None else "created"
        return _turn(session_id, turn_id, admission.run_id, status, admission.seq)
    row = state.turn_row(turn_id)
    if row is None:
        return None
    run_id = row["run_ids"][-1] if row["run_ids"] else ""
    open_turn = state.turns.open.get(turn_id)
    rest = None if open_turn is None else open_turn.rest
    if rest is not None and (rest, turn_id) != ("indeterminate", running):
        return _turn(session_id, turn_id, run_id, rest, row["last_seq"])
    run = state.run_row(run_id) or {}
    said = _turn(session_id, turn_id, run_id, run.get("status", "running"), run.get("seq") or row["last_seq"])
    if open_turn is None and said["status"] in AT_REST:
        reason = mapping(row["reason"])
        said["reason"] = reason if _size(reason) <= _MOST else {"kind": reason.get("kind")}
        for key, value in (("failure_class", run.get("failure_class")), ("message", reason.get("message"))):
            if value is not None and _size(value) <= _MOST:
                said[key] = value
    return said


def asked(session_id: str, row: JsonObject, *, most: int = _MOST) -> JsonObject:
    """An interaction for a client. A request or an outcome of more bytes of JSON than ``most`` is left out."""
    for key in ("request", "outcome"):
        if row.get(key) is not None and _size(row[key]) > most:
            row = {**row, key: None, "truncated": True}
    return {"session_id": session_id, **row}


def planned(row: JsonObject, *, most: int) -> JsonObject:
    """A plan for a client. Of one of more bytes of JSON than ``most`` the steps are left out, then also its texts."""
    if _size(row) > most:
        row = {**row, "steps": None, "truncated": True}
    if _size(row) > most:
        execution = {key: value for key, value in mapping(row["execution"]).items() if key != "reason"}
        row = {**row, "title": None, "execution": execution or None}
    return row


def listed(row: JsonObject) -> JsonObject:
    """A row of a listing for a client. A name, or labels, that are too long to be shown are left out."""
    return {**row, **{key: _bounded(row[key]) for key in _LISTED}}


def _turn(session_id: str, turn_id: str, run_id: str, status: str, revision: int) -> JsonObject:
    return {"session_id": session_id, "turn_id": turn_id, "run_id": run_id, "status": status, "revision": revision}


def _bounded(setting: Any) -> Any:
    """A setting, or None where it is too long to be shown."""
    return setting if _size(setting) <= _MOST else None


def _size(value: Any) -> int:
    return len(orjson.dumps(value))


def _pending(state: State, session_id: str) -> list[JsonObject]:
    """What a person is asked, the oldest first, as far as there is room for it."""
    shown, room = [], _MOST_ASKED
    for item in state.interactions.pending.values():
        shown.append(asked(session_id, pending_row(item), most=min(_MOST, room)))
        room -= _size(shown[-1]["request"])
    return shown


def _entries(queued: Sequence[Queued]) -> list[JsonObject]:
    keys = ("message_id", "turn_id", "placement", "content", "quotes", "attachments")
    return [
        {**{key: item.data[key] for key in keys if item.data.get(key) is not None}, "seq": item.seq} for item in queued
    ]


def no_turn(session_id: str, turn_id: str) -> HostError:
    return HostError("not_found", f"session {session_id} has no turn {turn_id}; look at its history for those it has")
