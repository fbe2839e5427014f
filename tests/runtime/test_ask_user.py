"""The tool that asks the user: what is asked, what the model is given."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from maka.runtime.errors import InteractionRefused, RuntimeInteractionInvariantError
from maka.runtime.interaction_shapes import requested
from maka.runtime.scripted import Ask
from maka.runtime.tools import Tool, ToolContext, ToolFailed
from maka.runtime.tools.arguments import BadArguments, validate
from maka.runtime.tools.ask_user import AskUser
from support.loops import Bench

COLOUR = {"question": "Which colour?", "options": [{"label": "red"}, {"label": "blue", "description": "as the sky"}]}
SIZE = {"question": "Which size?", "options": [{"label": "small"}, {"label": "big"}]}


def context(ask: Any) -> ToolContext:
    async def store(stream: Any) -> str:
        raise NotImplementedError

    return ToolContext(operation_id="op", call_id="c", turn_id="t", run_id="r", cwd=Path("/"), store=store, ask=ask)


def answered(outcome: Any, *questions: Any) -> tuple[str, list[Any]]:
    """What the model is given, and what was asked."""
    asked: list[Any] = []

    async def ask(kind: str, request: dict[str, Any]) -> Any:
        asked.append((kind, request))
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    arguments = {"questions": list(questions)}
    validate(arguments, AskUser.parameters)
    output = asyncio.run(AskUser().execute(arguments, context(ask)))
    [block] = output.content
    return block["text"], asked


def test_the_answers_come_with_their_questions() -> None:
    text, [(kind, request)] = answered({"kind": "question_answer", "answers": ["blue", None]}, COLOUR, SIZE)
    assert text == "Which colour?\nblue\n\nWhich size?\n(no answer)"
    assert kind == "question"
    assert request == {"questions": [{"id": "q1", **COLOUR}, {"id": "q2", **SIZE}]}
    assert requested("i", "t", "r", kind, request)["request"] == request


@pytest.mark.parametrize(
    ("outcome", "code", "words"),
    [
        ({"kind": "closure", "reason": "timed_out"}, "QUESTION_CLOSED", "timed_out"),
        (InteractionRefused("too many wait", code="capacity_exceeded"), "QUESTION_REFUSED", "too many wait"),
    ],
)
def test_without_an_answer_the_call_has_failed(outcome: Any, code: str, words: str) -> None:
    with pytest.raises(ToolFailed) as raised:
        answered(outcome, COLOUR)
    assert raised.value.code == code
    assert words in str(raised.value)


@pytest.mark.parametrize(
    "questions",
    [
        [],
        [COLOUR] * 4,
        [{"question": "Why?", "options": []}],
        [{"question": "Why?", "options": [{"label": "so"}]}],
        [{"question": "", "options": COLOUR["options"]}],
        [{"options": COLOUR["options"]}],
    ],
)
def test_what_the_format_has_no_room_for_is_not_asked(questions: list[Any]) -> None:
    with pytest.raises(BadArguments):
        validate({"questions": questions}, AskUser.parameters)


def test_it_is_a_tool_that_changes_nothing_and_takes_its_time() -> None:
    tool = AskUser()
    assert isinstance(tool, Tool)
    assert (tool.recovery, tool.parallel_safe, tool.timeout) == ("read_only", False, None)


def test_where_no_kernel_runs_the_turn_nobody_can_be_asked() -> None:
    bench = Bench([[Ask("ask_user", {"questions": [COLOUR]})], ["done"]], [AskUser()])
    asyncio.run(bench.loop.run_turn("go"))
    [result] = bench.journal.of("tool/result")
    assert (result["state"], result["error"]["name"]) == ("error", RuntimeInteractionInvariantError.__name__)
    assert "nobody can be asked" in result["content"][0]["text"]
