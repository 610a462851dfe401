"""The list of incidents as a browser gets it: what a row says, what the filters find, what a bound token sees."""

from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from logdoctor.service.service import Service
from logdoctor.store.jobs.records import End, JobFacts, StoredVerdict
from logdoctor.types import Evidence, Suspect
from logdoctor.web.incidents.filters import IncidentFilters
from logdoctor.web.jobs.excerpts import gist
from logdoctor.web.url_query import PAGE
from logdoctor.words import phrases
from tests.web.conftest import FAILED, LOCAL, Guarded
from tests.web.test_pages import FAULT, HOSTILE, NOW, Page, changed, page, publish, send

SCRIPT = changed(
    reason="Key Error", category="Script", fault="user", recovery="fix_first", suspects=(), fingerprint="0" * 16
)
"""A failure of the code, which is the same wherever it runs."""


def attempt(service: Service, job: str, number: int, at: float, **changes: Any) -> StoredVerdict:
    """A verdict on one of several attempts of a job."""
    service.records.put_job(job, JobFacts(), at)
    stored = service.records.publish(job, number, changed(**changes), True, at)
    assert stored is not None
    return stored


def ids(shown: Page) -> list[int]:
    """The incidents of a list, in order."""
    return [int(tag.attributes["data-id"]) for tag in shown.all("tr") if "data-id" in tag.attributes]


def of(service: Service, job: str, number: int = 1) -> int:
    """The incident that an attempt is in."""
    found = service.incidents.of(job, number)
    assert found is not None
    return found


# --- a row


def test_a_row_says_what_died_where_and_what_to_do(client: TestClient, service: Service) -> None:
    publish(service, "llama", user="research", at=NOW - 7200)
    shown = page(client, "/")
    assert ids(shown) == [of(service, "llama")]
    for word in ("new", "ECC Error", "Infrastructure", "the cause", "Cordon the node, then restart", "llama / 1"):
        assert word in shown.text
    assert "2 h ago" in shown.text and phrases.short_moment(NOW - 7200, NOW) in shown.text
    links = shown.links()
    assert links["ECC Error"] == f"/incidents/{of(service, 'llama')}"
    assert links["node-1"] == "/nodes/node-1" and links["research"] == "/?q=user:research"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (
            "[rank0]: RuntimeError: [enforce fail at alloc_cpu.cpp:127]",
            "RuntimeError: [enforce fail at alloc_cpu.cpp:127]",
        ),
        ("11: [rank11]:[E804 20:26:11.741734404 ProcessGroupNCCL.cpp:632] [Rank 11] late", "late"),
        ("gpu-07: [Sun Jul 23 12:00:01 2026] NVRM: Xid 74", "NVRM: Xid 74"),
        ("[os-a100-03] Cuda failure", "Cuda failure"),
        ("2026-11-21 10:00:00,123 Retrying in 8s [Retry 5/5].", "Retrying in 8s [Retry 5/5]."),
        ("KeyError: 'text'", "KeyError: 'text'"),
        ("[Retry 5/5] gave up", "[Retry 5/5] gave up"),
        ("[rank3]:", "[rank3]:"),
        ("", ""),
    ],
)
def test_a_row_has_the_words_of_a_line_and_not_what_its_writer_puts_before(line: str, shown: str) -> None:
    cited = Evidence("log", "main", 1, line, "r")
    assert gist(changed(evidence=(cited,))) == shown


def test_attempts_on_one_node_are_one_row_that_counts_them(client: TestClient, service: Service) -> None:
    for number in range(1, 8):
        attempt(service, f"job-{number}", 1, NOW - 10_000 + number)
    publish(service, "elsewhere", changed(suspects=(Suspect("node-2", None, None, "x"),)), NOW)
    shown = page(client, "/")
    assert ids(shown) == [of(service, "elsewhere"), of(service, "job-7")]
    assert "7 failures" in shown.text and "job-7 / 1" in shown.text and "job-3" not in shown.text
    assert shown.text.count("1 similar incident") == 2


