"""Every operation of a host as a method with names and ids of its own. No I/O: each puts together what is asked.

Where a caller gives no id, one is minted here, so that a request which is sent again asks for the same thing.
docs/protocol.md has the shapes of what goes in and comes out.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Literal

import orjson

from ...journal.events import JsonObject
from ..ids import new_id
from .operations import Content


class Asking(ABC):
    @abstractmethod
    async def request(self, operation: str, input: JsonObject, *, once: bool = False) -> Any:
        """The result of an operation, by its name and input. ``once``: it is never sent a second time."""


class Calls(Asking):
    """Each raises HostError with the host's code, HostUnreachable, RequestInterrupted."""

    @property
    def plans(self) -> "Plans":
        return Plans(self)

    async def status(self) -> JsonObject:
        return await self._ask("host.status")

    async def shutdown(self, mode: Literal["stop", "handoff"] = "stop", timeout: float | None = None) -> JsonObject:
        """Answers when the host has begun to. It is asked once: a host that was started meanwhile is another."""
        result: JsonObject = await self.request("host.shutdown", _given(mode=mode, timeout=timeout), once=True)
        return result

    # ------------------------------------------------------------ sessions

    async def create_session(self, session_id: str | None = None, **settings: Any) -> str:
        """The new session's id. ``settings``: ``name, cwd, backend, model, permission_mode, connection, labels``."""
        session_id = session_id or new_id()
        await self._ask("session.create", session_id=session_id, **settings)
        return session_id

    async def list_sessions(self) -> list[JsonObject]:
        """All rows, by id."""
        rows: list[JsonObject] = []
        after: str | None = None
        while True:
            page = await self._ask("session.list", after=after)
            rows += page["sessions"]
            after = page["next"]
            if after is None:
                return rows

    async def update_session(self, session_id: str, patch: JsonObject, request_id: str | None = None) -> JsonObject:
        return await self._ask("session.update", session_id=session_id, request_id=request_id or new_id(), patch=patch)

    async def archive_session(self, session_id: str, request_id: str | None = None) -> JsonObject:
        return await self._ask("session.archive", session_id=session_id, request_id=request_id or new_id())

    async def unarchive_session(self, session_id: str, request_id: str | None = None) -> JsonObject:
        return await self._ask("session.unarchive", session_id=session_id, request_id=request_id or new_id())

    async def fork_session(
        self, session_id: str, turn_id: str | None = None, new_session_id: str | None = None, name: str | None = None
    ) -> str:
        """The new session's id."""
        new_session_id = new_session_id or new_id()
        await self._ask(
            "session.fork", session_id=session_id, new_session_id=new_session_id, turn_id=turn_id, name=name
        )
        return new_session_id

    async def delete_session(self, session_id: str) -> JsonObject:
        return await self._ask("session.delete", session_id=session_id)

    async def release_session(self, session_id: str) -> JsonObject:
        return await self._ask("session.release", session_id=session_id)

    async def history(self, session_id: str, before: int | None = None, limit: int = 50) -> JsonObject:
        """One page, ``{events, next}``."""
        return await self._ask("session.history", session_id=session_id, before=before, limit=limit)

    async def walk_history(self, session_id: str) -> AsyncGenerator[JsonObject, None]:
        """Every event, the newest first, page by page; those that are too big for a frame are fetched whole."""
        before: int | None = None
        while True:
            page = await self.history(session_id, before)
            for event in reversed(page["events"]):
                yield await self.whole_event(session_id, event)
            before = page["next"]
            if before is None:
                return

    async def whole_event(self, session_id: str, event: JsonObject) -> JsonObject:
        """The event of a page or of a frame with its data, which a big one comes without."""
        if event["data"] is not None:
            return event
        text = ""
        while True:
            piece = await self._ask("session.event", session_id=session_id, seq=event["seq"], offset=len(text))
            text += piece["text"]
            if not piece["text"] or len(text) >= piece["total"]:
                return {**{key: event[key] for key in ("seq", "ts", "type")}, "data": orjson.loads(text)}

    # ------------------------------------------------------------ turns and messages

    async def start_turn(
        self, session_id: str, content: Content, turn_id: str | None = None, **options: Any
    ) -> JsonObject:
        """``{turn, revision}``. ``options``: ``message_id, quotes, attachments, max_steps``."""
        return await self._ask(
            "turn.start", session_id=session_id, turn_id=turn_id or new_id(), content=content, **options
        )

    async def query_turn(self, session_id: str, turn_id: str) -> JsonObject:
        return await self._ask("turn.query", session_id=session_id, turn_id=turn_id)

    async def stop_turn(
        self,
        session_id: str,
        turn_id: str,
        run_id: str,
        stop_id: str | None = None,
        mode: Literal["immediate", "after_step"] = "immediate",
        retract: bool = False,
    ) -> JsonObject:
        return await self._ask(
            "turn.stop",
            session_id=session_id,
            turn_id=turn_id,
            run_id=run_id,
            stop_id=stop_id or new_id(),
            mode=mode,
            retract=retract,
        )

    async def submit_message(
        self,
        session_id: str,
        content: Content,
        message_id: str | None = None,
        placement: Literal["current_turn", "next_turn"] = "current_turn",
        **options: Any,
    ) -> JsonObject:
        """What became of it, with its ``message_id``. ``options``: ``quotes, attachments``."""
        message_id = message_id or new_id()
        result = await self._ask(
            "turn.message.submit",
            session_id=session_id,
            message_id=message_id,
            content=content,
            placement=placement,
            **options,
        )
        return {"message_id": message_id, **result}

    async def interrupt_turn(
        self, session_id: str, turn_id: str, run_id: str, interrupt_id: str | None = None
    ) -> JsonObject:
        return await self._ask(
            "turn.interrupt",
            session_id=session_id,
            turn_id=turn_id,
            run_id=run_id,
            interrupt_id=interrupt_id or new_id(),
        )

    async def retract_queue(
        self, session_id: str, message_ids: Sequence[str] | None = None, retract_id: str | None = None
    ) -> JsonObject:
        return await self._ask(
            "queue.retract",
            session_id=session_id,
            retract_id=retract_id or new_id(),
            message_ids=None if message_ids is None else list(message_ids),
        )

    # ------------------------------------------------------------ questions, and runs that were cut off

    async def query_interaction(self, session_id: str, interaction_id: str) -> JsonObject:
        return await self._ask("interaction.query", session_id=session_id, interaction_id=interaction_id)

    async def answer_interaction(self, session_id: str, interaction_id: str, answer: JsonObject) -> JsonObject:
        return await self._ask(
            "interaction.answer", session_id=session_id, interaction_id=interaction_id, answer=answer
        )

    async def query_resume(
        self, session_id: str, source_run_id: str | None = None, rerun: Sequence[str] = ()
    ) -> JsonObject:
        return await self._ask(
            "turn.resume.query", session_id=session_id, source_run_id=source_run_id, rerun=list(rerun) or None
        )

    async def start_resume(
        self,
        session_id: str,
        turn_id: str | None = None,
        *,
        source_run_id: str,
        high_water: int,
        rerun: Sequence[str] = (),
    ) -> JsonObject:
        return await self._ask(
            "turn.resume.start",
            session_id=session_id,
            turn_id=turn_id or new_id(),
            source_run_id=source_run_id,
            high_water=high_water,
            rerun=list(rerun) or None,
        )

    async def _ask(self, operation: str, **input: Any) -> JsonObject:
        result: JsonObject = await self.request(operation, _given(**input))
        return result


