"""The replay: how much is decided without a model and without a person when failures come one by one and nothing is
known at the start.

No diagnosis rule, no case and no learned rule is there when the first one comes: only the filter rules and the
structure of reports. Each failure climbs the ladder as in the service (rules and structure, a past case, the model if
one is given), then a person who knows its label confirms the verdict or corrects it, and the teacher learns from that.
The parts are those of the service over a database of their own; only the threads are missing, so that a run can be
repeated.
"""

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog

from logdoctor import pipeline
from logdoctor.compress.kept import revived
from logdoctor.diagnose.decide import diagnose
from logdoctor.diagnose.ending import ReportedEnd
from logdoctor.diagnose.episodes import episodes
from logdoctor.errors import ModelError
from logdoctor.evaluate import is_wrong_action
from logdoctor.failure_agent.question import Question
from logdoctor.failure_agent.write_back.confirming import confirmation_of
from logdoctor.failure_agent.write_back.teacher import DiagnosisLesson
from logdoctor.replay.kinds import Arrival, arrivals
from logdoctor.replay.label import Kind
from logdoctor.rules.scanner import Scanner
from logdoctor.service.consulting import Climbing
from logdoctor.service.service import Stores
from logdoctor.store.confirmed import Cited, Confirmed, NewConfirmation
from logdoctor.store.exchanges import Exchanges
from logdoctor.store.learned import LearnedRules
from logdoctor.store.records import Records
from logdoctor.store.rule_rows import DIAGNOSIS
from logdoctor.text import decode
from logdoctor.types import Record, Verdict
from logdoctor.whole_log import WholeLog

log = structlog.get_logger()

PART = 250
"""Failures of a part of the curve."""
_PERSON = "replay"
_ATTEMPT = 1
_CITED = 4  # lines that a person names
_REFRESHED = 10  # failures between two times that cases are taken up; a search takes up as many itself
_SHOWN = 40  # kinds that were decided wrongly, in a report

Join = Callable[[Stores], Climbing]
"""Makes the rungs over what is stored."""


class Setup(msgspec.Struct, frozen=True):
    """What was replayed, and with which model ("" for none)."""

    failures: int = 2500
    seed: int = 1
    model: str = ""


class Outcome(NamedTuple):
    """What became of one failure: what was said of it, by which rung, and what asking took."""

    number: int
    kind: str
    reason: str
    new: bool
    rung: str
    said: str
    recovery: str
    decided: bool
    handled: bool
    wrong_action: bool
    confirmed: bool
    calls: int
    tokens: int
    dollars: float
    seconds: float

    @property
    def without_model(self) -> bool:
        """Whether it was decided, and not by a model."""
        return self.decided and self.rung != "agent"


class Sums(msgspec.Struct, frozen=True):
    """Some failures together: four shares of them, then how often a model was asked and what went there and back."""

    decided_without_model: float
    handled: float
    wrong_actions: float
    unknown: float
    model_calls: int
    tokens: int


class Rung(msgspec.Struct, frozen=True):
    """What one rung decided: how many failures, and the shares of these that were handled and that were answered with
    a wrong action."""

    failures: int
    handled: float
    wrong_actions: float


class Confusion(msgspec.Struct, frozen=True):
    """How often failures of one kind were decided wrongly in one way; `rung` is what decided."""

    kind: str
    label: str
    said: str
    rung: str
    count: int
    new: int


class Report(msgspec.Struct, frozen=True):
    """The measures over all failures, over each `PART` of them, and apart for kinds that were new and those that were
    not.

    A share is of all failures of its row. Handled: the category, the recovery and the action were right and nobody was
    asked. `by_rung` tells what decided: a learned rule, the structure of the report, a past case, the agent, nobody.
    `approvals` is how many learned rules waited for a person because they can take nodes out, and were let by the one
    who confirms. `dollars_per_100` is the price of the model for a hundred failures.
    """

    overall: Sums
    per_250: list[Sums]
    new: Sums
    seen: Sums
    by_rung: dict[str, Rung]
    by_reason: dict[str, Sums]
    approvals: int
    rules: dict[str, int]
    refused: dict[str, int]
    lessons: dict[str, int]
    confusions: list[Confusion]
    kinds: int
    tokens_per_100: float
    dollars_per_100: float
    setup: Setup
    seconds: float


