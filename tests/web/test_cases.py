"""Past cases over HTTP and on pages: who confirms what a failure was, who sees it, and what a model was asked."""

import html
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from logdoctor.diagnose.conclude import RootCause
from logdoctor.failure_agent.ladder import Ladder
from logdoctor.failure_agent.question import Question
from logdoctor.learning.diagnoses.teacher import Teacher, TeachingTerms
from logdoctor.learning.diagnoses.writer import OfflineWriter
from logdoctor.rules.scanner import Scanner
from logdoctor.service.consulting import Climbing
from logdoctor.service.service import Service, Stores
from logdoctor.store.learning.confirmed import AGREEMENT, Cited, Confirmation, NewConfirmation
from logdoctor.text import harmless
from logdoctor.types import Alternative, DecidedBy
from logdoctor.types.models import Exchange
from logdoctor.web.cases import api as module
from tests import waiting
from tests.web.conftest import Guarded, bearer, local_client, new_service
from tests.web.test_pages import HOSTILE, NOW, Page, changed, checked, page, publish, send, sign_in
from tests.web.test_rules import items

STRANGE = b"fabric lane 7 of plane 2 is poisoned, resync refused\nlauncher says goodbye\n"
"""A log that no rule knows."""
UNKNOWN = changed(reason="Unknown", category="None", fault="unknown", recovery="ask_human", evidence=(), suspects=())


def enter(service: Service, job: str = "j", at: float = NOW, **changes: Any) -> Confirmation:
    """A case of a job."""
    new = NewConfirmation(job, 1, "user-17", "ECC Error", fix="board returned", title="the cause", digests=("0" * 16,))
    return service.casework.confirmed.add(msgspec.structs.replace(new, **changes), at)


def asked(service: Service, job: str = "j", **changes: Any) -> Exchange:
    """A call to a model because of the first attempt of a job, written down."""
    sent = (("user", "a question\nof two lines"), ("assistant", "{"), ("user", "again"))
    one = Exchange(
        *(NOW, job, 1, "diagnose", "a-model", "0123abcd", "key", '{"temperature":0.0}', sent, '{"candidates": []}'),
        *("[]", 4120, 310, 0.0021, 2.5, False, "", ""),
    )._replace(**changes)
    service.casework.exchanges.enter(one)
    return one


# --- over HTTP


def test_a_confirmed_verdict_is_a_case(guarded: Guarded) -> None:
    client, read = guarded.client, guarded.token("read")
    operate = bearer(guarded.secret("operate", name="ops"))
    stored = publish(guarded.service)
    body = {"fix": "board returned", "comment": "the third one", "suggestion": "return the board"}
    answer = client.post(f"/v1/verdicts/{stored.id}/confirm", json=body, headers=operate)
    assert answer.status_code == 200, answer.text
    case = answer.json()
    assert case | body == case
    said = {"by": "ops", "job": "j", "attempt": 1, "verdict": stored.id, "reason": "ECC Error", "corrects": False}
    assert case | said == case and case["recovery"] == "isolate_and_restart"
    assert case["evidence"] == [{"stream": "main", "line": 2, "quote": "the cause"}]
    assert client.get(f"/v1/cases/{case['id']}", headers=read).json() == case
    assert items(client, "/v1/cases", read) == [case]


def test_a_correction_quotes_the_log(client: TestClient, service: Service) -> None:
    stored = send(client, "j", STRANGE)
    assert stored.verdict.reason == "Unknown"
    body = {"reason": "NVLink Error", "fix": "reseated", "evidence": [{"stream": "main", "line": 1}]}
    case = client.post(f"/v1/verdicts/{stored.id}/correct", json=body).json()
    assert (case["reason"], case["corrects"], case["by"]) == ("NVLink Error", True, "testclient")
    assert case["evidence"] == [{"stream": "main", "line": 1, "quote": STRANGE.decode().splitlines()[0]}]
    live = service.casework.confirmed.live("j", 1)
    assert live is not None and live.id == case["id"]


