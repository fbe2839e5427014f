"""A session's lane, in one process: when a start is answered, what a stop does, and what comes next."""

import asyncio
from typing import Any

import pytest

from maka.journal.digests import digest_of
from maka.journal.errors import InvalidEvent, JournalError, JournalWriteError
from maka.journal.events import Draft
from maka.runtime.backends.base import text_of
from maka.runtime.backends.scripted import Do, Emit, Faults, Never, Question, Tool
from maka.runtime.errors import KernelClosed
from maka.runtime.host.admission import StopAsked
from maka.runtime.host.protocol import HostError
from support.in_host import InHost, in_process, passed, refused, updated
from support.lineages import Story
from support.memory_journals import MemoryJournals


def content(text: str) -> list[dict[str, Any]]:
    return [{"kind": "text", "text": text}]


def waits(waiting: asyncio.Event) -> Do:
    """The turn waits for the event, and is not stopped meanwhile."""
    return Do(lambda _: waiting.wait())


def message(text: str) -> dict[str, Any]:
    return {"content": content(text)}


def admitted(turn_id: str = "t", run_id: str = "r", **more: Any) -> Draft:
    data = {"turn_id": turn_id, "run_id": run_id, "message_id": f"m-{turn_id}", "previous_root_turn_id": None}
    said = {"execution": {"kind": "root"}, "input": message("go"), "input_digest": digest_of(message("go"))}
    return Draft("turn/admitted", {**data, **said, **more})


def left(*drafts: Draft) -> MemoryJournals:
    """What a dead host left."""
    story = Story()
    for draft in drafts:
        story.add(draft.type, draft.data)
    return of_story(story)


def of_story(story: Story) -> MemoryJournals:
    journals = MemoryJournals()
    journals.create("s1")
    journals._stored["s1"] = list(story.events)
    return journals


def doubtful() -> MemoryJournals:
    """A continuation was cut off behind its start, and two messages wait."""
    story = Story()
    story.start().end("interrupted")
    story.go_on("r1")
    for number in (1, 2):
        data = {"message_id": f"m{number}", "placement": "next_turn", "disposition": "followup", **message("wait")}
        story.add("message/accepted", {**data, "digest": digest_of(message("wait"))})
    return of_story(story)


def handed_over() -> MemoryJournals:
    story = Story()
    story.start().pause()
    return of_story(story)


# ---------------------------------------------------------------- starts


@in_process
async def test_a_start_is_answered_once_its_run_has_begun() -> None:
    async with InHost(Never()) as host:
        started = await host.start("t1")
        [admission] = [event for event in host.events() if event.type == "turn/admitted"]
        assert started["turn"]["status"] == "running"
        assert started["turn"]["run_id"] == admission.data["run_id"]
        assert started["revision"] == admission.seq
        assert "user/message" in host.types()


@in_process
async def test_a_start_is_not_answered_before_its_admission_is_durable() -> None:
    async with InHost("hi") as host:
        host.disk.open.clear()
        starting = host.spawn(host.start("t1"), "start")
        await passed()
        assert not starting.done()
        assert host.sent == []
        host.disk.open.set()
        assert (await starting)["turn"]["turn_id"] == "t1"


@in_process
async def test_the_input_of_a_turn_is_what_was_submitted() -> None:
    async with InHost("hi") as host:
        quotes = [{"text": "q", "source": "elsewhere"}]
        await host.start("t1", "go on", message_id="m1", quotes=quotes, max_steps=4)
        await passed()
        [given] = host.backends.built[0].inputs
        assert (given.turn_id, given.content, given.max_steps) == ("t1", content("go on"), 4)
        [said] = host.of("user/message")
        assert (said["message_id"], said["content"], said["quotes"]) == ("m1", content("go on"), quotes)


