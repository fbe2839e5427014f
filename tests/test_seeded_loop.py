"""The seeded loop: the same seed gives the same run, the clock is virtual, and nothing is left behind unseen."""

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pytest

from support.seeded_loop import Crashed, Deadlock, Leftover, StepLimit, run


async def race(workers: int = 5, rounds: int = 4) -> list[int]:
    trace: list[int] = []

    async def worker(number: int) -> None:
        for _ in range(rounds):
            trace.append(number)
            await asyncio.sleep(0)

    await asyncio.gather(*(worker(number) for number in range(workers)))
    return trace


def test_a_seed_names_an_order() -> None:
    orders = {seed: tuple(run(race(), seed)) for seed in range(20)}
    assert orders == {seed: tuple(run(race(), seed)) for seed in range(20)}
    assert len(set(orders.values())) == 20
    assert all(sorted(order) == sorted(list(range(5)) * 4) for order in orders.values())


def test_any_of_two_can_be_first() -> None:
    assert {run(race(2, 1), seed)[0] for seed in range(30)} == {0, 1}


def test_sets_of_tasks_and_futures_have_one_order() -> None:
    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        tasks = [asyncio.ensure_future(asyncio.sleep(0, n)) for n in range(40)]
        futures = [loop.create_future() for _ in range(40)]
        await asyncio.wait(tasks)
        for n, future in enumerate(futures):
            future.set_result(n)
        return [future.result() for future in {*tasks, *futures}]

    # Addresses differ from run to run: what is kept alive here moves them.
    kept = []
    first = run(main(), 1)
    for size in range(5):
        kept.append([object() for _ in range(size * 1_000)])
        assert run(main(), 1) == first


def test_the_clock_jumps_from_timer_to_timer() -> None:
    async def main() -> tuple[list[tuple[str, float]], float]:
        loop = asyncio.get_running_loop()
        fired: list[tuple[str, float]] = []

        def fire(name: str) -> None:
            fired.append((name, loop.time()))

        for name, delay in (("c", 3600.0), ("a", 0.1), ("b", 20.0)):
            loop.call_later(delay, fire, name)
        loop.call_later(30, fire, "never").cancel()
        await asyncio.sleep(4000)
        return fired, loop.time()

    for seed in range(10):
        assert run(main(), seed) == ([("a", 0.1), ("b", 20.0), ("c", 3600.0)], 4000.0)


def test_what_is_ready_goes_before_any_timer() -> None:
    async def main() -> list[str]:
        trace: list[str] = []
        asyncio.get_running_loop().call_later(1e-6, trace.append, "timer")
        for _ in range(50):
            await asyncio.sleep(0)
        trace.append("ready")
        await asyncio.sleep(1)
        return trace

    assert run(main(), 3) == ["ready", "timer"]


async def waits_for_ever() -> None:
    await asyncio.Event().wait()


def test_a_deadlock_names_who_waits_where() -> None:
    async def main() -> None:
        await asyncio.create_task(waits_for_ever(), name="the one that waits")

    with pytest.raises(Deadlock) as caught:
        run(main(), 0)
    assert "the one that waits: waits_for_ever:" in str(caught.value)
    assert "Event.wait" in str(caught.value)


def test_a_loop_without_end_is_stopped() -> None:
    async def main() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(StepLimit):
        run(main(), 0, limit=500)


def test_a_task_that_is_left_is_told() -> None:
    ended: list[str] = []
    tasks: list[asyncio.Task[None]] = []

    async def lingers() -> None:
        try:
            await asyncio.sleep(1)
        finally:
            ended.append("lingers")

    async def main() -> None:
        tasks.append(asyncio.create_task(lingers(), name="lingering"))
        await asyncio.sleep(0.5)

    with pytest.raises(Leftover, match="lingering"):
        run(main(), 0)
    assert ended == ["lingers"]


async def fails() -> None:
    raise ValueError("unseen")


async def task_kept() -> None:
    task = asyncio.create_task(fails())
    task_kept.task = task  # type: ignore[attr-defined]
    await asyncio.wait([task])


async def task_dropped() -> None:
    await asyncio.wait([asyncio.create_task(fails())])


async def future_kept() -> None:
    future_kept.future = asyncio.get_running_loop().create_future()  # type: ignore[attr-defined]
    future_kept.future.set_exception(ValueError("unseen"))  # type: ignore[attr-defined]


async def callback() -> None:
    def act() -> None:
        raise ValueError("unseen")

    asyncio.get_running_loop().call_soon(act)
    await asyncio.sleep(1)


