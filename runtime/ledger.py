"""Session events → the events of the journal, durable before they are told: the one translation. No I/O of its own.

A backend that yields ``step_start`` and whole ``assistant_message``s is taken at its word. For one that yields only
pieces (deltas, completes, ``token_usage``, tools) the ledger makes steps and messages: a step begins with the first
content, and again once every call of it is answered; a message is written when a tool starts, when another message
begins, when its step ends, and when the turn does.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, Protocol

import attrs

from ..journal.errors import InvalidEvent, JournalError
from ..journal.events import Blocks, Draft, Event, JsonObject, Usage
from .assembly import Assembly
from .ids import unsuitable
from .live_text import LiveText
from .model import ModelError, TextDelta, ThinkingDelta, ToolCallChunk
from .progress import Call, Progress, ending, settled, user_message
from .record import Journal, Publish, Recorder, SessionEvent
from .session_events import KINDS, STOP_REASONS, missing_key
from .tools.arguments import digest
from .tools.base import text_block

Part = Literal["text", "thinking"]

_TEXT: Final = frozenset({str})
_WHOLE: Final = frozenset({int})
#: What the journal does not check itself, or not before it is too late: key → the types of its values, in any kind.
_TYPES: Final[dict[str, frozenset[type]]] = {
    **dict.fromkeys(("message_id", "text", "signature", "call_id", "name", "operation_id", "arguments"), _TEXT),
    **dict.fromkeys(("index", "attempt", *(field.name for field in attrs.fields(Usage))), _WHOLE),
    "delay": frozenset({int, float}),
}
_USAGE: Final = tuple(field.name for field in attrs.fields(Usage))
#: What a turn's end closes is told like all else: type of the event → kind of what is told, and its keys.
_TOLD_OF: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "tool/result": ("tool_result", ("call_id", "state", "content", "is_error")),
    "step/end": ("step_end", ("step",)),
}
#: Ends at which a response is whole.
_WHOLE_AT: Final = {"completed": "end_turn", "step_limit": "end_turn", "max_tokens": "max_tokens"}


class Sink(Protocol):
    """Where a turn's steps and tools say what happens."""

    def emit(self, kind: str, **data: Any) -> None:
        """One session event. Raises InvalidEvent, JournalError where it is refused at once."""
        ...

    async def barrier(self) -> None:
        """Everything emitted so far is durable. Raises JournalError; then nothing more may happen."""
        ...


