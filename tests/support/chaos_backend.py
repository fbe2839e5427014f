"""A backend that does whatever a backend should not, drawn from a seed; it knows what may be done with it and says so.

``Watch`` is what all of a simulated process share: which hazards may happen, and what was found wrong.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any, Final

from maka.journal.events import JsonObject
from maka.runtime.backends.base import BackendContext, SendInput, StopMode, StopReason
from maka.runtime.composition import RunComposition
from maka.runtime.errors import InteractionRefused
from maka.runtime.model import ModelError
from maka.runtime.session_events import SessionEvent

#: What may go wrong in a process; each is drawn for it or not.
HAZARDS: Final = (
    "activation fails",
    "another agent",
    "archive",
    "bind fails",
    "build fails",
    "build is slow",
    "close fails",
    "close hangs",
    "close is slow",
    "deaf",
    "dispose fails",
    "dispose hangs",
    "dispose is slow",
    "ignores dispose",
    "ignores stop",
    "invalid event",
    "late events",
    "messages fail",
    "no complete",
    "lookup fails",
    "open fails",
    "preparation fails",
    "raises",
    "release fails",
    "request refused",
    "respond fails",
    "stop fails",
    "stop hangs",
    "stop is slow",
    "sync fails",
    "two completes",
    "wrong pause",
)
#: Hazards that meet each other.
THEMES: Final = tuple(
    frozenset(theme)
    for theme in (
        ("stop fails", "stop hangs", "stop is slow", "ignores stop", "dispose fails", "dispose hangs", "late events"),
        ("stop fails", "ignores stop", "dispose is slow", "ignores dispose", "deaf"),
        ("close fails", "close hangs", "close is slow", "release fails", "messages fail", "respond fails"),
        ("close fails", "stop fails", "messages fail", "sync fails"),
        ("sync fails", "open fails", "stop is slow", "late events"),
        ("activation fails", "build fails", "build is slow", "bind fails", "messages fail"),
        ("invalid event", "no complete", "raises", "two completes", "late events", "deaf"),
        ("another agent", "lookup fails", "preparation fails", "wrong pause"),
    )
)
#: The text of a turn in which the backend behaves.
PROBE: Final = "behave"
_QUESTION: Final = {"id": "q", "question": "?", "options": [{"label": "yes"}, {"label": "no"}]}


class ChaosError(Exception):
    """Something failed, as it was to."""


def composed(**values: str) -> RunComposition:
    """What a run of these backends is made of."""
    same = "sha256:" + "0" * 64
    made = {
        "composer_id": "test.chaos",
        "composer_revision": "1",
        "base_system_prompt_hash": same,
        "tool_catalog_hash": same,
        "tool_availability_hash": same,
        "base_provider_options_hash": same,
    }
    return RunComposition(**{**made, **values})  # type: ignore[arg-type]


class Watch:
    """One simulated process as seen from outside. ``hazards``: those that may happen in it."""

    def __init__(self, random: Random, hazards: frozenset[str]) -> None:
        self.random = random
        self.hazards = hazards
        self.wrongs: list[str] = []
        #: The process has crashed: what happens now counts for nothing.
        self.dead = False
        #: From now on nothing new goes wrong.
        self.quiet = False
        self.closing = False
        #: Sessions in which a sync or an opening failed, a disposal failed; runs that were asked to stop.
        self.journal_failed: set[str] = set()
        self.undisposed: set[str] = set()
        self.stopping: set[str] = set()
        #: Runs that turns were handed over to, and runs whose composition is on record and their source's.
        self.successors: set[str] = set()
        self.prepared: set[str] = set()
        #: Sends that were entered and have not ended: session, run.
        self.sending: list[tuple[str, str]] = []
        self.sent: set[str] = set()
        self.happened: Counter[str] = Counter()
        #: What cleaning up after a run has failed with.
        self.failures: dict[str, list[ChaosError]] = {}

    def may(self, hazard: str, chance: float) -> bool:
        if self.dead or self.quiet or hazard not in self.hazards or self.random.random() >= chance:
            return False
        self.happened[hazard] += 1
        return True

    def enter(self, session_id: str, input: SendInput, usable: bool) -> None:
        """``send`` of a run is entered; ``usable``: its backend neither stops, nor failed to, nor was disposed."""
        run_id = input.run_id
        if any(session == session_id for session, _ in self.sending):
            self.wrong(f"sends of {session_id} overlap: {run_id} and {self.sending}")
        if not usable:
            self.wrong(f"{run_id} was sent on a backend that still stops, failed to, or was disposed")
        if run_id in self.stopping:
            self.wrong(f"{run_id} was sent although it had been asked to stop")
        if run_id in self.sent:
            self.wrong(f"{run_id} was sent twice")
        if run_id in self.successors - self.prepared:
            self.wrong(f"{run_id} was sent, and nobody knows whether it is the same agent")
        self.sending.append((session_id, run_id))
        self.sent.add(run_id)

    def leave(self, session_id: str, run_id: str) -> None:
        self.sending.remove((session_id, run_id))

    def failing(self, run_id: str, what: str) -> ChaosError:
        """An error of which those who wait for the run have to be told."""
        error = ChaosError(what)
        self.failures.setdefault(run_id, []).append(error)
        return error

    def wrong(self, what: str) -> None:
        if not self.dead:
            self.wrongs.append(f"at {asyncio.get_running_loop().time():.3f}: {what}")


class ChaosBackend:
    """Implements Backend. ``stop_calls`` holds reason and mode of each call."""

    def __init__(self, watch: Watch, context: BackendContext) -> None:
        self.session_id = session_id = context.session_id
        self.stop_calls: list[tuple[StopReason, StopMode]] = []
        self.disposals = 0
        self.stop_failed = False
        #: What its stop and its disposal have raised, and when.
        self.raised: list[tuple[float, ChaosError]] = []
        self._watch = watch
        self._context = context
        self._stopping = asyncio.Event()
        self._stopped = self._after_step = self._disposed = False
        self._stops = 0
        self._asking = False
        self._answers: list[JsonObject] = []
        self._sleepers: dict[asyncio.Future[None], None] = {}
        if session_id in watch.undisposed:
            watch.wrong(f"a backend was built for {session_id}, where one could not be disposed")

    async def prepare_run_composition(self, run_id: str, turn_id: str) -> None:
        watch = self._watch
        if watch.may("preparation fails", 0.2):
            raise ChaosError("prepare")
        if watch.may("preparation fails", 0.2):
            return
        changed = run_id in watch.successors and watch.may("another agent", 0.3)
        made = composed(tool_catalog_hash="sha256:" + "1" * 64) if changed else composed(composer_revision=run_id)
        await self._context.record_run_composition(run_id, made)
        if not changed:
            watch.prepared.add(run_id)

    # ------------------------------------------------------------ stop, dispose, respond

    async def stop(self, reason: StopReason, mode: StopMode) -> None:
        self._stops += 1
        try:
            await self._stop(reason, mode)
        finally:
            self._stops -= 1

    async def _stop(self, reason: StopReason, mode: StopMode) -> None:
        watch, random = self._watch, self._watch.random
        if self.stop_failed:
            watch.wrong(f"stop of {self.session_id} was called again after it had failed")
        if self.disposals:
            watch.wrong(f"stop of {self.session_id} was called after dispose")
        self.stop_calls.append((reason, mode))
        if watch.may("stop fails", 0.3):
            if random.random() < 0.5:
                await asyncio.sleep(random.uniform(0, 1))
            self.stop_failed = True
            if random.random() < 0.5:
                self._told(mode)
            raise self._raising("stop")
        if watch.may("stop hangs", 0.2):
            if random.random() < 0.5:
                self._told(mode)
            await self._for_ever("stop_failed" if mode == "immediate" else "")
        if watch.may("stop is slow", 0.3):
            await asyncio.sleep(random.uniform(0, 1.5))
        self._told(mode)
        if random.random() < 0.2:
            # Some say that they have stopped only when they have; they may not wait for what a stop will answer.
            while not (self._disposed or self._asking) and any(one == self.session_id for one, _ in watch.sending):
                await self._pause(0.5)

    async def dispose(self) -> None:
        watch, random = self._watch, self._watch.random
        self.disposals += 1
        if self.disposals > 1:
            watch.wrong(f"a backend of {self.session_id} was disposed twice")
        if watch.may("dispose fails", 0.4):
            watch.undisposed.add(self.session_id)
            if random.random() < 0.5:
                self._give_up()
            raise self._raising("dispose")
        if watch.may("dispose hangs", 0.3):
            if random.random() < 0.5:
                self._give_up()
            try:
                await self._for_ever("")
            finally:
                watch.undisposed.add(self.session_id)
        if watch.may("dispose is slow", 0.4):
            await asyncio.sleep(random.uniform(0, 1.5))
        if not watch.may("ignores dispose", 0.3):
            self._give_up()

    async def respond_to_user_question(self, response: JsonObject) -> None:
        if self._watch.may("respond fails", 0.3):
            raise ChaosError("respond")
        self._answers.append(response)
        self._wake()

    def _raising(self, what: str) -> ChaosError:
        error = ChaosError(what)
        # Of two stops that fail the first counts.
        if what not in [str(earlier) for _, earlier in self.raised]:
            self.raised.append((asyncio.get_running_loop().time(), error))
        return error

    async def _for_ever(self, then: str) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            if then:
                setattr(self, then, True)

    def _told(self, mode: StopMode) -> None:
        if mode == "immediate":
            self._stopped = True
        else:
            self._after_step = True
        self._stopping.set()
        self._wake()

    def _give_up(self) -> None:
        self._disposed = True
        self._stopping.set()
        self._wake()

    def _wake(self) -> None:
        for future in self._sleepers:
            _wake(future)

    async def _pause(self, seconds: float | None) -> None:
        """So many seconds, or until something happens."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._sleepers[future] = None
        timer = None if seconds is None else loop.call_later(seconds, _wake, future)
        try:
            await future
        finally:
            del self._sleepers[future]
            if timer is not None:
                timer.cancel()

    # ------------------------------------------------------------ send

    def send(self, input: SendInput) -> AsyncIterator[SessionEvent]:
        stream = self._send(input)
        return _WithReady(stream) if self._watch.random.random() < 0.3 else stream

    async def _send(self, input: SendInput) -> AsyncIterator[SessionEvent]:
        self._enter(input)
        try:
            script = _Script(self._watch.random, input, self._context.new_id)
            acts = script.acts(self._watch)
            if input.run_id not in self._watch.successors:
                with suppress(ChaosError):
                    await self.prepare_run_composition(input.run_id, input.turn_id)
            obeys = not self._watch.may("ignores stop", 0.4)
            for act in acts:
                if self._is_over(obeys, script.step_open):
                    break
                if act == "pause":
                    await self._pause(self._watch.random.uniform(0, 2))
                elif act == "block":
                    while not self._is_over(obeys, step_open=False):
                        await self._pause(None)
                elif act == "ask":
                    await self._ask(input)
                elif act == "raise":
                    model = self._watch.random.random() < 0.3
                    raise ModelError("drawn", kind="provider_network") if model else ChaosError("send")
                elif act == "cancel":
                    raise asyncio.CancelledError
                elif act == "boundary":
                    said = await input.handoff_boundary(*self._boundary())
                    if said == "pause" and not self._watch.may("wrong pause", 0.5):
                        self._watch.happened["paused"] += 1
                        return
                elif act == "question":
                    yield script.question()
                    if self._watch.random.random() < 0.7 and not self._is_over(obeys, script.step_open):
                        await self._pause(self._watch.random.uniform(0, 3))
                elif act == "steer":
                    leases = input.pull_steering()
                    for lease in leases:
                        yield script.event("steering_message", message_id=lease.message_id, content=lease.content)
                        input.ack_steering([lease.lease_id])
                else:
                    for event in script.events(act):
                        yield event
            if self._is_over(obeys=True, step_open=False):
                if self._watch.may("raises", 0.2):
                    raise ChaosError("stopped")
                for event in script.stopped(late=self._watch.may("late events", 0.6)):
                    yield event
            elif not self._watch.may("no complete", 0.3):
                yield script.complete()
            if self._watch.may("two completes", 0.3):
                yield script.complete()
                yield script.event("text_delta", message_id="more", text="after the end")
        finally:
            try:
                if self._watch.may("deaf", 0.3):
                    await _deaf(self._watch.random.uniform(0, 2))
            finally:
                self._leave(input)

    def _boundary(self) -> tuple[asyncio.Event | None, int | None]:
        watch, random = self._watch, self._watch.random
        remaining: Any = random.choice([None, 1, 2, 5])
        if watch.may("invalid event", 0.1):
            remaining = random.choice([0, -1, True, "2"])
        return None if watch.may("ignores stop", 0.3) else self._stopping, remaining

    def _is_over(self, obeys: bool, step_open: bool) -> bool:
        return self._disposed or (obeys and (self._stopped or (self._after_step and not step_open)))

    def _enter(self, input: SendInput) -> None:
        self._watch.enter(self.session_id, input, not (self.stop_failed or self.disposals or self._stops))
        self._stopped = self._after_step = False
        self._stopping.clear()

    def _leave(self, input: SendInput) -> None:
        self._watch.leave(self.session_id, input.run_id)
        self._stopped = self._after_step = False
        self._wake()

    async def _ask(self, input: SendInput) -> None:
        self._asking = True
        try:
            if self._watch.random.random() < 0.5:
                await input.interactions.ask("question", {"questions": [_QUESTION]})
            else:
                request = {"call_id": "c", "name": "t", "arguments": "{}", "reason": "drawn"}
                await input.interactions.ask("permission", request)
        except InteractionRefused:
            pass
        finally:
            self._asking = False


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


