"""The lines of a residual that diagnosis may need, with their neighbours; and the record of a stream.

A line is remarkable when a diagnosis rule matches it, when it has a strong mark, or when it has a weak mark and no
filter rule takes it. Of a flood of them the first and the last are kept.
"""

from collections.abc import Iterable, Mapping, Set
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from logdoctor.compress.filter import Ints, Residual, RuleTally, tally
from logdoctor.compress.progress import (
    LOOK_BACK,
    RECENT,
    Meter,
    Recent,
    head,
    later,
    merged,
    packed,
    read,
    stamp,
)
from logdoctor.rules.scanner import Scanner
from logdoctor.text import decode
from logdoctor.types import Compression, Line, MetricTexts, Milestone, Progress, Readings, Record

BEFORE, AFTER = 2, 8
"""Neighbours kept before and after a remarkable line."""
LEAD = 20
"""Lines kept before evidence or strong marks, if none of them has any: what the program did until then."""
_TAIL = LOOK_BACK
_HELD = {True: 15_000, False: 3_000}
"""Remarkable lines kept at each end of a flood: with evidence or strong marks, and with weak ones."""
_THIN = 256  # lines kept before useless ones are dropped
_PARTS = 64  # parts of a rule's readings, and of packed metric lines, before they are merged
_TEXT = 8192  # bytes of a long line that are kept


class SegmentExcerpt(NamedTuple):
    """What one segment adds to its stream's record; line numbers as in the segment.

    `heads` are the beginnings of its last lines, for time stamps.
    """

    lines: list[Line]
    first: list[Line]
    last: list[Line]
    heads: list[bytes]
    meter: Meter
    tally: RuleTally


def excerpt(residual: Residual, scanner: Scanner) -> SegmentExcerpt:
    """Return a residual's remarkable lines, first and last lines, metrics and counts."""
    count = len(residual.ends)
    scan = residual.scan
    remarkable = scan.strong[:count] | (scan.weak[:count] & (scan.owner[:count] < 0))
    rules: dict[int, list[int]] = {}
    for place, rule in scan.evidence.tolist():
        rules.setdefault(place, []).append(rule)
    evident = np.fromiter(rules, np.int64, len(rules))
    remarkable[evident] = True
    places = np.flatnonzero(remarkable)
    sure = scan.strong[:count].copy()
    sure[evident] = True
    places, wanted = _kept(places, sure[places])
    wanted = wanted[(wanted >= 0) & (wanted < count)]
    tail = np.arange(max(count - _TAIL, 0), count)
    lines = _lines(residual, wanted, rules, set(places.tolist()))
    first = _lines(residual, np.arange(min(AFTER, count)))
    last = _lines(residual, tail)
    heads = [head(residual, place) for place in tail.tolist()]
    book = scanner.book
    return SegmentExcerpt(lines, first, last, heads, read(residual, book), tally(residual, len(book.filters)))


def _ends_of_flood(places: Ints, sure: npt.NDArray[np.bool_]) -> Ints:
    """Return the places without the middle of a flood, of sure and weak ones separately."""
    kept = []
    for kind, limit in _HELD.items():
        some = places[sure == kind]
        kept.append(some if len(some) <= 2 * limit else np.concatenate((some[:limit], some[-limit:])))
    return np.sort(np.concatenate(kept))


