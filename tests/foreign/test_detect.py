"""Which tool wrote a file: the first line that can be read tells it."""

import json
from typing import Any

import pytest

from maka.journal.foreign.detect import detect
from maka.journal.source import BytesSource
from support.builder import Builder

TIME = "2026-02-01T10:00:00.000Z"
MESSAGE = {"role": "user", "content": "a"}
FIRST: list[tuple[dict[str, Any], str]] = [
    ({"type": "session", "version": 0, "id": "s", "createdAt": 1770000000000}, "dsh"),
    ({"type": "session", "version": 4, "createdAt": 1770000000000}, "dsh"),
    ({"type": "session", "id": "s", "timestamp": TIME, "cwd": "/w"}, "pi"),
    ({"type": "session", "version": 2, "id": "s", "timestamp": TIME}, "pi"),
    ({"type": "session", "version": 3, "id": "s", "timestamp": TIME}, "pi"),
    ({"type": "title", "v": 1, "title": "t", "pad": " " * 200}, "pi"),
    ({"timestamp": TIME, "type": "session_meta", "payload": {"id": "s"}}, "codex"),
    ({"timestamp": TIME, "type": "response_item", "payload": {"type": "message"}}, "codex"),
    ({"timestamp": TIME, "type": "event_msg", "payload": {"type": "x"}}, "codex"),
    ({"timestamp": TIME, "type": "turn_context", "payload": {}}, "codex"),
    ({"id": "s", "timestamp": TIME, "instructions": None}, "codex"),
    ({"parentUuid": None, "type": "user", "message": MESSAGE}, "claude-code"),
    ({"sessionId": "s", "type": "future"}, "claude-code"),
    ({"type": "summary", "summary": "s", "leafUuid": "u"}, "claude-code"),
    ({"type": "file-history-snapshot", "messageId": "m"}, "claude-code"),
    ({"type": "queue-operation", "operation": "enqueue", "sessionId": "s"}, "claude-code"),
    ({"type": "progress", "parentUuid": None}, "claude-code"),
    ({"type": "attachment", "sessionId": "s"}, "claude-code"),
    ({"type": "permission-mode", "permissionMode": "default"}, "claude-code"),
    ({"type": "mode", "mode": "normal"}, "claude-code"),
    ({"type": "last-prompt", "lastPrompt": "a"}, "claude-code"),
    ({"type": "custom-title", "customTitle": "a"}, "claude-code"),
]


def told(*lines: Any, before: bytes = b"", name: str = "") -> str | None:
    return detect(BytesSource(before + b"".join(json.dumps(line).encode() + b"\n" for line in lines)), name)


@pytest.mark.parametrize(("first", "format"), FIRST, ids=[str(first)[:60] for first, _ in FIRST])
def test_the_first_line_tells(first: dict[str, Any], format: str) -> None:
    assert told(first) == format
    # So it does behind bytes that are none, and whatever comes later.
    assert told(first, {"type": "session", "version": 1, "createdAt": 5}, before=b"\xef\xbb\xbf") == format
    assert told(first, before=b"not json\n\n[1]\n3\n") == format


@pytest.mark.parametrize(
    "line",
    [
        {"type": "message", "timestamp": TIME, "message": MESSAGE},
        {"type": "model_change", "id": "e1", "parentId": None, "timestamp": TIME},
    ],
)
def test_a_session_of_pi_that_has_lost_its_header(line: dict[str, Any]) -> None:
    assert told(line, before=b'{"type":"session","ver\n') == "pi"


def test_a_journal_of_our_own() -> None:
    assert detect(BytesSource(b"".join(line + b"\n" for line in Builder().lines))) == "maka"


def test_a_compressed_file() -> None:
    assert detect(BytesSource(b"\x28\xb5\x2f\xfd\x00")) == "dsh"


def test_a_file_without_bytes_is_told_by_its_name_alone() -> None:
    assert told(name="rollout-2026-02-01T10-00-00-abc.jsonl") == "empty"
    assert told(name="notes.txt") is None
    assert told({"any": "thing"}, name="rollout-2026-02-01T10-00-00-abc.jsonl") is None


@pytest.mark.parametrize(
    "data",
    [b"\n\n", b"hello\n", b"\x00" * 100, b"{}\n", b'{"type":"message"}\n', b'{"type":7,"timestamp":[]}\n', b"[]", b"{"],
)
def test_anything_else_is_none_of_these(data: bytes) -> None:
    assert detect(BytesSource(data)) is None


def test_only_so_many_lines_are_looked_at() -> None:
    session = FIRST[2][0]
    assert told(*[{"odd": 1}] * 20, session) == "pi"
    assert told(*[{"odd": 1}] * 2_000, session) is None
