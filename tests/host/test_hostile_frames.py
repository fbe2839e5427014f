"""Whatever a connection sends, it ends alone: its neighbour is served as if nothing were."""

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maka.runtime.host.operations import OPERATIONS
from maka.runtime.host.protocol import CODES, MAX_FRAME
from support.wire import FakeServices, Wire, hello, request, serving

Json = dict[str, Any]
HELLO = json.dumps(hello()).encode() + b"\n"


def go(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 20))


async def attacked(wire: Wire, data: bytes) -> list[Json]:
    """All that the host says to who sends this and no more."""
    raw = await wire.connect()
    reading = asyncio.ensure_future(raw.rest())
    await raw.write(data)
    if raw.writer.can_write_eof() and not raw.writer.is_closing():
        try:
            raw.writer.write_eof()
        except OSError:
            pass
    return await reading


async def check_neighbour(wire: Wire) -> None:
    raw = await wire.welcomed()
    await raw.ask("1", "host.status")
    assert (await raw.receive())["ok"]
    raw.writer.close()


def check(frames: list[Json]) -> None:
    """They are such as a host sends, with codes that it has."""
    for at, frame in enumerate(frames):
        match frame["kind"]:
            case "welcome":
                assert at == 0
            case "response":
                assert frame["ok"] or frame["error"]["retryable"] is CODES[frame["error"]["code"]]
            case "refused" | "goodbye":
                assert frame["code"] in CODES
                assert frame is frames[-1]
            case other:
                pytest.fail(f"a {other}")


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", None),
        (b"\n", "bad_frame"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "bad_frame"),
        (HELLO[:-1], "bad_frame"),
        (b"\xff\xfe\n", "bad_frame"),
        (b"[" * 100_000 + b"\n", "bad_frame"),
        (b"x" * MAX_FRAME, "frame_too_large"),
        (b" " * (3 * MAX_FRAME) + HELLO, "frame_too_large"),
        (b"\x00" * (MAX_FRAME + 1) + b"\n", "frame_too_large"),
    ],
    ids=["nothing", "empty", "http", "torn", "encoding", "depth", "endless", "late", "zeros"],
)
@pytest.mark.parametrize("greeted", [False, True])
def test_bytes_that_are_no_frames_end_the_connection_with_a_reason(
    data: bytes, code: str | None, greeted: bool
) -> None:
    async def main() -> None:
        async with serving() as wire:
            frames = await attacked(wire, (HELLO if greeted else b"") + data)
            if greeted:
                assert frames.pop(0)["kind"] == "welcome"
            assert [(frame["kind"], frame["code"]) for frame in frames] == ([("goodbye", code)] if code else [])
            await check_neighbour(wire)

    go(main())


def test_a_frame_at_the_limit_is_served_and_separators_of_lines_are_content() -> None:
    frame = request("1", "turn.start", session_id="s", turn_id="t", content="\u2028\u2029\u0085\x0b\x0c")
    line = json.dumps(frame, ensure_ascii=False).encode()

    async def content(input: Any, caller: Any) -> Json:
        return {"content": input.content}

    async def main() -> None:
        async with serving(FakeServices(turn_start=content)) as wire:
            raw = await wire.welcomed()
            await raw.write(line + b"\r\n")
            assert (await raw.receive())["result"] == {"content": "\u2028\u2029\u0085\x0b\x0c"}
            await raw.write(line + b" " * (MAX_FRAME - len(line) - 1) + b"\n")
            assert (await raw.receive())["ok"]
            await raw.write(line + b" " * (MAX_FRAME - len(line)) + b"\n")
            [last] = await raw.rest()
            assert last["code"] == "frame_too_large"

    go(main())


def test_a_flood_of_requests_is_answered_in_bounded_steps() -> None:
    async def main() -> None:
        async with serving() as wire:
            frames = await attacked(wire, HELLO + b"".join(request_line(str(n)) for n in range(5000)))
            assert len(frames) == 5001
            assert {frame["id"] for frame in frames[1:]} == {str(n) for n in range(5000)}
            check(frames)

    go(main())


def request_line(id: str) -> bytes:
    return json.dumps(request(id, "host.status")).encode() + b"\n"


def test_many_who_say_nothing_keep_nobody_out() -> None:
    async def main() -> None:
        async with serving() as wire:
            silent = [await wire.connect() for _ in range(100)]
            await check_neighbour(wire)
            for raw in silent:
                raw.writer.close()

    go(main())


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=5,
)
FRAMES = st.fixed_dictionaries(
    {},
    optional={
        "kind": st.sampled_from(["hello", "request", "response", "frame", "goodbye"]) | VALUES,
        "id": st.text(max_size=4) | VALUES,
        "operation": st.sampled_from([*OPERATIONS]) | VALUES,
        "input": st.dictionaries(st.sampled_from(["session_id", "turn_id", "limit", "x"]), VALUES) | VALUES,
        "protocol": VALUES,
        "client": VALUES,
        "extra": VALUES,
    },
)


@settings(max_examples=60)
@given(st.booleans(), st.lists(FRAMES | st.binary(max_size=30), max_size=6))
def test_any_frames_and_bytes_end_one_connection_at_most(greeted: bool, pieces: list[Json | bytes]) -> None:
    data = HELLO if greeted else b""
    for piece in pieces:
        data += piece if isinstance(piece, bytes) else json.dumps(piece).encode() + b"\n"

    async def main() -> None:
        async with serving() as wire:
            check(await attacked(wire, data))
            await check_neighbour(wire)

    go(main())
