"""Limits and shapes of requests and answers, one place at a time."""

import copy
from typing import Any

import pytest

from maka.runtime.errors import InteractionRefused
from maka.runtime.interaction_shapes import is_same, misfit, outcome_of, requested


def question(**more: Any) -> dict[str, Any]:
    options = [{"label": "yes"}, {"label": "no", "description": "not now"}]
    return {"id": "q", "question": "Go on?", "options": options, **more}


GOOD: dict[str, dict[str, Any]] = {
    "question": {"questions": [question()]},
    "permission": {"call_id": "c", "name": "write", "arguments": {"path": "a"}, "reason": "it writes"},
    "sandbox_boundary": {"expansion": {"network": True}, "justification": "to fetch it"},
}


def ask(kind: str, request: Any, interaction_id: str = "i") -> dict[str, Any]:
    return requested(interaction_id, "t", "r", kind, request)


@pytest.mark.parametrize("kind", GOOD)
def test_a_good_request_is_taken_as_it_is_and_copied(kind: str) -> None:
    request = copy.deepcopy(GOOD[kind])
    request["more"] = ["kept"]
    data = ask(kind, request)
    assert data == {"interaction_id": "i", "turn_id": "t", "run_id": "r", "kind": kind, "request": request}
    assert list(data["request"]) == list(request)
    request["more"].append("changed later")
    assert data["request"]["more"] == ["kept"]


def test_the_limits_are_taken() -> None:
    options = [{"label": "é" * 128, "description": "d" * 512}, {"label": "b" * 256}, {"label": ""}]
    widest = {"id": "i" * 256, "question": "q" * 1024, "options": options}
    assert ask("question", {"questions": [widest] * 3}, "i" * 256)
    assert ask("permission", {**GOOD["permission"], "reason": "é" * 2000, "arguments": "{}", "call_id": "c" * 5000})
    assert ask("sandbox_boundary", {"expansion": [], "justification": "é" * 2000})
    # {"expansion":{},"justification":"…","pad":"…"} has 16 KiB exactly.
    base = {"expansion": {}, "justification": "", "pad": ""}
    pad = 16 * 1024 - len('{"expansion":{},"justification":"","pad":""}')
    assert ask("sandbox_boundary", {**base, "pad": "x" * pad})
    with pytest.raises(InteractionRefused, match="16385 bytes"):
        ask("sandbox_boundary", {**base, "pad": "x" * (pad + 1)})


def with_question(**more: Any) -> dict[str, Any]:
    return {"questions": [question(), question(**more)]}


def with_options(*options: Any) -> dict[str, Any]:
    return with_question(options=list(options))


BAD: list[tuple[str, Any, str]] = [
    ("question", None, "no object"),
    ("question", [], "no object"),
    ("question", {}, "questions is missing"),
    ("question", {"questions": []}, "0 entries; 1 to 3"),
    ("question", {"questions": [question()] * 4}, "4 entries; 1 to 3"),
    ("question", {"questions": ["Go on?"]}, r"questions\[0\] is no object"),
    ("question", with_question(id=7), r"questions\[1\]\.id is missing or no text"),
    ("question", with_question(id="i" * 257), r"questions\[1\]\.id has 257 bytes and at most 256"),
    ("question", with_question(question=None), r"questions\[1\]\.question is missing"),
    ("question", with_question(question="é" * 513), r"questions\[1\]\.question has 1026 bytes and at most 1024"),
    ("question", with_question(options={}), r"questions\[1\]\.options is missing or no list"),
    ("question", with_options({"label": "a"}), "1 entries; 2 to 3"),
    ("question", with_options(*({"label": str(n)} for n in range(4))), "4 entries; 2 to 3"),
    ("question", with_options({"label": "a"}, "b"), r"options\[1\] is no object"),
    ("question", with_options({"label": "a"}, {}), r"options\[1\]\.label is missing"),
    ("question", with_options({"label": "a"}, {"label": "b" * 257}), r"options\[1\]\.label has 257 bytes"),
    ("question", with_options({"label": "a"}, {"label": "a"}), r"options\[1\]\.label stands there twice"),
    ("question", with_options({"label": "a"}, {"label": "b", "description": "d" * 513}), "description has 513 bytes"),
    ("question", with_options({"label": "a"}, {"label": "b", "description": None}), "description is missing or no"),
    ("permission", {**GOOD["permission"], "call_id": ""}, "call_id is empty"),
    ("permission", {**GOOD["permission"], "name": 1}, "name is missing or no text"),
    ("permission", {"call_id": "c", "name": "n", "reason": "r"}, "arguments is missing"),
    ("permission", {**GOOD["permission"], "reason": "r" * 2001}, "reason has 2001 characters and at most 2000"),
    ("permission", {**GOOD["permission"], "arguments": {"text": "x" * 16384}}, "bytes and at most 16384"),
    ("permission", {**GOOD["permission"], "arguments": {"n": 2**64}}, "request.arguments.n is an integer beyond"),
    ("permission", {**GOOD["permission"], "arguments": float("nan")}, "JSON cannot carry the request"),
    ("permission", {**GOOD["permission"], "arguments": {1: 2}}, "key that is not text"),
    ("permission", {**GOOD["permission"], "arguments": (1, 2)}, "tuple"),
    ("sandbox_boundary", {"justification": "j"}, "expansion is missing"),
    ("sandbox_boundary", {"expansion": {}, "justification": None}, "justification is missing or no text"),
    ("sandbox_boundary", {"expansion": {}, "justification": "j" * 2001}, "justification has 2001 characters"),
]