def run(
    known: Mapping[str, Kind],
    scanner: Scanner,
    limits: pipeline.Limits,
    join: Join,
    folder: Path,
    watched: int,
    setup: Setup | None = None,
    tell: Callable[[Outcome], None] = lambda outcome: None,
) -> Report:
    """The measures of a replay of the `known` kinds with the rules of `scanner`, which has no diagnosis rules.

    `folder` is an empty one for the database, the vectors and logs. The person lets a rule that waits for one when it
    hit in `watched` attempts. `tell` is called with what became of each failure. `InputError` when there are too few
    kinds for so many failures.
    """
    setup = setup or Setup()
    begin = time.perf_counter()
    records = Records(f"sqlite:///{folder / 'replay.db'}")
    try:
        database = records.database
        stores = Stores(records, LearnedRules(database), Confirmed(database), Exchanges(database), folder)
        course = _Course(scanner, limits, join, stores, watched)
        outcomes: list[Outcome] = []
        for arrival in arrivals(known, setup.failures, setup.seed):
            outcomes.append(course.passed(arrival))
            tell(outcomes[-1])
        return _report(course, outcomes, setup, time.perf_counter() - begin)
    finally:
        records.close()
        shutil.rmtree(folder / "cases", ignore_errors=True)


class _Course:
    """The ladder, the person and the teacher over one database."""

    def __init__(self, scanner: Scanner, limits: pipeline.Limits, join: Join, stores: Stores, watched: int) -> None:
        self._scanner, self._limits, self._stores = scanner, limits._replace(workers=1), stores
        self._ladder, self._teacher, self._refresh, *_ = join(stores)
        self._path = stores.folder / "arrival.log"
        self._clock = 1_750_000_000.0
        self._watched = watched
        self.approvals = 0
        self.lessons: Counter[str] = Counter()

    @property
    def rules(self) -> LearnedRules:
        """The learned rules."""
        return self._stores.rules

    def passed(self, arrival: Arrival) -> Outcome:
        """What became of one failure, after which it is confirmed and learned from."""
        begin = time.perf_counter()
        job = f"replay-{arrival.number:06d}"
        self._clock += 600.0
        verdict = self._answered(job, arrival.log.data)
        label = arrival.kind.label
        decided = verdict.outcome == "failed" and verdict.reason != "Unknown"
        action = is_wrong_action(label.recoveries, verdict.recovery)
        right = verdict.category in label.categories and verdict.recovery in label.recoveries and not action
        confirmed = self._confirm(job, arrival, verdict)
        asked = [one for one in self._stores.exchanges.of(job, _ATTEMPT) if not one.cached]
        return Outcome(
            arrival.number,
            arrival.kind.id,
            label.reason,
            arrival.new,
            verdict.decided_by.kind if decided else "nobody",
            verdict.reason if verdict.outcome == "failed" else f"{verdict.reason} ({verdict.outcome})",
            verdict.recovery,
            decided,
            decided and right,
            action,
            confirmed,
            len(asked),
            sum(one.tokens_in + one.tokens_out for one in asked),
            sum(one.dollars for one in asked),
            time.perf_counter() - begin,
        )

    def _answered(self, job: str, data: bytes) -> Verdict:
        """The first sure verdict on a log, settled."""
        self._path.write_bytes(data)
        found = pipeline.records([pipeline.Stream("main", self._path)], self._scanner, self._limits)
        records, book = self._teacher.alive().applied(found, self._scanner.book)
        verdict = diagnose(records, book, reported=ReportedEnd(exit_code=1))  # that it failed is known
        reported = episodes(records, book)
        whole = WholeLog({"main": lambda: iter((data,))})
        question = Question(job, _ATTEMPT, records, book, verdict, reported, whole)
        self._teacher.settled(job, _ATTEMPT, records, verdict, reported)
        answered = self._climbed(question)
        if answered is not verdict:
            self._teacher.settled(job, _ATTEMPT, records, answered, reported)
        return answered

    def _climbed(self, question: Question) -> Verdict:
        verdict = self._ladder.by_case(question)
        try:
            return self._ladder.by_agent(question._replace(verdict=verdict))
        except ModelError as error:
            log.warning("failure not explained", job=question.job, cause=str(error))
            return verdict

    def _confirm(self, job: str, arrival: Arrival, verdict: Verdict) -> bool:
        """Whether a person could say what the failure was: only attempts that failed can be confirmed."""
        if verdict.outcome != "failed":
            return False
        past = self._stores.confirmed.kept(job, _ATTEMPT)
        records = revived(past.lines, self._scanner) if past else []
        new = _said(job, arrival, verdict, records, self._scanner)
        lesson = self._teacher.teach(self._stores.confirmed.add(new, self._clock), records)
        self.lessons[_told(lesson)] += 1
        self._approve()
        if arrival.number % _REFRESHED == 0:
            self._refresh()
        return True

    def _approve(self) -> None:
        """The person lets rules that may take nodes out, once they hit in as many attempts as others need."""
        for rule in self.rules.list(DIAGNOSIS, "shadow"):
            if rule.claim is not None and rule.claim.cordons and rule.jobs >= self._watched:
                self.rules.approve(rule.id, _PERSON, "it hit nothing else", self._clock, "shadow")
                self.approvals += 1


