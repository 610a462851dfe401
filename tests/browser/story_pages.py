"""Every page, filled, at three widths: nothing sticks out, nothing keeps readers of screens out, nothing is run that a
log says."""

import re
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from eval.demo_cluster import remember, run_jobs
from tests import waiting
from tests.browser.conftest import WIDTHS, Cluster, Meet, cluster_in

NOW = 1.78e9
HOSTILE_JOB = "<img src=x onerror=alert(1)>"
HOSTILE = (
    b"<script>document.title = 'owned'</script>\n"
    b"\x1b]0;owned\x07\x1b[31;5mred\x1b[0m \x1b[2Jgone\n"
    b"\xe2\x80\xaerorre on\xe2\x80\xac and \xe2\x81\xa6isolated\xe2\x81\xa9\n"
    b"\xff\xfe not text \x00 at all\n"
    b"progress 1\rprogress 2\rprogress 3\n"
    b"torch.OutOfMemoryError: CUDA out of memory. <b onclick=alert(1)>Tried</b> to allocate 2.00 GiB. GPU 0 has a total"
    b" capacity of 79.15 GiB of which 1.06 GiB is free. &lt;/code&gt;</code></pre><h1>owned</h1>\n"
)
PAGES = {
    "incidents": "/",
    "incidents found": "/?text=timeout&state=all",
    "attempts": "/attempts?outcome=all",
    "incident": "/incidents/{incident}",
    "hostile incident": "/incidents/{hostile}",
    "verdict": "/verdicts/{verdict}",
    "correction": "/verdicts/{verdict}/correct",
    "log": "/jobs/llm-70b-pretrain/attempts/1/streams/main",
    "compressed log": "/jobs/llm-70b-pretrain/attempts/1/streams/main?view=compressed",
    "search in a log": "/jobs/llm-70b-pretrain/attempts/1/streams/main?q=error",
    "hostile log": "/jobs/{hostile_job}/attempts/1/streams/main",
    "run": "/jobs/llm-70b-pretrain",
    "rules": "/rules",
    "shipped rules": "/rules?status=active",
    "try a line": "/rules/try?line=torch.OutOfMemoryError:+CUDA+out+of+memory",
    "refused rules": "/rules/refused",
    "cases": "/cases",
    "nodes": "/nodes",
    "node": "/nodes/gpu-12",
    "unheard node": "/nodes/gpu-99",
    "cordon": "/nodes/gpu-12/cordon",
    "tests of nodes": "/node-tests",
    "new test": "/node-tests/new?nodes=gpu-12,gpu-13",
    "actions": "/actions",
    "audit": "/audit",
    "report": "/report",
    "notifications": "/notifications",
}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A service with two months of failures, last night's logs, and a job that means harm."""
    folder = tmp_path_factory.mktemp("filled") / "data"
    remember(folder, NOW)
    with cluster_in(folder) as cluster:
        run_jobs(cluster.url)
        cluster.run(quote(HOSTILE_JOB, safe=""), HOSTILE)
        waiting.until(lambda: cluster.get(f"/v1/incidents?job={quote(HOSTILE_JOB)}")["items"])
        waiting.until(lambda: cluster.get("/v1/incidents?job=llm-7b-eval")["items"])
        yield cluster


def place(cluster: Cluster, name: str) -> str:
    """The path of a page, whose things are on record."""
    incident = cluster.get("/v1/incidents?job=llm-70b-pretrain")["items"][-1]
    hostile = cluster.get(f"/v1/incidents?job={quote(HOSTILE_JOB)}")["items"][0]
    known = {"incident": incident["id"], "verdict": incident["newest"]["id"], "hostile": hostile["id"]}
    return PAGES[name].format(**known, hostile_job=quote(HOSTILE_JOB, safe=""))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_stands_at_every_width(filled: Cluster, meet: Meet, name: str) -> None:
    path = place(filled, name)
    person = meet(filled.url)
    for width in WIDTHS.values():
        person.page.set_viewport_size({"width": width, "height": 900})
        answer = person.page.goto(filled.url + path)
        assert answer is not None and answer.status == 200, path
        assert person.page.evaluate("document.documentElement.scrollWidth") <= width, f"{path} is wider than {width}"
    expect(person.page.get_by_role("heading", level=1)).to_have_count(1)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_keeps_nobody_out(filled: Cluster, meet: Meet, name: str) -> None:
    """At a desk by day, and on a phone in the dark with all that is folded there open."""
    page = meet(filled.url, bypass_csp=True).go(place(filled, name))
    assert barriers(page) == []
    page.emulate_media(color_scheme="dark", reduced_motion="reduce")  # colours that are still changing say nothing
    page.set_viewport_size({"width": WIDTHS["phone"], "height": 900})
    page.locator("main details").evaluate_all("all => all.forEach(one => one.open = true)")
    assert barriers(page) == []


