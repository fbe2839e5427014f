"""What a manager makes of turns that wait for a successor: stops, lists, recoveries, archives, and what it is asked."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from maka.journal.errors import JournalError
from maka.journal.reader import JOURNAL
from maka.runtime.backends.scripted import Never, ScriptedBackends, Tool, scripted_backend
from maka.runtime.composition import RunComposition
from maka.runtime.errors import HandoffRefused, RuntimeOwnerCleanupError, SessionBusy, SettleRefused
from maka.runtime.sessions import SessionManager
from support.lineages import COMPOSITION, Story
from support.managed import data_of, directory, files_of, go, managing, told, types_of, until

GIVEN_UP = ["turn/stop_requested", "continuation/claim", "run/created", "continuation/start", "turn/end", "run/settled"]


def playing(*turns: Any) -> ScriptedBackends:
    return scripted_backend(turns, steps=True, composition=RunComposition.from_json(COMPOSITION))


async def handed_over(manager: SessionManager, session_id: str = "s") -> dict[str, Any]:
    """A turn that waits for its successor; the handoff/pause's data."""
    await manager.create(session_id=session_id)
    stream = manager.send(session_id, "go", turn_id="t")
    reading = asyncio.ensure_future(told(stream))
    await stream.started()
    pause = await manager.hand_over(session_id, timeout=30)
    # Who has handed over can go on at once: the run is over.
    assert not manager.status(session_id).turns
    assert (stream.reason, stream.pause) == (None, pause)
    await reading
    return pause


async def left(root: Path) -> dict[str, Any]:
    async with managing(root, playing([Tool("a"), Tool("b"), Tool("c")])) as manager:
        return await handed_over(manager)


# ---------------------------------------------------------------- stops


def test_a_stop_of_a_turn_whose_successor_lost_its_claim_ends_it(tmp_path: Path) -> None:
    whole, story = sealed(), sealed()
    story.add("run/created", {"run": whole.claim("r2", "handoff")["target_run"]})
    story.write(tmp_path)

    async def main() -> None:
        before = types_of(tmp_path, "s1")
        async with managing(tmp_path, playing("an answer")) as manager:
            await manager.stop("s1")
            given_up = [type_ for type_ in GIVEN_UP if type_ != "run/created"]
            assert types_of(tmp_path, "s1") == [*before, *given_up]
            await told(manager.send("s1", "and now?"))

    go(main())


def test_who_stops_a_turn_that_nobody_can_end_is_told(tmp_path: Path) -> None:
    """Something else holds the ids of its successor: nothing is written, and a fork goes on."""
    story = sealed()
    story.add("run/created", {"run": story.run("r2'", "t2", invocation_id="another")})
    journal = story.write(tmp_path)

    async def main() -> None:
        before = journal.read_bytes()
        async with managing(tmp_path, playing("an answer")) as manager:
            for _ in range(2):
                with pytest.raises(JournalError, match=r"cannot be given up.*fork the session"):
                    await manager.stop("s1")
            with pytest.raises(SettleRefused, match=r"cannot be given up.*fork the session"):
                await manager.abandon_handoff("s1", "h-r2'")
            with pytest.raises(SessionBusy, match="fork the session"):
                await told(manager.send("s1", "and now?"))
            assert journal.read_bytes() == before
            fork = await manager.fork("s1")
            await told(manager.send(fork, "and now?"))

    go(main())


def sealed() -> Story:
    story = Story()
    story.add("session/updated", {"patch": {"backend": "scripted"}})
    return story.plain_turn().start("go").step().says("a").end_step().pause()


def test_a_stop_ends_a_turn_that_waits_also_where_nobody_has_the_session_open(tmp_path: Path) -> None:
    async def main() -> None:
        pause = await left(tmp_path)
        before = types_of(tmp_path, "s")
        async with managing(tmp_path, playing()) as manager:
            await manager.stop("s", source="button")
            assert types_of(tmp_path, "s") == [*before, *GIVEN_UP]
            await manager.stop("s")
            assert types_of(tmp_path, "s") == [*before, *GIVEN_UP]
        [end] = data_of(tmp_path, "s", "turn/end")
        assert (end["run_id"], end["reason"]) == (
            pause["successor_run_id"],
            {"kind": "aborted", "source": "button"},
        )

    go(main())