# ---- the person


def _said(job: str, arrival: Arrival, verdict: Verdict, records: Sequence[Record], scanner: Scanner) -> NewConfirmation:
    """What a person who knows the label says of a verdict: that it is right, or what it was, with the lines."""
    label = arrival.kind.label
    found = episodes(records, scanner.book)
    if verdict.reason in (label.reason, *label.reason_also) and verdict.recovery in label.recoveries:
        return confirmation_of(job, _ATTEMPT, verdict, found, records, _PERSON)
    texts = arrival.log.data.split(b"\n")
    cited = [Cited("main", line, decode(texts[line - 1])) for line in arrival.log.evidence[:_CITED]]
    return confirmation_of(
        job,
        _ATTEMPT,
        verdict,
        found,
        records,
        _PERSON,
        reason=label.reason,
        fault=label.fault,
        recovery=label.recovery,
        evidence=cited,
    )


def _told(lesson: DiagnosisLesson) -> str:
    """What came of a confirmation, in a word or two."""
    if lesson.rule:
        return "a rule, new" if lesson.lines else f"a rule that is {lesson.status} knows it"
    return "known without a rule" if lesson.why.endswith("knows it already") else "no rule"


# ---- summing up


def _report(course: _Course, outcomes: Sequence[Outcome], setup: Setup, seconds: float) -> Report:
    parts = [outcomes[first : first + PART] for first in range(0, len(outcomes), PART)]
    rungs = sorted({one.rung for one in outcomes})
    reasons = sorted({one.reason for one in outcomes})
    hundreds = len(outcomes) / 100 or 1.0
    return Report(
        sums(outcomes),
        [sums(part) for part in parts],
        sums([one for one in outcomes if one.new]),
        sums([one for one in outcomes if not one.new]),
        {rung: _rung([one for one in outcomes if one.rung == rung]) for rung in rungs},
        {reason: sums([one for one in outcomes if one.reason == reason]) for reason in reasons},
        course.approvals,
        dict(Counter(rule.status for rule in course.rules.list(DIAGNOSIS))),
        course.rules.refusals.counts(),
        dict(course.lessons),
        _confusions(outcomes),
        len({one.kind for one in outcomes}),
        sum(one.tokens for one in outcomes) / hundreds,
        sum(one.dollars for one in outcomes) / hundreds,
        setup,
        round(seconds, 1),
    )


def sums(outcomes: Sequence[Outcome]) -> Sums:
    """Some failures together; shares of none are 0."""
    return Sums(
        _share(one.without_model for one in outcomes),
        _share(one.handled for one in outcomes),
        _share(one.wrong_action for one in outcomes),
        _share(not one.decided for one in outcomes),
        sum(one.calls for one in outcomes),
        sum(one.tokens for one in outcomes),
    )


def _share(hits: Iterable[bool]) -> float:
    counted = list(hits)
    return round(sum(counted) / len(counted), 4) if counted else 0.0


def _rung(outcomes: Sequence[Outcome]) -> Rung:
    return Rung(len(outcomes), _share(one.handled for one in outcomes), _share(one.wrong_action for one in outcomes))


def _confusions(outcomes: Sequence[Outcome]) -> list[Confusion]:
    """The kinds that were decided, but not rightly, the most frequent first."""
    wrong = [one for one in outcomes if one.decided and not one.handled]
    counts = Counter((one.kind, one.reason, f"{one.said}/{one.recovery}", one.rung) for one in wrong)
    news = Counter((one.kind, one.rung) for one in wrong if one.new)
    return [
        Confusion(kind, label, said, rung, count, news[kind, rung])
        for (kind, label, said, rung), count in counts.most_common(_SHOWN)
    ]