def barriers(page: Page) -> list[tuple[str, str, str]]:
    """What of a page keeps somebody out, by axe."""
    rules = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
    found = Axe().run(page, options={"runOnly": rules})
    return [
        (one["id"], one["nodes"][0]["html"][:200], one["nodes"][0].get("failureSummary", "")[:300])
        for one in found.response["violations"]
        if one["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("name", ["incidents", "hostile incident", "hostile log", "attempts"])
def test_what_a_log_says_is_never_run(filled: Cluster, meet: Meet, name: str) -> None:
    person = meet(filled.url)
    spoken: list[str] = []
    person.page.on("dialog", lambda dialog: (spoken.append(dialog.message), dialog.dismiss()))
    page = person.go(place(filled, name))
    assert "owned" not in page.title().split(":")[0] or name != "incidents"
    assert page.locator("main img, main script, main [onclick], main [onerror]").count() == 0
    assert page.locator("h1").count() == 1
    assert not spoken
    shown = page.get_by_role("main").inner_text()
    assert "\x1b" not in shown and "\x00" not in shown and "\u202e" not in shown
    if name == "hostile log":
        assert "<script>document.title" in shown, "the text itself is shown"


def test_pages_print_without_what_is_pressed(filled: Cluster, meet: Meet) -> None:
    page = meet(filled.url).go(place(filled, "incident"))
    page.emulate_media(media="print")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.locator("header.top")).to_be_hidden()
    expect(page.get_by_role("button").first).to_be_hidden()


def test_a_printed_incident_keeps_what_its_proof_says(filled: Cluster, meet: Meet) -> None:
    page = meet(filled.url).go(place(filled, "incident"))
    page.emulate_media(media="print")
    expect(page.locator("figure.log figcaption").first).to_contain_text("in the log")
    expect(page.locator("figure.log figcaption a.inline").first).to_be_visible()
    assert page.locator("main :is(input, textarea, select, button):visible").count() == 0, "paper is not filled in"


def test_links_beside_lines_are_large_enough(filled: Cluster, meet: Meet) -> None:
    for width in WIDTHS.values():
        page = meet(filled.url, width=width).go(place(filled, "incident"))
        links = page.locator("figure.log a:visible, dt a:visible")
        assert links.count() > 5
        heights = links.evaluate_all("all => all.map(one => one.getBoundingClientRect().height)")
        assert min(heights) >= 24


@pytest.mark.parametrize("path", ["/rules?state=all", "/notifications", "/attempts?outcome=all"])
def test_the_chosen_tab_is_seen_on_a_phone(filled: Cluster, meet: Meet, path: str) -> None:
    page = meet(filled.url, width=WIDTHS["phone"], scripts=False).go(path)
    chosen = page.locator(".tabs a[aria-current]").first.bounding_box()
    assert chosen is not None and 0 <= chosen["x"] and chosen["x"] + chosen["width"] <= WIDTHS["phone"]


@pytest.mark.parametrize("name", ["incident", "report"])
def test_no_word_of_a_chart_leaves_its_card(filled: Cluster, meet: Meet, name: str) -> None:
    page = meet(filled.url, width=WIDTHS["phone"]).go(place(filled, name))
    page.locator("main details").evaluate_all("all => all.forEach(one => one.open = true)")
    texts = page.locator("figure.chart svg.chart text")
    assert texts.count() > 10
    outside = texts.evaluate_all(
        """all => all.filter(one => {
            const card = one.closest("figure").getBoundingClientRect(), text = one.getBoundingClientRect();
            return text.left < card.left || text.right > card.right;
        }).map(one => one.textContent)"""
    )
    assert outside == []


@pytest.mark.parametrize("path", ["/attempts?outcome=all", "/"])
def test_what_a_row_says_begins_on_one_line(filled: Cluster, meet: Meet, path: str) -> None:
    page = meet(filled.url, width=WIDTHS["tablet"]).go(path)
    apart = page.locator("table.list tbody tr").evaluate_all(
        """rows => rows.map(row => {
            const tops = [...row.cells].filter(cell => cell.textContent.trim()).map(cell => {
                const range = document.createRange();
                range.selectNodeContents(cell);
                return Math.min(...[...range.getClientRects()].filter(one => one.width > 1).map(one => one.top));
            });
            return Math.max(...tops) - Math.min(...tops);
        })"""
    )
    assert len(apart) > 20 and max(apart) < 10, "less than half a line"


def test_a_fold_opens_and_closes_at_its_place(filled: Cluster, meet: Meet) -> None:
    for scripts in (True, False):
        person = meet(filled.url, width=WIDTHS["phone"], scripts=scripts)
        page = person.go(place(filled, "compressed log"))
        before = page.locator("li.folded").nth(2)
        before.get_by_role("link", name=re.compile("^Show")).click()
        head = page.locator("li.opened")
        expect(head).to_be_in_viewport()
        head.get_by_role("link", name=re.compile("^Hide")).click()
        expect(page.locator("li.opened")).to_have_count(0)
        expect(page.locator("li.folded:target")).to_be_in_viewport()


def test_nothing_comes_from_elsewhere(filled: Cluster, meet: Meet) -> None:
    person = meet(filled.url)
    asked: list[str] = []
    person.page.on("request", lambda request: asked.append(request.url))
    for name in ("incidents", "incident", "log", "report", "rules"):
        answer = person.page.goto(filled.url + place(filled, name))
        assert answer is not None
        policy = answer.headers["content-security-policy"]
        assert ("unsafe" not in policy and "default-src 'none'" in policy) or "default-src 'self'" in policy
    assert asked and all(url.startswith(filled.url) for url in asked)
