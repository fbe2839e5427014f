"""A turn that goes from process to process, and who else wants it: another successor, whoever gives it up, a stop.

``MAKA_RACES`` says how often processes set off at once, and at how many moments a stop comes.
"""

import asyncio
import errno
import os
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, Literal

import pytest

import maka
from maka.journal.events import Draft
from maka.runtime.backends.base import StopMode
from maka.runtime.continuation.failpoints import Failpoint
from maka.runtime.errors import ContinuationRevalidationError, RuntimeFailure
from maka.runtime.handoff.pause import HandoffPause
from maka.runtime.handoff.request import HandoffRequest
from maka.runtime.sessions import SessionManager
from support.disks import FaultyDisk
from support.handing import GOAL, Handed, ended
from support.lives import SESSION, Script
from support.nursery import Nursery

RACES = int(os.environ.get("MAKA_RACES", "4"))
#: Seconds that nothing here takes.
LIMIT: Final = 20


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery("support.handing") as nursery:
        yield nursery


@pytest.fixture
def place(tmp_path: Path) -> Handed:
    return Handed(tmp_path)


# ---------------------------------------------------------------- from process to process

#: Of turns that are handed over three times with a limit of four steps: what they ask for, and how they end.
ASKS: Final = {"completed": 3, "step_limit": 4}


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("end", ["completed", "step_limit", "killed"])
def test_a_turn_goes_through_four_processes(place: Handed, nursery: Nursery, own: bool, end: str) -> None:
    script: dict[str, Any] = {"asks": ASKS.get(end, 3), "own": own, "behind": 1}
    first = ("create", "propose", "hand", "gun")
    assert place.killed(nursery, *first, hold="gun", max_steps=4, **script)[2] == "hand:3"
    chain: list[str] = []
    for left in (3, 2, 1):
        pauses = place.data("handoff/pause")
        assert [pause["remaining_steps"] for pause in pauses] == [*range(3, left - 1, -1)]
        chain = [*chain, pauses[-1]["run_id"]]
        assert len({pause["root_run_id"] for pause in pauses}) == 1
        assert len({pause["handoff_id"] for pause in pauses}) == len(pauses)
        row = place.execution
        assert row == {
            "turn_id": pauses[0]["turn_id"],
            "root_run_id": chain[0],
            "root": GOAL,
            "chain": chain,
            "tip": chain[-1],
            "status": "paused",
            "pending_handoff": pauses[-1]["handoff_id"],
        }
        assert maka.inspect(place.journal).executions() == [row]
        assert place.handoffs == [*["continued"] * (len(pauses) - 1), "pending"]
        assert (place.plan, maka.inspect(place.journal).verdict) == ("active", "healthy")
        place.assert_recovers()
        if left > 1:
            steps = ("recover", "onward", "hand_on", "gun")
            lines = place.killed(nursery, *steps, hold="gun", **script)
            assert lines[:3] == ["recover:unchanged", "onward:continue", f"hand_on:{left - 1}"]

    if end == "killed":
        place.killed(nursery, "onward", "resume", hold="between", **script)
        place.assert_recovers()
        assert place.execution["status"] == "interrupted"
        # It was cut off in its last step, and goes on in a turn of its own.
        assert place.finished(**script)[0] == "resumed: completed"
    else:
        assert place.lived(nursery, "onward", "resume", **script)[1] == f"resume:{end}"
        assert place.execution["status"] == end
        place.assert_recovers()
    chain.append(place.data("handoff/pause")[-1]["successor_run_id"])
    view = maka.inspect(place.journal)
    [row] = view.executions()
    assert (row["chain"], row["tip"], row["root"], row["pending_handoff"]) == (chain, chain[-1], GOAL, None)
    assert place.plan == "interrupted"
    assert place.done == [*range(ASKS.get(end, 3))]
    assert place.handoffs == ["continued"] * 3
    steps_made = [data["run_id"] for data in place.data("step/start") if data["turn_id"] == row["turn_id"]]
    assert steps_made == chain
    inputs = place.noted("inputs")[:4]
    assert [noted["max_steps"] for noted in inputs] == [4, 3, 2, 1]
    [message, *_] = place.data("user/message")
    assert [noted["anchor"] for noted in inputs] == [None, *[message["message_id"]] * 3]
    assert [noted["text"] for noted in inputs[1:]] == [""] * 3
    if end != "killed":
        place.assert_asked_once()
        assert len(place.data("turn/start")) == len(place.data("turn/end")) == 1


