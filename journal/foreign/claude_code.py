"""Claude Code transcripts: one content block a line, results by id, the order of a log. No I/O of its own.

A response is all lines of one ``message.id``; its usage is repeated on each of them, and counted once. Turns are not
marked: a person's prompt begins one, and what stands behind it tells how it ended.
"""

import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import PurePath
from typing import Any, Final

import attrs

from .. import images
from ..events import Blocks, JsonObject
from ..shapes import MAX_ID
from ..source import Source
from .claude_tree import (
    Thread,
    Tree,
    blocks_of,
    call_id_of,
    content_of,
    first_text,
    is_boundary,
    is_output,
    is_prompt,
    key_of,
    look,
    origin_of,
    preserved,
    unfit,
)
from .findings import Report
from .lines import Line, at, objects, parse
from .records import MAIN, Begin, Compaction, End, Kept, Note, Place, Prompt, Record, Response, Result, Said, Setting
from .values import compact, mapping, millis, said, sequence, text, usage

#: A file of this name is a helper's that summed a session up: copies of its lines, no conversation.
_HELPER: Final = "agent-acompact"
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|agent-[A-Za-z0-9_-]+")
#: Lines that name the session: the key that holds the name, and how much it counts.
_NAMES: Final = {"summary": ("summary", 1), "ai-title": ("aiTitle", 2), "custom-title": ("customTitle", 3)}
#: Lines that are known to stand for nothing in a conversation.
_QUIET: Final = frozenset(
    {
        "agent-name", "assistant", "attachment", "bridge-session", "file-history-snapshot", "frame-link", "last-prompt",
        "mode", "permission-mode", "pr-link", "progress", "queue-operation", "relocated", "result", "started", "system",
        "user", "worktree-state", *_NAMES,
    }
)  # fmt: skip
#: Of ``system`` lines those that are written once a turn is over.
_OVER: Final = frozenset({"turn_duration", "stop_hook_summary"})
#: Tools that start a subagent.
_STARTERS: Final = frozenset({"Task", "Agent"})
#: Texts of the tool that wait for what comes behind them; types of lines that are told apart, and characters of one.
_WAITING: Final = 100
_TYPES: Final = 1_000
_TYPE: Final = 100


def read(source: Source, report: Report, name: str) -> Iterator[Record]:
    """See ``records``."""
    yield from _Reading(source, report, name).records()


@attrs.frozen
class _Open:
    """A call without a result. ``head``: the line of its response; ``told``: what it tells the subagent it starts."""

    head: int
    told: str | None


@attrs.define(eq=False)
class _State:
    """Where a thread stands. ``named``: its newest turn; ``turn``: the same while that is open. ``end``: what the turn
    would have ended with, if it ended here. ``message``: the id of its newest message.
    """

    turn: str | None = None
    named: str | None = None
    end: End | None = None
    open: dict[str, _Open] = attrs.Factory(dict)
    #: Texts of the tool that belong to the turn that is over, or to the next one.
    waiting: list[Said] = attrs.Factory(list)
    message: str | None = None
    kept_from: str | None = None


@attrs.frozen
class _Mark:
    """Of a line that another one names: the turn and the message it is of."""

    turn: str | None
    message: str | None


