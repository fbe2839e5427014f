"""When a request is tried again."""

import pytest

from maka.runtime.model import ModelError
from maka.runtime.retry import RetryPolicy

POLICY = RetryPolicy(attempts=4, first=1.0, longest=3.0, patience=10.0)


@pytest.mark.parametrize(
    ("retryable", "asked", "attempt", "chance", "delay"),
    [
        (True, None, 1, 1.0, 1.0),
        (True, None, 2, 1.0, 2.0),
        (True, None, 3, 1.0, 3.0),
        (True, None, 4, 1.0, None),
        (True, None, 2, 0.0, 0.0),
        (True, 2.5, 1, 0.0, 2.5),
        (True, 11.0, 1, 0.0, None),
        (False, 1.0, 1, 1.0, None),
    ],
)
def test_delays(retryable: bool, asked: float | None, attempt: int, chance: float, delay: float | None) -> None:
    error = ModelError("", retryable=retryable, retry_after=asked)
    assert POLICY.delay(error, attempt, lambda: chance) == delay
