"""A turn on a person's screen while it runs: text as it streams, calls and results in short."""

from collections.abc import Callable
from typing import Any, Final

from ..runtime.session_events import SessionEvent
from . import conversation
from .console import Console
from .text import line, paragraph


class Live:
    """Shows the events of a turn. ``close`` ends a line that stands open."""

    def __init__(self, console: Console) -> None:
        self._console = console
        #: The block that streams, and as much of its text as was shown.
        self._block: tuple[str, ...] | None = None
        self._shown = ""

    def begun(self, run_id: str, turn_id: str) -> None:
        """The run has begun: from now on there is one of this id."""
        self._console.write([f"{self._console.paint('goes on as', 'dim')}    run {line(run_id)}, turn {line(turn_id)}"])

    def tell(self, event: SessionEvent) -> None:
        show = _SHOWN.get(event.kind)
        if show is not None:
            show(self, event.kind.partition("_")[0], event.data)

    def close(self) -> None:
        if self._block is not None and not self._shown.endswith("\n"):
            self._console.put("\n")
        self._block, self._shown = None, ""

    def _delta(self, kind: str, data: dict[str, Any]) -> None:
        block = (kind, str(data["message_id"]), str(data.get("index", 0)))
        if block != self._block:
            self._begin(block)
        self._put(kind, data["text"])

    def _whole(self, kind: str, data: dict[str, Any]) -> None:
        """The text of a block is complete: what was not shown of it is, or all where pieces were lost."""
        block = (kind, str(data["message_id"]))
        if self._block is None or self._block[:2] != block or not data["text"].startswith(self._shown):
            self._begin(block)
        self._put(kind, data["text"][len(self._shown) :])
        self.close()

    def _begin(self, block: tuple[str, ...]) -> None:
        self.close()
        self._console.put("\n")
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

    def _lines(self, lines: list[str]) -> None:
        self.close()
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
