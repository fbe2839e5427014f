"""Leases over the queue: what a running turn is handed, what it gives back, and what is no longer to be had."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from maka.journal.events import Draft
from maka.runtime.backends.base import SendInput, SteeringLease
from maka.runtime.backends.scripted import Do, Emit, Tool
from maka.runtime.host.messages import QueuedMessages
from maka.runtime.journals import OpenSession
from maka.runtime.kernel.authority import RunIdentity
from support.in_host import InHost, in_process, passed
from support.lineages import Story
from support.memory_journals import MemoryJournal


class Desk:
    """A session that runs turn ``t1``. ``session`` is None while it is not open here."""

    def __init__(self) -> None:
        story = Story().start()

        async def at_once(_: MemoryJournal) -> None:
            pass

        self.journal = MemoryJournal("s1", story.events, at_once)
        self.session: OpenSession | None = OpenSession("s1", Path("/nonexistent"), self.journal)
        self._ids = 0
        self.messages = QueuedMessages(lambda _: self.session, self._new_id)
        self.owner = self.messages.bind_run(RunIdentity("s1", "t1", "r1"))

    def _new_id(self) -> str:
        self._ids += 1
        return f"l{self._ids}"

    def accept(self, message_id: str, turn_id: str | None = "t1", **more: Any) -> None:
        data = {"message_id": message_id, "placement": "current_turn", "digest": "0" * 64}
        data |= {"disposition": "followup"} if turn_id is None else {"disposition": "steering", "turn_id": turn_id}
        self.journal.append(Draft("message/accepted", {**data, "content": content(message_id), **more}))

    def say(self, message_id: str) -> None:
        data = {"message_id": message_id, "turn_id": "t1", "run_id": "r1", "content": content(message_id)}
        self.journal.append(Draft("user/message", {**data, "source": {"kind": "steering"}}))

    def pull(self) -> list[str]:
        return [lease.message_id for lease in self.owner.pull()]


def content(text: str) -> list[dict[str, Any]]:
    return [{"kind": "text", "text": text}]


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_what_steers_a_turn_is_leased_in_its_order(desk: Desk) -> None:
    desk.accept("m1", quotes=[{"text": "q"}], attachments=[{"name": "a"}])
    desk.accept("m2")
    assert desk.owner.pull() == [
        SteeringLease("l1", "m1", content("m1"), [{"text": "q"}], [{"name": "a"}]),
        SteeringLease("l2", "m2", content("m2"), None, None),
    ]
    assert list(desk.messages.leased("s1")) == ["m1", "m2"]


def test_what_is_for_another_turn_is_not_leased(desk: Desk) -> None:
    desk.accept("m1", turn_id=None)
    desk.accept("m2", turn_id="another")
    assert desk.pull() == []


def test_what_is_leased_is_not_leased_again(desk: Desk) -> None:
    desk.accept("m1")
    assert desk.pull() == ["m1"]
    desk.accept("m2")
    assert desk.pull() == ["m2"]
    assert desk.pull() == []


def test_what_is_given_back_is_leased_again(desk: Desk) -> None:
    desk.accept("m1")
    [lease] = desk.owner.pull()
    desk.owner.nack([lease.lease_id])
    assert list(desk.messages.leased("s1")) == []
    assert desk.pull() == ["m1"]


def test_what_was_taken_is_over(desk: Desk) -> None:
    desk.accept("m1")
    [lease] = desk.owner.pull()
    desk.say("m1")
    desk.owner.ack([lease.lease_id, "another"])
    assert list(desk.messages.leased("s1")) == []
    assert desk.pull() == []


def test_leases_end_with_their_run(desk: Desk) -> None:
    desk.accept("m1")
    desk.pull()
    desk.owner.release()
    assert desk.messages.leased("s1") == ()
    desk.owner = desk.messages.bind_run(RunIdentity("s1", "t1", "r1'"))
    assert desk.pull() == ["m1"]


def test_a_run_that_is_late_takes_nothing_of_the_next_one(desk: Desk) -> None:
    late = desk.owner
    desk.owner = desk.messages.bind_run(RunIdentity("s1", "t1", "r1'"))
    desk.accept("m1")
    desk.pull()
    late.release()
    assert list(desk.messages.leased("s1")) == ["m1"]


def test_a_session_that_is_not_open_has_nothing_to_lease(desk: Desk) -> None:
    desk.accept("m1")
    desk.session = None
    assert desk.pull() == []
    assert desk.messages.leased("s2") == ()


# ---------------------------------------------------------------- in a run


class Taking:
    """A turn that leases what waits once ``steered`` is set, and goes on to say it once ``going`` is."""

    def __init__(self) -> None:
        self.steered, self.going = asyncio.Event(), asyncio.Event()

    async def hold(self, given: SendInput) -> None:
        await self.steered.wait()
        given.pull_steering()
        await self.going.wait()

    @property
    def turn(self) -> list[Any]:
        said = Emit("steering_message", {"message_id": "s1", "content": content("more")})
        return [Do(self.hold), said, Tool("look")]

    async def held(self, host: InHost) -> None:
        """Message ``s1`` is leased."""
        await host.start("t1")
        await passed()
        await host.steer("s1")
        self.steered.set()
        await passed()
        assert list(host.messages.leased("s1")) == ["s1"]


@in_process
async def test_a_lease_that_is_not_said_is_taken_back_by_nobody() -> None:
    taking = Taking()
    async with InHost(taking.turn) as host:
        await taking.held(host)
        assert (await host.retract("x"))["retracted"] == []
        taking.going.set()
        await passed()
        assert [data["message_id"] for data in host.of("user/message")][1:] == ["s1"]
        assert await host.status("t1") == "completed"


@in_process
async def test_a_lease_of_a_turn_that_is_interrupted_is_taken_back_and_never_said() -> None:
    taking = Taking()
    async with InHost(taking.turn) as host:
        await taking.held(host)
        stopping = host.spawn(host.stop("x", retract=True), "stop")
        await passed(0.1)
        taking.going.set()
        assert (await stopping)["retracted"] == ["s1"]
        await passed()
        assert len(host.of("user/message")) == len(host.of("turn/admitted")) == 1
        assert host.messages.leased("s1") == ()


@in_process
async def test_a_lease_of_a_turn_that_ends_with_its_step_is_said_or_taken_back() -> None:
    taking = Taking()
    async with InHost(taking.turn) as host:
        await taking.held(host)
        stopping = host.spawn(host.stop("x", mode="after_step", retract=True), "stop")
        await passed(0.1)
        taking.going.set()
        stopped = await stopping
        await passed()
        said = [data["message_id"] for data in host.of("user/message")][1:]
        assert said + stopped["retracted"] == ["s1"]
        assert stopped["turn"]["status"] == "cancelled"
        assert host.kernel.status("s1").quarantined is None
