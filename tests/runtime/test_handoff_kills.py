"""Processes that hand over, take over and give up are killed at each failpoint, and at the file operations in between.

Whatever is left is recovered, once, and goes on to its end by what the crash has left. ``MAKA_KILLS`` says at how many
places of each story it is done; a thousand are all of them.
"""

import os
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

import attrs
import pytest

import maka
from maka.repair.plan import diagnose, plan_repair
from maka.runtime.continuation.failpoints import Failpoint
from support.handing import WAITS, Handed
from support.lives import SESSION, How
from support.nursery import Nursery

KILLS = int(os.environ.get("MAKA_KILLS", "2"))
#: From so many on nothing is left out.
PATIENT: Final = 100
T = TypeVar("T")
#: Of a turn of three steps, two of which call the tool, with two to spare; it is handed over behind the first.
SCRIPT: Final = {"asks": 2, "max_steps": 5}
HAND: Final = ("create", "propose", "hand")
BEGUN: Final = ("create", "propose")
TAKE: Final = ("recover", "onward", "resume")
MESSAGE: Final = "And now this."


@attrs.frozen(kw_only=True)
class Story:
    """A life that is killed, behind others. ``held``: where the last of those was killed."""

    steps: tuple[str, ...]
    before: tuple[str, ...] = HAND
    held: str = "gun"
    script: dict[str, Any] = attrs.Factory(dict)

    def prepare(self, place: Handed, nursery: Nursery, own: bool) -> None:
        handed = {**SCRIPT, "own": own, "behind": 1}
        if not self.before:
            place.lived(nursery, *BEGUN, own=own)
            return
        assert place.killed(nursery, *HAND, "gun", hold="gun", **handed)[-1] == "hand:4"
        if self.before != HAND:
            place.killed(nursery, *self.before, hold=self.held, own=own, **SCRIPT)

    def given(self, own: bool) -> dict[str, Any]:
        return {**SCRIPT, "own": own, "behind": 1, **self.script}


STORIES: Final = {
    "hand over": Story(steps=("hand",), before=()),
    "hand over at once": Story(steps=("hand",), before=(), script={"behind": 0}),
    "take over": Story(steps=TAKE),
    "take over and hand on": Story(steps=("recover", "onward", "hand_on")),
    "take over from a claim": Story(steps=TAKE, before=TAKE, held="after_continuation_claim_committed"),
    "take over from a run": Story(steps=TAKE, before=TAKE, held="after_run_created"),
    "settle a start": Story(steps=("forward", "forward"), before=TAKE, held="after_continuation_start_committed"),
    "a message behind a start": Story(
        steps=("send",), before=TAKE, held="after_continuation_start_committed", script={"text": MESSAGE}
    ),
    "recover a step": Story(steps=("recover",), before=TAKE, held="between"),
    "recover an end": Story(steps=("recover",), before=TAKE, held="after_terminal_event_committed"),
    "take over and stop": Story(steps=("recover", "onward", "stopped")),
    "give up": Story(steps=("abandon",)),
    "give a claim up": Story(steps=("abandon",), before=TAKE, held="after_continuation_claim_committed"),
    "give a run up": Story(steps=("abandon",), before=TAKE, held="after_run_created"),
    "give up and go on": Story(steps=("abandon", "recover", "forward")),
    "stop": Story(steps=("stop",)),
    "stop a run": Story(steps=("stop",), before=TAKE, held="after_run_created"),
}
#: Those that a backend of its own plays, and not the loop.
OWN: Final = ("hand over at once", "take over from a claim", "recover a step", "give a run up")


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery("support.handing") as nursery:
        yield nursery


@pytest.fixture
def place(tmp_path: Path) -> Handed:
    return Handed(tmp_path)


def of_each(points: Iterable[T]) -> list[tuple[T, bool]]:
    """Each with the loop, or with a backend of its own, by turns; with both where there is time."""
    both = [(point, own) for point in points for own in (False, True)]
    return both if KILLS >= PATIENT else [*both[::4], *both[3::4]]


# ---------------------------------------------------------------- who hands over


#: Where a source is killed; the gun goes off once it has handed over.
SOURCES: Final = ["after_run_composition_committed", "before_handoff_pause", "after_handoff_pause_committed", "gun"]


