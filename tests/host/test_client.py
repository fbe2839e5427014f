"""A client keeps its connection, its requests and its subscriptions straight, whatever becomes of the host."""

import asyncio
import os
from collections.abc import Iterator
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import pytest

import maka
from maka.runtime.host import (
    HostError,
    HostUnreachable,
    RequestInterrupted,
    SubscriptionClosed,
    connect,
    endpoint,
    watching,
)
from maka.runtime.host import client as client_module
from maka.runtime.host.link import pauses
from maka.runtime.host.ownership import RootLock
from support.fake_host import FakeHost, Json, never, play


async def soon() -> None:
    """Lets frames that were sent arrive."""
    for _ in range(20):
        await asyncio.sleep(0)


# ---------------------------------------------------------------- connecting


def test_a_client_says_who_it_is_and_learns_who_the_host_is(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path) as host:
            async with connect(tmp_path, surface="desktop", client_id="c1") as client:
                assert (client.host_epoch, client.state) == (host.epoch, "ready")
                assert await client.status() == {"host_epoch": host.epoch, "state": "ready", "pid": os.getpid()}
                assert host.peers[0].hello == {
                    "kind": "hello",
                    "protocol": {"min": 1, "max": 1},
                    "client": {"id": "c1", "surface": "desktop", "version": maka.__version__},
                    "root": endpoint.name_of(tmp_path),
                    "host_epoch": host.epoch,
                }
            await host.until(lambda: not host.peers)

    play(scenario())


def test_it_is_found_by_the_configured_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAKA_HOME", str(tmp_path))

    async def scenario() -> None:
        async with FakeHost(tmp_path), maka.connect() as client:
            assert client.root == tmp_path

    play(scenario())


@pytest.mark.parametrize("left", [False, True])
def test_where_no_host_runs_it_is_told_at_once(tmp_path: Path, left: bool) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path) as host:
            registration = host.registration()
        if left:
            endpoint.write(tmp_path, registration)
        with pytest.raises(HostUnreachable, match=f"no host runs for {tmp_path}; start one with `maka host start`"):
            async with connect(tmp_path, timeout=60):
                pass

    play(scenario())


def test_a_host_that_is_starting_is_waited_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        lock = RootLock.acquire(tmp_path)
        connecting = asyncio.ensure_future(connect(tmp_path).__aenter__())
        await asyncio.sleep(0.03)
        assert not connecting.done()
        lock.release()
        async with FakeHost(tmp_path, state="starting") as host:
            await host.until(lambda: host.peers)
            assert not connecting.done()
            host.say("recovering")
            await soon()
            assert not connecting.done()
            host.say("ready")
            client = await connecting
            assert client.state == "ready"
            await client.aclose()

    play(scenario())


def test_who_does_not_wait_sees_a_host_that_is_not_ready(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path, state="recovering") as host:
            async with connect(tmp_path, wait_ready=False) as client:
                assert client.state == "recovering"
                assert (await client.status())["state"] == "recovering"
            pid = os.getpid()
            with pytest.raises(HostUnreachable, match=rf"\(process {pid}\) is recovering; try again in a while"):
                async with connect(tmp_path, timeout=0.1):
                    pass
            host.state = "draining"
            with pytest.raises(HostUnreachable, match="is draining"):
                async with connect(tmp_path, reconnect=False):
                    pass

    play(scenario())


def test_an_owner_that_does_not_listen_is_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        with (
            RootLock.acquire(tmp_path),
            pytest.raises(HostUnreachable, match=rf"process {os.getpid()}\) holds .* does not serve yet"),
        ):
            async with connect(tmp_path, timeout=0.05):
                pass

    play(scenario())


def test_a_host_that_takes_the_connection_and_is_silent_is_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path) as host:
            host.silent = True
            with pytest.raises(HostUnreachable, match=rf"\(process {os.getpid()}\) has not answered for"):
                async with connect(tmp_path, timeout=0.1):
                    pass

    play(scenario())


