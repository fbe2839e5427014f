"""A durable agent turn: the user's message, 3 steps, 6 tool calls, in a session of 200 and in one of 2,000 turns.

Measured as bare events with the loop's barriers, and by the real loop with a model that plays a script and tools that
do nothing. The events are held against the `SQLiteSession` of the OpenAI Agents SDK storing the same items, each as it
comes (and, for information, together at the moments at which the loop waits for the disk). The loop is held against
the SDK's own loop, its `Runner`, with the same script and tools on a `SQLiteSession`; that commits four times a turn,
and after the tools have run, where this project waits for the disk six times. Without the SDK the same tables and
statements by sqlite3 stand in for `SQLiteSession`, and nothing for `Runner`.
"""

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, Protocol

import _peer
from _bench import Report, Row, Settings, Target, interleaved, middle, ratio, run, timed

from maka.journal.events import Draft
from maka.journal.store import FileStore
from maka.journal.writer import JournalWriter
from maka.runtime.conversation import Conversation
from maka.runtime.loop import Loop
from maka.runtime.scripted import Ask, Say, ScriptedModel, Tokens
from maka.runtime.tools import ToolContext, ToolOutput

Item = dict[str, Any]
PROSE = "The tests pass now; “größe” was read before it was set, so the buffer's first line was lost.\n    return n\n"