@pytest.mark.parametrize(("point", "own"), of_each(SOURCES))
def test_who_hands_over_is_killed(place: Handed, nursery: Nursery, own: bool, point: str) -> None:
    pending = point in ("after_handoff_pause_committed", "gun")
    place.killed(nursery, *HAND, "gun", hold=point, behind=1, own=own, **SCRIPT)
    before = place.raw
    view = maka.inspect(place.journal)
    assert view.verdict == ("healthy" if pending else "interrupted")
    assert place.handoffs == (["pending"] if pending else [])
    codes = {finding.code for finding in view.findings}
    assert codes == ({"pending_handoff", "active_plan"} if pending else {"open_turn", "active_plan"})
    assert place.execution["status"] == ("paused" if pending else "interrupted")
    assert place.done == ([] if point == "after_run_composition_committed" else [0])

    place.assert_recovers()
    if pending:
        assert place.raw == before
        assert place.lived(nursery, "send", own=own)[0] == "send:session_busy"
        assert place.raw == before
    assert place.plan == ("active" if pending else "interrupted")

    steps = TAKE if pending else ("recover", "plan", "resume")
    lines = place.lived(nursery, *steps, "recover", own=own, **SCRIPT)
    assert lines[1:3] == [f"{steps[1]}:continue", "resume:completed"]
    assert place.raw.startswith(before)
    assert place.done == [0, 1]
    assert place.plan == "interrupted"
    assert place.reasons == (["completed"] if pending else ["interrupted", "completed"])
    place.assert_asked_once()
    place.assert_recovers()
    assert place.finished(own=own, **SCRIPT) == [
        "resume_candidate_missing" if pending else "continuation_already_exists"
    ]


# ---------------------------------------------------------------- who takes over


def test_each_point_of_a_handoff_has_its_kill() -> None:
    """The others are those of calls that are reconciled or run again, and of a repair: of continuations only."""
    others = {point for point in get_args(Failpoint) if any(word in point for word in ("rerun", "reconcile", "repair"))}
    assert {*SOURCES, *ENDS} - {"gun", "between"} == {*get_args(Failpoint)} - others


@attrs.frozen
class Killed:
    """What a successor that was killed leaves: how its handoff stands, the verdict and the turn's status; what a
    recovery appends; what a person does then, and how the turns have ended in the end.
    """

    handoff: str
    verdict: str
    status: str
    appended: tuple[str, ...]
    then: tuple[str, ...]
    reasons: tuple[str, ...] = ("completed",)
    #: Of the calls.
    done: tuple[int, ...] = (0, 1)


SETTLED = ("handoff continuation_started_indeterminate", "resumed: completed")
IN_DOUBT = Killed("continued", "healthy", "indeterminate", (), SETTLED, ("continuation_indeterminate", "completed"))
ENDS: Final[dict[str, Killed]] = {
    "before_continuation_claim": Killed("pending", "healthy", "paused", (), ("handoff resumed: completed",)),
    "after_continuation_claim_committed": Killed("claimed", "healthy", "paused", (), ("handoff resumed: completed",)),
    "after_run_created": Killed("claimed", "healthy", "paused", (), ("handoff resumed: completed",)),
    "after_continuation_start_committed": IN_DOUBT,
    "after_run_composition_committed": IN_DOUBT,
    "before_backend_dispatch": IN_DOUBT,
    "between": Killed(
        "continued",
        "interrupted",
        "interrupted",
        ("step/end", "turn/end"),
        ("resumed: completed",),
        ("interrupted", "completed"),
    ),
    "after_terminal_event_committed": Killed("continued", "interrupted", "completed", ("run/settled",), ()),
    "after_terminal_header_committed": Killed("continued", "healthy", "completed", (), ()),
}


