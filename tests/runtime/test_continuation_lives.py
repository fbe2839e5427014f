"""Turns whose processes are killed several times over, as a user meets it: each life goes on where the last one was.

What the model is given stays legal and holds each message once, and what a tool has done outside is done once.
"""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import maka
from support.legal import assert_legal
from support.lives import SESSION, TEXT, Place, said_by_users
from support.nursery import Nursery

RESUME = ("recover", "plan", "resume")


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery("support.lives") as nursery:
        yield nursery


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def lived(place: Place, nursery: Nursery, *holds: str, **script: Any) -> None:
    """One life after the other, each killed at its point, and looked at."""
    for number, hold in enumerate(holds):
        place.killed(nursery, *(RESUME if number else ("create", "send")), hold=hold, **script)
        place.assert_sound(runs=len(holds), verdicts=("interrupted",))
        place.assert_recovers(runs=len(holds))


def asked(place: Place) -> list[list[dict[str, Any]]]:
    """The messages of each request, oldest first."""
    requests = [noted["messages"] for noted in place.noted("requests")]
    for messages in requests:
        assert_legal(messages)
        assert messages[0]["role"] == "user"
        assert said_by_users(messages) == [TEXT]
    return requests


def states(messages: list[dict[str, Any]]) -> list[str]:
    return [
        block["state"] for message in messages if message["role"] == "tool" for block in message["content"]
    ]  # fmt: skip


def effects(place: Place) -> int:
    return len(place.noted("effects"))


# ---------------------------------------------------------------- where it may be killed


@pytest.mark.parametrize("lives", [1, 2, 4])
def test_killed_while_the_model_speaks(place: Place, nursery: Nursery, lives: int) -> None:
    lived(place, nursery, *["text"] * lives)
    assert place.lived(nursery, *RESUME)[:3] == ["recover:unchanged", "plan:continue", "resume:completed"]
    place.assert_sound()
    requests = asked(place)
    # What was only half said is not said again to the model: each begins at the same place.
    assert [messages == requests[0] for messages in requests] == [True] * (lives + 1) + [False]
    assert (effects(place), place.reasons) == (1, ["interrupted"] * lives + ["completed"])
    view = maka.inspect(place.journal)
    assert said_by_users(view.messages()) == [TEXT]
    assert_legal(view.messages())


@pytest.mark.parametrize("lives", [1, 2, 4])
def test_killed_between_two_steps(place: Place, nursery: Nursery, lives: int) -> None:
    lived(place, nursery, *["between"] * lives)
    assert place.lived(nursery, *RESUME)[2] == "resume:completed"
    place.assert_sound()
    assert [states(messages) for messages in asked(place)] == [[], *[["ok"]] * (lives + 1)]
    assert effects(place) == 1
    assert place.reasons == ["interrupted"] * lives + ["completed"]


def test_each_life_comes_a_step_further(place: Place, nursery: Nursery) -> None:
    for number in range(4):
        steps = RESUME if number else ("create", "send")
        # Killed in the next step's body, which each life is the first to enter.
        place.killed(nursery, *steps, hold="effect", recovery="reconcile", asks=4)
        place.assert_recovers()
        assert effects(place) == number + 1
    assert place.lived(nursery, *RESUME, recovery="reconcile", asks=4)[2] == "resume:completed"
    place.assert_sound()
    assert effects(place) == 4
    assert [states(messages) for messages in asked(place)] == [["ok"] * number for number in range(5)]
    assert place.reasons == ["interrupted"] * 4 + ["completed"]


# ---------------------------------------------------------------- in a tool's body


