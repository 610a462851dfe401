"""One data folder and all that works on it: the archive, the journal, the records, the intake and the watch."""

import errno
import fcntl
import os
import queue
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from logdoctor.compress.kept import revived
from logdoctor.consult.ladder import Ladder, is_open, is_unsure
from logdoctor.errors import Busy, ConfirmationRefused, LogdoctorError, StorageFull, StoreError
from logdoctor.learn.kind import kind_of
from logdoctor.learn.log_agent import LogAgent
from logdoctor.live import recheck
from logdoctor.live.confirming import Ruling, confirmation, rectified
from logdoctor.live.consulting import Consultant, Judged
from logdoctor.live.intake import Bounds, Intake
from logdoctor.live.learning import Learner, Settled
from logdoctor.live.retention import Retention, Rules
from logdoctor.live.streams import Attempt, Noticed
from logdoctor.live.watch import Timing, Watch
from logdoctor.rules.scanner import Scanner
from logdoctor.store.archive import Archive
from logdoctor.store.confirmed import Confirmation, Confirmed
from logdoctor.store.exchanges import Exchanges
from logdoctor.store.journal import Journal
from logdoctor.store.learned import LearnedRules
from logdoctor.store.names import Key
from logdoctor.store.records import MAX_PAGE, End, Job, JobFacts, Records, StoredVerdict, Wanted
from logdoctor.store.tokens import Tokens
from logdoctor.teach.teacher import Teacher
from logdoctor.text import decode
from logdoctor.types import Record, Verdict
from logdoctor.whole_log import WholeLog

_READ = 1 << 20
_PAGES = 20  # of verdicts that are looked through when a case is withdrawn
_ANEW = 86_400.0  # seconds for which failures that were left open are looked up after a start


class Plan(NamedTuple):
    """How a service is to work: where its database is, how much it takes, when it acts, what it keeps; how many failed
    attempts there are to one that is diagnosed again without learned rules (0: none)."""

    database: str
    bounds: Bounds
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