def test_a_refusal_is_the_host_s_own(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path) as host:
            host.refusal = {
                "code": "protocol_incompatible",
                "message": "speaks 3 to 4",
                "protocol": {"min": 3, "max": 4},
            }
            with pytest.raises(HostError, match="speaks 3 to 4") as refused:
                async with connect(tmp_path):
                    pass
            assert refused.value.code == "protocol_incompatible"

    play(scenario())


def test_the_host_of_a_root_that_was_copied_is_not_taken_for_its_own(tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "copy").mkdir(mode=0o700)
        async with FakeHost(tmp_path / "root") as host:
            endpoint.write(tmp_path / "copy", host.registration())
            with pytest.raises(HostUnreachable, match=r"no host runs for .*copy"):
                async with connect(tmp_path / "copy"):
                    pass

    play(scenario())


def test_a_socket_that_others_could_have_made_is_not_used(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path) as host:
            host.path.parent.chmod(0o755)
            with pytest.raises(HostUnreachable, match=r"is open to others \(mode 0755\), .* `chmod 700 "):
                async with connect(tmp_path, timeout=0.05):
                    pass
            assert not host.peers

    play(scenario())


@pytest.mark.parametrize(
    "welcome", [{"kind": "welcome"}, {"kind": "nonsense"}, {"kind": "goodbye", "code": "internal"}]
)
def test_what_is_no_welcome_is_no_host(tmp_path: Path, welcome: Json, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path) as host:
            host.refusal = {**welcome, "message": ""}
            with pytest.raises(HostUnreachable, match="does not answer"):
                async with connect(tmp_path, timeout=0.05):
                    pass

    play(scenario())


def test_a_client_that_was_never_entered_says_so(tmp_path: Path) -> None:
    client = connect(tmp_path)
    for ask in (lambda: client.state, lambda: client.host_epoch, lambda: client.closed):
        with pytest.raises(HostUnreachable, match="use it as `async with connect"):
            ask()


# ---------------------------------------------------------------- requests


def test_answers_find_their_requests_in_any_order(tmp_path: Path) -> None:
    async def scenario() -> None:
        order: list[asyncio.Event] = [asyncio.Event() for _ in range(8)]

        async def answer(input: Json) -> Json:
            await order[input["n"]].wait()
            return {"n": input["n"]}

        async with FakeHost(tmp_path) as host, connect(tmp_path) as client:
            host.answers["turn.query"] = answer
            asking = [asyncio.ensure_future(client.request("turn.query", {"n": n})) for n in range(8)]
            for n in (3, 0, 7, 1, 6, 2, 5, 4):
                order[n].set()
                assert await asking[n] == {"n": n}

    play(scenario())


def test_no_more_than_the_host_s_bound_are_in_flight_and_status_is_beyond(tmp_path: Path) -> None:
    async def scenario() -> None:
        release = asyncio.Event()

        async def answer(input: Json) -> Json:
            await release.wait()
            return {}

        async with FakeHost(tmp_path) as host, connect(tmp_path) as client:
            host.answers["turn.query"] = answer
            asking = [asyncio.ensure_future(client.query_turn("s", str(n))) for n in range(70)]
            await host.until(lambda: len(host.asked) == 64)
            assert (await client.status())["state"] == "ready"
            assert len(host.of("turn.query")) == 64
            # A request that is given up keeps its place until the host has answered.
            asking[0].cancel()
            await client.status()
            assert len(host.of("turn.query")) == 64
            release.set()
            await asyncio.gather(*asking[1:])
            assert len(host.of("turn.query")) == 70

    play(scenario())