@pytest.mark.parametrize(
    "body",
    [
        {"reason": "Bad Luck"},
        {"reason": "Unknown"},
        {"reason": "None"},
        {"reason": "\u202eECC Error"},
        {"reason": ""},
        {"reason": "ECC Error", "recovery": "pray"},
        {"reason": "ECC Error", "fault": "me"},
        {"reason": "ECC Error", "evidence": [{"stream": "main", "line": 3}]},
        {"reason": "ECC Error", "evidence": [{"stream": "none", "line": 1}]},
        {"reason": "ECC Error", "evidence": [{"stream": "../../etc", "line": 1}]},
        {"reason": "ECC Error", "evidence": [{"stream": "main", "line": 1 << 62}]},
        {"reason": "ECC Error", "evidence": [{"stream": "main", "line": 1}] * 21},
        {"reason": "ECC Error", "evidence": [{"stream": "main", "line": 0}]},
        {"reason": "ECC Error", "fix": "x" * 5000},
        {"reason": "ECC Error", "by": "somebody else"},
        {},
        [],
    ],
    ids=lambda body: str(body)[:60],
)
def test_what_cannot_be_taken_enters_nothing(lasting: TestClient, body: Any) -> None:
    known = lasting.get("/v1/jobs/strange/attempts/1/verdict")
    id = known.json()["id"] if known.status_code == 200 else send(lasting, "strange", STRANGE).id
    answer = lasting.post(f"/v1/verdicts/{id}/correct", json=body)
    assert answer.status_code == 422, answer.text
    assert answer.json()["error"]["next_step"]
    assert items(lasting, "/v1/cases") == []


def test_only_failures_with_a_reason_are_confirmed(client: TestClient, service: Service) -> None:
    fine = publish(service, "fine", changed(outcome="completed", reason="None"))
    unknown = publish(service, "unknown", UNKNOWN)
    for id, status, code in ((fine.id, 409, "not_failed"), (unknown.id, 422, "case_refused"), (99, 404, "not_found")):
        answer = client.post(f"/v1/verdicts/{id}/confirm", json={})
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    failed = publish(service)
    nothing = client.post(f"/v1/verdicts/{failed.id}/correct", json={"reason": ""})
    assert nothing.status_code == 422, "that would confirm it"
    assert items(client, "/v1/cases") == []


def test_a_later_word_takes_the_place_of_an_earlier_one(client: TestClient, service: Service) -> None:
    url = f"/v1/verdicts/{publish(service).id}"
    first = client.post(f"{url}/confirm", json={}).json()
    second = client.post(f"{url}/correct", json={"reason": "CUDA Error"}).json()
    assert [case["id"] for case in items(client, "/v1/cases")] == [second["id"]]
    both = items(client, "/v1/cases", withdrawn=True)
    assert [(case["id"], case["withdrawn"]) for case in both] == [(second["id"], False), (first["id"], True)]


def test_cases_are_listed_newest_first_and_filtered(client: TestClient, service: Service) -> None:
    ids = [enter(service, f"j{n}", reason=("ECC Error", "Key Error")[n % 2]).id for n in range(7)]
    assert [case["id"] for case in items(client, "/v1/cases", limit=2)] == ids[::-1]
    assert [case["id"] for case in items(client, "/v1/cases", reason="Key Error")] == ids[5::-2]
    assert items(client, "/v1/cases", reason="\x00") == []
    for cursor in ("x", "-1", "9" * 30):
        assert client.get("/v1/cases", params={"cursor": cursor}).json()["error"]["code"] == "bad_cursor"


