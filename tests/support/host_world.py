"""One simulated process with a host's lanes in it, clients that ask for the same until they are answered, and what must
hold of it all whatever crashes when.

``simulate_host(seed)`` is a whole story: hosts one after the other, of which all but the last may crash at any await.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, Final, Literal

import attrs

from maka.journal.digests import digest_of
from maka.journal.errors import JournalError, JournalWriteError
from maka.journal.events import Event, JsonObject
from maka.runtime.backends.base import BackendContext, BackendRegistry, SendInput, SteeringLease, StopMode, StopReason
from maka.runtime.errors import InteractionRefused, KernelClosed, RuntimeFailure
from maka.runtime.host.admission import StopAsked
from maka.runtime.host.broadcast import Following
from maka.runtime.host.lane import Floor, Lane
from maka.runtime.host.messages import QueuedMessages
from maka.runtime.host.operations import QueueRetract, TurnMessageSubmit, TurnStart
from maka.runtime.host.protocol import HostError
from maka.runtime.host.subscription import UNTOLD, Subscription
from maka.runtime.interactions import JournalInteractions
from maka.runtime.journals import OpenSession
from maka.runtime.kernel.generations import Deadlines
from maka.runtime.kernel.kernel import RuntimeKernel
from maka.runtime.lifecycle import Lifecycle
from maka.runtime.session_events import SessionEvent

from .kernel_invariants import wrongs
from .memory_journals import BEGAN, MemoryJournal, MemoryJournals, in_stretches
from .seeded_loop import Crashed, run

DEADLINES: Final = Deadlines(stop=2.0, dispose=2.0, after_step=5.0, exit=3.0, grace=0.1)
#: Seconds in which clients begin what they do; within which all must have settled.
BUSY: Final = 10.0
OVER: Final = 300.0
_OVER: Final = ("completed", "failed", "cancelled")


class Broken(AssertionError):
    """Something that must hold does not."""


@attrs.define(eq=False)
class Command:
    """What a client wants, under ids of its own, until it is answered. ``answers``: all that it was ever answered."""

    session_id: str
    operation: str
    asked: Any
    answers: list[JsonObject] = attrs.Factory(list)
    refusals: list[str] = attrs.Factory(list)


class Backend:
    """A few steps, with text, steering between them, and a question now and then; it may fail, or be slow to stop."""

    def __init__(self, world: "HostWorld", context: BackendContext) -> None:
        self._world = world
        self._context = context
        self._stopped = asyncio.Event()

    async def send(self, input: SendInput) -> AsyncIterator[SessionEvent]:
        world, random = self._world, self._world.random
        world.sent(input.run_id)
        self._stopped.clear()

        def event(kind: str, **data: Any) -> SessionEvent:
            return SessionEvent(kind, self._context.new_id(), input.turn_id, self._context.now(), data)

        for step in range(random.choice([1, 1, 2, 3])):
            yield event("step_start")
            name = f"{input.run_id}-{step}"
            text = ""
            for _ in range(random.randrange(3)):
                if await self._halted(random.choice([0, 0.01, 0.5])):
                    break
                piece = f"piece {random.randrange(100)} of {name}; "
                text += piece
                yield event("text_delta", message_id=name, text=piece)
            if self._stopped.is_set():
                break
            if random.random() < 0.2:
                text = "in the end: " + text
            yield event("text_complete", message_id=name, text=text or "nothing to say")
            if random.random() < 0.15:
                questions = [{"id": "q", "question": "?", "options": [{"label": "yes"}, {"label": "no"}]}]
                asked = asyncio.ensure_future(input.interactions.ask("question", {"questions": questions}))
                stopped = asyncio.ensure_future(self._stopped.wait())
                try:
                    await asyncio.wait({asked, stopped}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    asked.cancel()
                    stopped.cancel()
                    await asyncio.gather(asked, stopped, return_exceptions=True)
                if self._stopped.is_set():
                    break
            if random.random() < 0.05:
                raise RuntimeError("drawn to fail")
            yield event("step_end")
            leases: list[SteeringLease] = list(input.pull_steering())
            for lease in leases:
                if self._stopped.is_set():
                    input.nack_steering([lease.lease_id])
                    continue
                yield event("steering_message", message_id=lease.message_id, content=lease.content)
                input.ack_steering([lease.lease_id])
            if self._stopped.is_set():
                break
        yield event("complete", stop_reason="user_stop" if self._stopped.is_set() else "end_turn")

    async def _halted(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._stopped.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def stop(self, reason: StopReason, mode: StopMode) -> None:
        if self._world.random.random() < 0.1 and not self._world.calm:
            await asyncio.sleep(self._world.random.uniform(0, 3))
            if self._world.random.random() < 0.3:
                raise RuntimeError("drawn not to stop")
        self._stopped.set()

    async def dispose(self) -> None:
        self._stopped.set()


class Reader:
    """A subscription, read slowly or fast, and held to what is durable at the moment."""

    def __init__(self, world: "HostWorld", lane: Lane, number: int) -> None:
        self.subscription = Subscription(f"w{number}", lane.session_id, "epoch")
        self._world = world
        self._lane = lane
        self._texts: dict[tuple[str, str, int], str] = {}
        self._complete: set[tuple[str, str, int]] = set()
        self.snapshot: JsonObject = {}
        self.frames = 0

    async def read(self) -> None:
        world, random = self._world, self._world.random
        try:
            self.snapshot, _, _ = await self._lane.open(self.subscription, None)
        except (HostError, JournalError, KernelClosed):
            return
        world.durable(self._lane.session_id, self.snapshot["position"], "a snapshot")
        revision, position = self.snapshot["projection_revision"], self.snapshot["position"]
        ended: str | None = _ended(self.snapshot)
        try:
            while not world.over:
                try:
                    async with asyncio.timeout(1.0):
                        await self.subscription.ready()
                except TimeoutError:
                    continue
                frame = self.subscription.take()
                if frame is None:
                    return
                self.frames += 1
                world.expect(frame["sequence"] == self.frames, "the frames of a subscription have a gap")
                if frame["type"] == "delta":
                    self._delta(frame["delta"])
                elif frame["type"] == "event":
                    event = frame["event"]
                    world.expect(event["seq"] > position, f"event {event['seq']} came twice, or before the snapshot")
                    position = event["seq"]
                    world.durable(self._lane.session_id, position, event["type"])
                    self._message(event)
                elif frame["type"] == "projection":
                    snapshot = frame["snapshot"]
                    world.expect(snapshot["projection_revision"] > revision, "a revision went back")
                    revision = snapshot["projection_revision"]
                    world.durable(self._lane.session_id, snapshot["position"], "a projection")
                    root = snapshot["root_turn"]
                    if root is not None and ended is not None and root["turn_id"] != ended.partition(" ")[0]:
                        world.expect(ended.endswith(" over"), f"{root['turn_id']} was shown before the end of {ended}")
                    ended = _ended(snapshot)
                if random.random() < 0.2:
                    await asyncio.sleep(random.choice([0, 0.01, 0.3]))
        finally:
            self._lane.close(self.subscription)

    def _delta(self, delta: JsonObject) -> None:
        key = delta["kind"], delta["message_id"], delta["index"]
        if delta.get("reset"):
            self._texts[key] = ""
        have = self._texts.get(key, "")
        self._world.expect(len(have) == delta["offset"], f"text of {key} goes on at {delta['offset']}, not {len(have)}")
        self._texts[key] = have + delta["text"]
        if delta.get("complete"):
            self._complete.add(key)

    def _message(self, event: JsonObject) -> None:
        if event["type"] == "assistant/message":
            for block in event["data"]["content"]:
                if block["kind"] == "text":
                    texts = [self._texts.get(key) for key in self._complete if key[1] == event["data"]["message_id"]]
                    self._world.expect(
                        block["text"] in texts, f"the text of {event['data']['message_id']} is not exact"
                    )


def _ended(snapshot: JsonObject) -> str | None:
    root = snapshot["root_turn"]
    if root is None:
        return None
    over = root["status"] in _OVER
    return f"{root['turn_id']}{' over' if over else ''}"


class HostWorld:
    """``commands``: all that clients want in this story; those without an answer are asked for again."""

    def __init__(
        self,
        random: Random,
        number: int,
        journals: MemoryJournals,
        sessions: list[str],
        commands: list[Command],
        *,
        last: bool,
    ) -> None:
        self.random = random
        self.journals = journals
        self.sessions = sessions
        self.commands = commands
        self.wrongs: list[str] = []
        self.dead = self.over = self.calm = False
        self._last = last
        self._number = number
        self._ids = 0
        self._draining = False
        self._sent: set[str] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._faults = random.random() < 0.4
        journals.on_sync = self._sync

    def expect(self, holds: bool, what: str) -> None:
        if not holds and not self.dead:
            self.wrongs.append(what)

    def sent(self, run_id: str) -> None:
        self.expect(run_id not in self._sent, f"run {run_id} was sent twice")
        self._sent.add(run_id)

    def durable(self, session_id: str, position: int, what: str) -> None:
        there = len(self.journals.events(session_id)) - 1
        self.expect(position <= there, f"{what} of {session_id} was told at {position}, and {there} is durable")

    def _new_id(self) -> str:
        self._ids += 1
        return f"h{self._number}-{self._ids}"

    async def _sync(self, journal: MemoryJournal) -> None:
        await asyncio.sleep(self.random.choice([0, 0, 0.001, 0.02, 0.3]) * self.random.random())
        if self._faults and not self.calm and self.random.random() < 0.02:
            raise JournalWriteError("the disk is drawn to fail", errno=5, poisoned=self.random.random() < 0.5)

    def _spawn(self, work: Coroutine[Any, Any, Any], name: str) -> "asyncio.Task[Any]":
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _between(self, session_id: str, after: int, upto: int) -> Following:
        events = self.journals.events(session_id)
        return in_stretches(event for event in events if after < event.seq <= upto and event.type not in UNTOLD)

    def _opened(self, session_id: str) -> OpenSession | None:
        return self.kernel.opened(session_id)

    # ------------------------------------------------------------ its life

    async def main(self) -> None:
        loop, random = asyncio.get_running_loop(), self.random
        lanes: dict[str, Lane] = {}
        registry = BackendRegistry()

        async def build(context: BackendContext) -> Backend:
            await asyncio.sleep(random.choice([0, 0.1]))
            if random.random() < 0.03 and not self.calm:
                raise RuntimeError("drawn not to be built")
            return Backend(self, context)

        registry.register("fake", build)
        lifecycle = Lifecycle()
        self.kernel: RuntimeKernel
        messages = QueuedMessages(self._opened, self._new_id)
        self.interactions = JournalInteractions(self._opened, lifecycle=lifecycle)
        self.journals.watch = lambda session, event: lanes[session.session_id].observed(session, event)
        self.kernel = RuntimeKernel(
            journals=self.journals,
            backends=registry,
            interaction_authority=self.interactions,
            message_authority=messages,
            lifecycle=lifecycle,
            new_id=self._new_id,
            now=lambda: BEGAN + int(loop.time() * 1000),
            deadlines=DEADLINES,
            keep_open=random.choice([0, 1, 32]),
        )
        floor = Floor(
            kernel=self.kernel,
            messages=messages,
            between=self._between,
            host_epoch="epoch",
            new_id=self._new_id,
            spawn=self._spawn,
            draining=lambda: self._draining,
        )
        lanes.update({session_id: Lane(session_id, floor) for session_id in self.sessions})
        self.lanes = lanes
        await asyncio.gather(*(lane.next() for lane in lanes.values()))
        readers = [Reader(self, random.choice(list(lanes.values())), number) for number in range(random.randrange(4))]
        reading = [self._spawn(self._late(reader.read), "read") for reader in readers]
        asking = [self._spawn(self._late(partial(self._ask, command)), command.operation) for command in self.commands]
        answering = self._spawn(self._answer_questions(), "answer")
        await asyncio.wait(asking, timeout=OVER)
        for task in asking:
            self.expect(task.done(), f"{task.get_name()} waits for ever")
        if self._last:
            self.calm = True
            await self._settle()
            await self._again()
        await self._drain()
        self.over = True
        for task in [*reading, answering]:
            task.cancel()
        await asyncio.gather(*reading, answering, return_exceptions=True)
        with suppress(JournalError):
            await self.kernel.aclose(source="host_shutdown")
        for lane in lanes.values():
            lane.finish("host_draining", "over")
        while self._tasks:
            await asyncio.wait(set(self._tasks), timeout=10.0)
            for task in self._tasks:
                task.cancel()

    async def _late(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        await asyncio.sleep(self.random.uniform(0, BUSY) if self.random.random() < 0.7 else 0)
        await work()

    async def _ask(self, command: Command) -> None:
        try:
            answer = await self._done(command)
        except HostError as error:
            command.refusals.append(error.code)
        except (JournalError, KernelClosed):
            pass  # it is asked again
        except RuntimeFailure as error:
            command.refusals.append(type(error).__name__)
        else:
            if not self.dead:
                self._hold(command, answer)

    def _hold(self, command: Command, answer: JsonObject) -> None:
        """The same again is answered the same: but for how the turn stands by now."""
        said = {key: value for key, value in answer.items() if key != "turn"}
        if "turn" in answer:
            said |= {key: answer["turn"][key] for key in ("turn_id",)}
        if command.answers:
            self.expect(
                said == command.answers[0], f"{command.operation} was answered {command.answers[0]}, then {said}"
            )
        command.answers.append(said)

    async def _done(self, command: Command) -> JsonObject:
        lane, asked = self.lanes[command.session_id], command.asked
        match command.operation:
            case "start":
                return await lane.start(asked)
            case "submit":
                return await lane.submit(asked, "client")
            case "retract":
                return await lane.retract(asked)
        # A stop is for the turn that runs when it is first asked for.
        if asked.get("turn") is None:
            root = lane.root
            if root is None:
                raise HostError("not_found", "nothing runs")
            asked["turn"] = root.turn_id, root.run_id
        mode = asked["mode"]
        turn_id, run_id = asked["turn"]
        answer = await lane.stop(turn_id, run_id, StopAsked(asked["stop_id"], "user", mode, asked["retract"]))
        self.expect(answer["turn"]["status"] in _OVER, f"{turn_id} was stopped and is {answer['turn']['status']}")
        # One that joined another stop has no event of its own, unless it takes something back.
        return answer if asked["retract"] else {"turn": answer["turn"]}

    async def _answer_questions(self) -> None:
        while not self.over:
            await asyncio.sleep(self.random.uniform(0.5, 3))
            for session_id in self.sessions:
                session = self.kernel.opened(session_id)
                if session is None:
                    continue
                for interaction_id in list(session.journal.state.interactions.pending):
                    try:
                        await self.interactions.answer(
                            session_id, interaction_id, {"kind": "question_answer", "answers": ["yes"]}
                        )
                    except (InteractionRefused, JournalError):
                        pass

    async def _settle(self) -> None:
        """Everything that waits is run, now that nothing new goes wrong."""
        for session_id, lane in self.lanes.items():
            until = asyncio.get_running_loop().time() + OVER
            while True:
                try:
                    async with self.kernel.session(session_id) as session:
                        rests = lane.root is None and not (
                            session.journal.state.queue.waiting or session.journal.state.admissions.open
                        )
                except JournalError:
                    rests = False
                if rests:
                    break
                self.expect(asyncio.get_running_loop().time() < until, f"{session_id} does not come to rest")
                if self.wrongs:
                    return
                await asyncio.sleep(1.0)

    async def _again(self) -> None:
        """Whatever was answered is answered the same for ever."""
        for command in self.commands:
            if command.answers:
                await self._ask(command)

    async def _drain(self) -> None:
        self._draining = True
        stops = [self._spawn(lane.end_with_host(), "end with host") for lane in self.lanes.values()]
        if stops:
            await asyncio.wait(stops, timeout=60.0)
        for task in stops:
            self.expect(task.done(), "a lane does not end with its host")


# ---------------------------------------------------------------- the story


def _wanted(random: Random, sessions: list[str]) -> list[Command]:
    commands = []
    for number in range(random.randint(2, 14)):
        session_id = random.choice(sessions)
        text = f"message {number}"
        operation = random.choice(["start", "start", "submit", "submit", "submit", "submit", "retract", "stop", "stop"])
        asked: Any
        if operation == "start":
            asked = TurnStart(session_id=session_id, turn_id=f"t{number}", content=text)
        elif operation == "submit":
            placement: Literal["current_turn", "next_turn"] = random.choice(["current_turn", "next_turn"])
            asked = TurnMessageSubmit(session_id=session_id, message_id=f"m{number}", content=text, placement=placement)
        elif operation == "retract":
            asked = QueueRetract(session_id=session_id, retract_id=f"r{number}")
        else:
            mode = random.choice(["immediate", "immediate", "after_step"])
            asked = {"stop_id": f"x{number}", "mode": mode, "retract": random.random() < 0.5}
        commands.append(Command(session_id, operation, asked))
    # Some ask for the same at the same time.
    for command in random.sample(commands, min(2, len(commands))):
        if command.operation != "stop":
            commands.append(Command(command.session_id, command.operation, command.asked))
    return commands


def simulate_host(seed: int) -> dict[str, list[Event]]:
    """The sessions' events at the end. Raises Broken, which tells what did not hold."""
    random = Random(seed)
    journals = MemoryJournals()
    sessions = [f"s{number}" for number in range(1, random.randint(1, 2) + 1)]
    for session_id in sessions:
        journals.create(session_id)
    commands = _wanted(random, sessions)
    lives = random.choice([1, 2, 2, 3])
    for number in range(lives):
        last = number == lives - 1
        world = HostWorld(random, number, journals, sessions, commands, last=last)
        journals = _live(world, seed + number, None if last else random.randint(1, 2_500))
        found = list(world.wrongs)
        for session_id in sessions:
            found += [f"{session_id}: {wrong}" for wrong in _wrongs(journals.events(session_id))]
            found += [f"{session_id}: {wrong}" for wrong in queue_wrongs(journals.events(session_id), commands)]
        if found:
            raise Broken("\n".join(found))
    return {session_id: journals.events(session_id) for session_id in sessions}


