"""Who acts where no tokens are wanted: the name that somebody gives in the browser, marked as unverified."""

import re
import time
from typing import Any

import pytest
from starlette.testclient import TestClient

from logdoctor.service.service import Service
from logdoctor.store.learning.overrides import NewOverride
from tests.web.conftest import Guarded
from tests.web.test_pages import publish


def submit(client: TestClient, at: str, to: str, **fields: str) -> Any:
    key = re.search(r'name="key" value="([^"]+)"', client.get(at).text)
    assert key is not None
    return client.post(to, data={"key": key[1], **fields})


def test_who_acts_is_asked_once_and_kept_in_the_browser(client: TestClient, service: Service) -> None:
    publish(service, "llama")
    assert "Who are you?" in client.get("/").text and 'name="who"' in client.get("/incidents/1").text
    submit(client, "/incidents/1", "/incidents/1/acknowledge", note="on it", who="Anna L.")
    one = service.incidents.one(1)
    assert one is not None and one.by == "Anna L. (unverified)"
    assert 'name="who"' not in client.get("/incidents/1").text and "Anna L." in client.get("/").text
    client.post("/v1/incidents/1/resolve", json={})
    assert service.incidents.events(1)[0].by == "Anna L. (unverified)"
    assert submit(client, "/name?next=/report", "/name", name="", next="/report").url.path == "/report"
    client.post("/v1/incidents/1/reopen", json={})
    assert service.incidents.events(1)[0].by == "testclient"


def test_a_form_that_shows_its_answer_asks_for_no_name_again(client: TestClient, service: Service) -> None:
    stored = publish(service, "llama")
    at = f"/verdicts/{stored.id}/correct"
    assert 'name="who"' in client.get(at).text
    answer = submit(client, at, at, reason="Hang", step="preview", who="anna")
    assert answer.status_code == 200 and 'name="who"' not in answer.text and ">anna<" in answer.text


def test_a_confirmation_and_its_withdrawal_ask_for_a_name(client: TestClient, service: Service) -> None:
    stored = publish(service, "llama")
    at = f"/verdicts/{stored.id}"
    assert asks(client, at, f"{at}/confirm")
    submit(client, at, f"{at}/confirm", known="0", who="anna")
    (case,) = service.casework.confirmed.page().items
    assert case.by == "anna (unverified)"
    client.cookies.clear()
    at = f"/cases/{case.id}"
    assert asks(client, at, f"{at}/withdraw")
    submit(client, at, f"{at}/withdraw", why="wrong", who="ben")
    told = service.casework.confirmed.one(case.id)
    assert told is not None and told.withdrawn and told.withdrawn_by == "ben (unverified)"


def test_an_override_is_taken_back_under_a_name(client: TestClient, service: Service) -> None:
    rule = service.scanner.book.diagnoses[0].id
    over = service.rules.overrides.add(NewOverride(rule, "fleet"), "ops", time.time())
    at = f"/rules/override/{over.id}"
    assert asks(client, at, f"{at}/restore")
    submit(client, at, f"{at}/restore", who="anna")
    assert "anna (unverified)" in client.get(at).text


def asks(client: TestClient, at: str, to: str) -> bool:
    """Whether the form on a page that is sent to an address asks for a name."""
    form = re.search(rf'action="{re.escape(to)}".*?</form>', client.get(at).text, re.DOTALL)
    return form is not None and 'name="who"' in form[0]


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("  anna \n b  ", "anna b"),
        ("ops (verified)", "ops verified"),
        ("<script>x</script>", "scriptx/script"),
        ("x" * 500, "x" * 60),
        ("a\u202eb\0c", "abc"),
    ],
)
def test_a_name_is_made_harmless(client: TestClient, service: Service, said: str, kept: str) -> None:
    publish(service, "llama")
    submit(client, "/name", "/name", name=said)
    client.post("/v1/incidents/1/acknowledge", json={})
    assert service.incidents.events(1)[0].by == f"{kept} (unverified)"


def test_nobody_is_sent_to_another_site(client: TestClient) -> None:
    assert submit(client, "/name?next=//evil.example", "/name", name="x", next="//evil.example").url.path == "/"
    assert client.post("/name", data={"name": "x"}).status_code == 403, "it is not a form of ours"


def test_the_name_of_a_token_goes_before_any_other(guarded: Guarded) -> None:
    client = guarded.client
    publish(guarded.service, "llama")
    secret = guarded.secret("read", "operate", name="anna")
    key = re.search(r'name="key" value="([^"]+)"', client.get("/login").text)
    assert key is not None
    client.post("/login", data={"token": secret, "key": key[1]})
    assert "Who are you?" not in client.get("/").text and 'name="who"' not in client.get("/incidents/1").text
    submit(client, "/incidents/1", "/name", name="ben")
    submit(client, "/incidents/1", "/incidents/1/acknowledge", who="ben")
    assert guarded.service.incidents.events(1)[0].by == "anna"
