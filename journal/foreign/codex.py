"""Codex rollouts: what the provider saw beside what the interface showed, never both. No I/O of its own.

A person's words are taken from events where the file has any, answers, calls and results from the provider's items. A
response is what stands up to the next results or count of tokens. What was copied from a parent into the file of a fork
or a subagent is the parent's: a thread of its own, and no part of this conversation nor of its usage.
"""

import re
from collections import deque
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, Final

import attrs

from ..events import Blocks, JsonObject
from ..source import Source
from . import codex_items as items
from .codex_items import CALLS, FAMILIES, HOSTED, OUTPUTS, Content, call_id_of, key_of, kind_of, opened, role_of
from .codex_plan import COPIED, SHOWN, Plan, look
from .findings import Report
from .lines import Line, at, objects
from .records import (
    MAIN,
    Begin,
    Compaction,
    End,
    Kept,
    Note,
    Place,
    Prompt,
    Record,
    Response,
    Result,
    Said,
    Setting,
)
from .values import compact, count, mapping, millis, said, sequence, text, usage

#: Lines that are known to stand for nothing in a conversation: types, events, items.
_QUIET: Final = frozenset(
    {
        "session_meta", "turn_context", "world_state", "compacted", "state", "legacy_meta", "rollout_reference",
        "inter_agent_communication", "inter_agent_communication_metadata", "additional_tools",
    }
)  # fmt: skip
_QUIET_EVENTS: Final = frozenset(
    {
        "agent_message", "agent_reasoning", "agent_reasoning_raw_content", "agent_reasoning_section_break",
        "collab_agent_interaction_end", "collab_agent_spawn_end", "collab_close_end", "collab_waiting_end",
        "context_compacted", "dynamic_tool_call_request", "dynamic_tool_call_response", "entered_review_mode", "error",
        "exec_command_end", "exited_review_mode", "guardian_assessment", "image_generation_end", "item_completed",
        "mcp_tool_call_end", "patch_apply_end", "stream_error", "sub_agent_activity", "task_complete", "task_started",
        "thread_goal_updated", "thread_name_updated", "thread_rolled_back", "thread_settings_applied", "token_count",
        "turn_aborted", "undo_completed", "user_message", "view_image_tool_call", "warning", "web_search_end",
    }
)  # fmt: skip
_QUIET_ITEMS: Final = frozenset(
    {
        "message", "reasoning", "agent_message", "ghost_snapshot", "compaction", "compaction_summary",
        "context_compaction", "compaction_trigger", *CALLS, *OUTPUTS, *HOSTED,
    }
)  # fmt: skip
_KNOWN: Final = {"event_msg": _QUIET_EVENTS, "response_item": _QUIET_ITEMS}
#: The tool's word for a count → ours.
_COUNTS: Final = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cached_input_tokens": "cache_read_tokens",
    "cache_write_input_tokens": "cache_write_tokens",
    "reasoning_output_tokens": "reasoning_tokens",
}
_NAMED: Final = re.compile(r"rollout-.*([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
#: Characters and number of a person's messages that are remembered.
_WORDS: Final = 80_000
_MOST: Final = 1_000
#: Errors of a request to the tool that leave the turn as it is.
_BESIDE: Final = ("thread_rollback_failed", "active_turn_not_steerable")


def read(source: Source, report: Report, name: str) -> Iterator[Record]:
    """See ``records``."""
    yield from _Reading(source, report, name).records()


@attrs.define(eq=False)
class _Answer:
    """A response that is being collected: where it began, its calls by id with their places, and where results of it
    stand that have been passed over already.
    """

    base: dict[str, Any]
    content: Blocks = attrs.Factory(list)
    message_id: str | None = None
    calls: dict[str, Place] = attrs.Factory(dict)
    results: list[Place] = attrs.Factory(list)


class _Reading:
    def __init__(self, source: Source, report: Report, name: str) -> None:
        self._source = source
        self._report = report
        self._stem = PurePath(name).stem
        self._content = Content(report)
        self._tokens = _Tokens()
        self._plan = Plan()
        self._begun = self._own = False
        #: The session's id, and that of the one that it was begun from.
        self._session: str | None = None
        self._parent: str | None = None
        self._thread = MAIN
        self._threads = {MAIN}
        self._answer: _Answer | None = None
        #: Calls of the turn without a result; where results of them stand behind what comes next; the lines of those
        #: that were given out before their place.
        self._open: set[str] = set()
        #: What kind of output they wait for, by id.
        self._families: dict[str, str] = {}
        self._awaited: list[Place] = []
        self._early: set[int] = set()
        #: Of the turn: is one open, has its own event told of it, has a model answered, did that want nothing more?
        self._in_turn = self._started = self._answered = self._done = False
        #: What the turn ends with, once something comes that ends it.
        self._ending: End | None = None
        self._model: str | None = None
        self._cwd: str | None = None
        #: What was said by a person, by thread: the newest of it.
        self._words: deque[tuple[str, str]] = deque()
        self._heard_chars = 0
        self._unknown: dict[str, Place] = {}
        #: Other sessions that lines say they are of.
        self._others: set[str | None] = set()

    def records(self) -> Iterator[Record]:
        self._plan = look(self._source)
        self._model = self._plan.model
        base: dict[str, Any] | None = None
        for line in objects(self._source, self._report):
            base = {"place": line.place, "time": millis(line.value.get("timestamp")), "thread": self._thread}
            yield from self._line(line, base)
        if base is not None:
            yield from self._finish({**base, "time": None, "thread": self._thread})
        for type_, place in self._unknown.items():
            number = self._report.kept[type_]
            lines = "1 line" if number == 1 else f"{number} lines"
            self._tell("unknown_lines", f"{lines} of type {type_[:80]}: nothing is known of them", place)

    def _finish(self, base: dict[str, Any]) -> Iterator[Record]:
        yield from self._flush()
        if self._ending is None and not self._plan.tasks and self._in_turn and self._done:
            self._ending = End(place=base["place"], kind="completed")
        yield from self._end(base)
        if (left := self._tokens.take()) is not None:
            yield Note(**base, kind="usage", text=f"Counted behind the last response: {compact(left)}")

    def _line(self, line: Line, base: dict[str, Any]) -> Iterator[Record]:
        type_, payload = opened(line.value)
        number = base["place"].line
        if not self._begun:
            yield from self._begin(type_, payload, base)
        elif not self._own:
            yield from self._copied(number, type_, payload, base)
            base = {**base, "thread": self._thread}
        if type_ == "response_item":
            yield from self._item(number, line.value, payload, base)
        elif type_ == "event_msg":
            yield from self._event(number, line.value, payload, base)
        elif type_ == "compacted":
            yield from self._compacted(line.value, payload, base)
        else:
            if type_ == "turn_context":
                yield from self._context(payload, base)
            elif type_ == "session_meta" and base["thread"] != COPIED:
                self._other(payload, base["place"])
            yield self._kept(line.value, base)

    # ------------------------------------------------------------ the session

    def _begin(self, type_: str, payload: JsonObject, base: dict[str, Any]) -> Iterator[Record]:
        self._begun = True
        if type_ not in ("session_meta", "legacy_meta"):
            message = "the file does not begin with what its session is, without which Codex does not open it"
            self._tell("bad_header", message, base["place"])
            payload = {}
        session_id = items.message_id(payload.get("id")) or items.message_id(payload.get("session_id"))
        if session_id is None and (found := _NAMED.fullmatch(self._stem)) is not None:
            session_id = found[1]
        spawned = mapping(mapping(mapping(payload.get("source")).get("subagent")).get("thread_spawn"))
        agents = (given.get(key) for given in (payload, spawned) for key in ("agent_nickname", "agent_role"))
        starter = _first_id(payload.get("parent_thread_id"), spawned.get("parent_thread_id"))
        self._parent = starter or _first_id(payload.get("forked_from_id"))
        self._session = session_id
        self._cwd = self._plan.cwd or text(payload.get("cwd"))
        yield Begin(
            **base,
            session_id=session_id,
            cwd=self._cwd,
            model=self._model,
            provider=text(payload.get("model_provider")) or "openai",
            agent_name=next((agent for agent in agents if text(agent)), None),
            kind="main" if starter is None else "subagent",
            begun_by=self._parent,
            call_id=None if starter is None else _first_id(spawned.get("spawn_call_id")),
        )

    def _copied(self, number: int, type_: str, payload: JsonObject, base: dict[str, Any]) -> Iterator[Record]:
        """Behind the first line: is this what a parent said, or the first that is the session's own?"""
        if number > self._plan.inherited:
            yield from self._flush()
            yield from self._end(base, passed=True)
            self._own, self._thread = True, MAIN
            self._model = self._plan.model or self._model
        elif COPIED not in self._threads:
            message = (
                f"what stands up to line {self._plan.inherited} was copied from the session that this one began in"
            )
            self._tell("copied_lines", message, base["place"])
            self._threads.add(COPIED)
            self._thread = COPIED
            meta = payload if type_ == "session_meta" else {}
            session_id, cwd = items.message_id(meta.get("id")) or self._parent, text(meta.get("cwd"))
            yield Begin(
                **{**base, "thread": COPIED},
                kind="branch",
                parent=MAIN,
                session_id=session_id,
                begun_by=session_id,
                cwd=cwd,
                name=f"what {session_id or 'another session'} had said before",
            )

    def _other(self, payload: JsonObject, place: Place) -> None:
        """Behind what was copied another session has nothing to say here."""
        other = _first_id(payload.get("id"), payload.get("session_id"))
        self._session = self._session or other
        if other not in (None, self._session) and other not in self._others:
            if len(self._others) < _MOST:
                self._others.add(other)
            self._tell("other_session", f"the line says that it is of session {other}", place)

    def _context(self, payload: JsonObject, base: dict[str, Any]) -> Iterator[Record]:
        yield from self._flush()
        self._model = text(payload.get("model")) or self._model
        cwd = text(payload.get("cwd"))
        if cwd is not None and cwd != self._cwd:
            self._cwd = cwd
            yield Setting(**base, patch={"cwd": cwd})

    # ------------------------------------------------------------ turns

    def _prompt(self, number: int, content: Blocks, message_id: str | None, base: dict[str, Any]) -> Iterator[Record]:
        yield from self._flush()
        if number in self._plan.steering:
            self._heard(base["thread"], content)
            yield Said(**base, content=content, message_id=message_id)
            return
        yield from self._end(base)
        self._turn_over()
        self._in_turn = True
        thread = self._plan.thread(number)
        base = {**base, "thread": thread}
        if thread not in self._threads:
            self._threads.add(thread)
            after = self._plan.branches[thread]
            parent = self._plan.base(number) if after is None else self._plan.thread(after)
            yield Begin(**base, kind="branch", parent=parent, after=None if after is None else _turn(after))
        self._thread = thread
        self._heard(thread, content)
        yield Prompt(**base, turn=_turn(number), content=content, message_id=message_id)

    def _heard(self, thread: str, content: Blocks) -> None:
        """What a person said, as far back as a compaction of Codex itself goes."""
        spoken = "\n".join(block["text"] for block in content if block["kind"] == "text")[-_WORDS:]
        self._words.append((thread, spoken))
        self._heard_chars += len(spoken)
        while self._heard_chars > _WORDS or len(self._words) > _MOST:
            self._heard_chars -= len(self._words.popleft()[1])

    def _turn_over(self) -> None:
        self._in_turn = self._started = self._answered = self._done = False
        self._ending = None
        self._open.clear()
        self._families.clear()

    def _end(self, base: dict[str, Any], *, passed: bool = False) -> Iterator[Record]:
        """The end that the turn has; ``passed``: it has one, and if nothing tells which, then as it was left."""
        ending = self._ending
        if ending is None and passed and self._in_turn:
            kind: Any = "completed" if self._done and not self._open else "interrupted"
            ending = End(place=base["place"], kind=kind)
        if ending is not None:
            self._turn_over()
            yield attrs.evolve(ending, place=base["place"], thread=base["thread"])

    def _task(self, kind: str, payload: JsonObject, base: dict[str, Any]) -> Iterator[Record]:
        if kind == "turn_aborted":
            self._abort(base, text(payload.get("reason")))
            return
        yield from self._flush()
        if kind == "task_started":
            if self._ending is not None or self._answered or self._started:
                yield from self._end(base, passed=True)
            self._started = True
            return
        if self._ending is None:
            error = payload.get("error")
            self._ending = _failed(mapping(error), base) if error else End(**base, kind="completed")
        yield from self._end(base)

    def _abort(self, base: dict[str, Any], reason: str | None = None) -> None:
        """Marks the turn: what was on its way when it was aborted comes behind this."""
        if self._on() and (self._ending is None or self._ending.kind != "aborted"):
            self._ending = End(place=base["place"], kind="aborted", source="user", message=reason)

    def _on(self) -> bool:
        return self._in_turn or self._answer is not None

    def _roll_back(self, number: int, payload: JsonObject, base: dict[str, Any]) -> Iterator[Record]:
        yield from self._flush()
        yield from self._end(base)
        if number not in self._plan.back:
            return
        self._turn_over()
        back = self._plan.back[number]
        self._thread = self._plan.base(number) if back is None else self._plan.thread(back)
        self._tell("rewound", f"the last {count(payload.get('num_turns'))} turns were taken back here", base["place"])

    # ------------------------------------------------------------ what the model says

    def _collect(self, base: dict[str, Any]) -> Iterator[Record]:
        """Begins a response where none is being collected."""
        if self._answer is not None and self._answer.results:
            yield from self._flush()
        if self._answer is None:
            self._answer = _Answer(base)
        if self._ending is not None and self._ending.kind == "failed":
            self._ending = None

    def _flush(self) -> Iterator[Record]:
        answer, self._answer = self._answer, None
        if answer is None:
            return
        yield from self._before(answer)
        self._open.update(answer.calls)
        asked = ((place.line, key_of(call_id)) for call_id, place in answer.calls.items())
        self._awaited += [self._plan.late[each] for each in asked if each in self._plan.late]
        self._in_turn = self._answered = True
        self._done = not answer.calls
        yield Response(
            **answer.base,
            content=answer.content,
            places=answer.calls,
            message_id=answer.message_id,
            usage=self._tokens.take(),
            model=self._model,
        )
        for place in answer.results:
            if place.line not in self._early:
                yield self._result(place, answer.base["thread"])

    def _before(self, answer: _Answer) -> Iterator[Record]:
        """Results of the turn's earlier calls that stand behind this response."""
        awaited, self._awaited = self._awaited, []
        for place in awaited:
            if place.line > answer.base["place"].line:
                self._early.add(place.line)
                yield self._result(place, answer.base["thread"])

    def _result(self, place: Place, thread: str) -> Result:
        value = at(self._source, place)
        _, payload = opened(value)
        call_id, family = call_id_of(payload), FAMILIES.get(kind_of(payload), "")
        if (other := items.short(f"{call_id}:{family}")) in self._families:
            call_id = other
        self._open.discard(call_id)
        self._families.pop(call_id, None)
        output = payload.get("output")
        given = payload.get("tools") if kind_of(payload) == "tool_search_output" else output
        if kind_of(payload) == "tool_search_output":
            content = said(compact(given))
        else:
            content = self._content.of(given, place)
        return Result(
            place=place,
            time=millis(value.get("timestamp")),
            thread=thread,
            call_id=call_id,
            content=content,
            state="error" if mapping(output).get("success") is False else "ok",
        )

    # ------------------------------------------------------------ items

    def _item(self, number: int, value: JsonObject, payload: JsonObject, base: dict[str, Any]) -> Iterator[Record]:
        kind, role = kind_of(payload), role_of(payload)
        asked = number in self._plan.prompts or number in self._plan.steering
        if asked or kind in (*CALLS, *OUTPUTS, "reasoning") or role == "assistant":
            yield from self._misfit(value, payload, base)
        if kind in OUTPUTS:
            yield from self._output(base)
        elif kind in CALLS:
            yield from self._collect(base)
            block = items.call(payload)
            block["call_id"] = self._named(block["call_id"], FAMILIES[kind])
            self._add([block])
            assert self._answer is not None
            self._answer.calls[block["call_id"]] = base["place"]
        elif kind == "reasoning":
            yield from self._collect(base)
            self._add(items.thinking(payload))
        elif role == "assistant":
            yield from self._collect(base)
            self._add(self._content.of(payload.get("content"), base["place"]), items.message_id(payload.get("id")))
        elif asked:
            content = self._content.of(payload.get("content"), base["place"])
            yield from self._prompt(number, content, items.message_id(payload.get("id")), base)
        else:
            if kind in HOSTED:
                yield self._hosted(kind, payload, base)
            elif kind == "agent_message" and (told := items.told(payload)):
                yield Said(**base, content=said(told), source="agent")
            elif role == "user" and items.tells_of_abort(payload):
                self._abort(base)
            yield self._kept(value, base)

    def _misfit(self, value: JsonObject, payload: JsonObject, base: dict[str, Any]) -> Iterator[Record]:
        """Of what is read of a line not all may be there."""
        if (why := items.unfit(payload)) is not None:
            self._tell("misfit", why, base["place"])
            yield self._kept(value, base)

    def _named(self, call_id: str, family: str) -> str:
        """The id of a call; of two open ones of different kinds that have the same the second gets another."""
        if self._families.setdefault(call_id, family) != family:
            call_id = items.short(f"{call_id}:{family}")
            self._families[call_id] = family
        return call_id

    def _add(self, content: Blocks, message_id: str | None = None) -> None:
        assert self._answer is not None
        self._answer.content += content
        self._answer.message_id = self._answer.message_id or message_id

    def _output(self, base: dict[str, Any]) -> Iterator[Record]:
        place = base["place"]
        if self._answer is not None and not self._tokens.waiting:
            # What it took may stand behind the results.
            self._answer.results.append(place)
            return
        yield from self._flush()
        if place.line not in self._early:
            yield self._result(place, base["thread"])

    def _hosted(self, kind: str, payload: JsonObject, base: dict[str, Any]) -> Note:
        self._tell("hosted_tool", f"the provider ran {kind} itself", base["place"])
        what = payload.get("action") or payload.get("revised_prompt") or payload.get("status") or ""
        return Note(**base, kind="hosted_tool", text=f"{kind}: {compact(what)}")

    # ------------------------------------------------------------ events

    def _event(self, number: int, value: JsonObject, payload: JsonObject, base: dict[str, Any]) -> Iterator[Record]:
        kind = kind_of(payload)
        if number in self._plan.prompts or number in self._plan.steering:
            yield from self._misfit(value, payload, base)
            whole = items.user_item(payload)
            content = (
                self._of_person(number, payload, base["place"])
                if whole is None
                else self._content.of(whole.get("content"), base["place"])
            )
            yield from self._prompt(number, content, None, base)
            return
        if kind == "token_count":
            yield from self._count(payload)
        elif kind in ("task_started", "task_complete", "turn_aborted"):
            yield from self._task(kind, payload, base)
        elif number in self._plan.alone:
            yield from self._misfit(value, payload, base)
            yield from self._collect(base)
            shown = payload.get(SHOWN[kind])
            if kind == "agent_message":
                self._add(self._content.of(shown, base["place"]))
            else:
                self._add([{"kind": "thinking", "text": compact("" if shown is None else shown)}])
            return
        elif kind == "thread_rolled_back":
            yield from self._roll_back(number, payload, base)
            base = {**base, "thread": self._thread}
        elif kind == "thread_name_updated" and (name := text(payload.get("thread_name"))) is not None:
            yield Setting(**base, patch={"name": name})
        elif kind in ("error", "stream_error"):
            told = text(payload.get("message")) or compact(payload)
            if kind == "error" and self._on() and self._ending is None and not _beside(payload):
                self._ending = _failed(payload, base)
            yield Note(**base, kind="api_error", text=told)
        yield self._kept(value, base)

    def _of_person(self, number: int, payload: JsonObject, place: Place) -> Blocks:
        content = self._content.of(payload.get("message"), place)
        item = self._plan.images.get(number)
        if item is None:
            urls = [*sequence(payload.get("images")), *sequence(payload.get("local_images"))]
        else:
            parts = sequence(opened(at(self._source, item))[1].get("content"))
            urls = [url for part in parts if (url := mapping(part).get("image_url"))]
        return content + [block for url in urls for block in self._content.image(url, place)]

    def _count(self, payload: JsonObject) -> Iterator[Record]:
        self._tokens.count(mapping(payload.get("info")), copied=self._thread != MAIN and not self._own)
        if self._answer is not None and self._tokens.waiting:
            yield from self._flush()

    def _compacted(self, value: JsonObject, payload: JsonObject, base: dict[str, Any]) -> Iterator[Record]:
        yield from self._flush()
        self._open.clear()
        self._families.clear()
        words = [spoken for thread, spoken in self._words if thread == base["thread"]]
        if summary := items.replacement(payload, words):
            yield Compaction(**base, summary=said(summary))
        elif items.is_sealed(payload):
            self._tell("sealed_summary", "only its provider can read what this compaction made", base["place"])
        yield self._kept(value, base)

    # ------------------------------------------------------------ lines that stand for nothing

    def _tell(self, code: str, message: str, place: Place) -> None:
        self._report.add(code, message, place.line, place.offset, place.length)

    def _kept(self, value: JsonObject, base: dict[str, Any]) -> Kept:
        type_, payload = opened(value)
        kind = kind_of(payload)
        inner = _KNOWN.get(type_)
        known = type_ in _QUIET if inner is None else kind in inner
        label = (f"{type_}/{kind}" if inner is not None else type_) or text(value.get("type")) or "untyped"
        self._report.kept[label] = self._report.kept.get(label, 0) + 1
        if not known:
            self._unknown.setdefault(label, base["place"])
        return Kept(**base, type=label, value=value)


class _Tokens:
    """Usage by the differences of a total that is repeated, and starts above zero in what goes on from elsewhere."""

    def __init__(self) -> None:
        self._total: dict[str, int] | None = None
        #: Counts that no response has yet.
        self.waiting: dict[str, int] = {}

    def count(self, info: JsonObject, *, copied: bool) -> None:
        total, last = _counts(info.get("total_token_usage")), _counts(info.get("last_token_usage"))
        if not total:
            return
        before, self._total = self._total, total
        if copied:
            return
        if before is None or any(total.get(key, 0) < before[key] for key in before):
            step = last or total
        else:
            step = {key: number - before.get(key, 0) for key, number in total.items()}
        if any(step.values()):
            self.waiting = {key: self.waiting.get(key, 0) + step.get(key, 0) for key in self.waiting | step}

    def take(self) -> JsonObject | None:
        taken, self.waiting = self.waiting, {}
        return usage(**taken)


def _counts(given: Any) -> dict[str, int]:
    return {
        ours: number for theirs, ours in _COUNTS.items() if (number := count(mapping(given).get(theirs))) is not None
    }


def _first_id(*given: Any) -> str | None:
    return next((each for each in map(items.message_id, given) if each is not None), None)


def _turn(number: int) -> str:
    return f"line-{number}"


def _failed(error: JsonObject, base: dict[str, Any]) -> End:
    return End(**base, kind="failed", failure_class="api_error", message=text(error.get("message")))


def _beside(error: JsonObject) -> bool:
    """Is the error one that no turn fails of?"""
    info = error.get("codex_error_info")
    return info in _BESIDE if isinstance(info, str) else any(key in mapping(info) for key in _BESIDE)