def test_a_row_says_when_its_job_was_started_again(client: TestClient, service: Service) -> None:
    for job in ("again", "once"):
        attempt(service, job, 1, NOW - 60, suspects=(), fingerprint=job)
    service.records.open_attempt("again", 2, NOW)
    shown = page(client, "/").text
    assert shown.count("retried: attempt 2 is running") == 1 and "again / 1" in shown
    service.records.end("again", 2, End("", 0, None, None, NOW + 9))
    assert page(client, "/").text.count("retried: attempt 2") == 1


def test_a_cause_that_no_node_has_is_one_row_for_all_jobs(client: TestClient, service: Service) -> None:
    for job in ("a", "b", "c"):
        publish(service, job, SCRIPT)
    shown = page(client, "/")
    assert len(ids(shown)) == 1 and "Same cause in 3 jobs" in shown.text


def test_others_that_look_the_same_are_a_list_of_their_own(client: TestClient, service: Service) -> None:
    publish(service, "a")
    publish(service, "b", changed(suspects=(Suspect("node-2", None, None, "x"),)))
    publish(service, "c", SCRIPT)
    link = page(client, "/").links()["1 similar incident"]
    shown = page(client, link)
    assert set(ids(shown)) == {of(service, "a"), of(service, "b")}
    assert link == f"/?q=is:all+fingerprint:{FAULT.fingerprint}"
    assert shown.field("q") == f"is:all fingerprint:{FAULT.fingerprint}"


def test_a_row_says_who_took_it(client: TestClient, service: Service) -> None:
    publish(service)
    service.incidents.step(of(service, "j"), "acknowledge", "ops", "", NOW, "new")
    shown = page(client, "/")
    assert "acknowledged by ops" in shown.text


def test_nothing_hostile_of_a_job_works(client: TestClient, service: Service) -> None:
    job = HOSTILE.replace("\x00", "")
    publish(service, job, changed(suspects=(Suspect(job, None, None, job),), fingerprint=job[:40]), user=job)
    shown = page(client, "/?q=is:all+alert")  # `page` holds the page against what may stand in one
    assert len(ids(shown)) == 1 and len(shown.all("script")) == 5
    assert page(client, f"/?node={quote(job)}&user={quote(job)}") is not None
    assert page(client, f"/?reason={quote(job)}", 400) is not None


# --- states and filters


def test_open_incidents_are_listed_and_states_counted(client: TestClient, service: Service) -> None:
    for number, job in enumerate(("one", "two", "three")):
        publish(service, job, changed(fingerprint=f"{number:016}"), NOW + number)
    service.incidents.step(of(service, "one"), "resolve", "ops", "board replaced", NOW, None)
    service.incidents.step(of(service, "two"), "acknowledge", "ops", "", NOW, None)
    shown = page(client, "/")
    assert ids(shown) == [of(service, "three"), of(service, "two")]
    for tab in ("Open 2", "New 1", "Acknowledged 1", "Resolved 1", "All 3"):
        assert tab in shown.text
    assert ids(page(client, "/?q=is:resolved")) == [of(service, "one")]
    assert ids(page(client, "/?q=is:new")) == [of(service, "three")]
    assert len(ids(page(client, "/?q=is:all"))) == 3


@pytest.fixture
def several(service: Service) -> Service:
    """Two incidents that differ in everything."""
    publish(service, "a", at=NOW - 10 * 86_400, user="research")
    oom = {"reason": "Out of Memory Error", "category": "Framework", "recovery": "fix_first", "fault": "user"}
    suspects = (Suspect("node-2", None, None, "x"),)
    publish(service, "b", changed(**oom, suspects=suspects, fingerprint="1" * 16), NOW - 60, user="ops")
    return service


def test_a_query_finds_incidents(client: TestClient, several: Service) -> None:
    for query, job in (
        ("age:<1d", "b"),
        ("MEMORY node:node-2", "b"),
        ("user:research category:infrastructure", "a"),
        (f"#{of(several, 'a')}", "a"),
        ("-node:node-1", "b"),
    ):
        shown = page(client, f"/?q={quote(query)}")
        assert ids(shown) == [of(several, job)] and shown.field("q") == query, query
        assert "1 incident in all" in shown.text and f"#{of(several, job)} " in shown.text


