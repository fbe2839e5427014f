"""The loop on a real journal whose file operations fail: what is on disk afterwards, and what a repair makes of it."""

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import maka
from maka.journal.events import Draft
from maka.journal.files import RealFs
from maka.journal.store import FileStore
from maka.journal.writer import JournalWriter
from maka.runtime.conversation import Conversation
from maka.runtime.loop import Loop, Options, TurnOutcome
from maka.runtime.opening import conversation_of
from maka.runtime.record import SessionEvent
from maka.runtime.scripted import Ask, ScriptedModel
from maka.runtime.tools import ToolOutput
from support.chain import check
from support.legal import assert_legal
from support.loops import FakeTool, header


class FailingFs(RealFs):
    """Fails ``times`` times from the first write on whose bytes ``wanted`` accepts: in that write, or in its sync."""

    def __init__(self, wanted: bytes, number: int, *, at: str = "write", times: int = 1) -> None:
        self._wanted = wanted
        self._number = number
        self._at = at
        self._times = times
        self._armed = False
        self.write: Callable[[int, bytes], int] = self._write
        self.sync: Callable[[int], None] = self._sync

    def _fails(self) -> bool:
        self._times -= 1
        return self._times >= 0

    def _write(self, fd: int, data: bytes) -> int:
        if self._wanted in data:
            self._armed = True
            if self._at == "write" and self._fails():
                raise OSError(self._number, os.strerror(self._number))
        return os.write(fd, data)

    def _sync(self, fd: int) -> None:
        if self._at == "sync" and self._armed and self._fails():
            raise OSError(self._number, os.strerror(self._number))
        os.fdatasync(fd)


class Session:
    def __init__(self, directory: Path, fs: RealFs) -> None:
        self.store = FileStore(directory / "root")
        self.store.create(header(cwd=str(directory))).close()
        self.path = self.store.path("s1")
        self.tool = FakeTool("a")
        self.model = ScriptedModel([[Ask("a")], ["done"]])
        self._fs = fs

    def run(self) -> TurnOutcome:
        with JournalWriter.open(self.path, fs=self._fs) as journal:
            loop = Loop(
                journal=journal,
                conversation=Conversation(self.store.read("s1")),
                model=self.model,
                session_dir=journal.session_dir,
                tools=[self.tool],
                options=Options(live_text=False),
            )
            return asyncio.run(loop.run_turn("go"))

    def types(self) -> list[str]:
        return [event["type"] for event in check(self.path.read_bytes())]


@pytest.mark.parametrize(("at", "number"), [("write", errno.ENOSPC), ("write", errno.EIO), ("sync", errno.EIO)])
def test_a_call_whose_intent_cannot_be_written_does_not_run(tmp_path: Path, at: str, number: int) -> None:
    session = Session(tmp_path, FailingFs(b'"tool/call"', number, at=at))
    with pytest.raises(maka.JournalWriteError) as caught:
        session.run()
    assert caught.value.errno == number
    assert session.tool.entered == 0
    assert session.types()[-1] == "request/header"
    view = maka.load(session.path)
    assert view.turns()[0]["status"] == "interrupted"
    assert_legal(view.messages())


def test_a_result_is_written_again_and_the_tool_does_not_run_again(tmp_path: Path) -> None:
    session = Session(tmp_path, FailingFs(b'"tool/result"', errno.ENOSPC))
    assert session.run().reason == {"kind": "completed"}
    assert session.tool.entered == 1
    assert session.types().count("tool/result") == 1
    assert maka.load(session.path).verdict == "healthy"


@pytest.mark.parametrize(("at", "times"), [("write", 2), ("sync", 1)])
def test_a_result_that_cannot_be_written_is_unknown_to_the_repair(tmp_path: Path, at: str, times: int) -> None:
    session = Session(tmp_path, FailingFs(b'"tool/result"', errno.EIO, at=at, times=times))
    with pytest.raises(maka.JournalWriteError):
        session.run()
    assert session.tool.entered == 1
    assert len(session.model.requests) == 1
    assert session.types()[-1] == "tool/call"
    view = maka.load(session.path)
    assert [call["state"] for call in view.turns()[0]["calls"]] == ["unknown"]
    assert_legal(view.messages())


def test_a_file_that_was_replaced_stops_the_turn(tmp_path: Path) -> None:
    session = Session(tmp_path, RealFs())
    before = session.path.read_bytes()

    async def swap(arguments: object, context: object) -> None:
        session.path.rename(tmp_path / "aside")
        session.path.write_bytes(before)

    session.tool._body = swap
    with pytest.raises(maka.JournalConflict):
        session.run()
    assert session.path.read_bytes() == before


