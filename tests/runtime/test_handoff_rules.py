"""Rules of handoffs that no story breaks by itself: what comes in the moment in which nobody looks, what is looked up
of runs that were handed over more than once, and what becomes of a composition that is not as it should be.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from maka.journal.errors import InvalidEvent, JournalWriteError
from maka.journal.events import Draft, JsonObject
from maka.journal.views.interactions import Interactions
from maka.runtime.app import App
from maka.runtime.backends.base import BackendContext, BackendRegistry, SendInput, SteeringLease
from maka.runtime.backends.scripted import Never, Part, Tool, scripted_backend
from maka.runtime.continuation import drafts
from maka.runtime.continuation.plan import plan
from maka.runtime.continuation.safety import SafetyObservation
from maka.runtime.continuation.shapes import Facts
from maka.runtime.errors import (
    ContinuationRevalidationError,
    HandoffRefused,
    InteractionRefused,
    RuntimeOwnerCleanupError,
    SessionBusy,
    SettleRefused,
)
from maka.runtime.handoff.abandonment import abandon
from maka.runtime.handoff.denials import has_explicit_sandbox_boundary_denial
from maka.runtime.handoff.pause import HandoffPause
from maka.runtime.handoff.request import HandoffRequest
from maka.runtime.handoff.sameness import recorded_composition
from maka.runtime.interactions import JournalInteractions
from maka.runtime.journals import OpenSession
from maka.runtime.kernel.authority import RunIdentity
from maka.runtime.kernel.kernel import RuntimeKernel
from maka.runtime.kernel.stream import TurnStream
from maka.runtime.lifecycle import Lifecycle
from maka.runtime.session_events import SessionEvent
from support.composed import composed
from support.lineages import Story
from support.managed import data_of, go, managing, told
from support.memory_journals import MemoryJournal, MemoryJournals, check_legal
from support.plans import Session
from support.seeded_loop import run

SESSION = "s1"
MADE = composed()
SEEN = SafetyObservation(workspace_identity="w", background_operations_settled=True, available_tool_names=("tool",))
QUESTIONS = [{"id": "q", "question": "?", "options": [{"label": "Yes"}, {"label": "No"}]}]
Play = Callable[[SendInput], AsyncIterator[SessionEvent]]


def event(input: SendInput, kind: str, **data: Any) -> SessionEvent:
    return SessionEvent(kind, f"e-{kind}", input.turn_id, 0, data)


def complete(input: SendInput) -> SessionEvent:
    return event(input, "complete", stop_reason="end_turn")


def pause(run_id: str) -> HandoffPause:
    """The successor of run ``r`` is run ``r'``."""
    return HandoffPause(
        handoff_id=f"h-{run_id}",
        host_epoch="host",
        root_run_id="r1",
        successor_run_id=f"{run_id}'",
        successor_invocation_id=f"{run_id}'",
        claim_id=f"c-{run_id}",
    )


async def read(stream: TurnStream) -> list[SessionEvent]:
    return [told async for told in stream]


async def stands(input: SendInput) -> AsyncIterator[SessionEvent]:
    """Comes to a boundary a second later, and completes if nobody waits for that."""
    await asyncio.sleep(1)
    if await input.handoff_boundary(None, 2) == "continue":
        yield complete(input)


class Player:
    """A backend whose runs record what they are made of and play ``play``."""

    def __init__(self, play: Play) -> None:
        self.play = play

    def built(self, context: BackendContext) -> "Player":
        self.context = context
        return self

    async def prepare_run_composition(self, run_id: str, turn_id: str) -> None:
        await self.context.record_run_composition(run_id, MADE)

    async def send(self, input: SendInput) -> AsyncIterator[SessionEvent]:
        await self.prepare_run_composition(input.run_id, input.turn_id)
        async for said in self.play(input):
            yield said

    async def stop(self, reason: str, mode: str) -> None: ...

    async def dispose(self) -> None: ...


