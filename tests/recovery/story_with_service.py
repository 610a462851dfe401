"""A supervisor and the real service: what the one asks is what the other answers."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from logdoctor.job.recovery.contract import ASK, FIX_FIRST
from logdoctor.rules.scanner import Scanner
from logdoctor.types.nodes import Action
from tests import waiting
from tests.recovery.conftest import Job
from tests.web.conftest import Served, new_service, options, serving

S3 = 'botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: "https://s3"'
ECC = "[gpu-7] Cuda failure 'uncorrectable ECC error encountered'"


@pytest.fixture
def served(tmp_path: Path, scanner: Scanner) -> Iterator[Served]:
    """A service that wants tokens."""
    with serving(new_service(tmp_path / "data", scanner), options(wants_token=True)) as running:
        yield running


@pytest.fixture
def job(served: Served, tmp_path: Path) -> Iterator[Job]:
    """A job whose token has the scopes that the document names."""
    it = Job(tmp_path, served.url)
    it.environment["LOGDOCTOR_TOKEN"] = served.service.tokens.create("job", ["ingest", "read"])[1]
    yield it
    it.stop()


def test_the_verdict_of_the_service_decides(served: Served, job: Job) -> None:
    plan = [
        {"steps": [0, 9], "say": S3, "exit": 1},
        {"steps": [0, 19], "say": S3, "kill": 9},
        {"steps": [0, 29], "say": "NameError: name 'y' is not defined", "exit": 1},
    ]
    assert job.run(plan) == FIX_FIRST
    assert job.decisions == ["restart", "restart", "stop"]
    stored = [served.service.records.current("job", number) for number in (1, 2, 3)]
    assert [one and one.verdict.fingerprint for one in stored] == [
        event["judged"]["fingerprint"] for event in job.events("ended")
    ]


def test_what_its_policy_did_about_nodes_is_read(served: Served, job: Job) -> None:
    """Without a launcher nobody tests; an action that waits is waited for."""
    assert job.run([{"steps": [0, 9], "say": ECC, "exit": 1}], "--nodes-seconds", "2") == ASK
    assert "Nobody tests the nodes of this job" in job.err
    run = job.start([{"steps": [0, 9], "say": ECC, "exit": 1}], "--nodes-seconds", "60")
    stored = waiting.until(lambda: served.service.records.current("job", 2))
    records = served.service.nodes
    made = records.propose(Action("test_nodes", ("gpu-7",), "ask", "w", stored.id), "job", 2, 1.0)
    assert made is not None
    waiting.until(lambda: any(f"logdoctor nodes approve {made.id}" in event["why"] for event in job.events("nodes")))
    records.decide(made.id, False, "ops", "no", 2.0)
    assert run.wait() == ASK
    assert f"It was not done: action {made.id} (test gpu-7)." in job.err


def test_a_failed_run_ends_with_its_verdict_and_the_address_of_its_page(served: Served, job: Job) -> None:
    assert job.run([{"steps": [0, 9], "say": "NameError: name 'y' is not defined", "exit": 1}]) == FIX_FIRST
    stored = served.service.records.current("job", 1)
    assert stored is not None
    page = f"{served.url}/verdicts/{stored.id}"
    assert f"[logdoctor] the verdict on attempt 1 is Name Error. Its page: {page}\n" in job.err
    assert httpx.get(page, headers={"Authorization": f"Bearer {job.environment['LOGDOCTOR_TOKEN']}"}).status_code == 200


def test_a_failed_run_without_restart_says_it_too(served: Served, job: Job) -> None:
    code = "print('step: 1'); undefined"
    command = [sys.executable, "-m", "logdoctor.job.send", "run", "--", sys.executable, "-c", code]
    done = subprocess.run(command, env=job.environment, capture_output=True, text=True)
    stored = served.service.records.current("job", 1)
    assert stored is not None and done.returncode == 1
    assert f"[logdoctor] the verdict is Name Error: {served.url}/verdicts/{stored.id}\n" in done.stderr
    other = job.environment | {"SLURM_PROCID": "3"}  # one of many does not repeat it
    done = subprocess.run(command, env=other, capture_output=True, text=True)
    assert done.returncode == 1 and "verdict" not in done.stderr
