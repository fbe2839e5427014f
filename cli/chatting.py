"""A conversation in a terminal, through a host: what is typed is sent, or steers the turn that runs, or answers it."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs

from ..runtime.host import HostError
from ..runtime.ids import new_id
from . import conversation, exits
from .console import Console
from .live import Live
from .render import words
from .running import ARCHIVED, archived
from .text import line
from .typed import Typed
from .watching import Watching

if TYPE_CHECKING:
    from ..runtime.host import Client

Json = dict[str, Any]

#: Messages of the session that are shown before the first prompt.
_SHOWN: Final = 6
_PROMPT: Final = "› "
_HELP: Final = (
    "a line is sent to the session; while a turn runs it is told to it between two of its steps",
    "/queue   what waits to be told, or for a turn of its own",
    "/stop    stops the turn that runs, as Ctrl-C does",
    "/quit    leaves; what runs goes on in the host. So does Ctrl-D, and Ctrl-C where nothing runs",
    "//TEXT   sends /TEXT",
)
_ROLES: Final = {"user/message": "user", "assistant/message": "assistant"}
#: What becomes of a message that begins no turn.
_WAITS: Final = {
    "steering": "the turn that runs is told this between two of its steps",
    "followup": "this waits for a turn of its own",
}
_UNFINISHED: Final = {
    "failed": "the turn has failed",
    "aborted": "the turn was stopped",
    "interrupted": "the turn was cut off",
    "blocked": "the turn was blocked",
    "max_tokens": "the answer is as long as it may be; a message goes on",
    "step_limit": "the turn met its limit of steps; a message goes on",
}


@attrs.define
class Chat:
    """One conversation, whatever becomes of the connections that it is held over."""

    session_id: str
    console: Console
    typed: Typed
    #: Of a session that is to be made; None: it is there.
    settings: Json | None
    #: The session as commands are to name it.
    words: str
    #: Ids of the messages that were typed here.
    mine: set[str] = attrs.Factory(set)
    _greeted: bool = False
    #: What was prompted for last; and whether something typed is being dealt with, so that nothing is due.
    _prompted: str | None = None
    _taking: bool = False
    _told: set[str] = attrs.Factory(set)
    #: The message whose host was lost before it took it: it is the next one's, by the same id.
    _unsent: tuple[str, str] | None = None
    #: The number of the newest event that queued something from here.
    _queued: int = 0

    async def held(self, client: "Client") -> int:
        """Goes on until somebody leaves; the exit code."""
        if self.settings is not None:
            await client.create_session(self.session_id, **self.settings)
        async with Watching(
            client,
            self.session_id,
            self.console,
            Live(self.console, mine=self.mine),
            ask=lambda form: self.console.write(form.lines(self.console.paint)),
            changed=self._look,
        ) as watch:
            if not self._greeted:
                if watch.snapshot.get("session", {}).get("archived"):
                    raise archived(self.session_id, self.words)
                self._told |= set(watch.ended)
                await self._greet(watch)
            self._taking = self._unsent is not None
            self._prompt(watch)
            return await self._until_left(watch)

    async def _until_left(self, watch: Watching) -> int:
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._read(watch))]
        tasks[0].add_done_callback(lambda _: watch.wake())
        left: list[int] = []

        def leave(code: int) -> None:
            left.append(code)
            watch.wake()

        def interrupt() -> None:
            if watch.current is None:
                leave(exits.DONE)
            else:
                tasks.append(loop.create_task(self._stopped(watch)))

        try:
            with _taken({signal.SIGINT: interrupt, signal.SIGTERM: lambda: leave(exits.TERMINATED)}):
                await watch.until(lambda: bool(left) or tasks[0].done())
            if not left:
                tasks[0].result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._prompted is not None and self.typed.terminal:
                self.console.put("\n")
        if watch.current is not None:
            self.console.say("the turn goes on in the host", "dim")
        return left[0] if left else exits.DONE

    async def _read(self, watch: Watching) -> None:
        """Line by line, until the last. Of a pipe the next is taken once what came of the one before is over."""
        if self._unsent is not None:
            await self._guarded(watch, self._submit(watch, *self._unsent))
        while True:
            if not self.typed.terminal:
                if watch.paused:
                    self.console.say("a turn was handed over; the next line is said once that is finished", "dim")
                await watch.until(lambda: (watch.idle and not watch.paused) or watch.form is not None)
            typed = await self.typed.line()
            if typed is None or typed.strip() == "/quit":
                return
            await self._guarded(watch, self._take(watch, typed.strip()))

    async def _guarded(self, watch: Watching, taking: Awaitable[None]) -> None:
        self._prompted, self._taking = None, True
        try:
            await taking
        except HostError as error:
            self.console.say(str(archived(self.session_id, self.words) if error.code == ARCHIVED else error), "red")
        self._taking = False
        self._prompt(watch)

    async def _take(self, watch: Watching, typed: str) -> None:
        if typed.startswith("/") and not typed.startswith("//"):
            command = _COMMANDS.get(typed)
            if command is None:
                self.console.say(f"there is no {typed.split()[0]}; /help lists what there is", "yellow")
            else:
                await command(self, watch)
        elif watch.form is not None:
            await watch.answer(typed)
        elif typed:
            await self._send(watch, typed.removeprefix("/") if typed.startswith("//") else typed)

    async def _send(self, watch: Watching, text: str) -> None:
        self._unsent = (message_id := new_id(), text)
        self.mine.add(message_id)
        await self._submit(watch, message_id, text)

    async def _submit(self, watch: Watching, message_id: str, text: str) -> None:
        watch.waiting.add(message_id)
        try:
            submitted = await watch.client.submit_message(self.session_id, text, message_id, self._placement)
        except HostError:
            watch.waiting.discard(message_id)
            self._unsent = None
            raise
        self._unsent = None
        if submitted["disposition"] == "turn_started":
            watch.begun({"turn_id": submitted["turn_id"], "run_id": submitted["run_id"], "status": "running"})
        else:
            self._queued = max(self._queued, submitted["revision"])
            self.console.say(_WAITS[submitted["disposition"]], "dim")

    @property
    def _placement(self) -> Literal["current_turn", "next_turn"]:
        """A line of a pipe steers nothing, whatever has become of the turn before it."""
        return "current_turn" if self.typed.terminal else "next_turn"

    async def _queue(self, watch: Watching) -> None:
        # What was said last has to be in it.
        await watch.until(lambda: bool(watch.snapshot["queue"]["revision"] >= self._queued))
        queue = watch.snapshot["queue"]
        waiting = [(kind, entry) for kind in ("steering", "followup") for entry in queue[kind]]
        for kind, entry in waiting:
            self.console.write([f"  {kind:<9} {line(words(entry['content']), 100)}"])
        if not waiting:
            self.console.say("nothing waits", "dim")

    async def _stopped(self, watch: Watching) -> None:
        if watch.current is None:
            self.console.say("nothing runs", "dim")
        else:
            await watch.stop(watch.current["turn_id"])

    async def _helped(self, watch: Watching) -> None:
        self.console.write([f"  {row}" for row in _HELP])

    # ------------------------------------------------------------ the screen

    async def _greet(self, watch: Watching) -> None:
        said: list[Json] = []
        async with aclosing(watch.client.walk_history(self.session_id)) as events:
            async for event in events:
                if (role := _ROLES.get(event["type"])) is not None:
                    said.append({"role": role, "content": event["data"]["content"]})
                if len(said) >= _SHOWN:
                    break
        self.console.write(conversation.messages(reversed(said), self.console.paint))
        self.console.say(f"session {self.session_id}; /help says what can be typed", "dim")
        self._greeted = True

    def _look(self, watch: Watching) -> None:
        """Behind each thing that the host has told."""
        if not self._greeted:
            return
        for turn_id in [*watch.ended]:
            if turn_id not in self._told:
                self._told.add(turn_id)
                self._end(watch.ended[turn_id])
        self._prompt(watch)

    def _end(self, reason: Json) -> None:
        said = _UNFINISHED.get(reason["kind"])
        if said is not None:
            more = reason.get("message") or reason.get("failure_class") or reason.get("source")
            self.console.say(said + (f" ({line(more, 300)})" if more else ""), "yellow")

    def _prompt(self, watch: Watching) -> None:
        """On a terminal, once whenever something is to be typed."""
        if self._taking:
            return
        asked = watch.form.interaction_id if watch.form is not None else "" if watch.idle else None
        if asked is not None and asked != self._prompted and self.typed.terminal:
            self.console.put(_PROMPT)
        self._prompted = asked


_COMMANDS: Final[dict[str, Callable[[Chat, Watching], Awaitable[None]]]] = {
    "/queue": Chat._queue,
    "/stop": Chat._stopped,
    "/help": Chat._helped,
}


@contextmanager
def _taken(handlers: dict[signal.Signals, Callable[[], None]]) -> Iterator[None]:
    """Signals go to these, until the block is left."""
    loop = asyncio.get_running_loop()
    taken = []
    # Where no signal reaches this thread there is none to take.
    with suppress(RuntimeError, NotImplementedError):
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
            taken.append(number)
    try:
        yield
    finally:
        for number in taken:
            loop.remove_signal_handler(number)
