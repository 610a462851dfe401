"""The report over HTTP and as a page."""

import csv
import io
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from starlette.testclient import TestClient

from logdoctor.service.service import Service
from logdoctor.store.jobs.records import JobFacts
from logdoctor.web.report.pages import Period
from tests import waiting
from tests.store.test_report import ECC, HOUR, KEY, MONDAY, ran
from tests.web.conftest import Guarded
from tests.web.test_pages import changed, page, publish, sign_in

EVIL = "<b>evil</b>\"'&"


def fill(service: Service, began: float = MONDAY) -> None:
    """A job that failed twice and ran on, and one of unknown size."""
    records = service.records
    records.put_job("big", JobFacts(gpus=1024), began)
    ran(records, "big", 1, began, began + 2 * HOUR, ECC)
    ran(records, "big", 2, began + 2.5 * HOUR, began + 6.5 * HOUR, ECC)
    ran(records, "small", 1, began, began + HOUR, KEY)


def report(client: TestClient, **params: Any) -> dict[str, Any]:
    answer = client.get("/v1/report", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


def test_json_tells_costs_weeks_and_who_decided(service: Service, client: TestClient) -> None:
    fill(service)
    told = report(client)
    assert [(row["name"], row["count"], row["gpu_hours"]) for row in told["reasons"]] == [
        ("ECC Error", 2, 6144.0),
        ("Key Error", 1, 0.0),
    ]
    assert told["reasons"][0]["to_restart"] == {"known": 1, "mean": 1800.0, "median": 1800.0}
    assert told["reasons"][1]["gpus"] == {"known": 0, "mean": None, "median": None}
    assert told["weeks"] == [
        {
            "monday": "2026-11-23",
            "count": 3,
            "counts": {"Infrastructure": 2, "Script": 1},
            "gpu_hours": {"Infrastructure": 6144.0, "Script": 0.0},
        }
    ]
    assert told["decided"]["rule"] == 2 and told["decided"]["structure"] == 1


def test_a_period_is_chosen_by_times(service: Service, client: TestClient) -> None:
    fill(service)
    assert report(client, since=MONDAY + HOUR, until=MONDAY + 2 * HOUR)["total"]["count"] == 1
    assert report(client, since=MONDAY + 9 * HOUR)["total"]["count"] == 0
    for wrong in ({"since": "soon"}, {"until": -1}, {"since": "nan"}, {"until": "inf"}):
        assert client.get("/v1/report", params=wrong).status_code == 422
        assert client.get("/v1/report.csv", params=wrong).status_code == 422


def test_csv_is_a_file_for_spreadsheets(service: Service, client: TestClient) -> None:
    fill(service)
    answer = client.get("/v1/report.csv", params={"until": MONDAY + 3 * HOUR})
    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.headers["content-disposition"] == 'attachment; filename="logdoctor-report.csv"'
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [(row["reason"], row["failures"]) for row in rows] == [("ECC Error", "1"), ("Key Error", "1")]


def test_shares_in_csv_are_not_rounded_away(service: Service, client: TestClient) -> None:
    fill(service)
    for number in range(3):
        service.records.put_job(f"j{number}", JobFacts(gpus=number + 1), MONDAY)
        ran(service.records, f"j{number}", 1, MONDAY, MONDAY + HOUR, KEY)
    reasons = list(csv.DictReader(io.StringIO(client.get("/v1/report.csv").text)))
    assert [float(row["gpu_hours_share"]) for row in reasons] == pytest.approx([6144 / 6150, 6 / 6150], abs=1e-8)


def test_days_the_wrong_way_round_are_said_to_be(service: Service, client: TestClient) -> None:
    fill(service)
    shown = page(client, "/report?from=2026-12-01&to=2026-01-01")
    assert "The dates are reversed" in shown.text and "No job failed" not in shown.text
    assert shown.links()["Swap them"] == "/report?from=2026-01-01&to=2026-12-01"
    assert "are reversed" not in page(client, "/report?from=2026-12-01&to=2026-12-01").text


@pytest.mark.parametrize(("query", "linked"), [("to=1969-12-30", "?until=0"), ("from=1969-01-01", "?since=0")])
def test_links_of_a_report_of_old_days_tell_the_same_as_the_page(
    service: Service, client: TestClient, query: str, linked: str
) -> None:
    fill(service)
    shown = page(client, f"/report?{query}")
    assert shown.links()["CSV"] == f"/v1/report.csv{linked}"
    told = report(client, **dict([linked[1:].split("=")]))
    assert (told["total"]["count"] == 0) == ("No job failed in this period" in shown.text)


def test_a_bound_token_sees_its_jobs_alone(guarded: Guarded) -> None:
    fill(guarded.service)
    mine = guarded.token("read", prefixes=("small",))
    told = guarded.client.get("/v1/report", headers=mine).json()
    assert [row["name"] for row in told["reasons"]] == ["Key Error"] and told["total"]["count"] == 1
    assert "ECC" not in guarded.client.get("/v1/report.csv", headers=mine).text
    sign_in(guarded, guarded.secret("read", prefixes=("small",)))
    shown = page(guarded.client, "/report?within=all")
    assert "Key Error" in shown.text and "ECC" not in shown.source and "6,144" not in shown.source


def test_the_page_shows_the_table_and_what_is_not_known(service: Service, client: TestClient) -> None:
    fill(service)
    shown = page(client, "/report?within=all")
    assert "Total 3 1,024 (2 of 3) 1,024 2.3 h 2.0 h 6,144 100% 30.0 min (1 of 3) 30.0 min" in shown.text
    assert "3 of 3" in shown.text and "Decided by a rule 2, the log's structure 1." in shown.text
    assert "Key Error 1 - not known" in shown.text
    assert "GPUs known for 2 of 3" in shown.text and "1 of 3 restarted" in shown.text
    assert shown.links()["ECC Error"] == "/attempts?outcome=failed&reason=ECC+Error"
    assert len(re.findall(r'<svg class="chart[a-z ]*" role="img"', shown.source)) == 2
    labels = [tag.attributes["data-label"] for tag in shown.all("td") if "data-label" in tag.attributes]
    assert len(labels) == 9 * 5, "each cell says on a phone what it is"


def test_what_costs_most_is_first_and_a_period_is_compared(service: Service, client: TestClient) -> None:
    fill(service)
    ran(service.records, "earlier", 1, MONDAY - 24 * HOUR, MONDAY - 23 * HOUR, KEY)
    shown = page(client, "/report?from=2026-11-23&to=2026-11-23")
    assert "Costliest reasons" in shown.text and "200% more than before" in shown.text
    told = report(client)["nodes"]
    assert [(one["name"], one["count"]) for one in told] == [("gpu-001", 2)] and told[0]["gpu_hours"] > 0
    assert "Costliest nodes" in shown.text and shown.links()["gpu-001"] == "/?q=is:all+node:%22gpu-001%22"
    assert "than before" not in page(client, "/report?within=all").text


def test_what_nobody_knows_is_a_category_of_its_own(service: Service, client: TestClient) -> None:
    publish(service, verdict=changed(reason="Unknown", category="None", fault="unknown", recovery="ask_human"))
    shown = page(client, "/report?within=all")
    marks = [("".join(tag.text).strip(), tag.attributes.get("class", "")) for tag in shown.all("span")]
    named = [mark for mark in marks if mark[1].startswith("category")]
    assert set(named) == {("Unknown", "category unknown")} and len(named) >= 2, "in the table and below the chart"
    assert 'class="c5"' in shown.source and "None" not in shown.text


def test_a_period_is_chosen_by_days_and_stays_in_the_address(service: Service, client: TestClient) -> None:
    fill(service)
    shown = page(client, "/report?from=2026-11-23&to=2026-11-23")
    assert (shown.field("from"), shown.field("to")) == ("2026-11-23", "2026-11-23")
    assert "Failures3 " in shown.text and "from 2026-11-23 to 2026-11-23" in shown.text
    assert shown.links()["CSV"] == f"/v1/report.csv?since={MONDAY:.0f}&until={MONDAY + 86_400:.0f}"
    assert client.get(shown.links()["CSV"]).text.count("\n") == 3
    assert "No job failed in this period" in page(client, "/report?to=2026-11-22").text
    assert "are reversed" in page(client, "/report?from=2026-11-24&to=2026-11-01").text
    sent = client.get("/report?from=2026-11-23&to=", follow_redirects=False)
    assert (sent.status_code, sent.headers["location"]) == (303, "/report?from=2026-11-23")


@pytest.mark.parametrize("wrong", ["from=soon", "to=2026-13-01", "within=ever", "from=2026-11-23%00", "to=99999-01-01"])
def test_a_wrong_period_is_told(lasting: TestClient, wrong: str) -> None:
    assert lasting.get(f"/report?{wrong}").status_code == 400


@pytest.mark.parametrize("days", ["from=0001-01-01", "to=9999-12-31", "from=0001-01-01&to=9999-12-31", "to=1950-01-01"])
def test_any_day_is_a_bound(service: Service, client: TestClient, days: str) -> None:
    fill(service)
    page(client, f"/report?{days}")


def test_without_a_choice_it_is_the_last_month() -> None:
    assert Period().bounds(MONDAY) == (MONDAY - 30 * 86_400, None)
    assert Period(within="all").bounds(MONDAY) == (None, None)
    assert Period().url == "/report"


def test_an_empty_service_has_a_report(client: TestClient) -> None:
    assert "No job failed in this period" in page(client, "/report").text
    assert "once a job has failed" in page(client, "/report?within=all").text


def test_what_comes_from_outside_is_text(service: Service, client: TestClient) -> None:
    ran(service.records, "j", 1, MONDAY, MONDAY + HOUR, changed(reason=EVIL, category="Script"))
    shown = page(client, "/report?within=all")
    assert EVIL in shown.text and "<b>evil" not in shown.source


def test_many_years_make_no_endless_chart(service: Service, client: TestClient) -> None:
    ran(service.records, "old", 1, 1000.0, 2000.0, KEY)
    fill(service)
    assert len(report(client)["weeks"]) == 2
    shown = page(client, "/report?within=all")
    weeks = re.findall(r'<th scope="row">(\d{4}-\d\d-\d\d)</th>', shown.source)
    assert len(weeks) == 2 * 53 and weeks[-1] == "2026-11-23"
    assert "The last 53 weeks" in shown.text


def test_a_failure_that_was_sent_is_in_the_report(client: TestClient) -> None:
    client.put("/v1/jobs/llama", json={"gpus": 8})
    client.post("/v1/jobs/llama/attempts/1/streams/main/log?offset=0", content=b"KeyError: 'tokens'\n")
    client.post("/v1/jobs/llama/attempts/1/end", json={"exit_code": 1})
    told = waiting.until(lambda: (found := report(client))["total"]["count"] and found)
    assert told["total"]["gpus"] == {"known": 1, "mean": 8.0, "median": 8.0}
    assert datetime.fromisoformat(told["weeks"][0]["monday"]).replace(tzinfo=UTC).weekday() == 0
    assert "Key Error" in page(client, "/report").text
