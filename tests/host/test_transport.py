"""One JSON value a line, bounded both ways, over real sockets."""

import asyncio
import contextlib
import json
import socket
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maka.runtime.host.protocol import MAX_FRAME, QUEUE_BYTES, QUEUE_FRAMES, FrameError, encode
from maka.runtime.host.transport import ConnectionLost, FramedTransport, dial
from support.wire import pair, socket_path

Json = dict[str, Any]


def go(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


async def turns(count: int = 20) -> None:
    """Lets the loop do what it can do without waiting."""
    for _ in range(count):
        await asyncio.sleep(0)


async def read(theirs: socket.socket, size: int = 2**20) -> bytes:
    return await asyncio.get_running_loop().sock_recv(theirs, size)


async def read_all(theirs: socket.socket) -> bytes:
    data = b""
    while piece := await read(theirs):
        data += piece
    return data


def of_size(size: int, kind: str = "k") -> bytes:
    """A frame's line of that many bytes."""
    frame = {"kind": kind, "pad": ""}
    return encode({**frame, "pad": "x" * (size - len(encode(frame)))})


async def stuff(transport: FramedTransport) -> None:
    """Sends until the socket takes no more."""
    while not transport.is_blocked:
        await transport.send({"kind": "stuff", "pad": "x" * 60_000})


# ---------------------------------------------------------------- receiving


def test_what_was_sent_is_received_in_order_however_it_was_cut() -> None:
    frames: list[Json] = [{"kind": "a", "n": n, "text": "é\u2028\u0085\r\x0b" * n} for n in range(9)]
    data = b"".join(json.dumps(frame, ensure_ascii=False).encode() + b"\n" for frame in frames)

    async def main() -> None:
        for size in (1, 7, len(data)):
            transport, theirs = await pair()
            with theirs:

                async def write(theirs: socket.socket = theirs, size: int = size) -> None:
                    for at in range(0, len(data), size):
                        await asyncio.get_running_loop().sock_sendall(theirs, data[at : at + size])
                    theirs.shutdown(socket.SHUT_WR)

                writing = asyncio.ensure_future(write())
                got = [frame async for frame in receiving(transport)]
                await writing
                assert got == frames
                await transport.close()

    go(main())


async def receiving(transport: FramedTransport) -> Any:
    while (frame := await transport.receive()) is not None:
        yield frame


def test_a_cr_before_the_lf_is_let_go() -> None:
    async def main() -> None:
        transport, theirs = await pair()
        with theirs:
            theirs.send(b'{"kind":"a"}\r\n')
            assert await transport.receive() == {"kind": "a"}
            transport.abort()

    go(main())


@pytest.mark.parametrize("over", [0, 1])
@pytest.mark.parametrize("ended", [True, False])
def test_a_frame_at_the_limit_is_taken_and_one_byte_more_is_not(over: int, ended: bool) -> None:
    line = of_size(MAX_FRAME) if not over else of_size(MAX_FRAME)[:-1] + (b" \n" if ended else b"  ")

    async def main() -> None:
        transport, theirs = await pair()
        with theirs:
            writing = asyncio.ensure_future(asyncio.get_running_loop().sock_sendall(theirs, b'{"kind":"a"}\n' + line))
            assert await transport.receive() == {"kind": "a"}
            if over:
                for _ in range(2):
                    with pytest.raises(FrameError, match=str(MAX_FRAME)) as caught:
                        await transport.receive()
                    assert caught.value.code == "frame_too_large"
            else:
                frame = await transport.receive()
                assert frame is not None
                assert len(encode(frame)) == MAX_FRAME
            transport.abort()
            await asyncio.gather(writing, return_exceptions=True)

    go(main())


def test_a_line_without_end_is_refused_before_more_than_a_frame_of_it_is_held() -> None:
    async def main() -> None:
        transport, theirs = await pair()
        with theirs:
            writing = asyncio.ensure_future(asyncio.get_running_loop().sock_sendall(theirs, b"x" * (8 * MAX_FRAME)))
            with pytest.raises(FrameError) as caught:
                await transport.receive()
            assert caught.value.code == "frame_too_large"
            assert len(transport._rest) == 0
            # The socket is not read any further: the writer stands.
            await turns()
            assert not writing.done()
            transport.abort()
            await asyncio.gather(writing, return_exceptions=True)

    go(main())


@pytest.mark.parametrize(
    "data",
    [
        b"\n",
        b"\r\n",
        b"{\n",
        b"[]\n",
        b"null\n",
        b"{}\n",
        b'{"kind":1}\n',
        b'{"kind":"\xff"}\n',
        b'{"kind":"a","n":NaN}\n',
        b'{"kind":"\\ud800"}\n',
        b'{"kind":"a"} {}\n',
        b'\xef\xbb\xbf{"kind":"a"}\n',
        b'{"kind":"a',
        b'{"kind":"a"}',
        b"[" * 5000 + b"\n",
    ],
)
def test_what_is_no_frame_is_refused_for_good(data: bytes) -> None:
    async def main() -> None:
        transport, theirs = await pair()
        with theirs:
            theirs.send(b'{"kind":"first"}\n' + data)
            theirs.shutdown(socket.SHUT_WR)
            assert await transport.receive() == {"kind": "first"}
            for _ in range(2):
                with pytest.raises(FrameError) as caught:
                    await transport.receive()
                assert caught.value.code == "bad_frame"
            transport.abort()

    go(main())


@pytest.mark.parametrize("size", [12, 100_000])
def test_who_sends_faster_than_it_is_received_is_made_to_wait(size: int) -> None:
    line = of_size(size, "") if size > 100 else b'{"kind":""}\n'
    count = min(4 * QUEUE_BYTES // len(line), 60_000)

    async def main() -> None:
        transport, theirs = await pair()
        with theirs:
            writing = asyncio.ensure_future(asyncio.get_running_loop().sock_sendall(theirs, line * count))
            await asyncio.sleep(0.05)
            assert not writing.done()
            assert len(transport._lines) <= QUEUE_FRAMES
            assert transport._held + len(transport._rest) <= QUEUE_BYTES
            for _ in range(count):
                assert await transport.receive() is not None
                assert len(transport._lines) <= QUEUE_FRAMES
            await writing
            transport.abort()

    go(main())


def test_a_reset_ends_the_frames_and_part_of_a_line_is_nobody_s_fault() -> None:
    async def main() -> None:
        transport, theirs = await pair()
        theirs.send(b'{"kind":"a"}\n{"ki')
        await turns()
        # Something unread makes the end of it a reset.
        await transport.send({"kind": "unread"})
        theirs.close()
        assert await transport.receive() == {"kind": "a"}
        assert await transport.receive() is None
        await asyncio.wait_for(transport.lost.wait(), 5)
        with pytest.raises(ConnectionLost):
            await transport.send({"kind": "b"})
        with pytest.raises(ConnectionLost):
            await transport.drained()

    go(main())


# ---------------------------------------------------------------- sending


def test_frames_go_out_in_order_and_senders_wait_while_too_many_do() -> None:
    async def main() -> None:
        transport, theirs = await pair()
        with theirs:
            await stuff(transport)
            begun = transport.progress
            await transport.blocked()
            sending = [asyncio.ensure_future(transport.send({"kind": "n", "n": n})) for n in range(200)]
            await turns()
            done = sum(task.done() for task in sending)
            assert 0 < done <= QUEUE_FRAMES
            assert all(task.done() for task in sending[:done])
            transport.put(encode({"kind": "n", "n": 200}))
            sending[150].cancel()
            closing = asyncio.ensure_future(transport.close(5))
            data = await read_all(theirs)
            await asyncio.gather(*sending, closing, return_exceptions=True)
            numbers = [frame["n"] for frame in map(json.loads, data.splitlines()) if frame["kind"] == "n"]
            assert numbers == [n for n in range(201) if n != 150]
            assert transport.progress > begun

    go(main())


@pytest.mark.parametrize("late", [False, True])
def test_a_cancelled_frame_was_not_sent_and_a_sent_one_is_not_cancelled(late: bool) -> None:
    async def main() -> None:
        transport, theirs = await pair()
        with theirs:
            await stuff(transport)
            line = json.loads(of_size(MAX_FRAME))
            sending = [asyncio.ensure_future(transport.send(line)) for _ in range(4)]
            await turns()
            last = sending[-1]
            assert not last.done()
            # There is room in the same moment in which it is cancelled.
            transport._has_room = lambda size: True  # type: ignore[method-assign]
            waiting = transport.waiting
            first, then = (transport._pump, last.cancel) if late else (last.cancel, transport._pump)
            first()
            then()
            await asyncio.wait({last})
            assert last.cancelled() is not late
            assert transport.waiting == (waiting if late else waiting - MAX_FRAME)
            transport.abort()
            await asyncio.gather(*sending, return_exceptions=True)

    go(main())


def test_bytes_that_wait_are_bounded() -> None:
    async def main() -> None:
        transport, theirs = await pair()
        with theirs:
            line = json.loads(of_size(MAX_FRAME))
            sending = [asyncio.ensure_future(transport.send(line)) for _ in range(5)]
            await turns()
            assert 1 <= sum(task.done() for task in sending) < 5
            assert transport._queued + transport._unsent() <= QUEUE_BYTES
            assert transport.waiting > 3 * MAX_FRAME
            for task in sending:
                task.cancel()
            await asyncio.gather(*sending, return_exceptions=True)
            transport.abort()

    go(main())


def test_senders_that_wait_are_told_once_the_other_side_is_gone() -> None:
    async def main() -> None:
        transport, theirs = await pair()
        await stuff(transport)
        sending = [asyncio.ensure_future(transport.send({"kind": "n", "pad": "x" * 500_000})) for _ in range(9)]
        await turns()
        theirs.close()
        results = await asyncio.gather(*sending, return_exceptions=True)
        assert isinstance(results[-1], ConnectionLost)
        await transport.close()

    go(main())


def test_what_is_no_frame_is_not_sent() -> None:
    async def main() -> None:
        transport, theirs = await pair()
        with theirs:
            for frame, code in (
                ({"kind": "a", "x": object()}, "bad_frame"),
                ({"kind": "a", "x": "x" * MAX_FRAME}, "frame_too_large"),
                ({"kind": "\ud800"}, "bad_frame"),
            ):
                with pytest.raises(FrameError) as caught:
                    await transport.send(frame)
                assert caught.value.code == code
            await transport.close()
            assert await read_all(theirs) == b""

    go(main())


def test_progress_counts_what_the_other_side_takes() -> None:
    async def main() -> None:
        transport, theirs = await pair()
        with theirs:
            await stuff(transport)
            seen = transport.progress
            await turns()
            assert transport.progress == seen
            drained = asyncio.ensure_future(transport.drained())
            taken = 0
            while not drained.done():
                taken += len(await read(theirs))
                await turns()
            assert transport.progress > seen
            assert transport.waiting == 0
            assert not transport.is_blocked
            transport.abort()

    go(main())


# ---------------------------------------------------------------- the end


def test_closing_writes_what_waits_and_receives_no_more() -> None:
    async def main() -> None:
        transport, theirs = await pair()
        with theirs:
            receiving = asyncio.ensure_future(transport.receive())
            await transport.send({"kind": "last"})
            await transport.close()
            assert await receiving is None
            assert await read_all(theirs) == b'{"kind":"last"}\n'
            with pytest.raises(ConnectionLost):
                await transport.send({"kind": "later"})
            transport.put(b"never\n")
            await transport.close()

    go(main())


def test_closing_gives_up_on_who_takes_nothing() -> None:
    async def main() -> None:
        transport, theirs = await pair()
        with theirs:
            await stuff(transport)
            await transport.close(0.05)
            assert transport.lost.is_set()

    go(main())


def test_who_still_writes_can_read_what_was_said_last() -> None:
    async def main() -> None:
        transport, theirs = await pair()
        with theirs:
            loop = asyncio.get_running_loop()
            writing = asyncio.ensure_future(loop.sock_sendall(theirs, b"x" * (3 * MAX_FRAME)))
            with pytest.raises(FrameError):
                await transport.receive()
            transport.put(b"goodbye\n")
            closing = asyncio.ensure_future(transport.close(5, linger=True))
            await writing
            assert await read_all(theirs) == b"goodbye\n"
            theirs.close()
            await closing

    go(main())


def test_lingering_has_an_end() -> None:
    async def main() -> None:
        transport, theirs = await pair()
        with theirs:
            await transport.close(0.05, linger=True)
            assert await read_all(theirs) == b""

    go(main())


def test_after_the_other_side_s_last_word_it_can_still_be_answered() -> None:
    async def main() -> None:
        transport, theirs = await pair()
        with theirs:
            theirs.send(b'{"kind":"q"}\n')
            theirs.shutdown(socket.SHUT_WR)
            assert await transport.receive() == {"kind": "q"}
            assert await transport.receive() is None
            await transport.send({"kind": "a"})
            await transport.close(linger=True)
            assert await read_all(theirs) == b'{"kind":"a"}\n'

    go(main())


def test_dialling_where_nobody_listens_is_an_os_error() -> None:
    async def main() -> None:
        with socket_path() as path, pytest.raises(OSError):
            await dial(path)

    go(main())


@settings(max_examples=60)
@given(st.lists(st.one_of(st.binary(max_size=40), st.sampled_from([b"\n", b'{"kind":"a"}\n', b'{"kind":"a"}']))))
def test_any_bytes_give_frames_then_an_end_or_one_error(pieces: list[bytes]) -> None:
    async def main() -> None:
        transport, theirs = await pair()
        with theirs:
            for piece in pieces:
                theirs.send(piece)
            theirs.shutdown(socket.SHUT_WR)
            with contextlib.suppress(FrameError):
                while (frame := await transport.receive()) is not None:
                    assert isinstance(frame["kind"], str)
            transport.abort()

    go(main())
