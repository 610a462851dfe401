"""A failure that no rule knows, in whose log somebody speaks to the model."""

from collections.abc import Callable
from pathlib import Path

import pytest

from logdoctor import pipeline
from logdoctor.diagnose.decide import diagnose
from logdoctor.failure_agent.question import Question
from logdoctor.pipeline import LogFile, ReadLimits
from logdoctor.rules.scanner import Scanner
from tests.failure_agent.conftest import WholeLog

AskRaw = Callable[..., Question]
"""`ask_raw(log in bytes)`: the question about an attempt, whose whole log can be looked into with `look`."""


@pytest.fixture
def ask_raw(scanner: Scanner, limits: ReadLimits, tmp_path: Path) -> AskRaw:
    def question(log: bytes, stream: str = "main", look: bool = False) -> Question:
        path = tmp_path / "unknown.log"
        path.write_bytes(log)
        records = pipeline.records([LogFile(stream, path)], scanner, limits)
        verdict = diagnose(records, scanner.book)
        whole = WholeLog({stream: log.decode("utf-8", "replace")}) if look else None
        return Question("job-1", 1, records, scanner.book, verdict, whole)

    return question
