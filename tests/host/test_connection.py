"""The host's side of one connection, over real sockets: the handshake, requests in flight, and its end."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

import maka
from maka.journal import errors as journal
from maka.runtime import errors as runtime
from maka.runtime import interactions
from maka.runtime.host.connection import Caller, Connection
from maka.runtime.host.operations import OPERATIONS
from maka.runtime.host.protocol import (
    CODES,
    MAX_FRAME,
    MAX_IN_FLIGHT,
    MAX_SUBSCRIPTIONS,
    FrameError,
    HostError,
    State,
)
from maka.runtime.host.refusals import refusal
from maka.runtime.host.transport import ConnectionLost
from support.wire import EPOCH, ROOT, FakeServices, Handler, Raw, hello, pair, request, serving

Json = dict[str, Any]


def go(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 20))


async def turns(count: int = 30) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Gate:
    """An operation that waits until it is let go."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.callers: list[Caller] = []

    async def __call__(self, input: Any, caller: Caller) -> Json:
        self.callers.append(caller)
        await self.open.wait()
        return {"through": True}

    async def entered(self, count: int = 1) -> None:
        while len(self.callers) < count:
            await asyncio.sleep(0)


def raising(error: BaseException) -> Handler:
    async def handler(input: Any, caller: Caller) -> Json:
        raise error

    return handler


async def big(input: Any, caller: Caller) -> Json:
    return {"pad": "x" * 500_000}


async def goodbye(raw: Raw) -> Json:
    """The last frame of the connection, which the host has ended."""
    [*_, last] = await raw.rest()
    assert last["kind"] == "goodbye"
    return last


# ---------------------------------------------------------------- the handshake


def test_a_hello_is_welcomed() -> None:
    async def main() -> None:
        async with serving() as wire:
            raw, other = await wire.connect(), await wire.connect()
            first = await raw.hello(root=ROOT, host_epoch=EPOCH)
            second = await other.hello()
            ids = {frame.pop("connection_id") for frame in (first, second)}
            assert len(ids) == 2
            assert ids == {connection.id for connection in wire.server.connections}
            assert (
                first
                == second
                == {
                    "kind": "welcome",
                    "protocol": 1,
                    "host_epoch": EPOCH,
                    "state": "ready",
                    "server": {"name": "maka", "version": maka.__version__},
                    "limits": {"frame": MAX_FRAME, "in_flight": MAX_IN_FLIGHT, "subscriptions": MAX_SUBSCRIPTIONS},
                }
            )

    go(main())


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"protocol": {"min": 2, "max": 9}, "news": 1}, "protocol_incompatible"),
        ({"protocol": {"min": -1, "max": 0}}, "protocol_incompatible"),
        ({"root": "/elsewhere"}, "wrong_host"),
        ({"host_epoch": "another"}, "wrong_host"),
        ({"root": None}, "wrong_host"),
    ],
)
def test_who_looks_for_another_host_or_version_is_refused(more: Json, code: str) -> None:
    async def main() -> None:
        async with serving() as wire:
            raw = await wire.connect()
            await raw.send(hello(**more))
            [frame] = await raw.rest()
            assert frame["kind"] == "refused"
            assert frame["code"] == code
            assert frame.get("protocol") == ({"min": 1, "max": 1} if code == "protocol_incompatible" else None)
            assert wire.services.gone == []

    go(main())


def test_the_newest_version_of_both_is_spoken() -> None:
    async def main() -> None:
        async with serving() as wire:
            raw = await wire.connect()
            assert (await raw.hello(protocol={"min": 1, "max": 7}))["protocol"] == 1

    go(main())


@pytest.mark.parametrize(
    "frame",
    [
        request("1", "host.status"),
        hello(extra=1),
        {key: value for key, value in hello().items() if key != "client"},
        hello(client=None),
        hello(client={"id": "c"}),
        hello(client={"id": "c", "surface": "t", "version": 1}),
        hello(client={"id": "", "surface": "t"}),
        hello(client={"id": "c", "surface": "t", "x": "y"}),
        hello(protocol=1),
        hello(protocol={"min": 1}),
        hello(protocol={"min": True, "max": 1}),
        hello(protocol={"min": 1.0, "max": 1.0}),
        hello(protocol={"min": 2, "max": 1}),
    ],
)
def test_what_is_no_hello_ends_the_connection(frame: Json) -> None:
    async def main() -> None:
        async with serving() as wire:
            raw = await wire.connect()
            await raw.send(frame)
            [last] = await raw.rest()
            assert (last["kind"], last["code"]) == ("goodbye", "bad_frame")

    go(main())