@pytest.mark.parametrize("own", [False, True])
def test_successors_that_do_nothing_hand_on_what_they_were_given(place: Handed, nursery: Nursery, own: bool) -> None:
    script: dict[str, Any] = {"asks": 1, "own": own}
    assert place.lived(nursery, "create", "propose", "hand", behind=1, **script)[2] == "hand:None"
    for _ in range(2):
        assert place.lived(nursery, "onward", "hand_on", behind=0, **script)[1] == "hand_on:None"
    place.assert_recovers()
    assert place.lived(nursery, "onward", "resume", **script)[1] == "resume:completed"
    assert [len(place.execution["chain"]), place.done, place.reasons] == [4, [0], ["completed"]]
    place.assert_asked_once()
    place.assert_recovers()


def test_a_turn_is_handed_back_and_forth_between_backends_that_are_not_the_same_agent(
    place: Handed, nursery: Nursery
) -> None:
    """The other one is refused behind its start, and never called; the turn has failed."""
    place.lived(nursery, "create", "propose", "hand", behind=1, asks=2)
    lines = place.lived(nursery, "onward", "resume", "recover", own=True, asks=2)
    assert lines[:2] == ["onward:continue", "resume:composition_changed"]
    assert place.reasons == ["composition_changed"]
    assert len(place.noted("sends")) == 1
    assert place.plan == "interrupted"
    place.assert_recovers()
    assert place.finished(asks=2)[0] == "resumed: completed"
    assert place.done == [0, 1]


# ---------------------------------------------------------------- two processes

SET_OFF: Final = ("onward", "gun", "resume")


def sealed(place: Handed, nursery: Nursery) -> dict[Path, bytes]:
    place.lived(nursery, "create", "propose", "hand", behind=1, own=True, asks=2, max_steps=5)
    return place.saved()


def test_of_processes_that_take_over_at_once_one_does(place: Handed, nursery: Nursery) -> None:
    handed = sealed(place, nursery)
    for race in range(RACES):
        place.restore(handed)
        said = race_of(place, nursery, [SET_OFF, SET_OFF, SET_OFF])
        assert said.pop("resume:completed") == 1, (race, said)
        assert said.keys() <= {"resume:JournalLocked", "resume:continuation_claim_conflict"}
        assert (place.done, place.reasons) == ([0, 1], ["completed"])
        assert len(place.data("continuation/claim")) == 1
        place.assert_sound()
        place.assert_asked_once()


@pytest.mark.parametrize("gives_up", ["abandon", "stop"])
def test_of_a_process_that_takes_over_and_one_that_gives_up_one_does(
    place: Handed, nursery: Nursery, gives_up: str
) -> None:
    handed = sealed(place, nursery)
    ends = {"abandon": "handoff_abandoned", "stop": "aborted"}
    for race in range(RACES):
        place.restore(handed)
        said = race_of(place, nursery, [SET_OFF, ("onward", "gun", gives_up)])
        if said["resume:completed"]:
            assert said.keys() <= {
                "resume:completed",
                f"{gives_up}:JournalLocked",
                "abandon:handoff_not_pending",
                "stop:done",
            }
            assert (place.done, place.reasons) == ([0, 1], ["completed"]), race
        else:
            assert said.keys() & {"resume:JournalLocked", "resume:continuation_claim_conflict"}, said
            assert (place.done, place.reasons) in (([0], [ends[gives_up]]), ([0], [])), race
        place.assert_sound()
        place.assert_asked_once()
        place.assert_recovers()


