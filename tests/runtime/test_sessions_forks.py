"""Forks by a manager: at a closed turn, at the newest point, of what runs, of a fork; and what a fork keeps alive."""

import asyncio
from pathlib import Path

import pytest

import maka
from maka.runtime.backends.scripted import Never, scripted_backend
from maka.runtime.errors import ForkRefused, SessionBusy
from maka.runtime.sessions import SessionManager
from support.legal import assert_legal
from support.managed import (
    data_of,
    directory,
    events_of,
    files_of,
    go,
    managing,
    playing,
    said,
    told,
    types_of,
)


async def texts(manager: SessionManager, session_id: str) -> list[str]:
    messages = (await manager.read(session_id)).messages()
    assert_legal(messages)
    return [block["text"] for message in messages for block in message["content"]]


def test_a_fork_begins_where_a_turn_ended_and_copies_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        script = scripted_backend(lambda sent: f"re: {sent.text}")
        async with managing(tmp_path, script) as manager:
            await manager.create(session_id="s", name="Origin", labels=["a"], model="big", cwd=tmp_path)
            await told(manager.send("s", "one", turn_id="t1"))
            await manager.update("s", {"model": "small"})
            await told(manager.send("s", "two", turn_id="t2"))
            before = files_of(tmp_path)
            fork = await manager.fork("s", turn_id="t1", name="Second try")
            assert {name: files_of(tmp_path)[name] for name in before} == before

            [parent_end, _] = [event for event in events_of(tmp_path, "s") if event["type"] == "turn/end"]
            point = {"session_id": "s", "seq": parent_end["seq"], "sum": parent_end["sum"]}
            [header] = [event["data"] for event in events_of(tmp_path, fork, parent_end["sum"])]
            assert header["parent"] == point
            assert (header["name"], header["labels"], header["cwd"]) == ("Second try", ["a"], str(tmp_path))
            assert (header["model"], header["permission_mode"], header["backend"]) == ("big", "bypass", "scripted")

            assert await texts(manager, fork) == ["one", "re: one"]
            await told(manager.send(fork, "three"))
            assert await texts(manager, fork) == ["one", "re: one", "three", "re: three"]
            assert await texts(manager, "s") == ["one", "re: one", "two", "re: two"]
            [history] = [built.inputs[0].history for built in script.built if built.context.session_id == fork]
            assert [message["role"] for message in history[:3]] == ["user", "assistant", "user"]
            assert (await manager.read(fork)).verdict == "healthy"

    go(main())


def test_without_a_turn_it_begins_at_the_newest_point_and_needs_one_that_has_ended(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, scripted_backend(lambda sent: f"re: {sent.text}")) as manager:
            await manager.create(session_id="s")
            with pytest.raises(ForkRefused, match="no closed turn of its own to fork it at; let one end first"):
                await manager.fork("s", new_session_id="empty")
            await told(manager.send("s", "one"))
            await manager.rename("s", "Renamed")
            newest = await manager.fork("s")
            assert await texts(manager, newest) == ["one", "re: one"]
            head = events_of(tmp_path, "s")[-1]
            [header] = [event["data"] for event in events_of(tmp_path, newest, head["sum"])]
            assert header["parent"]["seq"] == head["seq"]
            with pytest.raises(maka.JournalConflict):
                await manager.fork("s", new_session_id="s")

    go(main())


def test_of_a_session_that_runs_it_begins_before_the_open_turn(tmp_path: Path) -> None:
    async def main() -> None:
        script = scripted_backend(lambda sent: Never() if sent.text == "wait" else f"re: {sent.text}")
        async with managing(tmp_path, script) as manager:
            await manager.create(session_id="s")
            await told(manager.send("s", "one"))
            stream = manager.send("s", "wait", turn_id="t2")
            await stream.started()
            fork = await manager.fork("s")
            with pytest.raises(ForkRefused) as caught:
                await manager.fork("s", turn_id="t2")
            assert str(caught.value) == (
                "session s has no closed turn t2 of its own; name one that has ended, or none for the newest"
            )
            # Both run at once.
            assert said(await told(manager.send(fork, "two"))) == ["re: two"]
            assert await texts(manager, fork) == ["one", "re: one", "two", "re: two"]
            await stream.aclose()
            assert await texts(manager, await manager.fork("s", turn_id="t2")) == ["one", "re: one", "wait"]

    go(main())