def text(size: int) -> str:
    return (PROSE * (size // len(PROSE) + 1))[:size]


ASKED, SAID, RESULT = text(400), text(900), text(2_000)
ARGUMENTS = {"path": "src/module.py", "text": text(300)}
#: So many calls has each of the three steps.
CALLS = (3, 3, 0)
#: Turns that are measured together.
FEW = 4


# ---------------------------------------------------------------- the same turn, three times


class Nothing:
    """A tool whose body does nothing."""

    name = "nothing"
    description = "for measurements"
    parameters: ClassVar[Item] = {
        "type": "object",
        "properties": {"path": {"type": "string"}, "text": {"type": "string"}},
        "required": ["path"],
    }
    recovery = "idempotent"
    parallel_safe = True

    async def execute(self, arguments: Item, context: ToolContext) -> ToolOutput:
        return ToolOutput.of(RESULT)


def script() -> list[list[Any]]:
    return [[Say(SAID), *[Ask("nothing", ARGUMENTS)] * calls, Tokens(9_000, 400)] for calls in CALLS]


def bare_turn(turn: int) -> Iterator[list[Draft]]:
    """The events of a turn; behind each list the loop waits for the disk."""
    ids = {"turn_id": f"{turn:032x}", "run_id": f"{turn:031x}a"}
    root = {"kind": "user"}
    header = {**ids, "invocation_id": f"{turn:031x}b", "backend": "loop", "model": "m", "cwd": "/", "root": root}
    header |= {"permission_mode": "ask", "created_at": 1_790_000_000_000}
    opened = {**ids, "invocation_id": header["invocation_id"], "turn": turn, "run": header}
    said = {"message_id": f"{turn:031x}c", **ids, "content": [{"kind": "text", "text": ASKED}], "source": root}
    due = [Draft("turn/start", opened), Draft("user/message", said)]
    arguments = json.dumps(ARGUMENTS, separators=(",", ":"))
    for step, calls in enumerate(CALLS, 1):
        here = {**ids, "step": step}
        due.append(Draft("step/start", here))
        if step == 1:
            tools = [{"name": Nothing.name, "description": Nothing.description, "parameters": Nothing.parameters}]
            asked = {"provider": "scripted", "model": "m", "tools": tools}
            due.append(Draft("request/header", {**here, "reason": "resume", "header": asked}))
        yield due
        blocks: list[Item] = [{"kind": "text", "text": SAID}]
        names = [f"call-{turn}-{step}-{index}" for index in range(calls)]
        for name in names:
            blocks.append({"kind": "tool_call", "call_id": name, "name": Nothing.name, "arguments": arguments})
        message = {**here, "message_id": f"{turn:029x}{step:03x}", "content": blocks, "stop_reason": "end_turn"}
        due = [Draft("assistant/message", {**message, "usage": {"input_tokens": 9_000, "output_tokens": 400}})]
        for name in names:
            call = {**here, "call_id": name, "operation_id": f"op-{name}", "name": Nothing.name}
            call["arguments_digest"] = sha256(arguments.encode()).hexdigest()
            due.append(Draft("tool/call", {**call, "recovery": Nothing.recovery}))
        if names:
            yield due
            due = []
        for name in names:
            result = {**here, "call_id": name, "operation_id": f"op-{name}", "state": "ok", "is_error": False}
            due.append(Draft("tool/result", {**result, "content": [{"kind": "text", "text": RESULT}]}))
        due.append(Draft("step/end", here))
    due.append(Draft("turn/end", {**ids, "reason": {"kind": "completed"}}))
    yield [*due, Draft("run/settled", {"run_id": ids["run_id"]})]


def items(turn: int) -> Iterator[list[Item]]:
    """The same turn as items of the SDK, together as the loop waits for the disk."""
    due: list[Item] = [{"role": "user", "content": ASKED}]
    arguments = json.dumps(ARGUMENTS)
    for step, calls in enumerate(CALLS, 1):
        yield due
        content = [{"type": "output_text", "text": SAID, "annotations": []}]
        message = {"type": "message", "id": f"msg-{turn}-{step}", "role": "assistant", "status": "completed"}
        due = [{**message, "content": content}]
        names = [f"call-{turn}-{step}-{index}" for index in range(calls)]
        for name in names:
            due.append({"type": "function_call", "call_id": name, "name": Nothing.name, "arguments": arguments})
        if names:
            yield due
            due = []
        due += [{"type": "function_call_output", "call_id": name, "output": RESULT} for name in names]
    yield due


# ---------------------------------------------------------------- who runs it


class Side(Protocol):
    """A session in which turns are run. ``size`` is what it takes on the disk, in bytes."""

    def fill(self, turns: int) -> None: ...
    async def turn(self) -> None: ...
    def size(self) -> int: ...


class Ours:
    """A session with its journal; ``fill`` makes it long, and syncs once."""

    def __init__(self, store: FileStore, session_id: str) -> None:
        data = {"format": 1, "session_id": session_id, "created_by": {"name": "bench", "version": "0"}, "cwd": "/"}
        data |= {"backend": "loop", "model": "m", "permission_mode": "ask", "tool_boundary": "t1_after_preflight_v1"}
        self.writer: JournalWriter = store.create(Draft("session/header", data))
        self.conversation = Conversation(store.read(session_id))
        self._turns = itertools.count(1)

    def fill(self, turns: int) -> None:
        for _ in range(turns):
            for drafts in bare_turn(next(self._turns)):
                for draft in drafts:
                    self.conversation.observe(self.writer.append(draft))
        self.writer.flush()

    async def turn(self) -> None:
        for drafts in bare_turn(next(self._turns)):
            if drafts[0].type == "turn/start":
                self.writer.append_batch(drafts[:2])
                drafts = drafts[2:]
            for draft in drafts:
                self.writer.append(draft)
            await self.writer.aflush()

    def size(self) -> int:
        return self.writer.head.offset


class Looping(Ours):
    """The real loop; its conversation and its request hold the whole history."""

    def __init__(self, store: FileStore, session_id: str) -> None:
        super().__init__(store, session_id)
        self._model = ScriptedModel(script(), repeat=True)
        self._loop = Loop(
            journal=self.writer,
            conversation=self.conversation,
            model=self._model,
            session_dir=self.writer.session_dir,
            tools=[Nothing()],
        )

    async def turn(self) -> None:
        outcome = await self._loop.run_turn(ASKED)
        assert outcome.reason == {"kind": "completed"}
        # It keeps what it was asked, and each request holds the history.
        self._model.requests.clear()


Add = Callable[[Sequence[Item]], Awaitable[None]]


class Items:
    """Items stored by ``add`` (an ``add_items``), one group for each call of it."""

    def __init__(self, path: Path, add: Add, *, single: bool) -> None:
        self._path, self._add, self._single = path, add, single
        self._turns = itertools.count(1)

    def fill(self, turns: int) -> None:
        async def main() -> None:
            await self._add(
                [item for turn in itertools.islice(self._turns, turns) for group in items(turn) for item in group]
            )

        asyncio.run(main())

    async def turn(self) -> None:
        for group in items(next(self._turns)):
            for part in [[item] for item in group] if self._single else [group]:
                await self._add(part)

    def size(self) -> int:
        return self._path.stat().st_size


class Running(Items):
    """Turns that the SDK's own loop runs."""

    def __init__(self, path: Path, add: Add, turn: Callable[[], Awaitable[None]]) -> None:
        super().__init__(path, add, single=False)
        self._run = turn

    async def turn(self) -> None:
        await self._run()


def measure(settings: Settings) -> Report:
    short, long = settings.size(200, 2), settings.size(2_000, 20)
    name, make, notes = _peer.session()
    store = FileStore(settings.place / "root")
    sides: dict[str, Side] = {}
    opened: list[Any] = []
    for length in (short, long):
        sides[f"loop {length}"] = looping = Looping(store, f"loop-{length}")
        sides[f"bare {length}"] = bare = Ours(store, f"bare-{length}")
        opened += [looping.writer, bare.writer]
        for way in ("single", "barriers", "runner"):
            path = settings.place / f"{way}-{length}.db"
            stored = make("bench", path)
            opened.append(stored)
            sides[f"{way} {length}"] = Items(path, stored.add_items, single=way == "single")
            if way == "runner" and (turn := _peer.runner(stored, ASKED, SAID, RESULT, ARGUMENTS, CALLS)) is not None:
                sides[f"{way} {length}"] = Running(path, stored.add_items, turn)
        for case in ("loop", "bare", "single", "barriers", "runner"):
            sides[f"{case} {length}"].fill(length)
    with asyncio.Runner() as loop:

        def rate(side: Side, turns: int) -> float:
            async def several() -> None:
                for _ in range(turns):
                    await side.turn()

            return turns / timed(lambda: loop.run(several()))

        before = {case: side.size() for case, side in sides.items()}
        # A few turns of one side, then a few of the next: what else the machine does falls on all of them alike.
        figures = interleaved(
            {case: partial(rate, side, FEW) for case, side in sides.items() if not case.startswith("runner")},
            settings.rounds * settings.size(3, 1),
        )
        grown = {case: side.size() - before[case] for case, side in sides.items()}
        turns = FEW * (settings.rounds * settings.size(3, 1) + 1)
        whole = interleaved(
            {case: partial(rate, side, 1) for case, side in sides.items() if case.startswith(("loop", "runner"))},
            settings.rounds,
        )
    for writer in opened:
        writer.close()

    rows = []
    for length in (short, long):
        at, stores = f"{length:,} turns", f"{name} storing"
        for what, ours, against, theirs, found, low in (
            ("a turn's events and barriers", "bare", f"{stores} each item", "single", figures, 2.0),
            ("a turn's events and barriers", "bare", f"{stores} at the same barriers", "barriers", figures, None),
            ("the loop", "loop", "the SDK's Runner on SQLiteSession", "runner", whole, 2.0),
            ("the loop", "loop", f"{stores} each item, no model, no tools", "single", figures, None),
        ):
            if theirs == "runner" and not isinstance(sides[f"{theirs} {length}"], Running):
                continue
            ours, theirs = f"{ours} {length}", f"{theirs} {length}"
            speeds = [f"{middle(found, side):,.1f}/s" for side in (ours, theirs)]
            rows.append(
                Row(f"{what}, {at}", speeds[0], f"{against}: {speeds[1]}", ratio(found, ours, theirs), Target(low=low))
            )
    flat = Target(0.95, 1.05)
    for what, case in (("a turn's events and barriers", "bare"), ("the loop", "loop")):
        ours, theirs = f"{case} {long}", f"{case} {short}"
        speeds = [f"{middle(figures, side):,.1f}/s" for side in (ours, theirs)]
        sizes = [f"{grown[side] / turns:,.0f} bytes" for side in (ours, theirs)]
        there = f"at {short:,} turns"
        rows.append(
            Row(f"{what}: rate at {long:,}", speeds[0], f"{there}: {speeds[1]}", ratio(figures, ours, theirs), flat)
        )
        rows.append(
            Row(
                f"{what}: bytes a turn at {long:,}", sizes[0], f"{there}: {sizes[1]}", grown[ours] / grown[theirs], flat
            )
        )
    notes += [
        "The loop's rate falls by what three lists of references to the whole history cost, one for each request."
    ]
    return Report("A durable agent turn", rows, notes)


if __name__ == "__main__":
    run(__doc__, measure)
