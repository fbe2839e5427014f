"""The first pass over a pi session: what each line is, and which entry it hangs at. No I/O of its own."""

from array import array
from bisect import bisect_right
from collections.abc import Callable
from hashlib import sha256
from typing import Any, Final

import attrs

from ..events import JsonObject
from ..source import Source
from .findings import Report
from .lines import at, objects
from .records import Place
from .values import compact, mapping, sequence, text

#: Kinds of lines. Apart: headers, and what stands in the file a second time; no entry hangs at these. Aside: a message
#: that may be put in anywhere.
APART, QUIET, ASIDE, SAID, PROMPT, ANSWER, RESULT, COMPACTION = range(8)
#: What a conversation consists of; what a model is given as a message.
CONVERSATION: Final = frozenset({SAID, PROMPT, ANSWER, RESULT, COMPACTION})
MESSAGES: Final = frozenset({ASIDE, SAID, PROMPT, ANSWER})
#: Behind these a result that stands further below belongs to its call no more.
BORDERS: Final = frozenset({PROMPT, COMPACTION})
ROLES: Final = {
    "user": PROMPT,
    "assistant": ANSWER,
    "toolResult": RESULT,
    **dict.fromkeys(("custom", "hookMessage", "developer", "fileMention", "bashExecution", "pythonExecution"), SAID),
}
TYPES: Final = {
    "session": APART,
    "title": APART,
    "custom_message": ASIDE,
    "branch_summary": SAID,
    "compaction": COMPACTION,
    "reset_boundary": COMPACTION,
}
#: Reasons with which a response asks for nothing more; those with which it was cut off.
_DONE: Final = frozenset({"stop", "length"})
BROKEN: Final = frozenset({"aborted", "error"})
#: Lines that are looked at for the result of one call.
_CANDIDATES: Final = 64
NONE: Final = -1


def key_of(value: str) -> int:
    """Of a long file's many ids only so much is kept."""
    return int.from_bytes(sha256(value.encode("utf-8", "replace")).digest()[:8], "big")


def kind_of(value: JsonObject) -> int:
    type_ = value.get("type")
    if type_ == "message":
        message = mapping(value.get("message"))
        role = message.get("role")
        if message.get("excludeFromContext") is True or not isinstance(role, str):
            return QUIET
        return ROLES.get(role, QUIET)
    return TYPES.get(type_, QUIET) if isinstance(type_, str) else QUIET


