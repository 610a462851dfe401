"""From the page to the decision: the stories of an engineer on call, in a real browser against the real service."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from tests import waiting
from tests.browser.conftest import SECONDS, WIDTHS, Cluster, Meet, Person, cluster_in, failure
from tests.web.conftest import running_in

ANOTHER = b"KeyError: 'tokens'\n"
HEARD = """
window.heard = [];
window.setInterval = () => 0;
window.EventSource = class extends EventSource {
  constructor(...all) {
    super(...all);
    this.addEventListener("incident", (event) => window.heard.push(JSON.parse(event.data).id));
  }
};
"""
"""The news of incidents that came to a page, kept where a test sees them; without news it looks for nothing."""


def rows(page: Page) -> list[str]:
    """The incidents that a list shows, by id."""
    return page.locator("#found tr[data-id]").evaluate_all("rows => rows.map(row => row.dataset.id)")


def incident_of(cluster: Cluster, job: str) -> int:
    """The incident of a job's only attempt."""
    found = waiting.until(lambda: cluster.get(f"/v1/incidents?job={job}")["items"])
    return int(found[0]["id"])


@pytest.fixture
def died(cluster: Cluster) -> Cluster:
    """A service where one job died of a bad GPU on a node, and two of the same mistake."""
    cluster.run(
        "llm-70b",
        failure("inf-028"),
        user="pretraining",
        launcher="slurm",
        gpus=64,
        command="sbatch train.sh",
        nodelist="os-a100-[01-08]",
    )
    cluster.run("sft-1", failure("usr-061"), user="research", command="torchrun train.py")
    cluster.run("sft-2", failure("usr-061"), user="research")
    waiting.until(lambda: len(cluster.get("/v1/incidents")["items"]) == 2)
    return cluster


def test_a_job_dies_while_the_page_is_open(died: Cluster, meet: Meet) -> None:
    engineer = meet(died.url)
    page = engineer.go("/")
    expect(page.locator("#found tr[data-id]")).to_have_count(2)
    expect(page.get_by_text("Same cause in 2 jobs")).to_be_visible()
    page.keyboard.press("j")
    chosen = page.locator("tr.chosen").get_attribute("data-id")
    died.run("llm-7b", failure("usr-060"), user="research")
    expect(page.locator("#found tr[data-id]")).to_have_count(3)
    expect(page.locator("#found tr[data-id]").first).to_contain_text("Out of Memory Error")
    assert page.locator("tr.chosen").get_attribute("data-id") == chosen, "the choice was lost"
    assert page.evaluate("document.activeElement.closest('tr')?.dataset.id") == chosen, "the focus was lost"
    died.run("sft-3", failure("usr-061"))
    expect(page.get_by_text("Same cause in 3 jobs")).to_be_visible()
    assert len(rows(page)) == 3


def test_who_reads_further_down_is_told_and_not_moved(cluster: Cluster, meet: Meet) -> None:
    for number in range(12):
        cluster.run(f"job-{number}", f"RuntimeError: shape {'abcdefghijkl'[number] * 9} does not fit\n".encode())
    waiting.until(lambda: len(cluster.get("/v1/incidents")["items"]) == 12)
    page = meet(cluster.url, width=WIDTHS["phone"]).go("/")
    page.evaluate("window.scrollTo(0, 1200)")
    expect(page.locator("#found tr[data-id]")).to_have_count(12)
    before, at = rows(page), page.evaluate("window.scrollY")
    cluster.run("late", failure("usr-060"))
    told = page.locator("#live a")
    expect(told).to_be_attached(timeout=SECONDS * 1000)
    assert rows(page) == before and page.evaluate("window.scrollY") == at
    told.click()
    expect(page.locator("#found tr[data-id]").first).to_contain_text("Out of Memory Error")