def test_a_refused_request_raises_its_code_and_the_connection_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path) as host, connect(tmp_path) as client:

            def refuse(input: Json) -> Json:
                raise HostError("not_found", "there is no session s; look with `maka session list`")

            host.answers["turn.query"] = refuse
            with pytest.raises(HostError, match="there is no session s") as refused:
                await client.query_turn("s", "t")
            assert refused.value.code == "not_found"
            assert (await client.status())["state"] == "ready"

    play(scenario())


@pytest.mark.parametrize(("content", "code"), [("x" * 800_000, "frame_too_large"), ("\ud800", "bad_frame")])
def test_what_no_frame_can_hold_is_refused_here(tmp_path: Path, content: str, code: str) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path) as host, connect(tmp_path) as client:
            for _ in range(70):
                with pytest.raises(HostError, match=r"^turn\.start cannot be sent: ") as refused:
                    await client.start_turn("s", content)
                assert refused.value.code == code
            assert not host.asked

    play(scenario())


def test_a_path_is_its_text_and_what_is_no_json_is_the_programs_mistake(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path) as host, connect(tmp_path) as client:
            host.answers["session.create"] = lambda asked: {"session_id": asked["session_id"], "revision": 0}
            await client.create_session("s", cwd=tmp_path)
            assert host.asked[-1][1]["cwd"] == str(tmp_path)
            with pytest.raises(TypeError, match=r"^session\.create cannot be sent: its input .*not JSON .*set"):
                await client.create_session("s", labels={"a"})
            assert len(host.asked) == 1

    play(scenario())


def test_a_long_request_is_waited_for_while_the_host_lives(tmp_path: Path) -> None:
    async def scenario() -> None:
        async def answer(input: Json) -> Json:
            await asyncio.sleep(0.25)
            return {"status": "cancelled"}

        async with FakeHost(tmp_path) as host, connect(tmp_path, timeout=0.1) as client:
            host.answers["turn.stop"] = answer
            assert await client.stop_turn("s", "t", "r") == {"status": "cancelled"}
            assert len(host.of("turn.stop")) == 1
            assert host.of("host.status")

    play(scenario())


def test_a_host_that_tells_something_lives(tmp_path: Path) -> None:
    async def scenario() -> None:
        answered = asyncio.Event()

        async def answer(_: Json) -> Json:
            await answered.wait()
            return {"status": "cancelled"}

        async with FakeHost(tmp_path) as host, connect(tmp_path, timeout=0.1) as client:
            host.answers.update({"turn.stop": answer, "host.status": never})
            asking = asyncio.ensure_future(client.stop_turn("s", "t", "r"))
            await host.until(lambda: host.of("host.status"))
            for _ in range(16):
                host.say("ready")
                await asyncio.sleep(0.015)
            answered.set()
            assert await asking == {"status": "cancelled"}
            assert len(host.of("host.status")) == 1

    play(scenario())


def test_a_host_that_hangs_is_named_and_may_come_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path) as host, connect(tmp_path, timeout=0.1) as client:
            host.silent = True
            said = rf"the host of {tmp_path} \(process {os.getpid()}\) has not answered for 0.1 s; look at what holds"
            for answer in await asyncio.gather(
                *(client.query_turn("s", str(n)) for n in range(5)), client.status(), return_exceptions=True
            ):
                with pytest.raises(HostUnreachable, match=said):
                    raise answer if isinstance(answer, BaseException) else AssertionError
            assert len(host.of("host.status")) == 2, "its own, and one that all others share"
            host.silent = False
            assert (await client.status())["state"] == "ready"

    play(scenario())


# ---------------------------------------------------------------- connections that are lost


def test_a_request_is_sent_again_over_the_next_connection(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path) as host, connect(tmp_path) as client:
            host.answers["turn.start"] = never
            asking = asyncio.ensure_future(client.start_turn("s", "go"))
            await host.until(lambda: host.asked)
            host.answers["turn.start"] = lambda asked: {"turn": {"turn_id": asked["turn_id"]}}
            host.cut()
            turn = (await asking)["turn"]
            first, second = host.of("turn.start")
            assert first == second
            assert turn["turn_id"] == first["turn_id"], "minted once"
            assert client.state == "ready"

    play(scenario())