class Plans:
    """The plans of sessions: ``client.plans``."""

    def __init__(self, client: Asking) -> None:
        self._client = client

    async def query(self, session_id: str) -> list[JsonObject]:
        rows: list[JsonObject] = []
        while True:
            page = await self._ask("query", session_id=session_id, offset=len(rows))
            rows += page["plans"]
            if page["next"] is None:
                return rows

    async def propose(
        self,
        session_id: str,
        title: str,
        steps: Sequence[JsonObject],
        *,
        proposal_id: str | None = None,
        turn_id: str | None = None,
        request_id: str | None = None,
    ) -> JsonObject:
        return await self._ask(
            "propose",
            session_id=session_id,
            request_id=request_id or new_id(),
            title=title,
            steps=list(steps),
            proposal_id=proposal_id,
            turn_id=turn_id,
        )

    async def approve(
        self,
        session_id: str,
        proposal_id: str,
        expected_revision: int,
        *,
        execution_id: str | None = None,
        request_id: str | None = None,
    ) -> JsonObject:
        return await self._ask(
            "approve",
            session_id=session_id,
            request_id=request_id or new_id(),
            proposal_id=proposal_id,
            expected_revision=expected_revision,
            execution_id=execution_id,
        )

    async def cancel(self, session_id: str, execution_id: str, reason: str | None = None) -> JsonObject:
        return await self._ask("cancel", session_id=session_id, execution_id=execution_id, reason=reason)

    async def complete(self, session_id: str, execution_id: str, reason: str | None = None) -> JsonObject:
        return await self._ask("complete", session_id=session_id, execution_id=execution_id, reason=reason)

    async def _ask(self, operation: str, **input: Any) -> JsonObject:
        result: JsonObject = await self._client.request(f"plan.{operation}", _given(**input))
        return result


def _given(**input: Any) -> JsonObject:
    """What was given, and a path as its text."""
    texts = {key: os.fspath(value) if isinstance(value, os.PathLike) else value for key, value in input.items()}
    return {key: value for key, value in texts.items() if value is not None}
