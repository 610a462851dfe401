"""How long to wait before the next try."""

import random

FIRST_SECONDS = 0.5
MOST_SECONDS = 30.0
_MOST_ASKED_SECONDS = 300.0


class Backoff:
    """Exponential with jitter, up to 30 seconds; a Retry-After of the service is kept (up to 5 minutes)."""

    def __init__(self) -> None:
        self._next = FIRST_SECONDS

    def seconds(self, retry_after: float | None = None) -> float:
        """Seconds to wait now; the next answer is up to twice as long."""
        delay = self._next * random.uniform(0.5, 1.0)
        self._next = min(self._next * 2, MOST_SECONDS)
        return max(delay, min(retry_after or 0.0, _MOST_ASKED_SECONDS))

    def reset(self) -> None:
        """The next wait is short again."""
        self._next = FIRST_SECONDS
