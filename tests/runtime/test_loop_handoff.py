"""A loop whose runs can be handed over: what they are made of, and the boundary before each step."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import maka
from maka.journal.errors import JournalWriteError
from maka.runtime.backends.base import Boundary, SteeringLease
from maka.runtime.backends.composing import composed
from maka.runtime.backends.loop import LoopBackend, loop_backend
from maka.runtime.backends.scripted import scripted_backend
from maka.runtime.composition import SEMANTICS, RunComposition, drift, hashed
from maka.runtime.dispatch import ToolLimits
from maka.runtime.errors import AppError
from maka.runtime.loop import Options
from maka.runtime.retry import RetryPolicy
from maka.runtime.scripted import Ask, Do, Fail, ScriptedModel
from maka.runtime.tools.command import Command
from maka.runtime.tools.write_file import WriteFile
from support.backend_bench import Bench
from support.loops import FakeTool
from support.seeded_loop import run

SEEDS = range(8)
TURN = ["turn/start", "user/message", "run/composition"]
STEP = ["step/start", "assistant/message", "tool/call", "tool/result", "step/end"]


class Stand:
    """A handoff boundary. ``says`` are its answers, in order; the last one stays, and ``hold`` waits for a stop.

    ``stood``: the steps that were left; ``seen``: what was durable, and what was acknowledged.
    """

    def __init__(self, *says: Any) -> None:
        self.says = list(says) or ["continue"]
        self.stood: list[int | None] = []
        self.seen: list[list[str]] = []
        self.acked: list[list[Any]] = []
        self.reached: Callable[[], None] = lambda: None
        self.bench: Bench | None = None

    async def __call__(self, signal: asyncio.Event | None, remaining: int | None) -> Boundary:
        assert self.bench is not None
        self.stood.append(remaining)
        self.seen.append(self.bench.durable())
        self.acked.append(list(self.bench.settled))
        self.reached()
        said = self.says.pop(0) if len(self.says) > 1 else self.says[0]
        if said == "hold":
            assert signal is not None
            await signal.wait()
            said = "continue"
        return said  # type: ignore[no-any-return]


def bench_of(stand: Stand, script: list[Any], **settings: Any) -> Bench:
    settings.setdefault("handoff", True)
    bench = Bench(script, [FakeTool("a")], boundary=stand, **settings)
    stand.bench = bench
    return bench


def three_steps() -> list[Any]:
    return [[Ask("a")], [Ask("a")], ["done"]]


# ---------------------------------------------------------------- the boundary


@pytest.mark.parametrize("seed", SEEDS)
def test_it_stands_before_each_step_and_all_that_was_said_is_durable(seed: int) -> None:
    stand = Stand()
    bench = bench_of(stand, three_steps(), max_steps=5).run(seed)
    assert bench.reason == {"kind": "completed"}
    assert stand.stood == [5, 4, 3]
    assert [types[1:4] for types in stand.seen] == [TURN] * 3
    assert [types[-1] for types in stand.seen] == ["run/composition", "step/end", "step/end"]
    assert [types.count("step/end") for types in stand.seen] == [0, 1, 2]


@pytest.mark.parametrize("seed", SEEDS)
def test_where_nobody_asks_for_a_handoff_the_boundary_costs_nothing(seed: int) -> None:
    stand = Stand()
    bench = bench_of(stand, three_steps())
    asked = iter([False, True, False])
    bench.wanted = lambda: next(asked)
    bench.run(seed)
    assert bench.reason == {"kind": "completed"}
    assert len(stand.stood) == 1
    alone = bench_of(Stand(), three_steps(), handoff=False).run(seed)
    # For what the run is made of, and for the one boundary.
    assert bench.journal.syncs <= alone.journal.syncs + 2


def test_without_a_limit_any_number_of_steps_is_left() -> None:
    stand = Stand()
    bench_of(stand, three_steps()).run()
    assert stand.stood == [None, None, None]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_at_a_pause_nothing_more_is_said_and_nobody_is_asked(steps: int, seed: int) -> None:
    stand = Stand(*["continue"] * steps, "pause")
    bench = bench_of(stand, three_steps(), max_steps=3).run(seed)
    assert bench.paused
    assert bench.reason is None
    assert stand.stood == [3, 2, 1][: steps + 1]
    assert len(bench.model.requests) == steps
    assert [event.kind for event in bench.told if event.kind in ("complete", "error")] == []
    assert bench.journal.types() == [*TURN, *[type_ for step in range(steps) for type_ in _of(step)]]
    # It is not said twice: what stands at the boundary is what the run came to.
    assert stand.seen[-1][1:] == bench.journal.types()


def _of(step: int) -> list[str]:
    return [STEP[0], *(["request/header"] if step == 0 else []), *STEP[1:]]


def test_no_boundary_has_no_step_left_and_none_stands_behind_the_last_step() -> None:
    stand = Stand()
    bench = bench_of(stand, three_steps(), max_steps=2).run()
    assert bench.reason == {"kind": "step_limit"}
    assert stand.stood == [2, 1]
    stand = Stand()
    assert bench_of(stand, ["done"], max_steps=1).run().reason == {"kind": "completed"}
    assert stand.stood == [1]


@pytest.mark.parametrize("seed", SEEDS)
def test_it_stands_behind_the_steering_that_was_acknowledged(seed: int) -> None:
    def arrive(request: Any) -> None:
        bench.leases = [SteeringLease("l1", "s1", [{"kind": "text", "text": "and this"}])]

    stand = Stand("continue", "pause")
    bench = bench_of(stand, [[Do(arrive), "first"], ["never"]])
    bench.run(seed)
    assert bench.paused
    assert stand.acked == [[], [("ack", ["l1"])]]
    assert stand.seen[-1][-1] == "user/message"
    assert len(bench.model.requests) == 1


def test_what_is_told_to_pause_before_its_first_step_has_asked_nobody() -> None:
    bench = bench_of(Stand("pause"), three_steps()).run()
    assert bench.journal.types() == TURN
    assert bench.model.requests == []


def test_a_loop_that_is_not_handed_over_stands_nowhere_and_offers_nothing() -> None:
    stand = Stand("pause")
    bench = bench_of(stand, three_steps(), handoff=False, max_steps=5).run()
    assert bench.reason == {"kind": "completed"}
    assert stand.stood == []
    assert bench.backend.prepare_run_composition is None
    assert bench.journal.of("run/composition") == []


# ---------------------------------------------------------------- stops


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("way", ["immediate", "after_step", "dispose"])
@pytest.mark.parametrize("steps", [0, 1])
def test_a_stop_never_hangs_at_the_boundary(steps: int, way: Any, seed: int) -> None:
    async def stop() -> None:
        await asyncio.sleep(0.5)
        await (bench.backend.dispose() if way == "dispose" else bench.backend.stop("user_stop", way))

    def reached() -> None:
        if len(stand.stood) > steps:
            bench.beside.append(asyncio.ensure_future(stop()))

    stand = Stand(*["continue"] * steps, "hold")
    stand.reached = reached
    bench = bench_of(stand, three_steps())
    bench.run(seed)
    assert bench.reason == {"kind": "aborted"}
    assert len(bench.model.requests) == steps
    assert len(stand.stood) == steps + 1


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", ["immediate", "after_step"])
def test_a_stop_that_came_before_the_pause_outranks_it(mode: Any, seed: int) -> None:
    """It was told to pause, and its turn was stopped: it says so, and is not handed over."""

    def reached() -> None:
        bench.beside.append(asyncio.ensure_future(bench.backend.stop("user_stop", mode)))

    class Late(Stand):
        async def __call__(self, signal: asyncio.Event | None, remaining: int | None) -> Boundary:
            await super().__call__(signal, remaining)
            await asyncio.sleep(0.1)
            return "pause"

    stand = Late()
    stand.reached = reached
    bench = bench_of(stand, three_steps())
    bench.run(seed)
    assert bench.reason == {"kind": "aborted"}
    assert bench.batches[-1] == ["complete"]


def test_a_failed_write_before_the_boundary_is_raised_and_nobody_stands_there() -> None:
    stand = Stand()
    error = JournalWriteError("no room", errno=28)
    bench = bench_of(
        stand, three_steps(), fail=lambda journal: error if journal.types()[-1] in ("tool/result", "step/end") else None
    )
    with pytest.raises(JournalWriteError):
        bench.run()
    assert len(stand.stood) == 1


# ---------------------------------------------------------------- what is recorded


def test_what_a_run_is_made_of_is_durable_before_its_first_request() -> None:
    seen: list[list[str]] = []
    bench = bench_of(Stand(), [[Do(lambda request: seen.append(bench.durable())), "done"]])
    bench.run()
    assert seen[0][:4] == ["session/header", *TURN]
    [recorded] = bench.journal.of("run/composition")
    assert recorded["run_id"] == "run of t"
    assert RunComposition.from_json(recorded["composition"]).tool_names == ("a",)


def test_each_run_records_it_once_however_often_it_is_asked() -> None:
    bench = bench_of(Stand(), [["one"], ["two"]])

    async def main() -> None:
        await bench.turn("t1")
        bench.reason = None
        prepare = bench.backend.prepare_run_composition
        assert prepare is not None
        await prepare("run of t2", "t2")
        await bench.turn("t2")

    run(main(), 1)
    assert [each["run_id"] for each in bench.journal.of("run/composition")] == ["run of t1", "run of t2"]


def test_it_is_taken_as_things_are_when_the_run_begins() -> None:
    tool = FakeTool("a")
    bench = Bench([["one"], ["two"]], [tool], handoff=True)

    async def main() -> None:
        await bench.turn("t1")
        tool.description = "something else"
        bench.reason = None
        await bench.turn("t2")

    run(main(), 1)
    first, second = (RunComposition.from_json(each["composition"]) for each in bench.journal.of("run/composition"))
    assert drift(first, second) == ["tool catalog"]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_record_that_fails_is_raised_and_nobody_is_asked(seed: int) -> None:
    error = JournalWriteError("no room", errno=28)
    bench = bench_of(
        Stand(), three_steps(), fail=lambda journal: error if journal.types()[-1] == "run/composition" else None
    )
    with pytest.raises(JournalWriteError):
        bench.run(seed)
    assert bench.model.requests == []


# ---------------------------------------------------------------- the composition


def composition(**changed: Any) -> RunComposition:
    """Of a loop that differs from the usual one in what is ``changed``."""
    model = changed.pop("model", ScriptedModel([]))
    for key, value in changed.pop("of_model", {}).items():
        setattr(model, key, value)
    tools = changed.pop("tools", [FakeTool("b"), FakeTool("a", recovery="read_only")])
    own, authorize = changed.pop("own", None), changed.pop("authorize", None)
    kept, given = tools if own is None else own, changed.pop("options", Options())
    made = composed(model, kept, given, authorized=authorize is not None)
    factory = loop_backend(model, own, given, authorize=authorize, handoff=True)
    assert factory.known({}, tools) == {key: getattr(made, key) for key in SEMANTICS}
    return made


def options(**values: Any) -> Options:
    return Options(**{"system": "You keep notes.", "params": {"temperature": 0}, **values})


def test_it_says_who_made_it_and_which_tools_there_are() -> None:
    made = composition()
    assert (made.composer_id, made.composer_revision, made.source_revisions) == ("maka.loop", maka.__version__, {})
    assert (made.tool_names, made.context_window) == (("a", "b"), None)


def described(**values: Any) -> FakeTool:
    tool = FakeTool("b")
    for key, value in values.items():
        setattr(tool, key, value)
    return tool


async def _nobody(call: Any, tool: Any, arguments: Any) -> str | None:
    return None


ALONE = [FakeTool("b")]


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("prompt", {"options": options()}, {"options": options(system="You keep none.")}),
        ("prompt", {}, {"options": Options(system="Anything.")}),
        ("provider options", {"options": options()}, {"options": options(params={"temperature": 1})}),
        ("provider options", {}, {"model": ScriptedModel([], provider="another")}),
        ("context window", {}, {"of_model": {"context_window": 8192}}),
        ("tool catalog", {"tools": ALONE}, {"tools": [described(description="another")]}),
        ("tool catalog", {"tools": ALONE}, {"tools": [described(parameters={"type": "object"})]}),
        ("tool availability", {"tools": ALONE}, {"tools": [described(recovery="idempotent")]}),
        ("tool availability", {"tools": ALONE}, {"tools": [described(parallel_safe=False)]}),
        ("tool availability", {"tools": ALONE}, {"tools": [described(timeout=5)]}),
        ("tool availability", {"tools": ALONE}, {"tools": [described(reconcile=_nobody)]}),
        ("tool availability", {"tools": ALONE}, {"tools": [described(leaves=_nobody)]}),
        ("tool availability", {}, {"authorize": _nobody}),
    ],
)
def test_each_thing_that_makes_another_agent_is_told_apart(name: str, one: Any, other: Any) -> None:
    assert drift(composition(**one), composition(**other)) == [name]


def test_a_tool_more_is_another_catalog_and_other_availability() -> None:
    changed = drift(composition(), composition(tools=ALONE))
    assert changed == ["tool catalog", "tool availability"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"tools": [FakeTool("a", recovery="read_only"), FakeTool("b")]}),
        ({}, {"options": Options(system="")}),
        ({}, {"options": Options(max_steps=3, live_text=False, retry=RetryPolicy(attempts=9))}),
        ({}, {"options": Options(limits=ToolLimits(shown=100))}),
        ({"tools": [described(timeout=5)]}, {"tools": [described(timeout=5.0)]}),
        ({}, {"own": [FakeTool("b"), FakeTool("a", recovery="read_only")], "tools": []}),
        ({}, {"model": ScriptedModel([["another script"]])}),
    ],
)
def test_what_leaves_the_agent_as_it_is_is_not_told_apart(one: Any, other: Any) -> None:
    assert composition(**one) == composition(**other)


def test_a_backend_records_what_its_factory_tells() -> None:
    model, tools = ScriptedModel([["done"]]), [FakeTool("a")]
    factory = loop_backend(model, tools, options(), authorize=_nobody, handoff=True)
    bench = Bench([], boundary=Stand())
    bench.backend = factory(bench.context)  # type: ignore[assignment]
    asyncio.run(bench.turn())
    [recorded] = bench.journal.of("run/composition")
    assert RunComposition.from_json(recorded["composition"]) == composed(model, tools, options(), authorized=True)
    told = factory.known({"model": "m"}, [FakeTool("other")])
    assert told == {key: recorded["composition"][key] for key in SEMANTICS}


def test_a_factory_tells_what_does_not_depend_on_a_model_that_is_yet_to_be_made() -> None:
    def unmade(context: Any) -> Any:
        raise AssertionError("nothing is built for it")

    made = composed(ScriptedModel([]), [FakeTool("a")], options(), authorized=False)
    known = loop_backend(unmade, options=options(), handoff=True).known({}, [FakeTool("a")])
    keys = ("base_system_prompt_hash", "tool_catalog_hash", "tool_availability_hash")
    assert known == {key: getattr(made, key) for key in keys}


def test_a_factory_tells_whether_its_runs_can_be_handed_over() -> None:
    without = loop_backend(ScriptedModel([]))
    assert (without.handoff, without.known({}, [])) == (False, {})
    assert loop_backend(ScriptedModel([]), handoff=True).handoff
    assert not scripted_backend([]).handoff
    assert scripted_backend([], composition=lambda run_id: None).handoff


def test_the_tools_that_ship_have_one() -> None:
    assert composition(tools=[Command(), WriteFile()]).tool_names == ("command", "write_file")
    assert drift(composition(tools=[Command()]), composition(tools=[Command(limit=3)])) == ["tool catalog"]


def test_it_is_the_same_in_another_process() -> None:
    script = """
