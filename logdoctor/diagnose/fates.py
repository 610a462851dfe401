"""The fate of every rank of a failed attempt, ranks of one fate together."""

from collections.abc import Sequence
from itertools import pairwise

from logdoctor.diagnose import suspects
from logdoctor.diagnose.findings import StreamReading
from logdoctor.diagnose.missing import WAITED, absence
from logdoctor.diagnose.verdict import Examined
from logdoctor.text import seconds_of
from logdoctor.types import Fate, RankFate, Verdict

_ORDER: tuple[Fate, ...] = ("own fault", "ended", "missing", "echo", "silent", "wrote nothing", "done", "no error")
_MOST = 64  # entries
_RANKS = 1 << 20
_NAMES = 400  # characters of the numbers of an entry
_SILENT = 60.0  # seconds before the last line of all from which on a stream of one rank is silent


def fates(case: Examined, verdict: Verdict) -> tuple[RankFate, ...]:
    """Return entries such as `own fault` of rank 3 and `echo` of ranks 0-2,4-1023; none where no rank is known.

    The surest that is known of a rank counts: its own fault, how it ended, an error that follows from another. A number
    between known ranks belongs to one that wrote nothing.
    """
    labelled = [suspects.tasks_are_ranks(reading) for reading in case.readings]
    found: dict[int, tuple[Fate, str, str, int]] = {}
    judged = case.judgement
    lasting = [one for one in (judged.cause, *judged.symptoms, *judged.teardown) if one]

    def put(rank: int | None, fate: Fate, what: str, stream: int, line: int) -> None:
        if rank is not None and rank < _RANKS:
            told = fate, what, case.readings[stream].record.stream, line
            found[rank] = min(found.get(rank, told), told, key=lambda one: _ORDER.index(one[0]))

    for one in lasting:
        agrees = one is judged.cause or (one.reason == verdict.reason and one.role in ("cause", "proximate"))
        fate: Fate = "own fault" if agrees and one.reason not in WAITED else "echo"
        put(suspects.rank_of(one, case.readings, labelled), fate, one.reason, one.stream, one.line)
    for end in judged.ends:
        put(end.rank, "ended", end.kind, end.stream, end.line)
    for mark in case.outcomes("completed"):
        put(suspects.rank_of(mark, case.readings, labelled), "done", "", mark.stream, mark.line)
    if judged.cause is not None and judged.cause.reason in WAITED:
        missed = absence(case.readings, case.found, judged.cause)
        for rank in missed.ranks if missed else ():
            put(rank, "missing", "others waited for it", judged.cause.stream, judged.cause.line)
    lasts = [_last(reading) for reading in case.readings]
    latest = max((last for last in lasts if last is not None), default=0.0)
    for number, course in enumerate(case.own):
        reading, last = course.reading, lasts[number]
        fate = "silent" if last is not None and latest - last > _SILENT else "no error"
        put(suspects.rank_of_stream(reading.record.stream), fate, "", number, reading.record.compression.lines_in)
        for spoken in {where.rank for _, where in reading.lines} | set(reading.record.placements):
            put(spoken, "no error", "", number, 0)
    first = verdict.first_rank
    if (
        first is not None
        and verdict.reason not in WAITED
        and found.get(first, ("ended",))[0] not in ("own fault", "ended")
    ):
        found[first] = ("own fault", verdict.reason, *found[first][2:])
    return _together(found)


def _last(reading: StreamReading) -> float | None:
    """Return the last time that a stream prints."""
    ends = (seconds_of(line.text) for line in reading.record.last[-1:])
    return max((time for time in (*reading.times.values(), *ends) if time is not None), default=None)


def _together(found: dict[int, tuple[Fate, str, str, int]]) -> tuple[RankFate, ...]:
    groups: dict[tuple[Fate, str, str, int], list[int]] = {}
    known = sorted(found)
    for rank in known:
        fate, what, _, _ = found[rank]
        same = next((one for one in groups if one[:2] == (fate, what)), found[rank])
        groups.setdefault(same, []).append(rank)
    if known and 2 * len(known) > known[-1]:  # else the numbers are no ranks in a row
        gaps = [rank for before, after in pairwise([-1, *known]) for rank in range(before + 1, after)]
        groups |= {("wrote nothing", "", "", 0): gaps} if gaps else {}
    entries = [
        RankFate(fate, shown(ranks), len(ranks), what, stream, line)
        for (fate, what, stream, line), ranks in groups.items()
    ]
    return tuple(sorted(entries, key=lambda one: (_ORDER.index(one.fate), -one.count))[:_MOST])


def shown(ranks: Sequence[int]) -> str:
    """Return ranks in order as ranges: `0-2,4`, cut to 400 characters."""
    said, first = list[str](), ranks[0]
    for before, after in pairwise([*ranks, -1]):
        if after != before + 1:
            said.append(f"{first}-{before}" if before > first else f"{first}")
            first = after
    text = ",".join(said)
    return text if len(text) <= _NAMES else f"{text[:_NAMES].rpartition(',')[0]},..."
