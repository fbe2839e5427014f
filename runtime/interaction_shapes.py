"""What a request to a person and an answer may look like: limits, shapes, and which answer fits which request. No I/O.

Sizes are bytes of UTF-8; what is refused is an InteractionRefused that names the place.
"""

from collections.abc import Callable
from typing import Any, Final, NoReturn

import orjson

from ..journal.codec import clean
from ..journal.errors import InvalidEvent
from ..journal.events import Draft, JsonObject
from .errors import InteractionRefused

#: A whole request, and a whole outcome.
MOST_REQUEST: Final = 16 * 1024
MOST_OUTCOME: Final = 8 * 1024
MOST_ID: Final = 256
MOST_QUESTION: Final = 1024
MOST_LABEL: Final = 256
MOST_DESCRIPTION: Final = 512
MOST_ANSWER: Final = 2048
#: Characters of the reason of a permission, and of the justification of a boundary.
MOST_REASON: Final = 2000
QUESTIONS: Final = (1, 3)
OPTIONS: Final = (2, 3)

#: Kind of a request → kind of the answers that it takes.
ANSWER_OF: Final = {
    "question": "question_answer",
    "permission": "permission_answer",
    "sandbox_boundary": "sandbox_boundary_decision",
}


def requested(interaction_id: str, turn_id: str, run_id: str, kind: str, request: Any) -> JsonObject:
    """The data of ``interaction/requested``, a copy that nobody else has. Raises InteractionRefused."""
    _text(interaction_id, MOST_ID, "interaction_id", empty=False)
    if not isinstance(request, dict):
        _refuse("the request is no object")
    _REQUESTS[kind](request)
    data = {
        "interaction_id": interaction_id,
        "turn_id": turn_id,
        "run_id": run_id,
        "kind": kind,
        "request": request,
    }
    return _copy("interaction/requested", data, "request", MOST_REQUEST)


def outcome_of(answer: Any) -> JsonObject:
    """An answer as ``interaction/resolved`` holds it, the same bytes for the same answer. Raises InteractionRefused."""
    kind = answer.get("kind") if isinstance(answer, dict) else None
    if not isinstance(kind, str) or kind not in _ANSWERS:
        _refuse(f"an answer has one of the kinds {', '.join(_ANSWERS)}")
    key, check = _ANSWERS[kind]
    if set(answer) != {"kind", key}:
        _refuse(f"a {kind} has the keys kind and {key} and no others")
    check(answer[key])
    outcome: JsonObject = _copy("interaction/resolved", {"outcome": answer}, "outcome", MOST_OUTCOME)["outcome"]
    return outcome


def misfit(kind: str, request: JsonObject, outcome: JsonObject) -> str | None:
    """Why an answer is none to this request, which may come from any writer; None where it is one."""
    if (problem := wrong_kind(kind, outcome)) is not None:
        return problem
    questions = request.get("questions")
    if kind == "question" and isinstance(questions, list) and len(outcome["answers"]) != len(questions):
        return f"there are {len(questions)} questions and {len(outcome['answers'])} answers"
    return None


def wrong_kind(kind: str, outcome: JsonObject) -> str | None:
    """Why an answer of this kind is none to a request of that kind, if it is not."""
    takes = ANSWER_OF.get(kind)
    return None if takes == outcome["kind"] else f"a {kind} takes {takes or 'no answer'}, not {outcome['kind']}"


def is_same(outcome: JsonObject, recorded: JsonObject) -> bool:
    """Does the record say what this answer says? It may say more."""
    return all(key in recorded and recorded[key] == value for key, value in outcome.items())


def _refuse(what: str) -> NoReturn:
    raise InteractionRefused(f"{what}; correct that, then try again", code="invalid_request")


def _copy(type_: str, data: JsonObject, key: str, most: int) -> JsonObject:
    try:
        text = orjson.dumps(clean(Draft(type_, data)).data)
    except (InvalidEvent, TypeError) as error:
        raise InteractionRefused(
            f"JSON cannot carry the {key} ({error}); correct that, then try again", code="invalid_request"
        ) from None
    copied: JsonObject = orjson.loads(text)
    size = len(orjson.dumps(copied[key]))
    if size > most:
        _refuse(f"the {key} has {size} bytes and at most {most} are taken")
    return copied


def _text(value: Any, most: int, where: str, *, empty: bool = True) -> None:
    if not isinstance(value, str):
        _refuse(f"{where} is missing or no text")
    if not (value or empty):
        _refuse(f"{where} is empty")
    size = len(value.encode(errors="replace"))
    if size > most:
        _refuse(f"{where} has {size} bytes and at most {most} are taken")


def _list(value: Any, limits: tuple[int, int], where: str) -> list[Any]:
    if not isinstance(value, list):
        _refuse(f"{where} is missing or no list")
    least, most = limits
    if not least <= len(value) <= most:
        _refuse(f"{where} has {len(value)} entries; {least} to {most} are taken")
    return value


def _object(value: Any, where: str) -> JsonObject:
    if not isinstance(value, dict):
        _refuse(f"{where} is no object")
    return value


def _question(request: JsonObject) -> None:
    for i, entry in enumerate(_list(request.get("questions"), QUESTIONS, "questions")):
        question = _object(entry, f"questions[{i}]")
        _text(question.get("id"), MOST_ID, f"questions[{i}].id")
        _text(question.get("question"), MOST_QUESTION, f"questions[{i}].question")
        labels = set()
        for j, given in enumerate(_list(question.get("options"), OPTIONS, f"questions[{i}].options")):
            here = f"questions[{i}].options[{j}]"
            option = _object(given, here)
            _text(option.get("label"), MOST_LABEL, f"{here}.label")
            if "description" in option:
                _text(option["description"], MOST_DESCRIPTION, f"{here}.description")
            if option["label"] in labels:
                _refuse(f"{here}.label stands there twice")
            labels.add(option["label"])


def _permission(request: JsonObject) -> None:
    for key in ("call_id", "name"):
        _text(request.get(key), MOST_REQUEST, key, empty=False)
    if "arguments" not in request:
        _refuse("arguments is missing")
    _reason(request, "reason")


def _boundary(request: JsonObject) -> None:
    if request.get("expansion") is None:
        _refuse("expansion is missing")
    _reason(request, "justification")


def _reason(request: JsonObject, key: str) -> None:
    reason = request.get(key)
    if not isinstance(reason, str):
        _refuse(f"{key} is missing or no text")
    if len(reason) > MOST_REASON:
        _refuse(f"{key} has {len(reason)} characters and at most {MOST_REASON} are taken")


def _answered(answers: Any) -> None:
    for i, answer in enumerate(_list(answers, QUESTIONS, "answers")):
        if answer is not None:
            _text(answer, MOST_ANSWER, f"answers[{i}]")


def _decided(decision: Any) -> None:
    if decision not in ("allow", "deny"):
        _refuse("decision is neither allow nor deny")


_REQUESTS: Final[dict[str, Callable[[JsonObject], None]]] = {
    "question": _question,
    "permission": _permission,
    "sandbox_boundary": _boundary,
}
_ANSWERS: Final[dict[str, tuple[str, Callable[[Any], None]]]] = {
    "question_answer": ("answers", _answered),
    "permission_answer": ("decision", _decided),
    "sandbox_boundary_decision": ("decision", _decided),
}
