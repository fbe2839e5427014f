"""A format of our own for tests of what is made of records: a line a record, by letters."""

import json
from collections.abc import Iterator
from typing import Any

from maka.journal.foreign import records
from maka.journal.foreign.findings import Report
from maka.journal.foreign.lines import objects
from maka.journal.foreign.values import said
from maka.journal.source import Source

FORMAT = "played"


def prompt(turn: str, text: str, **more: Any) -> dict[str, Any]:
    return {"k": "prompt", "turn": turn, "text": text, **more}


def answer(text: str, *calls: str, **more: Any) -> dict[str, Any]:
    return {"k": "answer", "text": text, "calls": calls, **more}


def result(call_id: str, text: str = "done", **more: Any) -> dict[str, Any]:
    return {"k": "result", "call_id": call_id, "text": text, **more}


def branch(thread: str, after: str | None) -> dict[str, Any]:
    return {"k": "branch", "thread": thread, "after": after}


def child(thread: str, call_id: str) -> dict[str, Any]:
    return {"k": "child", "thread": thread, "call_id": call_id}


def written(*lines: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def read(source: Source, report: Report, name: str) -> Iterator[records.Record]:
    first = True
    for line in objects(source, report):
        value = line.value
        at: dict[str, Any] = {
            "place": line.place,
            "time": 1_000 + line.place.line,
            "thread": value.get("thread", records.MAIN),
        }
        if first:
            session_id = value.get("session_id", "played-1")
            yield records.Begin(**{**at, "thread": records.MAIN}, session_id=session_id, cwd="/w", model="m")
            first = False
        match value["k"]:
            case "prompt":
                yield records.Prompt(**at, turn=value["turn"], content=said(value["text"]), message_id=value["turn"])
            case "answer":
                calls = [
                    {"kind": "tool_call", "call_id": call_id, "name": "look", "arguments": value.get("arguments", "{}")}
                    for call_id in value["calls"]
                ]
                yield records.Response(**at, content=[*said(value["text"]), *calls])
            case "result":
                image = (
                    [{"kind": "image", "media_type": "image/png", "data": value["image"]}] if "image" in value else []
                )
                yield records.Result(**at, call_id=value["call_id"], content=[*said(value["text"]), *image])
            case "branch":
                yield records.Begin(**at, kind="branch", parent=records.MAIN, after=value["after"])
            case "child":
                yield records.Begin(**at, kind="subagent", parent=records.MAIN, call_id=value["call_id"])
            case "kept":
                yield records.Kept(**at, type="kept", value=value)
            case "compact":
                yield records.Compaction(**at, summary=said(value["summary"]), kept_from=value["kept_from"])
            case "end":
                yield records.End(**at, kind="completed")