def test_a_request_survives_a_restart_of_the_host(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path) as first:
            client = await connect(tmp_path).__aenter__()
            first.answers["session.create"] = never
            asking = asyncio.ensure_future(client.create_session("s"))
            await first.until(lambda: first.asked)
            first.say("draining")
        async with FakeHost(tmp_path, state="recovering") as second:

            def create(input: Json) -> Json:
                if second.state != "ready":
                    raise HostError("host_not_ready", "the host is recovering")
                return {"session_id": input["session_id"], "revision": 0}

            second.answers["session.create"] = create
            await second.until(lambda: second.asked)
            await soon()
            assert not asking.done()
            assert client.host_epoch == second.epoch
            second.say("ready")
            assert await asking == "s"
            assert len(second.of("session.create")) == 2, "once when it came, once when it was ready"
            await client.aclose()

    play(scenario())


def test_a_command_that_a_leaving_host_refuses_goes_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "pauses", lambda: repeat(0.0))

    async def scenario() -> None:
        async with FakeHost(tmp_path) as first:
            client = await connect(tmp_path).__aenter__()

            def refuse(input: Json) -> Json:
                raise HostError("host_draining", "the host is stopping")

            first.answers["session.archive"] = refuse
            asking = asyncio.ensure_future(client.archive_session("s"))
            await first.until(lambda: first.asked)
            await soon()
            assert len(first.asked) == 1, "it is not asked again and again"
        async with FakeHost(tmp_path) as second:
            second.answers["session.archive"] = lambda _: {"revision": 3}
            assert await asking == {"revision": 3}
            assert first.of("session.archive") == second.of("session.archive")
            await client.aclose()

    play(scenario())


def test_what_passes_is_not_waited_for_longer_than_the_timeout(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path) as host, connect(tmp_path, timeout=0.1) as client:

            def refuse(input: Json) -> Json:
                raise HostError("host_draining", "the host is stopping")

            host.answers["session.archive"] = refuse
            with pytest.raises(HostError, match="the host is stopping"):
                await client.archive_session("s")

    play(scenario())


def test_without_reconnecting_a_loss_is_told_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path) as host, connect(tmp_path, reconnect=False) as client:
            host.answers["turn.start"] = never
            asking = asyncio.ensure_future(client.start_turn("s", "go"))
            await host.until(lambda: host.asked)
            host.cut()
            with pytest.raises(RequestInterrupted, match=r"before turn\.start was answered, so it may have been done"):
                await asking
            await client.closed
            assert client.state == "disconnected"
            with pytest.raises(HostUnreachable, match="was lost; look with `maka host status`"):
                await client.status()
            assert len(host.asked) == 1

    play(scenario())


def test_a_host_that_does_not_come_back_is_gone_for_good(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path) as host:
            client = await connect(tmp_path, timeout=0.15).__aenter__()
            host.answers["turn.start"] = never
            asking = asyncio.ensure_future(client.start_turn("s", "go"))
            await host.until(lambda: host.asked)
        await soon()
        assert client.state == "disconnected"
        with pytest.raises(RequestInterrupted):
            await asking
        await client.closed
        with pytest.raises(HostUnreachable, match="was lost"):
            await client.status()
        await client.aclose()

    play(scenario())


def test_a_host_that_drops_every_connection_is_not_asked_as_fast_as_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused = asyncio.Event()

    def pauses() -> Iterator[float]:
        yield from (0.0, 0.0)
        paused.set()
        yield 60.0

    async def scenario() -> None:
        async with FakeHost(tmp_path) as host, connect(tmp_path) as client:
            for _ in range(2):
                host.cut()
                await host.until(lambda: host.peers)
                assert (await client.status())["state"] == "ready"
            host.cut()
            await paused.wait()
            assert client.state == "disconnected"

    monkeypatch.setattr(client_module, "pauses", pauses)
    play(scenario())


