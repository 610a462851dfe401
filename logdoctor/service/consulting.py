"""The Failure Agent beside the watch: asks past cases, and last a model, about what no rule knows.

The verdict by rules is out before any of this begins. A sure answer replaces it; a rung that fails, a silent model or a
stop in between changes nothing. Confirmations are taught here, too.
"""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Generic, NamedTuple, Protocol, TypeVar

import structlog

from logdoctor.diagnose.ending import NOTHING, ReportedEnd
from logdoctor.diagnose.taught import Taught
from logdoctor.diagnose.witnesses import separate
from logdoctor.errors import LogdoctorError, ModelError, ModelUnavailable
from logdoctor.failure_agent.doubt import is_confirmed
from logdoctor.failure_agent.ladder import Ladder
from logdoctor.failure_agent.question import Log, Question
from logdoctor.learning.diagnoses.confirming import confirmation_of, naming
from logdoctor.learning.diagnoses.past import kept
from logdoctor.learning.diagnoses.teacher import Preview, Teacher
from logdoctor.llm.spending import Guarded
from logdoctor.rules.load import RuleBook
from logdoctor.service.leading import alone
from logdoctor.service.parts import Parts
from logdoctor.service.task_runner import NotYet, TaskRunner
from logdoctor.service.turns import Turns, shielded
from logdoctor.store.keeping.work import (
    ASK,
    FORGET,
    LOOK_UP,
    OPEN_FAILURES,
    SETTLED,
    TEACH,
    NewWork,
    Work,
    WorkItem,
    attempt_of,
    key_of,
)
from logdoctor.store.learning.confirmed import (
    AGREEMENT,
    Confirmation,
    Confirmed,
    Kept,
    NewConfirmation,
    as_text,
    from_text,
)
from logdoctor.types import Record, Verdict

log = structlog.get_logger()
T = TypeVar("T")

_AT_HAND = 32  # attempts whose records stay in memory until they are looked up; others are read again
_REFRESH = 2.0  # seconds between checks for confirmations and approvals by other processes
_RETRY, _LONGEST = 60.0, 3600.0  # seconds before a model that did not answer is asked again
_GIVE_UP = 86_400.0  # seconds after which it is no longer asked
_STOP_SECONDS = 2.0


class Judged(NamedTuple):
    """An attempt with its final verdict by rules, the records and rules behind it, and its end as reported."""

    job: str
    attempt: int
    records: list[Record]
    book: RuleBook
    verdict: Verdict
    reported: ReportedEnd = NOTHING


class Climbing(NamedTuple):
    """The ladder above the rules, the teacher, how to refresh cases, how to load search libraries, the model, if any,
    and what it is or would be sent about a question."""

    ladder: Ladder
    teacher: Teacher
    refresh: Callable[[], int]
    warm: Callable[[], None]
    model: Guarded | None = None
    prompt_for: Callable[[Question], str] | None = None


class Desk(Protocol):
    """What the consultant needs of the service around it."""

    def reread(self, job: str, number: int) -> Judged | None:
        """Read an attempt's log again, and return what it was judged by; None without a final verdict."""
        ...

    def rebuilt(self, job: str, number: int, lines: Sequence[Kept]) -> Judged | None:
        """The same as `reread`, from lines of the attempt that were kept."""
        ...

    def known(self, job: str, number: int) -> list[Record]:
        """Return the records of what is left of an attempt."""
        ...

    def log_of(self, job: str, number: int) -> Log:
        """Return its whole log."""
        ...

    def upgrade(self, job: str, number: int, verdict: Verdict, unsure: Verdict) -> None:
        """Replace a verdict that is still current."""
        ...

    def protect(self, lines: Sequence[str], where: str) -> None:
        """Keep filter rules off lines that name the cause of a failure."""
        ...

    def rectify(self, confirmation: Confirmation) -> None:
        """Issue the verdict that somebody corrected."""
        ...

    def reopen(self, reason: str, deciders: Collection[str]) -> None:
        """Re-judge attempts of a reason whose deciders were withdrawn."""
        ...

    def ask_again(self) -> None:
        """Queue the open failures of the last day to be looked up again."""
        ...


