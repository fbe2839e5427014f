"""What a run asks a person → lines for a screen; what is typed there → the answer. No I/O."""

import json
from typing import Any, Final

from .text import Painter, line

Json = dict[str, Any]
Lines = list[str]

#: What is typed for a decision → the decision.
_DECISIONS: Final = {"y": "allow", "yes": "allow", "allow": "allow", "n": "deny", "no": "deny", "deny": "deny"}
#: Kind of an interaction → kind of its answer.
_DECIDED: Final = {"permission": "permission_answer", "sandbox_boundary": "sandbox_boundary_decision"}
#: Columns of what a call or a boundary is about.
_ABOUT: Final = 300


class Misfit(Exception):
    """What was typed is no answer; the message says what is taken."""


class Form:
    """One interaction that waits, a row of a snapshot: asked question by question, until all have their answer."""

    def __init__(self, row: Json) -> None:
        self.interaction_id: str = row["interaction_id"]
        self.turn_id: str = row["turn_id"]
        self.kind: str = row["kind"]
        self._request: Json = row["request"]
        self._answers: list[str | None] = []

    def offers(self, typed: str) -> bool:
        """Is that one of the answers that are offered now? Another is perhaps not meant as one."""
        if self.kind != "question":
            return typed.strip().lower() in _DECISIONS
        labels = self._labels()
        return typed.strip() in [*map(str, range(1, len(labels) + 1)), *labels]

    def lines(self, paint: Painter) -> Lines:
        """What is asked now."""
        if self.kind != "question":
            return ["", paint(f"? {self.summary()}", "yellow"), "  [y]es or [n]o"]
        questions, number = self._questions(), len(self._answers)
        which = f"({number + 1} of {len(questions)}) " if len(questions) > 1 else ""
        question = questions[number]
        out = ["", paint(f"? {which}{line(question.get('question'))}", "yellow")]
        for place, option in enumerate(question.get("options") or (), 1):
            more = f"  {paint(line(option['description']), 'dim')}" if option.get("description") else ""
            out.append(f"  {place}  {line(option.get('label'))}{more}")
        return [*out, paint("  a number, or your own words", "dim")]

    def summary(self) -> str:
        """What is asked, in one line."""
        if self.kind == "question":
            return line(" / ".join(str(each.get("question")) for each in self._questions()), _ABOUT)
        if self.kind == "permission":
            name, arguments = line(self._request.get("name"), 60), _written(self._request.get("arguments"))
            return f"may `{name}` run with {arguments}? ({line(self._request.get('reason'), _ABOUT)})"
        expansion, why = _written(self._request.get("expansion")), line(self._request.get("justification"), _ABOUT)
        return f"may it leave its sandbox for {expansion}? ({why})"

    def take(self, typed: str) -> Json | None:
        """The answer, once it is whole. Raises Misfit."""
        typed = typed.strip()
        if self.kind != "question":
            decision = _DECISIONS.get(typed.lower())
            if decision is None:
                raise Misfit("type y to allow it, or n to refuse it")
            return {"kind": _DECIDED[self.kind], "decision": decision}
        if not typed:
            raise Misfit("type the number of an option, or an answer in your own words")
        labels = self._labels()
        numbered = bool(labels) and typed.isascii() and typed.removeprefix("-").isdigit()
        if numbered and not 0 < int(typed) <= len(labels):
            raise Misfit(f"there is no option {typed}; type a number from 1 to {len(labels)}, or an answer in words")
        self._answers.append(labels[int(typed) - 1] if numbered else typed)
        if len(self._answers) < len(self._questions()):
            return None
        return {"kind": "question_answer", "answers": self._answers}

    def _labels(self) -> list[Any]:
        return [option.get("label") for option in self._questions()[len(self._answers)].get("options") or ()]

    def _questions(self) -> list[Json]:
        return list(self._request.get("questions") or ())


def _written(arguments: object) -> str:
    """As calls show theirs."""
    shown = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return line(shown, _ABOUT)