class Climbing(NamedTuple):
    """The rungs above the rules, who writes back what they find, how new cases are taken up, and what loads the
    libraries that search them."""

    ladder: Ladder
    teacher: Teacher
    refresh: Callable[[], int]
    warm: Callable[[], None]


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
            cause = f"the log cannot be put aside ({error.strerror})"
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
    ) -> None:
        self._lock = _locked(folder)
        self.scanner = scanner
        self._started = False
        self._scratch, self._min_free = folder / "scratch", plan.min_free
        shutil.rmtree(self._scratch, ignore_errors=True)
        self.archive = Archive(folder / "archive")
        self.records = Records(plan.database)
        self.tokens = Tokens(self.records.database)
        self.rules = LearnedRules(self.records.database)
        journal_of = partial(Journal, folder / "journal", min_free=plan.min_free)
        self.listeners: list[Callable[[StoredVerdict], None]] = []
        self.intake = Intake(self.archive, journal_of, self.records, self._announce, plan.bounds)
        self._share = plan.recheck
        self.learner: Learner | None = None
        if log_agent:
            agent = log_agent(self.records, self.rules)
            self.learner = Learner(agent, self.records, self._text_of, self._recheck, self._reconsider)
        self.confirmed = Confirmed(self.records.database)
        self.exchanges = Exchanges(self.records.database)
        self.consultant: Consultant | None = None
        if ladder:
            climbing = ladder(Stores(self.records, self.rules, self.confirmed, self.exchanges, folder))
            self.consultant = Consultant(
                climbing.ladder,
                climbing.teacher,
                self.confirmed,
                self._reread,
                self._known,
                self._log_of,
                self._upgrade,
                climbing.refresh,
                self._spare,
                self._rectify,
                self._reopen_decided_by,
                climbing.warm,
            )
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
        self.retention = Retention(self.archive, self.records, self.intake, plan.retention)

    def start(self) -> None:
        """Carry on where the last process stopped, however it stopped; nothing when that was done already."""
        if self._started:
            return
        self._started = True
        self.intake.start()
        self.watch.start()
        if self.learner:
            self.learner.start()
        if self.consultant:
            self._ask_anew(self.consultant)
            self.consultant.start()
        self.retention.start()

    def stop(self) -> None:
        """Write, compress and archive all that was taken; then let go of the folder."""
        self.retention.stop()
        self.watch.stop()
        if self.learner:
            self.learner.stop()
        if self.consultant:
            self.consultant.stop()
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

    def _text_of(self, attempt: Attempt, stream: str, number: int) -> str | None:
        """A raw line of an attempt, None when it is gone."""
        lines = self.intake.lines(Key(attempt.job, attempt.number, stream), number, number, 1 << 20).lines
        return decode(lines[0]) if lines else None

    def tell(self, job: str, facts: JobFacts, at: float) -> Job:
        """Enter what was told about a job, durably."""
        kept = self.records.put_job(job, facts, at)
        with self.intake.lock:
            for attempt in self.intake.attempts.values():
                attempt.is_retold = attempt.is_retold or attempt.job == job
        return kept

    def confirm(self, verdict: int, by: str, ruling: Ruling) -> Confirmation:
        """Enter what a person says that a failure was, durably; it is taught afterwards. `ConfirmationRefused`."""
        stored = self._stored(verdict)
        records = self._known(stored.job, stored.attempt)
        text_of = partial(self._raw_line, stored.job, stored.attempt)
        new = confirmation(stored, records, self.scanner.book, by, ruling, text_of)
        entered = self.confirmed.add(new, time.time())
        if self.consultant:
            self.consultant.hurry()
        return entered

    def withdraw(self, case: int, by: str, why: str) -> Confirmation:
        """Let a confirmation count no more, durably; `ConfirmationRefused`."""
        withdrawn = self.confirmed.withdraw(case, by, why, time.time())
        if self.consultant:
            self.consultant.hurry()
        return withdrawn

    def ask(self, verdict: int) -> None:
        """Look a failure up again whose cause is open, in the background. `ConfirmationRefused` when there is nothing
        to ask, `Busy` when too many wait."""
        stored = self._stored(verdict)
        if self.consultant is None or not stored.current or not is_open(stored.verdict):
            raise ConfirmationRefused(f"verdict {verdict}", "leaves nothing to ask", "Ask about an Unknown one.")
        try:
            self.consultant.ask(stored.job, stored.attempt)
        except queue.Full:
            raise Busy("the Failure Agent", "too many failures wait for it", "Ask later.") from None

    def _ask_anew(self, consultant: Consultant) -> None:
        """Take up the failures of the last day that were left open, unless a model said all it had to say of them."""
        wanted = Wanted(reason="Unknown", outcomes=("failed",), since=time.time() - _ANEW)
        for stored in self.records.search(wanted, limit=100).items:
            if stored.final and not self.exchanges.of(stored.job, stored.attempt):
                with suppress(queue.Full):
                    consultant.ask(stored.job, stored.attempt)

    def _stored(self, verdict: int) -> StoredVerdict:
        stored = self.records.verdict(verdict)
        if stored is None:
            raise ConfirmationRefused(f"verdict {verdict}", "does not exist", "List the verdicts.")
        return stored

    def _raw_line(self, job: str, number: int, stream: str, line: int) -> str | None:
        """A raw line of an attempt, None when it is gone or never was."""
        try:
            key = Key(job, number, stream)
            lines = self.intake.lines(key, line, line, 1 << 20).lines if self.has_stream(key) and line > 0 else []
        except LogdoctorError:
            return None
        return decode(lines[0]) if lines else None

    def _reread(self, job: str, number: int) -> Judged | None:
        """What a settled attempt was judged by, from its archive, with its verdict as it stands."""
        current = self.records.current(job, number)
        if current is None or not current.final:
            return None
        scanner = self.learner.agent.books.scanner(self._kind(job)) if self.learner else self.scanner
        found = self._from_archive(job, number, scanner, ()) or self._revive(job, number)
        records, book = self.watch.taught.applied(found, scanner.book)
        return Judged(job, number, records, book, current.verdict)

    def _kind(self, job: str) -> str:
        known = self.records.job(job)
        return kind_of(job, known.facts if known else JobFacts())

    def _known(self, job: str, number: int) -> list[Record]:
        """What is known of an attempt: its lines that were kept, or its log."""
        return self._revive(job, number) or self._from_archive(job, number, self.scanner, ())

    def _revive(self, job: str, number: int) -> list[Record]:
        past = self.confirmed.kept(job, number)
        return revived(past.lines, self.scanner, f"{job}/{number}") if past is not None else []

    def _log_of(self, job: str, number: int) -> WholeLog:
        return WholeLog({name: partial(self._chunks, Key(job, number, name)) for name in self.streams(job, number)})

    def _chunks(self, key: Key) -> Iterator[bytes]:
        """The archived bytes of a stream."""
        file = self.archive.open(key)
        for begin in range(0, file.offset, _READ):
            yield file.read(begin, min(begin + _READ, file.offset))

    def _upgrade(self, job: str, number: int, verdict: Verdict, unsure: Verdict) -> None:
        """Put a verdict in the place of one that is not sure, if that still stands on the same lines, and keep rules
        off what the new one rests on (law 2)."""

        def stands(current: Verdict) -> bool:
            return is_unsure(current) and current.compression.lines_in == unsure.compression.lines_in

        self.watch.reissue(job, number, verdict, of=stands)
        if self.learner is not None:
            self.learner.agent.heed((job, number), verdict, time.time())

    def _rectify(self, confirmation: Confirmation) -> None:
        """Issue the verdict that a person made of one that was wrong, with the lines that were named."""
        job, number = confirmation.job, confirmation.attempt
        current = self.records.current(job, number)
        if current is None or not current.final or current.id != confirmation.verdict or not confirmation.evidence:
            return  # the verdict that was corrected does not stand any more, or the correction is out
        verdict = rectified(current.verdict, confirmation, self._known(job, number), self.scanner.book)
        self.watch.reissue(job, number, verdict)
        if self.learner is not None:
            self.learner.agent.heed((job, number), verdict, time.time())

    def _reopen_decided_by(self, reason: str, deciders: Collection[str]) -> None:
        """Have the attempts judged anew that cases or rules decided which count no more, as far as their logs are
        there."""
        wanted, cursor = Wanted(reason=reason, outcomes=("failed",)), None
        for _ in range(_PAGES):
            page = self.records.search(wanted, cursor, limit=MAX_PAGE)
            for stored in page.items:
                if stored.verdict.decided_by.rule in deciders:
                    self._judge_anew(stored.job, stored.attempt)
            cursor = page.next
            if cursor is None:
                return

    def _judge_anew(self, job: str, number: int) -> None:
        kept = self.records.attempt(job, number)
        if kept is None or kept.deleted is not None:
            return
        if kept.settled:
            self.records.reopen(job, number)
        attempt = self.intake.load(job, number)
        attempt.anew = True
        self.intake.unsettle(attempt)
        self.watch.ask(attempt)

    def _spare(self, lines: Sequence[str], where: str) -> None:
        if self.learner is not None and lines:
            self.learner.agent.spare(lines, where, time.time())

    def _reconsider(self, attempt: Attempt) -> None:
        """Judge a settled attempt again whose verdict knows nothing, because error lines were noticed in it since."""
        with self.intake.lock:
            if self.intake.attempts.get((attempt.job, attempt.number)) is not attempt:
                return  # it left memory, and may be back as another
        current = self.records.current(attempt.job, attempt.number)
        unknown = current is not None and current.verdict.reason == "Unknown"
        if attempt.settled and unknown and not attempt.abandoned:
            self.intake.unsettle(attempt)
            self.watch.ask(attempt)

    def _recheck(self, settled: Settled) -> None:
        """Diagnose an attempt again without learned rules when it is one of the chosen; should the verdict differ,
        issue that one and put the rules back that took what it needs."""
        job, number, verdict = settled.job, settled.attempt, settled.verdict
        took = any(taken for _, taken in settled.hits.values())
        if self.learner is None or not took or verdict.outcome != "failed":
            return
        if not recheck.is_chosen(job, number, self._share):
            return
        scanner = self.learner.agent.books.scanner(settled.kind)
        found = self._from_archive(job, number, scanner, settled.noticed)
        if sum(record.compression.lines_in for record in found) != verdict.compression.lines_in:
            return  # late lines, which have a verdict of their own, or a log that was deleted
        again = recheck.verdict(*self.watch.taught.applied(found, scanner.book), settled.ending, settled.died)
        if not recheck.differs(verdict, again):
            return
        why = f"the verdict on {job}/{number} differs without learned rules: {again.reason}, not {verdict.reason}"
        agent, now = self.learner.agent, time.time()
        agent.heed((job, number), again, now)
        agent.demote(recheck.culprits(again, found, scanner), why, now)
        self.watch.reissue(job, number, again, of=lambda current: not recheck.differs(current, verdict))

    def _from_archive(self, job: str, number: int, scanner: Scanner, noticed: Sequence[Noticed]) -> list[Record]:
        """What diagnosis needs to know of the streams of an attempt, read anew."""
        with self.intake.lock:
            live = self.intake.attempts.get((job, number))
        if live is not None:
            self.intake.archive(live)
        return recheck.records(self.archive, job, number, scanner, noticed, self._wait)

    def _wait(self) -> None:
        """Until the watch has caught up with what comes in; `Busy` when the service stops."""
        while self.intake.is_behind() or (self.learner is not None and self.learner.stopping):
            if self.learner is not None and self.learner.stopping:
                raise Busy("the recheck", "the service stops", "Start it again.")
            time.sleep(0.1)

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
        cause = "another service works on this data folder"
        raise StoreError(str(folder), cause, "Stop it, or choose another folder with --data-dir.") from error
    return descriptor