class _Reading:
    def __init__(self, source: Source, report: Report, name: str) -> None:
        self._source = source
        self._report = report
        self._stem = PurePath(name).stem
        self._tree = Tree()
        self._states: dict[str, _State] = {}
        self._marks: dict[int, _Mark] = {}
        self._helper = False
        #: Results that were given out before their place, by line and call.
        self._early: set[tuple[int, int]] = set()
        #: Calls that a subagent was begun by.
        self._started: set[str] = set()
        self._name = 0
        self._unknown: dict[str, Place] = {}

    def records(self) -> Iterator[Record]:
        self._tree = look(self._source, self._report)
        last: Place | None = None
        for number, line in enumerate(objects(self._source, self._report)):
            last = line.place
            yield from self._line(number, line)
        self._tell_of_unknown()
        if last is not None:
            for name, state in self._states.items():
                base = {"place": last, "time": None, "thread": name}
                yield from self._let_go(state)
                yield from self._over(state, base)

    def _line(self, number: int, line: Line) -> Iterator[Record]:
        value, place, tree = line.value, line.place, self._tree
        thread = tree.threads[tree.thread(number)]
        base: dict[str, Any] = {"place": place, "time": millis(value.get("timestamp")), "thread": thread.name}
        if not self._states:
            yield from self._begin_main(base)
        if thread.name not in self._states:
            yield from self._begin(tree.thread(number), thread, base, value)
        state = self._states[thread.name]
        type_ = value.get("type")
        if tree.skipped(number) or self._helper:
            yield self._kept(value, base)
            return
        if type_ in ("user", "assistant") and (why := unfit(value)) is not None:
            self._tell("misfit", why, place)
            yield self._kept(value, base)
        if type_ == "user":
            yield from self._user(number, value, state, base)
        elif is_output(value):
            if not tree.further(number):
                yield from self._response(number, value, state, base)
        elif type_ == "assistant":
            yield from self._error(value, state, base)
        elif type_ == "system":
            yield from self._system(value, state, base)
        else:
            yield from self._other(value, state, base)
        if tree.wanted and (uuid := text(value.get("uuid"))) is not None and (key := key_of(uuid)) in tree.wanted:
            self._marks.setdefault(key, _Mark(state.named, state.message))

    def _tell(self, code: str, message: str, place: Place) -> None:
        self._report.add(code, message, place.line, place.offset, place.length)

    # ------------------------------------------------------------ threads

    def _begin_main(self, base: dict[str, Any]) -> Iterator[Record]:
        tree, said_of = self._tree, self._tree.said
        agent = text(said_of.get("agentId")) if tree.subagent else None
        self._helper = any(each.startswith(_HELPER) for each in (self._stem, f"agent-{agent}"))
        if self._helper:
            self._report.add("no_conversation", "the file is of a helper that summed a session up")
        session_id = self._stem if _UUID.fullmatch(self._stem) else text(said_of.get("sessionId"))
        if agent is not None and not self._stem.startswith("agent-"):
            session_id = f"agent-{agent}"
        # The lines of a subagent name the session that has started it.
        starter = _id(said_of.get("sessionId")) if tree.subagent else None
        if starter == session_id:
            starter = None
        self._states[MAIN] = _State()
        time = base["time"] if base["time"] is not None else millis(said_of.get("timestamp"))
        yield Begin(
            **{**base, "thread": MAIN, "time": time},
            session_id=session_id,
            cwd=text(said_of.get("cwd")),
            model=tree.models.get(0),
            provider="anthropic",
            agent_id=agent,
            kind="main" if starter is None else "subagent",
            begun_by=starter,
        )

    def _begin(self, index: int, thread: Thread, base: dict[str, Any], value: JsonObject) -> Iterator[Record]:
        above = self._states.get(thread.parent or "")
        self._states[thread.name] = _State()
        common = {**base, "cwd": text(value.get("cwd")), "model": self._tree.models.get(index)}
        if thread.kind == "branch":
            parent = text(value.get("parentUuid"))
            mark = None if parent is None else self._marks.get(key_of(parent))
            if above is not None:
                yield from self._over(above, {**base, "thread": thread.parent})
            yield Begin(**common, kind="branch", parent=thread.parent, after=None if mark is None else mark.turn)
        else:
            call_id = None if above is None else self._starter(above, first_text(value))
            agent = text(value.get("agentId"))
            yield Begin(**common, kind="subagent", parent=thread.parent, call_id=call_id, agent_id=agent)

    def _starter(self, state: _State, prompt: str) -> str | None:
        """The open call that told a subagent this; else the only one that may have started it."""
        free = {
            call_id: call.told
            for call_id, call in state.open.items()
            if call.told is not None and call_id not in self._started
        }
        same = [call_id for call_id, told in free.items() if told == prompt]
        found = same[0] if same else next(iter(free)) if len(free) == 1 else None
        if found is not None:
            self._started.add(found)
        return found

    def _over(self, state: _State, base: dict[str, Any]) -> Iterator[Record]:
        """The end of the turn as far as there is evidence of one."""
        end, state.end = state.end, None
        if state.turn is not None and end is not None:
            state.turn = None
            yield attrs.evolve(end, **{**base, "time": None})

    def _let_go(self, state: _State) -> Iterator[Record]:
        """What waited belongs to what came before it."""
        waiting, state.waiting = state.waiting, []
        yield from waiting

    # ------------------------------------------------------------ what the user's side says

    def _user(self, number: int, value: JsonObject, state: _State, base: dict[str, Any]) -> Iterator[Record]:
        place = base["place"]
        if value.get("isCompactSummary") is True:
            yield from self._let_go(state)
            kept_from, state.kept_from = state.kept_from, None
            if summary := self._content(content_of(value), place):
                yield Compaction(**base, summary=summary, kept_from=kept_from)
            elif unfit(value) is None:
                yield self._kept(value, base)
            return
        results = False
        for block in blocks_of(value, "tool_result"):
            results = True
            at_ = number, key_of(call_id_of(block.get("tool_use_id")))
            if at_ not in self._early and at_ not in self._tree.ahead:
                yield from self._let_go(state)
                yield self._result(block, state, base)
        others = [each for each in content_of(value) if not _is_result(each)]
        content = self._content(others, place)
        if not content:
            if not results and unfit(value) is None:
                yield self._kept(value, base)
            return
        state.message = message_id = _id(value.get("uuid")) or f"line-{place.line}"
        if is_prompt(value):
            yield from self._over(state, base)
            yield from self._let_go(state)
            yield self._prompt(state, Said(**base, content=content, message_id=message_id, source="user"))
            return
        origin = origin_of(value)
        told = Said(**base, content=content, message_id=message_id, source="context" if origin == "user" else origin)
        if origin == "interruption":
            yield from self._let_go(state)
            state.end = End(place=place, kind="aborted", source="user")
            yield told
        elif state.turn is None or state.end is not None:
            state.waiting.append(told)
            if len(state.waiting) > _WAITING:
                yield from self._let_go(state)
        else:
            yield told

    def _prompt(self, state: _State, told: Said) -> Prompt:
        """Begins a turn."""
        assert told.message_id is not None
        state.turn = state.named = told.message_id
        state.end = None
        state.open.clear()
        return Prompt(
            place=told.place,
            time=told.time,
            thread=told.thread,
            turn=told.message_id,
            content=told.content,
            message_id=told.message_id,
            source=told.source,
        )

    def _result(self, block: JsonObject, state: _State, base: dict[str, Any]) -> Result:
        call_id = call_id_of(block.get("tool_use_id"))
        state.open.pop(call_id, None)
        given = block.get("content")
        blocks = given if isinstance(given, list) else [] if given is None else [given]
        return Result(
            **base,
            call_id=call_id,
            content=self._content(blocks, base["place"]),
            state="error" if block.get("is_error") is True else "ok",
        )

    # ------------------------------------------------------------ what the model says

    def _response(self, number: int, value: JsonObject, state: _State, base: dict[str, Any]) -> Iterator[Record]:
        yield from self._moved(state, base)
        yield from self._asked(state, base)
        opens = None if state.turn is not None else f"line-{base['place'].line}"
        if opens is not None:
            state.turn = state.named = opens
        places = self._tree.fragments(number)
        lines = [(place, value if place == base["place"] else at(self._source, place)) for place in places]
        message = mapping(value.get("message"))
        content = self._content(self._once(lines), base["place"], model=True)
        calls = [block for block in content if block["kind"] == "tool_call"]
        for call in calls:
            state.open[call["call_id"]] = _Open(number, _told(call) if call["name"] in _STARTERS else None)
        state.end = None if calls else End(place=base["place"], kind="completed")
        state.message = _id(message.get("id")) or _id(value.get("uuid"))
        reasons = [text(mapping(line.get("message")).get("stop_reason")) for _, line in lines]
        yield Response(
            **base,
            turn=opens,
            content=content,
            message_id=state.message,
            stop_reason=next((reason for reason in reversed(reasons) if reason), ""),
            usage=_usage([line for _, line in lines]),
            model=text(message.get("model")),
        )
        yield from self._moved(state, base, before=number)

    def _asked(self, state: _State, base: dict[str, Any]) -> Iterator[Record]:
        """What waited is what is answered: a command, or whatever follows on a failed turn, in a turn of its own."""
        over = state.turn is None or (state.end is not None and state.end.kind != "completed")
        if state.waiting and (over or any(each.source == "command" for each in state.waiting)):
            yield from self._over(state, base)
            first, *state.waiting = state.waiting
            yield self._prompt(state, first)
        yield from self._let_go(state)

    def _once(self, lines: list[tuple[Place, JsonObject]]) -> list[Any]:
        """The blocks of a response's lines; what some gateways write again in a later line counts once."""
        out = list(content_of(lines[0][1]))
        seen = {_digest(block) for block in out} if len(lines) > 1 else set()
        for place, line in lines[1:]:
            blocks = [(_digest(block), block) for block in content_of(line)]
            new = [block for digest, block in blocks if digest not in seen or _is_blank(block)]
            if len(new) < len(blocks):
                self._tell("duplicate_line", "the line repeats what its response has said already", place)
            seen.update(digest for digest, _ in blocks)
            out += new
        return out

    def _moved(self, state: _State, base: dict[str, Any], before: int | None = None) -> Iterator[Record]:
        """Results of open calls that stand further below, and belong before the response that comes now; with
        ``before``: those of the response of that line that stand above it.
        """
        for call_id, call in list(state.open.items()):
            key = key_of(call_id)
            line = self._tree.moved.get((call.head, key)) if before in (None, call.head) else None
            if line is None or (before is not None and line > before) or (line, key) in self._early:
                continue
            place = self._tree.place(line)
            value = at(self._source, place)
            block = next(
                (b for b in blocks_of(value, "tool_result") if call_id_of(b.get("tool_use_id")) == call_id), None
            )
            if block is not None:
                self._early.add((line, key))
                yield self._result(block, state, {**base, "place": place, "time": millis(value.get("timestamp"))})

    def _error(self, value: JsonObject, state: _State, base: dict[str, Any]) -> Iterator[Record]:
        """What the tool writes in a model's place."""
        told = first_text(value) or "\n".join(map(compact, filter(_is_no_text, content_of(value))))
        failed = value.get("isApiErrorMessage") is True
        yield from self._asked(state, base)
        yield Note(**base, kind="api_error" if failed else "synthetic", text=told)
        if failed:
            state.end = End(place=base["place"], kind="failed", failure_class="api_error", message=told or None)

    # ------------------------------------------------------------ other lines

    def _system(self, value: JsonObject, state: _State, base: dict[str, Any]) -> Iterator[Record]:
        if value.get("subtype") == "api_error":
            yield Note(**base, kind="api_error", text=_note(value))
            return
        if text(value.get("subtype")) in _OVER and state.turn is not None and state.end is None:
            state.end = End(place=base["place"], kind="completed")
        elif is_boundary(value):
            marks = (self._marks.get(key) for key in preserved(value))
            state.kept_from = next((mark.message for mark in marks if mark is not None), None)
        yield self._kept(value, base)

    def _other(self, value: JsonObject, state: _State, base: dict[str, Any]) -> Iterator[Record]:
        type_ = value.get("type")
        if type_ == "attachment":
            queued = mapping(value.get("attachment"))
            prompt = queued.get("prompt") if queued.get("type") == "queued_command" else None
            blocks = [{"type": "text", "text": prompt}] if text(prompt) is not None else sequence(prompt)
            if content := self._content(blocks, base["place"]):
                yield from self._let_go(state)
                source = "steering" if queued.get("commandMode", "prompt") == "prompt" else "context"
                state.message = _id(value.get("uuid"))
                yield Said(**base, content=content, message_id=state.message, source=source)
                return
        elif isinstance(type_, str) and type_ in _NAMES:
            key, weight = _NAMES[type_]
            leaf = text(value.get("leafUuid"))
            # Summaries may name other sessions.
            mine = type_ != "summary" or (leaf is not None and key_of(leaf) in self._tree.known)
            if mine and weight >= self._name and (name := text(value.get(key))) is not None:
                self._name = weight
                yield Setting(**base, patch={"name": name})
        yield self._kept(value, base)

    def _kept(self, value: JsonObject, base: dict[str, Any]) -> Kept:
        given, kept = value.get("type"), self._report.kept
        type_ = given[:_TYPE] if isinstance(given, str) else "untyped"
        if type_ not in kept and len(kept) >= _TYPES:
            type_ = "others"
        kept[type_] = kept.get(type_, 0) + 1
        if type_ not in _QUIET:
            self._unknown.setdefault(type_, base["place"])
        return Kept(**base, type=type_, value=value)

    def _tell_of_unknown(self) -> None:
        for type_, place in self._unknown.items():
            count = self._report.kept[type_]
            lines = "1 line" if count == 1 else f"{count} lines"
            self._tell("unknown_lines", f"{lines} of type {type_}: nothing is known of them", place)

    # ------------------------------------------------------------ content

    def _content(self, blocks: list[Any], place: Place, *, model: bool = False) -> Blocks:
        out: Blocks = []
        for block in blocks:
            out += self._block(block, place, model=model)
        return out

    def _block(self, block: Any, place: Place, *, model: bool) -> Blocks:
        if not isinstance(block, dict):
            return said(compact(block))
        type_ = block.get("type")
        if type_ == "text" and isinstance(told := block.get("text"), str):
            return said(told)
        if type_ == "thinking" and model:
            signed = {"signature": block["signature"]} if text(block.get("signature")) else {}
            return [{"kind": "thinking", "text": compact(block.get("thinking", "")), **signed}]
        if type_ == "redacted_thinking" and model:
            return [{"kind": "redacted_thinking", "data": compact(block.get("data", ""))}]
        if type_ == "tool_use" and model:
            name = text(block.get("name")) or "unknown"
            arguments = compact(block.get("input", {}))
            return [{"kind": "tool_call", "call_id": call_id_of(block.get("id")), "name": name, "arguments": arguments}]
        if type_ in ("image", "document"):
            return self._media(block, place)
        if model and isinstance(type_, str) and type_.endswith(("_tool_use", "_tool_result")):
            self._tell("hosted_tool", f"the provider ran a tool itself: {type_[:_TYPE]}", place)
            return said(f"[{type_}: {compact(block)}]")
        return said(compact(block))

    def _media(self, block: JsonObject, place: Place) -> Blocks:
        origin = mapping(block.get("source"))
        data, media_type = text(origin.get("data")), text(origin.get("media_type"))
        kind = "image" if block.get("type") == "image" else "file"
        if data is None or origin.get("type") not in (None, "base64"):
            told = text(origin.get("url")) or text(origin.get("file_id"))
            self._tell("image_elsewhere", f"the {kind} is not in this file", place)
            return said(f"[{kind}: {told or 'its bytes are not here'}]")
        if kind == "image" and (why := images.unusable(data)) is not None:
            self._tell("image_unusable", f"an image that no provider takes: {why}", place)
        return [{"kind": kind, "media_type": media_type or "application/octet-stream", "data": data}]


