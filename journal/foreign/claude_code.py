"""Claude Code transcripts: one content block a line, results by id, the order of a log. No I/O of its own.

A response is all lines of one ``message.id``; its usage is repeated on each of them, and counted once. Turns are not
marked: a person's prompt begins one, and what stands behind it tells how it ended.
"""

import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, Final

import attrs

from .. import images
from ..events import Blocks, JsonObject
from ..shapes import MAX_ID
from ..source import Source
from . import claude_tree as tree_of
from .claude_tree import Tree, content_of, first_text, key_of
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
from .values import compact, mapping, millis, said, sequence, text, usage

#: A file of this name is a helper's that summed a session up: copies of its lines, no conversation.
_HELPER: Final = "agent-acompact"
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|agent-[A-Za-z0-9_-]+")
#: Lines that name the session, and the key that holds the name.
_NAMES: Final = {"custom-title": "customTitle", "ai-title": "aiTitle", "agent-name": "agentName"}
#: Lines that are known to stand for nothing in a conversation.
_QUIET: Final = frozenset(
    {
        "attachment", "bridge-session", "file-history-snapshot", "frame-link", "last-prompt", "mode", "permission-mode",
        "pr-link", "progress", "queue-operation", "relocated", "result", "started", "summary", "system",
        "worktree-state", *_NAMES,
    }
)  # fmt: skip
#: Of ``system`` lines those that are written once a turn is over.
_OVER: Final = frozenset({"turn_duration", "stop_hook_summary"})


def read(source: Source, report: Report, name: str) -> Iterator[Record]:
    """See ``records``."""
    yield from _Reading(source, report, name).records()


@attrs.define(eq=False)
class _Thread:
    """``open``: calls without a result, and of those that start a subagent what it was told. ``last``: what the turn
    would have ended with, if it ended here.
    """

    begun: bool = False
    turn: str | None = None
    open: dict[str, str] = attrs.Factory(dict)
    last: End | None = None


