"""Speed of the pages with 10,000 incidents on record, as a browser on this machine meets it.

    python eval/bench_pages.py [--quick] [--json [FILE]]

`list`: the server's time for the list of incidents and for each way to filter it. `paint`: the first paint of pages in
Chromium with an empty cache, and all bytes that came over the wire for it. `actions`: from the click to the next page
loaded. Nothing is asserted; budgets stand beside the figures. Temporary data goes to TMPDIR and is removed.
"""

import argparse
import http.client
import json
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench_service import fill, service
from playwright.sync_api import Browser, Page, sync_playwright
from rich.console import Console

RESULTS = Path(__file__).resolve().parent / "results" / "bench_pages.json"
LISTS = {
    "all": "/",
    "a reason": "/?reason=ECC+Error",
    "a node": "/?node=gpu-7",
    "a job": "/?job=job-11",
    "a user": "/?user=user-3",
    "words": "/?text=timeout",
    "resolved": "/?state=resolved",
    "last 30 days": "/?within=month",
}
PAGES = ("/", "/incidents/{}", "/nodes", "/nodes/gpu-7", "/rules", "/report", "/actions", "/attempts")
SERVER_MS, PAINT_MS, WEIGHT, ACTION_MS = 100, 500, 200_000, 500
_ALONE = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
console = Console(highlight=False)

Row = dict[str, Any]


def lists(port: int, rounds: int) -> Row:
    """Milliseconds of the server for each list: the median and the slowest of some requests."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    found = {}
    for name, path in LISTS.items():
        waits = []
        for _ in range(rounds + 1):
            begin = time.perf_counter()
            connection.request("GET", path)
            response = connection.getresponse()
            response.read()
            waits.append((time.perf_counter() - begin) * 1000)
            assert response.status == 200, (path, response.status)
        found[name] = {"median_ms": statistics.median(waits[1:]), "slowest_ms": max(waits[1:])}
    return found


def paint(browser: Browser, url: str, rounds: int) -> Row:
    """For each page: milliseconds to the first paint, and bytes of everything it loads, nothing being cached."""
    found = {}
    for path in PAGES:
        at = url + path.format(random.Random(1).randrange(1, 1000))
        waits, weight = [], 0
        for _ in range(rounds):
            context = browser.new_context(viewport={"width": 1440, "height": 900})
            page = context.new_page()
            assert (answer := page.goto(at)) is not None and answer.status == 200, at
            waits.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
            weight = page.evaluate(
                "['navigation', 'resource'].flatMap(kind => performance.getEntriesByType(kind))"
                ".reduce((sum, one) => sum + one.transferSize, 0)"
            )
            context.close()
        found[path] = {"median_ms": statistics.median(waits), "slowest_ms": max(waits), "bytes": weight}
    return found


def actions(browser: Browser, url: str, rounds: int) -> Row:
    """Milliseconds from a click to the next page loaded, by action."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page, waits = context.new_page(), dict[str, list[float]]()
    for number in range(1, rounds + 1):
        for name, take in ACTIONS.items():
            take(page, f"{url}", number, lambda button, name=name: waits.setdefault(name, []).append(click(page, button)))
    context.close()
    return {name: {"median_ms": statistics.median(some), "slowest_ms": max(some)} for name, some in waits.items()}


def click(page: Page, button: str) -> float:
    """Milliseconds until the page behind a button is loaded."""
    begin = time.perf_counter()
    with page.expect_navigation():
        page.get_by_role("button", name=button, exact=True).first.click()
    return (time.perf_counter() - begin) * 1000


Timed = Callable[[str], None]
ACTIONS: dict[str, Callable[[Page, str, int, Timed], None]] = {}
