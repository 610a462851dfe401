"""Pages of rules: everybody finds them, who may decides with open eyes, and nothing in a rule or a line does harm."""

import html
import re
from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from logdoctor.service.service import Service
from logdoctor.store.learning.confirmed import Kept
from logdoctor.store.learning.learned import CORDON, Learned, NewRule, Source, StoredClaim
from logdoctor.store.learning.refusals import Refused, Votes
from logdoctor.store.learning.rule_rows import DIAGNOSIS
from logdoctor.types import DecidedBy
from logdoctor.web.url_query import PAGE
from tests.rule_files.learned import EVIL, HEARTBEAT, KIND, SHARD, active, entered, new
from tests.web.conftest import Guarded
from tests.web.test_pages import HOSTILE, Page, changed, checked, page, publish, sign_in

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4182, name=python, GPU has fallen off the bus."
CAUSE = NewRule(
    DIAGNOSIS,
    "^RuntimeError: torch gradient buckets differ on rank [0-9]+",
    "gradient buckets differ",
    ("RuntimeError: torch gradient buckets differ on rank 3",),
    (),
    "shadow",
    "",
    "structure",
    Source("llama-7b", 1),
    Votes(1, (0,), "confirmed by ops"),
    1,
    claim=StoredClaim("Runtime Error", suggestion="Use the same bucket size everywhere."),
)
NODE = new(
    CAUSE,
    pattern="^torch fabric lane [0-9]+ is dark",
    examples=("torch fabric lane 3 is dark",),
    waits_for=f"{CORDON}: NVLink Error can cordon a node",
    claim=StoredClaim("NVLink Error", recovery="isolate_and_restart"),
)


@pytest.fixture
def some(service: Service) -> list[Learned]:
    """A filter rule in shadow, one that waits, one of another kind and job, and diagnosis rules."""
    other = new(pattern="^shuffle buffer filled [0-9]+/[0-9]+$", kind="nemo/train.py", source=Source("team-b-1", 1))
    return entered(service.rules, SHARD, HEARTBEAT, other, CAUSE, NODE)


def ids(made: Page) -> list[str]:
    """The rules of a list, in order."""
    targets = [tag.attributes["href"] for tag in made.all("a")]
    return [one.removeprefix("/rules/") for one in targets if re.match(r"/rules/(learned|filter|diagnosis)/", one)]


def counts(made: Page) -> dict[str, int]:
    """The numbers at the tabs."""
    found = re.findall(r"(Waiting for approval|Active|Shadow|Retired|All) ([\d,]+)", made.text)
    return {name: int(count.replace(",", "")) for name, count in found[:5]}


def send(client: TestClient, path: str, status: int = 303, **fields: str) -> Any:
    """What comes of a form, with the key of this session."""
    key = page(client, "/rules/try").field("key")
    answer = client.post(path, data={"key": key, **fields}, follow_redirects=False)
    assert answer.status_code == status, answer.text[:800]
    return answer


# the list


def test_what_waits_for_a_person_comes_first(client: TestClient, service: Service, some: list[Learned]) -> None:
    waiting = [some[4].id, some[1].id]
    assert sorted(ids(page(client, "/rules"))) == sorted(waiting)
    everything = page(client, "/rules?state=all")
    assert set(ids(everything)[:2]) == set(waiting) and len(ids(everything)) == PAGE
    book = service.scanner.book
    shipped = len(book.filters) + len(book.diagnoses)
    assert counts(everything) == {
        "Waiting for approval": 2,
        "Active": shipped,
        "Shadow": 4,
        "Retired": 0,
        "All": shipped + 5,
    }
    for rule in (some[1], some[4]):
        service.rules.retire(rule.id, "ops", "", 5.0)
    assert "Nothing is waiting" in page(client, "/rules?state=waiting").text
    assert len(ids(page(client, "/rules"))) == PAGE, "without a state all are shown then"


