"""The pages as a browser gets them: nothing hostile works, every URL holds its list, only those who may get in."""

import base64
import re
import time
from html.parser import HTMLParser
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, urlsplit

import msgspec
import pytest
from starlette.testclient import TestClient

from logdoctor.service.intake import Intake
from logdoctor.service.service import Service
from logdoctor.store.jobs.records import End, JobFacts, StoredVerdict
from logdoctor.text import harmless
from logdoctor.types import Compression, DecidedBy, Evidence, Progress, RuleCount, Suspect, Symptom, Verdict
from logdoctor.web import gate
from logdoctor.web.jobs.filters import AttemptFilters
from logdoctor.web.rendering import local
from logdoctor.web.url_query import PAGE
from logdoctor.words import phrases
from tests import waiting
from tests.web.conftest import FAILED, LOCAL, Guarded, bearer, local_client, options

STATIC = Path(gate.__file__).parent / "static"
BIDI = "\u202e\u2066\u200f"
HOSTILE = f"<script>alert(1)</script>\"'& {BIDI}\x00\x07\x1b[31mred\x1b[0m{{{{7*7}}}}<!-- javascript:x"
NOW = time.time()

FAULT = Verdict(
    reason="ECC Error",
    category="Infrastructure",
    fault="infrastructure",
    recovery="isolate_and_restart",
    outcome="failed",
    confidence=0.95,
    suggestion="Cordon the node.",
    evidence=(Evidence("j/1/main", "main", 2, "the cause", "diagnosis/x", ("before it",), ("after it",)),),
    suspects=(Suspect("node-1", 3, "0000:52:00", "its memory is broken"),),
    first_rank=3,
    symptoms=(
        Symptom("CUDA Error", 7, "main", 8, "diagnosis/x"),
        Symptom("Runtime Error", 9, "main", 1, ""),
    ),
    decided_by=DecidedBy("rule", "diagnosis/x", "0123456789abcdef"),
    fingerprint="fedcba9876543210",
    progress=Progress(3659, 10_000, 1.975, None, 1, "main"),
    compression=Compression(200, 50, 6000, 1000, {"filter/x": RuleCount(150, 3, 190)}),
)


def changed(**changes: Any) -> Verdict:
    """The fault with something else in it."""
    return msgspec.structs.replace(FAULT, **changes)


def publish(service: Service, job: str = "j", verdict: Verdict = FAULT, at: float = NOW, **facts: Any) -> StoredVerdict:
    """A verdict on the first attempt of a job."""
    service.records.put_job(job, JobFacts(**facts), at)
    stored = service.records.publish(job, 1, verdict, True, at)
    assert stored is not None
    return stored


class Tag(NamedTuple):
    """A tag with its attributes, and the text up to the next tag, an end tag or not."""

    name: str
    attributes: dict[str, str]
    text: list[str]


