"""What the loop knows of a session before its next turn."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from maka.journal.events import Event
from maka.runtime import conversation as module
from maka.runtime.conversation import Conversation
from support.lineages import Story
from support.loops import ListedMessages


def conversation(*events: tuple[str, dict[str, Any]]) -> Conversation:
    made = [Event(number, 0, type_, data, "") for number, (type_, data) in enumerate(events)]
    return Conversation(made, history=ListedMessages())


HEADER = {"backend": "b", "model": "m", "cwd": "/w", "permission_mode": "ask", "connection": "c", "name": "n"}


def header(of: Conversation, **more: Any) -> dict[str, Any]:
    return of.run_header(run_id="r", invocation_id="i", turn_id="t", created_at=5, root={"kind": "user"}, **more)


def test_a_runs_header_comes_from_the_sessions() -> None:
    made = header(conversation(("session/header", HEADER)), max_steps=3)
    assert list(made.items()) == [
        ("run_id", "r"),
        ("invocation_id", "i"),
        ("turn_id", "t"),
        ("backend", "b"),
        ("model", "m"),
        ("connection", "c"),
        ("cwd", "/w"),
        ("permission_mode", "ask"),
        ("created_at", 5),
        ("root", {"kind": "user"}),
        ("max_steps", 3),
    ]


def test_updates_lie_over_it_and_nonsense_does_not() -> None:
    of = conversation(
        ("session/header", HEADER),
        ("session/updated", {"patch": {"model": "n", "permission_mode": 7, "name": "x"}}),
        ("session/updated", {"patch": {"permission_mode": "bypass"}}),
    )
    assert of.model == "n"
    assert header(of)["permission_mode"] == "bypass"
    assert "name" not in header(of)


def test_a_session_without_a_header_gives_empty_texts() -> None:
    made = header(conversation())
    assert (made["backend"], made["model"], made["cwd"], made["permission_mode"]) == ("", "", "", "")
    assert "connection" not in made


def test_a_request_is_known_wherever_it_comes_from() -> None:
    of = conversation(("turn/start", {"turn": 1}))
    assert not of.requested
    of.observe(Event(9, 0, "request/header", {}, ""))
    assert of.requested


# ---------------------------------------------------------------- for continuations


def test_a_runs_header_is_found_wherever_it_stands() -> None:
    claimed, created, opened = ({"run_id": f"r{n}", "model": f"m{n}"} for n in (1, 2, 3))
    other = {**created, "model": "other"}
    of = conversation(
        ("continuation/claim", {"turn": 1, "target_run": claimed}),
        ("run/created", {"run": created}),
        ("continuation/claim", {"turn": 1, "target_run": other}),
        ("turn/start", {"turn": 2, "run": opened}),
        ("turn/start", {"turn": 3, "run": {"run_id": 7}}),
    )
    assert [of.header_of(f"r{n}") for n in (1, 2, 3, 4)] == [claimed, created, opened, None]
    of.observe(Event(9, 0, "run/created", {"run": {**claimed, "model": "as created"}}, ""))
    assert (of.header_of("r1") or {})["model"] == "as created"


def test_what_is_given_out_is_the_callers() -> None:
    of = conversation(("run/created", {"run": {"run_id": "r", "root": {}}}))
    (of.header_of("r") or {})["root"]["x"] = 1
    assert of.header_of("r") == {"run_id": "r", "root": {}}


def test_a_run_has_the_composition_that_was_recorded_first() -> None:
    of = conversation(
        ("run/composition", {"run_id": "r", "composition": {"schema": 1}}),
        ("run/composition", {"run_id": "r", "composition": {"schema": 2}}),
    )
    assert of.composition_of("r") == {"schema": 1}
    assert of.composition_of("other") is None


BIG = {"kind": "x" * 600}
#: What a run is told of, by its number, and how many bytes of it are kept for each, a place in a dict aside.
TOLD: dict[str, tuple[Callable[[int], dict[str, Any]], int]] = {
    "run/created": (lambda n: {"run": {"run_id": f"r{n}", "root": BIG}}, len(orjson.dumps(BIG)) + 40),
    "user/message": (lambda n: {"turn_id": f"t{n}", "source": BIG}, len(orjson.dumps(BIG)) + 40),
    "run/composition": (lambda n: {"run_id": f"r{n}", "composition": dict(BIG)}, 0),
}


@pytest.mark.parametrize("type_", TOLD)
def test_of_a_long_session_no_more_is_kept_than_its_text_and_what_is_equal_once(type_: str) -> None:
    data, size = TOLD[type_]
    events, of = [Event(number, 0, type_, data(number), "") for number in range(1_000)], conversation()
    tracemalloc.start()
    try:
        for event in events:
            of.observe(event)
        kept = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, module.__file__)])
    finally:
        tracemalloc.stop()
    # Buffers that are kept as they were made have four kilobytes each.
    assert sum(trace.size for trace in kept.traces) < len(events) * (size + 400)


def test_the_configuration_is_the_newest() -> None:
    without = {key: value for key, value in HEADER.items() if key != "connection"}
    assert "connection" not in conversation(("session/header", without)).configuration()
    of = conversation(("session/header", HEADER), ("session/updated", {"patch": {"model": "n", "cwd": "/v"}}))
    assert of.configuration() == {
        "backend": "b",
        "model": "n",
        "connection": "c",
        "cwd": "/v",
        "permission_mode": "ask",
    }
    assert conversation().configuration()["backend"] == ""


def test_what_a_continuation_is_given() -> None:
    story = Story().start("go").step().says("lost").end_step().end("interrupted").plain_turn("between")
    of = Conversation(story.events)
    replay = of.replay("r1")
    assert replay.messages == [{"role": "user", "content": [{"kind": "text", "text": "go"}]}]
    assert replay.through_seq == 2
    written = len(story.events)
    story.go_on("r1")
    for event in story.events[written:]:
        of.observe(event)
    assert of.messages("r3") == replay.messages
    assert of.messages() != replay.messages


# ---------------------------------------------------------------- head anchors


def anchor(of: Conversation, turn_id: str) -> str | None:
    data = of.head_anchor(turn_id)
    return None if data is None else str(data["content"][0]["text"])


def test_the_message_that_a_turn_began_with_is_its_head_anchor() -> None:
    story = Story().start("first").user("a second one")
    assert anchor(Conversation(story.events), "t1") == "first"
    story.step().says().end_step().user("steered", "steering")
    of = Conversation(story.events)
    assert anchor(of, "t1") == "first"
    assert of.head_anchor("t1") == story.events[2].data
    assert of.head_anchor("t2") is None


def test_it_is_that_of_the_root_run_for_each_successor() -> None:
    story = Story().start("go").step().says().end_step()
    for source in ("r1", "r1'"):
        story.pause().go_on(source, "handoff")
        data = Conversation(story.events).head_anchor("t1") or {}
        assert (data["run_id"], data["content"][0]["text"]) == ("r1", "go")


def test_no_turn_that_is_over_has_one() -> None:
    story = Story().start("one").end()
    of = Conversation(story.events)
    assert of.head_anchor("t1") is None
    for event in story.start("two").events[-2:]:
        of.observe(event)
    assert anchor(of, "t2") == "two"


def test_a_turn_that_began_with_nothing_of_a_user_has_none() -> None:
    story = Story().start("go").end("interrupted").go_on("r1")
    assert Conversation(story.events).head_anchor("t2") is None
    story.user("steered", "steering")
    assert Conversation(story.events).head_anchor("t2") is None


def test_a_fork_has_none_of_its_parents_open_turns() -> None:
    of = Conversation(Story().start("in the parent").events)
    assert anchor(of, "t1") == "in the parent"
    of.observe(Event(0, 0, "session/header", HEADER, ""))
    assert of.head_anchor("t1") is None


def test_a_head_anchor_that_is_given_out_is_the_callers() -> None:
    of = Conversation(Story().start("go").events)
    (of.head_anchor("t1") or {})["content"].clear()
    assert anchor(of, "t1") == "go"
