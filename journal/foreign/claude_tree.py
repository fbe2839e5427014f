"""The first pass over a Claude Code transcript: which line belongs where, and what is written in several places. No I/O
of its own.

``parentUuid`` is an order of the log, not a path of the conversation. Lines are read in the order of the file; only
what hangs below a prompt that another one with the same parent has replaced is a branch of its own. Of a line no more
is kept than a few numbers.
"""

from array import array
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, Final

import attrs

from ..events import JsonObject
from ..shapes import MAX_ID
from ..source import Source
from .findings import Report
from .lines import Line, objects
from .records import MAIN, Place
from .values import compact, mapping, sequence, text

#: Texts that the tool itself puts where a user's would stand: what a person's command did, and what a model is to know.
_COMMANDS: Final = (
    "<command-name>", "<command-message>", "<command-args>", "<local-command-std", "<bash-input>", "<bash-stdout>",
    "<bash-stderr>", "<user-memory-input>",
)  # fmt: skip
_CONTEXT: Final = ("<local-command-caveat>", "<task-notification>", "<system-reminder>", "Caveat: The messages below")
_INTERRUPTED: Final = "[Request interrupted by user"
_SYNTHETIC: Final = "<synthetic>"
#: What a result may have.
_RESULT: Final = frozenset({"type", "tool_use_id", "content", "is_error", "cache_control"})
#: So many other sessions are told apart.
_OTHERS: Final = 1_000
#: What lines say of their session.
_ABOUT: Final = ("sessionId", "cwd", "timestamp", "agentId")
#: Of lines that stand in the file a second time.
_SKIPPED: Final = 0xFFFFFFFF


# ---------------------------------------------------------------- what a line says of itself


def key_of(value: str) -> int:
    """Of a long file's many ids only so much is kept; for as long as the process lives."""
    return hash(value)


def call_id_of(value: Any) -> str:
    """A call's id as a journal can have it; the same for the call and its result."""
    given = value if isinstance(value, str) else compact(value)
    if len(given) <= MAX_ID:
        return given
    return f"{given[:64]}…{sha256(given.encode('utf-8', 'replace')).hexdigest()[:16]}"


def content_of(value: JsonObject) -> list[Any]:
    """A message's content as blocks of the tool's own."""
    content = mapping(value.get("message")).get("content")
    return [{"type": "text", "text": content}] if isinstance(content, str) else sequence(content)


def blocks_of(value: JsonObject, type_: str) -> Iterator[JsonObject]:
    for block in content_of(value):
        if isinstance(block, dict) and block.get("type") == type_:
            yield block


def unfit(value: JsonObject) -> str | None:
    """Why not all of a message can be read, if that is so."""
    message = value.get("message")
    if not isinstance(message, dict):
        return "the line holds no message"
    if not isinstance(message.get("content"), str | list):
        return "the message holds neither a text nor blocks"
    for block in blocks_of(value, "thinking"):
        if "thinking" not in block or not isinstance(block.get("signature"), str | None):
            return "a thought lacks its text, or its signature is none"
    for block in blocks_of(value, "redacted_thinking"):
        if "data" not in block:
            return "a sealed thought lacks its data"
    for block in blocks_of(value, "tool_use"):
        if text(block.get("name")) is None or "input" not in block:
            return "a call lacks its name or its input"
    for block in blocks_of(value, "tool_result"):
        if block.get("content") is None and not block.keys() <= _RESULT:
            return "a result lacks its content"
    return None


def first_text(value: JsonObject) -> str:
    return next((said for block in blocks_of(value, "text") if isinstance(said := block.get("text"), str)), "")


def is_interruption(value: JsonObject) -> bool:
    return first_text(value).startswith(_INTERRUPTED)


def is_output(value: JsonObject) -> bool:
    """Did a model say this? The tool writes errors of the provider in the same place."""
    if value.get("type") != "assistant" or value.get("isApiErrorMessage") is True:
        return False
    return mapping(value.get("message")).get("model") != _SYNTHETIC


def origin_of(value: JsonObject) -> str:
    """Who says what stands on the user's side: a ``user``, or the tool: of a ``command``, as ``context``, or of an
    ``interruption``.
    """
    if is_interruption(value):
        return "interruption"
    if value.get("isMeta") is True:
        return "context"
    texts = [said.lstrip() for block in blocks_of(value, "text") if isinstance(said := block.get("text"), str)]
    others = any(not isinstance(block, dict) or block.get("type") != "text" for block in content_of(value))
    if others or not texts or not all(each.startswith((*_COMMANDS, *_CONTEXT)) for each in texts):
        return "user"
    return "command" if any(each.startswith(_COMMANDS) for each in texts) else "context"


