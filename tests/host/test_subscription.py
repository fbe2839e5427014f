"""What waits for one subscriber, and the frames that it becomes; and the task that sends them."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import pytest

from maka.journal.errors import JournalError
from maka.journal.events import Event, JsonObject
from maka.runtime.host import subscription as subscriptions
from maka.runtime.host.protocol import MAX_EVENT, MAX_TEXT
from maka.runtime.host.subscription import MOST_BYTES, MOST_ENTRIES, Subscription, final_texts
from maka.runtime.host.texts import TextStream
from maka.runtime.host.watchers import Watcher
from support.in_host import in_process, passed
from support.memory_journals import in_stretches


def event(seq: int = 1, type_: str = "session/note", length: int = 100, **data: Any) -> Event:
    return Event(seq, 1, type_, data, "0" * 32, False, 0, 0, length)


def made() -> Subscription:
    return Subscription("w", "s1", "epoch")


def frames(subscription: Subscription) -> list[JsonObject]:
    taken = []
    while (frame := subscription.take()) is not None:
        taken.append(frame)
    return taken


def block(text: str = "", message_id: str = "m") -> TextStream:
    return TextStream(("text", message_id, 0), "t", "r", text)


def projection(revision: int, turn_id: str | None = "t", status: str = "running") -> JsonObject:
    root = None if turn_id is None else {"turn_id": turn_id, "status": status}
    return {"projection_revision": revision, "root_turn": root}


def revisions(subscription: Subscription) -> list[int]:
    return [each["snapshot"]["projection_revision"] for each in frames(subscription) if each["type"] == "projection"]


def lagged(subscription: Subscription) -> bool:
    """Was it cut off for that?"""
    return subscription.failed is not None and subscription.failed[0] == "slow_consumer"


# ---------------------------------------------------------------- frames


def test_frames_are_numbered_from_one_and_name_whose_they_are() -> None:
    subscription = made()
    for seq in (4, 5, 6):
        subscription.event(event(seq))
    taken = frames(subscription)
    assert [frame["sequence"] for frame in taken] == [1, 2, 3]
    heads = {(frame["kind"], frame["subscription_id"], frame["host_epoch"]) for frame in taken}
    assert heads == {("frame", "w", "epoch")}
    assert [frame["event"]["seq"] for frame in taken] == [4, 5, 6]
    assert subscription.take() is None


def test_an_event_is_told_as_it_is_unless_it_is_long() -> None:
    subscription = made()
    subscription.event(event(3, kind="test"))
    subscription.event(event(4, length=MAX_EVENT, kind="fits"))
    subscription.event(event(5, length=MAX_EVENT + 1, kind="long"))
    short, fits, long = (frame["event"] for frame in frames(subscription))
    assert short == {"seq": 3, "ts": 1, "type": "session/note", "data": {"kind": "test"}}
    assert fits["data"] == {"kind": "fits"}
    assert long == {"seq": 5, "ts": 1, "type": "session/note", "data": None, "bytes": MAX_EVENT + 1}


def test_text_that_waits_goes_out_as_one() -> None:
    subscription, stream = made(), block()
    for piece in ("Let ", "me ", "see."):
        start = stream.length
        stream.append(piece)
        subscription.text(stream, start, stream.length)
    [frame] = frames(subscription)
    assert frame["delta"] == {
        "kind": "text",
        "turn_id": "t",
        "run_id": "r",
        "message_id": "m",
        "index": 0,
        "offset": 0,
        "text": "Let me see.",
    }


def test_text_goes_on_where_it_was() -> None:
    subscription, stream = made(), block("abc")
    subscription.text(stream, 0, 3)
    [first] = frames(subscription)
    stream.append("def")
    subscription.text(stream, 3, 6, complete=True)
    [second] = frames(subscription)
    assert (first["delta"]["offset"], second["delta"]["offset"]) == (0, 3)
    assert second["delta"]["text"] == "def"
    assert second["delta"]["complete"] is True
    assert "complete" not in first["delta"]
    assert "reset" not in second["delta"]


def test_text_keeps_its_place_among_events_and_other_text() -> None:
    subscription, one, two = made(), block("a", "m1"), block("b", "m2")
    subscription.text(one, 0, 1)
    subscription.text(two, 0, 1)
    one.append("c")
    subscription.text(one, 1, 2)
    subscription.event(event())
    one.append("d")
    subscription.text(one, 2, 3)
    told = [frame["delta"]["text"] if frame["type"] == "delta" else frame["type"] for frame in frames(subscription)]
    assert told == ["a", "b", "c", "event", "d"]


def test_a_long_text_comes_in_several_frames_of_which_the_last_is_complete() -> None:
    subscription, stream = made(), block("x" * (2 * MAX_TEXT + 1))
    subscription.text(stream, 0, stream.length, reset=True, complete=True)
    deltas = [frame["delta"] for frame in frames(subscription)]
    assert [len(delta["text"]) for delta in deltas] == [MAX_TEXT, MAX_TEXT, 1]
    assert [delta["offset"] for delta in deltas] == [0, MAX_TEXT, 2 * MAX_TEXT]
    assert [delta.get("complete") for delta in deltas] == [None, None, True]
    assert [delta.get("reset") for delta in deltas] == [True, None, None]


def test_what_replaces_a_text_is_not_joined_to_it() -> None:
    subscription, stream = made(), block("abc")
    subscription.text(stream, 0, 3)
    other = block("xyz")
    subscription.text(other, 0, 3, reset=True, complete=True)
    deltas = [frame["delta"] for frame in frames(subscription)]
    assert [(delta["text"], delta.get("reset")) for delta in deltas] == [("abc", None), ("xyz", True)]


def test_an_empty_text_is_told_where_it_says_something() -> None:
    subscription = made()
    subscription.text(block(), 0, 0, reset=True, complete=True)
    [frame] = frames(subscription)
    assert (frame["delta"]["text"], frame["delta"]["reset"], frame["delta"]["complete"]) == ("", True, True)


# ---------------------------------------------------------------- projections


def test_a_newer_projection_takes_the_place_of_one_that_waits() -> None:
    subscription = made()
    for revision in (2, 3, 4):
        subscription.projection(projection(revision), 100)
    assert revisions(subscription) == [4]
    assert subscription.revision == 4


def test_a_projection_that_was_sent_is_not_replaced() -> None:
    subscription = made()
    subscription.projection(projection(2), 100)
    subscription.take()
    subscription.projection(projection(3), 100)
    assert revisions(subscription) == [3]


def test_a_projection_keeps_its_place_behind_what_came_before() -> None:
    subscription = made()
    subscription.projection(projection(2), 100)
    subscription.event(event())
    subscription.projection(projection(3), 100)
    assert [frame["type"] for frame in frames(subscription)] == ["projection", "event", "projection"]


def test_how_a_turn_ended_is_never_dropped() -> None:
    subscription = made()
    stories = [("t1", "running"), ("t1", "completed"), ("t1", "completed"), ("t2", "admitted"), ("t2", "running")]
    for revision, (turn_id, status) in enumerate(stories, 2):
        subscription.projection(projection(revision, turn_id, status), 100)
    # Of the same standing the newest.
    assert revisions(subscription) == [2, 4, 5, 6]


def test_a_projection_without_a_turn_may_be_replaced_by_the_same() -> None:
    subscription = made()
    subscription.projection(projection(2, None), 100)
    subscription.projection(projection(3, None), 100)
    subscription.projection(projection(4), 100)
    assert revisions(subscription) == [3, 4]


# ---------------------------------------------------------------- bounds, and ends


def test_who_does_not_read_is_cut_off_at_so_many_entries() -> None:
    subscription = made()
    for seq in range(MOST_ENTRIES):
        subscription.event(event(seq))
    assert not lagged(subscription)
    subscription.event(event(MOST_ENTRIES))
    assert lagged(subscription)
    assert subscription.take() is None
    last = subscription.closed()
    assert (last["type"], last["reason"], last["sequence"]) == ("closed", "slow_consumer", 1)


def test_who_does_not_read_is_cut_off_at_so_many_bytes() -> None:
    subscription, most = made(), MOST_BYTES // MAX_EVENT
    for seq in range(most):
        subscription.event(event(seq, length=MAX_EVENT))
    assert not lagged(subscription)
    subscription.take()
    subscription.event(event(most, length=MAX_EVENT))
    assert not lagged(subscription)
    subscription.event(event(most + 1, length=1))
    assert lagged(subscription)


def test_projections_that_nobody_reads_cost_what_they_have() -> None:
    subscription = made()
    for revision in range(100):
        # Each takes the place of the one before.
        subscription.projection(projection(revision), MOST_BYTES // 2)
    subscription.event(event())
    subscription.projection(projection(100), MOST_BYTES // 4)
    assert not lagged(subscription)
    subscription.take()
    subscription.event(event())
    subscription.projection(projection(101), MOST_BYTES // 2)
    assert not lagged(subscription)
    subscription.event(event())
    subscription.projection(projection(102), MOST_BYTES // 2)
    assert lagged(subscription)


def test_an_event_that_comes_without_its_data_costs_none_of_them() -> None:
    subscription = made()
    for seq in range(3):
        subscription.event(event(seq, length=2 * MOST_BYTES))
    assert not lagged(subscription)


def test_text_that_waits_costs_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "MOST_ENTRIES", 2)
    subscription, stream = made(), block()
    for _ in range(100):
        stream.append("x")
        subscription.text(stream, stream.length - 1, stream.length)
    assert not lagged(subscription)


def test_who_was_cut_off_is_told_nothing_more() -> None:
    subscription = made()
    subscription.event(event())
    subscription.take()
    subscription.cut("slow_consumer", "too slow")
    subscription.cut("session_removed", "gone")
    subscription.event(event(2))
    subscription.finish("host_draining", "over")
    assert subscription.take() is None
    assert subscription.closed()["reason"] == "slow_consumer"
    assert subscription.closed()["sequence"] == 3


def test_who_is_told_the_end_is_told_all_before_it() -> None:
    subscription = made()
    subscription.event(event())
    subscription.finish("host_draining", "over")
    taken = frames(subscription)
    assert [frame["type"] for frame in taken] == ["event", "closed"]
    assert (taken[1]["reason"], taken[1]["message"]) == ("host_draining", "over")


def test_a_frame_that_was_not_sent_leaves_no_gap() -> None:
    subscription = made()
    subscription.event(event())
    subscription.take()
    subscription.unsent()
    subscription.event(event(2))
    frame = subscription.take()
    assert frame is not None
    assert frame["sequence"] == 1


# ---------------------------------------------------------------- the text of messages


def test_the_final_texts_of_a_message_are_those_of_its_blocks() -> None:
    content: list[Any] = [
        {"kind": "thinking", "text": "hm"},
        {"kind": "tool_call", "name": "look"},
        {"kind": "text", "text": "yes"},
        {"kind": "text"},
        "nonsense",
    ]
    assert list(final_texts(event(type_="assistant/message", content=content))) == [
        ("thinking", 0, "hm"),
        ("text", 2, "yes"),
    ]
    assert list(final_texts(event(type_="assistant/message", content="nonsense"))) == []


# ---------------------------------------------------------------- sending

STALL: Final = 3


class Wire:
    """A connection. ``open``: does the other side take anything? ``stuck`` frames wait with nobody taking them."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.progress = 0
        self.lost = asyncio.Event()
        self.sent: list[JsonObject] = []

    @property
    def has_room(self) -> bool:
        return False

    async def send(self, frame: JsonObject) -> None:
        await self.open.wait()
        self.progress += 1
        self.sent.append(frame)

    def put(self, frame: JsonObject) -> None:
        self.sent.append(frame)

    def types(self) -> list[str]:
        return [frame["type"] for frame in self.sent]


