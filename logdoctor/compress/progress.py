"""Reads steps, losses and placements from metric lines while filtering, for detecting hangs and loss spikes."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import zstandard

from logdoctor.compress.filter import Residual
from logdoctor.rules.captures import TimedPattern
from logdoctor.rules.literals import tells_digits
from logdoctor.rules.load import RuleBook
from logdoctor.rules.pattern_size import tokens
from logdoctor.text import decode, last_state, seconds_of
from logdoctor.types import MetricTexts, Milestone, Progress, Readings

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_DENSE_BYTES = 1 << 20
"""The first bytes of a stream, in which every metric line is read. Later only those on a grid are read: it starts with
512 bytes and doubles whenever the stream has doubled. The choice depends on the bytes alone, so any chunking reads the
same lines, and memory grows with the logarithm of the stream. Off the grid the last lines are read, because what goes
wrong is at the end."""
_GRID = 512
RECENT = 64  # last metric lines per rule kept off the grid
_MISSING = math.nan
Expressions = tuple[re.Pattern[bytes] | TimedPattern, ...]
"""The expressions of a rule for its figures."""

_FIELDS = ("step", "loss", "throughput", "total", "accuracy")
_GIVEN = ("step", "loss", "throughput")
"""Fields; a metric line without any of them is ignored."""
_READ = 4096  # bytes of a metric line that are searched
_HEAD = 200  # bytes of a line that may hold a time stamp
_TEXT = 1024  # bytes of a metric line that are kept
_MANY = 4096  # metric lines packed together
_DECIMAL = 16  # characters of a number read without Python's parser
_CLOCK = re.compile(rb":\d\d:\d\d")  # each time stamp has one
LOOK_BACK = 40
"""Lines before a metric line that are searched for a time stamp."""
Columns = dict[str, Ints]
"""For each named group of a metric expression, by line: its begin and end in the text, or `_NOWHERE`."""
_NOWHERE = (-1, -1)
_NONE = np.empty((0, 2), np.int64)


class Recent(NamedTuple):
    """The last metric lines of a rule off the grid: their readings, the text of those with a loss, and the last one."""

    readings: Readings
    texts: list[tuple[int, bytes]]
    last: Milestone


class Meter(NamedTuple):
    """The progress in one segment, with line numbers as in the segment.

    Learned rules have only `texts` and `spans`, and their last values in `shown`: their lines can be quoted, but no
    verdict depends on them. Whether a job makes progress is too important to depend on what some logs happened to
    print. `bad` counts the lines that say that the loss is not a number.
    """

    readings: dict[int, Readings]
    recent: dict[int, Recent]
    texts: MetricTexts | None
    spans: dict[int, tuple[Milestone, Milestone]]
    placements: dict[int, str]
    aliases: dict[str, str]
    total: int | None
    shown: Progress
    bad: int


def read(residual: Residual, book: RuleBook) -> Meter:
    """Read the metric lines of a residual."""
    owner = residual.scan.metric[: len(residual.ends)]
    readings: dict[int, Readings] = {}
    recent: dict[int, Recent] = {}
    quotable: list[Readings] = []
    spans: dict[int, tuple[Milestone, Milestone]] = {}
    named: list[tuple[int, dict[str, bytes]]] = []
    totals: list[tuple[int, float]] = []
    last: list[tuple[int, str, float]] = []
    for number in np.unique(owner[owner >= 0]).tolist():
        every = np.flatnonzero(owner == number)
        sampled = _sampled(residual, every)
        places = every[sampled]
        if number < book.shipped_filters and (found := _recent(residual, book.metrics[number], every[~sampled])):
            recent[number] = found
        columns = _columns(residual, book.metrics[number], places)
        numbers = _without_single(_numbers(residual.text, columns, _FIELDS, len(places)))
        steps, losses, rates, wanted = (numbers[name] for name in ("step", "loss", "throughput", "total"))
        last += _last_values(places + residual.segment.line, numbers)
        if number < book.shipped_filters:
            named += _named(residual.text, columns, places)
            totals += [(int(places[at]), float(wanted[at])) for at in np.flatnonzero(~np.isnan(wanted))[-1:]]
        given = _given(steps, losses, rates)
        if len(given):
            lines = places[given] + residual.segment.line
            quotable.append(Readings(lines, steps[given], losses[given], rates[given]))
            if number < book.shipped_filters:
                readings[number] = quotable[-1]
            spans[number] = (_milestone(residual, int(lines[0])), _milestone(residual, int(lines[-1])))
    total = _whole(max(totals)[1]) if totals else None
    bad = int(np.count_nonzero(residual.scan.evidence[:, 1:] == np.array(book.bad_losses)))
    return Meter(readings, recent, _texts(residual, quotable), spans, *_names(named), total, _shown(last), bad)


def _given(steps: Floats, losses: Floats, rates: Floats) -> npt.NDArray[np.int64]:
    """Return the indexes where at least one of them is a number."""
    return np.flatnonzero(~(np.isnan(steps) & np.isnan(losses) & np.isnan(rates)))


def _recent(residual: Residual, expressions: Expressions, places: Ints) -> Recent | None:
    """Return the readings of the last lines off the grid; None without any.

    They are searched from the end until enough lines have values: a framework that prints each value on its own line
    says little on most, and the result must not depend on the segments.
    """
    if not any(name in expression.groupindex for expression in expressions for name in _GIVEN):
        return None
    parts: list[Readings] = []
    end, size, found = len(places), RECENT, 0
    while end and found < RECENT:
        parts.insert(0, _readings(residual, expressions, places[max(end - size, 0) : end]))
        end, size, found = max(end - size, 0), 2 * size, found + len(parts[0].lines)
    if not found:
        return None
    readings = Readings(*(np.concatenate(column)[-RECENT:] for column in zip(*parts, strict=True)))
    return Recent(readings, _quoted(residual, _with_loss([readings])), _milestone(residual, int(readings.lines[-1])))


def _readings(residual: Residual, expressions: Expressions, places: Ints) -> Readings:
    """Return the readings of lines, without empty ones."""
    columns = _columns(residual, expressions, places)
    numbers = _without_single(_numbers(residual.text, columns, (*_GIVEN, "total"), len(places)))
    steps, losses, rates = (numbers[name] for name in _GIVEN)
    given = _given(steps, losses, rates)
    return Readings(places[given] + residual.segment.line, steps[given], losses[given], rates[given])


def _without_single(numbers: dict[str, Floats]) -> dict[str, Floats]:
    """Drop step and total of lines with a total of 1: such a bar (`Writing model shards: 1/1`) is done, not a step."""
    if not (single := numbers["total"] == 1).any():
        return numbers
    return numbers | {name: np.where(single, _MISSING, numbers[name]) for name in ("step", "total")}


def later(old: Progress, new: Progress) -> Progress:
    """Merge values: the new ones where present, else the old."""
    given = {name: value for name, value in msgspec.structs.asdict(new).items() if value not in (None, "", ())}
    return msgspec.structs.replace(old, **given)


def _last_values(
    lines: npt.NDArray[np.int64], columns: Mapping[str, npt.NDArray[np.float64]]
) -> Iterator[tuple[int, str, float]]:
    """Yield the last finite number of each column, with its line."""
    for name, column in columns.items():
        if len(given := np.flatnonzero(np.isfinite(column))):
            yield int(lines[given[-1]]), name, float(column[given[-1]])


def _shown(values: list[tuple[int, str, float]]) -> Progress:
    """Return the last values from the lines of all rules."""
    last: dict[str, Any] = {name: value for _, name, value in sorted(values)}
    for name in ("step", "total"):
        if name in last:
            last[name] = _whole(last[name])
    return Progress(**last, line=max(line for line, _, _ in values)) if values else Progress()


def _whole(number: float) -> int:
    return int(min(max(number, 0.0), 1e18))


def _columns(residual: Residual, expressions: Expressions, places: Ints) -> Columns:
    """Return for each named group its place in the text, by line; the last matching expression counts.

    Lines of one class differ only in digits, so one of each is searched.
    """
    columns: Columns = {}
    starts, every = residual.starts[places], np.arange(len(places))
    _, firsts, classes = np.unique(residual.scan.classes[places], return_index=True, return_inverse=True)
    ways = {tells: (firsts, classes) if not tells else (every, every) for tells in map(_tells_digits, expressions)}
    drawn = {tells: (*_lines(residual, places[some]), of) for tells, (some, of) in ways.items()}
    for expression in expressions:
        lines, shifts, of = drawn[_tells_digits(expression)]
        shape = (len(lines), expression.groups + 1, 2)
        nowhere = (_NOWHERE,) * shape[1]
        found = (match.regs if (match := expression.search(line)) else nowhere for line in lines)
        flat = chain.from_iterable(chain.from_iterable(found))
        spans = np.fromiter(flat, np.int64, math.prod(shape)).reshape(shape)
        for name, group in expression.groupindex.items():
            column = spans[of, group]
            given = column[:, :1] >= 0
            columns[name] = np.where(given, column + (shifts[of] + starts)[:, None], columns.get(name, _NOWHERE))
    return columns


def _lines(residual: Residual, places: Ints) -> tuple[list[bytes], Ints]:
    """Return the beginnings of lines, and their offsets: of a redrawn bar the last state."""
    text = residual.text
    bounds = zip(residual.starts[places].tolist(), residual.ends[places].tolist(), strict=True)
    lines = [text[start:end].rstrip(b"\r") for start, end in bounds]
    shifts = [line.rfind(b"\r") + 1 for line in lines]
    return [line[at : at + _READ] for line, at in zip(lines, shifts, strict=True)], np.array(shifts, np.int64)


@cache
def _tells_digits(expression: re.Pattern[bytes] | TimedPattern) -> bool:
    """Return whether an expression may distinguish two lines that differ only in digits."""
    return any(tells_digits(found.group(), found.lastgroup) for found in tokens(expression.pattern.decode()))


def _numbers(text: bytes, columns: Columns, names: Sequence[str], count: int) -> dict[str, Floats]:
    """Return the printed numbers of lines, by group: `inf` for NaN or infinity, NaN for a missing one."""
    numbers = np.full((len(names), count), _MISSING)
    known = [row for row, name in enumerate(names) if name in columns]
    column = np.concatenate([np.empty((0, 2), np.int64), *(columns[names[row]] for row in known)])
    given = np.flatnonzero(column[:, 0] >= 0)
    spans = column[given]
    found, plain = _decimals(text, spans)
    found[~plain] = [_number(text[begin:end]) for begin, end in spans[~plain].tolist()]
    rows = np.full(len(column), _MISSING)
    rows[given] = found
    numbers[known] = rows.reshape(len(known), count)
    return dict(zip(names, numbers, strict=True))


def _decimals(text: bytes, spans: Ints) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Parse decimals at some places of a text; return where that is exact: at most 15 digits, at most one point."""
    widths = spans[:, 1] - spans[:, 0]
    at = np.arange(min(_DECIMAL, widths.max(initial=0)))[:, None]
    drawn = np.frombuffer(text, np.uint8)[np.minimum(spans[:, 0] + at, len(text) - 1)]
    inside = at < widths
    digits, points = inside & (drawn >= ord("0")) & (drawn <= ord("9")), inside & (drawn == ord("."))
    whole = np.zeros(len(spans))
    for row, mask in zip(drawn - np.uint8(ord("0")), digits, strict=True):
        whole = np.where(mask, whole * 10 + row, whole)
    count, pointed = digits.sum(axis=0), points.sum(axis=0)
    behind = (digits & np.logical_or.accumulate(points)).sum(axis=0)
    plain = (count > 0) & (count < _DECIMAL) & (pointed < 2) & (count + pointed == widths)
    return whole / 10.0**behind, plain


