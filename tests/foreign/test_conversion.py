"""What becomes of records: turns, steps and calls, results wherever they stand, forks, subagents, what is left open."""

from collections.abc import Callable
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maka.journal.codec import check_shape, serialize
from maka.journal.events import Draft, Event
from maka.journal.foreign.conversion import Batch, Conversion, Fork, ends_turn
from maka.journal.foreign.findings import Report
from maka.journal.foreign.records import (
    Begin,
    Compaction,
    Dispatch,
    End,
    Kept,
    Note,
    Place,
    Prompt,
    Record,
    Response,
    Result,
    Said,
    Setting,
)
from maka.journal.foreign.values import said
from maka.journal.history import History
from maka.journal.state import State
from support.foreign import assert_legal

#: A record that waits for its place.
Waiting = Callable[[Place], Record]


def record(cls: type[Record], /, **fields: Any) -> Waiting:
    return lambda place: cls(place=place, time=1_000 * place.line, **fields)


def prompt(text: str, **more: Any) -> Waiting:
    return record(Prompt, **{"turn": text, "content": said(text), "message_id": text, **more})


def answer(text: str, *calls: str, **more: Any) -> Waiting:
    asked = [{"kind": "tool_call", "call_id": each, "name": "look", "arguments": "{}"} for each in calls]
    return record(Response, **{"content": [*said(text), *asked], "message_id": text, **more})


def result(call_id: str, text: str = "done", **more: Any) -> Waiting:
    return record(Result, call_id=call_id, content=said(text), **more)


@attrs.define
class Converted:
    report: Report
    batches: list[Batch]

    def drafts(self, thread: str = "") -> list[Draft]:
        return [draft for batch in self.batches if batch.thread == thread for draft in batch.drafts]

    def types(self, thread: str = "") -> list[str]:
        return [draft.type for draft in self.drafts(thread)[1:]]

    def of(self, type_: str, thread: str = "") -> list[dict[str, Any]]:
        return [draft.data for draft in self.drafts(thread) if draft.type == type_]

    def findings(self) -> list[tuple[str, int | None, int | None]]:
        return [(each.code, each.line, each.related) for each in self.report.findings]  # type: ignore[attr-defined]

    def fork(self, thread: str) -> Fork | None:
        return next(batch.fork for batch in self.batches if batch.thread == thread)

    def history(self, thread: str = "") -> History:
        history = History()
        for seq, draft in enumerate(self.drafts(thread)):
            history.apply(Event(seq, 0, draft.type, draft.data, "", draft.ignorable))
        return history

    def texts(self, thread: str = "") -> list[str]:
        messages = self.history(thread).messages()
        return [block["text"] for message in messages for block in message["content"] if block["kind"] == "text"]

    def check(self) -> None:
        """Would a writer take all of it?"""
        states: dict[str, State] = {}
        written: dict[str, list[Event]] = {}
        for batch in self.batches:
            if batch.thread not in states:
                state = states[batch.thread] = State()
                if batch.fork is not None:
                    for event in written[batch.fork.thread][: batch.fork.seq + 1]:
                        state.inherit(event)
                written[batch.thread] = []
            events = written[batch.thread]
            for draft in batch.drafts:
                if events:
                    check_shape(serialize(draft)[0])
                    states[batch.thread].check(draft)
                events.append(Event(len(events), batch.ts, draft.type, draft.data, "", draft.ignorable))
                states[batch.thread].apply(events[-1])
        for thread in states:
            assert_legal(self.history(thread).messages())


def converted(*waiting: Waiting, cuts: dict[str, int] | None = None) -> Converted:
    """Each record stands on a line of its own, from 1 on."""
    report = Report()
    conversion = Conversion("tool", report, cuts)
    batches: list[Batch] = []
    for line, each in enumerate(waiting, 1):
        batches += conversion.feed(each(Place(line, 100 * line, 10)))
    out = Converted(report, [*batches, *conversion.finish()])
    if cuts is None:
        out.check()
    return out


STEP = ["step/start", "request/header", "assistant/message"]
LATER_STEP = ["step/start", "assistant/message"]
END = ["turn/end", "run/settled"]


# ---------------------------------------------------------------- turns and steps


