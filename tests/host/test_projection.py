"""The snapshot of a session: the fold, and what this process knows beside it."""

from typing import Any

import pytest

from maka.journal.digests import digest_of
from maka.journal.events import Draft
from maka.runtime.host import projection
from support.lineages import Story

QUESTION = {"questions": [{"id": "q", "question": "Which?", "options": [{"label": "This"}, {"label": "That"}]}]}


def content(text: str) -> list[dict[str, Any]]:
    return [{"kind": "text", "text": text}]


def admit(story: Story, turn_id: str = "t1", run_id: str = "r1") -> int:
    message = {"content": content("hi")}
    data = {"turn_id": turn_id, "run_id": run_id, "message_id": f"m-{turn_id}", "previous_root_turn_id": None}
    more = {"execution": {"kind": "root"}, "input": message, "input_digest": digest_of(message)}
    return story.add("turn/admitted", {**data, **more})


def shown(story: Story, *, running: str | None = None, unavailable: str | None = None) -> dict[str, Any]:
    return projection.snapshot(story.state, "s1", running=running, unavailable=unavailable)


def turn(story: Story, turn_id: str = "t1", running: str | None = None) -> dict[str, Any]:
    found = projection.turn(story.state, "s1", turn_id, running=running)
    assert found is not None
    return found


def accept(story: Story, message_id: str, turn_id: str | None = None) -> int:
    data = {"message_id": message_id, "placement": "next_turn", "disposition": "followup", "content": content("more")}
    if turn_id is not None:
        data |= {"placement": "current_turn", "disposition": "steering", "turn_id": turn_id}
    return story.add("message/accepted", {**data, "digest": digest_of({"content": content("more")})})


def ask(story: Story, question: dict[str, Any] = QUESTION) -> int:
    data = {"interaction_id": "i1", **story.ids, "kind": "question", "request": question}
    return story.add("interaction/requested", data)


def test_a_session_without_a_turn_is_idle() -> None:
    story = Story()
    snapshot = shown(story)
    assert snapshot["root_turn"] is None
    assert snapshot["session"]["status"] == "idle"
    assert snapshot["session"]["session_id"] == "s1"
    assert snapshot["session"]["last_activity"] == story.ts
    assert snapshot["queue"] == {"revision": 0, "steering": [], "followup": []}
    assert snapshot["interactions"] == {"pending": []}


def test_the_settings_of_a_session_are_shown_as_they_stand() -> None:
    story = Story()
    patch = {
        "name": "Work",
        "labels": ["a"],
        "flagged": True,
        "archived": True,
        "model": "m2",
        "permission_mode": "ask",
    }
    story.add("session/updated", {"patch": {**patch, "connection": "secret", "x-own": 1}})
    session = shown(story)["session"]
    assert {key: session[key] for key in patch} == patch
    assert "connection" not in session
    assert "x-own" not in session


def test_a_setting_that_is_too_long_is_not_shown() -> None:
    story = Story()
    story.add("session/updated", {"patch": {"name": "x" * 17_000, "model": "x" * 1_000}})
    session = shown(story)["session"]
    assert session["name"] is None
    assert session["model"] == "x" * 1_000


def stories() -> dict[str, tuple[Story, str, str]]:
    """Name → the story, the status of its newest root turn, the status of its session."""

    def story() -> Story:
        return Story()

    made = {name: story() for name in ("admitted", "created", "running", "asking", "paused", "doubtful", "completed")}
    admit(made["admitted"])
    admit(made["created"])
    made["created"].add("run/created", {"run": made["created"].run("r1", "t1")})
    admit(made["running"])
    made["running"].start()
    made["asking"].start()
    ask(made["asking"])
    made["paused"].start().pause()
    made["doubtful"].start().end("interrupted").go_on("r1")
    made["completed"].plain_turn()
    return {
        "admitted": (made["admitted"], "admitted", "running"),
        "created": (made["created"], "created", "running"),
        "running": (made["running"], "running", "running"),
        "asking": (made["asking"], "waiting_for_user", "waiting_for_user"),
        "paused": (made["paused"], "paused", "paused"),
        "doubtful": (made["doubtful"], "indeterminate", "indeterminate"),
        "completed": (made["completed"], "completed", "idle"),
        "aborted": (Story().start().end("aborted"), "cancelled", "idle"),
        "failed": (Story().start().end("failed"), "failed", "idle"),
        "interrupted": (Story().start().end("interrupted"), "failed", "idle"),
    }


@pytest.mark.parametrize("name", stories())
def test_how_a_root_turn_and_its_session_stand(name: str) -> None:
    story, status, of_session = stories()[name]
    snapshot = shown(story)
    root = snapshot["root_turn"]
    assert root["status"] == status
    assert (root["session_id"], root["turn_id"]) == ("s1", "t2" if name == "doubtful" else "t1")
    assert snapshot["session"]["status"] == of_session
    assert root == turn(story, root["turn_id"])


