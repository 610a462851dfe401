"""Back-tests of proposed rules on kept attempts: where a rule hits, and whether it is right there."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from logdoctor.llm.masking import mask
from logdoctor.store.learning.confirmed import Past

_SHOWN = 10  # hits of each kind
_MOST_TEXT = 400  # characters of a matched line

Says = Literal["agrees", "contradicts", "open"]


class BacktestHit(NamedTuple):
    """A kept attempt that a proposal hits, with the first matched line, without secrets.

    It `agrees` if the attempt failed for the same reason, `contradicts` if a guard refuses the rule for this hit, and
    is `open` when nobody knows. `confirmed`: somebody said what the attempt was.
    """

    job: str
    attempt: int
    outcome: str
    reason: str
    confirmed: bool
    stream: str
    line: int
    text: str
    says: Says


class Tried(NamedTuple):
    """How many kept attempts a proposal was tried on, the newest first (`complete`: all of them), how many it hits, and
    some of these, contradicting ones first."""

    attempts: int = 0
    complete: bool = True
    agree: int = 0
    contradict: int = 0
    open: int = 0
    hits: tuple[BacktestHit, ...] = ()


class BackTest:
    """Collects results of trying proposals on kept attempts, within a time limit in seconds."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._until, self._clock = clock() + seconds, clock
        self._attempts, self._complete = 0, True
        self._counts: Counter[tuple[int, Says]] = Counter()
        self._hits: dict[tuple[int, Says], list[BacktestHit]] = {}

    def course(self, past: Iterable[Past]) -> Iterator[Past]:
        """Yield the attempts in order until time is up."""
        for one in past:
            if self._clock() >= self._until:
                self._complete = False
                return
            yield one
            self._attempts += 1

    def enter(self, proposal: int, past: Past, lines: Sequence[tuple[str, int]], says: Says) -> None:
        """Record that a proposal, given by its index, hits these lines of an attempt."""
        key = proposal, says
        self._counts[key] += 1
        if len(some := self._hits.setdefault(key, [])) < _SHOWN:
            stream, line = lines[0]
            text = next((kept.text for kept in past.lines if (kept.stream, kept.line) == lines[0]), "")
            text = mask(text)[:_MOST_TEXT]
            where = (past.job, past.attempt, past.outcome, past.reason, past.confirmed)
            some.append(BacktestHit(*where, stream, line, text, says))

    def of(self, proposal: int | None) -> Tried:
        """Return the results of one proposal; for None only the number of attempts tried."""
        if proposal is None:
            return Tried(self._attempts, self._complete)
        sorts: tuple[Says, ...] = ("contradicts", "agrees", "open")
        counts = {says: self._counts[proposal, says] for says in sorts}
        hits = tuple(hit for says in sorts for hit in self._hits.get((proposal, says), ()))
        return Tried(self._attempts, self._complete, counts["agrees"], counts["contradicts"], counts["open"], hits)