class Consultant:
    """Threads that look up, ask and teach while this process `leads`; their queue is the table of work
    (store/keeping/work.py). All other methods are thread-safe."""

    def __init__(
        self,
        climbing: Climbing,
        confirmed: Confirmed,
        work: Work,
        desk: Desk,
        leads: Callable[[], bool] = alone,
    ) -> None:
        self._ladder, self._teacher, self._refresh_cases, self._warm, self.model, _ = climbing
        self._confirmed, self._work, self._desk = confirmed, work, desk
        self._serves = False
        self._judged: _AtHand[Judged] = _AtHand()
        self._questions: _AtHand[Question] = _AtHand()
        self._version: object = None
        self._taking_up = threading.Lock()
        self._searched_version = -1
        self._search_at = 0.0
        self._keeper = TaskRunner("case-keeper", work, {SETTLED: self._settle}, leads=leads)
        again = {OPEN_FAILURES: lambda _: desk.ask_again(), LOOK_UP: self._look_up}
        self._again = TaskRunner("open-failures", work, again, leads=leads)  # new failures do not wait behind old ones
        self._asker = TaskRunner("failure-agent", work, {ASK: self._ask}, leads=leads)
        lessons = {TEACH: self._teach, FORGET: self._forget}
        self._school = TaskRunner("teacher", work, lessons, kept=(TEACH, FORGET), leads=leads)
        self._reader = Turns("learned-rules", self._take_up)
        self.taught = Taught(())
        """The learned diagnosis rules as of now."""
        self.counts = {"case": 0, "agent": 0, "unknown": 0, "unavailable": 0, "left out": 0}
        """How open failures were answered since the start, by result."""

    def start(self, parts: Parts) -> None:
        """Load what was learned, then start; only a process that serves works on the queue."""
        self._serves = parts.serves
        with shielded("learned diagnosis rules not loaded"):
            self._take_up_rules()
            self._desk.protect(self._teacher.lines(), "a learned diagnosis rule")
        for one in self._threads() if parts.serves else [self._reader]:
            one.start()
        if parts.serves and (self._ladder.asks_a_model or self._confirmed.version()):
            threading.Thread(target=self._warmed, name="embedder-warmer", daemon=True).start()

    def stop(self) -> None:
        """Stop after the current task; an unanswered model call is abandoned and changes nothing."""
        for one in self._threads():
            one.stop()
        for one in self._threads():
            one.join(_STOP_SECONDS)

    def hold(self, judged: Judged) -> NewWork:
        """Return the queue item for an attempt about to be settled. Its records stay in memory here, or travel in the
        item to the process that serves; for failures that process reads the log again, which says more."""
        key = key_of(judged.job, judged.attempt)
        if self._serves:
            self._judged.put(key, judged)
            return NewWork(SETTLED, key)
        failed = judged.verdict.outcome in ("failed", "recovered")
        return NewWork(SETTLED, key, "" if failed else as_text(kept(judged.records)))

    def looks_up(self, verdict: Verdict) -> bool:
        """Return whether past cases or the model may improve on a verdict by rules."""
        return self._ladder.may_climb(verdict)

    def ask(self, job: str, attempt: int) -> None:
        """Look up an attempt again that was settled before."""
        self._work.enter([NewWork(LOOK_UP, key_of(job, attempt))], time.time())
        self._again.wake()

    def preview(
        self, confirmation: Confirmation, records: Sequence[Record], seconds: float, book: RuleBook | None = None
    ) -> Preview:
        """Return what a confirmation would teach, tried for at most `seconds`. Uses the rules of `book`; changes
        nothing."""
        return self._teacher.preview(confirmation, records, seconds, book=book)

    def taught_for(self, job: str) -> Taught:
        """Return the learned rules that apply to a job."""
        return self._teacher.told(self.taught, job)

    def wake(self) -> None:
        """Check at once for settled attempts, confirmations and approvals."""
        for one in (self._keeper, self._school, self._reader):
            one.wake()

    def _threads(self) -> tuple[TaskRunner | Turns, ...]:
        return self._keeper, self._again, self._asker, self._school, self._reader

    def _warmed(self) -> None:
        with shielded("past cases cannot be searched by likeness"):
            self._warm()

    # the case keeper

    def _settle(self, item: WorkItem) -> None:
        """Keep the remains of a settled attempt, and look up an open failure."""
        if judged := self._judged.take(item.key) or self._read(item):
            self._teacher.settled(judged.job, judged.attempt, judged.records, judged.verdict)
            self._climb(judged)

    def _read(self, item: WorkItem) -> Judged | None:
        """Return a settled attempt's records, from the queue item or else its whole log."""
        job, number = attempt_of(item.key)
        if item.body:
            with suppress(ValueError):
                rebuilt = self._desk.rebuilt(job, number, from_text(item.body))
                if rebuilt is None or not self.looks_up(rebuilt.verdict):
                    return rebuilt
        return self._desk.reread(job, number)

    def _look_up(self, item: WorkItem) -> None:
        if judged := self._desk.reread(*attempt_of(item.key)):
            self._climb(judged)

    def _climb(self, judged: Judged) -> None:
        """Look a failure up, and queue it for the model if no case knows it."""
        if (question := self._left_open(judged)) is None:
            return
        if not self._ladder.asks_a_model:
            self.counts["unknown"] += 1
            return
        key = key_of(question.job, question.attempt)
        self._questions.put(key, question)
        self._work.enter([NewWork(ASK, key)], time.time())
        self._asker.wake()

    def _left_open(self, judged: Judged) -> Question | None:
        """Return the question that an attempt leaves open; None if the rules are sure or a past case answers."""
        job, attempt, records, book, verdict, reported = judged
        if not self.looks_up(verdict):
            return None
        own, _, _ = separate(records)
        question = Question(job, attempt, own, book, verdict, self._desk.log_of(job, attempt), reported)
        answered = self._ladder.by_case(question)
        if answered is not verdict:
            self._issue(question, answered, "case")
            return None
        return question if self._ladder.is_for_model(question) else None

    # the teacher

    def _teach(self, item: WorkItem) -> None:
        """Learn from a confirmation, and correct the verdict it contradicts."""
        confirmation = self._confirmed.one(int(item.key))
        if confirmation.withdrawn:
            return
        try:
            if records := self._desk.known(confirmation.job, confirmation.attempt):
                lesson = self._teacher.teach(confirmation, records)
                self._desk.protect(lesson.lines, key_of(confirmation.job, confirmation.attempt))
        finally:
            if confirmation.corrects:
                self._desk.rectify(confirmation)
            self._reader.wake()

    def _forget(self, item: WorkItem) -> None:
        """Withdraw what a withdrawn confirmation decided, and retire what was learned from it."""
        confirmation = self._confirmed.one(int(item.key))
        deciders = {f"case/{confirmation.id}"}
        if self._confirmed.live(confirmation.job, confirmation.attempt) is None:
            deciders.update(self._teacher.withdrawn(confirmation))
            self._take_up_rules()
        self._desk.reopen(confirmation.reason, deciders)

    # what was learned

    def _take_up(self) -> float:
        """Load rules and cases that any process changed; return the seconds until the next check."""
        self._take_up_rules()
        self._take_up_cases(self._confirmed.version())
        return _REFRESH

    def _take_up_cases(self, version: int) -> None:
        """Embed new cases. If that fails, cases are found by shared lines only, until a retry succeeds."""
        if version in (0, self._searched_version) or time.monotonic() < self._search_at:
            return
        try:
            self._refresh_cases()
            self._searched_version = version
        except LogdoctorError as error:
            log.warning("past cases cannot be searched by likeness", cause=str(error))
            self._search_at = time.monotonic() + _RETRY

    def _take_up_rules(self) -> None:
        with self._taking_up:  # the teacher calls this, too: what it retired must not come back
            version = self._teacher.version()
            if version != self._version:
                self.taught, self._version = self._teacher.alive(), version

    # the model

    def _ask(self, item: WorkItem) -> None:
        """Ask the model about a failure; retry for a day if it does not answer."""
        question = self._questions.take(item.key)
        if question is None and (judged := self._desk.reread(*attempt_of(item.key))):
            question = self._left_open(judged)
        if question is None:
            return
        try:
            answered = self._ladder.by_agent(question)
        except ModelError as error:
            log.warning("failure not explained", job=question.job, attempt=question.attempt, cause=str(error))
            self.counts["unavailable"] += 1
            if isinstance(error, ModelUnavailable):
                self._questions.put(item.key, question)  # its log is not read again for each try
                self._put_off(item, error.retry_after or 0.0)
            return
        if self._asker.stopping.is_set():
            return
        if answered is question.verdict:
            self.counts["unknown"] += 1
        else:
            self._issue(question, answered, "agent")

    def _put_off(self, item: WorkItem, seconds: float) -> None:
        """Raise `NotYet`, unless the model has been asked for long enough."""
        if time.time() - item.at < _GIVE_UP:
            raise NotYet(max(min(_RETRY * 2.0 ** min(item.tries, 30), _LONGEST), seconds))
        self.counts["left out"] += 1
        log.warning("failure not looked up", key=item.key, tries=item.tries)

    def _issue(self, question: Question, verdict: Verdict, rung: str) -> None:
        """Upgrade the verdict, and confirm it if enough attempts now agree."""
        self.counts[rung] += 1
        self._desk.upgrade(question.job, question.attempt, verdict, question.verdict)
        is_second = not self._ladder.doubts(question.verdict)
        named_by = question.verdict if is_second else verdict
        self._teacher.settled(question.job, question.attempt, question.records, verdict, question.episodes, named_by)
        named = naming(question.episodes, question.records, [(one.stream, one.line) for one in verdict.evidence])
        is_read = is_second and is_confirmed(question.verdict, verdict)
        if named and self._teacher.agreeing(question.job, verdict, named.digest, is_read):
            self._confirmed.add(self._agreement(question, verdict), time.time())
            self.wake()

    @staticmethod
    def _agreement(question: Question, verdict: Verdict) -> NewConfirmation:
        job, attempt, found, records = question.job, question.attempt, question.episodes, question.records
        return confirmation_of(job, attempt, verdict, found, records, AGREEMENT)


class _AtHand(Generic[T]):
    """The newest values read for queued work, so that they are not read again; thread-safe."""

    def __init__(self) -> None:
        self._kept: dict[str, T] = {}
        self._lock = threading.Lock()

    def put(self, key: str, value: T) -> None:
        """Keep a value; the oldest is dropped when there is no room."""
        with self._lock:
            self._kept.pop(key, None)
            self._kept[key] = value
            if len(self._kept) > _AT_HAND:
                self._kept.pop(next(iter(self._kept)))

    def take(self, key: str) -> T | None:
        """Remove and return a value; None if it was not kept."""
        with self._lock:
            return self._kept.pop(key, None)
