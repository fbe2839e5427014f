"""The first pass over a Codex rollout: which lines are prompts, what was withdrawn, which results come late. No I/O.

Of a line only its number is kept, of an id eight bytes of its digest.
"""

from collections.abc import Iterator
from typing import Final

import attrs

from ..events import JsonObject
from ..source import Source
from .codex_items import (
    CALLS,
    OUTPUTS,
    call_id_of,
    key_of,
    kind_of,
    opened,
    put_in,
    role_of,
    shows_image,
    thoughts,
    told,
    user_item,
)
from .findings import Report
from .lines import Line, objects
from .records import MAIN, Place
from .values import compact, count, mapping, millis, text

#: Events that tell what items hold too.
SHOWN: Final = {"agent_message": "message", "agent_reasoning": "text", "agent_reasoning_raw_content": "text"}
#: The thread of what was copied from a parent.
COPIED: Final = "copied"
#: Kinds of a user's message, as some builds have them, that no person wrote.
_OF_THE_TOOL: Final = ("user_instructions", "environment_context")
_BEGINS: Final = ("task_started", "user_message")
#: Of what was shown and is held by no item yet, so much is looked at for one that has the same text.
_NEAR: Final = 64
#: Milliseconds in which a parent's lines are written anew, where they are.
_AT_ONCE: Final = 1000


@attrs.define(eq=False)
class Plan:
    """``prompts`` begin turns, ``steering`` came amid them: numbers of lines. ``inherited``: the last line of what a
    fork or a subagent was given of its parent.
    """

    prompts: set[int] = attrs.Factory(set)
    steering: set[int] = attrs.Factory(set)
    inherited: int = 0
    #: Events of what a model said or thought that no item holds.
    alone: set[int] = attrs.Factory(set)
    #: By line of a prompt: the item that holds its images.
    images: dict[int, Place] = attrs.Factory(dict)
    #: Are there events of turns?
    tasks: bool = False
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

    def forget(self, behind: int) -> None:
        """Nothing of what was taken for a person's words was one, behind this line."""
        for lines in (self.prompts, self.steering):
            lines -= {number for number in lines if number > behind}
        for each in (self.withdrawn, self.back):
            for number in [number for number in each if number > behind]:
                del each[number]

    def base(self, number: int) -> str:
        """The thread that a line belongs to where nothing was withdrawn."""
        return COPIED if number <= self.inherited else MAIN

    def thread(self, prompt: int) -> str:
        """The thread of the turn that the prompt of this line begins."""
        return self.withdrawn.get(prompt, self.base(prompt))


def look(source: Source) -> Plan:
    looking = _Looking()
    looking.plan.inherited = _inherited(objects(source, Report()))
    for line in objects(source, Report()):
        looking.line(line)
    looking.finish()
    return looking.plan


def _inherited(lines: Iterator[Line]) -> int:
    """The last line of what was copied from a parent's file; 0 for none. A copy stands behind the first line, and has
    its old times, or all of it that at which it was written.
    """
    first = next(lines, None)
    if first is None or first.value.get("type") != "session_meta":
        return 0
    meta = mapping(first.value.get("payload"))
    written = millis(first.value.get("timestamp"))
    begun = millis(meta.get("timestamp"))
    begun = written if begun is None else begun
    if written is None or begun is None:
        return 0
    forked = text(meta.get("forked_from_id")) is not None or bool(mapping(mapping(meta.get("source")).get("subagent")))
    anew = own = fresh = False
    last = prompt = 0
    for line in lines:
        type_, payload = opened(line.value)
        kind, time = kind_of(payload), millis(line.value.get("timestamp"))
        if type_ == "session_meta" and payload.get("id") != meta.get("id"):
            forked = anew = True
        if not forked or time is None:
            break
        if not own and (time < begun or (anew and time <= written + _AT_ONCE)):
            last = line.place.line
            if time >= begun and type_ == "event_msg" and kind in _BEGINS:
                prompt = prompt if fresh else last
                fresh = kind == "task_started"
            continue
        own = True
        if type_ == "event_msg" and kind in _BEGINS:
            break
        if (type_ == "event_msg" and kind in SHOWN) or (type_ == "response_item" and _answers(payload)):
            # The prompt of this was written together with the copy.
            return prompt - 1 if prompt else last
    return last


def _answers(payload: JsonObject) -> bool:
    return kind_of(payload) in (*CALLS, "reasoning") or role_of(payload) == "assistant"


