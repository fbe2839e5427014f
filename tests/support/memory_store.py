"""A store that keeps sessions in memory: small, and proof that the contract does not lean on files."""

from collections.abc import Iterable, Iterator
from typing import Any

from maka.journal.codec import ZERO, check_shape, clean, encode
from maka.journal.errors import InvalidEvent, JournalConflict, JournalLocked, SessionNotFound
from maka.journal.events import Event
from maka.journal.shapes import SESSION_ID
from maka.journal.state import State
from maka.journal.summary import listing
from maka.journal.writer import draft

# `list` is a method's name below, so the class cannot say it.
Events = list[Event]
Rows = list[dict[str, Any]]


class MemoryWriter:
    def __init__(self, events: list[Event], held: set[str], name: str) -> None:
        self._stored = events
        self._own = list(events)
        self._held, self._name = held, name

    @property
    def next_seq(self) -> int:
        return len(self._own)

    def append(self, event: Any, *, expected_seq: int | None = None) -> Event:
        return self.append_batch([event], expected_seq=expected_seq)[0]

    def append_batch(self, events: Iterable[Any], *, expected_seq: int | None = None) -> list[Event]:
        if expected_seq not in (None, self.next_seq):
            raise JournalConflict(f"the next event gets {self.next_seq}")
        drafts = [clean(draft(event)) for event in events]
        state = _fold(self._own)
        out: list[Event] = []
        for index, wanted in enumerate(drafts):
            check_shape(wanted)
            seq = self.next_seq + index
            if seq:
                state.check(wanted)
            sum_ = (out or self._own)[-1].sum if seq else ZERO
            more = len(drafts) - 1 - index if self._own else 0
            line, sum_ = encode(wanted, seq, 1_000 + seq, sum_, more)
            out.append(Event(seq, 1_000 + seq, wanted.type, wanted.data, sum_, wanted.ignorable, more, 0, len(line)))
            state.apply(out[-1])
        self._own += out
        return out

    def flush(self) -> None:
        self._stored[:] = self._own

    def close(self) -> None:
        self.flush()
        self._held.discard(self._name)


class MemoryStore:
    def __init__(self) -> None:
        self._sessions: dict[str, list[Event]] = {}
        self._held: set[str] = set()

    def _events(self, session_id: str) -> list[Event]:
        if session_id not in self._sessions:
            raise SessionNotFound(f"no session {session_id!r}")
        return self._sessions[session_id]

    def create(self, header: Any, batch: Iterable[Any] = ()) -> MemoryWriter:
        first = draft(header)
        name = first.data["session_id"]
        if SESSION_ID.fullmatch(name) is None:
            raise InvalidEvent(f"{name!r} is no session id", type=first.type)
        if name in self._sessions:
            raise JournalConflict(f"{name} is taken")
        events: list[Event] = []
        writer = MemoryWriter(events, self._held, name)
        writer.append(first)
        writer.append_batch(batch)
        writer.flush()
        self._sessions[name] = events
        self._held.add(name)
        return writer

    def open(self, session_id: str) -> MemoryWriter:
        events = self._events(session_id)
        if session_id in self._held:
            raise JournalLocked(f"{session_id} is open")
        self._held.add(session_id)
        return MemoryWriter(events, self._held, session_id)

    def list(self) -> Rows:
        return [listing(_fold(self._sessions[name])) | {"verdict": "unchecked"} for name in sorted(self._sessions)]

    def read(self, session_id: str, after: int = -1) -> Iterator[Event]:
        return iter(self._events(session_id)[after + 1 :])

    def append(self, session_id: str, events: Iterable[Any], *, expected_seq: int | None = None) -> Events:
        writer = self.open(session_id)
        try:
            return writer.append_batch(events, expected_seq=expected_seq)
        finally:
            writer.close()


def _fold(events: list[Event]) -> State:
    state = State()
    for event in events:
        state.apply(event)
    return state
