"""What everybody who watches is told: nothing before it is on the disk, each text exactly, each turn's end first."""

import asyncio
from collections.abc import Coroutine
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maka.journal.errors import JournalConflict, JournalError, JournalWriteError
from maka.journal.events import Draft, Event, JsonObject
from maka.runtime.backends.scripted import Do, Never, Question, Tool
from maka.runtime.host.broadcast import Broadcast, Following
from maka.runtime.host.subscription import UNTOLD, Subscription
from maka.runtime.journals import OpenSession
from maka.runtime.scripted import Say
from maka.runtime.session_events import SessionEvent
from support.drafts import rename
from support.in_host import InHost, Watch, in_process, passed, refused, updated
from support.lineages import Story
from support.memory_journals import MemoryJournal, in_stretches
from support.seeded_loop import run


def waits(waiting: asyncio.Event) -> Do:
    return Do(lambda _: waiting.wait())


# ---------------------------------------------------------------- nothing before its sync


@in_process
async def test_an_event_is_told_once_it_is_on_the_disk() -> None:
    async with InHost() as host:
        watch = await host.watch()
        host.disk.open.clear()
        appending = host.spawn(host.append(rename("held")), "append")
        await passed()
        assert watch.read() == []
        host.disk.open.set()
        await appending
        await passed()
        watch.read()
        assert watch.told() == ["session/updated"]
        [snapshot] = watch.snapshots()
        assert snapshot["session"]["name"] == "held"
        assert snapshot["position"] == host.events()[-1].seq


@in_process
async def test_nothing_is_told_of_what_was_lost() -> None:
    async with InHost() as host:
        watch = await host.watch()
        host.disk.failing = 1
        with pytest.raises(JournalWriteError):
            await host.append(rename("lost"))
        await passed()
        assert all(snapshot["session"]["name"] is None for snapshot in watch.snapshots())
        await host.append(rename("kept"))
        await passed()
        watch.read()
        assert watch.told() == ["session/updated"]
        assert [snapshot["session"]["name"] for snapshot in watch.snapshots()][-1] == "kept"


@in_process
async def test_a_snapshot_is_not_shown_before_all_of_it_is_on_the_disk() -> None:
    async with InHost() as host:
        await host.append(rename("first"))
        host.disk.open.clear()
        appending = host.spawn(host.append(rename("second")), "append")
        await passed(0.01)
        watching = host.spawn(host.watch(), "watch")
        await passed()
        assert not watching.done()
        host.disk.open.set()
        watch: Watch = await watching
        await appending
        await passed()
        assert watch.snapshot["session"]["name"] == "second"
        assert watch.snapshot["position"] == 2
        # What the snapshot holds is not told again.
        assert watch.read() == []


@in_process
async def test_who_cannot_be_shown_a_snapshot_does_not_watch() -> None:
    async with InHost() as host:
        await host.append(rename("first"))
        host.disk.open.clear()
        appending = host.spawn(host.append(rename("lost")), "append")
        await passed(0.01)
        watching = host.spawn(host.watch(), "watch")
        await passed()
        host.disk.failing = 1
        host.disk.open.set()
        await asyncio.wait({appending, watching})
        assert isinstance(appending.exception(), JournalWriteError)
        assert isinstance(watching.exception(), JournalWriteError)
        assert not host.lane.watched


@in_process
async def test_live_text_waits_for_no_disk() -> None:
    going = asyncio.Event()
    async with InHost([Say("Let me see.", pieces=3), waits(going)]) as host:
        watch = await host.watch()
        await host.start("t1")
        await passed()
        host.disk.open.clear()
        watch.read()
        assert list(watch.texts.values()) == ["Let me see."]
        assert watch.complete == set()
        host.disk.open.set()
        going.set()
        await passed()
        watch.read()
        assert watch.complete == set(watch.texts)


@in_process
async def test_neither_live_text_nor_headers_of_requests_are_told_as_events() -> None:
    async with InHost([Say("Let me see.", pieces=3), Tool("look"), "yes"]) as host:
        watch = await host.watch()
        await host.start("t1")
        await passed(2.0)
        watch.read()
        durable = [event.type for event in host.events() if event.type not in UNTOLD]
        assert watch.told() == durable
        assert "assistant/delta" not in watch.told()
        assert "assistant/message" in watch.told()


# ---------------------------------------------------------------- numbers


