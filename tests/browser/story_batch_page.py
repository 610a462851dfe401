"""The page of a batch, opened as a file."""

import time
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe

from logdoctor.pipeline.batch.rows import Row
from logdoctor.pipeline.batch.summary import summarise
from logdoctor.web.batch_page import batch_page
from tests.batch.test_summary import failure
from tests.browser.conftest import WIDTHS, Meet

LONG = "x" * 300


@pytest.fixture
def page_file(tmp_path: Path) -> str:
    """The URL of a page with long and hostile names in it."""
    rows = [
        failure(
            f"job-{number}", begin=30.0 * number, reason=reason, category=category, suspects=(f"node-{number}", LONG)
        )
        for number, (reason, category) in enumerate(
            [("ECC Error", "Infrastructure"), ("Key Error", "Script"), ("Unknown", "None"), ("Hang", "Anomaly")] * 5
        )
    ]
    rows += [Row(source=f"/archive/{LONG}.gz", error=f"{LONG} <b>is damaged</b>. Try again.")]
    place = tmp_path / "page.html"
    place.write_text(batch_page(summarise(rows), f"<i>{LONG}", time.time()))
    return place.as_uri()


@pytest.mark.parametrize("width", [WIDTHS["phone"], 768, WIDTHS["desk"]])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_is_read_on_every_screen(meet: Meet, page_file: str, width: int, dark: bool) -> None:
    person = meet("", width=width, dark=dark)
    asked: list[str] = []
    person.page.on("request", lambda request: asked.append(request.url))
    page = person.go(page_file)
    assert asked == [page_file]  # nothing from elsewhere
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("svg.chart").count() == 6
    assert page.locator("main b, main i").count() == 0
    found = page.locator("h2").all_inner_texts()
    assert found == ["By reason", "Where and when", "Unreadable"]


def test_the_page_keeps_nobody_out(meet: Meet, page_file: str) -> None:
    page = meet("", dark=True).go(page_file)
    found = Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]})
    assert found.violations_count == 0, found.generate_report()