def _named(text: bytes, columns: Columns, places: Ints) -> list[tuple[int, dict[str, bytes]]]:
    """Return the lines that name a node: their indexes, and the groups that matched."""
    nodes = columns.get("node", _NONE)
    return [
        (int(places[at]), {name: text[slice(*column[at])] for name, column in columns.items() if column[at, 0] >= 0})
        for at in np.flatnonzero(nodes[:, 0] >= 0).tolist()
    ]


def _names(named: list[tuple[int, dict[str, bytes]]]) -> tuple[dict[int, str], dict[str, str]]:
    """Return (ranks to nodes, other names to nodes); the first mention counts."""
    placements: dict[int, str] = {}
    aliases: dict[str, str] = {}
    for _, groups in sorted(named, key=lambda line: line[0]):
        if "rank" in groups and len(groups["rank"]) < 10:
            placements.setdefault(int(groups["rank"]), decode(groups["node"]))
        if "alias" in groups:
            aliases.setdefault(decode(groups["alias"]), decode(groups["node"]))
    return placements, aliases


def _milestone(residual: Residual, line: int) -> Milestone:
    place = line - residual.segment.line
    text = last_state(decode(residual.raw(place)))
    return Milestone(line, text[:_TEXT], _stamp_near(residual, place))


def _stamp_near(residual: Residual, place: int) -> float | None:
    """Return the nearest time stamp at or up to `LOOK_BACK` lines before a line."""
    first = max(place - LOOK_BACK + 1, 0)
    if _CLOCK.search(residual.text, residual.starts[first], residual.ends[place]) is None:
        return None
    for at in range(place, first - 1, -1):
        if (time := stamp(head(residual, at))) is not None:
            return time
    return None


