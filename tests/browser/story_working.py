"""Time and attention, and work on incidents, in a real browser: the stories of somebody on call."""

import re

from playwright.sync_api import expect

from tests import waiting
from tests.browser.conftest import WIDTHS, Cluster, Meet, failure

RECORDED = """
window.told = [];
window.Notification = class extends EventTarget {
  static permission = "granted";
  static requestPermission = async () => "granted";
  constructor(title, options) { super(); window.told.push(`${title} (${options.body})`); }
};
"""
"""Notifications of the browser, kept where a test sees them."""


def fill(cluster: Cluster) -> None:
    """Two incidents: a bad GPU on 64 GPUs, and a mistake."""
    cluster.run("llm-70b", failure("inf-028"), user="pretraining", gpus=64)
    cluster.run("sft-1", failure("usr-061"), user="research")
    waiting.until(lambda: len(cluster.get("/v1/incidents")["items"]) == 2)


def test_who_looks_elsewhere_hears_of_a_new_incident(cluster: Cluster, meet: Meet) -> None:
    fill(cluster)
    engineer = meet(cluster.url, timezone_id="Asia/Tokyo", locale="en-GB")
    engineer.context.add_init_script(RECORDED)
    page = engineer.go("/")
    expect(page).to_have_title("(2) Incidents - logdoctor")
    page.get_by_role("button", name="Notifications off").click()
    expect(page.get_by_role("button", name="Notifications on")).to_have_attribute("aria-pressed", "true")
    report = engineer.open("/report")
    expect(report).to_have_title(re.compile(r"^\(2\) "))
    cluster.run("llm-7b", failure("usr-060"), user="research")
    expect(report).to_have_title(re.compile(r"^\(3\) "))
    expect(page).to_have_title("(3) Incidents - logdoctor")
    told = waiting.until(lambda: [*page.evaluate("window.told"), *report.evaluate("window.told")])
    assert len(told) == 1 and told[0].startswith("Out of Memory Error: ") and told[0].endswith("(Incident 3 is new)")
    cluster.post("/v1/incidents/3/comment", json={"note": "seen"})
    cluster.post("/v1/incidents/3/acknowledge", json={})
    expect(report).to_have_title(re.compile(r"^\(2\) "))
    assert len([*page.evaluate("window.told"), *report.evaluate("window.told")]) == 1, "it is told once"
    page.reload()
    expect(page.get_by_role("button", name="Notifications on")).to_be_visible()

    incident = engineer.open("/incidents/1")
    expect(incident.locator("header.incident")).to_contain_text(re.compile(r"UTC \(.*GMT\+9\)"))
    when = page.locator("#found td.time time").first
    when.hover()
    expect(when).to_have_attribute("title", re.compile(r"GMT\+9|Japan"))


def test_incidents_are_chosen_named_and_worked_on(cluster: Cluster, meet: Meet) -> None:
    fill(cluster)
    page = meet(cluster.url).go("/")
    page.get_by_role("link", name="Who are you?").click()
    page.get_by_label("Your name").fill("Anna")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("link", name="Anna")).to_be_visible()
    page.get_by_label("Choose incident 1").check()
    cluster.run("llm-7b", failure("usr-060"), user="research")
    expect(page.locator("#states")).to_contain_text("Open 3")
    expect(page.get_by_label("Choose incident 1")).to_be_checked()
    page.get_by_label("Choose incident 2").check()
    page.get_by_role("button", name="Assign to me").click()
    expect(page.get_by_role("status").filter(has_text="2 incidents assigned.")).to_be_visible()
    expect(page.get_by_text("with Anna (unverified)")).to_have_count(2)
    page.get_by_role("link", name="severity").click()
    expect(page.locator("#found tr[data-id]").first).to_have_attribute("data-id", "1")

    page.goto(f"{cluster.url}/incidents/1")
    page.locator(".work summary", has_text="Comment").click()
    page.locator(".work").get_by_label("Comment").fill("RMA ticket is open")
    page.get_by_role("button", name="Comment", exact=True).click()
    expect(page.locator("ol.history").first).to_contain_text("Anna (unverified) commented: RMA ticket is open")
    expect(page.get_by_role("heading", name="Work")).to_be_focused()
    page.locator(".work summary", has_text="Snooze").click()
    page.get_by_role("button", name="Snooze").click()
    page.locator(".work summary", has_text="Snooze").click()
    expect(page.get_by_role("button", name="End the snooze")).to_be_visible()
    page.goto(cluster.url)
    expect(page.locator("#found tr[data-id]")).to_have_count(2)
    page.get_by_role("link", name="Quiet").click()
    expect(page.locator("#found tr[data-id]")).to_have_count(1)


def test_without_scripts_on_a_phone_the_same_is_done(cluster: Cluster, meet: Meet) -> None:
    fill(cluster)
    page = meet(cluster.url, width=WIDTHS["phone"], scripts=False).go("/")
    for number in (1, 2):
        page.get_by_label(f"Choose incident {number}").check()
    page.get_by_role("button", name="Acknowledge").click()
    expect(page.get_by_role("status").filter(has_text="2 incidents acknowledged.")).to_be_visible()
    page.locator("#found th a").first.click()
    page.get_by_text("Mute", exact=True).click()
    page.get_by_role("button", name="Mute this failure").click()
    page.goto(f"{cluster.url}/attention")
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDTHS["phone"]
    page.get_by_role("button", name="Unmute").click()
    expect(page.get_by_text("Nothing is muted.")).to_be_visible()
