"""Runs a job again and again as long as its verdicts say that this helps: the loop around `deciding.decide`."""

import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import takewhile
from typing import Any, Literal, NamedTuple

from logdoctor.errors import SendError
from logdoctor.job.recovery import contract, done, orphans, running, slurm
from logdoctor.job.recovery.checkpoints import Checkpoints
from logdoctor.job.recovery.death import death_of
from logdoctor.job.recovery.deciding import Attempt, Decision, Limits, NodesSaid, Place, decide
from logdoctor.job.recovery.judging import Judge
from logdoctor.job.recovery.orphans import Process
from logdoctor.job.recovery.record import Record, attempts, facts_of
from logdoctor.job.recovery.running import Ended, Grace, Signals, StopRequest
from logdoctor.job.recovery.skipping import (
    WIDENED,
    batches_seen,
    batches_to_skip,
    read_ranges,
    shown_ranges,
    spikes_before,
)
from logdoctor.job.recovery.witness.taking import empty_folder
from logdoctor.job.send import witnesses
from logdoctor.job.send.copy import remove_copy
from logdoctor.job.send.environment import BatchStep, variable
from logdoctor.job.send.notices import ShippingNotices
from logdoctor.safe.lasting_files import Folder

_ORPHAN_SECONDS = 5.0
_LOOK_SECONDS, _LONGEST_LOOK = 2.0, 60.0
_ID = "id"
_UNWRITTEN = "It is not started again, because its record cannot be written: nobody would count its attempts."
_DONE = "It was done while nobody supervised it. To start it again nevertheless, give the same command once more."
_NONE_FIT = (
    "There are checkpoints, and none of them is fit to be loaded: logdoctor checkpoints list FOLDER says why. "
    "Choose one, or remove those that are not to be loaded."
)
_NONE_TOLD = (
    "Batches are left out after a loss spike, and no checkpoint can be read: the program could load one of after it. "
    "Choose one."
)
_MOST_HANGS = 3
_HANGS_AGAIN = (
    f"It made no step after the same one in {_MOST_HANGS} attempts, each waited for twice as long as the one before. "
    "Look at what it does there. If it evaluates or compiles, let it print so, or raise LOGDOCTOR_HANG_SECONDS."
)
_HANG = "Hang"
_NOT_LOADED = "Model Loading Error"  # the reason of verdicts about checkpoints and models that cannot be loaded
_RECORDER, _RECORDED = "TORCH_FR_BUFFER_SIZE", "2000"  # collectives that each rank records

By = Literal["here", "slurm", "exit-code"]
"""Who restarts the job: this process, Slurm, or whoever reads the exit code."""
RunOnce = Callable[[str, Sequence[str]], int]
"""Runs the command with further arguments as the attempt `key`, in this process; returns its exit code."""
AskNodes = Callable[[str], NodesSaid]
"""Returns what is known about the nodes of an attempt."""


class Options(NamedTuple):
    """How a job is supervised. `resume_words` and `skip_words` are appended to the command, with `{checkpoint}` and
    `{ranges}` filled in; `skip_batches` is how many batches are skipped from the onset of a loss spike. `key_is_whole`:
    the key belongs to this attempt alone, and other senders use it, too. `stacks` are the ways to ask ranks where they
    hang."""

    limits: Limits = Limits()
    by: By = "here"
    dry_run: bool = False
    grace: Grace = Grace(60.0, 35.0)
    nodes_seconds: float = 600.0
    resume_words: tuple[str, ...] = ()
    skip_words: tuple[str, ...] = ()
    skip_batches: int = 200
    key_is_whole: bool = False
    batch: BatchStep | None = None
    stacks: tuple[str, ...] = ()
    master_port: int | None = None


class Start(NamedTuple):
    """How the next attempt begins: the checkpoint to load ("": the program chooses), its step if this rolls back before
    a loss spike, and the batches to skip."""

    resume: str = ""
    back_to: int | None = None
    skip: str = ""


