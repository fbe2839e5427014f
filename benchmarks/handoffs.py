"""A run that is handed over and a successor that goes on, again and again in one turn: what the events before it cost,
and what the handoffs before it do.

Three things are timed, with the session open and its file written without waiting for the disk, which `append.py`
measures: to hand over, from the asking to the seal, by the kernel alone and by the manager, which first plans for the
successor; to plan; to resume, up to the call of the backend. Events before the turn are of two kinds: those that no
model is told of, so that all sessions replay the same, and turns, which are replayed whole.
"""

import asyncio
import shutil
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path

from _bench import Report, Row, Settings, Target, middle, ratio, run, timed

from maka.journal import files
from maka.journal.events import Draft, JsonObject
from maka.journal.reader import JOURNAL
from maka.journal.store import FileStore
from maka.runtime.app import App
from maka.runtime.backends.base import BackendContext, SendInput
from maka.runtime.composition import RunComposition
from maka.runtime.continuation.safety import SafetyObservation
from maka.runtime.handoff.pause import HandoffPause
from maka.runtime.kernel.stream import TurnStream
from maka.runtime.opening import facts_of
from maka.runtime.session_events import SessionEvent
from maka.runtime.sessions import SessionManager

SESSION = "bench"
#: Handoffs that are measured one after the other, of each kind.
AT_ONCE = 5
_NUMBERS = count()
HASH = "sha256:" + "0" * 64
MADE = RunComposition(
    composer_id="bench",
    composer_revision="1",
    base_system_prompt_hash=HASH,
    tool_catalog_hash=HASH,
    tool_availability_hash=HASH,
    base_provider_options_hash=HASH,
)
#: What is timed, and what it is called.
WHAT = {
    "kernel": "hand over, by the kernel",
    "manager": "hand over, with its plan",
    "plan": "plan a successor",
    "resume": "resume, up to the backend",
}
FLAT = Target(high=1.5)
#: Case → seconds, one for each round.
Figures = dict[str, list[float]]


class Inspector:
    async def inspect_continuation_safety(self, session_id: str) -> SafetyObservation:
        return SafetyObservation(
            workspace_identity="workspace", background_operations_settled=True, available_tool_names=()
        )


class Standing:
    """A backend that does nothing but come to step boundaries."""

    #: When the newest of them was called.
    called = 0.0

    def __init__(self, context: BackendContext) -> None:
        self._context = context
        self._stopped = False

    async def prepare_run_composition(self, run_id: str, turn_id: str) -> None:
        await self._context.record_run_composition(run_id, MADE)

    async def send(self, input: SendInput) -> AsyncIterator[SessionEvent]:
        Standing.called = time.perf_counter()
        if input.continuation is None:
            await self.prepare_run_composition(input.run_id, input.turn_id)
        while await input.handoff_boundary() == "continue":
            if self._stopped:
                yield SessionEvent("complete", "e", input.turn_id, 0, {"stop_reason": "user_stop"})
                return
            await asyncio.sleep(0)

    async def stop(self, reason: str, mode: str) -> None:
        self._stopped = True

    async def dispose(self) -> None:
        self._stopped = True


# ---------------------------------------------------------------- the sessions


def manager(root: Path) -> SessionManager:
    app = App(
        backends={"standing": Standing},
        default_backend="standing",
        permission_mode="bypass",
        safety_inspector=Inspector(),
    )
    return SessionManager(root, app=app)


def untold(events: int) -> Iterator[Draft]:
    """So many events that no model is told of."""
    for number in range(events):
        yield Draft("session/updated", {"patch": {"name": f"name {number}"}})