class Bench(Player):
    """A kernel with this backend and one session in memory."""

    def __init__(self, play: Play = stands, **more: Any) -> None:
        super().__init__(play)
        self.journals = MemoryJournals()
        self.journals.create(SESSION, backend="player")
        backends = BackendRegistry()
        backends.register("player", self.built)
        self.kernel = RuntimeKernel(
            journals=self.journals,
            backends=backends,
            interaction_authority=JournalInteractions(self._opened, lifecycle=Lifecycle()),
            observe=self._observe,
            **more,
        )

    def _opened(self, session_id: str) -> OpenSession | None:
        return self.kernel.opened(session_id)

    async def _observe(self, session_id: str, state: object) -> SafetyObservation:
        return SEEN

    async def asked(self) -> "tuple[asyncio.Task[list[SessionEvent]], HandoffRequest]":
        """The run has begun, somebody reads it, and it was asked."""
        return await self.reading(self.kernel.start_turn(SESSION, turn_id="t1", run_id="r1", text="go"), "r1")

    async def reading(
        self, stream: TurnStream, run_id: str
    ) -> "tuple[asyncio.Task[list[SessionEvent]], HandoffRequest]":
        reading = asyncio.ensure_future(read(stream))
        await stream.started()
        request = self.kernel.request_run_handoff(SESSION, run_id, pause(run_id))
        assert request is not None
        return reading, request

    async def handed_over(self, stream: TurnStream | None = None, run_id: str = "r1") -> None:
        stream = stream or self.kernel.start_turn(SESSION, turn_id="t1", run_id=run_id, text="go")
        reading, request = await self.reading(stream, run_id)
        assert await request.ready
        assert request.commit()
        assert await request.sealed
        await reading

    async def successor(self) -> TurnStream:
        """The run that finishes what waits."""
        async with self.kernel.session(SESSION) as session:
            facts = Facts(SESSION, session.journal.state, await self.kernel.conversation(SESSION))
        planned = plan(facts, source_run_id=None, purpose="handoff", observation=SEEN, new_id=str)
        assert planned.continuation is not None, planned.to_json()
        return self.kernel.start_continuation(planned.continuation)

    def ends(self) -> list[tuple[str, str, str | None]]:
        """Run, kind and failure class of each end."""
        ends = [(data["run_id"], data["reason"]) for data in self.of("turn/end")]
        return [(run_id, reason["kind"], reason.get("failure_class")) for run_id, reason in ends]

    def of(self, type_: str) -> list[JsonObject]:
        return self.journals.of(SESSION, type_)


def in_several_orders(case: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[int], None]:
    @pytest.mark.parametrize("seed", range(3))
    def with_seed(seed: int) -> None:
        run(case(), seed)

    with_seed.__name__ = case.__name__
    return with_seed


@in_several_orders
async def test_a_backend_whose_signal_is_set_stands_nowhere() -> None:
    async def in_a_hurry(input: SendInput) -> AsyncIterator[SessionEvent]:
        await asyncio.sleep(1)
        signal = asyncio.Event()
        signal.set()
        assert await input.handoff_boundary(signal, 3) == "continue"
        yield complete(input)

    bench = Bench(in_a_hurry)
    reading, request = await bench.asked()
    await reading
    assert (await request.ready, await request.sealed) == (False, False)
    await bench.kernel.aclose()


@in_several_orders
async def test_a_signal_that_is_set_while_a_boundary_is_made_durable_is_minded() -> None:
    async def in_a_hurry(input: SendInput) -> AsyncIterator[SessionEvent]:
        await asyncio.sleep(1)
        yield event(input, "text_delta", message_id="m", text="a")
        signal = asyncio.Event()
        asyncio.get_running_loop().call_later(1, signal.set)
        assert await input.handoff_boundary(signal, 3) == "continue"
        yield complete(input)

    async def slow(journal: MemoryJournal) -> None:
        await asyncio.sleep(2)

    bench = Bench(in_a_hurry)
    reading, request = await bench.asked()
    bench.journals.on_sync = slow
    await reading
    assert (await request.ready, await request.sealed) == (False, False)
    await bench.kernel.aclose()