def test_what_happens_while_the_list_is_fetched_is_seen_at_once(cluster: Cluster, meet: Meet) -> None:
    cluster.run("first", failure("usr-060"))
    waiting.until(lambda: len(cluster.get("/v1/incidents")["items"]) == 1)
    engineer = meet(cluster.url)
    engineer.context.add_init_script(HEARD)
    page = engineer.go("/")
    stale: list[str] = []

    def late(route: Route) -> None:
        answer = route.fetch()
        if not stale:
            stale.append(answer.text())
            cluster.run("second", failure("inf-028"))
            waiting.until(lambda: len(cluster.get("/v1/incidents")["items"]) == 2)
            waiting.until(lambda: 2 in page.evaluate("window.heard"))
        route.fulfill(response=answer)

    page.route(cluster.url + "/", late)
    cluster.run("first", failure("usr-060"), attempt=2)
    expect(page.locator("#found tr[data-id]")).to_have_count(2, timeout=SECONDS * 1000)
    assert stale and "ECC Error" not in stale[0]


def test_keys_lead_through_the_list(died: Cluster, meet: Meet) -> None:
    page = meet(died.url).go("/")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("/")
    expect(page.locator("#search")).to_be_focused()
    page.keyboard.type("jk?")
    expect(page.locator("#search")).to_have_value("jk?")
    page.keyboard.press("Escape")
    first = rows(page)[0]
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(rf"/incidents/{first}$"))


def test_a_key_leads_to_the_button_that_acknowledges(died: Cluster, meet: Meet) -> None:
    page = meet(died.url).go("/")
    page.keyboard.press("a")  # no row is chosen
    page.keyboard.press("j")
    page.keyboard.press("a")
    expect(page.get_by_role("button", name="Acknowledge")).to_be_focused()
    assert died.get("/v1/incidents?state=acknowledged")["items"] == [], "nothing was done so far"
    page.keyboard.press("Enter")
    expect(page.get_by_text("1 incident acknowledged.")).to_be_visible()
    expect(page.locator("tr.chosen a:focus")).to_have_count(1)


def test_filters_and_search_live_in_the_address(died: Cluster, meet: Meet) -> None:
    page = meet(died.url).go("/")
    page.locator("#search").fill("os-a100-03")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("q=os-a100-03"))
    expect(page.locator("#found tr[data-id]")).to_have_count(1)
    page.goto(died.url + "/?reason=Key+Error")
    expect(page.locator("#found tr[data-id]")).to_have_count(1)
    page.get_by_role("link", name=re.compile("^Resolved")).click()
    expect(page.get_by_text("Nothing matches this query")).to_be_visible()
    page.go_back()
    expect(page.locator("#found tr[data-id]")).to_have_count(1)


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no scripts"])
def test_triage_on_a_phone(died: Cluster, meet: Meet, scripts: bool) -> None:
    page = meet(died.url, width=WIDTHS["phone"], scripts=scripts).go("/")
    page.get_by_role("link", name="ECC Error", exact=True).click()
    answer = page.get_by_role("region", name="Answer")
    expect(answer).to_contain_text("os-a100-03")
    expect(answer).to_contain_text("Cordon the node")
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDTHS["phone"]
    answer.get_by_role("link", name=re.compile("^Line ")).click()
    assert "#L" in page.url
    expect(page.locator(".log .cited").first).to_be_visible()
    page.get_by_role("button", name="Acknowledge").click()
    expect(answer).to_contain_text("acknowledged by")
    page.get_by_label(re.compile("^Note")).fill("row remapped, node back")
    page.get_by_role("button", name="Resolve").click()
    expect(page.get_by_role("region", name="Answer")).to_contain_text("row remapped, node back")
    page.goto(died.url + "/")
    expect(page.locator("#found tr[data-id]")).to_have_count(1)
    page.get_by_role("link", name=re.compile("^Resolved")).click()
    expect(page.get_by_role("link", name="ECC Error", exact=True)).to_be_visible()


def test_the_proof_is_one_click_away(died: Cluster, meet: Meet) -> None:
    page = meet(died.url).go(f"/incidents/{incident_of(died, 'llm-70b')}")
    cited = "".join(page.locator(".log .cited").all_inner_texts())
    for one in died.get("/v1/jobs/llm-70b/attempts/1/verdict")["verdict"]["evidence"]:
        assert one["quote"].strip()[:60] in cited
    page.locator("a[href*='/streams/main']").first.click()
    expect(page).to_have_url(re.compile(r"/jobs/llm-70b/attempts/1/streams/main.*line=\d+"))
    expect(page.locator("li.asked, li.cited").first).to_be_in_viewport()
    page.get_by_role("link", name="Compressed").click()
    expect(page.locator("li.folded").first).to_be_visible()
    page.locator("li.folded a.open").first.click()
    expect(page.locator("li.taken").first).to_be_visible()


