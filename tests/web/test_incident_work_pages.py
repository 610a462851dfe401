"""The pages on which people work on incidents, as a browser without scripts uses them."""

import html
import re
import time
from typing import Any

import pytest
from starlette.testclient import TestClient

from logdoctor.service.service import Service
from logdoctor.store.jobs.records import JobFacts
from logdoctor.store.nodes.records import NodeRecords
from tests.store.test_incidents import DONE
from tests.web.conftest import Guarded
from tests.web.test_pages import NOW, changed, page, publish

SCRIPT = changed(
    reason="Key Error", category="Script", fault="user", recovery="fix_first", suspects=(), fingerprint="0" * 16
)


@pytest.fixture
def filled(service: Service) -> Service:
    """1: ECC on node-1 of llama, 512 GPUs; 2: a Key Error of bert-1 and bert-2."""
    service.records.put_job("llama", JobFacts(gpus=512), NOW - 7200)
    service.records.open_attempt("llama", 1, NOW - 7200)
    publish(service, "llama", at=NOW - 60)
    for number in (1, 2):
        publish(service, f"bert-{number}", SCRIPT, at=NOW - 50 + number)
    return service


def submit(client: TestClient, at: str, to: str, **fields: Any) -> Any:
    """What comes of a form on a page, with its key."""
    key = re.search(r'name="key" value="([^"]+)"', client.get(at).text)
    assert key is not None
    answer = client.post(to, data={"key": key[1], **fields})
    assert answer.status_code == 200, answer.text
    return answer


def listed(text: str) -> list[int]:
    return [int(found) for found in re.findall(r'data-id="(\d+)"', text)]


def said(text: str) -> str:
    found = re.search(r'<p class="banner said" role="status">(.*?)</p>', text, re.DOTALL)
    return html.unescape(found[1]) if found else ""


def test_an_incident_is_worked_on_from_its_page(filled: Service, client: TestClient) -> None:
    at, to = "/incidents/1", "/incidents/1/work"
    submit(client, at, to, deed="mine")
    submit(client, at, to, deed="comment", note="RMA <b>ticket</b> is open")
    shown = submit(client, at, to, deed="snooze", span="8h", more="3").text
    assert "<dd>testclient</dd>" in shown and "until it has 4 attempts" in shown
    assert "RMA &lt;b&gt;ticket" in shown and "<b>testclient</b> snoozed it" in shown
    assert listed(client.get("/").text) == [2] and listed(client.get("/?state=quiet").text) == [1]
    submit(client, at, to, deed="unsnooze")
    assert "Mine" in client.get("/").text and listed(client.get("/?assignee=testclient").text) == [1]
    refused = submit(client, at, to, deed="snooze", span="")
    assert "no end" in said(refused.text)
    assert said(client.get(at).text) == "", "it is said once"


def test_a_failure_or_a_node_is_muted_and_heard_again(filled: Service, client: TestClient) -> None:
    submit(client, "/incidents/1", "/incidents/1/work", deed="mute-node", span="1d", note="in repair")
    shown = submit(client, "/incidents/2", "/incidents/2/work", deed="mute-fingerprint", span="7d").text
    assert "<dt>Muted</dt><dd>fingerprint" in shown
    assert listed(client.get("/").text) == [] and listed(client.get("/?state=quiet").text) == [2, 1]
    muted = client.get("/attention").text
    assert "in repair" in muted and "node-1" in muted
    assert "not muted any more" in said(submit(client, "/attention", "/attention/mutes/1/lift").text)
    assert listed(client.get("/").text) == [1] and "lifted by testclient" in client.get("/attention").text
    assert "is over" in said(submit(client, "/attention", "/attention/mutes/1/lift").text)
    submit(client, "/attention", "/attention/mutes", kind="node", value="node-1", span="1h")
    assert listed(client.get("/").text) == []


def test_many_are_chosen_in_the_list(filled: Service, client: TestClient) -> None:
    shown = submit(client, "/", "/incidents/bulk", id=["1", "2"], step="acknowledge", note="mine", back="/?state=all")
    assert shown.url.query == b"state=all" and said(shown.text) == "2 incidents acknowledged."
    again = submit(client, "/", "/incidents/bulk", id=["1", "2"], step="acknowledge", back="//evil.example/")
    assert again.url.path == "/" and said(again.text).startswith("2 not: incident 1: testclient acknowledged it at")
    assert "No incident was chosen" in said(submit(client, "/", "/incidents/bulk", step="resolve").text)
    submit(client, "/", "/incidents/bulk", id=["1", "2"], step="resolve")
    assert listed(client.get("/").text) == []


