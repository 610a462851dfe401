"""What may be spent on a model, and what was: calls, tokens and dollars, per job, per hour, per day and in all."""

import threading
from collections import deque
from typing import NamedTuple, Protocol

from logdoctor.types.models import Spent

_HOUR = 3600.0
_DAY = 24 * _HOUR


class Budget(NamedTuple):
    """What may be spent, and what a million tokens cost in dollars, sent and got.

    Limits `in_all` and those in dollars are none when they are 0.
    """

    calls_per_job: int = 40
    calls_per_hour: int = 400
    tokens_per_hour: int = 2_000_000
    dollars_in: float = 0.0
    dollars_out: float = 0.0
    tokens_per_job: int = 200_000
    tokens_per_day: int = 20_000_000
    tokens_in_all: int = 0
    dollars_per_day: float = 0.0
    dollars_in_all: float = 0.0

    def price(self, tokens_in: int, tokens_out: int) -> float:
        """Return what so many tokens cost, in dollars."""
        return (tokens_in * self.dollars_in + tokens_out * self.dollars_out) / 1e6


class Ledger(Protocol):
    """Where calls are written down; any thread may call."""

    def enter(
        self,
        job: str,
        model: str,
        purpose: str,
        tokens_in: int,
        tokens_out: int,
        dollars: float,
        failure: str,
        at: float,
    ) -> None:
        """Write down one call; `failure` is "" for a good answer, else `unavailable` or `nonsense`."""
        ...

    def spent(self, job: str | None, since: float) -> Spent:
        """Return what the calls came to since a time: those of a job, or all for None."""
        ...


class Entry(NamedTuple):
    """One call in a `MemoryLedger`."""

    job: str
    model: str
    purpose: str
    tokens_in: int
    tokens_out: int
    dollars: float
    failure: str
    at: float


class MemoryLedger:
    """A ledger for one process that keeps the last calls, for work without a database."""

    def __init__(self, most: int = 10_000) -> None:
        self._entries: deque[Entry] = deque(maxlen=most)
        self._lock = threading.Lock()

    def enter(
        self,
        job: str,
        model: str,
        purpose: str,
        tokens_in: int,
        tokens_out: int,
        dollars: float,
        failure: str,
        at: float,
    ) -> None:
        """Keep one call."""
        with self._lock:
            self._entries.append(Entry(job, model, purpose, tokens_in, tokens_out, dollars, failure, at))

    def spent(self, job: str | None, since: float) -> Spent:
        """Return what the kept calls came to."""
        entries = [entry for entry in self.entries() if entry.at >= since and job in (None, entry.job)]
        tokens = sum(entry.tokens_in + entry.tokens_out for entry in entries)
        return Spent(len(entries), tokens, sum(entry.dollars for entry in entries))

    def entries(self) -> list[Entry]:
        """Return the calls, the oldest first."""
        with self._lock:
            return list(self._entries)


class Cost(NamedTuple):
    """What a call may come to."""

    tokens: int
    dollars: float


class Purse:
    """A budget with what was spent of it and what is set aside for calls that run; one thread at a time."""

    def __init__(self, budget: Budget, ledger: Ledger) -> None:
        self._budget = budget
        self._ledger = ledger
        self._running: dict[str, list[Cost]] = {}

    def overdrawn(self, job: str, cost: Cost, now: float) -> str:
        """Return which limit the next call would break, or nothing."""
        budget, mine = self._budget, self._running.get(job, [])
        every = [one for costs in self._running.values() for one in costs]
        own = self._ledger.spent(job, 0.0)
        if own.calls + len(mine) >= budget.calls_per_job:
            return f"the {budget.calls_per_job} calls of job {job} are made (LOGDOCTOR_LLM_CALLS_PER_JOB)"
        if own.tokens + _sum(mine, cost).tokens > budget.tokens_per_job:
            return f"the {budget.tokens_per_job} tokens of job {job} are used (LOGDOCTOR_LLM_TOKENS_PER_JOB)"
        hour = self._ledger.spent(None, now - _HOUR)
        if hour.calls + len(every) >= budget.calls_per_hour:
            return f"the {budget.calls_per_hour} calls of an hour are made (LOGDOCTOR_LLM_CALLS_PER_HOUR)"
        next_ = _sum(every, cost)
        if hour.tokens + next_.tokens > budget.tokens_per_hour:
            return f"the {budget.tokens_per_hour} tokens of an hour are used (LOGDOCTOR_LLM_TOKENS_PER_HOUR)"
        day = self._ledger.spent(None, now - _DAY)
        if day.tokens + next_.tokens > budget.tokens_per_day:
            return f"the {budget.tokens_per_day} tokens of a day are used (LOGDOCTOR_LLM_TOKENS_PER_DAY)"
        if budget.dollars_per_day and day.dollars + next_.dollars > budget.dollars_per_day:
            return f"the {budget.dollars_per_day:g} dollars of a day are spent (LOGDOCTOR_LLM_DOLLARS_PER_DAY)"
        if not (budget.tokens_in_all or budget.dollars_in_all):
            return ""
        ever = self._ledger.spent(None, 0.0)
        if budget.tokens_in_all and ever.tokens + next_.tokens > budget.tokens_in_all:
            return f"the {budget.tokens_in_all} tokens in all are used (LOGDOCTOR_LLM_TOKENS_IN_ALL)"
        if budget.dollars_in_all and ever.dollars + next_.dollars > budget.dollars_in_all:
            return f"the {budget.dollars_in_all:g} dollars in all are spent (LOGDOCTOR_LLM_DOLLARS_IN_ALL)"
        return ""

    def set_aside(self, job: str, cost: Cost) -> None:
        """Keep what a call may come to, so that calls at one time cannot overdraw together."""
        self._running.setdefault(job, []).append(cost)

    def give_back(self, job: str, cost: Cost) -> None:
        """End what `set_aside` began."""
        self._running[job].remove(cost)
        if not self._running[job]:
            del self._running[job]


def _sum(costs: list[Cost], one: Cost) -> Cost:
    """Return the costs together with one more."""
    return Cost(sum(cost.tokens for cost in costs) + one.tokens, sum(cost.dollars for cost in costs) + one.dollars)
