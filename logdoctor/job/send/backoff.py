"""How long to wait before the next try: exponential backoff with jitter."""

import random

FIRST_SECONDS = 0.5
MOST_SECONDS = 30.0
_MOST_ASKED_SECONDS = 300.0


class Backoff:
    """Exponential with jitter, up to 30 seconds; a Retry-After of the service is honoured up to 5 minutes."""

    def __init__(self) -> None:
        self._next = FIRST_SECONDS

    def seconds(self, retry_after: float | None = None) -> float:
        """Return the seconds to wait now; the next call returns up to twice as many."""
        delay = self._next * random.uniform(0.5, 1.0)
        self._next = min(self._next * 2, MOST_SECONDS)
        return max(delay, min(retry_after or 0.0, _MOST_ASKED_SECONDS))

    def reset(self) -> None:
        """Make the next wait short again."""
        self._next = FIRST_SECONDS