def test_a_turn() -> None:
    found = converted(
        record(Begin, session_id="x", cwd="/w", model="m", provider="p"),
        prompt("one"),
        answer("looking", "c1", usage={"input_tokens": 1, "output_tokens": 2}, stop_reason="tool_use"),
        result("c1"),
        answer("so"),
        record(End, kind="completed"),
    )
    assert found.types() == [
        "turn/start", "user/message",
        *STEP, "tool/call", "tool/result", "step/end",
        *LATER_STEP, "step/end",
        *END,
    ]  # fmt: skip
    header = found.drafts()[0].data
    assert {key: header[key] for key in ("format", "cwd", "backend", "model")} == {
        "format": 1,
        "cwd": "/w",
        "backend": "tool",
        "model": "m",
    }
    assert header["imported_from"] == {"format": "tool", "session_id": "x", "sha256": ""}
    assert found.of("assistant/message")[0]["usage"] == {"input_tokens": 1, "output_tokens": 2}
    assert found.of("assistant/message")[0]["stop_reason"] == "tool_use"
    assert [batch.ts for batch in found.batches] == [1_000, 2_000, 3_000, 4_000, 5_000, 6_000]
    assert found.findings() == []


def test_a_file_without_a_beginning_has_one() -> None:
    found = converted(prompt("one"), record(Note, kind="k", text="t", thread="other"))
    assert [found.drafts(thread)[0].type for thread in ("", "other")] == ["session/header"] * 2


@pytest.mark.parametrize(
    ("before", "kind"),
    [
        ([answer("so")], "completed"),
        ([answer("so", "c1"), result("c1")], "interrupted"),
        ([answer("so", "c1")], "interrupted"),
        ([], "interrupted"),
    ],
)
def test_a_turn_that_the_next_one_ends(before: list[Waiting], kind: str) -> None:
    found = converted(prompt("one"), *before, prompt("two"))
    assert found.of("turn/end")[0]["reason"] == {"kind": kind}
    assert ("run/settled" in found.types()) == (kind == "completed")
    # Only what is whole may be forked behind.
    ends = [draft.type for draft in found.drafts() if ends_turn(draft)]
    assert ends == ["run/settled" if kind == "completed" else "turn/end"]


def test_an_end_says_what_is_known_of_it_and_is_nothing_where_no_turn_is_open() -> None:
    failed = record(End, kind="failed", failure_class="api_error", message="why", source="tool")
    found = converted(failed, prompt("one"), failed, failed)
    assert found.of("turn/end") == [
        {
            "turn_id": "turn-1",
            "run_id": "run-1",
            "reason": {"kind": "failed", "source": "tool", "failure_class": "api_error", "message": "why"},
        }
    ]


def test_turns_are_numbered_and_a_request_is_told_where_it_changes() -> None:
    found = converted(
        prompt("one"),
        answer("a", model="m", provider="p"),
        answer("b", model="m", provider="p"),
        answer("c", model="n", provider="p"),
        prompt("two"),
        answer("d", model="n", provider="p"),
    )
    assert [data["turn"] for data in found.of("turn/start")] == [1, 2]
    assert [(data["reason"], data["header"]["model"], data["step"]) for data in found.of("request/header")] == [
        ("initial", "m", 1),
        ("change", "n", 3),
        ("resume", "n", 1),
    ]
    assert [data["run"]["model"] for data in found.of("turn/start")] == ["", "n"]


def test_a_response_without_a_prompt_begins_a_turn() -> None:
    found = converted(answer("so", turn="t"), record(Begin, thread="b", kind="branch", parent="", after="t"))
    assert found.types()[:1] == ["turn/start"]
    assert found.of("user/message") == []
    assert found.fork("b") == Fork("", len(found.drafts()) - 1)


def test_ids_of_messages_are_the_tools_own_once() -> None:
    found = converted(prompt("same"), answer("same"), answer("other"), answer("none", message_id=None))
    ids = [data["message_id"] for type_ in ("user/message", "assistant/message") for data in found.of(type_)]
    assert ids[0] == "same"
    assert "other" in ids
    assert len(set(ids)) == 4


# ---------------------------------------------------------------- what is said