def test_attempts_come_at_first_quickly_and_then_twice_a_second() -> None:
    lasting = list(islice(pauses(), 8))
    for longest, pause in zip([0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5, 0.5], lasting, strict=True):
        assert longest / 2 <= pause <= longest


def test_a_shutdown_is_asked_of_one_host_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path) as host, connect(tmp_path) as client:
            assert await client.shutdown("handoff", timeout=2.0) == {"state": "draining"}
            assert host.asked == [("host.shutdown", {"mode": "handoff", "timeout": 2.0})]
            host.answers["host.shutdown"] = never
            asking = asyncio.ensure_future(client.shutdown())
            await host.until(lambda: len(host.asked) == 2)
            host.cut()
            with pytest.raises(RequestInterrupted):
                await asking
            assert (await client.status())["state"] == "ready"
            assert len(host.of("host.shutdown")) == 2

    play(scenario())


def test_a_goodbye_that_would_come_again_is_not_asked_for_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path) as host, connect(tmp_path) as client:
            host.answers["turn.start"] = never
            asking = asyncio.ensure_future(client.start_turn("s", "go"))
            await host.until(lambda: host.asked)
            host.tell({"kind": "goodbye", "code": "bad_frame", "message": "a frame of yours was none"})
            await soon()
            host.cut()
            with pytest.raises(HostError, match="a frame of yours was none"):
                await asking
            assert (await client.status())["state"] == "ready"
            assert len(host.of("turn.start")) == 1

    play(scenario())


@pytest.mark.parametrize("raw", [b"nonsense\n", b'{"kind":"response"}\n', b'{"kind":"state"}\n', b"\n"])
def test_a_host_that_sends_nonsense_loses_the_connection_and_no_more(tmp_path: Path, raw: bytes) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path) as host, connect(tmp_path) as client:
            host.answers["turn.query"] = never
            asking = asyncio.ensure_future(client.query_turn("s", "t"))
            await host.until(lambda: host.asked)
            host.peers[0].writer.write(raw)
            with pytest.raises(HostError, match="the host has sent"):
                await asking
            assert (await client.status())["state"] == "ready"

    play(scenario())


def test_frames_that_are_newer_than_this_program_are_passed_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path) as host, connect(tmp_path) as client:
            host.tell({"kind": "weather", "sun": True})
            host.tell({"kind": "response", "id": "77", "ok": True, "result": {}})
            assert (await client.status())["state"] == "ready"

    play(scenario())


def test_closing_ends_what_waits_and_tells_it_why(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path) as host:
            client = await connect(tmp_path).__aenter__()
            host.answers["turn.query"] = never
            asking = [asyncio.ensure_future(client.query_turn("s", str(n))) for n in range(70)]
            watch = await client.subscribe("s")
            reading = asyncio.ensure_future(anext(watch))
            await host.until(lambda: len(host.of("turn.query")) >= 63)
            await client.aclose()
            await client.aclose()
            await client.closed
            for one in asking:
                with pytest.raises(HostUnreachable):
                    await one
            with pytest.raises(SubscriptionClosed) as ended:
                await reading
            assert ended.value.reason == "connection_closed"
            with pytest.raises(HostUnreachable, match="this client was closed; connect again"):
                await client.status()
            await host.until(lambda: not host.peers)

    play(scenario())


# ---------------------------------------------------------------- subscriptions


