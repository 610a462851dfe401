"""What failed in a trial is diagnosed by the rules, and sent to the service like any other job."""

import subprocess
from pathlib import Path

import pytest

from logdoctor.settings import read_settings
from logdoctor.wiring.trials import FailureSender, diagnosing

OOM = b"RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 79.15 GiB total capacity)\n"


def test_a_log_is_diagnosed_with_its_proof() -> None:
    sent: list[tuple[str, bytes, int | None]] = []
    why = diagnosing(read_settings(), lambda *told: sent.append(told))
    found = why("humaneval.0-41.1", b"loading\n" + OOM, 1)
    assert found is not None and found.reason == "Out of Memory Error" and found.quote == OOM.decode().strip()
    assert sent == [("humaneval.0-41.1", b"loading\n" + OOM, 1)]
    assert why("humaneval.0-41.1", b"nothing that anybody knows\n", 3) is None
    assert why("humaneval.0-41.1", b"", None) is None


def test_a_service_that_is_away_is_asked_once_and_hinders_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[list[str]] = []

    def run(command: list[str], **options: object) -> None:
        given.append(command)
        raise subprocess.TimeoutExpired(command, 1)

    monkeypatch.setattr("logdoctor.wiring.trials.subprocess.run", run)
    send = FailureSender("http://127.0.0.1:9", "tiny", tmp_path)
    for attempt in (1, 2, 3):
        send(f"a.score.{attempt}", OOM, None)
    assert not send.close()
    ((_, *rest),) = given
    assert "--exit-code" not in rest and rest[rest.index("--job") + 1] == "tiny"