def test_filters_live_in_the_url(client: TestClient, some: list[Learned]) -> None:
    learned = [rule.id for rule in some]
    assert sorted(ids(page(client, "/rules?state=all&source=learned"))) == sorted(learned)
    assert ids(page(client, "/rules?state=all&source=learned&kind=diagnosis")) == [learned[4], learned[3]]
    opening = ids(page(client, "/rules?state=all&q=DATA+opening&source=learned&kind=filter"))
    assert sorted(opening) == sorted([learned[0], learned[2]])
    assert ids(page(client, "/rules?state=all&q=of+shard+/abc+pretrain&source=learned")) == []
    assert ids(page(client, "/rules?state=all&q=shard+/data/+pretrain&source=learned")) == [learned[0]]
    assert ids(page(client, "/rules?state=all&q=team-b-1")) == [learned[2]]
    assert "diagnosis/infrastructure/gpu-off-the-bus" in ids(page(client, "/rules?state=active&q=fallen+off"))
    assert "No rule matches" in page(client, "/rules?state=active&q=nothing-has-this").text
    sent = client.get("/rules?state=all&q=&kind=filter&source=", follow_redirects=False)
    assert (sent.status_code, sent.headers["location"]) == (303, "/rules?state=all&kind=filter")
    for bad in ("state=x", "kind=x", "page=0", "page=x", "q=" + "x" * 301):
        page(client, f"/rules?{bad}", 400)


def test_every_rule_stands_on_one_page(client: TestClient, service: Service, some: list[Learned]) -> None:
    found: list[str] = []
    target: str | None = "/rules?state=all"
    while target:
        made = page(client, target)
        assert len(made.source.encode()) < 200_000
        found += ids(made)
        target = made.links().get("Next")
    book = service.scanner.book
    assert sorted(found) == sorted([rule.id for rule in (*book.filters, *book.diagnoses, *some)])
    assert "no such page" in page(client, "/rules?state=all&page=99").text


def test_numbers_of_both_sorts(client: TestClient, service: Service, some: list[Learned]) -> None:
    service.rules.hits.count(KIND, "llama-7b", 2, {some[0].id: (30, 0)}, 77.0)
    shard = page(client, f"/rules/{some[0].id}").text
    assert "Hits2 attempts, 150 lines" in shard
    shipped = service.scanner.book.diagnoses[0].id
    assert "none" in page(client, f"/rules?state=all&q={shipped}").text
    publish(service, "k", changed(decided_by=DecidedBy("rule", shipped)))
    assert "Used in1 attempt" in page(client, f"/rules/{shipped}").text
    assert "1 attempt" in page(client, f"/rules?state=all&q={shipped}").text


def test_shipped_rules_over_the_api(guarded: Guarded) -> None:
    client, service = guarded.client, guarded.service
    shipped = service.scanner.book.diagnoses[3].id
    publish(service, "j", changed(decided_by=DecidedBy("rule", shipped)))
    items = client.get("/v1/rules/shipped", headers=guarded.token("read")).json()["items"]
    told = {one["id"]: one for one in items}
    assert len(told) == len(service.scanner.book.filters) + len(service.scanner.book.diagnoses)
    assert (told[shipped]["attempts"], told[shipped]["kind"]) == (1, "diagnosis") and told[shipped]["last"] > 0
    unused = told[service.scanner.book.diagnoses[5].id]
    assert (unused["attempts"], unused["lines"], unused["last"]) == (0, 0, None)
    bound = client.get("/v1/rules/shipped", headers=guarded.token("read", prefixes=("team-",))).json()["items"]
    assert {one["attempts"] for one in bound} == {None} == {one["last"] for one in bound}


# one rule


def test_a_learned_rule_with_its_story(client: TestClient, service: Service, some: list[Learned]) -> None:
    stored = publish(service, "llama-7b")
    made = page(client, f"/rules/{some[3].id}")
    for said in (CAUSE.title, CAUSE.pattern, CAUSE.examples[0], "Use the same bucket size", "by ops", "1 of 1"):
        assert said in made.text, said
    assert made.links()["ECC Error"] == f"/verdicts/{stored.id}"
    assert "/attempts?outcome=all&job=llama-7b" in made.links().values()
    assert "learned from llama-7b/1" in made.text


