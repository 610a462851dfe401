"""Check whether learned filter rules ever match a line that names the cause of a failure."""

import time
from pathlib import Path

import msgspec
import numpy as np

from eval.labels import FailureCase, read_corpus
from logdoctor import pipeline
from logdoctor.compress.cut import newlines_of
from logdoctor.compress.filter import compress
from logdoctor.diagnose.decide import diagnose
from logdoctor.rules.scanner import Scanner
from logdoctor.rules.schema import FilterRule
from logdoctor.text import decode
from logdoctor.types import Segment

_QUOTED_CATEGORY = "Anomaly"  # as in corpus_score: its evidence may be metric lines, which the progress record quotes
_LIMITS = pipeline.ReadLimits(1 << 20, 1, 1 << 30, 1000)


class CaughtLine(msgspec.Struct, frozen=True):
    """An evidence line that a learned rule matched: which rule, where, and whether the progress record quotes it."""

    kind: str
    rule: str
    status: str
    file: str
    line: int
    text: str
    citable: bool


class CauseLines:
    """Logs of failed jobs, their evidence lines, and which of these learned rules have matched at any moment.

    Evidence is what the labels name and, with a `judge`, what its verdicts cite.
    """

    def __init__(self, *folders: Path, judge: Scanner | None = None) -> None:
        self._lines: list[tuple[int, int, Path, FailureCase]] = []
        """Each evidence line: its index in all logs joined, its number in its own log, that log and its label."""
        parts: list[bytes] = []
        first = 0
        for path, case in (labelled for folder in folders for labelled in read_corpus(folder)):
            data = path.read_bytes()
            parts.append(data if data.endswith(b"\n") else data + b"\n")
            if isinstance(case, FailureCase):
                cited = {*case.evidence_lines, *(_cited(path, judge) if judge else ())}
                self._lines += [(first + number - 1, number, path, case) for number in sorted(cited)]
            first += parts[-1].count(b"\n")
        joined = b"".join(parts)
        self._segment = Segment("failures", joined, 0, 1, newlines_of(joined))
        self._last: dict[str, Scanner] = {}
        self.caught: dict[tuple[str, str, str, int], CaughtLine] = {}
        self.moments, self.seconds = 0, 0.0

    def texts(self) -> list[str]:
        """Return the evidence lines."""
        ends = self._segment.newlines
        starts = np.concatenate(([0], ends[:-1] + 1))
        return [decode(bytes(self._segment.data[starts[place] : ends[place]])) for place, *_ in self._lines]

    def look(self, kind: str, scanner: Scanner) -> None:
        """Try a kind's rules on all logs, unless they are unchanged since the last time.

        All logs are scanned at once: which rules hit a line does not depend on its neighbours.
        """
        if self._last.get(kind) is scanner:
            return
        begin = time.perf_counter()
        self._last[kind] = scanner
        self.moments += 1
        residual = compress(self._segment, scanner)
        first = scanner.book.shipped_filters
        for status, column in (("active", residual.scan.owner), ("shadow", residual.scan.shadow)):
            for place, number, path, case in self._lines:
                if column[place] >= first:
                    rule = scanner.book.filters[int(column[place])]
                    text = decode(residual.raw(place))[:400]
                    citable = case.category == _QUOTED_CATEGORY and _is_citable(path, number, rule, scanner)
                    self._catch(CaughtLine(kind, rule.id, status, case.file, number, text, citable))
        self.seconds += time.perf_counter() - begin

    def _catch(self, caught: CaughtLine) -> None:
        """Record a match; a moment at which the line was not citable outweighs the others."""
        key = (caught.rule, caught.status, caught.file, caught.line)
        if key not in self.caught or not caught.citable:
            self.caught[key] = caught


def _cited(path: Path, judge: Scanner) -> list[int]:
    """Return the lines that a log's verdict cites, except those of its progress."""
    verdict = diagnose(pipeline.records([pipeline.LogFile("main", path)], judge, _LIMITS), judge.book)
    return [one.line for one in verdict.evidence if not one.rule.startswith("progress/")]


def _is_citable(path: Path, number: int, rule: FilterRule, scanner: Scanner) -> bool:
    """Return whether the progress record quotes a line that a rule removes. It may be a metric line with a loss, or the
    first or last of progress. A rule that is not active counts as citable if it reads metrics."""
    if rule.status != "active":
        return bool(rule.metrics)
    record = pipeline.records([pipeline.LogFile("main", path)], scanner, _LIMITS)[0]
    milestones = {milestone.line for span in record.spans.values() for milestone in span}
    return number in milestones or any(number in part.lines for part in record.texts)
