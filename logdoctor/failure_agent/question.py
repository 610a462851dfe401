"""What is asked: why one attempt failed that the rules could not explain."""

from typing import NamedTuple, Protocol

from logdoctor.diagnose.episodes import Episode
from logdoctor.rules.load import RuleBook
from logdoctor.types import Record, Verdict


class Log(Protocol):
    """The whole log of an attempt, to be looked into; what comes out is bounded in bytes and time."""

    def streams(self) -> list[str]:
        """Return the names of the streams."""
        ...

    def window(self, stream: str, first: int, last: int) -> list[tuple[int, str]]:
        """Return the lines of a stream from one number to another, those that are still there."""
        ...

    def grep(self, pattern: str, stream: str | None, most: int) -> list[tuple[str, int, str]]:
        """Return at most so many lines that a pattern matches, as (stream, number, text), of one stream or of all."""
        ...


class Question(NamedTuple):
    """One attempt, as the rules left it. `verdict` is theirs; `episodes` come the most suspicious first.

    `log` is None where only the records are at hand.
    """

    job: str
    attempt: int
    records: list[Record]
    book: RuleBook
    verdict: Verdict
    episodes: list[Episode]
    log: Log | None = None
    idle: float | None = None
