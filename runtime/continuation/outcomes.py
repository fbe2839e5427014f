"""Calls whose outcome is unknown: what they were called with, and what they turn out to be. No I/O of its own."""

from collections.abc import Callable, Container, Iterable
from pathlib import Path
from typing import Any, Final, Literal

import attrs

from ...journal.codec import INT_MAX, check_shape, encode, serialize
from ...journal.errors import InvalidEvent
from ...journal.events import Blocks, Draft, Event, JsonObject
from ...journal.state import State
from ...journal.views.turn import Unknown
from ..dispatch import Authorize, ToolLimits, denial
from ..errors import SettleRefused
from ..lifecycle import log
from ..outputs import Store, cut, shorten
from ..progress import Call
from ..tools.arguments import BadArguments, digest, parse, validate
from ..tools.base import AGAIN, Tool, ToolContext, ToolOutput, text_block
from ..tools.running import Left, Unproven, execute, look

Source = Literal["reconciled", "rerun", "user"]

#: Calls named in a sentence, of many.
_NAMED: Final = 12
_STATED: Final = {"ok": "The user states that this call succeeded.", "error": "The user states that this call failed."}


def unsettled(state: State, *, run_ids: Container[str] | None = None) -> list[Unknown]:
    """The unknown calls that no outcome has settled, oldest first; of these runs, or of all."""
    calls = [call for call in state.turns.unknown.values() if run_ids is None or call.run_id in run_ids]
    return sorted(calls, key=lambda call: call.call_seq)


# ---------------------------------------------------------------- what they were called with


@attrs.frozen
class Dispatched:
    """``arguments``: the raw text. ``cwd``: the session's working directory as it was then; empty where it had none."""

    arguments: str
    cwd: str


def dispatches(events: Iterable[Event], calls: Iterable[Unknown]) -> dict[int, Dispatched]:
    """What ``calls`` were dispatched with, by the number of their tool/call, from their session's events, oldest first.

    A call whose arguments are not provably those that were recorded is left out: nobody runs or looks at something with
    others. One pass, which keeps no more than what an open turn asked of tools under the names of these calls.
    """
    finder = _Finder(calls)
    for event in events:
        handler = _HANDLERS.get(event.type)
        if handler is not None:
            handler(finder, event)
    return finder.found


class _Finder:
    def __init__(self, calls: Iterable[Unknown]) -> None:
        self.found: dict[int, Dispatched] = {}
        self._cwd = ""
        self._wanted = {(call.turn_id, call.call_seq): call for call in calls if call.operation_id is not None}
        #: turn_id → the names of its wanted calls, and the arguments of the blocks that have them.
        self._asked: dict[str, dict[str, list[str]]] = {}
        for call in self._wanted.values():
            self._asked.setdefault(call.turn_id, {})[_folded(call.call_id)] = []

    def settings(self, event: Event) -> None:
        values = event.data if event.type == "session/header" else event.data["patch"]
        if isinstance(cwd := values.get("cwd"), str):
            self._cwd = cwd

    def message(self, event: Event) -> None:
        asked = self._asked.get(event.data["turn_id"])
        if asked is None:
            return
        for block in event.data["content"]:
            if not isinstance(block, dict) or block.get("kind") != "tool_call":
                continue
            call_id, arguments = block.get("call_id"), block.get("arguments")
            if isinstance(call_id, str) and isinstance(arguments, str) and _folded(call_id) in asked:
                asked[_folded(call_id)].append(arguments)

    def call(self, event: Event) -> None:
        data = event.data
        call = self._wanted.get((data["turn_id"], event.seq))
        if call is None or not event.verified:
            return
        if (data["operation_id"], data["name"]) != (call.operation_id, call.name):
            return
        own = data.get("arguments")
        texts = self._asked[call.turn_id][_folded(call.call_id)] if own is None else [own]
        for text in texts:
            # Which of the blocks of that name it was does not matter: the same digest is the same text.
            if isinstance(text, str) and digest(text) == data["arguments_digest"]:
                self.found[event.seq] = Dispatched(text, self._cwd)

    def turn_end(self, event: Event) -> None:
        for texts in self._asked.get(event.data["turn_id"], {}).values():
            texts.clear()


