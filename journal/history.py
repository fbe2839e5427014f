"""The conversation: events folded to provider-neutral messages that are legal whatever the journal holds. No I/O.

A turn is kept as items in the order of the journal: user texts, assistant messages with the results of their calls,
and texts in place of what fits nowhere. Rendering walks the items turn by turn, in the order in which the turns were
opened, so that what closes an older turn stands where that turn stands. What was rendered is kept until an event
changes it: the messages of a long session cost no more than the copy of a list.

A continuation goes on from a lineage: the runs that lead to it through claims. What its model is given leaves out the
turns that stand between, and of the lineage what comes behind the last anchor, a user message or a tool's result.
"""

from bisect import insort
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, Final

import attrs
import orjson

from . import wording
from .events import Event, JsonObject
from .pairing import Call, Pairing
from .views.admissions import WITHOUT_MESSAGE
from .views.problem import mapping, sequence, text_of, whole
from .views.session import TOOL_BOUNDARY
from .views.turn import Delta, projected_state

#: Blocks that only the projection itself may place.
_OURS: Final = ("tool_call", "tool_result")
#: Blocks whose ``text`` is text.
_SAID: Final = ("text", "thinking")
_ATTACHED: Final = ("name", "media_type", "ref", "bytes")
#: Marks what a compaction says in place of what stood before.
_SUMMARY: Final = "summary"
_seq: Final = attrgetter("seq")

#: By index of the call: content, is_error, state, and the event's seq.
_Results = dict[int, tuple[list[JsonObject], bool, str, int]]


@attrs.frozen
class Replay:
    """What a model is given to go on from a run: ``messages`` as ``History.messages`` gives them, the first one not
    forced to be the user's. ``through_seq`` is the last anchor of the lineage; None where there is none.
    """

    messages: list[JsonObject]
    through_seq: int | None


@attrs.define(slots=True, eq=False)
class _Item:
    """``role``: user, assistant, note or gap. ``calls`` are those of an assistant message, one for each of its blocks.

    A ``note`` or ``gap`` is for people only. ``call`` is the dispatched call that a user text stands for. ``hidden``: a
    continuation left it out of its replay.
    """

    role: str
    seq: int
    run_id: str
    content: list[JsonObject]
    calls: list[Call] = attrs.field(factory=list)
    call: Call | None = None
    hidden: bool = False
    mark: str | None = None


@attrs.define(slots=True, eq=False)
class _Turn:
    """A turn's items. ``results`` by call index: ``content, is_error, state`` and the event's seq.

    ``provable``: were a call dispatched, it would be on record.
    ``shown``: items that no continuation has hidden, by run, in the order of the journal.
    ``given``: the input of the turn's admission, shown until its message is there.
    """

    turn_id: str
    place: int
    provable: bool
    items: list[_Item] = attrs.field(factory=list)
    pairing: Pairing = attrs.field(factory=Pairing)
    results: _Results = attrs.field(factory=dict)
    calls: int = 0
    open: bool = True
    given: tuple[int, JsonObject] | None = None
    deltas: dict[str, Delta] = attrs.field(factory=dict)
    messages: set[str] = attrs.field(factory=set)
    #: By index of a call whose result was unknown: where its outcome came from.
    sources: dict[int, str] = attrs.field(factory=dict)
    shown: dict[str, list[_Item]] = attrs.field(factory=dict)

    def add(self, item: _Item) -> None:
        self.items.append(item)
        insort(self.shown.setdefault(item.run_id, []), item, key=_seq)

    def reaches(self, run_id: str, through: int) -> bool:
        """Is anything of that run shown behind ``through``?"""
        shown = self.shown.get(run_id, ())
        return len(shown) > 0 and shown[-1].seq > through

    def hide(self, run_id: str, through: int) -> None:
        """Of that run nothing behind ``through`` is shown; what is hidden already is not looked at again."""
        shown = self.shown[run_id]
        while shown and shown[-1].seq > through:
            shown.pop().hidden = True