@in_process
async def test_the_same_content_has_the_same_number() -> None:
    async with InHost() as host:
        first = await host.watch()
        second = await host.watch()
        assert first.snapshot["projection_revision"] == second.snapshot["projection_revision"] == 1
        await host.append(rename("other"))
        await passed()
        third = await host.watch()
        assert third.snapshot["projection_revision"] == 2
        for watch in (first, second):
            watch.read()
            assert [snapshot["projection_revision"] for snapshot in watch.snapshots()] == [2]
        # It is told what it was not shown, and nothing else.
        assert third.read() == []


@in_process
async def test_who_joins_between_an_event_and_its_telling_is_told_neither_twice() -> None:
    async with InHost(Never()) as host:
        first = await host.watch()
        await host.start("t1")
        second = await host.watch()
        await passed()
        for watch in (first, second):
            watch.read()
            revisions = [snapshot["projection_revision"] for snapshot in watch.snapshots()]
            assert revisions == sorted(set(revisions))
            assert all(revision > watch.snapshot["projection_revision"] for revision in revisions)
            numbers = [frame["event"]["seq"] for frame in watch.frames if frame["type"] == "event"]
            assert numbers == sorted(set(numbers))
            assert all(number > watch.snapshot["position"] for number in numbers)
        assert second.snapshots()[-1:] in ([], first.snapshots()[-1:])


@in_process
async def test_numbers_go_on_although_nobody_watches_meanwhile() -> None:
    async with InHost() as host:
        watch = await host.watch()
        await host.append(rename("one"))
        await passed()
        host.lane.close(watch.subscription)
        assert not host.lane.watched
        await host.append(rename("two"))
        again = await host.watch()
        assert again.snapshot["projection_revision"] == 3
        assert watch.subscription.take() is not None
        await host.append(rename("three"))
        await passed()
        assert [frame["type"] for frame in again.read()] == ["event", "projection"]


# ---------------------------------------------------------------- turns


@in_process
async def test_how_a_turn_ended_is_told_before_what_comes_next() -> None:
    async with InHost("one", "two", "three") as host:
        watch = await host.watch()
        await host.start("t1")
        for number in (1, 2):
            await host.submit(f"m{number}")
        await passed(2.0)
        watch.read()
        roots = watch.roots()
        order = list(dict.fromkeys(turn_id for turn_id, _ in roots))
        assert len(order) == 3
        for turn_id in order:
            assert [status for each, status in roots if each == turn_id][-1] == "completed"
        assert [turn_id for turn_id, _ in roots] == sorted((turn_id for turn_id, _ in roots), key=order.index)


@in_process
async def test_how_a_turn_stopped_is_told_before_its_stop_is_answered() -> None:
    async with InHost(Never()) as host:
        watch = await host.watch()
        await host.start("t1")
        await host.stop()
        watch.read()
        assert watch.roots()[-1] == ("t1", "cancelled")


@in_process
async def test_what_waits_and_what_is_asked_are_told() -> None:
    async with InHost(Question("Which?")) as host:
        watch = await host.watch()
        await host.start("t1")
        await host.submit("m1")
        await passed()
        watch.read()
        snapshot = watch.snapshots()[-1]
        assert snapshot["session"]["status"] == "waiting_for_user"
        assert len(snapshot["interactions"]["pending"]) == 1
        assert [entry["message_id"] for entry in snapshot["queue"]["followup"]] == ["m1"]
        await host.retract("x")
        await passed()
        watch.read()
        assert watch.snapshots()[-1]["queue"]["followup"] == []


@in_process
async def test_a_session_whose_journal_has_failed_is_told_so_and_that_it_is_in_order_again() -> None:
    going = asyncio.Event()
    async with InHost([waits(going), "hi"], "there") as host:
        watch = await host.watch()
        await host.start("t1")
        await passed()
        host.disk.failing = 1
        going.set()
        await passed()
        watch.read()
        assert watch.roots()[-1] == ("t1", "failed")
        assert watch.snapshots()[-1]["session"]["status"] == "idle"
        # What the repair wrote is told too, each once, and nothing that was lost.
        numbers = [frame["event"]["seq"] for frame in watch.frames if frame["type"] == "event"]
        durable = [event.seq for event in host.events() if event.type not in UNTOLD]
        assert numbers == durable[durable.index(numbers[0]) :]


@in_process
async def test_who_cannot_be_told_what_a_repair_wrote_is_cut_off() -> None:
    stage = Stage()
    reading = stage.join()
    stage.unreadable = True
    # Its journal is opened again.
    stage.session = OpenSession("s1", Path("/nonexistent"), stage.journal)
    stage.write("step/end", {"turn_id": "t1", "run_id": "r1", "step": 1})
    await stage.broadcast.settled()
    frame = reading.subscription.take()
    assert frame is not None
    assert (frame["type"], frame["reason"]) == ("closed", "session_unavailable")
    assert not stage.broadcast.watched