def _live(world: HostWorld, seed: int, crash_after: int | None) -> MemoryJournals:
    left = world.journals

    def crash() -> None:
        nonlocal left
        world.dead = True
        left = world.journals.crash(world.random)

    try:
        run(world.main(), seed, crash_after=crash_after, on_crash=crash)
    except Crashed:
        pass
    except AssertionError as error:
        raise Broken("\n".join([*world.wrongs, f"{type(error).__name__}: {error}"])) from error
    finally:
        world.dead = True
    return left


def _wrongs(events: list[Event]) -> list[str]:
    """A turn that was stopped before it began has no note of an abort."""
    stopped: set[str] = set()
    begun: set[str] = set()
    for event in events:
        if event.type == "turn/start":
            begun.add(event.data["turn_id"])
        elif event.type == "turn/stop_requested" and event.data["turn_id"] not in begun:
            stopped.add(event.data["turn_id"])
    never = [f"turn {turn_id} ended aborted and has 0 notes of an abort" for turn_id in stopped]
    return [wrong for wrong in wrongs(events) if wrong not in never]


def queue_wrongs(events: list[Event], commands: list[Command]) -> list[str]:
    """What is wrong with what was accepted, admitted and taken back in one session."""
    found: list[str] = []
    accepted: dict[str, Event] = {}
    gone: dict[str, str] = {}
    previous: str | None = None
    followups: list[int] = []
    for event in events:
        data = event.data
        if event.type == "message/accepted":
            accepted[data["message_id"]] = event
        elif event.type == "turn/admitted":
            if data["previous_root_turn_id"] != previous:
                found.append(f"{data['turn_id']} names {data['previous_root_turn_id']} and follows {previous}")
            previous = data["turn_id"]
            if data["input_digest"] != digest_of(data["input"]):
                found.append(f"{data['turn_id']} has another digest than its input")
            message_id = data["message_id"]
            if message_id in gone:
                found.append(f"{message_id} was admitted, and it was {gone[message_id]} before")
            gone[message_id] = "admitted"
            if (queued := accepted.get(message_id)) is not None:
                if {key: queued.data[key] for key in ("content",)} != data["input"]:
                    found.append(f"the input of {data['turn_id']} is not what was accepted")
                if queued.data["disposition"] == "followup":
                    followups.append(queued.seq)
        elif event.type == "user/message":
            message_id = data["message_id"]
            if gone.get(message_id, "admitted" if message_id in accepted else "") not in ("admitted",):
                found.append(f"{message_id} was said, and it was {gone.get(message_id)}")
            gone[message_id] = "said"
        for message_id in data.get("message_ids" if event.type == "message/retracted" else "retract", ()):
            if event.type in ("message/retracted", "turn/stop_requested") and message_id not in gone:
                gone[message_id] = "retracted"
    if followups != sorted(followups):
        found.append(f"follow-ups were admitted out of order: {followups}")
    ids = {data["message_id"] for data in (event.data for event in events) if "message_id" in data}
    turns = {event.data["turn_id"] for event in events if event.type == "turn/admitted"}
    for command in commands:
        if not command.answers or command.session_id != _session(events):
            continue
        if command.operation == "submit" and command.asked.message_id not in ids:
            found.append(f"{command.asked.message_id} was accepted and is not there")
        if command.operation == "start" and command.asked.turn_id not in turns:
            found.append(f"{command.asked.turn_id} was started and is not there")
    return found


def _session(events: list[Event]) -> str:
    session_id: str = events[0].data["session_id"]
    return session_id


__all__ = ["Broken", "simulate_host"]
