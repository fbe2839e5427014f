"""DeepSeek Harness: a session's log of numbered events, formats 0 to 4 → records.

What was said stands in the log twice: piece by piece as it came, and whole. The pieces count only where nothing whole
follows them, because the response failed or its writer was killed.
"""

import os
import re
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import attrs

from ..events import Blocks, JsonObject, ResultState
from ..shapes import MAX_ID
from ..source import Part, Source
from . import dsh_forms, lines, zstd
from .dsh_order import Order, Writer
from .dsh_stream import ROWS, Stream
from .dsh_words import END_KINDS, KNOWN, NOTES, SOURCES, STATES, route
from .findings import ForeignFinding, Report
from .forms import is_content, lacking
from .lines import Line
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
from .values import compact, count, mapping, millis, said, sequence, text, usage

NEWEST: Final = 4
_NAME: Final = re.compile(r"session(?:\.v([1-9][0-9]{0,8}))?\.jsonl(\.zstd)?")
#: Lines and bytes in which the session's first model is looked for.
_PEEKED: Final = 200
_PEEKED_BYTES: Final = 1 << 20
#: Messages before a compacted span that are put before its summary, types of lines that are told apart, ids that are
#: remembered, steps that are made to find what a message replaces.
_FEW: Final = 64
_TYPES: Final = 100
_IDS: Final = 1 << 20
_STEPS: Final = 50_000_000
#: Messages that all branches together know of those that they go on from.
_SHARED: Final = 1 << 20
#: Keys of a header that a journal's header has a place for, or that say nothing.
_HEADER: Final = {"type", "version", "id", "createdAt", "cwd"}
_PLAIN: Final = {"delegationDepth": 0, "isSeeded": False}


def generation(directory: str | os.PathLike[str]) -> tuple[Path | None, list[Path]]:
    """The file of a session's directory that counts, and the originals that a migration left, the newest first.

    The highest generation counts; where it is there both packed and unpacked, the one that was written last. None where
    the directory has no such file, or cannot be read.
    """
    try:
        found = [(match, entry) for entry in os.scandir(directory) if (match := _NAME.fullmatch(entry.name))]
        ranked = [
            (int(match[1] or 0), entry.stat().st_mtime_ns, match[2] is None, Path(entry.path))
            for match, entry in found
            if entry.is_file()
        ]
    except OSError:
        return None, []
    paths = [path for *_, path in sorted(ranked, reverse=True)]
    return (paths[0], paths[1:]) if paths else (None, [])


def read(source: Source, report: Report, name: str) -> Iterator[Record]:
    """Records of a log, packed or unpacked. ``name``: the file's. Raises JournalError only where a packed one cannot be
    unpacked on this system (``zstd.opened``).
    """
    if zstd.is_packed(source):
        with zstd.opened(source) as unpacked:
            yield from read(unpacked, report, name)
        return
    for flaw in getattr(source, "flaws", ()):
        report.add(flaw.code, flaw.message, None, flaw.offset, flaw.length)
    yield from _Reading(source, report, name).records()


@attrs.define(eq=False)
class _Node:
    """A message that a model is given, as long as nothing replaces it. ``message_id``: what the record has for it."""

    kind: str
    place: Place
    message_id: str | None = None


@attrs.define(eq=False)
class _Log:
    """What is open in one thread."""

    writer: Writer
    model: str | None = None
    turn: str | None = None
    #: Has the open turn a prompt, or anything else of a conversation?
    shown: bool = False
    #: Did the last response want nothing more?
    done: bool = False
    asked: set[str] = attrs.Factory(set)
    stream: Stream = attrs.Factory(Stream)
    #: A call on record that may prove not to have been run.
    held: Dispatch | None = None
    #: Calls of a program that a model wrote, which have not come back.
    inner: dict[str, Place] = attrs.Factory(dict)
    seqs: list[int] = attrs.Factory(list)
    nodes: list[_Node] = attrs.Factory(list)


@attrs.define(eq=False)
class _Event:
    """One line with its number; of a row with many, that of the first."""

    line: Line
    type: str
    seq: int
    time: int | None
    data: JsonObject

    @property
    def place(self) -> Place:
        return self.line.place


