"""The loop: order of events, barriers, limits, failures, stops."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from maka.journal.errors import JournalError, JournalWriteError
from maka.journal.events import Draft
from maka.runtime.loop import Options, Stop
from maka.runtime.model import Chunk, ModelError, ModelRequest, TextDelta, ToolCallDelta
from maka.runtime.retry import RetryPolicy
from maka.runtime.scripted import Ask, Do, End, Fail, Say, Tokens, Wait
from maka.runtime.tools import LeftBehind, ToolOutput
from support.loops import Bench, FakeTool, MemoryJournal


def run(bench: Bench, *args: Any, **kwargs: Any) -> Any:
    return asyncio.run(bench.loop.run_turn(*(args or ("hello",)), **kwargs))


def before(trace: list[str], first: str, then: str, *, nth: int = 0) -> bool:
    """Is there a sync between the n-th ``first`` and the next ``then`` behind it?"""
    at = [index for index, entry in enumerate(trace) if entry == first][nth]
    return "sync" in trace[at : trace.index(then, at)]


def marks(bench: Bench, name: str) -> Do:
    """A part of a script that shows in the trace when the provider is being asked."""
    return Do(lambda request: bench.journal.trace.append(name))


def write_error(poisoned: bool = False) -> JournalWriteError:
    return JournalWriteError("no room", errno=28, poisoned=poisoned)


# ---------------------------------------------------------------- order


def test_a_turn_without_tools() -> None:
    bench = Bench([[Say("hm", thinking=True), "hello there", Tokens(7, 3)]])
    outcome = run(bench)
    assert outcome.reason == {"kind": "completed"}
    assert bench.journal.types() == [
        "turn/start",
        "user/message",
        "step/start",
        "request/header",
        "assistant/message",
        "step/end",
        "turn/end",
        "run/settled",
    ]
    start, message = bench.journal.events[1:3]
    assert (start.more, message.more) == (1, 0)
    assert start.data["turn"] == 1
    assert start.data["run"]["model"] == "scripted-1"
    assert start.data["run"]["run_id"] == start.data["run_id"] == outcome.run_id
    [said] = bench.journal.of("assistant/message")
    assert said["content"] == [{"kind": "thinking", "text": "hm"}, {"kind": "text", "text": "hello there"}]
    assert said["usage"] == {"input_tokens": 7, "output_tokens": 3}
    assert bench.journal.of("request/header")[0]["reason"] == "initial"
    assert bench.kinds()[-1] == "complete"
    assert bench.kinds().count("complete") == 1
    assert bench.told[-1].data == {"stop_reason": "end_turn"}


def test_nothing_is_told_before_it_is_durable() -> None:
    bench = Bench([[Ask("a")], ["done"]], [FakeTool("a")])
    bench.model._script[0].insert(0, marks(bench, "asked 1"))
    bench.model._script[1].insert(0, marks(bench, "asked 2"))
    run(bench)
    trace = bench.journal.trace
    assert before(trace, "request/header", "asked 1")
    assert before(trace, "tool/call", "tool/result")
    assert before(trace, "tool/result", "asked 2")
    assert before(trace, "tool/result", "told tool_result")
    assert before(trace, "turn/end", "told complete")
    assert before(trace, "run/settled", "told complete")


def test_the_call_and_its_result() -> None:
    bench = Bench([["let me", Ask("a", {"n": 1}, call_id="c1")], ["done"]], [FakeTool("a", recovery="read_only")])
    run(bench)
    [call], [result] = bench.journal.of("tool/call"), bench.journal.of("tool/result")
    assert "arguments" not in call
    assert call["arguments_digest"] == hashlib.sha256(b'{"n":1}').hexdigest()
    assert call["recovery"] == "read_only"
    assert call["operation_id"] == result["operation_id"]
    assert (result["call_id"], result["state"], result["is_error"]) == ("c1", "ok", False)
    assert bench.model.requests[1].messages[-1]["content"] == result["content"]
    assert [data["step"] for data in bench.journal.of("step/end")] == [1, 2]


def test_request_headers_only_where_they_are_due() -> None:
    bench = Bench([[Ask("a")], ["one"], ["two"]], [FakeTool("a")])
    run(bench)
    run(bench)
    assert [(data["step"], data["reason"]) for data in bench.journal.of("request/header")] == [
        (1, "initial"),
        (1, "resume"),
    ]
    [first, _] = bench.journal.of("request/header")
    assert first["header"]["provider"] == "scripted"
    assert [tool["name"] for tool in first["header"]["tools"]] == ["a"]
    assert [data["turn"] for data in bench.journal.of("turn/start")] == [1, 2]


def test_a_request_made_with_something_else_says_so() -> None:
    def change(request: Any) -> None:
        patch = Draft("session/updated", {"patch": {"model": "scripted-2"}})
        bench.conversation.observe(bench.journal.append(patch))

    bench = Bench([[Do(change), Ask("a")], ["done"]], [FakeTool("a")])
    run(bench)
    headers = bench.journal.of("request/header")
    assert [(data["step"], data["reason"], data["header"]["model"]) for data in headers] == [
        (1, "initial", "scripted-1"),
        (2, "change", "scripted-2"),
    ]
    assert bench.model.requests[1].model == "scripted-2"


def test_live_text_is_joined_and_marked_ignorable() -> None:
    bench = Bench([[Say("abcdefgh", pieces=8, pause=0.01)]], options=Options(live_seconds=0.03))
    run(bench)
    deltas = [event for event in bench.journal.events if event.type == "assistant/delta"]
    assert deltas[0].data["text"] == "a"
    assert all(event.ignorable for event in deltas)
    assert 2 <= len(deltas) < 8
    assert "abcdefgh".startswith("".join(event.data["text"] for event in deltas))
    assert {event.data["message_id"] for event in deltas} == {bench.journal.of("assistant/message")[0]["message_id"]}
    assert "".join(event.data["text"] for event in bench.told if event.kind == "text_delta") == "abcdefgh"


# ---------------------------------------------------------------- limits


def test_step_limit() -> None:
    bench = Bench([[Ask("a")], [Ask("a")], ["never asked"]], [FakeTool("a")])
    assert run(bench, max_steps=2).reason == {"kind": "step_limit"}
    assert len(bench.model.requests) == 2
    assert len(bench.journal.of("tool/result")) == 2
    assert bench.told[-1].data == {"stop_reason": "step_limit"}


def test_max_tokens_drops_the_calls() -> None:
    tool = FakeTool("a")
    bench = Bench([["so far", Ask("a"), End("max_tokens")]], [tool])
    assert run(bench).reason == {"kind": "max_tokens"}
    [said] = bench.journal.of("assistant/message")
    assert said["content"] == [{"kind": "text", "text": "so far"}]
    assert said["stop_reason"] == "max_tokens"
    assert tool.entered == 0


# ---------------------------------------------------------------- the provider fails


def test_a_retryable_failure_before_any_chunk_is_tried_again_in_the_same_step() -> None:
    bench = Bench([Fail("provider_rate_limit", retryable=True), Fail("provider_network", True, 3.0), "there"])
    assert run(bench).reason == {"kind": "completed"}
    assert bench.slept == [0.5, 3.0]
    assert bench.journal.types().count("step/start") == 1
    assert bench.journal.types().count("request/header") == 1
    notes = bench.journal.of("session/note")
    assert [note["kind"] for note in notes] == ["retry", "retry"]
    assert "provider_rate_limit" in notes[0]["text"]
    assert bench.kinds().count("provider_retry") == 2


@pytest.mark.parametrize(
    ("script", "requests"),
    [
        ([Fail("provider_auth")], 1),
        ([Fail("provider_network", retryable=True, retry_after=3600.0)], 1),
        ([Fail("provider_network", retryable=True)] * 9, 2),
    ],
)
def test_tries_that_are_used_up_end_the_turn(script: list[Any], requests: int) -> None:
    bench = Bench(script, options=Options(retry=RetryPolicy(attempts=2)))
    outcome = run(bench)
    assert outcome.reason["kind"] == "failed"
    assert outcome.reason["failure_class"] == script[0].kind
    assert len(bench.model.requests) == requests
    assert bench.journal.types()[-3:] == ["step/end", "turn/end", "run/settled"]
    assert not bench.journal.of("assistant/message")
    assert bench.kinds()[-2:] == ["error", "complete"]


def test_a_failure_after_a_chunk_keeps_what_came() -> None:
    bench = Bench([["half a", Ask("a"), Fail("provider_network", retryable=True)]], [FakeTool("a")])
    assert run(bench).reason["failure_class"] == "provider_network"
    assert len(bench.model.requests) == 1
    [said] = bench.journal.of("assistant/message")
    assert said["interrupted"] is True
    assert said["stop_reason"] == "interrupted"
    assert said["content"] == [{"kind": "text", "text": "half a"}]
    assert not bench.journal.of("tool/result")


def test_an_adapter_that_breaks_is_a_failed_provider() -> None:
    def broken(request: object) -> None:
        raise ZeroDivisionError("oops")

    bench = Bench([[Do(broken)]])
    reason = run(bench).reason
    assert (reason["kind"], reason["failure_class"]) == ("failed", "provider_error")
    assert "ZeroDivisionError" in reason["message"]


def test_a_response_that_cannot_be_recorded_ends_the_turn() -> None:
    bench = Bench([["text", Tokens("many")]])  # type: ignore[arg-type]
    assert run(bench).reason["failure_class"] == "provider_invalid_response"
    assert bench.journal.types()[-1] == "run/settled"


# ---------------------------------------------------------------- barriers that fail


def fails_at(sync: int, error: JournalError) -> Any:
    return lambda journal: error if journal.syncs == sync else None


def test_the_provider_is_not_asked_where_the_barrier_before_it_failed() -> None:
    error = write_error()
    bench = Bench(["never"], fail=fails_at(1, error))
    with pytest.raises(JournalWriteError) as caught:
        run(bench)
    assert caught.value is error
    assert not bench.model.requests
    assert bench.journal.trace[-1] == "failed sync"
    assert not bench.told


def test_a_body_is_not_entered_where_the_barrier_before_it_failed() -> None:
    tool = FakeTool("a")
    bench = Bench([[Ask("a")]], [tool], fail=fails_at(2, write_error()))
    with pytest.raises(JournalWriteError):
        run(bench)
    assert tool.entered == 0
    assert bench.journal.trace[-1] == "failed sync"
    assert "told tool_start" not in bench.journal.trace


def test_a_failed_barrier_of_one_call_cancels_those_that_run_beside_it() -> None:
    ended: list[str] = []

    async def slow(arguments: Any, context: Any) -> ToolOutput:
        try:
            await asyncio.sleep(30)
        finally:
            ended.append("slow")
        return ToolOutput.of("")

    async def authorize(call: Any, tool: Any, arguments: Any) -> None:
        if call.name == "late":
            await asyncio.sleep(0.05)

    late = FakeTool("late")
    bench = Bench(
        [[Ask("slow"), Ask("late")]],
        [FakeTool("slow", slow), late],
        fail=fails_at(3, write_error()),
        authorize=authorize,
    )
    with pytest.raises(JournalWriteError):
        run(bench)
    assert ended == ["slow"]
    assert late.entered == 0
    assert bench.journal.trace[-1] == "failed sync"


def test_the_write_of_a_result_is_tried_again_and_the_tool_is_not() -> None:
    tool = FakeTool("a")
    bench = Bench([[Ask("a")], ["done"]], [tool], fail=fails_at(3, write_error()))
    assert run(bench).reason == {"kind": "completed"}
    assert tool.entered == 1
    assert len(bench.journal.of("tool/result")) == 1
    assert bench.journal.types() == [
        *(
            "turn/start",
            "user/message",
            "step/start",
            "request/header",
            "assistant/message",
            "tool/call",
            "tool/result",
        ),
        *("step/end", "step/start", "assistant/message", "step/end", "turn/end", "run/settled"),
    ]


@pytest.mark.parametrize("poisoned", [False, True])
def test_a_result_that_cannot_be_written_stops_the_turn(poisoned: bool) -> None:
    def fail(journal: MemoryJournal) -> JournalError | None:
        return write_error(poisoned) if journal.syncs >= 3 else None

    tool = FakeTool("a")
    bench = Bench([[Ask("a")], ["never"]], [tool], fail=fail)
    with pytest.raises(JournalWriteError):
        run(bench)
    assert tool.entered == 1
    assert len(bench.model.requests) == 1
    assert bench.journal.types()[-1] == "tool/call"
    assert "told tool_result" not in bench.journal.trace
    assert bench.journal.syncs == (3 if poisoned else 4)


def test_an_end_that_cannot_be_written_is_not_reported() -> None:
    bench = Bench(["hi"], fail=fails_at(2, write_error()))
    with pytest.raises(JournalWriteError):
        run(bench)
    assert "complete" not in bench.kinds()


# ---------------------------------------------------------------- stops


def stopped_at(bench: Bench, script: list[Any], **stop: Any) -> Any:
    """Runs a turn in which the script's ``Do`` parts call ``stop.request``."""

    async def turn() -> Any:
        signal = Stop()
        for part in script:
            bench.model._script.append(part)
        asked = Do(lambda request: signal.request(**stop))
        for response in bench.model._script:
            response[:] = [asked if part == "STOP" else part for part in response]
        return await bench.loop.run_turn("hello", stop=signal)

    return asyncio.run(turn())


