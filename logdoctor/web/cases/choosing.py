"""The lines that prove a failure in a form: checked if shown, else typed."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from markupsafe import Markup

from logdoctor.errors import RequestRefused
from logdoctor.service.service import Service
from logdoctor.store.jobs.records import StoredVerdict
from logdoctor.web.jobs.excerpts import ending, proofs
from logdoctor.web.jobs.log_rows import LogRow

MOST = 20
"""Most lines that prove a failure."""

Place = tuple[str, int]
"""A line: its stream and its number there."""

_Lines = tuple[str, list[tuple[int, Markup | str]]]


class LineChoice(NamedTuple):
    """A shown line. Its `value` is what a checked box sends, "" without a box because its log is gone."""

    number: int
    text: Markup | str
    value: str
    cited: bool


class Passage(NamedTuple):
    """Lines of a stream in order. The first passage of a part has its title."""

    title: str
    stream: str
    lines: list[LineChoice]


class Chosen(NamedTuple):
    """The lines in a form: `checked` ones as their boxes send them, and `typed` ones. The checked one that names the
    failure is `naming`, "" for none."""

    checked: frozenset[str]
    typed: str
    naming: str = ""


def passages(service: Service, stored: StoredVerdict, streams: Sequence[str]) -> list[Passage]:
    """Return the lines to choose from, each once. They are the evidence with its context, the end of the log, and other
    remarkable lines."""
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
    """Yield each part with its streams and their lines, as numbers and texts."""
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
    """Return lines as a form has them: shown ones are checked, others are typed. The first names the failure."""
    offered = {one.value for passage in shown for one in passage.lines}
    rows = [written([place]) for place in places]
    naming = rows[0] if rows and rows[0] in offered else ""
    return Chosen(frozenset(rows) & offered, "\n".join(row for row in rows if row not in offered), naming)


def named(checked: Sequence[str], naming: str, typed: str, streams: Sequence[str]) -> tuple[Place, ...]:
    """Return the lines of a form, each once: the naming one, checked ones, typed ones.

    `RequestRefused` for rows that name no line, for too many, and for several checked ones without one that names the
    failure.
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
    """Parse typed lines, one per row: `STREAM:NUMBER`, or the number where there is one stream."""
    found = tuple(_line(row, streams) for row in text.splitlines() if row.strip())
    _require_few(len(found))
    return found


def written(places: Collection[Place]) -> str:
    """Format lines, one per row."""
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