class Ledger:
    """One run's part of the journal. It is a ``Sink`` too, for a loop that drives it directly.

    ``observe`` is given each event right when it is appended, ``publish`` what a client is told once it is durable.
    ``sealed``: the turn's end was handed to the writer, or the pause that seals the run. ``live_text``: journal text
    while it streams, joined to one piece for each ``live_seconds``. ``step``: the number of the turn's newest step.
    """

    def __init__(
        self,
        journal: Journal,
        observe: Callable[[Event], None],
        publish: Publish,
        *,
        turn_id: str,
        run_id: str,
        new_id: Callable[[], str],
        now: Callable[[], int],
        live_text: bool = True,
        live_seconds: float = 0.25,
        step: int = 0,
    ) -> None:
        self.progress = Progress(turn_id, run_id, step)
        self.sealed = False
        self._recorder = Recorder(journal, observe, publish, turn_id, now)
        self._live = LiveText(self._recorder, self.progress, live_seconds) if live_text else None
        self._new_id = new_id
        # The open step was begun here, for a backend that says nothing of steps.
        self._implicit = False
        # What the backend calls the message that streams; None until it says so.
        self._named: str | None = None
        self._written: set[str] = set()
        self._unknown: list[Call] = []

    @property
    def failure(self) -> JournalError | None:
        """What the journal failed with; everything raises it from then on."""
        return self._recorder.failure

    @property
    def untold(self) -> bool:
        """Does something wait for the next barrier, to be synced or told (deltas aside)?"""
        return self._recorder.untold

    @property
    def second_try(self) -> "list[asyncio.Future[None]]":
        """The newest second try of a failed write, if there was one: it goes on although its waiters are cancelled."""
        return self._recorder.second_try

    # ------------------------------------------------------------ what a backend says

    def emit(self, kind: str, **data: Any) -> None:
        """``take`` of an event of this turn."""
        self._take(kind, data)

    def take(self, event: SessionEvent) -> None:
        """Appends what the event amounts to, and queues what is to be told.

        Raises InvalidEvent for what is no session event of this turn, or may not stand where it does, and for the kinds
        that whoever drives the backend handles; JournalError. After the seal nothing is taken any more, except the
        known outcome of a call that the turn's end had to call unknown.
        """
        given: Any = event
        if given.__class__ is not SessionEvent or given.kind.__class__ is not str or given.data.__class__ is not dict:
            raise InvalidEvent(f"a backend yielded a {type(event).__name__} and no session event", type="session event")
        if event.turn_id != self.progress.turn_id and not self.sealed:
            raise InvalidEvent(
                f"a backend yielded {event.kind} of turn {event.turn_id} while {self.progress.turn_id} runs",
                type=event.kind,
                key="turn_id",
            )
        self._take(event.kind, event.data)

    async def barrier(self) -> None:
        """Everything taken so far is durable, and told. Raises JournalError; then nothing more may happen."""
        await self._recorder.barrier()

    def _take(self, kind: str, data: JsonObject) -> None:
        handler = (_AFTER_THE_END if self.sealed else _HANDLERS).get(kind)
        refused = refusal(kind, data) if handler is not None else _foreign(kind)
        if refused is None and handler is not None:
            handler(self, data)
        elif refused is not None and not self.sealed:
            raise refused

    # ------------------------------------------------------------ begin and end

    def begin(self, drafts: Sequence[Draft]) -> None:
        """What opens the turn, as one batch. Raises InvalidEvent, JournalError."""
        self._recorder.add_batch(drafts)

    def stop_requested(
        self, stop_id: str, source: str, mode: str, *, retract: list[str] | None = None, client: str | None = None
    ) -> None:
        """Somebody asked the turn to stop; ``retract``: and takes these messages back that wait.

        Raises InvalidEvent, JournalError.
        """
        data: JsonObject = {
            "stop_id": stop_id,
            "turn_id": self.progress.turn_id,
            "run_id": self.progress.run_id,
            "source": source,
            "mode": mode,
        }
        data |= {key: value for key, value in (("retract", retract), ("client", client)) if value is not None}
        self._recorder.add("turn/stop_requested", data)

    def end(self, reason: JsonObject, *, before: Sequence[Draft] = (), settle: bool = False) -> None:
        """The turn's end from wherever it stands, as one batch that ``before`` begins. ``reason`` is the turn/end's.

        The results of calls that had none, and the end of the step, are told before the end.
        Raises InvalidEvent, JournalError; then the turn is not sealed.
        """
        progress = self.progress
        stop_reason = STOP_REASONS[reason["kind"]]
        if (whole := _WHOLE_AT.get(reason["kind"])) is not None:
            self._write(whole, bare=True)
        try:
            events = self._recorder.add_batch(self._ending(reason, before, settle))
        except InvalidEvent:
            if progress.streaming is None:
                raise
            # What came of a response that cannot be recorded is left out: the turn needs an end.
            progress.streaming = None
            events = self._recorder.add_batch(self._ending(reason, before, settle))
        self.sealed = True
        self._unknown = [call for call in progress.calls if call.operation_id is not None and not call.answered]
        progress.step_open = self._implicit = False
        progress.streaming = None
        self._close_live()
        for event in events:
            self._tell_of(event)
        if reason["kind"] == "aborted":
            self.tell("abort", **{key: reason[key] for key in ("source",) if key in reason})
        if reason["kind"] == "failed":
            self.tell("error", **{key: reason[key] for key in ("failure_class", "message") if key in reason})
        self.tell("complete", stop_reason=stop_reason)

    def rest(self) -> bool:
        """The backend is between two steps: one that was begun here ends. Is it at rest then?"""
        progress = self.progress
        if self._implicit and all(call.answered for call in progress.calls):
            self._end_step()
        return not progress.step_open and progress.streaming is None

    def note(self, draft: Draft) -> None:
        """An event about the run that is none of its turn's. Raises InvalidEvent, also once the turn has its end, and
        JournalError.
        """
        if self.sealed:
            raise InvalidEvent(f"{draft.type} comes behind the end of run {self.progress.run_id}", type=draft.type)
        self._recorder.add(draft.type, draft.data)

    def seal(self, pause: Draft) -> None:
        """The run ends here and its turn does not. Nobody is told. Raises InvalidEvent, JournalError."""
        if not self.rest():
            raise InvalidEvent(f"{pause.type} stands in the midst of step {self.progress.step}", type=pause.type)
        self._recorder.add(pause.type, pause.data)
        self.sealed = True

    def settle(self) -> None:
        """The run is over and its cleanup was tried. Raises InvalidEvent, JournalError."""
        draft = settled(self.progress)
        self._recorder.add(draft.type, draft.data)

    def tell(self, kind: str, **data: Any) -> None:
        """Tell a client behind the next barrier."""
        self._recorder.tell(kind, **data)

    def tell_now(self, kind: str, **data: Any) -> None:
        """Tell a client at once what nothing durable stands for."""
        self._recorder.tell_now(kind, **data)

    def _tell_of(self, event: Event) -> None:
        """Told is what the journal took: text made encodable, secrets taken out."""
        if (row := _TOLD_OF.get(event.type)) is not None:
            kind, keys = row
            self.tell(kind, **{key: event.data[key] for key in keys})

    def _ending(self, reason: JsonObject, before: Sequence[Draft], settle: bool) -> list[Draft]:
        return [*before, *ending(self.progress, reason), *([settled(self.progress)] if settle else [])]

    # ------------------------------------------------------------ steps

    def _step_start(self, data: JsonObject) -> None:
        if self._implicit:
            self._end_step()
        self._begin_step(implicit=False)

    def _step_end(self, data: JsonObject) -> None:
        self._end_step()

    def _begin_step(self, *, implicit: bool) -> None:
        progress = self.progress
        self._recorder.add("step/start", {**progress.in_step, "step": progress.step + 1})
        progress.step += 1
        progress.step_open = True
        progress.calls = []
        self._implicit = implicit
        self.tell("step_start", step=progress.step)

    def _end_step(self, *, bare: bool = True) -> None:
        self._write("end_turn", bare=bare)
        self._tell_of(self._recorder.add("step/end", self.progress.in_step))
        self.progress.step_open = self._implicit = False

    def _in_step(self) -> None:
        """What a model says stands in a step, and behind the results of the calls that it knows in another one."""
        progress = self.progress
        if self._implicit and progress.calls and all(call.answered for call in progress.calls) and self._silent:
            self._end_step(bare=False)
        if not progress.step_open:
            self._begin_step(implicit=True)

    @property
    def _silent(self) -> bool:
        """Does nothing stream that belongs to the step as it is?"""
        return self.progress.streaming is None or not self.progress.streaming.spoken

    def _request_header(self, data: JsonObject) -> None:
        said = {"reason": data["reason"], "header": data["header"]}
        self._recorder.add("request/header", {**self.progress.in_step, **said})
        self.tell("request_header", **said)

    def _retry(self, data: JsonObject) -> None:
        said = {key: data[key] for key in ("attempt", "delay", "failure_class")}
        text = data.get("text") or (
            f"{said['failure_class']}; request {said['attempt']} failed, the next one follows in {said['delay']:.1f} s"
        )
        self._note("retry", text)
        self.tell("provider_retry", **said)

    def _note(self, kind: str, text: str) -> None:
        note = {"kind": kind, "run_id": self.progress.run_id, "turn_id": self.progress.turn_id, "text": text}
        self._recorder.add("session/note", note)

    # ------------------------------------------------------------ messages

    def _delta(self, part: Part, data: JsonObject) -> None:
        text, index = data["text"], data.get("index") or 0
        response = self._response(data["message_id"])
        try:
            if part == "text":
                response.feed(TextDelta(text, index))
            else:
                response.feed(ThinkingDelta(text, index, data.get("signature")))
        except ModelError as error:
            raise InvalidEvent(f"{part}_delta: {error}", type=f"{part}_delta", key="text") from error
        if text:
            self.tell_now(f"{part}_delta", message_id=self.progress.message_id, index=index, text=text)
            if self._live is not None:
                self._live.came()

    def _complete(self, part: Part, data: JsonObject) -> None:
        response = self._response(data["message_id"])
        try:
            response.complete(part, data["text"], data.get("index") or 0, data.get("signature"))
        except ModelError as error:
            raise InvalidEvent(f"{part}_complete: {error}", type=f"{part}_complete", key="text") from error
        if self._live is not None:
            self._live.came()

    def _token_usage(self, data: JsonObject) -> None:
        usage = {key: data[key] for key in _USAGE if data.get(key) is not None}
        if not self.progress.step_open:
            self._begin_step(implicit=True)
        name = data.get("message_id")
        response = self._streaming(name)
        # Counts of a named message are those so far; others are those of one more response.
        if name is None and (sofar := response.usage) is not None:
            usage = {key: sofar.get(key, 0) + usage.get(key, 0) for key in _USAGE if key in sofar or key in usage}
        response.usage = usage

    def _response(self, name: str | None) -> Assembly:
        self._in_step()
        return self._streaming(name)

    def _streaming(self, name: str | None) -> Assembly:
        """The message that grows, as its backend names it (None: whichever it is); the one before it is written."""
        progress = self.progress
        if name is not None and self._named is not None and self._named != name:
            self._write("end_turn")
        if progress.streaming is None:
            progress.streaming = Assembly()
            progress.message_id = self._new_id() if name is None else self._fresh(name)
            self._named = name
        elif self._named is None and name is not None:
            progress.message_id = self._fresh(name)
            self._named = name
        return progress.streaming

    def _fresh(self, name: str) -> str:
        """A backend may call two messages the same, or by what can be no id; the journal does not."""
        return name if name not in self._written and unsuitable(name) is None else self._new_id()

    def _write(self, stop_reason: str, *, bare: bool = False) -> None:
        """The message that came in pieces, if there is one. ``bare``: also if there are only its counts."""
        response = self.progress.streaming
        if response is None:
            return
        content = response.message(calls=True)
        if content or (bare and response.usage is not None):
            self._message(content, stop_reason, response.usage)

    def _assistant_message(self, data: JsonObject) -> None:
        self._in_step()
        name, usage = data["message_id"], data.get("usage")
        # What streamed of it is a part of it.
        response = self._streaming(name)
        self._message(data["content"], data["stop_reason"], response.usage if usage is None else usage)

    def _message(self, content: Blocks, stop_reason: str, usage: JsonObject | None) -> None:
        progress = self.progress
        event = self._recorder.add("assistant/message", progress.message(content, stop_reason, usage))
        self._close_live()
        progress.streaming = self._named = None
        self._written.add(progress.message_id)
        progress.calls += [
            Call(block["call_id"], block["name"], block["arguments"])
            for block in content
            if block["kind"] == "tool_call"
        ]
        # Told is what the journal took: text made encodable, secrets taken out.
        for block in event.data["content"]:
            if block["kind"] in ("text", "thinking"):
                self.tell(f"{block['kind']}_complete", message_id=progress.message_id, text=block["text"])
        if usage is not None:
            self.tell("token_usage", **usage)

    def _close_live(self) -> None:
        if self._live is not None:
            self._live.close()

    # ------------------------------------------------------------ tools

    def _tool_start(self, data: JsonObject) -> None:
        progress, arguments = self.progress, data.get("arguments") or None
        call = self._requested(data["call_id"]) or self._request(data["call_id"], data["name"], arguments or "{}")
        operation_id = data.get("operation_id") or self._new_id()
        recovery = data.get("recovery") or "never"
        dispatch: JsonObject = {
            **progress.in_step,
            "call_id": call.call_id,
            "operation_id": operation_id,
            "name": data["name"],
        }
        if arguments is not None and arguments != call.arguments:
            dispatch["arguments"] = arguments
        dispatch |= {"arguments_digest": digest(arguments or call.arguments), "recovery": recovery}
        event = self._recorder.add("tool/call", dispatch)
        call.operation_id, call.seq, call.recovery = operation_id, event.seq, recovery
        self.tell("tool_start", call_id=call.call_id, operation_id=operation_id, name=data["name"])

    def _requested(self, call_id: str) -> Call | None:
        """The call that a message of the step asks for and that was not dispatched."""
        waiting = (call for call in self.progress.calls if not call.answered and call.operation_id is None)
        return next((call for call in waiting if call.call_id == call_id), None)

    def _request(self, call_id: str, name: str, arguments: str) -> Call:
        """A call whose block no message had: one gets it now."""
        response = self._response(None)
        try:
            response.feed(ToolCallChunk(call_id, name, arguments))
        except ModelError as error:
            raise InvalidEvent(f"tool_start: {error}", type="tool_start", key="arguments") from error
        self._write("tool_use")
        return self.progress.calls[-1]

    def _tool_result(self, data: JsonObject) -> None:
        call, state = _answered(self.progress.calls, data), data["state"]
        if call is None:
            text = f"a result names the call {data['call_id']}, which was not requested in this step or has its result"
            raise InvalidEvent(text, type="tool_result", key="call_id")
        if call.operation_id is None and state in ("ok", "unknown"):
            text = f"a result of the call {call.call_id} says {state}, and the call was never started"
            raise InvalidEvent(text, type="tool_result", key="state")
        event = self._outcome(
            "tool/result",
            lambda *outcome: self.progress.result(call, *outcome),
            state,
            data["content"],
            data.get("error"),
        )
        call.answered = True
        self._tell_of(event)

    def _late_result(self, data: JsonObject) -> None:
        """A call that the turn's end had to call unknown turns out to have ended; nobody waits for it any more."""
        call = _answered(self._unknown, data)
        if call is None or data["state"] not in ("ok", "error"):
            return
        self._unknown.remove(call)
        known = {
            "turn_id": self.progress.turn_id,
            "run_id": self.progress.run_id,
            "call_id": call.call_id,
            "call_seq": call.seq,
            "operation_id": call.operation_id,
        }
        self._outcome(
            "tool/outcome",
            lambda state, content, error: {
                **known,
                "state": state,
                "content": content,
                "is_error": state != "ok",
                "source": "late",
            },
            data["state"],
            data["content"],
            None,
        )

    def _outcome(
        self,
        type_: str,
        made: Callable[[str, Blocks, JsonObject | None], JsonObject],
        state: str,
        content: Blocks,
        error: JsonObject | None,
    ) -> Event:
        try:
            return self._recorder.add(type_, made(state, content, error))
        except InvalidEvent as refused:
            # The body ran and will not run again: an outcome that cannot be written is told in words that can.
            text = f"the tool ended, but what it gave back cannot be recorded: {refused}"
            failed = {"name": "ToolOutputError", "code": "TOOL_OUTPUT_INVALID"}
            return self._recorder.add(type_, made("error", [text_block(text)], failed))

    def _cleanup_failed(self, data: JsonObject) -> None:
        self.progress.cleanup.append(data["text"])

    # ------------------------------------------------------------ the rest

    def _steering(self, data: JsonObject) -> None:
        if self._implicit:
            self._end_step()
        message = user_message(
            turn_id=self.progress.turn_id,
            run_id=self.progress.run_id,
            message_id=data["message_id"],
            content=data["content"],
            source="steering",
            quotes=data.get("quotes"),
            attachments=data.get("attachments"),
        )
        event = self._recorder.add("user/message", message)
        self.tell("steering_message", message_id=data["message_id"], content=event.data["content"])

    def _plan(self, data: JsonObject) -> None:
        said: JsonObject = {
            key: data[key] for key in ("proposal_id", "revision", "title", "steps", "request_id") if key in data
        }
        event = self._recorder.add("plan/proposed", {"turn_id": self.progress.turn_id, **said})
        self.tell("plan_submitted", **{key: event.data[key] for key in said})