def test_a_shipped_rule_is_shown_and_not_changed_here(client: TestClient, service: Service) -> None:
    made = page(client, "/rules/diagnosis/infrastructure/gpu-off-the-bus")
    for said in ("fallen off the bus", "CUDA Error", "Lines it must not match", "pull request", "the infrastructure"):
        assert said in made.text, said
    assert not [tag for tag in made.all("form") if tag.attributes.get("method") == "post"]
    for rule in (*service.scanner.book.diagnoses[::9], *service.scanner.book.filters[::9]):
        assert html.unescape(rule.title) in page(client, f"/rules/{rule.id}").text or "  " in rule.title


@pytest.mark.parametrize(
    "id",
    ["learned/none", "filter/none", "diagnosis/x/y", "x/y", "learned/..%2f..", "learned/%00", "learned/" + "a" * 400],
)
def test_a_rule_that_does_not_exist(lasting: TestClient, id: str) -> None:
    page(lasting, f"/rules/{id}", 404)


def test_a_step_says_what_will_happen_and_is_taken(client: TestClient, service: Service, some: list[Learned]) -> None:
    url = f"/rules/{some[0].id}"
    before = page(client, url)
    assert before.links()["Approve: shadow to active"] == f"{url}?step=approve#confirm"
    asked = page(client, f"{url}?step=approve")
    assert "from shadow to active" in asked.text and f"removes lines of jobs of the kind {KIND}" in asked.text
    assert service.rules.one(some[0].id).status == "shadow", "asking changes nothing"
    answer = send(client, f"{url}/approve", note="read it", seen_as=asked.field("seen_as"))
    assert answer.headers["location"] == f"{url}?done=1"
    done = page(client, f"{url}?done=1").text
    assert "Saved" in done and "The rule is active" in done and "read it" in done
    retiring = page(client, f"{url}?step=retire")
    assert "neither counts nor removes lines" in retiring.text
    send(client, f"{url}/retire", seen_as=retiring.field("seen_as"))
    undoing = page(client, f"{url}?step=undo")
    assert "from retired to active" in undoing.text
    send(client, f"{url}/undo", seen_as=undoing.field("seen_as"), note="too hasty")
    assert service.rules.one(some[0].id).status == "active"
    assert [one.step for one in service.rules.events(some[0].id)] == ["undo", "retire", "approve", "added"]


def test_what_a_step_means_is_said_of_each_sort(client: TestClient, service: Service, some: list[Learned]) -> None:
    trouble = page(client, f"/rules/{some[1].id}?step=approve").text
    assert "counts lines" in trouble and "harmless, although they look like errors" in trouble
    cause = page(client, f"/rules/{some[3].id}?step=approve").text
    assert "named Runtime Error" in cause and "cordon nodes" not in cause
    assert "cordon nodes" in page(client, f"/rules/{some[4].id}?step=approve").text
    rule = active(service.rules, SHARD)
    assert "?step=approve" not in page(client, f"/rules/{rule.id}").source
    back = page(client, f"/rules/{rule.id}?step=undo").text
    assert "from active to shadow" in back and "only when a person approves it again" in back
    page(client, f"/rules/{rule.id}?step=delete", 404)


def test_who_was_quicker_is_told(client: TestClient, service: Service, some: list[Learned]) -> None:
    url = f"/rules/{some[0].id}"
    for name, theirs in (("approve", service.rules.approve), ("retire", service.rules.retire)):
        seen = page(client, f"{url}?step={name}").field("seen_as")
        theirs(some[0].id, "pretraining", "we looked", 9.0)
        told = checked(send(client, f"{url}/{name}", 409, seen_as=seen, note="mine")).text
        assert "pretraining acted first" in told and "we looked" in told
    seen = page(client, f"{url}?step=undo").field("seen_as")
    service.rules.undo(some[0].id, "research", "", 10.0)
    assert "research acted first" in checked(send(client, f"{url}/undo", 409, seen_as=seen)).text
    assert service.rules.one(some[0].id).status == "active"


