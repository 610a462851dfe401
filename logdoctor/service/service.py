"""One data folder and everything that works on it: records, log, archive, intake and watch."""

import errno
import fcntl
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog

from logdoctor.errors import StorageFull, StoreDamaged, StoreError
from logdoctor.learning.filters.agent import LogAgent
from logdoctor.llm.spending import Guarded
from logdoctor.rules.scanner import Scanner
from logdoctor.service import recheck
from logdoctor.service.acting import Actor
from logdoctor.service.casework import Casework
from logdoctor.service.consulting import Climbing, Consultant
from logdoctor.service.figures import OverviewPoller, ProcessFigures, process_figures, short
from logdoctor.service.holding import ENDED, FACTS_CHANGED, Holding, HoldingBounds
from logdoctor.service.intake import Intake, IntakeBounds
from logdoctor.service.leading import Leading
from logdoctor.service.learning import Learner, SettledAttempt
from logdoctor.service.news import News
from logdoctor.service.notifying import Notifier
from logdoctor.service.overruling import Overruling
from logdoctor.service.owner import Owner
from logdoctor.service.parts import Parts
from logdoctor.service.reading import Logs
from logdoctor.service.retention import Retention, Rules
from logdoctor.service.silence import Timing
from logdoctor.service.streams import LiveAttempt
from logdoctor.service.turns import Turns, shielded
from logdoctor.service.wakeups import Wakeups
from logdoctor.service.watch import Watch
from logdoctor.service.workers import Workers
from logdoctor.store.incidents.mutes import Mutes
from logdoctor.store.incidents.notices import Notices
from logdoctor.store.incidents.runbooks import Desk
from logdoctor.store.incidents.table import Incidents
from logdoctor.store.jobs.records import End, Job, JobFacts, Records
from logdoctor.store.jobs.report import Reports
from logdoctor.store.keeping.leader import LeaderLease
from logdoctor.store.keeping.sessions import Sessions
from logdoctor.store.keeping.tokens import Tokens
from logdoctor.store.keeping.work import OPEN_FAILURES, NewWork, Work
from logdoctor.store.learning.confirmed import Confirmed
from logdoctor.store.learning.exchanges import Exchanges
from logdoctor.store.learning.learned import LearnedRules
from logdoctor.store.learning.rule_totals import RuleTotals
from logdoctor.store.log.archive import Archive
from logdoctor.store.log.objects import FolderObjects, Objects
from logdoctor.store.log.shards import Leases
from logdoctor.store.log.table import LogLimits, LogTable
from logdoctor.store.names import Key
from logdoctor.store.nodes.records import NodeRecords
from logdoctor.store.redis_state import RedisState
from logdoctor.text import decode

log = structlog.get_logger()

_READ = 1 << 20
_RECENT = 64 << 20  # bytes of new log rows that a process which serves and scans caches
ALIVE = "alive"
"""The file in a worker's data folder that each heartbeat touches."""

_TEND = 15.0  # seconds between checks of snoozes and of failures that jobs ran past


class ServiceBounds(NamedTuple):
    """Limits, in bytes except `streams`: of one stream; streams of one attempt; in the log of one shard, and in all of
    it, before senders wait; waiting for compression before reading of the log pauses; unarchived before all streams
    are archived, not only full frames."""

    stream_bytes: int
    streams: int
    shard_bytes: int
    behind: int
    unscanned: int
    unarchived: int


class Plan(NamedTuple):
    """The configuration of a service. `recheck`: one in so many failed attempts is diagnosed again without learned
    rules (0: none); `objects`: where it archives (None: in its folder); `parts`: what this process runs; `workers`:
    scanning processes it starts; `lease`: seconds for which shards are leased; `redis`: shared by its processes;
    `clock`: measures silence."""

    database: str
    bounds: ServiceBounds
    timing: Timing
    retention: Rules
    min_free: int
    recheck: int = 0
    objects: Objects | None = None
    parts: Parts = Parts()
    workers: int = 0
    lease: float = 10.0
    redis: RedisState | None = None
    clock: Callable[[], float] = time.monotonic


class Stores(NamedTuple):
    """The stores that the ladder above the rules uses."""

    records: Records
    rules: LearnedRules
    confirmed: Confirmed
    exchanges: Exchanges
    folder: Path


