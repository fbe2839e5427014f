"""What a repair appends to turns that a dead writer left open, in which order, and what it must not claim."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.answers import Repaired, codes, finding, inspect, messages, refused, settled, shown, texts, untouched
from support.builder import Builder

END = ["step/end", "turn/end"]


def ask(builder: Builder, interaction_id: str, kind: str = "question", run_id: str | None = None) -> None:
    request = {
        "question": {"questions": []},
        "permission": {"call_id": "c", "name": "tool", "arguments": "{}", "reason": "why"},
        "sandbox_boundary": {"expansion": {}, "justification": "why"},
    }[kind]
    ids = {**builder.ids, **({"run_id": run_id} if run_id else {})}
    builder.add("interaction/requested", {"interaction_id": interaction_id, **ids, "kind": kind, "request": request})


def stop(builder: Builder, source: str = "button", mode: str = "immediate", stop_id: str = "s", **more: Any) -> None:
    builder.add("turn/stop_requested", {"stop_id": stop_id, **builder.ids, "source": source, "mode": mode, **more})


def results(repaired: Repaired) -> list[tuple[str, str]]:
    return [(data["call_id"], data["state"]) for data in repaired.data if "is_error" in data]


# ---------------------------------------------------------------- where a turn stops


def _started() -> Builder:
    return Builder().plain_turn().start()


def _second_step() -> Builder:
    builder = Builder().start().step().says("", ["c"])
    builder.call("c")
    return builder.result("c").end_step()


def _request_header_only() -> Builder:
    return Builder().start().step()


def _without_request_header() -> Builder:
    builder = Builder().start()
    builder.step_number = 1
    builder.add("step/start", {**builder.ids, "step": 1})
    return builder


def _answered() -> Builder:
    return Builder().start().step().says("done")


def _results_complete() -> Builder:
    builder = Builder().start().step().says("", ["c", "d"])
    for call in "dc":
        builder.call(call)
        builder.result(call)
    return builder


def _all_but_the_end() -> Builder:
    return Builder().start().step().says().end_step()


STOPS: dict[str, tuple[Callable[[], Builder], list[str]]] = {
    "started": (_started, ["turn/end"]),
    "step open": (_without_request_header, END),
    "request made": (_request_header_only, END),
    "answered": (_answered, END),
    "results complete": (_results_complete, END),
    "between steps": (_second_step, ["turn/end"]),
    "all but the end": (_all_but_the_end, ["turn/end"]),
}


@pytest.mark.parametrize("name", STOPS)
@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("lf", [True, False])
def test_where_a_turn_stops(tmp_path: Path, name: str, stopped: bool, lf: bool) -> None:
    make, appended = STOPS[name]
    builder = make()
    if stopped:
        stop(builder, "the button")
    path = builder.write(tmp_path, builder.raw() if lf else builder.raw()[:-1])
    repaired = settled(path)
    if not stopped:
        assert repaired.types == appended
        assert repaired.data[-1] == {**builder.ids, "reason": {"kind": "interrupted"}, "synthesized": True}
        run = repaired.again["runs"][-1]
        assert (run["status"], run["failure_class"]) == ("failed", "app_restarted")
        assert repaired.again["turns"][-1]["status"] == "interrupted"
    else:
        assert repaired.types == [*appended, "session/note", "run/settled"]
        end, note, settle = repaired.data[-3:]
        assert end == {**builder.ids, "reason": {"kind": "aborted", "source": "the button"}, "synthesized": True}
        assert (note["kind"], note["source"]) == ("abort", "the button")
        assert settle == {"run_id": builder.ids["run_id"]}
        run = repaired.again["runs"][-1]
        assert run["status"] == "cancelled"
        assert "failure_class" not in run
        assert repaired.again["turns"][-1]["status"] == "aborted"
    assert repaired.inspected["turns"][-1]["status"] == repaired.again["turns"][-1]["status"]
    assert codes(repaired.again) == []


def test_ts_of_closers_is_the_last_lines_even_if_the_clock_stepped_back(tmp_path: Path) -> None:
    builder = Builder().start().step()
    builder.add("session/note", {"kind": "x"}, ts=12)
    repaired = settled(builder.write(tmp_path))
    assert {json.loads(line)["ts"] for line in repaired.after.splitlines()[-2:]} == {12}


# ---------------------------------------------------------------- calls


@pytest.mark.parametrize("recovery", ["read_only", "idempotent", "reconcile", "never"])
def test_a_dispatched_call_is_unknown(tmp_path: Path, recovery: str) -> None:
    builder = Builder().start().step().says("", ["c"])
    seq = builder.call("c", recovery=recovery)
    repaired = settled(builder.write(tmp_path))
    data = repaired.data[0]
    assert list(data) == [
        *("turn_id", "run_id", "step", "call_id", "operation_id", "state"),
        *("content", "is_error", "error", "call_seq", "synthesized"),
    ]
    assert data["error"] == {"name": "ToolOutcomeUnknownError", "code": "TOOL_OUTCOME_UNKNOWN"}
    assert (data["state"], data["is_error"], data["synthesized"]) == ("unknown", True, True)
    assert (data["call_seq"], data["step"], data["operation_id"]) == (seq, 1, "op-1-c")
    [block] = data["content"]
    assert block["kind"] == "text"
    for words in ("Do not retry blindly.", recovery, "interrupted", "unknown"):
        assert words in block["text"]
    found = finding(repaired.inspected, "unknown_outcome")
    assert found["seq"] == seq
    assert repaired.inspected["turns"][0]["calls"] == [{"call_id": "c", "name": "tool", "state": "unknown"}]


def test_a_requested_call_never_ran(tmp_path: Path) -> None:
    builder = Builder().start().step().says("", ["c"])
    repaired = settled(builder.write(tmp_path))
    data = repaired.data[0]
    assert data["error"] == {"name": "ToolNotStartedError", "code": "TOOL_NOT_STARTED"}
    assert (data["state"], data["is_error"], data["synthesized"]) == ("not_started", True, True)
    assert "call_seq" not in data
    assert "never ran" in data["content"][0]["text"]
    assert "not_started" in codes(repaired.inspected)


@pytest.mark.parametrize("boundary", [None, "another_boundary_v9"])
def test_without_the_boundary_nothing_is_known_of_it(tmp_path: Path, boundary: str | None) -> None:
    builder = Builder(tool_boundary=boundary).start().step().says("", ["c"])
    repaired = settled(builder.write(tmp_path))
    data = repaired.data[0]
    assert data["state"] == "unknown"
    assert data["error"] == {"name": "ToolOutcomeUnknownError", "code": "TOOL_OUTCOME_UNKNOWN"}
    assert "Do not retry blindly." in data["content"][0]["text"]
    assert repaired.inspected["turns"][0]["calls"][0]["state"] == "unknown"


def test_six_calls_three_times(tmp_path: Path) -> None:
    """Retries of a step that left six open calls each: one result for each, in order, by step."""
    builder = Builder().start()
    for number in (1, 2, 3):
        builder.step(number).says("", [f"{number}{c}" for c in "abcdef"])
        for call in "abcdef":
            builder.call(f"{number}{call}")
        if number < 3:
            for call in "abcdef":
                builder.result(f"{number}{call}")
            builder.end_step()
    repaired = settled(builder.write(tmp_path))
    assert results(repaired) == [(f"3{c}", "unknown") for c in "abcdef"]
    assert "tool 6" in finding(repaired.inspected, "open_turn")["message"]


def test_open_calls_of_several_messages_in_one_step(tmp_path: Path) -> None:
    builder = Builder().start().step()
    for number in range(3):
        builder.says("", [f"{number}{c}" for c in "abcdef"])
        builder.call(f"{number}c")
    repaired = settled(builder.write(tmp_path))
    wanted = [(f"{n}{c}", "unknown" if c == "c" else "not_started") for n in range(3) for c in "abcdef"]
    assert results(repaired) == wanted


@pytest.mark.parametrize("lost", ["a", "b", "c"])
def test_one_of_three_results_is_lost(tmp_path: Path, lost: str) -> None:
    builder = Builder().start().step().says("", ["a", "b", "c"])
    for call in "cab":
        builder.call(call)
    for call in "bca":
        if call != lost:
            builder.result(call, f"real {call}")
    path = builder.write(tmp_path)
    repaired = settled(path)
    assert results(repaired) == [(lost, "unknown")]
    said = texts(messages(path))
    assert [f"real {c}" in said for c in "abc"] == [c != lost for c in "abc"]


@pytest.mark.parametrize("count", [2, 3, 5])
def test_ids_that_a_provider_reuses_in_one_message(tmp_path: Path, count: int) -> None:
    builder = Builder().start().step().says("", ["k"] * count)
    for number in range(count - 1):
        call = {"call_id": "k", "operation_id": f"op-{number}", "name": "tool", "arguments": "{}"}
        builder.add(
            "tool/call",
            {**builder.ids, "step": 1, **call, "arguments_digest": "0" * 64, "recovery": "never"},
        )
    builder.result("k", "the first", operation_id="op-0")
    path = builder.write(tmp_path)
    repaired = settled(path)
    assert results(repaired) == [("k", "unknown")] * (count - 2) + [("k", "not_started")]
    tool = next(message for message in messages(path) if message["role"] == "tool")
    assert [b["state"] for b in tool["content"]] == ["ok"] + ["unknown"] * (count - 2) + ["not_started"]


@pytest.mark.parametrize("given", [" C1 ", "C1", "c1\t", "\nc1"])
@pytest.mark.parametrize("with_operation", [True, False])
def test_another_spelling_of_an_id_is_the_same_call(tmp_path: Path, given: str, with_operation: bool) -> None:
    builder = Builder().start().step().says("", ["c1", "d"])
    builder.call("c1")
    data: dict[str, Any] = {**builder.ids, "step": 1, "call_id": given, "state": "ok", "is_error": False}
    if with_operation:
        data["operation_id"] = "op-1-c1"
    data["content"] = [{"kind": "text", "text": "there it is"}]
    builder.add("tool/result", data)
    path = builder.write(tmp_path)
    repaired = settled(path)
    assert results(repaired) == [("d", "not_started")]
    assert "there it is" in texts(messages(path))


def test_another_spelling_that_fits_two_calls_fits_none(tmp_path: Path) -> None:
    builder = Builder().start().step().says("", ["c1", "C1"])
    data = {**builder.ids, "step": 1, "call_id": " c1", "state": "ok", "is_error": False, "content": []}
    builder.add("tool/result", data)
    doc = refused(builder.write(tmp_path), "damaged")
    assert [call["state"] for call in doc["turns"][0]["calls"]] == ["not_started", "not_started"]


def test_a_dispatched_call_that_no_block_requested(tmp_path: Path) -> None:
    """Blocks first, then those that no block requested."""
    builder = Builder().start().step()
    builder.call("stray")
    builder.says("", ["asked"])
    path = builder.write(tmp_path)
    repaired = settled(path)
    assert results(repaired) == [("asked", "not_started"), ("stray", "unknown")]
    assert any("stray" in text for text in texts(messages(path)))


def test_a_result_without_operation_and_without_dispatch(tmp_path: Path) -> None:
    builder = Builder().start().step().says("", ["c"])
    data = {**builder.ids, "step": 1, "call_id": "c", "state": "error", "is_error": True, "content": []}
    builder.add("tool/result", data)
    repaired = settled(builder.write(tmp_path))
    assert repaired.types == END


def test_very_many_open_calls(tmp_path: Path) -> None:
    count = 8_000
    builder = Builder().start().step().says("", [f"c{i}" for i in range(count)])
    builder.call("c5")
    path = builder.write(tmp_path)
    done = settled_quickly(path)
    assert len(done["appended"]) == count + 2
    states = [event["data"]["state"] for event in done["appended"][:-2]]
    assert states.count("unknown") == 1
    assert states[5] == "unknown"


def settled_quickly(path: Path) -> Any:
    from support.answers import repair

    done = repair(path)
    assert inspect(path)["verdict"] == "healthy"
    return done


# ---------------------------------------------------------------- deltas


def pieces(builder: Builder, *given: tuple[str, int, str, str]) -> Builder:
    for message_id, index, kind, text in given:
        builder.delta(text, message_id, kind, index)
    return builder


DELTAS: dict[str, tuple[list[tuple[str, int, str, str]], list[tuple[str, list[tuple[str, str]]]]]] = {
    "one": ([("m", 0, "text", "Hel"), ("m", 0, "text", "lo")], [("m", [("text", "Hello")])]),
    "thinking then text": (
        [("m", 0, "thinking", "hm"), ("m", 1, "text", "a"), ("m", 0, "thinking", "m"), ("m", 1, "text", "b")],
        [("m", [("thinking", "hmm"), ("text", "ab")])],
    ),
    "index decides the order": (
        [("m", 2, "text", "c"), ("m", 0, "text", "a"), ("m", 1, "text", "b")],
        [("m", [("text", "a"), ("text", "b"), ("text", "c")])],
    ),
    "two messages": (
        [("m", 0, "text", "a"), ("n", 0, "text", "x"), ("m", 0, "text", "b")],
        [("m", [("text", "ab")]), ("n", [("text", "x")])],
    ),
    "nothing said": ([("m", 0, "text", ""), ("m", 1, "thinking", "")], []),
    "one block empty": ([("m", 0, "thinking", ""), ("m", 1, "text", "a")], [("m", [("text", "a")])]),
}


@pytest.mark.parametrize("name", DELTAS)
def test_deltas_become_messages(tmp_path: Path, name: str) -> None:
    given, wanted = DELTAS[name]
    path = pieces(Builder().start().step(), *given).write(tmp_path)
    repaired = settled(path)
    assert repaired.types == ["assistant/message"] * len(wanted) + END
    for data, (message_id, blocks) in zip(repaired.data, wanted, strict=False):
        assert data == {
            "turn_id": "t1",
            "run_id": "r1",
            "step": 1,
            "message_id": message_id,
            "content": [{"kind": kind, "text": text} for kind, text in blocks],
            "stop_reason": "interrupted",
            "interrupted": True,
        }
    assert "usage" not in json.dumps(repaired.data)


def test_deltas_whose_message_came_are_over(tmp_path: Path) -> None:
    builder = Builder().start().step()
    pieces(builder, ("a1-1", 0, "text", "o"), ("a1-1", 0, "text", "k"), ("other", 0, "text", "left"))
    builder.says("ok", ["c"])
    path = builder.write(tmp_path)
    repaired = settled(path)
    assert repaired.types == ["assistant/message", "tool/result", *END]
    assert repaired.data[0]["message_id"] == "other"


def test_deltas_of_an_ended_step_are_over(tmp_path: Path) -> None:
    builder = Builder().start().step().delta("never finished").end_step().step(2)
    path = builder.write(tmp_path)
    assert settled(path).types == END


def test_deltas_of_an_older_step_do_not_return(tmp_path: Path) -> None:
    builder = Builder().start().step().delta("a", "x").says("a").end_step().step(2).delta("b", "y")
    repaired = settled(builder.write(tmp_path))
    assert repaired.types == ["assistant/message", *END]
    assert (repaired.data[0]["message_id"], repaired.data[0]["step"]) == ("y", 2)


# ---------------------------------------------------------------- interactions


@pytest.mark.parametrize("kind", ["question", "permission", "sandbox_boundary"])
def test_a_pending_interaction_is_closed_between_calls_and_the_step(tmp_path: Path, kind: str) -> None:
    builder = Builder().start().step().says("", ["c"])
    builder.call("c")
    ask(builder, "i", kind)
    path = builder.write(tmp_path)
    assert inspect(path)["interactions"] == [{"interaction_id": "i", "kind": kind, "status": "pending"}]
    repaired = settled(path)
    assert repaired.types == ["tool/result", "interaction/resolved", *END]
    assert repaired.data[1] == {"interaction_id": "i", "outcome": {"kind": "closure", "reason": "host_restarted"}}
    assert finding(repaired.inspected, "pending_interaction")
    assert repaired.again["interactions"][0]["status"] == "closed"


@pytest.mark.parametrize(
    "outcome",
    [
        {"kind": "question_answer", "answers": ["yes", None]},
        {"kind": "permission_answer", "decision": "deny"},
        {"kind": "sandbox_boundary_decision", "decision": "allow"},
        {"kind": "closure", "reason": "client_gone"},
    ],
)
def test_an_answered_interaction_stays_as_it_is(tmp_path: Path, outcome: Any) -> None:
    builder = Builder().start().step().says("", ["c"])
    ask(builder, "i")
    builder.add("interaction/resolved", {"interaction_id": "i", "outcome": outcome})
    repaired = settled(builder.write(tmp_path))
    assert repaired.types == ["tool/result", *END]
    [row] = repaired.again["interactions"]
    assert row["status"] == ("closed" if outcome["kind"] == "closure" else "answered")
    assert row["outcome"] == outcome


def test_the_first_answer_wins(tmp_path: Path) -> None:
    builder = Builder().start().step()
    ask(builder, "i")
    for answer in ("first", "second"):
        outcome = {"kind": "question_answer", "answers": [answer]}
        builder.add("interaction/resolved", {"interaction_id": "i", "outcome": outcome})
    doc = inspect(builder.write(tmp_path))
    assert doc["interactions"][0]["outcome"]["answers"] == ["first"]


def test_an_interaction_of_an_ended_turn(tmp_path: Path) -> None:
    builder = Builder().start().step().says()
    ask(builder, "late")
    builder.end_step().end()
    repaired = settled(builder.write(tmp_path))
    assert repaired.types == ["interaction/resolved"]


def test_the_order_over_everything(tmp_path: Path) -> None:
    """Open turns oldest first, then runs whose turn had ended, then interactions of no open turn."""
    builder = Builder()
    builder.start().step()
    ask(builder, "of an ended turn")
    builder.says().end_step().end(settle=False)
    builder.start().step().says("", ["c"])
    ask(builder, "of the open turn")
    repaired = settled(builder.write(tmp_path))
    assert repaired.types == [
        *("tool/result", "interaction/resolved", "step/end", "turn/end"),
        *("run/settled", "interaction/resolved"),
    ]
    assert repaired.data[1]["interaction_id"] == "of the open turn"
    assert repaired.data[-2] == {"run_id": "r1"}
    assert repaired.data[-1]["interaction_id"] == "of an ended turn"


# ---------------------------------------------------------------- ends and settles


@pytest.mark.parametrize(
    ("kind", "status", "failure"),
    [
        ("completed", "completed", None),
        ("max_tokens", "completed", None),
        ("step_limit", "failed", "tool_step_cap_reached"),
        ("blocked", "failed", "blocked"),
        ("aborted", "cancelled", None),
        ("failed", "failed", "failed"),
    ],
)
@pytest.mark.parametrize("given", [None, "my_class"])
@pytest.mark.parametrize("settle", [True, False])
def test_a_run_settles_after_its_terminal_fact(
    tmp_path: Path, kind: str, status: str, failure: str | None, given: str | None, settle: bool
) -> None:
    builder = Builder().start().step().says().end_step()
    reason = {"kind": kind, **({"failure_class": given} if given else {})}
    builder.add("turn/end", {**builder.ids, "reason": reason})
    if settle:
        builder.add("run/settled", {"run_id": "r1"})
    path = builder.write(tmp_path)
    if settle:
        doc = untouched(path)
    else:
        assert "unsettled_run" in codes(inspect(path))
        repaired = settled(path)
        assert repaired.types == ["run/settled"]
        doc = repaired.again
    assert doc["runs"][0]["status"] == status
    assert doc["runs"][0].get("failure_class") == (given or failure if status == "failed" else None)
    assert doc["turns"][0]["status"] == kind
    assert doc["turns"][0]["reason"] == reason


def test_an_interrupted_run_settles_itself(tmp_path: Path) -> None:
    builder = Builder().start().step().says().end_step().end("interrupted")
    assert codes(untouched(builder.write(tmp_path))) == []


def test_a_cleanup_that_failed_is_settled(tmp_path: Path) -> None:
    builder = Builder().plain_turn()
    builder.lines.pop()
    builder.prev, builder.seq = json.loads(builder.lines[-1])["sum"], builder.seq - 1
    builder.add("run/settled", {"run_id": "r1", "cleanup": {"error": "no"}})
    untouched(builder.write(tmp_path))


def test_cause_is_the_runtimes(tmp_path: Path) -> None:
    import maka as library

    builder = Builder().start().step().says("", ["c"])
    builder.call("c")
    path = builder.write(tmp_path)
    with library.open_session(path, cause="journal_write_failed"):
        pass
    doc = inspect(path)
    assert doc["turns"][0]["status"] == "failed"
    assert doc["runs"][0] == {
        "run_id": "r1",
        "turn_id": "t1",
        "invocation_id": "i-r1",
        "status": "failed",
        "failure_class": "journal_write_failed",
    }
    assert path.read_bytes().splitlines()[-1].count(b"run/settled") == 1
    untouched(path)


# ---------------------------------------------------------------- stops


def test_stops_escalate_and_the_turn_is_aborted_once(tmp_path: Path) -> None:
    builder = Builder().start().step().says("", ["c"])
    stop(builder, "first", "after_step", "s1")
    stop(builder, "second", "immediate", "s2")
    path = builder.write(tmp_path)
    repaired = settled(path)
    assert repaired.types == ["tool/result", *END, "session/note", "run/settled"]
    assert repaired.inspected["turns"][0]["reason"] == repaired.data[2]["reason"]


def test_a_stop_after_the_end_changes_nothing(tmp_path: Path) -> None:
    builder = Builder().plain_turn()
    stop(builder)
    assert untouched(builder.write(tmp_path))["turns"][0]["status"] == "completed"


def test_a_stop_of_another_turn_changes_nothing(tmp_path: Path) -> None:
    builder = Builder().start().step()
    builder.add("turn/stop_requested", {"stop_id": "s", "turn_id": "tX", "source": "b", "mode": "immediate"})
    assert settled(builder.write(tmp_path)).types == END


def test_a_stop_without_run(tmp_path: Path) -> None:
    builder = Builder().start()
    builder.add("turn/stop_requested", {"stop_id": "s", "turn_id": "t1", "source": "b", "mode": "after_step"})
    assert settled(builder.write(tmp_path)).types == ["turn/end", "session/note", "run/settled"]


def test_a_stopped_turn_with_everything(tmp_path: Path) -> None:
    builder = Builder().start().step().delta("hm", "other", "thinking").says("", ["a", "b"])
    builder.call("a")
    ask(builder, "i")
    stop(builder)
    repaired = settled(builder.write(tmp_path))
    assert repaired.types == [
        *("assistant/message", "tool/result", "tool/result", "interaction/resolved", "step/end", "turn/end"),
        *("session/note", "run/settled"),
    ]


# ---------------------------------------------------------------- older turns


@pytest.mark.parametrize("later", [1, 3])
def test_an_older_open_turn_is_closed_at_the_end_and_stands_in_its_place(tmp_path: Path, later: int) -> None:
    builder = Builder().plain_turn("zero").start("one").step().says("", ["c"])
    builder.call("c")
    for number in range(later):
        builder.plain_turn(f"later {number}")
    path = builder.write(tmp_path)
    repaired = settled(path)
    assert repaired.types == ["tool/result", *END]
    assert {data["turn_id"] for data in repaired.data} == {"t2"}
    flow = shown(path)
    assert flow[2:6] == [
        *(("user", "one"), ("assistant", "c:call"), ("tool", "c:unknown"), ("user", "later 0")),
    ]
    assert [turn["turn_id"] for turn in repaired.again["turns"]] == [f"t{i}" for i in range(1, 3 + later)]


def test_several_older_open_turns_oldest_first(tmp_path: Path) -> None:
    builder = Builder()
    for number in range(4):
        builder.start(f"turn {number}").step().says("", [f"c{number}"])
        builder.call(f"c{number}")
    path = builder.write(tmp_path)
    repaired = settled(path)
    assert repaired.types == ["tool/result", *END] * 4
    assert [data["turn_id"] for data in repaired.data] == [f"t{i}" for i in (1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4)]
    assert [role for role, _ in shown(path)] == ["user", "assistant", "tool"] * 4
    assert codes(repaired.inspected).count("open_turn") == 4
    assert codes(repaired.inspected).count("open_step") == 4


def test_the_same_call_id_in_two_open_turns(tmp_path: Path) -> None:
    builder = Builder()
    builder.start("one").step().says("", ["c"])
    first = builder.call("c")
    builder.start("two").step().says("", ["c"])
    second = builder.call("c")
    repaired = settled(builder.write(tmp_path))
    assert [data.get("call_seq") for data in repaired.data if "call_seq" in data] == [first, second]


def test_results_that_came_after_the_next_turn_began(tmp_path: Path) -> None:
    """A flush that came late, by a writer that did not know: order inside each turn is all that is judged."""
    builder = Builder().start("one").step().says("", ["c"])
    builder.call("c")
    one = builder.ids
    builder.start("two").step().says().end_step().end()
    data = {**one, "step": 1, "call_id": "c", "operation_id": "op-1-c", "state": "ok", "is_error": False}
    builder.add("tool/result", {**data, "content": [{"kind": "text", "text": "late"}]})
    path = builder.write(tmp_path)
    repaired = settled(path)
    assert repaired.types == END
    assert shown(path)[:4] == [("user", "one"), ("assistant", "c:call"), ("tool", "c:ok"), ("user", "two")]


# ---------------------------------------------------------------- relations that no correct writer produces


def _after_the_end(builder: Builder) -> None:
    builder.plain_turn()
    builder.step(2)


def _step_twice(builder: Builder) -> None:
    builder.start().step()
    builder.step(1)


def _step_skipped(builder: Builder) -> None:
    builder.start().step(3)


def _turn_number_skipped(builder: Builder) -> None:
    builder.plain_turn()
    builder.turn += 3
    builder.plain_turn()


def _turn_id_again(builder: Builder) -> None:
    builder.plain_turn()
    builder.turn -= 1
    builder.plain_turn()


def _never_opened(builder: Builder) -> None:
    builder.plain_turn()
    builder.turn += 1
    builder.step()


def _end_with_open_step(builder: Builder) -> None:
    builder.start().step().says().end()


def _message_outside_a_step(builder: Builder) -> None:
    builder.start().step().says().end_step()
    builder.says("again")


def _orphan(builder: Builder) -> None:
    builder.start().step().says().result("never asked").end_step().end()


def _twice(builder: Builder) -> None:
    builder.start().step().says("", ["c"])
    builder.call("c")
    builder.result("c").result("c", "again").end_step().end()


def _orphan_outcome(builder: Builder) -> None:
    builder.tool_turn()
    outcome = {**builder.ids, "call_id": "c1", "call_seq": 5, "operation_id": "op-1-c1", "state": "ok", "content": []}
    builder.add("tool/outcome", {**outcome, "is_error": False, "source": "user"})


def _user_text_in_a_step(builder: Builder) -> None:
    builder.start().step().user("in between", "steering").says().end_step().end()


def _result_after_the_end(builder: Builder) -> None:
    builder.tool_turn()
    builder.step_number = 1
    builder.result("c1", "late")


WRONG: dict[str, tuple[Callable[[Builder], None], set[str]]] = {
    "after the end": (_after_the_end, {"turn_order"}),
    "step twice": (_step_twice, {"turn_order"}),
    "step skipped": (_step_skipped, {"turn_order"}),
    "turn number skipped": (_turn_number_skipped, {"turn_order"}),
    "turn id again": (_turn_id_again, {"turn_order"}),
    "never opened": (_never_opened, {"turn_order"}),
    "end with open step": (_end_with_open_step, {"turn_order"}),
    "message outside a step": (_message_outside_a_step, {"turn_order"}),
    "orphan result": (_orphan, {"orphan_result"}),
    "result twice": (_twice, {"duplicate_result"}),
    "orphan outcome": (_orphan_outcome, {"orphan_result"}),
    "user text in a step": (_user_text_in_a_step, {"turn_order"}),
    "result after the end": (_result_after_the_end, {"turn_order", "duplicate_result", "orphan_result"}),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_no_correct_writer_produces(tmp_path: Path, name: str) -> None:
    make, wanted = WRONG[name]
    builder = Builder()
    make(builder)
    path = builder.write(tmp_path)
    doc = refused(path, "damaged")
    found = {f["code"] for f in doc["findings"] if f["severity"] == "damage"}
    assert found
    assert found <= wanted
    for row in doc["findings"]:
        if row["severity"] == "damage":
            assert path.read_bytes()[row["offset"] :].startswith(b'{"seq":%d,' % row["seq"])
    repaired = settled(path, "--salvage")
    gap = repaired.data[0]
    assert (gap["spans"], gap["missing"], gap["unverified"]) == ([], [], [])
    assert {row["code"] for row in gap["accepted"]} <= wanted


def test_an_unanswered_call_of_an_ended_turn_is_a_notice(tmp_path: Path) -> None:
    builder = Builder().start("ask").step().says("", ["a", "b", "c"])
    builder.call("a")
    builder.call("b")
    builder.result("b").end_step().end()
    path = builder.plain_turn("next").write(tmp_path)
    doc = untouched(path)
    assert codes(doc) == ["unanswered_call"] * 2
    assert shown(path)[:6] == [
        ("user", "ask"),
        *(("assistant", "a:call"), ("assistant", "b:call"), ("assistant", "c:call")),
        *(("tool", "a:unknown"), ("tool", "b:ok")),
    ]
    assert shown(path)[6] == ("tool", "c:not_started")


def test_load_and_inspect_of_the_library(tmp_path: Path) -> None:
    import maka as library

    builder = Builder().start().step().says("", ["c"])
    builder.call("c")
    path = builder.write(tmp_path)
    view = library.inspect(path)
    assert path.read_bytes() == builder.raw()
    assert not view.repaired_on_disk
    assert [turn["status"] for turn in view.turns()] == ["interrupted"]
    session = library.load(path)
    assert session.repaired_on_disk
    assert path.read_bytes() != builder.raw()
    assert session.messages() == view.messages()
    assert [event.type for event in session.events][-3:] == ["tool/result", *END]
    after = path.read_bytes()
    library.load(path)
    assert path.read_bytes() == after