class _Reading:
    def __init__(self, source: Source, report: Report, name: str) -> None:
        self._source = source
        self._report = report
        self._name = name
        self._version = 0
        self._session_id: str | None = None
        #: Events with a smaller number were copied from another session.
        self._inherited = 0
        self._parent_session: str | None = None
        self._order = Order()
        self._logs: dict[str, _Log] = {MAIN: _Log(self._order.now)}
        self._unknown: dict[str, tuple[ForeignFinding, int]] = {}
        self._ids: set[int] = set()
        #: Prompts that wait, by the hash of their ids, and how they lie in their queues.
        self._waiting: dict[int, Place] = {}
        self._queues: dict[str, list[int]] = {}
        self._steps = _STEPS
        self._shared = _SHARED
        self._told: set[str] = set()
        #: Lines so far that are kept as they stand.
        self._kept = 0

    def records(self) -> Iterator[Record]:
        first = True
        for line in lines.objects(self._source, self._report):
            if first:
                first = False
                yield from self._header(line)
                if line.value.get("type") == "session":
                    continue
            yield from self._line(line)
        for log in list(self._logs.values()):
            yield from self._out(log, self._stop(log))
            yield from self._out(log, self._lost_calls(log))
        yield from self._unsent()
        for finding, number in self._unknown.values():
            if number > 1:
                finding.message += f"; {number} lines of this type"

    # ------------------------------------------------------------ header

    def _header(self, line: Line) -> Iterator[Record]:
        value = line.value if line.value.get("type") == "session" else {}
        writer = self._order.now
        writer.begun = True
        self._session_id = _id(value.get("id"))
        version = count(value.get("version"))
        if not value:
            self._tell("bad_header", "the first line is no header of a session; what follows is read without one", line)
        elif version is None:
            self._tell("bad_header", "the header does not say which format this is; it is read as the oldest", line)
        self._version = version or 0
        if self._version > NEWEST:
            self._tell(
                "misfit", f"the file is of format {self._version}, newer than what is known (0 to {NEWEST})", line
            )
        named = _NAME.fullmatch(self._name)
        if value and named is not None and int(named[1] or 0) != self._version:
            self._tell("misfit", f"the name {self._name} is that of another format than {self._version}", line)
        model, provider = self._peek()
        self._logs[MAIN].model = model
        time = millis(value.get("createdAt"))
        yield Begin(
            place=line.place,
            time=time,
            kind="subagent" if value.get("origin") == "subagent" else "main",
            session_id=self._session_id,
            begun_by=_id(value.get("parentSession")),
            cwd=text(value.get("cwd")),
            model=model,
            provider=provider,
            dispatches=True,
        )
        self._parent_session = text(value.get("parentSession"))
        self._inherited = self._seed(value)
        lacks = lacking(value, dsh_forms.HEADER) if value else None
        if lacks is not None:
            self._amiss(line, "session", lacks)
        if value and (lacks or any(key not in _HEADER and _PLAIN.get(key, ...) != value[key] for key in value)):
            yield self._keep(line, "session", value, time)

    def _peek(self) -> tuple[str | None, str | None]:
        part = Part(self._source, min(self._source.size, _PEEKED_BYTES))
        for number, line in enumerate(lines.objects(part, Report())):
            if number == _PEEKED:
                break
            data = mapping(line.value.get("data"))
            found = route(str(line.value.get("type")), data)
            if found[0] is not None:
                return found
        return None, None

    def _seed(self, header: JsonObject) -> int:
        """The number of the first event that is the session's own."""
        said = count(header.get("seedLength"))
        if said is not None or header.get("isSeeded") is not True:
            return said or 0
        last = None
        for line in lines.objects(self._source, Report()):
            if line.value.get("type") == "session/end-seed":
                inherited = mapping(line.value.get("data")).get("inherited")
                if inherited or last is None:
                    last = count(line.value.get("seq"))
        return 0 if last is None else last

    # ------------------------------------------------------------ lines

    def _line(self, line: Line) -> Iterator[Record]:
        value = line.value
        type_ = value.get("type")
        type_ = type_ if isinstance(type_, str) else ""
        data, pieces = mapping(value.get("data")), ROWS.get(type_)
        seq, time, number = count(value.get("seq")), millis(value.get("time")), 1
        if pieces is not None:
            seq, time, number = count(value.get("seq0")), millis(value.get("time0")), len(sequence(data.get(pieces)))
            steps = sequence(data.get("dt"))
            if time is not None and {*map(type, steps)} <= {int}:
                time = millis(time + sum(steps))
        if type_ == "session":
            self._once("misfit", "there is a second header; what follows is read as part of the session", line)
            yield self._keep(line, type_, value, time)
            return
        if seq is None:
            self._once("misfit", "the line has no number; it is read as the next one", line)
            seq = self._order.now.next
        elif not self._takes(seq, line):
            return
        self._order.take(seq, max(1, number), line.place)
        log = self._logs[self._order.now.thread]
        yield from self._out(log, self._event(log, _Event(line, type_, seq, time, data)))
        if log.writer.thread == MAIN and seq < self._inherited <= log.writer.next:
            self._waiting.clear()
            self._queues.clear()
            whose = self._parent_session or "another session"
            yield Note(
                place=line.place,
                time=time,
                kind="inherited",
                text=f"What stands before was copied from session {whose}; its tokens are counted there.",
            )

    def _takes(self, seq: int, line: Line) -> bool:
        """Is the line one that is to be read, in this place or on a branch?"""
        order = self._order
        expected = order.now.next
        if seq == expected:
            return True
        twin = order.now.find(seq) if seq < expected else None
        if twin is not None and lines.at(self._source, twin) == line.value:
            self._tell("duplicate_line", f"event {seq} stands already, word for word", line, twin.line)
            return False
        if order.resume(seq):
            return True
        if seq > expected:
            self._tell("seq_gap", f"event {expected} is expected here, and the next one is {seq}", line)
            return True
        self._tell(
            "seq_fork",
            f"event {seq} comes again where {expected} is expected: another writer had not seen what stands between",
            line,
            None if twin is None else twin.line,
        )
        parent = order.now
        if order.fork(seq):
            base = self._logs[(order.now.parent or parent).thread]
            log = self._logs[order.now.thread] = _Log(order.now, model=base.model)
            # Without them a branch only knows no message to replace.
            self._shared -= len(base.seqs)
            if self._shared > 0:
                stays = [at for at, each in enumerate(base.seqs) if each < seq]
                log.seqs, log.nodes = [base.seqs[at] for at in stays], [base.nodes[at] for at in stays]
        return True

    def _out(self, log: _Log, given: Iterator[Record]) -> Iterator[Record]:
        """Gives a thread's records out; a branch is opened by the first one that is of a conversation."""
        writer = log.writer
        for record in given:
            if not writer.begun and not isinstance(record, Kept | Note | Setting):
                writer.begun = True
                yield Begin(
                    place=record.place,
                    time=record.time,
                    thread=writer.thread,
                    kind="branch",
                    session_id=self._session_id,
                    parent=None if writer.parent is None else writer.parent.thread,
                    after=writer.after,
                    model=log.model,
                    dispatches=True,
                )
            home: Writer | None = writer
            while home is not None and not home.begun:
                home = home.parent
            thread = MAIN if home is None else home.thread
            yield record if thread == MAIN else attrs.evolve(record, thread=thread)

    def _event(self, log: _Log, event: _Event) -> Iterator[Record]:
        if event.type != "tool/result" and log.held is not None:
            yield self._released(log)
        handler = _HANDLERS.get(event.type)
        if handler is not None:
            before = self._kept
            yield from handler(self, log, event)
            yield from self._checked(event, self._kept > before)
            return
        told = NOTES[event.type](event.data) if event.type in NOTES else None
        if told is not None:
            if event.type == "llm/retry":
                yield from self._broken_off(log, note=True)
            yield Note(place=event.place, time=event.time, kind=event.type, text=told)
            yield from self._checked(event, False)
            return
        if event.type not in KNOWN and event.type not in NOTES:
            self._unheard(event)
        elif event.type == "agent/inbox/spliced":
            self._spliced(event)
        yield self._keep(event.line, event.type or "?", event.line.value, event.time)

    def _checked(self, event: _Event, kept: bool) -> Iterator[Record]:
        """Of what was read as what it says it is: did it have all of that? ``kept``: it is kept as it stands anyway."""
        what = dsh_forms.amiss(event.type, event.line.value)
        if what is not None:
            self._amiss(event.line, event.type, what)
            if not kept:
                yield self._keep(event.line, event.type, event.line.value, event.time)

    def _keep(self, line: Line, type_: str, value: object, time: int | None) -> Kept:
        kept = self._report.kept
        key = type_ if type_ in kept or len(kept) < _TYPES else "…"
        kept[key] = kept.get(key, 0) + 1
        self._kept += 1
        return Kept(place=line.place, time=time, type=type_, value=value)

    def _unheard(self, event: _Event) -> None:
        type_ = event.type if event.type in self._unknown or len(self._unknown) < _TYPES else "…"
        if type_ in self._unknown:
            finding, number = self._unknown[type_]
            self._unknown[type_] = finding, number + 1
            return
        optional = event.line.value.get("ignorable") is True
        refused = "" if optional else ", and DeepSeek Harness itself opens no session that holds it"
        finding = ForeignFinding(
            "unknown_lines",
            f"lines of type {_short(event.type)} are not known{refused}",
            offset=event.place.offset,
            length=event.place.length,
            severity="info" if optional else "warning",
            line=event.place.line,
        )
        self._report.findings.append(finding)
        self._unknown[type_] = finding, 1

    def _tell(self, code: str, message: str, line: Line, related: int | None = None) -> None:
        place = line.place
        self._report.add(code, message, place.line, place.offset, place.length, related=related)

    def _amiss(self, line: Line, type_: str, what: str) -> None:
        said = f"a line of type {type_} has no {what} that can be read; what else it says is read, and it is kept whole"
        self._once("misfit", said, line)

    def _once(self, code: str, message: str, line: Line) -> None:
        if message not in self._told and len(self._told) < _TYPES:
            self._told.add(message)
            self._tell(code, message, line)

    # ------------------------------------------------------------ turns

    def _turn_start(self, log: _Log, event: _Event) -> Iterator[Record]:
        yield from self._stop(log)
        if log.shown:
            yield End(place=event.place, time=event.time, kind="completed" if log.done else "interrupted")
            if log.turn is not None:
                log.writer.ended(log.turn, event.seq - 1)
        log.turn = str(event.place.line)
        log.shown = log.done = False
        log.asked = set()
        if event.data.keys() - {"turn", "trigger"}:
            yield self._keep(event.line, event.type, event.line.value, event.time)

    def _turn_end(self, log: _Log, event: _Event) -> Iterator[Record]:
        yield from self._stop(log)
        reason = event.data.get("reason")
        told = {"kind": reason} if isinstance(reason, str) else mapping(reason)
        word = text(told.get("kind")) or "?"
        kind = END_KINDS.get(word)
        if kind is None:
            self._tell("misfit", f"the turn ended in a way that is not known: {_short(word)}", event.line)
        cause, error = mapping(told.get("reason")), mapping(told.get("error"))
        end = End(
            place=event.place,
            time=event.time,
            kind=kind or "aborted",
            source=text(cause.get("kind")),
            failure_class=text(error.get("code")),
            message=text(error.get("message")) or text(cause.get("reason")) or (None if kind else word),
        )
        if log.shown:
            yield end
            if log.turn is not None:
                log.writer.ended(log.turn, event.seq)
        elif kind != "completed":
            yield Note(place=event.place, time=event.time, kind="turn/end", text=f"A turn without a message: {word}.")
        if kind is None:
            yield self._keep(event.line, event.type, event.line.value, event.time)
        log.turn = None
        log.shown = log.done = False
        log.asked = set()

    def _step_start(self, log: _Log, event: _Event) -> Iterator[Record]:
        yield from self._broken_off(log)

    def _stop(self, log: _Log) -> Iterator[Record]:
        """Nothing more comes of what is under way."""
        yield from self._broken_off(log)
        if log.held is not None:
            yield self._released(log)

    # ------------------------------------------------------------ messages

    def _user(self, log: _Log, event: _Event) -> Iterator[Record]:
        message = mapping(event.data.get("message")) or event.data
        kind = text(mapping(message.get("source")).get("kind")) or SOURCES.get(event.type, "user")
        node = _Node("system" if event.type == "system/message" else "user", event.place)
        content = self._blocks(message.get("content"), event)
        span = self._span(log, event)
        if span is not None and span[0] >= 0:
            compaction = self._compaction(log, event, node, content, span)
            if compaction is not None:
                yield from self._broken_off(log, note=True)
                yield compaction
                return
        else:
            log.seqs.append(event.seq)
            log.nodes.append(node)
        node.message_id = self._message_id(message.get("id"), event)
        self._waiting.pop(_hash(message.get("id")), None)
        at: dict[str, Any] = {"place": event.place, "time": event.time}
        if not log.shown and node.kind != "system" and (log.turn is not None or kind == "user"):
            log.turn = log.turn or str(event.place.line)
            log.shown = True
            yield Prompt(**at, turn=log.turn, content=content, message_id=node.message_id, source=kind)
        else:
            yield Said(**at, content=content, message_id=node.message_id, source=kind)
        log.done = False

    def _span(self, log: _Log, event: _Event) -> tuple[int, int] | None:
        """The messages that this one replaces, by their places; (-1, -1) where they are not there."""
        op = mapping(event.line.value.get("surfaceOp"))
        if op.get("op") != "replace":
            return None
        start, end = (op.get(key, op.get(f"{key}Seq")) for key in ("start", "end"))
        self._steps -= len(log.seqs)
        if self._steps > 0 and start in log.seqs and end in log.seqs:
            first, last = log.seqs.index(start), log.seqs.index(end)
            if first <= last:
                return first, last
        self._tell("misfit", "the message replaces what is not there, and is read as one more", event.line)
        return -1, -1

    def _compaction(
        self, log: _Log, event: _Event, node: _Node, content: Blocks, span: tuple[int, int]
    ) -> Compaction | None:
        """A message in place of others, where that is what a compaction does; None where it is read as one more."""
        first, last = span
        before, gone, kept = log.nodes[:first], log.nodes[first : last + 1], log.nodes[last + 1 :]
        log.seqs[first : last + 1], log.nodes[first : last + 1] = [event.seq], [node]
        if node.kind == "system" and all(each.kind == "system" for each in gone):
            return None
        if first > _FEW or any(each.kind not in ("user", "system") for each in before):
            self._tell("misfit", "the message replaces some in the middle, which are shown all the same", event.line)
            return None
        still: Blocks = []
        for each in before:
            data = mapping(lines.at(self._source, each.place).get("data"))
            still += self._blocks((mapping(data.get("message")) or data).get("content"), None)
        kept_from = None
        if kept:
            # A result is kept with the call that it answers.
            asker = next((each for each in reversed(gone) if each.kind == "assistant"), None)
            from_ = asker if kept[0].kind == "result" else kept[0]
            if from_ is not None and log.seqs[first + 1] >= log.writer.start:
                kept_from = from_.message_id
            if kept_from is None:
                self._tell("compaction_pointer", "what the compaction keeps is not found", event.line)
        return Compaction(place=event.place, time=event.time, summary=[*still, *content], kept_from=kept_from)

    def _assistant(self, log: _Log, event: _Event) -> Iterator[Record]:
        message, data = mapping(event.data.get("message")), event.data
        if "stream" in data or log.stream.failure is not None:
            yield from self._broken_off(log, note=True)
            log.stream.attempt(data.get("stream"))
            log.stream.stands(event.place, event.time)
        if not is_content(message.get("content")) and log.stream.place is not None:
            # What it came in stands for what it came to.
            yield from self._broken_off(log)
            return
        stream, log.stream = log.stream, Stream()
        content = self._blocks(message.get("content"), event)
        span = self._span(log, event)
        if span is not None and span[0] >= 0:
            self._tell("misfit", "the answer replaces what was said before, which is shown instead", event.line)
            yield self._keep(event.line, event.type, event.line.value, event.time)
            return
        log.asked = {block["call_id"] for block in content if block["kind"] == "tool_call"}
        yield from self._unfinished(log, event, stream)
        message_id = self._message_id(message.get("id"), event)
        log.seqs.append(event.seq)
        log.nodes.append(_Node("assistant", event.place, message_id))
        source = mapping(message.get("source"))
        log.model = text(source.get("model")) or log.model
        interrupted = data.get("interrupted") is True
        yield Response(
            place=event.place,
            time=event.time,
            content=content,
            message_id=message_id,
            stop_reason=stream.finish or ("interrupted" if interrupted else "tool-calls" if log.asked else ""),
            usage=self._usage(mapping(data.get("usage")) or stream.usage, log),
            model=text(source.get("model")),
            provider=text(source.get("provider")),
            interrupted=interrupted,
        )
        log.shown = True
        log.done = not log.asked and not interrupted

    def _unfinished(self, log: _Log, event: _Event, stream: Stream) -> Iterator[Record]:
        """Calls that were begun, and that the whole message does not have."""
        if stream.finish in ("stop", "tool-calls"):
            return
        for call_id, what in stream.calls():
            if _id(call_id) not in log.asked:
                yield Note(place=event.place, time=event.time, kind="unfinished_call", text=what)

    def _usage(self, given: JsonObject | None, log: _Log) -> JsonObject | None:
        """What the line that was read last cost; nothing where that was copied from another session."""
        if given is None or (log.writer.thread == MAIN and log.writer.next <= self._inherited):
            return None
        return usage(
            input_tokens=given.get("inputTokens"),
            output_tokens=given.get("outputTokens"),
            cache_read_tokens=given.get("cacheReadTokens"),
            cache_write_tokens=given.get("cacheWriteTokens"),
            reasoning_tokens=given.get("reasoningTokens"),
        )

    # ------------------------------------------------------------ what was not said to its end

    def _chunk(self, log: _Log, event: _Event) -> Iterator[Record]:
        if log.stream.finish is not None:
            yield from self._broken_off(log, note=True)
        stream = log.stream
        stream.stands(event.place, event.time)
        if event.type in ROWS:
            stream.row(event.type, event.data)
        else:
            stream.chunk(mapping(event.data.get("chunk")))
            if stream.failure is not None:
                yield Note(place=event.place, time=event.time, kind="attempt", text=stream.failure)

    def _attempt(self, log: _Log, event: _Event) -> Iterator[Record]:
        yield from self._broken_off(log, note=True)
        stream = log.stream
        stream.stands(event.place, event.time)
        stream.attempt(event.data.get("stream"))
        counted = self._usage(stream.usage, log) or {}
        stream.finish = stream.finish or "error"
        stream.failure = stream.failure or "the attempt came to nothing"
        stream.told = True
        text = "; ".join([stream.failure, *_told(counted)])
        yield Note(place=event.place, time=event.time, kind="attempt", text=text)

    def _broken_off(self, log: _Log, note: bool = False) -> Iterator[Record]:
        """No whole message came of these pieces. ``note``: another attempt follows, and they are for people only."""
        stream, log.stream = log.stream, Stream()
        if stream.place is None:
            return
        at: dict[str, Any] = {"place": stream.place, "time": stream.time}
        content, counted = stream.said(), self._usage(stream.usage, log)
        if stream.cut:
            place = stream.place
            told = "what was said until it broke off is too much, and its end is left out"
            self._report.add("misfit", told, place.line, place.offset, place.length)
        if note or not content:
            words = ["\n".join(block["text"] for block in content)] if content else []
            words += [] if stream.told else _told(counted or {})
            if words:
                yield Note(**at, kind="attempt", text="; ".join(words))
        else:
            log.asked = set()
            yield Response(
                **at,
                content=content,
                stop_reason=stream.finish or "interrupted",
                usage=counted,
                model=log.model,
                interrupted=True,
            )
            log.shown, log.done = True, False
        for _, what in stream.calls():
            yield Note(**at, kind="unfinished_call", text=what)

    # ------------------------------------------------------------ calls

    def _call(self, log: _Log, event: _Event) -> Iterator[Record]:
        call_id, name = _id(event.data.get("callId")) or "", text(event.data.get("name")) or ""
        arguments = compact(event.data.get("arguments", ""))
        if call_id not in log.asked:
            self._tell("misfit", "no message asks for this call; it is read as if one did", event.line)
            block = {"kind": "tool_call", "call_id": call_id, "name": name, "arguments": arguments}
            yield from self._broken_off(log)
            yield Response(place=event.place, time=event.time, content=[block], stop_reason="tool-calls")
            log.asked = {*log.asked, call_id}
            log.shown, log.done = True, False
        log.held = Dispatch(place=event.place, time=event.time, call_id=call_id, name=name, arguments=arguments)

    def _released(self, log: _Log) -> Dispatch:
        held, log.held = log.held, None
        assert held is not None
        return held

    def _result(self, log: _Log, event: _Event) -> Iterator[Record]:
        message = mapping(event.data.get("message"))
        whole = message.get("content")
        block: JsonObject = next((each for each in map(mapping, sequence(whole)) if each), {"content": whole})
        call_id = _id(block.get("toolCallId")) or _id(mapping(message.get("source")).get("callId")) or ""
        code = text(mapping(event.data.get("error")).get("code")) or ""
        failed = block.get("isError") is True or bool(code)
        state: ResultState = STATES.get(code, "error") if failed else "ok"
        held = log.held
        if held is not None and held.call_id == call_id and state == "not_started":
            log.held = None
        elif held is not None:
            yield self._released(log)
        span = self._span(log, event)
        node = _Node("result", event.place)
        if span is not None and span[0] == span[1] >= 0 and log.nodes[span[0]].kind == "result":
            # Its content was made shorter for the model; what the tool gave stands already.
            log.seqs[span[0]], log.nodes[span[0]] = event.seq, node
            yield self._keep(event.line, event.type, event.line.value, event.time)
            return
        log.seqs.append(event.seq)
        log.nodes.append(node)
        yield Result(
            place=event.place,
            time=event.time,
            call_id=call_id,
            content=self._blocks(block.get("content"), event),
            state=state,
        )

    def _inner_start(self, log: _Log, event: _Event) -> Iterator[Record]:
        call_id = _id(event.data.get("subCallId"))
        if call_id is not None and len(log.inner) < _IDS:
            log.inner[call_id] = event.place
        yield from ()

    def _inner(self, log: _Log, event: _Event) -> Iterator[Record]:
        """What a program of the model called: it saw what the program gave, never this."""
        data = event.data
        log.inner.pop(_id(data.get("subCallId")) or "", None)
        came = "error" if data.get("isError") is True else "ok"
        content = self._blocks(data.get("content"), event)
        result = "\n".join(block["text"] for block in content if block["kind"] == "text")
        yield Note(place=event.place, time=event.time, kind="inner_call", text=f"{_inner_call(data)}: {came}\n{result}")

    def _lost_calls(self, log: _Log) -> Iterator[Record]:
        for place in log.inner.values():
            data = mapping(lines.at(self._source, place).get("data"))
            yield Note(place=place, kind="inner_call", text=f"{_inner_call(data)}: nobody knows what came of it")

    # ------------------------------------------------------------ settings and prompts that wait

    def _title(self, log: _Log, event: _Event) -> Iterator[Record]:
        title = text(event.data.get("title"))
        if title is not None:
            yield Setting(place=event.place, time=event.time, patch={"name": title})

    def _request(self, log: _Log, event: _Event) -> Iterator[Record]:
        model, _ = route(event.type, event.data)
        if model is not None and model != log.model:
            log.model = model
            yield Setting(place=event.place, time=event.time, patch={"model": model})
        yield self._keep(event.line, event.type, event.line.value, event.time)

    def _spliced(self, event: _Event) -> None:
        data = event.data
        queue = self._queues.setdefault("step" if data.get("target") == "next-step" else "turn", [])
        start, removed = count(data.get("start")) or 0, count(data.get("removedCount")) or 0
        inserted = [_hash(mapping(message).get("id")) for message in sequence(data.get("inserted"))]
        if data.get("outcome") == "canceled":
            for each in queue[start : start + removed]:
                self._waiting.pop(each, None)
        queue[start : start + removed] = inserted
        if len(self._waiting) < _IDS:
            self._waiting.update(dict.fromkeys(inserted, event.place))

    def _unsent(self) -> Iterator[Record]:
        """Prompts that were typed, and that no turn has."""
        for place in dict.fromkeys(self._waiting.values()):
            value = lines.at(self._source, place)
            for message in map(mapping, sequence(mapping(value.get("data")).get("inserted"))):
                content = self._blocks(message.get("content"), None)
                words = "\n".join(block["text"] for block in content if block["kind"] == "text")
                if _hash(message.get("id")) in self._waiting and words:
                    yield Note(place=place, kind="unsent", text=words)

    # ------------------------------------------------------------ values

    def _message_id(self, value: object, event: _Event) -> str:
        """An id of this message's own: the same one may stand in a file again and again."""
        message_id = _id(value) or f"event-{event.seq}"
        if _hash(message_id) in self._ids:
            message_id = _id(f"{message_id[: MAX_ID - 20]}:{event.place.line}") or ""
        if len(self._ids) < _IDS:
            self._ids.add(_hash(message_id))
        return message_id

    def _blocks(self, content: object, event: _Event | None) -> Blocks:
        """Content as a journal has it. ``event``: whose findings are told."""
        if isinstance(content, str):
            return said(content) if content else []
        if content is None:
            return []
        out: Blocks = []
        for block in content if isinstance(content, list) else [content]:
            out += self._block(mapping(block), block, event)
        return out

    def _block(self, block: JsonObject, value: object, event: _Event | None) -> Blocks:
        kind, words = block.get("type"), block.get("text")
        if kind == "text" and isinstance(words, str):
            return said(words)
        if kind == "reasoning" and isinstance(words, str):
            return [{"kind": "thinking", "text": words}]
        if kind == "tool-call":
            name, arguments = text(block.get("name")) or "", compact(block.get("arguments", ""))
            return [{"kind": "tool_call", "call_id": _id(block.get("id")) or "", "name": name, "arguments": arguments}]
        if kind == "image" and (attachment := mapping(block.get("attachment"))):
            if event is not None:
                self._tell("image_elsewhere", "an image of this message does not lie in the file", event.line)
            parts = (attachment.get(key) for key in ("name", "mediaType", "attachmentId"))
            return said(f"[image, not in the log: {', '.join(part for part in parts if isinstance(part, str))}]")
        return said(compact(value))


