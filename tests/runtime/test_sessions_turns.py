"""Turns by a manager: sent, in order, stopped, abandoned, failed; a disk that fails; other backends and models."""

import asyncio
import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import maka
from maka.journal.files import RealFs
from maka.runtime.app import App
from maka.runtime.backends.loop import loop_backend
from maka.runtime.backends.scripted import Faults, Never, Question, Tool, scripted_backend
from maka.runtime.errors import BackendUnknown, RuntimeFailure, SessionQuarantined
from maka.runtime.journals import FileJournals
from maka.runtime.kernel.generations import Deadlines
from maka.runtime.scripted import Fail, Say, ScriptedModel, Wait
from maka.runtime.sessions import SessionManager
from support.legal import assert_legal
from support.managed import app_of, data_of, go, managing, playing, said, told, types_of, until

# ---------------------------------------------------------------- send


def test_a_turn_is_told_as_it_happens_and_stands_on_disk_when_it_is_told_to_be_over(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing(["Look.", Tool("read", {"path": "a"}, "42"), "It is 42."])) as manager:
            await manager.create(session_id="s")
            stream = manager.send("s", "What is it?", turn_id="t1", message_id="m1", max_steps=5)
            kinds = []
            async for event in stream:
                kinds.append(event.kind)
                if event.kind == "complete":
                    assert types_of(tmp_path, "s").count("turn/end") == 1
            assert kinds == [
                "step_start",
                "text_delta",
                "text_complete",
                "tool_start",
                "tool_result",
                "step_end",
                "step_start",
                "text_delta",
                "text_complete",
                "step_end",
                "complete",
            ]
            assert stream.reason == {"kind": "completed"}
        [start] = data_of(tmp_path, "s", "turn/start")
        assert (start["turn_id"], start["run_id"], start["run"]["max_steps"]) == ("t1", stream.run_id, 5)
        [message] = data_of(tmp_path, "s", "user/message")
        assert (message["message_id"], message["content"]) == ("m1", [{"kind": "text", "text": "What is it?"}])
        assert types_of(tmp_path, "s")[-2:] == ["turn/end", "run/settled"]

    go(main())


def test_a_message_may_be_blocks_with_quotes_and_attachments(tmp_path: Path) -> None:
    blocks = [{"kind": "text", "text": "See:"}, {"kind": "image", "media_type": "image/png", "data": "AAAA"}]
    quotes = [{"text": "earlier", "source": "m0"}]
    attachments = [{"name": "a.txt", "media_type": "text/plain", "ref": "sha256:" + "0" * 64, "bytes": 3}]

    async def main() -> None:
        script = playing("Nice.")
        async with managing(tmp_path, script) as manager:
            await manager.create(session_id="s")
            await told(manager.send("s", blocks, quotes=quotes, attachments=attachments))
            [input] = script.built[0].inputs
            assert (input.text, input.content) == ("See:", blocks)
        [message] = data_of(tmp_path, "s", "user/message")
        assert (message["content"], message["quotes"], message["attachments"]) == (blocks, quotes, attachments)

    go(main())


def test_nothing_happens_before_the_first_event_is_asked_for(tmp_path: Path) -> None:
    async def main() -> None:
        script = playing("hi")
        async with managing(tmp_path, script) as manager:
            await manager.create(session_id="s")
            stream = manager.send("s", "hello")
            await asyncio.sleep(0.05)
            assert script.built == []
            await stream.aclose()
            assert await told(stream) == []
            assert types_of(tmp_path, "s") == ["session/header"]

    go(main())


def test_turns_of_a_session_run_in_the_order_in_which_they_were_begun(tmp_path: Path) -> None:
    async def main() -> None:
        release = asyncio.Event()
        script = playing(["one", Wait(until=release)], "two", "three")
        async with managing(tmp_path, script) as manager:
            await manager.create(session_id="s")
            streams = [manager.send("s", f"message {n}", turn_id=f"t{n}") for n in (1, 2, 3)]
            readers = []
            for stream in streams:
                readers.append(asyncio.ensure_future(told(stream)))
                await asyncio.sleep(0)
            while script.built == [] or script.built[0].sends == 0:
                await asyncio.sleep(0.01)
            assert manager.status("s").turns == ["t1", "t2", "t3"]
            assert script.built[0].sends == 1
            release.set()
            assert [said(await reader) for reader in readers] == [["one"], ["two"], ["three"]]
            assert len(script.built) == 1
        assert [data["turn_id"] for data in data_of(tmp_path, "s", "turn/start")] == ["t1", "t2", "t3"]
        types = types_of(tmp_path, "s")
        where = [(types[i]) for i in range(len(types)) if types[i] in ("turn/start", "turn/end")]
        assert where == ["turn/start", "turn/end"] * 3

    go(main())


