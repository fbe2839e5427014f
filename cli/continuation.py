"""Going on with a session → text for people: what was planned, why it parks, how the turn ended, what to do. No I/O."""

from collections.abc import Mapping
from shlex import quote
from typing import Any, Final

from .text import Painter, count, line, table

Doc = Mapping[str, Any]
Lines = list[str]

#: Ends of a turn that another resume may go on from, and those behind which a message goes on.
_RESUMED: Final = ("failed", "aborted", "interrupted", "blocked")
_LIMITED: Final = ("max_tokens", "step_limit")

_STATUS_STYLE: Final = {"completed": "green", "failed": "red", "park": "yellow", "continue": "green"}


def plan(doc: Doc, paint: Painter) -> Lines:
    """What stands before the turn: what recovery did, where the plan goes on from, or why it parks."""
    rows = [["session", line(doc["session_id"])], ["path", line(doc["path"])]]
    if doc["recovered"] is not None:
        rows.append(["recovered", _recovered(doc["recovered"])])
    if doc["source_run_id"] is not None:
        rows.append(["goes on from", f"run {line(doc['source_run_id'], 128)}"])
    rows.append(["plan", _planned(doc)])

    def style(column: int, cell: str) -> str:
        return "dim" if column == 0 else _STATUS_STYLE.get(cell.partition(" ")[0], "")

    out = table(rows, paint, styles=style, indent="")
    reasons = doc["rejection_reasons"]
    why = [row for row in doc["diagnostics"] if row["code"] in reasons]
    out += _told("why it parks", [*why, *_untold(reasons, why)], doc, paint)
    return out + _told("to know", [row for row in doc["diagnostics"] if row["code"] not in reasons], doc, paint)


def end(doc: Doc, paint: Painter) -> Lines:
    """What stands behind the turn: how it ended, and what goes on from there. Nothing where none ran."""
    turn = doc["turn"]
    if turn is None:
        return []
    status, reason = turn["status"], turn["reason"]
    detail = [line(reason[key], 300) for key in ("source", "failure_class", "message") if reason.get(key)]
    shown = paint(status, _STATUS_STYLE.get(status, "yellow"))
    out = ["", f"turn {line(turn['turn_id'], 128)} {shown}" + (f": {', '.join(detail)}" if detail else "")]
    if status in _RESUMED:
        out.append(_next(f"`maka session resume {quote(line(doc['path']))}` goes on from there", paint))
    if status in _LIMITED:
        out.append(_next("it met a limit; a new message to the session goes on", paint))
    return out


def settlement(doc: Doc, paint: Painter) -> Lines:
    """The answer of `settle`."""
    rows = [[line(event["seq"]), line(event["type"]), _stated(event["data"])] for event in doc["appended"]]
    return [
        paint("settled", "bold"),
        *table(rows, paint, right=frozenset({0})),
        _next(f"`maka session resume {quote(line(doc['path']))}` goes on", paint),
    ]


def _recovered(recovered: Doc) -> str:
    parts = []
    if recovered["appended"]:
        parts.append(f"{count(recovered['appended'], 'event')} appended")
    if recovered["reconciled"]:
        parts.append(f"the outcome of {count(recovered['reconciled'], 'call')} found out")
    return ", ".join(parts) or "nothing was left open"


def _planned(doc: Doc) -> str:
    continuation = doc["continuation"]
    if continuation is None:
        return "park"
    # Ids of a plan that nothing was recovered for are not used by anybody.
    ids = f"run {line(continuation['run_id'], 128)}, turn {line(continuation['turn_id'], 128)}"
    again = continuation["rerun"]
    return (
        "continue"
        + (f" as {ids}" if doc["recovered"] is not None else "")
        + (f", {count(len(again), 'call')} made again" if again else "")
    )


def _untold(reasons: list[str], told: list[Doc]) -> list[Doc]:
    """What each reason means that no diagnostic speaks of."""
    from ..runtime.continuation.codes import REASONS

    left = [code for code in reasons if all(row["code"] != code for row in told)]
    return [{"code": code, "message": f"{REASONS[code].meaning} {REASONS[code].remedy}"} for code in left]


def _told(title: str, rows: list[Doc], doc: Doc, paint: Painter) -> Lines:
    if not rows:
        return []
    return ["", paint(title, "bold"), *(f"  {paint(line(row['code']), 'yellow')}: {_said(row, doc)}" for row in rows)]


def _said(row: Doc, doc: Doc) -> str:
    """The sentence, with its commands as they can be pasted: by the path, which holds for any root."""
    message, path, named = line(row["message"]), quote(line(doc["path"])), quote(line(doc["session_id"]))
    for command in ("session settle", "session resume", "journal inspect", "journal repair"):
        shown = f"`maka {command}"
        message = message.replace(f"{shown} {named}", shown).replace(shown, f"{shown} {path}")
    return message


def _stated(data: Doc) -> str:
    reason = data.get("reason")
    said = [data.get("call_id"), data.get("state"), data.get("run_id"), reason.get("kind") if reason else None]
    return "  ".join(line(word, 128) for word in said if word)


def _next(text: str, paint: Painter) -> str:
    return f"{paint('→', 'cyan')} {text}"
