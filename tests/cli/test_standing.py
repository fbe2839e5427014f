"""How a turn ended is said in one sentence, with what goes on from there and nothing that would fail again."""

from pathlib import Path
from typing import Any

import pytest

from maka.cli.documents import Answer
from maka.cli.standing import left, told
from maka.runtime.errors import BackendUnknown, describe
from support.builder import Builder


def said(reason: dict[str, Any], root: Path) -> str | None:
    turn = {"turn_id": "t", "run_id": "r", "status": reason["kind"], "reason": reason}
    return told(Answer({"session_id": "s", "turn": turn, "text": None}, 1), root, "/r", None).refusal


GO_ON = "`maka run --session s --root /r TEXT`"
LACKS = "no backend 'b' is registered; register it"


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        ({"kind": "completed"}, None),
        ({"kind": "aborted", "source": "user"}, f"ended as `aborted`: by user; go on with {GO_ON}"),
        (
            {"kind": "failed", "failure_class": "start_failed", "message": LACKS},
            f"ended as `failed`: {LACKS}; then say it again with `maka run --session s --root /r --backend NAME TEXT`",
        ),
        (
            {"kind": "failed", "failure_class": "start_failed", "message": "there is no key; set it"},
            f"ended as `failed`: there is no key; set it; then say it again with {GO_ON}",
        ),
        ({"kind": "interrupted"}, f"ended as `interrupted`; go on with {GO_ON}"),
    ],
)
def test_what_is_said(tmp_path: Path, reason: dict[str, Any], sentence: str | None) -> None:
    assert said(reason, tmp_path) == (None if sentence is None else f"the turn {sentence}")


def test_what_is_a_sentence_already_has_no_class_before_it() -> None:
    assert describe(BackendUnknown("no backend 'b' is registered"), typed=True) == "no backend 'b' is registered"
    assert describe(OSError("no key"), typed=True) == "OSError: no key"
    assert describe(GeneratorExit(), typed=True) == "GeneratorExit"


TEXT = [{"kind": "text", "text": "hi"}]


def promised(builder: Builder, *, queued: bool) -> Builder:
    """With a message that is queued, or whose turn was admitted."""
    if queued:
        how = {"message_id": "m9", "placement": "next_turn", "disposition": "followup", "content": TEXT}
        builder.add("message/accepted", {**how, "digest": "0" * 64})
        return builder
    data: dict[str, Any] = {"turn_id": "t9", "run_id": "r9", "message_id": "m9", "previous_root_turn_id": "t1"}
    data["execution"] = {"kind": "root"}
    builder.add("turn/admitted", {**data, "input": {"content": TEXT}, "input_digest": "0" * 64})
    return builder


@pytest.mark.parametrize(("queued", "turns"), [(False, {"t9"}), (False, set[str]()), (True, set[str]())])
def test_what_was_accepted_is_not_to_be_said_again(tmp_path: Path, queued: bool, turns: set[str]) -> None:
    promised(Builder("s").plain_turn(), queued=queued).write(tmp_path)
    answer = left("s", turns, "m9", tmp_path, "/r", "a:b")
    what = "the message was accepted and waits" if queued else "the turn was accepted and has not begun"
    start = "`maka host start --root /r --app a:b` starts one"
    shows = "`maka session show s --root /r` shows it"
    assert answer.refusal == f"{what}, as the journal says; the next host runs it, and {start}; {shows}"
    assert answer.code == 1
    status = None if queued else {"turn_id": "t9", "run_id": "r9", "status": "admitted", "reason": {"kind": "admitted"}}
    assert answer.doc["turn"] == status


def test_what_was_accepted_and_has_ended_is_told_by_its_end(tmp_path: Path) -> None:
    builder = promised(Builder("s").plain_turn(), queued=False)
    run = builder.run("r9", "t9")
    builder.add("run/created", {"run": run})
    builder.add("turn/start", {"turn_id": "t9", "run_id": "r9", "invocation_id": "i", "turn": 2, "run": run})
    builder.write(tmp_path)
    answer = left("s", set(), "m9", tmp_path, None, None)
    assert answer.refusal is not None
    assert "the turn ended as `interrupted`, as the journal says" in answer.refusal


def test_what_nobody_has_accepted_is_said_again(tmp_path: Path) -> None:
    Builder("s").plain_turn().write(tmp_path)
    answer = left("s", {"t9"}, "m9", tmp_path, None, None)
    assert answer.code == 2
    assert answer.refusal == "the turn has not begun, as the journal says; `maka run --session s TEXT` says it again"
