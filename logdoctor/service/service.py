"""One data folder and all that works on it: the archive, the journal, the records, the intake and the watch."""

import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from logdoctor.errors import StorageFull, StoreError
from logdoctor.llm.spending import Guarded
from logdoctor.log_agent.agent import LogAgent
from logdoctor.rules.scanner import Scanner
from logdoctor.service import recheck
from logdoctor.service.acting import Actor
from logdoctor.service.casework import Casework
from logdoctor.service.consulting import Climbing, Consultant
from logdoctor.service.intake import Intake, IntakeBounds
from logdoctor.service.learning import Learner, SettledAttempt
from logdoctor.service.notifying import Notifier
from logdoctor.service.retention import Retention, Rules
from logdoctor.service.silence import Timing
from logdoctor.service.streams import LiveAttempt
from logdoctor.service.watch import Watch
from logdoctor.store.archive import Archive
from logdoctor.store.confirmed import Confirmed
from logdoctor.store.exchanges import Exchanges
from logdoctor.store.incidents import Incidents
from logdoctor.store.journal import Journal
from logdoctor.store.learned import LearnedRules
from logdoctor.store.names import Key
from logdoctor.store.node_records import NodeRecords
from logdoctor.store.notices import Notices
from logdoctor.store.records import End, Job, JobFacts, Records, StoredVerdict
from logdoctor.store.report import Reports
from logdoctor.store.rule_totals import RuleTotals
from logdoctor.store.tokens import Tokens
from logdoctor.store.work import OPEN_FAILURES, NewWork, Work
from logdoctor.text import decode

_READ = 1 << 20


class Plan(NamedTuple):
    """How a service is to work: where its database is, how much it takes, when it acts, what it keeps; how many failed
    attempts there are to one that is diagnosed again without learned rules (0: none)."""

    database: str
    bounds: IntakeBounds
    timing: Timing
    retention: Rules
    min_free: int
    recheck: int = 0


class Stores(NamedTuple):
    """What is stored, for those who climb beyond the rules."""

    records: Records
    rules: LearnedRules
    confirmed: Confirmed
    exchanges: Exchanges
    folder: Path


class ScratchFile(NamedTuple):
    """An open file for bytes that are not kept."""

    path: Path
    descriptor: int
    min_free: int

    def write(self, data: bytes) -> None:
        """Append bytes; `StorageFull` when that would leave too little room for what is to be kept."""
        try:
            room = os.fstatvfs(self.descriptor)
            if room.f_bavail * room.f_frsize < self.min_free + len(data):
                raise OSError(errno.ENOSPC, f"less than {self.min_free} bytes are free on the disk")
            view = memoryview(data)
            while view:
                view = view[os.write(self.descriptor, view) :]
        except OSError as error:
            cause = f"the log cannot be buffered on disk ({error.strerror})"
            raise StorageFull("the disk", cause, "Free some space.") from error


