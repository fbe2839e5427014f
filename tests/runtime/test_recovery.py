"""Recovery of a root by a manager: per session, again and again the same, never in the way, cheap where all is well."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import maka
from maka.journal.reader import FileSource
from maka.journal.state import State
from maka.journal.writer import JournalWriter
from maka.repair import session as repair_session
from maka.repair.apply import repair
from maka.runtime.backends.scripted import Never, Tool, scripted_backend
from maka.runtime.lifecycle import LifecycleEvent
from maka.runtime.recovery import Recovered
from maka.runtime.sessions import SessionManager
from support.legal import assert_legal
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
from support.processes import Child

#: Runs the sessions of a root for the test, which kills it: ``done`` has finished, ``tool`` is inside a call, ``asks``
#: waits for an answer, ``talks`` streams.
LIVING = """
import asyncio, sys
from pathlib import Path
from maka.runtime.backends.scripted import Never, Question, Say, Tool, scripted_backend
from support.managed import managing, told, until

TURNS = {
    "done": "finished",
    "tool": ["Let me see.", Tool("slow", {"n": 1}, seconds=600)],
    "asks": Question("Go on?"),
    "talks": [Say("some live text", pieces=3), Never()],
}

async def main():
    script = scripted_backend(lambda sent: TURNS[sent.session_id], steps=True)
    async with managing(Path(sys.argv[1]), script) as manager:
        for session_id in TURNS:
            await manager.create(session_id=session_id)
        await told(manager.send("done", "go"))
        waits = {"tool": "tool_start", "asks": "question_request", "talks": "text_delta"}
        streams = {session_id: manager.send(session_id, "go") for session_id in waits}
        for session_id, kind in waits.items():
            await until(streams[session_id], kind)
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("killed") / "root"
    with Child(LIVING, root) as child:
        assert child.line() == "ready"
        child.kill()
    return root


@pytest.fixture
def root(killed: Path, tmp_path: Path) -> Path:
    """What a killed process left."""
    return Path(shutil.copytree(killed, tmp_path / "root"))


def states(found: list[Recovered]) -> dict[str, str]:
    return {recovered.session_id: recovered.state for recovered in found}


async def recovered(root: Path, **options: Any) -> dict[str, str]:
    async with managing(root, playing(), **options) as manager:
        return states(await manager.recover_interrupted_sessions())


def test_what_a_killed_process_left_open_is_closed_once_and_goes_on(root: Path) -> None:
    crashed = files_of(root)

    assert go(recovered(root)) == {"asks": "repaired", "done": "unchanged", "talks": "repaired", "tool": "repaired"}
    once = files_of(root)
    for name, raw in crashed.items():
        assert once[name].startswith(raw), f"{name} lost bytes"
    assert once["sessions/done/journal.jsonl"] == crashed["sessions/done/journal.jsonl"]
    assert go(recovered(root)) == dict.fromkeys(("asks", "done", "talks", "tool"), "unchanged")
    assert files_of(root) == once

    for session_id in ("asks", "done", "talks", "tool"):
        view = maka.inspect(session_id, root=root)
        assert view.verdict == "healthy"
        assert_legal(view.messages())
        assert types_of(root, session_id).count("turn/end") == 1
    [result] = data_of(root, "tool", "tool/result")
    assert (result["state"], result["error"]["code"]) == ("unknown", "TOOL_OUTCOME_UNKNOWN")
    [resolved] = data_of(root, "asks", "interaction/resolved")
    assert resolved["outcome"] == {"kind": "closure", "reason": "host_restarted"}

    async def main() -> None:
        async with managing(root, scripted_backend(["on it goes"], repeat=True)) as manager:
            for session_id in ("asks", "done", "talks", "tool"):
                assert said(await told(manager.send(session_id, "go on"))) == ["on it goes"]

    go(main())


def test_recovery_says_how_many_events_it_appended_and_tells_whoever_listens(root: Path) -> None:
    heads = {session_id: len(events_of(root, session_id)) for session_id in ("asks", "done", "tool")}

    async def main() -> None:
        async with managing(root, playing()) as manager:
            heard: list[LifecycleEvent] = []
            manager.subscribe(heard.append)
            found = {one.session_id: one for one in await manager.recover_interrupted_sessions()}
            for session_id, before in heads.items():
                assert found[session_id].appended == len(events_of(root, session_id)) - before
                assert found[session_id].error is None
            assert found["done"].appended == 0
            appended = {event.session_id: event.data["appended"] for event in heard}
            assert {event.kind for event in heard} == {"session_recovered"}
            assert appended == {key: found[key].appended for key in ("asks", "talks", "tool")}

    go(main())


