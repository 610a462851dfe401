"""Judge one output while it grows, as the service does with what is sent to it."""

import time
from collections.abc import Callable
from typing import NamedTuple

from logdoctor.compress.cut import Cutter
from logdoctor.compress.excerpt import Recorder, excerpt
from logdoctor.compress.filter import compress
from logdoctor.diagnose.decide import diagnose
from logdoctor.diagnose.ending import NOTHING, ReportedEnd
from logdoctor.rules.scanner import Scanner
from logdoctor.service.live.losses import Losses
from logdoctor.service.live.pace import Pace
from logdoctor.service.live.steps import said_since, steps_of_bar
from logdoctor.types import Segment, Verdict

_LOOKS = 4  # checks of a job without steps during the time that makes a hang


class Patience(NamedTuple):
    """Seconds without a step before a job hangs: at least `least` at any pace, `most` until its pace is known. All are
    multiplied by `times`, unless a witness saw a stopped process."""

    least: float
    most: float
    times: float = 1.0


class LiveLog:
    """One output: bytes are pushed as they come; `look` reports what is wrong. `clock` gives seconds."""

    def __init__(
        self, name: str, scanner: Scanner, patience: Patience, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name, self._scanner, self._patience, self._clock = name, scanner, patience, clock
        self._cutter, self._recorder = Cutter(name), Recorder(name, name, scanner)
        self._pace, self._losses = Pace(), Losses()
        self._bar: list[float] = []
        self._stepped_at = clock()
        self._looked_at = 0.0
        self._turned = False
        self._told: tuple[str, str, str] | None = None

    def push(self, data: bytes) -> None:
        """Add the next bytes."""
        for segment in self._cutter.push(data):
            self._add(segment)
        if state := self._cutter.redrawn():
            steps = steps_of_bar(self._name, state, self._scanner)
            if steps and steps != self._bar:
                self._bar = steps
                self._step()

    @property
    def is_suspect(self) -> bool:
        """Whether the job has been without steps for long: ask a witness about a hang."""
        return self._clock() - self._stepped_at > self._waits(witnessed=True)

    def look(self) -> Verdict | None:
        """Return a verdict on the running job if it has changed, else None: the job hangs, its loss went bad, or the
        last verdict no longer holds."""
        now, patience = self._clock(), self._waits()
        idle = now - self._stepped_at if now - self._stepped_at > patience else None
        stuck = idle is not None and now - self._looked_at > patience / _LOOKS
        back = self._told is not None and idle is None and not self._losses.is_bad
        if not (self._turned or stuck or back):
            return None
        self._looked_at, self._turned = now, False
        verdict = diagnose([self._recorder.record()], self._scanner.book, idle, runs=True)
        said = (verdict.outcome, verdict.reason, verdict.fingerprint)
        if said == self._told or (self._told is None and verdict.outcome != "failed"):
            return None
        self._told = said if verdict.outcome == "failed" else None
        return verdict

    def end(self, reported: ReportedEnd = NOTHING) -> Verdict:
        """Return the verdict at the end of the output."""
        for segment in self._cutter.finish():
            self._add(segment)
        return diagnose([self._recorder.record()], self._scanner.book, reported=reported)

    def _waits(self, witnessed: bool = False) -> float:
        """Return the seconds without a step after which the job hangs."""
        least, most, times = self._patience
        seconds = self._pace.patience(min(least, most), most, witnessed)
        return seconds if self._pace.is_stopped else times * seconds

    def _add(self, segment: Segment) -> None:
        part = excerpt(compress(segment, self._scanner), self._scanner)
        self._recorder.add(part, 0)
        self._turned |= self._losses.add(part.meter)
        self._turned |= self._told is not None and any(line.rules for line in part.lines)
        steps, after = said_since(segment, part.meter)
        if steps:
            self._step(steps)
        self._pace.say(after)

    def _step(self, count: int = 1) -> None:
        self._stepped_at = self._clock()
        self._pace.step(self._name, self._stepped_at, count)
