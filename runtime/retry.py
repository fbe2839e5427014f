"""When a failed request is tried again, and after how long. No I/O."""

from collections.abc import Callable

import attrs

from .model import ModelError


@attrs.frozen
class RetryPolicy:
    """At most ``attempts`` requests in all; waits double from ``first`` to ``longest`` seconds, with full jitter.

    A provider that names a longer time than ``patience`` seconds is not waited for.
    """

    attempts: int = 4
    first: float = 0.5
    longest: float = 20.0
    patience: float = 60.0

    def delay(self, error: ModelError, attempt: int, random: Callable[[], float]) -> float | None:
        """Seconds to wait after ``attempt`` (counted from 1) failed; None if it is not tried again.

        ``random`` gives a number from 0 to 1. What a provider asks for is a lower bound.
        """
        asked = error.retry_after or 0.0
        if not error.retryable or attempt >= self.attempts or asked > self.patience:
            return None
        doubled = self.first * float(2 ** (attempt - 1))
        return max(asked, min(self.longest, doubled) * random())
