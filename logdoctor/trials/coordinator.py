"""Run a trial: workers pull shards from one queue, and each set is scored once its last shard is made.

One thread per worker gives it one shard after another, wherever it works; other threads do the scoring. Everything that
happens is written to the state folder first. The queue is planned again as measured times come in.
"""

import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple, Protocol

import msgspec

from logdoctor.errors import TrialError
from logdoctor.trials.commands import INFER, SCORE, words
from logdoctor.trials.journal import Begun, Dropped, Ended, Event, Failed, Loaded, Scored, Started
from logdoctor.trials.planning import makespan, plan, schedule
from logdoctor.trials.progress import LOSSES, TRIES, measured
from logdoctor.trials.state import State
from logdoctor.trials.tasks import Outcome, Task, Worker, WorkerLost
from logdoctor.trials.types import EvalSet, Shard, Times

_PATIENCE = 0.5  # seconds between checks whether a thread failed, or Ctrl-C was pressed
_CUT = 4  # parts that a shard that took too long is cut into
_NOTED = 5.0  # seconds between notes of the remaining time
_OFF = 1.25  # ratio of actual and expected time from which the queue is planned again


class Place(Protocol):
    """Where workers run: this machine, a Ray cluster, or Slurm. `workers` is the most there may be, `scorers` how many
    sets are scored at once, `host` the address at which scoring reaches this process."""

    workers: int
    scorers: int
    host: str

    def worker(self, number: int, over: Callable[[], bool]) -> Worker | None:
        """Return a worker that has the checkpoint, once there is one; None if the trial is `over` before. `WorkerLost`
        if another try may help, else `TrialError`."""

    def score(self, task: Task) -> Outcome:
        """Score and return the outcome; `WorkerLost` when it is unknown."""

    def close(self) -> None:
        """End all workers and what they run."""


class Recorder(Protocol):
    """The recorded times of sets."""

    def times(self, one: EvalSet, billions: float | None) -> Times:
        """Return the times of a set on a model of so many billions of parameters."""

    def record(
        self, one: EvalSet, billions: float | None, shards: Sequence[tuple[int, float]], score: float | None = None
    ) -> None:
        """Add what was measured of a set."""


class Why(NamedTuple):
    """Why something failed, by its log: the reason, and the line that proves it."""

    reason: str
    quote: str = ""


Diagnose = Callable[[str, bytes, int | None], Why | None]
"""Diagnoses a failed task by its name, log and exit code; None if the log does not tell."""
JudgeUrl = Callable[[str], str]
"""Returns the URL of a judge."""


class _Retry(NamedTuple):
    shard: Shard
    failed_on: frozenset[str]