def test_frames_come_in_order_and_end_with_the_close(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path) as host, connect(tmp_path) as client:
            async with await client.subscribe("s", since=4) as watch:
                assert host.of("subscription.open") == [{"session_id": "s", "since": 4}]
                assert watch.snapshot == host.snapshot
                assert (watch.session_id, watch.host_epoch) == ("s", host.epoch)
                host.push(watch.subscription_id, "projection", snapshot={"position": 1})
                host.push(watch.subscription_id, "delta", delta={"text": "a"})
                host.event(9)
                frames = [await anext(watch) for _ in range(3)]
                assert [(frame.sequence, frame.type) for frame in frames] == [
                    (1, "projection"),
                    (2, "delta"),
                    (3, "event"),
                ]
                assert (frames[0].snapshot, frames[1].delta) == ({"position": 1}, {"text": "a"})
                assert frames[2].event is not None
                assert frames[2].event["seq"] == 9
                assert frames[2].delta is None
                host.event(10)
                await soon()
                await watch.close()
                assert [frame async for frame in watch] == []
            assert not host.watched
            assert len(host.of("subscription.close")) == 1

    play(scenario())


def test_frames_right_behind_the_answer_are_not_missed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path) as host, connect(tmp_path) as client:

            def opened(input: Json) -> Json:
                result = host._open(host.peers[0])
                asyncio.get_running_loop().call_soon(host.event, 1)
                return result

            host.answers["subscription.open"] = opened
            watch = await client.subscribe("s")
            frame = await anext(watch)
            assert frame.event is not None
            assert frame.event["seq"] == 1

    play(scenario())


def test_a_gap_ends_that_subscription_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path) as host, connect(tmp_path) as client:
            one, two = await client.subscribe("s"), await client.subscribe("t")
            host.event(1)
            peer, last = host.watched[one.subscription_id]
            host.watched[one.subscription_id] = (peer, last + 1)
            host.event(2)
            assert (await anext(one)).sequence == 1
            with pytest.raises(SubscriptionClosed, match="frame 3 of session s came where 2 was due") as ended:
                await anext(one)
            assert ended.value.reason == "sequence_gap"
            assert [(await anext(two)).sequence for _ in range(2)] == [1, 2]
            await host.until(lambda: one.subscription_id not in host.watched)
            await one.close()
            assert len(host.of("subscription.close")) == 1
            assert client.state == "ready"

    play(scenario())


def test_a_frame_of_another_epoch_ends_the_subscription(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path) as host, connect(tmp_path) as client:
            watch = await client.subscribe("s")
            host.epoch = "f" * 32
            host.event(1)
            with pytest.raises(SubscriptionClosed) as ended:
                await anext(watch)
            assert ended.value.reason == "sequence_gap"

    play(scenario())


@pytest.mark.parametrize("reason", ["slow_consumer", "session_removed", "host_draining", "session_unavailable"])
def test_the_host_s_reason_is_told_behind_what_came_before(tmp_path: Path, reason: str) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path) as host, connect(tmp_path) as client:
            watch = await client.subscribe("s")
            host.event(1)
            host.push(watch.subscription_id, "closed", reason=reason, message="so it is")
            assert (await anext(watch)).sequence == 1
            for _ in range(2):
                with pytest.raises(SubscriptionClosed, match="so it is") as ended:
                    await anext(watch)
                assert ended.value.reason == reason
            await watch.close()
            await client.status()
            assert not host.of("subscription.close"), "the host knows"

    play(scenario())


@pytest.mark.parametrize("bound", ["MAX_FRAMES", "MAX_BYTES"])
def test_a_slow_reader_is_cut_off_here_and_holds_nobody_up(
    tmp_path: Path, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, bound, {"MAX_FRAMES": 4, "MAX_BYTES": 1300}[bound])
    text = {"MAX_FRAMES": "", "MAX_BYTES": "x" * 100}[bound]

    async def scenario() -> None:
        async with FakeHost(tmp_path) as host, connect(tmp_path) as client:
            slow, quick = await client.subscribe("s"), await client.subscribe("t")
            for seq in range(1, 9):
                host.event(seq, {"text": text})
                assert (await anext(quick)).sequence == seq
            await host.until(lambda: slow.subscription_id not in host.watched)
            assert [(await anext(slow)).sequence for _ in range(4)] == [1, 2, 3, 4]
            with pytest.raises(SubscriptionClosed, match="not read fast enough in this process") as ended:
                await anext(slow)
            assert ended.value.reason == "slow_consumer"

    play(scenario())


