"""The Log Agent beside the watch: it learns in its own thread, and running streams use what it learns.

The watch only collects and asks. No model, miner or bad row of the database can hold up a line or a verdict. Lessons
wait in memory: a few of ended attempts keep their lines, the others read them from the archive later. Counting and
rechecks are queued as rows (store/keeping/work.py).
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import structlog

from logdoctor.compress.filter import Residual
from logdoctor.compress.leftovers import Leftovers
from logdoctor.diagnose.ending import ReportedEnd
from logdoctor.errors import BudgetSpent, ModelError, ModelUnavailable
from logdoctor.learning.filters.agent import Left, LogAgent
from logdoctor.learning.filters.kind import kind_of
from logdoctor.learning.filters.model import ModelAgent
from logdoctor.llm.spending import Guarded
from logdoctor.rules.scanner import Scanner
from logdoctor.service.leading import alone
from logdoctor.service.parts import Parts
from logdoctor.service.streams import NOBODY, LiveAttempt, NoticedLine
from logdoctor.service.task_runner import TaskRunner
from logdoctor.service.turns import Turns, shielded
from logdoctor.store.jobs.records import JobFacts, Records
from logdoctor.store.keeping.work import COUNT, RECHECK, NewWork, Work, WorkItem, key_of
from logdoctor.store.learning.learned import Source
from logdoctor.store.learning.noticed import Noticed as StoredNotice
from logdoctor.types import ShapeGroup, Verdict

log = structlog.get_logger()

_WITH_LINES = 32  # waiting lessons beyond which one of an ended attempt no longer keeps its lines
_LOOKS = 32  # waiting lessons beyond which none that only recognises the kind is added: its lines come again
_REFRESH = 2.0  # seconds between checks for rules that others stored
_IDLE = 60.0  # seconds
_STOP_SECONDS = 2.0
_REST = 60.0  # least seconds without lessons after a model did not answer


class SettledAttempt(NamedTuple):
    """An attempt with its final verdict, what learned rules matched and took, its reported end, and the error lines an
    agent noticed."""

    kind: str
    job: str
    attempt: int
    hits: dict[str, tuple[int, int]]
    verdict: Verdict
    reported: ReportedEnd
    noticed: tuple[NoticedLine, ...]


class _Lesson(NamedTuple):
    """A lesson of an attempt, which may leave memory meanwhile. `groups` are its lines; None: read the archive.

    If the attempt is over, the lesson also keeps what hardly repeats; if it ended well, its rules may take lines at
    once. A lesson that is not due only recognises which jobs print alike.
    """

    job: str
    number: int
    kind: str
    groups: list[ShapeGroup] | None
    over: bool
    well: bool
    due: bool


class _Earned(NamedTuple):
    """How many lines of an attempt each rule in shadow has matched."""

    kind: str
    lines: Mapping[str, int]


_settled = msgspec.json.Decoder(SettledAttempt)


class Learner:
    """Threads that teach, count, recheck, and load what people changed. All other methods are for the watch. Only a
    leader (`leads`) counts and rechecks.

    `text_of` returns a raw line of an attempt; `recheck` is called with each settled attempt, `reconsider` with one in
    which error lines were noticed. `live` returns an attempt in memory, `reread` adds the archived lines of one to
    leftovers. Lessons wait for `leisure`: they take a core, and compression comes first.
    """

    def __init__(
        self,
        agent: LogAgent,
        records: Records,
        work: Work,
        text_of: Callable[[LiveAttempt, str, int], str | None],
        recheck: Callable[[SettledAttempt], None],
        reconsider: Callable[[LiveAttempt], None],
        live: Callable[[str, int], LiveAttempt | None],
        reread: Callable[[str, int, Scanner, Leftovers], None],
        leisure: Callable[[], bool],
        leads: Callable[[], bool] = alone,
    ) -> None:
        self.agent = agent
        self._records, self._text_of, self._reconsider = records, text_of, reconsider
        self._live, self._reread = live, reread
        self._work = work
        self._lessons: deque[_Lesson] = deque()
        self._earned: deque[_Earned] = deque()
        self._resting_until = 0.0
        self._teacher = Turns("learner", self._teach_next, may=leisure)
        self._reader = Turns("rule-reader", self._refresh)
        self._counter = TaskRunner("rule-counter", work, {COUNT: self._count}, leads=leads)
        rechecks = {RECHECK: lambda item: recheck(_settled.decode(item.body))}
        self._rechecker = TaskRunner("rechecker", work, rechecks, leads=leads)
        self.lines: dict[str, int] = {}
        """Lines that each filter rule took in attempts settled since the start."""

    def start(self, parts: Parts) -> None:
        """Start: a process that scans learns from what it reads, one that serves does the queued work."""
        for one in self._threads(parts):
            one.start()

    def stop(self) -> None:
        """Stop after the current task; a lesson whose model does not answer is abandoned and stores nothing."""
        self.agent.stopping = True
        threads = self._threads(Parts())
        for one in threads:
            one.stop()
        for one in threads:
            one.join(_STOP_SECONDS)

    def _threads(self, parts: Parts) -> list[Turns | TaskRunner]:
        scanning: list[Turns | TaskRunner] = [self._teacher] if parts.scans else []
        serving: list[Turns | TaskRunner] = [self._counter, self._rechecker] if parts.serves else []
        return [*scanning, *serving, self._reader]

    @property
    def model(self) -> Guarded | None:
        """The model that is asked, if any."""
        agents = (self.agent.agent, self.agent.adviser)
        return next((agent.model for agent in agents if isinstance(agent, ModelAgent)), None)

    @property
    def filtered_lines(self) -> int:
        """Lines that filter rules took in attempts settled since the start."""
        return sum(list(self.lines.values()))

    @property
    def stopping(self) -> bool:
        """Whether the service is stopping."""
        return self.agent.stopping

    def enroll(self, attempt: LiveAttempt) -> None:
        """Load an attempt's rules and noticed lines, before resuming snapshots made with them."""
        with shielded("rules not loaded", job=attempt.job, attempt=attempt.number):
            self.agent.books.load(self._kind(attempt))
            self._notice(attempt, self.agent.noticed(attempt.job, attempt.number))

    def scanner(self, attempt: LiveAttempt) -> Scanner:
        """Return the current rules for an attempt."""
        return self.agent.books.scanner(self._kind(attempt))

    def gather(self, attempt: LiveAttempt, residual: Residual) -> None:
        """Collect the unexplained lines of a segment, unless the attempt has had all its lessons."""
        if not self.agent.has_room(attempt.lessons):
            attempt.leftovers = None
            return
        with shielded("lines not gathered", job=attempt.job, attempt=attempt.number):
            if attempt.leftovers is None:
                attempt.leftovers = Leftovers(self.agent.known(self._kind(attempt)))
            attempt.leftovers.add(residual)
            self._count_watched(attempt, residual)
            self.collect(attempt, over=False)

    def _count_watched(self, attempt: LiveAttempt, residual: Residual) -> None:
        """Count the lines that shadow rules match, and queue rules with enough matches."""
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
            self._earned.append(_Earned(self._kind(attempt), earned))
            self._reader.wake()

    def collect(self, attempt: LiveAttempt, over: bool) -> None:
        """Queue the unexplained lines as a lesson once there are enough."""
        left = attempt.leftovers
        if left is None or attempt.in_lesson:
            return
        if time.monotonic() < self._resting_until:
            return
        due = self.agent.is_due(Left(left.lines_in, left.unexplained, attempt.lessons, left.taught), over)
        if not due and (self.agent.knows(self._kind(attempt)) or not left.is_worth_a_look()):
            return
        if not due and len(self._lessons) >= _LOOKS:
            return
        attempt.in_lesson = due  # recognising a kind holds up no lesson
        groups = None if over and due and len(self._lessons) >= _WITH_LINES else left.groups()
        well = attempt.reported.succeeded
        self._lessons.append(_Lesson(attempt.job, attempt.number, self._kind(attempt), groups, over, well, due))
        if due:
            left.count_anew()
        self._teacher.wake()

    def due(self, attempt: LiveAttempt, verdict: Verdict, hits: dict[str, tuple[int, int]]) -> NewWork:
        """Return the queued work of an attempt about to be settled: count its rules, and check its verdict."""
        reported, noticed = attempt.reported, tuple(attempt.noticed)
        settled = SettledAttempt(self._kind(attempt), attempt.job, attempt.number, hits, verdict, reported, noticed)
        return NewWork(COUNT, key_of(attempt.job, attempt.number), msgspec.json.encode(settled).decode())

    def settled(self, attempt: LiveAttempt, verdict: Verdict) -> None:
        """Learn from the last lines of a settled attempt, and count its filtered lines."""
        self.collect(attempt, over=True)
        removed = {rule: count.lines for rule, count in verdict.compression.rules.items()}
        for rule, lines in removed.items():
            self.lines[rule] = self.lines.get(rule, 0) + lines - attempt.removed.get(rule, 0)
        attempt.removed = removed
        self._counter.wake()

    def _kind(self, attempt: LiveAttempt) -> str:
        retold, attempt.is_redescribed = attempt.is_redescribed, False  # first: another thread may set it now
        if retold and not self.agent.knows(attempt.kind or ""):
            attempt.kind, attempt.leftovers = None, None  # none of its lines were read with rules of another kind
        if attempt.kind is None:
            attempt.kind = kind_of(attempt.job, JobFacts())
            with shielded("job not looked up", job=attempt.job, attempt=attempt.number):
                attempt.kind = kind_of(attempt.job, self._facts(attempt))
        return attempt.kind

    def _facts(self, attempt: LiveAttempt) -> JobFacts:
        job = self._records.job(attempt.job)
        return job.facts if job else JobFacts()

    def _refresh(self) -> float:
        """Promote rules that have matched enough, and load what others changed; return seconds until the next turn."""
        while self._earned:
            earned = self._earned.popleft()
            with shielded("rules not promoted", kind=earned.kind):
                self.agent.earn(earned.kind, earned.lines)
        self.agent.refresh()
        return _REFRESH

    def _teach_next(self) -> float:
        """Teach the oldest lesson, unless the model is resting; return the seconds until the next."""
        if not self._lessons:
            return _IDLE
        if (rest := self._resting_until - time.monotonic()) > 0:
            return rest
        with shielded("learning failed"):
            self._teach(self._lessons.popleft())
        return 0.0

    def _count(self, item: WorkItem) -> None:
        """Count what rules did in a settled attempt; queue a recheck of its failure if they took lines of it."""
        settled = _settled.decode(item.body)
        attempt, well = (settled.job, settled.attempt), settled.reported.succeeded
        self.agent.settle(settled.kind, attempt, settled.hits, settled.verdict, well, time.time())
        if settled.verdict.outcome == "failed" and any(taken for _, taken in settled.hits.values()):
            self._work.enter([NewWork(RECHECK, item.key, item.body)], time.time())
            self._rechecker.wake()

    def _teach(self, lesson: _Lesson) -> None:
        attempt = self._attempt(lesson)
        try:
            groups = self._groups(lesson)
            if not (kind := self._taught(lesson, attempt, groups)):
                return
            noticed = self.agent.learn(kind, (attempt.job, attempt.number), groups, self._source(attempt))
            attempt.lessons += 1
            if lesson.over:
                self.agent.carry(kind, groups)
            if lesson.well or attempt.reported.succeeded:  # it may have ended since
                self.agent.trust(kind, (attempt.job, attempt.number))
            if noticed:
                self._notice(attempt, noticed)
                self._reconsider(attempt)
        except BudgetSpent as error:
            attempt.lessons += 1  # other attempts may have budget left
            log.warning("no lesson", job=attempt.job, cause=str(error))
        except ModelError as error:
            asked = error.retry_after if isinstance(error, ModelUnavailable) else None
            self._resting_until = time.monotonic() + max(asked or 0.0, _REST)
            log.warning("lesson put off", job=attempt.job, cause=str(error))
        finally:
            if lesson.due:
                attempt.in_lesson = False

    def _attempt(self, lesson: _Lesson) -> LiveAttempt:
        """Return the attempt of a lesson; one that left memory has only what a lesson needs."""
        if found := self._live(lesson.job, lesson.number):
            return found
        attempt = LiveAttempt(lesson.job, lesson.number, NOBODY)
        if stored := self._records.attempt(lesson.job, lesson.number):
            attempt.ends = {end.stream: end for end in stored.ends}
        return attempt

    def _groups(self, lesson: _Lesson) -> list[ShapeGroup]:
        if lesson.groups is not None:
            return lesson.groups
        left = Leftovers(self.agent.known(lesson.kind))
        self._reread(lesson.job, lesson.number, self.agent.books.scanner(lesson.kind), left)
        return left.groups()

    def _taught(self, lesson: _Lesson, attempt: LiveAttempt, groups: Sequence[ShapeGroup]) -> str:
        """Return the kind that learns from a lesson, recognised by its lines. It is recorded if it differs from the
        reported one. "" when none does: no model need be asked about a recognised kind that is known."""
        reported = lesson.kind
        if kind_of(attempt.job, self._facts(attempt)) != reported:
            attempt.is_redescribed = True
            return ""  # more was reported meanwhile: its lines come again
        kind = self.agent.recognised(reported, groups)
        if lesson.due:
            kind = kind or self.agent.new_kind(attempt.job, groups)
        if kind == reported:
            return kind if lesson.due else ""
        self._records.put_job(attempt.job, JobFacts(like=kind), time.time())
        attempt.is_redescribed = True
        log.info("kind recognised", job=attempt.job, kind=kind)
        return kind if lesson.due and (self.agent.agent.free or not self.agent.knows(kind)) else ""

    def _notice(self, attempt: LiveAttempt, lines: Sequence[StoredNotice]) -> None:
        """Add the lines that the agent took for errors, with their text from the log."""
        for one in lines:
            if (text := self._text_of(attempt, one.stream, one.line)) is not None:
                attempt.noticed.append(NoticedLine(one.stream, one.line, text))

    def _source(self, attempt: LiveAttempt) -> Source:
        facts = self._facts(attempt)
        return Source(attempt.job, attempt.number, facts.framework, facts.image, facts.command, facts.user, facts.name)
