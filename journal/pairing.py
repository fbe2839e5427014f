"""Which result belongs to which call of a turn (format §4): one rule for the fold and for the history. No I/O.

By operation where both have one; else by call_id and occurrence, dispatched calls before those that were only
requested; else by the trimmed, case-folded call_id if that is unique in the turn. Among several the one of the event's
own step comes first, then the oldest.
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


#: Stands for an operation all of whose calls are answered; never changed.
_NONE: list[Call] = []

Misfit = Literal["orphan_result", "duplicate_result"]


@attrs.define(slots=True, eq=False)
class Pairing:
    """The calls of one turn. ``requested`` and ``dispatched``: unanswered ones by call_id, oldest first.

    ``operations`` holds every operation of the turn: the unanswered calls that carry it. ``known`` holds every call_id
    of the turn, trimmed and case-folded: the spelling, or None once two calls share it.
    """

    requested: dict[str, list[Call]] = attrs.field(factory=dict)
    dispatched: dict[str, list[Call]] = attrs.field(factory=dict)
    operations: dict[str, list[Call]] = attrs.field(factory=dict)
    known: dict[str, str | None] = attrs.field(factory=dict)

    @classmethod
    def of_names(cls, operations: list[str], known: dict[str, str | None]) -> "Pairing":
        """From a snapshot; ``rebuild`` adds the unanswered calls."""
        return cls(operations=dict.fromkeys(operations, _NONE), known=known)

    def request(self, call: Call) -> None:
        """A block asked for this call."""
        self._know(call.call_id)
        self.requested.setdefault(call.call_id, []).append(call)

    def requested_for(self, call_id: str, step: int) -> Call | None:
        """The request that a dispatch of ``call_id`` in ``step`` carries out."""
        calls = self.requested.get(call_id)
        if not calls:
            other = self.known.get(call_id.strip().casefold())
            calls = None if other is None else self.requested.get(other)
            if not calls:
                return None
        return _of_step(calls, step)

    def dispatch(self, call: Call, requested: bool) -> None:
        """The call was carried out: ``call_seq`` and ``operation_id`` are set. ``requested``: for a block."""
        if requested:
            _take(self.requested, call.call_id, call)
        else:
            self._know(call.call_id)
        self._dispatched(call)

    def find(self, call_id: str, operation_id: str | None, step: int) -> Call | None:
        """The unanswered call that a result belongs to, or None."""
        if operation_id is not None:
            calls = self.operations.get(operation_id)
            if calls:
                return _of_step(calls, step)
        call = self._find(call_id, operation_id, step)
        if call is None and (other := self.known.get(call_id.strip().casefold())) is not None and other != call_id:
            return self._find(other, operation_id, step)
        return call

    def _find(self, call_id: str, operation_id: str | None, step: int) -> Call | None:
        if operation_id is None and (calls := self.dispatched.get(call_id)):
            return _of_step(calls, step)
        if calls := self.requested.get(call_id):
            return _of_step(calls, step)
        return None

    def answer(self, call: Call, state: str) -> None:
        """The call has its result."""
        call.state = state
        if call.call_seq is None:
            _take(self.requested, call.call_id, call)
            return
        _take(self.dispatched, call.call_id, call)
        if (operation := call.operation_id) is not None:
            calls = self.operations[operation]
            if len(calls) == 1:
                self.operations[operation] = _NONE
            else:
                calls.remove(call)

    def misfit(self, call_id: str, operation_id: str | None) -> Misfit:
        """What a result is that no unanswered call fits: does the call that it names have one already?"""
        if operation_id is not None and operation_id in self.operations:
            return "duplicate_result"
        known = call_id.strip().casefold() in self.known
        return "duplicate_result" if known and not self.dispatched.get(call_id) else "orphan_result"

    def rebuild(self, calls: list[Call]) -> None:
        """Index the unanswered calls again, after ``known`` and the operations' names were taken from a snapshot."""
        for call in calls:
            if call.state is None and call.call_seq is None:
                self.requested.setdefault(call.call_id, []).append(call)
        for call in sorted((call for call in calls if call.call_seq is not None), key=lambda call: call.call_seq or 0):
            if call.state is None:
                self._dispatched(call)

    def _dispatched(self, call: Call) -> None:
        self.dispatched.setdefault(call.call_id, []).append(call)
        if (operation := call.operation_id) is not None:
            if calls := self.operations.get(operation):
                calls.append(call)
            else:
                self.operations[operation] = [call]

    def _know(self, call_id: str) -> None:
        folded = call_id.strip().casefold()
        self.known[folded] = None if folded in self.known else call_id


def _of_step(calls: list[Call], step: int) -> Call:
    if calls[0].step != step:
        for call in calls:
            if call.step == step:
                return call
    return calls[0]


def _take(index: dict[str, list[Call]], call_id: str, call: Call) -> None:
    calls = index[call_id]
    if len(calls) == 1:
        del index[call_id]
    else:
        calls.remove(call)
