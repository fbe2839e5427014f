"""Sessions open for writing over real files: locks, repairs, what fails, what is cancelled."""

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import maka
from maka.journal import rollback
from maka.journal.errors import JournalDamaged, JournalLocked, JournalWriteError, SessionNotFound
from maka.journal.store import FileStore
from maka.runtime.conversation import Conversation
from maka.runtime.journals import FileJournals, OpenSession
from support.disks import FaultyDisk
from support.drafts import begin, end, header, note, step, whole_turn

LIMIT = 30.0


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "root"
    FileStore(place).create(header(), whole_turn()).close()
    yield place
    rollback._beyond.clear()


def path_of(root: Path, session_id: str = "s1") -> Path:
    return root / "sessions" / session_id / "journal.jsonl"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def append(session: OpenSession, *drafts: Any) -> None:
    for event in session.journal.append_batch(drafts):
        session.observe(event)


async def reading(journals: FileJournals, session_id: str) -> tuple[OpenSession, Conversation]:
    """A session opened, and its conversation read."""
    session = await journals.open(session_id)
    assert session.conversation is None, "it takes the whole history, and nobody needed it"
    session.reading()
    conversation = await journals.conversation(session)
    session.read(conversation)
    return session, conversation


def test_a_session_is_opened_with_its_fold_and_its_conversation_is_read(root: Path) -> None:
    async def main() -> None:
        journals = FileJournals(root)
        session, conversation = await reading(journals, "s1")
        assert (session.session_id, session.directory) == ("s1", path_of(root).parent)
        assert session.journal.state.turns.last == 1
        assert [message["role"] for message in conversation.messages()] == ["user", "assistant"]
        append(session, *begin(2), *step(2), *end(2))
        await session.journal.aflush()
        await journals.close(session)
        await journals.close(session)
        again, whole = await reading(journals, "s1")
        assert len(whole.messages()) == 4
        assert whole.messages() == conversation.messages()
        await journals.close(again)

    asyncio.run(main())


def test_what_is_appended_while_the_conversation_is_read_is_in_it_once(root: Path) -> None:
    async def main() -> None:
        journals = FileJournals(root)
        session = await journals.open("s1")
        append(session, *begin(2))
        session.reading()
        # On the disk before it is read, and seen beside; then only seen.
        append(session, *step(2))
        await session.journal.aflush()
        conversation = await journals.conversation(session)
        append(session, *end(2))
        session.read(conversation)
        append(session, *begin(3))
        await session.journal.aflush()
        again = await journals.conversation(session)
        assert session.conversation is conversation
        assert conversation.seq == again.seq
        assert conversation.messages() == again.messages()
        await journals.close(session)

    asyncio.run(main())


def test_nothing_to_do_leaves_every_byte(root: Path) -> None:
    before = path_of(root).read_bytes()

    async def main() -> None:
        for cause in (None, "journal_write_failed"):
            journals = FileJournals(root)
            await journals.close(await journals.open("s1", cause=cause))

    asyncio.run(main())
    assert path_of(root).read_bytes() == before


def test_a_second_open_is_refused_at_once_and_the_first_goes_on(root: Path) -> None:
    async def main() -> None:
        journals = FileJournals(root)
        session = await journals.open("s1")
        for other in (journals, FileJournals(root)):
            with pytest.raises(JournalLocked, match=str(os.getpid())):
                await other.open("s1")
        append(session, note())
        await session.journal.aflush()
        await journals.close(session)
        await journals.close(await FileJournals(root).open("s1"))

    asyncio.run(main())
    assert lines(path_of(root))[-1]["type"] == "session/note"


@pytest.mark.parametrize("name", ["nobody", "../s1", "", "a/b"])
def test_what_is_no_session_is_not_found(root: Path, name: str) -> None:
    with pytest.raises(SessionNotFound):
        asyncio.run(FileJournals(root).open(name))


def test_a_damaged_session_is_refused_and_not_touched(root: Path) -> None:
    path = path_of(root)
    raw = path.read_bytes().splitlines(keepends=True)
    raw[2] = raw[2].replace(b'"hi"', b'"ho"')
    path.write_bytes(b"".join(raw))
    (path.parent / "snapshot.json").unlink()
    with pytest.raises(JournalDamaged, match="salvage"):
        asyncio.run(FileJournals(root).open("s1"))
    assert path.read_bytes() == b"".join(raw)
    # The lock was given up.
    maka.load(path)