def test_what_is_said_while_calls_run_waits_for_them() -> None:
    found = converted(
        prompt("one"),
        answer("looking", "c1"),
        record(Said, content=said("faster")),
        result("c1"),
        answer("so"),
        record(Said, content=said("a hint"), source="hook"),
    )
    assert found.types() == [
        "turn/start", "user/message",
        *STEP, "tool/call", "tool/result", "step/end", "user/message",
        *LATER_STEP, "step/end", "user/message",
    ]  # fmt: skip
    assert [data["source"] for data in found.of("user/message")] == [
        {"kind": "user"},
        {"kind": "steering"},
        {"kind": "steering", "origin": "hook"},
    ]


def test_what_is_said_between_turns_belongs_to_the_next() -> None:
    found = converted(
        record(Said, content=said("rules"), source="context"), prompt("one"), record(End, kind="completed"),
        record(Said, content=said("more rules"), source="context"), answer("so"),
    )  # fmt: skip
    assert [(data["content"][0]["text"], data["turn_id"]) for data in found.of("user/message")] == [
        ("rules", "turn-1"),
        ("one", "turn-1"),
        ("more rules", "turn-2"),
    ]


def test_what_is_said_and_no_turn_follows_is_a_note() -> None:
    found = converted(prompt("one"), record(End, kind="completed"), record(Said, content=said("bye"), source="context"))
    assert found.of("session/note") == [{"kind": "context", "text": "bye"}]


def test_settings_notes_and_kept_lines() -> None:
    found = converted(
        record(Setting, patch={"name": "n"}),
        prompt("one"),
        record(Note, kind="api_error", text="overloaded"),
        record(Kept, type="future", value={"deep": [1, 2**64 - 1, -(2**63)]}),
    )
    assert found.of("session/updated") == [{"patch": {"name": "n"}}]
    assert found.of("session/note") == [
        {"kind": "api_error", "run_id": "run-1", "turn_id": "turn-1", "text": "overloaded"}
    ]
    [kept] = [draft for draft in found.drafts() if draft.type == "x-foreign/line"]
    assert kept.ignorable
    # What no journal can hold is what it is nearest to.
    assert kept.data == {
        "format": "tool",
        "line": 4,
        "type": "future",
        "value": {"deep": [1, float(2**64 - 1), -(2**63)]},
    }


# ---------------------------------------------------------------- calls and results


def test_results_are_paired_by_id_in_any_order() -> None:
    found = converted(
        prompt("one"), answer("looking", "c1", "c2", "c3"), result("c3", "3", state="error"), result("c1", "1"),
        result("c2", "2", state="cancelled"),
    )  # fmt: skip
    assert [(data["call_id"], data["state"], data["is_error"]) for data in found.of("tool/result")] == [
        ("c3", "error", True),
        ("c1", "ok", False),
        ("c2", "cancelled", True),
    ]
    calls = {data["call_id"]: data["operation_id"] for data in found.of("tool/call")}
    assert {data["call_id"]: data["operation_id"] for data in found.of("tool/result")} == calls
    assert len(set(calls.values())) == 3


def test_one_id_twice_in_a_response() -> None:
    found = converted(
        prompt("one"), answer("looking", "c", "c"), result("c", "x"), result("c", "y"), record(End, kind="completed")
    )
    operations = [data["operation_id"] for data in found.of("tool/result")]
    assert len(set(operations)) == 2
    assert found.findings() == []


def test_an_id_that_comes_again_in_another_turn() -> None:
    found = converted(
        prompt("one"), answer("a", "c"), result("c", "x"), prompt("two"), answer("b", "c"), result("c", "y")
    )
    assert [(data["turn_id"], data["content"][0]["text"]) for data in found.of("tool/result")] == [
        ("turn-1", "x"),
        ("turn-2", "y"),
    ]


def test_a_late_result_is_an_outcome_of_its_call() -> None:
    found = converted(prompt("one"), answer("a", "c"), prompt("two"), answer("b"), result("c", "late"), prompt("3"))
    [unknown] = found.of("tool/result")
    [outcome] = found.of("tool/outcome")
    assert (unknown["state"], unknown["synthesized"]) == ("unknown", True)
    assert found.drafts()[outcome["call_seq"]].data["call_id"] == "c"
    assert (outcome["turn_id"], outcome["state"], outcome["source"]) == ("turn-1", "ok", "late")
    assert found.findings() == [("late_result", 5, 2), ("open_turn", 6, None)]
    assert "late" in "".join(found.texts())