def test_addresses_of_former_versions_still_work(client: TestClient, several: Service) -> None:
    for query, asked in (
        ("within=day", "age:<1d"),
        ("text=MEMORY+node-2", "MEMORY node-2"),
        ("user=research&category=Infrastructure&state=new", "is:new category:Infrastructure user:research"),
        ("reason=ECC+Error", 'reason:"ECC Error"'),
    ):
        shown = page(client, f"/?{query}")
        assert len(ids(shown)) == 1 and shown.field("q") == asked, query


def test_terms_are_offered_and_those_that_narrow_say_how_many_they_find(client: TestClient, several: Service) -> None:
    shown = page(client, "/")
    narrower = [tag.attributes["href"] for tag in shown.all("a") if tag.attributes.get("class") == "more"]
    assert set(narrower) == {"/?q=reason:%22Out+of+Memory+Error%22", "/?q=reason:%22ECC+Error%22"}
    offered = [tag.attributes["value"] for tag in shown.all("option")]
    for term in ('reason:"ECC Error"', "node:node-2", "job:a", "user:ops", "is:resolved", "recovery:fix_first"):
        assert term in offered
    assert "reason:" in shown.text and "a suspected node" in shown.text


def test_a_term_is_removed_by_one_click_and_stays_in_every_link(client: TestClient, several: Service) -> None:
    shown = page(client, '/?q=is:all+node:node-1+"ecc"')
    links = {tag.attributes.get("aria-label"): tag.attributes["href"] for tag in shown.all("a")}
    assert links["Remove node:node-1"] == "/?q=is:all+%22ecc%22"
    assert links["Remove is:all"] == "/?q=node:node-1+%22ecc%22"
    tabs = [target for name, target in shown.links().items() if name == "New"]
    assert tabs == ["/?q=is:new+node:node-1+%22ecc%22"]
    assert shown.links()["severity"].endswith("&order=severity") and shown.links()["Clear"] == "/"


def test_a_sent_form_gets_a_short_address(client: TestClient, several: Service) -> None:
    answer = client.get("/?text=&reason=&node=node-2&within=", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/?q=node:node-2")


def test_blanks_count_as_nothing() -> None:
    assert IncidentFilters.model_validate({"text": "  ", "job": " a "}).url() == "/?q=job:a"


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("state=gone", "is has no value gone"),
        ("within=year", "age takes a number"),
        ("q=nod:x", "Did you mean node:?"),
        (f"q={'x' * 501}", "The query has 501 characters"),
    ],
)
def test_a_wrong_query_is_told_beside_it(client: TestClient, several: Service, query: str, said: str) -> None:
    shown = page(client, f"/?{query}", 400)
    assert said in shown.text and ids(shown) == [] and shown.field("q")
    assert "Out of Memory Error" in shown.text  # it is still known what there is


@pytest.mark.parametrize("query", ["cursor=!", f"q={'x' * 4001}", "order=x"])
def test_a_wrong_parameter_is_told(lasting: TestClient, query: str) -> None:
    assert "Go to the incidents" in page(lasting, f"/?{query}", 400).text


def test_pages_go_on_where_the_last_one_ended(client: TestClient, service: Service) -> None:
    for number in range(PAGE + 3):
        publish(service, f"job-{number}", changed(fingerprint=f"{number:016}"), NOW - number)
    first = page(client, "/?q=category:Infrastructure")
    assert f"{PAGE + 3} incidents in all; {PAGE} on this page" in first.text
    second = page(client, first.links()["Older"])
    assert ids(first) + ids(second) == [of(service, f"job-{number}") for number in range(PAGE + 3)]
    assert second.links()["Newest"] == "/?q=category:Infrastructure" and "Older" not in second.links()


# --- nothing to show


def test_without_logs_the_list_says_how_to_send_one(client: TestClient) -> None:
    shown = page(client, "/")
    assert "No logs yet" in shown.text and "logdoctor run --job my-job" in shown.text
    assert f"{LOCAL}/v1/jobs/my-job/attempts/1/streams/main/log?offset=0" in shown.text