@in_process
async def test_a_turn_that_cannot_begin_has_failed_and_the_session_is_usable() -> None:
    faults = [Faults(build_error=RuntimeError("there is no model")), Faults()]
    async with InHost(Never(), faults=faults) as host:
        started = await host.start("t1", "go")
        turn = started["turn"]
        assert (turn["status"], turn["failure_class"]) == ("failed", "start_failed")
        assert "there is no model" in turn["message"]
        assert host.types()[-5:] == ["turn/admitted", "turn/start", "user/message", "turn/end", "run/settled"]
        assert host.of("user/message")[0]["content"] == content("go")
        assert (await host.start("t1", "go")) == {"turn": turn, "revision": started["revision"]}
        assert (await host.start("t2"))["turn"]["status"] == "running"
        assert host.of("turn/admitted")[1]["previous_root_turn_id"] == "t1"


@in_process
async def test_what_waits_goes_on_behind_a_turn_that_could_not_begin() -> None:
    faults = [Faults(build_delay=1.0, build_error=RuntimeError("there is no model")), Faults()]
    async with InHost("hi", faults=faults) as host:
        starting = host.spawn(host.start("t1"), "start")
        await passed()
        await host.submit("m1")
        await starting
        await passed()
        assert [data["message_id"] for data in host.of("turn/admitted")][1:] == ["m1"]
        assert host.sent == [host.of("turn/admitted")[1]["turn_id"]]


@in_process
async def test_of_starts_that_race_one_wins_and_the_others_leave_nothing() -> None:
    async with InHost(Never()) as host:
        starts = [host.start(f"t{number}") for number in range(4)]
        outcomes = await asyncio.gather(*starts, return_exceptions=True)
        won = [outcome for outcome in outcomes if isinstance(outcome, dict)]
        assert len(won) == 1
        assert {getattr(outcome, "code", "") for outcome in outcomes if outcome not in won} == {"session_busy"}
        assert [data["turn_id"] for data in host.of("turn/admitted")] == [won[0]["turn"]["turn_id"]]


@in_process
async def test_the_same_start_at_once_is_one_turn_and_has_one_answer() -> None:
    async with InHost(Never(), faults=Faults(build_delay=0.2)) as host:
        first, second = await asyncio.gather(host.start("t1"), host.start("t1"))
        assert first == second
        assert first["turn"]["status"] == "running"
        await passed()
        assert host.sent == ["t1"]


@in_process
async def test_a_caller_that_goes_away_takes_nothing_back() -> None:
    async with InHost("hi", "there") as host:
        host.disk.open.clear()
        for call in (host.start("t1"), host.submit("m1")):
            asking = host.spawn(call, "ask")
            await passed()
            asking.cancel()
            await asyncio.wait({asking})
            assert asking.cancelled()
        host.disk.open.set()
        await passed()
        # What was cancelled was admitted; whoever asks again is answered.
        assert (await host.start("t1"))["turn"]["status"] == "completed"
        await host.submit("m1")
        await passed()
        assert [data["message_id"] for data in host.of("turn/admitted")][1:] == ["m1"]
        assert len(host.sent) == 2


@in_process
async def test_what_failed_to_become_durable_was_never_asked_for() -> None:
    async with InHost("hi") as host:
        await host.append(updated(name="open"))
        host.disk.failing = 1
        with pytest.raises(JournalWriteError):
            await host.start("t1")
        assert host.lane.root is None
        assert host.of("turn/admitted") == []
        assert (await host.start("t1", "something else"))["turn"]["turn_id"] == "t1"
        await passed()
        assert host.sent == ["t1"]


# ---------------------------------------------------------------- steering


@in_process
async def test_steering_is_taken_between_steps() -> None:
    going = asyncio.Event()
    async with InHost([Tool("look"), waits(going), Tool("look")]) as host:
        await host.start("t1")
        await passed()
        steered = await host.steer("s1", "this way")
        assert steered["disposition"] == "steering"
        assert steered["turn_id"] == "t1"
        going.set()
        await passed()
        said = host.of("user/message")[1]
        assert (said["message_id"], said["turn_id"], said["source"]["kind"]) == ("s1", "t1", "steering")
        assert len(host.of("turn/admitted")) == 1
        assert host.messages.leased("s1") == ()
        assert await host.status("t1") == "completed"


