"""A conversation → a document that people read: what was said as text, what was called folded. No I/O.

Whatever a journal holds stays where it is put. What was said stands in a quotation, which ends every list and fence
that was opened in it; what could act there (tags, images from elsewhere) stands in a fence longer than any in it.
"""

import html
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

#: Tags, images that a viewer would fetch, and definitions, which are not shown.
_ACTIVE: Final = re.compile(r"<[A-Za-z/!?]|!\[|\]:")
#: What moves a cursor or the direction of writing; halves of characters. Line breaks and tabs are layout.
_UNSAFE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_MARKUP: Final = re.compile(r"([\\`*_\[\]<>&#~|!])")
_RUN: Final = re.compile("`+")
_BREAK: Final = re.compile("\r\n?")

#: What the provider history makes of an entry → what is said beside it.
_MARKS: Final = {
    "hidden": "not shown to the model",
    "unanswered": "no result is on record",
    "interrupted": "cut off",
    "outcome: user": "unknown at first; stated by a person",
    "outcome: reconciled": "unknown at first; found out by the tool",
    "outcome: rerun": "unknown at first; the call was made again",
    "outcome: late": "unknown at first; it came late",
    "duplicate result": "a second result of one call, not shown to the model",
    "without request": "a result that no call asked for",
    "from the admission": "restored from the admission",
    "summary": "a summary, given to the model in place of what stands before",
}
_NOTES: Final = {"note": "Note", "gap": "Lost here"}


def markdown(
    entries: Iterable[Mapping[str, Any]],
    title: str,
    facts: Mapping[str, object] | None = None,
    turns: Iterable[Mapping[str, Any]] = (),
) -> Iterator[str]:
    """The document in pieces, each of whole lines; ``"".join`` gives all of it. Never raises for what entries hold.

    ``entries``: as ``History.annotated`` gives them. ``facts``: what is listed below the title, by its name.
    ``turns``: ``{"turn_id", "turn"?, "status"?, "begun"?}``, ``begun`` in Unix milliseconds.
    """
    yield f"# {_escaped(title) or 'A session'}\n"
    told = [f"- {_escaped(name)}: {_code(value)}\n" for name, value in (facts or {}).items() if value is not None]
    if told:
        yield "\n" + "".join(told)
    standing = {turn["turn_id"]: turn for turn in turns if isinstance(turn.get("turn_id"), str)}
    at: object = None
    number = 0
    for entry in entries:
        turn_id = entry.get("turn_id")
        if turn_id != at and isinstance(turn_id, str) and turn_id:
            at, number = turn_id, number + 1
            yield _heading(standing.get(turn_id, {}), number)
        yield from _entry(entry)


def _heading(turn: Mapping[str, Any], number: int) -> str:
    told = [f"Turn {turn['turn'] if type(turn.get('turn')) is int else number}"]
    if isinstance(turn.get("status"), str) and turn["status"] != "completed":
        told.append(_escaped(turn["status"]))
    begun = moment(turn.get("begun"))
    if begun is not None:
        told.append(begun)
    return f"\n## {' · '.join(told)}\n"