_KILLED = """
import asyncio, os, signal, sys
from maka.runtime.journals import FileJournals
from support.drafts import begin, step

async def main():
    session = await FileJournals(sys.argv[1]).open("s1")
    session.journal.append_batch(begin(2))
    session.journal.append_batch(step(2)[:-1])
    await session.journal.aflush()
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def test_an_open_after_a_kill_repairs(root: Path) -> None:
    tests = str(Path(__file__).parent.parent)
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED, str(root)], env={**os.environ, "PYTHONPATH": tests}, timeout=LIMIT, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    before = path_of(root).read_bytes()

    async def main() -> list[str]:
        journals = FileJournals(root)
        session, conversation = await reading(journals, "s1")
        # The loop's fold has what the repair wrote.
        assert session.journal.state.turns.open == {}
        messages = conversation.messages()
        append(session, *begin(3), *step(3), *end(3))
        await session.journal.aflush()
        await journals.close(session)
        return [message["role"] for message in messages]

    assert asyncio.run(main()) == ["user", "assistant", "user", "assistant"]
    assert path_of(root).read_bytes().startswith(before)
    assert [row["reason"]["kind"] for row in maka.inspect(path_of(root)).turns()] == [
        "completed",
        "interrupted",
        "completed",
    ]
    assert maka.inspect(path_of(root)).verdict == "healthy"


@pytest.mark.parametrize("fails", ["write", "sync"])
def test_a_reopen_after_a_failure_of_the_journal_ends_the_turn_with_its_cause(root: Path, fails: str) -> None:
    disk = FaultyDisk()

    async def main() -> None:
        journals = FileJournals(root, fs=disk)
        session = await journals.open("s1")
        append(session, *begin(2))
        await session.journal.aflush()
        disk.fail(fails, errno.EIO)
        append(session, *step(2))
        with pytest.raises(JournalWriteError) as failed:
            await session.journal.aflush()
        assert failed.value.poisoned is (fails == "sync")
        await journals.close(session)
        again = await journals.open("s1", cause="journal_write_failed")
        assert again.journal.state.turns.open == {}
        append(again, *begin(3), *step(3), *end(3))
        await again.journal.aflush()
        await journals.close(again)

    asyncio.run(main())
    ended = [event["data"]["reason"] for event in lines(path_of(root)) if event["type"] == "turn/end"]
    assert [reason["kind"] for reason in ended] == ["completed", "failed", "completed"]
    assert ended[1]["failure_class"] == "journal_write_failed"
    assert maka.inspect(path_of(root)).verdict == "healthy"


def test_a_close_tells_what_it_lost_and_gives_the_lock_up(root: Path) -> None:
    disk = FaultyDisk()
    before = path_of(root).read_bytes()

    async def main() -> None:
        journals = FileJournals(root, fs=disk)
        session = await journals.open("s1")
        append(session, note())
        disk.fail("write", errno.ENOSPC)
        with pytest.raises(JournalWriteError, match="free some space"):
            await journals.close(session)
        await journals.close(await journals.open("s1"))

    asyncio.run(main())
    assert path_of(root).read_bytes() == before


class Held(FaultyDisk):
    """A disk whose first sync waits until the test lets it go; ``reached`` is set when it does."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.go = threading.Event(), threading.Event()
        self.failures.append(self._hold)

    def _hold(self, what: str) -> None:
        if what == "sync":
            self.reached.set()
            assert self.go.wait(LIMIT)


@pytest.mark.parametrize("times", [1, 3])
def test_a_cancelled_open_leaves_no_lock(root: Path, times: int) -> None:
    disk = Held()

    async def main() -> None:
        journals = FileJournals(root, fs=disk)
        opening = asyncio.create_task(journals.open("s1"))
        await asyncio.to_thread(disk.reached.wait, LIMIT)
        for _ in range(times):
            opening.cancel()
            await asyncio.sleep(0)
            assert not opening.done()
        disk.go.set()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await journals.close(await journals.open("s1"))

    asyncio.run(main())


