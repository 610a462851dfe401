"""What is in memory of an attempt that is being sent: its streams, and where each stands."""

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
"""The shard of attempts that are not held, which nobody owns."""


class NoticedLine(NamedTuple):
    """A line that the Log Agent took for an error: its stream, number and raw text."""

    stream: str
    line: int
    text: str


class StreamScan:
    """The compression of one stream, with the rules that it was last told of. Only the watch uses it."""

    def __init__(self, cutter: Cutter, recorder: Recorder, scanner: Scanner) -> None:
        self.cutter, self.recorder, self.scanner = cutter, recorder, scanner
        self.finished = False  # the last line was taken although no newline came
        self.kept_at = cutter.offset  # where the last snapshot was taken
        self.kept_bytes = 0


class LiveStream:
    """One stream. What is not said to be the watch's own is guarded by the lock of its `Holding`.

    `durable` bytes were read from the log, `archived` ones are in the archive, `unarchived` are those between the two.
    `unscanned` holds bytes that the watch has not seen, once it has caught up with the archive (`ready`).
    """

    def __init__(
        self, key: Key, attempt: "LiveAttempt", standing: Standing, now: float, archived_lines: int = 0
    ) -> None:
        self.key, self.attempt = key, attempt
        self.durable = self.archived = standing.archived
        self.archived_lines = archived_lines
        self.stood = standing.next  # bytes that archive and log had when it was loaded, or that were read since
        self.state, self.problem = standing.state, standing.problem
        self.unarchived: list[bytes] = []
        self.unscanned: list[tuple[float, bytes]] = []  # with the time when they came
        self.unscanned_bytes = 0
        self.ready = not standing.archived
        self.scan: StreamScan | None = None
        self.failed_at = self.retry_at = 0.0  # since when the watch cannot read it, and when it tries again
        self.last_at = self.progress_at = now
        self.losses = Losses()
        self.bar: list[float] = []  # the steps that the bar of its unfinished line showed

    @property
    def waiting_since(self) -> float | None:
        """When the oldest bytes came that wait for compression."""
        return self.unscanned[0][0] if self.unscanned else None

    @property
    def counted(self) -> tuple[int, int]:
        """How many lines were compressed so far, and how many of these left."""
        account = self.scan.recorder.account if self.scan else None
        return (account.lines_in, account.lines_kept) if account else (0, 0)


class LiveAttempt:
    """One attempt in memory, of a shard that this worker has `owned`. `changed_at` is when bytes of it last came.

    `ends` tells how its streams ended, "" how the whole of it did; `settled` when a final verdict stands, `asked` when
    one is wanted now, `abandoned` when the end was only supposed, `reopened` when bytes came after the final verdict,
    `provisional` when a verdict stands that is not final, `anew` when what a past case said counts no more.
    `is_counted` when its first final verdict was.
    `loss_turned` when its loss has gone bad or good again since it was looked at.
    `problems` are those of streams that cannot be read; `is_dropped` when it is not held any more, and not all of it
    may have been read.
    `kind`, `leftovers`, `lessons`, `watched`, `in_lesson` and `noticed` are of the Log Agent: what jobs it prints like
    (None: not looked up yet), the lines without an explanation, how often and whether now they are learned from, how
    many lines rules in shadow matched, and error lines found there; `is_redescribed` when more was said about its job
    since; `is_enrolled` whether what was noticed before it was loaded is known. `removed` is how many lines each filter
    rule took when that was last counted.
    """

    def __init__(self, job: str, number: int, owned: Owned, changed_at: float = 0.0) -> None:
        self.job, self.number, self.owned = job, number, owned
        self.streams: dict[str, LiveStream] = {}
        self.ends: dict[str, End] = {}
        self.awaited = 0  # the row of the log up to which all is read before it is judged
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
        self.told_at = 0.0  # when an end was last told
        self.is_enrolled = True

    @property
    def over(self) -> bool:
        """Whether everything that was known to run has ended."""
        return "" in self.ends or (bool(self.ends) and self.streams.keys() <= self.ends.keys())

    @property
    def ended(self) -> set[str]:
        """The streams to which nothing is expected to be added."""
        return set(self.streams) if "" in self.ends else self.streams.keys() & self.ends.keys()

    @property
    def ending(self) -> End | None:
        """How the attempt ended: as was said of the whole, else the first of its streams that failed; that others
        ended well tells something only when all did."""
        if "" in self.ends and not self.abandoned:
            return self.ends[""]
        failed = [end for end in self.ends.values() if end.exit_code or end.signal]
        ends = failed or (list(self.ends.values()) if self.over else [])
        return min(ends, key=lambda end: end.at, default=None)

    @property
    def reported(self) -> ReportedEnd:
        """What was said of its end, or of that of a part of it that failed."""
        ending = self.ending
        return NOTHING if ending is None else ReportedEnd(ending.exit_code, ending.signal, ending.scheduler_state)

    @property
    def died(self) -> bool:
        """Whether its end, or that of a part of it, is known to be a failure."""
        return self.reported.failed
