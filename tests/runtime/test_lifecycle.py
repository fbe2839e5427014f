"""What the runtime tells whoever listens, and its log: in order, for every kind, and never what was said."""

import logging
import re
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

import maka
from maka.runtime.app import App
from maka.runtime.backends.loop import loop_backend
from maka.runtime.backends.scripted import Faults, Never, Question, scripted_backend
from maka.runtime.backends.scripted import Tool as Call
from maka.runtime.journals import FileJournals
from maka.runtime.kernel.generations import Deadlines
from maka.runtime.lifecycle import KINDS, Lifecycle, LifecycleEvent
from maka.runtime.scripted import Ask, Fail, Say, ScriptedModel
from maka.runtime.sessions import SessionManager
from maka.runtime.tools.ask_user import AskUser
from maka.runtime.tools.base import Tool, ToolFailed, ToolOutput
from support.disks import FaultyDisk
from support.loops import FakeTool
from support.managed import go, managing, playing, told, until

YES = {"kind": "question_answer", "answers": ["Yes"]}


class Ear:
    """What was heard, and the kinds of it."""

    def __init__(self, manager: SessionManager) -> None:
        self.events: list[LifecycleEvent] = []
        manager.subscribe(self.events.append)

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    def the(self, kind: str) -> LifecycleEvent:
        [found] = [event for event in self.events if event.kind == kind]
        return found


# ---------------------------------------------------------------- what is told


def test_a_turn_from_the_opening_of_its_session_to_its_closing(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing("hi", "again")) as manager:
            ear = Ear(manager)
            await manager.create(session_id="s")
            stream = manager.send("s", "hello", turn_id="t1")
            await told(stream)
            assert ear.kinds == ["session_opened", "backend_built", "run_started", "run_ended"]
            assert {event.session_id for event in ear.events} == {"s"}
            ids = {"turn_id": "t1", "run_id": stream.run_id}
            assert ear.the("backend_built").data == {"backend": "scripted", "generation": 1}
            assert ear.the("run_started").data == ids
            assert ear.the("run_ended").data == {**ids, "reason": "completed", "error": None}
            ear.events.clear()
            await told(manager.send("s", "and"))
            assert ear.kinds == ["run_started", "run_ended"]
            ear.events.clear()
        assert ear.kinds == ["backend_disposed", "session_closed"]

    go(main())


def test_a_stop_and_what_was_asked_before_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing([Question("Go on?"), Question("Sure?")])) as manager:
            await manager.create(session_id="s")
            ear = Ear(manager)
            stream = manager.send("s", "hello")
            first = (await until(stream, "question_request")).data["interaction_id"]
            await manager.answer("s", first, YES)
            second = (await until(stream, "question_request")).data["interaction_id"]
            await manager.stop("s", source="button", mode="immediate")
            await told(stream)
            assert ear.kinds[3:-2] == [
                "interaction_requested",
                "interaction_resolved",
                "interaction_requested",
                "stop_requested",
                "interaction_resolved",
            ]
            assert set(ear.kinds[-2:]) == {"stop_settled", "run_ended"}
            asked = [event.data for event in ear.events if event.kind.startswith("interaction")]
            assert [(data["interaction_id"], data["status"]) for data in asked] == [
                (first, "pending"),
                (first, "answered"),
                (second, "pending"),
                (second, "closed"),
            ]
            requested = ear.the("stop_requested").data
            assert (requested["source"], requested["mode"], requested["run_id"]) == (
                "button",
                "immediate",
                stream.run_id,
            )
            assert ear.the("stop_settled").data["error"] is None
            assert ear.the("run_ended").data["reason"] == "aborted"

    go(main())


