"""The excerpts that prove a verdict: cited lines among their neighbours, each once.

Where nothing is cited: what the filter rules leave of the log, and its end.
"""

from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import quote

import regex

from logdoctor.errors import LogdoctorError
from logdoctor.rules.match import expand
from logdoctor.service import log_page
from logdoctor.service.service import Service
from logdoctor.service.view import StreamView
from logdoctor.store.jobs.records import Attempt, StoredVerdict
from logdoctor.store.names import Key
from logdoctor.text import message_in, natural, origin
from logdoctor.types import Evidence, Verdict
from logdoctor.web.jobs.api import Context, context
from logdoctor.web.jobs.log_rows import LogRow, kept_rows, page_rows

_CITED = 4000  # characters shown of a cited line
_BESIDE = 1000  # and of a neighbour
_QUOTED = 700  # of the decisive line, in the answer
_LEAD = 60  # before the match in it
_LONGEST_MATCH = 500
_GIST = 200  # characters of the decisive line, in a list
_SEARCHED = 0.05  # seconds for repeating a match
_END = 20  # lines of the end of a log
_LEFT = 20  # lines of it that no filter rule removes
_KEPT = 20  # lines that are left of a log
_NUMBER = r"(?<number>[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|nan|inf)"
_METRICS = {
    "progress/loss": regex.compile(rf"(?:\w+[ _.-])?loss[\"']?\s?[:=|]?\s*{_NUMBER}\b", regex.IGNORECASE),
    "progress/stall": regex.compile(rf"\b(?:iteration|iter|step)s?[\"']?\s?[:=|]?\s*{_NUMBER}\b", regex.IGNORECASE),
}
"""Finds the number in a line cited as a reading, by the name under which it is cited."""
_STRUCTURE = "structure/"  # before the name of an error, where a traceback is cited


class ProofLine(NamedTuple):
    """A line with its anchor; `cited` when it is evidence."""

    number: int
    text: str
    anchor: str
    cited: Evidence | None


class ProofExcerpt(NamedTuple):
    """A run of lines of one stream, and the URL of the same raw lines."""

    lines: list[ProofLine]
    raw: str


class Viewer(NamedTuple):
    """Where to read the log of an attempt; `streams` are those with stored bytes."""

    job: str
    attempt: int
    streams: Sequence[str]

    def has(self, stream: str) -> bool:
        """Return whether bytes of a stream are stored."""
        return stream in self.streams

    def url(self, stream: str, line: int) -> str:
        """Return the URL of a line's page."""
        return f"{self.page(stream)}?line={line}#L{line}"

    def page(self, stream: str) -> str:
        """Return the URL of a stream's page."""
        return f"/jobs/{_part(self.job)}/attempts/{self.attempt}/streams/{_part(stream)}"


class DecisiveQuote(NamedTuple):
    """The part of a line that decided: what a rule `matched`, with its surroundings."""

    number: int
    anchor: str
    before: str
    matched: str
    after: str


class LeftRows(NamedTuple):
    """The end of a stream after the filter rules. Of the lines from number `first` on, so many `lines` are left; `rows`
    are the last of them."""

    first: int
    lines: int
    rows: list[LogRow]

    @property
    def numbers(self) -> set[int]:
        """Return the numbers of the shown lines."""
        return {row.first for row in self.rows}


class Ending(NamedTuple):
    """The end of a log without citations, of the stream that ended worst. It has the number of the `last` line (0 when
    it is gone), the last lines, those `left` by the filter rules, and lines of all streams that outlive the log, in
    runs."""

    stream: str
    last: int
    rows: list[LogRow]
    left: LeftRows
    kept: list[tuple[str, list[list[LogRow]]]]


class Proof(NamedTuple):
    """The citations of a verdict in one stream. Without the raw log (`deleted`) they come from the verdict."""

    stream: str
    excerpts: list[ProofExcerpt]
    deleted: bool