def test_a_stop_while_text_streams() -> None:
    bench = Bench([])
    outcome = stopped_at(bench, [["some text", "STOP", Wait()]], source="client")
    assert outcome.reason == {"kind": "aborted", "source": "client"}
    assert bench.journal.types()[4:] == [
        "turn/stop_requested",
        "assistant/message",
        "step/end",
        "turn/end",
        "session/note",
        "run/settled",
    ]
    [said] = bench.journal.of("assistant/message")
    assert (said["interrupted"], said["content"]) == (True, [{"kind": "text", "text": "some text"}])
    assert bench.journal.of("session/note")[0]["kind"] == "abort"
    assert bench.kinds()[-2:] == ["abort", "complete"]


def test_a_stop_before_any_text_leaves_no_message() -> None:
    bench = Bench([])
    stopped_at(bench, [["STOP", Wait()]])
    assert not bench.journal.of("assistant/message")


def test_a_stop_answers_every_call() -> None:
    signals: list[Stop] = []
    seen: list[Any] = []

    async def body(arguments: Any, context: Any) -> ToolOutput:
        seen.append(context)
        signals[0].request()
        await asyncio.sleep(30)
        return ToolOutput.of("")

    bench = Bench([[Ask("a", call_id="c1"), Ask("a", call_id="c2")]], [FakeTool("a", body, parallel_safe=False)])

    async def turn() -> Any:
        signals.append(Stop())
        return await bench.loop.run_turn("hello", stop=signals[0])

    assert asyncio.run(turn()).reason["kind"] == "aborted"
    first, second = bench.journal.of("tool/result")
    assert (first["call_id"], first["state"], first["error"]["code"]) == ("c1", "unknown", "TOOL_OUTCOME_UNKNOWN")
    assert first["call_seq"] == next(event.seq for event in bench.journal.events if event.type == "tool/call")
    assert "Do not retry blindly." in first["content"][0]["text"]
    assert (second["call_id"], second["state"]) == ("c2", "cancelled")
    assert second["error"]["code"] == "TOOL_ABORTED_BEFORE_DISPATCH"
    assert len(bench.journal.of("tool/call")) == 1
    assert seen[0].cancelled.is_set()