def test_a_second_result_is_a_note() -> None:
    found = converted(prompt("one"), answer("a", "c"), result("c", "x"), result("c", "y"), record(End, kind="aborted"))
    assert found.findings() == [("duplicate_result", 4, None)]
    assert [data["content"][0]["text"] for data in found.of("tool/result")] == ["x"]
    assert found.of("session/note") == [{"kind": "duplicate_result", "text": "y"}]


def test_a_second_result_after_a_late_one_is_a_note_too() -> None:
    found = converted(prompt("one"), answer("a", "c"), prompt("two"), result("c", "x"), result("c", "y"))
    assert [code for code, _, _ in found.findings()] == ["late_result", "duplicate_result", "open_turn"]
    assert len(found.of("tool/outcome")) == 1


@pytest.mark.parametrize("opened", [True, False])
def test_a_result_without_its_call_is_told_as_text(opened: bool) -> None:
    found = converted(*([prompt("one")] if opened else []), result("gone", "out", name="look"), answer("so"))
    assert ("orphan_result", 1 + opened, None) in found.findings()
    assert found.of("tool/result") == []
    assert found.texts()[opened:] == ["[A result without its call: look, gone]", "out", "so"]


def test_calls_of_a_response_that_was_cut_off_never_ran() -> None:
    found = converted(prompt("one"), answer("a", "c1", "c2", interrupted=True), record(End, kind="aborted"))
    assert [data["state"] for data in found.of("tool/result")] == ["not_started"] * 2
    assert found.of("tool/call") == []
    assert found.of("assistant/message")[0]["interrupted"] is True
    assert found.findings() == []


# ---------------------------------------------------------------- what is known to have run


def test_a_call_that_is_not_said_to_have_run_did_not_where_the_tool_tells() -> None:
    found = converted(
        record(Begin, dispatches=True),
        prompt("one"),
        answer("a", "c1", "c2"),
        record(Dispatch, call_id="c1"),
        prompt("two"),
    )
    assert [(data["call_id"], data["state"]) for data in found.of("tool/result")] == [
        ("c1", "unknown"),
        ("c2", "not_started"),
    ]
    assert [code for code, _, _ in found.findings()] == ["unknown_outcome", "not_started", "open_turn"]
    assert "tool_boundary" in found.drafts()[0].data


def test_elsewhere_nobody_knows() -> None:
    found = converted(prompt("one"), answer("a", "c1"), prompt("two"))
    assert [data["state"] for data in found.of("tool/result")] == ["unknown"]
    assert found.findings() == [("unknown_outcome", 2, None), ("open_turn", 3, None)]
    assert "tool_boundary" not in found.drafts()[0].data


def test_a_result_of_a_call_that_was_said_not_to_have_run_is_told_as_text() -> None:
    found = converted(
        record(Begin, dispatches=True), prompt("one"), answer("a", "c1"), prompt("two"), result("c1", "late")
    )
    assert found.of("tool/outcome") == []
    assert "late" in found.texts()
    assert found.findings()[0] == ("late_result", 5, 3)


def test_a_body_that_was_entered_without_a_message_that_asks() -> None:
    found = converted(
        record(Begin, dispatches=True),
        prompt("one"),
        answer("a"),
        record(Dispatch, call_id="c9", name="look", arguments='{"a":1}'),
        result("c9", "out"),
        record(Dispatch, call_id="c8"),
    )
    [call] = found.of("tool/call")
    assert (call["name"], call["arguments"]) == ("look", '{"a":1}')
    assert found.of("tool/result")[0]["state"] == "ok"
    assert "out" in "".join(found.texts())


# ---------------------------------------------------------------- compaction


