"""A shipped rule that was wrong is overruled: by a correction, on its page, over the API; and speaks again."""

import datetime
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from logdoctor.rules.scanner import Scanner
from logdoctor.service.service import Service
from logdoctor.store.jobs.records import JobFacts
from logdoctor.store.learning.overrides import NewOverride
from tests import waiting
from tests.failure_agent.write_back.conftest import HEAD
from tests.web.conftest import Guarded, bearer
from tests.web.test_correcting import correcting, fields, learning, sent
from tests.web.test_pages import checked, page, send

OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79 GiB in all"
LEASE = "ERROR quota service refused the lease of team 'vision' for 12 nodes"
LOG = f"starting\n{OUT_OF_MEMORY}\n"
BOTH = HEAD + f"{LEASE}\n{OUT_OF_MEMORY}\n"
BEFORE = HEAD.count("\n")


@pytest.fixture
def taught(tmp_path: Path, scanner: Scanner) -> Iterator[tuple[TestClient, Service]]:
    """A service that learns."""
    with learning(tmp_path, scanner) as both:
        yield both


def saved(client: TestClient, service: Service, job: str, reason: str, line: int, **more: str) -> None:
    """Correct the verdict on a job through the pages, and wait until that is the verdict."""
    stored = service.records.current(job, 1)
    assert stored is not None
    url = f"/verdicts/{stored.id}/correct"
    shown = correcting(client, stored, reason=reason, evidence=f"main:{line}")
    answer = client.post(url, data=fields(shown, url) | {"step": "save"} | more, follow_redirects=False)
    assert answer.status_code == 303, checked(answer).text
    waiting.until(lambda: (now := service.records.current(job, 1)) and now.verdict.reason == reason)


def test_the_same_log_is_right_tomorrow(taught: tuple[TestClient, Service]) -> None:
    client, service = taught
    first = sent(client, service, "a", LOG)
    rule, book = first.verdict.decided_by.rule, first.verdict.decided_by.rulebook
    sent(client, service, "a-twin", LOG)
    shown = correcting(client, first, reason="Key Error", evidence="main:2")
    assert "would again tomorrow" in shown.text and "it says Key Error of such lines" in shown.text
    assert "changes 1 stored attempt" in shown.text, "the twin, for all jobs"
    today = datetime.datetime.now(datetime.UTC).date()
    saved(client, service, "a", "Key Error", 2, overrule="fleet", days="30")
    over = next(one for one in service.rules.overrides.list() if one.rule == rule)
    assert (over.rule, over.scope, over.reason) == (rule, "fleet", "Key Error") and over.expires is not None
    assert over.expires - today in (datetime.timedelta(30), datetime.timedelta(31)), "at midnight"
    again = send(client, "b", LOG.encode())
    assert (again.verdict.reason, again.verdict.decided_by.kind) == ("Key Error", "rule")
    assert again.verdict.decided_by.rule == f"override/{over.id}" and again.verdict.decided_by.rulebook != book
    told = page(client, f"/verdicts/{again.id}")
    assert f"/rules/override/{over.id}" in told.links().values()
    service.rules.overrides.withdraw(over.id, "ops", "it was right", 1.0)
    service.overruling.look()
    once_more = send(client, "c", LOG.encode()).verdict
    assert (once_more.reason, once_more.decided_by.rulebook) == (first.verdict.reason, book)


def test_where_another_line_names_the_failure_the_rule_is_muted(taught: tuple[TestClient, Service]) -> None:
    client, service = taught
    first = sent(client, service, "a", BOTH)
    rule = first.verdict.decided_by.rule
    assert first.verdict.reason == "Out of Memory Error"
    shown = correcting(client, first, reason="OS Error", evidence=f"main:{BEFORE + 1}")
    assert "it is muted" in shown.text and "the case decides about failures like it" in shown.text
    saved(client, service, "a", "OS Error", BEFORE + 1, overrule="job", days="")
    found = service.rules.overrides.list()
    assert rule in {over.rule for over in found}, "with those that would decide once it is silent"
    assert {(over.scope, over.whose, over.reason, over.expires) for over in found} == {("job", "a", "", None)}
    service.records.put_job("a", JobFacts(), 1.0)
    client.post("/v1/jobs/a/attempts/2/streams/main/log?offset=0", content=BOTH.encode())
    client.post("/v1/jobs/a/attempts/2/end", json={"exit_code": 1})
    second = waiting.until(lambda: (now := service.records.current("a", 2)) and now.final and now)
    assert second.verdict.decided_by.rule != rule and second.verdict.reason != "Out of Memory Error"
    other = send(client, "b", BOTH.encode()).verdict
    assert (other.reason, other.decided_by.rule) == ("Out of Memory Error", rule), "only the job is meant"


def test_a_muted_rule_still_protects_its_lines(scanner: Scanner) -> None:
    rule = next(one for one in scanner.book.diagnoses if one.verdict.reason == "Out of Memory Error")
    from logdoctor.learning.form import overriding

    book = scanner.book.overruled((overriding(NewOverride(rule.id, "fleet"), "override/1"),))
    assert [one.id for one in book.diagnoses] == [one.id for one in scanner.book.diagnoses]
    muted = book.rule(rule.id)
    assert muted.when == rule.when and muted.must_match == rule.must_match  # type: ignore[union-attr]
    assert book.digest != scanner.book.digest and book.shipped_digest == scanner.book.shipped_digest


# --- on the page of the rule, over the API, in the shell


