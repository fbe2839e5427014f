"""Every command by its id: the same again is answered the same, at once, through another connection, and by the next
host; something else under the same id is refused.
"""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

from maka.runtime.host.operations import OPERATIONS
from support.host_kills import ANSWER, Asked, Driver, Hosted, assert_sound, driven, hosted, lasting
from support.hosts import until_over
from support.nursery import Nursery

STEPS: Final = [{"id": "1", "title": "see to it", "description": "See to it."}]
#: Those that have no id of their own: each time is another time.
WITHOUT_ID: Final = {"host.shutdown", "session.release", "subscription.open", "subscription.close"}


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery("support.host_kills") as nursery:
        yield nursery


@attrs.frozen(kw_only=True)
class Command:
    """``others``: what else somebody could ask under the same ids, each a change of ``input``, and perhaps of the
    operation; ``refused``: how that is answered.
    """

    operation: str
    input: dict[str, Any]
    others: tuple[dict[str, Any], ...] = ()
    refused: str = "operation_conflict"


def command(operation: str, *others: dict[str, Any], refused: str = "operation_conflict", **input: Any) -> Command:
    return Command(operation=operation, input=input, others=others, refused=refused)


def submit(message_id: str, content: str, *others: dict[str, Any], **more: Any) -> Command:
    return command(
        "turn.message.submit",
        {"content": "something else"},
        {"quotes": [{"text": "quoted"}]},
        *others,
        message_id=message_id,
        content=content,
        **more,
    )


def stop(turn: dict[str, Any], **more: Any) -> Command:
    ids = {"turn_id": turn["turn_id"], "run_id": turn["run_id"]}
    return command("turn.stop", {"mode": "after_step"}, {"turn_id": "t0"}, **ids, **more)


async def first_host(driver: Driver, root: Hosted, do: Callable[[Command], Any]) -> None:
    """Each command once, and what has to come before it."""
    others = ({"name": "Other"}, {"name": None}, {"model": "other"}, {"labels": ["x"]})
    await do(command("session.create", *others, session_id="new", name="A new one"))
    await do(command("session.update", {"patch": {"name": "x"}}, request_id="u", patch={"name": "Another"}))
    await do(command("session.archive", {"operation": "session.unarchive"}, session_id="new", request_id="a"))
    await do(command("session.unarchive", {"operation": "session.archive"}, session_id="new", request_id="b"))
    await do(command("session.delete", session_id="old"))

    start = command(
        "turn.start",
        {"content": "something else"},
        {"quotes": [{"text": "quoted"}]},
        {"max_steps": 4},
        {"message_id": "other"},
        turn_id="t0",
        content="quick",
        message_id="m0",
        max_steps=3,
    )
    await do(start)
    await until_over(driver.client, "s", "t0")
    await do(command("session.fork", {"name": "other"}, new_session_id="fork", turn_id="t0", name="A fork"))

    turn = (await do(command("turn.start", {"content": "quick"}, turn_id="t1", content="ask it")))["turn"]
    steered = {"turn_id": "t1", "disposition": "steering"}
    assert steered.items() <= (await do(submit("s1", "steer", {"placement": "next_turn"}))).items()
    followed = await do(submit("f1", "quick one", {"placement": "current_turn"}, placement="next_turn"))
    assert followed["disposition"] == "followup"
    await do(submit("f2", "hold two", placement="next_turn"))
    assert (await do(command("queue.retract", {"message_ids": ["f2"]}, retract_id="r", message_ids=["f1", "no"])))[
        "retracted"
    ] == ["f1"]
    assert (await do(command("queue.retract", retract_id="r2", message_ids=[])))["retracted"] == []
    interaction = await driver.until("s", lambda shown: [*shown["interactions"]["pending"], None][0])
    other = {"answer": {**ANSWER, "answers": ["That"]}}
    ids = {"interaction_id": interaction["interaction_id"]}
    await do(command("interaction.answer", other, refused="already_resolved", answer=ANSWER, **ids))
    await until_over(driver.client, "s", turn["turn_id"])

    held = await driver.until("s", lambda shown: shown["root_turn"]["status"] == "running" and shown["root_turn"])
    await do(submit("f3", "quick three", placement="next_turn"))
    # Messages are taken back where the same stop asks for that.
    stopped = await do(stop(held, stop_id="stop", retract=True))
    assert stopped["status"] == "cancelled"
    # What is over already is not stopped: nothing stands under such an id.
    await do(command("turn.stop", turn_id=held["turn_id"], run_id=held["run_id"], stop_id="stop again"))
    held = (await do(command("turn.start", {"max_steps": 1}, turn_id="t2", content="hold it")))["turn"]
    await do(submit("f4", "quick four", placement="next_turn"))
    interrupt = command(
        "turn.interrupt",
        {"turn_id": "t0"},
        turn_id="t2",
        run_id=held["run_id"],
        interrupt_id="interrupt",
    )
    assert (await do(interrupt))["retracted"] == ["f4"]
    started = await do(submit("m5", "quick five"))
    assert started["disposition"] == "turn_started"
    await until_over(driver.client, "s", started["turn_id"])

    propose = command("plan.propose", {"title": "x"}, request_id="p", title="Work", steps=STEPS)
    plan = (await do(propose))["plan"]
    approve = {"request_id": "q", "proposal_id": plan["proposal_id"], "expected_revision": 1, "execution_id": "e"}
    await do(command("plan.approve", {"execution_id": "other"}, {"expected_revision": 2}, **approve))
    await do(command("plan.complete", {"operation": "plan.cancel"}, execution_id="e", reason="done"))
    plan = (await do(command("plan.propose", {"title": "x"}, request_id="p2", title="More", steps=STEPS)))["plan"]
    approve = {"request_id": "q2", "proposal_id": plan["proposal_id"], "expected_revision": 1, "execution_id": "e2"}
    await do(command("plan.approve", {"execution_id": "other"}, **approve))
    await do(command("plan.cancel", {"operation": "plan.complete"}, execution_id="e2"))
    await do(command("turn.start", turn_id="t3", content="hold on"))