def test_an_open_that_fails_while_it_is_cancelled_is_cancelled(root: Path) -> None:
    disk = Held()
    disk.fail("sync", errno.EIO)

    async def main() -> None:
        journals = FileJournals(root, fs=disk)
        opening = asyncio.create_task(journals.open("s1"))
        await asyncio.to_thread(disk.reached.wait, LIMIT)
        opening.cancel()
        disk.go.set()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await journals.close(await journals.open("s1"))

    asyncio.run(main())


def test_a_cancelled_close_closes(root: Path) -> None:
    disk = Held()
    disk.go.set()

    async def main() -> None:
        journals = FileJournals(root, fs=disk)
        session = await journals.open("s1")
        append(session, note("kept"))
        disk.reached.clear()
        disk.go.clear()
        closing = asyncio.create_task(journals.close(session))
        await asyncio.to_thread(disk.reached.wait, LIMIT)
        closing.cancel()
        await asyncio.sleep(0)
        disk.go.set()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await journals.close(await journals.open("s1"))

    asyncio.run(main())
    assert lines(path_of(root))[-1]["data"]["text"] == "kept"


def test_a_loop_that_ends_in_the_middle_of_an_open_leaves_no_lock(root: Path) -> None:
    disk = Held()

    async def main() -> None:
        opening = asyncio.create_task(FileJournals(root, fs=disk).open("s1"))
        await asyncio.to_thread(disk.reached.wait, LIMIT)
        asyncio.get_running_loop().call_later(0.01, disk.go.set)
        assert not opening.done()

    asyncio.run(main())
    with maka.open_session(path_of(root)):
        pass


def test_the_hook_and_the_clock_reach_what_is_written(root: Path) -> None:
    hooked: list[str] = []

    def hook(draft: Any) -> Any:
        hooked.append(draft.type)
        return draft

    async def main() -> None:
        journals = FileJournals(root, on_append=hook, clock=lambda: 4_000_000_000_000)
        session = await journals.open("s1")
        append(session, note())
        await session.journal.aflush()
        await journals.close(session)
        journals.store.create(header("s2")).close()

    asyncio.run(main())
    assert hooked == ["session/note", "session/header"]
    assert lines(path_of(root))[-1]["ts"] == lines(path_of(root, "s2"))[0]["ts"] == 4_000_000_000_000


def test_a_fork_goes_on_with_its_parents_conversation(root: Path) -> None:
    parent = lines(path_of(root))
    at = next(event for event in parent if event["type"] == "turn/end")
    link = {"session_id": "s1", "seq": at["seq"], "sum": at["sum"]}
    FileStore(root).create(header("s2", parent=link, model="other")).close()

    async def main() -> None:
        journals = FileJournals(root)
        fork, said = await reading(journals, "s2")
        assert said.model == "other"
        assert not said.requested
        assert [message["role"] for message in said.messages()] == ["user", "assistant"]
        # The parent may be written to at the same time.
        whole, untouched = await reading(journals, "s1")
        append(fork, *begin(2, "only here"), *step(2), *end(2))
        await fork.journal.aflush()
        assert len(untouched.messages()) == 2
        await journals.close(whole)
        await journals.close(fork)
        again, both = await reading(journals, "s2")
        assert len(both.messages()) == 4
        await journals.close(again)

    asyncio.run(main())
    assert maka.inspect(path_of(root, "s2")).verdict == "healthy"


def test_many_sessions_are_open_at_once(root: Path) -> None:
    names = [f"m{number}" for number in range(40)]
    store = FileStore(root)
    for name in names:
        store.create(header(name)).close()

    async def main() -> None:
        journals = FileJournals(root)
        sessions = await asyncio.gather(*map(journals.open, names))
        for session in sessions:
            append(session, note(session.session_id))
        await asyncio.gather(*(session.journal.aflush() for session in sessions))
        await asyncio.gather(*map(journals.close, sessions))

    asyncio.run(main())
    assert [lines(path_of(root, name))[-1]["data"]["text"] for name in names] == names
