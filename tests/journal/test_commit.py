"""Group commit: threads and event loops that append to one journal at once, and who is told what was lost."""

import asyncio
import errno
import gc
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from maka.journal.committers import Committers
from maka.journal.errors import JournalError, JournalWriteError
from maka.journal.writer import JournalWriter
from support import chain
from support.disks import FaultyDisk
from support.drafts import header, note


class Gate:
    """Holds an operation of the disk until the test lets it go."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.reached = threading.Event()
        self.go = threading.Event()

    def __call__(self, operation: str) -> None:
        if operation == self.what and not self.go.is_set():
            self.reached.set()
            assert self.go.wait(20)


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "s1").mkdir(mode=0o700)
    return tmp_path / "s1" / "journal.jsonl"


@pytest.fixture
def writer(path: Path, disk: FaultyDisk) -> Iterator[JournalWriter]:
    writer = JournalWriter.create(path, header(), fs=disk)
    disk.trace.clear()
    yield writer
    try:
        writer.close()
    except JournalError:
        pass


def texts(path: Path) -> list[str]:
    return [event["data"]["text"] for event in chain.check(path.read_bytes())[1:]]


class Appender(threading.Thread):
    """Appends and flushes once, and keeps what came of it."""

    def __init__(self, writer: JournalWriter, text: str) -> None:
        super().__init__()
        self.writer, self.text = writer, text
        self.appended = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.writer.append(note(self.text))
            self.appended.set()
            self.writer.flush()
        except BaseException as error:
            self.error = error


def test_64_threads_share_writes_and_syncs(writer: JournalWriter, path: Path, disk: FaultyDisk) -> None:
    acknowledged: list[str] = []

    def run(name: int) -> None:
        for number in range(5):
            event = writer.append(note(f"{name}-{number}"))
            writer.flush()
            assert writer.head.seq >= event.seq
            acknowledged.append(event.data["text"])

    threads = [threading.Thread(target=run, args=(name,)) for name in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert len(acknowledged) == 320
    found = texts(path)
    assert sorted(found) == sorted(acknowledged)
    for name in range(64):
        mine = [text for text in found if text.startswith(f"{name}-")]
        assert mine == [f"{name}-{number}" for number in range(5)], "each thread's events stand in its order"
    assert disk.trace.count("write") == disk.trace.count("sync") < 320


def test_who_comes_while_one_syncs_shares_the_next_write(writer: JournalWriter, path: Path, disk: FaultyDisk) -> None:
    gate = Gate("sync")
    disk.failures.append(gate)
    first = Appender(writer, "first")
    first.start()
    assert gate.reached.wait(20)
    rest = [Appender(writer, str(number)) for number in range(8)]
    for appender in rest:
        appender.start()
        assert appender.appended.wait(20)
    assert writer.head.seq == 0, "nothing is acknowledged before its sync"
    gate.go.set()
    for appender in [first, *rest]:
        appender.join(20)
        assert appender.error is None
    # A thread that had appended but not yet begun to wait may lead a batch of its own.
    assert 2 <= disk.trace.count("write") <= 9
    assert sorted(texts(path)) == sorted(["first", *map(str, range(8))])


def test_everyone_of_a_failed_batch_and_behind_it_gets_the_same_error(
    writer: JournalWriter, path: Path, disk: FaultyDisk
) -> None:
    gate = Gate("write")
    disk.failures.append(gate)
    disk.fail("write", errno.ENOSPC)
    first = Appender(writer, "in the failing write")
    first.start()
    assert gate.reached.wait(20)
    rest = [Appender(writer, f"behind it {number}") for number in range(5)]
    for appender in rest:
        appender.start()
        assert appender.appended.wait(20)
    writer.append(note("mine, not flushed yet"))
    gate.go.set()
    for appender in [first, *rest]:
        appender.join(20)
        assert isinstance(appender.error, JournalWriteError)
        assert appender.error is first.error
    with pytest.raises(JournalWriteError) as told:
        writer.flush()
    assert told.value is first.error
    assert texts(path) == []
    writer.append_durable(note("after"))
    assert texts(path) == ["after"]


def test_the_loss_is_told_once_and_to_each(writer: JournalWriter, path: Path, disk: FaultyDisk) -> None:
    writer.append(note("mine"))
    disk.fail("write", errno.ENOSPC)
    other = Appender(writer, "the other's")
    other.start()
    other.join(20)
    assert isinstance(other.error, JournalWriteError)
    with pytest.raises(JournalWriteError) as told:
        writer.append(note("built upon what was lost"))
    assert told.value is other.error
    writer.append_durable(note("after"))
    assert texts(path) == ["after"]


def test_who_flushes_for_another_is_told_for_it(writer: JournalWriter, path: Path, disk: FaultyDisk) -> None:
    """As when a task appends and a thread of a pool flushes for it."""
    writer.append(note("mine"))
    disk.fail("write", errno.ENOSPC)
    failing = Appender(writer, "the other's")
    failing.start()
    failing.join(20)
    errors: list[BaseException] = []

    def flush() -> None:
        try:
            writer.flush()
        except JournalWriteError as error:
            errors.append(error)

    helper = threading.Thread(target=flush)
    helper.start()
    helper.join(20)
    assert errors == [failing.error]


def test_a_loss_of_those_who_are_gone_troubles_nobody(writer: JournalWriter, path: Path, disk: FaultyDisk) -> None:
    def append_only() -> None:
        writer.append(note("by a thread that ends"))

    thread = threading.Thread(target=append_only)
    thread.start()
    thread.join(20)
    del thread
    disk.fail("write", errno.ENOSPC)
    failing = Appender(writer, "x")
    failing.start()
    failing.join(20)
    del failing
    gc.collect()
    writer.flush()
    writer.append_durable(note("after"))
    assert texts(path) == ["after"]


def test_a_failed_sync_is_told_to_all_and_for_good(writer: JournalWriter, path: Path, disk: FaultyDisk) -> None:
    gate = Gate("write")
    disk.failures.append(gate)
    disk.fail("sync")
    appenders = [Appender(writer, "a")]
    appenders[0].start()
    assert gate.reached.wait(20)
    appenders += [Appender(writer, text) for text in "bcd"]
    for appender in appenders[1:]:
        appender.start()
        assert appender.appended.wait(20)
    gate.go.set()
    for appender in appenders:
        appender.join(20)
        assert isinstance(appender.error, JournalWriteError)
        assert appender.error.poisoned
        assert appender.error is appenders[0].error
    with pytest.raises(JournalWriteError) as told:
        writer.append(note())
    assert told.value is appenders[0].error
    assert texts(path) == []


def test_close_waits_for_a_write_that_is_under_way(writer: JournalWriter, path: Path, disk: FaultyDisk) -> None:
    gate = Gate("sync")
    disk.failures.append(gate)
    first = Appender(writer, "first")
    first.start()
    assert gate.reached.wait(20)
    writer.append(note("second"))
    closing = threading.Thread(target=writer.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    gate.go.set()
    closing.join(20)
    first.join(20)
    assert first.error is None
    assert texts(path) == ["first", "second"]


def test_a_flush_during_a_preview_waits_for_it_and_goes_on(writer: JournalWriter, path: Path, disk: FaultyDisk) -> None:
    gate = Gate("write")
    disk.failures.append(gate)
    writer.append(note("live"))
    preview = threading.Thread(target=writer.write_pending, daemon=True)
    preview.start()
    assert gate.reached.wait(20)
    appender = Appender(writer, "a barrier")
    appender.daemon = True
    appender.start()
    assert appender.appended.wait(20)
    gate.go.set()
    for thread in (preview, appender):
        thread.join(20)
        assert not thread.is_alive()
    assert appender.error is None
    assert texts(path) == ["live", "a barrier"]


class InterruptedLock:
    """A lock that a signal interrupts when it is asked for a second time."""

    def __init__(self) -> None:
        self.asked = 0
        self.real = threading.Lock()
        self.release = self.real.release

    def acquire(self) -> bool:
        self.asked += 1
        if self.asked == 2:
            raise KeyboardInterrupt
        return self.real.acquire()


@pytest.mark.parametrize("under_way", ["write", "sync"])
def test_who_is_interrupted_while_it_waits_takes_no_part_and_keeps_nobody(
    under_way: str, writer: JournalWriter, path: Path, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``write``: while a preview is written; ``sync``: while the batch before is synced."""
    gate = Gate(under_way)
    disk.failures.append(gate)
    writer.append(note("first"))
    first = threading.Thread(target=writer.write_pending if under_way == "write" else writer.flush)
    first.start()
    assert gate.reached.wait(20)
    monkeypatch.setattr("maka.journal.commit.Lock", InterruptedLock)
    writer.append(note("interrupted"))
    with pytest.raises(KeyboardInterrupt):
        writer.flush()
    monkeypatch.undo()

    async def task() -> None:
        writer.append(note("a task's"))
        waiting = asyncio.create_task(writer.aflush())
        await asyncio.sleep(0.05)
        assert not waiting.done(), "nobody writes beside the one that writes"
        assert disk.trace.count(under_way) == 1
        gate.go.set()
        await asyncio.wait_for(waiting, 20)

    asyncio.run(task())
    first.join(20)
    writer.append_durable(note("last"))
    assert texts(path) == ["first", "interrupted", "a task's", "last"]