def turns(events: int, cwd: str) -> Iterator[Draft]:
    """So many events of turns, each of them a message and its end."""
    for number in range(events // 4):
        ids = {"turn_id": f"turn-{number}", "run_id": f"run-{number}"}
        opened = {**ids, "invocation_id": f"run-{number}"}
        header = {**opened, "backend": "standing", "model": "", "cwd": cwd}
        header |= {"permission_mode": "bypass", "created_at": 0, "root": {"kind": "user"}}
        asked = [{"kind": "text", "text": "What does the next page say, and what follows from it? " * 4}]
        yield Draft("turn/start", {**opened, "turn": number + 1, "run": header})
        yield Draft("user/message", {**ids, "message_id": f"m-{number}", "source": {"kind": "user"}, "content": asked})
        yield Draft("turn/end", {**ids, "reason": {"kind": "completed"}})
        yield Draft("run/settled", {"run_id": f"run-{number}"})


async def prepared(root: Path, history: list[Draft], handoffs: int) -> None:
    """A session with this history, and a turn that was handed over so many times and waits for its successor."""
    root.mkdir()
    async with manager(root) as sessions:
        await sessions.create(session_id=SESSION, cwd=root)
    with FileStore(root).open(SESSION) as journal:
        for draft in history:
            journal.append(draft)
        journal.flush()
    async with manager(root) as sessions:
        reading = await begun(sessions.send(SESSION, "Go on until it is done."))
        await sessions.hand_over(SESSION)
        await reading
        for _ in range(handoffs - 1):
            planned = await sessions.plan_safe_boundary_continuation(SESSION, purpose="handoff")
            reading = await begun(sessions.resume_safe_boundary_continuation(planned))
            await sessions.hand_over(SESSION)
            await reading


async def begun(stream: TurnStream) -> "asyncio.Task[None]":
    """Somebody reads it, and its backend was called."""

    async def read() -> None:
        async for _ in stream:
            pass

    Standing.called = 0.0
    reading = asyncio.ensure_future(read())
    while not Standing.called:
        if reading.done():
            reading.result()
        await asyncio.sleep(0)
    return reading


# ---------------------------------------------------------------- what is measured


async def handed_on(root: Path) -> dict[str, float]:
    """Seconds of each step of a handoff, of ``AT_ONCE`` of them. The turn waits for its successor before and after."""
    took: dict[str, list[float]] = {"plan": [], "resume": [], "manager": [], "kernel": []}
    async with manager(root) as sessions, sessions.kernel.session(SESSION):
        await sessions.kernel.conversation(SESSION)
        for number in range(2 * AT_ONCE):
            start = time.perf_counter()
            planned = await sessions.plan_safe_boundary_continuation(SESSION, purpose="handoff")
            took["plan"].append(time.perf_counter() - start)
            start = time.perf_counter()
            reading = await begun(sessions.resume_safe_boundary_continuation(planned))
            took["resume"].append(Standing.called - start)
            start = time.perf_counter()
            if number % 2:
                await sessions.hand_over(SESSION)
                took["manager"].append(time.perf_counter() - start)
            else:
                await by_the_kernel(sessions)
                took["kernel"].append(time.perf_counter() - start)
            await reading
    return {name: statistics.median(seconds) for name, seconds in took.items()}


async def by_the_kernel(sessions: SessionManager) -> None:
    """Hands over what runs, and looks at nothing else."""
    kernel, number = sessions.kernel, next(_NUMBERS)
    run_id, opened = kernel.running(SESSION), kernel.opened(SESSION)
    assert run_id is not None
    assert opened is not None
    turn = opened.journal.state.turns.by_run(run_id)
    assert turn is not None
    names = ("handoff_id", "successor_run_id", "successor_invocation_id", "claim_id")
    ids = {name: f"{name}-{number}" for name in names}
    pause = HandoffPause(host_epoch="bench", root_run_id=next(iter(turn.run_ids)), **ids)
    request = kernel.request_run_handoff(SESSION, run_id, pause)
    assert request is not None
    assert await request.ready
    assert request.commit()
    assert await request.sealed


def measure(settings: Settings) -> Report:
    # Nothing waits for the disk.
    files.RealFs.sync = staticmethod(lambda fd: None)  # type: ignore[method-assign]
    few, many, long = 10, settings.size(10_000, 40), settings.size(64, 4)
    place = settings.place
    histories: dict[str, tuple[list[Draft], int]] = {
        "few": (list(untold(few)), 1),
        "many": (list(untold(many)), 1),
        "turns": (list(turns(many, str(place))), 1),
        "short chain": ([], 2),
        "long chain": ([], long),
    }
    for name, (history, handoffs) in histories.items():
        asyncio.run(prepared(place / name, history, handoffs))
    messages = len(replayed(place / "turns"))
    figures: Figures = {}
    for number in range(settings.rounds + 1):
        for name in histories:
            # A session that was handed over before has that many handoffs more.
            for step, seconds in asyncio.run(handed_on(copied(place, name, number))).items():
                if number:
                    figures.setdefault(f"{name}: {step}", []).append(seconds)
        seconds = timed(lambda: facts_of(FileStore(place / "turns").path(SESSION)))
        if number:
            figures.setdefault("read", []).append(seconds)
    rows = [
        _row(figures, f"{what}, {many:,} events before it", f"many: {step}", f"{few}", f"few: {step}", FLAT)
        for step, what in WHAT.items()
    ]
    for step, what in WHAT.items():
        over = f"{what}, over {messages:,} replayed messages"
        if step == "kernel":
            rows.append(_row(figures, over, f"turns: {step}", f"{few} events", f"few: {step}", FLAT))
        else:
            rows.append(_row(figures, over, f"turns: {step}", "reading its journal", "read", Target(high=0.25)))
    for step, what in WHAT.items():
        deep, target = f"{what}, {long} handoffs before it in its turn", FLAT if step == "kernel" else Target()
        rows.append(_row(figures, deep, f"long chain: {step}", "2", f"short chain: {step}", target))
    note = "Who plans lists the runs of the boundary, and who resumes writes them down: that grows with the chain."
    return Report("A turn that is handed over and goes on", rows, [note])


def replayed(root: Path) -> list[JsonObject]:
    facts = facts_of(root / "sessions" / SESSION / JOURNAL)
    assert facts.state.runs.newest is not None
    return list(facts.conversation.replay(facts.state.runs.newest).messages)


def copied(place: Path, name: str, number: int) -> Path:
    root = place / f"{name} {number}"
    shutil.copytree(place / name, root)
    return root


def _row(figures: Figures, what: str, ours: str, against: str, baseline: str, target: Target | None = None) -> Row:
    def shown(case: str) -> str:
        return f"{1e6 * middle(figures, case):,.0f} µs"

    return Row(what, shown(ours), f"{against}: {shown(baseline)}", ratio(figures, ours, baseline), target or Target())


if __name__ == "__main__":
    run(__doc__, measure)
