"""Sessions of pi, oh-my-pi and OpenClaw: an entry a line, results by the ids of calls, branches in one file. No I/O of
its own.

A user's message begins a turn. A response with whose reason nothing more is asked for ends it, unless the path goes on
with another response or a result: the tool tries again by itself.
"""

from collections.abc import Iterator
from typing import Any, Final

import attrs

from .. import images
from ..events import Blocks, JsonObject
from ..shapes import MAX_ID
from ..source import Source
from . import pi_tree as tree_of
from .findings import Report
from .lines import at, objects
from .pi_branches import GOES_ON, Branch, branches
from .pi_forms import amiss
from .pi_tree import ANSWER, ASIDE, BORDERS, BROKEN, COMPACTION, NONE, PROMPT, QUIET, RESULT, SAID, key_of
from .records import (
    MAIN,
    Begin,
    Compaction,
    Dispatch,
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
from .values import compact, mapping, millis, said, sequence, text, usage

#: Lines that are known to stand for nothing in a conversation.
_QUIET: Final = frozenset(
    {
        "archive", "credential_pin", "custom", "label", "leaf", "mode_change", "model_change", "model_usage",
        "service_tier_change", "session", "session_info", "session_init", "thinking_level_change", "title",
        "title_change", "ttsr_injection", *tree_of.TYPES, *(f"message/{role}" for role in tree_of.ROLES),
    }
)  # fmt: skip
#: Of lines that name the session, the key that holds the name.
_NAMES: Final = {"session_info": "name", "title_change": "title"}
#: Types of lines that are counted by name, and characters of a name.
_TYPES: Final = 1_000
_TYPE: Final = 80
_CLEARED: Final = "[The conversation was begun anew here.]"


def read(source: Source, report: Report, name: str) -> Iterator[Record]:
    """See ``records``."""
    yield from _Reading(source, report).records()


@attrs.define(eq=False)
class _Thread:
    """``open``: calls of the last response without a result. ``early``: lines of results that were given out before
    their place. ``running``: calls that ran, as far as nobody asks for them.
    """

    number: int
    open: set[str] = attrs.Factory(set)
    early: set[int] = attrs.Factory(set)
    running: set[int] = attrs.Factory(set)


@attrs.define(eq=False)
class _Entry:
    """A line as one thread has it. ``next``: the kind of what follows there. ``again``: it was given out in another
    thread, and is counted there.
    """

    line: int
    value: JsonObject
    thread: _Thread
    base: dict[str, Any]
    next: int
    again: bool

    @property
    def place(self) -> Place:
        place: Place = self.base["place"]
        return place

    @property
    def message(self) -> JsonObject:
        return mapping(self.value.get("message"))

    @property
    def message_id(self) -> str:
        """The entry's id; the oldest files have none."""
        own = text(self.value.get("id"))
        return own if own is not None and len(own) <= MAX_ID else f"line-{self.place.line}"


class _Reading:
    def __init__(self, source: Source, report: Report) -> None:
        self._source = source
        self._report = report
        self._tree = tree_of.look(source, report)
        self._branches = branches(self._tree, report)
        self._threads: dict[int, _Thread] = {}
        self._unknown: dict[str, Place] = {}
        #: What was told of entries that lack something.
        self._told: set[str] = set()

    def records(self) -> Iterator[Record]:
        for line, read in enumerate(objects(self._source, self._report)):
            if line == self._tree.size:
                break
            yield from self._line(line, read.value, read.place)
        for type_, place in self._unknown.items():
            count = self._report.kept[type_]
            told = f"{count} lines of type {type_} stand for nothing that is known here"
            self._report.add("unknown_lines", told, place.line, place.offset, place.length)

    def _line(self, line: int, value: JsonObject, place: Place) -> Iterator[Record]:
        if not self._threads:
            self._threads[0] = _Thread(0)
            yield self._begin(place, value)
        if (branch := self._branches.first.get(line)) is not None:
            yield from self._branch(branch, self._branches.threads[line], place, value)
        thread = self._threads[self._branches.threads[line]]
        entry = self._entry(line, value, place, thread, self._branches.next[line], again=False)
        if self._branches.live[line]:
            yield from self._given(entry)
            if (what := amiss(value)) is not None:
                self._lacks(entry, what)
                yield self._kept(entry)
        else:
            yield self._kept(entry)

    def _entry(
        self, line: int, value: JsonObject, place: Place, thread: _Thread, following: int, *, again: bool
    ) -> _Entry:
        name = self._branches.all[thread.number].name
        base = {"place": place, "time": _time(value), "thread": name}
        return _Entry(line, value, thread, base, following, again)

    def _given(self, entry: _Entry) -> Iterator[Record]:
        kind = self._tree.kinds[entry.line]
        if kind in BORDERS:
            entry.thread.open.clear()
        if kind == PROMPT:
            content = self._content(entry.message.get("content"), entry)
            turn = _turn(entry.thread.number, entry.line)
            yield Prompt(**entry.base, turn=turn, content=content, message_id=entry.message_id)
        elif kind in (ASIDE, SAID):
            content, origin = self._said(entry)
            yield Said(**entry.base, content=content, message_id=entry.message_id, source=origin)
        elif kind == ANSWER:
            yield from self._answer(entry)
        elif kind == RESULT:
            if entry.line not in entry.thread.early:
                self._look_behind(entry)
                yield self._result(entry)
        elif kind == COMPACTION:
            yield self._compaction(entry)
        elif kind == QUIET:
            yield from self._quiet(entry)

    # ------------------------------------------------------------ threads

    def _begin(self, place: Place, value: JsonObject) -> Begin:
        tree = self._tree
        header = tree.header
        return Begin(
            place=place,
            time=_time(header) or _time(value),
            session_id=text(header.get("id")),
            **self._origin(),
            name=tree.title or text(header.get("title")),
            dispatches=tree.recorded_from is not None,
        )

    def _origin(self) -> dict[str, Any]:
        header = self._tree.header
        return {
            "cwd": text(header.get("cwd")),
            "model": text(header.get("modelId")) or self._tree.model,
            "provider": text(header.get("provider")) or self._tree.provider,
        }

    def _branch(self, branch: Branch, number: int, place: Place, value: JsonObject) -> Iterator[Record]:
        """Opens a branch, and gives what it shares with others and is not forked with."""
        forked = branch.parent != NONE
        thread = self._threads[number] = _Thread(number)
        yield Begin(
            place=place,
            time=_time(value),
            thread=branch.name,
            kind="branch",
            parent=self._branches.all[branch.parent].name if forked else MAIN,
            after=_turn(branch.parent, branch.after) if forked else None,
            **self._origin(),
            dispatches=self._tree.recorded_from is not None,
        )
        for line, following in zip(branch.again, self._branches.again_nexts(branch), strict=True):
            earlier = self._tree.place(line)
            value = at(self._source, earlier)
            yield from self._given(self._entry(line, value, earlier, thread, following, again=True))

    # ------------------------------------------------------------ responses and results

    def _answer(self, entry: _Entry) -> Iterator[Record]:
        message, thread = entry.message, entry.thread
        calls = tree_of.calls_of(entry.value)
        yield from self._results_below(entry, calls)
        thread.open = set(calls)
        reason = text(message.get("stopReason")) or ""
        # What was cut off never ran, unless something says that it did.
        broken = reason in BROKEN and not any(self._ran(call_id, entry) for call_id in calls)
        yield Response(
            **entry.base,
            content=self._content(message.get("content"), entry, model=True),
            turn=_turn(thread.number, entry.line),
            message_id=entry.message_id,
            stop_reason=reason,
            usage=None if entry.again else _usage(mapping(message.get("usage"))),
            model=text(message.get("model")),
            provider=text(message.get("provider")),
            interrupted=broken,
        )
        over = bool(self._tree.last[entry.line]) and entry.next not in GOES_ON
        for call_id in dict.fromkeys(calls):
            if self._tree.recorded_from is not None and self._began(call_id, entry, over):
                yield Dispatch(**entry.base, call_id=_call_id(call_id))
        told = text(message.get("errorMessage"))
        if over:
            yield _end(entry.place, entry.base["thread"], reason, told)
        elif told is not None:
            yield Note(**entry.base, kind="api_error", text=told)

    def _ran(self, call_id: str, entry: _Entry) -> bool:
        """On this branch or on another."""
        return key_of(call_id) in self._tree.running or self._tree.result_of(call_id, entry.line) is not None

    def _began(self, call_id: str, entry: _Entry, over: bool) -> bool:
        """Is it known now that the body of a call was entered, or not known that it was not? It need not be told now
        where that stands further below on the same path; unless the turn is ``over``, and that would come too late.
        """
        since = self._tree.recorded_from
        if since is not None and entry.line < since:
            return True
        line = self._tree.running.get(key_of(call_id))
        return line is not None and (over or line < entry.line or not self._branches.gives(entry.thread.number, line))

    def _result_line(self, call_id: str, entry: _Entry) -> int | None:
        number = entry.thread.number
        return self._tree.result_of(call_id, entry.line, lambda line: self._branches.gives(number, line))

    def _results_below(self, entry: _Entry, calls: list[str]) -> Iterator[Record]:
        """Results of earlier calls that stand further below, and belong before the response that comes now."""
        for call_id in sorted(entry.thread.open.difference(calls)):
            line = self._result_line(call_id, entry)
            if line is None or line in entry.thread.early:
                continue
            entry.thread.early.add(line)
            place = self._tree.place(line)
            value = at(self._source, place)
            yield self._result(self._entry(line, value, place, entry.thread, QUIET, again=entry.again))

    def _result(self, entry: _Entry) -> Result:
        message = entry.message
        call_id = compact(message.get("toolCallId"))
        entry.thread.open.discard(call_id)
        return Result(
            **entry.base,
            call_id=_call_id(call_id),
            content=self._content(message.get("content"), entry),
            state="error" if message.get("isError") is True else "ok",
            name=text(message.get("toolName")) or "",
        )

    def _look_behind(self, entry: _Entry) -> None:
        """A result that nobody asked for, directly behind a compaction: the tool went on while it recorded nothing."""
        tree = self._tree
        if entry.again or key_of(compact(entry.message.get("toolCallId"))) in tree.asked:
            return
        above = tree.parents[entry.line]
        while above != NONE and tree.kinds[above] == QUIET:
            above = tree.parents[above]
        if above == NONE or tree.kinds[above] != COMPACTION:
            return
        since, time = _time(at(self._source, tree.place(above))), entry.base["time"]
        gap = f" in {(time - since) / 1000:g} s" if time is not None and since is not None else ""
        self._tell(
            entry,
            "unrecorded_span",
            f"what happened{gap} between the compaction and this result is not on record",
            related=tree.place(above).line,
        )

    # ------------------------------------------------------------ what else there is

    def _said(self, entry: _Entry) -> tuple[Blocks, str]:
        """A message that begins no turn, and whose it is."""
        value, message = entry.value, entry.message
        type_ = value.get("type")
        if type_ == "branch_summary":
            return said(f"[What happened on a branch that was left:]\n{compact(value.get('summary', ''))}"), type_
        if type_ == "custom_message":
            return self._content(value.get("content"), entry), text(value.get("customType")) or type_
        role = compact(message.get("role"))
        if role in ("bashExecution", "pythonExecution"):
            return [*said(_ran_by_hand(message)), *self._content(message.get("images"), entry)], role
        if role == "fileMention":
            out: Blocks = []
            for file in map(mapping, sequence(message.get("files"))):
                told = compact(file.get("content", ""))
                image = file.get("image")
                out += [*said(f"[{compact(file.get('path', ''))}]\n{told}"), *self._content(image and [image], entry)]
            return out, role
        return self._content(message.get("content"), entry), text(message.get("customType")) or role

    def _compaction(self, entry: _Entry) -> Compaction:
        value = entry.value
        if value.get("type") == "reset_boundary":
            return Compaction(**entry.base, summary=said(_CLEARED))
        summary = said(compact(value.get("summary", "")))
        kept_from = None
        target = self._pointer(value)
        number = entry.thread.number
        if not self._branches.is_above(number, entry.line, target):
            self._tell(entry, "compaction_pointer", "what the compaction would keep is not on the way to it")
        else:
            if not self._branches.gives(number, target):
                self._tell(
                    entry,
                    "compaction_pointer",
                    "the compaction keeps what stands before this branch, which begins with nothing of it",
                    related=self._tree.place(target).line,
                )
            message = self._branches.message_from(number, target)
            if NONE < message < entry.line:
                place = self._tree.place(message)
                kept = self._entry(message, at(self._source, place), place, entry.thread, QUIET, again=True)
                kept_from = kept.message_id
        return Compaction(**entry.base, summary=summary, kept_from=kept_from)

    def _pointer(self, value: JsonObject) -> int:
        """The line from which on a compaction keeps. The oldest files count lines, their header included."""
        pointer, index = value.get("firstKeptEntryId"), value.get("firstKeptEntryIndex")
        if isinstance(pointer, str):
            return self._tree.kept.get(key_of(pointer), NONE)
        return index if index.__class__ is int else NONE

    def _quiet(self, entry: _Entry) -> Iterator[Record]:
        value = entry.value
        type_ = value.get("type")
        if type_ == "model_change":
            if value.get("role") in (None, "default") and (model := _model(value)) is not None:
                yield Setting(**entry.base, patch={"model": model})
        elif isinstance(type_, str) and (name := text(value.get(_NAMES.get(type_, "")))) is not None:
            yield Setting(**entry.base, patch={"name": name})
        elif (started := tree_of.started_of(value)) is not None:
            yield from self._started(started, entry)
        elif type_ == "custom" and value.get("customType") == "session_exit" and not entry.again:
            data = mapping(value.get("data"))
            told = ", ".join(compact(data[key]) for key in ("kind", "reason") if key in data)
            yield Note(**entry.base, kind="session_exit", text=told)
        if not entry.again:
            yield self._kept(entry)

    def _started(self, call_id: str, entry: _Entry) -> Iterator[Record]:
        """The body of a tool was entered. The message that asks for the call may come only later, and then it is told
        there; or it never came.
        """
        key, thread = key_of(call_id), entry.thread
        data = mapping(entry.value.get("data"))
        if call_id in thread.open:
            yield Dispatch(**entry.base, call_id=_call_id(call_id))
        elif key not in self._tree.asked and key not in thread.running:
            name, arguments = text(data.get("toolName")) or "unknown", compact(data.get("args", {}))
            yield Dispatch(**entry.base, call_id=_call_id(call_id), name=name, arguments=arguments)
            thread.running.add(key)

    def _kept(self, entry: _Entry) -> Kept:
        name = _name_of(entry.value)
        kept = self._report.kept
        if name not in kept and len(kept) >= _TYPES:
            name = "others"
        kept[name] = kept.get(name, 0) + 1
        if name not in _QUIET:
            self._unknown.setdefault(name, entry.place)
        return Kept(**entry.base, type=name, value=entry.value)

    def _lacks(self, entry: _Entry, what: str) -> None:
        name = _name_of(entry.value)
        told = f"an entry {name} has no {what} that can be read; what else it says is read, and it is kept whole"
        if told not in self._told and len(self._told) < _TYPES:
            self._told.add(told)
            self._tell(entry, "misfit", told)

    def _tell(self, entry: _Entry, code: str, message: str, *, related: int | None = None) -> None:
        if not entry.again:
            place = entry.place
            self._report.add(code, message, place.line, place.offset, place.length, related=related)

    # ------------------------------------------------------------ content

    def _content(self, content: Any, entry: _Entry, *, model: bool = False) -> Blocks:
        if isinstance(content, str):
            return said(content)
        if content is None:
            return []
        blocks = content if isinstance(content, list) else [content]
        return [self._block(block, entry, model=model) for block in blocks]

    def _block(self, block: Any, entry: _Entry, *, model: bool) -> JsonObject:
        if not isinstance(block, dict):
            return _text(compact(block))
        type_ = block.get("type")
        if type_ == "text" and "text" in block:
            return _text(compact(block["text"]))
        if type_ == "image":
            return self._image(block, entry)
        if not model:
            return _text(compact(block))
        if type_ == "thinking":
            signature = text(block.get("thinkingSignature"))
            if block.get("redacted") is True:
                return {"kind": "redacted_thinking", "data": signature or ""}
            signed = {} if signature is None else {"signature": signature}
            return {"kind": "thinking", "text": compact(block.get("thinking", "")), **signed}
        if type_ == "redactedThinking":
            return {"kind": "redacted_thinking", "data": compact(block.get("data", ""))}
        if type_ == "toolCall":
            return {
                "kind": "tool_call",
                "call_id": _call_id(compact(block.get("id"))),
                "name": text(block.get("name")) or "unknown",
                "arguments": compact(block.get("arguments", {})),
            }
        if type_ == "anthropicServerTool":
            self._tell(entry, "hosted_tool", "the provider ran a tool itself")
        return _text(compact(block))

    def _image(self, block: JsonObject, entry: _Entry) -> JsonObject:
        data, media_type = text(block.get("data")), text(block.get("mimeType"))
        if data is None or data.startswith("blob:"):
            where = "" if data is None else f"{data[:_TYPE]}, "
            self._tell(entry, "image_elsewhere", f"an image is not in this file: {where}{media_type or 'of no type'}")
            return _text(f"[image: {where}{media_type or 'of no type'}]")
        if (why := images.unusable(data)) is not None:
            self._tell(entry, "image_unusable", f"an image that no provider takes: {why}")
        return {"kind": "image", "media_type": media_type or "application/octet-stream", "data": data}


def _text(value: str) -> JsonObject:
    return {"kind": "text", "text": value}


def _name_of(value: JsonObject) -> str:
    """The tool's own word for an entry."""
    type_ = value.get("type")
    name = type_[:_TYPE] if isinstance(type_, str) else "untyped"
    return f"message/{compact(mapping(value.get('message')).get('role'))[:_TYPE]}" if name == "message" else name


def _time(value: JsonObject) -> int | None:
    own = millis(value.get("timestamp"))
    return own if own is not None else millis(mapping(value.get("message")).get("timestamp"))


def _turn(thread: int, line: int) -> str:
    return f"{thread}/{line}"


def _call_id(value: str) -> str:
    """An id as a journal can have it."""
    return value if len(value) <= MAX_ID else f"{value[:64]}…{key_of(value):016x}"


def _model(value: JsonObject) -> str | None:
    """What a change of the model names; some write the provider before it."""
    if (model := text(value.get("modelId"))) is not None:
        return model
    named = text(value.get("model"))
    return named if named is None else named.split("/", 1)[-1] or None


def _usage(counts: JsonObject) -> JsonObject | None:
    return usage(
        input_tokens=counts.get("input"),
        output_tokens=counts.get("output"),
        cache_read_tokens=counts.get("cacheRead"),
        cache_write_tokens=counts.get("cacheWrite"),
        reasoning_tokens=counts.get("reasoning", counts.get("reasoningTokens")),
    )


def _end(place: Place, thread: str, reason: str, told: str | None) -> End:
    if reason == "error":
        return End(place=place, thread=thread, kind="failed", failure_class="api_error", message=told)
    if reason == "aborted":
        return End(place=place, thread=thread, kind="aborted", source="user", message=told)
    return End(place=place, thread=thread, kind="max_tokens" if reason == "length" else "completed")


def _ran_by_hand(message: JsonObject) -> str:
    """What a person ran, and what came of it."""
    shell = message.get("role") == "bashExecution"
    ran = f"$ {compact(message.get('command', ''))}" if shell else f">>> {compact(message.get('code', ''))}"
    lines = [f"[The user ran this:]\n{ran}", compact(message.get("output", ""))]
    if message.get("cancelled") is True:
        lines.append("[It was cancelled.]")
    elif (code := message.get("exitCode")) not in (None, 0):
        lines.append(f"[Its exit code was {compact(code)}.]")
    return "\n".join(line for line in lines if line)


__all__ = ["read"]
