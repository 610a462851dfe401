"""When a model may be asked: within its budget, and not while it fails.

    closed     calls go through; after one that got no answer the next waits a little, longer each time
    open       five failures in a row: no call goes through for a while
    half-open  the while is over: one trial goes through; an answer closes, a failure opens for longer

Nothing here sleeps: a call that may not be made now is refused at once.
"""

import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from logdoctor.errors import BudgetSpent, ModelNonsense, ModelUnavailable
from logdoctor.llm.answers import Form, parse, schema
from logdoctor.llm.chat import ChatModel, Message, Reply, estimate

OPENS_AFTER = 5
"""Failures in a row that open the breaker."""

SHORTEST_WAIT = 1.0
LONGEST_WAIT = 600.0
"""Seconds that back-off grows from and to; with jitter up to twice as much."""

LONGEST_RETRY_AFTER = 3600.0
"""A server that asks to be left alone for longer is asked again after so many seconds."""

_HOUR = 3600.0
_SHOWN_TO_MODEL = 600

Breaker = Literal["closed", "open", "half-open"]


class Budget(NamedTuple):
    """What may be spent, and what a million tokens cost in dollars, sent and got."""

    calls_per_job: int = 40
    calls_per_hour: int = 400
    tokens_per_hour: int = 2_000_000
    dollars_in: float = 0.0
    dollars_out: float = 0.0


class Spent(Protocol):
    """What calls came to."""

    @property
    def calls(self) -> int: ...

    @property
    def tokens(self) -> int: ...


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
        """Writes down one call; `failure` is "" for a good answer, else `unavailable` or `nonsense`."""
        ...

    def spent(self, job: str | None, since: float) -> Spent:
        """What the calls came to since a time: those of a job, or all for None."""
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


class Sum(NamedTuple):
    """The sum of some entries."""

    calls: int
    tokens: int


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
        """Keeps one call."""
        with self._lock:
            self._entries.append(Entry(job, model, purpose, tokens_in, tokens_out, dollars, failure, at))

    def spent(self, job: str | None, since: float) -> Sum:
        """What the kept calls came to."""
        entries = [entry for entry in self.entries() if entry.at >= since and job in (None, entry.job)]
        return Sum(len(entries), sum(entry.tokens_in + entry.tokens_out for entry in entries))

    def entries(self) -> list[Entry]:
        """The calls, the oldest first."""
        with self._lock:
            return list(self._entries)


class Counts(NamedTuple):
    """What went through a `Guarded` since it was made, for the metrics.

    `calls` counts by result: `answered`, `unavailable`, `nonsense`, and, not sent at all, `budget` and `waiting`.
    """

    calls: Mapping[str, int]
    tokens_in: int
    tokens_out: int
    dollars: float
    breaker: Breaker


