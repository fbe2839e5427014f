"""The rules of the providers' arrays, each in a sentence, and what is said where one is broken. No I/O."""

from collections.abc import Iterator
from typing import Any, Final

import attrs

ANTHROPIC: Final = {
    "A0": "Each message is an object with the role user or assistant, and text or a list of blocks as content.",
    "A1": "Each tool_use has its tool_result in the message directly behind it, which is the user's.",
    "A2": "Each tool_result answers a tool_use of the message directly before it.",
    "A3": "All results of a batch stand in one user message, before its other blocks.",
    "A4": "Ids of calls are unique in the whole request, and each has one result.",
    "A5": "Ids of calls consist of letters, digits, _ and -, at most 64 of them.",
    "A6": "The input of a call is an object.",
    "A7": "No text is empty or only blanks, no content is empty, and a failed result says something.",
    "A8": "The user begins, and no two messages in a row have one role.",
    "A9": "The last message is not the assistant's; where a prefill is taken, it does not end in blanks.",
    "A10": "Thinking is signed, given back as it was, and never the last block of a message; with thinking on, "
    "a message that goes on with tools begins with it.",
    "A11": "A call of a tool that the provider runs and its result stand in one assistant message, in this order.",
    "A12": "An image is what its media type says, and not bigger than the provider takes.",
    "A13": "No text stands behind a call in an assistant message.",
    "A14": "Where calls or results are in the messages, the request declares tools.",
}
OPENAI_CHAT: Final = {
    "O0": "Each message is an object with a role, and text, parts or nothing as content.",
    "O1": "Behind a message with calls stand the results of all of them, before anything else.",
    "O2": "Each tool message answers a call of the batch before it that has no other answer.",
    "O3": "A message has calls or none, but no empty list of them; an assistant without calls says something.",
    "O4": "Arguments are valid JSON as text; ids have at most 40 characters, names 64 of letters, digits, _ and -.",
    "O5": "A tool message holds text only.",
    "O6": "Ids of calls are unique in their message; where other providers are to take the array, in all of it.",
    "O7": "Reasoning is sent back where the model demands it, and not where it refuses it.",
}
OPENAI_RESPONSES: Final = {
    "R0": "Each item is an object of a known shape.",
    "R1": "Each call has exactly one output behind it, with its call_id and of its kind.",
    "R2": "Each output has its call in the input.",
    "R3": "The id of an item has the prefix of its type, is unique, and is not its call_id.",
    "R4": "A reasoning item stands directly before what came of it.",
    "R5": "Where nothing is stored, a reasoning item has its encrypted content.",
    "R6": "A reasoning item has summaries, and no content.",
    "R7": "The parts of a message are of the types of its role.",
    "R8": "The action of a web search is search, open_page or find_in_page.",
    "R9": "Nothing is sent that the server has of the previous response.",
}
#: Rule → one sentence.
RULES: Final = {**ANTHROPIC, **OPENAI_CHAT, **OPENAI_RESPONSES}


@attrs.frozen
class Violation:
    """``rule``: a key of ``RULES``. ``where``: as providers say it, ``messages.3.content.1``, ``input.7``."""

    rule: str
    where: str
    message: str


def shown(value: object) -> str:
    """An id or a name as a message shows it: short, whatever it is."""
    text = value if isinstance(value, str) else type(value).__name__
    return repr(text if len(text) <= 80 else text[:79] + "…")


def numbered(values: list[Any], place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a list, each with where it stands."""
    for number, value in enumerate(values):
        if isinstance(value, dict):
            yield f"{place}.{number}", value
