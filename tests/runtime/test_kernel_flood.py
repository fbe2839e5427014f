"""A backend that yields on and on and never waits keeps nobody else waiting."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from maka.runtime.backends.base import BackendRegistry, SendInput
from maka.runtime.kernel.kernel import RuntimeKernel
from maka.runtime.session_events import SessionEvent
from support.memory_journals import MemoryJournals
from support.seeded_loop import run

#: More than any case needs; then it ends by itself.
MANY = 20_000


class Flood:
    def __init__(self) -> None:
        self.yielded = 0
        self.stopped = False

    async def send(self, input: SendInput) -> AsyncIterator[SessionEvent]:
        while self.yielded < MANY and not self.stopped:
            self.yielded += 1
            yield SessionEvent("text_delta", "e", input.turn_id, 0, {"message_id": "m", "text": "x"})
        yield SessionEvent("complete", "e", input.turn_id, 0, {"stop_reason": "user_stop"})

    async def stop(self, reason: str, mode: str) -> None:
        self.stopped = True

    async def dispose(self) -> None:
        self.stopped = True


@pytest.mark.parametrize("seed", [None, *range(5)])
def test_a_flood_can_be_read_and_stopped_while_it_comes(seed: int | None) -> None:
    async def main() -> None:
        backend, journals, backends = Flood(), MemoryJournals(), BackendRegistry()
        journals.create("s", backend="flood")
        backends.register("flood", lambda context: backend)
        async with RuntimeKernel(journals=journals, backends=backends) as kernel:
            stream = kernel.start_turn("s")
            async for event in stream:
                if event.kind == "text_delta":
                    await kernel.stop_session("s")
            assert stream.reason == {"kind": "aborted", "source": "user"}
        assert 0 < backend.yielded < MANY
        assert journals.of("s", "assistant/message")[0]["content"][0]["text"].strip("x") == ""

    if seed is None:
        asyncio.run(main())
    else:
        run(main(), seed)