class Guarded:
    """A model behind its budget and breaker; any thread may call. `clock` gives seconds since the epoch."""

    def __init__(
        self,
        model: ChatModel,
        ledger: Ledger,
        budget: Budget | None = None,
        clock: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.name = model.name
        self._model = model
        self._ledger = ledger
        self._budget = budget or Budget()
        self._clock = clock
        self._chance = chance
        self._lock = threading.Lock()
        self._failures = 0
        self._waits: tuple[float, float] = (0.0, 0.0)
        self._trial = False
        self._pending: Counter[str] = Counter()
        self._pending_tokens = 0
        self._calls: Counter[str] = Counter()
        self._tokens = (0, 0)
        self._dollars = 0.0

    def answer(
        self,
        job: str,
        purpose: str,
        messages: Sequence[Message],
        form: type[Form],
        *,
        temperature: float,
        max_tokens: int,
    ) -> Form:
        """The model's answer in its form. An answer without the form is sent back once, with what is wrong with it.

        `ModelUnavailable` (`retry_after` says when to come again), `ModelNonsense`, `BudgetSpent`.
        """
        asked = {"temperature": temperature, "schema": schema(form), "max_tokens": max_tokens}
        try:
            return self._call(job, purpose, messages, form, asked)
        except _Unfit as unfit:
            first = unfit
        if first.reply is None:
            raise first.nonsense
        try:
            return self._call(job, purpose, [*messages, *_complaint(first.reply, first.nonsense)], form, asked)
        except _Unfit as unfit:
            raise unfit.nonsense from None
        except (ModelUnavailable, BudgetSpent):
            raise first.nonsense from None

    def counts(self) -> Counts:
        """What went through until now."""
        with self._lock:
            return Counts(dict(self._calls), *self._tokens, self._dollars, self._state(self._clock()))

    def _call(
        self, job: str, purpose: str, messages: Sequence[Message], form: type[Form], asked: dict[str, Any]
    ) -> Form:
        """One call with all that belongs to it. `_Unfit` when the answer cannot be used."""
        sent = sum(estimate(message.text) for message in messages)
        tokens = sent + asked["max_tokens"]
        trial = self._admit(job, tokens)
        reply, failure, retry_after = Reply("", sent, 0), "unavailable", None
        try:
            reply = self._model.ask(messages, **asked)
            failure = "nonsense"
            value = parse(reply.text, form).value
            failure = ""
            return value
        except ModelUnavailable as error:
            retry_after = error.retry_after
            raise
        except ModelNonsense as error:
            said = reply.text if failure else None
            failure = "nonsense"
            raise _Unfit(said or None, error) from error
        finally:
            self._settle(job, tokens, trial, failure, retry_after)
            self._enter(job, purpose, reply, failure)

    def _admit(self, job: str, tokens: int) -> bool:
        """Lets a call begin, with its tokens set aside so that calls at one time cannot overdraw together.

        The answer is whether the call is the trial of a half-open breaker.
        """
        with self._lock:
            now = self._clock()
            state = self._state(now)
            since, until = self._waits
            if since <= now < until or (state == "half-open" and self._trial):
                self._calls["waiting"] += 1
                raise ModelUnavailable(
                    f"the model {self.name}",
                    f"failed {self._failures} times in a row" if self._failures else "asks to be left alone",
                    "It is asked again after a while.",
                    max(until - now, SHORTEST_WAIT),
                )
            if spent := self._overdrawn(job, tokens, now):
                self._calls["budget"] += 1
                raise BudgetSpent(f"the budget of the model {self.name}", spent, "Wait, or raise the limit.")
            self._pending[job] += 1
            self._pending_tokens += tokens
            trial = state == "half-open"
            self._trial |= trial
            return trial

    def _overdrawn(self, job: str, tokens: int, now: float) -> str:
        """Which limit the next call would break, or nothing."""
        budget = self._budget
        if self._ledger.spent(job, 0.0).calls + self._pending[job] >= budget.calls_per_job:
            return f"the {budget.calls_per_job} calls of job {job} are made (LOGDOCTOR_LLM_CALLS_PER_JOB)"
        hour = self._ledger.spent(None, now - _HOUR)
        if hour.calls + self._pending.total() >= budget.calls_per_hour:
            return f"the {budget.calls_per_hour} calls of an hour are made (LOGDOCTOR_LLM_CALLS_PER_HOUR)"
        if hour.tokens + self._pending_tokens + tokens > budget.tokens_per_hour:
            return f"the {budget.tokens_per_hour} tokens of an hour are used (LOGDOCTOR_LLM_TOKENS_PER_HOUR)"
        return ""

    def _settle(self, job: str, tokens: int, trial: bool, failure: str, retry_after: float | None) -> None:
        """Gives back what was set aside, and learns from how the call went."""
        with self._lock:
            self._pending[job] -= 1
            self._pending += Counter()  # forgets jobs without calls
            self._pending_tokens -= tokens
            self._trial &= not trial
            self._failures = self._failures + 1 if failure else 0
            now = self._clock()
            if not failure:
                self._waits = (0.0, 0.0)
            elif failure == "unavailable" or self._failures >= OPENS_AFTER:
                # a model that answers nonsense is up, and the next run over the sample may fare better
                self._waits = (now, now + self._wait(retry_after))

    def _wait(self, retry_after: float | None) -> float:
        doubled = SHORTEST_WAIT * 2.0 ** min(self._failures - 1, 30)
        wait = min(doubled, LONGEST_WAIT) * (1 + self._chance())
        return max(wait, min(retry_after or 0.0, LONGEST_RETRY_AFTER))

    def _enter(self, job: str, purpose: str, reply: Reply, failure: str) -> None:
        """Writes the call down. One that failed counts what was sent: the server may have read it."""
        budget = self._budget
        dollars = (reply.tokens_in * budget.dollars_in + reply.tokens_out * budget.dollars_out) / 1e6
        with self._lock:
            self._calls[failure or "answered"] += 1
            self._tokens = (self._tokens[0] + reply.tokens_in, self._tokens[1] + reply.tokens_out)
            self._dollars += dollars
        self._ledger.enter(job, self.name, purpose, reply.tokens_in, reply.tokens_out, dollars, failure, self._clock())

    def _state(self, now: float) -> Breaker:
        if self._failures < OPENS_AFTER:
            return "closed"
        since, until = self._waits
        return "open" if since <= now < until else "half-open"


class _Unfit(Exception):
    """An answer that cannot be used, and what the model wrote, if anything."""

    def __init__(self, reply: str | None, nonsense: ModelNonsense) -> None:
        super().__init__()
        self.reply = reply
        self.nonsense = nonsense


def _complaint(reply: str, nonsense: ModelNonsense) -> tuple[Message, Message]:
    """The beginning of the bad answer and what is wrong with it; short, so that the call keeps to its tokens."""
    return (
        Message("assistant", reply[:_SHOWN_TO_MODEL].encode("ascii", "replace").decode()),
        Message(
            "user",
            f"Your answer cannot be used: it {nonsense.cause}. Answer again. Write the JSON object only: no fence, "
            "no words around it, and each backslash of a pattern written twice.",
        ),
    )
