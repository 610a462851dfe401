"""The run of a job over HTTP, as a page, and on the command line."""

from starlette.testclient import TestClient

from logdoctor.service.service import Service
from tests.store.test_report import ECC, HOUR, KEY, MONDAY, ran
from tests.web.conftest import Guarded


def fill(service: Service) -> None:
    """A job that failed twice, and one of somebody else."""
    ran(service.records, "big <b>", 1, MONDAY, MONDAY + HOUR, ECC, MONDAY + HOUR + 2)
    ran(service.records, "big <b>", 2, MONDAY + HOUR + 60, MONDAY + 2 * HOUR, KEY)
    ran(service.records, "other", 1, MONDAY, MONDAY + HOUR, KEY)


def test_json_tells_attempts_and_what_was_lost(service: Service, client: TestClient) -> None:
    fill(service)
    told = client.get("/v1/jobs/big <b>/run").json()
    assert [one["reason"] for one in told["attempts"]] == ["ECC Error", "Key Error"]
    assert (told["detection"], told["restart"], told["wall"]) == (2.0, 58.0, 2 * HOUR)
    assert client.get("/v1/jobs/nobody/run").status_code == 404


def test_the_page_shows_them_and_verdicts_lead_there(service: Service, client: TestClient) -> None:
    fill(service)
    page = client.get("/jobs/big <b>")
    assert page.status_code == 200 and "<b>" not in page.text.replace("&lt;b&gt;", "")
    assert "99.2% of 2.0 h was effective" in page.text
    verdict = service.records.current("big <b>", 2)
    assert verdict is not None and f'href="/verdicts/{verdict.id}"' in page.text
    assert 'href="/jobs/big%20%3Cb%3E"' in client.get(f"/verdicts/{verdict.id}").text
    assert client.get("/jobs/nobody").status_code == 404


def test_tokens_see_the_runs_of_their_jobs(guarded: Guarded) -> None:
    fill(guarded.service)
    bound = guarded.token("read", prefixes=("other",))
    assert guarded.client.get("/v1/jobs/other/run", headers=bound).status_code == 200
    assert guarded.client.get("/v1/jobs/big <b>/run", headers=bound).status_code in (403, 404)
    assert guarded.client.get("/jobs/big <b>", headers=bound).status_code in (403, 404)
    assert guarded.client.get("/v1/jobs/other/run").status_code == 401