def test_sessions_run_side_by_side(tmp_path: Path) -> None:
    async def main() -> None:
        everybody = asyncio.Barrier(3)
        script = scripted_backend(lambda sent: [Wait(until=_all(everybody)), "done"])
        async with managing(tmp_path, script) as manager:
            sessions = [await manager.create() for _ in range(3)]
            results = await asyncio.gather(*(told(manager.send(session, "go")) for session in sessions))
            assert [said(events) for events in results] == [["done"]] * 3

    go(main())


def _all(barrier: asyncio.Barrier) -> asyncio.Event:
    """Set once everybody is there."""
    event = asyncio.Event()

    async def wait() -> None:
        async with barrier:
            event.set()

    task = asyncio.ensure_future(wait())
    task.add_done_callback(lambda done: done.result())
    return event


# ---------------------------------------------------------------- stop


def test_a_stop_at_once_ends_the_turn_wherever_it_is(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing(["Well", Tool("slow", seconds=60)], "next")) as manager:
            await manager.create(session_id="s")
            stream = manager.send("s", "go")
            await until(stream, "tool_start")
            await manager.stop("s", source="stop_button", stop_id="stop-1")
            assert stream.reason == {"kind": "aborted", "source": "stop_button"}
            assert (await told(stream))[-1].data["stop_reason"] == "user_stop"
            assert said(await told(manager.send("s", "and now"))) == ["next"]
        types = types_of(tmp_path, "s")
        [requested] = data_of(tmp_path, "s", "turn/stop_requested")
        assert (requested["stop_id"], requested["mode"]) == ("stop-1", "immediate")
        [result] = data_of(tmp_path, "s", "tool/result")
        assert result["state"] == "unknown"
        assert [note["kind"] for note in data_of(tmp_path, "s", "session/note")] == ["abort"]
        assert types.count("turn/end") == 2
        assert_legal(maka.inspect("s", root=tmp_path).messages())

    go(main())


def test_a_stop_after_the_step_lets_its_calls_come_to_their_end(tmp_path: Path) -> None:
    async def main() -> None:
        script = playing(["Well", Tool("slow", result="slowly", seconds=0.1), "never said", Never()])
        async with managing(tmp_path, script) as manager:
            await manager.create(session_id="s")
            stream = manager.send("s", "go")
            await until(stream, "tool_start")
            await manager.stop("s", mode="after_step")
            await told(stream)
        [result] = data_of(tmp_path, "s", "tool/result")
        assert (result["state"], result["content"]) == ("ok", [{"kind": "text", "text": "slowly"}])
        [end] = data_of(tmp_path, "s", "turn/end")
        assert end["reason"] == {"kind": "aborted", "source": "user"}
        assert len(data_of(tmp_path, "s", "assistant/message")) == 1

    go(main())


def test_a_stop_cancels_what_waits_and_what_waits_leaves_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing(Never(), "next")) as manager:
            await manager.create(session_id="s")
            running, waiting = manager.send("s", "one", turn_id="t1"), manager.send("s", "two", turn_id="t2")
            await running.started()
            reader = asyncio.ensure_future(told(waiting))
            await asyncio.sleep(0)
            await manager.stop("s")
            assert await reader == []
            await told(running)
        assert [data["turn_id"] for data in data_of(tmp_path, "s", "turn/start")] == ["t1"]

    go(main())


def test_a_stop_where_nothing_runs_does_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing("hi")) as manager:
            await manager.create(session_id="s")
            await manager.stop("s")
            await manager.stop("nobody")
            await told(manager.send("s", "hello"))
            before = types_of(tmp_path, "s")
            await manager.stop("s")
            assert types_of(tmp_path, "s") == before

    go(main())


# ---------------------------------------------------------------- consumers


def test_who_stops_reading_loses_events_and_the_journal_none(tmp_path: Path) -> None:
    async def main() -> None:
        text = "word " * 5_000
        script = playing([Say(text, pieces=2_500), Tool("t", result="r"), "end"])
        async with managing(tmp_path, script) as manager:
            await manager.create(session_id="s")
            over = asyncio.Event()
            manager.subscribe(lambda event: over.set() if event.kind == "run_ended" else None)
            stream = manager.send("s", "go")
            await anext(stream)  # and never again
            await over.wait()
        said_on_disk = [
            block["text"]
            for message in data_of(tmp_path, "s", "assistant/message")
            for block in message["content"]
            if block["kind"] == "text"
        ]
        assert said_on_disk == [text, "end"]
        assert data_of(tmp_path, "s", "turn/end")[0]["reason"] == {"kind": "completed"}

    go(main())


