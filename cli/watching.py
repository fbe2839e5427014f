"""A session of a host on the screen: what it tells is shown, whoever it asks is asked, how its turns end is kept."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ..runtime.host import HostError, HostUnreachable, connect, ensure_host
from ..runtime.host.endpoint import read_registration
from ..runtime.host.ownership import owner
from . import hosting
from .answering import Form, Misfit
from .console import Console
from .live import Live

if TYPE_CHECKING:
    from ..runtime.host import Client, Frame

Json = dict[str, Any]
T = TypeVar("T")

#: Seconds without clients and turns after which a host ends that was started for one.
IDLE: Final = 600.0
#: How often a host is started again before whoever lost it is told so.
_STARTS: Final = 3
#: Statuses of a turn that has its end, and of one that nobody has to let go on.
_ENDED: Final = ("completed", "failed", "cancelled")
_RUNS: Final = ("admitted", "created", "running", "waiting_for_user")


async def with_host(
    root: str | None, app: str | None, work: "Callable[[Client], Awaitable[T]]", *, start: bool = True
) -> T:
    """What ``work`` gives over the host of the root, which is started where none runs, if ``start``.

    ``work`` begins again where its host has died and nobody has started another; so it asks by ids of its own.
    """
    place = hosting.place(root)
    met = False
    for left in reversed(range(_STARTS)):
        try:
            async with connect(place, surface="cli") as client:
                met = True
                return await work(client)
        except HostUnreachable:
            # A host that has ended in order takes its registration away: somebody wanted it to end.
            if not start or not left or (met and read_registration(place) is None):
                raise
        if owner(place) is None:
            hosting.refuse_without_app(app, root)
        await ensure_host(place, app=app, idle=IDLE)
    raise AssertionError("the last loss is raised")


class Watching:
    """``async with Watching(…)``: entered once the session's snapshot is there; raises HostError, HostUnreachable."""

    def __init__(
        self,
        client: "Client",
        session_id: str,
        console: Console,
        live: Live | None,
        *,
        turns: set[str] | None = None,
        ask: Callable[[Form], None],
        changed: "Callable[[Watching], None]" = lambda watch: None,
    ) -> None:
        """``turns``: of these only is anything shown. ``ask`` shows a person what waits to be answered; ``changed`` is
        called behind whatever the host tells.
        """
        self.client, self.session_id, self.console, self.turns = client, session_id, console, turns
        self._live, self._asked, self._tell = live, ask, changed
        self.snapshot: Json = {}
        #: The turn that runs, and how turns have ended: their ends' reasons.
        self.current: Json | None = None
        self.ended: dict[str, Json] = {}
        #: Message → the turn that it began; those that were taken back; turn → what it said last.
        self.became: dict[str, str] = {}
        #: Messages of whoever watches that no turn has taken yet.
        self.waiting: set[str] = set()
        self.retracted: set[str] = set()
        self.text: dict[str, str] = {}
        #: Turn → its newest run.
        self.runs: dict[str, str] = {}
        #: What waits to be answered here.
        self.form: Form | None = None
        self._answered: set[str] = set()
        self._changed = asyncio.Event()
        self._follower: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Watching":
        self._follower = asyncio.get_running_loop().create_task(self._follow(), name="maka-watching")
        try:
            await self.until(lambda: bool(self.snapshot))
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._follower is not None
        self._follower.cancel()
        await asyncio.gather(self._follower, return_exceptions=True)
        if self._live is not None:
            self._live.close()

    @property
    def idle(self) -> bool:
        """Does nothing run, and is nothing about to?"""
        return self.current is None and not self.waiting and not self.snapshot["queue"]["followup"]

    async def until(self, holds: Callable[[], bool]) -> None:
        """Waits for that. Raises what ends the watching."""
        assert self._follower is not None
        while not holds():
            change = asyncio.get_running_loop().create_task(self._changed.wait())
            try:
                await asyncio.wait({change, self._follower}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                change.cancel()
            if self._follower.done() and not holds():
                self._follower.result()
                raise HostUnreachable("the host tells nothing more of the session; try again")

    def wake(self) -> None:
        """Whoever waits for something looks again."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def stop(self, turn_id: str) -> bool:
        """Stops a turn that has not ended, and says whether there was one. What waits in the queue stays there."""
        try:
            turn = await self.client.query_turn(self.session_id, turn_id)
        except HostError as error:
            if error.code != "not_found":
                raise
            return False
        if self.begun(turn):
            # Between the two it may have ended.
            with suppress(HostError):
                await self.client.stop_turn(self.session_id, turn_id, turn["run_id"])
        return True

    def begun(self, turn: Json) -> bool:
        """A turn as a host describes it is one that this session has. Does it run?"""
        turn_id = turn["turn_id"]
        self.runs[turn_id] = turn["run_id"]
        if turn["status"] in _ENDED:
            self.ended.setdefault(turn_id, turn.get("reason") or {"kind": turn["status"]})
        if turn_id not in self.ended and turn["status"] in _RUNS:
            self.current = turn
        elif self.current is not None and self.current["turn_id"] == turn_id:
            self.current = None
        self.wake()
        return turn_id not in self.ended

    async def answer(self, typed: str) -> None:
        """Takes what was typed as an answer, or part of one, to the form that is there."""
        form = self.form
        assert form is not None
        try:
            answer = form.take(typed)
        except Misfit as misfit:
            self.console.say(str(misfit), "yellow")
            return
        if answer is None:
            self._ask(form)
            return
        self.form = None
        self._answered.add(form.interaction_id)
        try:
            await self.client.answer_interaction(self.session_id, form.interaction_id, answer)
        except HostError as error:
            if error.code != "already_resolved":
                raise
            self.console.say("that was answered or given up meanwhile", "yellow")

    def _ask(self, form: Form) -> None:
        if self._live is not None:
            self._live.close()
        self._asked(form)

    # ------------------------------------------------------------ what the host tells

    async def _follow(self) -> None:
        try:
            async for frame in self.client.follow(self.session_id):
                await self._take(frame)
                self.wake()
                self._tell(self)
        finally:
            self.wake()

    async def _take(self, frame: "Frame") -> None:
        if frame.snapshot is not None:
            self._look(frame.snapshot)
        elif frame.delta is not None and self._shown(frame.delta) and self._live is not None:
            self._live.piece(frame.delta)
        elif frame.event is not None:
            event = await self.client.whole_event(self.session_id, frame.event)
            self._happened(event["type"], event["data"])

    def _look(self, snapshot: Json) -> None:
        self.snapshot = snapshot
        turn = snapshot.get("root_turn")
        if turn is not None:
            self.begun(turn)
        pending = [row for row in snapshot["interactions"]["pending"] if self._shown(row)]
        if self.form is not None and all(row["interaction_id"] != self.form.interaction_id for row in pending):
            self.form = None
        waiting = [row for row in pending if row["interaction_id"] not in self._answered]
        if waiting and self.form is None:
            self.form = Form(waiting[0])
            self._ask(self.form)

    def _happened(self, type_: str, data: Json) -> None:
        if type_ == "turn/admitted" and data.get("message_id") is not None:
            self.became[data["message_id"]] = data["turn_id"]
        elif type_ in ("message/retracted", "turn/stop_requested"):
            self.retracted |= set(data.get("message_ids" if type_ == "message/retracted" else "retract") or ())
            self.waiting -= self.retracted
        elif type_ == "user/message":
            self.waiting.discard(data["message_id"])
        elif type_ == "assistant/message":
            self.text[data["turn_id"]] = text_of(data["content"])
        if self._shown(data) and self._live is not None:
            self._live.event(type_, data)
        if type_ == "turn/end":
            self.begun({key: data[key] for key in ("turn_id", "run_id", "reason")} | {"status": "completed"})

    def _shown(self, data: Json) -> bool:
        return self.turns is None or data.get("turn_id") in self.turns


def text_of(content: list[Json]) -> str:
    """The text of a message's blocks."""
    return "".join(block["text"] for block in content if block.get("kind") == "text")
