"""What is in memory of an attempt that is being sent: its streams, and where each stands."""

import time
from collections import OrderedDict
from concurrent.futures import Future
from typing import NamedTuple

from logdoctor.compress.cut import Cutter
from logdoctor.compress.excerpt import Recorder
from logdoctor.compress.leftovers import Leftovers
from logdoctor.diagnose.ending import NOTHING, ReportedEnd
from logdoctor.rules.scanner import Scanner
from logdoctor.store.archive import StreamFile
from logdoctor.store.journal import JournalEntry
from logdoctor.store.names import Key
from logdoctor.store.records import End


class Standing(NamedTuple):
    """Where a stream stands: the byte to send next, lines received, lines compressed so far, lines left of these."""

    next_offset: int
    lines_in: int
    lines_scanned: int
    lines_kept: int


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
    """One stream. What is not said to be the watch's own is guarded by the lock of the intake.

    `accepted` bytes are numbered, `durable` ones acknowledged, `archived` ones in the file; `unarchived` holds
    those between the last two. `unscanned` holds durable bytes that the watch has not seen, once it has caught
    up with the file (`ready`).
    """

    def __init__(self, key: Key, file: StreamFile, attempt: "LiveAttempt") -> None:
        self.key, self.file, self.attempt = key, file, attempt
        self.accepted = self.durable = self.archived = file.offset
        self.lines_in = file.newlines
        self.unarchived: list[JournalEntry] = []
        self.unscanned: list[tuple[float, bytes]] = []  # with the time when they came
        self.unscanned_bytes = 0
        self.ready = not file.offset
        self.scan: StreamScan | None = None
        self.users = 0
        self.marks: OrderedDict[str, Future[None] | None] = OrderedDict.fromkeys(file.marks)
        self.futures: list[tuple[int, Future[None]]] = []
        self.failures = 0  # of the watch to read it
        self.last_at = self.progress_at = time.monotonic()

    @property
    def waiting_since(self) -> float | None:
        """When the oldest bytes came that wait for compression."""
        return self.unscanned[0][0] if self.unscanned else None

    def standing(self) -> Standing:
        """Where the stream stands now."""
        scan = self.scan
        if scan is None:
            return Standing(self.durable, self.lines_in, 0, 0)
        account = scan.recorder.account
        return Standing(self.durable, self.lines_in, account.lines_in, account.lines_kept)


class LiveAttempt:
    """One attempt in memory. `age` are the seconds since something came of it.

    `ends` tells how its streams ended, "" how the whole of it did; `settled` when a final verdict stands, `asked` when
    one is wanted now, `abandoned` when the end was only supposed, `reopened` when bytes came after the final verdict,
    `provisional` when a verdict stands that is not final, `anew` when what a past case said counts no more.
    `problems` are those of streams that cannot be read.
    `kind`, `leftovers`, `lessons`, `watched`, `in_lesson` and `noticed` are of the Log Agent: what jobs it prints like
    (None: not looked up yet), the lines without an explanation, how often and whether now they are learned from, how
    many lines rules in shadow matched, and error lines found there; `is_redescribed` when more was said about its job
    since. `removed` is how many lines each filter rule took when that was last counted.
    """

    def __init__(self, job: str, number: int, age: float = 0.0) -> None:
        self.job, self.number = job, number
        self.streams: dict[str, LiveStream] = {}
        self.ends: dict[str, End] = {}
        self.settled = self.asked = self.abandoned = self.reopened = self.provisional = self.anew = False
        self.problems: dict[str, str] = {}
        self.kind: str | None = None
        self.is_redescribed = False
        self.leftovers: Leftovers | None = None
        self.lessons = 0
        self.watched: dict[str, int] = {}
        self.in_lesson = False
        self.noticed: list[NoticedLine] = []
        self.removed: dict[str, int] = {}
        self.judged_at = self.judged_for = 0.0  # when the last verdict was made, and how long that took
        self.changed_at = self.looked_at = time.monotonic() - age

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
