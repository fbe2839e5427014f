"""One boundary, several who want to go on from it: one does, the others are told, and not a byte of theirs is written.

``MAKA_RACES`` says how often many processes set off at once.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import maka
from maka.runtime.continuation.failpoints import Failpoint
from maka.runtime.errors import ContinuationRevalidationError, SessionBusy
from maka.runtime.kernel.stream import TurnStream
from maka.runtime.sessions import SessionManager
from support.lives import SESSION, TEXT, Place, said_by_users
from support.nursery import Nursery

RACES = int(os.environ.get("MAKA_RACES", "20"))
RACERS = 6


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery("support.lives") as nursery:
        yield nursery


@pytest.fixture
def place(tmp_path: Path, nursery: Nursery) -> Place:
    """A session whose first turn was killed between two steps, and then recovered."""
    place = Place(tmp_path)
    place.killed(nursery, "create", "send", hold="between")
    place.lived(nursery, "recover")
    return place


async def ended(stream: TurnStream) -> str:
    async for _ in stream:
        pass
    return str((stream.reason or {}).get("kind"))


async def outcome(stream: Awaitable[str]) -> str:
    try:
        return await stream
    except ContinuationRevalidationError as error:
        return error.code


# ---------------------------------------------------------------- processes


HELD: list[Failpoint | str] = [
    "before_continuation_claim",
    "after_continuation_claim_committed",
    "after_run_created",
    "after_continuation_start_committed",
    "before_backend_dispatch",
    "between",
    "text",
    "after_terminal_event_committed",
    "after_terminal_header_committed",
]


@pytest.mark.parametrize("point", HELD)
def test_while_one_process_continues_a_run_no_other_does_or_recovers_it(
    place: Place, nursery: Nursery, point: str
) -> None:
    with place.life(nursery, "plan", "gun", "resume", "recover", "plan", "gun") as other:
        assert other.until("READY:gun") == ["plan:continue"]
        with place.life(nursery, "plan", "resume", hold=point) as one:
            assert one.until(f"READY:{point}") == ["plan:continue"]
            before = place.files()
            other.tell()
            lines = other.until("READY:gun")
            # What stands as its last writer left it is in order, whoever has it open.
            left = "unchanged" if point == "before_continuation_claim" else "open"
            assert lines[:3] == ["gun:go", "resume:JournalLocked", f"recover:{left}"]
            assert place.files() == before
    place.assert_recovers()
    place.finished()


@pytest.mark.parametrize("point", ["request", "text", "effect", "between"])
def test_a_turn_that_is_live_is_recovered_by_no_other_process(tmp_path: Path, nursery: Nursery, point: str) -> None:
    place = Place(tmp_path)
    with place.life(nursery, "create", "send", hold=point) as one:
        one.until(f"READY:{point}")
        before = place.files()
        lines = place.lived(nursery, "recover", "plan", "recover", "send")
        assert lines[0] == lines[2] == "recover:open"
        assert lines[1].startswith("plan:terminal_repair_failed")
        assert lines[3] == "send:JournalLocked"
        assert place.files() == before
        one.kill()
    place.assert_recovers()
    place.finished()


def test_what_is_planned_before_another_process_has_finished_is_refused_and_writes_nothing(
    place: Place, nursery: Nursery
) -> None:
    with place.life(nursery, "plan", "gun", "resume", "plan") as late:
        assert late.until("READY:gun") == ["plan:continue"]
        assert place.lived(nursery, "plan", "resume")[:2] == ["plan:continue", "resume:completed"]
        before = place.files()
        late.tell()
        assert late.rest()[:3] == ["gun:go", "resume:continuation_claim_conflict", "plan:continuation_already_exists"]
        assert late.code == 0
    assert place.files() == before
    place.assert_sound()
    assert len(place.noted("sends")) == 2


@pytest.mark.parametrize(
    ("point", "wrote"),
    [
        ("before_continuation_claim", []),
        ("after_continuation_claim_committed", ["run/created", "continuation/start", "turn/end", "run/settled"]),
        ("after_continuation_start_committed", []),
        ("after_terminal_event_committed", ["run/settled"]),
        ("after_terminal_header_committed", []),
    ],
)
def test_what_is_planned_before_another_process_was_killed_goes_on_only_where_nothing_was_claimed(
    place: Place, nursery: Nursery, point: str, wrote: list[str]
) -> None:
    with place.life(nursery, "plan", "gun", "resume") as late:
        assert late.until("READY:gun") == ["plan:continue"]
        place.killed(nursery, "plan", "resume", hold=point)
        before, sends = place.types, len(place.noted("sends"))
        late.tell()
        said = late.rest()[1]
    if point == "before_continuation_claim":
        assert said == "resume:completed"
        assert len(place.noted("sends")) == sends + 1
    else:
        assert said == "resume:continuation_claim_conflict"
        # Opening the session for writing repairs it; that is all.
        assert place.types == before + wrote
        assert len(place.noted("sends")) == sends
    place.assert_recovers()
    place.finished()


@pytest.mark.timeout(120 + 3 * RACES)
def test_of_many_processes_that_set_off_at_once_one_goes_on(place: Place, nursery: Nursery) -> None:
    crashed = place.saved()
    for race in range(RACES):
        place.restore(crashed)
        with ExitStack() as stack:
            lives = [stack.enter_context(place.life(nursery, "plan", "gun", "resume")) for _ in range(RACERS)]
            for life in lives:
                assert life.until("READY:gun") == ["plan:continue"]
            for life in lives:
                life.tell()
            said = Counter(life.rest()[1] for life in lives)
            assert [life.code for life in lives] == [0] * RACERS
        assert said.pop("resume:completed") == 1, (race, said)
        assert said.keys() <= {"resume:JournalLocked", "resume:continuation_claim_conflict"}
        assert len(place.noted("sends")) == 2
        assert len(place.data("continuation/claim")) == 1
        place.assert_sound()


# ---------------------------------------------------------------- in one process


def test_the_second_who_resumes_in_a_process_is_told_while_the_first_still_runs(place: Place) -> None:
    async def main() -> None:
        reached, go_on = asyncio.Event(), asyncio.Event()

        async def hold(point: Failpoint) -> None:
            if point == "before_backend_dispatch":
                reached.set()
                await go_on.wait()

        async with place.managing(failpoint=hold) as manager:
            planned = await manager.plan_safe_boundary_continuation(SESSION)
            second_plan = await manager.plan_safe_boundary_continuation(SESSION)
            first = asyncio.create_task(ended(manager.resume_safe_boundary_continuation(planned)))
            await reached.wait()
            before = place.files()
            for again in (planned, planned, second_plan):
                with pytest.raises(ContinuationRevalidationError) as refused:
                    await ended(manager.resume_safe_boundary_continuation(again))
                assert refused.value.code == "continuation_claim_conflict"
                assert planned.continuation is not None
                assert planned.continuation.run_id in str(refused.value)
                assert not first.done()
            with pytest.raises(SessionBusy):
                await manager.plan_safe_boundary_continuation(SESSION)
            assert (await manager.recover(SESSION)).state == "open"
            assert place.files() == before
            go_on.set()
            assert await first == "completed"
            with pytest.raises(ContinuationRevalidationError) as refused:
                await ended(manager.resume_safe_boundary_continuation(planned))
            assert refused.value.code == "continuation_claim_conflict"

    asyncio.run(main())
    place.assert_sound()
    assert len(place.noted("sends")) == 2


@pytest.mark.parametrize("managers", [1, 2])
def test_of_many_who_resume_at_once_in_a_process_one_goes_on(place: Place, managers: int) -> None:
    async def main() -> None:
        each: list[SessionManager] = [place.managing() for _ in range(managers)]
        plans = [await manager.plan_safe_boundary_continuation(SESSION) for manager in each for _ in range(4)]

        async def one(number: int) -> str:
            manager = each[number % managers]
            try:
                return await outcome(ended(manager.resume_safe_boundary_continuation(plans[number])))
            except maka.JournalLocked:
                return "locked"

        said = Counter(await asyncio.gather(*(one(number) for number in range(len(plans)))))
        assert said.pop("completed") == 1, said
        assert said.keys() <= {"continuation_claim_conflict", *(["locked"] if managers > 1 else [])}
        for manager in each:
            await manager.aclose()

    asyncio.run(main())
    place.assert_sound()
    assert len(place.noted("sends")) == 2
    assert len(place.data("continuation/claim")) == 1


@pytest.mark.parametrize("first", ["message", "resume"])
@pytest.mark.parametrize("opened", [False, True])
def test_of_a_message_and_a_resume_at_once_a_message_that_comes_first_makes_the_plan_stale(
    place: Place, first: str, opened: bool
) -> None:
    """It was planned for a session that had not gone on. The other way round they run one after the other."""
    whole = first == "resume"

    async def main() -> None:
        async with place.managing() as manager:
            planned = await manager.plan_safe_boundary_continuation(SESSION)
            if opened:
                await manager.pending(SESSION)
            message = manager.send(SESSION, "And now this.")
            resumed = manager.resume_safe_boundary_continuation(planned)
            streams = [resumed, message] if whole else [message, resumed]
            came = await asyncio.gather(*(outcome(ended(stream)) for stream in streams))
            assert came == ["completed", "completed" if whole else "session_advanced"]

    asyncio.run(main())
    place.assert_sound()
    assert place.reasons == ["interrupted", "completed", "completed"][: 2 + whole]
    messages = [noted["boundary"] is None for noted in place.noted("sends")]
    assert messages[1:] == ([False, True] if whole else [True])
    # Whoever goes on from the boundary is not told what was said elsewhere; an ordinary turn is told all.
    of_message = [said_by_users(noted["messages"]) for noted in place.noted("requests")]
    assert [TEXT] in of_message
    assert [TEXT, "And now this."] in of_message