def test_a_stop_is_durable_while_bodies_still_come_to_their_end() -> None:
    signals: list[Stop] = []
    durable: list[bool] = []

    async def slow_to_end(arguments: Any, context: Any) -> ToolOutput:
        signals[0].request()
        try:
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0.05)
            synced = bench.journal.events[: bench.journal.synced]
            durable.append(any(event.type == "turn/stop_requested" for event in synced))
        return ToolOutput.of("")

    bench = Bench([[Ask("a")]], [FakeTool("a", slow_to_end)])

    async def turn() -> Any:
        signals.append(Stop())
        return await bench.loop.run_turn("hello", stop=signals[0])

    assert asyncio.run(turn()).reason["kind"] == "aborted"
    assert durable == [True]


def test_a_body_that_finishes_in_spite_of_the_stop_keeps_its_outcome() -> None:
    signals: list[Stop] = []

    async def stubborn(arguments: Any, context: Any) -> ToolOutput:
        signals[0].request()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            return ToolOutput.of("finished all the same")
        return ToolOutput.of("")

    bench = Bench([[Ask("a")]], [FakeTool("a", stubborn)])

    async def turn() -> Any:
        signals.append(Stop())
        return await bench.loop.run_turn("hello", stop=signals[0])

    assert asyncio.run(turn()).reason["kind"] == "aborted"
    [result] = bench.journal.of("tool/result")
    assert (result["state"], result["content"][0]["text"]) == ("ok", "finished all the same")