def test_forms_of_others_change_nothing(client: TestClient, service: Service, some: list[Learned]) -> None:
    url = f"/rules/{some[0].id}/approve"
    assert client.post(url, data={"key": "x", "seen_as": "shadow"}).status_code == 403
    for bad in ({}, {"seen_as": "x"}, {"seen_as": ""}):
        checked(send(client, url, 400, **bad))
    checked(send(client, f"/rules/{some[0].id}/undo", 400, seen_as="shadow"))
    checked(send(client, "/rules/learned/none/approve", 404, seen_as="shadow"))
    checked(send(client, "/rules/filter/megatron/iteration/retire", 404, seen_as="active"))
    assert service.rules.one(some[0].id).status == "shadow"


# back-test


def keep(service: Service, job: str, text: str, reason: str, outcome: str = "failed") -> None:
    """What is left of a settled attempt."""
    line = Kept("main", 7, text)
    service.casework.confirmed.keep_lines(job, 1, [line], outcome=outcome, reason=reason, decided="rule")


def test_a_back_test_is_made_when_asked_for(client: TestClient, service: Service, some: list[Learned]) -> None:
    line = "RuntimeError: torch gradient buckets differ on rank 9 <b>"
    keep(service, "a-1", line, "Runtime Error")
    keep(service, "a-2", line, "CUDA Error")
    keep(service, "a-3", line, "Unknown")
    keep(service, "a-4", "nothing", "CUDA Error")
    url = f"/rules/{some[3].id}"
    assert "Run the back-test" in page(client, url).text
    made = page(client, f"{url}?backtest=1")
    assert "Tried on 4 stored attempts. It matches 3 attempts." in made.text
    assert "Agrees1 Contradicts1 Cause not known1" in made.text
    assert 'href="/jobs/a-2/attempts/1/streams/main?line=7#L7"' in made.source
    assert "none" in page(client, f"/rules/{some[0].id}?backtest=1").text


# lines


def test_a_line_is_explained_without_being_stored(client: TestClient, service: Service, some: list[Learned]) -> None:
    made = page(client, f"/rules/try?line={quote(XID)}")
    assert "evidence diagnosis/infrastructure/gpu-off-the-bus: cause of CUDA Error" in made.text
    assert "pci 0000:3b:00" in made.text and "Cordon the node" in made.text
    lines = f"{SHARD.examples[0]}\r\n\r\n{CAUSE.examples[0]}\nhello"
    made = checked(send(client, "/rules/try", 200, lines=lines))
    assert f"would remove it (in shadow) {some[0].id}" in made.text
    assert f"would name it (in shadow) {some[3].id}" in made.text
    assert len([tag for tag in made.all("li") if tag.attributes.get("id", "").startswith("line-")]) == 3
    other = checked(send(client, "/rules/try", 200, lines=lines, kind="nemo/train.py"))
    assert some[0].id not in other.text and some[3].id in other.text
    assert service.records.jobs().items == []


def test_active_rules_decide_about_pasted_lines(client: TestClient, service: Service) -> None:
    rule = active(service.rules, CAUSE)
    made = page(client, f"/rules/try?line={quote(CAUSE.examples[0])}")
    assert f"names the cause {rule.id}" in made.text
    assert "The verdict on a log of just this line failed Runtime Error" in made.text
    assert f"Decided bya learned rule, {rule.id}" in made.text


def test_many_and_long_lines_are_bounded(client: TestClient) -> None:
    made = checked(send(client, "/rules/try", 200, lines="\n".join(f"line {n}" for n in range(60))))
    assert "Only the first 50 of 60 lines" in made.text and "line 55" not in made.text
    checked(send(client, "/rules/try", 200, lines="x" * 100_000))
    checked(send(client, "/rules/try", 413, lines="x" * 140_000))
    page(client, f"/rules/try?line={'x' * 8001}", 400)


def test_hostile_lines_rules_and_refusals_do_no_harm(client: TestClient, service: Service) -> None:
    bad = new(title=EVIL + HOSTILE[:100], pattern="^<script>alert[(]1[)] [0-9]+$", examples=(HOSTILE,), waits_for="")
    rule = entered(service.rules, new(bad, kind="<b>&kind", source=Source("<i>job", 1, command=HOSTILE)))[0]
    service.rules.retire(rule.id, HOSTILE[:50].replace("\x00", ""), HOSTILE, 3.0)
    service.rules.refusals.add("<b>&kind", "<i>job", 1, "<b>", [Refused(HOSTILE, "<guard>", HOSTILE)], 4.0)
    for path in ("/rules?state=all", f"/rules/{rule.id}", f"/rules/{rule.id}?step=approve", "/rules/refused"):
        made = page(client, path)
        assert "<script>alert" not in made.source
    assert "<script>" not in checked(send(client, "/rules/try", 200, lines=f"{HOSTILE}\n<script>alert(1) 7")).source
    page(client, f"/rules/try?line={quote(HOSTILE)}")


