"""Interactions on the journal: durable before shown, one outcome for good, in every order of what is ready."""

import asyncio
import errno
import gc
import os
import re
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import pytest

from maka.journal.errors import InvalidEvent, JournalConflict, JournalWriteError
from maka.journal.events import Draft
from maka.journal.store import FileStore
from maka.runtime.errors import InteractionRefused, RuntimeInteractionInvariantError
from maka.runtime.interactions import JournalInteractions, RunOwner
from maka.runtime.journals import FileJournals, Journals, OpenSession
from maka.runtime.kernel.authority import InteractionRequest, RunIdentity
from maka.runtime.lifecycle import Lifecycle, LifecycleEvent
from support.disks import FaultyDisk
from support.drafts import begin, end, header
from support.memory_journals import MemoryJournal, MemoryJournals, check_legal
from support.seeded_loop import run

SEEDS = range(25)
KINDS = ("question", "permission", "sandbox_boundary")
OPTIONS = [{"label": "yes"}, {"label": "no"}]
REQUESTS: dict[str, dict[str, Any]] = {
    "question": {"questions": [{"id": "q", "question": "Go on?", "options": OPTIONS}]},
    "permission": {"call_id": "c", "name": "write", "arguments": {"path": "a"}, "reason": "it writes"},
    "sandbox_boundary": {"expansion": {"network": True}, "justification": "to fetch it"},
}
YES: dict[str, dict[str, Any]] = {
    "question": {"kind": "question_answer", "answers": ["yes"]},
    "permission": {"kind": "permission_answer", "decision": "allow"},
    "sandbox_boundary": {"kind": "sandbox_boundary_decision", "decision": "allow"},
}
NO: dict[str, dict[str, Any]] = {
    "question": {"kind": "question_answer", "answers": [None]},
    "permission": {"kind": "permission_answer", "decision": "deny"},
    "sandbox_boundary": {"kind": "sandbox_boundary_decision", "decision": "deny"},
}
ACCEPT = {
    "question": "accept_user_question_request",
    "permission": "accept_permission_request",
    "sandbox_boundary": "accept_sandbox_boundary_request",
}


def broken(poisoned: bool = False) -> JournalWriteError:
    return JournalWriteError("the disk is full; free some space", errno=errno.ENOSPC, poisoned=poisoned)


class World:
    """Sessions in memory, the authority over them, and what it told: ``settled`` in order, ``told`` the lifecycle."""

    def __init__(self, journals: Journals | None = None, *, permission_timeout: float | None = None) -> None:
        self.memory = MemoryJournals()
        self.journals: Journals = journals or self.memory
        self.sessions: dict[str, OpenSession] = {}
        self.settled: list[tuple[str, dict[str, Any]]] = []
        self.told: list[LifecycleEvent] = []
        self.fail: list[Exception] = []
        self.trace: list[str] = []
        self.sync_seconds = 0.0
        self.memory.on_sync = self._sync
        self._timeout = permission_timeout
        self.restart()

    def restart(self) -> None:
        """A new process: nothing but the journals is left."""
        self.sessions.clear()
        lifecycle = Lifecycle()
        lifecycle.subscribe(self.told.append)
        lifecycle.subscribe(lambda event: self.trace.append(f"told {event.kind}"))
        self.authority = JournalInteractions(self.sessions.get, lifecycle=lifecycle, permission_timeout=self._timeout)

    async def _sync(self, journal: MemoryJournal) -> None:
        await asyncio.sleep(self.sync_seconds)
        if self.fail:
            self.trace.append("failed sync")
            raise self.fail.pop()
        self.trace.append("sync")

    async def open(self, session_id: str = "s1") -> OpenSession:
        session = self.sessions[session_id] = await self.journals.open(session_id)
        return session

    async def begun(self, turn: int = 1, session_id: str = "s1") -> RunOwner:
        """An owner of a run that has begun, its session created and opened as needed."""
        if session_id not in self.sessions:
            if self.journals is self.memory:
                self.memory.create(session_id)
            await self.open(session_id)
        session = self.sessions[session_id]
        for event in session.journal.append_batch(begin(turn)):
            session.observe(event)
        await session.journal.aflush()
        return self.authority.bind_run(RunIdentity(session_id, f"t{turn}", f"r{turn}"))

    def settle(self, interaction_id: str) -> Callable[[dict[str, Any]], None]:
        def settle(outcome: dict[str, Any]) -> None:
            self.settled.append((interaction_id, outcome))
            self.trace.append("settled")

        return settle

    async def ask(self, owner: RunOwner, kind: Any = "question", interaction_id: str = "i1", **more: Any) -> None:
        settle = self.settle(interaction_id)
        request = InteractionRequest(interaction_id, kind, {**REQUESTS[kind], **more}, settle)
        await getattr(owner, ACCEPT[kind])(request)

    async def answer(self, answer: dict[str, Any], interaction_id: str = "i1", session_id: str = "s1") -> Any:
        return await self.authority.answer(session_id, interaction_id, answer)

    async def end(self, owner: RunOwner, reason: Any = "turn_terminal") -> None:
        """As the kernel does it: close, the closures and the turn's end in one batch, release."""
        await owner.close(reason)
        session = self.sessions[owner.session_id]
        waiting = session.journal.state.interactions.of_run(owner.run_id)
        outcome = {"kind": "closure", "reason": reason}
        closures = [
            Draft("interaction/resolved", {"interaction_id": item.interaction_id, "outcome": outcome})
            for item in waiting
        ]
        session.journal.append_batch([*closures, *end(int(owner.run_id[1:]))])
        await session.journal.aflush()
        owner.release()

    def types(self, session_id: str = "s1") -> list[str]:
        """The durable events about interactions."""
        events = self.memory.events(session_id)
        return [event.type for event in events if event.type.startswith("interaction/")]

    def check(self) -> None:
        for session_id in self.sessions:
            check_legal(self.memory.events(session_id))