@pytest.mark.parametrize("claimed", [False, True])
def test_a_stop_ends_what_a_killed_process_has_left_waiting(tmp_path: Path, claimed: bool) -> None:
    """Without a snapshot only the journal tells that something waits, and with a claim on it too."""

    async def main() -> None:
        pause = await left(tmp_path)
        if claimed:
            held = RuntimeError("killed behind the claim")

            async def killed(point: str) -> None:
                if point == "after_continuation_claim_committed":
                    raise held

            async with managing(tmp_path, playing(["on"]), continuation_failpoint=killed) as manager:
                plan = await manager.plan_safe_boundary_continuation("s", purpose="handoff")
                with pytest.raises(RuntimeOwnerCleanupError, match="killed behind the claim"):
                    await told(manager.resume_safe_boundary_continuation(plan))
            assert types_of(tmp_path, "s")[-1] == "continuation/claim"
        (directory(tmp_path, "s") / "snapshot.json").unlink()
        before = types_of(tmp_path, "s")
        async with managing(tmp_path, playing()) as manager:
            await manager.stop("s", source="button")
        written = GIVEN_UP if not claimed else [type_ for type_ in GIVEN_UP if type_ != "continuation/claim"]
        assert types_of(tmp_path, "s") == [*before, *written]
        [end] = data_of(tmp_path, "s", "turn/end")
        assert (end["run_id"], end["reason"]["kind"]) == (pause["successor_run_id"], "aborted")

    go(main())


def test_a_stop_that_nobody_waits_for_is_carried_out_before_the_manager_is_closed(tmp_path: Path) -> None:
    async def main() -> None:
        await left(tmp_path)
        async with managing(tmp_path, playing()) as manager:
            manager.stop("s")
        assert types_of(tmp_path, "s")[-len(GIVEN_UP) :] == GIVEN_UP

    go(main())


def test_a_stop_leaves_alone_what_waits_for_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing("hello")) as manager:
            await manager.create(session_id="s")
            await told(manager.send("s", "go"))
        before = files_of(tmp_path)
        async with managing(tmp_path, playing()) as manager:
            for session_id in ("s", "there is none", "../s", "none"):
                await manager.stop(session_id)
            assert not manager.status("s").open
        assert files_of(tmp_path) == before

    go(main())


def test_a_stop_of_a_session_that_another_has_open_does_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing([Tool("a"), Tool("b")])) as owner:
            await handed_over(owner)
            before = files_of(tmp_path)
            async with managing(tmp_path, playing()) as other:
                await other.stop("s")
            assert files_of(tmp_path) == before

    go(main())


def test_a_message_behind_a_stop_is_not_taken_for_what_was_stopped(tmp_path: Path) -> None:
    async def main() -> None:
        await left(tmp_path)
        async with managing(tmp_path, playing("hello")) as manager:
            stopping = manager.stop("s")
            sent = manager.send("s", "and now?")
            events = asyncio.ensure_future(told(sent))
            await stopping
            try:
                assert [event.kind for event in await events][-1] == "complete"
            except SessionBusy:
                # It came before the stop was carried out.
                assert [event.kind for event in await told(manager.send("s", "again"))][-1] == "complete"

    go(main())


def test_who_gives_up_waiting_for_a_stop_takes_nothing_back(tmp_path: Path) -> None:
    async def main() -> None:
        await left(tmp_path)
        async with managing(tmp_path, playing()) as manager:
            stopping = manager.stop("s")
            stopping.cancel()
            with pytest.raises(asyncio.CancelledError):
                await stopping
        assert types_of(tmp_path, "s")[-len(GIVEN_UP) :] == GIVEN_UP

    go(main())


def test_a_stop_repairs_nothing_and_leaves_nothing_open(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing([Tool("a"), Never()])) as manager:
            await manager.create(session_id="cut")
            stream = manager.send("cut", "go")
            await until(stream, "tool_result")
            copied = tmp_path / "copied"
            shutil.copytree(tmp_path / "sessions" / "cut", copied / "sessions" / "cut")
        await left(copied)
        damaged = copied / "sessions" / "damaged"
        shutil.copytree(copied / "sessions" / "cut", damaged)
        with (damaged / JOURNAL).open("r+b") as file:
            file.seek(40)
            file.write(b"\0\0\0")
        before = files_of(copied)
        async with managing(copied, playing()) as manager, managing(copied, playing()) as other:
            for session_id in ("cut", "damaged"):
                await manager.stop(session_id)
                assert not manager.status(session_id).open
            assert files_of(copied) == before
            await manager.stop("s")
            assert not manager.status("s").open
            assert (await other.recover("s")).state == "unchanged"

    go(main())


