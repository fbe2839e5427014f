"""Live text is journalled as a preview: on its own account it is never synced."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from maka.runtime.backends.base import BackendRegistry, SendInput
from maka.runtime.kernel.kernel import RuntimeKernel
from maka.runtime.session_events import SessionEvent
from support.memory_journals import MemoryJournal, MemoryJournals
from support.seeded_loop import run


class Speaks:
    """A step whose begin waits to be told, made durable by a call; then only text."""

    def __init__(self) -> None:
        self.journal: MemoryJournal | None = None
        self.syncs: list[int] = []

    async def send(self, input: SendInput) -> AsyncIterator[SessionEvent]:
        def event(kind: str, **data: object) -> SessionEvent:
            return SessionEvent(kind, kind, input.turn_id, 0, data)

        assert self.journal is not None
        yield event("text_delta", message_id="m1", text="I look.")
        yield event("tool_start", call_id="c1", name="look")
        self.syncs.append(self.journal.syncs)
        yield event("text_delta", message_id="m2", text="Meanwhile")
        await asyncio.sleep(0.1)
        self.syncs.append(self.journal.syncs)
        yield event("tool_result", call_id="c1", state="ok", content=[{"kind": "text", "text": "seen"}])
        yield event("complete", stop_reason="end_turn")

    async def stop(self, reason: str, mode: str) -> None:
        pass

    async def dispose(self) -> None:
        pass


@pytest.mark.parametrize("seed", [None, *range(5)])
def test_text_behind_a_barrier_waits_for_no_sync_and_causes_none(seed: int | None) -> None:
    async def main() -> None:
        backend, journals, backends = Speaks(), MemoryJournals(), BackendRegistry()
        journals.create("s", backend="speaks")
        backends.register("speaks", lambda context: backend)
        async with RuntimeKernel(journals=journals, backends=backends) as kernel:
            async with kernel.session("s") as session:
                assert isinstance(session.journal, MemoryJournal)
                backend.journal = session.journal
            said = [event.data["text"] async for event in kernel.start_turn("s") if event.kind == "text_delta"]
        assert said == ["I look.", "Meanwhile"]
        assert [text["text"] for text in journals.of("s", "assistant/delta")] == said
        before, after = backend.syncs
        assert after == before

    if seed is None:
        asyncio.run(main())
    else:
        run(main(), seed)