class Parts(NamedTuple):
    """What a supervisor works with. `watch` runs in its own process beside an attempt and may ask for its end; its
    second argument multiplies how long it waits for a hang. `where` returns a sentence saying where the last verdict is
    explained, `last_step` the last step in the last output; it overrides the verdict's if the job `declares` its steps.
    """

    run: RunOnce
    judge: Judge
    ask_nodes: AskNodes
    checkpoints: Checkpoints
    signals: Signals
    notices: ShippingNotices
    watch: Callable[[str, float], int] | None = None
    where: Callable[[], str] = lambda: ""
    last_step: Callable[[], int | None] = lambda: None
    declares: bool = False


class Supervisor:
    """Supervises one job, whose lease the caller holds. The keys of its attempts begin with `key`."""

    def __init__(self, folder: str, job: str, key: str, options: Options, parts: Parts) -> None:
        self._folder, self._key, self._options, self._parts = folder, key, options, parts
        self._record = Record(folder, job)
        self._id = _kept_id(folder)
        self._attempts: list[Attempt] = []
        self._spared: set[Process] = set()
        self._number = 0
        self._is_unwritten = False

    def supervise(self) -> Ended | int:
        """Run the job until a decision ends it; return how its last attempt ended if that is passed on, else the exit
        code of the contract."""
        self._spared = orphans.descendants(os.getpid())
        orphans.adopt_orphans()
        start = self._begin()
        if start is None:
            return contract.DONE
        while True:
            if (held := self._clear_away()) is not None:
                return held
            ended = self._run(start)
            decision, start = self._decided(ended, start)
            if self._options.dry_run or decision.kind != "restart" or self._options.by == "exit-code":
                self._end_rest(ended)
            if ended.is_started and (self._options.dry_run or decision.kind != "restart"):
                self._tell_verdict()
            if self._options.dry_run:
                return ended
            if decision.ended:  # whoever evicts a job wants it to continue elsewhere
                return contract.RESTART if self._options.by == "exit-code" and ended.interrupted else ended
            if decision.kind != "restart" or self._options.by == "exit-code":
                return self._left(decision)
            if self._parts.signals.sleep(decision.delay):
                self._note("left", why="Somebody ended the supervisor.")
                self._end_rest(ended)
                return decision.code

    def _tell_verdict(self) -> None:
        """Report the verdict on the last attempt, if it failed, and where it is explained."""
        last = self._attempts[-1]
        if last.judged is not None or (last.status and not last.interrupted):
            reason = last.judged.title if last.judged else "not known"
            self._parts.notices.say(f"the verdict on attempt {last.number} is {reason}. {self._parts.where()}".strip())

    def _begin(self) -> Start | None:
        """Continue from the record, or begin afresh when a person starts a finished job again. Return None for a job
        that was completed without a supervisor."""
        events = self._record.events()
        self._number = max((_number(event) for event in events), default=0)
        last = _last(events, "started", "decided", "left")
        goes_on = last is not None and _goes_on(last)
        self._record.add("begun", anew=not goes_on, by=self._options.by, dry_run=self._options.dry_run)
        self._attempts = attempts(events) if goes_on else []
        if last is not None and last["event"] == "started" and done.is_marked(self._folder):
            self._note("decided", number=self._number, kind="stop", code=contract.DONE, why=_DONE)
            self._parts.notices.say(f"attempt {self._number}: {_DONE}")
            return None
        if goes_on and last is not None and last["event"] == "decided":
            return _start_of(last)
        return self._fresh_start(_start_of(_last(events, "started", "decided")), is_done=_is_done(events))

    def _fresh_start(self, before: Start, is_done: bool) -> Start:
        """Return how to begin without a decision: from the best checkpoint, still skipping batches unless the job was
        done."""
        best = self._parts.checkpoints.best()
        if best is None:
            kept = Start() if is_done else _kept(before)
            self._say_kept(kept)
            return kept
        back_to = before.back_to if best.path == before.resume else None
        return Start(best.path, back_to, "" if is_done else before.skip)

    def _say_kept(self, kept: Start) -> None:
        """Report that the former checkpoint is used again because none can be chosen."""
        if kept.resume:
            known = f"No checkpoint that is fit to be loaded can be read, and batches {kept.skip} are left out"
            self._say("kept", f"{known}: {kept.resume} is to be loaded, as before. Without both: remove {self._folder}")

    def _clear_away(self) -> int | None:
        """End what earlier attempts left behind; return an exit code when that is impossible."""
        if not self._is_cleared():
            return contract.ASK
        if self._options.master_port and (held := orphans.listeners(self._options.master_port)):
            names = ", ".join(map(orphans.described, sorted(held)))
            self._say("port", f"Port {self._options.master_port} is held by {names}, which this job did not start.")
        return None

    def _is_cleared(self) -> bool:
        """End what earlier attempts left behind; return whether that succeeded, and report what survives."""
        left = running.clear_away(f"{self._id}/", _ORPHAN_SECONDS, self._spared)
        if left:
            names = ", ".join(map(orphans.described, sorted(left)))
            self._say("left", f"Processes of the last attempt cannot be ended: {names}. Restart the node.")
        return not left

    def _end_rest(self, ended: Ended) -> None:
        """End what the last attempt left behind, which may hold GPUs; after a success it may still have work to
        finish."""
        if not self._options.dry_run and not _is_well(ended):
            self._is_cleared()

    def _run(self, start: Start) -> Ended:
        """Run one attempt; its end is on record when this returns."""
        done.unmark(self._folder)
        self._number += 1
        key = self._key_of_attempt()
        before = dict(self._parts.checkpoints.complete())
        self._record.add("started", number=self._number, key=key, start=start._asdict())
        stop = StopRequest(self._folder, key)
        began = time.monotonic()
        variables, words = self._told(start, key), self._words(start)
        with self._watched(key) as spared:
            pid = running.fork(lambda: self._parts.run(key, words), variables, self._parts.signals.mask)
            ended = running.attend(pid, self._parts.signals, self._options.grace, stop.verdict, began, spared)
        ended = ended.after(death_of(self._folder, key), began)
        stop.clear()
        self._enter(ended, start, key, before)
        return ended

    @contextmanager
    def _watched(self, key: str) -> Iterator[Collection[Process]]:
        """Watch the attempt within the block; yield the processes that are not the attempt's own."""
        remove_copy(self._folder)  # of the attempt before
        if self._parts.watch is None:
            yield self._spared
            return
        watch, times = self._parts.watch, 2.0 ** hangs_in_a_row(self._attempts)
        pid = running.fork(lambda: watch(key, times), {}, self._parts.signals.mask)
        watchers = {one for one in orphans.descendants(os.getpid()) if one.pid == pid}
        try:
            yield self._spared | watchers
        finally:
            orphans.send(watchers, signal.SIGKILL)
            with suppress(ChildProcessError):  # it had already ended
                os.waitpid(pid, 0)

    def _enter(self, ended: Ended, start: Start, key: str, before: Mapping[str, int]) -> None:
        """Record an ended attempt with its verdict; `before` are the checkpoints that it found."""
        judged, asked = ended.stopped_for, time.monotonic()
        if judged is not None and judged.reason == _HANG and len(witnesses.kept(self._folder)) > 1:
            better = self._parts.judge(key, ended.code)  # a source besides the log may say why
            judged = better if better and better.outcome == "failed" and better.nodes else judged
        if judged is None and ended.code != 0 and ended.is_started and not ended.interrupted:
            judged = self._parts.judge(key, ended.code)
        if judged is not None and (judged.step is None or self._parts.declares):
            step = self._parts.last_step()
            judged = judged._replace(step=judged.step if step is None else step)
        complete = self._parts.checkpoints.complete()
        saved = max((step for path, step in complete.items() if before.get(path) != step), default=None)
        attempt = Attempt(
            self._number,
            ended.code,
            round(ended.seconds, 3),
            judged,
            ended.interrupted,
            saved,
            start.resume,
            start.back_to,
            start.skip,
            ended.launcher_gone,
            round(ended.sending, 3),
            round(time.monotonic() - asked, 3),
        )
        self._attempts.append(attempt)
        self._note("ended", **facts_of(attempt), key=key, cut_short=ended.cut_short)
        if ended.cut_short:
            self._say("grace", f"It was killed {self._options.grace.save:g} s after it was asked to end (--grace).")
        self._note_load(attempt)

    def _note_load(self, attempt: Attempt) -> None:
        """Record whether the checkpoint that an attempt was told to load worked.

        Only now is that known: when the supervisor or its node dies earlier, nothing is held against the checkpoint.
        """
        gone_on = attempt.saved is not None or (attempt.judged is not None and attempt.judged.step is not None)
        if not attempt.resumed:
            return
        if gone_on or attempt.interrupted or attempt.status == 0:  # one that was ended did not fail to load
            self._parts.checkpoints.loaded(attempt.resumed)
        else:
            self._parts.checkpoints.not_loaded(attempt.resumed)

    def _decided(self, ended: Ended, start: Start) -> tuple[Decision, Start]:
        """Return the decision after the last attempt, and how the next one begins; both are recorded."""
        place, damaged = self._place(), self._damaged()
        best = None if _is_well(ended) else self._parts.checkpoints.best()
        other = best is not None and bool(start.resume) and best.path != start.resume
        decision = decide(self._attempts, self._options.limits, None, place, other, damaged)
        if not ended.is_started:
            decision = Decision("stop", "The command cannot be started.", ended.code, ended=True)
        if decision.kind == "wait" and not self._options.dry_run and self._options.by != "slurm":
            self._end_rest(ended)  # tests need the GPUs
            decision = self._after_node_tests(decision, place, other)
        following = Start(best.path, None, start.skip) if best else _kept(start)._replace(back_to=None)
        if decision.back:
            decision, following = self._before_spike(decision, start)
        elif decision.kind in ("restart", "move") and best is None:
            decision = self._without_choice(decision, following)
        if decision.kind in ("restart", "move") and hangs_in_a_row(self._attempts) >= _MOST_HANGS:
            decision = decision._replace(kind="ask", why=_HANGS_AGAIN, code=contract.ASK)
        facts = {**decision._asdict(), "start": following._asdict(), "dry_run": self._options.dry_run}
        self._note("decided", number=self._number, **facts)
        if self._is_unwritten and decision.kind in ("restart", "move", "wait"):
            decision = decision._replace(kind="ask", why=_UNWRITTEN, code=contract.ASK)
        self._parts.notices.say(_sentence(decision, self._number, self._options.dry_run))
        return decision, following

    def _damaged(self) -> str:
        """Return which checkpoint the last attempt could not load and why; "" if none. It is asked when the verdict
        says so, and before giving up a job that made no progress."""
        last, verdict = self._attempts[-1], self._attempts[-1].judged
        if verdict is None or last.interrupted or verdict.outcome != "failed":
            return ""
        got_nowhere = last.saved is None and verdict.step is None and verdict.recovery in ("fix_first", "ask_human")
        if verdict.reason != _NOT_LOADED and not got_nowhere:
            return ""
        aside = partial(running.aside, signals=self._parts.signals)
        return self._parts.checkpoints.unreadable(last.resumed, not self._options.dry_run, aside)

    def _place(self) -> Place:
        if self._options.by != "slurm" or self._options.batch is None:
            return Place()
        return Place(True, slurm.job_nodes(self._options.batch))

    def _after_node_tests(self, decision: Decision, place: Place, other: bool) -> Decision:
        """Wait until the nodes are known, at most `nodes_seconds`; return the decision then."""
        until = time.monotonic() + self._options.nodes_seconds
        pause = _LOOK_SECONDS
        self._say("nodes", decision.why)
        while True:
            said = self._parts.ask_nodes(self._key_of_attempt())
            found = decide(self._attempts, self._options.limits, said, place, other)
            left = until - time.monotonic()
            if found.kind != "wait" or left <= 0:
                return found._replace(kind="ask", code=contract.ASK) if found.kind == "wait" else found
            if found.why != decision.why:
                decision = found
                self._say("nodes", found.why)
            if self._parts.signals.sleep(min(pause, left)):
                return found._replace(kind="ask", code=contract.ASK, why="Somebody ended the supervisor.")
            pause = min(2 * pause, _LONGEST_LOOK)

    def _before_spike(self, decision: Decision, start: Start) -> tuple[Decision, Start]:
        """Return the decision after a loss spike and a start before it; ask a person when no such start is known."""
        onset = self._attempts[-1].judged.onset if self._attempts[-1].judged else None
        earlier = [one.judged.onset for one in self._attempts[:-1] if one.judged and one.judged.onset is not None]
        spikes = 0 if onset is None else spikes_before(onset, earlier, self._options.skip_batches)
        if onset is not None and not self._options.dry_run:
            self._parts.checkpoints.suspect(onset)
        chosen = None if onset is None else self._parts.checkpoints.best(onset)
        if spikes > WIDENED:
            why = f"The loss spiked again after the skip was widened {WIDENED} times. A person has to look at the data."
        elif onset is None or chosen is None:
            why = "It has to go back before a loss spike, and no checkpoint is known to be older than that. Choose one."
        else:
            before = read_ranges(start.skip)
            position = batches_seen(chosen.step, before) if chosen.position is None else chosen.position
            skip = batches_to_skip(position, chosen.step, onset, self._options.skip_batches, spikes, before)
            return decision, Start(chosen.path, chosen.step, shown_ranges(skip))
        return decision._replace(kind="ask", why=why, code=contract.ASK), start

    def _without_choice(self, decision: Decision, following: Start) -> Decision:
        """Restart without a chosen checkpoint; ask a person where the program might load a bad one."""
        if self._parts.checkpoints.complete():
            return decision._replace(kind="ask", why=_NONE_FIT, code=contract.ASK)
        if following.skip and not following.resume:
            return decision._replace(kind="ask", why=_NONE_TOLD, code=contract.ASK)
        if not self._options.dry_run:
            self._say_kept(following)
        return decision

    def _left(self, decision: Decision) -> int:
        """Do what remains before this process ends; return its exit code."""
        batch = self._options.batch
        if self._options.by == "slurm" and batch is not None and decision.kind in ("move", "wait"):
            try:
                if decision.kind == "move":
                    slurm.requeue(batch, decision.nodes)
                    self._say("requeued", f"Slurm starts job {batch.job} again without {', '.join(decision.nodes)}.")
                else:
                    slurm.hold(batch)
                    release = f"Test its nodes, then: scontrol release {batch.job}"
                    self._say("requeued", f"Job {batch.job} is held, so that its nodes are free. {release}")
            except SendError as error:
                self._say("requeued", str(error))
        if decision.kind == "restart" and decision.delay:
            self._parts.signals.sleep(decision.delay)
        return decision.code

    def _key_of_attempt(self) -> str:
        """Return the attempt's key; where others start attempts, each has its own already."""
        return self._key if self._options.key_is_whole else f"{self._key}.{self._number}"

    def _told(self, start: Start, key: str) -> dict[str, str]:
        """Return the variables set for the command."""
        told = {contract.ATTEMPT_KEY: key, orphans.MARK: f"{self._id}/{self._number}"}
        given = {contract.RESUME: start.resume, contract.SKIP: start.skip, contract.STACKS_DIR: ""}
        given[contract.DONE_FILE] = os.path.join(self._folder, done.MARK)
        if self._options.stacks:
            given[contract.STACKS_DIR] = empty_folder(self._folder)
        if "flight-recorder" in self._options.stacks and not variable(_RECORDER):
            told[_RECORDER] = _RECORDED
        return told | given  # an empty value unsets: a job started by another job inherits that one's

    def _words(self, start: Start) -> list[str]:
        """Return the arguments appended to the command."""
        resume = [word.replace("{checkpoint}", start.resume) for word in self._options.resume_words if start.resume]
        return resume + [word.replace("{ranges}", start.skip) for word in self._options.skip_words if start.skip]

    def _note(self, event: str, **facts: Any) -> None:
        """Record an event after the start of an attempt; a failure is reported once and changes no decision."""
        try:
            self._record.add(event, **facts)
        except SendError as error:
            if not self._is_unwritten:
                self._parts.notices.say(str(error))
            self._is_unwritten = True

    def _say(self, event: str, why: str) -> None:
        self._note(event, why=why, number=self._number)
        self._parts.notices.say(why)