def test_the_page_of_a_rule_overrules_it_after_a_back_test_and_takes_that_back(
    taught: tuple[TestClient, Service],
) -> None:
    client, service = taught
    first = sent(client, service, "a", LOG)
    rule = first.verdict.decided_by.rule
    shown = page(client, f"/rules/{rule}")
    assert "Nobody has overruled it" in shown.text and shown.links()["Overrule or mute it"]
    url = f"/rules/{rule}/override"
    form = {
        "key": page(client, url).field("key"),
        "means": "reason",
        "reason": "NVLink Error",
        "scope": "job",
        "whose": "a",
        "days": "7",
        "why": "test",
    }
    seen = checked(client.post(url, data=form | {"step": "preview"}))
    assert "it changes 1" in seen.text and service.rules.overrides.list() == []
    assert "changes none" in checked(client.post(url, data=form | {"step": "preview", "whose": "b"})).text
    answer = client.post(url, data=form | {"step": "save"}, follow_redirects=False)
    assert answer.headers["location"] == "/rules/override/1"
    told = page(client, "/rules/override/1")
    assert (
        "NVLink Error instead, for the job a" in told.text
        and "in force" in told.text
        and "kind: 'override'" not in told.text
    )
    assert f"rule: {rule}" in told.text, "as a rule file"
    assert (
        "Override 1" in page(client, "/rules/overrides").text and "NVLink Error" in page(client, f"/rules/{rule}").text
    )
    back = client.post("/rules/override/1/restore", data={"key": told.field("key"), "why": "done"})
    assert "withdrawn" in checked(back).text and "done" in checked(back).text
    assert [one.withdrawn for one in service.rules.overrides.list(rule, withdrawn=True)] == [True]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("whose", "", "names no job"),
        ("days", "-1", "days"),
        ("days", "many", "days"),
        ("scope", "moon", "scope"),
        ("means", "reason", "gives no reason"),
    ],
)
def test_what_cannot_be_overruled_stays_in_the_form(
    taught: tuple[TestClient, Service], field: str, value: str, words: str
) -> None:
    client, service = taught
    rule = next(one.id for one in service.scanner.book.diagnoses)
    url = f"/rules/{rule}/override"
    form = {"key": page(client, url).field("key"), "scope": "job", "whose": "a", "step": "save", field: value}
    answer = client.post(url, data=form)
    assert answer.status_code == 422 and words in checked(answer).text
    assert service.rules.overrides.list() == []


def test_the_api_overrules_and_refuses(taught: tuple[TestClient, Service]) -> None:
    client, service = taught
    first = sent(client, service, "a", LOG)
    rule = first.verdict.decided_by.rule
    body = {"rule": rule, "scope": "fleet", "reason": "NVLink Error", "why": "loose bridge"}
    found = client.post("/v1/rule-overrides/preview", json=body).json()
    assert (found["attempts"], found["changed"]) == (1, 1) and found["changes"][0]["after"] == "NVLink Error"
    assert client.get("/v1/rule-overrides").json()["items"] == []
    made = client.post("/v1/rule-overrides", json=body)
    assert made.status_code == 201 and made.json()["rule"] == rule and made.json()["by"] == "testclient"
    assert send(client, "b", LOG.encode()).verdict.reason == "NVLink Error"
    again = client.post("/v1/rule-overrides", json=body | {"reason": "", "days": None}).json()
    former, now = client.get("/v1/rule-overrides", params={"withdrawn": True}).json()["items"][::-1]
    assert (former["withdrawn_why"], now["expires"]) == ("replaced by a later one", None)
    gone = client.delete(f"/v1/rule-overrides/{again['id']}", params={"why": "mended"})
    assert gone.json()["withdrawn_why"] == "mended"
    assert client.delete(f"/v1/rule-overrides/{again['id']}").status_code == 409
    for wrong, status in (
        ({"rule": "diagnosis/none"}, 404),
        ({"rule": "learned/x/y"}, 409),
        ({"rule": service.scanner.book.filters[0].id}, 409),
        ({"reason": "Bad Luck"}, 422),
        ({"scope": "job"}, 422),
    ):
        assert client.post("/v1/rule-overrides", json=body | wrong).status_code == status, wrong
    correction = {"reason": "Key Error", "overrule": {"scope": "job", "days": 1}, "suspects": []}
    verdict = service.records.current("a", 1)
    assert verdict is not None
    lesson = client.post(f"/v1/verdicts/{verdict.id}/lesson", json=correction).json()
    assert rule in [one["rule"] for one in lesson["objections"]]
    assert client.post(f"/v1/verdicts/{verdict.id}/correct", json=correction).status_code == 200
    assert {one.whose for one in service.rules.overrides.list()} == {"a"}


def test_who_may_not_see_all_jobs_overrules_none(guarded: Guarded) -> None:
    rules = guarded.service.rules.overrides
    rules.add(NewOverride("diagnosis/a", "job", "team-a-1"), "ops", 1.0)
    rules.add(NewOverride("diagnosis/b", "fleet"), "ops", 1.0)
    bound = bearer(guarded.secret("read", "operate", prefixes=("team-a-",)))
    items = guarded.client.get("/v1/rule-overrides", headers=bound).json()["items"]
    assert [one["rule"] for one in items] == ["diagnosis/a"]
    assert guarded.client.get("/v1/rule-overrides/2", headers=bound).status_code == 404
    assert guarded.client.delete("/v1/rule-overrides/1", headers=bound).status_code == 403
    rule = guarded.service.scanner.book.diagnoses[0].id
    assert guarded.client.post("/v1/rule-overrides", json={"rule": rule}, headers=bound).status_code == 403
    reader = bearer(guarded.secret("read"))
    assert guarded.client.post("/v1/rule-overrides", json={"rule": rule}, headers=reader).status_code == 403
