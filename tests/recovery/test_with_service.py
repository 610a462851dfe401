"""A supervisor and the real service: what the one asks is what the other answers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from logdoctor.node_types import Action
from logdoctor.recovery.contract import ASK, FIX_FIRST
from logdoctor.rules.scanner import Scanner
from tests.recovery.conftest import Job
from tests.web.conftest import Served, new_service, options, serving, wait_for

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
    stored = wait_for(lambda: served.service.records.current("job", 2))
    records = served.service.nodes
    made = records.propose(Action("test_nodes", ("gpu-7",), "ask", "w", stored.id), "job", 2, 1.0)
    assert made is not None
    wait_for(lambda: any(f"logdoctor nodes approve {made.id}" in event["why"] for event in job.events("nodes")))
    records.decide(made.id, False, "ops", "no", 2.0)
    assert run.wait() == ASK
    assert f"It was not done: action {made.id} (test gpu-7)." in job.err
