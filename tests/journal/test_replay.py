"""What a continuation is given to go on from, and that it is what its run's model then reads."""

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from maka.journal.events import Event
from maka.journal.history import History, Replay
from support.folds import text
from support.legal import assert_legal
from support.lineages import Story

ENDS = ("completed", "interrupted", "failed", "aborted")


def said(messages: list[dict[str, Any]]) -> list[str]:
    return [text(message).strip() for message in messages]


def folded(events: list[Event]) -> History:
    history = History()
    for event in events:
        history.apply(event)
    return history


# ---------------------------------------------------------------- where it is cut


def test_a_run_is_cut_behind_its_last_result() -> None:
    story = Story().plain_turn("before").start("go").step().says("", ["a"])
    story.tool("a")
    anchor = story.seq - 1
    story.end_step().step(2).says("half a thought").end_step().end("interrupted")
    replay = story.history.replay("r2")
    assert replay.through_seq == anchor
    assert said(replay.messages) == ["before", "ok", "go", "", f"ok {anchor - 1}"]
    assert "half a thought" in said(story.history.messages())


def test_a_run_is_cut_behind_what_the_user_said_last() -> None:
    story = Story().start("go").step().says("one").end_step().user("and two", "steering").step(2).says("lost")
    story.end_step().end("interrupted")
    assert said(story.history.replay("r1").messages) == ["go", "one", "and two"]


def test_a_segment_without_anchor_adds_nothing() -> None:
    story = Story().start("go").step().says("lost").end_step()
    story.end("interrupted").go_on("r1").step().says("lost too").end_step().end("interrupted")
    assert said(story.history.replay("r2").messages) == ["go"]
    assert story.history.replay("r2").through_seq == 2
    assert said(story.go_on("r2").history.messages("r3")) == ["go"]


def test_without_any_anchor_there_is_none() -> None:
    story = Story().start("").step().says("to nobody").end_step()
    story.end("interrupted")
    assert story.history.replay("r1") == Replay([], None)
    assert said(Story().plain_turn().history.replay("unknown").messages) == ["hi", "ok"]


def test_a_duplicate_result_is_no_anchor() -> None:
    story = Story().start("go").step().says("", ["a"])
    story.tool("a")
    anchor = story.seq - 1
    story.end_step().step(2).says("lost").result("a").end_step().end("interrupted")
    assert story.history.replay("r1").through_seq == anchor
    assert "lost" not in said(story.history.replay("r1").messages)


def test_turns_that_stand_between_are_left_out_and_stay_in_the_history() -> None:
    story = Story().start("go").step().says("lost").end_step()
    story.end("interrupted").plain_turn("between")
    assert said(story.history.replay("r1").messages) == ["go"]
    story.go_on("r1").step().says("gone on")
    assert said(story.history.messages("r3")) == ["go", "gone on"]
    assert said(story.history.messages()) == ["go", "between", "ok gone on"]
    story.end_step().end()
    assert said(story.plain_turn("next").history.messages("r3")) == ["go", "gone on"]
    assert said(story.history.messages("r1")) == said(story.history.messages())


def test_a_successor_reads_its_own_turn_to_the_last_anchor() -> None:
    story = Story().start("go").step().says("", ["a"])
    story.tool("a")
    story.end_step().step(2).says("half").end_step()
    story.pause()
    replay = story.history.replay("r1")
    assert "half" not in said(replay.messages)
    story.go_on("r1", "handoff")
    assert story.history.messages("r1'") == replay.messages
    assert story.state.lineage_fault("r1'") is None
    story.step(3).says("the other half").end_step().end()
    assert said(story.history.messages("r1'"))[-1] == "the other half"
    assert said(story.history.messages()) == said(story.history.messages("r1'"))


def test_what_nothing_was_hidden_for_is_cut_with_the_lineage() -> None:
    """A handoff that was given up hides nothing; a continuation of its successor does."""
    story = Story().start("go").step().says("half").end_step()
    story.pause()
    claim = story.claim("r1", "handoff", replay_through_seq=story.seq - 1)
    story.admit(claim, "claim_repair").end("failed")
    assert said(story.history.messages()) == ["go", "half"]
    replay = story.history.replay("r1'")
    assert said(replay.messages) == ["go"]
    assert story.go_on("r1'").history.messages("r2") == replay.messages


# ---------------------------------------------------------------- outcomes


def unknown(story: Story) -> int:
    story.start("go").step().says("", ["a"])
    seq = story.tool("a", "unknown", "idempotent")
    story.end_step()
    return seq


def test_an_outcome_takes_its_place_in_the_replay_whatever_was_asked_since() -> None:
    story = Story()
    seq = unknown(story)
    anchor = story.seq - 2
    story.end("interrupted").plain_turn("between").outcome(seq)
    assert "outcome" not in " ".join(said(story.history.messages()))
    before = story.history.messages()
    replay = story.history.replay("r1")
    assert said(replay.messages)[-1].startswith("outcome")
    assert replay.through_seq == anchor
    assert story.history.messages() == before
    story.go_on("r1")
    assert story.history.messages("r3") == replay.messages
    assert replay.messages == story.history.messages()[:3]
    assert len(story.history.messages()) == 5


def test_a_rerun_behind_the_claim_takes_its_place_too() -> None:
    story = Story()
    seq = unknown(story)
    story.end("interrupted").plain_turn("between").go_on("r1").outcome(seq, "rerun")
    assert said(story.history.messages("r3"))[-1].startswith("outcome")
    assert len(story.history.messages("r3")) == 3


