"""No task is left behind, whatever it does while it is cancelled."""

import asyncio

from maka.runtime.tasks import Tasks


def test_what_a_cancelled_task_begins_is_cancelled_too() -> None:
    async def main() -> list[str]:
        tasks, ended = Tasks(), []

        async def last() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("last")

        async def stubborn() -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                tasks.spawn(last(), "last")
                await asyncio.sleep(0)
                ended.append("stubborn")

        tasks.spawn(stubborn(), "stubborn")
        await asyncio.sleep(0)
        await tasks.cancel(1)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return ended

    assert asyncio.run(main()) == ["stubborn", "last"]


def test_one_that_does_not_end_is_waited_for_no_longer_than_it_may() -> None:
    async def main() -> None:
        tasks, release = Tasks(), asyncio.Event()

        async def deaf() -> None:
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    pass

        task = tasks.spawn(deaf(), "deaf")
        await asyncio.sleep(0)
        await asyncio.wait_for(tasks.cancel(0.05), 5)
        assert not task.done()
        release.set()
        await task

    asyncio.run(main())