@in_several_orders
async def test_nothing_is_committed_between_two_boundaries() -> None:
    async def impatient(input: SendInput) -> AsyncIterator[SessionEvent]:
        await asyncio.sleep(1)
        signal = asyncio.Event()
        asyncio.get_running_loop().call_later(1, signal.set)
        assert await input.handoff_boundary(signal, 3) == "continue"
        await asyncio.sleep(1)
        if await input.handoff_boundary(None, 2) == "continue":
            yield complete(input)

    bench = Bench(impatient)
    reading, request = await bench.asked()
    assert await request.ready
    await asyncio.sleep(1.5)
    assert request.commit() is False
    await asyncio.sleep(1)
    assert request.commit() is True
    await reading
    assert await request.sealed
    assert [data["remaining_steps"] for data in bench.of("handoff/pause")] == [2]
    await bench.kernel.aclose()


@in_several_orders
async def test_a_stop_ends_a_boundary_at_which_the_backend_gives_no_signal() -> None:
    said: list[str] = []

    async def patient(input: SendInput) -> AsyncIterator[SessionEvent]:
        said.append(await input.handoff_boundary(None, 2))
        if said == ["continue"]:
            yield complete(input)

    bench = Bench(patient)
    reading, request = await bench.asked()
    assert await request.ready
    await bench.kernel.stop_session(SESSION)
    await reading
    assert said == ["pause"], "its turn has ended, and it with it"
    assert await request.sealed is False
    assert bench.ends() == [("r1", "aborted", None)]
    await bench.kernel.aclose()


@in_several_orders
async def test_nobody_waits_for_the_signal_of_a_request_that_is_over() -> None:
    async def going_on(input: SendInput) -> AsyncIterator[SessionEvent]:
        assert await input.handoff_boundary(None, 2) == "continue"
        await asyncio.sleep(2)
        waiting.extend(task.get_name() for task in asyncio.all_tasks() if "signal" in task.get_name())
        yield complete(input)

    waiting: list[str] = []
    bench = Bench(going_on)
    stream = bench.kernel.start_turn(SESSION, turn_id="t1", run_id="r1", text="go")
    reading = asyncio.ensure_future(read(stream))
    await stream.started()
    request = bench.kernel.request_run_handoff(SESSION, "r1", pause("r1"), asyncio.Event())
    assert request is not None
    assert [task for task in asyncio.all_tasks() if "signal" in task.get_name()]
    assert await request.ready
    request.cancel()
    await reading
    assert waiting == []
    await bench.kernel.aclose()


class Clumsy:
    """A message authority that has one message for whoever asks, and cannot be released."""

    def bind_run(self, identity: RunIdentity) -> "Clumsy":
        self.session_id, self.turn_id, self.run_id = identity.session_id, identity.turn_id, identity.run_id
        return self

    def pull(self) -> Sequence[SteeringLease]:
        return [SteeringLease("lease", "message", [{"kind": "text", "text": "rather this"}])]

    def ack(self, lease_ids: Sequence[str]) -> None: ...
    def nack(self, lease_ids: Sequence[str]) -> None: ...

    def release(self) -> None:
        raise RuntimeError("cannot be released")


@in_several_orders
async def test_a_pause_that_was_refused_is_no_pause_that_failed() -> None:
    """Although something else of the run has failed."""

    async def steered(input: SendInput) -> AsyncIterator[SessionEvent]:
        async for said in stands(input):
            yield said
        assert input.pull_steering()

    bench = Bench(steered, message_authority=Clumsy())
    reading, request = await bench.asked()
    assert await request.ready
    assert request.commit()
    with pytest.raises(RuntimeError, match="cannot be released"):
        await reading
    assert await request.sealed is False
    assert [data["reason"]["kind"] for data in bench.of("turn/end")] == ["failed"]
    await bench.kernel.aclose()


@in_several_orders
async def test_a_question_that_comes_as_the_pause_is_written_is_refused() -> None:
    refused: list[str] = []

    async def curious(input: SendInput) -> AsyncIterator[SessionEvent]:
        async def asks() -> None:
            opened = bench.kernel.opened(SESSION)
            assert opened is not None
            while "t1" not in opened.journal.state.continuations.pausing:
                await asyncio.sleep(0)
            try:
                await input.interactions.ask("question", {"questions": QUESTIONS})
            except InteractionRefused as error:
                refused.append(error.code)

        await asyncio.sleep(1)
        if await input.handoff_boundary(None, 2) == "continue":
            yield complete(input)
        asking.append(asyncio.ensure_future(asks()))

    asking: list[asyncio.Future[None]] = []
    bench = Bench(curious)
    reading, request = await bench.asked()
    assert await request.ready
    assert request.commit()
    await reading
    await asking[0]
    assert refused == ["run_closed"]
    assert bench.of("interaction/requested") == []
    await bench.kernel.aclose()
    assert check_legal(bench.journals.events(SESSION)) == "healthy"