def is_prompt(value: JsonObject) -> bool:
    """Did a person say this?"""
    if value.get("type") != "user" or value.get("isCompactSummary") is True or not content_of(value):
        return False
    return next(blocks_of(value, "tool_result"), None) is None and origin_of(value) == "user"


def is_boundary(value: JsonObject) -> bool:
    return value.get("type") == "system" and value.get("subtype") == "compact_boundary"


def preserved(value: JsonObject) -> list[int]:
    """Of the boundary of a compaction: the keys of what a model is given as it was, in its order."""
    meta = mapping(value.get("compactMetadata"))
    head = mapping(meta.get("preservedSegment")).get("headUuid")
    uuids = [head, *sequence(mapping(meta.get("preservedMessages")).get("uuids"))]
    return [key_of(uuid) for uuid in uuids if isinstance(uuid, str) and uuid]


# ---------------------------------------------------------------- what is known of a whole file


@attrs.frozen
class Thread:
    """``parent`` is the name of the thread that a ``branch`` or a ``subagent`` began in."""

    name: str
    kind: str = "main"
    parent: str | None = None


@attrs.define(eq=False)
class _Stretch:
    """Lines that hang together: from a prompt on, a compaction, or a line whose parent does not stand above it.

    ``up``: what it goes on from, by number. ``side``: the subagent whose it is. ``segment``: the stretch at whose first
    line the chain of parents ends. ``turn`` and ``asked``: the stretches at which a result, and a response, ends to
    belong to what came before.
    """

    place: Place
    up: int | None
    side: str | None
    segment: int
    turn: int
    asked: int
    #: The stretch of the conversation that a subagent's first one stands beside.
    beside: int = 0
    #: Of a turn's first stretch: the line of its newest response.
    newest: int = -1
    replaced_by: int | None = None
    model: str | None = None
    thread: int = 0


@attrs.define(eq=False)
class Tree:
    """What is known of a whole file. Lines that hold an object are counted from 0.

    ``moved``: by the first line of a response and the key of a call, the line of a result that stands behind the next
    response, or before its call; ``ahead``: the latter, by line and call. ``wanted``: keys of lines that others name.
    ``known``: keys of leaves of summaries that are in the file. ``said``: what the first line of the conversation says
    of the session. ``subagent``: the file is a subagent's own.
    """

    threads: list[Thread] = attrs.Factory(lambda: [Thread(MAIN)])
    models: dict[int, str] = attrs.Factory(dict)
    moved: dict[tuple[int, int], int] = attrs.Factory(dict)
    ahead: set[tuple[int, int]] = attrs.Factory(set)
    wanted: set[int] = attrs.Factory(set)
    known: set[int] = attrs.Factory(set)
    said: JsonObject = attrs.Factory(dict)
    subagent: bool = False
    _thread_of: "array[int]" = attrs.Factory(lambda: array("I"))
    #: By line: its number in the file, offset and length; its stretch; the first line of its response, and the next.
    _lines: "array[int]" = attrs.Factory(lambda: array("I"))
    _offsets: "array[int]" = attrs.Factory(lambda: array("Q"))
    _lengths: "array[int]" = attrs.Factory(lambda: array("Q"))
    _stretches: "array[int]" = attrs.Factory(lambda: array("I"))
    _heads: "array[int]" = attrs.Factory(lambda: array("I"))
    _next: "array[int]" = attrs.Factory(lambda: array("I"))

    def place(self, number: int) -> Place:
        return Place(self._lines[number], self._offsets[number], self._lengths[number])

    def skipped(self, number: int) -> bool:
        """Did the line stand in the file before?"""
        return self._stretches[number] == _SKIPPED

    def thread(self, number: int) -> int:
        """The index of the line's thread."""
        stretch = self._stretches[number]
        return 0 if stretch == _SKIPPED else self._thread_of[stretch]

    def further(self, number: int) -> bool:
        """Is the line part of a response that began above?"""
        return self._heads[number] != number

    def fragments(self, number: int) -> list[Place]:
        """The places of all lines of the response that begins with this one."""
        out = [self.place(number)]
        while (number := self._next[number]) != 0:
            out.append(self.place(number))
        return out


def look(source: Source, report: Report) -> Tree:
    """Reads the file once. What is wrong with the order of its lines is reported."""
    first = _FirstPass(report)
    for line in objects(source, Report()):
        first.take(line)
    return first.finish()


