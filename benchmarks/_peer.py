"""The OpenAI Agents SDK as a baseline, or where it is not installed, what stands in for its storage."""

import asyncio
import itertools
import json
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

Item = dict[str, Any]


def session() -> tuple[str, Any, list[str]]:
    """What stores: its name, what makes one of a session id and a path, and what is to be said of it."""
    try:
        from agents import SQLiteSession
    except ImportError:
        hint = (
            "The Agents SDK is not installed, so sqlite3 alone stands in for it; `pip install -e '.[peers]'` brings it."
        )
        return "plain sqlite3", PlainSqlite, [hint]
    return "SQLiteSession", SQLiteSession, []


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


def runner(
    stored: Any, asked: str, said: str, result: str, arguments: Item, calls: Sequence[int]
) -> Callable[[], Awaitable[None]] | None:
    """Runs a turn by the SDK's own loop, its items kept by ``stored``. None where the SDK is not installed.

    A turn has a step for each of ``calls``: it says ``said`` and makes so many calls with ``arguments``.
    """
    try:
        from agents import Agent, Model, ModelResponse, Runner, Usage, function_tool, set_tracing_disabled
        from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
    except ImportError:
        return None
    set_tracing_disabled(True)
    numbers, script, raw = itertools.count(), itertools.cycle(calls), json.dumps(arguments)

    class Scripted(Model):
        async def get_response(self, *given: Any, **options: Any) -> ModelResponse:
            number = next(numbers)
            text = ResponseOutputText(type="output_text", text=said, annotations=[])
            message = {"type": "message", "id": f"m{number}", "role": "assistant", "status": "completed"}
            output: list[Any] = [ResponseOutputMessage(**message, content=[text])]
            for index in range(next(script)):
                call = {"type": "function_call", "call_id": f"c{number}-{index}", "name": "nothing"}
                output.append(ResponseFunctionToolCall(**call, arguments=raw))
            return ModelResponse(output=output, usage=Usage(), response_id=None)

        def stream_response(self, *given: Any, **options: Any) -> Any:
            raise NotImplementedError

    @function_tool
    async def nothing(path: str, text: str) -> str:
        """For measurements."""
        return result

    agent = Agent(name="bench", model=Scripted(), tools=[nothing])

    async def turn() -> None:
        await Runner.run(agent, asked, session=stored)

    return turn