def test_a_stop_while_a_long_output_is_being_stored_keeps_the_outcome() -> None:
    signals: list[Stop] = []
    bench = Bench([[Ask("a")]], [FakeTool("a", lambda arguments, context: ToolOutput.of("x" * 100_000))])

    async def turn() -> Any:
        signals.append(Stop())
        return await bench.loop.run_turn("hello", stop=signals[0])

    async def shorten(content: Any, limit: int, store: Any) -> Any:
        signals[0].request()
        await asyncio.sleep(30)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("maka.runtime.dispatch.shorten", shorten)
        assert asyncio.run(turn()).reason["kind"] == "aborted"
    [result] = bench.journal.of("tool/result")
    assert result["state"] == "ok"
    assert "could not be stored: the turn was stopped" in result["content"][0]["text"]


def test_what_a_stopped_body_left_behind_is_said_with_the_settled_run() -> None:
    signals: list[Stop] = []

    async def body(arguments: Any, context: Any) -> ToolOutput:
        signals[0].request()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            raise LeftBehind("process 7 lives on") from None
        return ToolOutput.of("")

    bench = Bench([[Ask("a")]], [FakeTool("a", body)])

    async def turn() -> Any:
        signals.append(Stop())
        return await bench.loop.run_turn("hello", stop=signals[0])

    asyncio.run(turn())
    assert bench.journal.of("tool/result")[0]["state"] == "unknown"
    assert "process 7 lives on" in bench.journal.of("run/settled")[0]["cleanup"]["error"]


