"""What a browser is answered when an address is wrong, or a form comes too late: a page, and the way back."""

from starlette.testclient import TestClient

from logdoctor.store.nodes.records import NodeRecords
from logdoctor.types.nodes import Action
from tests.web.conftest import Guarded
from tests.web.test_pages import checked, page, publish, sign_in

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
HERE = "http://127.0.0.1"


def test_a_wrong_address_is_a_page_for_browsers_and_json_for_programs(lasting: TestClient) -> None:
    for path in ("/nothing", "/incidents/1/nothing/more", "/<script>"):
        answer = lasting.get(path, headers=BROWSER)
        assert answer.status_code == 404
        shown = checked(answer)
        assert (
            "Page not found: nothing is at this address" in shown.text and shown.links()["Go to the incidents"] == "/"
        )
        assert lasting.get(path).json()["error"]["code"] == "not_found"
    assert lasting.get("/v1/nothing", headers=BROWSER).json()["error"]["code"] == "not_found"


def test_a_method_that_a_page_does_not_have_is_told_likewise(lasting: TestClient) -> None:
    answer = lasting.post("/cases", headers=BROWSER)
    assert answer.status_code == 405 and answer.headers["allow"] == "GET"
    assert checked(answer).links()["Go to the incidents"] == "/"
    assert lasting.post("/cases").json()["error"]["code"] == "method_not_allowed"


def test_a_stranger_learns_no_more_from_a_wrong_address(guarded: Guarded) -> None:
    shown = checked(guarded.client.get("/nothing", headers=BROWSER))
    assert "Page not found: nothing is at this address" in shown.text and not shown.all("form")


def test_who_is_signed_out_by_a_form_comes_back_to_its_page(guarded: Guarded) -> None:
    stored = publish(guarded.service)
    incident = guarded.service.incidents.of(stored.job, stored.attempt)
    sender = f"/incidents/{incident}/acknowledge"
    came = {
        f"{HERE}/?node=gpu-12": "%2F%3Fnode%3Dgpu-12",
        f"{HERE}/incidents/{incident}?verdict={stored.id}": f"%2Fincidents%2F{incident}%3Fverdict%3D{stored.id}",
        f"https://elsewhere.example/incidents/{incident}?verdict=9": f"%2Fincidents%2F{incident}",
        f"{HERE}@elsewhere.example/incidents/9": f"%2Fincidents%2F{incident}",
        f"{HERE}//elsewhere.example/": f"%2Fincidents%2F{incident}",
        f"{HERE}/login?next=/x": f"%2Fincidents%2F{incident}",
        "http://[": f"%2Fincidents%2F{incident}",
        "": f"%2Fincidents%2F{incident}",
    }
    for referer, wanted in came.items():
        answer = guarded.client.post(sender, headers={"Referer": referer}, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, f"/login?next={wanted}&unsent=1"), referer
    asked = page(guarded.client, answer.headers["location"])
    assert "Your form was not accepted" in asked.text and "may be lost" in asked.text
    assert asked.field("next") == f"/incidents/{incident}"
    assert "not taken" not in page(guarded.client, "/login?next=/cases").text
    assert guarded.client.post("/actions", headers=BROWSER).status_code == 405


def test_a_wrong_address_keeps_the_number_of_what_waits(guarded: Guarded) -> None:
    kept = NodeRecords(guarded.service.records.database)
    assert kept.propose(Action("reboot", ("gpu-02",), "ask", "wrong data", 1), None, None, 1.0)
    said = "1 waiting"
    assert said not in checked(guarded.client.get("/nothing", headers=BROWSER)).text, "to a stranger"
    sign_in(guarded, guarded.secret("read"))
    assert said in checked(guarded.client.get("/nothing", headers=BROWSER)).text
    guarded.client.cookies.clear()
    sign_in(guarded, guarded.secret("read", prefixes=("llama",), name="bound"))
    assert said not in checked(guarded.client.get("/nothing", headers=BROWSER)).text, "nodes are shared"