def test_killed_in_a_body_of_which_nothing_is_known(place: Place, nursery: Nursery) -> None:
    lived(place, nursery, "effect")
    for _ in range(2):
        assert place.lived(nursery, *RESUME[:2])[1] == "plan:dangling_tool_state"
        assert place.lived(nursery, *RESUME[:2], rerun=("read_only", "idempotent"))[1] == "plan:dangling_tool_state"
    assert len(place.noted("sends")) == effects(place) == 1

    async def stated() -> None:
        async with place.managing() as manager:
            [event] = await manager.settle_call(
                SESSION, place.noted("effects")[0]["operation_id"], ok=True, text="I looked."
            )
            assert event.data["source"] == "user"

    asyncio.run(stated())
    place.killed(nursery, *RESUME, hold="between")
    place.assert_recovers()
    assert place.lived(nursery, *RESUME)[2] == "resume:completed"
    place.assert_sound()
    first, *others = asked(place)
    assert states(first) == []
    assert [states(messages) for messages in others] == [["ok"]] * 2
    [result] = others[0][-1]["content"]
    assert result["content"] == [{"kind": "text", "text": "I looked."}]
    assert effects(place) == 1


@pytest.mark.parametrize("recovery", ["read_only", "idempotent"])
def test_killed_in_a_body_that_may_run_again_and_killed_in_it_again(
    place: Place, nursery: Nursery, recovery: str
) -> None:
    again = {"recovery": recovery, "rerun": (recovery,)}
    lived(place, nursery, "effect", **{**again, "rerun": ()})
    assert place.lived(nursery, *RESUME[:2], **{**again, "rerun": ()})[1] == "plan:dangling_tool_state"
    place.killed(nursery, *RESUME, hold="effect", **again)
    place.assert_recovers(runs=2)
    assert place.lived(nursery, *RESUME, **again)[1] == "plan:continuation_started_indeterminate"
    assert place.lived(nursery, "settle", *RESUME, **again)[2:4] == ["plan:continue", "resume:completed"]
    place.assert_sound(runs=3)
    # It was never sent to a model in between, and each time it ran it was the same operation.
    first, second = asked(place)
    assert (states(first), states(second)) == ([], ["ok"])
    assert len({noted["operation_id"] for noted in place.noted("effects")}) == 1
    assert effects(place) == 3
    assert [data["source"] for data in place.data("tool/outcome")] == ["rerun"]


def test_killed_between_two_bodies_that_run_again(place: Place, nursery: Nursery) -> None:
    """What is known is not run again, although the continuation that found it out was cut off."""
    again = {"recovery": "read_only", "rerun": ("read_only",), "together": 2}
    lived(place, nursery, "effect", **again)
    assert effects(place) == 2
    place.killed(nursery, *RESUME, hold="after_rerun_outcome_committed", **again)
    place.assert_recovers(runs=2)
    assert place.lived(nursery, "settle", *RESUME, **again)[3] == "resume:completed"
    place.assert_sound(runs=2)
    first, second = asked(place)
    assert (states(first), states(second)) == ([], ["ok", "ok"])
    ran = Counter(noted["operation_id"] for noted in place.noted("effects"))
    assert [*ran.values()] == [2, 2]
    assert [data["source"] for data in place.data("tool/outcome")] == ["rerun", "rerun"]


def test_killed_between_the_repair_and_the_look(place: Place, nursery: Nursery) -> None:
    place.killed(nursery, "create", "send", hold="effect", recovery="reconcile")
    place.killed(nursery, "recover", hold="after_repair_committed", recovery="reconcile")
    assert maka.inspect(place.journal).verdict == "healthy"
    # The journal is in order, and there is something to be found out nevertheless.
    assert place.lived(nursery, *RESUME, recovery="reconcile")[1:3] == ["plan:continue", "resume:completed"]
    place.assert_sound()
    place.assert_recovers()


def test_killed_between_two_looks(place: Place, nursery: Nursery) -> None:
    both = {"recovery": "reconcile", "together": 2}
    place.killed(nursery, "create", "send", hold="effect", **both)
    place.killed(nursery, "recover", hold="after_reconcile_outcome_committed", **both)
    [first] = place.data("tool/outcome")
    assert place.lived(nursery, "plan", *RESUME, **both)[:4] == [
        "plan:dangling_tool_state", "recover:unchanged", "plan:continue", "resume:completed",
    ]  # fmt: skip
    place.assert_sound()
    assert place.data("tool/outcome")[0] == first
    assert [data["source"] for data in place.data("tool/outcome")] == ["reconciled", "reconciled"]
    assert [states(messages) for messages in asked(place)] == [[], ["ok", "ok"]]