class _Looking:
    def __init__(self) -> None:
        self.plan = Plan()
        self._own = False
        #: By kind: events that no item was found for, items that no event was; each with its line and its text.
        self._shown: dict[str, tuple[list[tuple[int, int]], list[tuple[int, int]]]] = {kind: ([], []) for kind in SHOWN}
        #: Of a turn that its own event began: items of a user, while no event tells what was said.
        self._unsaid: list[int] | None = None
        #: Since the model last answered: a user's event whose item is not known, an item whose event is not; with its
        #: place where it shows an image.
        self._asked: int | None = None
        self._asking: list[Place | None] = []
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
        self._total = 0

    def line(self, line: Line) -> None:
        number = line.place.line
        type_, payload = opened(line.value)
        if not self._own and number > self.plan.inherited:
            self._begin()
        if type_ == "response_item":
            self._item(number, payload, line.place)
        elif type_ == "event_msg":
            self._event(number, payload)
        elif type_ == "compacted":
            self._response_over()
            self._fresh = False
            self._open.clear()
        elif type_ == "turn_context":
            self._response_over()
            self.plan.model = self.plan.model or text(payload.get("model"))
            self.plan.cwd = self.plan.cwd or text(payload.get("cwd"))

    def _begin(self) -> None:
        """What is the session's own begins: nothing of what was copied goes on."""
        self.finish()
        self._own = True
        self._told = None
        self._stack.clear()
        self.plan.tasks = False
        self.plan.model = self.plan.cwd = None

    def finish(self) -> None:
        self._turn_over()
        self._task_over()

    # ------------------------------------------------------------ lines

    def _item(self, number: int, payload: JsonObject, place: Place) -> None:
        kind, role = kind_of(payload), role_of(payload)
        if kind in OUTPUTS:
            self._response_over()
            key = key_of(call_id_of(payload))
            response, asked = self._open.pop(key, (self._response, number))
            if response < self._response:
                self.plan.late[asked, key] = place
        elif kind in CALLS:
            self._answers()
            self._open[key_of(call_id_of(payload))] = self._response, number
        elif kind == "reasoning":
            self._answers()
            for event, thought in thoughts(payload):
                self._pair(event, 1, number, thought)
        elif role == "assistant":
            self._answers()
            self._pair("agent_message", 1, number, told(payload))
        elif role == "user" and not put_in(payload):
            self._user_item(number, place if shows_image(payload) else None)

    def _event(self, number: int, payload: JsonObject) -> None:
        kind = kind_of(payload)
        if (kind == "user_message" and payload.get("kind") not in _OF_THE_TOOL) or user_item(payload) is not None:
            self._user_event(number, kind)
        elif kind == "task_started":
            self.plan.tasks = True
            fresh = self._fresh
            if not fresh:
                self._heard()
            self._turn_over()
            self._task_over()
            self._unsaid = None if fresh else []
            self._active = True
            self._boundary = not fresh
        elif kind in ("task_complete", "turn_aborted"):
            self._active = False
            self._boundary = True
            self._heard()
        elif kind in SHOWN:
            self._answers()
            self._pair(kind, 0, number, compact(payload.get(SHOWN[kind])))
        elif kind == "token_count":
            total = key_of(compact(mapping(payload.get("info")).get("total_token_usage")))
            self._answering = self._answering and total == self._total
            self._total = total
        elif kind == "thread_rolled_back":
            self._roll_back(number, count(payload.get("num_turns")) or 0)

    def _pair(self, kind: str, side: int, number: int, shown: str) -> None:
        """An event (``side`` 0) and an item are of one fact where their texts are the same, or else where they stand
        next to each other: a text may have been shortened or blanked in one of them.
        """
        own, others = self._shown[kind][side], self._shown[kind][1 - side]
        key = key_of(shown)
        for at in range(len(others) - 1, max(-1, len(others) - 1 - _NEAR), -1):
            if others[at][1] == key:
                del others[at]
                return
        if others:
            others.pop()
        else:
            own.append((number, key))

    def _answers(self) -> None:
        self._fresh = False
        self._asked = None
        self._asking.clear()
        self._heard()
        if not self._answering:
            self._response += 1
            self._answering = True

    def _heard(self) -> None:
        """What a person says from here on is something new."""
        if self._told is not None:
            self._told.clear()

    # ------------------------------------------------------------ turns

    def _response_over(self) -> None:
        self._answering = False
        for events, held in self._shown.values():
            self.plan.alone.update(number for number, _ in events)
            events.clear()
            held.clear()

    def _turn_over(self) -> None:
        self._response_over()
        self._active = self._fresh = False
        self._boundary = True
        self._open.clear()

    def _task_over(self) -> None:
        """What was said in a turn of which no event tells is known by its items."""
        unsaid, self._unsaid = self._unsaid, None
        if unsaid:
            self._prompt(unsaid[0])
            self.plan.steering.update(unsaid[1:])

    def _prompt(self, number: int) -> None:
        self.plan.prompts.add(number)
        self._stack.append((number, self._stack[-1][0] if self._stack else None))

    def _user_item(self, number: int, shows: Place | None) -> None:
        if self._told is None:
            self._user(number)
        elif self._unsaid is not None:
            self._unsaid.append(number)
        if self._asked is None:
            self._asking[:] = [shows]
        elif shows is not None:
            self.plan.images[self._asked] = shows
        self._asked = None

    def _user_event(self, number: int, kind: str) -> None:
        """A message may be told by two kinds of events; the first of them counts."""
        if self._told is None:
            # What the items of a user seemed to be before it is known by events.
            self._told = {}
            self.plan.forget(self.plan.inherited if self._own else 0)
            self._stack.clear()
            self._boundary = True
        self._unsaid = None
        nth = self._told[kind] = self._told.get(kind, 0) + 1
        if nth > max((others for each, others in self._told.items() if each != kind), default=0):
            if not self._asking:
                self._asked = number
            elif (shows := self._asking.pop()) is not None:
                self.plan.images[number] = shows
            self._user(number)

    def _user(self, number: int) -> None:
        if self._active and not self._boundary:
            self.plan.steering.add(number)
            return
        active = self._active
        self._turn_over()
        self._active, self._boundary, self._fresh = active, False, True
        self._prompt(number)

    def _roll_back(self, number: int, turns: int) -> None:
        self._turn_over()
        self._task_over()
        gone = self._stack[max(0, len(self._stack) - turns) :] if turns else []
        if not gone:
            return
        del self._stack[-len(gone) :]
        thread = f"rolled-back:{number}"
        self.plan.withdrawn |= dict.fromkeys((prompt for prompt, _ in gone), thread)
        self.plan.branches[thread] = gone[0][1]
        self.plan.back[number] = self._stack[-1][0] if self._stack else None