def test_what_was_read_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "MAX_BYTES", 200)

    async def scenario() -> None:
        opened = {"subscription_id": "w", "host_epoch": "e", "sequence": 1, "snapshot": {}}
        watch = watching.Subscription("s", opened, lambda: asyncio.sleep(0))
        for sequence in range(1, 12):
            delta = {"text": "x" * 10}
            assert watch.take({"host_epoch": "e", "sequence": sequence, "type": "delta", "delta": delta})
            if sequence > 1:
                assert (await anext(watch)).sequence == sequence - 1

    play(scenario())


def test_a_frame_that_is_big_by_itself_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "MAX_BYTES", 10)

    async def scenario() -> None:
        async with FakeHost(tmp_path) as host, connect(tmp_path) as client:
            watch = await client.subscribe("s")
            host.event(1)
            assert (await anext(watch)).sequence == 1

    play(scenario())


def test_a_subscription_ends_with_its_connection(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path) as host, connect(tmp_path) as client:
            watch = await client.subscribe("s")
            host.event(1)
            await soon()
            host.cut()
            assert (await anext(watch)).sequence == 1
            with pytest.raises(SubscriptionClosed, match="has ended; subscribe again") as ended:
                await anext(watch)
            assert ended.value.reason == "connection_closed"
            await watch.close()
            again = await client.subscribe("s")
            host.event(2)
            assert (await anext(again)).sequence == 1

    play(scenario())


@pytest.mark.parametrize("late", [False, True])
def test_a_subscription_that_nobody_waits_for_any_more_is_closed(tmp_path: Path, late: bool) -> None:
    async def scenario() -> None:
        async with FakeHost(tmp_path) as host, connect(tmp_path) as client:
            release = asyncio.Event()

            async def opened(input: Json) -> Json:
                await release.wait()
                return host._open(host.peers[0])

            host.answers["subscription.open"] = opened
            opening = asyncio.ensure_future(client.subscribe("s"))
            await host.until(lambda: host.asked)
            if late:
                release.set()
                assert client._link is not None
                while not client._link._watches:
                    await asyncio.sleep(0)
                assert not opening.done()
            opening.cancel()
            release.set()
            with pytest.raises(asyncio.CancelledError):
                await opening
            await host.until(lambda: host.of("subscription.close"))
            await host.until(lambda: not host.watched)

    play(scenario())


# ---------------------------------------------------------------- calls


