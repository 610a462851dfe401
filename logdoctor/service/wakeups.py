"""Wake-ups between processes: what one of them does, others need not find out by looking.

Nothing depends on them. Whoever is not woken, because Redis is away or there is none, looks a little later by itself.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Literal

from logdoctor.service.turns import Turns, shielded
from logdoctor.store.redis_state import RedisState

Topic = Literal["log", "events", "nodes"]
"""What there is something new of: acknowledged bytes, verdicts and incidents, tests of nodes."""

_PAUSE = 0.05  # seconds between two tellings: each has every process look
_AGAIN = 1.0  # seconds until Redis is asked again for messages


class Wakeups:
    """Tells other processes that there is something new, and calls whoever listens here when they tell it. All methods
    are for any thread, and `tell` takes no time."""

    def __init__(self, redis: RedisState | None) -> None:
        self._redis = redis
        self._listeners: dict[str, list[Callable[[], None]]] = defaultdict(list)
        self._news: set[Topic] = set()
        self._teller = Turns("wake-ups told", self._tell, _PAUSE)
        self._hearer = Turns("wake-ups heard", self._hear)

    def listen(self, topic: Topic, listener: Callable[[], None]) -> None:
        """Call a listener, in a thread of this object, when there may be something new of a topic."""
        self._listeners[topic].append(listener)

    def tell(self, topic: Topic) -> None:
        """Tell other processes that there is something new."""
        if self._redis is not None:
            self._news.add(topic)
            self._teller.wake()

    def start(self) -> None:
        """Begin."""
        if self._redis is not None:
            self._teller.start()
            self._hearer.start()

    def stop(self) -> None:
        """Come to an end."""
        for one in (self._teller, self._hearer):
            one.stop()
        for one in (self._teller, self._hearer):
            one.join()

    def _tell(self) -> float:
        if self._redis is not None:
            while self._news:
                self._redis.publish(self._news.pop())
        return _AGAIN

    def _hear(self) -> float:
        for message in self._redis.messages() if self._redis is not None else ():
            if self._hearer.stopping.is_set():
                break
            for listener in self._listeners.get(message or "", ()):
                with shielded("wake-up failed", topic=message):
                    listener()
        return _AGAIN
