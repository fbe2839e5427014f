"""Sessions by a manager: created, listed, read, changed, put away, deleted; two managers on one root."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

import maka
from maka.journal.events import Draft, Event
from maka.journal.store import FileStore
from maka.runtime.app import App
from maka.runtime.backends.scripted import Never, scripted_backend
from maka.runtime.conversation import Conversation
from maka.runtime.errors import BackendUnknown, KernelClosed, SessionArchived, SessionBusy
from maka.runtime.sessions import SessionManager
from support.builder import digest
from support.managed import (
    app_of,
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
    until,
)

# ---------------------------------------------------------------- what there is


def test_a_new_session_has_what_was_given_and_else_the_apps_values(tmp_path: Path) -> None:
    app = App(
        backends={"scripted": playing(), "other": playing()},
        default_backend="scripted",
        model="big",
        permission_mode="execute",
    )

    async def main() -> None:
        async with managing(tmp_path, app) as manager:
            plain = await manager.create()
            given = await manager.create(
                session_id="given",
                name="Given",
                cwd="/somewhere",
                backend="other",
                model="small",
                permission_mode="ask",
                connection="work",
                labels=("a", "b"),
            )
            assert given == "given"
            [header] = [event["data"] for event in events_of(tmp_path, plain)]
            assert {key: header[key] for key in ("backend", "model", "permission_mode", "cwd", "tool_boundary")} == {
                "backend": "scripted",
                "model": "big",
                "permission_mode": "execute",
                "cwd": os.getcwd(),
                "tool_boundary": "t1_after_preflight_v1",
            }
            assert {"name", "labels", "connection", "parent"}.isdisjoint(header)
            [header] = [event["data"] for event in events_of(tmp_path, given)]
            assert {**header, "created_by": None} == {
                "format": 1,
                "session_id": "given",
                "created_by": None,
                "cwd": "/somewhere",
                "backend": "other",
                "model": "small",
                "permission_mode": "ask",
                "tool_boundary": "t1_after_preflight_v1",
                "connection": "work",
                "name": "Given",
                "labels": ["a", "b"],
            }
            assert header["created_by"] == {"name": "maka", "version": maka.__version__}

    go(main())


@pytest.mark.parametrize(
    ("values", "error", "says"),
    [
        ({"backend": "nonsense"}, BackendUnknown, "no backend 'nonsense' is registered (there are: scripted)"),
        ({"permission_mode": "never"}, maka.InvalidEvent, "permission_mode must be one of ask, execute, bypass"),
        ({"session_id": "../up"}, maka.InvalidEvent, "is not a session id"),
        ({"session_id": "taken"}, maka.JournalConflict, "taken"),
        ({"name": 7}, maka.InvalidEvent, "name must be a str, not int"),
        ({"labels": [1]}, maka.InvalidEvent, "labels must be texts"),
    ],
)
def test_what_cannot_be_created_is_refused_and_leaves_nothing(
    tmp_path: Path, values: dict[str, Any], error: type[Exception], says: str
) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing()) as manager:
            await manager.create(session_id="taken")
            before = files_of(tmp_path)
            with pytest.raises(error) as caught:
                await manager.create(**values)
            assert says in str(caught.value)
            assert files_of(tmp_path) == before

    go(main())


def test_sessions_are_listed_with_what_runs_in_them_damaged_ones_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing("hello", Never())) as manager:
            assert await manager.list() == []
            for session_id in ("b", "a", "c"):
                await manager.create(session_id=session_id, name=session_id.upper())
            (directory(tmp_path, "c") / "journal.jsonl").write_bytes(b"nonsense")
            await told(manager.send("a", "hi"))
            running = manager.send("a", "hi", turn_id="t2")
            waiting = manager.send("a", "hi", turn_id="t3")
            await running.started()
            begun = asyncio.ensure_future(told(waiting))
            await asyncio.sleep(0)
            rows = {row["session_id"]: row for row in await manager.list()}
            assert list(rows) == ["a", "b", "c"]
            assert (rows["a"]["name"], rows["a"]["turns"], rows["a"]["running"]) == ("A", 2, ["t2", "t3"])
            assert (rows["b"]["name"], rows["b"]["turns"], rows["b"]["running"]) == ("B", 0, [])
            assert (rows["c"]["verdict"], rows["c"]["running"]) == ("unchecked", [])
            await manager.stop("a")
            assert await begun == []
            await told(running)

    go(main())


def test_a_session_is_read_as_it_stands_while_it_runs(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing(["one", Never()])) as manager:
            await manager.create(session_id="s")
            stream = manager.send("s", "hi")
            await until(stream, "text_delta")
            before = files_of(tmp_path)
            view = await manager.read("s")
            assert view.session_id == "s"
            assert view.messages()[0]["content"][0]["text"] == "hi"
            assert files_of(tmp_path) == before
            assert manager.status("s").turns == [stream.turn_id]
            await stream.aclose()
            assert manager.status("s").turns == []
            with pytest.raises(maka.SessionNotFound):
                await manager.read("nobody")

    go(main())


# ---------------------------------------------------------------- about a session


def test_whole_new_values_are_set_durably_and_seen_by_whoever_comes_next(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing()) as manager:
            await manager.create(session_id="s")
            assert await manager.rename("s", "Spring") == 1
            assert await manager.set_labels("s", ("x", "y")) == 2
            assert await manager.flag("s") == 3
            assert await manager.flag("s", False) == 4
            assert await manager.update("s", {"x-mine": 1, "has_unread": True}, request_id="r1") == 5
            # The file as it is now, not as a close leaves it.
            assert data_of(tmp_path, "s", "session/updated") == [
                {"patch": {"name": "Spring"}},
                {"patch": {"labels": ["x", "y"]}},
                {"patch": {"flagged": True}},
                {"patch": {"flagged": False}},
                {"patch": {"x-mine": 1, "has_unread": True}, "request_id": "r1"},
            ]
            [row] = await manager.list()
            assert row["name"] == "Spring"
        async with managing(tmp_path, playing("hi")) as manager:
            [row] = await manager.list()
            assert row["name"] == "Spring"
            assert said(await told(manager.send("s", "hello"))) == ["hi"]

    go(main())


@pytest.mark.parametrize(
    ("patch", "error"),
    [
        ({"name": None}, maka.InvalidEvent),
        ({"archived": "yes"}, maka.InvalidEvent),
        ({"labels": "abc"}, maka.InvalidEvent),
        ({"permission_mode": "always"}, maka.InvalidEvent),
        ({"backend": "nonsense"}, BackendUnknown),
        ({"size": float("nan")}, maka.InvalidEvent),
    ],
)
def test_values_that_nobody_could_use_are_refused(
    tmp_path: Path, patch: dict[str, Any], error: type[Exception]
) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing()) as manager:
            await manager.create(session_id="s")
            with pytest.raises(error):
                await manager.update("s", patch)
            assert types_of(tmp_path, "s") == ["session/header"]

    go(main())


def test_changes_of_a_session_that_is_not_there_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing()) as manager:
            for wrong in ("nobody", "../up"):
                for attempt in (
                    manager.rename(wrong, "x"),
                    manager.answer(wrong, "i", {"kind": "permission_answer", "decision": "allow"}),
                    manager.pending(wrong),
                    manager.fork(wrong),
                    manager.delete(wrong),
                    told(manager.send(wrong, "hi")),
                ):
                    with pytest.raises(maka.SessionNotFound):
                        await attempt
            assert not manager.status("nobody").open
        assert files_of(tmp_path) == {}

    go(main())


def test_an_archived_session_takes_no_turns_until_it_is_taken_out_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing("hi")) as manager:
            await manager.create(session_id="s")
            await manager.archive("s")
            with pytest.raises(SessionArchived) as caught:
                await told(manager.send("s", "hello"))
            assert str(caught.value) == "session s is archived; take it out again before it gets a turn"
            await manager.unarchive("s")
            assert said(await told(manager.send("s", "hello"))) == ["hi"]
            assert types_of(tmp_path, "s").count("turn/start") == 1

    go(main())


def test_what_runs_or_waits_keeps_a_session_from_being_archived_or_deleted(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing(Never(), "second")) as manager:
            await manager.create(session_id="s")
            running = manager.send("s", "hi", turn_id="t1")
            await running.started()
            for refused in (manager.archive("s"), manager.delete("s"), manager.kernel.release("s")):
                with pytest.raises(SessionBusy) as caught:
                    await refused
                assert str(caught.value) == "session s is busy with turn t1; stop it or wait for its end"
            waiting = asyncio.ensure_future(told(manager.send("s", "and", turn_id="t2")))
            await asyncio.sleep(0)
            await running.aclose()
            with pytest.raises(SessionBusy, match="turn t2"):
                await manager.archive("s")
            assert said(await waiting) == ["second"]
            await manager.archive("s")
            assert [patch["patch"] for patch in data_of(tmp_path, "s", "session/updated")] == [{"archived": True}]

    go(main())


LATER: dict[str, Any] = {"content": [{"kind": "text", "text": "later"}]}
QUEUED = {"message_id": "m9", "placement": "next_turn", "disposition": "followup", **LATER, "digest": digest("later")}
ADMITTED = {
    "turn_id": "t9",
    "run_id": "r9",
    "message_id": "m9",
    "previous_root_turn_id": None,
    "execution": {"kind": "root"},
    "input": LATER,
    "input_digest": digest("later"),
}


@pytest.mark.parametrize(
    ("draft", "what"),
    [
        (Draft("message/accepted", QUEUED), "the queued message m9"),
        (Draft("turn/admitted", ADMITTED), "the admitted turn t9"),
    ],
    ids=["message", "admission"],
)
def test_what_is_queued_keeps_a_session_from_being_archived(tmp_path: Path, draft: Draft, what: str) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing()) as manager:
            await manager.create(session_id="s")
            # As one who accepts messages does it: the session is open here.
            await manager.kernel.append("s", [draft])
            with pytest.raises(SessionBusy) as caught:
                await manager.archive("s")
            assert str(caught.value) == f"session s is busy with {what}; let it end, or take it back"
            assert "session/updated" not in types_of(tmp_path, "s")

    go(main())


def test_a_turn_that_is_open_in_the_journal_alone_keeps_a_session_from_being_archived(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing()) as manager:
            await manager.create(session_id="s")
            async with manager.kernel.session("s") as session:
                header = session.journal.state.session.header
                assert header is not None
                run = Conversation([Event(0, 0, "session/header", header, "")]).run_header(
                    run_id="r1", invocation_id="i1", turn_id="t1", created_at=1, root={"kind": "user"}
                )
            ids = {"turn_id": "t1", "run_id": "r1"}
            message = {
                "message_id": "m1",
                **ids,
                "content": [{"kind": "text", "text": "x"}],
                "source": {"kind": "user"},
            }
            start = Draft("turn/start", {**ids, "invocation_id": "i1", "turn": 1, "run": run})
            await manager.kernel.append("s", [start, Draft("user/message", message)])
            with pytest.raises(SessionBusy, match="session s is busy with turn t1; let it end, or take it back"):
                await manager.archive("s")

    go(main())


# ---------------------------------------------------------------- one root, several managers


def test_a_session_that_another_manager_has_is_refused_in_one_sentence(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing("one")) as first, managing(tmp_path, playing("two")) as second:
            await first.create(session_id="s")
            await told(first.send("s", "hi"))
            for refused in (told(second.send("s", "hi")), second.rename("s", "x"), second.delete("s")):
                with pytest.raises(maka.JournalLocked) as caught:
                    await refused
                text = str(caught.value)
                assert str(directory(tmp_path, "s")) in text
                assert f"{os.getpid()}" in text
                assert "\n" not in text
            # Reading needs no lock.
            assert len((await second.read("s")).turns()) == 1
            assert [row["session_id"] for row in await second.list()] == ["s"]
            # Another session is nobody's.
            await second.create(session_id="mine")
            assert said(await told(second.send("mine", "hi"))) == ["two"]

            await first.kernel.release("s")
            assert not first.status("s").open
            assert said(await told(second.send("s", "hi"))) == ["two"]
            with pytest.raises(maka.JournalLocked):
                await told(first.send("s", "hi"))
            await second.kernel.release("s")
            # And it goes on here, as the other one left it.
            await first.rename("s", "back")
            assert types_of(tmp_path, "s").count("turn/end") == 2

    go(main())


def test_so_many_sessions_stay_open_and_the_others_are_given_up(tmp_path: Path) -> None:
    async def main() -> None:
        script = scripted_backend(["hi"], repeat=True)
        async with managing(tmp_path, script, keep_open=1) as manager:
            for session_id in ("a", "b", "c"):
                await manager.create(session_id=session_id)
                await told(manager.send(session_id, "hello"))
            await manager.pending("a")
            closed = asyncio.Event()
            manager.subscribe(lambda event: closed.set() if event.kind == "session_closed" else None)
            while sum(manager.status(session_id).open for session_id in "abc") > 1:
                await closed.wait()
                closed.clear()
            for session_id in "abc":
                if not manager.status(session_id).open:
                    FileStore(tmp_path).open(session_id).close()
            # They go on as if nothing had been.
            for session_id in ("a", "b", "c"):
                await told(manager.send(session_id, "again"))
        assert all(types_of(tmp_path, session_id).count("turn/end") == 2 for session_id in "abc")

    go(main())


def test_a_closed_manager_closes_its_sessions_and_starts_nothing_any_more(tmp_path: Path) -> None:
    async def main() -> None:
        manager = SessionManager(tmp_path, app=app_of(playing(Never(), "second")))
        await manager.create(session_id="s")
        stream = manager.send("s", "hi")
        await stream.started()
        await manager.aclose()
        events = await told(stream)
        assert events[-1].data["stop_reason"] == "user_stop"
        assert data_of(tmp_path, "s", "turn/end")[0]["reason"] == {"kind": "aborted", "source": "shutdown"}
        assert types_of(tmp_path, "s")[-1] == "run/settled"
        with FileStore(tmp_path).open("s"):
            pass
        for refused in (told(manager.send("s", "hi")), manager.rename("s", "x"), manager.pending("s")):
            with pytest.raises(KernelClosed):
                await refused
        await manager.aclose()

    go(main())