def hangs_in_a_row(attempts: Sequence[Attempt]) -> int:
    """Count the latest attempts that hung after the same step: what takes long there takes long again."""
    steps = [one.judged.step if one.judged and one.judged.reason == "Hang" else None for one in reversed(attempts)]
    return 0 if not steps or steps[0] is None else len(list(takewhile(lambda step: step == steps[0], steps)))


def job_folder(states: str, job: str) -> str:
    """Create a job's private state folder and return its path; `SendError` when that fails."""
    folder = os.path.join(states, job)
    try:
        Folder(folder, private=True).make(mode=0o700)
    except OSError as error:
        raise SendError(folder, f"cannot be used ({error.strerror})", "Give --state a folder of yours.") from error
    return folder


def _kept_id(folder: str) -> str:
    """Return the id of a job's state folder, random at first; `SendError` when it cannot be stored."""
    state, path = Folder(folder, private=True), os.path.join(folder, _ID)
    try:
        if (kept := state.read(_ID, 64).strip()).isalnum():
            return kept.decode("ascii")
    except FileNotFoundError:
        pass
    except OSError as error:
        raise SendError(path, f"cannot be read ({error.strerror})", "Check its permissions.") from error
    made = os.urandom(12).hex()
    try:
        state.write(_ID, made.encode())
    except OSError as error:
        raise SendError(path, f"cannot be written ({error.strerror})", "Check its disk, or give --state.") from error
    return made


