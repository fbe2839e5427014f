"""Text for people: harmless characters, columns, colours, sizes and times. No I/O.

Everything that a journal holds goes through `line` or `paragraph` before it reaches a terminal: a file must not be able
to move the cursor, change colours or reverse the direction of the text around it.
"""

import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

Painter = Callable[[str, str], str]

_ANSI: Final = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
    "alarm": "1;31",
}

#: C0 and C1 controls, DEL, bidirectional and invisible formatting characters, separators that split lines, surrogates.
_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
    "|[\U000e0000-\U000e0fff]"
)
#: Ids that programs draw by chance, as 32 hex digits or as a UUID. Not what is longer: that is a digest.
_DRAWN_ID: Final = re.compile(r"(?<![\w-])([0-9a-f]{8})(?:-?[0-9a-f]{4}){3}-?[0-9a-f]{12}(?![\w-])")
_ESCAPED: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def paint(text: str, style: str) -> str:
    """`text` in one of the styles, as ANSI codes."""
    return f"\x1b[{_ANSI[style]}m{text}\x1b[0m" if style and text else text


def plain(text: str, style: str) -> str:
    """The painter for files, pipes and people who set NO_COLOR."""
    return text


def line(text: object, width: int | None = None) -> str:
    """`text` as one harmless line, cut to `width` columns with an ellipsis."""
    raw = text if isinstance(text, str) else str(text)
    if width is not None and len(raw) > 4 * width:
        raw = raw[: 4 * width]
    safe = _UNSAFE.sub(_escape, raw)
    if width is None or columns(safe) <= width:
        return safe
    return _cut(safe, width - 1) + "…"


def paragraph(text: str) -> str:
    """`text` harmless, with its line breaks and tabs kept as layout."""
    return "\n".join(line(row.expandtabs(4)) for row in text.replace("\r\n", "\n").split("\n"))


def shorten_ids(text: str) -> str:
    """`text` with ids that were drawn by chance cut to eight digits, which tell them apart well enough."""
    return _DRAWN_ID.sub(r"\1…", text)


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    code = ord(char)
    return _ESCAPED.get(char) or (
        f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    )


def columns(text: str) -> int:
    """How many columns of a terminal `text` takes."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)


def _cut(text: str, width: int) -> str:
    if text.isascii():
        return text[:width]
    taken, used = 0, 0
    for char in text:
        used += columns(char)
        if used > width:
            break
        taken += 1
    return text[:taken]


def table(
    rows: Iterable[Sequence[str]],
    paint: Painter,
    *,
    head: Sequence[str] | None = None,
    styles: Callable[[int, str], str] = lambda column, cell: "",
    right: frozenset[int] = frozenset(),
    indent: str = "  ",
) -> list[str]:
    """Aligned lines of `rows` (cells are harmless already). `styles(column, cell)` names a cell's style or is empty."""
    body = [list(row) for row in rows]
    everything = [list(head), *body] if head else body
    if not everything:
        return []
    widths = [max(columns(row[i]) for row in everything) for i in range(len(everything[0]))]
    out = []
    for number, row in enumerate(everything):
        cells = []
        for i, cell in enumerate(row):
            blanks = " " * (widths[i] - columns(cell))
            shown = paint(cell, "dim" if head and number == 0 else styles(i, cell))
            cells.append(blanks + shown if i in right else shown + blanks)
        out.append((indent + "  ".join(cells)).rstrip())
    return out


def size(count: int) -> str:
    """Bytes as people say them: `512 B`, `4.2 KiB`, `1.1 GiB`."""
    if count < 1024:
        return f"{count} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 1024:
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} TiB"


def moment(ms: object) -> str:
    """Unix milliseconds as `2026-09-21 14:13:20Z`; what is no time within the years 1 to 9999 is shown as it is. 0 is
    the time of what has none, as the messages of an array.
    """
    if not isinstance(ms, int) or isinstance(ms, bool) or ms == 0:
        return "-"
    if not -62_135_596_800_000 <= ms < 253_402_300_800_000:
        return str(ms)
    parts = time.gmtime(ms // 1000)
    return f"{parts[0]:04d}-{parts[1]:02d}-{parts[2]:02d} {parts[3]:02d}:{parts[4]:02d}:{parts[5]:02d}Z"


def count(number: int, noun: str) -> str:
    """`1 event`, `2 events`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
