"""The agent of ``support.lives``, whose runs are handed over from process to process, and what has to hold of that.

A life that hands over says how many steps are left: ``hand:4``. One whose turn ends before that says how it has ended.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any, Final

import attrs

import maka
from maka.runtime.app import App
from maka.runtime.backends.base import Backend, BackendContext, Boundary, SendInput, StopMode, StopReason
from maka.runtime.backends.loop import loop_backend
from maka.runtime.errors import ContinuationRevalidationError
from maka.runtime.kernel.stream import TurnStream
from maka.runtime.session_events import SessionEvent
from maka.runtime.sessions import SessionManager

from . import lives
from .composed import composed
from .lives import SESSION, Doing, Model, Script, Told, asked_for, assert_once, hold

#: What a turn is for that is handed over.
GOAL: Final = {"kind": "goal", "goal_id": "goal-1"}
#: How a handoff stands that may be given up or go on.
WAITS: Final = ("pending", "claimed")
_TERMINAL: Final = ("turn/end", "handoff/pause")
#: What is about a run and not in it.
_ABOUT: Final = ("run/", "interaction/", "continuation/claim", "tool/outcome", "session/")


class Handed(lives.Place):
    """The place of an agent whose runs are handed over. While somebody is to hand one over ``near`` is set where it
    comes to the boundary at which that is to happen, and its backend goes up to that once ``asked`` is set.
    """

    lives = "support.handing:live"
    resting = ("claim_indeterminate", "pending_handoff", "active_plan")

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.near, self.asked = asyncio.Event(), asyncio.Event()
        self.asked.set()

    def app(self, script: Script) -> App:
        def build(context: BackendContext) -> Backend:
            made: Any = Own(self, script, context) if script.own else None
            if made is None:
                made = loop_backend(Model(self, script), handoff=True)(context)
            return Told(_Near(made, self, script.behind), self)

        return attrs.evolve(super().app(script), backends={"loop": build})

    async def forward(self, manager: SessionManager, rerun: Collection[Any] = ()) -> str:
        """A handoff whose successor has not begun, or nobody knows how far it came, goes first."""
        view = await manager.read(SESSION)
        waiting = [row["run_id"] for row in view.handoffs() if row["state"] in WAITS]
        claims = [row for row in view.continuations() if row["state"] == "started_indeterminate"]
        doubted = [claim["source"]["run_id"] for claim in claims if claim["purpose"] == "handoff"]
        if not waiting and not doubted:
            return await super().forward(manager, rerun)
        planned = await manager.plan_safe_boundary_continuation(
            SESSION, source_run_id=[*waiting, *doubted][0], purpose="handoff"
        )
        try:
            return f"handoff {await lives.forward(manager, planned)}"
        except ContinuationRevalidationError as error:
            return f"handoff {error.code}"

    # ------------------------------------------------------------ what tests look at

    @property
    def handoffs(self) -> list[str]:
        """How each handoff stands."""
        return [row["state"] for row in maka.inspect(self.journal).handoffs()]

    @property
    def execution(self) -> dict[str, Any]:
        """The row of the newest turn."""
        view = maka.inspect(self.journal)
        row = view.execution(view.turns()[-1]["turn_id"])
        assert row is not None
        return row

    @property
    def plan(self) -> str | None:
        """How the execution of the one plan stands."""
        [row] = maka.inspect(self.journal).plans()
        status: str | None = row["execution"]["status"]
        return status

    @property
    def done(self) -> list[int]:
        """What was done outside, in order."""
        return [noted["n"] for noted in self.noted("effects")]

    @property
    def kept(self) -> bytes:
        """All but a torn tail, of which nothing stays."""
        raw = self.raw
        torn = [finding.offset for finding in maka.inspect(self.journal).findings if finding.code == "torn_tail"]
        return raw[: torn[0]] if torn else raw

    # ------------------------------------------------------------ what holds

    def assert_sound(self, *, runs: int = 1, verdicts: Collection[str] = ("healthy",)) -> None:
        super().assert_sound(runs=runs, verdicts=verdicts)
        events = self.events
        ends = [event["data"]["run_id"] for event in events if event["type"] in _TERMINAL]
        assert_once("terminal fact of a run", ends)
        opened = Counter(data["turn_id"] for data in self.data("user/message") if data["source"]["kind"] == "user")
        assert opened == Counter(data["turn_id"] for data in self.data("turn/start"))
        for turn_id in opened:
            steps = [data["step"] for data in self.data("step/start") if data["turn_id"] == turn_id]
            assert steps == [*range(1, len(steps) + 1)], f"the steps of turn {turn_id} are {steps}"
        limits = {data["turn_id"]: data["run"].get("max_steps") for data in self.data("turn/start")}
        claims = {data["claim_id"]: data for data in self.data("continuation/claim")}
        for pause in events:
            if pause["type"] == "handoff/pause":
                _assert_sealed(pause, events, limits)
                if (claim := claims.get(pause["data"]["claim_id"])) is not None:
                    _assert_claimed(pause, claim)

    def assert_asked_once(self) -> None:
        """No request was made twice, and no tool was told to do the same twice."""
        assert_once("request", [json.dumps(noted["messages"]) for noted in self.noted("requests")])
        assert_once("effect", self.done)


def _assert_sealed(pause: dict[str, Any], events: list[dict[str, Any]], limits: dict[str, int | None]) -> None:
    """Nothing of the run behind its pause, and the steps that were left are what its turn had left."""
    data, seq = pause["data"], pause["seq"]
    behind = [
        event["type"]
        for event in events[seq + 1 :]
        if event["data"].get("run_id") == data["run_id"] and not event["type"].startswith(_ABOUT)
    ]
    assert behind == [], f"run {data['run_id']} was sealed, and then"
    limit = limits.get(data["turn_id"])
    made = [event for event in events[:seq] if event["type"] == "step/start"]
    steps = sum(event["data"]["turn_id"] == data["turn_id"] for event in made)
    if data["turn_id"] in limits:
        assert data["remaining_steps"] == (None if limit is None else limit - steps)
    assert not pause.get("more"), "a pause is a batch of its own"
    assert not events[seq - 1].get("more"), "a pause is a batch of its own"


def _assert_claimed(pause: dict[str, Any], claim: dict[str, Any]) -> None:
    """The successor is the one that the pause has reserved, and it goes on from there."""
    data, target = pause["data"], claim["target_run"]
    wanted = {
        "run_id": data["successor_run_id"],
        "invocation_id": data["successor_invocation_id"],
        "turn_id": data["turn_id"],
        "max_steps": data["remaining_steps"],
    }
    assert {key: target.get(key) for key in wanted} == wanted
    assert (claim["purpose"], claim["boundary_digest"]) == ("handoff", pause["sum"])
    source = {key: claim["source"][key] for key in ("run_id", "high_water")}
    assert source == {"run_id": data["run_id"], "high_water": pause["seq"]}


# ---------------------------------------------------------------- backends


class _Near:
    """A backend whose boundary number ``behind``, from 0, waits until it is asked, where somebody is to ask."""

    def __init__(self, backend: Any, place: Handed, behind: int) -> None:
        self._backend = backend
        self._place = place
        self._behind = behind
        self.stop = backend.stop
        self.dispose = backend.dispose
        self.prepare_run_composition = backend.prepare_run_composition

    def send(self, input: SendInput) -> Any:
        come, place, anchor = 0, self._place, input.head_anchor
        place.note("inputs", max_steps=input.max_steps, text=input.text, anchor=anchor and anchor["message_id"])

        async def boundary(signal: asyncio.Event | None = None, remaining: int | None = None) -> Boundary:
            nonlocal come
            come += 1
            if come == self._behind + 1 and not place.asked.is_set():
                place.near.set()
                await place.asked.wait()
            return await input.handoff_boundary(signal, remaining)

        def wanted() -> bool:
            return not place.asked.is_set() or input.handoff_wanted()

        return self._backend.send(attrs.evolve(input, handoff_boundary=boundary, handoff_wanted=wanted))


class Own:
    """A backend that is no loop: it does what that does, as far as it is needed here."""

    def __init__(self, place: Handed, script: Script, context: BackendContext) -> None:
        self._place = place
        self._script = script
        self._context = context
        self._stopping = asyncio.Event()

    async def prepare_run_composition(self, run_id: str, turn_id: str) -> None:
        await self._context.record_run_composition(run_id, composed())

    async def send(self, input: SendInput) -> AsyncIterator[SessionEvent]:
        def event(kind: str, **data: Any) -> SessionEvent:
            return SessionEvent(kind, self._context.new_id(), input.turn_id, self._context.now(), data)

        await self.prepare_run_composition(input.run_id, input.turn_id)
        left, script = input.max_steps, self._script
        while left != 0 and not self._stopping.is_set():
            if await input.handoff_boundary(self._stopping, left) == "pause":
                return
            left = None if left is None else left - 1
            yield event("step_start")
            messages = input.history
            self._place.note("requests", messages=messages)
            await hold(script, "request" if messages[-1]["role"] == "user" else "between")
            asked = asked_for(messages)
            content: list[dict[str, Any]] = [{"kind": "text", "text": "I see to it."}]
            call = {"kind": "tool_call", "call_id": f"c{asked}", "name": "effect", "arguments": f'{{"n": {asked}}}'}
            more = asked < script.asks
            stop = "tool_use" if more else "end_turn"
            message_id = self._context.new_id()
            content += [call] if more else []
            yield event("assistant_message", message_id=message_id, content=content, stop_reason=stop)
            if more:
                operation_id = self._context.new_id()
                yield event("tool_start", call_id=f"c{asked}", name="effect", operation_id=operation_id)
                await hold(script, "before_effect")
                self._place.note("effects", operation_id=operation_id, n=asked)
                await hold(script, "effect")
                said = [{"kind": "text", "text": f"done {asked}"}]
                yield event("tool_result", call_id=f"c{asked}", state="ok", content=said)
            yield event("step_end")
            if not more:
                break
        ended = "user_stop" if self._stopping.is_set() else "end_turn" if left != 0 or not more else "step_limit"
        yield event("complete", stop_reason=ended)

    async def stop(self, reason: StopReason, mode: StopMode) -> None:
        self._stopping.set()

    async def dispose(self) -> None:
        self._stopping.set()


# ---------------------------------------------------------------- lives


def live(directory: str, steps: list[str], values: dict[str, Any]) -> None:
    """Runs in a process of its own."""
    lives.run(Handed(Path(directory)), Script(**values), steps, STEPS)


async def hand_over(manager: SessionManager, place: Handed, stream: TurnStream) -> str:
    """Reads the turn, and hands it over where its run comes near the boundary."""
    place.near.clear()
    place.asked.clear()
    reading = asyncio.ensure_future(ended(stream))
    near = asyncio.ensure_future(place.near.wait())
    await asyncio.wait({reading, near}, return_when=asyncio.FIRST_COMPLETED)
    near.cancel()
    handing = asyncio.ensure_future(manager.hand_over(SESSION)) if place.near.is_set() else None
    await asyncio.sleep(0)  # it has asked
    place.asked.set()
    if handing is None:
        return await reading
    came = await asyncio.gather(handing, reading, return_exceptions=True)
    failed = [error for error in came if isinstance(error, BaseException)]
    if failed:
        raise failed[-1]
    assert not isinstance(came[0], BaseException)
    return str(came[0]["remaining_steps"])


async def ended(stream: TurnStream) -> str:
    async for _ in stream:
        pass
    return str((stream.reason or {}).get("kind"))


def _place(doing: Doing) -> Handed:
    assert isinstance(doing.place, Handed)
    return doing.place


async def _hand(doing: Doing) -> str:
    stream = doing.manager.send(SESSION, doing.message(), max_steps=doing.script.max_steps, root=GOAL)
    return await hand_over(doing.manager, _place(doing), stream)


async def _onward(doing: Doing) -> str:
    doing.planned = await doing.manager.plan_safe_boundary_continuation(
        SESSION, source_run_id=doing.script.run_id, purpose="handoff"
    )
    return ",".join(doing.planned.rejection_reasons) or doing.planned.disposition


async def _hand_on(doing: Doing) -> str:
    """``resume``, and hands over again."""
    assert doing.planned is not None
    stream = doing.manager.resume_safe_boundary_continuation(doing.planned)
    return await hand_over(doing.manager, _place(doing), stream)


async def _abandon(doing: Doing) -> str:
    *_, newest = ["none", *(row["handoff_id"] for row in (await doing.manager.read(SESSION)).handoffs())]
    events = await doing.manager.abandon_handoff(SESSION, newest, "nobody comes")
    return ",".join(event.type for event in events)


async def _stop(doing: Doing) -> str:
    """A stop from outside of any turn, of a session that is opened for it."""
    await doing.manager.pending(SESSION)
    await doing.manager.stop(SESSION, source="somebody")
    return "done"


async def _propose(doing: Doing) -> str:
    plans, steps = doing.manager.plans, [{"id": "1", "title": "see to it", "description": "See to it."}]
    row = await plans.propose(SESSION, turn_id="earlier", title="work", steps=steps)
    approved = await plans.approve(SESSION, row["proposal_id"], expected_revision=row["revision"])
    return str(approved["execution"]["status"])


_HANDING: Final[dict[str, lives.Step]] = {
    "hand": _hand,
    "onward": _onward,
    "hand_on": _hand_on,
    "abandon": _abandon,
    "stop": _stop,
    "propose": _propose,
}
STEPS: Final[dict[str, lives.Step]] = {**lives.STEPS, **_HANDING}


__all__ = ["GOAL", "STEPS", "WAITS", "Handed", "Own", "ended", "hand_over", "live"]