def test_a_case_is_withdrawn_once_and_stays_on_record(client: TestClient, service: Service) -> None:
    case = enter(service)
    answer = client.delete(f"/v1/cases/{case.id}", params={"why": "it was the cable"})
    assert answer.status_code == 200 and answer.json()["withdrawn_why"] == "it was the cable"
    assert items(client, "/v1/cases") == [] and service.casework.confirmed.cases() == []
    assert client.get(f"/v1/cases/{case.id}").json()["withdrawn_by"] == "testclient"
    again = client.delete(f"/v1/cases/{case.id}")
    assert (again.status_code, again.json()["error"]["code"]) == (409, "case_refused")
    assert client.delete("/v1/cases/99").status_code == 404 == client.get("/v1/cases/99").status_code


def test_a_token_bound_to_jobs_sees_its_own_and_decides_nothing(guarded: Guarded) -> None:
    client, service = guarded.client, guarded.service
    mine, other = enter(service, "team-b-1"), enter(service, "team-a-1", fix="a secret of team a")
    bound = guarded.token("admin", prefixes=("team-b-",))
    assert [case["id"] for case in items(client, "/v1/cases", bound, limit=1)] == [mine.id]
    assert client.get(f"/v1/cases/{mine.id}", headers=bound).status_code == 200
    own, foreign = publish(service, "team-b-2"), publish(service, "team-a-2")
    for method, url in (
        ("GET", f"/v1/cases/{other.id}"),
        ("DELETE", f"/v1/cases/{other.id}"),
        ("POST", f"/v1/verdicts/{foreign.id}/confirm"),
        ("POST", f"/v1/verdicts/{foreign.id}/ask"),
        ("GET", f"/v1/verdicts/{foreign.id}/model-calls"),
    ):
        answer = client.request(method, url, json={} if url.endswith("confirm") else None, headers=bound)
        assert answer.status_code == 404 and "secret" not in answer.text, f"{method} {url}"
    for method, url in (("DELETE", f"/v1/cases/{mine.id}"), ("POST", f"/v1/verdicts/{own.id}/confirm")):
        answer = client.request(method, url, json={} if method == "POST" else None, headers=bound)
        assert answer.status_code == 403 and "all jobs" in answer.text
    assert client.post(f"/v1/verdicts/{own.id}/ask", headers=bound).status_code == 409, "it may ask of its own"


# --- model calls


def test_model_calls_are_shown_exactly(client: TestClient, service: Service) -> None:
    stored = publish(service)
    one, bad = asked(service), asked(service, got="no", failure="nonsense", cause="it is not JSON", cached=True)
    asked(service, "other")
    first, second = client.get(f"/v1/verdicts/{stored.id}/model-calls").json()["items"]
    assert [(part["role"], part["text"]) for part in first["sent"]] == [tuple(part) for part in one.sent]
    kept = ("got", "request", "calls", "model", "prompt", "tokens_in", "tokens_out", "dollars", "seconds", "cached")
    assert {name: first[name] for name in kept} == {name: getattr(one, name) for name in kept}
    assert (second["failure"], second["cause"], second["cached"]) == (bad.failure, bad.cause, True)


def test_model_calls_tell_a_bound_token_nothing_of_other_jobs(guarded: Guarded) -> None:
    """Past cases of any job are shown to a model, so the texts may speak of jobs that the token may not see."""
    stored = publish(guarded.service, "team-b-1")
    secret = "what fixed it for team a"
    asked(guarded.service, "team-b-1", sent=(("user", secret),), got=secret, request=secret, calls=secret, cause=secret)
    url = f"/v1/verdicts/{stored.id}/model-calls"
    bound = guarded.client.get(url, headers=guarded.token("read", prefixes=("team-b-",)))
    assert secret not in bound.text and module.HIDDEN in bound.text and bound.json()["items"][0]["tokens_in"] == 4120
    assert secret in guarded.client.get(url, headers=guarded.token("read")).text
    sign_in(guarded, guarded.secret("read", prefixes=("team-b-",)))
    shown = page(guarded.client, f"/verdicts/{stored.id}")
    assert secret not in shown.text and "4,120 tokens sent" in shown.text