def race_of(place: Handed, nursery: Nursery, racers: list[tuple[str, ...]]) -> Counter[str]:
    """What each has said of its last step."""
    with ExitStack() as stack:
        lives = [stack.enter_context(place.life(nursery, *steps, own=True, asks=2)) for steps in racers]
        for life in lives:
            assert life.until("READY:gun") == ["onward:continue"]
        for life in lives:
            life.tell()
        said = Counter(life.rest()[1] for life in lives)
        assert [life.code for life in lives] == [0] * len(lives)
    return said


HELD: Final = [
    "before_continuation_claim",
    "after_continuation_claim_committed",
    "after_run_created",
    "after_continuation_start_committed",
    "after_run_composition_committed",
    "between",
    "after_terminal_event_committed",
]


@pytest.mark.parametrize("point", HELD)
def test_while_one_process_takes_over_no_other_touches_it(place: Handed, nursery: Nursery, point: str) -> None:
    sealed(place, nursery)
    with place.life(nursery, "onward", "gun", "resume", "abandon", "stop", "send", "recover", "gun") as other:
        other.until("READY:gun")
        with place.life(nursery, "onward", "resume", hold=point, own=True, asks=2) as one:
            one.until(f"READY:{point}")
            before = place.files()
            other.tell()
            assert other.until("READY:gun")[1:6] == [
                "resume:JournalLocked", "abandon:JournalLocked", "stop:JournalLocked", "send:JournalLocked",
                "recover:open",
            ]  # fmt: skip
            assert place.files() == before
    place.assert_recovers()
    place.finished(own=True, asks=2)


# ---------------------------------------------------------------- one process


class Scene:
    """A manager of this process whose turn comes to a boundary, and what happens to it there."""

    def __init__(self, place: Handed, own: bool = True) -> None:
        self.place = place
        self.disk = FaultyDisk()
        self.held: dict[str, asyncio.Event] = {}
        self.came: dict[str, asyncio.Event] = {}
        self.enqueued = threading.Event()
        self.manager = SessionManager(
            place.root,
            app=place.app(Script(own=own, asks=2, max_steps=5, behind=1)),
            continuation_failpoint=self._hold,
            on_append=self._sees,
        )

    async def _hold(self, point: Failpoint) -> None:
        if point in self.held:
            self.came[point].set()
            await self.held[point].wait()

    def hold(self, point: Failpoint) -> None:
        self.held[point], self.came[point] = asyncio.Event(), asyncio.Event()

    def _sees(self, draft: Draft) -> Draft:
        if draft.type == "handoff/pause":
            self.enqueued.set()
        return draft

    async def comes(self) -> tuple["asyncio.Task[str]", HandoffRequest]:
        """A turn stands at its boundary, and is asked to be handed over."""
        place, manager = self.place, self.manager
        manager._journals._journals._fs = self.disk
        await manager.create(session_id=SESSION, cwd=place.work)
        place.near.clear()
        place.asked.clear()
        reading = asyncio.create_task(ended(manager.send(SESSION, "Please see to it.", max_steps=5, root=GOAL)))
        await asyncio.wait_for(place.near.wait(), LIMIT)
        run_id = manager.kernel.running(SESSION)
        assert run_id is not None
        pause = HandoffPause(
            handoff_id="handoff",
            host_epoch="here",
            root_run_id=run_id,
            successor_run_id="successor",
            successor_invocation_id="invocation",
            claim_id="claim",
        )
        request = manager.kernel.request_run_handoff(SESSION, run_id, pause)
        assert request is not None
        place.asked.set()
        assert await asyncio.wait_for(request.ready, LIMIT)
        return reading, request

    def assert_one_outcome(self, committed: bool) -> None:
        """The turn was stopped: by its own run, or for the successor where the pause is on the disk."""
        place = self.place
        pauses, [end] = place.data("handoff/pause"), place.data("turn/end")
        assert len(pauses) == committed
        assert end["reason"] == {"kind": "aborted", "source": "somebody"}
        [start] = place.data("turn/start")
        assert end["run_id"] == ("successor" if committed else start["run_id"])
        assert place.types.count("continuation/claim") == committed
        assert [data["start_kind"] for data in place.data("continuation/start")] == ["claim_repair"] * committed
        assert place.handoffs == ["abandoned"] * committed
        assert place.types.count("turn/stop_requested") == 1
        assert place.done == [0]
        place.assert_sound()


