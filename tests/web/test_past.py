"""Past attempts as they are sent, and the live ones that take their places."""

import time
from typing import Any

import httpx
import msgspec
import pytest
from starlette.testclient import TestClient

from logdoctor.service.service import Service
from logdoctor.store.jobs.past import PastAttempt
from logdoctor.store.jobs.records import JobFacts
from tests import waiting
from tests.store.test_records import BASE
from tests.web.conftest import FAILED

LONG_AGO = 1_700_000_000.0


def enter(client: TestClient, *jobs: str, **facts: Any) -> httpx.Response:
    """The answer to a past attempt 1 of each job."""
    some = [
        PastAttempt(job=job, key="a.log", number=1, facts=JobFacts(), ended=LONG_AGO, exit_code=1, verdict=BASE)
        for job in jobs
    ]
    sent = [msgspec.to_builtins(one) | {"facts": facts} for one in some]
    return client.post("/v1/past-attempts", json={"attempts": sent})


def whats(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [one["what"] for one in answer.json()["attempts"]]


@pytest.mark.usefixtures("each_database")
def test_a_job_that_was_entered_goes_on_live(client: TestClient, service: Service) -> None:
    jobs = ("pushed", "posted", "only-ended")
    assert whats(enter(client, *jobs)) == ["entered"] * 3
    lines = [[str(time.time_ns() + at), line] for at, line in enumerate(FAILED.decode().splitlines())]
    push = {"streams": [{"stream": {"job": "pushed"}, "values": lines}]}
    assert client.post("/loki/api/v1/push", json=push).status_code == 204
    assert client.post("/v1/jobs/posted/attempts/1/streams/main/log?offset=0", content=FAILED).status_code == 200
    assert whats(enter(client, *jobs)) == ["known", "known", "unchanged"]
    for job in jobs:  # the end that the past attempt had, too
        assert client.post(f"/v1/jobs/{job}/attempts/1/end", json={"exit_code": 1}).status_code == 202
    for job in jobs:
        new = waiting.until(lambda job=job: final(service, job))
        assert new.verdict != BASE and new.at > LONG_AGO
        kept = service.records.history(job, 1)
        assert kept[-1].verdict == BASE and not kept[-1].current and kept[-1].at == LONG_AGO
    for job in jobs[:2]:
        assert service.records.current(job, 1).verdict.reason == "Out of Memory Error"
    shown = client.get("/v1/incidents").json()["items"]
    assert sum(one["attempts"] for one in shown) == 3 and {one["state"] for one in shown} == {"new"}
    assert client.get("/v1/incidents", params={"state": "resolved"}).json()["items"][0]["attempts"] == 0


def final(service: Service, job: str) -> Any:
    """The verdict on what came, once it is final."""
    current = service.records.current(job, 1)
    return current if current is not None and current.final and current.at > LONG_AGO else None


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"gpus": -1}, "'gpus' in its facts cannot be"),
        ({"nodes": 1 << 40}, "'nodes' in its facts cannot be"),
        ({"nodelist": "n" * 100_001}, "'nodelist' in its facts cannot be"),
        ({"labels": {str(number): "" for number in range(257)}}, "'labels' in its facts cannot be"),
    ],
)
def test_facts_are_bounded_as_those_of_any_job(lasting: TestClient, facts: dict[str, Any], words: str) -> None:
    assert lasting.put("/v1/jobs/a", json=facts).status_code == 422
    answer = enter(lasting, "a", **facts)
    assert answer.status_code == 400 and words in answer.json()["error"]["cause"]
    assert lasting.get("/v1/jobs/a").status_code == 404


def test_no_sender_takes_the_key_of_a_past_attempt(client: TestClient) -> None:
    answer = client.post("/v1/jobs/a/attempts", json={"key": "past/a.log"})
    assert answer.status_code == 400 and "begins with past/" in answer.json()["error"]["cause"]
