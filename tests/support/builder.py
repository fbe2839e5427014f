"""Builds journals by the format document alone, so that a test cannot agree with a bug."""

import hashlib
import json
from pathlib import Path
from typing import Any, Self

ZERO = "0" * 32


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def seal(prev: str, event: dict[str, Any]) -> tuple[bytes, str]:
    """The line (without LF) and its sum."""
    body = json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")[:-1]
    total = hashlib.sha256(prev.encode() + body).hexdigest()[:32]
    return body + b',"sum":"%s"}' % total.encode(), total


class Builder:
    """A journal under construction. ``lines`` are without LF; each method returns the builder, ``add`` a number."""

    def __init__(self, session_id: str = "s1", **header: Any) -> None:
        self.session_id = session_id
        self.lines: list[bytes] = []
        self.prev = header["parent"]["sum"] if "parent" in header else ZERO
        self.seq = 0
        self.ts = 1_790_000_000_000
        self.turn = 0
        self.step_number = 0
        self.requested = False
        data = {
            "format": 1,
            "session_id": session_id,
            "created_by": {"name": "maka", "version": "0"},
            "cwd": "/tmp",
            "backend": "fake",
            "model": "fake-model",
            "permission_mode": "ask",
            "tool_boundary": "t1_after_preflight_v1",
            **header,
        }
        self.add("session/header", {key: value for key, value in data.items() if value is not None})

    def add(
        self,
        type_: str,
        data: dict[str, Any],
        *,
        more: int = 0,
        ignorable: bool = False,
        ts: int | None = None,
        seq: int | None = None,
    ) -> int:
        self.ts += 10
        event: dict[str, Any] = {"seq": self.seq if seq is None else seq, "ts": self.ts if ts is None else ts}
        event |= {"type": type_, "data": data}
        if ignorable:
            event["ignorable"] = True
        if more:
            event["more"] = more
        line, self.prev = seal(self.prev, event)
        self.lines.append(line)
        self.seq = event["seq"] + 1
        return int(event["seq"])

    @property
    def ids(self) -> dict[str, Any]:
        return {"turn_id": f"t{self.turn}", "run_id": f"r{self.turn}"}

    def run(self, run_id: str, turn_id: str, **more: Any) -> dict[str, Any]:
        return {
            "run_id": run_id,
            "invocation_id": f"i-{run_id}",
            "turn_id": turn_id,
            "backend": "fake",
            "model": "fake-model",
            "cwd": "/tmp",
            "permission_mode": "ask",
            "created_at": self.ts,
            "root": {"kind": "user"},
            **more,
        }

    def start(self, text: str = "hi") -> Self:
        self.turn += 1
        run = self.run(f"r{self.turn}", f"t{self.turn}")
        start = {**self.ids, "invocation_id": run["invocation_id"], "turn": self.turn, "run": run}
        self.add("turn/start", start, more=1)
        return self.user(text)

    def user(self, text: str, kind: str = "user", message_id: str | None = None) -> Self:
        message = {"message_id": message_id or f"m{self.turn}-{self.seq}", **self.ids}
        message |= {"content": [{"kind": "text", "text": text}], "source": {"kind": kind}}
        self.add("user/message", message)
        return self

    def step(self, number: int = 1) -> Self:
        self.step_number = number
        self.add("step/start", {**self.ids, "step": number})
        if number == 1:
            reason = "resume" if self.requested else "initial"
            header = {"provider": "fake", "model": "fake-model"}
            self.add("request/header", {**self.ids, "step": number, "reason": reason, "header": header})
            self.requested = True
        return self

    def delta(self, text: str, message_id: str = "d", kind: str = "text", index: int = 0) -> Self:
        data = {"run_id": self.ids["run_id"], "step": self.step_number, "message_id": message_id}
        self.add("assistant/delta", {**data, "index": index, "kind": kind, "text": text}, ignorable=True)
        return self

    def says(self, text: str = "ok", calls: tuple[str, ...] | list[str] = (), arguments: str = "{}") -> Self:
        content: list[dict[str, Any]] = [{"kind": "text", "text": text}] if text else []
        content += [{"kind": "tool_call", "call_id": call, "name": "tool", "arguments": arguments} for call in calls]
        message = {**self.ids, "step": self.step_number, "message_id": f"a{self.turn}-{self.step_number}"}
        self.add(
            "assistant/message", {**message, "content": content, "stop_reason": "tool_use" if calls else "end_turn"}
        )
        return self

    def call(self, call_id: str, arguments: str = "{}", recovery: str = "never", name: str = "tool") -> int:
        data = {**self.ids, "step": self.step_number, "call_id": call_id, "operation_id": f"op-{self.turn}-{call_id}"}
        data |= {"name": name, "arguments": arguments, "arguments_digest": digest(arguments), "recovery": recovery}
        return self.add("tool/call", data)

    def result(self, call_id: str, text: str = "done", state: str = "ok", operation_id: str | None = None) -> Self:
        data = {**self.ids, "step": self.step_number, "call_id": call_id}
        data |= {"operation_id": operation_id or f"op-{self.turn}-{call_id}", "state": state}
        self.add("tool/result", {**data, "content": [{"kind": "text", "text": text}], "is_error": state != "ok"})
        return self

    def end_step(self) -> Self:
        self.add("step/end", {**self.ids, "step": self.step_number})
        return self

    def end(self, kind: str = "completed", settle: bool = True) -> Self:
        self.add("turn/end", {**self.ids, "reason": {"kind": kind}})
        if settle and kind != "interrupted":
            self.add("run/settled", {"run_id": f"r{self.turn}"})
        return self

    def plain_turn(self, text: str = "hi") -> Self:
        return self.start(text).step().says().end_step().end()

    def tool_turn(self, call_id: str = "c1") -> Self:
        self.start().step().says("", [call_id])
        self.call(call_id)
        return self.result(call_id).end_step().step(2).says().end_step().end()

    def raw(self, eol: bytes = b"\n") -> bytes:
        return b"".join(line + eol for line in self.lines)

    def write(self, root: Path, raw: bytes | None = None) -> Path:
        """The journal's path under ``root``, with the modes that the format asks for."""
        directory = root / "sessions" / self.session_id
        directory.mkdir(parents=True, exist_ok=True)
        for place in (root, directory.parent, directory):
            place.chmod(0o700)
        path = directory / "journal.jsonl"
        path.write_bytes(self.raw() if raw is None else raw)
        path.chmod(0o600)
        return path
