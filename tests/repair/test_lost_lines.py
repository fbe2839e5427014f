"""Whatever is lost of a session with continuations, or made up: once it is salvaged, it takes a message."""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from maka.journal.events import Draft
from maka.journal.state import State
from maka.repair.plan import Diagnosis, diagnose, plan_repair
from maka.runtime.continuation import drafts
from support.lineages import Story
from support.nonsense import Nonsense


def lives() -> Story:
    """Three runs of one lineage, turns between them, a handoff, and a claim whose run was just started."""
    story = Story().plain_turn()
    story.start().step().says("", ["a"])
    story.tool("a", "unknown")
    story.end_step().end("failed")
    story.go_on("r2").step().says("more").end_step().end("aborted")
    story.plain_turn()
    story.go_on("r3").end("interrupted")
    story.start().step().says().end_step()
    story.pause().go_on("r6", "handoff").step(2).says().end_step().end("failed")
    story.go_on("r6'")
    return story


RAW = lives().raw()
LINES = RAW.count(b"\n")


def without(raw: bytes, lost: set[int]) -> bytes:
    """Somebody has written over these lines."""
    lines = raw.splitlines(keepends=True)
    return b"".join(b"#" * (len(line) - 1) + b"\n" if n in lost else line for n, line in enumerate(lines))


def salvaged(raw: bytes) -> Diagnosis:
    plan = plan_repair(diagnose(raw, "s1"), salvage=True)
    assert plan.refused is None
    kept = raw if plan.cut is None else raw[: plan.cut]
    return diagnose(kept + plan.batch, "s1")


def begin(state: State) -> Draft:
    """What a message begins the next turn with."""
    run: dict[str, Any] = {
        "run_id": "rN",
        "invocation_id": "iN",
        "turn_id": "tN",
        "backend": "b",
        "model": "m",
        "cwd": "/",
    }
    run |= {"permission_mode": "ask", "created_at": 1, "root": {"kind": "user"}}
    ids = {key: run[key] for key in ("turn_id", "run_id", "invocation_id")}
    return Draft("turn/start", {**ids, "turn": state.turns.last + 1, "run": run})


def takes_a_message(raw: bytes) -> None:
    after = salvaged(raw)
    assert after.verdict == "healthy", [(finding.code, finding.message) for finding in after.findings]
    state = after.state
    for turn in state.turns.open.values():
        if turn.rest == "paused" or turn.newest_run not in state.runs.live:
            return  # its successor comes before any message; or another turn has the same run
    if (claim_id := drafts.unfinished(state)) is None:
        state.check(begin(state))
    else:
        assert drafts.settle(state, claim_id), "a message settles it first"
    for row in state.continuation_rows():
        assert row["state"] != "repair_required", row


@pytest.mark.parametrize("upto", range(2, LINES + 1))
def test_any_line_and_any_end(upto: int) -> None:
    cut = b"".join(RAW.splitlines(keepends=True)[:upto])
    takes_a_message(cut)
    takes_a_message(without(RAW, {upto - 1}))
    takes_a_message(without(cut, {max(1, upto - 2)}))


@settings(deadline=None)
@given(st.sets(st.integers(1, LINES - 1), max_size=6), st.integers(2, LINES))
@example(set(range(20, 30)), LINES)
def test_any_lines_at_once(lost: set[int], upto: int) -> None:
    takes_a_message(without(b"".join(RAW.splitlines(keepends=True)[:upto]), lost))


@pytest.mark.parametrize("seed", range(60))
def test_claims_by_chance(seed: int) -> None:
    for wild in (0.0, 0.3):
        takes_a_message(Nonsense(seed, 10 + seed, wild).raw())