def test_a_log_that_was_sent_makes_an_incident(client: TestClient, service: Service) -> None:
    send(client, "my-job", FAILED)
    assert "Out of Memory Error" in page(client, "/").text


def test_no_failure_is_good_news(client: TestClient, service: Service) -> None:
    publish(service, "fine", changed(outcome="completed", reason="None"))
    shown = page(client, "/")
    assert "No open incidents" in shown.text and "No job has failed" in shown.text
    assert shown.links()["attempts"] == "/attempts?outcome=all"


def test_what_is_settled_is_one_click_away(client: TestClient, service: Service) -> None:
    publish(service)
    service.incidents.step(of(service, "j"), "resolve", "ops", "", NOW, None)
    shown = page(client, "/")
    assert "No open incidents" in shown.text and shown.links()["Show all 1 incident"] == "/?q=is:all"
    assert "No incident is new" in page(client, "/?q=is:new").text


def test_filters_that_find_nothing_say_what_else_there_is(client: TestClient, several: Service) -> None:
    shown = page(client, "/?q=is:resolved+node:node-2")
    assert "Nothing matches this query" in shown.text
    assert shown.links()["1 incident in another state"] == "/?q=is:all+node:node-2"


def test_an_incident_whose_attempts_all_left_is_settled(client: TestClient, service: Service) -> None:
    publish(service)
    number = of(service, "j")
    publish(service, "j", changed(outcome="completed", reason="None"), NOW + 1)
    assert ids(page(client, "/")) == []
    shown = page(client, "/?state=resolved")
    assert ids(shown) == [number] and "No longer a failure" in shown.text


# --- who sees what


def test_strangers_come_to_the_login(guarded: Guarded) -> None:
    answer = guarded.client.get("/?node=node-1", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=%2F%3Fnode%3Dnode-1")


def test_a_bound_token_sees_its_own_jobs_alone(guarded: Guarded) -> None:
    service = guarded.service
    publish(service, "mine-1", SCRIPT, NOW - 60, user="research")
    publish(service, "other-1", SCRIPT, NOW, user="ops")
    publish(service, "other-2", changed(fingerprint="2" * 16), NOW, user="ops")
    client = guarded.client
    client.headers.update(guarded.token("read", prefixes=("mine-",)))
    shown = page(client, "/?state=all")
    assert ids(shown) == [of(service, "mine-1")] and "1 incident in all" in shown.text
    assert "mine-1 / 1" in shown.text and "Same cause" not in shown.text
    for hidden in ("other", "ops", "ECC", "Infrastructure"):
        assert hidden not in shown.text
    assert ids(page(client, "/?state=all&user=ops")) == [] and ids(page(client, "/?state=all&text=other")) == []


def test_a_bound_token_is_not_told_of_logs_that_others_sent(guarded: Guarded) -> None:
    publish(guarded.service, "other-1")
    guarded.client.headers.update(guarded.token("read", prefixes=("mine-",)))
    assert "No logs yet" in page(guarded.client, "/").text


# --- volume over time


def test_the_volume_over_time_leads_to_what_failed_then(client: TestClient, several: Service) -> None:
    publish(several, "c", changed(fingerprint="2" * 16), NOW - 50)
    chart = page(client, "/?q=is:new")
    links = [tag.attributes["href"] for tag in chart.all("a") if "age:" in tag.attributes["href"]]
    assert links == ["/?q=is:new+age:240h..252h", "/?q=is:new+age:0h..12h"]
    found = [ids(page(client, link)) for link in links]
    assert found == [[of(several, "a")], [of(several, "c"), of(several, "b")]]
    again = page(client, links[0])
    assert all("age:240h..252h+age:" not in tag.attributes["href"] for tag in again.all("a"))


def test_an_incident_with_several_attempts_has_a_sparkline_of_those_that_one_may_see(guarded: Guarded) -> None:
    for job in ("mine-1", "mine-2", "other-1"):
        publish(guarded.service, job, SCRIPT)
    guarded.client.headers.update(guarded.token("read", prefixes=("mine-",)))
    shown = page(guarded.client, "/")
    assert "Failed attempts a day, last 30 days" in shown.text and "2, 0d to 1d ago" in shown.text
