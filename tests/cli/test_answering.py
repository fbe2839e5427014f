"""What a run asks is shown whole; what is typed becomes an answer that fits, or is sent back with what is taken."""

from typing import Any

import pytest

from maka.cli.answering import Form, Misfit
from maka.cli.text import plain
from maka.runtime.interaction_shapes import misfit, outcome_of
from support.spoken import QUESTIONS


def form(kind: str, request: dict[str, Any]) -> Form:
    return Form({"interaction_id": "i", "turn_id": "t", "kind": kind, "request": request})


def test_questions_are_asked_one_after_the_other() -> None:
    asked = form("question", {"questions": QUESTIONS})
    assert asked.lines(plain)[1:4] == ["? (1 of 2) Which colour?", "  1  Red  as roses are", "  2  Blue"]
    assert asked.take("2") is None
    assert asked.lines(plain)[1] == "? (2 of 2) How many?"
    answer = asked.take(" as many as there are ")
    assert answer == {"kind": "question_answer", "answers": ["Blue", "as many as there are"]}
    assert misfit("question", {"questions": QUESTIONS}, outcome_of(answer)) is None
    assert asked.summary() == "Which colour? / How many?"


@pytest.mark.parametrize("typed", ["0", "3", "-1", "٣", "1.0"])
def test_a_number_of_no_option_is_an_answer_in_words(typed: str) -> None:
    assert form("question", {"questions": QUESTIONS[:1]}).take(typed) == {"kind": "question_answer", "answers": [typed]}


def test_nothing_typed_answers_no_question() -> None:
    with pytest.raises(Misfit, match="number"):
        form("question", {"questions": QUESTIONS}).take("  ")


@pytest.mark.parametrize(("typed", "decision"), [("y", "allow"), (" Yes ", "allow"), ("n", "deny"), ("deny", "deny")])
def test_a_permission_is_decided(typed: str, decision: str) -> None:
    asked = form("permission", {"call_id": "c", "name": "rm", "arguments": {"path": "/\x1b"}, "reason": "it removes"})
    assert "rm" in asked.lines(plain)[1]
    assert "it removes" in asked.lines(plain)[1]
    assert "\x1b" not in "".join(asked.lines(plain))
    answer = asked.take(typed)
    assert answer == {"kind": "permission_answer", "decision": decision}
    assert misfit("permission", {}, outcome_of(answer)) is None


def test_a_boundary_is_decided_and_nothing_else_is_taken() -> None:
    asked = form("sandbox_boundary", {"expansion": {"network": True}, "justification": "to fetch"})
    for typed in ("", "maybe", "1", "y y"):
        with pytest.raises(Misfit, match="y to allow"):
            asked.take(typed)
    assert asked.take("Y") == {"kind": "sandbox_boundary_decision", "decision": "allow"}