def test_a_silent_or_slow_hello_has_its_time() -> None:
    async def main() -> None:
        transport, theirs = await pair()
        with theirs:
            connection = Connection(transport, FakeServices(), handshake=0.1)
            running = asyncio.ensure_future(connection.run())
            loop = asyncio.get_running_loop()
            data = b""
            # A byte now and then is no hello.
            while b"\n" not in data:
                await loop.sock_sendall(theirs, b" ")
                done, _ = await asyncio.wait(
                    {reading := asyncio.ensure_future(loop.sock_recv(theirs, 999))}, timeout=0.02
                )
                if done:
                    data += reading.result()
                else:
                    reading.cancel()
            assert b'"code":"handshake_timeout"' in data
            theirs.close()
            await running

    go(main())


# ---------------------------------------------------------------- requests


def test_each_operation_gets_its_input_and_its_caller() -> None:
    async def main() -> None:
        seen: list[Caller] = []

        async def status(input: Any, caller: Caller) -> Json:
            seen.append(caller)
            return {"input": type(input).__name__}

        async with serving(FakeServices(host_status=status)) as wire:
            raw = await wire.welcomed()
            await raw.ask("7", "host.status")
            assert await raw.receive() == {"kind": "response", "id": "7", "ok": True, "result": {"input": "HostStatus"}}
            [connection] = wire.server.connections
            [caller] = seen
            assert (caller.connection, caller.client_id, caller.surface) == (connection, "c", "test")
            assert connection.client == {"id": "c", "surface": "test"}
            assert caller.answered.is_set()
            # An id may be used again once it is answered.
            await raw.ask("7", "session.list")
            assert (await raw.receive())["result"] == {"took": "SessionList"}

    go(main())


def test_answers_come_in_any_order() -> None:
    async def main() -> None:
        gate = Gate()
        async with serving(FakeServices(turn_query=gate)) as wire:
            raw = await wire.welcomed()
            await raw.send(request("slow", "turn.query", session_id="s", turn_id="t"), request("fast", "session.list"))
            assert (await raw.receive())["id"] == "fast"
            assert not gate.callers[0].answered.is_set()
            gate.open.set()
            assert (await raw.receive())["id"] == "slow"

    go(main())


def test_bad_inputs_and_unknown_operations_are_refused_and_the_connection_goes_on() -> None:
    async def main() -> None:
        async with serving() as wire:
            raw = await wire.welcomed()
            for id, operation, input, code in (
                ("1", "turn.query", {"session_id": "s"}, "invalid_request"),
                ("2", "host.status", {"x": 1}, "invalid_request"),
                ("3", "host.nothing", {}, "unknown_operation"),
            ):
                await raw.send(request(id, operation, **input))
                frame = await raw.receive()
                assert (frame["id"], frame["ok"], frame["error"]["code"]) == (id, False, code)
                assert frame["error"]["retryable"] is False
            await raw.ask("4", "host.status")
            assert (await raw.receive())["ok"]

    go(main())