class _FirstPass:
    def __init__(self, report: Report) -> None:
        self._report = report
        self._tree = Tree()
        self._stretches = [_Stretch(Place(0, 0, 0), None, None, 0, 0, 0)]
        #: The stretch of each line, by its key; the newest one of the conversation, and of each subagent.
        self._uuids: dict[int, int] = {}
        self._now: dict[str | None, int] = {None: 0}
        self._side: str | None = None
        #: Stretches that begin with a line whose parent has not been seen, by the parent's key; where it then was.
        self._pending: dict[int, list[int]] = {}
        self._found: dict[int, int] = {}
        #: Prompts by their parent; the first answer to a line; the last line of a response.
        self._prompts: dict[int, int] = {}
        self._answers: dict[int, int] = {}
        self._responses: dict[int, int] = {}
        #: By a call's key: the first line of the response that asked for it; a result that came before.
        self._asked: dict[int, int] = {}
        self._stray: dict[int, int] = {}
        self._pointers: list[tuple[Place, list[int]]] = []
        self._leaves: set[int] = set()
        #: Other sessions that lines say they are of.
        self._others: set[int] = set()
        self._spoken = [False, False]

    def take(self, line: Line) -> None:
        value, place, tree = line.value, line.place, self._tree
        number = len(tree._lines)
        tree._lines.append(place.line)
        tree._offsets.append(place.offset)
        tree._lengths.append(place.length)
        tree._heads.append(number)
        tree._next.append(0)
        tree._stretches.append(self._placed(number, value, place))

    def _placed(self, number: int, value: JsonObject, place: Place) -> int:
        uuid, type_ = text(value.get("uuid")), value.get("type")
        said = type_ in ("user", "assistant")
        if uuid is None and not said:
            if type_ == "summary" and (leaf := text(value.get("leafUuid"))) is not None:
                self._leaves.add(key_of(leaf))
            return 0
        key = None if uuid is None else key_of(uuid)
        if key in self._uuids:
            self._tell("duplicate_line", "a line with this uuid stands above", place)
            return _SKIPPED
        parent = text(value.get("parentUuid"))
        above = None if parent is None else key_of(parent)
        stretch = self._stretch(value, place, key, above)
        if key is not None:
            self._uuids[key] = stretch
            for begun in self._pending.pop(key, ()):
                self._found[begun] = stretch
        if said:
            self._spoken[value.get("isSidechain") is True] = True
            for about in _ABOUT:
                if about not in self._tree.said and about in value:
                    self._tree.said[about] = value[about]
            self._other(text(value.get("sessionId")), place)
        if is_output(value):
            self._response(number, value, stretch, above, place)
        elif type_ == "user":
            self._results(number, value, stretch)
        elif is_boundary(value) and (keys := preserved(value)):
            self._pointers.append((place, keys))
        return stretch

    def _tell(self, code: str, message: str, place: Place, related: int | None = None) -> None:
        self._report.add(code, message, place.line, place.offset, place.length, related=related)

    def _other(self, session: str | None, place: Place) -> None:
        if session is None or session == self._tree.said.get("sessionId") or (key := key_of(session)) in self._others:
            return
        if len(self._others) < _OTHERS:
            self._others.add(key)
        self._tell("other_session", f"the line says that it is of session {session[:MAX_ID]}", place)

    # ------------------------------------------------------------ stretches

    def _stretch(self, value: JsonObject, place: Place, key: int | None, above: int | None) -> int:
        """The number of the line's stretch: that of its parent, if the line does not begin one."""
        up = None if above is None else self._uuids.get(above)
        lost = above is not None and up is None
        if above is not None and above == key:
            self._tell("parent_cycle", "the line is its own parent", place)
            lost = False
        side = self._side_of(value, place, up, lost)
        if up is not None and self._stretches[up].side != side:
            up = None
        prompt, chained = is_prompt(value), up is not None
        border = is_boundary(value) or value.get("isCompactSummary") is True
        at = up if up is not None else self._now.get(side)
        if at is None or prompt or border or lost or (self._pending and not chained):
            at = self._begin(place, at, side, prompt=prompt, border=border, chained=chained)
        if lost and above is not None:
            self._pending.setdefault(above, []).append(at)
        if prompt and chained and above is not None:
            if (earlier := self._prompts.get(above)) is not None:
                self._stretches[earlier].replaced_by = place.line
                # Where the branch goes on from.
                self._tree.wanted.add(above)
            self._prompts[above] = at
        self._now[side] = at
        return at

    def _begin(
        self, place: Place, up: int | None, side: str | None, *, prompt: bool, border: bool, chained: bool
    ) -> int:
        number = len(self._stretches)
        above = None if up is None else self._stretches[up]
        new = _Stretch(
            place=place,
            up=up,
            side=side,
            segment=number if above is None or not chained else above.segment,
            turn=number if above is None or prompt or border else above.turn,
            asked=number if above is None or prompt else above.asked,
            beside=self._now[None],
        )
        self._stretches.append(new)
        return number

    def _side_of(self, value: JsonObject, place: Place, up: int | None, lost: bool) -> str | None:
        """Whose line is it? None: the conversation's. Subagents that have no id are told apart by their first line."""
        if value.get("isSidechain") is not True:
            return None
        if (agent := text(value.get("agentId"))) is not None:
            return f"agent:{agent}"
        if up is not None and (side := self._stretches[up].side) is not None:
            return side
        if self._side is None or not lost:
            self._side = f"sidechain:{place.line}"
        return self._side

    # ------------------------------------------------------------ responses, calls, results

    def _response(self, number: int, value: JsonObject, stretch: int, above: int | None, place: Place) -> None:
        tree, asked = self._tree, self._stretches[stretch].asked
        message = mapping(value.get("message"))
        named = text(message.get("id")) or text(value.get("requestId"))
        head = number
        key = number if named is None else key_of(named)
        if named is not None:
            # A gateway may give all responses the same id: none goes on behind the next prompt.
            last = self._responses.get(key)
            if last is not None and self._stretches[tree._stretches[last]].asked == asked:
                head = tree._heads[number] = tree._heads[last]
                tree._next[last] = number
            self._responses[key] = number
        if head == number:
            if above is not None and self._answers.setdefault(above, key) != key:
                self._tell("assistant_siblings", "another answer hangs at the same line", place)
            self._stretches[self._stretches[stretch].turn].newest = number
        if self._stretches[stretch].model is None:
            self._stretches[stretch].model = text(message.get("model"))
        for block in blocks_of(value, "tool_use"):
            self._call(key_of(call_id_of(block.get("id"))), head, stretch)

    def _call(self, call: int, head: int, stretch: int) -> None:
        tree, before = self._tree, self._stray.get(call)
        if before is None or not self._same_turn(tree._stretches[before], stretch):
            self._asked[call] = head
            return
        del self._stray[call]
        tree.moved[head, call] = before
        if before < head:
            tree.ahead.add((before, call))

    def _results(self, number: int, value: JsonObject, stretch: int) -> None:
        for block in blocks_of(value, "tool_result"):
            call = key_of(call_id_of(block.get("tool_use_id")))
            head = self._asked.pop(call, None)
            if head is None:
                self._stray.setdefault(call, number)
            elif (
                self._same_turn(self._tree._stretches[head], stretch)
                and self._stretches[self._stretches[stretch].turn].newest != head
            ):
                self._tree.moved[head, call] = number

    def _same_turn(self, one: int, other: int) -> bool:
        return self._stretches[one].turn == self._stretches[other].turn

    # ------------------------------------------------------------ what the whole file tells

    def finish(self) -> Tree:
        tree = self._tree
        cyclic = self._cycles()
        for number in sorted(each for begun in self._pending.values() for each in begun):
            self._tell("missing_parent", "the line's parent is not in this file", self._stretches[number].place)
        for number in cyclic:
            self._tell("parent_cycle", "the line is its own ancestor", self._stretches[number].place)
        for place, keys in self._pointers:
            tree.wanted.update(keys)
            if not any(key in self._uuids for key in keys):
                self._tell("compaction_pointer", "what the compaction has kept is not in this file", place)
        tree.known = {leaf for leaf in self._leaves if leaf in self._uuids}
        tree.subagent = self._spoken == [False, True]
        if tree._lines and not any(self._spoken):
            self._report.add("no_conversation", "no line of the file is a message")
        self._threads()
        return tree

    def _cycles(self) -> list[int]:
        """Stretches whose first line is its own ancestor: each segment ends at one line, whose parent is in another."""
        onto = {begun: self._stretches[found].segment for begun, found in self._found.items()}
        seen: dict[int, int] = {}
        out = []
        for start in onto:
            at: int | None = start
            while at is not None and at not in seen:
                seen[at] = start
                at = onto.get(at)
            if at is not None and seen[at] == start:
                out.append(at)
        return out

    def _threads(self) -> None:
        """Each stretch's thread: that of what it goes on from, unless a branch or a subagent begins with it."""
        tree = self._tree
        taken = not tree.subagent
        for stretch in self._stretches:
            if stretch.up is not None:
                stretch.thread = self._stretches[stretch.up].thread
            if stretch.replaced_by is not None:
                above = tree.threads[stretch.thread].name
                stretch.thread = self._thread(Thread(f"rewound:{stretch.place.line}", "branch", above))
                said = f"line {stretch.replaced_by} took the place of this prompt"
                self._tell("rewound", said, stretch.place, stretch.replaced_by)
            elif stretch.up is None and stretch.side is not None:
                if taken:
                    above = tree.threads[self._stretches[stretch.beside].thread].name
                    stretch.thread = self._thread(Thread(stretch.side, "subagent", above))
                taken = True
            tree._thread_of.append(stretch.thread)
            if stretch.model is not None:
                tree.models.setdefault(stretch.thread, stretch.model)

    def _thread(self, thread: Thread) -> int:
        self._tree.threads.append(thread)
        return len(self._tree.threads) - 1
