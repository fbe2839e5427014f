"""Where a running turn stands, and the events that end it from there. No I/O."""

from collections.abc import Iterator
from typing import Any

import attrs

from ..journal.events import Blocks, Draft, JsonObject
from ..journal.wording import UNKNOWN_ERROR, unknown_outcome
from .assembly import Assembly

ABORTED = {"name": "ToolAbortedError", "code": "TOOL_ABORTED_BEFORE_DISPATCH"}


@attrs.define(eq=False)
class Call:
    """A call of the current step. ``operation_id`` and ``seq`` are its tool/call's; ``entered``: its body began."""

    call_id: str
    name: str
    arguments: str
    operation_id: str | None = None
    seq: int | None = None
    recovery: str | None = None
    entered: bool = False
    answered: bool = False


@attrs.define
class Progress:
    """A turn between its begin and its end. ``streaming`` is a response that has no message yet.

    ``cleanup`` collects what could not be cleaned up: bodies that did not end, processes that live on.
    """

    turn_id: str
    run_id: str
    step: int = 0
    step_open: bool = False
    message_id: str = ""
    streaming: Assembly | None = None
    calls: list[Call] = attrs.Factory(list)
    cleanup: list[str] = attrs.Factory(list)

    @property
    def in_step(self) -> JsonObject:
        return {"turn_id": self.turn_id, "run_id": self.run_id, "step": self.step}

    def message(self, content: Blocks, stop_reason: str, usage: JsonObject | None) -> JsonObject:
        data: JsonObject = {
            **self.in_step,
            "message_id": self.message_id,
            "content": content,
            "stop_reason": stop_reason,
        }
        if usage is not None:
            data["usage"] = usage
        return data

    def result(self, call: Call, state: str, content: Blocks, error: JsonObject | None = None) -> JsonObject:
        data: JsonObject = {**self.in_step, "call_id": call.call_id}
        if call.operation_id is not None:
            data["operation_id"] = call.operation_id
        data |= {"state": state, "content": content, "is_error": state != "ok"}
        if error is not None:
            data["error"] = error
        if state == "unknown" and call.seq is not None:
            data["call_seq"] = call.seq
        return data


def ending(progress: Progress, reason: JsonObject) -> list[Draft]:
    """What ends the turn from where it stands: the text that came, a result for each call, step, turn and run."""
    return list(_ending(progress, reason))


def _ending(progress: Progress, reason: JsonObject) -> Iterator[Draft]:
    if progress.streaming is not None and (content := progress.streaming.message(calls=False)):
        data = progress.message(content, "interrupted", progress.streaming.usage)
        yield Draft("assistant/message", {**data, "interrupted": True})
    for call in progress.calls:
        if not call.answered:
            yield Draft("tool/result", _unfinished(progress, call))
    if progress.step_open:
        yield Draft("step/end", progress.in_step)
    yield Draft("turn/end", {"turn_id": progress.turn_id, "run_id": progress.run_id, "reason": reason})
    if reason["kind"] == "aborted":
        note = {"kind": "abort", "run_id": progress.run_id, "turn_id": progress.turn_id}
        if "source" in reason:
            note["source"] = reason["source"]
        yield Draft("session/note", note)
    settled: dict[str, Any] = {"run_id": progress.run_id}
    if progress.cleanup:
        settled["cleanup"] = {"error": "; ".join(progress.cleanup)}
    yield Draft("run/settled", settled)


def _unfinished(progress: Progress, call: Call) -> JsonObject:
    # A call whose tool/call is on disk but whose body was not entered has had no effect: this process knows it.
    if not call.entered:
        text = "The call was cancelled before it ran; it had no effect."
        return progress.result(call, "cancelled", [{"kind": "text", "text": text}], ABORTED)
    text = unknown_outcome(call.recovery)
    return progress.result(call, "unknown", [{"kind": "text", "text": text}], UNKNOWN_ERROR)