def _goes_on(last: Mapping[str, Any]) -> bool:
    """Return whether the last event demands a restart, or shows that the supervisor died."""
    decided = last["event"] == "decided" and not last.get("dry_run")
    return last["event"] == "started" or (decided and last.get("kind") in ("restart", "move", "wait"))


def _last(events: Sequence[Mapping[str, Any]], *names: str) -> Mapping[str, Any] | None:
    return next((one for one in reversed(events) if one["event"] in names), None)


def _is_done(events: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the last decision completed the job; an interrupted attempt does not count, whatever its exit
    code."""
    decided, ended = _last(events, "decided"), _last(events, "ended")
    interrupted = ended is not None and bool(ended.get("interrupted"))
    return decided is not None and decided.get("code") == contract.DONE and not interrupted


def _start_of(event: Mapping[str, Any] | None) -> Start:
    """Return how the next attempt was to begin, by an event on record."""
    known = event.get("start") if event else None
    try:
        start = Start(**known) if known else Start()
        read_ranges(start.skip)
        return start
    except (TypeError, ValueError, AttributeError):
        return Start()


def _is_well(ended: Ended) -> bool:
    """Return whether an attempt ended by itself with exit code 0."""
    return ended.code == 0 and ended.stopped_for is None


def _kept(before: Start) -> Start:
    """Return how to begin when no checkpoint can be chosen. While batches are skipped, as before: the program might
    choose one saved after the loss spike. Else the program chooses."""
    return before if before.skip else Start()


def _number(event: Mapping[str, Any]) -> int:
    number = event.get("number")
    return number if isinstance(number, int) else 0


def _sentence(decision: Decision, number: int, dry_run: bool) -> str:
    after = f" in {decision.delay:g} s" if decision.kind == "restart" and decision.delay else ""
    done = {
        "restart": f"start it again{after}",
        "move": "start it again elsewhere",
        "wait": "hold it until its nodes are tested",
        "stop": "end",
        "ask": "ask a person",
    }
    told = "it would be decided to " if dry_run else ""
    return f"after attempt {number}: {told}{done[decision.kind]}. {decision.why}"