def test_a_compaction_leaves_out_what_stands_before_it_and_closes_what_is_open() -> None:
    found = converted(
        prompt("one"),
        answer("a"),
        prompt("two"),
        answer("b", "c"),
        record(Compaction, summary=said("SUM"), kept_from="two"),
        result("c", "late"),
        answer("so"),
    )
    [compacted] = found.of("context/compacted")
    assert found.drafts()[compacted["kept_from"]].data["message_id"] == "two"
    assert found.texts()[:3] == ["SUM", "two", "b"]
    assert found.findings() == [("late_result", 6, 4), ("open_turn", 3, None)]


@pytest.mark.parametrize("kept_from", [None, "nowhere"])
def test_a_compaction_that_keeps_nothing(kept_from: str | None) -> None:
    found = converted(prompt("one"), answer("a"), record(Compaction, summary=said("SUM"), kept_from=kept_from))
    assert found.of("context/compacted") == [{"content": said("SUM")}]
    assert found.texts() == ["SUM"]


# ---------------------------------------------------------------- threads


def branch(thread: str, after: str | None, parent: str = "") -> Waiting:
    return record(Begin, thread=thread, kind="branch", parent=parent, after=after)


def test_a_branch_is_forked_behind_its_turn_and_counts_on() -> None:
    found = converted(
        prompt("one"), answer("a"), prompt("two"), answer("b"),
        branch("x", "one"), prompt("else", thread="x"), answer("c", thread="x"),
        prompt("three"),
    )  # fmt: skip
    fork = found.fork("x")
    assert fork is not None
    assert not fork.before
    assert found.drafts()[fork.seq].type == "run/settled"
    assert [draft.data.get("turn_id") for draft in found.drafts()[: fork.seq] if draft.type == "turn/end"] == ["turn-1"]
    assert [data["turn"] for data in found.of("turn/start", "x")] == [2]
    assert found.texts("x") == ["else", "c"]


def test_a_branch_of_a_branch() -> None:
    found = converted(
        prompt("one"), answer("a"), prompt("two"), answer("b"), prompt("three"), answer("c"),
        branch("x", "two"), prompt("x1", thread="x"), answer("d", thread="x"),
        branch("y", "x1", "x"), prompt("y1", thread="y"),
    )  # fmt: skip
    assert [data["turn"] for data in found.of("turn/start", "y")] == [4]
    fork = found.fork("y")
    assert fork is not None
    assert fork.thread == "x"
    assert found.drafts("x")[fork.seq].type == "run/settled"


def test_a_turn_that_a_branch_leaves_is_over() -> None:
    found = converted(prompt("one"), answer("a", "c"), branch("x", "one"), prompt("two", thread="x"))
    assert found.types()[-2:] == ["step/end", "turn/end"]
    assert found.fork("x") == Fork("", len(found.drafts()) - 1)


@pytest.mark.parametrize("after", [None, "nowhere"])
def test_a_branch_of_no_turn_begins_anew(after: str | None) -> None:
    found = converted(
        record(Begin, cwd="/w", model="m", provider="p"), prompt("one"), branch("x", after), prompt("two", thread="x")
    )
    assert found.fork("x") is None
    assert [found.drafts("x")[0].data[key] for key in ("cwd", "model")] == ["/w", "m"]
    assert [data["turn"] for data in found.of("turn/start", "x")] == [1]


def test_what_a_branch_leaves_open_is_no_finding() -> None:
    found = converted(prompt("one"), answer("a"), branch("x", "one"), prompt("two", thread="x"),
                      answer("b", "c", thread="x"), record(End, kind="completed"))  # fmt: skip
    assert found.findings() == []


def test_a_subagent_is_the_child_of_its_call() -> None:
    found = converted(
        prompt("one"),
        answer("a", "c1", "c2"),
        record(Begin, thread="kid", kind="subagent", parent="", call_id="c1", model="small"),
        prompt("do it", thread="kid"),
        answer("done", thread="kid"),
        result("c1"),
    )
    header = found.drafts("kid")[0].data
    assert header["child_of"] == {"session_id": "", "run_id": "run-1", "turn_id": "turn-1", "call_id": "c1"}
    assert header["model"] == "small"
    [begun] = [each for each in found.batches if each.thread == "kid" and each.child_of is not None]
    assert (begun.child_of, begun.fork) == ("", None)
    assert found.texts("kid") == ["do it", "done"]
    # The two do not get into each other's way.
    assert found.of("tool/result")[0]["call_id"] == "c1"