@in_several_orders
async def test_nothing_is_recorded_of_a_run_as_its_pause_is_written() -> None:
    refused: list[str] = []

    async def talkative(input: SendInput) -> AsyncIterator[SessionEvent]:
        async def records() -> None:
            opened = bench.kernel.opened(SESSION)
            assert opened is not None
            while "t1" not in opened.journal.state.continuations.pausing:
                await asyncio.sleep(0)
            try:
                await bench.context.record_run_composition("r1", attrs.evolve(MADE, composer_revision="2"))
            except InvalidEvent as error:
                refused.append(str(error))

        async for said in stands(input):
            yield said
        recording.append(asyncio.ensure_future(records()))

    recording: list[asyncio.Future[None]] = []
    bench = Bench(talkative)
    await bench.handed_over()
    await recording[0]
    assert len(refused) == 1
    assert len(bench.of("run/composition")) == 1
    await bench.kernel.aclose()
    assert check_legal(bench.journals.events(SESSION)) == "healthy"


@in_several_orders
async def test_a_successor_that_is_cut_off_before_its_start_ends_nothing() -> None:
    """Its turn goes on waiting, for the same one."""
    cut: list[str] = ["after_continuation_claim_committed"]

    async def fails(point: str) -> None:
        if point in cut:
            cut.remove(point)
            raise RuntimeError("cut off")

    bench = Bench(failpoint=fails)
    await bench.handed_over()
    with pytest.raises(RuntimeOwnerCleanupError, match="cut off before its backend was called"):
        await read(await bench.successor())
    assert bench.ends() == []
    assert (await read(await bench.successor()))[-1].kind == "complete"
    assert bench.ends() == [("r1'", "completed", None)]
    assert [len(bench.of(type_)) for type_ in ("continuation/claim", "run/created", "continuation/start")] == [1, 1, 1]
    await bench.kernel.aclose()


# ---------------------------------------------------------------- who hands over


class Eyes:
    """A safety inspector that takes its time as long as ``open`` is not set."""

    def __init__(self) -> None:
        self.looking, self.open = asyncio.Event(), asyncio.Event()
        self.open.set()

    def shut(self) -> None:
        self.looking.clear()
        self.open.clear()

    async def inspect_continuation_safety(self, session_id: str) -> SafetyObservation:
        self.looking.set()
        await self.open.wait()
        return SEEN


def watched(play: Play, eyes: Eyes) -> App:
    return App(
        backends={"player": Player(play).built},
        default_backend="player",
        permission_mode="bypass",
        safety_inspector=eyes,
    )


def test_who_hands_over_is_told_that_the_backend_has_left_the_boundary_meanwhile(tmp_path: Path) -> None:
    """It looks whether a successor could go on, and the run does so before it is told to pause."""
    handing: list[asyncio.Future[JsonObject]] = []
    goes_on: list[bool] = []

    async def main() -> None:
        eyes = Eyes()

        async def impatient(input: SendInput) -> AsyncIterator[SessionEvent]:
            eyes.shut()
            handing.append(asyncio.ensure_future(manager.hand_over("s")))
            while not input.handoff_wanted():
                await asyncio.sleep(0)
            assert await input.handoff_boundary(eyes.looking, 3) == "continue"
            eyes.open.set()
            await asyncio.wait(handing, timeout=2)
            goes_on.append(handing[0].done())
            yield complete(input)

        async with managing(tmp_path, watched(impatient, eyes)) as manager:
            await manager.create(session_id="s")
            events = await told(manager.send("s", "go"))
            assert events[-1].kind == "complete"
            with pytest.raises(HandoffRefused):
                await handing[0]

    go(main())
    assert goes_on == [True], "it is told while the run goes on"