def _foreign(kind: str) -> InvalidEvent:
    return InvalidEvent(f"a backend yielded {kind!r}, which is nothing that it may yield", type=kind)


def refusal(kind: str, data: JsonObject) -> InvalidEvent | None:
    """What keeps an event from being one at all: a key that it lacks, a value of the wrong type."""
    if (key := missing_key(kind, data)) is not None:
        return InvalidEvent(f"a backend yielded {kind} without {key}", type=kind, key=key)
    for key, value in data.items():
        types = _TYPES.get(key)
        if types is not None and value.__class__ not in types and (value is not None or key in KINDS[kind]):
            return InvalidEvent(f"{kind}: {key} is of the wrong kind ({type(value).__name__})", type=kind, key=key)
    return None


def _answered(calls: list[Call], data: JsonObject) -> Call | None:
    """The call that a result belongs to: by its operation where it names one, else by its id, dispatched ones first."""
    operation_id, call_id = data.get("operation_id"), data["call_id"]
    for call in sorted((call for call in calls if not call.answered), key=lambda call: call.operation_id is None):
        if call.operation_id == operation_id if operation_id is not None else call.call_id == call_id:
            return call
    return None


_HANDLERS: Final[dict[str, Callable[[Ledger, JsonObject], None]]] = {
    "step_start": Ledger._step_start,
    "request_header": Ledger._request_header,
    "text_delta": lambda ledger, data: ledger._delta("text", data),
    "thinking_delta": lambda ledger, data: ledger._delta("thinking", data),
    "text_complete": lambda ledger, data: ledger._complete("text", data),
    "thinking_complete": lambda ledger, data: ledger._complete("thinking", data),
    "assistant_message": Ledger._assistant_message,
    "token_usage": Ledger._token_usage,
    "tool_start": Ledger._tool_start,
    "tool_result": Ledger._tool_result,
    "step_end": Ledger._step_end,
    "provider_retry": Ledger._retry,
    "steering_message": Ledger._steering,
    "plan_submitted": Ledger._plan,
    "cleanup_failed": Ledger._cleanup_failed,
}
#: What still counts once the turn has its end: its run may have something to say until it is settled.
_AFTER_THE_END: Final[dict[str, Callable[[Ledger, JsonObject], None]]] = {
    "tool_result": Ledger._late_result,
    "cleanup_failed": Ledger._cleanup_failed,
}
