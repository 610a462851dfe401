"""Progress of a job from its metric lines: steps, stalls and loss spikes."""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import regex

from logdoctor.diagnose.aftermath import Aftermath
from logdoctor.diagnose.findings import StreamReading
from logdoctor.diagnose.stamps import dated
from logdoctor.text import seconds_of
from logdoctor.types import Point, Progress, Readings

Floats = npt.NDArray[np.float64]

_RENEWED = 3
"""Steps that must follow a fault before it counts as survived; more where there is only a bare progress bar."""
_RENEWED_BARE = 10
_SHARED = 0.25  # share of lines without a further step, from which on several ranks write each step
_MOST = 0.9
_FLAT = 0.1  # twice the lowest base line of a loss that can spike: rewards and policy losses start near 0
_BASE = 40  # losses that make up the base line of a spike
LASTING = 10  # high losses after which a running job is not expected to recover
_EASED = 0.2  # share of the height of a rise; a loss that has fallen by more is recovering
_STALL_SECONDS = 300.0
_STALL_MOST = 180 * 86_400.0  # longest stall: beyond it, the year changed between stamps without one
_STALL_STEPS = 20.0  # fewest usual steps that a stall lasts
_PARTS = 46  # parts of a curve; two points each, both ends and the first bad loss: at most 95


class Spike(NamedTuple):
    """A loss that left its base line for good. `jump`, `steepest` and `worst` are the lines of the first high value,
    the steepest rise and the highest value; `losses` counts values from `jump` on, which fall again if `is_easing`.
    `step` is the first that may be bad, None if no steps are told; `is_new_count` when the step count had just
    restarted."""

    stream: int
    jump: int
    steepest: int
    worst: int
    base: float
    peak: float
    losses: int
    is_easing: bool
    step: int | None = None
    is_new_count: bool = False

    @property
    def is_pronounced(self) -> bool:
        """Whether the loss doubled or is not finite; a guard that stops earlier reports so itself."""
        return self.peak == np.inf or self.peak > 2 * self.base > _FLAT

    @property
    def is_lasting(self) -> bool:
        """Whether a running job's loss stays far too high, with nothing planned to explain it. After a change of the
        data or of the learning rate, a loss falls again."""
        return self.is_pronounced and self.losses >= LASTING and not self.is_easing and not self.is_new_count


class Stall(NamedTuple):
    """A stop of progress while the log went on: stream, last metric line, seconds without a step."""

    stream: int
    line: int
    seconds: float


class StreamCourse:
    """The progress of one stream: lines and steps in order, and the losses that come with them.

    `bad` are readings of lines with a loss that is not finite, which the record lacks.
    """

    def __init__(self, aftermath: Aftermath, bad: Mapping[str, Readings]) -> None:
        reading = aftermath.reading
        self.reading, self.aftermath = reading, aftermath
        series = reading.record.progress
        with_loss = {rule: r for rule, r in series.items() if np.isfinite(r.losses).any() or np.isinf(r.losses).any()}
        stepping = {rule: r for rule, r in with_loss.items() if np.isfinite(r.steps).any()}
        self.bare = not stepping
        chosen = stepping or {rule: r for rule, r in series.items() if np.isfinite(r.steps).any()}
        self.rules = list(chosen)
        self.lines, self.steps = _steps(list(chosen.values()))
        self._renewal = _renewal(self.lines, self.steps, _RENEWED_BARE if self.bare else _RENEWED)
        self._told = _steps([*chosen.values(), *(bad[rule] for rule in chosen if rule in bad)])
        self.losses = {rule: _filled(_with(r, bad.get(rule))) for rule, r in with_loss.items()}
        self._curve_source = max((stepping or with_loss or chosen).values(), key=_coverage, default=None)

    def renewed_after(self, line: int) -> bool:
        """Return whether steps after a line show that the job survived what it reports."""
        return line < self._renewal

    @property
    def last_line(self) -> int | None:
        """The line of the last step."""
        return int(self.lines[-1]) if len(self.lines) else None

    def steps_before(self, line: int) -> bool:
        """Return whether steps were made before a line."""
        return bool(len(self.lines)) and int(self.lines[0]) < line

    def step_at(self, line: int) -> int | None:
        """Return the last step up to a line; None without one."""
        lines, steps = self._told
        place = int(np.searchsorted(lines, line, "right")) - 1
        return int(min(float(steps[place]), 1e18)) if place >= 0 else None

    def counts_anew_before(self, line: int) -> bool:
        """Return whether the step count went back in the 40 metric lines up to a line."""
        place = int(np.searchsorted(self.lines, line, "right"))
        return bool((np.diff(self.steps[max(place - _BASE, 0) : place]) < 0).any())

    def progress(self) -> Progress:
        """Return the last step, the total, and the last finite loss and rate."""
        if not len(self.lines):
            return Progress()
        record = self.reading.record
        step = float(self.steps[-1])
        series = record.progress.values()
        loss = _latest([(readings.lines, readings.losses) for readings in series])
        rate = _latest([(readings.lines, readings.rates) for readings in series])
        return Progress(int(min(step, 1e18)), record.total, loss, rate, int(self.lines[-1]), record.stream)

    def curve(self) -> tuple[Point, ...]:
        """Return at most 95 points of the rule that reads most losses, in order: the loss curve."""
        return () if self._curve_source is None else tuple(_points(self._curve_source))

    @property
    def has_curve(self) -> bool:
        """Whether any line gives a step or a loss."""
        return self._curve_source is not None


