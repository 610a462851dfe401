"""The lines of a log for a page: harmless text, citations, search results and omissions."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote, urlencode

import regex
from markupsafe import Markup, escape

from logdoctor.service.log_page import BESIDE, LogPage
from logdoctor.service.service import Service
from logdoctor.service.sifting import Sifted
from logdoctor.service.view import RawLine
from logdoctor.store.jobs.records import StoredVerdict
from logdoctor.store.learning.confirmed import Kept
from logdoctor.store.log.table import Standing
from logdoctor.store.names import Key
from logdoctor.text import decode, harmless, last_state, natural
from logdoctor.types import Evidence

_WIDEST = 4000  # characters of a requested or cited line


class LogRow(NamedTuple):
    """One line, or many that rules remove: `folded`, or the head of `opened` ones.

    `rules` count the removed lines; a line `taken` by the same rule as the one before it, or by the only rule of an
    opened fold, has none. `notes` say what is not shown of a line, `bytes_url` leads to all of it. `cited` is the rule
    of the evidence, "" without one.
    """

    first: int
    last: int
    text: Markup | str
    cited: str | None = None
    asked: bool = False
    hit: bool = False
    rules: tuple[tuple[str, int], ...] = ()
    folded: bool = False
    opened: bool = False
    taken: bool = False
    notes: tuple[str, ...] = ()
    bytes_url: str = ""


class StreamLink(NamedTuple):
    """A stream of the attempt: its size, as far as known, and its cited lines."""

    name: str
    url: str
    size: int
    lines: int
    cited: int
    here: bool


def log_url(name: Key, query: Mapping[str, object]) -> str:
    """Return the URL of a stream's page; None values are left out."""
    given = urlencode({word: value for word, value in query.items() if value is not None})
    path = f"/jobs/{quote(name.job, safe='')}/attempts/{name.attempt}/streams/{quote(name.stream, safe='')}"
    return f"{path}?{given}" if given else path


def streams_of(service: Service, name: Key, stored: StoredVerdict | None) -> list[StreamLink]:
    """Return all streams of the attempt, in natural order."""
    found = []
    standings = service.logs.streams(name.job, name.attempt)
    for stream in sorted({*standings, name.stream}, key=natural):
        size, lines = standings.get(stream, Standing())[:2]
        cited = sum(one.stream == stream for one in stored.verdict.evidence) if stored else 0
        url = log_url(name._replace(stream=stream), {})
        found.append(StreamLink(stream, url, size, lines, cited, stream == name.stream))
    return found


def page_rows(
    found: LogPage, name: Key, stored: StoredVerdict | None, asked: int | None, opened: tuple[int, int] = (0, 0)
) -> list[LogRow]:
    """Return the rows of a page, among them the requested line, or its fold. An `opened` fold has a head, and none of
    its lines counts as requested."""
    cited = _evidence(name, stored)
    rows: list[LogRow] = []
    head = _head(found, opened)
    rule: tuple[tuple[str, int], ...] = ()
    for row in found.rows:
        here = asked is not None and row.first <= asked <= row.last
        if head is not None and head.first <= row.first <= head.last:
            here = False
            if row.first == head.first:
                rows.append(head)
                rule = head.rules if len(head.rules) == 1 else ()
        if row.line is None:
            rows.append(LogRow(row.first, row.last, "", asked=here, rules=row.rules, folded=True))
        else:
            made = _row(row.line, name, cited.get(row.first), _WIDEST if here else BESIDE)
            fresh = not rows or not (rows[-1].taken or rows[-1].opened) or _ids(row.rules) != _ids(rule)
            rows.append(made._replace(asked=here, rules=row.rules if fresh else (), taken=bool(row.rules)))
            rule = row.rules
    return rows


def _head(found: LogPage, opened: tuple[int, int]) -> LogRow | None:
    """Return the head of lines that are shown although rules remove them; None without any."""
    lines = [row for row in found.rows if row.rules and row.line and opened[0] <= row.first <= opened[1]]
    if not lines:
        return None
    counts = Counter(id for row in lines for id in _ids(row.rules))
    rules = tuple(sorted(counts.items(), key=lambda rule: (-rule[1], rule[0])))
    return LogRow(lines[0].first, lines[-1].last, "", rules=rules, opened=True)


