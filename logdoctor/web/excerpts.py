"""The proof as it is read: the cited lines of each stream among their neighbours, each line once; and the end of the
log, where nothing is cited."""

from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import quote

import regex

from logdoctor.errors import LogdoctorError
from logdoctor.live import log_page
from logdoctor.live.service import Service
from logdoctor.rules.match import expand
from logdoctor.store.names import Key
from logdoctor.store.records import Attempt, StoredVerdict
from logdoctor.text import natural, origin
from logdoctor.types import Evidence
from logdoctor.web.log_rows import Row, kept_rows, page_rows
from logdoctor.web.verdicts import Context, context

_CITED = 4000  # characters that are shown of a cited line
_BESIDE = 1000  # and of one beside it
_QUOTED = 700  # of the line that decided, in the answer
_LEAD = 60  # before what matched in it
_LONGEST_MATCH = 500
_SEARCHED = 0.05  # seconds in which a match is looked for again
_END = 20  # lines of the end of a log
_KEPT = 20  # lines that are left of one


class Line(NamedTuple):
    """A line with its anchor; `cited` when it is evidence."""

    number: int
    text: str
    anchor: str
    cited: Evidence | None


class Excerpt(NamedTuple):
    """A run of lines of one stream, and the URL of the same lines as they were sent."""

    lines: list[Line]
    raw: str


class Viewer(NamedTuple):
    """Where the log of an attempt is read, as far as it is still there: its `streams` are those of which bytes are
    kept."""

    job: str
    attempt: int
    streams: Sequence[str]

    def has(self, stream: str) -> bool:
        """Whether bytes of a stream are kept."""
        return stream in self.streams

    def url(self, stream: str, line: int) -> str:
        """The page of a stream at a line."""
        return f"{self.page(stream)}?line={line}#L{line}"

    def page(self, stream: str) -> str:
        """The page of a stream."""
        return f"/jobs/{_part(self.job)}/attempts/{self.attempt}/streams/{_part(stream)}"


class Quote(NamedTuple):
    """The part of a line that shows why it decided: what a rule `matched`, and what stands around it."""

    number: int
    anchor: str
    before: str
    matched: str
    after: str


class Ending(NamedTuple):
    """How a log ends where nothing of it is cited: the last lines of the stream that ended worst, the number of the
    `last` one (0 when it is gone), and lines of all streams that outlive the log, in runs."""

    stream: str
    last: int
    rows: list[Row]
    kept: list[tuple[str, list[list[Row]]]]


class Proof(NamedTuple):
    """What a verdict cites of one stream. Without the raw log (`deleted`) the lines are those the verdict kept."""

    stream: str
    excerpts: list[Excerpt]
    deleted: bool


def proofs(service: Service, stored: StoredVerdict) -> list[Proof]:
    """The cited lines by stream; first the stream with the line that decided."""
    by_stream: dict[str, list[Context]] = {}
    for one in context(service, stored):
        by_stream.setdefault(one.evidence.stream, []).append(one)
    return [
        _proof(service, Key(stored.job, stored.attempt, stream), contexts, f"s{number}-" if number else "")
        for number, (stream, contexts) in enumerate(by_stream.items())
    ]


def decisive(service: Service, stored: StoredVerdict, proofs: Sequence[Proof]) -> Quote | None:
    """The line that decided, from a little before what its rule matches; None when nothing is cited."""
    if not stored.verdict.evidence or not proofs:
        return None
    first = stored.verdict.evidence[0]
    lines = (line for excerpt in proofs[0].excerpts for line in excerpt.lines if line.cited)
    line = next((line for line in lines if line.number == first.line), None)
    if line is None:
        return None
    begin, end = _match(_patterns(service, first.rule), line.text)
    if end == begin:  # what no rule names begins behind stamps and ranks
        begin = end = start = _message(line.text)
    else:
        start = begin - _LEAD if begin > 2 * _LEAD else 0
    before, after = line.text[start:begin].lstrip(), line.text[end : max(start + _QUOTED, end + _LEAD)]
    more = "…" if end + len(after) < len(line.text) else ""
    return Quote(line.number, line.anchor, f"{'…' * (start > 0)}{before}", line.text[begin:end], f"{after}{more}")


