"""Rate limits: a token bucket for each caller."""

import time
from collections import OrderedDict
from collections.abc import Callable

from logdoctor.store.redis_state import RedisState

_KNOWN = 10_000  # remembered callers


class Rates:
    """Buckets of callers, shared with other processes through Redis where it is configured and answers."""

    def __init__(self, redis: RedisState | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._redis, self._clock = redis, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    async def take(self, who: str, rate: float, burst: float) -> bool:
        """Take a token from a caller's bucket, and return whether there was one. The bucket holds `burst`, and refills
        at `rate` a second."""
        if not self._take_here(who, rate, burst):
            return False
        return self._redis is None or await self._redis.take(who, rate, burst) is not False

    def _take_here(self, who: str, rate: float, burst: float) -> bool:
        now = self._clock()
        level, then = self._buckets.pop(who, (burst, now))
        level = min(level + (now - then) * rate, burst)
        self._buckets[who] = (level - 1 if level >= 1 else level, now)
        while len(self._buckets) > _KNOWN:
            self._buckets.popitem(last=False)
        return level >= 1