def test_a_thread_begins_once() -> None:
    found = converted(record(Begin, cwd="/a"), prompt("one"), record(Begin, cwd="/b"))
    assert [draft.type for draft in found.drafts()].count("session/header") == 1


# ---------------------------------------------------------------- what is left open


def test_what_the_file_leaves_open_stays_open_and_is_told_with_its_place() -> None:
    found = converted(prompt("one"), answer("a"), prompt("two"), answer("b", "c1", "c2"), result("c1"))
    assert found.types()[-1] == "tool/result"
    assert found.findings() == [("unknown_outcome", 4, None), ("open_turn", 3, None)]
    assert [finding.offset for finding in found.report.findings] == [400, 300]


def test_calls_of_one_id_that_nothing_came_of_are_all_told() -> None:
    found = converted(prompt("one"), answer("a", "c"), prompt("two"), answer("b", "c", "c"), prompt("three"))
    assert [line for code, line, _ in found.findings() if code == "unknown_outcome"] == [2, 4, 4]


def test_a_call_on_a_line_of_its_own_is_found_there() -> None:
    found = converted(prompt("one"), answer("a", "c1", places={"c1": Place(9, 900, 5)}))
    assert found.findings()[0] == ("unknown_outcome", 9, None)


# ---------------------------------------------------------------- what is on record


def test_a_thread_that_is_on_record_goes_on_in_a_journal_of_its_own() -> None:
    first: list[Waiting] = [prompt("one"), answer("a"), prompt("two")]
    ends = [number for number, draft in enumerate(converted(*first).drafts()) if ends_turn(draft)]
    found = converted(*first, answer("b"), cuts={"": ends[-1]})
    assert found.batches[0].fork == Fork("", ends[-1], before=True)
    assert found.types() == ["turn/start", "user/message", *STEP]
    assert [data["turn"] for data in found.of("turn/start")] == [2]


# ---------------------------------------------------------------- any records

NAMES = st.sampled_from(["a", "b", "c"])
THREADS = st.sampled_from(["", "", "", "x", "y"])
RECORDS = st.one_of(
    st.builds(lambda thread, name: prompt(name, thread=thread), THREADS, NAMES),
    st.builds(
        lambda thread, calls, cut: answer("so", *calls, thread=thread, interrupted=cut),
        THREADS,
        st.lists(NAMES, max_size=3),
        st.booleans(),
    ),
    st.builds(
        lambda thread, name, state: result(name, thread=thread, state=state),
        THREADS,
        NAMES,
        st.sampled_from(["ok", "error", "cancelled", "not_started"]),
    ),
    st.builds(lambda thread, name: record(Dispatch, call_id=name, name="look", thread=thread), THREADS, NAMES),
    st.builds(lambda thread: record(Said, content=said("psst"), thread=thread), THREADS),
    st.builds(
        lambda thread, kind: record(End, kind=kind, thread=thread),
        THREADS,
        st.sampled_from(["completed", "aborted", "failed", "interrupted", "max_tokens"]),
    ),
    st.builds(
        lambda thread, name: record(Compaction, summary=said("S"), kept_from=name, thread=thread), THREADS, NAMES
    ),
    st.builds(lambda thread: record(Note, kind="k", text="t", thread=thread), THREADS),
    st.builds(lambda thread: record(Kept, type="t", value={}, thread=thread), THREADS),
    st.builds(
        lambda thread, kind, parent, name, tells: record(
            Begin, thread=thread, kind=kind, parent=parent, after=name, call_id=name, dispatches=tells
        ),
        THREADS,
        st.sampled_from(["branch", "subagent"]),
        THREADS,
        NAMES,
        st.booleans(),
    ),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(RECORDS, max_size=25))
def test_any_records_make_journals_that_a_writer_takes(waiting: list[Waiting]) -> None:
    found = converted(*waiting)
    answers = sum(isinstance(each(Place(1, 0, 0)), Response) for each in waiting)
    assert sum(draft.type == "assistant/message" for batch in found.batches for draft in batch.drafts) == answers
