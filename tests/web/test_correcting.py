"""What people say of verdicts on pages: that they are right, or what it was instead, and what that will teach."""

import html
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from logdoctor.errors import ModelUnavailable
from logdoctor.failure_agent.ladder import Ladder
from logdoctor.learning.diagnoses.teacher import Teacher, TeachingTerms
from logdoctor.learning.diagnoses.writer import OfflineWriter, Task, Writer, Written
from logdoctor.rules.scanner import Scanner
from logdoctor.service.confirming import FoundBy, Ruling
from logdoctor.service.consulting import Climbing
from logdoctor.service.service import Service, Stores
from logdoctor.store.jobs.records import StoredVerdict
from logdoctor.store.learning.confirmed import Cited
from logdoctor.store.learning.rule_rows import DIAGNOSIS
from logdoctor.types import Evidence
from logdoctor.web.cases.choosing import lines_of
from logdoctor.words import phrases
from tests import waiting
from tests.failure_agent.write_back.conftest import HEAD, LEASE, LEASE_AGAIN
from tests.web.conftest import Guarded, local_client, new_service
from tests.web.test_cases import STRANGE, enter, forms
from tests.web.test_pages import HOSTILE, NOW, Page, changed, checked, page, publish, send, sign_in

OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79 GiB in all"
LINE = 41
"""Of what stands behind HEAD."""


class Asking:
    """A writer that asks a model, which must not be asked for a preview."""

    name = "a-model@0123"

    def write(self, task: Task) -> list[Written]:
        """Nothing: it is asked without a wish of anybody."""
        raise ModelUnavailable("the model", "was asked", "Do not.")


@contextmanager
def learning(folder: Path, scanner: Scanner, writer: Writer | None = None) -> Iterator[tuple[TestClient, Service]]:
    """A service that learns rules from what people say."""

    def rungs(stores: Stores) -> Climbing:
        how = writer or OfflineWriter()
        teacher = Teacher(stores.rules, stores.confirmed, how, TeachingTerms(3, 3), scanner.book, scanner)
        return Climbing(Ladder(None, 0.8, 2, None), teacher, lambda: 0, lambda: None)

    service = new_service(folder, scanner, ladder=rungs)
    with local_client(service) as client:
        yield client, service


def sent(client: TestClient, service: Service, job: str, log: str) -> StoredVerdict:
    """A failure whose lines are kept."""
    stored = send(client, job, log.encode())
    waiting.until(lambda: service.casework.confirmed.kept(job, 1))
    return stored


def correcting(client: TestClient, stored: StoredVerdict, status: int = 200, **said: str | list[str]) -> Page:
    """What answers a form that was filled in."""
    url = f"/verdicts/{stored.id}/correct"
    form: dict[str, Any] = {
        "key": page(client, url).field("key"),
        "known": "0",
        "step": "preview",
        "reason": "OS Error",
        **said,
    }
    answer = client.post(url, data=form, follow_redirects=False)
    assert answer.status_code == status, answer.text[:2000]
    return checked(answer)


def fields(shown: Page, action: str) -> dict[str, str]:
    """What the first form of a page that leads there would send, without its buttons."""
    begin = next(n for n, tag in enumerate(shown.tags) if tag.name == "form" and tag.attributes["action"] == action)
    found: dict[str, str] = {}
    for tag in shown.tags[begin + 1 :]:
        if tag.name == "form":
            break
        kind = tag.attributes.get("type")
        if tag.name == "input" and (kind not in ("checkbox", "radio") or "checked" in tag.attributes):
            found[tag.attributes["name"]] = tag.attributes.get("value", "")
        elif tag.name == "textarea":
            found[tag.attributes["name"]] = "".join(tag.text).lstrip("\n")
    return found


def boxes(shown: Page) -> dict[str, bool]:
    """The lines that can be checked, in their order, and whether they are."""
    found = [tag.attributes for tag in shown.all("input") if tag.attributes.get("name") == "line"]
    assert all(one["type"] == "checkbox" for one in found)
    values = [one["value"] for one in found]
    assert len(values) == len(set(values)), "each line stands once"
    return {one["value"]: "checked" in one for one in found}