def test_a_restart_is_a_command_to_copy(died: Cluster, meet: Meet) -> None:
    engineer = meet(died.url, permissions=["clipboard-read", "clipboard-write"])
    page = engineer.go(f"/incidents/{incident_of(died, 'llm-70b')}#restart")
    command = page.get_by_role("region", name="Restart").locator("pre[data-copy]")
    expect(command).to_contain_text("os-a100-03")
    page.get_by_role("button", name="Copy").click()
    assert "os-a100-03" in page.evaluate("navigator.clipboard.readText()")
    page.goto(died.url + f"/incidents/{incident_of(died, 'sft-1')}")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Key Error")
    expect(page.locator("#restart")).to_have_count(0)


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no scripts"])
def test_a_correction_shows_what_it_teaches_before_it_is_saved(cluster: Cluster, meet: Meet, scripts: bool) -> None:
    log = b"step 1 ok\nflux capacitor lost sync with shard 17: giving up on /data/shard-17.tar\nexit\n"
    cluster.run("odd", log)
    id = incident_of(cluster, "odd")
    page = meet(cluster.url, scripts=scripts).go(f"/incidents/{id}")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Unknown")
    page.get_by_role("link", name="Say what it was").first.click()
    page.locator("input[name=reason]").fill("dataset loading error")
    page.get_by_label("What fixed it").fill("copied the shard again")
    page.get_by_label(re.compile("flux capacitor")).check()
    page.get_by_role("button", name="Preview what will be learned").click()
    lesson = page.get_by_role("region", name="What will be learned")
    expect(lesson).to_contain_text("Pattern")
    expect(lesson).to_contain_text("Back-test")
    assert cluster.get("/v1/rules")["items"] == [] and cluster.get("/v1/cases")["items"] == [], (
        "a preview saved something"
    )
    page.get_by_role("button", name="Save the correction").click()
    expect(page.locator("#confirmed, .said").first).to_contain_text("Dataset Loading Error")
    (rule,) = waiting.until(
        lambda: cluster.get("/v1/rules?kind=diagnosis")["items"] or cluster.get("/v1/rules")["items"]
    )
    page = meet(cluster.url, scripts=scripts).go(f"/rules/{rule['id']}")  # the other one goes where the new verdict is
    expect(page.get_by_role("main")).to_contain_text("shadow")
    expect(page.get_by_role("main")).to_contain_text("flux")
    waiting.until(lambda: cluster.get(f"/v1/incidents/{id}")["newest"]["verdict"]["reason"] == "Dataset Loading Error")


def test_a_cordon_goes_through_a_person(tmp_path: Path, meet: Meet) -> None:
    list_of_nodes = tmp_path / "cordoned"
    settings = {
        "LOGDOCTOR_ACT_TEST": "never",
        "LOGDOCTOR_CORDON_WITH": "file",
        "LOGDOCTOR_CORDON_FILE": str(list_of_nodes),
        "LOGDOCTOR_FLEET": "os-a100-[01-64]",
    }
    with cluster_in(tmp_path / "data", **settings) as cluster:
        cluster.run("llm-70b", failure("inf-028"), user="pretraining", nodelist="os-a100-[01-08]")
        waiting.until(lambda: cluster.get("/v1/actions?state=waiting")["items"])
        page = meet(cluster.url).go("/")
        page.get_by_role("navigation", name="Main").get_by_role("link", name=re.compile("^Actions")).first.click()
        row = page.get_by_role("row").filter(has_text="ordon os-a100-03")
        row.get_by_role("link", name=re.compile("^Approve")).click()
        expect(page.locator(".confirm")).to_contain_text("os-a100-03")
        assert not list_of_nodes.exists() or "os-a100-03" not in list_of_nodes.read_text()
        page.get_by_role("button", name=re.compile("ordon os-a100-03")).click()
        waiting.until(lambda: list_of_nodes.exists() and "os-a100-03" in list_of_nodes.read_text())
        page.goto(cluster.url + "/nodes/os-a100-03")
        expect(page.get_by_role("main")).to_contain_text(re.compile("cordoned", re.I))
        page.goto(cluster.url + "/audit")
        expect(page.get_by_role("main")).to_contain_text("os-a100-03")
        page.goto(cluster.url + "/nodes/os-a100-03/uncordon")
        page.get_by_role("button", name="Uncordon os-a100-03").click()
        waiting.until(lambda: "os-a100-03" not in list_of_nodes.read_text())