def test_while_a_successor_is_about_to_start_its_handoff_is_not_given_up(tmp_path: Path) -> None:
    async def main() -> None:
        eyes = Eyes()

        async def plays(input: SendInput) -> AsyncIterator[SessionEvent]:
            if input.continuation is None:
                handing.append(asyncio.ensure_future(manager.hand_over("s")))
                while not input.handoff_wanted():
                    await asyncio.sleep(0)
                assert await input.handoff_boundary(None, 3) == "pause"
                return
            yield complete(input)

        handing: list[asyncio.Future[JsonObject]] = []
        async with managing(tmp_path, watched(plays, eyes)) as manager:
            await manager.create(session_id="s")
            await told(manager.send("s", "go"))
            pause = await handing[0]
            planned = await manager.plan_safe_boundary_continuation("s", purpose="handoff")
            eyes.shut()
            reading = asyncio.ensure_future(told(manager.resume_safe_boundary_continuation(planned)))
            await eyes.looking.wait()
            assert (await manager.read("s")).handoffs()[0]["state"] == "pending"
            with pytest.raises(SessionBusy):
                await manager.abandon_handoff("s", pause["handoff_id"])
            eyes.open.set()
            assert (await reading)[-1].kind == "complete"

    go(main())
    assert [end["reason"]["kind"] for end in data_of(tmp_path, "s", "turn/end")] == ["completed"]


def test_what_is_not_waited_for_any_more_is_taken_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, scripted_backend([[Never()]], steps=True, composition=MADE)) as manager:
            await manager.create(session_id="s")
            stream = manager.send("s", "go")
            reading = asyncio.ensure_future(told(stream))
            await stream.started()
            for _ in range(2):
                with pytest.raises(HandoffRefused) as refused:
                    await manager.hand_over("s", timeout=0.05)
                assert refused.value.code == "not_reached"
            await manager.stop("s")
            await reading

    go(main())


@pytest.mark.parametrize("root", ["x" * 4_096, "a\nb"])
def test_the_root_of_a_pause_has_any_id(root: str) -> None:
    whole = attrs.evolve(pause("r1"), root_run_id=root).draft(run_id="r", turn_id="t", remaining_steps=1)
    assert whole.data["root_run_id"] == root


def test_what_a_pause_gives_is_no_longer_than_a_journal_takes() -> None:
    with pytest.raises(HandoffRefused, match="claim_id of a handoff has 257 characters, and may have 1 to 256"):
        attrs.evolve(pause("r1"), claim_id="x" * 257)


def test_a_pause_names_who_asked_for_it(tmp_path: Path) -> None:
    async def main() -> None:
        calls: list[Part] = [Tool("a"), Tool("b"), Tool("c")]
        async with managing(tmp_path, scripted_backend([calls] * 3, steps=True, composition=MADE)) as manager:
            named = []
            for session_id, host_epoch in (("s", None), ("t", "me"), ("u", None)):
                await manager.create(session_id=session_id)
                stream = manager.send(session_id, "go")
                reading = asyncio.ensure_future(told(stream))
                await stream.started()
                pause = await manager.hand_over(session_id, host_epoch=host_epoch)
                named.append(pause["host_epoch"])
                await reading
            assert named[1] == "me"
            assert named[0] == named[2] != "me"

    go(main())


# ---------------------------------------------------------------- what a journal holds


def test_a_handoff_is_claimed_in_its_turn() -> None:
    session = Session()
    session.start("go").step().says("a").end_step()
    session.pause()
    claim = drafts.claim(session.continuation("r1", purpose="handoff"), session.facts, claimed_at=5)
    with pytest.raises(InvalidEvent, match="turn t1 is not open as number 2"):
        session.state.check(Draft(claim.type, {**claim.data, "turn": 2}))
    session.state.check(claim)


def test_a_handoff_whose_turn_has_ended_waits_no_more() -> None:
    """No writer ends it for the paused run; a journal may say so."""
    story = Story().start("go").step().says("a").end_step()
    story.pause()
    assert [row["state"] for row in story.state.handoff_rows()] == ["pending"]
    story.end("failed")
    assert [row["state"] for row in story.state.handoff_rows()] == ["abandoned"]