def moment(ms: object) -> str | None:
    """Unix milliseconds as ``2026-09-21 14:13:20 UTC``; None for what is no time of the years 1 to 9999, and for
    0, which stands where no time is known.
    """
    if type(ms) is not int or ms == 0 or not -62_135_596_800_000 <= ms < 253_402_300_800_000:
        return None
    at = time.gmtime(ms // 1000)
    return f"{at[0]:04d}-{at[1]:02d}-{at[2]:02d} {at[3]:02d}:{at[4]:02d}:{at[5]:02d} UTC"


def _entry(entry: Mapping[str, Any]) -> Iterator[str]:
    role, mark, content = entry.get("role"), entry.get("mark"), entry.get("content")
    blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    said = f" · *{_marked(mark)}*" if isinstance(mark, str) and mark.strip() else ""
    if role == "tool":
        for block in blocks:
            yield _result(block, mark)
        return
    if role in _NOTES:
        yield f"\n**{_NOTES[role]}**{said}\n"
    elif role == "user":
        yield f"\n### User{said}\n"
    else:
        yield f"\n### Assistant{said}\n"
    for block in blocks:
        yield _block(block, mark == "hidden")


def _marked(mark: str) -> str:
    return _MARKS.get(mark) or _escaped(mark)


def _block(block: Mapping[str, Any], hidden: bool) -> str:
    kind, text = block.get("kind"), block.get("text")
    if kind == "tool_call":
        name, arguments = block.get("name"), block.get("arguments")
        head = f"→ {_line(name) or 'a call'} ({_line(block.get('call_id'))})"
        return _folded(head, _fenced(arguments if isinstance(arguments, str) else "", "json"))
    if isinstance(text, str) and kind == "thinking":
        return _folded("Thinking", _fenced(text)) if text.strip() else ""
    shown = f"{_prose(text)}{_whole(block)}" if isinstance(text, str) else f"\n*{_escaped(_attached(block))}*\n"
    return _folded("Not shown to the model", shown) if hidden else shown


def _result(block: Mapping[str, Any], mark: object) -> str:
    content = block.get("content")
    shown = []
    for inner in content if isinstance(content, list) else []:
        if isinstance(inner, dict):
            text = inner.get("text")
            shown.append(
                _fenced(text) + _whole(inner) if isinstance(text, str) else f"\n*{_escaped(_attached(inner))}*\n"
            )
    head = f"← {_line(block.get('state')) or 'a result'} ({_line(block.get('call_id'))})"
    if isinstance(mark, str):
        head += f" · {_MARKS.get(mark) or _line(mark)}"
    return _folded(head, "".join(shown) or "\n*(no output)*\n")


def _whole(block: Mapping[str, Any]) -> str:
    if not isinstance(block.get("ref"), str):
        return ""
    return f"\n*shortened; the whole text is the content {_code(block['ref'])}*\n"


def _attached(block: Mapping[str, Any]) -> str:
    told = [_line(block[key]) for key in ("name", "media_type", "ref") if isinstance(block.get(key), str)]
    return f"{_line(block.get('kind')) or 'something'}: {', '.join(told) or 'its content is not shown'}"


# ---------------------------------------------------------------- what stays where it is put


def _harmless(text: str) -> str:
    return _UNSAFE.sub(_escape, _BREAK.sub("\n", text))


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _line(value: object) -> str:
    """A value as one line of plain text."""
    return " ".join(_harmless(value if isinstance(value, str) else "").split())


def _escaped(value: object) -> str:
    return _MARKUP.sub(r"\\\1", _line(value if isinstance(value, str) else str(value)))


def _fence(text: str, least: int) -> str:
    return "`" * max(least, 1 + max(map(len, _RUN.findall(text)), default=0))


def _code(value: object) -> str:
    text = _line(value if isinstance(value, str) else str(value)) or " "
    ticks = _fence(text, 1)
    return f"{ticks} {text} {ticks}" if text.startswith("`") or text.endswith("`") else f"{ticks}{text}{ticks}"


def _fenced(text: str, language: str = "") -> str:
    shown = _harmless(text)
    fence = _fence(shown, 3)
    end = "" if shown.endswith("\n") or not shown else "\n"
    return f"\n{fence}{language}\n{shown}{end}{fence}\n"


def _prose(text: str) -> str:
    if not text.strip():
        return ""
    if _ACTIVE.search(text):
        return _fenced(text)
    rows = _harmless(text).strip("\n").split("\n")
    return "\n" + "".join(f"> {row}".rstrip() + "\n" for row in rows)


def _folded(head: str, content: str) -> str:
    summary = html.escape(head, quote=False)
    return f"\n<details>\n<summary>{summary}</summary>\n{content}\n</details>\n"
