"""Records of another tool's session → events of journals, thread by thread, with their times. No I/O.

A turn that has no end when the next message comes has one there; what the file itself leaves open stays open, for the
closers of a repair to decide. A result is paired with the newest open call of its id; one that comes when its call has
been closed is a late outcome of it, and one without any call is told as text.
"""

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, Final

import attrs

from ... import __version__
from ..events import Blocks, Draft, Event, JsonObject
from ..shapes import SESSION_ID
from ..views.session import TOOL_BOUNDARY
from ..wording import UNKNOWN_ERROR, not_started, unknown_outcome
from . import records
from .findings import Report
from .records import MAIN, Place, Record
from .values import said, storable

#: Of a call whose body was never entered, where the format proves it.
_NOT_STARTED: Final = {"name": "ToolNotStartedError", "code": "TOOL_NOT_STARTED"}
_NEVER_RAN: Final = "The call was never run: the response that asked for it was cut off."


@attrs.frozen
class Fork:
    """Where a thread goes on from: behind event ``seq`` of ``thread``; ``before``: of what it was before it was cut."""

    thread: str
    seq: int
    before: bool = False


def ends_turn(draft: Draft | Event) -> bool:
    """Is it the last event of a turn, behind which a thread may be forked?"""
    if draft.type == "turn/end":
        return bool(draft.data["reason"]["kind"] == "interrupted")
    return draft.type == "run/settled"


@attrs.frozen
class Batch:
    """Events of one thread that stand or fall together, at ``ts`` (Unix ms). The first batch of a thread is its header,
    with ``fork`` or ``child_of`` (the thread; the header has the rest) where it has one.
    """

    thread: str
    ts: int
    drafts: list[Draft]
    fork: Fork | None = None
    child_of: str | None = None


@attrs.define(eq=False)
class _Call:
    call_id: str
    operation_id: str
    name: str
    step: int
    turn_id: str
    run_id: str
    place: Place
    arguments: str
    #: Of its tool/call; of its result where there is none. None: its body was not entered, as far as is known.
    seq: int | None = None
    asked: bool = True


class _Open:
    """Calls without a result, in their order; found by their id, the newest first."""

    def __init__(self) -> None:
        self._calls: dict[str, _Call] = {}
        self._ids: dict[str, list[str]] = {}

    def add(self, call: _Call) -> None:
        self._calls[call.operation_id] = call
        self._ids.setdefault(call.call_id, []).append(call.operation_id)

    def remove(self, call: _Call) -> None:
        del self._calls[call.operation_id]
        self._ids[call.call_id].remove(call.operation_id)

    def find(self, call_id: str | None, *, entered: bool = True) -> _Call | None:
        """The newest of this id; without ``entered`` the oldest whose body was not entered."""
        named = self._ids.get(call_id or "", ())
        calls = (self._calls[operation_id] for operation_id in (reversed(named) if entered else named))
        return next((call for call in calls if entered or call.seq is None), None)

    def __iter__(self) -> Iterator[_Call]:
        return iter(list(self._calls.values()))

    def __bool__(self) -> bool:
        return bool(self._calls)


@attrs.define(eq=False)
class _Thread:
    name: str
    header: JsonObject
    dispatches: bool
    branch: bool
    ts: int
    #: What a run says of whose it is.
    agent: JsonObject
    #: Of the next event.
    seq: int = 0
    turn: int = 0
    turn_id: str | None = None
    run_id: str = ""
    step: int = 0
    step_open: bool = False
    requested: JsonObject | None = None
    first_of_run: bool = False
    model: str = ""
    provider: str = ""
    #: Calls of the open step without a result, in their order.
    open: _Open = attrs.Factory(_Open)
    #: Did the last response want nothing more?
    done: bool = False
    waiting: list[Draft] = attrs.Factory(list)
    #: What was said while no turn was open: it belongs to the next one.
    early: list[records.Said] = attrs.Factory(list)
    #: Calls that were closed without their result, by id; the newest counts.
    lost: dict[str, _Call] = attrs.Factory(dict)
    answered: set[str] = attrs.Factory(set)
    messages: dict[int, int] = attrs.Factory(dict)
    #: By turn: the event that ended it, whether that stands before a cut, and the turn's number.
    ends: dict[str, tuple[int, bool, int]] = attrs.Factory(dict)
    #: Of the open turn: its name, and where it began.
    key: str | None = None
    opened: Place | None = None