def test_what_is_appended_while_the_session_closes_is_written_or_refused(writer: JournalWriter, path: Path) -> None:
    begun, taken = threading.Event(), []

    def appends() -> None:
        for number in range(1_000_000):
            try:
                writer.append(note(str(number)))
            except JournalError:
                return
            taken.append(str(number))
            begun.set()

    appender = threading.Thread(target=appends)
    appender.start()
    assert begun.wait(20)
    writer.close()
    appender.join(20)
    assert not appender.is_alive()
    assert 0 < len(taken) < 1_000_000
    assert texts(path) == taken


def test_what_nobody_flushes_does_not_grow_without_bound(
    writer: JournalWriter, path: Path, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maka.journal.writer.MOST_PENDING", 5_000)
    for number in range(100):
        writer.append(note(f"{number} " + "x" * 500))
        assert len(writer._commit.enqueued()) <= 8
    assert 90 <= writer.head.seq <= 100
    assert 8 <= disk.trace.count("sync") <= 20
    disk.fail("write", errno.ENOSPC)
    with pytest.raises(JournalWriteError):
        writer.append_batch([note("x" * 500) for _ in range(20)])


# ---------------------------------------------------------------- asyncio


def test_threads_and_tasks_share_a_batch(writer: JournalWriter, path: Path, disk: FaultyDisk) -> None:
    """Whoever leads, the others come along, and what comes meanwhile is led by one of those who wait for it."""

    def threads(name: str) -> None:
        for number in range(30):
            writer.append(note(f"{name}-{number}"))
            writer.flush()

    async def task(name: str) -> None:
        for number in range(30):
            writer.append(note(f"{name}-{number}"))
            await writer.aflush()

    async def main() -> None:
        await asyncio.gather(
            *(task(f"task{i}") for i in range(8)), *(asyncio.to_thread(threads, f"t{i}") for i in range(4))
        )

    asyncio.run(asyncio.wait_for(main(), 30))
    assert len(texts(path)) == 360
    assert disk.trace.count("write") == disk.trace.count("sync") < 360


def test_tasks_share_a_sync_and_the_loop_goes_on(writer: JournalWriter, path: Path, disk: FaultyDisk) -> None:
    gate = Gate("sync")

    async def main() -> None:
        disk.failures.append(gate)

        async def append(text: str) -> None:
            event = writer.append(note(text))
            await writer.aflush()
            assert writer.head.seq >= event.seq

        tasks = [asyncio.create_task(append(str(number))) for number in range(20)]
        while not gate.reached.is_set():
            await asyncio.sleep(0.001)
        assert not any(task.done() for task in tasks), "the loop runs while the disk works, and nobody is let go early"
        gate.go.set()
        await asyncio.gather(*tasks)
        await writer.aflush()

    asyncio.run(main())
    assert sorted(texts(path)) == sorted(map(str, range(20)))
    assert disk.trace.count("sync") <= 2


def test_tasks_of_a_failed_batch_get_the_same_error(writer: JournalWriter, path: Path, disk: FaultyDisk) -> None:
    gate = Gate("write")
    disk.failures.append(gate)
    disk.fail("write", errno.ENOSPC)

    async def main() -> None:
        async def append(text: str) -> None:
            event = writer.append(note(text))
            if event.seq == last:
                gate.go.set()  # only now: who appends after the failure has lost nothing
            await writer.aflush()

        last = writer.next_seq + 9
        results = await asyncio.gather(*(append(str(number)) for number in range(10)), return_exceptions=True)
        assert isinstance(results[0], JournalWriteError)
        assert all(result is results[0] for result in results)
        await append("after")

    asyncio.run(main())
    assert texts(path) == ["after"]


def test_a_task_that_waits_elsewhere_is_told_at_its_next_call(
    writer: JournalWriter, path: Path, disk: FaultyDisk
) -> None:
    async def main() -> None:
        lost, told = asyncio.Event(), []

        async def slow() -> None:
            writer.append(note("appended, then busy"))
            await lost.wait()
            try:
                writer.append(note("built upon it"))
            except JournalWriteError as error:
                told.append(error)
            await writer.aflush()

        async def failing() -> None:
            await asyncio.sleep(0)
            disk.fail("write", errno.ENOSPC)
            writer.append(note("failing"))
            try:
                await writer.aflush()
            except JournalWriteError as error:
                told.append(error)
            lost.set()

        await asyncio.gather(slow(), failing())
        assert len(told) == 2
        assert told[0] is told[1]

    asyncio.run(main())
    assert texts(path) == []


def test_cancelling_a_wait_takes_nothing_back(writer: JournalWriter, path: Path, disk: FaultyDisk) -> None:
    gate = Gate("sync")
    disk.failures.append(gate)

    async def main() -> None:
        writer.append(note("kept"))
        task = asyncio.create_task(writer.aflush())
        while not gate.reached.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.go.set()
        await writer.aflush()

    asyncio.run(main())
    assert texts(path) == ["kept"]


def test_a_loop_that_ends_first_does_not_stop_the_next(writer: JournalWriter, path: Path, disk: FaultyDisk) -> None:
    gate = Gate("sync")
    disk.failures.append(gate)

    async def leave() -> None:
        writer.append(note("left behind"))
        task = asyncio.create_task(writer.aflush())
        while not gate.reached.is_set():
            await asyncio.sleep(0.001)
        task.cancel()

    asyncio.run(leave())
    gate.go.set()

    async def again() -> None:
        writer.append(note("again"))
        await writer.aflush()

    asyncio.run(again())
    assert texts(path) == ["left behind", "again"]


def test_live_text_is_written_for_readers_without_a_barrier(
    writer: JournalWriter, path: Path, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maka.journal.commit.PREVIEW", 0.01)

    async def main() -> None:
        writer.append(note("a barrier"))
        await writer.aflush()
        syncs = disk.trace.count("sync")
        head = writer.head
        writer.append(note("live"))
        for _ in range(2000):
            if b"live" in path.read_bytes():
                break
            await asyncio.sleep(0.005)
        assert b"live" in path.read_bytes()
        assert disk.trace.count("sync") == syncs
        assert writer.head == head
        writer.append(note("later"))
        await writer.aflush()

    asyncio.run(main())
    assert texts(path) == ["a barrier", "live", "later"]


@pytest.fixture
def own_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that no other test in this process uses."""
    monkeypatch.setattr("maka.journal.committers.shared", Committers())


def waiting_threads() -> set[threading.Thread]:
    """Those that wait for the disk, of this test and of others that went before it in this process."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("commit ")}


@pytest.mark.usefixtures("own_threads")
def test_many_sessions_on_one_loop(tmp_path: Path) -> None:
    before = waiting_threads()

    async def run(writer: JournalWriter) -> None:
        for number in range(20):
            writer.append(note(str(number)))
            await writer.aflush()

    writers = []
    for name in range(8):
        (tmp_path / str(name)).mkdir(mode=0o700)
        writers.append(JournalWriter.create(tmp_path / str(name) / "journal.jsonl", header()))

    async def main() -> None:
        await asyncio.gather(*map(run, writers))

    asyncio.run(main())
    for writer in writers:
        writer.close()
        assert texts(writer.path) == [str(number) for number in range(20)]
    assert not waiting_threads() - before


@pytest.mark.usefixtures("own_threads")
def test_a_dead_handle_keeps_no_thread_once_it_is_closed(writer: JournalWriter, path: Path, disk: FaultyDisk) -> None:
    before = waiting_threads()

    async def main() -> None:
        writer.append(note())
        disk.fail("sync")
        with pytest.raises(JournalWriteError):
            await writer.aflush()

    asyncio.run(main())
    assert writer.poisoned
    with suppress(JournalError):
        writer.close()
    assert not waiting_threads() - before


@pytest.mark.usefixtures("own_threads")
def test_nothing_to_flush_needs_no_thread(writer: JournalWriter) -> None:
    before = waiting_threads()
    asyncio.run(writer.aflush())
    assert not waiting_threads() - before