@pytest.mark.parametrize(("point", "own"), of_each(ENDS))
def test_a_successor_is_killed(place: Handed, nursery: Nursery, own: bool, point: str) -> None:
    wanted = ENDS[point]
    Story(steps=()).prepare(place, nursery, own)
    sealed = place.raw
    place.killed(nursery, *TAKE, hold=point, own=own, **SCRIPT)
    before = place.raw
    assert before.startswith(sealed)
    view = maka.inspect(place.journal)
    assert (place.handoffs, view.verdict, place.execution["status"]) == (
        [wanted.handoff], wanted.verdict, wanted.status,
    )  # fmt: skip

    place.assert_recovers()
    over = wanted.status in ("completed", "interrupted")
    assert place.raw.startswith(before)
    added = place.types[before.count(b"\n") :]
    assert added == [*wanted.appended, *(["plan/execution"] if over else [])]
    assert place.plan == ("interrupted" if over else "active")

    done = place.finished(own=own, **SCRIPT)
    assert place.raw.startswith(before)
    assert tuple(done[:-1]) == wanted.then
    assert tuple(place.reasons) == wanted.reasons
    assert tuple(place.done) == wanted.done
    if point != "between":
        place.assert_asked_once()
    # One successor, claimed, created and started once, whoever began with that.
    [pause] = place.data("handoff/pause")
    successor = pause["successor_run_id"]
    starts = [data["run_id"] for data in place.data("continuation/start")]
    assert starts.count(successor) == 1
    assert [data["run"]["run_id"] for data in place.data("run/created")].count(successor) == 1
    assert [data["claim_id"] for data in place.data("continuation/claim")].count(pause["claim_id"]) == 1
    row = maka.inspect(place.journal).execution(pause["turn_id"])
    assert row is not None
    assert row["chain"] == [pause["run_id"], successor]
    place.assert_recovers()
    assert place.plan == "interrupted"


@pytest.mark.parametrize(("point", "own"), of_each(point for point, killed in ENDS.items() if killed is IN_DOUBT))
def test_a_successor_in_doubt_is_settled_by_a_message(place: Handed, nursery: Nursery, own: bool, point: str) -> None:
    Story(steps=()).prepare(place, nursery, own)
    place.killed(nursery, *TAKE, hold=point, own=own, **SCRIPT)
    before, [pause] = place.raw, place.data("handoff/pause")
    assert place.lived(nursery, "recover", "onward", "abandon", own=own, run_id=pause["run_id"])[:3] == [
        "recover:unchanged", "onward:continuation_started_indeterminate", "abandon:handoff_not_pending",
    ]  # fmt: skip
    assert place.raw == before
    assert place.lived(nursery, "send", own=own, text=MESSAGE)[0] == "send:completed"
    assert place.reasons == ["continuation_indeterminate", "completed"]
    place.assert_recovers()


@pytest.mark.parametrize(("point", "own"), of_each(["before_handoff_pause", "after_handoff_pause_committed"]))
def test_a_successor_is_killed_where_it_hands_over_again(
    place: Handed, nursery: Nursery, own: bool, point: str
) -> None:
    Story(steps=()).prepare(place, nursery, own)
    place.killed(nursery, "recover", "onward", "hand_on", hold=point, behind=1, own=own, **SCRIPT)
    before, pending = place.raw, point.startswith("after")
    place.assert_recovers()
    assert (place.raw == before) is pending
    assert place.handoffs == ["continued", *(["pending"] if pending else [])]
    assert place.plan == ("active" if pending else "interrupted")
    done = place.finished(own=own, **SCRIPT)
    assert done[:-1] == ["handoff resumed: completed" if pending else "resumed: completed"]
    assert place.reasons == (["completed"] if pending else ["interrupted", "completed"])
    assert place.done == [0, 1]
    place.assert_asked_once()


# ---------------------------------------------------------------- the file operations in between


@pytest.mark.timeout(120 + KILLS)
@pytest.mark.parametrize("name", STORIES)
def test_a_file_operation_goes_wrong(place: Handed, nursery: Nursery, name: str) -> None:
    story, own = STORIES[name], name in OWN
    story.prepare(place, nursery, own)
    crashed = place.saved()
    *_, counted = place.lived(nursery, *story.steps, **story.given(own))
    operations = range(1, int(counted.removeprefix("operations:")) + 1)
    every = [(number, how) for number in operations for how in get_args(How)]
    for number, how in every if len(every) <= KILLS else sorted(random.Random(name).sample(every, KILLS)):
        place.restore(crashed)
        _wrong(place, nursery, story, own, number, how)