class Nobody:
    """Of a lane what a watcher needs."""

    def __init__(self) -> None:
        self.closed = 0

    def close(self, _: Subscription) -> None:
        self.closed += 1


class Sending:
    def __init__(self) -> None:
        self.subscription = made()
        self.wire = Wire()
        self.lane = Nobody()
        self.forgotten = 0
        self.answered = asyncio.Event()
        lane: Any = self.lane
        wire: Any = self.wire
        self.watcher = Watcher(self.subscription, lane, wire, STALL, self._forget)

    def _forget(self, _: Watcher) -> None:
        self.forgotten += 1

    def begin(self, *missed: Event) -> None:
        self.answered.set()
        self.watcher.begin(list(missed), None, self.answered)


@in_process
async def test_nothing_is_sent_before_the_answer() -> None:
    sending = Sending()
    sending.subscription.event(event(7))
    sending.watcher.begin([event(4), event(5)], in_stretches([event(6)]), sending.answered)
    await passed()
    assert sending.wire.sent == []
    sending.answered.set()
    await passed()
    # What was missed comes first, under the same numbers.
    assert [(frame["sequence"], frame["event"]["seq"]) for frame in sending.wire.sent] == [
        (1, 4),
        (2, 5),
        (3, 6),
        (4, 7),
    ]
    sending.watcher.cancel()


