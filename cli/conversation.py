"""A conversation as a person reads it: who said what, what was called and what came of it. No I/O."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from .text import Painter, line, paragraph

Lines = list[str]

#: Columns of arguments in a call, and lines of a result, before they are shortened.
_ARGUMENTS: Final = 100
_RESULT_LINES: Final = 12

_ROLE_STYLE: Final = {"user": "green", "assistant": "blue", "tool": "magenta"}
_STATE_STYLE: Final = {
    "ok": "green",
    "error": "red",
    "cancelled": "yellow",
    "unknown": "yellow",
    "not_started": "yellow",
}


def messages(history: Iterable[Mapping[str, Any]], paint: Painter) -> Lines:
    """Provider history, message by message."""
    out: Lines = []
    for message in history:
        role = line(message.get("role"), 20)
        out += ["", paint(role, _ROLE_STYLE.get(role, "bold"))]
        content = message.get("content")
        for block in content if isinstance(content, list) else []:
            out += _indented(_block(block, paint))
    return out[1:]


def _block(block: Any, paint: Painter) -> Lines:
    if not isinstance(block, Mapping):
        return [line(block, _ARGUMENTS)]
    kind = block.get("kind")
    if kind == "tool_call":
        return [_call(block, paint)]
    if kind == "tool_result":
        return _result(block, paint)
    if kind == "thinking":
        return [paint(row, "dim") for row in _text(block.get("text"))]
    if isinstance(block.get("text"), str):
        return _text(block["text"]) + _whole(block, paint)
    return [
        paint(f"[{line(kind, 20)} {line(block.get('media_type') or '', 60)} {line(block.get('ref') or '', 80)}]", "dim")
    ]


def _call(block: Mapping[str, Any], paint: Painter) -> str:
    arguments = block.get("arguments")
    shown = line(arguments, _ARGUMENTS) if isinstance(arguments, str) else ""
    return (
        f"{paint('→ ' + line(block.get('name'), 60), 'cyan')} {shown}  {paint(line(block.get('call_id'), 60), 'dim')}"
    )


def _result(block: Mapping[str, Any], paint: Painter) -> Lines:
    state = line(block.get("state"), 20)
    out = [f"{paint('← ' + state, _STATE_STYLE.get(state, 'bold'))}  {paint(line(block.get('call_id'), 60), 'dim')}"]
    rows: Lines = []
    content = block.get("content")
    for inner in content if isinstance(content, list) else [content]:
        rows += _block(inner, paint)
    if len(rows) > _RESULT_LINES:
        left = len(rows) - _RESULT_LINES + 1
        rows = [*rows[: _RESULT_LINES - 1], paint(f"… {left} more lines", "dim")]
    return out + _indented(rows)


def _whole(block: Mapping[str, Any], paint: Painter) -> Lines:
    """Where the whole of a shortened text is kept."""
    if not isinstance(block.get("ref"), str):
        return []
    return [paint(f"[shortened; all {line(block.get('bytes'), 20)} bytes are in {line(block['ref'], 80)}]", "dim")]


def _text(text: object) -> Lines:
    return paragraph(text).split("\n") if isinstance(text, str) else [line(text, _ARGUMENTS)]


def _indented(rows: Iterable[str]) -> Lines:
    return [f"  {row}".rstrip() for row in rows]
