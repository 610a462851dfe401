"""Steps, losses and placements read from metric lines on the way, because hangs and spikes need them."""

import math
import re
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import zstandard

from logdoctor.compress.filter import Residual
from logdoctor.rules.load import RuleBook
from logdoctor.text import decode, last_state, seconds_of
from logdoctor.types import MetricTexts, Milestone, Readings

_DENSE_BYTES = 4 << 20
"""Up to this place in a stream every metric line is read; behind it those that cross a boundary of a grid
that starts with 512 bytes and doubles whenever the stream has doubled. The choice depends on nothing but
the bytes, so any chunking reads the same lines, and memory grows with the logarithm of the stream."""
_GRID = 512
_MISSING = math.nan
_TEXT = 1024  # bytes of a metric line that are kept
LOOK_BACK = 40
"""How many lines before a metric line are searched for a time stamp."""


class Meter(NamedTuple):
    """What one segment tells about progress, line numbers counted as in the segment."""

    readings: dict[int, Readings]
    texts: MetricTexts | None
    spans: dict[int, tuple[Milestone, Milestone]]
    placements: dict[int, str]
    aliases: dict[str, str]
    total: int | None


class Gauges:
    """The metric expressions of a rule book, ready to be searched in bytes."""

    def __init__(self, book: RuleBook) -> None:
        self.expressions = {
            number: tuple(re.compile(metric.encode()) for metric in rule.metrics)
            for number, rule in enumerate(book.filters)
            if rule.metrics
        }


def read(residual: Residual, gauges: Gauges) -> Meter:
    """The metric lines of a residual, read."""
    owner = residual.scan.metric[: len(residual.ends)]
    base = residual.segment.line
    readings: dict[int, Readings] = {}
    spans: dict[int, tuple[Milestone, Milestone]] = {}
    placed: dict[int, tuple[int, str]] = {}
    addressed: dict[str, tuple[int, str]] = {}
    totals: dict[int, int] = {}
    for number in np.unique(owner[owner >= 0]).tolist():
        lines, steps, losses, rates = [], [], [], []
        for place in _sampled(residual, np.flatnonzero(owner == number)).tolist():
            found = _search(gauges.expressions[number], residual.line(place))
            if "rank" in found and "node" in found:
                rank, claim = int(found["rank"]), (place, decode(found["node"]))
                placed[rank] = min(placed.get(rank, claim), claim)  # what is said first stays
            if "alias" in found and "node" in found:
                address, claim = decode(found["alias"]), (place, decode(found["node"]))
                addressed[address] = min(addressed.get(address, claim), claim)
            step, loss, rate = (_number(found.get(name)) for name in ("step", "loss", "throughput"))
            if (last := _number(found.get("total"))) is not None:
                totals[place] = int(min(last, 1e18))
            if not step is loss is rate is None:
                lines.append(place + base)
                steps.append(_MISSING if step is None else step)
                losses.append(_MISSING if loss is None else loss)
                rates.append(_MISSING if rate is None else rate)
        if lines:
            readings[number] = Readings(np.array(lines, np.int64), np.array(steps), np.array(losses), np.array(rates))
            spans[number] = (_milestone(residual, lines[0]), _milestone(residual, lines[-1]))
    placements = {rank: node for rank, (_, node) in placed.items()}
    aliases = {address: node for address, (_, node) in addressed.items()}
    total = totals[max(totals)] if totals else None
    return Meter(readings, _texts(residual, list(readings.values())), spans, placements, aliases, total)


def _milestone(residual: Residual, line: int) -> Milestone:
    place = line - residual.segment.line
    text = last_state(decode(residual.raw(place)))
    return Milestone(line, text[:_TEXT], _stamp_near(residual, place))


def _stamp_near(residual: Residual, place: int) -> float | None:
    """The time stamp of a line or of the nearest of the `LOOK_BACK` lines before it, as far as the segment goes."""
    for at in range(place, max(place - LOOK_BACK, -1), -1):
        if (time := stamp(residual, at)) is not None:
            return time
    return None


def stamp(residual: Residual, place: int) -> float | None:
    """The time stamp at the beginning of a line."""
    return seconds_of(decode(residual.line(place)[:200]))


def _texts(residual: Residual, readings: list[Readings]) -> MetricTexts | None:
    """The metric lines with a loss, packed: all of them would be too many, and bars are no evidence."""
    if not readings:
        return None
    lines = np.unique(np.concatenate([r.lines[~np.isnan(r.losses)] for r in readings]))
    if not len(lines):
        return None
    raw = b"\n".join(residual.raw(place)[:_TEXT] for place in (lines - residual.segment.line).tolist())
    return MetricTexts(lines, zstandard.ZstdCompressor(level=1).compress(raw))


def _sampled(residual: Residual, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The places whose lines are read: all at the beginning of a stream, then those on the grid."""
    if residual.segment.offset + len(residual.segment.data) <= _DENSE_BYTES or not len(places):
        return places
    newlines = residual.segment.newlines
    begins = np.concatenate(([0], newlines + 1))[places] + residual.segment.offset
    ends = np.append(newlines, len(residual.segment.data))[places] + residual.segment.offset
    doublings = np.log2(np.maximum(begins, _DENSE_BYTES) / _DENSE_BYTES).astype(np.int64)
    grid = _GRID << doublings
    chosen: npt.NDArray[np.int64] = places[(begins < _DENSE_BYTES) | (begins // grid != ends // grid)]
    return chosen


def _search(expressions: tuple[re.Pattern[bytes], ...], line: bytes) -> dict[str, bytes]:
    """The named groups of the first hit of each expression; the last state of a redrawn bar counts."""
    if b"\r" in line:
        line = line.rstrip(b"\r").rsplit(b"\r", 1)[-1]
    found: dict[str, bytes] = {}
    for expression in expressions:
        if match := expression.search(line[:4096]):
            found |= {name: value for name, value in match.groupdict().items() if value is not None}
    return found


def _number(value: bytes | None) -> float | None:
    """A printed number, `inf` for one printed as NaN or infinite, None when there is none."""
    if value is None:
        return None
    try:
        number = float(value.replace(b",", b""))
    except ValueError:
        return None
    return number if math.isfinite(number) else math.inf
