"""Where a running turn stands, the events that begin it, and those that end it from there. No I/O."""

from collections.abc import Iterator

import attrs

from ..journal.events import Blocks, Draft, JsonObject
from ..journal.wording import UNKNOWN_ERROR, unknown_outcome
from .assembly import Assembly
from .conversation import Conversation

ABORTED = {"name": "ToolAbortedError", "code": "TOOL_ABORTED_BEFORE_DISPATCH"}
#: Said of a call that was cancelled before its body was entered.
NEVER_RAN = "The call was cancelled before it ran; it had no effect."


@attrs.define(eq=False)
class Call:
    """A call of the current step. ``operation_id``, ``seq`` and ``recovery`` are its tool/call's: it is dispatched."""

    call_id: str
    name: str
    arguments: str
    operation_id: str | None = None
    seq: int | None = None
    recovery: str | None = None
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


def beginning(
    conversation: Conversation,
    *,
    turn: int,
    turn_id: str,
    run_id: str,
    invocation_id: str,
    message_id: str,
    content: Blocks,
    created_at: int,
    max_steps: int | None = None,
    root: JsonObject | None = None,
    workspace_identity: JsonObject | None = None,
    quotes: list[JsonObject] | None = None,
    attachments: list[JsonObject] | None = None,
) -> list[Draft]:
    """What opens a turn with a user's message: one batch. ``root`` says what the run is for; by itself the user's.

    ``turn`` is its number: the one behind the newest that the journal knows, also of those whose opening was lost.
    """
    run = conversation.run_header(
        run_id=run_id,
        invocation_id=invocation_id,
        turn_id=turn_id,
        created_at=created_at,
        root=root or {"kind": "user"},
        max_steps=max_steps,
        workspace_identity=workspace_identity,
    )
    start = {
        "turn_id": turn_id,
        "run_id": run_id,
        "invocation_id": invocation_id,
        "turn": turn,
        "run": run,
    }
    message = user_message(
        turn_id=turn_id,
        run_id=run_id,
        message_id=message_id,
        content=content,
        source="user",
        quotes=quotes,
        attachments=attachments,
    )
    return [Draft("turn/start", start), Draft("user/message", message)]


def user_message(
    *,
    turn_id: str,
    run_id: str,
    message_id: str,
    content: Blocks,
    source: str,
    quotes: list[JsonObject] | None,
    attachments: list[JsonObject] | None,
) -> JsonObject:
    """The data of a ``user/message``; ``source`` is its kind."""
    data: JsonObject = {
        "message_id": message_id,
        "turn_id": turn_id,
        "run_id": run_id,
        "content": content,
        "source": {"kind": source},
    }
    if quotes:
        data["quotes"] = quotes
    if attachments:
        data["attachments"] = attachments
    return data


def ending(progress: Progress, reason: JsonObject) -> list[Draft]:
    """What ends the turn from where it stands: the text that came, a result for each call, the step, the turn."""
    return list(_ending(progress, reason))


def settled(progress: Progress) -> Draft:
    """The run's cleanup was tried; what it left behind is said."""
    data: JsonObject = {"run_id": progress.run_id}
    if progress.cleanup:
        data["cleanup"] = {"error": "; ".join(progress.cleanup)}
    return Draft("run/settled", data)


def _ending(progress: Progress, reason: JsonObject) -> Iterator[Draft]:
    if (response := progress.streaming) is not None:
        content = response.message(calls=False)
        if content or response.usage is not None:
            data = progress.message(content, "interrupted", response.usage)
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


def _unfinished(progress: Progress, call: Call) -> JsonObject:
    # A call on disk is dispatched, whatever its backend did with it: the side effect may have happened.
    if call.operation_id is None:
        return progress.result(call, "cancelled", [{"kind": "text", "text": NEVER_RAN}], ABORTED)
    text = unknown_outcome(call.recovery)
    return progress.result(call, "unknown", [{"kind": "text", "text": text}], UNKNOWN_ERROR)
