"""The history that a model is given behind a compaction: the summary, what was kept, and what came since."""

from typing import Any

import pytest

from maka.journal.events import Draft, Event
from maka.journal.history import History
from maka.journal.state import State

CALL = {"kind": "tool_call", "call_id": "c", "name": "look", "arguments": "{}"}


def text(value: str) -> list[dict[str, Any]]:
    return [{"kind": "text", "text": value}]


class Told:
    """A journal in memory, and its history."""

    def __init__(self) -> None:
        self.history = History()
        self.seq = 0
        self.turn = 0

    def add(self, type_: str, data: dict[str, Any]) -> int:
        self.history.apply(Event(self.seq, 0, type_, data, ""))
        self.seq += 1
        return self.seq - 1

    def header(self) -> None:
        self.seq = 0
        self.add("session/header", {"format": 1})

    def say(self, said: str, answer: str, *blocks: dict[str, Any]) -> int:
        """A turn with an answer; the number of its answer."""
        self.turn += 1
        ids = {"turn_id": f"t{self.turn}", "run_id": f"r{self.turn}"}
        self.add("turn/start", ids)
        self.add("user/message", {**ids, "message_id": "m", "content": text(said), "source": {"kind": "user"}})
        self.add("step/start", {**ids, "step": 1})
        message = {**ids, "step": 1, "message_id": "a", "content": [*text(answer), *blocks], "stop_reason": ""}
        seq = self.add("assistant/message", message)
        if blocks:
            result = {**ids, "step": 1, "call_id": "c", "state": "unknown", "content": text("?"), "is_error": True}
            self.add("tool/result", {**result, "call_seq": seq})
        self.add("turn/end", {**ids, "reason": {"kind": "completed"}})
        return seq

    def compact(self, **more: Any) -> None:
        self.add("context/compacted", {"content": text("summary"), **more})

    def texts(self) -> list[str]:
        return [block["text"] for message in self.history.messages() for block in message["content"] if "text" in block]


@pytest.fixture
def told() -> Told:
    told = Told()
    told.header()
    return told


def test_what_stands_before_is_left_out(told: Told) -> None:
    told.say("one", "1")
    assert told.texts() == ["one", "1"]
    told.compact()
    assert told.texts() == ["summary"]
    told.say("two", "2")
    assert told.texts() == ["summary", "two", "2"]
    marks = [(entry["role"], entry.get("mark")) for entry in told.history.annotated()]
    assert marks == [
        ("user", "hidden"),
        ("assistant", "hidden"),
        ("user", "summary"),
        ("user", None),
        ("assistant", None),
    ]


def test_what_is_kept_follows_the_summary(told: Told) -> None:
    told.say("one", "1")
    kept = told.say("two", "2")
    told.compact(kept_from=kept)
    told.say("three", "3")
    assert told.texts() == ["summary", "2", "three", "3"]
    assert [message["role"] for message in told.history.messages()] == ["user", "assistant", "user", "assistant"]


@pytest.mark.parametrize("pointer", [-5, 10**9, "x", None, 2.5, []])
def test_a_pointer_to_nowhere_keeps_nothing_or_everything(told: Told, pointer: Any) -> None:
    told.say("one", "1")
    told.compact(kept_from=pointer)
    assert told.texts() == (["summary", "one", "1"] if pointer == -5 else ["summary"])


def test_only_the_newest_compaction_counts(told: Told) -> None:
    first = told.say("one", "1")
    told.compact()
    told.say("two", "2")
    told.add("context/compacted", {"content": text("later"), "kept_from": first})
    assert told.texts() == ["later", "two", "2"]


def test_of_the_parents_of_a_fork_nothing_is_kept(told: Told) -> None:
    told.say("one", "1")
    told.say("two", "2")
    told.header()
    kept = told.say("three", "3")
    told.compact(kept_from=kept)
    assert told.texts() == ["summary", "3"]


def test_what_comes_of_a_call_that_was_compacted_away_is_told_as_text(told: Told) -> None:
    seq = told.say("one", "1", CALL)
    told.compact()
    outcome = {"turn_id": "t1", "run_id": "r1", "call_id": "c", "call_seq": seq, "operation_id": "o", "state": "ok"}
    told.add("tool/outcome", {**outcome, "content": text("it was done"), "is_error": False, "source": "late"})
    messages = told.history.messages()
    assert [message["role"] for message in messages] == ["user", "user"]
    assert all(block["kind"] == "text" for message in messages for block in message["content"])
    assert (told.texts()[0], told.texts()[-1]) == ("summary", "it was done")
    told.say("two", "2")
    assert told.texts()[-3:] == ["it was done", "two", "2"]


def test_a_compaction_without_a_summary_leaves_the_rest_alone(told: Told) -> None:
    told.say("one", "1")
    told.add("context/compacted", {"content": []})
    told.say("two", "2")
    assert told.texts() == ["two", "2"]


def test_a_compaction_may_be_written_anywhere() -> None:
    state = State()
    header = {
        "format": 1,
        "session_id": "s",
        "created_by": {"name": "maka", "version": "0"},
        "cwd": "/w",
        "backend": "b",
        "model": "m",
        "permission_mode": "ask",
    }
    state.apply(Event(0, 0, "session/header", header, ""))
    draft = Draft("context/compacted", {"content": text("summary"), "kept_from": 3}, ignorable=True)
    state.check(draft)
    state.apply(Event(1, 0, draft.type, draft.data, "", ignorable=True))
    assert state.turn_rows() == []
