"""Lives of one session that begin, continue, recover and settle as chance has it, and are killed wherever they are.

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

from maka.runtime.continuation.failpoints import Failpoint
from support.lives import How, Place
from support.nursery import Nursery

STORMS = int(os.environ.get("MAKA_STORMS", "3"))
SEED = int(os.environ.get("MAKA_STORM_SEED", "1"))
#: Lives of a storm.
LIVES = 14
BEGINS = [("send",), ("recover", "send"), ("forward", "send", "forward"), ("send", "send")]
GOES_ON = [
    ("recover", "forward"),
    ("recover", "forward", "forward", "forward"),
    ("forward", "recover", "forward"),
    ("recover", "plan", "resume"),
    ("plan", "recover", "resume"),
    ("recover", "plan", "stopped"),
]
IN_A_TURN = ["request", "between", "text", "before_effect", "effect"]
HOWS: tuple[How, ...] = get_args(How)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery("support.lives") as nursery:
        yield nursery


@pytest.mark.parametrize("seed", range(SEED, SEED + STORMS))
def test_whatever_happens_it_stays_sound_and_comes_to_its_end(tmp_path: Path, nursery: Nursery, seed: int) -> None:
    chance, place = random.Random(seed), Place(tmp_path)
    place.lived(nursery, "create")
    for number in range(LIVES):
        begins = over(place) or chance.random() < 0.15
        script: dict[str, Any] = {
            "recovery": chance.choice(["never", "reconcile", "read_only", "idempotent"]),
            "asks": chance.choice([0, 1, 2, 3, 6]),
            "text": f"message {number}",
            "rerun": chance.choice([(), ("read_only", "idempotent")]),
            "tool": chance.choice(["effect", "effect", "effect", "write_file"]),
        }
        live(place, nursery, chance, chance.choice(BEGINS if begins else GOES_ON), begins, script)
        if place.raw.endswith(b"\n"):
            place.assert_sound(runs=LIVES, verdicts=("healthy", "interrupted"))
    place.assert_recovers(runs=LIVES)
    place.finished(runs=LIVES)


def live(
    place: Place, nursery: Nursery, chance: random.Random, steps: tuple[str, ...], begins: bool, script: dict[str, Any]
) -> None:
    """A life that is killed at a point, or with something that goes wrong; now and then another one beside it."""
    hold, wrong = "", {}
    if chance.random() < 0.5:
        hold = chance.choice(IN_A_TURN if begins else [*IN_A_TURN, *get_args(Failpoint)])
    else:
        wrong = {"wrong": chance.randrange(1, chance.choice([20, 40, 60])), "how": chance.choice(HOWS)}
    with ExitStack() as stack:
        one = stack.enter_context(place.life(nursery, *steps, hold=hold, **wrong, **script))
        if chance.random() < 0.2:
            other = stack.enter_context(place.life(nursery, *GOES_ON[1], **{**script, "rerun": ()}))
            other.rest()
            assert other.code == 0
        while (line := one.line()) and not line.startswith("READY:"):
            pass
        one.kill()
        assert one.code in (0, -signal.SIGKILL)


def over(place: Place) -> bool:
    """Is there nothing to go on with?"""
    raw = place.raw
    if not raw.endswith(b"\n"):
        return False
    return place.types[-1] in ("session/header", "run/settled") and place.reasons[-1:] in ([], ["completed"])