@attrs.define(slots=True, eq=False)
class _Unknown:
    """An unknown result. ``requests``: how many model requests there were when it was recorded."""

    turn: _Turn
    call: Call
    requests: int


@attrs.define(slots=True, eq=False)
class _Told:
    """A known outcome that is told as text, and the result that it would have been."""

    turn: _Turn
    call: Call
    result: tuple[list[JsonObject], bool, str, int]
    item: _Item


@attrs.frozen(eq=False)
class _View:
    """A lineage as a continuation sees it: its ``runs``, nothing of them behind ``through`` (None: everything), and
    by place of the turn the ``results`` where they differ from the turn's.
    """

    runs: dict[str, None]
    through: int | None = None
    results: Mapping[int, _Results] = attrs.field(factory=dict)

    def shows(self, item: _Item) -> bool:
        return item.run_id in self.runs and (self.through is None or item.seq <= self.through)

    def whole(self, turn: _Turn) -> bool:
        """Is everything that the turn shows of the lineage and seen as it is?"""
        cut = self.through is not None and any(turn.reaches(run_id, self.through) for run_id in turn.shown)
        return not cut and turn.place not in self.results and turn.shown.keys() <= {"", *self.runs}


class History:
    """Fold events with ``apply`` (a fork's parents first), take ``messages()`` at any time."""

    def __init__(self) -> None:
        self._turns: list[_Turn] = []
        self._by_id: dict[str, _Turn] = {}
        self._by_run: dict[str, _Turn] = {}
        # Open turns of which nothing was lost so far: each is told of a loss once.
        self._sound: dict[str, _Turn] = {}
        self._admitted: dict[str, tuple[int, JsonObject]] = {}
        self._unknown: dict[tuple[str, int], _Unknown] = {}
        self._untold: dict[int, _Item] = {}
        # By the first run of the lineage: outcomes that are told, and the requests there were at its newest claim.
        self._told: dict[str, list[_Told]] = {}
        self._claimed: dict[str, int] = {}
        # Of a claim's target: the run that it goes on from, and the first run of the lineage.
        self._sources: dict[str, str] = {}
        self._roots: dict[str, str] = {}
        # The seqs of a run's anchors that are shown, oldest first.
        self._anchors: dict[str, list[int]] = {}
        self._tool_boundary = False
        self._requests = 0
        # Turns before these places are a fork's parents', and hold nothing that a compaction could hide.
        self._own = self._visible = 0
        # Of this journal: what stands before this event is hidden by a compaction.
        self._kept_from = 0
        # What is rendered: messages, and for each rendered turn how many there were before it and the last of them.
        self._rendered: list[JsonObject] = []
        self._before: list[tuple[int, JsonObject | None]] = []

    def apply(self, event: Event) -> None:
        """Fold one event. Never raises for an event that was read."""
        if not event.verified:
            self._lose()
        handler = _HANDLERS.get(event.type)
        if handler is not None:
            handler(self, event)

    # ------------------------------------------------------------ what is given out

    def messages(self, run_id: str | None = None) -> list[JsonObject]:
        """``[{"role": "user"|"assistant"|"tool", "content": [block, …]}]``; of these, only the list is the caller's.

        Each assistant message with calls is directly followed by one tool message with exactly one
        ``{"kind": "tool_result", "call_id", "content", "is_error", "state"}`` for each, in block order; no two
        assistant messages stand in a row; the first message is the user's.

        ``run_id``: a run that a claim has reserved; what its model is given. Turns that are not of its lineage and
        came after the lineage began are left out.
        """
        if run_id is not None and run_id in self._sources:
            out = self._seen(_View(self._lineage(run_id)))
        else:
            self._render(len(self._turns))
            out = list(self._rendered)
        if out and out[0]["role"] != "user":
            out.insert(0, {"role": "user", "content": [_text(wording.beginning_lost())]})
        return out

    def replay(self, run_id: str) -> Replay:
        """What a run's continuation is given: ``messages`` of its run as they will be once it is claimed and started.

        The history before the lineage, then of each of its runs what stands up to the lineage's last anchor, with
        outcomes that are on record in place of unknown results. A run that nothing is known of has the whole history
        before it. Changes nothing.
        """
        runs = self._lineage(run_id)
        through = next((anchors[-1] for run in runs if (anchors := self._anchors.get(run))), None)
        results: dict[int, _Results] = {}
        for told in self._told.get(self._root(run_id), ()):
            if told.call.run_id in runs:
                changed = results.setdefault(told.turn.place, dict(told.turn.results))
                changed[told.call.index] = told.result
        return Replay(self._seen(_View(runs, -1 if through is None else through, results)), through)

    def annotated(self) -> list[JsonObject]:
        """What a person reads: ``[{"role", "seq", "turn_id", "content", "mark"?}]`` in the order of the conversation.

        ``role`` is user, assistant, tool, note or gap; ``content`` holds blocks as in ``messages()``; ``mark`` says
        what the provider history makes of it: ``hidden`` (left out), ``unanswered``, ``interrupted``,
        ``outcome: <source>`` (what an unknown result turned out to be), ``duplicate result`` (left out), ``without
        request``, ``from the admission``, ``summary`` (of what a compaction left out).
        """
        out: list[JsonObject] = []
        for turn in self._turns:
            if turn.given is not None:
                out.append(_entry(turn, "user", turn.given[0], _given(turn.given[1]), "from the admission"))
            for item in turn.items:
                mark = "hidden" if item.hidden else item.mark
                out.append(_entry(turn, item.role, item.seq, _item_content(turn, item, turn.results), mark))
                for call in item.calls:
                    result = turn.results.get(call.index)
                    seq = item.seq if result is None else result[3]
                    mark = "hidden" if item.hidden else "unanswered" if result is None else _origin(turn, call, result)
                    out.append(_entry(turn, "tool", seq, [_result(turn, call, turn.results)], mark))
        if self._turns:
            last = self._turns[-1]
            out += [_entry(last, item.role, item.seq, item.content, item.mark) for item in self._untold.values()]
        return out

    # ------------------------------------------------------------ rendering

    def _render(self, upto: int) -> None:
        """Render the turns before place ``upto`` that are not rendered yet."""
        rendered = self._rendered
        for turn in self._turns[len(self._before) : upto]:
            self._before.append((len(rendered), rendered[-1] if rendered else None))
            _join(rendered, _messages_of(turn))

    def _seen(self, view: _View) -> list[JsonObject]:
        """The history before a lineage, and its turns as ``view`` sees them; what is rendered already is taken over."""
        turns = {turn.place: turn for run in view.runs if (turn := self._by_run.get(run)) is not None}
        first = next((turn.place for run in reversed(view.runs) if (turn := self._by_run.get(run))), len(self._turns))
        kept = first
        while kept in turns and view.whole(turns[kept]):
            kept += 1
        self._render(kept)
        out = self._before_place(kept)
        for place in sorted(turns):
            if place >= kept:
                _join(out, _messages_of(turns[place], view))
        return out

    def _before_place(self, place: int) -> list[JsonObject]:
        """What is rendered of the turns before a place; they are."""
        if place >= len(self._before):
            return list(self._rendered)
        length, last = self._before[place]
        out = self._rendered[:length]
        if last is not None:
            out[-1] = last
        return out

    # ------------------------------------------------------------ lineages

    def _lineage(self, run_id: str) -> dict[str, None]:
        """A run and those that lead to it through claims, the newest first."""
        runs: dict[str, None] = {}
        at: str | None = run_id
        while at is not None and at not in runs:
            runs[at] = None
            at = self._sources.get(at)
        return runs

    def _root(self, run_id: str) -> str:
        return self._roots.get(run_id, run_id)

    def _anchor(self, run_id: str, seq: int) -> None:
        anchors = self._anchors.get(run_id)
        if anchors is None:
            self._anchors[run_id] = [seq]
        else:
            anchors.append(seq)

    # ------------------------------------------------------------ where things go

    def _forget(self, turn: _Turn) -> None:
        """What was rendered of this turn, and of those behind it, is no longer right."""
        if turn.place < len(self._before):
            length, last = self._before[turn.place]
            del self._before[turn.place :]
            del self._rendered[length:]
            if last is not None:
                self._rendered[-1] = last

    def _begin(self, turn_id: str) -> _Turn:
        turn = _Turn(turn_id, len(self._turns), self._tool_boundary)
        self._turns.append(turn)
        self._by_id[turn_id] = self._sound[turn_id] = turn
        turn.given = self._admitted.pop(turn_id, None)
        return turn

    def _turn(self, data: JsonObject) -> _Turn:
        """The turn that an event names, begun now if it is not there."""
        turn = self._by_id.get(data["turn_id"])
        if turn is None:
            turn = self._begin(data["turn_id"])
        self._by_run[data["run_id"]] = turn
        self._forget(turn)
        return turn

    def _aside(self, role: str, event: Event, text: str, mark: str | None = None) -> None:
        """Something for people, where the conversation has arrived."""
        turn = self._turns[-1] if self._turns else self._begin("")
        turn.add(_Item(role, event.seq, "", [_text(text)], mark=mark))

    # ------------------------------------------------------------ the fold

    def _header(self, event: Event) -> None:
        """Line 0; what stands before it is the prefix of a fork."""
        if event.seq == 0:
            for turn in self._turns:
                self._close(turn)
            self._by_id.clear()
            self._by_run.clear()
            self._admitted.clear()
            self._unknown.clear()
            self._told.clear()
            self._claimed.clear()
            self._sources.clear()
            self._roots.clear()
            self._anchors.clear()
            self._own, self._kept_from = len(self._turns), 0
            self._tool_boundary = event.data.get("tool_boundary") == TOOL_BOUNDARY

    def _turn_start(self, event: Event) -> None:
        turn = self._by_id.get(event.data["turn_id"]) or self._begin(event.data["turn_id"])
        self._by_run[event.data["run_id"]] = turn

    def _admission(self, event: Event) -> None:
        data = event.data
        kind = mapping(data["execution"]).get("kind")
        if kind != WITHOUT_MESSAGE and data["turn_id"] not in self._by_id:
            self._admitted.setdefault(data["turn_id"], (event.seq, data["input"]))

    def _user(self, event: Event) -> None:
        data = event.data
        turn = self._turn(data)
        if data["source"].get("kind") != "steering":
            turn.given = None
        for item in self._untold.values():
            item.run_id = data["run_id"]
            turn.add(item)
        self._untold.clear()
        given = _given(data)
        turn.add(_Item("user", event.seq, data["run_id"], given))
        if given:
            self._anchor(data["run_id"], event.seq)

    def _step_start(self, event: Event) -> None:
        turn = self._turn(event.data)
        self._requests += 1
        _settle_deltas(turn)

    def _step_end(self, event: Event) -> None:
        _settle_deltas(self._turn(event.data))

    def _delta(self, event: Event) -> None:
        data = event.data
        turn = self._by_run.get(data["run_id"])
        if turn is None or not turn.open or data["message_id"] in turn.messages:
            return
        delta = turn.deltas.get(data["message_id"])
        if delta is None:
            delta = turn.deltas[data["message_id"]] = Delta(data["message_id"], data["run_id"], data["step"], event.seq)
        delta.pieces.append(data)

    def _assistant(self, event: Event) -> None:
        data = event.data
        turn = self._turn(data)
        turn.messages.add(data["message_id"])
        turn.deltas.pop(data["message_id"], None)
        item = _Item("assistant", event.seq, data["run_id"], [])
        for block in data["content"]:
            if not _is_call(block):
                item.content += _neutral([block])
                continue
            call = Call(turn.calls, block["call_id"], _name(block), data["step"], data["run_id"], event.seq)
            turn.calls += 1
            turn.pairing.request(call)
            item.calls.append(call)
            item.content.append(_requested(block))
        item.mark = "interrupted" if data.get("interrupted") is True else None
        turn.add(item)

    def _call(self, event: Event) -> None:
        data = event.data
        turn = self._turn(data)
        pairing = turn.pairing
        call = pairing.requested_for(data["call_id"], data["step"])
        requested = call is not None
        if call is None:
            call = Call(turn.calls, data["call_id"], data["name"], data["step"], data["run_id"])
            turn.calls += 1
            turn.add(_Item("user", event.seq, data["run_id"], [], call=call, mark="without request"))
        call.call_seq, call.operation_id, call.recovery = event.seq, data["operation_id"], data["recovery"]
        pairing.dispatch(call, requested)

    def _result(self, event: Event) -> None:
        data = event.data
        turn = self._turn(data)
        pairing = turn.pairing
        operation = text_of(data.get("operation_id"))
        call = pairing.find(data["call_id"], operation, data["step"])
        content, state = _neutral(data["content"]), data["state"]
        if call is not None:
            pairing.answer(call, state)
            turn.results[call.index] = (content, data["is_error"], state, event.seq)
            self._anchor(call.run_id, event.seq)
            if state == "unknown":
                call_seq = call.call_seq or whole(data.get("call_seq")) or event.seq
                self._unknown[turn.turn_id, call_seq] = _Unknown(turn, call, self._requests)
        elif pairing.misfit(data["call_id"], operation) == "orphan_result":
            said = [_text(wording.result_without_request("", data["call_id"], state)), *content]
            turn.add(_Item("user", event.seq, data["run_id"], said, mark="without request"))
            self._anchor(data["run_id"], event.seq)
        else:
            turn.add(_Item("note", event.seq, data["run_id"], content, mark="duplicate result"))

    def _outcome(self, event: Event) -> None:
        data = event.data
        unknown = self._unknown.pop((data["turn_id"], data["call_seq"]), None)
        if unknown is None:
            return
        turn, call, content = unknown.turn, unknown.call, _neutral(data["content"])
        turn.sources[call.index] = data["source"]
        result = (content, data["is_error"], data["state"], event.seq)
        root = self._root(call.run_id)
        compacted = (call.message_seq or call.call_seq or 0) < self._kept_from
        if self._requests in (unknown.requests, self._claimed.get(root)) and not compacted:
            turn.results[call.index] = result
            self._forget(turn)
        else:
            said = [_text(wording.outcome_told(call.name, call.call_id, data["state"])), *content]
            item = _Item("user", event.seq, data["run_id"], said, mark=f"outcome: {data['source']}")
            if compacted:
                # The summary does not know of it: it is told where it came.
                self._forget(self._turns[-1])
                self._turns[-1].add(item)
            else:
                self._untold[event.seq] = item
            self._told.setdefault(root, []).append(_Told(turn, call, result, item))

    def _turn_end(self, event: Event) -> None:
        self._close(self._turn(event.data))

    def _close(self, turn: _Turn) -> None:
        if turn.open:
            _settle_deltas(turn)
            turn.open = False
            self._sound.pop(turn.turn_id, None)
            self._forget(turn)

    def _lose(self) -> None:
        """Events may have been lost here: that a call of an open turn was not dispatched is no longer proven."""
        for turn in self._sound.values():
            turn.provable = False
            self._forget(turn)
        self._sound.clear()

    def _claim(self, event: Event) -> None:
        """From here on the history hides what the source holds behind the last event that is replayed, and shows what
        became of its unknown calls in their places.

        Earlier segments were cut by their own claims: usually only the source's run is looked at twice.
        """
        data = event.data
        through = data["replay_through_seq"]
        source = _key(data["source"].get("run_id"))
        runs = {_key(mapping(segment).get("run_id")) for segment in sequence(data["boundary"].get("segments"))}
        runs.add(source)
        for run in runs:
            anchors = self._anchors.get(run)
            while anchors and anchors[-1] > through:
                anchors.pop()
            turn = self._by_run.get(run)
            if turn is not None and turn.reaches(run, through):
                turn.hide(run, through)
                self._forget(turn)
        for root in {self._root(run) for run in runs}:
            self._claimed[root] = self._requests
            for told in self._told.pop(root, ()):
                told.turn.results[told.call.index] = told.result
                self._forget(told.turn)
                self._untold.pop(told.item.seq, None)
        target = _key(data["target_run"].get("run_id"))
        if target not in self._sources:
            self._sources[target] = source
            self._roots[target] = self._root(source)

    def _compacted(self, event: Event) -> None:
        """The summary stands before what is kept; what is hidden already is not looked at again."""
        kept = whole(event.data.get("kept_from"))
        upto = event.seq if kept is None else min(kept, event.seq)
        summary = _Item("user", event.seq, "", _neutral(event.data["content"]), mark=_SUMMARY)
        home: tuple[_Turn, int] | None = None
        if self._turns:
            self._forget(self._turns[min(self._visible, len(self._turns) - 1)])
        for place in range(self._visible, len(self._turns)):
            turn = self._turns[place]
            turn.given = None
            for number, item in enumerate(turn.items):
                if place < self._own or item.seq < upto or item.mark == _SUMMARY:
                    item.hidden = True
                elif home is None and not item.hidden:
                    home = turn, number
            if home is None:
                self._visible = place
        self._kept_from = max(self._kept_from, upto)
        if home is None:
            turn = self._turns[-1] if self._turns else self._begin("")
            turn.add(summary)
        else:
            home[0].items.insert(home[1], summary)

    def _note(self, event: Event) -> None:
        data = event.data
        said = [part for key in ("kind", "source", "text") if (part := text_of(data.get(key))) is not None]
        self._aside("note", event, ": ".join(said))

    def _gap(self, event: Event) -> None:
        self._lose()
        spans, missing = event.data["spans"], event.data["missing"]
        lengths = [whole(mapping(span).get("length")) or 0 for span in spans]
        lost = sum(max(0, end - start + 1) for start, end in map(_range, missing))
        damaged = _counted(len(spans), "damaged stretch", "damaged stretches")
        self._aside("gap", event, f"{damaged} ({sum(lengths)} bytes), {_counted(lost, 'event', 'events')} missing")


