"""Hosts in processes that are drawn from seeds: many clients, crashes at any await, disks that fail. What is asked
again is answered the same, and whoever watches sees nothing but what is durable, whole and in order.

A failure names its seed; ``pytest tests/simulation -k host --simulation-seed N`` runs that one again.
"""

import pytest

from support.host_world import simulate_host

#: Stories where no number is asked for.
_FEW = 150


def test_what_was_accepted_is_done_once_whatever_crashes_when(
    simulation_seeds: range, request: pytest.FixtureRequest
) -> None:
    asked = request.config.getoption("--simulation-runs") or request.config.getoption("--simulation-seed")
    for seed in simulation_seeds if asked else simulation_seeds[:_FEW]:
        try:
            simulate_host(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}; run it again: pytest tests/simulation -k host --simulation-seed {seed}")
            raise


@pytest.mark.parametrize("seed", range(3))
def test_a_seed_tells_the_same_story_each_time(seed: int) -> None:
    first, second = simulate_host(seed), simulate_host(seed)
    assert {name: [event.sum for event in events] for name, events in first.items()} == {
        name: [event.sum for event in events] for name, events in second.items()
    }
