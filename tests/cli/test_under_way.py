"""What a writer that lives has open is shown as under way; once it is dead, as cut off."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from maka.cli import conversation, text, under_way
from maka.journal.lock import SessionLock
from support.builder import Builder

Run = Callable[..., Any]

REQUEST = {"call_id": "c2", "name": "rm", "arguments": {"path": "x"}, "reason": "it removes"}


def asked(journal: Builder, kind: str, request: dict[str, Any]) -> Builder:
    journal.add("interaction/requested", {**journal.ids, "interaction_id": "i1", "kind": kind, "request": request})
    return journal


def in_a_call() -> Builder:
    journal = Builder(session_id="s").plain_turn("before").start().step().says("Let me see.", ["c1"])
    journal.call("c1", name="bash")
    return journal


def at_a_permission() -> Builder:
    return asked(Builder(session_id="s").start().step().says("Shall I?", ["c2"]), "permission", REQUEST)


def at_a_question() -> Builder:
    journal = Builder(session_id="s").start().step()
    block = {"kind": "tool_call", "call_id": "c3", "name": "ask_user", "arguments": "{}"}
    journal.add(
        "assistant/message",
        {**journal.ids, "step": 1, "message_id": "m", "content": [block], "stop_reason": "tool_use"},
    )
    journal.call("c3", name="ask_user", recovery="read_only")
    questions = [{"id": "q1", "question": "Which colour?", "options": [{"label": "Red"}, {"label": "Blue"}]}]
    return asked(journal, "question", {"questions": questions})


#: What is open → how its turn and its call stand as long as the writer lives, in a table and in the conversation.
OPEN: dict[str, tuple[Callable[[], Builder], str, str, str]] = {
    "call": (in_a_call, "runs", "tool: runs", "… still running  c1"),
    "permission": (at_a_permission, "waits for an answer", "tool: waits for an answer", "… waits for an answer  c2"),
    "question": (at_a_question, "waits for an answer", "ask_user: waits for an answer", "… waits for an answer  c3"),
    "delta": (lambda: Builder(session_id="s").start().step().delta("So f"), "runs", "", "it is being written"),
}


@pytest.mark.parametrize("kind", OPEN)
def test_what_a_living_writer_has_open_is_under_way(maka_: Run, tmp_path: Path, kind: str) -> None:
    make, status, call, said = OPEN[kind]
    path = make().write(tmp_path)
    dead = maka_("journal", "show", path)
    assert "  interrupted" in dead.out
    with SessionLock.acquire(path.parent):
        shown = maka_("journal", "show", path)
        inspected = maka_("journal", "inspect", path)
        doc = maka_("journal", "inspect", path, "--json").json
    assert shown.code == 0
    assert f"  {status}  " in shown.out
    assert said in shown.out
    for word in ("interrupted", "unknown", "not_started", "retry"):
        assert word not in shown.out
    assert inspected.code == 1
    assert f"  {status}  " in inspected.out
    assert call in inspected.out
    assert "in use  a writer is at work" in inspected.out
    for word in ("interrupted", "unknown", "not_started", "repair`", "maka journal repair", "would append"):
        assert word not in inspected.out
    # Programs are told as before, and beside it what is under way.
    assert (doc["verdict"], doc["turns"][-1]["status"]) == ("interrupted", "interrupted")
    [turn] = doc["live"]["turns"]
    assert turn["status"] == ("waiting_for_user" if status.startswith("waits") else "running")
    assert maka_("journal", "inspect", path, "--json").json["live"] is None
    assert maka_("journal", "show", path) == dead


def test_what_waits_for_an_answer_is_shown_and_how_it_is_given(maka_: Run, tmp_path: Path) -> None:
    path = at_a_permission().write(tmp_path)
    with SessionLock.acquire(path.parent):
        out = maka_("journal", "show", path).out
    assert "? may `rm` run with " in out
    assert f"answer it with `maka chat --session {path}`" in out
    assert "answer it" not in maka_("journal", "show", path).out


def test_a_turn_that_is_admitted_is_about_to_begin() -> None:
    pending = [
        {"type": "turn/start", "data": {"turn_id": "t"}},
        {"type": "turn/end", "data": {"turn_id": "t"}},
    ]
    assert under_way.live(pending, [], [])["turns"] == [{"turn_id": "t", "status": "admitted", "calls": []}]


def test_a_question_that_nobody_answered_may_have_done_nothing(maka_: Run, tmp_path: Path) -> None:
    path = at_a_question().write(tmp_path)
    for ran in (maka_("journal", "show", path), maka_("journal", "repair", path), maka_("journal", "show", path)):
        assert ran.code == 0
    assert "← not answered  c3\n    The turn ended before the model was given an answer to this question." in ran.out
    assert "blindly" not in ran.out
    assert "ask_user: not answered" in maka_("journal", "inspect", path).out
    assert "blindly" in str(maka_("journal", "show", path, "--json").json)


def test_a_question_is_no_other_call() -> None:
    block = {"kind": "tool_result", "call_id": "c", "state": "unknown", "content": []}
    entry = {"role": "tool", "seq": 1, "turn_id": "t", "content": [block, 5]}
    assert "← unknown  c" in "\n".join(conversation.render({"entries": [entry]}, text.plain))