def _key(value: Any) -> str:
    return value if value.__class__ is str else ""


def _range(value: Any) -> tuple[int, int]:
    numbers = [whole(number) for number in sequence(value)]
    start, end = numbers if len(numbers) == 2 else (None, None)
    return (0, -1) if start is None or end is None else (start, end)


def _name(block: JsonObject) -> str:
    return text_of(block.get("name")) or ""


def _is_call(block: Any) -> bool:
    return block.__class__ is dict and block.get("kind") == "tool_call" and block.get("call_id").__class__ is str


def _settle_deltas(turn: _Turn) -> None:
    """Live text whose message never came is all that there is of it."""
    for delta in turn.deltas.values():
        content = [block for block in delta.blocks() if block["text"] and block["kind"] in ("text", "thinking")]
        if content:
            turn.add(_Item("assistant", delta.seq, delta.run_id, content, mark="interrupted"))
    turn.deltas.clear()


def _text(text: str) -> JsonObject:
    return {"kind": "text", "text": text}


def _neutral(blocks: list[Any]) -> list[JsonObject]:
    """Blocks that may stand anywhere: no calls and results, nothing that is no block, no empty text."""
    out: list[JsonObject] = []
    for block in blocks:
        if block.__class__ is dict and (kind := block.get("kind")).__class__ is str and kind not in _OURS:
            if kind not in _SAID or block.get("text").__class__ is str:
                if kind != "text" or block["text"] or "ref" in block:
                    out.append(block)
            elif "text" not in block and text_of(block.get("ref")):
                out.append(block)
            elif (said := block.get("text")) is not None:
                out.append(_text(_json(said)))
        elif block.__class__ is str:
            out += [_text(block)] if block else []
        else:
            out.append(_text(_json(block)))
    return out