class Coordinator:
    """Runs a trial until every set is scored or failed."""

    def __init__(
        self,
        state: State,
        place: Place,
        priors: Recorder,
        diagnose: Diagnose,
        judge_url: JudgeUrl,
        told: Callable[[Event], None] = lambda event: None,
    ) -> None:
        self._state, self._place, self._priors = state, place, priors
        self._diagnose, self._judge_url, self._told = diagnose, judge_url, told
        self._trial = state.trial
        self._sets = {one.name: one for one in self._trial.sets}
        self._prior = {name: priors.times(one, self._trial.model.billions) for name, one in self._sets.items()}
        made = measured(state.progress)  # by the run that is resumed
        self._times = {name: corrected(prior, made.get(name, ())) for name, prior in self._prior.items()}
        self._changed = threading.Condition(threading.RLock())
        self._queue: list[Shard] = []
        self._retries: list[_Retry] = []
        self._alive: Counter[str] = Counter()
        self._failures: Counter[tuple[Shard, bool]] = Counter()
        self._losses: Counter[Shard] = Counter()
        self._failed_on: dict[Shard, frozenset[str]] = defaultdict(frozenset)
        self._most: dict[str, int] = {}
        """Most samples per shard of a set, after a larger shard took too long."""
        self._scoring: set[str] = set()
        self._error: BaseException | None = None
        self._load = 0.0
        self._missing = 0

    def run(self, watch: Callable[[float], None] = lambda left: None) -> None:
        """Run until all is done, passing the remaining seconds to `watch` from time to time. `TrialError` when the
        trial cannot go on; what is done stays done."""
        self._state.forget_lost()
        self._add(Begun(time.time(), os.uname().nodename, os.getpid()))
        with self._changed:
            self._plan()
            whole = [one for one in self._sets.values() if self._is_to_score(one)]
        with ThreadPoolExecutor(self._place.scorers, "logdoctor-score") as self._scorers:
            workers = [
                threading.Thread(target=self._guarded, args=(self._work, number), name=f"logdoctor-worker-{number}")
                for number in range(self._place.workers)
            ]
            try:
                for one in whole:
                    self._begin_scoring(one)
                for thread in workers:
                    thread.start()
                self._wait(watch)
            finally:
                if not self._over():  # Ctrl-C
                    self._fail(TrialError("the trial", "was ended", "Go on with `logdoctor trials resume`."))
                if self._error is not None:
                    self._place.close()
                for thread in workers:
                    if thread.ident:
                        thread.join()
        if self._error is not None:
            raise self._error
        self._add(Ended(time.time()))

    def remaining(self) -> float:
        """Return the expected seconds until all is scored."""
        with self._changed:
            ends = [0.0, *(left + self._times[name].score for name, left in self._running())]
            free = self._free()
            waiting = [retry.shard for retry in self._retries] + self._queue
            placed = schedule(waiting, self._times, len(free), self._load, free)
            ends += [self._times[name].score for name in self._scoring]
            return max(*ends, makespan(placed, self._times))

    def _running(self) -> list[tuple[str, float]]:
        """Return each running shard's set, and the seconds until it is made."""
        now = time.time()
        return [
            (shard.set, max(0.0, self._times[shard.set].inference(shard.samples) - (now - started.at)))
            for shard, started in self._state.progress.running.items()
        ]

    def _free(self) -> list[float]:
        """Return the seconds until each worker takes its next shard."""
        free = [0.0 if self._alive else self._load] * self._place.workers
        for at, (_, left) in enumerate(self._running()):
            free[at % len(free)] += left
        return free

    # ---- shards

    def _work(self, number: int) -> None:
        """Give one worker shards until there are none; a lost worker is replaced."""
        while not self._over():
            worker = None
            try:
                worker = self._worker(number)
                if worker is None:
                    return
                self._join(worker)
                while (shard := self._next(worker.name)) is not None:
                    try:
                        outcome = worker.run(self._infer(shard))
                    except WorkerLost as lost:
                        self._lose(shard, worker.name, str(lost))
                        raise
                    self._take(shard, worker.name, outcome)
                return
            except WorkerLost:
                time.sleep(_PATIENCE)
            finally:
                if worker is not None:
                    self._leave(worker)

    def _worker(self, number: int) -> Worker | None:
        """Return a worker, or None if it cannot start; `TrialError` only when none of them can."""
        try:
            return self._place.worker(number, lambda: self._over() or self._no_more())
        except TrialError:
            with self._changed:
                self._missing += 1
                if self._missing == self._place.workers:
                    raise
            return None

    def _join(self, worker: Worker) -> None:
        loading = worker.loading
        with self._changed:
            known = self._state.progress.digest
            if known and loading.digest and loading.digest != known:
                cause = f"is another one on {loading.node} than what was evaluated so far"
                step = "Do not save over a checkpoint that is evaluated; begin anew in another folder."
                raise TrialError(f"the checkpoint {self._trial.model.path}", cause, step)
            self._alive[worker.name] += 1
            self._load = max(self._load, loading.seconds)
            self._add(Loaded(time.time(), worker.name, *loading))

    def _leave(self, worker: Worker) -> None:
        with self._changed:
            self._alive.pop(worker.name, None)
            self._changed.notify_all()
        worker.close()

    def _next(self, worker: str) -> Shard | None:
        """Return the next shard for a worker, once there is one; None when nothing is left to make."""
        with self._changed:
            while not self._over() and not self._no_more():
                if (shard := self._taken(worker)) is not None:
                    self._add(Started(time.time(), shard, worker))
                    return shard
                self._changed.wait(_PATIENCE)
            return None

    def _taken(self, worker: str) -> Shard | None:
        """Take a shard that failed elsewhere, or the first of the queue. What a worker failed on goes to others while
        there are any."""
        for retry in self._retries:
            if worker not in retry.failed_on or set(self._alive) <= retry.failed_on:
                self._retries.remove(retry)
                return retry.shard
        return self._queue.pop(0) if self._queue else None

    def _infer(self, shard: Shard) -> Task:
        one = self._sets[shard.set]
        template = words(f"set {one.name}: infer", one.infer, INFER) if one.infer else ()
        values = {
            "set": one.name,
            "dataset": one.dataset,
            "start": str(shard.start),
            "end": str(shard.end),
            "samples": str(one.samples),
        }
        return Task(template, values, self._trial.shard_seconds)

    def _take(self, shard: Shard, worker: str, outcome: Outcome) -> None:
        """Store the outcome of a shard."""
        if self._error is not None:
            return
        if outcome.problem or outcome.output is None:
            self._failed(shard, worker, outcome, False)
            return
        with self._changed:
            self._state.finish(shard, outcome.output, worker, outcome.seconds, time.time())
            self._learn(shard, outcome.seconds)
            one = self._sets[shard.set]
            if self._is_to_score(one):
                self._begin_scoring(one)
            self._changed.notify_all()

    def _lose(self, shard: Shard, worker: str, why: str) -> None:
        """Requeue a shard that was lost with its worker."""
        with self._changed:
            self._losses[shard] += 1
            count = self._losses[shard]
            self._add(Failed(time.time(), shard, worker, count, why or "the worker was lost", lost=True))
            if count >= LOSSES:
                self._drop(shard.set, f"{count} workers were lost with the same shard")
            elif not self._state.progress.is_over(shard.set):
                self._retries.append(_Retry(shard, self._failed_on[shard]))
            self._changed.notify_all()

    def _failed(self, shard: Shard, worker: str, outcome: Outcome, scoring: bool) -> bool:
        """Record a failure with its diagnosis; return whether there is another try."""
        with self._changed:
            self._failures[shard, scoring] += 1
            attempt = self._failures[shard, scoring]
        log = self._state.log(shard, attempt, scoring, outcome.log)
        what = "score" if scoring else f"{shard.start}-{shard.end}"
        found = self._diagnose(f"{shard.set}.{what}.{attempt}", outcome.log, outcome.code)
        why = f"{found.reason}; {outcome.problem}" if found is not None else outcome.problem
        with self._changed:
            quote = found.quote if found is not None else ""
            name = str(log.relative_to(self._state.folder))
            self._add(Failed(time.time(), shard, worker, attempt, why, quote, name, scoring))
            if self._state.progress.is_over(shard.set):
                return False
            if attempt >= TRIES:
                self._drop(shard.set, why)
            elif not scoring and self._is_too_long(shard, outcome):
                self._cut(shard, attempt)
            elif not scoring:
                self._failed_on[shard] |= {worker}
                self._retries.append(_Retry(shard, self._failed_on[shard]))
            self._changed.notify_all()
            return attempt < TRIES

    def _is_too_long(self, shard: Shard, outcome: Outcome) -> bool:
        """Return whether a shard was ended for taking too long, and can be cut."""
        ended = outcome.code is None and outcome.seconds >= self._trial.shard_seconds
        return ended and shard.samples > 1 and self._sets[shard.set].splittable

    def _cut(self, shard: Shard, attempt: int) -> None:
        """Cut a shard that took too long, and the queued ones of its set."""
        self._most[shard.set] = min(-(-shard.samples // _CUT), self._most.get(shard.set, shard.samples))
        for part in shard.cut(self._most[shard.set]):
            self._failures[part, False] = attempt  # a shard that hangs is not cut for ever
            self._retries.append(_Retry(part, frozenset()))
        self._queue = self._short(self._queue)

    def _short(self, shards: Sequence[Shard]) -> list[Shard]:
        return [part for one in shards for part in one.cut(self._most.get(one.set, one.samples))]

    def _drop(self, name: str, why: str) -> None:
        """Give up a set."""
        self._queue = [shard for shard in self._queue if shard.set != name]
        self._retries = [retry for retry in self._retries if retry.shard.set != name]
        self._add(Dropped(time.time(), name, why))

    # ---- the plan

    def _plan(self) -> None:
        """Plan the shards that no worker has."""
        progress = self._state.progress
        sets = [one for one in self._sets.values() if not progress.is_over(one.name)]
        taken = [*progress.finished, *progress.running, *(retry.shard for retry in self._retries)]
        planned = plan(sets, self._times, self._place.workers, self._load, taken, self._free()) if sets else []
        self._queue = self._short(planned)

    def _learn(self, shard: Shard, seconds: float) -> None:
        """Correct the times of a set by a measured shard; plan again if they were guesses or far off."""
        thought = self._times[shard.set]
        self._times[shard.set] = corrected(self._prior[shard.set], measured(self._state.progress)[shard.set])
        if self._queue and is_news(thought, shard, seconds):
            self._plan()

    # ---- scoring

    def _is_to_score(self, one: EvalSet) -> bool:
        progress = self._state.progress
        return not progress.is_over(one.name) and one.name not in self._scoring and progress.is_whole(one)

    def _begin_scoring(self, one: EvalSet) -> None:
        self._scoring.add(one.name)
        self._scorers.submit(self._guarded, self._score, one)

    def _score(self, one: EvalSet) -> None:
        whole = Shard(one.name, 0, one.samples)
        outputs = self._state.merge(one.name)
        try:
            while self._error is None:
                try:
                    outcome = self._place.score(self._scoring_task(one, outputs))
                except WorkerLost as lost:
                    outcome = Outcome(None, 0.0, None, b"", str(lost) or "the node was lost")
                if self._error is not None:
                    return
                metrics, problem = _metrics(outcome)
                if metrics is not None:
                    self._scored(one, metrics, outcome.seconds)
                    return
                if not self._failed(whole, "", outcome._replace(problem=problem), True):
                    return
        finally:
            with self._changed:
                self._scoring.discard(one.name)
                self._changed.notify_all()

    def _scoring_task(self, one: EvalSet, outputs: bytes) -> Task:
        values = {"set": one.name, "dataset": one.dataset, "samples": str(one.samples)}
        if one.judge is not None:
            values["judge"] = self._judge_url(one.judge)
        template = words(f"set {one.name}: score", one.score, SCORE)
        sandbox = self._trial.sandbox if one.runs_code else None
        seconds = self._trial.sandbox.seconds if one.runs_code else self._trial.score_seconds
        return Task(template, values, seconds, outputs, sandbox)

    def _scored(self, one: EvalSet, metrics: dict[str, float], seconds: float) -> None:
        with self._changed:
            self._add(Scored(time.time(), one.name, metrics, seconds))
            shards = measured(self._state.progress)[one.name]
        with suppress(TrialError):  # recorded times matter less than the scores
            self._priors.record(one, self._trial.model.billions, shards, seconds)

    # ---- the end

    def _no_more(self) -> bool:
        """Return whether no shard is queued, and none is running that could fail."""
        with self._changed:
            return not self._queue and not self._retries and not self._state.progress.running

    def _over(self) -> bool:
        """Return whether every set is scored or failed, or the trial cannot go on."""
        with self._changed:
            return self._error is not None or all(map(self._state.progress.is_over, self._sets))

    def _wait(self, watch: Callable[[float], None]) -> None:
        noted = 0.0
        with self._changed:
            while not self._over():
                self._changed.wait(_PATIENCE)
                left = self.remaining()
                watch(left)
                if time.monotonic() - noted > _NOTED:
                    noted = time.monotonic()
                    self._state.note_remaining(left)

    def _guarded(self, work: Callable[..., None], *arguments: object) -> None:
        """Run a function in a thread; an error ends the trial."""
        try:
            work(*arguments)
        except BaseException as error:  # noqa: BLE001 - raised in the main thread
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def _add(self, event: Event) -> None:
        with self._changed:
            self._state.add(event)
            self._told(event)


def corrected(prior: Times, shards: Sequence[tuple[int, float]]) -> Times:
    """Return a set's times, scaled to the measured samples and seconds of its shards. The fixed share of a shard's time
    stays as before, and the times are no longer a guess."""
    if not shards:
        return prior
    expected, taken = (sum(prior.inference(samples) for samples, _ in shards), sum(seconds for _, seconds in shards))
    runs = max(prior.runs, 1)
    if not expected:  # nothing was known
        return Times(0.0, taken / sum(samples for samples, _ in shards), prior.score, runs)
    return Times(prior.fixed * taken / expected, prior.sample * taken / expected, prior.score, runs)


def is_news(thought: Times, shard: Shard, seconds: float) -> bool:
    """Return whether a shard's time calls for another plan: the times were a guess, or far off."""
    expected = thought.inference(shard.samples)
    return not thought.runs or not expected / _OFF <= seconds <= expected * _OFF


def _metrics(outcome: Outcome) -> tuple[dict[str, float] | None, str]:
    """Return the metrics that a scoring wrote, or what is wrong."""
    if outcome.problem or outcome.output is None:
        return None, outcome.problem or "wrote no metrics"
    try:
        return msgspec.json.decode(outcome.output, type=dict[str, float]), ""
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return None, f"wrote no JSON object of numbers to {{out}} ({error})"
