"""The page of an incident and of a verdict: the answer, the proof, what may be done, and who sees what of it."""

import html
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from logdoctor.rules.scanner import Scanner
from logdoctor.service.service import Service
from logdoctor.store.jobs.records import End, JobFacts, StoredVerdict
from logdoctor.store.learning.confirmed import Kept
from logdoctor.store.nodes.records import NodeRecords
from logdoctor.types import Evidence, Point, Progress, RankError, Suspect, Symptom, Verdict
from logdoctor.types.nodes import (
    Action,
    ActionKind,
    Conclusion,
    Finding,
    LinkFault,
    Node,
    NodeHistory,
    PastCordon,
    PastFailure,
    PastFinding,
    Standing,
)
from logdoctor.web.incidents.telling import changes, node_line
from logdoctor.web.jobs.excerpts import gist, named_part
from logdoctor.web.jobs.filters import AttemptFilters
from logdoctor.words import phrases
from tests import waiting
from tests.web.conftest import FAILED, TIMING, Guarded, local_client, new_service
from tests.web.test_cases import enter, forms
from tests.web.test_gate import cookie, session_of
from tests.web.test_pages import FAULT, HOSTILE, NOW, Page, changed, checked, page, publish, send, sign_in

# --- one verdict


@pytest.mark.parametrize(
    ("category", "fault", "said"),
    [
        ("Infrastructure", "infrastructure", "Infrastructure"),
        ("Infrastructure", "user", "usually Infrastructure"),
        ("Infrastructure", "nobody", "Infrastructure"),
        ("Script", "user", "Script"),
        ("Script", "infrastructure", "usually Script"),
    ],
)
def test_a_category_never_stands_against_the_fault(
    service: Service, client: TestClient, category: str, fault: str, said: str
) -> None:
    stored = publish(service, verdict=changed(category=category, fault=fault))
    for path in ("/", f"/incidents/{incident_of(service, stored)}", f"/verdicts/{stored.id}"):
        (tag,) = (
            one for one in page(client, path).all("span") if "category" in one.attributes.get("class", "").split()
        )
        assert "".join(tag.text) == said, path


def test_an_incident_gives_the_answer_and_then_the_proof(client: TestClient) -> None:
    log = b"".join(b"step %d goes well\n" % n for n in range(40)) + FAILED + b"after\n" * 30
    stored = send(client, "j", log)
    cited = stored.verdict.evidence[0]
    shown = page(client, f"/verdicts/{stored.id}")
    answer, proof = shown.text.split("Evidence", 1)
    for word in ("Out of Memory Error", "Do not restart: fix first", stored.verdict.suggestion, cited.quote[:40]):
        assert word in answer
    assert "97%, decided by a rule diagnosis/" in answer
    assert shown.links()[f"Line {cited.line}"] == f"#L{cited.line}"
    assert "step 39 goes well" in proof and "exit code 1" in proof
    line = next(tag for tag in shown.tags if tag.attributes.get("id") == f"L{cited.line}")
    assert line.attributes["class"] == "cited"
    marked = ["".join(tag.text) for tag in shown.all("mark")]
    assert marked == [cited.quote]
    raw = client.get(shown.links()["Raw lines"])
    assert raw.status_code == 200 and cited.quote.encode() in raw.content
    assert client.get(shown.links()["JSON"]).json()["id"] == stored.id


def test_an_incident_tells_all_that_is_known(client: TestClient, service: Service) -> None:
    facts = {"name": "run 3", "framework": "megatron", "gpus": 1024, "parent": "j/0", "labels": {"team": "nlp"}}
    stored = publish(service, "j", FAULT, **facts)
    service.records.end("j", 1, End("", 1, 9, "NODE_FAIL", NOW))
    text = page(client, f"/verdicts/{stored.id}").text
    for words in (
        "node-1, rank 3, GPU 0000:52:00",
        "its memory is broken",
        "Other errors, not explained by the cause Runtime Error",
        "Follow-on errors CUDA Error CUDA Error 8 lines, from line 7",
        "step 3,659 of 10,000, loss 1.975",
        "200 lines in, 50 kept (25.0%); 6.0 kB in, 1.0 kB kept",
        "filter/x1503190",
        "signal 9 (SIGKILL), exit code 1, scheduler state NODE_FAIL",
        "GPUs1,024",
        "teamnlp",
        "fedcba9876543210",
    ):
        assert words in text, words


@pytest.mark.parametrize("outcome", ["completed", "running", "cancelled", "recovered"])
def test_an_incident_without_failure(client: TestClient, service: Service, outcome: str) -> None:
    fine = changed(outcome=outcome, reason="None", recovery="none", evidence=(), suspects=(), symptoms=())
    shown = page(client, f"/verdicts/{publish(service, 'j', fine).id}")
    assert "Nothing to do" in shown.text and "No line of the log proves a failure." in shown.text
    assert "".join(shown.all("h1")[0].text) == outcome.capitalize()


def test_evidence_stays_when_the_raw_log_is_deleted(tmp_path: Path, scanner: Scanner) -> None:
    service = new_service(tmp_path, scanner, TIMING._replace(linger=0.0))
    with local_client(service) as client:
        stored = send(client, "j", b"far away\n" * 20 + b"close by\n" + FAILED)
        before = page(client, f"/verdicts/{stored.id}")
        assert "was deleted" not in before.text and "far away" in before.text
        waiting.until(lambda: service.retention._delete("j", 1, 1.0))
        after = page(client, f"/verdicts/{stored.id}")
        assert "The raw log was deleted" in after.text and "Raw lines" not in after.links()
        assert ["".join(tag.text) for tag in after.all("mark")] == [stored.verdict.evidence[0].quote]


def test_a_superseded_verdict_points_to_the_next(client: TestClient, service: Service) -> None:
    first, second = publish(service), publish(service, verdict=changed(reason="CUDA Error"), at=NOW + 1)
    old, new = page(client, f"/verdicts/{first.id}"), page(client, f"/verdicts/{second.id}")
    assert "was superseded" in old.text and "was superseded" not in new.text
    assert old.links()["see the one that replaced it"] == f"/verdicts/{second.id}"
    assert new.links()["ECC Error"] == f"/verdicts/{first.id}"
    assert page(client, "/attempts").rows() == [f"/verdicts/{second.id}"]
    third = publish(service, verdict=changed(reason="Hang"), at=NOW + 2)
    old = page(client, f"/verdicts/{first.id}")
    assert old.links()["see the one that replaced it"] == f"/verdicts/{third.id}", "it leads to the one that stands"
    assert forms(old) == [] and buttons(old) == []
    for words in ("Acknowledge", "It was something else", "Restart command"):
        assert words not in old.text, words
    assert "/cordon" not in old.source
    assert "answer" not in [tag.attributes.get("class") for tag in old.all("section")]
    assert "Acknowledge" in page(client, f"/verdicts/{third.id}").text