def in_every_order(scenario: Callable[[World], Coroutine[Any, Any, None]], **options: Any) -> None:
    for seed in SEEDS:
        world = World(**options)
        run(scenario(world), seed)
        world.check()


async def refused(code: str, work: Coroutine[Any, Any, Any], says: str | None = None) -> None:
    with pytest.raises(InteractionRefused, match=says) as found:
        await work
    assert found.value.code == code


async def row_or(code: str, work: Awaitable[Any]) -> Any:
    """What it gives; None where it is refused with this code."""
    found: Any = (await asyncio.gather(work, return_exceptions=True))[0]
    if isinstance(found, InteractionRefused):
        assert found.code == code
        return None
    if isinstance(found, BaseException):
        raise found
    return found


# ---------------------------------------------------------------- asking and answering


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_is_durable_before_anybody_hears_of_it(kind: str) -> None:
    async def scenario(world: World) -> None:
        owner = await world.begun()
        world.trace.clear()
        await world.ask(owner, kind)
        assert world.trace == ["sync", "told interaction_requested"]
        assert world.memory.of("s1", "interaction/requested") == [
            {"interaction_id": "i1", "turn_id": "t1", "run_id": "r1", "kind": kind, "request": REQUESTS[kind]}
        ]
        assert world.settled == []

    in_every_order(scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_is_durable_then_settled_then_told(kind: str) -> None:
    async def scenario(world: World) -> None:
        owner = await world.begun()
        await world.ask(owner, kind)
        world.trace.clear()
        row = await world.answer(YES[kind])
        assert world.trace == ["sync", "settled", "told interaction_resolved"]
        assert world.settled == [("i1", YES[kind])]
        assert row == {
            "interaction_id": "i1",
            "kind": kind,
            "status": "answered",
            "turn_id": "t1",
            "run_id": "r1",
            "outcome": YES[kind],
            "revision": world.memory.events("s1")[-1].seq,
        }
        assert world.memory.of("s1", "interaction/resolved") == [{"interaction_id": "i1", "outcome": YES[kind]}]

    in_every_order(scenario)


def test_the_lifecycle_names_ids_kinds_and_states_and_no_content() -> None:
    async def scenario(world: World) -> None:
        owner = await world.begun()
        await world.ask(owner)
        await world.ask(owner, "permission", "i2")
        await world.answer(YES["question"])
        await world.end(owner, "turn_stopped")
        ids = {"run_id": "r1", "interaction_id": "i1", "interaction_kind": "question"}
        others = {"run_id": "r1", "interaction_id": "i2", "interaction_kind": "permission"}
        assert [(event.kind, event.session_id, event.data) for event in world.told] == [
            ("interaction_requested", "s1", {**ids, "turn_id": "t1", "status": "pending"}),
            ("interaction_requested", "s1", {**others, "turn_id": "t1", "status": "pending"}),
            ("interaction_resolved", "s1", {**ids, "status": "answered"}),
            ("interaction_resolved", "s1", {**others, "status": "closed"}),
        ]

    run(scenario(World()), 0)


def test_the_fold_of_the_conversation_sees_what_is_appended() -> None:
    async def scenario(world: World) -> None:
        owner = await world.begun()
        seen: list[str] = []
        session = world.sessions["s1"]
        conversation = await world.memory.conversation(session)
        session.read(conversation)
        observe = conversation.observe
        conversation.observe = lambda event: (seen.append(event.type), observe(event))  # type: ignore[method-assign,assignment,func-returns-value]
        await world.ask(owner)
        await world.answer(YES["question"])
        assert seen == ["interaction/requested", "interaction/resolved"]

    run(scenario(World()), 0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_outcome_stands_also_after_a_restart(kind: str) -> None:
    async def scenario(world: World) -> None:
        owner = await world.begun()
        await world.ask(owner, kind)
        row = await world.answer(YES[kind])
        other = next(other for other in KINDS if other != kind)

        decision = YES[kind].get("decision")
        first = f" ({decision})" if decision else ""
        stands = re.escape(f"was given another answer{first}; the first outcome stands, and")

        async def judged() -> None:
            assert await world.answer(YES[kind]) == row
            assert await world.authority.query("s1", "i1") == row
            await refused("already_resolved", world.answer(NO[kind]), stands)
            await refused("operation_conflict", world.answer(YES[other]), f"a {kind} takes {YES[kind]['kind']}")

        await judged()
        await world.end(owner)
        await judged()
        await world.journals.close(world.sessions["s1"])
        for _ in range(2):
            world.restart()
            await world.open()
            await judged()
            await world.journals.close(world.sessions["s1"])
        assert world.types() == ["interaction/requested", "interaction/resolved"]
        assert len(world.settled) == 1

    in_every_order(scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_crash_what_waited_is_closed_and_stays_closed(kind: str) -> None:
    async def scenario(world: World) -> None:
        await world.ask(await world.begun(), kind)
        world.journals = world.memory = world.memory.crash()
        for _ in range(2):
            world.restart()
            await world.open()
            await refused("already_resolved", world.answer(YES[kind]), r"was closed \(host_restarted\)")
            row = await world.authority.query("s1", "i1")
            assert row["outcome"] == {"kind": "closure", "reason": "host_restarted"}
            assert (row["status"], await world.authority.pending("s1")) == ("closed", [])
            await world.journals.close(world.sessions["s1"])

    run(scenario(World()), 0)


def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    async def scenario(world: World) -> None:
        owner = await world.begun()
        await world.ask(owner)
        await refused("not_found", world.answer(YES["question"], "i2"), "no interaction i2")
        await refused("not_found", world.answer(YES["question"], session_id="s2"), "s2 is not open")
        await refused("not_found", world.authority.query("s1", "i2"))
        await refused("not_found", world.authority.pending("s2"))
        await refused("operation_conflict", world.answer(YES["permission"]), "a question takes question_answer")
        two = {"kind": "question_answer", "answers": ["yes", None]}
        await refused("operation_conflict", world.answer(two), "1 questions and 2 answers")
        await refused("invalid_request", world.answer({"kind": "closure", "reason": "timed_out"}))
        await refused("invalid_request", world.answer({"kind": "question_answer", "answers": [1]}))
        assert world.types() == ["interaction/requested"]
        assert (await world.answer(YES["question"]))["status"] == "answered"

    in_every_order(scenario)


def test_rows_of_what_waits_and_of_what_is_over() -> None:
    async def scenario(world: World) -> None:
        owner = await world.begun()
        for number, kind in enumerate(KINDS, 1):
            await world.ask(owner, kind, f"i{number}")
        rows = await world.authority.pending("s1")
        assert [row["interaction_id"] for row in rows] == ["i1", "i2", "i3"]
        assert rows[1] == {
            "interaction_id": "i2",
            "kind": "permission",
            "status": "pending",
            "turn_id": "t1",
            "run_id": "r1",
            "request": REQUESTS["permission"],
            "revision": world.memory.events("s1")[-2].seq,
        }
        assert await world.authority.query("s1", "i2") == rows[1]
        await world.answer(NO["permission"], "i2")
        assert [row["interaction_id"] for row in await world.authority.pending("s1")] == ["i1", "i3"]

    run(scenario(World()), 0)


# ---------------------------------------------------------------- races


def test_of_two_answers_one_wins_and_the_other_is_told_when_that_is_durable() -> None:
    winners = set()

    async def scenario(world: World) -> None:
        owner = await world.begun()
        await world.ask(owner)

        async def give(answer: dict[str, Any]) -> Any:
            row = await row_or("already_resolved", world.answer(answer))
            assert world.types()[-1] == "interaction/resolved"
            assert len(world.settled) == 1
            return row

        given = [YES["question"], NO["question"], YES["question"]]
        rows = await asyncio.gather(*map(give, given))
        [won] = world.memory.of("s1", "interaction/resolved")
        winners.add(str(won["outcome"]))
        assert [row is not None for row in rows] == [answer == won["outcome"] for answer in given]
        assert world.settled == [("i1", won["outcome"])]
        assert len({str(row) for row in rows if row is not None}) == 1

    in_every_order(scenario)
    assert len(winners) == 2


def test_an_answer_that_races_its_own_request() -> None:
    """A client may know the id before the request is on the disk."""

    async def scenario(world: World) -> None:
        owner = await world.begun()
        asking = asyncio.create_task(world.ask(owner))
        while await row_or("not_found", world.answer(YES["question"])) is None:
            await asyncio.sleep(0)
        await asking
        assert world.settled == [("i1", YES["question"])]
        assert world.types() == ["interaction/requested", "interaction/resolved"]

    in_every_order(scenario)


def test_an_answer_is_judged_by_a_closure_only_when_that_is_durable() -> None:
    async def scenario(world: World) -> None:
        owner = await world.begun()
        await world.ask(owner)
        closure = {"interaction_id": "i1", "outcome": {"kind": "closure", "reason": "turn_stopped"}}
        world.sessions["s1"].journal.append(Draft("interaction/resolved", closure))
        assert world.types() == ["interaction/requested"]
        await refused("already_resolved", world.answer(YES["question"]))
        assert world.types() == ["interaction/requested", "interaction/resolved"]
        await owner.close("turn_stopped")
        owner.release()

    in_every_order(scenario)


def test_a_closure_that_comes_between_is_the_first() -> None:
    kinds = set()

    async def scenario(world: World) -> None:
        owner = await world.begun()
        await world.ask(owner)
        closure = {"interaction_id": "i1", "outcome": {"kind": "closure", "reason": "turn_stopped"}}

        async def closes() -> None:
            session = world.sessions["s1"]
            if "i1" in session.journal.state.interactions.pending:
                session.journal.append(Draft("interaction/resolved", closure))
                await session.journal.aflush()

        answering = asyncio.create_task(world.answer(YES["question"]))
        closing = asyncio.create_task(closes())
        row = await row_or("already_resolved", answering)
        await closing
        [won] = world.memory.of("s1", "interaction/resolved")
        kinds.add(won["outcome"]["kind"])
        assert (row is None) is (won == closure)

    in_every_order(scenario)
    assert kinds == {"question_answer", "closure"}


def test_an_answer_looks_again_where_a_closure_was_rolled_back() -> None:
    """A thread may roll the fold back between two looks at it."""

    async def scenario(world: World) -> None:
        owner = await world.begun()
        await world.ask(owner)
        pending = world.sessions["s1"].journal.state.interactions.pending
        looked: list[str] = []

        class Flickers(dict[str, Any]):
            def get(self, key: str, default: Any = None) -> Any:
                looked.append(key)
                return default if len(looked) == 1 else super().get(key, default)

        world.sessions["s1"].journal.state.interactions.pending = Flickers(pending)
        assert (await world.answer(YES["question"]))["outcome"] == YES["question"]
        assert looked

    run(scenario(World()), 0)


def test_a_closure_that_is_lost_decides_nothing() -> None:
    async def scenario(world: World) -> None:
        owner = await world.begun()
        await world.ask(owner)
        closure = {"interaction_id": "i1", "outcome": {"kind": "closure", "reason": "turn_stopped"}}
        world.fail.append(broken())
        world.sessions["s1"].journal.append(Draft("interaction/resolved", closure))
        with pytest.raises(JournalWriteError):
            await world.answer(YES["question"])
        assert await world.answer(NO["question"])
        assert world.settled == [("i1", NO["question"])]

    in_every_order(scenario)


def test_nothing_is_shown_that_is_not_durable() -> None:
    async def scenario(world: World) -> None:
        owner = await world.begun()
        world.sync_seconds = 1.0
        asking = asyncio.create_task(world.ask(owner))
        await asyncio.sleep(0.5)
        [row] = await world.authority.pending("s1")
        assert world.types() == ["interaction/requested"]
        await asking
        answering = asyncio.create_task(world.answer(YES["question"]))
        await asyncio.sleep(0.5)
        assert world.types() == ["interaction/requested"]
        assert (await world.authority.query("s1", "i1"))["status"] == "answered"
        assert world.types() == ["interaction/requested", "interaction/resolved"]
        assert row["status"] == "pending"
        await answering

    in_every_order(scenario)


# ---------------------------------------------------------------- the disk fails


def test_an_answer_that_is_not_written_is_not_applied() -> None:
    async def scenario(world: World) -> None:
        owner = await world.begun()
        await world.ask(owner)
        error = broken()
        world.fail.append(error)
        with pytest.raises(JournalWriteError) as failed:
            await world.answer(YES["question"])
        assert failed.value is error
        assert world.settled == []
        assert [row["status"] for row in await world.authority.pending("s1")] == ["pending"]
        assert await world.answer(NO["question"])
        assert world.settled == [("i1", NO["question"])]
        # It is certain what was answered.
        await world.end(owner)

    in_every_order(scenario)


def test_who_waited_for_an_answer_that_was_lost_is_next() -> None:
    async def scenario(world: World) -> None:
        owner = await world.begun()
        await world.ask(owner)
        world.fail.append(broken())
        given = [YES["question"], NO["question"]]
        results = await asyncio.gather(*map(world.answer, given), return_exceptions=True)
        lost = [index for index, result in enumerate(results) if isinstance(result, JournalWriteError)]
        assert len(lost) == 1
        assert world.settled == [("i1", given[1 - lost[0]])]
        await world.end(owner)

    in_every_order(scenario)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_close_tells_that_nobody_knows_what_was_answered(when: str) -> None:
    async def scenario(world: World) -> None:
        owner = await world.begun()
        await world.ask(owner)
        error = broken(poisoned=True)
        world.fail.append(error)
        world.sync_seconds = 1.0
        answering = asyncio.create_task(world.answer(YES["question"]))
        await asyncio.sleep(2.0 if when == "before" else 0.5)
        with pytest.raises(JournalWriteError) as failed:
            await owner.close("turn_stopped")
        assert failed.value is error
        with pytest.raises(JournalWriteError) as answered:
            await answering
        assert answered.value is error
        assert world.settled == []

    in_every_order(scenario)


@pytest.mark.parametrize("error", [broken(), JournalConflict("it was replaced"), InvalidEvent("no", type="x")])
def test_a_close_after_a_failure_that_leaves_no_doubt_does_not_fail(error: Exception) -> None:
    async def scenario(world: World) -> None:
        owner = await world.begun()
        await world.ask(owner)
        world.fail.append(error)
        with pytest.raises(type(error)):
            await world.answer(YES["question"])
        await owner.close("turn_stopped")

    run(scenario(World()), 0)


def test_a_request_that_is_not_written_was_not_asked() -> None:
    async def scenario(world: World) -> None:
        owner = await world.begun()
        error = broken()
        world.fail.append(error)
        with pytest.raises(JournalWriteError) as failed:
            await world.ask(owner)
        assert failed.value is error
        assert (world.told, world.types()) == ([], [])
        await refused("not_found", world.answer(YES["question"]))
        # The id stands for nothing yet.
        await world.ask(owner, "permission")
        await world.answer(YES["permission"])
        assert world.settled == [("i1", YES["permission"])]
        await world.end(owner)
        assert len(world.settled) == 1

    in_every_order(scenario)


# ---------------------------------------------------------------- what is refused


def test_the_same_request_again_is_no_second_one() -> None:
    async def scenario(world: World) -> None:
        owner = await world.begun()
        await asyncio.gather(world.ask(owner), world.ask(owner))
        reordered = dict(reversed(REQUESTS["question"]["questions"][0].items()))
        await world.ask(owner, questions=[reordered])
        await refused("operation_conflict", world.ask(owner, more=1), "ask under a new id")
        await refused("operation_conflict", world.ask(owner, "permission"))
        assert world.types() == ["interaction/requested"]
        await world.answer(YES["question"])
        assert world.settled == [("i1", YES["question"])] * 3
        await world.ask(owner)
        assert world.settled == [("i1", YES["question"])] * 4
        await refused("operation_conflict", world.ask(owner, more=1), "ask under a new id")
        await world.end(owner)
        later = await world.begun(2)
        await refused("operation_conflict", world.ask(later), "ask under a new id")
        assert world.types() == ["interaction/requested", "interaction/resolved"]
        assert [event.kind for event in world.told] == ["interaction_requested", "interaction_resolved"]

    in_every_order(scenario)


def test_a_request_again_while_its_outcome_is_on_its_way() -> None:
    async def scenario(world: World) -> None:
        owner = await world.begun()
        await world.ask(owner)
        world.fail.append(broken())
        await asyncio.gather(
            world.answer(YES["question"]), world.answer(YES["question"]), world.ask(owner), return_exceptions=True
        )
        await world.answer(YES["question"])
        assert len(world.settled) in (1, 2)
        await world.ask(owner)
        assert {str(outcome) for _, outcome in world.settled} == {str(YES["question"])}

    in_every_order(scenario)


def test_the_same_listener_is_told_once() -> None:
    async def scenario(world: World) -> None:
        owner = await world.begun()
        request = InteractionRequest("i1", "question", REQUESTS["question"], world.settle("i1"))
        await owner.accept_user_question_request(request)
        await owner.accept_user_question_request(request)
        await world.answer(YES["question"])
        assert len(world.settled) == 1

    run(scenario(World()), 0)


def test_sixteen_wait_in_a_session_whoever_asks() -> None:
    async def scenario(world: World) -> None:
        first = await world.begun()
        other = await world.begun(session_id="s2")
        asked = [world.ask(first, "question", f"i{number}") for number in range(20)]
        results = await asyncio.gather(*asked, return_exceptions=True)
        full = [result for result in results if result is not None]
        assert [getattr(error, "code", error) for error in full] == ["capacity_exceeded"] * 4
        assert "answer one of them, then ask again" in str(full[0])
        await world.ask(other)
        taken = results.index(None)
        # The same again needs no room.
        await world.ask(first, "question", f"i{taken}")
        await world.answer(YES["question"], f"i{taken}")
        await world.ask(first, "question", "i20")
        await refused("capacity_exceeded", world.ask(first, "question", "i21"))
        await world.end(first, "turn_stopped")
        assert len(world.settled) == 18
        second = await world.begun(2)
        await world.ask(second, "question", "i22")

    in_every_order(scenario)


def test_a_request_of_the_wrong_shape_is_refused() -> None:
    async def scenario(world: World) -> None:
        owner = await world.begun()
        await refused("invalid_request", world.ask(owner, questions=[]), "questions has 0 entries")
        await refused("invalid_request", world.ask(owner, "sandbox_boundary", justification="x" * 20_000))
        assert world.types() == []

    run(scenario(World()), 0)


def test_misuse_is_told_as_such() -> None:
    async def scenario(world: World) -> None:
        owner = await world.begun()
        identity = RunIdentity("s1", "t1", "r1")
        with pytest.raises(RuntimeInteractionInvariantError, match="bind each run once"):
            world.authority.bind_run(identity)
        with pytest.raises(RuntimeInteractionInvariantError, match="open it first"):
            world.authority.bind_run(RunIdentity("s2", "t1", "r1"))
        wrong = InteractionRequest("i1", "permission", REQUESTS["permission"], world.settle("i1"))
        with pytest.raises(RuntimeInteractionInvariantError, match="use the method for its kind"):
            await owner.accept_user_question_request(wrong)
        with pytest.raises(RuntimeInteractionInvariantError, match="close them first"):
            owner.release()
        assert (owner.session_id, owner.turn_id, owner.run_id) == ("s1", "t1", "r1")
        await world.end(owner)

    run(scenario(World()), 0)


# ---------------------------------------------------------------- the end of a run


@pytest.mark.parametrize("reason", ["turn_stopped", "turn_terminal"])
def test_a_closed_run_takes_nothing_and_its_waiters_learn_why(reason: Any) -> None:
    async def scenario(world: World) -> None:
        owner = await world.begun()
        await world.ask(owner)
        await world.ask(owner, "permission", "i2")
        await owner.close(reason)
        assert world.types() == ["interaction/requested"] * 2
        await refused("run_closed", world.ask(owner, "question", "i3"), "is over")
        await refused("run_closed", world.ask(owner))
        await refused("already_resolved", world.answer(YES["question"]), "being closed")
        assert world.settled == []
        await world.end(owner, reason)
        closure = {"kind": "closure", "reason": reason}
        assert world.settled == [("i1", closure), ("i2", closure)]
        await refused("already_resolved", world.answer(YES["question"]), "was closed")
        assert (await world.authority.query("s1", "i1"))["outcome"] == closure

    in_every_order(scenario)


def test_a_close_waits_for_the_answers_that_were_there_before() -> None:
    outcomes = set()

    async def scenario(world: World) -> None:
        owner = await world.begun()
        await world.ask(owner)
        answering = asyncio.create_task(world.answer(YES["question"]))
        await asyncio.sleep(0)
        ending = asyncio.create_task(world.end(owner, "turn_stopped"))
        row = await row_or("already_resolved", answering)
        won = row["outcome"] if row else {"kind": "closure", "reason": "turn_stopped"}
        await ending
        outcomes.add(won["kind"])
        assert world.settled == [("i1", won)]
        assert [data["outcome"] for data in world.memory.of("s1", "interaction/resolved")] == [won]

    in_every_order(scenario)
    assert outcomes == {"question_answer", "closure"}


def test_a_run_whose_session_was_opened_again_is_over() -> None:
    async def scenario(world: World) -> None:
        owner = await world.begun()
        await world.ask(owner)
        await world.journals.close(world.sessions.pop("s1"))
        await refused("run_closed", world.ask(owner, "question", "i2"))
        await world.open()
        await refused("run_closed", world.ask(owner, "question", "i2"))
        await refused("already_resolved", world.answer(YES["question"]))

    run(scenario(World()), 0)


def test_who_is_cancelled_takes_nothing_back() -> None:
    async def scenario(world: World) -> None:
        owner = await world.begun()
        world.sync_seconds = 1.0
        asking = asyncio.create_task(world.ask(owner))
        await asyncio.sleep(0.5)
        asking.cancel()
        await asyncio.sleep(1)
        assert asking.cancelled()
        assert [event.kind for event in world.told] == ["interaction_requested"]
        answering = asyncio.create_task(world.answer(YES["question"]))
        waiting = asyncio.create_task(world.answer(YES["question"]))
        await asyncio.sleep(0.5)
        answering.cancel()
        waiting.cancel()
        await owner.close("turn_stopped")
        assert answering.cancelled()
        assert waiting.cancelled()
        assert world.settled == [("i1", YES["question"])]
        assert world.types() == ["interaction/requested", "interaction/resolved"]

    in_every_order(scenario)


def test_a_close_leaves_no_request_behind() -> None:
    async def scenario(world: World) -> None:
        owner = await world.begun()
        world.sync_seconds = 1.0
        asking = asyncio.create_task(world.ask(owner))
        await asyncio.sleep(0.5)
        asking.cancel()
        await owner.close("turn_stopped")
        assert world.types() == ["interaction/requested"]

    in_every_order(scenario)


def test_nothing_is_kept_of_a_run_that_is_over() -> None:
    async def scenario(world: World) -> None:
        owner = await world.begun()
        await world.ask(owner, "permission")
        await world.answer(YES["permission"])
        assert not [timer for timer in asyncio.get_running_loop()._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
        await world.end(owner)
        gone = weakref.ref(owner)
        del owner
        await asyncio.sleep(0.1)
        gc.collect()
        assert gone() is None

    run(scenario(World(permission_timeout=60)), 0)


def test_a_cancelled_answer_that_fails_is_known_to_the_close() -> None:
    async def scenario(world: World) -> None:
        owner = await world.begun()
        await world.ask(owner)
        world.fail.append(broken(poisoned=True))
        answering = asyncio.create_task(world.answer(YES["question"]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        answering.cancel()
        await asyncio.wait({answering})
        closed = await asyncio.gather(owner.close("turn_stopped"), return_exceptions=True)
        # Cancelled before anything was tried, or told.
        assert isinstance(closed[0], JournalWriteError) or world.fail

    in_every_order(scenario)


# ---------------------------------------------------------------- time


def test_only_permissions_time_out_and_durably() -> None:
    async def scenario(world: World) -> None:
        owner = await world.begun()
        for kind in KINDS:
            await world.ask(owner, kind, kind)
        await asyncio.sleep(59)
        assert world.settled == []
        world.trace.clear()
        await asyncio.sleep(2)
        closure = {"kind": "closure", "reason": "timed_out"}
        assert world.settled == [("permission", closure)]
        assert world.trace == ["sync", "settled", "told interaction_resolved"]
        assert [event.data["status"] for event in world.told[-1:]] == ["closed"]
        await refused("already_resolved", world.answer(YES["permission"], "permission"), "was closed")
        await asyncio.sleep(10_000)
        assert len(await world.authority.pending("s1")) == 2
        await world.end(owner)

    in_every_order(scenario, permission_timeout=60)


def test_without_a_timeout_a_permission_waits_for_ever() -> None:
    async def scenario(world: World) -> None:
        owner = await world.begun()
        await world.ask(owner, "permission")
        await asyncio.sleep(1_000_000)
        assert await world.answer(YES["permission"])

    run(scenario(World()), 0)


def test_an_answer_or_a_close_ends_the_time() -> None:
    async def scenario(world: World) -> None:
        owner = await world.begun()
        await world.ask(owner, "permission")
        await world.ask(owner, "permission", "i2")
        await world.answer(YES["permission"])
        await owner.close("turn_stopped")
        await asyncio.sleep(1000)
        assert world.types() == ["interaction/requested"] * 2 + ["interaction/resolved"]
        assert len(world.settled) == 1

    in_every_order(scenario, permission_timeout=60)


def test_an_answer_at_the_last_moment() -> None:
    outcomes = set()

    async def scenario(world: World) -> None:
        owner = await world.begun()
        world.sync_seconds = 0.5
        await world.ask(owner, "permission")
        await asyncio.sleep(60)
        row = await row_or("already_resolved", world.answer(YES["permission"]))
        won = row["outcome"] if row else {"kind": "closure", "reason": "timed_out"}
        outcomes.add(won["kind"])
        await asyncio.sleep(100)
        assert world.settled == [("i1", won)]
        assert len(world.types()) == 2
        await world.end(owner)

    in_every_order(scenario, permission_timeout=60)
    assert outcomes == {"permission_answer", "closure"}


def test_time_goes_on_after_an_answer_or_a_closure_was_lost(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: World) -> None:
        owner = await world.begun()
        await world.ask(owner, "permission")
        await asyncio.sleep(59.5)
        world.sync_seconds = 1.0
        world.fail.append(broken())
        with pytest.raises(JournalWriteError):
            await world.answer(YES["permission"])
        world.fail.append(broken())
        await asyncio.sleep(62)
        assert world.settled == []
        assert "a permission of session=s1 run=r1 could not be timed out: the disk is full" in caplog.text
        await asyncio.sleep(62)
        assert world.settled == [("i1", {"kind": "closure", "reason": "timed_out"})]
        await world.end(owner)

    in_every_order(scenario, permission_timeout=60)


# ---------------------------------------------------------------- anything, in any order


def test_whatever_happens_each_has_one_outcome_and_everybody_hears_that_one() -> None:
    for seed in range(150):
        world = World(permission_timeout=3)
        run(_anything(world, Random(seed)), seed)
        world.check()


async def _anything(world: World, random: Random) -> None:
    owner = await world.begun()
    names = [(f"i{number}", KINDS[number % 3]) for number in range(6)]
    rows: dict[str, list[Any]] = {name: [] for name, _ in names}

    async def asks(name: str, kind: str) -> None:
        await asyncio.sleep(random.random() * 2)
        for _ in range(2):
            try:
                await world.ask(owner, kind, name)
            except (InteractionRefused, JournalWriteError):
                pass

    async def answers(name: str, kind: str) -> None:
        await asyncio.sleep(random.random() * 5)
        try:
            rows[name].append(await world.answer(random.choice([YES, NO])[kind], name))
        except (InteractionRefused, JournalWriteError):
            pass

    async def disturbs(works: list[asyncio.Task[None]]) -> None:
        for _ in range(4):
            await asyncio.sleep(random.random() * 2)
            if random.random() < 0.5:
                world.fail.append(broken())
            else:
                random.choice(works).cancel()

    world.sync_seconds = 0.1
    works = [asyncio.create_task(asks(*name)) for name in names]
    works += [asyncio.create_task(answers(*name)) for name in names for _ in range(3)]
    trouble = asyncio.create_task(disturbs(works))
    await asyncio.sleep(random.random() * 6)
    trouble.cancel()
    await owner.close("turn_stopped")
    world.fail.clear()
    await world.end(owner, "turn_stopped")
    await asyncio.gather(trouble, *works, return_exceptions=True)
    outcomes = {data["interaction_id"]: data["outcome"] for data in world.memory.of("s1", "interaction/resolved")}
    assert len(outcomes) == len(world.memory.of("s1", "interaction/resolved"))
    assert set(outcomes) == {data["interaction_id"] for data in world.memory.of("s1", "interaction/requested")}
    for name, found in rows.items():
        assert all(row["outcome"] == outcomes[name] for row in found)
    for name, outcome in world.settled:
        assert outcome == outcomes[name]
    assert {name for name, _ in world.settled} == set(outcomes)


# ---------------------------------------------------------------- files


def test_on_a_file_with_a_disk_that_fails(tmp_path: Path) -> None:
    root, disk = tmp_path / "root", FaultyDisk()
    FileStore(root).create(header()).close()

    async def main() -> None:
        world = World(FileJournals(root, fs=disk))
        owner = await world.begun()
        await world.ask(owner)
        disk.fail("write", errno.ENOSPC)
        with pytest.raises(JournalWriteError, match="free some space"):
            await world.answer(YES["question"])
        assert world.settled == []
        row = await world.answer(YES["question"])
        await world.ask(owner, "permission", "i2")
        disk.fail("sync", errno.EIO)
        with pytest.raises(JournalWriteError) as failed:
            await world.answer(YES["permission"], "i2")
        with pytest.raises(JournalWriteError) as closed:
            await owner.close("turn_stopped")
        assert closed.value is failed.value
        await world.journals.close(world.sessions["s1"])
        world.restart()
        await world.open()
        assert await world.answer(YES["question"]) == row
        await refused("already_resolved", world.answer(YES["permission"], "i2"), "was closed")
        await world.journals.close(world.sessions["s1"])
        assert world.settled == [("i1", YES["question"])]

    asyncio.run(main())
    assert os.path.exists(root / "sessions" / "s1" / "snapshot.json")


def test_many_answer_at_once_on_a_file(tmp_path: Path) -> None:
    root = tmp_path / "root"
    FileStore(root).create(header()).close()

    async def main() -> None:
        world = World(FileJournals(root))
        owner = await world.begun()
        await asyncio.gather(*(world.ask(owner, "question", f"i{number}") for number in range(16)))
        given = [(answer["question"], f"i{number}") for number in range(16) for answer in (YES, NO, YES)]
        results = await asyncio.gather(*(world.answer(*one) for one in given), return_exceptions=True)
        won = dict(world.settled)
        assert len(world.settled) == len(won) == 16
        for (answer, name), result in zip(given, results, strict=True):
            assert isinstance(result, dict) is (answer == won[name])
        await world.end(owner)
        await world.journals.close(world.sessions["s1"])

    asyncio.run(main())