@in_process
async def test_who_cannot_be_sent_what_was_missed_is_told_so() -> None:
    async def unreadable() -> list[Event]:
        raise JournalError("the file is away")

    sending = Sending()
    sending.answered.set()
    sending.watcher.begin([event(5)], unreadable, sending.answered)
    await passed()
    assert sending.wire.types() == ["event", "closed"]
    assert (sending.wire.sent[1]["sequence"], sending.wire.sent[1]["reason"]) == (2, "session_unavailable")
    assert "the file is away" in sending.wire.sent[1]["message"]
    assert (sending.lane.closed, sending.forgotten) == (1, 1)


@in_process
async def test_frames_are_sent_as_they_come_until_the_end() -> None:
    sending = Sending()
    sending.begin()
    for seq in (1, 2):
        sending.subscription.event(event(seq))
        await passed()
    sending.subscription.finish("session_removed", "gone")
    await passed()
    assert sending.wire.types() == ["event", "event", "closed"]
    assert (sending.lane.closed, sending.forgotten) == (1, 1)


@in_process
async def test_who_is_cancelled_is_told_nothing() -> None:
    sending = Sending()
    sending.begin()
    await passed()
    sending.watcher.cancel()
    sending.watcher.cancel()
    sending.subscription.event(event())
    await passed()
    assert sending.wire.sent == []
    assert (sending.lane.closed, sending.forgotten) == (1, 1)