def test_who_leaves_stops_the_turn(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing(["Well", Tool("t"), Never()], "next")) as manager:
            await manager.create(session_id="s")
            async with manager.send("s", "go") as stream:
                await until(stream, "tool_result")
            assert stream.reason == {"kind": "aborted", "source": "abandoned"}
            assert said(await told(manager.send("s", "go on"))) == ["next"]
        [result] = data_of(tmp_path, "s", "tool/result")
        assert result["state"] == "ok"

    go(main())


def test_a_reader_that_is_cancelled_loses_nothing_of_the_journal(tmp_path: Path) -> None:
    async def main() -> None:
        release = asyncio.Event()
        async with managing(tmp_path, playing(["one", Wait(until=release), "two"])) as manager:
            await manager.create(session_id="s")
            over = asyncio.Event()
            manager.subscribe(lambda event: over.set() if event.kind == "run_ended" else None)
            reader = asyncio.ensure_future(told(stream := manager.send("s", "go")))
            await stream.started()
            reader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reader
            release.set()
            await over.wait()
        assert data_of(tmp_path, "s", "turn/end")[0]["reason"] == {"kind": "completed"}

    go(main())


# ---------------------------------------------------------------- failures


def test_a_provider_that_fails_is_told_and_the_session_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        script = playing(["half", Fail("provider_rate_limit", message="come back later")], "better")
        async with managing(tmp_path, script) as manager:
            await manager.create(session_id="s")
            stream = manager.send("s", "go")
            events = await told(stream)
            assert [event.kind for event in events][-2:] == ["error", "complete"]
            assert stream.reason is not None
            assert stream.reason["failure_class"] == "provider_rate_limit"
            assert said(await told(manager.send("s", "again"))) == ["better"]
        [end, _] = data_of(tmp_path, "s", "turn/end")
        assert end["reason"] == {
            "kind": "failed",
            "failure_class": "provider_rate_limit",
            "message": "come back later",
        }

    go(main())


def test_a_backend_that_cannot_be_built_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        script = scripted_backend(["hi"], faults=[Faults(build_error=OSError("no key")), Faults()])
        async with managing(tmp_path, script) as manager:
            await manager.create(session_id="s")
            with pytest.raises(RuntimeFailure, match=r"could not be built .OSError: no key.; mend") as failed:
                await told(manager.send("s", "go"))
            assert isinstance(failed.value.__cause__, OSError)
            assert types_of(tmp_path, "s") == ["session/header"]
            assert said(await told(manager.send("s", "go"))) == ["hi"]

    go(main())


def test_a_quarantined_session_says_so_and_others_go_on(tmp_path: Path) -> None:
    async def main() -> None:
        broken = Faults(stop_error=RuntimeError("no"), ignore_stop=True, ignore_dispose=True)
        script = scripted_backend(lambda sent: ["Well", Never()] if sent.session_id == "bad" else "fine", faults=broken)
        deadlines = Deadlines(exit=0.2, dispose=0.2, grace=0.01)
        manager = SessionManager(tmp_path, app=app_of(script), deadlines=deadlines)
        await manager.create(session_id="bad")
        await manager.create(session_id="good")
        await until(manager.send("bad", "go"), "text_delta")
        with pytest.raises(RuntimeError, match=r"^no$") as first:
            await manager.stop("bad")
        with pytest.raises(SessionQuarantined) as caught:
            await told(manager.send("bad", "again"))
        assert "try again when it has" in str(caught.value)
        assert not caught.value.permanent
        status = manager.status("bad")
        assert status.quarantined is not None
        assert "failed to stop (no)" in status.quarantined
        assert said(await told(manager.send("good", "go"))) == ["fine"]
        [note] = [note for note in data_of(tmp_path, "bad", "session/note") if note["kind"] == "quarantine"]
        assert "failed to stop (no)" in note["text"]
        assert data_of(tmp_path, "bad", "turn/end")[0]["reason"]["kind"] == "aborted"
        with pytest.raises(RuntimeError) as last:
            await manager.aclose()
        assert last.value is first.value

    go(main())


class FailingFs(RealFs):
    """Fails the first sync behind a write whose bytes hold ``wanted``."""

    def __init__(self, wanted: bytes) -> None:
        self._wanted: bytes | None = wanted
        self._armed = False
        self.write: Callable[[int, bytes], int] = self._write
        self.sync: Callable[[int], None] = self._sync

    def _write(self, fd: int, data: bytes) -> int:
        if self._wanted is not None and self._wanted in data:
            self._armed, self._wanted = True, None
        return os.write(fd, data)

    def _sync(self, fd: int) -> None:
        if self._armed:
            self._armed = False
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        os.fdatasync(fd)


