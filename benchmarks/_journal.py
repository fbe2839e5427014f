"""A journal as an agent's sessions leave it, made from a fixed seed: what the reading benchmarks read.

A coding agent in one long session. A user asks (50 to 2,000 characters), the agent works in 2 to 14 steps. Each step
streams its text (500 to 3,000) at about 280 characters a second, joined to four deltas a second, then says it whole
with one to three calls of tools (arguments of 100 to 4,000). Results have 50 to 32,000 characters. Each run begins with
a request header: a system prompt of 9 KB and fourteen tool schemas. Text is prose and code: indentation, quotes,
newlines, one character in sixty not ASCII. Lengths are log-normal: the middle of a range is its geometric mean, its
ends are two standard deviations away.
"""

import json
import random
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from itertools import count
from math import exp, log, sqrt
from pathlib import Path
from typing import Any

import attrs

from maka.journal.codec import ZERO, encode
from maka.journal.events import Draft

#: Characters that the model gives in a quarter of a second.
DELTA = 70

_WORDS = (
    "the of a to in is that for it as with on this be are from by not or which when function returns value error "
    "path line file test module import class method argument index buffer offset length journal event state turn "
    "session writer reader lock batch sync check result call tool output input request header field type name key "
    "list dict string bytes number range loop branch commit rebase merge review change remove rename extract inline "
    "größe naïve façade 日本語 → … “quoted” don't won't it's 3.14 42 0x1f"
).split()
_CODE = (
    "def {}(self, {}: str) -> None:\n    ",
    'if {} == "{}":\n        return {}\n    ',
    "for {} in range(len({})):\n        ",
    "    assert {}[{!r}] == {!r}\n",
    'raise ValueError(f"{} is not {}: {{{}!r}}")\n',
    "@pytest.mark.parametrize({!r}, [{!r}, {!r}])\n",
    "\t{} = json.loads('{{\"{}\": [1, 2, 3]}}')\n",
    "# {} {} {}\n",
    "import {}\nfrom {} import {}\n\n\n",
    "/usr/src/{}/{}/{}.py:128:17: ",
)
_TOOLS = ("bash", "read_file", "write_file", "edit_file", "grep", "glob", "list_dir", "fetch")
_TOOLS += ("run_tests", "git_diff", "git_log", "ask", "plan", "search_docs")


@attrs.frozen
class Made:
    """A journal file and what is in it: ``types`` is the share of lines of each type."""

    path: Path
    lines: int
    bytes: int
    types: Counter[str]

    def __str__(self) -> str:
        shares = ", ".join(f"{name} {100 * n / self.lines:.1f} %" for name, n in self.types.most_common())
        mean = self.bytes / self.lines
        return f"{self.bytes / 1e6:.0f} MB, {self.lines} lines of {mean:.0f} bytes on average: {shares}"


def make(path: Path, *, size: int | None = None, events: int | None = None, seed: int = 1) -> Made:
    """Write a journal of about ``size`` bytes or ``events`` lines, ended with its last turn."""
    prev, ts, written, types = ZERO, 1_790_000_000_000, 0, Counter[str]()
    rng = random.Random(seed)
    with path.open("wb", buffering=1 << 20) as file:
        for seq, (draft, more, wait) in enumerate(_session(rng)):
            begins = draft.type == "turn/start"
            if begins and (written >= size if size is not None else seq >= (events or 0)):
                break
            ts += wait
            line, prev = encode(draft, seq, ts, prev, more)
            written += file.write(line + b"\n")
            types[draft.type] += 1
    return Made(path, types.total(), written, types)