def test_the_claim_that_a_handoff_has_reserved_is_no_resumes_also_when_it_is_over() -> None:
    session = Session()
    session.start("go").step().says("a").end_step()
    session.pause()
    reserved = session.continuation("r1", purpose="handoff").claim_id
    session.end("failed")
    session.start("again").end("interrupted")
    claim = drafts.claim(session.continuation("r2"), session.facts, claimed_at=5)
    session.state.check(claim)
    target = claim.data["target_run"]
    named = {**target, "continuation": {**target["continuation"], "claim_id": reserved}}
    with pytest.raises(InvalidEvent, match=f"claim {reserved} is reserved for handoff"):
        session.state.check(Draft(claim.type, {**claim.data, "claim_id": reserved, "target_run": named}))


def test_a_handoff_is_claimed_as_its_pause_says_and_while_it_waits() -> None:
    session = Session()
    session.start("go").step().says("a").end_step()
    session.pause()
    claim = drafts.claim(session.continuation("r1", purpose="handoff"), session.facts, claimed_at=5)
    with pytest.raises(InvalidEvent, match="reserved another claim_id"):
        session.state.check(Draft(claim.type, {**claim.data, "claim_id": "another"}))
    session.end("failed")
    session.start("again")
    target = {**claim.data["target_run"], "turn_id": "t2"}
    with pytest.raises(InvalidEvent, match="turn t2 waits for no handoff"):
        session.state.check(Draft(claim.type, {**claim.data, "turn": 2, "target_run": target}))


def test_who_gives_a_handoff_up_says_why_hides_nothing_and_does_it_once() -> None:
    session = Session(agent_id="a", root={"kind": "goal"})
    session.start("go").step().says("half").end_step()
    session.pause()
    session.add("session/updated", {"patch": {"model": "another"}})
    pause = session.state.continuations.handoffs["h-r1'"]
    given = abandon(session.state, "h-r1'", "nobody comes")
    claim, end = given[0].data, next(draft.data for draft in given if draft.type == "turn/end")
    run = claim["target_run"]
    assert (run["agent_id"], run["root"], run["model"]) == ("a", {"kind": "goal"}, "fake-model")
    assert claim["replay_through_seq"] == pause.seq
    assert end["reason"] == {"kind": "failed", "failure_class": "handoff_abandoned", "message": "nobody comes"}
    session.append(*given)
    with pytest.raises(SettleRefused, match="was given up before") as refused:
        abandon(session.state, "h-r1'", None)
    assert refused.value.code == "handoff_not_pending"


# ---------------------------------------------------------------- denials


@in_several_orders
async def test_denials_are_looked_up_for_each_run_of_the_boundary_oldest_first() -> None:
    asked: list[list[str]] = []

    async def looks_up(session: OpenSession, identities: Sequence[JsonObject]) -> bool:
        asked.append([identity["run_id"] for identity in identities])
        return False

    bench = Bench(has_explicit_sandbox_boundary_denial=looks_up)
    await bench.handed_over()
    await bench.handed_over(await bench.successor(), "r1'")
    await read(await bench.successor())
    assert asked == [["r1"], ["r1", "r1'"]]
    await bench.kernel.aclose()


@pytest.mark.parametrize(
    ("interactions", "found"),
    [
        (Interactions(), False),
        (Interactions(denials={"r1": ["i"]}), True),
        (Interactions(denials={"r2": ["i"]}), True),
        (Interactions(denials={"r3": ["i"]}), False),
        (Interactions(unclear={"r3": ["i"]}), False),
        (Interactions(unclear={"r2": ["i"]}, denials={"r1": ["j"]}), None),
    ],
)
def test_what_nobody_can_tell_is_no_permission(interactions: Interactions, found: bool | None) -> None:
    session: Any = SimpleNamespace(
        session_id=SESSION, journal=SimpleNamespace(state=SimpleNamespace(interactions=interactions))
    )
    looked_up = has_explicit_sandbox_boundary_denial(session, [{"run_id": "r1"}, {"run_id": "r2"}])
    if found is not None:
        assert asyncio.run(looked_up) is found
        return
    with pytest.raises(ContinuationRevalidationError, match="boundary i of run r2") as refused:
        asyncio.run(looked_up)
    assert refused.value.code == "sandbox_denial_unknown"