# refused proposals


def test_refused_proposals_are_listed(client: TestClient, service: Service) -> None:
    for number in range(60):
        one = Refused(f"^{number}$", "literal", "too few")
        service.rules.refusals.add(KIND, "llama-7b", 1, "miner", [one], float(number))
    service.rules.refusals.add(DIAGNOSIS, "llama-7b", 2, "structure", [Refused("^x$", "others", "hits a-2")], 99.0)
    made = page(client, "/rules/refused")
    assert made.text.index("hits a-2") < made.text.index("^59$") and "^5$" not in made.text
    assert "^5$" in page(client, made.links()["Older"]).text
    assert "^59$" not in page(client, "/rules/refused?guard=others").text
    sent = client.get("/rules/refused?guard=literal&kind=&cursor=", follow_redirects=False)
    assert sent.headers["location"] == "/rules/refused?guard=literal"
    page(client, "/rules/refused?cursor=x", 400)


# who sees what


def test_a_token_bound_to_jobs_sees_its_own_and_changes_none(guarded: Guarded, some: list[Learned]) -> None:
    client, service = guarded.client, guarded.service
    sign_in(guarded, guarded.secret("admin", prefixes=("team-b-",)))
    service.rules.refusals.add(KIND, "llama-7b", 1, "miner", [Refused("^secret$", "literal", "no")], 1.0)
    keep(service, "other-1", "shuffle buffer filled 3/9", "CUDA Error")
    shipped = service.scanner.book.filters[0].id
    publish(service, "other-1", changed(decided_by=DecidedBy("rule", shipped)))
    assert [id for id in ids(page(client, "/rules?state=all")) if id.startswith("learned/")] == [some[2].id]
    assert "1 attempt" not in page(client, f"/rules?state=all&q={shipped}").text
    assert "not shown to a token" in page(client, f"/rules/{shipped}").text
    for hidden in (some[0].id, some[3].id):
        page(client, f"/rules/{hidden}", 404)
    mine = page(client, f"/rules/{some[2].id}?step=approve&backtest=1")
    assert "cannot change a rule" in mine.text and "Tried on 0 stored attempts" in mine.text
    assert "^secret$" not in page(client, "/rules/refused").text
    service.rules.move(some[2].id, "retired", "logdoctor", "matches evidence of other-1/1: hush", 9.0, "demote")
    assert "hush" not in page(client, f"/rules/{some[2].id}").source
    exported = client.get("/v1/rules/export?status=retired").text
    assert some[2].id in exported and "hush" not in exported
    service.rules.approve(some[2].id, "ops", "", 10.0)
    line = quote(SHARD.examples[0])
    assert some[0].id not in page(client, f"/rules/try?line={line}").text
    checked(send(client, f"/rules/{some[2].id}/approve", 403, seen_as="shadow"))
    assert service.rules.one(some[2].id).status == "shadow"


def test_readers_look_and_operators_decide(guarded: Guarded, some: list[Learned]) -> None:
    client, url = guarded.client, f"/rules/{some[0].id}"
    assert client.get("/rules", follow_redirects=False).headers["location"].startswith("/login")
    sign_in(guarded, guarded.secret("read"))
    assert "?step=" not in page(client, url).source
    assert "Line by line" in checked(send(client, "/rules/try", 200, lines="hello")).text
    checked(send(client, f"{url}/approve", 403, seen_as="shadow"))
    client.cookies.clear()
    sign_in(guarded, guarded.secret("read", "operate", name="on call"))
    send(client, f"{url}/approve", seen_as="shadow")
    assert guarded.service.rules.events(some[0].id)[0].by == "on call"
