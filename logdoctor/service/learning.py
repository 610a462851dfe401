"""The Log Agent beside the watch: it learns in a thread of its own, and what it learns reaches streams that run.

The watch only collects and asks. Nothing that a model, a miner or a bad row of the database does can hold up a line or
a verdict: lessons wait in a short queue of their own, and an error costs what it is about and no more.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

import numpy as np
import structlog

from logdoctor.compress.filter import Residual
from logdoctor.compress.leftovers import Leftovers
from logdoctor.diagnose.ending import ReportedEnd
from logdoctor.errors import BudgetSpent, LogdoctorError, ModelError, ModelUnavailable
from logdoctor.llm.spending import Guarded
from logdoctor.log_agent.agent import Left, LogAgent
from logdoctor.log_agent.kind import kind_of
from logdoctor.log_agent.model import ModelAgent
from logdoctor.rules.scanner import Scanner
from logdoctor.service.streams import Attempt, Noticed
from logdoctor.store.learned import Source
from logdoctor.store.noticed import Noticed as StoredNotice
from logdoctor.store.records import JobFacts, Records
from logdoctor.types import Group, Verdict

log = structlog.get_logger()

_LESSONS = 32  # that may wait; more are not begun, because the lines will come again
_RECHECKS = 100  # that may wait; more are left out
_REFRESH = 2.0  # seconds between two looks at what others stored
_LOOK = 0.2  # seconds in which a stop is noticed
_REST = 60.0  # seconds without lessons after a model did not answer, at least


class Settled(NamedTuple):
    """An attempt with its final verdict, what learned rules matched and took in it, how it ended, and the error lines
    that an agent noticed in it."""

    kind: str
    job: str
    attempt: int
    hits: Mapping[str, tuple[int, int]]
    verdict: Verdict
    reported: ReportedEnd
    noticed: tuple[Noticed, ...]


class _Lesson(NamedTuple):
    """A lesson of an attempt; the last of one that is over also keeps what hardly repeats, and when the attempt ended
    well its rules may take lines at once. One that is not due looks only which jobs print alike."""

    attempt: Attempt
    kind: str
    groups: list[Group]
    over: bool
    well: bool
    due: bool


class _Earned(NamedTuple):
    """How many lines of an attempt each rule in shadow has matched."""

    kind: str
    lines: Mapping[str, int]


class Learner:
    """Threads that teach, count, recheck, and take up what people changed. All other methods are for the watch.

    `text_of` gives the raw text of a line of a stream of an attempt; `recheck` is called with each settled attempt,
    `reconsider` with one in which error lines were noticed.
    """

    def __init__(
        self,
        agent: LogAgent,
        records: Records,
        text_of: Callable[[Attempt, str, int], str | None],
        recheck: Callable[[Settled], None],
        reconsider: Callable[[Attempt], None],
    ) -> None:
        self.agent = agent
        self._records, self._text_of, self._recheck, self._reconsider = records, text_of, recheck, reconsider
        self._lessons: queue.Queue[_Lesson] = queue.Queue(_LESSONS)
        self._settled: queue.SimpleQueue[Settled | _Earned] = queue.SimpleQueue()
        self._rechecks: queue.Queue[Settled] = queue.Queue(_RECHECKS)
        self._resting_until = 0.0
        self._stopped = threading.Event()
        self._threads = (
            threading.Thread(target=self._teach_for_ever, name="learner", daemon=True),
            threading.Thread(target=self._count_for_ever, name="rule-counter", daemon=True),
            threading.Thread(target=self._recheck_for_ever, name="rechecker", daemon=True),
            threading.Thread(target=self._refresh_for_ever, name="rule-reader", daemon=True),
        )
        self.lines: dict[str, int] = {}
        """Lines that each filter rule took in attempts that were settled since the start."""

    def start(self) -> None:
        """Begin to work."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop after the task at hand; a lesson whose model does not answer is not waited for, and enters nothing."""
        self.agent.stopping = True
        self._stopped.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=2.0)

    @property
    def model(self) -> Guarded | None:
        """The model that is asked, if one is."""
        agents = (self.agent.agent, self.agent.adviser)
        return next((agent.model for agent in agents if isinstance(agent, ModelAgent)), None)

    @property
    def stopping(self) -> bool:
        """Whether the service stops."""
        return self.agent.stopping

    def enroll(self, attempt: Attempt) -> None:
        """Load the rules of an attempt before its snapshots are resumed, which were made with them, and what was
        noticed in it."""
        with _shielded("rules not loaded", attempt):
            self.agent.books.load(self._kind(attempt))
            self._notice(attempt, self.agent.noticed(attempt.job, attempt.number))

    def scanner(self, attempt: Attempt) -> Scanner:
        """The rules for an attempt as they stand now."""
        return self.agent.books.scanner(self._kind(attempt))

    def gather(self, attempt: Attempt, residual: Residual) -> None:
        """Look at what no rule explains of a segment, unless no lesson will come of it."""
        if not self.agent.has_room(attempt.lessons):
            attempt.leftovers = None
            return
        with _shielded("lines not gathered", attempt):
            if attempt.leftovers is None:
                attempt.leftovers = Leftovers(self.agent.known(self._kind(attempt)))
            attempt.leftovers.add(residual)
            self._count_watched(attempt, residual)
            self.collect(attempt, over=False)

    def _count_watched(self, attempt: Attempt, residual: Residual) -> None:
        """Count the lines that rules in shadow match, and tell of those that have shown enough of them."""
        watched = np.unique(residual.scan.shadow[: len(residual.ends)], return_counts=True)
        book = self.scanner(attempt).book
        earned = {}
        for place, lines in zip(*(column.tolist() for column in watched), strict=True):
            if 0 <= place < len(book.filters):
                rule = book.filters[place].id
                before = attempt.watched.get(rule, 0)
                attempt.watched[rule] = before + lines
                if before < self.agent.enough <= before + lines:
                    earned[rule] = before + lines
        if earned:
            self._settled.put(_Earned(self._kind(attempt), earned))

    def collect(self, attempt: Attempt, over: bool) -> None:
        """Hand the lines without an explanation to the thread when they are enough for a lesson."""
        left = attempt.leftovers
        if left is None or attempt.in_lesson:
            return
        if time.monotonic() < self._resting_until:
            return
        due = self.agent.is_due(Left(left.lines_in, left.unexplained, attempt.lessons, left.taught), over)
        if not due and (self.agent.knows(self._kind(attempt)) or not left.is_worth_a_look()):
            return
        attempt.in_lesson = due  # a look holds up no lesson
        try:
            well = attempt.reported.succeeded
            self._lessons.put_nowait(_Lesson(attempt, self._kind(attempt), left.groups(), over, well, due))
            if due:
                left.count_anew()
        except queue.Full:
            attempt.in_lesson = False

    def settled(self, attempt: Attempt, verdict: Verdict, hits: Mapping[str, tuple[int, int]]) -> None:
        """Count what the rules did in an attempt, and have its verdict looked at."""
        removed = {rule: count.lines for rule, count in verdict.compression.rules.items()}
        for rule, lines in removed.items():
            self.lines[rule] = self.lines.get(rule, 0) + lines - attempt.removed.get(rule, 0)
        attempt.removed = removed
        reported, noticed = attempt.reported, tuple(attempt.noticed)
        kind = self._kind(attempt)
        self._settled.put(Settled(kind, attempt.job, attempt.number, hits, verdict, reported, noticed))

    def _kind(self, attempt: Attempt) -> str:
        retold, attempt.is_redescribed = attempt.is_redescribed, False  # first: another thread may set it now
        if retold and not self.agent.knows(attempt.kind or ""):
            attempt.kind, attempt.leftovers = None, None  # nothing of it was read with the rules of another kind
        if attempt.kind is None:
            attempt.kind = kind_of(attempt.job, JobFacts())
            with _shielded("job not looked up", attempt):
                attempt.kind = kind_of(attempt.job, self._facts(attempt))
        return attempt.kind

    def _facts(self, attempt: Attempt) -> JobFacts:
        job = self._records.job(attempt.job)
        return job.facts if job else JobFacts()

    def _refresh_for_ever(self) -> None:
        while not self.stopping:
            with _shielded("rules not taken up"):
                self.agent.refresh()
            self._stopped.wait(_REFRESH)

    def _teach_for_ever(self) -> None:
        while not self.stopping:
            with _shielded("learning failed"):
                try:
                    self._teach(self._lessons.get(timeout=_LOOK))
                except queue.Empty:
                    continue

    def _count_for_ever(self) -> None:
        while not self.stopping:
            with _shielded("rules not counted"):
                try:
                    settled = self._settled.get(timeout=_LOOK)
                except queue.Empty:
                    continue
                if isinstance(settled, _Earned):
                    self.agent.earn(settled.kind, settled.lines)
                    continue
                attempt = settled.job, settled.attempt
                well = settled.reported.succeeded
                self.agent.settle(settled.kind, attempt, settled.hits, settled.verdict, well, time.time())
                with suppress(queue.Full):
                    self._rechecks.put_nowait(settled)

    def _recheck_for_ever(self) -> None:
        while not self.stopping:
            with _shielded("attempt not rechecked"):
                try:
                    self._recheck(self._rechecks.get(timeout=_LOOK))
                except queue.Empty:
                    continue

    def _teach(self, lesson: _Lesson) -> None:
        attempt = lesson.attempt
        try:
            if not (kind := self._taught(lesson)):
                return
            noticed = self.agent.learn(kind, (attempt.job, attempt.number), lesson.groups, self._source(attempt))
            attempt.lessons += 1
            if lesson.over:
                self.agent.carry(kind, lesson.groups)
            if lesson.well or attempt.reported.succeeded:  # it may have ended since
                self.agent.trust(kind, (attempt.job, attempt.number))
            if noticed:
                self._notice(attempt, noticed)
                self._reconsider(attempt)
        except BudgetSpent as error:
            attempt.lessons += 1  # other attempts may have a budget left
            log.warning("no lesson", job=attempt.job, cause=str(error))
        except ModelError as error:
            asked = error.retry_after if isinstance(error, ModelUnavailable) else None
            self._resting_until = time.monotonic() + max(asked or 0.0, _REST)
            log.warning("lesson put off", job=attempt.job, cause=str(error))
        finally:
            if lesson.due:
                attempt.in_lesson = False

    def _taught(self, lesson: _Lesson) -> str:
        """The kind that learns from a lesson, by what the log looks like; another than was told is remembered of the
        job. "" when none does: a model need not be asked for what is known of the kind that was recognised."""
        attempt, reported = lesson.attempt, lesson.kind
        if kind_of(attempt.job, self._facts(attempt)) != reported:
            attempt.is_redescribed = True
            return ""  # more was told meanwhile: its lines come again
        kind = self.agent.recognised(reported, lesson.groups)
        if lesson.due:
            kind = kind or self.agent.new_kind(attempt.job, lesson.groups)
        if kind == reported:
            return kind if lesson.due else ""
        self._records.put_job(attempt.job, JobFacts(like=kind), time.time())
        attempt.is_redescribed = True
        log.info("kind recognised", job=attempt.job, kind=kind)
        return kind if lesson.due and (self.agent.agent.free or not self.agent.knows(kind)) else ""

    def _notice(self, attempt: Attempt, lines: Sequence[StoredNotice]) -> None:
        """Have lines looked at that the agent took for errors, with the text that stands in the log."""
        for one in lines:
            if (text := self._text_of(attempt, one.stream, one.line)) is not None:
                attempt.noticed.append(Noticed(one.stream, one.line, text))

    def _source(self, attempt: Attempt) -> Source:
        facts = self._facts(attempt)
        return Source(attempt.job, attempt.number, facts.framework, facts.image, facts.command, facts.user, facts.name)


@contextmanager
def _shielded(event: str, attempt: Attempt | None = None) -> Iterator[None]:
    """Log what goes wrong inside, and go on behind it."""
    named = {"job": attempt.job, "attempt": attempt.number} if attempt else {}
    try:
        yield
    except LogdoctorError as error:
        log.error(event, cause=str(error), **named)
    except Exception:
        log.exception(event, **named)
