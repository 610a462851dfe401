"""Diagnoses an attempt on all rungs, for the command line: rules (learned ones included), past cases, the model."""

import time
from functools import partial

import msgspec

from logdoctor import pipeline
from logdoctor.compress.whole_log import WholeLog
from logdoctor.diagnose.decide import diagnose as judge
from logdoctor.diagnose.ending import NOTHING, ReportedEnd
from logdoctor.diagnose.taught import Taught
from logdoctor.diagnose.witnesses import separate
from logdoctor.failure_agent.ladder import Ladder
from logdoctor.failure_agent.question import Question
from logdoctor.pipeline import ReadLimits
from logdoctor.pipeline.attempts import AttemptFiles
from logdoctor.rules.scanner import Scanner
from logdoctor.types import Verdict


class Asking:
    """Judges attempts by rules, learned ones included, and climbs the ladder when the cause is still open.

    Model calls are recorded for `job`.
    """

    def __init__(self, scanner: Scanner, limits: ReadLimits, taught: Taught, ladder: Ladder, job: str) -> None:
        self._scanner, self._limits, self._taught, self._ladder = scanner, limits, taught, ladder
        self._job, self._number = job, 0

    def by_rule(self, attempt: AttemptFiles, reported: ReportedEnd = NOTHING) -> Question:
        """Return an attempt with its verdict by rules, as a question to the next rung; `InputError` when it is
        unreadable."""
        begin = time.perf_counter()
        self._number += 1
        read = pipeline.records(attempt.streams, self._scanner, self._limits)
        records, book = self._taught.applied(read, self._scanner.book)
        verdict = judge(records, book, reported=reported)
        verdict = msgspec.structs.replace(verdict, seconds=round(time.perf_counter() - begin, 3))
        own, _, _ = separate(records)
        return Question(self._job, self._number, own, book, verdict, self._log_of(attempt), reported)

    def ask(self, question: Question) -> Verdict:
        """Return the certain verdict by rules, else a past case's or the model's, else Unknown; `ModelError` when the
        model cannot be asked."""
        return self._ladder.climb(question)

    def _log_of(self, attempt: AttemptFiles) -> WholeLog | None:
        """Return the whole log; None for standard input, which cannot be read again."""
        if any(str(stream.path) == "-" for stream in attempt.streams):
            return None
        return WholeLog({stream.name: partial(pipeline.chunks, stream, self._limits) for stream in attempt.streams})
