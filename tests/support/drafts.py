"""Drafts of a correct writer, for tests that append."""

from typing import Any

from maka.journal.events import Draft


def header(session_id: str = "s1", **more: Any) -> Draft:
    data = {
        "format": 1,
        "session_id": session_id,
        "created_by": {"name": "maka", "version": "0"},
        "cwd": "/tmp",
        "backend": "fake",
        "model": "fake-model",
        "permission_mode": "ask",
        "tool_boundary": "t1_after_preflight_v1",
    }
    return Draft("session/header", data | more)


def note(text: str = "a note") -> Draft:
    return Draft("session/note", {"kind": "test", "text": text})


def rename(name: str) -> Draft:
    return Draft("session/updated", {"patch": {"name": name}})


def ids(turn: int) -> dict[str, Any]:
    return {"turn_id": f"t{turn}", "run_id": f"r{turn}"}


def begin(turn: int = 1, text: str = "hi") -> list[Draft]:
    """The batch that opens a turn."""
    run = {**ids(turn), "invocation_id": f"i{turn}", "backend": "fake", "model": "fake-model", "cwd": "/tmp"}
    run |= {"permission_mode": "ask", "created_at": 1, "root": {"kind": "user"}}
    start = {**ids(turn), "invocation_id": f"i{turn}", "turn": turn, "run": run}
    message = {"message_id": f"m{turn}", **ids(turn), "content": [{"kind": "text", "text": text}]}
    return [Draft("turn/start", start), Draft("user/message", message | {"source": {"kind": "user"}})]


def end(turn: int = 1) -> list[Draft]:
    """What closes a turn without steps."""
    return [
        Draft("turn/end", {**ids(turn), "reason": {"kind": "completed"}}),
        Draft("run/settled", {"run_id": f"r{turn}"}),
    ]


def step(turn: int = 1, number: int = 1, text: str = "ok") -> list[Draft]:
    """A whole step without calls; the session's first has a request header."""
    at = {**ids(turn), "step": number}
    asked = {"reason": "initial" if turn == number == 1 else "resume", "header": {"provider": "f", "model": "m"}}
    said = {"message_id": f"a{turn}-{number}", "content": [{"kind": "text", "text": text}], "stop_reason": "end_turn"}
    out = [Draft("step/start", at)]
    if number == 1:
        out.append(Draft("request/header", at | asked))
    return [*out, Draft("assistant/message", at | said), Draft("step/end", at)]


def whole_turn(turn: int = 1, text: str = "hi") -> list[Draft]:
    return [*begin(turn, text), *step(turn), *end(turn)]
