"""The first pass over a Claude Code transcript: which line belongs where, and what is written in several places. No I/O
of its own.

``parentUuid`` is an order of the log, not a path of the conversation. Lines are read in the order of the file; only
what hangs below a prompt that another one with the same parent has replaced is a branch of its own.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, Final

import attrs

from ..events import JsonObject
from ..source import Source
from .findings import Report
from .lines import objects
from .records import MAIN, Place
from .values import mapping, sequence, text

#: Texts that the tool itself puts where a user's would stand.
_WRAPPED: Final = (
    "<command-name>", "<command-message>", "<command-args>", "<local-command-", "<bash-input>", "<bash-stdout>",
    "<bash-stderr>", "<user-memory-input>", "<task-notification>", "<system-reminder>", "Caveat: The messages below",
)  # fmt: skip
INTERRUPTED: Final = "[Request interrupted by user"
#: The model of what the tool itself says.
SYNTHETIC: Final = "<synthetic>"
#: Tools that start a subagent.
STARTERS: Final = frozenset({"Task", "Agent"})


def key_of(value: str) -> int:
    """Of a long file's many ids only so much is kept."""
    return int.from_bytes(sha256(value.encode("utf-8", "replace")).digest()[:8], "big")


def content_of(value: JsonObject) -> list[Any]:
    """A message's content as blocks of the tool's own."""
    content = mapping(value.get("message")).get("content")
    return [{"type": "text", "text": content}] if isinstance(content, str) else sequence(content)


def first_text(value: JsonObject) -> str:
    for block in content_of(value):
        if isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str):
            said: str = block["text"]
            return said
    return ""


def has_result(value: JsonObject) -> bool:
    return any(isinstance(block, dict) and block.get("type") == "tool_result" for block in content_of(value))


def is_interruption(value: JsonObject) -> bool:
    return first_text(value).startswith(INTERRUPTED)


def is_prompt(value: JsonObject) -> bool:
    """Did a person say this?"""
    if value.get("type") != "user" or value.get("isMeta") is True or value.get("isCompactSummary") is True:
        return False
    if has_result(value) or is_interruption(value) or not content_of(value):
        return False
    return not first_text(value).lstrip().startswith(_WRAPPED)


def response_of(value: JsonObject) -> str | None:
    """What the lines of one response have in common; None where that is not said."""
    message_id = text(mapping(value.get("message")).get("id"))
    return message_id or text(value.get("requestId"))


@attrs.define(eq=False)
class Tree:
    """What is known of a whole file. Lines that hold an object are counted from 0.

    ``thread_of``: by line, an index into ``threads``; ``parents``: by line, the line of its parent, -1 for none.
    ``skipped``: lines that stand in the file a second time. ``fragments``: the places of a response's lines, where it
    has several; ``results``: line and place of the result of a call. ``subagent``: the file is a subagent's own.
    """

    threads: list[str] = attrs.Factory(lambda: [MAIN])
    thread_of: "array[int]" = attrs.Factory(lambda: array("l"))
    parents: "array[int]" = attrs.Factory(lambda: array("l"))
    skipped: set[int] = attrs.Factory(set)
    fragments: dict[int, list[Place]] = attrs.Factory(dict)
    results: dict[int, tuple[int, Place]] = attrs.Factory(dict)
    uuids: dict[int, int] = attrs.Factory(dict)
    subagent: bool = False
    #: Of the first line that has them.
    session_id: str | None = None
    cwd: str | None = None
    model: str | None = None
    #: By thread's index: lines at which a result does not belong to what came before any more.
    _borders: dict[int, "array[int]"] = attrs.Factory(dict)

    def thread(self, line: int) -> str:
        return self.threads[self.thread_of[line]]

    def same_turn(self, line: int, later: int) -> bool:
        """Does no prompt and no compaction of its thread stand between?"""
        borders = self._borders.get(self.thread_of[line])
        if self.thread_of[line] != self.thread_of[later] or borders is None:
            return self.thread_of[line] == self.thread_of[later]
        return bisect_right(borders, line) == bisect_right(borders, later)


@attrs.define(eq=False)
class _Row:
    """Of a line, what decides where it belongs."""

    parent: int | None
    uuid: int | None
    prompt: bool
    sidechain: bool
    border: bool
    response: int | None
    agent: str | None
    place: Place


