"""When a failed request is tried again, and after how long. No I/O."""

from collections.abc import Callable

import attrs

from . import checks
from .model import ModelError


@attrs.frozen
class RetryPolicy:
    """At most ``attempts`` requests in all; waits double from ``first`` to ``longest`` seconds, with full jitter.

    A provider that names a longer time than ``patience`` seconds is not waited for.
    """

    attempts: int = attrs.field(default=4, validator=checks.count)
    first: float = attrs.field(default=0.5, validator=checks.seconds)
    longest: float = attrs.field(default=20.0, validator=checks.seconds)
    patience: float = attrs.field(default=60.0, validator=checks.seconds)

    def delay(self, error: ModelError, attempt: int, random: Callable[[], float]) -> float | None:
        """Seconds to wait after ``attempt`` (counted from 1) failed; None if it is not tried again.

        ``random`` gives a number from 0 to 1. What a provider asks for is a lower bound.
        """
        asked = error.retry_after or 0.0
        if not error.retryable or attempt >= self.attempts or asked > self.patience:
            return None
        doubled = self.first * float(2 ** (attempt - 1))
        return max(asked, min(self.longest, doubled) * random())