def test_model_calls_on_the_page(client: TestClient, service: Service) -> None:
    stored = publish(service)
    assert "Model calls" not in page(client, f"/verdicts/{stored.id}").text
    asked(service, got=f"{HOSTILE}\nsecond line\rhidden?", sent=(("user", f"one\n  {HOSTILE}\ntwo"),))
    asked(service, cached=True)
    shown = page(client, f"/verdicts/{stored.id}")
    for words in (
        "diagnose, a-model: 4,120 tokens sent, 310 received, $0.0021, 2.5 s",
        "prompt 0123abcd",
        "cached:",
    ):
        assert words in shown.text, words
    texts = [html.unescape("".join(tag.text)) for tag in shown.all("pre")]
    assert texts[0].splitlines()[0] == "one" and texts[0].splitlines()[2] == "two"
    assert texts[0].splitlines()[1].startswith("  <script>alert(1)</script>\"'&")
    assert "second line\N{REPLACEMENT CHARACTER}hidden?" in texts[2], "nothing hides what stands before it"
    assert "<script>alert" not in shown.source
    assert shown.links()["All of it as JSON"] == f"/v1/verdicts/{stored.id}/model-calls"


def test_endless_model_calls_are_cut_on_the_page_only(client: TestClient, service: Service) -> None:
    stored = publish(service)
    for _ in range(30):
        asked(service, got="<" * 190_000)
    shown = client.get(f"/verdicts/{stored.id}").text
    assert "The last 20 of 30 calls" in shown and "130,000 more characters: see the JSON" in shown
    assert len(shown) < 6_000_000
    calls = client.get(f"/v1/verdicts/{stored.id}/model-calls").json()["items"]
    assert len(calls) == 30 and len(calls[0]["got"]) == 190_000


# --- looked up again


@contextmanager
def with_agent(folder: Path, scanner: Scanner, answers: list[RootCause]) -> Iterator[tuple[TestClient, Service]]:
    """A service whose Failure Agent gives these answers, one after another, and then none."""

    def rungs(stores: Stores) -> Climbing:
        def agent(question: Question) -> RootCause | None:
            return answers.pop(0) if answers else None

        writer = OfflineWriter()
        teacher = Teacher(stores.rules, stores.confirmed, writer, TeachingTerms(2, 3), scanner.book, scanner)
        return Climbing(Ladder(None, 0.8, 2, agent), teacher, lambda: 0, lambda: None)

    service = new_service(folder, scanner, ladder=rungs)
    with local_client(service) as client:
        yield client, service


FOUND = RootCause(
    "NVLink Error",
    "restart",
    "",
    0.7,
    "the lane is poisoned",
    "reseat it",
    (("main", 1),),
    "agent",
    "agent",
    "a-model",
    "0123abcd",
    (Alternative("Node Failure", "it still prints <b>"),),
)


def test_a_person_may_have_it_looked_up_again(tmp_path: Path, scanner: Scanner) -> None:
    answers: list[RootCause] = []
    with with_agent(tmp_path, scanner, answers) as (client, service):
        stored = send(client, "j", STRANGE)
        assert service.consultant is not None
        counts = service.consultant.counts
        waiting.until(lambda: counts["unknown"] == 1)
        shown = page(client, f"/verdicts/{stored.id}")
        assert "Look it up again" in shown.text
        answers.append(FOUND)
        answer = client.post(f"/v1/verdicts/{stored.id}/ask")
        assert (answer.status_code, answer.json()) == (202, {"verdict": stored.id})
        new = waiting.until(lambda: (v := client.get("/v1/jobs/j/attempts/1/verdict").json())["id"] != stored.id and v)
        assert new["verdict"]["decided_by"]["model"] == "a-model"
        text = page(client, f"/verdicts/{new['id']}").text
        assert "70%, decided by the Failure Agent with the model a-model" in text
        assert "Alternatives considered Node Failure Node Failure it still prints <b>" in text
        assert "Look it up again" not in text
        for id in (stored.id, new["id"]):
            again = client.post(f"/v1/verdicts/{id}/ask")
            assert (again.status_code, again.json()["error"]["code"]) == (409, "cannot_ask")


