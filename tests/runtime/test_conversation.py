"""What the loop knows of a session before its next turn."""

from typing import Any

from maka.journal.events import Event
from maka.runtime.conversation import Conversation
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


def test_turns_and_requests_are_counted_wherever_they_come_from() -> None:
    of = conversation(("turn/start", {"turn": 1}), ("continuation/claim", {"turn": 2}), ("turn/start", {"turn": "x"}))
    assert (of.turns, of.requested) == (2, False)
    of.observe(Event(9, 0, "request/header", {}, ""))
    assert of.requested