def test_the_list_shows_what_a_failure_costs_and_sorts_by_it(filled: Service, client: TestClient) -> None:
    assert re.search(r"high 512 GPUs, 1,01\d GPU h", page(client, "/").text)
    assert listed(client.get("/").text) == [2, 1] and listed(client.get("/?order=severity").text) == [1, 2]
    assert listed(client.get("/?order=gpus").text) == [1, 2]


def test_a_runbook_is_linked_from_the_incident(filled: Service, client: TestClient) -> None:
    url = "https://wiki.example/ecc"
    submit(client, "/attention", "/attention/runbooks", kind="reason", value="ECC Error", url=url)
    assert f'<a href="{url}" rel="noopener noreferrer">' in client.get("/incidents/1").text
    assert url not in client.get("/incidents/2").text
    refused = submit(client, "/attention", "/attention/runbooks", kind="reason", value="x", url="javascript:alert(1)")
    assert "no http or https URL" in said(refused.text) and "javascript:" not in refused.text
    submit(client, "/attention", "/attention/runbooks", kind="reason", value="ECC Error", url="")
    assert url not in client.get("/incidents/1").text


def test_a_resolved_incident_does_not_shout(filled: Service, client: TestClient) -> None:
    loud = re.search(r'<p class="advice">(.*?)</p>', client.get("/incidents/1").text, re.DOTALL)
    assert loud is not None and "Cordon" in loud[1]
    filled.incidents.step(1, "resolve", "anna", "node swapped", time.time(), None)
    text = client.get("/incidents/1").text
    quiet = re.search(r'<p class="advice">(.*?)</p>', text, re.DOTALL)
    assert quiet is not None and "Cordon" not in quiet[1] and "node swapped" in quiet[1]
    assert "What it said to do: Cordon" in text


def test_the_page_says_which_later_attempt_ran_on(filled: Service, client: TestClient) -> None:
    for number in (1, 2):
        filled.records.publish(f"bert-{number}", 2, DONE, True, NOW)
    assert filled.incidents.tend(time.time()) == 1
    assert "attempt 2 of bert-1 ran on past the failure" in page(client, "/incidents/2").text


def test_a_cordon_leads_back_to_its_incident(filled: Service, client: TestClient) -> None:
    kept = NodeRecords(filled.records.database)
    one = filled.incidents.one(1)
    assert one is not None and one.newest is not None
    cordon = kept.want_cordon("node-1", "slurm", "anna", NOW, "ECC", verdict=one.newest.id)
    assert page(client, f"/nodes/node-1?cordon={cordon.id}").links()["Back to incident 1"] == "/incidents/1"
    assert "Back to incident" not in client.get("/nodes/node-1").text


def test_forms_are_for_those_who_may_and_only_from_our_pages(filled: Service, guarded: Guarded) -> None:
    client = guarded.client
    reader = guarded.secret("read")
    key = re.search(r'name="key" value="([^"]+)"', client.get("/login").text)
    assert key is not None
    client.post("/login", data={"token": reader, "key": key[1]})
    assert 'name="id"' not in client.get("/").text and 'name="deed"' not in client.get("/incidents/1").text
    for path in ("/incidents/1/work", "/incidents/bulk", "/attention/mutes"):
        assert client.post(path, data={"key": "x", "deed": "mine"}).status_code == 403
    assert filled.incidents.events(1)[0].step == "opened"
    operator = guarded.secret("read", "operate", name="anna")
    client.cookies.clear()
    key = re.search(r'name="key" value="([^"]+)"', client.get("/login").text)
    assert key is not None
    client.post("/login", data={"token": operator, "key": key[1]})
    assert client.post("/incidents/1/work", data={"key": "x", "deed": "mine"}).status_code == 403
    submit(client, "/incidents/1", "/incidents/1/work", deed="mine")
    one = filled.incidents.one(1)
    assert one is not None and one.assignee == "anna"