def test_a_backend_that_is_given_up_and_the_quarantine(tmp_path: Path) -> None:
    broken = Faults(stop_error=RuntimeError("no"), ignore_stop=True, ignore_dispose=True)

    async def main() -> None:
        manager = SessionManager(
            tmp_path,
            app=App(backends={"b": scripted_backend([["Well", Never()]], faults=broken)}, default_backend="b"),
            deadlines=Deadlines(exit=0.1, dispose=0.1, grace=0.01),
        )
        await manager.create(session_id="s")
        ear = Ear(manager)
        await until(manager.send("s", "hello"), "text_delta")
        with pytest.raises(RuntimeError) as caught:
            await manager.stop("s")
        assert "backend_failed" in ear.kinds
        assert ear.kinds.index("backend_failed") < ear.kinds.index("session_quarantined") < len(ear.kinds)
        quarantined = ear.the("session_quarantined").data
        assert quarantined["permanent"] is False
        assert "its backend failed to stop (no)" in str(quarantined["error"])
        assert ear.the("stop_settled").data["error"] is caught.value
        with pytest.raises(RuntimeError):
            await manager.aclose()

    go(main())


def test_a_session_whose_journal_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FaultyDisk()
    monkeypatch.setattr("maka.runtime.sessions.FileJournals", partial(FileJournals, fs=disk))

    async def main() -> None:
        async with managing(tmp_path, playing(["Well", Call("t", seconds=0.01)], "next")) as manager:
            await manager.create(session_id="s")
            ear = Ear(manager)
            stream = manager.send("s", "hello")
            await until(stream, "tool_start")
            disk.fail("sync")
            with pytest.raises(maka.JournalWriteError) as caught:
                await told(stream)
            assert ear.the("session_degraded").data["error"] is caught.value
            assert ear.kinds.index("session_degraded") < ear.kinds.index("run_ended")
            ear.events.clear()
            await told(manager.send("s", "again"))
            assert [kind for kind in ear.kinds if kind.startswith("session")] == ["session_closed", "session_opened"]

    go(main())


def test_the_table_has_no_kind_that_nobody_tells() -> None:
    source = "".join(path.read_text() for path in Path(str(maka.__file__)).parent.joinpath("runtime").rglob("*.py"))
    assert set(KINDS) <= set(re.findall(r'\b(?:tell|say)\(\s*(?:run,\s*)?"(\w+)"', source))


# ---------------------------------------------------------------- who listens


def test_who_does_not_listen_any_more_is_told_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing("one", "two")) as manager:
            await manager.create(session_id="s")
            ear = Ear(manager)
            others: list[LifecycleEvent] = []
            unsubscribe = manager.subscribe(others.append)
            await told(manager.send("s", "hello"))
            heard = len(others)
            assert heard == len(ear.events) > 0
            unsubscribe()
            unsubscribe()
            await told(manager.send("s", "hello"))
            assert len(others) == heard < len(ear.events)

    go(main())


def test_a_listener_that_fails_or_leaves_while_it_is_told_harms_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(event: LifecycleEvent) -> None:
        raise ValueError("the listener is broken")

    async def main() -> None:
        async with managing(tmp_path, playing("hi")) as manager:
            await manager.create(session_id="s")
            manager.subscribe(broken)
            heard: list[str] = []

            def once(event: LifecycleEvent) -> None:
                heard.append(event.kind)
                leave()

            leave = manager.subscribe(once)
            ear = Ear(manager)
            assert (await told(manager.send("s", "hello")))[-1].data["stop_reason"] == "end_turn"
            assert ear.kinds == ["session_opened", "backend_built", "run_started", "run_ended"]
            assert heard == ["session_opened"]

    go(main())
    failures = [record for record in caplog.records if "a lifecycle listener failed on" in record.message]
    assert len(failures) == 6
    assert failures[0].exc_info is not None