def test_each_operation_is_asked_as_the_protocol_has_it(tmp_path: Path) -> None:
    from maka.runtime.host.operations import OPERATIONS

    asked: dict[str, Json] = {}
    results: dict[str, Json] = {
        "session.list": {"sessions": [], "next": None},
        "session.history": {"events": [], "next": None},
        "session.event": {"text": '{"a":1}', "offset": 0, "total": 7},
        "plan.query": {"plans": [], "next": None},
    }

    class Recording(connect(tmp_path).__class__):  # type: ignore[misc]
        async def request(self, operation: str, input: Json, *, once: bool = False) -> Any:
            assert OPERATIONS[operation].input(**input)
            asked[operation] = input
            return results.get(operation, {})

    async def scenario() -> None:
        client = Recording(tmp_path, surface="test", client_id=None, wait_ready=True, timeout=1.0, reconnect=True)
        await client.status()
        await client.shutdown()
        assert await client.create_session(name="n", labels=["x"]) == asked["session.create"]["session_id"]
        await client.list_sessions()
        await client.update_session("s", {"name": "m"})
        await client.archive_session("s")
        await client.unarchive_session("s")
        assert await client.fork_session("s", "t") == asked["session.fork"]["new_session_id"]
        await client.delete_session("s")
        await client.release_session("s")
        await client.history("s", before=7)
        big = {"seq": 3, "ts": 1, "type": "x", "data": None, "bytes": 7}
        assert await client.whole_event("s", big) == {"seq": 3, "ts": 1, "type": "x", "data": {"a": 1}}
        await client.start_turn("s", "go", max_steps=3)
        await client.query_turn("s", "t")
        await client.stop_turn("s", "t", "r", mode="after_step", retract=True)
        submitted = await client.submit_message("s", "go", placement="next_turn")
        assert submitted == {"message_id": asked["turn.message.submit"]["message_id"]}
        await client.interrupt_turn("s", "t", "r")
        await client.retract_queue("s", ("m",))
        await client.query_interaction("s", "i")
        await client.answer_interaction("s", "i", {"kind": "permission_answer", "decision": "deny"})
        await client.query_resume("s", rerun=("c",))
        await client.start_resume("s", source_run_id="r", high_water=9)
        assert await client.plans.query("s") == []
        await client.plans.propose("s", "title", [{"text": "one"}])
        await client.plans.approve("s", "p", 1)
        await client.plans.cancel("s", "e", "why")
        await client.plans.complete("s", "e")

    play(scenario())
    assert asked.keys() == OPERATIONS.keys() - {"subscription.open", "subscription.close"}
    minted = {key for input in asked.values() for key, value in input.items() if len(str(value)) == 32}
    assert minted == {
        "session_id",
        "new_session_id",
        "request_id",
        "turn_id",
        "stop_id",
        "message_id",
        "interrupt_id",
        "retract_id",
    }


def test_all_rows_of_a_listing_come_over_its_pages(tmp_path: Path) -> None:
    async def scenario() -> None:
        pages = {None: (["a", "b"], "b"), "b": (["c"], None)}

        def page(input: Json) -> Json:
            names, following = pages[input.get("after")]
            return {"sessions": [{"session_id": name} for name in names], "next": following}

        async with FakeHost(tmp_path) as host, connect(tmp_path) as client:
            host.answers["session.list"] = page
            assert [row["session_id"] for row in await client.list_sessions()] == ["a", "b", "c"]

    play(scenario())


def test_all_plans_come_over_their_pages(tmp_path: Path) -> None:
    async def scenario() -> None:
        def page(input: Json) -> Json:
            plans = [{"proposal_id": name} for name in "abc"][input["offset"] :][:2]
            return {"plans": plans, "next": None if input["offset"] else 2}

        async with FakeHost(tmp_path) as host, connect(tmp_path) as client:
            host.answers["plan.query"] = page
            assert [row["proposal_id"] for row in await client.plans.query("s")] == ["a", "b", "c"]

    play(scenario())


def test_a_history_is_walked_back_with_big_events_whole(tmp_path: Path) -> None:
    async def scenario() -> None:
        text = '{"text":"é😀' + "x" * 20 + '"}'

        def page(input: Json) -> Json:
            if input.get("before") is None:
                big = {"seq": 9, "ts": 1, "type": "user/message", "data": None, "bytes": 40}
                return {"events": [{"seq": 8, "ts": 1, "type": "turn/start", "data": {}}, big], "next": 8}
            assert input["before"] == 8
            return {"events": [{"seq": 0, "ts": 1, "type": "session/header", "data": {}}], "next": None}

        def piece(input: Json) -> Json:
            offset = input["offset"]
            assert input["seq"] == 9
            return {"text": text[offset : offset + 7], "offset": offset, "total": len(text)}

        async with FakeHost(tmp_path) as host, connect(tmp_path) as client:
            host.answers.update({"session.history": page, "session.event": piece})
            walked = [event async for event in client.walk_history("s")]
            assert [event["seq"] for event in walked] == [9, 8, 0]
            assert walked[0]["data"] == {"text": "é😀" + "x" * 20}

    play(scenario())