def _patterns(service: Service, rule: str) -> Sequence[str]:
    """The patterns of a diagnosis rule, shipped or learned; none for an id that is of none."""
    known = next((one for one in service.scanner.book.diagnoses if one.id == rule), None)
    if known is not None:
        return known.when.any
    learned = service.rules.some([rule]) if rule else {}
    return [one.pattern for one in learned.values()]


def _match(patterns: Sequence[str], text: str) -> tuple[int, int]:
    """Where the first pattern that is found stands in a line; (0, 0) when none is found, or not quickly."""
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
    """Where the message of a line begins, behind what stamps it."""
    return len(text) - len(origin(text).message.lstrip())


def ending(service: Service, stored: StoredVerdict, attempt: Attempt | None, streams: Sequence[str]) -> Ending:
    """How the log of an attempt ends, and what is left of it."""
    past = service.casework.confirmed.kept(stored.job, stored.attempt)
    stream = _ended_worst(attempt, streams)
    count, rows = _last_rows(service, stored, stream) if stream else (0, [])
    shown = {(stream, row.first) for row in rows}
    lines = [one for one in (past.lines if past else ()) if (one.stream, one.line) not in shown][-_KEPT:]
    named = sorted({one.stream for one in lines}, key=natural)
    kept = [(name, kept_rows(Key(stored.job, stored.attempt, name), lines, None)) for name in named]
    return Ending(stream, count, rows, kept)


def _last_rows(service: Service, stored: StoredVerdict, stream: str) -> tuple[int, list[Row]]:
    """How many lines a stream has, and the last of them; (0, none) when it cannot be read."""
    key = Key(stored.job, stored.attempt, stream)
    try:
        view = service.intake.view(key)
        count = view.count()
        return count, page_rows(log_page.raw(view, count + 1, _END, 0), key, stored, None) if count else []
    except LogdoctorError:  # it was deleted meanwhile, or is damaged
        return 0, []


def _ended_worst(attempt: Attempt | None, streams: Sequence[str]) -> str:
    """The stream whose process failed first, else the first one; "" when there is none."""
    ends = [one for one in (attempt.ends if attempt else ()) if one.stream in streams and (one.exit_code or one.signal)]
    if ends:
        return min(ends, key=lambda one: one.at).stream
    return min(streams, key=natural, default="")


def _proof(service: Service, key: Key, contexts: list[Context], mark: str) -> Proof:
    """The proof of one stream, whose anchors begin with a mark."""
    cited = {one.evidence.line: one.evidence for one in reversed(contexts)}
    texts = {number: text for one in contexts for number, text in one.lines}
    runs: list[list[Line]] = []
    for number in sorted(texts):
        line = _line(number, texts[number], f"{mark}L{number}", cited.get(number))
        if runs and runs[-1][-1].number == number - 1:
            runs[-1].append(line)
        else:
            runs.append([line])
    return Proof(key.stream, [Excerpt(run, _raw(key, run)) for run in runs], not service.has_stream(key))


def _line(number: int, text: str, anchor: str, cited: Evidence | None) -> Line:
    if cited is None:
        return Line(number, text[:_BESIDE] + "…" * (len(text) > _BESIDE), anchor, None)
    if cited.quote not in text[:_CITED]:  # it is from far inside a very long line
        text = f"…{cited.quote}"
    return Line(number, text, anchor, cited)


def _raw(key: Key, run: list[Line]) -> str:
    lines = f"{run[0].number}-{run[-1].number}"
    return f"/v1/jobs/{_part(key.job)}/attempts/{key.attempt}/streams/{_part(key.stream)}/log?line={lines}"


def _part(name: str) -> str:
    return quote(name, safe="")
