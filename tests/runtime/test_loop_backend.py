"""The loop as a backend: what it yields, how it shares syncs, how it stops, whom it asks."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from maka.journal.errors import JournalWriteError
from maka.journal.events import Draft
from maka.runtime.backends.base import SteeringLease
from maka.runtime.backends.loop import LoopBackend, loop_backend, shown
from maka.runtime.dispatch import ToolLimits
from maka.runtime.errors import InteractionRefused, RuntimeInteractionInvariantError
from maka.runtime.loop import Options
from maka.runtime.scripted import Ask, Do, End, Fail, Say, ScriptedModel, Tokens, Wait
from maka.runtime.tools import LeftBehind, ToolOutput
from support.backend_bench import Bench, Person
from support.loops import FakeTool
from support.seeded_loop import run

SEEDS = range(8)
ALLOW = {"kind": "permission_answer", "decision": "allow"}


TURN = ["turn/start", "user/message"]
FIRST = ["step/start", "request/header", "assistant/message"]
END = ["step/end", "turn/end", "run/settled"]


# ---------------------------------------------------------------- what it yields


def two_calls() -> Bench:
    script = [[Say("let me"), Tokens(3, 1), Ask("a", call_id="c1"), Ask("a", call_id="c2")], ["done"]]
    return Bench(script, [FakeTool("a")])


def test_a_turn_stands_in_the_journal_as_the_loop_writes_it() -> None:
    bench = two_calls()
    asyncio.run(bench.turn())
    assert bench.reason == {"kind": "completed"}
    assert bench.journal.types() == [
        *(*TURN, *FIRST),
        *("tool/call", "tool/call", "tool/result", "tool/result"),
        *("step/end", "step/start", "assistant/message", *END),
    ]
    # The opening; the request, the calls, the results with the next request; the end.
    assert bench.journal.syncs == 5
    assert [data["reason"] for data in bench.journal.of("request/header")] == ["initial"]
    assert bench.journal.of("assistant/message")[0]["usage"] == {"input_tokens": 3, "output_tokens": 1}
    assert bench.model.requests[1].messages == bench.conversation.messages()[:3]
    assert [event.kind for event in bench.told] == [
        *("step_start", "request_header", "text_delta", "text_complete", "token_usage"),
        *("tool_start", "tool_start", "tool_result", "tool_result"),
        *("step_end", "step_start", "text_delta", "text_complete", "step_end", "complete"),
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_in_whatever_order_things_happen_the_turn_is_the_same(seed: int) -> None:
    bench = two_calls().run(seed)
    assert bench.reason == {"kind": "completed"}
    types = bench.journal.types()
    assert types[:5] == [*TURN, *FIRST]
    assert sorted(types[5:9]) == ["tool/call", "tool/call", "tool/result", "tool/result"]
    assert types[9:] == ["step/end", "step/start", "assistant/message", *END]
    assert bench.model.requests[1].messages == bench.conversation.messages()[:3]
    assert bench.states() == ["ok", "ok"]


def test_nothing_is_entered_before_it_is_durable() -> None:
    seen: list[list[str]] = []

    def durable() -> list[str]:
        return [event.type for event in bench.journal.events[: bench.journal.synced]]

    def body(arguments: Any, context: Any) -> ToolOutput:
        seen.append(durable())
        return ToolOutput.of("")

    look = Do(lambda request: seen.append(durable()))
    bench = Bench([[look, Ask("a")], [look, "done"]], [FakeTool("a", body)])
    bench.run()
    assert [types[-1] for types in seen] == ["request/header", "tool/call", "step/start"]
    assert "tool/result" in seen[2]


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_entered_behind_a_barrier_that_failed(seed: int) -> None:
    tool = FakeTool("a")
    error = JournalWriteError("no room", errno=28)
    bench = Bench(
        [[Ask("a")], ["never"]], [tool], fail=lambda journal: error if journal.types()[-1] == "tool/call" else None
    )
    with pytest.raises(JournalWriteError):
        bench.run(seed)
    assert tool.entered == 0
    assert len(bench.model.requests) == 1
    assert bench.journal.types()[-1] == "request/header"


@pytest.mark.parametrize(
    ("script", "settings", "reason"),
    [
        ([["cut", End("max_tokens")]], {}, {"kind": "max_tokens"}),
        ([[Ask("a")], ["never"]], {"max_steps": 1}, {"kind": "step_limit"}),
        ([[Ask("a")], ["never"]], {"options": Options(max_steps=1)}, {"kind": "step_limit"}),
        ([Fail("provider_auth")], {}, {"kind": "failed", "failure_class": "provider_auth"}),
        ([["half", Fail("provider_network", True)]], {}, {"kind": "failed", "failure_class": "provider_network"}),
        ([Fail("provider_network", True), ["there"]], {}, {"kind": "completed"}),
    ],
)
def test_ends(script: list[Any], settings: dict[str, Any], reason: dict[str, Any]) -> None:
    bench = Bench(script, [FakeTool("a")], **settings).run()
    assert bench.reason is not None
    assert {key: value for key, value in bench.reason.items() if key != "message"} == reason
    assert sum(batch.count("complete") for batch in bench.batches) == 1
    assert bench.batches[-1][-1] == "complete"


def test_a_failed_request_is_tried_again_and_said() -> None:
    bench = Bench([Fail("provider_rate_limit", True), ["there"]]).run()
    assert bench.slept == [0.5]
    assert "provider_rate_limit: the script says so" in bench.journal.of("session/note")[0]["text"]


def test_a_defect_is_raised_out_of_the_stream() -> None:
    async def authorize(call: Any, tool: Any, arguments: Any) -> None:
        raise LookupError("defect")

    bench = Bench([[Ask("a")]], [FakeTool("a")], authorize=authorize).run()
    assert isinstance(bench.defect, LookupError)
    assert bench.states() == ["cancelled"]


# ---------------------------------------------------------------- stops


def stopping(bench: Bench, *modes: Any, apart: float = 0.0) -> Callable[[], None]:
    """What asks the backend to stop, in tasks of their own."""
    returned: list[str] = []

    async def stop(mode: Any, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await bench.backend.stop("user_stop", mode)
        returned.append(mode)

    def ask() -> None:
        for number, mode in enumerate(modes):
            bench.beside.append(asyncio.ensure_future(stop(mode, 0.01 + number * apart)))

    bench.returned = returned  # type: ignore[attr-defined]
    return ask


@pytest.mark.parametrize("seed", SEEDS)
def test_an_immediate_stop_ends_the_steps_and_keeps_results(seed: int) -> None:
    async def stubborn(arguments: Any, context: Any) -> ToolOutput:
        ask()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            await asyncio.sleep(0.5)
            assert not bench.returned  # type: ignore[attr-defined]
            return ToolOutput.of("finished all the same")
        return ToolOutput.of("")

    async def left(arguments: Any, context: Any) -> ToolOutput:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            raise LeftBehind("process 7 lives on") from None
        return ToolOutput.of("")

    tools = [FakeTool("a", stubborn), FakeTool("b", left), FakeTool("c", parallel_safe=False)]
    bench = Bench([[Ask("a"), Ask("b"), Ask("c")], ["never"]], tools)
    ask = stopping(bench, "immediate", "immediate", apart=0.1)
    bench.run(seed)
    assert bench.reason == {"kind": "aborted"}
    assert bench.returned == ["immediate", "immediate"]  # type: ignore[attr-defined]
    states = {data["call_id"]: data["state"] for data in bench.journal.of("tool/result")}
    assert states == {"call-1": "ok", "call-2": "unknown", "call-3": "cancelled"}
    assert "process 7 lives on" in bench.journal.of("run/settled")[0]["cleanup"]["error"]
    assert "cleanup_failed" not in [event.kind for event in bench.told]
    assert len(bench.model.requests) == 1


def test_a_body_that_does_not_end_is_left_behind_and_said() -> None:
    async def never(arguments: Any, context: Any) -> ToolOutput:
        ask()
        until = asyncio.get_running_loop().time() + 20
        while (rest := until - asyncio.get_running_loop().time()) > 0:
            try:
                await asyncio.sleep(rest)
            except asyncio.CancelledError:
                continue
        return ToolOutput.of("")

    bench = Bench([[Ask("a")]], [FakeTool("a", never)], options=Options(limits=ToolLimits(grace=0.5)))
    ask = stopping(bench, "immediate")

    async def main() -> None:
        await bench.turn()
        await asyncio.sleep(30)

    run(main(), 1)
    assert bench.states() == ["unknown"]
    assert "did not end within 0.5 s" in bench.journal.of("run/settled")[0]["cleanup"]["error"]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stop_while_text_streams(seed: int) -> None:
    bench = Bench([["so far", Do(lambda request: ask()), Wait()]])
    ask = stopping(bench, "immediate")
    bench.run(seed)
    assert bench.reason == {"kind": "aborted"}
    assert bench.batches[-1] == ["complete"]
    [said] = bench.journal.of("assistant/message")
    assert (said["interrupted"], said["content"]) == (True, [{"kind": "text", "text": "so far"}])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stop_between_dispatch_and_body_is_a_cancelled_call(seed: int) -> None:
    """The call is on disk, and this process knows that it had no effect."""
    tool = FakeTool("a")
    bench = Bench([[Ask("a")], ["never"]], [tool])
    flush = bench.journal.aflush

    async def slow() -> None:
        if bench.journal.types()[-1] == "tool/call":
            await bench.backend.stop("user_stop", "immediate")
        await flush()

    bench.journal.aflush = slow  # type: ignore[method-assign]
    bench.run(seed)
    assert tool.entered == 0
    [result] = bench.journal.of("tool/result")
    assert (result["state"], result["error"]["code"]) == ("cancelled", "TOOL_ABORTED_BEFORE_DISPATCH")
    assert result["operation_id"] == bench.journal.of("tool/call")[0]["operation_id"]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stop_after_the_step_returns_at_once_and_lets_the_step_finish(seed: int) -> None:
    async def body(arguments: Any, context: Any) -> ToolOutput:
        ask()
        await asyncio.sleep(1)
        assert bench.returned == ["after_step"]  # type: ignore[attr-defined]
        return ToolOutput.of("whole")

    bench = Bench([[Ask("a")], ["never"]], [FakeTool("a", body)])
    ask = stopping(bench, "after_step")
    bench.run(seed)
    assert bench.reason == {"kind": "aborted"}
    assert bench.states() == ["ok"]
    assert len(bench.model.requests) == 1


def test_a_stop_after_the_step_can_be_made_immediate() -> None:
    async def body(arguments: Any, context: Any) -> ToolOutput:
        ask()
        await asyncio.sleep(1)
        return ToolOutput.of("whole")

    bench = Bench([[Ask("a")], ["never"]], [FakeTool("a", body)])
    ask = stopping(bench, "after_step", "immediate", apart=0.1)
    bench.run()
    assert bench.states() == ["unknown"]


def test_a_stop_when_nothing_runs_changes_nothing() -> None:
    bench = Bench([["one"], ["two"]])

    async def main() -> None:
        await bench.backend.stop("user_stop", "immediate")
        await bench.turn("t1")
        await bench.backend.stop("user_stop", "immediate")
        assert bench.reason == {"kind": "completed"}
        bench.reason = None
        await bench.turn("t2")
        assert bench.reason == {"kind": "completed"}

    run(main(), 1)


def test_a_disposed_backend_begins_nothing() -> None:
    bench = Bench([["so far", Wait()], ["never"]])

    async def main() -> None:
        turn = asyncio.ensure_future(bench.turn("t1"))
        await asyncio.sleep(1)
        await bench.backend.dispose()
        await turn
        assert bench.reason == {"kind": "aborted"}
        bench.reason = None
        await bench.turn("t2")
        assert bench.reason == {"kind": "aborted"}

    run(main(), 1)
    assert len(bench.model.requests) == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_closing_the_stream_ends_everything(seed: int) -> None:
    ended: list[str] = []

    async def body(arguments: Any, context: Any) -> ToolOutput:
        try:
            await asyncio.sleep(30)
        finally:
            ended.append("body")
        return ToolOutput.of("")

    bench = Bench([[Ask("a")], ["never"]], [FakeTool("a", body)])

    async def main() -> None:
        turn = asyncio.ensure_future(bench.turn())
        await asyncio.sleep(1)
        turn.cancel()
        await asyncio.wait({turn})

    run(main(), seed)
    assert ended == ["body"]


# ---------------------------------------------------------------- steering


def lease(number: int) -> SteeringLease:
    return SteeringLease(f"l{number}", f"s{number}", [{"kind": "text", "text": f"message {number}"}])


@pytest.mark.parametrize("seed", SEEDS)
def test_steering_goes_between_steps_and_is_acknowledged_once_durable(seed: int) -> None:
    def arrive(request: Any) -> None:
        bench.leases = [lease(1), lease(2)]

    def acknowledged(request: Any) -> None:
        assert bench.settled == [("ack", ["l1", "l2"])]

    bench = Bench([[Do(arrive), Ask("a")], [Do(acknowledged), "done"]], [FakeTool("a")])
    bench.run(seed)
    sources = [data["source"]["kind"] for data in bench.journal.of("user/message")]
    assert sources == ["user", "steering", "steering"]
    said = [message["content"][0].get("text") for message in bench.model.requests[1].messages]
    assert said[-2:] == ["message 1", "message 2"]
    assert bench.settled == [("ack", ["l1", "l2"])]


def test_steering_during_the_last_step_is_answered_too() -> None:
    def arrive(request: Any) -> None:
        bench.leases = [lease(1)]

    bench = Bench([[Do(arrive), "first"], ["second"]])
    bench.run()
    assert bench.reason == {"kind": "completed"}
    assert len(bench.model.requests) == 2
    assert bench.settled == [("ack", ["l1"])]


def test_at_the_step_limit_and_at_a_stop_steering_is_left_in_the_queue() -> None:
    def arrive(request: Any) -> None:
        bench.leases = [lease(1)]

    bench = Bench([[Do(arrive), "first"], ["never"]], max_steps=1)
    bench.run()
    assert bench.reason == {"kind": "completed"}
    assert len(bench.leases) == 1
    bench = Bench([[Do(arrive), Do(lambda request: ask()), Say("x", pause=1)], ["never"]])
    ask = stopping(bench, "after_step")
    bench.run()
    assert bench.reason == {"kind": "aborted"}
    assert len(bench.leases) == 1


# ---------------------------------------------------------------- permissions


@pytest.mark.parametrize(
    ("mode", "recovery", "asked"),
    [("ask", "never", 1), ("ask", "read_only", 0), ("execute", "never", 1), ("bypass", "never", 0), ("", "never", 1)],
)
def test_who_is_asked_when(mode: str, recovery: str, asked: int) -> None:
    tool = FakeTool("a", recovery=recovery)
    bench = Bench([[Ask("a", {"n": 1}, call_id="c")], ["done"]], [tool], mode=mode, person=Person(ALLOW)).run()
    assert bench.states() == ["ok"]
    assert tool.entered == 1
    assert len(bench.person.asked) == asked
    for kind, request in bench.person.asked:
        assert kind == "permission"
        assert {**request, "reason": ""} == {"call_id": "c", "name": "a", "arguments": {"n": 1}, "reason": ""}
        assert request["reason"]


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        ({"kind": "permission_answer", "decision": "deny"}, "did not allow a"),
        ({"kind": "closure", "reason": "timed_out"}, "timed_out"),
        ({"kind": "question_answer", "answers": ["allow"]}, "did not allow a"),
        (InteractionRefused("too many wait", code="capacity_exceeded"), "too many wait"),
    ],
)
def test_a_call_that_is_not_allowed_is_answered_and_not_dispatched(outcome: Any, words: str) -> None:
    tool = FakeTool("a")
    bench = Bench([[Ask("a")], ["done"]], [tool], mode="ask", person=Person(outcome)).run()
    [result] = bench.journal.of("tool/result")
    assert (result["state"], result["error"]["code"]) == ("error", "TOOL_DENIED")
    assert words in result["content"][0]["text"]
    assert tool.entered == 0
    assert not bench.journal.of("tool/call")
    assert bench.reason == {"kind": "completed"}


def test_nobody_there_to_answer_is_a_defect_of_the_program() -> None:
    error = RuntimeInteractionInvariantError("nobody is there")
    bench = Bench([[Ask("a")]], [FakeTool("a")], mode="ask", person=Person(error)).run()
    assert bench.defect is error


def test_the_mode_is_the_sessions_newest() -> None:
    def relax() -> dict[str, Any]:
        patch = Draft("session/updated", {"patch": {"permission_mode": "bypass"}})
        bench.conversation.observe(bench.journal.append(patch))
        return ALLOW

    asks = [Ask("a"), Ask("a")]
    tools = [FakeTool("a", parallel_safe=False)]
    bench = Bench([asks, ["done"]], tools, mode="ask", person=Person(relax))
    bench.run()
    assert bench.states() == ["ok", "ok"]
    assert len(bench.person.asked) == 1


def test_the_programs_own_hook_comes_first() -> None:
    async def authorize(call: Any, tool: Any, arguments: Any) -> str | None:
        return "not on a Monday" if arguments else None

    bench = Bench(
        [[Ask("a", {"n": 1}), Ask("a")], ["done"]],
        [FakeTool("a")],
        mode="ask",
        person=Person(ALLOW),
        authorize=authorize,
    ).run()
    assert sorted(bench.states()) == ["error", "ok"]
    assert len(bench.person.asked) == 1


def test_what_is_asked_about_stands_in_the_journal_before() -> None:
    def look() -> dict[str, Any]:
        assert bench.journal.types()[-1] == "assistant/message"
        return ALLOW

    bench = Bench([["let me", Ask("a")], ["done"]], [FakeTool("a")], mode="ask", person=Person(look))
    bench.run()
    assert bench.states() == ["ok"]


def test_a_stop_while_a_person_is_asked_leaves_the_call_undone() -> None:
    tool = FakeTool("a")

    class Slow(Person):
        async def ask(self, kind: str, request: dict[str, Any]) -> dict[str, Any]:
            ask()
            await asyncio.sleep(30)
            return ALLOW

    bench = Bench([[Ask("a")]], [tool], mode="ask", person=Slow())
    ask = stopping(bench, "immediate")
    bench.run()
    assert bench.states() == ["cancelled"]
    assert tool.entered == 0


def test_long_arguments_are_shown_in_part() -> None:
    arguments = {"path": "a", "content": "x" * 100_000, "list": ["y" * 9_000, 1]}
    part = shown(arguments)
    assert (part["path"], part["list"][1]) == ("a", 1)
    assert "96000 characters left out" in part["content"]
    assert len(part["content"]) < 5_000
    many = shown({str(number): "x" * 2_000 for number in range(30)})
    assert all("characters left out" in text and len(text) < 300 for text in many.values())
    assert shown({"content": "x" * 5_000}) == {"content": "x" * 5_000}


# ---------------------------------------------------------------- the factory, questions


def test_a_tool_can_ask_through_the_kernel() -> None:
    async def body(arguments: Any, context: Any) -> ToolOutput:
        outcome = await context.ask("question", {"questions": []})
        return ToolOutput.of(outcome["answers"][0])

    person = Person({"kind": "question_answer", "answers": ["blue"]})
    bench = Bench([[Ask("a")], ["done"]], [FakeTool("a", body)], person=person).run()
    assert bench.journal.of("tool/result")[0]["content"] == [{"kind": "text", "text": "blue"}]


def test_a_factory_takes_a_model_or_makes_one_for_each_session() -> None:
    bench = Bench([])
    model = ScriptedModel([])
    shared, made = loop_backend(model), loop_backend(lambda context: ScriptedModel([], provider=context.session_id))
    for built, provider in ((shared(bench.context), "scripted"), (made(bench.context), "s1")):
        assert isinstance(built, LoopBackend)
        assert built.model.provider == provider
    assert isinstance(shared(bench.context), LoopBackend)
    assert shared(bench.context) is not shared(bench.context)
