"""Why turns are not copied into another session."""

import pytest

from maka.runtime.handoff.copying import refusal
from support.folds import events
from support.lineages import Story


def code(story: Story, *turn_ids: str) -> str:
    return refusal(story.state, turn_ids).code


def told() -> Story:
    """t1 and t2 are plain; t3 was interrupted, and t4 goes on from it; t5 was handed over, t6 waits for a successor."""
    story = Story().plain_turn().plain_turn()
    story.start().step().says().end_step().end("interrupted")
    story.go_on("r3").step().says().end_step().end()
    story.start().step().says().end_step().pause().go_on("r5", "handoff").end()
    return story.start().step().says().end_step().pause()


@pytest.mark.parametrize("turn_id", ["t4", "t5", "t6"])
def test_a_turn_with_a_claim_a_start_or_a_pause_cannot_be_rewritten(turn_id: str) -> None:
    story = told()
    refused = refusal(story.state, ["t1", turn_id])
    assert refused.code == "branch_runtime_fact_rewrite_unsupported"
    assert "fork the session" in str(refused)
    assert story.state.problems == []


def test_a_run_that_is_only_claimed_counts() -> None:
    story = Story().start().end("interrupted")
    story.claim("r1")
    story.add("run/created", {"run": story.run("r2", "t2")})
    start = {"turn_id": "t2", "run_id": "r2", "invocation_id": "i", "turn": 2, "run": story.run("r2", "t2")}
    story.add("turn/start", start)
    assert code(story, "t2") == "branch_runtime_fact_rewrite_unsupported"


def test_a_run_that_was_only_gone_on_from_does_not() -> None:
    assert code(told(), "t3") == "copy_not_offered"


def test_any_other_turn_is_not_copied_either() -> None:
    assert code(told(), "t1", "t2") == "copy_not_offered"
    assert code(told()) == "copy_not_offered"


def test_an_unknown_turn_comes_first() -> None:
    story = told()
    refused = refusal(story.state, ["t5", "t9"])
    assert (refused.code, "t9" in str(refused)) == ("turn_unknown", True)


def test_what_a_fork_has_inherited_counts() -> None:
    parent = Story().start().step().says().end_step().pause().go_on("r1", "handoff").end().plain_turn()
    parent.start().end("interrupted").go_on("r3").end()
    child = Story()
    for event in parent.events:
        child.state.inherit(event)
    for event in events(child):
        child.state.apply(event)
    assert child.state.continuations.claims == {}
    assert code(child, "t1") == "branch_runtime_fact_rewrite_unsupported"
    assert code(child, "t4") == "branch_runtime_fact_rewrite_unsupported"
    assert code(child, "t2", "t3") == "copy_not_offered"