@pytest.mark.parametrize(("done", "state"), [(False, "error"), (True, "ok")])
def test_killed_in_a_body_whose_tool_can_look(place: Place, nursery: Nursery, done: bool, state: str) -> None:
    hold = "effect" if done else "before_effect"
    place.killed(nursery, "create", "send", hold=hold, recovery="reconcile")
    assert place.lived(nursery, *RESUME, recovery="reconcile")[:3] == [
        "recover:repaired", "plan:continue", "resume:completed",
    ]  # fmt: skip
    place.assert_sound()
    place.assert_recovers()
    assert [states(messages) for messages in asked(place)] == [[], [state]]
    assert effects(place) == done


@pytest.mark.parametrize(("point", "state"), [("before_replace", "error"), ("after_replace", "ok")])
def test_killed_while_a_file_is_written(place: Place, nursery: Nursery, point: str, state: str) -> None:
    place.killed(nursery, "create", "send", hold=point, tool="write_file")
    place.assert_recovers()
    assert [data["state"] for data in place.data("tool/outcome")] == [state]
    place.killed(nursery, *RESUME, hold="between", tool="write_file")
    place.assert_recovers()
    assert place.lived(nursery, *RESUME, tool="write_file")[2] == "resume:completed"
    place.assert_sound()
    assert [states(messages) for messages in asked(place)] == [[], [state], [state]]
    written = place.work / "out.txt"
    assert written.exists() == (state == "ok")
    assert state == "error" or written.read_text() == "whole\n" * 9


def test_a_long_life_with_a_bit_of_everything(place: Place, nursery: Nursery) -> None:
    """A turn of three calls, killed wherever it can be, a continuation of a continuation of a continuation."""
    script: dict[str, Any] = {"recovery": "reconcile", "asks": 3}
    lived(place, nursery, "text", "effect", "between", "after_run_created", "before_effect", "text", **script)
    place.killed(nursery, *RESUME, hold="after_continuation_start_committed", **script)
    place.assert_recovers()
    assert place.lived(nursery, *RESUME, **script)[1] == "plan:continuation_started_indeterminate"
    place.lived(nursery, "settle", **script)
    assert place.lived(nursery, *RESUME, **script)[2] == "resume:completed"
    place.assert_sound()
    asked(place)
    view = maka.inspect(place.journal)
    [*depths] = [row["depth"] for row in view.continuations()]
    assert depths == [*range(1, 8)]
    assert {row["root_run_id"] for row in view.continuations()} == {view.runs()[0]["run_id"]}
    assert_legal(view.messages())
    assert said_by_users(view.messages()) == [TEXT]
    # The second of the three calls was cut off before it did anything, which its tool could tell.
    assert states(view.messages()) == ["ok", "error", "ok"]
    assert effects(place) == 2


# ---------------------------------------------------------------- an interrupt, which lets it come to an end


@pytest.mark.parametrize(
    ("point", "ended"),
    [
        ("before_continuation_claim", None),
        ("after_continuation_claim_committed", "continuation_abandoned_before_provider_dispatch"),
        ("after_run_created", "continuation_abandoned_before_provider_dispatch"),
        ("before_backend_dispatch", "aborted"),
        ("text", "aborted"),
        ("effect", "aborted"),
        ("between", "aborted"),
    ],
)
def test_a_continuation_that_is_interrupted_goes_on(
    place: Place, nursery: Nursery, point: str, ended: str | None
) -> None:
    lived(place, nursery, "between" if point == "between" else "text")
    with place.life(nursery, *RESUME, hold=point) as life:
        life.until(f"READY:{point}")
        os.kill(life.pid, signal.SIGINT)
        assert life.end() == 1
    place.assert_recovers()
    assert place.reasons == ["interrupted", *([ended] if ended else [])]
    # Of what was in a tool's body nobody knows what came of it.
    done = ["dangling_tool_state"] if point == "effect" else []
    assert place.finished() == [*done, "resumed: completed", "continuation_already_exists"]
    assert effects(place) == 1
    asked(place)
