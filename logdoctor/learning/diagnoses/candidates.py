"""Selects the lines that name a confirmed failure, and gets patterns written for them."""

from collections.abc import Sequence
from typing import NamedTuple

from logdoctor import taxonomy
from logdoctor.diagnose.episodes import episodes
from logdoctor.diagnose.taught import nameable
from logdoctor.learning.diagnoses.confirming import naming
from logdoctor.learning.diagnoses.guards import DiagnosisCandidate
from logdoctor.learning.diagnoses.writer import Task, Writer
from logdoctor.llm.masking import mask
from logdoctor.rules.load import RuleBook
from logdoctor.store.learning.confirmed import Confirmation
from logdoctor.text import harmless, origin, shown
from logdoctor.types import Line, Record

_MOST_LINES = 4  # of an attempt for which patterns are written
_AROUND = 6  # lines before and after, for a writer
_OTHERS = 20  # lines of other reasons, for a writer
_EXAMPLES = 4
_CASES = 1000  # newest cases that are considered


class _Named(NamedTuple):
    """A line of a stream that may name a failure."""

    stream: str
    line: Line

    @property
    def marked(self) -> bool:
        """Return whether it looks like trouble by itself."""
        return self.line.strong or self.line.weak or self.line.noticed or bool(self.line.rules)


def written(
    confirmation: Confirmation,
    records: Sequence[Record],
    book: RuleBook,
    cases: Sequence[Confirmation],
    writer: Writer,
) -> tuple[list[DiagnosisCandidate], dict[str, str]]:
    """Return patterns for the lines that name the failure, and the author of each. A writer may see the `cases`."""
    found: list[DiagnosisCandidate] = []
    by: dict[str, str] = {}
    for named in _lines(confirmation, records, book):
        for one in writer.write(_task(confirmation, records, named, cases)):
            if one.pattern not in by:
                by[one.pattern] = one.by
                title = harmless(mask(one.title), 200) or confirmation.reason
                found.append(DiagnosisCandidate(one.pattern, title, named.stream, named.line.number, named.line.text))
    return found, by


def _lines(confirmation: Confirmation, records: Sequence[Record], book: RuleBook) -> list[_Named]:
    """Return the cited lines and the line that names their episode; without citations the most suspicious line. A
    routine line never names an anomaly, which is recognised by what is missing."""
    lines = {(record.stream, line.number): line for record in records for line in nameable(record)}
    places = [(one.stream, one.line) for one in confirmation.evidence]
    named = naming(episodes(records, book), records, places)
    if named is not None and (not places or any(line in named.lines for _, line in places)):
        stream = records[named.stream].stream
        frames = [place for place in places if place[0] == stream and _is_frame(lines.get(place))]
        places = [place for place in places if place not in frames] + [(stream, named.line), *frames]
    found = [_Named(place[0], lines[place]) for place in dict.fromkeys(places) if place in lines]
    found = [one for one in found if one.marked or taxonomy.REASONS[confirmation.reason].category != "Anomaly"]
    return sorted(found, key=lambda one: not one.marked)[:_MOST_LINES]


def _task(confirmation: Confirmation, records: Sequence[Record], named: _Named, cases: Sequence[Confirmation]) -> Task:
    lines = next(nameable(record) for record in records if record.stream == named.stream)
    around = [line.text for line in lines if 0 < abs(line.number - named.line.number) <= _AROUND]
    others, examples = [], []
    for case in cases[-_CASES:]:
        if (case.job, case.attempt) == (confirmation.job, confirmation.attempt) or not case.title:
            continue
        if case.reason != confirmation.reason:
            others.append(case.title)
        elif set(case.digests[:1]) & set(confirmation.digests[:1]):
            examples.append(case.title)
    return Task(
        confirmation.job,
        confirmation.attempt,
        named.line.text,
        tuple(examples[-_EXAMPLES:]),
        tuple(around),
        tuple(others[-_OTHERS:]),
        confirmation.reason,
        named.marked,
    )


def _is_frame(line: Line | None) -> bool:
    """Return whether a line is a traceback's frame, which says less than the last line."""
    return line is not None and origin(shown(line.text)).message[:1] in (" ", "\t")