@in_process
async def test_all_that_a_repair_wrote_is_told_in_its_order_and_once() -> None:
    stage = Stage()
    reading = stage.join()
    position = reading.subscription.position
    # Nobody sees what is written while its journal is opened again.
    stage.journal.append_batch([Draft("session/note", {"kind": "test", "text": str(number)}) for number in range(3)])
    await stage.journal.aflush()
    stage.session = OpenSession("s1", Path("/nonexistent"), stage.journal)
    for text in ("then", "last"):
        stage.write("session/note", {"kind": "test", "text": text})
        await stage.broadcast.settled()
    told = []
    while (frame := reading.subscription.take()) is not None:
        told += [frame["event"]["seq"]] if frame["type"] == "event" else []
    assert told == [position + 1, position + 2, position + 3, position + 4, position + 5]


@in_process
async def test_who_lags_behind_long_projections_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maka.runtime.host.subscription.MOST_BYTES", 3_000)
    stage = Stage(session={"name": "x" * 1_200})
    reading = stage.join()
    for step in range(3):
        assert reading.subscription.failed is None
        stage.write("session/note", {"kind": "test", "text": str(step)})
        await stage.broadcast.settled()
    assert reading.subscription.failed is not None
    assert reading.subscription.failed[0] == "slow_consumer"


# ---------------------------------------------------------------- what was missed


@in_process
async def test_who_was_away_is_given_what_came_since() -> None:
    async with InHost("hi") as host:
        await host.start("t1")
        await passed()
        last = host.events()[-1].seq
        watch = await host.watch(since=2)
        expected = [event.seq for event in host.events() if event.seq > 2 and event.type not in UNTOLD]
        assert [event.seq for event in watch.missed] == expected
        assert watch.snapshot["position"] == last
        assert (await host.watch(since=last)).missed == []
        assert (await host.watch()).missed == []


@in_process
async def test_who_knows_of_more_than_there_is_watches_another_journal() -> None:
    async with InHost() as host:
        assert await refused(host.watch(since=1)) == "operation_conflict"
        assert not host.lane.watched


@in_process
async def test_a_session_that_is_watched_stays_open() -> None:
    async with InHost(keep_open=0) as host:
        watch = await host.watch()
        await passed()
        assert host.kernel.status("s1").open
        host.lane.close(watch.subscription)
        await passed()
        assert not host.kernel.status("s1").open


@in_process
async def test_a_session_that_is_moved_away_tells_who_watches() -> None:
    async def moved() -> Path:
        return Path("trash")

    async with InHost(Never()) as host:
        watch = await host.watch()
        await host.start("t1")
        assert await refused(host.lane.put_away(moved)) == "session_busy"
        await host.stop()
        assert await host.lane.put_away(moved) == Path("trash")
        frames = watch.read()
        assert watch.roots()[-1] == ("t1", "cancelled")
        assert frames[-1]["reason"] == "session_removed"
        assert not host.lane.watched
        await host.kernel.release("s1")


@in_process
async def test_a_session_that_cannot_be_moved_away_is_watched_as_before() -> None:
    async def refuses() -> Path:
        # Nothing keeps it open here.
        await host.kernel.release("s1")
        raise JournalConflict("a fork refers to it")

    async with InHost(keep_open=0) as host:
        watch = await host.watch()
        await passed()
        with pytest.raises(JournalConflict):
            await host.lane.put_away(refuses)
        assert host.lane.watched
        await host.append(rename("still there"))
        await passed()
        assert host.kernel.status("s1").open
        assert watch.read()[-1]["snapshot"]["session"]["name"] == "still there"


# ---------------------------------------------------------------- exact text


@in_process
async def test_who_joins_late_is_told_the_text_from_its_beginning() -> None:
    going = asyncio.Event()
    async with InHost([Say("Let me see. ", pieces=4), waits(going), Say("Yes.", pieces=2)]) as host:
        await host.start("t1")
        await passed()
        watch = await host.watch()
        [stream] = watch.snapshot["streams"]
        assert (stream["kind"], stream["turn_id"], stream["index"], stream["length"]) == ("text", "t1", 0, 12)
        watch.read()
        assert list(watch.texts.values()) == ["Let me see. "]
        going.set()
        await passed()
        watch.read()
        assert sorted(watch.texts.values()) == ["Let me see. ", "Yes."]
        assert watch.complete == set(watch.texts)
        assert watch.snapshots()[-1]["streams"] == []