def test_a_verdict_on_a_running_job_may_change(client: TestClient, service: Service) -> None:
    stored = service.records.publish("j", 1, FAULT, False, NOW)
    assert stored is not None
    assert "may change" in page(client, f"/verdicts/{stored.id}").text
    assert "so far" in page(client, "/attempts").text


def test_streams_have_their_own_anchors(client: TestClient, service: Service) -> None:
    two = (*FAULT.evidence, Evidence("j/1/<b>", "<b>", 2, "the other", "", (), ()))
    shown = page(client, f"/verdicts/{publish(service, verdict=changed(evidence=two)).id}")
    ids = [tag.attributes.get("id") for tag in shown.all("li")]
    assert {"L2", "s1-L2"} <= set(ids)
    assert [html.unescape("".join(tag.text)) for tag in shown.all("h3")] == ["main", "<b>"]


def test_a_quote_from_far_inside_a_long_line_is_shown(client: TestClient, service: Service) -> None:
    send(client, "j", b"x" * 50_000 + b" the cause " + b"x" * 50_000 + b"\n" + FAILED)
    cited = Evidence("j/1/main", "main", 1, " the cause ", "diagnosis/x", (), ())
    shown = page(client, f"/verdicts/{publish(service, verdict=changed(evidence=(cited,))).id}")
    assert "".join(shown.all("mark")[0].text) == "… the cause "
    assert len(shown.source) < 20_000


def test_hostile_logs_do_nothing(client: TestClient) -> None:
    log = HOSTILE.encode() + b"\n" + b"\xff\xfe" + b"y" * 50_000 + b"\n" + FAILED.rstrip() + HOSTILE.encode() + b"\n"
    shown = page(client, f"/verdicts/{send(client, 'j', log).id}")
    assert "<script>alert(1)</script>\"'&" in shown.text  # as text
    assert not [tag for tag in shown.all("script") if not tag.attributes.get("src")]
    assert "red{{7*7}}" in shown.text and "31m" not in shown.text
    assert "\N{REPLACEMENT CHARACTER}" in shown.text


def test_hostile_names_and_facts_do_nothing(client: TestClient, service: Service) -> None:
    job = "<script>alert(1)<script>\"'&amp; {{7*7}} ?#%2f.."
    suspects = (Suspect(HOSTILE, 1, HOSTILE, HOSTILE),)
    evidence = (Evidence(HOSTILE, HOSTILE, 2, HOSTILE, HOSTILE, (HOSTILE,), (HOSTILE,)),)
    symptoms = (Symptom(HOSTILE, 1, HOSTILE, 1, HOSTILE),)
    verdict = changed(
        suspects=suspects, evidence=evidence, symptoms=symptoms, why=HOSTILE, suggestion=HOSTILE, problems=(HOSTILE,)
    )
    facts = {name: HOSTILE for name in ("name", "user", "framework", "image", "command", "checkpoint_dir", "parent")}
    stored = publish(service, job, verdict, labels={HOSTILE: HOSTILE}, **facts)
    service.records.end(job, 1, End("", 1, None, HOSTILE, NOW))
    incident = f"/incidents/{incident_of(service, stored)}"
    for path in (f"/verdicts/{stored.id}", incident, f"/verdicts/{stored.id}/correct", AttemptFilters(job=job).url()):
        shown = page(client, path)
        assert "<script>alert" not in shown.source
        assert job in html.unescape(shown.source)
    link = page(client, "/attempts").links()[job]
    assert page(client, link).rows() == [f"/verdicts/{stored.id}"]


def test_endless_facts_are_cut(client: TestClient, service: Service) -> None:
    stored = publish(service, command="z" * 100_000, labels={f"k{n}": "v" * 10_000 for n in range(100)})
    assert len(page(client, f"/verdicts/{stored.id}").source) < 40_000


# --- an incident


def fail(service: Service, job: str, number: int = 1, verdict: Verdict = FAULT, at: float = NOW) -> StoredVerdict:
    """A failed attempt of a job."""
    stored = service.records.publish(job, number, verdict, True, at)
    assert stored is not None
    return stored


def incident_of(service: Service, stored: StoredVerdict) -> int:
    """The incident that the attempt of a verdict is in."""
    number = service.incidents.of(stored.job, stored.attempt)
    assert number is not None
    return number


def test_an_incident_shows_its_newest_attempt_and_leads_to_the_others(client: TestClient, service: Service) -> None:
    old, new = fail(service, "a", at=NOW - 7200), fail(service, "b")
    id = incident_of(service, new)
    assert incident_of(service, old) == id
    shown = page(client, f"/incidents/{id}")
    assert (
        "ECC Error on node-1" in shown.text
        and "2 attempts of 2 jobs, 2 failures with the suspect node-1;" in shown.text
    )
    assert "b / 1, shown here" in shown.text
    other = page(client, shown.links()["a / 1"])
    assert "a / 1, shown here" in other.text and other.links()["b / 1"] == f"/incidents/{id}?verdict={new.id}"
    stray = publish(service, "c", changed(reason="Hang", fingerprint="f" * 16))
    page(client, f"/incidents/{id}?verdict={stray.id}", 404)
    page(client, f"/incidents/{id}?verdict=999", 404)
    single = page(client, f"/verdicts/{old.id}")
    assert single.links()[f"Incident {id}"] == f"/incidents/{id}"


def test_an_endless_incident_has_pages(client: TestClient, service: Service) -> None:
    for number in range(1, 62):
        fail(service, "again", number, at=NOW + number)
    seen, url = [], "/incidents/1"
    while url:
        shown = page(client, url)
        seen.append(len([tag for tag in shown.all("th") if tag.attributes.get("role") == "rowheader"]))
        url = shown.links().get("Older", "").partition("#")[0]
    assert seen == [25, 25, 11]


@pytest.mark.parametrize("path", ["/incidents/99", "/incidents/x", "/incidents/0", "/incidents/1?verdict=0"])
def test_there_is_none(lasting: TestClient, path: str) -> None:
    answer = lasting.get(path)
    assert answer.status_code in (400, 404)
    checked(answer)