@pytest.mark.parametrize(("kind", "request_", "says"), BAD)
def test_a_bad_request_is_refused_by_a_sentence_that_names_the_place(kind: str, request_: Any, says: str) -> None:
    with pytest.raises(InteractionRefused, match=says) as refused:
        ask(kind, request_)
    assert refused.value.code == "invalid_request"
    assert str(refused.value).endswith("then try again")


@pytest.mark.parametrize(("name", "says"), [("", "is empty"), ("i" * 257, "257 bytes"), (None, "no text")])
def test_an_id_has_limits_too(name: Any, says: str) -> None:
    with pytest.raises(InteractionRefused, match=f"interaction_id .*{says}"):
        ask("question", GOOD["question"], name)


def test_text_that_is_not_unicode_is_replaced() -> None:
    request = {**GOOD["permission"], "arguments": {"path": "a\ud800b"}}
    assert ask("permission", request)["request"]["arguments"] == {"path": "a\ufffdb"}
    said = outcome_of({"kind": "question_answer", "answers": ["\ud800"]})
    assert said["answers"] == ["\ufffd"]
    assert said == outcome_of({"kind": "question_answer", "answers": ["\ud800"]})


ANSWERS: list[dict[str, Any]] = [
    {"kind": "question_answer", "answers": ["yes", None, "x" * 2048]},
    {"kind": "permission_answer", "decision": "allow"},
    {"kind": "sandbox_boundary_decision", "decision": "deny"},
]


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_good_answer_is_its_own_outcome(answer: dict[str, Any]) -> None:
    outcome = outcome_of(dict(reversed(answer.items())))
    assert outcome == answer
    assert outcome is not answer


BAD_ANSWERS: list[tuple[Any, str]] = [
    (None, "one of the kinds"),
    ({}, "one of the kinds"),
    ({"kind": "closure", "reason": "turn_stopped"}, "one of the kinds"),
    ({"kind": ["question_answer"], "answers": []}, "one of the kinds"),
    ({"kind": "question_answer"}, "keys kind and answers"),
    ({"kind": "question_answer", "answers": ["a"], "reason": "because"}, "no others"),
    ({"kind": "question_answer", "answers": "a"}, "answers is missing or no list"),
    ({"kind": "question_answer", "answers": []}, "0 entries"),
    ({"kind": "question_answer", "answers": [None] * 4}, "4 entries"),
    ({"kind": "question_answer", "answers": ["a", 1]}, r"answers\[1\] is missing or no text"),
    ({"kind": "question_answer", "answers": ["é" * 1025]}, r"answers\[0\] has 2050 bytes and at most 2048"),
    # As JSON text control characters are six times as long.
    ({"kind": "question_answer", "answers": ["\x01" * 1400]}, "outcome has .* bytes and at most 8192"),
    ({"kind": "permission_answer", "decision": "maybe"}, "neither allow nor deny"),
    ({"kind": "permission_answer", "decision": True}, "neither allow nor deny"),
    ({"kind": "sandbox_boundary_decision", "decision": None}, "neither allow nor deny"),
    ({"kind": "sandbox_boundary_decision", "decision": ["allow"]}, "neither allow nor deny"),
]


@pytest.mark.parametrize(("answer", "says"), BAD_ANSWERS)
def test_a_bad_answer_is_refused(answer: Any, says: str) -> None:
    with pytest.raises(InteractionRefused, match=says) as refused:
        outcome_of(answer)
    assert refused.value.code == "invalid_request"


def test_each_kind_takes_its_own_answers() -> None:
    fits = {
        (kind, outcome["kind"]): misfit(kind, {"questions": [1, 2, 3]}, outcome) is None
        for kind in GOOD
        for outcome in ANSWERS
    }
    assert [pair for pair, fit in fits.items() if fit] == [
        ("question", "question_answer"),
        ("permission", "permission_answer"),
        ("sandbox_boundary", "sandbox_boundary_decision"),
    ]


def test_a_question_takes_an_answer_to_each() -> None:
    assert misfit("question", {"questions": [1, 2]}, ANSWERS[0]) == "there are 2 questions and 3 answers"
    # What another writer asked may have any shape.
    assert misfit("question", {}, ANSWERS[0]) is None
    assert misfit("future", {}, ANSWERS[0]) == "a future takes no answer, not question_answer"


def test_a_record_may_say_more_than_an_answer() -> None:
    denied = ANSWERS[2]
    assert is_same(denied, {**denied, "reason": "given by a rule"})
    assert not is_same(denied, {**denied, "decision": "allow"})
    assert not is_same(denied, {"kind": "closure", "reason": "turn_stopped"})
    assert not is_same(ANSWERS[0], {"kind": "question_answer", "answers": ["yes", None]})