class Conversion:
    """Feed every record of a file, in order; at the end what the last turn of each thread leaves open is open."""

    def __init__(self, format: str, report: Report, cuts: Mapping[str, int] | None = None) -> None:
        """``cuts``: threads that are on record up to the event of this number, which ends a turn: what follows begins
        a journal of its own, forked there, and nothing is given out of what comes before.
        """
        self._format = format
        self._report = report
        self._cuts = dict(cuts or {})
        self._threads: dict[str, _Thread] = {}
        self._turns = 0
        self._ids = 0
        self._batch: list[Draft] = []

    def feed(self, record: Record) -> Iterator[Batch]:
        if isinstance(record, records.Begin):
            yield from self._begin(record)
            return
        thread = self._threads.get(record.thread)
        if thread is None:
            yield from self._begin(records.Begin(place=record.place, time=record.time, thread=record.thread))
            thread = self._threads[record.thread]
        if record.time is not None:
            thread.ts = record.time
        _HANDLERS[type(record)](self, thread, record)
        yield from self._out(thread)

    def finish(self) -> Iterator[Batch]:
        """What nothing came behind any more; then reports what the file leaves open: calls without a result, turns
        without an end.
        """
        for thread in self._threads.values():
            for each in thread.early:
                self._put(thread, "session/note", {"kind": each.source, "text": _plain(each.content)})
            thread.early.clear()
            yield from self._out(thread)
        for thread in self._threads.values():
            if thread.branch:
                continue  # whoever withdrew it has left it as it is
            for call in [*thread.lost.values(), *thread.open]:
                self._tell_unanswered(thread, call)
            if thread.turn_id is not None and thread.opened is not None:
                self._tell_of("open_turn", f"turn {thread.turn} has no end", thread.opened)

    def _tell_of(self, code: str, message: str, place: Place, related: int | None = None) -> None:
        self._report.add(code, message, place.line, place.offset, place.length, related=related)

    def _tell_unanswered(self, thread: _Thread, call: _Call) -> None:
        never = thread.dispatches and call.seq is None
        what = "was never run" if never else "has no result, and nobody knows what came of it"
        self._tell_of(
            "not_started" if never else "unknown_outcome", f"the call {call.call_id} of {call.name} {what}", call.place
        )

    # ------------------------------------------------------------ threads

    def _begin(self, record: records.Begin) -> Iterator[Batch]:
        if record.thread in self._threads:
            return
        parent = self._threads.get(record.parent) if record.parent is not None else None
        inherited = {} if parent is None else {key: parent.header[key] for key in ("cwd", "model")}
        header: JsonObject = {
            "format": 1,
            "session_id": "",
            "created_by": {"name": "maka", "version": __version__},
            "cwd": record.cwd or inherited.get("cwd", ""),
            "backend": self._format,
            "model": record.model or inherited.get("model", ""),
            "permission_mode": "ask",
        }
        if record.dispatches:
            header["tool_boundary"] = TOOL_BOUNDARY
        if record.name:
            header["name"] = record.name
        ts = record.time if record.time is not None else 0 if parent is None else parent.ts
        whose = {"agent_id": record.agent_id, "agent_name": record.agent_name}
        agent = {key: value for key, value in whose.items() if value is not None}
        thread = _Thread(
            record.thread, header, record.dispatches, record.kind == "branch", ts, agent, model=record.model or ""
        )
        thread.provider = record.provider or (parent.provider if parent else "")
        fork = child_of = None
        if parent is not None and record.kind == "branch" and record.after is not None:
            if parent.key == record.after and parent.turn_id is not None:
                self._end(parent, self._passed(parent))
                yield from self._out(parent)
            if (end := parent.ends.get(record.after)) is not None:
                seq, before, thread.turn = end
                fork = Fork(parent.name, seq, before)
        elif parent is not None and record.kind == "subagent":
            child_of = parent.name
            call = parent.open.find(record.call_id)
            within = parent if call is None else call
            header["child_of"] = {"session_id": "", "run_id": within.run_id, "turn_id": within.turn_id or ""}
            if record.call_id is not None:
                header["child_of"]["call_id"] = record.call_id
        elif record.kind == "subagent" and SESSION_ID.fullmatch(record.begun_by or ""):
            # In which of its turns is told by a file that is not here.
            header["child_of"] = {"session_id": record.begun_by, "run_id": "", "turn_id": ""}
            if record.call_id is not None:
                header["child_of"]["call_id"] = record.call_id
        header["imported_from"] = {"format": self._format, "session_id": record.session_id, "sha256": ""}
        if record.session_id is None:
            del header["imported_from"]["session_id"]
        if record.begun_by is not None:
            header["imported_from"]["begun_by"] = record.begun_by
        self._threads[record.thread] = thread
        thread.seq = 1
        if record.thread not in self._cuts:
            yield Batch(record.thread, ts, [Draft("session/header", header)], fork=fork, child_of=child_of)

    # ------------------------------------------------------------ what is written

    def _put(self, thread: _Thread, type_: str, data: JsonObject, *, ignorable: bool = False) -> int:
        self._batch.append(Draft(type_, data, ignorable))
        thread.seq += 1
        return thread.seq - 1

    def _out(self, thread: _Thread) -> Iterator[Batch]:
        if self._batch:
            drafts, self._batch = self._batch, []
            cut = self._cuts.get(thread.name)
            if cut is None:
                yield Batch(thread.name, thread.ts, drafts)
            elif thread.seq > cut:
                yield from self._cut(thread, drafts, thread.seq - 1 - cut)

    def _cut(self, thread: _Thread, drafts: list[Draft], further: int) -> Iterator[Batch]:
        """The thread is on record up to here; the last ``further`` drafts are not."""
        del self._cuts[thread.name]
        fork = Fork(thread.name, thread.seq - 1 - further, before=True)
        yield Batch(thread.name, thread.ts, [Draft("session/header", thread.header)], fork=fork)
        # What is named by number stands in the parent's.
        thread.lost.clear()
        thread.messages = {key: seq - fork.seq for key, seq in thread.messages.items() if seq > fork.seq}
        thread.seq = 1 + further
        if further:
            yield Batch(thread.name, thread.ts, drafts[-further:])

    def _id(self, kind: str) -> str:
        self._ids += 1
        return f"{kind}-{self._ids}"

    def _in_turn(self, thread: _Thread) -> JsonObject:
        return {"turn_id": thread.turn_id, "run_id": thread.run_id}

    def _in_step(self, thread: _Thread) -> JsonObject:
        return {**self._in_turn(thread), "step": thread.step}

    # ------------------------------------------------------------ turns

    def _open_turn(self, thread: _Thread, key: str | None, place: Place) -> None:
        self._turns += 1
        thread.opened = place
        thread.turn += 1
        thread.turn_id, thread.run_id, thread.key = f"turn-{self._turns}", f"run-{self._turns}", key
        thread.step = 0
        thread.done = False
        thread.first_of_run = True
        thread.answered = set()
        ids = {"turn_id": thread.turn_id, "run_id": thread.run_id, "invocation_id": thread.run_id}
        run: JsonObject = {
            "run_id": thread.run_id,
            "invocation_id": thread.run_id,
            "turn_id": thread.turn_id,
            "backend": self._format,
            "model": thread.model,
            "cwd": thread.header["cwd"],
            "permission_mode": "ask",
            "created_at": thread.ts,
            "root": {"kind": "user"},
            **thread.agent,
        }
        self._put(thread, "turn/start", {**ids, "turn": thread.turn, "run": run})
        for each in thread.early:
            self._tell(thread, each)
        thread.early.clear()

    def _passed(self, thread: _Thread) -> records.End:
        """How a turn has ended that nothing but the next one tells of."""
        kind: Any = "completed" if thread.done and not thread.open else "interrupted"
        return records.End(place=Place(0, 0, 0), kind=kind)

    def _end(self, thread: _Thread, end: records.End) -> None:
        if thread.turn_id is None:
            return
        self._close_step(thread)
        reason: JsonObject = {"kind": end.kind}
        for key in ("source", "failure_class", "message"):
            if (value := getattr(end, key)) is not None:
                reason[key] = value
        seq = self._put(thread, "turn/end", {**self._in_turn(thread), "reason": reason})
        if end.kind != "interrupted":
            seq = self._put(thread, "run/settled", {"run_id": thread.run_id})
        thread.ends[thread.key or thread.turn_id] = seq, thread.name in self._cuts, thread.turn
        thread.turn_id = None

    def _close_step(self, thread: _Thread) -> None:
        if thread.step_open:
            for call in thread.open:
                self._unanswered(thread, call)
            self._put(thread, "step/end", self._in_step(thread))
            thread.step_open = False
        for draft in thread.waiting:
            self._put(thread, draft.type, draft.data)
        thread.waiting.clear()

    def _unanswered(self, thread: _Thread, call: _Call) -> None:
        """A call of which no result came while its step was open."""
        known = thread.dispatches and call.seq is None
        state = "not_started" if known else "unknown"
        text = not_started() if known else unknown_outcome(None)
        data: JsonObject = {**self._in_turn(thread), "step": call.step, "call_id": call.call_id}
        if call.seq is not None:
            data["operation_id"] = call.operation_id
        data |= {"state": state, "content": said(text), "is_error": True}
        data["error"] = dict(_NOT_STARTED) if known else dict(UNKNOWN_ERROR)
        if call.seq is not None:
            data["call_seq"] = call.seq
        data["synthesized"] = True
        seq = self._put(thread, "tool/result", data)
        if not known and call.seq is None:
            call.seq = seq
        thread.open.remove(call)
        older = thread.lost.pop(call.call_id, None)
        if older is not None and not thread.branch:
            # A result would be of the newer one.
            self._tell_unanswered(thread, older)
        thread.lost[call.call_id] = call

    # ------------------------------------------------------------ records

    def _prompt(self, thread: _Thread, record: records.Prompt) -> None:
        if thread.turn_id is not None:
            self._end(thread, self._passed(thread))
        self._open_turn(thread, record.turn, record.place)
        self._message(thread, record.content, record.message_id, record.source)

    def _said(self, thread: _Thread, record: records.Said) -> None:
        if thread.turn_id is None:
            thread.early.append(record)
        else:
            self._tell(thread, record)

    def _tell(self, thread: _Thread, record: records.Said) -> None:
        """In the turn that is open, behind the step that is."""
        draft = self._message_draft(thread, record.content, record.message_id, record.source)
        if thread.step_open and thread.open:
            thread.waiting.append(draft)
            return
        self._close_step(thread)
        self._put(thread, draft.type, draft.data)

    def _message(self, thread: _Thread, content: Blocks, message_id: str | None, source: str) -> None:
        draft = self._message_draft(thread, content, message_id, source)
        self._put(thread, draft.type, draft.data)

    def _message_draft(self, thread: _Thread, content: Blocks, message_id: str | None, origin: str) -> Draft:
        source = {"kind": "steering" if thread.step else "user"}
        if origin not in ("user", "steering"):
            source["origin"] = origin
        data = {
            "message_id": self._remembered(thread, message_id),
            **self._in_turn(thread),
            "content": content,
            "source": source,
        }
        return Draft("user/message", data)

    def _remembered(self, thread: _Thread, message_id: str | None) -> str:
        """An id of this message's own; where the tool's is one it can be named by that."""
        if message_id is not None:
            key = _key(message_id)
            if key not in thread.messages:
                thread.messages[key] = thread.seq
                return message_id
        return self._id("message")

    def _response(self, thread: _Thread, record: records.Response) -> None:
        if thread.turn_id is None:
            self._open_turn(thread, record.turn, record.place)
        self._close_step(thread)
        thread.step += 1
        thread.step_open = True
        thread.model = record.model or thread.model
        thread.provider = record.provider or thread.provider
        self._put(thread, "step/start", self._in_step(thread))
        self._request(thread)
        data: JsonObject = {
            **self._in_step(thread),
            "message_id": self._remembered(thread, record.message_id),
            "content": record.content,
            "stop_reason": record.stop_reason,
        }
        if record.usage is not None:
            data["usage"] = record.usage
        if record.interrupted:
            data["interrupted"] = True
        self._put(thread, "assistant/message", data)
        for block in record.content:
            if block["kind"] == "tool_call":
                call_id = block["call_id"]
                place = record.places.get(call_id, record.place)
                thread.open.add(self._call(thread, call_id, block["name"], block["arguments"], place))
        thread.done = not thread.open
        if record.interrupted:
            for call in thread.open:
                self._answer(thread, call, "not_started", said(_NEVER_RAN), dict(_NOT_STARTED))

    def _request(self, thread: _Thread) -> None:
        header = {"provider": thread.provider, "model": thread.model}
        reason = "initial" if thread.requested is None else "resume" if thread.first_of_run else "change"
        if thread.first_of_run or header != thread.requested:
            self._put(thread, "request/header", {**self._in_step(thread), "reason": reason, "header": header})
        thread.requested, thread.first_of_run = header, False

    def _call(self, thread: _Thread, call_id: str, name: str, arguments: str, place: Place) -> _Call:
        assert thread.turn_id is not None
        operation_id, turn_id = self._id("operation"), thread.turn_id
        return _Call(call_id, operation_id, name, thread.step, turn_id, thread.run_id, place, arguments)

    def _dispatch(self, thread: _Thread, record: records.Dispatch) -> None:
        call = thread.open.find(record.call_id, entered=False)
        if call is None and record.name and thread.step_open:
            call = self._call(thread, record.call_id, record.name, record.arguments or "{}", record.place)
            call.asked = False
            thread.open.add(call)
        if call is not None:
            self._entered(thread, call)

    def _entered(self, thread: _Thread, call: _Call) -> None:
        data: JsonObject = {
            **self._in_turn(thread),
            "step": call.step,
            "call_id": call.call_id,
            "operation_id": call.operation_id,
            "name": call.name,
        }
        if not call.asked:
            data["arguments"] = call.arguments
        data["arguments_digest"] = sha256(call.arguments.encode("utf-8", "replace")).hexdigest()
        data["recovery"] = "never"
        call.seq = self._put(thread, "tool/call", data)

    def _result(self, thread: _Thread, record: records.Result) -> None:
        call = thread.open.find(record.call_id)
        if call is not None:
            error = dict(_NOT_STARTED) if record.state == "not_started" else None
            self._answer(thread, call, record.state, record.content, error)
            thread.answered.add(record.call_id)
            return
        lost = thread.lost.pop(record.call_id, None)
        if lost is not None and record.state in ("ok", "error"):
            self._late(thread, lost, record)
            thread.answered.add(record.call_id)
        elif record.call_id in thread.answered or lost is not None:
            self._note_result(record, "duplicate_result", "has a result already")
            self._put(thread, "session/note", {"kind": "duplicate_result", "text": _plain(record.content)})
        else:
            self._note_result(record, "orphan_result", "stands nowhere before it")
            self._tell_result(
                thread, record, f"[A result without its call: {record.name or 'a tool'}, {record.call_id}]"
            )

    def _tell_result(self, thread: _Thread, record: records.Result, text: str) -> None:
        """As text: no call can have it as its result."""
        if thread.turn_id is None:
            self._open_turn(thread, None, record.place)
        content = [*said(text), *record.content]
        self._tell(thread, records.Said(place=record.place, content=content, source="orphan_result"))

    def _note_result(self, record: records.Result, code: str, what: str) -> None:
        self._tell_of(code, f"the call {record.call_id} of this result {what}", record.place)

    def _answer(
        self, thread: _Thread, call: _Call, state: str, content: Blocks, error: JsonObject | None = None
    ) -> None:
        if call.seq is None and state != "not_started":
            # It has a result: then it ran.
            self._entered(thread, call)
        data: JsonObject = {**self._in_turn(thread), "step": call.step, "call_id": call.call_id}
        if call.seq is not None:
            data["operation_id"] = call.operation_id
        data |= {"state": state, "content": content, "is_error": state != "ok"}
        if error is not None:
            data["error"] = error
        if state == "unknown":
            data["call_seq"] = call.seq
        self._put(thread, "tool/result", data)
        thread.open.remove(call)

    def _late(self, thread: _Thread, call: _Call, record: records.Result) -> None:
        told = f"the result of call {call.call_id} of line {call.place.line} stands behind what closed the call"
        self._tell_of("late_result", told, record.place, call.place.line)
        if call.seq is None:
            # It ran after all. Its result says that it did not, and no outcome can follow that one.
            self._tell_result(thread, record, f"[A later result of the call {call.call_id} of {call.name}]")
            return
        data = {
            "turn_id": call.turn_id,
            "run_id": call.run_id,
            "call_id": call.call_id,
            "call_seq": call.seq,
            "operation_id": call.operation_id,
            "state": record.state,
            "content": record.content,
            "is_error": record.state != "ok",
            "source": "late",
        }
        self._put(thread, "tool/outcome", data)

    def _ended(self, thread: _Thread, record: records.End) -> None:
        self._end(thread, record)

    def _compaction(self, thread: _Thread, record: records.Compaction) -> None:
        if thread.turn_id is not None:
            self._close_step(thread)
        data: JsonObject = {"content": record.summary}
        if record.kept_from is not None and (seq := thread.messages.get(_key(record.kept_from))) is not None:
            data["kept_from"] = seq
        self._put(thread, "context/compacted", data, ignorable=True)

    def _setting(self, thread: _Thread, record: records.Setting) -> None:
        self._put(thread, "session/updated", {"patch": record.patch})

    def _note(self, thread: _Thread, record: records.Note) -> None:
        data: JsonObject = {"kind": record.kind}
        if thread.turn_id is not None:
            data |= {"run_id": thread.run_id, "turn_id": thread.turn_id}
        self._put(thread, "session/note", {**data, "text": record.text})

    def _kept(self, thread: _Thread, record: records.Kept) -> None:
        data = {"format": self._format, "line": record.place.line, "type": record.type, "value": storable(record.value)}
        self._put(thread, "x-foreign/line", data, ignorable=True)


_HANDLERS: Final[dict[type[Record], Any]] = {
    records.Prompt: Conversion._prompt,
    records.Said: Conversion._said,
    records.Response: Conversion._response,
    records.Dispatch: Conversion._dispatch,
    records.Result: Conversion._result,
    records.End: Conversion._ended,
    records.Compaction: Conversion._compaction,
    records.Setting: Conversion._setting,
    records.Note: Conversion._note,
    records.Kept: Conversion._kept,
}


def _key(message_id: str) -> int:
    """Of a long file's many ids only so much is kept."""
    return int.from_bytes(sha256(message_id.encode("utf-8", "replace")).digest()[:8], "big")


def _plain(content: Blocks) -> str:
    return "\n".join(block["text"] for block in content if block.get("kind") == "text")


__all__ = ["MAIN", "Batch", "Conversion", "Fork"]
