"""The scripted backend: what each part yields, how it is stopped, and what it does wrong on purpose."""

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest

from maka.journal.events import JsonObject
from maka.runtime.backends.base import Backend, BackendContext, BackendRegistry, SendInput, SteeringLease, StopMode
from maka.runtime.backends.scripted import (
    Boundary,
    Do,
    Emit,
    End,
    Fail,
    Faults,
    Never,
    Part,
    Permission,
    Question,
    Retry,
    Say,
    Script,
    ScriptedBackend,
    ScriptedBackends,
    Together,
    Tokens,
    Tool,
    Turn,
    Vanish,
    Wait,
    scripted_backend,
)
from maka.runtime.composition import RunComposition, hashed
from maka.runtime.conversation import Conversation
from maka.runtime.errors import InteractionRefused
from maka.runtime.interactions import JournalInteractions
from maka.runtime.journals import OpenSession
from maka.runtime.kernel.kernel import RuntimeKernel
from maka.runtime.lifecycle import Lifecycle
from maka.runtime.model import ModelError
from maka.runtime.scripted import Ask
from maka.runtime.session_events import KINDS, SessionEvent, missing_key
from support.memory_journals import MemoryJournals, check_legal
from support.seeded_loop import run

CONTEXT = BackendContext(
    session_id="s1", session_dir=Path("/nonexistent"), settings={}, new_id=lambda: "id", now=lambda: 7
)