# ---------------------------------------------------------------- compositions


def test_the_first_composition_that_is_on_record_stands() -> None:
    story = Story().start("go").step().says("a").end_step()
    story.add("run/composition", {"run_id": "r1", "composition": MADE.to_json()})
    first = story.state.runs.live["r1"]
    held = (first.composition, first.composition_seq)
    story.add("run/composition", {"run_id": "r1", "composition": {**MADE.to_json(), "composer_revision": "2"}})
    assert (first.composition, first.composition_seq) == held


class Unready(Bench):
    """One whose runs cannot tell what they are made of, but for the first."""

    async def prepare_run_composition(self, run_id: str, turn_id: str) -> None:
        if run_id != "r1":
            raise RuntimeError("the prompt is not there")
        await super().prepare_run_composition(run_id, turn_id)


class Mistaken(Bench):
    """One that records of a successor what is another run's."""

    async def prepare_run_composition(self, run_id: str, turn_id: str) -> None:
        await super().prepare_run_composition("r1" if run_id == "r1" else "another", turn_id)


class Failing(Bench):
    """One whose journal fails as it records what a successor is made of."""

    async def prepare_run_composition(self, run_id: str, turn_id: str) -> None:
        if run_id != "r1":
            raise JournalWriteError("the disk is full")
        await super().prepare_run_composition(run_id, turn_id)


@in_several_orders
async def test_a_journal_that_fails_under_a_successor_is_no_other_agent() -> None:
    """It has no end that could be trusted to be written: the journal is opened again before anything else."""
    bench = Failing()
    await bench.handed_over()
    with pytest.raises(JournalWriteError, match="the disk is full"):
        await read(await bench.successor())
    assert bench.kernel.status(SESSION).degraded is not None
    assert bench.ends() == []
    await bench.kernel.aclose()


async def unreadable(session: OpenSession, run_id: str) -> JsonObject | None:
    """A reader that finds what it cannot read of every run but the first."""
    return await recorded_composition(session, run_id) if run_id == "r1" else {"schema": 9}


@pytest.mark.parametrize(
    ("bench", "words"),
    [
        (Unready, "composition preparation .* failed .*the prompt is not there"),
        (Mistaken, "composition preparation .* recorded what is refused .*run another of session"),
        (lambda: Bench(read_composition=unreadable), "Run Composition of run r1' .* cannot be read"),
    ],
)
def test_a_successor_of_which_nobody_can_tell_what_it_is_made_of_has_failed(
    bench: Callable[[], Bench], words: str
) -> None:
    async def main() -> None:
        made = bench()
        await made.handed_over()
        with pytest.raises(ContinuationRevalidationError, match=words) as failed:
            await read(await made.successor())
        assert failed.value.code == "composition_unavailable"
        assert made.ends() == [("r1'", "failed", "composition_unavailable")]
        await made.kernel.aclose()

    for seed in range(3):
        run(main(), seed)


@in_several_orders
async def test_a_workspace_that_is_another_one_prepares_no_composition() -> None:
    class Prepared(Bench):
        async def prepare_run_composition(self, run_id: str, turn_id: str) -> None:
            prepared.append(run_id)
            await super().prepare_run_composition(run_id, turn_id)

        async def _observe(self, session_id: str, state: object) -> SafetyObservation:
            looks.append(session_id)
            return SEEN if len(looks) < last else attrs.evolve(SEEN, workspace_identity="another")

    prepared: list[str] = []
    looks: list[str] = []
    last = 99
    bench = Prepared()
    await bench.handed_over()
    # Once before the claim, and again behind the start.
    last = len(looks) + 2
    with pytest.raises(ContinuationRevalidationError) as refused:
        await read(await bench.successor())
    assert refused.value.code == "workspace_identity_changed"
    assert prepared == ["r1"]
    assert bench.ends() == [("r1'", "failed", "workspace_identity_changed")]
    await bench.kernel.aclose()
