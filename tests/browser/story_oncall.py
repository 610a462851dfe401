"""On call at night without a launcher, in a real browser: a wrong verdict is corrected with its node, the rule is
overruled, and the node is cordoned by hand."""

import pytest
from playwright.sync_api import Page, expect

from tests import waiting
from tests.browser.conftest import WIDTHS, Cluster, Meet, failure


def fits(page: Page) -> None:
    """Nothing stands out of the window at its side."""
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), page.url


@pytest.mark.parametrize("width", ["desk", "phone"])
def test_a_wrong_verdict_is_corrected_and_stays_corrected(cluster: Cluster, meet: Meet, width: str) -> None:
    cluster.run("llm-70b", failure("inf-028"), launcher="slurm", command="sbatch train.sh", nodelist="os-a100-[01-08]")
    found = waiting.until(lambda: cluster.get("/v1/incidents?job=llm-70b")["items"])
    decided = cluster.get("/v1/jobs/llm-70b/attempts/1/verdict")["verdict"]["decided_by"]["rule"]
    person = meet(cluster.url, width=WIDTHS[width])
    page = person.go(f"/incidents/{found[0]['id']}")
    page.get_by_role("link", name="It was something else").first.click()
    page.locator("input[name=reason]").fill("NVLink Error")
    page.locator("input[name=node][value='os-a100-03']").uncheck()
    page.locator("input[name=node][value='os-a100-07']").check()
    page.locator("input[name=naming][value='main:126']").check()
    page.get_by_role("button", name="Preview what will be learned").click()
    expect(page.get_by_text("would again tomorrow").first).to_be_visible()
    page.locator("input[name=overrule][value='job']").check()
    fits(page)
    page.get_by_role("button", name="Save the correction").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("NVLink Error")
    expect(page.get_by_text("--exclude=").first).to_contain_text("os-a100-07")
    page.get_by_role("link", name="Cordon os-a100-07").first.click()
    expect(page.get_by_text("scontrol update nodename=os-a100-07 state=drain")).to_be_visible()
    fits(page)
    page.get_by_role("button", name="I did it", exact=True).click()
    expect(page.get_by_text("os-a100-07 is cordoned (by-hand")).to_be_visible()
    person.go("/nodes")
    expect(page.get_by_text("Jobs that failed on it")).to_be_visible()
    cluster.run("llm-70b", failure("inf-028"), attempt=2)
    read = cluster.running.client.get
    again = waiting.until(
        lambda: (got := read("/v1/jobs/llm-70b/attempts/2/verdict")).status_code == 200 and got.json()
    )
    assert again["verdict"]["decided_by"]["rule"] != decided, "the rule was overruled for this job"