def go(scene: Scene, main: Awaitable[None]) -> None:
    async def whole() -> None:
        async with scene.manager:
            await main

    asyncio.run(whole())


Moment = Literal["held", "committed", "stream ended", "enqueued", "sealed", "over"]
#: When the stop comes, and whether the handoff was sealed by then.
MOMENTS: Final[dict[Moment, bool]] = {
    "held": False,
    "committed": False,
    "stream ended": False,
    "enqueued": True,
    "sealed": True,
    "over": True,
}


@pytest.mark.parametrize("mode", ["immediate", "after_step"])
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_stop_comes_before_the_seal_or_behind_it(place: Handed, moment: Moment, own: bool, mode: StopMode) -> None:
    scene, wanted = Scene(place, own), MOMENTS[moment]
    free = threading.Event()

    async def main() -> None:
        reading, request = await scene.comes()
        if moment == "stream ended":
            scene.hold("before_handoff_pause")
        if moment == "sealed":
            scene.hold("after_handoff_pause_committed")
        reached = threading.Event()

        def slow(what: str) -> None:
            if what == "sync" and scene.enqueued.is_set() and not free.is_set():
                reached.set()
                assert free.wait(LIMIT)

        if moment == "enqueued":
            scene.disk.failures.append(slow)
        if moment != "held":
            assert request.commit()
        if moment in ("stream ended", "sealed"):
            await asyncio.wait_for(next(iter(scene.came.values())).wait(), LIMIT)
        if moment == "enqueued":
            await asyncio.wait_for(asyncio.to_thread(reached.wait, LIMIT), LIMIT)
        if moment == "over":
            await reading

        stopping = scene.manager.stop(SESSION, source="somebody", mode=mode)
        if moment == "held":
            assert not request.commit()
        if moment == "enqueued":
            for _ in range(20):
                await asyncio.sleep(0)
            assert not request.sealed.done()
            assert not stopping.done()
        free.set()
        for event in scene.held.values():
            event.set()
        await asyncio.wait_for(stopping, LIMIT)
        assert await asyncio.wait_for(request.sealed, LIMIT) is wanted
        assert await asyncio.wait_for(reading, LIMIT) == ("None" if wanted else "aborted")
        scene.assert_one_outcome(wanted)
        # A second one changes nothing.
        before = place.raw
        await scene.manager.stop(SESSION, source="another")
        assert place.raw == before

    go(scene, main())
    place.assert_recovers()
    assert place.finished(own=own, asks=2)[0] == "resumed: completed"
    assert place.done == [0, 1]


@pytest.mark.timeout(120 + RACES)
def test_whenever_a_stop_comes_there_is_one_outcome(tmp_path: Path) -> None:
    for moment in range(RACES * 4):
        directory = tmp_path / str(moment)
        directory.mkdir()
        scene = Scene(Handed(directory), own=moment % 2 == 0)

        async def main(scene: Scene = scene, moment: int = moment) -> None:
            reading, request = await scene.comes()
            stopping: list[asyncio.Future[None]] = []
            if moment < 2:
                stopping.append(scene.manager.stop(SESSION, source="somebody"))
            request.commit()
            for _ in range(moment - 2):
                await asyncio.sleep(0)
            stopping.append(scene.manager.stop(SESSION, source="somebody"))
            for each in stopping:
                await asyncio.wait_for(each, LIMIT)
            committed = await asyncio.wait_for(request.sealed, LIMIT)
            await reading
            scene.assert_one_outcome(committed)

        go(scene, main())
        scene.place.assert_recovers()