@in_process
async def test_steering_that_was_not_taken_becomes_the_next_turn_with_its_id() -> None:
    async with InHost([Never()], ["hi"], ["there"]) as host:
        await host.start("t1")
        await host.submit("m1", "later")
        await host.steer("s1", "this way")
        await host.stop()
        await passed()
        following = host.of("turn/admitted")[1:]
        assert [data["message_id"] for data in following] == ["s1", "m1"]
        assert following[0]["input"] == message("this way")
        assert [text_of(data["content"]) for data in host.of("user/message")[1:]] == ["this way", "later"]


# ---------------------------------------------------------------- stops


@in_process
async def test_a_stop_waits_for_the_end_and_answers_with_it() -> None:
    async with InHost(Never()) as host:
        await host.start("t1")
        stopped = await host.stop("x")
        assert stopped["turn"]["status"] == "cancelled"
        assert stopped["turn"]["reason"] == {"kind": "aborted", "source": "user"}
        assert stopped["retracted"] == []
        [event] = [event for event in host.events() if event.type == "turn/stop_requested"]
        assert stopped["revision"] == event.seq
        assert (event.data["stop_id"], event.data["mode"]) == ("x", "immediate")
        assert host.types()[-1] == "run/settled"


@in_process
async def test_the_same_stop_is_answered_the_same() -> None:
    async with InHost(Never()) as host:
        await host.start("t1")
        first, second = await asyncio.gather(host.stop("x", retract=True), host.stop("x", retract=True))
        assert first == second == await host.stop("x", "t1", retract=True)
        assert len(host.of("turn/stop_requested")) == 1


@in_process
async def test_stops_that_join_are_all_answered_by_one_end() -> None:
    async with InHost(Never(), faults=Faults(stop_delay=0.2)) as host:
        await host.start("t1")
        outcomes = await asyncio.gather(host.stop("x"), host.stop("y"))
        assert [outcome["turn"]["status"] for outcome in outcomes] == ["cancelled", "cancelled"]
        assert len(host.of("turn/stop_requested")) == len(host.of("turn/end")) == 1


@in_process
async def test_a_stop_before_the_run_has_begun_leaves_a_turn_that_never_ran() -> None:
    async with InHost("hi", faults=Faults(build_delay=0.2)) as host:
        starting = host.spawn(host.start("t1"), "start")
        await passed(0.1)
        stopped = await host.stop("x", "t1")
        assert stopped["turn"]["status"] == "cancelled"
        assert (await starting)["turn"]["status"] == "cancelled"
        assert host.sent == []
        assert host.batch("turn/stop_requested") == [
            "turn/stop_requested",
            "turn/start",
            "user/message",
            "turn/end",
            "run/settled",
        ]
        assert host.of("turn/end")[0]["reason"] == {"kind": "aborted", "source": "user"}


@in_process
async def test_a_stop_behind_the_admission_is_obeyed_before_anything_is_built() -> None:
    async with InHost("hi") as host:
        await host.append(updated(name="open"))
        host.disk.open.clear()
        starting = host.spawn(host.start("t1"), "start")
        await passed(0.1)
        run_id = host.lane.root.run_id if host.lane.root else ""
        stopping = host.spawn(host.lane.stop("t1", run_id, StopAsked("x", "user")), "stop")
        await passed(0.1)
        host.disk.open.set()
        assert (await stopping)["turn"]["status"] == "cancelled"
        await starting
        assert host.sent == []
        assert host.of("turn/end")[0]["reason"] == {"kind": "aborted", "source": "user"}