@in_process
async def test_who_takes_nothing_for_too_long_is_cut_off_and_told() -> None:
    sending = Sending()
    sending.begin()
    sending.wire.open.clear()
    sending.subscription.event(event(1))
    await passed(STALL - 0.5)
    assert not lagged(sending.subscription)
    await passed(2.0)
    assert lagged(sending.subscription)
    # The frame that nobody took was not sent, so its number is the last one's.
    assert [(frame["type"], frame["sequence"]) for frame in sending.wire.sent] == [("closed", 1)]
    assert sending.wire.sent[0]["reason"] == "slow_consumer"
    assert sending.forgotten == 1


@in_process
async def test_who_takes_something_now_and_then_is_not_cut_off() -> None:
    sending = Sending()
    sending.begin()
    sending.wire.open.clear()
    sending.subscription.event(event(1))
    for _ in range(4):
        await passed(STALL - 0.5)
        sending.wire.progress += 1
    assert not lagged(sending.subscription)
    sending.wire.open.set()
    await passed()
    assert sending.wire.types() == ["event"]
    sending.watcher.cancel()


@in_process
async def test_who_lags_too_far_behind_is_cut_off_and_told() -> None:
    sending = Sending()
    sending.begin()
    sending.wire.open.clear()
    for seq in range(MOST_BYTES // MAX_EVENT + 2):
        sending.subscription.event(event(seq, length=MAX_EVENT))
        await passed(0.01)
    await passed(2.0)
    assert sending.wire.types()[-1] == "closed"
    assert [frame["sequence"] for frame in sending.wire.sent] == list(range(1, len(sending.wire.sent) + 1))


@in_process
async def test_who_is_gone_is_told_nothing() -> None:
    sending = Sending()
    sending.begin()
    await passed()
    sending.wire.lost.set()
    sending.subscription.cut("slow_consumer", "too slow")
    await passed()
    assert sending.wire.sent == []
    assert sending.forgotten == 1


@pytest.mark.parametrize("how", [lambda each: each.cut("slow_consumer", "too slow"), lambda each: each.event(event())])
def test_a_reader_that_waits_is_woken(how: Callable[[Subscription], None]) -> None:
    async def test() -> None:
        subscription = made()
        waiting = asyncio.ensure_future(subscription.ready())
        await asyncio.sleep(0)
        assert not waiting.done()
        how(subscription)
        await waiting

    asyncio.run(test())
