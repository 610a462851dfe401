"""The desk in a real browser: a night's work without a mouse, the same with few clicks, and how it looks."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from eval.demo_cluster import remember
from tests import waiting
from tests.browser.conftest import WIDTHS, Cluster, Meet, cluster_in, failure

NOW = 1.78e9
COUNTED = """
addEventListener("click", (event) => {
  if (event.isTrusted && event.pointerType) sessionStorage.clicks = Number(sessionStorage.clicks ?? 0) + 1;
}, true);
"""
"""Counts the clicks of a pointer; a button that a key presses is none."""
LOOKS = """() => {
  const sizes = new Set(), weights = new Set(), links = new Set();
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const part = walk.currentNode.parentElement;
    if (!walk.currentNode.textContent.trim() || !part.checkVisibility()) continue;
    const style = getComputedStyle(part);
    sizes.add(Math.round(parseFloat(style.fontSize)));
    weights.add(style.fontWeight);
    const link = part.closest("main a");
    if (link && !link.matches(".button, th a, .tabs a, [aria-current], .cited a")) links.add(style.fontWeight);
  }
  return [[...sizes], [...weights], [...links]].map((one) => one.sort());
}"""
"""The sizes and weights of the text of a page, and the weights of its links in texts."""


@pytest.fixture
def night(tmp_path: Path) -> Iterator[Cluster]:
    """A service that may cordon by a file: a bad GPU, and two jobs with mistakes."""
    settings = {
        "LOGDOCTOR_ACT_TEST": "never",
        "LOGDOCTOR_ACT_CORDON": "never",
        "LOGDOCTOR_CORDON_WITH": "file",
        "LOGDOCTOR_CORDON_FILE": str(tmp_path / "cordoned"),
        "LOGDOCTOR_FLEET": "os-a100-[01-64]",
    }
    with cluster_in(tmp_path / "data", **settings) as cluster:
        cluster.run("sft-1", failure("usr-061"))
        cluster.run("llm-7b", failure("usr-060"))
        waiting.until(lambda: len(cluster.get("/v1/incidents")["items"]) == 2)
        cluster.run("llm-70b", failure("inf-028"), gpus=64, command="sbatch train.sh", nodelist="os-a100-[01-08]")
        waiting.until(lambda: len(cluster.get("/v1/incidents")["items"]) == 3)
        yield cluster


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A service with two months of failures."""
    folder = tmp_path_factory.mktemp("filled") / "data"
    remember(folder, NOW)
    with cluster_in(folder) as cluster:
        yield cluster


def focused(page: Page) -> str:
    """What has the focus, in its own words."""
    return str(page.locator(":focus").text_content()).strip()


def awake(page: Page) -> None:
    """Wait until a page hears keys."""
    expect(page.get_by_role("button", name="Commands")).to_be_visible()


def test_a_night_without_a_mouse(night: Cluster, meet: Meet, tmp_path: Path) -> None:
    person = meet(night.url)
    person.context.add_init_script(COUNTED)
    page = person.go("/")
    keys = page.keyboard
    awake(page)
    keys.press("j")
    expect(page.locator("tr.chosen")).to_contain_text("ECC Error")
    keys.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("ECC Error")
    awake(page)
    keys.press("a")
    assert focused(page) == "Acknowledge" and night.get("/v1/incidents?state=acknowledged")["items"] == []
    keys.press("Enter")
    expect(page.get_by_role("region", name="Answer")).to_contain_text("acknowledged")
    expect(page.locator("#next")).to_be_focused()
    assert focused(page) == "Cordon os-a100-03", "the recommended step is next"
    awake(page)
    for line in page.locator("li.cited").all()[:2]:
        keys.press("j")
        expect(line.locator("a").first).to_be_focused()
    keys.press("l")
    expect(page).to_have_url(re.compile(r"/streams/main.*line="))
    page.go_back()
    expect(page.get_by_role("region", name="Answer")).to_be_visible()
    awake(page)
    keys.press("o")
    expect(page).to_have_url(re.compile(r"/nodes/os-a100-03/cordon"))
    awake(page)
    keys.press("o")
    assert focused(page) == "Cordon os-a100-03"
    keys.press("Enter")
    waiting.until(lambda: (tmp_path / "cordoned").exists() and "os-a100-03" in (tmp_path / "cordoned").read_text())
    expect(page.get_by_text("os-a100-03 is cordoned").first).to_be_visible()
    expect(page).to_have_url(re.compile(r"/incidents/\d+"))
    awake(page)
    for key, field in (("c", "note"), ("i", "assignee"), ("s", "span"), ("r", "note")):
        keys.press(key)
        expect(page.locator(f"[name={field}]:focus")).to_have_count(1)
        keys.press("Escape")
    keys.press("r")
    keys.type("board returned")
    keys.press("Enter")
    expect(page.get_by_role("region", name="Answer")).to_contain_text("board returned")
    assert focused(page).startswith("Next: ")
    keys.press("Enter")
    expect(page.get_by_role("heading", level=1)).not_to_contain_text("ECC Error")
    awake(page)
    keys.press("u")
    expect(page.locator("#found tr[data-id]")).to_have_count(2)
    expect(page.locator("tr.chosen a:focus")).to_have_count(1)
    assert page.evaluate("sessionStorage.clicks") is None