def look(source: Source, report: Report) -> Tree:
    """Reads the file once. What is wrong with the order of its lines is reported."""
    tree = Tree()
    rows: list[_Row] = []
    for number, value, place in _numbered(source):
        rows.append(_row(tree, report, number, value, place))
        tree.session_id = tree.session_id or text(value.get("sessionId"))
        tree.cwd = tree.cwd or text(value.get("cwd"))
        if value.get("type") == "assistant" and tree.model is None:
            model = text(mapping(value.get("message")).get("model"))
            tree.model = None if model == SYNTHETIC else model
    chain = [row for row in rows if row.uuid is not None]
    tree.subagent = bool(chain) and all(row.sidechain for row in chain)
    children: dict[int, int] = {}
    for number, row in enumerate(rows):
        tree.parents.append(_parent(tree, report, rows, number, row))
        if row.prompt and row.parent is not None and number not in tree.skipped:
            children[row.parent] = number
    _threads(tree, report, rows, children)
    return tree


def _numbered(source: Source) -> Iterator[tuple[int, JsonObject, Place]]:
    for number, line in enumerate(objects(source, Report())):
        yield number, line.value, line.place


def _row(tree: Tree, report: Report, number: int, value: JsonObject, place: Place) -> _Row:
    uuid, parent = text(value.get("uuid")), text(value.get("parentUuid"))
    key = None if uuid is None else key_of(uuid)
    if key is not None:
        if key in tree.uuids:
            tree.skipped.add(number)
            report.add(
                "duplicate_line", f"the line {uuid} stands in the file already", place.line, place.offset, place.length
            )
        else:
            tree.uuids[key] = number
    response = None
    if number not in tree.skipped:
        type_ = value.get("type")
        if type_ == "assistant" and (named := response_of(value)) is not None:
            response = key_of(named)
            tree.fragments.setdefault(response, []).append(place)
        elif type_ == "user":
            for block in content_of(value):
                if isinstance(block, dict) and block.get("type") == "tool_result":
                    call_id = block.get("tool_use_id")
                    if isinstance(call_id, str):
                        tree.results.setdefault(key_of(call_id), (number, place))
    prompt = is_prompt(value)
    border = prompt or value.get("subtype") == "compact_boundary" or value.get("isCompactSummary") is True
    return _Row(
        parent=None if parent is None else key_of(parent),
        uuid=key,
        prompt=prompt,
        sidechain=value.get("isSidechain") is True,
        border=border,
        response=response,
        agent=text(value.get("agentId")),
        place=place,
    )


def _parent(tree: Tree, report: Report, rows: list[_Row], number: int, row: _Row) -> int:
    """The line of a line's parent, if that stands before it."""
    if row.parent is None or number in tree.skipped:
        return -1
    place = row.place
    parent = tree.uuids.get(row.parent)
    if parent is None:
        report.add("missing_parent", "the line's parent is not in this file", place.line, place.offset, place.length)
        return -1
    if parent < number:
        return parent
    at, steps = parent, 0
    while at != number and steps < len(rows):
        above = rows[at].parent
        following = None if above is None else tree.uuids.get(above)
        if following is None:
            return -1
        at, steps = following, steps + 1
    report.add("parent_cycle", "the line is its own ancestor", place.line, place.offset, place.length)
    return -1


def _threads(tree: Tree, report: Report, rows: list[_Row], newest: dict[int, int]) -> None:
    """Each line's thread: that of its parent, unless a branch or a subagent begins with it."""
    named: dict[str, int] = {MAIN: 0}

    def index(name: str) -> int:
        if name not in named:
            named[name] = len(tree.threads)
            tree.threads.append(name)
        return named[name]

    answers: dict[int, int] = {}
    for number, row in enumerate(rows):
        parent = tree.parents[number]
        if row.response is not None and parent >= 0 and answers.setdefault(parent, row.response) != row.response:
            place = row.place
            said = "another answer hangs at the same line"
            report.add("assistant_siblings", said, place.line, place.offset, place.length)
        above = tree.thread_of[parent] if parent >= 0 else 0
        if row.sidechain and not tree.subagent:
            inside = parent >= 0 and rows[parent].sidechain
            name = f"agent:{row.agent}" if row.agent else f"sidechain:{row.place.line}"
            thread = above if inside and not row.agent else index(name)
        elif row.prompt and row.parent is not None and newest.get(row.parent, number) != number and parent >= 0:
            thread = index(f"rewound:{row.place.line}")
            place = row.place
            said = f"line {rows[newest[row.parent]].place.line} took the place of this prompt"
            report.add("rewound", said, place.line, place.offset, place.length)
        else:
            thread = above
        tree.thread_of.append(thread)
        if row.border:
            tree._borders.setdefault(thread, array("l")).append(number)
