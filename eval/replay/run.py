"""The replay: how much is decided without a model or a person when nothing is known at the start.

Failures arrive one by one. No diagnosis rule, case or learned rule is there when the first one comes: only the filter
rules and the structure of reports. Each failure climbs the ladder as in the service (rules and structure, a past case,
the model if one is given), then a person who knows its label confirms the verdict or corrects it, and the teacher
learns from that. The parts are those of the service over a database of their own; only the threads are missing, so that
a run is repeatable.
"""

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import structlog

from eval.labels import is_wrong_action
from eval.replay.kinds import Arrival, arrivals
from eval.replay.label import FailureKind
from eval.replay.report import PART, Confusion, ReplayReport, ReplaySetup, ReplayShares, Rung
from logdoctor import pipeline
from logdoctor.compress.kept import rebuilt
from logdoctor.compress.whole_log import WholeLog
from logdoctor.diagnose.decide import diagnose
from logdoctor.diagnose.ending import ReportedEnd
from logdoctor.diagnose.episodes import episodes
from logdoctor.errors import ModelError
from logdoctor.failure_agent.question import Question
from logdoctor.learning.diagnoses.confirming import confirmation_of
from logdoctor.learning.diagnoses.teacher import DiagnosisLesson
from logdoctor.rules.scanner import Scanner
from logdoctor.service.consulting import Climbing
from logdoctor.service.service import Stores
from logdoctor.store.jobs.records import Records
from logdoctor.store.learning.confirmed import Cited, Confirmed, NewConfirmation
from logdoctor.store.learning.exchanges import Exchanges
from logdoctor.store.learning.learned import LearnedRules
from logdoctor.store.learning.rule_rows import DIAGNOSIS
from logdoctor.text import decode
from logdoctor.types import Record, Verdict

log = structlog.get_logger()

_PERSON = "replay"
_ATTEMPT = 1
_CITED = 4  # lines that a person names
_REFRESHED = 10  # failures between two updates of the case vectors; a search adds as many itself
_SHOWN = 40  # most confusions in a report

Join = Callable[[Stores], Climbing]
"""Makes the rungs over the stores."""


class ReplayOutcome(NamedTuple):
    """The result of one failure: the verdict, the rung that gave it, and the cost of asking."""

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


def run(
    known: Mapping[str, FailureKind],
    scanner: Scanner,
    limits: pipeline.ReadLimits,
    join: Join,
    folder: Path,
    watched: int,
    setup: ReplaySetup | None = None,
    on_outcome: Callable[[ReplayOutcome], None] = lambda outcome: None,
) -> ReplayReport:
    """Return the measures of a replay of the `known` kinds with the rules of `scanner`.

    `scanner` has no diagnosis rules; `folder` is an empty one for the database, the vectors and logs. The person
    approves a waiting rule when it hit in `watched` attempts. `on_outcome` is called with each result. Raises
    `InputError` when there are too few kinds for so many failures.
    """
    setup = setup or ReplaySetup()
    begin = time.perf_counter()
    records = Records(f"sqlite:///{folder / 'replay.db'}")
    try:
        database = records.database
        stores = Stores(records, LearnedRules(database), Confirmed(database), Exchanges(database), folder)
        replay = _Replay(scanner, limits, join, stores, watched)
        outcomes: list[ReplayOutcome] = []
        for arrival in arrivals(known, setup.failures, setup.seed):
            outcomes.append(replay.passed(arrival))
            on_outcome(outcomes[-1])
        return _report(replay, outcomes, setup, time.perf_counter() - begin)
    finally:
        records.close()
        shutil.rmtree(folder / "cases", ignore_errors=True)