@in_process
async def test_a_stop_names_the_run_that_has_the_turn() -> None:
    async with InHost(Never()) as host:
        await host.start("t1")
        assert await refused(host.stop("x", "t1", "another")) == "operation_conflict"
        assert await refused(host.lane.stop("nobody", "r", StopAsked("x", "user"))) == "not_found"
        assert await host.status("t1") == "running"


@in_process
async def test_the_id_of_a_stop_stands_for_what_it_was() -> None:
    async with InHost(Never(), Never()) as host:
        await host.start("t1")
        await host.stop("x", mode="after_step")
        await host.start("t2")
        assert await refused(host.stop("x")) == "operation_conflict"
        assert await refused(host.stop("x", "t1", mode="immediate")) == "operation_conflict"
        assert await host.status("t2") == "running"


@in_process
async def test_a_turn_that_is_over_is_told_as_it_ended() -> None:
    async with InHost("hi") as host:
        await host.start("t1")
        await passed()
        before = host.types()
        stopped = await host.stop("x", "t1")
        assert stopped["turn"]["status"] == "completed"
        assert stopped["retracted"] == []
        assert host.types() == before


@in_process
async def test_a_stop_that_retracts_takes_back_in_its_own_batch() -> None:
    async with InHost(Never()) as host:
        await host.start("t1")
        for number in (1, 2):
            await host.submit(f"m{number}")
        stopped = await host.stop("x", retract=True)
        assert stopped["retracted"] == ["m1", "m2"]
        [event] = [event for event in host.events() if event.type == "turn/stop_requested"]
        assert event.data["retract"] == ["m1", "m2"]
        assert host.of("message/retracted") == []
        await passed()
        assert len(host.of("turn/admitted")) == 1
        assert (await host.stop("x", "t1", retract=True))["retracted"] == ["m1", "m2"]


@in_process
async def test_a_plain_stop_keeps_what_waits() -> None:
    async with InHost([Never()], ["hi"]) as host:
        await host.start("t1")
        await host.submit("m1")
        assert (await host.stop())["retracted"] == []
        await passed()
        assert [data["message_id"] for data in host.of("turn/admitted")][1:] == ["m1"]


@in_process
async def test_an_interrupt_takes_back_although_a_plain_stop_is_in_flight() -> None:
    async with InHost(Never(), faults=Faults(stop_delay=0.2)) as host:
        await host.start("t1")
        await host.submit("m1")
        stopping = host.spawn(host.stop("x"), "stop")
        await passed(0.1)
        interrupted = await host.stop("y", "t1", retract=True)
        assert interrupted["retracted"] == ["m1"]
        assert interrupted["turn"]["status"] == "cancelled"
        await stopping
        await passed()
        assert host.of("message/retracted") == [{"retract_id": "y", "message_ids": ["m1"]}]
        assert len(host.of("turn/admitted")) == 1
        assert (await host.stop("y", "t1", retract=True))["retracted"] == ["m1"]


@in_process
async def test_what_waits_does_not_begin_while_a_stop_is_being_answered() -> None:
    """Between the end of its turn and its answer nothing comes in between: what it takes back is still there."""
    async with InHost([Never()], ["hi"], faults=Faults(stop_delay=0.2)) as host:
        await host.start("t1")
        await host.submit("m1")
        plain, interrupt = await asyncio.gather(host.stop("x"), host.stop("y", retract=True))
        retracted = {*plain["retracted"], *interrupt["retracted"]}
        assert retracted == {"m1"}
        await passed()
        assert len(host.of("turn/admitted")) == 1


@in_process
async def test_an_admission_that_nobody_runs_is_stopped_by_a_batch() -> None:
    async with InHost(journals=left(admitted())) as host:
        stopped = await host.stop("x", "t", retract=True)
        assert stopped["turn"]["status"] == "cancelled"
        assert host.sent == []
        assert host.batch("turn/stop_requested") == [
            "turn/stop_requested",
            "turn/start",
            "user/message",
            "turn/end",
            "run/settled",
        ]
        await passed()
        assert host.types().count("turn/end") == 1


