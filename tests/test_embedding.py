"""What the document on embedding says in tables is what the runtime does."""

import logging
import re

import attrs

import maka.runtime
from maka.runtime import errors
from maka.runtime.kernel.generations import Deadlines
from maka.runtime.lifecycle import KINDS
from maka.runtime.session_events import BARRIERS, END_OF
from maka.runtime.session_events import KINDS as EVENTS
from support import documents
from support.documents import EMBEDDING

#: Events that only a backend yields.
_UNTOLD = {"assistant_message", "request_header", "cleanup_failed"}


def test_the_events_are_those_that_a_client_is_told() -> None:
    cells = [re.findall(r"`(\w+)`", row[0]) for row in documents.table(EMBEDDING, "event", "`data`")]
    assert {kind for cell in cells for kind in cell} == EVENTS.keys() - _UNTOLD
    [complete] = [row[1] for row in documents.table(EMBEDDING, "event", "`data`") if row[0] == "`complete`"]
    assert set(re.findall(r"`(\w+)`", complete)) == {"stop_reason", *END_OF}


def test_every_barrier_of_a_backend_is_named() -> None:
    [sentence] = re.findall(r"- When you are asked for the event behind.*?\n- ", EMBEDDING, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", sentence)) == BARRIERS


def test_the_lifecycle_has_its_kinds_and_levels() -> None:
    rows = documents.table(EMBEDDING, "kind", "log level")
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