def _requested(block: JsonObject) -> JsonObject:
    """A call's block with the kinds of values that it must have."""
    name, arguments = block.get("name"), block.get("arguments")
    if name.__class__ is str and arguments.__class__ is str:
        return block
    text = arguments if arguments.__class__ is str else "{}" if arguments is None else _json(arguments)
    return {**block, "name": _name(block), "arguments": text}


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def _given(message: JsonObject) -> list[JsonObject]:
    """A user's content, behind what they quoted and before what they attached."""
    quotes = [mapping(quote).get("text") for quote in sequence(message.get("quotes"))]
    quoted = [_text("> " + text.replace("\n", "\n> ")) for text in quotes if text.__class__ is str and text]
    attached = [
        {"kind": _media(part["media_type"]), **{key: part[key] for key in _ATTACHED if key in part}}
        for part in sequence(message.get("attachments"))
        if part.__class__ is dict and text_of(part.get("media_type")) and text_of(part.get("ref"))
    ]
    return [*quoted, *_neutral(sequence(message.get("content"))), *attached]


def _media(media_type: str) -> str:
    return "image" if media_type.startswith("image/") else "file"


# ---------------------------------------------------------------- rendering


def _join(messages: list[JsonObject], further: Iterable[tuple[str, list[JsonObject]]]) -> None:
    """Append messages; what the assistant says in a row is one of them."""
    for role, content in further:
        if role == "assistant" and messages and messages[-1]["role"] == "assistant":
            messages[-1] = {"role": role, "content": messages[-1]["content"] + content}
        else:
            messages.append({"role": role, "content": content})