def test_a_response_that_is_stopped_or_breaks_is_closed() -> None:
    closed: list[str] = []

    class Stream:
        """An iterator that is no generator: nobody closes it unless the loop does."""

        def __aiter__(self) -> "Stream":
            return self

        async def __anext__(self) -> Chunk:
            return ToolCallDelta("arguments of no call")

        async def aclose(self) -> None:
            closed.append("closed")

    bench = Bench([])
    object.__setattr__(bench.model, "stream", lambda request: Stream())
    assert run(bench).reason["failure_class"] == "provider_invalid_response"
    assert closed == ["closed"]


def test_a_stop_after_the_step_lets_its_tools_finish() -> None:
    tool = FakeTool("a")
    bench = Bench([], [tool])
    outcome = stopped_at(bench, [["STOP", Ask("a")], ["never"]], source="user", mode="after_step")
    assert outcome.reason == {"kind": "aborted", "source": "user"}
    assert tool.entered == 1
    assert bench.journal.of("tool/result")[0]["state"] == "ok"
    assert len(bench.model.requests) == 1
    assert bench.journal.of("turn/stop_requested")[0]["mode"] == "after_step"


def test_a_stop_escalates() -> None:
    signals: list[Stop] = []

    async def body(arguments: Any, context: Any) -> ToolOutput:
        signals[0].request("first", mode="after_step")
        await asyncio.sleep(0.02)
        signals[0].request("second")
        await asyncio.sleep(30)
        return ToolOutput.of("")

    bench = Bench([[Ask("a")]], [FakeTool("a", body)])

    async def turn() -> Any:
        signals.append(Stop())
        return await bench.loop.run_turn("hello", stop=signals[0])

    assert asyncio.run(turn()).reason == {"kind": "aborted", "source": "first"}
    assert [data["mode"] for data in bench.journal.of("turn/stop_requested")] == ["after_step", "immediate"]