def test_a_listener_that_fails_on_each_event_is_logged_in_full_once(caplog: pytest.LogCaptureFixture) -> None:
    lifecycle = Lifecycle()

    def broken(event: LifecycleEvent) -> None:
        raise ValueError("the listener is broken")

    def other(event: LifecycleEvent) -> None:
        raise KeyError("other")

    leave = lifecycle.subscribe(broken)
    lifecycle.tell("run_started", "s")
    lifecycle.tell("run_ended", "s")
    lifecycle.subscribe(other)
    lifecycle.tell("run_started", "s")
    # Who comes back is new.
    leave()
    lifecycle.subscribe(broken)
    lifecycle.tell("run_ended", "s")
    failures = [record for record in caplog.records if "a lifecycle listener failed on" in record.message]
    assert [record.exc_info is not None for record in failures] == [True, False, False, True, False, True]
    assert failures[1].message == "a lifecycle listener failed on run_ended: ValueError: the listener is broken"


# ---------------------------------------------------------------- the log


def test_each_kind_is_logged_at_its_level_with_ids_and_an_errors_text_at_error_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lifecycle = Lifecycle()
    with caplog.at_level(logging.DEBUG, "maka.runtime"):
        for kind in KINDS:
            lifecycle.tell(kind, "s", turn_id="t1", error=OSError("what went wrong"))
    lines = {record.getMessage().split()[0]: record for record in caplog.records}
    assert list(lines) == list(KINDS)
    for kind, record in lines.items():
        assert record.levelno == KINDS[kind]
        assert record.getMessage().startswith(f"{kind} session=s turn_id=t1")
        assert ("what went wrong" in record.getMessage()) == (record.levelno >= logging.ERROR)


CANARY = "canary-7f3a"


class Lenient(FakeTool):
    """Takes any arguments."""

    parameters: ClassVar[dict[str, Any]] = {"type": "object"}


def test_nothing_of_a_conversation_is_logged_or_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fails(arguments: Any, context: Any) -> ToolOutput:
        raise ToolFailed(f"no {CANARY}")

    def breaks(arguments: Any, context: Any) -> ToolOutput:
        raise ValueError(f"a defect with {CANARY}")

    fakes = [
        Lenient("echo", lambda arguments, context: ToolOutput.of(CANARY), recovery="read_only"),
        Lenient("fails", fails, recovery="read_only"),
        Lenient("breaks", breaks, recovery="read_only"),
        Lenient("asks"),
    ]
    tools: list[Tool] = [*fakes, AskUser()]
    options = [{"label": CANARY}, {"label": "no"}]
    said = {"said": CANARY}
    model = ScriptedModel(
        [
            [Say(f"thinking of {CANARY}", thinking=True), CANARY, *(Ask(tool.name, said) for tool in fakes)],
            [Ask("ask_user", {"questions": [{"question": CANARY, "options": options}]})],
            [Ask("echo", f'{{"broken": "{CANARY}"'), Ask(f"no-{CANARY}", said)],
            CANARY,
            [CANARY, Fail("provider_auth")],
        ]
    )
    app = App(backends={"loop": loop_backend(model, tools)}, default_backend="loop", model="m", tools=tools)

    async def main() -> list[LifecycleEvent]:
        async with managing(tmp_path, app) as manager:
            ear = Ear(manager)
            await manager.create(session_id="s", name=CANARY)
            await manager.set_labels("s", [CANARY])
            answers: dict[str, dict[str, Any]] = {
                "permission_request": {"kind": "permission_answer", "decision": "deny"},
                "question_request": {"kind": "question_answer", "answers": [CANARY]},
            }
            async for event in manager.send("s", f"say {CANARY}"):
                if event.kind in answers:
                    await manager.answer("s", event.data["interaction_id"], answers[event.kind])
            await told(manager.send("s", CANARY))
            return ear.events

    with caplog.at_level(logging.INFO):
        events = go(main())
    raw = (tmp_path / "sessions" / "s" / "journal.jsonl").read_text()
    assert raw.count(CANARY) > 12
    assert {"interaction_requested", "interaction_resolved", "run_ended"} <= {event.kind for event in events}
    assert caplog.records
    for record in caplog.records:
        assert CANARY not in record.getMessage()
        # Of a defect in somebody's tool there is the traceback, which that one wrote the text of.
        assert (record.exc_info is None) == ("the tool breaks raised a ValueError" not in record.getMessage())
    for event in events:
        assert CANARY not in repr(event)
