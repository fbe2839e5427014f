"""Asks the user questions and gives the model the answers. It changes nothing and waits as long as it takes."""

from typing import Any, ClassVar

from ...journal.events import JsonObject, Recovery
from ..errors import InteractionRefused
from .base import ToolContext, ToolFailed, ToolOutput


class AskUser:
    """One to three questions, each with two or three options; the user may answer in words of their own, or not."""

    name = "ask_user"
    description = (
        "Asks the user one to three questions, each with two or three options to choose from, and waits for the "
        "answers. Use it where the work cannot go on without a decision that is theirs."
    )
    parameters: ClassVar[JsonObject] = {
        "type": "object",
        "properties": {
            "questions": {
                "type": "array",
                "minItems": 1,
                "maxItems": 3,
                "items": {
                    "type": "object",
                    "properties": {
                        "question": {"type": "string", "minLength": 1, "description": "The whole question."},
                        "options": {
                            "type": "array",
                            "minItems": 2,
                            "maxItems": 3,
                            "items": {
                                "type": "object",
                                "properties": {
                                    "label": {"type": "string", "minLength": 1, "description": "A few words."},
                                    "description": {"type": "string", "description": "What choosing it means."},
                                },
                                "required": ["label"],
                                "additionalProperties": False,
                            },
                        },
                    },
                    "required": ["question", "options"],
                    "additionalProperties": False,
                },
            },
        },
        "required": ["questions"],
        "additionalProperties": False,
    }
    recovery: Recovery = "read_only"
    parallel_safe = False
    timeout = None

    async def execute(self, arguments: dict[str, Any], context: ToolContext) -> ToolOutput:
        questions = [{"id": f"q{number}", **question} for number, question in enumerate(arguments["questions"], 1)]
        try:
            outcome = await context.ask("question", {"questions": questions})
        except InteractionRefused as error:
            raise ToolFailed(f"the user could not be asked: {error}", code="QUESTION_REFUSED") from None
        if outcome.get("kind") != "question_answer":
            why = f"the question was closed before the user answered ({outcome.get('reason')})"
            raise ToolFailed(why, code="QUESTION_CLOSED")
        said = [
            f"{question['question']}\n{'(no answer)' if answer is None else answer}"
            for question, answer in zip(questions, outcome["answers"], strict=True)
        ]
        return ToolOutput.of("\n\n".join(said))