import json
from maka.runtime import Command, Options, ScriptedModel, WriteFile
from maka.runtime.backends.composing import composed
options = Options(system="You keep notes.", params={"b": 1, "a": [None, 0.5]})
made = composed(ScriptedModel([]), [WriteFile(), Command()], options, authorized=False)
print(json.dumps(made.to_json()))
"""
    told = [
        json.loads(
            subprocess.run(
                [sys.executable, "-c", script],
                env={**os.environ, "PYTHONHASHSEED": seed},
                capture_output=True,
                check=True,
                timeout=60,
            ).stdout
        )
        for seed in ("1", "2")
    ]
    here = Options(system="You keep notes.", params={"a": [None, 0.5], "b": 1})
    made = composition(own=[Command(), WriteFile()], options=here)
    assert told == [made.to_json()] * 2
    assert made.base_system_prompt_hash == hashed("You keep notes.")


# ---------------------------------------------------------------- what is refused, and when


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        ([FakeTool(f"t{number}") for number in range(257)], "there are 257 tools.*has at most 256"),
        ([FakeTool("x" * 129)], "has 129 characters.*at most 128"),
    ],
)
def test_tools_that_no_composition_can_tell_of_are_refused_when_the_backend_is_built(tools: Any, words: str) -> None:
    bench = Bench([])
    with pytest.raises(AppError, match=words):
        loop_backend(bench.model, tools, handoff=True)
    factory = loop_backend(bench.model, handoff=True)
    with pytest.raises(AppError, match=words):
        factory.known({}, tools)
    with pytest.raises(AppError, match=words):
        LoopBackend(bench.model, tools, Options(), bench.context, handoff=True)
    assert isinstance(LoopBackend(bench.model, tools, Options(), bench.context), LoopBackend)
    assert loop_backend(bench.model, tools).tools == tuple(tools)


@pytest.mark.parametrize("window", [0, -1, True, 8192.0, "8192"])
def test_a_context_window_that_is_none_is_refused_when_the_backend_is_built(window: Any) -> None:
    bench = Bench([])
    bench.model.context_window = window  # type: ignore[attr-defined]
    with pytest.raises(AppError, match="`context_window` of the model must be a number of tokens above 0, or None"):
        loop_backend(bench.model, handoff=True)(bench.context)


@pytest.mark.parametrize(
    ("what", "settings"),
    [
        ("the params", {"options": Options(params={"stop": {1, 2}})}),
        ("the params", {"options": Options(params={"seed": 2**70})}),
        ("the system prompt", {"options": Options(system="\ud800")}),
        ("the tools", {"tools": [described(description=3 + 4j)]}),
    ],
)
def test_what_is_no_json_is_refused_when_the_backend_is_built(what: str, settings: Any) -> None:
    bench = Bench([])
    given = {"options": Options(), "tools": [], **settings}
    with pytest.raises(AppError, match=f"{what} of the loop cannot be written as JSON"):
        LoopBackend(bench.model, given["tools"], given["options"], bench.context, handoff=True)


def test_handoff_is_yes_or_no() -> None:
    with pytest.raises(TypeError, match="handoff must be True or False, not 'yes'"):
        loop_backend(ScriptedModel([]), handoff="yes")  # type: ignore[arg-type]


def test_every_semantic_has_a_case_that_tells_it_apart() -> None:
    marks: Any = test_each_thing_that_makes_another_agent_is_told_apart.pytestmark
    assert {case[0] for case in marks[0].args[1]} == set(SEMANTICS.values())


def test_a_provider_that_fails_ends_the_run_as_ever() -> None:
    bench = bench_of(Stand(), [Fail("provider_auth")]).run()
    assert bench.reason is not None
    assert bench.reason["failure_class"] == "provider_auth"