@in_process
async def test_a_turn_that_was_handed_over_is_stopped_and_its_successor_never_runs() -> None:
    async with InHost("hi", journals=handed_over()) as host:
        assert await host.status("t1") == "paused"
        stopped = await host.stop("x", "t1")
        assert stopped["turn"]["status"] == "cancelled"
        assert host.sent == []
        assert (await host.start("t2"))["turn"]["turn_id"] == "t2"


@in_process
async def test_a_continuation_in_doubt_is_stopped_and_what_waits_goes_on() -> None:
    async with InHost("one", "two", journals=doubtful()) as host:
        assert await host.status("t2") == "indeterminate"
        await host.lane.next()
        assert host.sent == []
        stopped = await host.stop("x", "t2")
        assert stopped["turn"]["status"] == "cancelled"
        assert stopped["turn"]["reason"]["source"] == "user"
        await passed()
        assert [data["message_id"] for data in host.of("turn/admitted")] == ["m1", "m2"]
        assert host.of("turn/admitted")[0]["previous_root_turn_id"] == "t2"


@in_process
async def test_a_continuation_in_doubt_is_settled_by_who_wants_to_go_on() -> None:
    async with InHost("one", "two", "three", journals=doubtful()) as host:
        submitted = await host.submit("m3")
        assert submitted["disposition"] == "followup"
        await passed()
        assert (await host.turn("t2"))["failure_class"] == "continuation_indeterminate"
        assert [data["message_id"] for data in host.of("turn/admitted")] == ["m1", "m2", "m3"]


# ---------------------------------------------------------------- what comes next


@in_process
async def test_what_waits_is_run_one_by_one_in_its_order() -> None:
    async with InHost(*(str(number) for number in range(5))) as host:
        await host.start("t0")
        for number in range(1, 5):
            await host.submit(f"m{number}", f"text {number}")
        await passed(2.0)
        chain = host.of("turn/admitted")
        assert [data["message_id"] for data in chain][1:] == [f"m{number}" for number in range(1, 5)]
        assert [data["previous_root_turn_id"] for data in chain] == [None, *(data["turn_id"] for data in chain[:-1])]
        ends = [event.seq for event in host.events() if event.type == "run/settled"]
        begins = [event.seq for event in host.events() if event.type == "turn/admitted"]
        assert all(end < begin for end, begin in zip(ends, begins[1:], strict=False))
        assert host.sent == [data["turn_id"] for data in chain]


@in_process
async def test_nothing_comes_next_in_a_session_that_is_quarantined() -> None:
    hangs = Faults(stop_error=RuntimeError("no"), ignore_stop=True, ignore_dispose=True, ignore_close=True)
    going = asyncio.Event()
    async with InHost([waits(going)], ["hi"], ["there"], faults=[hangs, Faults()]) as host:
        await host.start("t1")
        await host.submit("m1")
        # Who stops it is told why that has not come to its end, and does not wait for ever.
        with pytest.raises(HostError, match="quarantined") as told:
            await host.stop()
        assert told.value.code == "session_unavailable"
        assert host.of("turn/end")[0]["reason"] == {"kind": "aborted", "source": "user"}
        assert "run/settled" not in host.types()
        await passed(10.0)
        assert len(host.of("turn/admitted")) == 1
        assert await refused(host.start("t2")) == "session_unavailable"
        # It is taken, and waits.
        assert (await host.submit("m2"))["disposition"] == "followup"
        assert host.waiting == ["m1", "m2"]
        going.set()
        await passed()
        assert [data["message_id"] for data in host.of("turn/admitted")][1:] == ["m1", "m2"]
        assert (await host.stop("y", "t1"))["turn"]["status"] == "cancelled"


