"""A log of DeepSeek Harness, line by line, in our own words."""

import json
from typing import Any

import attrs


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def thought(words: str) -> dict[str, Any]:
    return {"type": "reasoning", "text": words}


def wants(call_id: str, name: str = "look", arguments: str = '{"at": 1}') -> dict[str, Any]:
    return {"type": "tool-call", "id": call_id, "name": name, "arguments": arguments}


@attrs.define
class Log:
    """Numbers its events; what is put with a ``seq`` goes on from that."""

    version: int = 0
    header: dict[str, Any] = attrs.Factory(dict)
    lines: list[dict[str, Any]] = attrs.Factory(list)
    seq: int = 0
    turn: int = 0

    def __attrs_post_init__(self) -> None:
        head = {"type": "session", "version": self.version, "id": "s1", "createdAt": 1_000, "cwd": "/w"}
        self.lines.append({**head, "delegationDepth": 0, **self.header})

    def put(self, type_: str, data: Any = None, *, seq: int | None = None, **more: Any) -> int:
        number = self.seq if seq is None else seq
        data = {} if data is None else data
        self.lines.append({"type": type_, "seq": number, "time": 2_000 + len(self.lines), "data": data, **more})
        self.seq = number + 1
        return number

    def row(self, type_: str, pieces: list[str], **more: Any) -> None:
        key = "args" if type_ == "tool-call-chunks" else "texts"
        data = {"turn": 1, "step": 1, "index": 0, "dt": [1] * (len(pieces) - 1), key: pieces, **more}
        self.lines.append({"type": type_, "seq0": self.seq, "time0": 2_000 + len(self.lines), "data": data})
        self.seq += len(pieces)

    def start(self, *, seq: int | None = None) -> int:
        self.turn += 1
        number = self.put("turn/start", {"turn": self.turn}, seq=seq)
        self.put("step/start", {"turn": self.turn, "step": 1})
        return number

    def user(self, words: str, kind: str = "user", id: str | None = None, **more: Any) -> int:
        message = {"id": id or f"m{self.seq}", "role": "user", "content": [text(words)], "source": {"kind": kind}}
        return self.put("user/message", message, **{"surfaceOp": "append", **more})

    def answer(self, *blocks: dict[str, Any], data: Any = None, id: str | None = None, **more: Any) -> int:
        source = {"kind": "model", "provider": "p", "model": "m"}
        message = {"id": id or f"m{self.seq}", "role": "assistant", "content": list(blocks), "source": source}
        given = {"turn": self.turn, "step": 1, "message": message, **(data or {})}
        return self.put("assistant/message", given, **{"surfaceOp": "append", "sourceEventSeqs": [], **more})

    def call(self, call_id: str, name: str = "look", arguments: str = '{"at": 1}') -> int:
        data = {"turn": self.turn, "step": 1, "callId": call_id, "name": name, "arguments": arguments}
        return self.put("tool/call", data)

    def result(self, call_id: str, words: str = "seen", code: str | None = None, **more: Any) -> int:
        block = {"type": "tool-result", "toolCallId": call_id, "content": [text(words)], "isError": code is not None}
        source = {"kind": "tool", "callId": call_id}
        message = {"id": f"m{self.seq}", "role": "user", "content": [block], "source": source}
        data = {"turn": self.turn, "step": 1, "message": message}
        if code is not None:
            data["error"] = {"name": "Error", "code": code}
        return self.put("tool/result", data, **{"surfaceOp": "append", **more})

    def chunk(self, **chunk: Any) -> int:
        return self.put("assistant/chunk", {"turn": self.turn, "step": 1, "chunk": chunk})

    def end(self, kind: str = "completed", **more: Any) -> int:
        self.put("step/end", {"turn": self.turn, "step": 1})
        return self.put("turn/end", {"turn": self.turn, "reason": {"kind": kind, **more}})

    def said(self, prompt: str, answer: str) -> None:
        """One whole turn."""
        self.start()
        self.user(prompt)
        self.answer(text(answer))
        self.end()

    def bytes(self) -> bytes:
        return b"".join(json.dumps(line).encode() + b"\n" for line in self.lines)