def _session(rng: random.Random) -> Iterator[tuple[Draft, int, int]]:
    """Drafts with what ``more`` they carry and after how many milliseconds they are written."""
    prose = _prose(rng, 400_000)

    def text(size: int) -> str:
        start = rng.randrange(len(prose) - size)
        return prose[start : start + size]

    def length(low: int, high: int) -> int:
        spread = log(high / low) / 4
        return int(min(high, max(low, sqrt(low * high) * exp(rng.gauss(0, spread)))))

    def name(prefix: str) -> str:
        return f"{prefix}_{rng.getrandbits(64):016x}"

    run_base = {"backend": "anthropic", "model": "claude-sonnet-4-5", "cwd": "/home/dev/src/project"}
    created_by = {"name": "maka", "version": "0.1.0"}
    header = {"format": 1, "session_id": "bench", "created_by": created_by, **run_base}
    header |= {"permission_mode": "execute", "tool_boundary": "t1_after_preflight_v1"}
    yield Draft("session/header", header), 0, 0
    asked = {
        "provider": "anthropic",
        "model": run_base["model"],
        "system": text(9_000),
        "tools": [
            {
                "name": tool,
                "description": text(500),
                "parameters": {
                    "type": "object",
                    "properties": {
                        key: {"type": "string", "description": text(90)} for key in ("path", "text", "mode")
                    },
                    "required": ["path"],
                },
            }
            for tool in _TOOLS
        ],
        "params": {"max_tokens": 8192, "temperature": 0.2},
    }
    for turn in count(1):
        turn_id, run_id, root = name("turn"), name("run"), {"kind": "user"}
        run = {"run_id": run_id, "invocation_id": run_id, "turn_id": turn_id, **run_base}
        run |= {"permission_mode": "execute", "created_at": 1_790_000_000_000 + turn, "root": root, "max_steps": 50}
        opened = {"turn_id": turn_id, "run_id": run_id, "invocation_id": run_id, "turn": turn, "run": run}
        yield Draft("turn/start", opened), 1, rng.randrange(20_000, 600_000)
        said = [{"kind": "text", "text": text(length(50, 2_000))}]
        user = {"message_id": name("msg"), "turn_id": turn_id, "run_id": run_id, "content": said, "source": root}
        yield Draft("user/message", user), 0, 0
        for step in range(1, (steps := rng.randint(2, 14)) + 1):
            here: dict[str, Any] = {"turn_id": turn_id, "run_id": run_id, "step": step}
            yield Draft("step/start", here), 0, 3
            if step == 1:
                reason = "initial" if turn == 1 else "resume"
                yield Draft("request/header", {**here, "reason": reason, "header": asked}), 0, 1
            message_id = name("msg")
            words = text(length(500, 3_000))
            for index, at in enumerate(range(0, len(words), DELTA)):
                delta = {"run_id": run_id, "step": step, "message_id": message_id, "index": index, "kind": "text"}
                yield Draft("assistant/delta", {**delta, "text": words[at : at + DELTA]}, True), 0, 250
            calls = []
            for _ in range(rng.choice((1, 1, 1, 2, 3)) if step < steps else 0):
                inner = {"path": f"src/module_{rng.randrange(40)}.py", "text": text(length(100, 4_000))}
                arguments = json.dumps(inner, ensure_ascii=rng.random() < 0.5)
                calls.append({"kind": "tool_call", "call_id": name("toolu"), "name": rng.choice(_TOOLS)})
                calls[-1]["arguments"] = arguments
            usage = {"input_tokens": rng.randrange(9_000, 90_000), "output_tokens": len(words) // 4}
            usage["cache_read_tokens"] = usage["input_tokens"] - 500
            message = {**here, "message_id": message_id, "content": [{"kind": "text", "text": words}, *calls]}
            message |= {"stop_reason": "tool_use" if calls else "end_turn", "usage": usage}
            yield Draft("assistant/message", message), 0, 40
            for call in calls:
                call_id, operation = call["call_id"], name("op")
                dispatch = {**here, "call_id": call_id, "operation_id": operation, "name": call["name"]}
                dispatch["arguments_digest"] = sha256(call["arguments"].encode()).hexdigest()
                yield Draft("tool/call", {**dispatch, "recovery": "idempotent"}), 0, 2
                shown = [{"kind": "text", "text": text(length(50, 32_000))}]
                result = {**here, "call_id": call_id, "operation_id": operation, "state": "ok"}
                yield Draft("tool/result", {**result, "content": shown, "is_error": False}), 0, rng.randrange(5, 4_000)
            yield Draft("step/end", here), 0, 1
        yield Draft("turn/end", {"turn_id": turn_id, "run_id": run_id, "reason": {"kind": "completed"}}), 0, 1
        yield Draft("run/settled", {"run_id": run_id}), 0, 5


def _prose(rng: random.Random, length: int) -> str:
    parts: list[str] = []
    held = 0
    while held < length:
        if rng.random() < 0.5:
            part = " ".join(rng.choices(_WORDS, k=rng.randint(5, 18))) + rng.choice((". ", ".\n", ":\n\n", ", "))
        else:
            part = rng.choice(_CODE).format(*rng.choices(_WORDS, k=4))
        parts.append(part)
        held += len(part)
    return "".join(parts)
