"""Processes that recover, plan and resume are killed at each failpoint, and at the file operations in between.

Whatever is left is recovered, once, and goes on to its end. ``MAKA_KILLS`` says at how many places of each story it is
done, spread evenly; a thousand are all of them. The same for operations that only fail.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import attrs
import pytest

from maka.runtime.continuation.failpoints import Failpoint
from support.crashing import FAILPOINTS
from support.lives import How, Place
from support.nursery import Nursery

KILLS = int(os.environ.get("MAKA_KILLS", "6"))
CLAIM, CREATED, START, TERMINAL, SETTLED = FAILPOINTS
RESUME = ("recover", "plan", "resume")


@attrs.frozen(kw_only=True)
class Story:
    """Lives that were killed before, each at its point, and the one that it is about. ``runs``: how often a body may
    run in it all.
    """

    steps: tuple[str, ...]
    before: tuple[tuple[tuple[str, ...], str], ...] = ((("create", "send"), "between"),)
    script: dict[str, Any] = attrs.Factory(dict)
    runs: int = 1

    def prepare(self, place: Place, nursery: Nursery) -> None:
        script = {key: value for key, value in self.script.items() if key != "text"}
        for steps, hold in self.before:
            place.killed(nursery, *steps, hold=hold, **script)


def behind(point: Failpoint) -> tuple[tuple[tuple[str, ...], str], ...]:
    """A continuation was killed there."""
    return ((("create", "send"), "between"), (RESUME, point))


IN_TOOL = ((("create", "send"), "effect"),)
AGAIN = {"recovery": "read_only", "rerun": ("read_only",)}
STORIES: dict[str, Story] = {
    "plan and resume": Story(steps=("recover", "plan", "resume")),
    "resume and stop": Story(steps=("recover", "plan", "stopped")),
    "recover a turn": Story(steps=("recover",)),
    "recover a claim": Story(steps=("recover",), before=behind(CLAIM)),
    "recover a run that was created": Story(steps=("recover",), before=behind(CREATED)),
    "recover a start": Story(steps=("recover",), before=behind(START)),
    "recover an end": Story(steps=("recover",), before=behind(TERMINAL)),
    "recover what is settled": Story(steps=("recover",), before=behind(SETTLED)),
    "settle": Story(steps=("settle",), before=behind(START)),
    "settle and go on": Story(steps=("settle", "plan", "resume"), before=behind(START)),
    "a new message": Story(steps=("send",), before=behind(START), script={"text": "And now this."}),
    "reconcile": Story(steps=("recover",), before=IN_TOOL, script={"recovery": "reconcile"}),
    "reconcile and resume": Story(steps=RESUME, before=IN_TOOL, script={"recovery": "reconcile"}),
    "reconcile a file": Story(
        steps=RESUME, before=((("create", "send"), "after_replace"),), script={"tool": "write_file"}
    ),
    "reconcile what is long": Story(
        steps=RESUME, before=IN_TOOL, script={"recovery": "reconcile", "together": 2, "long": 200_000}
    ),
    "state what came of a call": Story(steps=("recover", "forward", "plan", "resume"), before=IN_TOOL),
    # The body that was cut off, the one that is killed, and the one that comes to its end.
    "run again": Story(steps=RESUME, before=IN_TOOL, script=AGAIN, runs=3),
    "run again what is long": Story(
        steps=RESUME, before=IN_TOOL, script={**AGAIN, "together": 2, "long": 200_000}, runs=3
    ),
}
#: Those that only runs come to that can be handed over: ``test_handoff_kills`` has them, and the others again.
HANDING: set[Failpoint] = {
    "after_run_composition_committed",
    "before_handoff_pause",
    "after_handoff_pause_committed",
}
#: The story in which each point is come to.
AT: dict[Failpoint, str] = {
    "before_continuation_claim": "plan and resume",
    CLAIM: "plan and resume",
    CREATED: "plan and resume",
    START: "plan and resume",
    "before_backend_dispatch": "plan and resume",
    TERMINAL: "plan and resume",
    SETTLED: "plan and resume",
    "after_repair_committed": "recover a turn",
    "after_reconcile_executed": "reconcile and resume",
    "after_reconcile_outcome_committed": "reconcile and resume",
    "after_rerun_executed": "run again",
    "after_rerun_outcome_committed": "run again",
}
#: What a person has to do then, up to where nothing is left to go on with.
THEN: dict[Failpoint, list[str]] = {
    "before_continuation_claim": ["resumed: completed"],
    CLAIM: ["resumed: completed"],
    CREATED: ["resumed: completed"],
    START: ["continuation_started_indeterminate", "resumed: completed"],
    "before_backend_dispatch": ["continuation_started_indeterminate", "resumed: completed"],
    TERMINAL: [],
    SETTLED: [],
    "after_repair_committed": ["resumed: completed"],
    "after_reconcile_executed": ["resumed: completed"],
    "after_reconcile_outcome_committed": ["resumed: completed"],
    "after_rerun_executed": ["continuation_started_indeterminate", "resumed: completed"],
    "after_rerun_outcome_committed": ["continuation_started_indeterminate", "resumed: completed"],
}


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery("support.lives") as nursery:
        yield nursery


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_there_is_a_story_for_every_failpoint() -> None:
    assert AT.keys() == THEN.keys() == {*get_args(Failpoint)} - HANDING


@pytest.mark.parametrize("point", AT)
def test_killed_at_a_failpoint(place: Place, nursery: Nursery, point: Failpoint) -> None:
    story = STORIES[AT[point]]
    story.prepare(place, nursery)
    place.killed(nursery, *story.steps, hold=point, **story.script)
    place.assert_recovers(runs=story.runs)
    done = place.finished(runs=story.runs, **story.script)
    assert done[:-1] == THEN[point]
    assert done[-1] == "continuation_already_exists"
    assert len(place.noted("effects")) == (1 if "rerun" not in point else 3 if point == "after_rerun_executed" else 2)
    outcomes = {"reconcile": ["reconciled"], "rerun": ["rerun"]}
    wanted = [sources for word, sources in outcomes.items() if word in point]
    assert [data["source"] for data in place.data("tool/outcome")] == (wanted[0] if wanted else [])
    # The first turn's, and the one that came to its end.
    assert len(place.noted("sends")) == 2
    assert place.reasons[-1] == "completed"


@pytest.mark.timeout(120 + KILLS)
@pytest.mark.parametrize("name", STORIES)
def test_killed_at_a_file_operation(place: Place, nursery: Nursery, name: str) -> None:
    for number, how in begun(place, nursery, STORIES[name], ("amid", "behind")):
        lived(place, nursery, STORIES[name], number, how)


@pytest.mark.timeout(120 + KILLS)
@pytest.mark.parametrize("name", STORIES)
def test_a_file_operation_fails(place: Place, nursery: Nursery, name: str) -> None:
    for number, how in begun(place, nursery, STORIES[name], ("fails",)):
        lived(place, nursery, STORIES[name], number, how)


def begun(place: Place, nursery: Nursery, story: Story, hows: tuple[How, ...]) -> Iterator[tuple[int, How]]:
    """File operations of the story, and how each goes wrong; before each the place is as the story begins."""
    story.prepare(place, nursery)
    crashed = place.saved()
    *_, counted = place.lived(nursery, *story.steps, **story.script)
    every = [(number, how) for number in range(1, int(counted.removeprefix("operations:")) + 1) for how in hows]
    for chosen in every if len(every) <= KILLS else [every[at * len(every) // KILLS] for at in range(KILLS)]:
        place.restore(crashed)
        yield chosen


def lived(place: Place, nursery: Nursery, story: Story, number: int, how: How) -> None:
    place.lived(nursery, *story.steps, wrong=number, how=how, **story.script)
    place.assert_recovers(runs=story.runs)
    done = place.finished(runs=story.runs, **story.script)
    assert done[-1] in ("continuation_already_exists", "resume_candidate_missing")
    assert place.reasons[-1] == "completed"