def proofs(service: Service, stored: StoredVerdict) -> list[Proof]:
    """Return the cited lines by stream, first the stream with the decisive line."""
    by_stream: dict[str, list[Context]] = {}
    for one in context(service, stored):
        by_stream.setdefault(one.evidence.stream, []).append(one)
    return [
        _proof(service, Key(stored.job, stored.attempt, stream), contexts, f"s{number}-" if number else "")
        for number, (stream, contexts) in enumerate(by_stream.items())
    ]


def decisive(service: Service, stored: StoredVerdict, proofs: Sequence[Proof]) -> DecisiveQuote | None:
    """Return the decisive line, from a little before its match; None without evidence."""
    if not stored.verdict.evidence or not proofs:
        return None
    first = stored.verdict.evidence[0]
    lines = (line for excerpt in proofs[0].excerpts for line in excerpt.lines if line.cited)
    line = next((line for line in lines if line.number == first.line), None)
    if line is None:
        return None
    begin, end = _match(_patterns(service, first.rule), line.text)
    if end == begin:
        begin, end = named_part(stored.verdict, first, line.text)
    return DecisiveQuote(line.number, line.anchor, *quoted(line.text, begin, end))


def gist(verdict: Verdict) -> str:
    """Return the decisive line for a list, without marks before its message; "" without evidence. It begins near the
    match where that is far in the line; of a JSON record it is the message."""
    if not verdict.evidence:
        return ""
    first = verdict.evidence[0]
    text, (begin, end) = first.quote, named_part(verdict, first, first.quote)
    inside = message_in(text)
    if (found := named_part(verdict, first, inside)) != (0, 0) or not end:
        text, (begin, end) = inside, found
    message = _message(text)
    before, matched, after = quoted(text[message:], begin - message, end - message, _GIST, 0)
    return f"{before}{matched}{after}".strip() or text.strip()[:_GIST]


def quoted(text: str, begin: int, end: int, most: int = _QUOTED, lead: int = _LEAD) -> tuple[str, str, str]:
    """Return the text before a place in a line, the place, and the text after. They have about `most` characters, and
    start at the beginning of the line, or `lead` characters before a place far in it. Without a place (`end` <=
    `begin`) they start at the message, after stamps and ranks."""
    if end <= begin:
        begin = end = start = _message(text)
    else:
        start = begin - lead if begin > 2 * _LEAD else 0
    before, after = text[start:begin].lstrip(), text[end : max(start + most, end + _LEAD)]
    more = "…" if end + len(after) < len(text) else ""
    return f"{'…' * (start > 0)}{before}", text[begin:end], f"{after}{more}"


def named_part(verdict: Verdict, evidence: Evidence, text: str) -> tuple[int, int]:
    """Locate the citation in a line without a rule; (0, 0) if not found. It is the error of a traceback, or the number
    that was read."""
    if evidence.rule.startswith(_STRUCTURE):
        name = evidence.rule.removeprefix(_STRUCTURE)
        begin = text.find(name)
        return (begin, begin + len(name)) if name and begin >= 0 else (0, 0)
    metric = _METRICS.get(evidence.rule)
    found = list(metric.finditer(text)) if metric else []
    if not found:
        return 0, 0
    read = {value for one in verdict.progress.curve if one.line == evidence.line for value in (one.loss, one.step)}
    best = next((one for one in found if float(one["number"]) in read), found[0])
    return best.span()


def _patterns(service: Service, rule: str) -> Sequence[str]:
    """Return the patterns of a diagnosis rule, shipped or learned; () for an unknown id."""
    known = next((one for one in service.scanner.book.diagnoses if one.id == rule), None)
    if known is not None:
        return known.when.any
    learned = service.rules.some([rule]) if rule else {}
    return [one.pattern for one in learned.values()]


def _match(patterns: Sequence[str], text: str) -> tuple[int, int]:
    """Locate the first pattern that matches a line; (0, 0) if none does quickly."""
    for pattern in patterns:
        try:
            found = regex.search(expand(pattern), text, timeout=_SEARCHED)
        except (regex.error, TimeoutError):
            continue
        if found and found.end() > found.start():
            begin = found.start() if not pattern.startswith("^") else min(_message(text), found.end() - 1)
            return begin, min(found.end(), begin + _LONGEST_MATCH)
    return 0, 0