def furthest(courses: list[StreamCourse]) -> Progress:
    """Return the progress of the stream that came furthest, with its curve.

    Streams with a loss come first. Without steps and losses, it is what learned rules read.
    """
    seen = [(course.progress(), course) for course in courses]
    if not seen:
        return Progress()
    progress, course = max(seen, key=lambda one: (one[0].loss is not None, one[0].step or -1, one[1].has_curve))
    if progress.step is None and not course.has_curve:  # no shipped rule reads its metric lines
        displayed = [one.reading.record for one in courses if one.reading.record.shown.line]
        record = max(displayed, key=lambda one: -1 if one.shown.step is None else one.shown.step, default=None)
        return msgspec.structs.replace(record.shown, stream=record.stream, learned=True) if record else progress
    progress = msgspec.structs.replace(progress, accuracy=course.reading.record.shown.accuracy)
    curve = course.curve()
    stream = course.reading.record.stream if curve else progress.stream
    return msgspec.structs.replace(progress, stream=stream, curve=curve)


def _coverage(readings: Readings) -> tuple[int, int]:
    """Return how many lines with a loss, and how many in all, a rule reads."""
    return int(np.count_nonzero(~np.isnan(readings.losses))), len(readings.lines)


def _points(readings: Readings) -> list[Point]:
    """Return the points of a curve that show every jump, however long the run. They are both ends, the lowest and
    highest loss of each part (its first line when it has none), and the first bad loss."""
    if (given := ~np.isnan(readings.losses)).any():  # lines without a loss are no gap
        lines, steps, losses, rates = readings
        readings = Readings(lines[given], steps[given], losses[given], rates[given])
    losses, count = readings.losses, len(readings.lines)
    chosen = {0, count - 1}
    bad = np.flatnonzero(np.isinf(losses))
    chosen |= {int(bad[0])} if len(bad) else set()
    lowest, highest = (np.where(np.isfinite(losses), losses, end) for end in (np.inf, -np.inf))
    for begin, end in pairwise(np.linspace(0, count, min(_PARTS, count) + 1).astype(int).tolist()):
        chosen |= {begin + int(lowest[begin:end].argmin()), begin + int(highest[begin:end].argmax())}
    rows = zip(*(column.tolist() for column in readings.at(np.array(sorted(chosen)))), strict=True)
    return [_point(*row) for row in rows]


def _point(line: int, step: float, loss: float, rate: float) -> Point:
    return Point(
        line,
        int(min(step, 1e18)) if math.isfinite(step) else None,
        float(f"{loss:.6g}") if math.isfinite(loss) else None,
        float(f"{rate:.6g}") if math.isfinite(rate) else None,
    )


def _renewal(lines: npt.NDArray[np.int64], steps: Floats, wanted: int) -> int:
    """Return the line from which on `wanted` different steps were made; 0 if there were fewer.

    Several ranks may write each step: the first makes it, and the others only follow, perhaps after an error.
    """
    made = _made(steps)
    lines, steps = lines[made], steps[made]
    _, places = np.unique(steps[::-1], return_index=True)  # the last line of each step, counted from the end
    if len(places) < wanted:
        return 0
    return int(lines[::-1][np.sort(places)[wanted - 1]])


