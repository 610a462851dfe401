"""The Failure Agent beside the watch: what no rule knows is looked up among past cases and, last, asked of a model.

The verdict by rules is out before any of this begins. A sure answer replaces it; a rung that fails, a model that is
silent or a stop in between change nothing. What was confirmed is taught here, too.
"""

import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import structlog

from logdoctor.diagnose.episodes import episodes
from logdoctor.diagnose.taught import Taught
from logdoctor.errors import LogdoctorError, ModelError, ModelUnavailable
from logdoctor.failure_agent.ladder import Ladder, is_unsure
from logdoctor.failure_agent.question import Log, Question
from logdoctor.failure_agent.write_back.confirming import confirmation_of, naming
from logdoctor.failure_agent.write_back.teacher import Preview, Teacher
from logdoctor.llm.spending import Guarded
from logdoctor.rules.load import RuleBook
from logdoctor.store.confirmed import AGREEMENT, Confirmation, Confirmed, NewConfirmation
from logdoctor.types import Record, Verdict

log = structlog.get_logger()

_WAITING = 32  # attempts that wait with their records to be looked up
_LATER = 1000  # that wait by their names alone, to be read anew; of more only the verdict by rules stays
_QUESTIONS = 16  # that wait with their records for the model
_LOOK = 0.2  # seconds in which a stop is noticed
_REFRESH = 2.0  # seconds between two looks at what others confirmed or approved
_RETRY = 60.0  # seconds until a model that did not answer is asked again, at least
_TRIES = 4
_PAUSE = 1.0  # seconds after something went wrong
_NEWEST = 200  # confirmations that are looked at when something was confirmed


class Judged(NamedTuple):
    """An attempt with its final verdict by rules, and what that was made of."""

    job: str
    attempt: int
    records: list[Record]
    book: RuleBook
    verdict: Verdict


class _Again(NamedTuple):
    """A question to be put again when its time has come; its records are read anew then."""

    due: float
    job: str
    attempt: int
    tries: int


class Climbing(NamedTuple):
    """The rungs above the rules, who writes back what they find, how new cases are taken up, what loads the libraries
    that search them, and the model that is asked, if one is."""

    ladder: Ladder
    teacher: Teacher
    refresh: Callable[[], int]
    warm: Callable[[], None]
    model: Guarded | None = None


class Desk(Protocol):
    """What the consultant needs of the service around it."""

    def reread(self, job: str, number: int) -> Judged | None:
        """What an attempt was judged by, made anew from its log; None when no final verdict stands."""
        ...

    def known(self, job: str, number: int) -> list[Record]:
        """The records of what is left of an attempt."""
        ...

    def log_of(self, job: str, number: int) -> Log:
        """Its whole log."""
        ...

    def upgrade(self, job: str, number: int, verdict: Verdict, unsure: Verdict) -> None:
        """Put a verdict in the place of another that still stands."""
        ...

    def protect(self, lines: Sequence[str], where: str) -> None:
        """Keep filter rules off lines that tell of the cause of a failure."""
        ...

    def rectify(self, confirmation: Confirmation) -> None:
        """Issue the verdict that somebody corrected."""
        ...

    def reopen(self, reason: str, deciders: Collection[str]) -> None:
        """Have attempts of a reason judged anew that were decided by what counts no more."""
        ...


