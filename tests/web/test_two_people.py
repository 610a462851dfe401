"""Two people say what a failure was at the same time: the second one is told, and nothing is lost without a word."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from logdoctor.service.service import Service
from tests.at_once import at_once
from tests.web.test_correcting import correcting, fields
from tests.web.test_pages import FAULT, Page, changed, checked, page, publish


def confirm_form(client: TestClient, id: int) -> dict[str, str]:
    return fields(page(client, f"/verdicts/{id}"), f"/verdicts/{id}/confirm")


def said(service: Service) -> list[tuple[str, str]]:
    return [(case.reason, case.by) for case in service.casework.confirmed.cases()]


def test_a_confirmation_takes_no_correction_away(client: TestClient, service: Service) -> None:
    stored = publish(service)
    older = confirm_form(client, stored.id)
    assert older["known"] == "0"
    url = f"/v1/verdicts/{stored.id}"
    assert client.post(f"{url}/correct", json={"reason": "Key Error"}).status_code == 200
    answer = client.post(f"/verdicts/{stored.id}/confirm", data=older, follow_redirects=False)
    assert answer.status_code == 409
    assert "testclient has said since that it was Key Error" in checked(answer).text
    assert said(service) == [("Key Error", "testclient")]
    fresh = confirm_form(client, stored.id)
    assert client.post(f"/verdicts/{stored.id}/confirm", data=fresh, follow_redirects=False).status_code == 303
    assert said(service) == [(FAULT.reason, "testclient")], "who saw the other one may say so"


@pytest.mark.parametrize("way", ["confirm", "correct"])
def test_programs_may_say_what_they_saw(client: TestClient, service: Service, way: str) -> None:
    stored = publish(service)
    url, body = f"/v1/verdicts/{stored.id}/{way}", {"reason": "Key Error"} if way == "correct" else {}
    first = client.post(url, json=body | {"known": 0})
    assert first.status_code == 200
    again = client.post(url, json=body | {"known": 0})
    assert again.status_code == 409 and again.json()["error"]["code"] == "superseded"
    assert f"case {first.json()['id']}" in again.json()["error"]["next_step"]
    assert client.post(url, json=body | {"known": first.json()["id"]}).status_code == 200
    assert client.post(url, json=body).status_code == 200, "who does not say is not asked"
    last = service.casework.confirmed.cases()[-1].id
    assert client.delete(f"/v1/cases/{last}").status_code == 200
    gone = client.post(url, json=body | {"known": last})
    assert gone.status_code == 409 and f"withdrew case {last}" in gone.json()["error"]["cause"]


def test_a_verdict_that_was_replaced_is_neither_confirmed_nor_corrected(client: TestClient, service: Service) -> None:
    old = publish(service)
    form = confirm_form(client, old.id)
    correction = fields(correcting(client, old, evidence=""), f"/verdicts/{old.id}/correct") | {"step": "save"}
    new = publish(service, verdict=changed(why="seen anew"))
    assert new.id != old.id
    for way, data in (("confirm", form), ("correct", correction)):
        answer = client.post(f"/verdicts/{old.id}/{way}", data=data, follow_redirects=False)
        assert answer.status_code == 409 and "no longer current" in checked(answer).text
    assert client.post(f"/v1/verdicts/{old.id}/confirm", json={"known": 0}).status_code == 409
    assert said(service) == []


def test_of_many_at_once_one_stands_and_the_others_are_told(client: TestClient, service: Service) -> None:
    stored = publish(service)
    form = fields(correcting(client, stored, evidence=""), f"/verdicts/{stored.id}/correct") | {"step": "save"}

    def save(reason: str) -> Any:
        data = form | {"reason": reason}
        return client.post(f"/verdicts/{stored.id}/correct", data=data, follow_redirects=False)

    reasons = ("Key Error", "OS Error", "Type Error", "CUDA Error", "Node Failure", "Network Error")
    answers = at_once(save, reasons)
    assert sorted(answer.status_code for answer in answers) == [303, 409, 409, 409, 409, 409]
    ((reason, _),) = said(service)
    assert all(reason in Page(one.text).text for one in answers if one.status_code == 409)
    assert len(service.casework.confirmed.of(stored.job, stored.attempt)) == 1
