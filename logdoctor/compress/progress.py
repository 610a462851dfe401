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
_HEAD = 200  # bytes of a line in which a time stamp may stand
_TEXT = 1024  # bytes of a metric line that are kept
_MANY = 4096  # metric lines that are packed together
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
    readings: dict[int, Readings] = {}
    spans: dict[int, tuple[Milestone, Milestone]] = {}
    said: dict[int, dict[str, bytes]] = {}  # what lines say beside numbers, by place
    for number in np.unique(owner[owner >= 0]).tolist():
        places = _sampled(residual, np.flatnonzero(owner == number))
        found = [_search(gauges.expressions[number], residual.line(place)) for place in places.tolist()]
        steps, losses, rates = (
            np.array([_number(groups.get(name)) for groups in found]) for name in ("step", "loss", "throughput")
        )
        said |= {place: g for place, g in zip(places.tolist(), found, strict=True) if "total" in g or "node" in g}
        given = np.flatnonzero(~(np.isnan(steps) & np.isnan(losses) & np.isnan(rates)))
        if len(given):
            lines = places[given] + residual.segment.line
            readings[number] = Readings(lines, steps[given], losses[given], rates[given])
            spans[number] = (_milestone(residual, int(lines[0])), _milestone(residual, int(lines[-1])))
    return Meter(readings, _texts(residual, list(readings.values())), spans, *_said(said))


def _said(said: dict[int, dict[str, bytes]]) -> tuple[dict[int, str], dict[str, str], int | None]:
    """(ranks to nodes, other names to nodes, wanted steps): of names what is said first stays, of steps the last."""
    placements: dict[int, str] = {}
    aliases: dict[str, str] = {}
    total: int | None = None
    for _, groups in sorted(said.items()):
        if "rank" in groups and "node" in groups and len(groups["rank"]) < 10:
            placements.setdefault(int(groups["rank"]), decode(groups["node"]))
        if "alias" in groups and "node" in groups:
            aliases.setdefault(decode(groups["alias"]), decode(groups["node"]))
        if not math.isnan(last := _number(groups.get("total"))):
            total = int(min(last, 1e18))
    return placements, aliases, total


def _milestone(residual: Residual, line: int) -> Milestone:
    place = line - residual.segment.line
    text = last_state(decode(residual.raw(place)))
    return Milestone(line, text[:_TEXT], _stamp_near(residual, place))


def _stamp_near(residual: Residual, place: int) -> float | None:
    """The time stamp of a line or of the nearest of the `LOOK_BACK` lines before it, as far as the segment goes."""
    for at in range(place, max(place - LOOK_BACK, -1), -1):
        if (time := stamp(head(residual, at))) is not None:
            return time
    return None


def head(residual: Residual, place: int) -> bytes:
    """The beginning of a line, without colours."""
    return residual.line(place)[:_HEAD]


def stamp(head: bytes) -> float | None:
    """The time stamp at the beginning of a line."""
    return seconds_of(decode(head))


def _texts(residual: Residual, readings: list[Readings]) -> MetricTexts | None:
    """The metric lines with a loss, packed: all of them would be too many, and bars are no evidence."""
    if not readings:
        return None
    lines = np.unique(np.concatenate([r.lines[~np.isnan(r.losses)] for r in readings]))
    if not len(lines):
        return None
    raw = b"\n".join(residual.raw(place)[:_TEXT] for place in (lines - residual.segment.line).tolist())
    return MetricTexts(lines, zstandard.ZstdCompressor(level=1).compress(raw))


def merged(texts: list[MetricTexts]) -> list[MetricTexts]:
    """The same metric lines in fewer frames: small ones are put together, large ones stay as they are."""
    large = [part for part in texts if len(part.lines) >= _MANY]
    small = [part for part in texts if len(part.lines) < _MANY]
    unpack = zstandard.ZstdDecompressor().decompress
    raw = b"\n".join(unpack(part.frame) for part in small)
    lines = np.concatenate([part.lines for part in small])
    return [*large, MetricTexts(lines, zstandard.ZstdCompressor(level=1).compress(raw))]


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


def _number(value: bytes | None) -> float:
    """A printed number, `inf` for one printed as NaN or infinite, NaN when there is none."""
    if value is None:
        return _MISSING
    try:
        number = float(value.replace(b",", b""))
    except ValueError:
        return _MISSING
    return number if math.isfinite(number) else math.inf
