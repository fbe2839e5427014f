"""How a turn stands as its session's journal says it, and what goes on from there: sentences."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final

from . import documents, exits, onward
from .documents import Answer, Doc

if TYPE_CHECKING:
    from ..journal.events import Event

#: Commands named in one sentence.
_NAMED: Final = 2
#: Failures before a turn's first step: what its message says has to be mended before anything goes on.
_NEVER_BEGAN: Final = "start_failed"
#: How the message of one begins whose session names a backend that the app has not.
_NO_BACKEND: Final = "no backend "


def told(answer: Answer, root: Path, named: str | None, app: str | None) -> Answer:
    """With a sentence about a turn that has not completed. ``named``: the root as it was typed."""
    turn: Doc | None = answer.doc["turn"]
    if turn is None or turn["status"] == "completed" or answer.refusal is not None:
        return answer
    way = _way(answer.doc["session_id"], turn, root, named, app)
    return Answer(answer.doc, answer.code, f"the turn {_ended(turn)}; {way}")


def left(session_id: str, turns: set[str], message_id: str, root: Path, named: str | None, app: str | None) -> Answer:
    """Of a command whose host is gone, for a turn that it has asked for: one of these, or that of this message."""
    from ..journal.errors import JournalError
    from ..repair.session import survey, writer_of

    doc: Doc = {"session_id": session_id, "turn": None, "text": None}
    try:
        session = survey(session_id, root)
        lives = writer_of(session.path) is not None
        admitted = {data["turn_id"]: data for data in _promised(session.events, turns, message_id)}
    except JournalError as error:
        return Answer(doc, exits.USAGE, f"how the turn stands cannot be read: {error}")
    turns = turns | admitted.keys()
    row = next((row for row in session.turns() if row["turn_id"] in turns), None)
    if lives:
        return Answer(doc, exits.PENDING, f"the turn goes on as soon as its host does; {_seen(session_id, named)}")
    queue = session.queue()
    queued = any(entry["message_id"] == message_id for kind in queue for entry in queue[kind])
    if row is None and (admitted or queued):
        for turn_id, data in admitted.items():
            status = "admitted"
            doc["turn"] = {"turn_id": turn_id, "run_id": data["run_id"], "status": status, "reason": {"kind": status}}
        what = "the turn was accepted and has not begun" if admitted else "the message was accepted and waits"
        words = "" if named is None else f" --root {quote(named)}"
        start = f"`maka host start{words}{documents.words_of(session_id, named, app).app}` starts one"
        way = f"the next host runs it, and {start}; {_seen(session_id, named)}"
        return Answer(doc, exits.PENDING, f"{what}, as the journal says; {way}")
    if row is None:
        again = f"`maka run --session {onward.words_of(session_id, named)} TEXT` says it again"
        return Answer(doc, exits.USAGE, f"the turn has not begun, as the journal says; {again}")
    reason = row["reason"] or {"kind": row["status"]}
    runs = row["run_ids"] or [None]
    doc["turn"] = {"turn_id": row["turn_id"], "run_id": runs[-1], "status": reason["kind"], "reason": reason}
    code = exits.OF_TURN.get(reason["kind"], exits.PENDING)
    if reason["kind"] == "completed":
        return Answer(doc, code, f"the turn has completed, as the journal says; {_seen(session_id, named)}")
    way = _way(session_id, doc["turn"], root, named, app)
    return Answer(doc, code, f"the turn {_ended(doc['turn'])}, as the journal says; {way}")


def _promised(events: Iterable["Event"], turns: set[str], message_id: str) -> Iterator[Doc]:
    """The admissions of these turns, and of this message."""
    for event in events:
        data = event.data
        if event.type == "turn/admitted" and (data["turn_id"] in turns or data.get("message_id") == message_id):
            yield data


def _ended(turn: Doc) -> str:
    reason = turn["reason"]
    why = reason.get("message") or reason.get("failure_class") or (reason.get("source") and f"by {reason['source']}")
    return f"ended as `{turn['status']}`" + (f": {why}" if why else "")


def _way(session_id: str, turn: Doc, root: Path, named: str | None, app: str | None) -> str:
    other = " --backend NAME" if str(turn["reason"].get("message")).startswith(_NO_BACKEND) else ""
    say = f"`maka run --session {onward.words_of(session_id, named)}{other} TEXT`"
    if turn["reason"].get("failure_class") == _NEVER_BEGAN:
        return f"then say it again with {say}"
    if turn["status"] != "interrupted":
        return f"go on with {say}"
    commands = _commands(session_id, root, named, app)
    if not commands:
        return f"go on with {say}"
    if any("session settle" in command for command in commands):
        return f"of a call nobody knows what came of it: say so first, with {' or '.join(commands[:_NAMED])}"
    return f"go on where it was cut off with {commands[0]}, or say something with {say}"


def _commands(session_id: str, root: Path, named: str | None, app: str | None) -> list[str]:
    """What `inspect` names, also beside a host that has the session open: it lets go of it for these."""
    from ..journal.errors import JournalError
    from ..repair.session import survey

    try:
        session = survey(session_id, root)
        doc: dict[str, Any] = {**session.to_json(), "writer": None}
    except JournalError:
        return []
    words = documents.words_of(session_id, named, app)
    steps = onward.steps(doc, session.unknown_calls(), session.newest_run, words, lost=session.lost)
    return [f"`{step['command']}`" for step in steps if step["command"] is not None]


def _seen(session_id: str, named: str | None) -> str:
    return f"`maka session show {onward.words_of(session_id, named)}` shows it"
