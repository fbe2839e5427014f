"""The kernel in processes that are drawn from seeds: hostile backends, failing disks, crashes at any await.

A failure names its seed; ``pytest tests/simulation --simulation-seed N`` runs that one again.
"""

import pytest

from support.kernel_world import simulate


def test_what_must_hold_holds_in_every_process(simulation_seeds: range) -> None:
    for seed in simulation_seeds:
        try:
            simulate(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}; run it again: pytest tests/simulation --simulation-seed {seed}")
            raise


@pytest.mark.parametrize("seed", range(3))
def test_a_seed_tells_the_same_story_each_time(seed: int) -> None:
    first, second = simulate(seed), simulate(seed)
    assert {name: [event.sum for event in events] for name, events in first.items()} == {
        name: [event.sum for event in events] for name, events in second.items()
    }
