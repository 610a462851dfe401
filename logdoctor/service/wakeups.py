"""Wake-ups between processes, so that they need not poll for each other's changes.

Nothing depends on them. A process that is not woken, because Redis is away or missing, polls a little later.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Literal

from logdoctor.service.turns import Turns, shielded
from logdoctor.store.redis_state import RedisState

Topic = Literal["log", "events", "nodes"]
"""What is new: acknowledged bytes; verdicts and incidents; tests of nodes."""

_PAUSE = 0.05  # seconds between messages: each makes every process check
_AGAIN = 1.0  # seconds until Redis is asked again for messages


class Wakeups:
    """Publishes news to other processes, and calls local listeners for theirs. Thread-safe; `tell` never blocks."""

    def __init__(self, redis: RedisState | None) -> None:
        self._redis = redis
        self._listeners: dict[str, list[Callable[[], None]]] = defaultdict(list)
        self._news: set[Topic] = set()
        self._teller = Turns("wake-ups told", self._tell, _PAUSE)
        self._hearer = Turns("wake-ups heard", self._hear)

    def listen(self, topic: Topic, listener: Callable[[], None]) -> None:
        """Call a listener, in a thread of this object, when a topic may have news."""
        self._listeners[topic].append(listener)

    def tell(self, topic: Topic) -> None:
        """Publish that a topic has news."""
        if self._redis is not None:
            self._news.add(topic)
            self._teller.wake()

    def start(self) -> None:
        """Start."""
        if self._redis is not None:
            self._teller.start()
            self._hearer.start()

    def stop(self) -> None:
        """Stop."""
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
