"""Steps as an iterator: what is given out when, and who goes on once it was acknowledged."""

import asyncio
from typing import Any

import pytest

from maka.runtime.channel import PATIENCE, Channel
from support.seeded_loop import run

SEEDS = range(12)


def channel(work: Any) -> Channel:
    return Channel(work, turn_id="t", now=lambda: 7)


async def drain(events: Channel) -> list[list[str]]:
    """The kinds that came together, until the end."""
    return [[event.kind, *(more.kind for more in events.ready())] async for event in events]


def test_nothing_happens_before_the_first_is_asked_for() -> None:
    began: list[str] = []

    async def work(out: Channel) -> None:
        began.append("work")

    async def main() -> None:
        events = channel(work)
        await asyncio.sleep(1)
        assert not began
        await events.aclose()
        assert await drain(events) == []
        assert not began

    run(main(), 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_who_waits_at_the_same_time_shares_what_is_given_out(seed: int) -> None:
    """The calls of a step: each says something and waits for that."""
    passed: list[int] = []

    async def one(out: Channel, number: int) -> None:
        out.emit("tool_start", number=number)
        await asyncio.sleep(0)
        await out.barrier()
        passed.append(number)

    async def work(out: Channel) -> None:
        out.emit("step_start")
        await asyncio.gather(*(one(out, number) for number in range(3)))

    async def main() -> None:
        events = channel(work)
        given = 0
        async for _ in events:
            # Only those go on that were given out before, whatever was said meanwhile.
            assert len(passed) <= given
            given += 1 + len(events.ready())
            await asyncio.sleep(0.1)
        assert given == 4

    run(main(), seed)


def test_the_calls_of_a_step_are_given_out_together() -> None:
    async def one(out: Channel, number: int) -> None:
        out.emit("tool_start", number=number)
        await asyncio.sleep(0)
        await out.barrier()

    async def work(out: Channel) -> None:
        out.emit("step_start")
        await asyncio.gather(*(one(out, number) for number in range(3)))

    async def main() -> list[list[str]]:
        return await drain(channel(work))

    assert asyncio.run(main()) == [["step_start", "tool_start", "tool_start", "tool_start"]]


def test_a_delta_goes_out_at_once_with_what_waits_and_the_rest_after_a_moment() -> None:
    async def work(out: Channel) -> None:
        out.emit("step_start")
        out.emit("text_delta", text="a")
        await asyncio.sleep(1)
        out.emit("tool_result")
        out.emit("step_end")
        await asyncio.sleep(1)
        out.emit("complete")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        events = channel(work)
        came = []
        async for event in events:
            came.append((loop.time(), [event.kind, *(more.kind for more in events.ready())]))
        assert came == [
            (0, ["step_start", "text_delta"]),
            (1 + PATIENCE, ["tool_result", "step_end"]),
            (2, ["complete"]),
        ]

    run(main(), 1)


def test_the_events_are_of_the_turn_and_numbered() -> None:
    async def work(out: Channel) -> None:
        out.emit("text_delta", message_id="m", text="a")
        out.emit("step_end")

    async def main() -> None:
        events = [event async for event in channel(work)]
        assert [(event.id, event.turn_id, event.ts) for event in events] == [("t:1", "t", 7), ("t:2", "t", 7)]
        assert events[0].data == {"message_id": "m", "text": "a"}

    run(main(), 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_barrier_behind_which_nothing_new_was_said_does_not_wait(seed: int) -> None:
    async def work(out: Channel) -> None:
        await out.barrier()
        out.emit("step_start")
        await out.barrier()
        await out.barrier()
        out.emit("step_end")

    async def main() -> list[list[str]]:
        return await drain(channel(work))

    assert run(main(), seed) == [["step_start"], ["step_end"]]


def test_what_was_said_before_a_failure_comes_before_it() -> None:
    error = LookupError("defect")

    async def work(out: Channel) -> None:
        out.emit("step_start")
        raise error

    async def main() -> None:
        events = channel(work)
        assert (await anext(events)).kind == "step_start"
        for _ in range(2):
            with pytest.raises(LookupError) as raised:
                await anext(events)
            assert raised.value is error

    run(main(), 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_closing_cancels_the_work_and_waits_for_its_end(seed: int) -> None:
    ended: list[str] = []

    async def work(out: Channel) -> None:
        out.emit("step_start")
        try:
            await out.barrier()
        finally:
            await asyncio.sleep(0.5)
            out.emit("tool_result")
            ended.append("work")

    async def main() -> None:
        events = channel(work)
        await anext(events)
        await events.aclose()
        assert ended == ["work"]
        await events.aclose()
        assert [event async for event in events] == []

    run(main(), seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_closing_that_is_cancelled_still_waits(seed: int) -> None:
    ended: list[str] = []

    async def work(out: Channel) -> None:
        out.emit("step_start")
        try:
            await out.barrier()
        finally:
            await asyncio.sleep(0.5)
            ended.append("work")

    async def main() -> None:
        events = channel(work)
        await anext(events)
        closing = asyncio.ensure_future(events.aclose())
        await asyncio.sleep(0.1)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert ended == ["work"]

    run(main(), seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_cancelling_who_waits_for_the_next_loses_nothing(seed: int) -> None:
    async def work(out: Channel) -> None:
        await asyncio.sleep(1)
        out.emit("step_start")
        await out.barrier()

    async def main() -> None:
        events = channel(work)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(events), 0.5)
        assert await drain(events) == [["step_start"]]

    run(main(), seed)


def test_work_that_is_cancelled_from_outside_ends_the_stream() -> None:
    async def work(out: Channel) -> None:
        out.emit("step_start")
        raise asyncio.CancelledError

    async def main() -> list[list[str]]:
        return await drain(channel(work))

    assert run(main(), 1) == [["step_start"]]