def test_a_damaged_and_a_locked_session_keep_no_other_from_its_recovery(root: Path) -> None:
    damaged = directory(root, "asks") / "journal.jsonl"
    damaged.write_bytes(damaged.read_bytes().replace(b"Go on?", b"Go in?"))
    before = damaged.read_bytes()

    async def main() -> None:
        async with managing(root, playing("on")) as manager:
            with maka.open_session("talks", root=root) as journal:
                journal.append_durable(maka.SessionNote(kind="busy"))
                found = {one.session_id: one for one in await manager.recover_interrupted_sessions()}
            assert states(list(found.values())) == {
                "asks": "failed",
                "done": "unchanged",
                "talks": "open",
                "tool": "repaired",
            }
            error = found["asks"].error
            assert isinstance(error, maka.JournalDamaged)
            assert "maka journal repair" in str(error)
            assert damaged.read_bytes() == before
            with pytest.raises(maka.JournalDamaged):
                await told(manager.send("asks", "hi"))
            assert said(await told(manager.send("tool", "go on"))) == ["on"]

    go(main())


def test_a_session_that_is_gone_or_that_was_never_there_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing()) as manager:
            assert await manager.recover_interrupted_sessions() == []
            found = await manager.recover("nobody")
            assert (found.state, type(found.error)) == ("failed", maka.SessionNotFound)
            found = await manager.recover("../up")
            assert (found.state, type(found.error)) == ("failed", maka.SessionNotFound)
        assert files_of(tmp_path) == {}

    go(main())


def test_what_runs_here_is_left_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing([Tool("t"), Never()])) as manager:
            await manager.create(session_id="s")
            stream = manager.send("s", "go")
            await until(stream, "tool_result")
            before = files_of(tmp_path)
            assert states(await manager.recover_interrupted_sessions()) == {"s": "open"}
            assert files_of(tmp_path) == before
            await stream.aclose()
            assert stream.reason == {"kind": "aborted", "source": "abandoned"}

    go(main())


def test_messages_may_come_while_the_root_is_recovered(root: Path) -> None:

    async def main() -> None:
        async with managing(root, scripted_backend(["hi"], repeat=True)) as manager:
            recovering = [asyncio.ensure_future(manager.recover_interrupted_sessions()) for _ in range(2)]
            sending = [asyncio.ensure_future(told(manager.send(name, "hi"))) for name in ("asks", "talks", "tool")]
            for found in await asyncio.gather(*recovering):
                assert {one.state for one in found} <= {"unchanged", "repaired", "open"}
            assert [said(await turn) for turn in sending] == [["hi"]] * 3

    go(main())


def test_who_stops_waiting_for_a_recovery_leaves_no_lock_behind(root: Path) -> None:

    async def main() -> None:
        async with managing(root, playing("hi")) as manager:
            recovering = asyncio.ensure_future(manager.recover("tool"))
            await asyncio.sleep(0)
            recovering.cancel()
            with pytest.raises(asyncio.CancelledError):
                await recovering
            assert said(await told(manager.send("tool", "hi"))) == ["hi"]

    go(main())


# ---------------------------------------------------------------- what it costs


def journal_of(root: Path, turns: int, *, open_turn: bool) -> None:
    """A session with so many finished turns, closed cleanly; then perhaps one that was cut off."""

    async def main() -> None:
        script = scripted_backend(lambda sent: ["Look.", Tool("t", {}, "x" * 200), "Done."], steps=True)
        async with SessionManager(root, app=app_of(script)) as manager:
            await manager.create(session_id="s")
            for _ in range(turns):
                await told(manager.send("s", "go"))

    go(main())
    if open_turn:
        ids: dict[str, Any] = {"turn_id": "cut", "run_id": "cut"}
        with maka.open_session("s", root=root) as journal:
            run = maka.RunHeader(
                run_id="cut",
                invocation_id="i",
                turn_id="cut",
                backend="scripted",
                model="m",
                cwd=".",
                permission_mode="bypass",
                created_at=1,
                root={"kind": "user"},
            )
            said = [{"kind": "text", "text": "go"}]
            snapshot = (journal.session_dir / "snapshot.json").read_bytes()
            journal.append_batch(
                [
                    maka.TurnStart(**ids, invocation_id="i", turn=turns + 1, run=run),
                    maka.UserMessage(**ids, message_id="m", content=said, source={"kind": "user"}),
                ]
            )
            journal.append(maka.StepStart(**ids, step=1))
        # As a process that is killed leaves it: the journal has more than the snapshot knows of.
        (directory(root, "s") / "snapshot.json").write_bytes(snapshot)