class Answers:
    """Whoever is asked; answers come from the test."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, JsonObject]] = []
        self.outcome: asyncio.Future[JsonObject] = asyncio.get_running_loop().create_future()

    async def ask(self, kind: str, request: JsonObject) -> JsonObject:
        self.asked.append((kind, request))
        return await asyncio.shield(self.outcome)


@attrs.define
class Queue:
    """Messages for the running turn, and what became of them."""

    waiting: list[SteeringLease] = attrs.Factory(list)
    acked: list[str] = attrs.Factory(list)
    nacked: list[str] = attrs.Factory(list)

    def put(self, text: str) -> None:
        content = [{"kind": "text", "text": text}]
        self.waiting.append(SteeringLease(f"lease {text}", f"message {text}", content))

    async def put_soon(self) -> None:
        self.put("soon")

    def pull(self) -> Sequence[SteeringLease]:
        pulled, self.waiting = self.waiting, []
        return pulled


def sent(text: str = "hi", *, queue: Queue | None = None, answers: Answers | None = None, **more: Any) -> SendInput:
    queue = queue or Queue()
    return SendInput(
        session_id="s1",
        turn_id="t1",
        run_id="r1",
        invocation_id="i1",
        text=text,
        content=[{"kind": "text", "text": text}],
        conversation=Conversation(),
        interactions=answers or Answers(),
        pull_steering=queue.pull,
        ack_steering=queue.acked.extend,
        nack_steering=queue.nacked.extend,
        **more,
    )


def backend(turn: Turn, **more: Any) -> ScriptedBackend:
    return ScriptedBackend(CONTEXT, lambda sent: turn, **more)


def played(turn: Turn, *, steps: bool = False, **more: Any) -> list[tuple[str, JsonObject]]:
    """Kind and data of what a turn yields."""

    async def main() -> list[SessionEvent]:
        return [event async for event in backend(turn, steps=steps).send(sent(**more))]

    events = run(main(), 0)
    assert len({event.id for event in events}) == len(events)
    assert {(event.turn_id, event.ts) for event in events} <= {("t1", 7)}
    assert not [event for event in events if event.kind in KINDS and missing_key(event.kind, event.data)]
    return [(event.kind, event.data) for event in events]


async def drained(stream: AsyncIterator[SessionEvent]) -> list[str]:
    return [event.kind async for event in stream]


def later(seconds: float, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
    loop = asyncio.get_running_loop()
    loop.call_later(seconds, lambda: loop.create_task(call()))


def kinds(turn: Turn, **more: Any) -> list[str]:
    return [kind for kind, _ in played(turn, **more)]


def test_text() -> None:
    at = {"message_id": "r1-1"}
    assert played([Say("hm", thinking=True), Say("abc", pieces=2), Tokens(3, 4)]) == [
        ("thinking_delta", {**at, "index": 0, "text": "hm"}),
        ("thinking_complete", {**at, "index": 0, "text": "hm"}),
        ("text_delta", {**at, "index": 1, "text": "ab"}),
        ("text_delta", {**at, "index": 1, "text": "c"}),
        ("text_complete", {**at, "index": 1, "text": "abc"}),
        ("token_usage", {"input_tokens": 3, "output_tokens": 4}),
        ("complete", {"stop_reason": "end_turn"}),
    ]
    assert played("x") == played(["x"]) == played((Say("x"),))


def test_calls() -> None:
    first, second, *rest = played([Tool("read", {"n": 1}, "one"), Tool("read", "{bad", "two", "error", call_id="mine")])
    assert first == ("tool_start", {"call_id": "call-1", "name": "read", "arguments": '{"n": 1}', "recovery": "never"})
    assert second == (
        "tool_result",
        {"call_id": "call-1", "state": "ok", "content": [{"kind": "text", "text": "one"}]},
    )
    assert rest[0][1]["arguments"] == "{bad"
    assert (rest[1][1]["call_id"], rest[1][1]["state"]) == ("mine", "error")


def test_calls_of_one_step() -> None:
    events = played(Together([Tool("slow", seconds=2), Tool("fast", seconds=1), Tool("now")]))
    assert [(kind, data.get("call_id")) for kind, data in events[:-1]] == [
        ("tool_start", "call-1"),
        ("tool_start", "call-2"),
        ("tool_start", "call-3"),
        ("tool_result", "call-3"),
        ("tool_result", "call-2"),
        ("tool_result", "call-1"),
    ]


def test_what_an_answer_leads_to_does_not_end_the_program() -> None:
    def exits(outcome: JsonObject) -> Sequence[Part]:
        raise SystemExit(3)

    async def main() -> None:
        answers = Answers()
        answers.outcome.set_result({"kind": "question_answer", "answers": ["Yes"]})
        with pytest.raises(RuntimeError, match=r"a script called sys\.exit\(3\)"):
            await drained(backend(Question("So?", exits)).send(sent(answers=answers)))

    run(main(), 0)


def test_steps_where_they_are_asked_for() -> None:
    turn: list[Part] = ["a", Say("b"), Tool("t"), Tool("t"), "c"]
    found = [kind for kind in kinds(turn, steps=True) if not kind.startswith("text")]
    call = ["tool_start", "tool_result", "step_end"]
    assert found == ["step_start", *call, "step_start", *call, "step_start", "step_end", "complete"]
    assert not {"step_start", "step_end"} & set(kinds(turn))
    ids = [data["message_id"] for kind, data in played(turn) if kind == "text_complete"]
    assert ids == ["r1-1", "r1-1", "r1-3"]


def test_as_many_steps_as_the_turn_may_have() -> None:
    turn: list[Part] = ["a", Tool("t"), "b", Tool("t"), "beyond"]
    assert played(turn, max_steps=2)[-1] == ("complete", {"stop_reason": "step_limit"})
    assert played(turn, max_steps=2, steps=True)[-2:] == [("step_end", {}), ("complete", {"stop_reason": "step_limit"})]
    assert ("text_complete", {"message_id": "r1-3", "index": 0, "text": "beyond"}) in played(turn, max_steps=3)
    assert "beyond" not in json.dumps(played(turn, max_steps=2))


def test_ends() -> None:
    assert played(["x", End("max_tokens"), "never"])[-1] == ("complete", {"stop_reason": "max_tokens"})
    assert kinds(["x", Vanish(), "never"]) == ["text_delta", "text_complete"]
    assert kinds([Emit("complete", {"stop_reason": "end_turn"}), "x"]) == [
        "complete",
        "text_delta",
        "text_complete",
        "complete",
    ]
    assert played([Emit("nonsense", {"n": 1})])[0] == ("nonsense", {"n": 1})
    assert played(Retry("provider_server", 2, 0.5))[0] == (
        "provider_retry",
        {"attempt": 2, "delay": 0.5, "failure_class": "provider_server"},
    )


def test_a_failure_in_the_middle() -> None:
    async def main() -> list[str]:
        stream = backend(["x", Fail("provider_auth", message="no key"), "never"]).send(sent())
        seen = [(await anext(stream)).kind for _ in range(2)]
        with pytest.raises(ModelError) as caught:
            await anext(stream)
        assert (caught.value.kind, str(caught.value)) == ("provider_auth", "no key")
        return seen

    assert run(main(), 0) == ["text_delta", "text_complete"]


def test_waiting_and_doing() -> None:
    seen: list[Any] = []

    async def main() -> None:
        until = asyncio.Event()

        async def act(input: SendInput) -> None:
            seen.append(input.text)
            asyncio.get_running_loop().call_later(3, until.set)

        async for event in backend([Wait(5), Say("ab", pieces=2, pause=1), Do(act), Wait(until=until), "x"]).send(
            sent("the text")
        ):
            seen.append((event.kind, asyncio.get_running_loop().time()))

    run(main(), 0)
    assert seen == [
        ("text_delta", 6.0),
        ("text_delta", 7.0),
        ("text_complete", 7.0),
        "the text",
        ("text_delta", 10.0),
        ("text_complete", 10.0),
        ("complete", 10.0),
    ]


def test_what_is_no_part_is_refused() -> None:
    with pytest.raises(TypeError, match="no part"):
        played([7])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"Ask\(name='look'.*a model's call; use Tool"):
        played([Ask("look")])  # type: ignore[list-item]


def test_help_names_the_script_and_does_not_spell_it_out() -> None:
    assert str(inspect.signature(scripted_backend)).startswith("(script: 'Script', *, repeat: bool = False,")


@pytest.mark.parametrize(
    ("part", "kind", "request_"),
    [
        (
            Question("Go on?"),
            "question",
            {"questions": [{"id": "q1", "question": "Go on?", "options": [{"label": "Yes"}, {"label": "No"}]}]},
        ),
        (Question([{"id": "a"}]), "question", {"questions": [{"id": "a"}]}),
        (
            Permission("rm", {"path": "x"}),
            "permission",
            {"call_id": "call-asked", "name": "rm", "arguments": {"path": "x"}, "reason": "the script asks"},
        ),
        (
            Boundary({"network": True}, "why"),
            "sandbox_boundary",
            {"expansion": {"network": True}, "justification": "why"},
        ),
    ],
)
def test_asking(part: Part, kind: str, request_: JsonObject) -> None:
    async def main() -> None:
        answers = Answers()
        asks = backend([part, "after"])
        asyncio.get_running_loop().call_later(5, answers.outcome.set_result, {"kind": "some_answer", "n": 1})
        said = [event.data["text"] async for event in asks.send(sent(answers=answers)) if event.kind == "text_complete"]
        assert answers.asked == [(kind, request_)]
        assert asks.outcomes == [{"kind": "some_answer", "n": 1}]
        assert said == ['{"kind": "some_answer", "n": 1}', "after"]

    run(main(), 0)


def test_an_outcome_decides_what_is_played() -> None:
    def then(outcome: JsonObject) -> list[Part]:
        return ["first", Tool("rm")] if outcome["decision"] == "allow" else ["refused"]

    async def main(decision: str) -> list[str]:
        answers = Answers()
        answers.outcome.set_result({"decision": decision})
        return [event.kind async for event in backend(Permission("rm", then=then)).send(sent(answers=answers))]

    assert run(main("deny"), 0) == ["text_delta", "text_complete", "complete"]
    assert run(main("allow"), 0) == ["text_delta", "text_complete", "tool_start", "tool_result", "complete"]


def test_a_refused_question_ends_the_stream() -> None:
    async def main() -> None:
        answers = Answers()
        answers.outcome.set_exception(InteractionRefused("no", code="run_closed"))
        stream = backend(Question("Go on?")).send(sent(answers=answers))
        with pytest.raises(InteractionRefused):
            await anext(stream)

    run(main(), 0)


def test_steering_is_taken_between_parts_and_acknowledged_when_it_was_taken() -> None:
    async def main() -> None:
        queue, seen = Queue(), []
        async for event in backend(["a", Tool("t"), "b"], steps=True).send(sent(queue=queue)):
            seen.append((event.kind, event.data.get("text") or event.data.get("message_id")))
            if event.kind == "tool_start":
                queue.put("left")
                queue.put("right")
            if event.kind == "steering_message":
                assert f"lease {event.data['content'][0]['text']}" not in queue.acked
        assert queue.acked == ["lease left", "lease right"]
        assert queue.nacked == []
        place = [kind for kind, _ in seen].index("steering_message")
        assert seen[place - 1][0] == "step_end"
        assert seen[place : place + 3] == [
            ("steering_message", "message left"),
            ("steering_message", "message right"),
            ("step_start", None),
        ]
        said = [text for kind, text in seen if kind == "text_complete"]
        assert said == ["a", "steered: left", "steered: right", "b"]

    run(main(), 0)


def test_steering_that_was_not_taken_is_given_back() -> None:
    async def main() -> None:
        queue = Queue()
        queue.put("one")
        queue.put("two")
        stream = backend("a").send(sent(queue=queue))
        assert (await anext(stream)).data["message_id"] == "message one"
        await stream.aclose()  # type: ignore[attr-defined]
        assert (queue.acked, queue.nacked) == ([], ["lease one", "lease two"])

    run(main(), 0)


@pytest.mark.parametrize("mode", ["immediate", "after_step"])
def test_steering_that_comes_with_a_stop_stays_where_it_is(mode: StopMode) -> None:
    async def main() -> None:
        queue = Queue()
        stopped = backend(["a", Tool("t", seconds=5), "b"], faults=Faults(late=["late"]))
        later(1, lambda: stopped.stop("user_stop", mode))
        later(1, queue.put_soon)
        events = await drained(stopped.send(sent(queue=queue)))
        assert "steering_message" not in events
        assert [lease.lease_id for lease in queue.waiting] == ["lease soon"]

    run(main(), 0)


HOLDING: list[tuple[str, Part]] = [
    ("a part that never ends", Never()),
    ("a long wait", Wait(1_000)),
    ("a wait for ever", Wait()),
    ("slow text", Say("abcd", pieces=4, pause=500)),
    ("a slow call", Tool("t", seconds=1_000)),
    ("a question", Question("Go on?")),
    ("an action", Do(lambda sent: asyncio.sleep(1_000))),
]


@pytest.mark.parametrize(("what", "part"), HOLDING)
@pytest.mark.parametrize("seed", range(5))
def test_a_stop_ends_it_wherever_it_waits(what: str, part: Part, seed: int) -> None:
    async def main() -> list[str]:
        stopped = backend(["first", part, "never"])
        asyncio.get_running_loop().call_later(
            100, lambda: asyncio.ensure_future(stopped.stop("user_stop", "immediate"))
        )
        events = [event async for event in stopped.send(sent())]
        assert asyncio.get_running_loop().time() == 100
        assert "never" not in [event.data.get("text") for event in events]
        assert events[-1].data == {"stop_reason": "user_stop"}
        assert stopped.stops == [("user_stop", "immediate")]
        return [event.kind for event in events]

    found = run(main(), seed)
    assert found[:2] == ["text_delta", "text_complete"]
    assert found[-1] == "complete"


def test_a_stop_between_two_events_ends_it_there() -> None:
    async def main() -> None:
        stopped = backend(Say("abc", pieces=3))
        stream = stopped.send(sent())
        await anext(stream)
        await stopped.stop("redirect", "immediate")
        assert [(event.kind, event.data) async for event in stream] == [("complete", {"stop_reason": "user_stop"})]

    run(main(), 0)


@pytest.mark.parametrize("turn", [["a", Tool("t", seconds=5), "never"], [Wait(5), "never"]])
def test_a_stop_after_the_step_lets_the_step_end(turn: Turn) -> None:
    async def main() -> list[str]:
        stopped = backend(turn, steps=True)
        later(1, lambda: stopped.stop("user_stop", "after_step"))
        events = [event async for event in stopped.send(sent())]
        assert asyncio.get_running_loop().time() == 5
        assert events[-1].data == {"stop_reason": "user_stop"}
        assert "never" not in [event.data.get("text") for event in events]
        return [event.kind for event in events]

    found = run(main(), 0)
    assert found[-1] == "complete"
    if "tool_start" in found:
        assert found[-3:] == ["tool_result", "step_end", "complete"]


def test_a_stop_after_the_step_lets_its_text_end() -> None:
    async def main() -> None:
        stopped = backend(["a", Wait(5), "b"])
        later(1, lambda: stopped.stop("user_stop", "after_step"))
        events = [event async for event in stopped.send(sent())]
        assert [event.data["text"] for event in events if event.kind == "text_complete"] == ["a", "b"]

    run(main(), 0)


def test_a_stop_after_the_step_can_become_immediate() -> None:
    async def main() -> None:
        stopped = backend(["a", Never(), "never"])
        loop = asyncio.get_running_loop()
        modes: list[tuple[int, StopMode]] = [(1, "after_step"), (2, "immediate")]
        for at, mode in modes:
            later(at, partial(stopped.stop, "user_stop", mode))
        events = [event async for event in stopped.send(sent())]
        assert (loop.time(), events[-1].data) == (2, {"stop_reason": "user_stop"})

    run(main(), 0)


def test_a_stop_of_nothing_is_not_remembered() -> None:
    async def main() -> None:
        idle = backend("x")
        await idle.stop("user_stop", "immediate")
        assert [event.kind async for event in idle.send(sent())] == ["text_delta", "text_complete", "complete"]
        assert isinstance(idle, Backend)

    run(main(), 0)


def test_disposal_ends_it_too() -> None:
    async def main() -> None:
        given_up = backend(Never())
        later(1, given_up.dispose)
        assert [event.kind async for event in given_up.send(sent())] == ["complete"]
        assert (given_up.disposals, given_up.stops, given_up.sends) == (1, [], 1)

    run(main(), 0)


def test_nothing_happens_before_it_is_asked_for_and_nothing_after_it_was_closed() -> None:
    async def main() -> None:
        lazy = backend([Emit("first"), Never()])
        never_begun = lazy.send(sent())
        await never_begun.aclose()  # type: ignore[attr-defined]
        assert lazy.sends == 0
        stream = lazy.send(sent())
        await anext(stream)
        waiting = asyncio.ensure_future(anext(stream, None))
        await asyncio.sleep(1)
        assert not waiting.done()
        waiting.cancel()
        await stream.aclose()  # type: ignore[attr-defined]
        await asyncio.wait({waiting})
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        assert lazy.sends == 1

    run(main(), 0)


def test_an_event_that_comes_when_nobody_waits_any_more_is_the_next() -> None:
    async def main() -> None:
        acted: list[SendInput] = []
        stream = backend([Wait(1), Emit("first"), Do(acted.append), Emit("second")]).send(sent())
        waiting = asyncio.ensure_future(anext(stream, None))
        await asyncio.sleep(0.5)
        waiting.cancel()
        await asyncio.sleep(1)
        assert (await anext(stream)).kind == "first"
        await asyncio.sleep(1)
        assert not acted, "it went on before the next event was asked for"
        assert await drained(stream) == ["second", "complete"]

    run(main(), 0)


# ---------------------------------------------------------------- on purpose


def test_stop_and_dispose_fail_and_take_their_time() -> None:
    stop_error, dispose_error = RuntimeError("no stop"), RuntimeError("no disposal")
    faults = Faults(stop_error=stop_error, stop_delay=3, dispose_error=dispose_error, dispose_delay=4)

    async def main() -> None:
        broken = backend(Never(), faults=faults)
        rest = asyncio.ensure_future(drained(broken.send(sent())))
        await asyncio.sleep(1)
        ends: list[tuple[Awaitable[None], Exception, float]] = [
            (broken.stop("user_stop", "immediate"), stop_error, 4.0),
            (broken.dispose(), dispose_error, 8.0),
        ]
        for awaited, error, time in ends:
            with pytest.raises(RuntimeError) as caught:
                await awaited
            assert caught.value is error
            assert asyncio.get_running_loop().time() == time
        assert await rest == ["complete"]

    run(main(), 0)


@pytest.mark.parametrize(
    ("faults", "stop"),
    [
        (Faults(ignore_stop=True), lambda it: it.stop("user_stop", "immediate")),
        (Faults(ignore_dispose=True), lambda it: it.dispose()),
    ],
)
def test_it_may_go_on_regardless(faults: Faults, stop: Callable[[ScriptedBackend], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        deaf = backend([Wait(5), "went on"], faults=faults)
        later(1, lambda: stop(deaf))
        events = [event async for event in deaf.send(sent())]
        assert [event.kind for event in events] == ["text_delta", "text_complete", "complete"]
        assert events[-1].data == {"stop_reason": "end_turn"}

    run(main(), 0)


def test_closing_it_may_have_to_wait() -> None:
    async def main() -> None:
        deaf = backend(["a", "b", Wait(50), "c"], faults=Faults(ignore_close=True))
        stream = deaf.send(sent())
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        assert asyncio.get_running_loop().time() == 50
        assert await anext(stream, None) is None

    run(main(), 0)


def test_something_may_come_late() -> None:
    async def main(*late: Part) -> list[str]:
        chatty = backend(Never(), faults=Faults(late=late))
        later(1, lambda: chatty.stop("user_stop", "immediate"))
        return [event.kind async for event in chatty.send(sent())]

    assert run(main("late", Wait(5)), 0) == ["text_delta", "text_complete", "complete"]
    assert run(main(Vanish()), 0) == []
    complete = Emit("complete", {"stop_reason": "user_stop"})
    assert run(main(complete, "late"), 0) == ["complete", "text_delta", "text_complete", "complete"]


def test_a_backend_may_take_its_time_to_be_built_or_fail() -> None:
    async def main() -> None:
        error = RuntimeError("no build")
        factory = scripted_backend("x", faults=[Faults(build_delay=5), Faults(build_error=error), Faults()])
        slow = factory(CONTEXT)
        assert not isinstance(slow, ScriptedBackend)
        assert isinstance(await slow, ScriptedBackend)
        assert asyncio.get_running_loop().time() == 5
        with pytest.raises(RuntimeError) as caught:
            factory(CONTEXT)
        assert caught.value is error
        for count in (2, 3):
            assert isinstance(factory(CONTEXT), ScriptedBackend)
            assert len(factory.built) == count

    run(main(), 0)


# ---------------------------------------------------------------- with a kernel


class Bench:
    """A kernel on sessions in memory, whose backends play one script."""

    def __init__(self, script: Script, *, answered: bool = False, **more: Any) -> None:
        self.factory: ScriptedBackends = scripted_backend(script, **more)
        self.people = JournalInteractions(self._opened, lifecycle=Lifecycle())
        self.journals = MemoryJournals()
        self.journals.create("s1", backend="scripted")
        backends = BackendRegistry()
        backends.register("scripted", self.factory)
        self.kernel = RuntimeKernel(
            journals=self.journals, backends=backends, interaction_authority=self.people if answered else None
        )

    def _opened(self, session_id: str) -> OpenSession | None:
        return self.kernel.opened(session_id)

    async def turn(self, text: str = "hi") -> list[SessionEvent]:
        return [event async for event in self.kernel.start_turn("s1", text=text)]

    async def close(self) -> list[JsonObject]:
        """Ends it; returns how the turns ended."""
        await self.kernel.aclose()
        assert check_legal(self.journals.events("s1")) == "healthy"
        return [data["reason"] for data in self.journals.of("s1", "turn/end")]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("steps", [False, True])
def test_a_kernel_plays_one_turn_after_the_other(seed: int, steps: bool) -> None:
    async def main() -> None:
        bench = Bench([["a", Together([Tool("t"), Tool("u")]), "b"], "c"], steps=steps)
        for _ in range(3):
            assert (await bench.turn())[-1].data == {"stop_reason": "end_turn"}
        said = [data["content"] for data in bench.journals.of("s1", "assistant/message")]
        texts = [block["text"] for content in said for block in content if block["kind"] == "text"]
        assert texts == ["a", "b", "c", "(the script is over)"]
        [built] = bench.factory.built
        assert (built.sends, built.stops) == (3, [])
        assert [input.text for input in built.inputs] == ["hi"] * 3
        assert await bench.close() == [{"kind": "completed"}] * 3
        assert built.disposals == 1

    run(main(), seed)


@pytest.mark.parametrize("seed", range(5))
def test_the_next_backend_goes_on_in_the_script(seed: int) -> None:
    async def main() -> None:
        bench = Bench(["a", "b"])
        await bench.turn()
        await bench.kernel.invalidate_cached_backends()
        events = await bench.turn()
        assert "b" in [event.data.get("text") for event in events]
        assert [built.disposals for built in bench.factory.built] == [1, 0]
        await bench.close()

    run(main(), seed)


def test_a_script_may_depend_on_what_was_sent_or_repeat() -> None:
    async def main() -> None:
        bench = Bench(lambda sent: f"received: {sent.text}")
        assert "received: you" in [event.data.get("text") for event in await bench.turn("you")]
        await bench.close()
        bench = Bench(["a", "b"], repeat=True)
        said = [[event.data["text"] for event in await bench.turn() if event.kind == "text_complete"] for _ in range(3)]
        assert said == [["a"], ["b"], ["a"]]
        await bench.close()

    run(main(), 0)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    ("turn", "reason"),
    [
        (["x", Vanish()], {"kind": "failed", "failure_class": "missing_terminal_event"}),
        ([Emit("complete", {"stop_reason": "max_tokens"}), "late"], {"kind": "max_tokens"}),
        (["x", Fail("provider_auth")], {"kind": "failed", "failure_class": "provider_auth"}),
        (["x", Emit("nonsense")], {"kind": "failed", "failure_class": "backend_invalid_event"}),
        (
            ["x", Emit("error", {"failure_class": "mine", "message": "m"}), End("error")],
            {"kind": "failed", "failure_class": "mine"},
        ),
    ],
)
def test_a_kernel_ends_what_the_script_leaves_open(turn: Turn, reason: JsonObject, seed: int) -> None:
    async def main() -> None:
        bench = Bench([turn])
        events = await bench.turn()
        assert [event.kind for event in events].count("complete") == 1
        [found] = await bench.close()
        assert found | reason == found

    run(main(), seed)


@pytest.mark.parametrize("seed", range(10))
def test_what_comes_late_is_dropped(seed: int) -> None:
    async def main() -> None:
        late: list[Part] = [Wait(1), "late", Emit("complete", {"stop_reason": "end_turn"}), "later"]
        bench = Bench([["first", Never()]], faults=Faults(late=late))
        stream = bench.kernel.start_turn("s1", text="hi")
        while (await anext(stream)).kind != "text_delta":
            pass
        await bench.kernel.stop_session("s1", source="test")
        rest = [event async for event in stream]
        assert [event.kind for event in rest].count("complete") == 1
        assert "late" not in [event.data.get("text") for event in rest]
        assert await bench.close() == [{"kind": "aborted", "source": "test"}]
        assert bench.factory.built[0].stops == [("user_stop", "immediate")]

    run(main(), seed)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("part", "shown", "answer"),
    [
        (Question("Go on?"), "question_request", {"kind": "question_answer", "answers": ["Yes"]}),
        (Permission("rm", {"path": "x"}), "permission_request", {"kind": "permission_answer", "decision": "deny"}),
        (
            Boundary({"network": True}),
            "sandbox_boundary_request",
            {"kind": "sandbox_boundary_decision", "decision": "allow"},
        ),
    ],
)
def test_what_it_asks_is_durable_shown_answered_and_echoed(
    part: Part, shown: str, answer: JsonObject, seed: int
) -> None:
    async def main() -> None:
        bench = Bench([["a", part, "b"]], answered=True)
        said = []
        async for event in bench.kernel.start_turn("s1", text="hi"):
            if event.kind == shown:
                assert len(bench.journals.of("s1", "interaction/requested")) == 1
                await bench.people.answer("s1", event.data["interaction_id"], answer)
            if event.kind == "text_complete":
                said.append(event.data["text"])
        assert said == ["a", json.dumps(answer, sort_keys=True), "b"]
        assert bench.factory.built[0].outcomes == [answer]
        assert await bench.close() == [{"kind": "completed"}]

    run(main(), seed)


@pytest.mark.parametrize("seed", range(5))
def test_a_stop_closes_what_it_asks(seed: int) -> None:
    async def main() -> None:
        bench = Bench([[Question("Go on?"), "never"]], answered=True)
        async for event in bench.kernel.start_turn("s1", text="hi"):
            if event.kind == "question_request":
                await bench.kernel.stop_session("s1", source="test")
        assert bench.journals.of("s1", "interaction/resolved")[0]["outcome"]["kind"] == "closure"
        assert bench.journals.of("s1", "assistant/message") == []
        assert await bench.close() == [{"kind": "aborted", "source": "test"}]

    run(main(), seed)


# ---------------------------------------------------------------- runs that can be handed over

COMPOSED = RunComposition(
    composer_id="test",
    composer_revision="1",
    base_system_prompt_hash=hashed(1),
    tool_catalog_hash=hashed(2),
    tool_availability_hash=hashed(3),
    base_provider_options_hash=hashed(4),
)
STEPS: list[Part] = ["a", Tool("t"), "b", Tool("t"), "c"]


class Recorder:
    """What backends are built with: records compositions, and stands at boundaries with ``says``, the last for good.

    ``hold`` waits for a stop.
    """

    def __init__(self, *says: str) -> None:
        self.recorded: list[tuple[str, RunComposition]] = []
        self.says = list(says) or ["continue"]
        self.reached = asyncio.Event()
        self.context = attrs.evolve(CONTEXT, record_run_composition=self.record)

    async def record(self, run_id: str, composition: RunComposition) -> None:
        self.recorded.append((run_id, composition))

    async def boundary(self, signal: asyncio.Event | None = None, remaining_steps: int | None = None) -> Any:
        said = self.says.pop(0) if len(self.says) > 1 else self.says[0]
        if said == "hold":
            self.reached.set()
            assert signal is not None
            await signal.wait()
            return "continue"
        return said

    def backend(self, turn: Turn, composition: Any = COMPOSED, **more: Any) -> ScriptedBackend:
        built = scripted_backend([turn], composition=composition, **more)(self.context)
        assert isinstance(built, ScriptedBackend)
        return built


@pytest.mark.parametrize("steps", [False, True])
def test_with_a_composition_it_stands_before_each_step(steps: bool) -> None:
    async def main() -> None:
        recorder = Recorder()
        built = recorder.backend(STEPS, steps=steps)
        kinds = await drained(built.send(sent(max_steps=4, handoff_boundary=recorder.boundary)))
        assert kinds[-1] == "complete"
        assert kinds.count("step_start") == (3 if steps else 0)
        assert built.boundaries == [4, 3, 2]
        assert built.prepared == ["r1"]
        assert recorder.recorded == [("r1", COMPOSED)]

    run(main(), 0)


@pytest.mark.parametrize("steps", [False, True])
@pytest.mark.parametrize(("before", "said"), [(0, []), (1, ["a"]), (2, ["a", "b"])])
def test_at_a_pause_it_says_nothing_more(before: int, said: list[str], steps: bool) -> None:
    async def main() -> None:
        recorder = Recorder(*["continue"] * before, "pause")
        built = recorder.backend(STEPS, steps=steps)
        events = [event async for event in built.send(sent(handoff_boundary=recorder.boundary))]
        assert [event.data["text"] for event in events if event.kind == "text_complete"] == said
        assert [event.kind for event in events if event.kind in ("complete", "error")] == []
        assert not events or events[-1].kind == ("step_end" if steps else "tool_result")
        assert built.boundaries == [None] * (before + 1)

    run(main(), 0)


def test_it_stands_behind_the_steering_that_was_acknowledged() -> None:
    async def main() -> None:
        queue, recorder = Queue(), Recorder("continue", "pause")
        built = recorder.backend([Tool("t"), Do(lambda given: queue.put("more")), "never"])
        kinds = await drained(built.send(sent(queue=queue, handoff_boundary=recorder.boundary)))
        assert kinds == ["tool_start", "tool_result", "steering_message"]
        assert queue.acked == ["lease more"]

    run(main(), 0)


def test_it_does_not_stand_where_no_step_is_left() -> None:
    async def main() -> None:
        recorder = Recorder()
        built = recorder.backend(STEPS)
        events = [event async for event in built.send(sent(max_steps=1, handoff_boundary=recorder.boundary))]
        assert events[-1].data == {"stop_reason": "step_limit"}
        assert built.boundaries == [1]

    run(main(), 0)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("mode", ["immediate", "after_step", "dispose"])
def test_a_stop_never_hangs_at_a_boundary(mode: Any, seed: int) -> None:
    async def main() -> None:
        recorder = Recorder("continue", "hold")
        built = recorder.backend(STEPS)
        reading = asyncio.ensure_future(_whole(built.send(sent(handoff_boundary=recorder.boundary))))
        await recorder.reached.wait()
        await (built.dispose() if mode == "dispose" else built.stop("user_stop", mode))
        events = await reading
        assert events[-1].data == {"stop_reason": "user_stop"}
        assert [event.data["text"] for event in events if event.kind == "text_complete"] == ["a"]

    run(main(), seed)


async def _whole(stream: AsyncIterator[SessionEvent]) -> list[SessionEvent]:
    return [event async for event in stream]


def test_what_is_played_late_stands_at_no_boundary() -> None:
    async def main() -> None:
        recorder = Recorder("hold")
        built = recorder.backend(STEPS, faults=Faults(late=["too late"]))
        reading = asyncio.ensure_future(_whole(built.send(sent(handoff_boundary=recorder.boundary))))
        await recorder.reached.wait()
        await built.stop("user_stop", "immediate")
        assert [event.kind for event in await reading] == ["text_delta", "text_complete", "complete"]
        assert built.boundaries == [None]

    run(main(), 0)


def test_a_composition_may_differ_by_run_or_be_missing_for_one() -> None:
    async def main() -> None:
        recorder = Recorder()
        built = recorder.backend(STEPS, composition=lambda run_id: COMPOSED if run_id == "r2" else None)
        prepare = built.prepare_run_composition
        assert prepare is not None
        await prepare("r2", "t1")
        await drained(built.send(sent(handoff_boundary=recorder.boundary)))
        assert built.prepared == ["r2", "r1"]
        assert recorder.recorded == [("r2", COMPOSED)]
        assert len(built.boundaries) == 3

    run(main(), 0)


def test_without_a_composition_it_offers_nothing_and_stands_nowhere() -> None:
    async def main() -> None:
        recorder = Recorder("pause")
        built = recorder.backend(STEPS, composition=None)
        kinds = await drained(built.send(sent(handoff_boundary=recorder.boundary)))
        assert kinds[-1] == "complete"
        assert built.prepare_run_composition is None
        assert (built.boundaries, built.prepared, recorder.recorded) == ([], [], [])

    run(main(), 0)


def test_what_is_no_composition_is_refused() -> None:
    with pytest.raises(TypeError, match="composition must be a RunComposition, a function that gives one, or None"):
        scripted_backend(["a"], composition="maka")  # type: ignore[arg-type]