async def _deaf(seconds: float) -> None:
    """Takes its time, whoever cancels it."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:
        try:
            await asyncio.sleep(end - loop.time())
        except asyncio.CancelledError:
            pass


class _WithReady:
    """A stream that hands out, beside the event that was asked for, those that it has already."""

    def __init__(self, stream: AsyncIterator[SessionEvent]) -> None:
        self._stream: Any = stream
        self._kept: list[SessionEvent] = []

    def __aiter__(self) -> "_WithReady":
        return self

    async def __anext__(self) -> SessionEvent:
        event: SessionEvent = await self._stream.__anext__()
        if event.__class__ is SessionEvent and event.kind == "text_delta":
            self._kept.append(SessionEvent("text_delta", event.id + "+", event.turn_id, event.ts, event.data))
        return event

    def ready(self) -> list[SessionEvent]:
        kept, self._kept = self._kept, []
        return kept

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Script:
    """What one run says, mostly in an order that the ledger takes."""

    def __init__(self, random: Random, input: SendInput, new_id: Callable[[], str]) -> None:
        self._random = random
        self._input = input
        self._new_id = new_id
        self._explicit = random.random() < 0.5
        self._message = new_id()
        self._calls: list[str] = []
        self.step_open = False
        self._events = 0

    def acts(self, watch: Watch) -> Sequence[str]:
        if self._input.text == PROBE:
            return ["text", "tool", "result", "text"]
        random, acts = self._random, []
        for _ in range(random.randint(1, 3)):
            if self._explicit:
                acts.append("step_start")
            for _ in range(random.randint(1, 4)):
                acts.append(random.choice(["delta", "delta", "text", "thinking", "usage", "tool", "retry", "pause"]))
                if acts[-1] == "tool":
                    acts += random.choice([["result"], ["pause", "result"], ["pause", "pause", "result"]])
                if random.random() < 0.15:
                    acts.append(random.choice(["ask", "question", "plan", "steer", "pause", "boundary"]))
            if self._explicit:
                acts.append("step_end")
            if random.random() < 0.8:
                acts.append("boundary")
        if random.random() < 0.35:
            acts.insert(random.randint(0, len(acts)), "block")
        for hazard, chance, act in (
            ("invalid event", 0.4, "invalid"),
            ("raises", 0.3, "raise"),
            ("raises", 0.1, "cancel"),
        ):
            if watch.may(hazard, chance):
                acts.insert(random.randint(0, len(acts)), act)
        return acts

    def event(self, kind: str, **data: Any) -> SessionEvent:
        self._events += 1
        return SessionEvent(kind, f"e{self._events}", self._input.turn_id, 1, data)

    def events(self, act: str) -> list[SessionEvent]:
        made: Callable[[], list[SessionEvent]] = getattr(self, f"_{act}")
        return made()

    def question(self) -> SessionEvent:
        return self.event("question_request", interaction_id=self._new_id(), questions=[_QUESTION])

    def complete(self) -> SessionEvent:
        reasons = ["end_turn", "end_turn", "end_turn", "step_limit", "max_tokens", "error", "odd"]
        probe = self._input.text == PROBE
        return self.event("complete", stop_reason="end_turn" if probe else self._random.choice(reasons))

    def stopped(self, *, late: bool) -> list[SessionEvent]:
        events = self._result() if late else []
        if late:
            events += self._delta()
        if self._random.random() < 0.5:
            events.append(self.event("abort", source="backend"))
        return [*events, self.event("complete", stop_reason="user_stop")]

    def _step_start(self) -> list[SessionEvent]:
        self.step_open = True
        return [self.event("step_start")]

    def _step_end(self) -> list[SessionEvent]:
        results = [event for _ in list(self._calls) for event in self._result()]
        self.step_open = False
        return [*results, self.event("step_end")]

    def _delta(self) -> list[SessionEvent]:
        return [self.event("text_delta", message_id=self._message, text="some text ")]

    def _thinking(self) -> list[SessionEvent]:
        return [self.event("thinking_delta", message_id=self._message, text="a thought ")]

    def _text(self) -> list[SessionEvent]:
        message, self._message = self._message, self._new_id()
        return [self.event("text_complete", message_id=message, text=f"said {message}")]

    def _usage(self) -> list[SessionEvent]:
        return [self.event("token_usage", input_tokens=1, output_tokens=2)]

    def _retry(self) -> list[SessionEvent]:
        return [self.event("provider_retry", attempt=1, delay=0.5, failure_class="provider_network")]

    def _plan(self) -> list[SessionEvent]:
        steps = [{"id": "1", "title": "do", "description": "it"}]
        return [self.event("plan_submitted", proposal_id=self._new_id(), revision=1, title="a plan", steps=steps)]

    def _tool(self) -> list[SessionEvent]:
        self._calls.append(self._new_id())
        self._message = self._new_id()
        return [self.event("tool_start", call_id=self._calls[-1], name="t", arguments="{}")]

    def _result(self) -> list[SessionEvent]:
        if not self._calls:
            return []
        state = self._random.choice(["ok", "ok", "error"])
        content = [{"kind": "text", "text": "done"}]
        return [self.event("tool_result", call_id=self._calls.pop(0), state=state, content=content)]

    def _invalid(self) -> list[Any]:
        foreign = SessionEvent("text_delta", "x", "another turn", 1, {"message_id": "m", "text": "x"})
        return [
            self._random.choice(
                [
                    "no event",
                    None,
                    foreign,
                    self.event("text_delta"),
                    self.event("nothing known"),
                    self.event("step_end"),
                    self.event("tool_result", call_id="never", state="ok", content=[]),
                    self.event("complete"),
                    self.event("question_request", interaction_id=5),
                ]
            )
        ]
