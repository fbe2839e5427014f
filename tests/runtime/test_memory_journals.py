"""The journals in memory behave as those on disk do, so that what passes on them is worth something."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from maka.journal.errors import InvalidEvent, JournalError, JournalLocked, JournalWriteError, SessionNotFound
from maka.journal.events import Draft
from maka.journal.state import State
from maka.runtime.journals import Journals, OpenSession, SessionJournal
from support import drafts
from support.memory_journals import MemoryJournal, MemoryJournals, check_legal
from support.seeded_loop import run

Body = Callable[[MemoryJournals, OpenSession], Awaitable[Any]]


def journals() -> MemoryJournals:
    made = MemoryJournals()
    made.create("s1")
    return made


def opened(body: Body, seed: int = 0) -> tuple[MemoryJournals, Any]:
    made = journals()

    async def main() -> Any:
        return await body(made, await made.open("s1"))

    return made, run(main(), seed)


def types(made: MemoryJournals) -> list[str]:
    return [event.type for event in made.events("s1")]


def test_it_is_what_the_kernel_asks_for() -> None:
    made: Journals = journals()

    async def main() -> SessionJournal:
        return (await made.open("s1")).journal

    journal = asyncio.run(main())
    assert journal.next_seq == 1


def test_appended_is_folded_at_once_and_durable_after_a_flush() -> None:
    async def body(made: MemoryJournals, session: OpenSession) -> None:
        session.journal.append_batch(drafts.begin())
        assert session.journal.next_seq == 3
        assert list(session.journal.state.turns.open) == ["t1"]
        assert types(made) == ["session/header"]
        await session.journal.aflush()
        assert types(made) == ["session/header", "turn/start", "user/message"]
        assert [event.more for event in made.events("s1")] == [0, 1, 0]
        assert made.of("s1", "turn/start")[0]["turn_id"] == "t1"

    made, _ = opened(body)
    assert check_legal(made.events("s1")) == "interrupted"


def test_what_the_fold_refuses_leaves_nothing() -> None:
    async def body(made: MemoryJournals, session: OpenSession) -> None:
        with pytest.raises(InvalidEvent, match="turn_order"):
            session.journal.append_batch([*drafts.begin(), *drafts.end(7)])
        with pytest.raises(InvalidEvent):
            session.journal.append(Draft("turn/start", {"turn_id": "t1"}))
        assert session.journal.next_seq == 1
        assert not session.journal.state.turns.open
        for draft in drafts.whole_turn():
            session.journal.append(draft)
        await session.journal.aflush()

    made, _ = opened(body)
    assert check_legal(made.events("s1")) == "healthy"


def test_only_what_was_enqueued_before_the_sync_is_durable_after_it() -> None:
    async def body(made: MemoryJournals, session: OpenSession) -> list[list[str]]:
        seen = []

        async def on_sync(journal: MemoryJournal) -> None:
            if journal.syncs == 1:
                journal.append(drafts.note("late"))
            await asyncio.sleep(1)

        made.on_sync = on_sync
        session.journal.append(drafts.note("early"))
        await session.journal.aflush()
        seen.append([data["text"] for data in made.of("s1", "session/note")])
        await session.journal.aflush()
        seen.append([data["text"] for data in made.of("s1", "session/note")])
        await session.journal.aflush()
        assert isinstance(session.journal, MemoryJournal)
        assert session.journal.syncs == 2
        return seen

    assert opened(body)[1] == [["early"], ["early", "late"]]


@pytest.mark.parametrize("seed", range(10))
def test_those_who_flush_together_share_a_sync(seed: int) -> None:
    async def body(made: MemoryJournals, session: OpenSession) -> int:
        async def one(n: int) -> None:
            session.journal.append(drafts.note(str(n)))
            await session.journal.aflush()
            assert str(n) in {data["text"] for data in made.of("s1", "session/note")}

        await asyncio.gather(*(one(n) for n in range(8)))
        assert isinstance(session.journal, MemoryJournal)
        return session.journal.syncs

    made, syncs = opened(body, seed)
    assert len(made.events("s1")) == 9
    assert 1 <= syncs < 8


def failing(*errors: Exception) -> Callable[[MemoryJournal], Awaitable[None]]:
    left = list(errors)

    async def on_sync(journal: MemoryJournal) -> None:
        await asyncio.sleep(0.1)
        if left:
            raise left.pop(0)

    return on_sync


def test_a_failed_write_takes_everything_along_and_the_handle_lives() -> None:
    error = JournalWriteError("no space", errno=28)

    async def body(made: MemoryJournals, session: OpenSession) -> None:
        made.on_sync = failing(error)
        journal = session.journal
        journal.append_batch(drafts.begin())
        first, second = (asyncio.ensure_future(journal.aflush()) for _ in range(2))
        await asyncio.sleep(0.05)
        journal.append(drafts.note())  # behind the batch that fails
        assert list(await asyncio.gather(first, second, return_exceptions=True)) == [error, error]
        assert (journal.next_seq, dict(journal.state.turns.open)) == (1, {})
        assert isinstance(journal, MemoryJournal)
        assert not journal.poisoned
        with pytest.raises(JournalWriteError):  # this task has appended, and was not told yet
            journal.append(drafts.note())
        journal.append(drafts.note("again"))
        await journal.aflush()

    made, _ = opened(body)
    assert [data["text"] for data in made.of("s1", "session/note")] == ["again"]


@pytest.mark.parametrize("seed", range(5))
def test_everybody_behind_a_failed_write_is_told(seed: int) -> None:
    error = JournalWriteError("no space")

    async def body(made: MemoryJournals, session: OpenSession) -> None:
        made.on_sync = failing(error)
        journal = session.journal

        async def behind() -> BaseException | None:
            await asyncio.sleep(0.05)
            journal.append(drafts.note("behind"))
            return (await asyncio.gather(journal.aflush(), return_exceptions=True))[0]

        async def lost() -> None:
            journal.append(drafts.note("lost"))

        losing = asyncio.create_task(lost())
        await losing
        found = asyncio.create_task(behind())
        with pytest.raises(JournalWriteError):
            await journal.aflush()
        assert await found is error
        # The one that has lost something was not told, so a barrier may not say that all is well.
        with pytest.raises(JournalWriteError):
            await journal.aflush()

    assert types(opened(body, seed)[0]) == ["session/header"]


def test_a_callback_of_the_loop_may_append() -> None:
    async def body(made: MemoryJournals, session: OpenSession) -> None:
        asyncio.get_running_loop().call_later(1, session.journal.append, drafts.note())
        await asyncio.sleep(2)
        await session.journal.aflush()

    assert types(opened(body)[0]) == ["session/header", "session/note"]


@pytest.mark.parametrize("error", [JournalWriteError("gone", poisoned=True), JournalError("replaced")])
def test_any_other_failure_kills_the_handle(error: Exception) -> None:
    async def body(made: MemoryJournals, session: OpenSession) -> None:
        session.journal.append(drafts.note("kept"))
        await session.journal.aflush()
        made.on_sync = failing(error)
        session.journal.append(drafts.note())
        for _ in range(2):
            with pytest.raises(JournalError) as caught:
                await session.journal.aflush()
            assert caught.value is error
        with pytest.raises(JournalError) as caught:
            session.journal.append(drafts.note())
        assert caught.value is error
        assert isinstance(session.journal, MemoryJournal)
        assert session.journal.poisoned
        await made.close(session)
        session = await made.open("s1")
        assert session.journal.next_seq == 2

    opened(body)


def test_a_cancelled_wait_takes_nothing_back() -> None:
    async def body(made: MemoryJournals, session: OpenSession) -> None:
        made.on_sync = failing()
        session.journal.append(drafts.note())
        waiter = asyncio.ensure_future(session.journal.aflush())
        await asyncio.sleep(0.05)
        waiter.cancel()
        await asyncio.sleep(1)

    assert types(opened(body)[0]) == ["session/header", "session/note"]


def test_one_writer_at_a_time() -> None:
    async def body(made: MemoryJournals, session: OpenSession) -> None:
        with pytest.raises(JournalLocked):
            await made.open("s1")
        with pytest.raises(SessionNotFound):
            await made.open("s2")
        session.journal.append(drafts.note())
        await made.close(session)
        assert not made.is_open("s1")
        assert types(made)[-1] == "session/note"
        with pytest.raises(JournalError, match="closed"):
            session.journal.append(drafts.note())
        again = await made.open("s1")
        assert (again.journal.next_seq, made.is_open("s1")) == (2, True)

    opened(body)

    async def both(made: MemoryJournals) -> Any:
        return await asyncio.gather(made.open("s1"), made.open("s1"), return_exceptions=True)

    for seed in range(5):
        found = run(both(journals()), seed)
        assert {type(each) for each in found} == {OpenSession, JournalLocked}


def test_closing_tells_what_was_lost() -> None:
    error = JournalWriteError("no space")

    async def body(made: MemoryJournals, session: OpenSession) -> None:
        made.on_sync = failing(error)
        session.journal.append(drafts.note())
        with pytest.raises(JournalWriteError):
            await made.close(session)
        assert not made.is_open("s1")

    assert types(opened(body)[0]) == ["session/header"]


def test_an_open_that_fails_holds_nothing() -> None:
    made = journals()

    async def refuse(session_id: str) -> None:
        raise JournalError(f"no {session_id}")

    async def main() -> None:
        made.on_open = refuse
        with pytest.raises(JournalError, match="no s1"):
            await made.open("s1")
        assert not made.is_open("s1")

    run(main(), 0)


def interrupted(cause: str | None = None) -> MemoryJournals:
    async def body(made: MemoryJournals, session: OpenSession) -> MemoryJournals:
        for draft in [*drafts.whole_turn(), *drafts.begin(2, "more")]:
            session.journal.append(draft)
        await session.journal.aflush()
        after = made.crash()
        again = await after.open("s1", cause=cause)
        assert not again.journal.state.turns.open
        conversation = await after.conversation(again)
        assert [message["role"] for message in conversation.messages()] == ["user", "assistant", "user"]
        return after

    after: MemoryJournals = opened(body)[1]
    return after


def test_opening_closes_what_a_crash_left_open() -> None:
    after = interrupted()
    assert check_legal(after.events("s1")) == "healthy"
    assert after.of("s1", "turn/end")[-1]["reason"] == {"kind": "interrupted"}
    failed = interrupted("journal_write_failed").of("s1", "turn/end")[-1]["reason"]
    assert (failed["kind"], failed["failure_class"]) == ("failed", "journal_write_failed")


def test_a_crash_keeps_what_is_durable_and_perhaps_whole_batches_behind_it() -> None:
    lengths = set()
    for seed in range(30):

        async def body(made: MemoryJournals, session: OpenSession, seed: int = seed) -> None:
            session.journal.append(drafts.note("durable"))
            await session.journal.aflush()
            session.journal.append_batch(drafts.begin())
            session.journal.append(drafts.note("written"))
            assert len(made.crash().events("s1")) == 2
            after = made.crash(Random(seed))
            check_legal(after.events("s1"))
            lengths.add(len(after.events("s1")))
            with pytest.raises(JournalError, match="crashed"):
                session.journal.append(drafts.note())
            with pytest.raises(JournalError, match="crashed"):
                await made.open("s1")

        opened(body, seed)
    assert lengths == {2, 4, 5}


def test_a_sync_that_a_crash_interrupts_acknowledges_nothing() -> None:
    async def body(made: MemoryJournals, session: OpenSession) -> None:
        async def on_sync(journal: MemoryJournal) -> None:
            made.crash()

        made.on_sync = on_sync
        session.journal.append(drafts.note())
        with pytest.raises(JournalError, match="crashed"):
            await session.journal.aflush()

    assert types(opened(body)[0]) == ["session/header"]


def test_an_illegal_history_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def history(*more: Draft) -> MemoryJournals:
        async def body(made: MemoryJournals, session: OpenSession) -> None:
            for draft in [*drafts.whole_turn(), *more]:
                session.journal.append(draft)
            await session.journal.aflush()

        return opened(body)[0]

    monkeypatch.setattr(State, "check", lambda state, draft: None)
    sound = history()
    assert check_legal(sound.events("s1")) == "healthy"
    with pytest.raises(AssertionError):
        check_legal(history(*drafts.end()).events("s1"))
    with pytest.raises(AssertionError):
        check_legal(sound.events("s1")[:3] + sound.events("s1")[4:])
    sound.of("s1", "user/message")[0]["content"][0]["text"] = "changed since"
    with pytest.raises(AssertionError):
        check_legal(sound.events("s1"))