def test_it_is_asked_for_by_a_form(tmp_path: Path, scanner: Scanner) -> None:
    with with_agent(tmp_path, scanner, []) as (client, service):
        stored = send(client, "j", STRANGE)
        assert service.consultant is not None
        counts = service.consultant.counts
        waiting.until(lambda: counts["unknown"] == 1)
        form = {"key": page(client, f"/verdicts/{stored.id}").field("key")}
        answer = client.post(f"/verdicts/{stored.id}/ask", data=form, follow_redirects=False)
        assert answer.status_code == 303
        assert "Searching past cases" in page(client, answer.headers["location"].partition("#")[0]).text
        waiting.until(lambda: counts["unknown"] == 2)


# --- on pages


def forms(shown: Page) -> list[str]:
    """Where the forms of a page lead that change something."""
    targets = [tag.attributes["action"] for tag in shown.all("form") if tag.attributes.get("method") == "post"]
    return [target for target in targets if target != "/logout"]


def test_who_may_not_decide_sees_no_form(guarded: Guarded) -> None:
    stored, case = publish(guarded.service, "team-b-1"), enter(guarded.service, "team-b-1")
    for scopes, prefixes in ((("read",), ()), (("read", "operate"), ("team-b-",))):
        guarded.client.cookies.clear()
        sign_in(guarded, guarded.secret(*scopes, prefixes=prefixes))
        shown = page(guarded.client, f"/verdicts/{stored.id}")
        assert f"/verdicts/{stored.id}/confirm" not in forms(shown) and "/correct" not in shown.source
        assert forms(page(guarded.client, f"/cases/{case.id}")) == []
        form = {"key": shown.field("key"), "fix": "x"}
        for path in (f"/verdicts/{stored.id}/confirm", f"/cases/{case.id}/withdraw"):
            answer = guarded.client.post(path, data=form)
            assert answer.status_code == 403 and checked(answer)
    assert [one.id for one in guarded.service.casework.confirmed.cases()] == [case.id]


def test_what_did_not_fail_or_no_longer_stands_cannot_be_confirmed_on_its_page(
    client: TestClient, service: Service
) -> None:
    fine = publish(service, "fine", changed(outcome="completed", reason="None"))
    first, second = publish(service), publish(service, verdict=changed(reason="CUDA Error"), at=NOW + 1)
    shown = {id: forms(page(client, f"/verdicts/{id}")) for id in (fine.id, first.id, second.id)}
    assert [f"/verdicts/{id}/confirm" in shown[id] for id in (fine.id, first.id, second.id)] == [False, False, True]


def test_cases_on_a_page(client: TestClient, service: Service) -> None:
    assert "No cases yet" in page(client, "/cases").text
    ids = [enter(service, f"j{n}", NOW - 7200, fix=f"fix {n}").id for n in range(53)]
    agreed = enter(service, "agreed", by=AGREEMENT, reason="Key Error", title="", corrects=True)
    shown = page(client, "/cases")
    rows = [tag.attributes["href"] for tag in shown.all("a") if "".join(tag.text).strip().isdigit()]
    assert rows == [f"/cases/{id}" for id in [agreed.id, *ids[:3:-1]]]
    for words in ("attempts that agree", "fix 52", "the cause", "2 h ago", "user-17"):
        assert words in shown.text, words
    older = page(client, shown.links()["Older"])
    assert older.text.count("the cause") == 4 and older.links()["Newest"] == "/cases" and "Older" not in older.links()
    narrow = page(client, "/cases?reason=Key+Error")
    assert narrow.links()["Key Error"] == f"/cases/{agreed.id}" and "fix 52" not in narrow.text
    assert "No case has this reason" in page(client, "/cases?reason=Hang").text
    assert client.get("/cases?reason=", follow_redirects=False).headers["location"] == "/cases"
    page(client, "/cases?cursor=x", 400)
    page(client, "/cases/999", 404)


