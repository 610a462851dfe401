"""What a proposed rule would have said of the attempts that are kept: where it hits, and whether it is right there."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from logdoctor.llm.masking import mask
from logdoctor.store.learning.confirmed import Past

_SHOWN = 10  # hits of each sort
_MOST_TEXT = 400  # characters of a line that was hit

Says = Literal["agrees", "contradicts", "open"]


class BacktestHit(NamedTuple):
    """A kept attempt in which a proposal hits, with the first line that it hits, without secrets.

    It `agrees` where that failed of the same reason, `contradicts` where a guard refuses it for this hit, and leaves it
    `open` where nobody knows better. `confirmed` when somebody said what the attempt was.
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
    """On how many kept attempts a proposal was tried, the newest first (`complete` when these are all), in how many it
    hits, and some of these, the contradicting ones first."""

    attempts: int = 0
    complete: bool = True
    agree: int = 0
    contradict: int = 0
    open: int = 0
    hits: tuple[BacktestHit, ...] = ()


class BackTest:
    """Writes down what comes of trying proposals on kept attempts, for at most some seconds."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._until, self._clock = clock() + seconds, clock
        self._attempts, self._complete = 0, True
        self._counts: Counter[tuple[int, Says]] = Counter()
        self._hits: dict[tuple[int, Says], list[BacktestHit]] = {}

    def course(self, past: Iterable[Past]) -> Iterator[Past]:
        """Yield the attempts in their order, until the time is over."""
        for one in past:
            if self._clock() >= self._until:
                self._complete = False
                return
            yield one
            self._attempts += 1

    def enter(self, proposal: int, past: Past, lines: Sequence[tuple[str, int]], says: Says) -> None:
        """Note that a proposal, known by its place, hits these lines of an attempt."""
        key = proposal, says
        self._counts[key] += 1
        if len(some := self._hits.setdefault(key, [])) < _SHOWN:
            stream, line = lines[0]
            text = next((kept.text for kept in past.lines if (kept.stream, kept.line) == lines[0]), "")
            text = mask(text)[:_MOST_TEXT]
            where = (past.job, past.attempt, past.outcome, past.reason, past.confirmed)
            some.append(BacktestHit(*where, stream, line, text, says))

    def of(self, proposal: int | None) -> Tried:
        """Return what came of one proposal; of None only on how many attempts the others were tried."""
        if proposal is None:
            return Tried(self._attempts, self._complete)
        sorts: tuple[Says, ...] = ("contradicts", "agrees", "open")
        counts = {says: self._counts[proposal, says] for says in sorts}
        hits = tuple(hit for says in sorts for hit in self._hits.get((proposal, says), ()))
        return Tried(self._attempts, self._complete, counts["agrees"], counts["contradicts"], counts["open"], hits)
