"""How a turn ended is said in one sentence, with what goes on from there and nothing that would fail again."""

from pathlib import Path
from typing import Any

import pytest

from maka.cli.documents import Answer
from maka.cli.standing import told
from maka.runtime.errors import BackendUnknown, describe


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
            f"ended as `failed`: {LACKS}; then say it again with {GO_ON}",
        ),
        ({"kind": "interrupted"}, f"ended as `interrupted`; go on with {GO_ON}"),
    ],
)
def test_what_is_said(tmp_path: Path, reason: dict[str, Any], sentence: str | None) -> None:
    assert said(reason, tmp_path) == (None if sentence is None else f"the turn {sentence}")


def test_what_is_a_sentence_already_has_no_class_before_it() -> None:
    assert describe(BackendUnknown("no backend 'b' is registered"), typed=True) == "no backend 'b' is registered"
    assert describe(OSError("no key"), typed=True) == "OSError: no key"
