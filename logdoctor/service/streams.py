"""The memory of a live attempt: its streams and their offsets."""

from collections.abc import Iterable
from typing import NamedTuple

from logdoctor.compress.cut import Cutter
from logdoctor.compress.excerpt import Recorder
from logdoctor.compress.leftovers import Leftovers
from logdoctor.diagnose.ending import NOTHING, ReportedEnd
from logdoctor.rules.scanner import Scanner
from logdoctor.service.live.losses import Losses
from logdoctor.service.live.pace import Pace
from logdoctor.store.jobs.records import End
from logdoctor.store.log.shards import Owned
from logdoctor.store.log.table import Standing
from logdoctor.store.names import Key

NOBODY = Owned(-1, -1)
"""The shard of attempts that are not held: nobody owns it."""


class NoticedLine(NamedTuple):
    """A line that the Log Agent took for an error: its stream, number and raw text."""

    stream: str
    line: int
    text: str


class StreamScan:
    """The compression of one stream, with the rules last set. For the watch only."""

    def __init__(self, cutter: Cutter, recorder: Recorder, scanner: Scanner) -> None:
        self.cutter, self.recorder, self.scanner = cutter, recorder, scanner
        self.finished = False  # the last line was taken without a newline
        self.kept_at = cutter.offset  # offset of the last snapshot
        self.kept_bytes = 0


class LiveStream:
    """One stream, guarded by the lock of its `Holding` except for what is the watch's own.

    `durable` bytes were read from the log, `archived` ones are in the archive, `unarchived` are those in between.
    `unscanned` holds bytes that the watch has not seen, once it has caught up with the archive (`ready`).
    """

    def __init__(
        self, key: Key, attempt: "LiveAttempt", standing: Standing, now: float, archived_lines: int = 0
    ) -> None:
        self.key, self.attempt = key, attempt
        self.durable = self.archived = standing.archived
        self.archived_lines = archived_lines
        self.stood = standing.next  # bytes in archive and log when it was loaded, or read since
        self.state, self.problem = standing.state, standing.problem
        self.unarchived: list[bytes] = []
        self.unscanned: list[tuple[float, bytes]] = []  # with their arrival times
        self.unscanned_bytes = 0
        self.ready = not standing.archived
        self.scan: StreamScan | None = None
        self.failed_at = self.retry_at = 0.0  # since when the watch cannot read it, and when it retries
        self.last_at = self.progress_at = now
        self.losses = Losses()
        self.bar: list[float] = []  # steps shown by the bar in its unfinished line

    @property
    def waiting_since(self) -> float | None:
        """When the oldest bytes that wait for compression arrived."""
        return self.unscanned[0][0] if self.unscanned else None

    @property
    def counted(self) -> tuple[int, int]:
        """Numbers of lines compressed so far, and of lines left of them."""
        account = self.scan.recorder.account if self.scan else None
        return (account.lines_in, account.lines_kept) if account else (0, 0)


class LiveAttempt:
    """One attempt in memory, of a shard that this worker has `owned`. `changed_at` is when bytes of it last came.

    `ends` has the ends of its streams, "" that of the whole; `settled`: a final verdict stands; `asked`: a verdict is
    requested now; `abandoned`: its end was only assumed; `reopened`: bytes came after the final verdict; `provisional`:
    a verdict stands that is not final; `anew`: the case that decided it was withdrawn; `is_counted`: its first final
    verdict was counted; `loss_turned`: its loss went bad or good again since it was last judged.

    `problems` are those of unreadable streams; `is_dropped`: it is no longer held, and may not have been read to its
    end.

    For the Log Agent: `kind` (None: not looked up yet), `leftovers` (unexplained lines), `lessons` taught, `watched`
    lines by rule in shadow, `in_lesson` (one is running), `noticed` error lines, `is_redescribed` (more was reported
    about its job), `is_enrolled` (lines noticed before it was loaded are known), and `removed` lines by filter rule, as
    last counted.
    """

    def __init__(self, job: str, number: int, owned: Owned, changed_at: float = 0.0) -> None:
        self.job, self.number, self.owned = job, number, owned
        self.streams: dict[str, LiveStream] = {}
        self.ends: dict[str, End] = {}
        self.awaited = 0  # the row of the log to read up to before it is judged
        self.is_dropped = False
        self.settled = self.asked = self.abandoned = self.reopened = self.provisional = self.anew = False
        self.loss_turned = self.is_counted = False
        self.problems: dict[str, str] = {}
        self.pace = Pace()
        self.kind: str | None = None
        self.is_redescribed = False
        self.leftovers: Leftovers | None = None
        self.lessons = 0
        self.watched: dict[str, int] = {}
        self.in_lesson = False
        self.noticed: list[NoticedLine] = []
        self.removed: dict[str, int] = {}
        self.judged_at = self.judged_for = 0.0  # when the last verdict was made, and how long that took
        self.changed_at = self.looked_at = changed_at
        self.told_at = 0.0  # when an end was last reported
        self.is_enrolled = True

    @property
    def over(self) -> bool:
        """Whether everything known to run has ended."""
        return "" in self.ends or (bool(self.ends) and self.streams.keys() <= self.ends.keys())

    @property
    def ended(self) -> set[str]:
        """The streams that have ended."""
        return set(self.streams) if "" in self.ends else self.streams.keys() & self.ends.keys()

    @property
    def ending(self) -> End | None:
        """The end of the attempt: that reported of the whole, else of the first stream that failed. Streams that ended
        well count only once all have ended."""
        if "" in self.ends and not self.abandoned:
            return self.ends[""]
        failed = [end for end in self.ends.values() if end.exit_code or end.signal]
        ends = failed or (list(self.ends.values()) if self.over else [])
        return min(ends, key=lambda end: end.at, default=None)

    @property
    def reported(self) -> ReportedEnd:
        """The reported end of the attempt, or of a part that failed."""
        ending = self.ending
        return reported_by([ending] if ending else [])

    @property
    def died(self) -> bool:
        """Whether the attempt, or a part of it, is known to have failed."""
        return self.reported.failed


def reported_by(ends: Iterable[End]) -> ReportedEnd:
    """Return the end that was reported of a settled attempt: that of the whole, else that of the first stream that
    failed."""
    ends = sorted(ends, key=lambda end: (end.stream != "", not (end.exit_code or end.signal), end.at))
    if not ends:
        return NOTHING
    return ReportedEnd(ends[0].exit_code, ends[0].signal, ends[0].scheduler_state)