class Consultant:
    """Threads that look up, ask and teach. All other methods are for any thread."""

    def __init__(self, climbing: Climbing, confirmed: Confirmed, desk: Desk) -> None:
        self._ladder, self._teacher, self._refresh_cases, self._warm, self.model = climbing
        self._confirmed, self._desk = confirmed, desk
        self._settled: queue.Queue[Judged | tuple[str, int]] = queue.Queue(_WAITING)
        self._questions: queue.Queue[tuple[Question, int]] = queue.Queue(_QUESTIONS)
        self._again: list[_Again] = []
        self._lock = threading.Lock()  # of `_again`
        self._version: object = None
        self._hurried = threading.Event()
        self._cases_version = self._searched_version = self._taught_to = -1
        self._search_at = 0.0
        self._forgotten: set[int] = set()
        self._stopped = threading.Event()
        self._threads = (
            threading.Thread(target=self._for_ever, args=(self._look_up,), name="case-keeper", daemon=True),
            threading.Thread(target=self._for_ever, args=(self._put_question,), name="failure-agent", daemon=True),
            threading.Thread(target=self._for_ever, args=(self._take_up,), name="teacher", daemon=True),
        )
        self.taught = Taught(())
        """The learned diagnosis rules as they stand now."""
        self.counts = {"case": 0, "agent": 0, "unknown": 0, "unavailable": 0, "left out": 0}
        """How open failures were answered since the start."""

    def start(self) -> None:
        """Take up what was learned, then begin; the newest confirmations are taught again, in case the service ended
        between the two."""
        with _shielded("learned diagnosis rules not loaded"):
            self._take_up_rules()
            self._desk.protect(self._teacher.lines(), "a learned diagnosis rule")
        for thread in self._threads:
            thread.start()
        if self._ladder.asks_a_model or self._confirmed.version():
            threading.Thread(target=self._warmed, name="embedder-warmer", daemon=True).start()

    def _warmed(self) -> None:
        with _shielded("past cases cannot be searched by likeness"):
            self._warm()

    def stop(self) -> None:
        """Stop after the task at hand; a model that does not answer is not waited for, and changes nothing."""
        self._stopped.set()
        self._hurried.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=2.0)

    def settled(self, settled: Judged) -> None:
        """Keep what is left of a settled attempt, and look its failure up when the rules left it open."""
        try:
            self._settled.put_nowait(settled)
        except queue.Full:
            if self._ladder.doubts(settled.verdict):
                self._put_off(settled.job, settled.attempt, 0, 0.0)

    def looks_up(self, verdict: Verdict) -> bool:
        """Whether past cases or the model may know better than a verdict by rules."""
        return is_unsure(verdict) or self._ladder.doubts(verdict)

    def ask(self, job: str, attempt: int) -> None:
        """Look an attempt up again that was settled before; `queue.Full` when too many wait."""
        self._settled.put_nowait((job, attempt))

    def preview(self, confirmation: Confirmation, records: Sequence[Record], seconds: float) -> Preview:
        """What a confirmation would teach, tried on past attempts for at most so many seconds; changes nothing."""
        return self._teacher.preview(confirmation, records, seconds)

    def wake(self) -> None:
        """Look at once for what was confirmed or approved."""
        self._hurried.set()

    def _for_ever(self, work: Callable[[], None]) -> None:
        while not self._stopped.is_set():
            try:
                work()
            except queue.Empty:
                continue
            except LogdoctorError as error:
                log.error("consulting failed", cause=str(error))
                self._stopped.wait(_PAUSE)
            except Exception:
                log.exception("consulting failed")
                self._stopped.wait(_PAUSE)

    # the case keeper

    def _look_up(self) -> None:
        if again := self._due():
            found, tries = self._desk.reread(again.job, again.attempt), again.tries
        else:
            found, tries = self._next(), 0
        if found is not None and self.looks_up(found.verdict):
            self._answer(found, tries)

    def _due(self) -> _Again | None:
        with self._lock:
            return self._again.pop(0) if self._again and self._again[0].due <= time.monotonic() else None

    def _next(self) -> Judged | None:
        """What was settled or asked for; `queue.Empty` when there is nothing for a while."""
        found = self._settled.get(timeout=_LOOK)
        if isinstance(found, Judged):
            self._teacher.settled(found.job, found.attempt, found.records, found.verdict)
            return found
        return self._desk.reread(*found)

    def _answer(self, settled: Judged, tries: int) -> None:
        job, attempt, records, book, verdict = settled
        question = Question(
            job, attempt, records, book, verdict, episodes(records, book), self._desk.log_of(job, attempt)
        )
        answered = self._ladder.by_case(question)
        if answered is not verdict:
            self._issue(question, answered, "case")
        elif not self._ladder.doubts(verdict):
            return
        elif self._ladder.asks_a_model:
            try:
                self._questions.put_nowait((question, tries))
            except queue.Full:
                self._put_off(job, attempt, tries, _RETRY)
        else:
            self.counts["unknown"] += 1

    # the teacher

    def _take_up(self) -> None:
        """Load the rules that changed, teach what was confirmed since, whoever entered it, and wait a while."""
        self._hurried.clear()
        self._take_up_rules()
        version = self._confirmed.version()
        if version != self._cases_version:
            for confirmation in reversed(self._confirmed.page(limit=_NEWEST, withdrawn=True).items):
                if confirmation.withdrawn:
                    self._forget(confirmation)
                elif confirmation.id > self._taught_to:
                    self._teach(confirmation)
                    self._taught_to = confirmation.id
            self._cases_version = version
            self._take_up_rules()
        self._take_up_cases(version)
        self._hurried.wait(_REFRESH)

    def _take_up_cases(self, version: int) -> None:
        """Make the vectors of new cases. Where that fails, cases are found by the lines they share, and it is tried
        again later."""
        if version in (0, self._searched_version) or time.monotonic() < self._search_at:
            return
        try:
            self._refresh_cases()
            self._searched_version = version
        except LogdoctorError as error:
            log.warning("past cases cannot be searched by likeness", cause=str(error))
            self._search_at = time.monotonic() + _RETRY

    def _take_up_rules(self) -> None:
        version = self._teacher.version()
        if version != self._version:
            self.taught, self._version = self._teacher.alive(), version

    def _teach(self, confirmation: Confirmation) -> None:
        with _shielded("confirmation not taught", confirmation.job):
            if records := self._desk.known(confirmation.job, confirmation.attempt):
                lesson = self._teacher.teach(confirmation, records)
                self._desk.protect(lesson.lines, f"{confirmation.job}/{confirmation.attempt}")
        if confirmation.corrects:
            with _shielded("verdict not corrected", confirmation.job):
                self._desk.rectify(confirmation)

    def _forget(self, confirmation: Confirmation) -> None:
        """Take back what a confirmation that counts no more decided, and retire what was learned from it."""
        if confirmation.id in self._forgotten:
            return
        self._forgotten.add(confirmation.id)
        deciders = {f"case/{confirmation.id}"}
        if self._confirmed.live(confirmation.job, confirmation.attempt) is None:
            deciders.update(self._teacher.withdrawn(confirmation))
            self._take_up_rules()
        self._desk.reopen(confirmation.reason, deciders)

    # the model

    def _put_question(self) -> None:
        question, tries = self._questions.get(timeout=_LOOK)
        try:
            answered = self._ladder.by_agent(question)
        except ModelError as error:
            log.warning("failure not explained", job=question.job, attempt=question.attempt, cause=str(error))
            self.counts["unavailable"] += 1
            if isinstance(error, ModelUnavailable):
                self._put_off(question.job, question.attempt, tries + 1, max(error.retry_after or 0.0, _RETRY))
            return
        if self._stopped.is_set():
            return
        if answered is question.verdict:
            self.counts["unknown"] += 1
        else:
            self._issue(question, answered, "agent")

    def _issue(self, question: Question, verdict: Verdict, rung: str) -> None:
        """Upgrade the verdict, and see whether attempts now agree on it."""
        self.counts[rung] += 1
        self._desk.upgrade(question.job, question.attempt, verdict, question.verdict)
        self._teacher.settled(question.job, question.attempt, question.records, verdict, question.episodes)
        named = naming(question.episodes, question.records, [(one.stream, one.line) for one in verdict.evidence])
        if named and self._teacher.agreeing(question.job, question.attempt, verdict, named.digest):
            self._confirmed.add(self._agreement(question, verdict), time.time())
            self.wake()

    @staticmethod
    def _agreement(question: Question, verdict: Verdict) -> NewConfirmation:
        job, attempt, found, records = question.job, question.attempt, question.episodes, question.records
        return confirmation_of(job, attempt, verdict, found, records, AGREEMENT)

    def _put_off(self, job: str, attempt: int, tries: int, seconds: float) -> None:
        with self._lock:
            if tries < _TRIES and len(self._again) < _LATER:
                self._again.append(_Again(time.monotonic() + seconds, job, attempt, tries))
                self._again.sort()
                return
        self.counts["left out"] += 1
        log.warning("failure not looked up", job=job, attempt=attempt, tries=tries)


@contextmanager
def _shielded(event: str, job: str = "") -> Iterator[None]:
    """Log what goes wrong inside, and go on behind it."""
    named = {"job": job} if job else {}
    try:
        yield
    except LogdoctorError as error:
        log.error(event, cause=str(error), **named)
    except Exception:
        log.exception(event, **named)
