"""What opens a turn, and what ends one from where it stands."""

from typing import Any

from maka.journal.codec import check_shape
from maka.journal.events import Event
from maka.runtime.conversation import Conversation
from maka.runtime.progress import Call, Progress, beginning, ending, settled
from support.loops import header

TEXT = [{"kind": "text", "text": "hello"}]


def opened(**more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    made = header(cwd="/work")
    conversation = Conversation([Event(0, 0, made.type, made.data, "")])
    ids: dict[str, Any] = {"turn_id": "t", "run_id": "r", "invocation_id": "v", "message_id": "m"}
    drafts = beginning(conversation, turn=1, **ids, content=TEXT, created_at=5, **more)
    for draft in drafts:
        check_shape(draft)
    start, message = drafts
    assert (start.type, message.type) == ("turn/start", "user/message")
    return start.data, message.data


def test_a_turn_is_opened_by_a_user() -> None:
    start, message = opened()
    assert start["turn"] == 1
    assert list(start["run"]) == [
        *("run_id", "invocation_id", "turn_id", "backend", "model", "cwd", "permission_mode", "created_at", "root")
    ]
    assert start["run"]["root"] == {"kind": "user"}
    assert message == {"message_id": "m", "turn_id": "t", "run_id": "r", "content": TEXT, "source": {"kind": "user"}}


def test_what_else_a_turn_may_be_opened_with() -> None:
    quotes, attachments = [{"text": "said"}], [{"name": "a", "media_type": "text/plain", "ref": "x", "bytes": 1}]
    start, message = opened(
        max_steps=3, root={"kind": "goal"}, workspace_identity={"tree": "1"}, quotes=quotes, attachments=attachments
    )
    run = start["run"]
    assert (run["max_steps"], run["root"], run["workspace_identity"]) == (3, {"kind": "goal"}, {"tree": "1"})
    keys = list(run)
    assert keys.index("cwd") < keys.index("workspace_identity") < keys.index("permission_mode")
    assert (message["quotes"], message["attachments"]) == (quotes, attachments)


def test_a_call_on_disk_is_unknown_and_one_that_is_not_is_cancelled() -> None:
    calls = [Call("a", "x", "{}", "op", 7, "read_only"), Call("b", "x", "{}"), Call("c", "x", "{}", answered=True)]
    progress = Progress("t", "r", step=2, step_open=True, calls=calls)
    drafts = ending(progress, {"kind": "aborted", "source": "user"})
    assert [draft.type for draft in drafts] == ["tool/result", "tool/result", "step/end", "turn/end", "session/note"]
    first, second = (draft.data for draft in drafts[:2])
    assert (first["state"], first["call_seq"], first["operation_id"]) == ("unknown", 7, "op")
    assert "read_only" in first["content"][0]["text"]
    assert (second["state"], second["error"]["code"]) == ("cancelled", "TOOL_ABORTED_BEFORE_DISPATCH")
    assert "operation_id" not in second


def test_a_run_is_settled_with_what_it_left_behind() -> None:
    progress = Progress("t", "r")
    assert settled(progress).data == {"run_id": "r"}
    progress.cleanup += ["one", "two"]
    assert settled(progress).data == {"run_id": "r", "cleanup": {"error": "one; two"}}