def test_turns_follow_each_other_and_a_second_process_goes_on(tmp_path: Path) -> None:
    session = Session(tmp_path, RealFs())
    session.run()
    session.model = ScriptedModel(["second"])
    session.run()
    view = maka.load(session.path)
    assert [(turn["turn"], turn["status"]) for turn in view.turns()] == [(1, "completed"), (2, "completed")]
    [request] = session.model.requests
    assert [message["role"] for message in request.messages] == ["user", "assistant", "tool", "assistant", "user"]
    assert_legal(request.messages)
    reasons = [event.data["reason"] for event in view.events if event.type == "request/header"]
    assert reasons == ["initial", "resume"]


class CountingFs(RealFs):
    def __init__(self) -> None:
        self.syncs = 0
        self.sync: Callable[[int], None] = self._sync

    def _sync(self, fd: int) -> None:
        self.syncs += 1
        os.fdatasync(fd)


def test_what_comes_together_shares_a_sync(tmp_path: Path) -> None:
    session = Session(tmp_path, fs := CountingFs())
    session.model = ScriptedModel([[Ask("a"), Ask("a"), Ask("a")], ["done"]])
    session.run()
    assert session.types().count("tool/call") == 3
    # Opening; then the request, the calls, the results with the next request, and the end.
    assert fs.syncs == 5


def test_a_fork_goes_on_from_what_its_parent_said(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "root")

    def run(journal: JournalWriter, text: str) -> ScriptedModel:
        model = ScriptedModel([f"to {text}"])
        conversation = conversation_of(journal.path)
        loop = Loop(journal=journal, conversation=conversation, model=model, session_dir=journal.session_dir)
        assert asyncio.run(loop.run_turn(text)).reason == {"kind": "completed"}
        return model

    with store.create(header("parent")) as journal:
        run(journal, "one")
        point = {"session_id": "parent", "seq": journal.head.seq, "sum": journal.head.sum}
        run(journal, "not in the fork")
    made = header("fork")
    with store.create(Draft(made.type, {**made.data, "parent": point, "model": "another"})) as journal:
        [request] = run(journal, "two").requests
    said = [block["text"] for message in request.messages for block in message["content"]]
    assert (said, request.model) == (["one", "to one", "two"], "another")
    view = maka.load(store.path("fork"))
    assert view.verdict == "healthy"
    assert [turn["turn"] for turn in view.turns()][-1] == 2
    [asked] = [event.data["reason"] for event in view.events if event.type == "request/header"]
    assert asked == "initial"


def test_a_client_and_the_model_are_told_what_the_journal_took(tmp_path: Path) -> None:
    session = Session(tmp_path, RealFs())
    session.tool._body = lambda arguments, context: ToolOutput.of("a secret\ud800")
    session.model = ScriptedModel([["a secret", Ask("a")], ["done"]])
    told: list[SessionEvent] = []

    def redact(draft: Draft) -> Draft:
        if draft.type not in ("assistant/message", "tool/result"):
            return draft
        content = [
            {**block, "text": block["text"].replace("secret", "…")} if "text" in block else block
            for block in draft.data["content"]
        ]
        return Draft(draft.type, {**draft.data, "content": content})

    with JournalWriter.open(session.path, on_append=redact) as journal:
        loop = Loop(
            journal=journal,
            conversation=Conversation(session.store.read("s1")),
            model=session.model,
            session_dir=journal.session_dir,
            tools=[session.tool],
            publish=told.append,
        )
        asyncio.run(loop.run_turn("go"))
    wanted = [{"kind": "text", "text": "a …\ufffd", "lossy": True}]
    assert [event.data["content"] for event in told if event.kind == "tool_result"] == [wanted]
    assert next(event.data["text"] for event in told if event.kind == "text_complete") == "a …"
    assert session.model.requests[1].messages[-1]["content"][0]["content"] == wanted


def test_a_turn_that_could_not_begin_leaves_nothing_and_the_next_one_begins(tmp_path: Path) -> None:
    """The error was told once, by the turn that met it: the next call of the same task is not refused for it."""
    session = Session(tmp_path, FailingFs(b'"turn/start"', errno.ENOSPC))

    async def twice(journal: JournalWriter) -> TurnOutcome:
        def loop() -> Loop:
            conversation = Conversation(session.store.read("s1"))
            return Loop(
                journal=journal, conversation=conversation, model=session.model, session_dir=journal.session_dir
            )

        with pytest.raises(maka.JournalWriteError):
            await loop().run_turn("first")
        return await loop().run_turn("second")

    session.model = ScriptedModel(["done"])
    with JournalWriter.open(session.path, fs=session._fs) as journal:
        assert asyncio.run(twice(journal)).reason == {"kind": "completed"}
    assert session.types().count("turn/start") == 1
    assert maka.load(session.path).verdict == "healthy"