def test_one_case_on_a_page(client: TestClient, service: Service) -> None:
    evidence = (Cited("gpu-12", 126, "the cause"), Cited("gpu-13", 7, "the other"))
    case = enter(service, evidence=evidence, comment="the third", suggestion="return it", summary="a\nb", verdict=7)
    shown = page(client, f"/cases/{case.id}")
    for words in (
        *("ECC Error", "Cordon the node, then restart", "board returned", "the third", "return it"),
        *("the infrastructure", "126", "the other", "2 lines of gpu-12, gpu-13", "0000000000000000", "was right"),
    ):
        assert words in shown.text, words
    assert shown.links()["j"] == "/verdicts/7"
    form = {"key": shown.field("key"), "why": "it was <b>the cable</b>"}
    answer = client.post(f"/cases/{case.id}/withdraw", data=form, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/cases/{case.id}")
    after = page(client, f"/cases/{case.id}")
    assert "testclient withdrew it" in after.text and "(it was <b>the cable</b>)" in after.text
    assert forms(after) == [] and "case 1" not in page(client, f"/verdicts/{publish(service).id}").text
    assert client.post(f"/cases/{case.id}/withdraw", data=form).status_code == 409


def test_a_verdict_by_case_leads_to_the_case_of_those_who_may_see_it(guarded: Guarded) -> None:
    case = enter(guarded.service, "team-a-1")
    by_case = changed(decided_by=DecidedBy("case", f"case/{case.id}", "0123"))
    stored = publish(guarded.service, "team-b-1", by_case)
    for prefixes, seen in (((), True), (("team-b-",), False)):
        guarded.client.cookies.clear()
        sign_in(guarded, guarded.secret("read", prefixes=prefixes))
        shown = page(guarded.client, f"/verdicts/{stored.id}")
        assert "decided by a past failure that looks the same" in shown.text
        assert (f"case {case.id}" in shown.links()) == seen
        page(guarded.client, f"/cases/{case.id}", 200 if seen else 404)
        assert ("team-a-1" in page(guarded.client, "/cases").text) == seen


@pytest.mark.parametrize("rule", ["case/", "case/x", "case/-1", "case/99999999999999999999", "case/\u0663", "x"])
def test_a_verdict_by_an_odd_case_has_no_link(client: TestClient, service: Service, rule: str) -> None:
    stored = publish(service, verdict=changed(decided_by=DecidedBy("case", rule, "0123")))
    shown = page(client, f"/verdicts/{stored.id}")
    assert not [target for target in shown.links().values() if target.startswith("/cases/")]


def test_hostile_words_do_nothing(client: TestClient, service: Service) -> None:
    case = enter(
        service,
        by=HOSTILE,
        fix=HOSTILE,
        comment=HOSTILE,
        suggestion=HOSTILE,
        title=HOSTILE,
        digests=(HOSTILE,),
        summary=f"{HOSTILE}\n{HOSTILE}",
        evidence=(Cited(HOSTILE, 1, HOSTILE),),
    )
    agent = DecidedBy("agent", HOSTILE, HOSTILE, HOSTILE, HOSTILE)
    stored = publish(service, verdict=changed(decided_by=agent, alternatives=(Alternative(HOSTILE, HOSTILE),) * 20))
    asked(service, purpose=HOSTILE, model=HOSTILE, prompt=HOSTILE, failure=HOSTILE, cause=HOSTILE, calls=HOSTILE)
    for path in ("/cases", f"/cases/{case.id}", f"/verdicts/{stored.id}"):
        shown = page(client, path)
        assert "<script>alert" not in shown.source, path
        assert harmless(HOSTILE, 90)[:25] in html.unescape(shown.source), path
    service.casework.confirmed.withdraw(case.id, HOSTILE, HOSTILE, NOW)
    assert "<script>alert" not in page(client, f"/cases/{case.id}").source
