"""The way into the journal: what is told when, and what a failed barrier leaves possible."""

import asyncio

import pytest

from maka.journal.errors import JournalError, JournalWriteError
from maka.runtime.record import Recorder, SessionEvent
from support.loops import MemoryJournal


def result(call_id: str) -> dict[str, object]:
    where = {"turn_id": "t", "run_id": "r", "step": 1, "call_id": call_id}
    return {**where, "state": "ok", "content": [], "is_error": False}


class Bench:
    """A recorder on a journal whose first sync fails."""

    def __init__(self) -> None:
        self.error = JournalWriteError("no room", errno=28)
        self.journal = MemoryJournal(lambda journal: self.error if journal.syncs == 1 else None)
        self.told: list[SessionEvent] = []
        self.recorder = Recorder(self.journal, lambda event: None, self.told.append, "t", lambda: 0)


def test_who_waits_for_the_same_batch_waits_for_the_same_second_try() -> None:
    bench = Bench()

    async def main() -> None:
        bench.recorder.add("tool/result", result("a"))
        bench.recorder.tell("tool_result")
        await asyncio.gather(bench.recorder.barrier(), bench.recorder.barrier())

    asyncio.run(main())
    assert bench.journal.types() == ["tool/result"]
    assert bench.journal.syncs == 2
    assert len(bench.told) == 1
    assert bench.recorder.failure is None


def test_nothing_is_written_again_where_something_was_appended_behind_it() -> None:
    """Nobody can say then which of the events are lost."""
    bench = Bench()

    async def main() -> None:
        bench.recorder.add("tool/result", result("a"))
        barrier = asyncio.ensure_future(bench.recorder.barrier())
        await asyncio.sleep(0)
        bench.recorder.add("tool/result", result("b"))
        with pytest.raises(JournalWriteError) as raised:
            await barrier
        assert raised.value is bench.error

    asyncio.run(main())
    assert bench.journal.syncs == 1
    assert bench.journal.types() == []


def test_nothing_is_written_again_where_a_wait_was_cancelled() -> None:
    """What that one wrote is durable although nobody was told; writing it again would put it there twice."""
    bench = Bench()
    bench.journal.syncs = -1

    async def main() -> None:
        bench.recorder.add("session/note", {"kind": "retry"})
        flushing = asyncio.ensure_future(bench.journal.aflush())
        barrier = asyncio.ensure_future(bench.recorder.barrier())
        await asyncio.sleep(0)
        barrier.cancel()
        await asyncio.wait({flushing, barrier})
        bench.recorder.add("tool/result", result("a"))
        with pytest.raises(JournalWriteError):
            await bench.recorder.barrier()

    asyncio.run(main())
    assert bench.journal.types() == ["session/note"]


def test_nothing_is_appended_while_a_second_try_is_under_way_or_after_it_failed() -> None:
    bench = Bench()
    refused: list[JournalError] = []

    def append_beside() -> None:
        try:
            bench.recorder.add("tool/result", result("b"))
        except JournalError as error:
            refused.append(error)

    async def main() -> None:
        fail = bench.journal._fail

        def failing(journal: MemoryJournal) -> JournalError | None:
            # Runs once the barrier has met the error, before or while the second try does anything.
            asyncio.get_running_loop().call_soon(append_beside)
            return fail(journal)

        bench.journal._fail = failing
        bench.recorder.add("tool/result", result("a"))
        await bench.recorder.barrier()

    asyncio.run(main())
    assert refused[0] is bench.error
    assert bench.journal.types()[0] == "tool/result"
    assert bench.journal.events[0].data["call_id"] == "a"
