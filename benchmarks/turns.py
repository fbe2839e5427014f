"""A durable agent turn: the user's message, 3 steps, 6 tool calls, in a session of 200 and in one of 2,000 turns.

Ours is measured twice: by the real loop, with a model that plays a script and tools that do nothing, and as the bare
events with the loop's barriers. The baseline is the `SQLiteSession` of the OpenAI Agents SDK, storing the same items:
each as it comes, and together at the moments at which the loop waits for the disk. It stores only; it drives no model,
no tools and no history. Where the SDK is not installed, the same tables and statements by sqlite3 stand in for it.
"""

import asyncio
import itertools
import json
import sqlite3
from collections.abc import Awaitable, Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, Protocol

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


class Items:
    """Items stored by ``add`` (an ``add_items``), one group for each call of it."""

    def __init__(self, path: Path, add: Callable[[Sequence[Item]], Awaitable[None]], *, single: bool) -> None:
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


class PlainSqlite:
    """What the SDK's session does, by sqlite3: the same tables, statements and pragmas, in a thread for each commit."""

    def __init__(self, session_id: str, path: Path) -> None:
        self._session = session_id
        self._rows = sqlite3.connect(path, check_same_thread=False)
        self._rows.execute("PRAGMA journal_mode=WAL")
        self._rows.execute("CREATE TABLE sessions (id TEXT PRIMARY KEY, updated TIMESTAMP DEFAULT CURRENT_TIMESTAMP)")
        self._rows.execute(
            "CREATE TABLE messages (id INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL, data TEXT NOT NULL, "
            "created TIMESTAMP DEFAULT CURRENT_TIMESTAMP)"
        )
        self._rows.execute("CREATE INDEX by_session ON messages (session, id)")
        self._rows.commit()

    async def add_items(self, items: Sequence[Item]) -> None:
        await asyncio.to_thread(self._add, items)

    def _add(self, items: Sequence[Item]) -> None:
        rows = [(self._session, json.dumps(item)) for item in items]
        self._rows.execute("INSERT OR IGNORE INTO sessions (id) VALUES (?)", (self._session,))
        self._rows.executemany("INSERT INTO messages (session, data) VALUES (?, ?)", rows)
        self._rows.execute("UPDATE sessions SET updated = CURRENT_TIMESTAMP WHERE id = ?", (self._session,))
        self._rows.commit()

    def close(self) -> None:
        self._rows.close()


def peer() -> tuple[str, Any, list[str]]:
    """The baseline: its name, what makes a session of it, and what is to be said of it."""
    try:
        from agents import SQLiteSession
    except ImportError:
        hint = "The Agents SDK is not installed; `pip install -e '.[peers]'` in the environment brings it."
        return "plain sqlite3 in its place", PlainSqlite, [hint]
    return "SQLiteSession", SQLiteSession, []


def measure(settings: Settings) -> Report:
    short, long = settings.size(200, 2), settings.size(2_000, 20)
    each = settings.size(12, 2)
    name, make, notes = peer()
    store = FileStore(settings.place / "root")
    sides: dict[str, Side] = {}
    opened: list[Any] = []
    for length in (short, long):
        sides[f"loop {length}"] = looping = Looping(store, f"loop-{length}")
        sides[f"bare {length}"] = bare = Ours(store, f"bare-{length}")
        opened += [looping.writer, bare.writer]
        for way, single in (("single", True), ("barriers", False)):
            path = settings.place / f"{way}-{length}.db"
            stored = make("bench", path)
            sides[f"{way} {length}"] = Items(path, stored.add_items, single=single)
            opened.append(stored)
        for case in ("loop", "bare", "single", "barriers"):
            sides[f"{case} {length}"].fill(length)
    with asyncio.Runner() as runner:
        before = {case: side.size() for case, side in sides.items()}
        # Turn by turn, so that what else the machine does falls on all of them alike.
        figures = interleaved(
            {case: lambda side=side: 1 / timed(lambda: runner.run(side.turn())) for case, side in sides.items()},
            each * settings.rounds,
        )
    grown = {case: (side.size() - before[case]) / (each * settings.rounds + 1) for case, side in sides.items()}
    for session in opened:
        session.close()

    def rate(case: str) -> str:
        return f"{middle(figures, case):.0f}/s"

    rows = []
    for what, case in (("the loop", "loop"), ("events and barriers", "bare")):
        for length in (short, long):
            for way, against, target in (
                ("single", "each item by itself", Target(low=2)),
                ("barriers", "items of a barrier together", Target()),
            ):
                ours, theirs = f"{case} {length}", f"{way} {length}"
                title, baseline = f"{what}, {length:,} turns", f"{name}, {against}: {rate(theirs)}"
                rows.append(Row(title, rate(ours), baseline, ratio(figures, ours, theirs), target))
        ours, theirs = f"{case} {long}", f"{case} {short}"
        there, flat = f"at {short:,} turns: ", Target(0.95, 1.05)
        title = f"{what}, rate at {long:,} turns"
        rows.append(Row(title, rate(ours), there + rate(theirs), ratio(figures, ours, theirs), flat))
        title, sizes = (
            f"{what}, bytes a turn at {long:,} turns",
            [f"{grown[side]:,.0f} bytes" for side in (ours, theirs)],
        )
        rows.append(Row(title, sizes[0], there + sizes[1], grown[ours] / grown[theirs], flat))
    return Report("A durable agent turn: user, 3 steps, 6 tool calls", rows, notes)


if __name__ == "__main__":
    run(__doc__, measure)