def test_a_merged_incident_leads_on(client: TestClient, service: Service) -> None:
    other = changed(fingerprint="a" * 16)
    first, second = fail(service, "a", verdict=other), fail(service, "b")
    gone, into = incident_of(service, first), incident_of(service, second)
    fail(service, "a", at=NOW + 1)
    answer = client.get(f"/incidents/{gone}", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/incidents/{into}")
    data = {"key": page(client, f"/incidents/{into}").field("key"), "seen_as": "new"}
    answer = client.post(f"/incidents/{gone}/acknowledge", data=data)
    assert answer.status_code == 409 and f"merged into incident {into}" in checked(answer).text


def test_a_merged_incident_leads_a_bound_token_where_it_may_look(guarded: Guarded) -> None:
    service = guarded.service
    first = incident_of(service, fail(service, "mine-a", verdict=changed(fingerprint="a" * 16)))
    second = incident_of(service, fail(service, "mine-a", verdict=changed(fingerprint="b" * 16), number=2))
    into = incident_of(service, fail(service, "other-b"))
    bound = {name: cookie(session_of(guarded, "read", prefixes=(name,))) for name in ("mine-", "other-", "none-")}

    def asked(name: str, id: int, method: str = "GET") -> tuple[int, str]:
        guarded.client.cookies.clear()
        answer = guarded.client.request(method, f"/incidents/{id}", headers=bound[name], follow_redirects=False)
        return answer.status_code, answer.headers.get("location", "")

    fail(service, "mine-a", at=NOW + 1, verdict=changed(fingerprint="b" * 16))  # the first becomes part of the second
    fail(service, "mine-a", at=NOW + 2, number=2)
    fail(service, "mine-a", at=NOW + 3)  # and that of the one of others
    for gone in (first, second):
        assert asked("mine-", gone) == (303, f"/incidents/{into}")
        assert asked("other-", gone) == asked("none-", gone) == (404, "")  # nor is it told that it was merged
    assert asked("mine-", into) == asked("other-", into) == (200, "")
    for number in (1, 2):
        fail(service, "mine-a", at=NOW + 4, verdict=changed(fingerprint="c" * 16), number=number)
    for gone in (first, second, into):
        assert asked("mine-", gone) == (404, "")


def test_an_incident_that_all_left_says_so(client: TestClient, service: Service) -> None:
    id = incident_of(service, fail(service, "a"))
    fail(service, "a", verdict=changed(outcome="recovered"), at=NOW + 1)
    shown = page(client, f"/incidents/{id}")
    assert f"Incident {id} has no failures left" in shown.text and "resolved" in shown.text


# --- its state


def step(client: TestClient, id: int, name: str, seen_as: str, note: str = "", status: int = 303) -> Any:
    """The answer to a button of the page."""
    key = page(client, f"/incidents/{id}").field("key")
    form = {"key": key, "seen_as": seen_as, "note": note}
    answer = client.post(f"/incidents/{id}/{name}", data=form, follow_redirects=False)
    assert answer.status_code == status, answer.text[:1000]
    return answer


def buttons(shown: Page) -> list[str]:
    """What the buttons of a page say."""
    return ["".join(tag.text).strip() for tag in shown.all("button")]


def test_an_incident_is_acknowledged_resolved_and_reopened(client: TestClient, service: Service) -> None:
    id = incident_of(service, fail(service, "a"))
    shown = page(client, f"/incidents/{id}")
    assert {"Acknowledge", "Resolve"} <= set(buttons(shown)) and "Reopen" not in buttons(shown)
    assert f"/incidents/{id}/resolve" in forms(shown), "Enter in the note resolves"
    assert step(client, id, "acknowledge", "new", "mine <b>").headers["location"] == f"/incidents/{id}#next"
    shown = page(client, f"/incidents/{id}")
    assert "acknowledged by testclient" in shown.text and "mine <b>" in shown.text
    assert "Resolve" in buttons(shown) and "Acknowledge" not in buttons(shown)
    step(client, id, "resolve", "acknowledged", "board returned")
    shown = page(client, f"/incidents/{id}")
    assert "Resolved by testclient" in shown.text and "Reopen" in buttons(shown) and "Resolve" not in buttons(shown)
    step(client, id, "reopen", "resolved")
    story = page(client, f"/incidents/{id}").text.partition("What happened")[2]
    assert [word for word in re.findall(r"(\w+) it", story)][:3] == ["reopened", "resolved", "acknowledged"]
    assert "board returned" in story and "a / 1 opened" in story


def coloured(shown: Page) -> list[str]:
    """What the buttons in colour say."""
    return ["".join(tag.text).strip() for tag in shown.tags if "primary" in tag.attributes.get("class", "").split()]


def test_one_button_alone_is_in_colour(client: TestClient, service: Service) -> None:
    id = incident_of(service, fail(service, "a", verdict=msgspec.structs.replace(FAULT, recovery="fix_first")))
    shown = page(client, f"/incidents/{id}")
    assert coloured(shown) == ["Acknowledge"] and shown.source.count(">This is right<") == 1
    assert shown.source.count("It was something else") == 1
    step(client, id, "acknowledge", "new")
    assert coloured(page(client, f"/incidents/{id}")) == ["Resolve"]
    step(client, id, "resolve", "acknowledged")
    assert coloured(page(client, f"/incidents/{id}")) == []
    waiting = incident_of(service, fail(service, "b"))
    assert coloured(page(client, f"/incidents/{id}")) == ["Next: ECC Error on node-1"]
    assert len(coloured(page(client, f"/incidents/{waiting}"))) == 1


def test_who_was_quicker_is_told(client: TestClient, service: Service) -> None:
    id = incident_of(service, fail(service, "a"))
    service.incidents.step(id, "acknowledge", "ops", "on it", NOW, "new")
    shown = checked(step(client, id, "acknowledge", "new", "mine", 409))
    assert "Somebody else acted first." in shown.text and "ops acknowledged it at" in shown.text
    assert shown.field("note") == "mine" and shown.field("seen_as") == "acknowledged"
    found = service.incidents.one(id)
    assert found is not None and (found.by, found.note) == ("ops", "on it")


def test_only_forms_of_ours_take_steps(client: TestClient, service: Service) -> None:
    id = incident_of(service, fail(service, "a"))
    key = page(client, f"/incidents/{id}").field("key")
    for data, headers in (({}, {}), ({"key": "guess"}, {}), ({"key": key}, {"Origin": "https://evil.example"})):
        answer = client.post(f"/incidents/{id}/resolve", data=data, headers=headers, follow_redirects=False)
        assert answer.status_code == 403 and checked(answer)
    answer = client.post(f"/incidents/{id}/explode", data={"key": key}, follow_redirects=False)
    assert answer.status_code in (404, 422)
    found = service.incidents.one(id)
    assert found is not None and found.state == "new"


def test_resolved_ones_of_the_same_kind_tell_what_fixed_them(client: TestClient, service: Service) -> None:
    id = incident_of(service, fail(service, "a", at=NOW - 9000))
    service.incidents.step(id, "resolve", "ops", "swapped the <i>board</i>", NOW - 8000, "new")
    stored = fail(service, "b")
    shown = page(client, f"/incidents/{incident_of(service, stored)}")
    told = shown.text.partition("Similar incidents")[2]
    assert "resolved Incident 1 on node-1: 1 attempt" in told and "ops: swapped the <i>board</i>" in told


def test_a_resolved_one_leads_to_the_newest_that_nobody_works_on(client: TestClient, service: Service) -> None:
    done = incident_of(service, fail(service, "a", at=NOW - 9000))
    service.incidents.step(done, "resolve", "ops", "", NOW - 8000, "new")
    assert "Next:" not in page(client, f"/incidents/{done}").text, "nothing waits"
    waiting = incident_of(service, fail(service, "b"))
    shown = page(client, f"/incidents/{done}")
    assert shown.links()["Next: ECC Error on node-1"] == shown.links()["Next"] == f"/incidents/{waiting}"
    assert "Next:" not in page(client, f"/incidents/{waiting}").text
    service.incidents.step(waiting, "acknowledge", "ops", "", NOW, "new")
    assert "Next:" not in page(client, f"/incidents/{done}").text


# --- who sees what


def test_a_bound_token_sees_its_own_attempts_alone(guarded: Guarded) -> None:
    service = guarded.service
    mine, other = fail(service, "mine-1", at=NOW - 60), fail(service, "other-1")
    foreign = fail(service, "other-2", verdict=changed(fingerprint="b" * 16, suspects=()))
    case = enter(service, "other-3", fix="secret of others", digests=("1" * 16,))
    id = incident_of(service, mine)
    assert incident_of(service, other) == id
    service.incidents.step(id, "acknowledge", "ops", "note about other-1", NOW, "new")
    sign_in(guarded, guarded.secret("read", "operate", prefixes=("mine-",)))
    shown = page(guarded.client, f"/incidents/{id}")
    assert f"/verdicts/{mine.id}" in shown.source or "mine-1" in shown.text
    for word in ("other-", "secret of others", "note about", "ops", "failure; never tested", f"/cases/{case.id}"):
        assert word not in shown.source, word
    assert forms(shown) == [] and "/correct" not in shown.source and "/cordon" not in shown.source
    page(guarded.client, f"/incidents/{incident_of(service, foreign)}", 404)
    page(guarded.client, f"/incidents/{id}?verdict={other.id}", 404)
    page(guarded.client, f"/verdicts/{other.id}", 404)
    key = page(guarded.client, "/attempts").field("key")
    for number, status in ((id, 403), (incident_of(service, foreign), 404)):
        answer = guarded.client.post(f"/incidents/{number}/resolve", data={"key": key}, follow_redirects=False)
        assert answer.status_code == status and checked(answer)


def test_a_bound_token_steps_what_is_all_its_own(guarded: Guarded) -> None:
    id = incident_of(guarded.service, fail(guarded.service, "mine-1"))
    sign_in(guarded, guarded.secret("read", "operate", prefixes=("mine-",), name="team"))
    step(guarded.client, id, "acknowledge", "new")
    found = guarded.service.incidents.one(id)
    assert found is not None and (found.state, found.by) == ("acknowledged", "team")


def test_who_may_only_read_sees_no_buttons(guarded: Guarded) -> None:
    id = incident_of(guarded.service, fail(guarded.service, "a"))
    sign_in(guarded, guarded.secret("read"))
    shown = page(guarded.client, f"/incidents/{id}")
    assert forms(shown) == [] and "Test nodes" not in shown.text and "/correct" not in shown.source
    key = shown.field("key")
    assert guarded.client.post(f"/incidents/{id}/resolve", data={"key": key}).status_code == 403


def test_suspects_have_their_history(client: TestClient, service: Service) -> None:
    for number in range(1, 4):
        stored = fail(service, f"job-{number}", at=NOW + number)
    shown = page(client, f"/verdicts/{stored.id}")
    assert "3 failures; never tested" in shown.text
    assert shown.links()["node-1, rank 3, GPU 0000:52:00"] == "/nodes/node-1"


def test_a_node_with_an_odd_name_has_no_page(client: TestClient, service: Service) -> None:
    odd = changed(suspects=(Suspect("../../x <b>", None, None, "odd"),))
    shown = page(client, f"/verdicts/{publish(service, verdict=odd).id}")
    assert "../../x <b>" in shown.text and not [to for to in shown.links().values() if to.startswith("/nodes/")]


# --- what else is told


def test_the_proof_leads_into_the_log(client: TestClient) -> None:
    stored = send(client, "j", FAILED)
    cited = stored.verdict.evidence[0]
    links = page(client, f"/verdicts/{stored.id}").links()
    expected = f"/jobs/j/attempts/1/streams/main?line={cited.line}#L{cited.line}"
    assert links[f"Line {cited.line} in the log"] == expected


def test_ranks_and_progress_are_drawn_with_their_numbers(client: TestClient, service: Service) -> None:
    ranks = (
        RankError(3, "node-1", "main", 2, 951_000_000.25, "ECC Error", "cause"),
        RankError(7, None, "main", 9, None, "NCCL Timeout Error", "cascade", 30),
    )
    curve = tuple(Point(n, 10 * n, 9.0 / n if n != 3 else None, 100.0 + n) for n in range(1, 9))
    progress = Progress(80, 100, 1.125, 108.0, 8, "main", curve)
    shown = page(client, f"/verdicts/{publish(service, verdict=changed(ranks=ranks, progress=progress)).id}")
    assert len([tag for tag in shown.all("svg") if tag.attributes.get("role") == "img"]) == 3
    for words in ("First error of each rank", "7 and 29 more", "22:40:00.250", "Loss", "108"):
        assert words in shown.text, words
    assert "80" in shown.text and "1.125" in shown.text


def test_past_cases_stand_beside_what_fixed_them(client: TestClient, service: Service) -> None:
    same = enter(service, "old", fix="board <returned>", digests=("1" * 16,), reason="CUDA Error")
    alike = enter(service, "older", fix="rebooted it", digests=("2" * 16,))
    enter(service, "else", reason="Key Error", fix="not this")
    stored = publish(service)
    service.casework.confirmed.keep_lines(
        "j", 1, [Kept("main", 2, "the cause", 3)], outcome="failed", reason="ECC Error", digest="1" * 16
    )
    told = page(client, f"/verdicts/{stored.id}").text.partition("Similar past failures")[2]
    first, second = told.index(f"Case {same.id}"), told.index(f"Case {alike.id}")
    assert first < second and "board <returned>" in told and "rebooted it" in told and "not this" not in told
    assert "same line" in told[first:second] and "same reason" in told[second:]


def test_the_fix_of_another_cause_is_not_the_last_time(client: TestClient, service: Service) -> None:
    other = enter(service, "old", fix="fixed the typo", digests=("1" * 16,), reason="Key Error")
    stored = publish(service)
    service.casework.confirmed.keep_lines(
        "j", 1, [Kept("main", 2, "the cause", 3)], outcome="failed", reason="ECC Error", digest="1" * 16
    )
    answer = page(client, f"/verdicts/{stored.id}").text.partition("Evidence")[0]
    assert "Last time" not in answer and "fixed the typo" not in answer
    assert (
        f"a person gave the same line another reason: Key Error, do not restart: fix first (case {other.id})" in answer
    )
    same = enter(service, "older", fix="swapped the board", digests=("1" * 16,))
    answer = page(client, f"/verdicts/{stored.id}").text.partition("Evidence")[0]
    assert f"Last time swapped the board (case {same.id})" in " ".join(
        answer.replace("Last time", "Last time ").split()
    )
    assert f"(case {other.id})" in answer


def test_verdict_history_says_what_changed(client: TestClient, service: Service) -> None:
    publish(service)
    stored = publish(service, verdict=changed(reason="CUDA Error", suspects=(), recovery="restart"), at=NOW + 1)
    told = page(client, f"/verdicts/{stored.id}").text.partition("Verdicts on this attempt")[2]
    assert "reason: ECC Error, now CUDA Error" in told
    assert "what to do: cordon the node, then restart, now restart from the last checkpoint" in told
    assert "suspects: node-1, rank 3, GPU 0000:52:00, now none" in told


def test_a_change_of_nothing_that_counts_is_named() -> None:
    one = StoredVerdict(1, 1, "j", 1, NOW, True, False, 2, None, FAULT)
    other = msgspec.structs.replace(one, id=2, verdict=changed(confidence=0.5))
    assert changes(one, other) == ["details"]


@pytest.mark.parametrize(
    ("known", "words"),
    [
        (NodeHistory("n"), "0 failures; never tested"),
        (
            NodeHistory(
                "n",
                (PastFailure(1, "j", 1, 0.0, "x"),) * 7,
                (PastFinding(3, 3600.0, "faulty", "", ""),),
                (PastCordon(1, "n", "slurm", "standing", "ops", 7000.0, ""),),
            ),
            "7 failures; last test: faulty, 1 h ago; cordoned by ops, 3 min ago",
        ),
        (
            NodeHistory("n", (PastFailure(1, "j", 1, 0.0, "x"),) * 50, (), ()),
            "50+ failures; never tested",
        ),
    ],
)
def test_a_node_in_a_line(known: NodeHistory, words: str) -> None:
    assert node_line(known, 7200.0) == words


def test_the_command_is_on_the_page_to_be_copied(client: TestClient, service: Service) -> None:
    stored = publish(service, command="srun '<b>train</b>'", checkpoint_dir="/ckpt")
    shown = page(client, f"/verdicts/{stored.id}")
    texts = [html.unescape("".join(tag.text)) for tag in shown.all("pre") if "data-copy" in tag.attributes]
    assert texts == ["srun --exclude=node-1 '<b>train</b>'"] and "last complete checkpoint in /ckpt" in shown.text
    assert "/static/copy.js" in shown.source
    fix_first = publish(service, "k", changed(recovery="fix_first"), command="srun x")
    told = page(client, f"/verdicts/{fix_first.id}")
    assert "No restart command" not in told.text and "restart" not in [
        tag.attributes.get("id") for tag in told.all("h2")
    ]


def test_what_a_restart_lacks_is_said_beside_the_job(client: TestClient, service: Service) -> None:
    told = page(client, f"/verdicts/{publish(service).id}").text
    assert (
        "Job No restart command: it is not known how the job was started. Report its launcher and its command." in told
    )
    slurm = page(client, f"/verdicts/{publish(service, 'k', launcher='slurm').id}").text
    assert "No restart command: it was started with slurm, but its command was not reported." in slurm
    unknown = changed(reason="Unknown", recovery="ask_human", evidence=())
    assert "No restart command" not in page(client, f"/verdicts/{publish(service, 'u', unknown).id}").text


@pytest.mark.parametrize(
    ("role", "said"),
    [
        ("cause", "First rank to fail11"),
        ("proximate", "First rank to fail11"),
        ("cascade", "First rank to report11 (3 ranks reported)"),
    ],
)
def test_a_rank_that_only_reported_first_is_not_called_the_one_that_failed(
    client: TestClient, service: Service, role: str, said: str
) -> None:
    ranks = tuple(RankError(rank, None, "main", rank, None, "NCCL Timeout Error", role) for rank in (11, 2, 5))
    stored = publish(service, verdict=changed(first_rank=11, ranks=ranks))
    assert said in page(client, f"/verdicts/{stored.id}").text


# --- what is under way because of it


def propose(service: Service, kind: ActionKind, nodes: tuple[str, ...], stored: StoredVerdict) -> int:
    """An action that waits because of a verdict."""
    action = Action(kind, nodes, "ask", "to find the node", stored.id)
    kept = NodeRecords(service.records.database).propose(action, stored.job, stored.attempt, NOW)
    assert kept is not None
    return kept.id


def run_test(service: Service, stored: StoredVerdict, **standings: Standing) -> int:
    """A finished test of nodes because of a verdict."""
    kept = NodeRecords(service.records.database)
    nodes = [Node(name) for name in standings]
    test = kept.begin_test("local", nodes, {}, "ops", stored.id, NOW)
    findings = tuple(Finding(name, standing, "measured") for name, standing in standings.items())
    kept.finish_test(test, Conclusion(findings, rounds=2), NOW)
    return test


UNNAMED = changed(
    reason="NCCL Timeout Error",
    category="Infrastructure",
    fault="infrastructure",
    recovery="isolate_and_restart",
    suspects=(),
    fingerprint="c" * 16,
    nodes=("gpu1", "gpu2"),
)


def conclude(service: Service, stored: StoredVerdict, conclusion: Conclusion, at: float = NOW + 1) -> int:
    """A test with this conclusion because of a verdict."""
    kept = NodeRecords(service.records.database)
    test = kept.begin_test("local", [Node(one.node) for one in conclusion.findings], {}, "ops", stored.id, at)
    kept.finish_test(test, conclusion, at)
    return test


def concluded(*healthy: str, links: tuple[LinkFault, ...] = (), left_open: str = "", **bad: Standing) -> Conclusion:
    """What a test found."""
    findings = [Finding(name, "healthy", "measured") for name in healthy]
    findings += [Finding(name, standing, "measured") for name, standing in bad.items()]
    return Conclusion(tuple(findings), links, 2, left_open)


def advice(client: TestClient, stored: StoredVerdict, incident: int | None = None) -> str:
    """The advice on the page of a verdict, or of an incident that shows it."""
    path = f"/incidents/{incident}?verdict={stored.id}" if incident else f"/verdicts/{stored.id}"
    (found,) = [tag for tag in page(client, path).all("p") if tag.attributes.get("class") == "advice"]
    return html.unescape("".join(found.text))


def test_what_waits_for_an_incident_is_on_its_page(client: TestClient, service: Service) -> None:
    older, stored = fail(service, "a", at=NOW - 60, verdict=UNNAMED), fail(service, "b", verdict=UNNAMED)
    fail(service, "elsewhere", verdict=changed(fingerprint="e" * 16))
    action = propose(service, "test_nodes", ("gpu-1", "gpu-2"), older)
    shown = page(client, f"/incidents/{incident_of(service, stored)}")
    assert "Find the faulty node: test the job's nodes, then restart" in shown.text
    assert "From other attempts of this incident a / 1: Test gpu-1, gpu-2" in shown.text
    own = page(client, f"/incidents/{incident_of(service, stored)}?verdict={older.id}").text
    assert "Waiting for approval Test gpu-1, gpu-2" in own and "other attempts of the incident" not in own
    assert f"/actions/{action}" in shown.links().values()
    assert "Waiting for approval" not in page(client, "/incidents/2").text
    kept = NodeRecords(service.records.database)
    kept.decide(action, False, "ops", "not tonight", NOW)
    told = page(client, f"/incidents/{incident_of(service, stored)}").text
    assert "Test gpu-1, gpu-2: refused by ops" in told and "not tonight" in told


@pytest.mark.parametrize(
    ("standings", "advice", "told"),
    [
        ({"gpu1": "healthy", "gpu2": "healthy"}, "Restart: test 1 found no faulty node", "all 2 nodes are healthy"),
        ({"gpu1": "healthy", "gpu2": "faulty"}, "Cordon gpu2, then restart", "1 faulty: gpu2; 1 healthy"),
        ({"gpu1": "indeterminate"}, "Find the faulty node", "1 indeterminate: gpu1"),
    ],
)
def test_what_a_test_found_is_on_the_page(
    client: TestClient, service: Service, standings: dict[str, Standing], advice: str, told: str
) -> None:
    stored = fail(service, "a", verdict=UNNAMED)
    test = run_test(service, stored, **standings)
    shown = page(client, f"/incidents/{incident_of(service, stored)}")
    assert advice in shown.text.partition("At fault")[0] and f"Test {test}: {told}" in shown.text
    assert shown.links()[f"Test {test}"] == f"/node-tests/{test}"


ASIDE = "From other attempts of this incident"
FIND = "Find the faulty node: "


def test_tests_of_other_attempts_say_nothing_of_the_one_that_is_shown(client: TestClient, service: Service) -> None:
    first = fail(service, "x", verdict=UNNAMED)
    other = fail(service, "y", verdict=msgspec.structs.replace(UNNAMED, nodes=("gpu3", "gpu4")), at=NOW + 5)
    id = incident_of(service, other)
    assert incident_of(service, first) == id
    service.records.put_job("y", JobFacts(command="sbatch other.sh"), NOW)
    faulty = conclude(service, first, concluded("gpu1", gpu2="faulty"))
    again = fail(service, "x", 2, UNNAMED, NOW + 9)
    for stored in (other, again):
        text = page(client, f"/incidents/{id}?verdict={stored.id}").text
        assert advice(client, stored, id) == phrases.advice(UNNAMED) and "exclude" not in text
        assert f"{ASIDE} x / 1: Test {faulty}: 1 faulty: gpu2; 1 healthy" in text
    assert advice(client, first, id) == "Cordon gpu2; no restart: attempt 2 also failed: NCCL Timeout Error"
    healthy = conclude(service, other, concluded("gpu3", "gpu4"), NOW + 6)
    assert advice(client, other, id) == f"Restart: test {healthy} found no faulty node"
    assert advice(client, again, id) == phrases.advice(UNNAMED)


def test_the_tests_of_another_attempt_stay_when_its_verdict_is_replaced(client: TestClient, service: Service) -> None:
    first, shown = fail(service, "x", verdict=UNNAMED), fail(service, "y", verdict=UNNAMED)
    test = conclude(service, first, concluded("gpu1"))
    fail(service, "x", verdict=msgspec.structs.replace(UNNAMED, confidence=0.5), at=NOW + 2)
    assert f"{ASIDE} x / 1: Test {test}" in page(client, f"/incidents/1?verdict={shown.id}").text


def test_a_test_from_before_the_failure_says_nothing_of_it(client: TestClient, service: Service) -> None:
    stored = fail(service, "x", verdict=UNNAMED)
    conclude(service, stored, concluded("gpu1", "gpu2"), NOW - 1)
    assert advice(client, stored) == phrases.advice(UNNAMED)


LINK = LinkFault(("gpu1", "gpu2"), "nodes", "fail together", (1,))


@pytest.mark.parametrize(
    ("conclusions", "said"),
    [
        ([concluded("gpu1", "gpu2")], "Restart: test 1 found no faulty node"),
        (
            [concluded("gpu1", "gpu2", links=(LINK,))],
            "Inspect the network: test 1 found the connection between gpu1 and gpu2 faulty, and both nodes healthy",
        ),
        (
            [concluded("gpu1", "gpu2", left_open="The network looks parted.")],
            FIND + "test 1 could not decide: The network looks parted.",
        ),
        ([concluded("gpu1")], FIND + "test 1 found no fault, but tested only 1 of the job's 2 nodes"),
        ([concluded("n1", "n2")], FIND + "test 1 found no fault in 2 nodes, none of which the job had"),
        ([concluded("gpu1", "gpu2", n1="faulty")], FIND + "test 1 found n1 faulty"),
        ([concluded("gpu1", gpu2="slow")], FIND + "test 1 found gpu2 slow"),
        ([concluded("gpu1", gpu2="faulty"), concluded("gpu1")], "Cordon gpu2, then restart"),
        ([concluded("gpu1", gpu2="faulty"), concluded("gpu1", gpu2="indeterminate")], "Cordon gpu2, then restart"),
        ([concluded("gpu1", gpu2="faulty"), concluded("gpu1", "gpu2")], "Restart: test 2 found no faulty node"),
        (
            [concluded("gpu1", gpu2="faulty"), concluded("gpu2")],
            FIND + "test 2 found no fault, but tested only 1 of the job's 2 nodes",
        ),
        ([concluded("gpu1", "gpu2"), concluded("gpu1", gpu2="slow")], FIND + "test 2 found gpu2 slow"),
        ([concluded("gpu1", "gpu2"), concluded("gpu1")], "Restart: test 1 found no faulty node"),
    ],
)
def test_what_tests_prove_is_said_and_no_more(
    client: TestClient, service: Service, conclusions: list[Conclusion], said: str
) -> None:
    stored = fail(service, "x", verdict=UNNAMED)
    service.records.put_job("x", JobFacts(command="sbatch run.sh"), NOW)
    for number, conclusion in enumerate(conclusions):
        conclude(service, stored, conclusion, NOW + number)
    assert advice(client, stored) == said
    text = page(client, f"/verdicts/{stored.id}").text
    assert ("sbatch --exclude=gpu2 run.sh" in text) == said.startswith("Cordon")
    assert ("sbatch run.sh" in text.partition("Facts")[0].partition("Evidence")[0]) == said.startswith("Restart")
    assert "all 2 nodes are healthy" not in text or all(not one.open and not one.links for one in conclusions)


def test_where_the_nodes_of_a_job_are_not_known_a_test_proves_nothing(client: TestClient, service: Service) -> None:
    stored = fail(service, "x", verdict=msgspec.structs.replace(UNNAMED, nodes=()))
    conclude(service, stored, concluded("gpu1", "gpu2"))
    assert advice(client, stored) == FIND + (
        "test 1 found no fault in 2 nodes, and it is not known which nodes the job had"
    )
    service.records.put_job("y", JobFacts(nodes=64), NOW)
    many = fail(service, "y", verdict=UNNAMED)
    conclude(service, many, concluded("gpu1", "gpu2"))
    assert advice(client, many).endswith("tested only 2 of the job's 64 nodes")


# --- the job goes on


def test_a_job_that_runs_again_is_not_restarted(client: TestClient, service: Service) -> None:
    passes = msgspec.structs.replace(UNNAMED, recovery="restart", nodes=())
    service.records.put_job("x", JobFacts(launcher="slurm", command="sbatch run.sh"), NOW)
    stored = fail(service, "x", verdict=passes)
    id, action = incident_of(service, stored), propose(service, "restart", (), stored)
    before = page(client, f"/incidents/{id}")
    assert advice(client, stored, id) == "Restart from the last checkpoint" and "sbatch run.sh" in before.text
    assert f"/actions/{action}/approve" in before.source or f"/actions/{action}" in before.source
    service.records.open_attempt("x", 2, NOW + 60)
    shown = page(client, f"/incidents/{id}")
    told = "Attempt 2 is running, started"
    assert f"({phrases.moment(NOW + 60)} UTC)" in shown.text
    assert told in shown.text.partition("Answer")[0] and "A restart now would end it." in shown.text
    assert advice(client, stored, id) == "No restart: attempt 2 is running"
    (handover,) = [tag for tag in shown.all("pre") if "data-copy" in tag.attributes]
    assert "sbatch" not in "".join(handover.text)
    assert f"/actions/{action}" not in shown.source
    service.records.end("x", 2, End("", 0, None, None, NOW + 90))
    assert "Attempt 2 ended" in page(client, f"/incidents/{id}").text
    service.records.publish("x", 2, changed(outcome="unknown", reason="None"), True, NOW + 95)
    assert "Attempt 2 ended" in page(client, f"/incidents/{id}").text
    over = service.records.publish("x", 2, changed(outcome="completed", reason="None"), True, NOW + 99)
    assert over is not None
    shown = page(client, f"/incidents/{id}")
    assert "Attempt 2 completed" in shown.text and advice(client, stored, id) == "No restart: attempt 2 completed"
    assert shown.links()["See attempt 2"] == f"/verdicts/{over.id}"
    assert "Attempt 2" not in page(client, f"/verdicts/{over.id}").text


def test_a_later_attempt_that_failed_is_the_one_to_restart(client: TestClient, service: Service) -> None:
    first, second = fail(service, "x"), fail(service, "x", 2, at=NOW + 9)
    assert advice(client, first) == "Cordon the node; no restart: attempt 2 also failed: ECC Error"
    assert advice(client, second) == "Cordon the node, then restart"


def test_advice_that_is_no_restart_stays_when_the_job_goes_on(client: TestClient, service: Service) -> None:
    stored = fail(service, "x", verdict=changed(recovery="fix_first"))
    service.records.open_attempt("x", 2, NOW + 60)
    assert advice(client, stored) == "Do not restart: fix first"


def test_a_bound_token_is_told_that_its_own_job_goes_on(guarded: Guarded) -> None:
    stored = fail(guarded.service, "mine-1")
    guarded.service.records.open_attempt("mine-1", 2, NOW + 60)
    sign_in(guarded, guarded.secret("read", prefixes=("mine-",)))
    assert "Attempt 2 is running, started" in page(guarded.client, f"/verdicts/{stored.id}").text


# --- when it failed


def test_a_correction_is_not_the_time_of_the_failure(client: TestClient, service: Service) -> None:
    fail(service, "x", at=NOW - 5 * 86_400)
    stored = fail(service, "x", verdict=changed(confidence=0.5))
    fail(service, "y")
    moment, short = phrases.moment(NOW - 5 * 86_400), phrases.short_moment(NOW - 5 * 86_400, NOW)
    for path in (f"/verdicts/{stored.id}", f"/incidents/1?verdict={stored.id}"):
        assert f"attempt 1, 5 days ago ({moment} UTC)" in page(client, path).text
    rows = page(client, "/incidents/1").text.partition("Decided by")[2]
    assert f"5 days ago {short} x / 1" in rows
    assert re.search(f"5 days ago {short} diagnosed (just now|\\d+ min ago)", page(client, "/attempts").text)


def test_pages_of_attempts_that_were_judged_again_follow_each_other(client: TestClient, service: Service) -> None:
    for number in range(1, 41):
        fail(service, "again", number, at=NOW + number)
    for number in range(1, 31):
        fail(service, "again", number, changed(confidence=0.5), at=NOW + 100 + number)
    first = service.incidents.members(1, None, 25)
    rest = service.incidents.members(1, first.next, 25)
    assert [one.attempt for one in (*first.items, *rest.items)] == list(range(40, 0, -1)) and rest.next is None


# --- who sees that nothing is left


def test_a_bound_token_is_told_that_its_incident_is_empty(guarded: Guarded) -> None:
    service = guarded.service
    id = incident_of(service, fail(service, "mine-1"))
    fail(service, "mine-1", verdict=changed(outcome="recovered"), at=NOW + 1)
    for prefix, status in (("mine-", 200), ("other-", 404)):
        guarded.client.cookies.clear()
        sign_in(guarded, guarded.secret("read", "operate", prefixes=(prefix,)))
        shown = page(guarded.client, f"/incidents/{id}", status)
        assert (f"Incident {id} has no failures left" in shown.text) == (status == 200)
        assert forms(shown) == []


def test_a_cordon_that_stands_is_told_with_its_end(client: TestClient, service: Service) -> None:
    stored = fail(service, "a")
    kept = NodeRecords(service.records.database)
    cordon = kept.want_cordon("node-1", "file", "ops", NOW, "bad", stored.id)
    kept.step_cordon(cordon.id, "standing", "ops", "", NOW)
    text = page(client, f"/incidents/{incident_of(service, stored)}").text
    assert "node-1 is cordoned by ops" in text
    kept.step_cordon(cordon.id, "undone", "ops", "", NOW)
    assert "is cordoned by" not in page(client, f"/incidents/{incident_of(service, stored)}").text


def test_a_bound_token_sees_nothing_of_nodes_under_way(guarded: Guarded) -> None:
    stored = fail(guarded.service, "mine-1", verdict=UNNAMED)
    propose(guarded.service, "test_nodes", ("gpu-1",), stored)
    run_test(guarded.service, stored, gpu1="faulty")
    sign_in(guarded, guarded.secret("read", "operate", prefixes=("mine-",)))
    shown = page(guarded.client, f"/incidents/{incident_of(guarded.service, stored)}")
    for word in ("gpu", "/actions/", "/node-tests/", "Waiting for"):
        assert word not in shown.text and word not in " ".join(shown.links().values()), word


# --- where no line is known to be the cause


def test_without_a_cause_the_end_of_the_log_is_shown(client: TestClient) -> None:
    log = b"".join(b"step %d goes well\n" % n for n in range(60)) + b"<b>flux</b> lost sync\nexit\n"
    stored = send(client, "j", log)
    assert stored.verdict.reason == "Unknown" and not stored.verdict.evidence
    shown = page(client, f"/verdicts/{stored.id}")
    answer, proof = shown.text.split("Evidence", 1)
    assert "end of the log" in answer and "no rule or case" in answer and "Confidence" not in answer
    assert "The last 20 lines of main" in proof and "<b>flux</b> lost sync" in proof and "step 42 goes" in proof
    assert "step 41 goes well" not in proof
    end = "/jobs/j/attempts/1/streams/main?line=62#L62"
    assert shown.links()["Open the log at its end"] == end and client.get(end).status_code == 200
    assert shown.links()["main"].startswith("/jobs/j/attempts/1/streams/main")


STEP = (
    b" [2026-11-21 10:00:00] iteration %8d/ 500000 | consumed samples: %12d | elapsed time per iteration (ms): 300.1 |"
    b" learning rate: 1.0E-04 | global batch size: 1024 | lm loss: 2.4E+00 | grad norm: 0.9 |\n"
)


def test_without_a_cause_what_the_filter_rules_leave_comes_first(client: TestClient) -> None:
    steps = b"".join(STEP % (n, n) for n in range(1, 301))
    stored = send(
        client, "j", b"a volume is <i>strange</i>\n" + steps + b"the volume changed its epoch\nreader 3 gave up\n"
    )
    assert stored.verdict.reason == "Unknown"
    shown = page(client, f"/verdicts/{stored.id}")
    answer, proof = shown.text.split("Evidence", 1)
    assert "look at what the filter rules leave" in answer
    left, end = proof.split("The last 20 lines of", 1)
    assert "3 lines are left after the filter rules" in left and "iteration" not in left
    assert "1a volume is <i>strange</i>" in left and "302the volume changed its epoch" in left
    assert shown.links()["302"] == "/jobs/j/attempts/1/streams/main?line=302#L302"
    marked = ["".join(tag.text) for tag in shown.all("mark")]
    assert marked == ["a volume is <i>strange</i>", *["the volume changed its epoch", "reader 3 gave up"] * 2]
    assert "iteration 300/" in end


def test_of_a_long_log_only_the_end_is_sifted_and_that_is_said(client: TestClient) -> None:
    steps = b"".join(STEP % (n, n) for n in range(1, 12_001))
    stored = send(client, "j", b"at the beginning\n" + steps + b"the volume changed its epoch\n" * 30)
    shown = page(client, f"/verdicts/{stored.id}")
    left = shown.text.split("Evidence", 1)[1].split("The last 20 lines of", 1)[0]
    assert re.search(r"Of the last [0-9,]+ lines 30 lines are left after the filter rules", left)
    assert (
        "The last 20, each linked to the log" in left and "were not filtered" in left and "at the beginning" not in left
    )
    assert shown.links()["see everything that is left"] == "/jobs/j/attempts/1/streams/main?view=compressed"


def test_a_log_of_which_nothing_is_left_says_so(client: TestClient) -> None:
    stored = send(client, "j", b"".join(STEP % (n, n) for n in range(1, 60)))
    shown = page(client, f"/verdicts/{stored.id}")
    if stored.verdict.reason == "Unknown":
        assert "no line is left after the filter rules" in shown.text.lower()


@pytest.mark.parametrize(
    ("rule", "text", "said"),
    [
        (
            "progress/loss",
            "{many} lm loss: 7.48E+00 | loss scale: 1.0 |",
            ("…", "lm loss: 7.48E+00", " | loss scale: 1.0 |"),
        ),
        ("progress/loss", "{many} aux_loss: 0.1 | loss=7.48", ("…", "loss=7.48", "")),
        ("progress/loss", "{many} 'loss': nan, 'x': 1}", ("…", "loss': nan", ", 'x': 1}")),
        ("progress/stall", "{many} iteration    51000/  115311 |", ("…", "iteration    51000", "/  115311 |")),
        ("structure/KeyError", "{many} KeyError: 'text'", ("…", "KeyError", ": 'text'")),
        ("structure/KeyError", "[rank3]: KeyError: 'text'", ("", "KeyError", ": 'text'")),
        ("progress/loss", "[rank3]: no number", ("", "", "no number")),
        ("diagnosis/x", "[rank3]: KeyError: 'text'", ("", "", "KeyError: 'text'")),
    ],
)
def test_a_quote_in_a_list_begins_with_what_it_is_cited_for(rule: str, text: str, said: tuple[str, str, str]) -> None:
    line = text.replace("{many}", "a word | " * 40)
    points = (Point(3, 10, 7.48, None),)
    cited = changed(evidence=(Evidence("f", "main", 3, line, rule),), progress=Progress(curve=points))
    assert gist(cited) == "".join(said)
    found = named_part(cited, cited.evidence[0], line)
    assert line[slice(*found)] == said[1]


@pytest.mark.parametrize(
    ("rule", "line", "said"),
    [
        ("diagnosis/x", '{"timestamp": "2026-11-24T10:48:40Z", "message": "ECC error"}', "ECC error"),
        ("diagnosis/x", '[a/b-1] {"level":"info","msg":"event","details":{"message":"ERROR: SXid 1"}}', "SXid 1"),
        ("structure/KeyError", '{"ts": 1, "msg": "failed: KeyError: \'text\'"}', "failed: KeyError: 'text'"),
        ("progress/loss", '{"message": "a step", "loss": 7.48}', '{"message": "a step", "loss": 7.48}'),
    ],
)
def test_of_a_json_record_a_list_quotes_the_message(rule: str, line: str, said: str) -> None:
    points = (Point(3, 10, 7.48, None),)
    assert gist(changed(evidence=(Evidence("f", "main", 3, line, rule),), progress=Progress(curve=points))) == said


def test_a_loss_that_decided_is_bold_in_the_answer(client: TestClient, service: Service) -> None:
    line = "iteration 3 | " + "a word | " * 40 + "lm loss: 7.48E+00 | more"
    cited = Evidence("f", "main", 3, line, "progress/loss")
    stored = publish(service, verdict=changed(reason="Loss Spike", evidence=(cited,)))
    shown = page(client, f"/verdicts/{stored.id}")
    assert "lm loss: 7.48E+00" in ["".join(tag.text) for tag in shown.all("b")]
    assert "iteration 3" not in shown.text.split("Evidence", 1)[0]


def test_the_quote_of_the_answer_is_what_the_rule_matched(client: TestClient) -> None:
    noise = b"[node-%d] {" + b'"level": "info", "source": "agent", ' * 20
    stored = send(client, "j", noise + FAILED.splitlines()[1] + b"\n")
    assert stored.verdict.reason == "Out of Memory Error"
    answer = page(client, f"/verdicts/{stored.id}").text.split("Evidence", 1)[0]
    assert "CUDA out of memory" in answer and answer.count('"level"') < 4


def test_what_logdoctor_closed_by_itself_was_no_fix(client: TestClient, service: Service) -> None:
    fail(service, "a", at=NOW - 30 * 86_400)
    stored = fail(service, "b")
    id = incident_of(service, stored)
    assert id != 1
    text = page(client, f"/incidents/{id}").text
    assert "Last time" not in text and "closed automatically: no new attempt for 7 days" in text
