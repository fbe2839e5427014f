"""The threads that wait for the disk in a loop's place."""

import asyncio
import os
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from maka.journal.committers import MOST, Committers, Mailbox, mailbox
from maka.journal.writer import JournalWriter
from support.disks import FaultyDisk
from support.drafts import header, note


@pytest.fixture
def pool() -> Iterator[Committers]:
    pool = Committers()
    pool.enter()
    yield pool
    pool.leave()


def test_works_are_done_in_turn_by_a_bounded_number_of_threads(pool: Committers) -> None:
    go, names, running, most = threading.Event(), set(), 0, 0
    mutex, done = threading.Lock(), threading.Semaphore(0)

    def work() -> None:
        nonlocal running, most
        with mutex:
            running += 1
            most = max(most, running)
            names.add(threading.current_thread().name)
        assert go.wait(20)
        with mutex:
            running -= 1
        done.release()

    for _ in range(5 * MOST):
        pool.run(work)
    go.set()
    for _ in range(5 * MOST):
        assert done.acquire(timeout=20)
    assert most <= MOST
    assert all(name.startswith("commit ") for name in names)


def test_a_work_that_waits_keeps_no_other_waiting(pool: Committers) -> None:
    go, done = threading.Event(), threading.Event()
    for _ in range(MOST - 1):
        begun = threading.Event()

        def waits(begun: threading.Event = begun) -> None:
            begun.set()
            assert go.wait(20)

        pool.run(waits)
        assert begun.wait(20)
    pool.run(done.set)
    assert done.wait(5)
    go.set()


def test_a_work_that_fails_takes_no_thread_along(pool: Committers) -> None:
    done = threading.Event()

    def fails() -> None:
        raise KeyboardInterrupt

    for _ in range(2 * MOST):
        pool.run(fails)
    pool.run(done.set)
    assert done.wait(20)


def test_the_threads_end_with_the_last_user_and_come_back() -> None:
    pool, before = Committers(), threading.active_count()
    for _ in range(2):
        pool.enter()
        pool.enter()
        done = threading.Event()
        pool.run(done.set)
        assert done.wait(20)
        pool.leave()
        assert threading.active_count() == before + 1
        pool.leave()
        assert threading.active_count() == before


def test_what_was_given_before_the_last_user_leaves_is_done() -> None:
    done: list[int] = []
    pool = Committers()
    pool.enter()
    for number in range(100):
        pool.run(partial(done.append, number))
    pool.leave()
    assert sorted(done) == list(range(100))


def test_one_mailbox_for_each_loop_and_one_call_for_many_letters() -> None:
    async def main() -> Mailbox:
        loop = asyncio.get_running_loop()
        box = mailbox(loop)
        assert mailbox(loop) is box
        futures: list[asyncio.Future[None]] = [loop.create_future() for _ in range(10)]
        futures[3].cancel()
        calls, tell = [], loop.call_soon_threadsafe

        def told(work: Any) -> asyncio.Handle:
            calls.append(work)
            return tell(work)

        loop.call_soon_threadsafe = told  # type: ignore[assignment, method-assign]
        for number in range(0, 10, 2):
            box.post(futures[number : number + 2])
        assert len(calls) == 1
        await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), 20)
        box.post([loop.create_future()])
        assert len(calls) == 2
        return box

    first, second = asyncio.run(main()), asyncio.run(main())
    assert first is not second
    first.post([])  # its loop is closed: nobody waits any more


def test_a_session_whose_disk_hangs_keeps_no_other_waiting(tmp_path: Path) -> None:
    go, hangs = threading.Event(), FaultyDisk()

    def hang(operation: str) -> None:
        if operation == "sync":
            assert go.wait(20)

    writers = []
    for name, disk in (("hangs", hangs), ("works", FaultyDisk())):
        (tmp_path / name).mkdir(mode=0o700)
        writers.append(JournalWriter.create(tmp_path / name / "journal.jsonl", header(name), fs=disk))
    hangs.failures.append(hang)

    async def main() -> None:
        stuck, works = writers
        stuck.append(note())
        waiting = [asyncio.create_task(stuck.aflush()) for _ in range(2 * MOST)]
        for _ in range(10):
            works.append(note())
            await asyncio.wait_for(works.aflush(), 20)
        assert not any(task.done() for task in waiting)
        go.set()
        await asyncio.gather(*waiting)

    asyncio.run(main())
    for writer in writers:
        writer.close()


def test_a_forked_child_has_threads_of_its_own(tmp_path: Path) -> None:
    """Those of the parent were not forked; a session that the child opens must not wait for them."""
    for name in ("parent", "child"):
        (tmp_path / name).mkdir(mode=0o700)
    writer = JournalWriter.create(tmp_path / "parent" / "journal.jsonl", header("parent"))

    async def flush(writer: JournalWriter) -> None:
        writer.append(note())
        await writer.aflush()

    asyncio.run(flush(writer))
    child = os.fork()
    if child == 0:
        try:
            own = JournalWriter.create(tmp_path / "child" / "journal.jsonl", header("child"))
            asyncio.run(asyncio.wait_for(flush(own), 20))
            own.close()
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    asyncio.run(flush(writer))
    writer.close()
    assert (tmp_path / "child" / "journal.jsonl").read_bytes().count(b"\n") == 2
