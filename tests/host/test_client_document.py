"""The document on the client is true: its tables are the code's, and its examples run against a host that is played."""

import asyncio
import inspect
import re
import threading
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from maka.runtime import host as public
from maka.runtime.errors import RuntimeFailure
from maka.runtime.host import following, protocol, watching
from maka.runtime.host.calls import Calls, Plans
from maka.runtime.host.client import Client
from maka.runtime.host.operations import OPERATIONS
from support import documents
from support.documents import CLIENT
from support.fake_host import FakeHost, Json


class Played(FakeHost):
    """A host whose turns say good morning, count until they are stopped, or ask."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.events: list[Json] = []
        self.turn: Json = {}
        self.snapshot = {"position": 0, "root_turn": None}
        self.answers.update(
            {
                "session.create": lambda made: {"session_id": made["session_id"], "revision": 0},
                "session.list": lambda _: {"sessions": [{"session_id": "s"}], "next": None},
                "session.history": self._history,
                "turn.start": self._start,
                "turn.query": lambda _: self.turn,
                "turn.stop": lambda _: self._end("cancelled"),
                "turn.message.submit": self._submit,
                "queue.retract": lambda taken: {"retracted": taken["message_ids"], "revision": 1},
                "interaction.answer": self._answered,
            }
        )

    def _append(self, type: str, **data: Any) -> int:
        self.events.append({"seq": len(self.events) + 1, "ts": 0, "type": type, "data": data})
        for id in self.watched:
            self.push(id, "event", event=self.events[-1])
        return len(self.events)

    def _start(self, asked: Json) -> Json:
        self.turn = {"turn_id": asked["turn_id"], "run_id": "r", "status": "running"}
        revision = self._append("user/message", content=asked["content"])
        if asked["content"] == "Ask me something.":
            self._append("interaction/requested", interaction_id="i")
        elif asked["content"] == "Good morning!":
            for id in self.watched:
                self.push(id, "delta", delta={"kind": "text", "text": "Good morning."})
            self._end("completed")
        return {"turn": dict(self.turn), "revision": revision}

    def _end(self, status: str) -> Json:
        self.turn["status"] = status
        self._append("turn/end", turn_id=self.turn["turn_id"])
        return self.turn

    def _submit(self, asked: Json) -> Json:
        disposition = "steering" if asked["placement"] == "current_turn" else "followup"
        return {"disposition": disposition, "revision": 1}

    def _answered(self, asked: Json) -> Json:
        self._end("completed")
        return {"interaction_id": asked["interaction_id"], "status": "answered"}

    def _history(self, asked: Json) -> Json:
        return {"events": [event for event in self.events if event["seq"] < asked.get("before", 1000)], "next": None}


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Played]:
    """A host in a thread of its own, as the examples have loops of their own."""
    monkeypatch.setenv("MAKA_HOME", str(tmp_path / "root"))
    host = Played(tmp_path / "root")
    up, over = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with host:
            up.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert up.wait(10)
    yield host
    loop.call_soon_threadsafe(over.set)
    thread.join()
    loop.close()


@pytest.mark.parametrize("section", documents.sections(CLIENT), ids=lambda section: section.title)
def test_the_examples_of_a_section_run(section: documents.Section, played: Played) -> None:
    namespace: dict[str, Any] = {"__name__": "__example__"}
    for line, code in section.python:
        exec(compile("\n" * line + code, "client.md", "exec"), namespace)  # noqa: S102
    assert played.lock.held


def test_it_has_an_example_of_each_thing_that_one_does() -> None:
    assert sum(len(section.python) for section in documents.sections(CLIENT)) >= 6


def test_every_operation_has_its_call_as_it_is() -> None:
    rows = documents.table(CLIENT, "operation", "call")
    assert [name for row in rows for name in re.findall(r"`([\w.]+)`", row[0])] == [*OPERATIONS]
    for name, arguments in re.findall(r"`([\w.]+)\(([^`]*)\)`", " ".join(row[1] for row in rows)):
        owner: type[Any] = Plans if name.startswith("plans.") else Client
        signature = inspect.signature(getattr(owner, name.removeprefix("plans.")))
        told = ", ".join(map(str, _of(signature)))
        assert arguments.replace('"', "'").replace("*, ", "") == told, name
    calls = {name for name in vars(Calls) if not name.startswith("_")} | {"subscribe", "follow"}
    named = set(re.findall(r"`(\w+)\(", " ".join(row[1] for row in rows)))
    assert calls - {"plans"} == named


def _of(signature: inspect.Signature) -> list[inspect.Parameter]:
    parameters = [parameter for parameter in signature.parameters.values() if parameter.name != "self"]
    return [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]


def test_every_kind_of_frame_is_told_with_what_it_holds() -> None:
    rows = documents.table(CLIENT, "frame", "holds", "is")
    assert [row[0].strip("`") for row in rows] == [*typing.get_args(watching.Type)]
    assert {row[1].strip("`") for row in rows} == {field.name for field in attrs.fields(watching.Frame)[2:]}


def test_every_end_of_a_subscription_is_told_and_what_comes_of_it() -> None:
    rows = documents.table(CLIENT, "`SubscriptionClosed.reason`", "means", "`follow`")
    told = {row[0].strip("`"): row[2] for row in rows}
    assert told.keys() == protocol.CLOSED | {"connection_closed", "sequence_gap"}
    assert {reason for reason, then in told.items() if then != "raises it"} == following._MENDED


def test_every_error_is_told_and_public() -> None:
    told = [row[0].strip("`") for row in documents.table(CLIENT, "error", "raised when", "what you do")]
    family = {
        name
        for name in public.__all__
        if isinstance(value := getattr(public, name), type) and issubclass(value, RuntimeFailure)
    }
    assert sorted(told) == sorted(family)


def test_every_state_of_a_host_is_named() -> None:
    words = CLIENT.split("## A first program")[1].split("## ")[0]
    assert {state for state in typing.get_args(protocol.State) if f"`{state}`" not in words} == set()


def test_nobody_is_told_to_throw_anything_away() -> None:
    assert not re.findall(r"\b(?:rm|unlink|erase|truncate|discard)\w*\b", CLIENT.lower())