class _Reading:
    def __init__(self, source: Source, report: Report, name: str) -> None:
        self._source = source
        self._report = report
        self._stem = PurePath(name).stem
        self._tree = Tree()
        self._threads: dict[str, _Thread] = {}
        #: By line: the turn that its thread was in.
        self._turns: dict[int, str | None] = {}
        #: Responses that were given out, by id; results that were given out before their place, by call.
        self._given: set[int] = set()
        self._early: set[tuple[int, int]] = set()
        self._unknown: dict[str, Place] = {}

    def records(self) -> Iterator[Record]:
        if self._stem.startswith(_HELPER):
            self._report.add("no_conversation", "the file is of a helper that summed a session up")
        self._tree = tree_of.look(self._source, self._report)
        last: Place | None = None
        for number, line in enumerate(objects(self._source, self._report)):
            last = line.place
            yield from self._line(number, line)
        for type_, place in self._unknown.items():
            count = self._report.kept[type_]
            said = f"{count} lines of type {type_[:80]} stand for nothing that is known here"
            self._report.add("unknown_lines", said, place.line, place.offset, place.length)
        if last is not None:
            for name, thread in self._threads.items():
                yield from self._passed(thread, {"place": last, "thread": name})

    def _line(self, number: int, line: Line) -> Iterator[Record]:
        value, place = line.value, line.place
        thread = self._tree.thread(number)
        base: dict[str, Any] = {"place": place, "time": millis(value.get("timestamp")), "thread": thread}
        if MAIN not in self._threads:
            yield from self._begin(MAIN, base, number, value)
        if thread not in self._threads:
            yield from self._begin(thread, base, number, value)
        state = self._threads[thread]
        if number in self._tree.skipped or self._stem.startswith(_HELPER):
            yield self._kept(value, base)
            return
        type_ = value.get("type")
        if type_ == "user":
            yield from self._user(number, value, state, base)
        elif type_ == "assistant":
            yield from self._assistant(number, value, state, base)
        else:
            yield from self._other(value, state, base)
        self._turns[number] = state.turn

    # ------------------------------------------------------------ threads

    def _begin(self, thread: str, base: dict[str, Any], number: int, value: JsonObject) -> Iterator[Record]:
        self._threads[thread] = _Thread()
        tree, agent = self._tree, text(value.get("agentId"))
        common = {**base, "thread": thread, "cwd": tree.cwd}
        if thread == MAIN:
            session_id = self._stem if _UUID.fullmatch(self._stem) else tree.session_id
            if self._tree.subagent and agent is not None and not self._stem.startswith("agent-"):
                session_id = f"agent-{agent}"
            yield Begin(**common, session_id=session_id, model=tree.model, provider="anthropic", agent=agent)
        elif thread.startswith("rewound:"):
            parent = self._tree.parents[number]
            above = self._tree.thread(parent) if parent >= 0 else MAIN
            yield Begin(**common, kind="branch", parent=above, after=self._turns.get(parent))
        else:
            parent = self._tree.parents[number]
            above = self._tree.thread(parent) if parent >= 0 else MAIN
            above = MAIN if above == thread else above
            call_id = self._starter(above, first_text(value))
            yield Begin(**common, kind="subagent", parent=above, call_id=call_id, agent=agent)

    def _starter(self, thread: str, prompt: str) -> str | None:
        """The open call that told a subagent this; else the newest one that started any."""
        open_ = self._threads[thread].open if thread in self._threads else {}
        started = {call_id: told for call_id, told in open_.items() if told}
        return next((call_id for call_id, told in started.items() if told == prompt), next(reversed(started), None))

    def _passed(self, thread: _Thread, base: dict[str, Any]) -> Iterator[Record]:
        """The end of the turn as far as there is evidence of one."""
        end, thread.last = thread.last, None
        if thread.turn is not None and end is not None and (end.kind != "completed" or not thread.open):
            thread.turn = None
            yield attrs.evolve(end, place=base["place"], time=None, thread=base["thread"])

    # ------------------------------------------------------------ what the user's side says

    def _user(self, number: int, value: JsonObject, thread: _Thread, base: dict[str, Any]) -> Iterator[Record]:
        message_id = _id(value.get("uuid"))
        if value.get("isCompactSummary") is True:
            yield Compaction(**base, summary=self._content(content_of(value), base["place"]))
            return
        results = [each for each in content_of(value) if isinstance(each, dict) and each.get("type") == "tool_result"]
        others = [each for each in content_of(value) if each not in results]
        for block in results:
            call_id = _call_id(block.get("tool_use_id"))
            if (number, key_of(call_id)) not in self._early:
                yield self._result(block, thread, base)
        content = self._content(others, base["place"])
        if tree_of.is_prompt(value):
            yield from self._passed(thread, base)
            thread.turn = message_id or f"line-{base['place'].line}"
            thread.open.clear()
            yield Prompt(**base, turn=thread.turn, content=content, message_id=message_id)
        elif content:
            if tree_of.is_interruption(value):
                thread.last = End(place=base["place"], kind="aborted", source="user")
            origin = "interruption" if tree_of.is_interruption(value) else "context"
            yield Said(**base, content=content, message_id=message_id, source=origin)
        elif not results:
            yield self._kept(value, base)

    def _result(self, block: JsonObject, thread: _Thread, base: dict[str, Any]) -> Result:
        call_id = _call_id(block.get("tool_use_id"))
        thread.open.pop(call_id, None)
        given = block.get("content")
        blocks = [{"type": "text", "text": given}] if isinstance(given, str) else sequence(given)
        state: Any = "error" if block.get("is_error") is True else "ok"
        return Result(**base, call_id=call_id, content=self._content(blocks, base["place"]), state=state)

    # ------------------------------------------------------------ what the model says

    def _assistant(self, number: int, value: JsonObject, thread: _Thread, base: dict[str, Any]) -> Iterator[Record]:
        message = mapping(value.get("message"))
        if value.get("isApiErrorMessage") is True or message.get("model") == tree_of.SYNTHETIC:
            told = first_text(value)
            yield Note(**base, kind="api_error", text=told)
            thread.last = End(place=base["place"], kind="failed", failure_class="api_error", message=told or None)
            return
        response = tree_of.response_of(value)
        lines = [value]
        if response is not None:
            key = key_of(response)
            if key in self._given:
                return
            self._given.add(key)
            places = self._tree.fragments.get(key, [])
            lines = [value if place == base["place"] else at(self._source, place) for place in places]
        yield from self._answered(number, thread, base)
        blocks = [block for line in lines for block in content_of(line)]
        content = self._content(blocks, base["place"], model=True)
        for block in content:
            if block["kind"] == "tool_call":
                starts = block["name"] in tree_of.STARTERS
                thread.open[block["call_id"]] = _told(block["arguments"]) if starts else ""
        reasons = [text(mapping(line.get("message")).get("stop_reason")) for line in lines]
        thread.last = End(place=base["place"], kind="completed")
        yield Response(
            **base,
            content=content,
            message_id=_id(message.get("id")),
            stop_reason=next((reason for reason in reversed(reasons) if reason), ""),
            usage=_usage(lines),
            model=text(message.get("model")),
        )

    def _answered(self, number: int, thread: _Thread, base: dict[str, Any]) -> Iterator[Record]:
        """Results of calls that stand further below, and belong before the response that comes now."""
        for call_id in list(thread.open):
            found = self._tree.results.get(key_of(call_id))
            if found is None or found[0] <= number or not self._tree.same_turn(number, found[0]):
                continue
            line, place = found
            value = at(self._source, place)
            for block in content_of(value):
                if isinstance(block, dict) and _call_id(block.get("tool_use_id")) == call_id:
                    self._early.add((line, key_of(call_id)))
                    when = {**base, "place": place, "time": millis(value.get("timestamp"))}
                    yield self._result(block, thread, when)
                    break

    # ------------------------------------------------------------ other lines

    def _other(self, value: JsonObject, thread: _Thread, base: dict[str, Any]) -> Iterator[Record]:
        type_ = value.get("type")
        if type_ == "attachment":
            told = mapping(value.get("attachment"))
            if told.get("type") == "queued_command" and (prompt := text(told.get("prompt"))) is not None:
                yield Said(**base, content=said(prompt), message_id=_id(value.get("uuid")))
                return
        elif type_ == "system":
            if value.get("subtype") == "api_error":
                yield Note(**base, kind="api_error", text=_note(value))
                return
            by_hand = mapping(value.get("compactMetadata")).get("trigger") == "manual"
            if value.get("subtype") in _OVER or by_hand:
                yield self._kept(value, base)
                yield from self._passed(thread, base)
                return
        elif isinstance(type_, str) and type_ in _NAMES and (name := text(value.get(_NAMES[type_]))) is not None:
            yield Setting(**base, patch={"name": name})
        elif type_ == "summary" and (name := text(value.get("summary"))) is not None:
            leaf = text(value.get("leafUuid"))
            if leaf is not None and key_of(leaf) in self._tree.uuids:
                yield Setting(**base, patch={"name": name})
        yield self._kept(value, base)

    def _kept(self, value: JsonObject, base: dict[str, Any]) -> Kept:
        type_ = value.get("type")
        said = type_ if isinstance(type_, str) else "untyped"
        self._report.kept[said] = self._report.kept.get(said, 0) + 1
        if said not in _QUIET and said not in ("user", "assistant"):
            self._unknown.setdefault(said, base["place"])
        return Kept(**base, type=said, value=value)

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
        if type_ == "text":
            told = block.get("text")
            return said(told) if isinstance(told, str) else said(compact(told))
        if type_ == "thinking" and model:
            signed = {"signature": block["signature"]} if text(block.get("signature")) else {}
            return [{"kind": "thinking", "text": compact(block.get("thinking", "")), **signed}]
        if type_ == "redacted_thinking" and model:
            return [{"kind": "redacted_thinking", "data": compact(block.get("data", ""))}]
        if type_ == "tool_use" and model:
            name = text(block.get("name")) or "unknown"
            arguments = compact(block.get("input", {}))
            return [{"kind": "tool_call", "call_id": _call_id(block.get("id")), "name": name, "arguments": arguments}]
        if type_ in ("image", "document"):
            return self._media(block, place)
        if type_ == "server_tool_use" or str(type_).endswith("_tool_result"):
            self._report.add("hosted_tool", f"the provider ran {type_} itself", place.line, place.offset, place.length)
            return said(f"[{type_}: {compact(block)}]")
        return said(compact(block))

    def _media(self, block: JsonObject, place: Place) -> Blocks:
        origin = mapping(block.get("source"))
        data, media_type = text(origin.get("data")), text(origin.get("media_type"))
        kind = "image" if block.get("type") == "image" else "file"
        if data is None or origin.get("type") not in (None, "base64"):
            told = text(origin.get("url")) or text(origin.get("file_id"))
            self._report.add(
                "image_elsewhere", f"the {kind} is not in this file", place.line, place.offset, place.length
            )
            return said(f"[{kind}: {told or 'its bytes are not here'}]")
        if kind == "image" and (why := _unusable(data)) is not None:
            self._report.add("image_unusable", f"an image that no provider takes: {why}", place.line, place.offset,
                             place.length)  # fmt: skip
        return [{"kind": kind, "media_type": media_type or "application/octet-stream", "data": data}]


def _unusable(data: str) -> str | None:
    raw = images.decoded(data)
    if raw is None:
        return "it is no base64"
    found = images.look(raw)
    if isinstance(found, str):
        return found
    return images.too_big(found, len(data), images.Limits(), many=False)


def _id(value: Any) -> str | None:
    """An id that a journal can have."""
    return value if isinstance(value, str) and 0 < len(value) <= MAX_ID else None


def _call_id(value: Any) -> str:
    given = value if isinstance(value, str) else compact(value)
    return given if len(given) <= MAX_ID else f"{given[:64]}…{key_of(given):016x}"


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


def _told(arguments: str) -> str:
    """What a call tells a subagent."""
    from .lines import parse

    value = parse(arguments.encode("utf-8", "replace"))
    return (text(mapping(value).get("prompt")) or "-") if isinstance(value, dict) else "-"


def _note(value: JsonObject) -> str:
    for key in ("content", "error", "cause", "message"):
        if value.get(key):
            return compact(value[key])
    return compact(value)
