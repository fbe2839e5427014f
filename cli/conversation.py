"""A conversation as a person reads it: who said what, what was called and what came of it. No I/O."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from . import answering
from .text import Painter, line, paragraph
from .under_way import ASKING, WORDS

Lines = list[str]

#: Columns of arguments in a call, and lines of a result, before they are shortened.
_ARGUMENTS: Final = 100
_RESULT_LINES: Final = 12

_ROLE_STYLE: Final = {"user": "green", "assistant": "blue", "tool": "magenta", "note": "dim", "gap": "alarm"}
_STATE_STYLE: Final = {
    "ok": "green",
    "error": "red",
    "cancelled": "yellow",
    "unknown": "yellow",
    "not_started": "yellow",
    "not answered": "yellow",
}

#: Where the outcome of a call came from whose result was unknown.
OUTCOME_SOURCE: Final = {
    "user": "stated by a person",
    "reconciled": "found out by the tool",
    "rerun": "called again",
    "late": "came late",
}

#: What the provider history makes of an entry -> what a person is told about it.
_MARKS: Final = {
    "hidden": "a model does not see this",
    "unanswered": "no result was journalled; a model is told so",
    "interrupted": "interrupted",
    **{f"outcome: {source}": f"what was unknown at first: {said}" for source, said in OUTCOME_SOURCE.items()},
    "duplicate result": "a second result of one call; a model does not see it",
    "without request": "a result that no call asked for; a model reads it as text",
    "from the admission": "restored from the admission",
    "under way": "it is being written",
}
#: What a person is told in place of the result of a question whose answer no model was given.
_UNANSWERED: Final = "The turn ended before the model was given an answer to this question."


def render(doc: Mapping[str, Any], paint: Painter) -> Lines:
    """The answer of `show`: entries `{role, seq, turn_id, content, mark?}` in the order of the conversation.

    `turns`, where they are given, say how each turn stands: `{turn_id, turn, status, goes_on_from?}`; `asked` is what
    waits for an answer, and `words` name the session in commands.
    """
    out: Lines = []
    turn: object = None
    asking: set[tuple[str, str]] = set()
    standing = {line(row.get("turn_id")): row for row in doc.get("turns", ())}
    entries = doc.get("entries")
    for entry in entries if isinstance(entries, list) else []:
        if entry.get("turn_id") != turn:
            turn = entry.get("turn_id")
            out += ["", paint(_heading(turn, standing.get(line(turn))), "dim")] if turn else []
        content = entry.get("content")
        if isinstance(content, list):
            content = [_of_question(block, str(turn), asking) for block in content]
        out += _said(entry.get("role"), content, paint, seq=entry.get("seq"), mark=entry.get("mark"))
    for row in doc.get("asked", ()):
        out += ["", paint(f"? {answering.Form(row).summary()}", "yellow")]
    if doc.get("asked"):
        out.append(f"  answer it with `maka chat --session {doc.get('words')}`")
    return out[1:]


def _of_question(block: Any, turn_id: str, asking: set[tuple[str, str]]) -> Any:
    """The block, or if it is the unknown result of a question, that it was not answered: nothing may have happened.

    ``asking``: turn and call of the questions so far.
    """
    if not isinstance(block, Mapping):
        return block
    call = (turn_id, str(block.get("call_id")))
    if block.get("kind") == "tool_call" and block.get("name") == ASKING:
        asking.add(call)
    if block.get("kind") == "tool_result" and block.get("state") == "unknown" and call in asking:
        return {**block, "state": "not answered", "content": [{"kind": "text", "text": _UNANSWERED}]}
    return block


def _heading(turn_id: object, turn: Mapping[str, Any] | None) -> str:
    if turn is None:
        return f"── turn {line(turn_id, 60)}"
    status = "" if turn.get("status") == "completed" else f"  {line(turn.get('status'), 20)}"
    source = "" if turn.get("goes_on_from") is None else f"  goes on from turn {line(turn['goes_on_from'], 20)}"
    return f"── turn {line(turn.get('turn'), 20)}{status}{source}  {line(turn_id, 60)}"


def messages(history: Iterable[Mapping[str, Any]], paint: Painter) -> Lines:
    """Provider history, message by message."""
    out: Lines = []
    for message in history:
        out += _said(message.get("role"), message.get("content"), paint)
    return out[1:]


def _said(role: object, content: object, paint: Painter, *, seq: object = None, mark: object = None) -> Lines:
    name = line(role, 20)
    title = paint(name, _ROLE_STYLE.get(name, "bold"))
    if seq is not None:
        title += paint(f"  {line(seq, 20)}", "dim")
    if mark is not None:
        title += paint(f"  [{_MARKS.get(str(mark)) or line(mark, 60)}]", "yellow")
    out = ["", title]
    for block in content if isinstance(content, list) else []:
        out += _indented(_block(block, paint))
    return out


def _block(block: Any, paint: Painter) -> Lines:
    if not isinstance(block, Mapping):
        return [line(block, _ARGUMENTS)]
    kind = block.get("kind")
    if kind == "tool_call":
        return [call(block, paint)]
    if kind == "tool_result":
        return result(block, paint)
    if kind == "thinking":
        thought = block.get("text")
        return [paint(row, "dim") for row in _text(thought)] if thought != "" else []
    if isinstance(block.get("text"), str):
        return _text(block["text"]) + _whole(block, paint)
    told = [line(kind, 20), line(block.get("media_type") or "", 60), line(block.get("ref") or "", 80)]
    return [paint(f"[{' '.join(filter(None, told))}]", "dim")]


def call(block: Mapping[str, Any], paint: Painter) -> str:
    """A call `{name, call_id, arguments?}` in one line."""
    arguments = block.get("arguments")
    shown = line(arguments, _ARGUMENTS) if isinstance(arguments, str) else ""
    return (
        f"{paint('→ ' + line(block.get('name'), 60), 'cyan')} {shown}  {paint(line(block.get('call_id'), 60), 'dim')}"
    )


def result(block: Mapping[str, Any], paint: Painter) -> Lines:
    """What came of a call, `{call_id, state, content}`, shortened."""
    state = line(block.get("state"), 20)
    if state in WORDS:
        still = "still running" if state == "running" else WORDS[state]
        return [f"{paint('… ' + still, 'cyan')}  {paint(line(block.get('call_id'), 60), 'dim')}"]
    out = [f"{paint('← ' + state, _STATE_STYLE.get(state, 'bold'))}  {paint(line(block.get('call_id'), 60), 'dim')}"]
    rows: Lines = []
    kept: Lines = []
    content = block.get("content")
    for inner in content if isinstance(content, list) else [content]:
        if isinstance(inner, Mapping) and isinstance(inner.get("text"), str):
            rows += _text(inner["text"])
            kept += _whole(inner, paint)
        else:
            rows += _block(inner, paint)
    if len(rows) > _RESULT_LINES:
        left = len(rows) - _RESULT_LINES + 1
        rows = [*rows[: _RESULT_LINES - 1], paint(f"… {left} more lines", "dim")]
    return out + _indented([*rows, *kept])


def _whole(block: Mapping[str, Any], paint: Painter) -> Lines:
    """Where the whole of a shortened text is kept."""
    if not isinstance(block.get("ref"), str):
        return []
    return [paint(f"[shortened; all {line(block.get('bytes'), 20)} bytes are in {line(block['ref'], 80)}]", "dim")]


def _text(text: object) -> Lines:
    return paragraph(text).rstrip("\n").split("\n") if isinstance(text, str) else [line(text, _ARGUMENTS)]


def _indented(rows: Iterable[str]) -> Lines:
    return [f"  {row}".rstrip() for row in rows]