_HANDLERS: Final[dict[str, Callable[[_Finder, Event], None]]] = {
    "session/header": _Finder.settings,
    "session/updated": _Finder.settings,
    "assistant/message": _Finder.message,
    "tool/call": _Finder.call,
    "turn/end": _Finder.turn_end,
}


def _folded(call_id: str) -> str:
    return call_id.strip().casefold()


# ---------------------------------------------------------------- what they turn out to be


async def reconciled(
    call: Unknown, tool: Tool, arguments: str, *, cwd: Path, store: Store, limits: ToolLimits | None = None
) -> Draft | None:
    """What the tool's own rule proves of a call, as a tool/outcome; None: its outcome stays unknown, and the log says
    why. Raises nothing but a cancellation.
    """
    limits = limits or ToolLimits()
    context = _context(call, cwd, store)
    try:
        checked = _checked(tool, arguments)
        output = await look(tool, checked, context, grace=limits.grace, left=_left(call))
        content = await shorten(output.content, limits.shown, store)
        return _outcome(call, "ok" if output.state == "ok" else "error", content, "reconciled")
    except Unproven as why:
        stays_unknown(call, f"its reconcile {why}")
    except BadArguments:
        stays_unknown(call, "the arguments on record are not such that it takes now")
    except InvalidEvent:
        stays_unknown(call, "what its reconcile gave cannot be recorded")
    except Exception as error:
        stays_unknown(call, f"it cannot be asked ({type(error).__name__})")
    return None


async def run_again(
    call: Unknown,
    tool: Tool,
    arguments: str,
    *,
    cwd: Path,
    store: Store,
    limits: ToolLimits | None = None,
    authorize: Authorize | None = None,
) -> Draft | None:
    """Executes the body again under the same ``operation_id``: what it comes to, as a tool/outcome.

    None where that is unknown too, or where it was not run: its tool does not declare (any more) that this may be done,
    or does not take the arguments; or ``authorize`` denies it. The log says which.
    """
    limits = limits or ToolLimits()
    if call.recovery not in AGAIN or tool.recovery not in AGAIN:
        stays_unknown(call, f"it is not run again: its tool declares {tool.recovery} (then: {call.recovery})")
        return None
    if call.operation_id is None:
        stays_unknown(call, "its dispatch is not on record")
        return None
    try:
        checked = _checked(tool, arguments)
    except BadArguments:
        stays_unknown(call, "the arguments on record are not such that it takes now")
        return None
    if authorize is not None:
        asked = Call(call.call_id, call.name, arguments, call.operation_id, call.call_seq, tool.recovery)
        if await denial(authorize, asked, tool, checked) is not None:
            stays_unknown(call, "it is not run again: `authorize` denies it")
            return None
    output = await execute(
        tool,
        checked,
        _context(call, cwd, store),
        grace=limits.grace,
        left=_left(call),
        late=_nobody_waits,
    )
    if output.state not in ("ok", "error"):
        stays_unknown(call, "it was run again, and it is not known what came of that either")
        return None
    content = await shorten(output.content, limits.shown, store)
    try:
        return _outcome(call, "ok" if output.state == "ok" else "error", content, "rerun")
    except InvalidEvent as refused:
        text = f"the tool ended, but what it gave back cannot be recorded: {refused}"
        return _outcome(call, "error", [text_block(text)], "rerun")


#: The source of an outcome, for people.
_WORD_OF: Final = {
    "user": "stated by a person",
    "reconciled": "found out by its tool",
    "rerun": "executed again",
    "late": "its result came late",
}