@in_process
async def test_text_of_a_run_that_was_stopped_is_what_its_message_holds() -> None:
    async with InHost([Say("Let me see. ", pieces=4), Never()]) as host:
        watch = await host.watch()
        await host.start("t1")
        await passed()
        await host.stop()
        await passed()
        watch.read()
        said = [block["text"] for data in host.of("assistant/message") for block in data["content"]]
        assert [text for text in watch.texts.values() if text] == said
        assert watch.complete == set(watch.texts)


class Stage:
    """A broadcast over a journal in memory that a test writes to by hand."""

    def __init__(self, **shown: JsonObject) -> None:
        """``shown``: what there is in each of its snapshots."""
        story = Story().start().step()

        async def at_once(_: MemoryJournal) -> None:
            await asyncio.sleep(0)

        self.journal = MemoryJournal("s1", story.events, at_once)
        self.session = OpenSession("s1", Path("/nonexistent"), self.journal)
        self.broadcast = Broadcast(
            opened=lambda: self.session,
            content=lambda session: {"root_turn": None, "seen": session.journal.next_seq, **shown},
            between=self._between,
            number=count(1).__next__,
            spawn=self._spawn,
        )
        self.unreadable = False
        self.runs = 1
        self.watches: list[Reading] = []

    def _between(self, after: int, upto: int) -> Following:
        async def unreadable() -> list[Event]:
            raise JournalError("the file is away")

        there = [event for event in self.journal.events[: self.journal.durable] if after < event.seq <= upto]
        return unreadable if self.unreadable else in_stretches(there, 1)

    def _spawn(self, work: Coroutine[Any, Any, Any], name: str) -> "asyncio.Task[Any]":
        return asyncio.get_running_loop().create_task(work, name=name)

    def join(self) -> "Reading":
        reading = Reading(f"w{len(self.watches)}")
        self.broadcast.attach(reading.subscription, self.session)
        self.watches.append(reading)
        return reading

    def hear(self, message_id: str, text: str, index: int = 0, kind: str = "text") -> None:
        data = {"message_id": message_id, "index": index, "text": text}
        self.broadcast.heard(f"r{self.runs}", SessionEvent(f"{kind}_delta", "e", "t1", 1, data))

    def over(self) -> None:
        """The run is over, and tells nothing any more."""
        self.broadcast.over(f"r{self.runs}")
        self.runs += 1

    def write(self, type_: str, data: JsonObject) -> None:
        self.broadcast.observed(self.session, self.journal.append(Draft(type_, data)))

    def say(self, message_id: str, *blocks: tuple[str, str]) -> None:
        """The message, and the end of its step."""
        content = [{"kind": kind, "text": text} for kind, text in blocks]
        at = {"turn_id": "t1", "run_id": "r1", "step": self.step}
        message = {**at, "message_id": message_id, "content": content, "stop_reason": "end_turn"}
        self.write("assistant/message", message)
        self.write("step/end", at)
        self.write("step/start", {**at, "step": self.step + 1})

    @property
    def step(self) -> int:
        return self.journal.state.turns.open["t1"].step


class Reading:
    """What one subscriber has put together."""

    def __init__(self, name: str) -> None:
        self.subscription = Subscription(name, "s1", "epoch")
        self.texts: dict[tuple[str, str, int], str] = {}
        self.complete: set[tuple[str, str, int]] = set()
        self.messages: dict[str, list[tuple[str, int, str]]] = {}

    def read(self, most: int = 1_000_000) -> None:
        while most and (frame := self.subscription.take()) is not None:
            most -= 1
            if frame["type"] == "event" and frame["event"]["type"] == "assistant/message":
                data = frame["event"]["data"]
                blocks = [(block["kind"], index, block["text"]) for index, block in enumerate(data["content"])]
                self.messages[data["message_id"]] = blocks
                self._hold(data["message_id"])
            if frame["type"] != "delta":
                continue
            delta = frame["delta"]
            key = delta["kind"], delta["message_id"], delta["index"]
            if delta.get("reset"):
                self.texts[key] = ""
            assert len(self.texts.get(key, "")) == delta["offset"]
            assert key not in self.complete or delta.get("reset")
            self.texts[key] = self.texts.get(key, "") + delta["text"]
            if delta.get("complete"):
                self.complete.add(key)

    def _hold(self, message_id: str) -> None:
        """The text was complete, and exact, when its message was told."""
        told = [(kind, text) for (kind, of, _), text in self.texts.items() if of == message_id and text]
        assert sorted(told) == sorted((kind, text) for kind, _, text in self.messages[message_id] if text)
        assert {key for key in self.texts if key[1] == message_id} <= self.complete