def state(service: Service) -> tuple[Any, ...]:
    """All that a preview must leave as it is."""
    rules = service.rules
    events = [event.id for event in rules.events()]
    cases = service.casework.confirmed.cases()
    return rules.version(), rules.list(), rules.refusals.counts(), rules.refusals.list(), events, cases


# --- it is right


def test_this_is_right(guarded: Guarded) -> None:
    stored = publish(guarded.service)
    sign_in(guarded, guarded.secret("read", "operate", name="ops"))
    shown = page(guarded.client, f"/verdicts/{stored.id}")
    url = f"/verdicts/{stored.id}/confirm"
    assert url in forms(shown) and "Confirm ECC Error" in shown.text
    assert shown.links()["It was something else"] == f"/verdicts/{stored.id}/correct"
    form = {"key": shown.field("key"), "fix": "board returned", "comment": ""}
    answer = guarded.client.post(url, data=form, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/incidents/1?case=1#confirmed")
    told = page(guarded.client, answer.headers["location"])
    assert "Saved as case 1: ops says this is right." in told.text and told.links()["case 1"] == "/cases/1"
    shown = page(guarded.client, f"/verdicts/{stored.id}")
    assert "Confirmed by ops: case 1." in shown.text and "This is right" not in shown.text
    assert url not in forms(shown) and shown.links()["It was something else"] == f"/verdicts/{stored.id}/correct"
    case = guarded.service.casework.confirmed.one(1)
    assert (case.by, case.fix, case.corrects) == ("ops", "board returned", False)


# --- it was something else


def test_it_was_something_else(client: TestClient, service: Service) -> None:
    stored = send(client, "j", STRANGE)
    shown = page(client, f"/verdicts/{stored.id}")
    assert "Say what it was" in shown.text and "This is right" not in shown.text
    assert shown.links()["Say what it was"] == f"/verdicts/{stored.id}/correct"
    seen = correcting(
        client,
        stored,
        reason="nvlink error",
        detail="the <b>third</b> link",
        recovery="restart",
        fix="reseated it",
        evidence="main:1\r\n\r\n 2 \r\n",
    )
    for words in (
        "Unknown NVLink Error",
        "the <b>third</b> link",
        "restart from the last checkpoint",
        "reseated it",
        STRANGE.decode()[:40],
    ):
        assert words in seen.text, words
    assert service.casework.confirmed.cases() == []
    form = fields(seen, f"/verdicts/{stored.id}/correct") | {"step": "save"}
    answer = client.post(f"/verdicts/{stored.id}/correct", data=form, follow_redirects=False)
    assert answer.status_code == 303, checked(answer).text
    assert answer.headers["location"] == "/incidents/1?case=1#confirmed"
    told = page(client, f"/verdicts/{stored.id}").text
    assert "testclient says it was NVLink Error (restart from the last checkpoint): case 1." in told
    lines = [Cited("main", n, text) for n, text in enumerate(STRANGE.decode().splitlines(), 1)]
    case = service.casework.confirmed.one(1)
    assert (list(case.evidence), case.detail) == (lines, "the <b>third</b> link")
    assert "the <b>third</b> link" in page(client, "/cases/1").text


def test_the_form_shows_what_the_verdict_cites_and_takes_none_of_it_for_granted(
    client: TestClient, service: Service
) -> None:
    stored = publish(service)
    shown = page(client, f"/verdicts/{stored.id}/correct")
    assert boxes(shown) == {"main:2": False}, "of a log that is gone only what the verdict kept can be named"
    assert fields(shown, f"/verdicts/{stored.id}/correct")["evidence"] == ""
    assert "before it" in shown.text and "the cause" in shown.text


def test_what_cannot_be_taken_stays_in_the_form(client: TestClient, service: Service) -> None:
    stored = send(client, "j", STRANGE)
    wrong = (
        ("evidence", "main:9", "is not in j/1"),
        ("evidence", "</textarea><script>alert(1)</script>", "names none"),
        ("evidence", "\n".join(["main:1"] * 21), "21, more than 20"),
        ("reason", "", "gives no reason"),
        ("reason", "Bad Luck", "is not a reason"),
        ("recovery", "pray", "recovery"),
        ("fault", "the moon", "fault"),
    )
    for (field, value, words), step in product(wrong, ("preview", "save")):
        said = {"reason": "Key Error", "fix": "added <it>", "evidence": "main:1", "step": step, field: value}
        shown = correcting(client, stored, 422, **said)
        assert words in shown.text and shown.field("fix") == "added <it>" and "<script>alert" not in shown.source
        assert html.unescape("".join(shown.all("textarea")[0].text)).strip() == said["evidence"]
        assert shown.field("reason") == said["reason"], (field, value)
    assert service.casework.confirmed.cases() == []


def test_who_may_not_decide_gets_no_form(guarded: Guarded) -> None:
    stored = publish(guarded.service, "team-b-1")
    other = publish(guarded.service, "team-a-1")
    for scopes, prefixes, statuses in ((("read",), (), (403, 403)), (("read", "operate"), ("team-b-",), (403, 404))):
        guarded.client.cookies.clear()
        sign_in(guarded, guarded.secret(*scopes, prefixes=prefixes))
        key = page(guarded.client, "/attempts").field("key")
        for one, status in zip((stored, other), statuses, strict=True):
            page(guarded.client, f"/verdicts/{one.id}/correct", status)
            for step in ("preview", "save"):
                form = {"key": key, "reason": "Key Error", "step": step}
                answer = guarded.client.post(f"/verdicts/{one.id}/correct", data=form)
                assert answer.status_code == status and checked(answer)
    assert guarded.service.casework.confirmed.cases() == []


def test_what_did_not_fail_is_not_corrected(client: TestClient, service: Service) -> None:
    fine = publish(service, "fine", changed(outcome="completed", reason="None"))
    page(client, f"/verdicts/{fine.id}/correct", 409)
    page(client, "/verdicts/999/correct", 404)


def test_two_people_at_once(client: TestClient, service: Service) -> None:
    stored = send(client, "j", STRANGE)
    mine = correcting(client, stored, evidence="main:1")
    form = fields(mine, f"/verdicts/{stored.id}/correct") | {"step": "save"}
    service.casework.confirm(stored.id, "ops", Ruling("Key Error", evidence=(("main", 2),)))
    answer = client.post(f"/verdicts/{stored.id}/correct", data=form, follow_redirects=False)
    assert answer.status_code == 409
    shown = checked(answer)
    assert "ops has said since that it was Key Error" in shown.text
    assert [case.reason for case in service.casework.confirmed.cases()] == ["Key Error"]
    again = fields(shown, f"/verdicts/{stored.id}/correct") | {"step": "save", "reason": "OS Error"}
    answer = client.post(f"/verdicts/{stored.id}/correct", data=again, follow_redirects=False)
    assert answer.status_code == 303
    assert [case.reason for case in service.casework.confirmed.cases()] == ["OS Error"]


def test_after_saving_the_incident_says_what_is_saved(tmp_path: Path, scanner: Scanner) -> None:
    with learning(tmp_path, scanner) as (client, service):
        stored = sent(client, service, "a", HEAD + LEASE)
        number = service.incidents.of("a", 1)
        answer = client.post(
            f"/verdicts/{stored.id}/correct",
            data={
                "key": page(client, f"/verdicts/{stored.id}").field("key"),
                "known": "0",
                "step": "save",
                "reason": "OS Error",
                "evidence": f"main:{LINE}",
            },
            follow_redirects=False,
        )
        assert answer.headers["location"] == f"/incidents/{number}?case=1#confirmed"
        waiting.until(lambda: (v := service.records.current("a", 1)) and v.verdict.reason == "OS Error")
        (rule,) = waiting.until(lambda: service.rules.list(DIAGNOSIS))
        answer = client.get(answer.headers["location"])
        shown = checked(answer)
        assert "Saved as case 1" in shown.text and "The verdict below says so now." in shown.text
        assert f"/rules/{rule.id}" in shown.links().values() and "Refresh" not in answer.headers
        assert "Saved as" not in page(client, "/incidents/1").text


def test_a_rule_that_still_names_the_line_is_told_of(tmp_path: Path, scanner: Scanner) -> None:
    said = {"reason": "Key Error", "evidence": "main:2"}
    with learning(tmp_path, scanner) as (client, service):
        stored = sent(client, service, "j", f"starting\n{OUT_OF_MEMORY}\n")
        assert (stored.verdict.reason, stored.verdict.decided_by.kind) == ("Out of Memory Error", "rule")
        rule = stored.verdict.decided_by.rule
        shown = correcting(client, stored, **said)
        assert f"Rule {rule} would still decide Out of Memory Error" in shown.text
        assert "applies only to failures in which no rule names the cause" in shown.text
        assert "is recognised, whatever" not in shown.text and f"/rules/{quote(rule)}" in shown.links().values()
        agreed = correcting(client, stored, reason="Out of Memory Error", evidence="main:2")
        assert "would still decide" not in agreed.text
        answer = client.post(
            f"/verdicts/{stored.id}/correct",
            data={"key": page(client, f"/verdicts/{stored.id}").field("key"), "known": "0", "step": "save", **said},
            follow_redirects=False,
        )
        assert answer.status_code == 303
        waiting.until(lambda: (now := service.records.current("j", 1)) and now.verdict.reason == "Key Error")
        now = service.records.current("j", 1)
        saved = page(client, f"/verdicts/{now.id if now else 0}?case=1")
        assert "Saved as case 1" in saved.text and "is recognised, whatever" not in saved.text
        assert f"Rule {rule} would still decide Out of Memory Error" in saved.text
        overrule = saved.links()["Overrule it"]
        assert overrule == f"/rules/{quote(rule)}/override" and page(client, overrule).all("form")
        case = page(client, "/cases/1")
        assert f"Rule {rule} would still decide Out of Memory Error" in case.text
        assert case.links()["Overrule it"] == overrule and "is recognised, whatever" not in case.text
        again = sent(client, service, "k", f"starting\n{OUT_OF_MEMORY}\n").verdict
        assert (again.reason, again.decided_by.rule) == ("Out of Memory Error", rule)


def test_until_the_verdict_is_corrected_the_page_says_so(tmp_path: Path, scanner: Scanner) -> None:
    with learning(tmp_path, scanner) as (client, service):
        stored = publish(service, "a")
        case = enter(service, "a", reason="Key Error", verdict=stored.id, corrects=True, at=time.time())
        number = service.incidents.of("a", 1)
        answer = client.get(f"/incidents/{number}?case={case.id}")
        assert "The verdict is being corrected." in checked(answer).text and answer.headers["Refresh"].startswith(
            "2; url=/incidents/"
        )
        service.records.publish("a", 1, changed(reason="Key Error", fingerprint="d" * 16, suspects=()), True, NOW)
        answer = client.get(f"/incidents/{number}?case={case.id}")
        assert "being corrected" not in checked(answer).text and "Refresh" not in answer.headers


def test_a_correction_of_lines_that_are_gone_is_saved_all_the_same(client: TestClient, service: Service) -> None:
    stored = publish(service)
    seen = correcting(client, stored, reason="Key Error", evidence="main:2")
    assert "none of its log is kept" in seen.text or "No rule is learned." in seen.text
    assert "Save the correction" in seen.text
    form = fields(seen, f"/verdicts/{stored.id}/correct") | {"step": "save"}
    assert client.post(f"/verdicts/{stored.id}/correct", data=form, follow_redirects=False).status_code == 303
    (case,) = service.casework.confirmed.cases()
    assert case.evidence == (Cited("main", 2, "the cause"),)
    told = page(client, "/incidents/1?case=1").text
    assert "The verdict below is unchanged" in told


# --- what it will teach


def test_a_preview_is_what_is_learned_when_it_is_saved(tmp_path: Path, scanner: Scanner) -> None:
    with learning(tmp_path, scanner) as (client, service):
        sent(client, service, "b", HEAD + LEASE_AGAIN)
        stored = sent(client, service, "a", HEAD + LEASE)
        before = state(service)
        shown = correcting(client, stored, evidence=f"main:{LINE}", fix="ask <b>ops</b> for quota")
        for words in ("What will be learned", "quota service refused", "shadow", "3 attempts that it matches"):
            assert words in shown.text, words
        assert "It matches this attempt, from which it is learned. Tried on the newest 1 other attempt" in shown.text
        assert "all that are kept: it matches 1, agrees with 0" in shown.text
        assert state(service) == before, "a preview changes nothing"
        lesson = client.post(
            f"/v1/verdicts/{stored.id}/lesson",
            json={"reason": "OS Error", "evidence": [{"stream": "main", "line": LINE}]},
        ).json()
        assert state(service) == before
        hits = lesson["backtest"]["hits"]
        assert [(hit["job"], hit["says"], hit["line"]) for hit in hits] == [("b", "open", LINE)]
        form = fields(shown, f"/verdicts/{stored.id}/correct") | {"step": "save"}
        assert client.post(f"/verdicts/{stored.id}/correct", data=form, follow_redirects=False).status_code == 303
        (rule,) = waiting.until(lambda: service.rules.list(DIAGNOSIS))
        assert (rule.pattern, rule.title) == (lesson["rule"]["pattern"], lesson["rule"]["title"])
        assert rule.claim is not None and rule.claim.suggestion == "ask <b>ops</b> for quota"
        assert (rule.status, rule.waits_for) == (lesson["rule"]["status"], lesson["rule"]["waits_for"])
        corrected = waiting.until(
            lambda: (v := service.records.current("a", 1)) and v.verdict.reason == "OS Error" and v
        )
        told = page(client, f"/verdicts/{corrected.id}")
        assert "reason: Unknown, now OS Error" in told.text
        again = correcting(client, corrected, known="1", reason="OS Error", evidence=f"main:{LINE}")
        assert "No rule is learned." in again.text and "it is already being watched" in again.text
        assert f"/rules/{rule.id}" in again.links().values()


def test_a_preview_names_what_contradicts_and_who_is_put_back(tmp_path: Path, scanner: Scanner) -> None:
    with learning(tmp_path, scanner) as (client, service):
        first = sent(client, service, "a", HEAD + LEASE)
        service.casework.confirm(first.id, "ops", Ruling("OS Error", evidence=(("main", LINE),)))
        (rule,) = waiting.until(lambda: service.rules.list(DIAGNOSIS))
        waiting.until(lambda: (v := service.records.current("a", 1)) and v.verdict.reason == "OS Error")
        stored = sent(client, service, "c", HEAD + LEASE.replace("12", "8"))
        waiting.until(lambda: service.rules.list(DIAGNOSIS)[0].jobs == 2)  # nothing changes after that
        before = state(service)
        shown = correcting(client, stored, reason="Permission Error", evidence=f"main:{LINE}")
        assert "No rule is learned." in shown.text and "which failed of OS Error" in shown.text
        assert "others" in [html.unescape("".join(tag.text)) for tag in shown.all("th")]
        assert f"{rule.id} is retired: it says OS Error" in shown.text
        assert state(service) == before
        lesson = client.post(f"/v1/verdicts/{stored.id}/lesson", json={"reason": "Permission Error"}).json()
        assert lesson["rule"] is None and lesson["put_back"] == [{"rule": rule.id, "status": "retired"}]
        assert {one["guard"] for one in lesson["refused"]} == {"others"}


def test_a_model_is_not_asked_for_a_preview(tmp_path: Path, scanner: Scanner) -> None:
    with learning(tmp_path, scanner, Asking()) as (client, service):
        stored = sent(client, service, "a", HEAD + LEASE)
        shown = correcting(client, stored, evidence=f"main:{LINE}")
        assert "quota service refused" in shown.text
        assert "the model a-model@0123 is asked for a pattern first" in shown.text


def test_a_rule_that_takes_nodes_out_waits_for_a_person(tmp_path: Path, scanner: Scanner) -> None:
    with learning(tmp_path, scanner) as (client, service):
        stored = sent(client, service, "a", HEAD + LEASE)
        shown = correcting(client, stored, reason="Node Failure", evidence=f"main:{LINE}")
        assert "when a person approves it" in shown.text


def test_a_service_that_learns_nothing_says_so(client: TestClient, service: Service) -> None:
    stored = send(client, "j", STRANGE)
    assert "learns no rules" in correcting(client, stored).text
    lesson = client.post(f"/v1/verdicts/{stored.id}/lesson", json={"reason": "Key Error"}).json()
    assert lesson["rule"] is None and "learns no rules" in lesson["why"] and lesson["corrects"]


def test_hostile_text_in_a_preview_does_nothing(tmp_path: Path, scanner: Scanner) -> None:
    with learning(tmp_path, scanner) as (client, service):
        log = HEAD + f"ERROR quota service refused the lease of team '{HOSTILE}' for 12 nodes\n"
        stored = sent(client, service, "<b>j", log)
        shown = correcting(client, stored, evidence=f"main:{LINE}", fix=HOSTILE, comment=HOSTILE)
        assert "<script>alert" not in shown.source and "quota service refused" in shown.text


# --- the lines that prove it


STEPS = b"".join(b"step %d goes well\n" % number for number in range(1, 61))


def saved_lines(client: TestClient, service: Service, stored: StoredVerdict, shown: Page) -> list[int]:
    """The lines of the case that comes of a preview."""
    url = f"/verdicts/{stored.id}/correct"
    form = fields(shown, url) | {"step": "save"}
    answer = client.post(url, data=form, follow_redirects=False)
    assert answer.status_code == 303, checked(answer).text
    return [one.line for one in service.casework.confirmed.cases()[-1].evidence]


def test_lines_are_checked_and_typed_ones_come_after_them(client: TestClient, service: Service) -> None:
    stored = send(client, "j", STEPS + b"shard 12 came out short\nleaving\n")
    shown = page(client, f"/verdicts/{stored.id}/correct")
    assert {f"main:{line}" for line in range(43, 63)} <= boxes(shown).keys() and not any(boxes(shown).values())
    lines = ["main:62", "main:61", "main:62"]
    shown = correcting(client, stored, 422, line=lines, evidence="7\r\nmain:61")
    assert "none of them is said to name the failure" in shown.text
    assert [value for value, on in boxes(shown).items() if on] == ["main:61", "main:62"]
    shown = correcting(client, stored, line=lines, naming="main:62", evidence="7\r\nmain:61")
    kept = boxes(shown)
    assert [value for value, on in kept.items() if on] == ["main:61", "main:62"]
    assert [html.unescape("".join(tag.text)).strip() for tag in shown.all("textarea")][-1] == "main:7"
    assert "shard 12 came out short" in shown.text.split("Edit before")[0]
    assert saved_lines(client, service, stored, shown) == [62, 61, 7]


def test_the_line_that_names_the_failure_is_chosen(client: TestClient, service: Service) -> None:
    send(client, "j", STEPS)
    cited = tuple(Evidence("j/1/main", "main", line, f"step {line} goes well", "x", (), ()) for line in (30, 20))
    stored = publish(service, verdict=changed(evidence=cited))
    shown = correcting(client, stored, line=["main:20", "main:30"], naming="main:30")
    chosen = [tag.attributes["value"] for tag in shown.all("input") if tag.attributes.get("name") == "naming"]
    assert "main:30" in chosen and saved_lines(client, service, stored, shown) == [30, 20]
    shown = correcting(client, stored, known="1", line=["main:21"])
    assert saved_lines(client, service, stored, shown) == [21], "a single one needs no choice"
    shown = correcting(client, stored, known="2", naming="main:22")
    assert saved_lines(client, service, stored, shown) == [22], "what names it proves it"


def test_boxes_that_no_form_of_ours_sends(client: TestClient, service: Service) -> None:
    stored = send(client, "j", STEPS)
    for lines, status, words in (
        (["main:1"] * 60, 200, "What will be saved"),
        ([f"main:{line}" for line in range(1, 61)], 422, "there are 60, and none of them"),
        (["main:99"], 422, "is not in j/1"),
        (["other:1"], 422, "is not in j/1"),
        (["main:0"], 422, "names none"),
        (["<script>alert(1)</script>"], 422, "names none"),
        (["main:1"] * 600, 400, "cannot be read"),
    ):
        shown = correcting(client, stored, status, line=lines)
        assert words in shown.text and "<script>alert" not in shown.source, lines[0]
    assert service.casework.confirmed.cases() == []


def test_the_form_can_be_sent_without_scripts(client: TestClient, service: Service) -> None:
    stored = send(client, "j", STRANGE)
    shown = page(client, f"/verdicts/{stored.id}/correct")
    begin = next(n for n, tag in enumerate(shown.tags) if tag.attributes.get("action", "").endswith("/correct"))
    inside = {tag.attributes["name"] for tag in shown.tags[begin:] if "name" in tag.attributes}
    assert {"key", "known", "reason", "line", "evidence", "step"} <= inside


def test_the_preview_says_what_the_case_says_later(tmp_path: Path, scanner: Scanner) -> None:
    with learning(tmp_path, scanner) as (client, service):
        odd = send(client, "odd", STEPS + b"shard 12 came out short\n")
        known = sent(client, service, "known", HEAD + LEASE)
        last = correcting(client, odd, reason="Dataset Loading Error", line=["main:61"]).text
        assert "A rule is learned from" in last and "The rule below recognises such failures" in last
        ways: list[tuple[StoredVerdict, int, FoundBy]] = [(odd, 10, "nothing"), (known, LINE, "line")]
        for stored, line, way in ways:
            shown = correcting(client, stored, reason="Dataset Loading Error", line=[f"main:{line}"])
            words = phrases._FOUND[way]
            assert words in shown.text and ("select it below" in shown.text) == (way == "nothing")
            form = fields(shown, f"/verdicts/{stored.id}/correct") | {"step": "save"}
            answer = client.post(f"/verdicts/{stored.id}/correct", data=form, follow_redirects=False)
            assert words in page(client, answer.headers["location"].partition("#")[0]).text
            case = service.casework.confirmed.live(stored.job, 1)
            assert case is not None
            later = page(client, f"/cases/{case.id}")
            assert words in later.text and ("Correct the verdict" in later.links()) == (way == "nothing")
            assert all(other not in later.text for other in phrases._FOUND.values() if other != words)


def test_a_corrected_verdict_tells_who_corrected_it(tmp_path: Path, scanner: Scanner) -> None:
    with learning(tmp_path, scanner) as (client, service):
        stored = sent(client, service, "a", HEAD + LEASE)
        ruling = Ruling("OS Error", fix="rebuilt shard 12", evidence=(("main", LINE),))
        service.casework.confirm(stored.id, "ops", ruling)
        new = waiting.until(lambda: (v := service.records.current("a", 1)) and v.verdict.reason == "OS Error" and v)
        shown = page(client, f"/incidents/{service.incidents.of('a', 1)}")
        for words in (
            "ops corrected this from Unknown: case 1.",
            "100%, decided by ops, case 1",
            "What fixed itrebuilt shard 12",
            new.verdict.suggestion,
        ):
            assert words in shown.text, words
        for words in ("says this is right", "looks the same, case", "ask_human", "This is right"):
            assert words not in shown.text, words
        assert "rebuilt" not in new.verdict.suggestion and new.verdict.decided_by.kind == "case"
        assert f"/verdicts/{new.id}/confirm" not in forms(shown)
        assert "ops corrected this from Unknown" in page(client, "/cases/1").text
        old = page(client, f"/verdicts/{stored.id}")
        assert "ops says it was OS Error" in old.text
        assert forms(old) == [] and old.links()["see the one that replaced it"] == f"/verdicts/{new.id}"


@pytest.mark.parametrize(
    ("text", "streams", "found"),
    [
        ("", ["a"], ()),
        ("12", ["a"], (("a", 12),)),
        ("a:12\n b c:3 ", ["a", "b c"], (("a", 12), ("b c", 3))),
        ("x:y:7", [], (("x:y", 7),)),
    ],
)
def test_lines_as_people_write_them(text: str, streams: list[str], found: tuple[tuple[str, int], ...]) -> None:
    assert lines_of(text, streams) == found


# --- the node at fault


def failing_on(*hosts: str) -> str:
    """A log in which GPUs of nodes go bad."""
    return HEAD + "".join(
        f"{host}: ERROR NVRM: Xid (PCI:0000:52:00): 79, GPU has fallen off the bus\n" for host in hosts
    )


def test_a_correction_keeps_the_node(tmp_path: Path, scanner: Scanner) -> None:
    with learning(tmp_path, scanner) as (client, service):
        told = {"nodelist": "gpu-[01-04]", "launcher": "slurm", "command": "sbatch train.sbatch"}
        assert client.put("/v1/jobs/a", json=told).status_code in (200, 201)
        stored = sent(client, service, "a", failing_on("gpu-02"))
        assert [one.node for one in stored.verdict.suspects] == ["gpu-02"], stored.verdict
        form = page(client, f"/verdicts/{stored.id}/correct")
        checked_nodes = [
            tag.attributes["value"]
            for tag in form.all("input")
            if tag.attributes.get("name") == "node" and "checked" in tag.attributes
        ]
        assert checked_nodes == ["gpu-02"] and "gpu-04" in form.text
        said = {"reason": "ECC Error", "evidence": f"main:{LINE}"}
        assert "a did not run on it" in correcting(client, stored, 422, **said, nodes="rack-9").text
        shown = correcting(client, stored, **said, node="gpu-02")
        assert "Node at fault gpu-02" in " ".join(shown.text.split())
        form_fields = fields(shown, f"/verdicts/{stored.id}/correct") | {"step": "save"}
        client.post(f"/verdicts/{stored.id}/correct", data=form_fields)
        now = waiting.until(lambda: (v := service.records.current("a", 1)) and v.verdict.reason == "ECC Error" and v)
        assert [one.node for one in now.verdict.suspects] == ["gpu-02"]
        assert now.verdict.suggestion.startswith("Cordon the node"), "which is known, as the person named it"
        incident = page(client, f"/incidents/{service.incidents.of('a', 1)}")
        assert "sbatch --exclude=gpu-02 train.sbatch" in incident.text
        node = page(client, "/nodes/gpu-02")
        assert "ECC Error" in node.text and "No current verdict suspects it" not in node.text
        case = page(client, "/cases/1")
        assert "on gpu-02" in case.text and f"/incidents/{service.incidents.of('a', 1)}" in case.links().values()
        assert "Fingerprints" in case.text.split("Technical details")[1]


def test_a_case_is_named_by_the_line_that_a_person_named(tmp_path: Path, scanner: Scanner) -> None:
    """Also where that looks like no error, and another line does."""
    told = "clocks of all GPUs were locked at 210 MHz before this run"
    with learning(tmp_path, scanner) as (client, service):
        stored = sent(client, service, "a", failing_on("gpu-02") + f"{told}\n")
        shown = correcting(client, stored, reason="ECC Error", evidence=f"main:{LINE + 1}", naming=f"main:{LINE + 1}")
        form_fields = fields(shown, f"/verdicts/{stored.id}/correct") | {"step": "save"}
        client.post(f"/verdicts/{stored.id}/correct", data=form_fields)
        case = page(client, "/cases/1").text
        assert f"Named by{told}" in case


def test_a_person_names_another_node_or_none(tmp_path: Path, scanner: Scanner) -> None:
    with learning(tmp_path, scanner) as (client, service):
        for job, suspects in (("other", ["gpu-03"]), ("none", [])):
            stored = sent(client, service, job, failing_on("gpu-02"))
            said = {"reason": stored.verdict.reason, "suspects": suspects}
            made = client.post(f"/v1/verdicts/{stored.id}/correct", json=said).json()
            assert made["corrects"] and made["nodes"] == suspects
            now = waiting.until(
                lambda job=job, of=stored: (v := service.records.current(job, 1)) and v.id != of.id and v
            )
            assert [one.node for one in now.verdict.suspects] == suspects
        assert "corrected which node is at fault" in page(client, "/cases/1").text
        bad = client.post(f"/v1/verdicts/{now.id}/correct", json={"reason": "ECC Error", "suspects": ["<b>"]})
        assert bad.status_code == 422
