"""A journal in memory and a loop on it, for tests of the runtime that need no file."""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from maka.journal.codec import check_shape, clean
from maka.journal.errors import JournalError
from maka.journal.events import Draft, Event
from maka.journal.history import Replay
from maka.journal.state import State
from maka.runtime.conversation import Conversation
from maka.runtime.loop import Loop, Options
from maka.runtime.record import SessionEvent
from maka.runtime.scripted import ScriptedModel
from maka.runtime.tools import ToolContext, ToolOutput


class MemoryJournal:
    """Appends to a list; ``synced`` events of it are durable. ``trace`` tells appends, syncs and what a test adds.

    ``fail(journal)`` is asked before each sync and may return the error that it ends with; what was not synced is then
    rolled back, as the file journal does it.
    """

    def __init__(self, fail: Callable[["MemoryJournal"], JournalError | None] = lambda journal: None) -> None:
        self.events: list[Event] = []
        self.state = State()
        self.synced = 0
        self.syncs = 0
        self.trace: list[str] = []
        self._fail = fail
        self._running: asyncio.Future[None] | None = None

    def append(self, draft: Draft) -> Event:
        return self._add(draft, 0)

    def append_batch(self, drafts: Sequence[Draft]) -> list[Event]:
        return [self._add(draft, len(drafts) - 1 - index) for index, draft in enumerate(drafts)]

    def made_good(self, error: JournalError) -> None:
        self.trace.append("made good")

    def _add(self, draft: Draft, more: int) -> Event:
        draft = clean(draft)
        check_shape(draft)
        event = Event(len(self.events), 0, draft.type, draft.data, "", draft.ignorable, more)
        self.events.append(event)
        self.state.apply(event)
        self.trace.append(draft.type)
        return event

    async def aflush(self) -> None:
        upto = len(self.events)
        await asyncio.sleep(0)
        if self.synced >= upto:
            return
        self.syncs += 1
        if (error := self._fail(self)) is not None:
            self.trace.append("failed sync")
            del self.events[self.synced :]
            self.state = State()
            for event in self.events:
                self.state.apply(event)
            raise error
        self.synced = max(self.synced, upto)
        self.trace.append("sync")

    def types(self) -> list[str]:
        return [event.type for event in self.events if event.type != "session/header"]

    def of(self, type_: str) -> list[dict[str, Any]]:
        return [event.data for event in self.events if event.type == type_]


class ListedMessages:
    """A history that only remembers what it was given."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def apply(self, event: Event) -> None:
        self.events.append(event)

    def messages(self, run_id: str | None = None) -> list[dict[str, Any]]:
        return [
            {"role": event.type.partition("/")[0], "content": event.data["content"]}
            for event in self.events
            if event.type in ("user/message", "assistant/message", "tool/result")
        ]

    def replay(self, run_id: str) -> Replay:
        return Replay(self.messages(run_id), self.events[-1].seq if self.events else None)


class FakeTool:
    """A tool whose body is a function of its arguments and context."""

    description = "for tests"
    parameters: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "additionalProperties": False,
    }

    def __init__(
        self,
        name: str,
        body: Callable[[dict[str, Any], ToolContext], Any] = lambda arguments, context: ToolOutput.of("done"),
        *,
        recovery: Any = "never",
        parallel_safe: bool = True,
        timeout: float | None = None,
    ) -> None:
        self.name = name
        self.recovery = recovery
        self.parallel_safe = parallel_safe
        self.timeout = timeout
        self.entered = 0
        self._body = body

    async def execute(self, arguments: dict[str, Any], context: ToolContext) -> ToolOutput:
        self.entered += 1
        result = self._body(arguments, context)
        output: ToolOutput = await result if asyncio.iscoroutine(result) else result
        return output


def header(session_id: str = "s1", cwd: str = "/") -> Draft:
    data = {
        "format": 1,
        "session_id": session_id,
        "created_by": {"name": "maka", "version": "0"},
        "cwd": cwd,
        "backend": "loop",
        "model": "scripted-1",
        "permission_mode": "ask",
        "tool_boundary": "t1_after_preflight_v1",
    }
    return Draft("session/header", data)


class Bench:
    """A loop on a memory journal with ids that count, a clock that stands and sleeps that take no time."""

    def __init__(
        self,
        script: Iterable[Any],
        tools: Iterable[Any] = (),
        *,
        directory: Path = Path("/nonexistent"),
        fail: Callable[[MemoryJournal], JournalError | None] = lambda journal: None,
        options: Options | None = None,
        **settings: Any,
    ) -> None:
        self.journal = MemoryJournal(fail)
        self.conversation = Conversation([self.journal.append(header(cwd=str(directory)))], history=ListedMessages())
        self.journal.synced = 1
        self.model = ScriptedModel(script)
        self.told: list[SessionEvent] = []
        self.slept: list[float] = []
        ids = itertools.count(1)

        async def sleep(seconds: float) -> None:
            self.slept.append(seconds)

        self.loop = Loop(
            journal=self.journal,
            conversation=self.conversation,
            model=self.model,
            session_dir=directory,
            tools=tools,
            options=options or Options(live_text=False),
            publish=self._told,
            new_id=lambda: f"id{next(ids)}",
            now=lambda: 1_790_000_000_000,
            sleep=sleep,
            chance=lambda: 1.0,
            **settings,
        )

    def _told(self, event: SessionEvent) -> None:
        self.told.append(event)
        self.journal.trace.append(f"told {event.kind}")

    def kinds(self) -> list[str]:
        return [event.kind for event in self.told]