def _wrong(place: Handed, nursery: Nursery, story: Story, own: bool, number: int, how: How) -> None:
    began, stood = place.raw, place.handoffs
    lines = place.lived(nursery, *story.steps, wrong=number, how=how, **story.given(own))
    left = place.kept
    assert left.startswith(began)
    view = maka.inspect(place.journal)
    handoffs, waits = place.handoffs, any(state in WAITS for state in place.handoffs)
    if any(line.startswith("hand:") and line[5:].isdigit() for line in lines):
        assert handoffs == ["pending"], "it was said to be sealed, and is not"
    place.assert_recovers()
    assert place.raw.startswith(left)
    if waits:
        # Nothing of it has ended, whatever was going on.
        assert place.execution["status"] == "paused"
        assert place.handoffs == handoffs
    if story.steps in (("abandon",), ("stop",)):
        # All of it, or none.
        assert place.handoffs[:1] == (stood if waits else ["abandoned"])
        assert not waits or place.raw == began
    turns = len(view.turns())
    if turns and place.execution["status"] != "indeterminate":
        assert place.plan == ("active" if waits else "interrupted")
    done = place.finished(own=own, **SCRIPT)
    assert done[-1] in ("continuation_already_exists", "resume_candidate_missing")
    assert place.raw.startswith(left)
    if turns:
        assert place.reasons[-1] == "completed"
    # What a person had to state was done, or not.
    if turns and "dangling_tool_state" not in done and MESSAGE not in str(place.data("user/message")):
        assert place.done == [0, 1]
    place.assert_recovers()


# ---------------------------------------------------------------- the batch that gives a handoff up


@pytest.mark.parametrize(
    ("held", "step"),
    [
        ("gun", "stop"),
        ("gun", "abandon"),
        ("after_continuation_claim_committed", "abandon"),
        ("after_run_created", "stop"),
    ],
)
def test_what_gives_a_handoff_up_is_whole_wherever_it_is_cut(
    place: Handed, nursery: Nursery, held: str, step: str
) -> None:
    Story(steps=(), before=HAND if held == "gun" else TAKE, held=held).prepare(place, nursery, own=True)
    began, stood = place.raw, place.handoffs
    place.lived(nursery, step, own=True)
    whole = place.raw
    added = place.events[began.count(b"\n") :]
    assert [event.get("more", 0) for event in added] == [*reversed(range(len(added)))]
    begins = ["continuation/claim"] * (held == "gun") + ["run/created"] * (held != "after_run_created")
    assert [event["type"] for event in added] == [
        *(["turn/stop_requested"] if step == "stop" else []), *begins, "continuation/start", "turn/end", "run/settled",
    ]  # fmt: skip
    reason = {"kind": "aborted", "source": "somebody"}
    failed = {"kind": "failed", "failure_class": "handoff_abandoned", "message": "nobody comes"}
    assert place.data("turn/end")[-1]["reason"] == (reason if step == "stop" else failed)

    every = range(len(began), len(whole) + 1, 1 if KILLS >= PATIENT else 7)
    for cut in (*every, *range(len(whole) - 2, len(whole) + 1)):
        diagnosis = diagnose(whole[:cut], SESSION)
        repaired = plan_repair(diagnosis)
        assert repaired.refused is None
        # A line that lacks nothing but its LF is there.
        there = cut >= len(whole) - 1
        assert not repaired.events
        assert [row["state"] for row in diagnosis.state.handoff_rows()] == (["abandoned"] if there else stood), cut
    for cut in range(len(began) + 1, len(whole) - 1, (len(whole) - len(began)) // min(KILLS, 20)):
        place.journal.write_bytes(whole[:cut])
        place.assert_recovers()
        assert place.raw == began
        assert place.plan == "active"
    place.journal.write_bytes(whole)
    place.assert_recovers()
    assert place.plan == "interrupted"
    # What was given up goes on like every turn that has failed.
    assert place.finished(own=True, run_id=None, **SCRIPT)[:1] == ["resumed: completed"]
    assert place.done == [0, 1]


def test_who_takes_over_what_was_given_up_is_refused(place: Handed, nursery: Nursery) -> None:
    Story(steps=()).prepare(place, nursery, own=True)
    with place.life(nursery, "onward", "gun", "resume", "abandon", own=True) as late:
        assert late.until("READY:gun") == ["onward:continue"]
        place.lived(nursery, "abandon", own=True)
        before = place.raw
        late.tell()
        lines = late.rest()
    assert lines[1] == "resume:continuation_claim_conflict"
    assert lines[2] == "abandon:handoff_not_pending"
    assert place.raw == before