def _ids(rules: Iterable[tuple[str, int]]) -> list[str]:
    return [id for id, _ in rules]


def sifted_runs(
    found: Sifted, name: Key, stored: StoredVerdict | None, words: str, ignore_case: bool
) -> list[list[LogRow]]:
    """Return the matching lines with their context, in runs of consecutive lines."""
    cited, hits = _evidence(name, stored), set(found.hits)
    rows = []
    for line in found.lines:
        row = _row(line, name, cited.get(line.number))
        if line.number in hits:
            row = row._replace(hit=True, text=_marked(str(row.text), words, ignore_case))
        rows.append(row)
    return _runs(rows)


def kept_rows(name: Key, kept: Iterable[Kept], stored: StoredVerdict | None) -> list[list[LogRow]]:
    """Return the lines that outlive a stream's log: recorded ones, and evidence with neighbours."""
    cited = _evidence(name, stored)
    texts = {one.line: one.text for one in kept if one.stream == name.stream}
    for one in cited.values():
        first = one.line - len(one.before)
        texts |= dict(enumerate((*one.before, one.quote, *one.after), first))
    rows = []
    for number, text in sorted(texts.items()):
        proof = cited.get(number)
        rows.append(LogRow(number, number, text[:_WIDEST], None if proof is None else proof.rule or ""))
    return _runs(rows)


def _runs(rows: Sequence[LogRow]) -> list[list[LogRow]]:
    runs: list[list[LogRow]] = []
    for row in rows:
        if runs and runs[-1][-1].last == row.first - 1:
            runs[-1].append(row)
        else:
            runs.append([row])
    return runs


def _evidence(name: Key, stored: StoredVerdict | None) -> dict[int, Evidence]:
    if stored is None:
        return {}
    return {one.line: one for one in reversed(stored.verdict.evidence) if one.stream == name.stream}


def _row(line: RawLine, name: Key, cited: Evidence | None, widest: int = BESIDE) -> LogRow:
    """Return a readable row: a redrawn line's last state, a cited line's quote."""
    widest = widest if cited is None else _WIDEST
    head, tail = decode(line.head), decode(line.tail)
    shows_end = "\r" in tail.rstrip("\r")
    text = last_state(tail) if shows_end else head
    cut = line.size > len(line.head) or len(text) > widest
    overdrawn = sum(bool(state.strip()) for state in head.rstrip("\r").split("\r")[:-1])
    notes = []
    if overdrawn or shows_end:
        times = "once" if overdrawn == 1 else f"{overdrawn:,} times"
        notes.append("redrawn in its place; this is its last state" if cut else f"redrawn {times}")
    if cut:
        notes.append(f"{'the end' if shows_end else 'a part'} of {_size(line.size)}")
    if cited is not None and cited.quote not in text[:widest]:
        text = f"…{cited.quote}"  # from far inside a very long line
    url = f"/v1{log_url(name, {})}/log?line={line.number}" if notes else ""
    mark = None if cited is None else cited.rule or ""
    return LogRow(
        line.number, line.number, text[:widest] + "…" * (len(text) > widest), mark, notes=tuple(notes), bytes_url=url
    )


def _size(number: float) -> str:
    return f"{number / 1e6:,.1f} MB" if number >= 1e6 else f"{number:,.0f} bytes"


def _marked(text: str, words: str, ignore_case: bool) -> Markup | str:
    """Return harmless text with the searched words marked."""
    if not words:
        return text
    plain = harmless(text, _WIDEST)
    parts = regex.split(f"({regex.escape(words)})", plain, flags=regex.IGNORECASE if ignore_case else 0)
    made = (Markup("<mark>{}</mark>").format(part) if place % 2 else escape(part) for place, part in enumerate(parts))
    return Markup("").join(made)
