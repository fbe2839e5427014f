"""Fifty clients around one host: who is slow, silent, hostile or gone is cut off alone, and all others are told all."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from maka.runtime.host import SubscriptionClosed
from support import crowd
from support.crowd import KIB, Ledger, Raw, Reader, Watched, ledger_of
from support.hosts import Root, a_root, refused, until_over
from support.wire import hello, request

Test = Callable[[Root], Coroutine[None, None, None]]
Go = Callable[[Test], None]
MIB = KIB * KIB


@pytest.fixture
def go(tmp_path: Path) -> Go:
    def run(test: Test) -> None:
        with a_root(tmp_path / "root") as root:
            asyncio.run(test(root))

    return run


def message(root: Root, session_id: str | None = None) -> dict[str, Any]:
    """The newest message of the assistant, as the journal has it."""
    data: dict[str, Any] = root.of_type("assistant/message", session_id=session_id)[-1].data
    return data


def kinds(tasks: list[str]) -> Counter[str]:
    """Names of tasks, without what is different in each."""
    return Counter(name.rstrip("0123456789abcdef").removesuffix("-") for name in tasks)


# ---------------------------------------------------------------- those that misbehave


async def ended_with(raw: Raw) -> str:
    """The code of the goodbye that the connection ends with."""
    frames = await raw.frames()
    raw.close()
    assert [frame["kind"] for frame in frames[:-1] if frame["kind"] != "response"] == []
    code: str = frames[-1]["code"]
    return code


#: What is sent after the welcome, and the code of the goodbye that follows.
NONSENSE: dict[str, tuple[bytes, str]] = {
    "garbage": (b"\x00\xff\xfe{]\n", "bad_frame"),
    "no object": (b"[1, 2]\n", "bad_frame"),
    "half a frame": (b'{"kind":"requ', "bad_frame"),
    "a line of a MiB": (b"x" * MIB + b"\n", "frame_too_large"),
    "a line without an end": (b"[" * MIB, "frame_too_large"),
    "a field that is not known": (
        b'{"kind":"request","id":"1","operation":"host.status","input":{},"x":1}\n',
        "bad_frame",
    ),
    "a second hello": (b'{"kind":"hello"}\n', "bad_frame"),
    "an id that is none": (b'{"kind":"request","id":"","operation":"host.status","input":{}}\n', "bad_frame"),
    "an id twice": (
        b'{"kind":"request","id":"1","operation":"turn.start","input":{"session_id":"s2","turn_id":"n","content":"x"}}\n'
        * 2,
        "bad_frame",
    ),
}


async def nonsense(path: str, what: str) -> None:
    sent, code = NONSENSE[what]
    raw = await Raw(path).begin()
    await raw.write(sent)
    raw.socket.shutdown(1)
    assert await ended_with(raw) == code, what


async def silent(path: str) -> None:
    raw = await Raw(path).begin(greets=False)
    assert await ended_with(raw) == "handshake_timeout"


async def strange(path: str) -> None:
    """Greets as no version does."""
    raw = await Raw(path).begin(greets=False)
    await raw.send(hello(protocol={"min": 7, "max": 9}))
    [refusal] = await raw.frames()
    raw.close()
    assert (refusal["kind"], refusal["code"], refusal["protocol"]) == (
        "refused",
        "protocol_incompatible",
        {"min": 1, "max": 1},
    )


async def asks_too_much(path: str) -> None:
    """More at once than a connection may; it is refused what is too much, and goes on."""
    raw = await Raw(path).begin()
    turns = [
        request(f"r{number}", "turn.start", session_id="s3", turn_id="held", content="held") for number in range(65)
    ]
    await raw.send(*turns, request("s", "host.status"))
    answers = [await raw.frame() for _ in range(66)]
    refusals = [each for each in answers if not each["ok"]]
    # One by one they may be answered before the last has come.
    assert {each["error"]["code"] for each in refusals} <= {"too_many_requests"}
    assert any(each["id"] == "s" and each["ok"] for each in answers)
    raw.close()


async def watches_too_much(path: str, sessions: list[str]) -> None:
    raw = await Raw(path).begin()
    for number, session_id in enumerate(sessions):
        await raw.ask(f"o{number}", "subscription.open", session_id=session_id)
    answers = [await raw.answer(f"o{number}") for number in range(17)]
    assert [each["ok"] for each in answers] == [True] * 16 + [False]
    assert answers[-1]["error"]["code"] == "too_many_subscriptions"
    await raw.ask("nobody", "subscription.open", session_id="not-there")
    assert (await raw.answer("nobody"))["error"]["code"] in ("not_found", "too_many_subscriptions")
    await raw.ask("c", "subscription.close", subscription_id=answers[0]["result"]["subscription_id"])
    assert (await raw.answer("c"))["ok"]
    await raw.ask("absent", "subscription.open", session_id="not-there")
    assert (await raw.answer("absent"))["error"]["code"] == "not_found"
    raw.close()


async def subscribed(path: str, session_id: str = "s1") -> tuple[Raw, dict[str, Any]]:
    raw = await Raw(path).begin()
    await raw.ask("open", "subscription.open", session_id=session_id)
    opened: dict[str, Any] = (await raw.answer("open"))["result"]
    return raw, opened


async def goes(path: str, *, without_an_end: bool) -> None:
    """Is told the beginning, and goes."""
    raw, _ = await subscribed(path)
    for _ in range(3):
        await raw.frame()
    raw.reset() if without_an_end else raw.close()


async def trickles(raw: Raw, opened: dict[str, Any], turn_id: str) -> Ledger:
    """Reads slowly, but it reads."""
    frames: list[dict[str, Any]] = []
    while True:
        line = await raw.line(128 * KIB)
        assert line
        frame = json.loads(line)
        if frame["kind"] == "frame":
            frames.append(frame)
            root = (frame.get("snapshot") or {}).get("root_turn")
            if root is not None and (root["turn_id"], root["status"]) == (turn_id, "completed"):
                break
        if len(frames) % 20 == 0:
            await asyncio.sleep(0.005)
    raw.close()
    return ledger_of(opened, frames)[0]


# ---------------------------------------------------------------- the crowd


def test_of_fifty_clients_only_those_that_misbehave_are_cut_off(go: Go) -> None:
    async def test(root: Root) -> None:
        others = [f"x{number}" for number in range(17)]
        for session_id in ("s2", "s3", *others):
            root.create(session_id)
        host = await crowd.start(root, stall=20, handshake=3.0)
        path = host.endpoint
        async with root.client() as observer:
            # Whatever a first turn leaves behind is counted before.
            await observer.start_turn("s1", "before", turn_id="before")
            await until_over(observer, "s1", "before")
            await observer.release_session("s1")
            tasks, files = kinds(await host.tasks()), host.files()
            answered = 0

            async def looks() -> None:
                nonlocal answered
                while True:
                    assert (await observer.status())["state"] == "ready"
                    answered += 1
                    await asyncio.sleep(0.02)

            looking = asyncio.ensure_future(looks())
            stalled = [await subscribed(path) for _ in range(4)]
            slow = await subscribed(path)
            healthy = [Reader(root) for _ in range(26)]
            reading = [asyncio.ensure_future(reader.read("big")) for reader in healthy]
            leaving = [asyncio.ensure_future(goes(path, without_an_end=bool(number % 2))) for number in range(4)]
            await asyncio.gather(*(reader.opened.wait() for reader in healthy))
            misbehaving = [
                *(silent(path) for _ in range(3)),
                *(nonsense(path, what) for what in NONSENSE),
                strange(path),
                asks_too_much(path),
                watches_too_much(path, others),
            ]
            assert len(stalled) + 1 + len(healthy) + len(leaving) + len(misbehaving) + 1 >= 50
            started = asyncio.ensure_future(observer.start_turn("s1", "gated 4400 1100", turn_id="big"))
            slowly = asyncio.ensure_future(trickles(*slow, "big"))
            cut_off = asyncio.gather(*misbehaving)
            await healthy[0].told(300 * KIB)
            late = [Reader(root) for _ in range(4)]
            reading += [asyncio.ensure_future(reader.read("big")) for reader in late]
            await asyncio.gather(*(reader.opened.wait() for reader in late))
            (root.path / "gate").touch()

            ledgers = [*await asyncio.gather(*reading), await slowly]
            await asyncio.gather(cut_off, started, *leaving)
            whole = message(root)
            assert len(whole["content"][0]["text"].encode()) > 5_000_000
            for ledger in ledgers:
                ledger.assert_tells(whole)
                assert sum(block.resets for block in ledger.blocks.values()) == 0
            for reader in late:
                [length] = reader.ledger.begun.values()
                assert 300 * KIB <= length < 2000 * KIB

            # Who took nothing is told why it has lost its subscription, in its place, and has its connection still.
            await until_sent(host, 0)
            for raw, opened in stalled:
                await raw.ask("after", "host.status")
                frames = []
                while (frame := await raw.frame()).get("id") != "after":
                    frames.append(frame)
                ledger, closed = ledger_of(opened, frames)
                assert closed is not None
                assert closed["reason"] == "slow_consumer"
                assert 0 < ledger.length < 4400 * KIB
                await raw.ask("again", "subscription.open", session_id="s1")
                again = (await raw.answer("again"))["result"]
                assert again["snapshot"]["root_turn"]["turn_id"] == "big"
                assert again["snapshot"]["streams"] == []
                raw.close()

            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
            assert answered >= 10
            held = await observer.query_turn("s3", "held")
            await observer.stop_turn("s3", "held", held["run_id"])
            await crowd.quiet(observer)
            for session_id in ("s1", "s2", "s3", *others):
                await observer.release_session(session_id)
            assert kinds(await host.tasks()) - tasks == Counter()
            assert host.files() == files
        assert host.host.stop() == 0

    go(test)


async def until_sent(host: Watched, left: int) -> None:
    """Waits until no more than so many subscriptions are served."""
    while kinds(await host.tasks())["send a subscription"] > left:
        await asyncio.sleep(0.05)


def test_those_who_take_nothing_hold_a_bounded_amount_each(go: Go) -> None:
    """A stream of 12 MiB to 40 of them: were it kept for each, that were 480 MiB."""

    async def test(root: Root) -> None:
        host = await crowd.start(root, stall=600, looks=600)
        async with root.client() as observer:
            before, files = host.memory(), host.files()
            stalled = [await subscribed(host.endpoint) for _ in range(40)]
            await observer.start_turn("s1", f"plain {12 * KIB}", turn_id="big")
            await until_over(observer, "s1", "big")
            held = host.memory() - before
            assert held < 40 * 2.5 * MIB + 110 * MIB, held / MIB
            assert (await observer.status())["connections"] == 41
            for raw, _ in stalled:
                raw.reset()
            await crowd.quiet(observer)
            await observer.release_session("s1")
            assert host.files() == files
        assert host.host.stop() == 0

    go(test)


def test_a_client_that_takes_nothing_at_all_is_given_up(go: Go) -> None:
    async def test(root: Root) -> None:
        host = await crowd.start(root, stall=600, looks=5)
        async with root.client() as observer:
            reader = Reader(root)
            reading = asyncio.ensure_future(reader.read("big"))
            await reader.opened.wait()
            raw, _ = await subscribed(host.endpoint)
            await observer.start_turn("s1", f"plain {4 * KIB}", turn_id="big")
            (await reading).assert_tells(message(root))
            await crowd.quiet(observer)
            assert "is given up: it takes nothing" in host.host.said()
            # What the system holds for it is there; the rest is not, and no line is cut.
            numbers = [frame.get("sequence") for frame in await raw.frames()]
            assert numbers[-1] in (None, len(numbers))
            assert numbers[:-1] == list(range(1, len(numbers)))
            raw.close()
        assert host.host.stop() == 0

    go(test)


# ---------------------------------------------------------------- what is told, text by text


#: What is played, and what is told of it beyond the durable text.
TEXTS: dict[str, Callable[[Ledger], object]] = {
    "mixed": lambda ledger: len(ledger.blocks) == 2,
    "split": lambda ledger: True,
    "replaced": lambda ledger: [block.resets for block in ledger.blocks.values()] == [1],
    "broken": lambda ledger: [block.length for block in ledger.blocks.values()] == [len("half a word")],
    "paced 40": lambda ledger: not any(block.resets for block in ledger.blocks.values()),
    "something short": lambda ledger: not any(block.resets for block in ledger.blocks.values()),
    "held": lambda ledger: [block.length for block in ledger.blocks.values()] == [len("held on to")],
}


def test_each_text_is_told_as_it_is_kept_from_wherever_one_joins(go: Go) -> None:
    async def test(root: Root) -> None:
        for number in range(len(TEXTS)):
            root.create(f"t{number}")
        host = await crowd.start(root)

        async def one(client: Any, session_id: str, what: str, fits: Callable[[Ledger], object]) -> None:
            early = Reader(root, session_id)
            reading = [asyncio.ensure_future(early.read("t"))]
            await early.opened.wait()
            begun = await client.start_turn(session_id, what, turn_id="t")
            for _ in range(3):
                late = Reader(root, session_id)
                reading.append(asyncio.ensure_future(late.read("t")))
                await late.opened.wait()
                await asyncio.sleep(0.02)
            if what == "held":
                await early.told(len("held on to"))
                await client.stop_turn(session_id, "t", begun["turn"]["run_id"])
            ledgers = await asyncio.gather(*reading)
            kept = {
                (event.data["message_id"], block["kind"])
                for event in root.of_type("assistant/message", session_id=session_id)
                for block in event.data["content"]
            }
            for number, ledger in enumerate(ledgers):
                if number == 0 or ledger.begun:
                    ledger.assert_tells(message(root, session_id))
                assert ledger.blocks.keys() <= kept, what
                assert all(block.complete for block in ledger.blocks.values()), what
            assert fits(ledgers[0]), what

        async with root.client() as client:
            rows = enumerate(TEXTS.items())
            await asyncio.gather(*(one(client, f"t{number}", what, fits) for number, (what, fits) in rows))
        assert host.host.stop() == 0

    go(test)


def test_one_connection_watches_sixteen_sessions_that_all_stream(go: Go) -> None:
    async def test(root: Root) -> None:
        sessions = [f"x{number}" for number in range(16)]
        for session_id in sessions:
            root.create(session_id)
        host = await crowd.start(root)
        async with root.client() as client:

            async def one(session_id: str, turn_id: str) -> Ledger:
                async with await client.subscribe(session_id) as watch:
                    ledger = Ledger(watch.snapshot)
                    await client.start_turn(session_id, "fill 200 100", turn_id=turn_id)
                    async for frame in watch:
                        ledger.take(frame.sequence, frame.type, frame.snapshot or frame.delta or frame.event)
                        if turn_id in ledger.over:
                            break
                return ledger

            for turn_id in ("first", "second"):
                # Closed ones make room: all are opened again.
                ledgers = await asyncio.gather(*(one(session_id, turn_id) for session_id in sessions))
                for session_id, ledger in zip(sessions, ledgers, strict=True):
                    ledger.assert_tells(message(root, session_id))
            watches = [await client.subscribe(session_id) for session_id in sessions]
            assert await refused(client.subscribe("s1")) == "too_many_subscriptions"
            await watches[3].close()
            await (await client.subscribe("s1")).close()
        assert host.host.stop() == 0

    go(test)


def test_a_subscription_that_is_closed_amid_its_frames_is_silent_from_the_answer_on(go: Go) -> None:
    async def test(root: Root) -> None:
        host = await crowd.start(root)
        async with root.client() as client:
            raw, opened = await subscribed(host.endpoint)
            await client.start_turn("s1", "paced 150", turn_id="t")
            frames = [await raw.frame() for _ in range(12)]
            await raw.ask("close", "subscription.close", subscription_id=opened["subscription_id"])
            await raw.ask("again", "subscription.open", session_id="s1")
            while (frame := await raw.frame()).get("id") != "close":
                frames.append(frame)
            ledger, closed = ledger_of(opened, frames)
            assert closed is None
            assert 0 < ledger.length < 15_000
            again = (await raw.answer("again"))["result"]
            [begun] = again["snapshot"]["streams"]
            assert begun["length"] >= ledger.length
            frames = []
            snapshot = again["snapshot"]
            while snapshot["root_turn"]["status"] != "completed":
                frames.append(await raw.frame())
                snapshot = frames[-1].get("snapshot", snapshot)
            assert {frame["subscription_id"] for frame in frames} == {again["subscription_id"]}
            ledger_of(again, frames)[0].assert_tells(message(root))
            await raw.ask("twice", "subscription.close", subscription_id=opened["subscription_id"])
            assert (await raw.answer("twice"))["error"]["code"] == "not_found"
            raw.close()
        assert host.host.stop() == 0

    go(test)


async def all_of(watch: Any, seen: list[Any]) -> None:
    async for frame in watch:
        seen.append(frame)


def test_a_session_that_is_deleted_ends_its_subscriptions_and_no_others(go: Go) -> None:
    async def test(root: Root) -> None:
        root.create("s2")
        host = await crowd.start(root)
        async with root.client() as client, root.client() as other:
            begun = await client.start_turn("s1", "held", turn_id="t")
            watches = [await each.subscribe("s1") for each in (client, other)]
            stays = await other.subscribe("s2")
            assert await refused(client.delete_session("s1")) == "session_busy"
            await client.stop_turn("s1", "t", begun["turn"]["run_id"])
            await client.delete_session("s1")
            for watch in watches:
                seen: list[Any] = []
                with pytest.raises(SubscriptionClosed) as ended:
                    await all_of(watch, seen)
                assert ended.value.reason == "session_removed"
                # All that happened before is told before.
                assert seen[-1].snapshot["root_turn"]["status"] == "cancelled"
                await watch.close()
            assert await refused(client.subscribe("s1")) == "not_found"
            await client.start_turn("s2", "hello", turn_id="u")
            while (frame := await anext(stays)).type != "projection" or frame.snapshot["root_turn"][
                "status"
            ] != "completed":
                pass
        assert host.host.stop() == 0

    go(test)


def test_an_idle_host_ends_once_nobody_is_connected_and_nothing_runs(go: Go) -> None:
    async def test(root: Root) -> None:
        host = await crowd.start(root, idle=0.1)
        async with root.client() as client:
            await asyncio.sleep(0.25)
            begun = await client.start_turn("s1", "held", turn_id="t")
        await asyncio.sleep(0.25)
        assert host.host.process.poll() is None
        async with root.client() as client:
            await client.stop_turn("s1", "t", begun["turn"]["run_id"])
        assert await asyncio.to_thread(host.host.process.wait, 20) == 0

    go(test)