def test_a_session_whose_journal_failed_says_why() -> None:
    snapshot = shown(Story().start(), unavailable="the disk fails")
    assert (snapshot["session"]["status"], snapshot["session"]["message"]) == ("unavailable", "the disk fails")
    assert "message" not in shown(Story())["session"]


def test_of_a_continuation_that_this_process_runs_nothing_is_in_doubt() -> None:
    story = Story().start().end("interrupted")
    story.go_on("r1")
    assert turn(story, "t2", running="t2")["status"] == "running"
    assert shown(story, running="t2")["session"]["status"] == "running"
    assert turn(story, "t2", running="another")["status"] == "indeterminate"
    # One that was handed over is, until its successor runs.
    assert turn(Story().start().pause(), "t1", running="t1")["status"] == "paused"


def test_a_turn_has_its_newest_run_and_the_number_of_what_made_it_stand_so() -> None:
    story = Story()
    seq = admit(story)
    assert (turn(story)["run_id"], turn(story)["revision"]) == ("r1", seq)
    story.start().step().says()
    assert turn(story)["revision"] == seq + 1
    story.end_step().pause()
    assert (turn(story)["run_id"], turn(story)["revision"]) == ("r1", story.seq - 1)
    story.go_on("r1", "handoff")
    assert (turn(story)["run_id"], turn(story, running="t1")["revision"]) == ("r1'", story.seq - 1)
    story.step().says().end_step().end()
    assert (turn(story)["status"], turn(story)["revision"]) == ("completed", story.seq - 2)


def test_how_a_turn_ended_says_why() -> None:
    story = Story().start()
    reason = {"kind": "failed", "failure_class": "provider_quota", "message": "there is no credit left"}
    story.add("turn/end", {**story.ids, "reason": reason})
    story.add("run/settled", {"run_id": "r1"})
    said = turn(story)
    assert said["reason"] == reason
    assert (said["failure_class"], said["message"]) == ("provider_quota", "there is no credit left")
    completed = turn(Story().plain_turn())
    assert completed["reason"] == {"kind": "completed"}
    assert "failure_class" not in completed
    assert "message" not in completed


def test_a_turn_whose_run_is_not_settled_runs() -> None:
    """What comes next waits for that, so who watches does too."""
    story = Story().start().end(settle=False)
    assert turn(story)["status"] == "running"
    assert "reason" not in turn(story)


def test_there_is_no_turn_that_nobody_began() -> None:
    assert projection.turn(Story().state, "s1", "nobody", running=None) is None
    assert projection.no_turn("s1", "nobody").code == "not_found"


def test_what_waits_is_shown_where_it_will_go() -> None:
    story = Story().start()
    seqs = [accept(story, "f1"), accept(story, "s1", "t1"), accept(story, "f2")]
    queue = shown(story)["queue"]
    common = {"content": content("more")}
    steering = {"message_id": "s1", "turn_id": "t1", "placement": "current_turn", **common, "seq": seqs[1]}
    assert queue["steering"] == [steering]
    assert [entry["message_id"] for entry in queue["followup"]] == ["f1", "f2"]
    assert queue["followup"][0] == {"message_id": "f1", "placement": "next_turn", **common, "seq": seqs[0]}
    assert queue["revision"] == seqs[2]
    # The turn is over: what it did not take is a follow-up, the first.
    story.end()
    assert [entry["message_id"] for entry in shown(story)["queue"]["followup"]] == ["s1", "f1", "f2"]


def test_what_steers_a_turn_that_is_about_to_begin_is_shown_as_that() -> None:
    story = Story()
    admit(story)
    accept(story, "s1", "t1")
    assert [entry["message_id"] for entry in shown(story, running="t1")["queue"]["steering"]] == ["s1"]
    assert shown(story)["queue"]["steering"] == []


def test_what_a_person_is_asked_is_shown_until_it_is_answered() -> None:
    story = Story().start()
    ask(story)
    [row] = shown(story)["interactions"]["pending"]
    assert row["session_id"] == "s1"
    assert (row["interaction_id"], row["turn_id"], row["run_id"]) == ("i1", "t1", "r1")
    assert (row["kind"], row["request"]) == ("question", QUESTION)
    assert "truncated" not in row
    story.add("interaction/resolved", {"interaction_id": "i1", "outcome": {"kind": "closure", "reason": "user_stop"}})
    assert shown(story)["interactions"]["pending"] == []


def test_a_request_that_is_too_long_is_not_shown() -> None:
    story = Story().start()
    question = {"questions": [{**QUESTION["questions"][0], "question": "x" * 17_000}]}
    ask(story, question)
    [row] = shown(story)["interactions"]["pending"]
    assert (row["request"], row["truncated"]) == (None, True)


def test_a_draft_is_no_part_of_it() -> None:
    """What is shown is of the fold alone: the same fold is shown the same."""
    story = Story().start()
    before = shown(story)
    story.state.check(Draft("session/note", {"kind": "test", "text": "a note"}))
    assert shown(story) == before