@in_process
async def test_nothing_comes_next_in_a_session_that_is_archived() -> None:
    async with InHost([Never()], ["hi"]) as host:
        await host.start("t1")
        await host.submit("m1")
        await host.append(updated(archived=True))
        await host.stop()
        await passed()
        assert host.waiting == ["m1"]
        assert await refused(host.start("t2")) == "session_archived"
        await host.append(updated(archived=False))
        await host.lane.next()
        await passed()
        assert [data["message_id"] for data in host.of("turn/admitted")][1:] == ["m1"]


@in_process
async def test_nothing_comes_next_while_a_turn_waits_for_its_successor() -> None:
    async with InHost("hi", "there", journals=handed_over()) as host:
        assert await refused(host.start("t2")) == "session_busy"
        assert (await host.submit("m1"))["disposition"] == "followup"
        assert (await host.steer("s1"))["turn_id"] == "t1"
        await host.lane.next()
        await passed()
        assert host.sent == []
        # Once that is over, all of it is run: what was to steer comes first.
        await host.stop("x", "t1")
        await passed()
        assert [data["message_id"] for data in host.of("turn/admitted")] == ["s1", "m1"]


@in_process
async def test_a_host_that_takes_up_a_session_runs_what_was_admitted_under_its_ids() -> None:
    journals = left(admitted(options={"max_steps": 2}), Draft("session/note", {"kind": "test", "text": "a note"}))
    async with InHost("hi", journals=journals) as host:
        await host.lane.next()
        assert await host.status("t") in ("running", "completed")
        await passed()
        [given] = host.backends.built[0].inputs
        assert (given.turn_id, given.run_id, given.max_steps) == ("t", "r", 2)
        assert host.of("user/message")[0]["message_id"] == "m-t"
        assert host.types().count("turn/admitted") == 1
        # Once more is nothing more.
        await host.lane.next()
        await passed()
        assert host.sent == ["t"]


@in_process
async def test_a_session_with_nothing_to_do_is_not_opened_for_that() -> None:
    async with InHost(Never()) as host:
        await host.append(updated(name="open"))
        asked = host.disk.asked
        await host.lane.next()
        host.lane.advance()
        await passed()
        assert host.disk.asked == asked
        assert host.types() == ["session/header", "session/updated"]


# ---------------------------------------------------------------- the host ends


@in_process
async def test_a_host_that_ends_stops_what_runs_and_keeps_what_waits() -> None:
    host = InHost(Never())
    await host.start("t1")
    await host.submit("m1")
    await host.end()
    assert host.of("turn/end")[0]["reason"] == {"kind": "aborted", "source": "host_shutdown"}
    assert "retract" not in host.of("turn/stop_requested")[0]
    assert host.types()[-1] == "run/settled"
    assert len(host.of("turn/admitted")) == 1
    async with InHost("hi", journals=host.journals) as following:
        await following.lane.next()
        await passed()
        assert [data["message_id"] for data in following.of("turn/admitted")][1:] == ["m1"]


@in_process
async def test_a_host_that_ends_takes_nothing_new() -> None:
    async with InHost(Never()) as host:
        await host.append(updated(name="open"))
        host.draining = True
        assert await refused(host.start("t1")) == "host_draining"
        assert host.types()[-1] == "session/updated"


@in_process
async def test_an_admission_that_a_drain_has_cut_off_is_the_next_hosts() -> None:
    host = InHost("hi")
    await host.append(updated(name="open"))
    host.disk.open.clear()
    starting = host.spawn(host.start("t1"), "start")
    await passed()
    host.draining = True
    host.disk.open.set()
    await host.end()
    await asyncio.wait({starting})
    assert isinstance(starting.exception(), KernelClosed) or starting.result()["turn"]["status"] == "admitted"
    assert host.types()[-1] == "turn/admitted"
    async with InHost("hi", journals=host.journals) as following:
        await following.lane.next()
        await passed()
        assert following.sent == ["t1"]


# ---------------------------------------------------------------- a journal that fails


