"""What waits for a consumer: merged, bounded, its end kept, told once."""

import asyncio
from collections.abc import Callable

import pytest

from maka.runtime.errors import RuntimeFailure
from maka.runtime.kernel.delivery import MERGED, Delivery
from maka.runtime.session_events import SessionEvent


def event(kind: str, number: int = 0, **data: object) -> SessionEvent:
    return SessionEvent(kind, f"e{number}", "t1", 0, data)


def delta(text: str, message_id: str = "m1", index: int = 0, kind: str = "text_delta") -> SessionEvent:
    return event(kind, message_id=message_id, index=index, text=text)


def read(fill: Callable[[Delivery], None], limit: int = 4) -> tuple[list[SessionEvent], int]:
    """What a reader gets that comes when everything is over, and how much was dropped."""

    async def main() -> tuple[list[SessionEvent], int]:
        delivery = Delivery(limit)
        fill(delivery)
        delivery.close()
        got = []
        while (next_event := await delivery.get()) is not None:
            got.append(next_event)
        return got, delivery.dropped

    return asyncio.run(main())


def test_neighbouring_pieces_of_one_text_merge() -> None:
    def fill(delivery: Delivery) -> None:
        for text in "abc":
            delivery.put(delta(text))
        delivery.put(delta("d", message_id="m2"))
        delivery.put(delta("e", message_id="m2", index=1))
        delivery.put(delta("f", message_id="m2", index=1, kind="thinking_delta"))

    got, dropped = read(fill)
    assert [(event.kind, event.data["text"]) for event in got] == [
        ("text_delta", "abc"),
        ("text_delta", "d"),
        ("text_delta", "e"),
        ("thinking_delta", "f"),
    ]
    assert dropped == 0


def test_a_piece_is_not_merged_without_end() -> None:
    def fill(delivery: Delivery) -> None:
        for _ in range(3):
            delivery.put(delta("x" * MERGED))

    assert [len(event.data["text"]) for event in read(fill)[0]] == [MERGED] * 3


def test_pieces_are_dropped_first_then_others_and_the_end_stays() -> None:
    def fill(delivery: Delivery) -> None:
        delivery.put(event("error"))
        delivery.put(event("tool_start", 1))
        delivery.put(delta("x"))
        delivery.put(event("tool_start", 2))
        delivery.put(event("tool_start", 3))
        delivery.put(event("tool_start", 4))
        delivery.put(event("complete"))

    got, dropped = read(fill)
    assert [(event.kind, event.id) for event in got] == [
        ("error", "e0"),
        ("tool_start", "e3"),
        ("tool_start", "e4"),
        ("complete", "e0"),
    ]
    assert dropped == 3


def test_a_piece_makes_room_for_what_cannot_be_had_again() -> None:
    def fill(delivery: Delivery) -> None:
        delivery.put(event("tool_start", 1))
        delivery.put(delta("x"))
        delivery.put(event("tool_start", 2))
        delivery.put(event("tool_start", 3))

    got, dropped = read(fill, limit=3)
    assert [event.id for event in got] == ["e1", "e2", "e3"]
    assert dropped == 1


def test_an_error_is_told_behind_what_waits_and_once() -> None:
    async def main() -> None:
        delivery = Delivery()
        delivery.put(event("complete"))
        failure = RuntimeError("cleanup failed")
        delivery.close(failure)
        delivery.put(event("tool_start"))
        assert (await delivery.get()) == event("complete")
        with pytest.raises(RuntimeError) as caught:
            await delivery.get()
        assert caught.value is failure
        assert await delivery.get() is None

    asyncio.run(main())


def test_a_reader_that_is_cancelled_loses_nothing() -> None:
    async def main() -> None:
        delivery = Delivery()
        reading = asyncio.ensure_future(delivery.get())
        await asyncio.sleep(0)
        delivery.put(event("tool_start"))
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        assert await delivery.get() == event("tool_start")

    asyncio.run(main())


def test_there_is_one_reader() -> None:
    async def main() -> None:
        delivery = Delivery()
        first = asyncio.ensure_future(delivery.get())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeFailure, match="let one read"):
            await delivery.get()
        delivery.close()
        assert await first is None

    asyncio.run(main())
