"""What was said to a model and what it said: written down, and given again when the same is asked."""

import json
import threading
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, NamedTuple, Protocol

from logdoctor.llm.chat import Message, Reply, Tool, ToolCall, as_words
from logdoctor.types.models import Answered, Exchange


class Request(NamedTuple):
    """All that an answer depends on, besides the model. `sample` tells apart runs that are to differ."""

    messages: tuple[Message, ...]
    schema: dict[str, Any]
    temperature: float
    max_tokens: int
    sample: int
    tools: tuple[Tool, ...]

    def key(self, model: str) -> str:
        """Return the digest of the request to a model: the same for the same content."""
        return sha256(json.dumps([model, *self], sort_keys=True).encode()).hexdigest()

    def terms(self) -> str:
        """Return what is sent beside the messages, as JSON."""
        terms = {name: value for name, value in self._asdict().items() if name not in ("messages", "tools")}
        return json.dumps(terms | {"tools": [tool._asdict() for tool in self.tools]})

    def said(self) -> tuple[tuple[str, str], ...]:
        """Return the messages as (role, text), with their calls in words."""
        return tuple(
            (message.role, "\n".join([message.text] * bool(message.text) + [as_words(call) for call in message.calls]))
            for message in self.messages
        )


class ExchangeStore(Protocol):
    """Where exchanges are written down; any thread may call."""

    def enter(self, exchange: Exchange) -> None:
        """Write one down."""
        ...

    def cached(self, key: str) -> Answered | None:
        """Return the last good answer to a request with this key, whole, if it is kept."""
        ...


class MemoryExchanges:
    """The last exchanges of one process, for work without a database."""

    def __init__(self, most: int = 1000) -> None:
        self._kept: deque[Exchange] = deque(maxlen=most)
        self._lock = threading.Lock()

    def enter(self, exchange: Exchange) -> None:
        """Keep one."""
        with self._lock:
            self._kept.append(exchange)

    def cached(self, key: str) -> Answered | None:
        """Return the last good answer that is kept."""
        kept = reversed(self.entries())
        return next((Answered(one.got, one.calls) for one in kept if one.key == key and not one.failure), None)

    def entries(self) -> list[Exchange]:
        """Return the exchanges, the oldest first."""
        with self._lock:
            return list(self._kept)


class ExchangeTurns:
    """Lets those who want the same wait for each other; any thread may call."""

    def __init__(self) -> None:
        self._locks: dict[str, threading.Lock] = {}
        self._waiting: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def alone(self, key: str) -> Iterator[None]:
        """Nobody else is inside with this key."""
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
            self._waiting[key] += 1
        try:
            with lock:
                yield
        finally:
            with self._lock:
                self._waiting[key] -= 1
                if not self._waiting[key]:
                    del self._waiting[key], self._locks[key]


def written(calls: tuple[ToolCall, ...]) -> str:
    """Return calls as JSON."""
    return json.dumps([call._asdict() for call in calls])


def read(answered: Answered) -> Reply:
    """Return the reply that an answer was; it costs nothing now."""
    return Reply(answered.got, 0, 0, tuple(ToolCall(**call) for call in json.loads(answered.calls)))
