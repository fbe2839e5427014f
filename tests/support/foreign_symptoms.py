"""A small file for each symptom that docs/foreign.md names: by the tool and the code that `inspect` shows."""

import base64
from collections.abc import Callable
from typing import Any, Final

import zstandard

from . import dsh_log
from .dsh_log import Log
from .foreign_lines import CLAUDE, lines

CODEX: Final = "01990000-0000-7000-8000-00000000c0de"
#: What a file is called where its tool keeps it.
NAMES: Final = {
    "claude-code": f"{CLAUDE}.jsonl",
    "codex": f"rollout-2026-02-01T10-00-00-{CODEX}.jsonl",
    "dsh": "session.jsonl",
    "pi": "2026-02-01T10-00-00-000Z_00000000-0000-4000-8000-00000000c0de.jsonl",
}
_SVG: Final = base64.b64encode(b"<svg xmlns='http://www.w3.org/2000/svg'/>").decode()

# ---------------------------------------------------------------- Claude Code


class Transcript:
    """Each line hangs at the one before, unless ``parent`` says otherwise."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.last: str | None = None

    def put(self, type_: str, uuid: str, **more: Any) -> "Transcript":
        parent = more.pop("parent", self.last)
        base = {"uuid": uuid, "parentUuid": parent, "isSidechain": False, "sessionId": CLAUDE, "cwd": "/w"}
        time = f"2026-02-01T10:00:{len(self.lines):02}.000Z"
        self.lines.append({"type": type_, **base, "timestamp": time, **more})
        self.last = uuid
        return self

    def said(self, uuid: str, content: Any, **more: Any) -> "Transcript":
        return self.put("user", uuid, message={"role": "user", "content": content}, **more)

    def answered(self, uuid: str, response: str, *content: dict[str, Any], **more: Any) -> "Transcript":
        usage = {"input_tokens": 10, "output_tokens": 5}
        message = {"id": response, "role": "assistant", "model": "m1", "content": list(content), "usage": usage}
        return self.put("assistant", uuid, message=message, **more)

    def result(self, uuid: str, call_id: str, content: Any = "a file", **more: Any) -> "Transcript":
        return self.said(uuid, [{"type": "tool_result", "tool_use_id": call_id, "content": content}], **more)

    def compacted(self) -> "Transcript":
        self.put("system", "b1", parent=None, subtype="compact_boundary", compactMetadata={"trigger": "auto"})
        return self.said("s1", "They looked at files.", isCompactSummary=True)

    def bytes(self) -> bytes:
        return lines(*self.lines)


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def used(call_id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "Bash", "input": {"command": "ls"}}


def _begun() -> Transcript:
    return Transcript().said("u1", "list files")


def _called() -> Transcript:
    return _begun().answered("a1", "r1", used("c1"))


def _answered() -> Transcript:
    return _begun().answered("a1", "r1", text("one file"))


def _image() -> bytes:
    source = {"type": "base64", "media_type": "image/png", "data": _SVG}
    read = _called().result("t1", "c1", [{"type": "image", "source": source}])
    return read.answered("a2", "r2", text("a drawing")).bytes()


# ---------------------------------------------------------------- Codex


def rollout(*items: tuple[str, dict[str, Any]], header: bool = True) -> bytes:
    meta = ("session_meta", {"id": CODEX, "cwd": "/w", "cli_version": "0.104.0", "model_provider": "openai"})
    context = ("turn_context", {"model": "m1", "cwd": "/w"})
    whole = [*([meta] if header else []), context, *items]
    return lines(
        *(
            {"timestamp": f"2026-02-01T10:00:{number:02}.000Z", "type": type_, "payload": payload}
            for number, (type_, payload) in enumerate(whole)
        )
    )


def event(type_: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "event_msg", {"type": type_, **more}


def item(type_: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "response_item", {"type": type_, **more}


def asks(words: str) -> tuple[str, dict[str, Any]]:
    return event("user_message", message=words)


def answers(words: str) -> tuple[str, dict[str, Any]]:
    return item("message", role="assistant", content=[{"type": "output_text", "text": words}])


def calls(call_id: str) -> tuple[str, dict[str, Any]]:
    return item("function_call", name="exec_command", arguments='{"cmd": "ls"}', call_id=call_id)


def gives(call_id: str) -> tuple[str, dict[str, Any]]:
    return item("function_call_output", call_id=call_id, output="a file")


_SEARCH: Final = item("web_search_call", status="completed", action={"type": "other"})


def _forked() -> bytes:
    """It begins with the lines of another session, which have their own times."""
    own, *_ = rollout().splitlines(keepends=True)
    other = rollout(asks("list files"), answers("one file")).replace(CODEX.encode(), b"of-another")
    later = rollout(asks("again"), answers("so"), header=False).replace(b"T10:", b"T11:")
    return own.replace(b"T10:", b"T11:") + other + later


_OPEN_REASONING: Final = item("reasoning", summary=[], content=[{"type": "reasoning_text", "text": "Hm."}])
_SEALED_REASONING: Final = item("reasoning", summary=[], encrypted_content="c2VhbGVk")
_MISNAMED: Final = item("function_call", name="exec_command", arguments="{}", call_id="c1", id="call_1")

# ---------------------------------------------------------------- DeepSeek Harness


def _log(play: Callable[[Log], object], **more: Any) -> bytes:
    log = Log(**more)
    log.said("list files", "one file")
    play(log)
    return log.bytes()


def _cut_off(*, entered: bool) -> bytes:
    def play(log: Log) -> None:
        log.start()
        log.user("again")
        log.answer(dsh_log.wants("c1"))
        if entered:
            log.call("c1")

    return _log(play)


def _two_writers(log: Log) -> None:
    log.said("more", "two")
    log.start(seq=4)
    log.user("or")
    log.end()


def _attached(log: Log) -> None:
    log.start()
    image = {"type": "image", "attachment": {"attachmentId": "sha256:00", "mediaType": "image/png"}}
    message = {"id": "m9", "role": "user", "content": [image], "source": {"kind": "user"}}
    log.put("user/message", message, surfaceOp="append")
    log.answer(dsh_log.text("a drawing"))
    log.end()


def _packed() -> bytes:
    """A frame for each line, and one in the middle whose sum is wrong."""
    frames = [
        zstandard.ZstdCompressor(write_checksum=True).compress(line)
        for line in _log(lambda log: log.said("more", "two")).splitlines(keepends=True)
    ]
    frames[4] = frames[4][:-1] + bytes([frames[4][-1] ^ 1])
    return b"".join(frames)


# ---------------------------------------------------------------- pi


class Entries:
    """Each entry hangs at the one before, unless ``parent`` says otherwise."""

    def __init__(self) -> None:
        head = {"type": "session", "version": 3, "id": "p1", "timestamp": "2026-02-01T10:00:00.000Z", "cwd": "/w"}
        self.lines: list[dict[str, Any]] = [head]
        self.last: str | None = None

    def put(self, type_: str, id: str, *, minute: int = 0, **more: Any) -> "Entries":
        parent = more.pop("parent", self.last)
        time = f"2026-02-01T10:{minute:02}:{len(self.lines):02}.000Z"
        self.lines.append({"type": type_, "id": id, "parentId": parent, "timestamp": time, **more})
        self.last = id
        return self

    def said(self, id: str, content: Any, **more: Any) -> "Entries":
        return self.put("message", id, message={"role": "user", "content": content}, **more)

    def answered(self, id: str, *content: dict[str, Any], stop: str = "stop", **more: Any) -> "Entries":
        message = {"role": "assistant", "content": list(content), "provider": "p", "model": "m1", "stopReason": stop}
        return self.put("message", id, message=message, **more)

    def called(self, id: str, *call_ids: str) -> "Entries":
        asked = [{"type": "toolCall", "id": each, "name": "bash", "arguments": {"command": "ls"}} for each in call_ids]
        return self.answered(id, *asked, stop="toolUse")

    def result(self, id: str, call_id: str, **more: Any) -> "Entries":
        message = {"role": "toolResult", "toolCallId": call_id, "toolName": "bash", "content": [text("a file")]}
        return self.put("message", id, message={**message, "isError": False}, **more)

    def compacted(self, kept: str) -> "Entries":
        return self.put("compaction", "cc", summary="They looked.", firstKeptEntryId=kept, tokensBefore=9)

    def bytes(self) -> bytes:
        return lines(*self.lines)


def _asked() -> Entries:
    return Entries().said("aa", "list files")


def _told() -> Entries:
    return _asked().answered("ab", text("one file"))


def _lost_span() -> bytes:
    return _told().compacted("aa").result("ad", "call_x|fc_y", minute=9).answered("ae", text("so"), minute=9).bytes()


def _dead_end() -> bytes:
    more = _told().said("ac", "again").answered("ad", text("two files"))
    return more.put("custom", "ae", parent="ab", customType="session_exit", data={}).bytes()


def _same_half() -> bytes:
    both = _asked().called("ab", "call_a|undefined", "call_b|undefined")
    return both.result("ac", "call_a|undefined").result("ad", "call_b|undefined").answered("ae", text("so")).bytes()


def _stored_elsewhere() -> bytes:
    image = {"type": "image", "data": "blob:sha256:00", "mimeType": "image/png"}
    return Entries().said("aa", [image]).answered("ab", text("a drawing")).bytes()


# ---------------------------------------------------------------- all of them

#: The bytes of a file in which `inspect` shows that code.
FILES: Final[dict[tuple[str, str], bytes]] = {
    ("claude-code", "unknown_outcome"): _called().bytes(),
    ("claude-code", "open_turn"): _begun().bytes(),
    ("claude-code", "late_result"): _called().compacted().result("t1", "c1").answered("a2", "r2", text("so")).bytes(),
    ("claude-code", "orphan_result"): _begun().result("t1", "gone").answered("a1", "r1", text("so")).bytes(),
    ("claude-code", "duplicate_result"): _called().result("t1", "c1").result("t2", "c1").bytes(),
    ("claude-code", "image_unusable"): _image(),
    ("claude-code", "missing_parent"): _answered().said("u2", "again", parent="never").bytes(),
    ("claude-code", "assistant_siblings"): _answered().answered("a2", "r2", text("two"), parent="u1").bytes(),
    ("claude-code", "rewound"): _answered().said("u2", "again").said("u3", "or not", parent="a1").bytes(),
    ("claude-code", "parent_cycle"): _begun().said("u2", "again", parent="u2").bytes(),
    ("claude-code", "torn_tail"): _answered().bytes() + b'{"type":"user","uuid":"u2","mess',
    ("claude-code", "bad_line"): _begun().bytes() + b"\0" * 64 + b"\n" + _answered().bytes().split(b"\n")[1] + b"\n",
    ("claude-code", "empty_file"): b"",
    ("codex", "unknown_outcome"): rollout(asks("list files"), calls("c1")),
    ("codex", "open_turn"): rollout(asks("list files")),
    ("codex", "orphan_result"): rollout(asks("list files"), gives("gone"), answers("so")),
    ("codex", "duplicate_result"): rollout(asks("list files"), calls("c1"), gives("c1"), gives("c1"), answers("so")),
    ("codex", "hosted_tool"): rollout(asks("look it up"), _SEARCH, answers("so")),
    ("codex", "bad_header"): rollout(asks("list files"), answers("so"), header=False),
    ("codex", "rewound"): rollout(
        asks("list files"), answers("so"), asks("again"), answers("no"), event("thread_rolled_back", num_turns=1)
    ),
    ("codex", "copied_lines"): _forked(),
    ("codex", "torn_tail"): rollout(asks("list files"), answers("so")) + b'{"timestamp":"2026-02-01T10:1',
    ("codex", "bad_line"): rollout(asks("list files")) + b"\0" * 64 + b"\n" + rollout(answers("so"), header=False),
    ("codex", "empty_file"): b"",
    ("dsh", "seq_fork"): _log(_two_writers),
    ("dsh", "seq_gap"): _log(lambda log: [log.start(seq=40), log.user("and"), log.end()]),
    ("dsh", "unknown_lines"): _log(lambda log: log.put("x-plugin/submit")),
    ("dsh", "unknown_outcome"): _cut_off(entered=True),
    ("dsh", "not_started"): _cut_off(entered=False),
    ("dsh", "open_turn"): _log(lambda log: [log.start(), log.user("again")]),
    ("dsh", "torn_tail"): _log(lambda log: log) + b'{"type":"turn/sta',
    ("dsh", "image_elsewhere"): _log(_attached),
    ("dsh", "misfit"): _log(lambda log: log, version=9),
    ("dsh", "bad_frame"): _packed(),
    ("pi", "orphan_result"): _lost_span(),
    ("pi", "unrecorded_span"): _lost_span(),
    ("pi", "leaf_disputed"): _dead_end(),
    ("pi", "unknown_outcome"): _asked().called("ab", "call_a|fc_a").bytes(),
    ("pi", "open_turn"): _told().said("ac", "again").bytes(),
    ("pi", "missing_parent"): _told().said("ac", "again", parent="ff").bytes(),
    ("pi", "compaction_pointer"): _told().compacted("ff").said("ad", "again").answered("ae", text("so")).bytes(),
    ("pi", "image_elsewhere"): _stored_elsewhere(),
    ("pi", "torn_tail"): _told().bytes() + b'{"type":"message","id":"ac","par',
    ("pi", "bad_line"): _asked().bytes() + b"\0" * 64 + b"\n",
    ("pi", "empty_file"): b"",
}
#: Files of which nothing is to be found fault with, and which a provider refused all the same.
UNREMARKED: Final[dict[tuple[str, str], bytes]] = {
    ("claude-code", "an empty text"): _begun()
    .answered("a1", "r1", text("\n\n"))
    .answered("a2", "r1", text("so"))
    .bytes(),
    ("claude-code", "changed thinking"): _begun()
    .answered("a1", "r1", {"type": "thinking", "thinking": "", "signature": "c2lnbmVk"})
    .answered("a2", "r1", text("so"))
    .bytes(),
    ("codex", "reasoning in the open"): rollout(asks("list files"), _OPEN_REASONING, answers("so")),
    ("codex", "reasoning of nothing"): rollout(asks("list files"), answers("so"), _SEALED_REASONING),
    ("codex", "an id of another kind"): rollout(asks("list files"), _MISNAMED, gives("c1"), answers("so")),
    ("dsh", "an old format"): _log(lambda log: log),
    ("pi", "half an id"): _same_half(),
}