@pytest.mark.parametrize("main", [task_kept, task_dropped, future_kept, callback])
def test_a_failure_that_nobody_looked_at_is_told(main: Callable[[], Any]) -> None:
    with pytest.raises(Leftover, match="unseen"):
        run(main(), 0)


def test_a_failure_that_was_looked_at_is_none() -> None:
    async def main() -> Any:
        return await asyncio.gather(fails(), return_exceptions=True)

    assert isinstance(run(main(), 0)[0], ValueError)
    with pytest.raises(ValueError, match="unseen"):
        run(fails(), 0)


async def cancelling() -> None:
    async def body() -> str:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            trace.append("cancelled")
            raise
        return "no"

    trace: list[str] = []
    task = asyncio.create_task(body())
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert trace == ["cancelled"]


async def waiting() -> None:
    slow, fast = (asyncio.create_task(asyncio.sleep(delay, delay)) for delay in (5, 2))
    done, pending = await asyncio.wait([slow, fast], timeout=3)
    assert (done, pending) == ({fast}, {slow})
    assert asyncio.get_running_loop().time() == 3
    done, pending = await asyncio.wait([slow, fast])
    assert (done, pending) == ({fast, slow}, set())


async def shielding() -> None:
    inner = asyncio.create_task(asyncio.sleep(2, "kept"))
    outer = asyncio.ensure_future(asyncio.shield(inner))
    await asyncio.sleep(1)
    outer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await outer
    assert await inner == "kept"


async def timing_out() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await asyncio.sleep(2)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 1)
    assert asyncio.get_running_loop().time() == 2


async def events() -> None:
    event, woken = asyncio.Event(), []

    async def waits(number: int) -> None:
        await event.wait()
        woken.append(number)

    tasks = [asyncio.create_task(waits(n)) for n in range(5)]
    await asyncio.sleep(1)
    assert woken == []
    event.set()
    await asyncio.gather(*tasks)
    assert sorted(woken) == list(range(5))


async def semaphores() -> None:
    semaphore, inside, most = asyncio.Semaphore(2), 0, 0

    async def enters() -> None:
        nonlocal inside, most
        async with semaphore:
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(1)
            inside -= 1

    await asyncio.gather(*(enters() for _ in range(7)))
    assert (most, inside) == (2, 0)
    assert asyncio.get_running_loop().time() == 4


async def queues_and_locks() -> None:
    queue: asyncio.Queue[int] = asyncio.Queue(1)
    lock, got = asyncio.Lock(), []

    async def gives() -> None:
        for n in range(5):
            await queue.put(n)

    async def takes() -> None:
        for _ in range(5):
            async with lock:
                got.append(await queue.get())

    await asyncio.gather(gives(), takes())
    assert got == list(range(5))


async def generators() -> None:
    closed = []

    async def numbers() -> Any:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0)
            closed.append(True)

    assert [number async for number in numbers()] == [1, 2]
    stream = numbers()
    await anext(stream)
    await stream.aclose()
    assert closed == [True, True]


@pytest.mark.parametrize(
    "main",
    [cancelling, waiting, shielding, timing_out, events, semaphores, queues_and_locks, generators],
    ids=lambda main: main.__name__,
)
def test_what_asyncio_offers_works_in_any_order(main: Callable[[], Any]) -> None:
    for seed in range(30):
        run(main(), seed)


def test_each_callback_of_a_future_runs_once() -> None:
    async def main() -> list[int]:
        called: list[int] = []

        def note(n: int, _: object) -> None:
            called.append(n)

        future = asyncio.get_running_loop().create_future()
        for n in range(10):
            future.add_done_callback(functools.partial(note, n))
        future.set_result(None)
        await asyncio.sleep(1)
        return called

    orders = [run(main(), seed) for seed in range(5)]
    assert all(sorted(order) == list(range(10)) for order in orders)
    assert orders[0] != orders[1]


def test_there_are_no_threads() -> None:
    async def main() -> None:
        await asyncio.to_thread(print)

    with pytest.raises(RuntimeError, match="needs a thread"):
        run(main(), 0)


def test_a_crash_ends_it_at_any_callback() -> None:
    async def counts(trace: list[int]) -> None:
        for n in range(1_000):
            trace.append(n)
            await asyncio.sleep(0)

    async def main(trace: list[int]) -> str:
        await asyncio.gather(counts(trace), counts(trace))
        return "over"

    def at(steps: int) -> list[int]:
        trace: list[int] = []
        seen: list[int] = []
        with pytest.raises(Crashed):
            run(main(trace), 7, crash_after=steps, on_crash=lambda: seen.extend(trace))
        assert len(trace) == len(seen)
        return seen

    assert at(10) == at(10)
    assert at(5) != at(20)
    assert run(main([]), 7, crash_after=100_000) == "over"
