"""What the document on embedding says in tables is what the runtime does."""

import logging
import re
from pathlib import Path
from typing import Any

import attrs

import maka.runtime
from maka.runtime import errors
from maka.runtime.backends.scripted import (
    Boundary,
    Emit,
    Fail,
    Never,
    Part,
    Permission,
    Question,
    Retry,
    Say,
    Tokens,
    Tool,
)
from maka.runtime.interaction_shapes import ANSWER_OF
from maka.runtime.kernel.generations import Deadlines
from maka.runtime.lifecycle import KINDS
from maka.runtime.session_events import BARRIERS, END_OF
from maka.runtime.session_events import KINDS as EVENTS
from support import documents
from support.documents import EMBEDDING
from support.managed import go, managing, playing

#: Events that only a backend yields.
_UNTOLD = {"assistant_message", "cleanup_failed"}


def test_the_events_are_those_that_a_client_is_told() -> None:
    cells = [re.findall(r"`(\w+)`", row[0]) for row in documents.table(EMBEDDING, "event", "`data`")]
    assert {kind for cell in cells for kind in cell} == EVENTS.keys() - _UNTOLD
    [complete] = [row[1] for row in documents.table(EMBEDDING, "event", "`data`") if row[0] == "`complete`"]
    assert set(re.findall(r"`(\w+)`", complete)) == {"stop_reason", *END_OF}


def keys_of(cell: str) -> set[str]:
    """The keys that the first words in code name."""
    span = re.match(r"`([\w, ]+)`", cell)
    return set(span[1].split(", ")) if span else set()


def test_a_client_is_told_the_keys_that_the_table_has(tmp_path: Path) -> None:
    said = [{"kind": "text", "text": "and"}]
    everything: list[Part] = [
        Emit("step_start"),
        Emit("request_header", {"reason": "initial", "header": {"provider": "p", "model": "m"}}),
        Say("Hm.", thinking=True),
        Retry(),
        Tokens(1, 2),
        "Well.",
        Tool("look"),
        Question("Go on?", lambda outcome: []),
        Permission("look", then=lambda outcome: []),
        Boundary({"network": True}, then=lambda outcome: []),
        Emit("plan_submitted", {"proposal_id": "p1", "revision": 1, "title": "t", "steps": []}),
        Emit("step_end"),
        Emit("steering_message", {"message_id": "m9", "content": said}),
        Fail(),
    ]
    answers: dict[str, dict[str, Any]] = {
        "question_request": {"kind": "question_answer", "answers": ["Yes"]},
        "permission_request": {"kind": "permission_answer", "decision": "deny"},
        "sandbox_boundary_request": {"kind": "sandbox_boundary_decision", "decision": "deny"},
    }
    told: dict[str, set[str]] = {}

    async def main() -> None:
        async with managing(tmp_path, playing(everything, Never(), steps=False)) as manager:
            await manager.create(session_id="s")
            async for event in manager.send("s", "go"):
                told[event.kind] = set(event.data)
                if event.kind in answers:
                    await manager.answer("s", event.data["interaction_id"], answers[event.kind])
            stream = manager.send("s", "go")
            await stream.started()
            manager.stop("s")
            told.update({event.kind: set(event.data) async for event in stream})

    go(main())
    rows = documents.table(EMBEDDING, "event", "`data`")
    assert told == {kind: keys_of(row[1]) for row in rows for kind in re.findall(r"`(\w+)`", row[0])}


def test_a_backend_s_events_have_the_keys_that_they_must_have() -> None:
    rows = documents.table(EMBEDDING, "event", "must have", "may have")
    must = {kind: keys_of(row[1]) for row in rows for kind in re.findall(r"`(\w+)`", row[0])}
    assert must == {kind: set(keys) for kind, keys in EVENTS.items()}


def test_what_is_asked_has_the_keys_and_answers_that_are_taken() -> None:
    rows = documents.table(EMBEDDING, "kind", "is asked with", "takes the answer")
    assert [row[0].strip("`") for row in rows] == [*ANSWER_OF]
    for row in rows:
        kind = row[0].strip("`")
        [keys] = [set(EVENTS[shown]) for shown in EVENTS if shown == f"{kind}_request"]
        assert set(re.findall(r'[{,] ?"(\w+)":', re.sub(r"\[.*\]", "[]", row[1]))) == keys - {"interaction_id"}
        assert f'"kind": "{ANSWER_OF[kind]}"' in row[2]


def test_every_barrier_of_a_backend_is_named() -> None:
    [sentence] = re.findall(r"- When you are asked for the event behind.*?\n- ", EMBEDDING, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", sentence)) == BARRIERS


def test_the_lifecycle_has_its_kinds_and_levels() -> None:
    rows = documents.table(EMBEDDING, "kind", "log level", "`data`")
    assert {row[0].strip("`"): row[1] for row in rows} == {
        kind: logging.getLevelName(level) for kind, level in KINDS.items()
    }


def test_the_deadlines_are_the_defaults() -> None:
    rows = documents.table(EMBEDDING, "deadline", "seconds", "for")
    assert {row[0].strip("`"): float(row[1]) for row in rows} == attrs.asdict(Deadlines())


def test_each_error_is_there_and_public() -> None:
    named = [row[0].strip("`") for row in documents.table(EMBEDDING, "error", "raised when", "what you do")]
    family = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert set(named) == family - {"RuntimeFailure"}
    assert "`RuntimeFailure`" in EMBEDDING
    assert family <= set(maka.runtime.__all__)
    codes = re.findall(r"``(\w+)``", str(errors.InteractionRefused.__doc__))
    assert codes
    for code in codes:
        if code != "code":
            assert f"`{code}`" in EMBEDDING.split("## Errors")[1]


def test_nobody_is_told_to_throw_anything_away() -> None:
    words = re.findall(r"\b(?:rm|unlink|remove|erase|truncate|discard)\w*\b", EMBEDDING.lower())
    assert not words