# ---- several people, and tokens


class Guarded(Cluster):
    """A service that wants tokens."""

    def token(self, name: str, *scopes: str) -> str:
        """The secret of a new token."""
        wanted = (word for scope in scopes for word in ("--scope", scope))
        return self.running.command("tokens", "create", name, *wanted).split()[-1]

    def revoke(self, name: str) -> None:
        """End a token."""
        self.running.command("tokens", "revoke", name)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    """A service with tokens, and a job that died."""
    with running_in(tmp_path / "data", LOGDOCTOR_AUTH="on") as running:
        headers = running.start_with_token("admin", "ingest", "read", "operate")
        cluster = Guarded(running)
        cluster.headers = headers
        cluster.run("llm-70b", failure("inf-028"), user="pretraining", gpus=64)
        incident_of(cluster, "llm-70b")
        yield cluster


def sign_in(person: Person, secret: str) -> None:
    """In, by the form."""
    person.page.locator("input[name=token]").fill(secret)
    person.page.get_by_role("button", name="Sign in").click()


def test_two_people_act_at_once(guarded: Guarded, meet: Meet) -> None:
    path = f"/incidents/{incident_of(guarded, 'llm-70b')}"
    pages = []
    for name in ("night shift", "day shift"):
        person = meet(guarded.url)
        person.expected.append("409")
        person.go(path)
        sign_in(person, guarded.token(name, "read", "operate"))
        expect(person.page).to_have_url(guarded.url + path)
        pages.append(person.page)
    night, day = pages
    night.get_by_role("button", name="Acknowledge").click()
    expect(night.get_by_role("region", name="Answer")).to_contain_text("acknowledged by night shift")
    day.get_by_role("button", name="Resolve").click()
    expect(day.get_by_role("alert")).to_contain_text("night shift")
    assert guarded.get(f"/v1{path}")["state"] == "acknowledged"
    day.get_by_role("button", name="Resolve").click()
    expect(day.get_by_role("region", name="Answer")).to_contain_text("Resolved by day shift")


def test_a_token_ends_while_the_page_is_open(guarded: Guarded, meet: Meet) -> None:
    person = meet(guarded.url)
    person.expected += ["401", "403"]
    person.go("/")
    sign_in(person, guarded.token("night shift", "read", "operate"))
    expect(person.page.locator("#found tr[data-id]")).to_have_count(1)
    detail = person.open(f"/incidents/{incident_of(guarded, 'llm-70b')}")
    guarded.revoke("night shift")
    guarded.run("next", failure("usr-060"))
    person.page.bring_to_front()
    expect(person.page.locator("#live")).to_contain_text("signed out")
    detail.bring_to_front()
    detail.get_by_role("button", name="Acknowledge").click()
    expect(detail).to_have_url(re.compile("/login"))
    assert guarded.get(f"/v1/incidents/{incident_of(guarded, 'llm-70b')}")["state"] == "new"
    detail.locator("input[name=token]").fill(guarded.token("day shift", "read"))
    detail.get_by_role("button", name="Sign in").click()
    expect(detail).not_to_have_url(re.compile("/login"))


def test_who_may_only_read_is_offered_nothing_to_do(guarded: Guarded, meet: Meet) -> None:
    person = meet(guarded.url)
    person.go(f"/incidents/{incident_of(guarded, 'llm-70b')}")
    sign_in(person, guarded.token("reader", "read"))
    expect(person.page.get_by_role("region", name="Answer")).to_be_visible()
    for name in ("Acknowledge", "Resolve", "Test nodes", "This is right"):
        expect(person.page.get_by_role("main").get_by_text(name, exact=True)).to_have_count(0)
