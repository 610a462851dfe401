"""Small logs of a job, and their verdicts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import pytest

from logdoctor import pipeline
from logdoctor.diagnose.ending import NOTHING, ReportedEnd
from logdoctor.pipeline import LogFile, ReadLimits
from logdoctor.rules.scanner import Scanner
from logdoctor.types import Record, Verdict

Log = str | bytes | Mapping[str, str]


class Diagnose(Protocol):
    """The verdict on a log, or on an attempt with several streams."""

    def __call__(self, log: Log, reported: ReportedEnd = NOTHING) -> Verdict: ...


class Recorded(Protocol):
    """The records of a log."""

    def __call__(self, log: Log) -> list[Record]: ...


@pytest.fixture
def recorded(scanner: Scanner, limits: ReadLimits, tmp_path: Path) -> Recorded:
    """Writes each log to a file and gives the records of all of them, with the shipped rules."""
    return lambda log: pipeline.records(_streams(log, tmp_path), scanner, limits)


@pytest.fixture
def diagnose(scanner: Scanner, limits: ReadLimits, tmp_path: Path) -> Diagnose:
    """Writes each log to a file and diagnoses all of them as one attempt with the shipped rules."""
    return lambda log, reported=NOTHING: pipeline.diagnose(_streams(log, tmp_path), scanner, limits, reported)


def _streams(log: Log, folder: Path) -> list[LogFile]:
    streams = []
    for name, content in (log if isinstance(log, Mapping) else {"main": log}).items():
        path = folder / f"{name}.log"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        streams.append(LogFile(name, path))
    return streams
