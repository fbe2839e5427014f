"""A session is followed over lost connections and restarts: no durable event is missed, none is told twice."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from maka.runtime.host import Frame, HostError, HostUnreachable, SubscriptionClosed, connect, watching
from support.fake_host import FakeHost, Json, play


class Journal:
    """Events that a host has, and sends to whoever follows: what came since first, as a host does."""

    def __init__(self, *hosts: FakeHost) -> None:
        self.newest = 0
        for host in hosts:
            self.behind(host)

    def behind(self, host: FakeHost) -> None:
        self.host = host

        def opened(input: Json) -> Json:
            result = {**host._open(host.peers[-1]), "snapshot": {"position": self.newest}}
            since = input.get("since", self.newest)
            asyncio.get_running_loop().call_soon(self._send, result["subscription_id"], since, self.newest)
            return result

        host.answers["subscription.open"] = opened

    def _send(self, subscription_id: str, since: int, upto: int) -> None:
        for seq in range(since + 1, upto + 1):
            self.host.push(subscription_id, "event", event={"seq": seq, "ts": 0, "type": "session/note", "data": {}})

    def append(self, count: int = 1) -> None:
        for _ in range(count):
            self.newest += 1
            self.host.event(self.newest)


async def told(frames: AsyncIterator[Frame], count: int) -> list[object]:
    """The next frames: numbers of events, and the names of other frames."""
    out: list[object] = []
    for _ in range(count):
        frame = await anext(frames)
        out.append(frame.type if frame.event is None else frame.event["seq"])
    return out


def test_it_begins_with_the_snapshot_and_goes_on_over_a_cut(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path) as host, connect(tmp_path) as client:
            journal = Journal(host)
            journal.append(3)
            frames = client.follow("s")
            first = await anext(frames)
            assert (first.type, first.sequence, first.snapshot) == ("opened", 0, {"position": 3})
            journal.append(2)
            assert await told(frames, 2) == [4, 5]
            reading = asyncio.ensure_future(told(frames, 4))
            host.cut()
            journal.append(2)
            await host.until(lambda: host.watched)
            journal.append()
            assert await reading == ["opened", 6, 7, 8]

    play(scenario())


def test_what_came_while_nobody_was_connected_is_told_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path) as first:
            client = await connect(tmp_path).__aenter__()
            journal = Journal(first)
            frames = client.follow("s", since=0)
            assert await told(frames, 1) == ["opened"]
            journal.append(2)
            assert await told(frames, 1) == [1]
        journal.newest = 5
        async with FakeHost(tmp_path) as second:
            journal.behind(second)
            assert await told(frames, 5) == [2, "opened", 3, 4, 5]
            assert [input.get("since") for input in first.of("subscription.open")] == [0]
            assert [input.get("since") for input in second.of("subscription.open")] == [2]
            await frames.aclose()
            await second.until(lambda: not second.watched)
            await client.aclose()

    play(scenario())


def test_an_event_that_a_host_sends_twice_is_told_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path) as host, connect(tmp_path) as client:
            host.snapshot = {"position": 4}
            frames = client.follow("s")
            assert await told(frames, 1) == ["opened"]
            for seq in (3, 4, 5, 5, 6):
                host.event(seq)
            assert await told(frames, 2) == [5, 6]

    play(scenario())


def test_other_frames_are_handed_on_as_they_are(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path) as host, connect(tmp_path) as client:
            frames = client.follow("s")
            assert await told(frames, 1) == ["opened"]
            [id] = host.watched
            host.push(id, "delta", delta={"text": "a"})
            host.push(id, "projection", snapshot={"position": 9})
            assert await told(frames, 2) == ["delta", "projection"]

    play(scenario())


@pytest.mark.parametrize("reason", ["slow_consumer", "sequence_gap"])
def test_an_end_that_a_new_subscription_mends_is_mended(
    tmp_path: Path, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "MAX_FRAMES", 2)

    async def scenario() -> None:
        async with FakeHost(tmp_path) as host, connect(tmp_path) as client:
            journal = Journal(host)
            frames = client.follow("s")
            assert await told(frames, 1) == ["opened"]
            if reason == "slow_consumer":
                journal.append(4)
            else:
                journal.append()
                [(id, (peer, last))] = host.watched.items()
                host.watched[id] = (peer, last + 1)
                journal.append()
            expected = {"slow_consumer": [1, 2, "opened", 3, 4], "sequence_gap": [1, "opened", 2]}[reason]
            await host.until(lambda: host.of("subscription.close"))
            monkeypatch.setattr(watching, "MAX_FRAMES", 1024)
            assert await told(frames, len(expected)) == expected

    play(scenario())


def test_a_host_whose_every_first_frame_is_wrong_is_not_asked_on_and_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path) as host, connect(tmp_path) as client:

            def opened(_: Json) -> Json:
                result = host._open(host.peers[0])
                host.watched[result["subscription_id"]] = (host.peers[0], 5)
                asyncio.get_running_loop().call_soon(host.event, 1)
                return result

            host.answers["subscription.open"] = opened
            frames = client.follow("s")
            assert await told(frames, 1) == ["opened"]
            with pytest.raises(SubscriptionClosed) as ended:
                await anext(frames)
            assert ended.value.reason == "sequence_gap"

    play(scenario())


def test_a_host_that_leaves_is_left_before_the_next_is_asked(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path) as first:
            client = await connect(tmp_path).__aenter__()
            journal = Journal(first)
            frames = client.follow("s")
            assert await told(frames, 1) == ["opened"]
            [id] = first.watched
            first.say("draining")
            first.push(id, "closed", reason="host_draining", message="the host is stopping")
            reading = asyncio.ensure_future(told(frames, 1))
            await client.status()
            assert len(first.of("subscription.open")) == 1
        async with FakeHost(tmp_path) as second:
            journal.behind(second)
            assert await reading == ["opened"]
            assert len(first.of("subscription.open")) == 1
            await client.aclose()

    play(scenario())


@pytest.mark.parametrize("reason", ["session_removed", "session_unavailable"])
def test_an_end_that_nothing_mends_is_raised(tmp_path: Path, reason: str) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path) as host, connect(tmp_path) as client:
            frames = client.follow("s")
            assert await told(frames, 1) == ["opened"]
            [id] = host.watched
            host.push(id, "closed", reason=reason, message="so it is")
            with pytest.raises(SubscriptionClosed, match="so it is") as ended:
                await anext(frames)
            assert ended.value.reason == reason

    play(scenario())


def test_without_reconnecting_it_ends_with_the_connection(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path) as host, connect(tmp_path, reconnect=False) as client:
            frames = client.follow("s")
            assert await told(frames, 1) == ["opened"]
            host.cut()
            with pytest.raises(SubscriptionClosed) as ended:
                await anext(frames)
            assert ended.value.reason == "connection_closed"

    play(scenario())


def test_a_host_that_does_not_come_back_ends_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path) as host:
            client = await connect(tmp_path, timeout=0.1).__aenter__()
            frames = client.follow("s")
            assert await told(frames, 1) == ["opened"]
            await host.stop()
            with pytest.raises(HostUnreachable, match="was lost"):
                await anext(frames)
            await client.aclose()

    play(scenario())


def test_a_session_that_there_is_not_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path) as host, connect(tmp_path) as client:

            def refuse(_: Json) -> Json:
                raise HostError("not_found", "there is no session s")

            host.answers["subscription.open"] = refuse
            with pytest.raises(HostError, match="there is no session s"):
                await anext(client.follow("s"))

    play(scenario())