def test_the_whole_story_in_twelve_clicks(night: Cluster, meet: Meet) -> None:
    person = meet(night.url)
    person.context.add_init_script(COUNTED)
    page = person.go("/")
    page.get_by_role("link", name="ECC Error", exact=True).click()
    page.locator("figure.log figcaption a").first.click()
    page.go_back()
    page.locator("main").get_by_role("link", name="Cordon os-a100-03").first.click()
    page.get_by_role("button", name="Cordon os-a100-03").click()
    page.get_by_label(re.compile("^Note")).fill("board returned")
    page.get_by_role("button", name="Resolve").click()
    page.get_by_role("link", name=re.compile("^Next: ")).click()
    before = int(page.evaluate("sessionStorage.clicks"))
    page.get_by_role("link", name="It was something else").click()
    expect(page.locator("input[name=reason]")).to_be_focused()
    page.keyboard.type("dataset loading error")
    page.get_by_label("What exactly").fill("the spool of the data loader")
    page.locator("input[name=naming]").last.check()
    page.get_by_role("button", name="Preview what will be learned").click()
    page.get_by_role("button", name="Save the correction").click()
    expect(page.locator("#confirmed")).to_be_visible()
    assert int(page.evaluate("sessionStorage.clicks")) - before <= 5
    page.get_by_role("link", name=re.compile("^case ")).first.click()
    expect(page.get_by_role("region", name="What it was")).to_contain_text("the spool of the data loader")
    assert int(page.evaluate("sessionStorage.clicks")) <= 12


def test_the_first_row_is_few_tabs_away(filled: Cluster, meet: Meet) -> None:
    page = meet(filled.url).go("/")
    for key in ("Tab", "Tab", "Enter", "Tab"):
        page.keyboard.press(key)
    if page.locator("thead :focus").count():
        page.keyboard.press("Tab")
    expect(page.locator("tbody tr").first.locator(":focus")).to_have_count(1)


def test_rows_are_ticked_singly_by_ranges_and_all_at_once(filled: Cluster, meet: Meet) -> None:
    page = meet(filled.url).go("/")
    awake(page)
    ticked = page.locator("tbody .tick input:checked")
    for key in "jxjjX":
        page.keyboard.press(key)
    expect(ticked).to_have_count(3)
    page.locator("tbody .tick input").nth(6).click(modifiers=["Shift"])
    expect(ticked).to_have_count(7)
    page.get_by_label("Choose all on this page").check()
    assert ticked.count() == page.locator("tbody tr").count() > 20


def test_the_palette_leads_everywhere(filled: Cluster, meet: Meet) -> None:
    page = meet(filled.url).go("/")
    awake(page)
    page.keyboard.press("?")
    expect(page.get_by_role("option", name=re.compile("^Acknowledge"))).to_contain_text("a")
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    page.keyboard.type("nod")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/nodes$"))
    awake(page)
    page.keyboard.press("Control+k")
    page.keyboard.type("3")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/incidents/3$"))
    awake(page)
    page.keyboard.press("Control+k")
    page.keyboard.type("no such failure")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Nothing matches")).to_be_visible()


@pytest.mark.parametrize("path", ["/", "/incidents/3", "/attempts?outcome=all", "/nodes", "/actions", "/rules"])
def test_text_has_five_sizes_and_two_weights(filled: Cluster, meet: Meet, path: str) -> None:
    page = meet(filled.url).go(path)
    page.locator("main details").evaluate_all("all => all.forEach(one => one.open = true)")
    sizes, weights, links = page.evaluate(LOOKS)
    assert set(sizes) <= {12, 14, 16, 20, 24} and set(weights) <= {"400", "600"} and len(links) <= 1


@pytest.mark.parametrize("path", ["/", "/attempts?outcome=all", "/nodes"])
def test_ten_rows_fit_a_phone_and_a_bit(filled: Cluster, meet: Meet, path: str) -> None:
    page = meet(filled.url, width=WIDTHS["phone"]).go(path)
    rows = page.locator(".list tbody tr")
    first, tenth = rows.first.bounding_box(), rows.nth(9).bounding_box()
    assert first and tenth and tenth["y"] + tenth["height"] - first["y"] <= 1200


def test_what_is_folded_is_told_opened_by_its_address_and_printed(filled: Cluster, meet: Meet) -> None:
    page = meet(filled.url).go("/incidents/3")
    folded = page.locator(".part details:not([open])")
    assert folded.count() >= 4
    expect(page.locator("#ended dl")).to_be_hidden()
    page.goto(f"{filled.url}/incidents/3#ended")
    expect(page.locator("#ended dl")).to_be_visible()
    page.emulate_media(media="print")
    expect(page.locator("#account p")).to_be_visible()
