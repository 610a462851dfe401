"""Notifications on the page and over the API: tests, messages, and what nobody may see."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from logdoctor.rules.scanner import Scanner
from logdoctor.service.delivering import NotifyTerms
from logdoctor.service.notify.sending import Target, Way
from logdoctor.service.notifying import Notifier
from logdoctor.service.service import Service
from logdoctor.store.incidents.notices import NewNotice, Notices
from tests import waiting
from tests.notify.receivers import SECRET, Receiver, receiving
from tests.web.conftest import FAILED, Guarded, local_client, new_service, options

SLACK = "/services/T0/B0/verysecretpart9876"


def notified(folder: Path, scanner: Scanner, receiver: Receiver) -> Service:
    """A service that tells a webhook and a Slack."""
    service = new_service(folder, scanner)
    targets = [
        Target("ops", "webhook", f"{receiver.url}/hook", (SECRET,)),
        Target("chat", "slack", receiver.url + SLACK),
    ]
    notices = Notices(service.records.database)
    terms = NotifyTerms(settle=0.0, gather=0.0, public_url="https://logdoctor.example")
    service.notifier = Notifier(targets, notices, terms, Way(300.0))
    service.news.changed.append(service.notifier.wake)
    return service


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def client(tmp_path: Path, scanner: Scanner, receiver: Receiver) -> Iterator[TestClient]:
    with local_client(notified(tmp_path / "data", scanner, receiver)) as client:
        yield client


@pytest.fixture
def guarded(tmp_path: Path, scanner: Scanner, receiver: Receiver) -> Iterator[Guarded]:
    service = notified(tmp_path / "data", scanner, receiver)
    with local_client(service, options(wants_token=True)) as client:
        yield Guarded(client, service)


def fail(client: TestClient, job: str = "llama-7b") -> None:
    client.post(f"/v1/jobs/{job}/attempts/1/streams/gpu-12/log", params={"offset": 0}, content=FAILED)
    client.post(f"/v1/jobs/{job}/attempts/1/end", json={"exit_code": 1})


def form_key(page: httpx.Response) -> str:
    found = re.search(r'name="key" value="([^"]+)"', page.text)
    assert found is not None
    return found[1]


def test_a_failure_is_told(client: TestClient, receiver: Receiver) -> None:
    fail(client)
    waiting.until(lambda: len(receiver.got) == 2)
    hook = next(one for one in receiver.got if one.path == "/hook")
    chat = next(one for one in receiver.got if one.path == SLACK)
    assert hook.is_signed() and hook.json["type"] == "incident.opened"
    link = hook.json["data"]["link"]
    incident = link.removeprefix("https://logdoctor.example")
    assert client.get(incident).status_code == 200, "the link leads to its page"
    assert link in [
        button["url"] for block in chat.json["blocks"] for button in block.get("elements", []) if "url" in button
    ]
    waiting.until(lambda: {one["state"] for one in client.get("/v1/notifications").json()["items"]} == {"delivered"})
    client.post(f"/v1{incident}/resolve", json={"note": "fixed", "seen_as": "new"})
    waiting.until(lambda: len(receiver.got) == 4)
    assert {one.json["type"] for one in receiver.got if one.path == "/hook"} == {"incident.opened", "incident.resolved"}


def test_no_secret_is_shown(client: TestClient, receiver: Receiver) -> None:
    receiver.answers = lambda got, number: (404, {}, f"bad {got.path}".encode())
    for target in ("ops", "chat"):
        assert client.post("/v1/notifications/test", json={"target": target}).status_code == 200
    for told in (client.get("/v1/notifications").text, client.get("/notifications").text):
        assert "verysecret" not in told and SECRET not in told and "/hook" not in told
        assert f"{receiver.url}/…9876" in told or "\\u20269876" in told


def test_the_api_tries_and_sends_again(client: TestClient, receiver: Receiver) -> None:
    receiver.always(400, body=b"invalid_payload")
    fail(client)
    waiting.until(lambda: len(client.get("/v1/notifications", params={"state": "dead"}).json()["items"]) == 2)
    dead = client.get("/v1/notifications", params={"state": "dead", "target": "ops"}).json()["items"][0]
    assert dead["why"] == "400: invalid_payload" and dead["about"].startswith("incident ")
    tried = client.post("/v1/notifications/test", json={"target": "ops"}).json()
    assert (tried["state"], tried["event"], tried["why"]) == ("dead", "test", "400: invalid_payload")
    receiver.always(204)
    again = client.post(f"/v1/notifications/{dead['id']}/retry").json()
    assert again["webhook_id"] == dead["webhook_id"]
    waiting.until(lambda: len(client.get("/v1/notifications", params={"state": "delivered"}).json()["items"]) == 1)
    refused = client.post(f"/v1/notifications/{dead['id']}/retry")
    assert refused.status_code == 409 and "is delivered" in refused.json()["error"]["cause"]
    assert client.post("/v1/notifications/99/retry").status_code == 404
    assert client.post("/v1/notifications/test", json={"target": "nobody"}).status_code == 404
    assert client.get("/v1/notifications", params={"cursor": "x"}).status_code == 400
    assert client.get("/v1/notifications", params={"state": "lost"}).status_code == 422


def test_the_page_sends_a_test(client: TestClient, receiver: Receiver) -> None:
    page = client.get("/notifications")
    assert page.status_code == 200 and page.text.count("Send a test") == 2
    form = {"key": form_key(page), "target": "ops"}
    told = client.post("/notifications/test", data=form)
    assert told.status_code == 200 and "The test reached ops" in told.text
    receiver.always(410, body=b"<b>gone</b>")
    told = client.post("/notifications/test", data=form)
    assert 'role="alert"' in told.text and "410" in told.text and "gone</b>" not in told.text
    assert "Nothing is sent to it until a test succeeds" in told.text
    assert client.post("/notifications/test", data={"target": "ops"}).status_code == 403, "a form of others"
    assert client.post("/notifications/test", data=form | {"target": "nobody"}).status_code == 404


def test_the_page_sends_a_dead_letter_again(client: TestClient, receiver: Receiver) -> None:
    receiver.always(400)
    fail(client, "<b>evil")
    waiting.until(lambda: client.get("/notifications?state=dead").text.count("Send again<") == 2)
    page = client.get("/notifications")
    assert "<b>evil" not in page.text and "&lt;b&gt;evil" in page.text
    id = client.get("/v1/notifications").json()["items"][0]["id"]
    receiver.always(204)
    told = client.post(f"/notifications/{id}/retry", data={"key": form_key(page)})
    assert told.status_code == 200 and str(told.url).endswith(f"/notifications?sent={id}")
    waiting.until(lambda: "reached" in client.get(f"/notifications?sent={id}").text)
    assert client.post(f"/notifications/{id}/retry", data={"key": form_key(page)}).status_code == 409


def test_a_page_of_each_state(client: TestClient, receiver: Receiver) -> None:
    receiver.always(503)
    fail(client)
    waiting.until(lambda: len(receiver.got) == 2)
    for query in (
        "",
        "?state=dead",
        "?state=waiting&target=ops",
        "?state=held",
        "?target=former",
        "?cursor=1",
        "?sent=9",
    ):
        assert client.get(f"/notifications{query}").status_code == 200, query
    assert client.get("/notifications?state=lost").status_code == 400


def test_who_may_do_what(guarded: Guarded, receiver: Receiver) -> None:
    client, reader, operator = guarded.client, guarded.token("read"), guarded.token("operate")
    bound = guarded.token("admin", prefixes=("team-a-",))
    test = {"target": "ops"}
    assert client.get("/v1/notifications", headers=reader).status_code == 200
    assert client.post("/v1/notifications/test", json=test, headers=reader).status_code == 403
    assert client.post("/v1/notifications/test", json=test, headers=operator).json()["by"].startswith("token")
    for answer in (
        client.get("/v1/notifications", headers=bound),
        client.post("/v1/notifications/test", json=test, headers=bound),
        client.post("/v1/notifications/1/retry", headers=bound),
        client.get("/notifications", headers=bound),
    ):
        assert answer.status_code == 403 and "ops" not in answer.text.replace("logdoctor", "")
    page = client.get("/notifications", headers=reader)
    assert page.status_code == 200 and "Send a test" not in page.text
    assert len(receiver.got) == 1


def test_a_service_that_tells_nobody(tmp_path: Path, scanner: Scanner) -> None:
    with local_client(new_service(tmp_path / "data", scanner)) as client:
        assert client.get("/v1/notifications").json() == {"targets": [], "items": [], "next": None}
        assert client.post("/v1/notifications/test", json={"target": "ops"}).status_code == 409
        page = client.get("/notifications")
        assert page.status_code == 200 and "No targets configured" in page.text


def samples(text: str) -> dict[tuple[str, ...], float]:
    """The figures of notifications: name, target, then the value of the other label if there is one."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if "notification" in sample.name:
                others = [value for name, value in sample.labels.items() if name != "target"]
                found[sample.name.removeprefix("logdoctor_"), sample.labels["target"], *others] = sample.value
    return found


def test_figures_are_told_to_those_who_may_see_all_jobs(guarded: Guarded, receiver: Receiver) -> None:
    client, reader = guarded.client, guarded.token("read")
    text = client.get("/metrics", headers=reader).text
    assert samples(text)["notifications", "ops", "dead"] == 0 and receiver.url not in text


def test_a_message_of_another_version_is_shown(tmp_path: Path, scanner: Scanner, receiver: Receiver) -> None:
    service = notified(tmp_path / "data", scanner, receiver)
    service.notifier = None
    entered = Notices(service.records.database).enter_trial(NewNotice("ops", "{}", 1.0, 2.0), "u1", 1.0)
    with local_client(service) as client:
        (one,) = client.get("/v1/notifications").json()["items"]
        assert (one["id"], one["incidents"]) == (entered.id, []) and "another version" in one["about"]
        assert "another version" in client.get("/notifications").text
