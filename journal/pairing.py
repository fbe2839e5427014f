"""Which result belongs to which call of a turn: one rule for the fold and for the history. No I/O.

The rule is that of docs/format.md, "Calls and their outcomes". By operation where both have one; else by call_id and
occurrence, dispatched calls before those that were only requested; else by the trimmed, case-folded call_id if that is
unique in the turn. Among several the one of the event's own step comes first, then the oldest.
"""

from typing import Literal

import attrs


@attrs.define(slots=True, eq=False)
class Call:
    """A call of a turn.

    ``index`` counts the turn's calls in the order in which they appeared: the blocks of its messages, and where they
    stand those that no block requested. Requested: ``message_seq`` is the assistant message's seq. Dispatched:
    ``call_seq`` is the seq of its tool/call, and ``operation_id`` and ``recovery`` are its. Answered: ``state`` is the
    result's.
    """

    index: int
    call_id: str
    name: str
    step: int
    run_id: str
    message_seq: int | None = None
    call_seq: int | None = None
    operation_id: str | None = None
    recovery: str | None = None
    state: str | None = None

    @property
    def dispatched(self) -> bool:
        return self.call_seq is not None


@attrs.define(slots=True, eq=False)
class _Line:
    """Calls in the order in which they came. The first ``passed`` of them wait no more; of the others some may not."""

    calls: list[Call] = attrs.field(factory=list)
    passed: int = 0

    def first(self, dispatched: bool) -> Call | None:
        """The oldest that waits for a result (or, not ``dispatched``, for its dispatch or its result)."""
        while self.passed < len(self.calls):
            call = self.calls[self.passed]
            if call.state is None and call.dispatched == dispatched:
                return call
            self.passed += 1
        return None


@attrs.define(slots=True, eq=False)
class _Namesakes:
    """Calls of one name, all of them and by step. Each is passed over once, so that finding the first stays cheap."""

    line: _Line = attrs.field(factory=_Line)
    steps: dict[int, _Line] = attrs.field(factory=dict)

    def add(self, call: Call) -> None:
        self.line.calls.append(call)
        self.steps.setdefault(call.step, _Line()).calls.append(call)

    def first(self, step: int, dispatched: bool) -> Call | None:
        line = self.steps.get(step)
        return (line.first(dispatched) if line is not None else None) or self.line.first(dispatched)


#: Unanswered calls by a name of theirs; nearly always one. None: all that had the name are answered.
_Index = dict[str, Call | _Namesakes | None]

Misfit = Literal["orphan_result", "duplicate_result"]


@attrs.define(slots=True, eq=False)
class Pairing:
    """The calls of one turn. ``requested`` and ``dispatched``: unanswered ones by call_id.

    ``operations`` holds every operation of the turn: the unanswered calls that carry it. ``known`` holds every call_id
    of the turn, trimmed and case-folded: the spelling, or None once two calls share it; ``shared`` then has their
    spellings.
    """

    requested: _Index = attrs.field(factory=dict)
    dispatched: _Index = attrs.field(factory=dict)
    operations: _Index = attrs.field(factory=dict)
    known: dict[str, str | None] = attrs.field(factory=dict)
    shared: dict[str, None] = attrs.field(factory=dict)

    @classmethod
    def of_names(cls, operations: list[str], known: dict[str, str | None], shared: list[str]) -> "Pairing":
        """From a snapshot; ``rebuild`` adds the unanswered calls."""
        return cls(operations=dict.fromkeys(operations), known=known, shared=dict.fromkeys(shared))

    def request(self, call: Call) -> None:
        """A block asked for this call."""
        self._know(call.call_id)
        _add(self.requested, call.call_id, call)

    def requested_for(self, call_id: str, step: int) -> Call | None:
        """The request that a dispatch of ``call_id`` in ``step`` carries out."""
        call = _first(self.requested, call_id, step, False)
        if call is None and (other := self.known.get(call_id.strip().casefold())) is not None:
            return _first(self.requested, other, step, False)
        return call

    def dispatch(self, call: Call, requested: bool) -> None:
        """The call was carried out: ``call_seq`` and ``operation_id`` are set. ``requested``: for a block."""
        if requested:
            _drop(self.requested, call.call_id, call)
        else:
            self._know(call.call_id)
        self._dispatched(call)

    def find(self, call_id: str, operation_id: str | None, step: int) -> Call | None:
        """The unanswered call that a result belongs to, or None."""
        if operation_id is not None and (call := _first(self.operations, operation_id, step, True)) is not None:
            return call
        call = self._find(call_id, operation_id, step)
        if call is None and (other := self.known.get(call_id.strip().casefold())) is not None and other != call_id:
            return self._find(other, operation_id, step)
        return call

    def _find(self, call_id: str, operation_id: str | None, step: int) -> Call | None:
        if operation_id is None and (call := _first(self.dispatched, call_id, step, True)) is not None:
            return call
        return _first(self.requested, call_id, step, False)

    def answer(self, call: Call, state: str) -> None:
        """The call has its result."""
        call.state = state
        if call.call_seq is None:
            _drop(self.requested, call.call_id, call)
            return
        _drop(self.dispatched, call.call_id, call)
        if (operation := call.operation_id) is not None and self.operations[operation] is call:
            self.operations[operation] = None

    def misfit(self, call_id: str, operation_id: str | None) -> Misfit:
        """What a result is that no unanswered call fits: does the call that it names have one already?"""
        if operation_id is not None and operation_id in self.operations:
            return "duplicate_result"
        named = call_id if call_id in self.shared else self.known.get(call_id.strip().casefold())
        if named is None or _first(self.dispatched, named, 0, True) is not None:
            return "orphan_result"
        return "duplicate_result"

    def rebuild(self, calls: list[Call]) -> None:
        """Index the unanswered calls again, after all that ``of_names`` takes came from a snapshot."""
        for call in calls:
            if call.state is None and call.call_seq is None:
                _add(self.requested, call.call_id, call)
        for call in sorted((call for call in calls if call.call_seq is not None), key=lambda call: call.call_seq or 0):
            if call.state is None:
                self._dispatched(call)

    def _dispatched(self, call: Call) -> None:
        _add(self.dispatched, call.call_id, call)
        if call.operation_id is not None:
            _add(self.operations, call.operation_id, call)

    def _know(self, call_id: str) -> None:
        folded = call_id.strip().casefold()
        if folded not in self.known:
            self.known[folded] = call_id
            return
        if (first := self.known[folded]) is not None:
            self.shared[first] = self.known[folded] = None
        self.shared[call_id] = None


def _add(index: _Index, name: str, call: Call) -> None:
    found = index.get(name)
    if found is None:
        index[name] = call
        return
    if isinstance(found, Call):
        index[name] = namesakes = _Namesakes()
        namesakes.add(found)
        found = namesakes
    found.add(call)


def _first(index: _Index, name: str, step: int, dispatched: bool) -> Call | None:
    """Of the waiting calls of that name the oldest of the step, else the oldest."""
    found = index.get(name)
    return found.first(step, dispatched) if isinstance(found, _Namesakes) else found


def _drop(index: _Index, name: str, call: Call) -> None:
    """Take out a call that waits no more; among namesakes it is passed over by itself."""
    if index.get(name) is call:
        del index[name]
