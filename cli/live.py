"""A turn on a person's screen while it runs: text as it streams, calls and results in short.

It is told either the events of a manager's stream, or what a host's subscription tells: pieces of text, and events of
the journal.
"""

from collections.abc import Callable, Container
from typing import Any, Final

from ..runtime.session_events import SessionEvent
from . import conversation
from .console import Console
from .text import line, paragraph


class Live:
    """Shows the events of a turn. ``close`` ends a line that stands open."""

    def __init__(self, console: Console, *, gap: bool = True, mine: Container[str] = ()) -> None:
        """``gap``: an empty line stands before the first text. ``mine``: ids of messages that stand there already."""
        self._console = console
        self._gap = "\n" if gap else ""
        self._mine = mine
        #: The block that streams, and as much of its text as was shown.
        self._block: tuple[str, ...] | None = None
        self._shown = ""
        #: Of the blocks that stream, what a host told, and what was shown of it; the arguments of calls to come.
        self._told: dict[tuple[str, ...], str] = {}
        self._said: dict[tuple[str, ...], str] = {}
        self._arguments: dict[str, Any] = {}

    def begun(self, run_id: str, turn_id: str) -> None:
        """The run has begun: from now on there is one of this id."""
        self._console.write([f"{self._console.paint('goes on as', 'dim')}    run {line(run_id)}, turn {line(turn_id)}"])

    def tell(self, event: SessionEvent) -> None:
        show = _SHOWN.get(event.kind)
        if show is not None:
            show(self, event.kind.partition("_")[0], event.data)

    def piece(self, delta: dict[str, Any]) -> None:
        """A ``delta`` of a subscription: what of it was not shown yet. Text that is void stays, if it comes again."""
        block = (delta["kind"], delta["message_id"], str(delta["index"]))
        told = "" if delta.get("reset") else self._told.get(block, "")
        told = self._told[block] = told[: delta["offset"]] + delta["text"]
        said = self._said.get(block, "")
        if not told.startswith(said) and not said.startswith(told):
            self.close()
            said = ""
        if fresh := told[len(said) :]:
            self._said[block] = told
            self._stream(block, fresh)

    def event(self, type_: str, data: dict[str, Any]) -> None:
        """An event of the journal."""
        show = _JOURNALLED.get(type_)
        if show is not None:
            show(self, type_, data)

    def known(self, content: list[dict[str, Any]]) -> None:
        """What stands there already of a message: its calls may still begin."""
        for block in content:
            if block.get("kind") == "tool_call":
                self._arguments[block["call_id"]] = block.get("arguments")

    def close(self) -> None:
        if self._block is not None and not self._shown.endswith("\n"):
            self._console.put("\n")
        self._block, self._shown = None, ""

    def _delta(self, kind: str, data: dict[str, Any]) -> None:
        self._stream((kind, str(data["message_id"]), str(data.get("index", 0))), data["text"])

    def _stream(self, block: tuple[str, ...], text: str) -> None:
        if block != self._block:
            self._begin(block)
        self._put(block[0], text)

    def _whole(self, kind: str, data: dict[str, Any]) -> None:
        """The text of a block is complete: what was not shown of it is, or all where pieces were lost."""
        block = (kind, str(data["message_id"]))
        if self._block is None or self._block[:2] != block or not data["text"].startswith(self._shown):
            self._begin(block)
        self._put(kind, data["text"][len(self._shown) :])
        self.close()

    def _begin(self, block: tuple[str, ...]) -> None:
        self.close()
        self._console.put(self._gap)
        self._gap = "\n"
        self._block = block

    def _put(self, kind: str, text: str) -> None:
        self._shown += text
        self._console.put(self._console.paint(paragraph(text), "dim" if kind == "thinking" else ""))

    def _call(self, kind: str, data: dict[str, Any]) -> None:
        self._lines(["", conversation.call(data, self._console.paint)])

    def _result(self, kind: str, data: dict[str, Any]) -> None:
        self._lines(conversation.result(data, self._console.paint))

    def _retry(self, kind: str, data: dict[str, Any]) -> None:
        self.close()
        self._console.say(
            f"the provider failed ({data['failure_class']}); asking again in {data['delay']:g} s", "yellow"
        )

    def _plan(self, kind: str, data: dict[str, Any]) -> None:
        self._lines(["", f"plan  {line(data['title'], 100)}"])

    def _message(self, type_: str, data: dict[str, Any]) -> None:
        """What of its blocks was not shown while they streamed; a block that streamed otherwise is shown anew."""
        message_id = str(data["message_id"])
        streamed = sorted((block for block in self._said if block[1] == message_id), key=lambda block: int(block[2]))
        for number, block in enumerate(data["content"]):
            if block.get("kind") in _STREAMED and isinstance(block.get("text"), str):
                key = next((each for each in streamed if each[0] == block["kind"]), None)
                said = "" if key is None else self._said[key]
                if key is not None:
                    streamed.remove(key)
                # Of one whose host was killed less may be left than was shown.
                if key is None or not (block["text"].startswith(said) or said.startswith(block["text"])):
                    said, key = "", (block["kind"], message_id, f"{number} whole")
                if rest := block["text"][len(said) :]:
                    self._stream(key, rest)
            elif block.get("kind") == "tool_call":
                self._arguments[block["call_id"]] = block.get("arguments")
        self.close()
        # The next message may have begun to stream already.
        for key in [key for key in self._told if key[1] == message_id]:
            del self._told[key]
            self._said.pop(key, None)

    def _called(self, type_: str, data: dict[str, Any]) -> None:
        self._call(type_, {"arguments": self._arguments.pop(data["call_id"], None), **data})

    def _user(self, type_: str, data: dict[str, Any]) -> None:
        if data["message_id"] not in self._mine:
            self._lines(conversation.messages([{"role": "user", "content": data["content"]}], self._console.paint))

    def _note(self, type_: str, data: dict[str, Any]) -> None:
        if data["kind"] == "retry" and isinstance(data.get("text"), str):
            self.close()
            self._console.say(data["text"], "yellow")

    def _lines(self, lines: list[str]) -> None:
        self.close()
        self._gap = "\n"
        self._console.write(lines)


#: Kind of event → how it is shown. The others are for programs, or told at the end.
_SHOWN: Final[dict[str, Callable[[Live, str, dict[str, Any]], None]]] = {
    "text_delta": Live._delta,
    "thinking_delta": Live._delta,
    "text_complete": Live._whole,
    "thinking_complete": Live._whole,
    "tool_start": Live._call,
    "tool_result": Live._result,
    "provider_retry": Live._retry,
    "plan_submitted": Live._plan,
}

_STREAMED: Final = ("text", "thinking")
#: The same for events of a journal.
_JOURNALLED: Final[dict[str, Callable[[Live, str, dict[str, Any]], None]]] = {
    "user/message": Live._user,
    "assistant/message": Live._message,
    "tool/call": Live._called,
    "tool/result": Live._result,
    "session/note": Live._note,
    "plan/proposed": Live._plan,
}
