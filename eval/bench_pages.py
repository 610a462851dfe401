"""Speed of the pages with 10,000 incidents on record, in a browser on this machine.

    python eval/bench_pages.py [--quick] [--json [FILE]]

`list`: the server's time for the list of incidents and for each filter. `paint`: the first paint of pages in Chromium
with an empty cache, and all bytes transferred for it. `actions`: from the click to the next page loaded. Nothing is
asserted; budgets stand beside the figures. Temporary data goes to TMPDIR and is removed.
"""

import argparse
import http.client
import json
import random
import re
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bench_service import fill, service
from playwright.sync_api import Browser, Page, sync_playwright
from rich.console import Console

RESULTS = Path(__file__).resolve().parent / "results" / "bench_pages.json"
LISTS = {
    "all": "/",
    "a reason": "/?reason=ECC+Error",
    "a node": "/?node=gpu-3",
    "a job": "/?job=job-11",
    "a user": "/?user=user-3",
    "words": "/?text=timeout",
    "resolved": "/?state=resolved",
    "last 30 days": "/?within=month",
}
PAGES = ("/", "/incidents/{}", "/nodes", "/nodes/gpu-3", "/rules", "/report", "/actions", "/attempts")
SERVER_MS, PAINT_MS, WEIGHT, ACTION_MS = 100, 500, 200_000, 500
PAINTED = "performance.getEntriesByName('first-contentful-paint')"
_ALONE = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
console = Console(highlight=False)

Row = dict[str, Any]


def lists(port: int, rounds: int) -> Row:
    """Return the server's milliseconds for each list: median and slowest."""
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
    """Return for each page, without cache, milliseconds to the first paint, and bytes of all it loads."""
    found = {}
    for path in PAGES:
        at = url + path.format(random.Random(1).randrange(1, 1000))
        waits, weight = [], 0
        for _ in range(rounds):
            context = browser.new_context(viewport={"width": 1440, "height": 900})
            page = context.new_page()
            assert (answer := page.goto(at)) is not None and answer.status == 200, at
            while not page.evaluate(f"{PAINTED}.length"):  # our pages' policy forbids a waiting function
                page.wait_for_timeout(10)
            waits.append(page.evaluate(f"{PAINTED}[0].startTime"))
            weight = page.evaluate(
                "['navigation', 'resource'].flatMap(kind => performance.getEntriesByType(kind))"
                ".reduce((sum, one) => sum + one.transferSize, 0)"
            )
            context.close()
        found[path] = {"median_ms": statistics.median(waits), "slowest_ms": max(waits), "bytes": weight}
    return found


def actions(browser: Browser, url: str, rounds: int) -> Row:
    """Return the milliseconds from a click to the next page loaded, by action."""
    page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
    waits: dict[str, list[float]] = {}
    for number in range(1, rounds + 1):
        for name, path, button in STEPS:
            page.goto(url + path.format(number, node=f"gpu-{number}"))
            if "correct" in path:
                page.locator("select[name=reason]").select_option("Key Error")
            if path.endswith("/cordon"):
                page.locator("textarea[name=reason]").fill("measured")
            waits.setdefault(name, []).append(click(page, button))
            if name == "see what a correction teaches":
                waits.setdefault("save a correction", []).append(click(page, "^Save the correction$"))
    page.context.close()
    return {name: {"median_ms": statistics.median(some), "slowest_ms": max(some)} for name, some in waits.items()}


def click(page: Page, button: str) -> float:
    """Click a button; return the milliseconds until the next page is loaded."""
    begin = time.perf_counter()
    with page.expect_navigation():
        page.get_by_role("main").get_by_role("button", name=re.compile(button)).first.click()
    return (time.perf_counter() - begin) * 1000


STEPS = (
    ("search", "/", "^Apply$"),
    ("acknowledge", "/incidents/{}", "^Acknowledge$"),
    ("resolve", "/incidents/{}", "^Resolve$"),
    ("reopen", "/incidents/{}", "^Reopen$"),
    ("confirm", "/verdicts/{}", "^Confirm "),
    ("see what a correction teaches", "/verdicts/5{}/correct", "teach$"),
    ("cordon (dry run)", "/nodes/{node}/cordon", "^Cordon "),
    ("uncordon", "/nodes/{node}/uncordon", "^Uncordon "),
    ("try a line on all rules", "/rules/try?line=CUDA+error+{}", "^Try"),
)
"""Each action with its page and button."""


def show(found: Row) -> None:
    """Print the figures with their budgets."""
    lists_ms = max(one["slowest_ms"] for one in found["list"].values())
    console.print(f"lists of {found['incidents']:,} incidents: slowest {lists_ms:.0f} ms (budget {SERVER_MS})")
    for path, one in found["paint"].items():
        console.print(
            f"{path}: first paint {one['median_ms']:.0f} ms, slowest {one['slowest_ms']:.0f} (budget {PAINT_MS}); "
            f"{one['bytes'] / 1000:.0f} kB (budget {WEIGHT / 1000:.0f})"
        )
    for name, one in found["actions"].items():
        console.print(f"{name}: {one['median_ms']:.0f} ms, slowest {one['slowest_ms']:.0f} (budget {ACTION_MS})")


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="1,000 incidents, few rounds")
    parser.add_argument("--json", nargs="?", type=Path, const=RESULTS, help="also write the figures here")
    given = parser.parse_args()
    count, rounds = (1000, 3) if given.quick else (10_000, 10)
    folder = Path(tempfile.mkdtemp(prefix="logdoctor-"))
    try:
        data = folder / "data"
        data.mkdir()
        fill(f"sqlite:///{data / 'logdoctor.db'}", count)
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        settings = {"fleet": "gpu-[0-299]", "cordon_at_once": "100", "cordon_per_hour": "100", "cordon_share": "0.5"}
        with service(data, **settings) as running, sync_playwright() as playwright:
            url = f"http://127.0.0.1:{running.port}"
            browser = playwright.chromium.launch(executable_path=chromium, args=[*_ALONE])
            found: Row = {"incidents": count, "list": lists(running.port, 3 * rounds)}
            found |= {"paint": paint(browser, url, rounds), "actions": actions(browser, url, rounds)}
            browser.close()
    finally:
        shutil.rmtree(folder)
    show(found)
    if given.json:
        given.json.parent.mkdir(exist_ok=True)
        given.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
