"""Entries of a pi session that do not hold what they must: told, read as far as they go, and kept."""

import copy
from typing import Any

import pytest

from support.foreign import Folded, folded


def entry(number: int, type_: str, **more: Any) -> dict[str, Any]:
    parent = None if number == 1 else f"e{number - 1}"
    return {"type": type_, "id": f"e{number}", "parentId": parent, "timestamp": "2026-03-01T10:00:00.000Z", **more}


def said(role: str, **more: Any) -> dict[str, Any]:
    return {"message": {"role": role, **more}}


CALL = {"type": "toolCall", "id": "c1", "name": "bash", "arguments": {}}
THOUGHT = {"type": "thinking", "thinking": "hm", "thinkingSignature": "sig"}
HIDDEN = {"type": "thinking", "thinking": "", "thinkingSignature": "sig", "redacted": True}
ANSWER = {
    "content": [dict(CALL), dict(THOUGHT), dict(HIDDEN)],
    "stopReason": "toolUse",
    "usage": {"input": 1, "output": 2},
}
HEAD = {"type": "session", "version": 3, "id": "s-1", "timestamp": "2026-03-01T10:00:00.000Z", "cwd": "/w"}
#: One of each kind; the first is the header.
ENTRIES = [
    HEAD,
    entry(1, "message", **said("user", content="a")),
    entry(2, "message", **said("assistant", **ANSWER)),
    entry(3, "message", **said("toolResult", toolCallId="c1", toolName="bash", content="out", isError=False)),
    entry(4, "message", **said("bashExecution", command="ls", output="b")),
    entry(5, "message", **said("pythonExecution", code="1", output="1")),
    entry(6, "message", **said("fileMention", files=[])),
    entry(7, "custom_message", content="hint"),
    entry(8, "compaction", summary="short", firstKeptEntryId="e1"),
    entry(9, "branch_summary", summary="left", fromId="e1"),
]


def kept(found: Folded) -> list[tuple[int, Any]]:
    return [(data["line"], data["value"]) for data in found.main.of("x-foreign/line")][1:]


def spoiled(number: int, path: str, value: Any) -> list[dict[str, Any]]:
    lines = copy.deepcopy(ENTRIES)
    inner: Any = lines[number]
    *way, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    for key in way:
        inner = inner[key]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return lines


def test_nothing_is_told_of_entries_that_have_all() -> None:
    found = folded(ENTRIES, "pi")
    assert (found.found("misfit"), kept(found)) == ([], [])


@pytest.mark.parametrize("value", [..., None, 7])
@pytest.mark.parametrize(
    ("number", "path"),
    [
        (1, "message.content"),
        (2, "message.content"),
        (2, "message.content.0.name"),
        (2, "message.content.0.arguments"),
        (2, "message.content.1.thinking"),
        (2, "message.content.2.thinkingSignature"),
        (3, "message.content"),
        (4, "message.command"),
        (4, "message.output"),
        (5, "message.code"),
        (6, "message.files"),
        (7, "content"),
        (8, "summary"),
        (9, "summary"),
    ],
)
def test_a_value_that_must_be_there_is_missed(number: int, path: str, value: Any) -> None:
    if value == 7 and path.endswith("arguments"):
        value = ...  # a number is as good as what stands there
    lines = spoiled(number, path, value)
    found = folded(lines, "pi")
    assert found.found("misfit") == [(number + 1, None)]
    assert kept(found) == [(number + 1, lines[number])]


@pytest.mark.parametrize(
    ("number", "path", "value"),
    [
        (2, "message.usage", [5]),
        (2, "message.usage.input", "1"),
        (2, "message.usage.cacheRead", -1),
        (2, "message.stopReason", {"kind": "stop"}),
        (2, "message.content.1.thinkingSignature", ["sig"]),
        (3, "message.isError", "true"),
    ],
)
def test_a_value_that_need_not_be_there_must_be_of_its_kind(number: int, path: str, value: Any) -> None:
    lines = spoiled(number, path, value)
    found = folded(lines, "pi")
    assert found.found("misfit") == [(number + 1, None)]
    assert kept(found) == [(number + 1, lines[number])]


def test_what_many_entries_lack_is_told_once_and_each_is_kept() -> None:
    lines = [HEAD, *(entry(number, "message", **said("user")) for number in range(1, 6))]
    found = folded(lines, "pi")
    assert (found.found("misfit"), kept(found)) == ([(2, None)], [*enumerate(lines[1:], 2)])