def test_one_request_too_many_is_refused_and_the_status_is_still_told() -> None:
    async def main() -> None:
        gate, status = Gate(), Gate()
        async with serving(FakeServices(turn_query=gate, host_status=status)) as wire:
            raw = await wire.welcomed()
            frames = [request(str(n), "turn.query", session_id="s", turn_id="t") for n in range(MAX_IN_FLIGHT)]
            await raw.send(*frames, request("over", "session.list"))
            frame = await raw.receive()
            assert (frame["id"], frame["error"]["code"]) == ("over", "too_many_requests")
            assert frame["error"]["retryable"] is True
            await raw.send(request("status", "host.status"), request("second", "host.status"))
            frame = await raw.receive()
            assert (frame["id"], frame["error"]["code"]) == ("second", "too_many_requests")
            status.open.set()
            assert (await raw.receive())["id"] == "status"
            [connection] = wire.server.connections
            assert connection.in_flight == wire.server.in_flight == MAX_IN_FLIGHT
            # Another connection has its own.
            other = await wire.welcomed()
            await other.ask("1", "session.list")
            assert (await other.receive())["ok"]
            gate.open.set()
            assert {(await raw.receive())["id"] for _ in frames} == {frame["id"] for frame in frames}
            assert connection.in_flight == 0
            await raw.ask("again", "session.list")
            assert (await raw.receive())["ok"]

    go(main())


@pytest.mark.parametrize(
    "frame",
    [
        request("held", "session.list"),
        hello(),
        {"kind": "response", "id": "1", "ok": True, "result": {}},
        {"kind": "request", "id": "1", "operation": "host.status"},
        {**request("1", "host.status"), "extra": 1},
        {**request("1", "host.status"), "id": 1},
        request("", "host.status"),
        request("x" * 5000, "host.status"),
        {**request("1", "host.status"), "operation": 1},
        {**request("1", "host.status"), "input": []},
        {**request("1", "host.status"), "input": None},
    ],
)
def test_a_frame_that_is_no_request_ends_that_connection_alone(frame: Json) -> None:
    async def main() -> None:
        gate = Gate()
        async with serving(FakeServices(turn_query=gate)) as wire:
            raw, other = await wire.welcomed(), await wire.welcomed()
            await raw.ask("held", "turn.query", session_id="s", turn_id="t")
            await gate.entered()
            await raw.send(frame)
            last = await goodbye(raw)
            assert last["code"] == "bad_frame"
            assert "\n" not in last["message"]
            assert [gone.id for gone in wire.services.gone] == [gate.callers[0].connection.id]
            # What was taken runs to its end.
            gate.open.set()
            await turns()
            assert wire.services.ended == ["turn.query"]
            await other.ask("1", "host.status")
            assert (await other.receive())["ok"]

    go(main())


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("state", ["starting", "recovering", "ready", "draining"])
def test_what_is_taken_in_which_state(state: State, operation: str) -> None:
    row = OPERATIONS[operation]
    if state in ("starting", "recovering") and not row.always:
        expected = "host_not_ready"
    elif state == "draining" and row.mode == "command":
        expected = "host_draining"
    else:
        expected = "invalid_request"  # it came to its input

    async def main() -> None:
        async with serving(FakeServices(state)) as wire:
            raw = await wire.connect()
            assert (await raw.hello())["state"] == state
            await raw.ask("1", operation, nonsense=1)
            frame = await raw.receive()
            assert frame["error"]["code"] == expected
            assert frame["error"]["retryable"] is CODES[expected]

    go(main())