def test_a_turn_whose_journal_fails_reads_failed_and_the_next_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maka.runtime.sessions.FileJournals", partial(FileJournals, fs=FailingFs(b'"tool/call"')))

    async def main() -> None:
        async with managing(tmp_path, playing(["Well", Tool("t"), "never"], "next")) as manager:
            await manager.create(session_id="s")
            await manager.create(session_id="other")
            stream = manager.send("s", "go", turn_id="t1")
            with pytest.raises(maka.JournalWriteError) as caught:
                await told(stream)
            assert caught.value.errno == errno.EIO
            assert stream.reason is None
            degraded = manager.status("s").degraded
            assert degraded == str(caught.value)
            assert "tool/call" not in types_of(tmp_path, "s")
            await manager.rename("other", "unharmed")
            # The next command opens it again.
            assert said(await told(manager.send("s", "again", turn_id="t2"))) == ["next"]
            assert manager.status("s").degraded is None
        ends = {data["turn_id"]: data["reason"] for data in data_of(tmp_path, "s", "turn/end")}
        assert (ends["t1"]["kind"], ends["t1"]["failure_class"]) == ("failed", "journal_write_failed")
        assert ends["t2"] == {"kind": "completed"}
        assert_legal(maka.inspect("s", root=tmp_path).messages())

    go(main())


def test_a_change_that_cannot_be_written_is_raised_and_the_next_one_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maka.runtime.sessions.FileJournals", partial(FileJournals, fs=FailingFs(b'"lost"')))

    async def main() -> None:
        async with managing(tmp_path, playing()) as manager:
            await manager.create(session_id="s")
            with pytest.raises(maka.JournalWriteError):
                await manager.rename("s", "lost")
            await manager.rename("s", "kept")
        assert data_of(tmp_path, "s", "session/updated") == [{"patch": {"name": "kept"}}]

    go(main())


# ---------------------------------------------------------------- other backends, other models


def test_another_backend_takes_the_next_turn_also_while_one_runs(tmp_path: Path) -> None:
    async def main() -> None:
        one, two = scripted_backend([Question("sure?"), "one again"]), playing("from two")
        app = App(backends={"one": one, "two": two}, default_backend="one", permission_mode="bypass")
        async with managing(tmp_path, app) as manager:
            await manager.create(session_id="s")
            stream = manager.send("s", "go")
            asked = await until(stream, "question_request")
            await manager.update("s", {"backend": "two"})
            with pytest.raises(BackendUnknown):
                await manager.update("s", {"backend": "three"})
            assert [built.disposals for built in one.built] == [0]
            answer = {"kind": "question_answer", "answers": ["Yes"]}
            await manager.answer("s", asked.data["interaction_id"], answer)
            assert '"Yes"' in said(await told(stream))[0]
            assert said(await told(manager.send("s", "and"))) == ["from two"]
            assert [built.disposals for built in one.built] == [1]
            await manager.update("s", {"backend": "one"})
            assert [built.disposals for built in two.built] == [1]
            assert said(await told(manager.send("s", "back"))) == ["one again"]
            assert len(one.built) == 2
        backends = [data["run"]["backend"] for data in data_of(tmp_path, "s", "turn/start")]
        assert backends == ["one", "two", "one"]

    go(main())


def test_another_model_is_asked_from_the_next_turn_on(tmp_path: Path) -> None:
    async def main() -> None:
        model = ScriptedModel(["one", "two"])
        app = App(backends={"loop": loop_backend(model)}, default_backend="loop", model="big")
        async with managing(tmp_path, app) as manager:
            await manager.create(session_id="s")
            await told(manager.send("s", "go"))
            await manager.update("s", {"model": "small"})
            await told(manager.send("s", "go on"))
            assert [request.model for request in model.requests] == ["big", "small"]
        assert [data["run"]["model"] for data in data_of(tmp_path, "s", "turn/start")] == ["big", "small"]
        assert [data["reason"] for data in data_of(tmp_path, "s", "request/header")] == ["initial", "resume"]

    go(main())


def test_every_event_is_shown_to_the_hook_before_it_is_written(tmp_path: Path) -> None:
    def redact(draft: maka.Draft) -> maka.Draft:
        if draft.type in ("user/message", "assistant/message"):
            return maka.Draft(draft.type, {**draft.data, "content": [{"kind": "text", "text": "[removed]"}]})
        return draft

    async def main() -> None:
        async with managing(tmp_path, app_of(playing("secret-2")), on_append=redact) as manager:
            await manager.create(session_id="s")
            await told(manager.send("s", "secret-1"))
        raw = (tmp_path / "sessions" / "s" / "journal.jsonl").read_text()
        assert raw.count("[removed]") == 2
        assert "secret-1" not in raw

    go(main())
