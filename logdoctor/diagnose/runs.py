"""Runs within one file, to which restarted jobs append: the last decides, earlier ones are listed.

Another run begins where first lines of the file recur: some of them, in order, by the same writer, right behind a sign
of trouble or of an end, and none that stood among the lines before. The lines around such a sign are kept. A restart
that the job itself reports is part of the same run.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import msgspec
import numpy as np

from logdoctor.diagnose.aftermath import Aftermath, kind_of, writer_of
from logdoctor.diagnose.findings import StreamReading
from logdoctor.rules.load import RuleBook
from logdoctor.text import seconds_of
from logdoctor.types import Line, Milestone, Readings, Record

_HEAD, _ALIKE = 8, 3  # first lines of a file; fewest of them that show another run
_LEAST = 10  # fewest lines of a run; ranks that print the same first lines do so sooner
_SAME = 30  # lines behind a start in which another rank would repeat it
_BEHIND = 20  # lines before a start, one of which shows trouble or an end
_LAST = 40  # last lines of an earlier run
_MOST = 65  # most runs that are told apart
_YEAR = 366 * 86_400.0
_WRITERS = 2  # most distinct ranks and tasks, None included, of one process
_PREFIX_OF_ACTOR = 80  # characters in which an actor names its process
_PREFIX = 8  # characters of a message that are compared with first lines


def runs(aftermath: Aftermath, book: RuleBook) -> list[Record]:
    """Return the record of each run in a stream, in order, the last 65 at most. A single run has the record of the
    stream."""
    reading = aftermath.reading
    starts = _starts(aftermath, book)
    if not starts:
        return [reading.record]
    ends = [*(start - 1 for start in starts), reading.record.compression.lines_in]
    spans = list(zip([1, *starts], ends, strict=True))[-_MOST:]
    return [_part(reading, *span) for span in spans]


def _starts(aftermath: Aftermath, book: RuleBook) -> list[int]:
    """Return the lines at which runs begin, except the first."""
    reading = aftermath.reading
    begun = [(number, where.message[:_PREFIX]) for number, where in sorted(reading.origins.items())]
    opening = {begin for number, begin in begun if number <= _HEAD and begin.strip()}
    alike = np.array([number for number, begin in begun if number > _HEAD and begin in opening], np.int64)
    signs = np.searchsorted(reading.suspicious, (alike - _BEHIND, alike))
    if len(alike) < _ALIKE or not (signs[0] < signs[1]).any():
        return []
    if len({where.rank for _, where in reading.lines} | {where.task for _, where in reading.lines}) > _WRITERS:
        return []  # ranks or tasks that print the same first lines
    if any("pid=" in text[:_PREFIX_OF_ACTOR] for number, text in reading.texts.items() if number <= _HEAD):
        return []  # actors are started again within a run
    kinds = sorted([*_troubled(aftermath), *((line.number, writer, line.kind) for writer, line in aftermath.ordinary)])
    plain = [(writer, line.kind) for writer, line in aftermath.ordinary if line.number <= _HEAD and " " in line.kind]
    printer, ordinary = next((writer for writer, _ in plain), ""), {kind for _, kind in plain}
    head = [kind for number, writer, kind in kinds if number <= _HEAD and " " in kind and writer == printer]
    first = list(dict.fromkeys(head))
    if not plain or len(first) < _ALIKE:
        return []
    restarts = [line.number for line, _ in reading.lines if _is_restart(line, book)]
    found = [1]
    for at, (number, writer, kind) in enumerate(kinds):
        start = found[-1]
        if kind not in first or writer != printer or not start + _LEAST <= number <= begun[-1][0] - _LEAST:
            continue
        restart = bisect_right(restarts, start)
        if restarts[restart : restart + 1] and restarts[restart] < number + _BEHIND:
            continue
        if not _ended(reading, start, number):
            continue
        near = kinds[max(at - _BEHIND, 0) : at]
        before = {kind for line, _, kind in near if line >= max(start + _HEAD, number - _BEHIND)}
        again = [kind for line, by, kind in kinds[at : at + _HEAD] if line < number + _HEAD and by == writer]
        places = [first.index(kind) for kind in dict.fromkeys(again) if kind in first and kind not in before]
        own = {line for line, _, one in kinds[at : at + _HEAD] if one in first}
        later = reading.suspicious[np.searchsorted(reading.suspicious, number) :][: _HEAD + 1].tolist()
        sign = next((line for line in later if line not in own), number + _SAME)
        behind = kinds[at + 1 : at + 1 + _SAME]
        more = [one for line, _, one in behind if line <= min(number + _SAME, sign) and one == kind]
        is_again = len(places) >= _ALIKE and places == sorted(places) and not ordinary.isdisjoint(again)
        if kind not in before and is_again and not more:
            found.append(number)
    return found[1:]


def _troubled(aftermath: Aftermath) -> Iterator[tuple[int, str, str]]:
    """Yield (number, writer, kind) of suspicious lines outside of reports. Many programs begin with warnings."""
    reading = aftermath.reading
    for line, where in reading.lines:
        is_report = line.number in reading.in_chains or line.rules
        if (line.strong or line.weak) and not is_report and not where.message[:1].isspace():
            yield line.number, writer_of(where.channel), kind_of(where)


def _is_restart(line: Line, book: RuleBook) -> bool:
    """Return whether a line reports a restart within the same run."""
    return any(book.diagnoses[number].verdict.outcome == "recovered" for number in line.rules)


def _ended(reading: StreamReading, start: int, number: int) -> bool:
    """Return whether a run may have ended before a line. The lines before it are known, one shows trouble or an end,
    and the clock does not go back."""
    before = range(max(start, number - _BEHIND), number)
    is_known = all(line in reading.texts for line in before)
    signs = np.searchsorted(reading.suspicious, [before.start, number])
    clock = [reading.times[line] for line in range(number, number + _HEAD) if line in reading.times]
    last = max((reading.times[line] for line in before if line in reading.times), default=None)
    is_back = bool(clock) and last is not None and 0 < last - clock[0] < _YEAR  # otherwise one stamp lacks a year
    return is_known and bool(signs[0] < signs[1]) and not is_back


def _part(reading: StreamReading, first: int, last: int) -> Record:
    """Return the record of a run's lines; its rule counts stay those of the whole file."""
    record = reading.record
    begin, stop = (bisect_left(record.lines, number, key=lambda line: line.number) for number in (first, last + 1))
    lines = record.lines[begin:stop]
    is_last = last == record.compression.lines_in
    end = [line for line in record.last if line.number >= first] if is_last else lines[-_LAST:]
    spans: dict[str, tuple[Milestone, Milestone]] = {}
    progress: dict[str, Readings] = {}
    for rule, readings in record.progress.items():
        some = readings.at((readings.lines >= first) & (readings.lines <= last))
        if rule in record.spans and len(some.lines):
            known = {one.line: one for one in record.spans[rule]}
            places = (int(some.lines[0]), int(some.lines[-1]))
            first_one, last_one = (known.get(place) or _milestone(reading, place) for place in places)
            progress[rule], spans[rule] = some, (first_one, last_one)
    return msgspec.structs.replace(
        record,
        lines=lines,
        last=end,
        progress=progress,
        spans=spans,
        total=record.total if is_last else None,
        compression=msgspec.structs.replace(record.compression, lines_in=last),
        problems=record.problems if is_last else [],
    )


def _milestone(reading: StreamReading, number: int) -> Milestone:
    """Return a metric line as the first or last one of a run."""
    text = reading.text(number) or ""
    return Milestone(number, text, seconds_of(text))