@pytest.mark.parametrize("open_turn", [False, True], ids=["finished", "interrupted"])
def test_its_cost_does_not_grow_with_finished_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_turn: bool
) -> None:
    read: list[int] = []
    folded: list[str] = []
    real_read, real_apply = FileSource.read, State.apply

    def counting_read(source: FileSource, offset: int, length: int) -> bytes:
        found = real_read(source, offset, length)
        read.append(len(found))
        return found

    def counting_apply(state: State, event: Any) -> None:
        folded.append(event.type)
        real_apply(state, event)

    costs = []
    for turns in (20, 80):
        root = tmp_path / str(turns)
        journal_of(root, turns, open_turn=open_turn)
        size = (directory(root, "s") / "journal.jsonl").stat().st_size
        read.clear()
        folded.clear()
        with monkeypatch.context() as patch:
            patch.setattr(FileSource, "read", counting_read)
            patch.setattr(State, "apply", counting_apply)
            assert go(recovered(root)) == {"s": "repaired" if open_turn else "unchanged"}
        # Of one that was cut off the last lines are looked at, and what its snapshot does not know of is folded.
        assert sum(read) < size
        assert bool(folded) == open_turn
        costs.append((len(folded), sum(read)))
        assert maka.inspect("s", root=root).verdict == "healthy"
    (few, little), (many, much) = costs
    assert few == many
    assert abs(much - little) < 1_000


# ---------------------------------------------------------------- from a snapshot or without one

CORPUS = Path(__file__).parents[2] / "fixtures" / "corpus"


def interrupted() -> list[str]:
    """Journals of the corpus to which a repair only appends whole lines."""
    names = [path.name.removesuffix(".repaired.jsonl") for path in sorted(CORPUS.glob("*.repaired.jsonl"))]
    verdicts = {name: json.loads((CORPUS / f"{name}.inspect.json").read_text())["verdict"] for name in names}
    return [
        name
        for name in names
        if verdicts[name] == "interrupted" and (CORPUS / f"{name}.jsonl").read_bytes().endswith(b"\n")
    ]


def cut_off(root: Path) -> bytes:
    """A session that was killed in its third turn."""

    async def main() -> None:
        script = scripted_backend(lambda sent: ["Look.", Tool("t"), "Done."], steps=True)
        async with SessionManager(root, app=app_of(script)) as manager:
            await manager.create(session_id="s")
            for _ in range(3):
                await told(manager.send("s", "go"))

    go(main())
    lines = (directory(root, "s") / "journal.jsonl").read_bytes().splitlines(keepends=True)
    return b"".join(lines[:-4])


@pytest.mark.parametrize("name", ["", *interrupted()])
def test_a_repair_from_a_snapshot_writes_the_bytes_that_a_repair_from_the_start_writes(
    tmp_path: Path, name: str
) -> None:
    whole = (CORPUS / f"{name}.jsonl").read_bytes() if name else cut_off(tmp_path)
    lines = whole.splitlines(keepends=True)
    place = tmp_path / str(json.loads(lines[0])["data"]["session_id"])
    place.mkdir(mode=0o700)
    path = place / "journal.jsonl"
    path.write_bytes(whole)
    assert repair(path).appended
    wanted = path.read_bytes()
    resumed = 0
    for known in range(1, len(lines) + 1):
        path.write_bytes(b"".join(lines[:known]))
        (place / "snapshot.json").unlink(missing_ok=True)
        try:
            # Leaves a snapshot of what is there so far, wherever in a turn that is.
            JournalWriter.open(path).close()
        except maka.JournalError:
            continue  # in the middle of a batch
        path.write_bytes(whole)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(repair_session, "repair_locked", None)  # no reading from the start
            report, *_ = repair_session.recover(path)
        assert report is not None
        assert path.read_bytes() == wanted, f"with a snapshot of {known} events"
        assert repair_session.recover(path)[0] is None
        assert path.read_bytes() == wanted
        resumed += 1
    assert resumed
