"""The watch: compresses new bytes, and judges attempts that end, fall silent or stop making steps."""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

import msgspec
import structlog

from logdoctor import tracing
from logdoctor.compress import snapshot
from logdoctor.compress.cut import Cutter
from logdoctor.compress.excerpt import Recorder, excerpt
from logdoctor.compress.filter import compress
from logdoctor.diagnose.decide import diagnose as judge
from logdoctor.diagnose.decide import undiagnosed
from logdoctor.diagnose.suspects import of_job
from logdoctor.diagnose.taught import Taught
from logdoctor.errors import InputError, LogdoctorError, StoreDamaged
from logdoctor.failure_agent.ladder import is_unsure
from logdoctor.nodes.slurm import expanded
from logdoctor.rules.load import RuleBook
from logdoctor.rules.scanner import Scanner
from logdoctor.service import silence
from logdoctor.service.consulting import Consultant, Judged
from logdoctor.service.holding import Holding
from logdoctor.service.learning import Learner
from logdoctor.service.live.steps import said_since, steps_of_bar
from logdoctor.service.overruling import Overruling
from logdoctor.service.rounds import Rounds
from logdoctor.service.silence import Timing
from logdoctor.service.streams import LiveAttempt, LiveStream, StreamScan
from logdoctor.service.turns import shielded
from logdoctor.service.verdict_counts import VerdictCounts
from logdoctor.store.jobs.records import End, Records, StoredVerdict
from logdoctor.store.keeping.work import NewWork
from logdoctor.store.log.archive import Archive
from logdoctor.store.log.shards import Fenced, Owned, shard_of
from logdoctor.store.log.table import LogTable
from logdoctor.store.names import Key
from logdoctor.text import natural
from logdoctor.types import Record, Segment, Verdict

log = structlog.get_logger()

_SEGMENT = 1 << 20  # bytes that are compressed at a time: the fastest size
_SEGMENTS = 4  # segments compressed of one stream before the next has its turn
_CATCH_UP = 4 << 20  # bytes of an archive that are read at a time
_SNAPSHOT_EVERY = 4 << 20  # least bytes of a stream between two snapshots
_SNAPSHOT_SHARE = 8  # and at least this many times the snapshot's size, so that writing them stays cheap
_TICK, _SOON = 0.2, 0.01  # seconds
_REST, _WEIGHT = 3.0, 0.02  # scanning of small parts takes 1/_REST of the time at most; weight of a new cost
_SLICE = 0.2  # seconds of compressing, or of judging, before the log is read again
_RETRY = 1.0  # seconds before an unreadable stream is retried
_PATIENCE = 900.0  # seconds before it is given up
_AGAIN = 1.0  # seconds before loading of attempts is retried
_BREATH = 5.0  # an attempt is judged again after this many times the duration of the last time
_PARTING = 5.0  # seconds to compress the rest before the service stops: the log has it


NOTHING_TAUGHT = Taught(())


