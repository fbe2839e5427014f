"""Sessions by a manager: created, listed, read, changed, put away, deleted; two managers on one root."""

import asyncio
import gc
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import maka
from maka.journal.events import Draft, Event
from maka.journal.store import FileStore
from maka.runtime.app import App
from maka.runtime.backends.scripted import Never, scripted_backend
from maka.runtime.conversation import Conversation
from maka.runtime.errors import AppError, BackendUnknown, KernelClosed, RuntimeFailure, SessionArchived, SessionBusy
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
                cwd=tmp_path,
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
                "cwd": str(tmp_path),
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
        ({"labels": "abc"}, maka.InvalidEvent, "labels must be several texts, as in a list, not str"),
        ({"labels": 5}, maka.InvalidEvent, "labels must be several texts, as in a list, not int"),
        ({"backend": 7}, maka.InvalidEvent, "backend must be a str, not int"),
        ({"cwd": 5}, maka.InvalidEvent, "cwd must be a path, not int"),
        ({"cwd": "/nonexistent/dir"}, maka.InvalidEvent, "cwd is /nonexistent/dir, where no directory is; make it"),
        ({"cwd": "\0"}, maka.InvalidEvent, "where no directory is"),
        ({"session_id": 5}, maka.InvalidEvent, "is not a session id"),
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
            assert (rows["b"]["labels"], rows["b"]["flagged"], rows["b"]["archived"]) == ([], False, False)
            assert (rows["c"]["labels"], rows["c"]["flagged"], rows["c"]["archived"]) == (None, None, None)
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
            assert (row["name"], row["labels"], row["flagged"], row["archived"]) == ("Spring", ["x", "y"], False, False)
            settings = (await manager.read("s")).settings()
            assert (settings["name"], settings["has_unread"], settings["x-mine"]) == ("Spring", True, 1)
            assert said(await told(manager.send("s", "hello"))) == ["hi"]

    go(main())


@pytest.mark.parametrize(
    ("patch", "error", "says"),
    [
        ({"name": None}, maka.InvalidEvent, "name must be a str, not NoneType"),
        ({"archived": "yes"}, maka.InvalidEvent, "archived must be a bool, not str"),
        ({"labels": "abc"}, maka.InvalidEvent, "labels must be a list, not str"),
        ({"permission_mode": "always"}, maka.InvalidEvent, "permission_mode must be one of ask, execute, bypass"),
        ({"backend": "nonsense"}, BackendUnknown, "no backend 'nonsense' is registered"),
        ({"x-size": float("nan")}, maka.InvalidEvent, "patch.x-size"),
        ({"permision_mode": "ask"}, maka.InvalidEvent,
         "permision_mode is nothing that can be set; did you mean permission_mode? (keys of your own begin with x-)"),
        ({"size": 1}, maka.InvalidEvent, "size is nothing that can be set; there are name, labels, flagged"),
        ({5: 1}, maka.InvalidEvent, "5 is nothing that can be set"),
        ({"cwd": "/nonexistent/dir"}, maka.InvalidEvent, "cwd is /nonexistent/dir, where no directory is"),
        ("x", maka.InvalidEvent, "a patch must be a dict of keys and their whole new values, not str"),
        (None, maka.InvalidEvent, "a patch must be a dict of keys and their whole new values, not NoneType"),
    ],
)  # fmt: skip
def test_values_that_nobody_could_use_are_refused(
    tmp_path: Path, patch: Any, error: type[Exception], says: str
) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing()) as manager:
            await manager.create(session_id="s")
            with pytest.raises(error) as caught:
                await manager.update("s", patch)
            assert says in str(caught.value)
            assert types_of(tmp_path, "s") == ["session/header"]

    go(main())


def test_a_folder_that_is_set_is_kept_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing()) as manager:
            await manager.create(session_id="s")
            (tmp_path / "below").mkdir()
            monkeypatch.chdir(tmp_path)
            await manager.update("s", {"cwd": "below"})
            assert (await manager.read("s")).settings()["cwd"] == str(tmp_path / "below")
            with pytest.raises(maka.InvalidEvent, match="labels must be several texts, as in a list, not str"):
                await manager.set_labels("s", "abc")

    go(main())


@pytest.mark.parametrize("content", [None, 5, b"hi", {"kind": "text", "text": "hi"}])
def test_what_is_no_message_is_refused_at_once(tmp_path: Path, content: Any) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing("hi")) as manager:
            await manager.create(session_id="s")
            with pytest.raises(maka.InvalidEvent, match="a message must be a text or a list of content blocks, not "):
                manager.send("s", content)
            assert types_of(tmp_path, "s") == ["session/header"]

    go(main())


