"""The way into the journal: what is told when, and what a failed barrier leaves possible."""

import asyncio
from pathlib import Path

import pytest

from maka.journal.errors import JournalError, JournalWriteError
from maka.journal.store import FileStore
from maka.journal.writer import JournalWriter
from maka.runtime.record import Recorder, SessionEvent
from support import drafts
from support.disks import FaultyDisk
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


def test_what_was_written_again_is_told_to_no_other_task_as_lost(tmp_path: Path) -> None:
    """Another task appended a part of the batch and never comes back; a third one flushes later, as a run's do."""
    disk = FaultyDisk()
    FileStore(tmp_path).create(drafts.header()).close()
    at = {"turn_id": "t1", "run_id": "r1", "step": 1}
    block = {"kind": "tool_call", "call_id": "c1", "name": "work", "arguments": "{}"}

    async def main() -> None:
        with JournalWriter.open(FileStore(tmp_path).path("s1"), fs=disk) as writer:
            recorder = Recorder(writer, lambda event: None, lambda event: None, "t1", lambda: 0)
            recorder.add_batch(drafts.begin(1))
            recorder.add("step/start", at)
            await recorder.barrier()

            async def says() -> None:
                said = {**at, "message_id": "m", "content": [block], "stop_reason": "tool_use"}
                recorder.add("assistant/message", said)

            saying = asyncio.ensure_future(says())
            await saying
            disk.fail("write")
            text = [{"kind": "text", "text": "no"}]
            recorder.add("tool/result", {**at, "call_id": "c1", "state": "error", "content": text, "is_error": True})
            await recorder.barrier()
            await asyncio.ensure_future(writer.aflush())
            assert saying.done(), "it is held, as the task of a run is"

    asyncio.run(main())
    assert [event.type for event in FileStore(tmp_path).read("s1")][-2:] == ["assistant/message", "tool/result"]
