"""Going on with a session → text for people: what was planned, why it parks, how the turn ended, what to do. No I/O."""

from collections.abc import Mapping
from shlex import quote
from typing import Any, Final

from .conversation import OUTCOME_SOURCE
from .onward import Words
from .render import onward
from .text import Painter, count, line, table

Doc = Mapping[str, Any]
Lines = list[str]

_STATUS_STYLE: Final = {"completed": "green", "failed": "red", "park": "yellow", "continue": "green"}
#: Columns of what was said and is left out.
_SAID: Final = 72
#: Who stopped a turn, in words.
_STOPPED: Final = {"nobody_to_answer": "because nobody can answer here"}
#: What goes on where the session has no run to be resumed.
_LIMITED: Final = "the answer is as long as it may be; a new message (`manager.send` of a program) goes on"


def plan(doc: Doc, paint: Painter, boundary: Doc | None, words: Words) -> Lines:
    """What stands before the turn: what recovery did, where the plan goes on from, or why it parks.

    ``boundary``: that of ``resume.boundary_of``; None where nothing goes on. ``words`` are for commands.
    """
    rows = [["session", line(doc["session_id"])], ["path", line(doc["path"])]]
    if doc["recovered"] is not None:
        rows.append(["recovered", _recovered(doc["recovered"])])
    rows.append(["plan", _planned(doc)])
    run = f"run {line(doc['source_run_id'], 128)}"
    if boundary is not None and doc["continuation"]["purpose"] == "handoff":
        rows.append(["handed over", _successor(doc["continuation"])])
    if boundary is not None:
        rows.append(["goes on from", f"{run}, behind {_anchor(boundary)}"])
        rows += [["left out", f"event {said['seq']}: {line(said['text'], _SAID)}"] for said in boundary["left_out"]]
    elif doc["source_run_id"]:
        rows.append(["looked at", run])

    def style(column: int, cell: str) -> str:
        return "dim" if column == 0 else _STATUS_STYLE.get(cell.partition(",")[0], "")

    out = table(rows, paint, styles=style, indent="")
    reasons = doc["rejection_reasons"]
    why = [row for row in doc["diagnostics"] if row["code"] in reasons]
    told = [*why, *_untold(reasons, why)], [row for row in doc["diagnostics"] if row["code"] not in reasons]
    for title, named in zip(("why it parks", "to know"), told, strict=True):
        said_of = [(line(row["code"]), _said(row, doc, words)) for row in named]
        out += ["", paint(title, "bold")] if said_of else []
        out += [f"  {paint(code, 'yellow')}: {said}" for code, said in said_of]
    return out


def end(doc: Doc, paint: Painter, *, refused: bool) -> Lines:
    """What stands behind the turn: how it ended, and what can be done next, where ``doc`` has that.

    ``refused``: a sentence follows that says why. Nothing where no turn ran.
    """
    turn = doc["turn"]
    if turn is None:
        return []
    status, reason = turn["status"], turn["reason"] or {}
    keys = ("failure_class",) if refused else ("failure_class", "message")
    detail = [line(reason[key], 300) for key in keys if reason.get(key)]
    shown = paint(status, _STATUS_STYLE.get(status, "yellow"))
    if source := reason.get("source"):
        shown += f" {_STOPPED.get(source) or 'by ' + line(source, 60)}"
    out = ["", f"turn {line(turn['turn_id'], 128)} {shown}" + (f": {', '.join(detail)}" if detail else "")]
    if status == "max_tokens":
        out.append(f"  {paint('→', 'cyan')} {_LIMITED}")
    return out + onward(doc, paint)


def settlement(doc: Doc, paint: Painter) -> Lines:
    """The answer of `settle`, and what can be done next, where ``doc`` has that."""
    call = doc["call"]
    out = _ended(doc) if call is None else _stated(doc, call)
    title, *rest = out
    return [paint(title, "bold"), *(f"  {row}" for row in rest), *onward(doc, paint)]