PIECES = st.text(st.sampled_from("ab€😀"), min_size=1, max_size=4)
ACTIONS = st.one_of(
    st.tuples(st.just("hear"), st.sampled_from(["text", "thinking"]), PIECES),
    st.tuples(st.just("say"), st.sampled_from(["whole", "more", "other", "nothing"]), PIECES),
    st.tuples(st.sampled_from(["join", "read", "let pass", "end"]), st.just(""), st.just("")),
)


@settings(max_examples=120, deadline=None)
@given(st.lists(ACTIONS, max_size=30), st.integers(0, 3))
def test_whoever_reads_however_slowly_ends_with_the_exact_text(actions: list[tuple[str, str, str]], seed: int) -> None:
    async def test() -> None:
        stage = Stage()
        stage.join()
        number = 1
        live: dict[str, str] = {}
        for action, how, text in actions:
            if action == "hear":
                index = 0 if how == "thinking" else 1
                stage.hear(f"m{number}", text, index, how)
                live[how] = live.get(how, "") + text
            elif action == "say":
                blocks = [(kind, live.get(kind, "") or text) for kind in ("thinking", "text")]
                if how == "more":
                    blocks = [(kind, said + text) for kind, said in blocks]
                elif how == "other":
                    blocks = [(kind, text + said) for kind, said in blocks]
                elif how == "nothing":
                    blocks = [("text", "z")]
                stage.say(f"m{number}", *blocks)
                number, live = number + 1, {}
            elif action == "join":
                stage.join()
            elif action == "read":
                for place, watch in enumerate(stage.watches):
                    watch.read(place + 1)
            elif action == "end":
                stage.over()
                number, live = number + 1, {}
            else:
                await passed(0.01)
        await stage.broadcast.settled()
        stage.over()
        await stage.broadcast.settled()
        for watch in stage.watches:
            watch.read()
            assert watch.subscription.failed is None
            # Text that no message holds is void, and all is complete.
            said = {event.data["message_id"] for event in stage.journal.events if event.type == "assistant/message"}
            assert all(not text for (_, of, _), text in watch.texts.items() if of not in said)
            assert set(watch.texts) == watch.complete

    run(test(), seed)


@in_process
async def test_a_text_that_turns_out_otherwise_is_replaced() -> None:
    stage = Stage()
    reading = stage.join()
    stage.hear("m1", "Perhaps ")
    stage.hear("m1", "not")
    stage.say("m1", ("text", "Certainly"))
    await stage.broadcast.settled()
    deltas = []
    while (frame := reading.subscription.take()) is not None:
        if frame["type"] == "delta":
            deltas.append(frame["delta"])
    assert [(delta["text"], delta.get("reset"), delta.get("complete")) for delta in deltas] == [
        ("Perhaps not", None, None),
        ("Certainly", True, True),
    ]


@in_process
async def test_a_text_that_nobody_heard_is_told_with_its_message_but_not_to_who_has_it() -> None:
    stage = Stage()
    first = stage.join()
    stage.say("m1", ("text", "All at once"))
    second = stage.join()
    await stage.broadcast.settled()
    first.read()
    second.read()
    assert list(first.texts.values()) == ["All at once"]
    assert second.texts == {}


@in_process
async def test_text_that_nobody_watched_is_forgotten_with_its_message() -> None:
    stage = Stage()
    stage.hear("m1", "Let me see")
    stage.say("m1", ("text", "Let me see"))
    late = stage.join()
    late.read()
    assert late.texts == {}
    stage.hear("m2", "void")
    stage.broadcast.detach(late.subscription)
    stage.over()
    again = stage.join()
    again.read()
    assert again.texts == {}
    assert late.subscription not in stage.broadcast._subscriptions


@in_process
async def test_a_half_of_a_pair_is_told_as_the_journal_has_it() -> None:
    stage = Stage()
    reading = stage.join()
    stage.hear("m1", "a\ud83d")
    reading.read()
    [text] = reading.texts.values()
    text.encode()
    assert len(text) == 2


@in_process
async def test_the_end_of_all_comes_behind_what_waits() -> None:
    stage = Stage()
    reading = stage.join()
    stage.hear("m1", "a")
    stage.broadcast.finish("host_draining", "over")
    stage.hear("m1", "b")
    types = []
    while (frame := reading.subscription.take()) is not None:
        types.append(frame["type"])
    assert types == ["delta", "closed"]
    assert not stage.broadcast.watched


@in_process
async def test_a_setting_is_told_at_once() -> None:
    async with InHost() as host:
        watch = await host.watch()
        await host.append(updated(flagged=True))
        await passed(0.01)
        watch.read()
        assert watch.snapshots()[-1]["session"]["flagged"] is True