class Watch:
    """One thread that scans and judges. `ask` is thread-safe; calls `announce` with each new verdict; `prefixes`
    returns those of tokens, by which attempts take turns."""

    def __init__(
        self,
        scanner: Scanner,
        holding: Holding,
        stored: LogTable,
        archive: Archive,
        records: Records,
        announce: Callable[[StoredVerdict], None],
        timing: Timing,
        overruling: Overruling,
        learner: Learner | None = None,
        consultant: Consultant | None = None,
        prefixes: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        self._scanner, self._holding, self._archive, self._records = scanner, holding, archive, records
        self._log, self._clock = stored, holding.clock
        self._announce, self._timing, self._learner, self._consultant = announce, timing, learner, consultant
        self._overruling = overruling
        self._stopping = False
        self._asked: dict[LiveAttempt, None] = {}
        self._silent: dict[LiveAttempt, None] = {}  # attempts whose silence calls for something
        self._rounds, self._prefixes = Rounds(), prefixes
        self._cost = 0.0  # recent average of seconds per stream
        self._taken: deque[Owned] = deque()
        self._taking_at = 0.0
        self._said: dict[LiveStream, tuple[int, int]] = {}
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._next_look = self._next_sweep = 0.0
        self.verdicts = self.scanned_bytes = 0
        self.counts = VerdictCounts()
        """Counts since the start, for metrics; `scanned_bytes` includes bytes that were read again."""

    def start(self) -> None:
        """Start."""
        self._holding.asked = self.ask
        self._thread.start()

    def take_up(self, taken: Collection[Owned]) -> None:
        """Load the attempts of these shards that have no final verdict, in the background."""
        self._taken.extend(taken)
        self._holding.wake()

    def _take_up(self) -> None:
        """Load the attempts without a final verdict of the shards taken over."""
        taken = {one.shard: one for one in self._taken}
        failed = set()
        wanted = [kept for kept in self._records.unsettled() if shard_of(kept.job, kept.number) in taken]
        with suppress(LogdoctorError):  # what fails is retried one by one
            self._holding.load_all((kept.job, kept.number) for kept in wanted)
        for kept in wanted:
            if self._stopping:
                return
            try:
                attempt = self._holding.load(kept.job, kept.number)
            except Fenced:  # another worker has it
                continue
            except LogdoctorError as error:
                log.error("attempt not taken up", job=kept.job, attempt=kept.number, cause=str(error))
                failed.add(shard_of(kept.job, kept.number))
                continue
            self._enroll(attempt)
            if attempt.over or attempt.died:
                self.ask(attempt)
        for shard, one in taken.items():
            if shard not in failed:
                self._taken.remove(one)
        self._taking_at = self._clock() + _AGAIN if failed else 0.0

    def _enroll(self, attempt: LiveAttempt) -> None:
        """Load what was noticed in an attempt before it was loaded."""
        attempt.is_enrolled = True
        if self._learner:
            self._learner.enroll(attempt)

    def stop(self) -> None:
        """Compress what has come, keep snapshots, and stop."""
        self._stopping = True
        with self._holding.lock:
            self._holding.fresh.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def ask(self, attempt: LiveAttempt) -> None:
        """Request a verdict on an attempt now."""
        with self._holding.lock:
            attempt.asked = True
            self._asked[attempt] = None
            self._holding.fresh.notify_all()

    def is_behind(self) -> bool:
        """Return whether streams are still being read from the archive after a start."""
        with self._holding.lock:
            return bool(self._taken) or any(not stream.ready for stream in self._holding.unscanned)

    @property
    def taught(self) -> Taught:
        """The current learned diagnosis rules."""
        return self._consultant.taught if self._consultant else NOTHING_TAUGHT

    def applied(self, job: str, records: Sequence[Record], book: RuleBook) -> tuple[list[Record], RuleBook]:
        """Return an attempt's records with learned rules applied, and the rules that judge it now."""
        taught = self._consultant.taught_for(job) if self._consultant else NOTHING_TAUGHT
        return taught.applied(records, self._overruling.book(book, job))

    def reissue(self, job: str, number: int, verdict: Verdict, of: Callable[[Verdict], bool] | None = None) -> None:
        """Replace the final verdict on an attempt, unless it was reopened or `of` rejects it."""
        verdict = of_job(verdict, self.nodes_of(job))
        with tracing.span("publish", job, number, reason=verdict.reason, final=True, again=True):
            stored = self._records.reissue(job, number, verdict, time.time(), of)
        if stored:
            self._announced(stored)

    def _run(self) -> None:
        while not self._stopping:
            try:
                worked = self._turn()
            except Exception:  # the edge of the thread: it goes on
                log.exception("watch failed")
                worked = False
            if not worked:
                with self._holding.lock:
                    self._holding.fresh.wait(_SOON if self._asked else _TICK)
        self._finish()

    def _turn(self) -> bool:
        """Do what is due; return False when nothing was."""
        if self._taken and self._clock() >= self._taking_at:
            self._take_up()
        worked = self._holding.pull()
        worked |= self._judge_asked()
        until = time.perf_counter() + _SLICE
        for stream in self._due():
            if stream in self._holding.unscanned:  # it may have been judged meanwhile
                begun = time.perf_counter()
                self._advance(stream)
                self._cost += _WEIGHT * (time.perf_counter() - begun - self._cost)
            worked = True
            self._judge_asked()
            if self._stopping or time.perf_counter() > until:
                break
        if self._clock() >= self._next_look:
            self._next_look = self._clock() + 1.0
            self._look()
            self._say()
        return self._take_steps() or worked

    def _say(self) -> None:
        """Publish how far streams were compressed."""
        with self._holding.lock:
            counted = {s: s.counted for attempt in self._holding.attempts.values() for s in attempt.streams.values()}
        new: dict[Owned, dict[Key, tuple[int, int]]] = defaultdict(dict)
        for stream, counts in counted.items():
            if counts != self._said.get(stream, (0, 0)):
                new[stream.attempt.owned][stream.key] = counts
        for lost in self._log.say(new):
            self._holding.lose(lost)
        self._said = counted

    def _due(self) -> list[LiveStream]:
        """Return streams with enough to scan, or that have waited long enough: longer while so many are active that
        scanning them this often would leave no time for anything else."""
        now = self._clock()
        with self._holding.lock:
            patience = self._timing.scan
            if not self._holding.is_half_full:
                patience = max(patience, _REST * self._cost * len(self._holding.unscanned))
            return [
                stream
                for stream in self._holding.unscanned
                if stream.retry_at <= now
                and (
                    not stream.ready
                    or stream.unscanned_bytes >= _SEGMENT
                    or now - (stream.waiting_since or now) >= patience
                )
            ]

    def _advance(self, stream: LiveStream) -> None:
        """Compress the next part of a stream; an unreadable one is retried or given up."""
        attempt, before = stream.attempt, self.scanned_bytes
        try:
            with tracing.span(
                "scan", attempt.job, attempt.number, stream=stream.key.stream, again=not stream.ready
            ) as scanning:
                if stream.ready:
                    self._scan(stream)
                else:
                    self._catch_up(stream)
                scanning.add(bytes=self.scanned_bytes - before)
            stream.failed_at = 0.0
        except Fenced:
            self._holding.lose(stream.attempt.owned)
        except StoreDamaged as error:
            log.error("stream not readable", stream=str(stream.key), cause=str(error))
            self._give_up(stream, str(error))
        except (LogdoctorError, OSError) as error:  # it may pass: an unreachable store, too many open files
            self._put_off(stream, str(error))
        except Exception as error:  # one stream must not end the others
            log.exception("stream not compressed", stream=str(stream.key))
            self._give_up(stream, f"a part could not be compressed ({type(error).__name__})")

    def _scan(self, stream: LiveStream) -> None:
        scan = stream.scan
        if scan is None:
            scan = stream.scan = self._fresh(stream)
        if scan.finished:
            self._holding.fall_back(stream)
            return
        for _ in range(_SEGMENTS):
            if chunks := self._holding.scanned(stream, _SEGMENT):
                self._push(stream, scan, b"".join(chunks))

    def _catch_up(self, stream: LiveStream) -> None:
        """Read the next part of a stream's archive, from its last snapshot on."""
        scan = stream.scan
        if scan is None:
            scan = stream.scan = self._resumed(stream)
        begin = scan.cutter.reached
        if begin < stream.archived:
            end = min(begin + _CATCH_UP, stream.archived)
            self._push(stream, scan, self._archive.open(stream.key).read(begin, end))
        elif not self._holding.catch_up(stream, begin) and begin > stream.stood:
            stream.scan = self._fresh(stream)  # the snapshot is of bytes that no longer exist, perhaps after a restore

    def _resumed(self, stream: LiveStream) -> StreamScan:
        kept = self._archive.state(stream.state)
        scanner = self._rules(stream.attempt)
        resumed = snapshot.resume(stream.key.stream, str(stream.key), kept, scanner) if kept else None
        return StreamScan(*resumed, scanner) if resumed else self._fresh(stream)

    def _fresh(self, stream: LiveStream) -> StreamScan:
        scanner = self._rules(stream.attempt)
        name = stream.key.stream
        return StreamScan(Cutter(name), Recorder(name, str(stream.key), scanner), scanner)

    def _rules(self, attempt: LiveAttempt) -> Scanner:
        """Return the current rules for an attempt."""
        return self._learner.scanner(attempt) if self._learner else self._scanner

    def _push(self, stream: LiveStream, scan: StreamScan, data: bytes) -> None:
        self.scanned_bytes += len(data)
        for segment in scan.cutter.push(data):
            self._add(stream, scan, segment)
        if self._clock() - stream.progress_at > self._timing.quiet and (state := scan.cutter.redrawn()):
            self._look_at_bar(stream, scan, state)
        grown = scan.cutter.offset - scan.kept_at
        if grown >= max(_SNAPSHOT_EVERY, _SNAPSHOT_SHARE * scan.kept_bytes):
            self._keep(stream, scan)

    def _add(self, stream: LiveStream, scan: StreamScan, segment: Segment) -> None:
        scanner = self._rules(stream.attempt)
        if scanner is not scan.scanner:
            scan.scanner = scanner
            scan.recorder.adopt(scanner)
        residual = compress(segment, scanner)
        part = excerpt(residual, scanner)
        scan.recorder.add(part, 0)
        stream.attempt.loss_turned |= stream.losses.add(part.meter)
        if stream.ready:
            steps, after = said_since(segment, part.meter)
            if steps:
                _step(stream, self._clock(), steps)
            stream.attempt.pace.say(after)
        if self._learner and not stream.attempt.settled:
            self._learner.gather(stream.attempt, residual)

    def _look_at_bar(self, stream: LiveStream, scan: StreamScan, state: bytes) -> None:
        """Count a bar redrawn with another step as progress, although its line is not complete."""
        steps = steps_of_bar(stream.key.stream, state, scan.scanner)
        if steps and steps != stream.bar:
            stream.bar = steps
            _step(stream, self._clock())

    def _keep(self, stream: LiveStream, scan: StreamScan) -> None:
        state = snapshot.take(scan.cutter, scan.recorder, scan.scanner)
        try:
            stream.state = self._archive.keep_state(stream.attempt.owned, stream.key, state)
        except Fenced:
            raise
        except LogdoctorError as error:  # without it, more must be read again after a crash
            log.warning("snapshot not written", stream=str(stream.key), cause=str(error))
        scan.kept_at, scan.kept_bytes = scan.cutter.offset, len(state)

    def _put_off(self, stream: LiveStream, cause: str) -> None:
        """Retry a stream in a moment; give it up when that has failed for long."""
        now = self._clock()
        if not stream.failed_at:
            stream.failed_at = now
            log.error("stream not readable", stream=str(stream.key), cause=cause)
        stream.retry_at = now + _RETRY
        if stream.ready:  # bytes taken for compression are read again
            self._holding.fall_back(stream)
        if now - stream.failed_at > _PATIENCE:
            stream.failed_at = 0.0
            self._give_up(stream, cause)

    def _give_up(self, stream: LiveStream, cause: str) -> None:
        """Judge without the rest of an unreadable stream, and note that."""
        scan = stream.scan or self._fresh(stream)
        if cause not in scan.recorder.problems:
            scan.recorder.problems.append(cause)
        stream.scan = scan
        self._holding.give_up(stream)

    def _judge_asked(self) -> bool:
        """Judge requested attempts whose streams were scanned to their ends, for a while; return whether any work was
        done."""
        worked, until = False, time.perf_counter() + _SLICE
        for attempt in self._rounds.of(list(self._asked)):
            if self._stopping or (worked and time.perf_counter() > until):
                break
            if self._clock() - attempt.judged_at < _BREATH * attempt.judged_for:
                continue
            with self._holding.lock:
                behind = [stream for stream in attempt.streams.values() if stream in self._holding.unscanned]
                if attempt.is_dropped:  # its present owner judges it
                    self._asked.pop(attempt, None)
                    continue
            if not self._holding.is_read(attempt):  # its new bytes wait their turn like those of others
                continue
            for stream in behind:
                if stream.retry_at <= self._clock():
                    self._advance(stream)
                    worked = True
            with self._holding.lock:  # again: while others print, more comes with each turn
                behind = [stream for stream in attempt.streams.values() if stream in self._holding.unscanned]
            if not behind:
                with self._holding.lock:
                    attempt.asked = False
                    self._asked.pop(attempt, None)
                if not self._judge_safely(attempt, None):
                    self.ask(attempt)
                worked = True
        return worked

    def _judge_safely(self, attempt: LiveAttempt, idle: float | None) -> bool:
        """Judge an attempt; a fault of ours delays it by a minute and affects no other. Return False if it should be
        retried."""
        try:
            with tracing.span("judge", attempt.job, attempt.number, streams=len(attempt.streams), over=attempt.over):
                self._judge(attempt, idle)
        except Fenced:
            self._holding.lose(attempt.owned)
        except LogdoctorError as error:  # most likely the disk is full
            log.error("attempt not judged", job=attempt.job, attempt=attempt.number, cause=str(error))
            attempt.judged_at, attempt.judged_for = self._clock(), 2.0 / _BREATH
            return False
        except Exception:  # one attempt must not end the others
            log.exception("attempt not judged", job=attempt.job, attempt=attempt.number)
            attempt.judged_at, attempt.judged_for = self._clock(), 60.0 / _BREATH
        return True

    def _judge(self, attempt: LiveAttempt, idle: float | None) -> None:
        """Publish the current verdict on an attempt; `idle` are the seconds without progress of a running one."""
        begin = time.perf_counter()
        if not attempt.is_enrolled:
            self._enroll(attempt)
        rules = self._rules(attempt)
        with self._holding.lock:
            if attempt.is_dropped:
                return
            for stream in attempt.streams.values():
                stream.scan = stream.scan or self._fresh(stream)
            streams = sorted(attempt.streams.values(), key=lambda stream: natural(stream.key.stream))
            final, ended, reported, ends = attempt.over, attempt.ended, attempt.reported, dict(attempt.ends)
            changed_at = attempt.changed_at
        for stream in streams:
            if stream.key.stream in ended and stream.scan is not None and not stream.scan.finished:
                stream.scan.finished = True
                for segment in stream.scan.cutter.finish():
                    self._add(stream, stream.scan, segment)
        for stream in streams:
            if stream.problem and stream.scan and stream.problem not in stream.scan.recorder.problems:
                stream.scan.recorder.problems.append(stream.problem)
        for name, number, text in attempt.noticed:
            if (noticing := attempt.streams.get(name)) is not None and noticing.scan is not None:
                noticing.scan.recorder.notice(number, text)
        records = [stream.scan.recorder.record() for stream in streams if stream.scan is not None]
        for name, problem in attempt.problems.items():
            records.append(Record(name, f"{attempt.job}/{attempt.number}/{name}", problems=[problem]))
        records, book = self.applied(attempt.job, records, rules.book)
        try:
            verdict = judge(records, book, idle, reported, runs=not final and not attempt.died)
        except Exception as error:  # a defect of ours: the end is published all the same, and somebody is asked
            if not final:
                raise
            log.exception("attempt not diagnosed", job=attempt.job, attempt=attempt.number)
            verdict = undiagnosed(records, book, error, reported)
        verdict = of_job(verdict, self.nodes_of(attempt.job))
        attempt.judged_for = time.perf_counter() - begin
        attempt.judged_at = self._clock()
        silent = sorted(attempt.streams.keys() - attempt.ends.keys()) if attempt.abandoned and reported.failed else []
        problems = (*verdict.problems, *(f"{name}: fell silent without an end" for name in silent))
        verdict = msgspec.structs.replace(verdict, problems=problems, seconds=round(attempt.judged_for, 3))
        if final and self._missed_an_end(attempt, ends):
            return
        with self._holding.settling:
            found = self._told_by_others(attempt, verdict)
            judged = Judged(attempt.job, attempt.number, records, book, verdict, reported) if found is None else None
            self._publish(attempt, found or verdict, final, self._work(attempt, verdict, judged) if final else [])
            missed = final and self._missed_an_end(attempt, ends)  # ends reported from now on see it settled
            with self._holding.lock:
                attempt.settled = final and attempt.changed_at == changed_at and not missed
                attempt.reopened = final and not attempt.settled
        if attempt.settled:
            self._drop_states(attempt)
            if self._learner:
                self._learner.settled(attempt, verdict)
            if self._consultant:
                self._consultant.wake()

    def _missed_an_end(self, attempt: LiveAttempt, ends: Mapping[str, End]) -> bool:
        """Return whether an end was reported that was not judged; if so, request another verdict."""
        kept = self._records.attempt(attempt.job, attempt.number)
        stored = {end.stream: end for end in kept.ends} if kept else {}
        if all(ends.get(name) == end for name, end in stored.items()):
            return False
        self._holding.told(attempt, stored.values())
        self.ask(attempt)
        return True

    def nodes_of(self, job: str) -> list[str]:
        """Return the reported nodes of a job; [] if there are none or the list cannot be read."""
        known = self._records.job(job)
        if known is None or not known.facts.nodelist:
            return []
        try:
            return expanded(known.facts.nodelist)
        except InputError:
            return []

    def _work(self, attempt: LiveAttempt, verdict: Verdict, judged: Judged | None) -> list[NewWork]:
        """Return the background work of an attempt about to be settled."""
        work = [self._consultant.hold(judged)] if self._consultant and judged else []
        if self._learner is not None:
            work.append(self._learner.due(attempt, verdict, _hits(attempt)))
        return work

    def _told_by_others(self, attempt: LiveAttempt, verdict: Verdict) -> Verdict | None:
        """Return a case's or model's verdict on the same lines if the rules are unsure: it survives a restart."""
        anew = attempt.anew
        sure = not (self._consultant.looks_up(verdict) if self._consultant else is_unsure(verdict))
        if anew or sure:
            return None
        current = self._records.current(attempt.job, attempt.number)
        if current is None or not (current.verdict.decided_by.kind == "case" or current.verdict.decided_by.model):
            return None
        same = current.verdict.compression.lines_in == verdict.compression.lines_in
        is_refuted = attempt.died and current.verdict.outcome != "failed"
        return current.verdict if same and not is_refuted else None

    def _publish(self, attempt: LiveAttempt, verdict: Verdict, final: bool, work: Sequence[NewWork]) -> None:
        """Store and announce a verdict; of a job that may still run only a known cause, or one that corrects an earlier
        verdict."""
        unsure = verdict.outcome in ("running", "unknown") or (verdict.reason == "Unknown" and not attempt.died)
        if not final and unsure and self._records.current(attempt.job, attempt.number) is None:
            return
        with tracing.span("publish", attempt.job, attempt.number, reason=verdict.reason, final=final):
            stored = self._records.publish(
                attempt.job, attempt.number, verdict, final, time.time(), work, attempt.owned
            )
        attempt.provisional, attempt.anew = not final, False
        if stored is not None:
            if final and not attempt.is_counted:
                attempt.is_counted = True
                self.counts.count(stored.verdict, attempt.ends.values())
            self._announced(stored)

    def _announced(self, stored: StoredVerdict) -> None:
        self.verdicts += 1
        self._announce(stored)
        log.info("verdict", job=stored.job, attempt=stored.attempt, reason=stored.verdict.reason, final=stored.final)

    def _look(self) -> None:
        """Find the attempts whose silence calls for something (service/silence.py)."""
        self._holding.reopen_changed()
        with suppress(LogdoctorError):
            self._rounds.know(self._prefixes())
        with self._holding.lock:
            attempts = list(self._holding.attempts.values())
        for attempt in attempts:
            if self._due_step(attempt)[0] != "wait":
                self._silent.setdefault(attempt)
        self._abandon_unloaded()

    def _due_step(self, attempt: LiveAttempt) -> tuple[silence.Step, float]:
        """Return what silence calls for, and the time up to which the log was read."""
        with self._holding.lock:
            known = self._holding.read_until(attempt, self._clock())
            return "wait" if attempt.is_dropped else silence.step(attempt, self._timing, known), known

    def _take_steps(self) -> bool:
        """Take the steps that silence calls for, for a while; return False if there were none."""
        worked, until = False, time.perf_counter() + _SLICE
        for attempt in self._rounds.of(list(self._silent)):
            if self._stopping or (worked and time.perf_counter() > until):
                break
            try:
                self._take_step(attempt, *self._due_step(attempt))
            except Fenced:
                self._holding.lose(attempt.owned)
            finally:
                del self._silent[attempt]
            worked = True
        return worked

    def _take_step(self, attempt: LiveAttempt, step: silence.Step, now: float) -> None:
        match step:
            case "forget":
                self._holding.forget(attempt)
            case "judge":
                self.ask(attempt)
            case "abandon":
                self._abandon(attempt)
            case "look":
                attempt.looked_at, attempt.loss_turned = self._seen_until(attempt, now), False
                self._judge_safely(attempt, silence.idle_seconds(attempt, self._timing, now))
            case "unload":
                self._unload(attempt)

    def _unload(self, attempt: LiveAttempt) -> None:
        """Unload a quiet attempt that was read to its end; it resumes from its snapshots."""
        if any(stream in self._holding.unscanned for stream in attempt.streams.values()):
            return
        for stream in attempt.streams.values():
            if (
                stream.ready
                and stream.scan
                and not stream.scan.finished
                and not stream.unscanned
                and stream.scan.cutter.offset > stream.scan.kept_at
            ):
                self._keep(stream, stream.scan)
        self._holding.forget(attempt)

    def _abandon_unloaded(self) -> None:
        """Abandon attempts that were unloaded and silent for too long; checked now and then."""
        now = self._clock()
        if now < self._next_sweep:
            return
        self._next_sweep = now + max(min(self._timing.abandon / 10, 600.0), 1.0)
        for kept in self._records.unsettled():
            if self._stopping:
                return
            with self._holding.lock:
                here = (kept.job, kept.number) in self._holding.attempts
            if here or not self._holding.owns(kept.job, kept.number):
                continue
            if time.time() - (self._log.changed(kept.job, kept.number) or kept.started) > self._timing.abandon:
                with shielded("attempt not given up", job=kept.job, attempt=kept.number):
                    self._abandon(self._holding.load(kept.job, kept.number))

    def _seen_until(self, attempt: LiveAttempt, now: float) -> float:
        """Return when the last bytes came that this look covers: bytes that wait for compression need another."""
        with self._holding.lock:
            waiting = [s.waiting_since for s in attempt.streams.values() if s.waiting_since is not None]
        return min([now, *waiting])

    def _abandon(self, attempt: LiveAttempt) -> None:
        """Mark an attempt that has been silent too long as ended; new bytes reopen it."""
        supposed = End("", None, None, None, time.time())
        self._holding.told(attempt, [*attempt.ends.values(), supposed])
        with self._holding.lock:
            attempt.abandoned = True
        self.ask(attempt)

    def _drop_states(self, attempt: LiveAttempt) -> None:
        """Delete the snapshots of a settled attempt: should more come, its archive is read again."""
        kept = [stream for stream in attempt.streams.values() if stream.state]
        self._archive.drop_states(attempt.owned, [stream.key for stream in kept])
        for stream in kept:
            stream.state = ""

    def _finish(self) -> None:
        """Compress what has come, and keep it for the next start, as time allows."""
        until = time.perf_counter() + _PARTING
        with shielded("log not read"):
            self._holding.pull()
        with self._holding.lock:
            streams = [stream for attempt in self._holding.attempts.values() for stream in attempt.streams.values()]
        for stream in streams:
            if time.perf_counter() > until:
                log.warning("not all kept for the next start", cause="too much waits; it is read from the log again")
                break
            with suppress(Fenced):
                self._finish_stream(stream)

    def _finish_stream(self, stream: LiveStream) -> None:
        while stream.ready and stream.unscanned and stream.scan and not stream.scan.finished:
            self._scan(stream)
        if stream.scan and not stream.scan.finished and stream.scan.cutter.offset > stream.scan.kept_at:
            self._keep(stream, stream.scan)


def _step(stream: LiveStream, now: float, count: int = 1) -> None:
    stream.progress_at = now
    stream.attempt.pace.step(stream.key.stream, stream.progress_at, count)


def _hits(attempt: LiveAttempt) -> dict[str, tuple[int, int]]:
    """Return how many lines of an attempt each learned rule matched and took."""
    hits: dict[str, tuple[int, int]] = {}
    for stream in attempt.streams.values():
        for rule, (matched, taken) in stream.scan.recorder.hits().items() if stream.scan else ():
            before = hits.get(rule, (0, 0))
            hits[rule] = before[0] + matched, before[1] + taken
    return hits