def _message(text: str) -> int:
    """Return where the message of a line begins, after its prefix."""
    return len(text) - len(origin(text).message.lstrip())


def ending(service: Service, stored: StoredVerdict, attempt: Attempt | None, streams: Sequence[str]) -> Ending:
    """Return the end of an attempt's log, and the lines that outlive it."""
    past = service.casework.confirmed.kept(stored.job, stored.attempt)
    stream = _ended_worst(attempt, streams)
    count, rows, left = _last_rows(service, stored, stream) if stream else (0, [], LeftRows(0, 0, []))
    shown = {(stream, row.first) for row in rows} | {(stream, number) for number in left.numbers}
    lines = [one for one in (past.lines if past else ()) if (one.stream, one.line) not in shown][-_KEPT:]
    named = sorted({one.stream for one in lines}, key=natural)
    kept = [(name, kept_rows(Key(stored.job, stored.attempt, name), lines, None)) for name in named]
    return Ending(stream, count, rows, left, kept)


def _last_rows(service: Service, stored: StoredVerdict, stream: str) -> tuple[int, list[LogRow], LeftRows]:
    """Return a stream's line count, its last lines, and its end after the filter rules. Nothing when it cannot be
    read."""
    key = Key(stored.job, stored.attempt, stream)
    try:
        view = service.logs.view(key)
        count = view.count()
        rows = page_rows(log_page.raw(view, count + 1, _END, 0), key, stored, None) if count else []
        return count, rows, _left(service, key, view, count)
    except LogdoctorError:  # deleted meanwhile, or damaged
        return 0, [], LeftRows(0, 0, [])


def _left(service: Service, key: Key, view: StreamView, count: int) -> LeftRows:
    """Return a stream's end after the filter rules, as far as one page reaches."""
    if not count:
        return LeftRows(0, 0, [])
    found = log_page.folded(view, service.casework.rules_for(key.job), count + 1, log_page.ROWS, 0)
    lines = [row for row in found.rows if row.line is not None]
    return LeftRows(found.first, len(lines), page_rows(log_page.LogPage(lines[-_LEFT:], found.full), key, None, None))


def _ended_worst(attempt: Attempt | None, streams: Sequence[str]) -> str:
    """Return the stream whose process failed first, else the first stream; "" without any."""
    ends = [one for one in (attempt.ends if attempt else ()) if one.stream in streams and (one.exit_code or one.signal)]
    if ends:
        return min(ends, key=lambda one: one.at).stream
    return min(streams, key=natural, default="")


def _proof(service: Service, key: Key, contexts: list[Context], mark: str) -> Proof:
    """Return the proof of one stream; its anchors begin with `mark`."""
    cited = {one.evidence.line: one.evidence for one in reversed(contexts)}
    texts = {number: text for one in contexts for number, text in one.lines}
    runs: list[list[ProofLine]] = []
    for number in sorted(texts):
        line = _line(number, texts[number], f"{mark}L{number}", cited.get(number))
        if runs and runs[-1][-1].number == number - 1:
            runs[-1].append(line)
        else:
            runs.append([line])
    return Proof(key.stream, [ProofExcerpt(run, _raw(key, run)) for run in runs], not service.has_stream(key))


def _line(number: int, text: str, anchor: str, cited: Evidence | None) -> ProofLine:
    if cited is None:
        return ProofLine(number, text[:_BESIDE] + "…" * (len(text) > _BESIDE), anchor, None)
    if cited.quote not in text[:_CITED]:  # from far inside a very long line
        text = f"…{cited.quote}"
    return ProofLine(number, text, anchor, cited)


def _raw(key: Key, run: list[ProofLine]) -> str:
    lines = f"{run[0].number}-{run[-1].number}"
    return f"/v1/jobs/{_part(key.job)}/attempts/{key.attempt}/streams/{_part(key.stream)}/log?line={lines}"


def _part(name: str) -> str:
    return quote(name, safe="")
