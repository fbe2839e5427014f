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


@pytest.mark.parametrize("typed", ["0", "3", "-1", "00"])
def test_a_number_of_no_option_is_asked_again(typed: str) -> None:
    asked = form("question", {"questions": QUESTIONS[:1]})
    with pytest.raises(Misfit, match="from 1 to 2"):
        asked.take(typed)
    assert asked.take("2") == {"kind": "question_answer", "answers": ["Blue"]}


@pytest.mark.parametrize("typed", ["٣", "1.0", "7 or 8"])
def test_what_is_no_number_is_an_answer_in_words(typed: str) -> None:
    assert form("question", {"questions": QUESTIONS[:1]}).take(typed) == {"kind": "question_answer", "answers": [typed]}


def test_where_nothing_is_offered_a_number_is_an_answer() -> None:
    asked = form("question", {"questions": [{"id": "q", "question": "How many?"}]})
    assert not asked.offers("7")
    assert asked.take("7") == {"kind": "question_answer", "answers": ["7"]}


def test_what_is_offered_is_known() -> None:
    asked = form("question", {"questions": QUESTIONS})
    offered = [typed for typed in ("1", " 2 ", "Red", "3", "0", "red wine", "") if asked.offers(typed)]
    assert offered == ["1", " 2 ", "Red"]
    asked.take("1")
    assert asked.offers("Two")
    asked = form("permission", {"call_id": "c", "name": "rm", "arguments": {}, "reason": "it removes"})
    assert [typed for typed in ("y", "No", "Hello", "1", "") if asked.offers(typed)] == ["y", "No"]


def test_what_a_call_or_a_boundary_is_about_is_written_as_a_call_is() -> None:
    asked = form("permission", {"call_id": "c", "name": "rm", "arguments": {"path": "ä", "all": True}, "reason": "r"})
    assert '`rm` run with {"path": "ä", "all": true}?' in asked.summary()
    asked = form("sandbox_boundary", {"expansion": {"network": True}, "justification": "to fetch"})
    assert 'sandbox for {"network": true}?' in asked.summary()


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
