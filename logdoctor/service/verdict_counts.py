"""Counts of failures by reason, and of the time from end to verdict, for metrics."""

import bisect
import threading
import time
from collections import Counter
from collections.abc import Collection

from logdoctor.store.jobs.records import End
from logdoctor.types import Verdict

BOUNDS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)
"""Upper bounds of the buckets, in seconds; one more bucket has the rest."""


class VerdictCounts:
    """Counts the first final verdict on each attempt since the start. One thread counts, any reads."""

    def __init__(self) -> None:
        self._failures: Counter[str] = Counter()
        self._buckets = [0] * (len(BOUNDS) + 1)
        self._seconds = 0.0
        self._lock = threading.Lock()

    def count(self, verdict: Verdict, ends: Collection[End]) -> None:
        """Count the first final verdict on an attempt, and its delay after a reported end."""
        with self._lock:
            if verdict.outcome == "failed":
                self._failures[verdict.reason] += 1
            if ends:
                late = max(time.time() - max(end.at for end in ends), 0.0)
                self._buckets[bisect.bisect_left(BOUNDS, late)] += 1
                self._seconds += late

    def read(self) -> tuple[dict[str, int], tuple[int, ...], float]:
        """Return failures by reason, verdicts by bucket, and the sum of their seconds."""
        with self._lock:
            return dict(self._failures), tuple(self._buckets), round(self._seconds, 3)