def test_whoever_subscribes_is_told_that_a_handoff_was_given_up(tmp_path: Path) -> None:
    async def main() -> None:
        pause = await left(tmp_path)
        async with managing(tmp_path, playing()) as manager:
            heard: list[Any] = []
            manager.subscribe(heard.append)
            await manager.abandon_handoff("s", pause["handoff_id"])
            [given_up] = [event for event in heard if event.kind == "handoff_abandoned"]
            assert given_up.data == {"turn_id": "t", "handoff_id": pause["handoff_id"]}

    go(main())


# ---------------------------------------------------------------- what is told of it


def test_whoever_lists_or_recovers_is_told_that_a_turn_waits(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing([Tool("a"), Tool("b")])) as manager:
            await manager.create(session_id="t")
            pause = await handed_over(manager)
            rows = {row["session_id"]: row for row in await manager.list()}
            assert (rows["s"]["pending_handoff"], rows["s"]["turns"]) == (True, 1)
            assert rows["t"]["pending_handoff"] is False
            found = {each.session_id: each for each in await manager.recover_interrupted_sessions()}
            assert (found["s"].state, found["s"].pending_handoff) == ("unchanged", pause["handoff_id"])
            assert found["t"].pending_handoff is None
        before = files_of(tmp_path)
        async with managing(tmp_path, playing()) as manager:
            [row] = [row for row in await manager.list() if row["session_id"] == "s"]
            assert row["pending_handoff"] is True
            found = {each.session_id: each for each in await manager.recover_interrupted_sessions()}
            assert (found["s"].state, found["s"].pending_handoff) == ("unchanged", pause["handoff_id"])
            assert found["t"].pending_handoff is None
        assert files_of(tmp_path) == before

    go(main())


def test_who_needs_the_session_at_rest_is_told_of_both_ways_out(tmp_path: Path) -> None:
    async def main() -> None:
        pause = await left(tmp_path)
        ways = rf"`maka session resume s`.*`maka session settle s --handoff {pause['handoff_id']}`"
        async with managing(tmp_path, playing()) as manager:
            with pytest.raises(SessionBusy, match=ways):
                await told(manager.send("s", "and now?"))
            with pytest.raises(SessionBusy, match=ways):
                await manager.archive("s")
            assert await manager.rename("s", "renamed")

    go(main())


def test_a_recovery_that_only_interrupts_a_plan_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing()) as manager:
            await manager.create(session_id="s")
            steps = [{"id": "1", "title": "chairs", "description": "Order 40 chairs."}]
            row = await manager.plans.propose("s", title="The hall", steps=steps)
            row = await manager.plans.approve("s", row["proposal_id"], expected_revision=1)
        async with managing(tmp_path, playing()) as manager:
            [found] = await manager.recover_interrupted_sessions()
            assert (found.state, found.appended) == ("repaired", 1)
            assert found.interrupted == row["execution"]["execution_id"]
            [found] = await manager.recover_interrupted_sessions()
            assert (found.state, found.appended, found.interrupted) == ("unchanged", 0, None)

    go(main())


def test_of_a_long_reason_for_giving_up_the_beginning_is_kept(tmp_path: Path) -> None:
    async def main() -> None:
        pause = await left(tmp_path)
        async with managing(tmp_path, playing()) as manager:
            await manager.abandon_handoff("s", pause["handoff_id"], "ab" * 5_000)
        [end] = data_of(tmp_path, "s", "turn/end")
        assert end["reason"]["message"] == "ab" * 1_000

    go(main())


# ---------------------------------------------------------------- what a manager is asked


def test_what_can_be_no_argument_is_refused_where_it_is_given(tmp_path: Path) -> None:
    async def main() -> None:
        pause = await left(tmp_path)
        before = files_of(tmp_path)
        async with managing(tmp_path, playing()) as manager:
            for timeout in ("5", -1, float("nan"), True):
                with pytest.raises(TypeError, match="a timeout is a number of seconds"):
                    await manager.hand_over("s", timeout=timeout)  # type: ignore[arg-type]
            with pytest.raises(HandoffRefused, match="call this while a turn does") as raised:
                await manager.hand_over("s")
            assert raised.value.code == "run_unknown"
            with pytest.raises(TypeError, match="is a text, not int"):
                await manager.abandon_handoff("s", pause["handoff_id"], 5)  # type: ignore[arg-type]
            for turns in ("t", None, 5):
                with pytest.raises(TypeError, match="turn_ids must be several ids"):
                    await manager.copy_turns("s", turns)  # type: ignore[arg-type]
        assert files_of(tmp_path) == before

    go(main())
