"""The calls of a step: what keeps one from being dispatched, how they run together, what becomes of their outcomes."""

import asyncio
import hashlib
import time
from pathlib import Path
from typing import Any

import pytest

from maka.runtime.dispatch import ToolLimits
from maka.runtime.errors import RuntimeFailure
from maka.runtime.loop import Options
from maka.runtime.scripted import Ask
from maka.runtime.tools import LeftBehind, ToolFailed, ToolOutput
from support.loops import Bench, FakeTool


def results(bench: Bench) -> list[dict[str, Any]]:
    asyncio.run(bench.loop.run_turn("go"))
    return bench.journal.of("tool/result")


def one(body: Any, **settings: Any) -> dict[str, Any]:
    [result] = results(Bench([[Ask("a")], ["done"]], [FakeTool("a", body, **settings)]))
    return result


async def denied(call: Any, tool: Any, arguments: Any) -> str:
    return f"{call.name} is not allowed here"


@pytest.mark.parametrize(
    ("ask", "settings", "code", "words"),
    [
        (Ask("b"), {}, "TOOL_NOT_FOUND", "there are: a"),
        (Ask("a", "{not json"), {}, "TOOL_ARGUMENTS_INVALID", "not valid JSON"),
        (Ask("a", "[1]"), {}, "TOOL_ARGUMENTS_INVALID", "a JSON object, not list"),
        (Ask("a", '{"n": NaN}'), {}, "TOOL_ARGUMENTS_INVALID", "NaN"),
        (Ask("a", '{"n":' + "[" * 100_000), {}, "TOOL_ARGUMENTS_INVALID", "not valid JSON"),
        (Ask("a", {"n": "one"}), {}, "TOOL_ARGUMENTS_INVALID", "['n']"),
        (Ask("a", {"m": 1}), {}, "TOOL_ARGUMENTS_INVALID", "'m'"),
        (Ask("a", {"n": 1}), {"authorize": denied}, "TOOL_DENIED", "a is not allowed here"),
    ],
)
def test_a_call_that_is_refused_is_answered_and_not_dispatched(
    ask: Ask, settings: dict[str, Any], code: str, words: str
) -> None:
    tool = FakeTool("a")
    bench = Bench([[ask], ["done"]], [tool], **settings)
    [result] = results(bench)
    assert (result["state"], result["is_error"], result["error"]["code"]) == ("error", True, code)
    assert words in result["content"][0]["text"]
    assert not bench.journal.of("tool/call")
    assert tool.entered == 0
    assert bench.journal.of("turn/end")[0]["reason"] == {"kind": "completed"}


def test_blank_arguments_are_an_empty_object() -> None:
    bench = Bench([[Ask("a", "")], ["done"]], [FakeTool("a")])
    [result] = results(bench)
    assert result["state"] == "ok"
    assert bench.journal.of("tool/call")[0]["arguments_digest"] == hashlib.sha256(b"").hexdigest()


def fails(error: BaseException) -> Any:
    def body(arguments: Any, context: Any) -> ToolOutput:
        raise error

    return body


@pytest.mark.parametrize(
    ("body", "state", "code"),
    [
        (fails(ToolFailed("no such place", code="PLACE")), "error", "PLACE"),
        (fails(KeyError("x")), "error", "TOOL_FAILED"),
        (fails(SystemExit(3)), "error", "TOOL_FAILED"),
        (fails(LeftBehind("pid 7")), "unknown", "TOOL_OUTCOME_UNKNOWN"),
        (fails(asyncio.CancelledError()), "unknown", "TOOL_OUTCOME_UNKNOWN"),
        (lambda arguments, context: "text", "error", "TOOL_OUTPUT_INVALID"),
        (lambda arguments, context: ToolOutput("text"), "error", "TOOL_OUTPUT_INVALID"),  # type: ignore[arg-type]
        (lambda arguments, context: ToolOutput(["text"]), "error", "TOOL_OUTPUT_INVALID"),  # type: ignore[list-item]
        (lambda arguments, context: ToolOutput([{"kind": "text"}]), "error", "TOOL_OUTPUT_INVALID"),
        (
            lambda arguments, context: ToolOutput([{"kind": "text", "text": "x", "n": float("nan")}]),
            "error",
            "TOOL_OUTPUT_INVALID",
        ),
        (lambda arguments, context: ToolOutput([], "unknown", {"name": "N", "code": "C"}), "unknown", "C"),
    ],
)
def test_whatever_a_body_does_is_an_outcome(body: Any, state: str, code: str) -> None:
    result = one(body)
    assert (result["state"], result["is_error"], result["error"]["code"]) == (state, True, code)
    assert ("call_seq" in result) == (state == "unknown")


def test_lone_surrogates_of_a_tool_are_marked() -> None:
    [block] = one(lambda arguments, context: ToolOutput.of("a\udcb2b"))["content"]
    assert block["lossy"] is True
    assert block["text"].replace("\ufffd", "") == "ab"


