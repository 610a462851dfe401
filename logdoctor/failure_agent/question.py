"""What is asked: why one attempt failed that the rules could not explain."""

from dataclasses import dataclass
from typing import Protocol

from logdoctor.compress.whole_log import MatchedLines
from logdoctor.diagnose.ending import NOTHING, ReportedEnd
from logdoctor.diagnose.episodes import Episode, of_examined
from logdoctor.diagnose.examine import examine
from logdoctor.diagnose.verdict import Examined
from logdoctor.rules.load import RuleBook
from logdoctor.rules.once import once
from logdoctor.types import Record, Verdict


class Log(Protocol):
    """The whole log of an attempt, to be looked into; what comes out is bounded in bytes and time."""

    def streams(self) -> list[str]:
        """Return the names of the streams."""
        ...

    def window(self, stream: str, first: int, last: int) -> list[tuple[int, str]]:
        """Return the lines of a stream from one number to another, those that are still there."""
        ...

    def grep(self, pattern: str, stream: str | None, most: int) -> MatchedLines:
        """Return the lines that a pattern matches, of one stream or of all; of more than so many the first and the last
        half."""
        ...


@dataclass(frozen=True, eq=False)
class Question:
    """One attempt, as the rules left it. `verdict` is theirs; `reported` is its end as others tell it.

    `log` is None where only the records are at hand. What the diagnosis knows of it is made when it is first asked for.
    """

    job: str
    attempt: int
    records: list[Record]
    book: RuleBook
    verdict: Verdict
    log: Log | None = None
    reported: ReportedEnd = NOTHING
    is_blind: bool = False
    """Whether who is asked is not told what the rules say, because a second reader must judge alone."""

    @once
    def case(self) -> Examined:
        """All that is known about the attempt, or about its last run where a log holds several."""
        return examine(self.records, self.book, self.reported.failed)

    @once
    def episodes(self) -> list[Episode]:
        """Its episodes, the most suspicious first."""
        return of_examined(self.case)
