"""What failed in a trial is diagnosed by the rules, and sent to the service like any other job."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from logdoctor.build.trials import diagnosing, sending
from logdoctor.settings import read_settings

OOM = b"RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 79.15 GiB total capacity)\n"


def test_a_log_is_diagnosed_with_its_proof(tmp_path: Path) -> None:
    sent: list[tuple[str, bytes, int | None]] = []
    why = diagnosing(read_settings(), lambda name, log, code: sent.append((name, log.read_bytes(), code)))
    found = why("humaneval.0-41.1", b"loading\n" + OOM, 1)
    assert found is not None and found.reason == "Out of Memory Error" and found.quote == OOM.decode().strip()
    assert sent == [("humaneval.0-41.1", b"loading\n" + OOM, 1)]
    assert why("humaneval.0-41.1", b"nothing that anybody knows\n", 3) is None
    assert why("humaneval.0-41.1", b"", None) is None


def test_a_service_that_is_away_hinders_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    log.write_bytes(OOM)
    given: list[list[str]] = []

    def run(command: list[str], **options: object) -> None:
        given.append(command)
        raise subprocess.TimeoutExpired(command, 1)

    monkeypatch.setattr("logdoctor.build.trials.subprocess.run", run)
    sending("http://127.0.0.1:9", "tiny", tmp_path)("a.score.1", log, None)
    ((python, *rest),) = given
    assert python == sys.executable and "--exit-code" not in rest and json.dumps(rest).count("tiny") == 1