class ScratchFile(NamedTuple):
    """An open temporary file."""

    path: Path
    descriptor: int
    min_free: int

    def write(self, data: bytes) -> None:
        """Append bytes; `StorageFull` when that would leave less than `min_free` on the disk."""
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
    """The service of one data folder; `StoreError` when another process serves it already."""

    def __init__(
        self,
        folder: Path,
        scanner: Scanner,
        plan: Plan,
        log_agent: Callable[[Records, LearnedRules], LogAgent] | None = None,
        ladder: Callable[[Stores], Climbing] | None = None,
        actor: Callable[..., Actor] | None = None,
        notifier: Callable[..., Notifier] | None = None,
    ) -> None:
        self._parts = plan.parts
        self._lock = locked(folder) if plan.parts.serves else None
        self.scanner = scanner
        self._started = False
        self._scratch, self._min_free = folder / "scratch", plan.min_free
        if plan.parts.serves:
            shutil.rmtree(self._scratch, ignore_errors=True)
        self.records = Records(plan.database)
        bounds = plan.bounds
        limits = LogLimits(bounds.stream_bytes, bounds.streams, bounds.shard_bytes)
        self.log = LogTable(self.records.database, limits, _RECENT if plan.parts.serves and plan.parts.scans else 0)
        self.archive = Archive(self.records.database, plan.objects or FolderObjects(folder / "archive"))
        self.incidents = Incidents(self.records.database)
        self.tokens = Tokens(self.records.database)
        self.sessions = Sessions(self.records.database, self.tokens)
        self.rules = LearnedRules(self.records.database)
        self.rule_totals = RuleTotals(self.records.database)
        self.work = Work(self.records.database)
        self.nodes = NodeRecords(self.records.database)
        self.notices = Notices(self.records.database)
        self.reports = Reports(self.records.database)
        process = secrets.token_hex(8)
        self.leading = Leading(LeaderLease(self.records.database, process, plan.lease), self._lead)
        self.redis, self.wakeups = plan.redis, Wakeups(plan.redis)
        self.news = News(self.records)
        self.listeners = self.news.listeners
        held = HoldingBounds(bounds.unscanned, bounds.unarchived)
        self.holding = Holding(self.log, self.archive, self.records, self._announce, held, plan.clock)
        self.intake = Intake(self.log, self.records, folder, IntakeBounds(bounds.behind, plan.min_free), self._appended)
        self.logs = Logs(self.log, self.archive)
        self._share = plan.recheck
        self.learner: Learner | None = None
        if log_agent:
            agent = log_agent(self.records, self.rules)
            self.learner = Learner(
                agent,
                self.records,
                self.work,
                self._text_of,
                self._recheck,
                self._reconsider,
                self.holding.live,
                lambda *asked: self.casework.gather(*asked),
                lambda: not self.holding.is_half_full,
                self.leading,
            )
        self.overruling = Overruling(self.rules.overrides, self.records)
        self.casework = Casework(
            self.intake, self.logs, self.records, self.work, scanner, self.overruling, self.learner
        )
        self.consultant: Consultant | None = None
        if ladder:
            climbing = ladder(self._stores(folder))
            self.consultant = Consultant(climbing, self.casework.confirmed, self.work, self.casework, self.leading)
        self.watch = Watch(
            scanner,
            self.holding,
            self.log,
            self.archive,
            self.records,
            self._announce,
            plan.timing,
            self.overruling,
            self.learner,
            self.consultant,
            self.tokens.prefixes,
        )
        self.casework.watch, self.casework.consultant = self.watch, self.consultant
        self.actor = actor(kept=self.records, leads=self.leading) if actor else None
        if self.actor:
            self.listeners.append(self.actor.handle)
        self.notifier = notifier(kept=self.records, leads=self.leading) if notifier else None
        if self.notifier:
            self.news.changed.append(self.notifier.wake)
        self.incidents.listeners.append(self._announce)
        self.mutes = Mutes(self.records.database, lambda: self._announce(None))
        self.desk = Desk(self.records.database)
        self._tending = Turns("incidents", self._tend, may=self.leading)
        self.wakeups.listen("events", self.news.wake)
        self.wakeups.listen("log", self.holding.wake)
        if self.actor:
            self.actor.listeners.append(lambda _: self.wakeups.tell("nodes"))
        self._leases = Leases(self.records.database, process, plan.lease, rulebook=scanner.book.digest)
        self.worker = short(process)
        """The name of this process in metrics."""
        self._alive = None if plan.parts.serves else folder / ALIVE
        self.owner = Owner(self._leases, self.holding, self.watch.take_up, self._said, self._beaten)
        self.looking = OverviewPoller(self.records.database, process)
        self.workers = Workers(plan.workers, ("--data-dir", str(folder)))
        self.retention = Retention(
            self.log, self.archive, self.records, self.holding, self.intake.closed, plan.retention
        )

    def start(self) -> None:
        """Resume where the last process stopped, however it stopped; does nothing if already started.

        `StoreDamaged` when the database and the archive do not belong together: nothing was changed then.
        """
        if self._started:
            return
        self._meet_archive()
        self._started = True
        self.wakeups.start()
        if self._parts.serves:
            if self.records.database.is_file:  # the lock of the folder shows that no process of the last service lives
                self._leases.clear()
                self.leading.clear()
            self.leading.start()
            self.news.start()
            self.intake.start()
            self._tending.start()
        if self._parts.scans:
            self.holding.start()
            self.owner.start()
            self.watch.start()
            self.retention.start()
        if self.learner:
            self.learner.start(self._parts)
        if self.consultant:
            self.consultant.start(self._parts)
        if self.actor:
            self.actor.start()
        if self.notifier:
            self.notifier.start()
        self.workers.start()
        if self._parts.serves:
            self.looking.start()

    def figures(self) -> ProcessFigures:
        """Return the figures of this process."""
        leads = self.leading()
        return process_figures(self.holding, self.watch, self.retention, self.learner, self.model, leads)

    def _said(self) -> str:
        """Return the figures as JSON; "" on any failure, so that leases are still renewed."""
        with shielded("figures not told"):
            return msgspec.json.encode(self.figures()).decode()
        return ""

    def _beaten(self) -> None:
        """Touch the file that shows that this worker is alive and reaches the database."""
        if self._alive:
            with suppress(OSError):
                self._alive.touch()

    def _lead(self) -> None:
        """Take over what the last leader left undone."""
        self.work.resume(time.time())
        self.incidents.catch_up(time.time())
        self.rule_totals.catch_up()
        if self.consultant:
            self.work.enter([NewWork(OPEN_FAILURES, "")], time.time())
        if self.actor:
            self.actor.take_up()

    def _meet_archive(self) -> None:
        try:
            self.archive.meet()
        except StoreDamaged:
            self._let_go()
            raise
        except StoreError as error:  # input is accepted, and the archive checked again before it is written to
            log.warning("archive not reached", cause=str(error))

    def stop(self) -> None:
        """Write all that was taken, compress and archive as time allows, and release the folder."""
        self.casework.stopping = True
        self.intake.stop()
        self._tending.stop()
        self.looking.stop()
        self.workers.stop()
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
        if self._parts.serves:
            self.leading.stop()
        self.news.stop()
        self.news.join()
        self._tending.join()
        self.wakeups.stop()
        if self._parts.scans:
            self.holding.stop()
            self.owner.stop()
        self._let_go()

    def _let_go(self) -> None:
        self.records.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def end(self, job: str, number: int, end: End) -> None:
        """Record durably how an attempt or one of its streams ended, and request the verdict."""
        before = self.records.attempt(job, number)
        if before is not None and before.settled and not _tells(before.ends, end):
            self._reopen(job, number)  # first: if it fails, the sender repeats the end, which is then still new
        kept = self.records.end(job, number, end)
        stands = before is not None and before.settled and kept.settled  # else it took the place of a past attempt
        if kept.deleted is not None or (before is not None and stands and _tells(before.ends, end)):
            return  # the verdict stands: there is nothing to judge, or nothing new
        if kept.settled:
            self._reopen(job, number)
        self.intake.wish(job, number, ENDED)

    def _reopen(self, job: str, number: int) -> None:
        if verdict := self.records.reopen(job, number):
            self._announce(verdict)

    def streams(self, job: str, number: int) -> list[str]:
        """Return the names of an attempt's streams."""
        return sorted(self.logs.streams(job, number))

    def has_stream(self, key: Key) -> bool:
        """Return whether bytes of the stream are kept."""
        return self.logs.standing(key).next > 0

    @contextmanager
    def scratch_file(self) -> Iterator["ScratchFile"]:
        """Yield a temporary file, deleted on exit."""
        self._scratch.mkdir(exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self._scratch, buffering=0) as file:
            yield ScratchFile(Path(file.name), file.fileno(), self._min_free)

    def _text_of(self, attempt: LiveAttempt, stream: str, number: int) -> str | None:
        """Return a raw line of an attempt; None when it is gone."""
        lines = self.logs.lines(Key(attempt.job, attempt.number, stream), number, number, 1 << 20).lines
        return decode(lines[0]) if lines else None

    @property
    def model(self) -> Guarded | None:
        """The model that the Log Agent and the Failure Agent ask, if any."""
        asked = self.consultant.model if self.consultant else None
        return asked or (self.learner.model if self.learner else None)

    def _stores(self, folder: Path) -> Stores:
        return Stores(self.records, self.rules, self.casework.confirmed, self.casework.exchanges, folder)

    def tell(self, job: str, facts: JobFacts, at: float) -> Job:
        """Record reported facts about a job, durably, and notify the owners of its open attempts."""
        kept = self.records.put_job(job, facts, at)
        for attempt in self.records.attempts(job):
            if not attempt.settled and attempt.deleted is None:
                self.intake.wish(job, attempt.number, FACTS_CHANGED)
        return kept

    def _reconsider(self, attempt: LiveAttempt) -> None:
        """Judge a settled attempt again whose verdict is unknown, given newly noticed error lines."""
        if self.holding.live(attempt.job, attempt.number) is not attempt:
            return  # it left memory, and may be back as another object
        current = self.records.current(attempt.job, attempt.number)
        unknown = current is not None and "unknown" in (current.verdict.reason.lower(), current.verdict.outcome)
        if attempt.settled and unknown and not attempt.abandoned:
            self.holding.unsettle(attempt)
            self.watch.ask(attempt)

    def _recheck(self, settled: SettledAttempt) -> None:
        """Diagnose an attempt again without learned rules. This is done if it is in the sample, or if rules that few
        attempts have tried took lines of it. If the verdict differs, issue it and demote the rules that took what it
        needs."""
        job, number, verdict = settled.job, settled.attempt, settled.verdict
        took = [rule for rule, (_, taken) in settled.hits.items() if taken]
        if self.learner is None or not took or verdict.outcome != "failed" or not self._share:
            return
        if not recheck.is_chosen(job, number, self._share) and not self.learner.agent.any_young(settled.kind, took):
            return
        scanner = self.learner.agent.books.scanner(settled.kind)
        found = self.casework.from_archive(job, number, scanner, settled.noticed)
        if sum(record.compression.lines_in for record in found) != verdict.compression.lines_in:
            return  # late lines, which get their own verdict, or a deleted log
        again = recheck.verdict(*self.watch.applied(job, found, scanner.book), settled.reported)
        if not recheck.differs(verdict, again):
            return
        why = f"the verdict on {job}/{number} differs without learned rules: {again.reason}, not {verdict.reason}"
        agent, now = self.learner.agent, time.time()
        agent.handle((job, number), again, now)
        agent.demote(recheck.culprits(again, found, scanner), why, now)
        self.watch.reissue(job, number, again, of=lambda current: not recheck.differs(current, verdict))

    def _appended(self) -> None:
        self.holding.wake()
        self.wakeups.tell("log")

    def _tend(self) -> float:
        """End snoozes and resolve failures that jobs ran past; return seconds until the next turn."""
        self.incidents.tend(time.time())
        return _TEND

    def _announce(self, _changed: object) -> None:
        self.news.wake()
        self.wakeups.tell("events")


def _tells(ends: Sequence[End], end: End) -> bool:
    """Return whether `end` repeats one of `ends`, ignoring times."""
    return any(msgspec.structs.replace(one, at=end.at) == end for one in ends)


def locked(folder: Path) -> int:
    """Return a lock on the folder, held until it is closed or the process ends; `StoreError` when it is taken."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        cause = "another service is using this data folder"
        raise StoreError(str(folder), cause, "Stop it, or choose another folder with --data-dir.") from error
    return descriptor
