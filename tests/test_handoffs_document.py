"""What the document on handoffs says in tables is what the runtime and the command do."""

import re
from typing import Any

from maka.cli import render
from maka.runtime import errors
from maka.runtime.composition import SEMANTICS
from maka.runtime.continuation import codes
from maka.runtime.handoff.request import HandoffRequest
from support import documents
from support.documents import HANDOFFS


def of_section(heading: str) -> str:
    return HANDOFFS.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def codes_of(kind: type[Any]) -> list[str]:
    """The codes that an error's docstring lists."""
    return [code for code in re.findall(r"``(\w+)``", str(kind.__doc__)) if code != "code"]


def test_each_refusal_of_a_handoff_and_of_a_copy_is_told() -> None:
    rows = documents.table(of_section("When it is refused"), "code", "what it means", "what to do")
    told = [row[0].strip("`") for row in rows]
    assert told == codes_of(errors.HandoffRefused) + codes_of(errors.CopyRefused)


def test_each_refusal_of_a_plan_is_told() -> None:
    rows = documents.table(HANDOFFS, "`PlanRefused.code`", "what it means", "what to do")
    assert [row[0].strip("`") for row in rows] == codes_of(errors.PlanRefused)


def test_ways_of_going_stale_that_are_a_handoff_s_own_are_there() -> None:
    rows = documents.table(HANDOFFS, "code", "what it means", "what is left", "what to do")
    told = [row[0].strip("`") for row in rows]
    assert set(told) <= codes.STALE.keys()
    assert {code for code in codes.STALE if code.startswith("composition_")} <= set(told)


def test_each_code_of_a_refusal_to_give_up_is_told() -> None:
    known = [code for code in codes_of(errors.SettleRefused) if code.startswith("handoff_")]
    assert known
    assert [code for code in known if f"`{code}`" not in of_section("The ways out")] == []


def test_what_is_compared_is_what_the_code_compares() -> None:
    rows = documents.table(HANDOFFS, "compared", "of the loop it is")
    assert [row[0] for row in rows] == list(SEMANTICS.values())


def test_the_parts_of_a_request_are_those_of_the_class() -> None:
    told = [re.findall(r"`(\w+)", row[0])[0] for row in documents.table(HANDOFFS, "of a request", "is")]
    assert {name for name in told if not callable(getattr(HandoffRequest, name, None))} == {"ready", "sealed"}
    assert set(told) == {"ready", "preview", "commit", "cancel", "sealed"}


def test_each_state_of_a_handoff_is_named() -> None:
    assert {state for state in render._OF_HANDOFF if f"`{state}`" not in of_section("From the command line")} == set()


def test_nobody_is_told_to_throw_anything_away() -> None:
    assert not re.findall(r"\b(?:rm|unlink|delete|remove|erase|truncate|discard)\w*\b", HANDOFFS.lower())