class Service:
    """A service over one data folder, which only one process may use. `StoreError` when another one does."""

    def __init__(
        self,
        folder: Path,
        scanner: Scanner,
        plan: Plan,
        log_agent: Callable[[Records, LearnedRules], LogAgent] | None = None,
        ladder: Callable[[Stores], Climbing] | None = None,
        actor: Callable[[Records], Actor] | None = None,
        notifier: Callable[[Records], Notifier] | None = None,
    ) -> None:
        self._lock = _locked(folder)
        self.scanner = scanner
        self._started = False
        self._scratch, self._min_free = folder / "scratch", plan.min_free
        shutil.rmtree(self._scratch, ignore_errors=True)
        self.archive = Archive(folder / "archive")
        self.records = Records(plan.database)
        self.incidents = Incidents(self.records.database)
        self.tokens = Tokens(self.records.database)
        self.rules = LearnedRules(self.records.database)
        self.rule_totals = RuleTotals(self.records.database)
        self.work = Work(self.records.database)
        self.nodes = NodeRecords(self.records.database)
        self.notices = Notices(self.records.database)
        self.reports = Reports(self.records.database)
        journal_of = partial(Journal, folder / "journal", min_free=plan.min_free)
        self.listeners: list[Callable[[StoredVerdict], None]] = []
        self.intake = Intake(self.archive, journal_of, self.records, self._announce, plan.bounds)
        self._share = plan.recheck
        self.learner: Learner | None = None
        if log_agent:
            agent = log_agent(self.records, self.rules)
            self.learner = Learner(agent, self.records, self.work, self._text_of, self._recheck, self._reconsider)
        self.casework = Casework(
            self.intake, self.archive, self.records, self.work, scanner, self.learner, self.streams
        )
        self.consultant: Consultant | None = None
        if ladder:
            climbing = ladder(self._stores(folder))
            self.consultant = Consultant(climbing, self.casework.confirmed, self.work, self.casework)
        self.watch = Watch(
            scanner,
            self.intake,
            self.archive,
            self.records,
            self._announce,
            plan.timing,
            self.learner,
            self.consultant,
        )
        self.casework.watch, self.casework.consultant = self.watch, self.consultant
        self.actor = actor(self.records) if actor else None
        if self.actor:
            self.listeners.append(self.actor.handle)
        self.notifier = notifier(self.records) if notifier else None
        if self.notifier:
            self.listeners.append(self.notifier.handle)
            self.incidents.listeners.append(self.notifier.wake)
        self.retention = Retention(self.archive, self.records, self.intake, plan.retention)

    def start(self) -> None:
        """Carry on where the last process stopped, however it stopped; nothing when that was done already."""
        if self._started:
            return
        self._started = True
        self.work.resume(time.time())
        self.incidents.catch_up(time.time())
        self.rule_totals.catch_up()
        self.intake.start()
        self.watch.start()
        if self.learner:
            self.learner.start()
        if self.consultant:
            self.work.enter([NewWork(OPEN_FAILURES, "")], time.time())
            self.consultant.start()
        if self.actor:
            self.actor.start()
        if self.notifier:
            self.notifier.start()
        self.retention.start()

    def stop(self) -> None:
        """Write, compress and archive all that was taken; then let go of the folder."""
        self.casework.stopping = True
        self.retention.stop()
        self.watch.stop()
        if self.actor:
            self.actor.stop()
        if self.learner:
            self.learner.stop()
        if self.consultant:
            self.consultant.stop()
        if self.notifier:
            self.notifier.stop()
        self.intake.stop()
        self.records.close()
        os.close(self._lock)

    def end(self, job: str, number: int, end: End) -> None:
        """Enter how an attempt or one of its streams ended, durably, and ask for the verdict."""
        before = self.records.attempt(job, number)
        kept = self.records.end(job, number, end)
        if kept.deleted is not None or (before is not None and before.settled and _tells(before.ends, end)):
            return  # the verdict stands: there is nothing to judge, or nothing new
        if kept.settled:
            self.records.reopen(job, number)
        attempt = self.intake.load(job, number)
        self.intake.unsettle(attempt)
        with self.intake.lock:
            attempt.ends[end.stream] = end
        self.watch.ask(attempt)

    def streams(self, job: str, number: int) -> list[str]:
        """The names of the streams of an attempt."""
        with self.intake.lock:
            live = self.intake.attempts.get((job, number))
            known = set(live.streams) if live else set()
        return sorted(known | set(self.archive.streams(job, number)))

    def has_stream(self, key: Key) -> bool:
        """Whether bytes of the stream are kept."""
        return self.intake.known(key) is not None or key.stream in self.archive.streams(key.job, key.attempt)

    @contextmanager
    def scratch_file(self) -> Iterator["ScratchFile"]:
        """A file that is deleted when it is no longer used."""
        self._scratch.mkdir(exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self._scratch, buffering=0) as file:
            yield ScratchFile(Path(file.name), file.fileno(), self._min_free)

    def _text_of(self, attempt: LiveAttempt, stream: str, number: int) -> str | None:
        """A raw line of an attempt, None when it is gone."""
        lines = self.intake.lines(Key(attempt.job, attempt.number, stream), number, number, 1 << 20).lines
        return decode(lines[0]) if lines else None

    @property
    def model(self) -> Guarded | None:
        """The model that the Log Agent and the Failure Agent ask, if one is."""
        asked = self.consultant.model if self.consultant else None
        return asked or (self.learner.model if self.learner else None)

    def _stores(self, folder: Path) -> Stores:
        return Stores(self.records, self.rules, self.casework.confirmed, self.casework.exchanges, folder)

    def tell(self, job: str, facts: JobFacts, at: float) -> Job:
        """Enter what was told about a job, durably."""
        kept = self.records.put_job(job, facts, at)
        with self.intake.lock:
            for attempt in self.intake.attempts.values():
                attempt.is_redescribed = attempt.is_redescribed or attempt.job == job
        return kept

    def _reconsider(self, attempt: LiveAttempt) -> None:
        """Judge a settled attempt again whose verdict knows nothing, because error lines were noticed in it since."""
        with self.intake.lock:
            if self.intake.attempts.get((attempt.job, attempt.number)) is not attempt:
                return  # it left memory, and may be back as another
        current = self.records.current(attempt.job, attempt.number)
        unknown = current is not None and "unknown" in (current.verdict.reason.lower(), current.verdict.outcome)
        if attempt.settled and unknown and not attempt.abandoned:
            self.intake.unsettle(attempt)
            self.watch.ask(attempt)

    def _recheck(self, settled: SettledAttempt) -> None:
        """Diagnose an attempt again without learned rules when it is one of the chosen, or when rules took lines of it
        that few attempts have tried; should the verdict differ, issue that one and put the rules back that took what
        it needs."""
        job, number, verdict = settled.job, settled.attempt, settled.verdict
        took = [rule for rule, (_, taken) in settled.hits.items() if taken]
        if self.learner is None or not took or verdict.outcome != "failed" or not self._share:
            return
        if not recheck.is_chosen(job, number, self._share) and not self.learner.agent.any_young(settled.kind, took):
            return
        scanner = self.learner.agent.books.scanner(settled.kind)
        found = self.casework.from_archive(job, number, scanner, settled.noticed)
        if sum(record.compression.lines_in for record in found) != verdict.compression.lines_in:
            return  # late lines, which have a verdict of their own, or a log that was deleted
        again = recheck.verdict(*self.watch.taught.applied(found, scanner.book), settled.reported)
        if not recheck.differs(verdict, again):
            return
        why = f"the verdict on {job}/{number} differs without learned rules: {again.reason}, not {verdict.reason}"
        agent, now = self.learner.agent, time.time()
        agent.handle((job, number), again, now)
        agent.demote(recheck.culprits(again, found, scanner), why, now)
        self.watch.reissue(job, number, again, of=lambda current: not recheck.differs(current, verdict))

    def _announce(self, verdict: StoredVerdict) -> None:
        for listener in list(self.listeners):
            listener(verdict)


def _tells(ends: Sequence[End], end: End) -> bool:
    """Whether some end says the same as another, whenever it was told."""
    return any(msgspec.structs.replace(one, at=end.at) == end for one in ends)


def _locked(folder: Path) -> int:
    """A lock on the folder, held until the process ends."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        cause = "another service is using this data folder"
        raise StoreError(str(folder), cause, "Stop it, or choose another folder with --data-dir.") from error
    return descriptor