def _id(value: Any) -> str | None:
    """An id that a journal can have."""
    return value if isinstance(value, str) and 0 < len(value) <= MAX_ID else None


def _usage(lines: list[JsonObject]) -> JsonObject | None:
    """The counts of the line that says most; the others of a response repeat what was known by then."""
    given = [mapping(mapping(line.get("message")).get("usage")) for line in lines]
    counted = [each for each in given if each]
    if not counted:
        return None
    outs = [each["output_tokens"] for each in counted if each.get("output_tokens").__class__ is int]
    last = counted[-1]
    return usage(
        input_tokens=last.get("input_tokens"),
        output_tokens=max(outs, default=None),
        cache_read_tokens=last.get("cache_read_input_tokens"),
        cache_write_tokens=last.get("cache_creation_input_tokens"),
    )


def _told(call: JsonObject) -> str:
    """What a call tells the subagent that it starts."""
    return text(mapping(parse(call["arguments"].encode("utf-8", "replace"))).get("prompt")) or ""


def _digest(block: Any) -> bytes:
    return sha256(compact(block).encode("utf-8", "replace")).digest()


def _is_result(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "tool_result"


def _is_blank(block: Any) -> bool:
    return not _is_no_text(block) and not block["text"].strip()


def _is_no_text(block: Any) -> bool:
    return not (isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str))


def _note(value: JsonObject) -> str:
    for key in ("content", "error", "cause", "message"):
        if value.get(key):
            return compact(value[key])
    return compact(value)