_Handler = Callable[[_Reading, _Log, _Event], Iterator[Record]]
_HANDLERS: Final[dict[str, _Handler]] = {
    "turn/start": _Reading._turn_start,
    "turn/end": _Reading._turn_end,
    "step/start": _Reading._step_start,
    "step/end": _Reading._step_start,
    "user/message": _Reading._user,
    "system/message": _Reading._user,
    "steering/message": _Reading._user,
    "assistant/message": _Reading._assistant,
    "assistant/attempt": _Reading._attempt,
    "assistant/chunk": _Reading._chunk,
    **dict.fromkeys(ROWS, _Reading._chunk),
    "tool/call": _Reading._call,
    "tool/result": _Reading._result,
    **dict.fromkeys(("tool/code-dispatch-start", "tool/ptc-dispatch-start"), _Reading._inner_start),
    **dict.fromkeys(("tool/code-dispatch", "tool/ptc-dispatch"), _Reading._inner),
    "session/title": _Reading._title,
    "request/header": _Reading._request,
    "request/context": _Reading._request,
}


def _told(counts: JsonObject) -> list[str]:
    return [f"{key}: {value}" for key, value in counts.items() if value]


def _inner_call(data: JsonObject) -> str:
    return f"{data.get('name')}({compact(data.get('arguments'))})"


def _id(value: object) -> str | None:
    """An id as a journal may have it: a longer one is told by its digest."""
    if not isinstance(value, str) or not value:
        return None
    if len(value) <= MAX_ID:
        return value
    return f"{value[:64]}…{sha256(value.encode('utf-8', 'replace')).hexdigest()}"


def _hash(value: object) -> int:
    return int.from_bytes(sha256(compact(value).encode("utf-8", "replace")).digest()[:8], "big")


def _short(word: str) -> str:
    return ascii(word if len(word) <= 60 else word[:60] + "…")
