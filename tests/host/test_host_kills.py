"""Hosts are killed at their file operations, while a client asks for all kinds of things: what it was told is true for
ever, and what it was not told it asks again by the same ids.

``MAKA_KILLS`` says at how many places of each story; a thousand are all of them.
"""

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final, get_args

import attrs
import pytest

from maka.runtime.host.protocol import CODES
from support.host_kills import (
    ANSWER,
    Asked,
    Driver,
    Gone,
    Hosted,
    Refused,
    assert_sound,
    choices,
    driven,
    hosted,
    lasting,
)
from support.lives import How
from support.nursery import Nursery

KILLS = int(os.environ.get("MAKA_KILLS", "2"))
#: Of places at which an operation fails in place of the host.
FAILS = max(KILLS // 2, 1)
S: Final = "s"
OVER: Final = ("completed", "failed", "cancelled")
Script = Callable[[Driver, Hosted], Awaitable[None]]


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery("support.host_kills") as nursery:
        yield nursery


# ---------------------------------------------------------------- what a script waits for


def rests(snapshot: dict[str, Any]) -> bool:
    turn, queue = snapshot["root_turn"], snapshot["queue"]
    return (turn is None or turn["status"] in OVER) and not queue["steering"] and not queue["followup"]


def rested(snapshot: dict[str, Any]) -> bool:
    """As ``rests``; Refused where it rests in doubt."""
    turn = snapshot["root_turn"]
    if turn is not None and turn["status"] == "indeterminate":
        raise Refused
    return rests(snapshot)


def asks(turn_id: str) -> Callable[[dict[str, Any]], Any]:
    """The interaction that the turn waits for; Refused where it is over."""

    def fits(snapshot: dict[str, Any]) -> Any:
        if snapshot["root_turn"]["turn_id"] != turn_id or snapshot["root_turn"]["status"] in OVER:
            raise Refused
        return next((row["interaction_id"] for row in snapshot["interactions"]["pending"]), None)

    return fits


def runs(*others: str) -> Callable[[dict[str, Any]], Any]:
    """The root turn that runs and is none of these; Refused where all is over, or rests in doubt."""

    def fits(snapshot: dict[str, Any]) -> Any:
        turn = snapshot["root_turn"]
        if rests(snapshot) or turn["status"] == "indeterminate":
            raise Refused
        return turn if turn["turn_id"] not in others and turn["status"] == "running" else None

    return fits


# ---------------------------------------------------------------- stories


async def begin_talking(driver: Driver, root: Hosted) -> None:
    await driver.ask("turn.start", session_id=S, turn_id="t1", content="ask first")
    await driver.ask("turn.message.submit", session_id=S, message_id="s1", content="hold steering")
    await driver.ask("turn.message.submit", session_id=S, message_id="f1", content="hold one", placement="next_turn")
    await driver.ask("turn.message.submit", session_id=S, message_id="f2", content="quick two", placement="next_turn")
    await driver.until(S, asks("t1"))


async def talk(driver: Driver, root: Hosted) -> None:
    await begin_talking(driver, root)
    asked = await driver.until(S, asks("t1"))
    await driver.ask("interaction.answer", session_id=S, interaction_id=asked, answer=ANSWER)
    turn = await driver.until(S, runs("t1"))
    await driver.ask("turn.message.submit", session_id=S, message_id="f3", content="quick three")
    await driver.ask(
        "turn.stop", session_id=S, turn_id=turn["turn_id"], run_id=turn["run_id"], stop_id="stop", retract=True
    )
    started = await driver.ask("turn.start", session_id=S, turn_id="t2", content="hold more")
    await driver.ask("turn.message.submit", session_id=S, message_id="f4", content="quick four", placement="next_turn")
    await driver.ask("turn.message.submit", session_id=S, message_id="f5", content="quick five", placement="next_turn")
    await driver.ask("queue.retract", session_id=S, retract_id="r", message_ids=["f4"])
    run_id = started["turn"]["run_id"]
    await driver.ask("turn.interrupt", session_id=S, turn_id="t2", run_id=run_id, interrupt_id="interrupt")
    await driver.ask("turn.message.submit", session_id=S, message_id="m6", content="quick six")
    await driver.until(S, rested)
    await driver.ask("turn.start", session_id=S, turn_id="t3", content="hold again", max_steps=3)
    await driver.ask("turn.message.submit", session_id=S, message_id="s7", content="quick seven")
    await end(driver, root)


async def hand_over(driver: Driver, root: Hosted) -> None:
    await driver.ask("turn.start", session_id=S, turn_id="t1", content="steps 40")
    await driver.ask("turn.message.submit", session_id=S, message_id="f1", content="hold one", placement="next_turn")
    await driver.ask("turn.message.submit", session_id=S, message_id="s1", content="steer")
    assert root.host is not None
    try:
        await driver.client.shutdown(mode="handoff", timeout=1.0)
    except Exception:
        raise Gone from None
    await root.host.over()


async def take_over(driver: Driver, root: Hosted) -> None:
    await driver.ask("turn.message.submit", session_id=S, message_id="s2", content="steer too")
    await driver.until(S, runs("t1"))
    await end(driver, root)


async def be_there(driver: Driver, root: Hosted) -> None:
    await driver.until(S, runs("t1"))
    await end(driver, root)


async def hold(driver: Driver, root: Hosted) -> None:
    await driver.ask("turn.start", session_id=S, turn_id="t1", content="hold it")
    await driver.until(S, runs())


async def resume(driver: Driver, root: Hosted) -> None:
    found = await driver.client.query_resume(S)
    if "source_run_id" not in found:
        raise Refused(found)
    asked = {"source_run_id": found["source_run_id"], "high_water": found["high_water"]}
    await driver.ask("turn.resume.start", session_id=S, turn_id="t2", **asked)
    await driver.ask("turn.message.submit", session_id=S, message_id="f1", content="quick one")
    await driver.until(S, rested)
    await end(driver, root)


async def manage(driver: Driver, root: Hosted) -> None:
    steps = [{"id": "1", "title": "see to it", "description": "See to it."}]
    await driver.ask("session.create", session_id="new", name="A new one", labels=["x"])
    await driver.ask("turn.start", session_id="new", turn_id="n1", content="quick n")
    await driver.until("new", rested)
    await driver.ask("session.update", session_id="new", request_id="u", patch={"name": "Another"})
    await driver.ask("session.archive", session_id="new", request_id="a")
    await driver.ask("session.unarchive", session_id="new", request_id="b")
    await driver.ask("session.fork", session_id="new", new_session_id="fork", turn_id="n1")
    plan = (await driver.ask("plan.propose", session_id=S, request_id="p", title="Work", steps=steps))["plan"]
    approve = {"request_id": "q", "proposal_id": plan["proposal_id"], "expected_revision": 1, "execution_id": "e"}
    await driver.ask("plan.approve", session_id=S, **approve)
    await driver.ask("plan.cancel", session_id=S, execution_id="e", reason="no")
    await driver.ask("session.delete", session_id="old")
    await end(driver, root)


async def end(driver: Driver, root: Hosted) -> None:
    assert root.host is not None
    if await root.host.stop() != 0:
        raise Gone


@attrs.frozen
class Story:
    """``script`` is what the client asks for while its host dies; ``before``, with a host that is killed behind it, or
    has ended. ``leaves``: what stands in the journal then, where nothing goes wrong.
    """

    script: Script
    leaves: bytes
    before: Script | None = None


STORIES: Final = {
    "talk": Story(talk, b'"retract":["f2"'),
    "hand over": Story(hand_over, b'"handoff/pause"'),
    "take over": Story(take_over, b'"purpose":"handoff"', hand_over),
    "recover": Story(be_there, b'"aborted","source":"host_shutdown"', begin_talking),
    "resume": Story(resume, b'"purpose":"resume"', hold),
    "manage": Story(manage, b'"status":"cancelled","reason":"no"'),
}


@attrs.define
class Stage:
    """What stands before a story's script: a root, and what was asked so far."""

    path: Path
    nursery: Nursery
    story: Story
    asked: list[Asked] = attrs.Factory(list)
    #: File operations of a host that nothing happens to.
    operations: int = 0
    count: int = 0

    async def prepare(self) -> None:
        root = Hosted(self.path / "begun", self.nursery, S)
        root.create()
        root.create("old")
        if self.story.before is not None:
            async with hosted(root.path, self.nursery, S) as root:
                await root.begin()
                async with driven(root, self.asked) as driver:
                    await self.story.before(driver, root)

    def copy(self) -> tuple[Path, list[Asked]]:
        self.count += 1
        path = self.path / f"r{self.count}"
        shutil.copytree(self.path / "begun", path, ignore=shutil.ignore_patterns("host*"))
        sends = self.path / "begun.sends"
        if sends.exists():
            shutil.copy(sends, self.path / f"r{self.count}.sends")
        return path, [attrs.evolve(each) for each in self.asked]

    async def measure(self) -> None:
        path, asked = self.copy()
        async with hosted(path, self.nursery, S) as root:
            host = await root.begin()
            async with driven(root, asked) as driver:
                await self.story.script(driver, root)
            (said,) = await host.over()
        code, operations = map(int, said.split())
        assert code == 0
        assert self.story.leaves in root.raw()
        self.operations = operations


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> Callable[[str], Stage]:
    known: dict[str, Stage] = {}

    def stage(name: str) -> Stage:
        if name not in known:
            made = Stage(tmp_path_factory.mktemp("stage"), nursery, STORIES[name])

            async def prepared() -> None:
                await made.prepare()
                await made.measure()

            asyncio.run(prepared())
            known[name] = made
        return known[name]

    return stage


# ---------------------------------------------------------------- what holds behind each of them


#: What a request is refused with that comes again, although it came too late the first time.
LATE: Final = {
    "interaction.answer": ("already_resolved",),
    # Nobody carries a plan out any more whose host was killed.
    "plan.cancel": ("operation_conflict",),
}


async def repeated(driver: Driver) -> None:
    """Each command again by its ids: what was told is told again."""
    for each in driver.asked:
        before = attrs.evolve(each)
        await driver.again(each)
        if before.answer is not None:
            assert each.code is None, (before, each)
            assert lasting(each.operation, each.answer) == lasting(each.operation, before.answer), (before, each)
        elif before.refused:
            assert each.code == before.code, (before, each)
        else:
            # Who was told to come again may be told so again.
            again = before.code is not None and each.code is not None and CODES[each.code]
            assert again or each.code is None or each.code in LATE.get(each.operation, ()), (before, each)


async def finished(driver: Driver, session_id: str) -> None:
    """Answers and stops what is there, until nothing waits in the session any more."""
    for number in range(20):
        shown = await driver.until(session_id, _acts)
        turn, ids = shown["root_turn"], {"session_id": session_id}
        if rests(shown):
            return
        if pending := shown["interactions"]["pending"]:
            await driver.ask("interaction.answer", **ids, interaction_id=pending[0]["interaction_id"], answer=ANSWER)
            await driver.until(session_id, lambda shown: not shown["interactions"]["pending"])
        elif turn["status"] == "indeterminate":
            await driver.ask("turn.message.submit", **ids, message_id=f"go-{number}", content="quick go")
        else:
            ids |= {"turn_id": turn["turn_id"], "run_id": turn["run_id"]}
            await driver.ask("turn.stop", **ids, stop_id=f"end-{number}")
    raise AssertionError("it comes to no end")


def _acts(snapshot: dict[str, Any]) -> Any:
    """A snapshot of which somebody can make something: it is not about to change by itself."""
    turn = snapshot["root_turn"]
    if snapshot["session"]["status"] == "unavailable":
        return None
    if not rests(snapshot) and (turn is None or turn["status"] in (*OVER, "admitted", "created")):
        return None
    return snapshot


async def killed(stage: Stage, number: int, how: How) -> None:
    path, asked = stage.copy()
    async with hosted(path, stage.nursery, S) as root:
        try:
            await root.begin(number=number, how=how)
            async with driven(root, asked) as driver:
                await stage.story.script(driver, root)
        except Refused as error:
            if how != "fails":
                raise AssertionError("it was refused") from error
        except Gone:
            assert root.host is not None
            await root.host.over()
        if how != "fails" or root.host is None or root.host.ended.done():
            await root.begin()
        async with driven(root, asked) as driver:
            await repeated(driver)
            for session_id in root.store.ids():
                await finished(driver, session_id)
        await root.restart()
        for session_id in root.store.ids():
            assert_sound(root, session_id)
        before = root.journals()
        async with driven(root, asked) as driver:
            await repeated(driver)
            shown = {session_id: _shown(await driver.snapshot(session_id)) for session_id in root.store.ids()}
        assert root.journals() == before
        await root.restart()
        async with driven(root, asked) as driver:
            await repeated(driver)
            again = {session_id: _shown(await driver.snapshot(session_id)) for session_id in root.store.ids()}
            assert (await driver.client.status())["sessions"]["failed"] == []
        assert again == shown
        await root.stop()
        assert root.journals() == before
    shutil.rmtree(path)


def _shown(snapshot: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in snapshot.items() if key != "projection_revision"}


@pytest.mark.timeout(120 + 20 * KILLS)
@pytest.mark.parametrize("name", STORIES)
def test_a_host_is_killed_at_a_file_operation(stages: Callable[[str], Stage], name: str) -> None:
    stage = stages(name)
    every = [(number, how) for number in range(1, stage.operations + 1) for how in get_args(How) if how != "fails"]
    for number, how in choices(name, KILLS, every):
        try:
            asyncio.run(killed(stage, number, how))
        except BaseException as error:
            error.add_note(f"{name}: operation {number} of {stage.operations}, {how}")
            raise


@pytest.mark.timeout(120 + 20 * KILLS)
@pytest.mark.parametrize("name", STORIES)
def test_a_file_operation_fails_and_the_host_lives_on(stages: Callable[[str], Stage], name: str) -> None:
    stage = stages(name)
    for number in choices(f"{name} fails", FAILS, list(range(1, stage.operations + 1))):
        try:
            asyncio.run(killed(stage, number, "fails"))
        except BaseException as error:
            error.add_note(f"{name}: operation {number} of {stage.operations} fails")
            raise