def _made(steps: Floats) -> npt.NDArray[np.bool_]:
    """Return for each line with a step whether it goes further than all before it. A count that goes back starts again;
    where several ranks write each step, it goes back by a little all the time."""
    changes = np.diff(steps)
    back = -changes[changes <= 0]
    is_shared = len(changes) > 0 and np.count_nonzero(changes <= 0) >= _SHARED * len(changes)
    skew = max(float(np.quantile(back, _MOST)) if len(back) else 0.0, _RENEWED) if is_shared else 0.0
    made = np.zeros(len(steps), np.bool_)
    anew = np.flatnonzero(changes < -skew) + 1
    for begin, end in pairwise((0, *anew.tolist(), len(steps))):
        furthest = np.maximum.accumulate(steps[begin:end])
        made[begin:end] = np.concatenate(([True], furthest[1:] > furthest[:-1]))[: end - begin]
    return made


def _latest(columns: list[tuple[npt.NDArray[np.int64], Floats]]) -> float | None:
    """Return the finite value with the highest line number; None without any."""
    last: tuple[int, float | None] = (-1, None)
    for lines, values in columns:
        finite = np.flatnonzero(np.isfinite(values))
        if len(finite):
            last = max(last, (int(lines[finite[-1]]), float(values[finite[-1]])))
    return last[1]


def _steps(series: list[Readings]) -> tuple[npt.NDArray[np.int64], Floats]:
    if not series:
        return np.empty(0, np.int64), np.empty(0)
    lines = np.concatenate([r.lines for r in series])
    steps = np.concatenate([r.steps for r in series])
    known = np.isfinite(steps)
    lines, steps = lines[known], steps[known]
    order = np.argsort(lines, kind="stable")
    return lines[order], steps[order]


def _with(readings: Readings, more: Readings | None) -> Readings:
    """Return both readings merged in the order of lines."""
    if more is None:
        return readings
    both = Readings(*(np.concatenate(columns) for columns in zip(readings, more, strict=True)))
    return both.at(np.argsort(both.lines, kind="stable"))