@in_process
@pytest.mark.parametrize("poisoned", [False, True])
async def test_a_session_whose_journal_has_failed_is_repaired_by_the_next_command(poisoned: bool) -> None:
    going = asyncio.Event()
    async with InHost([waits(going), "hi"], ["there"], ["again"]) as host:
        await host.start("t1")
        await host.submit("m1", "wait")
        host.disk.failing, host.disk.poisoned = 1, poisoned
        going.set()
        await passed()
        assert host.lane.root is None or host.lane.root.turn_id != "t1"
        turn = await host.turn("t1")
        assert turn["status"] == "failed"
        await passed(10.0)
        # And the queue goes on.
        assert [data["message_id"] for data in host.of("turn/admitted")][1:] == ["m1"]
        assert (await host.start("t9"))["turn"]["turn_id"] == "t9"


@in_process
async def test_what_could_not_be_admitted_is_tried_again() -> None:
    async with InHost([Never()], ["hi"]) as host:
        await host.start("t1")
        await host.submit("m1")
        turn = await host.turn("t1")
        stopping = host.spawn(host.lane.stop("t1", turn["run_id"], StopAsked("x", "user")), "stop")
        await stopping
        host.disk.failing = 1
        await passed(1.0)
        failed = host.disk.failing == 0
        await passed(20.0)
        assert failed
        assert [data["message_id"] for data in host.of("turn/admitted")][1:] == ["m1"]
        assert len(host.sent) == 2


@in_process
async def test_a_stop_whose_end_could_not_be_written_says_so() -> None:
    async def not_now(_: str) -> None:
        raise JournalError("the disk is away")

    async with InHost(Never()) as host:
        await host.start("t1")
        run_id = (await host.turn("t1"))["run_id"]
        at_once, host.journals.on_open = host.journals.on_open, not_now
        host.disk.failing = 1_000
        with pytest.raises(JournalError):
            await host.stop("x", "t1", run_id)
        host.disk.failing, host.journals.on_open = 0, at_once
        assert (await host.stop("y", "t1", run_id))["turn"]["status"] == "failed"
        assert host.lane.root is None


@in_process
async def test_a_question_is_waited_for_and_a_stop_closes_it() -> None:
    async with InHost(Question("Which?")) as host:
        await host.start("t1")
        await passed()
        assert await host.status("t1") == "waiting_for_user"
        await host.stop()
        assert await host.status("t1") == "cancelled"
        assert host.of("interaction/resolved")[0]["outcome"]["kind"] == "closure"


@in_process
async def test_an_admission_that_can_neither_begin_nor_end_is_tried_again_at_leisure() -> None:
    """Such as another program's, whose input is no message."""
    async with InHost("hi") as host:
        host.journals.watch = None
        tried: list[str] = []

        def refuses(*_: Any, **__: Any) -> Any:
            tried.append("start")
            raise InvalidEvent("it is no message", type="user/message")

        host.kernel.start_turn = refuses  # type: ignore[method-assign]
        host.lane._append = refusing  # type: ignore[method-assign]
        host.spawn(host.start("t1"), "start")
        await passed(4.0)
        assert tried == ["start"]
        await passed(20.0)
        assert 2 <= len(tried) <= 6


async def refusing(decide: Any) -> Any:
    raise InvalidEvent("it is no message", type="user/message")


def lingering(seconds: float) -> list[Any]:
    """It is through, and lets itself be closed only then."""
    return ["hi", Emit("complete", {"stop_reason": "end_turn"}), Do(lambda _: asyncio.sleep(seconds))]


@in_process
async def test_whoever_sees_the_end_of_a_turn_can_begin_the_next_at_once() -> None:
    async with InHost(lingering(1.0), "there", faults=Faults(ignore_close=True)) as host:
        await host.start("t1")
        while "turn/end" not in host.types():
            await asyncio.sleep(0)
        assert host.root_id == "t1"
        assert (await host.start("t2"))["turn"]["turn_id"] == "t2"
        await passed()
        assert await host.status("t2") == "completed"