async def second_host(driver: Driver, root: Hosted, do: Callable[[Command], Any]) -> None:
    """What only a crash makes possible."""
    found = await driver.client.query_resume("s")
    assert found["disposition"] == "continue", found
    asked = {"source_run_id": found["source_run_id"], "high_water": found["high_water"]}
    others = ({"source_run_id": "other"}, {"high_water": found["high_water"] - 1})
    await do(command("turn.resume.start", *others, turn_id="t4", **asked))
    await until_over(driver.client, "s", "t4")


def test_every_command_is_answered_the_same_by_its_id(tmp_path: Path, nursery: Nursery) -> None:
    done: list[tuple[Command, Asked]] = []

    async def test() -> None:
        async with hosted(tmp_path / "root", nursery) as root:
            root.create()
            root.create("old")
            for number, script in enumerate((first_host, second_host, None, None)):
                await root.begin()
                async with driven(root, []) as driver, driven(root, []) as second:

                    async def do(asked: Command, driver: Driver = driver, second: Driver = second) -> Any:
                        first = Asked(asked.operation, given(asked))
                        await driver.again(first)
                        assert first.code is None, first
                        done.append((asked, first))
                        await again(driver, asked, first)
                        await again(second, asked, first)
                        await others(second, asked)
                        return first.answer

                    if script is not None:
                        await script(driver, root, do)
                    for asked, first in done:
                        await again(second, asked, first)
                        await others(driver, asked)
                # A crash, then ends in order.
                await (root.kill() if number == 0 else root.stop())
            for session_id in root.store.ids():
                assert_sound(root, session_id)

    asyncio.run(test())
    commands = {name for name, operation in OPERATIONS.items() if operation.mode != "query"}
    assert {asked.operation for asked, _ in done} == commands - WITHOUT_ID


def given(asked: Command) -> dict[str, Any]:
    return {"session_id": "s", **asked.input}


async def again(driver: Driver, asked: Command, first: Asked) -> None:
    second = Asked(asked.operation, given(asked))
    await driver.again(second)
    assert second.code is None, (asked, second)
    assert lasting(asked.operation, second.answer) == lasting(asked.operation, first.answer)


async def others(driver: Driver, asked: Command) -> None:
    for other in asked.others:
        change = dict(other)
        wrong = Asked(change.pop("operation", asked.operation), {**given(asked), **change})
        await driver.again(wrong)
        assert wrong.code == asked.refused, (asked, wrong)