def _filled(readings: Readings) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return (lines, losses) of the lines that give a loss."""
    given = ~np.isnan(readings.losses)
    return readings.lines[given], readings.losses[given]


def spike(courses: list[StreamCourse]) -> Spike | None:
    """Return the first loss that jumped or turned into NaN and did not recover."""
    for stream, course in enumerate(courses):
        for lines, losses in sorted(course.losses.values(), key=lambda pair: -len(pair[0])):
            if found := departure(stream, lines, losses):
                is_new = course.counts_anew_before(found.jump)
                return found._replace(step=_onset(course, lines, found.jump), is_new_count=is_new)
    return None


def _onset(course: StreamCourse, lines: npt.NDArray[np.int64], jump: int) -> int | None:
    """Return the step after the last one with a good loss. Losses in between were not logged, so any of these steps may
    be the first bad one. Where steps restart, return that of the first bad loss."""
    place = int(np.searchsorted(lines, jump))
    good, bad = course.step_at(int(lines[place - 1])) if place else None, course.step_at(jump)
    return good + 1 if good is not None and bad is not None and good < bad else bad


def departure(stream: int, lines: npt.NDArray[np.int64], losses: Floats) -> Spike | None:
    """Return where losses, NaN or inf if bad, left their base line for good."""
    if len(losses) < 6:
        return None
    bad = ~np.isfinite(losses) | ((losses == 0) & (np.median(losses[: len(losses) // 2]) > 0.1))
    finite = np.where(bad, np.inf, losses)
    smooth = _median_of_3(finite)
    floor = np.minimum.accumulate(smooth[::-1])[::-1]  # the lowest loss from here to the end
    for at in _candidates(smooth):
        base_window = losses[max(0, at - _BASE) : at]
        base_window = base_window[np.isfinite(base_window)]
        if len(base_window) < 4:
            continue
        base = float(np.median(base_window))
        noise = float(np.median(np.abs(base_window - base))) * 1.5
        least = base + max(0.25 * abs(base), 8 * noise)
        if floor[at] > least and len(losses) - at >= 2:
            tail = finite[at:]
            high = np.flatnonzero(tail > least)
            worst = int(np.argmax(tail))
            with np.errstate(invalid="ignore"):
                rises = np.diff(tail[: worst + 1], prepend=base)
            jump, steepest, top = (int(lines[at + place]) for place in (high[0], int(np.argmax(rises)), worst))
            since = tail[int(high[0]) :]
            return Spike(stream, jump, steepest, top, base, float(tail[worst]), len(since), _is_easing(since, base))
    return None


def _is_easing(high: Floats, base: float) -> bool:
    """Return whether high losses are on the way back to their base line."""
    part = max(len(high) // 3, 1)
    first, last = float(np.median(high[:part])), float(np.median(high[-part:]))
    return np.isfinite(last) and last < first - _EASED * (first - base)


def _median_of_3(values: Floats) -> Floats:
    """Return medians of 3 neighbours, so that a single outlier is not a spike. The first value is kept; the last is at
    most the one before it, unless it is infinite."""
    if len(values) < 3:
        return values
    inner = np.sort(np.stack((values[:-2], values[1:-1], values[2:])), axis=0)[1]
    last = values[-1:] if np.isinf(values[-1]) else np.minimum(values[-1:], values[-2:-1])
    return np.concatenate((values[:1], inner, last))


def _candidates(smooth: Floats) -> list[int]:
    """Return the places before a rise by 15 % over two values, the last 200 at most."""
    before = np.concatenate((np.full(2, np.inf), smooth[:-2]))
    with np.errstate(invalid="ignore"):
        rises = np.flatnonzero(smooth > before + 0.15 * np.abs(before))
    return [max(int(at) - 1, 0) for at in rises[-200:]]


def stall(courses: list[StreamCourse], ended: float | None) -> Stall | None:
    """Return where the log went on far longer than usual after the last step.

    Lines after `ended`, the time at which the job is known to have been stopped, do not count. The stream with the
    latest step decides: while one stream moves, the job does. A complete bar stalls nothing: what comes next need not
    count.
    """
    ends = [end for course in courses if (end := _end_of_log(course.reading)) is not None]
    moving = [(stream, course) for stream, course in enumerate(courses) if len(course.lines) and not _is_full(course)]
    spans = [(stream, course, *_span(course)) for stream, course in moving]
    timed = [(last, first, stream, course) for stream, course, first, last in spans if last is not None]
    if not ends or not timed:
        return None
    latest = max((*ends, *(span[0] for span in timed)))
    last, first, stream, course = max(timed, key=lambda span: dated(span[0], latest))
    last, first = dated(last, latest), first if first is None else dated(first, latest)
    end = max(dated(end, latest) for end in ends)
    waited = (end if ended is None else min(dated(ended, latest), end)) - last
    distinct = len(np.unique(course.steps)) - 1
    usual = (last - first) / distinct if first is not None and distinct > 0 else 0.0
    if not max(_STALL_SECONDS, _STALL_STEPS * usual) < waited < _STALL_MOST:
        return None
    return Stall(stream, int(course.lines[-1]), waited)


def _is_full(course: StreamCourse) -> bool:
    """Return whether only bars show progress, the last is complete, and nothing waits after it."""
    total = course.reading.record.total
    is_at_end = course.bare and total is not None and bool(course.steps[-1] >= total)
    return is_at_end and not course.aftermath.waits(int(course.lines[-1]))


def stopped(courses: list[StreamCourse], seconds: float) -> Stall:
    """Return a stall at the last step of a job; without steps, at its last line."""
    stepped = [(int(course.lines[-1]), stream) for stream, course in enumerate(courses) if len(course.lines)]
    written = [(c.reading.record.last[-1].number, n) for n, c in enumerate(courses) if c.reading.record.last]
    line, stream = max(stepped or written)
    return Stall(stream, line, seconds)


_ELAPSED = regex.compile(r"\[(?:(?P<hours>\d{1,5}):)?(?P<minutes>\d{1,5}):(?P<seconds>\d\d)<")


def _span(course: StreamCourse) -> tuple[float | None, float | None]:
    """Return the times of the first and last step, by stamps near them or a bar's clock."""
    every = course.reading.record.spans
    first, last = min(every[rule][0] for rule in course.rules), max(span[1] for span in every.values())
    begin, end = _elapsed(first.text), _elapsed(last.text)
    if begin is not None and end is not None and end >= begin and first.time is not None:
        return first.time, first.time + end - begin
    if last.time is None:  # the next stamp is later than the step, so the job waited at least this long
        after = (seconds_of(line.text) for line in course.reading.record.last if line.number > last.line)
        return first.time, next((time for time in after if time is not None), None)
    return first.time, last.time


def _elapsed(text: str) -> float | None:
    """Return the seconds that a tqdm bar shows as elapsed, else None."""
    found = _ELAPSED.search(text)
    if found is None:
        return None
    return 3600.0 * int(found["hours"] or 0) + 60.0 * int(found["minutes"]) + int(found["seconds"])


def _end_of_log(reading: StreamReading) -> float | None:
    times = [time for line in reading.record.last if (time := seconds_of(line.text)) is not None]
    return max(times) if times else None