def is_call(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "toolCall"


def calls_of(value: JsonObject) -> list[str]:
    """The ids of the calls that a response asks for, each the whole text, both halves of it where it has two."""
    content = sequence(mapping(value.get("message")).get("content"))
    return [compact(block.get("id")) for block in content if is_call(block)]


def started_of(value: JsonObject) -> str | None:
    """The call whose body was entered, where a line says that one was."""
    if value.get("type") != "custom" or value.get("customType") != "tool_execution_start":
        return None
    return text(mapping(value.get("data")).get("toolCallId"))


def is_last(value: JsonObject) -> bool:
    """Does a response ask for nothing more?"""
    reason = mapping(value.get("message")).get("stopReason")
    if not isinstance(reason, str):
        return False
    return reason in BROKEN or (reason in _DONE and not calls_of(value))


def numbers(count: int = 0) -> "array[int]":
    """Numbers of lines; ``NONE`` for each, where so many are known to be wanted."""
    return array("i", [NONE]) * count


@attrs.define(eq=False)
class Tree:
    """What is known of a whole file. Lines that hold an object are counted from 0; ``NONE`` is none.

    By line: ``kinds``, ``parents``, ``last`` (a response that asks for nothing more), ``borders`` (the last border on
    the way to it, or it itself). By the key of a call's id: where it is ``asked`` for, where it has its ``results``,
    where it is said to be ``running``. ``kept``: the entries that compactions point to, by their ids' keys.
    """

    kinds: bytearray = attrs.Factory(bytearray)
    parents: "array[int]" = attrs.Factory(numbers)
    last: bytearray = attrs.Factory(bytearray)
    borders: "array[int]" = attrs.Factory(numbers)
    asked: dict[int, int] = attrs.Factory(dict)
    results: "dict[int, int | array[int]]" = attrs.Factory(dict)
    running: dict[int, int] = attrs.Factory(dict)
    kept: dict[int, int] = attrs.Factory(dict)
    header: JsonObject = attrs.Factory(dict)
    title: str | None = None
    model: str | None = None
    provider: str | None = None
    #: The line from which on the tool recorded which calls it began to run; None: it never did.
    recorded_from: int | None = None
    _lines: "array[int]" = attrs.Factory(numbers)
    _offsets: "array[int]" = attrs.Factory(lambda: array("q"))
    lengths: "array[int]" = attrs.Factory(numbers)

    @property
    def size(self) -> int:
        return len(self.kinds)

    def place(self, line: int) -> Place:
        return Place(self._lines[line], self._offsets[line], self.lengths[line])

    def result_of(self, call_id: str, line: int, gives: Callable[[int], bool] | None = None) -> int | None:
        """The line behind this one that is the result of a call, among those that ``gives`` takes, if nothing stands
        between that closes the call.
        """
        found = self.results.get(key_of(call_id), NONE)
        if isinstance(found, int):
            found = array("i", [found])
        start = bisect_right(found, line)
        for candidate in found[start : start + _CANDIDATES]:
            if self.borders[candidate] == self.borders[line] and (gives is None or gives(candidate)):
                return candidate
        return None


def look(source: Source, report: Report) -> Tree:
    """Reads the file once. What is wrong with how its entries hang together is reported."""
    reading = _Reading(source, report)
    for number, read in enumerate(objects(source, Report())):
        reading.take(number, read.value, read.place)
    reading.settle()
    tree = reading.tree
    tree.kept = {key: reading.ids[key] for key in reading.pointers if key in reading.ids}
    for line in range(tree.size):
        parent = tree.parents[line]
        border = line if tree.kinds[line] in BORDERS else NONE if parent == NONE else tree.borders[parent]
        tree.borders.append(border)
    return tree


@attrs.define(eq=False)
class _Reading:
    source: Source
    report: Report
    tree: Tree = attrs.Factory(Tree)
    #: Entries by the key of their id; keys that compactions name.
    ids: dict[int, int] = attrs.Factory(dict)
    pointers: set[int] = attrs.Factory(set)
    #: The entry before.
    before: int = NONE
    header: str | None = None
    #: Does the file say what its entries hang at?
    linked: bool = False
    #: Entries whose parents do not stand before them, and these parents' keys.
    ahead: list[tuple[int, int]] = attrs.Factory(list)

    def take(self, number: int, value: JsonObject, place: Place) -> None:
        tree, kind = self.tree, kind_of(value)
        tree._lines.append(place.line)
        tree._offsets.append(place.offset)
        tree.lengths.append(place.length)
        tree.last.append(kind == ANSWER and is_last(value))
        if number == 0 and kind != APART:
            self._tell("bad_header", "the file does not begin with the header of a session", place)
        if kind == APART:
            self._header(value, place)
        own = None if kind == APART else text(value.get("id"))
        key = None if own is None else key_of(own)
        if own is not None and key in self.ids and self._is_again(self.ids[key], own, value, place):
            kind = APART
        tree.kinds.append(kind)
        if kind == APART:
            tree.parents.append(NONE)
            return
        tree.parents.append(self._parent(number, value, place))
        if key is not None:
            self.ids[key] = number
        self.before = number
        self._note(number, kind, value)

    def _tell(self, code: str, message: str, place: Place) -> None:
        self.report.add(code, message, place.line, place.offset, place.length)

    def _header(self, value: JsonObject, place: Place) -> None:
        if value.get("type") == "title":
            self.tree.title = self.tree.title or text(value.get("title"))
        elif not self.tree.header:
            self.tree.header, self.header = value, text(value.get("id"))
        else:
            self._tell("misfit", "the file has a second header, which begins nothing", place)

    def _is_again(self, earlier: int, own: str, value: JsonObject, place: Place) -> bool:
        """Is the entry one that stands there already? Another one with its id is an entry of its own."""
        first = self.tree.place(earlier)
        if at(self.source, first) == value:
            self.report.add(
                "duplicate_line", f"an entry {own[:80]} stands in the file already", place.line, place.offset,
                place.length, related=first.line,
            )  # fmt: skip
            return True
        told = f"another entry has the id {own[:80]}; what hangs at that from here on is read behind this one"
        self.report.add("misfit", told, place.line, place.offset, place.length, related=first.line)
        return False

    def _parent(self, number: int, value: JsonObject, place: Place) -> int:
        """The line that an entry hangs at. The oldest files name none: there it is the entry before. So it is where
        the one that is named does not stand before it.
        """
        if "parentId" not in value:
            if self.linked:
                self._tell("misfit", "the entry does not say what it hangs at; it is read behind the one before", place)
            return self.before
        self.linked = True
        parent = value["parentId"]
        if parent is None or (self.header is not None and parent == self.header):
            return NONE
        key = key_of(compact(parent))
        # Some tools hang a result at the call itself.
        found = self.ids.get(key, self.tree.asked.get(key))
        if found is None:
            self.ahead.append((number, key))
            return self.before
        return found

    def _note(self, number: int, kind: int, value: JsonObject) -> None:
        tree, message = self.tree, mapping(value.get("message"))
        if kind == ANSWER:
            for call_id in calls_of(value):
                tree.asked.setdefault(key_of(call_id), number)
            tree.model = tree.model or text(message.get("model"))
            tree.provider = tree.provider or text(message.get("provider"))
        elif kind == RESULT:
            self._note_result(key_of(compact(message.get("toolCallId"))), number)
        elif kind == COMPACTION:
            if isinstance(pointer := value.get("firstKeptEntryId"), str):
                self.pointers.add(key_of(pointer))
        elif (started := started_of(value)) is not None:
            key = key_of(started)
            tree.running.setdefault(key, number)
            if tree.recorded_from is None:
                tree.recorded_from = tree.asked.get(key, number)

    def _note_result(self, key: int, number: int) -> None:
        """Nearly every call has one."""
        known = self.tree.results.get(key)
        if known is None:
            self.tree.results[key] = number
        elif isinstance(known, int):
            self.tree.results[key] = array("i", [known, number])
        else:
            known.append(number)

    def settle(self) -> None:
        """Tells of the parents that do not stand before their entries."""
        named = {number: self.ids.get(key, NONE) for number, key in self.ahead}
        steps = 10 * self.tree.size
        for number, found in named.items():
            at, seen = found, set[int]()
            while at not in (NONE, number) and at not in seen and steps > 0:
                seen.add(at)
                at, steps = named.get(at, self.tree.parents[at]), steps - 1
            if at == number:
                self._tell("parent_cycle", "the entry is its own ancestor", self.tree.place(number))
                continue
            where = "is not in this file" if found == NONE else f"stands behind it, in line {self._line(found)}"
            self._tell("missing_parent", f"the entry's parent {where}", self.tree.place(number))

    def _line(self, number: int) -> int:
        return self.tree.place(number).line
