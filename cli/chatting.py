"""A conversation in a terminal, through a host: what is typed is sent, or steers the turn that runs, or answers it."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import aclosing, contextmanager, suppress
from shlex import quote
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs

from ..runtime.errors import AppError, RuntimeFailure
from ..runtime.host import HostError, HostStartFailed, HostUnreachable, SubscriptionClosed
from ..runtime.ids import new_id
from . import conversation, exits
from .console import Console
from .live import Live
from .reaching import Hosts
from .render import words
from .running import ARCHIVED, archived
from .text import line
from .typed import QUIT, Typed
from .watching import ENDED, Watching

if TYPE_CHECKING:
    from ..runtime.host import Client

Json = dict[str, Any]

#: Seconds in which what was typed before may still be sent, or a turn be stopped, before more is said.
_GRACE: Final = 0.7
#: Seconds in which what is left behind may end by itself.
_LEAVING: Final = 0.2
#: Codes of a host that does not have the session, or one that is shorter than what was shown of it.
_ANOTHER: Final = "operation_conflict"
_GONE: Final = ("not_found", _ANOTHER)
_REMOVED: Final = "session_removed"
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
    #: Of a session that is to be made; None: it is there, and ``patch`` is set of it first.
    settings: Json | None
    #: The session as commands are to name it.
    words: str
    patch: Json = attrs.Factory(dict)
    #: Ids of the messages that were typed here.
    mine: set[str] = attrs.Factory(set)
    _patch_id: str = attrs.Factory(new_id)
    _greeted: bool = False
    #: What was prompted for last; and whether something typed is being dealt with, so that nothing is due.
    _prompted: str | None = None
    _taking: bool = False
    _told: set[str] = attrs.Factory(set)
    #: The message whose host was lost before it took it: it is the next one's, by the same id.
    _unsent: tuple[str, str] | None = None
    #: The number of the newest event that queued something from here; and what waits of that.
    _queued: int = 0
    _waits: dict[str, str] = attrs.Factory(dict)
    #: The session as it is told now, and what of it was seen: the number of an event.
    _watch: Watching | None = None
    _since: int | None = None
    _ended: dict[str, Json] = attrs.Factory(dict)
    #: How it was left: does something run, and what does it ask?
    _runs: bool = False
    _asks: str | None = None
    _live: Live = attrs.Factory(lambda self: Live(self.console, mine=self.mine), takes_self=True)

    async def talked(self, hosts: Hosts) -> int:
        """Goes on until somebody leaves, over one host after the other; the exit code."""
        loop = asyncio.get_running_loop()
        leaving: asyncio.Future[int] = loop.create_future()
        stops: list[asyncio.Task[None]] = []

        def leave(code: int) -> None:
            if not leaving.done():
                leaving.set_result(code)

        def interrupt() -> None:
            if any(not stop.done() for stop in stops):
                self.console.say(f"left; {hosts.who} has been asked to stop the turn, and has not answered", "yellow")
                leave(exits.INTERRUPTED)
            elif self._watch is None or self._watch.current is None:
                leave(exits.DONE)
            else:
                stops.append(loop.create_task(self._stopped_aloud(self._watch, hosts)))

        holding = loop.create_task(self._holding(hosts))
        quitting = loop.create_task(self._quitting(holding, leave))
        try:
            with _taken({signal.SIGINT: interrupt, signal.SIGTERM: lambda: leave(exits.TERMINATED)}):
                await asyncio.wait({holding, leaving}, return_when=asyncio.FIRST_COMPLETED)
            code = leaving.result() if leaving.done() else holding.result()
        finally:
            tasks = [holding, quitting, *stops]
            for task in tasks:
                task.cancel()
            leaving.cancel()
            # A host that does not answer keeps nobody who has left.
            hangs = not await _over(tasks, _LEAVING)
            if self._prompted is not None and self.typed.terminal:
                self.console.put("\n")
        code = self._left(code, hosts)
        if hangs:
            os._exit(code)
        return code

    def _left(self, code: int, hosts: Hosts) -> int:
        self._not_known(hosts)
        if self._asks is not None:
            back = f"`maka chat --session {self.words}` in a terminal takes the answer"
            self.console.say(f"the turn waits for an answer: {self._asks}; {back}", "yellow")
            return exits.PENDING if code == exits.DONE and not self.typed.terminal else code
        if self._runs:
            self.console.say("the turn goes on in the host", "dim")
        return code

    async def _quitting(self, holding: "asyncio.Task[int]", leave: Callable[[int], None]) -> None:
        """Whoever leaves a terminal waits for no host."""
        if self.typed.terminal:
            await self.typed.until_quit()
            # What was typed before that is sent, where it can be.
            await asyncio.wait({holding}, timeout=_GRACE)
            leave(exits.DONE)

    async def _holding(self, hosts: Hosts) -> int:
        while True:
            try:
                async with hosts.reached() as client:
                    ended = await self._held(hosts, client)
                if ended is None:
                    return exits.DONE
                if not await self._between(hosts, ended):
                    return exits.DONE
            except (HostError, SubscriptionClosed) as error:
                if not self._gone(hosts, error):
                    raise
                return exits.USAGE
            except (HostUnreachable, HostStartFailed, AppError) as error:
                if not self._greeted or not self.typed.terminal:
                    raise
                await self._unreached(hosts, error)

    async def _between(self, hosts: Hosts, ended: bool) -> bool:
        """Waits until it makes sense to look for the next host; False: nobody has anything more to say."""
        sent = self._unsent is not None
        what = f"{hosts.who} has ended" if ended else f"{hosts.who} is gone"
        if not hosts.start:
            self.console.say(f"{what}; the next one is waited for: `maka host start` starts it", "yellow")
            return await self._another(hosts)
        if not ended or sent:
            self.console.say(f"{what}; the next one is started" + (", and told what was typed" * sent), "yellow")
            return True
        if self.typed.terminal:
            self.console.say(f"{what}; what is typed now goes to the next one", "yellow")
        await _first(self.typed.ready(), hosts.another())
        return not self.typed.quits

    async def _another(self, hosts: Hosts) -> bool:
        """The same where nobody may start one: what is typed meanwhile is not sent."""
        another = asyncio.get_running_loop().create_task(hosts.another())
        try:
            while not another.done():
                await _first(self.typed.ready(), _done(another))
                if self.typed.quits:
                    return False
                if self.typed.terminal and not another.done():
                    self._not_sent(self.typed.taken())
                else:
                    await another
        finally:
            another.cancel()
            await asyncio.gather(another, return_exceptions=True)
        return True

    def _not_known(self, hosts: Hosts) -> None:
        """Of what was sent to a host that has not said that it has it."""
        if self._unsent is None:
            return
        where = "" if hosts.root is None else f" --root {quote(hosts.root)}"
        ways = f"`maka host status{where}` shows whether one runs, and `maka session show {self.words}` what it has"
        self.console.say(f"it is not known whether a host has taken {line(self._unsent[1], 100)!r}; {ways}", "yellow")
        self._unsent = None

    def _gone(self, hosts: Hosts, error: HostError | SubscriptionClosed) -> bool:
        """Says it where the session is not there any more, or another is in its place; what was typed is not sent."""
        where = "" if hosts.root is None else f" --root {quote(hosts.root)}"
        if isinstance(error, SubscriptionClosed):
            gone = error.reason == _REMOVED
        else:
            gone = error.code in _GONE
        if not self._greeted or not gone:
            return False
        if isinstance(error, HostError) and error.code == _ANOTHER:
            what = f"lacks what was shown of it here; `maka session show {self.words}` shows what it holds"
        else:
            what = f"is gone: it was deleted or moved away; `maka session list{where}` shows those there are"
        self.console.say(f"session {self.session_id} {what}", "red")
        self._not_sent([*([] if self._unsent is None else [self._unsent[1]]), *self.typed.taken()])
        self._unsent = None
        return True

    def _not_sent(self, lines: list[str]) -> None:
        for text in lines:
            self.console.say(f"not sent: {line(text, 100)}", "yellow")

    async def _unreached(self, hosts: Hosts, error: RuntimeFailure) -> None:
        self.console.say(str(error), "red")
        self._not_known(hosts)
        self._not_sent(self.typed.taken())
        self.console.say("what is typed now is tried again", "yellow")
        await _first(self.typed.ready(), hosts.another())

    async def _held(self, hosts: Hosts, client: "Client") -> bool | None:
        """Over one host. None: somebody has left; else whether the host has ended in order."""
        if self.settings is not None:
            await client.create_session(self.session_id, **self.settings)
            # It is there from now on. If it is not any more nobody wants it back.
            self.settings = None
        if self.patch:
            await client.update_session(self.session_id, self.patch, self._patch_id)
            self.patch = {}
        async with Watching(
            client,
            self.session_id,
            self.console,
            self._live,
            since=self._since,
            ended=self._ended,
            ask=lambda form: self.console.write(form.lines(self.console.paint)),
            changed=self._look,
            met=self._greet,
        ) as watch:
            self._watch, self._taking = watch, self._unsent is not None
            self._prompt(watch)
            loop = asyncio.get_running_loop()
            reading, gone = loop.create_task(self._read(watch)), loop.create_task(hosts.gone(client))
            for task in (reading, gone):
                task.add_done_callback(lambda _: watch.wake())
            try:
                await watch.until(lambda: reading.done() or gone.done())
                if reading.done():
                    reading.result()
                    return None
                return gone.result()
            finally:
                for task in (reading, gone):
                    task.cancel()
                await asyncio.gather(reading, gone, return_exceptions=True)
                self._watch, self._since = None, watch.position
                if self._unsent is not None and self._unsent[0] in watch.taken:
                    self._unsent = None
                self._runs = watch.current is not None
                self._asks = None if watch.form is None else watch.form.summary()

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
            if typed is None or typed.strip() == QUIT:
                return
            if not self.typed.terminal and watch.form is not None and not watch.form.offers(typed):
                # Whoever wrote it did not know of the question.
                self.console.say(f"not sent, and no answer that is offered: {line(typed, 100)}", "yellow")
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
        # One that is sent again may have been taken before.
        if message_id not in watch.taken:
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
            self._waits[message_id] = text
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

    async def _stopped_aloud(self, watch: Watching, hosts: Hosts) -> None:
        """The same, and where the host does not do it at once that is said."""
        stopping = asyncio.get_running_loop().create_task(self._stopped(watch))
        try:
            if not (await asyncio.wait({stopping}, timeout=_GRACE))[0]:
                late = "it has not answered yet, and a second Ctrl-C leaves"
                self.console.say(f"asking {hosts.who} to stop the turn; {late}", "dim")
            await stopping
        except RuntimeFailure as error:
            self.console.say(str(error), "red")
        finally:
            stopping.cancel()
            await asyncio.gather(stopping, return_exceptions=True)

    async def _helped(self, watch: Watching) -> None:
        self.console.write([f"  {row}" for row in _HELP])

    # ------------------------------------------------------------ the screen

    async def _greet(self, watch: Watching) -> None:
        """What was said before anything else is shown."""
        if self._greeted:
            return
        if watch.snapshot.get("session", {}).get("archived"):
            raise archived(self.session_id, self.words)
        self.console.say(f"session {self.session_id}; /help says what can be typed", "dim")
        said: list[Json] = []
        left = _SHOWN
        async with aclosing(watch.client.walk_history(self.session_id)) as events:
            async for event in events:
                # What comes behind it is told as it comes.
                if event["seq"] > watch.position:
                    continue
                data = event["data"]
                if (role := _ROLES.get(event["type"])) is not None:
                    said.append({"role": role, "content": data["content"]})
                    self._live.known(data["content"])
                    left -= 1
                elif event["type"] == "tool/result":
                    said.append({"role": "tool", "content": [{"kind": "tool_result", **data}]})
                if not left:
                    break
        self.console.write(conversation.messages(reversed(said), self.console.paint))
        root = watch.snapshot.get("root_turn")
        if root is not None and root["status"] in ENDED:
            self._told.add(root["turn_id"])
        self._greeted = True

    def _look(self, watch: Watching) -> None:
        """Behind each thing that the host has told."""
        for turn_id in [*watch.ended]:
            if turn_id not in self._told:
                self._told.add(turn_id)
                self._end(watch.ended[turn_id])
        for message_id in [each for each in self._waits if each in watch.became or each not in watch.waiting]:
            text = self._waits.pop(message_id)
            if message_id in watch.became:
                self.console.say(f"a turn of its own begins for: {line(text, 100)}", "dim")
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


async def _over(tasks: "list[asyncio.Task[Any]]", seconds: float) -> bool:
    """Do all of them end in that time? What they raise is told elsewhere, or by nobody."""
    done, left = await asyncio.wait(tasks, timeout=seconds)
    await asyncio.gather(*done, return_exceptions=True)
    return not left


async def _done(task: "asyncio.Task[None]") -> None:
    await asyncio.wait({task})


async def _first(*waits: Coroutine[Any, Any, None]) -> None:
    """Returns once one of them does."""
    tasks = [asyncio.get_running_loop().create_task(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


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