def test_a_stop_while_waiting_to_retry() -> None:
    async def never(seconds: float) -> None:
        await asyncio.Event().wait()

    bench = Bench([Fail(retryable=True)])
    object.__setattr__(bench.loop, "sleep", never)

    async def turn() -> Any:
        stop = Stop()
        asyncio.get_running_loop().call_later(0.05, stop.request)
        return await bench.loop.run_turn("hello", stop=stop)

    assert asyncio.run(turn()).reason["kind"] == "aborted"


def test_cancelling_the_task_ends_the_turn_first() -> None:
    bench = Bench([["text", Wait()]])

    async def turn() -> None:
        task = asyncio.ensure_future(bench.loop.run_turn("hello"))
        await asyncio.sleep(0.05)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(turn())
    assert bench.journal.of("turn/end")[0]["reason"] == {"kind": "aborted", "source": "cancelled"}
    assert bench.journal.synced == len(bench.journal.events)
    assert bench.journal.types()[-1] == "run/settled"


async def slow_to_end(arguments: Any, context: Any) -> ToolOutput:
    try:
        await asyncio.sleep(30)
    finally:
        await asyncio.sleep(0.1)
    return ToolOutput.of("")


@pytest.mark.parametrize("first", ["cancel", "stop"])
def test_cancelling_while_the_turn_is_being_ended_does_not_keep_it_from_its_end(first: str) -> None:
    bench = Bench([[Ask("a")]], [FakeTool("a", slow_to_end)])

    async def turn() -> None:
        signal = Stop()
        task = asyncio.ensure_future(bench.loop.run_turn("hello", stop=signal))
        await asyncio.sleep(0.03)
        if first == "stop":
            signal.request()
        else:
            task.cancel()
        await asyncio.sleep(0.03)
        task.cancel()
        await asyncio.sleep(0.01)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(turn())
    assert bench.journal.of("tool/result")[0]["state"] == "unknown"
    assert bench.journal.of("turn/end")[0]["reason"]["kind"] == "aborted"
    assert bench.journal.synced == len(bench.journal.events)
    assert bench.journal.types()[-1] == "run/settled"
    assert bench.kinds().count("complete") == 1


def test_a_loop_that_closes_ends_its_turns_first() -> None:
    """Closing cancels every task at once, those inside the turn too."""
    bench = Bench([[Ask("a")]], [FakeTool("a", slow_to_end)])

    async def main() -> None:
        main.turn = asyncio.ensure_future(bench.loop.run_turn("hello"))  # type: ignore[attr-defined]
        await asyncio.sleep(0.03)

    asyncio.run(main())
    assert bench.journal.of("tool/result")[0]["state"] == "unknown"
    assert bench.journal.of("turn/end")[0]["reason"] == {"kind": "aborted", "source": "cancelled"}
    assert bench.journal.synced == len(bench.journal.events)
    assert bench.journal.types()[-1] == "run/settled"