def head(residual: Residual, place: int) -> bytes:
    """Return the beginning of a line, without colours."""
    return residual.line(place)[:_HEAD]


def stamp(head: bytes) -> float | None:
    """Return the time stamp at the beginning of a line."""
    return seconds_of(decode(head))


def _texts(residual: Residual, readings: list[Readings]) -> MetricTexts | None:
    """Return the metric lines with a loss, packed; others would be too many, and bars are no evidence."""
    lines = _with_loss(readings)
    return packed(_quoted(residual, lines)) if len(lines) else None


def _with_loss(readings: list[Readings]) -> Ints:
    """Return the unique numbers of lines with a loss."""
    return np.unique(np.concatenate([np.empty(0, np.int64), *(r.lines[~np.isnan(r.losses)] for r in readings)]))


def _quoted(residual: Residual, lines: Ints) -> list[tuple[int, bytes]]:
    """Return lines with their numbers."""
    return list(zip(lines.tolist(), residual.raws(lines - residual.segment.line, _TEXT), strict=True))


def packed(lines: Sequence[tuple[int, bytes]]) -> MetricTexts:
    """Pack numbered lines as metric lines."""
    return MetricTexts(np.array([line for line, _ in lines], np.int64), _frame(b"\n".join(text for _, text in lines)))