def _messages_of(turn: _Turn, view: _View | None = None) -> list[tuple[str, list[JsonObject]]]:
    results = turn.results if view is None else view.results.get(turn.place, turn.results)
    out: list[tuple[str, list[JsonObject]]] = []
    if turn.given is not None and (content := _given(turn.given[1])):
        out.append(("user", content))
    for item in turn.items:
        if item.hidden or item.role in ("note", "gap") or not (view is None or view.shows(item)):
            continue
        content = _item_content(turn, item, results)
        if content:
            out.append((item.role, content))
        if item.calls:
            out.append(("tool", [_result(turn, call, results) for call in item.calls]))
    return out


def _item_content(turn: _Turn, item: _Item, results: _Results) -> list[JsonObject]:
    """An item's blocks; of a dispatched call that no message asked for, what came of it."""
    if item.call is None:
        return item.content
    shown = _result(turn, item.call, results)
    head = wording.result_without_request(item.call.name, item.call.call_id, shown["state"])
    content: list[JsonObject] = shown["content"]
    return [_text(head), *content]


def _result(turn: _Turn, call: Call, results: _Results) -> JsonObject:
    result = results.get(call.index)
    if result is not None:
        content, is_error, state, _ = result
    else:
        state, is_error = projected_state(call, turn.provable), True
        content = [_text(wording.not_started() if state == "not_started" else wording.unknown_outcome(call.recovery))]
    return {"kind": "tool_result", "call_id": call.call_id, "content": content, "is_error": is_error, "state": state}


def _origin(turn: _Turn, call: Call, result: tuple[list[JsonObject], bool, str, int]) -> str | None:
    """What stands for a result that was unknown, by where it came from; None for the result itself."""
    source = turn.sources.get(call.index)
    return None if source is None or result[2] == "unknown" else f"outcome: {source}"


def _entry(turn: _Turn, role: str, seq: int, content: list[JsonObject], mark: str | None) -> JsonObject:
    entry: JsonObject = {"role": role, "seq": seq, "turn_id": turn.turn_id, "content": content}
    if mark is not None:
        entry["mark"] = mark
    return entry


_HANDLERS: Final = {
    "session/header": History._header,
    "session/note": History._note,
    "context/compacted": History._compacted,
    "turn/start": History._turn_start,
    "turn/admitted": History._admission,
    "user/message": History._user,
    "step/start": History._step_start,
    "assistant/delta": History._delta,
    "assistant/message": History._assistant,
    "tool/call": History._call,
    "tool/result": History._result,
    "tool/outcome": History._outcome,
    "step/end": History._step_end,
    "turn/end": History._turn_end,
    "continuation/claim": History._claim,
    "continuation/start": History._turn_start,
    "journal/gap": History._gap,
}


def _counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
