"""Small logs of a job, and their verdicts."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from logdoctor import pipeline
from logdoctor.pipeline import Limits, Stream
from logdoctor.rules.scanner import Scanner
from logdoctor.types import Verdict

Diagnose = Callable[[str | bytes | Mapping[str, str]], Verdict]
"""The verdict on a log, or on an attempt with several streams."""


@pytest.fixture
def diagnose(scanner: Scanner, limits: Limits, tmp_path: Path) -> Diagnose:
    """Writes each log to a file and diagnoses all of them as one attempt with the shipped rules."""

    def run(log: str | bytes | Mapping[str, str]) -> Verdict:
        streams = []
        for name, content in (log if isinstance(log, Mapping) else {"main": log}).items():
            path = tmp_path / f"{name}.log"
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
            streams.append(Stream(name, path))
        return pipeline.diagnose(streams, scanner, limits)

    return run
