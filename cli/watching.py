"""A session of a host on the screen: what it tells is shown, whoever it asks is asked, how its turns end is kept."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ..runtime.host import HostError, HostUnreachable
from .answering import Form, Misfit
from .console import Console
from .live import Live

if TYPE_CHECKING:
    from ..runtime.host import Client, Frame

Json = dict[str, Any]

#: Statuses of a turn that has its end, and of one that nobody has to let go on.
ENDED: Final = ("completed", "failed", "cancelled")
_RUNS: Final = ("admitted", "created", "running", "waiting_for_user")


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
        met: "Callable[[Watching], Awaitable[None]] | None" = None,
        since: int | None = None,
        ended: dict[str, Json] | None = None,
    ) -> None:
        """``turns``: of these only is anything shown. ``ask`` shows a person what waits to be answered; ``changed`` is
        called behind whatever the host tells, and ``met`` once, before anything of it is shown. ``since``: the number
        of the newest event that was shown before, and ``ended`` how turns had ended until then.
        """
        self.client, self.session_id, self.console, self.turns = client, session_id, console, turns
        self._live, self._asked, self._tell, self._met = live, ask, changed, met
        self._since = since
        #: The number of the newest event that was shown, or that the session had when it was met.
        self.position = since or 0
        self.snapshot: Json = {}
        #: The turn that runs, and how turns have ended: their ends' reasons.
        self.current: Json | None = None
        self.ended: dict[str, Json] = {} if ended is None else ended
        #: Message → the turn that it began; those that were taken back; turn → what it said last.
        self.became: dict[str, str] = {}
        #: Messages of whoever watches that no turn has taken yet.
        self.waiting: set[str] = set()
        #: Messages that a turn has taken.
        self.taken: set[str] = set()
        self.retracted: set[str] = set()
        self.text: dict[str, str] = {}
        #: Turn → its newest run.
        self.runs: dict[str, str] = {}
        #: What waits to be answered here.
        self.form: Form | None = None
        self._answered: set[str] = set()
        #: The number of the newest event that was shown. Message that streams → the event behind which its text
        #: stands; and text that is not due yet.
        self._seen = 0
        self._behind: dict[str, int] = {}
        self._held: list[Json] = []
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
        return (
            self.current is None
            and not self.waiting
            and not self.snapshot["queue"]["followup"]
            and not self._owes_an_end
        )

    @property
    def _owes_an_end(self) -> bool:
        """Is the end of a turn still to be told?"""
        turn = self.snapshot["root_turn"]
        return turn is not None and turn["status"] in ENDED and turn["turn_id"] not in self.ended

    @property
    def paused(self) -> bool:
        """Was the newest turn handed over, and is it not finished yet?"""
        return (self.snapshot["root_turn"] or {}).get("status") == "paused"

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
        if turn["status"] in ENDED:
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

    def ask_again(self) -> None:
        """Whoever was asked can answer here no more."""
        if self.form is not None:
            self._ask(self.form)

    def _ask(self, form: Form) -> None:
        if self._live is not None:
            self._live.close()
        self._asked(form)

    # ------------------------------------------------------------ what the host tells

    async def _follow(self) -> None:
        try:
            async for frame in self.client.follow(self.session_id, self._since):
                await self._take(frame)
                self.wake()
                self._tell(self)
        finally:
            self.wake()

    async def _take(self, frame: "Frame") -> None:
        if frame.type == "opened":
            # All text is told again.
            self._held.clear()
        if frame.snapshot is not None:
            if not self.snapshot:
                self.snapshot = frame.snapshot
                if self._since is None:
                    self.position = frame.snapshot["position"]
                if self._met is not None:
                    await self._met(self)
                self._seen = max(self._seen, self.position)
            if frame.type == "projection":
                self._seen = max(self._seen, frame.snapshot["position"])
            self._look(frame.snapshot)
        elif frame.delta is not None:
            await self._heard(frame.delta)
        elif frame.event is not None:
            event = await self.client.whole_event(self.session_id, frame.event)
            self._happened(event["type"], event["data"])
            self.position = event["seq"]
            self._seen = max(self._seen, event["seq"])
        self._show_due()

    async def _heard(self, delta: Json) -> None:
        """Text is told at once, and events once the disk has them. So it stands behind all events that the host had
        when the first of its message was heard, and waits until they are shown.
        """
        if self._live is None or not self._shown(delta) or delta["turn_id"] in self.ended:
            return
        message_id = delta["message_id"]
        if message_id not in self._behind:
            self._behind[message_id] = await self._newest(delta["turn_id"])
        self._held.append(delta)

    async def _newest(self, turn_id: str) -> int:
        """The number of the newest event that the host tells of the session; 0 where it refuses to say."""
        with suppress(HostError):
            # How a turn stands is told once all is on the disk, and a history holds what is there.
            await self.client.query_turn(self.session_id, turn_id)
            page = await self.client.history(self.session_id, limit=1)
            return max((event["seq"] for event in page["events"]), default=0)
        return 0

    def _show_due(self) -> None:
        held, self._held = self._held, []
        for delta in held:
            if self._behind[delta["message_id"]] <= self._seen and self._live is not None:
                self._live.piece(delta)
            else:
                self._held.append(delta)

    def _look(self, snapshot: Json) -> None:
        self.snapshot = snapshot
        turn = snapshot.get("root_turn")
        # An end whose event is still to come is told by that.
        if turn is not None and not (turn["status"] in ENDED and snapshot["position"] > self.position):
            self.begun(turn)
        pending = [row for row in snapshot["interactions"]["pending"] if self._shown(row)]
        if self.form is not None and all(row["interaction_id"] != self.form.interaction_id for row in pending):
            self.form = None
        waiting = [row for row in pending if row["interaction_id"] not in self._answered]
        if waiting and self.form is None:
            self.form = Form(waiting[0])
            self._ask(self.form)

    def _happened(self, type_: str, data: Json) -> None:
        if type_ == "turn/admitted":
            self._admitted(data)
        elif type_ in ("message/retracted", "turn/stop_requested"):
            self.retracted |= set(data.get("message_ids" if type_ == "message/retracted" else "retract") or ())
            self.waiting -= self.retracted
        elif type_ == "user/message":
            self.waiting.discard(data["message_id"])
            self.taken.add(data["message_id"])
        elif type_ == "assistant/message":
            self.text[data["turn_id"]] = text_of(data["content"])
            self._forget(lambda delta: bool(delta["message_id"] == data["message_id"]))
        if self._shown(data) and self._live is not None:
            self._live.event(type_, data)
        if type_ == "turn/end":
            self._forget(lambda delta: bool(delta["turn_id"] == data["turn_id"]))
            self.begun({key: data[key] for key in ("turn_id", "run_id", "reason")} | {"status": "completed"})

    def _forget(self, of: Callable[[Json], bool]) -> None:
        """Text that waits and is told otherwise, or in no message."""
        self._held = [delta for delta in self._held if not of(delta)]

    def _admitted(self, data: Json) -> None:
        turn_id = data["turn_id"]
        if data.get("message_id") is not None:
            self.became[data["message_id"]] = turn_id
        # What it does may be told in the same breath.
        if self.turns is not None and data.get("message_id") in self.waiting:
            self.turns.add(turn_id)
        # Its message is told next, and perhaps no projection before that: nobody may take the session for idle.
        if self.current is None and turn_id not in self.ended:
            self.runs.setdefault(turn_id, data["run_id"])
            self.current = {"turn_id": turn_id, "run_id": data["run_id"], "status": "admitted"}

    def _shown(self, data: Json) -> bool:
        return self.turns is None or data.get("turn_id") in self.turns


def text_of(content: list[Json]) -> str:
    """The text of a message's blocks."""
    return "".join(block["text"] for block in content if block.get("kind") == "text")
