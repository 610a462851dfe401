"""Incidents over HTTP: who may see and do what, and how changes reach those who listen."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from logdoctor.service.service import Service
from tests import waiting
from tests.databases import empty
from tests.store.test_incidents import DONE, USER_CODE, publish, verdict
from tests.store.test_records import BASE, on
from tests.web.conftest import Guarded, Served, bearer, local_client, options, serving


@pytest.fixture
def filled(service: Service) -> Service:
    """1: gpu-1 of team-a-1 and team-b-1; 2: a Key Error of team-b-1."""
    publish(service.records, "team-a-1", 1, verdict(suspects=on("gpu-1")), 1.0)
    publish(service.records, "team-b-1", 1, verdict(suspects=on("gpu-1")), 2.0)
    publish(service.records, "team-b-1", 2, USER_CODE, 3.0)
    return service


def ids(answer: Any) -> list[int]:
    assert answer.status_code == 200, answer.text
    return [one["id"] for one in answer.json()["items"]]


@pytest.mark.usefixtures("each_database")
def test_incidents_are_listed_and_shown(filled: Service, client: TestClient) -> None:
    assert ids(client.get("/v1/incidents")) == [2, 1]
    for name, value, wanted in (
        ("reason", "ECC Error", [1]),
        ("category", "Script", [2]),
        ("recovery", "fix_first", [2]),
        ("fault", "infrastructure", [1]),
        ("node", "gpu-1", [1]),
        ("job", "team-a-1", [1]),
        ("user", "nobody", []),
        ("fingerprint", "f0", [1]),
        ("text", "key gpu-1", []),
        ("text", "TEAM-A", [1]),
        ("since", "3", [2]),
        ("until", "3", [1]),
        ("state", "resolved", []),
        ("state", "new", [2, 1]),
    ):
        assert ids(client.get("/v1/incidents", params={name: value})) == wanted, (name, value)
    assert ids(client.get("/v1/incidents", params={"state": ["new", "resolved"]})) == [2, 1]
    assert ids(client.get("/v1/incidents", params={"q": "job:team-b-* is:all", "node": "gpu-1"})) == [1]
    first = client.get("/v1/incidents", params={"limit": 1}).json()
    assert ids(client.get("/v1/incidents", params={"cursor": first["next"]})) == [1]
    one = client.get("/v1/incidents/1").json()
    assert (one["attempts"], one["jobs"], one["node"], one["on_node"], one["state"]) == (2, 2, "gpu-1", 2, "new")
    assert one["newest"] == client.get("/v1/jobs/team-b-1/attempts/1/verdict").json()
    attempts = client.get("/v1/incidents/1/attempts", params={"limit": 1}).json()
    assert [stored["job"] for stored in attempts["items"]] == ["team-b-1"] and attempts["next"]
    story = client.get("/v1/incidents/1/events").json()["items"]
    assert [event["step"] for event in story] == ["joined", "opened"]


def test_what_is_wrong_is_refused(filled: Service, client: TestClient) -> None:
    for path, status in (
        ("/v1/incidents?state=open", 422),
        ("/v1/incidents?cursor=x", 400),
        ("/v1/incidents?since=-1", 422),
        ("/v1/incidents?limit=0", 422),
        ("/v1/incidents?text=" + "x" * 301, 422),
        ("/v1/incidents?q=" + "x" * 501, 422),
        ("/v1/incidents?q=nod:x", 400),
        ("/v1/incidents/99", 404),
        ("/v1/incidents/99/attempts", 404),
        ("/v1/incidents/99/events", 404),
        ("/v1/incidents/0", 422),
        ("/v1/incidents/9223372036854775808", 422),
        ("/v1/incidents/1/attempts?cursor=x", 400),
        ("/v1/incidents/stream?after=-1", 422),
    ):
        answer = client.get(path)
        assert answer.status_code == status and answer.json()["error"]["next_step"], path


def test_people_take_steps_and_the_quicker_one_is_named(filled: Service) -> None:
    with local_client(filled, options(wants_token=True)) as client:
        ops = bearer(filled.tokens.create("ops", ("operate", "read"))[1])
        research = bearer(filled.tokens.create("research", ("operate",))[1])
        said = {"note": "draining", "seen_as": "new"}
        done = client.post("/v1/incidents/1/acknowledge", json=said, headers=ops)
        assert done.status_code == 200, done.text
        assert [done.json()[name] for name in ("state", "by", "note")] == ["acknowledged", "ops", "draining"]
        late = client.post("/v1/incidents/1/acknowledge", json=said, headers=research)
        assert late.status_code == 409 and "ops acknowledged it at" in late.json()["error"]["cause"]
        for step, state in (("resolve", "resolved"), ("reopen", "new")):
            answer = client.post(f"/v1/incidents/1/{step}", json={}, headers=research)
            assert (answer.status_code, answer.json()["state"]) == (200, state)
        assert client.get("/v1/incidents/1", headers=ops).json()["by"] == "research"
        bodies: tuple[Any, ...] = ({"note": "x" * 2001}, {"seen_as": "open"}, {"why": "?"}, [])
        for body in bodies:
            assert client.post("/v1/incidents/1/resolve", json=body, headers=ops).status_code == 422
        assert client.post("/v1/incidents/99/resolve", json={}, headers=ops).status_code == 404


def test_a_merged_incident_names_the_one_it_stands_for(filled: Service, client: TestClient) -> None:
    publish(filled.records, "team-b-1", 2, verdict(suspects=on("gpu-1")), 4.0)
    assert client.get("/v1/incidents/2").json()["merged_into"] == 1
    assert client.post("/v1/incidents/2/acknowledge", json={}).status_code == 409
    assert ids(client.get("/v1/incidents", params={"state": ["new", "resolved"]})) == [1]


def test_a_token_bound_to_jobs_sees_and_steps_its_own(filled: Service, guarded: Guarded) -> None:
    mine = guarded.token("read", "operate", prefixes=("team-a-",))
    both = guarded.token("read", "operate", prefixes=("team-b-", "team-a-"))
    client = guarded.client
    assert ids(client.get("/v1/incidents", headers=mine)) == [1]
    one = client.get("/v1/incidents/1", headers=mine)
    assert (one.json()["attempts"], one.json()["on_node"], one.json()["last"]) == (1, 1, 1.0)
    for path in ("/v1/incidents/1", "/v1/incidents", "/v1/incidents/1/attempts", "/v1/incidents/1/events"):
        assert "team-b" not in client.get(path, headers=mine).text, path
    for path in ("/v1/incidents/2", "/v1/incidents/2/attempts", "/v1/incidents/2/events"):
        assert client.get(path, headers=mine).status_code == 404, path
    for step in ("acknowledge", "resolve", "reopen"):
        assert client.post(f"/v1/incidents/1/{step}", json={}, headers=mine).status_code == 403
        assert client.post(f"/v1/incidents/2/{step}", json={}, headers=mine).status_code == 404
    assert filled.incidents.events(1)[0].step == "joined", "nothing was done"
    assert client.post("/v1/incidents/1/resolve", json={"note": "team-b-1 too"}, headers=both).status_code == 200
    seen = client.get("/v1/incidents/1", headers=mine).json()
    assert (seen["state"], seen["by"], seen["note"]) == ("resolved", "", "")
    assert "team-b" not in client.get("/v1/incidents/1/events", headers=mine).text


class Listener:
    """What a listener of incidents has heard so far."""

    def __init__(self, served: Served, headers: dict[str, str] | None = None, **params: str) -> None:
        self.heard: list[tuple[int, dict[str, Any]]] = []
        self.status = 0
        self._url, self._headers, self._params = f"{served.url}/v1/incidents/stream", headers or {}, params
        threading.Thread(target=self._listen, daemon=True).start()
        waiting.until(lambda: self.status)

    def _listen(self) -> None:
        try:
            with httpx.stream("GET", self._url, headers=self._headers, params=self._params, timeout=None) as response:
                self.status = response.status_code
                number = 0
                for line in response.iter_lines():
                    name, _, value = line.partition(": ")
                    if name == "id":
                        number = int(value)
                    elif name == "data":
                        self.heard.append((number, json.loads(value)))
        except httpx.HTTPError:
            pass  # the server ended

    @property
    def ids(self) -> list[int]:
        return [one["id"] for _, one in self.heard]


def told(service: Service) -> None:
    """Wakes the listeners, as the watch does when it has published."""
    stored = service.records.newer(0)[-1]
    for listener in service.listeners:
        listener(stored)


@pytest.fixture
def live(filled: Service) -> Iterator[Served]:
    with serving(filled) as served:
        yield served


def test_changes_are_told_as_they_come(filled: Service, live: Served) -> None:
    new, all_of_it = Listener(live), Listener(live, after="0")
    waiting.until(lambda: all_of_it.ids == [1, 2])
    with live.client() as client:
        assert client.post("/v1/incidents/2/acknowledge", json={"note": "\n\ndata: x"}).status_code == 200
    waiting.until(lambda: new.ids == [2] and all_of_it.ids == [1, 2, 2])
    number, one = new.heard[-1]
    assert (one["state"], one["event"], one["note"]) == ("acknowledged", number, "\n\ndata: x")
    publish(filled.records, "team-b-1", 2, DONE, 5.0)
    publish(filled.records, "team-c-1", 1, BASE, 6.0)
    told(filled)
    waiting.until(lambda: set(new.ids) == {2, 3})
    assert [one["state"] for _, one in new.heard] == ["acknowledged", "resolved", "new"]
    again = Listener(live, headers={"Last-Event-ID": str(number)})
    waiting.until(lambda: again.heard == new.heard[1:])


def test_listeners_hear_only_of_jobs_that_are_theirs(filled: Service) -> None:
    with serving(filled, options(wants_token=True)) as served:
        token = filled.tokens.create("team", ("read",), ("team-a-",))[1]
        mine = Listener(served, bearer(token), after="0")
        waiting.until(lambda: mine.ids == [1])
        filled.incidents.step(2, "acknowledge", "ops", "", 4.0, None)
        publish(filled.records, "team-b-1", 3, verdict(fingerprint="new"), 5.0)
        publish(filled.records, "team-a-1", 2, verdict(fingerprint="mine"), 6.0)
        told(filled)
        waiting.until(lambda: mine.ids == [1, 4])
        assert "team-b" not in json.dumps(mine.heard)
        assert Listener(served, bearer(filled.tokens.create("sender", ("ingest",))[1])).status == 403


def test_a_service_puts_failures_of_older_versions_into_incidents(filled: Service) -> None:
    with filled.records.database.writing() as connection:
        empty(connection, "incident_events", "incident_attempts", "incidents")
    with local_client(filled) as client:
        assert ids(client.get("/v1/incidents")) == [], "they are of long ago: nobody is to work them off"
        assert ids(client.get("/v1/incidents?state=resolved")) == [2, 1]