def _kept(places: Ints, sure: npt.NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Return the remarkable places without a flood's middle, and these with their neighbours. `sure` marks those with
    evidence or strong marks."""
    if not len(places):
        return places, places
    alone = places[sure][np.diff(places[sure], prepend=-LEAD - 1) > LEAD]
    places = _ends_of_flood(places, sure)
    lead = np.intersect1d(alone, places)[:, None] + np.arange(-LEAD, 0)
    near = places[:, None] + np.arange(-BEFORE, AFTER + 1)
    return places, np.unique(np.concatenate((lead.ravel(), near.ravel())))


def _lines(
    residual: Residual, places: Ints, rules: Mapping[int, list[int]] | None = None, remarkable: Set[int] = frozenset()
) -> list[Line]:
    """Return lines, the `remarkable` ones with their `rules` and marks."""
    scan, begin = residual.scan, residual.segment.line
    texts = [decode(raw if len(raw) <= _TEXT else _end_of_line(raw)) for raw in residual.raws(places)]
    return [
        Line(place + begin, text, tuple((rules or {}).get(place, ())), bool(scan.strong[place]), bool(scan.weak[place]))
        if place in remarkable
        else Line(place + begin, text)
        for place, text in zip(places.tolist(), texts, strict=True)
    ]


def _end_of_line(raw: bytes) -> bytes:
    """Return the end of a long line, in whole characters: there a redrawn bar has its last state and an error its
    message."""
    part = raw[-_TEXT:]
    while part and part[0] & 0xC0 == 0x80:
        part = part[1:]
    return part


class Recorder:
    """Collects the excerpts of a stream, in order, into its record."""

    def __init__(self, stream: str, file: str, scanner: Scanner) -> None:
        self._book = scanner.book
        self._record = Record(stream, file)
        self._tally = RuleTally(len(scanner.book.filters))
        self._lines: dict[int, Line] = {}
        self._last: list[Line] = []
        self._heads: list[bytes] = []
        self._readings: dict[str, list[Readings]] = {}
        self._recent: dict[str, Recent] = {}
        self._texts: list[MetricTexts] = []
        self._spans: dict[str, tuple[Milestone, Milestone]] = {}
        self._next = 1
        self._thin_at = _THIN
        self._is_thin = True  # thinning would leave all lines: they are one segment's

    def adopt(self, scanner: Scanner) -> None:
        """Continue with a rule book with appended rules, or with changed statuses of learned rules."""
        self._book = scanner.book
        self._tally.grow(len(scanner.book.filters))

    def notice(self, number: int, text: str) -> None:
        """Keep a line that the Log Agent noticed as an error, with a weak mark; `text` if it was not kept."""
        self._is_thin = False
        old = self._lines.get(number, Line(number, text))
        self._lines[number] = old._replace(weak=True, noticed=True)

    def hits(self) -> dict[str, tuple[int, int]]:
        """Return for each learned rule that matched: (lines matched, in shadow or not; lines taken)."""
        account, book = self._tally, self._book
        first = book.shipped_filters
        matched = account.lines[first:] + account.watched[first:]
        return {
            book.learned[place].id: (int(matched[place]), int(account.lines[first + place]))
            for place in np.flatnonzero(matched)
        }

    def state(self) -> "RecorderState":
        """Return the whole state, to continue from later."""
        record, account = self._record, self._tally
        return RecorderState(
            sorted(self._lines.values()),
            self._last,
            self._heads,
            self._next,
            {rule: [_packed(*parts) for parts in readings] for rule, readings in self._readings.items()},
            {rule: (_packed(*one.readings), one.texts, one.last) for rule, one in self._recent.items()},
            [(part.lines.tobytes(), part.frame) for part in self._texts],
            self._spans,
            record.placements,
            record.aliases,
            record.total,
            record.problems,
            _packed(account.lines, account.first, account.last, account.watched),
            (account.lines_in, account.lines_kept, account.bytes_in, account.bytes_kept),
            record.shown,
        )

    def restore(self, state: "RecorderState") -> None:
        """Restore a state into a new recorder; rules may have been appended to its book since."""
        record, account = self._record, self._tally
        self._lines = {line.number: line for line in state.lines}
        self._last, self._heads, self._next, self._is_thin = state.last, state.heads, state.next, False
        self._readings = {rule: [_unpacked(part) for part in parts] for rule, parts in state.readings.items()}
        self._recent = {
            rule: Recent(_unpacked(part), texts, last) for rule, (part, texts, last) in state.recent.items()
        }
        self._texts = [MetricTexts(np.frombuffer(lines, np.int64), frame) for lines, frame in state.texts]
        self._spans, record.placements, record.aliases = state.spans, state.placements, state.aliases
        record.total, record.problems, record.shown = state.total, state.problems, state.shown
        columns = (np.frombuffer(column, np.int64).copy() for column in state.taken)
        account.lines, account.first, account.last, account.watched = columns
        account.grow(len(self._book.filters))
        account.lines_in, account.lines_kept, account.bytes_in, account.bytes_kept = state.account

    @property
    def account(self) -> RuleTally:
        """Return the counts of lines taken and left so far."""
        return self._tally

    @property
    def problems(self) -> list[str]:
        """Return the problems met while reading the stream."""
        return self._record.problems

    @property
    def line(self) -> int:
        """Return the number of the next line."""
        return self._next

    def add(self, part: SegmentExcerpt, shift: int) -> None:
        """Add the excerpt of the next segment; `shift` is added to its line numbers."""
        self._is_thin = self._next == 1
        for line in self._last[-LEAD:]:
            self._keep(line)
        for line in (*part.first, *part.lines):
            self._keep(_moved(line, shift))
        self._last = (self._last + [_moved(line, shift) for line in part.last])[-_TAIL:]
        self._tally.add(part.tally, shift)
        self._next += part.tally.lines_in
        self._meter(part.meter, shift, part.first[0].number)
        self._heads = (self._heads + part.heads)[-_TAIL:]
        if len(self._lines) > self._thin_at:
            self._lines = _thinned(self._lines.values())
            self._thin_at = max(2 * len(self._lines), _THIN)

    def _keep(self, line: Line) -> None:
        """Keep a line; pieces of a long line are merged, with the most telling text."""
        old = self._lines.get(line.number)
        if old is None:
            self._lines[line.number] = line
            return
        better = line if _is_remarkable(line) and not _is_remarkable(old) else old
        rules = tuple(sorted({*old.rules, *line.rules}))
        self._lines[line.number] = Line(
            line.number,
            better.text,
            rules,
            old.strong or line.strong,
            old.weak or line.weak,
            old.noticed or line.noticed,
        )

    def _meter(self, meter: Meter, shift: int, begin: int) -> None:
        """Add the progress of a segment whose first line is `begin`."""
        record = self._record
        for number, readings in meter.readings.items():
            rule = self._book.filters[number].id
            parts = self._readings.setdefault(rule, [])
            parts.append(readings._replace(lines=readings.lines + shift))
            if len(parts) > _PARTS:
                parts[:] = [_concatenated(parts)]
        for number, recent in meter.recent.items():
            rule = self._book.filters[number].id
            moved = Recent(
                recent.readings._replace(lines=recent.readings.lines + shift),
                [(line + shift, text) for line, text in recent.texts],
                self._dated(recent.last, shift, begin),
            )
            self._recent[rule] = _latest(self._recent.get(rule), moved)
        for number, span in meter.spans.items():
            rule = self._book.filters[number].id
            first, last = (self._dated(milestone, shift, begin) for milestone in span)
            self._spans[rule] = (self._spans.get(rule, (first, last))[0], last)
        if meter.texts is not None:
            self._texts.append(meter.texts._replace(lines=meter.texts.lines + shift))
            if len(self._texts) > _PARTS:
                self._texts = merged(self._texts)
        record.placements |= {rank: node for rank, node in meter.placements.items() if rank not in record.placements}
        record.aliases |= {ip: node for ip, node in meter.aliases.items() if ip not in record.aliases}
        record.total = meter.total if meter.total is not None else record.total
        line = None if meter.shown.line is None else meter.shown.line + shift
        record.shown = later(record.shown, msgspec.structs.replace(meter.shown, line=line))

    def _dated(self, milestone: Milestone, shift: int, begin: int) -> Milestone:
        """Return the milestone with its line number in the stream; without a stamp in its segment it gets an earlier
        one."""
        time = milestone.time
        if time is None and (reach := LOOK_BACK - 1 - (milestone.line - begin)) > 0:
            near = map(stamp, reversed(self._heads[-reach:]))
            time = next((seconds for seconds in near if seconds is not None), None)
        return milestone._replace(line=milestone.line + shift, time=time)

    def record(self) -> Record:
        """Return the record of all that was added."""
        record = self._record
        lines = sorted((self._lines if self._is_thin else _thinned(self._lines.values())).values())
        record.lines = lines if any(map(_is_remarkable, lines)) else []
        record.last = self._last
        record.progress = {rule: self._course(rule, parts) for rule, parts in sorted(self._readings.items())}
        recent = sorted({line for rule in self._readings for line in self._quotable(rule)})
        record.texts = [*self._texts, *([packed(recent)] if recent else [])]
        record.spans = {rule: (first, self._last_of(rule, last)) for rule, (first, last) in self._spans.items()}
        account = self._tally
        record.compression = Compression(
            account.lines_in,
            account.lines_kept,
            account.bytes_in,
            account.bytes_kept,
            account.counts(self._book.filters),
        )
        return record

    def _course(self, rule: str, parts: list[Readings]) -> Readings:
        """Return all readings of a rule in order, including the last ones off the grid."""
        if rule not in self._recent:
            return _concatenated(parts)
        every = _concatenated([*parts, self._recent[rule].readings])
        return every.at(np.argsort(every.lines, kind="stable"))

    def _quotable(self, rule: str) -> list[tuple[int, bytes]]:
        return self._recent[rule].texts if rule in self._recent else []

    def _last_of(self, rule: str, last: Milestone) -> Milestone:
        recent = self._recent.get(rule)
        return last if recent is None or rule not in self._readings else max(last, recent.last, key=_line_of)


class RecorderState(msgspec.Struct, frozen=True, array_like=True):
    """A recorder as plain values: number columns are the bytes of their arrays."""

    lines: list[Line]
    last: list[Line]
    heads: list[bytes]
    next: int
    readings: dict[str, list[tuple[bytes, ...]]]
    recent: dict[str, tuple[tuple[bytes, ...], list[tuple[int, bytes]], Milestone]]
    texts: list[tuple[bytes, bytes]]
    spans: dict[str, tuple[Milestone, Milestone]]
    placements: dict[int, str]
    aliases: dict[str, str]
    total: int | None
    problems: list[str]
    taken: tuple[bytes, ...]
    account: tuple[int, int, int, int]
    shown: Progress = Progress()


def _packed(*columns: npt.NDArray[Any]) -> tuple[bytes, ...]:
    return tuple(column.tobytes() for column in columns)


def _unpacked(columns: tuple[bytes, ...]) -> Readings:
    lines, *others = columns
    return Readings(np.frombuffer(lines, np.int64), *(np.frombuffer(column, np.float64) for column in others))


def _latest(before: Recent | None, after: Recent) -> Recent:
    """Merge the last metric lines of two segments."""
    if before is None:
        return after
    readings = _concatenated([before.readings, after.readings]).at(slice(-RECENT, None))
    texts = [(line, text) for line, text in before.texts + after.texts if line >= readings.lines[0]]
    return Recent(readings, texts, after.last)


def _line_of(milestone: Milestone) -> int:
    return milestone.line


def _concatenated(parts: list[Readings]) -> Readings:
    return Readings(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _moved(line: Line, shift: int) -> Line:
    return line._replace(number=line.number + shift) if shift else line


def _is_remarkable(line: Line) -> bool:
    return bool(line.rules) or line.strong or line.weak


def _thinned(lines: Iterable[Line]) -> dict[int, Line]:
    """Return remarkable lines without a flood's middle, neighbours of those kept, and the first lines. The latter
    identify another run."""
    by_number = {line.number: line for line in lines}
    remarkable = np.array(sorted(n for n, line in by_number.items() if _is_remarkable(line)), np.int64)
    sure = np.array([bool(by_number[n].rules) or by_number[n].strong for n in remarkable.tolist()], np.bool_)
    places, wanted = _kept(remarkable, sure)
    stay = set(places.tolist())
    near = (n for n in sorted({*range(1, AFTER + 1), *wanted.tolist()}) if n in by_number)
    return {n: by_number[n] if n in stay else Line(n, by_number[n].text) for n in near}