def merged(texts: list[MetricTexts]) -> list[MetricTexts]:
    """Merge small frames of metric lines; large ones stay as they are."""
    large = [part for part in texts if len(part.lines) >= _MANY]
    small = [part for part in texts if len(part.lines) < _MANY]
    unpack = zstandard.ZstdDecompressor().decompress
    raw = b"\n".join(unpack(part.frame) for part in small)
    lines = np.concatenate([part.lines for part in small])
    return [*large, MetricTexts(lines, _frame(raw))]


def _frame(raw: bytes) -> bytes:
    """Compress bytes into a Zstandard frame; copied, because the compressor's own result is over-allocated."""
    return bytes(memoryview(zstandard.ZstdCompressor(level=1).compress(raw)))


def _sampled(residual: Residual, places: Ints) -> npt.NDArray[np.bool_]:
    """Return which lines are always read: all at the beginning of a stream, later those on the grid."""
    if residual.segment.offset + len(residual.segment.data) <= _DENSE_BYTES or not len(places):
        return np.ones(len(places), np.bool_)
    newlines = residual.segment.newlines
    begins = np.concatenate(([0], newlines + 1))[places] + residual.segment.offset
    ends = np.append(newlines, len(residual.segment.data))[places] + residual.segment.offset
    doublings = np.log2(np.maximum(begins, _DENSE_BYTES) / _DENSE_BYTES).astype(np.int64)
    grid = _GRID << doublings
    chosen: npt.NDArray[np.bool_] = (begins < _DENSE_BYTES) | (begins // grid != ends // grid)
    return chosen


def _number(value: bytes) -> float:
    """Parse a printed number: `inf` for NaN or infinity, NaN when it is not a number."""
    try:
        number = float(value)
    except ValueError:
        try:
            number = float(value.replace(b",", b""))
        except ValueError:
            return _MISSING
    return number if math.isfinite(number) else math.inf