class Page(HTMLParser):
    """A page, taken apart."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[Tag] = []
        self.words: list[str] = []
        self.source, self._open = text, False
        self.feed(text)

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(Tag(name, {key: value or "" for key, value in attributes}, []))
        self._open = True

    def handle_endtag(self, name: str) -> None:
        self._open = False

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self._open:
            self.tags[-1].text.append(data)

    @property
    def text(self) -> str:
        """What is read, with single blanks."""
        return " ".join("".join(self.words).split())

    def all(self, *names: str) -> list[Tag]:
        """The tags with these names."""
        return [tag for tag in self.tags if tag.name in names]

    def links(self) -> dict[str, str]:
        """The targets of links by their first words."""
        return {"".join(tag.text).strip(): tag.attributes["href"] for tag in self.all("a")}

    def rows(self) -> list[str]:
        """The verdicts that a list links to, in order."""
        found = [tag.attributes["href"] for tag in self.all("a")]
        return [target for target in found if re.fullmatch(r"/verdicts/\d+", target)]

    def field(self, name: str) -> str:
        """The value of an input."""
        return next(tag.attributes["value"] for tag in self.all("input") if tag.attributes.get("name") == name)


def page(client: TestClient, path: str, status: int = 200) -> Page:
    """The page at a path, which is well made whatever it shows."""
    answer = client.get(path, follow_redirects=False)
    assert answer.status_code == status, answer.text[:500]
    return checked(answer)


def checked(answer: Any) -> Page:
    """The page of an answer: nothing inline, nothing from elsewhere, headings and labels in order."""
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"
    text = answer.text
    assert not re.search(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{BIDI}\u202a-\u202d\u2067-\u2069\ufeff]", text)
    made = Page(text)
    for tag in made.tags:
        assert tag.name not in ("style", "iframe", "object", "embed", "base")
        assert "style" not in tag.attributes and not [name for name in tag.attributes if name.startswith("on")]
        for name in ("href", "src", "action"):
            target = tag.attributes.get(name, "/")
            assert re.match(r"/(?![/\\])|#", target), target
            assert not tag.attributes.get("target")
    for script in made.all("script"):
        assert script.attributes["src"].startswith("/static/") and "".join(script.text).strip() == ""
    ids = [tag.attributes["id"] for tag in made.tags if "id" in tag.attributes]
    assert len(ids) == len(set(ids))
    assert {target[1:] for target in made.links().values() if target.startswith("#")} <= set(ids)
    assert made.all("html")[0].attributes["lang"] == "en"
    levels = [int(tag.name[1]) for tag in made.all("h1", "h2", "h3", "h4")]
    assert levels.count(1) == 1 and levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels)), levels
    outside = Page(re.sub(r"<svg.*?</svg>", "", text, flags=re.DOTALL))  # pictures have titles of their own
    assert [len(outside.all(name)) for name in ("title", "main")] == [1, 1]
    assert made.links()["Skip to content"] == "#main"
    labelled = {tag.attributes["for"] for tag in made.all("label") if "for" in tag.attributes}
    places = [made.tags.index(tag) for tag in made.all("input", "select") if tag.attributes.get("type") != "hidden"]
    for place in places:
        assert made.tags[place].attributes.get("id") in labelled or made.tags[place - 1].name == "label"
    for cell in made.all("th"):
        assert cell.attributes["scope"] in ("col", "row")
    for named in (tag.attributes["aria-labelledby"] for tag in made.tags if "aria-labelledby" in tag.attributes):
        assert named in ids
    return made


def send(client: TestClient, job: str, log: bytes) -> StoredVerdict:
    """The final verdict on a log that was sent."""
    assert client.post(f"/v1/jobs/{job}/attempts/1/streams/main/log?offset=0", content=log).status_code == 200
    client.post(f"/v1/jobs/{job}/attempts/1/end", json={"exit_code": 1})

    def final() -> Any:
        answer = client.get(f"/v1/jobs/{job}/attempts/1/verdict")
        return answer.status_code == 200 and answer.json()["final"] and answer.json()

    return msgspec.convert(waiting.until(final), StoredVerdict)


# --- the list


def test_without_logs_the_list_says_how_to_send_one(client: TestClient) -> None:
    shown = page(client, "/attempts")
    assert "No logs yet" in shown.text
    assert "logdoctor run --job my-job" in shown.text
    assert f"{LOCAL}/v1/jobs/my-job/attempts/1/streams/main/log?offset=0" in shown.text
    assert "Authorization" not in shown.text


def test_the_shown_commands_send_a_log(client: TestClient, service: Service) -> None:
    send(client, "my-job", FAILED)
    assert "Out of Memory Error" in page(client, "/attempts").text


def test_a_row_says_what_happened_and_what_to_do(client: TestClient, service: Service) -> None:
    stored = publish(service, "llama", user="u17", at=NOW - 7200)
    shown = page(client, "/attempts")
    assert shown.rows() == [f"/verdicts/{stored.id}"]
    for word in ("failed", "ECC Error", "Cordon the node, then restart", "llama / 1", "node-1", "u17", "95%"):
        assert word in shown.text
    assert "2 h ago" in shown.text and phrases.short_moment(NOW - 7200, NOW) in shown.text
    assert shown.links()["node-1"] == "/attempts?node=node-1"


def test_the_list_shows_what_somebody_should_look_at(client: TestClient, service: Service) -> None:
    ids = {}
    for number, outcome in enumerate(("failed", "completed", "running", "cancelled", "recovered", "unknown")):
        ids[outcome] = f"/verdicts/{publish(service, outcome, changed(outcome=outcome), NOW + number).id}"
    assert page(client, "/attempts").rows() == [ids["recovered"], ids["failed"]], (
        "who cancelled a job has nothing to do"
    )
    assert len(page(client, "/attempts?outcome=all").rows()) == 6
    assert page(client, "/attempts?outcome=running").rows() == [ids["running"]]
    tabs = page(client, "/attempts?outcome=running").text
    for tab in (
        "Needs attention 2",
        "Failed 1",
        "Recovered 1",
        "Cancelled 1",
        "Running 1",
        "Completed 1",
        "End unknown 1",
        "All 6",
    ):
        assert tab in tabs


def test_a_hang_is_looked_at_before_it_is_restarted(client: TestClient, service: Service) -> None:
    hang = changed(reason="Hang", category="Anomaly", recovery="restart", suspects=())
    service.records.put_job("j", JobFacts(command="python train.py"), NOW)
    service.records.publish("j", 1, hang, False, NOW)
    first = "See whether it still makes steps; if not, restart from the last checkpoint"
    for url in ("/", "/attempts", "/verdicts/1"):
        assert first in page(client, url).text, url
    assert "The attempt has not ended: end it first." in page(client, "/verdicts/1").text
    assert "No job is running without a failure" in page(client, "/attempts?outcome=running").text
    service.records.publish("j", 1, hang, True, NOW + 1)
    assert "whether it still" not in page(client, "/verdicts/1").text


def begin(client: TestClient, service: Service, job: str, at: float = NOW, streams: int = 1, **facts: Any) -> None:
    """An attempt that runs: some of its log has come, and no verdict."""
    service.records.put_job(job, JobFacts(**facts), at)
    service.records.open_attempt(job, 1, at)
    for number in range(streams):
        url = f"/v1/jobs/{quote(job, safe='')}/attempts/1/streams/rank-{number}/log?offset=0"
        assert client.post(url, content=b"step 1\n").status_code == 200


def test_what_runs_without_a_verdict_is_listed(client: TestClient, service: Service) -> None:
    assert "Running" not in page(client, "/attempts?outcome=running").text
    begin(client, service, "llm", NOW - 7200, streams=6, user="u17")
    service.records.open_attempt("bare", 1, NOW)
    service.records.end("over", 1, End("", 0, None, None, NOW))
    shown = page(client, "/attempts?outcome=running")
    for words in ("Running 3", "All 3", "No verdict yet 3", "llm / 1", "2 h ago", "u17", "and 2 more"):
        assert words in shown.text, words
    assert "no log yet" in shown.text and "being diagnosed" in shown.text
    assert shown.links()["llm"] == shown.links()["rank-0"] == "/jobs/llm/attempts/1/streams/rank-0"
    assert client.get(shown.links()["rank-3"]).status_code == 200
    assert "No verdict yet" in page(client, "/attempts?outcome=all").text
    other = page(client, "/attempts").text
    assert "No verdict yet" not in other and "No job has failed" in other
    publish(service, "llm", changed(outcome="running", reason="None"))
    shown = page(client, "/attempts?outcome=running")
    assert "Running 3" in shown.text and "No verdict yet 2" in shown.text and len(shown.rows()) == 1


def test_a_job_that_runs_is_seen_before_anything_failed(client: TestClient, service: Service) -> None:
    assert "No logs yet" in page(client, "/").text
    begin(client, service, "llm")
    shown = page(client, "/").text
    assert "No logs yet" not in shown and "1 attempt has no verdict yet." in shown


def test_every_page_says_that_the_disk_is_full(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "disk of the service is full" not in page(client, "/").text
    monkeypatch.setattr(Intake, "is_full", True)
    for url in ("/", "/attempts", "/nodes"):
        assert "The disk of the service is full. It takes no logs" in page(client, url).text


def test_a_log_of_which_nothing_is_known_advises_nothing(client: TestClient, service: Service) -> None:
    nothing = changed(outcome="unknown", reason="None", category="None", recovery="none", fault="unknown", evidence=())
    stored = publish(service, "j", msgspec.structs.replace(nothing, suspects=(), symptoms=()))
    assert "End unknown" in page(client, "/attempts?outcome=unknown").text
    shown = page(client, f"/verdicts/{stored.id}").text
    assert "End unknown" in shown and "No advice: it is not known how the job ended" in shown
    assert page(client, "/").rows() == []


def test_what_runs_is_found_by_job_and_user(client: TestClient, service: Service) -> None:
    begin(client, service, "llm", user="u17")
    begin(client, service, "other", user="u4")
    queries = ("job=llm", "user=u17", "job=llm&user=u17&within=hour")
    for query, outcome in product(queries, ("", "&outcome=running", "&outcome=all")):
        shown = page(client, f"/attempts?{query}{outcome}")
        assert "llm / 1" in shown.text and "other" not in shown.text and "Running 1" in shown.text, (query, outcome)
        assert "Nothing matches" not in shown.text
    for other in ("job=llm&reason=ECC+Error", "job=llm&node=node-1", "job=llm&user=u4", "job=llm&outcome=failed"):
        assert "llm / 1" not in page(client, f"/attempts?{other}").text, other
    assert "1 attempt with another outcome" in page(client, "/attempts?job=llm&outcome=failed").text


def test_of_many_that_run_the_newest_are_shown(client: TestClient, service: Service) -> None:
    for number in range(PAGE + 7):
        service.records.open_attempt(f"job-{number}", 1, NOW + number)
    shown = page(client, "/attempts?outcome=running")
    assert f"No verdict yet {PAGE + 7}" in shown.text and f"Showing the newest {PAGE};" in shown.text
    assert f"job-{PAGE + 6} / 1" in shown.text and "job-6 / 1" not in shown.text


def test_a_bound_token_sees_only_its_own_that_run(guarded: Guarded) -> None:
    for job in ("mine-1", "theirs-1"):
        guarded.service.records.open_attempt(job, 1, NOW)
    sign_in(guarded, guarded.secret("read", prefixes=("mine-",)))
    for query in ("outcome=running", "outcome=all", "job=theirs-1", "job=theirs-1&outcome=running"):
        shown = page(guarded.client, f"/attempts?{query}")
        assert "theirs-1 / 1" not in shown.text and "Running 2" not in shown.text
    assert "mine-1 / 1" in page(guarded.client, "/attempts?outcome=running").text


def test_hostile_names_of_what_runs_do_nothing(client: TestClient, service: Service) -> None:
    job = "<script>alert(1)<script>\"'&amp; {{7*7}}"
    begin(client, service, job, user=HOSTILE)
    shown = page(client, "/attempts?outcome=running")
    assert "<script>alert" not in shown.source and client.get(shown.links()[job]).status_code == 200


def test_no_incidents_is_good_news(client: TestClient, service: Service) -> None:
    publish(service, "fine", changed(outcome="completed", reason="None"))
    shown = page(client, "/attempts")
    assert "Nothing needs attention" in shown.text
    assert shown.links()["Show all 1 attempt"] == "/attempts?outcome=all"


@pytest.fixture
def several(service: Service) -> Service:
    """Two incidents that differ in everything, and one that does not belong to the incidents."""
    oom = changed(reason="Out of Memory Error", category="Framework", suspects=(Suspect("node-2", None, None, "x"),))
    publish(service, "a", FAULT, NOW - 10 * 86_400, user="u17")
    publish(service, "b", oom, NOW - 60, user="u42")
    publish(service, "c", changed(outcome="completed"), NOW, user="u17")
    return service


def test_filters(client: TestClient, several: Service) -> None:
    for query, job in (
        ("reason=ECC+Error", "a"),
        ("category=Framework", "b"),
        ("node=node-2", "b"),
        ("user=u17", "a"),
        ("job=b", "b"),
        ("outcome=completed", "c"),
        ("within=day", "b"),
        ("user=u17&category=Infrastructure", "a"),
    ):
        shown = page(client, f"/attempts?{query}")
        current = several.records.current(job, 1)
        assert current is not None and shown.rows() == [f"/verdicts/{current.id}"], query
        assert "1 verdict in all" in shown.text


def test_a_filter_stays_in_the_form_and_in_every_link(client: TestClient, several: Service) -> None:
    shown = page(client, "/attempts?node=node-2&outcome=all&within=week")
    assert shown.field("node") == "node-2" and shown.field("outcome") == "all"
    assert [tag.attributes["value"] for tag in shown.all("option") if "selected" in tag.attributes] == ["week"]
    tabs = [target for target in shown.links().values() if "node=node-2" in target]
    assert len(tabs) >= 8 and all("within=week" in target for target in tabs)
    assert shown.links()["Clear"] == "/attempts?outcome=all"


def test_choices_are_counted_as_if_they_were_not_made_yet(client: TestClient, several: Service) -> None:
    options = [("".join(tag.text)).strip() for tag in page(client, "/attempts?reason=ECC+Error").all("option")]
    assert {"ECC Error (1)", "Out of Memory Error (1)", "Infrastructure (1)"} <= set(options)
    assert "Framework (1)" not in options
    assert "Unheard (0)" in page(client, "/attempts?reason=Unheard").text


def test_nothing_matches(client: TestClient, several: Service) -> None:
    shown = page(client, "/attempts?node=none")
    assert "Nothing matches these filters" in shown.text
    assert shown.links()["Show all attempts"] == "/attempts"
    assert shown.field("node") == "none"
    assert "another outcome" in page(client, "/attempts?job=c").text


def test_a_sent_form_gets_a_short_url(client: TestClient, several: Service) -> None:
    answer = client.get("/attempts?reason=&category=&node=node-2&user=&job=&within=", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/attempts?node=node-2")


def test_hostile_filters_are_text(client: TestClient, several: Service) -> None:
    url = AttemptFilters(node=HOSTILE, job=HOSTILE).url()
    assert parse_qs(urlsplit(url).query)["node"] == [HOSTILE]
    shown = page(client, url)
    assert shown.field("node") == harmless(HOSTILE, 300)
    assert "<script>alert" not in shown.source


def test_pages_hold_each_verdict_once_and_keep_the_filters(client: TestClient, service: Service) -> None:
    for number in range(3 * PAGE + 7):
        one = changed(outcome=("failed", "recovered", "cancelled", "completed", "failed")[number % 5])
        publish(service, f"job-{number}", one, NOW + number // 3, user="u17")
    for outcome in (None, "failed", "all"):
        wanted = [one.id for one in service.records.search(wanted_all(), None, 500).items if belongs(one, outcome)]
        url, seen, pages = AttemptFilters(user="u17", outcome=outcome).url(), list[str](), 0  # type: ignore[arg-type]
        while url:
            shown = page(client, url)
            assert shown.field("user") == "u17"
            seen += shown.rows()
            pages += 1
            assert ("live.js" in shown.source) == (pages == 1)
            assert ("Newest" in shown.links()) == (pages > 1)
            url = shown.links().get("Older", "")
            assert not url or "user=u17" in url
        assert seen == [f"/verdicts/{id}" for id in wanted], outcome
        assert pages == -(-len(wanted) // PAGE)


def wanted_all() -> Any:
    return AttemptFilters(user="u17", outcome="all").wanted((), NOW)


def belongs(one: StoredVerdict, outcome: str | None) -> bool:
    return one.verdict.outcome in AttemptFilters(outcome=outcome).outcomes  # type: ignore[arg-type]


@pytest.mark.parametrize("cursor", ["x", "a.b", "..", "a.b.c", "end.end", "x" * 5000])
def test_a_bad_cursor_is_a_page_of_words(lasting: TestClient, cursor: str) -> None:
    assert page(lasting, f"/attempts?cursor={cursor}", 400).text


@pytest.mark.parametrize("query", ["outcome=odd", "within=ever", f"node={'x' * 301}"])
def test_a_bad_filter_is_a_page_of_words(lasting: TestClient, query: str) -> None:
    assert page(lasting, f"/attempts?{query}", 400).text


def test_the_list_can_wait_for_news(client: TestClient, several: Service) -> None:
    live = next(tag for tag in page(client, "/attempts?user=u17").tags if tag.attributes.get("id") == "live")
    assert live.attributes["data-after"] == str(several.records.last_event())
    assert live.attributes["data-user"] == "u17" and live.attributes["data-url"] == "/attempts?user=u17"
    assert live.attributes["data-outcomes"] == "failed recovered"


# --- hostile text


@pytest.mark.parametrize(
    ("text", "width", "seen"),
    [
        ("plain", 10, "plain"),
        ("0123456789", 5, "01234…"),
        ("\x1b[31mred\x1b[0m", 10, "red"),
        ("a\tb\x00c", 10, "a bc"),
        ("a\x07\u202e\x1b]0;t\u200b", 10, "a\ufffd\ufffd\ufffd]0;t\ufffd"),
        ("10%\r90%", 10, "90%"),
        ("", 0, ""),
    ],
)
def test_harmless(text: str, width: int, seen: str) -> None:
    assert harmless(text, width) == seen


# --- errors


@pytest.mark.parametrize("path", ["/verdicts/99", "/verdicts/x", "/verdicts/0", "/verdicts/99999999999999999999"])
def test_what_is_not_there_is_a_page_that_says_so(lasting: TestClient, path: str) -> None:
    shown = page(lasting, path, 404)
    assert "does not exist" in shown.text or "nothing is at this address" in shown.text
    assert shown.links()["Go to the incidents"] == "/"


def test_another_host_name_gets_a_page_of_words(lasting: TestClient) -> None:
    answer = lasting.get("/", headers={"Host": "evil.example"})
    assert answer.status_code == 403
    assert "localhost" in checked(answer).text


def test_programs_still_get_json(lasting_guarded: Guarded) -> None:
    answer = lasting_guarded.client.get("/v1/verdicts")
    assert answer.status_code == 401 and answer.json()["error"]["code"] == "unauthorized"


# --- the way in


def sign_in(guarded: Guarded, secret: str, target: str = "/", status: int = 303) -> Any:
    """The answer to a filled in form."""
    shown = page(guarded.client, "/login")
    form = {"key": shown.field("key"), "next": target, "token": secret}
    answer = guarded.client.post("/login", data=form, follow_redirects=False)
    assert answer.status_code == status
    return answer


def test_a_stranger_is_led_to_the_login_and_back(guarded: Guarded) -> None:
    stored = publish(guarded.service)
    wanted = f"/verdicts/{stored.id}"
    led = guarded.client.get(wanted, follow_redirects=False)
    assert (led.status_code, led.headers["location"]) == (303, f"/login?next=%2Fverdicts%2F{stored.id}")
    form = page(guarded.client, led.headers["location"])
    assert form.field("next") == wanted
    answer = sign_in(guarded, guarded.secret("read"), form.field("next"))
    assert answer.headers["location"] == wanted
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=" in cookie
    assert "ECC Error" in page(guarded.client, wanted).text
    assert guarded.client.get("/login?next=/verdicts/7", follow_redirects=False).headers["location"] == "/verdicts/7"


def test_the_query_survives_the_login(guarded: Guarded) -> None:
    led = guarded.client.get("/?reason=ECC+Error&user=u17%26x", follow_redirects=False)
    assert page(guarded.client, led.headers["location"]).field("next") == "/?reason=ECC+Error&user=u17%26x"


def test_a_list_without_logs_shows_how_to_send_a_token(guarded: Guarded) -> None:
    sign_in(guarded, guarded.secret("read"))
    shown = page(guarded.client, "/")
    assert "Authorization: Bearer $LOGDOCTOR_TOKEN" in shown.text
    assert "ldr_" not in shown.source


@pytest.mark.parametrize(
    ("secret", "status", "words"),
    [("", 400, "Paste a token"), ("ldr_wrong", 401, "unknown, expired or revoked"), ("x" * 5000, 401, "unknown")],
)
def test_a_wrong_token_is_told_in_words(lasting_guarded: Guarded, secret: str, status: int, words: str) -> None:
    guarded = lasting_guarded
    guarded.client.cookies.clear()
    shown = checked(sign_in(guarded, secret, "/verdicts/1", status))
    assert words in shown.text and shown.field("next") == "/verdicts/1"
    assert guarded.client.get("/", follow_redirects=False).status_code == 303


def test_a_token_that_may_not_read_is_told_so(guarded: Guarded) -> None:
    assert "may not read" in checked(sign_in(guarded, guarded.secret("ingest"), status=403)).text


def test_guessing_is_slowed_down(service: Service) -> None:
    with local_client(service, options(wants_token=True)._replace(clock=lambda: 0.0)) as client:
        key = page(client, "/login").field("key")
        answers = [client.post("/login", data={"key": key, "token": f"ldr_{n}"}) for n in range(40)]
    assert answers[-1].status_code == 429
    assert "Wait a minute" in checked(answers[-1]).text


def test_a_pasted_token_may_have_blanks_around_it(guarded: Guarded) -> None:
    sign_in(guarded, f"  {guarded.secret('read')}\r\n")


def test_a_form_of_another_site_opens_nothing(guarded: Guarded) -> None:
    secret = guarded.secret("read")
    for form in ({"token": secret}, {"token": secret, "key": ""}, {"token": secret, "key": "guess"}):
        answer = guarded.client.post("/login", data=form, follow_redirects=False)
        assert answer.status_code == 403
        assert "try again" in checked(answer).text
    assert guarded.client.get("/", follow_redirects=False).status_code == 303


@pytest.mark.parametrize("body", [b"\xff\xfe", b"a=1&" * 100, b"token=%ff%fe"])
def test_an_unreadable_form_is_refused(lasting_guarded: Guarded, body: bytes) -> None:
    answer = lasting_guarded.client.post("/login", content=body)
    assert answer.status_code in (400, 403)
    checked(answer)


def test_an_endless_form_is_refused(lasting_guarded: Guarded) -> None:
    answer = lasting_guarded.client.post("/login", content=b"token=" + b"x" * 100_000)
    assert answer.status_code == 413
    checked(answer)


def test_out(guarded: Guarded) -> None:
    sign_in(guarded, guarded.secret("read"))
    key = page(guarded.client, "/").field("key")
    assert guarded.client.get("/logout").status_code == 405
    refused = guarded.client.post("/logout", data={"key": "guess"}, follow_redirects=False)
    assert refused.status_code == 403 and checked(refused)
    page(guarded.client, "/")
    answer = guarded.client.post("/logout", data={"key": key}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert guarded.client.get("/", follow_redirects=False).status_code == 303


def test_signing_out_ends_the_session_for_whoever_has_its_cookie(guarded: Guarded) -> None:
    secret = guarded.secret("read")
    sign_in(guarded, secret)
    copied = {"Cookie": f"logdoctor={guarded.client.cookies['logdoctor']}"}
    kept = base64.b64decode(guarded.client.cookies["logdoctor"].split(".")[0])
    assert b"ldr_" not in kept and secret[4:].encode() not in kept
    guarded.client.post("/logout", data={"key": page(guarded.client, "/").field("key")})
    guarded.client.cookies.clear()
    assert guarded.client.get("/attempts", headers=copied, follow_redirects=False).status_code == 303
    assert guarded.client.get("/v1/jobs", headers=copied).status_code == 401
    assert guarded.client.get("/v1/jobs", headers=bearer(secret)).status_code == 200


def test_signing_in_again_ends_the_session_before(guarded: Guarded) -> None:
    sign_in(guarded, guarded.secret("read", name="first"))
    copied = {"Cookie": f"logdoctor={guarded.client.cookies['logdoctor']}"}
    key = page(guarded.client, "/").field("key")
    form = {"key": key, "next": "/", "token": guarded.secret("read", name="second")}
    assert guarded.client.post("/login", data=form, follow_redirects=False).status_code == 303
    assert guarded.client.get("/v1/jobs", headers=copied).status_code == 401


def test_each_sign_in_has_its_own_form_key(guarded: Guarded) -> None:
    before = page(guarded.client, "/login").field("key")
    sign_in(guarded, guarded.secret("read"))
    assert page(guarded.client, "/").field("key") != before


def test_a_revoked_token_ends_the_session(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "_REMEMBERED", 0.0)
    sign_in(guarded, guarded.secret("read", name="mine"))
    page(guarded.client, "/")
    guarded.service.tokens.revoke("mine")
    led = guarded.client.get("/", follow_redirects=False)
    assert led.headers["location"] == "/login"
    assert "expired or was revoked" in page(guarded.client, "/login").text


def test_the_head_says_as_whom_one_is_signed_in_and_leads_only_where_one_may_go(guarded: Guarded) -> None:
    sign_in(guarded, guarded.secret("read", "operate", name="ops"))
    shown = page(guarded.client, "/attempts")
    assert "Signed in as ops: read, operate" in shown.text and "/nodes" in shown.links().values()
    guarded.client.cookies.clear()
    sign_in(guarded, guarded.secret("read", name="team", prefixes=("mine-",)))
    for path, status in (("/attempts", 200), ("/actions", 403)):
        shown = page(guarded.client, path, status)
        assert "Signed in as team: read, jobs mine-*" in shown.text
        assert not {"/nodes", "/actions", "/notifications"} & set(shown.links().values())


def test_a_token_bound_to_jobs_sees_no_others(guarded: Guarded) -> None:
    mine, other = publish(guarded.service, "mine-1"), publish(guarded.service, "other-1", changed(reason="Hang"))
    sign_in(guarded, guarded.secret("read", prefixes=("mine-",)))
    shown = page(guarded.client, "/attempts?outcome=all")
    assert shown.rows() == [f"/verdicts/{mine.id}"]
    assert "All 1" in shown.text and "Hang" not in shown.text
    page(guarded.client, f"/verdicts/{other.id}", 404)


def test_without_tokens_there_is_nothing_to_sign_in_to(client: TestClient) -> None:
    assert client.get("/login?next=/verdicts/1", follow_redirects=False).headers["location"] == "/verdicts/1"
    assert "Sign out" not in page(client, "/").text


ELSEWHERE = [
    "https://evil.example",
    "//evil.example",
    "///evil.example",
    "/\\evil.example",
    "\\\\evil.example",
    "/\t/evil.example",
    "/\n/evil.example",
    "/%0d/x\r\nSet-Cookie: a=b",
    "javascript:alert(1)",
    "evil.example",
    " //evil.example",
    "/ /evil.example",
    "/\u2028/x",
    "",
    "/" + "x" * 3000,
    "/login?next=/login",
    "/logout",
]


@pytest.mark.parametrize("target", ELSEWHERE, ids=ascii)
def test_nobody_is_sent_elsewhere(lasting_guarded: Guarded, target: str) -> None:
    guarded = lasting_guarded
    guarded.client.cookies.clear()
    assert local(target) == "/"
    asked = guarded.client.get("/login", params={"next": target})
    assert checked(asked).field("next") == "/"
    assert sign_in(guarded, guarded.secret("read"), target).headers["location"] == "/"
    assert guarded.client.get("/login", params={"next": target}, follow_redirects=False).headers["location"] == "/"


@pytest.mark.parametrize("target", ["/", "/?node=a%2Fb&user=x", "/verdicts/7#L12", "/?job=https://a"])
def test_paths_of_ours_are_kept(target: str) -> None:
    assert local(target) == target


# --- what belongs to the pages


def test_static_files_are_ours_and_small(lasting: TestClient) -> None:
    shown = page(lasting, "/")
    wanted = [tag.attributes.get("href") or tag.attributes["src"] for tag in shown.all("link", "script", "img")]
    assert len(set(wanted)) == 8
    answers = [lasting.get(path) for path in {*wanted, *(f"/static/{one.name}" for one in STATIC.iterdir())}]
    for answer in answers:
        assert answer.status_code == 200 and len(answer.content) < 40_000
        assert not re.search(rb"https?://(?!www\.w3\.org/2000/svg)|@import|url\(", answer.content)


def test_the_style_sheet_knows_every_outcome() -> None:
    style = (STATIC / "style.css").read_text()
    for word in ("color-scheme: light dark", "@media print", ":focus-visible", ".failed", ".recovered", ".running"):
        assert word in style


def test_every_word_of_a_verdict_has_words_for_people() -> None:
    from logdoctor import taxonomy

    assert set(taxonomy.ADVICE) == set(taxonomy.RECOVERIES) and set(taxonomy.FAULT_WORDS) == set(taxonomy.FAULTS)
    for kind in DecidedBy.__annotations__["kind"].__args__:
        assert phrases.decided(changed(decided_by=DecidedBy(kind)))


@pytest.mark.parametrize(
    ("by", "confidence", "person", "words"),
    [
        (DecidedBy("rule", "diagnosis/x"), 0.95, "", "a rule"),
        (DecidedBy("rule", "learned/7"), 0.95, "", "a learned rule"),
        (DecidedBy("structure", "KeyError"), 0.85, "", "the traceback (KeyError)"),
        (DecidedBy("structure", "loss"), 0.85, "", "the loss curve"),
        (DecidedBy("structure", "stall"), 0.7, "", "the training steps, which stop before the log does"),
        (DecidedBy("structure", "completed"), 0.7, "", "how the log ends"),
        (DecidedBy("case", "case/7"), 0.95, "ops", "a past failure that looks the same"),
        (DecidedBy("case", "case/7"), 1.0, "ops", "ops"),
        (DecidedBy("case", "case/7"), 1.0, "", "a person"),
    ],
)
def test_who_decided(by: DecidedBy, confidence: float, person: str, words: str) -> None:
    assert phrases.decided(changed(decided_by=by, confidence=confidence), person) == words
    assert phrases.decided(changed(decided_by=by, confidence=confidence, reason="Unknown"), person) == "no rule or case"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "just now"), (-5, "just now"), (59, "just now"), (61, "1 min ago"), (7199, "1 h ago"), (90_000, "1 day ago")],
)
def test_ages(seconds: float, words: str) -> None:
    assert phrases.age(seconds) == words


def test_a_time_long_ago_has_its_year() -> None:
    assert phrases.short_moment(0.0, 86_400.0) == "01 Jan 00:00"
    assert phrases.short_moment(0.0, 400 * 86_400.0) == "01 Jan 1970"


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (123_456, "123 kB"), (2e15, "2,000.0 TB")]
)
def test_sizes(number: float, words: str) -> None:
    assert phrases.size(number) == words


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (End("", 0, None, None, 0), "exit code 0"),
        (End("", None, 9, None, 0), "signal 9 (SIGKILL)"),
        (End("", None, 99, None, 0), "signal 99"),
        (End("", None, None, None, 0), "ended, exit status unknown"),
    ],
)
def test_ends(how: End, words: str) -> None:
    assert phrases.end(how) == words


# ---- addresses


def test_head_is_answered_where_get_is_and_without_a_body(client: TestClient, service: Service) -> None:
    stored = publish(service)
    send(client, "my-job", FAILED)
    for path in (
        "/",
        f"/verdicts/{stored.id}",
        "/v1/incidents",
        "/v1/incidents/stream",
        "/v1/jobs/my-job/attempts/1/streams/main/download",
        "/jobs/my-job/attempts/1/streams/main",
        "/openapi.json",
        "/healthz",
    ):
        told = client.head(path)
        assert (told.status_code, told.content) == (200, b""), path
        assert "content-security-policy" in told.headers
    assert client.head("/v1/incidents/99").status_code == 404
    assert client.head("/v1/incidents/1/resolve").status_code == 405


def test_an_attempt_has_an_address(client: TestClient, service: Service) -> None:
    stored = publish(service, "a b")
    service.records.open_attempt("a b", 2, NOW)
    told = [client.get(f"/jobs/a%20b/attempts/{number}", follow_redirects=False) for number in (1, 2, 3)]
    assert [one.status_code for one in told] == [303, 303, 404]
    assert [one.headers["location"] for one in told[:2]] == [f"/verdicts/{stored.id}", "/jobs/a%20b"]
    assert client.post("/v1/jobs/my-job/attempts/1/streams/main/log?offset=0", content=b"step 1\n").status_code == 200
    streaming = client.get("/jobs/my-job/attempts/1", follow_redirects=False)
    assert streaming.headers["location"] in ("/jobs/my-job/attempts/1/streams/main", "/verdicts/2")
