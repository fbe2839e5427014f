"""Session files of other tools, small, and in our own words."""

import json
from typing import Any

#: The id of ``claude``'s session.
CLAUDE = "0a0a0a0a-0000-4000-8000-00000000c0de"


def lines(*values: Any) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def claude(*, further: bool = False) -> bytes:
    """Two turns, of which the second stands in a call; ``further``: it went on."""
    count = 0

    def line(type_: str, uuid: str, parent: str | None, message: Any) -> dict[str, Any]:
        nonlocal count
        count += 1
        base = {"uuid": uuid, "parentUuid": parent, "isSidechain": False, "sessionId": CLAUDE, "cwd": "/w"}
        return {"type": type_, **base, "timestamp": f"2026-02-01T10:00:{count:02}.000Z", "message": message}

    def said(uuid: str, parent: str | None, content: Any) -> dict[str, Any]:
        return line("user", uuid, parent, {"role": "user", "content": content})

    def answered(uuid: str, parent: str, response: str, block: Any) -> dict[str, Any]:
        usage = {"input_tokens": 10, "output_tokens": 5}
        message = {"id": response, "role": "assistant", "model": "m1", "content": [block], "usage": usage}
        return line("assistant", uuid, parent, message)

    def used(call_id: str) -> dict[str, Any]:
        return {"type": "tool_use", "id": call_id, "name": "Bash", "input": {"command": "ls"}}

    def result(uuid: str, parent: str, call_id: str) -> dict[str, Any]:
        return said(uuid, parent, [{"type": "tool_result", "tool_use_id": call_id, "content": "a file"}])

    out = [
        said("u1", None, "list files"),
        answered("a1", "u1", "r1", used("c1")),
        result("t1", "a1", "c1"),
        answered("a2", "t1", "r2", {"type": "text", "text": "one file"}),
        said("u2", "a2", "again"),
        answered("a3", "u2", "r3", used("c2")),
    ]
    if further:
        out += [
            result("t2", "a3", "c2"),
            answered("a4", "t2", "r4", {"type": "text", "text": "the last answer"}),
        ]
    return lines(*out)