# ---------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (HostError("queue_full", "m"), "queue_full"),
        (HostError("made_up", "m"), "internal_failure"),
        (journal.SessionNotFound("m"), "not_found"),
        (journal.InvalidEvent("m", type="x"), "invalid_request"),
        (journal.JournalLocked("m"), "session_unavailable"),
        (journal.JournalDamaged("m"), "session_unavailable"),
        (journal.JournalUnsupported("m"), "session_unavailable"),
        (journal.JournalWriteError("m"), "session_unavailable"),
        (journal.JournalConflict("m"), "operation_conflict"),
        (journal.JournalError("m"), "session_unavailable"),
        (runtime.SessionBusy("m"), "session_busy"),
        (runtime.SessionArchived("m"), "session_archived"),
        (runtime.SessionQuarantined("m", permanent=True), "session_unavailable"),
        (runtime.BackendTimeout("m"), "session_unavailable"),
        (runtime.BackendUnknown("m"), "invalid_request"),
        (runtime.InteractionRefused("m", code="already_resolved"), "already_resolved"),
        (runtime.InteractionRefused("m", code="not_found"), "not_found"),
        (runtime.InteractionRefused("m", code="operation_conflict"), "operation_conflict"),
        (runtime.InteractionRefused("m", code="invalid_request"), "invalid_request"),
        (runtime.InteractionRefused("m", code="capacity_exceeded"), "session_busy"),
        (runtime.InteractionRefused("m", code="run_closed"), "already_resolved"),
        (runtime.PlanRefused("m", code="plan_unknown"), "not_found"),
        (runtime.PlanRefused("m", code="plan_active"), "operation_conflict"),
        (runtime.PlanRefused("m", code="revision_conflict"), "operation_conflict"),
        (runtime.ForkRefused("m"), "operation_conflict"),
        (runtime.TurnCancelled("m"), "operation_conflict"),
        (runtime.ContinuationParked("m", rejection_reasons=()), "continuation_parked"),
        (runtime.ContinuationRevalidationError("m", code="x"), "operation_conflict"),
        (runtime.KernelClosed("m"), "host_draining"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_an_operation_raises_has_a_code(error: Exception, code: str) -> None:
    told, message = refusal("turn.start", error)
    assert told == code
    assert told in CODES
    assert message == "m" or code == "internal_failure"


def test_what_is_told_over_the_wire_names_operations_and_nothing_of_python() -> None:
    told, message = refusal("interaction.answer", interactions._resolved("interaction i is closed"))
    assert told == "already_resolved"
    assert message == "interaction i is closed; the first outcome stands, and `interaction.query` shows it"
    _, message = refusal(
        "turn.start", runtime.SessionArchived("it is archived and takes no turns; `unarchive` it first")
    )
    assert message.endswith("take it back first, with `session.unarchive` or `maka session archive ID --undo`")


@pytest.mark.parametrize(
    "error", [ValueError("secret words"), asyncio.CancelledError("secret words"), FrameError("x", "y")]
)
def test_what_nobody_foresaw_is_logged_and_not_told(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving(FakeServices(session_list=raising(error))) as wire:
            raw = await wire.welcomed()
            await raw.ask("1", "session.list")
            frame = await raw.receive()
            assert frame["error"] == {
                "code": "internal_failure",
                "message": "something in the host failed at session.list; its log says what, host.log in the root",
                "retryable": False,
            }
            await raw.ask("2", "host.status")
            assert (await raw.receive())["ok"]

    go(main())
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.exc_info is not None
    assert record.exc_info[1] is error


def test_a_sentence_that_cannot_be_encoded_is_told_as_far_as_it_can() -> None:
    async def main() -> None:
        async with serving(FakeServices(session_list=raising(HostError("not_found", "no \udcff here")))) as wire:
            raw = await wire.welcomed()
            await raw.ask("1", "session.list")
            assert (await raw.receive())["error"]["message"] == "no \ufffd here"

    go(main())


@pytest.mark.parametrize("result", [{"x": "x" * MAX_FRAME}, {"x": object()}])
def test_a_result_that_no_frame_holds_is_an_internal_failure(result: Json) -> None:
    async def handler(input: Any, caller: Caller) -> Json:
        return result

    async def main() -> None:
        async with serving(FakeServices(session_list=handler)) as wire:
            raw = await wire.welcomed()
            await raw.ask("1", "session.list")
            assert (await raw.receive())["error"]["code"] == "internal_failure"

    go(main())


# ---------------------------------------------------------------- what is sent, and the end


def test_what_an_operation_sends_by_itself_comes_behind_its_answer() -> None:
    async def main() -> None:
        async def opened(input: Any, caller: Caller) -> Json:
            async def push() -> None:
                await caller.answered.wait()
                await caller.connection.send({"kind": "frame", "sequence": 1})

            wire.services.spawn(push(), "push")
            await asyncio.sleep(0)
            return {"subscription_id": "x"}

        async with serving(FakeServices(subscription_open=opened)) as wire:
            raw = await wire.welcomed()
            await raw.ask("1", "subscription.open", session_id="s")
            assert [(await raw.receive())["kind"] for _ in range(2)] == ["response", "frame"]

    go(main())


def test_who_says_no_more_is_still_answered_and_its_subscriptions_end() -> None:
    async def main() -> None:
        gate = Gate()
        async with serving(FakeServices(turn_query=gate)) as wire:
            raw = await wire.welcomed()
            await raw.ask("1", "turn.query", session_id="s", turn_id="t")
            raw.writer.write_eof()
            await gate.entered()
            while not wire.services.gone:
                await asyncio.sleep(0)
            connection = gate.callers[0].connection
            assert connection.lost.is_set()
            with pytest.raises(ConnectionLost):
                await connection.send({"kind": "frame"})
            gate.open.set()
            [frame] = await raw.rest()
            assert frame["result"] == {"through": True}
            assert wire.services.gone == [connection]

    go(main())


def test_what_was_taken_runs_to_its_end_although_its_client_is_gone() -> None:
    async def main() -> None:
        gate = Gate()
        async with serving(FakeServices(turn_query=gate)) as wire:
            raw = await wire.welcomed()
            await raw.ask("1", "turn.query", session_id="s", turn_id="t")
            await gate.entered()
            raw.writer.transport.abort()
            while not wire.services.gone:
                await asyncio.sleep(0)
            gate.open.set()
            while wire.server.connections:
                await asyncio.sleep(0)
            assert wire.services.ended == ["turn.query"]
            assert gate.callers[0].answered.is_set()
            assert len(wire.services.gone) == 1

    go(main())


def test_a_client_that_takes_nothing_waits_for_itself_alone() -> None:
    async def main() -> None:
        async with serving(FakeServices(session_list=big)) as wire:
            slow, quick = await wire.welcomed(), await wire.welcomed()
            for n in range(200):
                await slow.ask(str(n), "session.list")
                if n % 20 == 0:
                    await quick.ask(str(n), "session.list")
                    assert (await quick.receive())["ok"]
            [held] = [connection for connection in wire.server.connections if connection.in_flight]
            assert held.in_flight <= MAX_IN_FLIGHT
            # It is not lost: as soon as it reads it has its answers.
            answers = [await slow.receive() for _ in range(200)]
            assert len({frame["id"] for frame in answers}) == 200

    go(main())


def test_a_client_that_takes_nothing_for_too_long_is_given_up() -> None:
    async def main() -> None:
        async with slowly() as (connection, raw, running):
            await raw.send(*(request(str(n), "session.list") for n in range(12)))
            await running
            assert connection.lost.is_set()
            assert connection.in_flight == 0
            assert len(await raw.reader.read()) < 12 * 500_000

    go(main())


def test_a_client_that_takes_little_is_not_given_up() -> None:
    async def main() -> None:
        async with slowly() as (_, raw, running):
            await raw.send(*(request(str(n), "session.list") for n in range(12)))
            for _ in range(12):
                # It takes something between any two looks.
                await asyncio.sleep(0.03)
                assert (await raw.receive())["ok"]
            raw.writer.close()
            await running

    go(main())


@contextlib.asynccontextmanager
async def slowly() -> AsyncIterator[tuple[Connection, Raw, "asyncio.Future[None]"]]:
    """A connection that is looked at often, and whose answers are big."""
    services = FakeServices(session_list=big)
    transport, theirs = await pair()
    connection = Connection(transport, services, looks=10, look=0.02)
    running = asyncio.ensure_future(connection.run())
    # Reads no further ahead than two lines.
    raw = Raw(*await asyncio.open_unix_connection(sock=theirs, limit=600_000))
    assert (await raw.hello())["kind"] == "welcome"
    yield connection, raw, running
    await asyncio.gather(*services.tasks)
    assert services.gone == [connection]


def test_the_end_of_the_host_ends_what_runs_with_an_answer() -> None:
    async def main() -> None:
        gate = Gate()
        async with serving(FakeServices(turn_query=gate)) as wire:
            raw = await wire.welcomed()
            await raw.ask("1", "turn.query", session_id="s", turn_id="t")
            await gate.entered()
            for task in list(wire.services.tasks):
                task.cancel()
            frame = await raw.receive()
            assert (frame["id"], frame["error"]["code"]) == ("1", "host_draining")
            assert frame["error"]["retryable"] is True

    go(main())
