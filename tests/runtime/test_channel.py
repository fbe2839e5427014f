"""Steps as an iterator: nothing that was said is lost, however what is ready is ordered."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from maka.runtime.channel import Channel
from support.seeded_loop import run


@pytest.mark.parametrize("seed", [None, *range(30)])
@pytest.mark.parametrize("failure", [None, RuntimeError("it broke")])
def test_what_is_said_last_is_given_out_before_the_end(seed: int | None, failure: Exception | None) -> None:
    async def main() -> None:
        more = asyncio.Event()

        async def work(channel: Channel) -> None:
            channel.emit("text_delta", message_id="m", text="first")
            await more.wait()
            channel.emit("step_end")
            channel.emit("complete", stop_reason="end_turn")
            if failure is not None:
                raise failure

        channel = Channel(work, turn_id="t", now=lambda: 0)
        heard, raised = [], None
        try:
            async for event in channel:
                heard.append(event.kind)
                more.set()
                # The work ends while nobody waits for it.
                await asyncio.sleep(0)
        except RuntimeError as error:
            raised = error
        assert heard == ["text_delta", "step_end", "complete"]
        assert raised is failure

    started: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run if seed is None else lambda it: run(it, seed)
    started(main())