class _Replay:
    """The ladder, the person and the teacher over one database."""

    def __init__(self, scanner: Scanner, limits: pipeline.ReadLimits, join: Join, stores: Stores, watched: int) -> None:
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

    def passed(self, arrival: Arrival) -> ReplayOutcome:
        """Handle one failure, confirm it, and learn from it; return the result."""
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
        return ReplayOutcome(
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
        """Return the verdict of the first rung that is sure, recorded with the teacher."""
        self._path.write_bytes(data)
        found = pipeline.records([pipeline.LogFile("main", self._path)], self._scanner, self._limits)
        records, book = self._teacher.alive().applied(found, self._scanner.book)
        reported = ReportedEnd(exit_code=1)  # that it failed is known
        verdict = diagnose(records, book, reported=reported)
        whole = WholeLog({"main": lambda: iter((data,))})
        question = Question(job, _ATTEMPT, records, book, verdict, whole, reported)
        self._teacher.settled(job, _ATTEMPT, records, verdict, question.episodes)
        answered = self._climbed(question)
        if answered is not verdict:
            self._teacher.settled(job, _ATTEMPT, records, answered, question.episodes)
        return answered

    def _climbed(self, question: Question) -> Verdict:
        verdict = self._ladder.by_case(question)
        try:
            return self._ladder.by_agent(replace(question, verdict=verdict))
        except ModelError as error:
            log.warning("failure not explained", job=question.job, cause=str(error))
            return verdict

    def _confirm(self, job: str, arrival: Arrival, verdict: Verdict) -> bool:
        """Confirm or correct the verdict; return False if it says that nothing failed."""
        if verdict.outcome != "failed":
            return False
        past = self._stores.confirmed.kept(job, _ATTEMPT)
        records = rebuilt(past.lines, self._scanner) if past else []
        new = _said(job, arrival, verdict, records, self._scanner)
        lesson = self._teacher.teach(self._stores.confirmed.add(new, self._clock), records)
        self.lessons[_result_of(lesson)] += 1
        self._approve()
        if arrival.number % _REFRESHED == 0:
            self._refresh()
        return True

    def _approve(self) -> None:
        """Approve rules that may cordon nodes after as many hits as other rules need."""
        for rule in self.rules.list(DIAGNOSIS, "shadow"):
            if rule.claim is not None and rule.claim.cordons and rule.jobs >= self._watched:
                self.rules.approve(rule.id, _PERSON, "it hit nothing else", self._clock, "shadow")
                self.approvals += 1


# ---- the person


def _said(job: str, arrival: Arrival, verdict: Verdict, records: Sequence[Record], scanner: Scanner) -> NewConfirmation:
    """Return the confirmation or correction by a person who knows the label and its proof."""
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


def _result_of(lesson: DiagnosisLesson) -> str:
    """Return the result of a confirmation, in a few words."""
    if lesson.rule:
        return "a rule, new" if lesson.lines else f"a rule that is {lesson.status} knows it"
    return "known without a rule" if lesson.why.endswith("already covers it") else "no rule"


# ---- summing up


def _report(replay: _Replay, outcomes: Sequence[ReplayOutcome], setup: ReplaySetup, seconds: float) -> ReplayReport:
    parts = [outcomes[first : first + PART] for first in range(0, len(outcomes), PART)]
    rungs = sorted({one.rung for one in outcomes})
    reasons = sorted({one.reason for one in outcomes})
    hundreds = len(outcomes) / 100 or 1.0
    return ReplayReport(
        shares_of(outcomes),
        [shares_of(part) for part in parts],
        shares_of([one for one in outcomes if one.new]),
        shares_of([one for one in outcomes if not one.new]),
        {rung: _rung([one for one in outcomes if one.rung == rung]) for rung in rungs},
        {reason: shares_of([one for one in outcomes if one.reason == reason]) for reason in reasons},
        replay.approvals,
        dict(Counter(rule.status for rule in replay.rules.list(DIAGNOSIS))),
        replay.rules.refusals.counts(),
        dict(replay.lessons),
        _confusions(outcomes),
        len({one.kind for one in outcomes}),
        sum(one.tokens for one in outcomes) / hundreds,
        sum(one.dollars for one in outcomes) / hundreds,
        setup,
        round(seconds, 1),
    )


def shares_of(outcomes: Sequence[ReplayOutcome]) -> ReplayShares:
    """Return the shares of the failures; 0 without any."""
    return ReplayShares(
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


def _rung(outcomes: Sequence[ReplayOutcome]) -> Rung:
    return Rung(len(outcomes), _share(one.handled for one in outcomes), _share(one.wrong_action for one in outcomes))


def _confusions(outcomes: Sequence[ReplayOutcome]) -> list[Confusion]:
    """Return the kinds that were decided wrongly, the most frequent first."""
    wrong = [one for one in outcomes if one.decided and not one.handled]
    counts = Counter((one.kind, one.reason, f"{one.said}/{one.recovery}", one.rung) for one in wrong)
    news = Counter((one.kind, one.rung) for one in wrong if one.new)
    return [
        Confusion(kind, label, said, rung, count, news[kind, rung])
        for (kind, label, said, rung), count in counts.most_common(_SHOWN)
    ]
