"""The times of worlds: deadlines that come when a test wants them, and times that are long enough on a busy machine."""

import asyncio
from collections.abc import Callable

from logdoctor.types.nodes import Result

IMPORTING = "torch was not imported within"
"""What a probe says whose time was up before it began: nothing of its node."""
_LONGEST = 100.0


def pass_time(seconds: float) -> None:
    """Let it be so many seconds later for the event loop that runs, and with it for all deadlines."""
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + seconds  # type: ignore[method-assign]


def with_time_enough(run: Callable[[float], Result], seconds: float) -> Result:
    """Return how a world ends that lasts until its time is up; it has more, where that was before torch was there."""
    while True:
        ended = run(seconds)
        if IMPORTING not in ended.why or seconds > _LONGEST:
            return ended
        seconds *= 3
