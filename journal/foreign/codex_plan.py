"""The first pass over a Codex rollout: which lines are prompts, what was withdrawn, which results come late. No I/O.

Of a line only its number is kept, of an id eight bytes of its digest.
"""

import attrs

from ..events import JsonObject
from ..source import Source
from .codex_items import CALLS, OUTPUTS, call_id_of, key_of, kind_of, opened, put_in, role_of, user_item
from .findings import Report
from .lines import Line, objects
from .records import MAIN, Place
from .values import count, millis, text


@attrs.define(eq=False)
class Plan:
    """``prompts`` begin turns, ``steering`` came amid them: numbers of lines. ``inherited``: the last line of what a
    fork or a subagent was given of its parent.
    """

    prompts: set[int] = attrs.Factory(set)
    steering: set[int] = attrs.Factory(set)
    inherited: int = 0
    #: Are there events of turns, answers that are items, reasoning that is?
    tasks: bool = False
    spoken: bool = False
    thought: bool = False
    model: str | None = None
    cwd: str | None = None
    #: By line of its prompt: the thread of a turn that was withdrawn.
    withdrawn: dict[int, str] = attrs.Factory(dict)
    #: By such a thread: the prompt of the turn that it went on from.
    branches: dict[str, int | None] = attrs.Factory(dict)
    #: By line of a rollback: the line of the prompt of the turn that it goes back to.
    back: dict[int, int | None] = attrs.Factory(dict)
    #: By line of a call and its id: where its result stands, behind a later response of its turn.
    late: dict[tuple[int, int], Place] = attrs.Factory(dict)

    def forget(self) -> None:
        """Nothing of what was taken for a person's words was one."""
        for each in (self.prompts, self.steering, self.withdrawn, self.branches, self.back):
            each.clear()

    def thread(self, prompt: int | None) -> str:
        """The thread of the turn that the prompt of this line begins."""
        return MAIN if prompt is None else self.withdrawn.get(prompt, MAIN)


def look(source: Source) -> Plan:
    looking = _Looking()
    for line in objects(source, Report()):
        looking.line(line)
    return looking.plan


class _Looking:
    def __init__(self) -> None:
        self.plan = Plan()
        self._begun = False
        #: Time of the first line, while what follows may be a copy.
        self._meta: int | None = None
        #: Events since the model last answered that tell what a person said, by their kind; None: there never was one.
        self._told: dict[str, int] | None = None
        #: Is a turn on, as its own events say; does the next message begin one; and has a message just done so?
        self._active = False
        self._boundary = True
        self._fresh = False
        #: Prompts of the turns that stand, each with that of the turn before it.
        self._stack: list[tuple[int, int | None]] = []
        #: Calls of the turn without a result: of which response, and on which line.
        self._open: dict[int, tuple[int, int]] = {}
        self._response = 0
        self._answering = False

    def line(self, line: Line) -> None:
        number = line.place.line
        type_, payload = opened(line.value)
        self._copied(number, type_, millis(line.value.get("timestamp")))
        if type_ == "response_item":
            self._item(number, payload, line.place)
        elif type_ == "event_msg":
            self._event(number, payload)
        elif type_ == "compacted":
            self._answering = self._fresh = False
            self._open.clear()
        elif type_ == "turn_context":
            self._answering = False
            self.plan.model = self.plan.model or text(payload.get("model"))
            self.plan.cwd = self.plan.cwd or text(payload.get("cwd"))

    def _copied(self, number: int, type_: str, time: int | None) -> None:
        """Lines behind the first that are older than it are copied from a parent."""
        if not self._begun:
            self._begun = True
            self._meta = time if type_ == "session_meta" else None
        elif self._meta is not None and type_ != "session_meta":
            if time is not None and time < self._meta:
                self.plan.inherited = number
            else:
                self._meta = None
                if self.plan.inherited:
                    self._turn_over()

    # ------------------------------------------------------------ lines

    def _item(self, number: int, payload: JsonObject, place: Place) -> None:
        kind, role = kind_of(payload), role_of(payload)
        if kind in OUTPUTS:
            self._answering = False
            key = key_of(call_id_of(payload))
            response, asked = self._open.pop(key, (self._response, number))
            if response < self._response:
                self.plan.late[asked, key] = place
        elif kind in CALLS:
            self._answers()
            self._open[key_of(call_id_of(payload))] = self._response, number
        elif kind == "reasoning":
            self.plan.thought = True
            self._answers()
        elif role == "assistant":
            self.plan.spoken = True
            self._answers()
        elif role == "user" and self._told is None and not put_in(payload):
            self._user(number)

    def _event(self, number: int, payload: JsonObject) -> None:
        kind = kind_of(payload)
        if kind == "user_message" or user_item(payload) is not None:
            self._user_event(number, kind)
        elif kind == "task_started":
            self.plan.tasks = True
            fresh = self._fresh
            if not fresh:
                self._heard()
            self._turn_over()
            self._active = True
            self._boundary = not fresh
        elif kind in ("task_complete", "turn_aborted"):
            self._active = False
            self._boundary = True
            self._heard()
        elif kind == "agent_message":
            self._answers()
        elif kind == "thread_rolled_back":
            self._roll_back(number, count(payload.get("num_turns")) or 0)

    def _answers(self) -> None:
        self._fresh = False
        self._heard()
        if not self._answering:
            self._response += 1
            self._answering = True

    def _heard(self) -> None:
        """What a person says from here on is something new."""
        if self._told is not None:
            self._told.clear()

    # ------------------------------------------------------------ turns

    def _turn_over(self) -> None:
        self._active = self._fresh = self._answering = False
        self._boundary = True
        self._open.clear()

    def _user_event(self, number: int, kind: str) -> None:
        """A message may be told by two kinds of events; the first of them counts."""
        if self._told is None:
            # What the items of a user seemed to be before it is known by events.
            self._told = {}
            self.plan.forget()
            self._stack.clear()
            self._boundary = True
        nth = self._told[kind] = self._told.get(kind, 0) + 1
        if nth > max((others for each, others in self._told.items() if each != kind), default=0):
            self._user(number)

    def _user(self, number: int) -> None:
        if self._active and not self._boundary:
            self.plan.steering.add(number)
            return
        active = self._active
        self._turn_over()
        self._active, self._boundary, self._fresh = active, False, True
        self.plan.prompts.add(number)
        self._stack.append((number, self._stack[-1][0] if self._stack else None))

    def _roll_back(self, number: int, turns: int) -> None:
        self._turn_over()
        gone = self._stack[max(0, len(self._stack) - turns) :] if turns else []
        if not gone:
            return
        del self._stack[-len(gone) :]
        thread = f"rolled-back:{number}"
        self.plan.withdrawn |= dict.fromkeys((prompt for prompt, _ in gone), thread)
        self.plan.branches[thread] = gone[0][1]
        self.plan.back[number] = self._stack[-1][0] if self._stack else None