def test_a_rerun_for_a_lineage_of_several_runs() -> None:
    story = Story()
    seq = unknown(story)
    story.end("interrupted").go_on("r1").end("failed").plain_turn("between").go_on("r2").outcome(seq, "rerun")
    assert said(story.history.messages("r4"))[-1].startswith("outcome")


@pytest.mark.parametrize("at", ["before", "after"])
def test_an_outcome_behind_the_first_step_of_the_target_is_told(at: str) -> None:
    story = Story()
    seq = unknown(story)
    story.end("interrupted").go_on("r1")
    if at == "before":
        story.outcome(seq)
    story.step().says("going on").end_step()
    if at == "after":
        story.outcome(seq)
    story.user("well?", "steering")
    told = [message for message in said(story.history.messages("r2")) if "turned out" in message]
    assert bool(told) == (at == "after")
    assert_legal(story.history.messages("r2"))


# ---------------------------------------------------------------- odd claims


@pytest.mark.parametrize("through", [-5, 0, 10_000])
def test_a_claim_may_say_anything(through: int) -> None:
    story = Story().start("go").step().says("said").end_step()
    story.end("interrupted")
    story.admit(story.claim("r1", replay_through_seq=through))
    assert_legal(story.history.messages())
    assert_legal(story.history.messages("r2"))
    replay = story.history.replay("r2")
    assert replay.through_seq == (2 if through == 10_000 else None)


def test_claims_in_a_circle_end() -> None:
    story = Story().plain_turn("one")
    story.plain_turn("two")
    for source, target in (("r1", "r2"), ("r2", "r1")):
        segments = story.state.segments(source)[-1:]
        story.claim(source, segments=segments, target_run=story.run(target, "tX"), claim_id=f"c{target}")
    assert_legal(story.history.messages("r1"))
    assert_legal(story.history.replay("r2").messages)
    assert story.state.lineage_fault("r1") is not None
    assert len(story.state.segments("r1")) <= 3


# ---------------------------------------------------------------- at any time


def expected(story: Story, source: str) -> list[dict[str, Any]]:
    """The replay as an ordinary history: of the events that belong to it, outcomes right behind their results."""
    runs = [segment["run_id"] for segment in story.state.segments(source)]
    opened = story.first[runs[0]]
    cut = {*runs, *(event.data["source"]["run_id"] for event in story.events if event.type == "continuation/claim")}
    anchored = [event for event in story.events if event.type in ("user/message", "tool/result")]
    anchors = {event.data["run_id"]: event.seq for event in anchored}
    outcomes = {event.data["call_seq"]: event for event in story.events if event.type == "tool/outcome"}
    calls = {event.data["operation_id"]: event.seq for event in story.events if event.type == "tool/call"}
    kept: list[Event] = []
    for event in story.events:
        run_id = event.data.get("run_id")
        lineage = run_id in runs
        if event.type == "tool/outcome" and event.seq > opened:
            continue
        shown = run_id not in cut or event.seq <= anchors.get(run_id, -1)
        if shown and (lineage or event.seq < opened):
            kept.append(event)
            if lineage and event.type == "tool/result" and (seq := calls[event.data["operation_id"]]) in outcomes:
                kept.append(outcomes[seq])
    return folded(kept).messages()


def play(draw: Any, story: Story, step: int) -> int:
    """Steps of the current run; the number of the last one."""
    for _ in range(draw(st.integers(0, 2))):
        step += 1
        calls = [f"c{step}{i}" for i in range(draw(st.integers(0, 2)))]
        story.step(step).says(draw(st.sampled_from(["", f"words {story.seq}"])), calls)
        for call in calls:
            story.tool(call, draw(st.sampled_from(["ok", "error", "unknown"])))
        story.end_step()
        if draw(st.integers(0, 3)) == 3:
            story.user(f"steering {story.seq}", "steering")
    return step


def close(draw: Any, story: Story, step: int) -> None:
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        source = story.ids["run_id"]
        story.pause()
        go_on(story, source, "handoff")
        step = play(draw, story, step)
    story.end(draw(st.sampled_from(ENDS)))


def go_on(story: Story, source: str, purpose: str) -> None:
    before = story.history.messages()
    replay = story.history.replay(source)
    assert story.history.messages() == before
    assert folded(story.events).replay(source) == replay
    runs = [segment["run_id"] for segment in story.state.segments(source)]
    if all(event.data["run_id"] in runs for event in story.events if event.type == "tool/outcome"):
        assert replay.messages == expected(story, source)
    claim = story.claim(source, purpose)
    assert story.history.messages(story.ids["run_id"]) == replay.messages
    story.admit(claim)
    assert story.history.messages(story.ids["run_id"]) == replay.messages
    assert folded(story.events).messages(story.ids["run_id"]) == replay.messages
    assert_legal(replay.messages)
    assert replay.messages[-1]["role"] != "assistant"
    assert story.state.lineage_fault(story.ids["run_id"]) is None


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_a_claimed_run_reads_what_was_replayed(data: st.DataObject) -> None:
    draw, story = data.draw, Story()
    claimed: set[str] = set()
    for _ in range(draw(st.integers(1, 7))):
        free = [run for run in story.first if run not in claimed and story.history.replay(run).through_seq is not None]
        what = draw(st.sampled_from(["turn", "resume", "outcome"]))
        if what == "outcome":
            if story.unknown:
                story.outcome(draw(st.sampled_from(sorted(story.unknown))))
        elif what == "resume" and free:
            source = draw(st.sampled_from(free))
            claimed.add(source)
            go_on(story, source, "resume")
            close(draw, story, play(draw, story, 0))
        else:
            story.start(f"turn {story.seq}")
            close(draw, story, play(draw, story, 0))
    assert not story.state.problems
    assert_legal(story.history.messages())