def test_a_fork_of_a_fork_has_what_all_said_before_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, scripted_backend(lambda sent: f"re: {sent.text}")) as manager:
            await manager.create(session_id="a")
            await told(manager.send("a", "one"))
            b = await manager.fork("a", new_session_id="b")
            await told(manager.send(b, "two", turn_id="t-b"))
            await told(manager.send(b, "not this"))
            c = await manager.fork("b", turn_id="t-b", new_session_id="c")
            await told(manager.send(c, "three"))
            assert await texts(manager, c) == ["one", "re: one", "two", "re: two", "three", "re: three"]
        # As another process finds it.
        view = maka.inspect("c", root=tmp_path)
        assert view.verdict == "healthy"
        assert len(view.messages()) == 6

    go(main())


def test_a_turn_of_the_parent_is_none_of_the_fork(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing("hi")) as manager:
            await manager.create(session_id="s")
            await told(manager.send("s", "one", turn_id="t1"))
            fork = await manager.fork("s")
            with pytest.raises(ForkRefused):
                await manager.fork(fork, turn_id="t1")
            assert [row["session_id"] for row in await manager.list()] == sorted(["s", fork])

    go(main())


def test_an_archived_session_can_be_forked_and_the_fork_is_not_archived(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, scripted_backend(lambda sent: f"re: {sent.text}")) as manager:
            await manager.create(session_id="s")
            await told(manager.send("s", "one"))
            await manager.archive("s")
            assert said(await told(manager.send(await manager.fork("s"), "two"))) == ["re: two"]

    go(main())


def test_where_what_came_before_is_damaged_nothing_is_forked(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, scripted_backend(lambda sent: f"re: {sent.text}")) as manager:
            await manager.create(session_id="s")
            await told(manager.send("s", "one", turn_id="t1"))
            await told(manager.send("s", "two", turn_id="t2"))
            await manager.kernel.release("s")
            path = directory(tmp_path, "s") / "journal.jsonl"
            path.write_bytes(path.read_bytes().replace(b'"two"', b'"too"', 1))
            for turn_id in ("t2", None):
                with pytest.raises(ForkRefused) as caught:
                    await manager.fork("s", turn_id=turn_id, new_session_id="fork")
                assert "what came before is damaged" in str(caught.value)
                assert "`maka journal inspect s`" in str(caught.value)
            assert await texts(manager, await manager.fork("s", turn_id="t1", new_session_id="fork")) == [
                "one",
                "re: one",
            ]

    go(main())


# ---------------------------------------------------------------- delete


def test_a_deleted_session_is_in_the_trash_whole_and_its_id_is_free(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, scripted_backend(["hi"], repeat=True)) as manager:
            await manager.create(session_id="s")
            await told(manager.send("s", "one"))
            raw = (directory(tmp_path, "s") / "journal.jsonl").read_bytes()
            where = await manager.delete("s")
            assert where == tmp_path / "trash" / "s"
            assert (where / "journal.jsonl").read_bytes() == raw
            assert await manager.list() == []
            with pytest.raises(maka.SessionNotFound):
                await told(manager.send("s", "two"))
            await manager.create(session_id="s")
            assert types_of(tmp_path, "s") == ["session/header"]
            assert said(await told(manager.send("s", "two"))) == ["hi"]
            assert (await manager.delete("s")).name == "s.2"

    go(main())


def test_a_session_that_a_fork_needs_or_that_runs_is_not_deleted(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing(Never())) as manager:
            await manager.create(session_id="s")
            stream = manager.send("s", "one")
            await stream.started()
            with pytest.raises(SessionBusy):
                await manager.delete("s")
            await stream.aclose()
            fork = await manager.fork("s", new_session_id="fork")
            with pytest.raises(maka.JournalConflict) as caught:
                await manager.delete("s")
            assert "is the parent of the session fork" in str(caught.value)
            assert len(data_of(tmp_path, "s", "turn/end")) == 1
            await manager.delete(fork)
            await manager.delete("s")
            assert await manager.list() == []

    go(main())


def test_a_message_that_comes_while_a_session_is_deleted_finds_none(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing("hi")) as manager:
            await manager.create(session_id="s")
            deleting = asyncio.ensure_future(manager.delete("s"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            results = await asyncio.gather(deleting, told(manager.send("s", "hi")), return_exceptions=True)
            assert isinstance(results[0], Path)
            assert isinstance(results[1], maka.SessionNotFound)

    go(main())
