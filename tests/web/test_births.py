"""How many attempts may begin: with one push, and in a minute with one token."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from starlette.testclient import TestClient

from logdoctor.errors import RequestRefused
from logdoctor.service.service import Service
from logdoctor.store.jobs.records import Attempt
from logdoctor.web.births import AttemptLimits
from logdoctor.web.dependencies import BirthLimits
from tests.web.conftest import Guarded, bearer, local_client, options


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def guarded(service: Service, clock: Clock) -> Iterator[Guarded]:
    """An application where three attempts may begin with a push, and five in a minute."""
    chosen = options(wants_token=True)._replace(births=BirthLimits(push=3, minute=5), clock=clock)
    with local_client(service, chosen) as client:
        yield Guarded(client, service)


def loki(jobs: list[str]) -> dict[str, Any]:
    values = [["1700000000000000000", "a line"]]
    return {"streams": [{"stream": {"slurm_job_id": job}, "values": values} for job in jobs]}


def otlp(jobs: list[str]) -> dict[str, Any]:
    found = []
    for job in jobs:
        record = {"timeUnixNano": "1700000000000000000", "body": {"stringValue": "a line"}}
        attributes = [{"key": "slurm_job_id", "value": {"stringValue": job}}]
        found.append({"resource": {"attributes": attributes}, "scopeLogs": [{"logRecords": [record]}]})
    return {"resourceLogs": found}


PUSHES: dict[str, tuple[str, Callable[[list[str]], dict[str, Any]]]] = {
    "loki": ("/loki/api/v1/push", loki),
    "otlp": ("/v1/logs", otlp),
}
BIRTHS: dict[str, Callable[[TestClient, str], Any]] = {
    "described": lambda client, job: client.put(f"/v1/jobs/{job}", json={}),
    "allotted": lambda client, job: client.post(f"/v1/jobs/{job}/attempts", json={"key": "k"}),
    "sent": lambda client, job: client.post(f"/v1/jobs/{job}/attempts/1/streams/main/log?offset=0", content=b"x\n"),
    "appended": lambda client, job: client.post(f"/v1/jobs/{job}/attempts/1/streams/main/log", content=b"x\n"),
    "ended": lambda client, job: client.post(f"/v1/jobs/{job}/attempts/1/end", json={"exit_code": 1}),
    **{
        name: lambda client, job, path=path, body=body: client.post(path, json=body([job]))
        for name, (path, body) in PUSHES.items()
    },
}


def jobs_of(service: Service) -> list[str]:
    return sorted(job.job for job in service.records.jobs(limit=100).items)


@pytest.mark.parametrize("kind", PUSHES)
def test_a_push_begins_so_many_and_comes_again_for_the_rest(guarded: Guarded, kind: str) -> None:
    path, body = PUSHES[kind]
    names = [f"job-{number}" for number in range(5)]
    guarded.client.headers.update(guarded.token("ingest"))
    refused = guarded.client.post(path, json=body(names))
    assert (
        refused.status_code == 429
        and "LOGDOCTOR_NEW_JOBS_PER_PUSH" in refused.text
        and "Retry-After" in refused.headers
    )
    assert jobs_of(guarded.service) == names[:3], "what may begin is taken"
    assert guarded.client.post(path, json=body(names)).is_success
    assert jobs_of(guarded.service) == names
    for name in names:
        (stream,) = guarded.service.logs.streams(name, 1).values()
        assert stream.next == len("a line\n"), "each line once"


@pytest.mark.parametrize("kind", PUSHES)
def test_a_push_of_many_is_refused_once_and_begins_what_it_may_at_once(
    guarded: Guarded, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, body = PUSHES[kind]
    refused, begun = list[str](), list[int]()
    refuse, begin = AttemptLimits._too_many_at_once, guarded.service.records.open_attempts

    def refusing(births: AttemptLimits, name: tuple[str, int | str]) -> RequestRefused:
        refused.append(name[0])
        return refuse(births, name)

    def beginning(names: Sequence[tuple[str, int]], at: float) -> list[Attempt]:
        begun.append(len(names))
        return begin(names, at)

    monkeypatch.setattr(AttemptLimits, "_too_many_at_once", refusing)
    monkeypatch.setattr(guarded.service.records, "open_attempts", beginning)
    answer = guarded.client.post(path, json=body([f"job-{n}" for n in range(50)]), headers=guarded.token("ingest"))
    assert answer.status_code == 429 and "job-3" in answer.text
    assert (refused, begun) == (["job-3"], [3])


@pytest.mark.parametrize("kind", BIRTHS)
def test_a_token_begins_so_many_in_a_minute(guarded: Guarded, clock: Clock, kind: str) -> None:
    client, begin = guarded.client, BIRTHS[kind]
    client.headers.update(guarded.token("ingest"))
    for number in range(5):
        assert begin(client, f"job-{number}").is_success
    refused = begin(client, "job-5")
    assert refused.status_code == 429 and refused.json()["error"]["code"] == "too_many_jobs"
    assert "LOGDOCTOR_NEW_JOBS_PER_MINUTE" in refused.text and "job-5" not in jobs_of(guarded.service)
    assert BIRTHS["appended"](client, "job-4").is_success, "what has begun goes on"
    other = bearer(guarded.secret("ingest"))
    assert client.put("/v1/jobs/other", json={}, headers=other).is_success, "others have their own"
    clock.now += 12.0
    assert begin(client, "job-5").is_success and begin(client, "job-6").status_code == 429


def test_a_job_counts_once_however_many_nodes_tell_of_it(guarded: Guarded) -> None:
    client = guarded.client
    client.headers.update(guarded.token("ingest"))
    for number in range(5):
        job = f"job-{number}"
        for _ in range(3):
            assert BIRTHS["described"](client, job).is_success
            assert BIRTHS["allotted"](client, job).is_success
        for node in range(3):
            path = f"/v1/jobs/{job}/attempts/1/streams/{node}/log?offset=0"
            assert client.post(path, content=b"x\n").is_success
    assert BIRTHS["described"](client, "job-5").status_code == 429