def archiving(doc: Doc) -> Lines:
    """The answer of `archive`."""
    session = line(doc["session_id"], 128)
    if doc["archived"]:
        return [f"session {session} is put away; `maka session archive {quote(session)} --undo` takes it back"]
    return [f"session {session} is in use again"]


def _ended(doc: Doc) -> Lines:
    [end] = [event["data"] for event in doc["appended"] if event["type"] == "turn/end"]
    reason, handoff = end["reason"], doc["handoff"]
    how = "was stopped" if reason["kind"] == "aborted" else "has failed"
    how += f" ({line(reason['failure_class'], 60)})" if reason.get("failure_class") else ""
    out = [f"settled: turn {line(end['turn_id'], 128)} {how}"]
    if handoff is not None:
        successor, number = line(handoff["successor_run_id"], 128), line(handoff["turn"])
        out.append(f"run {successor} will not finish turn {number}; messages are taken again")
    return out


def _stated(doc: Doc, call: Doc) -> Lines:
    named = f"{line(call.get('name') or 'call', 60)} ({line(call['call_id'], 128)})"
    if call.get("turn") is not None:
        named += f" of turn {line(call['turn'])}"
    stands = f"{line(call.get('outcome') or '-', 20)}, {OUTCOME_SOURCE.get(str(call.get('outcome_source')), '-')}"
    if not doc["appended"]:
        return [f"{named} was settled already: {stands}", "nothing was written"]
    blocks = doc["appended"][0]["data"]["content"]
    told = " ".join(block["text"] for block in blocks if isinstance(block.get("text"), str))
    return [f"settled: {named}: {stands}, for good", f"the model is told: {line(told, 300)}"]


def _successor(continuation: Doc) -> str:
    steps, left = continuation["max_steps"], "as many steps as it needs"
    if steps is not None:
        left = f"{count(steps, 'step')} left"
    return f"run {line(continuation['run_id'], 128)} finishes turn {line(continuation['turn_id'], 128)}, with {left}"


def _anchor(boundary: Doc) -> str:
    what = {"user": "the user's message", "tool": f"the result of {line(boundary.get('call_id') or 'a call', 60)}"}
    said = what.get(str(boundary.get("role")))
    return f"event {boundary['seq']}" + (f" ({said})" if said else "")


def _recovered(recovered: Doc) -> str:
    parts = []
    if recovered["appended"]:
        parts.append(f"{count(recovered['appended'], 'event')} appended")
    if recovered["reconciled"]:
        parts.append(f"the outcome of {count(recovered['reconciled'], 'call')} found out")
    if recovered["interrupted"] is not None:
        execution, plan = line(recovered["interrupted"], 128), line(recovered["interrupted_plan"] or "-", 128)
        parts.append(f"execution {execution} of plan {plan} interrupted")
    return ", ".join(parts) or "nothing was left open"


def _planned(doc: Doc) -> str:
    continuation = doc["continuation"]
    if continuation is None:
        return "park"
    again = continuation["rerun"]
    return "continue" + (f", {count(len(again), 'call')} made again before the model is asked" if again else "")


def _untold(reasons: list[str], told: list[Doc]) -> list[Doc]:
    """What each reason means that no diagnostic speaks of."""
    from ..runtime.continuation.codes import REASONS

    left = [code for code in reasons if all(row["code"] != code for row in told)]
    return [{"code": code, "message": f"{REASONS[code].meaning} {REASONS[code].remedy}"} for code in left]


def _said(row: Doc, doc: Doc, words: Words) -> str:
    """The sentence, with its commands as they can be pasted."""
    message, named = line(row["message"]), quote(line(doc["session_id"]))
    for command in ("session settle", "session resume", "journal inspect", "journal repair"):
        shown = f"`maka {command}"
        typed = f"{shown} {words.session}" + (words.app if command == "session resume" else "")
        message = message.replace(f"{shown} {named}", shown).replace(shown, typed)
    return message