@pytest.mark.parametrize("wrong", [None, 5, b"s"])
def test_what_is_no_session_id_is_refused_in_a_sentence(tmp_path: Path, wrong: Any) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing("hi")) as manager:
            for attempt in (told(manager.send(wrong, "hi")), manager.read(wrong), manager.rename(wrong, "x")):
                with pytest.raises(maka.SessionNotFound, match=f"{wrong!r} is not a session id"):
                    await attempt

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
            assert str(caught.value) == "session s is archived and takes no turns; `unarchive` it first"
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
            await manager.kernel.append("s", lambda session: [draft])
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
            await manager.kernel.append("s", lambda session: [start, Draft("user/message", message)])
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
        files = files_of(tmp_path)
        for refused in (
            told(manager.send("s", "hi")),
            manager.rename("s", "x"),
            manager.pending("s"),
            manager.create(),
            manager.fork("s"),
            manager.delete("s"),
            manager.recover("s"),
            manager.recover_interrupted_sessions(),
            manager.__aenter__(),
        ):
            with pytest.raises(KernelClosed, match=r"manager.* was closed; make a new one to go on"):
                await refused
        assert files_of(tmp_path) == files
        # Reading goes on.
        assert [row["session_id"] for row in await manager.list()] == ["s"]
        assert (await manager.read("s")).session_id == "s"
        await manager.aclose()

    go(main())


def test_a_manager_belongs_to_the_loop_that_it_was_first_used_in(tmp_path: Path) -> None:
    manager = SessionManager(tmp_path, app=app_of(playing("hi")))
    for outside in (lambda: manager.send("s", "hi"), lambda: manager.stop("s")):
        with pytest.raises(RuntimeFailure, match="none runs here; call this from a coroutine"):
            outside()

    async def first() -> None:
        await manager.create(session_id="s")
        await told(manager.send("s", "hi"))
        await manager.kernel.release("s")

    async def second() -> None:
        for elsewhere in (lambda: manager.send("s", "hi"), lambda: manager.stop("s")):
            with pytest.raises(RuntimeFailure, match="another one; make a manager for each loop"):
                elsewhere()
        for awaited in (manager.create(), manager.rename("s", "x"), manager.__aenter__()):
            with pytest.raises(RuntimeFailure, match="another one; make a manager for each loop"):
                await awaited
        assert (await manager.read("s")).turns()[0]["status"] == "completed"
        await manager.aclose()

    go(first())
    go(second())


@pytest.mark.parametrize(
    ("app", "says"),
    [
        (None, "this is no app for a manager: None lacks `backends`, `default_backend`"),
        ({"backends": {}}, "this is no app for a manager: an object of type dict lacks `backends`"),
        ("my_app:app", "'my_app:app' is the name of an app and no app; `load_app` of `maka.runtime` loads it"),
        (App, "this is no app for a manager: it takes arguments"),
        (SimpleNamespace(backends={}, default_backend="b"), "this is no app for a manager: `backends` is empty"),
    ],
)
def test_what_is_no_app_is_refused(tmp_path: Path, app: Any, says: str) -> None:
    with pytest.raises(AppError) as caught:
        SessionManager(tmp_path, app=app)
    assert says in str(caught.value)


def test_an_app_may_be_any_object_with_its_attributes_or_what_gives_one(tmp_path: Path) -> None:
    class Mine:
        backends = {"scripted": playing("hi")}  # noqa: RUF012
        default_backend = "scripted"

    async def main() -> None:
        for n, app in enumerate((Mine, Mine(), lambda: SimpleNamespace(**{**vars(Mine), "model": "m"}))):
            async with SessionManager(tmp_path / str(n), app=app) as manager:
                session_id = await manager.create(permission_mode="bypass")
                assert said(await told(manager.send(session_id, "hello"))) == ["hi"]

    go(main())


def test_a_turn_that_nobody_begins_is_told_when_it_is_forgotten(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing("hi", "ho")) as manager:
            await manager.create(session_id="s")
            await told(manager.send("s", "begun"))
            await manager.send("s", "closed").aclose()
            gc.collect()
            assert "never begun" not in caplog.text
            manager.send("s", "secret")
            gc.collect()
        [record] = [record for record in caplog.records if "never begun" in record.getMessage()]
        assert record.name == "maka.runtime"
        assert record.levelname == "WARNING"
        assert "session=s" in record.getMessage()
        assert "secret" not in caplog.text

    go(main())