class Hasty:
    """An adapter that makes a failure of its own out of being cancelled."""

    provider = "hasty"

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        yield TextDelta("so far")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ModelError("the connection was closed", kind="provider_network") from None


def test_a_failure_that_a_stop_brings_about_is_the_stops() -> None:
    bench = Bench([])
    object.__setattr__(bench.loop, "model", Hasty())

    async def turn() -> Any:
        stop = Stop()
        asyncio.get_running_loop().call_later(0.03, stop.request)
        return await bench.loop.run_turn("hello", stop=stop)

    assert asyncio.run(turn()).reason == {"kind": "aborted", "source": "user"}
    assert bench.journal.of("assistant/message")[0]["content"] == [{"kind": "text", "text": "so far"}]


def test_the_same_stop_again_is_the_same_and_escalates_only_by_its_mode() -> None:
    async def turn(*modes: Any) -> Bench:
        stop = Stop()

        async def body(arguments: Any, context: Any) -> ToolOutput:
            for mode in modes:
                stop.request(mode=mode, stop_id="k")
                await asyncio.sleep(0.01)
            return ToolOutput.of("whole")

        bench = Bench([[Ask("a")]], [FakeTool("a", body)])
        await bench.loop.run_turn("hello", stop=stop)
        return bench

    bench = asyncio.run(turn("after_step", "after_step"))
    assert [data["stop_id"] for data in bench.journal.of("turn/stop_requested")] == ["k"]
    assert bench.journal.of("tool/result")[0]["state"] == "ok"
    bench = asyncio.run(turn("after_step", "immediate", "immediate"))
    modes = [(data["mode"], data["stop_id"] == "k") for data in bench.journal.of("turn/stop_requested")]
    assert modes == [("after_step", True), ("immediate", False)]
    assert bench.journal.of("tool/result")[0]["state"] == "unknown"


def test_a_stop_while_a_result_is_written_again_waits_for_that() -> None:
    """Whoever wanted the second try is cancelled with the step; the turn has its end all the same."""
    signals: list[Stop] = []
    bench = Bench([[Ask("a")], ["never"]], [FakeTool("a")], fail=fails_at(3, write_error()))
    flush = bench.journal.aflush

    async def slow() -> None:
        if bench.journal.syncs == 3:
            signals[0].request()
            await asyncio.sleep(0.05)
        await flush()

    bench.journal.aflush = slow  # type: ignore[method-assign]

    async def turn() -> Any:
        signals.append(Stop())
        return await bench.loop.run_turn("hello", stop=signals[0])

    assert asyncio.run(turn()).reason == {"kind": "aborted", "source": "user"}
    assert [data["state"] for data in bench.journal.of("tool/result")] == ["ok"]
    assert bench.journal.types()[-1] == "run/settled"


def test_the_words_of_a_failure_are_bounded() -> None:
    bench = Bench([Fail("provider_error", message="x" * (17 << 20))])
    assert run(bench).reason["kind"] == "failed"
    assert len(bench.journal.of("turn/end")[0]["reason"]["message"]) <= 2_000


def test_tools_of_an_iterator_are_there_in_every_turn() -> None:
    bench = Bench([["one"], ["two"]], iter([FakeTool("a")]))
    run(bench)
    run(bench)
    assert [[tool["name"] for tool in request.tools] for request in bench.model.requests] == [["a"], ["a"]]


def test_a_hook_that_breaks_ends_the_turn_and_is_raised() -> None:
    async def authorize(call: Any, tool: Any, arguments: Any) -> None:
        raise LookupError("defect")

    tool = FakeTool("a")
    bench = Bench([[Ask("a")]], [tool], authorize=authorize)
    with pytest.raises(LookupError):
        run(bench)
    assert bench.journal.of("turn/end")[0]["reason"]["failure_class"] == "internal_error"
    assert bench.journal.of("tool/result")[0]["state"] == "cancelled"
    assert tool.entered == 0
