"""A session on the screen: what a host tells is shown in the journal's order, and nobody takes what runs for idle."""

import asyncio
import io
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from maka.cli.console import Console
from maka.cli.live import Live
from maka.cli.watching import Watching
from maka.runtime.host import Client, connect
from support.command import COMMAND
from support.fake_host import FakeHost, play

Json = dict[str, Any]
AT: Json = {"turn_id": "t", "run_id": "r"}
TURN = {"session_id": "s", **AT, "status": "running", "revision": 1}


def snapshot(turn: Json | None = None, steering: tuple[Json, ...] = ()) -> Json:
    return {
        "projection_revision": 1,
        "position": 10,
        "root_turn": turn,
        "queue": {"revision": 0, "steering": list(steering), "followup": []},
        "interactions": {"pending": []},
    }


def said(text: str) -> list[Json]:
    return [{"kind": "text", "text": text}]


class Screen:
    """One who watches what a played host tells."""

    watch: Watching

    def __init__(self, host: FakeHost) -> None:
        self._host = host
        self._seq = 10
        self._bytes = io.BytesIO()
        self._out = io.TextIOWrapper(self._bytes, encoding="utf-8")
        self._console = Console(self._out, io.TextIOWrapper(io.BytesIO()), {})

    def watching(self, client: Client) -> Watching:
        return Watching(client, "s", self._console, Live(self._console, gap=False), ask=lambda form: None)

    @property
    def shown(self) -> str:
        self._out.flush()
        return self._bytes.getvalue().decode()

    @property
    def newest(self) -> Json:
        """The page of the history that has the newest event alone."""
        return {"events": [{"seq": self._seq, "ts": 0, "type": "session/note", "data": {}}], "next": None}

    def made(self, type_: str, **data: Any) -> Json:
        """An event that nobody was told yet."""
        self._seq += 1
        return {"seq": self._seq, "ts": 0, "type": type_, "data": {**AT, **data}}

    def tell(self, event: Json) -> None:
        [watched] = self._host.watched
        self._host.push(watched, "event", event=event)

    def event(self, type_: str, **data: Any) -> None:
        self.tell(self.made(type_, **data))

    def text(self, message: str, text: str, offset: int = 0) -> None:
        delta = {"kind": "text", **AT, "message_id": message, "index": 0, "offset": offset, "text": text}
        self._host.push(next(iter(self._host.watched)), "delta", delta=delta)

    async def until(self, text: str) -> None:
        while text not in self.shown:
            await asyncio.sleep(0.005)


def watched(root: Path, then: Callable[[Screen], Awaitable[None]], shot: Json) -> None:
    async def scenario() -> None:
        async with FakeHost(root) as host:
            host.snapshot = shot
            screen = Screen(host)
            host.answers["turn.query"] = lambda _: TURN
            host.answers["session.history"] = lambda _: screen.newest
            async with connect(root) as client, screen.watching(client) as screen.watch:
                await then(screen)

    play(scenario())


CALL = {"kind": "tool_call", "call_id": "c", "name": "look", "arguments": "{}"}
RESULT = {"call_id": "c", "state": "output-available", "content": [{"kind": "text", "text": "blue"}], "is_error": False}


def test_text_stands_behind_all_events_that_there_were_when_it_was_heard(tmp_path: Path) -> None:
    async def then(screen: Screen) -> None:
        screen.event("step/start", step=1)
        screen.text("m1", "One.")
        await screen.until("One.")
        # The host has these, and tells them once the disk has them too.
        behind = [
            screen.made("assistant/message", step=1, message_id="m1", content=[*said("One."), CALL]),
            screen.made("tool/call", step=1, call_id="c", name="look"),
            screen.made("tool/result", step=1, **RESULT),
            screen.made("step/start", step=2),
        ]
        screen.text("m2", "Two")
        for event in behind:
            screen.tell(event)
        # It streams: no message is told yet.
        await screen.until("Two")
        assert screen.shown.index("One.") < screen.shown.index("blue") < screen.shown.index("Two")
        screen.text("m2", ", three", offset=3)
        await screen.until("Two, three")
        screen.event("assistant/message", step=2, message_id="m2", content=said("Two, three."))
        await screen.until("Two, three.\n")
        assert screen.shown.count("Two") == screen.shown.count("One.") == 1

    watched(tmp_path, then, snapshot(TURN))


def test_text_that_waits_is_shown_once_by_its_message(tmp_path: Path) -> None:
    async def then(screen: Screen) -> None:
        message = screen.made("assistant/message", step=1, message_id="m1", content=said("One."))
        screen.text("m1", "On")
        screen.tell(message)
        await screen.until("One.\n")
        end = screen.made("turn/end", reason={"kind": "failed"})
        screen.text("m2", "Lost")
        screen.tell(end)
        await screen.watch.until(lambda: screen.watch.idle)
        screen.event("session/note", kind="retry", text="-")
        assert screen.shown == "One.\n"

    watched(tmp_path, then, snapshot(TURN))


def test_a_turn_that_is_admitted_runs_before_a_projection_says_so(tmp_path: Path) -> None:
    async def then(screen: Screen) -> None:
        watch = screen.watch
        watch.waiting.add("m")
        screen.event("turn/admitted", message_id="m")
        screen.event("user/message", message_id="m", content=[], source={"kind": "user"})
        await watch.until(lambda: not watch.waiting)
        ran = not watch.idle
        screen.event("turn/end", reason={"kind": "completed"})
        await watch.until(lambda: watch.idle)
        assert ran

    watched(tmp_path, then, snapshot())


def test_lines_of_a_pipe_steer_nothing_and_wait_for_the_end_of_what_came_before(maka_: object, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path / "root") as host:
            host.snapshot = snapshot()
            host.answers["session.history"] = lambda _: {"events": [], "next": None}
            host.answers["session.create"] = lambda asked: {"session_id": asked["session_id"], "revision": 0}
            host.answers["turn.message.submit"] = lambda _: {"disposition": "followup", "revision": 11}
            chat = await asyncio.create_subprocess_exec(*COMMAND, "chat", stdin=PIPE, stderr=PIPE)
            talking = asyncio.ensure_future(chat.communicate(b"One\nTwo\n"))
            screen = Screen(host)
            for number, text in enumerate(("One", "Two"), 1):
                await host.until(lambda number=number: len(host.of("turn.message.submit")) == number)  # type: ignore[misc]
                sent = host.of("turn.message.submit")[-1]
                assert (sent["content"], sent["placement"]) == (text, "next_turn")
                turn = {"turn_id": text, "run_id": text, "message_id": sent["message_id"]}
                screen.event("turn/admitted", **turn)
                screen.event("user/message", **turn, content=said(text), source={"kind": "user"})
                # Whatever it has asked meanwhile is no line of the pipe.
                await asyncio.sleep(0.05)
                assert len(host.of("turn.message.submit")) == number
                screen.event("turn/end", **turn, reason={"kind": "completed"})
            await talking
            assert chat.returncode == 0

    play(scenario())


def test_of_a_turn_that_a_waiting_message_begins_all_is_shown(tmp_path: Path) -> None:
    async def then(screen: Screen) -> None:
        watch = screen.watch
        watch.turns = {"another"}
        watch.waiting.add("m")
        screen.event("turn/admitted", message_id="m")
        screen.event("assistant/message", step=1, message_id="m1", content=[{"kind": "text", "text": "One."}])
        screen.event("turn/end", reason={"kind": "completed"})
        await watch.until(lambda: "t" in watch.ended)
        assert "One." in screen.shown

    watched(tmp_path, then, snapshot())
