"""People work on incidents over HTTP: whose it is, when it comes again, and who may not."""

import time
from typing import Any

import pytest
from starlette.testclient import TestClient

from logdoctor.service.service import Service
from logdoctor.store.jobs.records import JobFacts
from tests.store.test_incidents import USER_CODE, publish, verdict
from tests.store.test_records import on
from tests.web.conftest import Guarded


@pytest.fixture
def filled(service: Service) -> Service:
    """1: gpu-1 of team-a-1 and team-b-1; 2: a Key Error of team-b-1, on 64 GPUs for three hours; 3: a Name Error."""
    now = time.time()
    service.records.put_job("team-b-1", JobFacts(gpus=64), now - 10_800.0)
    publish(service.records, "team-a-1", 1, verdict(suspects=on("gpu-1")), now - 50.0)
    publish(service.records, "team-b-1", 1, verdict(suspects=on("gpu-1")), now - 40.0)
    service.records.open_attempt("team-b-1", 2, now - 10_800.0)
    publish(service.records, "team-b-1", 2, USER_CODE, now)
    publish(service.records, "team-b-2", 1, verdict(USER_CODE, fingerprint="f9", reason="Name Error"), now + 1.0)
    return service


def post(client: TestClient, path: str, status: int = 200, **body: Any) -> Any:
    answer = client.post(f"/v1/{path}", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def listed(client: TestClient, **query: Any) -> list[int]:
    return [one["id"] for one in client.get("/v1/incidents", params=query).json()["items"]]


def counts(client: TestClient) -> tuple[int, int, int]:
    told = client.get("/v1/incidents/counts").json()
    return told["new"], told["acknowledged"], told["quiet"]


@pytest.mark.usefixtures("each_database")
def test_an_incident_is_worked_on(filled: Service, client: TestClient) -> None:
    assert post(client, "incidents/1/assign", assignee="anna", note="she knows it")["assignee"] == "anna"
    assert listed(client, assignee="anna") == [1]
    assert post(client, "incidents/2/assign")["assignee"] == "testclient", "who asks, unless somebody is named"
    assert post(client, "incidents/1/comment", note="seen before")["state"] == "new"
    assert post(client, "incidents/1/snooze", seconds=600)["snoozed"] is True
    assert post(client, "incidents/2/snooze", more=3)["snoozed_attempts"] == 4
    assert counts(client) == (1, 0, 2)
    assert (listed(client, quiet="hide"), listed(client, quiet="only")) == ([3], [2, 1])
    assert post(client, "incidents/1/unsnooze")["snoozed"] is False
    assert post(client, "incidents/1/unsnooze", status=409)["error"]["cause"] == "it is not snoozed"
    told = [one["step"] for one in client.get("/v1/incidents/1/events").json()["items"]]
    assert told == ["woken", "snoozed", "commented", "assigned", "joined", "opened"]


def test_the_size_of_an_incident_is_told_and_sorted_by(filled: Service, client: TestClient) -> None:
    one = client.get("/v1/incidents/2").json()
    assert (one["gpus"], round(one["gpu_hours"]), round(one["severity"]), one["level"]) == (64, 192, 192, "moderate")
    for order in ("severity", "gpu_hours", "gpus"):
        assert listed(client, order=order)[0] == 2
    assert client.get("/v1/incidents?order=cost").status_code == 422


def test_many_take_a_step_at_once_and_one_refusal_holds_up_no_other(filled: Service, client: TestClient) -> None:
    post(client, "incidents/2/resolve")
    told = post(client, "incidents/bulk", ids=[3, 2, 99, 1, 3], step="acknowledge")["items"]
    assert [(one["id"], one["cause"][:30]) for one in told] == [
        (3, ""),
        (2, "testclient resolved it at " + told[1]["cause"][26:30]),
        (99, "does not exist"),
        (1, ""),
    ]
    assert all(not one["cause"] for one in post(client, "incidents/bulk", ids=[1, 3], step="assign")["items"])
    assert all(not one["cause"] for one in post(client, "incidents/bulk", ids=[1, 3], step="snooze", more=1)["items"])
    for wrong in (
        {"ids": [], "step": "resolve"},
        {"ids": [1], "step": "merge"},
        {"ids": [1] * 201, "step": "resolve"},
    ):
        post(client, "incidents/bulk", status=422, **wrong)


def test_what_is_muted_is_listed_and_comes_back(filled: Service, client: TestClient) -> None:
    mute = post(client, "mutes", kind="node", value="gpu-1", seconds=3600, why="in repair")
    assert counts(client) == (2, 0, 1) and client.get("/v1/incidents/1").json()["muted"]
    assert [one["why"] for one in client.get("/v1/mutes").json()["items"]] == ["in repair"]
    assert post(client, f"mutes/{mute['id']}/lift")["lifted_by"] == "testclient"
    assert client.get("/v1/mutes").json()["items"] == [] and counts(client) == (3, 0, 0)
    assert len(client.get("/v1/mutes?past=true").json()["items"]) == 1
    post(client, f"mutes/{mute['id']}/lift", status=409)
    post(client, "mutes", status=422, kind="job", value="x")
    post(client, "mutes", status=422, kind="node", value="x", seconds=1e12)


def test_runbooks_are_kept(client: TestClient) -> None:
    post(client, "runbooks", kind="reason", value="Key Error", url="https://wiki.example/key")
    told = post(client, "runbooks", status=409, kind="reason", value="Key Error", url="javascript:alert(1)")
    assert told["error"]["cause"] == "it is no http or https URL"
    assert [one["url"] for one in client.get("/v1/runbooks").json()["items"]] == ["https://wiki.example/key"]
    assert post(client, "runbooks", kind="reason", value="Key Error", url="") == {"items": []}


def test_who_is_bound_to_jobs_works_on_no_incident_of_others(filled: Service, guarded: Guarded) -> None:
    bound = guarded.token("read", "operate", prefixes=("team-a-",))
    client = guarded.client

    def status(path: str, **body: Any) -> int:
        return client.post(f"/v1/{path}", json=body, headers=bound).status_code

    assert status("incidents/1/assign") == 403 and status("incidents/2/assign") == 404
    own = guarded.token("read", "operate", prefixes=("team-b-",))
    told = client.post("/v1/incidents/bulk", json={"ids": [1, 2], "step": "resolve"}, headers=own).json()["items"]
    assert [bool(one["cause"]) for one in told] == [True, False]
    for path in ("mutes", "runbooks"):
        assert client.get(f"/v1/{path}", headers=own).status_code == 403
    assert client.get("/v1/incidents/counts", headers=bound).json() == {
        "new": 1,
        "acknowledged": 0,
        "quiet": 0,
        "newest": 1,
    }


def test_who_acts_is_whose_token_it_is(filled: Service, guarded: Guarded) -> None:
    anna = {"Authorization": f"Bearer {guarded.secret('read', 'operate', name='anna')}"}
    assert guarded.client.post("/v1/incidents/1/assign", json={}, headers=anna).json()["assignee"] == "anna"
    assert guarded.service.incidents.events(1)[0].by == "anna"