def stated(state: State, name: str, *, ok: bool, text: str | None = None, limits: ToolLimits | None = None) -> Draft:
    """A person's word on an unknown call, as a tool/outcome. ``name``: its operation_id, its call_id, or the number of
    its tool/call.

    Raises SettleRefused: ``call_unknown``, ``call_ambiguous``, ``call_settled``.
    """
    calls = unsettled(state)
    named = [call for call in calls if call.operation_id == name] or [
        call for call in calls if name in (call.call_id, str(call.call_seq))
    ]
    if not named and (known := outcome_of(state, name)) is not None:
        raise SettleRefused(
            f"the call {name} has its outcome already, {known[0]} ({_WORD_OF.get(known[1], known[1])}), and that "
            "stands; tell the model in a message what is to be said beside",
            code="call_settled",
        )
    if not named:
        there = f"what is unknown: {_listed(calls)}" if calls else "there is no call whose outcome is unknown"
        raise SettleRefused(f"no call of unknown outcome is called {name!r}; {there}", code="call_unknown")
    if len(named) > 1:
        raise SettleRefused(
            f"{len(named)} calls of unknown outcome are called {name!r}; name one by its operation: {_listed(named)}",
            code="call_ambiguous",
        )
    [call] = named
    if call.operation_id is None:
        raise SettleRefused(
            f"the dispatch of the call {call.call_id} of {call.name} was lost, and an outcome is recorded for one that "
            "is on record; tell the model in a message what came of it",
            code="call_unknown",
        )
    word: Literal["ok", "error"] = "ok" if ok else "error"
    limit = (limits or ToolLimits()).shown
    said = cut([text_block(text or _STATED[word])], limit, "it is too long for a statement")
    return _outcome(call, word, said, "user")


def outcome_of(state: State, name: str) -> tuple[str, str] | None:
    """State and source of the newest outcome of a call whose result was unknown, named as in ``stated``."""
    for key, (word, source, call_id, operation_id) in reversed(state.turns.outcomes.items()):
        if name in (operation_id, call_id, key.partition("@")[0]):
            return word, source
    return None


def _listed(calls: list[Unknown]) -> str:
    named = [
        f"{call.call_id} of {call.name} ({f'operation {call.operation_id}' if call.operation_id else 'dispatch lost'}, "
        f"event {call.call_seq})"
        for call in calls[:_NAMED]
    ]
    return ", ".join(named) + (f" and {len(calls) - _NAMED} more" if len(calls) > _NAMED else "")


def _checked(tool: Tool, arguments: str) -> dict[str, Any]:
    checked = parse(arguments)
    validate(checked, tool.parameters)
    return checked


def _context(call: Unknown, cwd: Path, store: Store) -> ToolContext:
    return ToolContext(
        operation_id=call.operation_id or "",
        call_id=call.call_id,
        turn_id=call.turn_id,
        run_id=call.run_id,
        cwd=cwd,
        store=store,
    )


def _outcome(call: Unknown, state: Literal["ok", "error"], content: Blocks, source: Source) -> Draft:
    """Raises InvalidEvent for what no line can hold."""
    data: JsonObject = {
        "turn_id": call.turn_id,
        "run_id": call.run_id,
        "call_id": call.call_id,
        "call_seq": call.call_seq,
        "operation_id": call.operation_id,
        "state": state,
        "content": content,
        "is_error": state != "ok",
        "source": source,
    }
    draft, written = serialize(Draft("tool/outcome", data))
    check_shape(draft)
    # As long as a line of it can become.
    encode(draft, INT_MAX, INT_MAX, "", data=written)
    return draft


def _left(call: Unknown) -> Left:
    def say(text: str) -> None:
        log.warning("a call of run %s left something behind: %s", call.run_id, text)

    return say


def _nobody_waits(output: ToolOutput) -> None:
    pass


def stays_unknown(call: Unknown, why: str) -> None:
    """Says so in the log, which holds nothing of the call's content."""
    log.warning("the call %s of %s in run %s stays unknown: %s", call.call_id, call.name, call.run_id, why)
