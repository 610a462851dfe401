"""Buttons in Slack: they acknowledge by the name of who pressed them, and nobody else can press them."""

import hashlib
import hmac
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from logdoctor.rules.scanner import Scanner
from logdoctor.service.delivering import NotifyTerms
from logdoctor.service.notify.sending import Way
from logdoctor.service.notifying import Notifier
from logdoctor.service.service import Service
from logdoctor.store.incidents.notices import Notices
from tests.notify.test_slack_actions import payload
from tests.web.conftest import local_client, new_service, options
from tests.web.test_pages import publish

SECRET = "8f742231b10e8888abcd99yyyzzz85a5"


@pytest.fixture
def service(tmp_path: Path, scanner: Scanner) -> Service:
    service = new_service(tmp_path / "data", scanner)
    terms = NotifyTerms(slack_secret=SECRET)
    service.notifier = Notifier([], Notices(service.records.database), terms, Way(5.0))
    publish(service, "llama")
    return service


def press(client: TestClient, body: bytes, secret: str = SECRET, at: float | None = None) -> Any:
    """What Slack gets for an interaction that it signs."""
    moment = str(int(time.time() if at is None else at))
    content = b"v0:" + moment.encode() + b":" + body
    signature = "v0=" + hmac.new(secret.encode(), content, hashlib.sha256).hexdigest()
    headers = {"X-Slack-Request-Timestamp": moment, "X-Slack-Signature": signature}
    headers["Content-Type"] = "application/x-www-form-urlencoded"
    return client.post("/slack/actions", content=body, headers=headers)


def button(action: str, incident: int, who: str = "anna", **more: str) -> bytes:
    acts = [{"action_id": action, "value": str(incident)}]
    return payload(actions=acts, user={"id": "U1", "username": who}, **more)


def test_a_button_acknowledges_by_the_name_that_slack_tells(service: Service) -> None:
    with local_client(service, options(wants_token=True)) as client:
        answer = press(client, button("acknowledge", 1))
        assert answer.status_code == 200 and answer.json()["text"] == "incident 1: done"
        one = service.incidents.one(1)
        assert one is not None and (one.state, one.by) == ("acknowledged", "anna (Slack)")
        again = press(client, button("acknowledge", 1, "ben"))
        assert again.status_code == 200 and "anna (Slack) acknowledged it at" in again.json()["text"]
        assert press(client, button("assign", 1, "ben")).status_code == 200
        one = service.incidents.one(1)
        assert one is not None and one.assignee == "ben (Slack)"
        assert "does not exist" in press(client, button("acknowledge", 99)).json()["text"]


def test_who_takes_an_incident_has_acknowledged_it(service: Service) -> None:
    with local_client(service, options(wants_token=True)) as client:
        assert press(client, button("assign", 1)).status_code == 200
    told = [(one.step, one.by) for one in service.incidents.events(1)]
    assert told[:2] == [("acknowledged", "anna (Slack)"), ("assigned", "anna (Slack)")]


def test_a_request_is_taken_once_and_only_from_slack(service: Service) -> None:
    with local_client(service, options(wants_token=True)) as client:
        body, now = button("acknowledge", 1), time.time()
        for answer in (
            press(client, body, secret="another"),
            press(client, body, at=now - 400),
            press(client, body, at=now + 400),
            client.post("/slack/actions", content=body),
            press(client, b"payload=x"),
        ):
            assert answer.status_code == 403, answer.text
        assert service.incidents.events(1)[0].step == "opened"
        assert press(client, body, at=now).status_code == 200
        service.incidents.step(1, "resolve", "ben", "", now, None)
        service.incidents.step(1, "reopen", "ben", "", now, None)
        assert press(client, body, at=now).status_code == 403, "it is a replay"
        assert service.incidents.events(1)[0].step == "reopened"
        assert press(client, b"x" * 70_000).status_code == 413
        deep = b'payload={"type":"block_actions","more":' + b"[" * 9_000 + b"]" * 9_000 + b"}"
        assert press(client, deep).status_code == 403


def test_who_tries_many_signatures_is_held_up(service: Service) -> None:
    with local_client(service, options(wants_token=True)._replace(clock=lambda: 0.0)) as client:
        answers = {press(client, button("acknowledge", 1), secret="guess").status_code for _ in range(40)}
    assert answers == {403, 429}


def test_without_a_secret_there_is_no_such_address(tmp_path: Path, scanner: Scanner) -> None:
    service = new_service(tmp_path / "data", scanner)
    with local_client(service) as client:
        assert press(client, button("acknowledge", 1)).status_code == 404
