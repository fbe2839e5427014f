"""Whoever watches a session is told each frame of it, or why there are no more."""

import asyncio
from pathlib import Path
from typing import Any, cast

import maka
from maka.runtime.host.connection import Connection
from maka.runtime.host.host import Host
from maka.runtime.host.lane import Lane
from maka.runtime.host.protocol import MAX_FRAME, encode
from maka.runtime.host.subscription import Subscription
from maka.runtime.host.watchers import Watcher
from support.host_app import app
from support.hosts import refused

Json = dict[str, Any]


class Taking:
    """Takes everything that is a frame. Stands for a Connection."""

    has_room = True

    def __init__(self) -> None:
        self.lost = asyncio.Event()
        self.taken: list[Json] = []

    def put(self, frame: Json) -> None:
        encode(frame)
        self.taken.append(frame)

    async def send(self, frame: Json) -> None:
        self.put(frame)


class Left:
    """Stands for a Lane."""

    def __init__(self) -> None:
        self.gone: list[Subscription] = []

    def close(self, subscription: Subscription) -> None:
        self.gone.append(subscription)


def test_what_fits_into_no_frame_ends_the_subscription_with_a_word() -> None:
    async def main() -> None:
        subscription, lane, connection = Subscription("w", "s", "epoch"), Left(), Taking()
        forgotten: list[Watcher] = []
        watcher = Watcher(subscription, cast(Lane, lane), cast(Connection, connection), 3, forgotten.append)
        for name in ("short", "x" * MAX_FRAME):
            subscription.projection({"projection_revision": 1, "root_turn": None, "name": name}, len(name))
            if name == "short":
                answered = asyncio.Event()
                answered.set()
                watcher.begin([], None, answered)
                while not connection.taken:
                    await asyncio.sleep(0)
        while not forgotten:
            await asyncio.sleep(0)
        assert [(frame["sequence"], frame["type"]) for frame in connection.taken] == [(1, "projection"), (2, "closed")]
        assert connection.taken[1]["reason"] == "session_unavailable"
        assert lane.gone == [subscription]
        assert forgotten == [watcher]

    asyncio.run(asyncio.wait_for(main(), 20))


async def fill(client: Any, queued: list[str]) -> None:
    """Messages with long ids, without end."""
    while True:
        message_id = f"{len(queued):06}" + "😀" * 250
        await client.submit_message("s", "x", message_id=message_id, placement="next_turn")
        queued.append(message_id)


def test_a_queue_is_full_before_it_is_too_long_to_be_shown(tmp_path: Path) -> None:
    async def main() -> None:
        host = Host(tmp_path, app)
        serving = asyncio.ensure_future(host.serve())
        while host.state != "ready":
            await asyncio.sleep(0.005)
        async with maka.connect(tmp_path, reconnect=False) as client:
            await client.create_session("s")
            turn = (await client.start_turn("s", "hold", turn_id="😀" * 256))["turn"]
            queued: list[str] = []
            async with await client.subscribe("s") as watch:
                assert await refused(fill(client, queued)) == "queue_full"
                assert len(queued) > 10
                shown: list[str] = []
                async for frame in watch:
                    if frame.snapshot is not None:
                        queue = frame.snapshot["queue"]
                        shown = [entry["message_id"] for entry in queue["followup"]]
                    if shown == queued:
                        break
            await client.interrupt_turn("s", turn["turn_id"], turn["run_id"])
        host.shut_down()
        await serving

    asyncio.run(asyncio.wait_for(main(), 30))
