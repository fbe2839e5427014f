"""Which tool wrote a file: told by the first line that holds an object, never by the name. No I/O of its own."""

import re
from itertools import islice
from typing import Any, Final

from ..proof import MAX_LINE
from ..source import Part, Source
from . import arrays
from .findings import Report
from .lines import objects

ZSTD: Final = b"\x28\xb5\x2f\xfd"
#: Lines that are looked at, and bytes.
_LINES: Final = 50
_BYTES: Final = MAX_LINE + (1 << 20)
_CLAUDE_KEYS: Final = frozenset({"parentUuid", "sessionId", "leafUuid"})
#: Lines of Claude Code that have none of these.
_CLAUDE_TYPES: Final = frozenset(
    {
        "ai-title", "agent-name", "custom-title", "file-history-snapshot", "last-prompt", "mode", "permission-mode",
        "pr-link", "queue-operation", "started",
    }
)  # fmt: skip
_JOURNAL: Final = frozenset({"seq", "ts", "type", "data", "sum"})
#: How files of these tools are called: of one without bytes there is nothing else to go by.
_CALLED: Final = re.compile(
    r"rollout-|agent-|codex|claude|dsh|omp|session(\.v\d+)?\.jsonl|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.I
)
_CODEX_ITEMS: Final = frozenset({"event_msg", "response_item", "turn_context", "compacted"})


def detect(source: Source, name: str = "") -> str | None:
    """``claude-code``, ``codex``, ``dsh`` or ``pi``; of an array of messages ``anthropic``, ``openai-chat`` or
    ``openai-responses``; ``maka`` for a journal; None: it is none of these. ``empty`` for a file without bytes whose
    ``name`` is one that these tools give.
    """
    if source.size == 0:
        return "empty" if _CALLED.search(name) else None
    if source.read(0, len(ZSTD)) == ZSTD:
        return "dsh"
    for line in islice(objects(Part(source, min(source.size, _BYTES)), Report()), _LINES):
        if (format := _format_of(line.value)) is not None:
            return format
    return arrays.format_of(source)


def _format_of(value: dict[str, Any]) -> str | None:
    type_ = value.get("type")
    if value.keys() >= _JOURNAL:
        return "maka"
    if type_ == "session":
        return "dsh" if value.get("version").__class__ is int and "createdAt" in value else "pi"
    if type_ == "title" and not _CLAUDE_KEYS & value.keys():
        return "pi"
    if "timestamp" in value and "payload" in value and (type_ == "session_meta" or type_ in _CODEX_ITEMS):
        return "codex"
    if type_ is None and {"id", "timestamp"} <= value.keys() and ("instructions" in value or "git" in value):
        return "codex"
    if _CLAUDE_KEYS & value.keys() or (isinstance(type_, str) and type_ in _CLAUDE_TYPES):
        return "claude-code"
    if "timestamp" in value and (
        "parentId" in value or (type_ == "message" and isinstance(value.get("message"), dict))
    ):
        # Its header is lost.
        return "pi"
    return None
