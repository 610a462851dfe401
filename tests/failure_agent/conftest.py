"""Attempts that no rule explains, as they are asked about."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from logdoctor import pipeline
from logdoctor.compress.whole_log import MatchedLines
from logdoctor.diagnose.decide import diagnose
from logdoctor.failure_agent.question import Log, Question
from logdoctor.pipeline import LogFile, ReadLimits
from logdoctor.rules.scanner import Scanner
from logdoctor.types import Record

Ask = Callable[..., Question]
"""`ask(log)`, `ask({"stream": log})`, or `ask(records=[...])`: the question about an attempt."""


class WholeLog:
    """The lines of an attempt, as they were written."""

    def __init__(self, streams: Mapping[str, str]) -> None:
        self.lines = {name: text.split("\n") for name, text in streams.items()}
        self.asked: list[str] = []

    def streams(self) -> list[str]:
        return list(self.lines)

    def window(self, stream: str, first: int, last: int) -> list[tuple[int, str]]:
        lines = self.lines.get(stream, [])
        return [(number, lines[number - 1]) for number in range(first, last + 1) if number <= len(lines)]

    def grep(self, pattern: str, stream: str | None, most: int) -> MatchedLines:
        self.asked.append(pattern)
        found = [
            (name, number, line)
            for name, lines in self.lines.items()
            for number, line in enumerate(lines, 1)
            if re.search(pattern, line) and stream in (None, name)
        ]
        half = most // 2
        return MatchedLines(found if len(found) <= most else [*found[:half], *found[half - most :]], len(found), True)


@pytest.fixture
def ask(scanner: Scanner, limits: ReadLimits, tmp_path: Path) -> Ask:
    """Reads logs as an attempt and asks about it; with `look` the whole log can be looked into."""

    def question(
        log: str | Mapping[str, str] = "", *, records: Sequence[Record] | None = None, look: bool = False
    ) -> Question:
        given = log if isinstance(log, Mapping) else {"main": log}
        streams = []
        for name, content in given.items():
            path = tmp_path / f"{name}.log"
            path.write_bytes(content.encode("utf-8", "surrogatepass"))
            streams.append(LogFile(name, path))
        read = list(records) if records is not None else pipeline.records(streams, scanner, limits)
        verdict = diagnose(read, scanner.book)
        whole: Log | None = WholeLog(given) if look else None
        return Question("job-1", 1, read, scanner.book, verdict, whole)

    return question
