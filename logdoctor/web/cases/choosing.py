"""The lines of a log that a person names as proof of a failure: those that are shown to be checked, and those that are
typed."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from markupsafe import Markup

from logdoctor.errors import RequestRefused
from logdoctor.service.service import Service
from logdoctor.store.jobs.records import StoredVerdict
from logdoctor.web.jobs.excerpts import ending, proofs
from logdoctor.web.jobs.log_rows import LogRow

MOST = 20
"""Lines that prove a failure, at most."""

Place = tuple[str, int]
"""A line: its stream and its number there."""

_Lines = tuple[str, list[tuple[int, Markup | str]]]


class LineChoice(NamedTuple):
    """A line that is shown; its `value` is what a checked box sends, "" where none is because its log is gone."""

    number: int
    text: Markup | str
    value: str
    cited: bool


class Passage(NamedTuple):
    """Lines of a stream, in their order. The first passage of a part has what that is called."""

    title: str
    stream: str
    lines: list[LineChoice]


class Chosen(NamedTuple):
    """Which lines a form has: those that are `checked`, as their boxes send them, the one of them that is `naming` the
    failure ("" for none), and what is `typed` besides."""

    checked: frozenset[str]
    typed: str
    naming: str = ""


def passages(service: Service, stored: StoredVerdict, streams: Sequence[str]) -> list[Passage]:
    """Return the lines to choose from, each once: the evidence with those around it, the end of the log, and what else
    looked remarkable in it."""
    cited = {(one.stream, one.line) for one in stored.verdict.evidence}
    seen: set[Place] = set()
    found: list[Passage] = []

    def choice(place: Place, text: Markup | str) -> LineChoice:
        can = place in cited or place[0] in streams
        return LineChoice(place[1], text, written([place]) if can else "", place in cited)

    for title, runs in _parts(service, stored, streams):
        named = title
        for stream, lines in runs:
            if fresh := [choice((stream, line), text) for line, text in lines if (stream, line) not in seen]:
                seen.update((stream, one.number) for one in fresh)
                found.append(Passage(named, stream, fresh))
                named = ""
    return found


def _parts(service: Service, stored: StoredVerdict, streams: Sequence[str]) -> Iterator[tuple[str, list[_Lines]]]:
    """Yield the parts with their streams, of each some lines as numbers and texts."""
    excerpts = ((proof.stream, excerpt.lines) for proof in proofs(service, stored) for excerpt in proof.excerpts)
    yield "Evidence", [(stream, [(line.number, line.text) for line in lines]) for stream, lines in excerpts]
    end = ending(service, stored, service.records.attempt(stored.job, stored.attempt), streams)
    if not stored.verdict.evidence:
        yield "What the filter rules leave of its end", [(end.stream, [_read(row) for row in end.left.rows])]
    yield f"The end of {end.stream}", [(end.stream, [_read(row) for row in end.rows])]
    yield (
        "Other lines that stood out",
        [(stream, [_read(row) for run in runs for row in run]) for stream, runs in end.kept],
    )


def _read(row: LogRow) -> tuple[int, Markup | str]:
    return row.first, row.text


def chosen(places: Iterable[Place], shown: Sequence[Passage]) -> Chosen:
    """Return lines, of which the first names the failure, as a form has them: those that are shown are checked, others
    are typed."""
    offered = {one.value for passage in shown for one in passage.lines}
    rows = [written([place]) for place in places]
    naming = rows[0] if rows and rows[0] in offered else ""
    return Chosen(frozenset(rows) & offered, "\n".join(row for row in rows if row not in offered), naming)


def named(checked: Sequence[str], naming: str, typed: str, streams: Sequence[str]) -> tuple[Place, ...]:
    """Return the lines that somebody names, each once: first the one that names the failure, then those that are
    checked, then those that are typed.

    `RequestRefused` for rows that name no line, for too many, and for several checked ones of which none is said to
    name the failure.
    """
    boxes = dict.fromkeys(_line(row, streams) for row in checked[: MOST * MOST])
    first = (_line(naming, streams),) if naming else ()
    if len(boxes) > 1 and not first:
        cause = f"there are {len(boxes)}, and none of them is said to name the failure"
        raise RequestRefused(422, "no_naming_line", "the lines", cause, "Choose it beside the lines.")
    found = tuple(dict.fromkeys((*first, *boxes, *lines_of(typed, streams))))
    _require_few(len(found))
    return found


def lines_of(text: str, streams: Sequence[str]) -> tuple[Place, ...]:
    """Return lines of a log as people write them, one a row: `STREAM:NUMBER`, or the number where there is one
    stream."""
    found = tuple(_line(row, streams) for row in text.splitlines() if row.strip())
    _require_few(len(found))
    return found


def written(places: Collection[Place]) -> str:
    """Return lines as people write them, one a row."""
    return "\n".join(f"{stream}:{line}" for stream, line in places)


def _line(row: str, streams: Sequence[str]) -> Place:
    stream, _, number = row.strip().rpartition(":")
    if not stream and len(streams) == 1:
        stream = streams[0]
    if not stream or not number.isascii() or not number.isdecimal() or len(number) > 15 or int(number) < 1:
        next_step = "Write one per row, STREAM:NUMBER, such as gpu-12:126."
        raise RequestRefused(422, "bad_line", f"the line {row.strip()[:80]!a}", "names none", next_step)
    return stream, int(number)


def _require_few(count: int) -> None:
    if count > MOST:
        cause = f"there are {count}, more than {MOST}"
        raise RequestRefused(422, "bad_line", "the lines", cause, "Give the lines that identify the failure.")
