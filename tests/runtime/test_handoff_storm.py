"""Lives of one session that hand turns over, take them over, give them up, stop and recover them as chance has it, and
are killed wherever they are.

``MAKA_STORMS`` says how many storms there are; ``MAKA_STORM_SEED`` is the first of them, to repeat one.
"""

import os
import random
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_args

import pytest

import maka
from maka.runtime.continuation.failpoints import Failpoint
from support.handing import WAITS, Handed
from support.lives import How
from support.nursery import Nursery

STORMS = int(os.environ.get("MAKA_STORMS", "3"))
SEED = int(os.environ.get("MAKA_STORM_SEED", "1"))
#: Lives of a storm.
LIVES = 14
BEGINS = [
    ("hand",),
    ("recover", "propose", "hand"),
    ("forward", "hand", "forward"),
    ("hand", "onward", "hand_on"),
    ("hand", "abandon", "hand"),
    ("send", "hand"),
]
TAKES = [
    ("recover", "onward", "resume"),
    ("recover", "onward", "hand_on"),
    ("onward", "recover", "hand_on", "onward", "resume"),
    ("recover", "onward", "stopped"),
    ("abandon", "recover"),
    ("recover", "stop", "forward"),
    ("send", "recover", "forward"),
]
GOES_ON = [("recover", "forward"), ("recover", "forward", "forward", "forward"), ("forward", "recover", "hand")]
IN_A_TURN = ["request", "between", "before_effect", "effect"]
HOWS: tuple[How, ...] = get_args(How)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery("support.handing") as nursery:
        yield nursery


@pytest.mark.parametrize("seed", range(SEED, SEED + STORMS))
def test_whatever_happens_it_stays_sound_and_comes_to_its_end(tmp_path: Path, nursery: Nursery, seed: int) -> None:
    chance, place = random.Random(seed), Handed(tmp_path)
    own = chance.random() < 0.5
    place.lived(nursery, "create")
    for number in range(LIVES):
        script: dict[str, Any] = {
            "recovery": "never" if own else chance.choice(["never", "reconcile", "idempotent"]),
            "asks": chance.choice([1, 2, 3, 4]),
            "behind": chance.choice([0, 1, 1, 2]),
            "max_steps": chance.choice([None, 5, 8]),
            "text": f"message {number}",
            # Another agent now and then, which nothing is handed over to.
            "own": own is not (chance.random() < 0.1),
        }
        live(place, nursery, chance, script)
        if place.raw.endswith(b"\n"):
            place.assert_sound(runs=LIVES, verdicts=("healthy", "interrupted"))
    place.assert_recovers(runs=LIVES)
    place.finished(runs=LIVES, own=own, asks=2)
    place.assert_recovers(runs=LIVES)
    view = maka.inspect(place.journal)
    assert not {row["state"] for row in view.handoffs()} & {*WAITS}
    assert "active" not in [row["execution"]["status"] for row in view.plans() if row["execution"]]


def live(place: Handed, nursery: Nursery, chance: random.Random, script: dict[str, Any]) -> None:
    """A life that is killed at a point, or with something that goes wrong; now and then another one beside it."""
    view = maka.inspect(place.journal)
    waits = any(row["state"] in WAITS for row in view.handoffs())
    over = not view.turns() or (view.verdict == "healthy" and view.turns()[-1]["status"] == "completed")
    steps = chance.choice(TAKES if waits else BEGINS if over or chance.random() < 0.15 else GOES_ON)
    hold, wrong = "", {}
    fate = chance.random()
    if fate < 0.4:
        hold = chance.choice([*IN_A_TURN, *get_args(Failpoint)])
    elif fate < 0.8:
        wrong = {"wrong": chance.randrange(1, chance.choice([20, 40, 60])), "how": chance.choice(HOWS)}
    with ExitStack() as stack:
        one = stack.enter_context(place.life(nursery, *steps, hold=hold, **wrong, **script))
        if chance.random() < 0.2:
            other = stack.enter_context(place.life(nursery, *chance.choice(TAKES), **script))
            other.rest()
            assert other.code == 0
        while (line := one.line()) and not line.startswith("READY:"):
            pass
        one.kill()
        assert one.code in (0, -signal.SIGKILL)