@pytest.mark.parametrize("failing", ["write", "sync"])
@pytest.mark.parametrize("stopped", [False, True])
def test_a_pause_that_cannot_be_written_seals_nothing(place: Handed, failing: str, stopped: bool) -> None:
    scene = Scene(place)

    async def main() -> None:
        reading, request = await scene.comes()
        scene.hold("before_handoff_pause")
        assert request.commit()
        await asyncio.wait_for(scene.came["before_handoff_pause"].wait(), LIMIT)
        before = place.raw

        def failure(what: str) -> None:
            if what == failing and scene.enqueued.is_set():
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        scene.disk.failures.append(failure)
        scene.held["before_handoff_pause"].set()
        if stopped:
            while not scene.enqueued.is_set():
                await asyncio.sleep(0)
            stopping = scene.manager.stop(SESSION, source="somebody")
            with suppress(maka.JournalError, RuntimeFailure):
                await asyncio.wait_for(stopping, LIMIT)
        with pytest.raises(maka.JournalWriteError):
            await asyncio.wait_for(request.sealed, LIMIT)
        with pytest.raises(maka.JournalWriteError):
            await asyncio.wait_for(reading, LIMIT)
        if failing == "write":
            assert place.raw == before
        scene.disk.failures.clear()
        await scene.manager.pending(SESSION)

    go(scene, main())
    place.assert_recovers()
    assert place.data("handoff/pause") == []
    assert place.reasons == ["journal_write_failed"]
    assert place.finished(own=True, asks=2)[0] == "resumed: completed"
    assert place.done == [0, 1]


Deed = Callable[[SessionManager, Any], Awaitable[Any]]
DEEDS: Final[dict[str, Deed]] = {
    "resume": lambda manager, plan: ended(manager.resume_safe_boundary_continuation(plan)),
    "abandon": lambda manager, plan: manager.abandon_handoff(SESSION, "handoff"),
    "stop": lambda manager, plan: manager.stop(SESSION, source="somebody"),
    "send": lambda manager, plan: ended(manager.send(SESSION, "And now this.")),
    "recover": lambda manager, plan: manager.recover(SESSION),
}


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("first", ["resume", "abandon", "stop"])
@pytest.mark.parametrize("second", [deed for deed in DEEDS if deed != "recover"])
def test_of_two_who_want_a_handoff_at_once_one_has_it(place: Handed, first: str, second: str, opened: bool) -> None:
    scene = Scene(place)

    async def handed() -> None:
        reading, request = await scene.comes()
        assert request.commit()
        assert await request.sealed
        await reading

    go(scene, handed())

    async def main() -> None:
        async with place.managing(own=True, asks=2) as manager:
            planned = await manager.plan_safe_boundary_continuation(SESSION, purpose="handoff")
            if opened:
                await manager.pending(SESSION)
            deeds = [DEEDS[deed](manager, planned) for deed in (first, second, "recover")]
            came = await asyncio.gather(*deeds, return_exceptions=True)
            for each in came:
                assert not isinstance(each, BaseException) or isinstance(
                    each, ContinuationRevalidationError | RuntimeFailure
                ), each

    asyncio.run(main())
    ends = [data for data in place.data("turn/end") if data["run_id"] == "successor"]
    assert len(ends) <= 1
    place.assert_recovers()
    place.finished(own=True, asks=2)
    assert len([data for data in place.data("turn/end") if data["run_id"] == "successor"]) == 1
    assert len([data for data in place.data("continuation/claim") if data["claim_id"] == "claim"]) == 1
    assert [noted["run_id"] for noted in place.noted("sends")].count("successor") <= 1
