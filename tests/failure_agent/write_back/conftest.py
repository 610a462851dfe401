"""A teacher over a fresh database and the shipped rules, and small logs of failures that no rule knows."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from logdoctor import pipeline
from logdoctor.diagnose.decide import diagnose
from logdoctor.diagnose.ending import NOTHING, ReportedEnd
from logdoctor.diagnose.episodes import episodes
from logdoctor.diagnose.taught import nameable
from logdoctor.learning.diagnoses.confirming import confirmation_of
from logdoctor.learning.diagnoses.teacher import DiagnosisLesson, Steps, Teacher, TeachingTerms
from logdoctor.learning.diagnoses.writer import OfflineWriter, Writer
from logdoctor.pipeline import LogFile, ReadLimits
from logdoctor.rules.scanner import Scanner
from logdoctor.store.jobs.records import Records
from logdoctor.store.learning.confirmed import Cited, Confirmation, Confirmed
from logdoctor.store.learning.learned import LearnedRules
from logdoctor.types import Record, Verdict
from tests.diagnose.logs import COMPLETED, steps

HEAD = steps(0, 40)
JAM = "[rank3]: RuntimeError: loom driver on gpu-07 reports a jammed shuttle at 0x7f\n"
JAM_AGAIN = "[rank11]: RuntimeError: loom driver on wn61.site reports a jammed shuttle at 0x1c0\n"
LEASE = "ERROR quota service refused the lease of team 'vision' for 12 nodes\n"
LEASE_AGAIN = "ERROR quota service refused the lease of team 'speech' for 3 nodes\n"


class World:
    """All that write-back works with. `at` is what its clock says."""

    def __init__(
        self, scanner: Scanner, limits: ReadLimits, folder: Path, terms: TeachingTerms, writer: Writer
    ) -> None:
        self.scanner, self._limits, self._folder = scanner, limits, folder
        self.at = 1000.0
        self.records = Records(f"sqlite:///{folder}/x.db")
        self.rules, self.confirmed = LearnedRules(self.records.database), Confirmed(self.records.database)
        self.teacher = self.taught_by(terms, writer)

    def taught_by(self, terms: TeachingTerms, writer: Writer) -> Teacher:
        """Another teacher over the same database."""
        book = self.scanner.book
        return Teacher(self.rules, self.confirmed, writer, terms, book, self.scanner, lambda: self.at)

    def read(self, log: str) -> list[Record]:
        """The records of a log."""
        path = self._folder / "main.log"
        path.write_bytes(log.encode("utf-8", "surrogateescape"))
        return pipeline.records([LogFile("main", path)], self.scanner, self._limits)

    def judged(self, log: str, reported: ReportedEnd = NOTHING) -> Verdict:
        """The verdict with what is active now."""
        return diagnose(*self.teacher.alive().applied(self.read(log), self.scanner.book), reported=reported)

    def settle(self, job: str, log: str, reported: ReportedEnd = NOTHING) -> Steps:
        """An attempt came to its end, judged as the service does it."""
        records, book = self.teacher.alive().applied(self.read(log), self.scanner.book)
        return self.teacher.settled(job, 1, records, diagnose(records, book, reported=reported))

    def confirm(self, job: str, log: str, reason: str, *lines: int, by: str = "user-17", **said: Any) -> Confirmation:
        """Somebody says what the failure was, and which lines prove it."""
        records = self.read(log)
        verdict = self.judged(log)
        texts = {line.number: line.text for line in nameable(records[0])}
        cited = [Cited("main", line, texts.get(line, "")) for line in lines]
        found = episodes(records, self.scanner.book)
        new = confirmation_of(job, 1, verdict, found, records, by, reason=reason, evidence=cited, **said)
        return self.confirmed.add(new, self.at)

    def teach(self, job: str, log: str, reason: str, *lines: int, **said: Any) -> DiagnosisLesson:
        """Confirm and teach."""
        return self.teacher.teach(self.confirm(job, log, reason, *lines, **said), self.read(log))

    def guards(self) -> dict[str, int]:
        """How often each guard refused."""
        return self.rules.refusals.counts()


MakeWorld = Callable[..., World]


@pytest.fixture
def make_world(scanner: Scanner, limits: ReadLimits, tmp_path: Path) -> Iterator[MakeWorld]:
    made: list[World] = []

    def make(terms: TeachingTerms | None = None, writer: Writer | None = None) -> World:
        made.append(World(scanner, limits, tmp_path, terms or TeachingTerms(2, 3), writer or OfflineWriter()))
        return made[-1]

    yield make
    for world in made:
        world.records.close()


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    return make_world()


HEALTHY = HEAD + COMPLETED