def test_a_timeout_after_dispatch_is_an_unknown_outcome() -> None:
    async def body(arguments: Any, context: Any) -> ToolOutput:
        await asyncio.sleep(30)
        return ToolOutput.of("")

    result = one(body, timeout=0.05)
    assert (result["state"], result["error"]["code"]) == ("unknown", "TOOL_TIMED_OUT")


def test_a_body_that_does_not_end_is_left_behind_and_said() -> None:
    async def body(arguments: Any, context: Any) -> ToolOutput:
        until = asyncio.get_running_loop().time() + 0.3
        while (left := until - asyncio.get_running_loop().time()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                continue
        return ToolOutput.of("")

    options = Options(limits=ToolLimits(grace=0.05), live_text=False)
    bench = Bench([[Ask("a")], ["done"]], [FakeTool("a", body, timeout=0.05)], options=options)
    [result] = results(bench)
    assert result["state"] == "unknown"
    assert "did not end" in bench.journal.of("run/settled")[0]["cleanup"]["error"]


# ---------------------------------------------------------------- together


class Gauge:
    """Counts bodies that run at the same time."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0
        self.order: list[str] = []

    async def __call__(self, arguments: Any, context: Any) -> ToolOutput:
        self.now += 1
        self.most = max(self.most, self.now)
        self.order.append(context.call_id)
        await asyncio.sleep(0.02)
        self.now -= 1
        return ToolOutput.of(context.call_id)


@pytest.mark.parametrize(("safe", "limit", "most"), [(True, 10, 6), (True, 2, 2), (False, 10, 1)])
def test_how_many_run_at_once(safe: bool, limit: int, most: int) -> None:
    gauge = Gauge()
    options = Options(limits=ToolLimits(parallel=limit), live_text=False)
    script = [[Ask("a", call_id=f"c{n}") for n in range(6)], ["done"]]
    answered = results(Bench(script, [FakeTool("a", gauge, parallel_safe=safe)], options=options))
    assert gauge.most == most
    assert sorted(result["call_id"] for result in answered) == [f"c{n}" for n in range(6)]


def test_an_exclusive_call_waits_for_those_before_it_and_holds_those_behind_it() -> None:
    gauge = Gauge()
    tools = [FakeTool("safe", gauge), FakeTool("alone", gauge, parallel_safe=False)]
    asks = [Ask("safe", call_id="1"), Ask("safe", call_id="2"), Ask("alone", call_id="3"), Ask("safe", call_id="4")]
    bench = Bench([asks, ["done"]], tools)
    answered = [result["call_id"] for result in results(bench)]
    assert gauge.order == ["1", "2", "3", "4"]
    assert answered[2:] == ["3", "4"]


def test_results_stand_in_the_order_in_which_they_came() -> None:
    async def body(arguments: Any, context: Any) -> ToolOutput:
        await asyncio.sleep(0.01 * arguments["n"])
        return ToolOutput.of("")

    asks = [Ask("a", {"n": n}, call_id=str(n)) for n in (9, 5, 1)]
    answered = results(Bench([asks, ["done"]], [FakeTool("a", body)]))
    assert [result["call_id"] for result in answered] == ["1", "5", "9"]


def test_a_finished_result_is_durable_while_another_body_still_runs() -> None:
    seen: list[int] = []
    bench = Bench([])

    async def slow(arguments: Any, context: Any) -> ToolOutput:
        await asyncio.sleep(0.05)
        seen.append(sum(event.type == "tool/result" for event in bench.journal.events[: bench.journal.synced]))
        return ToolOutput.of("")

    bench = Bench([[Ask("slow"), Ask("quick")], ["done"]], [FakeTool("slow", slow), FakeTool("quick")])
    results(bench)
    assert seen == [1]


def test_a_result_is_durable_and_told_while_the_next_call_waits_for_an_answer() -> None:
    seen: list[tuple[bool, bool]] = []

    async def authorize(call: Any, tool: Any, arguments: Any) -> None:
        if call.call_id == "2":
            synced = bench.journal.events[: bench.journal.synced]
            seen.append((any(event.type == "tool/result" for event in synced), "tool_result" in bench.kinds()))

    asks = [Ask("a", call_id="1"), Ask("a", call_id="2")]
    bench = Bench([asks, ["done"]], [FakeTool("a", parallel_safe=False)], authorize=authorize)
    results(bench)
    assert seen == [(True, True)]


def test_calls_that_share_an_id_are_told_apart() -> None:
    bench = Bench([[Ask("a", call_id="x"), Ask("a", call_id="x"), Ask("a", call_id="")], ["done"]], [FakeTool("a")])
    answered = sorted(result["call_id"] for result in results(bench))
    requested = [block["call_id"] for block in bench.journal.of("assistant/message")[0]["content"]]
    assert len(set(requested)) == 3
    assert answered == sorted(requested)


# ---------------------------------------------------------------- long outputs


def test_a_long_output_is_stored_whole_before_its_event(tmp_path: Path) -> None:
    text = "ä" * 30_000
    blob = tmp_path / "blobs" / hashlib.sha256(text.encode()).hexdigest()
    bench = Bench(
        [[Ask("a")], ["done"]], [FakeTool("a", lambda arguments, context: ToolOutput.of(text))], directory=tmp_path
    )
    there: list[bool] = []
    append = bench.journal.append

    def spy(draft: Any) -> Any:
        if draft.type == "tool/result":
            there.append(blob.is_file())
        return append(draft)

    bench.journal.append = spy  # type: ignore[method-assign]
    [result] = results(bench)
    [block] = result["content"]
    assert there == [True]
    assert blob.read_bytes() == text.encode()
    assert block["ref"] == f"sha256:{blob.name}"
    assert block["bytes"] == 60_000
    assert len(block["text"].encode()) < 33_000
    assert "27232 bytes left out" in block["text"]


def test_a_long_output_that_is_not_unicode_is_marked(tmp_path: Path) -> None:
    text = "a\ud800" * 20_000
    tool = FakeTool("a", lambda arguments, context: ToolOutput.of(text))
    [result] = results(Bench([[Ask("a")], ["done"]], [tool], directory=tmp_path))
    [block] = result["content"]
    stored = (tmp_path / "blobs" / block["ref"].removeprefix("sha256:")).read_text()
    assert (stored, block["lossy"]) == ("a\ufffd" * 20_000, True)


def test_arguments_that_are_not_unicode_are_digested_as_they_stand_in_the_journal() -> None:
    tool = FakeTool("a")
    tool.parameters = {"type": "object"}  # type: ignore[misc]
    bench = Bench([[Ask("a", '{"x":"\ud800"}')], ["done"]], [tool])
    results(bench)
    [block] = bench.journal.of("assistant/message")[0]["content"]
    [call] = bench.journal.of("tool/call")
    assert call["arguments_digest"] == hashlib.sha256(block["arguments"].encode()).hexdigest()


def test_an_output_that_cannot_be_stored_is_shown_in_part(tmp_path: Path) -> None:
    (tmp_path / "blobs").write_text("in the way")
    tool = FakeTool("a", lambda arguments, context: ToolOutput.of("x" * 100_000))
    [result] = results(Bench([[Ask("a")], ["done"]], [tool], directory=tmp_path))
    assert result["state"] == "ok"
    assert "could not be stored" in result["content"][0]["text"]
    assert "ref" not in result["content"][0]


def test_a_short_output_stays_as_it_is() -> None:
    assert one(lambda arguments, context: ToolOutput.of("x" * 32_768))["content"] == [
        {"kind": "text", "text": "x" * 32_768}
    ]


async def _allows(call: Any, tool: Any, arguments: Any) -> Any:
    return True


@pytest.mark.parametrize(
    ("authorize", "words"),
    [
        (_allows, "authorize gave a bool for a call of a; it gives why a call may not run, as a text, or None"),
        (lambda call, tool, arguments: None, "authorize gave a NoneType and nothing to await; make it `async def`"),
        (lambda call, tool, arguments: "no", "authorize gave a str and nothing to await; make it `async def`"),
    ],
)
def test_an_authorize_that_gives_neither_a_reason_nor_none_fails_the_turn(authorize: Any, words: str) -> None:
    tool = FakeTool("a")
    bench = Bench([[Ask("a")], ["done"]], [tool], authorize=authorize)
    with pytest.raises(RuntimeFailure):
        asyncio.run(bench.loop.run_turn("go"))
    reason = bench.journal.of("turn/end")[0]["reason"]
    assert reason["kind"] == "failed"
    assert reason["message"].endswith(words)
    assert tool.entered == 0


def test_a_defect_of_a_tool_is_logged_with_its_traceback_and_without_its_arguments(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(arguments: Any, context: Any) -> ToolOutput:
        raise ZeroDivisionError("oops")

    async def refuses(arguments: Any, context: Any) -> ToolOutput:
        raise ToolFailed("no such account")

    async def nothing(arguments: Any, context: Any) -> Any:
        return None

    one(refuses)
    assert not caplog.records
    result = one(broken)
    assert result["content"][0]["text"] == "the tool failed: ZeroDivisionError: oops"
    [record] = caplog.records
    assert (record.name, record.levelname) == ("maka.runtime", "ERROR")
    assert "the tool a raised a ZeroDivisionError" in record.getMessage()
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ZeroDivisionError)
    caplog.clear()
    one(nothing)
    assert "the tool a gave back a NoneType" in caplog.text


def test_a_tool_that_holds_the_loop_is_named(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    async def holds(arguments: Any, context: Any) -> ToolOutput:
        await asyncio.sleep(0)
        time.sleep(0.2)
        await asyncio.sleep(0)
        return ToolOutput.of("")

    async def waits(arguments: Any, context: Any) -> ToolOutput:
        await asyncio.to_thread(time.sleep, 0.2)
        return ToolOutput.of("")

    monkeypatch.setattr("maka.runtime.tools.running.HELD", 0.15)
    one(waits)
    assert not caplog.records
    assert one(holds)["state"] == "ok"
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert "the tool a held the event loop for 0.2 s" in record.getMessage()
    assert "asyncio.to_thread" in record.getMessage()
