"""The proof as it is read: the cited lines of each stream among their neighbours, each line once."""

from typing import NamedTuple
from urllib.parse import quote

from logdoctor.live.service import Service
from logdoctor.store.names import Key
from logdoctor.store.records import StoredVerdict
from logdoctor.types import Evidence
from logdoctor.web.verdicts import Context, context

_CITED = 4000  # characters that are shown of a cited line
_BESIDE = 1000  # and of one beside it


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
    """Where the log of an attempt is read, as far as it is still there."""

    job: str
    attempt: int
    service: Service

    def has(self, stream: str) -> bool:
        """Whether bytes of a stream are kept."""
        return self.service.has_stream(Key(self.job, self.attempt, stream))

    def url(self, stream: str, line: int) -> str:
        """The page of a stream at a line."""
        return f"/jobs/{_part(self.job)}/attempts/{self.attempt}/streams/{_part(stream)}?line={line}#L{line}"


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
